"""Distinct, and the set operations that follow from it.

A row is in the result, once, while its weight is positive: `d distinct` is +1 where the weight rises above zero and -1
where it falls to zero or below. State: the integral of the input, which is that of the arrange operator in front. Cost:
one lookup for each row of the delta.

INTERSECT and EXCEPT compare the weights of a row on two sides. With ALL the result has min(l, r) copies, or
max(l - r, 0); without, one copy where that is positive (EXCEPT: where l is positive and r is not).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import Delta, merge_or_empty
from dbspark.columnar.memory import Int64s
from dbspark.operators.operator import Arranged, Operator, State
from dbspark.trace.row_positions import row_positions
from dbspark.trace.spine import Spine

SetOperation = Literal["intersect", "intersect all", "except", "except all"]


class Distinct(Operator):
    """The set of a Z-set: every row of positive weight once. Takes a stream arranged by whole rows."""

    kind: ClassVar[str] = "distinct"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey) -> None:
        self.schema = sort_key.schema

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        given = inputs[0]
        delta = given.delta
        if not delta.rows:
            return (), Delta.empty(self.schema)
        before = weights_before(given.before, delta)
        return (), changed(delta, (before > 0).astype(np.int64), (before + delta.weights() > 0).astype(np.int64))

    def parameters(self) -> tuple[Any, ...]:
        return ()

    def label(self) -> str:
        return "distinct"


class Combine(Operator):
    """INTERSECT and EXCEPT of two streams arranged by whole rows."""

    kind: ClassVar[str] = "set-operation"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey, operation: SetOperation) -> None:
        self.schema = sort_key.schema
        self.sort_key = sort_key
        self.operation = operation

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        left, right = inputs
        rows = merge_or_empty(self.sort_key, [_ones(left.delta), _ones(right.delta)])
        if not rows.rows:
            return (), Delta.empty(self.schema)
        before = self._combined(weights_before(left.before, rows), weights_before(right.before, rows))
        after = self._combined(weights_before(left.after, rows), weights_before(right.after, rows))
        return (), changed(rows, before, after)

    def _combined(self, left: Any, right: Any) -> Any:
        left, right = np.maximum(left, 0), np.maximum(right, 0)
        if self.operation == "intersect all":
            return np.minimum(left, right)
        if self.operation == "except all":
            return np.maximum(left - right, 0)
        if self.operation == "intersect":
            return ((left > 0) & (right > 0)).astype(np.int64)
        return ((left > 0) & (right == 0)).astype(np.int64)

    def parameters(self) -> tuple[Any, ...]:
        return (self.operation,)

    def label(self) -> str:
        return self.operation


def weights_before(spine: Spine, rows: Batch) -> Int64s:
    """The weight of each row of a batch in an integral."""
    return spine.weights_of(rows) if spine.entries else np.zeros(rows.rows, np.int64)


def changed(rows: Batch, before: Int64s, after: Int64s) -> Delta:
    """The rows whose weight in the result changes, by how much."""
    change = after - before
    if not change.all():
        here = change != 0
        return Delta.of(rows.select(row_positions(rows)[here], change[here]))
    return Delta.of(rows.with_weights(change))


def _ones(batch: Batch) -> Batch:
    return batch.with_weights(np.ones(batch.rows, np.int64)) if batch.rows else batch
