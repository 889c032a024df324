"""Probing sorted batches by key: the rows of each key of a delta, in every batch of a spine.

There are two ways to find where a key hash lies. By index or interpolation (`kernels.lookup.index`) the cost hardly
depends on the size of a batch; keys are looked up in blocks, so that their cache misses overlap. A linear merge with
the batch (`walk_ranges`) is faster where at most some hundred rows of the batch lie between one key and the next.

A *probe row* is a row of the delta whose key is looked up. A range is (chunk, row, count) per probe row and batch. Hash
matches are confirmed by comparing values, so collisions cost time and never correctness.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Int64Cube, Int64s, ReadOnlyUInt64s, UInt64s, borrowing, gil_kernel, i64, inlined, kernel
from dbspark.kernels.lookup.bloom_filter import covered_batches, filter_keys
from dbspark.kernels.lookup.directory import (
    DIR_BATCHES,
    DIR_TABLES,
    DIRECTORY_WORDS,
    INDEX_REF_WORDS,
    address,
    first_chunk,
    index_ref,
    length_at,
    table_at,
    write_directory,
)
from dbspark.kernels.lookup.index import NOT_FOUND, find_chunk, finish_search, lower_bound, start_searches
from dbspark.kernels.memory.intrinsics import load_i64, load_u64, multiply_overflows, prefetch, store_i64
from dbspark.kernels.memory.layout import (
    DATA,
    KEY,
    KIND,
    NODE_BYTES,
    NULL,
    OFFSETS,
    OVERFLOW,
    ROW_BITS,
    ROW_MASK,
    START,
    TIME,
    VALID,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.memory.nodes import is_valid, lane, lane_mask
from dbspark.kernels.sort.row_order import equal_cells

_KEYS_PER_BLOCK = 96
"""Keys that are looked up together, so that their cache misses overlap."""


@gil_kernel
def first_keys(tables: Int64s, out: UInt64s) -> None:
    """out[c] = the first key hash of chunk c: its fence."""
    for c in range(tables.shape[0]):
        out[c] = load_u64(lane(tables[c], KEY), 0)


@kernel
def weights_at(tables: Int64s, pos: Int64s, out: Int64s) -> None:
    """out[i] = the weight of the row at pos[i]."""
    for i in range(pos.shape[0]):
        table = tables[pos[i] >> ROW_BITS]
        out[i] = load_i64(lane(table, WEIGHT), (pos[i] & ROW_MASK) & lane_mask(table, WEIGHT))


@kernel
def probe_ranges(
    tables: Int64s, lens: Int64s, fences: UInt64s, starts: Int64s, keys: UInt64s, ranges: Int64Cube
) -> int:
    """ranges[i, b] = (chunk, row, count) of key hash i in batch b; returns the number of rows in all ranges.

    For batches given as arrays, which have no indices and no filter; `probe_directory` takes a directory.
    """
    index_refs, directory = np.zeros((starts.shape[0], INDEX_REF_WORDS), np.int64), np.empty(DIRECTORY_WORDS, np.int64)
    at = write_directory(tables, lens, fences, starts, index_refs, directory)
    total = _probe_keys(at, address(keys), keys.shape[0], ranges)
    return total + 0 * (index_refs[0, 0] + directory[0])  # keeps both arrays alive: they are used by address


@kernel
def probe_directory(directory: int, keys: UInt64s, ranges: Int64Cube) -> int:
    """ranges[i, b] = (chunk, row, count) of key hash i in batch b; returns the number of rows in all ranges.

    `keys` may come in any order; equal neighbours are looked up once.
    """
    return _probe_keys(directory, address(keys), keys.shape[0], ranges)


@inlined
def _probe_keys(directory: int, keys: int, count: int, ranges: Any) -> int:
    """Write the ranges of the `count` key hashes at the address `keys`; returns the number of rows in all of them."""
    total = i64(0)
    candidates = np.empty(_KEYS_PER_BLOCK, np.int64)
    starts = np.empty(_KEYS_PER_BLOCK, np.int64)
    covered = covered_batches(directory)
    space = count if covered > 0 else i64(0)
    passing_keys, numbers = np.empty(space, np.uint64), np.empty(space, np.int64)
    passing_count = filter_keys(directory, keys, count, passing_keys, numbers)
    for b in range(load_i64(directory, DIR_BATCHES)):
        first, last, ref = first_chunk(directory, b), first_chunk(directory, b + 1), index_ref(directory, b)
        for i in range(count):
            ranges[i, b, 0] = first
            ranges[i, b, 1] = ranges[i, b, 2] = 0
        if first >= last:
            continue
        sought_keys, sought_count = (address(passing_keys), passing_count) if b < covered else (keys, count)
        for begin in range(0, sought_count, _KEYS_PER_BLOCK):
            end = min(begin + _KEYS_PER_BLOCK, sought_count)
            before = i64(-1)
            for j in range(start_searches(directory, first, last, ref, sought_keys, begin, end, candidates, starts)):
                at, key = begin + candidates[j], load_u64(sought_keys, begin + candidates[j])
                i = numbers[at] if b < covered else at
                if before >= 0 and key == load_u64(keys, before):
                    for k in range(3):
                        ranges[i, b, k] = ranges[before, b, k]
                else:
                    at = finish_search(directory, last, starts[j], key)
                    if at != NOT_FOUND:
                        ranges[i, b, 0], ranges[i, b, 1] = at >> ROW_BITS, at & ROW_MASK
                        ranges[i, b, 2] = _run_length(directory, last, at, key)
                before = i
                total += ranges[i, b, 2]
    return total


@inlined
def _run_length(directory: int, last: int, begin: int, key: Any) -> int:
    """How many rows from `begin` on, in chunks before `last`, have a key hash; short runs are counted row by row."""
    c, at, count = begin >> ROW_BITS, begin & ROW_MASK, i64(0)
    while True:
        keys, n = lane(load_i64(load_i64(directory, DIR_TABLES), c), KEY), length_at(directory, c)
        end = min(n, at + 8)
        while at < end and load_u64(keys, at) == key:
            at += 1
            count += 1
        if at == end and at < n and load_u64(keys, at) == key:
            if load_u64(keys, n - 1) == key:
                count += n - at
                at = n
            else:
                above = lower_bound(keys, at, n, key + np.uint64(1))
                count += above - at
                at = above
        if at < n or c + 1 >= last:
            return count
        c += 1
        at = i64(0)


@borrowing
def _same_as_before(keys: Any, i: int, ranges: Any, b: int) -> Any:
    """Copy the range of the previous probe row if it has the same key hash; returns whether it has."""
    if i == 0 or keys[i] != keys[i - 1]:
        return False
    for k in range(3):
        ranges[i, b, k] = ranges[i - 1, b, k]
    return True


@kernel
def walk_ranges(
    tables: Int64s, lens: Int64s, fences: UInt64s, starts: Int64s, keys: ReadOnlyUInt64s | UInt64s, ranges: Int64Cube
) -> int:
    """The ranges of `probe_ranges`, by a linear merge with each batch; for keys in ascending order.

    A key below its predecessor is searched for anew, so the result is right in any order.
    """
    total = i64(0)
    for b in range(starts.shape[0] - 1):
        first, last = starts[b], starts[b + 1]
        c = first
        at = i64(0)
        n = i64(0)
        lane_keys = i64(0)
        for i in range(keys.shape[0]):
            key = keys[i]
            ranges[i, b, 2] = 0
            if first >= last:
                continue
            if _same_as_before(keys, i, ranges, b):
                total += ranges[i, b, 2]
                continue
            if i == 0 or key < keys[i - 1]:
                c = find_chunk(address(fences), first, last, key)
                n = lens[c]
                lane_keys = lane(tables[c], KEY)
                at = lower_bound(lane_keys, i64(0), n, key)
            while True:
                while at < n and load_u64(lane_keys, at) < key:
                    at += 1
                if at < n or c + 1 >= last:
                    break
                c += 1
                at = i64(0)
                n = lens[c]
                lane_keys = lane(tables[c], KEY)
            ranges[i, b, 0] = c
            ranges[i, b, 1] = at
            count = i64(0)
            while True:
                while at < n and load_u64(lane_keys, at) == key:
                    at += 1
                    count += 1
                if at < n or c + 1 >= last:
                    break
                c += 1
                at = i64(0)
                n = lens[c]
                lane_keys = lane(tables[c], KEY)
            ranges[i, b, 2] = count
            total += count
    return total


@kernel
def expand_ranges(
    tables: Int64s,
    lens: Int64s,
    ranges: Int64Cube,
    probe: int,
    probe_key: Int64s,
    key: Int64s,
    nodes: int,
    which: Int64s,
    pos: Int64s,
) -> int:
    """Turn ranges into (probe row, position) pairs, without rows of which only the key hash is equal; returns how many.

    A range may begin beyond the last row of its chunk: then it begins in a later one. `key` and `probe_key` are the
    nodes of the key columns here and in the probe chunk.
    """
    out = 0
    for i in range(ranges.shape[0]):
        for b in range(ranges.shape[1]):
            c = ranges[i, b, 0]
            at = ranges[i, b, 1]
            for _ in range(ranges[i, b, 2]):
                while at >= lens[c]:
                    at -= lens[c]
                    c += 1
                if same_key(probe, i, probe_key, tables[c], at, key, nodes):
                    which[out] = i
                    pos[out] = c << ROW_BITS | at
                    out += 1
                at += 1
    return out


@borrowing
def same_key(table_a: int, i: int, key_a: Any, table_b: int, j: int, key_b: Any, nodes: int) -> Any:
    """Whether row i of one chunk and row j of another are equal in their key columns; NULL equals NULL."""
    for k in range(key_a.shape[0]):
        if not equal_cells(table_a, key_a[k], i, table_b, key_b[k], j, nodes):
            return False
    return True


@kernel
def pair_weights(probe: int, which: Int64s, tables: Int64s, pos: Int64s, out: Int64s) -> int:
    """out[i] = the product of the weights of probe row which[i] and of the row at pos[i]. Returns 0 or OVERFLOW."""
    probe_weights, mask = lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    for i in range(which.shape[0]):
        table = tables[pos[i] >> ROW_BITS]
        a = load_i64(probe_weights, which[i] & mask)
        b = load_i64(lane(table, WEIGHT), (pos[i] & ROW_MASK) & lane_mask(table, WEIGHT))
        if multiply_overflows(a, b):
            return OVERFLOW
        out[i] = a * b
    return 0


@borrowing
def _key_is_null(table: int, row: int, key: Any) -> Any:
    for k in range(key.shape[0]):
        at = table + key[k] * NODE_BYTES
        if load_i64(at, KIND) == NULL:
            return True
        valid = load_i64(at, VALID)
        if valid != 0 and not is_valid(valid, row + load_i64(at, START)):
            return True
    return False


@borrowing
def prefetch_match(table: int, row: int, key: Any) -> None:
    """Prefetch the weight of a row and, of its first key column, the value, or the offsets of a string."""
    prefetch(lane(table, WEIGHT) + 8 * (row & lane_mask(table, WEIGHT)))
    if key.shape[0] > 0:
        at = table + key[0] * NODE_BYTES
        row += load_i64(at, START)
        if load_i64(at, OFFSETS) != 0:
            prefetch(load_i64(at, OFFSETS) + 4 * row)
        else:
            prefetch(load_i64(at, DATA) + load_i64(at, WIDTH) * row)


@inlined
def _doubled(lines: Any) -> Any:
    out = np.empty((lines.shape[0], 2 * lines.shape[1]), np.int64)
    out[:, : lines.shape[1]] = lines
    return out


@inlined
def find_matches(
    directory: int, probe: int, rows: int, probe_key: Any, key: Any, nodes: int, null_safe: int, time: Any, limit: int,
    info: Any,
) -> Any:  # fmt: skip
    """All matches of the rows of a probe chunk, in no order: a matrix with lines for probe row, position, weight, time.

    Weights are products. Lines from the fourth on are the joins (least upper bounds) of `time` with the times of the
    rows found, one line for each coordinate. Keys with a NULL match nothing unless `null_safe`. info = [matches,
    OVERFLOW or 0, how many of the times are not `time` itself]; where there are more matches than `limit`, the lines
    are not valid.
    """
    depth = time.shape[0]
    capacity = 2 * rows + 64
    lines = np.empty((3 + depth, capacity), np.int64)
    to = address(lines)
    keys, probe_weights, mask = lane(probe, KEY), lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    candidates = np.empty(_KEYS_PER_BLOCK, np.int64)
    starts = np.empty(_KEYS_PER_BLOCK, np.int64)
    covered = covered_batches(directory)
    passing_keys = np.empty(rows if covered > 0 else 0, np.uint64)
    numbers = np.empty(rows if covered > 0 else 0, np.int64)
    passing_count = filter_keys(directory, keys, rows, passing_keys, numbers)
    out, overflow, other_times = i64(0), i64(0), i64(0)
    for b in range(covered if passing_count == 0 else i64(0), load_i64(directory, DIR_BATCHES)):
        first, last, ref = first_chunk(directory, b), first_chunk(directory, b + 1), index_ref(directory, b)
        if first >= last:
            continue
        sought_keys, sought_count = (address(passing_keys), passing_count) if b < covered else (keys, rows)
        for begin in range(0, sought_count, _KEYS_PER_BLOCK):
            end = min(begin + _KEYS_PER_BLOCK, sought_count)
            hits = i64(0)
            for j in range(start_searches(directory, first, last, ref, sought_keys, begin, end, candidates, starts)):
                at = finish_search(directory, last, starts[j], load_u64(sought_keys, begin + candidates[j]))
                i = begin + candidates[j]
                i = numbers[i] if b < covered else i
                if at != NOT_FOUND and (null_safe != 0 or not _key_is_null(probe, i, probe_key)):
                    prefetch_match(table_at(directory, at), at & ROW_MASK, key)
                    candidates[hits], starts[hits] = i, at
                    hits += 1
            # Grow before matches are written: an array that a loop may replace has its references counted at every row.
            new_matches = i64(0)
            for j in range(hits):
                new_matches += _run_length(directory, last, starts[j], load_u64(keys, candidates[j]))
            if out + new_matches > capacity:
                if out + new_matches > limit:
                    info[0], info[1], info[2] = limit + 1, overflow, other_times
                    return lines
                while out + new_matches > capacity:
                    lines = _doubled(lines)
                    capacity *= 2
                to = address(lines)
            for j in range(hits):
                at, i = starts[j], candidates[j]
                h, a = load_u64(keys, i), load_i64(probe_weights, i & mask)
                c, row = at >> ROW_BITS, at & ROW_MASK
                table, size = table_at(directory, at), length_at(directory, c)
                while True:
                    if row >= size:
                        c += 1
                        if c >= last:
                            break
                        row, table, size = i64(0), table_at(directory, c << ROW_BITS), length_at(directory, c)
                    if load_u64(lane(table, KEY), row) != h:
                        break
                    if same_key(probe, i, probe_key, table, row, key, nodes):
                        w = load_i64(lane(table, WEIGHT), row & lane_mask(table, WEIGHT))
                        if multiply_overflows(a, w):
                            overflow = i64(OVERFLOW)
                        store_i64(to, out, i)
                        store_i64(to, capacity + out, c << ROW_BITS | row)
                        store_i64(to, 2 * capacity + out, a * w)
                        if depth > 0:
                            other_times += _join_times(table, row, time, to + 8 * (3 * capacity + out), capacity)
                        out += 1
                    row += 1
    info[0], info[1], info[2] = out, overflow, other_times
    return lines


@borrowing
def _join_times(table: int, row: int, time: Any, to: int, stride: int) -> int:
    """Write the join of `time` with the time of a row, coordinates `stride` apart; returns 1 where it is not `time`."""
    differs = i64(0)
    for d in range(time.shape[0]):
        t = load_i64(lane(table, TIME + d), row & lane_mask(table, TIME + d))
        if t > time[d]:
            differs = i64(1)
        store_i64(to, d * stride, max(t, time[d]))
    return differs


@kernel
def match_rows(
    directory: int, probe: int, rows: int, probe_key: Int64s, key: Int64s, nodes: int, null_safe: int, time: Int64s,
    limit: int, info: Int64s,
) -> Any:  # fmt: skip
    """All matches of the rows of a probe chunk: `find_matches` as a kernel for Python. In each line of the result the
    first info[0] numbers are valid."""
    return find_matches(directory, probe, rows, probe_key, key, nodes, null_safe, time, limit, info)
