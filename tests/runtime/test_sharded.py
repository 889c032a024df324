"""Pipelines on shards: the same transactions, the same answers, in one Spark job each."""

from collections import Counter

import pytest

import dbspark
from dbspark.errors import TransactionError
from dbspark.runtime import exchange as superstep
from tests.circuit.test_nested import closure
from tests.sql.oracle import difference, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("exchange")]

ORDERS = "id BIGINT, customer BIGINT, amount BIGINT"
CUSTOMERS = "customer BIGINT, region STRING"
VIEWS = {
    "revenue": "SELECT region, count(*) AS n, sum(amount) AS total FROM orders JOIN customers USING (customer) "
    "GROUP BY region",
    "everything": "SELECT count(*) AS n, max(amount) AS most FROM orders",
    "first": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3",
    "unknown": "SELECT DISTINCT o.customer FROM orders o LEFT ANTI JOIN customers c ON o.customer = c.customer",
    "ranks": "SELECT id, rank() OVER (PARTITION BY customer ORDER BY amount) AS r FROM orders",
}
OF_ALL = {
    "ends": "SELECT min(amount) AS least, max(customer) AS last, avg(amount) AS mean, sum(amount) AS total, "
    "count_if(amount > 50) AS many, stddev(amount / 7) AS spread FROM orders WHERE amount <> 3",
    "next": "SELECT amount FROM orders WHERE customer < 6 ORDER BY amount DESC LIMIT 3 OFFSET 2",
    "of_join": "SELECT max(region) AS r, count(*) AS n FROM orders JOIN customers USING (customer)",
}
"""Of all rows, so that shards combine what they have."""


def created(spark, shards, **more):
    pipe = dbspark.Pipeline("shop", spark=spark, shards=shards, **more)
    pipe.create_table("orders", ORDERS, primary_key=["id"])
    pipe.create_table("customers", CUSTOMERS)
    return pipe


def check(spark, pipe, views=None, names=None):
    views = views or VIEWS | OF_ALL
    for name in pipe.tables:
        spark.createDataFrame(pipe.table(name).to_arrow()).createOrReplaceTempView(name)
    try:
        for name in pipe.views if names is None else names:
            found = Counter(rows_of(pipe.view(name).to_arrow()))
            assert not difference(found, Counter(rows_of(spark.sql(views[name]).toArrow()))), name
    finally:
        for name in pipe.tables:
            spark.catalog.dropTempView(name)


def load(pipe, spark=None):
    orders = [(i, i % 7, i * 37 % 101) for i in range(60)]
    with pipe.transaction() as tx:
        tx.insert("customers", [(c, "north" if c % 2 else "south") for c in range(5)])
        tx.insert("orders", orders if spark is None else spark.createDataFrame(orders, ORDERS).repartition(3))


def change(pipe):
    with pipe.transaction() as tx:
        tx.upsert("orders", [(3, 6, 1000), (61, 1, 5), (3, 2, 900)])
        tx.delete_keys("orders", [(4,), (5,)])
        tx.delete("customers", [(0, "south")])
        tx.insert("customers", [(6, "west")])


@pytest.mark.parametrize("shards", [1, 3])
def test_views_are_what_spark_says_after_every_transaction(spark, shards, exchange):
    with created(spark, shards) as pipe:
        for name in ("revenue", "everything", "first"):
            pipe.create_view(name, VIEWS[name])
        for name, query in OF_ALL.items():
            pipe.create_view(name, query)
        seen = []
        pipe.view("everything").subscribe(lambda changes, tick: seen.append((tick, len(changes))))
        load(pipe, spark)
        check(spark, pipe)
        assert [tuple(row) for row in pipe.view("everything").df().collect()] == [(60, 100)]
        assert [tuple(row) for row in pipe.query("SELECT n + 1 FROM everything").collect()] == [(61,)]
        for name in ("unknown", "ranks"):  # on tables that hold something
            pipe.create_view(name, VIEWS[name])
        change(pipe)
        check(spark, pipe)
        assert pipe.view("everything").as_of(1).to_arrow().to_pylist() == [{"n": 60, "most": 100}]
        assert seen == [(1, 2), (2, 2)]
        assert pipe.last_progress["numOutputRows"]["everything"] == 2
        assert pipe.last_progress["exchange"]["name"] == exchange
        if exchange == "resident":
            assert [w["shard"] for w in pipe.status["exchange"]["workers"]] == list(range(shards))
            assert (pipe.last_progress["exchange"]["exchangedBytes"] > 0) == (shards > 1)
        pipe.drop_view("revenue")
        with pipe.transaction() as tx:
            for name in pipe.tables:
                tx.delete(name, pipe.table(name).to_arrow())
        check(spark, pipe)
        # Aggregates that speak of no rows.
        assert rows_left(pipe) == {"everything": 1, "ends": 1, "of_join": 1}


def rows_left(pipe):
    """Rows that circuits keep, by the view for which they do."""
    runtime, graph = pipe._state_reader, pipe._program.builder.graph
    left = {}
    for name, by_shard in runtime._records.items():
        if name in graph.nodes:
            if runtime._store is None:
                rows = runtime._transport.sizes(consolidated=True)[name][0]
            else:
                rows = sum(runtime._store.spine(r).consolidated().rows for kept in by_shard.values() for r in kept)
            if rows:
                left[next(v for v, out in graph.outputs.items() if out.id == name or name in _below(out))] = rows
    return left


def _below(node):
    return {i.id for i in node.inputs}.union(*(_below(i) for i in node.inputs))


def test_a_transaction_that_fails_on_a_shard_has_not_happened(spark):
    with created(spark, 2) as pipe:
        pipe.create_view("everything", VIEWS["everything"])
        load(pipe)
        with pytest.raises(TransactionError, match="more often than it is there"), pipe.transaction() as tx:
            tx.apply("orders", {(100, 1, 1): 1, (1, 1, 1): -1})
        with pytest.raises(dbspark.DbsparkError, match="customer"), pipe.transaction() as tx:
            tx.insert("orders", spark.createDataFrame([(1, "x")], "id BIGINT, client STRING"))
        assert pipe.tick == 1
        check(spark, pipe)
        change(pipe)
        check(spark, pipe)


def test_state_is_opened_with_any_number_of_shards(spark, tmp_path):
    location = str(tmp_path / "state")
    for shards in (None, 3, 2, None):
        with dbspark.Pipeline("shop", location=location, spark=spark, shards=shards) as pipe:
            if not pipe.tables:
                pipe.create_table("orders", ORDERS, primary_key=["id"])
                pipe.create_table("customers", CUSTOMERS)
                for name, query in VIEWS.items():
                    pipe.create_view(name, query)
                load(pipe)
            if "ends" not in pipe.views and shards is not None:
                for name, query in OF_ALL.items():
                    pipe.create_view(name, query)
            check(spark, pipe)
            before = pipe.view("everything").to_arrow()
            with pipe.transaction() as tx:
                tx.upsert("orders", [(200 + pipe.tick, 1, 300 + pipe.tick)])
            check(spark, pipe)
            assert pipe.view("everything").as_of(pipe.tick - 1).to_arrow() == before
    with dbspark.Pipeline("shop", location=location, spark=spark, config={"read_only": True}) as pipe:
        check(spark, pipe)
        assert pipe.tick == 5


REACH = "SELECT src, dst FROM edges UNION SELECT r.src, e.dst FROM reach r JOIN edges e ON r.dst = e.src"
WALKS = """
    WITH RECURSIVE r AS (SELECT src, dst, 0 AS n FROM edges
                         UNION ALL SELECT r.src, e.dst, n + 1 FROM r JOIN edges e ON r.dst = e.src WHERE n < 2)
    SELECT src, count(*) AS walks, max(n) AS longest FROM r GROUP BY src"""


def test_recursive_views_are_iterated_by_all_shards(spark, tmp_path):
    """Opened with any number of shards, and made on tables that hold something."""
    edges = {(i, i + 1) for i in range(5)}
    for shards in (None, 3, 2, None):
        with dbspark.Pipeline("graph", location=str(tmp_path), spark=spark, shards=shards) as pipe:
            if not pipe.tables:
                pipe.create_table("edges", "src BIGINT, dst BIGINT")
                pipe.create_view("reach", REACH, recursive="src BIGINT, dst BIGINT")
                with pipe.transaction() as tx:
                    tx.insert("edges", sorted(edges))
            if shards == 3:
                pipe.create_view("walks", WALKS)
                pipe.create_view("counted", "SELECT src, count(*) AS n FROM reach GROUP BY src")
                (loop,) = [n.id for n in pipe._program.builder.graph if n.label == "fixpoint of reach"]
                kept = pipe._state_reader._records[loop].values()
                assert [sum(pipe._state_reader._store.spine(k[i]).rows > 0 for k in kept) for i in range(3)] == [
                    3,
                    3,
                    3,
                ]
            back, gone = (5 - pipe.tick, pipe.tick), (pipe.tick, pipe.tick + 1)
            with pipe.transaction() as tx:
                tx.insert("edges", [back])
                tx.delete("edges", [gone])
            edges = (edges | {back}) - {gone}
            assert set(rows_of(pipe.view("reach").to_arrow())) == closure(edges)
            check(spark, pipe, {"walks": WALKS}, list(pipe.views)[1:2])
            for name in list(pipe.views)[2:]:
                counted = Counter(src for src, _ in closure(edges))
                assert set(rows_of(pipe.view(name).to_arrow())) == set(counted.items())
            if pipe.tick == 5:
                with pipe.transaction() as tx:
                    tx.delete("edges", pipe.table("edges").to_arrow())
                assert not any(pipe._state_reader._circuit.state_rows().values())
    assert pipe.tick == 6


def test_a_hot_key_does_not_pin_one_shard(spark, tmp_path):
    """Nearly all orders are of one customer: the few customers go everywhere, and the orders stay where they lie."""
    query = "SELECT o.id, c.region FROM orders o JOIN customers c ON o.customer = c.customer"
    every = "SELECT c.region, o.amount FROM customers c LEFT JOIN orders o ON c.customer = o.customer AND o.id < 10"
    with created(spark, 3, location=str(tmp_path / "state")) as pipe:
        pipe.create_view("of", query)
        with pipe.transaction() as tx:
            tx.insert("customers", [(0, "north"), (1, "south")])
            tx.insert(
                "orders", spark.range(12_000).selectExpr("id", "if(id % 50 = 0, 1L, 0L) AS customer", "id AS amount")
            )
        for order in (1, 2):
            with pipe.transaction() as tx:
                tx.delete_keys("orders", [(order,)])
                tx.upsert("orders", [(20_000 + order, 1, 5)])
        check(spark, pipe, {"of": query})
        assert list(pipe._state_reader._join_policies.values()) == [("balance", "broadcast")]
        (join,) = pipe._state_reader._join_policies
        orders, customers = (
            pipe._state_reader._records[side.id] for side in pipe._program.builder.graph.nodes[join].inputs
        )
        rows = [pipe._state_reader._store.spine(kept[0]).rows for kept in orders.values()]
        assert len(rows) == 3
        assert max(rows) < 6_000
        assert [pipe._state_reader._store.spine(kept[0]).rows for kept in customers.values()] == [2, 2, 2]
        # A view that reads the customers as well, and must not find each of them three times.
        pipe.create_view("all", every)
        assert pipe._state_reader._join_policies == {}
        check(spark, pipe, {"of": query, "all": every})
    for shards in (2, None):
        with dbspark.Pipeline("shop", location=str(tmp_path / "state"), spark=spark, shards=shards) as pipe:
            with pipe.transaction() as tx:
                tx.delete_keys("orders", [(7,), (50,)])
                tx.insert("customers", [(1, "west")])
            check(spark, pipe, {"of": query, "all": every})


BY_SPARK = {
    "sounds": "SELECT customer, upper(region) AS r, soundex(region) AS s, twice(customer) AS t FROM customers",
    "some": "SELECT id, amount FROM orders WHERE amount > 5 AND soundex(CAST(amount AS STRING)) <> '7' "
    "AND assert_true(amount < 5000) IS NULL",
    "counts": "SELECT soundex(region) AS s, soundex(max(region)) AS m, sum(twice(o.customer)) AS t, "
    "min(soundex(concat(region, 'y'))) AS y, count(*) AS n "
    "FROM orders o JOIN customers c ON o.customer = c.customer AND soundex(concat(region, amount)) <> 'N631' "
    "GROUP BY soundex(region)",
    "made": "SELECT customer, a FROM customers LATERAL VIEW json_tuple(concat('{\"a\": \"', region, '\"}'), 'a') AS a",
}


def test_what_only_spark_can_evaluate_is_asked_between_levels(spark, tmp_path):
    from pyspark.sql.functions import udf

    spark.udf.register("twice", udf(lambda x: None if x is None else 2 * x, "bigint"))
    with created(spark, 2, location=str(tmp_path)) as pipe:
        load(pipe)
        for name, query in BY_SPARK.items():
            pipe.create_view(name, query)
        with pytest.raises(dbspark.DbsparkError, match="is not true"), pipe.transaction() as tx:
            tx.upsert("orders", [(1000, 1, 6000)])
        assert pipe.tick == 1
        change(pipe)
        check(spark, pipe, BY_SPARK)
    with dbspark.Pipeline("shop", location=str(tmp_path), spark=spark, shards=3) as pipe:
        with pipe.transaction() as tx:
            tx.upsert("orders", [(300, 1, 7), (7, 2, 8)])
            tx.insert("customers", [(2, None), (2, "south-west")])
        check(spark, pipe, BY_SPARK)


def test_groups_that_only_spark_can_evaluate_are_refused_by_name(spark):
    with created(spark, 2) as pipe:
        with pytest.raises(dbspark.DbsparkError, match=r"NOT_SHARDED.THROUGH_SPARK.*HistogramNumeric.*shards=None"):
            pipe.create_view("v", "SELECT histogram_numeric(amount, 3) AS h FROM orders")
        assert list(pipe.views) == []


def test_much_that_a_tick_is_given_goes_through_a_file(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(superstep, "MAX_PROPERTY_BYTES", 0)
    with created(spark, 2, location=str(tmp_path)) as pipe:
        pipe.create_view("everything", VIEWS["everything"])
        load(pipe)
        check(spark, pipe)
        assert {f.name for f in tmp_path.glob("part-*")} == parts(pipe), "what the tick was given is gone"


def parts(pipe):
    """The files of tasks in which something is kept."""
    records = [r for by_shard in pipe._state_reader._records.values() for kept in by_shard.values() for r in kept]
    files = {e.place.file for r in records for e in r.entries if e.place is not None}
    return {file for file in files if file.startswith("part-")}


def test_what_is_not_a_number_of_shards_is_refused(spark):
    with pytest.raises(dbspark.DbsparkError, match="shards"):
        dbspark.Pipeline("shop", spark=spark, shards=0)
