"""Aggregates of everything, taken apart: on shards, what travels to where they are kept is one row of each shard.

`combined` puts a `PartialAggregate` before every such aggregate of a graph. The aggregate keeps its id and its state,
and a `PartialAggregate` has none, so it makes no difference to a store whether a graph was run so, or on how many
shards.
"""

from __future__ import annotations

from dataclasses import replace

from dbspark.circuit.graph import Graph, Node
from dbspark.operators.aggregate import GroupAggregate
from dbspark.operators.partial import CombinedAggregate, PartialAggregate, can_aggregate_partially


def combined(graph: Graph) -> Graph:
    """The same circuit for shards."""
    if not any(can_aggregate_partially(node.operator) for node in graph) or any(node.role == "delay" for node in graph):
        return graph
    out = Graph()
    for node in graph.schedule():
        inputs = [out.nodes[given.id] for given in node.inputs]
        if isinstance(node.operator, GroupAggregate) and can_aggregate_partially(node.operator):
            first = PartialAggregate(node.operator)
            part = Node(f"{node.id} partial", first.label(), first.schema, "delta", first, inputs[:1])
            out.nodes[part.id] = part
            out.nodes[node.id] = replace(node, operator=CombinedAggregate(node.operator), inputs=[part, *inputs[1:]])
        else:
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            out.nodes[node.id] = node if same else replace(node, inputs=inputs)
    out.outputs = {name: out.nodes[node.id] for name, node in graph.outputs.items()}
    return out
