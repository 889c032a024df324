"""Casts of strings: to booleans, numbers, dates and timestamps.

Strings of the usual forms are read by Arrow or as matrices of digits; a string of another form is read by a Python
function that knows all of Spark's forms.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import DbsparkError, EvaluationError
from dbspark.sql.expressions.cast_results import BLANK, INVALID, Caster, decoded_text, masked, refused
from dbspark.sql.expressions.decimals import fitted, fitted_integers
from dbspark.sql.expressions.operands import EvalMode, valid_of
from dbspark.sql.expressions.zones import DAY, SECOND, Zone, zone


def _by_form(strings: pa.Array, form: str, fast: Caster, slow: Callable[[str], Any], dtype: pa.DataType) -> pa.Array:
    """The values of strings: those that match `form` are read together by `fast`, the others one by one by `slow`."""
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


def from_string(source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str) -> tuple[Caster, bool] | None:
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
        return (lambda v: refused(v, find(v), target, mode)), mode == "ANSI"
    else:
        return None
    return (lambda v: refused(v, read(pc.ascii_trim(v, BLANK)), target, mode)), mode == "ANSI"


_TRUE = pa.array(["t", "true", "y", "yes", "1"])
_FALSE = pa.array(["f", "false", "n", "no", "0"])


def _string_to_boolean(strings: pa.Array) -> pa.Array:
    lower = pc.ascii_lower(strings)
    true, false = pc.is_in(lower, value_set=_TRUE), pc.is_in(lower, value_set=_FALSE)
    return pc.if_else(pc.or_(true, false), true, pa.scalar(None, pa.bool_()))


def _string_to_integer(target: pa.DataType, lenient: bool) -> Caster:
    limits = np.iinfo(target.to_pandas_dtype())
    # Spark, if lenient, ignores what comes after the point.
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


def _string_to_decimal(target: pa.DataType, mode: EvalMode) -> Caster:
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
        strings = pc.ascii_trim(v, BLANK)
        usual = pc.fill_null(pc.match_substring_regex(strings, form), False)
        odd = pc.and_(pc.invert(usual), pc.is_valid(strings))
        if not pc.any(odd, min_count=0).as_py():
            return fast(strings)
        rows, others = pc.indices_nonzero(usual), pc.indices_nonzero(odd)
        texts = strings.take(others).view(pa.binary()).to_pylist()
        found = [slow(x.decode("utf-8", "replace")) for x in texts]
        if mode == "ANSI" and None in found:
            raise EvaluationError(INVALID.format(decoded_text(texts[found.index(None)]), v.type, target))
        valid = np.array([x is not None for x in found])
        rest = fitted_integers(np.array([x or 0 for x in found], object), valid, target, mode)
        where = np.full(len(strings), -1)
        where[rows.to_numpy()] = np.arange(len(rows))
        where[others.to_numpy()] = len(rows) + np.arange(len(others))
        return pa.concat_arrays([fast(strings.take(rows)), rest]).take(pa.array(where, mask=where < 0))

    return run


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
    """Timestamps in all of Spark's forms; a time without a date means today, for TIMESTAMP only."""

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
        return masked(days * DAY + rest, ok if valid is None else valid & ok, None, target, "TRY", "")

    def slow(text: str) -> int | None:
        return _timestamp_of(text, here, bool(target.tz))

    def run(strings: pa.Array) -> pa.Array:
        found = _by_form(strings, _USUAL_TIMESTAMP, lambda v: fast(v).view(pa.int64()), slow, pa.int64())
        return found.view(target)

    return run


def _timestamp_of(text: str, here: Zone, zoned: bool) -> int | None:
    """Microseconds since 1970 of a timestamp as Spark reads it."""
    at_start = not text or text[0] not in BLANK
    text = text.strip(BLANK)
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
        found = _named_zone(clock[4].strip(BLANK[:33]))
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
