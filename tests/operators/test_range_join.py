"""Joins with comparisons: what comes out is the join by comparing every row with every row, found by searching."""

import datetime
from decimal import Decimal
from operator import ge, gt, le, lt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder, Circuit
from dbspark.columnar import Schema
from dbspark.columnar.delta import Delta
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import SchemaError, WeightOverflowError
from dbspark.operators import range_join
from tests.operators.model import ANY_WEIGHTS, WEIGHTS, Run, entries, joined, plus, projected
from tests.operators.test_join import HOWS, slices
from tests.reference.optimise import optimise
from tests.strategies import INT64_MAX, INT64_MIN

NAN = float("nan")
LEFT, RIGHT = "k BIGINT, x DOUBLE, z DOUBLE", "j BIGINT, lo DOUBLE, hi DOUBLE"
COLUMNS = ("k", "x", "z", "j", "lo", "hi")
KEYS = st.sampled_from([None, 0, 1, 1])
VALUES = st.sampled_from([None, NAN, float("inf"), float("-inf"), -0.0, 0.0, 1.0, 1.0, 2.0, 2.5, 3.0, 1e300])
ROWS = st.tuples(KEYS, VALUES, VALUES)
TICKS = st.lists(st.tuples(entries(ROWS, WEIGHTS), entries(ROWS, WEIGHTS)), max_size=5)

COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge}
RANGES = {
    "below": [("x", "<", "lo")],
    "at most": [("x", "<=", "lo")],
    "above": [("x", ">", "lo")],
    "at least": [("x", ">=", "lo")],
    "between": [("x", ">=", "lo"), ("x", "<=", "hi")],
    "inside": [("x", ">", "lo"), ("x", "<", "hi")],
    "around": [("x", "<=", "lo"), ("z", ">", "lo")],
    "overlap": [("x", "<=", "hi"), ("z", ">=", "lo")],
    "three": [("x", ">=", "lo"), ("x", "<", "hi"), ("z", ">", "lo")],
}


def rank(value):
    """Where a value in plain form stands in Spark's order."""
    return (1, 0.0) if value == "NaN" else (0, value)


def satisfied(ranges, names=COLUMNS, key=rank):
    """Whether two rows, as one tuple, satisfy the comparisons; NULL satisfies none."""
    split = len(names) // 2

    def holds(row):
        for a, how, b in ranges:
            mine, theirs = row[names.index(a)], row[split + names[split:].index(b)]
            if mine is None or theirs is None or not COMPARE[how](key(mine), key(theirs)):
                return False
        return True

    return holds


def explicit(ranges):
    """The same as a condition on columns, for a join that knows nothing of order."""
    holds = satisfied(ranges)

    def condition(columns):
        rows = zip(*(c.to_pylist() for c in columns), strict=True)
        return pa.array([holds(tuple("NaN" if v != v else v for v in row)) for row in rows], pa.bool_())

    return condition


def more(columns):
    """A residual condition: z of the left is not 1."""
    return pc.not_equal(columns[2], 1.0)


def more_of(row):
    return None if row[2] is None else row[2] != 1.0


# ---------------------------------------------------------------------- any stream


@pytest.mark.parametrize("how", HOWS)
@given(
    ticks=TICKS, name=st.sampled_from(list(RANGES)), null_safe=st.booleans(), weak=st.sampled_from([None, 0, 1]),
    pairs=st.sampled_from([1 << 20, 1, 3]),
)  # fmt: skip
def test_the_sum_of_what_comes_out_is_the_join_of_what_went_in(how, ticks, name, null_safe, weak, pairs):
    """With keys and without, with a residual condition and without; searched, and as a condition on all pairs."""
    ranges = RANGES[name]
    holds = satisfied(ranges)
    with weakened_hash(0xFFFFFFFFFFFFFFFF if weak is None else weak), slices(pairs, 2):
        b = Builder()
        streams = b.source("l", LEFT), b.source("r", RIGHT)
        on = [("k", "j")]
        b.output("keyed", b.join(*streams, on=on, how=how, null_safe=null_safe, ranges=ranges))
        b.output("judged", b.join(*streams, on=on, how=how, null_safe=null_safe, ranges=ranges, where=more))
        b.output("free", b.join(*streams, on=[], how=how, ranges=ranges))
        b.output("cross", b.join(*streams, on=[], how=how, where=explicit(ranges)))
        run = Run(b)
        for left, right in ticks:
            out = run.tick(l=run.possible("l", left), r=run.possible("r", right))
            assert out["free"] == out["cross"]
            given = run.given["l"], run.given["r"]
            keyed = *given, [(0, 0)], how
            widths = (3, 3)
            assert run.held["keyed"] == joined(*keyed, holds, null_safe, widths)
            assert run.held["judged"] == joined(*keyed, lambda row: holds(row) and more_of(row), null_safe, widths)
            assert run.held["free"] == joined(*given, [], how, holds, null_safe, widths)
        run.retract()


@given(
    ticks=st.lists(st.tuples(entries(ROWS, ANY_WEIGHTS), entries(ROWS, ANY_WEIGHTS)), max_size=5),
    name=st.sampled_from(list(RANGES)),
)
def test_an_inner_join_is_bilinear_in_weights_of_any_sign(ticks, name):
    b = Builder()
    streams = b.source("l", LEFT), b.source("r", RIGHT)
    b.output("out", b.join(*streams, on=[], ranges=RANGES[name]))
    run = Run(b)
    for left, right in ticks:
        run.tick(l=plus(*({row: w} for row, w in left)), r=plus(*({row: w} for row, w in right)))
        expected = joined(run.given["l"], run.given["r"], [], "inner", satisfied(RANGES[name]))
        assert run.held["out"] == expected
    run.retract()


@given(how=st.sampled_from(HOWS), ticks=st.lists(entries(ROWS, WEIGHTS), max_size=5), keyed=st.booleans())
def test_a_stream_joins_with_itself(how, ticks, keyed):
    ranges = [("x", "<", "z"), ("x", ">=", "x")]
    b = Builder()
    stream = b.source("s", LEFT)
    on = [("k", "k")] if keyed else []
    b.output("out", b.join(stream, stream, on=on, how=how, ranges=ranges, select=[(0, "x"), (0, "z")]))
    run = Run(b)
    for change in ticks:
        run.tick(s=run.possible("s", change))
        rows = run.given["s"]
        where = satisfied(ranges, ("k", "x", "z", "k", "x", "z"))
        whole = joined(rows, rows, [(0, 0)] if keyed else [], how, where, False, (3, 3))
        assert run.held["out"] == projected(whole, (1, 2, 3) if how == "existence" else (1, 2))
    run.retract()


# ---------------------------------------------------------------------- types of what is compared

DAY = datetime.date(2020, 1, 1)
TYPED = {
    "BIGINT": [None, INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX],
    "INT": [None, -(2**31), -1, 0, 2**31 - 1],
    "TINYINT": [None, -128, -1, 0, 127],
    "BOOLEAN": [None, False, True],
    "FLOAT": [None, NAN, float("inf"), float("-inf"), -0.0, 0.0, 0.5],
    "STRING": [None, "", "a", "a\0", "prefix88", "prefix88a", "prefix88b", "prefix8", "\U0001f600"],
    "BINARY": [None, b"", b"\0", b"\xff" * 9, b"\xff" * 8],
    "DATE": [None, DAY, DAY - datetime.timedelta(1), datetime.date.max, datetime.date.min],
    "TIMESTAMP_NTZ": [None, datetime.datetime(1, 1, 1), datetime.datetime(2020, 1, 1), datetime.datetime.max],
    "DECIMAL(38, 2)": [None, *(Decimal(v) for v in ("-1e35", "-1e34", "-0.01", "0", "0.01", "1e34", "1e35"))],
    "STRUCT<a: INT, b: STRING>": [None, (None, "x"), (1, None), (1, "a"), (1, "b"), (2, "")],
    "ARRAY<INT>": [None, (), (None,), (1,), (1, None), (1, 2), (2,)],
}


def typed_rank(value):
    """Spark's order: NULL inside a value comes first, bytes are unsigned."""
    if isinstance(value, tuple):
        return tuple((0,) if v is None else (1, typed_rank(v)) for v in value)
    if isinstance(value, str) and value != "NaN":
        return value.encode()
    return rank(value) if isinstance(value, float) or value == "NaN" else value


@pytest.mark.parametrize("dtype", TYPED)
@pytest.mark.parametrize("how", ["inner", "full", "semi"])
def test_values_of_any_type_are_compared_as_spark_does(how, dtype):
    pool = TYPED[dtype]
    for compare in COMPARE:
        b = Builder()
        streams = b.source("l", f"i INT, x {dtype}"), b.source("r", f"n INT, y {dtype}")
        b.output("out", b.join(*streams, on=[], how=how, ranges=[("x", compare, "y")]))
        run = Run(b)
        holds = satisfied([("x", compare, "y")], ("i", "x", "n", "y"), typed_rank)
        for step in range(3):
            left = {(i, v): 1 for i, v in enumerate(pool) if (i + step) % 3}
            right = {(i, v): 2 for i, v in enumerate(pool) if (i + step) % 2}
            run.tick(l=left, r=right)
            assert run.held["out"] == joined(run.given["l"], run.given["r"], [], how, holds)
        run.retract()


@pytest.mark.parametrize(
    ("left", "right", "compare", "message"),
    [
        ("x BIGINT", "y INT", "<", "same type"),
        ("x BIGINT", "y BIGINT", "=", "one of <, <=, >=, >"),
        ("x MAP<INT, INT>", "y MAP<INT, INT>", "<", "no order"),
        ("x ARRAY<STRUCT<m: MAP<INT, INT>>>", "y ARRAY<STRUCT<m: MAP<INT, INT>>>", "<", "no order"),
        ("x BIGINT", "z BIGINT", "<", "'y'"),
    ],
)
def test_comparisons_without_meaning_are_refused_when_the_join_is_built(left, right, compare, message):
    b = Builder()
    streams = b.source("l", left), b.source("r", right)
    with pytest.raises(SchemaError, match=message):
        b.join(*streams, on=[], ranges=[("x", compare, "y")])


# ---------------------------------------------------------------------- in a circuit


def test_a_join_with_comparisons_says_what_it_compares_and_is_told_from_others():
    b = Builder()
    streams = b.source("l", LEFT), b.source("r", RIGHT)
    on = [("k", "j")]
    one = b.join(*streams, on=on, ranges=[("x", "<", "lo")])
    assert one.node.label == "inner join on k = j and x < lo"
    assert b.join(*streams, on=on, ranges=[("x", "<", "lo")]).id == one.id
    assert b.join(*streams, on=on, ranges=[("x", "<=", "lo")]).id != one.id
    assert b.join(*streams, on=on).id != one.id


@given(ticks=TICKS, name=st.sampled_from(list(RANGES)), how=st.sampled_from(HOWS[:4]))
def test_a_projection_is_taken_into_the_join(ticks, name, how):
    b = Builder()
    streams = b.source("l", LEFT), b.source("r", RIGHT)
    out = b.join(*streams, on=[("k", "j")], how=how, ranges=RANGES[name], where=more)
    b.output("out", b.project(out, ["hi", "x"]))
    graph = optimise(b.graph)
    assert isinstance(graph.outputs["out"].operator, range_join.RangeJoin)
    run = Run(Circuit(graph))
    holds = satisfied(RANGES[name])

    def where(row):
        return holds(row) and more_of(row)

    for left, right in ticks:
        run.tick(l=run.possible("l", left), r=run.possible("r", right))
        whole = joined(run.given["l"], run.given["r"], [(0, 0)], how, where, False, (3, 3))
        assert run.held["out"] == projected(whole, (5, 1))
    run.retract()


@given(ticks=st.lists(entries(st.tuples(st.integers(0, 9), st.integers(0, 9)), WEIGHTS, 5), max_size=4))
@pytest.mark.parametrize("how", ["inner", "anti"])
def test_inside_a_fixpoint(how, ticks):
    """From a span to any span that begins inside it; and those that are inside no other, taken away."""
    b = Builder()
    spans = b.source("s", "lo BIGINT, hi BIGINT")

    def step(s, reach, spans):
        inside = [("hi", ">=", "lo"), ("lo", "<", "lo")]
        if how == "anti":
            alone = s.join(spans, spans, on=[], how=how, ranges=inside)
            return s.distinct(s.union(alone, s.combine(reach, spans, "except")))
        return s.distinct(s.union(spans, s.join(reach, spans, on=[], ranges=inside, select=[(0, "lo"), (1, "hi")])))

    b.output("out", b.fixpoint({"reach": "lo BIGINT, hi BIGINT"}, [spans], step)[0])
    run = Run(b)
    for change in ticks:
        run.tick(s=run.possible("s", change))
        rows = set(run.given["s"])
        if how == "anti":
            expected = {a for a in rows if not any(a[1] >= c[0] and a[0] < c[0] for c in rows)}
        else:
            expected = set(rows)
            while new := {(a[0], c[1]) for a in expected for c in rows if a[1] >= c[0] > a[0]} - expected:
                expected |= new
        assert run.held["out"] == dict.fromkeys(expected, 1)
    run.take_back()
    assert not run.held["out"]


def test_weights_beyond_int64_are_refused_and_nothing_has_happened():
    b = Builder()
    b.output("out", b.join(b.source("l", "x INT"), b.source("r", "y INT"), on=[], ranges=[("x", "<", "y")]))
    run = Run(b)
    run.tick(l={(1,): 1 << 40})
    with pytest.raises(WeightOverflowError):
        run.tick(r={(2,): 1 << 40})
    assert run.tick(r={(2,): 3, (1,): 1 << 40})["out"] == {(1, 2): 3 << 40}


# ---------------------------------------------------------------------- many rows


def delta(schema, columns, weight=1):
    arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
    return Delta(schema, arrays, np.full(len(columns[0]), weight, np.int64))


def made(monkeypatch):
    """How many candidates are expanded from here on."""
    seen = []
    before = range_join.RangeJoin.expanded

    def counted(self, side, spine, keys, ranges, total):
        seen.append(total)
        return before(self, side, spine, keys, ranges, total)

    monkeypatch.setattr(range_join.RangeJoin, "expanded", counted)
    return seen


@pytest.mark.parametrize("how", ["inner", "left", "anti"])
def test_rows_of_many_chunks_and_batches_are_found_without_looking_at_others(monkeypatch, how):
    """`t` between `lo` and `hi` among 100 000 rows: only the pairs that match are made."""
    rng = np.random.default_rng(7)
    left, right = Schema.parse("t BIGINT, i BIGINT"), Schema.parse("lo BIGINT, hi BIGINT")
    b = Builder()
    streams = b.source("l", left), b.source("r", right)
    b.output("out", b.join(*streams, on=[], how=how, ranges=[("t", ">=", "lo"), ("t", "<", "hi")]))
    circuit = b.circuit()
    n = 100_000
    times = rng.permutation(n)
    for part in np.array_split(np.arange(n), 5):
        circuit.step({"l": delta(left, [times[part], part])})
    seen = made(monkeypatch)
    lo = rng.integers(0, n - 50, 200)
    out = circuit.step({"r": delta(right, [lo, lo + 50])})["out"]
    inside = np.zeros(n, bool)
    for at in lo.tolist():
        inside[at : at + 50] = True
    weights = out.weights
    if how == "inner":
        assert out.rows == 200 * 50 == sum(seen)
        assert (np.asarray(out.columns[0]) - np.asarray(out.columns[2]) < 50).all()
    elif how == "left":
        assert int(weights[weights > 0].sum()) == 200 * 50
        assert int(weights[weights < 0].sum()) == -int(inside.sum())
    else:
        assert not seen, "whether there is a partner is known without making pairs"
        assert weights.tolist() == [-1] * int(inside.sum())
        assert set(np.asarray(out.columns[0]).tolist()) == set(np.flatnonzero(inside).tolist())
    back = circuit.step({"r": delta(right, [lo, lo + 50], -1)})["out"]
    assert not Delta.sum(out.schema, [out, back]).batch().rows


@pytest.mark.parametrize("how", ["semi", "anti", "left"])
def test_with_one_comparison_only_rows_between_the_extremes_are_judged(monkeypatch, how):
    left, right = Schema.parse("x BIGINT"), Schema.parse("y BIGINT")
    b = Builder()
    b.output("out", b.join(b.source("l", left), b.source("r", right), on=[], how=how, ranges=[("x", "<", "y")]))
    circuit = b.circuit()
    judged = []
    before = range_join.RangeJoin.touched

    def counted(self, *given):
        judged.append(len(before(self, *given)))
        return before(self, *given)

    monkeypatch.setattr(range_join.RangeJoin, "touched", counted)
    n = 100_000
    circuit.step({"l": delta(left, [np.arange(n)]), "r": delta(right, [np.array([50_000])])})
    for y, weight, turned in ((40_000, 1, 0), (50_010, 1, 10), (40_000, -1, 0), (50_010, -1, 10), (50_000, -1, 50_000)):
        judged.clear()
        out = circuit.step({"r": delta(right, [np.array([y])], weight)})["out"]
        assert judged == [turned]
        padded = out.rows if how != "left" else int(pc.sum(pc.is_null(out.columns[1])).as_py() or 0)
        assert padded == turned


@pytest.mark.parametrize("bounds", [(10, 60_000), (60_000, 10), (40_000, 40_000), (69_999, -5)])
def test_two_bounds_of_one_kind_lie_in_different_chunks(bounds):
    """The narrower one counts, whichever is looked at first."""
    left, right = Schema.parse("x BIGINT"), Schema.parse("a BIGINT, b BIGINT")
    for how, expected in (("<", range(max(min(bounds), 0))), (">", range(max(bounds) + 1, 70_000))):
        b = Builder()
        streams = b.source("l", left), b.source("r", right)
        b.output("out", b.join(*streams, on=[], ranges=[("x", how, "a"), ("x", how, "b")]))
        circuit = b.circuit()
        circuit.step({"l": delta(left, [np.arange(70_000)])})
        out = circuit.step({"r": delta(right, [np.array([v]) for v in bounds])})["out"]
        assert sorted(np.asarray(out.columns[0]).tolist()) == list(expected)


def test_a_row_of_negative_weight_is_no_partner_and_hides_none():
    b = Builder()
    b.output("out", b.join(b.source("l", "x INT"), b.source("r", "y INT"), on=[], how="semi", ranges=[("x", "<", "y")]))
    run = Run(b)
    assert run.tick(l={(1,): 1}, r={(2,): -1})["out"] == {}
    assert run.tick(r={(2,): 2})["out"] == {(1,): 1}
    assert run.tick(r={(2,): -2})["out"] == {(1,): -1}
    assert run.tick(r={(3,): 1})["out"] == {(1,): 1}
    assert run.tick(l={(0,): 1})["out"] == {(0,): 1}


def test_a_row_that_matches_more_than_is_made_at_once_comes_in_pieces(monkeypatch):
    left, right = Schema.parse("x BIGINT"), Schema.parse("y BIGINT")
    b = Builder()
    b.output("out", b.join(b.source("l", left), b.source("r", right), on=[], ranges=[("x", "<", "y")]))
    circuit = b.circuit()
    for part in np.array_split(np.arange(70_000), 3):
        circuit.step({"l": delta(left, [part])})
    seen = made(monkeypatch)
    with slices(1000, 1 << 20):
        out = circuit.step({"r": delta(right, [np.array([60_000, 10])])})["out"]
    assert max(seen) == 1000
    columns = np.asarray(out.columns[0])
    assert sorted(columns.tolist()) == sorted([*range(60_000), *range(10)])
