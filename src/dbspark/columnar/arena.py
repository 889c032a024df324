"""Large buffers, out of regions of memory that this process keeps.

A state is read at random, a few bytes here and there. In pages of four kilobytes nearly every such look misses the
processor's table of pages as well as its cache, twice over in a virtual machine; so regions are advised to be of huge
pages. And memory that is new has to be found and cleared by the kernel first, or by the host of a virtual machine,
which takes longer than to fill it; so what merges give back is kept, and given to the merges that follow.

A region is a mapping, cut into blocks of whole pages. Free blocks are kept by size, those beside each other are one,
and the smallest that is large enough is taken, the lowest of several. A free block is *warm*, or *cold* if its memory
was given back to the system and will be new when it is next touched; warm ones are taken first. When more than half as
much as is in use is warm and free, the largest become cold until it is a quarter, and regions of which nothing is in
use are unmapped.

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
KEPT: Final = 1 << 25
"""Free bytes that are kept warm in any case."""


class _Region:
    """One mapping, and its free blocks: by where they begin their sizes and whether they are warm, and by where they
    end where they begin."""

    __slots__ = ("address", "begins", "ends", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self.begins: dict[int, tuple[int, bool]] = {}
        self.ends: dict[int, int] = {}

    def cool(self, begin: int, size: int) -> None:
        """Give the huge pages that lie within a block back to the system."""
        low = -(-(self.address + begin) // HUGE) * HUGE - self.address
        high = (self.address + begin + size) // HUGE * HUGE - self.address
        if low < high and hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED, low, high - low)


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
        self._cold: list[tuple[int, int, _Region]] = []
        self._warm: list[tuple[int, int, _Region]] = []
        """(size, address, region) of free blocks, in order."""
        self._idle = 0
        """Bytes of those that are warm."""
        self._reserved = 0
        self._taken = self._whole = 0

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """Memory of so many bytes, uninitialised, to be handed on by the buffer protocol only."""
        needed = max(-(-size // PAGE) * PAGE, PAGE)
        with self._lock:
            self._collect()
            for free in (self._warm, self._cold):
                at = bisect_left(free, (needed,))
                if at < len(free):
                    found, address, region = free[at]
                    begin, warm = address - region.address, free is self._warm
                    self._remove(region, begin)
                    break
            else:
                region = self._added(needed)
                begin, found, warm = 0, region.size, False
            if found > needed:
                self._add(region, begin + needed, found - needed, warm)
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
                self._add(region, 0, region.size, True)

    def release(self) -> None:
        """Give back what is free now, what is reserved excepted."""
        with self._lock:
            self._collect()
            self._cool(0)

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

    @property
    def idle(self) -> int:
        """Bytes that are free and have not been given back, at most."""
        return self._idle

    def _added(self, needed: int) -> _Region:
        region = _Region(max(-(-needed // HUGE) * HUGE, REGION))
        self._whole += region.size
        return region

    def _add(self, region: _Region, begin: int, size: int, warm: bool) -> None:
        region.begins[begin] = size, warm
        region.ends[begin + size] = begin
        insort(self._warm if warm else self._cold, (size, region.address + begin, region))
        self._idle += size if warm else 0

    def _remove(self, region: _Region, begin: int) -> int:
        """Take a free block off the lists; its size."""
        size, warm = region.begins.pop(begin)
        del region.ends[begin + size]
        free = self._warm if warm else self._cold
        del free[bisect_left(free, (size, region.address + begin))]
        self._idle -= size if warm else 0
        return size

    def _collect(self) -> None:
        """Take up what has come back."""
        returned = self.returned
        if not returned:
            return
        while returned:
            region, begin, size = returned.popleft()
            self._taken -= size
            before = region.ends.get(begin)
            if before is not None:
                size += self._remove(region, before)
                begin = before
            if begin + size in region.begins:
                size += self._remove(region, begin + size)
            self._add(region, begin, size, True)
        if self._idle > max(2 * KEPT, self._taken >> 1):
            self._cool(max(KEPT, self._taken >> 2))

    def _cool(self, kept: int) -> None:
        """Give the largest free blocks back until so much is warm."""
        kept = max(kept, self._reserved - self._taken)
        at = len(self._warm)
        while at > 0 and self._idle > kept and self._warm[at - 1][0] >= HUGE:
            at -= 1
            size, address, region = self._warm[at]
            if self._idle - size < kept and size == region.size:
                continue  # which is more than has to go
            self._remove(region, address - region.address)
            if size == region.size:
                self._whole -= size  # and nobody has the region any more
            else:
                region.cool(address - region.address, size)
                self._add(region, address - region.address, size, False)


REGIONS: Final = Regions()
"""Those of this process."""

# A child of `fork` has the threads' memory and not the threads: nobody may be in the middle of anything then.
os.register_at_fork(before=REGIONS.stop, after_in_parent=REGIONS.resume, after_in_child=REGIONS.resume)
