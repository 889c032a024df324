"""What SQL views cost.

* `tpch`: each query of TPC-H at scales 0.1 and 1, a refresh of 0.1 % of orders and lineitems: a tick against Spark
  computing the query anew on the same machine, from tables that it holds in memory: our median, its best. The view is
  compared with Spark's answer;
* `compile`: what compiling a view takes beyond Spark's own analysis and optimisation, over the queries of TPC-DS where
  they are installed (see `benchmarks.workloads.tpcds`), else over those of TPC-H;
* `w1`: join and aggregate through `Pipeline`, in memory and durable on disk, and loading it.
"""

from __future__ import annotations

import itertools
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import dbspark
from benchmarks.circuit import w1 as w1_data
from benchmarks.harness import QUICK, MismatchError, no_gc
from benchmarks.report import Target, save, show, show_targets
from benchmarks.workloads import tpcds, tpch
from dbspark.circuit.builder import Builder
from dbspark.spark import get_session
from dbspark.sql.catalyst import read_plan
from dbspark.sql.compiler import PlanCompiler
from dbspark.sql.program import Program
from dbspark.sql.relations import Scope
from tests.sql.oracle import difference, rows_of

SCALES: Final = (0.01,) if QUICK else (0.1, 1.0)
TICKS: Final = 5
WORKER_SLOTS: Final = 2
"""Slots beside the cores, for the suites that use workers that stay."""
VIEW: Final = (
    "SELECT region, count(*) AS cnt, sum(amount) AS total "
    "FROM orders JOIN customers USING (customer_id) WHERE status < 8 GROUP BY region"
)
"""W1, see `benchmarks.circuit.w1`."""


@contextmanager
def session() -> Iterator[Any]:
    """Spark on two cores, with room for all tables of TPC-H at scale 1: what it holds in memory is to be there."""
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g" if QUICK else "6g",
    }
    with get_session(app_name="dbspark benchmarks", cores=2, worker_slots=WORKER_SLOTS, config=config) as handle:
        handle.spark.sparkContext.setLogLevel("ERROR")
        yield handle.spark


# ---------------------------------------------------------------------- TPC-H


def tpch_suite(spark: Any) -> list[Target]:
    results, targets = [], []
    for scale in SCALES:
        mine = []
        for result in _tpch(spark, scale):
            mine.append(result)
            results.append(result)
            save("sql-tpch", {"results": results, "targets": targets})  # what is done by now, should the rest fail
        rows = [[r["query"], r["tick_ms"], r["spark_ms"], r["ratio"], r["load_ms"]] for r in mine]
        show(f"TPC-H, scale {scale}, 0.1 % refresh", ["query", "tick ms", "Spark ms", "ratio", "load ms"], rows)
        mean = statistics.geometric_mean(r["tick_ms"] / r["spark_ms"] for r in mine)
        targets.append(Target(f"TPC-H {scale}: tick / Spark recomputing, geometric mean", mean, 1 / 50, "x"))
        worst = min(mine, key=lambda r: r["ratio"])
        name = f"TPC-H {scale}: tick / Spark recomputing, worst query"
        targets.append(Target(name, 1 / worst["ratio"], 1 / 10, "x", worst["query"]))
        save("sql-tpch", {"results": results, "targets": targets})
    return targets


def _tpch(spark: Any, scale: float) -> Iterator[dict[str, Any]]:
    """One query after the other: nothing of one is in memory with the next."""
    data = tpch.generate(scale)
    ticks = list(itertools.islice(tpch.refresh(data, 0.001, 1), TICKS))
    for name, query in tpch.QUERIES.items():
        program = Program(spark)
        for table, ddl in tpch.TABLES.items():
            program.table(table, ddl)
        read_by = program.view(name, query).reads
        with tpch_pipeline(spark, name) as pipe:
            load, times = refreshed(pipe, data, read_by, ticks)
            recompute, answer = spark_time(spark, {table: pipe.table(table).to_arrow() for table in read_by}, query)
            wrong = difference(Counter(rows_of(pipe.view(name).to_arrow())), answer)
            if wrong:
                raise MismatchError(f"{name}: {wrong}")
        tick = statistics.median(times)
        print(f"{name}, scale {scale}: {recompute / tick:.0f} times faster, load {load:.1f} s", flush=True)
        yield {
            "scale": scale, "query": name, "tick_ms": 1e3 * tick, "spark_ms": 1e3 * recompute,
            "ratio": recompute / tick, "load_ms": 1e3 * load, "best_ms": 1e3 * min(times), "worst_ms": 1e3 * max(times),
        }  # fmt: skip


def tpch_pipeline(spark: Any, query: str) -> dbspark.Pipeline:
    """The tables of TPC-H, empty, and one query as a view; no history."""
    pipe = dbspark.Pipeline(query, spark=spark, config={"history": 0})
    for table, ddl in tpch.TABLES.items():
        pipe.create_table(table, ddl)
    pipe.create_view(query, tpch.QUERIES[query])
    return pipe


def refreshed(pipe: dbspark.Pipeline, data: Any, tables: Any, ticks: Any) -> tuple[float, list[float]]:
    """Load some tables, then apply refreshes: the seconds that the load took, and each refresh."""
    begun = time.perf_counter()
    with pipe.transaction() as tx:
        for table in tables:
            tx.insert(table, data[table])
    load = time.perf_counter() - begun
    times = []
    for change in ticks:
        with no_gc():
            begun = time.perf_counter()
            with pipe.transaction() as tx:
                for table, (inserts, deletes) in change.items():
                    if table in tables:
                        tx.insert(table, inserts)
                        tx.delete(table, deletes)
            times.append(time.perf_counter() - begun)
    return load, times


def spark_time(spark: Any, tables: dict[str, pa.Table], query: str) -> tuple[float, Counter[Any]]:
    """The best time in which Spark computes a query from the columns that it reads, held in memory, and its answer."""
    frames = []
    words = set(re.findall(r"\w+", query))
    for name, table in tables.items():
        frame = spark.createDataFrame(table.select([c for c in table.column_names if c in words])).persist()
        frame.count()
        frame.createOrReplaceTempView(name)
        frames.append(frame)
    answer = Counter(rows_of(spark.sql(query).toArrow()))
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        spark.sql(query).toArrow()
        times.append(time.perf_counter() - begun)
    for frame in frames:
        frame.unpersist()
    return min(times), answer


# ---------------------------------------------------------------------- compiling


def compile_suite(spark: Any) -> list[Target]:
    try:
        tables, queries, what = tpcds.TABLES, tpcds.queries(), "TPC-DS"
    except FileNotFoundError:
        tables, queries, what = tpch.TABLES, tpch.QUERIES, "TPC-H"
    program = Program(spark)
    for name, ddl in tables.items():
        program.table(name, ddl)
    ours, theirs, full = [], [], []
    for name, query in queries.items():
        begun = time.perf_counter()
        session = program.leaves.reading()
        session.optimized(session.analyzed(query))
        analysed = time.perf_counter()
        given = read_plan(program.leaves, query)
        scratch = Builder()
        streams = {table: scratch.source(table, schema) for table, schema in program.tables.items()}
        compiler = PlanCompiler(program.evaluator, program.context())
        compiler.relation(given.plan, Scope(scratch, streams))
        done = time.perf_counter()
        theirs.append(analysed - begun)
        ours.append(done - analysed)
        if any(note.mode != "incremental" for note in compiler.notes):
            full.append(name)
    targets = [
        Target(f"compiling a view, {what}, {len(ours)} queries: median", 1e3 * statistics.median(ours), 300, "ms",
               f"of which Spark's own {1e3 * statistics.median(theirs):.0f} ms; not wholly incremental: {len(full)}"),
    ]  # fmt: skip
    save("sql-compile", {"ours": ours, "spark": theirs, "not incremental": full, "targets": targets})
    return targets


# ---------------------------------------------------------------------- W1 through a pipeline


def w1_suite(spark: Any) -> list[Target]:
    size = 100_000 if QUICK else 1_000_000
    targets, rows = [], []
    for durable in (False, True):
        for changes, limit in ((100, 10.0 if durable else 2.0), (10_000, 40.0 if durable else 20.0)):
            with tempfile.TemporaryDirectory() as folder:
                location = str(Path(folder) / "w1") if durable else None
                median, load = _w1(spark, size, changes, location)
            where = "durable" if durable else "in memory"
            rows.append([f"{where}, {changes} changes", 1e3 * median, load / 1e6])
            targets.append(Target(f"W1 through Pipeline, {where}, {changes:,} changes", 1e3 * median, limit, "ms"))
            if not durable and changes == 100:
                targets.append(Target("W1: initial load, seconds for a million rows", 1e6 / load, 1.0, "s"))
    show(f"W1, {size:,} orders", ["", "median ms", "load, M rows/s"], rows)
    save("sql-w1", {"rows": rows, "targets": targets})
    return targets


def _w1(spark: Any, size: int, changes: int, location: str | None) -> tuple[float, float]:
    """The median transaction in seconds, and rows loaded in a second."""
    ticks = 50 if changes < 1000 else 20
    work = w1_data.generate(size, changes, ticks)
    with dbspark.Pipeline("w1", spark=spark, location=location) as pipe:
        pipe.create_table("orders", w1_data.ORDERS)
        pipe.create_table("customers", w1_data.CUSTOMERS)
        pipe.create_view("revenue", VIEW)
        base = tables_of(work.base)
        begun = time.perf_counter()
        apply(pipe, base)
        load = work.base.rows / (time.perf_counter() - begun)
        times = []
        with no_gc():  # once: a collection in front of every tick would empty the caches of the processor for it
            for change, expected in w1_data.pairs(work):
                given = tables_of(change)
                begun = time.perf_counter()
                apply(pipe, given)
                times.append(time.perf_counter() - begun)
                shown = pipe.view("revenue").to_arrow()
                got = {r: (c, t) for r, c, t in zip(*(c.to_pylist() for c in shown.columns), strict=True)}
                if got != expected:
                    raise MismatchError("W1: the view is not what counting gives")
    return statistics.median(times), load


def apply(pipe: dbspark.Pipeline, given: dict[str, pa.Table]) -> None:
    """A change of W1, as `tables_of` gives it, as a transaction."""
    with pipe.transaction() as tx:
        for name, table in given.items():
            tx.apply(name, table, weight="w")


def tables_of(change: w1_data.Change) -> dict[str, pa.Table]:
    """A change of W1 with its weights as `w`."""
    orders, customers, w_orders, w_customers = w1_data.arrow(change)
    return {
        "orders": orders.append_column("w", pa.array(w_orders)),
        "customers": customers.append_column("w", pa.array(w_customers)),
    }


SUITES: Final[dict[str, Callable[[Any], list[Target]]]] = {
    "tpch": tpch_suite, "compile": compile_suite, "w1": w1_suite,
}  # fmt: skip


def run(names: list[str]) -> list[Target]:
    """Run suites and show their targets."""
    return run_suites("SQL", SUITES, names)


def run_suites(title: str, suites: dict[str, Callable[[Any], list[Target]]], names: list[str]) -> list[Target]:
    """Run some suites, or all, in one session, and show their targets."""
    targets: list[Target] = []
    with session() as spark:
        for name in names or suites:
            targets += suites[name](spark)
    show_targets(title, targets)
    return targets
