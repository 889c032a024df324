"""Nested circuits: a graph that is iterated within a tick until nothing changes.

The graph inside has sources (streams from outside, with rows in iteration 0 only), variables (delays over iterations,
empty in iteration 0) and one output for each variable, its value in the next iteration. The result of a variable is the
sum over all iterations. A tick iterates changes only (`dbspark.operators.nested`), deletions included: rows that
iteration i derived in earlier ticks are corrected in iteration i.

It stops when no variable changes and no work is deferred to a later iteration; iterations without input or deferred
work are skipped. A recursion that reaches the iteration limit raises an error, and the tick is rolled back. State is
kept in spines as everywhere, so the whole fixpoint is one operator of the enclosing circuit.

A fixpoint may be inside another. It then runs in every iteration of the outer one in which it has input or deferred
work, and its output is by how much that iteration changes its result. Each level of nesting has a coordinate of time,
so the number of coordinates limits the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from dbspark.circuit.graph import Graph, Node
from dbspark.columnar import SortKey
from dbspark.columnar.delta import Delta
from dbspark.errors import CircuitError
from dbspark.kernels.memory.layout import TIMES
from dbspark.operators.arranged import State
from dbspark.operators.linear import Stateless
from dbspark.operators.nested import Nested, NestedArranged, NestedSite, Path, PendingIterations
from dbspark.operators.operator import Operator
from dbspark.operators.placement import TOGETHER, Key, Placed, Policy

LIMIT = 10_000
"""Iterations after which a recursion counts as endless."""


class Fixpoint(Operator):
    """A graph iterated until nothing changes. Its output is the delta of each variable, by name."""

    kind: ClassVar[str] = "fixpoint"
    version: ClassVar[int] = 1

    def __init__(self, graph: Graph, limit: int = LIMIT) -> None:
        self.graph = graph
        self.limit = limit
        self._schedule = [n for n in self.graph.schedule() if n.role == "operator"]
        self.sources = [n for n in self.graph if n.role == "source"]
        self.variables = [n for n in self.graph if n.role == "delay"]
        self.schema = self.variables[0].schema
        self.arranged: dict[str, SortKey] = {}
        """Sort keys of the traces of operators inside, by the node's id and the operator's name for the trace."""
        self.inner: dict[str, Fixpoint] = {}
        """Fixpoints inside this one; their state follows that of this fixpoint."""
        for node in self._schedule:
            assert node.operator is not None
            self.arranged |= {node.id + name: sort_key for name, sort_key in node.operator.nested_traces().items()}
            if isinstance(node.operator, Fixpoint):
                self.inner[node.id] = node.operator
        self.depth: int = 1 + max((f.depth for f in self.inner.values()), default=0)
        if self.depth > TIMES:
            raise CircuitError(
                f"fixpoints stand inside each other up to {TIMES} deep, and {self.label()!r} is {self.depth} deep; "
                "put the innermost outside, or write two of them as one with more variables"
            )

    def state_sort_keys(self) -> tuple[SortKey, ...]:
        return (*self.arranged.values(), *(a for f in self.inner.values() for a in f.state_sort_keys()))

    def step(self, state: State, inputs: Sequence[Delta]) -> tuple[State, dict[str, Delta]]:
        if not any(d.rows for d in inputs):
            return state, self.nothing()
        run = _Run(self, state)
        out = run.iterate((), inputs)
        return run.committed(), out

    def nothing(self) -> dict[str, Delta]:
        """The output if nothing changes: empty deltas."""
        return {str(n.name): Delta.empty(n.schema) for n in self.variables}

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        return [()] * len(inputs)

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return TOGETHER

    @property
    def emits_without_input(self) -> bool:
        return True

    def nested_traces(self) -> dict[str, SortKey]:
        return {}

    def nested(self, site: NestedSite) -> Nested:
        return _Run(self, site.state, site.pending)

    def parameters(self) -> tuple[Any, ...]:
        return tuple((name, node.id) for name, node in self.graph.outputs.items()), self.limit

    def label(self) -> str:
        return f"fixpoint of {', '.join(str(n.name) for n in self.variables)}"


def endless(growing: Sequence[str], limit: int) -> CircuitError:
    """The error for a recursion that has not ended after `limit` iterations."""
    return CircuitError(
        f"the recursion of {', '.join(growing)} has not ended after {limit} iterations; nothing was applied. "
        "Bound it with a condition, or raise the limit"
    )


class _Run(Nested):
    """One tick of a fixpoint."""

    def __init__(self, fixpoint: Fixpoint, past: State, parent: PendingIterations | None = None) -> None:
        self.fixpoint = fixpoint
        self.pending = PendingIterations(parent)
        own = len(fixpoint.arranged)
        self.arranged = {n: NestedArranged(spine) for n, spine in zip(fixpoint.arranged, past[:own], strict=True)}
        self._states: dict[str, State] = {}
        for name, operator in fixpoint.inner.items():
            end = own + len(operator.state_sort_keys())
            self._states[name] = past[own:end]
            own = end
        self.inner: list[_Run] = []
        """Runs of the fixpoints inside, in the order of their states."""
        self.nothing = {n.id: Delta.empty(n.schema) for n in fixpoint.graph}
        self.steps = [(n.id, [i.id for i in n.inputs], self._nested(n).step) for n in fixpoint._schedule]
        """For each node in schedule order: its id, the ids of its inputs, and its step at a path."""

    def _nested(self, node: Node) -> Nested:
        assert node.operator is not None
        site = NestedSite(self.pending, partial(self._trace, node.id), self._states.get(node.id, ()))
        nested = node.operator.nested(site)
        if isinstance(nested, _Run):
            self.inner.append(nested)
        return nested

    def _trace(self, node: str, name: str) -> NestedArranged:
        return self.arranged[node + name]

    def step(self, outer: Path, inputs: Sequence[Delta]) -> dict[str, Delta]:
        """The step of a fixpoint inside another: nothing without input and deferred work."""
        if any(d.rows for d in inputs) or self.pending.next(outer, -1) is not None:
            return self.iterate(outer, inputs)
        return self.fixpoint.nothing()

    def iterate(self, outer: Path, inputs: Sequence[Delta]) -> dict[str, Delta]:
        """Run all iterations within one iteration of the enclosing fixpoints; returns the deltas of the variables."""
        fixpoint = self.fixpoint
        incoming = {n.id: d for n, d in zip(fixpoint.sources, inputs, strict=True)}
        results: dict[str, list[Delta]] = {str(n.name): [] for n in fixpoint.variables}
        iteration = 0
        while True:
            values = self._iterate((*outer, iteration), {**self.nothing, **incoming})
            incoming = {}
            for node in fixpoint.variables:
                flown = values[node.inputs[0].id]
                if flown.rows:
                    change = Delta.of(flown.sorted_by(SortKey(node.schema)))
                    if change.rows:
                        incoming[node.id] = change
                        results[str(node.name)].append(change)
            following = iteration + 1 if incoming else self.pending.next(outer, iteration)
            if following is None:
                return {str(n.name): Delta.sum(n.schema, results[str(n.name)]) for n in fixpoint.variables}
            iteration = following
            if iteration >= fixpoint.limit:
                raise endless([str(n.name) for n in fixpoint.variables if n.id in incoming], fixpoint.limit)

    def _iterate(self, path: Path, values: dict[str, Any]) -> dict[str, Any]:
        """Run one iteration; returns the outputs of all nodes."""
        for name, inputs, step in self.steps:
            values[name] = step(path, [values[i] for i in inputs])
        return values

    def committed(self) -> State:
        inner = (spine for run in self.inner for spine in run.committed())
        return (*(a.committed() for a in self.arranged.values()), *inner)


class Result(Stateless):
    """The delta of one variable from the output of a fixpoint."""

    kind: ClassVar[str] = "fixpoint-result"
    version: ClassVar[int] = 1

    def __init__(self, node: Node) -> None:
        self.schema = node.schema
        self.name = str(node.name)

    def apply(self, inputs: Sequence[Any]) -> Delta:
        delta: Delta = inputs[0][self.name]
        return delta

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return TOGETHER

    def nested(self, site: NestedSite) -> Nested:
        return _NestedResult(self.apply)

    def parameters(self) -> tuple[Any, ...]:
        return (self.name,)

    def label(self) -> str:
        return self.name


class _NestedResult(Nested):
    """`Result` inside a fixpoint. Its input is a dict of deltas, so it cannot be skipped by its number of rows."""

    def __init__(self, apply: Callable[[Sequence[Any]], Delta]) -> None:
        self._apply = apply

    def step(self, path: Path, inputs: Sequence[Any]) -> Delta:
        return self._apply(inputs)
