"""Install a wheel with compiled kernels beside the dependencies that are there, and use it: `make check-wheel`.

Checks, in environments of their own, that

1. the first pipeline loads machine code and never starts LLVM's compiler, though the package is read-only and there is
   no cache;
2. so it does from a zip file;
3. a damaged file is not run: its unit is compiled anew, with a warning;
4. so it is where the kernels fit other sources or another numba.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

USE = """
import logging, sys
logging.basicConfig(level=logging.WARNING)
from numba.core import codegen
from numba.core.registry import cpu_target
cpu_target.target_context.refresh()  # numba compiles a small runtime of its own in every process
def refuse(*arguments):
    raise AssertionError("LLVM was started")
codegen.CPUCodeLibrary._optimize_final_module = refuse
import dbspark
from dbspark.kernels import preload
assert sys.argv[1] in dbspark.__file__, dbspark.__file__
with dbspark.Pipeline("wheel") as pipe:
    pipe.create_table("t", "k BIGINT, v STRING", primary_key=["k"])
    with pipe.transaction() as tx:
        tx.insert("t", [(1, "a"), (2, "b")])
    assert pipe.table("t").to_arrow().num_rows == 2
assert preload.unready_units() == []
"""


def main() -> None:
    """Check the newest wheel in a folder."""
    wheel = max(Path(sys.argv[1]).glob("dbspark-*.whl"), key=lambda path: path.stat().st_mtime)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        python, packages = environment(root)
        zipfile.ZipFile(wheel).extractall(packages)  # as pip does; pip itself would ask the index for dependencies
        compiled = packages / "dbspark" / "kernels" / "compiled"
        units = sorted(compiled.rglob("*.unit"))
        assert units, f"{wheel} has no compiled kernels"
        size = sum(path.stat().st_size for path in units)
        say(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, of which kernels {size / 1e6:.1f} MB unpacked")

        read_only(packages, True)
        cache = root / "cache-1"
        use(python, root, cache)
        everywhere = [path for path in (*cache.rglob("*.unit"), *packages.rglob("*.unit")) if path not in units]
        assert not everywhere, f"something was compiled: {everywhere}"
        say("1. a read-only package without a cache: nothing is compiled")
        read_only(packages, False)

        archive = root / wheel.name
        shutil.copyfile(wheel, archive)
        dbspark = packages / "dbspark"
        dbspark.rename(root / "aside")
        use(python, root, cache, path=archive)
        (root / "aside").rename(dbspark)
        assert not list(cache.rglob("*.unit")), "something was compiled"
        say("2. a package in a zip file: nothing is compiled")

        content = bytearray(units[0].read_bytes())
        content[len(content) // 2] ^= 1
        units[0].write_bytes(content)
        errors = use(python, root, root / "cache-2")
        assert "damaged" in errors, errors
        say("3. a damaged file: its unit is compiled anew")
        shutil.rmtree(packages / "dbspark" / "kernels" / "__pycache__", ignore_errors=True)

        next(path for path in compiled.iterdir() if path.is_dir()).rename(compiled / "kernels-of-another-numba")
        errors = use(python, root, root / "cache-3")
        assert errors.count("the sources of kernels differ from those that came with dbspark") == 1, errors
        shutil.rmtree(packages / "dbspark" / "kernels" / "__pycache__")
        (compiled / "fits.txt").write_text("another numba\n")
        errors = use(python, root, root / "cache-4")
        assert errors.count("the compiled kernels that came with dbspark are for another numba") == 1, errors
        say("4. kernels for other sources or another numba: compiled here, and said once")


def environment(root: Path) -> tuple[Path, Path]:
    """A new environment that finds the dependencies of this one, but not its dbspark."""
    venv.create(root / "venv", with_pip=False)
    packages = next((root / "venv").glob("lib/python*/site-packages"))
    (root / "dependencies").mkdir()
    for place in [path for path in sys.path if path.endswith("site-packages")] + site.getsitepackages():
        for entry in Path(place).iterdir():
            link = root / "dependencies" / entry.name
            if "dbspark" not in entry.name and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)
    (packages / "dependencies.pth").write_text(f"{root / 'dependencies'}\n")
    return root / "venv" / "bin" / "python", packages


def read_only(folder: Path, on: bool) -> None:
    """Take away the permission to write into a folder, or give it back. Root may write all the same."""
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        path.chmod(0o555 if on else 0o755)


def use(python: Path, root: Path, cache: Path, path: str | Path = "") -> str:
    """Run `USE`, in which LLVM refuses to work; returns what it wrote to standard error."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(root), "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(path)}
    done = subprocess.run(
        [python, "-c", USE, str(root)], env=variables, cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
