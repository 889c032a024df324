"""Arrays in order and as sets.

Elements are compared where Arrow compares as Spark does; floats, nested types and the like are often left to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions.elements import (
    Elements,
    concat_lists,
    equal_elements,
    filter_lists,
    is_array,
    is_plain,
    is_searchable,
    list_array,
    take_or_null,
)
from dbspark.sql.expressions.logic import total_order
from dbspark.sql.expressions.rules import (
    Compiled,
    Context,
    raw_rule,
    rule,
)
from dbspark.sql.expressions.vectors import Vector, arrow_column, both, missing, null_intolerant_arrays, numbers
from dbspark.sql.plan import Call, Column

BOOLEAN = pa.bool_()


def _sorted(elements: Elements, values: pa.Array, descending: bool, nulls_first: bool) -> Vector:
    """Indices of the elements in sorted order, row by row."""
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
    if not is_array(dtype) or not is_searchable(dtype.value_type):
        return None

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        order = _sorted(elements, values, call.name == "ArrayMax", False)
        at = np.append(order, 0)[np.minimum(elements.offsets[:-1], len(order))]
        return take_or_null(values, np.where(elements.lengths == 0, -1, at), elements.gone)

    return null_intolerant_arrays(dtype.value_type, run, args)


def _sorting(args: Sequence[Compiled], descending: bool, nulls_first: bool) -> Compiled | None:
    dtype = args[0].type
    if not is_array(dtype) or not is_plain(dtype.value_type):
        return None

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        order = _sorted(elements, values, descending, nulls_first)
        return list_array(dtype, elements.lengths, values.take(pa.array(order)), elements.gone)

    return null_intolerant_arrays(dtype, run, args[:1])


@rule("SortArray")
def sort_array(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    up = args[1].constant
    return None if up is None or not up.is_valid else _sorting(args, not up.as_py(), bool(up.as_py()))


@raw_rule("ArraySort")
def array_sort(call: Call, compiler: Any) -> Compiled | None:
    """Only in the default order: ascending, NULLs last."""
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
    return list_array(array.type, elements.lengths, elements.values.take(pa.array(order)), elements.gone)


def _codes(*columns: pa.Array) -> list[Vector]:
    """Equal values of several columns as equal numbers, NULL as 0."""
    encoded = pa.concat_arrays(columns).dictionary_encode()
    codes = numbers(pc.add(encoded.indices.fill_null(-1), pa.scalar(1, encoded.indices.type))).astype(np.int64)
    cuts = np.cumsum([len(c) for c in columns])[:-1]
    return np.split(codes, cuts)


def _distinct(owner: Vector, codes: Vector) -> Vector:
    """Where an element is the first of its value in its row."""
    keep = np.zeros(len(codes), np.bool_)
    width = int(codes.max()) + 1 if len(codes) else 1
    _, first = np.unique(owner * width + codes, return_index=True)
    keep[first] = True
    return keep


@rule("ArrayDistinct")
def array_distinct(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not is_array(dtype) or not is_plain(dtype.value_type):
        return None

    def run(array: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        (codes,) = _codes(values)
        return filter_lists(dtype, elements, values, _distinct(elements.owner, codes), elements.gone)

    return null_intolerant_arrays(dtype, run, args)


@rule("ArrayUnion", "ArrayIntersect", "ArrayExcept", "ArraysOverlap")
def array_sets(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not is_array(dtype) or args[1].type != dtype or not is_plain(dtype.value_type):
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
            return arrow_column(BOOLEAN, common, both(gone, unknown))
        if name == "ArrayUnion":
            both_ = concat_lists(dtype, [left, right], gone)
            elements = Elements(both_)
            all_values = elements.values
            (codes,) = _codes(all_values)
            return filter_lists(dtype, elements, all_values, _distinct(elements.owner, codes), gone)
        keep = _distinct(left.owner, mine) & (np.isin(here, there) == (name == "ArrayIntersect"))
        return filter_lists(dtype, left, values, keep, gone)

    return null_intolerant_arrays(BOOLEAN if name == "ArraysOverlap" else dtype, run, args)


@rule("ArrayRemove")
def array_remove(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not is_array(dtype) or dtype.value_type != args[1].type or not is_plain(args[1].type):
        return None

    def run(array: pa.Array, value: pa.Array) -> pa.Array:
        elements = Elements(array)
        values = elements.values
        keep = ~equal_elements(values, value.take(pa.array(elements.owner)))
        return filter_lists(dtype, elements, values, keep, both(elements.gone, missing([value])))

    return null_intolerant_arrays(dtype, run, args)
