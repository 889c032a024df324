"""Fixpoints in a Spark job: a few iterations are unrolled as stages between two levels, so most ticks are one job.

*State of the tick.* A stage is a function of what it receives. So the state that a shard needs from stage to stage (the
rows of the present tick by trace, deferred batches, changes of the variables) is forwarded with the rows, as batches
that are encoded once and decoded only by a level that reads them. Beyond `MAX_INLINE_BYTES` bytes they are spilled to a
file and their extents are forwarded. State before the tick is opened from the records of the traces. Slots from the
level in front to the level behind are forwarded in the same way.

*Votes* are sent by every shard to all shards. Without votes the fixpoint has ended, and the remaining stages only
forward.

*More iterations than stages.* The level behind the fixpoint then receives votes. It spills everything that it has
received and reports that to the driver, which runs another job from the first iteration's stage on
(`run_until_complete`). A superfluous stage costs its tasks, a missing one another job. As many iterations are unrolled
as the last tick took, up to `MAX_UNROLLED_ITERATIONS`; a tick that does not touch the recursion needs one.

Cost: that of the fixpoint on the rows of a shard, and for every iteration one shuffle for each of its levels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.errors import CorruptFileError
from dbspark.operators.nested import NestedArranged, NestedSite, NestedStateful, PendingIterations
from dbspark.runtime.fixpoint import IterationLevel, Vote, agreed
from dbspark.runtime.level_plan import FixpointPlan, Level, NodeStep
from dbspark.runtime.stage import SPILLED, SUSPENDED, Row, StageTask, should_spill
from dbspark.runtime.task import FixpointOutcome, LevelTask
from dbspark.storage.segment import batch_bytes, decode_batch

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

    def to_bytes(self, task: StageTask) -> bytes:
        lists = [*self.tick_rows.values(), *self.changes.values()]
        lists += [items for by_iteration in self.deferred.values() for items in by_iteration.values()]
        loose = [(items, i, item) for items in lists for i, item in enumerate(items) if isinstance(item, bytes)]
        if should_spill(item for _, _, item in loose):
            for (items, i, _), place in zip(loose, task.stored.spill([item for _, _, item in loose]), strict=True):
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


def _decode_batches(task: StageTask, items: Iterable[EncodedBatch], sort_key: SortKey) -> list[Batch]:
    return [
        decode_batch(pa.py_buffer(i) if isinstance(i, bytes) else task.stored.read_spilled(i), sort_key) for i in items
    ]


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
        assert isinstance(task, StageTask)
        loop, received = self.loop, task.received
        if loop.finished_slot in received:
            return
        number = self.stage % len(loop.levels)
        votes = [Vote(*json.loads(v)) for v in received.pop(loop.votes_slot, ())]
        stored = received.pop(loop.state_slot, None)
        run: _FixpointState = _FixpointState.from_bytes(stored[0]) if stored else _FixpointState()
        following = agreed(votes)
        if following is not None:
            run.iteration = following
        elif stored and not number:
            received[loop.finished_slot] = stored
            return
        # Neither state nor votes: this is the first stage, or the fixpoint has received nothing on this shard.
        inner_slots = {
            s.removeprefix(loop.slot_prefix): received.pop(s) for s in list(received) if s.startswith(loop.slot_prefix)
        }
        nested = task.nested(loop.levels[number], inner_slots)
        state = _StageState(loop, number, task, run)
        level = IterationLevel(loop, number, nested, state)
        if votes:
            level.check_limit(votes)
        if level.step():
            state.save_arrangements()
            task.rows += [(s, loop.slot_prefix + slot, payload) for s, slot, payload in task.outgoing_rows(nested)]
        vote = level.vote() if number == len(loop.levels) - 1 else None
        if vote is not None:
            ballot = json.dumps(vote).encode()
            task.rows += [(shard, loop.votes_slot, ballot) for shard in range(task.context.shards)]
        if run != _FixpointState():
            task.rows.append((task.shard, loop.state_slot, run.to_bytes(task)))


class _StageState:
    """The state of a fixpoint as one stage uses it: decoded where it is read, and encoded again."""

    def __init__(self, loop: FixpointPlan, number: int, task: StageTask, run: _FixpointState) -> None:
        self.loop = loop
        self.number = number
        self.task = task
        self.run = run
        self.iteration = run.iteration
        self.arrangements: dict[str, tuple[NestedArranged, dict[int, EncodedBatch]]] = {}
        """By trace, the arrangement, and the batches of the present tick that are encoded already, by `id`."""

    def is_deferred(self, step: NodeStep) -> bool:
        """Whether work of a node was deferred to this iteration."""
        return self.iteration in self.run.deferred.get(step.id, ())

    def add_change(self, variable: str, change: Batch) -> None:
        """Record the change of a variable."""
        self.run.changes.setdefault(variable, []).append(batch_bytes(change))

    def first_deferred(self) -> int | None:
        """The first later iteration to which work is deferred."""
        return min((i for by_iteration in self.run.deferred.values() for i in by_iteration), default=None)

    def save_arrangements(self) -> None:
        """Encode the rows of the present tick."""
        for trace, (arranged, encoded_before) in self.arrangements.items():
            if arranged.delta.rows:
                batches = arranged.present().work().batches
                self.run.tick_rows[trace] = [encoded_before.get(id(b)) or batch_bytes(b) for b in batches]

    def value(self, step: NodeStep, arguments: list[Any]) -> Any:
        """The output of a node in this iteration."""
        path = (self.iteration,)
        nested = step.operator.nested(NestedSite(PendingIterations(), partial(self._trace, step)))
        if not isinstance(nested, NestedStateful):
            return nested.step(path, arguments)
        order = nested.deferred_sort_key(arguments)
        waiting = self.run.deferred.setdefault(step.id, {})
        deferred = _decode_batches(self.task, waiting.pop(self.iteration, ()), order)
        if deferred:
            nested.deferred[path] = [nested.from_batch(batch) for batch in deferred]
        out = nested.step(path, arguments)
        for (later,), works in nested.deferred.items():
            waiting.setdefault(later, []).extend(batch_bytes(nested.to_batch(work, order)) for work in works)
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
        arrangement = NestedArranged(self.task.kept.spine(self.loop.id, list(traces).index(name), sort_key))
        items = self.run.tick_rows.get(name + where, [])
        batches = _decode_batches(self.task, items, sort_key)
        if batches:
            arrangement.resume(batches)
        self.arrangements[name + where] = arrangement, {id(b): item for b, item in zip(batches, items, strict=True)}
        return arrangement


@dataclass(frozen=True, slots=True)
class OutcomeStep:
    """A step of the level behind a fixpoint: decodes what the stages of the fixpoint have forwarded."""

    loop: FixpointPlan

    @property
    def id(self) -> str:
        return f"{self.loop.id} outcome"

    def run(self, task: LevelTask) -> None:
        assert isinstance(task, StageTask)
        loop = self.loop
        states = [p for slot in (loop.finished_slot, loop.state_slot) for p in task.received.pop(slot, ())]
        if not states:
            return
        run = _FixpointState.from_bytes(states[0])
        orders = {name: SortKey(schema) for name, _, schema in loop.variable_feeds}
        task.fixpoints[loop.id] = FixpointOutcome(
            run.iteration + 1,
            {name: _decode_batches(task, run.changes.get(name, ()), order) for name, order in orders.items()},
            {
                trace: _decode_batches(task, run.tick_rows[trace], sort_key)
                for trace, sort_key in loop.fixpoint.arranged.items()
                if trace in run.tick_rows
            },
        )


class UnrolledLevels(NamedTuple):
    """Levels without fixpoints between them."""

    levels: tuple[Level, ...]
    resume_levels: tuple[tuple[Level, ...], ...]
    """The levels from each resume point on, for fixpoints that have not ended."""


def unroll(levels: Sequence[Level], iterations: int = MAX_UNROLLED_ITERATIONS) -> UnrolledLevels:
    """Put stages that run at least `iterations` iterations of each fixpoint between the levels."""
    whole: list[Level] = []
    begins: list[int] = []
    for level in levels:
        if level.fixpoints:
            point = len(begins)
            begins.append(len(whole))
            whole += _stages(level.fixpoints, iterations)
            steps = [*(OutcomeStep(loop) for loop in level.fixpoints), *level.steps]
            awaited = [loop.votes_slot for loop in level.fixpoints]
            level = replace(level, steps=steps, fixpoints=[], awaited_slots=awaited, resume_point=point)
        whole.append(level)
    return UnrolledLevels(tuple(whole), tuple(tuple(whole[begin:]) for begin in begins))


def _stages(loops: Sequence[FixpointPlan], iterations: int) -> list[Level]:
    """Stages that run fixpoints side by side: at least `iterations` iterations of each, the last one complete."""
    stages = math.lcm(*(len(loop.levels) for loop in loops))
    stages *= -(-iterations * max(len(loop.levels) for loop in loops) // stages)
    return [Level([IterationStep(loop, stage) for loop in loops], forwards_rest=True) for stage in range(stages)]


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
    "IterationStep",
    "UnrolledLevels",
    "iterations_to_unroll",
    "run_until_complete",
    "unroll",
]
