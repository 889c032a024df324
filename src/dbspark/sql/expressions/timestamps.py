"""Timestamps: fields of the clock, arithmetic in a zone, truncation, conversions from and to numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.sql.expressions import zones
from dbspark.sql.expressions.calendar import (
    CALENDAR,
    DATE,
    DURATION,
    INT,
    LONG,
    LONG_OVERFLOW,
    NTZ,
    TIMESTAMP,
    UNITS,
    add_months,
    day_of,
    day_of_month,
    decimals_of_int64,
    first_day,
    in_int,
    length_of_month,
    months_of,
    to_microseconds,
    truncated,
    zone_for,
)
from dbspark.sql.expressions.rules import Compiled, Context, constant, rule
from dbspark.sql.expressions.vectors import (
    INT32,
    Vector,
    arrow_column,
    missing,
    null_intolerant_arrays,
    numbers,
    numeric,
    plus_exact,
    raise_where,
    text_of,
    times_exact,
    wrapped32,
)
from dbspark.sql.expressions.zones import DAY, HOUR, MINUTE, SECOND, Zone, carried
from dbspark.sql.plan import Call

_PARTS_OF_CALENDAR = np.dtype([("months", np.int32), ("days", np.int32), ("nanos", np.int64)])
_CLOCK: dict[str, tuple[pa.DataType, Callable[[Vector], Vector]]] = {
    "Hour": (INT, lambda rest: rest // HOUR),
    "Minute": (INT, lambda rest: rest // MINUTE % 60),
    "Second": (INT, lambda rest: rest // SECOND % 60),
    "SecondWithFraction": (LONG, lambda rest: rest % MINUTE),
}


@rule(*_CLOCK)
def clock_field(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = zone_for(call, args[0].type, context)
    if zone is None:
        return None
    dtype, field = _CLOCK[call.name]
    out = numeric(dtype, lambda gone, micros: field(zone.local(micros)[1]), args)
    if call.name != "SecondWithFraction":
        return out
    return Compiled(
        pa.decimal128(8, 6), lambda frame: decimals_of_int64(out.array(frame), pa.decimal128(8, 6)), out.can_fail
    )


def _after(zone: Zone, micros: Vector, move: Callable[[Vector, Vector], tuple[Vector, Vector]]) -> tuple[Any, Any]:
    """Move local times; in an overlap of the clock, the result keeps the offset of the original time."""
    offset = None if zone.fixed else zone.offset_at(micros)
    return zone.instant(*move(*zone.local(micros)), offset)


def _plus_duration(zone: Zone, gone: Vector, micros: Vector, more: Vector) -> Vector:
    """Add durations: whole days on the calendar, the rest on the clock."""
    days = quotient(np.asarray(more))
    rest = more - days * DAY
    day, clock = _after(zone, micros, lambda d, r: (d + days, r))
    return to_microseconds(carried(day, clock + rest), gone)


def quotient(micros: Vector) -> Vector:
    """Whole days of durations, towards zero."""
    down = micros // DAY
    return down + ((micros < 0) & (down * DAY != micros))


@rule("TimestampAddInterval", "TimeAdd")
def timestamp_add(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = zone_for(call, args[0].type, context)
    if zone is not None and args[1].type == CALENDAR:
        return _adding_calendar(args, lambda gone, micros, parts: _plus_calendar(zone, gone, micros, parts))
    if zone is None or args[1].type != DURATION:
        return None
    return numeric(
        args[0].type, lambda gone, micros, more: _plus_duration(zone, gone, micros, more), args, can_fail=True
    )


def _plus_calendar(zone: Zone, gone: Vector | None, micros: Vector, parts: Sequence[Vector]) -> Vector:
    """Months, then days on the calendar, then the rest on the clock."""
    months, days, more = parts
    if np.any(months):
        micros = _plus_months(zone, gone, micros, months)
    day, clock = _after(zone, micros, lambda d, r: (d + days, r))
    whole = more // DAY
    return to_microseconds(carried(day + whole, clock + (more - whole * DAY)), gone)


def _adding_calendar(args: Sequence[Compiled], function: Callable[..., Vector]) -> Compiled:
    """A function of a date or timestamp and the months, days and microseconds of an interval."""
    dtype = args[0].type

    def run(given: pa.Array, interval: pa.Array) -> pa.Array:
        gone = missing([given, interval])
        data = interval.buffers()[1]
        parts = np.zeros(len(interval), _PARTS_OF_CALENDAR)
        if len(interval):
            parts = np.frombuffer(data, _PARTS_OF_CALENDAR, len(interval), 16 * interval.offset)
        split = [parts["months"].astype(np.int64), parts["days"].astype(np.int64), parts["nanos"] // 1000]
        if gone is not None:  # whatever is in the place of a NULL is no interval
            split = [np.where(gone, 0, part) for part in split]
        values = numbers(given).astype(np.int64)
        return arrow_column(dtype, function(gone, values if gone is None else np.where(gone, 0, values), split), gone)

    return null_intolerant_arrays(dtype, run, args, True)


@rule("DateAddInterval")
def date_add_interval(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = zones.zone(call.option("timeZoneId", context.timezone))
    if args[0].type != DATE or args[1].type != CALENDAR or zone is None:
        return None
    ansi = call.option("ansiEnabled", context.ansi)

    def run(gone: Vector | None, date: Vector, parts: Sequence[Vector]) -> Vector:
        months, days, micros = parts
        if ansi:
            raise_where(micros != 0, gone, "[INVALID_INTERVAL_WITH_MICROSECONDS_ADDITION] Cannot add hours to a date.")
        plain = add_months(date, months) + days
        if not np.any(micros):
            return in_int(plain, gone)
        moment = to_microseconds(zone.midnight(date), gone)
        late = zone.local(_plus_calendar(zone, gone, moment, parts))[0]
        return in_int(np.where(micros == 0, plain, late), gone)

    return _adding_calendar(args, run)


def _plus_months(zone: Zone, gone: Vector, micros: Vector, months: Vector) -> Vector:
    return to_microseconds(_after(zone, micros, lambda d, r: (add_months(d, months), r)), gone)


@rule("TimestampAddYMInterval")
def timestamp_add_months(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = zone_for(call, args[0].type, context)
    if zone is None or args[1].type != INT:
        return None
    return numeric(
        args[0].type, lambda gone, micros, months: _plus_months(zone, gone, micros, months), args, can_fail=True
    )


_STEPS = {
    "MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": SECOND, "MINUTE": MINUTE, "HOUR": HOUR, "DAY": DAY,
    "DAYOFYEAR": DAY, "WEEK": 7 * DAY,
}  # fmt: skip
_MONTH_STEPS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


@rule("TimestampAdd")
def timestamp_add_unit(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = zone_for(call, args[1].type, context)
    unit = str(call.option("unit")).upper()
    if zone is None or args[0].type != LONG or (unit not in _STEPS and unit not in _MONTH_STEPS):
        return None

    def run(gone: Vector, count: Vector, micros: Vector) -> Vector:
        more, wrong = times_exact(count, _STEPS.get(unit) or _MONTH_STEPS[unit])
        if unit in _MONTH_STEPS:
            wrong = wrong | (more < INT32[0]) | (more > INT32[1]) | (count < INT32[0]) | (count > INT32[1])
        raise_where(wrong, gone, LONG_OVERFLOW)
        if np.ndim(wrong) and wrong.any():
            more = np.where(wrong, 0, more)
        if unit in ("DAY", "DAYOFYEAR", "WEEK"):
            return _plus_duration(zone, gone, micros, more)
        if unit in _MONTH_STEPS:
            return _plus_months(zone, gone, micros, more)
        out, wrong = plus_exact(micros, more)
        raise_where(wrong, gone, LONG_OVERFLOW)
        return out

    return numeric(args[1].type, run, args, can_fail=True)


@rule("TimestampDiff")
def timestamp_diff(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Whole units between local times, towards zero."""
    zone = zone_for(call, args[0].type, context)
    unit = str(call.option("unit")).upper()
    if zone is None or args[1].type != args[0].type or (unit not in _STEPS and unit not in _MONTH_STEPS):
        return None

    def run(gone: Vector, start: Vector, end: Vector) -> Vector:
        day1, rest1 = zone.local(np.atleast_1d(start))
        day2, rest2 = zone.local(np.atleast_1d(end))
        if unit in _MONTH_STEPS or unit in ("DAY", "DAYOFYEAR", "WEEK"):
            day2 = day2 - ((day2 > day1) & (rest2 < rest1)) + ((day2 < day1) & (rest2 > rest1))
        if unit in _MONTH_STEPS:
            first, second = (months_of(d) * 32 + day_of_month(d) for d in (day1, day2))
            months = towards_zero(second - first, 32)
            return towards_zero(months, _MONTH_STEPS[unit])
        if unit in ("DAY", "DAYOFYEAR", "WEEK"):
            return towards_zero(day2 - day1, 7 if unit == "WEEK" else 1)
        return towards_zero(_difference(gone, (day1, rest1), (day2, rest2)), _STEPS[unit])

    return numeric(LONG, run, args, can_fail=True)


def towards_zero(values: Vector, by: int) -> Vector:
    down = values // by
    return down + ((down < 0) & (down * by != values))


def _difference(gone: Vector | None, start: tuple[Vector, Vector], end: tuple[Vector, Vector]) -> Vector:
    return to_microseconds(carried(end[0] - start[0], end[1] - start[1]), gone)


@rule("SubtractTimestamps")
def subtract_timestamps(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """On the clock: the hour that daylight saving time takes or gives does not count."""
    zone = zone_for(call, args[0].type, context)
    if zone is None or args[1].type != args[0].type or call.option("legacyInterval"):
        return None

    def run(gone: Vector, end: Vector, start: Vector) -> Vector:
        return _difference(gone, zone.local(np.atleast_1d(start)), zone.local(np.atleast_1d(end)))

    return numeric(DURATION, run, args, can_fail=True)


@rule("TruncTimestamp")
def trunc_timestamp(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = zone_for(call, args[1].type, context)
    if zone is None or args[0].constant is None:
        return None
    unit = UNITS.get((text_of(args[0]) or "").upper())
    if unit is None:
        return constant(None, args[1].type)
    steps = {"MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": SECOND, "MINUTE": MINUTE, "HOUR": HOUR, "DAY": DAY}

    def run(gone: Vector, micros: Vector) -> Vector:
        if unit in ("MICROSECOND", "MILLISECOND", "SECOND"):
            rest = micros % steps[unit]
            raise_where(micros < -(2**63) + rest, gone, LONG_OVERFLOW)
            return micros - rest
        if unit in steps:
            return to_microseconds(_after(zone, micros, lambda d, r: (d, r // steps[unit] * steps[unit])), gone)
        return to_microseconds(zone.midnight(truncated(unit, zone.local(micros)[0])), gone)

    return numeric(args[1].type, run, args[1:], can_fail=True)


@rule("MonthsBetween")
def months_between(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = zone_for(call, args[0].type, context)
    if zone is None or args[1].type != args[0].type or args[2].constant is None or not args[2].constant.is_valid:
        return None
    rounded = args[2].constant.as_py()

    def run(gone: Vector, end: Vector, start: Vector) -> Vector:
        end, start = np.atleast_1d(end), np.atleast_1d(start)
        (day1, _), (day2, _) = zone.local(end), zone.local(start)
        month1, month2 = months_of(day1), months_of(day2)
        dom1, dom2 = day1 - first_day(month1) + 1, day2 - first_day(month2) + 1
        whole = (month1 - month2).astype(np.float64)
        both_last = (dom1 == length_of_month(month1)) & (dom2 == length_of_month(month2))
        clock1, clock2 = (
            (m - to_microseconds(zone.midnight(d), gone)) // SECOND for m, d in ((end, day1), (start, day2))
        )
        seconds = (dom1 - dom2) * 86_400 + clock1 - clock2
        part = whole + seconds / np.float64(31 * 86_400)
        if rounded:
            part = _rounded(part * 1e8) / 1e8
        return np.where((dom1 == dom2) | both_last, whole, part)

    return numeric(pa.float64(), run, args[:2], can_fail=True)


def _rounded(values: Vector) -> Vector:
    """To the nearest whole number, halves up, as Java does."""
    down = np.floor(values)
    return down + (values - down >= 0.5) + 0.0


@rule("FromUTCTimestamp", "ToUTCTimestamp")
def convert_utc(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    name = text_of(args[1])
    if name is None or args[0].type != TIMESTAMP:
        return None
    zone = _zone_named(name)
    if zone is None:
        return None
    if call.name == "FromUTCTimestamp":
        return numeric(
            TIMESTAMP, lambda gone, micros: to_microseconds(zone.local(micros), gone), args[:1], can_fail=True
        )
    return numeric(
        TIMESTAMP,
        lambda gone, micros: to_microseconds(zone.instant(*zones.UTC.local(micros)), gone),
        args[:1],
        can_fail=True,
    )


@rule("ConvertTimezone")
def convert_timezone(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    names = [text_of(a) for a in args[:2]]
    source, target = (None if n is None else _zone_named(n) for n in names)
    if source is None or target is None or args[2].type != NTZ:
        return None

    def run(gone: Vector, local: Vector) -> Vector:
        instant = to_microseconds(source.instant(*zones.UTC.local(local)), gone)
        return to_microseconds(target.local(instant), gone)

    return numeric(NTZ, run, args[2:], can_fail=True)


def _zone_named(name: str) -> Zone | None:
    """The zone of a name in a query; None for an unknown name, for which Spark then raises its error."""
    try:
        return zones.zone(name)
    except Exception:
        return None


_TO_UNIX = {"UnixSeconds": SECOND, "UnixMillis": 1000, "UnixMicros": 1}


@rule(*_TO_UNIX)
def to_unix(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    unit = _TO_UNIX[call.name]
    return numeric(LONG, lambda gone, micros: micros // unit, args) if args[0].type == TIMESTAMP else None


_FROM_UNIX = {"SecondsToTimestamp": SECOND, "MillisToTimestamp": 1000, "MicrosToTimestamp": 1}


@rule(*_FROM_UNIX)
def from_unix(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    unit = _FROM_UNIX[call.name]
    dtype = args[0].type
    if pa.types.is_integer(dtype):

        def run(gone: Vector, count: Vector) -> Vector:
            out, wrong = times_exact(count, unit)
            raise_where(wrong, gone, LONG_OVERFLOW)
            return out

        return numeric(TIMESTAMP, run, args, can_fail=unit > 1)
    if pa.types.is_decimal(dtype) and dtype.precision <= 18 and 0 <= dtype.scale <= 6:
        scale = 10 ** (6 - dtype.scale)

        def from_decimal(gone: Vector, digits: Vector) -> Vector:
            out, wrong = times_exact(digits, scale)
            raise_where(wrong, gone, LONG_OVERFLOW)
            return out

        return numeric(TIMESTAMP, from_decimal, args, can_fail=True)
    if pa.types.is_floating(dtype) and call.name == "SecondsToTimestamp":

        def from_float(gone: Vector, seconds: Vector) -> Any:
            wide = np.asarray(seconds, np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                return to_long(wide * SECOND), ~np.isfinite(wide)

        return numeric(TIMESTAMP, from_float, args)
    return None


def to_long(values: Vector) -> Vector:
    """Floats as Java casts them to long: towards zero, saturating, NaN to zero."""
    safe = np.where(np.isnan(values), 0, values)
    inside = (safe >= -(2.0**63)) & (safe < 2.0**63)
    out = np.where(inside, safe, 0).astype(np.int64)
    return np.where(inside, out, np.where(safe > 0, 2**63 - 1, -(2**63)))


@rule("UnixTimestamp", "ToUnixTimestamp")
def unix_timestamp(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Strings in a format are Spark's business."""
    dtype = args[0].type
    if dtype in (TIMESTAMP, NTZ):
        return numeric(LONG, lambda gone, micros: towards_zero(micros, SECOND), args[:1])
    zone = zones.zone(call.option("timeZoneId", context.timezone))
    if dtype != DATE or zone is None:
        return None
    return numeric(
        LONG, lambda gone, days: to_microseconds(zone.midnight(days), gone) // SECOND, args[:1], can_fail=True
    )


@rule("MakeTimestamp")
def make_timestamp(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = {"timestamp": TIMESTAMP, "timestamp_ntz": NTZ}.get(str(call.option("dataType")))
    if dtype is None or len(args) != 6 or any(a.type != INT for a in args[:5]) or args[5].type != pa.decimal128(16, 6):
        return None
    zone = zone_for(call, dtype, context)
    if zone is None:
        return None
    strict = call.option("failOnError", context.ansi)

    def run(gone: Vector, *fields: Vector) -> Any:
        year, month, day, hour, minute, micros = fields
        days, wrong = day_of(year, month, day)
        micros = wrapped32(micros)
        second, fraction = micros // SECOND, micros % SECOND
        wrong = wrong | (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59) | (second < 0) | (second > 60)
        odd = (second == 60) & (fraction != 0)
        if strict:
            raise_where(wrong, gone, "[DATETIME_FIELD_OUT_OF_BOUNDS] Invalid value for a field of a timestamp.")
            raise_where(odd, gone, "[INVALID_FRACTION_OF_SECOND] Valid range for seconds is [0, 60].")
        wrong = wrong | odd
        rest = np.where(wrong, 0, hour * HOUR + minute * MINUTE + micros)
        where = zone.instant(*carried(np.where(wrong, 0, days), rest))
        return to_microseconds(where, gone), wrong

    return numeric(dtype, run, args, can_fail=True)
