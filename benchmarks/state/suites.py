"""What state costs.

* `growth`: the same change over once, ten times and a hundred times the rows: W1, queries of Nexmark and of TPC-H;
* `memory`: what a process grows by, beside the Arrow size of the rows that its operators have to hold, after a load and
  after many ticks, one operator at a time, each in a process of its own;
* `cold`: importing dbspark, the first tick with and without compiled kernels on disk, opening state again;
* `neighbours`: ticks beside a thread of the user's that never rests.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import dbspark
from benchmarks.circuit import w1
from benchmarks.harness import QUICK, MismatchError, no_gc
from benchmarks.peers.nexmark import READ
from benchmarks.report import Target, save, show
from benchmarks.sql.suites import VIEW, apply, refreshed, run_suites, tables_of, tpch_pipeline
from benchmarks.state.neighbours import neighbours_suite
from benchmarks.state.operators import VIEWS
from benchmarks.workloads import nexmark, tpch

TIMES: Final = (1, 10, 100)
ROUNDS: Final = 1 if QUICK else 3
REFRESHES: Final = 5 if QUICK else 8
WARM: Final = 3
TICKS: Final = WARM + (5 if QUICK else 31)
ROOT: Final = Path(__file__).resolve().parents[2]


class Tables:
    """What a suite has shown, for the page."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []

    def show(self, title: str, header: list[str], rows: list[list[Any]]) -> None:
        show(title, header, rows)
        self.shown.append({"title": title, "header": header, "rows": rows})


# ---------------------------------------------------------------------- growth


def growth_suite(spark: Any) -> list[Target]:
    rows, targets = [], []
    for name, medians in _growths(spark):
        ratio = medians[-1] / medians[0]
        print(f"{name}: {ratio:.2f} times the tick over {TIMES[-1]} times the rows", flush=True)
        rows.append([name, *(1e3 * m for m in medians), ratio])
        targets.append(Target(f"growth, {name}: a tick over 100 times the rows", ratio, 1.5, "x"))
    tables = Tables()
    header = ["", *(f"{n} times: ms" for n in TIMES), "100 times / once"]
    tables.show("The same change over more rows: median ms a tick, the best of three rounds", header, rows)
    save("state-growth", {"tables": tables.shown, "targets": targets})
    return targets


def _growths(spark: Any) -> Iterator[tuple[str, list[float]]]:
    base = 1_000 if QUICK else 10_000
    yield "W1, 100 changes", _best(lambda n: _w1(spark, base * n))
    first = 2_000 if QUICK else 10_000
    batch = first // 10
    whole = nexmark.tables(first * max(TIMES) + TICKS * batch)
    for query in ("q3",) if QUICK else ("q3", "q4", "q5", "q8", "q9", "q18", "q20"):
        measure = partial(_nexmark, spark, query, whole, batch)
        yield f"Nexmark {query}, {batch:,} events", _best(lambda n, measure=measure: measure(n * first))
    scale = 0.0005 if QUICK else 0.01
    data = cache(tpch.generate)
    for query in ("q3",) if QUICK else ("q1", "q3", "q5", "q10", "q18"):
        yield f"TPC-H {query}, refresh", _best(lambda n, query=query: _tpch(spark, query, data(scale * n), 0.1 / n))


def _best(measure: Callable[[int], float]) -> list[float]:
    """The best of some rounds for each size. Sizes alternate: what else the machine does falls on all of them."""
    rounds = [[measure(n) for n in TIMES] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _w1(spark: Any, orders: int) -> float:
    work = w1.generate(orders, 100, TICKS)
    with dbspark.Pipeline("growth", spark=spark, config={"history": 0}) as pipe:
        pipe.create_table("orders", w1.ORDERS)
        pipe.create_table("customers", w1.CUSTOMERS)
        pipe.create_view("revenue", VIEW)
        apply(pipe, tables_of(work.base))
        given = [tables_of(change) for change in work.ticks]
        median = _median([partial(apply, pipe, tables) for tables in given])
        held = [c.to_pylist() for c in pipe.view("revenue").to_arrow().columns]
        if {r: (n, t) for r, n, t in zip(*held, strict=True)} != work.views[-1]:
            raise MismatchError("W1: the view is not what counting gives")
    return median


def _nexmark(spark: Any, query: str, whole: dict[str, pa.Table], batch: int, events: int) -> float:
    """A batch of events more, after so many that came at once."""
    read = list(READ[query])

    def rows(begin: int, end: int) -> dict[str, pa.Table]:
        cuts = {name: np.searchsorted(whole[name]["seq"].to_numpy(), [begin, end]) for name in read}
        return {name: whole[name].slice(a, b - a) for name, (a, b) in cuts.items()}

    with dbspark.Pipeline("growth", spark=spark, config={"history": 0}) as pipe:
        for name in read:
            pipe.create_table(name, nexmark.TABLES[name])
        pipe.create_view(query, nexmark.QUERIES[query])

        def insert(given: dict[str, pa.Table]) -> None:
            with pipe.transaction() as tx:
                for name, table in given.items():
                    tx.insert(name, table)

        insert(rows(0, events))
        ticks = [rows(events + i * batch, events + (i + 1) * batch) for i in range(TICKS)]
        return _median([partial(insert, given) for given in ticks])


def _tpch(spark: Any, query: str, data: Any, fraction: float) -> float:
    ticks = list(itertools.islice(tpch.refresh(data, fraction, 1), REFRESHES))
    with tpch_pipeline(spark, query) as pipe:
        words = set(re.findall(r"\w+", tpch.QUERIES[query]))
        read = [name for name in tpch.TABLES if name in words]
        _, times = refreshed(pipe, data, read, ticks)
    return statistics.median(times[1:])


def _median(ticks: Sequence[Callable[[], Any]]) -> float:
    """The median time of ticks one after the other, without the first. Nobody collects garbage in between: what empties
    the caches of the processor makes all sizes alike."""
    times = []
    with no_gc():
        for tick in ticks:
            begun = time.perf_counter()
            tick()
            times.append(time.perf_counter() - begun)
    return statistics.median(times[WARM:])


# ---------------------------------------------------------------------- memory


def memory_suite(spark: Any) -> list[Target]:
    rows, targets = [], []
    for name in VIEWS:
        found = _child("benchmarks.state.operators", name, "20000" if QUICK else "1000000")
        ratios = {}
        for when, f in found.items():
            ratios[when] = f["grown"] / f["arrow"]
            sizes = [f[what] / 1e6 for what in ("arrow", "held", "grown")]
            rows.append([f"{name}, {when}", f["rows"], *sizes, f["grown"] / f["rows"], ratios[when]])
        worst = max(ratios, key=ratios.__getitem__)
        targets.append(Target(f"memory, {name}: process / Arrow size of the state", ratios[worst], 2.5, "x", worst))
        print(f"{name}: {ratios[worst]:.2f} times the Arrow size", flush=True)
    tables = Tables()
    header = ["operator", "rows of state", "as Arrow, MB", "counted, MB", "process, MB", "bytes a row", "ratio"]
    tables.show("Memory of state", header, rows)
    save("state-memory", {"tables": tables.shown, "targets": targets})
    return targets


def _child(module: str, *arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """What a process of our own says in its last line."""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, env=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{module} {arguments}: {done.stderr.strip().splitlines()[-1:]}")
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


# ---------------------------------------------------------------------- cold start


def cold_suite(spark: Any) -> list[Target]:
    rows: list[list[Any]] = []
    imports = [_child("benchmarks.state.first", "import")["seconds"] for _ in range(3)]
    rows.append(["import dbspark, ms", 1e3 * min(imports)])
    warm = _child("benchmarks.state.first", "tick")
    with tempfile.TemporaryDirectory() as folder:
        # Compiled kernels lie beside their sources, so sources in another place have none.
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        fresh = os.pathsep.join([str(ROOT), str(Path(folder) / "src")])
        cold = _child("benchmarks.state.first", "tick", environment={"PYTHONPATH": fresh})
    rows.append(["a pipeline of W1 to the end of its first tick, kernels on disk, ms", 1e3 * warm["seconds"]])
    rows.append(["the same, nothing compiled, ms", 1e3 * cold["seconds"]])
    rows += _reopened(spark, 5_000_000 if QUICK else 1_000_000_000)
    tables = Tables()
    tables.show("Cold start", ["", "figure"], rows)
    save("state-cold", {"tables": tables.shown, "targets": []})
    return []


def _reopened(spark: Any, size: int) -> list[list[Any]]:
    """Opening a pipeline that has so many bytes of state, reading its view, and the first tick."""
    part = 50_000 if QUICK else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        location = str(Path(folder) / "state")
        with dbspark.Pipeline("cold", location=location, spark=spark, config={"history": 0}) as pipe:
            pipe.create_table("orders", w1.ORDERS)
            pipe.create_table("customers", w1.CUSTOMERS)
            pipe.create_view("revenue", VIEW)
            work = w1.generate(part, 100, 1)
            rounds = 0
            while pipe.metrics()["state_bytes"] < size:
                shifted = w1.Change(dict(work.base.orders), work.base.customers if rounds == 0 else _none(work.base))
                shifted.orders["order_id"] = work.base.orders["order_id"] + rounds * 10 * part
                apply(pipe, tables_of(shifted))
                rounds += 1
            held = pipe.metrics()["state_bytes"]
            shown = pipe.view("revenue").to_arrow().sort_by("region")
        begun = time.perf_counter()
        with dbspark.Pipeline("cold", location=location, spark=spark, config={"history": 0}) as pipe:
            opened = time.perf_counter()
            if not pipe.view("revenue").to_arrow().sort_by("region").equals(shown):
                raise MismatchError("the view is not what it was")
            read = time.perf_counter()
            apply(pipe, tables_of(work.ticks[0]))
            ticked = time.perf_counter()
    return [
        ["state, MB", held / 1e6],
        ["opening it again, ms", 1e3 * (opened - begun)],
        ["reading the view, ms", 1e3 * (read - opened)],
        ["the first tick, ms", 1e3 * (ticked - read)],
    ]


def _none(change: w1.Change) -> dict[str, Any]:
    return {name: column[:0] for name, column in change.customers.items()}


SUITES: Final[dict[str, Callable[[Any], list[Target]]]] = {
    "growth": growth_suite, "memory": memory_suite, "cold": cold_suite, "neighbours": neighbours_suite,
}  # fmt: skip


def run(names: list[str]) -> list[Target]:
    """Run suites and show their targets."""
    return run_suites("State", SUITES, names)
