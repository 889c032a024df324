"""`python -m benchmarks [quick|full]`: every suite of every package, small and in minutes or as large as it is meant.

`quick` is for seeing that everything works and for a first impression; its sizes are too small to judge by. `full`
takes hours and writes `docs/benchmarks.md` when it is done. Packages that are named are run alone:
`python -m benchmarks quick peers sql`. A suite that fails is named in the end, and does not keep the others from
being run.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from importlib import import_module

PACKAGES = ("zset", "trace", "circuit", "sql", "spark", "state", "peers")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["quick", "full"], nargs="?", default="quick")
    parser.add_argument("packages", nargs="*", choices=[*PACKAGES, []], metavar="package", help=", ".join(PACKAGES))
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args(arguments)
    os.environ["DBSP_QUICK_BENCH"] = "1" if given.mode == "quick" else "0"  # read when the suites are imported
    failed, code = [], 0
    for package in given.packages or PACKAGES:
        try:
            run = import_module(f"benchmarks.{package}.__main__").main
            code = max(code, run(["--strict"] if given.strict else []))
        except Exception:
            traceback.print_exc()
            failed.append(package)
    if given.mode == "full":
        import_module("benchmarks.page").write()
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 2 if failed else code


if __name__ == "__main__":
    sys.exit(main())
