"""The first rows of keys in order: top-k, LIMIT and OFFSET.

The input is arranged by key and ordered inside a key. For the keys in the delta, the first rows before the tick are
retracted and the first rows after it are inserted. One pass along the rows of a key finds both
(`kernels.aggregate.top_k`), and only rows in which they differ are gathered. Cost: limit + offset rows for every key in
the delta, however many rows the key has. Rows of weight n count n times. State: none.

A limit without an order takes the first rows of the arrangement, which depend on the rows alone.
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
from dbspark.kernels.vm import interpreter as km
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.instruction import Instruction, InstructionSite, all_columns, instruction_words
from dbspark.operators.keyed import KeyedOperator
from dbspark.operators.placement import Placed, Policy, key_of
from dbspark.trace.spine import Spine


class TopK(KeyedOperator):
    """The first rows of every key in order: rows offset … offset+limit-1."""

    kind: ClassVar[str] = "top-k"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey, limit: int, offset: int = 0) -> None:
        self.schema = sort_key.schema
        self.sort_key = sort_key
        self.limit = limit
        self.offset = offset

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        arranged = inputs[0]
        if not arranged.delta.rows or self.limit == 0:
            return (), Delta.empty(self.schema)
        schema, whole = self.schema, _with_delta(arranged)
        capacity = 2 * arranged.delta.rows  # each inserted or deleted row moves one other in or out, if weights are one
        while True:
            pos, weights = int64s(capacity), int64s(capacity)
            n = top_k_change(
                whole.directory, self.sort_key.key_nodes, schema.columns, schema.node_count, self.offset, self.limit,
                pos, weights,
            )  # fmt: skip
            if n <= capacity:
                break
            capacity = n
        if n == OVERFLOW:
            check_plan(np.array((OVERFLOW,), np.int64))
        return (), gather_delta(schema, whole.sources[0], pos[:n], weights[:n]) if n else Delta.empty(schema)

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return frozenset({key_of(self.sort_key)})

    def instruction(self, site: InstructionSite) -> Instruction:
        source, state, out, schema = site.input(), site.input_state(), site.register(), self.schema
        key = self.sort_key.key_nodes.tolist()

        def lines(retained: int) -> list[int]:
            return instruction_words(
                km.TOP_K, source, state, out, retained, self.offset, self.limit, schema.columns, schema.node_count,
                len(key), *key, *all_columns(schema),
            )  # fmt: skip

        return Instruction(lines, out)

    def parameters(self) -> tuple[Any, ...]:
        return self.limit, self.offset

    def label(self) -> str:
        return f"first {self.limit}" + (f" after {self.offset}" if self.offset else "")


def _with_delta(arranged: Arranged) -> Spine:
    """The integral before the tick with the delta as its last batch; `arranged.after` may have merged that batch."""
    before, after = arranged.before.entries, arranged.after.entries
    if len(after) == len(before) + 1 and all(map(operator.is_, after, (*before, arranged.delta))):
        return arranged.after
    return arranged.before.with_batch(arranged.delta)
