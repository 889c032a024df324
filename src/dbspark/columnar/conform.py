"""Conforms Arrow data to a schema: casts columns to its canonical types, or raises an error that names the column.

Other layouts of the same Spark type (large strings, dictionaries, nanoseconds) are cast, and so are numbers to a number
type that holds them exactly. Integers may also be narrowed; each value is checked. Anything else is refused, for
instance strings for a number column: nothing is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.schema import Schema, canonical
from dbspark.errors import SchemaError


def conform(schema: Schema, source: pa.Schema, arrays: Iterable[pa.Array]) -> list[pa.Array]:
    """The arrays of a schema's columns, in its order and types."""
    if source.equals(schema.arrow) and not schema.nested and not schema.required:
        return list(arrays)
    if tuple(source.names) != schema.names:
        arrays = _reorder(schema, source, list(arrays))
    given = list(arrays)
    conformed = []
    for field, array in zip(schema.arrow, given, strict=True):
        if not field.nullable and array.null_count:
            at = array.is_null().index(True).as_py()
            row, count = tuple(column[at].as_py() for column in given), array.null_count
            raise SchemaError(
                f"column {field.name!r} is NOT NULL, but {count} of its values are NULL, the first one in the row {row}"
            )
        conformed.append(_conform_column(field, array))
    return conformed


def _reorder(schema: Schema, source: pa.Schema, arrays: list[pa.Array]) -> list[pa.Array]:
    names = list(source.names)
    if len({n.lower() for n in schema.names}) == schema.columns:  # names ignore case, as Spark's do
        by_lower = {n.lower(): n for n in schema.names}
        meant = [by_lower.get(n.lower(), n) for n in names]
        names = [n if n in schema.names or m in source.names else m for n, m in zip(names, meant, strict=True)]
    missing = [n for n in schema.names if n not in names]
    surplus = [n for n in names if n not in schema.names]
    twice = sorted({n for n in names if names.count(n) > 1})
    if missing or surplus or twice:
        raise SchemaError(
            "the columns do not fit"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; not expected: {', '.join(surplus)}" if surplus else "")
            + (f"; given twice: {', '.join(twice)}" if twice else "")
            + f"; the schema is {', '.join(schema.names)}"
        )
    by_name = dict(zip(names, arrays, strict=True))
    return [by_name[n] for n in schema.names]


def _conform_column(field: pa.Field, array: pa.Array) -> pa.Array:
    if array.type != field.type:
        if not _castable(array.type, field.type):
            raise SchemaError(f"column {field.name!r}: expected {field.type}, given {array.type}; cast it first")
        try:
            array = _cast(array, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaError(f"column {field.name!r}: expected {field.type}, given {array.type}: {error}") from None
    _check_nulls(field, array, field.name)
    return array


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_nested(target) and not _same_layout(array.type, target):
        # Through Python objects, slow but rare: Arrow's own cast loses values of sliced views and fails on NULLs inside
        # NULL parents.
        return pa.array(array.to_pylist(), target)
    return array.cast(target)


def _same_layout(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow's cast only has to rename fields."""
    try:
        return bool(str(canonical(source, "")) == str(target)) and "view" not in str(source)
    except SchemaError:
        return False


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    t = pa.types
    if t.is_null(source):
        return True
    if t.is_integer(source):
        if t.is_integer(target):
            return True  # the cast raises if a value does not fit
        digits = {1: 3, 2: 5, 4: 10, 8: 20}[source.bit_width // 8]
        if t.is_decimal(target):
            return bool(target.precision - target.scale >= digits)
        return bool(t.is_float64(target) and source.bit_width <= 32)
    if t.is_floating(source) and t.is_float64(target):
        return True
    if t.is_decimal(source) and t.is_decimal(target):
        whole = target.precision - target.scale >= source.precision - source.scale
        return bool(target.scale >= source.scale and whole)
    if t.is_struct(source) and t.is_struct(target):
        same_names = [f.name for f in source] == [f.name for f in target]
        return same_names and all(_castable(g.type, w.type) for g, w in zip(source, target, strict=True))
    if t.is_map(source) and t.is_map(target):
        return _castable(source.key_type, target.key_type) and _castable(source.item_type, target.item_type)
    if t.is_list(target) and hasattr(source, "value_type") and not t.is_dictionary(source):
        return _castable(source.value_type, target.value_type)
    try:
        return bool(canonical(source, "") == target)
    except SchemaError:
        return False


def _check_nulls(field: pa.Field, array: pa.Array, name: str) -> None:
    """Refuse a NULL where the schema has none, at any depth."""
    if not field.nullable and array.null_count:
        raise SchemaError(f"column {name!r} is NOT NULL, but {array.null_count} of its values are NULL")
    dtype = field.type
    if not pa.types.is_nested(dtype) or not _has_not_null(dtype):
        return
    if pa.types.is_struct(dtype):
        present = array.is_valid()
        for i, child in enumerate(dtype):
            _check_nulls(child, array.field(i).filter(present), f"{name}.{child.name}")
    elif pa.types.is_map(dtype):
        entries = array.filter(array.is_valid())
        _check_nulls(dtype.key_field, entries.keys, f"{name}.key")
        _check_nulls(dtype.item_field, entries.items, f"{name}.value")
    else:
        _check_nulls(dtype.value_field, pc.list_flatten(array), f"{name}.element")


def _has_not_null(dtype: pa.DataType) -> bool:
    """Whether anything inside a nested type is NOT NULL (a map's keys always are)."""
    if pa.types.is_struct(dtype):
        return any(not f.nullable or _has_not_null(f.type) for f in dtype)
    if pa.types.is_map(dtype):
        return True
    if pa.types.is_list(dtype):
        return not dtype.value_field.nullable or _has_not_null(dtype.value_type)
    return False
