"""Merging and consolidating rows that have times.

A row may occur once for every time. All occurrences of a row, in all sources, are a *group*: their times are
advanced to `since` (coordinate by coordinate, which is what advancing by a frontier comes to), sorted, and the weights
of equal times are summed; zero sums vanish. So times that have become the same meet here, whichever batches they come
from, and a row whose history has cancelled is gone.

What is read can be bounded: times not below or at `upto` are left out, and so are times at or below `after`. With
`since = upto` this is a snapshot, with `after` it is the changes between two times.

Unused coordinates are zero. `info` returns: [0] output rows or OVERFLOW, [1] input rows read, [2] 1 if every weight is
1, [3] 1 if all is read (`merge_timed` leaves that to its caller), [4] 1 if every time is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.interpreter import GIL_RELEASE_ROWS, release_gil, restore_gil
from dbspark.kernels.jit import borrowing, gil_kernel, i64, inlined, kernel
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
from dbspark.kernels.merge.consolidate import compare_positions, merge_into_pairs, same_row, sort_ties
from dbspark.kernels.sort.radix_sort import radix_sort
from dbspark.kernels.sort.row_order import compare_rows


@borrowing
def _later(group: Any, a: int, b: int) -> Any:
    """Whether entry a of a group has a later time than entry b, in the order of files: by coordinates in turn."""
    for c in range(TIMES):
        if group[a, c] != group[b, c]:
            return group[a, c] > group[b, c]
    return False


@borrowing
def _swap(group: Any, a: int, b: int) -> None:
    for c in range(TIMES + 1):
        group[a, c], group[b, c] = group[b, c], group[a, c]


@borrowing
def _sift(group: Any, root: int, size: int) -> None:
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
def _sort(group: Any, n: int) -> None:
    in_order = True
    for i in range(1, n):
        if _later(group, i - 1, i):
            in_order = False
            break
    if in_order:
        return
    if n <= 24:
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
    """Sort a group and sum equal times, dropping zeros; returns what is left of it, or OVERFLOW."""
    _sort(group, n)
    out = i64(0)
    i = i64(0)
    while i < n:
        # Halves are summed apart: what counts is whether the sum fits, not whether a part of it does.
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
    """Append row's time and weight to a group if it is within the bounds; returns the new size of the group."""
    before = i64(1)
    for c in range(TIMES):
        t = load_i64(lane(table, TIME + c), row & lane_mask(table, TIME + c))
        if t > bounds[1, c]:
            return n
        if t > bounds[2, c]:
            before = i64(0)
        group[n, c] = max(t, bounds[0, c])
    if before == 1 and bounds[3, 0] == 1:
        return n
    group[n, TIMES] = load_i64(lane(table, WEIGHT), row & lane_mask(table, WEIGHT))
    return n + 1


@inlined
def _grown(group: Any, n: int) -> Any:
    if n < group.shape[0]:
        return group
    larger = np.empty((2 * n, TIMES + 1), np.int64)
    larger[:n] = group[:n]
    return larger


@kernel
def merge_timed(
    tables: Any, lens: Any, cursors: Any, stops: Any, bounds: Any, columns: int, nodes: int, keys: Any, order: Any,
    pos: Any, weights: Any, times: Any, info: Any,
) -> None:  # fmt: skip
    """Merge all rows of some sources between cursors and stops, which no row equal to one of them lies beyond.

    They are folded as `merge_ranges` does it; then equal neighbours are a group. Most rows are alone. bounds = since,
    upto, after, and [1 if `after` counts, ...]. times[c] takes coordinate c. There is room for all rows that are read.
    """
    key_at, order_at = keys.ctypes.data, order.ctypes.data  # by address: the indices are never negative
    here, _, read = merge_into_pairs(tables, lens, cursors, stops, cursors.shape[0], columns, nodes, keys, order)
    group = np.empty((16, TIMES + 1), np.int64)
    out = i64(0)
    ones = i64(0)
    same = i64(1)
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
                    info[0] = OVERFLOW
                    return
        for g in range(n):
            pos[out] = p
            weights[out] = group[g, TIMES]
            ones |= group[g, TIMES] ^ 1
            for c in range(TIMES):
                times[c, out] = group[g, c]
                if group[g, c] != times[c, 0]:
                    same = i64(0)
            out += 1
    info[0] = out
    info[1] = read
    info[2] = 1 if ones == 0 else 0
    info[4] = same


@inlined
def _consolidate(
    tables: Any, where: Any, kh: Any, rh: Any, order: Any, columns: int, nodes: int, bounds: Any,
    pos: Any, weights: Any, times: Any, info: Any,
) -> None:  # fmt: skip
    """Consolidate rows in the order of their hashes. order[i] counts hashes, where[order[i]] is the row's position."""
    n = order.shape[0]
    group = np.empty((16, TIMES + 1), np.int64)
    out = i64(0)
    ones = i64(0)
    same = i64(1)
    i = i64(0)
    while i < n:
        first = order[i]
        order[i] = p = where[first]
        j = i + 1
        while j < n and rh[order[j]] == rh[first] and kh[order[j]] == kh[first]:
            order[j] = where[order[j]]
            j += 1
        if j == i + 1:  # as most rows are
            if _admit(tables[p >> ROW_BITS], p & ROW_MASK, bounds, group, i64(0)) == 1 and group[0, TIMES] != 0:
                pos[out], weights[out] = p, group[0, TIMES]
                ones |= group[0, TIMES] ^ 1
                for c in range(TIMES):
                    times[c, out] = group[0, c]
                    if group[0, c] != times[c, 0]:
                        same = i64(0)
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
                info[0] = OVERFLOW
                return
            for g in range(size):
                pos[out] = order[r]
                weights[out] = group[g, TIMES]
                ones |= group[g, TIMES] ^ 1
                for c in range(TIMES):
                    times[c, out] = group[g, c]
                    if group[g, c] != times[c, 0]:
                        same = i64(0)
                out += 1
            r = s
        i = j
    info[0] = out
    info[1] = n
    info[2] = 1 if ones == 0 else 0
    info[3] = 1
    info[4] = same


@kernel
def consolidate_timed(
    table: int, kh: Any, rh: Any, order: Any, columns: int, nodes: int, bounds: Any,
    pos: Any, weights: Any, times: Any, info: Any,
) -> None:  # fmt: skip
    """Consolidate one unsorted chunk, given the permutation that sorts its hashes. Positions are row numbers."""
    tables = np.empty(1, np.int64)
    tables[0] = table
    _consolidate(
        tables, np.arange(order.shape[0]), kh, rh, order, columns, nodes, bounds, pos, weights, times, info
    )  # fmt: skip


@kernel
def merge_by_sorting(
    tables: Any, lens: Any, bounds: Any, columns: int, nodes: int, pos: Any, weights: Any, times: Any, info: Any
) -> None:
    """Merge whole chunks of any number of sources by sorting all their rows: what many small ones cost least by."""
    n = i64(0)
    for c in range(lens.shape[0]):
        n += lens[c]
    kh, rh, where = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.int64)
    at = i64(0)
    for c in range(lens.shape[0]):
        key, word = lane(tables[c], KEY), lane(tables[c], HASH)
        for row in range(lens[c]):
            kh[at], rh[at], where[at] = load_u64(key, row), load_u64(word, row), i64(c) << ROW_BITS | i64(row)
            at += 1
    order = np.empty(n, np.int64)
    radix_sort(kh, rh, order, np.empty(2 * n, np.uint64), np.empty(n, np.int64))
    _consolidate(tables, where, kh, rh, order, columns, nodes, bounds, pos, weights, times, info)


@kernel
def times_at(tables: Any, pos: Any, coordinate: int, out: Any) -> None:
    """One coordinate of the times of the rows at some positions."""
    for i in range(pos.shape[0]):
        table = tables[pos[i] >> ROW_BITS]
        out[i] = load_i64(lane(table, TIME + coordinate), (pos[i] & ROW_MASK) & lane_mask(table, TIME + coordinate))


@gil_kernel
def survey_times(tables: Any, lens: Any, out: Any) -> None:
    """out = [1 if all rows have one time, then for each coordinate its least and greatest value]."""
    same, state = i64(1), release_gil(lens.sum() > GIL_RELEASE_ROWS)
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
            same = i64(0)
        out[1 + 2 * c], out[2 + 2 * c] = least, greatest
    out[0] = same
    restore_gil(state)


@gil_kernel
def retime(source: int, nodes: int, target: int, time: Any) -> None:
    """Copy a node table for rows that are all of one time, which is written behind the table."""
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
def join_times(tables: Any, pos: Any, time: Any, depth: int, out: Any) -> int:
    """out[i] = the join of `time` and the time of the row at pos[i]; returns how many of them are not `time` itself."""
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
    tables: Any, lens: Any, fences: Any, starts: Any, old: int, probe: int, rows: int, columns: int, nodes: int,
    time: Any, depth: int, change: Any, following: Any, which: Any, later: Any,
) -> int:  # fmt: skip
    """By how much the presence of each probe row changes at a time, and when it has to be judged again.

    The first `old` batches are the past, the others the present tick. A row is present where the weights of its times
    up to some time add up to more than zero. change[i] is what the present tick makes of that at `time`: the
    difference, over all coordinates, of present now minus present in the past.

    following[i] is lowered to the next value of the last coordinate that the row has in the same scope. Where it has
    times that are later in an outer coordinate, their joins with `time` are written as pairs of `which` and `later`.
    Returns the number of such pairs; if there is no room for them, only following[] and the number are of use.
    """
    batches = starts.shape[0] - 1
    ranges = np.empty((rows, batches, 3), np.int64)
    keys = np.empty(rows, np.uint64)
    for i in range(rows):
        keys[i] = load_u64(lane(probe, KEY), i)
    probe_ranges(tables, lens, fences, starts, keys, ranges)
    corners = 1 << depth
    sums = np.empty((2, corners), np.int64)
    room = which.shape[0]
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
                    equal = i64(0)  # coordinates in which the time is that of the judgement: not in the corners before
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
                        if out < room:
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
