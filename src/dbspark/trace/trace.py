"""`Trace`: the history of a Z-set as a spine of batches, and the frontiers that say how much of it is kept.

A trace is written at its end: every batch begins where the last one ended (`upper`). Readers hold it through agents
(`TraceAgent`), each with two frontiers that only move forward:

* *logical*: the agent will not ask for times below it, so those may be advanced to it and their rows consolidated;
* *physical*: the agent will not ask to read up to a boundary below it, so batches before it may be merged.

The trace compacts to the meet of its holders. A trace that nobody holds follows its `upper`: all of its rows are
there, at one time. `since` is how far back it can answer; asking for an earlier time is an error, never a wrong
answer.

Merges are paid by inserts, a few rows for each row inserted; large ones run on a thread beside the ticks, and an insert
waits for one only if as many rows have come since it began as it is merging. `exert` spends idle time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.merge_batches import merge
from dbspark.errors import SchemaError, TimeError
from dbspark.trace import lookup as reading
from dbspark.trace.background_merges import BackgroundMerges
from dbspark.trace.config import Compaction, SpineConfig
from dbspark.trace.cursor import Cursor
from dbspark.trace.lookup import FoundRows, Keys
from dbspark.trace.merge_state import MergeState
from dbspark.trace.retention import Retention
from dbspark.trace.spine import Spine
from dbspark.trace.time import Antichain, Description, MutableAntichain, Time, TimeLike

if TYPE_CHECKING:
    from dbspark.trace.agent import TraceAgent

DEFAULT = SpineConfig()
Levels = list[tuple[int, int, int]]
ExertLogic = Callable[[Levels], int | None]


def idle_merge_effort(effort: int) -> ExertLogic:
    """Merge by `effort` rows whenever idle, while there is more than one batch."""
    return lambda levels: effort if len(levels) > 1 or any(count > 1 for _, count, _ in levels) else None


class Trace:
    """See the module's preface. `width` is the number of coordinates of its times."""

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
        """Updates at times at or above this are not there yet."""
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
        """A trace of batches that exist, such as those of files: described, and each beginning where the last ended."""
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
            if not description.since.dominates(logical):  # it has been compacted further than we have
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
        """Append a delta, all of it at one time: that of `upper` if none is given, and up to the next tick."""
        at = self.upper.meet_of_all() if time is None else Time.of(time)
        if upper is None:
            if self.width != 1:
                raise TimeError("times of several coordinates have no next one; say what the new upper is")
            upper = Antichain.at(at[0] + 1)
        if delta.sort_key is not self.sort_key:
            delta = delta.sorted_by(self.sort_key)
        self.insert(delta.at_time(at, Description(self.upper, upper, self._logical)))

    def seal(self, upper: Antichain) -> None:
        """Say that nothing more comes before `upper`."""
        if upper != self.upper:
            self.insert(Batch(self.sort_key, (), Description(self.upper, upper, self._logical)))

    def close(self) -> None:
        """Nothing more comes at all. What is there stays readable."""
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
        """Hand large merges to the background, and wait for one that falls behind."""
        self.spine = self._background.start_merges(self.spine)

    def _adopt(self) -> None:
        """Take over what the background has merged so far."""
        if self._background.running:
            self.spine = self._background.adopt(self.spine)

    # ------------------------------------------------------------------ compaction

    @property
    def since(self) -> Antichain:
        """How far back the trace can answer."""
        return self._logical

    @property
    def physical(self) -> Antichain:
        """Boundaries at or after this can be read up to."""
        return self._physical

    def agent(self) -> TraceAgent:
        """A shared handle, which holds the trace where it is now."""
        from dbspark.trace.agent import TraceAgent

        with self._lock:
            return TraceAgent(self, self._logical, self._physical)

    def holder(self, since: Antichain) -> TraceAgent:
        """A handle that keeps every time from `since` on readable, and no boundaries between batches."""
        from dbspark.trace.agent import TraceAgent

        with self._lock:
            if not self._logical.dominates(since):
                raise TimeError(f"{since!r} is before since, {self._logical!r}: its history has been compacted")
            return TraceAgent(self, since, Antichain(), begin=False)

    def _hold(
        self, logical: Antichain, physical: Antichain, old: tuple[Antichain, Antichain], begin: bool = True
    ) -> None:
        """Count what an agent holds now instead of what it held before (nothing: no times)."""
        with self._lock:
            self._held_logical.replace(old[0], logical)
            self._held_physical.replace(old[1], physical)
            self._follow(begin)

    def _follow(self, begin: bool = True) -> None:
        """Move the trace's frontiers to the meet of what is held; where nothing is held, to the end.

        Merges that become possible are begun, unless that is left to the insert that follows.
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
        """Forget rows whose value in a column is below a bound. Bounds only rise; NULLs stay."""
        with self._lock:
            self.retention = self.retention.with_bound(self.sort_key.schema, column, at_least)
            self._follow()

    def set_exert_logic(self, logic: ExertLogic | None) -> None:
        """`logic` is given (level, batches, rows) from the largest level down; it says by how many rows to merge."""
        self._exert_logic = logic

    def exert(self) -> bool:
        """Spend idle time as the exert logic says; returns whether there may be more to do."""
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
        """Wait for merges in the background and do those that are due."""
        with self._lock:
            self.spine = self._background.finish(self.spine)

    def stop(self) -> None:
        """Stop merges in the background. All stays readable."""
        with self._lock:
            self._adopt()
            self._background.cancel()

    # ------------------------------------------------------------------ sharing

    def fork(self) -> Trace:
        """A copy that shares all batches and goes its own way from here. Costs nothing but the frontiers."""
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
        """Call a function with every batch inserted from now on, and with None at the end. Returns how to stop it."""
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    # ------------------------------------------------------------------ reading

    def reading(self) -> Spine:
        """The spine as it is now: a value, which later inserts and merges do not change."""
        if self._background.running:
            with self._lock:
                self.spine = self._background.adopt(self.spine, reading=True)
        return self.spine

    def keys(self, data: Any) -> Keys:
        """Keys to probe for: Arrow columns in the order of the key columns, or Python rows."""
        return Keys.of(self.sort_key, data)

    def probe(self, keys: Any) -> FoundRows:
        """Every row that has one of the keys, over all batches; weights, times and columns on demand."""
        hits = reading.probe(self.reading(), keys if isinstance(keys, Keys) else self.keys(keys))
        return self.retention.filter_found(hits)

    def first(self, keys: Any, limit: int = 1) -> FoundRows:
        """The first rows of each key by the sort key's order columns, with their weights over all times."""
        return self._first_or_last(keys, limit, False)

    def last(self, keys: Any, limit: int = 1) -> FoundRows:
        """The last rows of each key, from the end."""
        return self._first_or_last(keys, limit, True)

    def _first_or_last(self, keys: Any, limit: int, last: bool) -> FoundRows:
        keys = keys if isinstance(keys, Keys) else self.keys(keys)
        return reading.first_rows_in_order(
            self.reading(), keys, limit, last, self.retention.filter_found if self.retention else None
        )

    def scan(self) -> Batch:
        """Everything, summed over all times."""
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
        """A time that a spine can answer for. The spine says so itself: the trace may have moved on meanwhile."""
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
        """A cursor over everything."""
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
    """A batch as a reader at `since` sees it."""
    if not since or not batch.rows:
        return batch
    description: Description = batch.description
    out = merge((batch,), tuple(since.meet_of_all()))
    return out.with_description(Description(description.lower, description.upper, description.since.join(since)))
