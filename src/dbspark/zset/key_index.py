"""`KeyIndex`: a Z-set arranged by some of its columns, as batches: look-up of keys, and merge join.

The batches of its spine are sorted by the hash of the key columns, so looking up a key is a search and a join is a
merge of two sorted sequences. An index is immutable, so its consolidated batch is computed once and never outdated.
`zset.IndexedZSet` adds the methods that take or return a `ZSet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, Schema, SortKey, merge
from dbspark.columnar.chunk import Chunk, check_plan, gather_chunks, import_arrays
from dbspark.columnar.memory import Int64s, int64s
from dbspark.columnar.rows import encode_rows, row_normaliser
from dbspark.errors import SchemaError
from dbspark.kernels.lookup import probe as kp
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge import merge_join as kj
from dbspark.trace.spine import Spine
from dbspark.zset.config import ZSetConfig

JOIN_ROWS: Final = 1 << 16
"""Pairs in one batch of a join, so that the product of one frequent key is never in memory as a whole."""


class KeyIndex:
    """Rows with weights, arranged by key columns."""

    __slots__ = ("config", "spine")

    def __init__(self, spine: Spine, config: ZSetConfig) -> None:
        self.spine = spine
        self.config = config

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

    # ------------------------------------------------------------------ reading

    def distinct_keys(self) -> Batch:
        """The distinct keys, each with the sum of the weights of its rows."""
        columns = list(self._key_columns)
        keys = self.spine.consolidated().to_arrow().select(columns)
        return Batch.from_arrow(keys, SortKey(self.schema.select(columns)))

    def rows_of(self, key: Sequence[Any]) -> Batch:
        """All rows of one key."""
        key_schema = self.schema.select(list(self._key_columns))
        row = row_normaliser(key_schema)(key)
        chunk = import_arrays(key_schema, encode_rows(key_schema, [row]), 1, None)
        _, pos = self._probe(self.spine.batches, chunk, _key_hashes(chunk))
        return self._select(pos)

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
        """(row of the probe chunk, position) for every row of `batches` that has the key of a row of the probe
        chunk."""
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

    def _join_sort_key(self, other: KeyIndex, suffix: str) -> SortKey:
        mine, theirs = list(self._key_columns), list(other._key_columns)
        if [self.schema.types[c] for c in mine] != [other.schema.types[c] for c in theirs]:
            both = f"{_key_types(self.schema, mine)} and {_key_types(other.schema, theirs)}"
            raise SchemaError(f"the keys differ in type: {both}; cast one of them")
        left = [c for c in range(self.schema.columns) if c not in mine]
        right = [c for c in range(other.schema.columns) if c not in theirs]
        fields = [self.schema.arrow.field(c) for c in (*mine, *left)]
        taken = {f.name for f in fields}
        for c in right:
            field = other.schema.arrow.field(c)
            fields.append(field.with_name(field.name + suffix) if field.name in taken else field)
        return SortKey(Schema(pa.schema(fields)), range(len(mine)))

    def join_batches(self, other: KeyIndex, suffix: str = "_right") -> Iterator[Batch]:
        """The join, a bounded number of rows at a time."""
        sort_key = self._join_sort_key(other, suffix)
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
            columns = _gather_columns(left, pos_left[:n], [*self._key_columns, *rest_left])
            columns += _gather_columns(right, pos_right[:n], rest_right)
            rows = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
            yield Batch.from_arrow(rows, sort_key, weights[:n])


def _key_types(schema: Schema, columns: Sequence[int]) -> str:
    return ", ".join(f"{schema.names[c]} {schema.types[c]}" for c in columns)


def _gather_columns(batch: Batch, pos: Int64s, columns: Sequence[int]) -> list[pa.Array]:
    """Some columns of the rows at `pos`, as Arrow arrays."""
    chunks = gather_chunks(batch.schema, 0, batch.tables, pos, np.empty(0, np.int64), 1)
    arrays = [chunk.arrays() for chunk in chunks]
    return [pa.concat_arrays([a[c] for a in arrays]) if len(arrays) > 1 else arrays[0][c] for c in columns]


def _key_hashes(chunk: Chunk) -> Any:
    from dbspark.columnar.sort_key import hash_rows

    return hash_rows(chunk, np.arange(nd.LANES, nd.LANES + chunk.schema.columns))
