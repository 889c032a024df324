"""Groups computed anew: what comes out adds up to the function of what is there, from the first tick on."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema
from dbspark.operators.function import Function
from dbspark.operators.recompute import RecomputeGroups
from tests.operators.model import WEIGHTS, Run, entries

ROWS = st.tuples(st.integers(0, 2), st.integers(-1, 1))


def counted(groups):
    """(key, rows, sum) of every key; over everything a row even if there is nothing."""
    keys, numbers = groups[0]
    table = pa.table({"k": keys, "n": numbers}).group_by("k").aggregate([([], "count_all"), ("n", "sum")])
    return [table.column(c).combine_chunks() for c in ("k", "count_all", "n_sum")]


def size(groups):
    return [pa.array([len(groups[0][0])], pa.int64())]


def built(key, function, schema):
    b = Builder()
    x = b.source("x", "k BIGINT, n BIGINT")
    sort_key = SortKey(x.schema, key)
    operator = RecomputeGroups([sort_key], Function(function), Schema.of(schema))
    b.output("out", b.with_state(operator, [x], [sort_key]))
    return Run(b)


@given(ticks=st.lists(entries(ROWS, WEIGHTS, 4), max_size=6))
def test_one_group_is_everything_even_if_there_is_nothing(ticks):
    run = built((), size, "n BIGINT")
    for change in [[], [], *ticks, []]:
        run.tick(x=run.possible("x", change))
        assert run.held["out"] == {(sum(run.given["x"].values()),): 1}


@pytest.mark.parametrize("quiet", [0, 2])
@given(ticks=st.lists(entries(ROWS, WEIGHTS, 4), max_size=6))
def test_groups_are_those_of_the_rows(quiet, ticks):
    run = built((0,), counted, "k BIGINT, rows BIGINT, total BIGINT")
    for change in [*([[]] * quiet), *ticks]:
        run.tick(x=run.possible("x", change))
        expected = {}
        for (k, n), weight in run.given["x"].items():
            rows, total = expected.get(k, (0, 0))
            expected[k] = rows + weight, total + n * weight
        assert run.held["out"] == {(k, *found): 1 for k, found in expected.items()}
    run.retract()
