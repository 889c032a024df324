"""Distinct, INTERSECT and EXCEPT.

A row is in the result, once, while its weight is positive: `d distinct` is +1 where the weight rises above zero and -1
where it falls to zero or below. State: none; the integral of the input is that of the arrange operator in front. Cost:
one lookup for each row of the delta.

INTERSECT and EXCEPT compare the weights of a row on two sides. With ALL the result has min(l, r) copies, or
max(l - r, 0); without, one copy where that is positive (EXCEPT: where l is positive and r is not).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta, merge_or_empty
from dbspark.columnar.memory import INT64_MAX as NEVER
from dbspark.columnar.memory import Int64s, int64s
from dbspark.kernels.merge import merge_timed as kt
from dbspark.kernels.vm import interpreter as km
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.instruction import Instruction, InstructionSite, all_columns, instruction_words
from dbspark.operators.keyed import KeyedOperator
from dbspark.operators.nested import Nested, NestedArranged, NestedSite, NestedStateful, Path, numbers_by_time
from dbspark.operators.placement import Placed, Policy, whole_row
from dbspark.trace.row_positions import row_positions
from dbspark.trace.spine import Spine

SetOperation = Literal["intersect", "intersect all", "except", "except all"]


class Distinct(KeyedOperator):
    """Every row of positive weight once. The input is arranged by whole rows."""

    kind: ClassVar[str] = "distinct"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey) -> None:
        self.schema = sort_key.schema

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        arranged = inputs[0]
        delta = arranged.delta
        if not delta.rows:
            return (), Delta.empty(self.schema)
        before = weights_before(arranged.before, delta)
        return (), changed(delta, (before > 0).astype(np.int64), (before + delta.weights() > 0).astype(np.int64))

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return frozenset({whole_row(self.schema)})

    def nested(self, site: NestedSite) -> Nested:
        return NestedDistinct(self.schema, site.pending)

    def instruction(self, site: InstructionSite) -> Instruction:
        source, state, out, schema = site.input(), site.input_state(), site.register(), self.schema

        def lines(retained: int) -> list[int]:
            columns = all_columns(schema)
            return instruction_words(
                km.DISTINCT, source, state, out, retained, schema.columns, schema.node_count, *columns
            )

        return Instruction(lines, out, passes=site.inputs)

    def parameters(self) -> tuple[Any, ...]:
        return ()

    def label(self) -> str:
        return "distinct"


class NestedDistinct(NestedStateful):
    """Distinct inside a fixpoint: a reduction whose keys are whole rows, so it reads only weights. Deferred work: rows
    to evaluate again."""

    def to_batch(self, work: Batch, sort_key: SortKey) -> Batch:
        return work

    def from_batch(self, batch: Batch) -> Batch:
        return batch

    def evaluate(self, path: Path, inputs: Sequence[NestedArranged], deferred: list[Batch]) -> Delta:
        arranged = inputs[0]
        if arranged.delta.rows:
            deferred.append(arranged.rows)
        rows = deferred[0] if len(deferred) == 1 else merge([_with_ones(b) for b in deferred])
        spine = arranged.after()
        change = int64s(rows.rows)
        following = np.full(rows.rows, NEVER, np.int64)
        at = 0
        for chunk in rows.chunks:
            end = at + chunk.rows
            which, times = self._presence_changes(spine, arranged.old, chunk, path, change[at:end], following[at:end])
            for later, numbers in numbers_by_time(which, times):
                self.defer(later, _with_ones(rows.select(row_positions(rows)[at:end][numbers])))
            at = end
        if following.min() < NEVER:
            where = row_positions(rows)
            for iteration in np.unique(following).tolist():
                if iteration != NEVER:
                    again = _with_ones(rows.select(where[following == iteration]))
                    self.defer((*path[:-1], iteration), again)
        if change.all():  # the common case in recursions: the presence of every row changes
            return Delta.of(rows if np.array_equal(change, rows.weights()) else rows.with_weights(change))
        here = np.flatnonzero(change)
        if not len(here):
            return Delta.empty(self.schema)
        return Delta.of(rows.select(row_positions(rows)[here], change[here]))

    def _presence_changes(
        self, spine: Spine, old: int, chunk: Any, path: Path, change: Int64s, following: Int64s
    ) -> tuple[Int64s, Int64s]:
        """Fill `change` and `following`; returns rows, and the paths in later outer iterations at which to evaluate
        them."""
        capacity, depth = 0 if len(path) == 1 else 2 * chunk.rows, len(path)
        time = np.array(path, np.int64)
        spine.stats.record_lookups(chunk.rows)
        while True:
            which, later = int64s(capacity), int64s(capacity * depth).reshape(capacity, depth)
            found = kt.presence_changes(
                *spine.sources, old, chunk.table, chunk.rows, self.schema.columns, self.schema.node_count,
                time, depth, change, following, which, later,
            )  # fmt: skip
            if found <= capacity:
                return which[:found], later[:found]
            capacity = found


class SetOperator(KeyedOperator):
    """INTERSECT and EXCEPT of two streams arranged by whole rows."""

    kind: ClassVar[str] = "set-operation"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey, operation: SetOperation) -> None:
        self.schema = sort_key.schema
        self.sort_key = sort_key
        self.operation = operation

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        left, right = inputs
        rows = merge_or_empty(self.sort_key, [_with_ones(left.delta), _with_ones(right.delta)])
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

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return frozenset({whole_row(self.schema)})

    def parameters(self) -> tuple[Any, ...]:
        return (self.operation,)

    def label(self) -> str:
        return self.operation


def weights_before(spine: Spine, rows: Batch) -> Int64s:
    """The weight of each row of `rows` in an integral before the tick."""
    return spine.weights_of(rows) if spine.entries else np.zeros(rows.rows, np.int64)


def changed(rows: Batch, before: Int64s, after: Int64s) -> Delta:
    """The delta of the result: rows whose weight changes, weighted by the change."""
    change = after - before
    if not change.all():
        here = change != 0
        return Delta.of(rows.select(row_positions(rows)[here], change[here]))
    return Delta.of(rows.with_weights(change))


def _with_ones(batch: Batch) -> Batch:
    return batch.with_weights(np.ones(batch.rows, np.int64)) if batch.rows else batch
