"""The first rows of keys in order: top-k, LIMIT and OFFSET.

Takes a stream arranged by key and ordered inside it. For the keys in the delta, the first rows before the tick are
taken away and the first rows after it are given. Both are found in one walk along the rows of a key
(`kernels.aggregate.top_k`), and only where they differ rows are gathered. Cost: limit + offset rows for every key
touched, however many rows it has. Rows of weight n count n times.

A limit without an order takes the rows that come first in the arrangement: some rows, always the same.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dbspark.columnar import SortKey
from dbspark.columnar.chunk import check_plan
from dbspark.columnar.delta import Delta, gather_delta
from dbspark.columnar.memory import int64s
from dbspark.kernels.aggregate.top_k import top_k_change
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.operators.operator import Arranged, Operator, State
from dbspark.trace.spine import Spine


class TopK(Operator):
    """The first rows of every key in order: rows offset … offset+limit-1."""

    kind: ClassVar[str] = "top-k"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey, limit: int, offset: int = 0) -> None:
        self.schema = sort_key.schema
        self.sort_key = sort_key
        self.limit = limit
        self.offset = offset

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        given = inputs[0]
        if not given.delta.rows or self.limit == 0:
            return (), Delta.empty(self.schema)
        schema, whole = self.schema, _with_delta(given)
        room = 2 * given.delta.rows  # a row that comes or goes moves one other, if both are of weight one
        while True:
            pos, weights = int64s(room), int64s(room)
            n = top_k_change(
                whole.directory, self.sort_key.key_nodes, schema.columns, schema.node_count, self.offset, self.limit,
                pos, weights,
            )  # fmt: skip
            if n <= room:
                break
            room = n
        if n == OVERFLOW:
            check_plan(np.array((OVERFLOW,), np.int64))
        return (), gather_delta(schema, whole.sources[0], pos[:n], weights[:n]) if n else Delta.empty(schema)

    def parameters(self) -> tuple[Any, ...]:
        return self.limit, self.offset

    def label(self) -> str:
        return f"first {self.limit}" + (f" after {self.offset}" if self.offset else "")


def _with_delta(given: Arranged) -> Spine:
    """What was there before a tick and, as one more batch, its delta: the integral after it, unless that has merged."""
    before, after = given.before.entries, given.after.entries
    if len(after) == len(before) + 1 and all(map(operator.is_, after, (*before, given.delta))):
        return given.after
    return given.before.with_batch(given.delta)
