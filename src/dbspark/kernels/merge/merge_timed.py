"""Consolidating and merging rows that have times.

A row may occur once for every time. All occurrences of a row, in all sources, are a *group*: their times are advanced
to `since` (the maximum with it in each coordinate, as compaction by a frontier does), sorted, and the weights of equal
times are summed; sums of zero are dropped. So times that become equal by advancing are summed, whichever batches they
come from, and a row whose history cancels disappears.

Reading can be bounded: times not less than or equal to `upto` are left out, and so are times less than or equal to
`after`. With `since = upto` the result is a snapshot, with `after` it is the changes between two times.

Coordinates that are not in use are zero. `info` returns the words that `kernels.merge.consolidate` names.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.cpython import GIL_RELEASE_ROWS, release_gil, restore_gil
from dbspark.kernels.jit import Int64Matrix, Int64s, UInt64s, borrowing, gil_kernel, i64, inlined, kernel
from dbspark.kernels.lookup.probe import probe_ranges
from dbspark.kernels.memory.intrinsics import load_i64, load_u64, store_i64
from dbspark.kernels.memory.layout import (
    DATA,
    FIELDS,
    HASH,
    KEY,
    MASK,
    OVERFLOW,
    ROW_BITS,
    ROW_MASK,
    START,
    TIME,
    TIMES,
    WEIGHT,
)
from dbspark.kernels.memory.nodes import lane, lane_mask
from dbspark.kernels.merge.consolidate import (
    ALL_ONES,
    FINISHED,
    INPUT_ROWS,
    ONE_TIME,
    OUTPUT_ROWS,
    compare_positions,
    merge_into_pairs,
    same_row,
    sort_ties,
)
from dbspark.kernels.sort.radix_sort import radix_sort
from dbspark.kernels.sort.row_order import compare_rows

# Rows of `bounds`.
_SINCE: Final = 0
_UPTO: Final = 1
_AFTER: Final = 2
_FLAGS: Final = 3
"""[1 if `after` is a bound, 0 if it is to be ignored; the rest is unused]"""

_MAX_INSERTION_TIMES: Final = 24
"""Groups of at most this many times are sorted by insertion, larger ones by heap sort."""
_GROUP_TIMES: Final = 16
"""Initial capacity of a group, in times; it grows."""


@borrowing
def _later(group: Any, a: int, b: int) -> Any:
    """Whether entry a of a group has a later time than entry b, in lexicographic order, which is that of batches."""
    for c in range(TIMES):
        if group[a, c] != group[b, c]:
            return group[a, c] > group[b, c]
    return False


@borrowing
def _swap(group: Any, a: int, b: int) -> None:
    """Swap two entries of a group."""
    for c in range(TIMES + 1):
        group[a, c], group[b, c] = group[b, c], group[a, c]


@borrowing
def _sift(group: Any, root: int, size: int) -> None:
    """Restore the heap below `root` in the first `size` entries of a group."""
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        if child + 1 < size and _later(group, child + 1, child):
            child += 1
        if not _later(group, child, root):
            return
        _swap(group, root, child)
        root = child


@borrowing
def _sort_times(group: Any, n: int) -> None:
    """Sort the n entries of a group by time."""
    in_order = True
    for i in range(1, n):
        if _later(group, i - 1, i):
            in_order = False
            break
    if in_order:
        return
    if n <= _MAX_INSERTION_TIMES:
        for i in range(1, n):
            j = i
            while j > 0 and _later(group, j - 1, j):
                _swap(group, j - 1, j)
                j -= 1
        return
    for root in range(n // 2 - 1, -1, -1):
        _sift(group, i64(root), n)
    for last in range(n - 1, 0, -1):
        _swap(group, i64(0), i64(last))
        _sift(group, i64(0), i64(last))


@borrowing
def _reduce(group: Any, n: int) -> int:
    """Sort a group and sum the weights of equal times, dropping zeros; returns its new size, or OVERFLOW."""
    _sort_times(group, n)
    out = i64(0)
    i = i64(0)
    while i < n:
        # Both halves of the weights are summed: a sum in range must not fail because a partial sum is out of range.
        high, low = group[i, TIMES] >> 32, group[i, TIMES] & 0xFFFFFFFF
        j = i + 1
        while j < n and not _later(group, j, i):
            high += group[j, TIMES] >> 32
            low += group[j, TIMES] & 0xFFFFFFFF
            j += 1
        high += low >> 32
        low &= 0xFFFFFFFF
        if high < -0x80000000 or high > 0x7FFFFFFF or (high == -0x80000000 and low == 0):
            return i64(OVERFLOW)
        total = high << 32 | low
        if total != 0:
            for c in range(TIMES):
                group[out, c] = group[i, c]
            group[out, TIMES] = total
            out += 1
        i = j
    return out


@borrowing
def _admit(table: int, row: int, bounds: Any, group: Any, n: int) -> int:
    """Append the time and weight of a row to a group if the time is within the bounds; returns the new size."""
    at_or_before = i64(1)
    for c in range(TIMES):
        t = load_i64(lane(table, TIME + c), row & lane_mask(table, TIME + c))
        if t > bounds[_UPTO, c]:
            return n
        if t > bounds[_AFTER, c]:
            at_or_before = i64(0)
        group[n, c] = max(t, bounds[_SINCE, c])
    if at_or_before == 1 and bounds[_FLAGS, 0] == 1:
        return n
    group[n, TIMES] = load_i64(lane(table, WEIGHT), row & lane_mask(table, WEIGHT))
    return n + 1


@inlined
def _grown(group: Any, n: int) -> Any:
    """A group with memory for at least n + 1 times."""
    if n < group.shape[0]:
        return group
    larger = np.empty((2 * n, TIMES + 1), np.int64)
    larger[:n] = group[:n]
    return larger


@kernel
def merge_timed(
    tables: Int64s, lens: Int64s, cursors: Int64Matrix, stops: Int64Matrix, bounds: Int64Matrix, columns: int,
    nodes: int, keys: UInt64s, order: Int64s, pos: Int64s, weights: Int64s, times: Int64Matrix, info: Int64s,
) -> None:  # fmt: skip
    """Merge all rows of some sources between cursors and stops. Equal rows lie on the same side of the stops.

    The rows of all sources are merged into one run of pairs (`consolidate.merge_into_pairs`), and equal neighbours of
    the run are a group; most rows are alone. bounds = since, upto, after, [1 if `after` is a bound, …]. times[c]
    gets coordinate c. The output arrays have space for all rows that are read.
    """
    key_at, order_at = keys.ctypes.data, order.ctypes.data  # by address: the indices are never negative
    here, _, read = merge_into_pairs(tables, lens, cursors, stops, cursors.shape[0], columns, nodes, keys, order)
    group = np.empty((_GROUP_TIMES, TIMES + 1), np.int64)
    out = i64(0)
    not_one = i64(0)
    one_time = i64(1)
    i = here
    end = here + read
    while i < end:
        key, p = load_u64(key_at, i), load_i64(order_at, i)
        n = _admit(tables[p >> ROW_BITS], p & ROW_MASK, bounds, group, i64(0))
        i += 1
        if i < end and load_u64(key_at, i) == key:
            while i < end and load_u64(key_at, i) == key:
                q = load_i64(order_at, i)
                if not same_row(p, q, tables, columns, nodes):
                    break
                group = _grown(group, n)
                n = _admit(tables[q >> ROW_BITS], q & ROW_MASK, bounds, group, n)
                i += 1
            if n > 1:
                n = _reduce(group, n)
                if n < 0:
                    info[OUTPUT_ROWS] = OVERFLOW
                    return
        for g in range(n):
            pos[out] = p
            weights[out] = group[g, TIMES]
            not_one |= group[g, TIMES] ^ 1
            for c in range(TIMES):
                times[c, out] = group[g, c]
                if group[g, c] != times[c, 0]:
                    one_time = i64(0)
            out += 1
    info[OUTPUT_ROWS] = out
    info[INPUT_ROWS] = read
    info[ALL_ONES] = 1 if not_one == 0 else 0
    info[ONE_TIME] = one_time


@inlined
def _consolidate(
    tables: Any, positions: Any, key_hashes: Any, row_hashes: Any, order: Any, columns: int, nodes: int, bounds: Any,
    pos: Any, weights: Any, times: Any, info: Any,
) -> None:  # fmt: skip
    """Consolidate rows in the order of their hashes: row i of the order has the position positions[order[i]].

    `order` is overwritten with positions.
    """
    n = order.shape[0]
    group = np.empty((_GROUP_TIMES, TIMES + 1), np.int64)
    out = i64(0)
    not_one = i64(0)
    one_time = i64(1)
    i = i64(0)
    while i < n:
        first = order[i]
        order[i] = p = positions[first]
        j = i + 1
        while j < n and row_hashes[order[j]] == row_hashes[first] and key_hashes[order[j]] == key_hashes[first]:
            order[j] = positions[order[j]]
            j += 1
        if j == i + 1:  # most rows are alone
            if _admit(tables[p >> ROW_BITS], p & ROW_MASK, bounds, group, i64(0)) == 1 and group[0, TIMES] != 0:
                pos[out], weights[out] = p, group[0, TIMES]
                not_one |= group[0, TIMES] ^ 1
                for c in range(TIMES):
                    times[c, out] = group[0, c]
                    if group[0, c] != times[c, 0]:
                        one_time = i64(0)
                out += 1
            i = j
            continue
        sort_ties(tables, order, i, j, columns, nodes)
        r = i
        while r < j:
            size = i64(0)
            s = r
            while s < j and (s == r or compare_positions(tables, order[r], order[s], columns, nodes) == 0):
                group = _grown(group, size)
                size = _admit(tables[order[s] >> ROW_BITS], order[s] & ROW_MASK, bounds, group, size)
                s += 1
            size = _reduce(group, size)
            if size < 0:
                info[OUTPUT_ROWS] = OVERFLOW
                return
            for g in range(size):
                pos[out] = order[r]
                weights[out] = group[g, TIMES]
                not_one |= group[g, TIMES] ^ 1
                for c in range(TIMES):
                    times[c, out] = group[g, c]
                    if group[g, c] != times[c, 0]:
                        one_time = i64(0)
                out += 1
            r = s
        i = j
    info[OUTPUT_ROWS] = out
    info[INPUT_ROWS] = n
    info[ALL_ONES] = 1 if not_one == 0 else 0
    info[FINISHED] = 1
    info[ONE_TIME] = one_time


@kernel
def consolidate_timed(
    table: int, key_hashes: UInt64s, row_hashes: UInt64s, order: Int64s, columns: int, nodes: int, bounds: Int64Matrix,
    pos: Int64s, weights: Int64s, times: Int64Matrix, info: Int64s,
) -> None:  # fmt: skip
    """Consolidate one unsorted chunk. `order` sorts its hashes (`radix_sort`); positions are row numbers."""
    tables = np.empty(1, np.int64)
    tables[0] = table
    _consolidate(
        tables, np.arange(order.shape[0]), key_hashes, row_hashes, order, columns, nodes, bounds, pos, weights, times,
        info
    )  # fmt: skip


@kernel
def merge_by_sorting(
    tables: Int64s,
    lens: Int64s,
    bounds: Int64Matrix,
    columns: int,
    nodes: int,
    pos: Int64s,
    weights: Int64s,
    times: Int64Matrix,
    info: Int64s,
) -> None:
    """Merge whole chunks, of any number of sources, by sorting all their rows: the cheapest way for many small
    sources."""
    n = i64(0)
    for c in range(lens.shape[0]):
        n += lens[c]
    key_hashes, row_hashes, positions = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.int64)
    at = i64(0)
    for c in range(lens.shape[0]):
        key, word = lane(tables[c], KEY), lane(tables[c], HASH)
        for row in range(lens[c]):
            key_hashes[at], row_hashes[at], positions[at] = (
                load_u64(key, row),
                load_u64(word, row),
                i64(c) << ROW_BITS | i64(row),
            )
            at += 1
    order = np.empty(n, np.int64)
    radix_sort(key_hashes, row_hashes, order, np.empty(2 * n, np.uint64), np.empty(n, np.int64))
    _consolidate(tables, positions, key_hashes, row_hashes, order, columns, nodes, bounds, pos, weights, times, info)


@kernel
def times_at(tables: Int64s, pos: Int64s, coordinate: int, out: Int64s) -> None:
    """out[i] = one coordinate of the time of the row at pos[i]."""
    for i in range(pos.shape[0]):
        table = tables[pos[i] >> ROW_BITS]
        out[i] = load_i64(lane(table, TIME + coordinate), (pos[i] & ROW_MASK) & lane_mask(table, TIME + coordinate))


@gil_kernel
def survey_times(tables: Int64s, lens: Int64s, out: Int64s) -> None:
    """out = [1 if all rows have the same time, then the least and the greatest value of each coordinate]."""
    one_time, state = i64(1), release_gil(lens.sum() > GIL_RELEASE_ROWS)
    for c in range(TIMES):
        least, greatest = i64(0), i64(0)
        seen = False
        for chunk in range(tables.shape[0]):
            at = lane(tables[chunk], TIME + c)
            rows = min(i64(1), lens[chunk]) if lane_mask(tables[chunk], TIME + c) == 0 else lens[chunk]
            for row in range(rows):
                t = load_i64(at, row)
                if not seen:
                    least, greatest, seen = t, t, True
                least, greatest = min(least, t), max(greatest, t)
        if least != greatest:
            one_time = i64(0)
        out[1 + 2 * c], out[2 + 2 * c] = least, greatest
    out[0] = one_time
    restore_gil(state)


@gil_kernel
def retime(source: int, nodes: int, target: int, time: Int64s) -> None:
    """Copy a node table to `target`, with `time` as the time of all rows; the time is written behind the copy."""
    words = nodes * FIELDS
    for i in range(words):
        store_i64(target, i, load_i64(source, i))
    for c in range(TIMES):
        line = (TIME + c) * FIELDS
        store_i64(target, words + c, time[c])
        store_i64(target, line + DATA, target + 8 * (words + c))
        store_i64(target, line + START, i64(0))
        store_i64(target, line + MASK, i64(0))


@kernel
def join_times(tables: Int64s, pos: Int64s, time: Int64s, depth: int, out: Int64Matrix) -> int:
    """out[i] = the join (least upper bound) of `time` and the time of the row at pos[i]; returns how many are not
    `time`."""
    later = i64(0)
    for i in range(pos.shape[0]):
        table = tables[pos[i] >> ROW_BITS]
        above = i64(0)
        for c in range(depth):
            t = load_i64(lane(table, TIME + c), (pos[i] & ROW_MASK) & lane_mask(table, TIME + c))
            if t > time[c]:
                above = i64(1)
            out[i, c] = max(t, time[c])
        later += above
    return later


@kernel
def presence_changes(
    tables: Int64s, lens: Int64s, fences: UInt64s, starts: Int64s, old: int, probe: int, rows: int, columns: int,
    nodes: int, time: Int64s, depth: int, change: Int64s, following: Int64s, which: Int64s, later: Int64Matrix,
) -> int:  # fmt: skip
    """By how much the presence of each probe row changes at a time, and at which times it has to be computed again.

    The first `old` batches are from earlier ticks, the others from the current one. A row is present (1, else 0) at a
    time where the weights of its occurrences up to that time sum to more than zero. change[i] = presence with the
    current tick minus presence without it, differentiated in every coordinate and taken at `time`.

    following[i] is lowered to the next value of the last coordinate at which the row occurs in the same scope. Where
    the row has times that are later in an outer coordinate, their joins with `time` are written as pairs of `which` and
    `later`. Returns the number of such pairs; where it exceeds the space for them, only it and following[] are valid.
    """
    batches = starts.shape[0] - 1
    ranges = np.empty((rows, batches, 3), np.int64)
    keys = np.empty(rows, np.uint64)
    for i in range(rows):
        keys[i] = load_u64(lane(probe, KEY), i)
    probe_ranges(tables, lens, fences, starts, keys, ranges)
    corners = 1 << depth
    sums = np.empty((2, corners), np.int64)
    max_pairs = which.shape[0]
    out = i64(0)
    for i in range(rows):
        for m in range(corners):
            sums[0, m] = sums[1, m] = 0
        for b in range(batches):
            c = ranges[i, b, 0]
            at = ranges[i, b, 1]
            for _ in range(ranges[i, b, 2]):
                while at >= lens[c]:
                    c += 1
                    at = i64(0)
                table = tables[c]
                if compare_rows(probe, i64(i), table, at, columns, nodes) == 0:
                    # Bit d of `equal`: coordinate d equals that of `time`, so corners that lie before `time` in
                    # coordinate d do not have the row.
                    equal = i64(0)
                    outer = i64(0)
                    inner = i64(-1)
                    for d in range(depth):
                        t = load_i64(lane(table, TIME + d), at & lane_mask(table, TIME + d))
                        if t > time[d]:
                            if d < depth - 1:
                                outer = i64(1)
                            else:
                                inner = t
                        elif t == time[d]:
                            equal |= i64(1) << d
                    if outer == 1:
                        if out < max_pairs:
                            which[out] = i
                            for d in range(depth):
                                t = load_i64(lane(table, TIME + d), at & lane_mask(table, TIME + d))
                                later[out, d] = max(t, time[d])
                        out += 1
                    elif inner >= 0:
                        following[i] = min(following[i], inner)
                    else:
                        w = load_i64(lane(table, WEIGHT), at & lane_mask(table, WEIGHT))
                        for m in range(corners):
                            if m & equal == 0:
                                sums[1, m] += w
                                if b < old:
                                    sums[0, m] += w
                at += 1
        total = i64(0)
        for m in range(corners):
            sign = i64(1)
            for d in range(depth):
                if (m >> d) & 1:
                    sign = -sign
            total += sign * (i64(sums[1, m] > 0) - i64(sums[0, m] > 0))
        change[i] = total
    return out
