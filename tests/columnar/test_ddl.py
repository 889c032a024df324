"""Spark's DDL, read without a JVM: every Spark SQL type, and errors that name the column and say what to do."""

import pyarrow as pa
import pytest

from dbspark.columnar import Schema
from dbspark.columnar.ddl import parse_ddl
from dbspark.errors import SchemaError

UTC = pa.timestamp("us", tz="UTC")
TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL": pa.decimal128(10, 0),
    "DEC(5)": pa.decimal128(5, 0),
    "NUMERIC(38, 38)": pa.decimal128(38, 38),
    "decimal( 12 , 2 )": pa.decimal128(12, 2),
    "STRING": pa.string(),
    "CHAR(3)": pa.string(),
    "CHARACTER(3)": pa.string(),
    "VARCHAR(255)": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": UTC,
    "TIMESTAMP_LTZ": UTC,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "TIME": pa.time64("ns"),
    "TIME(6)": pa.time64("ns"),
    "INTERVAL": pa.month_day_nano_interval(),
    "INTERVAL YEAR": pa.int32(),
    "INTERVAL MONTH": pa.int32(),
    "INTERVAL YEAR TO MONTH": pa.int32(),
    "INTERVAL DAY": pa.duration("us"),
    "INTERVAL DAY TO SECOND": pa.duration("us"),
    "INTERVAL HOUR TO MINUTE": pa.duration("us"),
    "INTERVAL SECOND": pa.duration("us"),
    "VOID": pa.null(),
    "ARRAY<INT>": pa.list_(pa.field("element", pa.int32())),
    "ARRAY<ARRAY<DECIMAL(5,2)>>": pa.list_(pa.field("element", pa.list_(pa.field("element", pa.decimal128(5, 2))))),
    "MAP<STRING, BIGINT>": pa.map_(pa.string(), pa.int64()),
    "MAP<DATE,MAP<INT,ARRAY<STRING>>>": pa.map_(
        pa.date32(), pa.map_(pa.int32(), pa.list_(pa.field("element", pa.string())))
    ),
    "STRUCT<>": pa.struct([]),
    "STRUCT<x: INT>": pa.struct([pa.field("x", pa.int32())]),
    "STRUCT<x INT NOT NULL, `y z`: STRING COMMENT 'a, b> c'>": pa.struct(
        [pa.field("x", pa.int32(), False), pa.field("y z", pa.string())]
    ),
    "ARRAY<STRUCT<m: MAP<STRING, STRUCT<d: DOUBLE>>>>": pa.list_(
        pa.field("element", pa.struct([pa.field("m", pa.map_(pa.string(), pa.struct([pa.field("d", pa.float64())])))]))
    ),
}


@pytest.mark.parametrize("spark", TYPES)
def test_every_spark_type_has_its_arrow_type(spark: str) -> None:
    for text in (spark, spark.lower() if "COMMENT" not in spark else spark):
        schema = Schema.parse(f"before INT, c {text}, after STRING NOT NULL")
        assert schema.names == ("before", "c", "after")
        assert schema.types == (pa.int32(), TYPES[spark], pa.string())
        assert [f.nullable for f in schema.arrow] == [True, True, False]


@pytest.mark.parametrize("spark", TYPES)
def test_every_spark_type_nests_in_arrays_structs_and_maps(spark: str) -> None:
    inner = TYPES[spark]
    schema = Schema.parse(f"a ARRAY<{spark}>, s STRUCT<f: {spark}>, m MAP<INT, {spark}>")
    assert schema.types == (
        pa.list_(pa.field("element", inner)),
        pa.struct([pa.field("f", inner)]),
        pa.map_(pa.int32(), inner),
    )


def test_nullability_is_kept_at_every_depth() -> None:
    schema = Schema.parse("s STRUCT<x: INT NOT NULL, y: STRUCT<z: STRING NOT NULL>> NOT NULL, m MAP<INT, INT>")
    outer, entries = schema.arrow.field("s"), schema.arrow.field("m").type
    assert not outer.nullable
    assert [f.nullable for f in outer.type] == [False, True]
    assert not outer.type.field(1).type.field(0).nullable
    assert not entries.key_field.nullable
    assert entries.item_field.nullable


def test_names_are_kept_as_written() -> None:
    ddl = "Id BIGINT, `order by` INT, `a``b` INT, `ключ` INT, _x1 INT, 2nd INT, date DATE, `map` MAP<INT, INT>"
    assert Schema.parse(ddl).names == ("Id", "order by", "a`b", "ключ", "_x1", "2nd", "date", "map")


def test_comments_and_white_space_are_skipped() -> None:
    text = """
        id   BIGINT NOT NULL COMMENT 'the key, it\\'s > 0',
        v    STRING COMMENT "or 'so'" NOT NULL
    """
    assert Schema.parse(text) is Schema.parse("id BIGINT NOT NULL, v STRING NOT NULL")


def test_a_type_that_arrow_lacks_is_named_in_the_metadata() -> None:
    def known(ddl: str) -> str | None:
        metadata = Schema.parse(f"c {ddl}").arrow.field("c").metadata
        return None if metadata is None else str(metadata[b"spark"].decode())

    for ddl in (
        "INTERVAL YEAR TO MONTH", "INTERVAL YEAR", "INTERVAL MONTH", "INTERVAL DAY", "INTERVAL HOUR TO SECOND",
        "INTERVAL SECOND", "TIME(0)", "TIME(9)",
    ):  # fmt: skip
        assert known(ddl) == ddl.lower()
    for ddl in ("INT", "INTERVAL DAY TO SECOND", "TIME", "TIME(6)", "TIMESTAMP_NTZ"):
        assert known(ddl) is None
    years = {b"spark": b"interval year"}
    struct = Schema.parse("s STRUCT<y: INTERVAL YEAR>").types[0]
    assert struct.field(0).metadata == years
    assert Schema.parse("a ARRAY<INTERVAL YEAR>").types[0].value_field.metadata == years
    mapped = Schema.parse("m MAP<INTERVAL YEAR, INTERVAL YEAR>").types[0]
    assert mapped.key_field.metadata == mapped.item_field.metadata == years


def test_a_variant_is_its_two_binaries_and_known_as_a_variant() -> None:
    dtype = Schema.parse("v VARIANT").types[0]
    assert [(f.name, f.type, f.nullable) for f in dtype] == [
        ("value", pa.binary(), False),
        ("metadata", pa.binary(), False),
    ]
    assert dtype.field("metadata").metadata == {b"variant": b"true"}


ERRORS = {
    "a FOO": ["'a'", "foo"],
    "a BIGINT, b FOO": ["'b'", "foo"],
    "a BIGINT, s STRUCT<x: INT, y: BAR>": ["'s'", "'y'", "bar"],
    "a ARRAY<BAZ>": ["'a'", "baz"],
    "a": ["'a'", "ends too early"],
    "a BIGINT,": ["ends too early"],
    "": ["empty", "id BIGINT"],
    "   ": ["empty", "id BIGINT"],
    "a BIGINT b INT": ["unexpected", "'b'"],
    "a DECIMAL(39, 1)": ["'a'", "decimal(39,1)", "1 to 38"],
    "a DECIMAL(0)": ["'a'", "decimal(0,0)", "1 to 38"],
    "a DECIMAL(3, 4)": ["'a'", "decimal(3,4)"],
    "a TIME(10)": ["'a'", "time(10)", "0 to 9"],
    "a STRING COLLATE UNICODE_CI": ["'a'", "UNICODE_CI", "lower(column)", "plain STRING"],
    "a CHAR(3) COLLATE UTF8_LCASE": ["'a'", "UTF8_LCASE", "lower(column)"],
    "a GEOMETRY(4326)": ["'a'", "geometry", "ST_AsBinary"],
    "a ARRAY<GEOGRAPHY(4326)>": ["'a'", "geography", "ST_AsBinary"],
    "a DECIMAL(x)": ["'a'", "number", "'x'"],
    "a DECIMAL(5": ["'a'", "ends too early"],
    "a VARCHAR": ["'a'", "ends too early"],
    "a MAP<STRING>": ["'a'", "','"],
    "a ARRAY<>": ["'a'", "'>'"],
    "a STRUCT<x INT,>": ["'a'"],
    "a STRUCT<x INT": ["'a'", "ends too early"],
    "a INTERVAL YEAR TO DAY": ["'a'", "month"],
    "a INTERVAL DAY TO YEAR": ["'a'", "interval day to year"],
    "a INTERVAL SECOND TO DAY": ["'a'", "interval second to day"],
    "a INTERVAL DAY TO DAY": ["'a'", "interval day to day"],
    "a INT NOT": ["'a'", "ends too early"],
    "a INT NOT NIL": ["'a'", "'null'", "'NIL'"],
    "a BIGINT; b INT": ["'; b INT'"],
    "ключ INT": ["'ключ INT'"],
    "a INT, a STRING": ["not unique", "a", "rename"],
}


@pytest.mark.parametrize("ddl", ERRORS)
def test_an_error_says_where_and_what(ddl: str) -> None:
    with pytest.raises(SchemaError) as raised:
        Schema.parse(ddl)
    for part in ERRORS[ddl]:
        assert part in str(raised.value)


def test_parse_ddl_gives_a_plain_arrow_schema() -> None:
    assert parse_ddl("a INT, b STRING NOT NULL") == pa.schema([("a", pa.int32()), pa.field("b", pa.string(), False)])
