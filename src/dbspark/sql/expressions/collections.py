"""Arrays, maps and structs: making them, taking them apart, looking into them.

Order and sets are in `arrays`, functions that take a lambda in `lambdas`; all work on `elements`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import DbsparkError
from dbspark.sql.expressions.elements import (
    Elements,
    any_of,
    array_of,
    check_keys,
    concat_lists,
    equal_elements,
    filter_lists,
    first_of,
    is_array,
    is_plain,
    is_searchable,
    list_array,
    map_array,
    map_of,
    take_or_null,
)
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Context, Datum, constant, on_arrays, rule
from dbspark.sql.expressions.strings import concat_strings
from dbspark.sql.expressions.vectors import (
    Vector,
    arrow_column,
    both,
    missing,
    null_intolerant_arrays,
    numbers,
    raise_where,
    wrapped32,
)
from dbspark.sql.literals import from_jvm
from dbspark.sql.plan import Call
from dbspark.sql.types import from_json, with_nullable_children

BOOLEAN = pa.bool_()
INT = pa.int32()
LONG = pa.int64()
STRING = pa.string()


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

    def run(frame: ColumnFrame) -> Datum:
        columns = [_fitted(a.array(frame), dtype) for a in args]
        order = (np.arange(many)[None, :] * frame.rows + np.arange(frame.rows)[:, None]).ravel()
        values = pa.concat_arrays(columns).take(pa.array(order)) if many > 1 else columns[0]
        return list_array(out, np.full(frame.rows, many), values)

    return Compiled(out, run, any(a.can_fail for a in args))


@rule("CreateNamedStruct")
def create_struct(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    names = [a.constant.as_py() if a.constant is not None else None for a in args[::2]]
    if any(n is None for n in names) or len(set(names)) != len(names):
        return None
    fields = [pa.field(n, a.type) for n, a in zip(names, args[1::2], strict=True)]

    def run(frame: ColumnFrame) -> Datum:
        return pa.StructArray.from_arrays([a.array(frame) for a in args[1::2]], fields=fields)

    return Compiled(pa.struct(fields), run, any(a.can_fail for a in args))


@rule("CreateMap")
def create_map(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    key, value = _common(args[::2]), _common(args[1::2])
    if not args or key is None or value is None or not is_plain(key):
        return None
    out = map_of(key, value)
    many = len(args) // 2

    def run(frame: ColumnFrame) -> Datum:
        order = pa.array((np.arange(many)[None, :] * frame.rows + np.arange(frame.rows)[:, None]).ravel())
        keys = pa.concat_arrays([_fitted(a.array(frame), key) for a in args[::2]]).take(order)
        values = pa.concat_arrays([_fitted(a.array(frame), value) for a in args[1::2]]).take(order)
        check_keys(keys, np.repeat(np.arange(frame.rows), many))
        return map_array(out, np.full(frame.rows, many), keys, values)

    return Compiled(out, run, True)


@rule("GetStructField")
def get_struct_field(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_struct(args[0].type):
        return None
    at = int(call.option("ordinal", 0))
    return null_intolerant_arrays(args[0].type.field(at).type, lambda v: v.flatten()[at], args)


@rule("GetArrayStructFields")
def get_array_struct_fields(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not is_array(dtype) or not pa.types.is_struct(dtype.value_type):
        return None
    at = int(call.option("ordinal", 0))
    out = array_of(dtype.value_type.field(at).type)

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        return list_array(out, elements.lengths, elements.values.flatten()[at], elements.gone)

    return null_intolerant_arrays(out, run, args)


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
        given_type = from_json(json.loads(spark_type.json()))
        dtype = with_nullable_children(given_type)
        if pa.types.is_interval(dtype):
            from py4j.java_gateway import get_field

            return calendar_interval(*(get_field(given.value(), part) for part in ("months", "days", "microseconds")))
        one = pa.array([from_jvm(given.value(), spark_type, given_type)], dtype)
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
    if not is_array(dtype) or not pa.types.is_integer(args[1].type):
        return None
    fails = bool(call.option("failOnError", context.ansi))

    def run(array: pa.Array, at: pa.Array) -> pa.Array:
        elements = Elements(array)
        index = wrapped32(numbers(at))
        gone = both(elements.gone, missing([at]))
        outside = (index < 0) | (index >= elements.lengths)
        if fails:
            raise_where(
                outside, gone, "[INVALID_ARRAY_INDEX] The index is out of bounds. Use the SQL function `get()`."
            )
        return take_or_null(elements.values, np.where(outside, -1, elements.offsets[:-1] + index), gone)

    return null_intolerant_arrays(dtype.value_type, run, args, fails)


@rule("ElementAt")
def element_at(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if pa.types.is_map(dtype):
        return get_map_value(call, args, context)
    if not is_array(dtype) or args[1].type != INT:
        return None
    fails = bool(call.option("failOnError", context.ansi))
    given = call.args[0]
    # What split_part becomes has the empty string beyond the bounds.
    blank = isinstance(given, Call) and given.name == "StringSplitSQL"

    def run(array: pa.Array, at: pa.Array) -> pa.Array:
        elements = Elements(array)
        index = numbers(at).astype(np.int64)
        gone = both(elements.gone, missing([at]))
        raise_where(index == 0, gone, "[INVALID_INDEX_OF_ZERO] The index 0 is invalid.")
        outside = np.abs(index) > elements.lengths
        if fails:
            raise_where(outside, gone, "[INVALID_ARRAY_INDEX_IN_ELEMENT_AT] The index is out of bounds.")
        begin = np.where(index > 0, -1, elements.lengths) + elements.offsets[:-1]
        out = take_or_null(elements.values, np.where(outside, -1, begin + index), gone)
        if blank:
            there = outside if gone is None else outside & ~gone
            out = pc.if_else(pa.array(there), "", out)
        return out

    return null_intolerant_arrays(dtype.value_type, run, args, True)


@rule("GetMapValue")
def get_map_value(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not pa.types.is_map(dtype) or dtype.key_type != args[1].type or not is_searchable(dtype.key_type):
        return None

    def run(array: pa.Array, key: pa.Array) -> pa.Array:
        elements = Elements(array)
        match = equal_elements(elements.keys, key.take(pa.array(elements.owner)))
        return take_or_null(elements.values, first_of(match, elements), both(elements.gone, missing([key])))

    return null_intolerant_arrays(dtype.item_type, run, args)


@rule("Size")
def size(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not (is_array(args[0].type) or pa.types.is_map(args[0].type)):
        return None
    legacy = bool(call.option("legacySizeOfNull", False))

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        if legacy and elements.gone is not None:
            return arrow_column(INT, np.where(elements.gone, -1, elements.lengths))
        return arrow_column(INT, elements.lengths, elements.gone)

    return null_intolerant_arrays(INT, run, args)


@rule("ArrayContains", "ArrayPosition")
def array_contains(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not is_array(dtype) or dtype.value_type != args[1].type or not is_searchable(args[1].type):
        return None
    out = BOOLEAN if call.name == "ArrayContains" else LONG

    def run(array: pa.Array, value: pa.Array) -> pa.Array:
        elements = Elements(array)
        gone = both(elements.gone, missing([value]))
        values = elements.values
        found = first_of(equal_elements(values, value.take(pa.array(elements.owner))), elements)
        if call.name == "ArrayPosition":
            return arrow_column(LONG, np.where(found < 0, 0, found - elements.offsets[:-1] + 1), gone)
        if values.null_count:  # not among values of which one is NULL: unknown
            nulls = any_of(values.is_null().to_numpy(zero_copy_only=False), elements)
            gone = both(gone, nulls & (found < 0))
        return arrow_column(BOOLEAN, found >= 0, gone)

    return null_intolerant_arrays(out, run, args)


# ---------------------------------------------------------------------- parts and joins


@rule("Slice")
def slice_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not is_array(dtype) or any(a.type != INT for a in args[1:]):
        return None

    def run(array: pa.Array, start: pa.Array, many: pa.Array) -> pa.Array:
        elements = Elements(array)
        gone = both(elements.gone, missing([start, many]))
        begin, count = (numbers(a).astype(np.int64) for a in (start, many))
        raise_where(begin == 0, gone, "[INVALID_PARAMETER_VALUE.START] SQL array indices start at 1.")
        raise_where(count < 0, gone, "[INVALID_PARAMETER_VALUE.LENGTH] Length must be greater than or equal to 0.")
        first = np.where(begin > 0, begin - 1, begin + elements.lengths)
        outside = (first < 0) | (first >= elements.lengths)
        if gone is not None:
            outside = outside | gone
        taken = np.where(outside, 0, np.minimum(count, elements.lengths - first))
        at = np.repeat(elements.offsets[:-1] + first - (np.cumsum(taken) - taken), taken) + np.arange(taken.sum())
        return list_array(dtype, taken, elements.values.take(pa.array(at)), gone)

    return null_intolerant_arrays(dtype, run, args, True)


@rule("Concat")
def concat(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not args:
        return None
    dtype = args[0].type
    if not is_array(dtype):
        return concat_strings(args)
    if any(a.type != dtype for a in args):
        return None

    def run(*arrays: pa.Array) -> pa.Array:
        parts = [Elements(a) for a in arrays]
        return concat_lists(dtype, parts, missing(arrays))

    return on_arrays(dtype, run, args)


@rule("Flatten")
def flatten(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not is_array(dtype) or not is_array(dtype.value_type):
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
        return list_array(dtype.value_type, lengths, values, gone)

    return null_intolerant_arrays(dtype.value_type, run, args)


@rule("ArrayInsert")
def array_insert(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """At the beginning or at the end."""
    dtype = args[0].type
    at = None if args[1].constant is None else args[1].constant.as_py()
    if not is_array(dtype) or at not in (1, -1) or call.option("legacyNegativeIndex"):
        return None
    if args[2].type != dtype.value_type or args[2].can_fail:
        return None

    def run(array: pa.Array, value: pa.Array) -> pa.Array:
        many = Elements(array)
        one = Elements(list_array(dtype, np.ones(len(value), np.int64), value))
        return concat_lists(dtype, [one, many] if at == 1 else [many, one], many.gone)

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

    def run(frame: ColumnFrame) -> Datum:
        value = args[0].array(frame)
        at = pa.array(np.repeat(np.arange(frame.rows), count))
        return list_array(out, np.full(frame.rows, count), value.take(at))

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
            lists = list_array(array.type, elements.lengths, values, gone)
            lists = lists if gone is None else _emptied(lists, gone)
        else:
            lists = filter_lists(array.type, elements, values, values.is_valid().to_numpy(zero_copy_only=False), gone)
        return pc.binary_join(lists, delimiter)

    return null_intolerant_arrays(STRING, run, args)


def _emptied(lists: pa.Array, gone: Vector) -> pa.Array:
    """The same arrays without elements where a row is gone."""
    elements = Elements(lists)
    keep = ~gone[elements.owner]
    return filter_lists(lists.type, elements, elements.values, keep, gone)


@rule("Sequence")
def sequence(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Sequences of integers, and of dates day by day; others are left to Spark."""
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
        raise_where(wrong, gone, "[ILLEGAL_SEQUENCE_BOUNDARIES] Illegal sequence boundaries.")
        # In doubles first: differences may leave the range of int64, and sequences so long are refused anyway.
        rough = np.abs(high.astype(np.float64) - low.astype(np.float64)) / np.maximum(np.abs(step), 1)
        raise_where(rough > 2**31 - 16, gone, "[COLLECTION_SIZE_LIMIT_EXCEEDED] Can't create array: too many elements.")
        dead = rough > 2**31 - 16
        dead = dead | wrong if gone is None else dead | wrong | gone
        low, high, step = (np.where(dead, v, w) for v, w in ((0, low), (0, high), (1, step)))
        many = np.where(dead, 0, (high - low) // np.where(step == 0, 1, step) + 1)
        place = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        values = np.repeat(low, many) + place * np.repeat(step, many)
        return list_array(out, many, arrow_column(dtype, values), gone)

    return null_intolerant_arrays(out, run, args, True)


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
        return list_array(out, elements.lengths, elements.keys if keys else elements.values, elements.gone)

    return null_intolerant_arrays(out, run, args)


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
        return list_array(out, elements.lengths, entries, elements.gone)

    return null_intolerant_arrays(out, run, args)
