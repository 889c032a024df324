"""`python -m benchmarks.trace [suite …]`: run suites of the trace benchmarks; all of them if none is named."""

from __future__ import annotations

import sys

from benchmarks.command import command
from benchmarks.trace.suites import SUITES, run


def main(arguments: list[str] | None = None) -> int:
    return command("trace", SUITES, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
