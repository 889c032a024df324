"""`Batch`: rows with weights, sorted, consolidated, immutable.

A batch is a sequence of chunks, strictly increasing in (key hash, row hash, values, time) from the first row of the
first chunk to the last of the last: no row occurs twice at one time, no weight is zero. Chunks bound what one step of
a merge copies, and let a merge give back its inputs piece by piece.

Most batches are of one time, or of none, which is a time of zeros; then no row occurs twice at all, and merges take
the short way. `description` is for whoever gives rows times (`dbspark.trace`); here it is only carried along.

Nothing here loops over rows in Python; everything is a plan (positions and weights) followed by a gather.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from struct import Struct, pack_into
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dbspark.columnar import sort_key as hashing
from dbspark.columnar.chunk import CHUNK_ROWS, NO_TIME, Chunk, check_plan, gather_chunks, gather_timed, import_arrays
from dbspark.columnar.conform import conform
from dbspark.columnar.memory import Int64s, UInt64s, allocate, int64s, uint64s, zeros
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import SortKey
from dbspark.errors import SchemaError, WeightOverflowError
from dbspark.kernels.lookup import index as ks
from dbspark.kernels.lookup import probe as kp
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.merge import consolidate as km
from dbspark.kernels.merge import merge_small as kc
from dbspark.kernels.merge import merge_timed as kt
from dbspark.kernels.merge.split import choose_split, split_at
from dbspark.kernels.sort import sort_rows as ka
from dbspark.kernels.sort.radix_sort import sort_hashes
from dbspark.lazy import Lazy

INT64_MAX = (1 << 63) - 1
BUILD_ROWS = 1 << 21
"""Unsorted rows that are sorted in one go; more are sorted in pieces and merged."""
_PARALLEL_ROWS = 1 << 17
"""Merges from this many rows on use two threads."""
_INDEXED = 8
"""Rows below which a batch can have no index."""
_DESK = 1 << 20
"""Bytes of working memory that a thread keeps for small plans."""
_MANY = 4
"""So many batches of several times are merged by sorting their rows: walking them looks at each batch for each row."""


Place = tuple[int, int, int, int]
"""What kernels are told of an index (`kernels.lookup.index`)."""


class Index(NamedTuple):
    """Where the keys of a batch are (`kernels.lookup.index`)."""

    words: Any
    """Kept for it."""
    place: Place

    @staticmethod
    def empty(rows: int) -> Index:
        """One for so many rows, of which it has none yet."""
        words = zeros(1 << (rows - 1).bit_length() - 2)
        return Index.at(words.ctypes.data, rows, words)

    @staticmethod
    def at(address: int, rows: int, kept: Any) -> Index:
        """One of so many rows, whose words are at an address."""
        return Index(kept, (address, 66 - (rows - 1).bit_length(), 0, 0))


NO_PLACE: Place = (0, 0, 0, 0)
"""What kernels take where a batch has no index."""
_NO_INDEX = Index(np.empty(0, np.uint64), NO_PLACE)


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
        """How many rows each chunk has."""
        return np.array([c.rows for c in self.chunks], np.int64)

    @Lazy
    def tables(self) -> Int64s:
        """Where the node table of each chunk is."""
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
        """The first key hash of each chunk."""
        out = np.empty(len(self.chunks), np.uint64)
        kp.first_keys(self.tables, out)
        return out

    @Lazy
    def index(self) -> Index:
        """Where its keys are, in two to four bytes for each row."""
        if self.rows < _INDEXED or int(self.lens.max()) > 1 << ks.INDEX_ROW_BITS:
            return _NO_INDEX
        index = Index.empty(self.rows)
        ks.fill_index(self.tables, self.lens, 0, index.place[1], index.words)
        return index

    def with_index(self, index: Index | None) -> Batch:
        """This batch, which has been given an index, or is not there for long enough to be worth one."""
        self.__dict__["index"] = index or _NO_INDEX
        return self

    def part_of(self, whole: Batch, chunks: int, rows: int) -> Batch:
        """This batch, which is another one without its first chunks and some rows of the next, with its index."""
        index = whole.__dict__.get("index")
        if index is not None and index.place[0]:
            address, shift, gone, first = index.place
            # The first chunk of the whole may have lost rows of its own.
            place = address, shift, gone + chunks, rows if chunks else first + rows
            self.__dict__["index"] = Index(index.words, place)
        return self

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

    @Lazy
    def _survey(self) -> Sequence[int]:
        info = np.empty(4, np.int64)
        km.survey_weights(self.tables, self.lens, info)
        survey: list[int] = info.tolist()
        return survey

    @Lazy
    def _time_survey(self) -> list[int]:
        info = np.zeros(1 + 2 * nd.TIMES, np.int64)
        kt.survey_times(self.tables, self.lens, info)
        survey: list[int] = info.tolist()
        return survey

    @property
    def time(self) -> tuple[int, ...] | None:
        """The one time of all rows, None where they have several."""
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
        """Whether another batch of this arrangement's columns holds the same rows and weights."""
        schema = self.schema
        return self.rows == other.rows and bool(
            km.same_batches(self.tables, self.lens, other.tables, other.lens, schema.columns, schema.node_count)
        )

    # ------------------------------------------------------------------ building

    @staticmethod
    def empty(sort_key: SortKey) -> Batch:
        return Batch(sort_key, ())

    @staticmethod
    def from_chunk(sort_key: SortKey, chunk: Chunk) -> Batch:
        """Sort and consolidate one imported chunk."""
        rows = chunk.rows
        if rows == 0:
            return Batch.empty(sort_key)
        if rows > BUILD_ROWS:
            pieces = [
                Batch.from_chunk(sort_key, chunk.slice(at, min(BUILD_ROWS, rows - at)))
                for at in range(0, rows, BUILD_ROWS)
            ]
            return merge(pieces)
        return arrange_chunk(sort_key, chunk)

    @staticmethod
    def from_arrow(data: pa.RecordBatch | pa.Table, sort_key: SortKey | None = None, weights: Any = None) -> Batch:
        """Sort and consolidate Arrow rows. `weights` are int64 (one per row), or None for 1 each."""
        if sort_key is None:
            sort_key = SortKey(Schema(data.schema))
        schema = sort_key.schema
        if weights is not None:
            weights = _checked(weights, data.num_rows)
        parts = [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
        if len(parts) == 1:
            arrays = conform(schema, parts[0].schema, parts[0].columns)
            return _from_arrays(sort_key, arrays, data.num_rows, weights)
        whole = data.combine_chunks()
        pieces = []
        at = 0
        for part in whole.to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]:
            end = at + part.num_rows
            some = None if weights is None else weights[at:end]
            pieces.append(_from_arrays(sort_key, conform(schema, part.schema, part.columns), end - at, some))
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
        some = None if weights is None else _checked(weights, table.num_rows)
        pieces = []
        at = 0
        for part in table.to_batches():
            end = at + part.num_rows
            arrays = conform(schema, part.schema, part.columns)
            chunk = import_arrays(schema, arrays, part.num_rows, None if some is None else some[at:end])
            pieces.append(Batch.from_chunk(sort_key, chunk.with_times(padded(times, at, end))))
            at = end
        return merge(pieces) if pieces else Batch.empty(sort_key)

    def rearranged(self, sort_key: SortKey) -> Batch:
        """The same rows ordered by another key."""
        if sort_key is self.sort_key:
            return self
        pieces = [arrange_chunk(sort_key, chunk, not self.sort_key.order) for chunk in self.chunks]
        return merge(pieces) if pieces else Batch.empty(sort_key)

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

    def to_arrow(self, weights: str | None = None) -> pa.Table:
        """The rows, in batch order, over the same memory; with their weights in a column of that name, if given."""
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
        return self._still(Batch(self.sort_key, chunks), "_time_survey", "fences", "index")

    def described(self, description: Any) -> Batch:
        """The same rows under another description."""
        return self._still(Batch(self.sort_key, self.chunks, description), "_survey", "_time_survey", "fences", "index")

    def _still(self, batch: Batch, *names: str) -> Batch:
        """A batch of the same rows, of which some of what is known of them stays known."""
        for name in names:
            if name in self.__dict__:
                batch.__dict__[name] = self.__dict__[name]
        return batch

    def at_time(self, time: Sequence[int], description: Any = None) -> Batch:
        """The same rows, of which none occurs twice, at another time."""
        times = np.zeros(nd.TIMES, np.int64)
        times[: len(time)] = time
        batch = Batch(self.sort_key, [c.at_time(times) for c in self.chunks], description)
        self._still(batch, "_survey", "fences", "index")
        batch.__dict__["_time_survey"] = _one_time(times.tolist())
        return batch

    def select(self, pos: Int64s, weights: Int64s | None = None) -> Batch:
        """The rows at these positions, which must be in batch order."""
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
        out = int64s(len(pos))
        kp.weights_at(self.tables, pos, out)
        return out


def _one_time(time: Sequence[int]) -> list[int]:
    """What is known of the times of rows that have one."""
    return [1] + [t for t in time for _ in range(2)]


_AT_NONE = (0,) * nd.TIMES
_NO_TIME = _one_time(_AT_NONE)


def padded(times: Any, begin: int, end: int) -> Any:
    """Rows begin … end-1 of given coordinates, and zeros for the others."""
    given = [np.asarray(t, np.int64)[begin:end] for t in times]
    return given + [np.zeros(1, np.int64)] * (nd.TIMES - len(given))


def times_at(tables: Int64s, pos: Int64s) -> Any:
    """The times of the rows at some positions, one line for each coordinate."""
    out = int64s(nd.TIMES * len(pos)).reshape(nd.TIMES, len(pos))
    for c in range(nd.TIMES):
        kt.times_at(tables, pos, c, out[c])
    return out


def _from_arrays(sort_key: SortKey, arrays: Sequence[pa.Array], rows: int, weights: Int64s | None) -> Batch:
    return Batch.from_chunk(sort_key, import_arrays(sort_key.schema, arrays, rows, weights))


def _checked(weights: Any, rows: int) -> Int64s:
    """Weights as kernels want them: one int64 for each row, none of them the least, which has no opposite."""
    given = np.asarray(weights)
    if given.shape != (rows,):
        raise SchemaError(f"{rows} rows need as many weights; given an array of shape {given.shape}")
    if rows and given.dtype.kind not in "iu":
        raise SchemaError(f"weights are integers; given {given.dtype}")
    if rows and (int(given.min()) < -INT64_MAX or (given.dtype.kind == "u" and int(given.max()) > INT64_MAX)):
        raise WeightOverflowError(f"weights lie between {-INT64_MAX} and {INT64_MAX}; nothing was applied")
    return np.ascontiguousarray(given, np.int64)


NEVER = -INT64_MAX - 1
"""Before every time."""


def bounds(since: Sequence[int] = (), upto: Sequence[int] = (), after: Sequence[int] | None = None) -> Int64s:
    """What `kernels.merge.merge_timed` takes: times advanced to `since`, up to `upto`, and not up to `after`."""
    out = np.zeros((4, nd.TIMES), np.int64)
    out[0], out[1], out[2] = NEVER, INT64_MAX, INT64_MAX
    out[0, : len(since)] = since
    out[1, : len(upto)] = upto
    if after is not None:
        out[2, : len(after)] = after
        out[3, 0] = 1
    return out


class _Desk(threading.local):
    """Working memory of a thread, for small plans."""

    def __init__(self) -> None:
        self.scratch = allocate(_DESK)


desk = _Desk()
_INFO = Struct(f"{ka.INFO_WORDS}q")


def scratch_of(schema: Schema, rows: int, more: int = 0) -> Any:
    """Working memory for a plan of so many rows (`kernels.sort.sort_rows`), and so many bytes more."""
    needed = more + 8 * (ka.words_before_rows(schema.columns, schema.node_count) + ka.WORDS_PER_ROW * rows)
    return desk.scratch if needed <= _DESK else allocate(needed)


def rows_on_desk(schema: Schema, more: int) -> int:
    """How many rows there may be in a plan so that a thread has the memory for it at hand (`desk`)."""
    return (_DESK - more - 8 * ka.words_before_rows(schema.columns, schema.node_count)) // (8 * ka.WORDS_PER_ROW)


def planned(sort_key: SortKey, scratch: Any, at: int, arena: Any) -> Batch:
    """What a plan, so many bytes from the beginning of working memory, has put into an arena."""
    info = _INFO.unpack_from(scratch, at)
    batch = surveyed(sort_key, Chunk(sort_key.schema, info[0], arena, None), info[ka.WEIGHT_SURVEY :])
    times = info[4 : ka.WEIGHT_SURVEY]
    if times != _AT_NONE:
        batch.__dict__["_time_survey"] = _one_time(times)
    return batch


def arrange_chunk(sort_key: SortKey, chunk: Chunk, hashed: bool = False) -> Batch:
    """Sort and consolidate a chunk. `hashed`: its HASH lane holds row hashes already."""
    schema, rows = sort_key.schema, chunk.rows
    if schema.nested or not rows:
        return _arranged_nested(sort_key, chunk, hashed)
    before = ka.words_before_rows(schema.columns, schema.node_count)
    scratch = scratch_of(schema, rows)
    told, at = sort_key.told_at, scratch.address
    size = ka.plan(told, int(hashed), hashing._mask_word, chunk.table, rows, CHUNK_ROWS, at)
    if size == ka.SEVERAL_TIMES:
        return _arranged_nested(sort_key, chunk, hashed)
    if size > 0:
        arena = allocate(size)
        ka.fill(told, rows, at, arena.address)
        return planned(sort_key, scratch, 0, arena)
    info = _INFO.unpack_from(scratch)
    n = info[0]
    if n == 0:
        return Batch.empty(sort_key)
    check_plan(info)
    pos = np.frombuffer(scratch, np.int64, n, 8 * (before + 2 * rows))
    weights = np.frombuffer(scratch, np.int64, n, 8 * (before + 3 * rows))
    tables = np.frombuffer(scratch, np.int64, 1, 8 * ka.INFO_WORDS)
    some = pos, weights, info[2], np.array(info[4 : ka.WEIGHT_SURVEY], np.int64)
    return Batch(sort_key, gather_chunks(schema, sort_key.own_key, tables, *some))


def arrange_chunks(
    sort_key: SortKey, chunks: Sequence[Chunk], times: Sequence[int], since: Sequence[int] = ()
) -> Batch:
    """Sort and consolidate flat chunks, each of one time of one coordinate, which is advanced to `since`: as one."""
    schema, count = sort_key.schema, sum([chunk.rows for chunk in chunks])
    kept, tables, time = [], [], np.zeros(nd.TIMES, np.int64)
    for chunk, tick in zip(chunks, times, strict=True):
        time[0] = tick
        stamped = chunk.at_time(time)
        table, words = stamped.nodes(), sort_key.words(chunk)
        keys = sort_key.keys(chunk, words)
        _with_hashes(sort_key, table, words, keys)
        kept.append((stamped, words, keys))
        tables.append(stamped.table)
    lens, info = np.array([chunk.rows for chunk in chunks], np.int64), np.empty(5, np.int64)
    pos, weights, found = int64s(count), int64s(count), int64s(nd.TIMES * count).reshape(nd.TIMES, count)
    given = np.array(tables, np.int64)
    kt.merge_by_sorting(given, lens, bounds(since), schema.columns, schema.node_count, pos, weights, found, info)
    check_plan(info)
    n, ones, same = int(info[0]), int(info[2]), int(info[4])
    some = given, pos[:n], weights[:n], ones
    if same and n:
        return Batch(sort_key, gather_chunks(schema, sort_key.own_key, *some, np.ascontiguousarray(found[:, 0])))
    return Batch(sort_key, gather_timed(schema, sort_key.own_key, *some, found[:, :n]))


def _with_hashes(sort_key: SortKey, table: Int64s, words: UInt64s, keys: UInt64s) -> None:
    """A node table of one's own with the hashes of its rows."""
    for node, lane in ((nd.HASH, words), (nd.KEY, keys)):
        table[node, nd.DATA], table[node, nd.START], table[node, nd.MASK] = lane.ctypes.data, 0, -1
    table[nd.HASH, nd.CHILD] = sort_key.order_at


def _arranged_nested(sort_key: SortKey, chunk: Chunk, hashed: bool) -> Batch:
    """The same for nested columns, and for rows of several times."""
    words = chunk.lane(nd.HASH) if hashed and not sort_key.order else sort_key.words(chunk)
    return arrange(sort_key, chunk, words, sort_key.keys(chunk, words))


def surveyed(sort_key: SortKey, chunk: Chunk, survey: Sequence[int]) -> Batch:
    """A chunk of no time that is in order, and what is known of its weights."""
    batch = Batch.__new__(Batch)
    batch.sort_key, batch.description, batch.chunks, batch.rows = sort_key, None, (chunk,), chunk.rows
    known = batch.__dict__
    known["_survey"], known["_time_survey"] = survey, _NO_TIME
    return batch


def arrange(sort_key: SortKey, chunk: Chunk, words: UInt64s, keys: UInt64s) -> Batch:
    """Sort and consolidate a chunk whose hashes are known."""
    rows = chunk.rows
    schema = sort_key.schema
    table = np.array(chunk.nodes())  # a copy: the chunk may be shared, its hash lanes are ours
    _with_hashes(sort_key, table, words, keys)
    at = table.ctypes.data
    order = int64s(rows)
    sort_hashes(keys, words, order, uint64s(2 * rows), int64s(rows))
    pos = int64s(rows)
    weights = int64s(rows)
    info = np.empty(5, np.int64)
    tables = np.array((at,), np.int64)
    if table[nd.TIME : nd.LANES, nd.MASK].any():
        times = int64s(nd.TIMES * rows).reshape(nd.TIMES, rows)
        kt.consolidate_timed(
            at, keys, words, order, schema.columns, schema.node_count, bounds(), pos, weights, times, info
        )
        check_plan(info)
        n = int(info[0])
        some = pos[:n], weights[:n], int(info[2]), times[:, :n]
        return Batch(sort_key, gather_timed(schema, sort_key.own_key, tables, *some))
    km.consolidate(at, keys, words, order, schema.columns, schema.node_count, pos, weights, info)
    check_plan(info)
    n = int(info[0])
    time = np.array([chunk.lane(nd.TIME + c)[0] for c in range(nd.TIMES)]) if rows else NO_TIME
    rest = pos[:n], weights[:n], int(info[2]), time
    return Batch(sort_key, gather_chunks(schema, sort_key.own_key, tables, *rest))


class Plan:
    """A merge in progress over batches of one sort key: call `step` until `done`.

    The cursors say where each input stands; `remaining` gives the inputs without what has been read.

    Where every input is of one time and, with times advanced to `since`, all of the same, rows are distinct in each
    input and the kernels without times serve. Otherwise every row comes with its times.
    """

    __slots__ = (
        "ages",
        "batches",
        "bounds",
        "cursors",
        "done",
        "ends",
        "info",
        "lens",
        "read",
        "sort_key",
        "starts",
        "tables",
        "time",
    )  # fmt: skip

    def __init__(
        self,
        batches: Sequence[Batch],
        offsets: Sequence[int] | None = None,
        since: Sequence[int] = (),
        within: Int64s | None = None,
    ) -> None:
        """Merge batches, each from row `offset` of its first chunk on; only the times `within` bounds, if given."""
        self.bounds = bounds(since) if within is None else within
        self.time = _common_time(batches, since) if within is None else None
        self.sort_key = batches[0].sort_key
        self.ages = sorted(range(len(batches)), key=lambda i: len(batches[i]))  # the smallest first
        begins = [offsets[i] if offsets else 0 for i in self.ages]
        batches = [batches[i] for i in self.ages]
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
            self.cursors[s] = at, begins[s]
            at += len(batch.chunks)
            self.ends[s, 0] = at - 1
            self.ends[s, 1] = batch.lens[-1]
        self.info = np.empty(5, np.int64)
        self.done = False
        self.read = 0

    def step(self, limit: int) -> list[Chunk]:
        """Merge until at most `limit` rows are written (twice as many read)."""
        schema = self.sort_key.schema
        columns, nodes = schema.columns, schema.node_count
        info = self.info
        if self.time is None:
            return self._step_timed(limit)
        if len(self.batches) == 2:
            pos, weights = int64s(limit), int64s(limit)
            km.merge_two(self.tables, self.lens, self.cursors, self.ends, columns, nodes, limit, pos, weights, info)
            check_plan(info)
        else:
            stops, n = self._stops(limit)
            pos, weights = int64s(n), int64s(n)
            km.merge_ranges(
                self.tables, self.lens, self.cursors, stops, columns, nodes,
                uint64s(2 * n), int64s(2 * n), pos, weights, info,
            )  # fmt: skip
            check_plan(info)
            info[3] = np.array_equal(stops, self.ends)
        written, read, ones, done, _ = info.tolist()
        self.read += read
        self.done = bool(done)
        some = pos[:written], weights[:written], ones, np.array(self.time)
        return gather_chunks(schema, self.sort_key.own_key, self.tables, *some)

    def _stops(self, limit: int) -> tuple[Int64s, int]:
        """Cursors, the same row on one side of them in all inputs, and the rows before them: `limit` if possible."""
        stops = np.empty_like(self.cursors)
        return stops, choose_split(self.tables, self.lens, self.cursors, self.ends, limit, stops)

    def _step_timed(self, limit: int) -> list[Chunk]:
        schema, own_key = self.sort_key.schema, self.sort_key.own_key
        stops, n = self._stops(limit)
        pos, weights, times = int64s(n), int64s(n), int64s(nd.TIMES * n).reshape(nd.TIMES, n)
        kt.merge_timed(
            self.tables, self.lens, self.cursors, stops, self.bounds, schema.columns, schema.node_count,
            uint64s(2 * n), int64s(2 * n), pos, weights, times, self.info,
        )  # fmt: skip
        check_plan(self.info)
        n, read, ones, _, same = self.info.tolist()
        self.read += read
        self.done = np.array_equal(stops, self.ends)
        some = self.tables, pos[:n], weights[:n], ones
        if same and n:
            return gather_chunks(schema, own_key, *some, np.ascontiguousarray(times[:, 0]))
        return gather_timed(schema, own_key, *some, times[:, :n])

    def remaining(self) -> list[Batch]:
        """What has not been read yet of each input that has anything left."""
        return [b.slice(n) if n else b for b, n in zip(*self.unread(), strict=True)]

    def unread(self) -> tuple[tuple[Batch, ...], tuple[int, ...]]:
        """The inputs that have anything left, without the chunks that are read, and where to go on in the first.

        They come as they were given: the smallest are merged first, but who reads what is left wants the oldest first.
        """
        batches, offsets = [], []
        for s in sorted(range(len(self.batches)), key=self.ages.__getitem__):
            batch = self.batches[s]
            chunk, row = self.cursors[s].tolist()
            chunk -= self.starts[s]
            if row >= batch.chunks[chunk].rows:
                chunk, row = chunk + 1, 0
            if chunk < len(batch.chunks):
                left = Batch(self.sort_key, batch.chunks[chunk:]).part_of(batch, chunk, 0) if chunk else batch
                batches.append(left)
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
        split_at(self.tables, self.lens, self.cursors, self.ends, np.uint64(key_hash), np.uint64(0), out)
        return out


_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(1, thread_name_prefix="dbspark-merge")
    return _pool


def _common_time(batches: Sequence[Batch], since: Sequence[int]) -> tuple[int, ...] | None:
    """The one time that all rows of all batches have once they are advanced, if each batch is of one time."""
    found: tuple[int, ...] | None = None
    for batch in batches:
        time = batch.time
        if time is None:
            return None
        if since:
            time = advanced(time, since)
        if found is not None and time != found:
            return None
        found = time
    return found


def advanced(time: Sequence[int], since: Sequence[int]) -> tuple[int, ...]:
    """A time of as many coordinates as lanes, advanced to `since`."""
    return tuple(max(t, s) for t, s in zip(time, since, strict=False)) + tuple(time[len(since) :])


def merge(batches: Sequence[Batch], since: Sequence[int] = ()) -> Batch:
    """The sum of batches of one sort key, with times advanced to `since`."""
    some = [b for b in batches if b.rows]
    if len(some) <= 1:
        if not some or not since:
            return some[0] if some else batches[0]
        only, time = some[0], some[0].time
        if time is not None:
            return only if advanced(time, since) == time else only.at_time(advanced(time, since))
        if all(t >= s for t, s in zip(only.earliest, since, strict=False)):
            return only
    sort_key = some[0].sort_key
    if any(b.sort_key is not sort_key for b in some):
        raise SchemaError(f"batches of different arrangements cannot be merged: {[b.sort_key for b in some]}")
    if not since and not sort_key.schema.nested:
        few = _merged_few(sort_key, some)
        if few is not None:
            return few
    plan = Plan(some, since=since)
    if plan.time is None and len(some) >= _MANY and sum(b.rows for b in some) <= BUILD_ROWS:
        return Batch(sort_key, _sorted(plan))
    if plan.time is None or sum(b.rows for b in some) < _PARALLEL_ROWS:
        return Batch(sort_key, run(plan))
    low, high = plan, Plan(some, since=since)
    middle = low.split(1 << 63)
    low.restrict(None, middle)
    high.restrict(middle, None)
    upper = _threads().submit(run, high)
    chunks = run(low)
    return Batch(sort_key, chunks + upper.result())


def _merged_few(sort_key: SortKey, batches: Sequence[Batch]) -> Batch | None:
    """The sum of a few small batches of one time, in few calls; None where they are not."""
    time = batches[0]._time_survey
    lines, largest, rows = [], 0, 0
    for i, batch in enumerate(batches):
        if len(batch.chunks) != 1 or not time[0] or (batch._time_survey is not time and batch._time_survey != time):
            return None
        lines.append((batch.chunks[0].table, batch.rows))
        rows += batch.rows
        if batch.rows >= lines[largest][1]:
            largest = i
    columns, count = sort_key.schema.columns, len(lines)
    scratch, needed = desk.scratch, kc.scratch_words(columns, count, rows) + 2 * count
    if 8 * needed > _DESK:
        return None
    lines.append(lines.pop(largest))
    begin = _DESK - 16 * count
    pack_into(f"{2 * count}q", scratch, begin, *[word for line in lines for word in line])
    told, at = sort_key.told_at, scratch.address
    size = kc.plan(told, at + begin, count, rows, at)
    info = _INFO.unpack_from(scratch)
    check_plan(info)
    if size < 0:
        return None
    if size == 0:
        return Batch.empty(sort_key)
    arena = allocate(size)
    kc.fill(told, count, rows, at, arena.address)
    merged = surveyed(sort_key, Chunk(sort_key.schema, info[0], arena, None), info[ka.WEIGHT_SURVEY :])
    merged.__dict__["_time_survey"] = time
    return merged


def _sorted(plan: Plan) -> list[Chunk]:
    """All that a plan for batches of several times gives, at once."""
    schema, info = plan.sort_key.schema, plan.info
    rows = int(plan.lens.sum())
    pos, weights, times = int64s(rows), int64s(rows), int64s(nd.TIMES * rows).reshape(nd.TIMES, rows)
    kt.merge_by_sorting(
        plan.tables, plan.lens, plan.bounds, schema.columns, schema.node_count, pos, weights, times, info
    )  # fmt: skip
    check_plan(info)
    n, ones = int(info[0]), int(info[2])
    return gather_timed(schema, plan.sort_key.own_key, plan.tables, pos[:n], weights[:n], ones, times[:, :n])


def run(plan: Plan) -> list[Chunk]:
    """All that a plan gives."""
    chunks: list[Chunk] = []
    while not plan.done:
        chunks += plan.step(CHUNK_ROWS)
    return chunks
