"""Operators inside fixpoints, where a stream has a value for every iteration of every tick.

A *path* identifies an iteration: the iteration numbers of all enclosing fixpoints, the innermost last. The delta on a
stream at a path is a change of a change: by how much the tick changes what this iteration added. So an integral is a
sum over all paths that are not later in any coordinate *and* over all ticks. Earlier ticks need not be told apart:
their rows are kept in one spine, each at its path as the time (a trace at times (tick, path), compacted to the present
tick). The rows of the present tick are kept beside it until the tick is over.

*Join.* A pair of rows at paths p and q belongs to the join of the paths, the maximum in each coordinate. A new row
probes the earlier ticks and the present tick so far once; pairs of a later path are deferred to it. Cost: the matches
of the new rows.

*Reduce*: any keyed operator. The keys of new rows are evaluated at the path of these rows, and at the join of that with
every path at which the keys have rows, because the output of earlier ticks has to be corrected there. With one
coordinate the result at i is

    f(new up to i) - f(new up to i-1) - f(old up to i) + f(old up to i-1)

for the rows of those keys: *old* are the rows of earlier ticks, *new* includes the present tick. With several
coordinates the difference is taken in each: a sum over all corners of the cube between p-1 and p, negative where an odd
number of coordinates is one less. Cost: the rows of the evaluated keys at each path of an evaluation, times the
corners.
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
"""For spines of the present tick's rows. The space rule is off: they are read for too few iterations to pay for it."""


class PendingIterations:
    """The iterations of one fixpoint, in one tick, for which work is deferred."""

    def __init__(self, parent: PendingIterations | None = None) -> None:
        """`parent`: those of the enclosing fixpoint. Work deferred here is also pending there, so that the enclosing
        iteration is run."""
        self.parent = parent
        self._pending: dict[Path, set[int]] = {}

    def add(self, path: Path) -> None:
        iterations = self._pending.setdefault(path[:-1], set())
        if path[-1] not in iterations:
            iterations.add(path[-1])
            if self.parent is not None:
                self.parent.add(path[:-1])

    def next(self, outer: Path, after: int) -> int | None:
        """The first iteration after `after` with deferred work, within the iterations `outer` of enclosing
        fixpoints."""
        return min((i for i in self._pending.get(outer, ()) if i > after), default=None)


class Nested(ABC):
    """An operator inside a fixpoint, for one tick."""

    @abstractmethod
    def step(self, path: Path, inputs: Sequence[Any]) -> Any:
        """The output at a path, given the inputs at that path."""


@dataclass(frozen=True, slots=True)
class NestedSite:
    """What a fixpoint provides to an operator inside it, for one tick."""

    pending: PendingIterations
    trace: Callable[[str], NestedArranged]
    """The operator's own traces, by the names in `Operator.nested_traces`."""
    state: State = ()
    """The spines of the operator, if it is a fixpoint inside another."""


class NestedStateless(Nested):
    """An operator without state: calls its function wherever there is input."""

    def __init__(self, schema: Schema, apply: Callable[[Sequence[Any]], Delta]) -> None:
        self._apply = apply
        self._nothing = Delta.empty(schema)

    def step(self, path: Path, inputs: Sequence[Any]) -> Delta:
        return self._apply(inputs) if any(d.rows for d in inputs) else self._nothing


class NestedArranged(Nested):
    """A stream arranged inside a fixpoint: rows of earlier ticks, of the present tick so far, and of this iteration."""

    def __init__(self, past: Spine) -> None:
        self.past = past
        self.sort_key = past.sort_key
        self.old = len(past.batches)
        """Number of batches of `past`, which come first in the spines of `before` and `after`."""
        self._none = self.rows = self.delta = Batch.empty(past.sort_key)
        """The rows of this iteration: `rows` without times, `delta` at the path."""
        self._present = Spine(past.sort_key, config=PRESENT_TICK_CONFIG)
        """Rows of the present tick before this iteration, without those in `_unread`."""
        self._unread: list[Batch] = []
        self._before: Spine | None = past
        self._after: tuple[Spine, Spine] | None = None

    def step(self, path: Path, inputs: Sequence[Delta]) -> NestedArranged:
        """Move on to the next iteration, which adds the rows of `inputs`."""
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
        """Rows of earlier ticks, and of the present tick before this iteration."""
        if self._before is None:
            self._present = self._present.insert_all(self._unread)
            self._unread = []
            self._before = self._with(self._present)
        return self._before

    def after(self) -> Spine:
        """Rows of earlier ticks, and of the present tick including this iteration."""
        before = self.before()
        if not self.delta.rows:
            return before
        if self._after is None:
            present = self._present.insert(self.delta)
            self._after = self._with(present), present
        return self._after[0]

    def _with(self, present: Spine) -> Spine:
        """`past` and `present` as one spine, for reading only: their batches are not merged with each other."""
        return Spine(self.sort_key, self.past.entries + present.entries)

    def resume(self, batches: Sequence[Batch]) -> None:
        """Continue a tick of which `present` has returned the batches, perhaps in another process."""
        self._present = Spine(self.sort_key, tuple(batches), PRESENT_TICK_CONFIG)
        self._before = self._with(self._present)

    def present(self) -> Spine:
        """The rows of the present tick, this iteration included."""
        if self._after is not None:
            return self._after[1]
        return self._present.insert_all([*self._unread, *([self.delta] if self.delta.rows else [])])

    def committed(self) -> Spine:
        """The new state: rows of earlier ticks and of the present tick, once it is over."""
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
        """The output for the new rows of the inputs and for the work that was deferred to this path."""

    def defer(self, path: Path, work: Any) -> None:
        """Defer work to a later path."""
        self.deferred.setdefault(path, []).append(work)
        self.pending.add(path)

    # Deferred work as batches, so that it can be sent to another process.

    def deferred_sort_key(self, inputs: Sequence[Any]) -> SortKey:
        """The sort key of batches of deferred work."""
        return SortKey(self.schema)

    @abstractmethod
    def to_batch(self, work: Any, sort_key: SortKey) -> Batch: ...

    @abstractmethod
    def from_batch(self, batch: Batch) -> Any: ...


def runs_of_equal_times(times: Int64s) -> Iterator[tuple[Path, int, int]]:
    """(path, begin, end) of each run of equal consecutive lines of `times`."""
    cuts = np.flatnonzero((times[1:] != times[:-1]).any(axis=1)) + 1
    begin = 0
    for end in [*cuts.tolist(), len(times)]:
        yield tuple(times[begin].tolist()), begin, end
        begin = end


def numbers_by_time(which: Int64s, times: Int64s) -> Iterator[tuple[Path, Int64s]]:
    """For each path in `times` the distinct numbers of `which` in the same lines, ascending."""
    if len(which):
        order = np.lexsort((which, *times.T[::-1]))
        for path, begin, end in runs_of_equal_times(times[order]):
            yield path, np.unique(which[order[begin:end]])


__all__ = [
    "Nested", "NestedArranged", "NestedSite", "NestedStateful", "NestedStateless", "Path",
    "PendingIterations", "numbers_by_time", "runs_of_equal_times",
]  # fmt: skip
