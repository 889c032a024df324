"""The operator VM gives what the operators give, whatever a tick is like and whenever states are read."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.circuit import Builder, Circuit
from dbspark.circuit import vm as circuit_vm
from dbspark.circuit.executor import as_zset
from dbspark.circuit.vm import BUFFER_LIMITS, MAX_VM_ROWS
from dbspark.columnar import Schema
from dbspark.columnar.delta import Delta
from dbspark.kernels.preload import compile_operator_vm
from dbspark.trace.config import SpineConfig
from dbspark.zset import ZSet
from tests.operators.model import ANY_WEIGHTS, entries
from tests.zset.model import contents, plus

PAIR = "k BIGINT, n BIGINT"
ROWS = st.tuples(st.integers(0, 4), st.integers(-2, 3))
CHANGE = entries(ROWS, ANY_WEIGHTS, 5)
ACTIONS = st.sampled_from(["go on", "go on", "go on", "read", "count", "undo"])


@pytest.fixture(autouse=True, scope="module")
def machine():
    compile_operator_vm()


def delta_of(rows):
    return Delta.of(ZSet.from_rows(rows, Schema.parse(PAIR)).batch())


def total(change):
    return plus(*({row: w} for row, w in change))


def queries(uncompiled=False):
    """Joins, groups, top-k and distinct rows over shared states; with `uncompiled`, operators without instructions."""
    b = Builder()
    t, o = b.source("t", PAIR), b.source("o", PAIR)
    both = b.join(t, o, ["k"], select=[(0, "k"), (0, "n"), (1, "n")])
    b.output("both", both)
    groups = b.aggregate(t, ["k"], rows=("count", "n"), total=("sum", "n"))
    b.output("groups", groups)
    b.output("the same groups", b.project(groups, ["k", "rows", "total"]))  # shares the memory of "groups"
    b.output("totals of the same", b.project(b.project(groups, ["k", "rows", "total"]), ["total", "k"]))
    b.output("the same", b.project(t, ["k", "n"]))
    b.output("first", b.top(t, ["k"], [("n", "desc")], 2))
    b.output("once", b.distinct(b.project(o, ["k"])))
    b.output("again", b.join(o, t, ["k"], select=[(0, "n"), (1, "n")]))
    if uncompiled:
        b.output("outer", b.join(t, o, ["k"], "left", select=[(0, "k"), (1, "n")]))
        b.output("before", b.delay(both))
    return b


def batches(circuit):
    return {n: sorted(r for r in [str(s.consolidated().to_arrow(weights="weight").to_pylist()) for s in spines])
            for n, spines in circuit._states.items()}  # fmt: skip


def deltas(circuit, change):
    return {name: contents(z) for name, z in circuit.tick(change).items()}


@pytest.mark.parametrize("uncompiled", [False, True], ids=["all have instructions", "some step by themselves"])
@given(ticks=st.lists(st.tuples(CHANGE, CHANGE, ACTIONS), max_size=24))
@settings(deadline=None)
def test_the_vm_gives_what_operators_give_whenever_states_are_read(uncompiled, ticks):
    one, other = queries(uncompiled).circuit(), Circuit(queries(uncompiled).graph, use_vm=False)
    for left, right, action in ticks:
        change = {"t": total(left), "o": total(right)}
        if action == "undo":  # a tick that is undone has not happened
            before, rows = one.snapshot(), one.tally().rows()
            one.tick(change)
            one.reset(before)
            assert one.tally().rows() == rows
            continue
        assert deltas(one, change) == deltas(other, change)
        if action == "read":
            assert batches(one) == batches(other)
        elif action == "count":
            kept = one.tally().rows()
            assert kept.keys() == other.tally().rows().keys()
            assert all(rows >= sum(s.consolidated().rows for s in one._states[n]) for n, rows in kept.items())
    assert one.state_rows() == other.state_rows()


FILTERED = SpineConfig(
    fanout=4,
    max_inline_merge_rows=16,
    merge_step_rows=64,
    merge_rows_per_row=3,
    min_indexed_rows=16,
    min_filtered_rows=32,
)


@pytest.mark.parametrize("use_vm", [False, True], ids=["operators", "VM"])
@pytest.mark.parametrize("seed", range(3))
def test_a_bloom_filter_rejects_most_new_keys_and_misses_none(use_vm, seed):
    rng = random.Random(seed)
    one, other = Circuit(queries(True).graph, FILTERED, use_vm), Circuit(queries(True).graph, use_vm=False)
    contents_of, filters = {"t": {}, "o": {}}, []
    for tick in range(60):
        change = {}
        for name, rows in contents_of.items():
            new = [(rng.randrange(20 * tick, 20 * tick + 40), rng.randrange(5)) for _ in range(rng.randrange(1, 30))]
            retracted = {row: -w for row, w in rng.sample(sorted(rows.items()), min(len(rows), rng.randrange(8)))}
            change[name] = plus(dict.fromkeys(new, 1), retracted)
            contents_of[name] = plus(rows, change[name])
        assert deltas(one, change) == deltas(other, change)
        filters += [
            s._bloom_filter for spines in one._inserted_states.values() for s in spines if s._bloom_filter is not None
        ]
    assert any(s.view is not None for s in filters)
    change = {name: {row: -w for row, w in rows.items()} for name, rows in contents_of.items()}
    assert deltas(one, change) == deltas(other, change)
    deltas(one, {"t": {}, "o": {}})  # the delay emits its last value
    assert not any(one.state_rows().values())


def joined():
    b = Builder()
    t, o = b.source("t", PAIR), b.source("o", PAIR)
    b.output("sums", b.aggregate(b.join(t, o, ["k"], select=[(0, "k"), (1, "n")]), ["k"], total=("sum", "n")))
    return b


def test_states_insert_several_buffered_ticks_at_once():
    circuit = joined().circuit()
    circuit.tick({"t": [(i, i) for i in range(1000)], "o": [(i, 1) for i in range(1000)]})
    states, rows = [], []
    for i in range(3 * BUFFER_LIMITS.ticks):
        circuit.tick({"o": [(i, 2)]})
        states.append(circuit._inserted_states)
        rows.append(sum(circuit.tally().rows().values()))
    changed = [i for i in range(1, len(states)) if states[i] is not states[i - 1]]
    assert changed == [BUFFER_LIMITS.ticks - 1, 2 * BUFFER_LIMITS.ticks - 1, 3 * BUFFER_LIMITS.ticks - 1]
    buffered = [i for i in range(1, len(states)) if i not in changed]
    # Buffered rows are counted: the row inserted, and the sum of its group, retracted and inserted.
    assert all(rows[i] == rows[i - 1] + 3 for i in buffered)


@pytest.mark.parametrize("size", [600, MAX_VM_ROWS + 1], ids=["large for the VM", "too large for it"])
def test_a_large_tick_flushes_the_buffered_ticks(size):
    one, other = joined().circuit(), Circuit(joined().graph, use_vm=False)
    for change in (
        {"t": [(i, i) for i in range(5)]},
        {"o": [(1, 7)]},
        {"o": [(2, i) for i in range(size)]},
        {"t": {(2, 2): -1}},
        {"o": {(1, 7): -1}},
    ):
        assert deltas(one, change) == deltas(other, change)
        if len(change.get("o", ())) == size:
            assert not one._buffered
    assert one.state_rows() == other.state_rows()


def test_heavy_rows_are_not_buffered():
    circuit = joined().circuit()
    for heavy in (1 << 40, 1 << 62):
        circuit.tick({"o": {(1, 1): heavy}})
        assert not circuit._buffered
    circuit.tick({"o": {(2, 1): 1}})  # where a sum of weights might overflow, every tick is inserted
    circuit.tick({"o": {(3, 1): 1}})
    assert not circuit._buffered
    circuit.tick({"o": {(1, 1): -(1 << 62) - (1 << 40), (2, 1): -1, (3, 1): -1}})
    assert not any(circuit.state_rows().values())


def test_a_run_out_of_memory_is_repeated_with_more(monkeypatch):
    monkeypatch.setattr(circuit_vm, "_MIN_ARENA_BYTES", 8)
    one, other = queries().circuit(), Circuit(queries().graph, use_vm=False)
    for size in (1, 50, 400, 1):
        change = {"t": [(i, i) for i in range(size)], "o": [(i // 2, i) for i in range(size)]}
        assert deltas(one, change) == deltas(other, change)
    assert one.state_rows() == other.state_rows()


def test_results_outlive_the_following_ticks():
    """They may lie in the memory of the inputs or of their tick, and have not been sorted yet."""
    circuit, other = queries().circuit(), Circuit(queries().graph, use_vm=False)
    results, expected = [], []
    for i in range(40):
        change = {"t": [(i % 7, i), (i % 3, -i)], "o": {(i % 5, i): 1, (i % 2, 3): 2}}
        results.append(circuit.step({"t": delta_of(change["t"]), "o": delta_of(list(change["o"]))}))
        expected.append(deltas(other, {"t": change["t"], "o": list(change["o"])}))
    circuit.tick({"t": [(i, i) for i in range(3000)]})  # the VM gets other scratch memory
    assert [{name: contents(as_zset(d)) for name, d in out.items()} for out in results] == expected
