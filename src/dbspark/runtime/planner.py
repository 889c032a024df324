"""Cuts a circuit at exchanges into levels.

A *level* is the work that needs no row from another shard. Where a node needs its input placed otherwise than it is,
the input is exchanged and the node is one level later. Rules:

1. A slot that is needed several levels later is forwarded from level to level, on the same shard.
2. Arranged streams are not sent: an arrange node belongs to the first level that reads it, which updates its state. A
   later level that reads it too receives the delta, and reads the state before the tick.
3. External functions are evaluated by Spark between two levels: the rows are sent by one level, and the results are
   received by the next, on the same shard. They are no steps.
4. A fixpoint stands between two levels. Its graph is cut in the same way, with sources and variables in front of its
   first level; the level behind it has it in `fixpoints`, and the transport iterates it. A fixpoint that cannot be cut
   (`iterates`) is an ordinary operator, run on the owner shard.

The placement of traces is part of the plan: a change of join policies changes it, and state is moved then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dbspark.circuit.graph import Graph, Node
from dbspark.circuit.nested import Fixpoint, Result
from dbspark.columnar import SortKey
from dbspark.errors import CircuitError
from dbspark.operators.external_function import ExternalFunction
from dbspark.operators.operator import Arrange
from dbspark.operators.placement import ANYWHERE, Key, Placed, key_of
from dbspark.runtime.fixpoint import FixpointResultStep
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

_LOCAL_KINDS = ("arranged", "nested")
"""Kinds of streams that are not sent to another shard or level."""


def plan_levels(graph: Graph, sources: Mapping[str, Placed], join_policies: Policies | None = None) -> LevelPlan:
    """Cut a graph into levels, given the placement of its sources and the policies of its joins."""
    graph = add_partial_aggregates(graph)
    if any(node.role == "delay" for node in graph):
        raise CircuitError("a delay over ticks is not sharded; run the circuit embedded")
    source_placements = {n.id: sources.get(str(n.name), ANYWHERE) for n in graph if n.role == "source"}
    return _Planner(graph, source_placements, join_policies or {}).plan_levels()


class _Planner:
    """Assigns every node a level and a placement, and collects what levels send to each other."""

    first = 0
    """The first level that may have steps; sources are in level 0."""

    def __init__(self, graph: Graph, source_placements: Mapping[str, Placed], join_policies: Policies) -> None:
        """`source_placements`: the placement of sources, and of the variables of a fixpoint, by node id."""
        self.graph = graph
        self.join_policies = join_policies
        self.arrange_policies = {
            side.id: policy
            for join, sides in join_policies.items()
            if join in graph.nodes
            for side, policy in zip(graph.nodes[join].inputs, sides, strict=True)
        }
        self.placed: dict[str, Placed] = dict(source_placements)
        self.level: dict[str, int] = dict.fromkeys(source_placements, 0)
        """The level in which the output of each node is available first."""
        self.slots: dict[str, list[str]] = {}
        """The slots that each node reads, by node."""
        self.needs: dict[str, set[int]] = {}
        """By slot, the levels that read it."""
        self.exchanges: dict[str, tuple[str, Key | None]] = {}
        """Slots that change shard: the node, and the columns of the hash; None: broadcast."""
        self.fixpoints: dict[str, _FixpointPlanner] = {}
        """The planners of fixpoints that are cut into levels."""
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
            for source in node.inputs:
                self.needs.setdefault(slot_of(source.id), set()).add(feeds)
            return
        assert node.operator is not None
        level, slots = self.first, []
        policy = self.arrange_policies.get(node.id, "shard")
        inputs = [self.placed[i.id] for i in node.inputs]
        for source, key in zip(node.inputs, node.operator.input_placements(inputs, policy), strict=True):
            input_level = self.level[source.id]
            slot = slot_of(source.id)
            if isinstance(node.operator, ExternalFunction):
                slot = f"{source.id} to external function"
                input_level += 1
            elif policy == "broadcast":
                slot = self._broadcast(source)
                input_level += 1
            elif key is not None and key not in self.placed[source.id]:
                slot = self._exchange(source, key)
                input_level += 1
            slots.append(slot)
            level = max(level, input_level)
        self.slots[node.id], self.level[node.id] = slots, level
        if isinstance(node.operator, Result) and node.inputs[0].id in self.fixpoints:
            self.placed[node.id] = self.fixpoints[node.inputs[0].id].placed_result(node.operator.name)
        else:
            join_policies = self.join_policies.get(node.id, (policy, policy))
            self.placed[node.id] = node.operator.output_placement(inputs, join_policies)

    def _arranged_levels(self) -> dict[str, list[int]]:
        """For each node whose output is not sent, the levels that read it."""
        readers: dict[str, set[int]] = {}
        for node in self.order:
            for source in node.inputs:
                if source.kind in _LOCAL_KINDS:
                    readers.setdefault(source.id, set()).add(self.level[node.id])
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

    def plan_levels(self) -> LevelPlan:
        outputs = {name: self._output(node) for name, node in self.graph.outputs.items()}
        levels = self._levels(max([*self.level.values(), *(o.level for o in outputs.values())], default=0))
        trace_placements = {
            n.id: self._trace_placements(n)
            for n in self.order
            if n.operator is not None and n.operator.state_sort_keys()
        }
        for number, level in enumerate(levels):
            level.fixpoints = [
                inside.loop(node) for node, inside in self.fixpoints.items() if self.level[node] == number
            ]
        return LevelPlan(tuple(levels), outputs, trace_placements)

    def _levels(self, last: int) -> list[Level]:
        levels = [Level() for _ in range(1 + last)]
        for node in self.order:
            if node.operator is None:
                continue
            if isinstance(node.operator, ExternalFunction):
                self._plan_external_call(levels, node, node.operator)
                continue
            if node.id in self.fixpoints:
                loop = self.fixpoints[node.id].loop(node.id)
                levels[self.level[node.id]].steps.append(FixpointResultStep(loop))
                continue
            reading_levels = self.arranged.get(node.id) or [self.level[node.id]]
            inputs = tuple(
                (slot, None if source.kind in _LOCAL_KINDS else source.schema)
                for slot, source in zip(self.slots[node.id], node.inputs, strict=True)
            )
            for number in reading_levels:
                alone = node.operator.emits_without_input
                levels[number].steps.append(
                    NodeStep(node.id, node.label, node.operator, inputs, number == reading_levels[0], alone)
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

    def _plan_external_call(self, levels: list[Level], node: Node, operator: ExternalFunction) -> None:
        (slot,), (source,), number = self.slots[node.id], node.inputs, self.level[node.id]
        before = levels[number - 1]
        if slot not in before.streams:
            before.outgoing.append(OutgoingSlot(slot, source.id, "same"))
            before.streams[slot] = SortKey(source.schema)
        before.external_calls.append(ExternalCall(slot, source.schema, node.id, node.schema, operator.evaluator))
        levels[number].streams[node.id] = SortKey(node.schema)

    def _trace_placements(self, node: Node) -> tuple[TracePlacement, ...]:
        assert node.operator is not None
        kept = node.operator.state_sort_keys()
        policy = self.arrange_policies.get(node.id, "shard")
        if node.id not in self.fixpoints and node.operator.emits_without_input:
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
    """The planner of a fixpoint's graph: sources and variables are in level 0, the levels of an iteration follow."""

    first = 1

    def __init__(self, fixpoint: Fixpoint, source_placements: Mapping[str, Placed]) -> None:
        super().__init__(fixpoint.graph, source_placements, {})
        self.fixpoint = fixpoint
        self.last = max(1, *self.level.values())
        self.feeds = {variable.id: variable.inputs[0].id for variable in fixpoint.variables}
        """By variable, the node whose output is its next value."""

    @staticmethod
    def of(fixpoint: Fixpoint, inputs: Sequence[Placed]) -> _FixpointPlanner:
        """Plan a fixpoint, given the placement of its inputs.

        Variables are planned twice: first with unknown placement, which shows how their next values are placed; then
        with that placement. Equal rows of a variable must be on one shard, so that they cancel: where their placement
        is unknown, they are exchanged by whole rows.
        """
        outside = {n.id: placement for n, placement in zip(fixpoint.sources, inputs, strict=True)}
        anywhere = _FixpointPlanner(fixpoint, {**outside, **{n.id: ANYWHERE for n in fixpoint.variables}})
        variables = {n.id: anywhere.placed[n.inputs[0].id] or _by_row(n) for n in fixpoint.variables}
        planner = _FixpointPlanner(fixpoint, {**outside, **variables})
        planner._cut({n.id for n in fixpoint.variables if not anywhere.placed[n.inputs[0].id]})
        return planner

    def _cut(self, exchanges: set[str]) -> None:
        """Make the levels; `exchanges`: variables that are exchanged even where a reader does not need it."""
        for feed in self.feeds.values():
            self.needs.setdefault(slot_of(feed), set()).add(self.last)
        front, *levels = self._levels(self.last)
        self.levels = tuple(levels)
        self._entering: list[tuple[str, OutgoingSlot, SortKey]] = []
        """Slots that come from outside: the source, how it is sent, and its sort key."""
        for emit in front.outgoing:
            node = self.exchanges[emit.slot][0] if emit.slot in self.exchanges else emit.slot
            if node in self.feeds:
                to = "owners" if node in exchanges and emit.to == "same" else emit.to
                levels[-1].outgoing.append(OutgoingSlot(emit.slot, slot_of(self.feeds[node]), to))
                levels[-1].streams[emit.slot] = front.streams[emit.slot]
            else:
                self._entering.append((node, emit, front.streams[emit.slot]))

    def placed_result(self, name: str) -> Placed:
        """The placement of a variable when the fixpoint has ended."""
        return self.placed[self.graph.outputs[name].id]

    def loop(self, node: str) -> FixpointPlan:
        """The plan of this fixpoint, which is node `node` of the outer graph."""
        feeds = tuple((str(v.name), slot_of(self.feeds[v.id]), v.schema) for v in self.fixpoint.variables)
        return FixpointPlan(node, self.fixpoint, self.levels, feeds)

    def entering(self, node: str, inputs: Sequence[Node]) -> Iterator[tuple[OutgoingSlot, SortKey]]:
        """What the level in front of the fixpoint sends to it, with sort keys."""
        outer = {n.id: i.id for n, i in zip(self.fixpoint.sources, inputs, strict=True)}
        prefix = self.loop(node).slot_prefix
        for source, emit, sort_key in self._entering:
            yield OutgoingSlot(prefix + emit.slot, slot_of(outer[source]), emit.to), sort_key


def iterates(fixpoint: Fixpoint) -> bool:
    """Whether a fixpoint can be cut into levels; others run whole on the owner shard."""
    for node in fixpoint.graph:
        operator = node.operator
        if node.kind not in ("delta", "arranged") or (operator is not None and operator.emits_without_input):
            return False
        if isinstance(operator, Arrange) and not key_of(operator.sort_key):
            return False  # without key columns there is nothing to exchange rows by: all would be on one shard
    return True


def _by_row(node: Node) -> Placed:
    return frozenset({tuple(range(node.schema.columns))})
