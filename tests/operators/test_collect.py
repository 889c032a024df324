"""Aggregates that look at the rows of a group: after every tick, the answer of plain Python on the rows that are there.

Where an order is asked for, or values are sorted, the answer is compared as it is. Without an order the rows follow
each other in some order, which has to be a function of the rows: a circuit that is given them at once answers the same.
"""

import datetime
import itertools
import math
import statistics
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import DbsparkError, SchemaError
from dbspark.identity import digest
from dbspark.operators.aggregate import Count
from dbspark.operators.collect import (
    CollectList,
    First,
    ListAgg,
    MinMaxBy,
    Mode,
    OfDistinct,
    Percentile,
    Recompute,
    any_value,
    average_distinct,
    count_distinct,
    median,
    sum_distinct,
)
from dbspark.operators.function import Function
from dbspark.operators.statistics import Variance
from tests.operators.model import (
    WEIGHTS,
    Run,
    aggregated,
    average_of,
    entries,
    float_average_of,
    float_sum_of,
    groups,
    plain,
    sum_of,
)

TABLE = "k BIGINT, i BIGINT, s STRING, d DOUBLE, f BOOLEAN, c DECIMAL(10, 2)"
N, S, D, F, C = 1, 2, 3, 4, 5
INT, TEXT, DOUBLE, DECIMAL = pa.int64(), pa.string(), pa.float64(), pa.decimal128(10, 2)
NAN, INF = math.nan, math.inf
ROWS = st.tuples(
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([None, None, -1, 0, 1, 2, 2**53 + 1]),
    st.sampled_from([None, "", "a", "b", "bb"]),
    st.sampled_from([None, 0.0, -0.0, 0.5, 0.1, -3.0, NAN, INF, -INF]),
    st.sampled_from([None, True, True, False]),
    st.sampled_from([None, Decimal("0.10"), Decimal("-7.25"), Decimal("99999999.99")]),
)
TICKS = st.lists(entries(ROWS, WEIGHTS), min_size=1, max_size=5)


# ---------------------------------------------------------------------- the specification


def rank(value):
    """Where a value stands: NULL first, NaN above all numbers."""
    if value is None:
        return (0, 0)
    if isinstance(value, tuple):
        return (1, tuple(map(rank, value)))
    return (2, 0) if value == "NaN" else (1, value)


def in_order(found, order=(), where=None):
    """The rows that a FILTER lets through, each as often as it is there: by an order, then by their values."""
    rows = [row for row, weight in found for _ in range(weight) if where is None or row[where] is True]
    rows.sort(key=rank)
    for c, descending, nulls_last in reversed(order):
        rows.sort(key=lambda row: rank(row[c]), reverse=descending)
        rows.sort(key=lambda row: (row[c] is None) == nulls_last)
    return rows


def values_of(found, c, order=(), where=None):
    return [row[c] for row in in_order(found, order, where) if row[c] is not None]


def sorted_values(found, c, where=None, descending=False):
    return values_of(found, c, [(c, descending, True)], where)


def first_of(c, last=False, ignore_nulls=False, order=(), where=None):
    def aggregate(found):
        rows = [row[c] for row in in_order(found, order, where) if not ignore_nulls or row[c] is not None]
        return (rows[-1] if last else rows[0]) if rows else None

    return aggregate


def by(c, other, largest, where=None):
    def aggregate(found):
        rows = [row for row in in_order(found, [(other, largest, True)], where) if row[other] is not None]
        return rows[0][c] if rows else None

    return aggregate


def mode(c, where=None, descending=False):
    def aggregate(found):
        often = Counter(sorted_values(found, c, where, descending))  # in order, and max takes the first of equals
        return max(often, key=often.__getitem__) if often else None

    return aggregate


def set_of(c, where=None):
    return lambda found: list(dict.fromkeys(sorted_values(found, c, where)))


def joined(c, separator, order, where=None, distinct=False):
    def aggregate(found):
        values = values_of(found, c, order, where)
        return separator.join(dict.fromkeys(values) if distinct else values) if values else None

    return aggregate


def number(value):
    return NAN if value == "NaN" else float(value)


def percentile(c, fraction, where=None, descending=False):
    """As Spark computes it."""

    def aggregate(found):
        values = sorted_values(found, c, where, descending)
        if not values:
            return None
        position = (len(values) - 1) * fraction
        low, high = math.floor(position), math.ceil(position)
        if values[low] == values[high]:
            return number(values[low])
        return (high - position) * number(values[low]) + (position - low) * number(values[high])

    return aggregate


def reached(c, fraction, where=None, descending=False, as_double=True):
    def aggregate(found):
        values = sorted_values(found, c, where, descending)
        if not values:
            return None
        value = values[max(math.ceil(len(values) * fraction), 1) - 1]
        return number(value) if as_double else value

    return aggregate


def listed(*aggregates):
    def aggregate(found):
        out = [a(found) for a in aggregates]
        return None if None in out else out

    return aggregate


def distinct(inner, columns, where=None):
    def aggregate(found):
        there = {tuple(row[c] for c in columns) for row in in_order(found, (), where)}
        return inner([(values, 1) for values in there if None not in values])

    return aggregate


UP, DOWN = [(N, False, False)], [(D, True, True), (S, False, True)]

ENDS = {
    "first": (First(S, TEXT, order=UP), first_of(S, order=UP)),
    "last": (First(S, TEXT, last=True, order=UP), first_of(S, True, order=UP)),
    "first_value": (First(D, DOUBLE, ignore_nulls=True, order=UP), first_of(D, ignore_nulls=True, order=UP)),
    "last_value": (
        First(C, DECIMAL, last=True, ignore_nulls=True, order=DOWN, where=F),
        first_of(C, True, True, DOWN, F),
    ),
    "any": (any_value(N, INT), lambda found: next(iter(sorted_values(found, N)), None)),
    "any_where": (any_value(D, DOUBLE, F), lambda found: next(iter(sorted_values(found, D, F)), None)),
    "max_by": (MinMaxBy(S, TEXT, N), by(S, N, True)),
    "min_by": (MinMaxBy(N, INT, D, largest=False), by(N, D, False)),
    "max_by_where": (MinMaxBy(N, INT, D, where=F), by(N, D, True, F)),
    "min_where": (MinMaxBy(S, TEXT, S, largest=False, where=F), by(S, S, False, F)),
}
LISTS = {
    "list": (CollectList(N, INT, order=DOWN), lambda found: values_of(found, N, DOWN)),
    "list_where": (CollectList(S, TEXT, order=UP, where=F), lambda found: values_of(found, S, UP, F)),
    "set": (CollectList(N, INT, distinct=True), set_of(N)),
    "set_where": (CollectList(D, DOUBLE, distinct=True, where=F), set_of(D, F)),
    "joined": (ListAgg(S, TEXT, ", ", order=UP), joined(S, ", ", UP)),
    "joined_where": (ListAgg(S, TEXT, order=DOWN, where=F), joined(S, "", DOWN, F)),
    "joined_set": (
        ListAgg(S, TEXT, "/", distinct=True, order=[(S, True, True)]),
        joined(S, "/", [(S, True, True)], None, True),
    ),
}
VALUES = {
    "mode": (Mode(N, INT), mode(N)),
    "mode_where": (Mode(D, DOUBLE, descending=True, where=F), mode(D, F, True)),
    "median": (median(N, INT), percentile(N, 0.5)),
    "median_where": (median(D, DOUBLE, F), percentile(D, 0.5, F)),
    "percentile": (Percentile(C, DECIMAL, 0.3), percentile(C, 0.3)),
    "percentile_desc": (Percentile(D, DOUBLE, 0.3, descending=True), percentile(D, 0.3, None, True)),
    "percentiles": (Percentile(N, INT, [0.0, 0.1, 1.0]), listed(*(percentile(N, f) for f in (0.0, 0.1, 1.0)))),
    "disc": (Percentile(N, INT, 0.3, "disc"), reached(N, 0.3)),
    "disc_desc": (
        Percentile(C, DECIMAL, [0.0, 0.5], "disc", descending=True, where=F),
        listed(*(reached(C, f, F, True) for f in (0.0, 0.5))),
    ),
    "approx": (Percentile(N, INT, 0.5, "approx"), reached(N, 0.5, as_double=False)),
    "approxes": (
        Percentile(S, TEXT, [0.25, 1.0], "approx"),
        listed(*(reached(S, f, as_double=False) for f in (0.25, 1.0))),
    ),
}
DISTINCT = {
    "n": (count_distinct([N]), distinct(len, (N,))),
    "n_two": (count_distinct([D, S]), distinct(len, (D, S))),
    "n_where": (count_distinct([S], F), distinct(len, (S,), F)),
    "sum": (sum_distinct(N, INT), distinct(sum_of(0), (N,))),
    "sum_decimals": (sum_distinct(C, DECIMAL, F), distinct(sum_of(0), (C,), F)),
    "sum_floats": (sum_distinct(D, DOUBLE), distinct(float_sum_of(0), (D,))),
    "avg": (average_distinct(N, INT), distinct(average_of(0), (N,))),
    "avg_decimals": (average_distinct(C, DECIMAL), distinct(average_of(0, 6), (C,))),
    "avg_floats": (average_distinct(D, DOUBLE, F), distinct(float_average_of(0), (D,), F)),
}
FAMILIES = {"ends": ENDS, "lists": LISTS, "values": VALUES, "distinct": DISTINCT}


def made(aggregates, key, table=TABLE):
    b = Builder()
    b.output("out", b.aggregate(b.source("t", table), key, **aggregates))
    return Run(b)


def close(got, exact):
    """Equal, but for the last bits of floats that were interpolated."""
    if isinstance(got, tuple) and isinstance(exact, tuple):
        return len(got) == len(exact) and all(map(close, got, exact))
    if isinstance(got, float) and isinstance(exact, float):
        return got == exact or math.isclose(got, exact, rel_tol=1e-15)
    return got == exact


@pytest.mark.parametrize("family", FAMILIES)
@given(ticks=TICKS, key=st.sampled_from([["k"], ["k"], [], ["f", "k"]]), weak=st.sampled_from([None, None, 1]))
def test_the_answer_is_that_of_the_rows_which_are_there(family, ticks, key, weak):
    """With hashes that collide as well: groups and equal values are told apart by what they are."""
    chosen = FAMILIES[family]
    columns = [{"k": 0, "f": F}[c] for c in key]
    with weakened_hash(0xFFFFFFFFFFFFFFFF if weak is None else weak):
        run = made({n: a for n, (a, _) in chosen.items()}, key)
        for change in ticks:
            run.tick(t=run.possible("t", change))
            expected = aggregated(run.given["t"], columns, *(m for _, m in chosen.values()))
            held = {row[: len(key)]: row for row in run.held["out"]}
            assert held.keys() == {row[: len(key)] for row in expected}
            for row in expected:
                got = held[row[: len(key)]]
                wrong = [n for n, g, e in zip(chosen, got[len(key) :], row[len(key) :], strict=True) if not close(g, e)]
                assert not wrong, (wrong, got, row)
        if key:
            run.retract()
        else:
            run.take_back()
            assert run.held["out"] == aggregated({}, (), *(m for _, m in chosen.values()))


UNORDERED = {
    "list": CollectList(S, TEXT),
    "list_where": CollectList(D, DOUBLE, where=F),
    "first": First(S, TEXT),
    "last": First(S, TEXT, last=True),
    "first_value": First(S, TEXT, ignore_nulls=True, where=F),
    "joined": ListAgg(S, TEXT, ","),
}


@given(ticks=TICKS, key=st.sampled_from([["k"], []]))
def test_without_an_order_the_answer_is_still_a_function_of_the_rows(ticks, key):
    run = made(UNORDERED, key)
    for change in ticks:
        run.tick(t=run.possible("t", change))
    fresh = made(UNORDERED, key)
    fresh.tick(t={run._form[row]: weight for row, weight in run.given["t"].items()})
    assert run.held == fresh.held
    for group, found in groups(run.given["t"], (0,) if key else ()).items():
        (row,) = [r[len(key) :] for r in run.held["out"] if r[: len(key)] == group]
        texts = values_of(found, S)
        assert sorted(row[0]) == sorted(texts)
        assert Counter(row[1]) == Counter(values_of(found, D, (), F))
        everything = [r[S] for r in in_order(found)]
        assert row[2] in (everything or [None])
        assert row[3] in (everything or [None])
        assert row[4] in (values_of(found, S, (), F) or [None])
        assert row[5] == (",".join(row[0]) if texts else None)
    if key:
        run.retract()
    else:
        run.take_back()
        assert run.held["out"] == {((), (), None, None, None, None): 1}


def test_a_global_aggregate_answers_before_anything_has_come():
    everything = {f"{family}_{n}": a for family, chosen in FAMILIES.items() for n, (a, _) in chosen.items()}
    run = made(everything, [])
    run.tick()
    models = [m for chosen in FAMILIES.values() for _, m in chosen.values()]
    assert run.held["out"] == aggregated({}, (), *models)


# ---------------------------------------------------------------------- values of other types


@given(
    ticks=st.lists(
        entries(
            st.tuples(
                st.sampled_from([0, 1]),
                st.sampled_from([None, (1, "x"), (1, None), (2, "x")]),
                st.sampled_from([None, (), (1,), (1, None), (NAN,)]),
            ),
            WEIGHTS,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_nested_values(ticks):
    table = "k BIGINT, p STRUCT<a: BIGINT, b: STRING>, q ARRAY<DOUBLE>"
    b = Builder()
    source = b.source("t", table)
    p, q = source.schema.types[1:]
    aggregates = {
        "sp": CollectList(1, p, distinct=True),
        "lq": CollectList(2, q),
        "sq": CollectList(2, q, distinct=True),
        "mp": Mode(1, p),
        "n": count_distinct([1, 2]),
        "by": MinMaxBy(1, p, 2),
        "any": any_value(2, q),
    }
    b.output("out", b.aggregate(source, ["k"], **aggregates))
    run = Run(b)
    for change in ticks:
        run.tick(t=run.possible("t", change))
        held = {row[0]: row[1:] for row in run.held["out"]}
        there = groups(run.given["t"], (0,))
        assert {(k,) for k in held} == there.keys()
        for (k,), found in there.items():
            sp, lq, sq, mp, n, by_, any_ = held[k]
            structs, arrays = (Counter(values_of(found, c)) for c in (1, 2))
            assert Counter(sp) == Counter(set(structs))
            assert Counter(lq) == arrays
            assert Counter(sq) == Counter(set(arrays))
            assert mp in ([v for v, w in structs.items() if w == max(structs.values())] or [None])
            assert n == len({row[1:] for row, _ in found if None not in row[1:]})
            assert any_ in (arrays or [None])
            top = {row[1] for row, _ in found if row[2] is not None and row[2] == sq[-1]} if sq else {None}
            assert by_ in top
    run.retract()


def test_bytes_are_joined_with_bytes():
    run = made({"b": ListAgg(0, pa.binary(), b"\x00", order=[(0, False, True)])}, [], "b BINARY")
    run.tick(t={(b"\x02",): 2, (b"\x01",): 1, (None,): 1})
    assert run.held["out"] == {(b"\x01\x00\x02\x00\x02",): 1}


def test_dates_have_approximate_percentiles():
    day = datetime.date(2024, 1, 1)
    run = made({"p": Percentile(0, pa.date32(), 0.5, "approx")}, [], "d DATE")
    run.tick(t={(day + datetime.timedelta(i),): 1 for i in range(4)})
    assert run.held["out"] == {(datetime.date(2024, 1, 2),): 1}


# ---------------------------------------------------------------------- how far they look, and what they cost


def test_the_first_value_behind_many_nulls():
    run = made({"v": First(1, INT, ignore_nulls=True, order=[(0, False, False)])}, [], "o BIGINT, v BIGINT")
    run.tick(t={(i, None): 1 for i in range(1000)})
    assert run.held["out"] == {(None,): 1}
    run.tick(t={(700, 7): 1, (900, 9): 1})
    assert run.held["out"] == {(7,): 1}
    run.tick(t={(700, 7): -1})
    assert run.held["out"] == {(9,): 1}


def test_a_weight_is_not_spelled_out():
    """A percentile of 2^41 rows; only a list of them would be too long, and says so."""
    run = made({"p": median(0, INT), "m": Mode(0, INT), "n": count_distinct([0])}, [], "v BIGINT")
    run.tick(t={(1,): 1 << 40, (2,): (1 << 40) + 1, (9,): 1})
    assert run.held["out"] == {(2.0, 2, 3): 1}
    lists = made({"l": CollectList(0, INT)}, [], "v BIGINT")
    lists.tick(t={(1,): 2})
    with pytest.raises(DbsparkError, match="more than 2\\^31 elements"):
        lists.tick(t={(1,): 1 << 33})
    lists.tick(t={(1,): -1})
    assert lists.held["out"] == {((1,),): 1}


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30))
def test_median_and_mode_are_those_of_the_statistics_module(values):
    run = made({"p": median(0, INT), "m": Mode(0, INT)}, [], "v BIGINT")
    run.tick(t=Counter((v,) for v in values))
    assert run.held["out"] == {(float(statistics.median(values)), min(statistics.multimode(values))): 1}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_percentiles_are_near_those_of_numpy(values, fraction):
    run = made({"p": Percentile(0, DOUBLE, fraction)}, [], "v DOUBLE")
    run.tick(t=Counter((v + 0.0,) for v in values))
    ((got,),) = run.held["out"]
    assert got == pytest.approx(float(np.quantile(values, fraction)), rel=1e-9, abs=1e-9)


# ---------------------------------------------------------------------- the fall-back


def weighted_range(starts, columns, weights):
    """max - min of a column, times the number of rows."""
    out = []
    for begin, end in itertools.pairwise(starts):
        values = [v for v in columns[0][begin:end].to_pylist() if v is not None]
        out.append((values[-1] - values[0]) * int(weights[begin:end].sum()) if values else None)
    return out


@given(ticks=TICKS, key=st.sampled_from([["k"], []]))
def test_any_function_of_the_rows(ticks, key):
    aggregate = Recompute(weighted_range, INT, [N], order=[(N, False, False)], where=F)
    run = made({"n": Count(), "r": aggregate}, key)

    def model(found):
        values = sorted_values(found, N, F)
        return (values[-1] - values[0]) * len(in_order(found, (), F)) if values else None

    for change in ticks:
        run.tick(t=run.possible("t", change))
        there = groups(run.given["t"], (0,) if key else ())
        assert run.held["out"] == {(*k, sum(w for _, w in f), model(f)): 1 for k, f in there.items()}
    if key:
        run.retract()


def test_a_function_gives_one_value_for_every_group():
    run = made({"r": Recompute(lambda starts, columns, weights: pa.array([1, 2, 3]), INT, [1])}, ["k"])
    with pytest.raises(SchemaError, match="gave 3 values for 1 groups"):
        run.tick(t={(1, 1, None, None, None, None): 1})
    chunked = Function(lambda starts, columns, weights: pa.chunked_array([pa.array(np.diff(starts), pa.int32())]), "n")
    run = made({"r": Recompute(chunked, INT, [])}, ["k"])
    run.tick(t={(1, 1, None, None, None, None): 1, (1, 2, None, None, None, None): 4})
    assert run.held["out"] == {(1, 2): 1}


def test_any_linear_aggregate_has_a_distinct_form():
    run = made({"v": OfDistinct(Variance(0, DOUBLE, sample=False), [1])}, ["k"], "k BIGINT, v DOUBLE")
    run.tick(t={(1, 1.0): 5, (1, 3.0): 1, (1, None): 2, (2, None): 1})
    assert run.held["out"] == {(1, 1.0): 1, (2, None): 1}
    run.retract()


# ---------------------------------------------------------------------- parameters


def test_wrong_parameters_say_so():
    for wrong, message in (
        (lambda: Percentile(0, TEXT), "of numbers, not of string"),
        (lambda: Percentile(0, INT, 1.5), "from 0 to 1"),
        (lambda: Percentile(0, INT, 0.5, "exact"), "'cont', 'disc' or 'approx'"),
        (lambda: ListAgg(0, INT), "of strings or binary"),
        (lambda: ListAgg(0, TEXT, b","), "separator"),
        (lambda: CollectList(0, INT, distinct=True, order=[(1, False, False)]), "ordered by themselves"),
    ):
        with pytest.raises(SchemaError, match=message):
            wrong()


def test_other_parameters_are_another_node():
    everything = [a for chosen in FAMILIES.values() for a, _ in chosen.values()] + list(UNORDERED.values())
    everything += [
        Percentile(N, INT, [0.5]),
        Percentile(N, INT, [0.5, 0.1]),
        ListAgg(S, TEXT, ";"),
        MinMaxBy(S, TEXT, N, largest=False),
        MinMaxBy(S, TEXT, D),
        First(S, TEXT, order=DOWN),
        First(S, TEXT, order=UP, ignore_nulls=True),
        OfDistinct(Count(), [S]),
        OfDistinct(Count(0), [S]),
        Recompute(Function(weighted_range, "f"), INT, [1]),
        Recompute(Function(weighted_range, "f"), INT, [2]),
        Recompute(Function(weighted_range, "g"), INT, [2]),
    ]
    assert len({digest(a) for a in everything}) == len(everything)
    assert plain(everything[0].parameters()) == plain(First(S, TEXT, order=UP).parameters())


# ---------------------------------------------------------------------- Spark's own answers


def test_spark_gives_the_same(spark):
    """All that does not depend on the order in which rows happen to come."""
    zero, seven = Decimal("0"), Decimal("7")
    rows = [
        (1, 3, "a", 0.5, True, Decimal("1.25")), (1, 3, "b", None, True, None), (1, 8, None, -2.0, False, seven),
        (1, None, "c", 0.5, None, seven), (2, None, None, None, None, None), (3, 5, "z", NAN, True, zero),
        (3, 5, "z", NAN, True, zero), (3, 6, "y", INF, True, Decimal("1")), (3, 1, "x", -0.0, True, Decimal("4")),
    ]  # fmt: skip
    within = "WITHIN GROUP (ORDER BY"
    queries = {
        "max_by(s, d) FILTER (WHERE f)": MinMaxBy(S, TEXT, D, where=F),
        "min_by(d, c)": MinMaxBy(D, DOUBLE, C, largest=False),
        "min(s) FILTER (WHERE f)": MinMaxBy(S, TEXT, S, largest=False, where=F),
        "sort_array(collect_list(i))": CollectList(N, INT, order=[(N, False, True)]),
        "sort_array(collect_set(d))": CollectList(D, DOUBLE, distinct=True),
        "sort_array(array_agg(s) FILTER (WHERE f))": CollectList(S, TEXT, order=[(S, False, True)], where=F),
        f"listagg(s, '-') {within} s DESC)": ListAgg(S, TEXT, "-", order=[(S, True, True)]),
        "mode(i, true)": Mode(N, INT),
        "median(d)": median(D, DOUBLE),
        "percentile(c, 0.3)": Percentile(C, DECIMAL, 0.3),
        "percentile(i, array(0.1, 0.9)) FILTER (WHERE f)": Percentile(N, INT, [0.1, 0.9], where=F),
        f"percentile_cont(0.3) {within} i DESC)": Percentile(N, INT, 0.3, descending=True),
        f"percentile_disc(0.4) {within} c)": Percentile(C, DECIMAL, 0.4, "disc"),
        f"percentile_disc(0.4) {within} i DESC)": Percentile(N, INT, 0.4, "disc", descending=True),
        "percentile_approx(i, array(0.0, 0.5, 0.6))": Percentile(N, INT, [0.0, 0.5, 0.6], "approx"),
        "percentile_approx(c, 0.5)": Percentile(C, DECIMAL, 0.5, "approx"),
        "count(DISTINCT i, d)": count_distinct([N, D]),
        "sum(DISTINCT c)": sum_distinct(C, DECIMAL),
        "sum(DISTINCT d)": sum_distinct(D, DOUBLE),
        "avg(DISTINCT c)": average_distinct(C, DECIMAL),
        "avg(DISTINCT i)": average_distinct(N, INT),
    }
    run = made({f"a{i}": a for i, a in enumerate(queries.values())}, ["k"])
    run.tick(t=Counter(rows))
    spark.createDataFrame(rows, TABLE).createOrReplaceTempView("collected")
    types = run.circuit.graph.outputs["out"].schema.types
    held = {row[0]: row[1:] for row in run.held["out"]}
    for several in (True, False):  # Spark 4.3 fails on listagg beside DISTINCT of several columns
        chosen = [(i, q) for i, q in enumerate(queries) if ("DISTINCT" in q) == several]
        frame = spark.sql(f"SELECT k, {', '.join(q for _, q in chosen)} FROM collected GROUP BY k")
        assert [f.type for f in frame.toArrow().schema] == [types[0], *(types[i + 1] for i, _ in chosen)]
        answers = {row[0]: plain(tuple(row)) for row in frame.collect()}
        assert answers.keys() == held.keys()
        for k, row in held.items():
            pairs = [(q, row[i], theirs) for (i, q), theirs in zip(chosen, answers[k][1:], strict=True)]
            wrong = [pair for pair in pairs if not close(*pair[1:])]
            assert not wrong, k
