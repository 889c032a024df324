"""One shard of one level in one tick: open its traces, step, write what is new, and hand on what others need.

A task is a pure function of what it is handed: the level, the records of its traces, and rows (slot, payload). It
writes files of names that nobody knows yet and tells their names in a *report*, which is handed on from level to level
until the driver gets it; a task that is run twice writes twice, and only one of its reports arrives. Traces are opened
when something is looked up in them, so a level in which nothing happens to a shard costs that shard nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError
from dbspark.operators.operator import Arrange, Arranged, State
from dbspark.runtime.level_plan import Level, NodeStep
from dbspark.runtime.placement import owner, split
from dbspark.storage.files import Files
from dbspark.storage.manifest import PART_PREFIX, Place, TraceRecord, record_from_json
from dbspark.storage.reading import Opened, Reading
from dbspark.storage.segment import decoded, encoded
from dbspark.storage.writing import Shelf, Writing
from dbspark.trace.spine import Spine

Row = tuple[int, str, bytes]
"""(shard it goes to, slot, payload)"""
REPORT, ERROR, DRIVER_DELTA = "report", "error", "tell "
"""Slots that are handed on to the driver; those of what it is told begin so."""

MAX_INLINE_BYTES = 1 << 20
"""Bytes that are carried from stage to stage as they are; more are put into a file."""
SUSPENDED, SPILLED = "handed", "aside"
"""Slots of places in files: of all that has come to a level that has to wait, and of what is taken up again."""

_BATCH_CACHE = Opened(512 << 20)
"""In a worker: the batches that it has opened, as they do not change."""


class LevelStep(Protocol):
    """What a level may have as a step beside the nodes of a circuit: tables in front, views behind."""

    @property
    def id(self) -> str: ...

    def run(self, task: LevelTask) -> None: ...


@runtime_checkable
class SlotReader(Protocol):
    """A step that reads slots by itself, in a level that forwards all the others."""

    def reads_slot(self, slot: str) -> bool:
        """Whether it reads a slot."""
        ...


@dataclass(frozen=True, slots=True)
class TickContext:
    """What all tasks of a tick know."""

    tick: int
    shards: int
    files: Callable[[], Files]
    """Opens the location; called once by every task."""
    initial: bool = False
    """Whether nothing has run yet of what is in the levels: nodes that speak of no rows do so now."""
    unchanged_traces: frozenset[str] = frozenset()
    """Traces that are kept as they are, though they are computed again."""
    subscribed_views: frozenset[str] = frozenset()
    """Views whose changes the driver is told."""
    history_holds: Mapping[str, int] = field(default_factory=dict)
    """Histories that somebody reads further back than the setting `history` says: from which tick on."""


@dataclass(slots=True)
class LevelTask:
    """See the module's preface."""

    context: TickContext
    number: int
    """Of the level."""
    level: Level
    shard: int
    records: Mapping[str, Sequence[Any]]
    """The records of the traces of this level and shard, as JSON."""
    received: dict[str, list[bytes]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    new_states: dict[str, State] = field(default_factory=dict)
    report_fields: dict[str, Any] = field(default_factory=dict)
    """What the driver is told beside the traces."""
    extra_rows: list[Row] = field(default_factory=list)
    _reading: Reading | None = None
    _shelf: Shelf | None = None

    def run(self) -> Iterator[Row]:
        """Run the level; gives what leaves it."""
        begun = time.perf_counter()
        for slot in [s for s in self.received if s in (REPORT, ERROR, SUSPENDED) or s.startswith(DRIVER_DELTA)]:
            for payload in self.received.pop(slot):
                yield self.shard, slot, payload
            if slot in (ERROR, SUSPENDED):
                return
        if any(slot in self.received for slot in self.level.awaited_slots):
            yield self.shard, SUSPENDED, self._spill_received(self._take_spilled_refs())
            return
        spilled_rest = self._read_spilled_slots()
        try:
            for step in self.level.steps:
                if isinstance(step, NodeStep):
                    self._step(step)
                else:
                    step.run(self)
            out = [*self.outgoing_rows(), *self.extra_rows]
            if self.level.forwards_rest:
                out += self._forward_rest(spilled_rest)
            report = self._report()
        except DbsparkError as error:
            yield self.shard, ERROR, failure(error, self.number, self.shard)
            return
        yield from out
        if report or self.report_fields:
            self.report_fields |= {"seconds": time.perf_counter() - begun}
            report = {"level": self.number, "shard": self.shard, "traces": report, **self.report_fields}
            yield self.shard, REPORT, json.dumps(report).encode()

    # ------------------------------------------------------------------ what steps ask for

    def delta(self, slot: str, schema: Schema) -> Delta:
        """What a slot carries."""
        if slot not in self.values:
            batches = self.batches(slot, self.level.streams[slot]) if slot in self.received else []
            self.values[slot] = Delta.of(merge(batches)) if batches else Delta.empty(schema)
        value: Delta = self.values[slot]
        return value

    def batches(self, slot: str, sort_key: SortKey) -> list[Batch]:
        """What has come in a slot, as it was sent."""
        return [decoded(pa.py_buffer(payload), sort_key) for payload in self.received.get(slot, ())]

    def state(self, name: str, sort_keys: Sequence[SortKey]) -> State:
        """The spines that are kept under a name."""
        return tuple(self.spine(name, i, sort_key) for i, sort_key in enumerate(sort_keys))

    def spine(self, name: str, number: int, sort_key: SortKey) -> Spine:
        """One of the spines that are kept under a name."""
        given = self.records.get(name)
        if given is None:
            return Spine(sort_key)
        shelf, reading = self._open_location()
        opened = record_from_json(given[number], shelf.owner)
        shelf.there.update(e.place.file for e in opened.entries if e.place is not None)
        return reading.spine(opened, sort_key)

    def set_state(self, name: str, state: State) -> None:
        """Make something the state of a name."""
        if name not in self.context.unchanged_traces:
            self.new_states[name] = state

    def send_to_driver(self, name: str, batch: Batch) -> None:
        """Hand a batch to the driver."""
        self.extra_rows.append((self.shard, DRIVER_DELTA + name, b"".join(encoded(batch))))

    # ------------------------------------------------------------------ what loops ask for

    def nested(self, level: Level, received: dict[str, list[bytes]]) -> LevelTask:
        """The same task in a level that stands inside this one."""
        return LevelTask(self.context, self.number, level, self.shard, self.records, received)

    def spill(self, payloads: Sequence[bytes]) -> list[list[Any]]:
        """Write something into a file that this tick only needs until it is over; gives its places."""
        writing = Writing(self._open_location()[0], self._new_part_name())
        places = [writing.extent([payload]).to_json() for payload in payloads]
        writing.put()
        return places

    def read_spilled(self, place: list[Any]) -> pa.Buffer:
        """What is at a place."""
        return self._open_location()[1].extent(Place(None, *place))

    def outgoing_rows(self) -> Iterator[Row]:
        """What leaves the level for the next."""
        for emit in self.level.outgoing:
            sort_key = self.level.streams[emit.slot]
            batch = self.delta(emit.node, sort_key.schema).sorted_by(sort_key)
            if not batch.rows:
                continue
            if emit.to == "everyone":
                payload = b"".join(encoded(batch))
                yield from ((shard, emit.slot, payload) for shard in range(self.context.shards))
                continue
            for shard, some in split(batch, self.context.shards) if emit.to == "owners" else [(self.shard, batch)]:
                yield shard, emit.slot, b"".join(encoded(some))

    # ------------------------------------------------------------------ inside

    def _take_spilled_refs(self) -> list[tuple[str, list[Any]]]:
        """What has come in files: slots and places."""
        return [row for payload in self.received.pop(SPILLED, ()) for row in json.loads(payload)["rows"]]

    def _read_spilled_slots(self) -> list[tuple[str, list[Any]]]:
        """Read what has come in files; gives what only passes."""
        loops = [step for step in self.level.steps if isinstance(step, SlotReader)]
        spilled_rest = []
        for slot, place in self._take_spilled_refs():
            if self.level.forwards_rest and not any(step.reads_slot(slot) for step in loops):
                spilled_rest.append((slot, place))
            else:
                self.received.setdefault(slot, []).append(self.read_spilled(place).to_pybytes())
        return spilled_rest

    def _spill_received(self, rows: list[tuple[str, list[Any]]]) -> bytes:
        """All that has come, in files; `rows` are there already."""
        payloads = [(slot, payload) for slot, some in self.received.items() for payload in some]
        places = self.spill([payload for _, payload in payloads]) if payloads else []
        rows = rows + [(slot, place) for (slot, _), place in zip(payloads, places, strict=True)]
        return json.dumps({"resumes": self.level.resume_point, "rows": rows}).encode()

    def _forward_rest(self, rows: list[tuple[str, list[Any]]]) -> Iterator[Row]:
        """What nobody has taken, for the next level; `rows` are in files."""
        if should_spill(payload for some in self.received.values() for payload in some):
            yield self.shard, SPILLED, self._spill_received(rows)
            return
        yield from ((self.shard, slot, payload) for slot, some in self.received.items() for payload in some)
        if rows:
            yield self.shard, SPILLED, json.dumps({"rows": rows}).encode()

    def _new_part_name(self) -> str:
        """The name of a file that nobody knows yet."""
        return f"{PART_PREFIX}{self.context.tick:016d}-{uuid.uuid4().hex}"

    def _open_location(self) -> tuple[Shelf, Reading]:
        if self._shelf is None or self._reading is None:
            files = self.context.files()
            self._shelf, self._reading = Shelf(files), Reading(files, verify=False, opened=_BATCH_CACHE)
        return self._shelf, self._reading

    def _step(self, step: NodeStep) -> None:
        if step.on_owner_only and self.shard != owner(self.context.shards):
            self.values[step.id] = Delta.empty(step.operator.schema)
            return
        inputs = [self.values[slot] if schema is None else self.delta(slot, schema) for slot, schema in step.inputs]
        if isinstance(step.operator, Arrange):
            self.values[step.id] = _LazyArrangement(self, step, inputs[0])
            return
        if not any(i.rows for i in inputs if not isinstance(i, dict)) and not (
            self.context.initial and step.on_owner_only
        ):
            self.values[step.id] = self._nothing(step, inputs)
            return
        given = [i.arranged() if isinstance(i, _LazyArrangement) else i for i in inputs]
        if not step.operator.kept():
            _, self.values[step.id] = step.operator.step((), given)
            return
        before = self.state(step.id, step.operator.kept())
        after, self.values[step.id] = step.operator.step(before, given)
        if after is not before:
            self.set_state(step.id, after)

    def _nothing(self, step: NodeStep, inputs: Sequence[Any]) -> Any:
        if inputs and isinstance(inputs[0], dict):  # the result of a fixpoint
            _, out = step.operator.step((), inputs)
            return out
        nothing = getattr(step.operator, "nothing", None)
        return Delta.empty(step.operator.schema) if nothing is None else nothing()

    def _report(self) -> dict[str, Any]:
        """Write what is new; gives the records of the traces that have changed."""
        # An arranged stream that nobody has looked up is kept all the same.
        for value in list(self.values.values()):
            if isinstance(value, _LazyArrangement) and value.rows:
                value.arranged()
        if not self.new_states:
            return {}
        shelf, _ = self._open_location()
        writing = Writing(shelf, self._new_part_name())
        found: dict[str, list[TraceRecord]] = {}
        for trace, state in self.new_states.items():
            found[trace] = [writing.record(spine.work()) for spine in state]
        writing.compact(
            e.place for records in found.values() for r in records for e in r.entries if e.place is not None
        )
        if writing.segment.parts:
            writing.put()
        return {trace: [r.to_json() for r in records] for trace, records in found.items()}


class _LazyArrangement:
    """An arrange node of a level: opened when somebody looks something up in it."""

    def __init__(self, task: LevelTask, step: NodeStep, delta: Delta) -> None:
        self._task = task
        self._step = step
        self._delta = delta
        self._found: Arranged | None = None
        self.rows = delta.rows

    def arranged(self) -> Arranged:
        if self._found is None:
            task, step = self._task, self._step
            operator = step.operator
            assert isinstance(operator, Arrange)
            before = task.state(step.id, operator.kept())
            if step.owns_state:
                after, self._found = operator.step(before, [self._delta])
                if after[0] is not before[0]:
                    task.set_state(step.id, after)
            else:  # another level keeps it; here it is only read, so nothing is merged
                delta = self._delta.sorted_by(operator.sort_key)
                entries = (*before[0].entries, delta) if delta.rows else before[0].entries
                self._found = Arranged(delta, before[0], Spine(operator.sort_key, entries))
        return self._found


def should_spill(payloads: Iterable[bytes]) -> bool:
    """Whether it is cheaper to put something into a file than to hand it from stage to stage."""
    return sum(map(len, payloads)) > MAX_INLINE_BYTES


def failure(error: DbsparkError, level: int, shard: int) -> bytes:
    """An error as a payload: its type, which is one of ours, and what it says."""
    type_names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, DbsparkError)]
    return json.dumps([level, shard, type_names, str(error)]).encode()


def raise_first(payloads: Iterable[bytes]) -> None:
    """Raise the error of the first level, and there of the first shard, if there is any."""
    found = sorted((json.loads(p) for p in payloads), key=lambda e: e[:2])
    if found:
        _, _, type_names, message = found[0]
        known = {kind.__name__: kind for kind in _error_types(DbsparkError)}
        raise next(known[name] for name in type_names if name in known)(message)


def _error_types(kind: type[DbsparkError]) -> Iterator[type[DbsparkError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _error_types(below)


__all__ = [
    "DRIVER_DELTA",
    "ERROR",
    "REPORT",
    "SPILLED",
    "SUSPENDED",
    "LevelStep",
    "LevelTask",
    "Row",
    "SlotReader",
    "TickContext",
    "failure",
    "raise_first",
    "should_spill",
]  # fmt: skip
