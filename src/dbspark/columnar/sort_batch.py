"""Sorting: chunks of rows in any order become the chunks of a batch, sorted by a sort key and consolidated.

Flat rows at one time are the common case and take two kernel calls (`kernels.sort.sort_rows`): `plan` hashes and sorts
the rows in scratch memory and returns the size of the result, `fill` writes the result into an arena of that size.
Rows with nested columns or with several times take one kernel call each to hash, sort, consolidate and gather them.

Scratch memory for a plan is allocated once per thread and reused, up to `PLAN_SCRATCH_BYTES`: allocating and faulting
it in for each small tick would cost more than sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from dbspark.columnar import sort_key as hashing
from dbspark.columnar.chunk import CHUNK_ROWS, NO_TIME, Chunk, check_plan, gather_chunks, gather_timed
from dbspark.columnar.memory import Int64s, ThreadScratch, UInt64s, allocate, int64s, uint64s
from dbspark.columnar.row_times import NO_TIME_COORDINATES, SURVEY_OF_NO_TIME, survey_of_one_time, time_bounds
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import SortKey
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.merge import consolidate as km
from dbspark.kernels.merge import merge_timed as kt
from dbspark.kernels.sort import sort_rows as ka
from dbspark.kernels.sort.radix_sort import sort_hashes

MAX_SORT_ROWS: Final = 1 << 21
"""Rows that are sorted at once; more are sorted in pieces of this size and merged."""
PLAN_SCRATCH_BYTES: Final = 1 << 20
"""Scratch memory that each thread keeps for plans; for a larger plan memory is allocated each time."""

PLAN_SCRATCH: Final = ThreadScratch(PLAN_SCRATCH_BYTES)
PLAN_INFO: Final = Struct(f"{ka.INFO_WORDS}q")
"""The head of a plan: the number of rows, then the statistics that `kernels.sort.sort_rows` writes about them."""


class SortedChunks(NamedTuple):
    """Chunks sorted by a sort key and consolidated, and the surveys of weights and times, if they are known."""

    sort_key: SortKey
    chunks: Sequence[Chunk]
    weight_survey: Sequence[int] | None = None
    time_survey: list[int] | None = None


def plan_scratch(schema: Schema, rows: int, more: int = 0) -> Any:
    """Scratch memory for a plan of `rows` rows, and `more` bytes."""
    needed = more + 8 * (ka.words_before_rows(schema.columns, schema.node_count) + ka.WORDS_PER_ROW * rows)
    return PLAN_SCRATCH.buffer if needed <= PLAN_SCRATCH_BYTES else allocate(needed)


def rows_in_thread_scratch(schema: Schema, more: int) -> int:
    """The number of rows for whose plan, and `more` bytes, the scratch memory of a thread suffices."""
    return (PLAN_SCRATCH_BYTES - more - 8 * ka.words_before_rows(schema.columns, schema.node_count)) // (
        8 * ka.WORDS_PER_ROW
    )


def chunk_of_plan(sort_key: SortKey, scratch: Any, at: int, arena: Any) -> SortedChunks:
    """The chunk that `fill` has written into an arena, by the plan that begins `at` bytes into scratch memory."""
    info = PLAN_INFO.unpack_from(scratch, at)
    times = info[4 : ka.WEIGHT_SURVEY]
    time_survey = SURVEY_OF_NO_TIME if times == NO_TIME_COORDINATES else survey_of_one_time(times)
    return SortedChunks(
        sort_key, (Chunk(sort_key.schema, info[0], arena, None),), info[ka.WEIGHT_SURVEY :], time_survey
    )


def sort_chunk(sort_key: SortKey, chunk: Chunk, hashed: bool = False) -> SortedChunks:
    """Sort and consolidate a chunk. `hashed`: its HASH lane holds row hashes already."""
    schema, rows = sort_key.schema, chunk.rows
    if schema.nested or not rows:
        return _sort_general(sort_key, chunk, hashed)
    before = ka.words_before_rows(schema.columns, schema.node_count)
    scratch = plan_scratch(schema, rows)
    spec, at = sort_key.kernel_spec_address, scratch.address
    size = ka.plan(spec, int(hashed), hashing._mask_word, chunk.table, rows, CHUNK_ROWS, at)
    if size == ka.SEVERAL_TIMES:
        return _sort_general(sort_key, chunk, hashed)
    if size > 0:
        arena = allocate(size)
        ka.fill(spec, rows, at, arena.address)
        return chunk_of_plan(sort_key, scratch, 0, arena)
    info = PLAN_INFO.unpack_from(scratch)
    n = info[0]
    if n == 0:
        return SortedChunks(sort_key, ())
    check_plan(info)
    # The rows do not fit into one chunk: the plan stays valid, and the chunks are gathered one by one.
    pos = np.frombuffer(scratch, np.int64, n, 8 * (before + 2 * rows))
    weights = np.frombuffer(scratch, np.int64, n, 8 * (before + 3 * rows))
    tables = np.frombuffer(scratch, np.int64, 1, 8 * ka.INFO_WORDS)
    gathered = pos, weights, info[2], np.array(info[4 : ka.WEIGHT_SURVEY], np.int64)
    return SortedChunks(sort_key, gather_chunks(schema, sort_key.own_key, tables, *gathered))


def sort_timed_chunks(
    sort_key: SortKey, chunks: Sequence[Chunk], times: Sequence[int], since: Sequence[int] = ()
) -> SortedChunks:
    """Sort and consolidate flat chunks together. Chunk i is at time (times[i],), advanced to `since`."""
    schema, count = sort_key.schema, sum([chunk.rows for chunk in chunks])
    owners, tables, time = [], [], np.zeros(nd.TIMES, np.int64)
    for chunk, tick in zip(chunks, times, strict=True):
        time[0] = tick
        stamped = chunk.at_time(time)
        table, words = stamped.nodes(), sort_key.words(chunk)
        keys = sort_key.keys(chunk, words)
        _set_hash_lanes(sort_key, table, words, keys)
        owners.append((stamped, words, keys))  # keeps alive what the node tables address
        tables.append(stamped.table)
    lens, info = np.array([chunk.rows for chunk in chunks], np.int64), np.empty(5, np.int64)
    pos, weights, row_times = int64s(count), int64s(count), int64s(nd.TIMES * count).reshape(nd.TIMES, count)
    addresses = np.array(tables, np.int64)
    kt.merge_by_sorting(
        addresses, lens, time_bounds(since), schema.columns, schema.node_count, pos, weights, row_times, info
    )  # fmt: skip
    check_plan(info)
    n, ones, one_time = int(info[0]), int(info[2]), int(info[4])
    gathered = addresses, pos[:n], weights[:n], ones
    if one_time and n:
        only_time = np.ascontiguousarray(row_times[:, 0])
        return SortedChunks(sort_key, gather_chunks(schema, sort_key.own_key, *gathered, only_time))
    return SortedChunks(sort_key, gather_timed(schema, sort_key.own_key, *gathered, row_times[:, :n]))


def sort_hashed_chunk(sort_key: SortKey, chunk: Chunk, words: UInt64s, keys: UInt64s) -> SortedChunks:
    """Sort and consolidate a chunk of any columns and times; `words` and `keys` are its HASH and KEY lanes."""
    rows = chunk.rows
    schema = sort_key.schema
    table = np.array(chunk.nodes())  # a copy, because the chunk may be shared and its hash lanes are set below
    _set_hash_lanes(sort_key, table, words, keys)
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
            at, keys, words, order, schema.columns, schema.node_count, time_bounds(), pos, weights, times, info
        )
        check_plan(info)
        n = int(info[0])
        timed = pos[:n], weights[:n], int(info[2]), times[:, :n]
        return SortedChunks(sort_key, gather_timed(schema, sort_key.own_key, tables, *timed))
    km.consolidate(at, keys, words, order, schema.columns, schema.node_count, pos, weights, info)
    check_plan(info)
    n = int(info[0])
    time = np.array([chunk.lane(nd.TIME + c)[0] for c in range(nd.TIMES)]) if rows else NO_TIME
    gathered = pos[:n], weights[:n], int(info[2]), time
    return SortedChunks(sort_key, gather_chunks(schema, sort_key.own_key, tables, *gathered))


def _sort_general(sort_key: SortKey, chunk: Chunk, hashed: bool) -> SortedChunks:
    """Sort and consolidate a chunk with nested columns or several times."""
    words = chunk.lane(nd.HASH) if hashed and not sort_key.order else sort_key.words(chunk)
    return sort_hashed_chunk(sort_key, chunk, words, sort_key.keys(chunk, words))


def _set_hash_lanes(sort_key: SortKey, table: Int64s, words: UInt64s, keys: UInt64s) -> None:
    """Point the hash lanes of a node table, which nobody else reads yet, to these words."""
    for node, lane in ((nd.HASH, words), (nd.KEY, keys)):
        table[node, nd.DATA], table[node, nd.START], table[node, nd.MASK] = lane.ctypes.data, 0, -1
    table[nd.HASH, nd.CHILD] = sort_key.order_address
