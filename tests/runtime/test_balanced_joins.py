"""Which side of a join is broadcast, from the row counts of its traces."""

from dbspark.operators.join import Join
from dbspark.runtime.balanced_joins import choose_policies
from tests.runtime.test_planner import SHARDED, built


def sizes(b, left, right):
    (join,) = [n for n in b.graph if isinstance(n.operator, Join)]
    return join.id, {join.inputs[0].id: left, join.inputs[1].id: right}


def test_a_policy_follows_sizes_and_does_not_go_back_and_forth():
    b = built(SHARDED["join"])
    join, even = sizes(b, [50_000, 50_000], [100, 100])
    assert choose_policies(b.graph, even, {}, 2) == {}
    _, uneven = sizes(b, [95_000, 5_000], [100, 100])
    broadcast = {join: ("balance", "broadcast")}
    assert choose_policies(b.graph, uneven, {}, 2) == broadcast
    _, small = sizes(b, [950, 50], [1, 1])
    assert choose_policies(b.graph, small, {}, 2) == {}
    _, grown = sizes(b, [50_000, 50_000], [40_000, 40_000])  # copies on both shards
    assert choose_policies(b.graph, grown, broadcast, 2) == broadcast
    _, large = sizes(b, [50_000, 50_000], [60_000, 60_000])
    assert choose_policies(b.graph, large, broadcast, 2) == {}
    anti = built(SHARDED["anti join"])
    join, swapped = sizes(anti, [100, 100], [95_000, 5_000])  # its left side cannot be everywhere
    assert choose_policies(anti.graph, swapped, {}, 2) == {}
