"""`Payload`, the interface of the backends of `ZSet`, and the three backends that always keep one form.

A payload is immutable: every operation returns another one. The fourth backend, which changes its form, is
`zset.adaptive`; everything that backends have in common is in `zset.zset`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.chunk import Chunk, gather_chunks
from dbspark.columnar.delta import merge_or_empty
from dbspark.columnar.memory import INT64_MAX
from dbspark.columnar.row_codec import DirectoryAddress, RowCodec, codec_of
from dbspark.columnar.rows import Row, decode_arrays
from dbspark.kernels.memory import layout as nd
from dbspark.lazy import Lazy
from dbspark.trace.config import SpineConfig
from dbspark.trace.spine import Spine, summable
from dbspark.zset.config import ZSetConfig
from dbspark.zset.memtable import (
    MAX_PYTHON_ROWS,
    MAX_UNCHECKED_WEIGHT,
    ColumnDelta,
    LargeWeight,
    Memtable,
    add_rows,
    batch_of_rows,
)
from dbspark.zset.versions import Version, VersionNode
from dbspark.zset.weights import exact_weight_sum, weight_overflow


class Payload(ABC):
    """The rows of a Z-set in some form."""

    __slots__ = ()

    sort_key: SortKey
    config: ZSetConfig

    @property
    @abstractmethod
    def form(self) -> str:
        """The name of the form the rows are in."""

    @abstractmethod
    def add(self, row: Row, weight: int) -> Payload:
        """This value with `weight` added to one canonical row."""

    def plus_rows(self, rows: dict[Row, int]) -> Payload:
        """This value plus distinct canonical rows with weights other than zero."""
        return self.plus_batches((batch_of_rows(self.sort_key, rows),))

    def as_python_rows(self) -> dict[Row, int] | None:
        """All rows, if they are few and have not been converted to columns yet."""
        return None

    @abstractmethod
    def plus(self, other: Payload) -> Payload: ...

    @abstractmethod
    def plus_batches(self, batches: Sequence[Batch]) -> Payload: ...

    def plus_many(self, batches: Sequence[Batch]) -> Payload:
        """This value plus the sum of any number of batches."""
        return self.plus_batches((merge_or_empty(self.sort_key, batches),))

    @abstractmethod
    def parts(self) -> Sequence[Batch]:
        """Batches whose sum is this value; rows may occur in several."""

    def pieces(self) -> Sequence[Batch]:
        """Like `parts`, but does not apply the log first, so there may be many small batches."""
        return self.parts()

    @abstractmethod
    def batch(self) -> Batch:
        """All rows as one batch."""

    @abstractmethod
    def bound(self) -> int:
        """An upper bound on the magnitude of every weight: cheap to compute, and possibly far too large."""

    def disjoint(self) -> Sequence[Batch]:
        """Batches whose sum is this value and of which no two hold the same row."""
        return Spine(self.sort_key, tuple(self.parts())).disjoint()

    def is_large(self, change: Batch) -> bool:
        """Whether adding a change might overflow, so that it has to be added by `plus_large`."""
        return self.bound() + change.largest > INT64_MAX

    def plus_large(self, change: Batch, empty: Payload) -> Payload:
        """Add a change with all sums checked, and keep the result as one batch, so that no partial sum overflows."""
        return empty.plus_batches((merge((self.batch(), change)),))

    def weight(self, row: Row) -> int:
        return row_weight(Spine(self.sort_key, tuple(self.parts())), row)

    def count(self) -> int:
        return Spine(self.sort_key, tuple(self.parts())).count()

    def total_weight(self) -> int:
        return sum(part.total_weight for part in self.parts())

    def chunks(self) -> Sequence[Chunk]:
        """Every row once, in no particular order."""
        return [chunk for batch in self.disjoint() for chunk in batch.chunks]

    def items(self) -> Iterator[tuple[Row, int]]:
        return decode_chunks(self.sort_key, self.chunks())

    def arranged(self) -> Batch:
        """All rows as one batch, for a read in order; the policy counts it."""
        return self.batch()

    def subscribe(self, change: int) -> None:
        """Register (1) or unregister (-1) a subscriber: a reader of the ordered form of this lineage."""
        return


def decode_chunks(sort_key: SortKey, chunks: Iterable[Chunk]) -> Iterator[tuple[Row, int]]:
    """Rows of chunks as Python tuples, with their weights."""
    for chunk in chunks:
        rows = decode_arrays(sort_key.schema, chunk.arrays())
        yield from zip(rows, chunk.lane(nd.WEIGHT).tolist(), strict=True)


class DictStore:
    """A dict of canonical rows to weights."""

    __slots__ = ("head", "lock", "rows")

    def __init__(self, rows: dict[Row, int]) -> None:
        self.rows = rows
        self.lock = threading.RLock()
        self.head: VersionNode | None = None

    def copy(self) -> DictStore:
        return DictStore(dict(self.rows))

    def apply(self, delta: Any, factor: int) -> None:
        rows = self.rows
        if type(delta) is tuple:
            row, weight = delta
            total = rows.get(row, 0) + weight * factor
            if total:
                if not -INT64_MAX <= total <= INT64_MAX:
                    raise weight_overflow(row)
                rows[row] = total
            else:
                rows.pop(row, None)
            return
        add_rows(rows, delta, factor, INT64_MAX)


class HashPayload(Payload):
    """`HashMap`: a Python dict. The fastest backend for single rows, the slowest for columns."""

    __slots__ = ("__dict__", "config", "sort_key", "version")

    def __init__(self, sort_key: SortKey, config: ZSetConfig, version: Version[DictStore] | dict[Row, int]) -> None:
        self.sort_key = sort_key
        self.config = config
        self.version = Version(DictStore(version)) if isinstance(version, dict) else version

    @property
    def form(self) -> str:
        return "hash"

    def rows(self) -> dict[Row, int]:
        """A copy of the rows."""
        return self.version.read(lambda store: dict(store.rows))

    def add(self, row: Row, weight: int) -> Payload:
        return HashPayload(self.sort_key, self.config, self.version.with_delta((row, weight)))

    def plus(self, other: Payload) -> Payload:
        if isinstance(other, HashPayload):
            mine, theirs = self.count(), other.count()
            if mine * 4 < theirs:
                return HashPayload(self.sort_key, self.config, other.version.with_delta(self.rows()))
            return HashPayload(self.sort_key, self.config, self.version.with_delta(other.rows()))
        return HashPayload(self.sort_key, self.config, self.version.with_delta(dict(other.items())))

    def plus_rows(self, rows: dict[Row, int]) -> Payload:
        return HashPayload(self.sort_key, self.config, self.version.with_delta(rows))

    def as_python_rows(self) -> dict[Row, int] | None:
        return self.version.read(lambda store: dict(store.rows) if len(store.rows) <= MAX_PYTHON_ROWS else None)

    def plus_batches(self, batches: Sequence[Batch]) -> Payload:
        version = self.version
        for batch in summable(batches, lambda: INT64_MAX):
            version = version.with_delta(dict(decode_chunks(self.sort_key, batch.chunks)))
        return HashPayload(self.sort_key, self.config, version)

    def weight(self, row: Row) -> int:
        return self.version.read(lambda store: store.rows.get(row, 0))

    def count(self) -> int:
        return self.version.read(lambda store: len(store.rows))

    def total_weight(self) -> int:
        return self.version.read(lambda store: sum(store.rows.values()))

    def items(self) -> Iterator[tuple[Row, int]]:
        return iter(self.version.read(lambda store: list(store.rows.items())))

    def bound(self) -> int:
        return 0  # the dict checks every sum itself

    @Lazy
    def _batch(self) -> Batch:
        return batch_of_rows(self.sort_key, self.rows())

    def batch(self) -> Batch:
        return self._batch

    def parts(self) -> Sequence[Batch]:
        return (self._batch,)


class FastPayload(Payload):
    """`FastZSet`: the memtable by itself, never flushed."""

    __slots__ = ("__dict__", "config", "sort_key", "version")

    def __init__(self, sort_key: SortKey, config: ZSetConfig, version: Version[Memtable] | None = None) -> None:
        self.sort_key = sort_key
        self.config = config
        self.version = Version(Memtable(sort_key)) if version is None else version

    @property
    def form(self) -> str:
        return "memtable"

    def _next(self, version: Version[Memtable]) -> FastPayload:
        return FastPayload(self.sort_key, self.config, version)

    def add(self, row: Row, weight: int) -> Payload:
        if self.version.store.large or not -MAX_UNCHECKED_WEIGHT <= weight <= MAX_UNCHECKED_WEIGHT:
            return super().plus_rows({row: weight})
        return self._next(self.version.with_delta((row, weight)))

    def bound(self) -> int:
        return self.version.read(Memtable.bound)

    def plus_rows(self, rows: dict[Row, int]) -> Payload:
        if len(rows) > MAX_PYTHON_ROWS or self.version.store.large:
            return super().plus_rows(rows)
        try:
            return self._next(self.version.with_delta(rows))
        except LargeWeight:
            return super().plus_rows(rows)

    def as_python_rows(self) -> dict[Row, int] | None:
        return self.version.read(Memtable.python_rows)

    def plus(self, other: Payload) -> Payload:
        rows = other.as_python_rows()
        if rows is not None:
            return self.plus_rows(rows)
        if isinstance(other, FastPayload) and self.version.read(len) * 4 < other.version.read(len):
            return self._next(other.version).plus_batches(self.parts())
        return self.plus_batches(other.parts())

    def plus_batches(self, batches: Sequence[Batch]) -> Payload:
        payload: Payload = self
        for batch in summable(batches, self.bound):
            if payload.is_large(batch) and payload.bound():
                payload = payload.plus_large(batch, FastPayload(self.sort_key, self.config))
            else:
                assert isinstance(payload, FastPayload)
                payload = payload._next(payload.version.with_delta(ColumnDelta(batch)))
        return payload

    def weight(self, row: Row) -> int:
        return self.version.read(lambda store: store.weight(row))

    def count(self) -> int:
        def read(store: Memtable) -> int | None:
            if store.table is None or not len(store.table):
                return len(store.rows)
            return None if store.rows else len(store.table)

        known = self.version.read(read)
        return self.batch().rows if known is None else known

    def total_weight(self) -> int:
        def read(store: Memtable) -> int:
            table = store.table
            weights = 0 if table is None else exact_weight_sum(table.entry_weight[: table.entries])
            return sum(store.rows.values()) + weights

        return self.version.read(read)

    def items(self) -> Iterator[tuple[Row, int]]:
        rows = self.version.read(lambda store: list(store.rows.items()) if store.table is None else None)
        return super().items() if rows is None else iter(rows)

    def chunks(self) -> Sequence[Chunk]:
        def read(store: Memtable) -> list[Chunk] | None:
            if store.rows or store.table is None:
                return None
            pos, weights, _ = store.table.live()
            one = int(bool((weights == 1).all()))
            return gather_chunks(self.sort_key.schema, 0, store.table.tables, pos, weights, one)

        chunks = self.version.read(read)
        return self.batch().chunks if chunks is None else chunks

    @Lazy
    def _batch(self) -> Batch:
        return self.version.read(Memtable.batch)

    def batch(self) -> Batch:
        return self._batch

    def parts(self) -> Sequence[Batch]:
        return (self._batch,)


class BatchPayload(Payload):
    """`Batch`: sorted vectors in a spine, and nothing else."""

    __slots__ = ("config", "sort_key", "spine")

    def __init__(self, sort_key: SortKey, config: ZSetConfig, spine: Spine | None = None) -> None:
        self.sort_key = sort_key
        self.config = config
        self.spine = Spine(sort_key, (), spine_config(config)) if spine is None else spine

    @property
    def form(self) -> str:
        return "batches"

    def add(self, row: Row, weight: int) -> Payload:
        return self.plus_batches((batch_of_rows(self.sort_key, {row: weight}),))

    def bound(self) -> int:
        return self.spine.bound()

    def plus(self, other: Payload) -> Payload:
        return self.plus_batches(other.parts())

    def plus_batches(self, batches: Sequence[Batch]) -> Payload:
        return BatchPayload(self.sort_key, self.config, self.spine.insert_all(batches))

    def weight(self, row: Row) -> int:
        return row_weight(self.spine, row)

    def count(self) -> int:
        return self.spine.count()

    def disjoint(self) -> Sequence[Batch]:
        return self.spine.disjoint()

    def batch(self) -> Batch:
        return self.spine.consolidated()

    def parts(self) -> Sequence[Batch]:
        return self.spine.batches


def row_weight(spine: Spine, row: Row) -> int:
    """The total weight of a canonical row."""
    codec = codec_of(spine.sort_key.schema)
    weight = None if codec is None else codec.weight(row, lookup_directory(codec, spine))
    return int(spine.weights_of(batch_of_rows(spine.sort_key, {row: 1}))[0]) if weight is None else weight


def lookup_directory(codec: RowCodec, spine: Spine) -> DirectoryAddress:
    """The directory of a spine for point look-ups, cached; threads that compute it at the same time get the same
    one."""
    made: DirectoryAddress | None = spine.__dict__.get("_directory")
    if made is None:
        made = spine.__dict__.setdefault("_directory", codec.directory(spine.sources))
    return made


def spine_config(config: ZSetConfig) -> SpineConfig:
    return SpineConfig(fanout=config.level_fanout)


def equal_payloads(a: Payload, b: Payload) -> bool:
    """Whether two payloads hold the same rows. Batches that both share are skipped, so values of one lineage compare
    quickly."""
    mine, theirs = list(a.pieces()), list(b.pieces())
    shared = set(map(id, mine)) & set(map(id, theirs))
    for which in shared:
        times = min(sum([id(x) == which for x in mine]), sum([id(x) == which for x in theirs]))
        _drop(mine, which, times)
        _drop(theirs, which, times)
    if not mine and not theirs:
        return True
    if sum([x.total_weight for x in mine]) != sum([x.total_weight for x in theirs]):
        return False
    if shared and a.bound() + b.bound() <= INT64_MAX:  # then no partial sum overflows
        return merge_or_empty(a.sort_key, mine).same(merge_or_empty(b.sort_key, theirs))
    return a.batch().same(b.batch())


def _drop(batches: list[Batch], which: int, times: int) -> None:
    for i in range(len(batches) - 1, -1, -1):
        if times and id(batches[i]) == which:
            del batches[i]
            times -= 1
