"""A fixpoint on shards: its iterations are stages of the tick's Spark job.

The graph of a fixpoint is cut at exchanges into levels, as the circuit around it is; an iteration is all of these
levels in turn. Inputs of the fixpoint are received by the first iteration, and the next value of a variable by the
next. A few iterations are unrolled between the level in front of the fixpoint and the level behind it, so most ticks
are one job.

*State of the tick.* A stage is a function of what it receives. So the state that a shard needs from stage to stage (the
rows of the present tick by trace, deferred batches, changes of the variables) is forwarded with the rows, as batches
that are encoded once and decoded only by a level that reads them. Beyond `MAX_INLINE_BYTES` bytes they are spilled to a
file and their extents are forwarded. State before the tick is opened from the records of the traces. Slots from the
level in front to the level behind are forwarded in the same way.

*Agreement on the next iteration.* In the last level of an iteration every shard sends a vote to all shards: for the
next iteration if a variable changed, else for the first iteration with deferred batches. The least vote wins; without
votes the fixpoint has ended, and the remaining stages only forward. A vote may prove needless, where the changes of two
shards cancel; equal rows of a variable are exchanged to one shard before they are read, so this happens once and not
for ever.

*More iterations than stages.* The level behind the fixpoint then receives votes. It spills everything that it has
received and reports that to the driver, which runs another job from the first iteration's stage on
(`run_until_complete`). A superfluous stage costs its tasks, a missing one another job. As many iterations are unrolled
as the last tick took, up to `MAX_UNROLLED_ITERATIONS`; a tick that does not touch the recursion needs one.

Cost: that of the fixpoint on the rows of a shard, and for every iteration one shuffle for each of its levels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from dbspark.circuit.nested import endless
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.errors import CorruptFileError
from dbspark.operators.nested import NestedArranged, NestedSite, NestedStateful, PendingIterations
from dbspark.runtime.level_plan import FixpointPlan, NodeStep
from dbspark.runtime.task import SPILLED, SUSPENDED, LevelTask, Row, should_spill
from dbspark.storage.segment import decode_batch, encode_batch

MAX_UNROLLED_ITERATIONS = 4
"""Iterations that one job has at most; another job costs little more than one of its stages."""
_HEAD = b"dbspark.carried"
EncodedBatch = bytes | list[Any]
"""An encoded batch, or the extent of a file that has it, as JSON."""


@dataclass(slots=True)
class _FixpointState:
    """The state of a fixpoint on one shard during a tick, forwarded from stage to stage."""

    iteration: int = 0
    tick_rows: dict[str, list[EncodedBatch]] = field(default_factory=dict)
    """The rows of the present tick, by trace."""
    deferred: dict[str, dict[int, list[EncodedBatch]]] = field(default_factory=dict)
    """Batches for later iterations, by node and iteration."""
    changes: dict[str, list[EncodedBatch]] = field(default_factory=dict)
    """The changes of each variable so far, one batch for each iteration."""

    def to_bytes(self, task: LevelTask) -> bytes:
        lists = [*self.tick_rows.values(), *self.changes.values()]
        lists += [items for by_iteration in self.deferred.values() for items in by_iteration.values()]
        loose = [(items, i, item) for items in lists for i, item in enumerate(items) if isinstance(item, bytes)]
        if should_spill(item for _, _, item in loose):
            for (items, i, _), place in zip(loose, task.spill([item for _, _, item in loose]), strict=True):
                items[i] = place
        return self._encoded()

    def _encoded(self) -> bytes:
        """An Arrow stream: encoded batches as rows, the rest as JSON in the metadata of its schema."""
        batches: list[bytes] = []

        def listed(items: list[EncodedBatch]) -> list[int | list[Any]]:
            out: list[int | list[Any]] = []
            for item in items:
                if isinstance(item, bytes):
                    out.append(len(batches))
                    batches.append(item)
                else:
                    out.append(item)
            return out

        head = {
            "iteration": self.iteration,
            "present": {trace: listed(items) for trace, items in self.tick_rows.items()},
            "waiting": {n: {str(i): listed(items) for i, items in by.items()} for n, by in self.deferred.items()},
            "changes": {name: listed(items) for name, items in self.changes.items()},
        }
        schema = pa.schema([pa.field("batch", pa.large_binary(), False)], metadata={_HEAD: json.dumps(head)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(batches, pa.large_binary())], schema=schema))
        return bytes(sink.getvalue())

    @staticmethod
    def from_bytes(data: bytes) -> _FixpointState:
        """The inverse of `to_bytes`. The bytes may come from a file, so they are parsed as data and never unpickled."""
        try:
            with pa.ipc.open_stream(data) as reader:
                head = json.loads(reader.schema.metadata[_HEAD])
                batches = [value for batch in reader for value in batch.column(0).to_pylist()]

            def items(listed: list[int | list[Any]]) -> list[EncodedBatch]:
                return [batches[item] if isinstance(item, int) else item for item in listed]

            return _FixpointState(
                int(head["iteration"]),
                {trace: items(listed) for trace, listed in head["present"].items()},
                {n: {int(i): items(listed) for i, listed in by.items()} for n, by in head["waiting"].items()},
                {name: items(listed) for name, listed in head["changes"].items()},
            )
        except (pa.ArrowException, OSError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptFileError(
                "what a fixpoint carries from stage to stage is damaged; run the transaction again: "
                f"{error or type(error).__name__}"
            ) from None


def _encode_batch(batch: Batch) -> bytes:
    return b"".join(encode_batch(batch))


def _decode_batches(task: LevelTask, items: Iterable[EncodedBatch], sort_key: SortKey) -> list[Batch]:
    return [decode_batch(pa.py_buffer(i) if isinstance(i, bytes) else task.read_spilled(i), sort_key) for i in items]


@dataclass(frozen=True, slots=True)
class IterationStep:
    """A stage: one level of one iteration of a fixpoint."""

    loop: FixpointPlan
    stage: int

    @property
    def id(self) -> str:
        return f"{self.loop.id} {self.stage}"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.loop.id,)

    def reads_slot(self, slot: str) -> bool:
        """Whether a slot belongs to this fixpoint."""
        return slot.startswith(self.loop.id)

    def run(self, task: LevelTask) -> None:
        loop, received = self.loop, task.received
        if loop.finished_slot in received:
            return
        number = self.stage % len(loop.levels)
        votes = [json.loads(v) for v in received.pop(loop.votes_slot, ())]
        stored = received.pop(loop.state_slot, None)
        run: _FixpointState = _FixpointState.from_bytes(stored[0]) if stored else _FixpointState()
        if votes:
            run.iteration = min(v["next"] for v in votes)
        elif stored and not number:
            received[loop.finished_slot] = stored
            return
        # Neither state nor votes: this is the first stage, or the fixpoint has received nothing on this shard.
        inner_slots = {
            s.removeprefix(loop.slot_prefix): received.pop(s) for s in list(received) if s.startswith(loop.slot_prefix)
        }
        stage = _IterationStage(loop, number, task, run, inner_slots)
        if votes and run.iteration >= loop.fixpoint.limit and stage.has_work():
            growing = {name for v in votes for name in v["growing"]}
            raise endless([name for name, _, _ in loop.variable_feeds if name in growing], loop.fixpoint.limit)
        stage.step()
        if number == len(loop.levels) - 1:
            stage.vote()
        if run != _FixpointState():
            task.extra_rows.append((task.shard, loop.state_slot, run.to_bytes(task)))


class _IterationStage:
    """One level of one iteration on one shard."""

    def __init__(
        self, loop: FixpointPlan, number: int, task: LevelTask, run: _FixpointState, received: dict[str, list[bytes]]
    ) -> None:
        self.loop = loop
        self.number = number
        self.task = task
        self.run = run
        self.level = loop.levels[number]
        self.nested_task = task.nested(self.level, received)
        self.iteration_time = (run.iteration,)
        self.arrangements: dict[str, tuple[NestedArranged, dict[int, EncodedBatch]]] = {}
        """By trace, the arrangement, and the batches of the present tick that are encoded already, by `id`."""

    def has_work(self) -> bool:
        """Whether rows have been received, or batches were deferred to this iteration."""
        streams = self.level.streams
        if any(self.nested_task.delta(slot, streams[slot].schema).rows for slot in list(self.nested_task.received)):
            return True
        return any(self.run.iteration in by_iteration for by_iteration in self.run.deferred.values())

    def step(self) -> None:
        """Run the nodes of the level, if they have rows to work on."""
        nested_task, waiting = self.nested_task, self.run.deferred
        here = any(self.run.iteration in waiting.get(step.id, ()) for step in self.level.steps)
        if not nested_task.received and not here:
            return
        for step in self.level.steps:
            arguments = [
                nested_task.values[s] if schema is None else nested_task.delta(s, schema) for s, schema in step.inputs
            ]
            nested_task.values[step.id] = self._value(step, arguments)
        for trace, (arranged, encoded_before) in self.arrangements.items():
            if arranged.delta.rows:
                batches = arranged.present().work().batches
                self.run.tick_rows[trace] = [encoded_before.get(id(b)) or _encode_batch(b) for b in batches]
        self.task.extra_rows += [
            (s, self.loop.slot_prefix + slot, payload) for s, slot, payload in nested_task.outgoing_rows()
        ]

    def vote(self) -> None:
        """Record the changes of the variables, and vote for the next iteration."""
        growing = []
        for name, slot, schema in self.loop.variable_feeds:
            change = self.nested_task.delta(slot, schema).sorted_by(SortKey(schema))
            if change.rows:
                growing.append(name)
                self.run.changes.setdefault(name, []).append(_encode_batch(change))
        waiting = [i for by_iteration in self.run.deferred.values() for i in by_iteration]
        following = self.run.iteration + 1 if growing else min(waiting, default=None)
        if following is not None:
            vote = json.dumps({"next": following, "growing": growing}).encode()
            self.task.extra_rows += [(shard, self.loop.votes_slot, vote) for shard in range(self.task.context.shards)]

    def _value(self, step: NodeStep, arguments: list[Any]) -> Any:
        """The output of a node in this iteration."""
        nested = step.operator.nested(NestedSite(PendingIterations(), partial(self._trace, step)))
        if not isinstance(nested, NestedStateful):
            return nested.step(self.iteration_time, arguments)
        order = nested.deferred_sort_key(arguments)
        waiting = self.run.deferred.setdefault(step.id, {})
        deferred = _decode_batches(self.task, waiting.pop(self.run.iteration, ()), order)
        if deferred:
            nested.deferred[self.iteration_time] = [nested.from_batch(batch) for batch in deferred]
        out = nested.step(self.iteration_time, arguments)
        for (later,), works in nested.deferred.items():
            waiting.setdefault(later, []).extend(_encode_batch(nested.to_batch(work, order)) for work in works)
        if not waiting:
            del self.run.deferred[step.id]
        return out

    def _trace(self, step: NodeStep, name: str) -> NestedArranged:
        """The arrangement of a node. The first level that reads it owns its rows; others have a copy of their own."""
        return self._arrangement(step.id + name, "" if step.owns_state else f" {self.number}")

    def _arrangement(self, name: str, where: str = "") -> NestedArranged:
        """The arrangement of a node: its trace before the tick, and the rows of the tick so far."""
        traces = self.loop.fixpoint.arranged
        sort_key = traces[name]
        arrangement = NestedArranged(self.task.spine(self.loop.id, list(traces).index(name), sort_key))
        items = self.run.tick_rows.get(name + where, [])
        batches = _decode_batches(self.task, items, sort_key)
        if batches:
            arrangement.resume(batches)
        self.arrangements[name + where] = arrangement, {id(b): item for b, item in zip(batches, items, strict=True)}
        return arrangement


@dataclass(frozen=True, slots=True)
class FixpointResultStep:
    """In the level behind a fixpoint: gives its results and updates its traces."""

    loop: FixpointPlan

    @property
    def id(self) -> str:
        return self.loop.id

    def run(self, task: LevelTask) -> None:
        loop = self.loop
        states = [p for slot in (loop.finished_slot, loop.state_slot) for p in task.received.pop(slot, ())]
        run: _FixpointState = _FixpointState.from_bytes(states[0]) if states else _FixpointState()
        if states:
            task.report_fields.setdefault("iterations", {})[loop.id] = run.iteration + 1
        results = loop.fixpoint.nothing()
        for name, _, schema in loop.variable_feeds:
            changes = _decode_batches(task, run.changes.get(name, ()), SortKey(schema))
            if changes:
                results[name] = Delta.of(merge(changes))
        task.values[loop.id] = results
        if not run.tick_rows:
            return
        before = task.state(loop.id, loop.fixpoint.state_sort_keys())
        after = []
        for trace, past in zip(loop.fixpoint.arranged, before, strict=True):
            new = _decode_batches(task, run.tick_rows.get(trace, ()), past.sort_key)
            after.append(past.insert(merge(new)) if new else past)
        if any(a is not b for a, b in zip(after, before, strict=True)):
            task.set_state(loop.id, tuple(after))


def iterations_to_unroll(last: int) -> int:
    """How many iterations to unroll after a tick that took `last`: a power of two, so that few plans are needed."""
    return min(1 << max(last - 1, 0).bit_length(), MAX_UNROLLED_ITERATIONS)


def run_until_complete(run: Callable[[int | None, Sequence[Row]], list[Row]], rows: Sequence[Row]) -> list[Row]:
    """Run jobs until all fixpoints have ended; returns the rows that the last level of each job has sent.

    `run` runs all levels (None), or those from a resume point on, on rows for the first of them.
    """
    out: list[Row] = []
    resume_point = None
    while True:
        made = run(resume_point, rows)
        suspended = [(shard, payload) for shard, slot, payload in made if slot == SUSPENDED]
        out += [row for row in made if row[1] != SUSPENDED]
        if not suspended:
            return out
        resume_point = json.loads(suspended[0][1])["resumes"]
        rows = [(shard, SPILLED, payload) for shard, payload in suspended]


__all__ = [
    "MAX_UNROLLED_ITERATIONS",
    "FixpointResultStep",
    "IterationStep",
    "iterations_to_unroll",
    "run_until_complete",
]
