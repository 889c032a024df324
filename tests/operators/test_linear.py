"""Linear operators: what they do to a change is what they do to the whole; weights pass through untouched."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import CircuitError, DbsparkError, SchemaError, WeightOverflowError
from dbspark.operators.linear import Function
from tests.operators.model import ANY_WEIGHTS, Run, entries, plus, projected

SCHEMA = "k BIGINT, s STRING"
ROWS = st.tuples(st.sampled_from([None, 0, 1, 2, 3]), st.sampled_from([None, "", "a", "bb"]))
TICKS = st.lists(entries(ROWS, ANY_WEIGHTS), max_size=4)


def total(change):
    return plus(*({row: w} for row, w in change))


def mapped(rows, function):
    """The model: `function` gives a list of rows for each row."""
    return plus(*({out: w} for row, w in rows.items() for out in function(row)))


def twice(columns):
    return [pc.multiply(columns[0], 2)]


def repeated(columns):
    """k copies of s."""
    counts = pc.fill_null(columns[0], 0).to_numpy(zero_copy_only=False)
    origin = np.repeat(np.arange(len(counts)), counts)
    return [columns[1].take(pa.array(origin))], origin


CASES = {
    "map": (lambda b, s: b.map(s, twice, "d BIGINT"), lambda r: [(None if r[0] is None else 2 * r[0],)]),
    "filter": (
        lambda b, s: b.filter(s, lambda c: pc.greater(c[0], 1)),
        lambda r: [r] if r[0] is not None and r[0] > 1 else [],
    ),
    "flat map": (lambda b, s: b.flat_map(s, repeated, "s STRING"), lambda r: [(r[1],)] * (r[0] or 0)),
    "project": (lambda b, s: b.project(s, ["s"], ["t"]), lambda r: [(r[1],)]),
    "swap": (lambda b, s: b.project(s, ["s", "k"]), lambda r: [(r[1], r[0])]),
    "select": (
        lambda b, s: b.select(s, lambda c: pc.greater(c[0], 1), ["k"], ["s", "s"], ["t", "u"]),
        lambda r: [(r[1], r[1])] if r[0] is not None and r[0] > 1 else [],
    ),
    "select after project": (
        lambda b, s: b.select(b.project(s, ["s", "k"]), lambda c: pc.equal(c[0], "a"), ["s"], ["s", "k"]),
        lambda r: [(r[1], r[0])] if r[1] == "a" else [],
    ),
    "consolidate": (lambda b, s: b.consolidate(b.project(s, ["s"])), lambda r: [(r[1],)]),
    "exchange": (lambda b, s: b.exchange(s, ["s"]), lambda r: [r]),
    "source": (lambda b, s: s, lambda r: [r]),
    "filter after map": (
        lambda b, s: b.filter(b.map(s, twice, "d BIGINT"), lambda c: pc.less(c[0], 5)),
        lambda r: [(2 * r[0],)] if r[0] is not None and 2 * r[0] < 5 else [],
    ),
}


@pytest.mark.parametrize("name", CASES)
@given(ticks=TICKS)
def test_of_a_change_as_of_the_whole(name, ticks):
    build, model = CASES[name]
    b = Builder()
    b.output("out", build(b, b.source("t", SCHEMA)))
    run = Run(b)
    for change in ticks:
        run.tick(t=total(change))
        assert run.held["out"] == mapped(run.given["t"], model)
    run.retract()


@given(change=entries(ROWS, ANY_WEIGHTS, 12), weak=st.booleans())
def test_consolidated_rows_occur_once_and_add_up(change, weak):
    schema = Schema.parse(SCHEMA)
    columns = [pa.array([row[c] for row, _ in change], schema.types[c]) for c in range(2)]
    delta = Delta(schema, columns, np.array([w for _, w in change], np.int64))
    with weakened_hash(0 if weak else 0xFFFFFFFFFFFFFFFF):
        made = delta.consolidated()
        rows = list(zip(*(c.to_pylist() for c in made.columns), strict=True))
        assert dict(zip(rows, made.weights.tolist(), strict=True)) == total(change)
        assert len(set(rows)) == len(rows) == made.rows


def test_consolidated_weights_are_exact():
    schema = Schema.parse("k BIGINT")
    keys = pa.array([1, 1])
    with pytest.raises(WeightOverflowError):
        Delta(schema, [keys], np.array([2**62, 2**62])).consolidated()
    assert list(Delta(schema, [keys], np.array([2**62, -(2**62)])).consolidated().items()) == []


@given(ticks=st.lists(st.tuples(*[entries(ROWS, ANY_WEIGHTS, 5)] * 3), max_size=3))
def test_sums_differences_and_multiples(ticks):
    b = Builder()
    x, y, z = (b.source(n, SCHEMA) for n in "xyz")
    b.output("union", b.union(x, y, z))
    b.output("difference", b.difference(x, y))
    b.output("negated", b.negate(z))
    b.output("scaled", b.scale(x, -7))
    b.output("none", b.scale(x, 0))
    b.output("nothing", b.difference(y, y))
    b.output("double", b.union(z, z))
    run = Run(b)
    for one in ticks:
        run.tick(**{n: total(c) for n, c in zip("xyz", one, strict=True)})
        x, y, z = (run.given[n] for n in "xyz")

        def minus(rows, factor=-1):
            return {r: factor * w for r, w in rows.items()}

        assert run.held["union"] == plus(x, y, z)
        assert run.held["difference"] == plus(x, minus(y))
        assert run.held["negated"] == minus(z)
        assert run.held["scaled"] == minus(x, -7)
        assert run.held["none"] == run.held["nothing"] == {}
        assert run.held["double"] == minus(z, 2)
    run.retract()


# ---------------------------------------------------------------------- known answers


def through(build, schema, *ticks):
    b = Builder()
    b.output("out", build(b, b.source("t", schema)))
    run = Run(b)
    for change in ticks:
        run.tick(t=change)
    return run.held["out"]


def keys(*values):
    return {(v,): 1 for v in values}


def test_n06_doubling_under_inserts_and_deletes():
    out = through(
        lambda b, s: b.map(s, twice, "k BIGINT"), "k BIGINT",
        keys(1, 2, 3, 4, 5), {(3,): -1, (6,): 1, (7,): 1}, {(1,): -1, (8,): 1, (9,): 1}, keys(10, 11),
    )  # fmt: skip
    assert out == keys(4, 8, 10, 12, 14, 16, 18, 20, 22)


def test_n07_what_is_deleted_before_and_after():
    times_ten = Function(lambda c: [pc.multiply(c[0], 10)], "times ten")
    out = through(
        lambda b, s: b.map(s, times_ten, "k BIGINT"), "k BIGINT",
        keys(1, 2, 3), {(2,): -1}, keys(4, 5), {(1,): -1, (3,): -1},
    )  # fmt: skip
    assert out == keys(40, 50)


def test_n08_map_then_filter_keeps_weights():
    def build(b, s):
        return b.filter(b.map(s, lambda c: [pc.multiply(c[0], 3)], "k BIGINT"), lambda c: pc.greater(c[0], 5))

    out = through(build, "k BIGINT", {(1,): 1, (2,): 2, (3,): -1}, {(4,): 1, (1,): -1, (5,): 1})
    assert out == {(6,): 2, (9,): -1, (12,): 1, (15,): 1}


def test_rows_that_become_equal_add_up_and_may_cancel():
    out = through(lambda b, s: b.project(s, ["s"]), SCHEMA, {(1, "a"): 2, (2, "a"): -2, (3, "b"): 1, (4, "b"): 1})
    assert out == {("b",): 2}


# ---------------------------------------------------------------------- errors


def failing(build, error, match, change=None):
    b = Builder()
    b.output("out", build(b, b.source("t", SCHEMA)))
    run = Run(b)
    with pytest.raises(error, match=match):
        run.tick(t=change or {(1, "a"): 1, (2, "b"): 1})
    assert run.circuit.tick_number == 0


def test_a_function_that_gives_other_columns_than_it_said_is_told_so():
    failing(lambda b, s: b.map(s, lambda c: [c[0]], "a BIGINT, b STRING"), SchemaError, "1 columns for the 2")
    failing(lambda b, s: b.map(s, lambda c: [c[0].slice(1)], "a BIGINT"), SchemaError, "1 values for the 2 rows")
    failing(lambda b, s: b.map(s, lambda c: [c[1]], "a BIGINT"), SchemaError, "'a'")
    failing(lambda b, s: b.flat_map(s, lambda c: ([c[0]], [0]), "a BIGINT"), SchemaError, "2 values for the 1 rows")


def test_a_function_that_gives_null_for_a_column_that_has_none_is_told_so():
    def null(c):
        return [pa.nulls(len(c[0]), pa.int64())]

    failing(lambda b, s: b.map(s, null, "a BIGINT NOT NULL"), SchemaError, "'a'")


def test_a_condition_that_is_no_boolean_of_each_row_is_told_so():
    failing(lambda b, s: b.filter(s, lambda c: c[0]), DbsparkError, None)
    failing(lambda b, s: b.filter(s, lambda c: pa.array([True])), DbsparkError, None)


def test_a_flat_map_that_names_rows_which_are_not_there_is_told_so():
    failing(lambda b, s: b.flat_map(s, lambda c: ([c[0]], [0, 7]), "a BIGINT"), DbsparkError, None)
    failing(lambda b, s: b.flat_map(s, lambda c: ([c[0]], [0, -1]), "a BIGINT"), DbsparkError, None)


def test_a_multiple_beyond_int64_is_an_error():
    failing(lambda b, s: b.scale(s, 2**40), WeightOverflowError, None, {(1, "a"): 2**40})


def test_narrower_and_wider_columns_are_brought_to_the_type_that_was_said():
    out = through(lambda b, s: b.map(s, lambda c: [pc.cast(c[0], pa.int8())], "a BIGINT"), SCHEMA, {(5, "a"): 1})
    assert out == {(5,): 1}


def test_streams_of_other_types_cannot_be_added():
    b = Builder()
    with pytest.raises(CircuitError, match="different types"):
        b.union(b.source("x", "k BIGINT"), b.source("y", "k INT"))


def test_columns_take_the_names_of_the_first_stream():
    b = Builder()
    out = b.union(b.source("x", "k BIGINT, s STRING"), b.source("y", "a BIGINT, b STRING"))
    assert out.schema.names == ("k", "s")
    b.output("out", out)
    run = Run(b)
    run.tick(x={(1, "a"): 1}, y={(1, "a"): 2})
    assert projected(run.held["out"], (0, 1)) == {(1, "a"): 3}


def inverse(columns):
    """1 divided by k; it fails where that is 0."""
    return [pc.divide(1, columns[0])]


FAILING = {
    "map": lambda b, s: b.map(s, inverse, "d BIGINT"),
    "filter": lambda b, s: b.filter(s, lambda c: pc.greater(inverse(c)[0], 0)),
    "flat map": lambda b, s: b.flat_map(s, lambda c: (inverse(c), np.arange(len(c[0]))), "d BIGINT"),
    "one after the other": lambda b, s: b.map(b.filter(s, lambda c: pc.is_valid(c[0])), inverse, "d BIGINT"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_function_is_not_judged_by_rows_that_cancel(name):
    b = Builder()
    left, right = b.source("l", SCHEMA), b.source("r", SCHEMA)
    b.output("v", FAILING[name](b, b.union(left, b.negate(right))))
    circuit = b.circuit()
    out = circuit.tick({"l": {(0, "a"): 2, (1, "a"): 1}, "r": {(0, "a"): 2}})["v"]
    assert sum(w for _, w in out) == 1
    with pytest.raises(pa.ArrowInvalid, match="divide by zero"):
        circuit.tick({"l": {(0, "a"): 2}, "r": {(0, "a"): 1}})
