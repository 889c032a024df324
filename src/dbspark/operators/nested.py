"""Operators inside a fixpoint, where a stream has a value for every iteration of every tick.

What flows in iteration i of a tick is a change of a change: by how much the tick changes what iteration i added. So an
integral is a sum over iterations up to i *and* over ticks. All earlier ticks are as good as one: their rows are kept in
one spine, each at the time that is its iteration (a trace at times (tick, iteration), compacted to the present
tick). The present tick's rows are kept beside it until the tick is over.

*Join.* Rows of iterations i and j meet in iteration max(i, j). A new row probes the past once; what it meets in a later
iteration waits for it. Cost: the matches of what is new.

*Reduce*: any operator that treats keys apart. The keys of new rows are judged in the iteration in which they come, and
in every later one in which the past has rows of them, because there the past has to be corrected: the result at i is

    f(new up to i) - f(new up to i-1) - f(old up to i) + f(old up to i-1)

for the rows of those keys. Cost: the rows of the touched keys, in each iteration in which they are touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dbspark.batch import Arrangement, Batch, merge
from dbspark.batch.batch import INT64_MAX as NEVER
from dbspark.batch.chunk import gather_columns
from dbspark.batch.memory import Int64s
from dbspark.batch.schema import Schema
from dbspark.kernels import nodes as nd
from dbspark.kernels import timed as kt
from dbspark.operators.delta import Delta
from dbspark.operators.join import Join, distinct_keys, keys_at, pair_weights, union_of_keys
from dbspark.operators.linear import filtered
from dbspark.operators.operator import Arranged, Operator
from dbspark.trace.reading import Hits, Keys, probe, ranges_of
from dbspark.trace.spine import Spine, row_positions


class NestedArranged:
    """A stream inside a fixpoint in the order of an arrangement: the past, the present tick so far, and what is new."""

    def __init__(self, past: Spine) -> None:
        self.past = past
        self.arrangement = past.arrangement
        self.present = Spine(past.arrangement)
        """Rows of the present tick before this iteration."""
        self.delta = Batch.empty(past.arrangement)
        """Rows of this iteration."""
        self._so_far = self.present

    def advance(self, iteration: int, delta: Delta) -> None:
        """To the next iteration, with its rows."""
        self.present = self._so_far
        rows = delta.arranged(self.arrangement) if delta.rows else self.delta
        self.delta = rows.at_time((iteration,)) if delta.rows and rows.rows else Batch.empty(self.arrangement)
        self._so_far = self.present.insert(self.delta)

    def so_far(self) -> Spine:
        """Rows of the present tick, those of this iteration included."""
        return self._so_far

    def committed(self) -> Spine:
        """The past once the tick is over."""
        present = self.so_far()
        return self.past.insert(present.consolidated()) if present.entries else self.past


class NestedJoin:
    """An inner join inside a fixpoint, for one tick."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.waiting: dict[int, list[Delta]] = {}
        """Output of later iterations."""

    def step(self, iteration: int, inputs: Sequence[NestedArranged]) -> Delta:
        left, right = inputs
        out = self.waiting.pop(iteration, [])
        for side, mine, other in ((0, left, right), (1, right, left)):
            if not mine.delta.rows:
                continue
            out += self._met(iteration, side, mine.delta, other.past)
            out += self._met(iteration, side, mine.delta, other.so_far() if side == 0 else other.present)
        return Delta.sum(self.join.schema, out)

    def _met(self, iteration: int, side: int, delta: Batch, spine: Spine) -> list[Delta]:
        now: list[Delta] = []
        for chunk, which, hits in self.join.pairs(side, delta, spine):
            pairs = self.join.output(side, chunk, which, hits, pair_weights(chunk, hits))
            times = np.maximum(hits.times(), iteration)
            for time in np.unique(times).tolist():
                here = times == time
                some = pairs if here.all() else filtered(pairs, here)
                (now if time == iteration else self.waiting.setdefault(time, [])).append(some)
        return now

    def due(self) -> int | None:
        """The last iteration for which something waits."""
        return max(self.waiting, default=None)


class NestedDistinct:
    """Distinct inside a fixpoint, for one tick: the reduction above for single rows, which needs only sums."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.arrangement = Arrangement(schema)
        self.waiting: dict[int, list[Batch]] = {}
        """Rows to judge in later iterations."""

    def step(self, iteration: int, inputs: Sequence[NestedArranged]) -> Delta:
        given = inputs[0]
        touched = self.waiting.pop(iteration, [])
        if given.delta.rows:
            touched.append(given.delta.at_time(()))
        if not touched:
            return Delta.empty(self.schema)
        rows = touched[0] if len(touched) == 1 else merge([_ones(b) for b in touched])
        now, before, following = self._sums(given.past, rows, iteration)
        more, more_before, _ = self._sums(given.so_far(), rows, iteration)
        later = following < NEVER
        if later.any():
            where = row_positions(rows)
            for time in np.unique(following[later]).tolist():
                self.waiting.setdefault(time, []).append(_ones(rows.select(where[following == time])))
        change = (now + more > 0).astype(np.int64) - (before + more_before > 0)
        change -= (now > 0).astype(np.int64) - (before > 0)
        here = np.flatnonzero(change)
        if not len(here):
            return Delta.empty(self.schema)
        return Delta.of(rows.select(row_positions(rows)[here], change[here]))

    def _sums(self, spine: Spine, rows: Batch, iteration: int) -> tuple[Int64s, Int64s, Int64s]:
        """For each row its weight up to an iteration, before it, and its next iteration."""
        upto, before = np.zeros(rows.rows, np.int64), np.zeros(rows.rows, np.int64)
        following = np.full(rows.rows, NEVER, np.int64)
        if spine.entries:
            at = 0
            for chunk in rows.chunks:
                keys = Keys(chunk, chunk.lane(nd.KEY), self.arrangement.key_nodes)
                ranges, total = ranges_of(spine, keys)
                end = at + chunk.rows
                if total:
                    kt.sums_around(
                        spine.sources[0], spine.sources[1], ranges, chunk.table, self.schema.columns,
                        self.schema.node_count, iteration, upto[at:end], before[at:end], following[at:end],
                    )  # fmt: skip
                at = end
        return upto, before, following

    def due(self) -> int | None:
        return max(self.waiting, default=None)


def _ones(batch: Batch) -> Batch:
    return batch.with_weights(np.ones(batch.rows, np.int64))


class NestedReduce:
    """An operator that treats keys apart, inside a fixpoint, for one tick."""

    def __init__(self, operator: Operator, plain: Sequence[bool]) -> None:
        """`plain`: which inputs the operator takes as deltas rather than arranged."""
        self.operator = operator
        self.plain = plain
        self.waiting: dict[int, list[Keys]] = {}
        """Keys to judge in later iterations."""

    def step(self, iteration: int, inputs: Sequence[NestedArranged]) -> Delta:
        touched = self.waiting.pop(iteration, [])
        new = [distinct_keys(i.delta) for i in inputs if i.delta.rows]
        if not touched and not new:
            return Delta.empty(self.operator.schema)
        keys = union_of_keys([*touched, *new])
        found = [(probe(i.past, keys), probe(i.so_far(), keys)) for i in inputs]
        self._schedule(iteration, keys, [past for past, _ in found])
        values: list[Delta] = []
        for sign, upto, with_new in ((1, iteration, True), (-1, iteration - 1, True),
                                     (-1, iteration, False), (1, iteration - 1, False)):  # fmt: skip
            result = self._value(found, inputs, upto, with_new)
            if result.rows:
                values.append(Delta(result.schema, result.columns, sign * result.weights))
        return Delta.sum(self.operator.schema, values)

    def _schedule(self, iteration: int, keys: Keys, past: Sequence[Hits]) -> None:
        """The keys have to be judged again wherever they have rows later on."""
        later: dict[int, list[Int64s]] = {}
        for hits in past:
            times = hits.times()
            for time in np.unique(times[times > iteration]).tolist():
                later.setdefault(time, []).append(np.unique(hits.which[times == time]))
        for time, which in later.items():
            self.waiting.setdefault(time, []).append(keys_at(keys, np.unique(np.concatenate(which))))

    def _value(
        self, found: Sequence[tuple[Hits, Hits]], inputs: Sequence[NestedArranged], upto: int, with_new: bool
    ) -> Delta:
        given: list[Any] = []
        for (past, present), arranged, plain in zip(found, inputs, self.plain, strict=True):
            parts = [_upto(past, upto)] + ([_upto(present, upto)] if with_new else [])
            rows = Delta.sum(arranged.arrangement.schema, parts)
            if plain:
                given.append(rows)
            else:
                batch = rows.arranged(arranged.arrangement)
                spine = Spine(arranged.arrangement, (batch,) if batch.rows else ())
                given.append(Arranged(batch, Spine(arranged.arrangement), spine))
        _, out = self.operator.step(self.operator.fresh(), given)
        result: Delta = out
        return result

    def due(self) -> int | None:
        return max(self.waiting, default=None)


def _upto(hits: Hits, iteration: int) -> Delta:
    """The rows of the iterations up to one, without their times."""
    schema = hits.spine.arrangement.schema
    here = hits.times() <= iteration
    pos = hits.pos[here]
    return Delta(schema, gather_columns(schema, hits.spine.sources[0], pos, range(schema.columns)), hits.weights[here])


__all__ = ["NestedArranged", "NestedDistinct", "NestedJoin", "NestedReduce"]
