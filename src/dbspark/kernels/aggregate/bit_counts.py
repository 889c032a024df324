"""Counters of bits by group: the state of `bit_and` and `bit_or` under insertions and deletions.

A group keeps, for each bit, how many of its rows have it set: `bit_or` is the bits with a count, `bit_and` those whose
count is the number of rows. Stored form: nothing where all counters are zero, otherwise little-endian signed counters
of the least width (1, 2, 4 or 8 bytes) that holds all of them.
"""

from __future__ import annotations

import numpy as np

from dbspark.kernels.jit import Int32s, Int64s, ReadOnlyInt64s, UInt8s, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import (
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    store_i32,
    store_i64,
    store_u8,
    store_u16,
)


@inlined
def _counter(data: int, k: int, width: int) -> int:
    if width == 8:
        return load_i64(data, k)
    if width == 4:
        return i64(load_i32(data, k))
    if width == 2:
        return i64(load_i16(data, k))
    return i64(load_i8(data, k))


@kernel
def update_bit_counts(
    values: Int64s, bits: int, used: UInt8s, weights: Int64s, order: Int64s, starts: Int64s,
    old_offsets: int, old_data: int, old_row: Int64s, out_offsets: Int32s, out: int,
) -> int:  # fmt: skip
    """The new counters of each group: its old ones plus, for each bit, the weights of its rows that have the bit set.

    order[starts[g]:starts[g+1]] are the rows of group g; rows with used[i] = 0 are skipped (NULL, or dropped by
    FILTER). old_row[g] is the row of the group's stored counters, negative for a new group. `out` is the address of
    space for `bits` counters of 8 bytes for each group; returns how many bytes of it are used.
    """
    counters = np.empty(64, np.int64)
    end = i64(0)
    out_offsets[0] = 0
    for g in range(starts.shape[0] - 1):
        counters[:] = 0
        if old_row[g] >= 0:
            low = i64(load_i32(old_offsets, old_row[g]))
            width = (i64(load_i32(old_offsets, old_row[g] + 1)) - low) // bits
            if width > 0:
                for k in range(bits):
                    counters[k] = _counter(old_data + low, i64(k), width)
        for r in range(starts[g], starts[g + 1]):
            i = order[r]
            if used[i] == 0:
                continue
            value = np.uint64(values[i])
            for k in range(bits):
                if (value >> np.uint64(k)) & np.uint64(1) != np.uint64(0):
                    counters[k] += weights[i]
        least, most = i64(0), i64(0)
        for k in range(bits):
            least = min(least, counters[k])
            most = max(most, counters[k])
        width = i64(0)
        if least != 0 or most != 0:
            width = i64(1)
            while width < 8 and (most >= i64(1) << (8 * width - 1) or least < -(i64(1) << (8 * width - 1))):
                width *= 2
            for k in range(bits):
                c = counters[k]
                if width == 8:
                    store_i64(out + end, i64(k), c)
                elif width == 4:
                    store_i32(out + end, i64(k), np.int32(c))
                elif width == 2:
                    store_u16(out + end, i64(k), np.uint16(c & 0xFFFF))
                else:
                    store_u8(out + end, i64(k), np.uint8(c & 0xFF))
        end += bits * width
        out_offsets[g + 1] = end
    return end


@kernel
def read_bits(offsets: int, data: int, counts: ReadOnlyInt64s, bits: int, every: int, out: Int64s) -> None:
    """out[i] = the bits that every row of group i has set (`every` = 1), or that any row has, sign-extended from `bits`
    bits. counts[i] is the number of rows of the group."""
    for i in range(counts.shape[0]):
        low = i64(load_i32(offsets, i))
        width = (i64(load_i32(offsets, i + 1)) - low) // bits
        value = np.uint64(0)
        for k in range(bits):
            c = _counter(data + low, i64(k), width) if width > 0 else i64(0)
            if (c == counts[i]) if every != 0 else (c != 0):
                value |= np.uint64(1) << np.uint64(k)
        if bits < 64 and (value >> np.uint64(bits - 1)) != np.uint64(0):
            value |= ~((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
        out[i] = i64(value)
