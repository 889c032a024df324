"""Time zones as Spark has them: from instants to local times and back, on whole columns.

The rules of a zone are read from Java once, for Java is what Spark asks: tables of time zones differ from release to
release, and what Java thinks of local mean time, gaps and overlaps is what counts. Without a JVM only fixed offsets are
known. All times are int64 microseconds, instants since 1970 in UTC and local times since 1970 on the clock of the zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Ints: TypeAlias = Any
"""A numpy array of int64."""

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_CYCLE = 146_097 * DAY
"""400 years, after which the calendar repeats, days of the week included."""
_LAST_YEAR = 2438
"""Rules without an end are tabulated up to this year; later times are moved back by whole cycles."""
_FAR = 100_000_000
"""Days beyond which microseconds come near the end of int64."""

_DAYS = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")
_MONTHS = (
    "JANUARY", "FEBRUARY", "MARCH", "APRIL", "MAY", "JUNE", "JULY", "AUGUST", "SEPTEMBER", "OCTOBER", "NOVEMBER",
    "DECEMBER",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """Offsets of a zone from UTC, and when they change."""

    name: str
    offsets: Ints
    """The offset before the first change, and after each."""
    changes: Ints
    """Instants of the changes."""
    starts: Ints
    """By change, the local time from which the offset after it applies: the end of the gap or of the overlap."""
    fixed: bool
    cycles: bool
    """Whether the rules go on for ever."""
    end: int

    def _taken_back(self, times: Ints) -> Ints:
        if not self.cycles or not len(times) or times.max() < self.end:
            return times
        over = (np.maximum(times, self.end) - self.end) // _CYCLE + 1
        return np.where(times < self.end, times, times - over * _CYCLE)

    def offset_at(self, instants: Ints) -> Ints:
        """The offset at each instant."""
        if self.fixed:
            return np.full(len(instants), self.offsets[0])
        return self.offsets[np.searchsorted(self.changes, self._taken_back(instants), side="right")]

    def local(self, instants: Ints) -> tuple[Ints, Ints]:
        """Local days since 1970 and microseconds of the day."""
        days = instants // DAY
        rest = instants - days * DAY + (self.offsets[0] if self.fixed else self.offset_at(instants))
        return carried(days, rest)

    def instant(self, days: Ints, rest: Ints, preferred: Ints | None = None) -> tuple[Ints, Ints]:
        """Instants of local times, as days and microseconds of the day in UTC.

        A time in a gap goes behind it by its length; one in an overlap is the earlier, or that of the preferred offset.
        """
        if self.fixed:
            return carried(days, rest - self.offsets[0])
        given = self._given(days, rest)
        at = np.searchsorted(self.starts, given, side="right")
        offset = self.offsets[at]
        if preferred is not None and len(self.changes):
            # In an overlap the offset after the change is valid too: its instant is not before the change.
            following = np.minimum(at, len(self.changes) - 1)
            after = self.offsets[following + 1]
            both = (at < len(self.changes)) & (given - after >= self.changes[following])
            offset = np.where(both & (preferred == after), after, offset)
        return carried(days, rest - offset)

    def midnight(self, days: Ints) -> tuple[Ints, Ints]:
        """Instants at which days begin; where a gap covers midnight, the day begins at the end of the gap."""
        if self.fixed:
            return carried(days, -self.offsets[0])
        given = self._given(days, 0)
        at = np.searchsorted(self.starts, given, side="right")
        rest = -self.offsets[at]
        if len(self.changes):
            following = np.minimum(at, len(self.changes) - 1)
            late = given + rest - self.changes[following]  # behind the beginning of the gap
            gap = (at < len(self.changes)) & (late >= 0) & (self.offsets[following + 1] > self.offsets[at])
            rest = np.where(gap, rest - late, rest)
        return carried(days, rest)

    def _given(self, days: Ints, rest: Ints) -> Ints:
        """Local times as one number, in years for which changes are tabulated."""
        far = np.where(days > _FAR, 146_097, 0) - np.where(days < -_FAR, 146_097, 0)
        return self._taken_back((days - far) * DAY + rest)


def carried(days: Ints, rest: Ints) -> tuple[Ints, Ints]:
    """Days and microseconds with the latter within a day."""
    more = rest // DAY
    return days + more, rest - more * DAY


def fixed(name: str, micros: int = 0) -> Zone:
    none = np.zeros(0, np.int64)
    return Zone(name, np.array([micros], np.int64), none, none, True, False, 0)


UTC = fixed("UTC")


def zone(name: str | None) -> Zone | None:
    """The zone of a name as Spark understands it; None if it takes a JVM to tell and there is none."""
    if name is None or name in ("UTC", "Z", "GMT", "Etc/UTC", "+00:00"):
        return UTC
    if re.fullmatch(r"[+-](0\d|1[0-7]):[0-5]\d", name):
        return fixed(name, _offset(name))
    jvm = _jvm()
    return None if jvm is None else _read(name, jvm)


def _jvm() -> Any:
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    return None if context is None else context._jvm


@lru_cache(maxsize=1024)
def _read(name: str, jvm: Any) -> Zone:
    rules = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(name).getRules()
    first = rules.getOffset(jvm.java.time.Instant.MIN).getTotalSeconds() * SECOND
    if rules.isFixedOffset():
        return fixed(name, first)
    return parsed(name, first, rules.getTransitions().toString(), rules.getTransitionRules().toString())


def parsed(name: str, first: int, transitions: str, rules: str) -> Zone:
    """A zone from what Java's rules print as."""
    found = [
        (_moment(at) - _offset(before), _offset(after))
        for at, before, after in re.findall(
            r"Transition\[(?:Gap|Overlap) at (-?\d+-\d\d-\d\dT[\d:]+?)(Z|[+-][\d:]+) to (Z|[+-][\d:]+)\]", transitions
        )
    ]
    yearly = re.findall(r"TransitionRule\[(.*?)\]", rules)
    if len(found) != transitions.count("Transition[") or len(yearly) != rules.count("TransitionRule["):
        raise ValueError(f"the rules of time zone {name} cannot be read: {transitions} {rules}")
    if yearly:
        year = 1970 + int(np.int64(found[-1][0]).astype("M8[us]").astype("M8[Y]").astype(np.int64))
        last = found[-1][0]
        written = [_yearly(rule, y) for y in range(year, _LAST_YEAR + 1) for rule in yearly]
        found += sorted(change for change in written if change[0] > last)
    changes = np.array([change for change, _ in found], np.int64)
    offsets = np.array([first, *(offset for _, offset in found)], np.int64)
    starts = changes + np.maximum(offsets[1:], offsets[:-1])
    end = int(np.datetime64(f"{_LAST_YEAR}-01-01", "us").astype(np.int64))
    return Zone(name, offsets, changes, starts, False, bool(yearly), end)


def _offset(text: str) -> int:
    if text == "Z":
        return 0
    parts = [int(p) for p in text[1:].split(":")]
    size = sum(p * unit for p, unit in zip(parts, (HOUR, MINUTE, SECOND), strict=False))
    return -size if text[0] == "-" else size


def _moment(text: str) -> int:
    return int(np.datetime64(text, "us").astype(np.int64))


_RULE = re.compile(
    r"(?:Gap|Overlap) (Z|[+-][\d:]+) to (Z|[+-][\d:]+), (?:(\w+) on or (after|before) )?"
    r"(?:last day(?: minus (\d+))? of (\w+)|(\w+) (\d+)) at ([\d:]+) (\w+), standard offset (Z|[+-][\d:]+)"
)


def _yearly(rule: str, year: int) -> tuple[int, int]:
    """The change of a rule in a year: when, and the offset after it."""
    match = _RULE.fullmatch(rule)
    if match is None:
        raise ValueError(f"a rule of a time zone cannot be read: {rule}")
    before, after, weekday, side, minus, last_of, month, day, time, clock, standard = match.groups()
    number = _MONTHS.index(last_of or month)
    start = np.datetime64(f"{year}-{number + 1:02}", "M")
    if last_of:
        date = int((start + 1).astype("M8[D]").astype(np.int64)) - 1 - int(minus or 0)
    else:
        date = int(start.astype("M8[D]").astype(np.int64)) + int(day) - 1
    if weekday:
        wanted = _DAYS.index(weekday)
        now = (date + 3) % 7
        date += (wanted - now) % 7 if side == "after" else -((now - wanted) % 7)
    moment = date * DAY + _offset("+" + time)
    zero = {"WALL": _offset(before), "UTC": 0, "STANDARD": _offset(standard)}[clock]
    return moment - zero, _offset(after)
