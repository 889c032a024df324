"""Balanced joins: which side of a join is sharded, which is whole everywhere, and which lies as it comes.

By key is the rule. It goes wrong where a shard owns a key that many rows have, or where there is no key at all. Then,
if the other side is small beside it, the small side is broadcast and the large one balanced: no row of the large side
moves for the join, and every shard has its part of it. What is small, large and uneven is read off the sizes of the
traces after every tick; a policy is taken back only when the small side has grown to twice what made it small, so it
does not go back and forth, and moving state stays rare.

A join is judged by itself: where a side's arrangement serves others too, it stays sharded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dbspark.circuit.graph import Graph, Node
from dbspark.operators.join import Join
from dbspark.operators.placement import SHARD, Policy
from dbspark.runtime.planner import Policies

LARGE = 10_000
"""Rows of a side from which on it is worth while."""
UNEVEN = 1.8
"""How many times the mean the largest shard may hold."""
SMALL = 0.5
"""Of the rows of the large side, how many the copies of the small one may be when it is broadcast."""

Sizes = Mapping[str, Sequence[int]]
"""Rows of each trace on every shard."""


def chosen(graph: Graph, sizes: Sizes, before: Policies, shards: int) -> Policies:
    """The policies for the next tick; only those that are not the rule."""
    out: dict[str, tuple[Policy, Policy]] = {}
    if shards == 1:
        return out
    readers: dict[str, int] = {}
    for node in graph:
        for given in node.inputs:
            readers[given.id] = readers.get(given.id, 0) + 1
    for node in graph:
        if isinstance(node.operator, Join) and all(readers[i.id] == 1 for i in node.inputs):
            policy = _chosen(node, node.operator, sizes, before.get(node.id, SHARD), shards)
            if policy != SHARD:
                out[node.id] = policy
    return out


def _chosen(node: Node, join: Join, sizes: Sizes, before: tuple[Policy, Policy], shards: int) -> tuple[Policy, Policy]:
    rows = [sizes.get(side.id, (0,)) for side in node.inputs]
    if before != SHARD:
        small = before.index("broadcast")
        copies = sum(rows[small])  # it is counted on every shard
        return before if copies <= 2 * SMALL * sum(rows[1 - small]) else SHARD
    for small in join.broadcastable_sides:
        large = rows[1 - small]
        total = sum(large)
        if total < LARGE or max(large) * shards <= UNEVEN * total:
            continue
        if sum(rows[small]) * shards <= SMALL * total:
            return ("broadcast", "balance") if small == 0 else ("balance", "broadcast")
    return SHARD
