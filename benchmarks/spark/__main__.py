"""`python -m benchmarks.spark [suite …]`: run suites of these benchmarks; all of them if none is named."""

from __future__ import annotations

import sys

from benchmarks.command import command
from benchmarks.spark.suites import SUITES, run


def main(arguments: list[str] | None = None) -> int:
    return command("spark", SUITES, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
