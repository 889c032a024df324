"""Large buffers, out of regions of memory that this process keeps.

A state is read at random, a few bytes here and there. In pages of four kilobytes nearly every such look misses the
processor's table of pages as well as its cache, twice over in a virtual machine; so regions are advised to be of huge
pages. And memory that is new has to be found and cleared by the kernel first, or by the host of a virtual machine,
which takes longer than to fill it; so what merges give back is kept, and given to the merges that follow.

A region is a mapping, cut into blocks of whole pages. Free blocks are kept by size, those beside each other are one,
and the smallest that is large enough is taken, the lowest of several. A region of which everything is free goes back to
the system when more than a quarter of what is in use would still be free without it, so that a process that has had a
large state does not keep its memory.

Blocks are given back by whoever drops the last reference, on any thread, possibly by the garbage collector in the
middle of `take`. So what comes back is put on a list that needs no lock, and `take` goes through it first.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_left, insort
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

PAGE: Final = 1 << 12
HUGE: Final = 1 << 21
REGION: Final = 1 << 25
"""Bytes of a region, unless a single block is larger."""
KEPT: Final = 1 << 26
"""Free bytes that are kept in any case."""


class _Region:
    """One mapping, and its free blocks: sizes by where they begin, beginnings by where they end."""

    __slots__ = ("address", "begins", "ends", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}


class _Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """The memory of a block, which goes back to its regions with it.

    Nobody may hold a slice of it, which numpy would let outlive it: it is handed out behind the buffer protocol.
    """

    place: tuple[deque[Any], _Region, int, int]

    def __del__(self) -> None:
        returned, *place = self.place
        returned.append(place)


class Regions:
    """See the module's preface."""

    def __init__(self) -> None:
        self.returned: deque[Any] = deque()
        self._lock = threading.Lock()
        self.stop, self.resume = self._lock.acquire, self._lock.release
        self._free: list[tuple[int, int, _Region]] = []
        """(size, address, region) of all free blocks, in order."""
        self._reserved = 0
        self._taken = self._whole = 0

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Memory of so many bytes, uninitialised, to be handed on by the buffer protocol only."""
        needed = max(-(-size // PAGE) * PAGE, PAGE)
        with self._lock:
            self._collect()
            at = bisect_left(self._free, (needed,))
            if at == len(self._free):
                region = self._added(needed)
                begin, found = 0, region.size
            else:
                found, address, region = self._free.pop(at)
                begin = address - region.address
                del region.begins[begin], region.ends[begin + found]
            if found > needed:
                self._add(region, begin + needed, found - needed)
            self._taken += needed
        block = _Block((size,), np.uint8, region.memory, begin)
        block.place = self.returned, region, begin, needed
        return block

    def reserve(self, size: int) -> None:
        """Have so many bytes in all, and have the system find them now."""
        with self._lock:
            self._reserved = max(size, self._reserved)
            while self._whole < self._reserved:
                region = self._added(min(max(REGION, self._reserved - self._whole), 1 << 30))
                np.frombuffer(region.memory, np.uint8)[::PAGE] = 0
                self._add(region, 0, region.size)

    @property
    def taken(self) -> int:
        """Bytes that are in use."""
        with self._lock:
            self._collect()
            return self._taken

    @property
    def mapped(self) -> int:
        """Bytes of all regions."""
        return self._whole

    def _added(self, needed: int) -> _Region:
        region = _Region(max(-(-needed // HUGE) * HUGE, REGION))
        self._whole += region.size
        return region

    def _add(self, region: _Region, begin: int, size: int) -> None:
        region.begins[begin] = size
        region.ends[begin + size] = begin
        insort(self._free, (size, region.address + begin, region))

    def _remove(self, region: _Region, begin: int, size: int) -> None:
        del region.begins[begin], region.ends[begin + size]
        del self._free[bisect_left(self._free, (size, region.address + begin))]

    def _collect(self) -> None:
        """Take up what has come back."""
        returned, released = self.returned, False
        while returned:
            region, begin, size = returned.popleft()
            self._taken -= size
            before = region.ends.get(begin)
            if before is not None:
                self._remove(region, before, begin - before)
                begin, size = before, size + begin - before
            after = region.begins.get(begin + size)
            if after is not None:
                self._remove(region, begin + size, after)
                size += after
            self._add(region, begin, size)
            released = released or size == region.size
        if released:
            self._release()

    def _release(self) -> None:
        """Let go of regions that are free and not needed, the largest first."""
        at = len(self._free)
        while at > 0 and self._free[at - 1][0] >= REGION:
            at -= 1
            size, _, region = self._free[at]
            rest = self._whole - size
            if size == region.size and rest >= self._reserved and rest - self._taken >= max(KEPT, self._taken >> 2):
                del self._free[at]  # and nobody has the region any more
                self._whole = rest


REGIONS: Final = Regions()
"""Those of this process."""

# A child of `fork` has the threads' memory and not the threads: nobody may be in the middle of anything then.
os.register_at_fork(before=REGIONS.stop, after_in_parent=REGIONS.resume, after_in_child=REGIONS.resume)
