"""Arithmetic of decimals, by Spark's rules of precision.

A result has the digits that Spark's rules give it, 38 at most, rounded HALF_UP. Arrow has the same rules, up to 38,
but truncates; so wide sums and products go through its 256-bit decimals, and what does not fit there (products of
more than 76 digits) through Python's integers, in numpy's arrays of objects. So do quotients: Arrow's division of
decimals is wrong for some divisors of more than 32 bits (`shortened` says more).
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.operands import (
    AWAY,
    OUT_OF_RANGE,
    REMAINDER_BY_ZERO,
    EvalMode,
    broadcast,
    datum_of_numpy,
    has_array,
    nonzero,
    valid_of,
)
from dbspark.sql.expressions.rules import Datum, as_array
from dbspark.sql.plan import Call


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
    value = pc.round(shortened(value, scale + 1), scale, AWAY)
    return value.cast(pa.decimal256(76, scale))


def fitted(value: pa.Array, dtype: pa.DataType, mode: EvalMode) -> pa.Array:
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


def fitted_integers(values: Any, valid: Any, dtype: pa.DataType, mode: EvalMode) -> pa.Array:
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
    return out if has_array(data) else out[0]


def _decimal_sum(name: str, left: pa.DataType, right: pa.DataType) -> tuple[int, int]:
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def decimal_add(call: Call, left: pa.DataType, right: pa.DataType, mode: EvalMode) -> tuple[pa.DataType, Any]:
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


def decimal_multiply(left: pa.DataType, right: pa.DataType, mode: EvalMode) -> tuple[pa.DataType, Any]:
    """Java keeps 39 digits of the product and drops the rest, which leaves the digit that decides the rounding."""
    digits, scale = left.precision + right.precision + 1, left.scale + right.scale
    dtype = adjusted(digits, scale)
    if digits <= 38:
        return dtype, pc.multiply
    wide = pa.decimal256(left.precision, left.scale), pa.decimal256(right.precision, right.scale)

    def exact(a: Datum, b: Datum) -> Datum:
        values = half_up(_integers(a) * _integers(b), 10 ** (scale - dtype.scale))
        out = fitted_integers(values, broadcast(valid_of(a, b), len(values)), dtype, mode)
        return shaped(out, a, b)

    def run(a: Datum, b: Datum) -> Datum:
        product = pc.multiply(a.cast(wide[0]), b.cast(wide[1]))
        return shaped(fitted(as_array(product, 1), dtype, mode), a, b)

    return dtype, (run if digits <= 76 else exact)


def divided_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    scale = max(6, left.scale + right.precision + 1)
    return adjusted(left.precision - left.scale + right.scale + scale, scale)


def decimal_divide(left: pa.DataType, right: pa.DataType, mode: EvalMode) -> tuple[pa.DataType, Any]:
    dtype = divided_type(left, right)

    def run(a: Datum, b: Datum) -> Datum:
        up = 10 ** (dtype.scale + right.scale - left.scale) if dtype.scale + right.scale >= left.scale else 1
        down = 10 ** max(0, left.scale - right.scale - dtype.scale)
        over, under = _integers(a) * up, _integers(b) * down
        zero = under == 0
        under = np.where(zero, 1, under)
        values = half_up(np.where(under < 0, -over, over), np.abs(under))
        valid = broadcast(nonzero(valid_of(a, b), zero, mode), len(values))
        return shaped(fitted_integers(values, valid, dtype, mode), a, b)

    return dtype, run


def whole_part(over: Any, under: Any) -> Any:
    """Integers divided as Java does: towards zero."""
    quotient = np.abs(over) // np.abs(under)
    return np.where((over < 0) != (under < 0), -quotient, quotient)


def _impossible(values: Any) -> None:
    """Java's division of decimals to an integer gives up beyond 39 digits."""
    long = np.abs(values) >= 10**39
    for value in values[long.astype(np.bool_)]:
        if value % 10 ** (digits_of(value) - 39):
            raise EvaluationError("[ARITHMETIC_OVERFLOW] Division impossible")


def decimal_remainder(call: Call, left: pa.DataType, right: pa.DataType, mode: EvalMode) -> tuple[pa.DataType, Any]:
    scale = max(left.scale, right.scale)
    dtype = adjusted(min(left.precision - left.scale, right.precision - right.scale) + scale, scale)
    narrow = max(left.precision - left.scale, right.precision - right.scale) + scale <= 18

    def run(a: Datum, b: Datum) -> Datum:
        over = unscaled(as_array(a, 1)) if narrow else _integers(a)
        under = unscaled(as_array(b, 1)) if narrow else _integers(b)
        over, under = over * 10 ** (scale - left.scale), under * 10 ** (scale - right.scale)
        zero = under == 0
        valid = valid_of(a, b)
        valid = nonzero(valid, zero, mode, REMAINDER_BY_ZERO)
        under = np.where(zero, 1, under)
        quotient = whole_part(over, under)
        if not narrow:
            _impossible(quotient)
        values = over - under * quotient
        if call.name == "Pmod":
            values = np.where(values < 0, _java_remainder(values + under, under), values)
        valid = broadcast(valid, len(values))
        if dtype.scale < scale:
            values = half_up(values, 10 ** (scale - dtype.scale))
        return shaped(fitted_integers(values, valid, dtype, mode), a, b)

    return dtype, run


def _java_remainder(over: Any, under: Any) -> Any:
    return over - under * whole_part(over, under)


def decimal_integral_divide(left: pa.DataType, right: pa.DataType, mode: EvalMode) -> tuple[pa.DataType, Any]:
    scale = max(left.scale, right.scale)
    most = adjusted(max(1, left.precision - left.scale + right.scale), 0)

    def run(a: Datum, b: Datum) -> Datum:
        over, under = _integers(a) * 10 ** (scale - left.scale), _integers(b) * 10 ** (scale - right.scale)
        zero = under == 0
        valid = nonzero(valid_of(a, b), zero, mode)
        quotient = whole_part(over, np.where(zero, 1, under))
        _impossible(quotient)
        valid = broadcast(valid, len(quotient))
        bound = 10**most.precision
        fits = ((quotient < bound) & (quotient > -bound)).astype(np.bool_)
        if not np.all(fits if valid is None else fits | ~valid):
            if mode == "ANSI":
                raise EvaluationError(OUT_OF_RANGE.format(most.precision, 0))
            valid = fits if valid is None else valid & fits
        low = (quotient & ((1 << 64) - 1)).astype(np.uint64).view(np.int64)  # the low bits, as Java narrows
        return datum_of_numpy(low, valid, pa.int64(), a, b)

    return pa.int64(), run
