"""Reading a spine: the rows of many keys at once, the first or last rows of keys in order, snapshots and updates.

One kernel call reads all batches of a spine, those of merges in progress included. `probe` is the hot path of every
operator: it finds positions; weights, times and columns are gathered only when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.batch import merge
from dbspark.columnar.chunk import Chunk, check_plan, gather_chunks, gather_columns, gather_timed, import_arrays
from dbspark.columnar.conform import conform
from dbspark.columnar.memory import Int64s, UInt64s, int64s
from dbspark.columnar.merge_batches import MergePlan, run_merge
from dbspark.columnar.row_times import time_bounds
from dbspark.columnar.rows import encode_rows, row_normaliser
from dbspark.columnar.sort_key import hash_rows
from dbspark.errors import SchemaError
from dbspark.kernels.lookup import probe as kp
from dbspark.kernels.lookup.first_rows import first_rows_of_keys
from dbspark.kernels.lookup.row_lookup import INT64_MIN
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge import merge_timed as kt
from dbspark.lazy import Lazy
from dbspark.trace.spine import LAST_TIME, Spine


class Keys:
    """Keys to look up: columns of a chunk and their hashes. Usable for every trace with keys of these types."""

    __slots__ = ("chunk", "hashes", "nodes")

    def __init__(self, chunk: Chunk, hashes: UInt64s, nodes: Int64s) -> None:
        self.chunk = chunk
        self.hashes = hashes
        self.nodes = nodes

    def __len__(self) -> int:
        return self.chunk.rows

    @staticmethod
    def of(sort_key: SortKey, data: Any) -> Keys:
        """Keys from Arrow columns in the order of the sort key's key columns, or from Python rows."""
        columns = key_columns(sort_key)
        schema = sort_key.schema.select(columns)
        if isinstance(data, pa.Table | pa.RecordBatch):
            table = pa.table(data).combine_chunks()
            arrays = conform(schema, table.schema, [c.combine_chunks() for c in table.columns])
            rows = table.num_rows
        else:
            normalise = row_normaliser(schema)
            normalised = [normalise(row if isinstance(row, tuple | list) else (row,)) for row in data]
            arrays, rows = encode_rows(schema, normalised), len(normalised)
        chunk = import_arrays(schema, arrays, rows, None)
        nodes = np.arange(nd.LANES, nd.LANES + schema.columns, dtype=np.int64)
        return Keys(chunk, hash_rows(chunk, nodes), nodes)

    @staticmethod
    def in_chunk(chunk: Chunk, columns: Sequence[int]) -> Keys:
        """Some columns of a chunk as keys."""
        nodes = np.array([nd.LANES + c for c in columns], np.int64)
        return Keys(chunk, hash_rows(chunk, nodes), nodes)


def key_columns(sort_key: SortKey) -> list[int]:
    return list(range(sort_key.schema.columns)) if sort_key.key is None else list(sort_key.key)


class FoundRows:
    """Rows that a lookup found: for each the index of its key (`which`) and its position (`pos`)."""

    __slots__ = ("__dict__", "pos", "spine", "which")

    def __init__(self, spine: Spine, which: Int64s, pos: Int64s, weights: Int64s | None = None) -> None:
        self.spine = spine
        self.which = which
        self.pos = pos
        if weights is not None:
            self.__dict__["weights"] = weights

    def __len__(self) -> int:
        return len(self.pos)

    @Lazy
    def weights(self) -> Int64s:
        out = int64s(len(self.pos))
        kp.weights_at(self.spine.sources[0], self.pos, out)
        return out

    def times(self, coordinate: int = 0) -> Int64s:
        """One coordinate of the times."""
        out = int64s(len(self.pos))
        kt.times_at(self.spine.sources[0], self.pos, coordinate, out)
        return out

    def chunks(self) -> list[Chunk]:
        """Copies of the rows, in the order of `pos`, with their hashes but without weights."""
        sort_key = self.spine.sort_key
        none = np.empty(0, np.int64)
        return gather_chunks(sort_key.schema, sort_key.own_key, self.spine.sources[0], self.pos, none, 1)

    def columns(self, columns: Sequence[int] | None = None) -> list[pa.Array]:
        """Some columns of the rows as Arrow arrays, in the order of `pos`."""
        schema = self.spine.sort_key.schema
        selected = range(schema.columns) if columns is None else columns
        if not len(self.pos):
            return [pa.array([], schema.types[c]) for c in selected]
        parts = [chunk.arrays() for chunk in self.chunks()]
        return [parts[0][c] if len(parts) == 1 else pa.concat_arrays([p[c] for p in parts]) for c in selected]

    def only(self, mask: Any) -> FoundRows:
        """The rows that a mask selects."""
        return FoundRows(self.spine, self.which[mask], self.pos[mask], self.weights[mask])

    def batch(self) -> Batch:
        """The rows, each once, with the sum of its weights over all times."""
        tables, _, _, starts = self.spine.sources
        sort_key = self.spine.sort_key
        parts = []
        pos = np.unique(self.pos)  # ascending positions of one batch are in the order of the batch
        cuts = np.searchsorted(pos >> nd.ROW_BITS, starts)
        for b in range(len(starts) - 1):
            mine = pos[cuts[b] : cuts[b + 1]]
            if len(mine):
                weights = int64s(len(mine))
                kp.weights_at(tables, mine, weights)
                one = int(bool((weights == 1).all()))
                times = np.empty((nd.TIMES, len(mine)), np.int64)
                for c in range(nd.TIMES):
                    kt.times_at(tables, mine, c, times[c])
                chunks = gather_timed(sort_key.schema, sort_key.own_key, tables, mine, weights, one, times)
                parts.append(Batch(sort_key, chunks))
        return merge(parts, LAST_TIME).at_time(()) if parts else Batch.empty(sort_key)


def ranges_of(spine: Spine, keys: Keys, walk: bool = False) -> tuple[Int64s, int]:
    """The range of each key in each batch as (chunk, row, count), and the number of rows in all ranges.

    With `walk` the keys have to be in ascending order, and keys and batches are scanned side by side (a merge join).
    """
    ranges = int64s(len(keys.hashes) * len(spine.batches) * 3).reshape(len(keys.hashes), len(spine.batches), 3)
    if walk:
        spine.stats.record_lookups(len(keys.hashes))
        return ranges, kp.walk_ranges(*spine.sources, keys.hashes, ranges)
    return ranges, kp.probe_directory(spine.directory, keys.hashes, ranges)


def probe(spine: Spine, keys: Keys) -> FoundRows:
    """Every row, in any batch, that has one of the keys. A row that a later batch retracts is found in both batches."""
    return found_rows(spine, keys, *ranges_of(spine, keys))


def found_rows(spine: Spine, keys: Keys, ranges: Int64s, total: int) -> FoundRows:
    """The rows in the ranges (`total` rows) whose key equals the probed key, and not only in its hash."""
    sources = spine.sources
    which, pos = int64s(total), int64s(total)
    nodes = max(spine.sort_key.schema.node_count, keys.chunk.schema.node_count)
    here = spine.sort_key.key_nodes
    n = kp.expand_ranges(sources[0], sources[1], ranges, keys.chunk.table, keys.nodes, here, nodes, which, pos)
    return FoundRows(spine, which[:n], pos[:n])


def first_rows_in_order(
    spine: Spine, keys: Keys, limit: int, last: bool = False, retain: Callable[[FoundRows], FoundRows] | None = None
) -> FoundRows:
    """The first, or last, `limit` rows of each key in the order of the sort key, with weights added up over all times.

    With `retain`, which filters rows, all rows are read before the limit applies.
    """
    if retain is not None:
        found = retain(first_rows_in_order(spine, keys, 1 << 62, last))
        rank = np.arange(len(found)) - np.searchsorted(found.which, found.which)
        return found.only(rank < limit)
    if not spine.sort_key.order:
        raise SchemaError(
            f"{spine.sort_key!r} has no order; use a sort key with order columns to read the rows of a key in order"
        )
    return first_rows_unordered(spine, keys, limit, last)


def first_rows_unordered(spine: Spine, keys: Keys, limit: int, last: bool = False) -> FoundRows:
    """Like `first_rows_in_order` for a sort key without order columns: for keys that have one row, or a limit that no
    key reaches."""
    return first_rows_in_ranges(spine, keys, *ranges_of(spine, keys), limit, last)


NO_CHECKS = np.empty((0, 3), np.int64)
"""Checks of a lookup (`kernels.lookup.ranges`): none besides equal keys."""


def first_rows_in_ranges(
    spine: Spine, keys: Keys, ranges: Int64s, total: int, limit: int, last: bool = False,
    checks: Any = NO_CHECKS, least: int = INT64_MIN,
) -> FoundRows:  # fmt: skip
    """The first rows of each key within its ranges (`total` rows in all), among those with a weight of at least `least`
    that satisfy `checks`."""
    schema = spine.sort_key.schema
    capacity = min(total, limit * len(keys))
    which, pos, weights = int64s(capacity), int64s(capacity), int64s(capacity)
    nodes = max(schema.node_count, keys.chunk.schema.node_count)
    n = first_rows_of_keys(
        spine.sources[0], spine.sources[1], ranges, keys.chunk.table, keys.nodes, spine.sort_key.key_nodes,
        schema.columns, nodes, limit, int(last), checks, least, which, pos, weights,
    )  # fmt: skip
    if n == OVERFLOW:
        check_plan(np.array((OVERFLOW,), np.int64))
    return FoundRows(spine, which[:n], pos[:n], weights[:n])


def snapshot(batches: Sequence[Batch], sort_key: SortKey, time: Sequence[int]) -> Batch:
    """The Z-set at a time: all updates at or before it, summed."""
    return _within(batches, sort_key, time_bounds(since=time, upto=time)).at_time(())


def updates_between(batches: Sequence[Batch], sort_key: SortKey, after: Sequence[int] | None, upto: Sequence[int],
            since: Sequence[int] = ()) -> Batch:  # fmt: skip
    """The updates at or before `upto` and not at or before `after`, with their times."""
    return _within(batches, sort_key, time_bounds(since=since, upto=upto, after=after))


def distinct_times(batch: Batch) -> list[tuple[int, ...]]:
    """Every time that occurs in a batch, once."""
    times = np.concatenate([np.stack([c.lane(nd.TIME + i) for i in range(nd.TIMES)], 1) for c in batch.chunks])
    return [tuple(t) for t in np.unique(times, axis=0).tolist()]


def _within(batches: Sequence[Batch], sort_key: SortKey, within: Int64s) -> Batch:
    nonempty = [b for b in batches if b.rows]
    return Batch(sort_key, run_merge(MergePlan(nonempty, within=within)) if nonempty else ())


def columns_of(found: FoundRows, columns: Sequence[int]) -> list[pa.Array]:
    """Some columns of found rows as Arrow arrays, in the order of `pos`."""
    return gather_columns(found.spine.sort_key.schema, found.spine.sources[0], found.pos, columns)
