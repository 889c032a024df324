"""Times and frontiers.

A **time** is a tuple of integers, compared coordinate by coordinate. `TotalTime(t)` has one, so its order is total: the
times of the root scope are numbers of ticks. `ProductTime(outer, inner)` has the coordinates of two times, so its order
is partial. Products nest, and since the product order does not depend on brackets, a nested product is a longer tuple.
In batches a time is one integer lane for each coordinate, never an object per row.

An **antichain** is a set of times none of which is below another. As a frontier it stands for all times at or above
one of its elements; the empty antichain is the end of time. Antichains are values: `insert` gives another one.

Advancing a time to a frontier replaces it by the least time that no reader at or above the frontier can tell from it:
the meet, over the elements of the frontier, of the joins of the time with them. The order is by coordinates, so this
equals the join of the time with the meet of the frontier: one `maximum` for each lane of a batch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, SupportsIndex

from dbspark.errors import TimeError
from dbspark.kernels.memory.layout import TIMES


class Time(tuple[int, ...]):
    """Integers compared coordinate by coordinate; see `TotalTime` and `ProductTime`."""

    __slots__ = ()

    @classmethod
    def of(cls, time: TimeLike) -> Time:
        """Convert a time, an integer or a sequence of integers to a time."""
        if isinstance(time, Time):
            return time
        if hasattr(time, "__index__"):  # numpy's integers too
            return TotalTime(operator.index(time))
        return Time(operator.index(t) for t in time)

    @property
    def width(self) -> int:
        """The number of coordinates."""
        return len(self)

    def less_equal(self, other: TimeLike) -> bool:
        return all(a <= b for a, b in zip(self, self._same_width(other), strict=True))

    def join(self, other: TimeLike) -> Self:
        """The least time at or above both."""
        return self._from_coordinates([max(a, b) for a, b in zip(self, self._same_width(other), strict=True)])

    def meet(self, other: TimeLike) -> Self:
        """The greatest time at or below both."""
        return self._from_coordinates([min(a, b) for a, b in zip(self, self._same_width(other), strict=True)])

    def advance_by(self, frontier: Antichain) -> Self:
        """The least time that readers at or above the frontier cannot tell from this one."""
        return self.join(frontier.meet_of_all()) if frontier else self

    def _same_width(self, other: TimeLike) -> Time:
        time = Time.of(other)
        if len(time) != len(self):
            raise TimeError(f"times of one scope have as many coordinates: {self!r} and {time!r} do not")
        return time

    def _from_coordinates(self, coordinates: Iterable[int]) -> Self:
        return tuple.__new__(type(self), coordinates)

    def __repr__(self) -> str:
        return f"Time({', '.join(map(str, self))})"


class TotalTime(Time):
    """A time of the root scope: the number of a tick. Totally ordered.

    >>> TotalTime(3).join(TotalTime(5)), TotalTime(3).less_equal(5)
    (TotalTime(5), True)
    """

    __slots__ = ()

    def __new__(cls, tick: int) -> TotalTime:
        return tuple.__new__(cls, (tick,))

    def __repr__(self) -> str:
        return f"TotalTime({self[0]})"


class ProductTime(Time):
    """A time of a nested scope: a time outside and a time inside, in the product order.

    >>> ProductTime(3, 7).join(ProductTime(4, 6)), ProductTime(3, 7).less_equal(ProductTime(4, 6))
    (ProductTime(4, 7), False)
    >>> ProductTime(ProductTime(1, 2), 3) == ProductTime(1, ProductTime(2, 3))
    True
    """

    __slots__ = ()

    def __new__(cls, outer: TimeLike, inner: TimeLike) -> ProductTime:
        time = tuple.__new__(cls, Time.of(outer) + Time.of(inner))
        if len(time) > TIMES:
            raise TimeError(f"scopes nest to {TIMES} coordinates of time; {time!r} has {len(time)}")
        return time

    def __repr__(self) -> str:
        return f"ProductTime({', '.join(map(str, self))})"


TimeLike = Time | SupportsIndex | Sequence[int]
"""Types that are accepted where a time is expected: a time, an integer, or coordinates."""


class Antichain:
    """An immutable set of times none of which is at or below another.

    >>> Antichain([ProductTime(3, 7), ProductTime(5, 6)]).join(Antichain([ProductTime(4, 6)]))
    Antichain([ProductTime(4, 7), ProductTime(5, 6)])
    """

    __slots__ = ("elements",)

    elements: tuple[Time, ...]

    def __init__(self, times: Iterable[TimeLike] = ()) -> None:
        self.elements = _minimal_times(Time.of(t) for t in times)

    @classmethod
    def at(cls, *time: int) -> Antichain:
        """The frontier of one time, given by its coordinates."""
        self = cls.__new__(cls)
        self.elements = (TotalTime(time[0]) if len(time) == 1 else Time(time),)
        return self

    def insert(self, time: TimeLike) -> Antichain:
        """The antichain with one more time; this object itself if one of its elements is at or below the time."""
        return self.extend((time,))

    def extend(self, times: Iterable[TimeLike]) -> Antichain:
        """The antichain with more times."""
        elements = _minimal_times((*self.elements, *(Time.of(t) for t in times)))
        return self if elements == self.elements else Antichain(elements)

    def less_equal(self, time: TimeLike) -> bool:
        """Whether a time is at or above the frontier: some element is at or below it."""
        if len(self.elements) == 1 and isinstance(time, Time) and len(time) == 1 == len(self.elements[0]):
            return self.elements[0][0] <= time[0]
        return any(e.less_equal(time) for e in self.elements)

    def less_than(self, time: TimeLike) -> bool:
        """Whether a time is above the frontier and not on it."""
        time = Time.of(time)
        return any(e != time and e.less_equal(time) for e in self.elements)

    def dominates(self, other: Antichain) -> bool:
        """Whether every time at or above the other frontier is at or above this one."""
        if len(other.elements) == 1:
            return self.less_equal(other.elements[0])
        return all(self.less_equal(t) for t in other.elements)

    def join(self, other: Antichain) -> Antichain:
        """The least frontier that is at or above both."""
        if self.elements == other.elements:
            return self
        if len(self.elements) == 1 == len(other.elements):
            mine, theirs = self.elements[0], other.elements[0]
            return (
                self
                if theirs.less_equal(mine)
                else other
                if mine.less_equal(theirs)
                else Antichain([mine.join(theirs)])
            )
        return Antichain(a.join(b) for a in self.elements for b in other.elements)

    def meet(self, other: Antichain) -> Antichain:
        """The greatest frontier that is at or below both."""
        return self.extend(other.elements)

    def meet_of_all(self) -> Time:
        """The greatest time at or below every element; the empty antichain has none."""
        if not self.elements:
            raise TimeError("the empty frontier is the end of time and has no time at or below it")
        time = self.elements[0]
        for element in self.elements[1:]:
            time = time.meet(element)
        return time

    def __bool__(self) -> bool:
        return bool(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __iter__(self) -> Iterator[Time]:
        return iter(self.elements)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Antichain):
            return NotImplemented
        return self.elements == other.elements

    def __hash__(self) -> int:
        return hash(self.elements)

    def __repr__(self) -> str:
        return f"Antichain({list(self.elements)!r})"


def _minimal_times(times: Iterable[Time]) -> tuple[Time, ...]:
    """The minimal times, once each, in a fixed order."""
    kept: list[Time] = []
    for time in times:
        if not any(k.less_equal(time) for k in kept):
            kept = [k for k in kept if not time.less_equal(k)]
            kept.append(time)
    return tuple(kept) if len(kept) < 2 else tuple(sorted(kept))


class MutableAntichain:
    """The frontier of a multiset of times that come and go.

    >>> held = MutableAntichain([1])
    >>> held.update([(1, -1), (2, 7)])
    [(TotalTime(1), -1), (TotalTime(2), 1)]
    """

    __slots__ = ("_counts", "frontier")

    frontier: Antichain

    def __init__(self, times: Iterable[TimeLike] = ()) -> None:
        self._counts: dict[Time, int] = {}
        self.frontier = Antichain()
        self.update((t, 1) for t in times)

    def update(self, changes: Iterable[tuple[TimeLike, int]]) -> list[tuple[Time, int]]:
        """Change counts of times; returns the change of the frontier: (time, -1) left it, (time, 1) joined it."""
        counts = dict(self._counts)
        for given, change in changes:
            time = Time.of(given)
            count = counts.get(time, 0) + change
            if count:
                counts[time] = count
            else:
                counts.pop(time, None)
        self._counts = counts
        before, self.frontier = self.frontier, Antichain(t for t, n in counts.items() if n > 0)
        left: list[tuple[Time, int]] = [(t, -1) for t in before if t not in self.frontier.elements]
        return left + [(t, 1) for t in self.frontier if t not in before.elements]

    def replace(self, old: Antichain, new: Antichain) -> None:
        """Replace the times of one holder."""
        if len(old) == len(new) == len(self._counts) == 1 and self._counts.get(old.elements[0]) == 1:
            self._counts, self.frontier = {new.elements[0]: 1}, new  # the usual case: a single holder
        else:
            self.update([*((t, 1) for t in new), *((t, -1) for t in old)])

    def without(self, times: Antichain) -> Antichain:
        """The frontier that would be left without one holder's times.

        >>> MutableAntichain([1, 2]).without(Antichain([1]))
        Antichain([TotalTime(2)])
        """
        if len(self._counts) == len(times) and all(self._counts.get(t) == 1 for t in times):
            return Antichain()  # the usual case: a single holder
        counts = {t: n - (t in times.elements) for t, n in self._counts.items()}
        return Antichain(t for t, n in counts.items() if n > 0)

    def count(self, time: TimeLike) -> int:
        return self._counts.get(Time.of(time), 0)

    def __repr__(self) -> str:
        return f"MutableAntichain({dict(sorted(self._counts.items()))!r})"


def advance_by(time: TimeLike, since: Antichain) -> Time:
    """The least time that readers at or above `since` cannot tell from `time`.

    >>> advance_by(ProductTime(3, 7), Antichain([ProductTime(4, 8), ProductTime(5, 3)]))
    ProductTime(4, 7)
    """
    return Time.of(time).advance_by(since)


class Description:
    """What a batch of a trace holds: updates at times at or above `lower` and not at or above `upper`.

    The sum of updates up to a time is exact for every time at or above `since`; below it, times may have been advanced.
    """

    __slots__ = ("lower", "since", "upper")

    def __init__(self, lower: Antichain, upper: Antichain, since: Antichain) -> None:
        self.lower = lower
        self.upper = upper
        self.since = since

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Description):
            return NotImplemented
        return (self.lower, self.upper, self.since) == (other.lower, other.upper, other.since)

    def __hash__(self) -> int:
        return hash((self.lower, self.upper, self.since))

    def __repr__(self) -> str:
        return f"Description({self.lower!r} … {self.upper!r}, since {self.since!r})"

    def to_json(self) -> dict[str, Any]:
        return {name: [list(t) for t in getattr(self, name)] for name in ("lower", "upper", "since")}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Description:
        return Description(*(Antichain(tuple(t) for t in data[name]) for name in ("lower", "upper", "since")))
