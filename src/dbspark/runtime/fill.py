"""Filling new nodes: what a view needs and nobody keeps yet is computed from what is kept nearest to it.

A new view shares nodes with those that are there. Nodes that have state keep it as it is (spines are values), and only
the others are stepped, once, from nothing to what they should hold now: with the *integral* of each input, all that it
has carried so far, as its change. An integral is not computed where it is kept:

1. of a source, by its table;
2. of the output of a view, by the history of the view;
3. of whatever is arranged by some key, by the state of the arrange node, in whichever order.

Where none of these is there, the node is stepped once more beside its state, from the integrals of its own inputs, and
the state that comes of it is thrown away. So the work is that of the new nodes and of those between them and the
nearest integrals. Integrals may be taken for changes because a node's output depends on the sum of its changes alone;
that is not so for delays, and a graph with one is not filled but run (`None`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from dbspark.circuit.graph import Graph, Node
from dbspark.columnar.delta import Delta
from dbspark.operators.operator import Arrange, Arranged, State
from dbspark.trace.spine import Spine

Integral = Callable[[], Delta]
"""Everything that a stream has carried so far."""


class Filled(NamedTuple):
    """What new nodes hold and give."""

    states: dict[str, State]
    """Of the nodes that had none."""
    outputs: dict[str, Any]
    """The integrals of the outputs that were asked for, as streams carry them."""


def fill(
    graph: Graph, kept: Mapping[str, State], outputs: Iterable[str], integrals: Mapping[str, Integral]
) -> Filled | None:
    """The states that are missing behind some outputs; None where a node remembers the order of its changes.

    `kept` are the states that there are, by node; `integrals`, by the id of a node, those that are kept elsewhere:
    those of all sources, and of outputs.
    """
    part = Graph()
    part.nodes, part.outputs = graph.nodes, {name: graph.outputs[name] for name in outputs}
    schedule = part.pruned().schedule()
    if any(node.role == "delay" for node in schedule):
        return None
    filling = _Filling(graph, kept, integrals)
    for node in schedule:
        if node.operator is not None and node.operator.state_sort_keys() and node.id not in kept:
            filling.value(node)
    given = {name: filling.value(node) for name, node in part.outputs.items()}
    return Filled(filling.states, given)


class _Filling:
    """The values of nodes, each computed once, when somebody asks for it."""

    def __init__(self, graph: Graph, kept: Mapping[str, State], integrals: Mapping[str, Integral]) -> None:
        self._kept = kept
        self._integrals = dict(integrals)
        self._values: dict[str, Any] = {}
        self.states: dict[str, State] = {}
        for node in graph:
            if _arranges(node, kept) and node.inputs[0].kind == "delta":
                spine = kept[node.id][0]
                self._integrals.setdefault(node.inputs[0].id, partial(_rows_of, spine))

    def value(self, node: Node) -> Any:
        """What a node would have carried in one tick that brings all there is."""
        pending = [node]  # a stack instead of calls: queries are as deep as users write them
        while pending:
            last = pending[-1]
            missing = [] if last.id in self._values else [i for i in self._needs(last) if i.id not in self._values]
            if missing:
                pending += missing
                continue
            if last.id not in self._values:
                self._values[last.id] = self._made(last)
            pending.pop()
        return self._values[node.id]

    def _needs(self, node: Node) -> list[Node]:
        """The inputs whose integrals have to be there."""
        return [] if _arranges(node, self._kept) or node.id in self._integrals else node.inputs

    def _made(self, node: Node) -> Any:
        if _arranges(node, self._kept):
            spine = self._kept[node.id][0].copied()
            return Arranged(spine.consolidated(), Spine(spine.sort_key, config=spine.config), spine)
        if node.id in self._integrals:
            return self._integrals[node.id]()
        operator = node.operator
        assert operator is not None  # the integral of a source is given
        inputs = [self._values[i.id] for i in node.inputs]
        if node.skips_empty_input and not any(value.rows for value in inputs):
            return Delta.empty(node.schema)
        state, value = operator.step(operator.initial_state(), inputs)
        if state and node.id not in self._kept:
            self.states[node.id] = state
        return value


def _rows_of(spine: Spine) -> Delta:
    return Delta.of(spine.consolidated())


def _arranges(node: Node, kept: Mapping[str, State]) -> bool:
    """Whether a node keeps all that has come to it, as it is read."""
    operator = node.operator
    return (
        isinstance(operator, Arrange)
        and node.id in kept
        and [spine.sort_key for spine in kept[node.id]] == [operator.sort_key]
    )


__all__ = ["Filled", "Integral", "fill"]
