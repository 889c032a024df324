"""Histories of tables and views: what is held stays readable, and what fails has not happened."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.delta import Delta
from dbspark.errors import TimeError
from dbspark.runtime.embedded import HISTORY_SPINE_CONFIG, STATE_SPINE_CONFIG
from dbspark.trace import Antichain, TraceAgent, write_buffer
from dbspark.trace.history import History
from dbspark.trace.write_buffer import LIMITS

SCHEMA = Schema.parse("k BIGINT")
BY_ROW = SortKey(SCHEMA)


def delta(rows: Any, weights: Any = None) -> Delta:
    weights = np.ones(len(rows), np.int64) if weights is None else np.array(weights, np.int64)
    return Delta(SCHEMA, [pa.array(rows, pa.int64())], weights)


def rows_of(batch: Batch) -> Counter[int]:
    table = batch.to_arrow(weights="w")
    return Counter(dict(zip(table["k"].to_pylist(), table["w"].to_pylist(), strict=True)))


def oldest(history: History) -> int:
    return int(history.trace.since.meet_of_all()[0])


def test_an_agent_keeps_its_tick_while_changes_are_written_together() -> None:
    history = History(BY_ROW, 5, 0, config=HISTORY_SPINE_CONFIG, seldom_read=True, count_rows=False)
    for tick in range(1, 4):
        history.append(delta([tick]), tick)
    agent = TraceAgent.of(history.trace)
    agent.set_logical_compaction(Antichain.at(3))
    for tick in range(4, 21):
        history.append(delta([tick]), tick)
    assert oldest(history) == 3
    assert rows_of(history.at(3, 20)) == Counter([1, 2, 3])
    assert rows_of(history.at(9, 20)) == Counter(range(1, 10))
    agent.drop()
    history.append(delta([21]), 21)
    assert oldest(history) == 16


def test_a_hold_that_comes_while_changes_are_sorted_is_honoured(monkeypatch: Any) -> None:
    """What has been sorted for a later tick is sorted again."""
    history = History(BY_ROW, 5, 0, config=HISTORY_SPINE_CONFIG)
    trace = history.trace
    for tick in range(1, LIMITS.max_deltas):
        history.append(delta([tick]), tick)
    sort = write_buffer.sort_for_flush
    agents = []

    def sorted_and_held(changes: Any, oldest: int, *more: Any) -> Any:
        out = sort(changes, oldest, *more)
        if not agents:
            assert out.oldest == LIMITS.max_deltas - 6
            agents.append(TraceAgent.of(trace))
            with pytest.raises(TimeError, match="somebody holds"):
                agents[0].clone().append_described(*described(out))
        return out

    monkeypatch.setattr(write_buffer, "sort_for_flush", sorted_and_held)
    assert oldest(history) == 0
    assert rows_of(history.at(7, LIMITS.max_deltas - 1)) == Counter(range(1, 8))


def described(out: Any) -> Any:
    from dbspark.trace.time import Description

    last = Antichain.at(out.deltas[-1].tick + 1)
    return out.combined, Description(Antichain.at(1), last, Antichain.at(out.oldest)), Antichain.at(out.oldest)


def test_a_hold_goes_as_far_back_as_there_is_anything() -> None:
    history = History(BY_ROW, 2, 0)
    for tick in range(1, 11):
        history.append(delta([tick]), tick)
    assert oldest(history) == 8
    history.hold(3)
    for tick in range(11, 31):
        history.append(delta([tick]), tick)
    assert oldest(history) == 8
    history.hold(20)
    assert oldest(history) == 20
    history.hold(None)
    history.append(delta([31]), 31)
    assert oldest(history) == 29


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.lists(st.tuples(st.integers(0, 6), st.sampled_from([-1, 1, 2])), max_size=4)),
        st.tuples(st.just("ticks"), st.integers(1, 2 * LIMITS.max_deltas)),
        st.tuples(st.just("agent"), st.integers(0, 40)),
        st.tuples(st.just("hold"), st.integers(0, 40)),
        st.tuples(st.just("advance"), st.integers(0, 40)),
        st.tuples(st.just("drop"), st.integers(0, 5)),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("flush"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(
    STEPS, st.sampled_from([0, 1, 5, 50]), st.sampled_from([HISTORY_SPINE_CONFIG, STATE_SPINE_CONFIG]), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_since_never_passes_a_hold(steps: Any, keep: int, config: Any, seldom_read: bool, count_rows: bool) -> None:
    """Random ticks, holds that are taken, advanced and dropped, and reads as of held ticks, against a model."""
    history = History(BY_ROW, keep, 0, config=config, seldom_read=seldom_read, count_rows=count_rows)
    trace = history.trace
    states, now = [Counter[int]()], 0
    agents: list[tuple[Any, int]] = []
    held: int | None = None

    def tick(changes: Any) -> None:
        nonlocal now
        now += 1
        after = Counter(states[-1])
        for row, weight in changes:
            after[row] += weight
        states.append(Counter({r: w for r, w in after.items() if w}))
        history.append(delta([r for r, _ in changes], [w for _, w in changes]), now)

    def check(at: int) -> None:
        assert rows_of(history.at(at, now)) == states[at], at

    for what, value in steps:
        if what == "tick":
            tick(value)
        elif what == "ticks":
            for i in range(value):
                tick([(i % 7, 1 if i % 3 else -1)])
        elif what == "agent":
            agent = TraceAgent.of(trace)  # of a trace to which changes have still to come
            at = max(now - value, agent.logical.meet_of_all()[0])
            agent.set_logical_compaction(Antichain.at(at))
            agents.append((agent, at))
        elif what == "hold":
            since = trace.since.meet_of_all()[0]
            held = min(max(now - value, since), now)
            if held < since:
                held = None
            history.hold(held)
        elif what == "advance" and agents:
            agent, at = agents.pop(0)
            at = min(max(at, value), now)
            agent.set_logical_compaction(Antichain.at(at))
            agents.append((agent, at))
        elif what == "drop" and agents:
            agents.pop(value % len(agents))[0].drop()
        elif what == "read":
            for at in {at for _, at in agents} | ({held} if held is not None else set()):
                if at <= now:
                    check(at)
            check(max(now - min(keep, value), 0))
        elif what == "flush":
            _ = history.spine
        holds = [at for _, at in agents] + ([] if held is None else [held])
        assert all(trace.since.less_equal((at,)) for at in holds)
    for at in {at for _, at in agents} | ({held} if held is not None else set()):
        if at <= now:
            check(at)
    for at in range(max(now - keep, 0), now + 1):
        check(at)
