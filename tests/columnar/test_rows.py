"""Python rows: what is accepted, what is refused and how, and that equal rows are equal, hashable tuples."""

import datetime as dt
import math
import pickle
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import VariantVal

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.rows import NAN, decode_arrays, encode_rows, row_normaliser
from dbspark.errors import SchemaError
from dbspark.identity import encoded_value
from dbspark.zset import ZSet
from tests.columnar import model
from tests.strategies import schemas, tables

NOT_A_NUMBER = float("inf") - float("inf")
UTC = dt.UTC
EAST = dt.timezone(dt.timedelta(hours=2))


def form(ddl: str, value: Any) -> Any:
    """The canonical form of one value of a column `place`."""
    (result,) = row_normaliser(Schema.parse(f"place {ddl}"))((value,))
    hash(result)
    return result


ACCEPTED: list[tuple[str, Any, Any]] = [
    ("BOOLEAN", True, True),
    ("BOOLEAN", np.bool_(False), False),
    ("TINYINT", -128, -128),
    ("INT", np.int64(5), 5),
    ("BIGINT", 2**63 - 1, 2**63 - 1),
    ("BIGINT", -(2**63), -(2**63)),
    ("FLOAT", 0.1, 0.10000000149011612),
    ("FLOAT", 1, 1.0),
    ("FLOAT", 1e300, math.inf),
    ("FLOAT", np.float32(0.1), 0.10000000149011612),
    ("DOUBLE", 0.1, 0.1),
    ("DOUBLE", 3, 3.0),
    ("DOUBLE", np.float64(0.5), 0.5),
    ("DECIMAL(5,2)", 1, Decimal("1.00")),
    ("DECIMAL(5,2)", Decimal("1.2"), Decimal("1.20")),
    ("DECIMAL(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
    ("STRING", "", ""),
    ("STRING", "日本🦆\0", "日本🦆\0"),
    ("STRING", np.str_("x"), "x"),
    ("BINARY", bytearray(b"ab"), b"ab"),
    ("BINARY", memoryview(b"ab"), b"ab"),
    ("DATE", dt.date(2024, 2, 29), dt.date(2024, 2, 29)),
    ("TIMESTAMP", dt.datetime(2024, 1, 1, 12, tzinfo=EAST), dt.datetime(2024, 1, 1, 10, tzinfo=UTC)),
    ("TIMESTAMP", dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 1, 1, 12, tzinfo=UTC)),
    ("TIMESTAMP_NTZ", dt.datetime(2024, 1, 1, 12, 0, 0, 7), dt.datetime(2024, 1, 1, 12, 0, 0, 7)),
    ("TIME", dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4)),
    ("INTERVAL DAY TO SECOND", dt.timedelta(days=-1, microseconds=3), dt.timedelta(days=-1, microseconds=3)),
    ("INTERVAL YEAR TO MONTH", 14, 14),
    ("INTERVAL", (1, 2, 3), (1, 2, 3)),
    ("VOID", None, None),
    ("ARRAY<INT>", [1, None], (1, None)),
    ("ARRAY<INT>", np.array([1, 2]), (1, 2)),
    ("ARRAY<ARRAY<STRING>>", [["a"], [], None], (("a",), (), None)),
    ("STRUCT<x: INT, y: STRING>", {"y": "a", "x": 1}, (1, "a")),
    ("STRUCT<x: INT, y: STRING>", (1, None), (1, None)),
    ("STRUCT<x: INT, y: STRING>", Row(x=1, y="a"), (1, "a")),
    ("STRUCT<>", {}, ()),
    ("MAP<STRING, INT>", {"b": 1, "a": None}, (("a", None), ("b", 1))),
    ("MAP<INT, ARRAY<INT>>", [(2, [1]), (1, None)], ((1, None), (2, (1,)))),
    ("ARRAY<STRUCT<m: MAP<STRING, FLOAT>>>", [{"m": {"x": 0.1}}, None], (((("x", 0.10000000149011612),),), None)),
]


@pytest.mark.parametrize(("ddl", "value", "expected"), ACCEPTED)
def test_a_fitting_value_takes_its_canonical_form(ddl: str, value: Any, expected: Any) -> None:
    got = form(ddl, value)
    assert got == expected
    assert type(got) is type(expected) or isinstance(got, tuple)
    assert form(ddl, got) == expected, "the canonical form is a form of itself"


REFUSED: list[tuple[str, Any]] = [
    ("BOOLEAN", 1),
    ("BOOLEAN", "true"),
    ("TINYINT", 128),
    ("INT", True),
    ("INT", np.bool_(True)),
    ("INT", 1.0),
    ("INT", np.float32(1.0)),
    ("INT", "1"),
    ("INT", Decimal(1)),
    ("INT", 2**31),
    ("BIGINT", 2**63),
    ("BIGINT", -(2**63) - 1),
    ("FLOAT", True),
    ("FLOAT", "1"),
    ("FLOAT", 2**24 + 1),
    ("DOUBLE", True),
    ("DOUBLE", "1"),
    ("DOUBLE", Decimal("0.1")),
    ("DOUBLE", 2**53 + 1),
    ("DECIMAL(5,2)", 1.5),
    ("DECIMAL(5,2)", True),
    ("DECIMAL(5,2)", "1.5"),
    ("DECIMAL(5,2)", Decimal("1.234")),
    ("DECIMAL(5,2)", Decimal("1000")),
    ("DECIMAL(5,2)", Decimal("NaN")),
    ("STRING", 1),
    ("STRING", b"bytes"),
    ("STRING", "\ud800"),
    ("BINARY", "text"),
    ("BINARY", 5),
    ("DATE", "2024-01-01"),
    ("DATE", 5),
    ("DATE", dt.datetime(2024, 1, 1, 5)),
    ("TIMESTAMP", dt.date(2024, 1, 1)),
    ("TIMESTAMP", 5),
    ("TIMESTAMP", 1.5),
    ("TIMESTAMP", "2024-01-01"),
    ("TIMESTAMP_NTZ", dt.datetime(2024, 1, 1, tzinfo=UTC)),
    ("TIME", 5),
    ("TIME", "01:02:03"),
    ("INTERVAL DAY TO SECOND", 5),
    ("INTERVAL YEAR TO MONTH", "1-2"),
    ("INTERVAL", 5),
    ("INTERVAL", "1 day"),
    ("ARRAY<INT>", 5),
    ("ARRAY<INT>", [1.5]),
    ("ARRAY<INT>", [True]),
    ("ARRAY<INT>", {1: 2}),
    ("ARRAY<STRING>", "ab"),
    ("ARRAY<STRING>", ["\ud800"]),
    ("ARRAY<DOUBLE>", [True]),
    ("STRUCT<x: INT, y: STRING>", {"x": 1}),
    ("STRUCT<x: INT, y: STRING>", {"x": 1, "y": "a", "z": 2}),
    ("STRUCT<x: INT, y: STRING>", (1,)),
    ("STRUCT<x: INT, y: STRING>", (1, "a", 2)),
    ("STRUCT<x: INT, y: STRING>", ("a", 1)),
    ("STRUCT<x: INT, y: STRING>", 5),
    ("MAP<STRING, INT>", {None: 1}),
    ("MAP<STRING, INT>", {"a": True}),
    ("MAP<STRING, INT>", 5),
    ("MAP<STRING, INT>", ["a"]),
    ("MAP<STRING, INT>", [("a", 1), ("b", 2), ("a", 3)]),
    ("MAP<DOUBLE, INT>", [(0.0, 1), (-0.0, 2)]),
    ("MAP<DOUBLE, INT>", [(NOT_A_NUMBER, 1), (math.nan, 2)]),
    ("VOID", 5),
]


@pytest.mark.parametrize(("ddl", "value"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_naming_the_column(ddl: str, value: Any) -> None:
    with pytest.raises(SchemaError, match="place"):
        form(ddl, value)


@pytest.mark.parametrize("ddl", ["INT", "STRING", "DOUBLE", "BOOLEAN", "DATE", "DECIMAL(5,2)", "ARRAY<INT>", "BINARY"])
def test_a_null_is_kept_or_refused_as_the_schema_says(ddl: str) -> None:
    assert form(ddl, None) is None
    with pytest.raises(SchemaError, match=r"'place' is NOT NULL"):
        form(f"{ddl} NOT NULL", None)


def test_a_null_inside_is_refused_where_the_schema_says() -> None:
    assert form("STRUCT<x: INT, y: STRUCT<z: INT NOT NULL>>", (None, None)) == (None, None)
    for value in ((None,), {"x": None}):
        with pytest.raises(SchemaError, match=r"place.*x.* NOT NULL"):
            form("STRUCT<x: INT NOT NULL>", value)
    with pytest.raises(SchemaError, match=r"place.*z.* NOT NULL"):
        form("STRUCT<x: INT, y: STRUCT<z: INT NOT NULL>>", (1, (None,)))


# ------------------------------------------------------------------------------------------------------ shapes

PAIR = Schema.parse("a INT, b STRING")


@pytest.mark.parametrize(
    "row", [(1, "x"), [1, "x"], {"b": "x", "a": 1}, OrderedDict(b="x", a=1), Row(a=1, b="x"), Row("a", "b")(1, "x")]
)
def test_a_row_comes_as_tuple_list_mapping_or_spark_row(row: Any) -> None:
    got = row_normaliser(PAIR)(row)
    assert got == (1, "x")
    assert type(got) is tuple


@pytest.mark.parametrize(
    "row", [(1,), (1, "x", 2), [], {"a": 1}, {"a": 1, "b": "x", "c": 2}, {1: 2}, "ab", 5, None, Row(a=1), {1, 2}]
)
def test_a_row_of_another_shape_is_refused_naming_the_columns(row: Any) -> None:
    with pytest.raises(SchemaError, match=r"\('a', 'b'\)"):
        row_normaliser(PAIR)(row)


def test_the_form_of_a_schema_is_compiled_once() -> None:
    assert row_normaliser(PAIR) is row_normaliser(Schema.parse("a INT, b STRING"))


# ---------------------------------------------------------------------------------------------------- equality


@pytest.mark.parametrize("ddl", ["FLOAT", "DOUBLE", "ARRAY<DOUBLE>", "STRUCT<x: FLOAT>", "MAP<DOUBLE, INT>"])
def test_every_nan_is_one_value(ddl: str) -> None:
    def around(nan: float) -> Any:
        return {"A": [nan], "S": (nan,), "M": {nan: 1}}.get(ddl[0], nan)

    def inner(value: Any) -> Any:
        return inner(value[0]) if isinstance(value, tuple) else value

    a, b = form(ddl, around(math.nan)), form(ddl, around(NOT_A_NUMBER))
    assert (a,) == (b,)
    assert hash((a,)) == hash((b,))
    assert len({(a,), (b,)}) == 1
    assert inner(a) is inner(b) is NAN


@pytest.mark.parametrize("ddl", ["FLOAT", "DOUBLE"])
def test_negative_zero_equals_zero(ddl: str) -> None:
    a, b = (form(ddl, -0.0),), (form(ddl, 0.0),)
    assert a == b
    assert hash(a) == hash(b)


def test_the_order_of_a_maps_entries_does_not_matter() -> None:
    ddl = "MAP<STRING, MAP<INT, STRING>>"
    a = form(ddl, {"x": {1: "a", 2: "b"}, "y": None})
    assert form(ddl, {"y": None, "x": {2: "b", 1: "a"}}) == a
    assert form(ddl, [("y", None), ("x", [(2, "b"), (1, "a")])]) == a
    assert form(ddl, {"x": {1: "b", 2: "a"}, "y": None}) != a


@given(st.data())
def test_rows_read_from_a_batch_are_canonical_and_go_back_unchanged(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    table = _within_python(data.draw(tables(schema)))
    batch = Batch.from_arrow(table, SortKey(schema))
    stored = batch.to_arrow().combine_chunks()
    arrays = [c.chunk(0) if c.num_chunks else pa.array([], c.type) for c in stored.columns]
    rows = decode_arrays(schema, arrays)
    assert len(set(rows)) == len(rows) == batch.rows, "different rows are different tuples"
    form = row_normaliser(schema)
    assert [form(row) for row in rows] == rows
    again = encode_rows(schema, rows)
    assert [a.type for a in again] == list(schema.types)
    assert model.rows(pa.Table.from_arrays(again, schema=schema.arrow)) == model.rows(stored)


@given(st.data())
def test_rows_are_equal_as_tuples_exactly_where_they_are_equal_in_arrow(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=2))
    table = _within_python(data.draw(tables(schema)))
    form = row_normaliser(schema)
    given_rows = [tuple(row[name] for name in schema.names) for row in table.to_pylist()]
    rows = [form(row) for row in given_rows]
    plain = model.rows(table)
    assert len(set(rows)) == len(set(plain))
    assert len(set(zip(rows, plain, strict=True))) == len(set(plain))


def _within_python(table: pa.Table) -> pa.Table:
    """The rows whose dates and times Python has values for, and pyarrow takes them back."""
    keep = []
    for i in range(table.num_rows):
        try:
            for column in table.slice(i, 1).columns:
                pa.array(column.to_pylist(), column.type)
        except (ValueError, OverflowError):
            continue
        keep.append(i)
    return table.take(pa.array(keep, pa.int64()))


def test_no_rows_give_empty_arrays_of_the_right_types() -> None:
    schema = Schema.parse("a INT, m MAP<STRING, ARRAY<INT>>")
    arrays = encode_rows(schema, [])
    assert [a.type for a in arrays] == list(schema.types)
    assert decode_arrays(schema, arrays) == []


# ---------------------------------------------------------------------------------------------- variants

VARIANT = (b"\x0c\x01", b"\x01\x00\x00")
"""The variant 1."""


@pytest.mark.parametrize(
    "handed", [VariantVal(*VARIANT), VARIANT, dict(zip(("value", "metadata"), VARIANT, strict=True))]
)
@pytest.mark.parametrize("ddl", ["v VARIANT", "v ARRAY<VARIANT>", "v STRUCT<x: VARIANT>", "v MAP<STRING, VARIANT>"])
def test_a_variant_goes_in_as_pyspark_has_it_and_comes_out_so(ddl: str, handed: Any) -> None:
    schema = Schema.parse(ddl)
    value = {"A": [handed, None], "S": {"x": handed}, "M": {"k": handed}}.get(ddl.split()[1][0], handed)
    (row,) = [row_normaliser(schema)((value,))]
    assert (
        row
        == row_normaliser(schema)(Row(v=value))
        == row_normaliser(schema)({"v": value})
        == row_normaliser(schema)(row)
    )
    assert hash(row) == hash(row_normaliser(schema)((value,)))
    (back,) = decode_arrays(schema, encode_rows(schema, [row]))
    assert back == row
    inner = back[0]
    while not isinstance(inner, VariantVal):
        inner = inner[-1] if inner[0] == "k" else inner[0]
    assert inner.toPython() == 1
    assert inner == pickle.loads(pickle.dumps(inner))
    assert inner != VariantVal(b"\x0c\x02", VARIANT[1])
    zset = ZSet.from_rows([(value,), (value,)], schema)
    assert dict(zset) == {row: 2}
    assert zset.batch().to_arrow().num_rows == 1


def test_variants_are_part_of_identities_by_their_bytes() -> None:
    """Constants of a query are rows, and may be variants."""
    given = [
        VariantVal(*VARIANT),
        VariantVal(b"\x0c\x02", VARIANT[1]),
        VariantVal(VARIANT[0], b"\x01\x01\x00\x01x"),
        None,
    ]
    rows = [row_normaliser(Schema.parse("v ARRAY<VARIANT>"))(([value],)) for value in given]
    assert len({encoded_value(row) for row in rows}) == len(given)
    assert encoded_value(rows[0]) == encoded_value(row_normaliser(Schema.parse("v ARRAY<VARIANT>"))(([VARIANT],)))


@pytest.mark.parametrize("value", [1, "{}", {"a": 1}, (b"x",), (b"x", "y"), [1, 2], b"x"])
def test_what_is_no_variant_is_refused_by_name(value: Any) -> None:
    with pytest.raises(SchemaError, match=r"column 'v': expected variant, given .*VariantVal"):
        row_normaliser(Schema.parse("v VARIANT"))((value,))
