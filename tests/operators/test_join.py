"""Joins: after every tick of any stream, what has come out is the join of what has gone in."""

import datetime
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import CircuitError, SchemaError, WeightOverflowError
from dbspark.operators import join as join_module
from tests.operators.model import (
    ANY_WEIGHTS,
    WEIGHTS,
    Run,
    aggregated,
    average_of,
    count,
    count_of,
    entries,
    joined,
    max_of,
    min_of,
    plus,
    projected,
    sum_of,
)

HOWS = ("inner", "left", "right", "full", "semi", "anti", "existence")
OUTER = ("left", "right", "full")
LEFT, RIGHT = "k BIGINT, a STRING", "j BIGINT, b BIGINT"
ON = [("k", "j")]

KEYS = st.sampled_from([None, 0, 1, 1, 2, 3])
LEFT_ROWS = st.tuples(KEYS, st.sampled_from([None, "", "x", "yy"]))
RIGHT_ROWS = st.tuples(KEYS, st.sampled_from([None, -1, 0, 1, 2]))
TICKS = st.lists(st.tuples(entries(LEFT_ROWS, WEIGHTS), entries(RIGHT_ROWS, WEIGHTS)), max_size=6)


def condition(columns):
    """b > length of a; NULL where one of them is."""
    return pc.greater(columns[3], pc.cast(pc.utf8_length(columns[1]), pa.int64()))


def condition_of(row):
    return None if row[1] is None or row[3] is None else row[3] > len(row[1])


def circuit(how, null_safe=False, where=None, on=ON, left=LEFT, right=RIGHT, **more):
    b = Builder()
    streams = b.source("l", left), b.source("r", right)
    b.output("out", b.join(*streams, on=on, how=how, null_safe=null_safe, where=where, **more))
    return Run(b)


# ---------------------------------------------------------------------- any stream


@pytest.mark.parametrize("how", HOWS)
@given(ticks=TICKS, null_safe=st.booleans(), weak=st.sampled_from([None, 0, 1]))
def test_the_sum_of_what_comes_out_is_the_join_of_what_went_in(how, ticks, null_safe, weak):
    """With and without a residual condition, over the same two arrangements; with hashes that collide as well."""
    with weakened_hash(0xFFFFFFFFFFFFFFFF if weak is None else weak):
        b = Builder()
        streams = b.source("l", LEFT), b.source("r", RIGHT)
        b.output("plain", b.join(*streams, on=ON, how=how, null_safe=null_safe))
        b.output("judged", b.join(*streams, on=ON, how=how, null_safe=null_safe, where=condition))
        run = Run(b)
        for left, right in ticks:
            run.tick(l=run.possible("l", left), r=run.possible("r", right))
            whole = run.given["l"], run.given["r"], [(0, 0)], how
            assert run.held["plain"] == joined(*whole, None, null_safe)
            assert run.held["judged"] == joined(*whole, condition_of, null_safe)
        run.retract()


@given(how=st.sampled_from(HOWS), data=st.data())
def test_several_key_columns_match_only_together(how, data):
    left, right = "k BIGINT, s STRING, a DOUBLE", "t STRING, b BOOLEAN, j BIGINT"
    numbers, texts = st.sampled_from([None, 1, 2]), st.sampled_from([None, "", "x"])
    left_rows = st.tuples(numbers, texts, st.sampled_from([0.0, float("nan"), 1.5]))
    right_rows = st.tuples(texts, st.sampled_from([None, True]), numbers)
    null_safe = data.draw(st.booleans())
    b = Builder()
    streams = b.source("l", left), b.source("r", right)
    b.output("out", b.join(*streams, on=[("k", "j"), ("s", "t")], how=how, null_safe=null_safe))
    run = Run(b)
    for _ in range(data.draw(st.integers(1, 4))):
        change = {n: data.draw(entries(rows, WEIGHTS)) for n, rows in (("l", left_rows), ("r", right_rows))}
        run.tick(**{n: run.possible(n, c) for n, c in change.items()})
        expected = joined(run.given["l"], run.given["r"], [(0, 2), (1, 0)], how, None, null_safe, (3, 3))
        assert run.held["out"] == expected
    run.retract()


@given(
    ticks=st.lists(st.tuples(entries(LEFT_ROWS, ANY_WEIGHTS), entries(RIGHT_ROWS, ANY_WEIGHTS)), max_size=6),
    judged=st.booleans(),
    null_safe=st.booleans(),
)
def test_an_inner_join_is_bilinear_in_weights_of_any_sign(ticks, judged, null_safe):
    run = circuit("inner", null_safe, condition if judged else None)
    for left, right in ticks:
        run.tick(l=plus(*({row: w} for row, w in left)), r=plus(*({row: w} for row, w in right)))
        where = condition_of if judged else None
        assert run.held["out"] == joined(run.given["l"], run.given["r"], [(0, 0)], "inner", where, null_safe)
    run.retract()


@contextmanager
def slices(pairs, many):
    """Joins that make so few pairs at once, and hand them on part by part from so many times as many on."""
    before = join_module.MAX_PAIRS, join_module.CHUNKED_RESULT_FACTOR
    join_module.MAX_PAIRS, join_module.CHUNKED_RESULT_FACTOR = pairs, many
    try:
        yield
    finally:
        join_module.MAX_PAIRS, join_module.CHUNKED_RESULT_FACTOR = before


@given(how=st.sampled_from(HOWS), ticks=TICKS, pairs=st.integers(1, 9), many=st.integers(0, 2))
def test_slices_of_a_few_pairs_give_the_same_join(how, ticks, pairs, many):
    with slices(pairs, many):
        b = Builder()
        streams = b.source("l", LEFT), b.source("r", RIGHT)
        b.output("plain", b.join(*streams, on=ON, how=how))
        b.output("judged", b.join(*streams, on=ON, how=how, where=condition))
        run = Run(b)
        for left, right in ticks[:3]:
            run.tick(l=run.possible("l", left), r=run.possible("r", right))
            whole = run.given["l"], run.given["r"], [(0, 0)], how
            assert run.held["plain"] == joined(*whole)
            assert run.held["judged"] == joined(*whole, condition_of)
        run.retract()


@given(how=st.sampled_from(["inner", "left", "full"]), ticks=TICKS, pairs=st.integers(1, 4), many=st.integers(0, 1))
def test_operators_behind_a_join_that_comes_in_parts_see_the_whole(how, ticks, pairs, many):
    with slices(pairs, many):
        b = Builder()
        left, right = b.source("l", LEFT), b.source("r", RIGHT)
        out = b.join(left, right, on=ON, how=how)
        b.output("out", out)
        b.output("twice", b.union(out, b.negate(b.scale(out, 3)), b.filter(out, lambda c: pc.is_null(c[3]))))
        b.output("groups", b.aggregate(out, ["a"], n=("count", None), total=("sum", "b"), low=("min", "b")))
        b.output("all", b.aggregate(out, [], n=("count", "b"), mean=("avg", "b"), high=("max", "a")))
        b.output("set", b.distinct(b.project(out, ["a", "b"])))
        b.output("first", b.top(out, ["k"], ["b", "a", "j"], 2))
        b.output("again", b.join(b.project(out, ["k", "b"], ["x", "y"]), right, on=[("y", "j")], how="semi"))
        run = Run(b)
        for one, other in ticks:
            run.tick(l=run.possible("l", one), r=run.possible("r", other))
            whole = joined(run.given["l"], run.given["r"], [(0, 0)], how)
            assert run.held["out"] == whole
            lonely = {row: w for row, w in whole.items() if row[3] is None}
            assert run.held["twice"] == plus({row: -2 * w for row, w in whole.items()}, lonely)
            assert run.held["groups"] == aggregated(whole, [1], count(), sum_of(3), min_of(3))
            assert run.held["all"] == aggregated(whole, [], count_of(3), average_of(3), max_of(1, text=True))
            pairs_of = projected(whole, (1, 3))
            assert run.held["set"] == dict.fromkeys(pairs_of, 1)
            assert run.held["again"] == joined(projected(whole, (0, 3)), run.given["r"], [(1, 0)], "semi")
        run.take_back()
        assert not any(rows for name, rows in run.held.items() if name != "all")


@given(how=st.sampled_from(HOWS), ticks=st.lists(entries(st.tuples(KEYS, KEYS), WEIGHTS), max_size=5))
def test_a_stream_joins_with_itself(how, ticks):
    """dL ⋈ dL is counted once, whichever side it is taken for."""
    b = Builder()
    stream = b.source("s", "x BIGINT, y BIGINT")
    b.output("same", b.join(stream, stream, on=[("x", "x")], how=how))
    b.output("steps", b.join(stream, stream, on=[("y", "x")], how=how))
    run = Run(b)
    for change in ticks:
        run.tick(s=run.possible("s", change))
        rows = run.given["s"]
        same = joined(rows, rows, [(0, 0)], how)
        assert run.held["same"] == (projected(same, (0, 1, 3)) if how in ("inner", "left") else same)
        assert run.held["steps"] == joined(rows, rows, [(1, 0)], how)
    run.retract()


@given(
    how=st.sampled_from(HOWS),
    ticks=st.lists(st.tuples(entries(LEFT_ROWS, WEIGHTS, 4), entries(RIGHT_ROWS, WEIGHTS, 4)), max_size=4),
)
def test_without_keys_every_row_meets_every_row(how, ticks):
    """The cross join, and with a condition the join on any condition."""
    b = Builder()
    streams = b.source("l", LEFT), b.source("r", RIGHT)
    b.output("plain", b.join(*streams, on=[], how=how))
    b.output("judged", b.join(*streams, on=[], how=how, where=condition))
    run = Run(b)
    for left, right in ticks:
        run.tick(l=run.possible("l", left), r=run.possible("r", right))
        whole = run.given["l"], run.given["r"], [], how
        assert run.held["plain"] == joined(*whole)
        assert run.held["judged"] == joined(*whole, condition_of)
    run.retract()


@pytest.mark.parametrize("how", HOWS)
def test_many_rows_in_many_ticks(how):
    """Enough for spines of several levels, with merges in progress."""
    run = circuit(how)
    for tick in range(12):
        left = {(i * 7 % 501, str(i % 11)): 1 for i in range(tick * 97, tick * 97 + 400)}
        right = {(i * 5 % 603, i % 3): 2 for i in range(tick * 55, tick * 55 + 300)}
        gone = dict(list(run.given["l"].items())[::3])
        run.tick(l=plus(left, {row: -w for row, w in gone.items()}), r=right)
    by_key = {}
    for row, weight in run.given["r"].items():
        by_key.setdefault(row[0], {})[row] = weight
    expected = {}
    for row, weight in run.given["l"].items():  # the model by key, as all pairs would be too many
        for key, w in joined(
            {row: weight}, by_key.get(row[0], {}), [(0, 0)], how if how != "right" else "inner"
        ).items():
            if how != "full" or key[0] is not None:
                expected[key] = expected.get(key, 0) + w
    if how in ("right", "full"):
        known = {row[0] for row in run.given["l"]}
        for row, weight in run.given["r"].items():
            if row[0] not in known:
                expected[(None, None, *row)] = weight
    assert run.held["out"] == expected
    run.retract(3)


# ---------------------------------------------------------------------- types of keys and columns

TYPED = [
    ("DOUBLE", [0.0, -0.0, float("nan"), float("inf"), 1.5, None]),
    ("FLOAT", [0.0, -0.0, float("nan"), 0.25, None]),
    ("STRING", ["", "a", "a\0", "a" * 40, None]),
    ("DECIMAL(20, 2)", [0, 1, -1, 10**15, None]),
    ("DATE", [0, 1, -1, None]),
    ("BOOLEAN", [True, False, None]),
    ("BINARY", [b"", b"\0", b"\xff" * 33, None]),
    ("STRUCT<x: INT, y: STRING>", [(1, "a"), (1, None), (None, None), None]),
    ("ARRAY<INT>", [(), (1,), (1, None), (None,), None]),
    ("TINYINT", [-128, 127, 0, None]),
]


@pytest.mark.parametrize(("dtype", "pool"), TYPED, ids=[t for t, _ in TYPED])
@pytest.mark.parametrize("how", ["inner", "full", "anti"])
def test_keys_of_any_type_match_as_values_do(how, dtype, pool):
    """NaN is NaN, -0.0 is 0.0; a NULL inside a value is no NULL key."""
    if dtype == "DATE":
        pool = [None if v is None else datetime.date(2020, 1, 1) + datetime.timedelta(v) for v in pool]
    if dtype.startswith("DECIMAL"):
        pool = [None if v is None else Decimal(v).scaleb(-2) for v in pool]
    for null_safe in (False, True):
        run = circuit(how, null_safe, left=f"k {dtype}, a BIGINT", right=f"j {dtype}, b BIGINT")
        for step in range(3):
            left = {(v, i): 1 for i, v in enumerate(pool) if (i + step) % 3}
            right = {(v, i): 2 for i, v in enumerate(pool) if (i + step) % 2}
            run.tick(l=left, r=right)
            expected = joined(run.given["l"], run.given["r"], [(0, 0)], how, None, null_safe)
            assert run.held["out"] == expected
        run.retract()


def test_keys_of_different_types_are_refused_when_the_join_is_built():
    b = Builder()
    left, right = b.source("l", "k BIGINT"), b.source("r", "j INT")
    with pytest.raises(SchemaError, match="same types"):
        b.join(left, right, on=[("k", "j")])


def test_a_key_that_does_not_exist_is_refused_and_the_known_columns_are_named():
    b = Builder()
    left, right = b.source("l", LEFT), b.source("r", RIGHT)
    with pytest.raises(SchemaError, match=r"'nope'.*k, a"):
        b.join(left, right, on=[("nope", "j")])


def test_an_arranged_stream_cannot_be_joined_as_if_it_were_a_delta():
    b = Builder()
    left, right = b.source("l", LEFT), b.source("r", RIGHT)
    with pytest.raises(CircuitError, match="arranged"):
        b.join(b.arrange(left, ["k"]), right, on=[("k", "j")])


# ---------------------------------------------------------------------- which columns come out


def test_a_key_of_one_name_comes_out_once_in_inner_and_left_joins():
    for how, names in (
        ("inner", ("k", "a", "b")),
        ("left", ("k", "a", "b")),
        ("right", ("k", "a", "k_right", "b")),
        ("full", ("k", "a", "k_right", "b")),
        ("semi", ("k", "a")),
        ("anti", ("k", "a")),
        ("existence", ("k", "a", "exists")),
    ):
        b = Builder()
        out = b.join(b.source("l", "k BIGINT, a STRING"), b.source("r", "k BIGINT, b BIGINT"), on=["k"], how=how)
        assert out.schema.names == names


def test_columns_of_the_side_without_partner_can_be_null():
    for how, nullable in (("inner", (0, 0)), ("left", (0, 1)), ("right", (1, 0)), ("full", (1, 1))):
        b = Builder()
        streams = b.source("l", "k BIGINT NOT NULL"), b.source("r", "j BIGINT NOT NULL")
        out = b.join(*streams, on=ON, how=how)
        assert tuple(int(f.nullable) for f in out.schema.arrow) == nullable


@given(ticks=TICKS, how=st.sampled_from(HOWS[:4]))
def test_selected_columns_come_out_in_the_order_asked_for_and_sum_up(ticks, how):
    chosen = [(1, "b"), (0, "k")]
    run = circuit(how, select=chosen, names=["first", "second"], where=condition)
    assert next(iter(run.circuit.graph.outputs.values())).schema.names == ("first", "second")
    for left, right in ticks:
        run.tick(l=run.possible("l", left), r=run.possible("r", right))
        whole = joined(run.given["l"], run.given["r"], [(0, 0)], how, condition_of)
        assert run.held["out"] == projected(whole, (3, 0))
    run.retract()


@given(ticks=TICKS, how=st.sampled_from(["semi", "anti", "existence"]))
def test_columns_can_be_selected_from_joins_that_give_one_side(ticks, how):
    run = circuit(how, select=[(0, "a")])
    for left, right in ticks:
        run.tick(l=run.possible("l", left), r=run.possible("r", right))
        whole = joined(run.given["l"], run.given["r"], [(0, 0)], how)
        assert run.held["out"] == projected(whole, (1, 2) if how == "existence" else (1,))
    run.retract()


# ---------------------------------------------------------------------- known answers


def ticked(how, *ticks, left="k BIGINT, a STRING", right="k BIGINT, b DOUBLE", **more):
    """The delta of every tick."""
    run = circuit(how, on=["k"], left=left, right=right, **more)
    return [run.tick(l=one, r=other)["out"] for one, other in ticks]


def ones(*rows):
    return dict.fromkeys(rows, 1)


def test_n10_a_left_join_keeps_rows_without_partner():
    left, right = ones((1, "a"), (2, "b"), (3, "c")), ones((1, 1.0), (2, 2.0))
    assert ticked("left", (left, right)) == [ones((1, "a", 1.0), (2, "b", 2.0), (3, "c", None))]


def test_n11_a_right_join_is_its_mirror():
    left, right = ones((1, "a"), (2, "b")), ones((1, 1.0), (2, 2.0), (3, 3.0))
    assert ticked("right", (left, right)) == [ones((1, "a", 1, 1.0), (2, "b", 2, 2.0), (None, None, 3, 3.0))]


def test_n12_a_full_join_keeps_rows_of_both_sides():
    left, right = ones((1, "a"), (2, "b"), (4, "d")), ones((1, 1.0), (3, 3.0), (4, 4.0))
    expected = ones((1, "a", 1, 1.0), (2, "b", None, None), (None, None, 3, 3.0), (4, "d", 4, 4.0))
    assert ticked("full", (left, right)) == [expected]


def test_n13_semi_and_anti_joins_part_the_left_side():
    left, right = ones((1, "a"), (2, "b"), (3, "c")), ones((1, 0.0), (3, 0.0), (4, 0.0))
    assert ticked("semi", (left, right)) == [ones((1, "a"), (3, "c"))]
    assert ticked("anti", (left, right)) == [ones((2, "b"))]


def test_n14_a_new_key_on_the_right_takes_a_row_out_of_the_anti_join():
    left, right = ones((1, "a"), (2, "b"), (3, "c")), ones((1, 0.0), (3, 0.0), (4, 0.0))
    assert ticked("anti", (left, right), ({}, ones((2, 0.0))))[1] == {(2, "b"): -1}


def test_n15_weights_of_a_cross_join_multiply():
    b = Builder()
    b.output("out", b.join(b.source("l", "x STRING"), b.source("r", "y BIGINT"), on=[]))
    out = Run(b).tick(l={("a",): 2, ("b",): 3}, r={(1,): 1, (2,): 2})["out"]
    assert out == {("a", 1): 2, ("a", 2): 4, ("b", 1): 3, ("b", 2): 6}


def test_n16_the_first_partner_takes_back_the_row_with_nulls():
    first = ones((1, "a"), (2, "b")), ones((1, 1.0))
    second = ones((3, "c")), ones((2, 2.0))
    assert ticked("left", first, second)[1] == {(3, "c", None): 1, (2, "b", 2.0): 1, (2, "b", None): -1}


@pytest.mark.parametrize("how", OUTER)
@pytest.mark.parametrize("where", [None, condition])
def test_the_row_with_nulls_goes_with_the_first_partner_and_comes_back_after_the_last(how, where):
    run = circuit(how, where=where)
    mine, theirs = ("l", "r") if how != "right" else ("r", "l")
    row, partners = ((1, "x"), [(1, 5), (1, 7)]) if how != "right" else ((1, 9), [(1, "x"), (1, "yy")])
    lonely = (*row, None, None) if how != "right" else (None, None, *row)
    pairs = [(*row, *p) if how != "right" else (*p, *row) for p in partners]
    assert run.tick(**{mine: {row: 3}})["out"] == {lonely: 3}
    assert run.tick(**{theirs: {partners[0]: 2}})["out"] == {lonely: -3, pairs[0]: 6}
    assert run.tick(**{theirs: {partners[1]: 1}})["out"] == {pairs[1]: 3}
    assert run.tick(**{theirs: {partners[0]: -1}})["out"] == {pairs[0]: -3}
    assert run.tick(**{theirs: {partners[0]: -1}})["out"] == {pairs[0]: -3}
    assert run.tick(**{theirs: {partners[1]: -1}})["out"] == {pairs[1]: -3, lonely: 3}
    assert run.tick(**{mine: {row: -3}})["out"] == {lonely: -3}
    run.check_empty()


def test_a_partner_that_the_condition_rejects_is_no_partner():
    run = circuit("left", where=condition)
    assert run.tick(l={(1, "xxx"): 1}, r={(1, 2): 1})["out"] == {(1, "xxx", None, None): 1}
    assert run.tick(r={(1, 4): 1})["out"] == {(1, "xxx", None, None): -1, (1, "xxx", 1, 4): 1}
    assert run.tick(r={(1, 2): -1})["out"] == {}
    assert run.tick(r={(1, 4): -1, (1, 3): 1})["out"] == {(1, "xxx", 1, 4): -1, (1, "xxx", None, None): 1}


def test_a_partner_replaced_within_a_tick_leaves_semi_and_anti_joins_alone():
    for how in ("semi", "anti"):
        run = circuit(how)
        run.tick(l={(1, "a"): 2}, r={(1, 5): 1})
        assert run.tick(r={(1, 5): -1, (1, 6): 1})["out"] == {}


def test_an_existence_join_says_for_every_row_whether_it_has_a_partner():
    run = circuit("existence")
    assert run.tick(l={(1, "a"): 2, (None, "b"): 1})["out"] == {(1, "a", False): 2, (None, "b", False): 1}
    assert run.tick(r={(1, 5): 1, (None, 5): 1})["out"] == {(1, "a", False): -2, (1, "a", True): 2}
    assert run.tick(l={(1, "c"): 1})["out"] == {(1, "c", True): 1}
    assert run.tick(r={(1, 5): -1})["out"] == {
        (1, "a", True): -2, (1, "a", False): 2, (1, "c", True): -1, (1, "c", False): 1,
    }  # fmt: skip


PAIR = {"left": "k STRING, x BIGINT", "right": "k STRING, y BIGINT"}


def test_g01_weights_multiply_and_both_deltas_meet_once():
    out = ticked(
        "inner",
        ({("a", 1): 2}, {}),
        ({}, {("a", 10): 3}),
        ({("a", 1): -1}, {}),
        ({("a", 2): 1}, {("a", 20): 1}),
        ({}, {("a", 10): -1}),
        **PAIR,
    )
    assert [projected(delta, (1, 2)) for delta in out] == [
        {},
        {(1, 10): 6},
        {(1, 10): -3},
        {(2, 10): 3, (1, 20): 1, (2, 20): 1},
        {(1, 10): -1, (2, 10): -1},
    ]


def test_g02_null_keys_never_join_and_do_not_stay_in_the_way():
    out = ticked(
        "inner",
        ({(None, 1): 1}, {(None, 10): 1}),
        ({("a", 1): 1}, {("a", 10): 1}),
        ({(None, 1): -1}, {(None, 10): -1}),
        **PAIR,
    )
    assert out == [{}, {("a", 1, 10): 1}, {}]


def test_g06_two_copies_times_three_copies_are_six():
    assert ticked("inner", ({("a", 1): 2}, {("a", 10): 3}), **PAIR) == [{("a", 1, 10): 6}]


def test_g07_deltas_follow_every_insert_and_delete():
    run = circuit("inner", on=["k"], **PAIR)
    assert run.tick(l={("a", 1): 1}, r={("a", 10): 1})["out"] == {("a", 1, 10): 1}
    assert run.tick(l={("a", 2): 1})["out"] == {("a", 2, 10): 1}
    assert run.tick(r={("a", 20): 1})["out"] == {("a", 1, 20): 1, ("a", 2, 20): 1}
    assert run.tick(l={("a", 1): -1})["out"] == {("a", 1, 10): -1, ("a", 1, 20): -1}


def test_g07_rounds_of_inserts_and_deletes_leave_nothing_behind():
    run = circuit("inner", on=["k"], **PAIR)
    run.tick(r={("a", 10): 1})
    for i in range(50):
        assert run.tick(l={("a", i): 1})["out"] == {("a", i, 10): 1}
        assert run.tick(l={("a", i): -1})["out"] == {("a", i, 10): -1}
    assert sorted(run.circuit.state_rows().values()) == [0, 1]


# ---------------------------------------------------------------------- extremes


def test_a_product_of_weights_beyond_int64_is_an_error_and_nothing_was_applied():
    run = circuit("inner")
    run.tick(l={(1, "a"): 1 << 40})
    with pytest.raises(WeightOverflowError):
        run.tick(r={(1, 5): 1 << 40})
    assert run.tick(r={(1, 5): 3})["out"] == {(1, "a", 1, 5): 3 << 40}


@pytest.mark.parametrize("how", ["left", "right", "full", "semi", "anti", "existence"])
@pytest.mark.parametrize("where", [None, condition])
def test_a_key_whose_rows_together_weigh_more_than_int64_still_has_partners(how, where):
    heavy, light = (1 << 62), 1
    run = circuit(how, where=where)
    if how == "right":
        run.tick(r={(1, 5): light}, l={(1, "a"): heavy, (1, "bb"): heavy, (1, "ccc"): heavy})
    else:
        run.tick(l={(1, "a"): light}, r={(1, 5): heavy, (1, 6): heavy, (1, 7): heavy})
    where_of = None if where is None else condition_of
    assert run.held["out"] == joined(run.given["l"], run.given["r"], [(0, 0)], how, where_of)


@pytest.mark.parametrize("key", [["k"], []])
def test_an_aggregate_behind_a_join_in_parts_of_which_none_has_rows(key):
    with slices(1, 1):
        b = Builder()
        streams = b.source("l", "k BIGINT, a BIGINT"), b.source("r", "j BIGINT, b BIGINT")
        b.output("out", b.aggregate(b.join(*streams, on=ON), key, n=("count", None)))
        run = Run(b)
        run.tick(l={(None, i): 1 for i in range(3)}, r={(None, i): 1 for i in range(4)})
        assert run.held["out"] == ({} if key else {(0,): 1})
        run.tick(l={(None, 9): 1}, r={(None, 9): 1})
        assert run.held["out"] == ({} if key else {(0,): 1})
        run.tick(l={(1, i): 1 for i in range(3)}, r={(1, i): 1 for i in range(4)})
        assert run.held["out"] == ({(1, 12): 1} if key else {(12,): 1})


def test_a_sum_may_pass_beyond_its_range_between_the_parts_of_a_tick():
    with slices(1, 1):
        b = Builder()
        streams = b.source("l", "k BIGINT, a BIGINT"), b.source("r", "j BIGINT, b BIGINT")
        b.output("out", b.aggregate(b.join(*streams, on=ON), ["k"], total=("sum", "a")))
        run = Run(b)
        run.tick(r={(1, i): 1 for i in range(4)})
        run.tick(l={(1, 2**61): 1, (1, -(2**61)): 1})
        assert run.held["out"] == {(1, 0): 1}
        run.retract()


HOT = textwrap.dedent(
    """
    import resource, sys, time
    import pyarrow as pa
    import pyarrow.compute as pc
    from dbspark.circuit import Builder

    def table(rows, name):
        return pa.table({"k": pa.array([7] * rows, pa.int64()), name: pa.array(range(rows), pa.int64())})

    def run(rows, how, where):
        b = Builder()
        l, r = b.source("l", "k BIGINT, x BIGINT"), b.source("r", "k BIGINT, y BIGINT")
        joined = b.join(l, r, on=["k"], how=how, where=where)
        b.output("out", b.aggregate(joined, ["k"], n=("count", None), x=("sum", "x"), y=("sum", "y")))
        c = b.circuit()
        c.tick({"l": table(rows, "x")})
        return list(c.tick({"r": table(rows, "y")})["out"])

    rows, how, judged = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "judged"
    where = (lambda c: pc.less_equal(c[1], c[3])) if judged else None
    run(100, how, where)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = run(rows, how, where)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(out)
    print((after - before) * 1024)
    """
)


def hot(rows, how="inner", judged=False):
    """(result, bytes by which memory has grown) of a join of one key with `rows` rows on both sides."""
    kind = "judged" if judged else "plain"
    done = subprocess.run(
        [sys.executable, "-c", HOT, str(rows), how, kind], capture_output=True, text=True, timeout=300, check=True
    )
    result, grown = done.stdout.strip().splitlines()
    return result, int(grown)


def test_a_hot_key_of_ten_thousand_rows_on_both_sides_is_joined_in_bounded_memory():
    rows = 10_000
    result, grown = hot(rows)
    total = rows * (rows * (rows - 1) // 2)
    assert result == str([((7, rows * rows, total, total), 1)])
    assert grown < 512 << 20, f"memory has grown by {grown >> 20} MiB"


@pytest.mark.parametrize("many", [1, 3000])
def test_a_condition_may_read_its_columns_in_any_way(many):
    """By number from either end, by slice, all in turn; only those that are read have to be gathered."""
    seen = []

    def where(columns):
        seen.append(len(columns))
        assert [c.type for c in columns[2:]] == [pa.int64(), pa.int64()]
        assert [c.type for c in columns] == [columns[i].type for i in range(4)]
        return pc.greater(columns[-1], columns[-4])

    run = circuit("inner", where=where)
    left, right = {(i, "x"): 1 for i in range(many)}, {(i, i + i % 2): 1 for i in range(many)}
    run.tick(l=left)
    run.tick(r=right)
    assert run.held["out"] == {(i, "x", i, i + 1): 1 for i in range(1, many, 2)}
    assert set(seen) == {4}
    run.retract()


@pytest.mark.parametrize("how", HOWS)
def test_a_condition_is_not_judged_by_pairs_that_are_never_there(how):
    def quotient(columns):
        """1 divided by b is below the key; it fails where b is 0."""
        return pc.less(pc.divide(1, columns[3]), columns[0])

    b = Builder()
    b.output("v", b.join(b.source("l", LEFT), b.source("r", RIGHT), ON, how, where=quotient))
    circuit = b.circuit()
    circuit.tick({"l": {(1, "x"): 1}})
    circuit.tick({"l": {(1, "x"): -1}, "r": {(1, 0): 1, (2, 0): 1}})
    circuit.tick({"r": {(2, 0): -1}})
    out = circuit.tick({"l": {(2, "x"): 1}, "r": {(2, 1): 1, (1, 0): -1}})["v"]
    assert [w for _, w in out].count(1) == (how != "anti")
    with pytest.raises(pa.ArrowInvalid, match="divide by zero"):
        circuit.tick({"l": {(3, "x"): 1}, "r": {(3, 0): 1}})
    circuit.tick({"l": {(3, "x"): 1}, "r": {(3, 2): 1}})
