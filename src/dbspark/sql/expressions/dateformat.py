"""Dates and timestamps as text, by the letters of a pattern.

Pieces of the same width in all rows are written as one matrix of characters; only the others are strings of their own.
A pattern with something in it that we do not write is left to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions.calendar import (
    LONG,
    SHORT_DAYS,
    SHORT_MONTHS,
    TIMESTAMP,
    day_of_month,
    day_of_year,
    month_of,
    weekday,
    years_of,
    zone_for,
)
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Context, Datum, rule
from dbspark.sql.expressions.vectors import Vector, missing, numbers, text_of
from dbspark.sql.expressions.zones import HOUR, MINUTE, SECOND
from dbspark.sql.plan import Call

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
        return _named(SHORT_MONTHS, month_of(days) - 1)
    if text == "MMMM":
        return _named(_LONG_MONTHS, month_of(days) - 1)
    if kind == "E":
        return _named(_LONG_DAYS if text == "EEEE" else SHORT_DAYS, weekday(days))
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
    zone = zone_for(call, dtype, context)
    if pieces is None or zone is None:
        return None
    given = args[0]

    def run(frame: ColumnFrame) -> Datum:
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
