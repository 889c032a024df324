"""Splitting sorted sources, so that the steps of a merge have about equal sizes.

A split is a key hash or, where one key hash alone has too many rows, a row hash within that key hash. The rows below
the split, in all sources, are merged in this step, the others later. Rows of equal hashes are never separated. Cursors,
ends and splits are (chunk, row) for each source; the chunks of a source are neighbours in `tables`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.jit import Int64Matrix, Int64s, UInt64, borrowing, i64, inlined, kernel
from dbspark.kernels.lookup.index import lower_bound
from dbspark.kernels.memory.intrinsics import load_u64
from dbspark.kernels.memory.layout import HASH, KEY
from dbspark.kernels.memory.nodes import lane

_FIRST_GUESS: Final = 0.9
"""The first guess aims at this fraction of `limit`, so that it is rarely above the limit."""
_MAX_BISECTIONS: Final = 70
"""Bisecting a range of 64 bits takes fewer steps."""


@inlined
def _split(tables: Any, lens: Any, cursors: Any, ends: Any, key: Any, row_hash: Any, out: Any) -> int:
    """Write where each source is split, and return the rows before the split: `split_at` as a helper of kernels."""
    total = i64(0)
    for s in range(cursors.shape[0]):
        chunk = cursors[s, 0]
        row = cursors[s, 1]
        while True:
            end = ends[s, 1] if chunk == ends[s, 0] else lens[chunk]
            keys = lane(tables[chunk], KEY)
            at = row
            if row < end and load_u64(keys, end - 1) >= key:
                at = lower_bound(keys, row, end, key)
                if row_hash != np.uint64(0) and load_u64(keys, at) == key:
                    above = end
                    if key != np.uint64(0xFFFFFFFFFFFFFFFF):
                        above = lower_bound(keys, at, end, key + np.uint64(1))
                    at = lower_bound(lane(tables[chunk], HASH), at, above, row_hash)
            else:
                at = max(row, end)
            total += at - row
            if at < end or chunk == ends[s, 0]:
                out[s, 0] = chunk
                out[s, 1] = at
                break
            chunk += 1
            row = i64(0)
    return total


@kernel
def split_at(
    tables: Int64s,
    lens: Int64s,
    cursors: Int64Matrix,
    ends: Int64Matrix,
    key: UInt64,
    row_hash: UInt64,
    out: Int64Matrix,
) -> int:
    """out[s] = (chunk, row) of the first row of source s, from its cursor on, that is not below (key hash, row hash).

    Returns the number of rows between the cursors and `out`.
    """
    return _split(tables, lens, cursors, ends, key, row_hash, out)


@borrowing
def _remaining(lens: Any, cursors: Any, ends: Any) -> int:
    """Rows between cursors and ends."""
    total = i64(0)
    for s in range(cursors.shape[0]):
        for chunk in range(cursors[s, 0], ends[s, 0] + 1):
            end = ends[s, 1] if chunk == ends[s, 0] else lens[chunk]
            total += end - (cursors[s, 1] if chunk == cursors[s, 0] else 0)
    return total


@kernel
def choose_split(
    tables: Int64s, lens: Int64s, cursors: Int64Matrix, ends: Int64Matrix, limit: int, out: Int64Matrix
) -> int:
    """Fill `out` with a split that has at least one row and, where hashes allow it, at most `limit` rows before it.

    Bisects the key hashes, beginning where the split of a uniform distribution would be; then, where one key hash alone
    has more than `limit` rows, its row hashes. Returns the number of rows before the split.
    """
    total = _remaining(lens, cursors, ends)
    if total <= limit:
        for s in range(cursors.shape[0]):
            out[s, 0] = ends[s, 0]
            out[s, 1] = ends[s, 1]
        return total
    top = np.uint64(0xFFFFFFFFFFFFFFFF)
    low = top
    for s in range(cursors.shape[0]):
        chunk, row = cursors[s, 0], cursors[s, 1]
        while chunk < ends[s, 0] and row >= lens[chunk]:
            chunk += 1
            row = i64(0)
        if chunk < ends[s, 0] or row < ends[s, 1]:
            low = min(low, load_u64(lane(tables[chunk], KEY), row))
    zero = np.uint64(0)
    a = low  # nothing lies before it
    b = top
    guess = a + np.uint64(np.float64(b - a) * (_FIRST_GUESS * limit / total))
    while b - a > np.uint64(1):
        if guess <= a:
            guess = a + np.uint64(1)
        n = _split(tables, lens, cursors, ends, guess, zero, out)
        if n > limit:
            b = guess
        elif n < max(limit >> 1, 1):
            a = guess
        else:
            return n
        guess = a + ((b - a) >> np.uint64(1))
    n = _split(tables, lens, cursors, ends, a, zero, out)
    if n > 0:
        return n
    # One key hash has too many rows: split inside it.
    c = zero
    d = top
    for _ in range(_MAX_BISECTIONS):
        middle = c + ((d - c) >> np.uint64(1)) + np.uint64(1)
        n = _split(tables, lens, cursors, ends, a, middle, out)
        if n > limit:
            d = middle - np.uint64(1)
        elif n < max(limit >> 1, 1):
            c = middle
        else:
            return n
        if d <= c or d - c <= np.uint64(1):
            break
    n = _split(tables, lens, cursors, ends, a, c, out)
    if n > 0:
        return n
    if d < top:
        n = _split(tables, lens, cursors, ends, a, d + np.uint64(1), out)
        if n > 0:
            return n
    if a < top:
        n = _split(tables, lens, cursors, ends, a + np.uint64(1), zero, out)
        if n > 0:
            return n
    for s in range(cursors.shape[0]):
        out[s, 0] = ends[s, 0]
        out[s, 1] = ends[s, 1]
    return total
