"""Window functions: after every tick, what has come out is what a loop over all rows of all partitions says."""

import datetime
import math
from collections import Counter
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cmp_to_key

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Circuit
from dbspark.circuit.graph import Graph
from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import DbsparkError, SchemaError
from dbspark.operators.operator import Arrange
from dbspark.operators.window import (
    Frame,
    FrameAverage,
    FrameCount,
    FrameExtreme,
    FrameSum,
    Nth,
    Ranking,
    Shift,
    Window,
)
from tests.operators.model import WEIGHTS, Run, entries, plain

ROW_NUMBER, RANK, DENSE_RANK, PERCENT_RANK, CUME_DIST = (
    Ranking(n) for n in ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist")
)
WHOLE, RUNNING = Frame("rows"), Frame("rows", None, 0)


def circuit(schema, key, order, functions):
    """A source "t" and a window over it as output "out"."""
    graph = Graph()
    source = graph.source("t", Schema.parse(schema))
    sort_key = SortKey(source.schema, key, order)
    arranged = graph.add(Arrange(sort_key), [source], ["delta"], "arranged")
    window = Window(sort_key, functions, [f"w{i}" for i in range(len(functions))])
    graph.output("out", graph.add(window, [arranged], ["arranged"], "delta"))
    return Run(Circuit(graph))


# ---------------------------------------------------------------------- the model


def rank_of(value):
    """Where a plain value stands in its column: NaN is above all numbers, NULL inside a value below everything."""
    if value is None:
        return (-1, 0)
    if isinstance(value, tuple):
        return (0, tuple(rank_of(v) for v in value))
    return (1, 0) if value == "NaN" else (0, value)


def compare(a, b, descending=False, nulls_last=False):
    if a is None or b is None:
        order = (a is not None) - (b is not None)
        return -order if nulls_last else order
    order = (rank_of(a) > rank_of(b)) - (rank_of(a) < rank_of(b))
    return -order if descending else order


def compare_peers(a, b, order):
    return next((c for c in (compare(a[i], b[i], d, n) for i, d, n in order) if c), 0)


def compare_rows(a, b, order):
    return compare_peers(a, b, order) or compare_peers(a, b, [(c, False, False) for c in range(len(a))])


def seen(part, i, frame, order):
    """The rows of the frame of row i, one by one."""
    if frame is None:
        frame = Frame("range", None, 0) if order else WHOLE

    def side(j, bound):
        if frame.units == "rows":
            return j - i - bound
        if not bound:
            return compare_peers(part[j], part[i], order)
        ((column, descending, nulls_last),) = order
        here = part[i][column]
        if here is not None and here != "NaN":
            if isinstance(here, datetime.date) and not isinstance(here, datetime.datetime):
                bound = datetime.timedelta(days=bound)
            elif isinstance(here, datetime.datetime) and not isinstance(bound, datetime.timedelta):
                bound = datetime.timedelta(microseconds=bound)
            here = here - bound if descending else here + bound
        return compare(part[j][column], here, descending, nulls_last)

    return [
        part[j]
        for j in range(len(part))
        if (frame.lower is None or side(j, frame.lower) >= 0) and (frame.upper is None or side(j, frame.upper) <= 0)
    ]


def number(value):
    return math.nan if value == "NaN" else value


def floats_added(values):
    total = 0.0
    for value in values:
        total += number(value)
    return total


def half_up(exact, scale):
    digits = int(abs(exact) * 10**scale + Fraction(1, 2)) * (1 if exact >= 0 else -1)
    return Decimal(digits).scaleb(-scale, Context(prec=100))


def answer(function, part, i, order):
    """What a function says of row i of a partition."""
    n = len(part)
    match function:
        case Ranking("row_number"):
            return i + 1
        case Ranking("rank"):
            return 1 + sum(compare_peers(r, part[i], order) < 0 for r in part)
        case Ranking("dense_rank"):
            return 1 + sum(compare_peers(part[j], part[j + 1], order) < 0 for j in range(i))
        case Ranking("percent_rank"):
            return sum(compare_peers(r, part[i], order) < 0 for r in part) / (n - 1) if n > 1 else 0.0
        case Ranking("cume_dist"):
            return sum(compare_peers(r, part[i], order) <= 0 for r in part) / n
        case Ranking("ntile", buckets):
            sizes = [n // buckets + (b < n % buckets) for b in range(min(buckets, n))]
            return [b + 1 for b, size in enumerate(sizes) for _ in range(size)][i]
        case Shift(c, offset, default, ignore_nulls):
            if offset == 0:
                return part[i][c]
            away = part[i + 1 :] if offset > 0 else part[:i][::-1]
            values = [r[c] for r in away if not ignore_nulls or r[c] is not None]
            return values[abs(offset) - 1] if abs(offset) <= len(values) else default
        case Nth(c, m, frame, ignore_nulls):
            values = [r[c] for r in seen(part, i, frame, order) if not ignore_nulls or r[c] is not None]
            at = m - 1 if m > 0 else len(values) + m
            return values[at] if 0 <= at < len(values) else None
        case FrameCount(c, frame):
            return sum(c is None or r[c] is not None for r in seen(part, i, frame, order))
    values = [r[function.column] for r in seen(part, i, function.frame, order)]
    values = [v for v in values if v is not None]
    if not values:
        return None
    floating = isinstance(values[0], float | str)
    match function:
        case FrameSum():
            return floats_added(values) if floating else sum(values)
        case FrameAverage():
            if floating:
                return floats_added(values) / len(values)
            if isinstance(values[0], Decimal):
                return half_up(sum(map(Fraction, values)) / len(values), 2 + 4)
            return float(sum(values)) / len(values)
        case FrameExtreme(_, largest):
            return (max if largest else min)(values, key=rank_of)


def windowed(rows, key, order, functions):
    parts = {}
    for row, weight in rows.items():
        parts.setdefault(tuple(row[c] for c in key), []).extend([row] * max(weight, 0))
    out = Counter()
    for part in parts.values():
        part.sort(key=cmp_to_key(lambda a, b: compare_rows(a, b, order)))
        for i, row in enumerate(part):
            out[(*row, *(plain(answer(f, part, i, order)) for f in functions))] += 1
    return dict(out)


def check(run, key, order, functions, ticks, possible=True):
    for changes in ticks:
        before = dict(run.held["out"])
        if possible:
            change = run.possible("t", changes)
        else:
            change = Counter()
            for row, weight in changes:
                change[row] += weight
        delta = run.tick(t=dict(change))["out"]
        expected = windowed(run.given["t"], key, order, functions)
        assert run.held["out"] == expected
        changed = {row for row in {*before, *expected} if before.get(row) != expected.get(row)}
        assert set(delta) == changed
    run.retract()


# ---------------------------------------------------------------------- any stream

SCHEMA = "k STRING, o BIGINT, f DOUBLE, d DECIMAL(9, 2), s STRING"
KEYS = st.sampled_from([None, "a", "a", "b"])
ORDERS = st.sampled_from([None, -3, 0, 1, 1, 2, 5, 9])
FLOATS = st.sampled_from([None, 0.0, -0.0, 0.1, 0.2, 0.7, -1.5, 1e16, math.inf, math.nan])
DECIMALS = st.sampled_from([None, "0.01", "-0.02", "1.10", "1234567.89", "-0.99"]).map(lambda d: d and Decimal(d))
TEXTS = st.sampled_from([None, "", "x", "yy", "yyyyyyyyy"])
ROWS = st.tuples(KEYS, ORDERS, FLOATS, DECIMALS, TEXTS)
TICKS = st.lists(entries(ROWS, WEIGHTS), max_size=5)

ROW_BOUNDS = st.sampled_from([None, -5, -2, -1, 0, 1, 2, 4])
RANGE_BOUNDS = st.sampled_from([None, 0, 0])
DISTANCES = st.sampled_from([None, -4, -1, 0, 1, 3])


def frames(bounds, kind):
    pairs = st.tuples(bounds, bounds).filter(lambda p: None in p or p[0] <= p[1])
    return pairs.map(lambda p: Frame(kind, *p))


def functions(some_frames):
    """Any function over columns of any type of `SCHEMA`."""
    column = st.integers(0, 4)
    numbers = st.integers(1, 3)
    offsets = st.integers(-3, 3)
    return st.one_of(
        st.sampled_from([ROW_NUMBER, RANK, DENSE_RANK, PERCENT_RANK, CUME_DIST]),
        st.builds(Ranking, st.just("ntile"), st.integers(1, 5)),
        st.builds(Shift, column, offsets, st.none(), st.booleans()),
        st.builds(Shift, st.just(4), offsets, st.just("none"), st.booleans()),
        st.builds(Shift, st.just(3), offsets, st.just(Decimal("-7.00")), st.booleans()),
        st.builds(Nth, column, st.sampled_from([1, -1, 2, 3, -2]), some_frames, st.booleans()),
        st.builds(FrameCount, st.none() | column, some_frames),
        st.builds(FrameSum, numbers, some_frames),
        st.builds(FrameAverage, numbers, some_frames),
        st.builds(FrameExtreme, column, st.booleans(), some_frames),
    )


ANY_FRAME = st.one_of(st.none(), frames(ROW_BOUNDS, "rows"), frames(RANGE_BOUNDS, "range"))
ANY_ORDER = st.sampled_from(
    [
        ((1, False, False),),
        ((1, True, True),),
        ((1, True, False), (4, False, True)),
        ((2, False, True),),
        ((4, True, True), (3, False, False)),
    ]
)


@given(
    ticks=TICKS,
    key=st.sampled_from([(0,), (), (0, 4)]),
    order=ANY_ORDER,
    chosen=st.lists(functions(ANY_FRAME), min_size=1, max_size=6),
    weak=st.sampled_from([None, 0, 1]),
)
def test_the_sum_of_what_comes_out_is_what_a_loop_over_rows_says(ticks, key, order, chosen, weak):
    """Any functions, with any frames, side by side; with hashes that collide as well."""
    with weakened_hash(0xFFFFFFFFFFFFFFFF if weak is None else weak):
        check(circuit(SCHEMA, key, order, chosen), key, order, chosen, ticks)


@given(
    ticks=TICKS,
    order=st.sampled_from([(1, False, False), (1, True, True), (1, False, True), (1, True, False)]),
    chosen=st.lists(functions(frames(DISTANCES, "range")), min_size=1, max_size=4),
)
def test_distances_in_the_order_column(ticks, order, chosen):
    check(circuit(SCHEMA, (0,), (order,), chosen), (0,), (order,), chosen, ticks)


DAY = datetime.date(2024, 2, 27)
NOON = datetime.datetime(2024, 2, 28, 12)
SECOND = datetime.timedelta(seconds=1)
MEASURED = {
    "o TINYINT": ([-128, -1, 0, 3, 127], [1, 3, 130]),
    "o INT": ([-(1 << 31), 0, 2, (1 << 31) - 1], [1, 2, 1 << 31]),
    "o BIGINT": ([-(1 << 63), -1, 0, (1 << 63) - 1], [1, 1 << 62, (1 << 63) - 1]),
    "o FLOAT": ([-0.5, -0.0, 0.0, 0.25, 2.0, math.inf, math.nan], [0.25, 0.5, 2]),
    "o DOUBLE": ([-math.inf, -0.0, 0.0, 0.1, 0.30000000000000004, math.nan], [0.1, 0.2, 1.0]),
    "o DECIMAL(9, 2)": (
        [Decimal("-0.10"), Decimal("0.00"), Decimal("0.05"), Decimal("7.00")],
        [Decimal("0.05"), 7],
    ),
    "o DECIMAL(38, 0)": ([Decimal(10**38 - 1), Decimal(0), Decimal(1 - 10**38)], [1, Decimal(10**37)]),
    "o DATE": ([DAY, DAY + datetime.timedelta(1), DAY + datetime.timedelta(2), DAY.replace(month=5)], [1, 2]),
    "o TIMESTAMP_NTZ": ([NOON, NOON + SECOND, NOON + 3 * SECOND], [SECOND, 2_000_000, 999_999]),
}


@pytest.mark.parametrize("column", MEASURED)
@given(data=st.data())
def test_every_type_that_has_distances(column, data):
    """Bounds beyond what the column's type holds are bounds all the same: nothing wraps around."""
    values, distances = MEASURED[column]
    kinds = st.sampled_from([None, *values])
    rows = st.tuples(kinds, st.sampled_from([1, 2, 4, 8]))
    order = ((0, data.draw(st.booleans()), data.draw(st.booleans())),)
    signed = st.sampled_from([None, 0, *distances, *(-d for d in distances)])
    spans = st.tuples(signed, signed)
    found = []
    for lower, upper in data.draw(st.lists(spans, min_size=1, max_size=3)):
        try:
            found.append(Frame("range", lower, upper))
        except SchemaError:  # it ends before it begins, or is of two units
            found.append(Frame("range", lower, None))
    chosen = [FrameSum(1, frame) for frame in found] + [FrameCount(None, frame) for frame in found]
    run = circuit(f"{column}, v INT", (), order, chosen)
    ticks = data.draw(st.lists(entries(rows, WEIGHTS), max_size=3))
    with localcontext() as context:
        context.prec = 100
        check(run, (), order, chosen, ticks)


@given(ticks=st.lists(entries(ROWS, st.sampled_from([1, 1, -1, 2, -3, 6])), max_size=5))
def test_rows_of_a_weight_below_zero_do_not_take_part(ticks):
    order = ((1, False, False),)
    chosen = [ROW_NUMBER, FrameSum(1), Shift(4, 1)]
    check(circuit(SCHEMA, (0,), order, chosen), (0,), order, chosen, ticks, possible=False)


@given(ticks=TICKS, key=st.sampled_from([(0,), ()]))
def test_without_an_order_all_rows_are_peers(ticks, key):
    chosen = [
        RANK,
        DENSE_RANK,
        PERCENT_RANK,
        CUME_DIST,
        FrameCount(),
        FrameCount(4),
        FrameSum(1),
        FrameExtreme(2, True),
    ]
    check(circuit(SCHEMA, key, (), chosen), key, (), chosen, ticks)


@given(data=st.data())
def test_values_of_nested_types(data):
    schema = "k INT, o INT, a ARRAY<INT>, s STRUCT<x: DOUBLE, y: STRING>"
    rows = st.tuples(
        st.sampled_from([1, 2]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, (), (1,), (1, None), (2, 3)]),
        st.sampled_from([None, (0.5, "a"), (None, "b"), (0.5, None)]),
    )
    order = ((1, False, False),)
    chosen = [Shift(2, 1), Shift(2, -1, (9,)), Nth(3, 1), Nth(3, -1, WHOLE, True), Nth(2, 2, WHOLE)]
    chosen += [FrameExtreme(2, True), FrameExtreme(3, False, Frame("rows", -1, 1))]
    ticks = data.draw(st.lists(entries(rows, WEIGHTS), max_size=4))
    check(circuit(schema, (0,), order, chosen), (0,), order, chosen, ticks)


def test_only_the_partition_that_is_touched_comes_out():
    order = ((1, False, False),)
    chosen = [ROW_NUMBER, FrameSum(1, Frame("rows", -2, 2)), FrameExtreme(1, True, Frame("range", -7, 0)), Nth(1, 3)]
    run = circuit("k BIGINT, o BIGINT", (0,), order, chosen)
    run.tick(t={(i % 7, i * i % 503): 1 for i in range(500)})
    run.tick(t={(i, i): 1 for i in range(8, 300)})
    assert run.held["out"] == windowed(run.given["t"], (0,), order, chosen)
    delta = run.tick(t={(3, 10_000): 1})["out"]
    assert {row[0] for row in delta} == {3}
    assert len(delta) <= 6
    assert run.held["out"] == windowed(run.given["t"], (0,), order, chosen)
    run.retract(3)


def test_a_partition_of_several_chunks():
    rows = 70_000
    chosen = [ROW_NUMBER, FrameSum(0, RUNNING), FrameExtreme(0, True, Frame("rows", -1000, -1)), Shift(0, -40_000)]
    run = circuit("o BIGINT", (), ((0, False, False),), chosen)
    run.tick(t={(i,): 1 for i in range(1, rows)})

    def expected(last):
        return {
            (i, i, i * (i + 1) // 2, i - 1 if i > 1 else None, i - 40_000 if i > 40_000 else None): 1
            for i in range(1, last)
        }

    assert run.held["out"] == expected(rows)
    assert len(run.tick(t={(rows,): 1})["out"]) == 1
    assert run.held["out"] == expected(rows + 1)
    run.retract()


# ---------------------------------------------------------------------- facts


def column_of(run, at=-1, by=1):
    """One column of what has come out, in the order of another."""
    return [row[at] for row in sorted(run.held["out"], key=lambda row: row[by]) for _ in range(run.held["out"][row])]


ID = "k STRING, id BIGINT, v BIGINT"
BY_ID = ((1, False, False),)


def numbered(values, key="a"):
    return {(key, i, v): 1 for i, v in enumerate(values)}


def test_g14_a_minimum_moves_only_when_its_last_row_goes():
    run = circuit(ID, (0,), BY_ID, [FrameExtreme(2, False, WHOLE), FrameExtreme(2, True, WHOLE)])
    run.tick(t={**numbered([10, 10, 20]), **numbered([1, 2], "b")})
    assert run.tick(t={("a", 0, 10): -1})["out"] == {("a", 0, 10, 10, 20): -1}
    out = run.tick(t={("a", 1, 10): -1})["out"]
    assert out == {("a", 1, 10, 10, 20): -1, ("a", 2, 20, 10, 20): -1, ("a", 2, 20, 20, 20): 1}
    run.tick(t={("a", 2, 20): -1})
    assert {row[0] for row in run.held["out"]} == {"b"}
    out = run.tick(t={("b", 9, 7): 1})["out"]
    assert {row[0] for row in out} == {"b"}
    assert column_of(run) == [7, 7, 7]


def test_g14_no_value_no_minimum():
    run = circuit(ID, (0,), BY_ID, [FrameExtreme(2, False, WHOLE), FrameSum(2), FrameAverage(2), FrameCount(2)])
    run.tick(t={("a", 0, None): 1})
    assert run.held["out"] == {("a", 0, None, None, None, None, 0): 1}


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        (FrameAverage(2, Frame("rows", -1, 1)), [10, 20, 30, 40], [15, 20, 30, 35]),
        (FrameSum(2), [100, 50, 75], [100, 150, 225]),
        (FrameSum(2, RUNNING), [100, 50, 75], [100, 150, 225]),
        (FrameExtreme(2, False, Frame("rows", -2, 0)), [100, 50, 75, 90], [100, 50, 50, 50]),
        (Shift(2, -2), [10, 20, 30, 40], [None, None, 10, 20]),
        (Shift(2, 1, 0), [10, 20, 30], [20, 30, 0]),
        (Shift(2, -1, None, True), [1, None, None, 4, 5], [None, 1, 1, 1, 4]),
        (Shift(2, 1, -1, True), [None, 2, None, 4], [2, 4, 4, -1]),
        (Nth(2, -1), [3, 1, 2], [3, 1, 2]),
        (Nth(2, 2), [3, 1, 2], [None, 1, 1]),
        (Ranking("ntile", 3), list("abcdefg"), [1, 1, 1, 2, 2, 3, 3]),
        (Ranking("ntile", 9), [0, 0], [1, 2]),
    ],
)
def test_g15_g25_frames_and_neighbours(function, values, expected):
    text = isinstance(values[0], str)
    run = circuit(ID.replace("v BIGINT", "v STRING") if text else ID, (0,), BY_ID, [function])
    run.tick(t=numbered(values))
    assert column_of(run) == expected


def test_g25_lag_is_that_of_the_partition():
    run = circuit(ID, (0,), BY_ID, [Shift(2, -1)])
    run.tick(t={**numbered([10, 20, 30]), **numbered([7, 8], "b")})
    assert [row[-1] for row in sorted(run.held["out"], key=lambda r: r[:2])] == [None, 10, 20, None, 7]
    assert run.tick(t={("a", 1, 20): -1})["out"] == {
        ("a", 1, 20, 10): -1, ("a", 2, 30, 20): -1, ("a", 2, 30, 10): 1,
    }  # fmt: skip


def test_v01_a_range_of_two_seconds():
    frame = Frame("range", -2000, 0)
    run = circuit("k STRING, ts BIGINT, v BIGINT", (0,), BY_ID, [FrameSum(2, frame), FrameCount(None, frame)])
    run.tick(t={("A", 1000, 10): 1})
    assert column_of(run, 3) == [10]
    run.tick(t={("A", 1500, 30): 1, ("A", 2000, 20): 1})
    assert column_of(run, 3) == [10, 40, 60]
    out = run.tick(t={("A", 3200, 5): 1, ("B", 3500, 100): 1, ("B", 4000, 200): 1})["out"]
    assert out == {("A", 3200, 5, 55, 3): 1, ("B", 3500, 100, 100, 1): 1, ("B", 4000, 200, 300, 2): 1}


def test_null_peers_have_a_frame_of_their_own():
    """A distance from NULL is NULL: it reaches the other NULLs, and what is unbounded reaches further."""
    near, up, down = Frame("range", -1, 1), Frame("range", None, 1), Frame("range", -1, None)
    for order, expected in (
        ((0, False, False), {None: (2, 2, 4), 1: (2, 4, 2), 2: (2, 4, 2)}),
        ((0, False, True), {None: (2, 4, 2), 1: (2, 2, 4), 2: (2, 2, 4)}),
        ((0, True, True), {None: (2, 4, 2), 1: (2, 2, 4), 2: (2, 2, 4)}),
    ):
        run = circuit("o INT", (), (order,), [FrameCount(None, f) for f in (near, up, down)])
        run.tick(t={(None,): 2, (1,): 1, (2,): 1})
        assert {row[0]: row[1:] for row in run.held["out"]} == expected


def test_copies_of_a_row_have_numbers_of_their_own():
    run = circuit("k INT, o INT", (0,), BY_ID, [ROW_NUMBER, RANK, FrameCount()])
    run.tick(t={(1, 5): 3})
    assert run.held["out"] == {(1, 5, n, 1, 3): 1 for n in (1, 2, 3)}
    out = run.tick(t={(1, 5): -1, (1, 6): 1})["out"]
    assert out == {(1, 5, 1, 1, 3): -1, (1, 5, 2, 1, 3): -1, (1, 5, 3, 1, 3): -1, (1, 5, 1, 1, 2): 1,
                   (1, 5, 2, 1, 2): 1, (1, 6, 3, 3, 3): 1}  # fmt: skip


def test_floats_are_added_from_left_to_right():
    values = [0.1, 1e16, -1e16, 0.2, 0.3]
    run = circuit("k STRING, id BIGINT, v DOUBLE", (0,), BY_ID, [FrameSum(2), FrameSum(2, Frame("rows", -1, 1))])
    run.tick(t=numbered(values))
    assert column_of(run, 3) == [floats_added(values[: i + 1]) for i in range(5)]
    assert column_of(run, 4) == [floats_added(values[max(i - 1, 0) : i + 2]) for i in range(5)]


def test_sums_at_the_ends_of_their_types():
    top = (1 << 63) - 1
    run = circuit(ID, (0,), BY_ID, [FrameSum(2, RUNNING), FrameAverage(2, WHOLE)])
    run.tick(t=numbered([-top, -1, top, 1, top]))
    assert column_of(run, 3) == [-top, -top - 1, -1, 0, top]
    held = dict(run.held["out"])
    with pytest.raises(DbsparkError, match="sum over a window frame is beyond its type"):
        run.tick(t={("a", 9, 1): 1})
    assert run.held["out"] == held
    run.tick(t={("a", 9, -1): 1})
    run.retract()


def test_average_beyond_int64_is_no_error():
    top = (1 << 63) - 1
    run = circuit(ID, (0,), BY_ID, [FrameAverage(2, WHOLE)])
    run.tick(t=numbered([top, top, top, top]))
    assert column_of(run) == [float(top)] * 4


def test_sums_and_averages_of_large_decimals():
    most, least = Decimal(10**38 - 1), Decimal(1 - 10**38)
    schema = "k STRING, id BIGINT, v DECIMAL(38, 0)"
    run = circuit(schema, (0,), BY_ID, [FrameSum(2)])
    run.tick(t=numbered([most, least, least, most]))
    assert column_of(run) == [most, 0, least, 0]
    for more in (1, 5):  # just beyond 38 digits, and beyond 128 bits
        with pytest.raises(DbsparkError, match="beyond its type"):
            run.tick(t={("a", 5, most): more, ("a", 4, Decimal(1)): 1})
    run = circuit("k STRING, id BIGINT, v DECIMAL(38, 10)", (0,), BY_ID, [FrameAverage(2)])
    run.tick(t=numbered([Decimal("1.0000000001"), Decimal("-2.0000000002"), Decimal("0.0000000001")]))
    assert column_of(run) == [Decimal("1.00000000010000"), Decimal("-0.50000000005000"), Decimal("-0.33333333333333")]
    with pytest.raises(DbsparkError, match="avg over a window frame is beyond its type"):
        run.tick(t={("a", 9, Decimal(10**27)): 1})


def test_the_types_of_results():
    source = Schema.parse("b TINYINT, f FLOAT, d DECIMAL(30, 5), t TIMESTAMP, x STRING")
    window = Window(
        SortKey(source, (0,), ((3, False, False),)),
        [ROW_NUMBER, CUME_DIST, FrameCount(), FrameSum(0), FrameSum(1), FrameSum(2), FrameAverage(0), FrameAverage(2),
         FrameExtreme(3, True), Shift(4, 1), Nth(1, 1)],
        list("ABCDEFGHIJK"),
    )  # fmt: skip
    assert window.schema.names == (*source.names, *"ABCDEFGHIJK")
    assert window.schema.types[5:] == (
        pa.int32(), pa.float64(), pa.int64(), pa.int64(), pa.float64(), pa.decimal128(38, 5), pa.float64(),
        pa.decimal128(34, 9), pa.timestamp("us", "UTC"), pa.string(), pa.float32(),
    )  # fmt: skip
    assert window.state_sort_keys() == ()
    assert "row_number()" in window.label()


def test_a_partition_of_too_many_rows_is_refused_before_any_memory_is_taken():
    run = circuit("k INT, o INT", (0,), BY_ID, [ROW_NUMBER])
    run.tick(t={(1, 1): 2})
    with pytest.raises(DbsparkError, match="nothing was applied"):
        run.circuit.tick({"t": {(1, 1): 1 << 40}})
    assert run.tick(t={(1, 1): -1})["out"] == {(1, 1, 2): -1}


def test_what_cannot_be_a_window():
    source = Schema.parse("k INT, o STRING, d DATE, v DECIMAL(4, 1)")

    def window(function, *order):
        return Window(SortKey(source, (0,), [(c, False, False) for c in order]), [function], ["w"])

    with pytest.raises(SchemaError, match="ends before it begins"):
        Frame("rows", 1, -1)
    with pytest.raises(SchemaError, match="ends before it begins"):
        Frame("range", 3, 2)
    for bounds in ((SECOND, 2), (None, "x")):
        with pytest.raises(SchemaError, match="of one unit"):
            Frame("range", *bounds)
    with pytest.raises(SchemaError, match="integers"):
        Frame("rows", -1.5, 0)
    with pytest.raises(SchemaError, match="'rows' or of 'range'"):
        Frame("groups", None, 0)
    with pytest.raises(SchemaError, match="exactly one order column"):
        window(FrameCount(None, Frame("range", -1, 0)), 2, 3)
    with pytest.raises(SchemaError, match="exactly one order column"):
        window(FrameCount(None, Frame("range", -1, 0)))
    for column, distance in ((1, -1), (2, -0.5), (2, datetime.timedelta(hours=-1)), (3, Decimal("-0.05"))):
        with pytest.raises(SchemaError, match="cannot reach"):
            window(FrameCount(None, Frame("range", distance, 0)), column)
    with pytest.raises(SchemaError, match="takes numbers"):
        window(FrameSum(1), 2)
    with pytest.raises(SchemaError, match="takes numbers"):
        window(FrameAverage(2), 2)
    with pytest.raises(SchemaError, match="no default"):
        window(Shift(2, 1, "x"), 2)
    with pytest.raises(SchemaError, match="counts from 1"):
        window(Nth(2, 0), 2)
    with pytest.raises(SchemaError, match="buckets"):
        Ranking("ntile")
    with pytest.raises(SchemaError, match="no ranking"):
        Ranking("median")


def test_equal_windows_are_one_node():
    graph = Graph()
    source = graph.source("t", Schema.parse(ID))
    sort_key = SortKey(source.schema, (0,), BY_ID)
    arranged = graph.add(Arrange(sort_key), [source], ["delta"], "arranged")

    def add(function):
        return graph.add(Window(sort_key, [function], ["w"]), [arranged], ["arranged"], "delta").id

    assert add(FrameSum(2, Frame("rows", -1, 0))) == add(FrameSum(2, Frame("rows", -1, 0)))
    assert add(FrameSum(2, Frame("rows", -1, 0))) != add(FrameSum(2, Frame("rows", -2, 0)))
    assert add(Shift(2, 1)) != add(Shift(2, 1, 0))


# ---------------------------------------------------------------------- Spark's own answer

NEAR, AHEAD, BEHIND = Frame("range", -2, 1), Frame("range", 1, 3), Frame("range", None, -1)
AROUND, BEFORE, REST = Frame("rows", -1, 2), Frame("rows", -3, -1), Frame("rows", 0, None)
TOTAL = [  # of one order among all rows
    (ROW_NUMBER, "row_number()", None),
    (Ranking("ntile", 4), "ntile(4)", None),
    (Shift(2, -2), "lag(v, 2)", None),
    (Shift(2, 1, 77), "lead(v, 1, 77)", None),
    (Shift(2, -1, 77, True), "lag(v, 1, 77) IGNORE NULLS", None),
    (Shift(2, 2, None, True), "lead(v, 2) IGNORE NULLS", None),
    (Shift(2, 0, 5, True), "lead(v, 0, 5) IGNORE NULLS", None),
    (Nth(2, 1, AROUND, True), "first_value(v) IGNORE NULLS", "ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING"),
    (Nth(2, -1, BEFORE, True), "last_value(v) IGNORE NULLS", "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING"),
    (Nth(2, 2, REST), "nth_value(v, 2)", "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"),
    (Nth(2, 2, None, True), "nth_value(v, 2) IGNORE NULLS", None),
    (FrameSum(2, AROUND), "sum(v)", "ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING"),
    (FrameSum(3, BEFORE), "sum(f)", "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING"),
    (FrameSum(3), "sum(f)", None),
    (FrameAverage(3, REST), "avg(f)", "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"),
    (FrameAverage(2, AROUND), "avg(v)", "ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING"),
    (FrameSum(4, RUNNING), "sum(d)", "ROWS UNBOUNDED PRECEDING"),
    (FrameAverage(4, AROUND), "avg(d)", "ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING"),
    (FrameExtreme(3, True, BEFORE), "max(f)", "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING"),
    (FrameCount(2, REST), "count(v)", "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"),
]
PEERS = [  # the same whatever the order among peers
    (RANK, "rank()", None),
    (DENSE_RANK, "dense_rank()", None),
    (PERCENT_RANK, "percent_rank()", None),
    (CUME_DIST, "cume_dist()", None),
    (FrameSum(2), "sum(v)", None),
    (FrameCount(), "count(*)", None),
    (FrameExtreme(2, False, Frame("range", 0, None)), "min(v)", "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"),
    (FrameSum(2, Frame("range", 0, 0)), "sum(v)", "RANGE BETWEEN CURRENT ROW AND CURRENT ROW"),
]
MEASURING = [
    (FrameSum(2, NEAR), "sum(v)", "RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING"),
    (FrameCount(None, AHEAD), "count(*)", "RANGE BETWEEN 1 FOLLOWING AND 3 FOLLOWING"),
    (FrameExtreme(2, True, BEHIND), "max(v)", "RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"),
    (FrameCount(2, Frame("range", -1, None)), "count(v)", "RANGE BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING"),
]


def with_unit(unit, frame_of):
    """The same over a column of time, in units of it."""

    def bound(offset, side):
        if offset is None:
            return f"UNBOUNDED {side}"
        return f"INTERVAL {abs(offset)} {unit} {'FOLLOWING' if offset > 0 else 'PRECEDING'}"

    out = []
    for frame in (NEAR, AHEAD, BEHIND):
        clause = f"RANGE BETWEEN {bound(frame.lower, 'PRECEDING')} AND {bound(frame.upper, 'FOLLOWING')}"
        out.append((FrameSum(2, frame_of(frame)), "sum(v)", clause))
    return out


def seconds(frame):
    return Frame("range", *(b if b is None else b * 1_000_000 for b in (frame.lower, frame.upper)))


@pytest.mark.parametrize(
    ("order", "clause", "chosen"),
    [
        (((1, False, False), (5, False, False)), "o, id", TOTAL),
        (((1, True, True), (5, True, True)), "o DESC, id DESC", TOTAL),
        (((1, False, False),), "o", PEERS + MEASURING),
        (((1, True, False),), "o DESC NULLS FIRST", PEERS + MEASURING),
        (((1, False, True),), "o NULLS LAST", PEERS + MEASURING),
        (((3, True, True),), "f DESC", PEERS + MEASURING),
        (((3, False, False),), "f", PEERS + MEASURING),
        (((4, False, False),), "d", PEERS + MEASURING),
        (((6, True, True),), "t DESC", PEERS + with_unit("SECOND", seconds)),
        (((7, False, True),), "day NULLS LAST", PEERS + with_unit("DAY", lambda frame: frame)),
        ((), "", [(FrameSum(2), "sum(v)", None), (FrameExtreme(4, True), "max(d)", None)]),
    ],
)
def test_spark_says_the_same(spark, order, clause, chosen):
    schema = "k INT, o INT, v BIGINT, f DOUBLE, d DECIMAL(9, 2), id INT, t TIMESTAMP_NTZ, day DATE"
    rows = []
    for i in range(90):
        draw = i * 7919 % 1009
        rows.append(
            (
                draw % 4 or None,
                draw % 13 - 3 if draw % 6 else None,
                draw % 31 if draw % 5 else None,
                [None, 0.1, -0.0, 0.0, 1e16, -1e16, 1.3, 2.0, 0.7, math.nan][draw % 10],
                Decimal(draw % 50 - 9).scaleb(-1) if draw % 7 else None,
                i,
                NOON + draw % 9 * SECOND if draw % 8 else None,
                DAY + datetime.timedelta(draw % 11) if draw % 8 else None,
            )
        )
    run = circuit(schema, (0,), order, [f for f, _, _ in chosen])
    run.tick(t=dict.fromkeys(rows[:70], 1))
    run.tick(t={**dict.fromkeys(rows[70:], 1), **dict.fromkeys(rows[:20], -1)})
    spark.createDataFrame(rows[20:], schema).createOrReplaceTempView("window_rows")
    by = f"PARTITION BY k {'ORDER BY ' + clause if clause else ''}"
    calls = [f"{call} OVER ({by} {frame or ''})" for _, call, frame in chosen]
    expected = Counter(
        plain(tuple(row)) for row in spark.sql(f"SELECT *, {', '.join(calls)} FROM window_rows").collect()
    )
    found = run.held["out"]
    for i, call in enumerate(calls):
        columns = [*range(8), 8 + i]
        ours, theirs = ({tuple(row[c] for c in columns) for row in answer} for answer in (found, expected))
        assert ours == theirs, call
    assert found == dict(expected)
