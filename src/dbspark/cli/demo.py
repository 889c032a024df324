"""The demo: a table kept as a Z-set from its changes, beside Spark computing it from the whole log.

Spark generates the log, a row per change with a tick and a weight. Tick 0 holds the orders at the start. After
that every tick inserts some, updates some (the old row with weight -1, the new one with +1) and deletes some.
A row is a pure function of its order and of the tick that wrote it, so the log can name exactly the row that a
later change takes back.

The check at the end trusts no code of ours: the rows of the Z-set and those of Spark's
`GROUP BY … HAVING sum(w) <> 0` are sorted and compared as Arrow tables.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table

from dbspark.spark import get_session
from dbspark.zset import ZSet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Workload", "change_log", "differences", "run"]

P = ParamSpec("P")
T = TypeVar("T")

COLUMNS = ("order_id", "customer_id", "amount", "ts")
WEIGHT = "w"

_TABLE_AT = """
    SELECT {columns}, sum(w) AS w FROM {{log}} WHERE tick <= {{tick}}
    GROUP BY {columns} HAVING sum(w) <> 0""".format(columns=", ".join(COLUMNS))

_LOG = """
    WITH
    -- Orders that tick after tick picks among those there at the start; some are picked more than once.
    picked AS (
        SELECT DISTINCT 1 + id DIV {touched} AS tick, pmod(xxhash64(id, 'picked'), {rows}) AS order_id
        FROM range({ticks} * {touched})),
    touched AS (
        SELECT tick, order_id, lag(tick, 1, 0) OVER orders AS written, row_number() OVER orders AS nth
        FROM picked WINDOW orders AS (PARTITION BY order_id ORDER BY tick)),
    -- Every third of them is deleted when it is first picked, and not seen again; the others are updated.
    events AS (
        SELECT 0L AS tick, id AS order_id, 0L AS written, 1L AS w FROM range({rows})
        UNION ALL
        SELECT 1 + id DIV {inserted}, {rows} + id, 0, 1 FROM range({ticks} * {inserted})
        UNION ALL
        SELECT tick, order_id, written, -1 FROM touched WHERE order_id % 3 > 0 OR nth = 1
        UNION ALL
        SELECT tick, order_id, tick, 1 FROM touched WHERE order_id % 3 > 0)
    SELECT tick, order_id,
           pmod(xxhash64(order_id, 'customer'), 5000) AS customer_id,
           CAST(pmod(xxhash64(order_id, written, 'amount'), 100000) / 100 AS DECIMAL(12, 2)) AS amount,
           timestamp_seconds(1750000000 + order_id % 86400 + 60 * written) AS ts,
           w
    FROM events"""


@dataclass(frozen=True)
class Workload:
    """The size of the demo."""

    rows: int = 200_000
    ticks: int = 20
    changes: int = 1_000
    """Orders that a tick inserts (a quarter), updates or deletes."""


@dataclass(frozen=True)
class Tick:
    """What one tick did and what it cost, in seconds."""

    number: int
    changes: int
    count: int
    fetch: float
    """Getting the change from Spark as Arrow."""
    apply: float
    """Making it a Z-set, adding it to the state, and counting."""
    recompute: float
    """Spark computing the table from the log."""


def run(workload: Workload, console: Console, *, cores: int | None = None) -> bool:
    """Run the demo and show it; whether the Z-set and Spark agreed in every tick and at the end."""
    with console.status("Starting Spark") as status:
        # Adaptive execution costs more than it can save on queries of a second.
        settings = {"spark.log.level": "ERROR", "spark.sql.adaptive.enabled": "false"}
        with get_session(app_name="dbspark demo", cores=cores, config=settings) as session:
            status.update("Running")
            log = change_log(session.spark, workload).persist()
            try:
                return _run(session.spark, log, workload, console)
            finally:
                log.unpersist()


def change_log(spark: "SparkSession", workload: Workload) -> "DataFrame":
    """All changes: `tick`, the columns of an order, and the weight `w`."""
    inserted = max(1, workload.changes // 4)
    touched = max(1, workload.changes - inserted)
    log = spark.sql(_LOG.format(rows=workload.rows, ticks=workload.ticks, inserted=inserted, touched=touched))
    return log.repartition("order_id")  # spares Spark the shuffle of every recomputation, and many tiny tasks


def differences(actual: pa.Table, expected: pa.Table) -> list[str]:
    """How the Z-set's rows differ from Spark's, in a few lines; none if they are the same."""
    expected = _in_order(expected)
    actual = _in_order(actual.select(expected.column_names).cast(expected.schema))
    if actual.equals(expected):
        return []
    ours, sparks = ({tuple(row.values()) for row in table.to_pylist()} for table in (actual, expected))
    lines = [f"the Z-set has {actual.num_rows:,} rows and Spark's table has {expected.num_rows:,}"]
    lines += [f"only Spark has {row}" for row in sorted(sparks - ours, key=repr)[:3]]
    lines += [f"only the Z-set has {row}" for row in sorted(ours - sparks, key=repr)[:3]]
    return lines


def _run(spark: "SparkSession", log: "DataFrame", workload: Workload, console: Console) -> bool:
    entries, seconds = _timed(log.count)
    console.print(f"Spark generated a log of {entries:,} changes in {seconds:.1f} s.")
    orders = _changes(log, 0)
    state, seconds = _timed(ZSet.from_arrow, orders, weight=WEIGHT)
    console.print(f"The Z-set of the {state.count:,} orders at the start was built in {seconds * 1e3:,.0f} ms.")

    ticks: list[Tick] = []
    problems: list[str] = []
    for number in range(1, workload.ticks + 1):
        change, fetch = _timed(_changes, log, number)
        (state, ours), apply = _timed(_apply, state, change)
        count, recompute = _timed(_count, spark, log, number)
        if ours != count:
            problems.append(f"tick {number}: {ours:,} orders in the Z-set, {count:,} in Spark's table")
        ticks.append(Tick(number, change.num_rows, count, fetch, apply, recompute))
    console.print(_report(ticks, console.is_terminal))
    console.print(_summary(ticks), soft_wrap=True)

    problems += differences(state.to_arrow(weight=WEIGHT), spark.sql(_TABLE_AT, log=log, tick=workload.ticks).toArrow())
    for problem in problems:
        console.print(f"MISMATCH: {problem}", style="red", markup=False, soft_wrap=True)
    if not problems:
        console.print(
            f"Checked: the Z-set is the table that Spark computes from the log, {state.count:,} orders.", soft_wrap=True
        )
    return not problems


def _changes(log: "DataFrame", tick: int) -> pa.Table:
    return log.where(log.tick == tick).select(*COLUMNS, WEIGHT).toArrow()


def _apply(state: ZSet, change: pa.Table) -> tuple[ZSet, int]:
    """The state after a change, and its count: Spark counts too, and work put off by `+` must not look free."""
    after = state + ZSet.from_arrow(change, weight=WEIGHT)
    return after, after.count


def _count(spark: "SparkSession", log: "DataFrame", tick: int) -> int:
    (row,) = spark.sql(f"SELECT count(*) AS n, sum(amount) FROM ({_TABLE_AT})", log=log, tick=tick).collect()
    return int(row.n)


def _in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def _timed(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    start = perf_counter()
    result = work(*args, **kwargs)
    return result, perf_counter() - start


def _report(ticks: list[Tick], terminal: bool) -> Table:
    table = Table(title="Milliseconds per tick", box=box.SIMPLE_HEAD if terminal else None, title_justify="left")
    for heading in ("tick", "changes", "orders", "fetch the change", "apply it", "Spark, from the log"):
        table.add_column(heading, justify="right")
    for tick in ticks:
        times = (f"{seconds * 1e3:,.1f}" for seconds in (tick.fetch, tick.apply, tick.recompute))
        table.add_row(str(tick.number), f"{tick.changes:,}", f"{tick.count:,}", *times)
    return table


def _summary(ticks: list[Tick]) -> str:
    fetch, apply, recompute = (
        median(getattr(tick, part) for tick in ticks) * 1e3 for part in ("fetch", "apply", "recompute")
    )
    return (
        f"Medians: {apply:,.1f} ms to apply a change, after {fetch:,.0f} ms to fetch it from Spark; "
        f"{recompute:,.0f} ms for Spark to compute the table from the log. "
        f"Applying took 1/{recompute / apply:,.0f} of that, with fetching 1/{recompute / (fetch + apply):,.1f}."
    )
