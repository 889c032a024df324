"""The workloads beside each other: what is run, what is shown, and the targets.

* `w1`: join and aggregate under inserts, deletes and updates; median milliseconds of a tick;
* `w2`: reachability with deletions; median milliseconds of a tick;
* `w3`: Nexmark in batches of events; events of the tables that a query reads, a second;
* `growth`: the same for dbspark alone, with ten times the events: does an event take longer? Both sizes have a process
  and take turns: after every tenth of the many events the few are run once. Each has its memory from the beginning, as
  a JVM that touches its heap: in a virtual machine memory may be cheap up to what the machine has had before, and dear
  beyond.

A star marks a system that recomputes and did not get to the last tick within its budget: its figure is of the part
that it did, when there was less to recompute.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import QUICK
from benchmarks.peers import joined, nexmark, reach, runs
from benchmarks.peers.case import Case
from benchmarks.peers.registry import SYSTEMS
from benchmarks.peers.runs import Run
from benchmarks.report import Target, figure, save, show
from benchmarks.sql.suites import session

RIVALS: Final = ("pathway", "flink", "streaming")
"""Systems that keep views, as we do."""
RECOMPUTING: Final = ("duckdb", "polars")
_COPIES: Final = 6
"""How often the rows of the tables may be in memory: in the tables, in states and in the view."""
LARGE: Final = 2_000_000
"""Events above which dbspark is alone: others would take hours, and what is asked is whether we slow down."""


@dataclass(slots=True)
class Settings:
    """What is run; the defaults are those of a quick or a full run."""

    systems: Sequence[str] = tuple(SYSTEMS)
    views: Sequence[str] = ()
    sizes: Sequence[int] = (20_000,) if QUICK else (100_000, 1_000_000)
    """W1: orders."""
    changes: Mapping[int, int] = field(
        default_factory=lambda: {1: 20, 100: 20, 10_000: 5} if QUICK else {1: 400, 100: 200, 10_000: 30}
    )
    """W1: changes in a tick, and how many ticks."""
    graphs: Mapping[str, reach.Graph] = field(default_factory=lambda: reach.SMALL if QUICK else reach.GRAPHS)
    edges: Mapping[int, int] = field(default_factory=lambda: {1: 6, 100: 4} if QUICK else {1: 60, 100: 20})
    """W2: changes in a tick, and how many ticks."""
    events: Sequence[int] = (20_000,) if QUICK else (1_000_000,)
    """W3."""
    growing: Sequence[int] = (2_000, 20_000) if QUICK else (1_000_000, 10_000_000)
    """Growth: numbers of events, each ten times the one before."""
    batches: Sequence[int] = (10_000,) if QUICK else (1_000, 10_000, 100_000)
    rounds: int = 1 if QUICK else 3
    budget: float = 2.0 if QUICK else 20.0
    """Seconds of ticks after which a system that recomputes stops."""
    name: str = ""
    """Added to the name of the results, so that a partial run does not replace a whole one."""
    keep: Path | None = None
    """Where the cases stay after the run, for a profiler."""


def w1(settings: Settings) -> list[Target]:
    def cases(folder: Path) -> list[Case]:
        return joined.cases(folder, settings.sizes, settings.changes)

    done, versions = _run("w1", settings, cases)
    _latencies("W1: median ms a tick", done)
    targets = []
    for case, row in by_case(done).items():
        ours, changes = row.get("dbspark"), dict(case)["changes"]
        if ours is None or ours.best is None:
            continue
        limits = {"pathway": {100: 0.1, 10_000: 0.05}.get(changes), "flink": 1.0, "hand": {10_000: 3.0}.get(changes)}
        for peer, limit in limits.items():
            if limit is not None and peer in row and row[peer].best:
                name = f"W1, {dict(case)['orders']:,} orders, {changes:,} changes: tick / {peer}"
                targets.append(Target(name, ours.median / row[peer].median, limit, "x"))
    _save("w1", settings, done, versions, targets)
    return targets


def w2(settings: Settings) -> list[Target]:
    def cases(folder: Path) -> list[Case]:
        graphs = {name: g for name, g in settings.graphs.items() if not settings.views or name in settings.views}
        return reach.cases(folder, graphs, settings.edges)

    done, versions = _run("w2", settings, cases)
    _latencies("W2: median ms a tick", done)
    _save("w2", settings, done, versions, [])
    return []


def w3(settings: Settings) -> list[Target]:
    queries = [q for q in nexmark.QUERIES if not settings.views or q in settings.views]

    def cases(folder: Path) -> list[Case]:
        return _nexmark(folder, settings.events, settings.batches, queries)

    def waited_for(system: str, case: Case) -> bool:
        return system == "dbspark" or case.parameters["events"] <= LARGE

    done, versions = _run("w3", settings, cases, waited_for)
    for events in settings.events:
        for batch in settings.batches:
            chosen = [r for r in done if r.case.parameters == {"events": events, "batch": batch}]
            _rates(f"W3: {events:,} events in batches of {batch:,}: thousands of events a second", chosen)
    targets = _w3_targets(done)
    _save("w3", settings, done, versions, targets)
    return targets


def growth(settings: Settings) -> list[Target]:
    queries = [q for q in nexmark.MEASURED if not settings.views or q in settings.views]

    def cases(folder: Path) -> list[Case]:
        made = _nexmark(folder, settings.growing, (settings.growing[0] // 100,), queries)
        for case in made:
            source = case.open()
            case.reserve = (1 << 28) + _COPIES * sum(source.whole(name).nbytes for name in case.tables)
            case.repeat = max(settings.growing) // case.parameters["events"]
            case.turn = settings.growing[0] // case.parameters["batch"]
            case.save()
        return made

    alone = replace(settings, systems=[s for s in settings.systems if s == "dbspark"])
    done, versions = _run("w3", alone, cases, in_turns=lambda case: case.view)
    targets = []
    by_size: dict[int, dict[str, Run]] = {}
    for r in done:
        if r.best:
            by_size.setdefault(r.case.parameters["events"], {})[r.case.view] = r
    for events, mine in by_size.items():
        _rates(f"Growth: {events:,} events: thousands of events a second", list(mine.values()))
        tenth = by_size.get(events // 10, {})
        slower = {q: r.slower_than(tenth[q]) for q, r in mine.items() if q in tenth}
        if slower:
            worst = max(slower, key=lambda q: slower[q])
            name = f"W3, {events:,} events: time an event / that at a tenth of the events, mean of {len(slower)}"
            note = f"worst {worst}: {slower[worst]:.2f}"
            targets.append(Target(name, geometric(slower.values()), 1.0, "x", note))
    _save("growth", settings, done, versions, targets)
    return targets


def _nexmark(folder: Path, sizes: Sequence[int], batches: Sequence[int], queries: Sequence[str]) -> list[Case]:
    """Cases of Nexmark. A machine drifts, so that the sizes of a query are beside each other."""
    with session() as spark:
        made = [nexmark.cases(folder / str(n), n, batches, queries, spark) for n in sizes]
    at = {q: i for i, q in enumerate(queries)}
    return sorted(itertools.chain(*made), key=lambda c: (at[c.view], c.parameters["batch"], c.parameters["events"]))


def _w3_targets(done: Sequence[Run]) -> list[Target]:
    targets = []
    rows = {(dict(case)["events"], dict(case)["batch"], dict(case)["view"]): row for case, row in by_case(done).items()}
    for events, batch in sorted({(e, b) for e, b, _ in rows}):
        where = f"W3, {events:,} events by {batch:,}"
        mine = {q: rows[events, batch, q] for e, b, q in rows if (e, b) == (events, batch)}
        kept = {q: row["dbspark"].rate for q, row in mine.items() if "dbspark" in row and row["dbspark"].best}
        if batch == 10_000 and all(q in kept for q in nexmark.MEASURED):
            mean = geometric(kept[q] for q in nexmark.MEASURED)
            targets.append(Target(f"{where}: a million events a second / mean of 8 queries", 1e6 / mean, 1.0, "x"))
        ratios = {}
        for query, ours in kept.items():
            rates = {p: mine[query][p].rate for p in RIVALS if p in mine[query] and mine[query][p].best}
            if rates:
                ratios[query] = max(rates.values()) / ours
        if ratios:
            worst = max(ratios, key=lambda q: ratios[q])
            targets.append(
                Target(f"{where}: best rival / dbspark, mean of {len(ratios)}", geometric(ratios.values()), 1 / 3, "x")
            )
            targets.append(Target(f"{where}: best rival / dbspark, worst", ratios[worst], 1.0, "x", worst))
        for peer in RECOMPUTING:
            slower = {q: mine[q][peer].rate / r for q, r in kept.items() if peer in mine[q] and mine[q][peer].best}
            if slower:
                worst = max(slower, key=lambda q: slower[q])
                targets.append(Target(f"{where}: {peer} recomputing / dbspark, worst", slower[worst], 1.0, "x", worst))
    return targets


def _run(
    workload: str,
    settings: Settings,
    make: Callable[[Path], list[Case]],
    waited_for: Callable[[str, Case], bool] = lambda system, case: True,
    in_turns: Callable[[Case], str] | None = None,
) -> tuple[list[Run], dict[str, dict[str, str]]]:
    """Make the cases and run them with all systems that are there, as far as these are waited for; and their
    versions."""
    systems = [s for s in runs.present(settings.systems) if workload in SYSTEMS[s].load().workloads]
    with tempfile.TemporaryDirectory(prefix=f"dbspark-{workload}-") as temporary:
        folder = settings.keep or Path(temporary)
        print(f"{workload}: the rows and the views that are expected are being made", flush=True)
        cases = make(folder)
        if settings.keep:
            for system in systems:
                mine = [c for c in cases if waited_for(system, c)]
                runs.write_job(folder / f"{workload}-{system}.json", system, mine, settings.budget, folder)
        return runs.run(
            systems, cases, rounds=settings.rounds, budget=settings.budget, waited_for=waited_for, in_turns=in_turns
        )


def _save(
    workload: str, settings: Settings, done: Sequence[Run], versions: dict[str, dict[str, str]], targets: list[Target]
) -> None:
    content = {"runs": [r.as_json() for r in done], "systems": versions, "targets": targets}
    save(f"peers-{workload}{settings.name}", content)


def by_case(done: Iterable[Run]) -> dict[Any, dict[str, Run]]:
    """Runs by case, then by system, in the order in which they are."""
    out: dict[Any, dict[str, Run]] = {}
    for r in done:
        key = (("view", r.case.view), *r.case.parameters.items())
        out.setdefault(key, {})[r.system] = r
    return out


def geometric(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")


def _cell(r: Run | None, value: Callable[[Run], float], base: float) -> str:
    """A figure, how many times dbspark's it is, and a star if it is not of the whole."""
    if r is None or r.best is None:
        return ""
    ratio = value(r) / base
    times = "" if r.system == "dbspark" or math.isnan(ratio) else f" ({figure(ratio)}x)"
    return f"{figure(value(r))}{'' if r.complete else '*'}{times}"


def _table(title: str, done: Sequence[Run], value: Callable[[Run], float]) -> None:
    table = by_case(done)
    shown = [s for s in SYSTEMS if any(s in row and row[s].best for row in table.values())]
    rows = []
    for row in table.values():
        ours = row.get("dbspark")
        base = value(ours) if ours is not None else float("nan")
        name = next(iter(row.values())).case.name
        spread = "" if ours is None or ours.best is None else f"{100 * ours.spread:.0f} %"
        rows.append([name, *(_cell(row.get(s), value, base) for s in shown), spread])
    show(title, ["", *shown, "spread of dbspark"], rows)


def _latencies(title: str, done: Sequence[Run]) -> None:
    _table(title, done, lambda r: 1e3 * r.median)


def _rates(title: str, done: Sequence[Run]) -> None:
    _table(title, done, lambda r: r.rate / 1e3)


SUITES: Final[dict[str, Callable[[Settings], list[Target]]]] = {"w1": w1, "w2": w2, "w3": w3, "growth": growth}
