"""Names of tables and views as users write them: in any case, and any that Spark takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import dbspark
from dbspark.connectors.stored_tables import StoredTable
from dbspark.errors import DbsparkError, SchemaError, StoreError

ODD_NAMES = ["größe", "my view", "a.b", "a`b", "1x"]


@pytest.fixture
def pipe(spark: Any) -> Iterator[dbspark.Pipeline]:
    with dbspark.Pipeline("names", spark=spark) as made:
        made.create_table("Orders", "id BIGINT, Amount INT", primary_key=["ID"])
        made.create_view("Totals", "SELECT sum(amount) AS total FROM ORDERS")
        yield made


def test_names_ignore_case_in_every_call(pipe: dbspark.Pipeline) -> None:
    assert pipe.table("orders").primary_key == ("id",)
    seen: list[int] = []
    subscription = pipe.view("TOTALS").subscribe(lambda changes, tick: seen.append(tick))
    with pipe.transaction() as tx:
        tx.insert("ORDERS", [(1, 10)])
        tx.upsert("orders", [(1, 20)])
        tx.delete_keys("Orders", [(5,)])
    subscription.cancel()
    assert seen == [1]
    assert pipe.view("totals").to_arrow().to_pylist() == [{"total": 20}]
    assert pipe.view("totals").as_of(0).to_arrow().to_pylist() == [{"total": None}]
    assert pipe.view("totals").name == "Totals"
    assert pipe.explain("TOTALS") == pipe.explain("Totals")
    assert pipe.frame("ORDERS").columns == ["id", "Amount"]
    assert pipe.query("SELECT amount FROM orders").collect()[0][0] == 20
    pipe.sql("INSERT INTO orders (ID, AMOUNT) VALUES (2, 5); DELETE FROM oRDERS WHERE id = 1")
    assert pipe.view("totals").to_arrow().to_pylist() == [{"total": 5}]
    for name in ("ORDERS", "totals", "`TOTALS`"):
        with pytest.raises(DbsparkError, match="already, and names ignore case"):
            pipe.create_table(name, "x INT")
    pipe.sql("CREATE TABLE IF NOT EXISTS ORDERS (x INT); CREATE VIEW IF NOT EXISTS totals AS SELECT 1 AS one")
    pipe.sql("DROP VIEW IF EXISTS TOTAL; DROP VIEW TOTALS")
    pipe.drop_table("orders")
    assert (list(pipe.tables), list(pipe.views)) == ([], [])


def test_a_session_that_tells_names_apart_is_respected(pipe: dbspark.Pipeline, spark: Any) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(DbsparkError, match=r"no table 'orders'.*did you mean 'Orders'"):
            pipe.table("orders")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_an_unknown_name_comes_with_the_nearest_one(pipe: dbspark.Pipeline) -> None:
    with pytest.raises(DbsparkError, match=r"no view 'totls' .did you mean 'Totals'.*the views are Totals"):
        pipe.view("totls")
    with pytest.raises(DbsparkError, match="no view 'orders'; 'Orders' is a table"):
        pipe.view("orders")
    with pytest.raises(DbsparkError, match="the name of a table is text, not 5"):
        pipe.table(5)  # type: ignore[arg-type]
    with pytest.raises(DbsparkError, match=r"no table 'ordrs' .did you mean 'Orders'"), pipe.transaction() as tx:
        tx.insert("ordrs", [(1, 1)])
    with pytest.raises(DbsparkError, match=r"there is no column 'amnt' .did you mean 'Amount'"):
        pipe.sql("INSERT INTO orders (id, amnt) VALUES (1, 2)")
    assert pipe.tick == 0


def test_names_of_any_letters_live_on_disk_and_in_scripts(tmp_path: Any, spark: Any) -> None:
    location = str(tmp_path / "state")
    expected = pa.table({"n": pa.array([2], pa.int64())})
    with dbspark.Pipeline("odd", location=location, spark=spark) as pipe:
        for i, name in enumerate(ODD_NAMES):
            text = "`" + name.replace("`", "``") + "`"
            pipe.sql(f"CREATE TABLE `t {i}` (`a b` INT PRIMARY KEY); INSERT INTO `t {i}` (`a b`) VALUES (1), (2), (3)")
            pipe.sql(f"CREATE VIEW {text} AS SELECT count(*) AS n FROM `t {i}`")
            pipe.create_view(f"of {name}", f"SELECT n FROM {text}")
            pipe.sql(f"DELETE FROM `t {i}` WHERE `a b` = 3")
            assert pipe.query(f"SELECT n FROM {text}").collect()[0][0] == 2
            assert pipe.view(text).name == name
        got: list[int] = []
        feed = pipe.view("a.b").write_stream(lambda rows, tick: got.append(tick), name="s")
        feed.processAllAvailable()
    with dbspark.Pipeline("odd", location=location, spark=spark) as pipe:
        assert set(pipe.views) == {*ODD_NAMES, *(f"of {name}" for name in ODD_NAMES)}
        pipe.create_view("a", "SELECT 1 AS one")  # its sinks are not those of `a.b`
        pipe.drop_view("a")
        pipe.view("A.B").forget_stream("s")
        for name in ODD_NAMES:
            assert pipe.view(name.title()).to_arrow() == expected
            assert pipe.view(f"of {name}").to_arrow() == expected
            pipe.drop_view(f"Of {name}")
        read = spark.read.format("dbspark").option("location", location)
        assert read.option("view", "MY VIEW").load().collect()[0][0] == 2
    with pytest.raises(StoreError, match=r"no view 'my vieu'.*did you mean 'my view'"):
        StoredTable(location, "view", "my vieu").schema()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("a INT, A STRING", "table 't' has columns 'a' and 'A', which Spark cannot tell apart"),
        ("a INT, _weight BIGINT", "table 't' has a column '_weight': changes\\(\\) adds columns"),
        ("a INT, _TICK BIGINT", "table 't' has a column '_TICK'"),
    ],
)
def test_columns_that_would_be_in_the_way_are_refused(pipe: dbspark.Pipeline, columns: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        pipe.create_table("t", columns)
    query = "SELECT " + ", ".join(f"1 AS {c.split()[0]}" for c in columns.split(", "))
    with pytest.raises(SchemaError, match=message.replace("table 't'", "view 'v'")):
        pipe.create_view("v", query)
    assert (list(pipe.tables), list(pipe.views)) == (["Orders"], ["Totals"])


def test_names_of_any_letters_work_on_shards(spark: Any) -> None:
    with dbspark.Pipeline("odd shards", spark=spark, shards=2) as pipe:
        pipe.create_table("a", "id INT", primary_key=["id"])
        pipe.create_table("a b", "id INT", primary_key=["id"])
        pipe.create_view("of both", "SELECT count(*) AS n FROM a JOIN `a b` USING (id)")
        with pipe.transaction() as tx:
            tx.insert("A", [(1,), (2,)])
            tx.insert("A B", [(2,), (3,)])
        assert pipe.view("Of Both").to_arrow().to_pylist() == [{"n": 1}]
        assert sorted(r[0] for r in pipe.table("A b").df().collect()) == [2, 3]
