"""Filling: computes the state of new nodes from the nearest stored rows.

A new view shares nodes with existing ones. Nodes with state keep it as it is (spines are values); only the others are
stepped, once, from empty state, with the *integral* of each input (the sum of all its deltas so far) as its delta. An
integral is not computed where it is stored:

1. of a source, by its table;
2. of the output of a view, by the history of the view;
3. of a stream that is arranged by any key, by the state of the arrange node;
4. of the input of a projection that only renames or reorders columns, by what stores the integral of the projection.
   Every view ends in such a projection, which names its columns, and other views read the stream in front of it.

A node without a stored integral is stepped once more from the integrals of its own inputs, and that state is thrown
away. So the cost is that of the new nodes and of those between them and the nearest stored integrals. An integral may
stand for all deltas because the output of a node depends only on their sum. That does not hold for delays: a graph with
one is not filled (`None`) but run.

Filling a view over a large table takes seconds, so it is reported (`dbspark.reporting`): the work is the rows that go
into the nodes. How many these are is known for a node once its inputs are computed; until then a node is expected to
give as many rows as its largest input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dbspark.circuit.graph import Graph, Node
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.linear import Project
from dbspark.operators.operator import Arrange
from dbspark.reporting import Activity
from dbspark.trace.spine import Spine

Integral = Callable[[], Delta]
"""Gives the sum of all deltas of a stream so far."""


class Filled(NamedTuple):
    """The result of `fill_states`."""

    states: dict[str, State]
    """The states of nodes that had none."""
    outputs: dict[str, Any]
    """The integrals of the requested outputs."""


def fill_states(
    graph: Graph,
    kept: Mapping[str, State],
    outputs: Iterable[str],
    integrals: Mapping[str, Integral],
    report: Activity | None = None,
) -> Filled | None:
    """Compute the states that are missing for some outputs; None if the graph has a delay.

    `kept`: the existing states, by node. `integrals`: the stored integrals of all sources and of existing outputs, by
    node. `report` is told how many rows there are, and of each node when it is computed.
    """
    part = Graph()
    part.nodes, part.outputs = graph.nodes, {name: graph.outputs[name] for name in outputs}
    schedule = part.pruned().schedule()
    if any(node.role == "delay" for node in schedule):
        return None
    filling = _Filling(graph, kept, integrals)
    missing = [n for n in schedule if n.operator and n.operator.state_sort_keys() and n.id not in kept]
    if report is not None:
        filling.report_to(report, [*missing, *part.outputs.values()])
    for node in missing:
        filling.value(node)
    values = {name: filling.value(node) for name, node in part.outputs.items()}
    return Filled(filling.states, values)


class _Filling:
    """The integrals of nodes, each computed once, on demand."""

    def __init__(self, graph: Graph, kept: Mapping[str, State], integrals: Mapping[str, Integral]) -> None:
        self._kept = kept
        self._integrals = dict(integrals)
        self._node_values: dict[str, Any] = {}
        self.states: dict[str, State] = {}
        self._report: Activity | None = None
        self._remaining: list[Node] = []
        """For the report: the nodes that are still to be computed, inputs first."""
        for node in graph:
            if _is_stored_arrangement(node, kept) and node.inputs[0].kind == "delta":
                spine = kept[node.id][0]
                self._integrals.setdefault(node.inputs[0].id, partial(_consolidated, spine))
        for node in reversed(graph.schedule()):
            if node.id in self._integrals and (columns := _places(node)) is not None:
                before, given = node.inputs[0], self._integrals[node.id]
                self._integrals.setdefault(before.id, partial(_renamed, given, columns, before.schema))

    def report_to(self, report: Activity, wanted: Iterable[Node]) -> None:
        """Report on the computation of some nodes. Reads what is stored of their inputs, which they need first."""
        needed: dict[str, Node] = {}
        pending = list(wanted)
        while pending:
            node = pending.pop()
            if node.id not in needed:
                needed[node.id] = node
                pending += self._needs(node)
        for node in needed.values():
            if not self._needs(node):
                self.value(node)
        self._report = report
        self._remaining = sorted((n for n in needed.values() if n.id not in self._node_values), key=lambda n: n.order)
        self._expect()

    def _expect(self) -> None:
        """Tell the report how many rows there are in all."""
        assert self._report is not None
        self._remaining = [n for n in self._remaining if n.id not in self._node_values]
        expected: dict[str, int] = {}
        total = self._report.done
        for node in self._remaining:
            rows = [self._rows(i, expected) for i in node.inputs]
            expected[node.id] = max(rows, default=0)
            total += sum(rows)
        self._report.total = total

    def _rows(self, node: Node, expected: Mapping[str, int]) -> int:
        value = self._node_values.get(node.id)
        # The value of a fixpoint node is a dict of variables and has no row count; the nodes that read a variable do.
        return expected.get(node.id, 0) if value is None else int(getattr(value, "rows", 0))

    def value(self, node: Node) -> Any:
        """The integral of a node."""
        pending = [node]  # an explicit stack: queries may be deeper than Python's recursion limit
        while pending:
            last = pending[-1]
            missing = (
                [] if last.id in self._node_values else [i for i in self._needs(last) if i.id not in self._node_values]
            )
            if missing:
                pending += missing
                continue
            if last.id not in self._node_values:
                self._node_values[last.id] = self._compute(last)
                if self._report is not None:
                    self._report.advance(sum(self._rows(i, {}) for i in self._needs(last)))
                    self._expect()
            pending.pop()
        return self._node_values[node.id]

    def _needs(self, node: Node) -> list[Node]:
        """The inputs whose integrals are needed to compute a node."""
        return [] if _is_stored_arrangement(node, self._kept) or node.id in self._integrals else node.inputs

    def _compute(self, node: Node) -> Any:
        if _is_stored_arrangement(node, self._kept):
            spine = self._kept[node.id][0].with_own_stats()
            return Arranged(spine.consolidated(), Spine(spine.sort_key, config=spine.config), spine)
        if node.id in self._integrals:
            return self._integrals[node.id]()
        operator = node.operator
        assert operator is not None  # sources have a stored integral
        inputs = [self._node_values[i.id] for i in node.inputs]
        if node.skips_empty_input and not any(value.rows for value in inputs):
            return Delta.empty(node.schema)
        state, value = operator.step(operator.initial_state(), inputs)
        if state and node.id not in self._kept:
            self.states[node.id] = state
        return value


def _consolidated(spine: Spine) -> Delta:
    return Delta.of(spine.consolidated())


def _renamed(given: Integral, columns: Sequence[int], schema: Schema) -> Delta:
    return given().select(columns, schema)


def _places(node: Node) -> list[int] | None:
    """Where a projection has put each column of its input; None unless it keeps every one of them once."""
    operator = node.operator
    if not isinstance(operator, Project):
        return None
    width = node.inputs[0].schema.columns
    if sorted(operator.columns) != list(range(width)):
        return None
    return [operator.columns.index(column) for column in range(width)]


def _is_stored_arrangement(node: Node, kept: Mapping[str, State]) -> bool:
    """Whether a node is an arrange node with stored state."""
    operator = node.operator
    return (
        isinstance(operator, Arrange)
        and node.id in kept
        and [spine.sort_key for spine in kept[node.id]] == [operator.sort_key]
    )


__all__ = ["Filled", "Integral", "fill_states"]
