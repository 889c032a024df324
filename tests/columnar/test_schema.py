"""Schemas: one canonical Arrow type per Spark type, interned, laid out in nodes as the kernels expect."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.errors import SchemaError
from dbspark.kernels.memory import layout as nd
from tests.strategies import data_types, schemas

LISTS = pa.list_(pa.field("element", pa.string()))
CANONICAL: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.binary()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
    (pa.dictionary(pa.int32(), pa.date64()), pa.date32()),
    (pa.date64(), pa.date32()),
    (pa.timestamp("s"), pa.timestamp("us")),
    (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("ms", tz="Asia/Tokyo"), pa.timestamp("us", tz="UTC")),
    (pa.time32("s"), pa.time64("ns")),
    (pa.time64("us"), pa.time64("ns")),
    (pa.duration("ns"), pa.duration("us")),
    (pa.decimal32(5, 2), pa.decimal128(5, 2)),
    (pa.decimal64(18, 2), pa.decimal128(18, 2)),
    (pa.decimal256(38, 7), pa.decimal128(38, 7)),
    (pa.large_list(pa.large_string()), LISTS),
    (pa.list_(pa.string(), 3), LISTS),
    (pa.list_view(pa.string_view()), LISTS),
    (pa.struct([("x", pa.large_string()), ("d", pa.date64())]), pa.struct([("x", pa.string()), ("d", pa.date32())])),
    (pa.map_(pa.large_string(), pa.large_list(pa.string())), pa.map_(pa.string(), LISTS)),
    (pa.map_(pa.string(), pa.int8(), keys_sorted=True), pa.map_(pa.string(), pa.int8())),
]


@pytest.mark.parametrize(("given_type", "kept"), CANONICAL, ids=str)
def test_other_layouts_of_a_spark_type_become_the_canonical_one(given_type: pa.DataType, kept: pa.DataType) -> None:
    schema = Schema(pa.schema([pa.field("c", given_type, nullable=False)]))
    assert schema.types == (kept,)
    assert not schema.arrow.field("c").nullable
    assert schema is Schema(pa.schema([pa.field("c", kept, nullable=False)]))


@given(data_types(3))
def test_canonical_types_stay_as_they_are(dtype: pa.DataType) -> None:
    assert Schema(pa.schema([("c", dtype)])).types == (dtype,)


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (pa.uint8(), "signed"),
        (pa.uint64(), "signed"),
        (pa.float16(), "cast it"),
        (pa.decimal256(39, 2), "decimal(38, s)"),
        (pa.dense_union([pa.field("x", pa.int8())]), "cast it"),
        (pa.run_end_encoded(pa.int32(), pa.int32()), "cast it"),
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_type_that_spark_lacks_is_refused_with_column_and_advice(
    dtype: pa.DataType, advice: str, nested: bool
) -> None:
    field = pa.field("place", pa.struct([("spot", dtype)]) if nested else dtype)
    with pytest.raises(SchemaError) as raised:
        Schema(pa.schema([("fine", pa.int32()), field]))
    assert "'place'" in str(raised.value)
    assert advice in str(raised.value)
    assert ("spot" in str(raised.value)) is nested


# ------------------------------------------------------------------------------------------------- interning


def test_equal_schemas_are_one_object() -> None:
    a = Schema.parse("k BIGINT NOT NULL, v ARRAY<STRING>")
    assert Schema(pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.large_list(pa.string()))])) is a
    assert pickle.loads(pickle.dumps(a)) is a
    for other in ("k BIGINT, v ARRAY<STRING>", "k BIGINT NOT NULL, w ARRAY<STRING>", "k BIGINT NOT NULL, v ARRAY<INT>"):
        assert Schema.parse(other) is not a


@given(schemas())
def test_every_schema_survives_pickling_as_itself(schema: Schema) -> None:
    assert pickle.loads(pickle.dumps(schema)) is schema
    assert Schema(schema.arrow) is schema


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("y INTERVAL YEAR", "y INT"),
        ("s STRUCT<y: INTERVAL YEAR>", "s STRUCT<y: INT>"),
        ("a ARRAY<INTERVAL YEAR>", "a ARRAY<INT>"),
        ("v VARIANT", "v STRUCT<value: BINARY NOT NULL, metadata: BINARY NOT NULL>"),
        ("s STRUCT<x: INT NOT NULL>", "s STRUCT<x: INT>"),
    ],
)
def test_types_that_differ_only_in_metadata_or_nullability_are_two_schemas(one: str, other: str) -> None:
    for first, second in ((one, other), (other, one)):
        a, b = Schema.parse(first), Schema.parse(second)
        assert a is not b
        assert Schema.parse(first) is a
        assert str(a.arrow.to_string(show_schema_metadata=True)) != str(b.arrow.to_string(show_schema_metadata=True))


def test_sort_keys_are_interned_and_the_whole_row_has_no_key() -> None:
    schema = Schema.parse("a INT, b INT, c INT")
    assert SortKey(schema, (1,)) is SortKey(schema, [1])
    assert SortKey(schema, (0, 1, 2)) is SortKey(schema)
    assert SortKey(schema).own_key == 0
    assert SortKey(schema, (2, 1, 0)) is not SortKey(schema)
    assert SortKey(schema, ()).own_key == 1
    assert SortKey(schema, (2, 0)).key_nodes.tolist() == [nd.LANES + 2, nd.LANES]
    assert pickle.loads(pickle.dumps(SortKey(schema, (2, 0)))) is SortKey(schema, (2, 0))
    assert "c, a" in repr(SortKey(schema, (2, 0)))


# ---------------------------------------------------------------------------------------------- making and using


def test_a_schema_comes_from_whatever_a_caller_has() -> None:
    expected = Schema.parse("id BIGINT NOT NULL, tags ARRAY<STRING>, at TIMESTAMP")
    assert Schema.of(expected) is expected
    assert Schema.of("id BIGINT NOT NULL, tags ARRAY<STRING>, at TIMESTAMP") is expected
    assert Schema.of(expected.arrow) is expected
    with pytest.raises(SchemaError, match="int"):
        Schema.of(5)


def test_a_spark_struct_type_is_the_same_schema_as_its_ddl() -> None:
    from pyspark.sql import types as t

    fields = {
        "b": t.BooleanType(), "i8": t.ByteType(), "i16": t.ShortType(), "i": t.IntegerType(), "l": t.LongType(),
        "f": t.FloatType(), "d": t.DoubleType(), "dec": t.DecimalType(12, 3), "s": t.StringType(),
        "bin": t.BinaryType(), "day": t.DateType(), "at": t.TimestampType(), "ntz": t.TimestampNTZType(),
        "dt": t.DayTimeIntervalType(), "a": t.ArrayType(t.IntegerType()),
        "m": t.MapType(t.StringType(), t.ArrayType(t.DoubleType())),
    }  # fmt: skip
    struct = t.StructType([t.StructField(name, dtype, True) for name, dtype in fields.items()])
    struct.add("st", t.StructType([t.StructField("x", t.LongType(), False)]), False)
    ddl = (
        "b BOOLEAN, i8 TINYINT, i16 SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(12, 3), s STRING, "
        "bin BINARY, day DATE, at TIMESTAMP, ntz TIMESTAMP_NTZ, dt INTERVAL DAY TO SECOND, a ARRAY<INT>, "
        "m MAP<STRING, ARRAY<DOUBLE>>, st STRUCT<x: BIGINT NOT NULL> NOT NULL"
    )
    assert Schema.of(struct) is Schema.parse(ddl)


@pytest.mark.parametrize(
    ("name", "ddl"),
    [
        ("YearMonthIntervalType()", "INTERVAL YEAR TO MONTH"),
        ("CalendarIntervalType()", "INTERVAL"),
        ("CharType(3)", "CHAR(3)"),
        ("VarcharType(3)", "VARCHAR(3)"),
        ("TimeType()", "TIME"),
        ("VariantType()", "VARIANT"),
        ("NullType()", "VOID"),
        ("ArrayType(YearMonthIntervalType())", "ARRAY<INTERVAL YEAR TO MONTH>"),
        ("YearMonthIntervalType(0)", "INTERVAL YEAR"),
        ("YearMonthIntervalType(1)", "INTERVAL MONTH"),
        ("DayTimeIntervalType(0, 1)", "INTERVAL DAY TO HOUR"),
        ("DayTimeIntervalType(3)", "INTERVAL SECOND"),
        ("TimeType(3)", "TIME(3)"),
    ],
)
def test_a_spark_type_without_an_arrow_type_is_known_by_its_ddl_too(name: str, ddl: str) -> None:
    from pyspark.sql import types as t

    dtype = eval(name, vars(t))
    assert Schema.of(t.StructType([t.StructField("c", dtype)])) is Schema.parse(f"c {ddl}")


def test_a_collated_string_is_refused_because_its_equality_is_another() -> None:
    from pyspark.sql import types as t

    for dtype in (t.StringType("UTF8_LCASE"), t.ArrayType(t.StringType("UNICODE_CI"))):
        with pytest.raises(SchemaError, match=r"(?i)place.*collat"):
            Schema.of(t.StructType([t.StructField("place", dtype)]))
    with pytest.raises(SchemaError, match=r"(?i)collat"):
        Schema.parse("place STRING COLLATE UTF8_LCASE")


def test_columns_are_found_by_name_and_an_unknown_one_lists_the_known() -> None:
    schema = Schema.parse("a INT, b STRING, c DOUBLE")
    assert [schema.index(n) for n in "abc"] == [0, 1, 2]
    with pytest.raises(SchemaError, match=r"'d'.*a, b, c"):
        schema.index("d")
    assert schema.select([2, 0]) is Schema.parse("c DOUBLE, a INT")


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"not unique: a; rename"):
        Schema(pa.schema([("a", pa.int32()), ("b", pa.int32()), ("a", pa.string())]))
    for ddl in ("s STRUCT<x: INT, x: STRING>", "s ARRAY<STRUCT<y: INT, x: INT, x: STRING>>"):
        with pytest.raises(SchemaError, match=r"'s'.*x"):
            Schema.parse(ddl)


# ------------------------------------------------------------------------------------------------------- nodes


def _tree(schema: Schema, index: int, dtype: pa.DataType, seen: list[int], row: bool) -> list[int]:
    """Walk the nodes of one column as the kernels do; returns those whose rows are the rows of the batch."""
    node = schema.nodes[index]
    seen.append(index)
    assert node.type == dtype
    rows = [index] if row else []
    if pa.types.is_struct(dtype):
        assert (node.kind, node.width) == (nd.STRUCT, dtype.num_fields)
        for i, field in enumerate(dtype):
            rows += _tree(schema, node.child + i, field.type, seen, row)
    elif pa.types.is_map(dtype):
        assert node.kind == nd.LIST
        _tree(schema, node.child, pa.struct([dtype.key_field, dtype.item_field]), seen, False)
    elif pa.types.is_list(dtype):
        assert node.kind == nd.LIST
        _tree(schema, node.child, dtype.value_type, seen, False)
    return rows


@given(schemas(depth=3))
def test_the_nodes_form_the_trees_of_the_columns(schema: Schema) -> None:
    seen: list[int] = []
    rows = list(range(nd.LANES))
    for c, dtype in enumerate(schema.types):
        rows += _tree(schema, nd.LANES + c, dtype, seen, True)
    assert sorted(seen) == list(range(nd.LANES, schema.node_count)), "every node belongs to one column"
    assert sorted(schema.row_nodes.tolist()) == sorted(rows)
    assert schema.nested == any(pa.types.is_nested(t) for t in schema.types)
    assert schema.template.shape == (schema.node_count, nd.FIELDS)
    for i, node in enumerate(schema.nodes):
        assert schema.template[i, [nd.KIND, nd.WIDTH, nd.CHILD, nd.MASK]].tolist() == [
            node.kind, node.width, node.child, -1,
        ]  # fmt: skip


def test_the_template_cannot_be_written() -> None:
    template: Any = Schema.parse("a INT").template
    with pytest.raises(ValueError, match="read-only"):
        template[0, 0] = 1
    assert isinstance(template, np.ndarray)


@given(st.sampled_from([t for t, _ in CANONICAL]), st.sampled_from(["a", "Ä", "x y"]))
def test_the_repr_names_every_column_and_type(dtype: pa.DataType, name: str) -> None:
    schema = Schema(pa.schema([(name, dtype)]))
    assert repr(schema) == f"Schema({name}: {schema.types[0]})"
