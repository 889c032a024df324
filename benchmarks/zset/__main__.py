"""`python -m benchmarks.zset [suite …]`: run suites of the Z-set benchmarks; all of them if none is named."""

from __future__ import annotations

import argparse
import logging
import sys
from importlib import import_module
from typing import Any

from benchmarks.report import Target, save, show_targets
from benchmarks.zset.gates import ALL, PARITY

SUITES = ("gates", "pipeline", "micro", "deltas", "batch", "memory", "sweep")
BY_WORKLOAD = ("gates", "pipeline", "micro", "sweep")
"""Those that take `--only` and `--budget`."""


def run_suite(name: str, only: str | None, options: dict[str, Any]) -> list[Target]:
    """Run one suite; returns its targets."""
    suite = import_module(f"benchmarks.zset.{name}")
    found: list[Target] = suite.run(only, **options) if name in BY_WORKLOAD else suite.run()
    return found


def main(arguments: list[str] | None = None) -> int:
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments[:1] == ["profile"]:
        from benchmarks.zset import profile

        return profile.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zset", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"{', '.join(SUITES)}; or: profile WORKLOAD")
    parser.add_argument("--only", help="workloads whose name matches this expression")
    parser.add_argument("--list", action="store_true", help="list the workloads")
    parser.add_argument("--budget", type=float, help="seconds per workload")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.suites) - set(SUITES))
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; the suites are {', '.join(SUITES)}")
    if given.list:
        from benchmarks.zset import gates

        print("\n".join(w.name for w in gates.workloads()))
        return 0
    logging.getLogger("dbspark.zset").setLevel(logging.ERROR)  # a policy that falls back says so in every round
    options = {} if given.budget is None else {"budget": given.budget}
    targets: dict[str, Target] = {}
    for name in given.suites or SUITES:
        targets |= {t.name: t for t in run_suite(name, given.only, options)}
    if "gates" in (given.suites or SUITES):  # they are about all workloads, so parity on some of them says no more
        targets = {n: t for n, t in targets.items() if not n.startswith(PARITY) or n.endswith(ALL)}
    if len(given.suites) != 1:
        show_targets("Summary", targets.values())
        save("zset-summary", {"targets": list(targets.values())})
    missed = [t for t in targets.values() if not t.passed]
    return int(given.strict and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
