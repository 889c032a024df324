"""Three-valued logic, comparison and choice.

NaN equals NaN and is above every other value, -0.0 equals 0.0. Arrow compares as IEEE says, so comparisons of floats
go through a form in which both hold. What can fail is evaluated where Spark evaluates it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Context, Datum, as_array, calling, constant, rule
from dbspark.sql.plan import Call
from dbspark.sql.timewindows import floor_mod

BOOLEAN = pa.bool_()


def _plain(dtype: pa.DataType) -> bool:
    """Whether Arrow compares values of the type as Spark does."""
    t = pa.types
    return not (t.is_floating(dtype) or t.is_nested(dtype) or t.is_interval(dtype) or t.is_null(dtype))


def total_order(datum: Datum) -> Datum:
    """Floats as integers in Spark's order: NaN last and one value, -0.0 and 0.0 one value."""
    array = as_array(datum, 1)
    width = array.type.bit_width
    values = np.array(array.to_numpy(zero_copy_only=False), dtype=f"f{width // 8}")
    values = values + values.dtype.type(0)  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(f"i{width // 8}")
    mask = np.iinfo(bits.dtype).max
    ordered = np.where(bits < 0, bits ^ mask, bits)
    valid = None if not array.null_count else array.is_null().to_numpy(zero_copy_only=False)
    out = pa.array(ordered, mask=valid)
    return out[0] if isinstance(datum, pa.Scalar) else out


_COMPARE: dict[str, Callable[..., Any]] = {
    "EqualTo": pc.equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
}


def comparable(args: Sequence[Compiled]) -> list[Compiled] | None:
    """Arguments in a form that Arrow compares as Spark would; None if there is none."""
    dtype = args[0].type
    if any(a.type != dtype for a in args):
        return None
    if pa.types.is_floating(dtype):
        bits = pa.int32() if dtype.bit_width == 32 else pa.int64()
        return [calling(bits, total_order, [a]) for a in args]
    return list(args) if _plain(dtype) else None


@rule(*_COMPARE)
def compare(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    given = comparable(args)
    return None if given is None else null_intolerant_in_order(BOOLEAN, _COMPARE[call.name], given)


def null_safe_equal(left: Datum, right: Datum) -> Datum:
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(pc.equal(left, right), False), both)


@rule("EqualNullSafe")
def equal_null_safe(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    given = comparable(args)
    return None if given is None else calling(BOOLEAN, null_safe_equal, given)


@rule("Not")
def not_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled:
    return calling(BOOLEAN, pc.invert, args)


@rule("And", "Or")
def and_or(call: Call, args: Sequence[Compiled], context: Context) -> Compiled:
    """The right side, if it can fail, only where the left has not decided."""
    left, right = args
    combine = pc.and_kleene if call.name == "And" else pc.or_kleene
    if not right.can_fail:
        return calling(BOOLEAN, combine, args)
    decided = call.name == "Or"

    def run(frame: ColumnFrame) -> Datum:
        first = left.array(frame)
        open_rows = pc.indices_nonzero(pc.fill_null(pc.not_equal(first, decided), True))
        second = scattered(right.array(frame.at(open_rows)), open_rows, frame.rows)
        # Where the left has decided, whatever the right is makes no difference.
        return combine(first, second)

    return Compiled(BOOLEAN, run, True)


def scattered(values: pa.Array, rows: pa.Array, total: int) -> pa.Array:
    """Values put at some rows of a column, NULL elsewhere."""
    if len(values) == total:
        return values
    where = np.zeros(total, np.int64)
    missing = np.ones(total, np.bool_)
    at = rows.to_numpy()
    where[at] = np.arange(len(at))
    missing[at] = False
    return values.take(pa.array(where, mask=missing))


def null_intolerant_in_order(
    dtype: pa.DataType,
    function: Callable[..., Datum],
    args: Sequence[Compiled],
    can_fail: bool = False,
    order: Sequence[int] | None = None,
    dead: Callable[[pa.Array], pa.Array] | None = None,
) -> Compiled:
    """A function on columns that is NULL if an argument is.

    Spark evaluates arguments in order and stops at the first NULL, so what can fail is evaluated where all before it
    are not NULL. `dead` says which values of the first argument have the same effect as NULL.
    """
    order = range(len(args)) if order is None else order
    if not any(args[k].can_fail for k in order[1:]):
        return calling(dtype, function, args, can_fail)

    def run(frame: ColumnFrame) -> Datum:
        values: list[Any] = [None] * len(args)
        rows: Any = None
        part = frame
        for n, k in enumerate(order):
            value = args[k].array(part)
            alive = pc.is_valid(value)
            if n == 0 and dead is not None:
                alive = pc.and_(alive, pc.invert(pc.fill_null(dead(value), False)))
            values[k] = value if rows is None else scattered(value, rows, frame.rows)
            if not pc.all(alive, min_count=0).as_py():
                chosen = pc.indices_nonzero(alive)
                rows = chosen if rows is None else rows.take(chosen)
                part = frame.at(rows)
        return function(*values)

    return Compiled(dtype, run, True)


@rule("IsNull")
def is_null(call: Call, args: Sequence[Compiled], context: Context) -> Compiled:
    return calling(BOOLEAN, pc.is_null, args)


@rule("IsNotNull")
def is_not_null(call: Call, args: Sequence[Compiled], context: Context) -> Compiled:
    return calling(BOOLEAN, pc.is_valid, args)


@rule("IsNaN")
def is_nan(call: Call, args: Sequence[Compiled], context: Context) -> Compiled:
    return calling(BOOLEAN, lambda v: pc.fill_null(pc.is_nan(v), False), args)


@rule("AtLeastNNonNulls")
def at_least_n(call: Call, args: Sequence[Compiled], context: Context) -> Compiled:
    wanted = int(call.option("n"))

    def run(frame: ColumnFrame) -> Datum:
        counts = np.zeros(frame.rows, np.int64)
        for arg in args:
            array = arg.array(frame)
            there = array.is_valid().to_numpy(zero_copy_only=False)
            if pa.types.is_floating(array.type):
                there = there & ~np.isnan(array.to_numpy(zero_copy_only=False))
            counts += there
        return pa.array(counts >= wanted)

    return Compiled(BOOLEAN, run, any(a.can_fail for a in args))


@rule("In")
def in_list(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    given = comparable(args)
    if given is None:
        return None
    value, *options = given
    if all(o.constant is not None for o in options):
        listed = [o.constant.as_py() for o in options]
        known = pa.array([v for v in listed if v is not None], value.type)
        has_null = len(known) < len(listed)

        def look_up(v: Datum) -> Datum:
            found = pc.is_in(v, value_set=known)
            # Not found among values of which one is NULL is unknown; so is NULL in anything.
            unknown = pc.is_null(v) if not has_null else pc.or_(pc.is_null(v), pc.invert(found))
            return pc.if_else(unknown, pa.scalar(None, BOOLEAN), found)

        return calling(BOOLEAN, look_up, [value])

    if any(o.can_fail for o in options):
        return Compiled(BOOLEAN, lambda frame: _first_match(frame, value, options), True)

    def compare_all(v: Datum, *others: Datum) -> Datum:
        out: Datum = pa.scalar(False)
        for other in others:
            out = pc.or_kleene(out, pc.equal(v, other))
        return out

    return calling(BOOLEAN, compare_all, given)


def _first_match(frame: ColumnFrame, value: Compiled, options: Sequence[Compiled]) -> pa.Array:
    """IN as Spark evaluates it: nothing for NULL, and no option behind the first that is equal."""
    sought = value.array(frame)
    found = np.zeros(frame.rows, np.bool_)
    unknown = sought.is_null().to_numpy(zero_copy_only=False)
    open_rows = np.flatnonzero(~unknown)
    for option in options:
        rows = pa.array(open_rows)
        equal = pc.equal(sought.take(rows), option.array(frame.at(rows)))
        unknown[open_rows[equal.is_null().to_numpy(zero_copy_only=False)]] = True
        matched = pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
        found[open_rows[matched]] = True
        open_rows = open_rows[~matched]
    return pa.array(found, mask=unknown & ~found)


def choose(
    conditions: Sequence[Compiled], values: Sequence[Compiled], otherwise: Compiled | None, dtype: pa.DataType
) -> Compiled:
    """CASE: each branch is evaluated on the rows that get to it, if it can fail; else on all."""
    last = otherwise or constant(None, dtype)
    every = [*conditions, *values, last]
    if not any(e.can_fail for e in every):

        def at_once(frame: ColumnFrame) -> Datum:
            out = last.run(frame)
            for condition, value in zip(reversed(conditions), reversed(values), strict=True):
                where = condition.run(frame)
                where = pc.fill_null(where, False)
                out = pc.if_else(where, value.run(frame), out)
            return out

        return Compiled(dtype, at_once)

    def step_by_step(frame: ColumnFrame) -> Datum:
        rows = pa.array(np.arange(frame.rows))
        rest = frame
        parts: list[pa.Array] = []
        places: list[pa.Array] = []
        for condition, value in zip(conditions, values, strict=True):
            truth = pc.fill_null(condition.array(rest), False)
            chosen = pc.indices_nonzero(truth)
            parts.append(value.array(rest.at(chosen)))
            places.append(rows.take(chosen))
            others = pc.indices_nonzero(pc.invert(truth))
            rows, rest = rows.take(others), rest.at(others)
        parts.append(last.array(rest))
        places.append(rows)
        order = np.argsort(pa.concat_arrays(places).to_numpy(), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order))

    return Compiled(dtype, step_by_step, True)


def _same(values: Sequence[Compiled]) -> pa.DataType | None:
    """The one type of several values, where NULL fits every type."""
    types = {v.type for v in values if not pa.types.is_null(v.type)}
    return types.pop() if len(types) == 1 else (pa.null() if not types else None)


def _not_negative(rest: Datum, divisor: int) -> Datum:
    negative = pc.less(rest, 0)
    if not pc.any(negative).as_py():
        return rest
    return pc.if_else(negative, pc.add(rest, divisor), rest)


@rule("CaseWhen")
def case_when(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    below_zero = floor_mod(call)
    if below_zero is not None:  # time windows are full of it
        divisor = below_zero[1]
        return calling(args[-1].type, lambda rest: _not_negative(rest, divisor), args[-1:])
    pairs = len(args) // 2
    otherwise = args[-1] if len(args) % 2 else None
    values = [args[2 * i + 1] for i in range(pairs)]
    dtype = _same([*values, *([otherwise] if otherwise else [])])
    return None if dtype is None else choose([args[2 * i] for i in range(pairs)], values, otherwise, dtype)


@rule("If")
def if_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = _same(args[1:])
    return None if dtype is None else choose([args[0]], [args[1]], args[2], dtype)


@rule("Coalesce")
def coalesce(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = _same(args)
    if dtype is None:
        return None
    if not any(a.can_fail for a in args[1:]):
        return calling(dtype, pc.coalesce, args)
    conditions = [calling(BOOLEAN, pc.is_valid, [a]) for a in args[:-1]]
    return choose(conditions, args[:-1], args[-1], dtype)


@rule("NaNvl")
def nanvl(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return choose(
        [calling(BOOLEAN, lambda v: pc.fill_null(pc.is_nan(v), False), args[:1])], [args[1]], args[0], args[0].type
    )


@rule("Greatest", "Least")
def extreme(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """NULLs are skipped; NaN is the greatest."""
    dtype = args[0].type
    if any(a.type != dtype for a in args) or not (_plain(dtype) or pa.types.is_floating(dtype)):
        return None
    better = pc.greater if call.name == "Greatest" else pc.less
    form = total_order if pa.types.is_floating(dtype) else (lambda v: v)

    def run(*values: Datum) -> Datum:
        out = values[0]
        for value in values[1:]:
            take = pc.or_(pc.fill_null(better(form(value), form(out)), False), pc.is_null(out))
            out = pc.if_else(take, value, out)
        return out

    return calling(dtype, run, args)


@rule(
    "KnownNullable",
    "KnownNotNull",
    "KnownFloatingPointNormalized",
    "TaggingExpression",
    "PromotePrecision",
    "Empty2Null",
)
def as_is(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Marks for Spark's optimiser."""
    return args[0] if call.name != "Empty2Null" else None


@rule("NormalizeNaNAndZero")
def normalize(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_floating(args[0].type):
        return None

    def run(value: Datum) -> Datum:
        return pc.add(value, pa.scalar(0.0, value.type))  # -0.0 becomes 0.0

    return calling(args[0].type, run, args)
