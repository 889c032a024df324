"""Where whole rows are, and what they weigh in all batches together.

Few rows, or one (`weigh_point`), are searched for one after the other. Rows of a delta are looked for a block at a time
(`add_weights`), each step for all of them before the next, by the indices and the sieve of a spine
(`kernels.lookup.index`, `kernels.lookup.bloom_filter`), so that they wait for memory together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import i64, inlined, kernel
from dbspark.kernels.lookup.bloom_filter import covered_batches, sift
from dbspark.kernels.lookup.index import (
    BATCHES,
    NOWHERE,
    address,
    begin_block,
    find_chunk,
    first_chunk,
    length_at,
    lower_bound,
    place_of,
    rest_of,
    table_at,
)
from dbspark.kernels.lookup.probe import ask_for_match
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

LEAST = -(1 << 63)
"""No weight is this; a kernel that returns one weight says with it that the sum is beyond int64."""
_TOP = np.uint64(0xFFFFFFFFFFFFFFFF)
_NEAR = 8
"""Rows of one key that are walked over before their hashes are searched."""
_BLOCK = 96
"""Rows that are looked for at a time."""


@inlined
def find_row(
    tables: int, lens: int, fences: int, first: int, last: int,
    probe: int, row: int, key: Any, rh: Any, columns: int, nodes: int,
) -> int:  # fmt: skip
    """Position in one batch of the row equal to row `row` of chunk table `probe`, or -1.

    The batch is chunks first … last-1 of those whose tables, lengths and first keys are at these addresses.
    """
    if first >= last:
        return -1
    chunk = find_chunk(fences, first, last, key)
    at = lower_bound(lane(load_i64(tables, chunk), KEY), i64(0), load_i64(lens, chunk), key)
    near = i64(0)
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
        found = load_u64(hashes, at)
        if found > rh:
            return -1
        if found == rh:
            order = compare_rows(table, at, probe, row, columns, nodes)
            if order == 0:
                return chunk << ROW_BITS | at
            if order > 0:
                return -1
            at += 1
        elif near < _NEAR:
            near += 1
            at += 1
        else:
            # A key of many rows: they are sorted by row hash, so search for it instead of walking there.
            above = load_i64(lens, chunk)
            if key != _TOP:
                above = lower_bound(lane(table, KEY), at, above, key + np.uint64(1))
            at = lower_bound(hashes, at, above, rh)


@kernel
def sum_weights(
    tables: Any, lens: Any, fences: Any, starts: Any, probe: int, rows: int, columns: int, nodes: int, out: Any
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
    tables: Any, lens: Any, fences: Any, starts: Any,
    more_tables: Any, more_lens: Any, more_fences: Any, more_starts: Any,
    probe: int, rows: int, columns: int, nodes: int,
) -> int:  # fmt: skip
    """How many rows more there are when the rows of the probe chunk are added to those of two lists of batches.

    No sum overflows; that is the caller's promise.
    """
    keys = lane(probe, KEY)
    hashes = lane(probe, HASH)
    own = lane(probe, WEIGHT)
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
        elif total + load_i64(own, i & mask) == 0:
            change -= 1
    return change


@inlined
def _word(node: int) -> Any:
    """The word that the first value of a flat column contributes to a hash; see `dbspark.kernels.memory.hash`."""
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
        h = fold(h, _word(probe + column * NODE_BYTES))
    h &= np.uint64(mask)
    store_u64(lane(probe, HASH), 0, h)
    return h


@kernel
def hash_point(probe: int, columns: int, mask: int) -> None:
    """Set the hash lane of a probe of one row, which is also its key lane; columns are flat."""
    _hash_point(probe, columns, mask)


@kernel
def weigh_point(directory: int, probe: int, mask: int) -> int:
    """Hash the one row of a probe and return its total weight over all batches, or LEAST if that is beyond int64.

    `directory` is the address of what `directory_of` has written: a call takes longer the more arguments it has.
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
                return i64(LEAST)
            total += w
    return total


def directory_of(tables: Any, lens: Any, fences: Any, starts: Any, columns: int, nodes: int) -> Any:
    """Some batches for `weigh_point`; their arrays must be kept as long as it is used."""
    where = [array.ctypes.data for array in (tables, lens, fences, starts)]
    return np.array([*where, len(starts) - 1, columns, nodes], np.int64)


@kernel
def locate(
    tables: Any, lens: Any, fences: Any, starts: Any, probe: int, rows: int, columns: int, nodes: int, out: Any
) -> None:
    """out[i] = position, in the first batch, of the row equal to row i of the probe chunk, or -1."""
    keys = lane(probe, KEY)
    hashes = lane(probe, HASH)
    where = address(tables), address(lens), address(fences)
    for i in range(rows):
        out[i] = find_row(
            *where, starts[0], starts[1], probe, i, load_u64(keys, i), load_u64(hashes, i), columns, nodes
        )


@inlined
def add_weights(directory: int, probe: int, rows: int, columns: int, nodes: int, out: Any) -> Any:
    """out[i] += the total weight, over the batches of a spine by whole rows, of the row equal to row i of a chunk.

    False where a sum might be beyond int64: nothing is of use then.
    """
    keys, covered, first_column = lane(probe, KEY), covered_batches(directory), np.full(1, LANES, np.int64)
    near, begun = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    room = rows if covered > 0 else i64(0)
    some, which = np.empty(room, np.uint64), np.empty(room, np.int64)
    passing = sift(directory, keys, rows, some, which)
    fits = True
    for b in range(covered if passing == 0 else i64(0), load_i64(directory, BATCHES)):
        first, last, place = first_chunk(directory, b), first_chunk(directory, b + 1), place_of(directory, b)
        if first >= last:
            continue
        sought, number = (address(some), passing) if b < covered else (keys, rows)
        for begin in range(0, number, _BLOCK):
            hits = i64(0)
            end = min(begin + _BLOCK, number)
            for j in range(begin_block(directory, first, last, place, sought, begin, end, near, begun)):
                i = begin + near[j]
                at = rest_of(directory, last, begun[j], load_u64(sought, i))
                if at != NOWHERE:
                    ask_for_match(table_at(directory, at), at & ROW_MASK, first_column)
                    near[hits], begun[hits] = which[i] if b < covered else i, at
                    hits += 1
            for j in range(hits):
                c, row, i = begun[j] >> ROW_BITS, begun[j] & ROW_MASK, near[j]
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
