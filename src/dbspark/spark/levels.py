"""A circuit cut at exchanges into levels.

A *level* is all that can be done without a row changing shard. Where a node wants its input placed otherwise than it
lies, the input is exchanged, and the node is one level later. What flows is named by *slots*: a stream as it lies, or a
stream exchanged by some columns. A slot that is needed several levels later is carried along from shard to same shard.

Arranged streams do not travel: an integral stays where it is kept. So an arrange node belongs to the first level that
reads it, which keeps its state; a later level that reads it too gets the delta, and reads the integral before the tick.

What another engine is asked about rows (`Asked`) is asked between two levels: the rows leave the one, and what comes of
them is there in the next, each row on the shard where it was. Nothing of it is a step.

Where a trace lies (`Lies`) is part of the layout: policies of joins change it, and state has to be moved then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dbspark.batch import Arrangement
from dbspark.batch.schema import Schema
from dbspark.circuit.graph import Graph, Node
from dbspark.errors import CircuitError
from dbspark.operators.asked import Asked
from dbspark.operators.operator import Operator
from dbspark.spark.combine import combined
from dbspark.spark.placement import ANYWHERE, Key, Placed, Policy, alone, key_of, placed, wanted

_STAYS = ("arranged", "nested")
"""Kinds of streams that cannot be sent."""

Policies = Mapping[str, tuple[Policy, Policy]]
"""The policies of the sides of joins, by the joins' ids; others are sharded."""
Lies = Literal["owner", "everywhere"] | Key
"""Where a trace lies: on one shard, on all of them, or by the hash of some of its columns."""


def slot_of(node: str, key: Key | None = None) -> str:
    """The name of a stream as it lies, or exchanged by some columns."""
    return node if key is None else f"{node} by {','.join(map(str, key))}"


@dataclass(frozen=True, slots=True)
class Step:
    """A node in a level."""

    id: str
    label: str
    operator: Operator
    inputs: tuple[tuple[str, Schema | None], ...]
    """Slots with their schemas; without one, a node of this level that gives something that does not travel."""
    writes: bool
    """Whether this level keeps its state; others only read it."""
    alone: bool
    """Whether it runs on one shard only."""


@dataclass(frozen=True, slots=True)
class Emit:
    """A slot that leaves a level."""

    slot: str
    node: str
    to: Literal["owners", "everyone", "same"]
    """Each row to the shard that it belongs to, all rows to all shards, or to the shard where they are."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A slot that leaves a level for a question, and the one in which the answer comes to the next."""

    slot: str
    source: Schema
    answer: str
    schema: Schema
    question: Any
    """See `operators.asked`; it is put by the driver, and stays there."""

    def __reduce__(self) -> Any:
        return Ask, (self.slot, self.source, self.answer, self.schema, None)


@dataclass(slots=True)
class Level:
    """What is done between two exchanges. Steps are run in order."""

    steps: list[Any] = field(default_factory=list)
    emits: list[Emit] = field(default_factory=list)
    streams: dict[str, Arrangement] = field(default_factory=dict)
    """The slots that come in or go out, and the order in which they travel."""
    asks: list[Ask] = field(default_factory=list)
    """What is asked about what leaves it."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where an output is: each of its rows on one shard, whichever way it came about."""

    level: int
    slot: str
    key: Key


@dataclass(frozen=True, slots=True)
class Layout:
    """The levels of a circuit, and where its outputs are."""

    levels: tuple[Level, ...]
    outputs: Mapping[str, Output]
    lies: Mapping[str, Lies]
    """Of every node that keeps state."""


def layout(graph: Graph, sources: Mapping[str, Placed], policies: Policies | None = None) -> Layout:
    """Cut a graph into levels; `sources` says how each source is placed, `policies` how the sides of joins are."""
    return _Planner(combined(graph), sources, policies or {}).layout()


class _Planner:
    def __init__(self, graph: Graph, sources: Mapping[str, Placed], policies: Policies) -> None:
        self.graph = graph
        self.policies = policies
        self.of_arrange = {
            side.id: policy
            for join, given in policies.items()
            if join in graph.nodes
            for side, policy in zip(graph.nodes[join].inputs, given, strict=True)
        }
        self.placed: dict[str, Placed] = {}
        self.level: dict[str, int] = {}
        """Where a node's output is first there."""
        self.slots: dict[str, list[str]] = {}
        """What each node reads."""
        self.needs: dict[str, set[int]] = {}
        """The levels at which a slot is read."""
        self.exchanged: dict[str, tuple[str, Key | None]] = {}
        """Slots that change shard, with the node and the columns by which; None: to everyone."""
        self.order = graph.schedule()
        for node in self.order:
            self._place(node, sources)
        self.arranged = self._arranged_levels()
        self.outputs = {name: self._output(node) for name, node in graph.outputs.items()}

    def _place(self, node: Node, sources: Mapping[str, Placed]) -> None:
        if node.role == "delay":
            raise CircuitError("a delay over ticks is not sharded; run the circuit embedded")
        if node.role == "source":
            self.placed[node.id], self.level[node.id] = sources.get(str(node.name), ANYWHERE), 0
            return
        level, slots = 0, []
        policy = self.of_arrange.get(node.id, "shard")
        inputs = [self.placed[i.id] for i in node.inputs]
        for given, key in zip(node.inputs, wanted(node, inputs, policy), strict=True):
            there = self.level[given.id]
            slot = slot_of(given.id)
            if isinstance(node.operator, Asked):
                slot = f"{given.id} asked"
                there += 1
            elif policy == "broadcast":
                slot = self._broadcast(given)
                there += 1
            elif key is not None and key not in self.placed[given.id]:
                slot = self._exchange(given, key)
                there += 1
            slots.append(slot)
            level = max(level, there)
        self.slots[node.id], self.level[node.id] = slots, level
        self.placed[node.id] = placed(node, inputs, self.policies.get(node.id, (policy, policy)))

    def _arranged_levels(self) -> dict[str, list[int]]:
        """For each node whose output stays where it is, the levels that read it."""
        readers: dict[str, set[int]] = {}
        for node in self.order:
            for given in node.inputs:
                if given.kind in _STAYS:
                    readers.setdefault(given.id, set()).add(self.level[node.id])
        for node in self.order:
            if node.kind == "nested" and len(readers.get(node.id, ())) > 1:
                raise CircuitError(f"{node.label!r} is read at several levels")
        return {n: sorted(levels) for n, levels in readers.items()}

    def _exchange(self, node: Node, key: Key) -> str:
        slot = slot_of(node.id, key)
        self.exchanged[slot] = node.id, key
        return slot

    def _broadcast(self, node: Node) -> str:
        slot = f"{node.id} to everyone"
        self.exchanged[slot] = node.id, None
        return slot

    def _output(self, node: Node) -> Output:
        level, slot = self.level[node.id], slot_of(node.id)
        if self.placed[node.id]:
            key = min(self.placed[node.id], key=lambda k: (len(k), k))
        else:
            key = tuple(range(node.schema.columns))
            level, slot = level + 1, self._exchange(node, key)
        self.needs.setdefault(slot, set()).add(level)
        return Output(level, slot, key)

    def layout(self) -> Layout:
        last = max([*self.level.values(), *(o.level for o in self.outputs.values())], default=0)
        levels = [Level() for _ in range(1 + last)]
        for node in self.order:
            if node.operator is None:
                continue
            if isinstance(node.operator, Asked):
                self._ask(levels, node, node.operator)
                continue
            where = self.arranged.get(node.id) or [self.level[node.id]]
            inputs = tuple(
                (slot, None if given.kind in _STAYS else given.schema)
                for slot, given in zip(self.slots[node.id], node.inputs, strict=True)
            )
            for at in where:
                levels[at].steps.append(Step(node.id, node.label, node.operator, inputs, at == where[0], alone(node)))
                for slot, schema in inputs:
                    if schema is not None:
                        self.needs.setdefault(slot, set()).add(at)
        for slot, read in self.needs.items():
            self._emit(levels, slot, max(read))
        lies = {n.id: self._lies(n) for n in self.order if n.operator is not None and n.operator.kept()}
        return Layout(tuple(levels), self.outputs, lies)

    def _ask(self, levels: list[Level], node: Node, operator: Asked) -> None:
        (slot,), (given,), at = self.slots[node.id], node.inputs, self.level[node.id]
        before = levels[at - 1]
        if slot not in before.streams:
            before.emits.append(Emit(slot, given.id, "same"))
            before.streams[slot] = Arrangement(given.schema)
        before.asks.append(Ask(slot, given.schema, node.id, node.schema, operator.question))
        levels[at].streams[node.id] = Arrangement(node.schema)

    def _lies(self, node: Node) -> Lies:
        if alone(node):
            return "owner"
        policy = self.of_arrange.get(node.id, "shard")
        if policy == "broadcast":
            return "everywhere"
        assert node.operator is not None
        if policy == "balance":
            return min(self.placed[node.id], key=lambda k: (len(k), k))
        return key_of(node.operator.kept()[0])

    def _emit(self, levels: list[Level], slot: str, last: int) -> None:
        if slot in self.exchanged:
            node, key = self.exchanged[slot]
            begin = self.level[node]
            arrangement = Arrangement(self.graph.nodes[node].schema, key)
            levels[begin].emits.append(Emit(slot, node, "everyone" if key is None else "owners"))
            levels[begin].streams[slot] = levels[begin + 1].streams[slot] = arrangement
            begin += 1
        else:
            begin = self.level[slot]
            arrangement = Arrangement(self.graph.nodes[slot].schema)
        for at in range(begin, last):
            levels[at].emits.append(Emit(slot, slot, "same"))
            levels[at].streams[slot] = levels[at + 1].streams[slot] = arrangement
