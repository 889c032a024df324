"""SQL window functions over sorted partitions that lie one after the other.

Rows are numbered consecutively over all partitions; `starts` holds the first row of each partition and, last, the
number of rows. A frame is two arrays: row i sees rows lo[i] … hi[i]-1. Inside a partition neither bound ever
decreases, which makes the kernels here linear in the rows, whatever the frames.

A column is given as the node table of a chunk that has only this column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Bools, Float64s, Int64s, UInt64, UInt64Matrix, UInt64s, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import bits_f32, bits_f64, load_i64, load_u32, load_u64
from dbspark.kernels.memory.layout import (
    DATA,
    FIXED,
    FLOAT32,
    HASH,
    KIND,
    LANES,
    NODE_BYTES,
    NULL,
    ROW_BITS,
    ROW_MASK,
    START,
    VALID,
    WIDTH,
)
from dbspark.kernels.memory.nodes import is_valid, lane
from dbspark.kernels.sort.row_order import (
    compare_cells,
    compare_ordered,
    compare_rows,
    float_order_word,
    small_integer,
    three_way,
)

_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_TOP = np.uint64(0x8000000000000000)


@inlined
def _has_value(table: int, row: int) -> Any:
    at = table + LANES * NODE_BYTES
    valid = load_i64(at, VALID)
    if valid == 0:
        return load_i64(at, KIND) != NULL
    return is_valid(valid, row + load_i64(at, START))


# ---------------------------------------------------------------------- rows


@kernel
def find_peers(tables: Int64s, pos: Int64s, starts: Int64s, spec: int, nodes: int, first: Int64s, last: Int64s) -> None:
    """first[i] … last[i]-1 = the peers of row i, equal in all order columns; with `spec` 0 the whole partition."""
    for s in range(starts.shape[0] - 1):
        begin = starts[s]
        for i in range(starts[s], starts[s + 1]):
            if i > begin and spec != 0 and pos[i] != pos[i - 1]:
                p, q = pos[i - 1], pos[i]
                a, b = tables[p >> ROW_BITS], tables[q >> ROW_BITS]
                if compare_ordered(a, p & ROW_MASK, b, q & ROW_MASK, spec, nodes) != 0:
                    last[begin:i] = i
                    begin = i64(i)
            first[i] = begin
        last[begin : starts[s + 1]] = starts[s + 1]


@kernel
def pair_rows(
    tables: Int64s, pos: Int64s, starts: Int64s, columns: int, nodes: int, left: Int64s, right: Int64s
) -> int:
    """Pair equal rows of partitions s and s + n, both sorted, for each s < n, where 2 n partitions are given.

    Returns the number of pairs.
    """
    half = (starts.shape[0] - 1) // 2
    out = i64(0)
    for s in range(half):
        i, j = starts[s], starts[half + s]
        while i < starts[s + 1] and j < starts[half + s + 1]:
            a, b = tables[pos[i] >> ROW_BITS], tables[pos[j] >> ROW_BITS]
            p, q = pos[i] & ROW_MASK, pos[j] & ROW_MASK
            order = i64(0)
            if a != b or p != q:
                order = three_way(load_u64(lane(a, HASH), p), load_u64(lane(b, HASH), q))
                if order == 0:
                    order = compare_rows(a, p, b, q, columns, nodes)
            if order == 0:
                left[out], right[out] = i, j
                out += 1
            if order <= 0:
                i += 1
            if order >= 0:
                j += 1
    return out


@kernel
def keep_equal(table: int, node: int, nodes: int, left: Int64s, right: Int64s, same: Bools) -> None:
    """Clear same[k] where rows left[k] and right[k] differ in the column `node`."""
    for k in range(left.shape[0]):
        if same[k] and compare_cells(table, node, left[k], table, node, right[k], nodes) != 0:
            same[k] = False


# ---------------------------------------------------------------------- RANGE


@kernel
def range_keys(
    table: int, offset: float, offset_high: int, offset_low: UInt64, high: Int64s, low: UInt64s, valid: Bools
) -> None:
    """An order column plus an offset, as 128-bit numbers in the same order.

    In 128 bits integers cannot overflow; decimals saturate at a value beyond the largest of 38 digits.
    """
    at = table + LANES * NODE_BYTES
    kind, width, data, start = load_i64(at, KIND), load_i64(at, WIDTH), load_i64(at, DATA), load_i64(at, START)
    for r in range(valid.shape[0]):
        i = start + r
        valid[r] = _has_value(table, i64(r))
        if not valid[r]:
            continue
        if kind == FIXED:
            if width <= 8:
                value = small_integer(data, i, width)
                x, y = i64(-1) if value < 0 else i64(0), np.uint64(value)
            else:
                x, y = load_i64(data, 2 * i + 1), load_u64(data, 2 * i)
            below = y + offset_low
            carry = np.uint64(1) if below < y else np.uint64(0)
            above = i64(np.uint64(x) + np.uint64(offset_high) + carry)
            if (x < 0) == (offset_high < 0) and (above < 0) != (x < 0):
                high[r] = i64(0x7FFFFFFFFFFFFFFF) if x >= 0 else i64(-0x7FFFFFFFFFFFFFFF)
                low[r] = _ONES if x >= 0 else np.uint64(0)
            else:
                high[r], low[r] = above, below
        else:
            if kind == FLOAT32:
                number = np.float64(np.float32(bits_f32(load_u32(data, i))) + np.float32(offset))
            else:
                number = bits_f64(load_u64(data, i)) + offset
            high[r], low[r] = 0, float_order_word(number)


@kernel
def range_ends(
    starts: Int64s, high: Int64s, low: UInt64s, valid: Bools, bound_high: Int64s, bound_low: UInt64s,
    descending: int, nulls_last: int, beyond: int, out: Int64s,
) -> None:  # fmt: skip
    """out[i] = the first row of the partition not before the bound of row i; with `beyond`, the first after it."""
    for s in range(starts.shape[0] - 1):
        p = starts[s]
        for i in range(starts[s], starts[s + 1]):
            while p < starts[s + 1]:
                if valid[p] and valid[i]:
                    order = i64(three_way(high[p], bound_high[i]))
                    if order == 0:
                        order = i64(three_way(low[p], bound_low[i]))
                    if descending != 0:
                        order = -order
                elif valid[p] == valid[i]:
                    order = i64(0)
                else:
                    order = i64(1) if valid[i] == (nulls_last != 0) else i64(-1)
                if order > 0 or (order == 0 and beyond == 0):
                    break
                p += 1
            out[i] = p


# ---------------------------------------------------------------------- sums


@kernel
def sum_prefixes(table: int, sums: UInt64Matrix) -> None:
    """sums[i] = the sum of an integer or decimal column before row i, in three 64-bit words."""
    at = table + LANES * NODE_BYTES
    width, data, start = load_i64(at, WIDTH), load_i64(at, DATA), load_i64(at, START)
    a, b, c = np.uint64(0), np.uint64(0), np.uint64(0)
    sums[0, 0], sums[0, 1], sums[0, 2] = a, b, c
    for r in range(sums.shape[0] - 1):
        if _has_value(table, i64(r)):
            i = start + r
            if width <= 8:
                value = small_integer(data, i, width)
                x, y = np.uint64(value), (_ONES if value < 0 else np.uint64(0))
            else:
                x, y = load_u64(data, 2 * i), load_u64(data, 2 * i + 1)
            z = _ONES if y >= _TOP else np.uint64(0)
            a += x
            carry = np.uint64(1) if a < x else np.uint64(0)
            y += carry
            carry = np.uint64(1) if y < carry else np.uint64(0)
            b += y
            carry += np.uint64(1) if b < y else np.uint64(0)
            c += z + carry
        sums[r + 1, 0], sums[r + 1, 1], sums[r + 1, 2] = a, b, c


@kernel
def frame_sums(
    sums: UInt64Matrix, lo: Int64s, hi: Int64s, limit_low: UInt64, limit_high: UInt64, out: UInt64Matrix
) -> int:
    """out[i] = the 128-bit sum over the frame of row i; returns 1 if the magnitude of a sum reaches the limit."""
    overflow = i64(0)
    for i in range(lo.shape[0]):
        p, q = lo[i], hi[i]
        a = sums[q, 0] - sums[p, 0]
        borrow = np.uint64(1) if sums[q, 0] < sums[p, 0] else np.uint64(0)
        b = sums[q, 1] - sums[p, 1]
        more = np.uint64(1) if sums[q, 1] < sums[p, 1] or b < borrow else np.uint64(0)
        b -= borrow
        c = sums[q, 2] - sums[p, 2] - more
        out[i, 0], out[i, 1] = a, b
        if c != (_ONES if b >= _TOP else np.uint64(0)):
            overflow = i64(1)
        if b >= _TOP:
            a = ~a + np.uint64(1)
            b = ~b + (np.uint64(1) if a == np.uint64(0) else np.uint64(0))
        if b > limit_high or (b == limit_high and a >= limit_low):
            overflow = i64(1)
    return overflow


@kernel
def divide_frame_sums(
    sums: UInt64Matrix, counts: Int64s, factor: int, limit_low: UInt64, limit_high: UInt64, out: UInt64Matrix
) -> int:
    """out[i] = sums[i] * factor / counts[i] in 128 bits, rounded half away from zero; returns 1 if one is at the limit.

    Factor and counts are below 2^31, so long division in 32-bit limbs does not overflow.
    """
    overflow = i64(0)
    limbs = np.empty(6, np.uint64)
    half = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    for i in range(counts.shape[0]):
        if counts[i] == 0:
            out[i, 0], out[i, 1] = np.uint64(0), np.uint64(0)
            continue
        count = np.uint64(counts[i])
        a, b = sums[i, 0], sums[i, 1]
        negative = b >= _TOP
        if negative:
            a = ~a + np.uint64(1)
            b = ~b + (np.uint64(1) if a == np.uint64(0) else np.uint64(0))
        limbs[0], limbs[1], limbs[2], limbs[3] = a & half, a >> shift, b & half, b >> shift
        carry = np.uint64(0)
        for k in range(4):
            product = limbs[k] * np.uint64(factor) + carry
            limbs[k] = product & half
            carry = product >> shift
        limbs[4], limbs[5] = carry, np.uint64(0)
        rest = np.uint64(0)
        for k in range(4, -1, -1):
            part = rest << shift | limbs[k]
            limbs[k] = part // count
            rest = part % count
        carry = np.uint64(1) if rest + rest >= count else np.uint64(0)
        for k in range(6):
            total = limbs[k] + carry
            limbs[k] = total & half
            carry = total >> shift
        a, b = limbs[0] | limbs[1] << shift, limbs[2] | limbs[3] << shift
        if limbs[4] != np.uint64(0) or b > limit_high or (b == limit_high and a >= limit_low):
            overflow = i64(1)
        if negative:
            a = ~a + np.uint64(1)
            b = ~b + (np.uint64(1) if a == np.uint64(0) else np.uint64(0))
        out[i, 0], out[i, 1] = a, b
    return overflow


@kernel
def float_sums(table: int, lo: Int64s, hi: Int64s, out: Float64s) -> None:
    """out[i] = the sum over the frame of row i, from left to right; while a frame only grows, its sum is continued."""
    at = table + LANES * NODE_BYTES
    data, start, is_float32 = load_i64(at, DATA), load_i64(at, START), load_i64(at, KIND) == FLOAT32
    begin, end, total = i64(-1), i64(-1), 0.0
    for i in range(lo.shape[0]):
        if lo[i] != begin or hi[i] < end:
            begin, end, total = lo[i], lo[i], 0.0
        for r in range(end, hi[i]):
            if _has_value(table, i64(r)):
                total += bits_f32(load_u32(data, start + r)) if is_float32 else bits_f64(load_u64(data, start + r))
        end = hi[i]
        out[i] = total


# ---------------------------------------------------------------------- extremes


@kernel
def frame_extremes(
    table: int, nodes: int, starts: Int64s, lo: Int64s, hi: Int64s, largest: int, queue: Int64s, out: Int64s
) -> None:
    """out[i] = the row of the least (`largest`: greatest) value in the frame of row i; -1 where the frame has none.

    A monotonic queue holds the rows of the frame that may still become the answer, in ascending (descending) order.
    """
    for s in range(starts.shape[0] - 1):
        front, back = i64(0), i64(0)
        next_row = starts[s]
        for i in range(starts[s], starts[s + 1]):
            while next_row < hi[i]:
                if _has_value(table, next_row):
                    while back > front:
                        order = compare_cells(table, i64(LANES), queue[back - 1], table, i64(LANES), next_row, nodes)
                        if (order >= 0) if largest != 0 else (order <= 0):
                            break
                        back -= 1
                    queue[back] = next_row
                    back += 1
                next_row += 1
            while front < back and queue[front] < lo[i]:
                front += 1
            out[i] = queue[front] if front < back else i64(-1)
