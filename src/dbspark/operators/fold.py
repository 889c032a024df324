"""Aggregates that only add (counts, sums and averages of integers and decimals), a tick in few calls.

The general way (`dbspark.operators.aggregate`) asks each aggregate for its new columns and puts rows of state together
from them, as Arrow arrays: right for all of them, and some fifty calls for a tick of a hundred rows. Where all
aggregates of an operator only add, one kernel groups, finds and adds (`kernels.fold`), and the rows of state that go
and come are gathered from where they are. What comes out is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dbspark.batch import Arrangement
from dbspark.batch import arrangement as hashing
from dbspark.batch.chunk import Chunk, gather_pairs
from dbspark.batch.memory import allocate, int64s
from dbspark.batch.schema import Schema
from dbspark.errors import DbsparkError
from dbspark.kernels import fold as kf
from dbspark.kernels import nodes as nd
from dbspark.operators.delta import Delta
from dbspark.trace.spine import Spine

Addition = tuple[int, int | None, int | None]
"""COUNT or SUM, of which column (None: of rows), of which rows (a boolean column; None: all)."""


class Fold:
    """How an operator folds deltas into its rows of state."""

    def __init__(self, key: Sequence[int], source: Schema, state: Arrangement, additions: Sequence[Addition]) -> None:
        self._state = state
        self._key = tuple(key)
        self._key_schema = source.select(key)
        self._key_nodes = np.array([nd.LANES + c for c in key], np.int64)
        self._state_keys = np.arange(nd.LANES, nd.LANES + len(key))
        self._count = nd.LANES + len(key)
        self._nodes = max(source.node_count, state.schema.node_count)
        schema = state.schema
        self._origins = np.zeros((schema.columns, 2), np.int64)
        self._origins[len(key) :, 0] = 1
        self._origins[:, 1] = np.arange(nd.LANES, nd.LANES + schema.columns)
        folds, self._columns = [], [(self._count, 0)]
        node, word = self._count + 1, 1
        for what, column, where in additions:
            given = (-1 if c is None else nd.LANES + c for c in (column, where))
            folds.append((what, *given, node, word))
            self._columns.append((node, word))
            if what == kf.SUM:
                self._columns.append((node + 1, word + 2))
            node, word = node + (1 + (what == kf.SUM)), word + (3 if what == kf.SUM else 1)
        self._folds = np.array(folds, np.int64).reshape(-1, 5)
        self._words = word

    def step(self, delta: Delta, spine: Spine) -> Delta | None:
        """The rows of state that go, and those that come; None where weights are too large for this way."""
        chunk, rows = delta.chunk(), delta.rows
        sources = spine.sources
        spine.stats.seeking += rows
        acc = int64s(self._words * rows)
        key_pos, acc_pos, weights = int64s(2 * rows), int64s(2 * rows), int64s(2 * rows)
        n = kf.fold_groups(
            chunk.table, rows, self._key_nodes, hashing._mask, *sources, self._state_keys,
            self._state.schema.columns, self._nodes, self._count,
            self._folds, acc, key_pos, acc_pos, weights,
        )  # fmt: skip
        if n == kf.LARGE:
            return None
        if n == kf.WRONG:
            raise DbsparkError("a sum is beyond 38 digits, which no decimal holds; nothing was applied")
        keys = chunk.select(self._key, self._key_schema)
        words = self._described(acc.ctypes.data, rows)
        made = gather_pairs(
            self._state.schema, self._origins, np.append(sources[0], keys.table), key_pos[:n],
            np.append(sources[0], words.table), acc_pos[:n], weights[:n],
        )  # fmt: skip
        return None if made is None else Delta.of_chunk(made)

    def _described(self, acc: int, room: int) -> Chunk:
        """The words of groups as columns of the state; its keys are elsewhere."""
        schema = self._state.schema
        lines = schema.lines.copy()
        for node, word in self._columns:
            lines[node * nd.FIELDS + nd.DATA] = acc + 8 * word * room
        buffer = allocate(schema.packing.size)
        schema.packing.pack_into(buffer, 0, *lines)
        return Chunk(schema, room, buffer, None)
