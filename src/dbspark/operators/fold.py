"""Aggregates that only add (counts, sums and averages of integers and decimals), a tick in few calls.

The general way (`dbspark.operators.aggregate`) asks each aggregate for its new columns and puts rows of state together
from them, as Arrow arrays: right for all of them, and some fifty calls for a tick of a hundred rows. Where all
aggregates of an operator only add, one kernel groups, finds and adds (`kernels.aggregate.accumulators`), and the rows
of state that go and come are gathered from where they are. One of the aggregates may be min or max: its value is
gathered as the key is. What comes out is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dbspark.columnar import SortKey
from dbspark.columnar import sort_key as hashing
from dbspark.columnar.chunk import Chunk, gather_pairs
from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import allocate, int64s
from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError
from dbspark.kernels.aggregate import accumulators as kf
from dbspark.kernels.memory import layout as nd
from dbspark.operators.operator import Arranged
from dbspark.trace.spine import Spine

Addition = tuple[int, int | None, int | None]
"""COUNT or SUM, of which column (None: of rows), of which rows (a boolean column; None: all); LEAST or GREATEST."""


class Fold:
    """How an operator folds deltas into its rows of state."""

    def __init__(self, key: Sequence[int], source: Schema, state: SortKey, additions: Sequence[Addition]) -> None:
        self._state = state
        self._key = tuple(key)
        self._key_schema = source.select(key)
        self._source = source
        self.key_nodes = np.array([nd.LANES + c for c in key], np.int64)
        self.state_keys = np.arange(nd.LANES, nd.LANES + len(key))
        self.count = nd.LANES + len(key)
        self.nodes = max(source.node_count, state.schema.node_count)
        schema = state.schema
        self.origins = np.zeros((schema.columns, 2), np.int64)
        self.origins[len(key) :, 0] = 1
        self.origins[:, 1] = np.arange(nd.LANES, nd.LANES + schema.columns)
        folds, self.described = [], [(self.count, 0)]
        self.value = np.empty(0, np.int64)
        node, word = self.count + 1, 1
        for what, column, where in additions:
            if what in (kf.LEAST, kf.GREATEST):
                assert column is not None
                self.value = np.array((nd.LANES + column, node, what == kf.GREATEST), np.int64)
                self.origins[node - nd.LANES, 0] = 0
                node += 1
                continue
            given = (-1 if c is None else nd.LANES + c for c in (column, where))
            folds.append((what, *given, node, word))
            self.described.append((node, word))
            if what == kf.SUM:
                self.described.append((node + 1, word + 2))
            node, word = node + (1 + (what == kf.SUM)), word + (3 if what == kf.SUM else 1)
        self.folds = np.array(folds, np.int64).reshape(-1, 5)
        self.words = word

    @staticmethod
    def possible(additions: Sequence[Addition]) -> bool:
        """Whether one kernel can do them all: one of them at most is a least or greatest value."""
        return sum(what in (kf.LEAST, kf.GREATEST) for what, _, _ in additions) <= 1

    def step(self, delta: Delta, spine: Spine, arranged: Sequence[Arranged]) -> Delta | None:
        """The rows of state that go, and those that come; None where this way does not do.

        Where there is an arrangement, that is by its value, the delta is in its order. Weights that are too large, rows
        that are less than none and deltas of many chunks are left to the general way.
        """
        tables, more, more_chunks, leads = spine.sources[0], 0, 0, np.empty((0, 0), np.int64)
        if arranged:
            chunks = arranged[0].delta.chunks
            if len(chunks) != 1:
                return None
            chunk = chunks[0]
            more, more_chunks = arranged[0].after.directory, len(arranged[0].after.sources[0])
            leads = np.empty((more_chunks + 1, self._state.schema.node_count * nd.FIELDS), np.int64)
        else:
            chunk = delta.chunk()
        rows, used = chunk.rows, np.zeros(1, np.int64)
        acc = int64s(self.words * rows)
        key_pos, acc_pos, weights = int64s(2 * rows), int64s(2 * rows), int64s(2 * rows)
        n = kf.update_accumulators(
            chunk.table, rows, self.key_nodes, hashing._mask, spine.directory, len(tables), self.state_keys,
            self._state.schema.columns, self.nodes, self.count, self.folds, acc, key_pos, acc_pos, weights,
            self.value, self._source.columns, more, more_chunks, leads, used,
        )  # fmt: skip
        if n == kf.FALL_BACK:
            return None
        if n == kf.SUM_OVERFLOW:
            raise DbsparkError("a sum is beyond 38 digits, which no decimal holds; nothing was applied")
        keys = chunk.select(self._key, self._key_schema)
        leading = leads.ctypes.data + leads.strides[0] * np.arange(used[0]) if arranged else keys.table
        words = self._described(acc.ctypes.data, rows)
        made = gather_pairs(
            self._state.schema, self.origins, np.append(tables, leading), key_pos[:n],
            np.append(tables, words.table), acc_pos[:n], weights[:n],
        )  # fmt: skip
        return None if made is None else Delta.of_chunk(made)

    def _described(self, acc: int, room: int) -> Chunk:
        """The words of groups as columns of the state; its keys are elsewhere."""
        schema = self._state.schema
        lines = schema.lines.copy()
        for node, word in self.described:
            lines[node * nd.FIELDS + nd.DATA] = acc + 8 * word * room
        buffer = allocate(schema.packing.size)
        schema.packing.pack_into(buffer, 0, *lines)
        return Chunk(schema, room, buffer, None)
