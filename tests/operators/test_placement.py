"""By which columns operators need their inputs placed, and by which their output is."""

import pytest

from dbspark.circuit import Builder
from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema
from dbspark.errors import CircuitError
from dbspark.operators.placement import ANYWHERE, TOGETHER, after_projection, key_of, whole_row

SCHEMA = "k BIGINT, n BIGINT, s STRING"


def operator(build):
    b = Builder()
    return build(b, b.source("x", SCHEMA)).node.operator


def test_a_sort_key_without_a_key_is_placed_by_whole_rows():
    schema = Schema.of(SCHEMA)
    assert key_of(SortKey(schema)) == whole_row(schema) == (0, 1, 2)
    assert key_of(SortKey(schema, [2, 0])) == (2, 0)


def test_a_projection_keeps_the_keys_of_which_all_columns_go_out():
    before = frozenset({(0,), (0, 1), (2,), ()})
    assert after_projection({0: 1, 1: 0}, before) == {(1,), (1, 0), ()}
    assert after_projection({}, before) == TOGETHER
    assert after_projection({0: 0, 1: 0}, frozenset({(0,)})) == {(0,)}, "the first of equal columns"


@pytest.mark.parametrize(
    ("build", "needs", "placed"),
    [
        (lambda b, x: b.filter(x, lambda c: c[0]), [None], {(0,)}),
        (lambda b, x: b.project(x, ["s", "k"]), [None], {(1,)}),
        (lambda b, x: b.exchange(x, ["n"]), [(1,)], {(1,)}),
        (lambda b, x: b.arrange(x, ["n"]), [(1,)], {(1,)}),
        (lambda b, x: b.distinct(x), [None], {(0, 1, 2)}),
        (lambda b, x: b.top(x, ["s"], ["n"], 1), [None], {(2,)}),
        (lambda b, x: b.aggregate(x, ["n", "k"], c=("count", None)), [(1, 0)], {(0, 1)}),
        (lambda b, x: b.aggregate(x, [], c=("count", None)), [()], TOGETHER),
        (lambda b, x: b.bucket(x, ["k"]), [None], {(0,), (3,)}),
    ],
)
def test_operators_say_where_rows_lie(build, needs, placed):
    found = operator(build)
    inputs = [frozenset({(0,)})]
    assert found.input_placements(inputs, "shard") == needs
    assert found.output_placement(inputs, ("shard", "shard")) == placed


def test_a_balanced_arrangement_is_placed_by_anything_but_its_key():
    arrange = operator(lambda b, x: b.arrange(x, ["k"]))
    assert arrange.input_placements([frozenset({(0,)})], "balance") == [(0, 1, 2)]
    assert arrange.input_placements([frozenset({(0,), (1,)})], "balance") == [None]
    assert arrange.output_placement([frozenset({(0,), (1,)})], ("balance", "balance")) == {(1,)}
    assert arrange.output_placement([ANYWHERE], ("balance", "balance")) == {(0, 1, 2)}


def test_only_global_aggregates_emit_without_input():
    assert operator(lambda b, x: b.aggregate(x, [], c=("count", None))).emits_without_input
    assert not operator(lambda b, x: b.aggregate(x, ["k"], c=("count", None))).emits_without_input


def test_an_operator_on_whole_values_is_refused_by_name():
    b = Builder()
    lifted = b.distinct(b.value_source("x", SCHEMA)).node.operator
    with pytest.raises(CircuitError, match="'distinct' works on whole values, which are not sharded"):
        lifted.input_placements([ANYWHERE], "shard")
