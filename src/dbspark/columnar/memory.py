"""Memory of batches, and scratch memory for kernels.

| size | from | why |
|---|---|---|
| below `MIN_BLOCK_BYTES` | Python's and numpy's own allocator | small and short-lived |
| others | the block allocator of the process (`columnar.block_allocator`) | huge pages, reused while resident |

Both reuse freed memory, so a steady stream of merges touches resident pages instead of faulting in new ones. Arrow's
memory pools are not used for batches: a call to them releases the GIL, and to get it back the caller may have to wait
for the background thread.

An *arena* is one buffer that holds all memory of a chunk: its node table, lanes and columns. It is measured first,
allocated once, filled by a kernel, and freed as a whole with the last reference to it.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dbspark.columnar.block_allocator import PROCESS_ALLOCATOR

INT64_MAX: Final = (1 << 63) - 1
MIN_BLOCK_BYTES: Final = 1 << 16
"""Buffers of this size and larger are blocks of the block allocator."""
_MAX_ZEROED_BYTES: Final = 1 << 12
"""Up to this size a zeroed `bytearray` costs less than an uninitialised numpy array."""
_POOL: Any = pa.system_memory_pool()
_BYTE = np.dtype(np.uint8)

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


class ScratchMemory(bytearray):
    """Memory at an address that does not change: it is never resized."""

    __slots__ = ("address",)

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.address: int = np.frombuffer(self, _BYTE).ctypes.data


class ThreadScratch(threading.local):
    """A scratch buffer that each thread allocates when it first uses it, and then keeps.

    It is not a pyarrow buffer. When a thread that Python did not start returns from Python code, CPython clears its
    thread-local objects, and before 3.12 crashes if a destructor acquires the GIL then, as those of pyarrow buffers do.
    duckdb reads Arrow streams on such threads.
    """

    def __init__(self, size: int) -> None:
        self.buffer = ScratchMemory(size)
        self.address: int = self.buffer.address


def allocate(size: int) -> Any:
    """A buffer of `size` bytes, uninitialised."""
    if size <= _MAX_ZEROED_BYTES:
        return pa.py_buffer(bytearray(size))
    return pa.py_buffer(np.empty(size, _BYTE) if size < MIN_BLOCK_BYTES else PROCESS_ALLOCATOR.allocate(size))


def reserve(size: int) -> None:
    """Keep at least `size` bytes mapped and resident for blocks, from now until the process ends."""
    PROCESS_ALLOCATOR.reserve(size)


def purge_free_memory() -> None:
    """Return the memory of free blocks to the system, except for reserved memory."""
    PROCESS_ALLOCATOR.purge()


def allocated_bytes() -> int:
    """Bytes of blocks in use, and of copied record batches. Buffers below `MIN_BLOCK_BYTES` are not counted."""
    total: int = _POOL.bytes_allocated() + PROCESS_ALLOCATOR.allocated_bytes
    return total


def copy_record_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the rows in one buffer that nobody else writes: their producer may reuse its buffers."""
    return pa.ipc.read_record_batch(rows.serialize(memory_pool=_POOL), rows.schema)


def int64s(n: int) -> Int64s:
    """An uninitialised array, as scratch memory for kernels."""
    large = n * 8 >= MIN_BLOCK_BYTES
    return np.frombuffer(PROCESS_ALLOCATOR.allocate(n * 8), np.int64) if large else np.empty(n, np.int64)


def uint64s(n: int) -> UInt64s:
    """An uninitialised array, as scratch memory for kernels."""
    large = n * 8 >= MIN_BLOCK_BYTES
    return np.frombuffer(PROCESS_ALLOCATOR.allocate(n * 8), np.uint64) if large else np.empty(n, np.uint64)


def zeros(n: int) -> UInt64s:
    """An array of zeros."""
    if n * 8 < MIN_BLOCK_BYTES:
        return np.zeros(n, np.uint64)
    out = uint64s(n)
    out.fill(0)
    return out
