"""State whose operators are gone: a location is opened all the same, and says which views it fills again."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dbspark
from dbspark.operators.aggregate import GroupAggregate
from dbspark.operators.top_k import TopK
from tests.sql.oracle import rows_of

pytestmark = pytest.mark.spark

VIEWS = {
    "totals": "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    "joined": "SELECT o.id, t.total FROM orders o LEFT JOIN totals t ON o.customer = t.customer",
    "first": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 2",
    "none": "SELECT customer, max(amount) AS most FROM orders WHERE amount > 1000000 GROUP BY customer",
}
ROWS = [(i, i % 3, i * 37 % 101) for i in range(20)]


def opened(spark: Any, where: Path, shards: int | None) -> dbspark.Pipeline:
    return dbspark.Pipeline("shop", spark=spark, location=str(where), shards=shards)


def created(spark: Any, where: Path, shards: int | None) -> None:
    with opened(spark, where, shards) as pipe:
        pipe.create_table("orders", "id BIGINT, customer BIGINT, amount BIGINT", primary_key="id")
        pipe.create_views(VIEWS)
        with pipe.transaction() as tx:
            tx.insert("orders", ROWS)


def check(spark: Any, pipe: dbspark.Pipeline) -> None:
    """Every view is right after the reopening and after a further transaction."""
    for row in ((), (100, 1, 5000)):
        if row:
            with pipe.transaction() as tx:
                tx.insert("orders", [row])
        spark.createDataFrame(pipe.table("orders").to_arrow()).createOrReplaceTempView("orders")
        spark.sql(VIEWS["totals"]).createOrReplaceTempView("totals")
        for name, query in VIEWS.items():
            assert Counter(rows_of(pipe.view(name).to_arrow())) == Counter(rows_of(spark.sql(query).toArrow())), name
    for name in ("orders", "totals"):
        spark.catalog.dropTempView(name)


def warnings(caplog: Any) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "again" in r.getMessage()]


@pytest.mark.parametrize("shards", [None, 2])
def test_a_version_of_an_operator_that_is_not_stored_is_said(
    spark: Any, tmp_path: Path, caplog: Any, monkeypatch: Any, shards: int | None
) -> None:
    created(spark, tmp_path, shards)
    with caplog.at_level(logging.WARNING, "dbspark"):
        with opened(spark, tmp_path, shards):
            pass
        assert not warnings(caplog), "what is stored fits"
        monkeypatch.setattr(GroupAggregate, "version", GroupAggregate.version + 1)
        with opened(spark, tmp_path, shards) as pipe:
            (said,) = warnings(caplog)
            assert "filling joined, none, totals again" in said
            assert "aggregate count(*), sum(" in said
            check(spark, pipe)
        caplog.clear()
        with opened(spark, tmp_path, shards) as pipe:
            assert not warnings(caplog), "it is stored now"
            assert pipe.view("totals").to_arrow().num_rows == 3


def test_a_stateless_operator_of_another_version_moves_those_behind_it(
    spark: Any, tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    created(spark, tmp_path, None)
    monkeypatch.setattr(TopK, "version", TopK.version + 1)
    with caplog.at_level(logging.WARNING, "dbspark"), opened(spark, tmp_path, None) as pipe:
        assert not warnings(caplog), "it keeps nothing, and nothing is behind it"
        check(spark, pipe)


def test_another_time_zone_is_said(spark: Any, tmp_path: Path, caplog: Any) -> None:
    with opened(spark, tmp_path, None) as pipe:
        pipe.create_table("t", "at TIMESTAMP")
        pipe.create_view("hours", "SELECT hour(at) AS h, count(*) AS n FROM t GROUP BY 1")
        pipe.create_view("times", "SELECT DISTINCT at FROM t")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with caplog.at_level(logging.WARNING, "dbspark"), opened(spark, tmp_path, None):
            (said,) = warnings(caplog)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert "filling hours again" in said
    assert "time zone" in said


@pytest.mark.parametrize(("before", "after"), [(2, None), (None, 2)])
def test_shards_instead_of_none_are_no_reason(
    spark: Any, tmp_path: Path, caplog: Any, before: int | None, after: int | None
) -> None:
    """Where the circuit is the same, which it is not for the first of all rows."""
    with opened(spark, tmp_path, before) as pipe:
        pipe.create_table("orders", "id BIGINT, customer BIGINT, amount BIGINT", primary_key="id")
        pipe.create_views({name: query for name, query in VIEWS.items() if name != "first"})
        with pipe.transaction() as tx:
            tx.insert("orders", ROWS)
    with caplog.at_level(logging.WARNING, "dbspark"), opened(spark, tmp_path, after) as pipe:
        assert not warnings(caplog)
        assert pipe.view("totals").to_arrow().num_rows == 3


@pytest.mark.parametrize("shards", [None, 2])
def test_rows_of_views_that_other_operators_made_are_corrected(
    spark: Any, tmp_path: Path, caplog: Any, shards: int | None
) -> None:
    """Of a view without state, of one with state that reads it, and of one that shares nothing with them."""
    old = "SELECT id, customer, amount FROM orders WHERE amount > 40"
    new = "SELECT id, customer, amount FROM orders WHERE amount > 60 OR amount = 0"
    views = {
        "large": old,
        "counts": "SELECT customer, count(*) AS n FROM large GROUP BY customer",
        "others": "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer",
    }
    with opened(spark, tmp_path, shards) as pipe:
        pipe.create_table("orders", "id BIGINT, customer BIGINT, amount BIGINT", primary_key="id")
        pipe.create_views(views)
        with pipe.transaction() as tx:
            tx.insert("orders", ROWS)
        before = {name: Counter(rows_of(pipe.view(name).to_arrow())) for name in views}
        # As if the text had had another meaning when the rows were made.
        pipe._definitions["large"] = {**pipe._definitions["large"], "query": new}
        pipe._commit_definitions()
    wanted = {"large": Counter(r for r in ROWS if r[2] > 60 or r[2] == 0)}
    wanted["counts"] = Counter(Counter(customer for _, customer, _ in wanted["large"]).items())
    wanted["others"] = before["others"]
    assert wanted["large"] - before["large"]
    assert before["large"] - wanted["large"]
    with caplog.at_level(logging.WARNING, "dbspark"), opened(spark, tmp_path, shards) as pipe:
        (said,) = warnings(caplog)
        assert "filling counts again" in said
        now = {name: Counter(rows_of(pipe.view(name).to_arrow())) for name in views}
        assert now == wanted
        assert {name: Counter(tuple(r) for r in pipe.view(name).df().collect()) for name in views} == wanted
        assert pipe.tick == 2
        assert "tick 2 corrects the rows of counts, large" in caplog.text
        changes = pipe.view("large").changes(1).drop_columns(["_tick"]).to_pylist()
        change = Counter({tuple(r.values())[:-1]: r["_weight"] for r in changes})
        want = Counter(wanted["large"])
        want.subtract(before["large"])
        assert change == Counter({row: n for row, n in want.items() if n})
        assert Counter(rows_of(pipe.view("large").as_of(1).to_arrow())) == before["large"]
        assert pipe.view("others").changes(1).num_rows == 0
        tick = pipe.tick
    caplog.clear()
    with caplog.at_level(logging.WARNING, "dbspark"), opened(spark, tmp_path, shards) as pipe:
        assert pipe.tick == tick
        assert not caplog.text, "it is stored now"
        with pipe.transaction() as tx:
            tx.insert("orders", [(100, 1, 5000), (101, 1, 50)])
            tx.delete_keys("orders", [(0,)])
        rows = [r for r in ROWS if r[0] != 0] + [(100, 1, 5000)]
        large = Counter(r for r in rows if r[2] > 60 or r[2] == 0)
        assert Counter(rows_of(pipe.view("large").to_arrow())) == large
        counts = Counter(Counter(customer for _, customer, _ in large).items())
        assert Counter(rows_of(pipe.view("counts").to_arrow())) == counts
