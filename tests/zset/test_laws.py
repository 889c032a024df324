"""The laws of Z-sets, on each backend, over rows of every kind.

Each law is stated on Z-sets and, where a wrong implementation could satisfy it anyway (one that loses everything is
associative too), also against the brute-force sum.
"""

import math
import zlib
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.zset import ZSet, columns
from tests.zset.model import (
    FLOATS,
    INTS,
    KINDS,
    NESTED,
    STRINGS,
    contents,
    made,
    model,
    plain,
    plus,
    samples,
    several,
    times,
)

pytestmark = pytest.mark.usefixtures("each_backend")

scalars = st.integers(-5, 5)


def mixed(row):
    """An arbitrary number for a row, the same for equal rows and in every process."""
    return zlib.crc32(repr(plain(row)).encode())


def same(z, rows):
    """Whether a Z-set holds exactly these rows, by every way of asking."""
    assert contents(z) == rows
    assert z.count == len(rows)
    assert z.total_weight == sum(rows.values())
    assert z.is_empty() == (not rows)
    assert bool(z) == bool(rows)
    return True


# ---------------------------------------------------------------------- addition


@given(several(3))
def test_addition_is_associative(some):
    a, b, c = some
    left = (a.z + b.z) + c.z
    right = a.z + (b.z + c.z)
    assert left == right
    assert same(left, plus(a.rows, b.rows, c.rows))
    assert same(right, plus(a.rows, b.rows, c.rows))


@given(several(2))
def test_addition_is_commutative(some):
    a, b = some
    assert a.z + b.z == b.z + a.z
    assert same(a.z + b.z, plus(a.rows, b.rows))


@given(several(1))
def test_the_empty_z_set_is_the_identity_of_addition(some):
    (a,) = some
    empty = ZSet.empty(a.z.schema)
    assert a.z + empty == a.z
    assert empty + a.z == a.z
    assert same(a.z + empty, a.rows)
    assert same(empty + a.z, a.rows)


@given(several(1))
def test_a_z_set_and_its_negation_add_up_to_nothing(some):
    (a,) = some
    assert same(a.z + (-a.z), {})
    assert same(-a.z + a.z, {})
    assert a.z + a.z.negate() == ZSet.empty(a.z.schema)


@given(several(1))
def test_negating_twice_changes_nothing(some):
    (a,) = some
    assert a.z.negate().negate() == a.z
    assert same(-a.z, times(a.rows, -1))
    assert same(a.z.negate().negate(), a.rows)


@given(several(2))
def test_union_is_addition(some):
    a, b = some
    assert a.z.union(b.z) == a.z + b.z
    assert same(a.z.union(b.z), plus(a.rows, b.rows))


@given(several(4))
def test_union_of_many_is_repeated_addition(some):
    first, *others = some
    together = first.z.union_many(o.z for o in others)
    one_by_one = first.z
    for other in others:
        one_by_one = one_by_one + other.z
    assert together == one_by_one
    assert same(together, plus(*(s.rows for s in some)))


@given(several(2))
def test_difference_is_addition_of_the_negation(some):
    a, b = some
    assert a.z - b.z == a.z + (-b.z)
    assert same(a.z - b.z, plus(a.rows, times(b.rows, -1)))


# ---------------------------------------------------------------------- scalars


@given(several(2), scalars)
def test_a_scalar_distributes_over_addition(some, s):
    a, b = some
    assert (a.z + b.z) * s == a.z * s + b.z * s
    assert same((a.z + b.z) * s, times(plus(a.rows, b.rows), s))


@given(several(1), scalars, scalars)
def test_scalars_associate_and_add(some, s, t):
    (a,) = some
    assert (a.z * s) * t == a.z * (s * t)
    assert a.z * (s + t) == a.z * s + a.z * t
    assert same((a.z * s) * t, times(a.rows, s * t))


@given(several(1))
def test_one_is_the_identity_of_scalars_and_zero_gives_the_empty_z_set(some):
    (a,) = some
    assert same(1 * a.z, a.rows)
    assert same(a.z.scale(0), {})
    assert 0 * a.z == ZSet.empty(a.z.schema)
    assert a.z * -1 == -a.z


# ---------------------------------------------------------------------- looking things up


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(samples(kind), st.lists(kind.rows, max_size=5))))
def test_looking_up_a_weight_agrees_with_enumerating(drawn):
    a, strangers = drawn
    enumerated = {plain(row): (row, weight) for row, weight in a.z}
    for row, weight in enumerated.values():
        assert a.z.weight(row) == weight
        assert row in a.z
    for row in strangers:
        weight = a.rows.get(plain(row), 0)
        assert a.z.weight(row) == weight
        assert (row in a.z) == bool(weight)


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), kind.rows, st.integers(-5, 5))))
def test_a_singleton_holds_its_row_unless_the_weight_is_zero(drawn):
    kind, row, weight = drawn
    z = ZSet.singleton(row, weight, kind.schema)
    assert same(z, {plain(row): weight} if weight else {})
    assert z.weight(row) == weight
    assert (z == ZSet.empty(kind.schema)) == (weight == 0)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_the_empty_z_set_holds_nothing(kind):
    z = ZSet.empty(kind.schema)
    assert same(z, {})
    assert [batch.num_rows for batch, _ in z.scan() if batch.num_rows] == []
    assert z.to_arrow().num_rows == 0
    assert z == ZSet(kind.schema)


@given(several(2))
def test_equality_is_that_of_the_rows_and_weights(some):
    a, b = some
    assert (a.z == b.z) == (a.rows == b.rows)
    assert (a.z != b.z) == (a.rows != b.rows)
    assert a.z == made_again(a)
    if a.rows:
        row = next(iter(a.z))[0]
        assert a.z.add(row) != a.z
        assert a.z.add(row, -a.z.weight(row)) != a.z


def made_again(sample):
    """The same value, by another way: read out and put in."""
    return ZSet.from_arrow(sample.z.to_arrow(weight="__w"), weight="__w", schema=sample.z.schema)


# ---------------------------------------------------------------------- filter and map


@given(several(2))
def test_filter_distributes_over_addition(some):
    a, b = some

    def keep(row):
        return mixed(row) % 3 != 0

    assert (a.z + b.z).filter(keep) == a.z.filter(keep) + b.z.filter(keep)
    assert same((a.z + b.z).filter(keep), {r: w for r, w in plus(a.rows, b.rows).items() if keep(r)})


@given(several(2, INTS))
def test_filter_by_columns_is_filter_by_rows(some):
    a, b = some
    z = a.z + b.z
    by_columns = z.filter(columns(lambda batch: pc.greater(batch["k"], 7)))
    assert by_columns == z.filter(lambda row: row[0] > 7)
    assert same(by_columns, {r: w for r, w in plus(a.rows, b.rows).items() if r[0] > 7})


@given(several(1))
def test_filters_by_a_condition_and_its_opposite_add_up_to_the_whole(some):
    (a,) = some

    def keep(row):
        return mixed(row) % 2 == 0

    kept, dropped = a.z.filter(keep), a.z.filter(lambda row: not keep(row))
    assert kept + dropped == a.z
    assert kept.count + dropped.count == len(a.rows)


@given(several(1, INTS))
def test_an_injective_map_keeps_the_sum_of_all_magnitudes(some):
    (a,) = some
    mapped = a.z.map_keys(lambda row: (3 * row[0] + 1,))
    assert same(mapped, {(3 * k + 1,): w for (k,), w in a.rows.items()})
    assert sum(abs(w) for _, w in mapped) == sum(map(abs, a.rows.values()))


@given(several(1, STRINGS))
def test_an_injective_map_of_strings_keeps_the_sum_of_all_magnitudes(some):
    (a,) = some
    mapped = a.z.map_keys(lambda row: ("<" + row[0] + ">",))
    assert sum(abs(w) for _, w in mapped) == sum(map(abs, a.rows.values()))
    assert same(mapped, {(f"<{s}>",): w for (s,), w in a.rows.items()})


@given(several(2))
def test_map_distributes_over_addition(some):
    """The map is not injective: rows become equal, add up, and cancel."""
    a, b = some
    mapping = {"schema": "bucket INT"}

    def bucket(row):
        return (mixed(row) % 3,)

    assert (a.z + b.z).map_keys(bucket, **mapping) == a.z.map_keys(bucket, **mapping) + b.z.map_keys(bucket, **mapping)
    total = plus(a.rows, b.rows)
    assert same((a.z + b.z).map_keys(bucket, **mapping), model(map(bucket, total), total.values()))


@given(several(2, INTS))
def test_map_by_columns_is_map_by_rows(some):
    a, b = some
    z = a.z + b.z
    by_columns = z.map_keys(columns(lambda batch: {"k": pc.divide(batch["k"], 10)}))
    expected = model([(int(k / 10),) for (k,) in plus(a.rows, b.rows)], plus(a.rows, b.rows).values())
    assert same(by_columns, expected)
    assert by_columns == z.map_keys(lambda row: (int(row[0] / 10),))


@given(several(1))
def test_the_identity_map_changes_nothing(some):
    (a,) = some
    assert a.z.map_keys(lambda row: row) == a.z
    assert a.z.map_keys(columns(lambda batch: batch)) == a.z


# ---------------------------------------------------------------------- zero weights


@given(several(1))
def test_rows_of_weight_zero_are_nowhere(some):
    (a,) = some
    zero = a.z
    for row, weight in list(a.z):
        zero = zero.add(row, -weight).add(row, 0)
    assert same(zero, {})
    assert zero == ZSet.empty(a.z.schema)
    assert zero.to_arrow().num_rows == 0
    assert sum(batch.num_rows for batch, _ in zero.scan()) == 0
    with zero.arranged_view() as view:
        assert len(view) == 0
    for row, _ in a.z:
        assert row not in zero


def test_rows_of_weight_zero_in_arrow_data_are_ignored():
    table = pa.table({"k": [1, 2, 2, 3], "w": [0, 4, -4, 1]})
    assert same(ZSet.from_arrow(table, weight="w"), {(3,): 1})


@given(several(1))
def test_reading_out_and_putting_in_gives_the_same_value(some):
    (a,) = some
    assert made_again(a) == a.z
    assert same(made_again(a), a.rows)
    scanned = {}
    for batch, weights in a.z.scan():
        assert batch.num_rows == len(weights)
        for row, weight in zip(batch.to_pylist(), weights.tolist(), strict=True):
            key = canonical(row)
            assert key not in scanned
            scanned[key] = weight
    assert scanned == a.rows


def canonical(row):
    """A row as pyarrow gives it, in the model's form."""

    def value(v):
        return tuple(map(value, v.values())) if isinstance(v, dict) else v

    return plain([value(v) for v in row.values()])


@given(several(1))
def test_plain_rows_are_repeated_as_often_as_they_weigh(some):
    (a,) = some
    positive = a.z.filter(lambda row: a.rows[plain(row)] > 0)
    rows = [canonical(row) for row in positive.to_arrow().to_pylist()]
    assert model(rows) == {row: weight for row, weight in a.rows.items() if weight > 0}


# ---------------------------------------------------------------------- incremental


def deltas(kind):
    return st.lists(samples(kind), min_size=1, max_size=6)


@given(deltas(INTS))
def test_mapping_every_delta_is_mapping_the_sum(some):
    def double(row):
        return (2 * row[0] + 1,)

    incremental, whole = ZSet.empty(INTS.schema), ZSet.empty(INTS.schema)
    for delta in some:
        incremental = incremental + delta.z.map_keys(double)
        whole = whole + delta.z
    assert incremental == whole.map_keys(double)
    assert same(incremental, {(2 * k + 1,): w for (k,), w in plus(*(d.rows for d in some)).items()})


@given(deltas(INTS))
def test_filtering_every_delta_is_filtering_the_sum(some):
    def even(row):
        return row[0] % 2 == 0

    incremental, whole = ZSet.empty(INTS.schema), ZSet.empty(INTS.schema)
    for delta in some:
        incremental = incremental + delta.z.filter(even)
        whole = whole + delta.z
    assert incremental == whole.filter(even)
    assert same(incremental, {r: w for r, w in plus(*(d.rows for d in some)).items() if r[0] % 2 == 0})


@given(st.sampled_from(KINDS).flatmap(deltas), st.randoms(use_true_random=False))
def test_the_order_of_deltas_does_not_matter(some, random):
    shuffled = list(some)
    random.shuffle(shuffled)
    total, other = ZSet.empty(some[0].z.schema), ZSet.empty(some[0].z.schema)
    for delta in some:
        total = total + delta.z
    for delta in shuffled:
        other = other + delta.z
    assert total == other
    assert same(other, plus(*(d.rows for d in some)))


@given(several(2), st.integers(0, 20))
def test_a_delta_may_be_split_anywhere(some, at):
    base, delta = some
    rows = list(delta.z)
    first = base.z.add_many([r for r, _ in rows[:at]], [w for _, w in rows[:at]])
    both = first.add_many([r for r, _ in rows[at:]], [w for _, w in rows[at:]])
    assert both == base.z + delta.z
    assert same(both, plus(base.rows, delta.rows))


@given(several(1), st.integers(0, 3))
def test_changes_of_weight_zero_are_ignored(some, at):
    (a,) = some
    rows = [row for row, _ in a.z]
    assert a.z.add_many(rows, [0] * len(rows)) == a.z
    for row in rows[at : at + 1]:
        assert same(a.z.add(row, 0), a.rows)


@given(several(1))
def test_large_opposite_weights_cancel(some):
    (a,) = some
    z = a.z
    rows = [row for row, _ in a.z]
    for row in rows:
        z = z.add(row, 10_000)
    z = z.add_many(rows, [-10_000] * len(rows))
    assert z == a.z
    assert same(z, a.rows)


@given(several(1))
def test_three_repeats_are_three_times_the_weight(some):
    (a,) = some
    assert a.z + a.z + a.z == a.z * 3
    assert same(a.z + a.z + a.z, times(a.rows, 3))
    assert same(a.z.union_many([a.z, a.z]), times(a.rows, 3))


# ---------------------------------------------------------------------- what equal means


def test_every_nan_is_one_value():
    """Spark groups all NaNs together, whatever their bits."""
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF8DEADBEEF0000], np.uint64)
    z = ZSet.from_arrow(pa.table({"x": bits.view(np.float64)}))
    assert same(z, {("NaN",): 4})
    assert z.weight((math.nan,)) == 4
    assert same(z.add((float("nan"),), -3), {("NaN",): 1})
    assert same(z - ZSet.from_rows([(-math.nan,)] * 4, "x DOUBLE"), {})


def test_negative_zero_is_zero():
    z = ZSet.from_rows([(0.0, 1.0), (-0.0, 1.0)], "x DOUBLE, y FLOAT")
    assert same(z, {(0.0, 1.0): 2})
    assert z.weight((-0.0, 1.0)) == 2
    arrow = ZSet.from_arrow(pa.table({"x": [-0.0], "y": pa.array([1.0], pa.float32())}))
    assert same(z - arrow - arrow, {})


def test_nan_and_negative_zero_inside_of_nested_values_are_equal_too():
    schema = "l ARRAY<DOUBLE>, r STRUCT<x: DOUBLE>"
    z = ZSet.from_rows([([0.0, math.nan], (math.nan,)), ([-0.0, -math.nan], (-math.nan,))], schema)
    assert same(z, {((0.0, "NaN"), ("NaN",)): 2})
    bits = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    assert z.weight(([-0.0, bits], (bits,))) == 2


def test_null_is_equal_to_null_and_to_nothing_else():
    z = ZSet.from_rows([(None,), (None,), ("",), ("NULL",)], "s STRING")
    assert same(z, {(None,): 2, ("",): 1, ("NULL",): 1})
    nested = ZSet.from_rows([((None,),), (None,), ((None,),)], "r STRUCT<x: INT>")
    assert same(nested, {((None,),): 2, (None,): 1})
    lists = ZSet.from_rows([([],), (None,), ([None],), ([],)], "l ARRAY<INT>")
    assert same(lists, {((),): 2, (None,): 1, ((None,),): 1})


def test_decimals_of_one_value_are_equal_however_they_are_written():
    z = ZSet.from_rows([(Decimal("1.5"),), (Decimal("1.50"),), (Decimal("15e-1"),), (1,)], "d DECIMAL(10, 2)")
    assert same(z, {(Decimal("1.5"),): 3, (Decimal(1),): 1})


def test_maps_are_equal_whatever_the_order_of_their_entries():
    z = ZSet.from_rows([({"a": 1, "b": 2},), ({"b": 2, "a": 1},)], "m MAP<STRING, INT>")
    assert same(z, {((("a", 1), ("b", 2)),): 2})


@given(several(2, FLOATS))
def test_floats_cancel_exactly(some):
    a, b = some
    assert same(a.z + b.z - a.z, b.rows)


@given(several(2, NESTED))
def test_nested_values_cancel_exactly(some):
    a, b = some
    assert same(a.z + b.z - a.z, b.rows)


@given(several(1, STRINGS), several(1, STRINGS))
def test_strings_of_one_row_each_build_up_the_same_value(first, second):
    total = plus(first[0].rows, second[0].rows)
    assert same(made(total, STRINGS.schema), total)
    assert first[0].z + second[0].z == made(total, STRINGS.schema)
