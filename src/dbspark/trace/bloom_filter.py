"""A Bloom filter over the keys of a spine: one memory access excludes nearly every absent key, however many batches
there are (`kernels.lookup.bloom_filter`).

A filter is an immutable value like a spine, but the filters of all versions of a spine share their words. Invariants:

1. Every key of every batch of a spine is in the words of its filter. Keys are only ever added, so a key that a later
   version added, or a tick that was rolled back, only makes the filter a little less selective. A merge changes
   nothing, because it has no keys but those of its inputs.
2. Only one thread adds to the same words: a fork of a trace begins without a filter.
3. An older version of a spine keeps its own words: larger words hold only the keys of rows that are still stored, not
   those of rows that merges have removed.

Words are sized for a number of keys. When there are more, or when a filter is started on a spine that has batches,
larger words are built step by step, some rows for every row inserted. Until they are complete, lookups use the smaller
words if there are any, and otherwise no filter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from dbspark.columnar import Batch
from dbspark.columnar.chunk import Chunk
from dbspark.columnar.memory import zeros
from dbspark.kernels.lookup.bloom_filter import add_keys

MAX_KEYS_PER_WORD: Final = 4
"""With more keys for each word of 64 bits a larger filter is built: then four in a thousand absent keys pass, and each
is looked up in every batch."""
INITIAL_KEYS_PER_WORD: Final = 2
"""Keys for each word in a new filter."""
REBUILD_ROWS_PER_ROW: Final = 4
"""Rows of old batches that are added to larger words for every row inserted."""
MIN_REBUILD_STEP_ROWS: Final = 4096
"""The least number of rows that are added to larger words at one insert."""


class FilterView(NamedTuple):
    """A filter as kernels read it: address of the words and shift of a key hash; and the words, to keep them alive."""

    address: int
    shift: int
    words: Any


class _FilterWords:
    """The words of a filter, and the number of keys in them."""

    __slots__ = ("_address", "_words", "keys", "view")

    def __init__(self, keys: int) -> None:
        """Allocate words for about `keys` keys."""
        bits = max(keys // INITIAL_KEYS_PER_WORD, 2).bit_length()
        self._words = zeros(1 << bits)
        self._address: int = self._words.ctypes.data
        self.keys = 0
        """Estimated number of distinct keys: added keys that the filter excluded before."""
        self.view = FilterView(self._address, 64 - bits, self._words)

    def add(self, chunk: Chunk, begin: int, end: int) -> None:
        self.keys += add_keys(self._address, self.view.shift, chunk.table, begin, end)

    @property
    def full(self) -> bool:
        return self.keys >= MAX_KEYS_PER_WORD * len(self._words)


class _Rebuild:
    """Larger words, and the chunks whose keys are not in them yet."""

    __slots__ = ("_at", "_unread", "words")

    def __init__(self, batches: Iterable[Batch], keys: int | None = None) -> None:
        """`keys`: the approximate number of keys, if it is known; else one for each row."""
        self._unread = [chunk for batch in batches for chunk in batch.chunks]
        self._at = 0
        self.words = _FilterWords(sum([chunk.rows for chunk in self._unread]) if keys is None else 2 * keys)

    @property
    def complete(self) -> bool:
        return not self._unread

    def read_on(self, rows: int) -> None:
        while self._unread and rows > 0:
            chunk = self._unread[-1]
            end = min(self._at + rows, chunk.rows)
            self.words.add(chunk, self._at, end)
            rows -= end - self._at
            self._at = end
            if end == chunk.rows:
                self._unread.pop()
                self._at = 0


class BloomFilter:
    """The filter of one version of a spine: complete words, larger words that are being built, or both."""

    __slots__ = ("_rebuild", "_words")

    def __init__(self, words: _FilterWords | None, rebuild: _Rebuild | None) -> None:
        self._words = words
        self._rebuild = rebuild

    @staticmethod
    def start_build(batches: Iterable[Batch]) -> BloomFilter:
        """A filter for a spine that has batches already. Later inserts add the keys of these step by step."""
        return BloomFilter(None, _Rebuild(batches))

    @property
    def view(self) -> FilterView | None:
        """The filter for kernels; None until the first words are complete."""
        return None if self._words is None else self._words.view

    def with_batch(self, batch: Batch, batches: Iterable[Batch]) -> BloomFilter:
        """The filter of the spine with one more batch than `batches`."""
        words, rebuild = self._words, self._rebuild
        if words is not None:
            for chunk in batch.chunks:
                words.add(chunk, 0, chunk.rows)
            if rebuild is None and words.full:
                rebuild = _Rebuild(batches, words.keys)
        if rebuild is None:
            return self
        for chunk in batch.chunks:
            rebuild.words.add(chunk, 0, chunk.rows)
        rebuild.read_on(max(REBUILD_ROWS_PER_ROW * batch.rows, MIN_REBUILD_STEP_ROWS))
        return BloomFilter(rebuild.words, None) if rebuild.complete else BloomFilter(words, rebuild)
