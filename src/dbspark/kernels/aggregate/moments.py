"""Exact sums of products of floats, and central moments computed from them.

A product of d floats is an integer times 2^(-1074 d), so sums of powers and products are kept as
`kernels.aggregate.exact_sums` keeps sums: as that integer, in 32-bit limbs, in the same stored form. Nothing is rounded
before the end. A central moment is a difference of large, nearly equal numbers, in which floats lose all significant
digits; `combine` computes it exactly from the sums and the number of rows, and rounds once. So a result depends only on
the rows that are present, not on rows that were inserted and retracted, nor on their order.

With N the number of rows and S the sums:

    N m2  = N Sxx - Sx²                         N cov = N Sxy - Sx Sy
    N² m3 = N² Sxxx - 3 N Sx Sxx + 2 Sx³        N³ m4 = N³ Sxxxx - 4 N² Sx Sxxx + 6 N Sx² Sxx - 3 Sx⁴
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.aggregate.exact_sums import carry_over, read_sum, store_sum
from dbspark.kernels.jit import Float64s, Int32s, Int64Matrix, Int64s, ReadOnlyInt64s, UInt8s, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import f64_bits, load_i32, load_u32

FACTORS = 4
"""Largest number of factors of a product."""
_LIMBS_PER_FACTOR = 66
"""32-bit limbs that one factor needs: a float is an integer of 2098 bits times 2^-1074."""
_EXTRA_LIMBS = 16
"""Limbs beyond those of the factors: for a weight, a count of rows, a count cubed, and a sign."""
_MAX_LIMBS = FACTORS * _LIMBS_PER_FACTOR + _EXTRA_LIMBS
_LIMB_MASK = np.uint64(0xFFFFFFFF)
_LIMB_BITS = np.uint64(32)


@inlined
def _limb_count(degree: int) -> int:
    """The most limbs that a sum of products of `degree` factors can have."""
    return degree * _LIMBS_PER_FACTOR + _EXTRA_LIMBS


@inlined
def _multiply(a: Any, na: int, b: Any, nb: int, out: Any) -> int:
    """out = a * b, in 32-bit digits; returns the number of digits."""
    for k in range(na + nb):
        out[k] = np.uint64(0)
    for i in range(na):
        carry = np.uint64(0)
        for j in range(nb):
            total = a[i] * b[j] + out[i + j] + carry
            out[i + j] = total & _LIMB_MASK
            carry = total >> _LIMB_BITS
        out[i + nb] = carry
    n = i64(na + nb)
    while n > 0 and out[n - 1] == np.uint64(0):
        n -= 1
    return n


@inlined
def _digits(value: Any, out: Any) -> int:
    """Write an unsigned 64-bit number in 32-bit digits; returns the number of digits."""
    out[0] = value & _LIMB_MASK
    out[1] = value >> _LIMB_BITS
    return i64(2) if out[1] != np.uint64(0) else (i64(1) if out[0] != np.uint64(0) else i64(0))


@inlined
def _add(limbs: Any, at: int, bits: int, digits: Any, n: int, negative: Any) -> None:
    """Add digits, shifted left by `at` limbs and `bits` (below 32) bits, to limbs."""
    for k in range(n):
        wide = digits[k] << np.uint64(bits)
        low, high = i64(wide & _LIMB_MASK), i64(wide >> _LIMB_BITS)
        if negative:
            limbs[at + k] -= low
            limbs[at + k + 1] -= high
        else:
            limbs[at + k] += low
            limbs[at + k + 1] += high


@inlined
def _mantissa(x: float, out: Any) -> tuple[int, int]:
    """Write the mantissa of a finite nonzero float in digits; returns (how many, exponent above 2^-1074)."""
    bits = f64_bits(x)
    exponent = i64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    mantissa = bits & np.uint64(0xFFFFFFFFFFFFF)
    if exponent > 0:
        mantissa |= np.uint64(1) << np.uint64(52)
        exponent -= 1
    return _digits(mantissa, out), exponent


@kernel
def sum_products(
    x: Float64s, y: Float64s, px: int, py: int, used: UInt8s, weights: Int64s | ReadOnlyInt64s, order: Int64s,
    starts: Int64s, old_offsets: int, old_data: int, old_row: Int64s, out_offsets: Int32s, out: Int32s,
) -> int:  # fmt: skip
    """The new sum of x^px y^py of each group: its old sum plus the products of its rows, each times its weight.

    order[starts[g]:starts[g+1]] are the rows of group g; rows with used[i] = 0 are skipped, the others are finite.
    Returns how much of `out` is used; -1 where it is too small.
    """
    size = _limb_count(px + py)
    limbs = np.zeros(_MAX_LIMBS, np.int64)
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
    """Write the magnitude of a stored sum in digits; returns (how many, index of its lowest limb, whether negative)."""
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
    """The number in carried limbs, rounded half to even, as (m, e): m * 2^e, with m an integer of 53 bits."""
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
    rest = second << _LIMB_BITS | third
    word = word << _LIMB_BITS | rest >> np.uint64(32 - shift)
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
def combine(
    offsets: Int64s,
    data: Int64s,
    counts: ReadOnlyInt64s,
    terms: Int64Matrix,
    degree: int,
    mantissas: Float64s,
    exponents: Int64s,
) -> None:
    """For each row, the sum over `terms` of coefficient * count^power * product of stored sums, rounded once.

    A term is (coefficient, power, column, column, …), padded with -1; all terms have the same degree. The result is
    mantissas[i] * 2^exponents[i], which may be far outside the range of floats.
    """
    size = _limb_count(degree)
    limbs = np.zeros(_MAX_LIMBS, np.int64)
    factor = np.empty(2 * _MAX_LIMBS, np.uint64)
    product = np.empty(2 * _MAX_LIMBS, np.uint64)
    spare = np.empty(2 * _MAX_LIMBS, np.uint64)
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
