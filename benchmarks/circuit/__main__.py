"""`python -m benchmarks.circuit [suite …]`: run suites of the circuit benchmarks; all of them if none is named."""

from __future__ import annotations

import argparse
import sys

from benchmarks.circuit.suites import SUITES, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.circuit", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], metavar="suite", help=", ".join(SUITES))
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args(arguments)
    missed = [t for t in run(given.suites) if not t.passed]
    return int(given.strict and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
