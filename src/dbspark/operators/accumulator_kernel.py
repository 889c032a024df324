"""Counts, sums and averages of integers and decimals by one kernel: grouped aggregation in few calls per tick.

The general path (`dbspark.operators.aggregate`) asks each aggregate for its new accumulators and builds rows of state
from them as Arrow arrays: some fifty calls for a tick of a hundred rows. Where every aggregate of an operator is a sum
or a count, one kernel groups the delta, looks up the rows of state and updates their accumulators
(`kernels.aggregate.accumulators`); the retracted and the inserted rows of state are then gathered. One of the
aggregates may be min or max: its value is gathered like the key. Results are those of the general path.
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
from dbspark.operators.arranged import Arranged
from dbspark.trace.spine import Spine

KernelAccumulator = tuple[int, int | None, int | None]
"""An accumulator that the kernel updates: COUNT, SUM, LEAST or GREATEST; its column (None: count rows); its FILTER."""


class AccumulatorKernel:
    """Updates the rows of state of one operator by deltas."""

    def __init__(
        self, key: Sequence[int], source: Schema, state: SortKey, accumulators: Sequence[KernelAccumulator]
    ) -> None:
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
        for function, column, where in accumulators:
            if function in (kf.LEAST, kf.GREATEST):
                assert column is not None
                self.value = np.array((nd.LANES + column, node, function == kf.GREATEST), np.int64)
                self.origins[node - nd.LANES, 0] = 0
                node += 1
                continue
            nodes = (-1 if c is None else nd.LANES + c for c in (column, where))
            folds.append((function, *nodes, node, word))
            self.described.append((node, word))
            if function == kf.SUM:
                self.described.append((node + 1, word + 2))
            node, word = node + (1 + (function == kf.SUM)), word + (3 if function == kf.SUM else 1)
        self.folds = np.array(folds, np.int64).reshape(-1, 5)
        self.words = word

    @staticmethod
    def supports(accumulators: Sequence[KernelAccumulator]) -> bool:
        """Whether the kernel can update all of these: at most one may be a least or greatest value."""
        return sum(function in (kf.LEAST, kf.GREATEST) for function, _, _ in accumulators) <= 1

    def step(self, delta: Delta, spine: Spine, arranged: Sequence[Arranged]) -> Delta | None:
        """The change of the rows of state, retractions and insertions; None where the general path has to compute it.

        With a least or greatest value the delta must be in the order of its arrangement. The general path is needed for
        weights that are too large, groups with a negative number of rows, and deltas of several chunks.
        """
        tables, directory, arranged_chunks, leading_rows = spine.sources[0], 0, 0, np.empty((0, 0), np.int64)
        if arranged:
            chunks = arranged[0].delta.chunks
            if len(chunks) != 1:
                return None
            chunk = chunks[0]
            directory, arranged_chunks = arranged[0].after.directory, len(arranged[0].after.sources[0])
            leading_rows = np.empty((arranged_chunks + 1, self._state.schema.node_count * nd.FIELDS), np.int64)
        else:
            chunk = delta.chunk()
        rows, used = chunk.rows, np.zeros(1, np.int64)
        acc = int64s(self.words * rows)
        key_pos, acc_pos, weights = int64s(2 * rows), int64s(2 * rows), int64s(2 * rows)
        n = kf.update_accumulators(
            chunk.table, rows, self.key_nodes, hashing._mask, spine.directory, len(tables), self.state_keys,
            self._state.schema.columns, self.nodes, self.count, self.folds, acc, key_pos, acc_pos, weights,
            self.value, self._source.columns, directory, arranged_chunks, leading_rows, used,
        )  # fmt: skip
        if n == kf.FALL_BACK:
            return None
        if n == kf.SUM_OVERFLOW:
            raise DbsparkError("a sum is beyond 38 digits, which no decimal holds; nothing was applied")
        keys = chunk.select(self._key, self._key_schema)
        leading = leading_rows.ctypes.data + leading_rows.strides[0] * np.arange(used[0]) if arranged else keys.table
        words = self._accumulator_columns(acc.ctypes.data, rows)
        rows_of_state = gather_pairs(
            self._state.schema, self.origins, np.append(tables, leading), key_pos[:n],
            np.append(tables, words.table), acc_pos[:n], weights[:n],
        )  # fmt: skip
        return None if rows_of_state is None else Delta.of_chunk(rows_of_state)

    def _accumulator_columns(self, acc: int, capacity: int) -> Chunk:
        """The accumulators as a chunk in the layout of the state; its key columns are not filled in."""
        schema = self._state.schema
        lines = schema.lines.copy()
        for node, word in self.described:
            lines[node * nd.FIELDS + nd.DATA] = acc + 8 * word * capacity
        buffer = allocate(schema.packing.size)
        schema.packing.pack_into(buffer, 0, *lines)
        return Chunk(schema, capacity, buffer, None)
