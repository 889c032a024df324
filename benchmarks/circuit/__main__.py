"""`python -m benchmarks.circuit [suite …]`: run suites of the circuit benchmarks; all of them if none is named."""

from __future__ import annotations

import sys

from benchmarks.circuit.suites import SUITES, run
from benchmarks.command import command


def main(arguments: list[str] | None = None) -> int:
    return command("circuit", SUITES, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
