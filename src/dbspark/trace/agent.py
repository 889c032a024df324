"""`TraceAgent`: a shared handle on a trace. `TraceImport`: the stream of batches of a trace, past and future.

An agent keeps the trace readable from its own two frontiers on. Frontiers only move forward: setting an earlier one
changes nothing. A dropped agent holds nothing and can no longer be used.

An import returns the batches that the trace has, with times advanced to the agent's logical frontier, then every batch
as it is inserted, and the frontier up to which it has returned everything. It works the same after the writer has
closed the trace. It holds the trace only from that frontier on.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

from dbspark.columnar import Batch
from dbspark.errors import TimeError
from dbspark.trace.cursor import Cursor
from dbspark.trace.lookup import FoundRows
from dbspark.trace.merge_state import MergeState
from dbspark.trace.spine import Spine
from dbspark.trace.time import Antichain, Description, TimeLike
from dbspark.trace.trace import Trace, advance_batch

_NO_HOLD = Antichain(), Antichain()
"""The frontiers of an agent that holds nothing."""


class AgentCheckpoint(NamedTuple):
    """The state of a trace and one of its agents before an append."""

    logical: Antichain
    physical: Antichain
    spine: Spine
    upper: Antichain
    trace_logical: Antichain
    trace_physical: Antichain


class TraceAgent:
    """Reads a trace, and keeps it readable from its frontiers on. Drop it, or use it in a `with` block."""

    def __init__(self, trace: Trace, logical: Antichain, physical: Antichain, begin: bool = True) -> None:
        self._trace = trace
        self._logical = logical
        self._physical = physical
        self._dropped = False
        trace._hold(logical, physical, _NO_HOLD, begin)

    @staticmethod
    def of(trace: Trace) -> TraceAgent:
        """An agent that holds the trace where it is now."""
        with trace._lock:
            return TraceAgent(trace, trace.since, trace.physical)

    @staticmethod
    def holding(trace: Trace, since: Antichain) -> TraceAgent:
        """An agent that keeps every time from `since` on readable, and no boundaries between batches."""
        with trace._lock:
            if not trace.since.dominates(since):
                raise TimeError(f"{since!r} is before since, {trace.since!r}: its history has been compacted")
            return TraceAgent(trace, since, Antichain(), begin=False)

    @property
    def trace(self) -> Trace:
        if self._dropped:
            raise TimeError("this agent has been dropped and holds nothing; clone an agent before dropping it")
        return self._trace

    @property
    def logical(self) -> Antichain:
        """Logical frontier: the agent reads no time below it."""
        return self._logical

    @property
    def physical(self) -> Antichain:
        """Physical frontier: the agent does not read up to a boundary between batches below it."""
        return self._physical

    @property
    def upper(self) -> Antichain:
        return self.trace.upper

    @property
    def since(self) -> Antichain:
        """How far back the trace can answer: at or below the agent's own logical frontier."""
        return self.trace.since

    def set_logical_compaction(self, frontier: Antichain) -> None:
        """Move the logical frontier: the agent reads no time below it any more."""
        self._move(self._logical.join(frontier), self._physical)

    def set_physical_compaction(self, frontier: Antichain) -> None:
        """Move the physical frontier: the agent reads up to no boundary between batches below it any more."""
        self._move(self._logical, self._physical.join(frontier))

    def advance(self, frontier: Antichain) -> None:
        """Move both frontiers."""
        self._move(self._logical.join(frontier), self._physical.join(frontier))

    def append(self, delta: Batch, tick: int, since: Antichain) -> None:
        """Append the delta of a tick and move the agent: its physical frontier behind the tick, the logical to `since`.

        Both happen in one step, so merges started by the append may use the new frontiers. If it raises, nothing has
        changed.
        """
        checkpoint = self.checkpoint()
        try:
            self._move(self._logical.join(since), Antichain.at(tick + 1), begin=False)
            self.trace.append(delta, (tick,))
        except BaseException:
            self.restore(checkpoint)
            raise

    def append_described(self, batch: Batch, description: Description, since: Antichain) -> None:
        """Like `append`, for a batch of several ticks whose times have been advanced at most to `permitted(since)`."""
        permitted = self.permitted(description.since)
        if not description.since.dominates(permitted):
            raise TimeError(
                f"times of the batch have been advanced to {description.since!r}, but somebody holds {permitted!r}; "
                "nothing was appended"
            )
        checkpoint = self.checkpoint()
        try:
            self._move(self._logical.join(since), description.upper, begin=False)
            self.trace.insert(batch.with_description(description))
        except BaseException:
            self.restore(checkpoint)
            raise

    def permitted(self, since: Antichain) -> Antichain:
        """How far times may be advanced once this agent moves to `since`: the meet of the frontiers of all holders."""
        return since.meet(self._trace._held_logical.without(self._logical))

    def checkpoint(self) -> AgentCheckpoint:
        """The state of the trace and of this agent, to which `restore` goes back. Copies nothing."""
        trace = self.trace
        with trace._lock:
            return AgentCheckpoint(
                self._logical, self._physical, trace.spine, trace.upper, trace._logical, trace._physical
            )

    def restore(self, checkpoint: AgentCheckpoint) -> None:
        """Undo all appends since the checkpoint. The agent must be the only writer, and there must be no listeners."""
        trace = self._trace
        with trace._lock:
            trace._held_logical.replace(self._logical, checkpoint.logical)
            trace._held_physical.replace(self._physical, checkpoint.physical)
            self._logical, self._physical = checkpoint.logical, checkpoint.physical
            trace.spine, trace.upper = checkpoint.spine, checkpoint.upper
            trace._logical, trace._physical = checkpoint.trace_logical, checkpoint.trace_physical

    def _move(self, logical: Antichain, physical: Antichain, begin: bool = True) -> None:
        trace = self.trace
        if (logical, physical) == (self._logical, self._physical):
            return
        old = self._logical, self._physical
        self._logical, self._physical = logical, physical
        trace._hold(logical, physical, old, begin)

    def clone(self) -> TraceAgent:
        """Another handle that holds what this one holds."""
        return TraceAgent(self.trace, self._logical, self._physical)

    def drop(self, begin: bool = True) -> None:
        """Release what the agent holds; it cannot be used any more. Dropping again does nothing.

        With `begin`, merges that become possible are started; else the next insert does that.
        """
        if not self._dropped:
            self._dropped = True
            self._trace._hold(*_NO_HOLD, (self._logical, self._physical), begin)

    def __enter__(self) -> TraceAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    # ------------------------------------------------------------------ reading

    def probe(self, keys: Any) -> FoundRows:
        return self.trace.probe(keys)

    def first(self, keys: Any, limit: int = 1) -> FoundRows:
        return self.trace.first(keys, limit)

    def last(self, keys: Any, limit: int = 1) -> FoundRows:
        return self.trace.last(keys, limit)

    def scan(self) -> Batch:
        return self.trace.scan()

    def as_of(self, time: TimeLike) -> Batch:
        return self.trace.as_of(time)

    def changes(self, after: TimeLike, upto: TimeLike) -> Batch:
        return self.trace.changes(after, upto)

    def cursor(self) -> Cursor:
        return self.trace.cursor()

    def cursor_through(self, upper: Antichain) -> Cursor:
        return self.trace.cursor_through(upper)

    def fork(self) -> Trace:
        return self.trace.fork()

    def import_trace(self) -> TraceImport:
        """The stream of batches of the trace, with times advanced to this agent's logical frontier."""
        return TraceImport(self.clone())


class TraceImport:
    """The batches of a trace as they are inserted, existing ones first."""

    def __init__(self, agent: TraceAgent) -> None:
        self._agent = agent
        self._since = agent.logical
        self._events: deque[Batch | None] = deque()
        self._arrived = threading.Condition()
        self.frontier = Antichain.at(*(0,) * agent.trace.width)
        """Everything before this has been returned by `poll`."""
        trace = agent.trace
        with trace._lock:
            for entry in trace.reading().entries:
                pieces = entry.batches() if isinstance(entry, MergeState) else [entry]
                description: Description = entry.description
                for piece in pieces[:-1]:  # only the last piece of an entry moves the frontier
                    self._events.append(
                        piece.with_description(Description(description.lower, description.lower, description.since))
                    )
                if pieces:
                    self._events.append(pieces[-1].with_description(description))
            self._stop = trace.listen(self._push)

    def _push(self, batch: Batch | None) -> None:
        with self._arrived:
            if batch is not None:
                self._events.append(batch)
            self._arrived.notify_all()

    @property
    def done(self) -> bool:
        """Whether everything has been returned and the writer has closed the trace, or the import was cancelled."""
        return not self._events and (self._agent._dropped or not self.frontier)

    def poll(self) -> list[Batch]:
        """The batches inserted since the last call; afterwards `frontier` is their end."""
        with self._arrived:
            events = list(self._events)
            self._events.clear()
        trace = self._agent._trace
        batches: list[Batch] = []
        for batch in events:
            assert batch is not None
            self.frontier = batch.description.upper
            seen = advance_batch(trace.retention.filter_batch(batch), self._since)
            if seen.rows:
                batches.append(seen)
        with trace._lock:  # so that a cancel by another thread happens before this or after it
            try:
                self._agent.advance(self.frontier)
            except TimeError:
                if not self._agent._dropped:  # another thread may have cancelled the import in the meantime
                    raise
        return batches

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there are batches or the trace has ended; returns whether there are batches."""
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self._events) or self.done, timeout) and bool(self._events)

    def cancel(self) -> None:
        """Stop following and holding the trace."""
        self._stop()
        with self._agent._trace._lock:
            self._agent.drop()
        with self._arrived:
            self._events.clear()
            self._arrived.notify_all()

    def __enter__(self) -> TraceImport:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
