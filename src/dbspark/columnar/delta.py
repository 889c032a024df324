"""`Delta`: the value of a stream in one tick, a Z-set in columns that need be neither sorted nor consolidated.

Linear operators work on the columns and never sort. An operator that needs sorted rows calls `sorted_by`; each order is
computed once and cached, so consumers of the same stream share it.

Rows may occur several times, and weights may be zero or cancel. Everything that users see and everything that is kept
as state is consolidated first.

A delta holds its rows in one or more forms (Arrow columns and a weight vector, a chunk, sorted batches) and derives the
others when they are first read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from dbspark.columnar import sort_key as hashing
from dbspark.columnar.batch import Batch, merge
from dbspark.columnar.chunk import Chunk, check_plan, gather_columns, gather_rows, import_arrays
from dbspark.columnar.memory import Int64s, int64s
from dbspark.columnar.rows import Row, decode_arrays
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_batch import sort_chunk
from dbspark.columnar.sort_key import SortKey
from dbspark.kernels.aggregate.group import sum_rows
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW


class Delta:
    """Rows with weights, in no order. The rows never change; cached forms of them are added."""

    __slots__ = ("_batches", "_chunk", "_columns", "_weights", "rows", "schema")

    def __init__(self, schema: Schema, columns: Sequence[pa.Array], weights: Int64s) -> None:
        """Columns of the schema's canonical types, of as many rows as there are weights."""
        self.schema = schema
        self.rows = len(weights)
        self._columns: Sequence[pa.Array] | None = columns
        self._weights: Int64s | None = weights
        self._batches: dict[SortKey, Batch] = {}
        self._chunk: Chunk | None = None

    @staticmethod
    def of(batch: Batch) -> Delta:
        """The rows of a batch."""
        self = Delta.__new__(Delta)
        self.schema = batch.sort_key.schema
        self.rows = batch.rows
        self._columns = self._weights = None
        self._chunk = batch.chunks[0] if len(batch.chunks) == 1 else None
        self._batches = {batch.sort_key: batch}
        return self

    @staticmethod
    def of_chunk(chunk: Chunk) -> Delta:
        """The rows of a chunk, in any order."""
        self = Delta.__new__(Delta)
        self.schema = chunk.schema
        self.rows = chunk.rows
        self._columns = self._weights = None
        self._chunk = chunk
        self._batches = {}
        return self

    @staticmethod
    def empty(schema: Schema) -> Delta:
        """The delta without rows; cached for each schema."""
        empty = _EMPTY.get(schema)
        if empty is None:
            empty = _EMPTY[schema] = Delta.of(Batch.empty(SortKey(schema)))
        return empty

    @staticmethod
    def sum(schema: Schema, deltas: Iterable[Delta]) -> Delta:
        """All rows of several deltas."""
        nonempty = [d for d in deltas if d.rows]
        if not nonempty:
            return Delta.empty(schema)
        if any(isinstance(d, ChunkedDelta) for d in nonempty):
            return ChunkedDelta(schema, sum(d.rows for d in nonempty), lambda: (p for d in nonempty for p in d.parts()))
        if len(nonempty) == 1:
            return (
                nonempty[0] if nonempty[0].schema is schema else Delta(schema, nonempty[0].columns, nonempty[0].weights)
            )
        chunks = [d._only_chunk() for d in nonempty]
        if not schema.nested and all(c is not None for c in chunks):
            gathered = concat_chunks(schema, [c for c in chunks if c is not None])
            if gathered is not None:
                return Delta.of_chunk(gathered)
        columns = [pa.concat_arrays([d.columns[c] for d in nonempty]) for c in range(schema.columns)]
        return Delta(schema, columns, np.concatenate([d.weights for d in nonempty]))

    @property
    def columns(self) -> Sequence[pa.Array]:
        if self._columns is None:
            chunks = (self._chunk,) if self._chunk else next(iter(self._batches.values())).chunks
            parts = [chunk.arrays() for chunk in chunks]
            if len(parts) == 1:
                self._columns = parts[0]
            else:
                types = self.schema.types
                self._columns = [
                    pa.concat_arrays([p[c] for p in parts]) if parts else pa.array([], types[c])
                    for c in range(self.schema.columns)
                ]
        return self._columns

    @property
    def weights(self) -> Int64s:
        if self._weights is None:
            self._weights = self._chunk.lane(nd.WEIGHT) if self._chunk else next(iter(self._batches.values())).weights()
        return self._weights

    def column(self, column: int) -> pa.Array:
        """One column, without making arrays of the others where there is a chunk."""
        chunk = self._only_chunk()
        return self.columns[column] if chunk is None else chunk.array(column)

    def chunk(self) -> Chunk:
        """The rows as a chunk, which is what kernels read."""
        if self._chunk is None:
            self._chunk = self._only_chunk() or import_arrays(self.schema, self.columns, self.rows, self.weights)
        return self._chunk

    def _only_chunk(self) -> Chunk | None:
        """The chunk of all rows, if they are in one already."""
        return self._chunk

    @property
    def retained_bytes(self) -> int:
        """Bytes of the arena that this delta keeps alive, which may hold far more than its rows; 0 if it has none."""
        if self._chunk is None:
            return 0
        buffer = self._chunk.buffer
        whole = buffer.parent
        size: int = buffer.size if whole is None else whole.size
        return size

    def sorted_by(self, sort_key: SortKey) -> Batch:
        """The rows sorted and consolidated by a sort key; computed once."""
        batch = self._batches.get(sort_key)
        if batch is None:
            if self._columns is None and self._batches:
                batch = next(iter(self._batches.values())).sorted_by(sort_key)
            elif not self.rows:
                batch = Batch.empty(sort_key)
            else:
                batch = Batch.of(sort_chunk(sort_key, self.chunk()))
            # Replaces the dict instead of adding to it: two threads may read a delta (`trace.history`).
            self._batches = {**self._batches, sort_key: batch}
        return batch

    def add_sorted(self, batch: Batch) -> Delta:
        """Cache a batch of the same rows as the result of `sorted_by` for its sort key; returns this delta."""
        self._batches = {**self._batches, batch.sort_key: batch}
        return self

    @property
    def is_sorted(self) -> bool:
        """Whether a sorted and consolidated form of the rows has been computed already."""
        return bool(self._batches)

    def batch(self) -> Batch:
        """The rows as a batch, in an order that is computed already if there is one, else sorted by whole rows."""
        for batch in self._batches.values():
            return batch
        return self.sorted_by(SortKey(self.schema))

    def consolidated(self) -> Delta:
        """The same Z-set with every row once and no weight zero, in whichever order is cheapest."""
        if self._batches or self.schema.nested or not self.rows:
            return Delta.of(self.batch())
        chunk, schema = self.chunk(), self.schema
        pos, weights, nodes = int64s(self.rows), int64s(self.rows), np.arange(nd.LANES, nd.LANES + schema.columns)
        n = sum_rows(chunk.table, self.rows, nodes, hashing._mask, schema.node_count, pos, weights)
        if n == OVERFLOW:
            check_plan(np.array((n,), np.int64))
        if n == self.rows:
            return self
        if not n:
            return Delta.empty(schema)
        gathered = gather_rows(schema, nodes, np.array((chunk.table,), np.int64), pos[:n], weights[:n])
        return Delta.of(self.batch()) if gathered is None else Delta.of_chunk(gathered)

    def select(self, columns: Sequence[int], schema: Schema) -> Delta:
        """The rows with some of their columns, as a delta of another schema."""
        chunk = self._only_chunk()
        if chunk is not None and not self.schema.nested:
            return Delta.of_chunk(chunk.select(columns, schema))
        arrays = self.columns
        return Delta(schema, [arrays[c] for c in columns], self.weights)

    def at(self, rows: Int64s, columns: Sequence[int], schema: Schema) -> Delta:
        """Some columns of the rows at these row numbers."""
        if not schema.nested:
            if self._chunk is None and self._columns is not None:  # import only the columns that are read
                chunk = import_arrays(schema, [self._columns[c] for c in columns], self.rows, None)
                nodes = np.arange(nd.LANES, nd.LANES + len(columns))
            else:
                chunk = self.chunk()
                nodes = np.add(columns, nd.LANES, dtype=np.int64)
            tables = np.array((chunk.table,), np.int64)
            gathered = gather_rows(schema, nodes, tables, rows, self.weights[rows])
            if gathered is not None:
                return Delta.of_chunk(gathered)
        indices = pa.array(rows)
        return Delta(schema, [self.columns[c].take(indices) for c in columns], self.weights[rows])

    def parts(self) -> Iterator[Delta]:
        """Deltas whose sum this is: itself, unless it is a `ChunkedDelta`."""
        yield self

    def items(self) -> Iterator[tuple[Row, int]]:
        """Consolidated rows and weights as Python values, one by one: slow."""
        batch = self.batch()
        for chunk in batch.chunks:
            yield from zip(decode_arrays(self.schema, chunk.arrays()), chunk.lane(nd.WEIGHT).tolist(), strict=True)

    def __repr__(self) -> str:
        return f"Delta({self.rows} rows: {self.schema!r})"


_EMPTY: dict[Schema, Delta] = {}


def concat_chunks(schema: Schema, chunks: Sequence[Chunk]) -> Chunk | None:
    """The rows of several chunks of flat columns in one chunk; None where a column would be too large for it."""
    tables = np.array([c.table for c in chunks], np.int64)
    pos = np.concatenate([np.arange(c.rows) + (i << nd.ROW_BITS) for i, c in enumerate(chunks)])
    weights = np.concatenate([c.lane(nd.WEIGHT) for c in chunks])
    return gather_rows(schema, np.arange(nd.LANES, nd.LANES + schema.columns), tables, pos, weights)


class ChunkedDelta(Delta):
    """A delta too large to hold, produced part by part each time it is read.

    Operators that can work part by part iterate over `parts()`. Everything else (`columns`, `chunk`, `sorted_by`) first
    merges all parts into one batch, which is kept.
    """

    __slots__ = ("_make",)

    def __init__(self, schema: Schema, rows: int, make: Callable[[], Iterator[Delta]]) -> None:
        """`make` produces the parts, the same ones at each call; `rows` estimates their number of rows."""
        self.schema = schema
        self.rows = rows
        self._columns = self._weights = self._chunk = None
        self._batches = {}
        self._make = make

    def parts(self) -> Iterator[Delta]:
        return self._make()

    def map_parts(self, schema: Schema, function: Callable[[Delta], Delta]) -> ChunkedDelta:
        """The delta of a linear operator's results on the parts, each computed when it is read."""
        return ChunkedDelta(schema, self.rows, lambda: (function(part) for part in self._make()))

    def sorted_by(self, sort_key: SortKey) -> Batch:
        if sort_key not in self._batches:
            self._batches[sort_key] = merge_or_empty(sort_key, (p.sorted_by(sort_key) for p in self._make()))
            self.rows = self._batches[sort_key].rows
        return self._batches[sort_key]

    @property
    def columns(self) -> Sequence[pa.Array]:
        self.batch()
        return super().columns

    @property
    def weights(self) -> Int64s:
        self.batch()
        return super().weights

    def _only_chunk(self) -> Chunk | None:
        self.batch()
        return super()._only_chunk()


def gather_delta(schema: Schema, tables: Int64s, pos: Int64s, weights: Int64s) -> Delta:
    """The rows at some positions of several chunks, with these weights."""
    if not schema.nested and len(pos):
        gathered = gather_rows(schema, np.arange(nd.LANES, nd.LANES + schema.columns), tables, pos, weights)
        if gathered is not None:
            return Delta.of_chunk(gathered)
    return Delta(schema, gather_columns(schema, tables, pos, range(schema.columns)), weights)


def merge_or_empty(sort_key: SortKey, batches: Iterable[Batch]) -> Batch:
    """The sum of batches of one sort key; unlike for `merge`, there may be none of them."""
    nonempty = [b for b in batches if b.rows]
    return merge(nonempty) if nonempty else Batch.empty(sort_key)
