"""Streams into tables: every mode, restarts and replays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import dbspark
from dbspark.connectors.streams import Streams, as_operation
from dbspark.errors import ConfigError, SchemaError, TransactionError

NOW = {"availableNow": True}
ORDERS = "id BIGINT NOT NULL, region STRING, amount BIGINT"


class Drop:
    """A folder in which files of JSON appear; a stream takes them one by one."""

    def __init__(self, spark: Any, folder: Path, schema: str = "id BIGINT, region STRING, amount BIGINT") -> None:
        self.spark, self.folder, self.schema = spark, folder, schema
        folder.mkdir(parents=True)
        self.files = 0

    def put(self, *rows: dict[str, Any]) -> None:
        path = self.folder / f"{self.files:04}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.files += 1
        os.utime(path, (1e9 + self.files, 1e9 + self.files))  # Spark takes files in the order of their times

    def stream(self) -> Any:
        reader = (
            self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).option("maxFileAge", "100000d")
        )
        return reader.json(str(self.folder))


def order(id: int, region: str = "north", amount: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": id, "region": region, "amount": amount, **more}


def done(query: Any) -> None:
    assert query.awaitTermination(60)


def ids(readable: Any) -> list[int]:
    return sorted(readable.to_arrow()["id"].to_pylist())


@pytest.fixture
def drop(spark: Any, tmp_path: Path) -> Callable[..., Drop]:
    return lambda name="in", **more: Drop(spark, tmp_path / name, **more)


def shop(spark: Any, location: Path | None = None) -> dbspark.Pipeline:
    pipe = dbspark.Pipeline("shop", spark=spark, location=None if location is None else str(location))
    if "orders" not in pipe.tables:
        pipe.create_table("orders", ORDERS, primary_key=["id"])
        pipe.create_view("revenue", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    return pipe


def revenue(pipe: dbspark.Pipeline) -> dict[str, int]:
    rows = pipe.view("revenue").to_arrow()
    return dict(zip(rows["region"].to_pylist(), rows["total"].to_pylist(), strict=True))


def test_a_micro_batch_is_a_transaction(spark: Any, drop: Any) -> None:
    source = drop()
    with shop(spark) as pipe:
        for i in range(3):
            source.put(order(2 * i), order(2 * i + 1, "south", 10))
        done(pipe.ingest("orders", source.stream(), trigger=NOW))
        assert pipe.tick == 3
        assert revenue(pipe) == {"north": 3, "south": 30}
        source.put(order(100))
        done(pipe.ingest("orders", source.stream(), trigger=NOW))
        assert (pipe.tick, ids(pipe.table("orders"))) == (4, [0, 1, 2, 3, 4, 5, 100])


def test_upserts_replace_rows_of_the_same_key(spark: Any, drop: Any) -> None:
    source = drop()
    with shop(spark) as pipe:
        source.put(order(1, amount=1), order(2, amount=2), order(1, amount=5))
        source.put(order(2, "south", 7))
        done(pipe.ingest("orders", source.stream(), "upsert", trigger=NOW))
        assert revenue(pipe) == {"north": 5, "south": 7}


@pytest.mark.parametrize("column", ["_change_type", "_weight"])
def test_changes_by_type_and_by_weight(spark: Any, drop: Any, column: str) -> None:
    kind = "STRING" if column == "_change_type" else "INT"
    feed = f"id BIGINT, region STRING, amount BIGINT, {column} {kind}, _commit_version BIGINT, _commit_timestamp STRING"
    source = drop(schema=feed)

    def change(kind: str, *row: Any) -> dict[str, Any]:
        weight = 1 if kind in ("insert", "update_postimage") else -1
        return order(*row, _commit_version=1, **{column: kind if column == "_change_type" else weight})

    with shop(spark) as pipe:
        source.put(change("insert", 1), change("insert", 2), change("insert", 3, "south", 4))
        source.put(
            change("update_preimage", 1), change("update_postimage", 1, "south", 9), change("delete", 2),
        )  # fmt: skip
        done(pipe.ingest("orders", source.stream(), "changes", trigger=NOW))
        assert ids(pipe.table("orders")) == [1, 3]
        assert revenue(pipe) == {"south": 13}


def test_two_sources_into_two_tables(spark: Any, drop: Any) -> None:
    with shop(spark) as pipe:
        pipe.create_table("regions", "region STRING, country STRING, since TIMESTAMP")
        pipe.create_view("n", "SELECT country, count(*) AS n FROM orders JOIN regions USING (region) GROUP BY country")
        orders, regions = drop("orders"), drop("regions", schema="region STRING, country STRING, since TIMESTAMP")
        for i in range(4):
            orders.put(order(i, "north" if i % 2 else "south"))
        for name in ("north", "south"):
            regions.put({"region": name, "country": "here", "since": "2024-01-01T00:00:00Z"})
        queries = [
            pipe.ingest("orders", orders.stream(), trigger=NOW),
            pipe.ingest("regions", regions.stream(), trigger=NOW, name="of regions"),
        ]
        for query in queries:
            done(query)
        assert queries[1].name == "of regions"
        assert pipe.tick == 6
        assert pipe.view("n").to_arrow().to_pylist() == [{"country": "here", "n": 4}]


def test_nothing_is_lost_or_doubled_by_restarts_and_replays(
    spark: Any, drop: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dbspark")
    source, location = drop(), tmp_path / "state"
    source.put(order(0))
    source.put(order(1))
    with shop(spark, location) as pipe:
        done(pipe.ingest("orders", source.stream(), trigger=NOW))
        assert pipe.tick == 2
    # Spark dies before it notes that the last micro-batch is done: it runs it again.
    commits = location / "streams" / "orders" / "commits"
    for path in (commits / "1", commits / ".1.crc"):
        path.unlink()
    source.put(order(2))
    with shop(spark, location) as pipe:
        done(pipe.ingest("orders", source.stream(), trigger=NOW))
        assert (pipe.tick, ids(pipe.table("orders")), revenue(pipe)) == (3, [0, 1, 2], {"north": 3})
    passed_over = [r for r in caplog.records if "committed already" in r.message]
    assert [tuple(r.args or ())[1] for r in passed_over] == [1]
    # A stream that is stopped by closing the pipeline goes on where it was.
    with shop(spark, location) as pipe:
        query = pipe.ingest("orders", source.stream(), trigger={"processingTime": "50 milliseconds"})
        for i in range(3, 6):
            source.put(order(i))
        query.processAllAvailable()
        assert ids(pipe.table("orders")) == list(range(6))
        with pytest.raises(ConfigError, match="runs already"):
            pipe.ingest("orders", source.stream())
    assert not query.isActive
    assert query.exception() is None
    source.put(order(6))
    with shop(spark, location) as pipe:
        done(pipe.ingest("orders", source.stream(), trigger=NOW))
        assert (pipe.tick, ids(pipe.table("orders"))) == (7, list(range(7)))


def test_a_checkpoint_that_is_further_than_the_pipeline_is_refused(spark: Any, drop: Any, tmp_path: Path) -> None:
    source, checkpoint = drop(), str(tmp_path / "checkpoint")
    source.put(order(0))
    with shop(spark) as pipe:
        done(pipe.ingest("orders", source.stream(), trigger=NOW, checkpoint=checkpoint))
    source.put(order(1))
    with shop(spark) as pipe:
        query = pipe.ingest("orders", source.stream(), trigger=NOW, checkpoint=checkpoint)
        with pytest.raises(Exception, match="goes on with micro-batch 1, but of its stream none has been applied"):
            query.awaitTermination(60)
        assert pipe.tick == 0


def test_a_transaction_that_fails_stops_its_stream_and_says_why(spark: Any, drop: Any) -> None:
    source = drop()
    with shop(spark) as pipe:
        source.put(order(1))
        source.put(order(2), order(1, amount=2))
        query = pipe.ingest("orders", source.stream(), trigger=NOW)
        with pytest.raises(Exception, match="two rows of the primary key"):
            query.awaitTermination(60)
        assert "use upsert to replace rows" in str(query.exception())
        assert (pipe.tick, ids(pipe.table("orders"))) == (1, [1])


def test_what_cannot_be_ingested_is_refused_at_once(spark: Any, drop: Any) -> None:
    source, other = drop(), drop("other", schema="id BIGINT, place STRING")
    with shop(spark) as pipe:
        pipe.create_table("log", "id BIGINT, region STRING, amount BIGINT")
        with pytest.raises(ConfigError, match="streaming DataFrame"):
            pipe.ingest("orders", spark.range(3))
        with pytest.raises(ConfigError, match="'append', 'upsert' or 'changes'"):
            pipe.ingest("orders", source.stream(), cast("Any", "replace"))
        with pytest.raises(TransactionError, match="no primary key"):
            pipe.ingest("log", source.stream(), "upsert")
        with pytest.raises(SchemaError, match="not expected: place"):
            pipe.ingest("orders", other.stream())
        with pytest.raises(SchemaError, match="changes need a column _change_type"):
            pipe.ingest("orders", source.stream(), "changes")
        with pytest.raises(ConfigError, match="trigger"):
            pipe.ingest("orders", source.stream(), trigger={"soon": True})
        with pytest.raises(dbspark.DbsparkError, match="no table 'nothing'"):
            pipe.ingest("nothing", source.stream())


def test_an_unknown_change_type_is_named() -> None:
    rows = pa.table({"id": [1, 2], "_change_type": ["insert", "upsert"]})
    with pytest.raises(SchemaError, match="'upsert' in _change_type is none of insert"):
        as_operation(rows, "changes", "orders")
    kind, rows, weight = as_operation(pa.table({"id": [1], "_change_type": ["delete"]}), "changes", "orders")
    assert (kind, weight, rows.to_pylist()) == ("apply", "_weight", [{"id": 1, "_weight": -1}])


def test_closing_does_not_mind_that_spark_is_gone() -> None:
    class Gone:
        @property
        def isActive(self) -> bool:
            raise ConnectionError("no JVM")

    streams = Streams(None)
    folder = Path(streams._checkpoint("a/b")).parent
    assert folder.is_dir()
    streams._running["somewhere"] = "a", cast("Any", Gone())
    streams.close()
    assert not folder.exists()
