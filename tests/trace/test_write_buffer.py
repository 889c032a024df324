"""Changes that wait to be written beside the ticks: whatever is asked, whenever, is as if they had been written."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dbspark
from dbspark.columnar import Schema, SortKey
from dbspark.columnar.delta import Delta
from dbspark.errors import TransactionError, WeightOverflowError
from dbspark.runtime.embedded import HISTORY_SPINE_CONFIG
from dbspark.trace import write_buffer
from dbspark.trace.history import History
from dbspark.trace.write_buffer import LIMITS, validate


def held(table: pa.Table) -> Counter[Any]:
    return Counter(zip(*(c.to_pylist() for c in table.columns), strict=True))


def arrow(rows: list[Any]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], pa.string())})


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("history", [0, 4, 1000])
def test_rows_are_inserted_and_retracted_while_others_are_buffered(history: int, slow: bool, monkeypatch: Any) -> None:
    if slow:
        fast = write_buffer.sort_for_flush

        def late(*given: Any) -> Any:
            time.sleep(0.003)
            return fast(*given)

        monkeypatch.setattr(write_buffer, "sort_for_flush", late)
    rng = random.Random(history)
    states: list[Counter[Any]] = [Counter()]
    with dbspark.Pipeline("waiting", config={"history": history}) as pipe:
        pipe.create_table("t", "k BIGINT, v STRING")
        for tick in range(1, 4 * LIMITS.max_deltas):
            now = Counter(states[-1])
            size = rng.choice(
                [
                    1,
                    3,
                    3,
                    LIMITS.max_rows // 3 if rng.random() < 0.1 else 2,
                    LIMITS.max_rows if rng.random() < 0.3 else 2,
                ]
            )
            come = [
                (rng.randrange(10 if size < LIMITS.max_rows else 5000), rng.choice([None, "a", "b"]))
                for _ in range(size)
            ]
            gone = rng.sample(sorted(now.elements(), key=str), min(5, now.total())) if rng.random() < 0.2 else []
            with pipe.transaction() as tx:
                tx.insert("t", arrow(come))
                if gone:
                    tx.delete("t", arrow(gone))
            now.update(come)
            now.subtract(gone)
            states.append(+now)
            if rng.random() < 0.1:
                with pytest.raises(TransactionError), pipe.transaction() as tx:
                    tx.delete("t", arrow([(99, "never")]))
            if rng.random() < 0.2:
                past = rng.randint(max(0, tick - history), tick)
                assert held(pipe.table("t").as_of(past).to_arrow()) == states[past]
                assert held(pipe.table("t").to_arrow()) == states[-1]
        with pipe.transaction() as tx:
            tx.delete("t", arrow(list(states[-1].elements())))
        assert pipe.table("t").to_arrow().num_rows == 0
        assert pipe.table("t").as_of(pipe.tick).to_arrow().num_rows == 0


@pytest.mark.parametrize("rows", [10, LIMITS.max_rows + 1])
def test_whoever_hands_rows_over_may_write_into_their_memory_again(rows: int) -> None:
    with dbspark.Pipeline("owner") as pipe:
        pipe.create_table("t", "k BIGINT")
        memory = np.arange(rows)
        with pipe.transaction() as tx:
            tx.insert("t", pa.table({"k": pa.array(memory)}))
            memory[:] = -1
        memory[:] = -2
        assert sorted(pipe.table("t").to_arrow()["k"].to_pylist()) == list(range(rows))


def test_parts_of_tables_are_taken_and_no_more() -> None:
    """Slices, columns of several chunks, in another order, of other types."""
    with dbspark.Pipeline("parts") as pipe:
        pipe.create_table("t", "k BIGINT, v STRING, b BOOLEAN")
        whole = pa.table({"b": [True, None, False] * 30, "v": ["x", None, "long " * 9] * 30, "k": range(90)})
        pieces = [whole.slice(3, 4), pa.concat_tables([whole.slice(11, 2), whole.slice(20, 3)])]
        pieces.append(whole.slice(40, 5).cast(pa.schema({"b": pa.bool_(), "v": pa.large_string(), "k": pa.int32()})))
        for piece in pieces:
            with pipe.transaction() as tx:
                tx.insert("t", piece)
        expected = held(
            pa.concat_tables([p.select(["k", "v", "b"]).cast(whole.select(["k", "v", "b"]).schema) for p in pieces])
        )
        assert held(pipe.table("t").to_arrow()) == expected


def test_a_progress_tells_rows_by_which_a_view_has_changed() -> None:
    """Not those that cancel each other, however late somebody asks."""
    x, y = Schema.parse("k BIGINT"), SortKey(Schema.parse("k BIGINT"))
    history = History(y, 10, 0, config=HISTORY_SPINE_CONFIG)
    taken = [
        history.append(Delta(x, [pa.array([i, i, 7, 7])], np.array([1, 1, 1, -1])), i + 10)
        for i in range(3 * LIMITS.max_deltas)
    ]
    assert {int(t) for t in taken} == {1}
    assert history.spine.consolidated().rows == len(taken)
    assert {int(t) for t in taken} == {1}


def test_the_buffer_is_bounded(monkeypatch: Any) -> None:
    """A tick waits for the thread when it is far behind."""
    go, fast = threading.Event(), write_buffer.sort_for_flush

    def held_up(*given: Any) -> Any:
        go.wait(30)
        return fast(*given)

    monkeypatch.setattr(write_buffer, "sort_for_flush", held_up)
    schema = Schema.parse("k BIGINT")
    history = History(SortKey(schema), 10, 0, config=HISTORY_SPINE_CONFIG)
    for i in range(LIMITS.busy_factor):  # one in hand, and nearly as many as may wait
        history.append(many(schema, i), i + 1)
    assert history.unconsolidated_rows == LIMITS.busy_factor * LIMITS.max_rows
    assert len(history._buffer.deltas) == LIMITS.busy_factor
    threading.Timer(0.05, go.set).start()
    history.append(many(schema, LIMITS.busy_factor), LIMITS.busy_factor + 1)
    assert len(history._buffer.deltas) == LIMITS.busy_factor
    assert history.spine.consolidated().rows == (LIMITS.busy_factor + 1) * LIMITS.max_rows
    assert not history._buffer.deltas


def test_an_idle_history_is_flushed_in_idle_time(monkeypatch: Any) -> None:
    """No tick waits for it before there is twice as much of it as has been written; who asks gets everything."""
    go, fast = threading.Event(), write_buffer.sort_for_flush
    pieces: list[int] = []

    def held_up(changes: Any, *given: Any) -> Any:
        go.wait(30)
        pieces.append(sum(c.delta_rows for c in changes))
        return fast(changes, *given)

    monkeypatch.setattr(write_buffer, "sort_for_flush", held_up)
    schema = Schema.parse("k BIGINT")
    history = History(SortKey(schema), 10, 0, config=HISTORY_SPINE_CONFIG, seldom_read=True, count_rows=False)
    n = 4 * LIMITS.max_idle_rows // LIMITS.max_rows
    go.set()
    for i in range(n):
        history.append(many(schema, i), i + 1)
    while history._buffer.rows >= LIMITS.max_idle_rows:  # until the trace has nearly all
        time.sleep(0.001)
        history._buffer.flush_due(0, history._insert_flushed)
    there = history._trace.spine.rows
    go.clear()
    ahead = (
        (LIMITS.idle_trace_factor * there + LIMITS.max_idle_rows) // LIMITS.max_rows - len(history._buffer.deltas) - 1
    )
    for i in range(n, n + ahead):
        history.append(many(schema, i), i + 1)
    assert history._buffer.rows > LIMITS.idle_trace_factor * there > LIMITS.busy_factor * LIMITS.max_rows
    threading.Timer(0.05, go.set).start()
    for i in range(n + ahead, n + ahead + 2):
        history.append(many(schema, i), i + 1)
    assert go.is_set()
    pieces.clear()
    assert history.spine.consolidated().rows == (n + ahead + 2) * LIMITS.max_rows
    assert max(pieces) <= 2 * LIMITS.max_idle_rows
    assert history.at(n + ahead - 3, n + ahead + 2).rows == (n + ahead - 3) * LIMITS.max_rows


def test_deltas_of_a_view_are_flushed_together_and_counted() -> None:
    """Where nobody asks, each is in order already, and how many rows it has is known."""
    schema, n = Schema.parse("k BIGINT"), 3 * LIMITS.max_idle_deltas
    sort_key = SortKey(schema)
    history = History(sort_key, 0, 0, config=HISTORY_SPINE_CONFIG, seldom_read=True)
    taken = []
    for i in range(n):
        delta = Delta.of(many(schema, i).sorted_by(sort_key))
        taken.append(history.append(delta, i + 1))
    assert {int(t) for t in taken} == {LIMITS.max_rows}
    assert history._trace.spine.stats.inserts < n // 8
    assert history.spine.consolidated().rows == n * LIMITS.max_rows
    assert {int(t) for t in taken} == {LIMITS.max_rows}


def many(schema: Schema, i: int) -> Delta:
    return Delta(
        schema,
        [pa.array(np.arange(i * LIMITS.max_rows, (i + 1) * LIMITS.max_rows))],
        np.ones(LIMITS.max_rows, np.int64),
    )


def test_small_deltas_are_flushed_by_the_tick_itself() -> None:
    schema = Schema.parse("k BIGINT")
    history = History(SortKey(schema), 10, 0, config=HISTORY_SPINE_CONFIG)
    for i in range(1, LIMITS.max_deltas + 1):
        history.append(Delta(schema, [pa.array([i])], np.ones(1, np.int64)), i)
        assert len(history._buffer.deltas) == i % LIMITS.max_deltas
    assert history.spine.consolidated().rows == LIMITS.max_deltas


def test_sums_that_overflow_are_refused_before_the_tick_is_committed() -> None:
    schema = Schema.parse("k BIGINT")
    large = np.full(2, 1 << 62)
    with pytest.raises(WeightOverflowError):
        validate(Delta(schema, [pa.array([1, 1])], large), SortKey(schema))
    assert validate(Delta(schema, [pa.array([1, 2])], large), SortKey(schema)).rows == 2


@pytest.mark.spark
def test_a_view_whose_sums_do_not_fit_stays_as_it_was(spark: Any) -> None:
    with dbspark.Pipeline("large", spark=spark) as pipe:
        pipe.create_table("t", "k BIGINT, n BIGINT")
        pipe.create_view("v", "SELECT k FROM t")
        with pipe.transaction() as tx:
            tx.apply("t", {(1, 1): 5})
        with pytest.raises(WeightOverflowError), pipe.transaction() as tx:
            tx.apply("t", {(1, 2): 1 << 62, (1, 3): 1 << 62})
        assert pipe.view("v").to_arrow()["k"].to_pylist() == [1] * 5
        assert pipe.tick == 1


def test_deltas_without_rows_are_flushed() -> None:
    schema = Schema(pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    for count_rows in (False, True):
        history = History(SortKey(schema), 1, 0, config=HISTORY_SPINE_CONFIG, count_rows=count_rows)
        for tick in (1, 2):
            history.append(Delta(schema, [pa.array([], pa.int64())], np.empty(0, np.int64)), tick)
        assert [history.at(tick, 2).rows for tick in (1, 2)] == [0, 0]
