"""Pipelines as users meet them."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dbspark
from dbspark.columnar.block_allocator import PROCESS_ALLOCATOR
from dbspark.errors import ConfigError, DbsparkError, LockError, SchemaError, TimeError, TransactionError

ORDERS = "id BIGINT NOT NULL, customer BIGINT, amount DECIMAL(12,2)"
CUSTOMERS = "customer BIGINT, region STRING"
REVENUE = """
    SELECT region, count(*) AS n, sum(amount) AS total
    FROM orders JOIN customers USING (customer) GROUP BY region"""


def shop(spark: Any, **options: Any) -> dbspark.Pipeline:
    pipe = dbspark.Pipeline("shop", spark=spark, **options)
    pipe.create_table("orders", ORDERS, primary_key=["id"])
    pipe.create_table("customers", CUSTOMERS)
    pipe.create_view("revenue", REVENUE)
    return pipe


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(c.to_pylist() for c in table.columns), strict=True), key=repr)


def test_the_example_of_the_public_api(spark: Any) -> None:
    with shop(spark) as pipe:
        with pipe.transaction() as tx:
            tx.insert("customers", [(1, "north"), (2, "south")])
            tx.insert("orders", pa.table({"id": [1, 2], "customer": [1, 2], "amount": [Decimal("3.50"), Decimal("1")]}))
        assert tx.tick == 1
        assert rows(pipe.view("revenue").to_arrow()) == [
            ("north", 1, Decimal("3.50")), ("south", 1, Decimal("1.00")),
        ]  # fmt: skip
        with pipe.transaction() as tx:
            tx.upsert("orders", [(2, 1, Decimal("2.00")), (3, 1, Decimal("4.00"))])
            tx.delete_keys("orders", [(1,), (99,)])
        assert tx.tick == 2
        assert rows(pipe.view("revenue").to_arrow()) == [("north", 2, Decimal("6.00"))]
        assert rows(pipe.view("revenue").as_of(1).to_arrow())[1][0] == "south"
        changed = pipe.view("revenue").changes(since=1)
        assert sorted(zip(changed["region"].to_pylist(), changed["_weight"].to_pylist(), strict=True)) == [
            ("north", -1), ("north", 1), ("south", -1),
        ]  # fmt: skip
        assert set(changed["_tick"].to_pylist()) == {2}
        assert pipe.view("revenue").df().count() == 1
        assert rows(pipe.table("customers").to_arrow()) == [(1, "north"), (2, "south")]
        assert pipe.query("SELECT sum(n) AS n FROM revenue").collect()[0].n == 2
        assert "incremental" in pipe.explain("revenue")
        assert pipe.last_progress is not None
        assert pipe.last_progress["tick"] == 2
        assert pipe.metrics()["transactions"] == 2


def test_ticks_that_do_not_touch_a_table_or_view_can_be_read_all_the_same(spark: Any) -> None:
    with shop(spark, config={"history": 3}) as pipe:
        with pipe.transaction() as tx:
            tx.insert("customers", [(1, "north")])
            tx.insert("orders", [(1, 1, Decimal("1.00"))])
        for i in range(3):
            with pipe.transaction() as tx:
                tx.insert("orders", [(10 + i, 99, Decimal("1.00"))])  # of a customer who is not there
        assert pipe.tick == 4
        assert rows(pipe.view("revenue").as_of(3).to_arrow()) == [("north", 1, Decimal("1.00"))]
        assert rows(pipe.table("customers").as_of(4).to_arrow()) == [(1, "north")]
        assert len(pipe.table("customers").changes(since=1)) == 0
        with pipe.transaction() as tx:
            tx.insert("customers", [(99, "south")])
        assert pipe.view("revenue").changes(since=4)["_tick"].to_pylist() == [5]
        assert rows(pipe.view("revenue").as_of(4).to_arrow()) == [("north", 1, Decimal("1.00"))]
        with pytest.raises(TimeError, match="no longer kept"):
            pipe.table("customers").as_of(1).to_arrow()


def test_rows_and_keys_are_counted_over_all_ticks_and_batches(spark: Any) -> None:
    """A row is deleted as often as it is there, and a key comes again once it has gone, however they are kept."""
    with dbspark.Pipeline("counts", spark=spark, config={"history": 2}) as pipe:
        pipe.create_table("bag", "a BIGINT, b STRING")
        pipe.create_table("keyed", "k BIGINT NOT NULL, b STRING", primary_key=["k"])
        for i in range(20):
            with pipe.transaction() as tx:
                tx.insert("bag", [(1, "x"), (i, "y")])
                tx.delete("keyed", [(1, str(i - 1))] if i else [])
                tx.insert("keyed", [(1, str(i)), (100 + i, "z")])
        with pytest.raises(TransactionError, match=r"\(1, 'x'\) 1 time"), pipe.transaction() as tx:
            tx.apply("bag", {(1, "x"): -21, (3, "y"): -1})
        with pytest.raises(TransactionError, match="two rows of the primary key"), pipe.transaction() as tx:
            tx.insert("keyed", [(105, "another")])
        with pytest.raises(TransactionError, match="more often"), pipe.transaction() as tx:
            tx.delete("keyed", [(1, "18")])
        with pipe.transaction() as tx:
            tx.apply("bag", {(1, "x"): -20, (3, "y"): -1})
            tx.delete("keyed", [(1, "19")])
        assert len(pipe.table("bag").to_arrow()) == 19
        assert len(pipe.table("keyed").to_arrow()) == 20


def test_data_in_all_forms(spark: Any) -> None:
    with dbspark.Pipeline("forms", spark=spark) as pipe:
        pipe.create_table("t", "a BIGINT, b STRING")
        pipe.create_view("v", "SELECT b, count(*) AS n FROM t GROUP BY b")
        with pipe.transaction() as tx:
            tx.insert("t", [(1, "x"), {"a": 2, "b": "x"}])
            tx.insert("t", spark.createDataFrame([(3, "y")], "a BIGINT, b STRING"))
            tx.insert("t", pa.table({"b": ["y"], "a": [4]}))
            tx.insert("t", pa.table({"b": ["z"], "a": [5]}).to_pandas())
            tx.apply("t", pa.table({"a": [1, 9], "b": ["x", "w"], "w": [-1, 3]}), weight="w")
            tx.apply("t", {(7, "q"): 2})
        assert rows(pipe.view("v").to_arrow()) == [("q", 2), ("w", 3), ("x", 1), ("y", 2), ("z", 1)]


def test_a_failing_transaction_changes_nothing(spark: Any) -> None:
    with shop(spark) as pipe:
        with pipe.transaction() as tx:
            tx.insert("orders", [(1, 1, Decimal(1))])
        before = rows(pipe.table("orders").to_arrow())
        with pytest.raises(TransactionError, match=r"orders.*\(7, 1, .*more often"):  # noqa: PT012, SIM117
            with pipe.transaction() as tx:
                tx.insert("customers", [(1, "north")])
                tx.delete("orders", [(7, 1, Decimal(1))])
        with pytest.raises(TransactionError, match="primary key"), pipe.transaction() as tx:
            tx.insert("orders", [(1, 2, Decimal(2))])
        with pytest.raises(TransactionError, match="primary key"), pipe.transaction() as tx:
            tx.insert("orders", [(8, 2, Decimal(2)), (8, 3, Decimal(2))])
        with pytest.raises(SchemaError, match=r"orders.*amount"), pipe.transaction() as tx:
            tx.insert("orders", [(1, 2, "much")])
        with pytest.raises(SchemaError, match="id"), pipe.transaction() as tx:
            tx.insert("orders", [(None, 2, Decimal(2))])
        with pytest.raises(TransactionError, match="no primary key"), pipe.transaction() as tx:
            tx.upsert("customers", [(1, "north")])
        with pytest.raises(ZeroDivisionError), pipe.transaction() as tx:  # noqa: PT012
            tx.insert("orders", [(5, 5, Decimal(5))])
            raise ZeroDivisionError
        with pytest.raises(DbsparkError, match="no table 'nope'"), pipe.transaction() as tx:
            tx.insert("nope", [(1,)])
        assert pipe.tick == 1
        assert rows(pipe.table("orders").to_arrow()) == before
        assert rows(pipe.view("revenue").to_arrow()) == []
        with pipe.transaction() as tx:  # judged by the net: deleted before it is there
            tx.delete("orders", [(9, 1, Decimal(1))])
            tx.insert("orders", [(9, 1, Decimal(1))])
        assert rows(pipe.table("orders").to_arrow()) == before


def test_an_expression_that_fails_undoes_the_transaction(spark: Any) -> None:
    with dbspark.Pipeline("fails", spark=spark) as pipe:
        pipe.create_table("t", "a BIGINT, b BIGINT")
        pipe.create_view("v", "SELECT a, a div b AS q FROM t")
        with pipe.transaction() as tx:
            tx.insert("t", [(6, 3)])
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"), pipe.transaction() as tx:
            tx.insert("t", [(1, 0)])
        assert rows(pipe.table("t").to_arrow()) == [(6, 3)]
        assert rows(pipe.view("v").to_arrow()) == [(6, 2)]
        with pipe.transaction() as tx:
            tx.insert("t", [(8, 2)])
        assert rows(pipe.view("v").to_arrow()) == [(6, 2), (8, 4)]


def test_views_are_filled_shared_and_dropped(spark: Any) -> None:
    with shop(spark) as pipe:
        with pipe.transaction() as tx:
            tx.insert("customers", [(1, "north"), (2, "south")])
            tx.insert("orders", [(i, 1 + i % 2, Decimal(i)) for i in range(10)])
        pipe.create_view("big", "SELECT region FROM revenue WHERE total > 22")
        pipe.create_view("again", REVENUE.replace("total", "t"))
        assert rows(pipe.view("big").to_arrow()) == [("south",)]
        assert [r[:2] for r in rows(pipe.view("again").to_arrow())] == [("north", 5), ("south", 5)]
        with pytest.raises(TimeError):
            pipe.view("big").as_of(0).to_arrow()
        with pipe.transaction() as tx:
            tx.insert("orders", [(10, 1, Decimal(100))])
        assert rows(pipe.view("big").to_arrow()) == [("north",), ("south",)]
        with pytest.raises(DbsparkError, match="is read by"):
            pipe.drop_view("revenue")
        pipe.drop_view("big")
        pipe.drop_view("revenue")
        with pipe.transaction() as tx:
            tx.delete_keys("orders", [(i,) for i in range(11)])
        assert rows(pipe.view("again").to_arrow()) == []
        pipe.drop_view("again")
        pipe.drop_table("orders")
        assert list(pipe.tables) == ["customers"]


def test_subscribers_hear_of_every_change_and_of_nothing_else(spark: Any) -> None:
    with shop(spark) as pipe:
        heard: list[tuple[int, int]] = []
        subscription = pipe.view("revenue").subscribe(lambda changes, tick: heard.append((tick, changes.num_rows)))
        with pipe.transaction() as tx:
            tx.insert("customers", [(1, "north")])
        with pipe.transaction() as tx:
            tx.insert("orders", [(1, 1, Decimal(1))])
        with pipe.transaction() as tx:
            tx.insert("orders", [(2, 1, Decimal(1))])
        subscription.cancel()
        with pipe.transaction() as tx:
            tx.insert("orders", [(3, 1, Decimal(1))])
        assert heard == [(2, 1), (3, 2)]


def test_reopening_finds_everything(spark: Any, tmp_path: Path) -> None:
    where = str(tmp_path / "shop")
    held: Counter[Any] = Counter()
    r = random.Random(5)
    with shop(spark, location=where) as pipe:
        with pipe.transaction() as tx:
            tx.insert("customers", [(i, "ns"[i % 2]) for i in range(5)])
        with pytest.raises(LockError):
            dbspark.Pipeline("shop", location=where, spark=spark)
    for round_ in range(4):
        with dbspark.Pipeline("shop", location=where, spark=spark) as pipe:
            assert list(pipe.tables) == ["orders", "customers"]
            for _ in range(3):
                with pipe.transaction() as tx:
                    fresh = [(100 * pipe.tick + i, r.randrange(5), Decimal(r.randrange(50))) for i in range(4)]
                    tx.upsert("orders", fresh)
                    gone = [row for row in held if r.random() < 0.3]
                    tx.delete("orders", gone)
                held.update(fresh)
                held -= Counter(gone)
            assert rows(pipe.table("orders").to_arrow()) == sorted(held.elements(), key=repr)
            expected: dict[str, list[Decimal]] = {}
            for _, customer, amount in held.elements():
                expected.setdefault("ns"[customer % 2], []).append(amount)
            assert [x[:2] for x in rows(pipe.view("revenue").to_arrow())] == sorted(
                (k, len(v)) for k, v in expected.items()
            )
            assert pipe.tick == 1 + 3 * (round_ + 1)
            assert pipe.view("revenue").as_of(pipe.tick - 1).to_arrow() is not None
            if round_ == 1:
                pipe.create_view("count", "SELECT count(*) AS n FROM orders")
            if round_ >= 1:
                assert pipe.view("count").to_arrow()["n"].to_pylist() == [held.total()]


def test_scripts_of_statements(spark: Any) -> None:
    with dbspark.Pipeline("script", spark=spark) as pipe:
        pipe.sql("""
            -- a table; with a semicolon in a comment
            CREATE TABLE IF NOT EXISTS t (a BIGINT PRIMARY KEY, b STRING COMMENT 'no PRIMARY KEY');
            CREATE TABLE d (x DECIMAL(12,2) PRIMARY KEY, y STRING);
            CREATE TABLE u (a BIGINT, c DECIMAL(10,2), PRIMARY KEY (a));
            CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n FROM t JOIN u USING (a) GROUP BY b;
            INSERT INTO t VALUES (1, 'x;y'), (2, 'z');
            INSERT INTO t (b, a) SELECT upper(b), a + 10 FROM t;
            INSERT INTO u (a) SELECT a FROM t;
            DELETE FROM t WHERE a = 12
        """)
        assert rows(pipe.view("v").to_arrow()) == [("X;Y", 1), ("x;y", 1), ("z", 1)]
        assert pipe.table("t").primary_key == ("a",)
        assert pipe.table("d").primary_key == ("x",)
        assert pipe.table("t").changes(since=0).num_rows == 5
        pipe.sql("DROP VIEW v; DROP TABLE IF EXISTS nothing; DROP TABLE u")
        with pytest.raises(DbsparkError, match="not a statement"):
            pipe.sql("MERGE INTO t USING u ON true")


def test_memory_is_taken_when_it_is_reserved(spark: Any) -> None:
    with dbspark.Pipeline("x", spark=spark, config={"reserve": "96m"}):
        assert PROCESS_ALLOCATOR.mapped_bytes >= 96 << 20


def test_bad_settings_and_names_are_refused(spark: Any) -> None:
    with pytest.raises(ConfigError, match="no setting"):
        dbspark.Pipeline("x", spark=spark, config={"histroy": 3})
    for wrong in ("much", -1, "4 gigs"):
        with pytest.raises(ConfigError, match="amount of memory"):
            dbspark.Pipeline("x", spark=spark, config={"reserve": wrong})
    with dbspark.Pipeline("x", spark=spark) as pipe:
        with pytest.raises(SchemaError, match="not a name"):
            pipe.create_table(" ", "a BIGINT")
        pipe.create_table("t", "a BIGINT")
        with pytest.raises(DbsparkError, match="already"):
            pipe.create_table("t", "a BIGINT")
        with pytest.raises(DbsparkError, match="no view 'v'"):
            pipe.view("v")
    with pytest.raises(DbsparkError, match="closed"):
        pipe.create_table("u", "a BIGINT")
