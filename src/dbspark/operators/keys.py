"""Sets of keys: the distinct keys of a batch, subsets, unions, and the total weight of the rows of each key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.chunk import describe_arrays, gather_columns
from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import Int64s, int64s
from dbspark.columnar.schema import Schema
from dbspark.kernels.aggregate import group as kg
from dbspark.trace.lookup import Keys, key_columns, ranges_of
from dbspark.trace.spine import Spine


def distinct_keys(batch: Batch) -> Keys:
    """The keys that occur in a batch, once each."""
    sort_key = batch.sort_key
    pos = int64s(batch.rows)
    n = kg.distinct_keys(batch.tables, batch.lens, sort_key.key_nodes, batch.schema.node_count, pos)
    columns = key_columns(sort_key)
    return keys_of(batch.schema.select(columns), gather_columns(batch.schema, batch.tables, pos[:n], columns), n)


def keys_of(schema: Schema, columns: Sequence[pa.Array], rows: int) -> Keys:
    """Keys from columns that hold nothing else."""
    return Keys.in_chunk(describe_arrays(schema, columns, rows, None), range(schema.columns))


def keys_at(keys: Keys, rows: Int64s) -> Keys:
    """Some of the keys."""
    chunk = keys.chunk
    tables = np.array((chunk.table,), np.int64)
    return keys_of(chunk.schema, gather_columns(chunk.schema, tables, rows, range(chunk.schema.columns)), len(rows))


def union_of_keys(keys: Sequence[Keys]) -> Keys:
    """The union of several sets of keys."""
    schema = keys[0].chunk.schema
    if len(keys) == 1 or not schema.columns:
        return keys[0]
    deltas = [Delta(schema, k.chunk.arrays(), np.ones(len(k), np.int64)) for k in keys]
    batch = Delta.sum(schema, deltas).sorted_by(SortKey(schema))
    return keys_of(schema, Delta.of(batch).columns, batch.rows)


def weights_of_keys(spine: Spine, keys: Keys) -> Int64s:
    """The sum of the weights of all rows of each key."""
    if not spine.entries or not len(keys):
        return np.zeros(len(keys), np.int64)
    return weights_in_ranges(spine, keys, *ranges_of(spine, keys))


def weights_in_ranges(spine: Spine, keys: Keys, ranges: Int64s, total: int) -> Int64s:
    """Like `weights_of_keys`, given the ranges of the rows of each key (`total` rows in all)."""
    out = np.zeros(len(keys), np.int64)
    if total:
        nodes = max(spine.sort_key.schema.node_count, keys.chunk.schema.node_count)
        tables, lens = spine.sources[0], spine.sources[1]
        here = spine.sort_key.key_nodes
        kg.sum_of_keys(tables, lens, ranges, keys.chunk.table, keys.nodes, here, nodes, out)
    return out


__all__ = ["distinct_keys", "keys_at", "keys_of", "union_of_keys", "weights_in_ranges", "weights_of_keys"]
