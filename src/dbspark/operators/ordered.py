"""The first rows of keys in order: top-k, LIMIT and OFFSET.

Takes a stream arranged by key and ordered inside it. For the keys in the delta, the first rows before the tick are
taken away and the first rows after it are given; what is in both cancels. Cost: limit + offset rows for every key
touched, however many rows it has. Rows of weight n count n times.

A limit without an order takes the rows that come first in the arrangement: some rows, always the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dbspark.batch import Arrangement
from dbspark.batch.chunk import gather_columns
from dbspark.operators.delta import Delta
from dbspark.operators.join import distinct_keys
from dbspark.operators.operator import Arranged, Operator, State
from dbspark.trace.reading import Keys, ends_unordered
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
        out = [self._first(spine, keys, sign) for spine, sign in ((given.before, -1), (given.after, 1))]
        return (), Delta.sum(self.schema, out)

    def _first(self, spine: Spine, keys: Keys, sign: int) -> Delta:
        if not spine.entries:
            return Delta.empty(self.schema)
        hits = ends_unordered(spine, keys, self.limit + self.offset)
        weights = np.maximum(hits.weights, 0)
        total = np.cumsum(weights)
        begin = np.searchsorted(hits.which, hits.which)  # the first hit of the same key
        before = total - weights - np.where(begin > 0, total[np.maximum(begin - 1, 0)], 0)
        taken = np.clip(before + weights, self.offset, self.offset + self.limit)
        taken -= np.clip(before, self.offset, self.offset + self.limit)
        here = taken > 0
        columns = gather_columns(self.schema, spine.sources[0], hits.pos[here], range(self.schema.columns))
        return Delta(self.schema, columns, sign * taken[here])

    def parameters(self) -> tuple[Any, ...]:
        return self.limit, self.offset

    def label(self) -> str:
        return f"first {self.limit}" + (f" after {self.offset}" if self.offset else "")
