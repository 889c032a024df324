"""Every operator in three forms: on whole values, its explicit derivative, and the optimised (fused) derivative.

On whole values a query gives whole results. Its derivative gets the changes, and its outputs have to add up to those
results after every tick, before and after optimising.
"""

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder, Circuit
from dbspark.operators.temporal import Differentiate, Integrate
from tests.operators.model import WEIGHTS, Run, contents, entries, plus
from tests.reference.differentiate import incrementalize
from tests.reference.optimise import optimise

SCHEMA = "k BIGINT, n BIGINT"
ROWS = st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(-2, 2))
TICKS = st.lists(st.tuples(entries(ROWS, WEIGHTS, 5), entries(ROWS, WEIGHTS, 5)), max_size=5)


def positive(columns):
    return pc.greater(columns[1], 0)


def doubled(columns):
    return [columns[0], pc.multiply(columns[1], 2)]


QUERIES = {
    "filter, map, filter": lambda b, x, y: b.filter(b.map(b.filter(x, positive), doubled, SCHEMA), positive),
    "union and difference": lambda b, x, y: b.difference(b.union(x, y, x), b.negate(y)),
    "delay": lambda b, x, y: b.union(b.delay(x), y),
    "join": lambda b, x, y: b.join(x, y, on=["k"]),
    "join with itself": lambda b, x, y: b.join(x, x, on=["k"], select=[(0, "n"), (1, "n")], names=["a", "b"]),
    "join, project": lambda b, x, y: b.project(b.join(x, y, on=["k"]), ["n"]),
    "join with a condition": lambda b, x, y: b.join(x, y, on=["k"], where=lambda c: pc.less(c[1], c[3])),
    "join in a range": lambda b, x, y: b.join(x, y, on=["k"], ranges=[("n", "<=", "n")]),
    "anti join in ranges": lambda b, x, y: b.join(x, y, on=[], how="anti", ranges=[("n", "<", "n"), ("k", ">=", "k")]),
    "full join": lambda b, x, y: b.join(x, y, on=["k"], how="full"),
    "anti join": lambda b, x, y: b.join(x, y, on=["k"], how="anti"),
    "distinct": lambda b, x, y: b.distinct(b.project(x, ["n"])),
    "except": lambda b, x, y: b.combine(x, y, "except all"),
    "sums": lambda b, x, y: b.aggregate(x, ["k"], n=("count", None), s=("sum", "n"), low=("min", "n")),
    "a sum of everything": lambda b, x, y: b.aggregate(x, [], n=("count", None), s=("sum", "n")),
    "first": lambda b, x, y: b.top(x, ["k"], [("n", "desc")], 2),
    "sums of joins of sums": lambda b, x, y: b.aggregate(
        b.join(b.aggregate(x, ["k"], s=("sum", "n")), b.distinct(y), on=["k"]), ["n"], t=("sum", "s")
    ),
}


def forms(query):
    """(on values, explicit derivative, fused derivative), ready to run."""
    b = Builder()
    b.output("out", query(b, b.value_source("x", SCHEMA), b.value_source("y", SCHEMA)))
    derived = incrementalize(b.graph)
    return b.circuit(), Run(Circuit(derived)), Run(Circuit(optimise(derived)))


@pytest.mark.parametrize("name", QUERIES)
@given(ticks=TICKS)
def test_the_derivative_adds_up_to_the_query_explicit_and_fused(name, ticks):
    meaning, explicit, fused = forms(QUERIES[name])
    for one, other in ticks:
        change = {"x": explicit.possible("x", one), "y": explicit.possible("y", other)}
        delta = explicit.tick(**change)
        assert fused.tick(**change) == delta
        assert contents(meaning.tick(dict(explicit.given))["out"]) == explicit.held["out"]


@pytest.mark.parametrize("name", ["full join", "distinct", "except", "sums", "first", "sums of joins of sums"])
def test_the_fused_form_has_no_integrals_and_differences(name):
    def found(run, kind):
        return [n for n in run.circuit.graph if isinstance(n.operator, kind)]

    _, explicit, fused = forms(QUERIES[name])
    assert found(explicit, Differentiate)
    assert not found(fused, Differentiate)
    assert not found(fused, Integrate)


def test_a_node_that_others_use_is_not_fused_away():
    b = Builder()
    filtered = b.filter(b.source("x", SCHEMA), positive)
    b.output("filtered", filtered)
    b.output("mapped", b.map(filtered, doubled, SCHEMA))
    run = Run(Circuit(optimise(b.graph)))
    run.tick(x={(1, 1): 1, (2, -1): 1})
    assert run.held == {"filtered": {(1, 1): 1}, "mapped": {(1, 2): 1}}


@given(ticks=TICKS, seed=entries(ROWS, WEIGHTS, 3))
def test_a_seed_is_a_value_that_goes_after_one_tick(ticks, seed):
    there = plus(*({row: abs(w)} for row, w in seed))
    b = Builder()
    b.output("out", b.delay(b.value_source("x", SCHEMA), there))
    meaning = b.circuit()
    runs = [Run(Circuit(incrementalize(b.graph))), Run(Circuit(optimise(incrementalize(b.graph))))]
    for one, _ in ticks:
        change = runs[0].possible("x", one)
        for run in runs:
            run.tick(x=change)
        expected = contents(meaning.tick({"x": runs[0].given["x"]})["out"])
        assert runs[0].held["out"] == runs[1].held["out"] == expected
