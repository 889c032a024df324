"""Partial aggregation of aggregates without a key: each shard sends one row to the shard that owns the aggregate.

`add_partial_aggregates` puts a `PartialAggregate` before every such aggregate of a graph. The aggregate keeps its node
id and its state, and a `PartialAggregate` has no state, so stored state does not depend on whether a graph was run with
partial aggregation, or on how many shards.
"""

from __future__ import annotations

from dataclasses import replace

from dbspark.circuit.graph import Graph, Node
from dbspark.operators.aggregate import GroupAggregate
from dbspark.operators.partial import CombinedAggregate, PartialAggregate, can_aggregate_partially


def add_partial_aggregates(graph: Graph) -> Graph:
    """The graph with a partial aggregate before each aggregate that has no key; the same graph if there is none."""
    if not any(can_aggregate_partially(node.operator) for node in graph) or any(node.role == "delay" for node in graph):
        return graph
    out = Graph()
    for node in graph.schedule():
        inputs = [out.nodes[source.id] for source in node.inputs]
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
