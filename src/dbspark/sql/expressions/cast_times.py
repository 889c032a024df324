"""Casts of dates and timestamps, to each other, to numbers and to strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions.cast_numbers import narrowed
from dbspark.sql.expressions.cast_results import Caster, masked
from dbspark.sql.expressions.decimals import decimals, fitted
from dbspark.sql.expressions.operands import EvalMode, valid_of, values_of
from dbspark.sql.expressions.zones import DAY, SECOND, zone


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
"""The first day of year 0 and the last of year 9999: Java prints years outside with a sign."""


def _date_texts(days: Any, valid: Any) -> pa.Array:
    """Dates as Java prints them."""
    usual = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    out = np.empty((len(days), 10), np.uint8)
    _date_digits(out, np.where(usual, days, 0))
    found = _texts(out, np.full(len(days), 10), valid)
    return found if np.all(usual) else _with_far(found, usual, days, None, valid)


def _with_far(found: pa.Array, usual: Any, days: Any, rest: Any, valid: Any) -> pa.Array:
    """Texts, with those of years outside 0 to 9999 replaced by what Java prints."""
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


def from_date(source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str) -> tuple[Caster, bool] | None:
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
            return masked(micros, valid_of(v), bad, target, "ANSI", "[DATETIME_OVERFLOW] long overflow")

        return run, True
    if mode == "LEGACY" and (
        t.is_integer(target) or t.is_floating(target) or t.is_decimal(target) or t.is_boolean(target)
    ):
        return (lambda v: pa.nulls(len(v), target)), False
    return None


def from_timestamp(
    source: pa.DataType, target: pa.DataType, mode: EvalMode, zone_name: str
) -> tuple[Caster, bool] | None:
    t = pa.types
    here = zone(zone_name if source.tz else None)
    if here is None:
        return None

    def micros_of(v: pa.Array) -> Any:
        return values_of(v.view(pa.int64()))

    if t.is_date(target):
        return (
            lambda v: masked(here.local(micros_of(v))[0].astype(np.int32), valid_of(v), None, target, mode, "")
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
            return masked(days * DAY + rest, valid_of(v), None, target, mode, "")

        return run, False
    if not source.tz:
        return None
    if t.is_integer(target):

        def seconds(v: pa.Array) -> pa.Array:
            whole = micros_of(v) // SECOND
            if target.bit_width == 64:
                return masked(whole, valid_of(v), None, target, mode, "")
            return narrowed(whole, valid_of(v), source, target, "ANSI" if mode == "ANSI" else "TRY")

        return seconds, mode == "ANSI" and target.bit_width < 64
    if t.is_floating(target):
        return (lambda v: masked(micros_of(v) / float(SECOND), valid_of(v), None, target, mode, "")), False
    if t.is_decimal(target):

        def exact(v: pa.Array) -> pa.Array:
            micros = decimals(micros_of(v), valid_of(v), pa.decimal128(19, 6))
            return fitted(micros, target, mode)

        return exact, mode == "ANSI"
    if t.is_boolean(target) and mode == "LEGACY":
        return (lambda v: masked(micros_of(v) != 0, valid_of(v), None, target, mode, "")), False
    return None
