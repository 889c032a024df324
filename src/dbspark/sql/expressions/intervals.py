"""Intervals: made of numbers, and their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dbspark.sql.expressions.calendar import DURATION, INT, LONG, decimals_of_int64, in_int
from dbspark.sql.expressions.rules import Compiled, Context, rule
from dbspark.sql.expressions.timestamps import quotient, towards_zero
from dbspark.sql.expressions.vectors import Vector, numeric, plus_exact, raise_where, times_exact
from dbspark.sql.expressions.zones import DAY, HOUR, MINUTE
from dbspark.sql.plan import Call


@rule("MakeYMInterval")
def make_ym(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if any(a.type != INT for a in args):
        return None

    def run(gone: Vector, years: Vector, months: Vector) -> Vector:
        return in_int(years * 12 + months, gone, "[INTERVAL_ARITHMETIC_OVERFLOW] Integer overflow while operating.")

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
        raise_where(wrong, gone, "[INTERVAL_ARITHMETIC_OVERFLOW] Integer overflow while operating with intervals.")
        return out

    return numeric(DURATION, run, args, can_fail=True)


_PARTS: dict[str, tuple[pa.DataType, Callable[[Vector], Vector]]] = {
    "ExtractANSIIntervalYears": (INT, lambda months: towards_zero(months, 12)),
    "ExtractANSIIntervalMonths": (pa.int8(), lambda months: months - towards_zero(months, 12) * 12),
    "ExtractANSIIntervalDays": (INT, lambda micros: quotient(micros)),
    "ExtractANSIIntervalHours": (pa.int8(), lambda micros: towards_zero(micros - quotient(micros) * DAY, HOUR)),
    "ExtractANSIIntervalMinutes": (
        pa.int8(), lambda micros: towards_zero(micros - towards_zero(micros, HOUR) * HOUR, MINUTE),
    ),
    "ExtractANSIIntervalSeconds": (LONG, lambda micros: micros - towards_zero(micros, MINUTE) * MINUTE),
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
    return Compiled(
        pa.decimal128(8, 6), lambda frame: decimals_of_int64(out.array(frame), pa.decimal128(8, 6)), out.can_fail
    )
