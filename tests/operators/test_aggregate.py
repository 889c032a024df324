"""Aggregates: after every tick of any stream there is one row for each group that has rows, and it says what is true.

Sums are compared with exact arithmetic: of integers and decimals to the last digit, of floats rounded once.
"""

import math
import random
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar import Schema
from dbspark.columnar.chunk import CHUNK_ROWS
from dbspark.columnar.delta import Delta
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import CircuitError, DbsparkError, SchemaError, WeightOverflowError
from dbspark.operators.aggregate import Average, Count, FloatSum, GroupAggregate, Sum
from dbspark.trace.merge_state import MergeState
from dbspark.trace.spine import Spine
from dbspark.zset import ZSet
from tests.operators.model import (
    WEIGHTS,
    Run,
    aggregated,
    average_of,
    count,
    count_of,
    entries,
    float_average_of,
    float_sum_of,
    max_of,
    min_of,
    plain,
    plus,
    projected,
    sum_of,
)
from tests.storage.model import small
from tests.strategies import values

INT64 = range(-(2**63), 2**63)
KEYS = st.sampled_from([None, 0, 1, 2])


def run_of(schema, key, **aggregates):
    b = Builder()
    b.output("out", b.aggregate(b.source("t", schema), key, **aggregates))
    return Run(b)


# ---------------------------------------------------------------------- any stream

SCHEMA = "k BIGINT, f BOOLEAN, n INT, d DECIMAL(10, 2), x DOUBLE, s STRING"
FLOATS = [None, 0.0, -0.0, 0.1, 0.2, -0.1, 1e300, -1e300, 5e-324, 1.5, math.nan, math.inf, -math.inf]
ROWS = st.tuples(
    KEYS,
    st.sampled_from([None, True, False]),
    st.sampled_from([None, 0, 1, -7, 2**31 - 1, -(2**31)]),
    st.sampled_from([None, *map(Decimal, ("0.00", "0.01", "-0.01", "99999999.99", "-99999999.99"))]),
    st.sampled_from(FLOATS),
    st.sampled_from([None, "", "a", "ab", "b"]),
)
MADE = {
    "rows": (("count", None), count()),
    "n": (("count", "n"), count_of(2)),
    "sum_n": (("sum", "n"), sum_of(2)),
    "sum_d": (("sum", "d"), sum_of(3)),
    "sum_x": (("sum", "x"), float_sum_of(4)),
    "avg_n": (("avg", "n"), average_of(2)),
    "avg_d": (("avg", "d"), average_of(3, 6)),
    "avg_x": (("avg", "x"), float_average_of(4)),
    "min_n": (("min", "n"), min_of(2)),
    "max_d": (("max", "d"), max_of(3)),
    "min_x": (("min", "x"), min_of(4)),
    "max_x": (("max", "x"), max_of(4)),
    "min_s": (("min", "s"), min_of(5, text=True)),
    "max_s": (("max", "s"), max_of(5, text=True)),
    "rows_where": (Count(where=1), count(1)),
    "n_where": (Count(2, where=1), count_of(2, 1)),
    "sum_where": (Sum(2, pa.int32(), where=1), sum_of(2, 1)),
    "sum_d_where": (Sum(3, pa.decimal128(10, 2), where=1), sum_of(3, 1)),
    "sum_x_where": (FloatSum(4, where=1), float_sum_of(4, 1)),
    "avg_where": (Average(2, pa.int32(), where=1), average_of(2, where=1)),
    "avg_x_where": (Average(4, pa.float64(), where=1), float_average_of(4, 1)),
}
AGGREGATES = {name: made for name, (made, _) in MADE.items()}
MODELS = [model for _, model in MADE.values()]


@pytest.mark.parametrize("key", [("k",), ("s", "k")], ids=["one key", "two keys"])
@given(ticks=st.lists(entries(ROWS, WEIGHTS, 10), max_size=6), weak=st.sampled_from([None, None, 0, 1]))
def test_every_group_with_rows_has_one_row_that_is_true(key, ticks, weak):
    columns = [Schema.parse(SCHEMA).index(c) for c in key]
    with weakened_hash(0xFFFFFFFFFFFFFFFF if weak is None else weak):
        run = run_of(SCHEMA, key, **AGGREGATES)
        for change in ticks:
            run.tick(t=run.possible("t", change))
            assert run.held["out"] == aggregated(run.given["t"], columns, *MODELS)
        run.retract()


ADDING = [
    n for n, (made, _) in MADE.items() if n.startswith(("rows", "n", "sum_n", "sum_d", "sum_w", "avg_n", "avg_d"))
]


@pytest.mark.parametrize("key", [("k",), ("s", "k")], ids=["one key", "two keys"])
@given(
    ticks=st.lists(entries(ROWS, WEIGHTS, 10), max_size=12),
    weak=st.sampled_from([None, None, 0, 1]),
    chosen=st.sets(st.sampled_from([*ADDING, "avg_where"])),
    extreme=st.sampled_from([None, *(n for n in MADE if n.startswith(("min", "max")))]),
    stepping=st.booleans(),
)
def test_aggregates_that_only_add(key, ticks, weak, chosen, extreme, stepping):
    """Those that are folded by one kernel, none at all among them; also where merges stop in the middle of a key.

    With them one min or max.
    """
    columns = [Schema.parse(SCHEMA).index(c) for c in key]
    names = sorted(chosen if extreme is None else chosen | {extreme})
    with weakened_hash(0xFFFFFFFFFFFFFFFF if weak is None else weak):
        run = run_of(SCHEMA, key, **{n: AGGREGATES[n] for n in names})
        if stepping:
            run.circuit._states = small(run.circuit._states)
        for change in ticks:
            run.tick(t=run.possible("t", change))
            assert run.held["out"] == aggregated(run.given["t"], columns, *(MADE[n][1] for n in names))
        run.retract()


def test_groups_of_which_a_merge_has_read_a_part():
    """A merge stops between the rows of a key: what it has written and what it has left say together what holds."""
    schema, keys = Schema.parse("k BIGINT"), range(20)
    operator = GroupAggregate(schema, [0], [Count()], ["n"])
    rows = Delta.of(ZSet.from_rows([(k,) for k in keys], schema).batch())
    state = operator.initial_state()
    for _ in range(3):  # the row of every group goes and another comes
        state, _ = operator.step(state, [rows])
    oldest, *others = state[0].entries
    assert len(others) == 2
    merging = MergeState((), tuple(others), (0, 0), sum(b.rows for b in others))
    stops = 0
    while isinstance(merging, MergeState):
        _, change = operator.step((Spine(operator.accumulators, (oldest, merging)),), [rows])
        assert dict(change.items()) == {(k, n): w for k in keys for n, w in ((3, -1), (4, 1))}
        merging = merging.step(1)
        stops += 1
    assert stops > len(keys)


@pytest.mark.parametrize("last", ["avg_d", "min_n", "max_s"])
def test_folded_or_not_the_state_is_the_same(monkeypatch, last):
    """Batches of one way are read by the other: state on disk may have been written by either."""
    rng = random.Random(1)
    aggregates = {n: AGGREGATES[n] for n in ("rows", last, "sum_n")}
    folded, general = run_of(SCHEMA, ["k"], **aggregates), run_of(SCHEMA, ["k"], **aggregates)
    operator = next(n.operator for n in general.circuit._schedule if isinstance(n.operator, GroupAggregate))
    monkeypatch.setattr(operator, "kernel", None)
    assert (
        next(n.operator for n in folded.circuit._schedule if isinstance(n.operator, GroupAggregate)).kernel is not None
    )
    for _ in range(60):
        rows = [
            (rng.randrange(9), None, rng.choice([None, 1, -5]), Decimal("0.25"), None, rng.choice([None, "a", "bcd"]))
            for _ in range(20)
        ]
        change = folded.possible("t", [(row, rng.choice([1, 2, -1])) for row in rows])
        assert folded.tick(t=change) == general.tick(t=change)
        states = [
            [s.consolidated() for node in r.circuit._schedule for s in r.circuit._states[node.id]]
            for r in (folded, general)
        ]
        assert all(a.same(b) for a, b in zip(*states, strict=True))


def test_the_largest_text_of_many_groups(monkeypatch):
    """Groups that come, go, lose their largest value and get another, in many batches; all without the general way."""
    chance = random.Random(3)
    run = run_of("k BIGINT, s STRING", ["k"], n=("count", None), high=("max", "s"))
    operator = next(n.operator for n in run.circuit._schedule if isinstance(n.operator, GroupAggregate))
    monkeypatch.setattr(operator, "_accumulated", None)
    model = count(), max_of(1, text=True)
    for tick in range(20):
        texts = (None if chance.random() < 0.1 else f"text {chance.randrange(200)}" for _ in range(600))
        come = {(chance.randrange(30 * tick, 30 * tick + 400), text): 1 for text in texts}
        gone = {row: -w for row, w in run.given["t"].items() if chance.random() < 0.15}
        run.tick(t=plus(come, gone))
        assert run.held["out"] == aggregated(run.given["t"], [0], *model)
    run.retract(5)


def test_a_change_of_many_chunks_is_left_to_the_general_way():
    rows = {(n % 7, n): 1 for n in range(2 * CHUNK_ROWS)}
    run = run_of("k BIGINT, n BIGINT", ["k"], high=("max", "n"), low=("count", None))
    run.tick(t={(1, -1): 1})
    run.tick(t=rows)
    assert run.held["out"] == aggregated(run.given["t"], [0], max_of(1), count())
    run.retract()


def test_rows_that_are_less_than_none_have_values_as_well():
    """Streams may have them in between; the general way says what they are worth."""
    runs = [run_of("k BIGINT, n BIGINT", ["k"], high=("max", "n"), **more) for more in ({}, {"low": ("min", "n")})]
    for change in ({(1, 5): -1, (1, 3): 1}, {(1, 4): 1}, {(1, 5): 1, (1, 4): -1}, {(1, 3): -1, (2, 9): -1}):
        for run in runs:
            run.tick(t=change)
        assert runs[0].held["out"] == projected(runs[1].held["out"], (0, 1))
    for run in runs:
        run.retract()


@given(ticks=st.lists(entries(ROWS, WEIGHTS, 10), max_size=6))
def test_without_keys_there_is_always_one_row(ticks):
    run = run_of(SCHEMA, [], **AGGREGATES)
    run.tick()
    assert run.held["out"] == aggregated({}, [], *MODELS)
    for change in ticks:
        run.tick(t=run.possible("t", change))
        assert run.held["out"] == aggregated(run.given["t"], [], *MODELS)
    run.take_back()
    assert run.held["out"] == aggregated({}, [], *MODELS)
    assert set(run.circuit.state_rows().values()) <= {0, 1}, "more than the one accumulator is left"


@given(ticks=st.lists(entries(ROWS, WEIGHTS, 10), max_size=4))
def test_what_comes_out_is_the_change_and_not_the_whole(ticks):
    """Groups that are not touched, and results that stay the same, are not in the delta."""
    run = run_of(SCHEMA, ["k"], n=("count", None), most=("max", "n"))
    before = {}
    for change in ticks:
        delta = run.tick(t=run.possible("t", change))["out"]
        after = aggregated(run.given["t"], [0], count(), max_of(2))
        assert delta == plus(after, dict.fromkeys(before, -1))
        before = after


KEY_TYPES = [
    ("DOUBLE", [None, 0.0, -0.0, math.nan, math.inf, 1.5]),
    ("STRING", [None, "", "a", "a\0", "é" * 20]),
    ("BOOLEAN", [None, True, False]),
    ("DECIMAL(12, 3)", [None, Decimal("0.000"), Decimal("1.500")]),
    ("STRUCT<p: INT, q: STRING>", [None, (1, "a"), (1, None), (None, None)]),
    ("ARRAY<DOUBLE>", [None, (), (math.nan,), (0.0, None), (-0.0, None)]),
]


@pytest.mark.parametrize(("dtype", "pool"), KEY_TYPES, ids=[t for t, _ in KEY_TYPES])
@given(data=st.data())
def test_keys_of_any_type_group_as_values_do(dtype, pool, data):
    """NULL is a group, NaN is one group, -0.0 and 0.0 are one."""
    rows = st.tuples(st.sampled_from(pool), st.integers(-3, 3))
    run = run_of(f"k {dtype}, n BIGINT", ["k"], n=("count", None), total=("sum", "n"), low=("min", "n"))
    for change in data.draw(st.lists(entries(rows, WEIGHTS), max_size=4)):
        run.tick(t=run.possible("t", change))
        assert run.held["out"] == aggregated(run.given["t"], [0], count(), sum_of(1), min_of(1))
    run.retract()


def test_many_groups_in_many_ticks():
    chance = random.Random(1)
    run = run_of("k BIGINT, n BIGINT, x DOUBLE", ["k"], n=("count", None), s=("sum", "n"), x=("sum", "x"),
                 low=("min", "x"), high=("max", "n"))  # fmt: skip
    for _ in range(8):
        change = {(chance.randrange(900), chance.randrange(5), chance.random()): 1 for _ in range(600)}
        gone = {row: -w for row, w in run.given["t"].items() if chance.random() < 0.4}
        run.tick(t=plus(change, gone))
        expected = aggregated(run.given["t"], [0], count(), sum_of(1), float_sum_of(2), min_of(2), max_of(1))
        assert run.held["out"] == expected
    run.retract(3)


# ---------------------------------------------------------------------- types and extremes

NUMBERS = ["TINYINT", "SMALLINT", "INT", "BIGINT"]
NUMBERS += [f"DECIMAL({p}, {s})" for p, s in ((5, 2), (18, 0), (28, 28), (38, 0), (38, 10))]


def scaled(number, scale):
    return int(Fraction(number) * 10**scale)


def fits(number, dtype):
    """Whether an exact result is in the range of its type."""
    if number is None or isinstance(number, float):
        return True
    if pa.types.is_integer(dtype):
        return number in INT64
    return abs(scaled(number, dtype.scale)) < 10**dtype.precision


@pytest.mark.parametrize("ddl", NUMBERS)
@given(data=st.data())
def test_sums_and_averages_of_the_extremes_are_exact_or_refused(ddl, data):
    """A tick whose result has no place in its type raises, and is as if it had not been."""
    schema = Schema.parse(f"k BIGINT, v {ddl}")
    dtype = schema.types[1]
    rows = st.tuples(st.sampled_from([1, 2]), values(dtype))
    run = run_of(schema, ["k"], total=("sum", "v"), mean=("avg", "v"), low=("min", "v"), high=("max", "v"))
    types = next(iter(run.circuit.graph.outputs.values())).schema.types[1:3]
    scale = dtype.scale + 4 if pa.types.is_decimal(dtype) else None
    for change in data.draw(st.lists(entries(rows, WEIGHTS), max_size=4)):
        delta = run.possible("t", change)
        whole = plus(run.given["t"], delta)
        expected = aggregated(whole, [0], sum_of(1), average_of(1, scale), min_of(1), max_of(1))
        before = dict(run.held["out"]), run.circuit.tick_number, run.circuit.state_rows()
        if all(fits(v, t) for row in expected for v, t in zip(row[1:3], types, strict=True)):
            run.tick(t=delta)
            assert run.held["out"] == expected
        else:
            with pytest.raises(DbsparkError):
                run.tick(t=delta)
            assert (run.held["out"], run.circuit.tick_number, run.circuit.state_rows()) == before
    run.retract(1)  # at once: half of it might not fit


@pytest.mark.parametrize(("low", "high", "ddl"), [(-(2**63), 2**63 - 1, "BIGINT"), (-128, 127, "TINYINT")])
def test_sums_pass_beyond_the_range_on_the_way_and_come_back(low, high, ddl):
    """In one tick, or in several where the total is in range after each."""
    run = run_of(f"k BIGINT, v {ddl}", ["k"], total=("sum", "v"))
    run.tick(t={(1, high): 1000, (1, low): 1000})
    assert run.held["out"] == {(1, 1000 * (high + low)): 1}
    run.tick(t={(1, high): -999, (1, low): -999})
    assert run.held["out"] == {(1, high + low): 1}
    run.retract()


@pytest.mark.parametrize("weight", [2**31, 2**32 - 1, 2**32, 2**33 + 7, 2**62, 2**63 - 1])
@pytest.mark.parametrize("value", [1, -1, 2**31, -(2**31), 2**62 // 3])
def test_weights_of_any_size_multiply_exactly(weight, value):
    """The sum is kept to 38 digits; what does not fit the result is refused."""
    run = run_of("k BIGINT, v BIGINT", ["k"], n=("count", "v"), mean=("avg", "v"))
    run.tick(t={(1, value): weight})
    ((_, n, mean),) = run.held["out"]
    assert n == weight
    assert mean == float(value * weight) / weight
    run.retract()
    small = run_of("k BIGINT, v BIGINT", ["k"], total=("sum", "v"))
    if value * weight in INT64:
        small.tick(t={(1, value): weight})
        assert small.held["out"] == {(1, value * weight): 1}
        small.tick(t={(1, value): 1 - weight})
        assert small.held["out"] == {(1, value): 1}
        small.retract()
    else:
        with pytest.raises(DbsparkError, match="nothing was applied"):
            small.tick(t={(1, value): weight})


def test_a_sum_of_more_than_38_digits_is_refused():
    run = run_of("k BIGINT, v DECIMAL(38, 0)", ["k"], total=("sum", "v"))
    big = Decimal(6 * 10**37)
    run.tick(t={(1, big): 1})
    with pytest.raises(DbsparkError):
        run.tick(t={(1, big): 1})
    assert run.held["out"] == {(1, big): 1}
    run.tick(t={(1, -big): 1})
    assert run.held["out"] == {(1, Decimal(0)): 1}
    run.retract()


@pytest.mark.parametrize("name", ["count", "sum", "avg"])
@pytest.mark.parametrize("ddl", ["BIGINT", "DOUBLE"])
def test_a_count_beyond_int64_is_an_error_and_nothing_was_applied(name, ddl):
    run = run_of(f"k BIGINT, i BIGINT, v {ddl}", ["k"], out=(name, "v"))
    run.tick(t={(1, 0, 0): 2**62, (2, 5, 1): 1})
    before = dict(run.held["out"])
    with pytest.raises(WeightOverflowError):
        run.tick(t={(1, 1, 0): 2**62, (1, 2, 0): 2**62})
    with pytest.raises(WeightOverflowError):
        run.tick(t={(1, i, 0): 2**62 for i in range(1, 4)})  # wraps around to exactly nothing
    assert run.held["out"] == before
    run.tick(t={(2, 5, 1): -1})
    run.retract()


def test_an_error_in_one_aggregate_leaves_the_others_and_the_rest_of_the_circuit_as_they_were():
    b = Builder()
    stream = b.source("t", "k BIGINT, v BIGINT")
    b.output("sums", b.aggregate(stream, ["k"], total=("sum", "v"), low=("min", "v")))
    b.output("rows", stream)
    b.output("all", b.aggregate(stream, [], n=("count", None)))
    run = Run(b)
    top = 2**63 - 1
    run.tick(t={(1, top): 1, (2, 5): 2})
    before = {name: dict(rows) for name, rows in run.held.items()}, run.circuit.state_rows()
    with pytest.raises(DbsparkError, match="nothing was applied"):
        run.tick(t={(1, top): 1, (2, 5): -1, (3, 1): 1})
    assert (run.held, run.circuit.state_rows()) == before
    run.tick(t={(1, top): -1, (1, 3): 1})
    assert run.held["sums"] == {(1, 3, 3): 1, (2, 10, 5): 1}
    assert run.held["all"] == {(3,): 1}


# ---------------------------------------------------------------------- floats


@pytest.mark.parametrize("ddl", ["DOUBLE", "FLOAT"])
@given(data=st.data())
def test_float_sums_are_the_exact_sums_rounded_once(ddl, data):
    schema = Schema.parse(f"k BIGINT, x {ddl}")
    rows = st.tuples(st.sampled_from([1, 2]), values(schema.types[1]))
    weights = st.sampled_from([1, 1, 2, -1, -1, 3, 10**12, 2**62])
    run = run_of(schema, ["k"], total=("sum", "x"), mean=("avg", "x"), low=("min", "x"), high=("max", "x"))
    for change in data.draw(st.lists(entries(rows, weights, 6), max_size=4)):
        delta = run.possible("t", change)
        if any(n >= 2**63 for *_, n in aggregated(plus(run.given["t"], delta), [0], count())):
            continue
        run.tick(t=delta)
        models = float_sum_of(1), float_average_of(1), min_of(1), max_of(1)
        assert run.held["out"] == aggregated(run.given["t"], [0], *models)
    run.retract()


def test_what_comes_and_goes_leaves_no_residue():
    run = run_of("k BIGINT, x DOUBLE", ["k"], total=("sum", "x"))
    run.tick(t={(1, 0.1): 1})
    run.tick(t={(1, 1e300): 1})
    assert run.held["out"] == {(1, 1e300): 1}
    run.tick(t={(1, -1e300): 1})
    assert run.held["out"] == {(1, 0.1): 1}
    run.tick(t={(1, 1e300): -1, (1, -1e300): -1})
    assert run.held["out"] == {(1, 0.1): 1}
    run.tick(t={(1, 0.1): -1})
    run.check_empty()


def test_a_nan_or_an_infinity_goes_as_it_came():
    run = run_of("k BIGINT, x DOUBLE", ["k"], total=("sum", "x"), mean=("avg", "x"))

    def held():
        return {plain(row) for row in run.held["out"]}

    run.tick(t={(1, 2.5): 1})
    run.tick(t={(1, math.inf): 2})
    assert held() == {(1, math.inf, math.inf)}
    run.tick(t={(1, -math.inf): 1})
    assert held() == {(1, "NaN", "NaN")}
    run.tick(t={(1, math.inf): -2})
    assert held() == {(1, -math.inf, -math.inf)}
    run.tick(t={(1, math.nan): 1, (1, -math.inf): -1})
    assert held() == {(1, "NaN", "NaN")}
    run.tick(t={(1, math.nan): -1})
    assert held() == {(1, 2.5, 2.5)}
    run.retract()


def test_sums_do_not_depend_on_the_order_in_which_rows_come():
    chance = random.Random(3)
    numbers = [chance.uniform(-1, 1) * 10.0 ** chance.randrange(-300, 300) for _ in range(400)]
    seen = set()
    for _ in range(3):
        chance.shuffle(numbers)
        run = run_of("k BIGINT, i BIGINT, x DOUBLE", ["k"], total=("sum", "x"))
        for at in range(0, len(numbers), 57):
            run.tick(t={(1, i, x): 1 for i, x in enumerate(numbers[at : at + 57], at)})
        seen |= set(run.held["out"])
    assert seen == {(1, float(sum(map(Fraction, numbers))))}


def test_sums_that_need_hundreds_of_limbs_are_kept_whole():
    """2^1000 + 2^-1000 is neither: only when the first is gone does the second show."""
    run = run_of("k BIGINT, x DOUBLE", ["k"], total=("sum", "x"))
    run.tick(t={(k, x): 1 for k in range(50) for x in (2.0**1000, 2.0**-1000, -(2.0**500))})
    assert run.held["out"] == {(k, 2.0**1000): 1 for k in range(50)}
    run.tick(t={(k, 2.0**1000): -1 for k in range(50)})
    assert run.held["out"] == {(k, -(2.0**500)): 1 for k in range(50)}
    run.tick(t={(k, -(2.0**500)): -1 for k in range(50)})
    assert run.held["out"] == {(k, 2.0**-1000): 1 for k in range(50)}
    run.retract()


def test_a_sum_beyond_the_largest_float_is_infinite_and_comes_back():
    top = math.ldexp(1 - 2**-53, 1024)
    run = run_of("k BIGINT, x DOUBLE", ["k"], total=("sum", "x"))
    run.tick(t={(1, top): 2})
    assert run.held["out"] == {(1, math.inf): 1}
    run.tick(t={(1, -top): 3})
    assert run.held["out"] == {(1, -top): 1}
    run.tick(t={(1, -top): 2})
    assert run.held["out"] == {(1, -math.inf): 1}
    run.retract()


# ---------------------------------------------------------------------- known answers


def test_g10_sums_and_counts():
    run = run_of("g STRING, v BIGINT", ["g"], total=("sum", "v"), some=("count", "v"), rows=("count", None))
    run.tick(t={("A", 2): 1, ("A", 4): 1, ("B", 3): 1, ("C", None): 2})
    assert run.held["out"] == {("A", 6, 2, 2): 1, ("B", 3, 1, 1): 1, ("C", None, 0, 2): 1}
    assert run.tick(t={("A", 2): -1})["out"] == {("A", 6, 2, 2): -1, ("A", 4, 1, 1): 1}
    assert run.tick(t={("B", 3): -1})["out"] == {("B", 3, 1, 1): -1}, "a group goes with its last row"


def test_g11_averages_and_minima_follow_deletes():
    run = run_of("g STRING, v BIGINT", ["g"], mean=("avg", "v"), low=("min", "v"))
    run.tick(t={("a", 10): 1, ("a", 20): 1, ("a", 30): 1})
    assert run.held["out"] == {("a", 20.0, 10): 1}
    run.tick(t={("a", 10): -1})
    assert run.held["out"] == {("a", 25.0, 20): 1}


def test_g12_what_comes_and_goes_in_one_tick_is_nothing():
    run = run_of("g STRING, v BIGINT", ["g"], total=("sum", "v"), low=("min", "v"))
    table = pa.table({"g": ["a", "a"], "v": [1, 1]})
    b = Builder()
    stream = b.source("t", "g STRING, v BIGINT")
    b.output("out", b.aggregate(b.difference(stream, stream), ["g"], total=("sum", "v"), n=("count", None)))
    same = Run(b)
    assert same.circuit.tick({"t": table})["out"].count == 0
    assert not any(same.circuit.state_rows().values())
    run.tick(t={("a", 5): 1})
    assert run.tick(t={("a", 5): 0})["out"] == {}


def test_g14_a_minimum_with_copies_stays_until_the_last_copy_goes():
    run = run_of("g STRING, v BIGINT", ["g"], low=("min", "v"), high=("max", "v"))
    run.tick(t={("a", 10): 2, ("a", 20): 1, ("b", 1): 1})
    assert run.tick(t={("a", 10): -1})["out"] == {}
    assert run.tick(t={("a", 10): -1})["out"] == {("a", 10, 20): -1, ("a", 20, 20): 1}
    assert run.tick(t={("a", 20): -1, ("a", None): 1})["out"] == {("a", 20, 20): -1, ("a", None, None): 1}
    assert run.tick(t={("a", None): -1})["out"] == {("a", None, None): -1}


def test_a_group_that_empties_and_fills_again_begins_anew():
    run = run_of("g STRING, v BIGINT, x DOUBLE", ["g"], total=("sum", "v"), x=("sum", "x"), low=("min", "v"))
    for i in range(20):
        run.tick(t={("a", i, i / 10): 1})
        assert run.held["out"] == {("a", i, i / 10, i): 1}
        run.tick(t={("a", i, i / 10): -1})
        run.check_empty()


# ---------------------------------------------------------------------- streams that go below zero

BELOW = st.sampled_from([1, -1, 2, -2])


@given(ticks=st.lists(entries(st.tuples(KEYS, st.integers(-3, 3)), BELOW), max_size=6))
def test_sums_and_counts_are_linear_while_weights_are_below_zero(ticks):
    """A stream between operators may hold any weight: what is owed now is paid later, and the sum is right again."""
    run = run_of("k BIGINT, v BIGINT", ["k"], n=("count", None), total=("sum", "v"), x=Average(1, pa.int64()))
    for change in ticks:
        run.tick(t=plus(*({row: w} for row, w in change)))
    gone = {row: -w for row, w in run.given["t"].items() if w < 0}
    run.tick(t=gone)
    assert run.held["out"] == aggregated(run.given["t"], [0], count(), sum_of(1), average_of(1))
    run.retract()


# ---------------------------------------------------------------------- building


def test_an_aggregate_that_does_not_exist_is_refused_and_the_known_ones_are_named():
    b = Builder()
    stream = b.source("t", "k BIGINT, s STRING")
    with pytest.raises(CircuitError, match=r"quantum.*count, sum, avg, min, max"):
        b.aggregate(stream, ["k"], x=("quantum", "k"))
    with pytest.raises(CircuitError, match="needs a column"):
        b.aggregate(stream, ["k"], x=("sum", None))
    with pytest.raises(SchemaError, match="no column 'z'"):
        b.aggregate(stream, ["k"], x=("sum", "z"))
    with pytest.raises(SchemaError, match="string"):
        b.aggregate(stream, ["k"], x=("sum", "s"))


def test_result_types_are_those_of_spark():
    b = Builder()
    stream = b.source("t", "i INT, n BIGINT, d DECIMAL(10, 2), h DECIMAL(38, 20), x FLOAT")
    out = b.aggregate(
        stream, [], c=("count", "i"), si=("sum", "i"), sd=("sum", "d"), sh=("sum", "h"), sx=("sum", "x"),
        ai=("avg", "i"), ad=("avg", "d"), mi=("min", "i"), mx=("max", "x"),
    )  # fmt: skip
    assert [str(t) for t in out.schema.types] == [
        "int64", "int64", "decimal128(20, 2)", "decimal128(38, 20)", "double",
        "double", "decimal128(14, 6)", "int32", "float",
    ]  # fmt: skip


def test_an_aggregate_behind_a_join_and_in_front_of_one():
    """Streams that are not consolidated: the same row may come twice in a delta."""
    b = Builder()
    left, right = b.source("l", "k BIGINT, a BIGINT"), b.source("r", "k BIGINT, b BIGINT")
    sums = b.aggregate(b.join(left, right, on=["k"]), ["k"], n=("count", None), low=("min", "a"))
    b.output("out", b.join(sums, left, on=["k"], how="left"))
    run = Run(b)
    run.tick(l={(1, 5): 2, (1, 6): 1}, r={(1, 0): 3})
    assert projected(run.held["out"], (0, 1, 2, 3)) == {(1, 9, 5, 5): 2, (1, 9, 5, 6): 1}
    run.tick(l={(1, 5): -2}, r={(1, 0): -1, (1, 9): 1})
    assert projected(run.held["out"], (0, 1, 2, 3)) == {(1, 3, 6, 6): 1}
    run.retract()
