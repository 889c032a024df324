"""Casts between types, as Spark makes them: which function casts what, and casts of nested values.

ANSI mode raises where there is no result, TRY gives NULL, LEGACY wraps integers and is lenient with strings. Left to
Spark: floats to strings and to decimals of many digits (the digits depend on the version of Java), intervals, and
strings of nested values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions.cast_numbers import from_boolean, from_decimal, from_float, from_integer
from dbspark.sql.expressions.cast_results import Caster
from dbspark.sql.expressions.cast_strings import from_string
from dbspark.sql.expressions.cast_times import from_date, from_timestamp
from dbspark.sql.expressions.operands import EvalMode, is_year_month, mode_of
from dbspark.sql.expressions.rules import Compiled, Context, Datum, calling, constant, rule
from dbspark.sql.plan import Call
from dbspark.sql.types import from_json


@rule("Cast", "TryCast", "UpCast", "AnsiCast")
def cast(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    given = call.option("dataType")
    if not isinstance(given, str) or "interval" in given or "variant" in given or "time(" in given or "udt" in given:
        return None
    target = from_json(json.loads(given) if given.startswith("{") else given)
    source = args[0].type
    if source == pa.int32() and is_year_month(call):
        return None
    if pa.types.is_null(source):
        return constant(None, target)
    mode = mode_of(call, context)
    if source == target:
        return args[0]
    caster = _caster(source, target, mode, call.option("timeZoneId") or context.timezone)
    if caster is None:
        return None
    function, fails = caster

    def run(value: Datum) -> Datum:
        if isinstance(value, pa.Scalar):
            return function(pa.repeat(value, 1))[0]
        return function(value)

    return calling(target, run, args, fails)


def _caster(source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str) -> tuple[Caster, bool] | None:
    """How to cast, and whether it may fail."""
    t = pa.types
    if source == target:
        return (lambda v: v), False
    if t.is_null(source):
        return (lambda v: pa.nulls(len(v), target)), False
    if t.is_nested(source) or t.is_nested(target):
        return _nested(source, target, mode, zone_name)
    for accepts, family in _FAMILIES:
        if accepts(source):
            made: tuple[Caster, bool] | None = family(source, target, mode, zone_name)
            return made
    return None


def _from_binary(
    source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str
) -> tuple[Caster, bool] | None:
    return ((lambda v: v.view(target)), False) if pa.types.is_string(target) else None


def _nested(source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str) -> tuple[Caster, bool] | None:
    """How to cast arrays, maps and structs, element by element, and whether it may fail."""
    t = pa.types
    if t.is_list(source) and t.is_list(target):
        inner = _caster(source.value_type, target.value_type, mode, zone_name)
        if inner is None:
            return None
        cast_values, fails = inner

        def lists(v: pa.Array) -> pa.Array:
            offsets = _offsets(v)
            return pa.ListArray.from_arrays(offsets, cast_values(v.flatten()), target, mask=_nulls(v))

        return lists, fails
    if t.is_map(source) and t.is_map(target) and source.key_type == target.key_type:  # a cast could make keys equal
        inner = _caster(source.item_type, target.item_type, mode, zone_name)
        if inner is None:
            return None
        cast_items, fails = inner

        def maps(v: pa.Array) -> pa.Array:
            entries = pc.list_flatten(v.view(pa.list_(pa.struct([v.type.key_field, v.type.item_field]))))
            out = pa.MapArray.from_arrays(_offsets(v), entries.field(0), cast_items(entries.field(1)), target)
            return out if not v.null_count else pc.if_else(v.is_valid(), out, pa.scalar(None, target))

        return maps, fails
    if t.is_struct(source) and t.is_struct(target) and source.num_fields == target.num_fields:
        parts = [_caster(source[i].type, target[i].type, mode, zone_name) for i in range(source.num_fields)]
        if any(p is None for p in parts):
            return None

        def structs(v: pa.Array) -> pa.Array:
            columns = [p[0](c) for p, c in zip(parts, v.flatten(), strict=True) if p is not None]
            return pa.StructArray.from_arrays(columns, fields=list(target), mask=_nulls(v))

        return structs, any(p is not None and p[1] for p in parts)
    return None


def _nulls(v: pa.Array) -> pa.Array | None:
    return v.is_null() if v.null_count else None


def _offsets(v: pa.Array) -> pa.Array:
    """Where the elements of each row begin among those of rows that are not NULL."""
    given = v.offsets.to_numpy()
    lengths = np.diff(given)
    if v.null_count:
        lengths = np.where(v.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pa.types.is_integer, from_integer),
    (pa.types.is_boolean, from_boolean),
    (pa.types.is_floating, from_float),
    (pa.types.is_decimal, from_decimal),
    (pa.types.is_string, from_string),
    (pa.types.is_date, from_date),
    (pa.types.is_timestamp, from_timestamp),
    (pa.types.is_binary, _from_binary),
)
