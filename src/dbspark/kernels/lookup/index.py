"""Finding a key hash in the sorted chunks of a batch, with or without an index.

Without an index: key hashes are uniform, so a search starts where the hash itself points (interpolation), gallops from
there and bisects what is left. Across the chunks of a batch the fences (first key hash of each chunk) are bisected
first. In a large state every step waits for memory, some ten times in all.

So larger batches have an *index*: one 64-bit word for every two to four rows, addressed by the leading bits of a key
hash.

    word = position << 32 | parts        position = chunk << 15 | row, counted from the first chunk of the batch

The position is that of the first row with these leading bits. The five bits that follow them divide the rows of a word
into 32 parts; bit p of `parts` is set where part p has a key. So a key that is not in the batch costs one cache miss,
seldom more; a key that is there costs a second one. A search is split so that the misses of many keys overlap:
`prefetch_index_word`, then `start_search`, then `finish_search`, each for all keys before the next
(`start_searches` does the first two for a block).

Invariants:
1. An index never hides a row: a missing part bit means that no row has the key hash; a position never lies behind the
   first row with it. An index may admit keys that are absent or begin too early (a hot key, a weakened hash): that
   costs time, never correctness, because the search goes on by fences and interpolation.
2. Words are only added to, chunk by chunk, so an index is shared: the rest of a batch that a merge has consumed in part
   uses the index of the whole (its index reference says how much has been consumed), and older versions of a growing
   merge result ignore positions behind their last chunk.

Directories and index references: `kernels.lookup.directory`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.cpython import GIL_RELEASE_ROWS, release_gil, restore_gil
from dbspark.kernels.jit import Int64s, UInt64s, borrowing, gil_kernel, i64, inlined
from dbspark.kernels.lookup.directory import DIR_FENCES, DIR_LENGTHS, DIR_TABLES, address, first_chunk, index_ref
from dbspark.kernels.memory.intrinsics import count_bits, load_i64, load_u64, prefetch, store_u64
from dbspark.kernels.memory.layout import KEY, ROW_BITS, ROW_MASK
from dbspark.kernels.memory.nodes import lane

NOT_FOUND: Final = -1
"""Instead of a position: no row has the key hash."""
INDEX_ROW_BITS: Final = 15
"""Bits of an index word that number a row in its chunk: indexed chunks have at most 2^15 rows."""
_PART_BITS: Final = 5
"""Bits of a key hash that select one of the 32 parts of an index word."""
_MAX_SCANNED_ROWS: Final = 16
"""Rows that are scanned one by one before the search gives up and bisects."""
_SCAN_ROWS_PER_KEY: Final = 8
"""A chunk with at most this many rows for each key of a block is scanned along with the keys instead of searched."""
_ONE = np.uint64(1)
_32 = np.uint64(32)
_PART_MASK = np.uint64((1 << _PART_BITS) - 1)


@inlined
def lower_bound(keys: int, begin: int, end: int, key: Any) -> int:
    """The first of rows begin … end-1 whose key is not below `key`, or `end`: interpolation, galloping, bisection."""
    if begin >= end:
        return begin
    low = load_u64(keys, begin)
    if key <= low:
        return begin
    high = load_u64(keys, end - 1)
    if key > high:
        return end
    # key is in (low, high], so low < high
    guess = begin + i64(np.float64(key - low) / np.float64(high - low) * np.float64(end - 1 - begin))
    if guess >= end:
        guess = end - 1
    a = begin  # keys[a] < key
    b = end - 1  # keys[b] >= key
    step = i64(8)
    if load_u64(keys, guess) < key:
        a = guess
        while a + step < b and load_u64(keys, a + step) < key:
            a += step
            step *= 2
        if a + step < b:
            b = a + step
    else:
        b = guess
        while b - step > a and load_u64(keys, b - step) >= key:
            b -= step
            step *= 2
        if b - step > a:
            a = b - step
    while b - a > 1:
        middle = (a + b) >> 1
        if load_u64(keys, middle) < key:
            a = middle
        else:
            b = middle
    return b


@inlined
def find_chunk(fences: int, first: int, last: int, key: Any) -> int:
    """The chunk in first … last-1 that holds the first row whose key is not below `key`, or ends just before it.

    `fences` is the address of the first keys of all chunks.
    """
    a = first
    b = last
    while b - a > 1:
        middle = (a + b) >> 1
        if load_u64(fences, middle) < key:
            a = middle
        else:
            b = middle
    return a


@inlined
def index_rows(keys: int, rows: int, position: int, shift: int, words: int) -> None:
    """Add the rows of a chunk to the words of an index: their key hashes at `keys`, index position of the first row.

    Keys ascend, so one word at a time is current. It is stored after every row: whether a row begins a new word is
    unpredictable, and a branch on it would cost more than the store.
    """
    word_shift, part_shift = np.uint64(shift), np.uint64(shift - _PART_BITS)
    current, word = i64(-1), np.uint64(0)
    if rows > 0:  # the previous chunk may have begun the word of the first rows
        word = load_u64(words, i64(load_u64(keys, 0) >> word_shift))
        current = i64(load_u64(keys, 0) >> word_shift) if word != np.uint64(0) else current
    for i in range(rows):
        key = load_u64(keys, i)
        slot = i64(key >> word_shift)
        word = word if slot == current else np.uint64(position | i) << _32
        word |= _ONE << (key >> part_shift & _PART_MASK)
        store_u64(words, slot, word)
        current = slot


@gil_kernel
def fill_index(tables: Int64s, lens: Int64s, first: int, shift: int, out: UInt64s) -> None:
    """Add chunks to the index of a batch; `first` is the number of the first of them, and words begin as zero.

    Chunks have at most 2^15 rows each. Other threads may read the words of earlier chunks meanwhile.
    """
    state = release_gil(lens.sum() > GIL_RELEASE_ROWS)
    for c in range(tables.shape[0]):
        index_rows(lane(tables[c], KEY), lens[c], i64(first + c) << INDEX_ROW_BITS, shift, address(out))
    restore_gil(state)


@inlined
def index_bits(rows: int) -> int:
    """How many leading bits of a key hash select a word in an index of so many rows: one word for two to four rows."""
    bits = i64(0)
    while 4 << bits < rows:
        bits += 1
    return bits


@inlined
def has_index(ref: int) -> Any:
    """Whether a batch has an index; `ref` is the address of its index reference."""
    return load_i64(ref, 0) != 0


@inlined
def prefetch_index_word(ref: int, key: Any) -> None:
    """Prefetch what `start_search` reads first."""
    if has_index(ref):
        prefetch(load_i64(ref, 0) + 8 * i64(key >> load_u64(ref, 1)))


@inlined
def _indexed_start(directory: int, first: int, last: int, ref: int, word: Any, part: Any) -> int:
    """The position in chunks first … last-1 where an index word says that the rows of a part begin, or NOT_FOUND.

    The key hash there is prefetched.
    """
    tables, lens = load_i64(directory, DIR_TABLES), load_i64(directory, DIR_LENGTHS)
    start = i64(word >> _32)
    c, row = start >> INDEX_ROW_BITS, start & ((1 << INDEX_ROW_BITS) - 1)
    chunks_gone, rows_gone = load_i64(ref, 2), load_i64(ref, 3)
    if chunks_gone == 0 and rows_gone == 0:
        c += first
        if c >= last:
            return i64(NOT_FOUND)
        # Every earlier part that has a key has a row, so as many rows can be skipped while they are in this chunk.
        later_row = row + count_bits(word & ((_ONE << part) - _ONE))
        if later_row < load_i64(lens, c):
            row = later_row
    elif c < chunks_gone or (c == chunks_gone and row < rows_gone):
        c, row = first, i64(0)
    else:
        row -= rows_gone if c == chunks_gone else i64(0)
        c += first - chunks_gone
    prefetch(lane(load_i64(tables, c), KEY) + 8 * row)
    return c << ROW_BITS | row


@inlined
def start_search(directory: int, first: int, last: int, ref: int, key: Any) -> int:
    """A position in chunks first … last-1 (at least one) that is not behind the first row of a key hash, or NOT_FOUND.

    What `finish_search` reads first is prefetched.
    """
    words = load_i64(ref, 0)
    if words == 0:
        c = find_chunk(load_i64(directory, DIR_FENCES), first, last, key) if last - first > 1 else first
        keys = lane(load_i64(load_i64(directory, DIR_TABLES), c), KEY)
        return i64(c) << ROW_BITS | lower_bound(keys, i64(0), load_i64(load_i64(directory, DIR_LENGTHS), c), key)
    shift = load_u64(ref, 1)
    word = load_u64(words, i64(key >> shift))
    part = key >> (shift - np.uint64(_PART_BITS)) & _PART_MASK
    if word >> part & _ONE == np.uint64(0):
        return i64(NOT_FOUND)
    return _indexed_start(directory, first, last, ref, word, part)


@inlined
def seek_forward(directory: int, last: int, begin: int, key: Any) -> int:
    """The position of the first row, from `begin` on, whose key hash is not below `key`; or the end of the last chunk.

    For ascending keys in batches without an index: each search starts where the previous one ended, so that a small
    batch is scanned once.
    """
    tables, lens = load_i64(directory, DIR_TABLES), load_i64(directory, DIR_LENGTHS)
    c, row = begin >> ROW_BITS, begin & ROW_MASK
    keys, end = lane(load_i64(tables, c), KEY), load_i64(lens, c)
    for _ in range(_MAX_SCANNED_ROWS):
        if row >= end:
            if c + 1 >= last:
                return c << ROW_BITS | row
            c += 1
            row, keys, end = i64(0), lane(load_i64(tables, c), KEY), load_i64(lens, c)
        if load_u64(keys, row) >= key:
            return c << ROW_BITS | row
        row += 1
    if row < end and load_u64(keys, end - 1) >= key:
        return c << ROW_BITS | lower_bound(keys, row, end, key)
    c = find_chunk(load_i64(directory, DIR_FENCES), c, last, key)
    row = lower_bound(lane(load_i64(tables, c), KEY), i64(0), load_i64(lens, c), key)
    return c << ROW_BITS | row


@inlined
def finish_search(directory: int, last: int, begin: int, key: Any) -> int:
    """The position of the first row of a key hash, or NOT_FOUND; `begin` is the result of `start_search`."""
    if begin == NOT_FOUND:
        return i64(NOT_FOUND)
    tables, lens = load_i64(directory, DIR_TABLES), load_i64(directory, DIR_LENGTHS)
    c, row = begin >> ROW_BITS, begin & ROW_MASK
    keys, end = lane(load_i64(tables, c), KEY), load_i64(lens, c)
    for _ in range(_MAX_SCANNED_ROWS):
        if row >= end:
            c += 1
            if c >= last:
                return i64(NOT_FOUND)
            row, keys, end = i64(0), lane(load_i64(tables, c), KEY), load_i64(lens, c)
        found = load_u64(keys, row)
        if found >= key:
            return c << ROW_BITS | row if found == key else i64(NOT_FOUND)
        row += 1
    c = find_chunk(load_i64(directory, DIR_FENCES), c, last, key)
    row = lower_bound(lane(load_i64(tables, c), KEY), i64(0), load_i64(lens, c), key)
    if row >= load_i64(lens, c):
        c += 1
        row = i64(0)
        if c >= last:
            return i64(NOT_FOUND)
    return c << ROW_BITS | row if load_u64(lane(load_i64(tables, c), KEY), row) == key else i64(NOT_FOUND)


@borrowing
def _scan_along(chunk_keys: int, size: int, chunk: int, keys: int, begin: int, end: int, found: Any, at: Any) -> int:
    """Start the searches in a small chunk, by a linear merge with the keys; results are those of `start_searches`."""
    n, row, previous = i64(0), i64(0), np.uint64(0)
    for i in range(begin, end):
        key = load_u64(keys, i)
        if i == begin or key < previous:
            row = lower_bound(chunk_keys, i64(0), size, key)
        previous = key
        while row < size and load_u64(chunk_keys, row) < key:
            row += 1
        if row < size and load_u64(chunk_keys, row) == key:
            found[n], at[n] = i - begin, i64(chunk) << ROW_BITS | row
            n += 1
    return n


@borrowing
def start_searches(
    directory: int, first: int, last: int, ref: int, keys: int, begin: int, end: int, found: Any, at: Any
) -> int:
    """Start the searches for a block of keys, begin … end-1 of those at `keys`; returns how many may be found.

    found[j] = number of a key that may be found, counted from `begin`; at[j] = the result of `start_search` for it.
    Most batches have few of the keys, so few searches have to be finished. Ascending keys are found faster.
    """
    n, words = i64(0), load_i64(ref, 0)
    if words == 0:
        tables, lens = load_i64(directory, DIR_TABLES), load_i64(directory, DIR_LENGTHS)
        size = load_i64(lens, first)
        if last - first == 1 and size <= _SCAN_ROWS_PER_KEY * (end - begin):
            return _scan_along(lane(load_i64(tables, first), KEY), size, first, keys, begin, end, found, at)
        p, previous = i64(first) << ROW_BITS, np.uint64(0)
        for i in range(begin, end):
            key = load_u64(keys, i)
            if key < previous:
                p = i64(first) << ROW_BITS
            previous = key
            p = seek_forward(directory, last, p, key)
            c, row = p >> ROW_BITS, p & ROW_MASK
            if row >= load_i64(lens, c) or load_u64(lane(load_i64(tables, c), KEY), row) == key:
                found[n], at[n] = i - begin, p
                n += 1
        return n
    shift = load_u64(ref, 1)
    part_shift = shift - np.uint64(_PART_BITS)
    for i in range(begin, end):
        prefetch(words + 8 * i64(load_u64(keys, i) >> shift))
    for i in range(begin, end):  # without a branch: which keys are there is unpredictable
        key = load_u64(keys, i)
        found[n] = i - begin
        n += i64(load_u64(words, i64(key >> shift)) >> (key >> part_shift & _PART_MASK) & _ONE)
    passing = i64(0)
    for j in range(n):
        key = load_u64(keys, begin + found[j])
        word = load_u64(words, i64(key >> shift))
        p = _indexed_start(directory, first, last, ref, word, key >> part_shift & _PART_MASK)
        if p != NOT_FOUND:
            found[passing], at[passing] = found[j], p
            passing += 1
    return passing


@inlined
def find_key(directory: int, b: int, key: Any) -> int:
    """The position of the first row of a key hash in batch b, or NOT_FOUND."""
    first, last = first_chunk(directory, b), first_chunk(directory, b + 1)
    if first >= last:
        return i64(NOT_FOUND)
    return finish_search(directory, last, start_search(directory, first, last, index_ref(directory, b), key), key)
