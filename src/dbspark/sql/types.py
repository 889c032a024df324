"""Spark's types as Arrow types, from the names that Catalyst's JSON gives them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dbspark.columnar.ddl import parse_ddl
from dbspark.columnar.schema import Schema, canonical


def from_json(given: Any) -> pa.DataType:
    """The canonical Arrow type; everything inside nested types may be NULL, as what kernels give may."""
    if isinstance(given, dict):
        kind = given["type"]
        if kind == "struct":
            return pa.struct([pa.field(f["name"], from_json(f["type"])) for f in given["fields"]])
        if kind == "array":
            return pa.list_(pa.field("element", from_json(given["elementType"])))
        if kind == "map":
            return pa.map_(
                pa.field("key", from_json(given["keyType"]), False), pa.field("value", from_json(given["valueType"]))
            )
        if kind == "udt":
            return from_json(given["sqlType"])
        raise ValueError(f"unknown type {given}")
    names = {
        "long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "interval": "interval",
    }  # fmt: skip
    name = names.get(given, given)
    if name in ("void", "null"):
        return pa.null()
    return canonical(parse_ddl(f"c {name}").field(0).type, "column")


def struct_of(schema: Schema) -> Any:
    """A Spark schema of an Arrow one."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    plain = pa.schema([pa.field(f.name, f.type, f.nullable) for f in schema.arrow])
    made = from_arrow_schema(plain, prefer_timestamp_ntz=True)
    return StructType([StructField(f.name, f.dataType, f.nullable) for f in made.fields])


def loosened(dtype: pa.DataType) -> pa.DataType:
    """The same type with everything inside it nullable."""
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, loosened(f.type)) for f in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(pa.field("key", loosened(dtype.key_type), False), pa.field("value", loosened(dtype.item_type)))
    if pa.types.is_list(dtype):
        return pa.list_(pa.field("element", loosened(dtype.value_type)))
    return dtype
