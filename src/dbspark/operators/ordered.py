"""The first rows of keys in order: top-k, LIMIT and OFFSET.

Takes a stream arranged by key and ordered inside it. For the keys in the delta, the first rows before the tick are
taken away and the first rows after it are given; what is in both cancels, and where it is in the same place in memory,
as most of it is, it is not even read. Cost: limit + offset rows for every key touched, however many rows it has. Rows
of weight n count n times.

A limit without an order takes the rows that come first in the arrangement: some rows, always the same.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbspark.batch import Arrangement
from dbspark.batch.memory import Int64s
from dbspark.batch.schema import Schema
from dbspark.kernels.nodes import ROW_BITS, ROW_MASK
from dbspark.operators.delta import Delta, rows_at
from dbspark.operators.join import distinct_keys
from dbspark.operators.operator import Arranged, Operator, State
from dbspark.trace.reading import Hits, Keys, ends_in, ends_unordered, ranges_of
from dbspark.trace.spine import Spine


class TopK(Operator):
    """Rows offset … offset+limit-1 of every key."""

    def __init__(self, arrangement: Arrangement, limit: int, offset: int = 0) -> None:
        self.schema = arrangement.schema
        self.arrangement = arrangement
        self.limit = limit
        self.offset = offset

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        given = inputs[0]
        if not given.delta.rows or self.limit == 0:
            return (), Delta.empty(self.schema)
        keys = distinct_keys(given.delta)
        return (), _change(self.schema, *self._found(given, keys))

    def _found(self, given: Arranged, keys: Keys) -> tuple[_Found, _Found]:
        """The first rows of some keys before a tick and after it."""
        before, after, limit = given.before, given.after, self.limit + self.offset
        if not _appended(given):
            return self._first(_ends(before, keys, limit)), self._first(_ends(after, keys, limit))
        # What was there before is there still, in the same order: it is looked up once, and read without the newest.
        ranges, total = ranges_of(after, keys)
        now = self._first(ends_in(after, keys, ranges, total, limit))
        total -= int(ranges[:, -1, 2].sum())
        ranges[:, -1, 2] = 0
        return self._first(ends_in(after, keys, ranges, total, limit)), now

    def _first(self, hits: Hits) -> _Found:
        weights = np.maximum(hits.weights, 0)
        total = np.cumsum(weights)
        begin = np.searchsorted(hits.which, hits.which)  # the first hit of the same key
        before = total - weights - np.where(begin > 0, total[np.maximum(begin - 1, 0)], 0)
        taken = np.clip(before + weights, self.offset, self.offset + self.limit)
        taken -= np.clip(before, self.offset, self.offset + self.limit)
        here = taken > 0
        return _Found(hits.spine, hits.which[here], hits.pos[here], taken[here])

    def parameters(self) -> tuple[Any, ...]:
        return self.limit, self.offset

    def label(self) -> str:
        return f"first {self.limit}" + (f" after {self.offset}" if self.offset else "")


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of a spine: for which key, where they are, and how often they count."""

    spine: Spine
    which: Int64s
    pos: Int64s
    taken: Int64s

    def places(self) -> Int64s:
        """For each row the chunk in memory, the row there, its key and its count."""
        tables = self.spine.sources[0]
        return np.stack((tables[self.pos >> ROW_BITS], self.pos & ROW_MASK, self.which, self.taken))


def _appended(given: Arranged) -> bool:
    """Whether the integral after a tick is read as that before it and then the delta, with nothing merged meanwhile."""
    before, after = given.before.batches, given.after.batches
    return len(after) == len(before) + 1 and all(map(operator.is_, after, (*before, given.delta)))


def _ends(spine: Spine, keys: Keys, limit: int) -> Hits:
    if not spine.entries:
        none = np.empty(0, np.int64)
        return Hits(spine, none, none, none)
    return ends_unordered(spine, keys, limit)


def _change(schema: Schema, before: _Found, after: _Found) -> Delta:
    """What was found before goes and what was found after comes, except what is in both."""
    keep = _in_both(before, after)
    pos = [found.pos[some] for found, some in zip((before, after), keep, strict=True)]
    if not len(pos[0]) and not len(pos[1]):
        return Delta.empty(schema)
    weights = np.concatenate((-before.taken[keep[0]], after.taken[keep[1]]))
    tables = [found.spine.sources[0] for found in (before, after)]
    places = np.concatenate((pos[0], pos[1] + (len(tables[0]) << ROW_BITS)))
    return rows_at(schema, np.concatenate(tables), places, weights)


def _in_both(before: _Found, after: _Found) -> tuple[Any, Any]:
    """Which rows of each are not in the same place in the other: those have not changed, and are not read at all."""
    keep = np.ones(len(before.pos), bool), np.ones(len(after.pos), bool)
    if not len(before.pos) or not len(after.pos):
        return keep
    places = before.places(), after.places()
    words = [(p[0] ^ (p[1] << 17)) * 0x9E3779B97F4A7C1 + p[2] for p in places]
    _, old, new = np.intersect1d(*words, return_indices=True)
    same = (places[0][:, old] == places[1][:, new]).all(axis=0)
    keep[0][old[same]] = keep[1][new[same]] = False
    return keep
