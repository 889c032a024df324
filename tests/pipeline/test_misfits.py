"""Data that do not fit a table, and definitions that are refused: each error names what, where and what to do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import dbspark
from dbspark.errors import DbsparkError, SchemaError

TABLE = "id BIGINT NOT NULL, s STRING, d DECIMAL(5, 2), at DATE, a ARRAY<INT>, v VARIANT"
ROW = {"id": 1, "s": "x", "d": Decimal(1), "at": dt.date(2024, 1, 1), "a": [1], "v": None}
ARROW = pa.table({"id": pa.array([1], pa.int64()), "s": ["x"]})


@pytest.fixture(scope="module")
def table() -> Iterator[dbspark.Pipeline]:
    with dbspark.Pipeline("misfits") as pipe:
        pipe.create_table("t", TABLE, primary_key=["id"])
        pipe.create_table("u", "id BIGINT NOT NULL, s STRING")
        yield pipe


@pytest.mark.parametrize("kind", ["insert", "delete", "upsert", "apply"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "expected rows .*given None \\(NoneType\\)"),
        (5, "expected rows .*given 5 \\(int\\)"),
        ("text", "expected rows .*given 'text' \\(str\\)"),
        ({"id": 1, "s": "x"}, "expected rows, given .*give one row as \\[{…}\\], columns as pyarrow.table"),
        ([None], "has 6 columns .*given None"),
        ([()], "has 6 columns .*given \\(\\)"),
        ([(1, "x")], "has 6 columns .*given \\(1, 'x'\\)"),
        ([{"id": 1, "s": "x"}], "has the columns .*given \\['id', 's'\\]"),
        ([{**ROW, "id": None}], "'id' is NOT NULL, but the value is NULL"),
        ([{**ROW, "id": "1"}], "column 'id': expected int64, given '1' \\(str\\)"),
        ([{**ROW, "id": True}], "column 'id': expected int64, given True \\(bool\\)"),
        ([{**ROW, "s": 1}], "column 's': expected string, given 1 \\(int\\)"),
        ([{**ROW, "d": 1.5}], "column 'd': expected decimal128\\(5, 2\\), given 1.5 \\(float\\)"),
        ([{**ROW, "d": Decimal("1234.5")}], "column 'd': expected decimal128\\(5, 2\\), given Decimal"),
        ([{**ROW, "at": "2024-01-01"}], "column 'at': expected date32.*, given '2024-01-01' \\(str\\)"),
        ([{**ROW, "a": ["x"]}], "column 'a', inside: .*expected int32, given 'x' \\(str\\)"),
        ([{**ROW, "v": "{}"}], "column 'v': expected variant, given '{}' \\(str\\); give a VariantVal"),
        (ARROW, "the columns do not fit; missing: d, at, a, v"),
        (ARROW.append_column("z", pa.array([1])), "missing: d, at, a, v; not expected: z"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_column_and_type(
    table: dbspark.Pipeline, kind: str, data: Any, message: str
) -> None:
    with pytest.raises(SchemaError, match=f"(?s)table 't'.*{message}"), table.transaction() as tx:
        getattr(tx, kind)("t", data)
    assert table.tick == 0


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1], pa.int64()), "column 's': expected string, given int64; cast it first"),
        (pa.array([b"x"]), "column 's': expected string, given binary; cast it first"),
        (pa.array([["x"]]), "column 's': expected string, given list"),
        (pa.array([{"x": 1}]), "column 's': expected string, given struct"),
    ],
)
@pytest.mark.parametrize("name", ["t", "u"])
def test_a_column_of_another_type_is_refused(
    table: dbspark.Pipeline, name: str, column: pa.Array, message: str
) -> None:
    data = {field.name: pa.nulls(1, field.type) for field in table.table(name).schema}
    data |= {"id": pa.array([1], pa.int64()), "s": column}
    with pytest.raises(SchemaError, match=f"table '{name}': {message}"), table.transaction() as tx:
        tx.insert(name, pa.table(data))


@pytest.mark.parametrize("keys", [None, 5, "text", [None], [("x",)], [(1, 2)]])
def test_keys_that_do_not_fit_are_refused(table: dbspark.Pipeline, keys: Any) -> None:
    with pytest.raises(SchemaError, match="table 't'"), table.transaction() as tx:
        tx.delete_keys("t", keys)


# ---------------------------------------------------------------------------------------------- definitions


@pytest.fixture(scope="module")
def pipe(spark: Any) -> Iterator[dbspark.Pipeline]:
    with dbspark.Pipeline("definitions", spark=spark) as made:
        made.create_table("t", "id INT, s STRING")
        with made.transaction() as tx:
            tx.insert("t", [(1, "a"), (2, "A"), (3, "b")])
        yield made


COLLATED = [
    "SELECT collate(s, 'UTF8_LCASE') AS c, count(*) AS n FROM t GROUP BY 1",
    "SELECT DISTINCT s COLLATE UNICODE_CI AS c FROM t",
    "SELECT id FROM t WHERE collate(s, 'UTF8_LCASE') = 'A'",
    "SELECT id FROM t WHERE s COLLATE UTF8_LCASE LIKE 'A%'",
    "SELECT id FROM t WHERE s COLLATE UTF8_LCASE IN ('A', 'x')",
    "SELECT max(s COLLATE UNICODE) AS m FROM t",
    "SELECT x.id FROM t x JOIN t y ON x.s COLLATE de = y.s COLLATE de",
    "SELECT id, row_number() OVER (ORDER BY s COLLATE UNICODE) AS r FROM t",
    "SELECT id FROM t ORDER BY s COLLATE UNICODE LIMIT 1",
    "SELECT CAST(s AS STRING COLLATE UTF8_LCASE) AS c FROM t",
    "SELECT DISTINCT named_struct('x', s COLLATE UTF8_LCASE) AS c FROM t",
    "SELECT array(named_struct('x', s COLLATE UTF8_LCASE)) AS c FROM t",
    "SELECT j.a < k.a AS c FROM (SELECT from_json(s, 'a STRING COLLATE de') j, from_json('{}' || s, 'a STRING COLLATE "
    "de') k FROM t)",
    "SELECT from_json(s, 'a STRING COLLATE UTF8_LCASE') AS c FROM t",
    "SELECT map('k', s COLLATE UTF8_LCASE) AS c FROM t",
    "SELECT x.id FROM t x, LATERAL (SELECT id FROM t y WHERE y.s COLLATE UTF8_LCASE = x.s) z",
    "SELECT s COLLATE UTF8_LCASE AS c FROM t UNION SELECT 'x' COLLATE UTF8_LCASE",
]


@pytest.mark.parametrize("query", COLLATED)
def test_a_collation_in_a_view_is_refused_and_the_way_out_named(pipe: dbspark.Pipeline, query: str) -> None:
    with pytest.raises(DbsparkError, match=r"collation .* not supported: .*plain STRING.*lower\(column\)"):
        pipe.create_view("refused", query)
    assert "refused" not in pipe.views


@pytest.mark.parametrize(
    "ddl", ["STRING COLLATE UTF8_LCASE", "ARRAY<STRING COLLATE UNICODE>", "STRUCT<x: STRING COLLATE de>"]
)
def test_a_collation_in_a_table_is_refused_and_the_way_out_named(pipe: dbspark.Pipeline, ddl: str) -> None:
    struct = pipe._spark().createDataFrame([], f"c {ddl}").schema
    for schema in (f"c {ddl}", struct):
        with pytest.raises(SchemaError, match=r"'c'.*collation .* not supported: .*plain STRING.*lower\(column\)"):
            pipe.create_table("refused", schema)
    assert "refused" not in pipe.tables


def test_the_way_out_of_a_collation(pipe: dbspark.Pipeline) -> None:
    pipe.create_view("lowered", "SELECT lower(s) AS s, count(*) AS n FROM t GROUP BY lower(s)")
    assert sorted(pipe.view("lowered").to_arrow().to_pylist(), key=str) == [{"s": "a", "n": 2}, {"s": "b", "n": 1}]
    pipe.create_view("folded", "SELECT id, 'x' COLLATE UTF8_LCASE = 'X' AS same, s COLLATE UTF8_BINARY AS s FROM t")
    assert {row["same"] for row in pipe.view("folded").to_arrow().to_pylist()} == {True}


def test_no_columns_are_refused_and_the_way_out_named(pipe: dbspark.Pipeline) -> None:
    from pyspark.sql.types import StructType

    for schema in (StructType([]), pa.schema([])):
        with pytest.raises(SchemaError, match="'refused' has no columns; name at least one"):
            pipe.create_table("refused", schema)
    with pytest.raises(SchemaError, match=r"gives no columns.*1 AS one.*count\(\*\)"):
        pipe.create_view("refused", pipe.frame("t").select())
    assert "refused" not in (*pipe.tables, *pipe.views)


def test_rows_without_columns_are_counted_inside_a_view(pipe: dbspark.Pipeline) -> None:
    """Three rows of no columns are still three."""
    t = pipe.frame("t")
    none = t.select()
    for i, (frame, want) in enumerate(
        [
            (none.groupBy().count(), 3),
            (none.crossJoin(t.select()).selectExpr("count(*) AS count"), 9),
            (none.unionAll(t.select()).selectExpr("count(*) AS count"), 6),
            (none.exceptAll(t.limit(1).select()).selectExpr("count(*) AS count"), 2),
            (none.distinct().selectExpr("count(*) AS count"), 1),
            (none.limit(2).selectExpr("count(*) AS count"), 2),
        ]
    ):
        view = pipe.create_view(f"counted{i}", frame)
        assert view.to_arrow().to_pylist() == [{"count": want}]
    assert pipe.create_view("ones", none.selectExpr("1 AS one")).to_arrow().num_rows == 3


@pytest.mark.parametrize("ddl", ["INTERVAL", "ARRAY<INTERVAL>", "STRUCT<x: INTERVAL>"])
def test_calendar_intervals_are_refused_and_the_way_out_named(pipe: dbspark.Pipeline, ddl: str) -> None:
    with pytest.raises(SchemaError, match=r"calendar intervals .*INTERVAL DAY TO SECOND"):
        pipe.create_table("refused", f"c {ddl}")
    with pytest.raises(DbsparkError, match=r"calendar intervals .*INTERVAL DAY TO SECOND"):
        pipe.create_view("refused", "SELECT make_interval(id) AS c FROM t")
    assert "refused" not in (*pipe.tables, *pipe.views)
