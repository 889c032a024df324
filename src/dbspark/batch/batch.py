"""`Batch`: rows with weights, sorted, consolidated, immutable.

A batch is a sequence of chunks, strictly increasing in (key hash, row hash, values) from the first row of the
first chunk to the last of the last: no row occurs twice, no weight is zero. Chunks bound what one step of a merge
copies, and let a merge give back its inputs piece by piece.

Nothing here loops over rows in Python; everything is a plan (positions and weights) followed by a gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.batch.arrangement import Arrangement, hash_rows
from dbspark.batch.chunk import CHUNK_ROWS, Chunk, check_plan, gather_chunks, import_arrays
from dbspark.batch.conform import conform
from dbspark.batch.memory import Int64s, UInt64s, int64s, uint64s
from dbspark.batch.schema import Schema
from dbspark.errors import SchemaError, WeightOverflowError
from dbspark.kernels import merge as km
from dbspark.kernels import nodes as nd
from dbspark.kernels import probe as kp
from dbspark.kernels.sort import sort_hashes

INT64_MAX = (1 << 63) - 1
_BUILD_ROWS = 1 << 21
"""Unsorted rows that are sorted in one go; more are sorted in pieces and merged."""
_PARALLEL_ROWS = 1 << 17
"""Merges from this many rows on use two threads."""


class Batch:
    """An immutable, sorted, consolidated Z-set in columns."""

    __slots__ = ("__dict__", "arrangement", "chunks", "lens", "rows", "tables")

    def __init__(self, arrangement: Arrangement, chunks: Sequence[Chunk]) -> None:
        self.arrangement = arrangement
        self.chunks = tuple(chunks)
        if len(self.chunks) == 1:
            only = self.chunks[0]
            self.rows = only.rows
            self.lens = np.array((only.rows,), np.int64)
            self.tables = np.array((only.table,), np.int64)
        else:
            self.lens = np.array([c.rows for c in self.chunks], np.int64)
            self.tables = np.array([c.table for c in self.chunks], np.int64)
            self.rows = int(self.lens.sum())

    @property
    def schema(self) -> Schema:
        return self.arrangement.schema

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"Batch({self.rows} rows, {len(self.chunks)} chunks, {self.arrangement!r})"

    @cached_property
    def fences(self) -> UInt64s:
        """The first key hash of each chunk."""
        out = np.empty(len(self.chunks), np.uint64)
        kp.first_keys(self.tables, out)
        return out

    @property
    def largest(self) -> int:
        """The largest magnitude of a weight: sums of few batches are known not to overflow without looking."""
        return self._survey[0]

    @property
    def negative(self) -> int:
        """How many weights are below zero."""
        return self._survey[1]

    @property
    def total_weight(self) -> int:
        """The exact sum of the weights."""
        return (self._survey[2] << 32) + self._survey[3]

    @cached_property
    def _survey(self) -> list[int]:
        info = np.empty(4, np.int64)
        km.survey_weights(self.tables, self.lens, info)
        survey: list[int] = info.tolist()
        return survey

    def same(self, other: Batch) -> bool:
        """Whether another batch of this arrangement's columns holds the same rows and weights."""
        schema = self.schema
        return self.rows == other.rows and bool(
            km.same_batches(self.tables, self.lens, other.tables, other.lens, schema.columns, schema.node_count)
        )

    # ------------------------------------------------------------------ building

    @staticmethod
    def empty(arrangement: Arrangement) -> Batch:
        return Batch(arrangement, ())

    @staticmethod
    def from_chunk(arrangement: Arrangement, chunk: Chunk) -> Batch:
        """Sort and consolidate one imported chunk."""
        rows = chunk.rows
        if rows == 0:
            return Batch.empty(arrangement)
        if rows > _BUILD_ROWS:
            pieces = [
                Batch.from_chunk(arrangement, chunk.slice(at, min(_BUILD_ROWS, rows - at)))
                for at in range(0, rows, _BUILD_ROWS)
            ]
            return merge(pieces)
        row_hash = hash_rows(chunk, arrangement.row_nodes)
        key_hash = hash_rows(chunk, arrangement.key_nodes) if arrangement.own_key else row_hash
        return arrange(arrangement, chunk, row_hash, key_hash)

    @staticmethod
    def from_arrow(
        data: pa.RecordBatch | pa.Table, arrangement: Arrangement | None = None, weights: Any = None
    ) -> Batch:
        """Sort and consolidate Arrow rows. `weights` are int64 (one per row), or None for 1 each."""
        if arrangement is None:
            arrangement = Arrangement(Schema(data.schema))
        schema = arrangement.schema
        if isinstance(data, pa.RecordBatch):
            return _from_arrays(arrangement, conform(schema, data.schema, data.columns), data.num_rows, weights)
        if weights is not None:
            weights = _checked(weights, data.num_rows)
        whole = data.combine_chunks()
        pieces = []
        at = 0
        for part in whole.to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]:
            end = at + part.num_rows
            some = None if weights is None else weights[at:end]
            pieces.append(_from_arrays(arrangement, conform(schema, part.schema, part.columns), end - at, some))
            at = end
        return merge(pieces)

    def rearranged(self, arrangement: Arrangement) -> Batch:
        """The same rows ordered by another key."""
        if arrangement is self.arrangement:
            return self
        pieces = []
        for chunk in self.chunks:
            row_hash = chunk.lane(nd.HASH)
            key_hash = hash_rows(chunk, arrangement.key_nodes) if arrangement.own_key else row_hash
            pieces.append(arrange(arrangement, chunk, row_hash, key_hash))
        return merge(pieces) if pieces else Batch.empty(arrangement)

    # ------------------------------------------------------------------ reading

    def weights(self) -> Int64s:
        """The weight of each row, to be read only."""
        if len(self.chunks) == 1:
            weights: Int64s = self.chunks[0].lane(nd.WEIGHT)
        elif self.chunks:
            weights = np.concatenate([c.lane(nd.WEIGHT) for c in self.chunks])
        else:
            weights = np.empty(0, np.int64)
        weights.setflags(write=False)
        return weights

    def to_arrow(self) -> pa.Table:
        """The rows, in batch order, over the same memory."""
        schema = self.schema.arrow
        parts = [pa.RecordBatch.from_arrays(c.arrays(), schema=schema) for c in self.chunks]
        return pa.Table.from_batches(parts, schema)

    def slice(self, offset: int, rows: int | None = None) -> Batch:
        """Rows offset … offset+rows-1 in batch order; shares memory."""
        end = self.rows if rows is None else min(self.rows, offset + rows)
        chunks = []
        at = 0
        for chunk in self.chunks:
            low, high = max(offset - at, 0), min(end - at, chunk.rows)
            if low < high:
                chunks.append(chunk if high - low == chunk.rows else chunk.slice(low, high - low))
            at += chunk.rows
        return Batch(self.arrangement, chunks)

    def nbytes(self) -> int:
        """Bytes that this batch keeps in memory, shared with others or not."""
        return sum(c.nbytes() for c in self.chunks)

    def with_weights(self, weights: Int64s) -> Batch:
        """The same rows with other weights, none of them zero; columns and hashes are shared."""
        weights = np.array(_checked(weights, self.rows))
        chunks = []
        at = 0
        for chunk in self.chunks:
            some = np.ascontiguousarray(weights[at : at + chunk.rows])
            changed = chunk.slice(0, chunk.rows)
            changed.keep = (chunk, some)
            line = changed.nodes()[nd.WEIGHT]
            line[nd.DATA], line[nd.START], line[nd.MASK] = some.ctypes.data, 0, -1
            chunks.append(changed)
            at += chunk.rows
        return Batch(self.arrangement, chunks)

    def select(self, pos: Int64s, weights: Int64s | None = None) -> Batch:
        """The rows at these positions, which must be in batch order."""
        if weights is None:
            weights = self.weights_at(pos)
        one = int(bool((weights == 1).all()))
        return Batch(
            self.arrangement,
            gather_chunks(self.schema, self.arrangement.own_key, self.tables, pos, weights, one),
        )

    def weights_at(self, pos: Int64s) -> Int64s:
        out = int64s(len(pos))
        kp.weights_at(self.tables, pos, out)
        return out


def _from_arrays(arrangement: Arrangement, arrays: Sequence[pa.Array], rows: int, weights: Any) -> Batch:
    return Batch.from_chunk(
        arrangement,
        import_arrays(arrangement.schema, arrays, rows, None if weights is None else _checked(weights, rows)),
    )


def _checked(weights: Any, rows: int) -> Int64s:
    """Weights as kernels want them: one int64 for each row, none of them the least, which has no opposite."""
    given = np.asarray(weights)
    if given.shape != (rows,):
        raise SchemaError(f"{rows} rows need as many weights; given an array of shape {given.shape}")
    if rows and not np.issubdtype(given.dtype, np.integer):
        raise SchemaError(f"weights are integers; given {given.dtype}")
    if rows and (int(given.min()) < -INT64_MAX or int(given.max()) > INT64_MAX):
        raise WeightOverflowError(f"weights lie between {-INT64_MAX} and {INT64_MAX}; nothing was applied")
    return np.ascontiguousarray(given, np.int64)


def arrange(arrangement: Arrangement, chunk: Chunk, row_hash: UInt64s, key_hash: UInt64s) -> Batch:
    """Sort and consolidate a chunk whose hashes are known."""
    rows = chunk.rows
    schema = arrangement.schema
    order = int64s(rows)
    sort_hashes(key_hash, row_hash, order, uint64s(2 * rows), int64s(rows))
    pos = int64s(rows)
    weights = int64s(rows)
    info = np.empty(4, np.int64)
    km.consolidate(chunk.table, key_hash, row_hash, order, schema.columns, schema.node_count, pos, weights, info)
    check_plan(info)
    table = np.array(chunk.nodes())  # a copy: the chunk may be shared, its hash lanes are ours
    lines = ((nd.HASH, row_hash), (nd.KEY, key_hash))
    for node, lane in lines:
        table[node, nd.DATA], table[node, nd.START] = lane.ctypes.data, 0
    n = int(info[0])
    tables = np.array((table.ctypes.data,), np.int64)
    return Batch(arrangement, gather_chunks(schema, arrangement.own_key, tables, pos[:n], weights[:n], int(info[2])))


class Plan:
    """A merge in progress over batches of one arrangement: call `step` until `done`.

    The cursors say where each input stands; `remaining` gives the inputs without what has been read.
    """

    __slots__ = ("arrangement", "batches", "cursors", "done", "ends", "info", "lens", "read", "starts", "tables")

    def __init__(self, batches: Sequence[Batch], offsets: Sequence[int] | None = None) -> None:
        """Merge batches, each from row `offset` of its first chunk on."""
        self.arrangement = batches[0].arrangement
        given = sorted(zip(batches, offsets or (0,) * len(batches), strict=True), key=lambda pair: len(pair[0]))
        batches = [batch for batch, _ in given]
        self.batches = batches
        k = len(batches)
        self.tables = np.concatenate([b.tables for b in batches])
        self.lens = np.concatenate([b.lens for b in batches])
        self.cursors = np.zeros((k, 2), np.int64)
        self.ends = np.empty((k, 2), np.int64)
        self.starts = []
        at = 0
        for s, batch in enumerate(batches):
            self.starts.append(at)
            self.cursors[s] = at, given[s][1]
            at += len(batch.chunks)
            self.ends[s, 0] = at - 1
            self.ends[s, 1] = batch.lens[-1]
        self.info = np.empty(4, np.int64)
        self.done = False
        self.read = 0

    def step(self, limit: int) -> list[Chunk]:
        """Merge until at most `limit` rows are written (twice as many read)."""
        schema = self.arrangement.schema
        columns, nodes = schema.columns, schema.node_count
        info = self.info
        if len(self.batches) == 2:
            pos, weights = int64s(limit), int64s(limit)
            km.merge_two(self.tables, self.lens, self.cursors, self.ends, columns, nodes, limit, pos, weights, info)
            check_plan(info)
        else:
            stops = np.empty_like(self.cursors)
            n = kp.choose_split(self.tables, self.lens, self.cursors, self.ends, limit, stops)
            pos, weights = int64s(n), int64s(n)
            km.merge_ranges(
                self.tables, self.lens, self.cursors, stops, columns, nodes,
                uint64s(2 * n), int64s(2 * n), pos, weights, info,
            )  # fmt: skip
            check_plan(info)
            info[3] = np.array_equal(stops, self.ends)
        written, read, ones, done = info.tolist()
        self.read += read
        self.done = bool(done)
        return gather_chunks(schema, self.arrangement.own_key, self.tables, pos[:written], weights[:written], ones)

    def remaining(self) -> list[Batch]:
        """What has not been read yet of each input that has anything left."""
        return [b.slice(n) if n else b for b, n in zip(*self.unread(), strict=True)]

    def unread(self) -> tuple[tuple[Batch, ...], tuple[int, ...]]:
        """The inputs that have anything left, without the chunks that are read, and where to go on in the first."""
        batches, offsets = [], []
        for s, batch in enumerate(self.batches):
            chunk, row = self.cursors[s].tolist()
            chunk -= self.starts[s]
            if row >= batch.chunks[chunk].rows:
                chunk, row = chunk + 1, 0
            if chunk < len(batch.chunks):
                batches.append(Batch(self.arrangement, batch.chunks[chunk:]) if chunk else batch)
                offsets.append(row)
        return tuple(batches), tuple(offsets)

    def restrict(self, low: Int64s | None, high: Int64s | None) -> None:
        """Merge only from the cursors `low` up to the cursors `high` (as `split` gives them)."""
        if low is not None:
            self.cursors[:] = low
        if high is not None:
            self.ends[:] = high

    def split(self, key_hash: int) -> Int64s:
        """Cursors at the first row of each input whose key hash is not below `key_hash`."""
        out = np.empty_like(self.cursors)
        kp.split_at(self.tables, self.lens, self.cursors, self.ends, np.uint64(key_hash), np.uint64(0), out)
        return out


_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(1, thread_name_prefix="dbspark-merge")
    return _pool


def merge(batches: Sequence[Batch]) -> Batch:
    """The sum of batches of one arrangement."""
    some = [b for b in batches if b.rows]
    if len(some) <= 1:
        return some[0] if some else batches[0]
    arrangement = some[0].arrangement
    if any(b.arrangement is not arrangement for b in some):
        raise SchemaError(f"batches of different arrangements cannot be merged: {[b.arrangement for b in some]}")
    if sum(b.rows for b in some) < _PARALLEL_ROWS:
        return Batch(arrangement, _run(Plan(some)))
    low, high = Plan(some), Plan(some)
    middle = low.split(1 << 63)
    low.restrict(None, middle)
    high.restrict(middle, None)
    upper = _threads().submit(_run, high)
    chunks = _run(low)
    return Batch(arrangement, chunks + upper.result())


def _run(plan: Plan) -> list[Chunk]:
    chunks: list[Chunk] = []
    while not plan.done:
        chunks += plan.step(CHUNK_ROWS)
    return chunks
