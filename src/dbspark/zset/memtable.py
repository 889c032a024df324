"""The memtable: an unsorted, mutable Z-set that takes point updates in O(1), as in an LSM tree.

It is two hash tables, because rows arrive in two forms; the weight of a row is the sum of its weights in both:

* `rows`, a dict, for rows that are added as Python tuples;
* `table`, a `RobinHoodTable`, for deltas in columns. It references the chunks of the deltas instead of copying rows,
  and gathers small chunks into larger ones.

`batch()` makes one sorted, consolidated batch of both. A memtable is a `VersionedStore`: Z-set values hold versions of
it, never the memtable itself.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.chunk import Chunk, gather_chunks, import_arrays
from dbspark.columnar.memory import INT64_MAX, Int64s, int64s, uint64s
from dbspark.columnar.row_codec import EncodedRow, codec_of, hash_mask
from dbspark.columnar.rows import Row, encode_rows
from dbspark.columnar.sort_batch import sort_hashed_chunk
from dbspark.columnar.sort_key import hash_rows
from dbspark.kernels.lookup import hash_table as kt
from dbspark.kernels.lookup import row_lookup as kw
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.sort.radix_sort import sort_hashes
from dbspark.zset.versions import VersionNode
from dbspark.zset.weights import weight_overflow

MAX_UNCHECKED_WEIGHT = 1 << 60
"""Weights up to this are summed over the places a row may be in (dict, table, sorted part) without overflow checks."""
MAX_PYTHON_ROWS = 24
"""Up to this many rows that are added together as Python tuples stay tuples; more are converted to columns."""
_MIN_CAPACITY = 16
"""Slots of an empty table."""
_MIN_CHUNK_ROWS = 64
"""A delta whose chunks have fewer rows on average is gathered into one chunk before it goes to the table."""
_CHUNKS_PER_GATHER = 16
"""Chunks of one size class (power of two) that are gathered into one of the next."""
HOT_TOUCHES = 4
"""A row changed this often since the last flush is hot: a flush may leave it in the memtable."""

RowDelta = tuple[Row, int]


class ColumnDelta:
    """One or more deltas in columns as the table takes them: chunks, positions of the rows in them, weights."""

    __slots__ = ("chunks", "deltas", "largest", "negative", "pos", "tables", "weights")

    def __init__(self, *batches: Batch) -> None:
        first = batches[0]
        self.chunks, self.tables, lens, rows = first.chunks, first.tables, first.lens, first.rows
        self.largest, self.negative = first.largest, first.negative
        self.deltas = len(batches)
        if len(batches) > 1:
            self.chunks = tuple([chunk for batch in batches for chunk in batch.chunks])
            lens = np.array([chunk.rows for chunk in self.chunks], np.int64)
            self.tables = np.array([chunk.table for chunk in self.chunks], np.int64)
            rows = int(lens.sum())
            self.largest = sum([batch.largest for batch in batches])
            self.negative = sum([batch.negative for batch in batches])
        self.pos = int64s(rows)
        self.weights = int64s(rows)
        kt.positions(lens, self.tables, self.pos, self.weights)
        if rows < _MIN_CHUNK_ROWS * len(self.chunks) and len(self.chunks) > 1:
            schema = first.schema
            self.chunks = tuple(gather_chunks(schema, 0, self.tables, self.pos, self.weights, 1))
            self.tables = np.array([chunk.table for chunk in self.chunks], np.int64)
            self.pos = _all_positions(0, self.chunks)


class RobinHoodTable:
    """A hash table over rows in chunks. Its capacity is a power of two, filled to at most 85 %.

    Entries of weight zero are dead; when they are more than half of all, the table is rebuilt without them.
    """

    __slots__ = (
        "_tables",
        "bound",
        "chunks",
        "dead",
        "entries",
        "entry_pos",
        "entry_weight",
        "slot_entry",
        "slot_hash",
        "sort_key",
        "touches",
    )  # fmt: skip

    def __init__(self, sort_key: SortKey) -> None:
        self.sort_key = sort_key
        self.chunks: list[Chunk] = []
        self._tables = np.empty(_MIN_CAPACITY, np.int64)
        self.entries = 0
        self.dead = 0
        self.bound = 0  # upper bound on the magnitude of every weight
        self.entry_pos = np.empty(_MIN_CAPACITY, np.int64)
        self.entry_weight = np.empty(_MIN_CAPACITY, np.int64)
        self.touches = np.zeros(_MIN_CAPACITY, np.int64)
        self.slot_hash = np.empty(_MIN_CAPACITY, np.uint64)
        self.slot_entry = np.full(_MIN_CAPACITY, kt.EMPTY, np.int64)

    def __len__(self) -> int:
        return self.entries - self.dead

    @property
    def capacity(self) -> int:
        return len(self.slot_hash)

    @property
    def tables(self) -> Int64s:
        """The node tables of the chunks."""
        return self._tables[: len(self.chunks)]

    def copy(self) -> RobinHoodTable:
        other = RobinHoodTable(self.sort_key)
        other.chunks = list(self.chunks)
        other.entries, other.dead, other.bound = self.entries, self.dead, self.bound
        other._tables, other.touches = self._tables.copy(), self.touches.copy()
        other.entry_pos, other.entry_weight = self.entry_pos.copy(), self.entry_weight.copy()
        other.slot_hash, other.slot_entry = self.slot_hash.copy(), self.slot_entry.copy()
        return other

    def apply(self, delta: ColumnDelta, factor: int) -> tuple[int, int]:
        """Add a delta; returns (rows appended, rows that became zero). Raises on overflow, changing nothing.

        Where a sum might overflow, no row may be in the delta twice.
        """
        rows = len(delta.pos)
        schema = self.sort_key.schema
        self._reserve(rows)
        source = delta.tables, delta.pos, delta.weights, factor, schema.columns, schema.node_count
        slots = self.slot_hash, self.slot_entry, self.tables, self.entry_pos, self.entry_weight
        self.bound += delta.largest
        if self.bound > INT64_MAX:
            overflows: Any = kt.would_overflow
            if overflows(*slots, self.entries, *source):
                raise weight_overflow("a row of the change")
            self.bound = INT64_MAX
        info = np.empty(2, np.int64)
        appended = int64s(rows)
        upsert: Any = kt.upsert
        upsert(*slots, self.touches, self.entries, *source, appended, info)
        new, died = info.tolist()
        self.dead += died
        if new:
            self._append(delta, appended[:new])
        if self.dead > _MIN_CAPACITY and self.dead * 2 > self.entries:
            self._rebuild()
        return new, died

    def _reserve(self, rows: int) -> None:
        need = self.entries + rows
        if need > len(self.entry_pos):
            room = max(2 * len(self.entry_pos), need)
            for name in ("entry_pos", "entry_weight", "touches"):
                old = getattr(self, name)
                grown = np.zeros(room, np.int64) if name == "touches" else int64s(room)
                grown[: self.entries] = old[: self.entries]
                setattr(self, name, grown)
        live = len(self) + rows
        if live * 100 > self.capacity * 85:
            self._resize(live)

    def _resize(self, live: int) -> None:
        capacity = _MIN_CAPACITY
        while live * 100 > capacity * 60:
            capacity *= 2
        self.slot_hash = uint64s(capacity)
        self.slot_entry = int64s(capacity)
        kt.rebuild(self.slot_hash, self.slot_entry, self.tables, self.entry_pos, self.entry_weight, self.entries)

    def _append(self, delta: ColumnDelta, appended: Int64s) -> None:
        """Set the positions of new entries. The chunks of the delta are shared if at least half of its rows are new."""
        begin, new = self.entries, len(appended)
        if new * 2 >= len(delta.pos):
            shift = len(self.chunks) << nd.ROW_BITS
            self.entry_pos[begin : begin + new] = appended + shift
            self._add_chunks(list(delta.chunks))
        else:
            chunks = self._gathered(delta.tables, appended)
            self.entry_pos[begin : begin + new] = _all_positions(len(self.chunks), chunks)
            self._add_chunks(chunks)
        self.entries += new
        self._gather_small_chunks()

    def _gathered(self, tables: Int64s, pos: Int64s) -> list[Chunk]:
        sort_key = self.sort_key
        return gather_chunks(sort_key.schema, sort_key.own_key, tables, pos, np.empty(0, np.int64), 1)

    def _add_chunks(self, chunks: list[Chunk]) -> None:
        count = len(self.chunks)
        if count + len(chunks) > len(self._tables):
            grown = np.empty(2 * (count + len(chunks)), np.int64)
            grown[:count] = self._tables[:count]
            self._tables = grown
        for i, chunk in enumerate(chunks):
            self._tables[count + i] = chunk.table
        self.chunks += chunks

    def _gather_small_chunks(self) -> None:
        """Gather the newest chunks of a size class into one when there are `_CHUNKS_PER_GATHER` of them."""
        while True:
            sizes = self.chunks
            limit = sizes[-1].rows.bit_length() + 3
            k = 0
            while k < len(sizes) and sizes[-1 - k].rows.bit_length() <= limit:
                k += 1
                if k == _CHUNKS_PER_GATHER:
                    break
            if k < _CHUNKS_PER_GATHER:
                return
            first = len(sizes) - k
            begin = int(np.searchsorted(self.entry_pos[: self.entries], first << nd.ROW_BITS))
            pos = self.entry_pos[begin : self.entries].copy()
            chunks = self._gathered(self.tables, pos)
            del self.chunks[first:]
            self.entry_pos[begin : self.entries] = _all_positions(first, chunks)
            self._add_chunks(chunks)
            if len(chunks) > 1:
                return

    def _rebuild(self) -> None:
        """Drop dead entries and the chunks that only they refer to; shrink the slots."""
        pos, weights, touches = self.live()
        chunks = self._gathered(self.tables, pos)
        n = len(pos)
        self.entry_pos = int64s(max(n, _MIN_CAPACITY))
        self.entry_weight = int64s(max(n, _MIN_CAPACITY))
        self.touches = np.zeros(max(n, _MIN_CAPACITY), np.int64)
        self.entry_pos[:n] = _all_positions(0, chunks)
        self.entry_weight[:n] = weights
        self.touches[:n] = touches
        self.chunks = []
        self._add_chunks(chunks)
        self.entries, self.dead = n, 0
        self._resize(n)

    def live(self) -> tuple[Int64s, Int64s, Int64s]:
        """Positions, weights and touches of all entries that are not dead."""
        weights = self.entry_weight[: self.entries]
        if not self.dead:
            return self.entry_pos[: self.entries].copy(), weights.copy(), self.touches[: self.entries].copy()
        alive = weights != 0
        return self.entry_pos[: self.entries][alive], weights[alive], self.touches[: self.entries][alive]

    def weights_of(self, probe: Chunk) -> Int64s:
        """The weight of each row of a chunk with row hashes."""
        out = int64s(probe.rows)
        schema = self.sort_key.schema
        kt.lookup(
            self.slot_hash, self.slot_entry, self.tables, self.entry_pos, self.entry_weight, self.entries,
            probe.table, probe.rows, schema.columns, schema.node_count, out,
        )  # fmt: skip
        return out

    def weight_of(self, probe: EncodedRow) -> int:
        """The weight of one encoded row with its hash."""
        schema = self.sort_key.schema
        weight: int = kt.lookup_point(
            self.slot_hash, self.slot_entry, self.tables, self.entry_pos, self.entry_weight, self.entries,
            probe.table, schema.columns, schema.node_count,
        )  # fmt: skip
        return weight

    def batch(self, pos: Int64s, weights: Int64s) -> Batch:
        """Rows at positions, with these weights, as a sorted batch."""
        n = len(pos)
        sort_key = self.sort_key
        if n == 0:
            return Batch.empty(sort_key)
        tables = self.tables
        row_hash = uint64s(n)
        kt.hashes_at(tables, pos, nd.HASH, row_hash)
        order = int64s(n)
        sort_hashes(row_hash, row_hash, order, uint64s(2 * n), int64s(n))
        sorted_pos, sorted_weights = pos[order], weights[order]
        kt.sort_tied_rows(tables, sorted_pos, sorted_weights, sort_key.schema.columns, sort_key.schema.node_count)
        one = int(bool((sorted_weights == 1).all()))
        return Batch(sort_key, gather_chunks(sort_key.schema, 0, tables, sorted_pos, sorted_weights, one))


def _all_positions(first: int, chunks: Sequence[Chunk]) -> Int64s:
    """The positions of all rows of chunks, if the first of the chunks has number `first`."""
    return np.concatenate(
        [np.arange(c.rows, dtype=np.int64) + ((first + i) << nd.ROW_BITS) for i, c in enumerate(chunks)]
    ) if chunks else np.empty(0, np.int64)  # fmt: skip


class LargeWeight(Exception):
    """A weight beyond `MAX_UNCHECKED_WEIGHT`: the row may be in other places too, so its sum needs the checked path."""


def add_rows(rows: dict[Row, int], delta: dict[Row, int], factor: int, limit: int) -> bool:
    """Add a delta of canonical rows, or raise and change nothing. Returns whether a weight of the delta is now
    beyond `MAX_UNCHECKED_WEIGHT`."""
    large = False
    for row, weight in delta.items():
        total = rows.get(row, 0) + weight * factor
        if total:
            if not -MAX_UNCHECKED_WEIGHT <= total <= MAX_UNCHECKED_WEIGHT:
                large = True
                if not -limit <= total <= limit:
                    _undo(rows, delta, factor, row)
                    raise weight_overflow(row) if limit == INT64_MAX else LargeWeight
            rows[row] = total
        else:
            rows.pop(row, None)
    return large


def _undo(rows: dict[Row, int], delta: dict[Row, int], factor: int, end: Row) -> None:
    """Undo the rows of a delta before row `end`."""
    for row, weight in delta.items():
        if row is end:
            return
        before = rows.get(row, 0) - weight * factor
        if before:
            rows[row] = before
        else:
            rows.pop(row, None)


def _value_bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return 4 + len(value)
    return sum(_value_bytes(v) for v in value) if isinstance(value, tuple) else 8


def batch_of_rows(sort_key: SortKey, rows: dict[Row, int]) -> Batch:
    """A sorted batch from distinct canonical rows."""
    if not rows:
        return Batch.empty(sort_key)
    values = list(rows.values())
    weights = None if values.count(1) == len(values) else np.array(values, np.int64)
    chunk = import_arrays(sort_key.schema, encode_rows(sort_key.schema, list(rows)), len(rows), weights)
    row_hash = hash_rows(chunk, sort_key.row_nodes)
    return Batch.of(sort_hashed_chunk(sort_key, chunk, row_hash, row_hash))


class Memtable:
    """A dict of Python rows and a hash table of rows in columns, changed in place under `lock`."""

    __slots__ = (
        "delta_rows",
        "deltas",
        "head",
        "large",
        "lock",
        "negative_rows",
        "next_check",
        "row_adds",
        "row_bytes",
        "rows",
        "sampled_at_rows",
        "sort_key",
        "table",
    )

    def __init__(self, sort_key: SortKey) -> None:
        self.sort_key = sort_key
        self.rows: dict[Row, int] = {}
        self.table: RobinHoodTable | None = None
        self.lock = threading.RLock()
        self.head: VersionNode | None = None
        self.large = False  # whether weights may exceed MAX_UNCHECKED_WEIGHT: every sum is checked then
        self.deltas = 0  # deltas applied so far, their rows, and how many of those had negative weights
        self.delta_rows = 0
        self.negative_rows = 0
        self.row_adds = 0  # rows added one by one so far
        self.next_check = 0  # value of `row_adds` at which the payload checks its form again
        self.sampled_at_rows = 0
        self.row_bytes = 0

    def __len__(self) -> int:
        return len(self.rows) + (len(self.table) if self.table is not None else 0)

    def copy(self) -> Memtable:
        other = Memtable(self.sort_key)
        other.rows = dict(self.rows)
        other.table = None if self.table is None else self.table.copy()
        other.large, other.delta_rows, other.negative_rows = self.large, self.delta_rows, self.negative_rows
        other.deltas, other.row_adds = self.deltas, self.row_adds
        other.sampled_at_rows, other.row_bytes = self.sampled_at_rows, self.row_bytes
        return other

    def apply(self, delta: Any, factor: int) -> None:
        kind = type(delta)
        if kind is tuple:
            row, weight = delta
            rows = self.rows
            total = rows.get(row, 0) + weight * factor
            if total:
                if not -MAX_UNCHECKED_WEIGHT <= total <= MAX_UNCHECKED_WEIGHT:
                    if not -INT64_MAX <= total <= INT64_MAX:
                        raise weight_overflow(row)
                    self.large = True
                rows[row] = total
            else:
                rows.pop(row, None)
            self.row_adds += 1
        elif kind is dict:
            self.large |= add_rows(self.rows, delta, factor, 2 * MAX_UNCHECKED_WEIGHT if factor == 1 else INT64_MAX)
            self.delta_rows += len(delta)
            self.negative_rows += sum(w < 0 for w in delta.values())
            self.deltas += 1
        else:
            if self.table is None:
                self.table = RobinHoodTable(self.sort_key)
            self.table.apply(delta, factor)
            self.large |= self.table.bound > MAX_UNCHECKED_WEIGHT
            self.delta_rows += len(delta.pos)
            self.negative_rows += delta.negative
            self.deltas += delta.deltas

    def python_rows(self) -> dict[Row, int] | None:
        """A copy of the rows, if they are at most `MAX_PYTHON_ROWS` and all in the dict."""
        return dict(self.rows) if self.table is None and len(self.rows) <= MAX_PYTHON_ROWS else None

    def bound(self) -> int:
        """An upper bound on the magnitude of every weight."""
        of_rows = (INT64_MAX if self.large else MAX_UNCHECKED_WEIGHT) if self.rows else 0
        return of_rows + (0 if self.table is None else self.table.bound)

    def batch(self) -> Batch:
        """All rows, sorted and consolidated."""
        parts = []
        if self.rows:
            parts.append(batch_of_rows(self.sort_key, self.rows))
        if self.table is not None and len(self.table):
            pos, weights, _ = self.table.live()
            parts.append(self.table.batch(pos, weights))
        return merge(parts) if parts else Batch.empty(self.sort_key)

    def split_hot(self, keep_hot: bool) -> tuple[Batch, Batch]:
        """(cold, hot) rows. Hot rows changed often since the last flush; if over a quarter of the rows did, none is
        hot."""
        parts = [batch_of_rows(self.sort_key, self.rows)] if self.rows else []
        hot = Batch.empty(self.sort_key)
        if self.table is not None and len(self.table):
            pos, weights, touches = self.table.live()
            is_hot = touches >= HOT_TOUCHES
            if not keep_hot or int(is_hot.sum()) * 4 > len(self):
                is_hot[:] = False
            parts.append(self.table.batch(pos[~is_hot], weights[~is_hot]))
            hot = self.table.batch(pos[is_hot], weights[is_hot])
        return (merge(parts) if parts else hot, hot)

    def nbytes(self) -> int:
        """Estimated bytes of the rows as columns."""
        if len(self.rows) >= 4 * self.sampled_at_rows:
            self._sample()
        size = len(self.rows) * self.row_bytes
        if self.table is not None:
            size += sum(c.nbytes() for c in self.table.chunks) + 24 * len(self.table)
        return size

    def _sample(self) -> None:
        """Estimate the bytes of a row in the dict from 16 rows; repeated whenever the dict is four times as large."""
        rows = list(itertools.islice(self.rows, 16))
        self.sampled_at_rows = len(self.rows)
        self.row_bytes = 8 + sum(_value_bytes(row) for row in rows) // max(len(rows), 1)

    def weight(self, row: Row) -> int:
        """The weight of a row."""
        weight = self.rows.get(row, 0)
        table = self.table
        if table is None or not len(table):
            return weight
        codec = codec_of(self.sort_key.schema)
        made = None if codec is None else codec.encode(row)
        if made is None:
            probe = batch_of_rows(self.sort_key, {row: 1}).chunks[0]
            return weight + int(table.weights_of(probe)[0])
        point, pool = made
        kw.hash_point(point.table, table.sort_key.schema.columns, hash_mask())
        weight += table.weight_of(point)
        pool.append(point)
        return weight
