"""`ZSet`: rows with integer weights, with one API for all backends.

A Z-set is an immutable value: every operation returns a new one. Weights are int64, and the weights of equal rows are
added. Rows of weight zero do not exist: not in iteration, counts, equality or files.

    >>> from dbspark.zset import ZSet
    >>> z = ZSet.from_rows([(1, "a"), (2, "b"), (1, "a")], "id BIGINT, name STRING")
    >>> z.weight((1, "a")), z.count, z.total_weight
    (2, 2, 3)
    >>> (z - ZSet.from_rows([(2, "b")], z.schema)).weight((2, "b"))
    0
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, Schema, SchemaLike, SortKey
from dbspark.columnar.memory import INT64_MAX, Int64s
from dbspark.columnar.rows import Row, decode_arrays, row_normaliser
from dbspark.errors import SchemaError
from dbspark.kernels.memory import layout as nd
from dbspark.trace.spine import Spine
from dbspark.zset.adaptive import AdaptivePayload
from dbspark.zset.arrow_input import as_table, split_weight
from dbspark.zset.config import ZSetConfig, current
from dbspark.zset.key_index import KeyIndex
from dbspark.zset.payload import BatchPayload, FastPayload, HashPayload, Payload, equal_payloads, spine_config
from dbspark.zset.weights import scale_batch, weight_overflow


class ColumnFunction:
    """A function on columns instead of rows; make one with `columns`."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[pa.RecordBatch], Any]) -> None:
        self.fn = fn


def columns(fn: Callable[[pa.RecordBatch], Any]) -> ColumnFunction:
    """Mark a function for `filter` or `map_keys` as one that takes a whole `pyarrow.RecordBatch`.

    For `filter` it returns a boolean array, for `map_keys` a record batch, or a dict of arrays.

    >>> import pyarrow.compute as pc
    >>> z = ZSet.from_rows([(1,), (5,)], "a BIGINT")
    >>> list(z.filter(columns(lambda b: pc.greater(b["a"], 3))))
    [((5,), 1)]
    """
    return ColumnFunction(fn)


RowFunction = Callable[[Row], Any]


class ZSet:
    """An immutable Z-set over rows of one schema."""

    __slots__ = ("_normalise_row", "_payload")

    _payload: Payload
    _normalise_row: Callable[[Any], Row]

    def __init__(self, schema: SchemaLike, config: ZSetConfig | None = None) -> None:
        """An empty Z-set."""
        sort_key = SortKey(Schema.of(schema))
        self._payload = _empty(sort_key, current() if config is None else config)
        self._normalise_row = row_normaliser(sort_key.schema)

    @staticmethod
    def _of(payload: Payload, form: Callable[[Any], Row]) -> ZSet:
        z: ZSet = object.__new__(ZSet)
        z._payload = payload
        z._normalise_row = form
        return z

    # ------------------------------------------------------------------ making

    @staticmethod
    def empty(schema: SchemaLike, config: ZSetConfig | None = None) -> ZSet:
        return ZSet(schema, config)

    @staticmethod
    def singleton(row: Any, weight: int, schema: SchemaLike, config: ZSetConfig | None = None) -> ZSet:
        return ZSet(schema, config).add(row, weight)

    @staticmethod
    def from_rows(
        rows: Iterable[Any],
        schema: SchemaLike,
        weights: Iterable[int] | None = None,
        config: ZSetConfig | None = None,
    ) -> ZSet:
        """From tuples, dicts or Spark Rows, each of weight 1 or of the weight given for it."""
        return ZSet(schema, config).add_many(rows, weights)

    @staticmethod
    def from_arrow(
        data: Any, weight: str | None = None, schema: SchemaLike | None = None, config: ZSetConfig | None = None
    ) -> ZSet:
        """From anything that speaks Arrow; `weight` names the column of weights, if there is one.

        >>> ZSet.from_arrow(pa.table({"a": [1, 1, 2], "w": [1, 2, -1]}), weight="w").to_arrow(weight="w").num_rows
        2
        """
        table, weights = split_weight(as_table(data), weight)
        sort_key = SortKey(Schema(table.schema) if schema is None else Schema.of(schema))
        batch = Batch.from_arrow(table, sort_key, weights)
        empty = ZSet(sort_key.schema, config)
        return ZSet._of(empty._payload.plus_batches((batch,)), empty._normalise_row)

    @staticmethod
    def from_batch(batch: Batch, config: ZSetConfig | None = None) -> ZSet:
        """From a batch, sharing its memory."""
        empty = ZSet(batch.schema, config)
        batch = batch.sorted_by(empty._payload.sort_key)
        return ZSet._of(empty._payload.plus_batches((batch,)), empty._normalise_row)

    # ------------------------------------------------------------------ properties

    @property
    def schema(self) -> Schema:
        return self._payload.sort_key.schema

    @property
    def config(self) -> ZSetConfig:
        return self._payload.config

    @property
    def form(self) -> str:
        """The form the rows are in now: `small`, `memtable`, `trace`, or that of a single backend."""
        return self._payload.form

    @property
    def count(self) -> int:
        """Number of distinct rows."""
        return self._payload.count()

    @property
    def total_weight(self) -> int:
        """Sum of the weights."""
        return self._payload.total_weight()

    def is_empty(self) -> bool:
        return self.count == 0

    def weight(self, row: Any) -> int:
        """The weight of a row; 0 if it is not there."""
        return self._payload.weight(self._normalise_row(row))

    def __contains__(self, row: Any) -> bool:
        return self.weight(row) != 0

    def __iter__(self) -> Iterator[tuple[Row, int]]:
        """Pairs (row, weight), in no particular order."""
        return self._payload.items()

    def __bool__(self) -> bool:
        return not self.is_empty()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ZSet):
            return NotImplemented
        mine, theirs = self._payload, other._payload
        if mine is theirs:
            return True
        if other.schema.types != self.schema.types or other.schema.names != self.schema.names:
            return False
        if isinstance(mine, HashPayload) and isinstance(theirs, HashPayload):
            return mine.rows() == theirs.rows()
        return equal_payloads(mine, theirs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ZSet({self.count} rows, {self.config.backend}, {self.form}: {self.schema!r})"

    # ------------------------------------------------------------------ changing

    def add(self, row: Any, weight: int = 1) -> ZSet:
        """The Z-set with `weight` added to one row."""
        row = self._normalise_row(row)
        if type(weight) is not int or not -INT64_MAX <= weight <= INT64_MAX:
            weight = _checked_weight(weight, row)
        if weight == 0:
            return self
        z: ZSet = object.__new__(ZSet)
        z._payload = self._payload.add(row, weight)
        z._normalise_row = self._normalise_row
        return z

    def add_many(self, rows: Iterable[Any], weights: Iterable[int] | None = None) -> ZSet:
        """The Z-set with many rows added, each with weight 1 or the weight given for it."""
        if isinstance(rows, ZSet):
            return self + rows
        form = self._normalise_row
        summed: dict[Row, int] = {}
        if weights is None:
            for row in rows:
                row = form(row)
                summed[row] = summed.get(row, 0) + 1
        else:
            for row, weight in zip(rows, weights, strict=True):
                row = form(row)
                summed[row] = summed.get(row, 0) + _checked_weight(weight, row)
        return self._plus_rows(summed)

    def _plus_rows(self, rows: dict[Row, int]) -> ZSet:
        for row, weight in rows.items():
            if not -INT64_MAX <= weight <= INT64_MAX:
                raise weight_overflow(row)
        rows = {row: weight for row, weight in rows.items() if weight}
        return self._with(self._payload.plus_rows(rows)) if rows else self

    def _with(self, payload: Payload) -> ZSet:
        return ZSet._of(payload, self._normalise_row)

    def union(self, other: ZSet) -> ZSet:
        """The sum: weights are added row by row."""
        if type(other) is not ZSet or other._normalise_row is not self._normalise_row:
            self._check_schema(other)
        z: ZSet = object.__new__(ZSet)
        z._payload = self._payload.plus(other._payload)
        z._normalise_row = self._normalise_row
        return z

    def __add__(self, other: ZSet) -> ZSet:
        return self.union(other) if isinstance(other, ZSet) else NotImplemented

    def union_many(self, others: Iterable[ZSet]) -> ZSet:
        """The sum of this and all other Z-sets, merged at once."""
        others = list(others)
        for other in others:
            self._check_schema(other)
        if isinstance(self._payload, HashPayload):
            total: ZSet = self
            for other in others:
                total = total + other
            return total
        return self._with(self._payload.plus_many([part for other in others for part in other._payload.pieces()]))

    def __sub__(self, other: ZSet) -> ZSet:
        return self.union(other.negate()) if isinstance(other, ZSet) else NotImplemented

    def negate(self) -> ZSet:
        """All weights with the opposite sign."""
        return self.scale(-1)

    __neg__ = negate

    def scale(self, factor: int) -> ZSet:
        """All weights times an integer."""
        factor = _checked_weight(factor, None)
        if factor == 1:
            return self
        payload = self._payload
        if factor == 0:
            return self._with(_empty(payload.sort_key, payload.config))
        if isinstance(payload, HashPayload):
            rows = {row: weight * factor for row, weight in payload.rows().items()}
            return self._with(_empty(payload.sort_key, payload.config))._plus_rows(rows)
        return self._from_parts([scale_batch(part, factor) for part in payload.disjoint()])

    __mul__ = scale
    __rmul__ = scale

    def filter(self, keep: RowFunction | ColumnFunction) -> ZSet:
        """The rows for which `keep` holds."""
        payload = self._payload
        if isinstance(payload, HashPayload) and not isinstance(keep, ColumnFunction):
            rows = {row: weight for row, weight in payload.rows().items() if keep(row)}
            return self._with(HashPayload(payload.sort_key, payload.config, rows))
        return self._from_parts([self._filtered(part, keep) for part in payload.disjoint()])

    def _filtered(self, part: Batch, keep: RowFunction | ColumnFunction) -> Batch:
        found = []
        for c, chunk in enumerate(part.chunks):
            if isinstance(keep, ColumnFunction):
                mask = _boolean_mask(
                    keep.fn(pa.RecordBatch.from_arrays(chunk.arrays(), schema=self.schema.arrow)), chunk.rows
                )
            else:
                rows = decode_arrays(self.schema, chunk.arrays())
                mask = np.fromiter((bool(keep(row)) for row in rows), bool, chunk.rows)
            found.append(np.flatnonzero(mask) + (c << nd.ROW_BITS))
        pos: Int64s = np.concatenate(found) if found else np.empty(0, np.int64)
        return part if len(pos) == part.rows else part.select(pos)

    def map_keys(self, fn: RowFunction | ColumnFunction, schema: SchemaLike | None = None) -> ZSet:
        """Every row replaced by `fn` of it; weights of rows that become equal are summed.

        A row function gives rows of `schema` (this Z-set's own, if left out). A function on columns brings its own
        schema unless one is given.
        """
        payload = self._payload
        if isinstance(fn, ColumnFunction):
            return self._mapped_columns(fn.fn, None if schema is None else Schema.of(schema))
        target = ZSet(self.schema if schema is None else schema, payload.config)
        form = target._normalise_row
        summed: dict[Row, int] = {}
        for row, weight in payload.items():
            new = form(fn(row))
            summed[new] = summed.get(new, 0) + weight
        return target._plus_rows(summed)

    def _mapped_columns(self, fn: Callable[[pa.RecordBatch], Any], schema: Schema | None) -> ZSet:
        pieces: list[tuple[pa.Table, Int64s]] = []
        for chunk in self._payload.chunks():
            result = fn(pa.RecordBatch.from_arrays(chunk.arrays(), schema=self.schema.arrow))
            piece = as_table(result)
            if piece.num_rows != chunk.rows:
                raise SchemaError(
                    f"map_keys was given {chunk.rows} rows and returned {piece.num_rows}; it maps each to one"
                )
            pieces.append((piece, chunk.lane(nd.WEIGHT)))
        if not pieces:
            result = fn(
                pa.RecordBatch.from_arrays([pa.array([], t) for t in self.schema.types], schema=self.schema.arrow)
            )
            pieces.append((as_table(result), np.empty(0, np.int64)))
        table = pa.concat_tables([piece for piece, _ in pieces])
        weights = np.concatenate([w for _, w in pieces])
        sort_key = SortKey(Schema(table.schema) if schema is None else schema)
        target = ZSet(sort_key.schema, self.config)
        return target._with(target._payload.plus_batches((Batch.from_arrow(table, sort_key, weights),)))

    def _from_parts(self, parts: Sequence[Batch]) -> ZSet:
        """A Z-set of the same schema and backend from batches."""
        payload = self._payload
        return self._with(_empty(payload.sort_key, payload.config).plus_batches(parts))

    def _check_schema(self, other: ZSet) -> None:
        if not isinstance(other, ZSet):
            raise TypeError(f"expected a ZSet, not {type(other).__name__}")
        if other._payload.sort_key is not self._payload.sort_key:
            mine, theirs = self.schema, other.schema
            raise SchemaError(f"Z-sets of different schemas cannot be added: {mine!r} and {theirs!r}")

    # ------------------------------------------------------------------ reading in bulk

    def arranged_view(self) -> ArrangedView:
        """The rows in order, for a reader that will also read the successors of this Z-set.

        While the view is open, successors of this Z-set flush sooner. Use it in a `with` block.
        """
        return ArrangedView(self._payload)

    def freeze(self) -> ZSet:
        """The same value as one sorted batch: the best form for reading again and again."""
        payload = self._payload
        if isinstance(payload, HashPayload):
            return self
        return self._from_parts((payload.batch(),))

    def batch(self) -> Batch:
        """All rows as one sorted batch; computed once."""
        return self._payload.batch()

    def scan(self) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        """All rows, block by block, with their weights: the cheapest way to read everything once."""
        for chunk in self._payload.chunks():
            yield pa.RecordBatch.from_arrays(chunk.arrays(), schema=self.schema.arrow), chunk.lane(nd.WEIGHT)

    def to_arrow(self, weight: str | None = None) -> pa.Table:
        """The rows in order. With `weight`, a column of that name holds the weights; without it, a row of weight 2
        appears twice, and a negative weight is an error."""
        batch = self._payload.batch()
        table = batch.to_arrow()
        weights = batch.weights()
        if weight is not None:
            if weight in self.schema.names:
                raise SchemaError(f"the rows have a column {weight!r} already; choose another name for the weights")
            return table.append_column(pa.field(weight, pa.int64(), nullable=False), pa.array(weights))
        if batch.rows and int(weights.min()) < 0:
            raise SchemaError("some weights are negative, so this is no set of rows; name a column for the weights")
        if batch.rows and int(weights.max()) > 1:
            return table.take(pa.array(np.repeat(np.arange(batch.rows), weights)))
        return table

    def group_by(self, *key: str) -> IndexedZSet:
        """The rows indexed by some of their columns."""
        return IndexedZSet.from_zset(self, key)


class IndexedZSet(KeyIndex):
    """An immutable Z-set arranged by key columns, for grouping and joining."""

    __slots__ = ()

    @staticmethod
    def from_zset(z: ZSet, key: Sequence[str]) -> IndexedZSet:
        """Arrange a Z-set by some of its columns."""
        if not key:
            raise SchemaError("name at least one column to index by")
        sort_key = SortKey(z.schema, [z.schema.index(k) for k in key])
        spine = Spine(sort_key, (), spine_config(z.config))
        return IndexedZSet(spine.insert_all(p.sorted_by(sort_key) for p in z._payload.parts()), z.config)

    def to_zset(self) -> ZSet:
        """The same rows without the index."""
        return ZSet.from_batch(self.spine.consolidated(), self.config)

    def __add__(self, other: IndexedZSet | ZSet) -> IndexedZSet:
        if other.schema is not self.schema:
            raise SchemaError(f"Z-sets of different schemas cannot be added: {self.schema!r} and {other.schema!r}")
        parts = other.spine.batches if isinstance(other, IndexedZSet) else other._payload.parts()
        sort_key = self.spine.sort_key
        return IndexedZSet(self.spine.insert_all(p.sorted_by(sort_key) for p in parts), self.config)

    def negate(self) -> IndexedZSet:
        batches = tuple(scale_batch(b, -1) for b in self.spine.batches)
        return IndexedZSet(Spine(self.spine.sort_key, batches, self.spine.config), self.config)

    __neg__ = negate

    def __sub__(self, other: IndexedZSet) -> IndexedZSet:
        return self + other.negate()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexedZSet):
            return NotImplemented
        same = self.spine.sort_key is other.spine.sort_key
        return same and self.count == other.count and (self - other).count == 0

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IndexedZSet({self.count} rows by {', '.join(self.key)}: {self.schema!r})"

    def keys(self) -> list[Row]:
        """The distinct keys as Python rows."""
        return [row for row, _ in ZSet.from_batch(self.distinct_keys(), self.config)]

    def group(self, *key: Any) -> ZSet:
        """The rows of one key, with all columns."""
        return ZSet.from_batch(self.rows_of(key), self.config)

    def join(self, other: IndexedZSet, suffix: str = "_right") -> IndexedZSet:
        """The product of the rows of equal keys: key columns, then the left's others, then the right's others.

        Weights multiply. A NULL key equals a NULL key here; SQL's joins drop NULL keys before they index.
        """
        sort_key = self._join_sort_key(other, suffix)
        spine = Spine(sort_key, (), self.spine.config)
        for batch in self.join_batches(other, suffix):
            spine = spine.insert(batch)
        return IndexedZSet(spine, self.config)


class ArrangedView:
    """The rows of a Z-set in order; counts as a subscriber of its lineage until closed."""

    __slots__ = ("_open", "_payload", "batch")

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._open = True
        payload.subscribe(1)
        self.batch = payload.arranged()

    def __enter__(self) -> ArrangedView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop being a subscriber; what was read stays valid."""
        if self._open:
            self._open = False
            self._payload.subscribe(-1)

    def __len__(self) -> int:
        return self.batch.rows

    def __iter__(self) -> Iterator[tuple[Row, int]]:
        """Pairs (row, weight) in the order of the batch, the same in every process."""
        for chunk in self.batch.chunks:
            rows = decode_arrays(self.batch.schema, chunk.arrays())
            yield from zip(rows, chunk.lane(nd.WEIGHT).tolist(), strict=True)


def _checked_weight(weight: Any, row: Row | None) -> int:
    """A weight or factor as a Python integer."""
    try:
        exact = operator.index(weight)
    except TypeError:
        raise SchemaError(f"a weight is an integer, not {weight!r} ({type(weight).__name__})") from None
    if not -INT64_MAX <= exact <= INT64_MAX:
        raise weight_overflow(row)
    return exact


def _empty(sort_key: SortKey, config: ZSetConfig) -> Payload:
    if config.backend == "Adaptive":
        return AdaptivePayload.empty(sort_key, config)
    if config.backend == "HashMap":
        return HashPayload(sort_key, config, {})
    if config.backend == "FastZSet":
        return FastPayload(sort_key, config)
    return BatchPayload(sort_key, config)


def _boolean_mask(result: Any, rows: int) -> Any:
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, pa.Array):
        result = result.fill_null(False) if result.null_count else result
        result = result.to_numpy(zero_copy_only=False)
    mask = np.asarray(result, bool)
    if mask.shape != (rows,):
        raise SchemaError(f"a filter on columns must give one boolean for each of the {rows} rows, not {mask.shape}")
    return mask
