"""A circuit cut at exchanges into levels.

A *level* is all that can be done without a row changing shard. Where a node wants its input placed otherwise than it
lies, the input is exchanged, and the node is one level later. What flows is named by *slots*: a stream as it lies, or a
stream exchanged by some columns. A slot that is needed several levels later is carried along from shard to same shard.

Arranged streams do not travel: an integral stays where it is kept. So an arrange node belongs to the first level that
reads it, which keeps its state; a later level that reads it too gets the delta, and reads the integral before the tick.

What another engine is asked about rows (`Asked`) is asked between two levels: the rows leave the one, and what comes of
them is there in the next, each row on the shard where it was. Nothing of it is a step.

A fixpoint stands between two levels: what it takes leaves one, what it gives comes to the next. The graph inside is cut
in the same way, with sources and variables in front of its first level, and a few iterations of its levels are stages
of their own (`dbspark.runtime.fixpoint`), which hand on whatever else goes from the one level to the other. Fixpoints
between the same two levels share their stages. One that cannot be cut (`iterates`) is an operator like others, on one
shard.

Where a trace lies (`TracePlacement`) is part of the layout: policies of joins change it, and state has to be moved
then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dbspark.circuit.graph import Graph, Node
from dbspark.circuit.nested import Fixpoint, Result
from dbspark.columnar import SortKey
from dbspark.errors import CircuitError
from dbspark.operators.asked import Asked
from dbspark.operators.operator import Arrange
from dbspark.runtime.fixpoint import MAX_UNROLLED_ITERATIONS, FixpointResultStep, IterationStep
from dbspark.runtime.level_plan import (
    ExternalCall,
    FixpointPlan,
    Level,
    LevelPlan,
    NodeStep,
    OutgoingSlot,
    OutputPlacement,
    Policies,
    TracePlacement,
    slot_of,
)
from dbspark.runtime.partial_aggregation import add_partial_aggregates
from dbspark.runtime.placement import ANYWHERE, Key, Placed, alone, key_of, placed, wanted

_LOCAL_KINDS = ("arranged", "nested")
"""Kinds of streams that cannot be sent."""


def plan_levels(
    graph: Graph,
    sources: Mapping[str, Placed],
    join_policies: Policies | None = None,
    iterations: int = MAX_UNROLLED_ITERATIONS,
) -> LevelPlan:
    """Cut a graph into levels; `sources` says how each source is placed, `join_policies` how the sides of joins are.

    So many `iterations` of each fixpoint are unrolled, at the least.
    """
    graph = add_partial_aggregates(graph)
    if any(node.role == "delay" for node in graph):
        raise CircuitError("a delay over ticks is not sharded; run the circuit embedded")
    source_placements = {n.id: sources.get(str(n.name), ANYWHERE) for n in graph if n.role == "source"}
    return _Planner(graph, source_placements, join_policies or {}).plan_levels(iterations)


class _Planner:
    first = 0
    """The first level in which something is done; sources are in level 0."""

    def __init__(self, graph: Graph, source_placements: Mapping[str, Placed], join_policies: Policies) -> None:
        """`source_placements`: how sources are placed, and delays."""
        self.graph = graph
        self.join_policies = join_policies
        self.arrange_policies = {
            side.id: policy
            for join, given in join_policies.items()
            if join in graph.nodes
            for side, policy in zip(graph.nodes[join].inputs, given, strict=True)
        }
        self.placed: dict[str, Placed] = dict(source_placements)
        self.level: dict[str, int] = dict.fromkeys(source_placements, 0)
        """Where a node's output is first there."""
        self.slots: dict[str, list[str]] = {}
        """What each node reads."""
        self.needs: dict[str, set[int]] = {}
        """The levels at which a slot is read."""
        self.exchanges: dict[str, tuple[str, Key | None]] = {}
        """Slots that change shard, with the node and the columns by which; None: to everyone."""
        self.fixpoints: dict[str, _FixpointPlanner] = {}
        """Fixpoints that are cut."""
        self.order = graph.schedule()
        for node in self.order:
            if node.operator is not None:
                self._place_node(node)
        self.arranged = self._arranged_levels()

    def _place_node(self, node: Node) -> None:
        if isinstance(node.operator, Fixpoint) and iterates(node.operator):
            self.fixpoints[node.id] = _FixpointPlanner.of(node.operator, [self.placed[i.id] for i in node.inputs])
            feeds = max((self.level[i.id] for i in node.inputs), default=0)
            self.slots[node.id], self.level[node.id], self.placed[node.id] = [], feeds + 1, ANYWHERE
            for given in node.inputs:
                self.needs.setdefault(slot_of(given.id), set()).add(feeds)
            return
        level, slots = self.first, []
        policy = self.arrange_policies.get(node.id, "shard")
        inputs = [self.placed[i.id] for i in node.inputs]
        for given, key in zip(node.inputs, wanted(node, inputs, policy), strict=True):
            input_level = self.level[given.id]
            slot = slot_of(given.id)
            if isinstance(node.operator, Asked):
                slot = f"{given.id} asked"
                input_level += 1
            elif policy == "broadcast":
                slot = self._broadcast(given)
                input_level += 1
            elif key is not None and key not in self.placed[given.id]:
                slot = self._exchange(given, key)
                input_level += 1
            slots.append(slot)
            level = max(level, input_level)
        self.slots[node.id], self.level[node.id] = slots, level
        if isinstance(node.operator, Result) and node.inputs[0].id in self.fixpoints:
            self.placed[node.id] = self.fixpoints[node.inputs[0].id].placed_result(node.operator.name)
        else:
            self.placed[node.id] = placed(node, inputs, self.join_policies.get(node.id, (policy, policy)))

    def _arranged_levels(self) -> dict[str, list[int]]:
        """For each node whose output stays where it is, the levels that read it."""
        readers: dict[str, set[int]] = {}
        for node in self.order:
            for given in node.inputs:
                if given.kind in _LOCAL_KINDS:
                    readers.setdefault(given.id, set()).add(self.level[node.id])
        for node in self.order:
            if node.kind == "nested" and len(readers.get(node.id, ())) > 1:
                raise CircuitError(f"{node.label!r} is read at several levels")
        return {n: sorted(levels) for n, levels in readers.items()}

    def _exchange(self, node: Node, key: Key) -> str:
        slot = slot_of(node.id, key)
        self.exchanges[slot] = node.id, key
        return slot

    def _broadcast(self, node: Node) -> str:
        slot = f"{node.id} to everyone"
        self.exchanges[slot] = node.id, None
        return slot

    def _output(self, node: Node) -> OutputPlacement:
        level, slot = self.level[node.id], slot_of(node.id)
        if self.placed[node.id]:
            key = min(self.placed[node.id], key=lambda k: (len(k), k))
        else:
            key = tuple(range(node.schema.columns))
            level, slot = level + 1, self._exchange(node, key)
        self.needs.setdefault(slot, set()).add(level)
        return OutputPlacement(level, slot, key)

    def plan_levels(self, iterations: int) -> LevelPlan:
        outputs = {name: self._output(node) for name, node in self.graph.outputs.items()}
        levels = self._levels(max([*self.level.values(), *(o.level for o in outputs.values())], default=0))
        trace_placements = {n.id: self._lies(n) for n in self.order if n.operator is not None and n.operator.kept()}
        whole: list[Level] = []
        numbers: list[int] = []
        resume_levels: list[int] = []
        for number, level in enumerate(levels):
            loops = [inside.loop(node) for node, inside in self.fixpoints.items() if self.level[node] == number]
            if loops:
                level.resume_point = len(resume_levels)
                level.awaited_slots = [loop.votes_slot for loop in loops]
                resume_levels.append(len(whole))
                whole += _unroll(loops, iterations)
            numbers.append(len(whole))
            whole.append(level)
        outputs = {name: replace(output, level=numbers[output.level]) for name, output in outputs.items()}
        return LevelPlan(tuple(whole), outputs, trace_placements, tuple(resume_levels))

    def _levels(self, last: int) -> list[Level]:
        levels = [Level() for _ in range(1 + last)]
        for node in self.order:
            if node.operator is None:
                continue
            if isinstance(node.operator, Asked):
                self._ask(levels, node, node.operator)
                continue
            if node.id in self.fixpoints:
                loop = self.fixpoints[node.id].loop(node.id)
                levels[self.level[node.id]].steps.append(FixpointResultStep(loop))
                continue
            reading_levels = self.arranged.get(node.id) or [self.level[node.id]]
            inputs = tuple(
                (slot, None if given.kind in _LOCAL_KINDS else given.schema)
                for slot, given in zip(self.slots[node.id], node.inputs, strict=True)
            )
            for number in reading_levels:
                levels[number].steps.append(
                    NodeStep(node.id, node.label, node.operator, inputs, number == reading_levels[0], alone(node))
                )
                for slot, schema in inputs:
                    if schema is not None:
                        self.needs.setdefault(slot, set()).add(number)
        for slot, read in self.needs.items():
            self._emit(levels, slot, max(read))
        for name, inside in self.fixpoints.items():
            feeds = levels[self.level[name] - 1]
            for emit, sort_key in inside.entering(name, self.graph.nodes[name].inputs):
                feeds.outgoing.append(emit)
                feeds.streams[emit.slot] = sort_key
        return levels

    def _ask(self, levels: list[Level], node: Node, operator: Asked) -> None:
        (slot,), (given,), number = self.slots[node.id], node.inputs, self.level[node.id]
        before = levels[number - 1]
        if slot not in before.streams:
            before.outgoing.append(OutgoingSlot(slot, given.id, "same"))
            before.streams[slot] = SortKey(given.schema)
        before.external_calls.append(ExternalCall(slot, given.schema, node.id, node.schema, operator.question))
        levels[number].streams[node.id] = SortKey(node.schema)

    def _lies(self, node: Node) -> tuple[TracePlacement, ...]:
        assert node.operator is not None
        kept = node.operator.kept()
        policy = self.arrange_policies.get(node.id, "shard")
        if node.id not in self.fixpoints and alone(node):
            return tuple("owner" for _ in kept)
        if policy == "broadcast":
            return ("everywhere",)
        if policy == "balance":
            return (min(self.placed[node.id], key=lambda k: (len(k), k)),)
        return tuple(key_of(sort_key) for sort_key in kept)

    def _emit(self, levels: list[Level], slot: str, last: int) -> None:
        if slot in self.exchanges:
            node, key = self.exchanges[slot]
            begin = self.level[node]
            sort_key = SortKey(self.graph.nodes[node].schema, key)
            levels[begin].outgoing.append(OutgoingSlot(slot, node, "everyone" if key is None else "owners"))
            levels[begin].streams[slot] = levels[begin + 1].streams[slot] = sort_key
            begin += 1
        else:
            begin = self.level[slot]
            sort_key = SortKey(self.graph.nodes[slot].schema)
        for number in range(begin, last):
            levels[number].outgoing.append(OutgoingSlot(slot, slot, "same"))
            levels[number].streams[slot] = levels[number + 1].streams[slot] = sort_key


class _FixpointPlanner(_Planner):
    """The graph of a fixpoint. What comes from outside and from the iteration before comes to its first level, 1."""

    first = 1

    def __init__(self, fixpoint: Fixpoint, source_placements: Mapping[str, Placed]) -> None:
        super().__init__(fixpoint.graph, source_placements, {})
        self.fixpoint = fixpoint
        self.last = max(1, *self.level.values())
        self.feeds = {variable.id: variable.inputs[0].id for variable in fixpoint.variables}
        """What flows into each variable."""

    @staticmethod
    def of(fixpoint: Fixpoint, inputs: Sequence[Placed]) -> _FixpointPlanner:
        """Where the variables lie is found by asking first where they would if they lay anywhere.

        Rows that flow into a variable have to come together, so that what cancels does: if they lie anywhere, they are
        exchanged by whole rows.
        """
        outside = {n.id: given for n, given in zip(fixpoint.sources, inputs, strict=True)}
        anywhere = _FixpointPlanner(fixpoint, {**outside, **{n.id: ANYWHERE for n in fixpoint.variables}})
        found = {n.id: anywhere.placed[n.inputs[0].id] or _by_row(n) for n in fixpoint.variables}
        inside = _FixpointPlanner(fixpoint, {**outside, **found})
        inside._cut({n.id for n in fixpoint.variables if not anywhere.placed[n.inputs[0].id]})
        return inside

    def _cut(self, exchanges: set[str]) -> None:
        """Make the levels; `exchanges`: variables that are exchanged even where they are read as they lie."""
        for feed in self.feeds.values():
            self.needs.setdefault(slot_of(feed), set()).add(self.last)
        front, *levels = self._levels(self.last)
        self.levels = tuple(levels)
        self._entering: list[tuple[str, OutgoingSlot, SortKey]] = []
        """What comes from outside: the source, how it is sent, and in which order."""
        for emit in front.outgoing:
            node = self.exchanges[emit.slot][0] if emit.slot in self.exchanges else emit.slot
            if node in self.feeds:
                to = "owners" if node in exchanges and emit.to == "same" else emit.to
                levels[-1].outgoing.append(OutgoingSlot(emit.slot, slot_of(self.feeds[node]), to))
                levels[-1].streams[emit.slot] = front.streams[emit.slot]
            else:
                self._entering.append((node, emit, front.streams[emit.slot]))

    def placed_result(self, name: str) -> Placed:
        """Where the rows of a variable lie when it is over."""
        return self.placed[self.graph.outputs[name].id]

    def loop(self, node: str) -> FixpointPlan:
        """As the tasks know it."""
        feeds = tuple((str(v.name), slot_of(self.feeds[v.id]), v.schema) for v in self.fixpoint.variables)
        return FixpointPlan(node, self.fixpoint, self.levels, feeds)

    def entering(self, node: str, inputs: Sequence[Node]) -> Iterator[tuple[OutgoingSlot, SortKey]]:
        """What the level in front of the fixpoint sends to it."""
        given = {n.id: i.id for n, i in zip(self.fixpoint.sources, inputs, strict=True)}
        inside = self.loop(node).slot_prefix
        for source, emit, sort_key in self._entering:
            yield OutgoingSlot(inside + emit.slot, slot_of(given[source]), emit.to), sort_key


def iterates(fixpoint: Fixpoint) -> bool:
    """Whether a fixpoint can be cut into levels; others run as a whole on one shard."""
    for node in fixpoint.graph:
        operator = node.operator
        if node.kind not in ("delta", "arranged") or (operator is not None and alone(node)):
            return False
        if isinstance(operator, Arrange) and not key_of(operator.sort_key):
            return False  # all of it would be on one shard, and keys without columns cannot be handed on
    return True


def _by_row(node: Node) -> Placed:
    return frozenset({tuple(range(node.schema.columns))})


def _unroll(loops: Sequence[FixpointPlan], iterations: int) -> list[Level]:
    """Iterations of fixpoints beside each other, whole ones of each of them."""
    stages = math.lcm(*(len(loop.levels) for loop in loops))
    stages *= -(-iterations * max(len(loop.levels) for loop in loops) // stages)
    return [Level([IterationStep(loop, stage) for loop in loops], forwards_rest=True) for stage in range(stages)]
