"""The first rows of a key, or of everything, in an order: compared with sorting all rows after every tick."""

import random
from functools import cmp_to_key

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar.chunk import CHUNK_ROWS
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import SchemaError
from dbspark.trace.config import SpineConfig
from dbspark.trace.merge_state import MergeState
from tests.operators.model import WEIGHTS, Run, entries, groups, plus

SCHEMA = "k BIGINT, n INT, s STRING, x DOUBLE"
ROWS = st.tuples(
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, -5, 0, 3, 3]),
    st.sampled_from([None, "", "a", "ab", "abcdefghijk", "abcdefghijl"]),
    st.sampled_from([None, 0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf")]),
)
COLUMNS = {"k": 0, "n": 1, "s": 2, "x": 3}


def compare(a, b):
    """Values in Spark's order, in which NaN is the largest number; NULLs are judged before."""
    if a == b:
        return 0
    if "NaN" in (a, b) and not (isinstance(a, str) and isinstance(b, str)):
        return 1 if a == "NaN" else -1
    return -1 if a < b else 1


def in_order(order):
    """A sort key from (column, "asc" or "desc", "nulls first" or "nulls last") triples."""

    def judge(a, b):
        for name, direction, nulls in order:
            x, y = a[COLUMNS[name]], b[COLUMNS[name]]
            if x is None or y is None:
                if x is not y:
                    return (-1 if x is None else 1) * (1 if nulls == "nulls first" else -1)
                continue
            result = compare(x, y)
            if result:
                return -result if direction == "desc" else result
        return 0

    return cmp_to_key(judge)


def first(rows, key, order, limit, offset=0):
    """The multiset of rows offset … offset+limit-1 of each key; `order` leaves no two rows equal."""
    out = {}
    for found in groups(rows, key).values():
        found = sorted(found, key=lambda item: in_order(order)(item[0]))
        at = 0
        for row, weight in found:
            low, high = max(at, offset), min(at + weight, offset + limit)
            if low < high:
                out[row] = high - low
            at += weight
    return out


def completed(order):
    """The order with the columns that it leaves open, so that it is total."""
    named = [(*given, "nulls last" if given[1] == "desc" else "nulls first")[:3] for given in order]
    return named + [(c, "asc", "nulls first") for c in COLUMNS if c not in {n for n, *_ in named}]


DIRECTIONS = st.tuples(st.sampled_from(["asc", "desc"]), st.sampled_from([(), ("nulls first",), ("nulls last",)]))
ORDERS = st.permutations(["n", "s", "x"]).flatmap(
    lambda names: st.tuples(*(DIRECTIONS.map(lambda d, n=n: (n, d[0], *d[1])) for n in names))
)


@pytest.mark.parametrize("key", [["k"], []], ids=["by key", "of everything"])
@given(
    ticks=st.lists(entries(ROWS, WEIGHTS, 10), max_size=5),
    order=ORDERS,
    limit=st.integers(0, 4),
    offset=st.sampled_from([0, 0, 1, 3]),
    weak=st.sampled_from([0xFFFFFFFFFFFFFFFF, 0]),
)
def test_the_first_rows_of_any_total_order_are_those_of_sorting_everything(key, ticks, order, limit, offset, weak):
    total = completed(order)
    with weakened_hash(weak):
        b = Builder()
        b.output("out", b.top(b.source("t", SCHEMA), key, [*order, *total[len(order) :]], limit, offset))
        run = Run(b)
        for change in ticks:
            run.tick(t=run.possible("t", change))
            assert run.held["out"] == first(run.given["t"], [COLUMNS[c] for c in key], total, limit, offset)
        run.retract()


@given(ticks=st.lists(entries(ROWS, WEIGHTS, 10), max_size=5), limit=st.integers(1, 4), offset=st.integers(0, 2))
def test_rows_that_the_order_leaves_equal_fill_the_places_that_are_left(ticks, limit, offset):
    """Which of them is free, how many is not; and two circuits choose the same."""
    runs = []
    for _ in range(2):
        b = Builder()
        b.output("out", b.top(b.source("t", SCHEMA), ["k"], [("n", "desc")], limit, offset))
        runs.append(Run(b))
    run = runs[0]
    for change in ticks:
        delta = run.possible("t", change)
        assert run.tick(t=delta) == runs[1].tick(t=delta)
        for key, found in groups(run.given["t"], [0]).items():
            given = sorted((row[1] is None, -(row[1] or 0)) for row, w in found for _ in range(w))
            taken = {row: w for row, w in run.held["out"].items() if row[:1] == key}
            assert all(0 < w <= run.given["t"][row] for row, w in taken.items())
            ranks = sorted((row[1] is None, -(row[1] or 0)) for row, w in taken.items() for _ in range(w))
            assert ranks == given[offset : offset + limit]
    run.retract()


@given(ticks=st.lists(entries(ROWS, WEIGHTS, 10), max_size=4), limit=st.integers(0, 4))
def test_a_limit_without_an_order_gives_as_many_rows_as_there_are_places(ticks, limit):
    b = Builder()
    b.output("out", b.top(b.source("t", SCHEMA), [], [], limit))
    run = Run(b)
    for change in ticks:
        run.tick(t=run.possible("t", change))
        assert sum(run.held["out"].values()) == min(limit, sum(run.given["t"].values()))
        assert all(0 < w <= run.given["t"][row] for row, w in run.held["out"].items())
    run.retract()


def top(order, limit, offset=0, key=(), schema="k BIGINT, n BIGINT"):
    b = Builder()
    b.output("out", b.top(b.source("t", schema), list(key), order, limit, offset))
    return Run(b)


def test_nulls_come_first_in_ascending_order_and_last_in_descending():
    run = top(["n"], 1)
    run.tick(t={(1, None): 1, (1, 5): 1})
    assert run.held["out"] == {(1, None): 1}
    run = top([("n", "desc")], 1)
    run.tick(t={(1, None): 1, (1, 5): 1})
    assert run.held["out"] == {(1, 5): 1}
    run = top([("n", "asc", "nulls last")], 1)
    run.tick(t={(1, None): 1, (1, 5): 1})
    assert run.held["out"] == {(1, 5): 1}
    run = top([("n", "desc", "nulls first")], 1)
    run.tick(t={(1, None): 1, (1, 5): 1})
    assert run.held["out"] == {(1, None): 1}


def test_a_row_that_goes_makes_room_for_the_next():
    run = top([("n", "desc")], 2, key=["k"])
    run.tick(t={(1, n): 1 for n in range(10)})
    assert run.held["out"] == {(1, 9): 1, (1, 8): 1}
    assert run.tick(t={(1, 9): -1, (2, 0): 1})["out"] == {(1, 9): -1, (1, 7): 1, (2, 0): 1}
    assert run.tick(t={(1, 3): -1})["out"] == {}, "a row that is not among the first is nobody's business"
    assert run.tick(t={(1, 9): 1})["out"] == {(1, 9): 1, (1, 7): -1}


def test_copies_take_a_place_each():
    run = top(["n"], 3, 1)
    run.tick(t={(1, 1): 3, (1, 2): 2, (1, 3): 1})
    assert run.held["out"] == {(1, 1): 2, (1, 2): 1}
    run.tick(t={(1, 1): -2})
    assert run.held["out"] == {(1, 2): 2, (1, 3): 1}
    run.retract()


def test_an_offset_beyond_the_rows_gives_nothing():
    run = top(["n"], 5, 100)
    run.tick(t={(1, n): 1 for n in range(50)})
    assert run.held["out"] == {}
    run.tick(t={(1, n): 1 for n in range(50, 102)})
    assert run.held["out"] == {(1, 100): 1, (1, 101): 1}
    run.retract()


def test_weights_of_any_size_are_cut_to_the_places_that_there_are():
    run = top(["n"], 10, 5)
    run.tick(t={(1, 1): 3, (1, 2): 2**62, (1, 3): 2**62, (1, 4): 2**62})
    assert run.held["out"] == {(1, 2): 10}
    run.tick(t={(1, 2): 4 - 2**62})
    assert run.held["out"] == {(1, 2): 2, (1, 3): 8}
    run.retract()


def test_many_keys_of_heavy_rows_do_not_disturb_each_other():
    run = top(["n"], 2, key=["k"])
    run.tick(t={(k, n): 2**62 + k for k in range(20) for n in range(3)})
    assert run.held["out"] == {(k, 0): 2 for k in range(20)}
    run.retract()


def test_a_limit_as_large_as_can_be_gives_everything():
    run = top(["n"], 2**62)
    rows = {(1, n): 2 for n in range(10)}
    run.tick(t=rows)
    assert run.held["out"] == rows
    run.retract()


def test_many_rows_in_many_ticks():
    chance = random.Random(5)
    run = top([("n", "desc"), "k"], 7, 2, key=["k"])
    for _ in range(10):
        change = {(chance.randrange(20), chance.randrange(10_000)): chance.randrange(1, 3) for _ in range(500)}
        gone = {row: -w for row, w in run.given["t"].items() if chance.random() < 0.3}
        run.tick(t=plus(change, gone))
        order = [("n", "desc", "nulls last")]
        assert run.held["out"] == first(run.given["t"], [0], order, 7, 2)
    run.retract(3)


@pytest.mark.parametrize(("limit", "offset"), [(1, 0), (3, 1)])
@pytest.mark.parametrize(
    "mask", [0xFFFFFFFFFFFFFFFF, 0xFF << 56, 0xFF0], ids=["hash", "few first bits", "few last bits"]
)
def test_many_keys_of_which_most_are_new(limit, offset, mask):
    """Keys that are in no batch, in one or in several, some of them half merged, some with the hash of others."""
    chance = random.Random(7)
    config = SpineConfig(
        fanout=3, max_inline_merge_rows=300, merge_step_rows=400, merge_rows_per_row=1, min_indexed_rows=64
    )
    indexed = 0
    with weakened_hash(mask):
        run = top([("n", "desc"), "k"], limit, offset, key=["k"])
        run.circuit._states = {n: tuple(s.with_config(config) for s in some) for n, some in run.circuit._states.items()}
        for tick in range(24):
            come = {(chance.randrange(150 * tick, 150 * tick + 600), chance.randrange(9)): 1 for _ in range(500)}
            gone = {row: -w for row, w in run.given["t"].items() if chance.random() < 0.03}
            run.tick(t=plus(come, gone))
            assert run.held["out"] == first(run.given["t"], [0], [("n", "desc", "nulls last")], limit, offset)
            spine = next(s for some in run.circuit._states.values() for s in some)
            merges = [e for e in spine.entries if isinstance(e, MergeState) and e.out]
            indexed += sum("index" in b.__dict__ for e in merges for b in e.inputs)
        assert indexed
        run.retract(3)


def test_a_change_of_several_chunks_with_a_key_across_two_of_them():
    run = top(["n"], 5, 3, key=["k"])
    rows = {(k, n): 1 for k in range(3) for n in range(CHUNK_ROWS // 2)}
    for change in ({(1, -1): 1, (2, 7): 1}, rows, {(k, n): -1 for k, n in rows if n % 4 < 3}):
        run.tick(t=change)
        assert run.held["out"] == first(run.given["t"], [0], [("n", "asc", "nulls first")], 5, 3)
    run.retract()


def test_a_row_of_many_copies_moves_many_others():
    run = top(["n"], 50)
    run.tick(t={(1, n): 1 for n in range(60)})
    run.tick(t={(1, -1): 49})
    assert run.held["out"] == {(1, -1): 49, (1, 0): 1}
    run.tick(t={(1, -1): -49})
    assert run.held["out"] == {(1, n): 1 for n in range(50)}
    run.retract()


def test_rows_below_zero_take_no_place():
    run = top(["n"], 2)
    run.tick(t={(1, 1): -1, (1, 2): 1, (1, 3): 1, (1, 4): 1})
    assert run.held["out"] == {(1, 2): 1, (1, 3): 1}
    run.tick(t={(1, 1): 2})
    assert run.held["out"] == {(1, 1): 1, (1, 2): 1}
    run.tick(t={(1, 1): -3})
    assert run.held["out"] == {(1, 2): 1, (1, 3): 1}
    run.retract()


def test_an_order_that_is_none_is_refused():
    b = Builder()
    stream = b.source("t", SCHEMA)
    for order in (("n", "up"), ("n", "asc", "nulls"), ("n", "desc", "first")):
        with pytest.raises(SchemaError, match="asc"):
            b.top(stream, ["k"], [order], 1)
    with pytest.raises(SchemaError, match="no column"):
        b.top(stream, ["k"], ["zz"], 1)
