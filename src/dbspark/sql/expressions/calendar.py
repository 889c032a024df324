"""The calendar that dates and timestamps are computed in.

Days are int32 since 1970 in the proleptic Gregorian calendar, timestamps int64 microseconds. A TIMESTAMP is an instant,
whose fields are those of the local time in the session's zone; a TIMESTAMP_NTZ is a local time already. Local times are
pairs of days and microseconds of the day, so that nothing overflows that Java would not let overflow.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from dbspark.sql.expressions import zones
from dbspark.sql.expressions.rules import Context
from dbspark.sql.expressions.vectors import INT32, Vector, missing, numbers, raise_where
from dbspark.sql.expressions.zones import DAY, Zone
from dbspark.sql.plan import Call

DATE = pa.date32()
INT = pa.int32()
LONG = pa.int64()
DURATION = pa.duration("us")
TIMESTAMP = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")
CALENDAR = pa.month_day_nano_interval()
_MAX_DAYS, _MAX_REST = divmod(2**63 - 1, DAY)
_MIN_DAYS, _MIN_REST = divmod(-(2**63), DAY)
LONG_OVERFLOW = "[DATETIME_OVERFLOW] Datetime operation overflow: long overflow"
_INT_OVERFLOW = "[DATETIME_OVERFLOW] Datetime operation overflow: integer overflow"
_NEAR_MONTHS = (-12 * 370, 12 * 430)
"""Months (since 1970) for which the calendar is tabulated: the years 1600 to 2399."""


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


def thursday(days: Vector) -> Vector:
    """The Thursday of the week, whose year the week belongs to."""
    return days - weekday(days) + 3


def add_months(days: Vector, months: Vector) -> Vector:
    """The same day of another month, or its last."""
    here = months_of(days)
    day = days - first_day(here)
    there = here + months
    return first_day(there) + np.minimum(day, length_of_month(there) - 1)


def zone_for(call: Call, dtype: pa.DataType, context: Context) -> Zone | None:
    """The zone in which fields of a timestamp are read."""
    if dtype == NTZ:
        return zones.UTC
    return zones.zone(call.option("timeZoneId", context.timezone)) if dtype == TIMESTAMP else None


def to_microseconds(parts: tuple[Vector, Vector], gone: Vector | None) -> Vector:
    """Microseconds from days and microseconds of the day; raises where they do not fit in int64."""
    days, rest = parts
    over = (days > _MAX_DAYS) | ((days == _MAX_DAYS) & (rest > _MAX_REST))
    under = (days < _MIN_DAYS) | ((days == _MIN_DAYS) & (rest < _MIN_REST))
    raise_where(over | under, gone, LONG_OVERFLOW)
    with np.errstate(over="ignore"):
        return days * DAY + rest


def decimals_of_int64(unscaled: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Decimals from their unscaled values."""
    low = numbers(unscaled)
    wide = np.empty(2 * len(low), np.int64)
    wide[::2] = low
    wide[1::2] = low >> 63
    gone = missing([unscaled])
    valid = None if gone is None else pa.array(~gone).buffers()[1]
    return pa.Array.from_buffers(dtype, len(low), [valid, pa.py_buffer(wide)])


def in_int(days: Vector, gone: Vector | None, message: str = _INT_OVERFLOW) -> Vector:
    raise_where((days < INT32[0]) | (days > INT32[1]), gone, message)
    return days


UNITS = {
    "YEAR": "YEAR", "YYYY": "YEAR", "YY": "YEAR", "QUARTER": "QUARTER", "MONTH": "MONTH", "MM": "MONTH", "MON": "MONTH",
    "WEEK": "WEEK", "DAY": "DAY", "DD": "DAY", "HOUR": "HOUR", "MINUTE": "MINUTE", "SECOND": "SECOND",
    "MILLISECOND": "MILLISECOND", "MICROSECOND": "MICROSECOND",
}  # fmt: skip


def truncated(unit: str, days: Vector) -> Vector:
    if unit == "WEEK":
        return days - weekday(days)
    months = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}[unit]
    return first_day(months_of(days) // months * months)


def day_of(year: Vector, month: Vector, day: Vector) -> tuple[Vector, Vector]:
    """Days from fields, and where there is no such date."""
    year, month, day = np.broadcast_arrays(
        np.asarray(year, np.int64), np.asarray(month, np.int64), np.asarray(day, np.int64)
    )
    wrong = (month < 1) | (month > 12) | (day < 1) | (day > 31) | (np.abs(year) > 999_999_999)
    months = np.where(wrong, 0, (year - 1970) * 12 + month - 1)
    wrong = wrong | (day > length_of_month(months))
    return first_day(months) + np.where(wrong, 1, day) - 1, wrong


SHORT_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
SHORT_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
