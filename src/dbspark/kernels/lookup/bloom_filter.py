"""A Bloom filter over the keys of a spine: one cache miss rules out most keys that are in no batch.

An index (`kernels.lookup.index`) says of one batch that it does not have a key. Where most keys that are looked up are
new, as the groups and partitions of an event stream are, each of them would be searched for in the index of every
batch, and a larger state has more batches. The filter answers for all batches at once. It is *blocked*: the leading
bits of a key hash select one 64-bit word, its trailing 24 bits select four bits of it, so a lookup costs one cache
miss.

Invariants:
1. No false negatives: keys are added and never removed, so a key of a covered batch always passes. A false positive
   costs the time of a search, nothing else.
2. The filter covers the first batches of a directory (`DIR_FILTER_BATCHES`); newer ones are always searched.

Lookups and rejections are counted, if the directory has counters. The merge policy depends on these
counters, and so does whether a spine gets a filter.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.jit import borrowing, gil_kernel, i64, inlined
from dbspark.kernels.lookup.directory import DIR_COUNTERS, DIR_FILTER, DIR_FILTER_BATCHES, DIR_FILTER_SHIFT
from dbspark.kernels.memory.intrinsics import load_i64, load_u64, prefetch, store_i64, store_u64
from dbspark.kernels.memory.layout import KEY
from dbspark.kernels.memory.nodes import lane

_KEYS_PER_BLOCK: Final = 32
"""Keys whose filter words are prefetched together."""
_ONE = np.uint64(1)
_BIT_MASK = np.uint64(63)


@inlined
def _bits_of(key: Any) -> Any:
    """A word with the four bits that a key hash selects, some of which may coincide."""
    return (
        _ONE << (key & _BIT_MASK)
        | _ONE << (key >> np.uint64(6) & _BIT_MASK)
        | _ONE << (key >> np.uint64(12) & _BIT_MASK)
        | _ONE << (key >> np.uint64(18) & _BIT_MASK)
    )


@gil_kernel
def add_keys(words: int, shift: int, table: int, begin: int, end: int) -> int:
    """Add the keys of rows begin … end-1 of a chunk; returns how many of them set a new bit."""
    keys, word_shift, added = lane(table, KEY), np.uint64(shift), i64(0)
    block, i = np.empty(_KEYS_PER_BLOCK, np.uint64), i64(begin)
    while i < end:
        n = i64(0)
        while i < end and n < _KEYS_PER_BLOCK:  # rows of one key are neighbours
            key = load_u64(keys, i)
            if n == 0 or key != block[n - 1]:
                block[n] = key
                n += 1
                prefetch(words + 8 * i64(key >> word_shift))
            i += 1
        for k in range(n):
            at, bits = i64(block[k] >> word_shift), _bits_of(block[k])
            word = load_u64(words, at)
            if word & bits != bits:
                store_u64(words, at, word | bits)
                added += 1
    return added


@inlined
def count_lookups(directory: int, lookups: int, rejected: int) -> None:
    """Add to the counters of a directory, if it has any: keys looked up, and keys that the filter rejected."""
    counts = load_i64(directory, DIR_COUNTERS)
    if counts != 0:
        store_i64(counts, 0, load_i64(counts, 0) + lookups)
        store_i64(counts, 1, load_i64(counts, 1) + rejected)


@inlined
def covered_batches(directory: int) -> int:
    """How many of the first batches of a directory its filter covers; 0 without a filter."""
    return load_i64(directory, DIR_FILTER_BATCHES)


@borrowing
def filter_keys(directory: int, keys: int, count: int, passing: Any, numbers: Any) -> int:
    """Write the keys that pass the filter, and their numbers among the `count` keys at `keys`; returns how many pass.

    Without a filter nothing is written, and `passing` and `numbers` may be empty. Lookups are counted, equal
    neighbouring keys once.
    """
    lookups, rejected, n = i64(0), i64(0), i64(0)
    if load_i64(directory, DIR_FILTER_BATCHES) == 0:
        for i in range(count):
            lookups += i == 0 or load_u64(keys, i) != load_u64(keys, i - 1)
        count_lookups(directory, lookups, rejected)
        return n
    words, shift = load_i64(directory, DIR_FILTER), load_u64(directory, DIR_FILTER_SHIFT)
    passes = False
    for begin in range(0, count, _KEYS_PER_BLOCK):
        end = min(begin + _KEYS_PER_BLOCK, count)
        for i in range(begin, end):
            prefetch(words + 8 * i64(load_u64(keys, i) >> shift))
        for i in range(begin, end):
            key = load_u64(keys, i)
            if i == 0 or key != load_u64(keys, i - 1):
                bits = _bits_of(key)
                passes = load_u64(words, i64(key >> shift)) & bits == bits
                lookups += 1
                rejected += not passes
            if passes:
                passing[n] = key
                numbers[n] = i
                n += 1
    count_lookups(directory, lookups, rejected)
    return n


@inlined
def lowest_batches(directory: int, keys: int, count: int) -> Any:
    """For each of the `count` keys at `keys`, the first batch to search: 0, or the first not covered by the filter."""
    covered = load_i64(directory, DIR_FILTER_BATCHES)
    space = count if covered > 0 else i64(0)
    passing, numbers = np.empty(space, np.uint64), np.empty(space, np.int64)
    out = np.full(count, covered, np.int64)
    for k in range(filter_keys(directory, keys, count, passing, numbers)):
        out[numbers[k]] = 0
    return out
