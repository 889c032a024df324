"""Constraints of tables: no row has a negative weight, and no primary key occurs twice.

Only rows that a change retracts can become negative, so in a table without a primary key only those are looked up; with
one, every key of the change. Sums of weights are exact: their high and low halves are added separately.

Most of a table is not in the CPU's cache, so rows are looked up in blocks (`kernels.lookup.index`), each step for all
rows before the next; the values of the rows found are prefetched while others are searched for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Int64s, borrowing, i64, inlined, kernel
from dbspark.kernels.lookup.bloom_filter import covered_batches, filter_keys
from dbspark.kernels.lookup.directory import DIR_BATCHES, address, first_chunk, index_ref, length_at, table_at
from dbspark.kernels.lookup.index import NOT_FOUND, finish_search, start_searches
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

_ROWS_PER_BLOCK = 96
"""Rows that are looked up together, so that their cache misses overlap."""


@inlined
def _prefetch_row(table: int, row: int, columns: int, strings: Any) -> None:
    """Prefetch weight and values of a row of flat columns, of strings the offsets; with `strings` only the bytes."""
    if not strings:
        prefetch(lane(table, WEIGHT) + 8 * (row & lane_mask(table, WEIGHT)))
    for c in range(columns):
        node = table + (LANES + c) * NODE_BYTES
        at = load_i64(node, START) + row
        if load_i64(node, KIND) == VARIABLE:
            offsets = load_i64(node, OFFSETS)
            prefetch(load_i64(node, DATA) + i64(load_i32(offsets, at)) if strings else offsets + 4 * at)
        elif not strings:
            prefetch(load_i64(node, DATA) + at * load_i64(node, WIDTH))


@borrowing
def _add_matches(
    directory: int, end: int, begin: int, probe: int, row: int, h: Any, rh: Any, key: Any, columns: int, nodes: int,
    unique: int, sums: Any, k: int,
) -> None:  # fmt: skip
    """Add to sums[k] the weights of rows with key hash h, from `begin` on.

    First come the two halves of the sum over rows equal to row `row` of the probe chunk, then, if `unique`, the halves
    of the sum over rows with its key.
    """
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
def _start_sums(
    probe: int, rows: int, own_rows: int, i: int, key: Any, nodes: int, unique: int, sums: Any, k: int
) -> None:
    """Start the sums of row i and of its key with the weights in the change itself; without `own_rows` with zero.

    Rows of one key have the same key hash, so they are neighbours up to collisions."""
    sums[k, 0] = sums[k, 1] = sums[k, 2] = sums[k, 3] = 0
    if own_rows == 0:
        return
    keys, weights, mask = lane(probe, KEY), lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    w = load_i64(weights, i & mask)
    sums[k, 0], sums[k, 1] = w >> 32, w & 0xFFFFFFFF
    if unique == 0:
        return
    h, j = load_u64(keys, i), i
    while j > 0 and load_u64(keys, j - 1) == h:
        j -= 1
    while j < rows and load_u64(keys, j) == h:
        if j == i or same_key(probe, i, key, probe, j, key, nodes):
            w = load_i64(weights, j & mask)
            sums[k, 2] += w >> 32
            sums[k, 3] += w & 0xFFFFFFFF
        j += 1


@inlined
def violates(
    directory: int, probe: int, rows: int, own_rows: int, key: Any, columns: int, nodes: int, unique: int
) -> int:
    """1 where batches together with a probe chunk have a row of negative weight or, if `unique`, a key twice; else 0.

    A row occurs at most once in the chunk, and in batches with times at most once for each time. With `own_rows` = 0
    the rows of the chunk are in the batches already.
    """
    keys, hashes = lane(probe, KEY), lane(probe, HASH)
    weights, mask = lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    block_rows, block_keys = np.empty(_ROWS_PER_BLOCK, np.int64), np.empty(_ROWS_PER_BLOCK, np.uint64)
    candidates = np.empty(_ROWS_PER_BLOCK, np.int64)
    starts = np.empty(_ROWS_PER_BLOCK, np.int64)
    covered = covered_batches(directory)
    passing_keys, numbers = np.empty(_ROWS_PER_BLOCK, np.uint64), np.empty(_ROWS_PER_BLOCK, np.int64)
    sums = np.empty((_ROWS_PER_BLOCK, 4), np.int64)  # high and low half for the row, then for the key
    i = i64(0)
    while i < rows:
        count = i64(0)
        while i < rows and count < _ROWS_PER_BLOCK:
            selected = load_i64(weights, i & mask) < 0
            if not selected and unique == 1:  # each key once
                selected = i == 0 or load_u64(keys, i - 1) != load_u64(keys, i)
                selected = selected or not same_key(probe, i, key, probe, i - 1, key, nodes)
            if selected:
                block_rows[count] = i
                block_keys[count] = load_u64(keys, i)
                _start_sums(probe, rows, own_rows, i, key, nodes, unique, sums, count)
                count += 1
            i += 1
        passing_count = filter_keys(directory, address(block_keys), count, passing_keys, numbers)
        for b in range(load_i64(directory, DIR_BATCHES)):
            first, end, ref = first_chunk(directory, b), first_chunk(directory, b + 1), index_ref(directory, b)
            if first >= end:
                continue
            sought_keys, sought_count = (
                (address(passing_keys), passing_count) if b < covered else (address(block_keys), count)
            )
            hits = i64(0)
            for j in range(
                start_searches(directory, first, end, ref, sought_keys, i64(0), sought_count, candidates, starts)
            ):
                k = numbers[candidates[j]] if b < covered else candidates[j]
                starts[hits] = finish_search(directory, end, starts[j], block_keys[k])
                if starts[hits] != NOT_FOUND:
                    _prefetch_row(table_at(directory, starts[hits]), starts[hits] & ROW_MASK, columns, False)
                    candidates[hits] = k
                    hits += 1
            for j in range(hits):
                _prefetch_row(table_at(directory, starts[j]), starts[j] & ROW_MASK, columns, True)
            for j in range(hits):
                k = candidates[j]
                _add_matches(
                    directory, end, starts[j], probe, block_rows[k], block_keys[k],
                    load_u64(hashes, block_rows[k]), key, columns, nodes, unique, sums, k,
                )  # fmt: skip
        for k in range(count):
            if sums[k, 0] + (sums[k, 1] >> 32) < 0:
                return i64(1)
            high = sums[k, 2] + (sums[k, 3] >> 32)
            if high > 0 or (high == 0 and (sums[k, 3] & 0xFFFFFFFF) > 1):
                return i64(1)
    return i64(0)


@kernel
def violates_constraints(
    directory: int, probe: int, rows: int, own_rows: int, key: Int64s, columns: int, nodes: int, unique: int
) -> int:
    """Whether a change violates the constraints of its table: `violates` as a kernel for Python."""
    return violates(directory, probe, rows, own_rows, key, columns, nodes, unique)
