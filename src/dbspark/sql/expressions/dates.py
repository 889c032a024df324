"""Dates: fields, arithmetic, truncation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.sql.expressions.calendar import (
    DATE,
    DURATION,
    INT,
    LONG,
    LONG_OVERFLOW,
    SHORT_DAYS,
    SHORT_MONTHS,
    UNITS,
    add_months,
    day_of,
    day_of_month,
    day_of_year,
    first_day,
    in_int,
    month_of,
    months_of,
    thursday,
    truncated,
    weekday,
    years_of,
)
from dbspark.sql.expressions.rules import Compiled, Context, constant, rule
from dbspark.sql.expressions.vectors import Vector, numeric, raise_where, text_of, times_exact, wrapped32
from dbspark.sql.expressions.zones import DAY
from dbspark.sql.plan import Call

_FIELDS: dict[str, Callable[[Vector], Vector]] = {
    "Year": years_of,
    "Quarter": lambda days: (month_of(days) + 2) // 3,
    "Month": month_of,
    "DayOfMonth": day_of_month,
    "DayOfYear": day_of_year,
    "DayOfWeek": lambda days: (days + 4) % 7 + 1,
    "WeekDay": weekday,
    "WeekOfYear": lambda days: (day_of_year(thursday(days)) - 1) // 7 + 1,
    "YearOfWeek": lambda days: years_of(thursday(days)),
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
    names = pa.array(SHORT_DAYS if call.name == "DayName" else SHORT_MONTHS)
    field = weekday if call.name == "DayName" else (lambda days: month_of(days) - 1)
    at = numeric(LONG, lambda gone, days: field(days), args)
    return Compiled(pa.string(), lambda frame: names.take(at.array(frame)), at.can_fail)


@rule("DateAdd", "DateSub")
def date_add(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """The number of days wraps, as Java's int does."""
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
        raise_where(wrong, gone, LONG_OVERFLOW)
        return out

    return numeric(DURATION, run, args, can_fail=True)


@rule("AddMonths", "DateAddYMInterval")
def date_add_months(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE or args[1].type != INT:
        return None
    return numeric(DATE, lambda gone, days, months: in_int(add_months(days, months), gone), args, can_fail=True)


@rule("LastDay")
def last_day(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE:
        return None
    return numeric(DATE, lambda gone, days: in_int(first_day(months_of(days) + 1) - 1, gone), args, can_fail=True)


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
            raise_where(np.ones(len(days), bool), gone, f"[ILLEGAL_DAY_OF_WEEK] Illegal input for day of week: {name}.")
            return days

        return numeric(DATE, fail, args[:1], can_fail=True)
    return numeric(DATE, lambda gone, days: wrapped32(days + (wanted - weekday(days) - 1) % 7 + 1), args[:1])


@rule("TruncDate")
def trunc_date(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DATE or args[1].constant is None:
        return None
    unit = UNITS.get((text_of(args[1]) or "").upper())
    if unit not in ("YEAR", "QUARTER", "MONTH", "WEEK"):
        return constant(None, DATE)
    return numeric(DATE, lambda gone, days: in_int(truncated(unit, days), gone), args[:1], can_fail=True)


@rule("MakeDate")
def make_date(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if any(a.type != INT for a in args):
        return None
    strict = call.option("failOnError", context.ansi)

    def run(gone: Vector, year: Vector, month: Vector, day: Vector) -> Any:
        days, wrong = day_of(year, month, day)
        if strict:
            raise_where(wrong, gone, "[DATETIME_FIELD_OUT_OF_BOUNDS] Invalid value for a field of a date.")
        return in_int(np.where(wrong, 0, days), gone), wrong

    return numeric(DATE, run, args, can_fail=True)


@rule("UnixDate")
def unix_date(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return numeric(INT, lambda gone, days: days, args) if args[0].type == DATE else None


@rule("DateFromUnixDate")
def date_from_unix_date(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return numeric(DATE, lambda gone, days: days, args) if args[0].type == INT else None
