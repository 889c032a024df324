"""What ticks on shards cost.

* `tick`: a tick with E exchanges against a bare Spark job of E shuffles through `mapInArrow`, which hands on what it
  gets: in the same session, in turn. Every shuffle of the bare job moves the bytes that the transaction sends;
* `growth`: a tick over ten times the rows against one over once as many, with the same changes, in turn;
* `transports`: the same ticks by workers that stay, by a shuffle, and embedded (`benchmarks.spark.transports`);
* `w1`: join and aggregate through `Pipeline` in this process, as `benchmarks.sql` has it, beside DuckDB and Polars
  computing the view anew where they are installed.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import pyarrow as pa

import dbspark
from benchmarks.circuit import w1
from benchmarks.harness import QUICK, MismatchError, no_gc
from benchmarks.report import Target, save, show
from benchmarks.spark.transports import transports_suite
from benchmarks.sql.suites import VIEW, apply, run_suites, tables_of, w1_suite
from dbspark.runtime.exchange import ROW_DDL, ROW_SCHEMA, ShuffleTransport
from dbspark.runtime.routing import RoutedOperation
from dbspark.runtime.sharded import Sharded

SHARDS: Final = 2
CHANGES: Final = 100
ROUNDS: Final = 3 if QUICK else 15
WARM: Final = 2 if QUICK else 5
VIEWS: Final = {
    "totals of customers": "SELECT customer_id, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer_id",
    "W1": VIEW,
    "customers with most orders": "SELECT n, count(*) AS customers, max(total) AS most FROM (SELECT customer_id, "
    "count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer_id) GROUP BY n ORDER BY n DESC LIMIT 3",
}


def opened(spark: Any, view: str) -> dbspark.Pipeline:
    pipe = dbspark.Pipeline("w1", spark=spark, shards=SHARDS, exchange="shuffle")
    pipe.create_table("orders", w1.ORDERS)
    pipe.create_table("customers", w1.CUSTOMERS)
    pipe.create_view("v", view)
    return pipe


def exchanges(pipe: dbspark.Pipeline) -> int:
    """How often rows change shard in a tick."""
    runtime = pipe._state_reader
    assert isinstance(runtime, Sharded)
    return len(runtime._current_plan().levels) - 1


def timed(run: Callable[[], Any]) -> float:
    with no_gc():
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun


# ---------------------------------------------------------------------- a tick


def tick_suite(spark: Any) -> list[Target]:
    work = w1.generate(2_000 if QUICK else 20_000, CHANGES, WARM + ROUNDS)
    rows, targets = [], []
    for name, view in VIEWS.items():
        with opened(spark, view) as pipe:
            apply(pipe, tables_of(work.base))
            count = exchanges(pipe)
            ticks: list[float] = []
            jobs: list[float] = []
            for i, change in enumerate(work.ticks):
                bare = _bare(pipe, change, count)
                turns = [(ticks, partial(apply, pipe, tables_of(change))), (jobs, bare)]
                for times, turn in turns if i % 2 else reversed(turns):
                    times.append(timed(turn))
            progress = pipe.last_progress or {}
        tick, job = (statistics.median(times[WARM:]) for times in (ticks, jobs))
        ratio = statistics.median(a / b for a, b in zip(ticks[WARM:], jobs[WARM:], strict=True))
        laps = progress.get("durationMs", {})
        rows.append([name, count, 1e3 * tick, 1e3 * job, tick / job, ratio, laps.get("compute"), laps.get("commit")])
        targets.append(Target(f"a tick of {count} exchanges / a bare Spark job", tick / job, 1.5, "x"))
    header = ["view", "exchanges", "tick ms", "bare job ms", "ratio", "of pairs", "last: compute ms", "commit ms"]
    show(f"A tick of {CHANGES} changes on {SHARDS} shards, medians", header, rows)
    save("spark-tick", {"rows": rows, "targets": targets})
    return targets


def _bare(pipe: dbspark.Pipeline, change: w1.Change, shuffles: int) -> Callable[[], Any]:
    """A Spark job that sends the bytes of a transaction around so many times."""
    runtime = pipe._state_reader
    assert isinstance(runtime, Sharded)
    sent = []
    for name, table in tables_of(change).items():
        operation = runtime.operation(name, "apply", table, "w")
        sent += RoutedOperation(runtime.tables[name], 0, operation).rows(SHARDS)
    columns = zip(*sent, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ROW_SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)
    transport = runtime._get_transport()
    assert isinstance(transport, ShuffleTransport)
    theirs = transport.runner.session

    def handed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def run() -> None:
        frame = theirs.createDataFrame(table)
        for _ in range(shuffles):
            frame = frame.repartitionById(SHARDS, "shard").mapInArrow(handed_on, ROW_DDL)
        if len(frame.collect()) != len(sent):
            raise MismatchError("the bare job has lost rows")

    return run


# ---------------------------------------------------------------------- growth


def growth_suite(spark: Any) -> list[Target]:
    size = 2_000 if QUICK else 50_000
    times: list[list[float]] = [[], []]
    with ExitStack() as stack:
        pipes, works = [], []
        for orders in (size, 10 * size):
            pipes.append(stack.enter_context(opened(spark, VIEW)))
            works.append(w1.generate(orders, CHANGES, WARM + ROUNDS))
            apply(pipes[-1], tables_of(works[-1].base))
        for i in range(WARM + ROUNDS):
            for which in (0, 1) if i % 2 else (1, 0):
                times[which].append(timed(partial(apply, pipes[which], tables_of(works[which].ticks[i]))))
        for pipe, work in zip(pipes, works, strict=True):
            columns = [c.to_pylist() for c in pipe.view("v").to_arrow().columns]
            if {r: (c, t) for r, c, t in zip(*columns, strict=True)} != work.views[-1]:
                raise MismatchError("the view is not what counting gives")
    small, large = (statistics.median(given[WARM:]) for given in times)
    rows = [[f"{size:,} and {10 * size:,} orders", 1e3 * small, 1e3 * large, large / small]]
    targets = [Target(f"a tick over {10 * size:,} orders / over {size:,}", large / small, 1.3, "x")]
    show(f"A tick of {CHANGES} changes on {SHARDS} shards, medians", ["", "ms", "ten times ms", "ratio"], rows)
    save("spark-growth", {"rows": rows, "targets": targets})
    return targets


# ---------------------------------------------------------------------- W1


def recompute_suite(spark: Any) -> list[Target]:
    own = w1_suite(spark)
    targets = list(own)
    work = w1.generate(100_000 if QUICK else 1_000_000, CHANGES, 1)
    tables = {name: table.drop_columns("w") for name, table in tables_of(work.base).items()}
    rows = []
    for name, contender in {"duckdb": _duckdb, "polars": _polars}.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: its time is left out")
            continue
        run = contender(tables)
        if run() != work.views[0]:
            raise MismatchError(f"{name} gives another view")
        seconds = statistics.median(timed(run) for _ in range(3 if QUICK else 11))
        rows.append([name, 1e3 * seconds])
        targets += [
            Target(f"{t.name} / {name} computing it anew", t.figure / (1e3 * seconds), 1.0, "x")
            for t in own
            if "changes" in t.name
        ]
    show(f"W1 computed anew, {len(tables['orders']):,} orders", ["", "median ms"], rows)
    save("spark-w1", {"rows": rows, "targets": targets})
    return targets


def _duckdb(tables: dict[str, pa.Table]) -> Callable[[], Any]:
    import duckdb

    base = duckdb.connect()
    for name, table in tables.items():
        base.register("given", table)
        base.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
    return lambda: {r: (int(c), int(t)) for r, c, t in base.execute(VIEW).fetchall()}


def _polars(tables: dict[str, pa.Table]) -> Callable[[], Any]:
    import polars as pl

    orders, customers = (pl.from_arrow(tables[name]).lazy() for name in ("orders", "customers"))
    query = (
        orders.filter(pl.col("status") < 8)
        .join(customers, on="customer_id")
        .group_by("region")
        .agg(pl.len().alias("cnt"), pl.col("amount").sum().alias("total"))
    )
    return lambda: {r: (c, t) for r, c, t in query.collect().rows()}


SUITES: Final[dict[str, Callable[[Any], list[Target]]]] = {
    "tick": tick_suite, "growth": growth_suite, "w1": recompute_suite, "transports": transports_suite,
}  # fmt: skip


def run(names: list[str]) -> list[Target]:
    """Run suites and show their targets."""
    return run_suites("Spark", SUITES, names)
