"""The sorted part of an adaptive Z-set: one small batch or a spine, without the memtable and the log beside it.

All payloads between two flushes share one sorted part. Its rows never change, so it caches the function that looks up a
row and the number of rows.
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
"""Deltas in columns that are neither in the sorted part nor in the memtable yet."""


def _no_rows(_: Row) -> int:
    """The weight of a row where the sorted part is empty."""
    return 0


class _AddressLookup(partial[int]):
    """A lookup in a directory that is passed by address, and the objects that own the memory there."""

    keepalive: Any


def _not_encodable(row: Row) -> int:
    """Raise one of `UNENCODABLE`, for schemas that have no row codec: the caller looks the row up through Arrow."""
    raise TypeError(row)


class SortedPart:
    """The batches of an adaptive Z-set, with its configuration and policy."""

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
        """Without a spine: whether all rows are in the memtable, instead of a small batch with a few rows beside it."""
        self.only_batch: Batch | None = small
        """The batch that holds all rows of the sorted part, if it is one batch."""
        if spine is not None:
            only = spine.entries[0] if len(spine.entries) == 1 else None
            self.only_batch = only if type(only) is Batch else None
        self.weight_lookup: Callable[[Row], int] | None = None
        self._lookup_spine = spine
        self._row_count: int | None = None
        self._counts_inserts = False

    def with_small(self, small: Batch) -> SortedPart:
        return SortedPart(self.sort_key, self.config, small, None, self.policy)

    def with_spine(self, spine: Spine, row_count: int | None = None, counts_inserts: bool = False) -> SortedPart:
        """The same sorted part with another spine, and with the number of its rows if that is known."""
        part = SortedPart(self.sort_key, self.config, self.small, spine, self.policy)
        part._row_count, part._counts_inserts = row_count, counts_inserts
        return part

    def set_row_count(self, rows: int) -> None:
        """Set the number of rows, which a caller has counted; later inserts keep it up to date."""
        self._row_count, self._counts_inserts = rows, True

    def bound(self) -> int:
        """An upper bound on the magnitude of every weight in the sorted part."""
        if self.spine is None:
            return self.small.largest if self.small.rows else 0
        return self.spine.bound()

    def room(self) -> int:
        """Rows that may be added to the small form before the Z-set has to leave it."""
        return self.config.small_limit - self.small.rows

    def lookup_spine(self) -> Spine | None:
        """The spine, or one around the small batch; None if there are no rows."""
        if self._lookup_spine is None and self.small.rows:
            self._lookup_spine = Spine(self.sort_key, (self.small,))
        return self._lookup_spine

    def make_weight_lookup(self) -> Callable[[Row], int]:
        """Make `weight_lookup`: the weight of a row in the sorted part. It may raise one of `UNENCODABLE`."""
        spine = self.lookup_spine()
        if spine is None:
            self.weight_lookup = _no_rows
        else:
            codec = codec_of(self.sort_key.schema)
            weight_lookup: Callable[[Row], int] = _not_encodable
            if codec is not None:
                directory = lookup_directory(codec, spine)
                # The directory is passed by address, so the lookup keeps it alive: other threads may replace the state.
                weight_lookup = _AddressLookup(codec.plain.weight, directory[0])
                weight_lookup.keepalive = (directory, spine)
            self.weight_lookup = weight_lookup
            return weight_lookup
        return self.weight_lookup

    def count(self) -> int:
        """The number of rows; from now on inserts keep it up to date where that is cheap."""
        if self._row_count is None:
            if self.only_batch is not None:
                self._row_count = self.only_batch.rows
            else:
                assert self.spine is not None
                self._row_count = self.spine.count()
        self._counts_inserts = True
        return self._row_count

    def count_with(self, batch: Batch) -> int | None:
        """`count()` with one more batch; None if rows have not been counted or the batch is large (1/8 of all rows)."""
        if not self._counts_inserts or self._row_count is None or batch.rows * 8 > self._row_count:
            return None
        return self._row_count + self.count_change((), batch)

    def count_change(self, log: Log, batch: Batch) -> int:
        """By how much a batch changes the number of distinct rows of this sorted part plus the deltas of `log`."""
        lookup_spine = self.lookup_spine()
        here = sources_of(()) if lookup_spine is None else lookup_spine.sources
        more = sources_of(log)
        schema = self.sort_key.schema
        change = 0
        for chunk in batch.chunks:
            change += count_change(*here, *more, chunk.table, chunk.rows, schema.columns, schema.node_count)
        return change


__all__ = ["Log", "SortedPart"]
