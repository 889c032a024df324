"""What Spark evaluates on the rows that are at hand: aggregates over an order, variants."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from dbspark.columnar.frames import is_variant
from dbspark.errors import SchemaError
from dbspark.sql.program import Program
from dbspark.sql.types import from_json
from tests.sql.oracle import Oracle

TABLES = {"t": "a BIGINT, b BIGINT, s STRING", "w": "id BIGINT, v VARIANT"}

LISTS = {
    "in an order": "SELECT a, listagg(s, ',') WITHIN GROUP (ORDER BY s) l FROM t GROUP BY a",
    "in the other order": "SELECT a, listagg(s, ',') WITHIN GROUP (ORDER BY s DESC NULLS LAST) l FROM t GROUP BY a",
    "both orders": """
        SELECT a, listagg(s) WITHIN GROUP (ORDER BY s) l, listagg(s) WITHIN GROUP (ORDER BY s DESC) m
        FROM t GROUP BY a""",
    "by other columns": "SELECT a, listagg(s, '-') WITHIN GROUP (ORDER BY b DESC, s) l FROM t GROUP BY a",
    "by an expression": "SELECT a, listagg(upper(s)) WITHIN GROUP (ORDER BY b % 2, length(s), s) l FROM t GROUP BY a",
    "different ones": "SELECT a, listagg(DISTINCT s, ',') WITHIN GROUP (ORDER BY s) l FROM t GROUP BY a",
    "some rows": """
        SELECT a, listagg(s, ',') WITHIN GROUP (ORDER BY s) FILTER (WHERE b > 1) l, count(*) n FROM t GROUP BY a""",
    "all rows": "SELECT string_agg(s, '|') WITHIN GROUP (ORDER BY s, b) l FROM t",
    "a subquery in the order": """
        SELECT a, listagg(s) WITHIN GROUP (ORDER BY b * (SELECT count(*) FROM w), s) l FROM t GROUP BY a""",
}

VARIANTS = {
    "a field": "SELECT a, to_json(parse_json(s):x) x, parse_json(s):x.y::INT y FROM t",
    "variant_get": """
        SELECT a, variant_get(parse_json(s), '$.x.y', 'int') x, try_variant_get(parse_json(s), '$.x', 'int') y
        FROM t""",
    "a column below": """
        SELECT a, v:x.y::INT x, CAST(v:x AS STRING) y, is_variant_null(v:z) z
        FROM (SELECT a, parse_json(s) v FROM t)""",
    "in a condition": "SELECT a FROM (SELECT a, parse_json(s) v FROM t) WHERE v:x.y::INT > 1",
    "in an aggregate": "SELECT a, max(v:x.y::INT) x FROM (SELECT a, parse_json(s) v FROM t) GROUP BY a",
    "aggregated": "SELECT a, schema_of_variant_agg(parse_json(s)) x FROM t GROUP BY a",
    "in a key": "SELECT v:x.y::INT k, count(*) n FROM (SELECT parse_json(s) v FROM t) GROUP BY v:x.y::INT",
    "in a window": "SELECT a, v:x::STRING x, sum(b) OVER (PARTITION BY a) n FROM (SELECT a, b, parse_json(s) v FROM t)",
    "in lists and structs": """
        SELECT a, l[0]:x.y::INT x, to_json(n) n FROM (
            SELECT a, array(parse_json(s), NULL) l, named_struct('x', parse_json(s)) n FROM t
            UNION ALL SELECT a, NULL, NULL FROM t)""",
    "exploded": "SELECT a, x.key, CAST(x.value AS STRING) w FROM t, LATERAL variant_explode(parse_json(s)) x",
    "a literal": """SELECT a, to_json(parse_json('{"x": [1, "y"]}')) v, parse_json('{"x": 2}'):x::INT x FROM t""",
    "rows of the query": """
        SELECT a, v:x::INT x FROM t JOIN VALUES (1, parse_json('{"x": 5}')), (2, NULL) c(k, v) ON a = k""",
}


@pytest.mark.parametrize("queries", [LISTS, VARIANTS], ids=["lists", "variants"])
def test_views_are_what_spark_says(spark: Any, queries: dict[str, str]) -> None:
    oracle = Oracle(spark, TABLES, {re.sub(r"\W", "_", name): query for name, query in queries.items()})
    json = ['{"x": {"y": 3}}', '{"x": {"y": 1}, "z": null}', '{"x": 5, "k": [1, 2]}', "[1]", "null", None]
    oracle.tick({"t": {(i % 2, i % 3, s): 1 + i % 2 for i, s in enumerate(json * 2)}})
    oracle.tick({"t": {(1, 2, '{"x": {"y": 9}}'): 1, (0, 0, '{"x": {"y": 3}}'): -1, (2, 1, None): 1}})
    oracle.retract_all()


def test_a_column_of_variants_is_one_of_variants_to_spark(spark: Any) -> None:
    program = Program(spark)
    program.table("t", "a BIGINT, s STRING")
    program.view("v", "SELECT a, parse_json(s) AS v, parse_json('{\"k\": 7}') AS c FROM t")
    program.view("x", "SELECT a, v:k::INT AS k, c:k::INT AS c FROM v")
    program.view("y", "SELECT x.a, to_json(v.v) j FROM v JOIN x ON v.a = x.a")
    circuit = program.circuit()
    out = circuit.tick({"t": [(1, '{"k": 5}'), (2, None)]})
    assert sorted(out["x"]) == [((1, 5, 7), 1), ((2, None, 7), 1)]
    assert sorted(out["y"]) == [((1, '{"k":5}'), 1), ((2, None), 1)]
    assert is_variant(program.views["v"].schema.types[1])
    assert sorted(row for row, _ in circuit.tick({"t": {(2, None): -1}})["x"]) == [(2, None, 7)]


def test_arrays_that_hold_variants() -> None:
    variant = from_json("variant")
    assert is_variant(variant)
    assert not is_variant(from_json("binary"))
    assert not is_variant(pa.struct([("value", pa.binary()), ("metadata", pa.binary())]))


def test_strings_of_another_collation_inside_a_struct_are_refused(spark: Any) -> None:
    program = Program(spark)
    program.table("t", "a BIGINT, s STRING")
    with pytest.raises(SchemaError, match="UNICODE_CI"):
        program.view("v", "SELECT named_struct('x', s COLLATE UNICODE_CI) AS c, count(*) AS n FROM t GROUP BY 1")
