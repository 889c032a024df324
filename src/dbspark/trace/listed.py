"""Batches as the kernels read them: arrays of addresses, lengths, fences and places, which grow with the spine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from dbspark.batch import Batch
from dbspark.batch.batch import Place
from dbspark.batch.memory import Int64s, UInt64s, allocate
from dbspark.kernels.seek import DIRECTORY, PLACE, copy_directory, directory_words, list_batch
from dbspark.lazy import Lazy
from dbspark.trace.sieve import Told

Sources = tuple[Int64s, Int64s, UInt64s, Int64s]
"""Node tables, lengths and fences of chunks, and where each batch's chunks start."""
_Addresses = tuple[int, int, int, int, int]
_DIRECTORY = Struct(f"{DIRECTORY}q")
_OWN = Struct("2q")
"""A directory of somebody's own: its address and the number of its chunks."""


class Sought(NamedTuple):
    """What kernels are told of look-ups (`kernels.sieve`)."""

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
    def of(batches: tuple[Batch, ...], places: Sequence[Place]) -> Listed:
        sources = sources_of(batches)
        placed = np.array(places, np.int64).reshape(-1, PLACE)
        return Listed(batches, len(sources[0]), _Room(sources, placed, len(batches)))

    @Lazy
    def sources(self) -> Sources:
        """Node tables, lengths and fences of chunks, and where each batch's chunks start."""
        tables, lens, fences, starts = self._room.sources
        return tables[: self.chunks], lens[: self.chunks], fences[: self.chunks], starts[: len(self.batches) + 1]

    @property
    def places(self) -> Int64s:
        """Where the index of each batch is (`kernels.seek`)."""
        return self._room.places[: len(self.batches)]

    def directory(self, sought: Sought) -> tuple[int, Any]:
        """What kernels are told of all this (`kernels.seek`): an address, and what has to be kept for it."""
        return _directory(self._room.addresses, len(self.batches), sought)

    def turned_into(self, batches: tuple[Batch, ...], place: Callable[[Batch], Place]) -> Listed:
        """The list of other batches, of which the first and the last are those of this one: the rest is looked at."""
        before = self.batches
        if batches == before:
            return self
        most = min(len(before), len(batches))
        low = 0
        while low < most and before[low] is batches[low]:
            low += 1
        high = 0
        while high < most - low and before[-1 - high] is batches[-1 - high]:
            high += 1
        new, last = batches[low : len(batches) - high], len(before) - high
        tables, lens, fences, starts = self.sources
        begin, end = starts[low], starts[last]
        counts = np.array([len(b.chunks) for b in new], np.int64)
        behind = begin + np.cumsum(counts)
        shift = (behind[-1] if new else begin) - end
        sources = (
            _joined((tables[:begin], *[b.tables for b in new], tables[end:])),
            _joined((lens[:begin], *[b.lens for b in new], lens[end:])),
            _joined((fences[:begin], *[b.fences for b in new], fences[end:])),
            _joined((starts[: low + 1], behind, starts[last + 1 :] + shift)),
        )
        placed = np.array([place(b) for b in new], np.int64).reshape(-1, PLACE)
        places = _joined((self.places[:low], placed, self.places[last:]))
        return Listed(batches, int(self.chunks + shift), _Room(sources, places, len(batches)))

    def and_one(self, batch: Batch, place: Place) -> Listed:
        """The list with one more batch."""
        room, chunks, more, count = self._room, self.chunks, len(batch.chunks), len(self.batches)
        if room.written != count or not room.fits(chunks + more, count + 1):
            lists = (_roomy(a, n) for a, n in zip(self.sources, (more, more, more, 1), strict=True))
            tables, lens, fences, starts = lists
            room = _Room((tables, lens, fences, starts), _roomy(self.places, 1), count)
        if more == 1:
            list_batch(*room.addresses, chunks, count, batch.chunks[0].table, batch.rows, *place)
        else:
            tables, lens, fences, starts = room.sources
            end = chunks + more
            tables[chunks:end], lens[chunks:end], fences[chunks:end] = batch.tables, batch.lens, batch.fences
            starts[count + 1] = end
            room.places[count] = place
        room.written = count + 1
        return Listed((*self.batches, batch), chunks + more, room)


class Own:
    """A directory of somebody's own: that of a spine, behind which he lists more batches (`kernels.seek.append`)."""

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
    """Memory that lists of batches share."""

    __slots__ = ("__dict__", "_batches", "_chunks", "places", "sources", "written")

    def __init__(self, sources: Sources, places: Int64s, written: int) -> None:
        self.sources = sources
        self.places = places
        self.written = written
        """How many batches have been written there."""
        self._chunks = len(sources[0])
        self._batches = min(len(sources[3]) - 1, len(places))

    @Lazy
    def addresses(self) -> _Addresses:
        return _addresses(self.sources, self.places)

    def fits(self, chunks: int, batches: int) -> bool:
        return chunks <= self._chunks and batches <= self._batches


def _roomy(array: Any, more: int) -> Any:
    return _joined((array,), more)


def _joined(parts: Sequence[Any], more: int = 0) -> Any:
    """Arrays one behind the other, and room for as much again."""
    rows = sum([len(part) for part in parts])
    out = np.empty((2 * rows + more + 8, *parts[0].shape[1:]), parts[0].dtype)
    np.concatenate(parts, out=out[:rows])
    return out
