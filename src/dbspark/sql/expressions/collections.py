"""Arrays, maps and structs, and functions that take a lambda.

Arrays are worked on as their elements one after the other, with the row that each belongs to. The body of a lambda is
one expression over all elements of all rows at once, where other columns have the value of the element's row. Elements
are compared where Arrow compares as Spark does; floats, nested types and the like are often left to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import DbsparkError
from dbspark.sql.expressions import strings
from dbspark.sql.expressions.logic import total_order
from dbspark.sql.expressions.rules import (
    Compiled,
    Context,
    Datum,
    EvaluationError,
    Frame,
    constant,
    raw_rule,
    rule,
)
from dbspark.sql.expressions.vectors import (
    Vector,
    both,
    made,
    missing,
    numbers,
    refuse,
    strict_arrays,
    wrapped32,
)
from dbspark.sql.literals import from_jvm
from dbspark.sql.plan import Call, Column, walk
from dbspark.sql.types import from_json, loosened

BOOLEAN = pa.bool_()
INT = pa.int32()
LONG = pa.int64()
STRING = pa.string()


def array_of(dtype: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", dtype))


def map_of(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    return pa.map_(pa.field("key", key, False), pa.field("value", value))


def _is_array(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_list(dtype))


def _plain(dtype: pa.DataType) -> bool:
    """Whether Arrow compares, sorts and encodes values of the type as Spark does."""
    t = pa.types
    return not (t.is_floating(dtype) or t.is_nested(dtype) or t.is_null(dtype) or t.is_interval(dtype))


# ---------------------------------------------------------------------- elements


class Elements:
    """The elements of a column of arrays or maps, in the order of rows; NULL rows have none."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self.rows = len(array)
        self.gone = missing([array])
        offsets = numbers(array.offsets).astype(np.int64) if self.rows else np.zeros(1, np.int64)
        lengths = offsets[1:] - offsets[:-1]
        self.starts = offsets[:-1]
        gone = np.zeros(0, np.bool_) if self.gone is None else self.gone
        self.whole = self.gone is None or not lengths[gone].any()
        self.lengths = lengths if self.whole else np.where(gone, 0, lengths)
        self.first, self.last = int(offsets[0]), int(offsets[-1])

    @property
    def offsets(self) -> Vector:
        """Where each row's elements begin among all, and the number of all."""
        out = np.zeros(self.rows + 1, np.int64)
        np.cumsum(self.lengths, out=out[1:])
        return out

    @property
    def owner(self) -> Vector:
        """The row of each element."""
        return np.repeat(np.arange(self.rows), self.lengths)

    @property
    def place(self) -> Vector:
        """The position of each element in its row, from 0."""
        return np.arange(int(self.lengths.sum())) - np.repeat(self.offsets[:-1], self.lengths)

    def of(self, child: pa.Array) -> pa.Array:
        """The elements, from a child array."""
        if self.whole:
            return child.slice(self.first, self.last - self.first)
        return child.take(pa.array(np.repeat(self.starts, self.lengths) + self.place))

    @property
    def values(self) -> pa.Array:
        """The elements of arrays, the values of maps."""
        array = self.array
        return self.of(array.items if pa.types.is_map(array.type) else array.values)

    @property
    def keys(self) -> pa.Array:
        return self.of(self.array.keys)


def listed(dtype: pa.DataType, lengths: Vector, values: pa.Array, gone: Vector | None = None) -> pa.Array:
    """A column of arrays from the elements of all rows."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > 2**31 - 1:
        raise EvaluationError("arrays of a batch have more than 2^31 elements; use smaller ticks")
    valid = None if gone is None or not gone.any() else pa.array(~gone).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(dtype, len(lengths), buffers, children=[values])


def mapped(
    dtype: pa.DataType, lengths: Vector, keys: pa.Array, values: pa.Array, gone: Vector | None = None
) -> pa.Array:
    """A column of maps from the entries of all rows."""
    entries = pa.StructArray.from_arrays([keys, values], fields=[dtype.key_field, dtype.item_field])
    return listed(dtype, lengths, entries, gone)


def _first(match: Vector, elements: Elements) -> Vector:
    """The number among all elements of the first that matches in each row; -1 if none does."""
    hits = np.flatnonzero(match)
    offsets = elements.offsets
    at = np.searchsorted(hits, offsets[:-1])
    found = np.append(hits, np.int64(2**62))[at]
    return np.where(found < offsets[1:], found, -1)


def _any(match: Vector, elements: Elements) -> Vector:
    return _first(match, elements) >= 0


def _truth(datum: Any) -> Vector:
    """Where something holds; NULL is not."""
    return pc.fill_null(datum, False).to_numpy(zero_copy_only=False)


def _picked(values: pa.Array, at: Vector, gone: Vector | None) -> pa.Array:
    """Values at places, NULL where the place is negative or the row is gone."""
    nothing = at < 0 if gone is None else (at < 0) | gone
    if not len(values):
        return pa.nulls(len(at), values.type)
    return values.take(pa.array(np.where(nothing, 0, at), mask=nothing))


def _equal(left: pa.Array, right: pa.Array) -> Vector:
    """Where values are equal as Spark sees it; NULL is not."""
    if pa.types.is_floating(left.type):
        left, right = total_order(left), total_order(right)
    return _truth(pc.equal(left, right))


def _searchable(dtype: pa.DataType) -> bool:
    return _plain(dtype) or bool(pa.types.is_floating(dtype))


# ---------------------------------------------------------------------- making and taking apart


def _fitted(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    return array if array.type == dtype else pa.nulls(len(array), dtype) if array.null_count == len(array) else None


def _common(args: Sequence[Compiled]) -> pa.DataType | None:
    types = [a.type for a in args if not pa.types.is_null(a.type)]
    if not types:
        return pa.null()
    return types[0] if all(t == types[0] for t in types) else None


@rule("CreateArray")
def create_array(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = _common(args)
    if dtype is None or not args:
        return None
    out = array_of(dtype)
    many = len(args)

    def run(frame: Frame) -> Datum:
        columns = [_fitted(a.array(frame), dtype) for a in args]
        order = (np.arange(many)[None, :] * frame.rows + np.arange(frame.rows)[:, None]).ravel()
        values = pa.concat_arrays(columns).take(pa.array(order)) if many > 1 else columns[0]
        return listed(out, np.full(frame.rows, many), values)

    return Compiled(out, run, any(a.can_fail for a in args))


@rule("CreateNamedStruct")
def create_struct(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    names = [a.constant.as_py() if a.constant is not None else None for a in args[::2]]
    if any(n is None for n in names) or len(set(names)) != len(names):
        return None
    fields = [pa.field(n, a.type) for n, a in zip(names, args[1::2], strict=True)]

    def run(frame: Frame) -> Datum:
        return pa.StructArray.from_arrays([a.array(frame) for a in args[1::2]], fields=fields)

    return Compiled(pa.struct(fields), run, any(a.can_fail for a in args))


def _check_keys(keys: pa.Array, owner: Vector) -> None:
    """The keys of a map are there, and no two of one map are the same."""
    if keys.null_count:
        raise EvaluationError("[NULL_MAP_KEY] Cannot use null as map key.")
    codes = numbers(keys.dictionary_encode().indices).astype(np.int64)
    pairs = owner * (int(codes.max()) + 1 if len(codes) else 1) + codes
    if len(np.unique(pairs)) != len(pairs):
        raise EvaluationError("[DUPLICATED_MAP_KEY] Duplicate map key was found, please check the input data.")


@rule("CreateMap")
def create_map(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    key, value = _common(args[::2]), _common(args[1::2])
    if not args or key is None or value is None or not _plain(key):
        return None
    out = map_of(key, value)
    many = len(args) // 2

    def run(frame: Frame) -> Datum:
        order = pa.array((np.arange(many)[None, :] * frame.rows + np.arange(frame.rows)[:, None]).ravel())
        keys = pa.concat_arrays([_fitted(a.array(frame), key) for a in args[::2]]).take(order)
        values = pa.concat_arrays([_fitted(a.array(frame), value) for a in args[1::2]]).take(order)
        _check_keys(keys, np.repeat(np.arange(frame.rows), many))
        return mapped(out, np.full(frame.rows, many), keys, values)

    return Compiled(out, run, True)


@rule("GetStructField")
def get_struct_field(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_struct(args[0].type):
        return None
    at = int(call.option("ordinal", 0))
    return strict_arrays(args[0].type.field(at).type, lambda v: v.flatten()[at], args)


@rule("GetArrayStructFields")
def get_array_struct_fields(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or not pa.types.is_struct(dtype.value_type):
        return None
    at = int(call.option("ordinal", 0))
    out = array_of(dtype.value_type.field(at).type)

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        return listed(out, elements.lengths, elements.values.flatten()[at], elements.gone)

    return strict_arrays(out, run, args)


@rule("KnownNotContainsNull")
def known_not_null(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return args[0]


@rule("Literal")
def literal(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """A constant that is no number or text: an array, map or struct that Spark has folded, or an interval."""
    if call.origin is None:
        return None
    given = call.origin.jvm()
    spark_type = given.dataType()
    try:
        dtype = loosened(from_json(json.loads(spark_type.json())))
        if pa.types.is_interval(dtype):
            from py4j.java_gateway import get_field

            return calendar_interval(*(get_field(given.value(), part) for part in ("months", "days", "microseconds")))
        one = pa.array([from_jvm(given.value(), spark_type, dtype)], dtype)
    except (TypeError, DbsparkError):
        return None
    return Compiled(dtype, lambda frame: one.take(pa.array(np.zeros(frame.rows, np.int64))))


def calendar_interval(months: int, days: int, micros: int) -> Compiled | None:
    """A constant of months, days and microseconds, if Arrow, which counts nanoseconds, can hold it."""
    dtype = pa.month_day_nano_interval()
    if abs(micros) > 2**53:
        return None
    return constant(pa.scalar(pa.MonthDayNano([months, days, micros * 1000]), dtype), dtype)


# ---------------------------------------------------------------------- looking up


@rule("GetArrayItem")
def get_array_item(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or not pa.types.is_integer(args[1].type):
        return None
    fails = bool(call.option("failOnError", context.ansi))

    def run(array: pa.Array, at: pa.Array) -> pa.Array:
        elements = Elements(array)
        index = wrapped32(numbers(at))
        gone = both(elements.gone, missing([at]))
        outside = (index < 0) | (index >= elements.lengths)
        if fails:
            refuse(outside, gone, "[INVALID_ARRAY_INDEX] The index is out of bounds. Use the SQL function `get()`.")
        return _picked(elements.values, np.where(outside, -1, elements.offsets[:-1] + index), gone)

    return strict_arrays(dtype.value_type, run, args, fails)


@rule("ElementAt")
def element_at(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if pa.types.is_map(dtype):
        return get_map_value(call, args, context)
    if not _is_array(dtype) or args[1].type != INT:
        return None
    fails = bool(call.option("failOnError", context.ansi))
    given = call.args[0]
    # What split_part becomes has the empty string beyond the bounds.
    blank = isinstance(given, Call) and given.name == "StringSplitSQL"

    def run(array: pa.Array, at: pa.Array) -> pa.Array:
        elements = Elements(array)
        index = numbers(at).astype(np.int64)
        gone = both(elements.gone, missing([at]))
        refuse(index == 0, gone, "[INVALID_INDEX_OF_ZERO] The index 0 is invalid.")
        outside = np.abs(index) > elements.lengths
        if fails:
            refuse(outside, gone, "[INVALID_ARRAY_INDEX_IN_ELEMENT_AT] The index is out of bounds.")
        begin = np.where(index > 0, -1, elements.lengths) + elements.offsets[:-1]
        out = _picked(elements.values, np.where(outside, -1, begin + index), gone)
        if blank:
            there = outside if gone is None else outside & ~gone
            out = pc.if_else(pa.array(there), "", out)
        return out

    return strict_arrays(dtype.value_type, run, args, True)


@rule("GetMapValue")
def get_map_value(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not pa.types.is_map(dtype) or dtype.key_type != args[1].type or not _searchable(dtype.key_type):
        return None

    def run(array: pa.Array, key: pa.Array) -> pa.Array:
        elements = Elements(array)
        match = _equal(elements.keys, key.take(pa.array(elements.owner)))
        return _picked(elements.values, _first(match, elements), both(elements.gone, missing([key])))

    return strict_arrays(dtype.item_type, run, args)


@rule("Size")
def size(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not (_is_array(args[0].type) or pa.types.is_map(args[0].type)):
        return None
    legacy = bool(call.option("legacySizeOfNull", False))

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        if legacy and elements.gone is not None:
            return made(INT, np.where(elements.gone, -1, elements.lengths))
        return made(INT, elements.lengths, elements.gone)

    return strict_arrays(INT, run, args)


@rule("ArrayContains", "ArrayPosition")
def array_contains(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or dtype.value_type != args[1].type or not _searchable(args[1].type):
        return None
    out = BOOLEAN if call.name == "ArrayContains" else LONG

    def run(array: pa.Array, value: pa.Array) -> pa.Array:
        elements = Elements(array)
        gone = both(elements.gone, missing([value]))
        values = elements.values
        found = _first(_equal(values, value.take(pa.array(elements.owner))), elements)
        if call.name == "ArrayPosition":
            return made(LONG, np.where(found < 0, 0, found - elements.offsets[:-1] + 1), gone)
        if values.null_count:  # not among values of which one is NULL: unknown
            nulls = _any(values.is_null().to_numpy(zero_copy_only=False), elements)
            gone = both(gone, nulls & (found < 0))
        return made(BOOLEAN, found >= 0, gone)

    return strict_arrays(out, run, args)


# ---------------------------------------------------------------------- order and sets


def _sorted(elements: Elements, values: pa.Array, descending: bool, nulls_first: bool) -> Vector:
    """Numbers of elements in order, row by row."""
    form = total_order(values) if pa.types.is_floating(values.type) else values
    table = pa.table({"row": elements.owner, "null": form.is_null().to_numpy(zero_copy_only=False), "value": form})
    keys = [
        ("row", "ascending"),
        ("null", "descending" if nulls_first else "ascending"),
        ("value", "descending" if descending else "ascending"),
    ]
    return pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)


@rule("ArrayMin", "ArrayMax")
def array_min(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or not _searchable(dtype.value_type):
        return None

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        order = _sorted(elements, values, call.name == "ArrayMax", False)
        at = np.append(order, 0)[np.minimum(elements.offsets[:-1], len(order))]
        return _picked(values, np.where(elements.lengths == 0, -1, at), elements.gone)

    return strict_arrays(dtype.value_type, run, args)


def _sorting(args: Sequence[Compiled], descending: bool, nulls_first: bool) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or not _plain(dtype.value_type):
        return None

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        order = _sorted(elements, values, descending, nulls_first)
        return listed(dtype, elements.lengths, values.take(pa.array(order)), elements.gone)

    return strict_arrays(dtype, run, args[:1])


@rule("SortArray")
def sort_array(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    up = args[1].constant
    return None if up is None or not up.is_valid else _sorting(args, not up.as_py(), bool(up.as_py()))


@raw_rule("ArraySort")
def array_sort(call: Call, compiler: Any) -> Compiled | None:
    """Only in the order that is meant when none is given: upwards, NULLs last."""
    comparison = call.args[1]
    if not isinstance(comparison, Call) or len(comparison.args) != 3:
        return None
    body, left, right = comparison.args
    if not isinstance(left, Column) or not isinstance(right, Column):
        return None
    if _shape(body, {left.id: "l", right.id: "r"}) != _UPWARDS:
        return None
    return _sorting([compiler.compile(call.args[0])], False, False)


_UPWARDS = (
    "If(And(IsNull(l),IsNull(r)),0,If(IsNull(l),1,If(IsNull(r),-1,If(LessThan(l,r),-1,If(GreaterThan(l,r),1,0)))))"
)


def _shape(expr: Any, names: dict[int, str]) -> str:
    if isinstance(expr, Column):
        return names.get(expr.id, "?")
    if isinstance(expr, Call):
        return f"{expr.name}({','.join(_shape(a, names) for a in expr.args)})"
    return str(getattr(expr, "value", "?"))


def reversed_lists(array: pa.Array) -> pa.Array:
    elements = Elements(array)
    offsets = elements.offsets
    order = np.repeat(offsets[1:] - 1, elements.lengths) - elements.place
    return listed(array.type, elements.lengths, elements.values.take(pa.array(order)), elements.gone)


def _kept(dtype: pa.DataType, elements: Elements, values: pa.Array, keep: Vector, gone: Vector | None) -> pa.Array:
    """Arrays of those elements that stay."""
    lengths = np.bincount(elements.owner[keep], minlength=elements.rows)
    return listed(dtype, lengths, values.filter(pa.array(keep)), gone)


def _codes(*columns: pa.Array) -> list[Vector]:
    """Equal values of several columns as equal numbers, NULL as 0."""
    encoded = pa.concat_arrays(columns).dictionary_encode()
    codes = numbers(pc.add(encoded.indices.fill_null(-1), pa.scalar(1, encoded.indices.type))).astype(np.int64)
    cuts = np.cumsum([len(c) for c in columns])[:-1]
    return np.split(codes, cuts)


def _distinct(owner: Vector, codes: Vector) -> Vector:
    """Where a value is for the first time in its row."""
    keep = np.zeros(len(codes), np.bool_)
    width = int(codes.max()) + 1 if len(codes) else 1
    _, first = np.unique(owner * width + codes, return_index=True)
    keep[first] = True
    return keep


@rule("ArrayDistinct")
def array_distinct(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or not _plain(dtype.value_type):
        return None

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        (codes,) = _codes(values)
        return _kept(dtype, elements, values, _distinct(elements.owner, codes), elements.gone)

    return strict_arrays(dtype, run, args)


@rule("ArrayUnion", "ArrayIntersect", "ArrayExcept", "ArraysOverlap")
def array_sets(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or args[1].type != dtype or not _plain(dtype.value_type):
        return None
    name = call.name

    def run(one: pa.Array, other: pa.Array) -> pa.Array:
        left, right = Elements(one), Elements(other)
        gone = both(left.gone, right.gone)
        values = left.values
        mine, theirs = _codes(values, right.values)
        width = int(max(mine.max(initial=0), theirs.max(initial=0))) + 1
        here, there = left.owner * width + mine, right.owner * width + theirs
        if name == "ArraysOverlap":
            shared = np.isin(here, there) & (mine > 0)
            common = np.bincount(left.owner[shared], minlength=left.rows) > 0
            unknown = np.zeros(left.rows, np.bool_)
            for side, codes in ((left, mine), (right, theirs)):
                unknown |= np.bincount(side.owner[codes == 0], minlength=side.rows) > 0
            unknown &= (left.lengths > 0) & (right.lengths > 0) & ~common
            return made(BOOLEAN, common, both(gone, unknown))
        if name == "ArrayUnion":
            both_ = _joined(dtype, [left, right], gone)
            elements = Elements(both_)
            all_values = elements.values
            (codes,) = _codes(all_values)
            return _kept(dtype, elements, all_values, _distinct(elements.owner, codes), gone)
        keep = _distinct(left.owner, mine) & (np.isin(here, there) == (name == "ArrayIntersect"))
        return _kept(dtype, left, values, keep, gone)

    return strict_arrays(BOOLEAN if name == "ArraysOverlap" else dtype, run, args)


@rule("ArrayRemove")
def array_remove(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or dtype.value_type != args[1].type or not _plain(args[1].type):
        return None

    def run(array: pa.Array, value: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        keep = ~_equal(values, value.take(pa.array(elements.owner)))
        return _kept(dtype, elements, values, keep, both(elements.gone, missing([value])))

    return strict_arrays(dtype, run, args)


# ---------------------------------------------------------------------- parts and joins


@rule("Slice")
def slice_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or any(a.type != INT for a in args[1:]):
        return None

    def run(array: pa.Array, start: pa.Array, many: pa.Array) -> pa.Array:
        elements = Elements(array)
        gone = both(elements.gone, missing([start, many]))
        begin, count = (numbers(a).astype(np.int64) for a in (start, many))
        refuse(begin == 0, gone, "[INVALID_PARAMETER_VALUE.START] SQL array indices start at 1.")
        refuse(count < 0, gone, "[INVALID_PARAMETER_VALUE.LENGTH] Length must be greater than or equal to 0.")
        first = np.where(begin > 0, begin - 1, begin + elements.lengths)
        outside = (first < 0) | (first >= elements.lengths)
        if gone is not None:
            outside = outside | gone
        taken = np.where(outside, 0, np.minimum(count, elements.lengths - first))
        at = np.repeat(elements.offsets[:-1] + first - (np.cumsum(taken) - taken), taken) + np.arange(taken.sum())
        return listed(dtype, taken, elements.values.take(pa.array(at)), gone)

    return strict_arrays(dtype, run, args, True)


def _joined(dtype: pa.DataType, parts: Sequence[Elements], gone: Vector | None) -> pa.Array:
    """Arrays one after the other, row by row."""
    values = pa.concat_arrays([p.values for p in parts])
    sizes = np.stack([p.lengths for p in parts])
    if gone is not None:
        sizes = np.where(gone, 0, sizes)
    before = np.cumsum([0, *(len(p.values) for p in parts[:-1])])
    begins = np.stack([p.offsets[:-1] + b for p, b in zip(parts, before, strict=True)])
    flat, starts = sizes.T.ravel(), begins.T.ravel()
    at = np.repeat(starts - (np.cumsum(flat) - flat), flat) + np.arange(int(flat.sum()))
    return listed(dtype, sizes.sum(axis=0), values.take(pa.array(at)), gone)


def present(columns: Sequence[pa.Array]) -> pa.Array:
    """Arrays of what there is in columns of strings and of arrays of strings, without NULLs."""
    dtype = array_of(STRING)
    parts = []
    for column in columns:
        if column.type == STRING:
            there = column.is_valid().to_numpy(zero_copy_only=False)
            parts.append(Elements(listed(dtype, there.astype(np.int64), column.drop_null())))
        else:
            elements = Elements(column)
            values = elements.values
            keep = values.is_valid().to_numpy(zero_copy_only=False)
            parts.append(Elements(_kept(dtype, elements, values, keep, None)))
    return _joined(dtype, parts, None)


@rule("Concat")
def concat(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not args:
        return None
    dtype = args[0].type
    if not _is_array(dtype):
        return strings.concat(args)
    if any(a.type != dtype for a in args):
        return None

    def run(*arrays: pa.Array) -> pa.Array:
        parts = [Elements(a) for a in arrays]
        return _joined(dtype, parts, missing(arrays))

    return strict_arrays(dtype, run, args)


@rule("Flatten")
def flatten(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not _is_array(dtype) or not _is_array(dtype.value_type):
        return None

    def run(array: pa.Array) -> pa.Array:
        outer = Elements(array)
        inner = Elements(outer.values)
        gone = outer.gone
        lengths = np.bincount(outer.owner, weights=inner.lengths, minlength=outer.rows).astype(np.int64)
        values = inner.values
        if inner.gone is not None:  # an array with NULL among its arrays is NULL
            holed = np.bincount(outer.owner[inner.gone], minlength=outer.rows) > 0
            gone = both(gone, holed)
            values = values.filter(pa.array(~np.repeat(holed[outer.owner], inner.lengths)))
            lengths = np.where(holed, 0, lengths)
        return listed(dtype.value_type, lengths, values, gone)

    return strict_arrays(dtype.value_type, run, args)


@rule("ArrayInsert")
def array_insert(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """At the beginning or at the end."""
    dtype = args[0].type
    at = None if args[1].constant is None else args[1].constant.as_py()
    if not _is_array(dtype) or at not in (1, -1) or call.option("legacyNegativeIndex"):
        return None
    if args[2].type != dtype.value_type or args[2].can_fail:
        return None

    def run(array: pa.Array, value: pa.Array) -> pa.Array:
        many = Elements(array)
        one = Elements(listed(dtype, np.ones(len(value), np.int64), value))
        return _joined(dtype, [one, many] if at == 1 else [many, one], many.gone)

    return Compiled(
        dtype, lambda frame: run(args[0].array(frame), args[2].array(frame)), args[0].can_fail or args[2].can_fail
    )


@rule("ArrayRepeat")
def array_repeat(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    many = args[1].constant
    if many is None or many.as_py() is None or many.as_py() > 10_000:
        return None
    count = max(int(many.as_py()), 0)
    out = array_of(args[0].type)

    def run(frame: Frame) -> Datum:
        value = args[0].array(frame)
        at = pa.array(np.repeat(np.arange(frame.rows), count))
        return listed(out, np.full(frame.rows, count), value.take(at))

    return Compiled(out, run, args[0].can_fail)


@rule("ArrayJoin")
def array_join(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != array_of(STRING) or any(a.type != STRING for a in args[1:]):
        return None

    def run(array: pa.Array, delimiter: pa.Array, *instead: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        gone = both(elements.gone, missing([delimiter, *instead]))
        if instead:
            values = pc.coalesce(values, instead[0].take(pa.array(elements.owner)))
            lists = listed(array.type, elements.lengths, values, gone)
            lists = lists if gone is None else _emptied(lists, gone)
        else:
            lists = _kept(array.type, elements, values, values.is_valid().to_numpy(zero_copy_only=False), gone)
        return pc.binary_join(lists, delimiter)

    return strict_arrays(STRING, run, args)


def _emptied(lists: pa.Array, gone: Vector) -> pa.Array:
    """The same arrays without elements where a row is gone."""
    elements = Elements(lists)
    keep = ~gone[elements.owner]
    return _kept(lists.type, elements, elements.values, keep, gone)


@rule("Sequence")
def sequence(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Of integers, and of days one by one; others Spark makes."""
    dtype = args[0].type
    daily = pa.types.is_date(dtype) and len(args) == 2
    if not (pa.types.is_integer(dtype) or daily) or any(a.type != dtype for a in args):
        return None
    out = array_of(dtype)

    def run(start: pa.Array, stop: pa.Array, *steps: pa.Array) -> pa.Array:
        gone = missing([start, stop, *steps])
        low, high = (numbers(a).astype(np.int64) for a in (start, stop))
        step = numbers(steps[0]).astype(np.int64) if steps else np.where(low <= high, 1, -1)
        wrong = ((step > 0) & (low > high)) | ((step < 0) & (low < high)) | ((step == 0) & (low != high))
        refuse(wrong, gone, "[ILLEGAL_SEQUENCE_BOUNDARIES] Illegal sequence boundaries.")
        # In doubles first: differences may leave the range of int64, and sequences so long are refused anyway.
        rough = np.abs(high.astype(np.float64) - low.astype(np.float64)) / np.maximum(np.abs(step), 1)
        refuse(rough > 2**31 - 16, gone, "[COLLECTION_SIZE_LIMIT_EXCEEDED] Can't create array: too many elements.")
        dead = rough > 2**31 - 16
        dead = dead | wrong if gone is None else dead | wrong | gone
        low, high, step = (np.where(dead, v, w) for v, w in ((0, low), (0, high), (1, step)))
        many = np.where(dead, 0, (high - low) // np.where(step == 0, 1, step) + 1)
        place = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        values = np.repeat(low, many) + place * np.repeat(step, many)
        return listed(out, many, made(dtype, values), gone)

    return strict_arrays(out, run, args, True)


# ---------------------------------------------------------------------- maps


@rule("MapKeys", "MapValues")
def map_side(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not pa.types.is_map(dtype):
        return None
    keys = call.name == "MapKeys"
    out = array_of(dtype.key_type if keys else dtype.item_type)

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        return listed(out, elements.lengths, elements.keys if keys else elements.values, elements.gone)

    return strict_arrays(out, run, args)


@rule("MapEntries")
def map_entries(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not pa.types.is_map(dtype):
        return None
    fields = [pa.field("key", dtype.key_type), pa.field("value", dtype.item_type)]
    out = array_of(pa.struct(fields))

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        entries = pa.StructArray.from_arrays([elements.keys, elements.values], fields=fields)
        return listed(out, elements.lengths, entries, elements.gone)

    return strict_arrays(out, run, args)


# ---------------------------------------------------------------------- lambdas


class Body:
    """The body of a lambda, compiled over the columns of the outer frame and its own variables."""

    def __init__(self, compiled: Compiled, width: int, used: frozenset[int]) -> None:
        self.compiled = compiled
        self.type = compiled.type
        self.can_fail = compiled.can_fail
        self._width = width
        self._used = used

    def __call__(self, frame: Frame, owner: Vector | None, *variables: pa.Array) -> pa.Array:
        """The value for each element, given the row of each (all rows in order if None) and the variables."""
        rows = len(variables[0])
        at = None if owner is None else pa.array(owner)
        columns: list[pa.Array] = []
        for i in range(self._width):
            if i not in self._used:
                columns.append(pa.nulls(rows))
            else:
                columns.append(frame.columns[i] if at is None else frame.columns[i].take(at))
        return self.compiled.array(Frame([*columns, *variables], rows))


def _body(function: Any, types: Sequence[pa.DataType], compiler: Any) -> Body | None:
    """A lambda's body, or None if it needs Spark."""
    if not isinstance(function, Call) or function.name != "LambdaFunction":
        return None
    inside, *rest = function.args
    variables = [v for v in rest if isinstance(v, Column)]
    if len(variables) != len(rest) or len(variables) > len(types):
        return None
    width = max(compiler.positions.values(), default=-1) + 1
    places = {v.id: width + i for i, v in enumerate(variables)}
    known = {v.id: t for v, t in zip(variables, types, strict=False)}
    compiled = compiler.within(places, known).native(inside)
    if compiled is None:
        return None
    used = frozenset(
        compiler.positions[e.id] for e in walk(inside) if isinstance(e, Column) and e.id in compiler.positions
    )
    return Body(compiled, width, used)


def _argument(call: Call, compiler: Any, at: int = 0) -> Compiled:
    given: Compiled = compiler.compile(call.args[at])
    return given


@raw_rule("ArrayTransform", "ArrayFilter")
def array_transform(call: Call, compiler: Any) -> Compiled | None:
    array = _argument(call, compiler)
    if not _is_array(array.type):
        return None
    body = _body(call.args[1], [array.type.value_type, INT], compiler)
    if body is None:
        return None
    out = array_of(body.type) if call.name == "ArrayTransform" else array.type

    def run(frame: Frame) -> Datum:
        elements = Elements(array.array(frame))
        values = elements.values
        place = made(INT, elements.place)
        made_ = body(frame, elements.owner, values, place)
        if call.name == "ArrayTransform":
            return listed(out, elements.lengths, made_, elements.gone)
        return _kept(out, elements, values, _truth(made_), elements.gone)

    return Compiled(out, run, array.can_fail or body.can_fail)


@raw_rule("ArrayExists", "ArrayForAll")
def array_exists(call: Call, compiler: Any) -> Compiled | None:
    """Spark stops at the first element that decides, so the body must not be one that can fail."""
    array = _argument(call, compiler)
    if not _is_array(array.type):
        return None
    body = _body(call.args[1], [array.type.value_type], compiler)
    if body is None or body.can_fail or body.type != BOOLEAN:
        return None
    deciding = call.name == "ArrayExists"
    unknown = deciding is False or bool(call.option("followThreeValuedLogic", True))

    def run(frame: Frame) -> Datum:
        elements = Elements(array.array(frame))
        truth = body(frame, elements.owner, elements.values)
        decided = _any(_truth(pc.equal(truth, deciding)), elements)
        gone = elements.gone
        if unknown and truth.null_count:
            gone = both(gone, _any(truth.is_null().to_numpy(zero_copy_only=False), elements) & ~decided)
        return made(BOOLEAN, decided == deciding, gone)

    return Compiled(BOOLEAN, run, array.can_fail)


@raw_rule("ArrayAggregate")
def array_aggregate(call: Call, compiler: Any) -> Compiled | None:
    """One step for all rows that have a first element, then for those with a second, and so on."""
    array, zero = _argument(call, compiler), _argument(call, compiler, 1)
    if not _is_array(array.type):
        return None
    merge = _body(call.args[2], [zero.type, array.type.value_type], compiler)
    finish = _body(call.args[3], [zero.type], compiler)
    if merge is None or finish is None or merge.type != zero.type:
        return None

    def run(frame: Frame) -> Datum:
        elements = Elements(array.array(frame))
        live = np.arange(frame.rows) if elements.gone is None else np.flatnonzero(~elements.gone)
        at = pa.array(live)
        state = zero.array(frame.at(at) if len(live) < frame.rows else frame)
        values, begins = elements.values, elements.offsets[:-1][live]
        lengths = elements.lengths[live]
        for step in range(int(lengths.max(initial=0))):
            going = np.flatnonzero(lengths > step)
            rows = pa.array(going)
            new = merge(frame, live[going], state.take(rows), values.take(pa.array(begins[going] + step)))
            if len(going) == len(live):
                state = new
            else:
                where = np.arange(len(live))
                where[going] = len(live) + np.arange(len(going))
                state = pa.concat_arrays([state, new]).take(pa.array(where))
        done = finish(frame, live, state)
        if len(live) == frame.rows:
            return done
        back = np.full(frame.rows, -1)
        back[live] = np.arange(len(live))
        return _picked(done, back, None)

    fails = array.can_fail or zero.can_fail or merge.can_fail or finish.can_fail
    return Compiled(finish.type, run, fails)


@raw_rule("ZipWith")
def zip_with(call: Call, compiler: Any) -> Compiled | None:
    """As long as the longer; what the shorter lacks is NULL."""
    left, right = _argument(call, compiler), _argument(call, compiler, 1)
    if not (_is_array(left.type) and _is_array(right.type)) or right.can_fail:
        return None
    body = _body(call.args[2], [left.type.value_type, right.type.value_type], compiler)
    if body is None:
        return None
    out = array_of(body.type)

    def run(frame: Frame) -> Datum:
        one, other = Elements(left.array(frame)), Elements(right.array(frame))
        gone = both(one.gone, other.gone)
        lengths = np.maximum(one.lengths, other.lengths)
        if gone is not None:
            lengths = np.where(gone, 0, lengths)
        owner = np.repeat(np.arange(frame.rows), lengths)
        place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        sides = [
            _picked(e.values, np.where(place < e.lengths[owner], e.offsets[:-1][owner] + place, -1), None)
            for e in (one, other)
        ]
        return listed(out, lengths, body(frame, owner, *sides), gone)

    return Compiled(out, run, left.can_fail or body.can_fail)


@raw_rule("TransformKeys", "TransformValues", "MapFilter")
def map_transform(call: Call, compiler: Any) -> Compiled | None:
    given = _argument(call, compiler)
    dtype = given.type
    if not pa.types.is_map(dtype):
        return None
    body = _body(call.args[1], [dtype.key_type, dtype.item_type], compiler)
    if body is None:
        return None
    name = call.name
    if name == "TransformKeys" and not _plain(body.type):
        return None
    out = {
        "TransformKeys": lambda: map_of(body.type, dtype.item_type),
        "TransformValues": lambda: map_of(dtype.key_type, body.type),
        "MapFilter": lambda: dtype,
    }[name]()

    def run(frame: Frame) -> Datum:
        elements = Elements(given.array(frame))
        keys, values, owner = elements.keys, elements.values, elements.owner
        made_ = body(frame, owner, keys, values)
        if name == "TransformValues":
            return mapped(out, elements.lengths, keys, made_, elements.gone)
        if name == "TransformKeys":
            _check_keys(made_, owner)
            return mapped(out, elements.lengths, made_, values, elements.gone)
        keep = _truth(made_)
        at = pa.array(np.flatnonzero(keep))
        lengths = np.bincount(owner[keep], minlength=elements.rows)
        return mapped(out, lengths, keys.take(at), values.take(at), elements.gone)

    return Compiled(out, run, given.can_fail or body.can_fail or name == "TransformKeys")
