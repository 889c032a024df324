"""Arrow data on its way into a schema: other layouts are cast, other types and missing columns are refused."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.errors import SchemaError


def put(ddl: str, array: pa.Array) -> list[Any]:
    """The values of a column after they have gone into a batch of this schema."""
    schema = Schema.parse(f"c {ddl}")
    batch = Batch.from_arrow(pa.table([array], ["c"]), SortKey(schema))
    assert batch.to_arrow().schema == schema.arrow
    return batch.to_arrow()["c"].to_pylist()


LAYOUTS: list[tuple[str, pa.Array, Any]] = [
    ("STRING", pa.array(["x"], pa.large_string()), "x"),
    ("STRING", pa.array(["a string that is not inlined"], pa.string_view()), "a string that is not inlined"),
    ("STRING", pa.array(["x"], pa.dictionary(pa.int8(), pa.string())), "x"),
    ("BINARY", pa.array([b"xy"], pa.binary(2)), b"xy"),
    ("BINARY", pa.array([b"xy"], pa.large_binary()), b"xy"),
    ("BINARY", pa.array([b"xy"], pa.binary_view()), b"xy"),
    ("DATE", pa.array([86_400_000], pa.date64()), 1),
    ("TIMESTAMP", pa.array([5_000], pa.timestamp("ns", tz="Europe/Paris")), 5),
    ("TIMESTAMP_NTZ", pa.array([5], pa.timestamp("ms")), 5_000),
    ("TIMESTAMP_NTZ", pa.array([-5], pa.timestamp("s")), -5_000_000),
    ("TIME", pa.array([5], pa.time32("ms")), 5_000_000),
    ("INTERVAL DAY TO SECOND", pa.array([5], pa.duration("s")), 5_000_000),
    ("DECIMAL(5, 2)", pa.array([Decimal("1.23")], pa.decimal256(5, 2)), Decimal("1.23")),
    ("ARRAY<STRING>", pa.array([["x", None]], pa.large_list(pa.large_string())), ["x", None]),
    ("ARRAY<INT>", pa.array([[1, 2]], pa.list_(pa.int32(), 2)), [1, 2]),
    ("ARRAY<INT>", pa.array([[1, 2]], pa.list_view(pa.int32())), [1, 2]),
    ("ARRAY<INT>", pa.array([None, [3, 1, 2]], pa.list_view(pa.int32())).slice(1), [3, 1, 2]),
    ("ARRAY<ARRAY<INT>>", pa.array([[[1, 2]]], pa.list_(pa.list_view(pa.int32()))), [[1, 2]]),
    ("MAP<INT, ARRAY<INT>>", pa.array([[(1, [2, 3])]], pa.map_(pa.int32(), pa.list_view(pa.int32()))), [(1, [2, 3])]),
    ("STRUCT<x: ARRAY<INT>>", pa.array([{"x": [1, 2]}], pa.struct([("x", pa.list_view(pa.int32()))])), {"x": [1, 2]}),
    ("ARRAY<STRING>", pa.array([["x"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), ["x"]),
    ("STRUCT<x: STRING>", pa.array([{"x": "y"}], pa.struct([("x", pa.large_string())])), {"x": "y"}),
    ("MAP<STRING, DATE>", pa.array([[("k", None)]], pa.map_(pa.large_string(), pa.date64())), [("k", None)]),
    # numbers into types that hold them exactly
    ("BIGINT", pa.array([-7], pa.int8()), -7),
    ("INT", pa.array([7], pa.int64()), 7),
    ("BIGINT", pa.array([7], pa.uint32()), 7),
    ("DOUBLE", pa.array([7], pa.int32()), 7.0),
    ("DOUBLE", pa.array([0.5], pa.float32()), 0.5),
    ("DECIMAL(20, 0)", pa.array([2**63 - 1], pa.int64()), Decimal(2**63 - 1)),
    ("DECIMAL(12, 4)", pa.array([Decimal("1.23")], pa.decimal128(10, 2)), Decimal("1.2300")),
    ("STRUCT<x: BIGINT>", pa.array([{"x": 7}], pa.struct([("x", pa.int8())])), {"x": 7}),
]


@pytest.mark.parametrize(("ddl", "array", "expected"), LAYOUTS, ids=lambda v: str(getattr(v, "type", "")))
def test_another_layout_of_the_same_values_is_taken(ddl: str, array: pa.Array, expected: Any) -> None:
    schema = Schema.parse(f"c {ddl}")
    wanted = pa.array([expected], schema.types[0]).to_pylist()
    assert put(ddl, array) == wanted
    nothing = pa.nulls(2, array.type)
    assert put(ddl, nothing) == [None]
    assert put(ddl, pa.nulls(1)) == [None]


REFUSED: list[tuple[str, pa.Array, str]] = [
    ("INT", pa.array(["1"]), "string"),
    ("INT", pa.array([1.0]), "double"),
    ("INT", pa.array([True]), "bool"),
    ("STRING", pa.array([5]), "int64"),
    ("BOOLEAN", pa.array([1]), "int64"),
    ("TIMESTAMP", pa.array([5]), "int64"),
    ("TIMESTAMP", pa.array([5], pa.timestamp("us")), "timestamp[us]"),
    ("TIMESTAMP_NTZ", pa.array([5], pa.timestamp("us", tz="UTC")), "UTC"),
    ("DATE", pa.array([5], pa.timestamp("us")), "timestamp[us]"),
    ("FLOAT", pa.array([0.1], pa.float64()), "double"),
    ("DECIMAL(5, 2)", pa.array([1.5]), "double"),
    ("DECIMAL(5, 2)", pa.array([1], pa.int64()), "int64"),
    ("DECIMAL(5, 2)", pa.array([Decimal("1.234")], pa.decimal128(5, 3)), "decimal128(5, 3)"),
    ("STRING", pa.array([b"x"]), "binary"),
    ("ARRAY<INT>", pa.array([["1"]]), "string"),
    ("ARRAY<INT>", pa.array([1]), "int64"),
    ("STRUCT<x: INT>", pa.array([{"y": 1}]), "y"),
    ("MAP<STRING, INT>", pa.array([{"a": 1}]), "struct"),
    ("INT", pa.array([2**31], pa.int64()), "2147483648"),
    ("BIGINT", pa.array([2**63], pa.uint64()), "9223372036854775808"),
    ("TIMESTAMP_NTZ", pa.array([1], pa.timestamp("ns")), "lose data"),
    ("INTERVAL DAY TO SECOND", pa.array([1], pa.duration("ns")), "lose data"),
]


@pytest.mark.parametrize(("ddl", "array", "named"), REFUSED, ids=lambda v: str(getattr(v, "type", "")))
def test_data_of_another_type_is_refused_naming_the_column(ddl: str, array: pa.Array, named: str) -> None:
    with pytest.raises(SchemaError) as raised:
        put(ddl, array)
    assert "'c'" in str(raised.value)
    assert named in str(raised.value)


def test_columns_are_matched_by_name_in_any_order() -> None:
    schema = Schema.parse("a INT, b STRING")
    batch = Batch.from_arrow(pa.table({"b": ["x"], "a": pa.array([1], pa.int32())}), SortKey(schema))
    assert batch.to_arrow().to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["a"], ["missing: b"]),
        (["a", "b", "c"], ["not expected: c"]),
        (["a", "x"], ["missing: b", "not expected: x"]),
        (["a", "b", "b"], ["b"]),
        (["a", "A"], ["missing: b", "not expected: A"]),
    ],
)
def test_missing_surplus_and_double_columns_are_named(names: list[str], parts: list[str]) -> None:
    schema = Schema.parse("a BIGINT, b BIGINT")
    with pytest.raises(SchemaError) as raised:
        Batch.from_arrow(pa.table([pa.array([1])] * len(names), names), SortKey(schema))
    for part in [*parts, "a, b"]:
        assert part in str(raised.value)


def test_the_columns_of_an_empty_table_are_checked_too() -> None:
    sort_key = SortKey(Schema.parse("a BIGINT"))
    for wrong in ({"x": pa.array([], pa.int64())}, {"a": pa.array([], pa.string())}, {}):
        with pytest.raises(SchemaError, match="a"):
            Batch.from_arrow(pa.table(wrong), sort_key)
    assert Batch.from_arrow(pa.table({"a": pa.array([], pa.int8())}), sort_key).rows == 0


NESTED_NULLS: list[tuple[str, Any, str]] = [
    ("INT NOT NULL", None, "c"),
    ("STRUCT<x: INT NOT NULL>", {"x": None}, "x"),
    ("STRUCT<s: STRUCT<x: INT NOT NULL>>", {"s": {"x": None}}, "x"),
    ("ARRAY<STRUCT<x: INT NOT NULL>>", [None, {"x": 1}, {"x": None}], "x"),
    ("MAP<INT, STRUCT<x: INT NOT NULL>>", [(1, None), (2, {"x": None})], "x"),
]


@pytest.mark.parametrize(("ddl", "value", "name"), NESTED_NULLS)
def test_a_null_is_refused_at_any_depth_where_the_schema_has_none(ddl: str, value: Any, name: str) -> None:
    schema = Schema.parse(f"c {ddl}")
    loose = Schema.parse(f"c {ddl.replace(' NOT NULL', '')}")
    array = pa.array([value], loose.types[0])
    for given in (array, pa.concat_arrays([pa.array([None], loose.types[0]), array]).slice(1)):
        with pytest.raises(SchemaError, match=rf"c.*{name}|{name}.*NOT NULL"):
            Batch.from_arrow(pa.table([given], ["c"]), SortKey(schema))


def test_a_null_parent_excuses_its_children() -> None:
    inner = pa.array([None, 2], pa.int32())
    hidden = pa.StructArray.from_arrays([inner], ["x"], mask=pa.array([True, False]))
    assert sorted(map(str, put("STRUCT<x: INT NOT NULL>", hidden))) == ["None", "{'x': 2}"]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), hidden, mask=pa.array([True, False]))
    assert sorted(map(str, put("ARRAY<STRUCT<x: INT NOT NULL>>", lists))) == ["None", "[{'x': 2}]"]
    element = pa.field("element", pa.int32(), nullable=False)
    strict = Schema(pa.schema([("c", pa.list_(element))]))
    under = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), inner, mask=pa.array([True, False]))
    batch = Batch.from_arrow(pa.table([under], ["c"]), SortKey(strict))
    assert sorted(map(str, batch.to_arrow()["c"].to_pylist())) == ["None", "[2]"]


# ---------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("as_table", [True, False])
@pytest.mark.parametrize("weights", [[], [1], [1, 1, 1, 1], [[1, 1, 1]], 1])
def test_there_is_one_weight_for_each_row(weights: Any, as_table: bool) -> None:
    data = pa.table({"a": [1, 2, 3]}) if as_table else pa.record_batch({"a": [1, 2, 3]})
    with pytest.raises(SchemaError, match="3 rows"):
        Batch.from_arrow(data, weights=weights)


def test_there_is_one_weight_for_each_row_of_no_rows_too() -> None:
    with pytest.raises(SchemaError, match="0 rows"):
        Batch.from_arrow(pa.table({"a": pa.array([], pa.int64())}), weights=[1])


@pytest.mark.parametrize("weights", [[0.5, 1.0], [True, False], ["1", "2"], [None, 1]])
def test_weights_are_integers(weights: Any) -> None:
    with pytest.raises(SchemaError, match="integers"):
        Batch.from_arrow(pa.table({"a": [1, 2]}), weights=weights)


@pytest.mark.parametrize("kind", ["list", "int8", "uint8", "arrow", "strided", "read-only"])
def test_weights_come_in_any_layout_of_integers(kind: str) -> None:
    table = pa.table({"a": [1, 2, 3]})
    weights: Any = {
        "list": [3, 1, 2],
        "int8": np.array([3, 1, 2], np.int8),
        "uint8": np.array([3, 1, 2], np.uint8),
        "arrow": pa.array([3, 1, 2]),
        "strided": np.array([3, 9, 1, 9, 2])[::2],
        "read-only": np.frombuffer(np.array([3, 1, 2]).tobytes(), np.int64),
    }[kind]
    batch = Batch.from_arrow(table, weights=weights)
    assert dict(zip(batch.to_arrow()["a"].to_pylist(), batch.weights().tolist(), strict=True)) == {1: 3, 2: 1, 3: 2}
