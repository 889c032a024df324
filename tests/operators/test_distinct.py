"""Distinct, INTERSECT and EXCEPT: copies are counted, and only what changes for a reader comes out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import CircuitError, WeightOverflowError
from tests.operators.model import ANY_WEIGHTS, WEIGHTS, Run, entries, plus

SCHEMA = "k BIGINT, s STRING, x DOUBLE"
ROWS = st.tuples(
    st.sampled_from([None, 0, 1]), st.sampled_from([None, "", "a"]), st.sampled_from([0.0, -0.0, float("nan")])
)
OPERATIONS = ("intersect", "intersect all", "except", "except all")


def distinct(rows):
    return {row: 1 for row, weight in rows.items() if weight > 0}


def combined(operation, left, right):
    out = {}
    for row in {*left, *right}:
        here, there = max(left.get(row, 0), 0), max(right.get(row, 0), 0)
        copies = {
            "intersect all": min(here, there),
            "except all": max(here - there, 0),
            "intersect": int(here > 0 and there > 0),
            "except": int(here > 0 and there == 0),
        }[operation]
        if copies:
            out[row] = copies
    return out


@given(
    ticks=st.lists(entries(ROWS, ANY_WEIGHTS), max_size=6),
    weak=st.sampled_from([0xFFFFFFFFFFFFFFFF, 0, 1]),
)
def test_every_row_of_positive_weight_is_there_once(ticks, weak):
    with weakened_hash(weak):
        b = Builder()
        b.output("out", b.distinct(b.source("t", SCHEMA)))
        run = Run(b)
        for change in ticks:
            run.tick(t=plus(*({row: w} for row, w in change)))
            assert run.held["out"] == distinct(run.given["t"])
        run.retract()


@pytest.mark.parametrize("operation", OPERATIONS)
@given(
    ticks=st.lists(st.tuples(entries(ROWS, WEIGHTS), entries(ROWS, WEIGHTS)), max_size=6),
    weak=st.sampled_from([0xFFFFFFFFFFFFFFFF, 0]),
)
def test_set_operations_count_copies_as_sql_does(operation, ticks, weak):
    with weakened_hash(weak):
        b = Builder()
        b.output("out", b.combine(b.source("l", SCHEMA), b.source("r", SCHEMA), operation))
        run = Run(b)
        for left, right in ticks:
            run.tick(l=run.possible("l", left), r=run.possible("r", right))
            assert run.held["out"] == combined(operation, run.given["l"], run.given["r"])
        run.retract()


@given(ticks=st.lists(st.tuples(entries(ROWS, ANY_WEIGHTS), entries(ROWS, ANY_WEIGHTS)), max_size=4))
def test_rows_below_zero_count_as_none_in_set_operations(ticks):
    b = Builder()
    streams = b.source("l", SCHEMA), b.source("r", SCHEMA)
    for operation in OPERATIONS:
        b.output(operation, b.combine(*streams, operation))
    run = Run(b)
    for left, right in ticks:
        run.tick(l=plus(*({row: w} for row, w in left)), r=plus(*({row: w} for row, w in right)))
        for operation in OPERATIONS:
            assert run.held[operation] == combined(operation, run.given["l"], run.given["r"])
    run.retract()


def test_distinct_says_only_what_changes():
    b = Builder()
    b.output("out", b.distinct(b.source("t", "k BIGINT")))
    run = Run(b)
    assert run.tick(t={(1,): 3, (2,): -1})["out"] == {(1,): 1}
    assert run.tick(t={(1,): -2, (2,): 1})["out"] == {}
    assert run.tick(t={(1,): -1, (2,): 1})["out"] == {(1,): -1, (2,): 1}
    assert run.tick(t={(2,): -1, (3,): 0})["out"] == {(2,): -1}
    run.check_empty()


def test_a_row_leaves_the_except_when_it_comes_on_the_right():
    b = Builder()
    b.output("out", b.combine(b.source("l", "k BIGINT"), b.source("r", "k BIGINT"), "except"))
    run = Run(b)
    run.tick(l={(1,): 2, (2,): 1})
    assert run.tick(r={(1,): 1, (3,): 1})["out"] == {(1,): -1}
    assert run.tick(r={(1,): 5})["out"] == {}
    assert run.tick(r={(1,): -6})["out"] == {(1,): 1}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_stream_combined_with_itself(operation):
    b = Builder()
    stream = b.source("t", "k BIGINT")
    b.output("out", b.combine(stream, stream, operation))
    run = Run(b)
    for change in ({(1,): 2, (2,): 1}, {(1,): -1, (3,): 4}, {(2,): -1}):
        run.tick(t=change)
        assert run.held["out"] == combined(operation, run.given["t"], run.given["t"])
    run.retract()


def test_the_largest_weights_are_told_apart():
    top = 2**63 - 1
    b = Builder()
    streams = b.source("l", "k BIGINT"), b.source("r", "k BIGINT")
    for operation in OPERATIONS:
        b.output(operation, b.combine(*streams, operation))
    b.output("distinct", b.distinct(streams[0]))
    run = Run(b)
    run.tick(l={(1,): top, (2,): -top}, r={(1,): top - 1, (2,): top})
    for operation in OPERATIONS:
        assert run.held[operation] == combined(operation, run.given["l"], run.given["r"])
    with pytest.raises(WeightOverflowError):
        run.tick(l={(1,): 1})
    run.tick(l={(1,): -top, (2,): top}, r={(1,): 1})
    assert run.held["except all"] == {}
    run.retract()


def test_columns_may_have_other_names_but_not_other_types():
    b = Builder()
    left, right, other = b.source("l", "k BIGINT"), b.source("r", "j BIGINT"), b.source("o", "k INT")
    out = b.combine(left, right, "intersect all")
    assert out.schema.names == ("k",)
    b.output("out", out)
    run = Run(b)
    run.tick(l={(1,): 2, (2,): 1}, r={(1,): 1, (3,): 1})
    assert run.held["out"] == {(1,): 1}
    with pytest.raises(CircuitError, match="different types"):
        b.combine(left, other, "except")


def test_nulls_that_come_from_the_other_side_have_a_place():
    """A column is NULL-able where it is in either stream."""
    for first in ("k BIGINT NOT NULL", "k BIGINT"):
        second = "k BIGINT" if "NOT" in first else "k BIGINT NOT NULL"
        b = Builder()
        left, right = b.source("l", first), b.source("r", second)
        out = b.union(left, right)
        assert out.schema.arrow.field(0).nullable, f"union of {first} and {second}"
        b.output("union", out)
        b.output("except", b.combine(left, right, "except all"))
        run = Run(b)
        run.tick(**{"r" if "NOT" in first else "l": {(None,): 1, (1,): 1}})
        assert run.held["union"] == {(None,): 1, (1,): 1}
        assert run.held["except"] == ({} if "NOT" in first else {(None,): 1, (1,): 1})
