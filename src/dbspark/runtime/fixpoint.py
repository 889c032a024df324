"""A fixpoint on shards: its iterations are stages of the tick's job.

The graph inside is cut at exchanges into levels as the circuit around it is, and an iteration is all of these levels,
one after another. What comes from outside comes to the first iteration; what has flown into a variable goes, where its
readers want it, to the next. A few iterations are unrolled between the level that feeds the fixpoint and the level that
reads its results, so most ticks are one job.

*What is carried.* A stage is a function of what it is handed, so all that a tick has to remember of a shard (the rows
of the present tick by trace, what waits for later iterations, what the variables have changed by) is handed from
stage to stage of the same shard, as batches that are encoded once and opened only by the level that reads them.
Beyond `INLINE` bytes they are put into a file, and their places are carried instead. The past is opened from the
records of the traces, as everywhere. What merely passes by, from the level in front to the level behind, is handed on
in the same way.

*Which iteration is next* all shards have to agree on. In its last level every shard votes, to all shards: for the next
iteration if something flew into a variable, else for the first for which something waits. The least is next; without a
vote the fixpoint is over, and the stages that are left hand on what there is. A vote may turn out to be for nothing,
where what two shards gave cancels; rows that flow into a variable come together by some columns before they are read,
so that cannot go on.

*Not over yet.* The level that would read the results sees votes instead, puts everything that has come to it into a
file, and tells the driver, which runs the job again from the first iteration's stage on: see `to_the_end`. So stages
too many cost their tasks, and too few another job. As many are unrolled as the last tick took, up to `ITERATIONS`: a
tick that does not touch the recursion takes one.

Cost: that of the fixpoint on the rows of a shard, and for every iteration as many shuffles as there are levels inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbspark.circuit.nested import Fixpoint, endless
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.errors import CorruptFileError
from dbspark.operators.nested import NestedArranged, NestedSite, NestedStateful, PendingIterations
from dbspark.storage.segment import decoded, encoded

if TYPE_CHECKING:
    from dbspark.runtime.planner import Level, Step
    from dbspark.runtime.task import Row, Work

ITERATIONS = 4
"""Iterations that are unrolled at the most; another job costs little more than one of its stages."""
INLINE = 1 << 20
"""Bytes that are carried from stage to stage as they are; more are put into a file."""
HANDED, ASIDE = "handed", "aside"
"""Slots of places in files: of all that has come to a level that has to wait, and of what is taken up again."""

_HEAD = b"dbspark.carried"
Item = bytes | list[Any]
"""An encoded batch, or its place in a file."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A fixpoint that is cut into levels."""

    id: str
    """Of its node."""
    fixpoint: Fixpoint
    levels: tuple[Level, ...]
    feeds: tuple[tuple[str, str, Schema], ...]
    """The variables: their names, and the slots of what flows into them, in the last level."""

    @property
    def inside(self) -> str:
        """What the names of slots inside begin with."""
        return f"{self.id}/"

    @property
    def votes(self) -> str:
        return f"{self.id} votes"

    @property
    def carried(self) -> str:
        return f"{self.id} carried"

    @property
    def over(self) -> str:
        """What is carried once it is known that no iteration follows."""
        return f"{self.id} over"


@dataclass(slots=True)
class _Carried:
    """What a tick remembers of a fixpoint on a shard."""

    iteration: int = 0
    present: dict[str, list[Item]] = field(default_factory=dict)
    """The rows of the present tick, by trace."""
    waiting: dict[str, dict[int, list[Item]]] = field(default_factory=dict)
    """What waits, by node and iteration."""
    changes: dict[str, list[Item]] = field(default_factory=dict)
    """What the variables have changed by."""

    def packed(self, work: Work) -> bytes:
        lists = [*self.present.values(), *self.changes.values()]
        lists += [items for by_iteration in self.waiting.values() for items in by_iteration.values()]
        loose = [(items, i, item) for items in lists for i, item in enumerate(items) if isinstance(item, bytes)]
        if is_much(item for _, _, item in loose):
            for (items, i, _), place in zip(loose, work.put_aside([item for _, _, item in loose]), strict=True):
                items[i] = place
        return self._encoded()

    def _encoded(self) -> bytes:
        """An Arrow stream: encoded batches as rows, all else as JSON in the metadata of its schema."""
        batches: list[bytes] = []

        def listed(items: list[Item]) -> list[int | list[Any]]:
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
            "present": {trace: listed(items) for trace, items in self.present.items()},
            "waiting": {n: {str(i): listed(items) for i, items in by.items()} for n, by in self.waiting.items()},
            "changes": {name: listed(items) for name, items in self.changes.items()},
        }
        schema = pa.schema([pa.field("batch", pa.large_binary(), False)], metadata={_HEAD: json.dumps(head)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(batches, pa.large_binary())], schema=schema))
        return bytes(sink.getvalue())

    @staticmethod
    def opened(data: bytes) -> _Carried:
        """What `packed` has made; it may have been in a file, so it is data and never code."""
        try:
            with pa.ipc.open_stream(data) as reader:
                head = json.loads(reader.schema.metadata[_HEAD])
                batches = [value for batch in reader for value in batch.column(0).to_pylist()]

            def items(given: list[int | list[Any]]) -> list[Item]:
                return [batches[item] if isinstance(item, int) else item for item in given]

            return _Carried(
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


def is_much(payloads: Iterable[bytes]) -> bool:
    """Whether it is cheaper to put something into a file than to hand it from stage to stage."""
    return sum(map(len, payloads)) > INLINE


def _packed(batch: Batch) -> bytes:
    return b"".join(encoded(batch))


def _opened(work: Work, items: Iterable[Item], sort_key: SortKey) -> list[Batch]:
    return [decoded(pa.py_buffer(i) if isinstance(i, bytes) else work.aside(i), sort_key) for i in items]


@dataclass(frozen=True, slots=True)
class Iterate:
    """A stage between the level that feeds a fixpoint and the level behind it: one level of one iteration."""

    loop: Loop
    stage: int

    @property
    def id(self) -> str:
        return f"{self.loop.id} {self.stage}"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.loop.id,)

    def takes(self, slot: str) -> bool:
        """Whether what comes in a slot is for this fixpoint."""
        return slot.startswith(self.loop.id)

    def run(self, work: Work) -> None:
        loop, received = self.loop, work.received
        if loop.over in received:
            return
        number = self.stage % len(loop.levels)
        votes = [json.loads(v) for v in received.pop(loop.votes, ())]
        known = received.pop(loop.carried, None)
        run: _Carried = _Carried.opened(known[0]) if known else _Carried()
        if votes:
            run.iteration = min(v["next"] for v in votes)
        elif known and not number:
            received[loop.over] = known
            return
        # Where nothing is known and nobody has voted, nothing has happened yet, or nothing will.
        mine = {s.removeprefix(loop.inside): received.pop(s) for s in list(received) if s.startswith(loop.inside)}
        stage = _Stage(loop, number, work, run, mine)
        if votes and run.iteration >= loop.fixpoint.limit and stage.something():
            growing = {name for v in votes for name in v["growing"]}
            raise endless([name for name, _, _ in loop.feeds if name in growing], loop.fixpoint.limit)
        stage.step()
        if number == len(loop.levels) - 1:
            stage.vote()
        if run != _Carried():
            work.extra.append((work.shard, loop.carried, run.packed(work)))


class _Stage:
    """One level of one iteration on one shard."""

    def __init__(self, loop: Loop, number: int, work: Work, run: _Carried, received: dict[str, list[bytes]]) -> None:
        self.loop = loop
        self.number = number
        self.work = work
        self.run = run
        self.level = loop.levels[number]
        self.inner = work.within(self.level, received)
        self.path = (run.iteration,)
        self.arranged: dict[str, tuple[NestedArranged, dict[int, Item]]] = {}
        """By trace; with the batches of the present tick that are encoded already."""

    def something(self) -> bool:
        """Whether any row has come, or anything waits for this iteration."""
        streams = self.level.streams
        if any(self.inner.delta(slot, streams[slot].schema).rows for slot in list(self.inner.received)):
            return True
        return any(self.run.iteration in by_iteration for by_iteration in self.run.waiting.values())

    def step(self) -> None:
        """Run the nodes of the level, if there is anything to do for them."""
        inner, waiting = self.inner, self.run.waiting
        here = any(self.run.iteration in waiting.get(step.id, ()) for step in self.level.steps)
        if not inner.received and not here:
            return
        for step in self.level.steps:
            given = [inner.values[s] if schema is None else inner.delta(s, schema) for s, schema in step.inputs]
            inner.values[step.id] = self._value(step, given)
        for trace, (arranged, encoded_before) in self.arranged.items():
            if arranged.delta.rows:
                batches = arranged.present().work().batches
                self.run.present[trace] = [encoded_before.get(id(b)) or _packed(b) for b in batches]
        self.work.extra += [(s, self.loop.inside + slot, payload) for s, slot, payload in inner.emitted()]

    def vote(self) -> None:
        """Say what has flown into the variables, and which iteration is to be next."""
        growing = []
        for name, slot, schema in self.loop.feeds:
            change = self.inner.delta(slot, schema).sorted_by(SortKey(schema))
            if change.rows:
                growing.append(name)
                self.run.changes.setdefault(name, []).append(_packed(change))
        waiting = [i for by_iteration in self.run.waiting.values() for i in by_iteration]
        following = self.run.iteration + 1 if growing else min(waiting, default=None)
        if following is not None:
            vote = json.dumps({"next": following, "growing": growing}).encode()
            self.work.extra += [(shard, self.loop.votes, vote) for shard in range(self.work.job.shards)]

    def _value(self, step: Step, given: list[Any]) -> Any:
        """What a node gives."""
        nested = step.operator.nested(NestedSite(PendingIterations(), partial(self._trace, step)))
        if not isinstance(nested, NestedStateful):
            return nested.step(self.path, given)
        order = nested.deferred_sort_key(given)
        waiting = self.run.waiting.setdefault(step.id, {})
        due = _opened(self.work, waiting.pop(self.run.iteration, ()), order)
        if due:
            nested.deferred[self.path] = [nested.from_batch(batch) for batch in due]
        out = nested.step(self.path, given)
        for (later,), works in nested.deferred.items():
            waiting.setdefault(later, []).extend(_packed(nested.to_batch(work, order)) for work in works)
        if not waiting:
            del self.run.waiting[step.id]
        return out

    def _trace(self, step: Step, name: str) -> NestedArranged:
        """A node's trace. One that is read at several levels is kept by the first; the others only follow the tick."""
        return self._sort_key(step.id + name, "" if step.writes else f" {self.number}")

    def _sort_key(self, name: str, where: str = "") -> NestedArranged:
        """A node's rows, the past and the present tick so far."""
        traces = self.loop.fixpoint.arranged
        sort_key = traces[name]
        found = NestedArranged(self.work.spine(self.loop.id, list(traces).index(name), sort_key))
        items = self.run.present.get(name + where, [])
        batches = _opened(self.work, items, sort_key)
        if batches:
            found.resume(batches)
        self.arranged[name + where] = found, {id(b): item for b, item in zip(batches, items, strict=True)}
        return found


@dataclass(frozen=True, slots=True)
class Ended:
    """In the level behind a fixpoint: its results, and its traces once the tick is over."""

    loop: Loop

    @property
    def id(self) -> str:
        return self.loop.id

    def run(self, work: Work) -> None:
        loop = self.loop
        carried = [p for slot in (loop.over, loop.carried) for p in work.received.pop(slot, ())]
        run: _Carried = _Carried.opened(carried[0]) if carried else _Carried()
        if carried:
            work.figures.setdefault("iterations", {})[loop.id] = run.iteration + 1
        results = loop.fixpoint.nothing()
        for name, _, schema in loop.feeds:
            changes = _opened(work, run.changes.get(name, ()), SortKey(schema))
            if changes:
                results[name] = Delta.of(merge(changes))
        work.values[loop.id] = results
        if not run.present:
            return
        before = work.state(loop.id, loop.fixpoint.state_sort_keys())
        after = []
        for trace, past in zip(loop.fixpoint.arranged, before, strict=True):
            new = _opened(work, run.present.get(trace, ()), past.sort_key)
            after.append(past.insert(merge(new)) if new else past)
        if any(a is not b for a, b in zip(after, before, strict=True)):
            work.keep(loop.id, tuple(after))


def unrolled(taken: int) -> int:
    """How many iterations to unroll in a tick that may take as many as another one: few different numbers."""
    return min(1 << max(taken - 1, 0).bit_length(), ITERATIONS)


def to_the_end(run: Callable[[int | None, Sequence[Row]], list[Row]], rows: Sequence[Row]) -> list[Row]:
    """Run jobs until all fixpoints are over; gives what leaves the last level of each.

    `run` runs all levels, or those from where fixpoints are gone on with, on rows that come to the first of them.
    """
    out: list[Row] = []
    begin = None
    while True:
        made = run(begin, rows)
        handed = [(shard, payload) for shard, slot, payload in made if slot == HANDED]
        out += [row for row in made if row[1] != HANDED]
        if not handed:
            return out
        begin = json.loads(handed[0][1])["resumes"]
        rows = [(shard, ASIDE, payload) for shard, payload in handed]


__all__ = ["ASIDE", "HANDED", "ITERATIONS", "Ended", "Iterate", "Loop", "is_much", "to_the_end", "unrolled"]
