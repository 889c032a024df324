"""A circuit cut at exchanges into levels.

A *level* is all that can be done without a row changing shard. Where a node wants its input placed otherwise than it
lies, the input is exchanged, and the node is one level later. What flows is named by *slots*: a stream as it lies, or a
stream exchanged by some columns. A slot that is needed several levels later is carried along from shard to same shard.

Arranged streams do not travel: an integral stays where it is kept. So an arrange node belongs to the first level that
reads it, which keeps its state; a later level that reads it too gets the delta, and reads the integral before the tick.

An external function (`ExternalFunction`) is evaluated between two levels: its rows leave the one, and the results are
there in the next, each row on the shard where it was. Nothing of it is a step.

A fixpoint stands between two levels: what it takes leaves one, what it gives comes to the next. The graph inside is cut
in the same way, with sources and variables in front of its first level, and a few iterations of its levels are stages
of their own (`dbspark.runtime.fixpoint`), which hand on whatever else goes from the one level to the other. Fixpoints
between the same two levels share their stages. One that cannot be cut (`iterates`) is an operator like others, on one
shard.

Where a trace lies (`Lies`) is part of the layout: policies of joins change it, and state has to be moved then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dbspark.circuit.graph import Graph, Node
from dbspark.circuit.nested import Fixpoint, Result
from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema
from dbspark.errors import CircuitError
from dbspark.operators.external_function import ExternalFunction
from dbspark.operators.operator import Arrange, Operator
from dbspark.operators.placement import ANYWHERE, Key, Placed, Policy, key_of
from dbspark.runtime.fixpoint import ITERATIONS, Ended, Iterate, Loop
from dbspark.runtime.partial_aggregation import combined

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
    """See `operators.external_function`; the driver calls it, and it stays there."""

    def __reduce__(self) -> Any:
        return Ask, (self.slot, self.source, self.answer, self.schema, None)


@dataclass(slots=True)
class Level:
    """What is done between two exchanges. Steps are run in order."""

    steps: list[Any] = field(default_factory=list)
    emits: list[Emit] = field(default_factory=list)
    streams: dict[str, SortKey] = field(default_factory=dict)
    """The slots that come in or go out, and the order in which they travel."""
    asks: list[Ask] = field(default_factory=list)
    """What is asked about what leaves it."""
    passes: bool = False
    """Whether what has come and nobody has taken goes on to the next level."""
    awaits: list[str] = field(default_factory=list)
    """Slots of votes: if any have come, a fixpoint in front of this level is not over, and the level is not run yet."""
    resumes: int = 0
    """Where another job goes on then: a number in `Layout.resumed`."""


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
    lies: Mapping[str, tuple[Lies, ...]]
    """The spines of every node that keeps state."""
    resumed: tuple[int, ...]
    """The levels at which jobs go on with fixpoints that are not over."""


def layout(
    graph: Graph, sources: Mapping[str, Placed], policies: Policies | None = None, iterations: int = ITERATIONS
) -> Layout:
    """Cut a graph into levels; `sources` says how each source is placed, `policies` how the sides of joins are.

    So many `iterations` of each fixpoint are unrolled, at the least.
    """
    graph = combined(graph)
    if any(node.role == "delay" for node in graph):
        raise CircuitError("a delay over ticks is not sharded; run the circuit embedded")
    begins = {n.id: sources.get(str(n.name), ANYWHERE) for n in graph if n.role == "source"}
    return _Planner(graph, begins, policies or {}).layout(iterations)


class _Planner:
    first = 0
    """The first level in which something is done; sources are in level 0."""

    def __init__(self, graph: Graph, begins: Mapping[str, Placed], policies: Policies) -> None:
        """`begins`: how sources are placed, and delays."""
        self.graph = graph
        self.policies = policies
        self.of_arrange = {
            side.id: policy
            for join, given in policies.items()
            if join in graph.nodes
            for side, policy in zip(graph.nodes[join].inputs, given, strict=True)
        }
        self.placed: dict[str, Placed] = dict(begins)
        self.level: dict[str, int] = dict.fromkeys(begins, 0)
        """Where a node's output is first there."""
        self.slots: dict[str, list[str]] = {}
        """What each node reads."""
        self.needs: dict[str, set[int]] = {}
        """The levels at which a slot is read."""
        self.exchanged: dict[str, tuple[str, Key | None]] = {}
        """Slots that change shard, with the node and the columns by which; None: to everyone."""
        self.inside: dict[str, _Inside] = {}
        """Fixpoints that are cut."""
        self.order = graph.schedule()
        for node in self.order:
            if node.operator is not None:
                self._place(node)
        self.arranged = self._arranged_levels()

    def _place(self, node: Node) -> None:
        if isinstance(node.operator, Fixpoint) and iterates(node.operator):
            self.inside[node.id] = _Inside.of(node.operator, [self.placed[i.id] for i in node.inputs])
            feeds = max((self.level[i.id] for i in node.inputs), default=0)
            self.slots[node.id], self.level[node.id], self.placed[node.id] = [], feeds + 1, ANYWHERE
            for given in node.inputs:
                self.needs.setdefault(slot_of(given.id), set()).add(feeds)
            return
        assert node.operator is not None
        level, slots = self.first, []
        policy = self.of_arrange.get(node.id, "shard")
        inputs = [self.placed[i.id] for i in node.inputs]
        for given, key in zip(node.inputs, node.operator.input_placements(inputs, policy), strict=True):
            there = self.level[given.id]
            slot = slot_of(given.id)
            if isinstance(node.operator, ExternalFunction):
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
        if isinstance(node.operator, Result) and node.inputs[0].id in self.inside:
            self.placed[node.id] = self.inside[node.inputs[0].id].placed_result(node.operator.name)
        else:
            policies = self.policies.get(node.id, (policy, policy))
            self.placed[node.id] = node.operator.output_placement(inputs, policies)

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

    def layout(self, iterations: int) -> Layout:
        outputs = {name: self._output(node) for name, node in self.graph.outputs.items()}
        levels = self._levels(max([*self.level.values(), *(o.level for o in outputs.values())], default=0))
        lies = {n.id: self._lies(n) for n in self.order if n.operator is not None and n.operator.state_sort_keys()}
        whole: list[Level] = []
        numbers: list[int] = []
        resumed: list[int] = []
        for number, level in enumerate(levels):
            loops = [inside.loop(node) for node, inside in self.inside.items() if self.level[node] == number]
            if loops:
                level.resumes = len(resumed)
                level.awaits = [loop.votes for loop in loops]
                resumed.append(len(whole))
                whole += _unrolled(loops, iterations)
            numbers.append(len(whole))
            whole.append(level)
        outputs = {name: replace(output, level=numbers[output.level]) for name, output in outputs.items()}
        return Layout(tuple(whole), outputs, lies, tuple(resumed))

    def _levels(self, last: int) -> list[Level]:
        levels = [Level() for _ in range(1 + last)]
        for node in self.order:
            if node.operator is None:
                continue
            if isinstance(node.operator, ExternalFunction):
                self._ask(levels, node, node.operator)
                continue
            if node.id in self.inside:
                loop = self.inside[node.id].loop(node.id)
                levels[self.level[node.id]].steps.append(Ended(loop))
                continue
            where = self.arranged.get(node.id) or [self.level[node.id]]
            inputs = tuple(
                (slot, None if given.kind in _STAYS else given.schema)
                for slot, given in zip(self.slots[node.id], node.inputs, strict=True)
            )
            for at in where:
                alone = node.operator.emits_without_input
                levels[at].steps.append(Step(node.id, node.label, node.operator, inputs, at == where[0], alone))
                for slot, schema in inputs:
                    if schema is not None:
                        self.needs.setdefault(slot, set()).add(at)
        for slot, read in self.needs.items():
            self._emit(levels, slot, max(read))
        for name, inside in self.inside.items():
            feeds = levels[self.level[name] - 1]
            for emit, sort_key in inside.entering(name, self.graph.nodes[name].inputs):
                feeds.emits.append(emit)
                feeds.streams[emit.slot] = sort_key
        return levels

    def _ask(self, levels: list[Level], node: Node, operator: ExternalFunction) -> None:
        (slot,), (given,), at = self.slots[node.id], node.inputs, self.level[node.id]
        before = levels[at - 1]
        if slot not in before.streams:
            before.emits.append(Emit(slot, given.id, "same"))
            before.streams[slot] = SortKey(given.schema)
        before.asks.append(Ask(slot, given.schema, node.id, node.schema, operator.evaluator))
        levels[at].streams[node.id] = SortKey(node.schema)

    def _lies(self, node: Node) -> tuple[Lies, ...]:
        assert node.operator is not None
        kept = node.operator.state_sort_keys()
        policy = self.of_arrange.get(node.id, "shard")
        if node.id not in self.inside and node.operator.emits_without_input:
            return tuple("owner" for _ in kept)
        if policy == "broadcast":
            return ("everywhere",)
        if policy == "balance":
            return (min(self.placed[node.id], key=lambda k: (len(k), k)),)
        return tuple(key_of(sort_key) for sort_key in kept)

    def _emit(self, levels: list[Level], slot: str, last: int) -> None:
        if slot in self.exchanged:
            node, key = self.exchanged[slot]
            begin = self.level[node]
            sort_key = SortKey(self.graph.nodes[node].schema, key)
            levels[begin].emits.append(Emit(slot, node, "everyone" if key is None else "owners"))
            levels[begin].streams[slot] = levels[begin + 1].streams[slot] = sort_key
            begin += 1
        else:
            begin = self.level[slot]
            sort_key = SortKey(self.graph.nodes[slot].schema)
        for at in range(begin, last):
            levels[at].emits.append(Emit(slot, slot, "same"))
            levels[at].streams[slot] = levels[at + 1].streams[slot] = sort_key


class _Inside(_Planner):
    """The graph of a fixpoint. What comes from outside and from the iteration before comes to its first level, 1."""

    first = 1

    def __init__(self, fixpoint: Fixpoint, begins: Mapping[str, Placed]) -> None:
        super().__init__(fixpoint.graph, begins, {})
        self.fixpoint = fixpoint
        self.last = max(1, *self.level.values())
        self.feeds = {variable.id: variable.inputs[0].id for variable in fixpoint.variables}
        """What flows into each variable."""

    @staticmethod
    def of(fixpoint: Fixpoint, inputs: Sequence[Placed]) -> _Inside:
        """Where the variables lie is found by asking first where they would if they lay anywhere.

        Rows that flow into a variable have to come together, so that what cancels does: if they lie anywhere, they are
        exchanged by whole rows.
        """
        outside = {n.id: given for n, given in zip(fixpoint.sources, inputs, strict=True)}
        anywhere = _Inside(fixpoint, {**outside, **{n.id: ANYWHERE for n in fixpoint.variables}})
        found = {n.id: anywhere.placed[n.inputs[0].id] or _by_row(n) for n in fixpoint.variables}
        inside = _Inside(fixpoint, {**outside, **found})
        inside._cut({n.id for n in fixpoint.variables if not anywhere.placed[n.inputs[0].id]})
        return inside

    def _cut(self, exchanged: set[str]) -> None:
        """Make the levels; `exchanged`: variables that are exchanged even where they are read as they lie."""
        for feed in self.feeds.values():
            self.needs.setdefault(slot_of(feed), set()).add(self.last)
        front, *levels = self._levels(self.last)
        self.levels = tuple(levels)
        self._entering: list[tuple[str, Emit, SortKey]] = []
        """What comes from outside: the source, how it is sent, and in which order."""
        for emit in front.emits:
            node = self.exchanged[emit.slot][0] if emit.slot in self.exchanged else emit.slot
            if node in self.feeds:
                to = "owners" if node in exchanged and emit.to == "same" else emit.to
                levels[-1].emits.append(Emit(emit.slot, slot_of(self.feeds[node]), to))
                levels[-1].streams[emit.slot] = front.streams[emit.slot]
            else:
                self._entering.append((node, emit, front.streams[emit.slot]))

    def placed_result(self, name: str) -> Placed:
        """Where the rows of a variable lie when it is over."""
        return self.placed[self.graph.outputs[name].id]

    def loop(self, node: str) -> Loop:
        """As the tasks know it."""
        feeds = tuple((str(v.name), slot_of(self.feeds[v.id]), v.schema) for v in self.fixpoint.variables)
        return Loop(node, self.fixpoint, self.levels, feeds)

    def entering(self, node: str, inputs: Sequence[Node]) -> Iterator[tuple[Emit, SortKey]]:
        """What the level in front of the fixpoint sends to it."""
        given = {n.id: i.id for n, i in zip(self.fixpoint.sources, inputs, strict=True)}
        inside = self.loop(node).inside
        for source, emit, sort_key in self._entering:
            yield Emit(inside + emit.slot, slot_of(given[source]), emit.to), sort_key


def iterates(fixpoint: Fixpoint) -> bool:
    """Whether a fixpoint can be cut into levels; others run as a whole on one shard."""
    for node in fixpoint.graph:
        operator = node.operator
        if node.kind not in ("delta", "arranged") or (operator is not None and operator.emits_without_input):
            return False
        if isinstance(operator, Arrange) and not key_of(operator.sort_key):
            return False  # all of it would be on one shard, and keys without columns cannot be handed on
    return True


def _by_row(node: Node) -> Placed:
    return frozenset({tuple(range(node.schema.columns))})


def _unrolled(loops: Sequence[Loop], iterations: int) -> list[Level]:
    """Iterations of fixpoints beside each other, whole ones of each of them."""
    stages = math.lcm(*(len(loop.levels) for loop in loops))
    stages *= -(-iterations * max(len(loop.levels) for loop in loops) // stages)
    return [Level([Iterate(loop, stage) for loop in loops], passes=True) for stage in range(stages)]
