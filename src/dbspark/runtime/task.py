"""A task: one level of a tick on one shard, whichever transport runs it.

A task runs the steps of its level on the batches that it has received, and returns the messages for later levels. It
does not know how messages travel (`dbspark.runtime.transport`), nor where traces are kept: it reads and replaces them
through a `ShardState`. Invariants:

1. A task reads every trace as it was before the tick, also where an earlier level of the same tick has replaced it.
2. What a task replaces becomes the state of the shard only if the whole tick succeeds on all shards.
3. A trace is opened when a step reads it, so a level in which a shard receives nothing costs that shard nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError, EvaluationError
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.operator import Arrange
from dbspark.runtime.level_plan import Level, NodeStep
from dbspark.runtime.placement import owner, split
from dbspark.storage.files import Files
from dbspark.storage.segment import decode_batch
from dbspark.trace.history import History
from dbspark.trace.spine import Spine

Message = tuple[int, str, Any]
"""(target shard, slot, payload): a batch, or bytes that encode one."""


class HistoryOptions(NamedTuple):
    """What the history of a table or view is opened with."""

    sort_key: SortKey
    keep: int
    """Ticks back that can be read (the setting `history`)."""
    created: int
    """The tick at which it was empty."""
    keyed: bool
    """Whether it is a table with a primary key, which every tick probes."""


class ShardState(Protocol):
    """The traces of one shard during a tick: as they were before it, and what the tick makes of them."""

    def __contains__(self, name: object, /) -> bool:
        """Whether anything is kept of a trace."""
        ...

    def spine(self, name: str, number: int, sort_key: SortKey) -> Spine:
        """One of the spines of a trace before the tick; an empty one where nothing is kept."""
        ...

    def replace(self, name: str, state: State) -> None:
        """What the spines of a trace are after the tick."""
        ...

    def history(self, name: str, options: HistoryOptions, tick: int, hold: int | None) -> History:
        """The history of a table or view up to the tick before `tick`; readable from the tick `hold` on."""
        ...

    def append(self, name: str, history: History, delta: Delta, tick: int) -> None:
        """Append the delta of the tick to a history that `history` has given, or to a new one."""
        ...


class LevelStep(Protocol):
    """A step of a level that is no node of the circuit: a table, a view, the end of a fixpoint, a reslicing."""

    @property
    def id(self) -> str: ...

    def run(self, task: LevelTask) -> None: ...


class FixpointOutcome(NamedTuple):
    """What a fixpoint has computed on one shard in a tick, once it has ended."""

    iterations: int
    changes: Mapping[str, Sequence[Batch]]
    """By variable, the changes of its iterations."""
    new_rows: Mapping[str, Sequence[Batch]]
    """By trace, the rows of the tick."""


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
    """Traces that are computed, but whose state is not replaced."""
    subscribed_views: frozenset[str] = frozenset()
    """Views whose deltas are sent to the driver."""
    history_holds: Mapping[str, int] = field(default_factory=dict)
    """By trace, the tick from which its history is kept, where that is further back than the setting `history` says."""


@dataclass(slots=True)
class LevelTask:
    """One run of a level on one shard, and what its steps read and write."""

    context: TickContext
    number: int
    """The number of the level, for reports and errors."""
    level: Level
    shard: int
    kept: ShardState
    received: dict[str, list[Any]] = field(default_factory=dict)
    """By slot, what earlier levels have sent: batches, or bytes that encode them."""
    fixpoints: dict[str, FixpointOutcome] = field(default_factory=dict)
    """What the fixpoints in front of the level have computed, by the id of their nodes."""
    values: dict[str, Any] = field(default_factory=dict)
    """By slot or node id, decoded deltas and outputs of steps."""
    report_fields: dict[str, Any] = field(default_factory=dict)
    """Further entries of the report to the driver, beside the traces."""
    driver_batches: list[tuple[str, Batch]] = field(default_factory=list)
    """Batches for the driver, with the names of their traces."""

    def run_steps(self) -> None:
        """Run the steps of the level."""
        for step in self.level.steps:
            if isinstance(step, NodeStep):
                self._step(step)
            else:
                step.run(self)
        # An arrangement that no step has probed was not opened yet; its new state has to be stored all the same.
        for value in list(self.values.values()):
            if isinstance(value, _LazyArrangement) and value.rows:
                value.arranged()

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
        return [
            payload if isinstance(payload, Batch) else decode_batch(pa.py_buffer(payload), sort_key)
            for payload in self.received.get(slot, ())
        ]

    def state(self, name: str, sort_keys: Sequence[SortKey]) -> State:
        """The spines of a trace before the tick; empty ones where nothing is kept."""
        return tuple(self.kept.spine(name, i, sort_key) for i, sort_key in enumerate(sort_keys))

    def set_state(self, name: str, state: State) -> None:
        """Replace the state of a trace."""
        if name not in self.context.unchanged_traces:
            self.kept.replace(name, state)

    def history(self, name: str, options: HistoryOptions, tick: int) -> History:
        """The history of a table or view on this shard, up to the tick before `tick`."""
        return self.kept.history(name, options, tick, self.context.history_holds.get(name))

    def append(self, name: str, history: History, change: Batch) -> None:
        """Append the change of this tick to a history."""
        if name not in self.context.unchanged_traces:
            self.kept.append(name, history, Delta.of(change), self.context.tick)

    def send_to_driver(self, name: str, batch: Batch) -> None:
        """Send a batch of a trace to the driver."""
        self.driver_batches.append((name, batch))

    # ------------------------------------------------------------------ for transports

    def nested(self, level: Level, received: dict[str, list[Any]]) -> LevelTask:
        """This task for a level of a fixpoint, with slots and values of its own."""
        return LevelTask(self.context, self.number, level, self.shard, self.kept, received)

    def outgoing(self) -> Iterator[Message]:
        """What the outgoing slots of the level send, in batches."""
        for emit in self.level.outgoing:
            sort_key = self.level.streams[emit.slot]
            batch = self.delta(emit.node, sort_key.schema).sorted_by(sort_key)
            if not batch.rows:
                continue
            if emit.to == "everyone":
                yield from ((shard, emit.slot, batch) for shard in range(self.context.shards))
            elif emit.to == "same":
                yield self.shard, emit.slot, batch
            else:
                yield from ((shard, emit.slot, part) for shard, part in split(batch, self.context.shards))

    # ------------------------------------------------------------------ internals

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
            _, self.values[step.id] = self._stepped(step, (), arguments)
            return
        before = self.state(step.id, step.operator.state_sort_keys())
        after, self.values[step.id] = self._stepped(step, before, arguments)
        if after is not before:
            self.set_state(step.id, after)

    def _stepped(self, step: NodeStep, before: State, arguments: Sequence[Any]) -> tuple[State, Any]:
        """Step the operator of a node; an `EvaluationError` gets the id of the node."""
        try:
            return step.operator.step(before, arguments)
        except EvaluationError as error:
            described = error.of_view(None)
            described.node = step.id
            raise described from error

    def _nothing(self, step: NodeStep, inputs: Sequence[Any]) -> Any:
        if inputs and isinstance(inputs[0], dict):  # the result of a fixpoint
            _, out = step.operator.step((), inputs)
            return out
        nothing = getattr(step.operator, "nothing", None)
        return Delta.empty(step.operator.schema) if nothing is None else nothing()


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


def failure(error: DbsparkError, level: int, shard: int) -> bytes:
    """An error as a payload: the names of its types in `dbspark.errors`, its message, and the node it comes from."""
    type_names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, DbsparkError)]
    return json.dumps([level, shard, type_names, str(error), getattr(error, "node", None)]).encode()


def raise_first(payloads: Iterable[bytes]) -> None:
    """Raise the error of the first level, and in it of the first shard, if there is any."""
    found = sorted((json.loads(p) for p in payloads), key=lambda e: e[:2])
    if found:
        _, _, type_names, message, node = found[0]
        known = {kind.__name__: kind for kind in _error_types(DbsparkError)}
        error = next(known[name] for name in type_names if name in known)(message)
        if isinstance(error, EvaluationError):
            error.node = node
        raise error


def _error_types(kind: type[DbsparkError]) -> Iterator[type[DbsparkError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _error_types(below)


__all__ = [
    "FixpointOutcome",
    "HistoryOptions",
    "LevelStep",
    "LevelTask",
    "Message",
    "ShardState",
    "TickContext",
    "failure",
    "raise_first",
]
