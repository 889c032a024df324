"""The command line of a package of suites: `python -m benchmarks.<package> [suite …]`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from benchmarks.report import Target


def command(
    package: str, suites: Iterable[str], run: Callable[[list[str]], list[Target]], arguments: list[str] | None
) -> int:
    """Run the suites that are named, all of them if none is; 1 if a target is missed and that matters."""
    names = list(suites)
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{package}", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*names, []], metavar="suite", help=", ".join(names))
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args(arguments)
    missed = [t for t in run(given.suites) if not t.passed]
    return int(given.strict and bool(missed))
