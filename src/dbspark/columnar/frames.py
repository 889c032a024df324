"""Spark DataFrames of Arrow tables, and back, in Spark's own types.

Arrow has fewer types than Spark: where a field's type does not say which Spark type it is, its metadata does
(`dbspark.columnar.ddl`). `struct_of` reads both, so a DataFrame has the types that Spark itself would give.

PySpark cannot convert year-month intervals to or from Arrow. They cross as INT, the number of months, which is also how
Spark keeps them in memory. `relabelled` changes the types of the DataFrame: after import back to intervals, before
export to INT.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


def spark_type(field: pa.Field) -> DataType:
    """The Spark type of a column, an element or a member of a struct."""
    from pyspark.sql import types as st
    from pyspark.sql.pandas.types import from_arrow_type

    named = (field.metadata or {}).get(b"spark")
    if named is not None:
        return st._parse_datatype_json_value(named.decode())
    dtype, t = field.type, pa.types
    if t.is_struct(dtype):
        return st.VariantType() if is_variant(dtype) else struct_of(pa.schema(list(dtype)))
    if t.is_map(dtype):
        return st.MapType(spark_type(dtype.key_field), spark_type(dtype.item_field), dtype.item_field.nullable)
    if t.is_list(dtype):
        return st.ArrayType(spark_type(dtype.value_field), dtype.value_field.nullable)
    check_storable([field])
    return from_arrow_type(dtype, prefer_timestamp_ntz=True)


def struct_of(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow one."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, spark_type(f), f.nullable) for f in schema])


def check_storable(fields: Iterable[pa.Field]) -> None:
    """Raise for types that Spark allows for values but not for columns of tables."""
    for field in fields:
        if pa.types.is_interval(field.type):
            raise SchemaError(
                f"column {field.name!r}: calendar intervals (INTERVAL without units) cannot be compared, so neither "
                "Spark nor dbspark keeps them in tables; use INTERVAL DAY TO SECOND or INTERVAL YEAR TO MONTH"
            )
        if pa.types.is_nested(field.type):
            check_storable(field.type.field(i) for i in range(field.type.num_fields))


def is_variant(dtype: pa.DataType) -> bool:
    """Whether a struct is the two binaries of a VARIANT."""
    return (
        pa.types.is_struct(dtype)
        and [f.name for f in dtype] == ["value", "metadata"]
        and (dtype.field(1).metadata or {}).get(b"variant") == b"true"
    )


def in_months(spark: Any, wide: bool = False) -> Any:
    """The same Spark type with INT instead of year-month intervals.

    `wide`: also replace day-time intervals and TIME by their widest forms, the only ones that Python workers return.
    """
    from pyspark.sql import types as st

    def plain(given: Any) -> Any:
        return in_months(given, wide)

    if isinstance(spark, st.YearMonthIntervalType):
        return st.IntegerType()
    if wide and isinstance(spark, st.DayTimeIntervalType):
        return st.DayTimeIntervalType()
    if wide and isinstance(spark, st.TimeType):
        return st.TimeType()
    if isinstance(spark, st.ArrayType):
        return st.ArrayType(plain(spark.elementType), spark.containsNull)
    if isinstance(spark, st.MapType):
        return st.MapType(plain(spark.keyType), plain(spark.valueType), spark.valueContainsNull)
    if isinstance(spark, st.StructType):
        return st.StructType([st.StructField(f.name, plain(f.dataType), f.nullable) for f in spark.fields])
    return spark


def relabelled(frame: DataFrame, struct: StructType) -> DataFrame:
    """The same rows under other types, which Spark keeps in memory in the same way."""
    from pyspark.sql import DataFrame as Frame

    session: Any = frame.sparkSession._jsparkSession
    rows = frame._jdf.queryExecution().toRdd()
    schema = session.parseDataType(struct.json())
    return Frame(session.internalCreateDataFrame(rows, schema, False), frame.sparkSession)


def frame_of(spark: SparkSession, table: pa.Table, struct: StructType | None = None) -> DataFrame:
    """A DataFrame of a table, with the types of `struct` if it is given, else those of the table."""
    wanted = struct_of(table.schema) if struct is None else struct
    plain = in_months(wanted)
    if any(column.num_chunks == 0 for column in table.columns):  # PySpark does not take nested columns without chunks
        table = pa.Table.from_batches([pa.RecordBatch.from_pylist([], table.schema)])
    frame = spark.createDataFrame(as_pyspark_has_it(table, plain), plain)
    return frame if plain == wanted else relabelled(frame, wanted)


def arrow_of(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame."""
    plain = in_months(frame.schema)
    rows: Any = frame if plain == frame.schema else relabelled(frame, plain)
    if not _holds_variants(plain):
        try:
            table: pa.Table = rows.toArrow()
        except pa.ArrowInvalid:  # pyarrow refuses a NULL struct with NOT NULL fields, because its fields have no value
            loose = nullable_inside(rows)
            if loose is rows:
                raise
            table = loose.toArrow()
        return table
    # toArrow() fails on a NULL of type VARIANT: Spark marks its two NOT NULL binaries as NULL.
    return as_pyspark_has_it(pa.Table.from_batches(rows._collect_as_arrow(empty_list_if_zero_records=False)), plain)


def as_pyspark_has_it(table: pa.Table, struct: StructType) -> pa.Table:
    """The same rows in the Arrow types that PySpark makes for `struct`; only VARIANT columns need a conversion."""
    if not _holds_variants(struct):
        return table
    schema = arrow_schema(struct)
    columns = [
        pa.chunked_array([_relaid(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _holds_variants(struct: StructType) -> bool:
    return '"variant"' in struct.json()


def _relaid(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The values in a type of the same layout. NOT NULL members of a NULL struct are filled with empty values."""
    t = pa.types
    mask = array.is_null() if array.null_count else None
    if t.is_struct(dtype):
        members = [_relaid(array.field(i), field.type) for i, field in enumerate(dtype)]
        members = [m if f.nullable or not m.null_count else _filled(m) for m, f in zip(members, dtype, strict=True)]
        if not members:
            return array
        return pa.StructArray.from_arrays(members, fields=list(dtype), mask=mask)
    if not t.is_nested(dtype) or not len(array):
        return array.cast(dtype)
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    offsets = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
    if t.is_map(dtype):
        keys, items = array.keys, array.items
        if len(keys) != last - first:
            keys, items = keys.slice(first, last - first), items.slice(first, last - first)
        keys, items = _relaid(keys, dtype.key_type), _relaid(items, dtype.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=dtype, mask=mask)
    values = _relaid(array.values.slice(first, last - first), dtype.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=dtype, mask=mask)


def _filled(array: pa.Array) -> pa.Array:
    """A binary array with empty values instead of NULLs; other arrays as they are."""
    return pc.fill_null(array, pa.scalar(b"", array.type)) if pa.types.is_binary(array.type) else array


def arrow_schema(struct: StructType) -> pa.Schema:
    """The Arrow schema of the tables that `arrow_of` returns for a Spark schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(in_months(struct), timezone="UTC")


def nullable_inside(frame: Any) -> Any:
    """The DataFrame with everything inside nested columns nullable; itself where it is that already."""
    schema = frame.schema
    given = schema.jsonValue()
    fields = [{**field, "type": _nullable(field["type"])} for field in given["fields"]]
    if fields == given["fields"]:
        return frame
    return frame.to(type(schema).fromJson({**given, "fields": fields}))


def _nullable(given: Any) -> Any:
    """A type of Spark, as JSON, with everything inside it nullable."""
    kind = given["type"] if isinstance(given, dict) else given
    if kind == "struct":
        return {**given, "fields": [{**f, "type": _nullable(f["type"]), "nullable": True} for f in given["fields"]]}
    if kind == "array":
        return {**given, "elementType": _nullable(given["elementType"]), "containsNull": True}
    if kind == "map":
        made = {name: _nullable(given[name]) for name in ("keyType", "valueType")}
        return {**given, **made, "valueContainsNull": True}
    return given


__all__ = [
    "arrow_of", "arrow_schema", "as_pyspark_has_it", "check_storable", "frame_of", "in_months", "is_variant",
    "nullable_inside", "relabelled", "spark_type", "struct_of",
]  # fmt: skip
