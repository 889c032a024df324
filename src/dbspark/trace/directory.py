"""Directories of batches for kernels: arrays with the addresses, lengths and fences of chunks, where each batch begins,
and the references of hash indices.

A `BatchDirectory` is an immutable value of one version of a spine. Versions share memory: a version with one more
batch writes its entry behind the last one and views one entry more. Only the first version that appends behind an
entry may do so; the others copy. A `MutableDirectory` is a private copy to which entries are added in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, pack
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch
from dbspark.columnar.batch_index import IndexRef
from dbspark.columnar.memory import Int64s, UInt64s, allocate
from dbspark.kernels.lookup.directory import (
    DIRECTORY_WORDS,
    INDEX_REF_WORDS,
    copy_directory,
    directory_words,
    splice_directory,
    write_batch_entry,
)
from dbspark.lazy import Lazy
from dbspark.trace.bloom_filter import FilterView

Sources = tuple[Int64s, Int64s, UInt64s, Int64s]
"""Node tables, lengths and fences of chunks, and where each batch's chunks start."""
_Addresses = tuple[int, int, int, int, int]
_DIRECTORY = Struct(f"{DIRECTORY_WORDS}q")
_SLOT = Struct("2q")
"""Address and number of chunks of a mutable directory, where kernels find and update them."""


class LookupCounters(NamedTuple):
    """Where kernels count lookups, and the Bloom filter that they use (`kernels.lookup.bloom_filter`)."""

    counters: Any = None
    """Memory of the two counters; None: lookups are not counted."""
    filter_view: FilterView | None = None
    filter_batches: int = 0
    """How many of the oldest batches the filter covers."""


NO_COUNTERS = LookupCounters()
"""Lookups are not counted, and there is no filter."""


def directory_of(sources: Sources, index_refs: Int64s, lookups: LookupCounters = NO_COUNTERS) -> tuple[int, Any]:
    """The address of a directory of some batches, and the owner of its memory. The caller keeps batches and arrays
    alive."""
    return _directory(_addresses(sources, index_refs), len(sources[3]) - 1, lookups)


def _addresses(sources: Sources, index_refs: Int64s) -> _Addresses:
    tables, lens, fences, starts = (array.ctypes.data for array in sources)
    return tables, lens, fences, starts, index_refs.ctypes.data


def _directory(addresses: _Addresses, batches: int, lookups: LookupCounters) -> tuple[int, Any]:
    directory = allocate(_DIRECTORY.size)
    counters, filter_view, filter_batches = lookups
    filter_words = (0, 0, 0) if filter_view is None else (filter_view.address, filter_view.shift, filter_batches)
    _DIRECTORY.pack_into(directory, 0, *addresses, batches, *filter_words, 0 if counters is None else counters.address)
    return directory.address, (directory, lookups)


def sources_of(batches: Sequence[Batch]) -> Sources:
    starts = [0]
    for batch in batches:
        starts.append(starts[-1] + len(batch.chunks))
    if len(batches) == 1:
        only = batches[0]
        return only.tables, only.lens, only.fences, np.array(starts, np.int64)
    if not batches:
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, np.uint64), np.array(starts, np.int64)
    return (
        np.concatenate([b.tables for b in batches]),
        np.concatenate([b.lens for b in batches]),
        np.concatenate([b.fences for b in batches]),
        np.array(starts, np.int64),
    )


class BatchDirectory:
    """The directory of the batches of one version of a spine; immutable, with memory shared as described above."""

    __slots__ = ("__dict__", "_memory", "batches", "chunks")

    def __init__(self, batches: tuple[Batch, ...], chunks: int, memory: _DirectoryMemory) -> None:
        self.batches = batches
        """Kept alive here, because kernels read their chunks by address."""
        self.chunks = chunks
        self._memory = memory

    @staticmethod
    def of(batches: tuple[Batch, ...], index_refs: Sequence[IndexRef]) -> BatchDirectory:
        return _EMPTY._splice(batches, 0, 0, batches, index_refs)

    @Lazy
    def sources(self) -> Sources:
        """Node tables, lengths and fences of chunks, and where each batch's chunks start."""
        tables, lens, fences, starts, _ = self._memory.arrays
        return tables[: self.chunks], lens[: self.chunks], fences[: self.chunks], starts[: len(self.batches) + 1]

    @property
    def index_refs(self) -> Int64s:
        """The reference of the hash index of each batch, zeros where it has none (`kernels.lookup.index`)."""
        index_refs: Int64s = self._memory.arrays[4][: len(self.batches)]
        return index_refs

    def directory(self, lookups: LookupCounters) -> tuple[int, Any]:
        """The address that kernels are called with (`kernels.lookup.directory`), and the owner of the memory there."""
        return _directory(self._memory.addresses, len(self.batches), lookups)

    def with_batches(self, batches: tuple[Batch, ...], index_ref: Callable[[Batch], IndexRef]) -> BatchDirectory:
        """The directory of other batches. Entries of common first and last batches are copied from this one."""
        before = self.batches
        most = min(len(before), len(batches))
        low = 0
        while low < most and before[low] is batches[low]:
            low += 1
        if low == len(before) == len(batches):
            return self
        high = 0
        while high < most - low and before[-1 - high] is batches[-1 - high]:
            high += 1
        new = batches[low : len(batches) - high]
        return self._splice(batches, low, len(before) - high, new, [index_ref(b) for b in new])

    def with_batch(self, batch: Batch, index_ref: IndexRef) -> BatchDirectory:
        """The directory with one more batch."""
        memory, count, chunks = self._memory, len(self.batches), batch.chunks
        if len(chunks) == 1 and memory.written == count < memory.batches and self.chunks < memory.chunks:
            write_batch_entry(*memory.addresses, self.chunks, count, chunks[0].table, batch.rows, *index_ref)
            memory.written = count + 1
            return BatchDirectory((*self.batches, batch), self.chunks + 1, memory)
        return self._splice((*self.batches, batch), count, count, (batch,), (index_ref,))

    def _splice(
        self, batches: tuple[Batch, ...], low: int, last: int, new: Sequence[Batch], index_refs: Sequence[IndexRef]
    ) -> BatchDirectory:
        """The directory of `batches`: the first `low` of this one, then `new`, then those of this one from `last`."""
        memory, before = self._memory, len(self.batches)
        entries: list[int] = []
        more = 0
        for batch, index_ref in zip(new, index_refs, strict=True):
            chunks = batch.chunks
            more += len(chunks)
            if len(chunks) == 1:
                entries += (1, chunks[0].table, chunks[0].rows, *index_ref)
            else:
                entries += (len(chunks), batch.tables.ctypes.data, batch.lens.ctypes.data, *index_ref)
        count, needed = len(batches), self.chunks + more
        if low < before or memory.written != before or count > memory.batches or needed > memory.chunks:
            memory = _DirectoryMemory(2 * needed + 8, 2 * count + 8)
        words = *self._memory.addresses, before, low, last, *memory.addresses, len(new), *entries
        arguments = pa.py_buffer(pack(f"{len(words)}q", *words))
        memory.written = count
        return BatchDirectory(batches, splice_directory(arguments.address), memory)


class MutableDirectory:
    """A private copy of the directory of a spine, to which `kernels.lookup.directory.append_batch` adds batches."""

    __slots__ = ("_memory", "_slot", "_slot_offset", "_spine")

    def __init__(self, slot: Any, offset: int) -> None:
        """`slot`, `offset`: memory where the address of the copy and the number of its chunks are stored."""
        self._slot, self._slot_offset = slot, offset
        self._memory: Any = None
        self._spine: Any = None

    def copy(self, spine: Any, more: int) -> int:
        """Copy the directory of a spine, with space for `more` batches; returns the address."""
        directory, chunks, needed = (
            spine.directory,
            spine.chunks,
            directory_words(spine.chunks, len(spine.batches), more),
        )
        if self._memory is None or self._memory.size < 8 * needed:
            self._memory = allocate(16 * needed)
        address: int = self._memory.address
        copy_directory(directory, chunks, more, address)
        _SLOT.pack_into(self._slot, self._slot_offset, address, chunks)
        self._spine = spine
        return address

    @staticmethod
    def new_slot() -> Any:
        """Memory for the address and the number of chunks of one directory."""
        return allocate(_SLOT.size)


class _DirectoryMemory:
    """Memory that directories share, with space for a number of chunks and batches."""

    __slots__ = ("__dict__", "_words", "addresses", "batches", "chunks", "written")

    def __init__(self, chunks: int, batches: int) -> None:
        self.chunks, self.batches = chunks, batches
        self._words = np.empty(3 * chunks + (1 + INDEX_REF_WORDS) * batches + 1, np.int64)
        at = self._words.ctypes.data
        starts = at + 24 * chunks
        self.addresses: _Addresses = at, at + 8 * chunks, at + 16 * chunks, starts, starts + 8 * (batches + 1)
        """Addresses of node tables, lengths, fences, batch starts and index references."""
        self.written = 0
        """How many batches have entries."""

    @Lazy
    def arrays(self) -> tuple[Any, ...]:
        """The parts at `addresses` as numpy arrays."""
        n, m = self.chunks, self._words
        starts = 3 * n + self.batches + 1
        return (
            m[:n],
            m[n : 2 * n],
            m[2 * n : 3 * n].view(np.uint64),
            m[3 * n : starts],
            m[starts:].reshape(-1, INDEX_REF_WORDS),
        )


def _make_empty() -> BatchDirectory:
    memory = _DirectoryMemory(0, 0)
    memory.arrays[3][0] = 0
    return BatchDirectory((), 0, memory)


_EMPTY = _make_empty()
"""The directory of no batches, without space for more."""
