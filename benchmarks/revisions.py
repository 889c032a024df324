"""`python -m benchmarks.revisions BEFORE`: this checkout beside another one of dbspark, in one run.

`BEFORE` is the folder of a checkout of an earlier revision (`git worktree add ../before REVISION`). Both run W1, the
measured queries of Nexmark, the queries of TPC-H at scale 0.1 with a refresh of 0.1 %, and the load of W1. Each has one
process, and the two take turns: while one runs a stretch of ticks, the other is stopped, so that both see the same
machine. What their views hold is compared. A ratio above 1 says that this checkout is slower.

    python -m benchmarks.revisions ../before --only w1,nexmark --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import QUICK
from benchmarks.peers import joined, nexmark, turns
from benchmarks.peers.case import TICK, WEIGHT, Case, Source, read_arrow, write_arrow
from benchmarks.peers.compare import difference
from benchmarks.peers.registry import ROOT
from benchmarks.peers.runs import write_job
from benchmarks.report import Target, save, show, show_targets
from benchmarks.sql.suites import session
from benchmarks.workloads import tpch

LIMIT: Final = 1.05
"""How much slower than before this checkout may be."""
_ORDERS: Final = 20_000 if QUICK else 1_000_000
_CHANGES: Final = {1: 20, 100: 20, 10_000: 5} if QUICK else {1: 300, 100: 300, 10_000: 60}
"""W1: changes in a tick, and how many ticks."""
_EVENTS: Final = 20_000 if QUICK else 1_000_000
_BATCH: Final = 10_000
_SCALE: Final = 0.01 if QUICK else 0.1
_REFRESHES: Final = 10
_TURNS: Final = 10
"""Stretches into which the ticks of a case are divided."""


def w1(folder: Path) -> list[Case]:
    return joined.cases(folder, [_ORDERS], _CHANGES)


def nexmark_queries(folder: Path) -> list[Case]:
    with session() as spark:
        return nexmark.cases(folder, _EVENTS, [_BATCH], nexmark.MEASURED, spark)


def tpch_queries(folder: Path) -> list[Case]:
    """The queries of TPC-H over tables that are refreshed."""
    data = tpch.generate(_SCALE)
    steps = list(itertools.islice(tpch.refresh(data, 0.001, 1), _REFRESHES))
    sources = {}
    for name, ddl in tpch.TABLES.items():
        rows = [_weighted(data[name], 1)]
        for step in steps:
            inserts, deletes = step.get(name, (data[name].slice(0, 0), data[name].slice(0, 0)))
            rows.append(pa.concat_tables([_weighted(deletes, -1), _weighted(inserts, 1)]))
        write_arrow(folder / f"{name}.arrow", pa.concat_tables(rows))
        cuts = [0, *np.cumsum([len(part) for part in rows]).tolist()]
        sources[name] = Source(f"../{name}.arrow", ddl, cuts, weighted=True)
    out = []
    for name, query in tpch.QUERIES.items():
        read = {table: source for table, source in sources.items() if table in query.lower()}
        case = Case("w3", name, query, read, {"scale": _SCALE}, checked=[_REFRESHES], folder=folder / name)
        case.save()
        out.append(case)
    return out


def _weighted(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(WEIGHT, pa.array(np.full(len(rows), weight, np.int64)))


SUITES: Final[dict[str, Callable[[Path], list[Case]]]] = {
    "w1": w1, "nexmark": nexmark_queries, "tpch": tpch_queries,
}  # fmt: skip


def compare(before: Path, suites: Sequence[str], rounds: int) -> list[Target]:
    """Run both checkouts in turns; the ratios of their medians."""
    targets = []
    with tempfile.TemporaryDirectory(prefix="dbspark-revisions-") as temporary:
        for suite in suites:
            print(f"{suite}: making the data", flush=True)
            cases = SUITES[suite](Path(temporary) / suite)
            for case in cases:
                case.turn = max(case.ticks // _TURNS, 1)
                case.save()
            found = [_round(before, cases, Path(temporary) / f"{suite}-{n}") for n in range(rounds)]
            targets += _judged(suite, cases, found)
    save("revisions", {"targets": targets})
    return targets


def _round(before: Path, cases: Sequence[Case], folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What both checkouts say of each case: (before, here)."""
    processes, outs = [], []
    for name, checkout in (("before", before), ("here", ROOT)):
        out = folder / name
        out.mkdir(parents=True)
        write_job(out / "job.json", "dbspark", cases, 1e9, out, taking_turns=True)
        path = os.pathsep.join([str(checkout / "src"), str(checkout)])
        command = [sys.executable, "-m", "benchmarks.peers.child", str(out / "job.json")]
        processes.append(turns.Process(command, checkout, {**os.environ, "PYTHONPATH": path}, out / "log"))
        outs.append(out)
    try:
        turns.take_turns(processes, timeout=3600)
    finally:
        for process in processes:
            process.close()
    for process, out in zip(processes, outs, strict=True):
        if process.last_words():
            raise RuntimeError(f"{out.name}: {process.last_words()}")
    pairs = []
    for i, case in enumerate(cases):
        both = [json.loads((out / f"{i}.json").read_text()) for out in outs]
        problems = [b.get("failed") or b.get("refused") for b in both]
        views = [read_arrow(out / f"{i}.arrow").drop_columns([TICK]) for out in outs] if not any(problems) else []
        problem = next(filter(None, problems), None) or difference(*views)
        if problem:
            raise RuntimeError(f"{case.name}: {problem}")
        pairs.append((both[0], both[1]))
        print(f"{case.name}: {_median(both[1]) / _median(both[0]):.3f}", flush=True)
    return pairs


def _median(outcome: dict[str, Any]) -> float:
    return statistics.median(outcome["ticks"])


def _judged(suite: str, cases: Sequence[Case], rounds: Sequence[Any]) -> list[Target]:
    rows, ratios, loads = [], {}, []
    for i, case in enumerate(cases):
        ticks = [min(_median(found[i][side]) for found in rounds) for side in (0, 1)]
        load = [min(found[i][side]["load"] for found in rounds) for side in (0, 1)]
        ratios[case.name] = ticks[1] / ticks[0]
        loads.append(load[1] / load[0])
        rows.append([case.name, 1e3 * ticks[0], 1e3 * ticks[1], ratios[case.name], 1e3 * load[0], 1e3 * load[1]])
    show(suite, ["", "before ms", "here ms", "ratio", "load before ms", "load here ms"], rows)
    if suite == "w1":
        targets = [Target(f"{name}: tick / before", ratio, LIMIT, "x") for name, ratio in ratios.items()]
        return [*targets, Target("W1, load / before, mean", statistics.geometric_mean(loads), LIMIT, "x")]
    worst = max(ratios, key=lambda name: ratios[name])
    mean = statistics.geometric_mean(ratios.values())
    return [Target(f"{suite}, tick / before, mean of {len(ratios)}", mean, LIMIT, "x", f"worst {worst}")]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.revisions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the folder of the other checkout")
    parser.add_argument("--only", default=",".join(SUITES), help="suites, with commas: " + ", ".join(SUITES))
    parser.add_argument("--rounds", type=int, default=2, help="how often all is run; the best median counts")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args(arguments)
    targets = compare(given.before.resolve(), given.only.split(","), given.rounds)
    show_targets("Revisions", targets)
    return int(given.strict and any(not t.passed for t in targets))


if __name__ == "__main__":
    sys.exit(main())
