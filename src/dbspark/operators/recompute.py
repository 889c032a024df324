"""Groups recomputed by a function that takes all their rows: the last resort, for any deterministic function.

With F(G) the result of the function for the rows of a group G, a tick emits

    sum over the groups G in the delta of  F(G after) - F(G before)

State: none; groups are read from the arrangement in front. Cost: reading the groups in the delta and calling the
function on them, each before and after the tick. Without a key all rows are one group: then each tick recomputes the
result and emits the difference from the last result, which is its state. The function is then also called in the first
tick, because it may have a result for no rows (a global aggregate).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dbspark.columnar import SortKey
from dbspark.columnar.chunk import gather_columns
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.function import Columns, Function
from dbspark.operators.keyed import KeyedOperator
from dbspark.operators.keys import distinct_keys
from dbspark.operators.linear import fitting
from dbspark.operators.placement import ANYWHERE, TOGETHER, Placed, Policy
from dbspark.trace.lookup import Keys, first_rows_unordered
from dbspark.trace.spine import Spine
from dbspark.zset.weights import scale_batch


class RecomputeGroups(KeyedOperator):
    """Groups recomputed by a function, which takes the columns of the rows of each input.

    A row of weight n is passed n times.
    """

    kind: ClassVar[str] = "recompute-groups"
    version: ClassVar[int] = 1

    def __init__(self, inputs: Sequence[SortKey], function: Function, schema: Schema) -> None:
        self.sort_keys = tuple(inputs)
        self.function = function
        self.schema = schema
        self.whole = not self.sort_keys[0].key

    def state_sort_keys(self) -> tuple[SortKey, ...]:
        return (SortKey(self.schema),) if self.whole else ()

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        changed = any(i.delta.rows for i in inputs)
        if self.whole:
            return self._anew(state, inputs) if changed or not state[0].entries else (state, Delta.empty(self.schema))
        if not changed:
            return (), Delta.empty(self.schema)
        keys = distinct_keys(inputs[0].delta)
        out = [self._computed([_rows(s, keys)], sign) for s, sign in ((inputs[0].before, -1), (inputs[0].after, 1))]
        return (), Delta.sum(self.schema, out)

    def _anew(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        (sort_key,) = self.state_sort_keys()
        value = self._computed([_all_rows(i.after) for i in inputs], 1).sorted_by(sort_key)
        before = state[0].consolidated()
        change = [b for b in (value, scale_batch(before, -1) if before.rows else before) if b.rows]
        after = Spine(sort_key, (value,) if value.rows else ())
        return (after,), Delta.of(Spine(sort_key, tuple(change)).consolidated())

    def _computed(self, inputs_of_groups: Sequence[Columns], sign: int) -> Delta:
        if not self.whole and not len(inputs_of_groups[0][0]):
            return Delta.empty(self.schema)
        columns = fitting(self.schema, list(self.function(inputs_of_groups)), None)
        return Delta(self.schema, columns, np.full(len(columns[0]), sign, np.int64))

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return TOGETHER if self.whole else ANYWHERE

    @property
    def emits_without_input(self) -> bool:
        return self.whole

    def parameters(self) -> tuple[Any, ...]:
        return self.function, self.schema, self.sort_keys[0].key

    def label(self) -> str:
        names = self.sort_keys[0].schema.names
        what = ", ".join(names[c] for c in self.sort_keys[0].key or ())
        return f"recompute {self.function.name}" + (f" of groups by ({what})" if what else " of everything")


def _rows(spine: Spine, keys: Keys) -> Columns:
    schema = spine.sort_key.schema
    if not spine.entries:
        return [pa.array([], t) for t in schema.types]
    hits = first_rows_unordered(spine, keys, 1 << 62)
    positions = np.repeat(hits.pos, np.maximum(hits.weights, 0))
    return gather_columns(schema, spine.sources[0], positions, range(schema.columns))


def _all_rows(spine: Spine) -> Columns:
    delta = Delta.of(spine.consolidated())
    rows = np.repeat(np.arange(delta.rows), np.maximum(delta.weights, 0))
    if len(rows) == delta.rows:
        return delta.columns
    return [c.take(pa.array(rows)) for c in delta.columns]
