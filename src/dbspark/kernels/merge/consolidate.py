"""Consolidating rows, and merging sorted batches: which rows are in the result, in what order, with what weight.

These kernels *plan*. They read the lanes of hashes and weights, and column values only where hashes are equal; they
write positions and weights, and `gather` then copies each column once.

1. Sources are strictly increasing in (key hash, row hash, values), and so is the output: equal rows become neighbours,
   their weights are summed, and rows whose weights sum to zero are dropped.
2. A sum of weights outside the range is reported as OVERFLOW; nothing of that plan is used.
3. A merge works in steps. `merge_two` stops after `limit` output rows, and its cursors say where the next step goes on;
   a pair of rows that cancel counts as an output row, so a step in which everything cancels ends too. `merge_ranges`
   merges everything before the stops that `kernels.merge.split` has chosen.

A cursor is (chunk, row). `info` returns the words below.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.cpython import GIL_RELEASE_ROWS, release_gil, restore_gil
from dbspark.kernels.jit import Int64Matrix, Int64s, UInt64s, borrowing, gil_kernel, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import add_overflows, load_i64, load_u64, store_i64, store_u64
from dbspark.kernels.memory.layout import HASH, KEY, OVERFLOW, ROW_BITS, ROW_MASK, WEIGHT
from dbspark.kernels.memory.nodes import lane, lane_mask
from dbspark.kernels.sort.row_order import compare_rows

OUTPUT_ROWS: Final = 0
"""Output rows, or OVERFLOW."""
INPUT_ROWS: Final = 1
"""Input rows that have been read."""
ALL_ONES: Final = 2
"""1 if every output weight is 1."""
FINISHED: Final = 3
"""1 if all input has been read. `merge_ranges` and `merge_timed` do not set it: callers know it from the stops."""
ONE_TIME: Final = 4
"""1 if all output rows have the same time (only where rows have times)."""


@borrowing
def compare_positions(tables: Any, p: int, q: int, columns: int, nodes: int) -> int:
    """Compare the values of the rows at two positions."""
    return compare_rows(tables[p >> ROW_BITS], p & ROW_MASK, tables[q >> ROW_BITS], q & ROW_MASK, columns, nodes)


@borrowing
def _sift_rows(tables: Any, order: Any, begin: int, root: int, size: int, columns: int, nodes: int) -> None:
    """Restore the heap below `root` in the `size` positions from `begin` on."""
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        if (
            child + 1 < size
            and compare_positions(tables, order[begin + child], order[begin + child + 1], columns, nodes) < 0
        ):
            child += 1
        if compare_positions(tables, order[begin + root], order[begin + child], columns, nodes) >= 0:
            return
        order[begin + root], order[begin + child] = order[begin + child], order[begin + root]
        root = child


@borrowing
def sort_ties(tables: Any, order: Any, begin: int, end: int, columns: int, nodes: int) -> None:
    """Sort positions of rows with equal hashes by value. Nearly always the rows are equal, and one pass shows it."""
    sorted_so_far = True
    for i in range(begin + 1, end):
        if compare_positions(tables, order[i - 1], order[i], columns, nodes) > 0:
            sorted_so_far = False
            break
    if sorted_so_far:
        return
    size = end - begin
    for root in range(size // 2 - 1, -1, -1):
        _sift_rows(tables, order, begin, root, size, columns, nodes)
    for last in range(size - 1, 0, -1):
        order[begin], order[begin + last] = order[begin + last], order[begin]
        _sift_rows(tables, order, begin, i64(0), last, columns, nodes)


@inlined
def consolidate_sorted(
    table: int, key_hashes: Any, row_hashes: Any, order: Any, columns: int, nodes: int,
    pos: Any, weights: Any, info: Any,
) -> None:  # fmt: skip
    """Consolidate one unsorted chunk, whose hashes `order` sorts: `consolidate` as a helper of other kernels."""
    n = order.shape[0]
    w = lane(table, WEIGHT)
    mask = lane_mask(table, WEIGHT)
    tables = np.empty(1, np.int64)
    tables[0] = table
    out = 0
    not_one = i64(0)
    i = i64(0)
    while i < n:
        first = order[i]
        j = i + 1
        while j < n and row_hashes[order[j]] == row_hashes[first] and key_hashes[order[j]] == key_hashes[first]:
            j += 1
        if j == i + 1:
            total = load_i64(w, first & mask)
            if total != 0:
                pos[out] = first
                weights[out] = total
                not_one |= total ^ 1
                out += 1
        else:
            all_equal = True  # stays true nearly always: hashes rarely collide
            for r in range(i + 1, j):
                if compare_rows(table, first, table, order[r], columns, nodes) != 0:
                    all_equal = False
                    break
            if not all_equal:
                sort_ties(tables, order, i, j, columns, nodes)
            r = i
            while r < j:
                total = load_i64(w, order[r] & mask)
                s = r + 1
                while s < j and (all_equal or compare_rows(table, order[r], table, order[s], columns, nodes) == 0):
                    weight = load_i64(w, order[s] & mask)
                    if add_overflows(total, weight):
                        info[OUTPUT_ROWS] = OVERFLOW
                        return
                    total += weight
                    s += 1
                if total != 0:
                    pos[out] = order[r]
                    weights[out] = total
                    not_one |= total ^ 1
                    out += 1
                r = s
        i = j
    info[OUTPUT_ROWS] = out
    info[INPUT_ROWS] = n
    info[ALL_ONES] = 1 if not_one == 0 else 0
    info[FINISHED] = 1


@kernel
def consolidate(
    table: int, key_hashes: UInt64s, row_hashes: UInt64s, order: Int64s, columns: int, nodes: int,
    pos: Int64s, weights: Int64s, info: Int64s,
) -> None:  # fmt: skip
    """Consolidate one unsorted chunk. `order` sorts its hashes (`radix_sort`); positions are row numbers."""
    consolidate_sorted(table, key_hashes, row_hashes, order, columns, nodes, pos, weights, info)


@kernel
def merge_two(
    tables: Int64s,
    lens: Int64s,
    cursors: Int64Matrix,
    ends: Int64Matrix,
    columns: int,
    nodes: int,
    limit: int,
    pos: Int64s,
    weights: Int64s,
    info: Int64s,
) -> None:
    """Merge two sources in a step of at most `limit` output rows, from the cursors on and up to the ends."""
    pos_out, weights_out = pos.ctypes.data, weights.ctypes.data  # stored to by address: `out` is never negative
    ca, ia, cb, ib = cursors[0, 0], cursors[0, 1], cursors[1, 0], cursors[1, 1]
    out = i64(0)
    read = i64(0)
    cancelled = i64(0)  # pairs; each counts as an output row, so that a step ends
    not_one = i64(0)
    while out + cancelled < limit:
        while ca < ends[0, 0] and ia >= lens[ca]:
            ca += 1
            ia = i64(0)
        while cb < ends[1, 0] and ib >= lens[cb]:
            cb += 1
            ib = i64(0)
        na = ends[0, 1] if ca == ends[0, 0] else lens[ca]
        nb = ends[1, 1] if cb == ends[1, 0] else lens[cb]
        left_a = ia < na
        left_b = ib < nb
        if not left_a and not left_b:
            break
        if left_a and left_b:
            ta, tb = tables[ca], tables[cb]
            ka, kb = lane(ta, KEY), lane(tb, KEY)
            ra, rb = lane(ta, HASH), lane(tb, HASH)
            wa, wb = lane(ta, WEIGHT), lane(tb, WEIGHT)
            ma, mb = lane_mask(ta, WEIGHT), lane_mask(tb, WEIGHT)
            pa, pb = ca << ROW_BITS, cb << ROW_BITS
            begin_a, begin_b = ia, ib
            while ia < na and ib < nb and out + cancelled < limit:
                x = load_u64(ka, ia)
                y = load_u64(kb, ib)
                if x == y:
                    if ka != ra or kb != rb:
                        x = load_u64(ra, ia)
                        y = load_u64(rb, ib)
                    if x == y:
                        order = compare_rows(ta, ia, tb, ib, columns, nodes)
                        if order == 0:
                            u = load_i64(wa, ia & ma)
                            v = load_i64(wb, ib & mb)
                            if add_overflows(u, v):
                                info[OUTPUT_ROWS] = OVERFLOW
                                return
                            if u + v != 0:
                                store_i64(pos_out, out, pa | ia)
                                store_i64(weights_out, out, u + v)
                                not_one |= (u + v) ^ 1
                                out += 1
                            else:
                                cancelled += 1
                            ia += 1
                            ib += 1
                            continue
                        take = order < 0
                    else:
                        take = x < y
                else:
                    take = x < y
                # Which side comes next is random, because hashes are: arithmetic, since a branch would be mispredicted.
                t = i64(take)
                at = ib & mb
                w = load_i64(wb + t * (wa - wb), at + t * ((ia & ma) - at))
                store_i64(pos_out, out, (pb | ib) + t * ((pa | ia) - (pb | ib)))
                store_i64(weights_out, out, w)
                not_one |= w ^ 1
                out += 1
                ia += t
                ib += 1 - t
            read += ia - begin_a + ib - begin_b
        else:
            chunk, row, end = (ca, ia, na) if left_a else (cb, ib, nb)
            n = min(end - row, limit - out - cancelled)
            w0 = lane(tables[chunk], WEIGHT)
            m0 = lane_mask(tables[chunk], WEIGHT)
            at = chunk << ROW_BITS | row
            for r in range(n):
                w = load_i64(w0, (row + r) & m0)
                store_i64(pos_out, out + r, at + r)
                store_i64(weights_out, out + r, w)
                not_one |= w ^ 1
            out += n
            read += n
            if left_a:
                ia += n
            else:
                ib += n
    cursors[0, 0], cursors[0, 1], cursors[1, 0], cursors[1, 1] = ca, ia, cb, ib
    info[OUTPUT_ROWS] = out
    info[INPUT_ROWS] = read
    info[ALL_ONES] = 1 if not_one == 0 else 0
    done_a = ca == ends[0, 0] and ia >= ends[0, 1]
    done_b = cb == ends[1, 0] and ib >= ends[1, 1]
    info[FINISHED] = 1 if done_a and done_b else 0


@borrowing
def _compare_same_key(p: int, q: int, tables: Any, columns: int, nodes: int) -> int:
    """Compare the rows at two positions whose key hashes are equal."""
    ta, tb = tables[p >> ROW_BITS], tables[q >> ROW_BITS]
    i, j = p & ROW_MASK, q & ROW_MASK
    x = load_u64(lane(ta, HASH), i)
    y = load_u64(lane(tb, HASH), j)
    if x != y:
        return -1 if x < y else 1
    return compare_rows(ta, i, tb, j, columns, nodes)


@inlined
def _merge_neighbours(
    key_at: int, order_at: int, i: int, middle: int, end: int, out: int, tables: Any, columns: int, nodes: int
) -> None:
    """Merge the (key hash, position) pairs i … middle-1 with the pairs middle … end-1, into those from `out` on."""
    j = middle
    while i < middle and j < end:
        x, y = load_u64(key_at, i), load_u64(key_at, j)
        p, q = load_i64(order_at, i), load_i64(order_at, j)
        take = x < y
        if x == y:
            take = _compare_same_key(p, q, tables, columns, nodes) <= 0
        # Which side comes next is random: arithmetic, since a branch would be mispredicted.
        t = i64(take)
        store_u64(key_at, out, min(x, y))
        store_i64(order_at, out, q + t * (p - q))
        out += 1
        i += t
        j += 1 - t
    rest, stop = (i, middle) if i < middle else (j, end)
    for r in range(rest, stop):
        store_u64(key_at, out, load_u64(key_at, r))
        store_i64(order_at, out, load_i64(order_at, r))
        out += 1


@inlined
def merge_into_pairs(
    tables: Any, lens: Any, cursors: Any, stops: Any, count: int, columns: int, nodes: int, keys: Any, order: Any
) -> Any:
    """Merge the rows of the first `count` sources, between cursors and stops, into one run.

    Neighbouring runs are merged two by two until one is left. Rows are (key hash, position) pairs in `keys` and
    `order`, whose two halves are source and target in turn. Returns where the run begins, where the other half begins,
    and the length of the run. The cursors are set to the stops.
    """
    key_at, order_at = keys.ctypes.data, order.ctypes.data  # by address: the indices are never negative
    ends = np.empty(count + 1, np.int64)
    ends[0] = 0
    n = i64(0)
    for s in range(count):
        chunk, row = cursors[s, 0], cursors[s, 1]
        while chunk < stops[s, 0] or (chunk == stops[s, 0] and row < stops[s, 1]):
            last = stops[s, 1] if chunk == stops[s, 0] else lens[chunk]
            lane_keys = lane(tables[chunk], KEY)
            at = chunk << ROW_BITS
            while row < last:
                store_u64(key_at, n, load_u64(lane_keys, row))
                store_i64(order_at, n, at | row)
                n += 1
                row += 1
            chunk += 1
            row = i64(0)
        ends[s + 1] = n
        cursors[s, 0], cursors[s, 1] = stops[s, 0], stops[s, 1]
    here, there = i64(0), i64(keys.shape[0] // 2)
    runs = i64(count)
    while runs > 1:
        for r in range(0, runs, 2):
            middle, end = ends[r + 1], ends[min(r + 2, runs)]
            _merge_neighbours(
                key_at, order_at, here + ends[r], here + middle, here + end, there + ends[r], tables, columns, nodes
            )
            ends[(r >> 1) + 1] = end
        runs = (runs + 1) >> 1
        here, there = there, here
    return here, there, n


@borrowing
def same_row(p: int, q: int, tables: Any, columns: int, nodes: int) -> Any:
    """Whether the rows at two positions with equal key hashes are equal."""
    return _compare_same_key(p, q, tables, columns, nodes) == 0


@kernel
def merge_ranges(
    tables: Int64s,
    lens: Int64s,
    cursors: Int64Matrix,
    stops: Int64Matrix,
    columns: int,
    nodes: int,
    keys: UInt64s,
    order: Int64s,
    pos: Int64s,
    weights: Int64s,
    info: Int64s,
) -> None:
    """Merge all rows of some sources between cursors and stops. Equal rows lie on the same side of the stops.

    The caller puts the largest source last. The others are merged into one run of (key hash, position) pairs
    (`merge_into_pairs`), equal neighbours of the run are summed, and the run is merged with the last source, whose rows
    are thus read once. The cursors are set to the stops.
    """
    key_at, order_at = keys.ctypes.data, order.ctypes.data  # by address: the indices are never negative
    pos_at, weights_at = pos.ctypes.data, weights.ctypes.data
    sources = cursors.shape[0]
    here, there, n = merge_into_pairs(tables, lens, cursors, stops, sources - 1, columns, nodes, keys, order)
    read = n

    # Sum equal neighbours in place; the sums go to the other half of `order`, which is free now.
    m = here
    i = here
    end = here + n
    while i < end:
        p = load_i64(order_at, i)
        key = load_u64(key_at, i)
        table = tables[p >> ROW_BITS]
        total = load_i64(lane(table, WEIGHT), (p & ROW_MASK) & lane_mask(table, WEIGHT))
        i += 1
        while i < end and load_u64(key_at, i) == key:
            q = load_i64(order_at, i)
            if not same_row(p, q, tables, columns, nodes):
                break
            table = tables[q >> ROW_BITS]
            w = load_i64(lane(table, WEIGHT), (q & ROW_MASK) & lane_mask(table, WEIGHT))
            if add_overflows(total, w):
                info[OUTPUT_ROWS] = OVERFLOW
                return
            total += w
            i += 1
        if total != 0:
            store_u64(key_at, m, key)
            store_i64(order_at, m, p)
            store_i64(order_at, there + m - here, total)
            m += 1

    i = here
    end = m
    sums_at = order_at + (there - here) * 8  # the weight of the row at i
    out = i64(0)
    not_one = i64(0)
    s = sources - 1
    chunk, row = cursors[s, 0], cursors[s, 1]
    while chunk < stops[s, 0] or (chunk == stops[s, 0] and row < stops[s, 1]):
        last = stops[s, 1] if chunk == stops[s, 0] else lens[chunk]
        table = tables[chunk]
        lane_keys = lane(table, KEY)
        lane_weights, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
        at = chunk << ROW_BITS
        read += last - row
        while row < last and i < end:
            x = load_u64(key_at, i)
            y = load_u64(lane_keys, row)
            p = load_i64(order_at, i)
            take = x < y
            if x == y:
                tied = _compare_same_key(p, at | row, tables, columns, nodes)
                if tied == 0:
                    u = load_i64(sums_at, i)
                    v = load_i64(lane_weights, row & mask)
                    if add_overflows(u, v):
                        info[OUTPUT_ROWS] = OVERFLOW
                        return
                    if u + v != 0:
                        store_i64(pos_at, out, p)
                        store_i64(weights_at, out, u + v)
                        not_one |= (u + v) ^ 1
                        out += 1
                    i += 1
                    row += 1
                    continue
                take = tied < 0
            t = i64(take)
            w = load_i64(lane_weights + t * (sums_at - lane_weights), (row & mask) + t * (i - (row & mask)))
            store_i64(pos_at, out, (at | row) + t * (p - (at | row)))
            store_i64(weights_at, out, w)
            not_one |= w ^ 1
            out += 1
            i += t
            row += 1 - t
        while row < last:
            w = load_i64(lane_weights, row & mask)
            store_i64(pos_at, out, at | row)
            store_i64(weights_at, out, w)
            not_one |= w ^ 1
            out += 1
            row += 1
        if chunk == stops[s, 0]:
            break
        chunk += 1
        row = i64(0)
    cursors[s, 0], cursors[s, 1] = stops[s, 0], stops[s, 1]
    while i < end:
        w = load_i64(sums_at, i)
        store_i64(pos_at, out, load_i64(order_at, i))
        store_i64(weights_at, out, w)
        not_one |= w ^ 1
        out += 1
        i += 1
    info[OUTPUT_ROWS] = out
    info[INPUT_ROWS] = read
    info[ALL_ONES] = 1 if not_one == 0 else 0


@kernel
def same_batches(tables_a: Int64s, lens_a: Int64s, tables_b: Int64s, lens_b: Int64s, columns: int, nodes: int) -> bool:
    """Whether two batches of one sort key and of equally many rows have equal rows and weights."""
    ca, ia, cb, ib = i64(0), i64(0), i64(0), i64(0)
    while True:
        while ca < lens_a.shape[0] and ia >= lens_a[ca]:
            ca += 1
            ia = i64(0)
        while cb < lens_b.shape[0] and ib >= lens_b[cb]:
            cb += 1
            ib = i64(0)
        if ca >= lens_a.shape[0] or cb >= lens_b.shape[0]:
            return ca >= lens_a.shape[0] and cb >= lens_b.shape[0]
        ta, tb = tables_a[ca], tables_b[cb]
        if load_u64(lane(ta, HASH), ia) != load_u64(lane(tb, HASH), ib):
            return False
        if load_i64(lane(ta, WEIGHT), ia & lane_mask(ta, WEIGHT)) != load_i64(
            lane(tb, WEIGHT), ib & lane_mask(tb, WEIGHT)
        ):
            return False
        if compare_rows(ta, ia, tb, ib, columns, nodes) != 0:
            return False
        ia += 1
        ib += 1


@borrowing
def add_to_survey(weights: int, rows: int, times: int, survey: Int64s) -> None:
    """Add the weights at an address, each counted `times` times, to a survey (`survey_weights`)."""
    largest, negative, high, low = survey[0], survey[1], survey[2], survey[3]
    for row in range(rows):
        weight = load_i64(weights, row)
        high += (weight >> 32) * times
        low += (weight & 0xFFFFFFFF) * times
        if weight < 0:
            negative += times
            weight = -max(weight, i64(-9223372036854775807))
        largest = max(largest, weight)
    survey[0], survey[1], survey[2], survey[3] = largest, negative, high, low


@gil_kernel
def survey_weights(tables: Int64s, lens: Int64s, survey: Int64s) -> None:
    """survey = [largest magnitude of a weight, number of negative weights, high and low part of their sum].

    The magnitude of -2**63 counts as 2**63 - 1. The sum is (high << 32) + low, so it does not overflow.
    """
    survey[:4] = 0
    state = release_gil(lens.sum() > GIL_RELEASE_ROWS)
    for c in range(tables.shape[0]):
        constant = lane_mask(tables[c], WEIGHT) == 0
        rows = min(i64(1), lens[c]) if constant else lens[c]
        add_to_survey(lane(tables[c], WEIGHT), rows, lens[c] if constant else i64(1), survey)
    restore_gil(state)
