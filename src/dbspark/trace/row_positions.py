"""Positions of rows in a batch, total weights of rows across batches, and chunks with some weights replaced."""

from __future__ import annotations

import numpy as np

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.chunk import Chunk, check_plan
from dbspark.columnar.memory import Int64s, int64s
from dbspark.kernels.lookup import row_lookup as kw
from dbspark.kernels.memory.layout import OVERFLOW, ROW_BITS, WEIGHT
from dbspark.trace.directory import Sources, sources_of

MAX_CUTS_PER_CHUNK = 8
"""A scan slices a chunk around removed rows if there are at most this many, and copies it otherwise."""


def patch_weights(sort_key: SortKey, chunk: Chunk, rows: Int64s, totals: Int64s) -> list[Chunk]:
    """A chunk with other weights (`totals`) at some rows (ascending); rows whose new weight is zero are left out."""
    weights = np.array(chunk.lane(WEIGHT))
    weights[rows] = totals
    changed = Batch(sort_key, (chunk,)).with_weights(weights)
    gone = rows[totals == 0]
    if len(gone) > MAX_CUTS_PER_CHUNK:
        return list(changed.select(np.flatnonzero(weights)).chunks)
    out = []
    begin = 0
    for row in [*gone.tolist(), chunk.rows]:
        if row > begin:
            whole = changed.chunks[0]
            out.append(whole if row - begin == chunk.rows else whole.slice(begin, row - begin))
        begin = row + 1
    return out


def row_positions(batch: Batch) -> Int64s:
    """The position of every row, in order."""
    return np.concatenate([np.arange(n, dtype=np.int64) + (c << ROW_BITS) for c, n in enumerate(batch.lens.tolist())])


def positions_in(batch: Batch, probe: Batch) -> Int64s:
    """The position in `batch` of each row of `probe`; -1 where it is not there."""
    out = int64s(probe.rows)
    schema = probe.schema
    sources = sources_of((batch,))
    at = 0
    for chunk in probe.chunks:
        kw.find_rows(*sources, chunk.table, chunk.rows, schema.columns, schema.node_count, out[at : at + chunk.rows])
        at += chunk.rows
    return out


def weights_in(sources: Sources, probe: Batch) -> Int64s:
    out = int64s(probe.rows)
    schema = probe.schema
    at = 0
    for chunk in probe.chunks:
        part = out[at : at + chunk.rows]
        if kw.sum_weights(*sources, chunk.table, chunk.rows, schema.columns, schema.node_count, part) == OVERFLOW:
            check_plan(np.array((OVERFLOW,), np.int64))
        at += chunk.rows
    return out
