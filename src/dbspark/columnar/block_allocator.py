"""The allocator of large buffers: best fit over mappings of huge pages, reusing freed memory while it is resident.

State is read at random, a few bytes at a time. With pages of 4 KiB nearly every such read misses the TLB as well as the
cache, and in a virtual machine the TLBs of guest and host; so mappings are advised to use huge pages. The operating
system has to find and zero fresh memory, which takes longer than filling it; so memory that merges free stays resident
for the merges that follow.

Terms: a *region* is one anonymous mapping. It is divided into *blocks* of whole pages, each in use or free. A free
block is *resident*, or *purged*: its pages were returned to the system and will be faulted in anew. Invariants:

1. Blocks of a region cover it and do not overlap. Two free blocks that touch are coalesced into one when either is
   freed.
2. An allocation takes the smallest free block that is large enough, the one at the lowest address among equals;
   resident blocks before purged ones. The rest of the block stays free.
3. When the resident free memory exceeds half of the memory in use, the largest free blocks are purged until it is a
   quarter. It is not purged below a minimum, the larger of `MIN_RESIDENT_FREE_BYTES` and what was reserved, nor before
   it exceeds twice that minimum. A region that is free as a whole is unmapped instead.

A block is freed when the last reference to it goes, on any thread, possibly by the garbage collector in the middle of
`allocate`. So freed blocks go to a queue that needs no lock, and the next call that holds the lock drains it.
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

PAGE_BYTES: Final = 1 << 12
HUGE_PAGE_BYTES: Final = 1 << 21
REGION_BYTES: Final = 1 << 25
"""The size of a region, unless a single block is larger."""
MAX_RESERVED_REGION_BYTES: Final = 1 << 30
"""The largest region that `reserve` maps."""
MIN_RESIDENT_FREE_BYTES: Final = 1 << 25
"""Free memory that stays resident in any case: one region, for the next merge of a small state."""


class _Region:
    """One mapping and its free blocks."""

    __slots__ = ("address", "free_by_begin", "free_by_end", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self.free_by_begin: dict[int, tuple[int, bool]] = {}
        """Size and residency of the free block that begins at the key."""
        self.free_by_end: dict[int, int] = {}
        """Offset at which the free block begins that ends at the key."""

    def purge(self, begin: int, size: int) -> None:
        """Return the huge pages that lie within a block to the system."""
        low = -(-(self.address + begin) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES - self.address
        high = (self.address + begin + size) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES - self.address
        if low < high and hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED, low, high - low)


class _Block(np.ndarray[Any, np.dtype[np.uint8]]):
    """The memory of a block in use, which is freed with it.

    Wrap it through the buffer protocol and never slice it: a numpy slice does not keep this array alive.
    """

    place: tuple[deque[Any], _Region, int, int]
    """The queue of freed blocks, and its entry for this one: region, offset, size."""

    def __del__(self) -> None:
        freed, *entry = self.place
        freed.append(entry)


class BlockAllocator:
    """Allocates blocks of whole pages. Thread-safe; a process needs one (`PROCESS_ALLOCATOR`)."""

    def __init__(self) -> None:
        self.freed: deque[Any] = deque()
        """(region, offset, size) of blocks that were freed since the lock was last held."""
        self._lock = threading.Lock()
        self.stop, self.resume = self._lock.acquire, self._lock.release
        self._resident: list[tuple[int, int, _Region]] = []
        """(size, address, region) of resident free blocks, sorted."""
        self._purged: list[tuple[int, int, _Region]] = []
        """(size, address, region) of purged free blocks, sorted."""
        self._resident_free_bytes = self._reserved_bytes = self._allocated_bytes = self._mapped_bytes = 0

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """An uninitialised block of `size` bytes, to be wrapped through the buffer protocol (see `_Block`)."""
        needed = max(-(-size // PAGE_BYTES) * PAGE_BYTES, PAGE_BYTES)
        with self._lock:
            self._drain()
            for free in (self._resident, self._purged):
                at = bisect_left(free, (needed,))
                if at < len(free):
                    found, address, region = free[at]
                    begin, resident = address - region.address, free is self._resident
                    self._remove_free(region, begin)
                    break
            else:
                region = self._map_region(needed)
                begin, found, resident = 0, region.size, False
            if found > needed:
                self._add_free(region, begin + needed, found - needed, resident)
            self._allocated_bytes += needed
        block = _Block((size,), np.uint8, region.memory, begin)
        block.place = self.freed, region, begin, needed
        return block

    def reserve(self, size: int) -> None:
        """Map regions until their total size is at least `size` bytes, and fault the new ones in now."""
        with self._lock:
            self._reserved_bytes = max(size, self._reserved_bytes)
            while self._mapped_bytes < self._reserved_bytes:
                missing = max(REGION_BYTES, self._reserved_bytes - self._mapped_bytes)
                region = self._map_region(min(missing, MAX_RESERVED_REGION_BYTES))
                np.frombuffer(region.memory, np.uint8)[::PAGE_BYTES] = 0
                self._add_free(region, 0, region.size, True)

    def purge(self) -> None:
        """Return the memory of free blocks to the system, except for reserved memory."""
        with self._lock:
            self._drain()
            self._purge_down_to(0)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the blocks in use."""
        with self._lock:
            self._drain()
            return self._allocated_bytes

    @property
    def mapped_bytes(self) -> int:
        """Bytes of all regions."""
        return self._mapped_bytes

    @property
    def resident_free_bytes(self) -> int:
        """Bytes of resident free blocks. An upper bound: a block coalesced with a purged one counts as a whole."""
        return self._resident_free_bytes

    def _map_region(self, needed: int) -> _Region:
        region = _Region(max(-(-needed // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, REGION_BYTES))
        self._mapped_bytes += region.size
        return region

    def _add_free(self, region: _Region, begin: int, size: int, resident: bool) -> None:
        region.free_by_begin[begin] = size, resident
        region.free_by_end[begin + size] = begin
        insort(self._resident if resident else self._purged, (size, region.address + begin, region))
        self._resident_free_bytes += size if resident else 0

    def _remove_free(self, region: _Region, begin: int) -> int:
        """Remove a free block from the lists; returns its size."""
        size, resident = region.free_by_begin.pop(begin)
        del region.free_by_end[begin + size]
        free = self._resident if resident else self._purged
        del free[bisect_left(free, (size, region.address + begin))]
        self._resident_free_bytes -= size if resident else 0
        return size

    def _drain(self) -> None:
        """Free the blocks of the queue, coalesce them with free neighbours, and purge as invariant 3 says."""
        freed = self.freed
        if not freed:
            return
        while freed:
            region, begin, size = freed.popleft()
            self._allocated_bytes -= size
            before = region.free_by_end.get(begin)
            if before is not None:
                size += self._remove_free(region, before)
                begin = before
            if begin + size in region.free_by_begin:
                size += self._remove_free(region, begin + size)
            self._add_free(region, begin, size, True)
        if self._resident_free_bytes > max(2 * MIN_RESIDENT_FREE_BYTES, self._allocated_bytes >> 1):
            self._purge_down_to(max(MIN_RESIDENT_FREE_BYTES, self._allocated_bytes >> 2))

    def _purge_down_to(self, target: int) -> None:
        """Purge the largest free blocks, or unmap whole regions, until `target` bytes of free memory are resident."""
        target = max(target, self._reserved_bytes - self._allocated_bytes)
        at = len(self._resident)
        while at > 0 and self._resident_free_bytes > target and self._resident[at - 1][0] >= HUGE_PAGE_BYTES:
            at -= 1
            size, address, region = self._resident[at]
            if self._resident_free_bytes - size < target and size == region.size:
                continue  # to unmap the region would go below the target
            self._remove_free(region, address - region.address)
            if size == region.size:
                self._mapped_bytes -= size  # nothing refers to the region any more, so it is unmapped
            else:
                region.purge(address - region.address, size)
                self._add_free(region, address - region.address, size, False)


PROCESS_ALLOCATOR: Final = BlockAllocator()
"""The block allocator of this process."""

# After `fork` only the forking thread runs in the child, so a lock held by another thread would never be released.
os.register_at_fork(
    before=PROCESS_ALLOCATOR.stop, after_in_parent=PROCESS_ALLOCATOR.resume, after_in_child=PROCESS_ALLOCATOR.resume
)
