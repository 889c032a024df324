"""Dates, timestamps and intervals: fields, arithmetic, truncation, formatting, conversions.

Days are int32 since 1970 in the proleptic Gregorian calendar, timestamps int64 microseconds. A TIMESTAMP is an instant,
whose fields are those of the local time in the session's zone; a TIMESTAMP_NTZ is a local time already. Local times are
pairs of days and microseconds of the day, so that nothing overflows that Java would not let overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions import zones
from dbspark.sql.expressions.rules import Compiled, Context, Datum, Frame, constant, rule
from dbspark.sql.expressions.vectors import (
    INT32,
    Vector,
    made,
    missing,
    numbers,
    numeric,
    plus_exact,
    refuse,
    strict_arrays,
    text_of,
    times_exact,
    wrapped32,
)
from dbspark.sql.expressions.zones import DAY, HOUR, MINUTE, SECOND, Zone, carried
from dbspark.sql.plan import Call

DATE = pa.date32()
INT = pa.int32()
LONG = pa.int64()
DURATION = pa.duration("us")
TIMESTAMP = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")
CALENDAR = pa.month_day_nano_interval()
_PARTS_OF_CALENDAR = np.dtype([("months", np.int32), ("days", np.int32), ("nanos", np.int64)])

_MAX_DAYS, _MAX_REST = divmod(2**63 - 1, DAY)
_MIN_DAYS, _MIN_REST = divmod(-(2**63), DAY)
_LONG_OVERFLOW = "[DATETIME_OVERFLOW] Datetime operation overflow: long overflow"
_INT_OVERFLOW = "[DATETIME_OVERFLOW] Datetime operation overflow: integer overflow"


# ---------------------------------------------------------------------- calendar


_NEAR_MONTHS = (-12 * 370, 12 * 430)
"""Months for which the calendar is written out: the years 1600 to 2399."""


@cache
def _calendar() -> tuple[Vector, Vector]:
    """The first days of months, and the months of days, of near years."""
    low, high = _NEAR_MONTHS
    first = np.arange(low, high + 1).astype("M8[M]").astype("M8[D]").astype(np.int64)
    return first, np.repeat(np.arange(low, high), np.diff(first))


def months_of(days: Vector) -> Vector:
    """Months since 1970."""
    first, month = _calendar()
    days = np.asarray(days)
    if days.size and days.min() >= first[0] and days.max() < first[-1]:
        return month[days - first[0]]
    return days.astype("M8[D]").astype("M8[M]").astype(np.int64)


def first_day(months: Vector) -> Vector:
    """The first day of months since 1970."""
    first, _ = _calendar()
    low, high = _NEAR_MONTHS
    months = np.asarray(months, np.int64)
    if months.size and months.min() >= low and months.max() <= high:
        return first[months - low]
    return months.astype("M8[M]").astype("M8[D]").astype(np.int64)


def years_of(days: Vector) -> Vector:
    return months_of(days) // 12 + 1970


def month_of(days: Vector) -> Vector:
    return months_of(days) % 12 + 1


def day_of_month(days: Vector) -> Vector:
    return days - first_day(months_of(days)) + 1


def day_of_year(days: Vector) -> Vector:
    return days - first_day(months_of(days) // 12 * 12) + 1


def length_of_month(months: Vector) -> Vector:
    return first_day(months + 1) - first_day(months)


def weekday(days: Vector) -> Vector:
    """0 is Monday."""
    return (days + 3) % 7


def _thursday(days: Vector) -> Vector:
    """The Thursday of the week, whose year the week belongs to."""
    return days - weekday(days) + 3


def add_months(days: Vector, months: Vector) -> Vector:
    """The same day of another month, or its last."""
    here = months_of(days)
    day = days - first_day(here)
    there = here + months
    return first_day(there) + np.minimum(day, length_of_month(there) - 1)


_FIELDS: dict[str, Callable[[Vector], Vector]] = {
    "Year": years_of,
    "Quarter": lambda days: (month_of(days) + 2) // 3,
    "Month": month_of,
    "DayOfMonth": day_of_month,
    "DayOfYear": day_of_year,
    "DayOfWeek": lambda days: (days + 4) % 7 + 1,
    "WeekDay": weekday,
    "WeekOfYear": lambda days: (day_of_year(_thursday(days)) - 1) // 7 + 1,
    "YearOfWeek": lambda days: years_of(_thursday(days)),
}


@rule(*_FIELDS)
def date_field(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE:
        return None
    field = _FIELDS[call.name]
    return numeric(INT, lambda gone, days: field(days), args)


@rule("DayName", "MonthName")
def name_of(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE:
        return None
    names = pa.array(_SHORT_DAYS if call.name == "DayName" else _SHORT_MONTHS)
    field = weekday if call.name == "DayName" else (lambda days: month_of(days) - 1)
    at = numeric(LONG, lambda gone, days: field(days), args)
    return Compiled(pa.string(), lambda frame: names.take(at.array(frame)), at.can_fail)


# ---------------------------------------------------------------------- zones


def _zone(call: Call, dtype: pa.DataType, context: Context) -> Zone | None:
    """The zone in which fields of a timestamp are read."""
    if dtype == NTZ:
        return zones.UTC
    return zones.zone(call.option("timeZoneId", context.timezone)) if dtype == TIMESTAMP else None


def packed(parts: tuple[Vector, Vector], gone: Vector | None) -> Vector:
    """Microseconds from days and microseconds of the day; they have to fit."""
    days, rest = parts
    over = (days > _MAX_DAYS) | ((days == _MAX_DAYS) & (rest > _MAX_REST))
    under = (days < _MIN_DAYS) | ((days == _MIN_DAYS) & (rest < _MIN_REST))
    refuse(over | under, gone, _LONG_OVERFLOW)
    with np.errstate(over="ignore"):
        return days * DAY + rest


_CLOCK: dict[str, tuple[pa.DataType, Callable[[Vector], Vector]]] = {
    "Hour": (INT, lambda rest: rest // HOUR),
    "Minute": (INT, lambda rest: rest // MINUTE % 60),
    "Second": (INT, lambda rest: rest // SECOND % 60),
    "SecondWithFraction": (LONG, lambda rest: rest % MINUTE),
}


@rule(*_CLOCK)
def clock_field(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = _zone(call, args[0].type, context)
    if zone is None:
        return None
    dtype, field = _CLOCK[call.name]
    out = numeric(dtype, lambda gone, micros: field(zone.local(micros)[1]), args)
    if call.name != "SecondWithFraction":
        return out
    return Compiled(pa.decimal128(8, 6), lambda frame: _decimal(out.array(frame), pa.decimal128(8, 6)), out.can_fail)


def _decimal(unscaled: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Decimals from their digits."""
    low = numbers(unscaled)
    wide = np.empty(2 * len(low), np.int64)
    wide[::2] = low
    wide[1::2] = low >> 63
    gone = missing([unscaled])
    valid = None if gone is None else pa.array(~gone).buffers()[1]
    return pa.Array.from_buffers(dtype, len(low), [valid, pa.py_buffer(wide)])


# ---------------------------------------------------------------------- dates


@rule("DateAdd", "DateSub")
def date_add(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Beyond the last day it starts again at the first, as Java's int does."""
    if args[0].type != DATE or not pa.types.is_integer(args[1].type):
        return None
    if call.name == "DateAdd":
        return numeric(DATE, lambda gone, days, more: wrapped32(days + more), args)
    return numeric(DATE, lambda gone, days, less: wrapped32(days - less), args)


@rule("DateDiff")
def date_diff(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if any(a.type != DATE for a in args):
        return None
    return numeric(INT, lambda gone, end, start: wrapped32(end - start), args)


@rule("SubtractDates")
def subtract_dates(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if any(a.type != DATE for a in args) or call.option("legacyInterval"):
        return None

    def run(gone: Vector, end: Vector, start: Vector) -> Vector:
        out, wrong = times_exact(end - start, DAY)
        refuse(wrong, gone, _LONG_OVERFLOW)
        return out

    return numeric(DURATION, run, args, can_fail=True)


def _in_int(days: Vector, gone: Vector | None, message: str = _INT_OVERFLOW) -> Vector:
    refuse((days < INT32[0]) | (days > INT32[1]), gone, message)
    return days


@rule("AddMonths", "DateAddYMInterval")
def date_add_months(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE or args[1].type != INT:
        return None
    return numeric(DATE, lambda gone, days, months: _in_int(add_months(days, months), gone), args, can_fail=True)


@rule("LastDay")
def last_day(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE:
        return None
    return numeric(DATE, lambda gone, days: _in_int(first_day(months_of(days) + 1) - 1, gone), args, can_fail=True)


_WEEKDAYS = {
    name: number
    for number, names in enumerate(
        (
            ("MO", "MON", "MONDAY"), ("TU", "TUE", "TUESDAY"), ("WE", "WED", "WEDNESDAY"), ("TH", "THU", "THURSDAY"),
            ("FR", "FRI", "FRIDAY"), ("SA", "SAT", "SATURDAY"), ("SU", "SUN", "SUNDAY"),
        )
    )
    for name in names
}  # fmt: skip


@rule("NextDay")
def next_day(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE or args[1].constant is None:
        return None
    name = text_of(args[1])
    if name is None:
        return constant(None, DATE)
    wanted = _WEEKDAYS.get(name.upper())
    if wanted is None:
        if not call.option("failOnError", context.ansi):
            return constant(None, DATE)

        def fail(gone: Vector, days: Vector) -> Vector:
            refuse(np.ones(len(days), bool), gone, f"[ILLEGAL_DAY_OF_WEEK] Illegal input for day of week: {name}.")
            return days

        return numeric(DATE, fail, args[:1], can_fail=True)
    return numeric(DATE, lambda gone, days: wrapped32(days + (wanted - weekday(days) - 1) % 7 + 1), args[:1])


_UNITS = {
    "YEAR": "YEAR", "YYYY": "YEAR", "YY": "YEAR", "QUARTER": "QUARTER", "MONTH": "MONTH", "MM": "MONTH", "MON": "MONTH",
    "WEEK": "WEEK", "DAY": "DAY", "DD": "DAY", "HOUR": "HOUR", "MINUTE": "MINUTE", "SECOND": "SECOND",
    "MILLISECOND": "MILLISECOND", "MICROSECOND": "MICROSECOND",
}  # fmt: skip


def _truncated(unit: str, days: Vector) -> Vector:
    if unit == "WEEK":
        return days - weekday(days)
    months = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}[unit]
    return first_day(months_of(days) // months * months)


@rule("TruncDate")
def trunc_date(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE or args[1].constant is None:
        return None
    unit = _UNITS.get((text_of(args[1]) or "").upper())
    if unit not in ("YEAR", "QUARTER", "MONTH", "WEEK"):
        return constant(None, DATE)
    return numeric(DATE, lambda gone, days: _in_int(_truncated(unit, days), gone), args[:1], can_fail=True)


@rule("MakeDate")
def make_date(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if any(a.type != INT for a in args):
        return None
    strict = call.option("failOnError", context.ansi)

    def run(gone: Vector, year: Vector, month: Vector, day: Vector) -> Any:
        days, wrong = _date(year, month, day)
        if strict:
            refuse(wrong, gone, "[DATETIME_FIELD_OUT_OF_BOUNDS] Invalid value for a field of a date.")
        return _in_int(np.where(wrong, 0, days), gone), wrong

    return numeric(DATE, run, args, can_fail=True)


def _date(year: Vector, month: Vector, day: Vector) -> tuple[Vector, Vector]:
    """Days from fields, and where there is no such date."""
    year, month, day = np.broadcast_arrays(
        np.asarray(year, np.int64), np.asarray(month, np.int64), np.asarray(day, np.int64)
    )
    wrong = (month < 1) | (month > 12) | (day < 1) | (day > 31) | (np.abs(year) > 999_999_999)
    months = np.where(wrong, 0, (year - 1970) * 12 + month - 1)
    wrong = wrong | (day > length_of_month(months))
    return first_day(months) + np.where(wrong, 1, day) - 1, wrong


@rule("UnixDate")
def unix_date(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return numeric(INT, lambda gone, days: days, args) if args[0].type == DATE else None


@rule("DateFromUnixDate")
def date_from_unix_date(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return numeric(DATE, lambda gone, days: days, args) if args[0].type == INT else None


# ---------------------------------------------------------------------- timestamps


def _after(zone: Zone, micros: Vector, move: Callable[[Vector, Vector], tuple[Vector, Vector]]) -> tuple[Any, Any]:
    """A local time moved, in the offset it has if that is one there."""
    offset = None if zone.fixed else zone.offset_at(micros)
    return zone.instant(*move(*zone.local(micros)), offset)


def _plus_duration(zone: Zone, gone: Vector, micros: Vector, more: Vector) -> Vector:
    """Whole days on the calendar, the rest on the clock."""
    days = _quotient(np.asarray(more))
    rest = more - days * DAY
    day, clock = _after(zone, micros, lambda d, r: (d + days, r))
    return packed(carried(day, clock + rest), gone)


def _quotient(micros: Vector) -> Vector:
    """Whole days of durations, towards zero."""
    down = micros // DAY
    return down + ((micros < 0) & (down * DAY != micros))


@rule("TimestampAddInterval", "TimeAdd")
def timestamp_add(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = _zone(call, args[0].type, context)
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
    return packed(carried(day + whole, clock + (more - whole * DAY)), gone)


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
        return made(dtype, function(gone, values if gone is None else np.where(gone, 0, values), split), gone)

    return strict_arrays(dtype, run, args, True)


@rule("DateAddInterval")
def date_add_interval(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = zones.zone(call.option("timeZoneId", context.timezone))
    if args[0].type != DATE or args[1].type != CALENDAR or zone is None:
        return None
    ansi = call.option("ansiEnabled", context.ansi)

    def run(gone: Vector | None, date: Vector, parts: Sequence[Vector]) -> Vector:
        months, days, micros = parts
        if ansi:
            refuse(micros != 0, gone, "[INVALID_INTERVAL_WITH_MICROSECONDS_ADDITION] Cannot add hours to a date.")
        plain = add_months(date, months) + days
        if not np.any(micros):
            return _in_int(plain, gone)
        moment = packed(zone.midnight(date), gone)
        late = zone.local(_plus_calendar(zone, gone, moment, parts))[0]
        return _in_int(np.where(micros == 0, plain, late), gone)

    return _adding_calendar(args, run)


def _plus_months(zone: Zone, gone: Vector, micros: Vector, months: Vector) -> Vector:
    return packed(_after(zone, micros, lambda d, r: (add_months(d, months), r)), gone)


@rule("TimestampAddYMInterval")
def timestamp_add_months(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = _zone(call, args[0].type, context)
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
    zone = _zone(call, args[1].type, context)
    unit = str(call.option("unit")).upper()
    if zone is None or args[0].type != LONG or (unit not in _STEPS and unit not in _MONTH_STEPS):
        return None

    def run(gone: Vector, count: Vector, micros: Vector) -> Vector:
        more, wrong = times_exact(count, _STEPS.get(unit) or _MONTH_STEPS[unit])
        if unit in _MONTH_STEPS:
            wrong = wrong | (more < INT32[0]) | (more > INT32[1]) | (count < INT32[0]) | (count > INT32[1])
        refuse(wrong, gone, _LONG_OVERFLOW)
        if np.ndim(wrong) and wrong.any():
            more = np.where(wrong, 0, more)
        if unit in ("DAY", "DAYOFYEAR", "WEEK"):
            return _plus_duration(zone, gone, micros, more)
        if unit in _MONTH_STEPS:
            return _plus_months(zone, gone, micros, more)
        out, wrong = plus_exact(micros, more)
        refuse(wrong, gone, _LONG_OVERFLOW)
        return out

    return numeric(args[1].type, run, args, can_fail=True)


@rule("TimestampDiff")
def timestamp_diff(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Whole units between local times, towards zero."""
    zone = _zone(call, args[0].type, context)
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
            months = _towards_zero(second - first, 32)
            return _towards_zero(months, _MONTH_STEPS[unit])
        if unit in ("DAY", "DAYOFYEAR", "WEEK"):
            return _towards_zero(day2 - day1, 7 if unit == "WEEK" else 1)
        return _towards_zero(_difference(gone, (day1, rest1), (day2, rest2)), _STEPS[unit])

    return numeric(LONG, run, args, can_fail=True)


def _towards_zero(values: Vector, by: int) -> Vector:
    down = values // by
    return down + ((down < 0) & (down * by != values))


def _difference(gone: Vector | None, start: tuple[Vector, Vector], end: tuple[Vector, Vector]) -> Vector:
    return packed(carried(end[0] - start[0], end[1] - start[1]), gone)


@rule("SubtractTimestamps")
def subtract_timestamps(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """On the clock: the hour that daylight saving time takes or gives does not count."""
    zone = _zone(call, args[0].type, context)
    if zone is None or args[1].type != args[0].type or call.option("legacyInterval"):
        return None

    def run(gone: Vector, end: Vector, start: Vector) -> Vector:
        return _difference(gone, zone.local(np.atleast_1d(start)), zone.local(np.atleast_1d(end)))

    return numeric(DURATION, run, args, can_fail=True)


@rule("TruncTimestamp")
def trunc_timestamp(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = _zone(call, args[1].type, context)
    if zone is None or args[0].constant is None:
        return None
    unit = _UNITS.get((text_of(args[0]) or "").upper())
    if unit is None:
        return constant(None, args[1].type)
    steps = {"MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": SECOND, "MINUTE": MINUTE, "HOUR": HOUR, "DAY": DAY}

    def run(gone: Vector, micros: Vector) -> Vector:
        if unit in ("MICROSECOND", "MILLISECOND", "SECOND"):
            rest = micros % steps[unit]
            refuse(micros < -(2**63) + rest, gone, _LONG_OVERFLOW)
            return micros - rest
        if unit in steps:
            return packed(_after(zone, micros, lambda d, r: (d, r // steps[unit] * steps[unit])), gone)
        return packed(zone.midnight(_truncated(unit, zone.local(micros)[0])), gone)

    return numeric(args[1].type, run, args[1:], can_fail=True)


@rule("MonthsBetween")
def months_between(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    zone = _zone(call, args[0].type, context)
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
        clock1, clock2 = ((m - packed(zone.midnight(d), gone)) // SECOND for m, d in ((end, day1), (start, day2)))
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
        return numeric(TIMESTAMP, lambda gone, micros: packed(zone.local(micros), gone), args[:1], can_fail=True)
    return numeric(
        TIMESTAMP, lambda gone, micros: packed(zone.instant(*zones.UTC.local(micros)), gone), args[:1], can_fail=True
    )


@rule("ConvertTimezone")
def convert_timezone(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    names = [text_of(a) for a in args[:2]]
    source, target = (None if n is None else _zone_named(n) for n in names)
    if source is None or target is None or args[2].type != NTZ:
        return None

    def run(gone: Vector, local: Vector) -> Vector:
        instant = packed(source.instant(*zones.UTC.local(local)), gone)
        return packed(target.local(instant), gone)

    return numeric(NTZ, run, args[2:], can_fail=True)


def _zone_named(name: str) -> Zone | None:
    """A zone by the name that a query gives it; one that is none is left to Spark to complain about."""
    try:
        return zones.zone(name)
    except Exception:
        return None


# ---------------------------------------------------------------------- conversions


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
            refuse(wrong, gone, _LONG_OVERFLOW)
            return out

        return numeric(TIMESTAMP, run, args, can_fail=unit > 1)
    if pa.types.is_decimal(dtype) and dtype.precision <= 18 and 0 <= dtype.scale <= 6:
        scale = 10 ** (6 - dtype.scale)

        def from_decimal(gone: Vector, digits: Vector) -> Vector:
            out, wrong = times_exact(digits, scale)
            refuse(wrong, gone, _LONG_OVERFLOW)
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
        return numeric(LONG, lambda gone, micros: _towards_zero(micros, SECOND), args[:1])
    zone = zones.zone(call.option("timeZoneId", context.timezone))
    if dtype != DATE or zone is None:
        return None
    return numeric(LONG, lambda gone, days: packed(zone.midnight(days), gone) // SECOND, args[:1], can_fail=True)


@rule("MakeTimestamp")
def make_timestamp(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = {"timestamp": TIMESTAMP, "timestamp_ntz": NTZ}.get(str(call.option("dataType")))
    if dtype is None or len(args) != 6 or any(a.type != INT for a in args[:5]) or args[5].type != pa.decimal128(16, 6):
        return None
    zone = _zone(call, dtype, context)
    if zone is None:
        return None
    strict = call.option("failOnError", context.ansi)

    def run(gone: Vector, *fields: Vector) -> Any:
        year, month, day, hour, minute, micros = fields
        days, wrong = _date(year, month, day)
        micros = wrapped32(micros)
        second, fraction = micros // SECOND, micros % SECOND
        wrong = wrong | (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59) | (second < 0) | (second > 60)
        odd = (second == 60) & (fraction != 0)
        if strict:
            refuse(wrong, gone, "[DATETIME_FIELD_OUT_OF_BOUNDS] Invalid value for a field of a timestamp.")
            refuse(odd, gone, "[INVALID_FRACTION_OF_SECOND] Valid range for seconds is [0, 60].")
        wrong = wrong | odd
        rest = np.where(wrong, 0, hour * HOUR + minute * MINUTE + micros)
        where = zone.instant(*carried(np.where(wrong, 0, days), rest))
        return packed(where, gone), wrong

    return numeric(dtype, run, args, can_fail=True)


# ---------------------------------------------------------------------- intervals


@rule("MakeYMInterval")
def make_ym(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if any(a.type != INT for a in args):
        return None

    def run(gone: Vector, years: Vector, months: Vector) -> Vector:
        return _in_int(years * 12 + months, gone, "[INTERVAL_ARITHMETIC_OVERFLOW] Integer overflow while operating.")

    return numeric(INT, run, args, can_fail=True)


@rule("MakeDTInterval")
def make_dt(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if any(a.type != INT for a in args[:3]) or args[3].type != pa.decimal128(18, 6):
        return None

    def run(gone: Vector, days: Vector, hours: Vector, minutes: Vector, seconds: Vector) -> Vector:
        out, wrong = times_exact(days, DAY)
        for more in (hours * HOUR, minutes * MINUTE, seconds):
            out, bad = plus_exact(out, np.int64(more) if np.ndim(more) == 0 else more)
            wrong = wrong | bad
        refuse(wrong, gone, "[INTERVAL_ARITHMETIC_OVERFLOW] Integer overflow while operating with intervals.")
        return out

    return numeric(DURATION, run, args, can_fail=True)


_PARTS: dict[str, tuple[pa.DataType, Callable[[Vector], Vector]]] = {
    "ExtractANSIIntervalYears": (INT, lambda months: _towards_zero(months, 12)),
    "ExtractANSIIntervalMonths": (pa.int8(), lambda months: months - _towards_zero(months, 12) * 12),
    "ExtractANSIIntervalDays": (INT, lambda micros: _quotient(micros)),
    "ExtractANSIIntervalHours": (pa.int8(), lambda micros: _towards_zero(micros - _quotient(micros) * DAY, HOUR)),
    "ExtractANSIIntervalMinutes": (
        pa.int8(), lambda micros: _towards_zero(micros - _towards_zero(micros, HOUR) * HOUR, MINUTE),
    ),
    "ExtractANSIIntervalSeconds": (LONG, lambda micros: micros - _towards_zero(micros, MINUTE) * MINUTE),
}  # fmt: skip


@rule(*_PARTS)
def interval_part(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype, part = _PARTS[call.name]
    wanted = INT if call.name.endswith(("Years", "Months")) else DURATION
    if args[0].type != wanted:
        return None
    out = numeric(dtype, lambda gone, given: part(given), args)
    if not call.name.endswith("Seconds"):
        return out
    return Compiled(pa.decimal128(8, 6), lambda frame: _decimal(out.array(frame), pa.decimal128(8, 6)), out.can_fail)


# ---------------------------------------------------------------------- formatting

_SHORT_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SHORT_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LONG_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LONG_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip

Pieces = list[tuple[str, str]]


def _pieces(pattern: str) -> Pieces | None:
    """A pattern as letters repeated and literal texts (kind ''); None if there is something that we do not write."""
    out: Pieces = []
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == "'":
            end = pattern.find("'", i + 1)
            if end < 0:
                return None
            out.append(("", pattern[i + 1 : end] or "'"))
            if pattern[end : end + 2] == "''":
                return None  # a quote inside quotes
            i = end + 1
        elif c.isascii() and c.isalpha():
            n = 1
            while pattern[i + n : i + n + 1] == c:
                n += 1
            out.append((c, c * n))
            i += n
        elif c in "[]{}#":
            return None
        else:
            out.append(("", c))
            i += 1
    known = {
        "yyyy", "y", "yy", "M", "MM", "MMM", "MMMM", "d", "dd", "H", "HH", "h", "hh", "K", "KK", "k", "kk", "m", "mm",
        "s", "ss", "E", "EE", "EEE", "EEEE", "a", "D", "DDD", *("S" * n for n in range(1, 7)),
    }  # fmt: skip
    return out if all(not kind or text in known for kind, text in out) else None


def _digits(values: Vector, width: int) -> Vector:
    """Numbers as rows of digits."""
    out = np.empty((len(values), width), np.uint8)
    for at in range(width - 1, -1, -1):
        values, digit = np.divmod(values, 10)
        out[:, at] = digit + 48
    return out


def _fixed(matrix: Vector) -> pa.Array:
    """Strings of one width."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    )


def _named(names: Sequence[str], at: Vector) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(at))


def _numbered(values: Vector) -> pa.Array:
    return pa.array(values).cast(pa.string())


def _year(years: Vector, text: str) -> Any:
    """Four digits, more with a sign."""
    if text == "yy":
        return _digits(years % 100, 2)
    if text == "y":
        return _numbered(years)
    if not len(years) or (years.min() >= 0 and years.max() <= 9999):
        return _digits(years, 4)
    return pa.array([f"{y:04}" if 0 <= y <= 9999 else f"+{y}" if y > 0 else f"-{-y:04}" for y in years.tolist()])


def _piece(kind: str, text: str, days: Vector, rest: Vector) -> Any:
    """One piece of the pattern: rows of digits, strings, or one text."""
    if not kind:
        return text
    if kind == "y":
        return _year(years_of(days), text)
    if text == "MMM":
        return _named(_SHORT_MONTHS, month_of(days) - 1)
    if text == "MMMM":
        return _named(_LONG_MONTHS, month_of(days) - 1)
    if kind == "E":
        return _named(_LONG_DAYS if text == "EEEE" else _SHORT_DAYS, weekday(days))
    if kind == "a":
        return _named(("AM", "PM"), (rest >= 12 * HOUR).astype(np.int64))
    if kind == "S":
        return _digits(rest % SECOND // 10 ** (6 - len(text)), len(text))
    hours = rest // HOUR
    value = {
        "M": lambda: month_of(days),
        "d": lambda: day_of_month(days),
        "D": lambda: day_of_year(days),
        "H": lambda: hours,
        "k": lambda: (hours + 23) % 24 + 1,
        "h": lambda: (hours + 11) % 12 + 1,
        "K": lambda: hours % 12,
        "m": lambda: rest // MINUTE % 60,
        "s": lambda: rest // SECOND % 60,
    }[kind]()
    return _digits(value, len(text)) if len(text) > 1 else _numbered(value)


def _written(pieces: Pieces, days: Vector, rest: Vector) -> pa.Array:
    parts: list[Any] = []
    block: list[Vector] = []
    rows = len(days)

    def close() -> None:
        if block:
            parts.append(_fixed(np.concatenate(block, axis=1)))
            block.clear()

    for kind, text in pieces:
        made_ = _piece(kind, text, days, rest)
        if isinstance(made_, str):
            data = np.frombuffer(made_.encode(), np.uint8)
            block.append(np.broadcast_to(data, (rows, len(data))))
        elif isinstance(made_, np.ndarray):
            block.append(made_)
        else:
            close()
            parts.append(made_)
    close()
    if not parts:
        return pa.array([""] * rows, pa.string())
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "")


@rule("DateFormatClass")
def date_format(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return _formatting(call, args, context, 1)


@rule("FromUnixTime")
def from_unixtime(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return _formatting(call, args, context, SECOND) if args[0].type == LONG else None


def _formatting(call: Call, args: Sequence[Compiled], context: Context, unit: int) -> Compiled | None:
    pattern = text_of(args[1])
    pieces = None if pattern is None else _pieces(pattern)
    dtype = TIMESTAMP if args[0].type == LONG else args[0].type
    zone = _zone(call, dtype, context)
    if pieces is None or zone is None:
        return None
    given = args[0]

    def run(frame: Frame) -> Datum:
        array = given.array(frame)
        gone = missing([array])
        with np.errstate(over="ignore"):
            micros = numbers(array) * np.int64(unit)
        if gone is not None:
            micros = np.where(gone, 0, micros)
        out = _written(pieces, *zone.local(micros))
        return out if gone is None else _blanked(out, gone)

    return Compiled(pa.string(), run, given.can_fail)


def _blanked(strings: pa.Array, gone: Vector) -> pa.Array:
    return pc.if_else(pa.array(~gone), strings, pa.scalar(None, strings.type))
