"""`Trace`: the history of a Z-set as a spine of batches, and the frontiers that say how much of it is readable.

A trace is written at its end: every batch begins where the last one ended (`upper`). Readers hold it through agents
(`trace.agent`), each with two frontiers that only move forward:

* *logical*: the agent reads no time below it, so those may be advanced to it and their rows consolidated;
* *physical*: the agent reads up to no boundary below it, so batches before it may be merged.

The trace compacts to the meet of the frontiers of its agents, and without agents to its `upper`: then it still has all
of its rows, but at one time. `since` is how far back it can answer; asking for an earlier time is an error, never a
wrong answer.

Merges are paid for by inserts, a few rows for each row inserted. Large ones run on the background thread, and an insert
waits for one only if as many rows have come since it began as it merges. `exert` uses idle time for merges.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.batch import merge
from dbspark.errors import SchemaError, TimeError
from dbspark.trace import lookup as reading
from dbspark.trace.background_merges import BackgroundMerges
from dbspark.trace.config import DEFAULT, Compaction, SpineConfig
from dbspark.trace.cursor import Cursor
from dbspark.trace.lookup import FoundRows, Keys
from dbspark.trace.merge_state import MergeState
from dbspark.trace.retention import Retention
from dbspark.trace.spine import Spine
from dbspark.trace.time import Antichain, Description, MutableAntichain, Time, TimeLike

Levels = list[tuple[int, int, int]]
ExertLogic = Callable[[Levels], int | None]


def idle_merge_effort(effort: int) -> ExertLogic:
    """An exert logic that merges `effort` rows at a time while there is more than one batch."""
    return lambda levels: effort if len(levels) > 1 or any(count > 1 for _, count, _ in levels) else None


class Trace:
    """The history of a Z-set. `width` is the number of coordinates of its times."""

    def __init__(
        self,
        sort_key: SortKey,
        width: int = 1,
        config: SpineConfig = DEFAULT,
        lower: Antichain | None = None,
    ) -> None:
        begin = Antichain.at(*(0,) * width) if lower is None else lower
        self._setup(sort_key, width, begin, begin, config, ())

    def _setup(
        self, sort_key: SortKey, width: int, upper: Antichain, since: Antichain, config: SpineConfig,
        entries: tuple[Any, ...],
    ) -> None:  # fmt: skip
        self.sort_key = sort_key
        self.width = width
        self.upper = upper
        """The end: updates at times at or above this are still to come."""
        self._held_logical = MutableAntichain()
        self._held_physical = MutableAntichain()
        self._logical = since
        self._physical = since
        self._lock = threading.RLock()
        self._listeners: list[Callable[[Batch | None], None]] = []
        self._exert_logic: ExertLogic | None = None
        self._background = BackgroundMerges()
        self.retention = Retention()
        self.spine = Spine(sort_key, entries, config, compaction=Compaction(since, since))

    @staticmethod
    def from_batches(
        batches: Sequence[Batch], sort_key: SortKey | None = None, width: int = 1, config: SpineConfig = DEFAULT
    ) -> Trace:
        """A trace of batches with descriptions, such as those of files. Each begins where the one before it ends."""
        if sort_key is None:
            sort_key = batches[0].sort_key
        trace = Trace(sort_key, width, config)
        if batches:
            for before, after in itertools.pairwise(batches):
                _check_contiguous(before.description.upper, after.description)
            since = batches[0].description.since
            for batch in batches[1:]:
                since = since.join(batch.description.since)
            last = batches[-1].description.upper
            trace._setup(sort_key, width, last, since, config, tuple(batches))
        return trace

    def __repr__(self) -> str:
        batches = len(self.spine.batches)
        return f"Trace({self.spine.rows} rows in {batches} batches, since {self.since!r}, upper {self.upper!r})"

    # ------------------------------------------------------------------ writing

    def insert(self, batch: Batch) -> None:
        """Append a batch with its description: it begins at `upper`, and its times lie between its bounds."""
        description: Description = batch.description
        if description is None:
            raise TimeError("a batch of a trace has a description; give one, or use `append` for a delta at one time")
        if batch.sort_key is not self.sort_key:
            raise SchemaError(f"a trace of {self.sort_key!r} takes no batch of {batch.sort_key!r}")
        _check_contiguous(self.upper, description)
        if description.lower == description.upper or not description.lower.dominates(description.upper):
            raise TimeError(f"a batch ends after it begins, and {description!r} does not")
        self._check_times(batch)
        with self._lock:
            self._adopt()
            spine, upper, logical, physical = self.spine, description.upper, self._logical, self._physical
            if not description.since.dominates(logical):  # the batch has been compacted further than this trace
                logical = logical.join(description.since)
            if not self._held_logical.frontier and not self._held_physical.frontier:
                logical, physical = logical.join(upper), physical.join(upper)
            if (logical, physical) != (self._logical, self._physical):
                spine = spine.with_compaction(Compaction(logical, physical, self.retention.merge_filter()))
            spine = self._background.start_merges(spine.insert(batch))
            # Nothing above has changed what the trace holds; nothing below can fail.
            self._logical, self._physical, self.spine, self.upper = logical, physical, spine, upper
            for listen in list(self._listeners):
                listen(batch)

    def append(self, delta: Batch, time: TimeLike | None = None, upper: Antichain | None = None) -> None:
        """Append a delta whose rows are all at one time. By default that is `upper`, and `upper` moves to the next
        tick."""
        at = self.upper.meet_of_all() if time is None else Time.of(time)
        if upper is None:
            if self.width != 1:
                raise TimeError("times of several coordinates have no next one; say what the new upper is")
            upper = Antichain.at(at[0] + 1)
        if delta.sort_key is not self.sort_key:
            delta = delta.sorted_by(self.sort_key)
        self.insert(delta.at_time(at, Description(self.upper, upper, self._logical)))

    def seal(self, upper: Antichain) -> None:
        """Declare that no more updates come before `upper`."""
        if upper != self.upper:
            self.insert(Batch(self.sort_key, (), Description(self.upper, upper, self._logical)))

    def close(self) -> None:
        """Declare that no more updates come at all. The trace stays readable."""
        self.seal(Antichain())
        with self._lock:
            for listen in list(self._listeners):
                listen(None)

    def _check_times(self, batch: Batch) -> None:
        if not batch.rows:
            return
        description: Description = batch.description
        times: Iterable[Sequence[int]]
        if batch.time is not None:
            times = (batch.time,)
        elif self.width == 1:
            times = (batch.earliest, batch.latest)
        else:
            times = reading.distinct_times(batch)
        for lanes in times:
            time = Time(lanes[: self.width])
            if not description.lower.less_equal(time) or description.upper.less_equal(time):
                raise TimeError(f"an update at {time!r} does not lie in {description!r}")

    def _after_work(self) -> None:
        """Start large merges on the background thread, and wait for those that are overdue."""
        self.spine = self._background.start_merges(self.spine)

    def _adopt(self) -> None:
        """Adopt what the background thread has merged so far."""
        if self._background.running:
            self.spine = self._background.adopt(self.spine)

    # ------------------------------------------------------------------ compaction

    @property
    def since(self) -> Antichain:
        """How far back the trace can answer."""
        return self._logical

    @property
    def physical(self) -> Antichain:
        """The physical frontier: boundaries between batches at or after it can be read up to."""
        return self._physical

    def _hold(
        self, logical: Antichain, physical: Antichain, old: tuple[Antichain, Antichain], begin: bool = True
    ) -> None:
        """Replace what an agent held before by what it holds now; empty antichains hold nothing."""
        with self._lock:
            self._held_logical.replace(old[0], logical)
            self._held_physical.replace(old[1], physical)
            self._follow(begin)

    def _follow(self, begin: bool = True) -> None:
        """Move the frontiers to the meet of those of all agents; without agents, to `upper`.

        With `begin`, merges that become possible are started; else the next insert does that.
        """
        logical = self._held_logical.frontier or self.upper
        physical = self._held_physical.frontier or self.upper
        moved = self._logical.join(logical), self._physical.join(physical)
        if moved != (self._logical, self._physical) or self.retention.differs_from(self.spine.compaction):
            if begin:
                self._adopt()
            compaction = Compaction(*moved, self.retention.merge_filter())
            spine = self.spine.compact_to(compaction) if begin else self.spine.with_compaction(compaction)
            self._logical, self._physical, self.spine = *moved, spine
        if begin:
            self._after_work()

    def retain(self, column: str, at_least: Any) -> None:
        """Drop rows whose value in a column is below a bound. Bounds only rise; NULLs stay."""
        with self._lock:
            self.retention = self.retention.with_bound(self.sort_key.schema, column, at_least)
            self._follow()

    def set_exert_logic(self, logic: ExertLogic | None) -> None:
        """`logic` takes (level, batches, rows) from the largest level down and returns how many rows `exert` merges."""
        self._exert_logic = logic

    def exert(self) -> bool:
        """Merge in idle time as the exert logic says; returns whether there may be more to do."""
        with self._lock:
            self._adopt()
            effort = self._exert_logic(self.spine.levels()) if self._exert_logic is not None else None
            if self._exert_logic is not None and not effort and self.spine.has_stale_times():
                effort = self.spine.config.merge_step_rows
            if not effort:
                return bool(self._background.running)
            spine = self.spine.exert(effort)
            worked = spine is not self.spine
            self.spine = spine
            self._after_work()
            return worked or bool(self._background.running)

    def finish(self) -> None:
        """Wait for background merges, and do all merges that are due."""
        with self._lock:
            self.spine = self._background.finish(self.spine)

    def stop(self) -> None:
        """Stop background merges. Everything stays readable."""
        with self._lock:
            self._adopt()
            self._background.cancel()

    # ------------------------------------------------------------------ sharing

    def fork(self) -> Trace:
        """An independent trace that shares all batches. Copies nothing but the frontiers."""
        with self._lock:
            self._adopt()
            other = Trace.__new__(Trace)
            other._setup(self.sort_key, self.width, self.upper, self._logical, self.spine.config, self.spine.entries)
            other._physical = self._physical
            other.retention = self.retention
            other._exert_logic = self._exert_logic
            other.spine = self.spine.with_own_stats()
            return other

    def listen(self, listener: Callable[[Batch | None], None]) -> Callable[[], None]:
        """Call a function with every batch inserted from now on, and with None at the end. Returns a function that
        unregisters the listener."""
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    # ------------------------------------------------------------------ reading

    def reading(self) -> Spine:
        """The spine as it is now: a value that later inserts and merges do not change."""
        if self._background.running:
            with self._lock:
                self.spine = self._background.adopt(self.spine, reading=True)
        return self.spine

    def keys(self, data: Any) -> Keys:
        """Keys to probe for: Arrow columns in the order of the key columns, or Python rows."""
        return Keys.of(self.sort_key, data)

    def probe(self, keys: Any) -> FoundRows:
        """Every row that has one of the keys, over all batches; weights, times and columns on demand."""
        found = reading.probe(self.reading(), keys if isinstance(keys, Keys) else self.keys(keys))
        return self.retention.filter_found(found)

    def first(self, keys: Any, limit: int = 1) -> FoundRows:
        """The first rows of each key in the order of the sort key, with their weights over all times."""
        return self._first_or_last(keys, limit, False)

    def last(self, keys: Any, limit: int = 1) -> FoundRows:
        """The last rows of each key in the order of the sort key, last row first."""
        return self._first_or_last(keys, limit, True)

    def _first_or_last(self, keys: Any, limit: int, last: bool) -> FoundRows:
        keys = keys if isinstance(keys, Keys) else self.keys(keys)
        return reading.first_rows_in_order(
            self.reading(), keys, limit, last, self.retention.filter_found if self.retention else None
        )

    def scan(self) -> Batch:
        """All rows, with weights summed over all times."""
        return self.retention.filter_batch(self.reading().consolidated())

    def as_of(self, time: TimeLike) -> Batch:
        """Exactly the Z-set at a time with since <= time < upper."""
        spine = self.reading()
        at = self._readable(spine, time)
        return self.retention.filter_batch(reading.snapshot(spine.batches, self.sort_key, at))

    def changes(self, after: TimeLike, upto: TimeLike) -> Batch:
        """The updates at times at or before `upto` and not at or before `after`, with their times."""
        spine = self.reading()
        low, high = self._readable(spine, after), self._readable(spine, upto)
        return self.retention.filter_batch(reading.updates_between(spine.batches, self.sort_key, low, high))

    def _readable(self, spine: Spine, time: TimeLike) -> Time:
        """The time, if the spine can answer for it; else raises. Looks at the spine, as the trace may have moved on."""
        at = Time.of(time)
        if len(at) != self.width:
            raise TimeError(f"times of this trace have {self.width} coordinates; {at!r} has {len(at)}")
        since, upper = _since(spine), spine.upper()
        if not since.less_equal(at):
            raise TimeError(f"{at!r} is before since, {since!r}: its history has been compacted")
        if upper is None or upper.less_equal(at):
            raise TimeError(f"{at!r} is not before upper, {upper or self.upper!r}: it is not complete yet")
        return at

    def cursor(self) -> Cursor:
        """A cursor over all batches."""
        spine = self.reading()
        return self._cursor(spine, spine.batches)

    def cursor_through(self, upper: Antichain) -> Cursor:
        """A cursor over the batches before `upper`, which must be a boundary between batches."""
        spine = self.reading()
        return self._cursor(spine, self._through(spine, upper))

    def batches_through(self, upper: Antichain) -> list[Batch]:
        """The batches before `upper`, which must be a boundary at or after the physical frontier."""
        return self._through(self.reading(), upper)

    def _through(self, spine: Spine, upper: Antichain) -> list[Batch]:
        if upper == Antichain.at(*(0,) * self.width):
            return []
        assert spine.compaction is not None
        physical = spine.compaction.physical
        if not physical.dominates(upper):
            raise TimeError(f"{upper!r} is before the physical frontier, {physical!r}: batches have been merged")
        out: list[Batch] = []
        end = spine.entries[0].description.lower if spine.entries else self.upper
        for entry in spine.entries:
            if not entry.description.upper.dominates(upper):
                break
            out += entry.batches() if isinstance(entry, MergeState) else [entry]
            end = entry.description.upper
        if end != upper:
            raise TimeError(f"{upper!r} is not a boundary between batches; the one before it is {end!r}")
        return out

    def _cursor(self, spine: Spine, batches: Sequence[Batch]) -> Cursor:
        since = _since(spine)
        at = tuple(since.meet_of_all()) if since else ()
        return Cursor([self.retention.filter_batch(b) for b in batches], self.sort_key, self.width, at)


def _since(spine: Spine) -> Antichain:
    assert spine.compaction is not None
    return spine.compaction.logical


def _check_contiguous(upper: Antichain, description: Description) -> None:
    if description.lower != upper:
        raise TimeError(f"a batch begins where the trace ends, at {upper!r}; given {description!r}")


def advance_batch(batch: Batch, since: Antichain) -> Batch:
    """A batch with its times advanced to `since`, and consolidated."""
    if not since or not batch.rows:
        return batch
    description: Description = batch.description
    out = merge((batch,), tuple(since.meet_of_all()))
    return out.with_description(Description(description.lower, description.upper, description.since.join(since)))
