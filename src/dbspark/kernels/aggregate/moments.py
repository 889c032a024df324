"""Exact sums of products of floats, and what statistics are made from them; bits by count; runs of equal values.

A product of d floats is an integer times 2^(-1074 d), so sums of powers and products are kept as
`kernels.aggregate.exact_sums` keeps sums: as that integer, in 32-bit limbs, in the same stored form. Nothing is rounded
before the end. A central moment is a difference of large numbers that are almost equal, which is where floats lose
everything; here `combine` computes it from the exact sums and the number of rows as an integer, and rounds once. What
has come and gone is not remembered.

With N the number of rows and S the sums:

    N m2  = N Sxx - Sx²                         N cov = N Sxy - Sx Sy
    N² m3 = N² Sxxx - 3 N Sx Sxx + 2 Sx³        N³ m4 = N³ Sxxxx - 4 N² Sx Sxxx + 6 N Sx² Sxx - 3 Sx⁴
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.aggregate.exact_sums import carry_over, read_sum, store_sum
from dbspark.kernels.jit import i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import (
    f64_bits,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    store_i32,
    store_i64,
    store_u8,
    store_u16,
)
from dbspark.kernels.memory.layout import ROW_BITS, ROW_MASK
from dbspark.kernels.sort.row_order import compare_cells

FACTORS = 4
"""Of a product at the most."""
_PER_FACTOR = 66
_ROOM = FACTORS * _PER_FACTOR + 16
"""Limbs: 2098 bits for each factor, a weight, a count of rows, a count cubed, and a sign."""
_ONES = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@inlined
def _size(degree: int) -> int:
    """Limbs that a sum of products of so many factors has at the most."""
    return degree * _PER_FACTOR + 16


@inlined
def _multiply(a: Any, na: int, b: Any, nb: int, out: Any) -> int:
    """out = a * b, in 32-bit digits; returns the number of digits."""
    for k in range(na + nb):
        out[k] = np.uint64(0)
    for i in range(na):
        carry = np.uint64(0)
        for j in range(nb):
            total = a[i] * b[j] + out[i + j] + carry
            out[i + j] = total & _ONES
            carry = total >> _SHIFT
        out[i + nb] = carry
    n = i64(na + nb)
    while n > 0 and out[n - 1] == np.uint64(0):
        n -= 1
    return n


@inlined
def _digits(value: Any, out: Any) -> int:
    """An unsigned 64-bit number in 32-bit digits."""
    out[0] = value & _ONES
    out[1] = value >> _SHIFT
    return i64(2) if out[1] != np.uint64(0) else (i64(1) if out[0] != np.uint64(0) else i64(0))


@inlined
def _add(limbs: Any, at: int, bits: int, digits: Any, n: int, negative: Any) -> None:
    """Add digits, shifted left by `at` limbs and less than 32 bits, to limbs."""
    for k in range(n):
        wide = digits[k] << np.uint64(bits)
        low, high = i64(wide & _ONES), i64(wide >> _SHIFT)
        if negative:
            limbs[at + k] -= low
            limbs[at + k + 1] -= high
        else:
            limbs[at + k] += low
            limbs[at + k + 1] += high


@inlined
def _mantissa(x: float, out: Any) -> tuple[int, int]:
    """The mantissa of a finite float that is not zero, in digits: (how many, power of two above 2^-1074)."""
    bits = f64_bits(x)
    exponent = i64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    mantissa = bits & np.uint64(0xFFFFFFFFFFFFF)
    if exponent > 0:
        mantissa |= np.uint64(1) << np.uint64(52)
        exponent -= 1
    return _digits(mantissa, out), exponent


@kernel
def sum_products(
    x: Any, y: Any, px: int, py: int, used: Any, weights: Any, order: Any, starts: Any,
    old_offsets: int, old_data: int, old_row: Any, out_offsets: Any, out: Any,
) -> int:  # fmt: skip
    """The new sum of x^px y^py of each group: the old one and the products of its rows, times weights.

    order[starts[g]:starts[g+1]] are the rows of group g; `used` says which of them take part, all of them finite.
    Returns the size of `out` used, -1 where it is too small.
    """
    size = _size(px + py)
    limbs = np.zeros(_ROOM, np.int64)
    factor = np.empty(2, np.uint64)
    product = np.empty(2 * FACTORS + 4, np.uint64)
    spare = np.empty(2 * FACTORS + 4, np.uint64)
    end = i64(0)
    out_offsets[0] = 0
    for g in range(starts.shape[0] - 1):
        limbs[:size] = 0
        if old_row[g] >= 0:
            read_sum(limbs, size, old_offsets, old_data, old_row[g])
        for r in range(starts[g], starts[g + 1]):
            i = order[r]
            weight = weights[i]
            if used[i] == 0 or weight == 0 or (px > 0 and x[i] == 0.0) or (py > 0 and y[i] == 0.0):
                continue
            negative = weight < 0
            n = _digits(np.uint64(-weight if negative else weight), product)
            exponent = i64(0)
            for f in range(px + py):
                value = x[i] if f < px else y[i]
                if value < 0.0:
                    negative = not negative
                m, e = _mantissa(value, factor)
                n = _multiply(product, n, factor, m, spare)
                product, spare = spare, product
                exponent += e
            _add(limbs, exponent >> 5, exponent & 31, product, n, negative)
        end = store_sum(limbs, size, out, end)
        if end < 0:
            return end
        out_offsets[g + 1] = 4 * end
    return end


@inlined
def _magnitude(offsets: int, data: int, row: int, out: Any) -> tuple[int, int, bool]:
    """A stored sum in digits: (how many, index of the lowest limb, whether it is below zero)."""
    low, high = i64(load_i32(offsets, row)), i64(load_i32(offsets, row + 1))
    if high == low:
        return i64(0), i64(0), False
    base = data + low
    n = (high - low) // 4 - 1
    negative = load_i32(base, n) < 0
    carry = i64(1)
    for k in range(n):
        limb = i64(load_u32(base, k + 1))
        if negative:
            limb = (limb ^ 0xFFFFFFFF) + carry
            carry = limb >> 32
            limb &= 0xFFFFFFFF
        out[k] = np.uint64(limb)
    while n > 0 and out[n - 1] == np.uint64(0):
        n -= 1
    return n, i64(load_i32(base, 0)), negative


@inlined
def _rounded(limbs: Any, size: int) -> tuple[float, int]:
    """The number in carried limbs as (m, e): m * 2^e, where m is an integer of 53 bits; ties go to even."""
    negative = limbs[size - 1] < 0
    if negative:
        carry = i64(1)
        for k in range(size):
            limb = ((limbs[k] & 0xFFFFFFFF) ^ 0xFFFFFFFF) + carry
            carry = limb >> 32
            limbs[k] = limb & 0xFFFFFFFF
    top = size - 1
    while top > 0 and limbs[top] == 0:
        top -= 1
    if limbs[top] == 0:
        return 0.0, i64(0)
    word = np.uint64(limbs[top])
    shift = i64(0)
    while word < np.uint64(0x80000000):
        word <<= np.uint64(1)
        shift += 1
    second = np.uint64(limbs[top - 1]) if top >= 1 else np.uint64(0)
    third = np.uint64(limbs[top - 2]) if top >= 2 else np.uint64(0)
    rest = second << _SHIFT | third
    word = word << _SHIFT | rest >> np.uint64(32 - shift)
    sticky = rest & ((np.uint64(1) << np.uint64(32 - shift)) - np.uint64(1)) != np.uint64(0)
    for k in range(top - 2):
        sticky = sticky or limbs[k] != 0
    mantissa = word >> np.uint64(11)
    below = word & np.uint64(0x7FF)
    half = np.uint64(0x400)
    if below > half or (below == half and (sticky or mantissa & np.uint64(1) != np.uint64(0))):
        mantissa += np.uint64(1)
    value = np.float64(mantissa)
    return -value if negative else value, 32 * top - shift - 21


@kernel
def combine(offsets: Any, data: Any, counts: Any, terms: Any, degree: int, mantissas: Any, exponents: Any) -> None:
    """For each row the sum over terms of coefficient * count^power * stored sums, rounded once.

    A term is (coefficient, power, column, column, …), with columns of -1 for none; all terms are of one degree. The
    result is mantissas[i] * 2^exponents[i], which may be far beyond any float.
    """
    size = _size(degree)
    limbs = np.zeros(_ROOM, np.int64)
    factor = np.empty(2 * _ROOM, np.uint64)
    product = np.empty(2 * _ROOM, np.uint64)
    spare = np.empty(2 * _ROOM, np.uint64)
    for i in range(counts.shape[0]):
        limbs[:size] = 0
        count = counts[i]
        for t in range(terms.shape[0]):
            coefficient = terms[t, 0]
            negative = coefficient < 0
            n = _digits(np.uint64(-coefficient if negative else coefficient), product)
            at = i64(0)
            for _ in range(terms[t, 1]):
                m = _digits(np.uint64(-count if count < 0 else count), factor)
                n = _multiply(product, n, factor, m, spare)
                product, spare = spare, product
                if count < 0:
                    negative = not negative
            for f in range(2, terms.shape[1]):
                column = terms[t, f]
                if column < 0:
                    break
                m, first, below = _magnitude(offsets[column], data[column], i64(i), factor)
                n = _multiply(product, n, factor, m, spare)
                product, spare = spare, product
                at += first
                if below:
                    negative = not negative
            _add(limbs, at, i64(0), product, n, negative)
        carry_over(limbs, size)
        m53, e = _rounded(limbs, size)
        mantissas[i] = m53
        exponents[i] = e - 1074 * degree


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
def count_bits(
    values: Any, bits: int, used: Any, weights: Any, order: Any, starts: Any,
    old_offsets: int, old_data: int, old_row: Any, out_offsets: Any, out: int,
) -> int:  # fmt: skip
    """How many rows of each group have each bit, as counters of the least width that holds all; nothing for zeros.

    `out` is the address of room for 8 * bits bytes for each group; returns how many of them are used.
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
def read_bits(offsets: int, data: int, counts: Any, bits: int, every: int, out: Any) -> None:
    """out[i] = the bits that every row has, or that any has, sign-extended."""
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


@kernel
def run_starts(tables: Any, pos: Any, which: Any, columns: Any, nodes: int, out: Any) -> None:
    """out[i] = 1 where row i is of another group than row i-1, or differs from it in one of the columns, else 0."""
    for i in range(pos.shape[0]):
        new = i == 0 or which[i] != which[i - 1]
        if not new:
            p, q = pos[i - 1], pos[i]
            for k in range(columns.shape[0]):
                node = columns[k]
                a, b = tables[p >> ROW_BITS], tables[q >> ROW_BITS]
                if compare_cells(a, node, p & ROW_MASK, b, node, q & ROW_MASK, nodes) != 0:
                    new = True
                    break
        out[i] = 1 if new else 0
