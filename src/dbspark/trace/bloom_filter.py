"""The keys of a spine in one place: what is nowhere is told by one look (`kernels.lookup.bloom_filter`).

A sieve is a value, as a spine is, but its words are shared by the versions of a spine. Keys are only ever added to
words, so one that a later version or a tick that was taken back has added makes nobody wrong; a merge changes nothing,
because it has no keys but those of its inputs. What has to hold is that every batch of a spine has been added to the
words that it has. Two threads may not add to the same words at once, so that forks of a trace begin without a sieve.

Words have room for so many keys. When they are more, or when a sieve is begun beside batches that are there already,
those are read step by step, some rows for every row that comes, into larger words. Until these are complete the
smaller ones serve, or none; and whoever keeps an earlier version keeps its words, because keys of rows that have been
taken away since are not in the larger ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from dbspark.columnar import Batch
from dbspark.columnar.chunk import Chunk
from dbspark.columnar.memory import zeros
from dbspark.kernels.lookup.bloom_filter import add_keys

_FULL: Final = 4
"""Keys for each word of 64 bits from which on a sieve wants to be larger: it lets four in a thousand through then, each
of which is looked for in every batch."""
_FIRST: Final = 2
"""The same when it is begun."""
_PACE: Final = 4
"""Rows that are read into new words for every row that comes, of at least `_STEP` at a time."""
_STEP: Final = 4096


class Told(NamedTuple):
    """What kernels are told of a sieve: address and shift, and the words that have to be kept for it."""

    address: int
    shift: int
    words: Any


class _Words:
    """The words of a sieve, and how many keys they have."""

    __slots__ = ("_address", "_words", "keys", "told")

    def __init__(self, keys: int) -> None:
        """For about so many keys to begin with."""
        bits = max(keys // _FIRST, 2).bit_length()
        self._words = zeros(1 << bits)
        self._address: int = self._words.ctypes.data
        self.keys = 0
        """Those that it did not know when they came."""
        self.told = Told(self._address, 64 - bits, self._words)

    def add(self, chunk: Chunk, begin: int, end: int) -> None:
        self.keys += add_keys(self._address, self.told.shift, chunk.table, begin, end)

    @property
    def full(self) -> bool:
        return self.keys >= _FULL * len(self._words)


class _Coming:
    """Larger words that batches are being read into."""

    __slots__ = ("_at", "_unread", "words")

    def __init__(self, batches: Iterable[Batch], keys: int | None = None) -> None:
        """`keys`: how many there are, about, if it is known. A key may have many rows."""
        self._unread = [chunk for batch in batches for chunk in batch.chunks]
        self._at = 0
        self.words = _Words(sum([chunk.rows for chunk in self._unread]) if keys is None else 2 * keys)

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


class Sieve:
    """The sieve of one version of a spine; see the module's preface."""

    __slots__ = ("_coming", "_words")

    def __init__(self, words: _Words | None, coming: _Coming | None) -> None:
        self._words = words
        self._coming = coming

    @staticmethod
    def begun(batches: Iterable[Batch]) -> Sieve:
        """One beside batches that are there already."""
        return Sieve(None, _Coming(batches))

    @property
    def told(self) -> Told | None:
        """For kernels; None as long as it is not complete."""
        return None if self._words is None else self._words.told

    def followed_by(self, batch: Batch, batches: Iterable[Batch]) -> Sieve:
        """The sieve of the spine with one more batch than those given."""
        words, coming = self._words, self._coming
        if words is not None:
            for chunk in batch.chunks:
                words.add(chunk, 0, chunk.rows)
            if coming is None and words.full:
                coming = _Coming(batches, words.keys)
        if coming is None:
            return self
        for chunk in batch.chunks:
            coming.words.add(chunk, 0, chunk.rows)
        coming.read_on(max(_PACE * batch.rows, _STEP))
        return Sieve(coming.words, None) if coming.complete else Sieve(words, coming)
