"""Bringing Arrow data into the canonical types of a schema, or saying which column does not fit.

Another layout of the same Spark type is cast (large strings, dictionaries, nanoseconds), and so is a number into a
number type that holds it exactly; integers may also be narrowed, and are checked one by one. Anything else is
refused: a string is not a number that somebody forgot to parse.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.schema import Schema, canonical
from dbspark.errors import SchemaError


def conform(schema: Schema, given: pa.Schema, arrays: Iterable[pa.Array]) -> list[pa.Array]:
    """The arrays of a schema's columns, in its order and types."""
    if given.equals(schema.arrow) and not schema.nested and not schema.required:
        return list(arrays)
    if tuple(given.names) != schema.names:
        arrays = _in_order(schema, given, list(arrays))
    return [_fit(field, array) for field, array in zip(schema.arrow, arrays, strict=True)]


def _in_order(schema: Schema, given: pa.Schema, arrays: list[pa.Array]) -> list[pa.Array]:
    missing = [n for n in schema.names if n not in given.names]
    surplus = [n for n in given.names if n not in schema.names]
    twice = sorted({n for n in given.names if given.names.count(n) > 1})
    if missing or surplus or twice:
        raise SchemaError(
            "the columns do not fit"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; not expected: {', '.join(surplus)}" if surplus else "")
            + (f"; given twice: {', '.join(twice)}" if twice else "")
            + f"; the schema is {', '.join(schema.names)}"
        )
    by_name = dict(zip(given.names, arrays, strict=True))
    return [by_name[n] for n in schema.names]


def _fit(field: pa.Field, array: pa.Array) -> pa.Array:
    if array.type != field.type:
        if not _castable(array.type, field.type):
            raise SchemaError(f"column {field.name!r}: expected {field.type}, given {array.type}; cast it first")
        try:
            array = _cast(array, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaError(f"column {field.name!r}: expected {field.type}, given {array.type}: {error}") from None
    _check_nulls(field, array, field.name)
    return array


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_nested(wanted) and not _same_layout(array.type, wanted):
        # By way of Python: rare, and Arrow's own cast loses values of sliced views and minds NULLs in NULL parents.
        return pa.array(array.to_pylist(), wanted)
    return array.cast(wanted)


def _same_layout(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast only has to rename fields."""
    try:
        return bool(str(canonical(given, "")) == str(wanted)) and "view" not in str(given)
    except SchemaError:
        return False


def _castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    t = pa.types
    if t.is_null(given):
        return True
    if t.is_integer(given):
        if t.is_integer(wanted):
            return True  # a value that does not fit fails the cast
        digits = {1: 3, 2: 5, 4: 10, 8: 20}[given.bit_width // 8]
        if t.is_decimal(wanted):
            return bool(wanted.precision - wanted.scale >= digits)
        return bool(t.is_float64(wanted) and given.bit_width <= 32)
    if t.is_floating(given) and t.is_float64(wanted):
        return True
    if t.is_decimal(given) and t.is_decimal(wanted):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return bool(wanted.scale >= given.scale and whole)
    if t.is_struct(given) and t.is_struct(wanted):
        same_names = [f.name for f in given] == [f.name for f in wanted]
        return same_names and all(_castable(g.type, w.type) for g, w in zip(given, wanted, strict=True))
    if t.is_map(given) and t.is_map(wanted):
        return _castable(given.key_type, wanted.key_type) and _castable(given.item_type, wanted.item_type)
    if t.is_list(wanted) and hasattr(given, "value_type") and not t.is_dictionary(given):
        return _castable(given.value_type, wanted.value_type)
    try:
        return bool(canonical(given, "") == wanted)
    except SchemaError:
        return False


def _check_nulls(field: pa.Field, array: pa.Array, name: str) -> None:
    """Refuse a NULL where the schema has none, at any depth."""
    if not field.nullable and array.null_count:
        raise SchemaError(f"column {name!r} is NOT NULL, but {array.null_count} of its values are NULL")
    dtype = field.type
    if not pa.types.is_nested(dtype) or not _restricted(dtype):
        return
    if pa.types.is_struct(dtype):
        there = array.is_valid()
        for i, child in enumerate(dtype):
            _check_nulls(child, array.field(i).filter(there), f"{name}.{child.name}")
    elif pa.types.is_map(dtype):
        entries = array.filter(array.is_valid())
        _check_nulls(dtype.key_field, entries.keys, f"{name}.key")
        _check_nulls(dtype.item_field, entries.items, f"{name}.value")
    else:
        _check_nulls(dtype.value_field, pc.list_flatten(array), f"{name}.element")


def _restricted(dtype: pa.DataType) -> bool:
    """Whether anything inside a nested type is NOT NULL (a map's keys always are)."""
    if pa.types.is_struct(dtype):
        return any(not f.nullable or _restricted(f.type) for f in dtype)
    if pa.types.is_map(dtype):
        return True
    if pa.types.is_list(dtype):
        return not dtype.value_field.nullable or _restricted(dtype.value_type)
    return False
