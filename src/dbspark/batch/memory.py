"""Where batches live: buffers from one of Arrow's memory pools.

The pool recycles what is freed, so a steady stream of merges touches warm pages instead of asking the kernel for
new ones (first touch costs more than the copy itself). It also counts: `allocated()` is what batches hold now.

It is the pool over the system's allocator. Arrow's usual one asks for huge pages, and where they have to be found
first, as in a virtual machine, each costs milliseconds: a third of all time where state grows by megabytes in a tick.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_POOL: Any = pa.system_memory_pool()
_LARGE = 1 << 15
_SMALL = 1 << 12

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


def allocate(size: int) -> Any:
    """A buffer of `size` bytes, uninitialised.

    To ask the pool means to give up the interpreter's lock and to wait for it again, behind the thread of the merges.
    What is small, as most of it is, comes from Python.
    """
    return pa.py_buffer(bytearray(size)) if size <= _SMALL else pa.allocate_buffer(size, _POOL)


def allocated() -> int:
    """Bytes that the pool has handed out and not got back."""
    total: int = _POOL.bytes_allocated()
    return total


def copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory of our own, in one piece: whoever has handed them over may write into theirs again."""
    return pa.ipc.read_record_batch(rows.serialize(memory_pool=_POOL), rows.schema)


def int64s(n: int) -> Int64s:
    """Uninitialised working memory for kernels."""
    if n < _LARGE:
        return np.empty(n, np.int64)
    return np.frombuffer(pa.allocate_buffer(n * 8, _POOL), np.int64)


def uint64s(n: int) -> UInt64s:
    if n < _LARGE:
        return np.empty(n, np.uint64)
    return np.frombuffer(pa.allocate_buffer(n * 8, _POOL), np.uint64)


def address_of(array: npt.NDArray[Any]) -> int:
    address: int = array.ctypes.data
    return address
