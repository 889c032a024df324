"""Changes on their way into a trace: they wait as they came, and are put in order beside the ticks.

To write one small change costs as much as to write many, so they wait in a list and are written together. To sort a
large one costs as much as half of its tick, so the thread of the merges does it (`trace.background_merges`): it makes
of changes what the trace takes (`Written`), which `History` hands over when it is next touched; whoever cannot wait
asks for it at once. Small changes are not worth the thread: it would keep the interpreter's lock from the ticks for
longer than its kernels run without it. A change leaves the list when the trace has it, so everything is at any moment
either there or here. Sorting cannot fail for what a change holds (`sound`): it has happened, and nobody could be told.
Where it fails for want of memory, the changes stay in the list and are sorted again when they are next asked for.

What waits is bounded: by `CHANGES`, `ROWS` and `HELD` where nothing is being written. Beside what the thread has in
hand it is `FAR` times that, or as many rows as it has in hand if they are more; then a tick waits for it. So a load of
millions, which takes the thread a second to sort, is waited for by nobody before as much has come again.

Where nobody has asked for rows for a while, to write them is work that nobody may ever need. They wait until there are
`QUIET` changes or `MANY` rows, then the thread writes so many at a time, when it has no merges to do; no tick waits for
it before there are `AHEAD` times as many rows here as in the trace. Whoever asks first, after a long stretch of that,
pays for it: once, and for at most as much as those ticks were spared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
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
from dbspark.trace.background_merges import Task

CHANGES = 64
"""Changes that wait at most."""
ROWS = 4096
"""Rows that wait at most: with more a change is worth a batch of its own."""
HELD = 1 << 25
"""Bytes that wait at most: a small change of a view may lie in the memory of a large tick."""
FAR = 32
"""How many times as much may wait while the thread is busy."""
BESIDE = ROWS
"""Rows from which on changes are written by the thread."""
QUIET = 32
"""Changes that wait at most where nobody has asked for rows for a while, if they are not small."""
MANY = 1 << 16
"""Rows that wait there, and are written together: it costs less than to write those of each tick and to merge them."""
CALM = 64
"""Changes after which nobody is expected to ask any more."""
AHEAD = 2
"""How many times the rows of the trace may wait there."""
_LONG = 1024
"""Rows from which on a change is long: to copy several into one before they are sorted costs more than it spares."""


class Change:
    """A change of a tick, in whichever order it came until somebody wants it in that of the trace.

    It is let go of when it has been written; then it only knows how many rows it had.
    """

    __slots__ = ("_batch", "_delta", "_rows", "given", "held", "sort_key", "tick")

    def __init__(self, delta: Delta, tick: int, sort_key: SortKey) -> None:
        self._delta: Delta | None = delta
        self._batch: Batch | None = None
        self._rows: int | None = None
        self.sort_key = sort_key
        self.given = delta.rows
        """Rows that came, equal ones and such as cancel each other counted one by one."""
        self.held = delta.retained_bytes
        """Bytes that cannot be freed while it is here."""
        self.tick = tick

    def batch(self) -> Batch:
        """The rows in order. Two threads may ask at the same time: the delta is let go of after the batch is there."""
        delta, batch = self._delta, self._batch
        if batch is None:
            assert delta is not None
            self._batch = batch = delta.sorted_by(self.sort_key)
            self._delta = None
        return batch

    def loose(self) -> Chunk | None:
        """The rows as kernels read them, where they are flat and in no order yet."""
        delta = self._delta
        return None if delta is None or delta.is_sorted or delta.schema.nested else delta.chunk()

    def __int__(self) -> int:
        """By how many rows it changes what it is a change of."""
        return self.batch().rows if self._rows is None else self._rows

    def written(self, rows: int) -> None:
        """The trace has it, which are so many rows."""
        self._rows = rows
        self._batch = self._delta = None


def sound(delta: Delta, sort_key: SortKey) -> Delta:
    """A delta that can be put in order at any time; raises where sums of its weights do not fit."""
    if delta.rows and not delta.is_sorted:
        chunk = delta.chunk()
        info = np.empty(4, np.int64)
        survey_weights(np.array((chunk.table,), np.int64), np.array((chunk.rows,), np.int64), info)
        if int(info[0]) > INT64_MAX // delta.rows:
            delta.sorted_by(sort_key)
    return delta


class Written(NamedTuple):
    """What a trace takes for some changes that follow each other."""

    changes: Sequence[Change]
    rows: Sequence[int]
    """Of each of them."""
    together: Batch | None
    """All of them with their times, if they are short and their sums are known to fit; else it takes each."""
    oldest: int
    """Earlier times have been moved to this tick, where they are all together."""


def written(changes: Sequence[Change], oldest: int, patient: bool = False, counted: bool = True) -> Written:
    """Put changes in order; those of ticks that nobody can ask for are moved to the oldest that is kept.

    See `Waiting` for `patient` and `counted`.
    """
    given = sum([change.given for change in changes])
    few = len(changes) > 1 and given <= max(2 * ROWS, min(_LONG * len(changes), MANY))
    if len(changes) > 1 and (few or not counted) and (changes[0].tick >= oldest or not counted):
        at_once = _sorted_at_once(changes, oldest, counted, few) if given <= MAX_SORT_ROWS else None
        if at_once is not None:
            return at_once
    batches = [change.batch() for change in changes]
    rows = [batch.rows for batch in batches]
    together = few or (patient and len(changes) > 1 and given <= 2 * MANY)
    if not together or sum(b.largest for b in batches) > INT64_MAX:
        return Written(changes, rows, None, oldest)
    if oldest >= changes[-1].tick:  # they are all of one time
        return Written(changes, rows, merge(batches).at_time((oldest,)), oldest)
    timed = [b.at_time((max(c.tick, oldest),)) for b, c in zip(batches, changes, strict=True)]
    return Written(changes, rows, merge(timed), oldest)


def _sorted_at_once(changes: Sequence[Change], oldest: int, counted: bool, few: bool) -> Written | None:
    """Changes of different ticks, all of them flat and in no order, by one sort: to merge them later costs more.

    Where they have `few` rows each, they are copied into one chunk first: a call for each costs more.
    """
    chunks = [chunk for change in changes if (chunk := change.loose()) is not None]
    if len(chunks) != len(changes):
        return None
    sort_key, ticks = changes[0].sort_key, np.array([change.tick for change in changes], np.int64)
    whole = concat_chunks(sort_key.schema, chunks) if few else None
    if whole is None:
        batch = sort_timed_chunks(sort_key, chunks, ticks.tolist(), (oldest,))
    elif oldest >= changes[-1].tick:
        batch = Batch.from_chunk(sort_key, whole).at_time((oldest,))
    else:
        times = np.repeat(np.maximum(ticks, oldest), [change.given for change in changes])
        batch = Batch.from_chunk(sort_key, whole.with_times(pad_times([times], 0, whole.rows)))
    if not counted:
        return Written(changes, [change.given for change in changes], batch, oldest)
    found = np.concatenate([chunk.lane(TIME) for chunk in batch.chunks]) if batch.rows else np.empty(0, np.int64)
    rows: list[int] = np.bincount(np.searchsorted(ticks, found), minlength=len(ticks)).tolist()
    return Written(changes, rows, batch, oldest)


class SavedBuffer(NamedTuple):
    """What a tick changes of `Waiting`."""

    changes: list[Change]
    length: int
    rows: int
    held: int
    job: Task[Written] | None
    in_hand: int
    rows_in_hand: int
    since_asked: int


class Waiting:
    """The changes of one history that its trace does not have yet."""

    __slots__ = (
        "_beside", "_counted", "_held", "_in_hand", "_job", "_oldest", "_patient", "_rows_in_hand", "_since_asked",
        "changes", "rows",
    )  # fmt: skip

    def __init__(self, oldest: Callable[[int], int], beside: bool, patient: bool = False, counted: bool = True) -> None:
        """`oldest`: by the last tick that is written, the oldest that somebody may ask for. `beside`: whether a thread
        may write them. `patient`: they are seldom asked for. `counted`: somebody wants to know how many rows a change
        has."""
        self._oldest = oldest
        self._beside = beside
        self._patient = patient
        self._counted = counted
        self._since_asked = CALM
        """Changes that have come since somebody looked for rows."""
        self._job: Task[Written] | None = None
        self._in_hand = 0
        """The first so many changes are what the job writes, and so many rows."""
        self._rows_in_hand = 0
        self.changes: list[Change] = []
        self.rows = 0
        """Those of all of them."""
        self._held = 0
        """Bytes, of all of them."""

    def add(self, change: Change) -> bool:
        """One more; whether `flush_due` may have something to do."""
        self.changes.append(change)
        self.rows += change.given
        self._held += change.held
        self._since_asked += 1
        # Mostly it has not.
        return not (self._job is None and len(self.changes) < CHANGES and self.rows < ROWS and self._held < HELD)

    def flush_due(self, there: int, take: Callable[[Written], None]) -> bool:
        """Have `take` write what is to be written now into the trace, which has so many rows; whether there was any.

        Begins to sort beside the ticks what has become enough. Changes leave the list once `take` has returned, so
        where anything raises they are still there.
        """
        taken = False
        if self._job is not None and (self._job.done or self._too_much(there)):
            taken = self.flush(take)
        if self._job is None and self._enough():
            if self._beside and (self.changes[-1].given >= ROWS or self.rows >= BESIDE):
                some = self._first()
                for change in some:
                    change.loose()  # so that the thread need not ask Arrow for it
                rows = sum([change.given for change in some])
                function = partial(written, some, self._oldest(some[-1].tick), self._patient, self._counted)
                self._job = Task(rows, function, when_idle=self._calm)
                self._in_hand, self._rows_in_hand = len(some), rows
            elif not taken:
                taken = self.flush(take)
        return taken

    def flush(self, take: Callable[[Written], None]) -> bool:
        """Have `take` write everything, or the first part of it where a thread has that in hand; whether there was any.

        Changes leave the list once `take` has returned.
        """
        if self._job is not None:
            job, self._job = self._job, None  # one that has failed is not asked again
            self._in_hand = self._rows_in_hand = 0
            out = job.result()
        elif self.changes:
            some = self._first()
            out = written(some, self._oldest(some[-1].tick), self._patient, self._counted)
        else:
            return False
        left = self.changes[len(out.changes) :]  # another list: the one that was saved stays as it is
        rows = self.rows - sum([change.given for change in out.changes])
        held = self._held - sum([change.held for change in out.changes])
        take(out)
        # The trace has them; nothing below can fail.
        self.changes, self.rows, self._held = left, rows, held
        return True

    def again(self, out: Written) -> Written:
        """The same changes, with times as they may be advanced now."""
        return written(out.changes, self._oldest(out.changes[-1].tick), self._patient, self._counted)

    def saved(self) -> SavedBuffer:
        """To come back to, where a tick has to be taken back. Costs nothing."""
        return SavedBuffer(
            self.changes, len(self.changes), self.rows, self._held, self._job, self._in_hand, self._rows_in_hand,
            self._since_asked,
        )  # fmt: skip

    def reset(self, saved: SavedBuffer) -> None:
        """Go back to what was saved, but not to a job that has failed since: it would fail every further tick."""
        self.changes, length, self.rows, self._held = saved[:4]
        self._job, self._in_hand, self._rows_in_hand, self._since_asked = saved[4:]
        if self._job is not None and self._job.failed:
            self._job, self._in_hand, self._rows_in_hand = None, 0, 0
        del self.changes[length:]

    def asked(self) -> None:
        """Somebody looks for rows, among those that wait, too."""
        self._since_asked = 0

    @property
    def _calm(self) -> bool:
        """Whether nobody has asked for rows for a while."""
        return self._patient and self._since_asked > CALM

    def _first(self) -> Sequence[Change]:
        """What to write next: everything, or as much as is sorted well together."""
        if not self._patient or self.rows < 2 * MANY:
            return tuple(self.changes)
        upto = itertools.accumulate(change.given for change in self.changes)
        return tuple(self.changes[: next(i for i, rows in enumerate(upto, 1) if rows >= MANY)])

    def _enough(self) -> bool:
        """Whether so much waits that it should be written."""
        changes, rows = len(self.changes), self.rows
        if self._calm and changes < QUIET and rows < MANY and self._held < HELD:
            return False
        return changes >= CHANGES or rows >= ROWS or self._held >= HELD

    def _too_much(self, there: int) -> bool:
        """Whether so much waits behind what the job writes that somebody has to wait for the job."""
        rows, most = self.rows - self._rows_in_hand, max(FAR * ROWS, self._rows_in_hand)
        if self._calm:
            most = max(most, AHEAD * there)
        return rows >= most or (len(self.changes) - self._in_hand) * ROWS >= CHANGES * most
