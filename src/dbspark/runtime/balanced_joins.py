"""Placement of joins with skewed keys: hash partitioning, or broadcast of one side and balancing of the other.

By default both sides are partitioned by their key. That fails where most rows of a side share a key, or where the join
has none. Then, if the other side is small, it is broadcast to all shards and the large one stays where its rows are.
Policies are chosen before each tick from the row counts of the traces:

* to broadcast, where the large side has `MIN_BALANCED_ROWS` rows and a skew above `MIN_SKEW`, and the copies of the
  small side together have at most `MAX_COPIED_FRACTION` of its rows;
* back to partitioning, where the copies have grown to twice that fraction (hysteresis: a change of policy moves state).

A side whose arrangement has other readers stays partitioned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dbspark.circuit.graph import Graph, Node
from dbspark.operators.join import Join
from dbspark.operators.placement import SHARD, Policy
from dbspark.runtime.level_plan import Policies

MIN_BALANCED_ROWS = 10_000
"""Rows of the large side below which no skew is worth moving state."""
MIN_SKEW = 1.8
"""Rows of the largest shard, as a multiple of the mean over the shards."""
MAX_COPIED_FRACTION = 0.5
"""Rows of the small side on all shards together, as a fraction of the rows of the large one."""

ShardRowCounts = Mapping[str, Sequence[int]]
"""Rows of each trace, by shard."""


def choose_policies(graph: Graph, sizes: ShardRowCounts, before: Policies, shards: int) -> Policies:
    """The policies of the next tick, by join; partitioned joins are left out."""
    out: dict[str, tuple[Policy, Policy]] = {}
    if shards == 1:
        return out
    readers: dict[str, int] = {}
    for node in graph:
        for source in node.inputs:
            readers[source.id] = readers.get(source.id, 0) + 1
    for node in graph:
        if isinstance(node.operator, Join) and all(readers[i.id] == 1 for i in node.inputs):
            policy = _choose_policy(node, node.operator, sizes, before.get(node.id, SHARD), shards)
            if policy != SHARD:
                out[node.id] = policy
    return out


def _choose_policy(
    node: Node, join: Join, sizes: ShardRowCounts, before: tuple[Policy, Policy], shards: int
) -> tuple[Policy, Policy]:
    rows = [sizes.get(side.id, (0,)) for side in node.inputs]
    if before != SHARD:
        small = before.index("broadcast")
        copies = sum(rows[small])  # every shard counts its copy
        return before if copies <= 2 * MAX_COPIED_FRACTION * sum(rows[1 - small]) else SHARD
    for small in join.broadcastable_sides:
        large = rows[1 - small]
        total = sum(large)
        if total < MIN_BALANCED_ROWS or max(large) * shards <= MIN_SKEW * total:
            continue
        if sum(rows[small]) * shards <= MAX_COPIED_FRACTION * total:
            return ("broadcast", "balance") if small == 0 else ("balance", "broadcast")
    return SHARD
