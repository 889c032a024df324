"""Pipelines that are open for reading, beside the one that writes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import dbspark
from dbspark.errors import ConfigError, DbsparkError, LockError, StoreError, TimeError
from tests.pipeline.test_explain import sizes
from tests.pipeline.test_pipeline import REVENUE, rows, shop

READING = {"read_only": True}


def bring(pipe: dbspark.Pipeline, *regions: str) -> None:
    for region in regions:
        with pipe.transaction() as tx:
            tx.insert("customers", [(pipe.tick, region)])
            tx.insert("orders", [(pipe.tick, pipe.tick, Decimal(1))])


def test_readers_show_a_tick_until_they_are_refreshed(spark: Any, tmp_path: Path) -> None:
    location = str(tmp_path / "shop")
    with shop(spark, location=location) as pipe:
        bring(pipe, "north", "south")
        with (
            dbspark.Pipeline("shop", location=location, spark=spark, config=READING) as one,
            dbspark.Pipeline("shop", location=location, spark=spark, config=READING) as two,
        ):
            bring(pipe, *["west"] * 40)  # what the readers look at is out of the policy by then
            pipe.create_view("regions", "SELECT count(*) AS n FROM revenue")
            for reader in (one, two):
                assert reader.tick == 2
                assert rows(reader.view("revenue").to_arrow()) == [("north", 1, 1), ("south", 1, 1)]
                assert rows(reader.view("revenue").as_of(1).to_arrow()) == [("north", 1, 1)]
            assert one.refresh() == 42
            assert list(one.views) == ["revenue", "regions"]
            assert rows(one.view("regions").to_arrow()) == [(3,)]
            assert rows(one.view("revenue").as_of(1).to_arrow()) == [("north", 1, 1)]
            assert one.view("revenue").changes(since=40).num_rows == 4
            assert one.view("revenue").df().count() == 3
            assert one.table("orders").df().count() == 42
            assert one.query("SELECT sum(n) AS n FROM revenue JOIN customers USING (region)").collect()[0].n == 1602
            assert sizes(one.explain("revenue")) == sizes(pipe.explain("revenue"))
            assert sizes(one.explain("revenue"))["table orders"] == 42
            assert "inner join" in one.explain("SELECT * FROM revenue JOIN customers USING (region)")
            assert one.metrics()["rows_by_name"] == pipe.metrics()["rows_by_name"]
            assert one.metrics()["state_bytes"] > 0
            assert two.tick == 2
            with pytest.raises(DbsparkError, match="no view 'regions'"):
                two.view("regions")
            with pytest.raises(TimeError, match="not happened yet"):
                two.view("revenue").as_of(3).to_arrow()
            pipe.drop_view("regions")
            pipe.drop_view("revenue")
            one.refresh()
            assert list(one.views) == []
        assert pipe.refresh() == pipe.tick == 42
    assert not list((tmp_path / "shop").glob("pin-*")), "readers leave nothing behind"


def test_reading_needs_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    location = str(tmp_path)
    with dbspark.Pipeline("log", location=location) as pipe:
        pipe.create_table("log", "a BIGINT")
        with pipe.transaction() as tx:
            tx.insert("log", [(1,), (1,)])
        monkeypatch.setattr(dbspark.Pipeline, "_spark", started)
        with dbspark.Pipeline("log", location=location, config=READING) as reader:
            assert rows(reader.table("log").to_arrow()) == [(1,), (1,)]
            assert reader.refresh() == 1
            assert reader.id == pipe.id
            assert "read only" in repr(reader)


def test_a_reader_changes_nothing(spark: Any, tmp_path: Path) -> None:
    location = str(tmp_path / "shop")
    shop(spark, location=location).close()
    before = sorted(tmp_path.rglob("*"))
    with dbspark.Pipeline("shop", location=location, spark=spark, config=READING) as reader:
        stream = spark.readStream.format("rate").load()
        for change in (
            lambda: reader.create_table("t", "a BIGINT"),
            lambda: reader.create_view("v", REVENUE),
            lambda: reader.drop_view("revenue"),
            lambda: reader.drop_table("orders"),
            lambda: reader.transaction().__enter__(),
            lambda: reader.ingest("orders", stream),
            lambda: reader.view("revenue").subscribe(print),
            lambda: reader.view("revenue").write_stream(print),
            lambda: reader.sql("INSERT INTO customers VALUES (1, 'north')"),
        ):
            with pytest.raises(StoreError, match=r"'shop' is open for reading, and .+ needs one that writes"):
                change()
    with pytest.raises(DbsparkError, match="closed"):
        reader.refresh()
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a location"):
        dbspark.Pipeline("x", config=READING)
    with pytest.raises(ConfigError, match="read_only is 'yes'"):
        dbspark.Pipeline("x", location=str(tmp_path), config={"read_only": "yes"})
    with pytest.raises(StoreError, match="check the location"):
        dbspark.Pipeline("x", location=str(tmp_path / "nothing"), config=READING)
    assert not (tmp_path / "nothing").exists()
    with dbspark.Pipeline("x", location=str(tmp_path)), pytest.raises(LockError, match="read_only"):
        dbspark.Pipeline("x", location=str(tmp_path))
