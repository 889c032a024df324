"""The demo: a shop whose views are kept from streams, beside Spark computing them from its tables.

Spark generates a log for each table: a row for every insert, update or delete, with the tick it belongs to. Tick 0 is
what the shop begins with. A row is a pure function of its key and of the tick that wrote it. What a log changes (rows
that go and rows that come, with `_change_type`) lies in a file for each tick and table; the shop *delivers* a tick by
moving its files to where streams look for them, and each is a micro-batch, and so a transaction.

The check trusts no code of ours: Spark makes the tables from the logs, the views from the tables, and the rows of both
sides are sorted and compared as Arrow tables. The recursive view is Spark's `WITH RECURSIVE` there.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dbspark.pipeline.pipeline import Pipeline
from dbspark.runtime.progress import Progress
from dbspark.spark import get_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["TABLES", "VIEWS", "Workload", "differences", "logs", "run_demo"]

P = ParamSpec("P")
T = TypeVar("T")

MAX_RECOMPUTATIONS = 2
"""How often Spark recomputes the views at most, the final check included."""
MAX_RECOMPUTE_SECONDS = 12.0
"""After a recomputation that takes longer, only the final check recomputes again."""


class TableSpec(NamedTuple):
    """A table of the shop, and the Spark SQL of its log."""

    key: str
    columns: str
    log: str


class ViewSpec(NamedTuple):
    """A view of the shop. A recursive one also has its columns, and its query as Spark's `WITH RECURSIVE`."""

    query: str
    recursive: str | None = None
    in_spark: str | None = None


TABLES = {
    "customers": TableSpec(
        "customer_id",
        "customer_id BIGINT, region STRING, referred_by BIGINT",
        """
        SELECT tick, kind, customer_id,
               element_at(array('north', 'south', 'east', 'west'),
                          1 + CAST(pmod(xxhash64(customer_id, tick, 'region'), 4) AS INT)) AS region,
               -- Always somebody who was there before, so nobody has brought in themselves.
               if(customer_id < 20, NULL, pmod(xxhash64(customer_id, tick), customer_id DIV 3)) AS referred_by
        FROM (SELECT 0L AS tick, 'insert' AS kind, id AS customer_id FROM range({customers})
              UNION ALL
              SELECT DISTINCT 1 + id DIV {moving}, 'update', pmod(xxhash64(id, 'moves'), {customers})
              FROM range({ticks} * {moving}))""",
    ),
    "products": TableSpec(
        "product_id",
        "product_id BIGINT, category STRING, price DECIMAL(8,2)",
        """
        SELECT tick, kind, product_id,
               element_at(array('books', 'games', 'music', 'tools', 'toys'), 1 + CAST(product_id % 5 AS INT))
                   AS category,
               CAST(1 + pmod(xxhash64(product_id, tick, 'price'), 9900) / 100 AS DECIMAL(8,2)) AS price
        FROM (SELECT 0L AS tick, 'insert' AS kind, id AS product_id FROM range({products})
              UNION ALL
              SELECT 1 + id, 'update', pmod(xxhash64(id, 'price'), {products}) FROM range({ticks}))""",
    ),
    "orders": TableSpec(
        "order_id",
        "order_id BIGINT, customer_id BIGINT, product_id BIGINT, quantity INT, placed DATE",
        """
        WITH
        -- Orders that tick after tick picks among those there at the start; some are picked more than once.
        picked AS (
            SELECT DISTINCT 1 + id DIV {touched} AS tick, pmod(xxhash64(id, 'picked'), {rows}) AS order_id
            FROM range({ticks} * {touched})),
        touched AS (
            SELECT tick, order_id, row_number() OVER (PARTITION BY order_id ORDER BY tick) AS nth FROM picked),
        -- Every third of them is deleted when it is first picked, and not seen again; the others are updated.
        events AS (
            SELECT 0L AS tick, 'insert' AS kind, id AS order_id FROM range({rows})
            UNION ALL
            SELECT 1 + id DIV {inserted}, 'insert', {rows} + id FROM range({ticks} * {inserted})
            UNION ALL
            SELECT tick, if(order_id % 3 = 0, 'delete', 'update'), order_id
            FROM touched WHERE order_id % 3 > 0 OR nth = 1)
        SELECT tick, kind, order_id,
               pmod(xxhash64(order_id, 'customer'), {customers}) AS customer_id,
               pmod(xxhash64(order_id, tick, 'product'), {products}) AS product_id,
               CAST(1 + pmod(xxhash64(order_id, tick, 'quantity'), 5) AS INT) AS quantity,
               date_add(DATE '2026-01-01', CAST(pmod(xxhash64(order_id, 'placed'), 90) AS INT)) AS placed
        FROM events""",
    ),
}

_DIRECT_REFERRALS = (
    "SELECT referred_by AS customer_id, customer_id AS brought FROM customers WHERE referred_by IS NOT NULL"
)
_INDIRECT_REFERRALS = (
    "SELECT r.customer_id, c.customer_id FROM referrals r JOIN customers c ON c.referred_by = r.brought"
)

VIEWS = {
    "revenue": ViewSpec("""
        SELECT region, category, count(*) AS orders, sum(quantity * price) AS revenue
        FROM orders JOIN customers USING (customer_id) JOIN products USING (product_id)
        GROUP BY region, category"""),
    "spending": ViewSpec("""
        SELECT customer_id, region, sum(quantity * price) AS spent
        FROM orders JOIN customers USING (customer_id) JOIN products USING (product_id)
        GROUP BY customer_id, region"""),
    "best_customers": ViewSpec("""
        SELECT region, place, customer_id, spent FROM (
            SELECT *, row_number() OVER (PARTITION BY region ORDER BY spent DESC, customer_id) AS place FROM spending)
        WHERE place <= 3"""),
    "audience": ViewSpec("""
        SELECT category, count(DISTINCT customer_id) AS customers
        FROM orders JOIN products USING (product_id) GROUP BY category"""),
    "trend": ViewSpec("""
        SELECT placed, revenue,
               sum(revenue) OVER (ORDER BY placed ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS week
        FROM (SELECT placed, sum(quantity * price) AS revenue
              FROM orders JOIN products USING (product_id) GROUP BY placed)"""),
    "referrals": ViewSpec(
        f"{_DIRECT_REFERRALS} UNION {_INDIRECT_REFERRALS}",
        recursive="customer_id BIGINT, brought BIGINT",
        in_spark=f"""
        WITH RECURSIVE referrals(customer_id, brought) AS ({_DIRECT_REFERRALS} UNION ALL {_INDIRECT_REFERRALS})
        SELECT * FROM referrals""",
    ),
    "networks": ViewSpec("""
        SELECT r.customer_id, count(*) AS people, sum(spent) AS spent
        FROM referrals r JOIN spending s ON s.customer_id = r.brought
        GROUP BY r.customer_id ORDER BY spent DESC, r.customer_id LIMIT 10"""),
}

_CHANGES = """
    SELECT tick, CASE kind WHEN 'insert' THEN 'insert' ELSE 'update_postimage' END AS _change_type,
           * EXCEPT (tick, kind)
    FROM {{log}} WHERE kind <> 'delete'
    UNION ALL
    SELECT then, CASE what WHEN 'delete' THEN 'delete' ELSE 'update_preimage' END, * EXCEPT (tick, kind, then, what)
    FROM (SELECT *, lead(tick) OVER history AS then, lead(kind) OVER history AS what FROM {{log}}
          WINDOW history AS (PARTITION BY {key} ORDER BY tick))
    WHERE then IS NOT NULL AND kind <> 'delete'"""
"""The changes of a log: every version of a row is inserted, and deleted when the next one is inserted."""

_SHARED = {"spending", "referrals"}
"""Views that other views read: Spark caches them rather than compute them twice."""

_TABLE_AT = """
    SELECT * EXCEPT (tick, kind, nth) FROM (
        SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY tick DESC) AS nth FROM {{log}} WHERE tick <= {{tick}})
    WHERE nth = 1 AND kind <> 'delete'"""


@dataclass(frozen=True)
class Workload:
    """The size of the demo."""

    rows: int = 50_000
    ticks: int = 3
    changes: int = 1_000
    """Orders that a tick inserts (a quarter), updates or deletes."""

    @property
    def sizes(self) -> dict[str, int]:
        """The parameters of the logs' queries."""
        inserted = max(1, self.changes // 4)
        return {
            "rows": self.rows,
            "ticks": self.ticks,
            "inserted": inserted,
            "touched": max(1, self.changes - inserted),
            "customers": max(50, self.rows // 40),
            "products": max(20, self.rows // 400),
            "moving": max(1, self.changes // 200),
        }

    @property
    def measured(self) -> set[int]:
        """The ticks after which Spark computes the views, spread evenly; the last is one of them."""
        return {self.ticks * n // MAX_RECOMPUTATIONS for n in range(1, MAX_RECOMPUTATIONS + 1)} - {0}


@dataclass
class Tick:
    """What one tick did and what it cost, in seconds."""

    number: int
    table: str
    given: int
    """Rows that came to the table or went."""
    moved: int
    """Rows of the views that came or went."""
    seconds: float
    recompute: float | None = None
    """Spark computing all views from the tables."""


@dataclass
class _Spark:
    """Spark's side of the comparison."""

    spark: "SparkSession"
    logs: Mapping[str, "DataFrame"]
    answers: dict[str, pa.Table] = field(default_factory=dict)

    def compute(self, tick: int) -> float:
        """Compute all views as of a tick; returns the seconds, without those for making the tables."""
        held: dict[str, DataFrame] = {}

        def hold(name: str, frame: "DataFrame") -> "DataFrame":
            held[name] = frame.persist()
            frame.createOrReplaceTempView(name)
            return frame

        try:
            for name, (key, _, _) in TABLES.items():
                hold(name, self.spark.sql(_TABLE_AT.format(key=key), log=self.logs[name], tick=tick)).count()
            begun = perf_counter()
            for name, (query, _, in_spark) in VIEWS.items():
                frame = self.spark.sql(in_spark or query)
                self.answers[name] = (hold(name, frame) if name in _SHARED else frame).toArrow()
            return perf_counter() - begun
        finally:
            for name, frame in held.items():
                self.spark.catalog.dropTempView(name)
                frame.unpersist()


def run_demo(
    workload: Workload,
    console: Console,
    *,
    cores: int | None = 2,
    location: str | None = None,
    shards: int | None = 2,
) -> bool:
    """Run the demo and print it; returns whether every view equals what Spark computes."""
    # Adaptive execution costs more than it can save on queries of a second.
    settings = {"spark.log.level": "ERROR", "spark.sql.adaptive.enabled": "false"}
    with _step(console, "Spark is starting", "Spark has started"):
        session = get_session(app_name="dbspark demo", cores=cores, config=settings)
    with session, Pipeline("shop", location=location, spark=session.spark, shards=shards) as pipe:
        made = {name: log.persist() for name, log in logs(session.spark, workload).items()}
        try:
            with TemporaryDirectory(prefix="dbspark-demo-") as folder:
                return _run(pipe, _Spark(session.spark, made), _Shop(Path(folder)), workload, console)
        finally:
            for log in made.values():
                log.unpersist()


def logs(spark: "SparkSession", workload: Workload) -> dict[str, "DataFrame"]:
    """By table, the log of its changes: `tick`, `kind` (insert, update or delete) and the row."""
    # Partitioned by key, which spares Spark a shuffle with many small tasks in every recomputation.
    return {
        name: spark.sql(table.log.format(**workload.sizes)).repartition(table.key) for name, table in TABLES.items()
    }


def differences(actual: pa.Table, expected: pa.Table) -> list[str]:
    """How a view's rows differ from Spark's, in a few lines; none if they are the same."""
    expected = _sorted_rows(expected)
    actual = _sorted_rows(actual.select(expected.column_names).cast(expected.schema))
    if actual.equals(expected):
        return []
    ours, sparks = ({tuple(row.values()) for row in table.to_pylist()} for table in (actual, expected))
    lines = [f"the view has {actual.num_rows:,} rows and Spark's answer has {expected.num_rows:,}"]
    lines += [f"only Spark has {row}" for row in sorted(sparks - ours, key=repr)[:3]]
    lines += [f"only the view has {row}" for row in sorted(ours - sparks, key=repr)[:3]]
    return lines


@dataclass
class _Shop:
    """The folders of the shop: the files of all ticks, and those delivered to the streams."""

    folder: Path
    streams: list["StreamingQuery"] = field(default_factory=list)

    def write(self, logs: Mapping[str, "DataFrame"], ticks: int) -> int:
        """Write the files of all ticks; returns the number of changes."""
        total = 0
        for name, log in logs.items():
            changes = log.sparkSession.sql(_CHANGES.format(key=TABLES[name].key), log=log)
            written = str(self.folder / "written" / name)
            changes.repartition(ticks + 1, "tick").write.partitionBy("tick").parquet(written)
            total += log.sparkSession.read.parquet(written).count()
            (self.folder / "delivered" / name).mkdir(parents=True)
        return total

    def open(self, pipe: Pipeline, spark: "SparkSession") -> None:
        """Create the tables, and start their streams."""
        for name, (key, columns, _) in TABLES.items():
            pipe.create_table(name, columns, primary_key=[key])
            files = spark.readStream.schema(f"_change_type STRING, {columns}").option("maxFilesPerTrigger", 1)
            stream = files.parquet(str(self.folder / "delivered" / name))
            self.streams.append(pipe.ingest(name, stream, mode="changes"))

    def deliver(self, tick: int) -> None:
        """Deliver the files of a tick to the streams, and wait until they have been processed."""
        for name in TABLES:
            for number, file in enumerate(sorted((self.folder / "written" / name).glob(f"tick={tick}/*.parquet"))):
                file.rename(self.folder / "delivered" / name / f"{tick:06d}-{number}.parquet")
        for stream in self.streams:
            stream.processAllAvailable()


def _run(pipe: Pipeline, spark: _Spark, shop: _Shop, workload: Workload, console: Console) -> bool:
    with _step(console, "Spark generates a shop and what happens to it", "Spark generated {} changes") as done:
        done(f"{shop.write(spark.logs, workload.ticks):,}")
    with _step(console, "The tables are loaded by streams", "The tables are loaded by streams: {}") as done:
        shop.open(pipe, spark.spark)
        shop.deliver(0)
        done(", ".join(f"{pipe.table(name).df().count():,} {name}" for name in TABLES))
    for name, (query, recursive, _) in VIEWS.items():
        with _step(console, f"View {name} is filled", "View {}") as done:
            pipe.create_view(name, query, recursive=recursive)
            kind = "recursive, " if recursive else ""
            done(f"{name} is filled: {kind}{len(pipe.view(name).to_arrow()):,} rows")

    ticks: list[Tick] = []
    slowest = 0.0
    with _tick_table(console, ticks) as show:
        for number in range(1, workload.ticks + 1):
            before = pipe.tick
            shop.deliver(number)
            ticks += [_tick_of(progress) for progress in pipe.recent_progress if progress["tick"] > before]
            show()
            if number == workload.ticks or (number in workload.measured and slowest < MAX_RECOMPUTE_SECONDS):
                ticks[-1].recompute = spark.compute(number)
                slowest = max(slowest, ticks[-1].recompute)
                show()
    console.print(_summary(ticks), soft_wrap=True)
    return _check(pipe, spark, console)


def _tick_of(progress: Progress) -> Tick:
    table = ", ".join(source["description"].removeprefix("table ") for source in progress["sources"])
    moved = sum(progress["numOutputRows"].values())
    seconds = progress["durationMs"]["transaction"] / 1e3
    return Tick(progress["tick"], table, progress["numInputRows"], moved, seconds)


def _check(pipe: Pipeline, spark: _Spark, console: Console) -> bool:
    problems = {name: differences(pipe.view(name).to_arrow(), answer) for name, answer in spark.answers.items()}
    for name, lines in problems.items():
        for line in lines:
            console.print(f"MISMATCH in {name}: {line}", style="red", markup=False, soft_wrap=True)
    right = not any(problems.values())
    if right:
        rows = ", ".join(f"{name} ({len(answer):,} rows)" for name, answer in spark.answers.items())
        console.print(f"Checked: every view is what Spark computes: {rows}.", soft_wrap=True)
    return right


@contextmanager
def _step(console: Console, doing: str, said: str) -> Iterator[Callable[[str], None]]:
    """Show a step in progress, and then its result and how long it took."""
    result: list[str] = []
    begun = perf_counter()
    with console.status(doing):
        yield result.append
    console.print(f"{perf_counter() - begun:6.1f} s  {said.format(*result)}", highlight=False, soft_wrap=True)


@contextmanager
def _tick_table(console: Console, ticks: list[Tick]) -> Iterator[Callable[[], None]]:
    """Show the table of ticks: updated live on a terminal, printed once elsewhere."""
    if not console.is_terminal:
        yield lambda: None
        console.print(_report(ticks, terminal=False))
        return
    with Live(_report(ticks, terminal=True), console=console, vertical_overflow="visible") as live:
        yield lambda: live.update(_report(ticks, terminal=True), refresh=True)


def _sorted_rows(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def _timed(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    start = perf_counter()
    result = work(*args, **kwargs)
    return result, perf_counter() - start


def _report(ticks: list[Tick], terminal: bool) -> Table:
    table = Table(
        title="Rows changed, and milliseconds for all views",
        box=box.SIMPLE_HEAD if terminal else None,
        title_justify="left",
    )
    table.add_column("tick", justify="right")
    table.add_column("stream of")
    for heading in ("rows", "in views", "dbspark", "Spark, all anew", "ratio"):
        table.add_column(heading, justify="right")
    for tick in ticks:
        spark, ratio = "", ""
        if tick.recompute is not None:
            spark, ratio = f"{tick.recompute * 1e3:,.0f}", f"{tick.recompute / tick.seconds:,.1f}"
        rows = f"{tick.given:,}", f"{tick.moved:,}", f"{tick.seconds * 1e3:,.1f}"
        table.add_row(str(tick.number), tick.table, *rows, spark, ratio)
    return table


def _summary(ticks: list[Tick]) -> str:
    ours = median(tick.seconds for tick in ticks) * 1e3
    spark = min(tick.recompute for tick in ticks if tick.recompute is not None) * 1e3
    return (
        f"A tick took {ours:,.1f} ms (median) for all {len(VIEWS)} views. "
        f"Computing them anew took Spark {spark:,.0f} ms at its best, {spark / ours:,.1f} times as long."
    )
