"""A fixpoint on shards: its iterations are stages of the tick's job.

The graph inside is cut at exchanges into levels as the circuit around it is, and an iteration is all of these levels,
one after another. What comes from outside comes to the first iteration; what has flown into a variable goes, where its
readers want it, to the next. A few iterations are unrolled between the level that feeds the fixpoint and the level that
reads its results, so most ticks are one job.

*What is carried.* A stage is a function of what it is handed, so all that a tick has to remember of a shard (the rows
of the present tick by trace, what waits for later iterations, what the variables have changed by) is handed from stage
to stage of the same shard, as batches that are encoded once and opened only by the level that reads them. Beyond
`MAX_INLINE_BYTES` bytes they are put into a file, and their places are carried instead. The past is opened from the
records of the traces, as everywhere. What merely passes by, from the level in front to the level behind, is handed on
in the same way.

*Which iteration is next* all shards have to agree on. In its last level every shard votes, to all shards: for the next
iteration if something flew into a variable, else for the first for which something waits. The least is next; without a
vote the fixpoint is over, and the stages that are left hand on what there is. A vote may turn out to be for nothing,
where what two shards gave cancels; rows that flow into a variable come together by some columns before they are read,
so that cannot go on.

*Not over yet.* The level that would read the results sees votes instead, puts everything that has come to it into a
file, and tells the driver, which runs the job again from the first iteration's stage on: see `run_until_complete`. So
stages too many cost their tasks, and too few another job. As many are unrolled as the last tick took, up to
`MAX_UNROLLED_ITERATIONS`: a tick that does not touch the recursion takes one.

Cost: that of the fixpoint on the rows of a shard, and for every iteration as many shuffles as there are levels inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dbspark.circuit.nested import endless, nested_of
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.errors import CorruptFileError
from dbspark.operators.aggregate import GroupAggregate
from dbspark.operators.linear import Stateless
from dbspark.operators.nested import Agenda, NestedArranged
from dbspark.operators.operator import Arrange
from dbspark.runtime.level_plan import FixpointPlan, NodeStep
from dbspark.runtime.task import SPILLED, SUSPENDED, LevelTask, Row, should_spill
from dbspark.storage.segment import decoded, encoded

MAX_UNROLLED_ITERATIONS = 4
"""Iterations that are unrolled at the most; another job costs little more than one of its stages."""
_HEAD = b"dbspark.carried"
EncodedBatch = bytes | list[Any]
"""An encoded batch, or its place in a file."""


@dataclass(slots=True)
class _FixpointState:
    """What a tick remembers of a fixpoint on a shard."""

    iteration: int = 0
    tick_rows: dict[str, list[EncodedBatch]] = field(default_factory=dict)
    """The rows of the present tick, by trace."""
    deferred: dict[str, dict[int, list[EncodedBatch]]] = field(default_factory=dict)
    """What waits, by node and iteration."""
    changes: dict[str, list[EncodedBatch]] = field(default_factory=dict)
    """What the variables have changed by."""

    def to_bytes(self, task: LevelTask) -> bytes:
        lists = [*self.tick_rows.values(), *self.changes.values()]
        lists += [items for by_iteration in self.deferred.values() for items in by_iteration.values()]
        loose = [(items, i, item) for items in lists for i, item in enumerate(items) if isinstance(item, bytes)]
        if should_spill(item for _, _, item in loose):
            for (items, i, _), place in zip(loose, task.spill([item for _, _, item in loose]), strict=True):
                items[i] = place
        return self._encoded()

    def _encoded(self) -> bytes:
        """An Arrow stream: encoded batches as rows, all else as JSON in the metadata of its schema."""
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
        """What `to_bytes` has made; it may have been in a file, so it is data and never code."""
        try:
            with pa.ipc.open_stream(data) as reader:
                head = json.loads(reader.schema.metadata[_HEAD])
                batches = [value for batch in reader for value in batch.column(0).to_pylist()]

            def items(given: list[int | list[Any]]) -> list[EncodedBatch]:
                return [batches[item] if isinstance(item, int) else item for item in given]

            return _FixpointState(
                int(head["iteration"]),
                {trace: items(given) for trace, given in head["present"].items()},
                {n: {int(i): items(given) for i, given in by.items()} for n, by in head["waiting"].items()},
                {name: items(given) for name, given in head["changes"].items()},
            )
        except (pa.ArrowException, OSError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptFileError(
                "what a fixpoint carries from stage to stage is damaged; run the transaction again: "
                f"{error or type(error).__name__}"
            ) from None


def _encode_batch(batch: Batch) -> bytes:
    return b"".join(encoded(batch))


def _decode_batches(task: LevelTask, items: Iterable[EncodedBatch], sort_key: SortKey) -> list[Batch]:
    return [decoded(pa.py_buffer(i) if isinstance(i, bytes) else task.read_spilled(i), sort_key) for i in items]


@dataclass(frozen=True, slots=True)
class IterationStep:
    """A stage between the level that feeds a fixpoint and the level behind it: one level of one iteration."""

    loop: FixpointPlan
    stage: int

    @property
    def id(self) -> str:
        return f"{self.loop.id} {self.stage}"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.loop.id,)

    def reads_slot(self, slot: str) -> bool:
        """Whether what comes in a slot is for this fixpoint."""
        return slot.startswith(self.loop.id)

    def run(self, task: LevelTask) -> None:
        loop, received = self.loop, task.received
        if loop.finished_slot in received:
            return
        number = self.stage % len(loop.levels)
        votes = [json.loads(v) for v in received.pop(loop.votes_slot, ())]
        known = received.pop(loop.state_slot, None)
        run: _FixpointState = _FixpointState.from_bytes(known[0]) if known else _FixpointState()
        if votes:
            run.iteration = min(v["next"] for v in votes)
        elif known and not number:
            received[loop.finished_slot] = known
            return
        # Where nothing is known and nobody has voted, nothing has happened yet, or nothing will.
        mine = {
            s.removeprefix(loop.slot_prefix): received.pop(s) for s in list(received) if s.startswith(loop.slot_prefix)
        }
        stage = _IterationStage(loop, number, task, run, mine)
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
        """By trace; with the batches of the present tick that are encoded already."""

    def has_work(self) -> bool:
        """Whether any row has come, or anything waits for this iteration."""
        streams = self.level.streams
        if any(self.nested_task.delta(slot, streams[slot].schema).rows for slot in list(self.nested_task.received)):
            return True
        return any(self.run.iteration in by_iteration for by_iteration in self.run.deferred.values())

    def step(self) -> None:
        """Run the nodes of the level, if there is anything to do for them."""
        nested_task, waiting = self.nested_task, self.run.deferred
        here = any(self.run.iteration in waiting.get(step.id, ()) for step in self.level.steps)
        if not nested_task.received and not here:
            return
        for step in self.level.steps:
            given = [
                nested_task.values[s] if schema is None else nested_task.delta(s, schema) for s, schema in step.inputs
            ]
            nested_task.values[step.id] = self._value(step, given)
        for trace, (arranged, encoded_before) in self.arrangements.items():
            if arranged.delta.rows:
                batches = arranged.present().work().batches
                self.run.tick_rows[trace] = [encoded_before.get(id(b)) or _encode_batch(b) for b in batches]
        self.task.extra_rows += [
            (s, self.loop.slot_prefix + slot, payload) for s, slot, payload in nested_task.outgoing_rows()
        ]

    def vote(self) -> None:
        """Say what has flown into the variables, and which iteration is to be next."""
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

    def _value(self, step: NodeStep, given: list[Any]) -> Any:
        """What a node gives."""
        operator = step.operator
        if isinstance(operator, Stateless):
            return operator.apply(given) if any(d.rows for d in given) else Delta.empty(operator.schema)
        if isinstance(operator, Arrange):
            # A node that is read at several levels is kept by the first of them; the others only follow the tick.
            return self._arrangement(step.id, "" if step.owns_state else f" {self.number}").advance(
                self.iteration_time, given
            )
        if isinstance(operator, GroupAggregate):
            given[0] = self._arrangement(f"{step.id}/0").advance(self.iteration_time, given[:1])
        nested = nested_of(operator, [schema is not None for _, schema in step.inputs], Agenda())
        order = nested.waits_in(given)
        waiting = self.run.deferred.setdefault(step.id, {})
        due = _decode_batches(self.task, waiting.pop(self.run.iteration, ()), order)
        if due:
            nested.waiting[self.iteration_time] = [nested.taken_up(batch) for batch in due]
        out = nested.step(self.iteration_time, given)
        for (later,), some in nested.waiting.items():
            waiting.setdefault(later, []).extend(_encode_batch(nested.put_away(what, order)) for what in some)
        if not waiting:
            del self.run.deferred[step.id]
        return out

    def _arrangement(self, name: str, where: str = "") -> NestedArranged:
        """A node's rows, the past and the present tick so far."""
        traces = self.loop.fixpoint.arranged
        sort_key = traces[name]
        found = NestedArranged(self.task.spine(self.loop.id, list(traces).index(name), sort_key))
        items = self.run.tick_rows.get(name + where, [])
        batches = _decode_batches(self.task, items, sort_key)
        if batches:
            found.resume(batches)
        self.arrangements[name + where] = found, {id(b): item for b, item in zip(batches, items, strict=True)}
        return found


@dataclass(frozen=True, slots=True)
class FixpointResultStep:
    """In the level behind a fixpoint: its results, and its traces once the tick is over."""

    loop: FixpointPlan

    @property
    def id(self) -> str:
        return self.loop.id

    def run(self, task: LevelTask) -> None:
        loop = self.loop
        carried = [p for slot in (loop.finished_slot, loop.state_slot) for p in task.received.pop(slot, ())]
        run: _FixpointState = _FixpointState.from_bytes(carried[0]) if carried else _FixpointState()
        if carried:
            task.report_fields.setdefault("iterations", {})[loop.id] = run.iteration + 1
        results = loop.fixpoint.nothing()
        for name, _, schema in loop.variable_feeds:
            changes = _decode_batches(task, run.changes.get(name, ()), SortKey(schema))
            if changes:
                results[name] = Delta.of(merge(changes))
        task.values[loop.id] = results
        if not run.tick_rows:
            return
        before = task.state(loop.id, loop.fixpoint.kept())
        after = []
        for trace, past in zip(loop.fixpoint.arranged, before, strict=True):
            new = _decode_batches(task, run.tick_rows.get(trace, ()), past.sort_key)
            after.append(past.insert(merge(new)) if new else past)
        if any(a is not b for a, b in zip(after, before, strict=True)):
            task.set_state(loop.id, tuple(after))


def iterations_to_unroll(taken: int) -> int:
    """How many iterations to unroll in a tick that may take as many as another one: few different numbers."""
    return min(1 << max(taken - 1, 0).bit_length(), MAX_UNROLLED_ITERATIONS)


def run_until_complete(run: Callable[[int | None, Sequence[Row]], list[Row]], rows: Sequence[Row]) -> list[Row]:
    """Run jobs until all fixpoints are over; gives what leaves the last level of each.

    `run` runs all levels, or those from where fixpoints are gone on with, on rows that come to the first of them.
    """
    out: list[Row] = []
    begin = None
    while True:
        made = run(begin, rows)
        handed = [(shard, payload) for shard, slot, payload in made if slot == SUSPENDED]
        out += [row for row in made if row[1] != SUSPENDED]
        if not handed:
            return out
        begin = json.loads(handed[0][1])["resumes"]
        rows = [(shard, SPILLED, payload) for shard, payload in handed]


__all__ = [
    "MAX_UNROLLED_ITERATIONS",
    "FixpointResultStep",
    "IterationStep",
    "iterations_to_unroll",
    "run_until_complete",
]
