"""Radix sort of (key hash, row hash, index) triples.

Hashes are uniform, so a few passes over their leading bits bring every row next to its place and one insertion
pass finishes. Words of an order column are made so as far as a shift can do it. What is not uniform (a hot key, a
weakened hash) shows as a long run of equal leading bits; such a run is sorted by itself: by the row hash with the same
radix passes where the key hashes are equal, by heap sort otherwise. The worst case is O(n log n), never quadratic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import borrowing, i64, inlined, kernel

_DIGIT = 11
_SHORT = 48  # runs up to this length are finished by insertion


@inlined
def _less(kh: Any, rh: Any, a: int, b: int) -> Any:
    if kh[a] != kh[b]:
        return kh[a] < kh[b]
    return rh[a] < rh[b]


@borrowing
def _insertion(kh: Any, rh: Any, order: Any, begin: int, end: int) -> None:
    for i in range(begin + 1, end):
        item = order[i]
        j = i
        while j > begin and _less(kh, rh, item, order[j - 1]):
            order[j] = order[j - 1]
            j -= 1
        order[j] = item


@borrowing
def _sift(kh: Any, rh: Any, order: Any, begin: int, root: int, size: int) -> None:
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        if child + 1 < size and _less(kh, rh, order[begin + child], order[begin + child + 1]):
            child += 1
        if not _less(kh, rh, order[begin + root], order[begin + child]):
            return
        order[begin + root], order[begin + child] = order[begin + child], order[begin + root]
        root = child


@borrowing
def _heap(kh: Any, rh: Any, order: Any, begin: int, end: int) -> None:
    size = end - begin
    for root in range(size // 2 - 1, -1, -1):
        _sift(kh, rh, order, begin, root, size)
    for last in range(size - 1, 0, -1):
        order[begin], order[begin + last] = order[begin + last], order[begin]
        _sift(kh, rh, order, begin, i64(0), last)


@inlined
def _radix(h: Any, order: Any, keys: Any, spare: Any) -> Any:
    """Order `order` by the leading bits of h; returns the bits used, and where in `keys` the sorted h begin.

    Leading bits are those of what h is above the least, shifted as far as the greatest allows: hashes take up all 64,
    the words of an order column few of them. So shifted they stand in `keys`, each value still a value of its own.
    """
    n = order.shape[0]
    least = greatest = h[order[0]]
    for i in range(1, n):
        least = min(least, h[order[i]])
        greatest = max(greatest, h[order[i]])
    unused = np.uint64(0)
    while unused < np.uint64(63) and (greatest - least) >> (np.uint64(63) - unused) == np.uint64(0):
        unused += np.uint64(1)
    passes = 1
    while passes < 5 and (i64(1) << (_DIGIT * passes)) < n >> 1:
        passes += 1
    buckets = 1 << _DIGIT
    digit_mask = np.uint64(buckets - 1)
    counts = np.zeros((passes, buckets), np.int64)
    source, target = keys[:n], keys[n : 2 * n]
    for i in range(n):
        key = (h[order[i]] - least) << unused
        source[i] = key
        for p in range(passes):
            counts[p, i64((key >> np.uint64(64 - _DIGIT * (p + 1))) & digit_mask)] += 1
    here, there = order, spare[:n]
    for p in range(passes - 1, -1, -1):
        shift = np.uint64(64 - _DIGIT * (p + 1))
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
    return passes * _DIGIT, n * (passes & 1)


@borrowing
def _finish(kh: Any, rh: Any, order: Any, begin: int, end: int) -> None:
    """Sort a run that the leading bits could not tell apart."""
    first = order[begin]
    equal = True
    for r in range(begin + 1, end):
        if kh[order[r]] != kh[first] or rh[order[r]] != rh[first]:
            equal = False
            break
    if equal:
        return
    if end - begin <= _SHORT:
        _insertion(kh, rh, order, begin, end)
    else:
        _heap(kh, rh, order, begin, end)


@inlined
def radix_sort(kh: Any, rh: Any, order: Any, keys: Any, spare: Any) -> None:
    n = order.shape[0]
    for i in range(n):
        order[i] = i
    if n <= _SHORT:
        _insertion(kh, rh, order, i64(0), n)
        return
    hot = False
    for level in range(2):
        # Level 0 sorts everything by key hash; level 1 sorts the long runs of one key hash by row hash.
        if level == 1 and (not hot or kh.ctypes.data == rh.ctypes.data):
            break
        h = kh if level == 0 else rh
        begin = i64(0)
        while begin < n:
            end = i64(n)
            if level == 1:
                end = begin + 1
                while end < n and kh[order[end]] == kh[order[begin]]:
                    end += 1
            if end - begin > _SHORT:
                bits, at = _radix(h, order[begin:end], keys, spare)
                shift = np.uint64(64 - bits)
                i = begin
                at -= begin
                while i < end:
                    top = keys[at + i] >> shift
                    j = i + 1
                    while j < end and keys[at + j] >> shift == top:
                        j += 1
                    if j - i > 1:
                        long_key = level == 0 and j - i > _SHORT
                        if long_key:
                            for r in range(i + 1, j):
                                if keys[at + r] != keys[at + i]:
                                    long_key = False
                                    break
                        if long_key:
                            hot = True
                        else:
                            _finish(kh, rh, order, i, j)
                    i = j
            begin = end


@kernel
def sort_hashes(kh: Any, rh: Any, order: Any, keys: Any, spare: Any) -> None:
    """order = the permutation that sorts (kh, rh); equal pairs come in any order.

    `keys` (uint64, 2 * n) and `spare` (int64, n) are working memory.
    """
    radix_sort(kh, rh, order, keys, spare)
