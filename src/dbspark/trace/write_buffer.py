"""The write buffer of a trace: deltas that have been committed but are not in the spine yet.

Inserting a batch into a spine has a fixed cost, so small deltas are collected unsorted and inserted as one batch.
Sorting a large delta costs as much as half of its tick, so the background thread does it (`trace.background_merges`).
Small ones are sorted in the tick itself: on another thread they would hold the GIL for longer than their kernels run
without it. Invariants:

1. Every committed row is either in the spine or in the buffer: deltas leave the buffer when, and only when, the
   function that inserts them into the spine has returned.
2. A flush cannot fail because of what a delta holds: deltas are validated before they are accepted (`validate`). If it
   runs out of memory, the deltas stay in the buffer, and the next flush sorts them again.
3. The buffer is bounded by `LIMITS`. Where no flush is in progress, it is flushed at `max_deltas`, `max_rows` or
   `max_bytes`. Behind a flush in progress there may be `busy_factor` times as much, or as many rows as the flush has if
   these are more; a writer that finds more waits for the flush. So while a load of millions of rows is sorted, which
   takes a second, no tick waits until as many rows again have been added.
4. A history from which nobody has read rows for `idle_after_deltas` deltas is flushed in large pieces, after all
   merges, because nobody may ever need its deltas in order. No tick waits for such a flush until the buffer has
   `idle_trace_factor` times the rows of the trace. The first reader waits for it once, at most for as long as the ticks
   before have saved.

Readers that need order or times (`as_of`, `changes`, commits to disk) flush first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.chunk import Chunk
from dbspark.columnar.delta import Delta, concat_chunks
from dbspark.columnar.memory import INT64_MAX
from dbspark.columnar.row_times import pad_times
from dbspark.columnar.sort_batch import MAX_SORT_ROWS, sort_timed_chunks
from dbspark.kernels.memory.layout import TIME
from dbspark.kernels.merge.consolidate import survey_weights
from dbspark.trace.background_merges import BackgroundTask


@dataclass(frozen=True, slots=True)
class WriteBufferLimits:
    """How much a write buffer may hold before it is flushed, or before a writer waits for the flush."""

    max_deltas: int = 64
    """Deltas in the buffer: a reader of current rows probes each of them."""
    max_rows: int = 4096
    """Rows in the buffer: a delta with more rows is worth a batch of its own."""
    max_bytes: int = 1 << 25
    """Bytes that deltas in the buffer keep alive: a small delta of a view may share the arena of a large tick."""
    min_background_rows: int = 4096
    """A flush of at least this many rows is sorted on the background thread; for fewer, switching threads costs more
    than sorting."""
    busy_factor: int = 32
    """How many times `max_deltas` and `max_rows` may come while a flush is in progress, before a writer waits."""
    idle_after_deltas: int = 64
    """Deltas in a row without a reader, after which a history counts as idle."""
    max_idle_deltas: int = 32
    """With this many deltas in its buffer an idle history is flushed, however few rows they have."""
    max_idle_rows: int = 1 << 16
    """Rows of an idle history that are sorted together: that costs less than sorting each tick and merging."""
    idle_trace_factor: int = 2
    """An idle history may have this many times the rows of its trace in the buffer before a writer waits."""
    max_copied_rows: int = 1024
    """The deltas of a flush are copied into one chunk before sorting if their average has at most this many rows: it
    saves a kernel call for each delta, and for larger ones copying costs more than that."""


LIMITS = WriteBufferLimits()
"""The limits of every buffer of the process."""


class BufferedDelta:
    """The delta of one tick, sorted when it is first read in order.

    Once its rows are in the trace, it keeps only their number.
    """

    __slots__ = ("_batch", "_delta", "_rows", "delta_rows", "retained_bytes", "sort_key", "tick")

    def __init__(self, delta: Delta, tick: int, sort_key: SortKey) -> None:
        self._delta: Delta | None = delta
        self._batch: Batch | None = None
        self._rows: int | None = None
        self.sort_key = sort_key
        self.delta_rows = delta.rows
        """Rows before consolidation."""
        self.retained_bytes = delta.retained_bytes
        """Bytes that cannot be freed as long as the delta is in the buffer."""
        self.tick = tick

    def batch(self) -> Batch:
        """The rows in the order of the sort key. Safe for two threads: the delta is dropped once the batch is set."""
        delta, batch = self._delta, self._batch
        if batch is None:
            assert delta is not None
            self._batch = batch = delta.sorted_by(self.sort_key)
            self._delta = None
        return batch

    def unsorted_chunk(self) -> Chunk | None:
        """The rows as a chunk for kernels; None where they are sorted already or have nested columns."""
        delta = self._delta
        return None if delta is None or delta.is_sorted or delta.schema.nested else delta.chunk()

    def __int__(self) -> int:
        """The number of rows after consolidation."""
        return self.batch().rows if self._rows is None else self._rows

    def mark_flushed(self, rows: int) -> None:
        """Drop the rows, which are in the trace now: `rows` of them after consolidation."""
        self._rows = rows
        self._batch = self._delta = None


def validate(delta: Delta, sort_key: SortKey) -> Delta:
    """Return the delta if sorting it later cannot fail; raise if sums of its weights overflow."""
    if delta.rows and not delta.is_sorted:
        chunk = delta.chunk()
        info = np.empty(4, np.int64)
        survey_weights(np.array((chunk.table,), np.int64), np.array((chunk.rows,), np.int64), info)
        if int(info[0]) > INT64_MAX // delta.rows:
            delta.sorted_by(sort_key)
    return delta


class FlushResult(NamedTuple):
    """Sorted deltas of consecutive ticks, ready to be inserted into the trace."""

    deltas: Sequence[BufferedDelta]
    rows: Sequence[int]
    """Rows of each delta: after consolidation with `count_rows`, else before."""
    combined: Batch | None
    """One batch of all deltas with their times, where that is cheap and sums of weights cannot overflow; None: each
    delta is inserted as a batch of its own."""
    oldest: int
    """The tick to which earlier times have been advanced in `combined`."""


def sort_for_flush(
    deltas: Sequence[BufferedDelta], oldest: int, seldom_read: bool = False, count_rows: bool = True
) -> FlushResult:
    """Sort deltas for the trace. Times of ticks that nobody can read any more are advanced to the tick `oldest`.

    `seldom_read`: larger deltas are combined into one batch, too. `count_rows`: the rows of each delta are counted
    after consolidation; without it the number is that of the rows that came.
    """
    delta_rows = sum([delta.delta_rows for delta in deltas])
    small = len(deltas) > 1 and delta_rows <= max(
        2 * LIMITS.max_rows, min(LIMITS.max_copied_rows * len(deltas), LIMITS.max_idle_rows)
    )
    if len(deltas) > 1 and (small or not count_rows) and (deltas[0].tick >= oldest or not count_rows):
        sorted_together = _sort_in_one_pass(deltas, oldest, count_rows, small) if delta_rows <= MAX_SORT_ROWS else None
        if sorted_together is not None:
            return sorted_together
    batches = [delta.batch() for delta in deltas]
    rows = [batch.rows for batch in batches]
    combined = small or (seldom_read and len(deltas) > 1 and delta_rows <= 2 * LIMITS.max_idle_rows)
    if not combined or sum(b.largest for b in batches) > INT64_MAX:
        return FlushResult(deltas, rows, None, oldest)
    if oldest >= deltas[-1].tick:  # all have the same time
        return FlushResult(deltas, rows, merge(batches).at_time((oldest,)), oldest)
    timed = [b.at_time((max(c.tick, oldest),)) for b, c in zip(batches, deltas, strict=True)]
    return FlushResult(deltas, rows, merge(timed), oldest)


def _sort_in_one_pass(
    deltas: Sequence[BufferedDelta], oldest: int, count_rows: bool, small: bool
) -> FlushResult | None:
    """Sort deltas of different ticks together, which costs less than sorting each and merging; None where one of them
    is sorted already or has nested columns.

    `small`: they are copied into one chunk first, which costs less than a kernel call for each.
    """
    chunks = [chunk for delta in deltas if (chunk := delta.unsorted_chunk()) is not None]
    if len(chunks) != len(deltas):
        return None
    sort_key, ticks = deltas[0].sort_key, np.array([delta.tick for delta in deltas], np.int64)
    whole = concat_chunks(sort_key.schema, chunks) if small else None
    if whole is None:
        batch = Batch.of(sort_timed_chunks(sort_key, chunks, ticks.tolist(), (oldest,)))
    elif oldest >= deltas[-1].tick:
        batch = Batch.from_chunk(sort_key, whole).at_time((oldest,))
    else:
        times = np.repeat(np.maximum(ticks, oldest), [delta.delta_rows for delta in deltas])
        batch = Batch.from_chunk(sort_key, whole.with_times(pad_times([times], 0, whole.rows)))
    if not count_rows:
        return FlushResult(deltas, [delta.delta_rows for delta in deltas], batch, oldest)
    row_ticks = np.concatenate([chunk.lane(TIME) for chunk in batch.chunks]) if batch.rows else np.empty(0, np.int64)
    rows: list[int] = np.bincount(np.searchsorted(ticks, row_ticks), minlength=len(ticks)).tolist()
    return FlushResult(deltas, rows, batch, oldest)


class BufferCheckpoint(NamedTuple):
    """The state of a `WriteBuffer` when a tick began; `deltas` is shared and was `length` long."""

    deltas: list[BufferedDelta]
    length: int
    rows: int
    retained_bytes: int
    flush_task: BackgroundTask[FlushResult] | None
    flushing: int
    flushing_rows: int
    deltas_since_read: int


class WriteBuffer:
    """The committed deltas of one history that its trace does not have yet. See the invariants above."""

    __slots__ = (
        "_background",
        "_count_rows",
        "_deltas_since_read",
        "_flush_task",
        "_flushing",
        "_flushing_rows",
        "_oldest",
        "_retained_bytes",
        "_seldom_read",
        "deltas",
        "rows",
    )  # fmt: skip

    def __init__(
        self, oldest: Callable[[int], int], background: bool, seldom_read: bool = False, count_rows: bool = True
    ) -> None:
        """`oldest`: returns the oldest tick that must stay readable once a given tick is in the trace. `background`:
        whether flushes may be sorted on the background thread. `seldom_read`: whether the history may count as idle.
        `count_rows`: whether the rows of each delta are counted after consolidation."""
        self._oldest = oldest
        self._background = background
        self._seldom_read = seldom_read
        self._count_rows = count_rows
        self._deltas_since_read = LIMITS.idle_after_deltas
        """Deltas that were added since rows were last read."""
        self._flush_task: BackgroundTask[FlushResult] | None = None
        self._flushing = 0
        """Number of deltas, from the first one on, in the flush in progress, and the number of their rows."""
        self._flushing_rows = 0
        self.deltas: list[BufferedDelta] = []
        self.rows = 0
        """Rows of all deltas, before consolidation."""
        self._retained_bytes = 0
        """Bytes that all deltas keep alive."""

    def add(self, delta: BufferedDelta) -> bool:
        """Add a delta; returns whether `flush_due` may have something to do."""
        self.deltas.append(delta)
        self.rows += delta.delta_rows
        self._retained_bytes += delta.retained_bytes
        self._deltas_since_read += 1
        limits = LIMITS
        return (
            self._flush_task is not None
            or len(self.deltas) >= limits.max_deltas
            or self.rows >= limits.max_rows
            or self._retained_bytes >= limits.max_bytes
        )

    def flush_due(self, trace_rows: int, insert: Callable[[FlushResult], None]) -> bool:
        """Flush if that is due: call `insert` with sorted deltas; returns whether it was called.

        A large flush is started on the background thread, and a later call inserts its result. Deltas leave the buffer
        once `insert` has returned, so if it raises they are still there. `trace_rows`: rows of the trace.
        """
        inserted = False
        if self._flush_task is not None and (self._flush_task.done or self._is_full(trace_rows)):
            inserted = self.flush(insert)
        if self._flush_task is None and self._should_flush():
            if self._background and (
                self.deltas[-1].delta_rows >= LIMITS.max_rows or self.rows >= LIMITS.min_background_rows
            ):
                deltas = self._next_deltas()
                for delta in deltas:
                    delta.unsorted_chunk()  # made here, so that the thread does not call into Arrow
                rows = sum([delta.delta_rows for delta in deltas])
                function = partial(
                    sort_for_flush, deltas, self._oldest(deltas[-1].tick), self._seldom_read, self._count_rows
                )
                self._flush_task = BackgroundTask(rows, function, when_idle=self._is_idle)
                self._flushing, self._flushing_rows = len(deltas), rows
            elif not inserted:
                inserted = self.flush(insert)
        return inserted

    def flush(self, insert: Callable[[FlushResult], None]) -> bool:
        """Call `insert` with the flush in progress, or else with the next deltas; returns whether there were any.

        Deltas leave the buffer once `insert` has returned. Call it until it returns False to flush everything.
        """
        if self._flush_task is not None:
            flush_task, self._flush_task = self._flush_task, None  # a failed flush is not used again
            self._flushing = self._flushing_rows = 0
            out = flush_task.result()
        elif self.deltas:
            deltas = self._next_deltas()
            out = sort_for_flush(deltas, self._oldest(deltas[-1].tick), self._seldom_read, self._count_rows)
        else:
            return False
        left = self.deltas[len(out.deltas) :]  # a new list, because a checkpoint may share the old one
        rows = self.rows - sum([delta.delta_rows for delta in out.deltas])
        retained_bytes = self._retained_bytes - sum([delta.retained_bytes for delta in out.deltas])
        insert(out)
        # The deltas are in the trace; nothing below can fail.
        self.deltas, self.rows, self._retained_bytes = left, rows, retained_bytes
        return True

    def sort_again(self, out: FlushResult) -> FlushResult:
        """The same deltas, with times advanced no further than readers permit now."""
        return sort_for_flush(out.deltas, self._oldest(out.deltas[-1].tick), self._seldom_read, self._count_rows)

    def checkpoint(self) -> BufferCheckpoint:
        """The state to which `restore` goes back when a tick is rolled back. Copies nothing."""
        return BufferCheckpoint(
            self.deltas, len(self.deltas), self.rows, self._retained_bytes, self._flush_task, self._flushing,
            self._flushing_rows, self._deltas_since_read,
        )  # fmt: skip

    def restore(self, checkpoint: BufferCheckpoint) -> None:
        """Go back to a checkpoint, but drop a flush that has failed since: it would make every further tick fail."""
        self.deltas, length, self.rows, self._retained_bytes = checkpoint[:4]
        self._flush_task, self._flushing, self._flushing_rows, self._deltas_since_read = checkpoint[4:]
        if self._flush_task is not None and self._flush_task.failed:
            self._flush_task, self._flushing, self._flushing_rows = None, 0, 0
        del self.deltas[length:]

    def record_read(self) -> None:
        """Record that rows are read, so that the history does not count as idle."""
        self._deltas_since_read = 0

    @property
    def _is_idle(self) -> bool:
        """Whether nobody has read rows for `idle_after_deltas` deltas."""
        return self._seldom_read and self._deltas_since_read > LIMITS.idle_after_deltas

    def _next_deltas(self) -> Sequence[BufferedDelta]:
        """The deltas of the next flush: all, or about `max_idle_rows` rows where there are far more."""
        if not self._seldom_read or self.rows < 2 * LIMITS.max_idle_rows:
            return tuple(self.deltas)
        upto = itertools.accumulate(delta.delta_rows for delta in self.deltas)
        return tuple(self.deltas[: next(i for i, rows in enumerate(upto, 1) if rows >= LIMITS.max_idle_rows)])

    def _should_flush(self) -> bool:
        """Whether the limits of the buffer call for a flush."""
        deltas, rows = len(self.deltas), self.rows
        if self._retained_bytes >= LIMITS.max_bytes:
            return True
        if self._is_idle and deltas < LIMITS.max_idle_deltas and rows < LIMITS.max_idle_rows:
            return False
        return deltas >= LIMITS.max_deltas or rows >= LIMITS.max_rows

    def _is_full(self, trace_rows: int) -> bool:
        """Whether so many deltas are behind the flush in progress that the writer has to wait for it."""
        rows, most = self.rows - self._flushing_rows, max(LIMITS.busy_factor * LIMITS.max_rows, self._flushing_rows)
        if self._is_idle:
            most = max(most, LIMITS.idle_trace_factor * trace_rows)
        return rows >= most or (len(self.deltas) - self._flushing) * LIMITS.max_rows >= LIMITS.max_deltas * most
