"""Walking a graph to make another one from it."""

from __future__ import annotations

from collections.abc import Sequence

from dbspark.circuit.graph import Graph, Node, Stream


def deferred(graph: Graph) -> list[Node]:
    """All nodes, each after its inputs, except that a delay may come before its input."""
    return graph.schedule()


def rebuilt(out: Graph, node: Node, inputs: Sequence[Stream]) -> Stream:
    """The same operator over other streams."""
    assert node.operator is not None
    return out.add(node.operator, inputs, [s.kind for s in inputs], node.kind)
