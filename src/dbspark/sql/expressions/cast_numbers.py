"""Casts of integers, booleans, floats and decimals.

LEGACY mode wraps integers. Floats to strings and to decimals of many digits are left to Spark: the digits depend on
the version of Java.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.cast_results import TOO_LARGE, Caster, masked
from dbspark.sql.expressions.decimals import decimals, fitted, fitted_integers, unscaled
from dbspark.sql.expressions.operands import OUT_OF_RANGE, EvalMode, valid_of, values_of
from dbspark.sql.expressions.zones import SECOND


def from_integer(
    source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str
) -> tuple[Caster, bool] | None:
    t = pa.types
    if t.is_integer(target):
        if target.bit_width >= source.bit_width:
            return (lambda v: v.cast(target)), False
        if mode == "LEGACY":
            return (lambda v: v.cast(target, safe=False)), False
        return (lambda v: narrowed(values_of(v), valid_of(v), source, target, mode)), mode == "ANSI"
    if t.is_floating(target):
        return (lambda v: v.cast(target, safe=False)), False
    if t.is_string(target):
        return (lambda v: v.cast(target)), False
    if t.is_boolean(target):
        return (lambda v: pc.not_equal(v, pa.scalar(0, source))), False
    if t.is_decimal(target):
        roomy = target.precision - target.scale >= {8: 3, 16: 5, 32: 10, 64: 19}[source.bit_width]

        def run(v: pa.Array) -> pa.Array:
            if target.precision <= 18 and roomy:
                return decimals(values_of(v).astype(np.int64) * 10**target.scale, valid_of(v), target)
            if roomy:
                return v.cast(pa.decimal128(19, 0) if source.bit_width == 64 else pa.decimal128(10, 0)).cast(target)
            bound = 10 ** (target.precision - target.scale)
            values = values_of(v).astype(np.int64)
            valid = valid_of(v)
            if bound <= np.iinfo(np.int64).max:
                bad = (values >= bound) | (values <= -bound)
                if np.any(bad if valid is None else bad & valid):
                    if mode == "ANSI":
                        raise EvaluationError(OUT_OF_RANGE.format(target.precision, target.scale))
                    valid = ~bad if valid is None else valid & ~bad
                    values = np.where(bad, 0, values)
            wide = pa.array(values, mask=None if valid is None else ~valid)
            return wide.cast(pa.decimal128(19, 0)).cast(target)

        return run, mode == "ANSI" and not roomy
    if t.is_timestamp(target) and target.tz:

        def seconds(v: pa.Array) -> pa.Array:
            values = values_of(v).astype(np.int64)
            most = np.iinfo(np.int64).max // SECOND
            with np.errstate(all="ignore"):
                micros = values * SECOND
            micros = np.where(values > most, np.iinfo(np.int64).max, micros)
            micros = np.where(values < -most, np.iinfo(np.int64).min, micros)
            return masked(micros, valid_of(v), None, target, mode, "")

        return seconds, False
    if t.is_binary(target):
        return (lambda v: _big_endian(values_of(v), valid_of(v))), False
    return None


def _big_endian(values: Any, valid: Any) -> pa.Array:
    width = values.dtype.itemsize
    data = pa.py_buffer(np.ascontiguousarray(values.astype(values.dtype.newbyteorder(">"))).tobytes())
    bits = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(pa.binary(width), len(values), [bits, data]).cast(pa.binary())


def narrowed(values: Any, valid: Any, source: pa.DataType, target: pa.DataType, mode: EvalMode) -> pa.Array:
    """Integers as integers of fewer bits."""
    dtype = target.to_pandas_dtype()
    out = values.astype(dtype)
    bad = None if mode == "LEGACY" else out != values
    return masked(out, valid, bad, target, mode, TOO_LARGE.format(source, target))


def from_boolean(
    source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str
) -> tuple[Caster, bool] | None:
    t = pa.types
    if t.is_integer(target) or t.is_string(target) or t.is_floating(target):
        return (lambda v: v.cast(pa.int8()).cast(target) if not t.is_string(target) else v.cast(target)), False
    if t.is_decimal(target):
        inner = from_integer(pa.int8(), target, mode, zone_name)
        if inner is None or target.precision == target.scale:
            return None
        return (
            lambda v: v.cast(pa.int8()).cast(pa.decimal128(3, 0)).cast(pa.decimal256(76, target.scale)).cast(target)
        ), False
    return None


def from_float(source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str) -> tuple[Caster, bool] | None:
    t = pa.types
    if t.is_floating(target):
        return (lambda v: v.cast(target, safe=False)), False
    if t.is_boolean(target):
        return (lambda v: pc.not_equal(v, pa.scalar(0.0, source))), False
    if t.is_integer(target):
        return (lambda v: _truncated(values_of(v), valid_of(v), source, target, mode)), mode == "ANSI"
    if t.is_decimal(target) and target.precision - target.scale <= 15 and target.scale <= 18:
        return (lambda v: _float_to_decimal(v, target, mode)), mode == "ANSI"
    if t.is_timestamp(target) and target.tz:

        def run(v: pa.Array) -> pa.Array:
            values = values_of(v).astype(np.float64)
            with np.errstate(all="ignore"):
                micros = saturated(values * float(SECOND), np.int64)
                bad = ~np.isfinite(values)
                if mode != "LEGACY":
                    scaled = values * float(SECOND)
                    bad |= (np.floor(scaled) > 2.0**63) | (np.ceil(scaled) < -(2.0**63))
            return masked(micros, valid_of(v), bad, target, mode, TOO_LARGE.format(source, target))

        return run, mode == "ANSI"
    return None


def scaled_integers(values: Any, scale: int, rounding: str = ROUND_HALF_UP) -> Any:
    """Finite floats times a power of ten, rounded, as Spark does it: from the shortest digits that name the float.

    Java before 19 gives some floats more digits than needed. That makes no difference up to 18 digits after the point
    below 2**53; callers see to both.
    """
    size = np.abs(values)
    with np.errstate(all="ignore"):
        scaled = size * 10.0**scale
        clear = (scaled < 2.0**40) & (np.abs(scaled - np.floor(scaled) - 0.5) > 2.0**-9)
    whole = np.where(clear, np.floor(np.where(clear, scaled, 0) + 0.5), 0).astype(np.int64)
    out = np.where(values < 0, -whole, whole)
    rest = np.flatnonzero(~clear)
    if not len(rest):
        return out
    with localcontext() as exact:
        exact.prec = 400
        found = [
            int(Decimal(repr(v)).scaleb(scale).to_integral_value(rounding)) for v in values[rest].astype(float).tolist()
        ]
    wide = out.astype(object)
    wide[rest] = found
    return wide


def _float_to_decimal(v: pa.Array, target: pa.DataType, mode: EvalMode) -> pa.Array:
    values = values_of(v).astype(np.float64)
    valid = valid_of(v)
    finite = np.isfinite(values)
    small = finite & (np.abs(values) < 2.0**53)
    whole = scaled_integers(np.where(small, values, 0), target.scale).astype(object)
    whole[finite & ~small] = 10**target.precision  # does not fit, whatever its digits
    if not np.all(finite):
        valid = finite if valid is None else valid & finite
    return fitted_integers(whole, valid, target, mode)


def saturated(values: Any, dtype: Any) -> Any:
    """Floats as integers as Java casts: towards zero, NaN to 0, the rest to the nearest bound."""
    limits = np.iinfo(dtype)
    values = values.astype(np.float64)
    inside = (values > float(limits.min) - 1) & (values < float(limits.max) + 1) & (values < 2.0**63)
    with np.errstate(all="ignore"):
        out = np.where(inside, values, 0).astype(dtype)
    out = np.where(~inside & (values > 0), limits.max, out)
    return np.where(~inside & (values < 0), limits.min, out).astype(dtype)


def _truncated(values: Any, valid: Any, source: pa.DataType, target: pa.DataType, mode: EvalMode) -> pa.Array:
    dtype = target.to_pandas_dtype()
    if mode == "LEGACY":
        if target.bit_width < 32:
            return masked(saturated(values, np.int32).astype(dtype), valid, None, target, mode, "")
        return masked(saturated(values, dtype), valid, None, target, mode, "")
    limits = np.iinfo(dtype)
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        fits = (np.floor(wide) <= float(limits.max)) & (np.ceil(wide) >= float(limits.min))
    return masked(saturated(wide, dtype), valid, ~fits, target, mode, TOO_LARGE.format(source, target))


def from_decimal(
    source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str
) -> tuple[Caster, bool] | None:
    t = pa.types
    if t.is_decimal(target):
        if target.scale >= source.scale and target.precision - target.scale >= source.precision - source.scale:
            return (lambda v: v.cast(target)), False
        return (lambda v: fitted(v, target, mode)), mode == "ANSI"
    if t.is_boolean(target):
        return (lambda v: pc.not_equal(v, pa.scalar(0, source))), False
    if t.is_floating(target):
        return (lambda v: _decimal_to_float(v, target)), False
    if t.is_integer(target):
        return (lambda v: _decimal_to_integer(v, target, mode)), mode == "ANSI"
    if t.is_string(target):
        return _decimal_to_string(source, mode)
    if t.is_timestamp(target) and target.tz and source.precision <= 28:  # beyond, Spark rounds the product

        def run(v: pa.Array) -> pa.Array:
            values = unscaled(v).astype(object) * SECOND
            size = np.abs(values) // 10**source.scale
            whole = np.where(values < 0, -size, size)
            return masked(_low(whole), valid_of(v), None, target, mode, "")

        return run, False
    return None


def _low(values: Any) -> Any:
    """The low 64 bits of Python's integers."""
    return (values & ((1 << 64) - 1)).astype(np.uint64).view(np.int64)


def _decimal_to_float(v: pa.Array, target: pa.DataType) -> pa.Array:
    """To the nearest float."""
    scale = v.type.scale
    if target.bit_width == 64 and v.type.precision <= 15 and scale <= 22:
        out = unscaled(v).astype(np.float64) / 10.0**scale  # both are exact, so the quotient is the nearest
        return masked(out, valid_of(v), None, target, "LEGACY", "")
    if target.bit_width == 32 and v.type.precision <= 7 and scale <= 10:
        out = unscaled(v).astype(np.float32) / np.float32(10.0**scale)
        return masked(out, valid_of(v), None, target, "LEGACY", "")
    return v.cast(pa.string()).cast(target)


def _decimal_to_integer(v: pa.Array, target: pa.DataType, mode: EvalMode) -> pa.Array:
    source, valid = v.type, valid_of(v)
    values = unscaled(v)
    unit = 10**source.scale
    dtype = target.to_pandas_dtype()
    compact = values.dtype != object
    size = np.abs(values) // unit
    whole = np.where(values < 0, -size, size)
    if mode == "LEGACY":
        low = whole if compact else _low(whole)
        return masked(low.astype(dtype), valid, None, target, mode, "")
    message = TOO_LARGE.format(source, target)
    limits = np.iinfo(dtype)
    if compact or target.bit_width == 64:
        bad = ((whole > int(limits.max)) | (whole < int(limits.min))).astype(np.bool_)
        return masked(np.where(bad, 0, whole).astype(dtype), valid, bad, target, mode, message)
    # Spark goes through double here, which rounds.
    wide = (values / unit).astype(np.float64)
    fits = (np.floor(wide) <= float(limits.max)) & (np.ceil(wide) >= float(limits.min))
    return masked(saturated(wide, dtype), valid, ~fits, target, mode, message)


def _decimal_to_string(source: pa.DataType, mode: EvalMode) -> tuple[Caster, bool] | None:
    """Plain digits; in legacy mode small numbers with an exponent, as Java prints them and Arrow too."""
    scale = source.scale

    def plain(v: pa.Array) -> pa.Array:
        out = v.cast(pa.string())
        if scale <= 6:
            return out
        odd = pc.fill_null(pc.match_substring(out, "E"), False)
        if not pc.any(odd, min_count=0).as_py():
            return out
        rows = pc.indices_nonzero(odd)
        texts = [format(x, "f") for x in v.take(rows).to_pylist()]
        return pc.replace_with_mask(out, odd, pa.array(texts, pa.string()))

    return (plain if mode != "LEGACY" else lambda v: v.cast(pa.string())), False
