"""`Batch`: rows with weights, sorted, consolidated, immutable.

A batch is a sequence of chunks, strictly increasing in (key hash, row hash, values, time) from the first row of the
first chunk to the last of the last. Invariants:

1. No row occurs twice at one time.
2. No weight is zero.
3. A batch never changes; batches that are made from it share its memory wherever they can.

Chunks bound what one step of a merge copies, and let a merge free its inputs piece by piece.

In most batches all rows have the same time (zeros for batches outside of traces). Then no row occurs twice at all, and
merges use faster kernels. `description` is written and read by `dbspark.trace` and not interpreted here.

Nothing here loops over rows in Python: kernels compute a plan (positions and weights of the result), then gather the
columns. `columnar.sort_batch` sorts and `columnar.merge_batches` merges; both return `SortedChunks`, from which
`Batch.of` makes a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import merge_batches, sort_batch
from dbspark.columnar.batch_index import MIN_INDEXED_BATCH_ROWS, NO_INDEX, BatchIndex
from dbspark.columnar.chunk import Chunk, gather_chunks, gather_timed, import_arrays
from dbspark.columnar.conform import conform
from dbspark.columnar.memory import INT64_MAX, Int64s, UInt64s, int64s
from dbspark.columnar.row_times import advance_time, pad_times, survey_of_one_time, times_at
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_batch import SortedChunks
from dbspark.columnar.sort_key import SortKey
from dbspark.errors import SchemaError, WeightOverflowError
from dbspark.kernels.lookup import index as ks
from dbspark.kernels.lookup import probe as kp
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.merge import consolidate as km
from dbspark.kernels.merge import merge_timed as kt
from dbspark.lazy import Lazy


class Batch:
    """An immutable, sorted, consolidated Z-set in columns."""

    __slots__ = ("__dict__", "chunks", "description", "rows", "sort_key")

    def __init__(self, sort_key: SortKey, chunks: Sequence[Chunk], description: Any = None) -> None:
        self.sort_key = sort_key
        self.description = description
        self.chunks = tuple(chunks)
        self.rows = self.chunks[0].rows if len(self.chunks) == 1 else sum([c.rows for c in self.chunks])

    @Lazy
    def lens(self) -> Int64s:
        """The number of rows of each chunk."""
        return np.array([c.rows for c in self.chunks], np.int64)

    @Lazy
    def tables(self) -> Int64s:
        """The address of the node table of each chunk."""
        return np.array([c.table for c in self.chunks], np.int64)

    @property
    def schema(self) -> Schema:
        return self.sort_key.schema

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"Batch({self.rows} rows, {len(self.chunks)} chunks, {self.sort_key!r})"

    @Lazy
    def fences(self) -> UInt64s:
        """Fence pointers: the first key hash of each chunk."""
        out = np.empty(len(self.chunks), np.uint64)
        kp.first_keys(self.tables, out)
        return out

    @Lazy
    def index(self) -> BatchIndex:
        """The hash index of its keys, of two to four bytes for each row; `NO_INDEX` where it would not pay."""
        if self.rows < MIN_INDEXED_BATCH_ROWS or int(self.lens.max()) > 1 << ks.INDEX_ROW_BITS:
            return NO_INDEX
        index = BatchIndex.empty(self.rows)
        ks.fill_index(self.tables, self.lens, 0, index.ref[1], index.words)
        return index

    def with_index(self, index: BatchIndex | None) -> Batch:
        """Set the index and return the batch. None: no index, because the batch will soon be merged or freed."""
        self.__dict__["index"] = index or NO_INDEX
        return self

    def with_index_of(self, whole: Batch, dropped_chunks: int, dropped_rows: int) -> Batch:
        """This batch, sharing the index of `whole`, if that has one.

        This batch is `whole` without its first `dropped_chunks` chunks and the first `dropped_rows` rows of the next.
        """
        index = whole.__dict__.get("index")
        if index is not None and index.ref[0]:
            address, shift, chunks, rows = index.ref
            # `whole` may itself be a rest of a larger batch, with rows dropped from its first chunk.
            rows = dropped_rows if dropped_chunks else rows + dropped_rows
            self.__dict__["index"] = BatchIndex(index.words, (address, shift, chunks + dropped_chunks, rows))
        return self

    def without_chunks(self, chunks: int) -> Batch:
        """This batch without its first chunks; its index is shared."""
        return Batch(self.sort_key, self.chunks[chunks:]).with_index_of(self, chunks, 0)

    @property
    def largest(self) -> int:
        """The largest magnitude of a weight. Sums of `largest` bound the weights of a merge without reading rows."""
        return self._survey[0]

    @property
    def negative(self) -> int:
        """The number of rows with a negative weight."""
        return self._survey[1]

    @property
    def total_weight(self) -> int:
        """The exact sum of the weights."""
        return (self._survey[2] << 32) + self._survey[3]

    @Lazy
    def _survey(self) -> Sequence[int]:
        """(largest magnitude, negative weights, high and low part of their sum); batch files store it as it is."""
        info = np.empty(4, np.int64)
        km.survey_weights(self.tables, self.lens, info)
        survey: list[int] = info.tolist()
        return survey

    @Lazy
    def _time_survey(self) -> list[int]:
        """Whether all rows are at one time, then (least, greatest) of each coordinate; files store it as it is."""
        info = np.zeros(1 + 2 * nd.TIMES, np.int64)
        kt.survey_times(self.tables, self.lens, info)
        survey: list[int] = info.tolist()
        return survey

    @property
    def time(self) -> tuple[int, ...] | None:
        """The time of all rows if they have the same one, else None."""
        survey = self._time_survey
        return tuple(survey[1::2]) if survey[0] else None

    @property
    def latest(self) -> tuple[int, ...]:
        """The greatest value of each coordinate of the times."""
        return tuple(self._time_survey[2::2])

    @property
    def earliest(self) -> tuple[int, ...]:
        """The least value of each coordinate of the times."""
        return tuple(self._time_survey[1::2])

    def same(self, other: Batch) -> bool:
        """Whether another batch, of the same columns and sort key, holds the same rows and weights."""
        schema = self.schema
        return self.rows == other.rows and bool(
            km.same_batches(self.tables, self.lens, other.tables, other.lens, schema.columns, schema.node_count)
        )

    # ------------------------------------------------------------------ building

    @staticmethod
    def empty(sort_key: SortKey) -> Batch:
        return Batch(sort_key, ())

    @staticmethod
    def of(given: SortedChunks) -> Batch:
        """A batch of chunks that are sorted and consolidated already."""
        sort_key, chunks, weight_survey, time_survey = given
        batch = Batch.__new__(Batch)  # skips __init__ for speed: called for every small sort of a tick
        batch.sort_key, batch.description, batch.chunks = sort_key, None, tuple(chunks)
        batch.rows = chunks[0].rows if len(chunks) == 1 else sum([c.rows for c in chunks])
        if weight_survey is not None:
            attributes = batch.__dict__
            attributes["_survey"], attributes["_time_survey"] = weight_survey, time_survey
        return batch

    @staticmethod
    def from_chunk(sort_key: SortKey, chunk: Chunk) -> Batch:
        """Sort and consolidate one imported chunk, of any number of rows."""
        rows = chunk.rows
        if rows == 0:
            return Batch.empty(sort_key)
        if rows > sort_batch.MAX_SORT_ROWS:
            pieces = [
                Batch.from_chunk(sort_key, chunk.slice(at, min(sort_batch.MAX_SORT_ROWS, rows - at)))
                for at in range(0, rows, sort_batch.MAX_SORT_ROWS)
            ]
            return merge(pieces)
        return Batch.of(sort_batch.sort_chunk(sort_key, chunk))

    @staticmethod
    def from_arrow(data: pa.RecordBatch | pa.Table, sort_key: SortKey | None = None, weights: Any = None) -> Batch:
        """Sort and consolidate Arrow rows. `weights` are int64 (one per row), or None for 1 each."""
        if sort_key is None:
            sort_key = SortKey(Schema(data.schema))
        schema = sort_key.schema
        if weights is not None:
            weights = _checked_weights(weights, data.num_rows)
        parts = [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
        if len(parts) == 1:
            arrays = conform(schema, parts[0].schema, parts[0].columns)
            return _from_arrays(sort_key, arrays, data.num_rows, weights)
        whole = data.combine_chunks()
        pieces = []
        at = 0
        for part in whole.to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]:
            end = at + part.num_rows
            part_weights = None if weights is None else weights[at:end]
            pieces.append(_from_arrays(sort_key, conform(schema, part.schema, part.columns), end - at, part_weights))
            at = end
        return merge(pieces)

    @staticmethod
    def from_timed_arrow(
        data: pa.RecordBatch | pa.Table, times: Any, sort_key: SortKey | None = None, weights: Any = None
    ) -> Batch:
        """Sort and consolidate Arrow rows that have times: times[c] is coordinate c of every row's time."""
        if sort_key is None:
            sort_key = SortKey(Schema(data.schema))
        schema = sort_key.schema
        table = pa.table(data).combine_chunks()
        checked = None if weights is None else _checked_weights(weights, table.num_rows)
        pieces = []
        at = 0
        for part in table.to_batches():
            end = at + part.num_rows
            arrays = conform(schema, part.schema, part.columns)
            chunk = import_arrays(schema, arrays, part.num_rows, None if checked is None else checked[at:end])
            pieces.append(Batch.from_chunk(sort_key, chunk.with_times(pad_times(times, at, end))))
            at = end
        return merge(pieces) if pieces else Batch.empty(sort_key)

    def sorted_by(self, sort_key: SortKey) -> Batch:
        """The same rows, sorted by another key."""
        if sort_key is self.sort_key:
            return self
        hashed = not self.sort_key.order
        pieces = [Batch.of(sort_batch.sort_chunk(sort_key, chunk, hashed)) for chunk in self.chunks]
        return merge(pieces) if pieces else Batch.empty(sort_key)

    # ------------------------------------------------------------------ reading

    def weights(self) -> Int64s:
        """The weight of each row; a read-only view of the batch where it has one chunk."""
        if len(self.chunks) == 1:
            weights: Int64s = self.chunks[0].lane(nd.WEIGHT)
        elif self.chunks:
            weights = np.concatenate([c.lane(nd.WEIGHT) for c in self.chunks])
        else:
            weights = np.empty(0, np.int64)
        weights.setflags(write=False)
        return weights

    def to_arrow(self, weights: str | None = None) -> pa.Table:
        """The rows, in batch order, over the same memory; `weights` names a column to add with their weights."""
        schema = self.schema.arrow if weights is None else self.schema.weighted(weights)
        return pa.Table.from_batches([c.record_batch(schema, weights is not None) for c in self.chunks], schema)

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
        return Batch(self.sort_key, chunks)

    def nbytes(self) -> int:
        """Bytes of memory that this batch keeps alive, shared with others or not."""
        return sum(c.nbytes() for c in self.chunks)

    def with_weights(self, weights: Int64s) -> Batch:
        """The same rows with other weights, none of them zero; columns and hashes are shared."""
        weights = np.array(_checked_weights(weights, self.rows))
        chunks = []
        at = 0
        for chunk in self.chunks:
            lane = np.ascontiguousarray(weights[at : at + chunk.rows])
            changed = chunk.slice(0, chunk.rows)
            changed.keep = (chunk, lane)
            line = changed.nodes()[nd.WEIGHT]
            line[nd.DATA], line[nd.START], line[nd.MASK] = lane.ctypes.data, 0, -1
            chunks.append(changed)
            at += chunk.rows
        return self._share(Batch(self.sort_key, chunks), "_time_survey", "fences", "index")

    def with_description(self, description: Any) -> Batch:
        """The same rows under another description."""
        batch = Batch(self.sort_key, self.chunks, description)
        return self._share(batch, "_survey", "_time_survey", "fences", "index")

    def _share(self, batch: Batch, *names: str) -> Batch:
        """`batch`, which has the same rows, with those of the lazy attributes `names` that this one has computed."""
        for name in names:
            if name in self.__dict__:
                batch.__dict__[name] = self.__dict__[name]
        return batch

    def at_time(self, time: Sequence[int], description: Any = None) -> Batch:
        """The same rows, all at this time; none of them may occur twice."""
        times = np.zeros(nd.TIMES, np.int64)
        times[: len(time)] = time
        batch = Batch(self.sort_key, [c.at_time(times) for c in self.chunks], description)
        self._share(batch, "_survey", "fences", "index")
        batch.__dict__["_time_survey"] = survey_of_one_time(times.tolist())
        return batch

    def select(self, pos: Int64s, weights: Int64s | None = None) -> Batch:
        """The rows at these positions (chunk << ROW_BITS | row), which must rise, with these weights or their own."""
        if weights is None:
            weights = self.weights_at(pos)
        one = int(bool((weights == 1).all()))
        own_key, time = self.sort_key.own_key, self.time
        if time is None:
            chunks = gather_timed(self.schema, own_key, self.tables, pos, weights, one, times_at(self.tables, pos))
        else:
            chunks = gather_chunks(self.schema, own_key, self.tables, pos, weights, one, np.array(time))
        return Batch(self.sort_key, chunks)

    def weights_at(self, pos: Int64s) -> Int64s:
        """The weights of the rows at these positions."""
        out = int64s(len(pos))
        kp.weights_at(self.tables, pos, out)
        return out


def _from_arrays(sort_key: SortKey, arrays: Sequence[pa.Array], rows: int, weights: Int64s | None) -> Batch:
    return Batch.from_chunk(sort_key, import_arrays(sort_key.schema, arrays, rows, weights))


def _checked_weights(weights: Any, rows: int) -> Int64s:
    """Weights as kernels take them: one int64 for each row, none of them -2**63, which has no negative."""
    array = np.asarray(weights)
    if array.shape != (rows,):
        raise SchemaError(f"{rows} rows need as many weights; given an array of shape {array.shape}")
    if rows and array.dtype.kind not in "iu":
        raise SchemaError(f"weights are integers; given {array.dtype}")
    if rows and (int(array.min()) < -INT64_MAX or (array.dtype.kind == "u" and int(array.max()) > INT64_MAX)):
        raise WeightOverflowError(f"weights lie between {-INT64_MAX} and {INT64_MAX}; nothing was applied")
    return np.ascontiguousarray(array, np.int64)


def merge(batches: Sequence[Batch], since: Sequence[int] = ()) -> Batch:
    """The sum of batches of one sort key, with times advanced to `since`."""
    inputs = [b for b in batches if b.rows]
    if len(inputs) <= 1:
        if not inputs or not since:
            return inputs[0] if inputs else batches[0]
        only, time = inputs[0], inputs[0].time
        if time is not None:
            return only if advance_time(time, since) == time else only.at_time(advance_time(time, since))
        if all(t >= s for t, s in zip(only.earliest, since, strict=False)):
            return only
    return Batch.of(merge_batches.merge_chunks(inputs, since))
