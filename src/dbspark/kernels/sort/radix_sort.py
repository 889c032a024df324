"""Radix sort of (key hash, row hash, index) triples.

Hashes are uniform, so a few passes over their leading bits bring every row near its place, and one pass of insertion
sort finishes. Order words are not uniform; they are shifted left so that their leading bits differ. Where values are
skewed (a hot key, a hash weakened by a test) there are long runs of equal leading bits. A long run of one key hash is
sorted by row hash, with the same radix passes; any other is sorted by heap sort. The worst case is O(n log n).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.jit import Int64s, UInt64s, borrowing, i64, inlined, kernel

_DIGIT_BITS: Final = 11
"""Bits that one radix pass sorts by."""
_MAX_PASSES: Final = 5
"""Radix passes at most: as many whole digits as 64 bits have."""
_MAX_INSERTION_ROWS: Final = 48
"""Runs of at most this many rows are sorted by insertion."""


@inlined
def _less(key_hashes: Any, row_hashes: Any, a: int, b: int) -> Any:
    """Whether row a comes before row b."""
    if key_hashes[a] != key_hashes[b]:
        return key_hashes[a] < key_hashes[b]
    return row_hashes[a] < row_hashes[b]


@borrowing
def _insertion_sort(key_hashes: Any, row_hashes: Any, order: Any, begin: int, end: int) -> None:
    """Sort order[begin:end] by insertion."""
    for i in range(begin + 1, end):
        item = order[i]
        j = i
        while j > begin and _less(key_hashes, row_hashes, item, order[j - 1]):
            order[j] = order[j - 1]
            j -= 1
        order[j] = item


@borrowing
def _sift(key_hashes: Any, row_hashes: Any, order: Any, begin: int, root: int, size: int) -> None:
    """Restore the heap below `root` in the `size` rows from order[begin] on."""
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        if child + 1 < size and _less(key_hashes, row_hashes, order[begin + child], order[begin + child + 1]):
            child += 1
        if not _less(key_hashes, row_hashes, order[begin + root], order[begin + child]):
            return
        order[begin + root], order[begin + child] = order[begin + child], order[begin + root]
        root = child


@borrowing
def _heap_sort(key_hashes: Any, row_hashes: Any, order: Any, begin: int, end: int) -> None:
    """Sort order[begin:end] by heap sort."""
    size = end - begin
    for root in range(size // 2 - 1, -1, -1):
        _sift(key_hashes, row_hashes, order, begin, root, size)
    for last in range(size - 1, 0, -1):
        order[begin], order[begin + last] = order[begin + last], order[begin]
        _sift(key_hashes, row_hashes, order, begin, i64(0), last)


@inlined
def _sort_by_leading_bits(hashes: Any, order: Any, keys: Any, spare: Any) -> Any:
    """Sort `order` by the leading bits of `hashes`; returns the number of bits, and where in `keys` the sorted words
    begin.

    What is sorted, and left in `keys`, is a word for each row: its hash minus the least hash, shifted left as far as
    the greatest allows. No bit is lost, so equal words mean equal hashes. Hashes use all 64 bits, order words often
    few.
    """
    n = order.shape[0]
    least = greatest = hashes[order[0]]
    for i in range(1, n):
        least = min(least, hashes[order[i]])
        greatest = max(greatest, hashes[order[i]])
    unused = np.uint64(0)
    while unused < np.uint64(63) and (greatest - least) >> (np.uint64(63) - unused) == np.uint64(0):
        unused += np.uint64(1)
    passes = 1
    while passes < _MAX_PASSES and (i64(1) << (_DIGIT_BITS * passes)) < n >> 1:
        passes += 1
    buckets = 1 << _DIGIT_BITS
    digit_mask = np.uint64(buckets - 1)
    counts = np.zeros((passes, buckets), np.int64)
    source, target = keys[:n], keys[n : 2 * n]
    for i in range(n):
        key = (hashes[order[i]] - least) << unused
        source[i] = key
        for p in range(passes):
            counts[p, i64((key >> np.uint64(64 - _DIGIT_BITS * (p + 1))) & digit_mask)] += 1
    here, there = order, spare[:n]
    for p in range(passes - 1, -1, -1):
        shift = np.uint64(64 - _DIGIT_BITS * (p + 1))
        total = i64(0)
        for d in range(buckets):
            c = counts[p, d]
            counts[p, d] = total
            total += c
        for i in range(n):
            key = source[i]
            d = i64((key >> shift) & digit_mask)
            at = counts[p, d]
            counts[p, d] = at + 1
            target[at] = key
            there[at] = here[i]
        source, target = target, source
        here, there = there, here
    if passes & 1:
        for i in range(n):
            order[i] = spare[i]
    return passes * _DIGIT_BITS, n * (passes & 1)


@borrowing
def _sort_run(key_hashes: Any, row_hashes: Any, order: Any, begin: int, end: int) -> None:
    """Sort a run of equal leading bits by key hash and row hash."""
    first = order[begin]
    equal = True
    for r in range(begin + 1, end):
        if key_hashes[order[r]] != key_hashes[first] or row_hashes[order[r]] != row_hashes[first]:
            equal = False
            break
    if equal:
        return
    if end - begin <= _MAX_INSERTION_ROWS:
        _insertion_sort(key_hashes, row_hashes, order, begin, end)
    else:
        _heap_sort(key_hashes, row_hashes, order, begin, end)


@inlined
def radix_sort(key_hashes: Any, row_hashes: Any, order: Any, keys: Any, spare: Any) -> None:
    """order = the permutation that sorts rows by (key hash, row hash): `sort_hashes` as a helper of other kernels."""
    n = order.shape[0]
    for i in range(n):
        order[i] = i
    if n <= _MAX_INSERTION_ROWS:
        _insertion_sort(key_hashes, row_hashes, order, i64(0), n)
        return
    hot = False
    for level in range(2):
        # Level 0 sorts everything by key hash; level 1 sorts the long runs of one key hash by row hash.
        if level == 1 and (not hot or key_hashes.ctypes.data == row_hashes.ctypes.data):
            break
        hashes = key_hashes if level == 0 else row_hashes
        begin = i64(0)
        while begin < n:
            end = i64(n)
            if level == 1:
                end = begin + 1
                while end < n and key_hashes[order[end]] == key_hashes[order[begin]]:
                    end += 1
            if end - begin > _MAX_INSERTION_ROWS:
                bits, at = _sort_by_leading_bits(hashes, order[begin:end], keys, spare)
                shift = np.uint64(64 - bits)
                i = begin
                at -= begin
                while i < end:
                    top = keys[at + i] >> shift
                    j = i + 1
                    while j < end and keys[at + j] >> shift == top:
                        j += 1
                    if j - i > 1:
                        long_key = level == 0 and j - i > _MAX_INSERTION_ROWS
                        if long_key:
                            for r in range(i + 1, j):
                                if keys[at + r] != keys[at + i]:
                                    long_key = False
                                    break
                        if long_key:
                            hot = True
                        else:
                            _sort_run(key_hashes, row_hashes, order, i, j)
                    i = j
            begin = end


@kernel
def sort_hashes(key_hashes: UInt64s, row_hashes: UInt64s, order: Int64s, keys: UInt64s, spare: Int64s) -> None:
    """order = the permutation that sorts rows by (key hash, row hash); equal pairs come in any order.

    `keys` (uint64, 2 * n) and `spare` (int64, n) are scratch.
    """
    radix_sort(key_hashes, row_hashes, order, keys, spare)
