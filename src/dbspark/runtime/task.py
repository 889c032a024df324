"""A task: one shard of one level in one tick.

A task opens the traces of its level, runs the steps, writes new batches to files and sends rows to the next level. It
is a pure function of the level, the records of its traces, and the rows (slot, payload) that it receives. Invariants:

1. A task may be run several times. Each run writes files under new names, and reports these names; the driver receives
   the report of one run, and only the manifest makes its files part of the state.
2. Reports, errors and deltas for the driver are forwarded from level to level until the last one, where Spark collects
   them.
3. A trace is opened when a step reads it, so a level in which a shard receives nothing costs that shard nothing.
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
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.operator import Arrange
from dbspark.runtime.level_plan import Level, NodeStep
from dbspark.runtime.placement import owner, split
from dbspark.storage.files import Files
from dbspark.storage.manifest import PART_PREFIX, Place, TraceRecord, record_from_json
from dbspark.storage.reading import BatchCache, ManifestReader
from dbspark.storage.segment import decode_batch, encode_batch
from dbspark.storage.writing import CommitWriter, StoredFiles
from dbspark.trace.spine import Spine

Row = tuple[int, str, bytes]
"""(target shard, slot, payload)"""
REPORT, ERROR, DRIVER_DELTA = "report", "error", "delta of "
"""Slots that are forwarded to the driver; `DRIVER_DELTA` is a prefix, followed by the name of a trace."""

MAX_INLINE_BYTES = 1 << 20
"""Bytes that a stage of a fixpoint forwards as rows; more are spilled to a file of the location."""
SUSPENDED, SPILLED = "suspended", "spilled"
"""Slots of extents in files: all that a waiting level has received, for the driver; and what a task is to read."""

_BATCH_CACHE = BatchCache(512 << 20)
"""In a worker: opened batches, which never change, up to 512 MiB on disk."""


class LevelStep(Protocol):
    """A step of a level that is no node of the circuit: a table, a view, a stage of a fixpoint, a reslicing."""

    @property
    def id(self) -> str: ...

    def run(self, task: LevelTask) -> None: ...


@runtime_checkable
class SlotReader(Protocol):
    """A step that reads received slots itself, in a level that forwards all slots that no step reads."""

    def reads_slot(self, slot: str) -> bool:
        """Whether the step reads a slot."""
        ...


@dataclass(frozen=True, slots=True)
class TickContext:
    """What all tasks of a tick share."""

    tick: int
    shards: int
    files: Callable[[], Files]
    """Opens the location; called at most once by a task."""
    initial: bool = False
    """Whether the levels are run for the first time, to fill them: nodes that have rows for no input emit them now."""
    unchanged_traces: frozenset[str] = frozenset()
    """Traces that are computed, but whose stored state is not replaced."""
    subscribed_views: frozenset[str] = frozenset()
    """Views whose deltas are sent to the driver."""
    history_holds: Mapping[str, int] = field(default_factory=dict)
    """By trace, the tick from which its history is kept, where that is further back than the setting `history` says."""


@dataclass(slots=True)
class LevelTask:
    """One run of a task, and what its steps read and write."""

    context: TickContext
    number: int
    """The number of the level, for reports and errors."""
    level: Level
    shard: int
    records: Mapping[str, Sequence[Any]]
    """The records of the traces of this level and shard, as JSON."""
    received: dict[str, list[bytes]] = field(default_factory=dict)
    """By slot, the payloads that the level before has sent."""
    values: dict[str, Any] = field(default_factory=dict)
    """By slot or node id, decoded deltas and outputs of steps."""
    new_states: dict[str, State] = field(default_factory=dict)
    """By trace, the state that this task replaces."""
    report_fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the report, beside the records of traces."""
    extra_rows: list[Row] = field(default_factory=list)
    """Rows that steps send beside the outgoing slots of the level."""
    _reading: ManifestReader | None = None
    _stored_files: StoredFiles | None = None

    def run(self) -> Iterator[Row]:
        """Run the level; yields the rows for the next level."""
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
            traces = self._write_states()
        except DbsparkError as error:
            yield self.shard, ERROR, failure(error, self.number, self.shard)
            return
        yield from out
        if traces or self.report_fields:
            self.report_fields |= {"seconds": time.perf_counter() - begun}
            report = {"level": self.number, "shard": self.shard, "traces": traces, **self.report_fields}
            yield self.shard, REPORT, json.dumps(report).encode()

    # ------------------------------------------------------------------ for steps

    def delta(self, slot: str, schema: Schema) -> Delta:
        """The delta of a slot, decoded once."""
        if slot not in self.values:
            batches = self.batches(slot, self.level.streams[slot]) if slot in self.received else []
            self.values[slot] = Delta.of(merge(batches)) if batches else Delta.empty(schema)
        value: Delta = self.values[slot]
        return value

    def batches(self, slot: str, sort_key: SortKey) -> list[Batch]:
        """The received batches of a slot, one for each sender."""
        return [decode_batch(pa.py_buffer(payload), sort_key) for payload in self.received.get(slot, ())]

    def state(self, name: str, sort_keys: Sequence[SortKey]) -> State:
        """The stored spines of a trace; empty ones where nothing is stored."""
        return tuple(self.spine(name, i, sort_key) for i, sort_key in enumerate(sort_keys))

    def spine(self, name: str, number: int, sort_key: SortKey) -> Spine:
        """One of the stored spines of a trace."""
        records = self.records.get(name)
        if records is None:
            return Spine(sort_key)
        stored_files, reading = self._open_location()
        record = record_from_json(records[number], stored_files.owner)
        stored_files.there.update(e.place.file for e in record.entries if e.place is not None)
        return reading.spine(record, sort_key)

    def set_state(self, name: str, state: State) -> None:
        """Replace the state of a trace."""
        if name not in self.context.unchanged_traces:
            self.new_states[name] = state

    def send_to_driver(self, name: str, batch: Batch) -> None:
        """Send a batch of a trace to the driver."""
        self.extra_rows.append((self.shard, DRIVER_DELTA + name, b"".join(encode_batch(batch))))

    # ------------------------------------------------------------------ for stages of fixpoints

    def nested(self, level: Level, received: dict[str, list[bytes]]) -> LevelTask:
        """This task for a level of a fixpoint, with slots and values of its own."""
        return LevelTask(self.context, self.number, level, self.shard, self.records, received)

    def spill(self, payloads: Sequence[bytes]) -> list[list[Any]]:
        """Write payloads to a file that is needed only until the end of the tick; returns their extents as JSON."""
        writing = CommitWriter(self._open_location()[0], self._new_part_name())
        places = [writing.extent([payload]).to_json() for payload in payloads]
        writing.put()
        return places

    def read_spilled(self, place: list[Any]) -> pa.Buffer:
        """A spilled payload."""
        return self._open_location()[1].extent(Place(None, *place))

    def outgoing_rows(self) -> Iterator[Row]:
        """The rows of the outgoing slots of the level."""
        for emit in self.level.outgoing:
            sort_key = self.level.streams[emit.slot]
            batch = self.delta(emit.node, sort_key.schema).sorted_by(sort_key)
            if not batch.rows:
                continue
            if emit.to == "everyone":
                payload = b"".join(encode_batch(batch))
                yield from ((shard, emit.slot, payload) for shard in range(self.context.shards))
                continue
            for shard, part in split(batch, self.context.shards) if emit.to == "owners" else [(self.shard, batch)]:
                yield shard, emit.slot, b"".join(encode_batch(part))

    # ------------------------------------------------------------------ internals

    def _take_spilled_refs(self) -> list[tuple[str, list[Any]]]:
        """Slots and extents of spilled payloads that were received."""
        return [row for payload in self.received.pop(SPILLED, ()) for row in json.loads(payload)["rows"]]

    def _read_spilled_slots(self) -> list[tuple[str, list[Any]]]:
        """Read spilled payloads of this level; returns the slots and extents of those that are only forwarded."""
        loops = [step for step in self.level.steps if isinstance(step, SlotReader)]
        spilled_rest = []
        for slot, place in self._take_spilled_refs():
            if self.level.forwards_rest and not any(step.reads_slot(slot) for step in loops):
                spilled_rest.append((slot, place))
            else:
                self.received.setdefault(slot, []).append(self.read_spilled(place).to_pybytes())
        return spilled_rest

    def _spill_received(self, rows: list[tuple[str, list[Any]]]) -> bytes:
        """Spill all received payloads; returns all extents as JSON. `rows` have been spilled already."""
        payloads = [(slot, payload) for slot, received in self.received.items() for payload in received]
        places = self.spill([payload for _, payload in payloads]) if payloads else []
        rows = rows + [(slot, place) for (slot, _), place in zip(payloads, places, strict=True)]
        return json.dumps({"resumes": self.level.resume_point, "rows": rows}).encode()

    def _forward_rest(self, rows: list[tuple[str, list[Any]]]) -> Iterator[Row]:
        """The received slots that no step has read, for the next level; `rows` have been spilled already."""
        if should_spill(payload for payloads in self.received.values() for payload in payloads):
            yield self.shard, SPILLED, self._spill_received(rows)
            return
        yield from ((self.shard, slot, payload) for slot, received in self.received.items() for payload in received)
        if rows:
            yield self.shard, SPILLED, json.dumps({"rows": rows}).encode()

    def _new_part_name(self) -> str:
        """A unique name for a file of this tick."""
        return f"{PART_PREFIX}{self.context.tick:016d}-{uuid.uuid4().hex}"

    def _open_location(self) -> tuple[StoredFiles, ManifestReader]:
        if self._stored_files is None or self._reading is None:
            files = self.context.files()
            self._stored_files, self._reading = (
                StoredFiles(files),
                ManifestReader(files, verify=False, opened=_BATCH_CACHE),
            )
        return self._stored_files, self._reading

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
        arguments = [i.arranged() if isinstance(i, _LazyArrangement) else i for i in inputs]
        if not step.operator.state_sort_keys():
            _, self.values[step.id] = step.operator.step((), arguments)
            return
        before = self.state(step.id, step.operator.state_sort_keys())
        after, self.values[step.id] = step.operator.step(before, arguments)
        if after is not before:
            self.set_state(step.id, after)

    def _nothing(self, step: NodeStep, inputs: Sequence[Any]) -> Any:
        if inputs and isinstance(inputs[0], dict):  # the result of a fixpoint
            _, out = step.operator.step((), inputs)
            return out
        nothing = getattr(step.operator, "nothing", None)
        return Delta.empty(step.operator.schema) if nothing is None else nothing()

    def _write_states(self) -> dict[str, Any]:
        """Write the batches of new states; returns the records of their traces as JSON."""
        # An arrangement that no step has probed has a new state all the same.
        for value in list(self.values.values()):
            if isinstance(value, _LazyArrangement) and value.rows:
                value.arranged()
        if not self.new_states:
            return {}
        stored_files, _ = self._open_location()
        writing = CommitWriter(stored_files, self._new_part_name())
        records: dict[str, list[TraceRecord]] = {}
        for trace, state in self.new_states.items():
            records[trace] = [writing.record(spine.work()) for spine in state]
        writing.compact(
            e.place for of_trace in records.values() for r in of_trace for e in r.entries if e.place is not None
        )
        if writing.segment.parts:
            writing.put()
        return {trace: [r.to_json() for r in of_trace] for trace, of_trace in records.items()}


class _LazyArrangement:
    """The output of an arrange node: its trace is opened when a step probes it."""

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
            before = task.state(step.id, operator.state_sort_keys())
            if step.owns_state:
                after, self._found = operator.step(before, [self._delta])
                if after[0] is not before[0]:
                    task.set_state(step.id, after)
            else:  # an earlier level updates the state; here it is only read, so nothing is merged
                delta = self._delta.sorted_by(operator.sort_key)
                entries = (*before[0].entries, delta) if delta.rows else before[0].entries
                self._found = Arranged(delta, before[0], Spine(operator.sort_key, entries))
        return self._found


def should_spill(payloads: Iterable[bytes]) -> bool:
    """Whether payloads are spilled to a file rather than forwarded from stage to stage as rows."""
    return sum(map(len, payloads)) > MAX_INLINE_BYTES


def failure(error: DbsparkError, level: int, shard: int) -> bytes:
    """An error as a payload: the names of its types in `dbspark.errors`, and its message."""
    type_names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, DbsparkError)]
    return json.dumps([level, shard, type_names, str(error)]).encode()


def raise_first(payloads: Iterable[bytes]) -> None:
    """Raise the error of the first level, and in it of the first shard, if there is any."""
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
