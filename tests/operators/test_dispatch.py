"""How a delta is looked up: by searching or by walking, whichever suits its usual size, over the same state."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder, Circuit
from dbspark.columnar import Schema, SortKey
from dbspark.columnar.delta import Delta
from dbspark.kernels.memory import layout as nd
from dbspark.trace.lookup import Keys, ranges_of
from dbspark.trace.spine import Spine
from dbspark.trace.statistics import START_WALK_RATIO, STOP_WALK_RATIO, SpineStats
from tests.operators.model import WEIGHTS, Run, entries, joined
from tests.operators.test_join import HOWS, LEFT, LEFT_ROWS, ON, RIGHT, RIGHT_ROWS, condition, condition_of

ROWS = 1 << 20


def test_the_first_delta_decides_and_usual_sizes_are_followed():
    assert SpineStats().prefers_walk(ROWS // START_WALK_RATIO, ROWS)
    stats = SpineStats()
    assert not stats.prefers_walk(1, ROWS)
    for _ in range(20):
        stats.prefers_walk(ROWS, ROWS)
    assert stats.prefers_walk(ROWS, ROWS)
    for _ in range(40):
        stats.prefers_walk(1, ROWS)
    assert not stats.is_walking


def test_sizes_between_the_two_limits_change_nothing():
    between = ROWS // (2 * START_WALK_RATIO)
    assert STOP_WALK_RATIO > 2 * START_WALK_RATIO
    is_walking, searching = SpineStats(), SpineStats()
    is_walking.prefers_walk(ROWS, ROWS)
    searching.prefers_walk(1, ROWS)
    for _ in range(100):
        assert is_walking.prefers_walk(between, ROWS)
        assert not searching.prefers_walk(between, ROWS)


def test_a_small_delta_among_large_ones_is_searched_for():
    stats = SpineStats()
    stats.prefers_walk(ROWS, ROWS)
    assert not stats.prefers_walk(3, ROWS)
    assert stats.is_walking
    assert stats.prefers_walk(ROWS // 8, ROWS)


def test_one_large_delta_among_small_ones_is_no_change_of_habit():
    stats = SpineStats()
    for _ in range(5):
        stats.prefers_walk(10, ROWS)
    assert not stats.prefers_walk(ROWS // (2 * START_WALK_RATIO), ROWS)
    assert not stats.prefers_walk(10, ROWS)


SCHEMA = Schema.parse("k BIGINT, v BIGINT")
BY_KEY = SortKey(SCHEMA, [0])


def batch(keys):
    columns = [pa.array(keys, pa.int64()), pa.array(np.arange(len(keys)))]
    return Delta(SCHEMA, columns, np.ones(len(keys), np.int64)).sorted_by(BY_KEY)


@pytest.mark.parametrize("size", [1, 100, 5000, 100_000])
def test_both_ways_find_the_same_in_many_chunks_and_batches(size):
    """Hot keys and rare ones, in the order of hashes and out of it."""
    rng = np.random.default_rng(size)
    spine = Spine(BY_KEY)
    for _ in range(3):
        spine = spine.insert(batch(np.append(rng.integers(0, 50_000, 60_000), np.zeros(40_000, np.int64))))
    chunks = batch(rng.integers(0, 60_000, size)).chunks
    hashes = np.concatenate([c.lane(nd.KEY) for c in chunks])
    for given_hashes in (hashes, hashes[::-1].copy(), rng.permutation(hashes)):
        keys = Keys(chunks[0], given_hashes, BY_KEY.key_nodes)
        searched, count = ranges_of(spine, keys)
        walked, other = ranges_of(spine, keys, walk=True)
        assert count == other
        assert (searched[:, :, 2] == walked[:, :, 2]).all()
        somewhere = searched[:, :, 2] > 0
        assert (searched[somewhere] == walked[somewhere]).all()


@pytest.mark.parametrize("how", HOWS)
@given(
    ticks=st.lists(st.tuples(entries(LEFT_ROWS, WEIGHTS), entries(RIGHT_ROWS, WEIGHTS)), max_size=6),
    turns=st.lists(st.booleans(), min_size=1, max_size=7),
)
def test_nothing_is_lost_whenever_the_way_changes(how, ticks, turns):
    b = Builder()
    streams = b.source("l", LEFT), b.source("r", RIGHT)
    b.output("plain", b.join(*streams, on=ON, how=how))
    b.output("judged", b.join(*streams, on=ON, how=how, where=condition))
    run = Run(b)
    calls = 0

    def turned(stats, delta, rows):
        nonlocal calls
        calls += 1
        return turns[calls % len(turns)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpineStats, "prefers_walk", turned)
        for left, right in ticks:
            run.tick(l=run.possible("l", left), r=run.possible("r", right))
            whole = run.given["l"], run.given["r"], [(0, 0)], how
            assert run.held["plain"] == joined(*whole)
            assert run.held["judged"] == joined(*whole, condition_of)
        run.retract()


def test_large_and_small_deltas_in_turn_over_one_state():
    """The way is chosen as ever, and what has come out is the join of all there is: over every change of it."""
    rng = np.random.default_rng(5)
    left, right = Schema.parse("k BIGINT, a BIGINT"), Schema.parse("j BIGINT, b BIGINT")
    b = Builder()
    b.output("out", b.aggregate(b.join(b.source("l", left), b.source("r", right), on=ON), [], n=("count", None)))
    circuit = Circuit(b.graph, use_vm=False)
    ways = []
    before = SpineStats.prefers_walk

    def watched(stats, delta, rows):
        ways.append(before(stats, delta, rows))
        return ways[-1]

    counts = {"l": np.zeros(1000, np.int64), "r": np.zeros(1000, np.int64)}
    total = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpineStats, "prefers_walk", watched)
        for size in (20_000, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 9000, 9000, 9000, 10, 9000):
            given = {}
            for name, schema in (("l", left), ("r", right)):
                keys = rng.integers(0, 1000, size)
                counts[name] += np.bincount(keys, minlength=1000)
                columns = [pa.array(keys), pa.array(rng.integers(0, 1 << 40, size))]
                given[name] = Delta(schema, columns, np.ones(size, np.int64))
            for row, weight in circuit.step(given)["out"].items():
                total += row[0] * weight
            assert total == int((counts["l"] * counts["r"]).sum())
    assert ways[0]
    assert False in ways
    assert ways[-1]


def test_a_tick_that_fails_leaves_nothing_but_a_habit():
    """What is remembered of sizes may have changed; what comes out has not."""
    b = Builder()
    left, right = b.source("l", LEFT), b.source("r", RIGHT)
    joined_rows = b.join(left, right, on=ON)

    def refuse(columns):
        if "bad" in columns[1].to_pylist():
            raise ValueError("refused")
        return columns

    b.output("out", b.map(joined_rows, refuse, joined_rows.schema))
    run = Run(b)
    run.tick(l={(i, "x"): 1 for i in range(500)}, r={(i, i): 1 for i in range(500)})
    with pytest.raises(ValueError, match="refused"):
        run.tick(l={(i, "bad"): 1 for i in range(500)})
    assert run.tick(r={(3, 3): -1})["out"] == {(3, "x", 3, 3): -1}
    run.retract()
