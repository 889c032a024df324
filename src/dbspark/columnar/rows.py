"""Python rows: the form in which users hand rows to a Z-set and get them back.

A row is a hashable tuple, one item per column: integers are `int`, strings `str`, arrays tuples, structs tuples of
their fields, maps tuples of (key, value) pairs in key order, variants PySpark's `VariantVal` with an equality. Equal
rows in Spark's sense are equal tuples: every NaN is the one `NAN` object (tuples compare by identity first), floats of
4 bytes are rounded as they are stored.

`row_normaliser(schema)` compiles a function that brings any acceptable row into this form or names the wrong column.
Rows are the slow way in and out; no hot path uses them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dbspark.columnar.chunk import sort_maps
from dbspark.columnar.frames import is_variant
from dbspark.columnar.schema import Schema
from dbspark.errors import SchemaError

Row = tuple[Any, ...]
NAN = float("nan")


def to_hashable(value: Any, dtype: pa.DataType) -> Any:
    """The hashable form of a value of this type as pyarrow returns it."""
    if value is None:
        return None
    t = pa.types
    if t.is_floating(dtype):
        return NAN if value != value else value
    if t.is_struct(dtype):
        if is_variant(dtype):
            return _variant()(value["value"], value["metadata"])
        return tuple(to_hashable(value[f.name], f.type) for f in dtype)
    if t.is_map(dtype):
        return tuple((to_hashable(k, dtype.key_type), to_hashable(v, dtype.item_type)) for k, v in value)
    if t.is_list(dtype):
        return tuple(to_hashable(v, dtype.value_type) for v in value)
    return value


def _to_arrow_value(value: Any, dtype: pa.DataType) -> Any:
    """The inverse of `to_hashable`: a value from which pyarrow builds an array."""
    if value is None:
        return None
    t = pa.types
    if t.is_struct(dtype):
        if is_variant(dtype):
            return {"value": value.value, "metadata": value.metadata}
        return {f.name: _to_arrow_value(v, f.type) for f, v in zip(dtype, value, strict=True)}
    if t.is_map(dtype):
        return [(_to_arrow_value(k, dtype.key_type), _to_arrow_value(v, dtype.item_type)) for k, v in value]
    if t.is_list(dtype):
        return [_to_arrow_value(v, dtype.value_type) for v in value]
    return value


@cache
def _variant() -> Any:
    """`VariantVal` with the equality and the identity of its bytes, which Spark's own lacks.

    The first variant loads PySpark.
    """
    from pyspark.sql.types import VariantVal

    class Variant(VariantVal):
        kind: ClassVar[str] = "variant"
        version: ClassVar[int] = 1

        def __init__(self, value: bytes, metadata: bytes) -> None:
            super().__init__(bytes(value), bytes(metadata))

        def __eq__(self, other: object) -> bool:
            return isinstance(other, VariantVal) and _bytes_of(self) == _bytes_of(other)

        def __hash__(self) -> int:
            return hash(_bytes_of(self))

        def __reduce__(self) -> Any:
            return VariantVal, _bytes_of(self)

        def parameters(self) -> tuple[bytes, bytes]:
            return _bytes_of(self)  # variants among the constants of a query are part of its identity

    def _bytes_of(variant: VariantVal) -> tuple[bytes, bytes]:
        return bytes(variant.value), bytes(variant.metadata)

    return Variant


def _variant_value(field: pa.Field, value: Any) -> Any:
    """A variant from a `VariantVal`, or from its two binaries."""
    variant = _variant()
    if isinstance(value, variant.__base__):
        value = (value.value, value.metadata)
    elif isinstance(value, Mapping) and set(value) == {"value", "metadata"}:
        value = (value["value"], value["metadata"])
    if (
        not isinstance(value, tuple | list)
        or len(value) != 2
        or not all(isinstance(v, bytes | bytearray | memoryview) for v in value)
    ):
        raise _mismatch(field, value, "give a VariantVal, or a DataFrame with a column of parse_json")
    return variant(*value)


def _mismatch(field: pa.Field, value: Any, why: str = "") -> SchemaError:
    expected = "variant" if is_variant(field.type) else field.type
    text = f"column {field.name!r}: expected {expected}, given {value!r} ({type(value).__name__})"
    return SchemaError(text + (f"; {why}" if why else ""))


class _NestedMismatch(SchemaError):
    """A nested value does not fit; the message names the place within the column."""


def _coerce(field: pa.Field, value: Any, row: Row = ()) -> Any:
    """One value of a row in canonical form, by way of Arrow: slow, and for every type."""
    dtype = field.type
    try:
        value = _accepted(field, value)
    except _NestedMismatch as error:
        raise SchemaError(f"column {field.name!r}, inside: {error}{_in_row(row)}") from None
    except SchemaError as error:
        raise SchemaError(f"{error}{_in_row(row)}") from None
    if value is None:
        return None
    try:
        array = pa.array([_to_arrow_value(value, dtype)], dtype)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _mismatch(field, value, str(error).splitlines()[0]) from None
    if pa.types.is_nested(dtype):
        array = sort_maps(array)
    return to_hashable(array[0].as_py(), dtype)


def _in_row(row: Row) -> str:
    """The end of an error message that shows the row; empty for a row of one column, whose value it shows already."""
    text = f"{row!r}"
    return f"; in the row {text if len(text) <= 200 else text[:199] + '…'}" if len(row) > 1 else ""


def _accepted(field: pa.Field, value: Any) -> Any:
    """A value of a Python type that fits the column, nested values as tuples; nothing is rounded or truncated."""
    if value is None:
        if field.nullable:
            return None
        raise SchemaError(f"column {field.name!r} is NOT NULL, but the value is NULL")
    dtype = field.type
    t = pa.types
    if is_variant(dtype):
        return _variant_value(field, value)
    if t.is_struct(dtype):
        if isinstance(value, Mapping):
            if set(value) != {f.name for f in dtype}:
                raise _mismatch(field, value, "the fields differ")
            value = [value[f.name] for f in dtype]
        elif not isinstance(value, tuple | list) or len(value) != dtype.num_fields:
            raise _mismatch(field, value)
        return tuple(_accepted_nested(f, v) for f, v in zip(dtype, value, strict=True))
    if t.is_map(dtype):
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, tuple | list) or not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
            raise _mismatch(field, value)
        entries = tuple((_accepted_nested(dtype.key_field, k), _accepted_nested(dtype.item_field, v)) for k, v in pairs)
        if len({NAN if k != k else k for k, _ in entries}) != len(entries):
            raise _mismatch(field, value, "a key occurs twice")
        return entries
    if t.is_list(dtype):
        if not isinstance(value, tuple | list | np.ndarray):
            raise _mismatch(field, value)
        return tuple(_accepted_nested(dtype.value_field, v) for v in value)
    if isinstance(value, np.generic):
        value = value.item()
    if not _fits(dtype, value):
        raise _mismatch(field, value)
    if t.is_string(dtype):
        _check_unicode(field, value)
    return value


def _check_unicode(field: pa.Field, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _mismatch(field, value, "it is not valid Unicode") from None


def _accepted_nested(child: pa.Field, value: Any) -> Any:
    try:
        return _accepted(child, value)
    except SchemaError as error:
        raise _NestedMismatch(str(error)) from None


def _fits(dtype: pa.DataType, value: Any) -> bool:
    t = pa.types
    kind = type(value)
    if t.is_boolean(dtype):
        return kind is bool
    if t.is_integer(dtype):
        return isinstance(value, int) and kind is not bool
    if t.is_floating(dtype):
        return kind is not bool and isinstance(value, int | float)
    if t.is_decimal(dtype):
        return kind is not bool and isinstance(value, int | Decimal)
    if t.is_string(dtype):
        return isinstance(value, str)
    if t.is_binary(dtype):
        return isinstance(value, bytes | bytearray | memoryview)
    if t.is_date(dtype):
        return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    if t.is_timestamp(dtype):
        return isinstance(value, datetime.datetime) and (value.tzinfo is None or dtype.tz is not None)
    if t.is_time(dtype):
        return isinstance(value, datetime.time)
    if t.is_duration(dtype):
        return isinstance(value, datetime.timedelta)
    return not isinstance(value, str | bool)


@lru_cache(maxsize=512)
def row_normaliser(schema: Schema) -> Callable[[Any], Row]:
    """A function that turns a tuple, list, dict or Spark Row into a canonical row of this schema."""
    names = [f"c{i}" for i in range(schema.columns)]
    lines = ["def form(row):", "    if type(row) is not tuple:", "        row = listed(row)", "    try:"]
    lines += [f"        ({', '.join(names)}{',' if len(names) == 1 else ''}) = row"]
    lines += ["    except (TypeError, ValueError):", "        raise misshapen(row) from None"]
    space: dict[str, Any] = {"coerce": _coerce, "NAN": NAN, "unicode": _check_unicode}
    for name, field in zip(names, schema.arrow, strict=True):
        space[f"f{name}"] = field
        dtype = field.type
        slow = f"{name} = coerce(f{name}, {name}, row)"
        if pa.types.is_signed_integer(dtype):
            bound = 1 << (dtype.bit_width - 1)
            lines += [f"    if type({name}) is not int or not {-bound} <= {name} < {bound}:", f"        {slow}"]
        elif pa.types.is_string(dtype):
            lines += [f"    if type({name}) is not str:", f"        {slow}"]
            lines += [f"    elif not {name}.isascii():", f"        unicode(f{name}, {name})"]
        elif pa.types.is_float64(dtype):
            lines += [f"    if type({name}) is not float:", f"        {slow}"]
            lines += [f"    elif {name} != {name}:", f"        {name} = NAN"]
        elif pa.types.is_boolean(dtype):
            lines += [f"    if {name} is not True and {name} is not False:", f"        {slow}"]
        else:
            lines += [f"    {slow}"]
    lines += [f"    return ({', '.join(names)}{',' if len(names) == 1 else ''})"]

    def misshapen(row: Any) -> SchemaError:
        return SchemaError(f"a row of this schema has {schema.columns} columns {schema.names}; given {row!r}")

    def listed(row: Any) -> Row:
        if isinstance(row, Mapping):
            if set(row) != set(schema.names):
                named = {str(n).lower(): v for n, v in row.items()}  # names ignore case, as Spark's do
                lower = [n.lower() for n in schema.names]
                if set(named) != set(lower) or not len(row) == len(named) == len(set(lower)):
                    given = sorted(map(str, row))
                    raise SchemaError(f"a row of this schema has the columns {schema.names}; given {given}")
                return tuple(named[n] for n in lower)
            return tuple(row[n] for n in schema.names)
        if isinstance(row, list) or (isinstance(row, tuple) and len(row) == schema.columns):
            return tuple(row)
        raise misshapen(row)

    space.update(misshapen=misshapen, listed=listed)
    exec("\n".join(lines), space)
    form: Callable[[Any], Row] = space["form"]
    return form


def encode_rows(schema: Schema, rows: Sequence[Row]) -> list[pa.Array]:
    """Arrow arrays from canonical rows."""
    if not rows:
        return [pa.array([], t) for t in schema.types]
    out = []
    for values, dtype in zip(zip(*rows, strict=True), schema.types, strict=True):
        if pa.types.is_nested(dtype):
            out.append(pa.array([_to_arrow_value(v, dtype) for v in values], dtype))
        else:
            out.append(pa.array(values, dtype, from_pandas=False))
    return out


def decode_arrays(schema: Schema, arrays: Iterable[pa.Array]) -> list[Row]:
    """Canonical rows from the arrays of a batch (maps are taken to be in key order, as batches keep them)."""
    columns = []
    for array, dtype in zip(arrays, schema.types, strict=True):
        values = array.to_pylist()
        if pa.types.is_nested(dtype) or pa.types.is_floating(dtype):
            values = [to_hashable(v, dtype) for v in values]
        columns.append(values)
    return list(zip(*columns, strict=True))
