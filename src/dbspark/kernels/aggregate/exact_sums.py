"""Exact sums of floats: a superaccumulator per group.

Every finite float is an integer times 2^-1074, and so is every sum of floats. It is kept as that integer, in 32-bit
limbs, of which only those from the lowest to the highest nonzero one are stored: a few bytes for ordinary numbers.

Invariants:
1. Adding and subtracting are exact: a sum depends only on the numbers in it, not on their order nor on numbers that
   were added and removed again.
2. Rounding happens once, when a sum is read (`round_sums`), half to even.

Stored form: nothing for zero, otherwise little-endian int32: the index of the lowest limb, then the limbs, the last one
signed. NaN and infinities are not in the sum; they are counted separately.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Float64s, Int32s, Int64Matrix, Int64s, UInt8s, borrowing, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import bits_f32, bits_f64, f64_bits, load_i32, load_i64, load_u32, load_u64
from dbspark.kernels.memory.layout import DATA, FLOAT32, KIND, NODE_BYTES, START, VALID, WEIGHT
from dbspark.kernels.memory.nodes import is_valid, lane, lane_mask

LIMBS = 72
"""Limbs of a sum: 2098 bits for the range of floats, 64 for a weight, 63 for a number of rows, and a sign."""
_MANTISSA = np.uint64(0xFFFFFFFFFFFFF)


@borrowing
def _add_shifted(limbs: Any, value: Any, shift: int, negative: Any) -> None:
    """Add a 32-bit value, shifted left by some bits, to limbs."""
    k = shift >> 5
    bits = np.uint64(shift & 31)
    wide = np.uint64(value) << bits
    low, high = i64(wide & np.uint64(0xFFFFFFFF)), i64(wide >> np.uint64(32))
    if negative:
        limbs[k] -= low
        limbs[k + 1] -= high
    else:
        limbs[k] += low
        limbs[k + 1] += high


@borrowing
def _add_float(limbs: Any, bits: Any, weight: int) -> None:
    """Add a finite float (its IEEE bits) times a weight."""
    exponent = i64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    mantissa = bits & _MANTISSA
    if exponent > 0:
        mantissa |= np.uint64(1) << np.uint64(52)
        exponent -= 1
    negative = (bits >> np.uint64(63)) != np.uint64(0)
    magnitude = weight
    if weight < 0:
        negative = not negative
        magnitude = -weight
    low, high = mantissa & np.uint64(0xFFFFFFFF), mantissa >> np.uint64(32)
    if magnitude == 1:
        _add_shifted(limbs, low, exponent, negative)
        _add_shifted(limbs, high, exponent + 32, negative)
        return
    for part in range(2):
        w = np.uint64(magnitude & 0xFFFFFFFF) if part == 0 else np.uint64(magnitude >> 32)
        if w == np.uint64(0):
            continue
        at = exponent + 32 * part
        product = low * w
        _add_shifted(limbs, product & np.uint64(0xFFFFFFFF), at, negative)
        _add_shifted(limbs, product >> np.uint64(32), at + 32, negative)
        product = high * w
        _add_shifted(limbs, product & np.uint64(0xFFFFFFFF), at + 32, negative)
        _add_shifted(limbs, product >> np.uint64(32), at + 64, negative)


@inlined
def read_sum(limbs: Any, size: int, offsets: int, data: int, row: int) -> None:
    """Read the stored sum of a row into limbs, which the caller has set to zero."""
    low, high = i64(load_i32(offsets, row)), i64(load_i32(offsets, row + 1))
    if high == low:
        return
    base = data + low
    first = i64(load_i32(base, 0))
    n = (high - low) // 4 - 1
    for k in range(n - 1):
        limbs[first + k] = i64(load_u32(base, k + 1))
    top = i64(load_i32(base, n))
    limbs[first + n - 1] = top & 0xFFFFFFFF
    if top < 0:
        for k in range(first + n, size - 1):
            limbs[k] = 0xFFFFFFFF
        limbs[size - 1] = -1


@inlined
def carry_over(limbs: Any, size: int) -> None:
    """Propagate carries: afterwards every limb has 32 bits, and the last one is signed."""
    carry = i64(0)
    for k in range(size - 1):
        total = limbs[k] + carry
        carry = total >> 32
        limbs[k] = total & 0xFFFFFFFF
    limbs[size - 1] += carry


@inlined
def store_sum(limbs: Any, size: int, out: Any, used: int) -> int:
    """Propagate carries and append the stored form to `out`; returns the new end, -1 where `out` is too short."""
    carry_over(limbs, size)
    first = i64(0)
    while first < size and limbs[first] == 0:
        first += 1
    if first == size:
        return used
    sign = i64(0xFFFFFFFF) if limbs[size - 1] < 0 else i64(0)
    last = i64(size - 1)
    while last > first and (limbs[last] & 0xFFFFFFFF) == sign and (limbs[last - 1] >> 31) == (sign & 1):
        last -= 1
    end = used + last - first + 2
    if end > out.shape[0]:
        return i64(-1)
    out[used] = first
    for k in range(first, last + 1):
        out[used + 1 + k - first] = np.int32(limbs[k] & 0xFFFFFFFF)
    return end


@kernel
def sum_floats(
    table: int, node: int, mask: UInt8s, order: Int64s, starts: Int64s, old_offsets: int, old_data: int,
    old_row: Int64s, counts: Int64s, special: Int64Matrix, out_offsets: Int32s, out: Int32s,
) -> int:  # fmt: skip
    """The new sum of each group: its old sum plus the floats of its rows, each times its weight.

    order[starts[g]:starts[g+1]] are the rows of group g. The weights of rows with a value are added to `counts`, the
    weights of rows with NaN, infinity and minus infinity to the columns of `special`. Returns how much of `out` is
    used; -1 where it is too small.
    """
    at = table + node * NODE_BYTES
    data, valid, start = load_i64(at, DATA), load_i64(at, VALID), load_i64(at, START)
    is_float32 = load_i64(at, KIND) == FLOAT32
    w, m = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    masked = mask.shape[0] > 0
    limbs = np.zeros(LIMBS, np.int64)
    used = i64(0)
    out_offsets[0] = 0
    for g in range(starts.shape[0] - 1):
        limbs[:] = 0
        if old_row[g] >= 0:
            read_sum(limbs, i64(LIMBS), old_offsets, old_data, old_row[g])
        for r in range(starts[g], starts[g + 1]):
            i = order[r]
            if (masked and mask[i] == 0) or (valid != 0 and not is_valid(valid, start + i)):
                continue
            weight = load_i64(w, i & m)
            counts[g] += weight
            x = bits_f32(load_u32(data, start + i)) if is_float32 else bits_f64(load_u64(data, start + i))
            if x != x:
                special[g, 0] += weight
            elif x == np.inf:
                special[g, 1] += weight
            elif x == -np.inf:
                special[g, 2] += weight
            elif x != 0.0:
                _add_float(limbs, f64_bits(x), weight)
        used = store_sum(limbs, i64(LIMBS), out, used)
        if used < 0:
            return used
        out_offsets[g + 1] = 4 * used
    return used


@kernel
def round_sums(offsets: int, data: int, rows: int, out: Float64s) -> None:
    """out[i] = the float nearest to stored sum i, ties to even."""
    limbs = np.zeros(LIMBS, np.int64)
    for i in range(rows):
        low, high = i64(load_i32(offsets, i)), i64(load_i32(offsets, i + 1))
        if low == high:
            out[i] = 0.0
            continue
        base = data + low
        first = i64(load_i32(base, 0))
        n = (high - low) // 4 - 1
        negative = load_i32(base, n) < 0
        # The magnitude: complement and add one where the sum is negative.
        carry = i64(1)
        for k in range(n):
            limb = i64(load_u32(base, k + 1))
            if negative:
                limb = (limb ^ 0xFFFFFFFF) + carry
                carry = limb >> 32
                limb &= 0xFFFFFFFF
            limbs[k] = limb
        top = n - 1
        while top > 0 and limbs[top] == 0:
            top -= 1
        # The 64 leading bits, and whether any bit below them is set.
        word = np.uint64(limbs[top])
        shift = i64(0)
        while word < np.uint64(0x80000000):
            word <<= np.uint64(1)
            shift += 1
        second = np.uint64(limbs[top - 1]) if top >= 1 else np.uint64(0)
        third = np.uint64(limbs[top - 2]) if top >= 2 else np.uint64(0)
        rest = second << np.uint64(32) | third
        word = word << np.uint64(32) | rest >> np.uint64(32 - shift)
        sticky = rest & ((np.uint64(1) << np.uint64(32 - shift)) - np.uint64(1)) != np.uint64(0)
        for k in range(top - 2):
            sticky = sticky or limbs[k] != 0
        exponent = 32 * (first + top) + 31 - shift  # of the leading bit, above 2^-1074
        # Keep 53 bits, fewer where the result is below the least normal number.
        keep = min(i64(53), exponent + 1)
        drop = 64 - keep
        mantissa = word >> np.uint64(drop) if drop < 64 else np.uint64(0)
        rest = word << np.uint64(keep) if keep < 64 else np.uint64(0)
        half = np.uint64(0x8000000000000000)
        if rest > half or (rest == half and (sticky or mantissa & np.uint64(1))):
            mantissa += np.uint64(1)
        value = np.float64(mantissa)
        scale = exponent + 1 - keep - 1074
        # In two steps, so that neither power of two is out of range.
        half_scale = scale // 2
        value = value * np.power(2.0, np.float64(half_scale)) * np.power(2.0, np.float64(scale - half_scale))
        out[i] = -value if negative else value
