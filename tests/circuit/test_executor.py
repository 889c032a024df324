"""The executor: a tick happens whole or not at all, delays move together, and the same ticks give the same bytes."""

import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.delta import Delta
from dbspark.errors import CircuitError, DbsparkError, SchemaError, WeightOverflowError
from dbspark.zset import ZSet
from tests.operators.model import ANY_WEIGHTS, Run, contents, entries, joined, plus

K = "k BIGINT"
PAIR = "k BIGINT, n BIGINT"
ROWS = st.tuples(st.integers(0, 3), st.integers(-2, 2))
TICKS = st.lists(entries(ROWS, ANY_WEIGHTS, 5), max_size=6)


def keys(*values):
    return {(v,): 1 for v in values}


def total(change):
    return plus(*({row: w} for row, w in change))


# ---------------------------------------------------------------------- what a tick takes and gives


def test_a_source_takes_whatever_holds_rows():
    schema = Schema.parse(PAIR)
    table = pa.table({"k": pa.array([1, 1, 2], pa.int64()), "n": pa.array([5, 5, None], pa.int64())})
    batch = Batch.from_arrow(table, SortKey(schema))
    expected = {(1, 5): 2, (2, None): 1}
    for given_rows in (
        [(1, 5), (2, None), (1, 5)],
        (row for row in [(1, 5), (2, None), (1, 5)]),
        [{"k": 1, "n": 5}, {"k": 2, "n": None}, {"k": 1, "n": 5}],
        {(1, 5): 2, (2, None): 1, (3, 3): 0},
        table,
        table.combine_chunks().to_batches()[0],
        batch,
        batch.sorted_by(SortKey(schema, [0])),
        ZSet.from_arrow(table, schema=schema),
        Delta.of(batch),
        Delta(schema, [c.combine_chunks() for c in table.columns], np.ones(3, np.int64)),
    ):
        b = Builder()
        b.output("out", b.source("t", PAIR))
        assert contents(b.circuit().tick({"t": given_rows})["out"]) == expected, type(given_rows)


def test_an_unknown_source_is_refused_and_the_known_ones_are_named():
    b = Builder()
    b.output("out", b.union(b.source("one", K), b.source("two", K)))
    circuit = b.circuit()
    with pytest.raises(CircuitError, match="no source three; the sources are one, two"):
        circuit.tick({"one": keys(1), "three": keys(1)})
    assert circuit.tick_number == 0


def test_rows_of_another_schema_are_refused_and_nothing_happens():
    b = Builder()
    stream = b.source("t", PAIR)
    b.output("out", b.aggregate(stream, [], n=("count", None)))
    circuit = b.circuit()
    for wrong in (
        ZSet.from_rows([(1,)], K),
        Batch.from_arrow(pa.table({"k": [1]})),
        Delta.empty(Schema.parse(K)),
        Delta.empty(Schema.parse("k BIGINT, n INT")),
        [(1,)],
        [("a", 1)],
        pa.table({"k": [1]}),
        pa.table({"k": ["a"], "n": ["b"]}),
    ):
        with pytest.raises((CircuitError, SchemaError)):
            circuit.tick({"t": wrong})
    assert circuit.tick_number == 0
    assert contents(circuit.tick({"t": [(1, 2)]})["out"]) == {(1,): 1}


def test_a_tick_without_changes_is_a_tick():
    b = Builder()
    b.output("out", b.source("t", K))
    circuit = b.circuit()
    for _ in range(3):
        assert circuit.tick()["out"].count == 0
    assert circuit.tick_number == 3


def test_two_circuits_of_one_graph_have_nothing_in_common():
    b = Builder()
    b.output("out", b.aggregate(b.source("t", K), ["k"], n=("count", None)))
    one, other = Run(b), Run(b)
    one.tick(t=keys(1))
    other.tick(t=keys(1, 2))
    one.tick(t=keys(1))
    assert one.held["out"] == {(1, 2): 1}
    assert other.held["out"] == {(1, 1): 1, (2, 1): 1}


# ---------------------------------------------------------------------- delays


def test_g04_a_delay_gives_its_seed_and_then_what_came_one_tick_ago():
    b = Builder()
    stream = b.source("t", K)
    b.output("now", stream)
    b.output("before", b.delay(stream, [(0,)]))
    run = Run(b)
    assert run.tick(t=keys(1)) == {"now": keys(1), "before": keys(0)}
    assert run.tick(t=keys(2)) == {"now": keys(2), "before": keys(1)}
    assert run.tick(t={(1,): -1}) == {"now": {(1,): -1}, "before": keys(2)}
    assert run.tick() == {"now": {}, "before": {(1,): -1}}, "deletes are delayed like everything"
    assert run.tick() == {"now": {}, "before": {}}


def test_g04_a_sum_that_holds_itself_one_tick_ago_is_the_sum_of_everything():
    """x = in + delay(x)."""
    b = Builder()
    stream = b.source("t", "k STRING")
    loop = b.loop("k STRING")
    x = b.union(stream, loop)
    b.connect(loop, x)
    b.output("x", x)
    run = Run(b)
    assert run.tick(t={("a",): 1})["x"] == {("a",): 1}
    assert run.tick(t={("b",): 1})["x"] == {("a",): 1, ("b",): 1}
    assert run.tick(t={("a",): -1})["x"] == {("b",): 1}
    assert run.tick()["x"] == {("b",): 1}


@given(ticks=TICKS, seed=entries(ROWS, ANY_WEIGHTS, 3), depth=st.integers(1, 4))
def test_delays_in_a_row_shift_by_as_many_ticks_and_each_gives_its_seed(ticks, seed, depth):
    b = Builder()
    stream = b.source("t", PAIR)
    for i in range(depth):
        stream = b.delay(stream, total(seed) if i == 0 else {(9, i): 1})
    b.output("out", stream)
    run = Run(b)
    given_so_far = [*({(9, i): 1} for i in range(depth - 1, 0, -1)), total(seed)]
    for change in ticks:
        given_so_far.append(total(change))
        assert run.tick(t=total(change))["out"] == given_so_far[len(given_so_far) - 1 - depth]


@given(ticks=TICKS)
def test_delays_move_together_whatever_their_order(ticks):
    """Two loops that swap what they hold: a delay that had moved early would be seen by the other."""
    b = Builder()
    stream = b.source("t", PAIR)
    one, other = b.loop(PAIR, {(7, 7): 1}), b.loop(PAIR, {(8, 8): 1})
    b.connect(one, b.union(other, stream))
    b.connect(other, one)
    b.output("one", one)
    b.output("other", other)
    run = Run(b)
    held = {(7, 7): 1}, {(8, 8): 1}
    for change in ticks:
        assert run.tick(t=total(change)) == {"one": held[0], "other": held[1]}
        held = plus(held[1], total(change)), held[0]


@given(ticks=TICKS)
def test_a_value_is_the_sum_of_its_changes_and_its_change_is_what_came(ticks):
    b = Builder()
    stream = b.source("t", PAIR)
    value = b.integrate(stream)
    b.output("value", value)
    b.output("before", b.delay(value))
    b.output("change", b.differentiate(value))
    circuit = b.circuit()
    so_far = {}
    for change in ticks:
        out = {name: contents(z) for name, z in circuit.tick({"t": total(change)}).items()}
        assert out["before"] == so_far
        so_far = plus(so_far, total(change))
        assert out["value"] == so_far
        assert out["change"] == total(change)


@given(ticks=TICKS)
def test_the_integral_of_a_change_of_a_value_is_the_value(ticks):
    b = Builder()
    value = b.value_source("v", PAIR)
    b.output("out", b.integrate(b.differentiate(value)))
    circuit = b.circuit()
    for value in ticks:
        assert contents(circuit.tick({"v": total(value)})["out"]) == total(value)


def test_n20_a_running_sum_by_integration():
    b = Builder()
    b.output("out", b.aggregate(b.source("t", PAIR), [], total=("sum", "n")))
    run = Run(b)
    seen = []
    for change in ({(10, 3): 1}, {(20, 2): 1}, {(30, 1): 1}):
        run.tick(t=change)
        seen += run.held["out"]
    assert seen == [(3,), (5,), (6,)]


def test_a_seed_of_another_schema_is_refused_before_anything_runs():
    b = Builder()
    b.output("out", b.delay(b.source("t", K), ZSet.from_rows([("a",)], "s STRING")))
    with pytest.raises(DbsparkError):
        b.circuit()


def test_the_explicit_three_terms_of_a_join_over_delayed_integrals_are_the_join():
    b = Builder()
    left, right = b.source("l", PAIR), b.source("r", "j BIGINT, m BIGINT")
    on = [("k", "j")]
    before_left, before_right = b.delay(b.integrate(left, ["k"])), b.delay(b.integrate(right, ["j"]))
    terms = [b.join(left, before_right, on), b.join(before_left, right, on)]
    both = b.differentiate(b.join(b.integrate(left), b.integrate(right), on))
    b.output("now", both)
    b.output("fused", b.join(left, right, on))
    b.output("two", b.union(*terms))
    run = Run(b)
    chance = random.Random(7)
    for _ in range(30):
        change = {
            n: total([((chance.randrange(4), chance.randrange(3)), chance.choice([1, -1, 2])) for _ in range(4)])
            for n in "lr"
        }
        out = run.tick(**change)
        deltas = joined(change["l"], change["r"], [(0, 0)])
        assert out["now"] == out["fused"] == plus(out["two"], deltas)
    assert run.held["fused"] == joined(run.given["l"], run.given["r"], [(0, 0)])


# ---------------------------------------------------------------------- all or nothing


def strict(columns):
    """Refuses the number 13."""
    if 13 in columns[1].to_pylist():
        raise RuntimeError("thirteen")
    return pc.is_valid(columns[1])


def everything(b):
    """A circuit with every sort of state; its last operator is the one that refuses."""
    stream, other = b.source("t", PAIR), b.source("o", "j BIGINT, m BIGINT")
    loop = b.loop(PAIR, [(100, 1)])
    b.output("joined", b.join(stream, other, on=[("k", "j")], how="full"))
    b.output("sums", b.aggregate(stream, ["k"], n=("count", None), s=("sum", "n"), low=("min", "n")))
    b.output("all", b.aggregate(stream, [], n=("count", None), mean=("avg", "n")))
    b.output("set", b.distinct(stream))
    b.output("first", b.top(stream, ["k"], [("n", "desc")], 2))
    b.output("except", b.combine(stream, b.delay(stream), "except all"))
    b.output("value", b.integrate(stream))
    checked = b.filter(b.union(stream, loop), strict)
    b.connect(loop, checked)
    b.output("loop", loop)
    b.output("checked", checked)
    return b


def outcome(circuit, change):
    return {name: contents(z) for name, z in circuit.tick(change).items()}


ENTRIES = entries(st.tuples(st.integers(0, 3), st.integers(-2, 2)), st.sampled_from([1, 1, 2, 3]), 5)


@given(ticks=st.lists(st.tuples(ENTRIES, ENTRIES, st.booleans()), max_size=5))
def test_a_tick_in_which_an_operator_raises_has_not_happened(ticks):
    """Beside a circuit that never sees the bad ticks: outputs, states, delays and bytes stay the same."""
    one, other = everything(Builder()).circuit(), everything(Builder()).circuit()
    for left, right, bad in ticks:
        change = {"t": total(left), "o": total(right)}
        if bad:
            before = one.tick_number, one.state_rows()
            states, held = one._states, one._delay_values
            with pytest.raises(RuntimeError, match="thirteen"):
                one.tick({**change, "t": plus(change["t"], {(0, 13): 1})})
            assert (one.tick_number, one.state_rows()) == before
            assert one._states is states
            assert one._delay_values is held
        assert outcome(one, change) == outcome(other, change)
    assert one.state_rows() == other.state_rows()


def test_a_first_tick_that_fails_leaves_the_seeds_and_the_answers_to_nothing():
    circuit = everything(Builder()).circuit()
    with pytest.raises(RuntimeError):
        circuit.tick({"t": {(1, 13): 1}})
    out = outcome(circuit, {})
    assert out["loop"] == {(100, 1): 1}
    assert out["all"] == {(0, None): 1}
    assert out["value"] == {}


def test_an_output_that_cannot_be_given_takes_the_tick_back():
    """Rows that become equal only in the output, and together weigh more than int64."""
    b = Builder()
    stream = b.source("t", PAIR)
    b.output("sums", b.aggregate(stream, [], n=("count", None)))
    b.output("out", b.project(stream, ["k"]))
    run = Run(b)
    run.tick(t={(1, 0): 1})
    before = run.circuit.tick_number, run.circuit.state_rows()
    with pytest.raises(WeightOverflowError):
        run.circuit.tick({"t": {(1, 1): 2**62 - 1, (1, 2): 2**62, (1, 3): 2**61, (2, 2): -(2**61), (2, 3): -(2**62)}})
    assert (run.circuit.tick_number, run.circuit.state_rows()) == before
    run.tick(t={(1, 1): 2})
    assert run.held == {"sums": {(3,): 1}, "out": {(1,): 3}}


def test_a_weight_beyond_int64_in_an_integral_takes_the_tick_back():
    b = Builder()
    stream = b.source("t", K)
    b.output("set", b.distinct(stream))
    b.output("n", b.aggregate(stream, ["k"], n=("count", None)))
    run = Run(b)
    run.tick(t={(1,): 2**63 - 1, (2,): 1})
    with pytest.raises(WeightOverflowError):
        run.tick(t={(1,): 1, (2,): -1})
    assert run.held["set"] == keys(1, 2)
    run.tick(t={(1,): -(2**63 - 2)})
    assert run.held == {"set": keys(1, 2), "n": {(1, 1): 1, (2, 1): 1}}
    run.retract()


# ---------------------------------------------------------------------- the same bytes


def ipc(table):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def bytes_out(circuit, changes):
    return [
        {name: ipc(z.to_arrow(weight="w").combine_chunks()) for name, z in circuit.tick(change).items()}
        for change in changes
    ]


def test_the_same_ticks_give_the_same_bytes():
    chance = random.Random(11)

    def rows():
        return [(chance.randrange(30), chance.randrange(12)) for _ in range(200)]

    changes = [{"t": rows(), "o": rows()} for _ in range(6)]
    gone = {"t": {row: -1 for c in changes for row in c["t"]}, "o": dict.fromkeys(changes[0]["o"], -1)}
    changes.append(gone)
    one = bytes_out(everything(Builder()).circuit(), changes)
    other = bytes_out(everything(Builder()).circuit(), changes)
    assert one == other


def test_the_order_of_rows_in_a_tick_does_not_matter_to_the_bytes():
    chance = random.Random(12)
    changes = [{"t": [(chance.randrange(30), chance.randrange(12)) for _ in range(300)]} for _ in range(4)]
    shuffled = [{"t": chance.sample(c["t"], len(c["t"]))} for c in changes]
    one, other = everything(Builder()).circuit(), everything(Builder()).circuit()
    assert bytes_out(one, changes) == bytes_out(other, shuffled)


def test_the_order_in_which_a_graph_was_built_does_not_matter_to_the_bytes():
    def built(names):
        b = Builder()
        streams = {n: b.source(n, PAIR) for n in names}
        made = {
            "sums": lambda: b.aggregate(streams["x"], ["k"], s=("sum", "n"), low=("min", "n")),
            "joined": lambda: b.join(streams["x"], streams["y"], on=["k"], how="full"),
        }
        for name in (names == "xy" and made) or reversed(made):
            b.output(name, made[name]())
        return b.circuit()

    chance = random.Random(13)

    def rows():
        return [(chance.randrange(9), chance.randrange(5)) for _ in range(50)]

    changes = [{"x": rows(), "y": rows()} for _ in range(4)]
    assert bytes_out(built("xy"), changes) == bytes_out(built("yx"), changes)
