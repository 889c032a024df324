"""`python -m benchmarks.state [suite …]`: run suites of the benchmarks of state; all of them if none is named."""

from __future__ import annotations

import sys

from benchmarks.command import command
from benchmarks.state.suites import SUITES, run


def main(arguments: list[str] | None = None) -> int:
    return command("state", SUITES, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
