"""Spark Structured Streaming, where it can express the query: `local[2]`, a file a batch, one micro-batch a batch.

It has no retractions, so W1 and W2 are beyond it, and of W3:

* without state (q0, q1, q2, q14, q22) and beside a table that does not change (q13): as they are;
* inner joins of streams (q3, q20): as they are, with state that grows for ever;
* windows (q5, q7, q8, q12): in append mode, with a watermark of four seconds. Rows come out when a window is closed, so
  two events of later days end the stream and close them all;
* a row a group (q17, q18): in update mode, the last row of a group counts;
* not at all: q4 and q9 (an aggregate over a join), q15 and q16 (distinct counts), q19 (ranks).

A sink takes every micro-batch as Arrow. What is timed is what Spark reports as a trigger's execution; the first
micro-batch is not counted, as everybody is warm before times are taken.
"""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from benchmarks.peers.case import Case, with_tick
from benchmarks.peers.contender import NotExpressible, Outcome, resident
from benchmarks.peers.systems.session import OnSpark

_DELAY: Final = "4 seconds"
_REFUSED: Final = {
    "q4": "an aggregate over a join of streams would have to take rows back",
    "q9": "an aggregate over a join of streams would have to take rows back",
    "q15": "distinct counts are not supported on streams",
    "q16": "distinct counts are not supported on streams",
    "q19": "ranks are not supported on streams",
}
_LATEST: Final = {"q17": 2, "q18": 2}
"""How many columns, from the first, are the key of a row that replaces an earlier one."""
_WINDOWED: Final = frozenset({"q5", "q7", "q8", "q12"})


class Streaming(OnSpark):
    name = "Structured Streaming"
    workloads = frozenset({"w3"})

    def start(self) -> None:
        super().start()
        self._spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")

    def run(self, case: Case, budget: float) -> Outcome:
        if case.view in _REFUSED:
            raise NotExpressible(_REFUSED[case.view])
        home = self.scratch / "stream"
        shutil.rmtree(home, ignore_errors=True)
        self._write(case, home)
        tables = {name: self._table(case, name, home) for name in case.tables}
        frame, mode = _view(self._spark, case, tables)
        parts: list[pa.Table] = []
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: parts.append(batch.toArrow())).outputMode(mode)
            .option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        times = [p["durationMs"]["triggerExecution"] / 1e3 for p in query.recentProgress]
        out = Outcome(load=times[0], ticks=times[1:], rows=case.rows(2, case.ticks + 1), memory=resident())
        out.views.append(with_tick(self._result(case, parts), case.ticks))
        shutil.rmtree(home, ignore_errors=True)
        return out

    def _write(self, case: Case, home: Path) -> None:
        """A file a batch and table, in their order; then those that close the windows."""
        source = case.open()
        for name in case.tables:
            folder = home / name
            folder.mkdir(parents=True)
            batches = [
                source[tick].get(name, source.empty(name))
                for tick in range(0 if name in case.static else 1, case.ticks + 1)
            ]
            if case.view in _WINDOWED:
                batches += [_later(source.whole(name).slice(0, 1), days) for days in (1, 2)]
            for i, rows in enumerate(batches):
                path = folder / f"{i:06}.parquet"
                parquet.write_table(rows, path)
                os.utime(path, (1e9 + i, 1e9 + i))

    def _table(self, case: Case, name: str, home: Path) -> Any:
        folder = str(home / name)
        schema = self._spark.read.parquet(folder).schema
        if name in case.static:
            return self._spark.read.parquet(folder).cache()
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)

    def _result(self, case: Case, parts: list[pa.Table]) -> pa.Table:
        shown = pa.concat_tables(parts)
        if case.view in _LATEST:
            keys = _LATEST[case.view]
            columns = [shown.column(i).to_pylist() for i in range(keys)]
            last = {key: i for i, key in enumerate(zip(*columns, strict=True))}
            return shown.take(pa.array(list(last.values()), pa.int64()))
        if case.view in _WINDOWED:
            times = case.open().whole(next(iter(case.tables)))["date_time"]
            end = pc.max(times).as_py() + datetime.timedelta(hours=12)
            when = next(name for name in ("starttime", "date_time") if name in shown.column_names)
            shown = shown.filter(pc.less(shown[when], pa.scalar(end, shown[when].type)))
        return shown


def _later(rows: pa.Table, days: int) -> pa.Table:
    i = rows.column_names.index("date_time")
    later = pc.add(rows.column(i), pa.scalar(datetime.timedelta(days=days), pa.duration("us")))
    return rows.set_column(i, "date_time", later)


def _view(spark: Any, case: Case, tables: dict[str, Any]) -> tuple[Any, str]:
    """The query over streams, and its output mode."""
    if case.view in _WINDOWED:
        return _BUILT[case.view](tables), "append"
    for name, frame in tables.items():
        frame.createOrReplaceTempView(name)
    if case.view == "q18":
        names = ("price", "channel", "url", "date_time", "extra")
        fields = ", ".join(f"last.{name}" for name in names)
        last = f"max_by(struct({', '.join(names)}), struct(date_time, seq)) AS last"
        return spark.sql(
            f"SELECT auction, bidder, {fields} FROM (SELECT auction, bidder, {last} FROM bid GROUP BY auction, bidder)"
        ), "update"
    return spark.sql(case.sql), "update" if case.view in _LATEST else "append"


def _windows(table: Any, *keys: str, length: str = "10 seconds", hop: str | None = None) -> Any:
    from pyspark.sql import functions as f

    marked = table.withWatermark("date_time", _DELAY)
    window = f.window("date_time", length, hop) if hop else f.window("date_time", length)
    return marked.groupBy(*keys, window.alias("window"))


def _q5(tables: dict[str, Any]) -> Any:
    counts = _windows(tables["bid"], "auction", hop="2 seconds").count()
    best = counts.groupBy("window").agg(
        _expr("max(count) AS most"), _expr("collect_list(struct(auction, count)) AS all")
    )
    rows = best.selectExpr("window", "inline(filter(all, x -> x.count = most))")
    return rows.selectExpr("auction", "count AS num", "window.start AS starttime", "window.end AS endtime")


def _q7(tables: dict[str, Any]) -> Any:
    most = _windows(tables["bid"]).agg(_expr("max(price) AS most")).alias("m")
    bids = tables["bid"].withWatermark("date_time", _DELAY).alias("b")
    best = _expr("b.price = m.most AND b.date_time >= m.window.start AND b.date_time < m.window.end")
    return bids.join(most, best).select("b.auction", "b.price", "b.bidder", "b.date_time", "b.extra")


def _q8(tables: dict[str, Any]) -> Any:
    persons = _windows(tables["person"], "id", "name").count().alias("p")
    sellers = _windows(tables["auction"], "seller").count().alias("a")
    both = persons.join(sellers, _expr("p.id = a.seller AND p.window = a.window"))
    return both.selectExpr("id", "name", "p.window.start AS starttime")


def _q12(tables: dict[str, Any]) -> Any:
    counts = _windows(tables["bid"], "bidder").count()
    return counts.selectExpr("bidder", "count AS bid_count", "window.start AS starttime", "window.end AS endtime")


def _expr(text: str) -> Any:
    from pyspark.sql import functions as f

    return f.expr(text)


_BUILT: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {"q5": _q5, "q7": _q7, "q8": _q8, "q12": _q12}
