"""On which rows expressions are evaluated: what Spark does not evaluate must not raise here, and what it does must.

Every case is a form (what stands around an expression) with expressions that raise on some rows. Spark says whether the
query raises; if it does, so must the tick, with the same error and without a trace; if not, the views are compared.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dbspark.columnar.frames import arrow_of
from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError, EvaluationError
from dbspark.sql.program import Program
from tests.sql.oracle import Oracle, as_table, difference, frozen, rows_of

TABLES = {
    "t": """id BIGINT, g BOOLEAN, z BIGINT, s STRING, big BIGINT, i INT, d DOUBLE, n BIGINT, arr ARRAY<BIGINT>,
            ea ARRAY<BIGINT>, m MAP<BIGINT, BIGINT>""",
    "u": "id BIGINT, v BIGINT, w BIGINT",
}
INF = float("inf")


def good(number: int) -> tuple[Any, ...]:
    return (number, True, number + 1, str(number), number, 1, 2.5, number, (1, 2, 3), (number, 4), ((1, number),))


def bad(number: int, empty: tuple[int, ...] | None) -> tuple[Any, ...]:
    """A row for which all `RAISING` raise, `g` is false, `n` NULL and the arrays are empty or NULL."""
    return (number, False, 0, "x", 2**63 - 1, 9, INF, None, (1,), empty, None if empty is None else ())


TICKS: list[dict[str, Any]] = [
    {"t": {good(1): 1, good(2): 2}, "u": {(1, 1, 1): 1, (2, 5, 0): 1}},
    {"t": {bad(3, ()): 1, bad(4, None): 1, good(5): 1, good(1): -1}, "u": {(5, 2, 2): 1, (7, 2, 2): 1}},
    {"t": {bad(3, ()): -1, bad(6, ()): 1, good(2): -1}, "u": {(1, 1, 1): -1, (2, 4, 4): 1}},
]

RAISING = {
    "division": "10 div z",
    "remainder": "10 % z",
    "overflow": "big + 1",
    "cast to a number": "CAST(s AS BIGINT)",
    "index of an array": "arr[i]",
    "ceil": "ceil(d / 1e3D)",
    "narrowing": "CAST(CAST(d AS INT) AS BIGINT)",
    "date": "CAST(unix_date(make_date(2024, 1, CAST(20 DIV z AS INT))) AS BIGINT)",
    "text": "CAST(length(repeat('a', CAST(6 DIV z AS INT))) AS BIGINT)",
}

EXPRESSIONS = {
    "case": "CASE WHEN g THEN {e} END",
    "case with else": "CASE WHEN NOT g THEN 0 ELSE {e} END",
    "second case": "CASE WHEN NOT g THEN 0 WHEN {e} > 1 THEN 1 ELSE 2 END",
    "case of a null condition": "CASE WHEN n > 0 THEN {e} END",
    "if": "if(g, {e}, 0)",
    "if that fails always": "if(g, 1, 1 DIV 0)",
    "if nothing": "if(isnull(n), 0, {e})",
    "if of arrays": "if(g, array({e}), array(1L))",
    "if of structs": "if(g, named_struct('a', {e}), named_struct('a', 1L))",
    "coalesce": "coalesce(CASE WHEN NOT g THEN 1L END, {e})",
    "coalesce first": "coalesce({e}, 1)",
    "nvl": "nvl(CASE WHEN NOT g THEN 1L END, {e})",
    "nvl2": "nvl2(n, {e}, 0)",
    "nullif": "nullif(n, {e})",
    "nullif first": "nullif({e}, n)",
    "nanvl": "nanvl(CAST(id AS DOUBLE), CAST({e} AS DOUBLE))",
    "and": "g AND {e} > 0",
    "and after null": "n > 0 AND {e} > 0",
    "and before": "{e} > 0 AND g",
    "or": "NOT g OR {e} > 0",
    "or after null": "n < 0 OR {e} > 0",
    "in after a match": "id IN (id, {e})",
    "in after no match": "id IN (z, {e})",
    "in of null": "n IN (z, {e})",
    "in first": "id IN ({e}, id)",
    "not in": "id NOT IN (id, {e})",
    "sum with null": "n + {e}",
    "product with null": "n * {e}",
    "quotient with null": "n / {e}",
    "remainder with null": "n % {e}",
    "comparison with null": "n < {e}",
    "equality with null": "n = {e}",
    "null-safe equality": "n <=> {e}",
    "sum before null": "{e} + n",
    "greatest": "greatest(n, {e})",
    "round": "round(CAST(n AS DOUBLE) / {e}, 1)",
    "power": "power(n, {e})",
    "substring": "substring(CAST(n AS STRING), 1, CAST({e} AS INT))",
    "like": "CAST(n AS STRING) LIKE CAST({e} AS STRING)",
    "instr": "instr(CAST(n AS STRING), CAST({e} AS STRING))",
    "replace": "replace(CAST(n AS STRING), '1', CAST({e} AS STRING))",
    "lpad": "lpad(CAST(n AS STRING), CAST({e} AS INT) % 10, 'x')",
    "concat": "concat(CAST(n AS STRING), CAST({e} AS STRING))",
    "concat_ws": "concat_ws(',', CAST(n AS STRING), CAST({e} AS STRING))",
    "date_add": "date_add(make_date(2024, CAST(n AS INT), 1), CAST({e} AS INT))",
    "shiftleft": "shiftleft(n, CAST({e} AS INT))",
    "bits": "n & {e}",
    "atan2": "atan2(n, {e})",
    "element_at": "element_at(ea, CAST(least({e}, 1) AS INT))",
    "array_contains": "array_contains(ea, {e})",
    "array": "array(n, {e})",
    "array_repeat": "array_repeat({e}, 2)",
    "array_append": "array_append(ea, {e})",
    "array_position": "array_position(ea, {e})",
    "map value": "m[{e}]",
    "transform": "transform(ea, x -> x + {e})",
    "transform that fails always": "transform(ea, x -> if(g, 1, 1 DIV 0))",
    "transform of an element": "transform(if(g, ea, array()), x -> 10 DIV z)",
    "filter": "filter(ea, x -> x + {e} > 0)",
    "exists": "exists(ea, x -> x + {e} > 1000)",
    "forall": "forall(ea, x -> x + {e} > 0)",
    "exists that stops": "exists(array(id, 0), x -> x = id OR 1 DIV x > 0)",
    "aggregate": "aggregate(ea, 0L, (a, x) -> a + x + {e})",
    "aggregate from": "aggregate(ea, {e}, (a, x) -> a + x)",
    "zip_with": "zip_with(ea, ea, (x, y) -> x + y + {e})",
    "zip_with null": "zip_with(CASE WHEN g THEN ea END, array({e}), (x, y) -> x + y)",
    "transform_values": "transform_values(m, (k, v) -> v + {e})",
    "transform_keys": "transform_keys(m, (k, v) -> k + {e})",
    "map_filter": "map_filter(m, (k, v) -> v + {e} > 0)",
    "map_zip_with": "map_zip_with(m, m, (k, a, b) -> a + {e})",
    "array_sort": "array_sort(ea, (x, y) -> CAST(x - y + 0 * {e} AS INT))",
    "try_add": "try_add(big, 1) + coalesce(n, 0)",
    "try_add of what fails": "try_add(1, {e})",
    "try_divide": "try_divide(10, z)",
    "try_cast": "try_cast(s AS BIGINT)",
    "try_cast of what fails": "try_cast(CAST({e} AS STRING) AS BIGINT)",
    "try_element_at": "try_element_at(arr, i)",
    "shared under guards": "CASE WHEN g THEN {e} END + CASE WHEN g THEN {e} + 1 END",
    "guard inside": "(CASE WHEN g THEN {e} ELSE 0 END) + (CASE WHEN g THEN 1 ELSE 0 END)",
    "struct field": "named_struct('a', CASE WHEN g THEN {e} END).a",
}
"""Around an expression, in a list of SELECT."""

QUERIES = {
    "where": "SELECT id, {e} AS e FROM t WHERE g",
    "where and": "SELECT id FROM t WHERE g AND {e} > 0",
    "where and null": "SELECT id FROM t WHERE n > 0 AND {e} > 0",
    "where of two": "SELECT id FROM t WHERE {e} > 0 AND g",
    "where or": "SELECT id FROM t WHERE NOT g OR {e} > 0",
    "where in": "SELECT id FROM t WHERE id IN (id, {e})",
    "projection below a filter": "SELECT * FROM (SELECT id, g, {e} AS e FROM t) WHERE g",
    "projection that nobody reads": "SELECT id FROM (SELECT id, {e} AS e FROM t)",
    "shared with a guard": "SELECT id, {e} AS a, CASE WHEN g THEN {e} END AS b FROM t",
    **{
        f"filter of {name}": f"SELECT {call} FILTER (WHERE g) AS a, count(*) AS n FROM t WHERE id <> 5"
        for name, call in {
            "sum": "sum({e})", "avg": "avg({e})", "min": "min({e})", "max": "max({e})", "count": "count({e})",
            "count of two": "count(id, {e})", "count distinct": "count(DISTINCT {e})",
            "sum distinct": "sum(DISTINCT {e})", "collect_set": "collect_set({e})",
            "max_by": "max_by(id, {e})",
            "stddev": "stddev({e})", "corr": "corr(id, {e})", "percentile": "percentile({e}, 0.5)",
            "bit_or": "bit_or({e})", "bool_and": "bool_and({e} > 0)", "any": "any({e} > 0)",
            "approximate": "approx_count_distinct({e})", "median": "median({e})", "skewness": "skewness({e})",
            "string_agg": "listagg(CAST({e} AS STRING), '')",
        }.items()
    },
    "filter of collect_list": "SELECT sort_array(collect_list({e}) FILTER (WHERE g)) AS a FROM t",
    "filter by key": "SELECT id, sum({e}) FILTER (WHERE g) AS a FROM t GROUP BY id",
    "filter of null": "SELECT id, sum({e}) FILTER (WHERE n > 0) AS a FROM t GROUP BY id",
    "filters of the same": "SELECT sum({e}) FILTER (WHERE g) AS a, max({e}) FILTER (WHERE n > 0) AS b FROM t",
    "filter beside none": "SELECT sum({e}) FILTER (WHERE g) AS a, max({e}) AS b FROM t",
    "filter that fails": "SELECT sum(id) FILTER (WHERE {e} > 0) AS a FROM t",
    "filter and guard": "SELECT sum({e}) FILTER (WHERE g AND {e} > 0) AS a FROM t",
    "distinct filters": "SELECT count(DISTINCT {e}) FILTER (WHERE g) AS a, count(DISTINCT id) AS b FROM t",
    "filter over a projection": "SELECT sum(e) FILTER (WHERE g) AS a FROM (SELECT g, {e} AS e FROM t)",
    "filter of a subquery": "SELECT sum({e} + (SELECT max(v) FROM u)) FILTER (WHERE g) AS a FROM t",
    "filter through Spark": "SELECT sum({e} + crc32(encode(soundex(s), 'UTF-8'))) FILTER (WHERE g) AS a FROM t",
    "filter with rollup": "SELECT id, sum({e}) FILTER (WHERE g) AS a FROM t GROUP BY ROLLUP (id)",
    "covariance with null": "SELECT round(covar_pop(n, {e}), 6) AS a FROM t",
    "correlation with null": "SELECT round(corr(n, {e}), 6) AS a FROM t",
    **{
        f"{name} with null {side}": f"SELECT round({name}({args}), 6) AS a FROM t"
        for name in ("regr_slope", "regr_intercept", "regr_r2", "regr_sxy")
        for side, args in {"first": "n, {e}", "second": "{e}, n"}.items()
    },
    "largest by null": "SELECT max_by({e}, n) AS a FROM t",
    "count with null": "SELECT count(n, {e}) AS a FROM t",
    "having": "SELECT id, sum({e}) AS a FROM t GROUP BY id, g HAVING g",
    "having over": "SELECT z, max(big) + 1 AS a FROM t GROUP BY z HAVING z > 0",
    "key": "SELECT {e} AS k, count(*) AS n FROM t GROUP BY 1",
    "guarded key": "SELECT CASE WHEN g THEN {e} END AS k, count(*) AS n FROM t GROUP BY 1",
    "window": "SELECT id, sum({e}) OVER (PARTITION BY g) AS a FROM t",
    "window with filter": "SELECT id, sum({e}) FILTER (WHERE g) OVER (PARTITION BY g) AS a FROM t",
    "window of a guard": "SELECT id, sum(CASE WHEN g THEN {e} END) OVER (PARTITION BY id) AS a FROM t",
    "window order": "SELECT id, rank() OVER (PARTITION BY g ORDER BY {e}) AS a FROM t",
    "window over rows": "SELECT id, a FROM (SELECT id, g, sum({e}) OVER (PARTITION BY g) AS a FROM t) WHERE g",
    "lag": "SELECT id, lag(CASE WHEN g THEN {e} END, 1, 0) OVER (PARTITION BY g ORDER BY id, big) AS a FROM t",
    "first of all": "SELECT id FROM t ORDER BY {e}, id LIMIT 2",
    "first of guarded": "SELECT id FROM t ORDER BY CASE WHEN g THEN {e} END, id LIMIT 2",
    "generator": "SELECT id, x FROM t LATERAL VIEW explode(array({e}, 1)) q AS x",
    "guarded generator": "SELECT id, x FROM t LATERAL VIEW explode(CASE WHEN g THEN array({e}, 1) END) q AS x",
    "outer generator": "SELECT id, x FROM t LATERAL VIEW OUTER explode(CASE WHEN g THEN array({e}) END) q AS x",
    "generator below a filter": "SELECT id, x FROM t LATERAL VIEW explode(array({e}, 1)) q AS x WHERE g",
    "column beside a generator": "SELECT {e} AS a, x FROM t LATERAL VIEW explode(ea) q AS x",
    "filtered column beside a generator": "SELECT id, x FROM t LATERAL VIEW explode(ea) q AS x WHERE x + {e} > 0",
    "stack": "SELECT id, x FROM t LATERAL VIEW stack(2, id, CASE WHEN g THEN {e} END) q AS x",
    **{
        f"condition of {how.lower()}": f"SELECT t.id, {right} AS v FROM t {how} u ON t.id = u.id AND {{e}} <> u.w"
        for how, right in {
            "JOIN": "v", "LEFT JOIN": "v", "RIGHT JOIN": "v", "FULL JOIN": "v", "LEFT SEMI JOIN": "1",
            "LEFT ANTI JOIN": "1",
        }.items()
    },
    "comparison beside keys": "SELECT t.id, v FROM t LEFT JOIN u ON t.id = u.id AND {e} < u.w",
    "comparison without keys": "SELECT t.id, v FROM t LEFT JOIN u ON {e} < u.v AND t.g",
    "comparison after another": "SELECT t.id, v FROM t JOIN u ON t.n < u.v AND {e} < u.v",
    "comparison of rows that do not meet": "SELECT t.id, v FROM t JOIN (SELECT * FROM u WHERE id > 9) u ON {e} < u.v",
    "comparison of the same":
        "SELECT t.id, v FROM t LEFT JOIN (SELECT * FROM u WHERE id > 9) u ON {e} < u.v AND {e} > u.w",
    "key of a join": "SELECT t.id, v FROM t JOIN u ON {e} = u.v",
    "key of an outer join": "SELECT t.id, v FROM t LEFT JOIN u ON {e} = u.v",
    "condition of one side": "SELECT t.id, v FROM t LEFT JOIN u ON t.id = u.id AND {e} > 0",
    "exists": "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t.id AND {e} <> u.w)",
    "not exists": "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.id = t.id AND {e} <> u.w)",
    "in a subquery": "SELECT id FROM t WHERE id IN (SELECT u.id FROM u WHERE {e} <> u.w)",
    "exists or": "SELECT id FROM t WHERE id = 3 OR EXISTS (SELECT 1 FROM u WHERE u.id = t.id AND {e} <> u.w)",
    "column above a join": "SELECT {e} + v AS a FROM t JOIN u ON t.id = u.id",
    "condition above a join": "SELECT t.id FROM t JOIN u ON t.id = u.id WHERE {e} <> u.w",
    "lateral join": "SELECT id, a FROM t, LATERAL (SELECT v + {e} AS a FROM u WHERE u.id = t.id)",
    "scalar subquery": "SELECT v, (SELECT max({e} + id) FROM t WHERE t.id = u.id) AS a FROM u",
    "distinct": "SELECT DISTINCT CASE WHEN g THEN {e} END AS a FROM t",
    "union": "SELECT {e} AS a FROM t WHERE g UNION ALL SELECT id FROM t",
    "quotient above an aggregate": "SELECT id, CASE WHEN sum(z) > 0 THEN 10 DIV sum(z) END AS a FROM t GROUP BY id",
}  # fmt: skip


def views() -> dict[str, str]:
    out = {}
    exprs = list(RAISING.values())
    for i, (name, form) in enumerate(EXPRESSIONS.items()):
        several = [exprs[0], exprs[2], exprs[1 + i % (len(exprs) - 1)]] if "{e}" in form else [""]
        listed = [f"{form.replace('{e}', f'({e})')} AS c{k}" for k, e in enumerate(dict.fromkeys(several))]
        out[name] = f"SELECT id, {', '.join(listed)} FROM t"
    for i, (name, form) in enumerate(QUERIES.items()):
        out[f"query: {name}"] = form.replace("{e}", f"({exprs[i % len(exprs)]})")
    return out


VIEWS = views()


def code_of(error: Exception) -> str:
    found = re.search(r"\[([A-Z_0-9]+)", str(error))
    assert found, error
    return found[1]


def answer(spark: Any, query: str) -> Counter[Any] | str:
    """What Spark gives, or the class of the error that it raises."""
    try:
        return Counter(rows_of(arrow_of(spark.sql(query))))
    except (PySparkException, Py4JError) as error:
        return code_of(error)


@pytest.fixture(scope="module")
def states(spark: Any) -> list[dict[str, Any]]:
    """The tables after every tick, and after everything has been deleted."""
    contents: dict[str, Counter[Any]] = {name: Counter() for name in TABLES}
    schemas = {name: Schema.of(columns) for name, columns in TABLES.items()}
    out = []
    for changes in TICKS:
        frames = {}
        for name, held in contents.items():
            held.update(changes[name])
            rows = [row for row, n in held.items() for _ in range(n)]
            frames[name] = spark.createDataFrame(as_table(schemas[name], rows)).coalesce(1)
        out.append(frames)
    out.append({name: spark.createDataFrame(as_table(schema, [])) for name, schema in schemas.items()})
    return out


@pytest.mark.parametrize("name", VIEWS)
def test_what_spark_does_not_evaluate_does_not_raise(spark: Any, states: list[dict[str, Any]], name: str) -> None:
    program = Program(spark)
    for table, columns in TABLES.items():
        program.table(table, columns)
    program.view("v", VIEWS[name])
    circuit = program.circuit()
    held: Counter[Any] = Counter()
    applied: dict[str, Counter[Any]] = {table: Counter() for table in TABLES}
    for tick, changes in enumerate((*TICKS, None)):
        if changes is None:
            changes = {table: {row: -n for row, n in rows.items() if n} for table, rows in applied.items()}
        for table, frame in states[tick].items():
            frame.createOrReplaceTempView(table)
        expected = answer(spark, VIEWS[name])
        if isinstance(expected, str):
            with pytest.raises((DbsparkError, PySparkException)) as raised:
                circuit.tick(changes)
            assert code_of(raised.value) == expected
            return
        for row, n in circuit.tick(changes)["v"]:
            held[frozen(row)] += n
        for table, rows in changes.items():
            applied[table].update(rows)
        held = Counter({row: n for row, n in held.items() if n})
        wrong = difference(held, expected)
        assert not wrong, f"tick {tick} of {VIEWS[name]}:\n{wrong}"


CANCELLING = {
    "inner": "SELECT l.id, r.id AS other FROM l JOIN r ON l.k = r.k AND l.x / r.y > 0",
    "left": "SELECT l.id, r.id AS other FROM l LEFT JOIN r ON l.k = r.k AND l.x / r.y > 0",
    "full": "SELECT l.id, r.id AS other FROM l FULL JOIN r ON l.k = r.k AND l.x / r.y > 0",
    "semi": "SELECT l.id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE l.k = r.k AND l.x / r.y > 0)",
    "anti": "SELECT l.id FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE l.k = r.k AND l.x / r.y > 0)",
    "range": "SELECT l.id, r.id AS other FROM l LEFT JOIN r ON l.k < r.k AND l.x / r.y > 0",
    "above a join": "SELECT l.x / r.y AS q FROM l JOIN r ON l.k = r.k",
    "filter above a join": "SELECT l.id FROM l JOIN r ON l.k = r.k WHERE l.x / r.y > 0",
    "generator above a join": "SELECT l.id, q FROM l JOIN r ON l.k = r.k LATERAL VIEW explode(array(l.x / r.y)) e AS q",
    "aggregate above a join":
        "SELECT l.k, sum(l.x / r.y) FILTER (WHERE l.id > 0) AS q FROM l JOIN r ON l.k = r.k GROUP BY l.k",
    "above a difference": "SELECT 1 / id AS q FROM (SELECT id FROM l EXCEPT SELECT id FROM r)",
}  # fmt: skip


@pytest.mark.parametrize("name", CANCELLING)
def test_pairs_that_are_never_there_do_not_raise(spark: Any, name: str) -> None:
    """A row that is deleted does not meet one that is inserted with it or after it; one that is there does."""
    tables = {"l": "id BIGINT, k BIGINT, x DOUBLE", "r": "id BIGINT, k BIGINT, y DOUBLE"}
    oracle = Oracle(spark, tables, {"v": CANCELLING[name]})
    oracle.tick({"l": {(1, 1, 1.0): 1}})
    oracle.tick({"l": {(1, 1, 1.0): -1}, "r": {(7, 2, 0.0): 1, (8, 2, 0.0): 1}})
    oracle.tick({"l": {(2, 2, 2.0): 1, (3, 1, 3.0): 1}, "r": {(7, 2, 0.0): -1, (8, 2, 0.0): -1, (9, 2, 2.0): 1}})
    oracle.tick({"l": {(4, 2, 2.0): 1, (2, 2, 2.0): -1}, "r": {(5, 2, 1.0): 1}})
    oracle.tick({"l": {(4, 2, 2.0): -1, (3, 1, 3.0): -1}, "r": {(6, 2, 0.0): 1, (6, 1, 0.0): 1}})
    oracle.tick({"l": {(0, 3, 3.0): 1}, "r": {(0, 1, 5.0): 1}})
    if name != "above a difference":
        with pytest.raises(EvaluationError, match="DIVIDE_BY_ZERO"):
            oracle.circuit.tick({"l": {(4, 0, 1.0): 1, (4, 1, 1.0): 1, (4, 2, 1.0): 1}})
    oracle.retract_all()


COMPARED = {
    "inner": "SELECT l.id, r.id AS other FROM l JOIN r ON 10 DIV l.x < r.y",
    "two": "SELECT l.id, r.id AS other FROM l JOIN r ON 10 DIV l.x < r.y AND r.y + 9223372036854775797 > l.id",
    "right": "SELECT l.id, r.id AS other FROM r RIGHT JOIN l ON r.y > 10 DIV l.x",
    "left": "SELECT l.id, r.id AS other FROM l LEFT JOIN r ON 10 DIV l.x < r.y",
    "full": "SELECT l.id, r.id AS other FROM l FULL JOIN r ON 10 DIV l.x < r.y",
    "exists": "SELECT id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE 10 DIV l.x < r.y)",
    "not exists": "SELECT id FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE 10 DIV l.x < r.y)",
    "exists or": "SELECT id FROM l WHERE id = 9 OR EXISTS (SELECT 1 FROM r WHERE 10 DIV l.x < r.y)",
}


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_compared_may_fail_where_there_is_nothing_to_compare_with(spark: Any, name: str) -> None:
    oracle = Oracle(spark, {"l": "id BIGINT, x BIGINT", "r": "id BIGINT, y BIGINT"}, {"v": COMPARED[name]})

    def raises(**changes: Any) -> None:
        with pytest.raises(EvaluationError, match="DIVIDE_BY_ZERO"):
            oracle.circuit.tick(changes)

    oracle.tick({"l": {(1, 0): 1, (2, 5): 1}})
    raises(r={(7, 1): 1})
    oracle.tick({"l": {(3, 0): 1}})
    raises(l={(3, 0): -1}, r={(7, 1): 1})
    oracle.tick({"l": {(3, 0): -1, (1, 0): -1}, "r": {(7, 1): 1, (8, 5): 1}})
    raises(l={(4, 0): 1})
    oracle.tick({"l": {(4, 2): 1}, "r": {(7, 1): -1}})
    oracle.tick({"l": {(4, 0): 1, (5, None): 1}, "r": {(8, 5): -1}})
    oracle.tick({"l": {(4, 0): -1}, "r": {(9, 9): 1}})
    oracle.retract_all()
