"""Operators inside fixpoints, where a stream has a value for every iteration of every tick.

A *path* says where an iteration stands: the iteration of each fixpoint around, the innermost last. What flows at a path
is a change of a change: by how much the tick changes what this iteration added. So an integral is a sum over all paths
that are not later in any coordinate *and* over ticks. All earlier ticks are as good as one: their rows are kept in one
spine, each at the time that is its path (a trace at times (tick, path), compacted to the present tick). The present
tick's rows are kept beside it until the tick is over.

*Join.* Rows of paths p and q meet at their join, the maximum in each coordinate. A new row probes the past, and the
present tick so far, once; what it meets at a later path waits for it. Cost: the matches of what is new.

*Reduce*: any operator that treats keys apart. The keys of new rows are judged at the path where they come, and at the
join of that with every path at which they have rows, because there the past has to be corrected. With one coordinate
the result at i is

    f(new up to i) - f(new up to i-1) - f(old up to i) + f(old up to i-1)

for the rows of those keys, and with more the difference is taken in each of them: of every corner of the cube between
p-1 and p, with the sign of how many coordinates are one less. Cost: the rows of the touched keys, at each path at which
they are touched, times the corners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.chunk import gather_columns
from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import INT64_MAX as NEVER
from dbspark.columnar.memory import Int64s, int64s
from dbspark.columnar.schema import Schema
from dbspark.kernels.merge import merge_timed as kt
from dbspark.operators.join import Join, distinct_keys, keys_at, keys_of, pair_weights, union_of_keys
from dbspark.operators.operator import Arranged, Operator
from dbspark.trace.config import SpineConfig
from dbspark.trace.lookup import FoundRows, Keys, key_columns, probe
from dbspark.trace.row_positions import row_positions
from dbspark.trace.spine import Spine

Path = tuple[int, ...]

PRESENT = SpineConfig(min_space_share=float("inf"), max_space_share=float("inf"))
"""Of the rows of the present tick: they are read for a few iterations only, too few for merges that only save space."""


class Agenda:
    """The iterations for which something waits, of one fixpoint in one tick."""

    def __init__(self, parent: Agenda | None = None) -> None:
        """`parent`: the agenda of the fixpoint around, whose iterations have to come for these to come."""
        self.parent = parent
        self._waiting: dict[Path, set[int]] = {}

    def add(self, path: Path) -> None:
        waiting = self._waiting.setdefault(path[:-1], set())
        if path[-1] not in waiting:
            waiting.add(path[-1])
            if self.parent is not None:
                self.parent.add(path[:-1])

    def next(self, outer: Path, after: int) -> int | None:
        """The first iteration, within those outside, that is later than one and for which something waits."""
        return min((i for i in self._waiting.get(outer, ()) if i > after), default=None)


class NestedArranged:
    """A stream inside a fixpoint in the order of an arrangement: the past, the present tick so far, and what is new."""

    def __init__(self, past: Spine) -> None:
        self.past = past
        self.sort_key = past.sort_key
        self.old = len(past.batches)
        """How many of the batches of what is to be read are the past."""
        self._none = self.rows = self.delta = Batch.empty(past.sort_key)
        """Rows of this iteration, without their time and with it."""
        self._present = Spine(past.sort_key, config=PRESENT)
        """Rows of the present tick before this iteration, but for those that nobody has asked for yet."""
        self._unread: list[Batch] = []
        self._before: Spine | None = past
        self._after: tuple[Spine, Spine] | None = None

    def advance(self, path: Path, inputs: Sequence[Delta]) -> NestedArranged:
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
        """Take up the present tick where `present` has left it."""
        self._present = Spine(self.sort_key, tuple(batches), PRESENT)
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


class Nested(ABC):
    """An operator with state inside a fixpoint, for one tick."""

    def __init__(self, schema: Schema, agenda: Agenda) -> None:
        self.schema = schema
        self._nothing = Delta.empty(schema)
        self.agenda = agenda
        self.waiting: dict[Path, list[Any]] = {}
        """What to take up at later paths."""

    def step(self, path: Path, inputs: Sequence[NestedArranged]) -> Delta:
        """What goes out at a path."""
        waiting = self.waiting.pop(path, None)
        if waiting is None:
            for given in inputs:
                if given.delta.rows:
                    break
            else:
                return self._nothing
        return self.judged(path, inputs, waiting or [])

    @abstractmethod
    def judged(self, path: Path, inputs: Sequence[NestedArranged], waiting: list[Any]) -> Delta:
        """What goes out for what has come and for what was put off until this path."""

    def put_off(self, path: Path, what: Any) -> None:
        """Take something up at a later path."""
        self.waiting.setdefault(path, []).append(what)
        self.agenda.add(path)

    # What waits can be put away as batches and taken up from them, by another process.

    def waits_in(self, inputs: Sequence[NestedArranged]) -> SortKey:
        """The order of such batches."""
        return SortKey(self.schema)

    @abstractmethod
    def put_away(self, what: Any, sort_key: SortKey) -> Batch: ...

    @abstractmethod
    def taken_up(self, batch: Batch) -> Any: ...


class NestedJoin(Nested):
    """An inner join; what waits is output."""

    def __init__(self, join: Join, agenda: Agenda) -> None:
        super().__init__(join.schema, agenda)
        self.join = join

    def put_away(self, what: Delta, sort_key: SortKey) -> Batch:
        return what.sorted_by(sort_key)

    def taken_up(self, batch: Batch) -> Delta:
        return Delta.of(batch)

    def judged(self, path: Path, inputs: Sequence[NestedArranged], waiting: list[Delta]) -> Delta:
        left, right = inputs
        out = waiting
        if left.delta.rows:
            out += self._met(path, 0, left.rows, right.after())
        if right.delta.rows:
            out += self._met(path, 1, right.rows, left.before())
        return Delta.sum(self.schema, out)

    def _met(self, path: Path, side: int, rows: Batch, spine: Spine) -> list[Delta]:
        quick = self.join.met(side, rows, spine, path)
        if quick is not None:
            return self._sorted(path, *quick)
        now: list[Delta] = []
        time, depth = np.array(path, np.int64), len(path)
        for chunk, which, hits in self.join.pairs(side, rows, spine):
            pairs = self.join.output(side, chunk, which, hits, pair_weights(chunk, hits))
            times = int64s(len(hits) * depth).reshape(-1, depth)
            later = kt.join_times(spine.sources[0], hits.pos, time, depth, times)
            now += self._sorted(path, pairs, times if later else None)
        return now

    def _sorted(self, path: Path, pairs: Delta, times: Int64s | None) -> list[Delta]:
        """The pairs of this path; those of other paths are put off."""
        if times is None:
            return [pairs]
        now: list[Delta] = []
        order = np.lexsort(times.T[::-1])
        taken = pa.array(order)
        columns, weights = [c.take(taken) for c in pairs.columns], pairs.weights[order]
        for at, begin, end in _runs(times[order]):
            some = Delta(self.schema, [c.slice(begin, end - begin) for c in columns], weights[begin:end])
            if at == path:
                now.append(some)
            else:
                self.put_off(at, some)
        return now


class NestedDistinct(Nested):
    """Distinct: the reduction for single rows, which needs only sums. What waits is rows to judge."""

    def put_away(self, what: Batch, sort_key: SortKey) -> Batch:
        return what

    def taken_up(self, batch: Batch) -> Batch:
        return batch

    def judged(self, path: Path, inputs: Sequence[NestedArranged], waiting: list[Batch]) -> Delta:
        given = inputs[0]
        if given.delta.rows:
            waiting.append(given.rows)
        rows = waiting[0] if len(waiting) == 1 else merge([_ones(b) for b in waiting])
        spine = given.after()
        change = int64s(rows.rows)
        following = np.full(rows.rows, NEVER, np.int64)
        at = 0
        for chunk in rows.chunks:
            end = at + chunk.rows
            which, times = self._judge(spine, given.old, chunk, path, change[at:end], following[at:end])
            for later, some in _by_time(which, times):
                self.put_off(later, _ones(rows.select(row_positions(rows)[at:end][some])))
            at = end
        if following.min() < NEVER:
            where = row_positions(rows)
            for iteration in np.unique(following).tolist():
                if iteration != NEVER:
                    again = _ones(rows.select(where[following == iteration]))
                    self.put_off((*path[:-1], iteration), again)
        if change.all():  # as it is for most rows of most recursions
            return Delta.of(rows if np.array_equal(change, rows.weights()) else rows.with_weights(change))
        here = np.flatnonzero(change)
        if not len(here):
            return Delta.empty(self.schema)
        return Delta.of(rows.select(row_positions(rows)[here], change[here]))

    def _judge(
        self, spine: Spine, old: int, chunk: Any, path: Path, change: Int64s, following: Int64s
    ) -> tuple[Int64s, Int64s]:
        """Fill `change` and `following`; returns rows and the paths, of later outer iterations, to judge them at."""
        room, depth = 0 if len(path) == 1 else 2 * chunk.rows, len(path)
        time = np.array(path, np.int64)
        spine.stats.record_lookups(chunk.rows)
        while True:
            which, later = int64s(room), int64s(room * depth).reshape(room, depth)
            found = kt.presence_changes(
                *spine.sources, old, chunk.table, chunk.rows, self.schema.columns, self.schema.node_count,
                time, depth, change, following, which, later,
            )  # fmt: skip
            if found <= room:
                return which[:found], later[:found]
            room = found


def _ones(batch: Batch) -> Batch:
    return batch.with_weights(np.ones(batch.rows, np.int64))


class NestedReduce(Nested):
    """An operator that treats keys apart; what waits is keys to judge."""

    def __init__(self, operator: Operator, plain: Sequence[bool], agenda: Agenda) -> None:
        """`plain`: which inputs the operator takes as deltas rather than arranged."""
        super().__init__(operator.schema, agenda)
        self.operator = operator
        self.plain = plain

    def waits_in(self, inputs: Sequence[NestedArranged]) -> SortKey:
        sort_key = inputs[0].sort_key
        return SortKey(sort_key.schema.select(key_columns(sort_key)))

    def put_away(self, what: Keys, sort_key: SortKey) -> Batch:
        return Delta(sort_key.schema, what.chunk.arrays(), np.ones(len(what), np.int64)).sorted_by(sort_key)

    def taken_up(self, batch: Batch) -> Keys:
        return keys_of(batch.schema, Delta.of(batch).columns, batch.rows)

    def judged(self, path: Path, inputs: Sequence[NestedArranged], waiting: list[Keys]) -> Delta:
        keys = union_of_keys([*waiting, *(distinct_keys(i.rows) for i in inputs if i.delta.rows)])
        found = [_Found(i, keys, path) for i in inputs]
        which = np.concatenate([f.hits.which[f.later] for f in found])
        times = np.concatenate([f.times[f.later] for f in found])
        for later, some in _by_time(which, times):
            self.put_off(later, keys_at(keys, some))
        values: list[Delta] = []
        for corner in range(1 << len(path)):
            if any(corner >> c & 1 and not p for c, p in enumerate(path)):
                continue  # nothing is before the first iteration
            for old in (False, True):
                result = self._value(found, corner, old)
                if result.rows:
                    sign = (-1) ** (corner.bit_count() + old)
                    values.append(Delta(result.schema, result.columns, sign * result.weights))
        return Delta.sum(self.schema, values)

    def _value(self, found: Sequence[_Found], corner: int, old: bool) -> Delta:
        given: list[Any] = []
        for rows, plain in zip(found, self.plain, strict=True):
            delta = rows.upto(corner, old)
            if plain:
                given.append(delta)
            else:
                sort_key = rows.sort_key
                batch = delta.sorted_by(sort_key)
                spine = Spine(sort_key, (batch,) if batch.rows else ())
                given.append(Arranged(batch, Spine(sort_key), spine))
        _, out = self.operator.step(self.operator.fresh(), given)
        result: Delta = out
        return result


class _Found:
    """The rows of some keys, and how their paths lie to the present one."""

    def __init__(self, arranged: NestedArranged, keys: Keys, path: Path) -> None:
        self.sort_key = arranged.sort_key
        spine = arranged.after()
        self.hits: FoundRows = probe(spine, keys)
        self.old = self.hits.pos < int(spine.sources[3][arranged.old]) << 32
        times = np.stack([self.hits.times(c) for c in range(len(path))], 1)
        here = np.array(path, np.int64)
        self.later = (times > here).any(axis=1)
        self.times = np.maximum(times, here)
        """The join of each row's path with the present one."""
        self._equal = ((times == here) << np.arange(len(path))).sum(axis=1)

    def upto(self, corner: int, old: bool) -> Delta:
        """The rows up to a corner of the cube before the present path, of the past only or of all."""
        here = ~self.later & (self._equal & corner == 0)
        if old:
            here &= self.old
        hits, schema = self.hits, self.sort_key.schema
        columns = gather_columns(schema, hits.spine.sources[0], hits.pos[here], range(schema.columns))
        return Delta(schema, columns, hits.weights[here])


def _runs(times: Int64s) -> Iterator[tuple[Path, int, int]]:
    """(path, begin, end) of the runs of equal lines."""
    cuts = np.flatnonzero((times[1:] != times[:-1]).any(axis=1)) + 1
    begin = 0
    for end in [*cuts.tolist(), len(times)]:
        yield tuple(times[begin].tolist()), begin, end
        begin = end


def _by_time(which: Int64s, times: Int64s) -> Iterator[tuple[Path, Int64s]]:
    """For each path the numbers that stand beside it, once each, in order."""
    if len(which):
        order = np.lexsort((which, *times.T[::-1]))
        for path, begin, end in _runs(times[order]):
            yield path, np.unique(which[order[begin:end]])


__all__ = ["Agenda", "Nested", "NestedArranged", "NestedDistinct", "NestedJoin", "NestedReduce", "Path"]
