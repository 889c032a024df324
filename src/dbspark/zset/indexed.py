"""`IndexedZSet`: a Z-set arranged by some of its columns, for grouping and joining.

It is a spine of batches ordered by key, so looking up a key is a search and a join is a merge of two ordered
sequences. Like everything here it is a value; its consolidated form is computed once and belongs to that value, so a
changed Z-set never sees an old one's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, Schema, SortKey, merge
from dbspark.columnar.chunk import Chunk, check_plan, gather_chunks, import_arrays
from dbspark.columnar.memory import Int64s, int64s
from dbspark.columnar.rows import Row, encode_rows, row_normaliser
from dbspark.errors import SchemaError
from dbspark.kernels.lookup import probe as kp
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge import merge_join as kj
from dbspark.trace.spine import Spine
from dbspark.zset.config import ZSetConfig
from dbspark.zset.payload import scaled, spine_config
from dbspark.zset.zset import ZSet

JOIN_ROWS = 1 << 16
"""Pairs that a join produces at a time: one hot key never makes it hold the whole product."""


class IndexedZSet:
    """An immutable Z-set arranged by key columns."""

    __slots__ = ("config", "spine")

    def __init__(self, spine: Spine, config: ZSetConfig) -> None:
        self.spine = spine
        self.config = config

    @staticmethod
    def from_zset(z: ZSet, key: Sequence[str]) -> IndexedZSet:
        """Arrange a Z-set by some of its columns."""
        if not key:
            raise SchemaError("name at least one column to index by")
        sort_key = SortKey(z.schema, [z.schema.index(k) for k in key])
        spine = Spine(sort_key, (), spine_config(z.config))
        return IndexedZSet(spine.insert_all(p.sorted_by(sort_key) for p in z._payload.parts()), z.config)

    @property
    def schema(self) -> Schema:
        return self.spine.sort_key.schema

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.schema.names[c] for c in self._key_columns)

    @property
    def _key_columns(self) -> tuple[int, ...]:
        key = self.spine.sort_key.key
        return tuple(range(self.schema.columns)) if key is None else key

    @property
    def count(self) -> int:
        return self.spine.count()

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
        batches = tuple(scaled(b, -1) for b in self.spine.batches)
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

    # ------------------------------------------------------------------ reading

    def keys(self) -> list[Row]:
        """The distinct keys as Python rows."""
        columns = list(self._key_columns)
        names = self.schema.select(columns)
        found = Batch.from_arrow(self.spine.consolidated().to_arrow().select(columns), SortKey(names))
        return [row for row, _ in ZSet.from_batch(found, self.config)]

    def group(self, *key: Any) -> ZSet:
        """The rows of one key, whole."""
        columns = list(self._key_columns)
        key_schema = self.schema.select(columns)
        row = row_normaliser(key_schema)(key)
        chunk = import_arrays(key_schema, encode_rows(key_schema, [row]), 1, None)
        _, pos = self._probe(self.spine.batches, chunk, _key_hashes(chunk))
        return ZSet.from_batch(self._select(pos), self.config)

    def _select(self, pos: Int64s) -> Batch:
        tables, _, _, starts = self.spine.sources
        weights = int64s(len(pos))
        kp.weights_at(tables, pos, weights)
        parts = []
        for b in range(len(starts) - 1):  # positions of one batch are in its order
            mine = (pos >> nd.ROW_BITS >= starts[b]) & (pos >> nd.ROW_BITS < starts[b + 1])
            one = int(bool((weights[mine] == 1).all()))
            sort_key = self.spine.sort_key
            chunks = gather_chunks(self.schema, sort_key.own_key, tables, pos[mine], weights[mine], one)
            parts.append(Batch(sort_key, chunks))
        return merge(parts) if parts else Batch.empty(self.spine.sort_key)

    def _probe(self, batches: Sequence[Batch], probe: Chunk, hashes: Any) -> tuple[Int64s, Int64s]:
        """(probe row, position) of every row here whose key is that of a row of the probe chunk."""
        sources = self.spine.sources
        ranges = np.empty((len(hashes), len(batches), 3), np.int64)
        total = kp.probe_ranges(*sources, hashes, ranges)
        which, pos = int64s(total), int64s(total)
        here = self.spine.sort_key.key_nodes
        there = np.arange(nd.LANES, nd.LANES + len(here), dtype=np.int64)
        n = kp.expand_ranges(
            sources[0], sources[1], ranges, probe.table, there, here, self.schema.node_count, which, pos
        )
        return which[:n], pos[:n]

    # ------------------------------------------------------------------ joining

    def join(self, other: IndexedZSet, suffix: str = "_right") -> IndexedZSet:
        """The product of the rows of equal keys: key columns, then the left's others, then the right's others.

        Weights multiply. A NULL key equals a NULL key here; SQL's joins drop NULL keys before they index.
        """
        sort_key = self._joined(other, suffix)
        spine = Spine(sort_key, (), self.spine.config)
        for batch in self.join_batches(other, suffix):
            spine = spine.insert(batch)
        return IndexedZSet(spine, self.config)

    def _joined(self, other: IndexedZSet, suffix: str) -> SortKey:
        mine, theirs = list(self._key_columns), list(other._key_columns)
        if [self.schema.types[c] for c in mine] != [other.schema.types[c] for c in theirs]:
            both = f"{_typed(self.schema, mine)} and {_typed(other.schema, theirs)}"
            raise SchemaError(f"the keys differ in type: {both}; cast one of them")
        left = [c for c in range(self.schema.columns) if c not in mine]
        right = [c for c in range(other.schema.columns) if c not in theirs]
        fields = [self.schema.arrow.field(c) for c in (*mine, *left)]
        taken = {f.name for f in fields}
        for c in right:
            field = other.schema.arrow.field(c)
            fields.append(field.with_name(field.name + suffix) if field.name in taken else field)
        return SortKey(Schema(pa.schema(fields)), range(len(mine)))

    def join_batches(self, other: IndexedZSet, suffix: str = "_right") -> Iterator[Batch]:
        """The join, a bounded number of rows at a time."""
        sort_key = self._joined(other, suffix)
        schema = sort_key.schema
        left, right = self.spine.consolidated(), other.spine.consolidated()
        if not left.rows or not right.rows:
            return
        key_left, key_right = self.spine.sort_key.key_nodes, other.spine.sort_key.key_nodes
        rest_left = [c for c in range(self.schema.columns) if c not in self._key_columns]
        rest_right = [c for c in range(other.schema.columns) if c not in other._key_columns]
        state = np.zeros(8, np.int64)
        nodes = (self.schema.node_count, other.schema.node_count)
        while True:
            pos_left, pos_right, weights = int64s(JOIN_ROWS), int64s(JOIN_ROWS), int64s(JOIN_ROWS)
            n = kj.join_step(
                left.tables, left.lens, right.tables, right.lens, key_left, key_right, max(nodes),
                state, pos_left, pos_right, weights,
            )  # fmt: skip
            if n == OVERFLOW:
                check_plan(np.array((OVERFLOW,), np.int64))
            if n == 0:
                return
            columns = _taken(left, pos_left[:n], [*self._key_columns, *rest_left])
            columns += _taken(right, pos_right[:n], rest_right)
            rows = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
            yield Batch.from_arrow(rows, sort_key, weights[:n])


def _typed(schema: Schema, columns: Sequence[int]) -> str:
    return ", ".join(f"{schema.names[c]} {schema.types[c]}" for c in columns)


def _taken(batch: Batch, pos: Int64s, columns: Sequence[int]) -> list[pa.Array]:
    """Some columns of the rows at `pos`, as Arrow arrays."""
    chunks = gather_chunks(batch.schema, 0, batch.tables, pos, np.empty(0, np.int64), 1)
    arrays = [chunk.arrays() for chunk in chunks]
    return [pa.concat_arrays([a[c] for a in arrays]) if len(arrays) > 1 else arrays[0][c] for c in columns]


def _key_hashes(chunk: Chunk) -> Any:
    from dbspark.columnar.sort_key import hash_rows

    return hash_rows(chunk, np.arange(nd.LANES, nd.LANES + chunk.schema.columns))
