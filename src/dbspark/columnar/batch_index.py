"""The hash index of a batch, as Python holds it; its words are read and written by `kernels.lookup.index`.

The first bits of a key hash choose a word, which says where the rows whose hashes begin with these bits start. All
words lie in one buffer. Once the batch is published, only the merge that still appends to the batch writes to it.

Kernels are given an index as four numbers (`IndexRef`). They let a batch whose first rows a merge has consumed share
the index of the whole batch: positions count from the start of the whole batch, and the ref says how many of its
chunks and rows have been dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dbspark.columnar.memory import zeros

MIN_INDEXED_BATCH_ROWS = 8
"""A batch with fewer rows has no index: a word serves two to four rows, and a few rows are searched as fast without."""

IndexRef = tuple[int, int, int, int]
"""(address of the words or 0, shift of a key hash, chunks dropped from the whole batch, rows dropped from the next)."""

NO_INDEX_REF: IndexRef = (0, 0, 0, 0)
"""The ref of a batch that has no index."""


class BatchIndex(NamedTuple):
    """The index of one batch."""

    words: Any
    """The words, or the object that owns their memory."""
    ref: IndexRef

    @staticmethod
    def empty(rows: int) -> BatchIndex:
        """An index with room for `rows` rows, of which none is entered yet."""
        words = zeros(1 << (rows - 1).bit_length() - 2)
        return BatchIndex.at(words.ctypes.data, rows, words)

    @staticmethod
    def at(address: int, rows: int, owner: Any) -> BatchIndex:
        """An index for `rows` rows whose words are at `address`, in memory that `owner` keeps alive."""
        return BatchIndex(owner, (address, 66 - (rows - 1).bit_length(), 0, 0))


NO_INDEX = BatchIndex(np.empty(0, np.uint64), NO_INDEX_REF)
