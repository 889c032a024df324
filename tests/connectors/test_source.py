"""The data source: rows now and then, and the change feed, from the files."""

from __future__ import annotations

import importlib
import pkgutil
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import dbspark
from dbspark.connectors import source
from dbspark.connectors.stored_tables import PipelineSource
from dbspark.errors import TimeError

SCHEMA = "id BIGINT NOT NULL, region STRING, price DECIMAL(9, 2), at TIMESTAMP, tags ARRAY<STRING>"


def counted(table: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in table.to_pylist())


@pytest.fixture(scope="module")
def pipe(spark: Any, tmp_path_factory: Any) -> Any:
    """Twenty ticks of inserts and deletes."""
    location = str(tmp_path_factory.mktemp("state") / "shop")
    rng = random.Random(5)
    with dbspark.Pipeline("shop", spark=spark, location=location) as made:
        made.create_table("orders", SCHEMA, primary_key=["id"])
        made.create_table("never", "a INT")
        made.create_view("per_region", "SELECT region, count(*) AS n, sum(price) AS total FROM orders GROUP BY region")
        made.create_view("plain", "SELECT region, at, tags FROM orders")
        from datetime import UTC, datetime
        from decimal import Decimal

        for _ in range(20):
            with made.transaction() as tx:
                rows = [
                    (rng.randrange(60), rng.choice(["n", "s", None]), Decimal(rng.randrange(900)) / 100,
                     datetime(2024, 1, rng.randrange(1, 3), tzinfo=UTC), rng.choice([["a"], [], None]))
                    for _ in range(12)
                ]  # fmt: skip
                tx.upsert("orders", rows)
                tx.delete_keys("orders", [(rng.randrange(60),) for _ in range(4)])
        yield made


def read(spark: Any, pipe: Any, **options: Any) -> Any:
    reader = spark.read.format("dbspark").option("location", pipe.location)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


@pytest.mark.parametrize(
    ("kind", "name", "partitions"),
    [("view", "per_region", 1), ("view", "plain", 3), ("table", "orders", 3), ("table", "never", 1)],
)
def test_rows_equal_those_of_the_pipeline(spark: Any, pipe: Any, kind: str, name: str, partitions: int) -> None:
    readable = pipe.view(name) if kind == "view" else pipe.table(name)
    frame = read(spark, pipe, partitions=partitions, **{kind: name})
    assert frame.columns == readable.schema.names
    assert counted(frame.toArrow()) == counted(readable.to_arrow())
    if name == "orders":
        assert frame.selectExpr("spark_partition_id() AS p").distinct().count() == partitions


def test_an_unknown_option_is_refused_with_the_nearest_one(spark: Any, pipe: Any) -> None:
    for name, meant in (("as_of", "asOf"), ("AsOff", "asOf"), ("maxFilesPerTrigger", "maxTicksPerTrigger")):
        with pytest.raises(
            Exception, match=rf"no option '{name.lower()}' \(did you mean '{meant}'\?\); there are location"
        ):
            read(spark, pipe, view="per_region", **{name: 1})
    with pytest.raises(Exception, match="no option 'mergeschema'; there are location, view, table, asOf"):
        spark.readStream.format("dbspark").option("mergeSchema", "x").load(pipe.location)
    by_path = spark.read.format("dbspark").options(VIEW="per_region", ASOF=3).load(pipe.location)
    assert counted(by_path.toArrow()) == counted(pipe.view("per_region").as_of(3).to_arrow())


def test_ticks_that_the_history_has_forgotten(spark: Any, tmp_path: Path) -> None:
    location = str(tmp_path / "short")
    with dbspark.Pipeline("short", spark=spark, location=location, config={"history": 2}) as pipe:
        pipe.create_table("log", "a BIGINT")
        for i in range(6):
            with pipe.transaction() as tx:
                tx.insert("log", [(i,)])
    given = {"location": location, "table": "log"}

    def rows(tick: int, **more: str) -> list[int]:
        reader = PipelineSource({**given, "asOf": str(tick), **more}).reader(StructType())
        return [a for part in reader.partitions() for batch in reader.read(part) for a in batch.column("a").to_pylist()]

    assert [sorted(rows(tick)) for tick in (2, 5, 6)] == [[0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert sorted(rows(2, changes="true")) == [0, 1]
    assert sorted(rows(6, changes="true", since="4", partitions="2")) == [4, 5]
    with pytest.raises(TimeError, match="tick 1 is no longer kept"):
        rows(6, changes="true", since="1")


def test_rows_as_of_a_tick(spark: Any, pipe: Any) -> None:
    for tick in (1, 7, 20):
        frame = read(spark, pipe, view="plain", asOf=tick, partitions=2)
        assert counted(frame.toArrow()) == counted(pipe.view("plain").as_of(tick).to_arrow())


def test_changes_in_a_batch(spark: Any, pipe: Any) -> None:
    feed = read(spark, pipe, view="plain", changes="true", since=4, asOf=9, partitions=2).toArrow()
    assert set(feed["_commit_version"].to_pylist()) <= {5, 6, 7, 8, 9}
    total = counted(pipe.view("plain").as_of(4).to_arrow())
    own = feed.select(["region", "at", "tags"])
    for row, weight in zip(own.to_pylist(), feed["_weight"].to_pylist(), strict=True):
        total[repr(tuple(row.values()))] += weight
    assert +total == counted(pipe.view("plain").as_of(9).to_arrow())


@pytest.mark.parametrize("since", [None, 6])
def test_the_stream_of_changes_adds_up_to_the_view(spark: Any, pipe: Any, tmp_path: Path, since: int | None) -> None:
    view = pipe.view("per_region")
    seen: list[tuple[int, pa.Table]] = []

    def run() -> None:
        reader = spark.readStream.format("dbspark").option("location", pipe.location).option("view", "per_region")
        reader = reader.option("maxTicksPerTrigger", 5)
        reader = reader if since is None else reader.option("since", since)
        writer = reader.load().writeStream.foreachBatch(lambda df, batch: seen.append((batch, df.toArrow())))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert writer.start().awaitTermination(60)

    def total() -> Counter[str]:
        out: Counter[str] = Counter() if since is None else counted(view.as_of(since).to_arrow())
        for _, feed in seen:
            own = feed.select(["region", "n", "total"]).to_pylist()
            for row, weight in zip(own, feed["_weight"].to_pylist(), strict=True):
                out[repr(tuple(row.values()))] += weight
        return +out

    run()
    assert len(seen) == (1 if since is None else 3)
    assert total() == counted(view.to_arrow())
    with pipe.transaction() as tx:
        tx.upsert("orders", [(1000 + (since or 0), "new", 1, None, None)])
    run()
    last = seen[-1][1]
    assert set(last["_commit_version"].to_pylist()) == {pipe.tick}
    assert last["_commit_timestamp"].null_count == 0
    assert total() == counted(view.to_arrow())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "nothing"}, "no view 'nothing' at .*; the views are per_region, plain"),
        ({}, "give .option\\('view'"),
        ({"view": "plain", "asOf": "soon"}, "option 'asOf' is 'soon'"),
        ({"view": "plain", "since": 3}, "'since' is for the change feed"),
    ],
)
def test_what_cannot_be_read_is_named(spark: Any, pipe: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, pipe, **options)


def test_a_tick_to_come_and_a_stream_of_rows_are_refused(spark: Any, pipe: Any) -> None:
    with pytest.raises(Exception, match="tick 99 has not happened yet"):
        read(spark, pipe, view="plain", asOf=99).collect()
    stream = spark.readStream.format("dbspark").option("location", pipe.location).option("view", "plain")
    assert stream.load().columns[-4:] == ["_change_type", "_commit_version", "_commit_timestamp", "_weight"]
    stream = stream.option("changes", "false")
    with pytest.raises(Exception, match="a stream is the change feed"):
        stream.load().writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)


def test_connectors_know_no_pipeline() -> None:
    """Connectors are handed what to call: nothing of `dbspark.pipeline` is loaded with them."""
    code = (
        "import sys, dbspark.connectors.source, dbspark.connectors.sinks, dbspark.connectors.streams; "
        "sys.exit(any(m.startswith('dbspark.pipeline') for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_spark_finds_the_source_by_itself() -> None:
    """It looks for packages whose names begin so, and in them for `DefaultSource`."""
    assert "pyspark_dbspark" in {module.name for module in pkgutil.iter_modules()}
    found = importlib.import_module("pyspark_dbspark").DefaultSource
    assert found is PipelineSource
    assert found.name() == "dbspark"


def test_a_session_registers_the_source_when_it_first_reads_it(spark: Any) -> None:
    """To register it takes seconds in a new JVM: Spark starts a Python process that looks for data sources."""
    session = spark.newSession()
    with dbspark.Pipeline("quick", spark=session) as pipe:
        pipe.create_table("t", "k INT")
        pipe.create_view("v", "SELECT k FROM t")
    session.read.format("csv")
    assert session not in source._REGISTERED
    session.read.format("DBSPARK")
    assert session in source._REGISTERED
