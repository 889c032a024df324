"""Batches as the kernels read them: arrays of addresses, lengths, fences and places, which grow with the spine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dbspark.batch import Batch
from dbspark.batch.memory import Int64s, UInt64s
from dbspark.kernels.seek import PLACE
from dbspark.lazy import Lazy

Sources = tuple[Int64s, Int64s, UInt64s, Int64s]
"""Node tables, lengths and fences of chunks, and where each batch's chunks start."""


def directory_of(sources: Sources, places: Int64s) -> tuple[int, Int64s]:
    """The address of what kernels are told of some batches; the array has to be kept, and so have the batches."""
    where = [array.ctypes.data for array in (*sources, places)]
    directory = np.array([*where, len(sources[3]) - 1], np.int64)
    return directory.ctypes.data, directory


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

    __slots__ = ("__dict__", "_room", "batches", "places", "sources")

    def __init__(
        self, batches: tuple[Batch, ...], sources: Sources, places: Int64s, room: tuple[Sources, Int64s, list[int]]
    ) -> None:
        self.batches = batches
        """Kept, because kernels read them by address."""
        self.sources = sources
        self.places = places
        """Where the index of each batch is (`kernels.seek`)."""
        self._room = room
        """The memory, and how many batches have been written there."""

    @staticmethod
    def of(batches: tuple[Batch, ...], places: Sequence[tuple[int, ...]]) -> Listed:
        sources = sources_of(batches)
        placed = np.array(places, np.int64).reshape(-1, PLACE)
        return Listed(batches, sources, placed, (sources, placed, [len(batches)]))

    @Lazy
    def directory(self) -> tuple[int, Int64s]:
        """What kernels are told of all this (`kernels.seek`): an address, and what has to be kept for it."""
        return directory_of(self.sources, self.places)

    def and_one(self, batch: Batch, place: tuple[int, ...]) -> Listed:
        """The list with one more batch."""
        (tables, lens, fences, starts), places, written = self._room
        chunks, more = len(self.sources[0]), len(batch.chunks)
        count = len(self.batches)
        if written[0] != count or chunks + more > len(tables) or count + 2 > len(starts) or count + 1 > len(places):
            tables, lens, fences, starts = (
                _roomy(a, n) for a, n in zip(self.sources, (more, more, more, 1), strict=True)
            )
            places = _roomy(self.places, 1)
            written = [count]
        end = chunks + more
        tables[chunks:end], lens[chunks:end], fences[chunks:end] = batch.tables, batch.lens, batch.fences
        starts[count + 1] = end
        places[count] = place
        written[0] = count + 1
        sources = tables[:end], lens[:end], fences[:end], starts[: count + 2]
        return Listed(
            (*self.batches, batch), sources, places[: count + 1], ((tables, lens, fences, starts), places, written)
        )


def _roomy(array: Any, more: int) -> Any:
    out = np.empty((2 * len(array) + more + 8, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
