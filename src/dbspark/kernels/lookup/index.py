"""Where a key is in the sorted chunks of a batch.

Key hashes are uniform, so a search starts where the hash itself points (interpolation), gallops from there and
bisects what is left. Across the chunks of a batch the fences (first key of each chunk) are searched first. In much
state every step of a search waits for memory, some ten times in all. So larger batches have an *index*: one word for
every two to four rows, to which the first bits of a key hash point. It says where the rows of these bits begin, and by
32 bits, which of the 32 parts of what is left of the range have a key at all. A key that is not there costs one look
at memory, and mostly no more; one that is there costs another, and both can be asked for ahead: `ask_for_word`, then
`begin_of`, then `rest_of`, each for many keys before the next.

    word = position << 32 | parts        position = chunk << 15 | row, counted from the first chunk of the batch

A part of a batch, as of a merge in progress, has the index of the whole; how many chunks and rows of it are gone is
told beside it. What a merge in progress has written so far has an index, too, which may know of more rows than whoever
has an earlier version of the merge: positions behind its last chunk are nowhere for him. Where hashes are not uniform
(a hot key, a weakened hash) the words say little, and the search goes on by fences and interpolation: that costs time
and nothing else.

    places[b] = (address of the index of batch b or 0, shift, chunks that are gone, rows of the next one that are gone)

What kernels are told of the batches of a spine is the address of a *directory*: a line of addresses, because an array
that is handed from function to function is counted at every step. A `place` is the address of a line of `places`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.cpython import GIL_RELEASE_ROWS, release_gil, restore_gil
from dbspark.kernels.jit import borrowing, gil_kernel, i64, inlined
from dbspark.kernels.memory.intrinsics import copy_bytes, count_bits, load_i64, load_u64, prefetch, store_i64, store_u64
from dbspark.kernels.memory.layout import KEY, ROW_BITS, ROW_MASK
from dbspark.kernels.memory.nodes import lane

NOWHERE: Final = -1
"""Instead of a position: no row has the key hash."""
INDEX_ROW_BITS: Final = 15
"""Rows of a chunk that an index can number."""
PLACE: Final = 4
"""Numbers that tell kernels of an index."""
TABLES: Final = 0
"""The words of a directory: addresses of the node tables, lengths and first keys of all chunks, of the number of the
first chunk of each batch (and, behind the last, of all), and of places; then the number of batches, and of a sieve of
their keys (`kernels.lookup.bloom_filter`) its address, by how much keys are shifted to point into it, to how many of
the first batches it applies, and the address of counters."""
LENS: Final = 1
FENCES: Final = 2
STARTS: Final = 3
PLACES: Final = 4
BATCHES: Final = 5
SIEVE: Final = 6
SHIFT: Final = 7
COVERED: Final = 8
COUNTS: Final = 9
DIRECTORY: Final = 10
SPLICED: Final = 7
"""Words of a batch that is spliced in."""
_PART_BITS: Final = 5
_STEPS: Final = 16
"""Rows that are walked over before they are searched."""
_ALONG: Final = 8
"""Rows of a small chunk for each key that is looked for, up to which they are walked along."""
_ONE = np.uint64(1)
_32 = np.uint64(32)
_PARTS = np.uint64(0xFFFFFFFF)


@inlined
def lower_bound(keys: int, begin: int, end: int, key: Any) -> int:
    """First row in begin … end whose key is not below `key`, by interpolation, galloping and bisection."""
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
    """The chunk in first … last-1 where the first row with a key not below `key` is, or would be at its end.

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
def address(array: Any) -> int:
    return i64(array.ctypes.data)


@gil_kernel
def list_batch(
    tables: int, lens: int, fences: int, starts: int, places: int, chunk: int, batch: int, table: int, rows: int,
    words: int, shift: int, gone: int, before: int,
) -> None:  # fmt: skip
    """Write one more batch of one chunk behind those of a directory, whose arrays have room for it, and its place."""
    store_i64(tables, chunk, table)
    store_i64(lens, chunk, rows)
    store_u64(fences, chunk, load_u64(lane(table, KEY), 0))
    store_i64(starts, batch + 1, chunk + 1)
    store_i64(places, PLACE * batch, words)
    store_i64(places, PLACE * batch + 1, shift)
    store_i64(places, PLACE * batch + 2, gone)
    store_i64(places, PLACE * batch + 3, before)


@gil_kernel
def splice(given: int) -> int:
    """List some batches of a directory, then others, then those at its end; returns the number of all chunks.

    given = addresses of its arrays; how many batches there are, how many of them come first, and the first of those at
    the end; addresses of the arrays to write, which may be the same where none come at the end; how many others there
    are, and for each of them the number of its chunks, the address of their node tables and that of their lengths (of
    a single chunk the table itself and its rows), and its place.
    """
    tables, lens, fences = load_i64(given, TABLES), load_i64(given, LENS), load_i64(given, FENCES)
    starts, places = load_i64(given, STARTS), load_i64(given, PLACES)
    batches, low, last = load_i64(given, BATCHES), load_i64(given, 6), load_i64(given, 7)
    target = given + 64
    to_tables, to_lens, to_fences = load_i64(target, TABLES), load_i64(target, LENS), load_i64(target, FENCES)
    to_starts, to_places, more = load_i64(target, STARTS), load_i64(target, PLACES), load_i64(target, 5)
    chunk = load_i64(starts, low)
    if to_tables != tables:
        copy_bytes(to_tables, tables, 8 * chunk)
        copy_bytes(to_lens, lens, 8 * chunk)
        copy_bytes(to_fences, fences, 8 * chunk)
        copy_bytes(to_starts, starts, 8 * (low + 1))
        copy_bytes(to_places, places, 8 * PLACE * low)
    for k in range(more):
        other = target + 8 * (6 + SPLICED * k)
        count, at, sizes = load_i64(other, 0), load_i64(other, 1), load_i64(other, 2)
        for c in range(count):
            table = load_i64(at, c) if count > 1 else at
            store_i64(to_tables, chunk + c, table)
            store_i64(to_lens, chunk + c, load_i64(sizes, c) if count > 1 else sizes)
            store_u64(to_fences, chunk + c, load_u64(lane(table, KEY), 0))
        chunk += count
        store_i64(to_starts, low + k + 1, chunk)
        copy_bytes(to_places + 8 * PLACE * (low + k), other + 24, i64(8 * PLACE))
    if last < batches:
        begin, end = load_i64(starts, last), load_i64(starts, batches)
        copy_bytes(to_tables + 8 * chunk, tables + 8 * begin, 8 * (end - begin))
        copy_bytes(to_lens + 8 * chunk, lens + 8 * begin, 8 * (end - begin))
        copy_bytes(to_fences + 8 * chunk, fences + 8 * begin, 8 * (end - begin))
        for b in range(last, batches):
            store_i64(to_starts, low + more + b - last + 1, load_i64(starts, b + 1) - begin + chunk)
        copy_bytes(to_places + 8 * PLACE * (low + more), places + 8 * PLACE * last, 8 * PLACE * (batches - last))
        chunk += end - begin
    return chunk


@inlined
def append_batch(listed: int, table: int, rows: int, words: int, shift: int) -> None:
    """One more batch, of one chunk, in a directory of one's own that has room for it.

    listed = its address, how many chunks it has; `words`: an index, or 0.
    """
    directory, chunk = load_i64(listed, 0), load_i64(listed, 1)
    batch, places = load_i64(directory, BATCHES), load_i64(directory, PLACES)
    store_i64(load_i64(directory, TABLES), chunk, table)
    store_i64(load_i64(directory, LENS), chunk, rows)
    store_u64(load_i64(directory, FENCES), chunk, load_u64(lane(table, KEY), 0))
    store_i64(load_i64(directory, STARTS), batch + 1, chunk + 1)
    store_i64(places, PLACE * batch, words)
    store_i64(places, PLACE * batch + 1, shift)
    store_i64(places, PLACE * batch + 2, i64(0))
    store_i64(places, PLACE * batch + 3, i64(0))
    store_i64(directory, BATCHES, batch + 1)
    store_i64(listed, 1, chunk + 1)


@gil_kernel
def append(listed: int, table: int, rows: int) -> None:
    """See `append_batch`; there is no index."""
    append_batch(listed, table, rows, i64(0), i64(0))


def directory_words(chunks: int, batches: int, more: int) -> int:
    """Words of a directory of one's own, and of its arrays, with room for so many more batches of one chunk."""
    return DIRECTORY + 3 * (chunks + more) + (1 + PLACE) * (batches + more) + 1


@gil_kernel
def copy_directory(directory: int, chunks: int, more: int, target: int) -> None:
    """Make a directory of one's own at an address, behind whose batches there is room for so many more."""
    batches, at = load_i64(directory, BATCHES), target + 8 * DIRECTORY
    copy_bytes(target, directory, i64(8 * DIRECTORY))
    for k in range(3):
        copy_bytes(at, load_i64(directory, k), 8 * chunks)
        store_i64(target, k, at)
        at += 8 * (chunks + more)
    copy_bytes(at, load_i64(directory, STARTS), 8 * (batches + 1))
    store_i64(target, STARTS, at)
    at += 8 * (batches + more + 1)
    copy_bytes(at, load_i64(directory, PLACES), 8 * PLACE * batches)
    store_i64(target, PLACES, at)


@inlined
def describe(tables: Any, lens: Any, fences: Any, starts: Any, places: Any, out: Any) -> int:
    """Write a directory to `out`; returns its address. All of them have to be kept as long as it is used."""
    out[TABLES], out[LENS], out[FENCES] = address(tables), address(lens), address(fences)
    out[STARTS], out[PLACES], out[BATCHES] = address(starts), address(places), starts.shape[0] - 1
    out[SIEVE:DIRECTORY] = 0
    return address(out)


@inlined
def first_chunk(directory: int, b: int) -> int:
    """The first chunk of a batch; that of the next one is behind its last."""
    return load_i64(load_i64(directory, STARTS), b)


@inlined
def place_of(directory: int, b: int) -> int:
    return load_i64(directory, PLACES) + b * (8 * PLACE)


@inlined
def index_rows(keys: int, rows: int, here: int, shift: int, words: int) -> None:
    """Add the rows of a chunk, whose position is `here`, to the words of an index; their key hashes are at an address.

    Keys rise, so a word is done when another begins: it is kept at hand, and written whenever a row has changed it. How
    many rows a word has nobody can guess, so there is no branch that says whether a row begins one.
    """
    by, to_part = np.uint64(shift), np.uint64(shift - _PART_BITS)
    before, word = i64(-1), np.uint64(0)
    if rows > 0:  # its first rows may be of a word that a chunk before it has begun
        word = load_u64(words, i64(load_u64(keys, 0) >> by))
        before = i64(load_u64(keys, 0) >> by) if word != np.uint64(0) else before
    for i in range(rows):
        key = load_u64(keys, i)
        mine = i64(key >> by)
        word = word if mine == before else np.uint64(here | i) << _32
        word |= _ONE << (key >> to_part & np.uint64(31))
        store_u64(words, mine, word)
        before = mine


@gil_kernel
def fill_index(tables: Any, lens: Any, first: int, shift: int, out: Any) -> None:
    """Add chunks, from a number on, to the index of a batch: words that were zero when its first chunk was added.

    Chunks have at most 2^15 rows each. Others may read the words of the chunks before them meanwhile.
    """
    state = release_gil(lens.sum() > GIL_RELEASE_ROWS)
    for c in range(tables.shape[0]):
        index_rows(lane(tables[c], KEY), lens[c], i64(first + c) << INDEX_ROW_BITS, shift, address(out))
    restore_gil(state)


@inlined
def index_bits(rows: int) -> int:
    """How many bits of a key hash point to the words of the index of so many rows: two to four rows have one word."""
    bits = i64(0)
    while 4 << bits < rows:
        bits += 1
    return bits


@inlined
def has_index(place: int) -> Any:
    """Whether a batch has an index."""
    return load_i64(place, 0) != 0


@inlined
def ask_for_word(place: int, key: Any) -> None:
    """Ask for the memory that `begin_of` reads first."""
    if has_index(place):
        prefetch(load_i64(place, 0) + 8 * i64(key >> load_u64(place, 1)))


@inlined
def _begin(directory: int, first: int, last: int, place: int, word: Any, part: Any) -> int:
    """Where a word of the index says that the rows of a part begin, in chunks first … last-1, or NOWHERE; the memory
    of the row there is asked for."""
    tables, lens = load_i64(directory, TABLES), load_i64(directory, LENS)
    begin = i64(word >> _32)
    c, row = begin >> INDEX_ROW_BITS, begin & ((1 << INDEX_ROW_BITS) - 1)
    gone, before = load_i64(place, 2), load_i64(place, 3)
    if gone == 0 and before == 0:
        c += first
        if c >= last:
            return i64(NOWHERE)
        # As many rows as there are parts with a key before this one are before it, if they are all in this chunk.
        ahead = row + count_bits(word & ((_ONE << part) - _ONE))
        if ahead < load_i64(lens, c):
            row = ahead
    elif c < gone or (c == gone and row < before):
        c, row = first, i64(0)
    else:
        row -= before if c == gone else i64(0)
        c += first - gone
    prefetch(lane(load_i64(tables, c), KEY) + 8 * row)
    return c << ROW_BITS | row


@inlined
def begin_of(directory: int, first: int, last: int, place: int, key: Any) -> int:
    """A position in chunks first … last-1, of which there are some, not behind the first row of a key hash.

    NOWHERE where there is none. What `rest_of` reads first is asked for.
    """
    words = load_i64(place, 0)
    if words == 0:
        c = find_chunk(load_i64(directory, FENCES), first, last, key) if last - first > 1 else first
        keys = lane(load_i64(load_i64(directory, TABLES), c), KEY)
        return i64(c) << ROW_BITS | lower_bound(keys, i64(0), load_i64(load_i64(directory, LENS), c), key)
    shift = load_u64(place, 1)
    word = load_u64(words, i64(key >> shift))
    part = key >> (shift - np.uint64(_PART_BITS)) & np.uint64(31)
    if word >> part & _ONE == np.uint64(0):
        return i64(NOWHERE)
    return _begin(directory, first, last, place, word, part)


@inlined
def follow(directory: int, last: int, begin: int, key: Any) -> int:
    """The position of the first row, from a position on, whose key hash is not below `key`.

    For keys that rise, in batches without an index, each from where the one before it was found: what is small is
    walked along once. Behind the last row it is the end of the last chunk.
    """
    tables, lens = load_i64(directory, TABLES), load_i64(directory, LENS)
    c, row = begin >> ROW_BITS, begin & ROW_MASK
    keys, end = lane(load_i64(tables, c), KEY), load_i64(lens, c)
    for _ in range(_STEPS):
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
    c = find_chunk(load_i64(directory, FENCES), c, last, key)
    row = lower_bound(lane(load_i64(tables, c), KEY), i64(0), load_i64(lens, c), key)
    return c << ROW_BITS | row


@inlined
def rest_of(directory: int, last: int, begin: int, key: Any) -> int:
    """The position of the first row of a key hash, from what `begin_of` gave on; NOWHERE where there is none."""
    if begin == NOWHERE:
        return i64(NOWHERE)
    tables, lens = load_i64(directory, TABLES), load_i64(directory, LENS)
    c, row = begin >> ROW_BITS, begin & ROW_MASK
    keys, end = lane(load_i64(tables, c), KEY), load_i64(lens, c)
    for _ in range(_STEPS):
        if row >= end:
            c += 1
            if c >= last:
                return i64(NOWHERE)
            row, keys, end = i64(0), lane(load_i64(tables, c), KEY), load_i64(lens, c)
        found = load_u64(keys, row)
        if found >= key:
            return c << ROW_BITS | row if found == key else i64(NOWHERE)
        row += 1
    c = find_chunk(load_i64(directory, FENCES), c, last, key)
    row = lower_bound(lane(load_i64(tables, c), KEY), i64(0), load_i64(lens, c), key)
    if row >= load_i64(lens, c):
        c += 1
        row = i64(0)
        if c >= last:
            return i64(NOWHERE)
    return c << ROW_BITS | row if load_u64(lane(load_i64(tables, c), KEY), row) == key else i64(NOWHERE)


@borrowing
def _walk(own: int, size: int, chunk: int, keys: int, begin: int, end: int, which: Any, at: Any) -> int:
    """`begin_block` in a small chunk, by walking along both sides: most of them have none of the keys."""
    n, row, before = i64(0), i64(0), np.uint64(0)
    for i in range(begin, end):
        key = load_u64(keys, i)
        if i == begin or key < before:
            row = lower_bound(own, i64(0), size, key)
        before = key
        while row < size and load_u64(own, row) < key:
            row += 1
        if row < size and load_u64(own, row) == key:
            which[n], at[n] = i - begin, i64(chunk) << ROW_BITS | row
            n += 1
    return n


@borrowing
def begin_block(
    directory: int, first: int, last: int, place: int, keys: int, begin: int, end: int, which: Any, at: Any
) -> int:
    """Those of keys begin … end-1 at an address, which are few, that may be in chunks first … last-1: returns how many.

    which[j] = the number of such a key, counted from `begin`; at[j] = what `begin_of` gives for it. Most batches have
    few of the keys, so what follows is to be done for few. Where keys rise they are found sooner.
    """
    n, words = i64(0), load_i64(place, 0)
    if words == 0:
        tables, lens = load_i64(directory, TABLES), load_i64(directory, LENS)
        size = load_i64(lens, first)
        if last - first == 1 and size <= _ALONG * (end - begin):
            return _walk(lane(load_i64(tables, first), KEY), size, first, keys, begin, end, which, at)
        p, before = i64(first) << ROW_BITS, np.uint64(0)
        for i in range(begin, end):
            key = load_u64(keys, i)
            if key < before:
                p = i64(first) << ROW_BITS
            before = key
            p = follow(directory, last, p, key)
            c, row = p >> ROW_BITS, p & ROW_MASK
            if row >= load_i64(lens, c) or load_u64(lane(load_i64(tables, c), KEY), row) == key:
                which[n], at[n] = i - begin, p
                n += 1
        return n
    shift = load_u64(place, 1)
    to_part = shift - np.uint64(_PART_BITS)
    for i in range(begin, end):
        prefetch(words + 8 * i64(load_u64(keys, i) >> shift))
    for i in range(begin, end):  # without a branch: nobody can guess which keys are there
        key = load_u64(keys, i)
        which[n] = i - begin
        n += i64(load_u64(words, i64(key >> shift)) >> (key >> to_part & np.uint64(31)) & _ONE)
    some = i64(0)
    for j in range(n):
        key = load_u64(keys, begin + which[j])
        word = load_u64(words, i64(key >> shift))
        p = _begin(directory, first, last, place, word, key >> to_part & np.uint64(31))
        if p != NOWHERE:
            which[some], at[some] = which[j], p
            some += 1
    return some


@inlined
def find_key(directory: int, b: int, key: Any) -> int:
    """The position of the first row of a key hash in a batch; NOWHERE where there is none."""
    first, last = first_chunk(directory, b), first_chunk(directory, b + 1)
    if first >= last:
        return i64(NOWHERE)
    return rest_of(directory, last, begin_of(directory, first, last, place_of(directory, b), key), key)


@inlined
def table_at(directory: int, pos: int) -> int:
    """The node table of the chunk of a position."""
    return load_i64(load_i64(directory, TABLES), pos >> ROW_BITS)


@inlined
def length_at(directory: int, c: int) -> int:
    """How many rows a chunk has."""
    return load_i64(load_i64(directory, LENS), c)
