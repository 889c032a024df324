"""Row lookup: positions and weights of whole rows across batches.

A few rows, or one (`point_weight`), are searched one after the other in each batch, by its fences (the first key hash
of each chunk) and then by the hashes of a chunk. The rows of a delta are looked up in blocks (`add_weights`), through
the Bloom filter and the indices of a spine, each step for all rows of a block before the next, so that their cache
misses overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Int64s, UInt64s, i64, inlined, kernel
from dbspark.kernels.lookup.bloom_filter import covered_batches, filter_keys
from dbspark.kernels.lookup.directory import DIR_BATCHES, address, first_chunk, index_ref, length_at, table_at
from dbspark.kernels.lookup.index import NOT_FOUND, find_chunk, finish_search, lower_bound, start_searches
from dbspark.kernels.lookup.probe import prefetch_match
from dbspark.kernels.memory.hash import NULL_WORD, SEED, bytes_word, double_word, fixed_word, fold
from dbspark.kernels.memory.intrinsics import (
    add_overflows,
    bits_f32,
    bits_f64,
    load_i32,
    load_i64,
    load_u32,
    load_u64,
    store_u64,
)
from dbspark.kernels.memory.layout import (
    BIT,
    DATA,
    FIXED,
    FLOAT32,
    FLOAT64,
    HASH,
    KEY,
    KIND,
    LANES,
    NODE_BYTES,
    NULL,
    OFFSETS,
    OVERFLOW,
    ROW_BITS,
    ROW_MASK,
    VALID,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.memory.nodes import is_valid, lane, lane_mask
from dbspark.kernels.sort.row_order import compare_rows, equal_rows

INT64_MIN = -(1 << 63)
"""Never a weight, because it has no negation; a kernel that returns a weight returns this where the sum overflows."""
_MAX_HASH = np.uint64(0xFFFFFFFFFFFFFFFF)
_MAX_SCANNED_ROWS = 8
"""Rows of one key that are scanned one by one; after as many the row hash is searched for by bisection."""
_ROWS_PER_BLOCK = 96
"""Rows that are looked up together, so that their cache misses overlap."""


@inlined
def find_row(
    tables: int, lens: int, fences: int, first: int, last: int,
    probe: int, row: int, key: Any, rh: Any, columns: int, nodes: int,
) -> int:  # fmt: skip
    """Position, in chunks first … last-1, of the row equal to row `row` of the chunk `probe`, or -1.

    `tables`, `lens` and `fences` are addresses, as in a directory; `key` and `rh` are the row's key hash and row hash.
    """
    if first >= last:
        return -1
    chunk = find_chunk(fences, first, last, key)
    at = lower_bound(lane(load_i64(tables, chunk), KEY), i64(0), load_i64(lens, chunk), key)
    scanned = i64(0)
    while True:
        if at >= load_i64(lens, chunk):
            chunk += 1
            if chunk >= last:
                return -1
            at = i64(0)
        table = load_i64(tables, chunk)
        if load_u64(lane(table, KEY), at) != key:
            return -1
        hashes = lane(table, HASH)
        hash_there = load_u64(hashes, at)
        if hash_there > rh:
            return -1
        if hash_there == rh:
            order = compare_rows(table, at, probe, row, columns, nodes)
            if order == 0:
                return chunk << ROW_BITS | at
            if order > 0:
                return -1
            at += 1
        elif scanned < _MAX_SCANNED_ROWS:
            scanned += 1
            at += 1
        else:
            # A key of many rows: they are sorted by row hash, so search instead of scanning on.
            above = load_i64(lens, chunk)
            if key != _MAX_HASH:
                above = lower_bound(lane(table, KEY), at, above, key + np.uint64(1))
            at = lower_bound(hashes, at, above, rh)


@kernel
def sum_weights(
    tables: Int64s,
    lens: Int64s,
    fences: UInt64s,
    starts: Int64s,
    probe: int,
    rows: int,
    columns: int,
    nodes: int,
    out: Int64s,
) -> int:
    """out[i] = total weight, over all batches, of the row equal to row i of the probe chunk. Returns 0 or OVERFLOW."""
    keys = lane(probe, KEY)
    hashes = lane(probe, HASH)
    where = address(tables), address(lens), address(fences)
    for i in range(rows):
        key = load_u64(keys, i)
        rh = load_u64(hashes, i)
        total = i64(0)
        for b in range(starts.shape[0] - 1):
            at = find_row(*where, starts[b], starts[b + 1], probe, i, key, rh, columns, nodes)
            if at >= 0:
                table = tables[at >> ROW_BITS]
                w = load_i64(lane(table, WEIGHT), (at & ROW_MASK) & lane_mask(table, WEIGHT))
                if add_overflows(total, w):
                    return OVERFLOW
                total += w
        out[i] = total
    return 0


@kernel
def count_change(
    tables: Int64s, lens: Int64s, fences: UInt64s, starts: Int64s,
    more_tables: Int64s, more_lens: Int64s, more_fences: UInt64s, more_starts: Int64s,
    probe: int, rows: int, columns: int, nodes: int,
) -> int:  # fmt: skip
    """By how much the number of distinct rows in two lists of batches changes when the probe chunk is added.

    The caller guarantees that no sum of weights overflows.
    """
    keys = lane(probe, KEY)
    hashes = lane(probe, HASH)
    weights = lane(probe, WEIGHT)
    mask = lane_mask(probe, WEIGHT)
    change = i64(0)
    here = address(tables), address(lens), address(fences)
    more = address(more_tables), address(more_lens), address(more_fences)
    for i in range(rows):
        key = load_u64(keys, i)
        rh = load_u64(hashes, i)
        total = i64(0)
        for b in range(starts.shape[0] - 1):
            at = find_row(*here, starts[b], starts[b + 1], probe, i, key, rh, columns, nodes)
            if at >= 0:
                table = tables[at >> ROW_BITS]
                total += load_i64(lane(table, WEIGHT), (at & ROW_MASK) & lane_mask(table, WEIGHT))
        for b in range(more_starts.shape[0] - 1):
            at = find_row(*more, more_starts[b], more_starts[b + 1], probe, i, key, rh, columns, nodes)
            if at >= 0:
                table = more_tables[at >> ROW_BITS]
                total += load_i64(lane(table, WEIGHT), (at & ROW_MASK) & lane_mask(table, WEIGHT))
        if total == 0:
            change += 1
        elif total + load_i64(weights, i & mask) == 0:
            change -= 1
    return change


@inlined
def _first_value_word(node: int) -> Any:
    """What the first value of a flat column contributes to a hash (`kernels.memory.hash`); `node` is an address."""
    kind = load_i64(node, KIND)
    valid = load_i64(node, VALID)
    if kind == NULL or (valid != 0 and not is_valid(valid, i64(0))):
        return NULL_WORD
    data = load_i64(node, DATA)
    if kind == FIXED:
        return fixed_word(data, load_i64(node, WIDTH), i64(0))
    if kind == FLOAT64:
        return double_word(bits_f64(load_u64(data, 0)))
    if kind == FLOAT32:
        return double_word(bits_f32(load_u32(data, 0)))
    if kind == BIT:
        return np.uint64(is_valid(data, i64(0)))
    offsets = load_i64(node, OFFSETS)
    low = i64(load_i32(offsets, 0))
    return bytes_word(data + low, i64(load_i32(offsets, 1)) - low)


@inlined
def _hash_point(probe: int, columns: int, mask: int) -> Any:
    h = SEED
    for column in range(LANES, LANES + columns):
        h = fold(h, _first_value_word(probe + column * NODE_BYTES))
    h &= np.uint64(mask)
    store_u64(lane(probe, HASH), 0, h)
    return h


@kernel
def hash_point(probe: int, columns: int, mask: int) -> None:
    """Set the hash lane of a probe chunk of one row with flat columns; its key lane is the same memory."""
    _hash_point(probe, columns, mask)


@kernel
def point_weight(directory: int, probe: int, mask: int) -> int:
    """Hash the only row of a probe chunk and return its total weight over all batches; INT64_MIN if that overflows.

    `directory` is the address of the words of `point_directory`: one argument, because each costs time at every call.
    """
    tables, lens, fences = load_i64(directory, 0), load_i64(directory, 1), load_i64(directory, 2)
    starts, batches = load_i64(directory, 3), load_i64(directory, 4)
    columns, nodes = load_i64(directory, 5), load_i64(directory, 6)
    h = _hash_point(probe, columns, mask)
    total = i64(0)
    for b in range(batches):
        first, last = load_i64(starts, b), load_i64(starts, b + 1)
        at = find_row(tables, lens, fences, first, last, probe, i64(0), h, h, columns, nodes)
        if at >= 0:
            table = load_i64(tables, at >> ROW_BITS)
            w = load_i64(lane(table, WEIGHT), (at & ROW_MASK) & lane_mask(table, WEIGHT))
            if add_overflows(total, w):
                return i64(INT64_MIN)
            total += w
    return total


def point_directory(tables: Any, lens: Any, fences: Any, starts: Any, columns: int, nodes: int) -> Any:
    """Describe batches to `point_weight`; their arrays have to outlive the result."""
    where = [array.ctypes.data for array in (tables, lens, fences, starts)]
    return np.array([*where, len(starts) - 1, columns, nodes], np.int64)


@kernel
def find_rows(
    tables: Int64s,
    lens: Int64s,
    fences: UInt64s,
    starts: Int64s,
    probe: int,
    rows: int,
    columns: int,
    nodes: int,
    out: Int64s,
) -> None:
    """out[i] = position in the first batch of the row equal to row i of the probe chunk, or -1."""
    keys = lane(probe, KEY)
    hashes = lane(probe, HASH)
    where = address(tables), address(lens), address(fences)
    for i in range(rows):
        out[i] = find_row(
            *where, starts[0], starts[1], probe, i, load_u64(keys, i), load_u64(hashes, i), columns, nodes
        )


@inlined
def add_weights(directory: int, probe: int, rows: int, columns: int, nodes: int, out: Any) -> Any:
    """out[i] += the total weight of the row equal to row i of a chunk, over the batches of a spine keyed by whole rows.

    Returns False where a sum might overflow int64; `out` is not valid then.
    """
    keys, covered, first_column = lane(probe, KEY), covered_batches(directory), np.full(1, LANES, np.int64)
    candidates, starts = np.empty(_ROWS_PER_BLOCK, np.int64), np.empty(_ROWS_PER_BLOCK, np.int64)
    space = rows if covered > 0 else i64(0)
    passing_keys, numbers = np.empty(space, np.uint64), np.empty(space, np.int64)
    passing_count = filter_keys(directory, keys, rows, passing_keys, numbers)
    fits = True
    for b in range(covered if passing_count == 0 else i64(0), load_i64(directory, DIR_BATCHES)):
        first, last, ref = first_chunk(directory, b), first_chunk(directory, b + 1), index_ref(directory, b)
        if first >= last:
            continue
        sought_keys, sought_count = (address(passing_keys), passing_count) if b < covered else (keys, rows)
        for begin in range(0, sought_count, _ROWS_PER_BLOCK):
            hits = i64(0)
            end = min(begin + _ROWS_PER_BLOCK, sought_count)
            for j in range(start_searches(directory, first, last, ref, sought_keys, begin, end, candidates, starts)):
                i = begin + candidates[j]
                at = finish_search(directory, last, starts[j], load_u64(sought_keys, i))
                if at != NOT_FOUND:
                    prefetch_match(table_at(directory, at), at & ROW_MASK, first_column)
                    candidates[hits], starts[hits] = numbers[i] if b < covered else i, at
                    hits += 1
            for j in range(hits):
                c, row, i = starts[j] >> ROW_BITS, starts[j] & ROW_MASK, candidates[j]
                h = load_u64(keys, i)
                while True:
                    if row >= length_at(directory, c):
                        c += 1
                        row = i64(0)
                        if c >= last:
                            break
                    table = table_at(directory, c << ROW_BITS)
                    if load_u64(lane(table, KEY), row) != h:
                        break
                    if equal_rows(table, row, probe, i, columns, nodes):
                        w = load_i64(lane(table, WEIGHT), row & lane_mask(table, WEIGHT))
                        fits &= abs(w) < 1 << 61 and abs(out[i]) < 1 << 61
                        out[i] += w
                    row += 1
    return fits
