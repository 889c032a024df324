"""Whether a table stays one: no row is taken away that is not there, no key is there twice.

Only rows that a change takes away can become fewer than none, so of a table without a primary key only those are
looked for; of one with a key, every key of the change. Sums are exact: a weight is added as two halves.

A table is mostly not in the cache. So rows are looked for a block at a time (`kernels.lookup.index`), each step for all
of them before the next, and the values of the rows that are found are asked for while the others are at theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import borrowing, i64, inlined, kernel
from dbspark.kernels.lookup.bloom_filter import covered_batches, sift
from dbspark.kernels.lookup.index import (
    BATCHES,
    NOWHERE,
    address,
    begin_block,
    first_chunk,
    length_at,
    place_of,
    rest_of,
    table_at,
)
from dbspark.kernels.lookup.probe import same_key
from dbspark.kernels.memory.intrinsics import load_i32, load_i64, load_u64, prefetch
from dbspark.kernels.memory.layout import (
    DATA,
    HASH,
    KEY,
    KIND,
    LANES,
    NODE_BYTES,
    OFFSETS,
    ROW_BITS,
    ROW_MASK,
    START,
    VARIABLE,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.memory.nodes import lane, lane_mask
from dbspark.kernels.sort.row_order import equal_rows

_BLOCK = 96
"""Rows that are looked for at a time."""


@inlined
def _ask_for_row(table: int, row: int, columns: int, texts: Any) -> None:
    """Ask for the values of a row of flat columns; of texts for their places, and when those are there for `texts`."""
    if not texts:
        prefetch(lane(table, WEIGHT) + 8 * (row & lane_mask(table, WEIGHT)))
    for c in range(columns):
        node = table + (LANES + c) * NODE_BYTES
        at = load_i64(node, START) + row
        if load_i64(node, KIND) == VARIABLE:
            offsets = load_i64(node, OFFSETS)
            prefetch(load_i64(node, DATA) + i64(load_i32(offsets, at)) if texts else offsets + 4 * at)
        elif not texts:
            prefetch(load_i64(node, DATA) + at * load_i64(node, WIDTH))


@borrowing
def _add_run(
    directory: int, end: int, begin: int, probe: int, row: int, h: Any, rh: Any, key: Any, columns: int, nodes: int,
    unique: int, sums: Any, k: int,
) -> None:  # fmt: skip
    """Add the weights of the rows from a place on that have a key hash: of those equal to a row, and of its key."""
    c, at = begin >> ROW_BITS, begin & ROW_MASK
    while True:
        if at >= length_at(directory, c):
            c += 1
            at = i64(0)
            if c >= end:
                return
        table = table_at(directory, c << ROW_BITS)
        if load_u64(lane(table, KEY), at) != h:
            return
        w = load_i64(lane(table, WEIGHT), at & lane_mask(table, WEIGHT))
        if load_u64(lane(table, HASH), at) == rh and equal_rows(table, at, probe, row, columns, nodes):
            sums[k, 0] += w >> 32
            sums[k, 1] += w & 0xFFFFFFFF
        if unique == 1 and same_key(probe, row, key, table, at, key, nodes):
            sums[k, 2] += w >> 32
            sums[k, 3] += w & 0xFFFFFFFF
        at += 1


@borrowing
def _begin_sums(
    probe: int, rows: int, own_rows: int, i: int, key: Any, nodes: int, unique: int, sums: Any, k: int
) -> None:
    """Begin with what the change itself says of a row and of its key, whose rows are beside each other or have only
    rows of the same hash between them."""
    sums[k, 0] = sums[k, 1] = sums[k, 2] = sums[k, 3] = 0
    if own_rows == 0:
        return
    keys, own, mask = lane(probe, KEY), lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    w = load_i64(own, i & mask)
    sums[k, 0], sums[k, 1] = w >> 32, w & 0xFFFFFFFF
    if unique == 0:
        return
    h, j = load_u64(keys, i), i
    while j > 0 and load_u64(keys, j - 1) == h:
        j -= 1
    while j < rows and load_u64(keys, j) == h:
        if j == i or same_key(probe, i, key, probe, j, key, nodes):
            w = load_i64(own, j & mask)
            sums[k, 2] += w >> 32
            sums[k, 3] += w & 0xFFFFFFFF
        j += 1


@inlined
def breaks(
    directory: int, probe: int, rows: int, own_rows: int, key: Any, columns: int, nodes: int, unique: int
) -> int:
    """1 where batches together with the rows of a probe chunk hold a row or key (`unique`) that cannot be.

    Batches may have times: a row occurs once for each. Rows of the chunk occur once. Without `own_rows` they are among
    the batches already.
    """
    keys, hashes = lane(probe, KEY), lane(probe, HASH)
    own, mask = lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    wanted, sought = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.uint64)
    near, at, covered = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), covered_batches(directory)
    some, which = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.int64)
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
                sought[count] = load_u64(keys, i)
                _begin_sums(probe, rows, own_rows, i, key, nodes, unique, sums, count)
                count += 1
            i += 1
        passing = sift(directory, address(sought), count, some, which)
        for b in range(load_i64(directory, BATCHES)):
            first, end, place = first_chunk(directory, b), first_chunk(directory, b + 1), place_of(directory, b)
            if first >= end:
                continue
            asked, number = (address(some), passing) if b < covered else (address(sought), count)
            hits = i64(0)
            for j in range(begin_block(directory, first, end, place, asked, i64(0), number, near, at)):
                k = which[near[j]] if b < covered else near[j]
                at[hits] = rest_of(directory, end, at[j], sought[k])
                if at[hits] != NOWHERE:
                    _ask_for_row(table_at(directory, at[hits]), at[hits] & ROW_MASK, columns, False)
                    near[hits] = k
                    hits += 1
            for j in range(hits):
                _ask_for_row(table_at(directory, at[j]), at[j] & ROW_MASK, columns, True)
            for j in range(hits):
                k = near[j]
                _add_run(
                    directory, end, at[j], probe, wanted[k], sought[k], load_u64(hashes, wanted[k]), key, columns,
                    nodes, unique, sums, k,
                )  # fmt: skip
        for k in range(count):
            if sums[k, 0] + (sums[k, 1] >> 32) < 0:
                return i64(1)
            high = sums[k, 2] + (sums[k, 3] >> 32)
            if high > 0 or (high == 0 and (sums[k, 3] & 0xFFFFFFFF) > 1):
                return i64(1)
    return i64(0)


@kernel
def breaks_table(
    directory: int, probe: int, rows: int, own_rows: int, key: Any, columns: int, nodes: int, unique: int
) -> int:
    """See `breaks`."""
    return breaks(directory, probe, rows, own_rows, key, columns, nodes, unique)
