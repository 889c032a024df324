"""One tick or nothing: whatever call of a tick fails, tables, views, circuit and tick number are of one tick."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from functools import wraps
from typing import Any

import pytest

import dbspark
from dbspark.circuit import executor
from dbspark.circuit import vm as circuit_vm
from dbspark.errors import DbsparkError, StoreError
from dbspark.runtime import embedded
from dbspark.runtime.state import state_of
from dbspark.storage import files, store, writing
from dbspark.trace import agent, directory, history, spine, trace, write_buffer
from dbspark.trace import background_merges as background
from dbspark.trace.config import SpineConfig
from dbspark.trace.merge_state import MergeRun
from tests.pipeline.queries import tables, without_spark

__all__ = ["without_spark"]

POINTS = [
    (history.History, "append"), (history.History, "begin_tick"), (history.History, "_insert_flushed"),
    (write_buffer, "sort_for_flush"), (write_buffer.WriteBuffer, "add"), (write_buffer.WriteBuffer, "flush_due"),
    (write_buffer.WriteBuffer, "flush"),
    (write_buffer.BufferedDelta, "batch"), (write_buffer, "BackgroundTask"),
    (agent.TraceAgent, "append"), (agent.TraceAgent, "append_described"), (agent.TraceAgent, "_move"),
    (trace.Trace, "insert"), (trace.Trace, "_hold"), (trace.Trace, "_adopt"),
    (background.BackgroundMerges, "start_merges"), (background.BackgroundMerges, "adopt"),
    (background, "BackgroundMerge"), (background.BackgroundMerge, "wait"),
    (spine.Spine, "insert"), (spine.Spine, "with_entries"), (spine.Spine, "with_compaction"), (spine, "merge"),
    (executor.Circuit, "_take"), (executor.Circuit, "_take_in"), (executor.Circuit, "_merging"),
    (circuit_vm.OperatorVM, "flushed_states"), (circuit_vm.OperatorVM, "_write_inputs"), (circuit_vm, "_batch"),
    (circuit_vm.OperatorVM, "_buffer"), (directory.MutableDirectory, "copy"), (directory.BatchDirectory, "with_batch"),
    (embedded, "state_of"), (embedded.Embedded, "states"),
    (store.Store, "commit"), (store.Store, "flush"), (store.Store, "_write"), (writing.CommitWriter, "record"),
    (files.LocalFiles, "settle"), (files.LocalFiles, "put"),
]  # fmt: skip
"""The calls of a tick that may fail: append, taking over what was merged, flush of waiting changes, manifest."""
SMALL = SpineConfig(
    fanout=2,
    max_inline_merge_rows=4,
    merge_step_rows=4,
    min_background_rows=24,
    min_indexed_rows=8,
    max_space_share=3.0,
    seldom_read_fanout=4,
    min_tiny_batches=2,
)


class Faults:
    """Makes the n-th call fail, before it does anything or after it has done all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.calls, self.after, self.error = -1, 0, False, MemoryError
        self.fired = ""
        for owner, name in POINTS:
            monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name), name))

    def arm(self, at: int, after: bool, error: Any) -> None:
        self.at, self.calls, self.after, self.error, self.fired = at, 0, after, error, ""

    def disarm(self) -> None:
        self.at = -1

    def _wrapped(self, call: Any, name: str) -> Any:
        @wraps(call, updated=())
        def run(*args: Any, **more: Any) -> Any:
            here = threading.current_thread() is threading.main_thread()
            self.calls += here
            fails = here and self.calls == self.at
            if fails and not self.after:
                self.fired = name
                raise self.error(f"made to fail before {name}")
            out = call(*args, **more)
            if fails:
                self.fired = name
                raise self.error(f"made to fail after {name}")
            return out

        return run


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, without_spark: None) -> Any:
    monkeypatch.setattr(embedded, "STATE_SPINE_CONFIG", SMALL)
    monkeypatch.setattr(embedded, "HISTORY_SPINE_CONFIG", SMALL)
    limits = write_buffer.WriteBufferLimits(
        max_deltas=3, max_rows=16, min_background_rows=12, max_idle_deltas=3, max_idle_rows=24, idle_after_deltas=2
    )
    monkeypatch.setattr(write_buffer, "LIMITS", limits)
    monkeypatch.setattr(circuit_vm, "BUFFER_LIMITS", circuit_vm.BufferLimits(ticks=3))
    monkeypatch.setattr(files.os, "fsync", lambda _: None)
    return Faults(monkeypatch)


def change(pipe: Any, tick: int) -> None:
    rows = 14 if tick % 4 == 0 else 3
    with pipe.transaction() as tx:
        tx.upsert("orders", [(100 * (tick % 5) + i, i % 3, tick + i) for i in range(rows)])
        if tick % 3 == 1:
            tx.insert("customers", [(tick % 3, "north"), (tick % 4, "south")])
        if tick % 5 == 4:
            tx.delete_keys("orders", [(100 * ((tick - 1) % 5),)])


def rows_of(found: Any) -> Counter[Any]:
    return Counter(zip(*(c.to_pylist() for c in found.columns), strict=True))


def seen(pipe: Any) -> Any:
    """Everything that can be seen of a pipeline, at this tick and at those before it."""
    named = [*(pipe.table(n) for n in pipe.tables), *(pipe.view(n) for n in pipe.views)]
    now = {r.name: rows_of(r.to_arrow()) for r in named}
    past = {(r.name, t): rows_of(r.as_of(t).to_arrow()) for r in named for t in range(max(pipe.tick - 3, 2), pipe.tick)}
    runtime = pipe._runtime
    states = {
        node: [rows_of(s.consolidated().to_arrow(weights="w")) for s in spines]
        for node, spines in state_of(runtime._circuit).items()
    }
    return pipe.tick, runtime._circuit.tick_number - runtime_offset(pipe), now, past, states


def runtime_offset(pipe: Any) -> int:
    """The circuit counts from when it was built; what counts is by how much."""
    return int(pipe._runtime.__dict__.setdefault("offset", pipe._runtime._circuit.tick_number - pipe.tick))


def same(found: Any, expected: Any, what: Any) -> None:
    """Equal, and if not, where."""
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, dict):
            assert one.keys() == other.keys(), what
            for name, rows in one.items():
                assert rows == other[name], (what, name)
        else:
            assert one == other, what


def opened(**more: Any) -> Any:
    pipe = dbspark.Pipeline("faults", config={"history": 3}, **more)
    if not pipe.tables:
        tables(pipe)
        pipe.create_view("totals", "totals")
        pipe.create_view("large", "large")
        pipe.create_view("customers_of", "customers_of")
    return pipe


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("tick", [5, 12])
@pytest.mark.parametrize("look", [False, True], ids=["waiting", "flushed"])
def test_a_tick_in_memory_fails_at_any_call(faults: Any, look: bool, tick: int, after: bool) -> None:
    """Whoever looks before the tick has what waits flushed, so other calls are made."""
    fired = Counter[str]()
    for at in range(1, 1000):
        pipe = opened()
        for i in range(1, tick):
            change(pipe, i)
        if look:
            before = seen(pipe)
        error = (MemoryError, OSError)[at % 2]
        faults.arm(at, after, error)
        try:
            change(pipe, tick)
            failed = False
        except (error, DbsparkError):
            failed = True
        faults.disarm()
        fired[faults.fired] += 1
        if failed:
            if look:
                same(seen(pipe), before, faults.fired)
            assert pipe.tick == tick - 1
            change(pipe, tick)
        for i in range(tick + 1, tick + 6):
            change(pipe, i)
        expected = undisturbed(tick + 5)
        same(seen(pipe)[2:], expected[2:], (faults.fired, at))
        assert pipe.tick == expected[0]
        pipe.close()
        if fired[""] == 2:  # every call has failed once
            break
    assert {"append", "add", "begin_tick"} <= set(fired)


_undisturbed: dict[int, Any] = {}


def undisturbed(tick: int) -> Any:
    if tick not in _undisturbed:
        pipe = opened()
        for i in range(1, tick + 1):
            change(pipe, i)
        _undisturbed[tick] = seen(pipe)
        pipe.close()
    return _undisturbed[tick]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_durable_tick_fails_at_any_call(faults: Any, tmp_path: Any, after: bool) -> None:
    """Memory shows the tick before; a store that goes on no more says so, and holds one tick when opened again."""
    tick, fired, durable = 9, Counter[str](), set()
    # Background threads move calls to other numbers, so that a pass may jump over one of them; then there is another.
    wanted, passes, at = {"states", "_take"}, 1, 0
    while fired[""] < 2 * passes:  # every call has failed once
        at += 1
        place = str(tmp_path / f"{passes}-{at}")
        pipe = opened(location=place)
        for i in range(1, tick):
            change(pipe, i)
        before = seen(pipe)
        error = (MemoryError, OSError)[at % 2]
        faults.arm(at, after, error)
        try:
            change(pipe, tick)
            failed = False
        except (error, DbsparkError):
            failed = True
        faults.disarm()
        fired[faults.fired] += 1
        if not failed:
            assert pipe.tick == tick
        else:
            same(seen(pipe), before, faults.fired)
            if pipe._store._failed is not None:
                with pytest.raises(StoreError, match="Open it again"):
                    change(pipe, tick)
                same(seen(pipe), before, faults.fired)
            else:
                change(pipe, tick)
                assert pipe.tick == tick
        pipe.close()
        pipe = opened(location=place)
        assert pipe.tick in (tick - 1, tick)
        durable.add(pipe.tick)
        for i in range(pipe.tick + 1, tick + 2):
            change(pipe, i)
        expected = undisturbed(tick + 1)
        found = seen(pipe)
        same((found[2], found[4]), (expected[2], expected[4]), faults.fired)
        pipe.close()
        if fired[""] == 2 * passes and not wanted <= set(fired) and passes < 4:
            passes, at = passes + 1, 0
    assert fired.total() > 20
    assert wanted <= set(fired)
    assert {"commit", "flush", "_write", "settle", "put"} & set(fired)
    assert durable == {tick - 1, tick}


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_an_error_of_a_merge_beside_the_ticks_refuses_a_whole_transaction(
    faults: Any, monkeypatch: Any, error: Any
) -> None:
    step, broken = MergeRun.step, [True]

    def failing(self: Any, limit: int) -> None:
        if broken[0] and threading.current_thread() is not threading.main_thread():
            raise error("no room")
        step(self, limit)

    monkeypatch.setattr(MergeRun, "step", failing)

    def look() -> Any:
        """A look writes what waits, and may be told instead of the next tick; each time, where it waits for a merge."""
        for _ in range(8):
            with contextlib.suppress(error):
                return seen(pipe)
        broken[0] = False
        try:
            while True:
                with contextlib.suppress(error):  # of merges that had failed before
                    return seen(pipe)
        finally:
            broken[0] = refused < 5

    pipe, refused, i = opened(), 0, 1
    while i < 60:
        before = look() if i % 2 else None
        try:
            change(pipe, i)
            i += 1
        except error:
            refused += 1
            assert pipe.tick == i - 1
            if before is not None:
                same(look(), before, i)
            broken[0] = refused < 5
    assert refused >= 5
    same(seen(pipe)[2:], undisturbed(59)[2:], refused)


def test_sorting_that_fails_beside_the_ticks_loses_nothing(faults: Any, monkeypatch: Any) -> None:
    sort, broken = write_buffer.sort_for_flush, [True]

    def failing(*given: Any) -> Any:
        if broken[0] and threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")
        return sort(*given)

    monkeypatch.setattr(write_buffer, "sort_for_flush", failing)
    pipe, refused, i = opened(), 0, 1
    while i < 60:
        try:
            change(pipe, i)
            i += 1
        except MemoryError:
            refused += 1
            assert pipe.tick == i - 1
            broken[0] = refused < 3
    assert refused == 3
    same(seen(pipe)[2:], undisturbed(59)[2:], refused)


def test_a_listener_that_cannot_be_told_does_not_undo_a_tick(faults: Any, monkeypatch: Any) -> None:
    pipe = opened()

    def failing(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(pipe._monitor, "record_tick", failing)
    change(pipe, 1)
    assert pipe.tick == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_fails_after_a_tick_is_durable_does_not_undo_it(
    without_spark: None, tmp_path: Any, monkeypatch: Any, error: Any
) -> None:
    monkeypatch.setattr(store, "RETIRE_EVERY", 1)
    pipe = opened(location=str(tmp_path / "state"))
    change(pipe, 1)

    def failing(self: Any) -> list[str]:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "_retire", failing)
        with contextlib.suppress(KeyboardInterrupt):
            change(pipe, 2)
    assert pipe.tick == 2
    change(pipe, 3)
    before = seen(pipe)[2]
    pipe.close()
    pipe = opened(location=str(tmp_path / "state"))
    assert pipe.tick == 3
    same((seen(pipe)[2],), (before,), error)
    pipe.close()
