"""Nested circuits: a graph that is iterated within a tick until nothing changes.

The graph inside has sources (streams from outside, which come in iteration 0), variables (delays over iterations, empty
in iteration 0) and outputs, one for each variable, which are also its next value. A variable's result is what its
iterations add up to. From tick to tick only changes are iterated (`dbspark.operators.nested`), deletions included:
what the recursion derived in iteration i of earlier ticks is corrected in iteration i.

It stops when nothing new flows into a variable and nothing waits for a later iteration. A recursion that does not end
is stopped by a limit, with an error, and the tick has not happened. State is kept in spines as everywhere, so the
whole fixpoint is one operator to the circuit around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dbspark.batch import Arrangement
from dbspark.circuit.graph import Graph, Node
from dbspark.errors import CircuitError
from dbspark.operators.aggregate import GroupAggregate
from dbspark.operators.delta import Delta
from dbspark.operators.distinct import Distinct
from dbspark.operators.join import Join
from dbspark.operators.linear import Stateless
from dbspark.operators.nested import NestedArranged, NestedDistinct, NestedJoin, NestedReduce
from dbspark.operators.operator import Arrange, Operator, State
from dbspark.trace.spine import Spine

LIMIT = 10_000
"""Iterations after which a recursion is taken to be endless."""


class Fixpoint(Operator):
    """A graph iterated until nothing changes. Gives what each variable changes by, by name."""

    def __init__(self, graph: Graph, limit: int = LIMIT) -> None:
        self.graph = graph
        self.limit = limit
        self._schedule = [n for n in self.graph.schedule() if n.role == "operator"]
        self.sources = [n for n in self.graph if n.role == "source"]
        self.variables = [n for n in self.graph if n.role == "delay"]
        self.schema = self.variables[0].schema
        self._arranged: dict[str, Arrangement] = {}
        """Nodes with state, and how they keep it: arrange nodes, and deltas that a reduction takes as they are."""
        for node in self._schedule:
            operator = node.operator
            if isinstance(operator, Arrange):
                self._arranged[node.id] = operator.arrangement
            elif isinstance(operator, GroupAggregate):
                self._arranged[f"{node.id}/0"] = Arrangement(operator.source, operator.key)
            elif not isinstance(operator, Stateless) and not all(isinstance(n.operator, Arrange) for n in node.inputs):
                raise CircuitError(f"{node.label!r} cannot stand inside a fixpoint")

    def kept(self) -> tuple[Arrangement, ...]:
        return tuple(self._arranged.values())

    def step(self, state: State, inputs: Sequence[Delta]) -> tuple[State, dict[str, Delta]]:
        given = {n.id: d for n, d in zip(self.sources, inputs, strict=True)}
        if not any(d.rows for d in inputs):
            return state, {str(n.name): Delta.empty(n.schema) for n in self.variables}
        run = _Run(self, dict(zip(self._arranged, state, strict=True)))
        results: dict[str, list[Delta]] = {str(n.name): [] for n in self.variables}
        variables: dict[str, Delta] = {n.id: Delta.empty(n.schema) for n in self.variables}
        iteration = 0
        while True:
            values = run.iterate(iteration, {**given, **variables})
            variables = {}
            for node in self.variables:
                change = Delta.of(values[node.inputs[0].id].arranged(Arrangement(node.schema)))
                variables[node.id] = change
                if change.rows:
                    results[str(node.name)].append(change)
            given = {n.id: Delta.empty(n.schema) for n in self.sources}
            if not any(d.rows for d in variables.values()) and run.last_due() <= iteration:
                break
            iteration += 1
            if iteration >= self.limit:
                growing = ", ".join(str(n.name) for n in self.variables if variables[n.id].rows)
                raise CircuitError(
                    f"the recursion of {growing} has not ended after {self.limit} iterations; nothing was applied. "
                    "Bound it with a condition, or raise the limit"
                )
        out = {str(n.name): Delta.sum(n.schema, results[str(n.name)]) for n in self.variables}
        return run.committed(), out

    def parameters(self) -> tuple[Any, ...]:
        return tuple((name, node.id) for name, node in self.graph.outputs.items()), self.limit

    def label(self) -> str:
        return f"fixpoint of {', '.join(str(n.name) for n in self.variables)}"


class _Run:
    """One tick of a fixpoint."""

    def __init__(self, fixpoint: Fixpoint, past: dict[str, Spine]) -> None:
        self.schedule = fixpoint._schedule
        self.kept = list(fixpoint._arranged)
        self.arranged = {name: NestedArranged(spine) for name, spine in past.items()}
        self.nested: dict[str, NestedJoin | NestedDistinct | NestedReduce] = {}
        for node in self.schedule:
            operator = node.operator
            if isinstance(operator, Arrange | Stateless):
                continue
            if isinstance(operator, Join) and operator.how == "inner":
                self.nested[node.id] = NestedJoin(operator)
            elif isinstance(operator, Distinct):
                self.nested[node.id] = NestedDistinct(operator.schema)
            else:
                assert operator is not None
                self.nested[node.id] = NestedReduce(operator, [n.kind == "delta" for n in node.inputs])

    def iterate(self, iteration: int, values: dict[str, Any]) -> dict[str, Any]:
        """One iteration: what every node gives."""
        for node in self.schedule:
            operator = node.operator
            inputs = [values[n.id] for n in node.inputs]
            if isinstance(operator, Stateless):
                values[node.id] = operator.apply(inputs)
            elif isinstance(operator, Arrange):
                self.arranged[node.id].advance(iteration, inputs[0])
                values[node.id] = self.arranged[node.id]
            else:
                values[node.id] = self.nested[node.id].step(iteration, self._inputs(node, iteration, inputs))
        return values

    def _inputs(self, node: Node, iteration: int, inputs: list[Any]) -> list[NestedArranged]:
        """Inputs of a stateful node, each with its past."""
        own = f"{node.id}/0"
        if own in self.arranged:
            self.arranged[own].advance(iteration, inputs[0])
            return [self.arranged[own], *inputs[1:]]
        return inputs

    def last_due(self) -> int:
        """The last iteration for which something waits."""
        return max((d for n in self.nested.values() if (d := n.due()) is not None), default=-1)

    def committed(self) -> State:
        return tuple(self.arranged[name].committed() for name in self.kept)


class Result(Stateless):
    """One of the variables of a fixpoint."""

    def __init__(self, node: Node) -> None:
        self.schema = node.schema
        self.name = str(node.name)

    def apply(self, inputs: Sequence[Any]) -> Delta:
        delta: Delta = inputs[0][self.name]
        return delta

    def parameters(self) -> tuple[Any, ...]:
        return (self.name,)

    def label(self) -> str:
        return self.name
