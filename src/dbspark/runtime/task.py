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
from typing import Any, Protocol

import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError
from dbspark.operators.operator import Arrange, Arranged, State
from dbspark.runtime.fixpoint import ASIDE, HANDED, Iterate, is_much
from dbspark.runtime.placement import owner, split
from dbspark.runtime.planner import Level, Step
from dbspark.storage.files import Files
from dbspark.storage.manifest import PART_PREFIX, Place, TraceRecord, record_from_json
from dbspark.storage.reading import Opened, Reading
from dbspark.storage.segment import decoded, encoded
from dbspark.storage.writing import Shelf, Writing
from dbspark.trace.spine import Spine

Row = tuple[int, str, bytes]
"""(shard it goes to, slot, payload)"""
REPORT, ERROR, TOLD = "report", "error", "tell "
"""Slots that are handed on to the driver; those of what it is told begin so."""

_opened = Opened(512 << 20)
"""In a worker: the batches that it has opened, as they do not change."""


class Runs(Protocol):
    """What a level may have as a step beside the nodes of a circuit: tables in front, views behind."""

    @property
    def id(self) -> str: ...

    def run(self, work: Work) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a tick know."""

    tick: int
    shards: int
    files: Callable[[], Files]
    """Opens the location; called once by every task."""
    fresh: bool = False
    """Whether nothing has run yet of what is in the levels: nodes that speak of no rows do so now."""
    known: frozenset[str] = frozenset()
    """Traces that are kept as they are, though they are computed again."""
    wanted: frozenset[str] = frozenset()
    """Views whose changes the driver is told."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Histories that somebody reads further back than the setting `history` says: from which tick on."""


@dataclass(slots=True)
class Work:
    """See the module's preface."""

    job: Job
    number: int
    """Of the level."""
    level: Level
    shard: int
    records: Mapping[str, Sequence[Any]]
    """The records of the traces of this level and shard, as JSON."""
    received: dict[str, list[bytes]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, State] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    """What the driver is told beside the traces."""
    extra: list[Row] = field(default_factory=list)
    _reading: Reading | None = None
    _shelf: Shelf | None = None

    def run(self) -> Iterator[Row]:
        """Run the level; gives what leaves it."""
        begun = time.perf_counter()
        for slot in [s for s in self.received if s in (REPORT, ERROR, HANDED) or s.startswith(TOLD)]:
            for payload in self.received.pop(slot):
                yield self.shard, slot, payload
            if slot in (ERROR, HANDED):
                return
        if any(slot in self.received for slot in self.level.awaits):
            yield self.shard, HANDED, self._put_away(self._aside())
            return
        passing = self._take_up()
        try:
            for step in self.level.steps:
                if isinstance(step, Step):
                    self._step(step)
                else:
                    step.run(self)
            out = [*self.emitted(), *self.extra]
            if self.level.passes:
                out += self._passed(passing)
            report = self._report()
        except DbsparkError as error:
            yield self.shard, ERROR, failure(error, self.number, self.shard)
            return
        yield from out
        if report or self.figures:
            self.figures |= {"seconds": time.perf_counter() - begun}
            told = {"level": self.number, "shard": self.shard, "traces": report, **self.figures}
            yield self.shard, REPORT, json.dumps(told).encode()

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
        shelf, reading = self._opened()
        opened = record_from_json(given[number], shelf.owner)
        shelf.there.update(e.place.file for e in opened.entries if e.place is not None)
        return reading.spine(opened, sort_key)

    def keep(self, name: str, state: State) -> None:
        """Make something the state of a name."""
        if name not in self.job.known:
            self.kept[name] = state

    def tell(self, name: str, batch: Batch) -> None:
        """Hand a batch to the driver."""
        self.extra.append((self.shard, TOLD + name, b"".join(encoded(batch))))

    # ------------------------------------------------------------------ what loops ask for

    def within(self, level: Level, received: dict[str, list[bytes]]) -> Work:
        """The same task in a level that stands inside this one."""
        return Work(self.job, self.number, level, self.shard, self.records, received)

    def put_aside(self, payloads: Sequence[bytes]) -> list[list[Any]]:
        """Write something into a file that this tick only needs until it is over; gives its places."""
        work = Writing(self._opened()[0], self._part())
        places = [work.extent([payload]).to_json() for payload in payloads]
        work.put()
        return places

    def aside(self, place: list[Any]) -> pa.Buffer:
        """What is at a place."""
        return self._opened()[1].extent(Place(None, *place))

    def emitted(self) -> Iterator[Row]:
        """What leaves the level for the next."""
        for emit in self.level.emits:
            sort_key = self.level.streams[emit.slot]
            batch = self.delta(emit.node, sort_key.schema).sorted_by(sort_key)
            if not batch.rows:
                continue
            if emit.to == "everyone":
                payload = b"".join(encoded(batch))
                yield from ((shard, emit.slot, payload) for shard in range(self.job.shards))
                continue
            for shard, some in split(batch, self.job.shards) if emit.to == "owners" else [(self.shard, batch)]:
                yield shard, emit.slot, b"".join(encoded(some))

    # ------------------------------------------------------------------ inside

    def _aside(self) -> list[tuple[str, list[Any]]]:
        """What has come in files: slots and places."""
        return [row for payload in self.received.pop(ASIDE, ()) for row in json.loads(payload)["rows"]]

    def _take_up(self) -> list[tuple[str, list[Any]]]:
        """Read what has come in files; gives what only passes."""
        loops = [step for step in self.level.steps if isinstance(step, Iterate)]
        passing = []
        for slot, place in self._aside():
            if self.level.passes and not any(step.takes(slot) for step in loops):
                passing.append((slot, place))
            else:
                self.received.setdefault(slot, []).append(self.aside(place).to_pybytes())
        return passing

    def _put_away(self, rows: list[tuple[str, list[Any]]]) -> bytes:
        """All that has come, in files; `rows` are there already."""
        payloads = [(slot, payload) for slot, some in self.received.items() for payload in some]
        places = self.put_aside([payload for _, payload in payloads]) if payloads else []
        rows = rows + [(slot, place) for (slot, _), place in zip(payloads, places, strict=True)]
        return json.dumps({"resumes": self.level.resumes, "rows": rows}).encode()

    def _passed(self, rows: list[tuple[str, list[Any]]]) -> Iterator[Row]:
        """What nobody has taken, for the next level; `rows` are in files."""
        if is_much(payload for some in self.received.values() for payload in some):
            yield self.shard, ASIDE, self._put_away(rows)
            return
        yield from ((self.shard, slot, payload) for slot, some in self.received.items() for payload in some)
        if rows:
            yield self.shard, ASIDE, json.dumps({"rows": rows}).encode()

    def _part(self) -> str:
        """The name of a file that nobody knows yet."""
        return f"{PART_PREFIX}{self.job.tick:016d}-{uuid.uuid4().hex}"

    def _opened(self) -> tuple[Shelf, Reading]:
        if self._shelf is None or self._reading is None:
            files = self.job.files()
            self._shelf, self._reading = Shelf(files), Reading(files, verify=False, opened=_opened)
        return self._shelf, self._reading

    def _step(self, step: Step) -> None:
        if step.alone and self.shard != owner(self.job.shards):
            self.values[step.id] = Delta.empty(step.operator.schema)
            return
        inputs = [self.values[slot] if schema is None else self.delta(slot, schema) for slot, schema in step.inputs]
        if isinstance(step.operator, Arrange):
            self.values[step.id] = _Arranging(self, step, inputs[0])
            return
        if not any(i.rows for i in inputs if not isinstance(i, dict)) and not (self.job.fresh and step.alone):
            self.values[step.id] = self._nothing(step, inputs)
            return
        given = [i.arranged() if isinstance(i, _Arranging) else i for i in inputs]
        if not step.operator.state_sort_keys():
            _, self.values[step.id] = step.operator.step((), given)
            return
        before = self.state(step.id, step.operator.state_sort_keys())
        after, self.values[step.id] = step.operator.step(before, given)
        if after is not before:
            self.keep(step.id, after)

    def _nothing(self, step: Step, inputs: Sequence[Any]) -> Any:
        if inputs and isinstance(inputs[0], dict):  # the result of a fixpoint
            _, out = step.operator.step((), inputs)
            return out
        nothing = getattr(step.operator, "nothing", None)
        return Delta.empty(step.operator.schema) if nothing is None else nothing()

    def _report(self) -> dict[str, Any]:
        """Write what is new; gives the records of the traces that have changed."""
        # An arranged stream that nobody has looked up is kept all the same.
        for value in list(self.values.values()):
            if isinstance(value, _Arranging) and value.rows:
                value.arranged()
        if not self.kept:
            return {}
        shelf, _ = self._opened()
        work = Writing(shelf, self._part())
        found: dict[str, list[TraceRecord]] = {}
        for trace, state in self.kept.items():
            found[trace] = [work.record(spine.work()) for spine in state]
        work.compact(e.place for records in found.values() for r in records for e in r.entries if e.place is not None)
        if work.segment.parts:
            work.put()
        return {trace: [r.to_json() for r in records] for trace, records in found.items()}


class _Arranging:
    """An arrange node of a level: opened when somebody looks something up in it."""

    def __init__(self, work: Work, step: Step, delta: Delta) -> None:
        self._work = work
        self._step = step
        self._delta = delta
        self._found: Arranged | None = None
        self.rows = delta.rows

    def arranged(self) -> Arranged:
        if self._found is None:
            work, step = self._work, self._step
            operator = step.operator
            assert isinstance(operator, Arrange)
            before = work.state(step.id, operator.state_sort_keys())
            if step.writes:
                after, self._found = operator.step(before, [self._delta])
                if after[0] is not before[0]:
                    work.keep(step.id, after)
            else:  # another level keeps it; here it is only read, so nothing is merged
                delta = self._delta.sorted_by(operator.sort_key)
                entries = (*before[0].entries, delta) if delta.rows else before[0].entries
                self._found = Arranged(delta, before[0], Spine(operator.sort_key, entries))
        return self._found


def failure(error: DbsparkError, level: int, shard: int) -> bytes:
    """An error as a payload: its type, which is one of ours, and what it says."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, DbsparkError)]
    return json.dumps([level, shard, kinds, str(error)]).encode()


def raise_first(payloads: Iterable[bytes]) -> None:
    """Raise the error of the first level, and there of the first shard, if there is any."""
    found = sorted((json.loads(p) for p in payloads), key=lambda e: e[:2])
    if found:
        _, _, kinds, message = found[0]
        known = {kind.__name__: kind for kind in _kinds(DbsparkError)}
        raise next(known[name] for name in kinds if name in known)(message)


def _kinds(kind: type[DbsparkError]) -> Iterator[type[DbsparkError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


__all__ = ["ERROR", "REPORT", "TOLD", "Job", "Row", "Runs", "Work", "failure", "raise_first"]
