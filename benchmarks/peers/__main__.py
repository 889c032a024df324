"""`python -m benchmarks.peers [workload …]`: dbspark beside other systems.

python -m benchmarks.peers w3 --events 100000 --batch 10000 --only dbspark --views q3,q4
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.peers.registry import SYSTEMS
from benchmarks.peers.suites import SUITES, Settings
from benchmarks.report import Target, show_targets


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], metavar="workload", help=", ".join(SUITES))
    parser.add_argument("--only", help="systems, with commas: " + ", ".join(SYSTEMS))
    parser.add_argument("--views", help="views of the workload, with commas: q3,q4")
    parser.add_argument("--events", help="W3: numbers of events, with commas")
    parser.add_argument("--batch", help="W3: events in a batch, with commas")
    parser.add_argument("--rounds", type=int, help="how often everything is run; the best counts")
    parser.add_argument("--budget", type=float, help="seconds of ticks after which recomputing stops")
    parser.add_argument("--name", help="added to the name of the results")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args(arguments)
    settings = Settings()
    if given.only:
        settings.systems = given.only.split(",")
    if given.views:
        settings.views = given.views.split(",")
    if given.events:
        settings.events = [int(n) for n in given.events.split(",")]
    if given.batch:
        settings.batches = [int(n) for n in given.batch.split(",")]
    settings.rounds = given.rounds or settings.rounds
    settings.budget = given.budget or settings.budget
    settings.name = f"-{given.name}" if given.name else ""
    targets: list[Target] = []
    for name in given.suites or SUITES:
        targets += SUITES[name](settings)
    show_targets("Peers", targets)
    return int(given.strict and any(not t.passed for t in targets))


if __name__ == "__main__":
    sys.exit(main())
