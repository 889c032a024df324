"""Collect compiled kernels for a platform wheel: `python -m dbspark.kernels.package FOLDER`.

Kernels that are not there yet are compiled first. The folder gets what the package's folder `compiled` has in an
installed wheel: a subfolder with the units, named after the sources, compilers and target (`target.cache_key`), and a
file of one line that describes compilers and target to people.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from dbspark.kernels import objects, preload
from dbspark.kernels.target import cache_key, described
from dbspark.kernels.units import UNITS


def main() -> None:
    """Replace the folder named by the only argument with one that holds all units."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    target = folder / cache_key()
    target.mkdir(parents=True)
    preload.begin()
    preload.wait()
    for name in UNITS:
        unit = objects.read_unit(name)
        if unit is None:
            sys.exit(f"kernels of unit {name} could not be compiled")
        objects.write_unit(target / f"{name}.unit", unit)
    (folder / objects.DESCRIPTION).write_text(f"{described()}\n")


if __name__ == "__main__":
    main()
