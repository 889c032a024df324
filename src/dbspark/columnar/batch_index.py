"""The hash index of a batch, as Python holds it; its words are read and written by `kernels.lookup.index`.

The first bits of a key hash choose a word, which says where the rows of these bits begin. Words lie in one piece of
memory that is never written again once the batch is published, except by the merge that still appends to it.

Kernels know an index by four numbers (`IndexRef`), so that a batch without its first rows shares the index of the whole
batch: positions are numbered as in the whole, and the ref says how many chunks and rows of it are no longer there.
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
    """The words, or whatever keeps the memory alive in which they are."""
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
