"""Spark's types as Arrow types, from the names that Catalyst's JSON gives them."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from dbspark.columnar.ddl import check_collation, parse_ddl
from dbspark.columnar.schema import canonical
from dbspark.errors import SchemaError


def from_json(given: Any) -> pa.DataType:
    """The canonical Arrow type; everything inside nested types is nullable, because it is in the results of kernels."""
    if given == []:  # Catalyst writes a struct without fields as an empty list
        return pa.struct([])
    if isinstance(given, dict):
        kind = given["type"]
        if kind == "struct":
            for f in given["fields"]:  # in structs, a type says string, and metadata which collation
                for collation in f.get("metadata", {}).get("__COLLATIONS", {}).values():
                    check_collation(collation)
            return pa.struct([pa.field(f["name"], from_json(f["type"])) for f in given["fields"]])
        if kind == "array":
            return pa.list_(pa.field("element", from_json(given["elementType"])))
        if kind == "map":
            key = from_json(given["keyType"])
            if pa.types.is_null(key):  # map() in Spark: Arrow has no keys without a type
                raise SchemaError(
                    "a map whose keys have no type is not supported, as map() gives one; give it the type that is "
                    "meant, such as CAST(map() AS MAP<STRING, INT>)"
                )
            return pa.map_(pa.field("key", key, False), pa.field("value", from_json(given["valueType"])))
        if kind == "udt":
            return from_json(given["sqlType"])
        raise ValueError(f"unknown type {given}")
    names = {
        "long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "interval": "interval",
    }  # fmt: skip
    name = names.get(given, given)
    if name in ("void", "null"):
        return pa.null()
    return with_nullable_children(canonical(parse_ddl(f"c {name}").field(0).type, "column"))


def with_spark_type(field: pa.Field, given: Any) -> pa.Field:
    """A field of ours, whose metadata say at every level what Arrow's types do not say of Spark's, given as JSON."""
    dtype, t = field.type, pa.types
    if isinstance(given, dict):
        kind = given["type"]
        if kind == "udt":
            return with_spark_type(field, given["sqlType"])
        if kind == "struct" and t.is_struct(dtype):
            members = zip(dtype, given["fields"], strict=True)
            return field.with_type(pa.struct([with_spark_type(member, f["type"]) for member, f in members]))
        if kind == "array" and t.is_list(dtype):
            return field.with_type(pa.list_(with_spark_type(dtype.value_field, given["elementType"])))
        if kind == "map" and t.is_map(dtype):
            key = with_spark_type(dtype.key_field, given["keyType"])
            return field.with_type(pa.map_(key, with_spark_type(dtype.item_field, given["valueType"])))
        return field
    if isinstance(given, str) and given not in ("void", "null") and not t.is_null(dtype) and has_no_arrow_type(given):
        declared = parse_ddl(f"c {given}").field(0)
        if given != "variant":
            return field.with_metadata(declared.metadata)
        members = zip(dtype, declared.type, strict=True)
        return field.with_type(pa.struct([member.with_metadata(d.metadata) for member, d in members]))
    return field


def has_no_arrow_type(given: Any) -> bool:
    """Whether Arrow's type alone does not say which Spark type this is, or one inside it."""
    return _PECULIAR.search(json.dumps(given)) is not None


_PECULIAR = re.compile(r'"(variant|time\((?!6\))\d\)|interval (?!day to second")[a-z ]+)"')


def with_nullable_children(dtype: pa.DataType) -> pa.DataType:
    """The same type with everything inside it nullable."""
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, with_nullable_children(f.type), metadata=f.metadata) for f in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(
            pa.field("key", with_nullable_children(dtype.key_type), False),
            pa.field("value", with_nullable_children(dtype.item_type)),
        )
    if pa.types.is_list(dtype):
        return pa.list_(pa.field("element", with_nullable_children(dtype.value_type)))
    return dtype
