"""Operators inside fixpoints, where a stream has a value for every iteration of every tick.

A *path* says where an iteration stands: the iteration of each fixpoint around, the innermost last. What flows at a path
is a change of a change: by how much the tick changes what this iteration added. So an integral is a sum over all paths
that are not later in any coordinate *and* over ticks. All earlier ticks are as good as one: their rows are kept in one
spine, each at the time that is its path (a trace at times (tick, path), compacted to the present tick). The present
tick's rows are kept beside it until the tick is over.

*Join.* Rows of paths p and q meet at their join, the maximum in each coordinate. A new row probes the past, and the
present tick so far, once; pairs at a later path are deferred to it. Cost: the matches of what is new.

*Reduce*: any operator that treats keys apart. The keys of new rows are evaluated at the path where they come, and at
the join of that with every path at which they have rows, because there the past has to be corrected. With one
coordinate the result at i is

    f(new up to i) - f(new up to i-1) - f(old up to i) + f(old up to i-1)

for the rows of those keys, and with more the difference is taken in each of them: of every corner of the cube between
p-1 and p, with the sign of how many coordinates are one less. Cost: the rows of the touched keys, at each path at which
they are touched, times the corners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import Int64s
from dbspark.columnar.schema import Schema
from dbspark.operators.arranged import State
from dbspark.trace.config import SpineConfig
from dbspark.trace.spine import Spine

Path = tuple[int, ...]

PRESENT_TICK_CONFIG = SpineConfig(min_space_share=float("inf"), max_space_share=float("inf"))
"""Of the rows of the present tick: they are read for a few iterations only, too few for merges that only save space."""


class PendingIterations:
    """The iterations of one fixpoint, in one tick, for which work is deferred."""

    def __init__(self, parent: PendingIterations | None = None) -> None:
        """`parent`: those of the fixpoint around, whose iterations have to come for these to come."""
        self.parent = parent
        self._pending: dict[Path, set[int]] = {}

    def add(self, path: Path) -> None:
        iterations = self._pending.setdefault(path[:-1], set())
        if path[-1] not in iterations:
            iterations.add(path[-1])
            if self.parent is not None:
                self.parent.add(path[:-1])

    def next(self, outer: Path, after: int) -> int | None:
        """The first iteration, within those outside, that is later than one and for which work is deferred."""
        return min((i for i in self._pending.get(outer, ()) if i > after), default=None)


class Nested(ABC):
    """An operator inside a fixpoint, for one tick."""

    @abstractmethod
    def step(self, path: Path, inputs: Sequence[Any]) -> Any:
        """What goes out at a path for what its inputs give there."""


@dataclass(frozen=True, slots=True)
class NestedSite:
    """What a fixpoint provides to an operator inside it, for one tick."""

    pending: PendingIterations
    trace: Callable[[str], NestedArranged]
    """The operator's own traces, by the names in `Operator.nested_traces`."""
    state: State = ()
    """The spines of a fixpoint that stands inside another."""


class NestedStateless(Nested):
    """An operator without state: its function, where anything comes in."""

    def __init__(self, schema: Schema, apply: Callable[[Sequence[Any]], Delta]) -> None:
        self._apply = apply
        self._nothing = Delta.empty(schema)

    def step(self, path: Path, inputs: Sequence[Any]) -> Delta:
        return self._apply(inputs) if any(d.rows for d in inputs) else self._nothing


class NestedArranged(Nested):
    """A stream inside a fixpoint in the order of an arrangement: the past, the present tick so far, and what is new."""

    def __init__(self, past: Spine) -> None:
        self.past = past
        self.sort_key = past.sort_key
        self.old = len(past.batches)
        """How many of the batches of what is to be read are the past."""
        self._none = self.rows = self.delta = Batch.empty(past.sort_key)
        """Rows of this iteration, without their time and with it."""
        self._present = Spine(past.sort_key, config=PRESENT_TICK_CONFIG)
        """Rows of the present tick before this iteration, without those in `_unread`."""
        self._unread: list[Batch] = []
        self._before: Spine | None = past
        self._after: tuple[Spine, Spine] | None = None

    def step(self, path: Path, inputs: Sequence[Delta]) -> NestedArranged:
        """To the next iteration, with its rows."""
        delta = inputs[0]
        if self.delta.rows:
            if self._after is not None:
                self._before, self._present = self._after
            else:
                self._unread.append(self.delta)
                self._before = None
            self._after = None
            self.rows = self.delta = self._none
        if delta.rows:
            self.rows = delta.sorted_by(self.sort_key)
            self.delta = self.rows.at_time(path)
        return self

    def before(self) -> Spine:
        """The past and the present tick before this iteration."""
        if self._before is None:
            self._present = self._present.insert_all(self._unread)
            self._unread = []
            self._before = self._with(self._present)
        return self._before

    def after(self) -> Spine:
        """The past and the present tick, this iteration included."""
        before = self.before()
        if not self.delta.rows:
            return before
        if self._after is None:
            present = self._present.insert(self.delta)
            self._after = self._with(present), present
        return self._after[0]

    def _with(self, present: Spine) -> Spine:
        """Both as one, only to be read: nothing is merged across."""
        return Spine(self.sort_key, self.past.entries + present.entries)

    def resume(self, batches: Sequence[Batch]) -> None:
        """Go on with a present tick that `present` has returned."""
        self._present = Spine(self.sort_key, tuple(batches), PRESENT_TICK_CONFIG)
        self._before = self._with(self._present)

    def present(self) -> Spine:
        """The rows of the present tick, this iteration included."""
        if self._after is not None:
            return self._after[1]
        return self._present.insert_all([*self._unread, *([self.delta] if self.delta.rows else [])])

    def committed(self) -> Spine:
        """The past once the tick is over."""
        new = [*self._present.batches, *self._unread, self.delta]
        return self.past.insert(merge(new)) if any(b.rows for b in new) else self.past


class NestedStateful(Nested):
    """An operator over arranged streams, which may defer work to later paths."""

    def __init__(self, schema: Schema, pending: PendingIterations) -> None:
        self.schema = schema
        self._nothing = Delta.empty(schema)
        self.pending = pending
        self.deferred: dict[Path, list[Any]] = {}
        """Deferred work by path."""

    def step(self, path: Path, inputs: Sequence[NestedArranged]) -> Delta:
        deferred = self.deferred.pop(path, None)
        if deferred is None:
            for source in inputs:
                if source.delta.rows:
                    break
            else:
                return self._nothing
        return self.evaluate(path, inputs, deferred or [])

    @abstractmethod
    def evaluate(self, path: Path, inputs: Sequence[NestedArranged], deferred: list[Any]) -> Delta:
        """What goes out for what has come and for the work that was deferred to this path."""

    def defer(self, path: Path, work: Any) -> None:
        """Do some work at a later path."""
        self.deferred.setdefault(path, []).append(work)
        self.pending.add(path)

    # Deferred work as batches, in which it is carried to another process.

    def deferred_sort_key(self, inputs: Sequence[Any]) -> SortKey:
        """The sort key of such batches."""
        return SortKey(self.schema)

    @abstractmethod
    def to_batch(self, work: Any, sort_key: SortKey) -> Batch: ...

    @abstractmethod
    def from_batch(self, batch: Batch) -> Any: ...


def runs_of_equal_times(times: Int64s) -> Iterator[tuple[Path, int, int]]:
    """(path, begin, end) of the runs of equal lines."""
    cuts = np.flatnonzero((times[1:] != times[:-1]).any(axis=1)) + 1
    begin = 0
    for end in [*cuts.tolist(), len(times)]:
        yield tuple(times[begin].tolist()), begin, end
        begin = end


def numbers_by_time(which: Int64s, times: Int64s) -> Iterator[tuple[Path, Int64s]]:
    """For each path the numbers that stand beside it, once each, in order."""
    if len(which):
        order = np.lexsort((which, *times.T[::-1]))
        for path, begin, end in runs_of_equal_times(times[order]):
            yield path, np.unique(which[order[begin:end]])


__all__ = [
    "Nested", "NestedArranged", "NestedSite", "NestedStateful", "NestedStateless", "Path",
    "PendingIterations", "numbers_by_time", "runs_of_equal_times",
]  # fmt: skip
