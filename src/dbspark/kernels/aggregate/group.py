"""Hash grouping, and exact sums of integers and decimals by group.

`group_rows` numbers groups in the order of their first rows with a small hash table; keys whose hashes collide are
compared by value. The other kernels take those group numbers.

Sums are exact. An integer or decimal is four 32-bit limbs and a sign, a weight two more; groups accumulate limbs in
int64 and carry at the end, so no intermediate value overflows, and only the total is checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Int64Cube, Int64Matrix, Int64s, UInt8s, UInt64, UInt64s, borrowing, i64, inlined, kernel
from dbspark.kernels.lookup.probe import same_key
from dbspark.kernels.memory.hash import fold_columns
from dbspark.kernels.memory.intrinsics import add_overflows, load_i64, load_u64, store_i64, store_u64
from dbspark.kernels.memory.layout import (
    DATA,
    KEY,
    KIND,
    NODE_BYTES,
    NULL,
    OVERFLOW,
    ROW_BITS,
    ROW_MASK,
    START,
    VALID,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.memory.nodes import is_valid, lane, lane_mask
from dbspark.kernels.sort.row_order import compare_cells, small_integer

_INITIAL_SLOTS = 1024
"""Slots of the hash table for groups, before it grows."""
LIMBS = 8
"""32-bit limbs of a sum of integers: 256 bits hold the sum of 2^63 rows of 128 bits times weights of 64."""


@inlined
def _hash_slots(size: int, hashes: Any, first: Any, groups: int) -> Any:
    """A hash table of `size` slots, a power of two, with the first `groups` groups inserted."""
    slots, mask = np.full(size, -1, np.int64), np.uint64(size - 1)
    for g in range(groups):
        at = i64(hashes[first[g]] & mask)
        while slots[at] >= 0:
            at = (at + 1) & (size - 1)
        slots[at] = g
    return slots


@borrowing
def _number_groups(
    table: int, key: Any, hashes: Any, nodes: int, slots: Any, begin: int, groups: int, ids: Any, first: Any
) -> tuple[int, int]:
    """Number the groups of rows from `begin` on, until the table is half full; returns the next row and the groups."""
    size = slots.shape[0]
    for i in range(begin, hashes.shape[0]):
        at = i64(hashes[i] & np.uint64(size - 1))
        while True:
            group = slots[at]
            if group < 0:
                slots[at] = groups
                first[groups] = i
                ids[i] = groups
                groups += 1
                break
            other = first[group]
            if hashes[other] == hashes[i] and same_key(table, i64(i), key, table, other, key, nodes):
                ids[i] = group
                break
            at = (at + 1) & (size - 1)
        if 2 * groups > size:
            return i64(i + 1), groups
    return i64(hashes.shape[0]), groups


@kernel
def group_rows(table: int, key: Int64s, hashes: UInt64s, nodes: int, ids: Int64s, first: Int64s) -> int:
    """ids[i] = the group of row i, first[g] = its first row; returns the number of groups.

    The hash table grows with the groups, not with the rows, so that for few groups it stays in the CPU's cache.
    """
    size, groups, at = i64(_INITIAL_SLOTS), i64(0), i64(0)
    while at < hashes.shape[0]:
        at, groups = _number_groups(
            table, key, hashes, nodes, _hash_slots(size, hashes, first, groups), at, groups, ids, first
        )
        size *= 8
    return groups


@kernel
def sum_rows(table: int, rows: int, columns: Int64s, mask: UInt64, nodes: int, pos: Int64s, weights: Int64s) -> int:
    """Consolidate a chunk of flat columns: positions of distinct rows, and the sums of their weights without zeros.

    Returns how many remain, in the order of their first occurrence; OVERFLOW where a sum is beyond int64.
    """
    hashes = np.empty(rows, np.uint64)
    fold_columns(table, columns, rows, mask, hashes)
    ids = np.empty(rows, np.int64)
    groups = group_rows(table, columns, hashes, nodes, ids, pos)
    weights[:groups] = 0
    w, m = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    for i in range(rows):
        weight = load_i64(w, i & m)
        if add_overflows(weights[ids[i]], weight):
            return i64(OVERFLOW)
        weights[ids[i]] += weight
    out = i64(0)
    for g in range(groups):
        if weights[g] != 0:
            pos[out], weights[out] = pos[g], weights[g]
            out += 1
    return out


@kernel
def distinct_keys(tables: Int64s, lens: Int64s, key: Int64s, nodes: int, pos: Int64s) -> int:
    """Write the position of the first row of each key, in the order of the batch; returns the number of keys."""
    out = i64(0)
    begin = i64(0)
    previous = np.uint64(0)
    for c in range(tables.shape[0]):
        keys = lane(tables[c], KEY)
        for row in range(lens[c]):
            h = load_u64(keys, row)
            if h != previous:
                begin = out
                previous = h
            seen = False
            for g in range(begin, out):
                p = pos[g]
                if same_key(tables[p >> ROW_BITS], p & 0xFFFFFFFF, key, tables[c], i64(row), key, nodes):
                    seen = True
                    break
            if not seen:
                pos[out] = i64(c) << ROW_BITS | row
                out += 1
    return out


@kernel
def sum_of_keys(
    tables: Int64s, lens: Int64s, ranges: Int64Cube, probe: int, probe_key: Int64s, key: Int64s, nodes: int, out: Int64s
) -> None:
    """out[i] = the sum of the weights of all rows with the key of probe row i, saturating at the ends of int64."""
    for i in range(ranges.shape[0]):
        high, low = i64(0), i64(0)
        for b in range(ranges.shape[1]):
            c = ranges[i, b, 0]
            at = ranges[i, b, 1]
            for _ in range(ranges[i, b, 2]):
                while at >= lens[c]:
                    c += 1
                    at = i64(0)
                table = tables[c]
                if same_key(probe, i64(i), probe_key, table, at, key, nodes):
                    weight = load_i64(lane(table, WEIGHT), at & lane_mask(table, WEIGHT))
                    high += weight >> 32
                    low += weight & 0xFFFFFFFF
                at += 1
        high += low >> 32
        low &= 0xFFFFFFFF
        out[i] = min(max(high, i64(-0x7FFFFFFF)), i64(0x7FFFFFFF)) << 32 | low


@kernel
def count_rows(table: int, rows: int, node: int, mask: UInt8s, ids: Int64s, out: Int64s) -> None:
    """Add the weights of rows to their groups; with `node` >= 0 only of rows that have a value in that column."""
    w, m = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    valid, start = i64(0), i64(0)
    all_null = False
    if node >= 0:
        at = table + node * NODE_BYTES
        valid, start = load_i64(at, VALID), load_i64(at, START)
        all_null = load_i64(at, KIND) == NULL
    masked = mask.shape[0] > 0
    for i in range(rows):
        if (masked and mask[i] == 0) or all_null or (valid != 0 and not is_valid(valid, start + i)):
            continue
        out[ids[i]] += load_i64(w, i & m)


@borrowing
def _add_limb(limbs: Any, g: int, k: int, value: Any, weight: int) -> None:
    """Add a 32-bit limb times a weight to limbs k and above of group g, as partial products far below 64 bits."""
    low = weight & 0xFFFFFFFF
    high = weight >> 32
    product = np.uint64(value) * np.uint64(low)
    limbs[g, k] += i64(product & np.uint64(0xFFFFFFFF))
    limbs[g, k + 1] += i64(product >> np.uint64(32))
    if high != 0:
        limbs[g, k + 1] += i64(value) * high & 0xFFFFFFFF
        limbs[g, k + 2] += (i64(value) * high) >> 32


@kernel
def sum_integers(
    table: int, rows: int, node: int, mask: UInt8s, ids: Int64s, limbs: Int64Matrix, counts: Int64s
) -> None:
    """Add integers or decimals times weights to the limbs of their groups, and the weights to `counts`."""
    at = table + node * NODE_BYTES
    width, data, valid, start = load_i64(at, WIDTH), load_i64(at, DATA), load_i64(at, VALID), load_i64(at, START)
    w, m = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    masked = mask.shape[0] > 0
    ones = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    for i in range(rows):
        if (masked and mask[i] == 0) or (valid != 0 and not is_valid(valid, start + i)):
            continue
        g = ids[i]
        weight = load_i64(w, i & m)
        counts[g] += weight
        if width <= 8:
            value = small_integer(data, start + i, width)
            low = np.uint64(value)
            high = i64(-1) if value < 0 else i64(0)
        else:
            low = load_u64(data, 2 * (start + i))
            high = load_i64(data, 2 * (start + i) + 1)
        if weight == 1:
            limbs[g, 0] += i64(low & ones)
            limbs[g, 1] += i64(low >> shift)
            limbs[g, 2] += high & 0xFFFFFFFF
            limbs[g, 3] += high >> 32
        elif weight == -1:
            limbs[g, 0] -= i64(low & ones)
            limbs[g, 1] -= i64(low >> shift)
            limbs[g, 2] -= high & 0xFFFFFFFF
            limbs[g, 3] -= high >> 32
        else:
            negative = high < 0
            if negative:
                low = ~low + np.uint64(1)
                high = ~high + (1 if low == np.uint64(0) else 0)
                weight = -weight
            _add_limb(limbs, g, i64(0), low & ones, weight)
            _add_limb(limbs, g, i64(1), low >> shift, weight)
            _add_limb(limbs, g, i64(2), np.uint64(high) & ones, weight)
            _add_limb(limbs, g, i64(3), np.uint64(high) >> shift, weight)


@kernel
def finish_sums(limbs: Int64Matrix, old: int, old_row: Int64s, out: int) -> int:
    """Write the sum of each group's limbs and its old sum; returns 1 if one has more than 38 digits.

    `old` is the address of 128-bit sums; that of group g is number old_row[g], or zero where that is negative.
    """
    overflow = i64(0)
    for g in range(limbs.shape[0]):
        if old_row[g] >= 0:
            low = load_u64(old, 2 * old_row[g])
            high = load_i64(old, 2 * old_row[g] + 1)
            limbs[g, 0] += i64(low & np.uint64(0xFFFFFFFF))
            limbs[g, 1] += i64(low >> np.uint64(32))
            limbs[g, 2] += high & 0xFFFFFFFF
            limbs[g, 3] += high >> 32
        carry = i64(0)
        for k in range(limbs.shape[1]):
            limbs[g, k] += carry
            carry = limbs[g, k] >> 32
            limbs[g, k] &= 0xFFFFFFFF
        sign = i64(0xFFFFFFFF) if limbs[g, 3] & 0x80000000 else i64(0)
        for k in range(4, limbs.shape[1]):
            if limbs[g, k] != sign:
                overflow = i64(1)
        low = np.uint64(limbs[g, 0]) | np.uint64(limbs[g, 1]) << np.uint64(32)
        high = limbs[g, 2] | limbs[g, 3] << 32
        if beyond_38_digits(low, high):
            overflow = i64(1)
        store_u64(out, 2 * g, low)
        store_i64(out, 2 * g + 1, high)
    return overflow


@inlined
def beyond_38_digits(low: Any, high: int) -> Any:
    """Whether the magnitude of a 128-bit integer is 10^38 or more."""
    if high < 0:
        low = ~low + np.uint64(1)
        high = ~high + (1 if low == np.uint64(0) else 0)
        if high < 0:
            return True
    return high > 0x4B3B4CA85A86C47A or (high == 0x4B3B4CA85A86C47A and low >= np.uint64(0x098A224000000000))


@kernel
def narrow_sums(sums: int, rows: int, out: int) -> int:
    """Write 128-bit sums as 64-bit ones; returns 1 if one does not fit."""
    overflow = i64(0)
    for g in range(rows):
        low = load_i64(sums, 2 * g)
        if load_i64(sums, 2 * g + 1) != low >> 63:
            overflow = i64(1)
        store_i64(out, g, low)
    return overflow


@kernel
def divide_sums(sums: int, counts: Int64s, factor: int, out: int) -> int:
    """Write sums * factor / counts, rounded half away from zero; returns 1 if one has more than 38 digits."""
    overflow = i64(0)
    parts = np.empty(6, np.uint64)
    ones = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    one = np.uint64(1)
    for g in range(counts.shape[0]):
        low, high = load_u64(sums, 2 * g), load_i64(sums, 2 * g + 1)
        negative = high < 0
        if negative:
            low = ~low + one
            high = ~high + (1 if low == np.uint64(0) else 0)
        divisor = np.uint64(counts[g])
        if counts[g] < 0:
            negative = not negative
            divisor = np.uint64(-counts[g])
        parts[0], parts[1] = low & ones, low >> shift
        parts[2], parts[3] = np.uint64(high) & ones, np.uint64(high) >> shift
        parts[4] = parts[5] = np.uint64(0)
        carry = np.uint64(0)
        for k in range(6):
            carry += parts[k] * np.uint64(factor)
            parts[k] = carry & ones
            carry >>= shift
        rest = np.uint64(0)
        for k in range(5, -1, -1):  # bit by bit: the divisor has up to 63 of them
            quotient = np.uint64(0)
            for b in range(31, -1, -1):
                rest = rest << one | (parts[k] >> np.uint64(b)) & one
                quotient <<= one
                if rest >= divisor:
                    rest -= divisor
                    quotient |= one
            parts[k] = quotient
        if rest >= divisor - rest:
            for k in range(6):
                parts[k] = (parts[k] + one) & ones
                if parts[k] != np.uint64(0):
                    break
        low = parts[0] | parts[1] << shift
        high = i64(parts[2] | parts[3] << shift)
        if parts[4] != np.uint64(0) or parts[5] != np.uint64(0) or high < 0 or beyond_38_digits(low, high):
            overflow = i64(1)
        if negative:
            low = ~low + one
            high = ~high + (1 if low == np.uint64(0) else 0)
        store_u64(out, 2 * g, low)
        store_i64(out, 2 * g + 1, high)
    return overflow


@kernel
def run_starts(tables: Int64s, pos: Int64s, groups: Int64s, columns: Int64s, nodes: int, out: UInt8s) -> None:
    """out[i] = 1 where row i begins a run: its group or its value in a column differs from row i-1; else 0."""
    for i in range(pos.shape[0]):
        new = i == 0 or groups[i] != groups[i - 1]
        if not new:
            p, q = pos[i - 1], pos[i]
            for k in range(columns.shape[0]):
                node = columns[k]
                a, b = tables[p >> ROW_BITS], tables[q >> ROW_BITS]
                if compare_cells(a, node, p & ROW_MASK, b, node, q & ROW_MASK, nodes) != 0:
                    new = True
                    break
        out[i] = 1 if new else 0
