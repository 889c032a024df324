"""`History`: what a table or view contains, now and at earlier ticks.

It is a trace whose times are ticks, behind a write buffer. The last `history_ticks` ticks can be read; the times of
older updates are advanced to the oldest of these, where rows that were inserted and retracted cancel. A reader that
needs older ticks holds them (`hold`, or an agent of the trace): times are never advanced past a hold. Invariants:

1. Deltas wait in the write buffer (`trace.write_buffer`), in the order in which they came. `trace`, `spine` and
   everything with times flush it first; readers of the current rows read the buffer as well (`current_spine`, `rows`).
   A durable pipeline reads the spine at every commit, so its buffers are empty after each.
2. A tick is in all histories or in none. Inserting into a trace may fail, so `rollback_tick` can undo everything that
   was appended after `begin_tick`, until `commit_tick`.
3. A flush that fails leaves every delta in the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.row_times import times_at
from dbspark.errors import TimeError
from dbspark.kernels.lookup.directory import append_batch
from dbspark.kernels.memory.layout import ROW_BITS
from dbspark.trace import Antichain, Trace
from dbspark.trace.agent import AgentCheckpoint, TraceAgent
from dbspark.trace.config import DEFAULT, SpineConfig
from dbspark.trace.directory import MutableDirectory
from dbspark.trace.lookup import FoundRows, Keys, first_rows_unordered
from dbspark.trace.spine import Spine
from dbspark.trace.time import Description
from dbspark.trace.write_buffer import LIMITS, BufferCheckpoint, BufferedDelta, FlushResult, WriteBuffer

MAX_UNINDEXED_ROWS = 512
"""A delta with this many rows or more is not appended to the mutable directory, where it would have no index: probing
it without one costs more than rebuilding the directory with one."""


class History:
    """The trace of a table or view, whose times are ticks, and its write buffer."""

    def __init__(
        self,
        sort_key: SortKey,
        history_ticks: int,
        tick: int,
        spine: Spine | None = None,
        empty_at_tick: bool = True,
        config: SpineConfig = DEFAULT,
        seldom_read: bool = False,
        count_rows: bool = True,
    ) -> None:
        """The history of the rows of `spine` up to and including `tick`.

        Without a spine it is empty at `tick`, or, if not `empty_at_tick`, readable only from `tick + 1` on.
        `seldom_read`, `count_rows`: see `WriteBuffer`.
        """
        self.history_ticks = history_ticks
        if spine is not None and spine.batches:
            self._trace = Trace.from_batches(spine.batches, sort_key, config=config)
        else:
            self._trace = Trace(sort_key, config=config, lower=Antichain.at(tick if empty_at_tick else tick + 1))
        self._agent = TraceAgent.of(self._trace)
        if self._trace.upper != Antichain.at(tick + 1):
            self._trace.seal(Antichain.at(tick + 1))
        self.sort_key = sort_key
        self.has_background_thread = config.min_background_rows is not None
        """Whether merges and flushes may run on the background thread."""
        self._buffer = WriteBuffer(self._oldest, self.has_background_thread, seldom_read, count_rows)
        self._held_from: int | None = None
        """The argument of the last call of `hold_from`."""
        self._holder: TraceAgent | None = None
        """The agent that keeps the ticks of `hold` readable."""
        self._checkpoint: tuple[BufferCheckpoint, AgentCheckpoint] | None = None
        """The state at the last `begin_tick`, until the tick is committed or rolled back."""
        self._flushed: list[tuple[BufferedDelta, int]] = []
        """Deltas flushed since the last `begin_tick`, and the rows of each after consolidation."""
        self._current: Spine | None = None
        """Cached result of `current_spine`; None once something has been appended that it does not hold."""
        self._directory_spine: Spine | None = None
        """The spine of which `_mutable_directory` is a copy; None once the copy lacks a delta."""
        self._directory_slot = MutableDirectory.new_slot()
        self._mutable_directory = MutableDirectory(self._directory_slot, 0)
        self.directory_slot: int = self._directory_slot.address
        """Address of the memory where kernels find the mutable directory."""
        self._free_entries = self._directory_address = 0

    @property
    def trace(self) -> Trace:
        """The trace, after everything in the buffer has been flushed."""
        self._buffer.record_read()
        while self._buffer.flush(self._insert_flushed):
            pass
        return self._trace

    @property
    def schema(self) -> pa.Schema:
        return self.sort_key.schema.arrow

    @property
    def spine(self) -> Spine:
        """Flush, then return the spine of the trace, with rows of all times."""
        return self.trace.reading()

    @property
    def unconsolidated_rows(self) -> int:
        """Rows of trace and buffer, before consolidation."""
        return self._trace.spine.rows + self._buffer.rows

    def append(self, delta: Delta, tick: int, is_listed: bool = False) -> BufferedDelta:
        """Append the delta of a tick. Ticks without changes may be left out: a read at such a tick seals the trace
        first.

        `is_listed`: a kernel has added the delta to the mutable directory already.
        """
        buffered = BufferedDelta(delta, tick, self.sort_key)
        if self._buffer.add(buffered) and self._buffer.flush_due(self._trace.spine.rows, self._insert_flushed):
            pass  # the flush has set `_current` and `_directory_spine` to None
        elif is_listed:
            self._free_entries -= 1
            self._current = None
        elif self._directory_spine is not None or self._current is not None:
            self._append_unflushed(buffered.batch() if delta.is_sorted else None)
        return buffered

    def _append_unflushed(self, batch: Batch | None) -> None:
        """Add a sorted delta to `_current` and the mutable directory, or drop these where that is not possible."""
        if batch is not None and not batch.rows:
            return
        if batch is not None and self.directory_has_space(batch.rows):
            append_batch(self.directory_slot, batch.chunks[0].table, batch.rows)
            self._free_entries -= 1
            self._current = None
        else:
            self._directory_spine = None
            self._current = None if batch is None or self._current is None else self._current.with_batch(batch)

    def _insert_flushed(self, out: FlushResult) -> None:
        """Insert the deltas of a flush into the trace: all of them, or none where this raises."""
        self._current = self._directory_spine = None
        last = out.deltas[-1].tick
        if out.combined is not None and out.oldest > self._oldest(last):  # a reader holds earlier ticks by now
            out = self._buffer.sort_again(out)
        checkpoint, taken = self._agent.checkpoint(), len(self._flushed)
        try:
            if out.combined is None:
                for buffered in out.deltas:
                    since = Antichain.at(max(buffered.tick - self.history_ticks, 0))
                    self._agent.append(buffered.batch(), buffered.tick, since)
            else:
                described = Description(self._trace.upper, Antichain.at(last + 1), Antichain.at(out.oldest))
                self._agent.append_described(out.combined, described, Antichain.at(max(last - self.history_ticks, 0)))
            self._flushed += zip(out.deltas, out.rows, strict=True)
        except BaseException:
            self._agent.restore(checkpoint)
            del self._flushed[taken:]
            raise
        if self._checkpoint is None:
            self._release_flushed()

    def _oldest(self, last: int) -> int:
        """The oldest tick that must be readable once `last` is in the trace, by `history_ticks` or by a hold."""
        return self._agent.permitted(Antichain.at(max(last - self.history_ticks, 0))).meet_of_all()[0]

    def hold(self, tick: int | None) -> None:
        """Keep every tick readable from `tick` on, or as far back as it still is; None: only the last `history_ticks`.

        A hold replaces the one before it.
        """
        holder = None if tick is None else TraceAgent.holding(self._trace, Antichain.at(tick).join(self._trace.since))
        before, self._holder = self._holder, holder
        if before is not None:
            before.drop(begin=False)

    def hold_from(self, tick: int | None) -> None:
        """Like `hold`, but cheap enough to call in every tick: does nothing if the argument is that of the last
        call."""
        if tick != self._held_from:
            self.hold(tick)
            self._held_from = tick

    # ------------------------------------------------------------------ one tick or nothing

    def begin_tick(self) -> None:
        """Begin a tick: everything appended from now on can be rolled back, until `commit_tick`."""
        self._checkpoint = self._buffer.checkpoint(), self._agent.checkpoint()

    def commit_tick(self) -> None:
        """Make the tick final. Cannot fail."""
        self._checkpoint = None
        self._release_flushed()

    def rollback_tick(self) -> None:
        """Go back to how everything was at `begin_tick`. Cannot fail."""
        if self._checkpoint is not None:
            buffer, trace = self._checkpoint
            self._buffer.restore(buffer)
            self._agent.restore(trace)
            self._checkpoint = None
            self._flushed.clear()
        self._current = self._directory_spine = None  # a kernel may have added the delta to the directory already

    def _release_flushed(self) -> None:
        for buffered, rows in self._flushed:
            buffered.mark_flushed(rows)
        self._flushed.clear()

    def close(self) -> None:
        """Stop the merges on the background thread; everything stays readable."""
        self._trace.stop()

    def rows(self, keys: Keys) -> FoundRows:
        """The rows of some keys as they are now, with their weights."""
        self._buffer.record_read()
        return first_rows_unordered(self.current_spine(), keys, 1 << 62)

    def current_spine(self) -> Spine:
        """All rows as they are now, buffer included, as a spine without times."""
        if self._current is None:
            if len(self._buffer.deltas) > LIMITS.max_deltas:  # too many to be probed one by one
                _ = self.trace
            batches = (*self._trace.reading().batches, *(buffered.batch() for buffered in self._buffer.deltas))
            self._current = Spine(self.sort_key, batches, self._trace.spine.config)
        return self._current

    def directory(self) -> int:
        """The address of a directory of `current_spine` for kernels, valid until the next `append`."""
        self._buffer.record_read()
        if self._directory_spine is None:
            spine = self.current_spine()
            self._directory_address = self._mutable_directory.copy(spine, LIMITS.max_deltas)
            self._directory_spine, self._free_entries = spine, LIMITS.max_deltas
        return self._directory_address

    def directory_has_space(self, rows: int) -> bool:
        """Whether a delta of so many rows can be added to the mutable directory."""
        return self._directory_spine is not None and self._free_entries > 0 and rows < MAX_UNINDEXED_ROWS

    def invalidate_directory(self) -> None:
        """Drop the mutable directory, because a kernel may have added a delta that will not be appended."""
        self._directory_spine = None

    def at(self, tick: int | None, now: int) -> Batch:
        """Everything as it was at a tick."""
        if tick is None or tick == now:
            return self.trace.scan()
        self._seal_up_to(now)
        self._check_readable(tick, now)
        return self.trace.as_of((tick,))

    def changes(self, since: int, upto: int, now: int) -> pa.Table:
        """The changes of the ticks after `since`, with `_tick` and `_weight`, in the order of ticks."""
        self._seal_up_to(now)
        self._check_readable(since, now)
        self._check_readable(upto, now)
        batch = self.trace.changes((since,), (upto,))
        table = batch.to_arrow(weights="_weight")
        ticks = np.empty(0, np.int64)
        if batch.rows:
            positions = np.concatenate(
                [np.arange(c.rows, dtype=np.int64) + (i << ROW_BITS) for i, c in enumerate(batch.chunks)]
            )
            tables = np.array([c.table for c in batch.chunks], np.int64)
            ticks = times_at(tables, positions)[0]
        table = table.add_column(table.num_columns - 1, "_tick", pa.array(ticks, pa.int64()))
        return table.take(pa.array(np.argsort(ticks, kind="stable"))) if len(ticks) else table

    def _seal_up_to(self, now: int) -> None:
        if not Antichain.at(now + 1).dominates(self.trace.upper):
            self.append(Delta.empty(self.sort_key.schema), now)

    def oldest(self) -> int:
        """The oldest tick that can be read."""
        return max((t[0] for t in self.trace.since), default=0)

    def _check_readable(self, tick: int, now: int) -> None:
        oldest = self.oldest()
        if tick > now:
            raise TimeError(f"tick {tick} has not happened yet; the last one is {now}")
        if tick < oldest:
            raise TimeError(
                f"tick {tick} is no longer kept; the oldest is {oldest}. Keep more with the setting 'history' (ticks)"
            )


class ShardedHistory:
    """The history of a table or view whose rows are on several shards."""

    def __init__(self, parts: Sequence[History]) -> None:
        self._parts = parts

    @property
    def schema(self) -> pa.Schema:
        return self._parts[0].schema

    def at(self, tick: int | None, now: int) -> Batch:
        """Everything as it was at a tick."""
        batches = [batch for part in self._parts if (batch := part.at(tick, now)).rows]
        return merge(batches) if batches else Batch.empty(self._parts[0].sort_key)

    def changes(self, since: int, upto: int, now: int) -> pa.Table:
        """The changes of the ticks after `since`, with `_tick` and `_weight`, in the order of ticks."""
        tables = [part.changes(since, upto, now) for part in self._parts]
        return pa.concat_tables(tables).sort_by("_tick")

    def oldest(self) -> int:
        """The oldest tick that can be read on every shard."""
        return max(part.oldest() for part in self._parts)


def history_of(
    sort_key: SortKey, history_ticks: int, created: int, spine: Spine | None, tick: int, **options: Any
) -> History:
    """A history whose next tick is `tick`. It is brought up to that tick even where `spine` ends earlier: a shard
    without changes has no batches for the last ticks.

    `options`: more arguments of `History`.
    """
    if spine is None or not spine.batches:
        history = History(sort_key, history_ticks, created, **options)
    else:
        last = spine.batches[-1].description.upper
        history = History(sort_key, history_ticks, max(t[0] for t in last) - 1, spine, **options)
    if history.trace.upper != Antichain.at(tick):
        history.trace.seal(Antichain.at(tick))
    return history


def plain_rows(batch: Batch) -> pa.Table:
    """The rows of a batch, each as often as its weight says."""
    table = batch.to_arrow()
    weights = batch.weights()
    if len(weights) and (weights != 1).any():
        table = table.take(pa.array(np.repeat(np.arange(len(weights)), np.maximum(weights, 0))))
    return table
