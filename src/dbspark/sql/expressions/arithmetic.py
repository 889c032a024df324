"""Arithmetic: integers that overflow, floats as IEEE says, decimals by Spark's rules of precision.

An operator runs in one of three modes: ANSI raises, LEGACY wraps (integers) or gives NULL, TRY gives NULL. A decimal
result has the digits that Spark's rules give it, 38 at most, rounded HALF_UP. Arrow has the same rules up to 38 digits
but truncates; so wide sums and products go through its 256-bit decimals, and what does not fit there (products of
more than 76 digits) through Python's integers, in numpy's arrays of objects. So do quotients: Arrow's division of
decimals is wrong for some divisors of more than 32 bits (`shortened` says more).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions.logic import strict
from dbspark.sql.expressions.rules import Compiled, Context, Datum, EvaluationError, Frame, as_array, calling, rule
from dbspark.sql.plan import Call
from dbspark.sql.types import from_json

Mode: TypeAlias = Literal["ANSI", "LEGACY", "TRY"]

OVERFLOW = "[ARITHMETIC_OVERFLOW] {} overflow"
OUT_OF_RANGE = "[NUMERIC_VALUE_OUT_OF_RANGE] a value cannot be represented as Decimal({}, {})"
DIVIDE_BY_ZERO = "[DIVIDE_BY_ZERO] division by zero"
REMAINDER_BY_ZERO = "[REMAINDER_BY_ZERO] remainder by zero"

_AWAY = "half_towards_infinity"  # Arrow's name for HALF_UP: away from zero


def mode_of(call: Call, context: Context) -> Mode:
    """How a call treats what has no result."""
    given: Mode | None = call.option("mode")
    if given is not None:
        return given
    return "ANSI" if call.option("failOnError", call.option("ansiEnabled", context.ansi)) else "LEGACY"


def is_year_month(call: Call, at: int = 0) -> bool:
    """Whether an argument that is an int32 to us is an interval of months to Spark."""
    if call.origin is None:
        return False
    name: str = call.origin.jvm().children().apply(at).dataType().typeName()
    return name.startswith("interval")


# ---------------------------------------------------------------------- columns as numpy sees them


def values_of(datum: Datum, fill: Any = 0) -> Any:
    """The values of a column of fixed width, with something in place of NULL; a scalar as an array of one."""
    array = as_array(datum, 1)
    if array.null_count:
        array = array.fill_null(pa.scalar(fill, array.type) if not isinstance(fill, pa.Scalar) else fill)
    return array.to_numpy(zero_copy_only=False)


def valid_of(*data: Datum) -> Any:
    """Which rows are NULL in no column, or None if all are."""
    out = None
    for datum in data:
        array = as_array(datum, 1)
        if array.null_count:
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            out = valid if out is None else out & valid
    return out


def made(values: Any, valid: Any, dtype: pa.DataType, *data: Datum) -> Datum:
    """A column from numpy values; a scalar where all that it was made of were scalars."""
    rows = max((len(d) for d in data if not isinstance(d, pa.Scalar)), default=None)
    if rows is not None and len(values) != rows:
        values = np.broadcast_to(values, rows)
    if valid is not None and len(valid) != len(values):
        valid = np.broadcast_to(valid, len(values))
    out = pa.array(values, mask=None if valid is None else ~valid)
    if out.type != dtype:
        out = out.cast(dtype, safe=False)
    return out[0] if rows is None and not _has_array(data) else out


def _has_array(data: Sequence[Datum]) -> bool:
    return any(not isinstance(d, pa.Scalar) for d in data)


def by_numpy(
    dtype: pa.DataType, function: Callable[..., Any], fill: Any = 0, error: str | None = None
) -> Callable[..., Datum]:
    """A function on columns from one on numpy arrays.

    It gives values, or values and where there are none: those rows raise `error`, if it is given, or are NULL.
    """

    def run(*data: Datum) -> Datum:
        if _has_array(data) and any(isinstance(d, pa.ListArray) for d in data):
            raise TypeError("nested columns have no numpy form")
        valid = valid_of(*data)
        with np.errstate(all="ignore"):
            given = function(*(values_of(d, fill) for d in data))
        values, bad = given if isinstance(given, tuple) else (given, None)
        if bad is not None and np.any(bad if valid is None else bad & valid):
            if error is not None:
                raise EvaluationError(error)
            valid = ~bad if valid is None else valid & ~bad
        return made(values, valid, dtype, *data)

    return run


# ---------------------------------------------------------------------- decimals


def adjusted(precision: int, scale: int) -> pa.DataType:
    """Spark's type for so many digits: beyond 38, those after the point are given up, down to six."""
    if precision <= 38:
        return pa.decimal128(precision, scale)
    whole = precision - scale
    return pa.decimal128(38, max(38 - whole, min(scale, 6)))


def unscaled(array: pa.Array) -> Any:
    """The integers behind a column of decimals: int64 if they have 18 digits at most, else Python's; 0 for NULL."""
    if array.type.bit_width != 128:
        raise TypeError(f"{array.type} has another layout")
    pairs = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
    low, high = pairs[0::2], pairs[1::2]
    if array.type.precision <= 18:
        out = low.copy()
    else:
        out = high.astype(object) * (1 << 64) + low.view(np.uint64).astype(object)
    if array.null_count:
        out[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return out


def decimals(values: Any, valid: Any, dtype: pa.DataType) -> pa.Array:
    """A column of decimals from integers that fit."""
    pairs = np.empty(2 * len(values), np.int64)
    if values.dtype == object:
        zeroed = values if valid is None else np.where(valid, values, 0)
        pairs[0::2] = (zeroed & ((1 << 64) - 1)).astype(np.uint64).view(np.int64)
        pairs[1::2] = (zeroed >> 64).astype(np.int64)
    else:
        pairs[0::2] = values
        pairs[1::2] = values.astype(np.int64) >> 63
    bits = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(dtype, len(values), [bits, pa.py_buffer(pairs)])


def shortened(value: pa.Array, scale: int) -> pa.Array:
    """256-bit decimals with fewer digits after the point; the rest is dropped.

    At most nine digits at a time: Arrow (26.0 at least) divides wrongly by some larger powers of ten. For example
    39051278511034408008207564700000000000000002 over 10**15 is off in the 17th digit.
    """
    while value.type.scale > scale:
        value = value.cast(pa.decimal256(76, max(scale, value.type.scale - 9)), safe=False)
    return value


def rounded(value: pa.Array, scale: int) -> pa.Array:
    """256-bit decimals rounded HALF_UP to a scale."""
    if value.type.scale <= scale:
        return value
    # The digit after the last one decides.
    value = pc.round(shortened(value, scale + 1), scale, _AWAY)
    return value.cast(pa.decimal256(76, scale))


def fitted(value: pa.Array, dtype: pa.DataType, mode: Mode) -> pa.Array:
    """Decimals rounded HALF_UP to a type; what does not fit is NULL or an error."""
    if value.type == dtype:
        return value
    if value.type.scale > dtype.scale and value.type.bit_width == 128 and value.type.precision <= 18:
        whole = half_up(unscaled(value), 10 ** (value.type.scale - dtype.scale))
        return fitted_integers(whole, valid_of(value), dtype, mode)
    if value.type.scale > dtype.scale:
        value = rounded(value.cast(pa.decimal256(76, value.type.scale)), dtype.scale)
    if value.type.precision - value.type.scale > 76 - dtype.scale:
        value = value.cast(pa.decimal256(76, value.type.scale))
    try:
        return value.cast(dtype)
    except pa.ArrowInvalid:
        limit = _scaled(10 ** (dtype.precision - dtype.scale + value.type.scale), value.type.scale)
        fits = pc.less(pc.abs(value.cast(pa.decimal256(76, value.type.scale))), limit)
        if mode == "ANSI" and not pc.all(fits, min_count=0).as_py():
            raise EvaluationError(OUT_OF_RANGE.format(dtype.precision, dtype.scale)) from None
        return pc.if_else(fits, value, pa.scalar(None, value.type)).cast(dtype)


def _scaled(value: int, scale: int) -> pa.Scalar:
    """A decimal from the integer behind it."""
    with localcontext() as exact:
        exact.prec = 80
        return pa.scalar(Decimal(value).scaleb(-scale), pa.decimal256(76, scale))


def fitted_integers(values: Any, valid: Any, dtype: pa.DataType, mode: Mode) -> pa.Array:
    """A column of decimals from integers that may have too many digits."""
    bound = 10**dtype.precision
    if values.dtype == object or dtype.precision < 19:
        fits = (values < bound) & (values > -bound)
        fits = fits.astype(np.bool_)
        if not np.all(fits if valid is None else fits | ~valid):
            if mode == "ANSI":
                raise EvaluationError(OUT_OF_RANGE.format(dtype.precision, dtype.scale))
            valid = fits if valid is None else valid & fits
            values = np.where(valid, values, 0)
    return decimals(values, valid, dtype)


def half_up(values: Any, divisor: Any) -> Any:
    """Integers over positive integers, rounded half away from zero."""
    size = np.abs(values)
    quotient = (size + divisor // 2) // divisor
    return np.where(values < 0, -quotient, quotient)


def digits_of(value: int) -> int:
    return len(str(abs(value)))


def _integers(datum: Datum) -> Any:
    """The unscaled values of a column of decimals as Python's integers."""
    return unscaled(as_array(datum, 1)).astype(object)


def shaped(out: pa.Array, *data: Datum) -> Datum:
    return out if _has_array(data) else out[0]


def _decimal_sum(name: str, left: pa.DataType, right: pa.DataType) -> tuple[int, int]:
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def _decimal_add(call: Call, left: pa.DataType, right: pa.DataType, mode: Mode) -> tuple[pa.DataType, Any]:
    digits, scale = _decimal_sum(call.name, left, right)
    dtype = adjusted(digits, scale)
    function = pc.add if call.name == "Add" else pc.subtract
    if digits <= 38:  # there is room for every result, and Arrow has the same rules
        return dtype, function

    def run(a: Datum, b: Datum) -> Datum:
        wide = pa.decimal256(38, left.scale), pa.decimal256(38, right.scale)
        both = function(a.cast(wide[0]), b.cast(wide[1]))
        return shaped(fitted(as_array(both, 1), dtype, mode), a, b)

    return dtype, run


def _decimal_multiply(left: pa.DataType, right: pa.DataType, mode: Mode) -> tuple[pa.DataType, Any]:
    """Java keeps 39 digits of the product and drops the rest, which leaves the digit that decides the rounding."""
    digits, scale = left.precision + right.precision + 1, left.scale + right.scale
    dtype = adjusted(digits, scale)
    if digits <= 38:
        return dtype, pc.multiply
    wide = pa.decimal256(left.precision, left.scale), pa.decimal256(right.precision, right.scale)

    def exact(a: Datum, b: Datum) -> Datum:
        values = half_up(_integers(a) * _integers(b), 10 ** (scale - dtype.scale))
        out = fitted_integers(values, _broadcast(valid_of(a, b), len(values)), dtype, mode)
        return shaped(out, a, b)

    def run(a: Datum, b: Datum) -> Datum:
        product = pc.multiply(a.cast(wide[0]), b.cast(wide[1]))
        return shaped(fitted(as_array(product, 1), dtype, mode), a, b)

    return dtype, (run if digits <= 76 else exact)


def _broadcast(valid: Any, rows: int) -> Any:
    return None if valid is None else np.broadcast_to(valid, rows)


def divided_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    scale = max(6, left.scale + right.precision + 1)
    return adjusted(left.precision - left.scale + right.scale + scale, scale)


def _decimal_divide(left: pa.DataType, right: pa.DataType, mode: Mode) -> tuple[pa.DataType, Any]:
    dtype = divided_type(left, right)

    def run(a: Datum, b: Datum) -> Datum:
        up = 10 ** (dtype.scale + right.scale - left.scale) if dtype.scale + right.scale >= left.scale else 1
        down = 10 ** max(0, left.scale - right.scale - dtype.scale)
        over, under = _integers(a) * up, _integers(b) * down
        zero = under == 0
        under = np.where(zero, 1, under)
        values = half_up(np.where(under < 0, -over, over), np.abs(under))
        valid = _broadcast(_nonzero(valid_of(a, b), zero, mode), len(values))
        return shaped(fitted_integers(values, valid, dtype, mode), a, b)

    return dtype, run


def _nonzero(valid: Any, zero: Any, mode: Mode, error: str = DIVIDE_BY_ZERO) -> Any:
    """Which rows have a result, where some divisors are zero."""
    zero = zero.astype(np.bool_)
    if not np.any(zero if valid is None else zero & valid):
        return valid
    if mode == "ANSI":
        raise EvaluationError(error)
    return ~zero if valid is None else valid & ~zero


def _truncated(over: Any, under: Any) -> Any:
    """Integers divided as Java does: towards zero."""
    quotient = np.abs(over) // np.abs(under)
    return np.where((over < 0) != (under < 0), -quotient, quotient)


def _impossible(values: Any) -> None:
    """Java's division of decimals to an integer gives up beyond 39 digits."""
    long = np.abs(values) >= 10**39
    for value in values[long.astype(np.bool_)]:
        if value % 10 ** (digits_of(value) - 39):
            raise EvaluationError("[ARITHMETIC_OVERFLOW] Division impossible")


def _decimal_remainder(call: Call, left: pa.DataType, right: pa.DataType, mode: Mode) -> tuple[pa.DataType, Any]:
    scale = max(left.scale, right.scale)
    dtype = adjusted(min(left.precision - left.scale, right.precision - right.scale) + scale, scale)
    narrow = max(left.precision - left.scale, right.precision - right.scale) + scale <= 18

    def run(a: Datum, b: Datum) -> Datum:
        over = unscaled(as_array(a, 1)) if narrow else _integers(a)
        under = unscaled(as_array(b, 1)) if narrow else _integers(b)
        over, under = over * 10 ** (scale - left.scale), under * 10 ** (scale - right.scale)
        zero = under == 0
        valid = valid_of(a, b)
        valid = _nonzero(valid, zero, mode, REMAINDER_BY_ZERO)
        under = np.where(zero, 1, under)
        quotient = _truncated(over, under)
        if not narrow:
            _impossible(quotient)
        values = over - under * quotient
        if call.name == "Pmod":
            values = np.where(values < 0, _java_remainder(values + under, under), values)
        valid = _broadcast(valid, len(values))
        if dtype.scale < scale:
            values = half_up(values, 10 ** (scale - dtype.scale))
        return shaped(fitted_integers(values, valid, dtype, mode), a, b)

    return dtype, run


def _java_remainder(over: Any, under: Any) -> Any:
    return over - under * _truncated(over, under)


def _decimal_integral_divide(left: pa.DataType, right: pa.DataType, mode: Mode) -> tuple[pa.DataType, Any]:
    scale = max(left.scale, right.scale)
    most = adjusted(max(1, left.precision - left.scale + right.scale), 0)

    def run(a: Datum, b: Datum) -> Datum:
        over, under = _integers(a) * 10 ** (scale - left.scale), _integers(b) * 10 ** (scale - right.scale)
        zero = under == 0
        valid = _nonzero(valid_of(a, b), zero, mode)
        quotient = _truncated(over, np.where(zero, 1, under))
        _impossible(quotient)
        valid = _broadcast(valid, len(quotient))
        bound = 10**most.precision
        fits = ((quotient < bound) & (quotient > -bound)).astype(np.bool_)
        if not np.all(fits if valid is None else fits | ~valid):
            if mode == "ANSI":
                raise EvaluationError(OUT_OF_RANGE.format(most.precision, 0))
            valid = fits if valid is None else valid & fits
        low = (quotient & ((1 << 64) - 1)).astype(np.uint64).view(np.int64)  # the low bits, as Java narrows
        return made(low, valid, pa.int64(), a, b)

    return pa.int64(), run


# ---------------------------------------------------------------------- integers and floats

_WRAPPING: dict[str, Callable[..., Any]] = {"Add": pc.add, "Subtract": pc.subtract, "Multiply": pc.multiply}
_CHECKED: dict[str, Callable[..., Any]] = {
    "Add": pc.add_checked,
    "Subtract": pc.subtract_checked,
    "Multiply": pc.multiply_checked,
}


def _overflows(name: str, a: Any, b: Any, result: Any) -> Any:
    """Where the wrapped result of an operator is not its result."""
    if name == "Add":
        return ((a ^ result) & (b ^ result)) < 0
    if name == "Subtract":
        return ((a ^ b) & (a ^ result)) < 0
    least = np.iinfo(result.dtype).min
    divisor = np.where(a == 0, 1, a)
    return (a != 0) & (
        (result // np.where(divisor == -1, 1, divisor) != b) & (divisor != -1) | (divisor == -1) & (b == least)
    )


def checked(name: str, mode: Mode) -> Callable[[Datum, Datum], Datum]:
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
        return made(result, ~bad if valid is None else valid & ~bad, dtype, a, b)

    return run


@rule("Add", "Subtract", "Multiply")
def add(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    left, right = (a.type for a in args)
    mode = mode_of(call, context)
    t = pa.types
    if t.is_decimal(left) and t.is_decimal(right):
        if call.name == "Multiply":
            dtype, function = _decimal_multiply(left, right, mode)
        else:
            dtype, function = _decimal_add(call, left, right, mode)
        return strict(dtype, function, args, mode == "ANSI" and function not in (pc.add, pc.subtract, pc.multiply))
    if left != right:
        return None
    if t.is_floating(left):
        return strict(left, _WRAPPING[call.name], args)
    if t.is_duration(left) and call.name != "Multiply":
        mode = "TRY" if mode == "TRY" else "ANSI"  # intervals do not wrap
        return strict(left, checked(call.name, mode), args, mode == "ANSI")
    if not t.is_integer(left):
        return None
    if mode == "LEGACY" and not (left.bit_width == 32 and is_year_month(call)):
        return strict(left, _WRAPPING[call.name], args)
    mode = "TRY" if mode == "TRY" else "ANSI"
    if call.name != "Multiply" and args[1].constant is not None and args[1].constant.as_py() == 0:
        return args[0]
    return strict(left, checked(call.name, mode), args, mode == "ANSI")


def _is_zero(value: pa.Array) -> pa.Array:
    return pc.equal(value, pa.scalar(0, value.type))


def _dividing(dtype: pa.DataType, function: Callable[..., Datum], args: Sequence[Compiled], mode: Mode) -> Compiled:
    """Spark evaluates the divisor first, and unless zero is an error, nothing else where it is zero."""
    return strict(dtype, function, args, mode == "ANSI", (1, 0), None if mode == "ANSI" else _is_zero)


@rule("Divide")
def divide(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    left, right = (a.type for a in args)
    mode = mode_of(call, context)
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        dtype, function = _decimal_divide(left, right, mode)
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
        dtype, function = _decimal_integral_divide(left, right, mode)
        made_ = _dividing(dtype, function, args, mode)
        return Compiled(made_.type, made_.run, True)
    if left != pa.int64() or right != pa.int64():
        return None
    least = np.iinfo(np.int64).min

    def run(a: Datum, b: Datum) -> Datum:
        x, y = np.broadcast_arrays(values_of(a), values_of(b, 1))
        valid = valid_of(a, b)
        valid = _nonzero(_broadcast(valid, len(x)), y == 0, mode)
        over = (x == least) & (y == -1)
        if mode != "LEGACY" and np.any(over if valid is None else over & valid):
            if mode == "ANSI":
                raise EvaluationError(OVERFLOW.format("integral divide"))
            valid = ~over if valid is None else valid & ~over
        with np.errstate(all="ignore"):
            safe = np.where((y == 0) | over, 1, y)
            quotient = x // safe
            quotient = quotient + ((x % safe != 0) & ((x < 0) != (safe < 0)))
        return made(quotient, valid, pa.int64(), a, b)

    return _dividing(pa.int64(), run, args, mode)


@rule("Remainder", "Pmod")
def remainder(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    left, right = (a.type for a in args)
    mode = mode_of(call, context)
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        dtype, function = _decimal_remainder(call, left, right, mode)
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

    return strict(args[0].type, run, args, True)


@rule("DivideDTInterval")
def divide_interval(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Intervals of days and seconds over integers, rounded HALF_UP."""
    if not (pa.types.is_duration(args[0].type) and pa.types.is_integer(args[1].type)):
        return None
    least = np.iinfo(np.int64).min

    def run(a: Datum, b: Datum) -> Datum:
        micros, by = np.broadcast_arrays(values_of(a.cast(pa.int64())), values_of(b, 1).astype(np.int64))
        valid = _broadcast(valid_of(a, b), len(micros))
        for bad, error in (
            (by == 0, "[INTERVAL_DIVIDED_BY_ZERO] an interval over zero"),
            ((micros == least) & (by == -1), "[INTERVAL_ARITHMETIC_OVERFLOW] an interval is too large"),
        ):
            if np.any(bad if valid is None else bad & valid):
                raise EvaluationError(error)
        over, under = micros.astype(object), np.where(by == 0, 1, by).astype(object)
        out = half_up(np.where(under < 0, -over, over), np.abs(under))
        return made(out.astype(np.int64), valid, args[0].type, a, b)

    return strict(args[0].type, run, args, True)


@rule("TryEval")
def try_eval(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """NULL where evaluating the argument fails: the rows are halved until those are found."""
    (inner,) = args

    def run(frame: Frame) -> Datum:
        try:
            return inner.array(frame)
        except EvaluationError:
            if frame.rows == 1:
                return pa.nulls(1, inner.type)
        half = frame.rows // 2
        parts = [(0, half), (half, frame.rows - half)]
        return pa.concat_arrays([run(Frame([c.slice(at, n) for c in frame.columns], n)) for at, n in parts])

    return Compiled(inner.type, run) if inner.can_fail else inner


# ---------------------------------------------------------------------- what Spark's optimiser makes of decimals


@rule("UnscaledValue")
def unscaled_value(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_decimal(args[0].type) or args[0].type.precision > 18:
        return None

    def run(value: Datum) -> Datum:
        return made(unscaled(as_array(value, 1)), valid_of(value), pa.int64(), value)

    return calling(pa.int64(), run, args)


@rule("MakeDecimal")
def make_decimal(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != pa.int64() or call.option("precision") is None:
        return None
    dtype = pa.decimal128(int(call.option("precision")), int(call.option("scale")))
    null_on_overflow = call.option("nullOnOverflow", not context.ansi)
    mode: Mode = "LEGACY" if null_on_overflow else "ANSI"

    def run(value: Datum) -> Datum:
        return shaped(fitted_integers(values_of(value), valid_of(value), dtype, mode), value)

    return calling(dtype, run, args, mode == "ANSI")


@rule("CheckOverflow")
def check_overflow(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_decimal(args[0].type):
        return None
    dtype = from_json(call.option("dataType"))
    mode: Mode = "LEGACY" if call.option("nullOnOverflow", not context.ansi) else "ANSI"

    def run(value: Datum) -> Datum:
        return shaped(fitted(as_array(value, 1), dtype, mode), value)

    return calling(dtype, run, args, mode == "ANSI")
