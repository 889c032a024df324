"""Batches as the kernels read them: arrays of addresses, lengths, fences and places, which grow with the spine."""

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
from dbspark.trace.bloom_filter import Told

Sources = tuple[Int64s, Int64s, UInt64s, Int64s]
"""Node tables, lengths and fences of chunks, and where each batch's chunks start."""
_Addresses = tuple[int, int, int, int, int]
_DIRECTORY = Struct(f"{DIRECTORY_WORDS}q")
_OWN = Struct("2q")
"""A directory of somebody's own: its address and the number of its chunks."""


class Sought(NamedTuple):
    """What kernels are told of look-ups (`kernels.lookup.bloom_filter`)."""

    counts: Any = None
    """Memory of counters."""
    sieve: Told | None = None
    covered: int = 0
    """To how many of the first batches the sieve applies."""


NOTHING = Sought()
"""Nobody counts, and there is no sieve."""


def directory_of(sources: Sources, places: Int64s, sought: Sought = NOTHING) -> tuple[int, Any]:
    """The address of what kernels are told of some batches, and what has to be kept for it beside them."""
    return _directory(_addresses(sources, places), len(sources[3]) - 1, sought)


def _addresses(sources: Sources, places: Int64s) -> _Addresses:
    tables, lens, fences, starts = (array.ctypes.data for array in sources)
    return tables, lens, fences, starts, places.ctypes.data


def _directory(addresses: _Addresses, batches: int, sought: Sought) -> tuple[int, Any]:
    directory = allocate(_DIRECTORY.size)
    counts, sieve, covered = sought
    told = (0, 0, 0) if sieve is None else (sieve.address, sieve.shift, covered)
    _DIRECTORY.pack_into(directory, 0, *addresses, batches, *told, 0 if counts is None else counts.address)
    return directory.address, (directory, sought)


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


class Listed:
    """Batches as the kernels read them, with room for more behind them.

    A spine with one more batch writes it there and shares the rest: its own list is a longer view of the same memory.
    Only the newest may; whoever comes second finds the room taken and copies.
    """

    __slots__ = ("__dict__", "_room", "batches", "chunks")

    def __init__(self, batches: tuple[Batch, ...], chunks: int, room: _Room) -> None:
        self.batches = batches
        """Kept, because kernels read them by address."""
        self.chunks = chunks
        self._room = room

    @staticmethod
    def of(batches: tuple[Batch, ...], places: Sequence[IndexRef]) -> Listed:
        return _NONE._spliced(batches, 0, 0, batches, places)

    @Lazy
    def sources(self) -> Sources:
        """Node tables, lengths and fences of chunks, and where each batch's chunks start."""
        tables, lens, fences, starts, _ = self._room.arrays
        return tables[: self.chunks], lens[: self.chunks], fences[: self.chunks], starts[: len(self.batches) + 1]

    @property
    def places(self) -> Int64s:
        """Where the index of each batch is (`kernels.lookup.index`)."""
        places: Int64s = self._room.arrays[4][: len(self.batches)]
        return places

    def directory(self, sought: Sought) -> tuple[int, Any]:
        """What kernels are told of all this (`kernels.lookup.index`): an address, and what has to be kept for it."""
        return _directory(self._room.addresses, len(self.batches), sought)

    def turned_into(self, batches: tuple[Batch, ...], place: Callable[[Batch], IndexRef]) -> Listed:
        """The list of other batches, of which the first and the last are those of this one: the rest is looked at."""
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
        return self._spliced(batches, low, len(before) - high, new, [place(b) for b in new])

    def and_one(self, batch: Batch, place: IndexRef) -> Listed:
        """The list with one more batch."""
        room, count, chunks = self._room, len(self.batches), batch.chunks
        if len(chunks) == 1 and room.written == count < room.batches and self.chunks < room.chunks:
            write_batch_entry(*room.addresses, self.chunks, count, chunks[0].table, batch.rows, *place)
            room.written = count + 1
            return Listed((*self.batches, batch), self.chunks + 1, room)
        return self._spliced((*self.batches, batch), count, count, (batch,), (place,))

    def _spliced(
        self, batches: tuple[Batch, ...], low: int, last: int, new: Sequence[Batch], places: Sequence[IndexRef]
    ) -> Listed:
        """The list of `batches`: of this one the first `low` and those from `last` on, and new ones in between."""
        room, before = self._room, len(self.batches)
        others: list[int] = []
        more = 0
        for batch, place in zip(new, places, strict=True):
            chunks = batch.chunks
            more += len(chunks)
            if len(chunks) == 1:
                others += (1, chunks[0].table, chunks[0].rows, *place)
            else:
                others += (len(chunks), batch.tables.ctypes.data, batch.lens.ctypes.data, *place)
        count, needed = len(batches), self.chunks + more
        if low < before or room.written != before or count > room.batches or needed > room.chunks:
            room = _Room(2 * needed + 8, 2 * count + 8)
        words = *self._room.addresses, before, low, last, *room.addresses, len(new), *others
        given = pa.py_buffer(pack(f"{len(words)}q", *words))
        room.written = count
        return Listed(batches, splice_directory(given.address), room)


class Own:
    """A directory of somebody's own: that of a spine, behind which he lists more batches
    (`kernels.lookup.directory.append_batch`)."""

    __slots__ = ("_at", "_kept", "_memory", "_room")

    def __init__(self, memory: Any, at: int) -> None:
        """Its address and the number of its chunks are written to some memory."""
        self._memory, self._at = memory, at
        self._room: Any = None
        self._kept: Any = None

    def copy(self, spine: Any, more: int) -> int:
        """List the batches of a spine, with room for so many more; returns the address."""
        directory, chunks, needed = (
            spine.directory,
            spine.chunks,
            directory_words(spine.chunks, len(spine.batches), more),
        )
        if self._room is None or self._room.size < 8 * needed:
            self._room = allocate(16 * needed)
        address: int = self._room.address
        copy_directory(directory, chunks, more, address)
        _OWN.pack_into(self._memory, self._at, address, chunks)
        self._kept = spine
        return address

    @staticmethod
    def place() -> Any:
        """Memory for one."""
        return allocate(_OWN.size)


class _Room:
    """Memory that lists of batches share, for so many chunks and batches."""

    __slots__ = ("__dict__", "_memory", "addresses", "batches", "chunks", "written")

    def __init__(self, chunks: int, batches: int) -> None:
        self.chunks, self.batches = chunks, batches
        self._memory = np.empty(3 * chunks + (1 + INDEX_REF_WORDS) * batches + 1, np.int64)
        at = self._memory.ctypes.data
        starts = at + 24 * chunks
        self.addresses: _Addresses = at, at + 8 * chunks, at + 16 * chunks, starts, starts + 8 * (batches + 1)
        """Of node tables, lengths, fences, starts and places."""
        self.written = 0
        """How many batches have been written there."""

    @Lazy
    def arrays(self) -> tuple[Any, ...]:
        """The same as arrays."""
        n, m = self.chunks, self._memory
        starts = 3 * n + self.batches + 1
        return (
            m[:n],
            m[n : 2 * n],
            m[2 * n : 3 * n].view(np.uint64),
            m[3 * n : starts],
            m[starts:].reshape(-1, INDEX_REF_WORDS),
        )


def _nothing() -> Listed:
    room = _Room(0, 0)
    room.arrays[3][0] = 0
    return Listed((), 0, room)


_NONE = _nothing()
"""A list of no batches, behind which there is no room."""
