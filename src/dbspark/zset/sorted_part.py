"""The settled part of an adaptive Z-set: a small vector or a spine, and what is known about its rows.

A body never changes, except that it remembers answers: how to look up a row, and how many rows there are. Payloads
share it between two flushes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.row_codec import codec_of
from dbspark.columnar.rows import Row
from dbspark.kernels.lookup.row_lookup import count_change
from dbspark.trace.directory import sources_of
from dbspark.trace.spine import Spine
from dbspark.zset.config import ZSetConfig
from dbspark.zset.payload import lookup_directory
from dbspark.zset.policy import Policy

Log = tuple[Batch, ...]
"""Deltas that wait beside a body and a memtable."""


def _no_rows(_: Row) -> int:
    return 0


class _AddressLookup(partial[int]):
    """A lookup by address, and what it looks at."""

    keepalive: Any


def _not_encodable(row: Row) -> int:
    raise TypeError(row)


class SortedPart:
    """Everything of a payload but its memtable and its log; shared by all payloads between two flushes."""

    __slots__ = (
        "_counts_inserts",
        "_lookup_spine",
        "_row_count",
        "config",
        "is_memtable",
        "only_batch",
        "policy",
        "small",
        "sort_key",
        "spine",
        "weight_lookup",
    )

    def __init__(
        self,
        sort_key: SortKey,
        config: ZSetConfig,
        small: Batch,
        spine: Spine | None = None,
        policy: Policy | None = None,
        is_memtable: bool = False,
    ) -> None:
        self.sort_key = sort_key
        self.config = config
        self.small = small
        self.spine = spine
        self.policy = policy
        self.is_memtable = is_memtable
        """Without a spine: whether the rows are a memtable rather than a small vector with a few rows waiting."""
        self.only_batch: Batch | None = small
        """All rows outside the memtable and the log, if they are one batch."""
        if spine is not None:
            only = spine.entries[0] if len(spine.entries) == 1 else None
            self.only_batch = only if type(only) is Batch else None
        self.weight_lookup: Callable[[Row], int] | None = None
        self._lookup_spine = spine
        self._row_count: int | None = None
        self._counts_inserts = False

    def with_small(self, small: Batch) -> SortedPart:
        return SortedPart(self.sort_key, self.config, small, None, self.policy)

    def with_spine(self, spine: Spine, known: int | None = None, asked: bool = False) -> SortedPart:
        """With another spine, of which the number of rows may be known."""
        part = SortedPart(self.sort_key, self.config, self.small, spine, self.policy)
        part._row_count, part._counts_inserts = known, asked
        return part

    def set_row_count(self, rows: int) -> None:
        """Somebody has counted the rows of the spine."""
        self._row_count, self._counts_inserts = rows, True

    def bound(self) -> int:
        """No weight outside the memtable and the log is larger in magnitude."""
        if self.spine is None:
            return self.small.largest if self.small.rows else 0
        return self.spine.bound()

    def room(self) -> int:
        """Rows that may wait before something has to be looked at, in the small form."""
        return self.config.small_limit - self.small.rows

    def lookup_spine(self) -> Spine | None:
        """A spine to look up rows in, if there are any outside the memtable and the log."""
        if self._lookup_spine is None and self.small.rows:
            self._lookup_spine = Spine(self.sort_key, (self.small,))
        return self._lookup_spine

    def make_weight_lookup(self) -> Callable[[Row], int]:
        """How to look up a row outside the memtable and the log. It may raise one of UNFIT."""
        spine = self.lookup_spine()
        if spine is None:
            self.weight_lookup = _no_rows
        else:
            codec = codec_of(self.sort_key.schema)
            weight_lookup: Callable[[Row], int] = _not_encodable
            if codec is not None:
                directory = lookup_directory(codec, spine)
                # It goes by address, and so has to keep what is there: other threads may put another one in its place.
                weight_lookup = _AddressLookup(codec.plain.weight, directory[0])
                weight_lookup.keepalive = (directory, spine)
            self.weight_lookup = weight_lookup
            return weight_lookup
        return self.weight_lookup

    def count(self) -> int:
        """Rows outside the memtable and the log."""
        if self._row_count is None:
            if self.only_batch is not None:
                self._row_count = self.only_batch.rows
            else:
                assert self.spine is not None
                self._row_count = self.spine.count()
        self._counts_inserts = True  # so what is inserted next is counted as it comes
        return self._row_count

    def count_with(self, batch: Batch) -> int | None:
        """What `count` will be with one more batch in the spine, if that is cheap to say and somebody counts."""
        if not self._counts_inserts or self._row_count is None or batch.rows * 8 > self._row_count:
            return None
        return self._row_count + self.count_change((), batch)

    def count_change(self, log: Log, batch: Batch) -> int:
        """How many rows more there are when a batch is added to this and some deltas."""
        lookup_spine = self.lookup_spine()
        here = sources_of(()) if lookup_spine is None else lookup_spine.sources
        more = sources_of(log)
        schema = self.sort_key.schema
        change = 0
        for chunk in batch.chunks:
            change += count_change(*here, *more, chunk.table, chunk.rows, schema.columns, schema.node_count)
        return change


__all__ = ["Log", "SortedPart"]
