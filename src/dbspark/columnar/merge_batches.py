"""Merging: the sum of sorted batches, all at once (`merge_chunks`) or step by step (`MergePlan`).

All inputs have the same sort key. Where all rows of all inputs have the same time, kernels ignore times; otherwise they
read the time of each row.

| inputs | how | why |
|---|---|---|
| small, flat, of one chunk and of the same time | `_merge_small`: two kernel calls in scratch memory | few calls |
| of several times, `MIN_BATCHES_TO_SORT` or more | rows are sorted again | a merge compares all inputs for each row |
| `PARALLEL_MERGE_ROWS` rows and more | two halves by key hash, in two threads | kernels run without the GIL |
| any other | one `MergePlan`, step by step | |
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from struct import pack_into
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np

from dbspark.columnar.chunk import CHUNK_ROWS, Chunk, check_plan, gather_chunks, gather_timed
from dbspark.columnar.memory import Int64s, allocate, int64s, uint64s
from dbspark.columnar.row_times import advance_time, time_bounds
from dbspark.columnar.sort_batch import (
    MAX_SORT_ROWS,
    PLAN_INFO,
    PLAN_SCRATCH,
    PLAN_SCRATCH_BYTES,
    SortedChunks,
)
from dbspark.columnar.sort_key import SortKey
from dbspark.errors import SchemaError
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.merge import consolidate as km
from dbspark.kernels.merge import merge_small as kc
from dbspark.kernels.merge import merge_timed as kt
from dbspark.kernels.merge.split import choose_split, split_at
from dbspark.kernels.sort import sort_rows as ka

PARALLEL_MERGE_ROWS: Final = 1 << 17
"""Merges of this many rows and more use two threads."""
MIN_BATCHES_TO_SORT: Final = 4
"""This many batches of several times are merged by sorting their rows, if there are at most `MAX_SORT_ROWS`."""


class MergeInput(Protocol):
    """What merges need to know of a batch."""

    sort_key: SortKey
    chunks: tuple[Chunk, ...]
    rows: int

    @property
    def lens(self) -> Int64s: ...

    @property
    def tables(self) -> Int64s: ...

    @property
    def time(self) -> tuple[int, ...] | None: ...

    @property
    def _time_survey(self) -> list[int]: ...

    def __len__(self) -> int: ...

    def slice(self, offset: int, rows: int | None = None) -> Self: ...

    def without_chunks(self, chunks: int) -> Self: ...


B = TypeVar("B", bound=MergeInput)
"""The batches of a merge."""


class MergePlan(Generic[B]):
    """A merge in progress: call `step` until `done`.

    The cursor of an input is the (chunk, row) of its next row; `ends` are the cursors where reading stops. Inputs are
    kept in ascending order of size, as the kernels require; `input_order` holds where each is among the arguments.
    `unread_inputs` is what another plan needs to continue this merge.
    """

    __slots__ = (
        "batches",
        "bounds",
        "cursors",
        "done",
        "ends",
        "info",
        "input_order",
        "lens",
        "read",
        "sort_key",
        "starts",
        "tables",
        "time",
    )  # fmt: skip

    def __init__(
        self,
        batches: Sequence[B],
        offsets: Sequence[int] | None = None,
        since: Sequence[int] = (),
        within: Int64s | None = None,
    ) -> None:
        """Merge batches, each from row `offset` of its first chunk on.

        Times are advanced to `since`; or, with `within` (from `time_bounds`), only rows at times within it are kept.
        """
        self.bounds = time_bounds(since) if within is None else within
        self.time = _common_time(batches, since) if within is None else None
        self.sort_key = batches[0].sort_key
        self.input_order = sorted(range(len(batches)), key=lambda i: len(batches[i]))
        begins = [offsets[i] if offsets else 0 for i in self.input_order]
        batches = [batches[i] for i in self.input_order]
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
        """Continue the merge by at most `limit` rows written, or twice as many rows read; returns the new chunks."""
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
        gathered = pos[:written], weights[:written], ones, np.array(self.time)
        return gather_chunks(schema, self.sort_key.own_key, self.tables, *gathered)

    def _stops(self, limit: int) -> tuple[Int64s, int]:
        """Cursors at which a step may end, and the number of rows before them, `limit` if possible.

        Equal rows lie on the same side of the cursors in all inputs.
        """
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
        n, read, ones, _, one_time = self.info.tolist()
        self.read += read
        self.done = np.array_equal(stops, self.ends)
        gathered = self.tables, pos[:n], weights[:n], ones
        if one_time and n:
            return gather_chunks(schema, own_key, *gathered, np.ascontiguousarray(times[:, 0]))
        return gather_timed(schema, own_key, *gathered, times[:, :n])

    def remaining(self) -> list[B]:
        """The unread rows of each input that has any, oldest input first."""
        return [b.slice(n) if n else b for b, n in zip(*self.unread_inputs(), strict=True)]

    def unread_inputs(self) -> tuple[tuple[B, ...], tuple[int, ...]]:
        """The inputs that have unread rows, without the chunks that are read, and the first unread row of each.

        They come in the order of the arguments, which is oldest first: readers of a merge in progress rely on it.
        """
        batches, offsets = [], []
        for s in sorted(range(len(self.batches)), key=self.input_order.__getitem__):
            batch = self.batches[s]
            chunk, row = self.cursors[s].tolist()
            chunk -= self.starts[s]
            if row >= batch.chunks[chunk].rows:
                chunk, row = chunk + 1, 0
            if chunk < len(batch.chunks):
                batches.append(batch.without_chunks(chunk) if chunk else batch)
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


def run_merge(plan: MergePlan[Any]) -> list[Chunk]:
    """Run a merge to its end; returns the chunks that it writes."""
    chunks: list[Chunk] = []
    while not plan.done:
        chunks += plan.step(CHUNK_ROWS)
    return chunks


def merge_chunks(inputs: Sequence[B], since: Sequence[int] = ()) -> SortedChunks:
    """The sum of non-empty batches of one sort key, with times advanced to `since`."""
    sort_key = inputs[0].sort_key
    if any(b.sort_key is not sort_key for b in inputs):
        raise SchemaError(f"batches of different sort keys cannot be merged: {[b.sort_key for b in inputs]}")
    if not since and not sort_key.schema.nested:
        merged = _merge_small(sort_key, inputs)
        if merged is not None:
            return merged
    plan = MergePlan(inputs, since=since)
    if plan.time is None and len(inputs) >= MIN_BATCHES_TO_SORT and sum(b.rows for b in inputs) <= MAX_SORT_ROWS:
        return SortedChunks(sort_key, _merge_by_sorting(plan))
    if plan.time is None or sum(b.rows for b in inputs) < PARALLEL_MERGE_ROWS:
        return SortedChunks(sort_key, run_merge(plan))
    low, high = plan, MergePlan(inputs, since=since)
    middle = low.split(1 << 63)
    low.restrict(None, middle)
    high.restrict(middle, None)
    upper = _second_thread().submit(run_merge, high)
    chunks = run_merge(low)
    return SortedChunks(sort_key, chunks + upper.result())


@cache
def _second_thread() -> ThreadPoolExecutor:
    """The thread that merges the upper half of large merges."""
    return ThreadPoolExecutor(1, thread_name_prefix="dbspark-merge")


def _common_time(batches: Sequence[MergeInput], since: Sequence[int]) -> tuple[int, ...] | None:
    """The time of all rows of all batches after advancing to `since`; None where there are several."""
    common: tuple[int, ...] | None = None
    for batch in batches:
        time = batch.time
        if time is None:
            return None
        if since:
            time = advance_time(time, since)
        if common is not None and time != common:
            return None
        common = time
    return common


def _merge_small(sort_key: SortKey, batches: Sequence[MergeInput]) -> SortedChunks | None:
    """The sum of small batches in two kernel calls. None unless all are flat, of one chunk and at one time, and fit
    into the scratch memory of the thread."""
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
    scratch, needed = PLAN_SCRATCH.buffer, kc.scratch_words(columns, count, rows) + 2 * count
    if 8 * needed > PLAN_SCRATCH_BYTES:
        return None
    lines.append(lines.pop(largest))
    begin = PLAN_SCRATCH_BYTES - 16 * count
    pack_into(f"{2 * count}q", scratch, begin, *[word for line in lines for word in line])
    spec, at = sort_key.kernel_spec_address, scratch.address
    size = kc.plan(spec, at + begin, count, rows, at)
    info = PLAN_INFO.unpack_from(scratch)
    check_plan(info)
    if size < 0:
        return None
    if size == 0:
        return SortedChunks(sort_key, ())
    arena = allocate(size)
    kc.fill(spec, count, rows, at, arena.address)
    return SortedChunks(sort_key, (Chunk(sort_key.schema, info[0], arena, None),), info[ka.WEIGHT_SURVEY :], time)


def _merge_by_sorting(plan: MergePlan[Any]) -> list[Chunk]:
    """All chunks of a merge of batches of several times, by sorting their rows together."""
    schema, info = plan.sort_key.schema, plan.info
    rows = int(plan.lens.sum())
    pos, weights, times = int64s(rows), int64s(rows), int64s(nd.TIMES * rows).reshape(nd.TIMES, rows)
    kt.merge_by_sorting(
        plan.tables, plan.lens, plan.bounds, schema.columns, schema.node_count, pos, weights, times, info
    )  # fmt: skip
    check_plan(info)
    n, ones = int(info[0]), int(info[2])
    return gather_timed(schema, plan.sort_key.own_key, plan.tables, pos[:n], weights[:n], ones, times[:, :n])
