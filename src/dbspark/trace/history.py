"""What a table or view holds, now and at earlier ticks.

A trace whose times are ticks. It answers for the last `keep` ticks and for all that came before them taken together:
older changes are advanced to the oldest tick that is kept, where rows that have come and gone meet and vanish. Whoever
has to read further back holds it there (`hold`, or an agent of the trace): times are never advanced past a hold.

Changes wait before they are written into the trace (`trace.write_buffer`), in the order in which they came until
somebody asks. `spine` and everything that asks for times writes them first; who only adds up rows reads them where they
are (`everything`, `rows`). So nothing waits where a pipeline is durable: a commit asks for the spine.

What is appended can be taken back until it is settled (`begin`, `settle`, `undo`), because a tick is in all histories
or in none, and writing into a trace can fail. A flush that fails leaves every change where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.row_times import times_at
from dbspark.errors import TimeError
from dbspark.kernels.lookup.directory import append_batch
from dbspark.kernels.memory.layout import ROW_BITS
from dbspark.trace import Antichain, Trace
from dbspark.trace.agent import Saved, TraceAgent
from dbspark.trace.config import DEFAULT, SpineConfig
from dbspark.trace.directory import Own
from dbspark.trace.lookup import Hits, Keys, ends_unordered
from dbspark.trace.spine import Spine
from dbspark.trace.time import Description
from dbspark.trace.write_buffer import CHANGES, Change, SavedBuffer, Waiting, Written

_FEW = 512
"""Rows from which on a change that waits is better looked up in by an index."""


class History:
    """See the module's preface."""

    def __init__(
        self,
        sort_key: SortKey,
        keep: int,
        tick: int,
        spine: Spine | None = None,
        known: bool = True,
        config: SpineConfig = DEFAULT,
        patient: bool = False,
        counted: bool = True,
    ) -> None:
        """What a spine holds up to and including `tick`; without one, nothing, or nothing that is known.

        `patient`, `counted`: see `Waiting`.
        """
        self.keep = keep
        if spine is not None and spine.batches:
            self._trace = Trace.from_batches(spine.batches, sort_key, config=config)
        else:
            self._trace = Trace(sort_key, config=config, lower=Antichain.at(tick if known else tick + 1))
        self._agent = self._trace.agent()
        if self._trace.upper != Antichain.at(tick + 1):
            self._trace.seal(Antichain.at(tick + 1))
        self.sort_key = sort_key
        self.beside = config.background is not None
        """Whether there is a thread beside the ticks."""
        self._waiting = Waiting(self._oldest, self.beside, patient, counted)
        self._holder: TraceAgent | None = None
        """Keeps readable what `hold` asks for."""
        self._before: tuple[SavedBuffer, Saved] | None = None
        """What there was when the tick began that has not been settled yet."""
        self._taken: list[tuple[Change, int]] = []
        """Changes that have been written since, and their rows."""
        self._read: Spine | None = None
        """Everything, those that wait included, as it was last read."""
        self._listed: Spine | None = None
        """What is listed in a directory of our own, to which changes are added as they come."""
        self._place = Own.place()
        self._own = Own(self._place, 0)
        self.place: int = self._place.address
        """Where the address of this directory is."""
        self._room = self._directory = 0

    @property
    def trace(self) -> Trace:
        """The trace, with everything in it."""
        self._waiting.asked()
        while self._waiting.flush(self._take):
            pass
        return self._trace

    @property
    def schema(self) -> pa.Schema:
        return self.sort_key.schema.arrow

    @property
    def spine(self) -> Spine:
        """The rows of all times."""
        return self.trace.reading()

    @property
    def kept_rows(self) -> int:
        """Rows held, before consolidation."""
        return self._trace.spine.rows + self._waiting.rows

    def append(self, delta: Delta, tick: int, listed: bool = False) -> Change:
        """The change of a tick. Ticks that change nothing may be left out: whoever asks for their times adds them.

        `listed`: it is in the directory already.
        """
        change = Change(delta, tick, self.sort_key)
        if self._waiting.add(change) and self._waiting.flush_due(self._trace.spine.rows, self._take):
            pass  # then it is known no more what was read or listed
        elif listed:
            self._room -= 1
            self._read = None
        elif self._listed is not None or self._read is not None:
            self._and_one(change.batch() if delta.is_sorted else None)
        return change

    def _and_one(self, batch: Batch | None) -> None:
        """One more change, where it is in order, that whoever adds up has to read."""
        if batch is not None and not batch.rows:
            return
        if batch is not None and self.has_room(batch.rows):
            append_batch(self.place, batch.chunks[0].table, batch.rows)
            self._room -= 1
            self._read = None
        else:
            self._listed = None
            self._read = None if batch is None or self._read is None else self._read.and_one(batch)

    def _take(self, out: Written) -> None:
        """Write changes that are in order into the trace: all of them, or none where this raises."""
        self._read = self._listed = None
        last = out.changes[-1].tick
        if out.together is not None and out.oldest > self._oldest(last):  # somebody has come to hold earlier ticks
            out = self._waiting.again(out)
        saved, taken = self._agent.saved(), len(self._taken)
        try:
            if out.together is None:
                for change in out.changes:
                    self._agent.append(change.batch(), change.tick, Antichain.at(max(change.tick - self.keep, 0)))
            else:
                described = Description(self._trace.upper, Antichain.at(last + 1), Antichain.at(out.oldest))
                self._agent.append_described(out.together, described, Antichain.at(max(last - self.keep, 0)))
            self._taken += zip(out.changes, out.rows, strict=True)
        except BaseException:
            self._agent.reset(saved)
            del self._taken[taken:]
            raise
        if self._before is None:
            self._let_go()

    def _oldest(self, last: int) -> int:
        """The oldest tick that somebody may ask for once `last` is there: that of `keep`, or of an earlier hold."""
        return self._agent.permitted(Antichain.at(max(last - self.keep, 0))).meet_of_all()[0]

    def hold(self, tick: int | None) -> None:
        """Keep everything readable from a tick on, or as far back as it still is; None: only what `keep` says.

        A hold takes the place of the one before it.
        """
        holder = None if tick is None else self._trace.holder(Antichain.at(tick).join(self._trace.since))
        before, self._holder = self._holder, holder
        if before is not None:
            before.drop(begin=False)

    # ------------------------------------------------------------------ one tick or nothing

    def begin(self) -> None:
        """What is appended from now on can be taken back, until `settle`."""
        self._before = self._waiting.saved(), self._agent.saved()

    def settle(self) -> None:
        """The tick has happened. Cannot fail."""
        self._before = None
        self._let_go()

    def undo(self) -> None:
        """The tick has not happened: everything is as it was when it began. Cannot fail."""
        if self._before is not None:
            waiting, trace = self._before
            self._waiting.reset(waiting)
            self._agent.reset(trace)
            self._before = None
            self._taken.clear()
        self._read = self._listed = None  # the circuit may have listed its change already

    def _let_go(self) -> None:
        for change, rows in self._taken:
            change.written(rows)
        self._taken.clear()

    def close(self) -> None:
        """Stop what is being merged beside the ticks; all is readable as it is."""
        self._trace.stop()

    def rows(self, keys: Keys) -> Hits:
        """The rows of some keys as they are now, with their weights."""
        self._waiting.asked()
        return ends_unordered(self.everything(), keys, 1 << 62)

    def everything(self) -> Spine:
        """All rows as they are now, for adding up, without times."""
        if self._read is None:
            if len(self._waiting.changes) > CHANGES:  # they are more than should be looked through one by one
                _ = self.trace
            batches = (*self._trace.reading().batches, *(change.batch() for change in self._waiting.changes))
            self._read = Spine(self.sort_key, batches, self._trace.spine.config)
        return self._read

    def directory(self) -> int:
        """The same for kernels: an address, to be used until something is added."""
        self._waiting.asked()
        if self._listed is None:
            self._listed = self.everything()
            self._directory, self._room = self._own.copy(self._listed, CHANGES), CHANGES
        return self._directory

    def has_room(self, rows: int) -> bool:
        """Whether a change of so many rows can be listed there."""
        return self._listed is not None and self._room > 0 and rows < _FEW

    def unlist(self) -> None:
        """Something may have been listed that has not happened."""
        self._listed = None

    def at(self, tick: int | None, now: int) -> Batch:
        """Everything as it was at a tick."""
        if tick is None or tick == now:
            return self.trace.scan()
        self._catch_up(now)
        self._check(tick, now)
        return self.trace.as_of((tick,))

    def changes(self, since: int, upto: int, now: int) -> pa.Table:
        """The changes of the ticks after `since`, with `_tick` and `_weight`, in the order of ticks."""
        self._catch_up(now)
        self._check(since, now)
        self._check(upto, now)
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

    def _catch_up(self, now: int) -> None:
        if not Antichain.at(now + 1).dominates(self.trace.upper):
            self.append(Delta.empty(self.sort_key.schema), now)

    def oldest(self) -> int:
        """The oldest tick that can be read."""
        return max((t[0] for t in self.trace.since), default=0)

    def _check(self, tick: int, now: int) -> None:
        oldest = self.oldest()
        if tick > now:
            raise TimeError(f"tick {tick} has not happened yet; the last one is {now}")
        if tick < oldest:
            raise TimeError(
                f"tick {tick} is no longer kept; the oldest is {oldest}. Keep more with the setting 'history' (ticks)"
            )


class Histories:
    """The histories of a table or view on several shards, as one."""

    def __init__(self, parts: Sequence[History]) -> None:
        self._parts = parts

    @property
    def schema(self) -> pa.Schema:
        return self._parts[0].schema

    def at(self, tick: int | None, now: int) -> Batch:
        """Everything as it was at a tick."""
        found = [batch for part in self._parts if (batch := part.at(tick, now)).rows]
        return merge(found) if found else Batch.empty(self._parts[0].sort_key)

    def changes(self, since: int, upto: int, now: int) -> pa.Table:
        """The changes of the ticks after `since`, with `_tick` and `_weight`, in the order of ticks."""
        tables = [part.changes(since, upto, now) for part in self._parts]
        return pa.concat_tables(tables).sort_by("_tick")

    def oldest(self) -> int:
        """The oldest tick that can be read on every shard."""
        return max(part.oldest() for part in self._parts)


def history_of(sort_key: SortKey, keep: int, created: int, spine: Spine | None, tick: int) -> History:
    """A history that stands before a tick; a shard that had nothing to add has not counted the ticks since."""
    if spine is None or not spine.batches:
        history = History(sort_key, keep, created)
    else:
        last = spine.batches[-1].description.upper
        history = History(sort_key, keep, max(t[0] for t in last) - 1, spine)
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
