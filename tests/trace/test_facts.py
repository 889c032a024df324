"""Facts of differential dataflow about traces (D-01 … D-16), as a conformance suite.

Each test names its fact. Edges and key-value pairs are rows of two integers, arranged by the first.
"""

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.trace import Antichain, Description, ProductTime, SpineConfig, Time, Trace, TraceAgent, idle_merge_effort
from dbspark.trace import spine as spines
from tests.trace.model import updates_of, zset

PAIRS = Schema.parse("a BIGINT, b BIGINT")
BY_FIRST = SortKey(PAIRS, [0])


def pairs(rows, weights=1, sort_key=BY_FIRST):
    """A delta of pairs."""
    first, second = np.array(list(rows), np.int64).reshape(-1, 2).T
    weights = np.array(np.broadcast_to(np.asarray(weights, np.int64), len(first)))
    return Batch.from_arrow(pa.table({"a": first, "b": second}), sort_key, weights)


def at(*time):
    return Antichain.at(*time)


def history(cursor):
    """Everything a cursor gives: row -> [(time, weight)]."""
    out = defaultdict(list)
    for _, row, time, weight in cursor:
        out[row].append((time[0], weight))
    return dict(out)


def test_d01_a_trace_reads_through_every_boundary_and_compacts_nothing_without_permission():
    trace = Trace(BY_FIRST)
    with TraceAgent.of(trace) as agent:
        trace.append(pairs([(1, 2)]), 0, at(1))
        trace.append(pairs([(2, 3)]), 1, at(2))
        trace.append(pairs([(2, 3)], -1), 2, at(3))
        trace.finish()
        assert history(agent.cursor_through(at(1))) == {(1, 2): [(0, 1)]}
        assert history(agent.cursor_through(at(2))) == {(1, 2): [(0, 1)], (2, 3): [(1, 1)]}
        assert history(agent.cursor_through(at(3))) == {(1, 2): [(0, 1)], (2, 3): [(1, 1), (2, -1)]}
        assert history(agent.cursor()) == history(agent.cursor_through(at(3)))


# ---------------------------------------------------------------------- D-02: counts of edges by source

EPOCHS = [
    [((2, 0), 1), ((1, 0), 1), ((1, 3), 1), ((4, 2), 1)],
    [((2, 0), -1), ((1, 0), -1)],
    [((2, 0), 1), ((1, 3), -1)],
    [((1, 0), 1), ((1, 3), 1), ((2, 0), -1), ((4, 2), -1)],
    [((2, 0), 1), ((4, 2), 1), ((1, 3), -1)],
    [((1, 3), 1), ((4, 2), -1)],
]
COUNTS = [
    {(1, 2): 1, (2, 1): 1, (4, 1): 1},
    {(1, 1): 1, (1, 2): -1, (2, 1): -1},
    {(1, 1): -1, (2, 1): 1},
    {(1, 2): 1, (2, 1): -1, (4, 1): -1},
    {(1, 1): 1, (1, 2): -1, (2, 1): 1, (4, 1): 1},
    {(1, 1): -1, (1, 2): 1, (4, 1): -1},
]
"""How the collection of (source, edges) changes in each epoch."""


def edges(epoch):
    return pairs([edge for edge, _ in EPOCHS[epoch]], [weight for _, weight in EPOCHS[epoch]])


def shard(batch, worker, workers):
    """The rows of one of several workers, by key."""
    keys = batch.to_arrow()["a"].to_numpy()
    return batch.select(np.flatnonzero(keys % workers == worker))


def changes_of_counts(updates):
    """How the counts by source change at each time, given updates of edges."""
    out = [Counter() for _ in EPOCHS]
    for source in {row[0] for row, _, _ in updates}:
        before = 0
        for epoch in range(len(EPOCHS)):
            now = sum(w for row, t, w in updates if row[0] == source and t[0] <= epoch)
            if now != before:
                out[epoch].update({(source, n): d for n, d in ((before, -1), (now, 1)) if n})
            before = now
    return [dict(c) for c in out]


@pytest.mark.parametrize("closed", [False, True], ids=["live", "after the writer has finished"])
@pytest.mark.parametrize("workers", [1, 4])
def test_d02_an_import_gives_the_same_live_and_after_the_writer_has_finished(workers, closed):
    updates = []
    for worker in range(workers):
        trace = Trace(BY_FIRST, config=SpineConfig(fanout=2))
        with TraceAgent.of(trace) as agent:
            source = None if closed else agent.import_trace()
            for epoch in range(len(EPOCHS)):
                trace.append(shard(edges(epoch), worker, workers))
                if source is not None:
                    for batch in source.poll():
                        updates += updates_of(batch, 1)
                    assert source.frontier == at(epoch + 1)
            trace.close()
            if source is None:
                source = agent.import_trace()
            for batch in source.poll():
                updates += updates_of(batch, 1)
            assert source.done
            assert source.frontier == Antichain()
    assert changes_of_counts(updates) == COUNTS


def test_d03_importing_a_quiet_trace_reaches_its_frontier_without_new_input():
    trace = Trace(BY_FIRST)
    agent = TraceAgent.of(trace)
    trace.append(pairs([(1, 2)]), 0)
    trace.seal(at(7))
    source = agent.import_trace()
    source.poll()
    assert source.frontier == at(7)
    trace.seal(at(9))
    assert source.poll() == []
    assert source.frontier == at(9)
    assert not source.done


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("worker", range(4))
def test_d04_a_late_importer_sees_times_advanced_to_its_since(worker, merged):
    trace = Trace(BY_FIRST)
    agent = TraceAgent.of(trace)
    trace.append(pairs([(worker, 0)]), worker, at(4))
    trace.append(pairs([(9, 9)]), 4, at(5))
    agent.set_logical_compaction(at(4 - worker))
    if merged:
        agent.set_physical_compaction(at(5))
        trace.set_exert_logic(idle_merge_effort(100))
        while trace.exert():
            pass
    given = [u for batch in agent.import_trace().poll() for u in updates_of(batch, 1)]
    assert sorted(given) == [((worker, 0), Time((max(worker, 4 - worker),)), 1), ((9, 9), Time((4,)), 1)]


def test_d10_sums_of_zero_vanish():
    assert pairs([(1, 1), (2, 2), (1, 1)], [3, 1, -3]).rows == 1
    assert pairs([(1, 1), (1, 1)], [1, -1]).rows == 0
    trace = Trace(BY_FIRST, config=SpineConfig(fanout=2))
    for weight in (1, 2, -3):
        trace.append(pairs([(1, 1)], weight))
    trace.finish()
    assert trace.spine.rows == 0
    assert trace.scan().rows == 0


def test_d11_a_merge_advances_times_as_the_lattice_says():
    """(3,7) by {(4,8),(5,3)} is (4,7), in every row of a merge and not only where rows meet."""
    trace = Trace(BY_FIRST, width=2, config=SpineConfig(fanout=2))
    agent = TraceAgent.of(trace)
    for time, upper in (((3, 7), (4, 0)), ((4, 9), (6, 0))):
        trace.append(pairs([(1, 1), (time[0], 2)]), time, at(*upper))
    agent.set_logical_compaction(Antichain([ProductTime(4, 8), ProductTime(5, 3)]))
    agent.set_physical_compaction(at(6, 0))
    trace.finish()
    assert len(trace.spine.batches) == 1
    (whole,) = trace.spine.entries
    assert sorted(updates_of(whole, 2)) == [
        ((1, 1), Time((4, 7)), 1),
        ((1, 1), Time((4, 9)), 1),
        ((3, 2), Time((4, 7)), 1),
        ((4, 2), Time((4, 9)), 1),
    ]
    assert whole.description == Description(at(0, 0), at(6, 0), Antichain([ProductTime(4, 8), ProductTime(5, 3)]))


NAMES = Schema.parse("key STRING, value STRING")


def test_d12_the_changes_of_an_upserted_key_are_read_back_with_their_times():
    """frank: mcsherry@3, zappa@4, none@5, oz@9, oz@11, none@15."""
    steps = {3: {"mcsherry": 1}, 4: {"mcsherry": -1, "zappa": 1}, 5: {"zappa": -1}, 9: {"oz": 1}, 15: {"oz": -1}}
    sort_key = SortKey(NAMES, [0])
    trace = Trace(sort_key, config=SpineConfig(fanout=2))
    trace_agent = TraceAgent.of(trace)
    for time in range(16):
        delta = steps.get(time, {})
        table = pa.table({"key": ["frank"] * len(delta), "value": pa.array(list(delta), pa.string())})
        trace.append(Batch.from_arrow(table, sort_key, np.array(list(delta.values()), np.int64)), time)
    trace_agent.set_physical_compaction(at(16))
    trace.finish()
    current = [next((row[1] for row in zset(trace.as_of(t))), None) for t in range(16)]
    assert current == [None] * 3 + ["mcsherry", "zappa"] + [None] * 4 + ["oz"] * 6 + [None]
    found = sorted((t[0], row[1], w) for row, t, w in updates_of(trace.changes(2, 15), 1))
    assert found == sorted((t, value, w) for t, delta in steps.items() for value, w in delta.items())
    assert trace.changes(9, 14).rows == 0, "repeating a value changes nothing"


# ---------------------------------------------------------------------- D-16: the merge schedule


@pytest.fixture
def written(monkeypatch):
    """Counts the rows that merges write."""
    count = Counter()
    step, merge = spines.MergeState.step, spines.merge

    def rows(state):
        return sum(c.rows for c in (state.out if isinstance(state, spines.MergeState) else state.chunks))

    def counted_step(self, limit):
        result = step(self, limit)
        count["rows"] += rows(result) - rows(self)
        return result

    def counted_merge(*args):
        result = merge(*args)
        count["rows"] += result.rows
        return result

    monkeypatch.setattr(spines.MergeState, "step", counted_step)
    monkeypatch.setattr(spines, "merge", counted_merge)
    return count


def test_d16_single_row_inserts_cost_no_more_than_the_model(written):
    """4,096 of them: 40,962 rows written in total, at most 30 in one insert, at most 13 batches at any time."""
    trace = Trace(
        BY_FIRST, config=SpineConfig(fanout=2, max_inline_merge_rows=2, merge_step_rows=1, merge_rows_per_row=20)
    )
    total = most = batches = 0
    for i in range(4096):
        written.clear()
        trace.append(pairs([(i, i)]))
        total += written["rows"]
        most = max(most, written["rows"])
        batches = max(batches, len(trace.spine.batches))
    assert trace.spine.rows == 4096
    assert total <= 40_962
    assert most <= 30
    assert batches <= 13


def test_d16_small_inserts_leave_a_large_batch_alone(written):
    """1,000,000 rows, then 2,000 times 100: the large batch is not rewritten, and no insert does much."""
    trace = Trace(BY_FIRST)
    numbers = np.arange(1_000_000)
    trace.append(pairs(np.stack([numbers, numbers], 1)))
    (large,) = trace.spine.entries
    chunks = {id(c) for c in large.chunks}
    most = 0
    small = [pairs(np.stack([n, n], 1)) for n in np.arange(1_000_000, 1_200_000).reshape(2000, 100)]
    for delta in small:
        written.clear()
        trace.append(delta)
        most = max(most, written["rows"])
        assert chunks == {id(c) for c in trace.spine.entries[0].chunks}
    assert most <= 2 * max(trace.spine.config.merge_step_rows, trace.spine.config.max_inline_merge_rows) + 4472
    assert len(trace.spine.batches) <= 2 * 4 * 10


def test_d16_idle_time_ends_with_one_batch():
    """Ten batches of 1,000 and then idle: one batch after about 22 calls of 1,000 rows each."""
    trace = Trace(
        BY_FIRST, config=SpineConfig(fanout=4, max_inline_merge_rows=0, merge_step_rows=1000, merge_rows_per_row=0)
    )
    for i in range(10):
        numbers = np.arange(1000 * i, 1000 * i + 1000)
        trace.append(pairs(np.stack([numbers, numbers], 1)))
    trace.set_exert_logic(idle_merge_effort(1000))
    calls = 0
    while trace.exert():
        calls += 1
        assert calls < 100, "it never ends"
    assert len(trace.spine.batches) == 1
    assert trace.spine.rows == 10_000
    assert calls <= 24
    assert not trace.exert(), "and then there is nothing to do"
