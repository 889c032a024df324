"""Casts between types, as Spark makes them.

ANSI mode raises where there is no result, TRY gives NULL, LEGACY wraps integers and is lenient with strings. Strings
of the usual forms are read by Arrow; a string of another form is read by a Python function that knows all of Spark's
forms. Left to Spark: floats to strings and to decimals of many digits (the digits depend on the version of Java),
intervals, and strings of nested values.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import DbsparkError
from dbspark.sql.expressions.arithmetic import (
    OUT_OF_RANGE,
    Mode,
    decimals,
    fitted,
    fitted_integers,
    is_year_month,
    mode_of,
    unscaled,
    valid_of,
    values_of,
)
from dbspark.sql.expressions.rules import Compiled, Context, Datum, EvaluationError, calling, constant, rule
from dbspark.sql.expressions.zones import DAY, SECOND, Zone, zone
from dbspark.sql.plan import Call
from dbspark.sql.types import from_json

Caster = Callable[[pa.Array], pa.Array]
"""From a column of one type to a column of another."""

INVALID = "[CAST_INVALID_INPUT] a value {!r} of the type {} cannot be cast to {}"
TOO_LARGE = "[CAST_OVERFLOW] a value of the type {} cannot be cast to {} due to an overflow"

_BLANK = "".join(map(chr, [*range(0x21), 0x7F]))
"""What Spark strips from strings before it reads them."""


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


def _caster(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
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


def _refused(value: pa.Array, found: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    """What was read; where nothing was, an error in ANSI mode."""
    if mode == "ANSI" and found.null_count != value.null_count:
        bad = value.filter(pc.and_(pc.is_valid(value), pc.is_null(found)))
        shown = bad[:1].view(pa.binary())[0].as_py() if pa.types.is_string(value.type) else bad[0]
        raise EvaluationError(INVALID.format(shown, value.type, target))
    return found


def _masked(values: Any, valid: Any, bad: Any, target: pa.DataType, mode: Mode, message: str) -> pa.Array:
    """Numbers as a column, where some have no result."""
    if bad is not None and np.any(bad if valid is None else bad & valid):
        if mode == "ANSI":
            raise EvaluationError(message)
        valid = ~bad if valid is None else valid & ~bad
    out = pa.array(np.ascontiguousarray(values), mask=None if valid is None else ~valid)
    if out.type == target:
        return out
    if pa.types.is_integer(out.type) and not (pa.types.is_integer(target) or pa.types.is_boolean(target)):
        return out.view(target)
    return out.cast(target, safe=False)


# ---------------------------------------------------------------------- integers and booleans


def _from_integer(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
    t = pa.types
    if t.is_integer(target):
        if target.bit_width >= source.bit_width:
            return (lambda v: v.cast(target)), False
        if mode == "LEGACY":
            return (lambda v: v.cast(target, safe=False)), False
        return (lambda v: _narrowed(values_of(v), valid_of(v), source, target, mode)), mode == "ANSI"
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
            return _masked(micros, valid_of(v), None, target, mode, "")

        return seconds, False
    if t.is_binary(target):
        return (lambda v: _big_endian(values_of(v), valid_of(v))), False
    return None


def _big_endian(values: Any, valid: Any) -> pa.Array:
    width = values.dtype.itemsize
    data = pa.py_buffer(np.ascontiguousarray(values.astype(values.dtype.newbyteorder(">"))).tobytes())
    bits = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(pa.binary(width), len(values), [bits, data]).cast(pa.binary())


def _narrowed(values: Any, valid: Any, source: pa.DataType, target: pa.DataType, mode: Mode) -> pa.Array:
    """Integers as integers of fewer bits."""
    dtype = target.to_pandas_dtype()
    out = values.astype(dtype)
    bad = None if mode == "LEGACY" else out != values
    return _masked(out, valid, bad, target, mode, TOO_LARGE.format(source, target))


def _from_boolean(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
    t = pa.types
    if t.is_integer(target) or t.is_string(target) or t.is_floating(target):
        return (lambda v: v.cast(pa.int8()).cast(target) if not t.is_string(target) else v.cast(target)), False
    if t.is_decimal(target):
        inner = _from_integer(pa.int8(), target, mode, zone_name)
        if inner is None or target.precision == target.scale:
            return None
        return (
            lambda v: v.cast(pa.int8()).cast(pa.decimal128(3, 0)).cast(pa.decimal256(76, target.scale)).cast(target)
        ), False
    return None


# ---------------------------------------------------------------------- floats


def _from_float(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
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
            return _masked(micros, valid_of(v), bad, target, mode, TOO_LARGE.format(source, target))

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


def _float_to_decimal(v: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
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


def _truncated(values: Any, valid: Any, source: pa.DataType, target: pa.DataType, mode: Mode) -> pa.Array:
    dtype = target.to_pandas_dtype()
    if mode == "LEGACY":
        if target.bit_width < 32:
            return _masked(saturated(values, np.int32).astype(dtype), valid, None, target, mode, "")
        return _masked(saturated(values, dtype), valid, None, target, mode, "")
    limits = np.iinfo(dtype)
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        fits = (np.floor(wide) <= float(limits.max)) & (np.ceil(wide) >= float(limits.min))
    return _masked(saturated(wide, dtype), valid, ~fits, target, mode, TOO_LARGE.format(source, target))


# ---------------------------------------------------------------------- decimals


def _from_decimal(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
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
            return _masked(_low(whole), valid_of(v), None, target, mode, "")

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
        return _masked(out, valid_of(v), None, target, "LEGACY", "")
    if target.bit_width == 32 and v.type.precision <= 7 and scale <= 10:
        out = unscaled(v).astype(np.float32) / np.float32(10.0**scale)
        return _masked(out, valid_of(v), None, target, "LEGACY", "")
    return v.cast(pa.string()).cast(target)


def _decimal_to_integer(v: pa.Array, target: pa.DataType, mode: Mode) -> pa.Array:
    source, valid = v.type, valid_of(v)
    values = unscaled(v)
    unit = 10**source.scale
    dtype = target.to_pandas_dtype()
    compact = values.dtype != object
    size = np.abs(values) // unit
    whole = np.where(values < 0, -size, size)
    if mode == "LEGACY":
        low = whole if compact else _low(whole)
        return _masked(low.astype(dtype), valid, None, target, mode, "")
    message = TOO_LARGE.format(source, target)
    limits = np.iinfo(dtype)
    if compact or target.bit_width == 64:
        bad = ((whole > int(limits.max)) | (whole < int(limits.min))).astype(np.bool_)
        return _masked(np.where(bad, 0, whole).astype(dtype), valid, bad, target, mode, message)
    # Spark goes through double here, which rounds.
    wide = (values / unit).astype(np.float64)
    fits = (np.floor(wide) <= float(limits.max)) & (np.ceil(wide) >= float(limits.min))
    return _masked(saturated(wide, dtype), valid, ~fits, target, mode, message)


def _decimal_to_string(source: pa.DataType, mode: Mode) -> tuple[Caster, bool] | None:
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


# ---------------------------------------------------------------------- strings


def _by_form(strings: pa.Array, form: str, fast: Caster, slow: Callable[[str], Any], dtype: pa.DataType) -> pa.Array:
    """What strings say: those of one form read at once, the others one by one."""
    usual = pc.fill_null(pc.match_substring_regex(strings, form), False)
    others = pc.indices_nonzero(pc.and_(pc.invert(usual), pc.is_valid(strings)))
    if not len(others):
        return fast(strings)
    rows = pc.indices_nonzero(usual)
    texts = strings.take(others).view(pa.binary()).to_pylist()
    rest = pa.array([slow(x.decode("utf-8", "replace")) for x in texts], dtype)
    where = np.full(len(strings), -1)
    where[rows.to_numpy()] = np.arange(len(rows))
    where[others.to_numpy()] = len(rows) + np.arange(len(others))
    return pa.concat_arrays([fast(strings.take(rows)), rest]).take(pa.array(where, mask=where < 0))


def _from_string(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
    t = pa.types
    if t.is_binary(target):
        return (lambda v: v.view(target)), False
    read: Caster
    if t.is_boolean(target):
        read = _string_to_boolean
    elif t.is_integer(target):
        read = _string_to_integer(target, mode == "LEGACY")
    elif t.is_floating(target):
        read = _string_to_float(target)
    elif t.is_decimal(target):
        return _string_to_decimal(target, mode), mode == "ANSI"
    elif t.is_date(target):
        read = _string_to_date
    elif t.is_timestamp(target):
        here = zone(zone_name if target.tz else None)
        if here is None:
            return None
        find = _string_to_timestamp(target, here)
        return (lambda v: _refused(v, find(v), target, mode)), mode == "ANSI"
    else:
        return None
    return (lambda v: _refused(v, read(pc.ascii_trim(v, _BLANK)), target, mode)), mode == "ANSI"


_TRUE = pa.array(["t", "true", "y", "yes", "1"])
_FALSE = pa.array(["f", "false", "n", "no", "0"])


def _string_to_boolean(strings: pa.Array) -> pa.Array:
    lower = pc.ascii_lower(strings)
    true, false = pc.is_in(lower, value_set=_TRUE), pc.is_in(lower, value_set=_FALSE)
    return pc.if_else(pc.or_(true, false), true, pa.scalar(None, pa.bool_()))


def _string_to_integer(target: pa.DataType, lenient: bool) -> Caster:
    limits = np.iinfo(target.to_pandas_dtype())
    # Of a number with a point Spark, if lenient, takes what is before the point.
    full = re.compile(r"([+-]?)([0-9]*)(\.[0-9]*)?" if lenient else r"([+-]?)([0-9]+)()", re.ASCII)

    def slow(text: str) -> int | None:
        match = full.fullmatch(text)
        if match is None or not (match[2] or match[3]):
            return None
        value = int(match[1] + (match[2] or "0"))
        return value if limits.min <= value <= limits.max else None

    usual = {8: 2, 16: 4, 32: 9, 64: 18}[target.bit_width]
    return lambda v: _by_form(v, f"^-?(0|[1-9][0-9]{{0,{usual - 1}}})$", lambda s: s.cast(target), slow, target)


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?", re.ASCII)
_HEX = re.compile(r"([+-]?)0[xX]([0-9a-fA-F]*)\.?([0-9a-fA-F]*)[pP]([+-]?[0-9]+)[dDfF]?", re.ASCII)
_SPECIAL = {
    "nan": float("nan"), "inf": float("inf"), "+inf": float("inf"), "infinity": float("inf"), "+infinity": float("inf"),
    "-inf": float("-inf"), "-infinity": float("-inf"),
}  # fmt: skip


def _string_to_float(target: pa.DataType) -> Caster:
    single = target.bit_width == 32

    def slow(text: str) -> float | None:
        if text in ("+NaN", "-NaN"):
            return float("nan")
        special = _SPECIAL.get(text.lower())
        if special is not None:
            return special
        if _NUMBER.fullmatch(text):
            digits = text.rstrip("dDfF")
            return nearest_single(digits) if single else float(digits)
        match = _HEX.fullmatch(text)
        if match is None or not (match[2] or match[3]):
            return None
        if abs(int(match[4])) > 5000:
            raise EvaluationError(f"[CAST_INVALID_INPUT] {text!r}: an exponent of that size")
        power = int(match[4]) - 4 * len(match[3])
        exact = Fraction(int(match[2] + match[3], 16)) * Fraction(2) ** power
        sign = -1.0 if match[1] == "-" else 1.0
        return sign * (_nearest(exact, np.float32 if single else np.float64))

    form = r"^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?$"
    return lambda v: _by_form(v, form, lambda s: s.cast(target), slow, target)


def _nearest(exact: Fraction, kind: Any) -> float:
    """The nearest float of a kind to a number that is not negative, ties to even."""
    try:
        guess = float(exact)
    except OverflowError:
        return float("inf")
    if kind is np.float64:
        return guess
    with np.errstate(over="ignore"):
        middle = np.float32(guess)
    if np.isinf(middle):
        return float("inf") if exact >= Fraction(2) ** 128 - Fraction(2) ** 103 else float(np.finfo(np.float32).max)
    around = [np.nextafter(middle, np.float32(0)), middle, np.nextafter(middle, np.float32(np.inf))]
    options = [x for x in around if np.isfinite(x)]
    best = min(options, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.int32)) & 1))
    if exact >= Fraction(2) ** 128 - Fraction(2) ** 103:
        return float("inf")
    return float(best)


def nearest_single(text: str) -> float:
    negative = text.startswith("-")
    digits = text.lstrip("+-")
    mantissa, _, exponent = digits.lower().partition("e")
    if abs(int(exponent or 0)) > 5000:
        value = float(digits)
    else:
        value = _nearest(
            Fraction(mantissa if not mantissa.endswith(".") else mantissa + "0") * Fraction(10) ** int(exponent or 0),
            np.float32,
        )
    return -value if negative else value


def _string_to_decimal(target: pa.DataType, mode: Mode) -> Caster:
    form = r"^[+-]?[0-9]{1,38}(\.[0-9]{1,37})?$"
    pattern = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")  # Java takes digits of all scripts
    wide = pa.decimal256(76, 38)
    whole = max(target.precision - target.scale, 1)
    fraction = rf"(\.[0-9]{{1,{target.scale}}})?" if target.scale else ""
    short = rf"^[+-]?[0-9]{{1,{whole}}}{fraction}$" if target.precision > target.scale else "^$"
    bound: int = 10**target.precision

    def slow(text: str) -> int | None:
        if not pattern.fullmatch(text) or max(text) > "\uffff":
            return None
        try:
            with localcontext() as exact:
                exact.prec = 10_000
                value = Decimal(text)
                if value and value.adjusted() > 60:
                    return bound  # too large for any type
                if value and value.adjusted() < -60:
                    return 0
                return int(value.scaleb(target.scale).to_integral_value(ROUND_HALF_UP))
        except InvalidOperation:
            return None

    def fast(strings: pa.Array) -> pa.Array:
        if pc.all(pc.match_substring_regex(strings, short), min_count=0).as_py():
            return strings.cast(target)
        return fitted(strings.cast(wide), target, mode)

    def run(v: pa.Array) -> pa.Array:
        strings = pc.ascii_trim(v, _BLANK)
        usual = pc.fill_null(pc.match_substring_regex(strings, form), False)
        odd = pc.and_(pc.invert(usual), pc.is_valid(strings))
        if not pc.any(odd, min_count=0).as_py():
            return fast(strings)
        rows, others = pc.indices_nonzero(usual), pc.indices_nonzero(odd)
        texts = strings.take(others).view(pa.binary()).to_pylist()
        found = [slow(x.decode("utf-8", "replace")) for x in texts]
        if mode == "ANSI" and None in found:
            raise EvaluationError(INVALID.format(texts[found.index(None)], v.type, target))
        valid = np.array([x is not None for x in found])
        rest = fitted_integers(np.array([x or 0 for x in found], object), valid, target, mode)
        where = np.full(len(strings), -1)
        where[rows.to_numpy()] = np.arange(len(rows))
        where[others.to_numpy()] = len(rows) + np.arange(len(others))
        return pa.concat_arrays([fast(strings.take(rows)), rest]).take(pa.array(where, mask=where < 0))

    return run


# ---------------------------------------------------------------------- strings of dates and timestamps

_USUAL_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)


def _digits(strings: pa.Array, width: int) -> Any:
    """Strings of one length as a matrix of the numbers of their digits; NULLs are zeros."""
    filled = strings.fill_null("0" * width)
    _, offsets, data = filled.buffers()
    starts = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1]
    out = np.frombuffer(data, np.uint8)[starts[0] : starts[-1]] if len(filled) else np.zeros(0, np.uint8)
    return out.reshape(len(filled), width).astype(np.int64) - ord("0")


def _number(matrix: Any, start: int, stop: int) -> Any:
    out = np.zeros(len(matrix), np.int64)
    for column in range(start, stop):
        out = out * 10 + matrix[:, column]
    return out


def days_from(year: Any, month: Any, day: Any) -> tuple[Any, Any]:
    """Days since 1970, and whether there is such a date."""
    inside = (month >= 1) & (month <= 12) & (day >= 1)
    months = (np.asarray(year) - 1970) * 12 + np.where(inside, month, 1) - 1
    first = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
    following = (months + 1).astype("M8[M]").astype("M8[D]").astype(np.int64)
    return first + day - 1, inside & (first + day - 1 < following)


def _date_of(text: str) -> int | None:
    """Days since 1970 of a date as Spark reads it."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year = int(match[1] + match[2])
    days, ok = days_from(np.array([year]), np.array([int(match[3] or 1)]), np.array([int(match[4] or 1)]))
    found = int(days[0])
    return found if ok[0] and -(2**31) <= found < 2**31 else None


def _string_to_date(strings: pa.Array) -> pa.Array:
    def fast(usual: pa.Array) -> pa.Array:
        digits = _digits(usual, 10) if not usual.null_count else _digits(usual.fill_null("1970-01-01"), 10)
        days, ok = days_from(_number(digits, 0, 4), _number(digits, 5, 7), _number(digits, 8, 10))
        valid = valid_of(usual)
        valid = ok if valid is None else valid & ok
        return pa.array(days.astype(np.int32), mask=~valid).view(pa.date32())

    return _by_form(strings, _USUAL_DATE, fast, _date_of, pa.date32())


_USUAL_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_CLOCK = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9].*)?)?)?"
_TIMESTAMP = re.compile(
    rf"([+-]?)([0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.ASCII | re.DOTALL
)
_TIME = re.compile(rf"(?:T|(?=[0-9]+:)){_CLOCK}", re.ASCII | re.DOTALL)


def _string_to_timestamp(target: pa.DataType, here: Zone) -> Caster:
    """Timestamps in all of Spark's forms; a time without a date, of today, where the zone counts."""

    def fast(usual: pa.Array) -> pa.Array:
        filled = usual.fill_null("1970-01-01 00:00:00")
        dotted = pc.if_else(
            pc.equal(pc.binary_length(filled), 19), pc.binary_join_element_wise(filled, ".", ""), filled
        )
        digits = _digits(pc.ascii_rpad(dotted, 26, "0"), 26)
        days, ok = days_from(_number(digits, 0, 4), _number(digits, 5, 7), _number(digits, 8, 10))
        hour, minute, second = (_number(digits, at, at + 2) for at in (11, 14, 17))
        ok = ok & (hour < 24) & (minute < 60) & (second < 60)
        rest = ((hour * 60 + minute) * 60 + second) * SECOND + _number(digits, 20, 26)
        days, rest = here.instant(days, rest)
        valid = valid_of(usual)
        return _masked(days * DAY + rest, ok if valid is None else valid & ok, None, target, "TRY", "")

    def slow(text: str) -> int | None:
        return _timestamp_of(text, here, bool(target.tz))

    def run(strings: pa.Array) -> pa.Array:
        found = _by_form(strings, _USUAL_TIMESTAMP, lambda v: fast(v).view(pa.int64()), slow, pa.int64())
        return found.view(target)

    return run


def _timestamp_of(text: str, here: Zone, zoned: bool) -> int | None:
    """Microseconds since 1970 of a timestamp as Spark reads it."""
    at_start = not text or text[0] not in _BLANK
    text = text.strip(_BLANK)
    match = _TIMESTAMP.fullmatch(text)
    if match is not None:
        sign, year, month, day, *clock = match.groups()
        date = days_from(np.array([int(sign + year)]), np.array([int(month or 1)]), np.array([int(day or 1)]))
        days = int(date[0][0]) if date[1][0] else None
    else:
        match = _TIME.fullmatch(text) if zoned and (at_start or not text.startswith("T")) else None
        if match is None:
            return None
        clock, days = list(match.groups()), None
    hour, minute, second = (int(part or 0) for part in clock[:3])
    if hour > 23 or minute > 59 or second > 59:
        return None
    micros = int((clock[3] or "")[:6].ljust(6, "0"))
    there = here
    if clock[4] is not None:
        found = _named_zone(clock[4].strip(_BLANK[:33]))
        if found is None:
            return None
        there = found if zoned else here
    if days is None:
        if match.re is _TIMESTAMP:
            return None
        days = int(there.local(np.array([time.time_ns() // 1000]))[0][0])
    rest = ((hour * 60 + minute) * 60 + second) * SECOND + micros
    found_days, found_rest = there.instant(np.array([days]), np.array([rest]))
    out = int(found_days[0]) * DAY + int(found_rest[0])
    return out if -(2**63) <= out < 2**63 else None


def _named_zone(name: str) -> Zone | None:
    """The zone that a string ends with, if there is such a zone."""
    try:
        found = zone(name)
    except Exception:  # whatever Java raises for a name that it does not know
        return None
    if found is None:
        raise DbsparkError(f"without Spark there is no telling what time zone {name!r} is")
    return found


# ---------------------------------------------------------------------- dates and timestamps


def _date_digits(out: Any, days: Any) -> None:
    """Writes dates of years 0 to 9999 into the first ten columns of a matrix of characters."""
    months = days.astype("M8[D]").astype("M8[M]").astype(np.int64)
    year, month = months // 12 + 1970, months % 12 + 1
    day = days - months.astype("M8[M]").astype("M8[D]").astype(np.int64) + 1
    _two_digits(out, 0, year // 100)
    _two_digits(out, 2, year % 100)
    _two_digits(out, 5, month)
    _two_digits(out, 8, day)
    out[:, 4] = out[:, 7] = ord("-")


def _two_digits(out: Any, at: int, values: Any) -> None:
    out[:, at] = values // 10 + ord("0")
    out[:, at + 1] = values % 10 + ord("0")


def _texts(characters: Any, lengths: Any, valid: Any) -> pa.Array:
    """Strings of the first characters of each row."""
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    data = characters[np.arange(characters.shape[1]) < lengths[:, None]]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    bits = None if valid is None else pa.array(valid).buffers()[1]
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896
"""Of years 0 and 9999: Java prints years beyond with a sign."""


def _date_texts(days: Any, valid: Any) -> pa.Array:
    """Dates as Java prints them."""
    usual = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    out = np.empty((len(days), 10), np.uint8)
    _date_digits(out, np.where(usual, days, 0))
    found = _texts(out, np.full(len(days), 10), valid)
    return found if np.all(usual) else _with_far(found, usual, days, None, valid)


def _with_far(found: pa.Array, usual: Any, days: Any, rest: Any, valid: Any) -> pa.Array:
    """Texts in which those of far years are put right."""
    far = ~usual if valid is None else ~usual & valid
    rows = np.flatnonzero(far)
    texts = [_far_date(t) for t in np.datetime_as_string(days[rows].astype("M8[D]")).tolist()]
    if rest is not None:
        # The time of day is that of the same moment of 1970.
        clock = _timestamp_texts(np.zeros(len(rows), np.int64), rest[rows], None).to_pylist()
        texts = [t + c[10:] for t, c in zip(texts, clock, strict=True)]
    return pc.replace_with_mask(found, pa.array(far), pa.array(texts, pa.string()))


def _far_date(text: str) -> str:
    sign, text = ("-", text[1:]) if text.startswith("-") else ("+", text)
    year, rest = text.split("-", 1)
    return f"{sign}{year.lstrip('0').rjust(4, '0')}-{rest}"


def _timestamp_texts(days: Any, rest: Any, valid: Any) -> pa.Array:
    """Timestamps as Spark prints them: with as many digits of a second as are needed."""
    usual = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    out = np.empty((len(days), 26), np.uint8)
    _date_digits(out, np.where(usual, days, 0))
    seconds, fraction = rest // SECOND, rest % SECOND
    for at, values in ((11, seconds // 3600), (14, seconds // 60 % 60), (17, seconds % 60)):
        _two_digits(out, at, values)
    for at, values in ((20, fraction // 10_000), (22, fraction // 100 % 100), (24, fraction % 100)):
        _two_digits(out, at, values)
    out[:, 10], out[:, 13], out[:, 16], out[:, 19] = ord(" "), ord(":"), ord(":"), ord(".")
    zeros = sum((fraction % 10**k == 0).astype(np.int64) for k in range(1, 6))
    found = _texts(out, np.where(fraction == 0, 19, 26 - zeros), valid)
    return found if np.all(usual) else _with_far(found, usual, days, rest, valid)


def _from_date(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
    t = pa.types
    if t.is_string(target):
        return (lambda v: _date_texts(values_of(v.view(pa.int32())).astype(np.int64), valid_of(v))), False
    if t.is_timestamp(target):
        here = zone(zone_name if target.tz else None)
        if here is None:
            return None

        def run(v: pa.Array) -> pa.Array:
            days = values_of(v.view(pa.int32())).astype(np.int64)
            local, rest = here.midnight(days)
            bad = np.abs(local) > 106_751_990
            with np.errstate(all="ignore"):
                micros = local * DAY + rest
            return _masked(micros, valid_of(v), bad, target, "ANSI", "[DATETIME_OVERFLOW] long overflow")

        return run, True
    if mode == "LEGACY" and (
        t.is_integer(target) or t.is_floating(target) or t.is_decimal(target) or t.is_boolean(target)
    ):
        return (lambda v: pa.nulls(len(v), target)), False
    return None


def _from_timestamp(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
    t = pa.types
    here = zone(zone_name if source.tz else None)
    if here is None:
        return None

    def micros_of(v: pa.Array) -> Any:
        return values_of(v.view(pa.int64()))

    if t.is_date(target):
        return (
            lambda v: _masked(here.local(micros_of(v))[0].astype(np.int32), valid_of(v), None, target, mode, "")
        ), False
    if t.is_string(target):
        return (lambda v: _timestamp_texts(*here.local(micros_of(v)), valid_of(v))), False
    if t.is_timestamp(target):
        session = zone(zone_name)
        if session is None:
            return None

        def run(v: pa.Array) -> pa.Array:
            micros = micros_of(v)
            if target.tz:
                days, rest = session.instant(micros // DAY, micros % DAY)
            else:
                days, rest = session.local(micros)
            return _masked(days * DAY + rest, valid_of(v), None, target, mode, "")

        return run, False
    if not source.tz:
        return None
    if t.is_integer(target):

        def seconds(v: pa.Array) -> pa.Array:
            whole = micros_of(v) // SECOND
            if target.bit_width == 64:
                return _masked(whole, valid_of(v), None, target, mode, "")
            return _narrowed(whole, valid_of(v), source, target, "ANSI" if mode == "ANSI" else "TRY")

        return seconds, mode == "ANSI" and target.bit_width < 64
    if t.is_floating(target):
        return (lambda v: _masked(micros_of(v) / float(SECOND), valid_of(v), None, target, mode, "")), False
    if t.is_decimal(target):

        def exact(v: pa.Array) -> pa.Array:
            micros = decimals(micros_of(v), valid_of(v), pa.decimal128(19, 6))
            return fitted(micros, target, mode)

        return exact, mode == "ANSI"
    if t.is_boolean(target) and mode == "LEGACY":
        return (lambda v: _masked(micros_of(v) != 0, valid_of(v), None, target, mode, "")), False
    return None


def _from_binary(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
    return ((lambda v: v.view(target)), False) if pa.types.is_string(target) else None


# ---------------------------------------------------------------------- nested values


def _nested(source: pa.DataType, target: pa.DataType, mode: Mode, zone_name: str) -> tuple[Caster, bool] | None:
    """Element by element."""
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
    if t.is_map(source) and t.is_map(target) and source.key_type == target.key_type:  # else keys could meet
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
    (pa.types.is_integer, _from_integer),
    (pa.types.is_boolean, _from_boolean),
    (pa.types.is_floating, _from_float),
    (pa.types.is_decimal, _from_decimal),
    (pa.types.is_string, _from_string),
    (pa.types.is_date, _from_date),
    (pa.types.is_timestamp, _from_timestamp),
    (pa.types.is_binary, _from_binary),
)
