"""The workloads beside each other: what is run, what is shown, and the targets.

* `w3`: Nexmark in batches of events; events of the tables that a query reads, a second.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import QUICK
from benchmarks.peers import nexmark, runs
from benchmarks.peers.registry import SYSTEMS
from benchmarks.peers.runs import Run
from benchmarks.report import Target, save, show
from benchmarks.sql.suites import session


@dataclass(slots=True)
class Settings:
    """What is run; the defaults are those of a quick or a full run."""

    systems: Sequence[str] = tuple(SYSTEMS)
    views: Sequence[str] = ()
    events: Sequence[int] = (20_000,) if QUICK else (1_000_000, 10_000_000)
    batches: Sequence[int] = (1_000, 10_000) if QUICK else (1_000, 10_000, 100_000)
    rounds: int = 1 if QUICK else 3
    budget: float = 5.0 if QUICK else 20.0
    name: str = ""
    """Added to the name of the results, so that a partial run does not replace a whole one."""
    extra: dict[str, Any] = field(default_factory=dict)


def w3(settings: Settings) -> list[Target]:
    systems = runs.present(settings.systems)
    queries = list(settings.views) or list(nexmark.QUERIES)
    done: list[Run] = []
    versions: dict[str, dict[str, str]] = {}
    for events in settings.events:
        with tempfile.TemporaryDirectory(prefix="dbspark-w3-") as folder:
            with session() as spark:
                cases = nexmark.cases(Path(folder), events, settings.batches, queries, spark)
            some, found = runs.run(systems, cases, rounds=settings.rounds, budget=settings.budget)
            done += some
            versions |= found
    for events in settings.events:
        for batch in settings.batches:
            chosen = [r for r in done if r.case.parameters == {"events": events, "batch": batch}]
            _rates(f"W3: {events:,} events in batches of {batch:,}: thousands of events a second", systems, chosen)
    save(f"peers-w3{settings.name}", {"runs": [r.as_json() for r in done], "systems": versions})
    return []


def _rates(title: str, systems: Sequence[str], done: Sequence[Run]) -> None:
    by_view: dict[str, dict[str, Run]] = {}
    for r in done:
        by_view.setdefault(r.case.view, {})[r.system] = r
    shown = [s for s in systems if any(s in row and row[s].best for row in by_view.values())]
    rows = []
    for view, row in by_view.items():
        cells: list[Any] = [view]
        for system in shown:
            r = row.get(system)
            cells.append("" if r is None or r.best is None else f"{r.rate / 1e3:,.0f}{'' if r.complete else '*'}")
        rows.append(cells)
    show(title, ["query", *shown], rows)


SUITES = {"w3": w3}
