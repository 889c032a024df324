"""Bringing unsorted rows into the order of an arrangement, planned in one call: small changes are many calls otherwise.

`plan_rows` hashes, sorts, consolidates and lays out the arena; the caller allocates it and `gather` fills it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.gather import measure_rows
from dbspark.kernels.hash import fold_columns
from dbspark.kernels.jit import i64, kernel, load_i64, load_u64
from dbspark.kernels.merge import consolidate_order, lane, lane_mask, survey_more
from dbspark.kernels.nodes import CHILD, DATA, FIELDS, HASH, KEY, LANES, MASK, START, TIME, TIMES
from dbspark.kernels.order import order_words
from dbspark.kernels.sort import sort_order

TIMED = -(1 << 62)
"""Said instead of a size where the rows have several times."""
SURVEY = 4 + TIMES
"""Where the survey of the weights begins in what a plan tells."""


@kernel
def plan_rows(
    table: int, rows: int, row_nodes: Any, key_nodes: Any, own_key: int, spec: Any, known: int, mask: Any,
    columns: int, nodes: int, limit: int, work: Any, hashes: Any, pos: Any, weights: Any, layout: Any, info: Any,
) -> int:  # fmt: skip
    """Which of the rows of a chunk of flat columns stay, in which order; returns the size of their arena.

    `work` gets the node table of the same rows with hashes, which are written to `hashes` (two lines); positions are
    row numbers in it. `known`: the chunk has row hashes already. `spec` is the order inside a key. Returns 0 where more
    than `limit` rows stay, and what `measure` returns for columns too large.

    info: as `consolidate` has it, then the time of all rows, then what `survey_weights` says of those that stay.
    """
    for c in range(TIME, LANES):
        if lane_mask(table, i64(c)) != 0:
            return i64(TIMED)
        info[4 + c - TIME] = load_i64(lane(table, i64(c)), 0)
    words, keys = hashes[0], hashes[1] if own_key == 1 else hashes[0]
    if spec[0] > 0:
        order_words(table, spec[1], rows, spec[2], spec[3], words)
    elif known == 1:
        at = lane(table, i64(HASH))
        for i in range(rows):
            words[i] = load_u64(at, i)
    else:
        fold_columns(table, row_nodes, rows, mask, words)
    if own_key == 1:
        fold_columns(table, key_nodes, rows, mask, keys)
    for i in range(nodes * FIELDS):
        work[i] = load_i64(table, i)
    work[HASH * FIELDS + DATA], work[KEY * FIELDS + DATA] = words.ctypes.data, keys.ctypes.data
    work[HASH * FIELDS + START] = work[KEY * FIELDS + START] = 0
    work[HASH * FIELDS + MASK] = work[KEY * FIELDS + MASK] = -1
    work[HASH * FIELDS + CHILD] = spec.ctypes.data if spec[0] > 0 else i64(0)
    target = work.ctypes.data
    order = np.empty(rows, np.int64)
    sort_order(keys, words, order, np.empty(2 * rows, np.uint64), np.empty(rows, np.int64))
    consolidate_order(target, keys, words, order, columns, nodes, pos, weights, info)
    if info[0] < 0 or info[0] > limit:
        return i64(0)
    known_of = info[SURVEY:]
    known_of[:4] = 0
    survey_more(weights.ctypes.data, info[0], i64(1), known_of)
    tables = np.empty(1, np.int64)
    tables[0] = target
    return measure_rows(tables, columns, nodes, pos, info[0], own_key, info[2], layout)
