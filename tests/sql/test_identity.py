"""Identities of views: node ids of SQL programs as they were when they were first kept, and what makes a difference."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.workloads import tpch
from dbspark.cli import demo_data
from dbspark.identity import encoded
from dbspark.operators.function import identified
from dbspark.sql.program import Program
from tests.identities import compare, declared

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parent / "golden"
T = "k BIGINT, v BIGINT, d DOUBLE, c DECIMAL(12, 2), s STRING, day DATE, at TIMESTAMP, a ARRAY<INT>, m MAP<STRING, INT>"
U = "k BIGINT, w BIGINT, s STRING, lo BIGINT, hi BIGINT"
VIEWS = {
    "columns": "SELECT k, s AS name FROM t",
    "expressions": "SELECT k + v AS x, CASE WHEN d > 1.5 THEN c * 2 ELSE NULL END AS y, concat(s, '-é') AS z FROM t",
    "conditions": "SELECT k FROM t WHERE v BETWEEN 1 AND 9 AND (s LIKE 'a%' OR s IS NULL) AND day < DATE '2024-02-29'",
    "filtered": "SELECT k * 2 AS x, hour(at) AS h FROM t WHERE v IN (1, 2, 3) AND at > TIMESTAMP '2024-01-01 00:00:00'",
    "literals": "SELECT k, array(1, NULL) AS a, map('x', 1) AS m, named_struct('y', X'00ff') AS r, "
    "INTERVAL 1 DAY AS i, 1.50BD AS n, CAST('NaN' AS DOUBLE) AS q FROM t",
    "groups": "SELECT s, count(*) AS n, sum(v) AS x, avg(d) AS mean, min(c) AS least, max(day) AS last FROM t "
    "GROUP BY s",
    "everything": "SELECT count(*) AS n, sum(d) AS total, max(v) AS most FROM t",
    "filters": "SELECT k, sum(v) FILTER (WHERE d > 0) AS x, max(v) FILTER (WHERE d > 0) AS y FROM t GROUP BY k",
    "statistics": "SELECT k, stddev(d) AS a, corr(d, v) AS b, regr_slope(d, v) AS c, skewness(d) AS e "
    "FROM t GROUP BY k",
    "distinct_values": "SELECT k, count(DISTINCT s, v) AS n, sum(DISTINCT v) AS x, collect_set(s) AS y "
    "FROM t GROUP BY k",
    "percentiles": "SELECT k, percentile(v, 0.9) AS p, median(d) AS m, mode(s) AS o FROM t GROUP BY k",
    "by_spark": "SELECT k, approx_count_distinct(v) AS n, histogram_numeric(d, 3) AS h FROM t GROUP BY k",
    "cube": "SELECT k, s, sum(v) AS x FROM t GROUP BY CUBE (k, s)",
    "distinct": "SELECT DISTINCT k, s FROM t",
    "sets": "SELECT k, s FROM t EXCEPT ALL SELECT k, s FROM u",
    "all": "SELECT k FROM t UNION ALL SELECT w FROM u",
    "inner": "SELECT t.k, w FROM t JOIN u ON t.k = u.k AND t.v < u.w",
    "left_outer": "SELECT t.k, w FROM t LEFT JOIN u ON t.k = u.k AND t.v <> u.w",
    "full_outer": "SELECT t.k, u.w FROM t FULL JOIN u ON t.k = u.k AND t.s <=> u.s",
    "ranges": "SELECT t.k, u.k AS other FROM t JOIN u ON t.v BETWEEN u.lo AND u.hi",
    "ranges_that_can_fail": "SELECT t.k, u.k AS other FROM t JOIN u ON t.v < 10 DIV u.w",
    "exists": "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k) OR v > 3",
    "anti": "SELECT k FROM t WHERE k NOT IN (SELECT w FROM u WHERE w IS NOT NULL)",
    "scalar": "SELECT k, v - (SELECT max(w) FROM u) AS x FROM t",
    "scalar_row": "SELECT k, (SELECT w FROM u WHERE hi = 0) AS x FROM t",
    "top": "SELECT k, v FROM t ORDER BY v DESC NULLS LAST, k LIMIT 3 OFFSET 1",
    "top_of_each": "SELECT * FROM (SELECT k, v, row_number() OVER (PARTITION BY s ORDER BY v DESC) AS r FROM t) "
    "WHERE r <= 2",
    "windows": "SELECT k, rank() OVER w AS r, lag(v, 2, 0) OVER w AS p, max(d) OVER (PARTITION BY s) AS y, "
    "sum(v) OVER (PARTITION BY s ORDER BY v ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS x "
    "FROM t WINDOW w AS (PARTITION BY s ORDER BY v)",
    "window_range": "SELECT k, avg(v) OVER (PARTITION BY s ORDER BY at RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND "
    "CURRENT ROW) AS x FROM t",
    "window_by_spark": "SELECT k, collect_list(v) OVER (PARTITION BY s ORDER BY day ROWS 3 PRECEDING) AS x FROM t",
    "time_windows": "SELECT window.start AS b, count(*) AS n FROM t GROUP BY window(at, '10 minutes', '5 minutes')",
    "generated": "SELECT k, x FROM t LATERAL VIEW OUTER explode(a) e AS x",
    "generated_by_spark": "SELECT k, x.* FROM t LATERAL VIEW json_tuple(s, 'a', 'b') x AS a, b",
    "lambdas": "SELECT k, transform(a, (x, i) -> x + i) AS b, filter(a, x -> x > v) AS f, "
    "aggregate(a, 0, (x, y) -> x + y, x -> x * 2) AS g FROM t",
    "nested_lambdas": "SELECT k, transform(a, x -> transform(a, y -> x * y)) AS b FROM t",
    "expressions_by_spark": "SELECT k, format_number(d, 2) AS f, soundex(s) AS g FROM t "
    "WHERE levenshtein(s, 'abc') < 3",
    "recursion": "WITH RECURSIVE r(a, b) AS (SELECT k, w FROM u UNION ALL SELECT r.a, u.w FROM r JOIN u ON r.b = u.k "
    "WHERE u.w < 100) SELECT a, count(*) AS n FROM r GROUP BY a",
    "rows": "SELECT x, count(t.k) AS n FROM (VALUES (1, 'a'), (2, NULL)) AS c(x, y) LEFT JOIN t ON t.v = c.x "
    "GROUP BY x",
}
TPCH = ("q1", "q2", "q4", "q11", "q13", "q15", "q16", "q18", "q21", "q22")
REACH = "SELECT k, w FROM u UNION SELECT r.k, u.w FROM reach r JOIN u ON r.w = u.k"


def program(spark: Any, views: dict[str, Any] = VIEWS, buckets: bool = False) -> Program:
    made = Program(spark)
    made.table("t", T)
    made.table("u", U)
    for name, query in views.items():
        made.view(name, query, buckets=buckets)
    return made


def ids(made: Program) -> dict[str, str]:
    return {name: node.id for name, node in made.builder.graph.outputs.items()}


def one(spark: Any, query: Any) -> str:
    return ids(program(spark, {"v": query}))["v"]


@contextmanager
def settings(spark: Any, **given: str) -> Iterator[None]:
    keys = {"ansi": "spark.sql.ansi.enabled", "zone": "spark.sql.session.timeZone"}
    before = {keys[k]: spark.conf.get(keys[k]) for k in given}
    for k, value in given.items():
        spark.conf.set(keys[k], value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


# ---------------------------------------------------------------------- golden files


def test_views_have_the_ids_of_the_golden_file(spark: Any) -> None:
    made = program(spark)
    made.view("reach", REACH, recursive="k BIGINT, w BIGINT")
    found = ids(made)
    some = ("everything", "top", "inner")
    found |= {f"{n} in buckets": i for n, i in ids(program(spark, {n: VIEWS[n] for n in some}, buckets=True)).items()}
    compare(GOLDEN / "views.json", found)


def test_the_views_of_the_demo_have_the_ids_of_the_golden_file(spark: Any) -> None:
    made = Program(spark)
    for name, table in demo_data.TABLES.items():
        made.table(name, table.columns, (table.key,))
    for name, (query, recursive, *_) in demo_data.VIEWS.items():
        made.view(name, query, recursive=recursive)
    compare(GOLDEN / "demo.json", ids(made))


def test_the_queries_of_tpch_have_the_ids_of_the_golden_file(spark: Any) -> None:
    made = Program(spark)
    for name, ddl in tpch.TABLES.items():
        made.table(name, ddl)
    for name in TPCH:
        made.view(name, tpch.QUERIES[name])
    compare(GOLDEN / "tpch.json", ids(made))


# ---------------------------------------------------------------------- what makes no difference, and what does


def test_ids_do_not_depend_on_what_has_been_analysed_before(spark: Any) -> None:
    """Spark numbers columns and lambda variables through; tables are made in another order."""
    program(spark, {"one": VIEWS["lambdas"], "other": VIEWS["windows"]})
    found = ids(program(spark, dict(reversed(VIEWS.items()))))
    golden = json.loads((GOLDEN / "views.json").read_text())
    assert found == {name: node for name, node in golden.items() if name in VIEWS}


def test_sets_of_distinct_values_are_in_the_order_of_the_query(spark: Any) -> None:
    """Spark orders them by hashes of the numbers of columns."""
    query = (
        "SELECT k, count(DISTINCT s, v) AS n, sum(DISTINCT v) AS x, collect_set(s) AS y, sum(d) AS z, "
        "count(DISTINCT v + 1) FILTER (WHERE d > 0) AS w, max(DISTINCT c) AS m FROM t GROUP BY k"
    )
    seen = set()
    for i in range(6):
        spark.range(1).selectExpr("id", *(f"id + {j} AS x{j}" for j in range(i)))
        seen.add(one(spark, query))
    assert len(seen) == 1


def test_names_of_lambda_variables_make_no_difference(spark: Any) -> None:
    from pyspark.sql import functions as f

    named = [one(spark, f"SELECT transform(a, {x} -> {x} + v) AS b FROM t") for x in ("x", "other")]
    assert named[0] == named[1]
    assert one(spark, "SELECT transform(a, x -> transform(a, y -> x)) AS b FROM t") != one(
        spark, "SELECT transform(a, x -> transform(a, y -> y)) AS b FROM t"
    )
    made = Program(spark)
    made.table("t", T)
    for name in ("v", "w"):  # Spark gives another name to the variable of every Python lambda
        made.view(name, made.frame("t").select(f.transform("a", lambda x: x + 1).alias("b")))
    assert len(set(ids(made).values())) == 1


def test_the_time_zone_and_the_mode_make_a_difference(spark: Any) -> None:
    some = ("filtered", "expressions", "by_spark", "window_by_spark", "expressions_by_spark", "left_outer", "generated")
    for query in (VIEWS[name] for name in some):
        seen = {one(spark, query)}
        with settings(spark, zone="Europe/Zurich"):
            seen.add(one(spark, query))
        with settings(spark, ansi="false"):
            seen.add(one(spark, query))
        assert len(seen) == 3, query


FLAGGED = "(SELECT k, v, d > 1 AS x, d > 2 AS y FROM t)"
DIFFERENT = [
    (
        f"SELECT k, collect_list(v) FILTER (WHERE {flag}) OVER (PARTITION BY k) AS n, x, y FROM {FLAGGED}"
        for flag in ("x", "y")
    ),
    (f"SELECT soundex({x}) AS x FROM t" for x in ("s", "concat(s, s)")),
    (f"SELECT array({x}) AS x FROM t" for x in ("1", "1L", "1.0BD", "1.00BD", "'1'")),
    (f"SELECT histogram_numeric(d, {n}) AS x FROM t" for n in (3, 4)),
    (f"SELECT k FROM t WHERE v > {x}" for x in ("1", "2", "k")),
]


@pytest.mark.parametrize("queries", [list(queries) for queries in DIFFERENT])
def test_different_queries_are_different_nodes(spark: Any, queries: list[str]) -> None:
    assert len({one(spark, query) for query in queries}) == len(queries)


# ---------------------------------------------------------------------- functions in Python


def by(spark: Any, function: Callable[..., Any], query: str = "SELECT k, f(v) AS x FROM t WHERE f(v) > 2") -> str:
    from pyspark.sql.functions import udf

    spark.udf.register("f", udf(function, "bigint"))
    return one(spark, query)


def test_a_python_function_is_identified_by_what_it_does(spark: Any) -> None:
    def first(x):
        return x + 1

    def renamed(x):
        # a line more, and another name

        return x + 1

    assert by(spark, first) == by(spark, first) == by(spark, renamed) == by(spark, lambda x: x + 1)
    assert by(spark, first) != by(spark, lambda x: x + 2)


def test_a_python_function_may_declare_what_it_is(spark: Any) -> None:
    first, other = identified("plus")(lambda x: x + 1), identified("plus")(lambda x: 1 + x)
    assert by(spark, first) == by(spark, other)
    assert by(spark, first) != by(spark, identified("plus", 2)(lambda x: x + 1))
    assert by(spark, first) != by(spark, lambda x: x + 1)


class Adding:
    def __init__(self, number):
        self.number = number

    def __call__(self, x):
        return x + self.number


def test_a_function_that_cannot_be_described_is_warned_about(spark: Any, caplog: Any) -> None:
    two, three = Adding(2), Adding(3)
    with caplog.at_level(logging.WARNING, "dbspark"):
        ids = {by(spark, lambda x: two(x)), by(spark, lambda x: three(x))}
    assert len(ids) == 2
    assert "have no exact description" in caplog.text
    assert "identified(name, version)" in caplog.text


def test_arguments_of_a_python_function_are_told_apart_by_column_not_by_name(spark: Any) -> None:
    from pyspark.sql.functions import udf

    spark.udf.register("g", udf(lambda x, y: x - y, "bigint"))
    joined = "FROM t JOIN (SELECT k, w AS v FROM u) u ON t.k = u.k"
    assert one(spark, f"SELECT g(t.v, u.v) AS x {joined}") != one(spark, f"SELECT g(u.v, t.v) AS x {joined}")


def test_functions_over_whole_partitions_are_told_apart(spark: Any) -> None:
    def one(frames):
        yield from frames

    def other(frames):
        for frame in frames:
            yield frame.head(1)

    made = Program(spark)
    made.table("t", "k BIGINT, v BIGINT")
    for name, function in (("v", one), ("w", one), ("x", other)):
        made.view(name, made.frame("t").mapInPandas(function, "k BIGINT, v BIGINT"))
    found = ids(made)
    assert found["v"] == found["w"] != found["x"]


def test_every_kind_of_step_is_in_a_view(spark: Any) -> None:
    made = program(spark)
    # A node that Spark runs and that nothing here has a form for; no query of Spark's SQL gives one that is shared.
    made.view("node", made.frame("t").select("k").mapInPandas(lambda frames: frames, "k BIGINT"))
    made.view("nested", "SELECT count(*) AS n, max(r) AS r FROM (SELECT named_struct('x', k) AS r FROM t) GROUP BY r.x")
    everything = b"".join(encoded(node.operator) for node in made.builder.graph if node.operator is not None)
    kinds = {c.kind for c, name in declared().items() if name.startswith("dbspark.sql.")}
    assert len(kinds) > 5
    assert {kind for kind in kinds if encoded(kind) not in everything} == set()
