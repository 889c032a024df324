"""Where batches live, and the working memory of kernels.

What is small comes from Python, what is large from regions that this process keeps (`dbspark.columnar.arena`). Both
recycle what is freed, so a steady stream of merges touches warm pages instead of asking the kernel for new ones. To ask
one of Arrow's memory pools means to give up the interpreter's lock and to wait for it again, behind the thread of the
merges. `allocated()` is what batches hold now.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dbspark.columnar.arena import REGIONS

_POOL: Any = pa.system_memory_pool()
_LARGE = 1 << 16
"""Bytes from which on memory comes from regions."""
_FEW = 1 << 12
"""Bytes up to which it costs less to have them filled with zeros than to leave them as they are."""
_BYTE = np.dtype(np.uint8)

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


def allocate(size: int) -> Any:
    """A buffer of `size` bytes, uninitialised."""
    if size <= _FEW:
        return pa.py_buffer(bytearray(size))
    return pa.py_buffer(np.empty(size, _BYTE) if size < _LARGE else REGIONS.take(size))


def reserve(size: int) -> None:
    """Take so many bytes from the system now, for large buffers of this process, and keep them."""
    REGIONS.reserve(size)


def release() -> None:
    """Give memory of large buffers that are free back to the system, rather than keep some of it for the next."""
    REGIONS.release()


def allocated() -> int:
    """Bytes that have been handed out, what is small left out, and not been given back."""
    total: int = _POOL.bytes_allocated() + REGIONS.taken
    return total


def copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory of our own, in one piece: whoever has handed them over may write into theirs again."""
    return pa.ipc.read_record_batch(rows.serialize(memory_pool=_POOL), rows.schema)


def int64s(n: int) -> Int64s:
    """Uninitialised working memory for kernels."""
    return np.frombuffer(REGIONS.take(n * 8), np.int64) if n * 8 >= _LARGE else np.empty(n, np.int64)


def uint64s(n: int) -> UInt64s:
    return np.frombuffer(REGIONS.take(n * 8), np.uint64) if n * 8 >= _LARGE else np.empty(n, np.uint64)


def zeros(n: int) -> UInt64s:
    """Words of zero."""
    if n * 8 < _LARGE:
        return np.zeros(n, np.uint64)
    out = uint64s(n)
    out.fill(0)
    return out


def address_of(array: npt.NDArray[Any]) -> int:
    address: int = array.ctypes.data
    return address
