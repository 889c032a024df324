"""Tables and views that come and go: undone where the commit fails, with all that belongs to them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import dbspark
from dbspark.errors import DbsparkError, StoreError
from tests.pipeline.test_pipeline import rows, shop


@pytest.mark.parametrize(
    "change",
    [
        lambda pipe: pipe.drop_view("big"),
        lambda pipe: pipe.drop_table("spare"),
        lambda pipe: pipe.create_table("more", "a BIGINT"),
        lambda pipe: pipe.create_view("more", "SELECT count(*) AS n FROM big"),
    ],
    ids=["drop_view", "drop_table", "create_table", "create_view"],
)
def test_nothing_has_changed_where_the_commit_fails(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dbspark.Pipeline], object]
) -> None:
    def failing(*_: object) -> None:
        raise StoreError("the disk is full")

    with shop(spark, location=str(tmp_path / "shop")) as pipe:
        pipe.create_view("big", "SELECT region FROM revenue WHERE total > 2")
        pipe.create_table("spare", "a BIGINT")
        pipe.frame("orders")
        explained = pipe.explain("big")
        with monkeypatch.context() as patched:
            patched.setattr(pipe._store, "commit", failing)
            with pytest.raises(StoreError, match="the disk is full"):
                change(pipe)
        assert list(pipe.tables) == ["orders", "customers", "spare"]
        assert list(pipe.views) == ["revenue", "big"]
        assert pipe.explain("big") == explained
        with pipe.transaction() as tx:
            tx.insert("customers", [(1, "north")])
            tx.insert("orders", [(1, 1, Decimal(3))])
            tx.insert("spare", [(1,)])
        assert rows(pipe.view("big").to_arrow()) == [("north",)]
        change(pipe)
        with pytest.raises(DbsparkError, match="is read by"):
            pipe.drop_view("revenue") if "big" in pipe.views else pipe.drop_table("orders")


def test_a_dropped_view_takes_the_positions_of_its_sinks_along(spark: Any, tmp_path: Path) -> None:
    location = str(tmp_path / "shop")
    with shop(spark, location=location) as pipe:
        given: list[tuple[int, list[Any]]] = []

        def sink(changes: Any, tick: int) -> None:
            given.append((tick, sorted(row.region for row in changes.collect())))

        def bring(region: str) -> None:
            with pipe.transaction() as tx:
                tx.insert("customers", [(pipe.tick, region)])
                tx.insert("orders", [(pipe.tick, pipe.tick, Decimal(1))])

        feed = pipe.view("revenue").write_stream(sink)
        bring("north")
        feed.processAllAvailable()
        pipe.create_view("other", "SELECT region FROM revenue")
        with pytest.raises(DbsparkError, match="is read by other"):
            pipe.drop_view("revenue")
        assert feed.isActive, "what is refused stops nothing"
        pipe.drop_view("other")
        query = "SELECT region, count(*) AS n FROM orders JOIN customers USING (customer) GROUP BY region"
        pipe.drop_view("revenue")
        assert not feed.isActive
        assert feed.exception() is None
        assert not pipe._positions
        bring("south")
        pipe.create_view("revenue", query)
        pipe.view("revenue").write_stream(sink).processAllAvailable()
        assert given[-1] == (2, ["north", "south"]), "a new sink begins with what there is"
    with dbspark.Pipeline("shop", location=location, spark=spark) as pipe:
        assert list(pipe._positions) == ["revenue.sink"]


def test_a_dropped_table_takes_its_streams_along(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"a": 1}\n')
    with dbspark.Pipeline("log", location=str(tmp_path / "state"), spark=spark) as pipe:
        pipe.create_table("log", "a BIGINT")
        stream = spark.readStream.schema("a BIGINT").json(str(tmp_path / "in"))
        query = pipe.ingest("log", stream)
        query.processAllAvailable()
        assert rows(pipe.table("log").to_arrow()) == [(1,)]
        pipe.drop_table("log")
        assert not query.isActive
        assert not pipe._offsets
        pipe.create_table("log", "a BIGINT")
        (tmp_path / "in" / "2.json").write_text('{"a": 2}\n')
        pipe.ingest("log", stream, trigger={"availableNow": True}).awaitTermination(60)
        assert rows(pipe.table("log").to_arrow()) == [(1,), (2,)], "the stream is read from its beginning"
        pipe.ingest("log", stream, trigger={"availableNow": True}).awaitTermination(60)
        assert rows(pipe.table("log").to_arrow()) == [(1,), (2,)]


def test_a_location_keeps_its_name_and_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    location = str(tmp_path / "shop")
    with dbspark.Pipeline("shop", location=location) as pipe:
        pipe.create_table("t", "a BIGINT")
        first = pipe.id, pipe.run_id
    with caplog.at_level(logging.WARNING, "dbspark"), dbspark.Pipeline("store", location=location) as pipe:
        assert pipe.name == "shop"
        pipe.create_table("u", "a BIGINT")
        assert pipe.id == first[0]
        assert pipe.run_id != first[1]
    assert "is the pipeline 'shop' and keeps that name; it was opened as 'store'" in caplog.text
    with dbspark.Pipeline("shop", location=location) as pipe:
        assert pipe.name == "shop"
        assert list(pipe.tables) == ["t", "u"]
