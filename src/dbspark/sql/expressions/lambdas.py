"""Functions that take a lambda.

Its body is one expression over all elements of all rows at once, where other columns have the value of the element's
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions.elements import (
    Elements,
    any_of,
    array_of,
    check_keys,
    filter_lists,
    is_array,
    is_plain,
    list_array,
    map_array,
    map_of,
    take_or_null,
    truth_of,
)
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Datum, raw_rule
from dbspark.sql.expressions.vectors import Vector, arrow_column, both
from dbspark.sql.plan import Call, Column, walk

BOOLEAN = pa.bool_()
INT = pa.int32()


class LambdaBody:
    """The body of a lambda, compiled over the columns of the outer frame and its own variables."""

    def __init__(self, compiled: Compiled, width: int, used: frozenset[int]) -> None:
        self.compiled = compiled
        self.type = compiled.type
        self.can_fail = compiled.can_fail
        self._width = width
        self._used = used

    def __call__(self, frame: ColumnFrame, owner: Vector | None, *variables: pa.Array) -> pa.Array:
        """The value for each element, given the row of each (all rows in order if None) and the variables."""
        rows = len(variables[0])
        at = None if owner is None else pa.array(owner)
        columns: list[pa.Array] = []
        for i in range(self._width):
            if i not in self._used:
                columns.append(pa.nulls(rows))
            else:
                columns.append(frame.columns[i] if at is None else frame.columns[i].take(at))
        return self.compiled.array(ColumnFrame([*columns, *variables], rows))


def _body(function: Any, types: Sequence[pa.DataType], compiler: Any) -> LambdaBody | None:
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
    return LambdaBody(compiled, width, used)


def _argument(call: Call, compiler: Any, at: int = 0) -> Compiled:
    given: Compiled = compiler.compile(call.args[at])
    return given


@raw_rule("ArrayTransform", "ArrayFilter")
def array_transform(call: Call, compiler: Any) -> Compiled | None:
    array = _argument(call, compiler)
    if not is_array(array.type):
        return None
    body = _body(call.args[1], [array.type.value_type, INT], compiler)
    if body is None:
        return None
    out = array_of(body.type) if call.name == "ArrayTransform" else array.type

    def run(frame: ColumnFrame) -> Datum:
        elements = Elements(array.array(frame))
        values = elements.values
        place = arrow_column(INT, elements.place)
        made_ = body(frame, elements.owner, values, place)
        if call.name == "ArrayTransform":
            return list_array(out, elements.lengths, made_, elements.gone)
        return filter_lists(out, elements, values, truth_of(made_), elements.gone)

    return Compiled(out, run, array.can_fail or body.can_fail)


@raw_rule("ArrayExists", "ArrayForAll")
def array_exists(call: Call, compiler: Any) -> Compiled | None:
    """Spark stops at the first element that decides, so the body must not be one that can fail."""
    array = _argument(call, compiler)
    if not is_array(array.type):
        return None
    body = _body(call.args[1], [array.type.value_type], compiler)
    if body is None or body.can_fail or body.type != BOOLEAN:
        return None
    deciding = call.name == "ArrayExists"
    unknown = deciding is False or bool(call.option("followThreeValuedLogic", True))

    def run(frame: ColumnFrame) -> Datum:
        elements = Elements(array.array(frame))
        truth = body(frame, elements.owner, elements.values)
        decided = any_of(truth_of(pc.equal(truth, deciding)), elements)
        gone = elements.gone
        if unknown and truth.null_count:
            gone = both(gone, any_of(truth.is_null().to_numpy(zero_copy_only=False), elements) & ~decided)
        return arrow_column(BOOLEAN, decided == deciding, gone)

    return Compiled(BOOLEAN, run, array.can_fail)


@raw_rule("ArrayAggregate")
def array_aggregate(call: Call, compiler: Any) -> Compiled | None:
    """One step for all rows that have a first element, then for those with a second, and so on."""
    array, zero = _argument(call, compiler), _argument(call, compiler, 1)
    if not is_array(array.type):
        return None
    merge = _body(call.args[2], [zero.type, array.type.value_type], compiler)
    finish = _body(call.args[3], [zero.type], compiler)
    if merge is None or finish is None or merge.type != zero.type:
        return None

    def run(frame: ColumnFrame) -> Datum:
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
        return take_or_null(done, back, None)

    fails = array.can_fail or zero.can_fail or merge.can_fail or finish.can_fail
    return Compiled(finish.type, run, fails)


@raw_rule("ZipWith")
def zip_with(call: Call, compiler: Any) -> Compiled | None:
    """The result is as long as the longer array; the missing elements of the shorter are NULL."""
    left, right = _argument(call, compiler), _argument(call, compiler, 1)
    if not (is_array(left.type) and is_array(right.type)) or right.can_fail:
        return None
    body = _body(call.args[2], [left.type.value_type, right.type.value_type], compiler)
    if body is None:
        return None
    out = array_of(body.type)

    def run(frame: ColumnFrame) -> Datum:
        one, other = Elements(left.array(frame)), Elements(right.array(frame))
        gone = both(one.gone, other.gone)
        lengths = np.maximum(one.lengths, other.lengths)
        if gone is not None:
            lengths = np.where(gone, 0, lengths)
        owner = np.repeat(np.arange(frame.rows), lengths)
        place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        sides = [
            take_or_null(e.values, np.where(place < e.lengths[owner], e.offsets[:-1][owner] + place, -1), None)
            for e in (one, other)
        ]
        return list_array(out, lengths, body(frame, owner, *sides), gone)

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
    if name == "TransformKeys" and not is_plain(body.type):
        return None
    out = {
        "TransformKeys": lambda: map_of(body.type, dtype.item_type),
        "TransformValues": lambda: map_of(dtype.key_type, body.type),
        "MapFilter": lambda: dtype,
    }[name]()

    def run(frame: ColumnFrame) -> Datum:
        elements = Elements(given.array(frame))
        keys, values, owner = elements.keys, elements.values, elements.owner
        made_ = body(frame, owner, keys, values)
        if name == "TransformValues":
            return map_array(out, elements.lengths, keys, made_, elements.gone)
        if name == "TransformKeys":
            check_keys(made_, owner)
            return map_array(out, elements.lengths, made_, values, elements.gone)
        keep = truth_of(made_)
        at = pa.array(np.flatnonzero(keep))
        lengths = np.bincount(owner[keep], minlength=elements.rows)
        return map_array(out, lengths, keys.take(at), values.take(at), elements.gone)

    return Compiled(out, run, given.can_fail or body.can_fail or name == "TransformKeys")
