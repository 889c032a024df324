"""Spark DataFrames of Arrow tables, and back, in Spark's own types.

Arrow has fewer types than Spark: where a field's type does not say which Spark type it is, its metadata does
(`dbspark.columnar.ddl`). `struct_of` reads both, so a DataFrame has the types that Spark itself would give.

PySpark cannot convert year-month intervals to Arrow or from it. They are INT there, as many months, which is how Spark
keeps them in memory, and the DataFrame is given the real types afterwards, or before (`relabelled`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

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
    """Refuse types of which Spark has values, but no columns of tables."""
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


def in_months(spark: Any) -> Any:
    """The same Spark type with INT in the place of year-month intervals."""
    from pyspark.sql import types as st

    if isinstance(spark, st.YearMonthIntervalType):
        return st.IntegerType()
    if isinstance(spark, st.ArrayType):
        return st.ArrayType(in_months(spark.elementType), spark.containsNull)
    if isinstance(spark, st.MapType):
        return st.MapType(in_months(spark.keyType), in_months(spark.valueType), spark.valueContainsNull)
    if isinstance(spark, st.StructType):
        return st.StructType([st.StructField(f.name, in_months(f.dataType), f.nullable) for f in spark.fields])
    return spark


def relabelled(frame: DataFrame, struct: StructType) -> DataFrame:
    """The same rows under other types, which Spark keeps in memory in the same way."""
    from pyspark.sql import DataFrame as Frame

    session: Any = frame.sparkSession._jsparkSession
    rows = frame._jdf.queryExecution().toRdd()
    schema = session.parseDataType(struct.json())
    return Frame(session.internalCreateDataFrame(rows, schema, False), frame.sparkSession)


def frame_of(spark: SparkSession, table: pa.Table, struct: StructType | None = None) -> DataFrame:
    """A DataFrame of a table; of other types than the table says if they are given."""
    wanted = struct_of(table.schema) if struct is None else struct
    plain = in_months(wanted)
    if any(column.num_chunks == 0 for column in table.columns):  # PySpark does not take nested columns without chunks
        table = pa.Table.from_batches([pa.RecordBatch.from_pylist([], table.schema)])
    frame = spark.createDataFrame(table, plain)
    return frame if plain == wanted else relabelled(frame, wanted)


def arrow_of(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame."""
    plain = in_months(frame.schema)
    return (frame if plain == frame.schema else relabelled(frame, plain)).toArrow()


def arrow_schema(struct: StructType) -> pa.Schema:
    """The schema of `arrow_of`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(in_months(struct), timezone="UTC")


__all__ = [
    "arrow_of", "arrow_schema", "check_storable", "frame_of", "in_months", "is_variant", "relabelled", "spark_type",
    "struct_of",
]  # fmt: skip
