"""Finding keys in sorted chunks.

Where a key is in a batch is told by `kernels.lookup.index`, at a cost that hardly depends on the number of rows; keys
are looked for a block at a time, each step for all of them before the next, so that they wait for memory together.
Where probes are so many that only some hundred rows lie between one and the next, walking along both sides is faster
(`walk_ranges`).

Hits are confirmed by comparing values, so colliding hashes cost time and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import borrowing, gil_kernel, i64, inlined, kernel
from dbspark.kernels.lookup.bloom_filter import covered_batches, sift
from dbspark.kernels.lookup.index import (
    BATCHES,
    DIRECTORY,
    NOWHERE,
    PLACE,
    TABLES,
    address,
    begin_block,
    describe,
    find_chunk,
    first_chunk,
    length_at,
    lower_bound,
    place_of,
    rest_of,
    table_at,
)
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

_BLOCK = 96
"""Keys that are looked for at a time."""


@gil_kernel
def first_keys(tables: Any, out: Any) -> None:
    for c in range(tables.shape[0]):
        out[c] = load_u64(lane(tables[c], KEY), 0)


@kernel
def weights_at(tables: Any, pos: Any, out: Any) -> None:
    for i in range(pos.shape[0]):
        table = tables[pos[i] >> ROW_BITS]
        out[i] = load_i64(lane(table, WEIGHT), (pos[i] & ROW_MASK) & lane_mask(table, WEIGHT))


@kernel
def probe_ranges(tables: Any, lens: Any, fences: Any, starts: Any, keys: Any, ranges: Any) -> int:
    """What `probe_indexed` finds, in batches without an index."""
    places, directory = np.zeros((starts.shape[0], PLACE), np.int64), np.empty(DIRECTORY, np.int64)
    where = describe(tables, lens, fences, starts, places, directory)
    total = ranges_of(where, address(keys), keys.shape[0], ranges)
    return total + 0 * (places[0, 0] + directory[0])  # which are freed after their last use, and used by address


@kernel
def probe_indexed(directory: int, keys: Any, ranges: Any) -> int:
    """Where each key hash lies: ranges[i, b] = (chunk, row, count) in batch b; returns the number of rows in all.

    `keys` may come in any order; equal ones beside each other are looked for once.
    """
    return ranges_of(directory, address(keys), keys.shape[0], ranges)


@inlined
def ranges_of(directory: int, keys: int, count: int, ranges: Any) -> int:
    """What `probe_indexed` gives, for so many keys at an address."""
    total = i64(0)
    near, begun, covered = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), covered_batches(directory)
    room = count if covered > 0 else i64(0)
    some, which = np.empty(room, np.uint64), np.empty(room, np.int64)
    passing = sift(directory, keys, count, some, which)
    for b in range(load_i64(directory, BATCHES)):
        first, last, place = first_chunk(directory, b), first_chunk(directory, b + 1), place_of(directory, b)
        for i in range(count):
            ranges[i, b, 0] = first
            ranges[i, b, 1] = ranges[i, b, 2] = 0
        if first >= last:
            continue
        sought, number = (address(some), passing) if b < covered else (keys, count)
        for begin in range(0, number, _BLOCK):
            end = min(begin + _BLOCK, number)
            before = i64(-1)
            for j in range(begin_block(directory, first, last, place, sought, begin, end, near, begun)):
                at, key = begin + near[j], load_u64(sought, begin + near[j])
                i = which[at] if b < covered else at
                if before >= 0 and key == load_u64(keys, before):
                    for k in range(3):
                        ranges[i, b, k] = ranges[before, b, k]
                else:
                    at = rest_of(directory, last, begun[j], key)
                    if at != NOWHERE:
                        ranges[i, b, 0], ranges[i, b, 1] = at >> ROW_BITS, at & ROW_MASK
                        ranges[i, b, 2] = _run_length(directory, last, at, key)
                before = i
                total += ranges[i, b, 2]
    return total


@inlined
def _run_length(directory: int, last: int, begin: int, key: Any) -> int:
    """How many rows from a position on, in chunks up to `last`, have a key hash; runs of few are counted one by one."""
    c, at, count = begin >> ROW_BITS, begin & ROW_MASK, i64(0)
    while True:
        keys, n = lane(load_i64(load_i64(directory, TABLES), c), KEY), length_at(directory, c)
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
    """Take over the range of the probe before this one, where it was for the same key."""
    if i == 0 or keys[i] != keys[i - 1]:
        return False
    for k in range(3):
        ranges[i, b, k] = ranges[i - 1, b, k]
    return True


@kernel
def walk_ranges(tables: Any, lens: Any, fences: Any, starts: Any, keys: Any, ranges: Any) -> int:
    """What `probe_ranges` finds, by a walk along both sides from the first key on; for keys in ascending order.

    Where keys fall, the next is searched for, so the answer is right in any order.
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
    tables: Any, lens: Any, ranges: Any, probe: int, probe_key: Any, key: Any, nodes: int, which: Any, pos: Any
) -> int:
    """Turn ranges into (probe row, position) pairs, leaving out rows whose key only collides; returns how many.

    The row at which a range begins may lie beyond its chunk; then it is counted on into the next ones. `key` and
    `probe_key` are the node indices of the key columns here and in the probe chunk.
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
    for k in range(key_a.shape[0]):
        if not equal_cells(table_a, key_a[k], i, table_b, key_b[k], j, nodes):
            return False
    return True


@kernel
def pair_weights(probe: int, which: Any, tables: Any, pos: Any, out: Any) -> int:
    """out[i] = the product of the weights of probe row which[i] and of the row at pos[i]. Returns 0 or OVERFLOW."""
    mine, mask = lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    for i in range(which.shape[0]):
        table = tables[pos[i] >> ROW_BITS]
        a = load_i64(mine, which[i] & mask)
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
def ask_for_match(table: int, row: int, key: Any) -> None:
    """Ask for the weight of a row, and for the value or the place of the text which will be compared first."""
    prefetch(lane(table, WEIGHT) + 8 * (row & lane_mask(table, WEIGHT)))
    if key.shape[0] > 0:
        at = table + key[0] * NODE_BYTES
        row += load_i64(at, START)
        if load_i64(at, OFFSETS) != 0:
            prefetch(load_i64(at, OFFSETS) + 4 * row)
        else:
            prefetch(load_i64(at, DATA) + load_i64(at, WIDTH) * row)


@inlined
def _twice_as_long(lines: Any) -> Any:
    out = np.empty((lines.shape[0], 2 * lines.shape[1]), np.int64)
    out[:, : lines.shape[1]] = lines
    return out


@inlined
def meet_rows(
    directory: int, probe: int, rows: int, probe_key: Any, key: Any, nodes: int, null_safe: int, time: Any, limit: int,
    info: Any,
) -> Any:  # fmt: skip
    """All rows that match a row of a probe chunk, in no order: lines of probe rows, positions, weights and times.

    Lines from the fourth on are the joins of `time`, of any number of coordinates, with the times of the rows found.
    Keys with a NULL match nothing unless `null_safe`. info = [pairs, OVERFLOW or 0, how many of the times are not
    `time` itself]; where there are more pairs than `limit`, nothing is of use.
    """
    depth = time.shape[0]
    room = 2 * rows + 64
    lines = np.empty((3 + depth, room), np.int64)
    to = address(lines)
    keys, mine, mask = lane(probe, KEY), lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    near, begun, covered = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), covered_batches(directory)
    some, which = np.empty(rows if covered > 0 else 0, np.uint64), np.empty(rows if covered > 0 else 0, np.int64)
    passing = sift(directory, keys, rows, some, which)
    out, overflow, later = i64(0), i64(0), i64(0)
    for b in range(covered if passing == 0 else i64(0), load_i64(directory, BATCHES)):
        first, last, place = first_chunk(directory, b), first_chunk(directory, b + 1), place_of(directory, b)
        if first >= last:
            continue
        sought, number = (address(some), passing) if b < covered else (keys, rows)
        for begin in range(0, number, _BLOCK):
            end = min(begin + _BLOCK, number)
            hits = i64(0)
            for j in range(begin_block(directory, first, last, place, sought, begin, end, near, begun)):
                at, i = rest_of(directory, last, begun[j], load_u64(sought, begin + near[j])), begin + near[j]
                i = which[i] if b < covered else i
                if at != NOWHERE and (null_safe != 0 or not _key_is_null(probe, i, probe_key)):
                    ask_for_match(table_at(directory, at), at & ROW_MASK, key)
                    near[hits], begun[hits] = i, at
                    hits += 1
            # Room is made before pairs are written: an array that might become another one is counted at every pair.
            more = i64(0)
            for j in range(hits):
                more += _run_length(directory, last, begun[j], load_u64(keys, near[j]))
            if out + more > room:
                if out + more > limit:
                    info[0], info[1], info[2] = limit + 1, overflow, later
                    return lines
                while out + more > room:
                    lines = _twice_as_long(lines)
                    room *= 2
                to = address(lines)
            for j in range(hits):
                at, i = begun[j], near[j]
                h, a = load_u64(keys, i), load_i64(mine, i & mask)
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
                        store_i64(to, room + out, c << ROW_BITS | row)
                        store_i64(to, 2 * room + out, a * w)
                        if depth > 0:
                            later += _join_times(table, row, time, to + 8 * (3 * room + out), room)
                        out += 1
                    row += 1
    info[0], info[1], info[2] = out, overflow, later
    return lines


@borrowing
def _join_times(table: int, row: int, time: Any, to: int, room: int) -> int:
    """Write the join of a time with that of a row, its coordinates `room` apart; 1 where it is not the time itself."""
    above = i64(0)
    for d in range(time.shape[0]):
        t = load_i64(lane(table, TIME + d), row & lane_mask(table, TIME + d))
        if t > time[d]:
            above = i64(1)
        store_i64(to, d * room, max(t, time[d]))
    return above


@kernel
def meet(
    directory: int, probe: int, rows: int, probe_key: Any, key: Any, nodes: int, null_safe: int, time: Any, limit: int,
    info: Any,
) -> Any:  # fmt: skip
    """See `meet_rows`: the lines that it fills, of which the first info[0] numbers are of use."""
    return meet_rows(directory, probe, rows, probe_key, key, nodes, null_safe, time, limit, info)
