"""Whether a table stays one: no row is taken away that is not there, no key is there twice.

Only rows that a change takes away can become fewer than none, so of a table without a primary key only those are
looked for; of one with a key, every key of the change. Sums are exact: a weight is added as two halves.

Most batches hold none of the rows that are looked for, which filters (`kernels.probe`) tell.

A table is mostly not in the cache, and a search waits for memory some ten times. So rows are looked for a block at a
time, each step for all of them before the next: where the search begins and then the row that it finds are asked for
while the others are at theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import i64, inlined, kernel, load_i32, load_i64, load_u64, prefetch
from dbspark.kernels.merge import lane, lane_mask
from dbspark.kernels.nodes import (
    DATA,
    HASH,
    KEY,
    KIND,
    LANES,
    NODE_BYTES,
    OFFSETS,
    START,
    VARIABLE,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.order import compare_rows
from dbspark.kernels.probe import address, find_chunk, guess, lower_bound, may_have, same_key

_BLOCK = 32
"""Rows that are looked for at a time."""


@inlined
def _ask_for_row(table: int, row: int, columns: int, texts: Any) -> None:
    """Ask for the values of a row of flat columns; of texts for their places, and when those are there for `texts`."""
    for c in range(columns):
        node = table + (LANES + c) * NODE_BYTES
        at = load_i64(node, START) + row
        if load_i64(node, KIND) == VARIABLE:
            offsets = load_i64(node, OFFSETS)
            prefetch(load_i64(node, DATA) + i64(load_i32(offsets, at)) if texts else offsets + 4 * at)
        elif not texts:
            prefetch(load_i64(node, DATA) + at * load_i64(node, WIDTH))


@inlined
def _add_run(
    tables: Any, lens: Any, end: int, c: int, at: int, probe: int, row: int, h: Any, rh: Any, key: Any, columns: int,
    nodes: int, unique: int, sums: Any,
) -> None:  # fmt: skip
    """Add the weights of the rows from a place on that have a key hash: of those equal to a row, and of its key."""
    while True:
        if at >= lens[c]:
            c += 1
            at = i64(0)
            if c >= end:
                return
        table = tables[c]
        if load_u64(lane(table, KEY), at) != h:
            return
        w = load_i64(lane(table, WEIGHT), at & lane_mask(table, WEIGHT))
        if load_u64(lane(table, HASH), at) == rh and compare_rows(table, at, probe, row, columns, nodes) == 0:
            sums[0] += w >> 32
            sums[1] += w & 0xFFFFFFFF
        if unique == 1 and same_key(probe, row, key, table, at, key, nodes):
            sums[2] += w >> 32
            sums[3] += w & 0xFFFFFFFF
        at += 1


@kernel
def breaks_table(
    tables: Any, lens: Any, fences: Any, starts: Any, filters: Any, probe: int, rows: int, key: Any, columns: int,
    nodes: int, unique: int,
) -> int:  # fmt: skip
    """1 where batches, of which the last has the rows of the probe chunk, hold a row or key (`unique`) that cannot be.

    Batches may have times: a row occurs once for each. filters[b] = (address, shift) of the filter of a batch; 0: none.
    """
    keys, hashes = lane(probe, KEY), lane(probe, HASH)
    own, mask = lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    fence = address(fences)
    wanted = np.empty(_BLOCK, np.int64)
    at = np.empty((_BLOCK, 2), np.int64)
    sums = np.empty((_BLOCK, 4), np.int64)  # of the row and of the key, high and low
    i = i64(0)
    while i < rows:
        count = i64(0)
        while i < rows and count < _BLOCK:
            taken = load_i64(own, i & mask) < 0
            if not taken and unique == 1:  # a key is looked at once
                taken = i == 0 or load_u64(keys, i - 1) != load_u64(keys, i)
                taken = taken or not same_key(probe, i, key, probe, i - 1, key, nodes)
            if taken:
                wanted[count] = i
                sums[count] = 0
                count += 1
            i += 1
        for b in range(starts.shape[0] - 1):
            first, end = starts[b], starts[b + 1]
            if first >= end:
                continue
            for k in range(count):
                h = load_u64(keys, wanted[k])
                at[k, 0] = -1
                if not may_have(filters[b], h):
                    continue
                c = find_chunk(fence, first, end, h) if end - first > 1 else first
                at[k, 0] = c
                prefetch(guess(lane(tables[c], KEY), lens[c], h))
            for k in range(count):
                c = at[k, 0]
                if c >= 0:
                    here = lower_bound(lane(tables[c], KEY), i64(0), lens[c], load_u64(keys, wanted[k]))
                    at[k, 1] = here
                    if here < lens[c]:
                        _ask_for_row(tables[c], here, columns, False)
            for k in range(count):
                if at[k, 0] >= 0 and at[k, 1] < lens[at[k, 0]]:
                    _ask_for_row(tables[at[k, 0]], at[k, 1], columns, True)
            for k in range(count):
                if at[k, 0] >= 0:
                    _add_run(
                        tables, lens, end, at[k, 0], at[k, 1], probe, wanted[k], load_u64(keys, wanted[k]),
                        load_u64(hashes, wanted[k]), key, columns, nodes, unique, sums[k],
                    )  # fmt: skip
        for k in range(count):
            if sums[k, 0] + (sums[k, 1] >> 32) < 0:
                return 1
            high = sums[k, 2] + (sums[k, 3] >> 32)
            if high > 0 or (high == 0 and (sums[k, 3] & 0xFFFFFFFF) > 1):
                return 1
    return 0
