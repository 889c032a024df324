"""Arithmetic: integers that overflow, floats as IEEE says, decimals by way of `decimals`, intervals.

An operator runs in one of three modes: ANSI raises, LEGACY wraps (integers) or gives NULL, TRY gives NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.decimals import (
    _scaled,
    decimal_add,
    decimal_divide,
    decimal_integral_divide,
    decimal_multiply,
    decimal_remainder,
    digits_of,
    fitted,
    fitted_integers,
    half_up,
    shaped,
    unscaled,
)
from dbspark.sql.expressions.logic import null_intolerant_in_order
from dbspark.sql.expressions.operands import (
    DIVIDE_BY_ZERO,
    OVERFLOW,
    REMAINDER_BY_ZERO,
    EvalMode,
    broadcast,
    by_numpy,
    datum_of_numpy,
    is_year_month,
    mode_of,
    nonzero,
    valid_of,
    values_of,
)
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Context, Datum, as_array, calling, raw_rule, rule
from dbspark.sql.plan import Call
from dbspark.sql.types import from_json

_WRAPPING: dict[str, Callable[..., Any]] = {"Add": pc.add, "Subtract": pc.subtract, "Multiply": pc.multiply}
_CHECKED: dict[str, Callable[..., Any]] = {
    "Add": pc.add_checked,
    "Subtract": pc.subtract_checked,
    "Multiply": pc.multiply_checked,
}


def _overflows(name: str, a: Any, b: Any, result: Any) -> Any:
    """Where the result of an operator has left the range of its type, so that it was wrapped."""
    if name == "Add":
        return ((a ^ result) & (b ^ result)) < 0
    if name == "Subtract":
        return ((a ^ b) & (a ^ result)) < 0
    least = np.iinfo(result.dtype).min
    divisor = np.where(a == 0, 1, a)
    return (a != 0) & (
        (result // np.where(divisor == -1, 1, divisor) != b) & (divisor != -1) | (divisor == -1) & (b == least)
    )


def checked_arithmetic(name: str, mode: EvalMode) -> Callable[[Datum, Datum], Datum]:
    """Addition, subtraction or multiplication of integers or durations that does not wrap."""

    def run(a: Datum, b: Datum) -> Datum:
        try:
            return _CHECKED[name](a, b)
        except pa.ArrowInvalid:
            if mode == "ANSI":
                raise EvaluationError(OVERFLOW.format(name.lower())) from None
        dtype = a.type
        if pa.types.is_duration(dtype):
            a, b = a.cast(pa.int64()), b.cast(pa.int64())
        x, y = values_of(a), values_of(b)
        with np.errstate(all="ignore"):
            result = {"Add": np.add, "Subtract": np.subtract, "Multiply": np.multiply}[name](x, y)
            bad = _overflows(name, *np.broadcast_arrays(x, y, result))
        valid = valid_of(a, b)
        return datum_of_numpy(result, ~bad if valid is None else valid & ~bad, dtype, a, b)

    return run


@rule("Add", "Subtract", "Multiply")
def add(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    left, right = (a.type for a in args)
    mode = mode_of(call, context)
    t = pa.types
    if t.is_decimal(left) and t.is_decimal(right):
        if call.name == "Multiply":
            dtype, function = decimal_multiply(left, right, mode)
        else:
            dtype, function = decimal_add(call, left, right, mode)
        return null_intolerant_in_order(
            dtype, function, args, mode == "ANSI" and function not in (pc.add, pc.subtract, pc.multiply)
        )
    if left != right:
        return None
    if t.is_floating(left):
        return null_intolerant_in_order(left, _WRAPPING[call.name], args)
    if t.is_duration(left) and call.name != "Multiply":
        mode = "TRY" if mode == "TRY" else "ANSI"  # intervals do not wrap
        return null_intolerant_in_order(left, checked_arithmetic(call.name, mode), args, mode == "ANSI")
    if not t.is_integer(left):
        return None
    if mode == "LEGACY" and not (left.bit_width == 32 and is_year_month(call)):
        return null_intolerant_in_order(left, _WRAPPING[call.name], args)
    mode = "TRY" if mode == "TRY" else "ANSI"
    if call.name != "Multiply" and args[1].constant is not None and args[1].constant.as_py() == 0:
        return args[0]
    return null_intolerant_in_order(left, checked_arithmetic(call.name, mode), args, mode == "ANSI")


def _is_zero(value: pa.Array) -> pa.Array:
    return pc.equal(value, pa.scalar(0, value.type))


def _dividing(dtype: pa.DataType, function: Callable[..., Datum], args: Sequence[Compiled], mode: EvalMode) -> Compiled:
    """A division. The divisor comes first, as in Spark; where it is 0, the dividend is evaluated only if 0 raises."""
    return null_intolerant_in_order(dtype, function, args, mode == "ANSI", (1, 0), None if mode == "ANSI" else _is_zero)


@rule("Divide")
def divide(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    left, right = (a.type for a in args)
    mode = mode_of(call, context)
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        dtype, function = decimal_divide(left, right, mode)
        return _dividing(dtype, function, args, mode)
    if left != right or not pa.types.is_floating(left):
        return None

    def quotient(a: Any, b: Any) -> Any:
        return a / b, np.broadcast_to(b == 0, np.broadcast_shapes(a.shape, b.shape))

    error = DIVIDE_BY_ZERO if mode == "ANSI" else None
    return _dividing(left, by_numpy(left, quotient, error=error), args, mode)


@rule("IntegralDivide")
def integral_divide(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    left, right = (a.type for a in args)
    mode = mode_of(call, context)
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        dtype, function = decimal_integral_divide(left, right, mode)
        made_ = _dividing(dtype, function, args, mode)
        return Compiled(made_.type, made_.run, True)
    if left != pa.int64() or right != pa.int64():
        return None
    least = np.iinfo(np.int64).min

    def run(a: Datum, b: Datum) -> Datum:
        x, y = np.broadcast_arrays(values_of(a), values_of(b, 1))
        valid = valid_of(a, b)
        valid = nonzero(broadcast(valid, len(x)), y == 0, mode)
        over = (x == least) & (y == -1)
        if mode != "LEGACY" and np.any(over if valid is None else over & valid):
            if mode == "ANSI":
                raise EvaluationError(OVERFLOW.format("integral divide"))
            valid = ~over if valid is None else valid & ~over
        with np.errstate(all="ignore"):
            safe = np.where((y == 0) | over, 1, y)
            quotient = x // safe
            quotient = quotient + ((x % safe != 0) & ((x < 0) != (safe < 0)))
        return datum_of_numpy(quotient, valid, pa.int64(), a, b)

    return _dividing(pa.int64(), run, args, mode)


@rule("Remainder", "Pmod")
def remainder(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    left, right = (a.type for a in args)
    mode = mode_of(call, context)
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        dtype, function = decimal_remainder(call, left, right, mode)
        made_ = _dividing(dtype, function, args, mode)
        return Compiled(made_.type, made_.run, True)
    if left != right or not (pa.types.is_integer(left) or pa.types.is_floating(left)):
        return None
    floating = pa.types.is_floating(left)
    small = not floating and left.bit_width < 32

    def run(a: Any, b: Any) -> Any:
        if small:  # Java computes with ints
            a, b = a.astype(np.int32), b.astype(np.int32)
        a, b = np.broadcast_arrays(a, b)
        zero = b == 0
        safe = b if floating else np.where(zero | (b == -1), 1, b)
        out = np.fmod(a, safe)
        if call.name == "Pmod":
            out = np.where(out < 0, np.fmod(out + b, safe), out)
        return out, zero

    divisor = None if args[1].constant is None else args[1].constant.as_py()
    if divisor and divisor > 0 and not floating and not small and call.name == "Remainder":
        return calling(left, by_numpy(left, lambda a: np.fmod(a, divisor)), args[:1])
    error = REMAINDER_BY_ZERO if mode == "ANSI" else None
    return _dividing(left, by_numpy(left, run, 1, error), args, mode)


def _long_sign(function: Callable[[Datum], Datum], value: Datum) -> Datum:
    """Negation of decimals that may have more than 34 digits: Spark rounds those to 34, HALF_EVEN."""
    array = as_array(value, 1)
    dtype = array.type
    out = function(array)
    changed = pc.not_equal(out, array)
    long = pc.and_(changed, pc.greater_equal(pc.abs(array), _scaled(10**34, dtype.scale).cast(dtype)))
    rows = pc.indices_nonzero(long)
    if len(rows):
        values = unscaled(out).astype(object)
        at = rows.to_numpy()
        values[at] = [_to_34_digits(v) for v in values[at]]
        out = fitted_integers(values, valid_of(array), dtype, "ANSI")
    return shaped(out, value)


def _to_34_digits(value: int) -> int:
    """As Scala computes with decimals: to 34 digits, HALF_EVEN."""
    unit: int = 10 ** max(0, digits_of(value) - 34)
    return _half_even(value, unit)


def _half_even(value: int, unit: int) -> int:
    quotient, rest = divmod(abs(value), unit)
    if 2 * rest > unit or (2 * rest == unit and quotient % 2):
        quotient += 1
    return -quotient * unit if value < 0 else quotient * unit


@rule("UnaryMinus", "Abs")
def one_sign(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    t = pa.types
    mode = mode_of(call, context)
    wrapping, checking = (pc.negate, pc.negate_checked) if call.name == "UnaryMinus" else (pc.abs, pc.abs_checked)
    if t.is_floating(dtype) or (t.is_decimal(dtype) and dtype.precision <= 34):
        return calling(dtype, wrapping, args)
    if t.is_decimal(dtype):
        return calling(dtype, lambda v: _long_sign(wrapping, v), args, True)
    if not (t.is_integer(dtype) or t.is_duration(dtype)):
        return None
    months = dtype.bit_width == 32 and mode != "ANSI" and is_year_month(call)
    if mode == "LEGACY" and not (t.is_duration(dtype) or months):
        return calling(dtype, wrapping, args)
    if mode == "TRY":
        return None

    def run(value: Datum) -> Datum:
        try:
            return checking(value.cast(pa.int64()) if t.is_duration(dtype) else value).cast(dtype)
        except pa.ArrowInvalid:
            raise EvaluationError(OVERFLOW.format(call.name)) from None

    return calling(dtype, run, args, True)


@rule("UnaryPositive")
def unary_positive(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return args[0]


@rule("MultiplyDTInterval")
def multiply_interval(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Intervals of days and seconds times integers; they do not wrap in any mode."""
    if not (pa.types.is_duration(args[0].type) and pa.types.is_integer(args[1].type)):
        return None

    def run(a: Datum, b: Datum) -> Datum:
        try:
            return pc.multiply_checked(a.cast(pa.int64()), b.cast(pa.int64())).cast(pa.duration("us"))
        except pa.ArrowInvalid:
            raise EvaluationError("[INTERVAL_ARITHMETIC_OVERFLOW] an interval is too large") from None

    return null_intolerant_in_order(args[0].type, run, args, True)


@rule("DivideDTInterval")
def divide_interval(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Intervals of days and seconds over integers, rounded HALF_UP."""
    if not (pa.types.is_duration(args[0].type) and pa.types.is_integer(args[1].type)):
        return None
    least = np.iinfo(np.int64).min

    def run(a: Datum, b: Datum) -> Datum:
        micros, by = np.broadcast_arrays(values_of(a.cast(pa.int64())), values_of(b, 1).astype(np.int64))
        valid = broadcast(valid_of(a, b), len(micros))
        for bad, error in (
            (by == 0, "[INTERVAL_DIVIDED_BY_ZERO] an interval over zero"),
            ((micros == least) & (by == -1), "[INTERVAL_ARITHMETIC_OVERFLOW] an interval is too large"),
        ):
            if np.any(bad if valid is None else bad & valid):
                raise EvaluationError(error)
        over, under = micros.astype(object), np.where(by == 0, 1, by).astype(object)
        out = half_up(np.where(under < 0, -over, over), np.abs(under))
        return datum_of_numpy(out.astype(np.int64), valid, args[0].type, a, b)

    return null_intolerant_in_order(args[0].type, run, args, True)


@raw_rule("TryEval")
def try_eval(call: Call, compiler: Any) -> Compiled | None:
    """NULL where evaluating the argument fails: the rows are halved until those are found.

    If a part of the argument has no rule, Spark evaluates the whole expression.
    """
    inner: Compiled | None = compiler.native(call.args[0])
    if inner is None or not inner.can_fail:
        return inner
    return Compiled(inner.type, lambda frame: tried(inner, frame))


@raw_rule("Fails")
def fails(call: Call, compiler: Any) -> Compiled | None:
    """Whether evaluating the argument fails; not an expression of Spark's."""
    inner: Compiled | None = compiler.native(call.args[0])
    if inner is None:
        return None

    def there(frame: ColumnFrame) -> Datum:
        inner.array(frame)
        return pa.repeat(pa.scalar(False), frame.rows)

    evaluated = Compiled(pa.bool_(), there, inner.can_fail)
    return Compiled(pa.bool_(), lambda frame: tried(evaluated, frame).is_null())


def tried(inner: Compiled, frame: ColumnFrame) -> pa.Array:
    """The values of an expression, NULL where it fails."""
    try:
        return inner.array(frame)
    except EvaluationError:
        if frame.rows == 1:
            return pa.nulls(1, inner.type)
    half = frame.rows // 2
    parts = [(0, half), (half, frame.rows - half)]
    return pa.concat_arrays([tried(inner, ColumnFrame([c.slice(at, n) for c in frame.columns], n)) for at, n in parts])


@rule("UnscaledValue")
def unscaled_value(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_decimal(args[0].type) or args[0].type.precision > 18:
        return None

    def run(value: Datum) -> Datum:
        return datum_of_numpy(unscaled(as_array(value, 1)), valid_of(value), pa.int64(), value)

    return calling(pa.int64(), run, args)


@rule("MakeDecimal")
def make_decimal(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != pa.int64() or call.option("precision") is None:
        return None
    dtype = pa.decimal128(int(call.option("precision")), int(call.option("scale")))
    null_on_overflow = call.option("nullOnOverflow", not context.ansi)
    mode: EvalMode = "LEGACY" if null_on_overflow else "ANSI"

    def run(value: Datum) -> Datum:
        return shaped(fitted_integers(values_of(value), valid_of(value), dtype, mode), value)

    return calling(dtype, run, args, mode == "ANSI")


@rule("CheckOverflow")
def check_overflow(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_decimal(args[0].type):
        return None
    dtype = from_json(call.option("dataType"))
    mode: EvalMode = "LEGACY" if call.option("nullOnOverflow", not context.ansi) else "ANSI"

    def run(value: Datum) -> Datum:
        return shaped(fitted(as_array(value, 1), dtype, mode), value)

    return calling(dtype, run, args, mode == "ANSI")
