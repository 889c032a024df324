"""`python -m benchmarks.peers [workload …]`: dbspark beside other systems, all workloads if none is named.

python -m benchmarks.peers w3 --events 100000 --batch 10000 --only dbspark --views q3,q4
    python -m benchmarks.peers w1 --orders 100000 --changes 100:50,10000:10 --only dbspark,hand,duckdb

With `--keep folder` the data stay, and `<workload>-<system>.json` is a job for a profiler to run:

    py-spy record -- python -m benchmarks.peers.child folder/w3-dbspark.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.peers.registry import SYSTEMS
from benchmarks.peers.suites import SUITES, Settings
from benchmarks.report import Target, show_targets


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], metavar="workload", help=", ".join(SUITES))
    parser.add_argument("--only", help="systems, with commas: " + ", ".join(SYSTEMS))
    parser.add_argument("--views", help="views of the workload, with commas: q3,q4")
    parser.add_argument("--orders", help="W1: numbers of orders, with commas")
    parser.add_argument("--changes", help="W1, W2: changes in a tick, and after a colon ticks: 100:50,10000:10")
    parser.add_argument("--events", help="W3, growth: numbers of events, with commas")
    parser.add_argument("--batch", help="W3: events in a batch, with commas")
    parser.add_argument("--rounds", type=int, help="how often everything is run; the best counts")
    parser.add_argument("--budget", type=float, help="seconds of ticks after which recomputing stops")
    parser.add_argument("--name", help="added to the name of the results")
    parser.add_argument("--keep", type=Path, help="a folder in which the data stay")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args(arguments)
    settings = Settings()
    if given.only:
        settings.systems = given.only.split(",")
    if given.views:
        settings.views = given.views.split(",")
    if given.orders:
        settings.sizes = [int(n) for n in given.orders.split(",")]
    if given.changes:
        pairs = [pair.partition(":") for pair in given.changes.split(",")]
        settings.changes = settings.edges = {int(n): int(ticks or 20) for n, _, ticks in pairs}
    if given.events:
        settings.events = settings.growing = [int(n) for n in given.events.split(",")]
    if given.batch:
        settings.batches = [int(n) for n in given.batch.split(",")]
    settings.rounds = given.rounds or settings.rounds
    settings.budget = given.budget or settings.budget
    settings.keep = given.keep
    settings.name = f"-{given.name}" if given.name else ""
    targets: list[Target] = []
    for name in given.suites or SUITES:
        targets += SUITES[name](settings)
    show_targets("Peers", targets)
    return int(given.strict and any(not t.passed for t in targets))


if __name__ == "__main__":
    sys.exit(main())
