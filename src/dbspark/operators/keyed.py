"""Keyed operators: the output for a key is a function of the rows of that key, and of no others.

Inside a fixpoint such an operator is evaluated for the keys in the delta, at every path at which these have rows
(`dbspark.operators.nested` has the formula).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.chunk import gather_columns
from dbspark.columnar.delta import Delta
from dbspark.operators.arranged import Arranged
from dbspark.operators.keys import distinct_keys, keys_at, keys_of, union_of_keys
from dbspark.operators.nested import (
    Nested,
    NestedArranged,
    NestedSite,
    NestedStateful,
    Path,
    PendingIterations,
    numbers_by_time,
)
from dbspark.operators.operator import Operator
from dbspark.operators.placement import Key, Placed, Policy
from dbspark.trace.lookup import FoundRows, Keys, key_columns, probe
from dbspark.trace.spine import Spine


class KeyedOperator(Operator):
    """An operator over arranged streams whose output for a key is a function of the rows of that key.

    On shards its inputs are placed by key already, as they are arranged; inside a fixpoint it is a `NestedReduce`.
    """

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        return [None] * len(inputs)

    def nested_traces(self) -> dict[str, SortKey]:
        return {}

    def nested(self, site: NestedSite) -> Nested:
        return NestedReduce(self, site.pending)


class NestedReduce(NestedStateful):
    """A keyed operator inside a fixpoint. Its deferred work is keys to evaluate again."""

    def __init__(self, operator: Operator, pending: PendingIterations, deltas: int = 0) -> None:
        """`deltas`: the operator takes this many of its inputs, from the first on, as deltas, and the others
        arranged."""
        super().__init__(operator.schema, pending)
        self.operator = operator
        self._deltas = deltas

    def deferred_sort_key(self, inputs: Sequence[Any]) -> SortKey:
        sort_key = inputs[0].sort_key
        return SortKey(sort_key.schema.select(key_columns(sort_key)))

    def to_batch(self, work: Keys, sort_key: SortKey) -> Batch:
        return Delta(sort_key.schema, work.chunk.arrays(), np.ones(len(work), np.int64)).sorted_by(sort_key)

    def from_batch(self, batch: Batch) -> Keys:
        return keys_of(batch.schema, Delta.of(batch).columns, batch.rows)

    def evaluate(self, path: Path, inputs: Sequence[NestedArranged], deferred: list[Keys]) -> Delta:
        keys = union_of_keys([*deferred, *(distinct_keys(i.rows) for i in inputs if i.delta.rows)])
        found = [_KeyRows(i, keys, path) for i in inputs]
        which = np.concatenate([f.hits.which[f.later] for f in found])
        times = np.concatenate([f.times[f.later] for f in found])
        for later, rows in numbers_by_time(which, times):
            self.defer(later, keys_at(keys, rows))
        values: list[Delta] = []
        for corner in range(1 << len(path)):
            if any(corner >> c & 1 and not p for c, p in enumerate(path)):
                continue  # there is no iteration before the first: the term is zero
            for old in (False, True):
                result = self._value(found, corner, old)
                if result.rows:
                    sign = (-1) ** (corner.bit_count() + old)
                    values.append(Delta(result.schema, result.columns, sign * result.weights))
        return Delta.sum(self.schema, values)

    def _value(self, found: Sequence[_KeyRows], corner: int, old: bool) -> Delta:
        arranged_inputs: list[Any] = []
        for number, rows in enumerate(found):
            delta = rows.upto(corner, old)
            if number < self._deltas:
                arranged_inputs.append(delta)
            else:
                sort_key = rows.sort_key
                batch = delta.sorted_by(sort_key)
                spine = Spine(sort_key, (batch,) if batch.rows else ())
                arranged_inputs.append(Arranged(batch, Spine(sort_key), spine))
        _, out = self.operator.step(self.operator.initial_state(), arranged_inputs)
        result: Delta = out
        return result


class _KeyRows:
    """The rows of some keys, and how their paths compare with the present path."""

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
        """The rows at or before a corner of the cube below the present path; with `old` only those of earlier ticks.

        Bit c of `corner` says that coordinate c is one less than in the present path.
        """
        here = ~self.later & (self._equal & corner == 0)
        if old:
            here &= self.old
        hits, schema = self.hits, self.sort_key.schema
        columns = gather_columns(schema, hits.spine.sources[0], hits.pos[here], range(schema.columns))
        return Delta(schema, columns, hits.weights[here])


__all__ = ["KeyedOperator", "NestedReduce"]
