"""What flows on a stream in a tick: `Delta`, rows with weights in columns, in no order, perhaps not yet consolidated.

Linear operators work on its columns and never sort. An operator that needs an order asks for it (`arranged`); it is
made once and kept, so consumers of the same stream share it. Rows may occur several times and weights may be zero or
cancel: everything that is seen from outside, and everything that is kept as state, is a consolidated batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar import sort_key as hashing
from dbspark.columnar.batch import arrange_chunk
from dbspark.columnar.chunk import Chunk, check_plan, gather_columns, gather_rows, import_arrays
from dbspark.columnar.memory import Int64s, int64s
from dbspark.columnar.rows import Row, decode_arrays
from dbspark.columnar.schema import Schema
from dbspark.kernels.aggregate.group import sum_rows
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW


class Delta:
    """Rows with weights; immutable."""

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
        """The rows of a chunk, in no order."""
        self = Delta.__new__(Delta)
        self.schema = chunk.schema
        self.rows = chunk.rows
        self._columns = self._weights = None
        self._chunk = chunk
        self._batches = {}
        return self

    @staticmethod
    def empty(schema: Schema) -> Delta:
        found = _EMPTY.get(schema)
        if found is None:
            found = _EMPTY[schema] = Delta.of(Batch.empty(SortKey(schema)))
        return found

    @staticmethod
    def sum(schema: Schema, deltas: Iterable[Delta]) -> Delta:
        """All rows of several deltas."""
        some = [d for d in deltas if d.rows]
        if not some:
            return Delta.empty(schema)
        if any(isinstance(d, Parts) for d in some):
            return Parts(schema, sum(d.rows for d in some), lambda: (p for d in some for p in d.parts()))
        if len(some) == 1:
            return some[0] if some[0].schema is schema else Delta(schema, some[0].columns, some[0].weights)
        chunks = [d._only_chunk() for d in some]
        if not schema.nested and all(c is not None for c in chunks):
            made = joined(schema, [c for c in chunks if c is not None])
            if made is not None:
                return Delta.of_chunk(made)
        columns = [pa.concat_arrays([d.columns[c] for d in some]) for c in range(schema.columns)]
        return Delta(schema, columns, np.concatenate([d.weights for d in some]))

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
        """One column; the others are left as they are."""
        chunk = self._only_chunk()
        return self.columns[column] if chunk is None else chunk.array(column)

    def chunk(self) -> Chunk:
        """The rows as kernels read them."""
        if self._chunk is None:
            self._chunk = self._only_chunk() or import_arrays(self.schema, self.columns, self.rows, self.weights)
        return self._chunk

    def _only_chunk(self) -> Chunk | None:
        """The chunk that holds all rows, if there is one already."""
        return self._chunk

    @property
    def held(self) -> int:
        """Bytes that cannot be freed while it is kept, where its rows lie in one piece of memory or in part of one."""
        if self._chunk is None:
            return 0
        buffer = self._chunk.buffer
        whole = buffer.parent
        size: int = buffer.size if whole is None else whole.size
        return size

    def arranged(self, sort_key: SortKey) -> Batch:
        """The rows sorted and consolidated by a sort key; computed once."""
        found = self._batches.get(sort_key)
        if found is None:
            if self._columns is None and self._batches:
                found = next(iter(self._batches.values())).rearranged(sort_key)
            elif not self.rows:
                found = Batch.empty(sort_key)
            else:
                found = arrange_chunk(sort_key, self.chunk())
            # Another dict, not another entry: a delta may be read by two threads (`trace.history`).
            self._batches = {**self._batches, sort_key: found}
        return found

    def known(self, batch: Batch) -> Delta:
        """The same rows, which are known in an order."""
        self._batches = {**self._batches, batch.sort_key: batch}
        return self

    @property
    def in_order(self) -> bool:
        """Whether its rows are known in some order, so each occurs once."""
        return bool(self._batches)

    def batch(self) -> Batch:
        """The rows sorted and consolidated, in whichever order is there already."""
        for batch in self._batches.values():
            return batch
        return self.arranged(SortKey(self.schema))

    def consolidated(self) -> Delta:
        """The same rows, equal ones as one; in whichever order is cheapest."""
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
        made = gather_rows(schema, nodes, np.array((chunk.table,), np.int64), pos[:n], weights[:n])
        return Delta.of(self.batch()) if made is None else Delta.of_chunk(made)

    def select(self, columns: Sequence[int], schema: Schema) -> Delta:
        """Some columns."""
        chunk = self._only_chunk()
        if chunk is not None and not self.schema.nested:
            return Delta.of_chunk(chunk.select(columns, schema))
        given = self.columns
        return Delta(schema, [given[c] for c in columns], self.weights)

    def at(self, rows: Int64s, columns: Sequence[int], schema: Schema) -> Delta:
        """Some columns of some rows, given by number."""
        if not schema.nested:
            if self._chunk is None and self._columns is not None:  # describe what is read, and no more
                chunk = import_arrays(schema, [self._columns[c] for c in columns], self.rows, None)
                nodes = np.arange(nd.LANES, nd.LANES + len(columns))
            else:
                chunk = self.chunk()
                nodes = np.add(columns, nd.LANES, dtype=np.int64)
            tables = np.array((chunk.table,), np.int64)
            made = gather_rows(schema, nodes, tables, rows, self.weights[rows])
            if made is not None:
                return Delta.of_chunk(made)
        taken = pa.array(rows)
        return Delta(schema, [self.columns[c].take(taken) for c in columns], self.weights[rows])

    def parts(self) -> Iterator[Delta]:
        """The rows, perhaps part by part."""
        yield self

    def items(self) -> Iterator[tuple[Row, int]]:
        """Consolidated rows and weights as Python values."""
        batch = self.batch()
        for chunk in batch.chunks:
            yield from zip(decode_arrays(self.schema, chunk.arrays()), chunk.lane(nd.WEIGHT).tolist(), strict=True)

    def __repr__(self) -> str:
        return f"Delta({self.rows} rows: {self.schema!r})"


_EMPTY: dict[Schema, Delta] = {}


def joined(schema: Schema, chunks: Sequence[Chunk]) -> Chunk | None:
    """The rows of several chunks of flat columns in one; None where they do not fit."""
    tables = np.array([c.table for c in chunks], np.int64)
    pos = np.concatenate([np.arange(c.rows) + (i << nd.ROW_BITS) for i, c in enumerate(chunks)])
    weights = np.concatenate([c.lane(nd.WEIGHT) for c in chunks])
    return gather_rows(schema, np.arange(nd.LANES, nd.LANES + schema.columns), tables, pos, weights)


class Parts(Delta):
    """A delta so large that it is made part by part whenever it is read: who works on parts need not hold it all."""

    __slots__ = ("_make",)

    def __init__(self, schema: Schema, rows: int, make: Callable[[], Iterator[Delta]]) -> None:
        """`make` gives the parts, the same ones every time; `rows` is about how many rows they have."""
        self.schema = schema
        self.rows = rows
        self._columns = self._weights = self._chunk = None
        self._batches = {}
        self._make = make

    def parts(self) -> Iterator[Delta]:
        return self._make()

    def mapped(self, schema: Schema, function: Callable[[Delta], Delta]) -> Parts:
        """The parts after a linear operator."""
        return Parts(schema, self.rows, lambda: (function(part) for part in self._make()))

    def arranged(self, sort_key: SortKey) -> Batch:
        if sort_key not in self._batches:
            self._batches[sort_key] = merged(sort_key, (p.arranged(sort_key) for p in self._make()))
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


def rows_at(schema: Schema, tables: Int64s, pos: Int64s, weights: Int64s) -> Delta:
    """The rows at some positions with other weights."""
    if not schema.nested and len(pos):
        made = gather_rows(schema, np.arange(nd.LANES, nd.LANES + schema.columns), tables, pos, weights)
        if made is not None:
            return Delta.of_chunk(made)
    return Delta(schema, gather_columns(schema, tables, pos, range(schema.columns)), weights)


def merged(sort_key: SortKey, batches: Iterable[Batch]) -> Batch:
    """The sum of batches of one sort key."""
    some = [b for b in batches if b.rows]
    return merge(some) if some else Batch.empty(sort_key)
