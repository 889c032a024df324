"""Whether a key is in any batch of a spine: one look at memory, for most keys that are in none.

An index (`kernels.lookup.index`) says of one batch that it does not have a key. Where most keys that are looked for are
new, as groups and partitions of a stream of events are, each of them is asked of every batch, and there are more
batches the larger the state. A *sieve* says it of all of them: words of 64 bits, to which the first bits of a key hash
point; its last bits say which four bits of the word are set for it. A key of which one is missing is nowhere. Keys are
put in and never taken out, so that a sieve may know too many of them, which costs time, but never too few.

A directory (`kernels.lookup.index`) has the address of the words, and to how many of its first batches they apply. It
also has the address of two counters, of keys that were asked for and of those that the sieve held back: whoever decides
about merges and sieves wants to know (`trace.spine`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.jit import borrowing, gil_kernel, i64, inlined
from dbspark.kernels.lookup.index import COUNTS, COVERED, SHIFT, SIEVE
from dbspark.kernels.memory.intrinsics import load_i64, load_u64, prefetch, store_i64, store_u64
from dbspark.kernels.memory.layout import KEY
from dbspark.kernels.memory.nodes import lane

_BLOCK: Final = 32
"""Keys whose words are asked for at a time."""
_ONE = np.uint64(1)
_SIX = np.uint64(63)


@inlined
def _bits(key: Any) -> Any:
    """The four bits of a key, some of which may be the same."""
    return (
        _ONE << (key & _SIX)
        | _ONE << (key >> np.uint64(6) & _SIX)
        | _ONE << (key >> np.uint64(12) & _SIX)
        | _ONE << (key >> np.uint64(18) & _SIX)
    )


@gil_kernel
def add_keys(words: int, shift: int, table: int, begin: int, end: int) -> int:
    """Put the keys of rows begin … end-1 of a chunk into a sieve; returns how many of them it did not know."""
    keys, by, new = lane(table, KEY), np.uint64(shift), i64(0)
    some, i = np.empty(_BLOCK, np.uint64), i64(begin)
    while i < end:
        n = i64(0)
        while i < end and n < _BLOCK:  # rows of one key are beside each other
            key = load_u64(keys, i)
            if n == 0 or key != some[n - 1]:
                some[n] = key
                n += 1
                prefetch(words + 8 * i64(key >> by))
            i += 1
        for k in range(n):
            at, bits = i64(some[k] >> by), _bits(some[k])
            word = load_u64(words, at)
            if word & bits != bits:
                store_u64(words, at, word | bits)
                new += 1
    return new


@inlined
def count_keys(directory: int, asked: int, held: int) -> None:
    """Count keys that were looked for, and those of them that the sieve held back."""
    counts = load_i64(directory, COUNTS)
    if counts != 0:
        store_i64(counts, 0, load_i64(counts, 0) + asked)
        store_i64(counts, 1, load_i64(counts, 1) + held)


@inlined
def covered_batches(directory: int) -> int:
    """To how many of the first batches of a directory its sieve applies."""
    return load_i64(directory, COVERED)


@borrowing
def sift(directory: int, keys: int, count: int, some: Any, which: Any) -> int:
    """Those of so many keys at an address that may be in a batch that the sieve covers: they, and their numbers.

    Returns how many. Where there is no sieve, none are written, and `some` and `which` may be empty. Keys are counted,
    equal ones beside each other once.
    """
    asked, held, n = i64(0), i64(0), i64(0)
    if load_i64(directory, COVERED) == 0:
        for i in range(count):
            asked += i == 0 or load_u64(keys, i) != load_u64(keys, i - 1)
        count_keys(directory, asked, held)
        return n
    words, shift = load_i64(directory, SIEVE), load_u64(directory, SHIFT)
    passes = False
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        for i in range(begin, end):
            prefetch(words + 8 * i64(load_u64(keys, i) >> shift))
        for i in range(begin, end):
            key = load_u64(keys, i)
            if i == 0 or key != load_u64(keys, i - 1):
                bits = _bits(key)
                passes = load_u64(words, i64(key >> shift)) & bits == bits
                asked += 1
                held += not passes
            if passes:
                some[n] = key
                which[n] = i
                n += 1
    count_keys(directory, asked, held)
    return n


@inlined
def lowest_batches(directory: int, keys: int, count: int) -> Any:
    """For each of so many keys at an address, the first batch that has to be searched for it."""
    covered = load_i64(directory, COVERED)
    room = count if covered > 0 else i64(0)
    some, which = np.empty(room, np.uint64), np.empty(room, np.int64)
    out = np.full(count, covered, np.int64)
    for k in range(sift(directory, keys, count, some, which)):
        out[which[k]] = 0
    return out
