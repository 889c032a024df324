"""The batch directory: what kernels read to find the batches of a spine, their chunks and their indices.

A directory is a line of `DIRECTORY_WORDS` integers, passed to kernels by its address: an array that is passed from
function to function has its references counted at every call. It describes batches as consecutive chunks:

    tables, lengths, fences    by chunk: address of the node table, number of rows, first key hash
    batch starts               by batch: number of its first chunk; one more at the end: the number of all chunks
    index references           by batch: four words, see below
    number of batches
    Bloom filter               address of its words, shift, and how many of the first batches it covers
    counters                   address of two counters: keys looked up, and keys that the filter rejected; or 0

An *index reference* (`INDEX_REF_WORDS` words) says where the index of a batch is (`kernels.lookup.index`): address of
its words or 0, shift, and, for what is left of a batch that a merge in progress has consumed in part, how many of the
indexed chunks are consumed, and how many rows of the next one.

Directories belong to immutable versions of a spine. The exception is a *mutable directory*: a private copy behind whose
batches there is space for more, given as the address of two words, the directory's address and its number of chunks.
"""

from __future__ import annotations

from typing import Any, Final

from dbspark.kernels.jit import gil_kernel, i64, inlined
from dbspark.kernels.memory.intrinsics import copy_bytes, load_i64, load_u64, store_i64, store_u64
from dbspark.kernels.memory.layout import KEY, ROW_BITS
from dbspark.kernels.memory.nodes import lane

DIR_TABLES: Final = 0
DIR_LENGTHS: Final = 1
DIR_FENCES: Final = 2
DIR_BATCH_STARTS: Final = 3
DIR_INDEX_REFS: Final = 4
DIR_BATCHES: Final = 5
DIR_FILTER: Final = 6
DIR_FILTER_SHIFT: Final = 7
DIR_FILTER_BATCHES: Final = 8
DIR_COUNTERS: Final = 9
DIRECTORY_WORDS: Final = 10
INDEX_REF_WORDS: Final = 4
SPLICED_BATCH_WORDS: Final = 7
"""Words that describe one new batch to `splice_directory`."""


@inlined
def address(array: Any) -> int:
    """The address of the first element of an array, which has to outlive its use."""
    return i64(array.ctypes.data)


# ---------------------------------------------------------------------------------------------------- reading


@inlined
def first_chunk(directory: int, b: int) -> int:
    """The first chunk of batch b; the first of batch b + 1 is the end of batch b."""
    return load_i64(load_i64(directory, DIR_BATCH_STARTS), b)


@inlined
def index_ref(directory: int, b: int) -> int:
    """The address of the index reference of a batch."""
    return load_i64(directory, DIR_INDEX_REFS) + b * (8 * INDEX_REF_WORDS)


@inlined
def table_at(directory: int, pos: int) -> int:
    """The node table of the chunk of a position."""
    return load_i64(load_i64(directory, DIR_TABLES), pos >> ROW_BITS)


@inlined
def length_at(directory: int, c: int) -> int:
    """The number of rows of a chunk."""
    return load_i64(load_i64(directory, DIR_LENGTHS), c)


# ---------------------------------------------------------------------------------------------------- writing


@inlined
def write_directory(tables: Any, lens: Any, fences: Any, starts: Any, index_refs: Any, out: Any) -> int:
    """Write a directory without a filter to `out` and return its address; the arrays have to outlive it."""
    out[DIR_TABLES], out[DIR_LENGTHS], out[DIR_FENCES] = address(tables), address(lens), address(fences)
    out[DIR_BATCH_STARTS], out[DIR_INDEX_REFS] = address(starts), address(index_refs)
    out[DIR_BATCHES] = starts.shape[0] - 1
    out[DIR_FILTER:DIRECTORY_WORDS] = 0
    return address(out)


@gil_kernel
def write_batch_entry(
    tables: int, lens: int, fences: int, starts: int, index_refs: int, chunk: int, batch: int, table: int, rows: int,
    words: int, shift: int, chunks_gone: int, rows_gone: int,
) -> None:  # fmt: skip
    """Write a batch of one chunk, with its index reference, into the arrays of a directory, which have space for it."""
    store_i64(tables, chunk, table)
    store_i64(lens, chunk, rows)
    store_u64(fences, chunk, load_u64(lane(table, KEY), 0))
    store_i64(starts, batch + 1, chunk + 1)
    store_i64(index_refs, INDEX_REF_WORDS * batch, words)
    store_i64(index_refs, INDEX_REF_WORDS * batch + 1, shift)
    store_i64(index_refs, INDEX_REF_WORDS * batch + 2, chunks_gone)
    store_i64(index_refs, INDEX_REF_WORDS * batch + 3, rows_gone)


@gil_kernel
def splice_directory(request: int) -> int:
    """Copy the first batches of a directory, then new ones, then its last; returns the number of all chunks.

    The words at `request`:
        0 … 4   addresses of the arrays to read: tables, lengths, fences, batch starts, index references
        5 … 7   number of batches there; how many of them come first; number of the first of the last ones
        8 … 12  addresses of the arrays to write, the same as those to read only where no last ones follow
        13      number of new batches
        then `SPLICED_BATCH_WORDS` for each: its number of chunks; addresses of their node tables and lengths (of a
        single chunk: its node table and its rows themselves); its index reference
    """
    tables, lens, fences = load_i64(request, DIR_TABLES), load_i64(request, DIR_LENGTHS), load_i64(request, DIR_FENCES)
    starts, index_refs = load_i64(request, DIR_BATCH_STARTS), load_i64(request, DIR_INDEX_REFS)
    batches, low, last = load_i64(request, DIR_BATCHES), load_i64(request, 6), load_i64(request, 7)
    target = request + 64
    to_tables, to_lens = load_i64(target, DIR_TABLES), load_i64(target, DIR_LENGTHS)
    to_fences, to_starts = load_i64(target, DIR_FENCES), load_i64(target, DIR_BATCH_STARTS)
    to_refs, new_batches = load_i64(target, DIR_INDEX_REFS), load_i64(target, 5)
    ref_bytes = i64(8 * INDEX_REF_WORDS)
    chunk = load_i64(starts, low)
    if to_tables != tables:
        copy_bytes(to_tables, tables, 8 * chunk)
        copy_bytes(to_lens, lens, 8 * chunk)
        copy_bytes(to_fences, fences, 8 * chunk)
        copy_bytes(to_starts, starts, 8 * (low + 1))
        copy_bytes(to_refs, index_refs, ref_bytes * low)
    for k in range(new_batches):
        new = target + 8 * (6 + SPLICED_BATCH_WORDS * k)
        count, at, sizes = load_i64(new, 0), load_i64(new, 1), load_i64(new, 2)
        for c in range(count):
            table = load_i64(at, c) if count > 1 else at
            store_i64(to_tables, chunk + c, table)
            store_i64(to_lens, chunk + c, load_i64(sizes, c) if count > 1 else sizes)
            store_u64(to_fences, chunk + c, load_u64(lane(table, KEY), 0))
        chunk += count
        store_i64(to_starts, low + k + 1, chunk)
        copy_bytes(to_refs + ref_bytes * (low + k), new + 24, ref_bytes)
    if last < batches:
        begin, end = load_i64(starts, last), load_i64(starts, batches)
        copy_bytes(to_tables + 8 * chunk, tables + 8 * begin, 8 * (end - begin))
        copy_bytes(to_lens + 8 * chunk, lens + 8 * begin, 8 * (end - begin))
        copy_bytes(to_fences + 8 * chunk, fences + 8 * begin, 8 * (end - begin))
        for b in range(last, batches):
            store_i64(to_starts, low + new_batches + b - last + 1, load_i64(starts, b + 1) - begin + chunk)
        copy_bytes(
            to_refs + ref_bytes * (low + new_batches), index_refs + ref_bytes * last, ref_bytes * (batches - last)
        )
        chunk += end - begin
    return chunk


# ---------------------------------------------------------------------------------------------------- mutable copies


def directory_words(chunks: int, batches: int, spare: int) -> int:
    """Words of a mutable directory and its arrays, with space for `spare` more batches of one chunk each."""
    return DIRECTORY_WORDS + 3 * (chunks + spare) + (1 + INDEX_REF_WORDS) * (batches + spare) + 1


@gil_kernel
def copy_directory(directory: int, chunks: int, spare: int, target: int) -> None:
    """Copy a directory and its arrays to `target`, with space for `spare` more batches of one chunk each."""
    batches, at = load_i64(directory, DIR_BATCHES), target + 8 * DIRECTORY_WORDS
    copy_bytes(target, directory, i64(8 * DIRECTORY_WORDS))
    for k in range(3):  # tables, lengths, fences
        copy_bytes(at, load_i64(directory, k), 8 * chunks)
        store_i64(target, k, at)
        at += 8 * (chunks + spare)
    copy_bytes(at, load_i64(directory, DIR_BATCH_STARTS), 8 * (batches + 1))
    store_i64(target, DIR_BATCH_STARTS, at)
    at += 8 * (batches + spare + 1)
    copy_bytes(at, load_i64(directory, DIR_INDEX_REFS), 8 * INDEX_REF_WORDS * batches)
    store_i64(target, DIR_INDEX_REFS, at)


@inlined
def append_entry(mutable: int, table: int, rows: int, words: int, shift: int) -> None:
    """Append a batch of one chunk to a mutable directory that has space for it; `words`: address of its index, or 0."""
    directory, chunk = load_i64(mutable, 0), load_i64(mutable, 1)
    batch, index_refs = load_i64(directory, DIR_BATCHES), load_i64(directory, DIR_INDEX_REFS)
    store_i64(load_i64(directory, DIR_TABLES), chunk, table)
    store_i64(load_i64(directory, DIR_LENGTHS), chunk, rows)
    store_u64(load_i64(directory, DIR_FENCES), chunk, load_u64(lane(table, KEY), 0))
    store_i64(load_i64(directory, DIR_BATCH_STARTS), batch + 1, chunk + 1)
    store_i64(index_refs, INDEX_REF_WORDS * batch, words)
    store_i64(index_refs, INDEX_REF_WORDS * batch + 1, shift)
    store_i64(index_refs, INDEX_REF_WORDS * batch + 2, i64(0))
    store_i64(index_refs, INDEX_REF_WORDS * batch + 3, i64(0))
    store_i64(directory, DIR_BATCHES, batch + 1)
    store_i64(mutable, 1, chunk + 1)


@gil_kernel
def append_batch(mutable: int, table: int, rows: int) -> None:
    """Append a batch of one chunk, without an index, to a mutable directory that has space for it."""
    append_entry(mutable, table, rows, i64(0), i64(0))
