"""Merges and consolidation against sums in a dict.

A merge may be cut anywhere: by the limit of a step, by chunks, by cursors inside a chunk. However it is cut, the steps
together have to result in each row once, in order, with its total weight, and every step has to end.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch
from dbspark.columnar.chunk import CHUNK_ROWS
from dbspark.columnar.merge_batches import MergePlan
from dbspark.errors import WeightOverflowError
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge.consolidate import consolidate, merge_ranges, merge_two, same_batches, survey_weights
from dbspark.kernels.sort.radix_sort import sort_hashes
from tests.kernels.build import (
    ONE_COLUMN,
    TOP,
    Item,
    Sources,
    batch_of,
    chunk_of,
    cut,
    distinct,
    everything,
    range_steps,
    several,
    spread,
    total,
)
from tests.strategies import INT64_MAX, INT64_MIN


def two_steps(sources: Sources, limit: int) -> list[Item]:
    """Run `merge_two` to its end in steps of `limit`, checking what each step promises."""
    out: list[Item] = []
    pos, weights, info = np.empty(limit, np.int64), np.empty(limit, np.int64), np.empty(4, np.int64)
    while True:
        before = sources.cursors.copy()
        merge_two(sources.tables, sources.lens, sources.cursors, sources.ends, *ONE_COLUMN, limit, pos, weights, info)
        written, read, ones, done = info.tolist()
        assert 0 <= written <= limit
        items = sources.output(pos[:written], weights[:written])
        assert items == total(sources.read(before, sources.cursors))
        assert read == len(sources.read(before, sources.cursors))
        assert read <= 2 * limit + 1, "the last comparison may read two rows, no more"
        assert ones == all(item.weight == 1 for item in items)
        assert done or read, "a step must go on"
        out += items
        if done:
            assert np.array_equal(
                [sources.rows_before(s, c) for s, c in enumerate(sources.cursors)],
                [sources.rows_before(s, c) for s, c in enumerate(sources.ends)],
            )
            return out


@given(several(2, 2), st.integers(1, 50))
def test_merging_two_in_steps_gives_the_sum(drawn: Any, limit: int) -> None:
    sources = Sources(*drawn)
    assert two_steps(sources, limit) == everything(sources.groups)


@given(several(1, 5), st.integers(1, 120))
def test_merging_ranges_in_steps_gives_the_sum(drawn: Any, limit: int) -> None:
    sources = Sources(*drawn)
    assert range_steps(sources, limit) == everything(sources.groups)


@given(several(2, 2), st.integers(1, 20), st.data())
def test_cursors_and_ends_bound_a_merge_of_two(drawn: Any, limit: int, data: st.DataObject) -> None:
    sources = Sources(*drawn)
    for s, items in enumerate(sources.groups):
        low = data.draw(st.integers(0, len(items)))
        high = data.draw(st.integers(low, len(items)))
        sources.cursors[s], sources.ends[s] = sources.cursor(s, low), sources.cursor(s, high)
    expected = total(sources.read(sources.cursors, sources.ends))
    assert two_steps(sources, limit) == expected


# ------------------------------------------------------------------------------------------- shapes that matter


@pytest.mark.parametrize("limit", [1, 2, 7, 100, 10_000])
def test_disjoint_ranges_follow_each_other(limit: int) -> None:
    items = spread(range(300))
    groups = [items[:100], items[100:]]
    assert two_steps(Sources(groups, [cut(g, 30) for g in groups]), limit) == items
    groups = [items[200:], items[:50], items[50:200]]
    assert range_steps(Sources(groups, [cut(g, 30) for g in groups]), limit) == items


@pytest.mark.parametrize("limit", [1, 3, 64, 10_000])
def test_interleaved_rows_alternate(limit: int) -> None:
    items = spread(range(300))
    groups = [items[::2], items[1::2]]
    assert two_steps(Sources(groups, [cut(g, 17) for g in groups]), limit) == items
    groups = [items[::3], items[1::3], items[2::3]]
    assert range_steps(Sources(groups, [cut(g, 17) for g in groups]), limit) == items


@pytest.mark.parametrize("limit", [1, 5, 64, 10_000])
def test_rows_that_cancel_leave_nothing_and_every_step_ends(limit: int) -> None:
    items = spread(range(400))
    gone = [i._replace(weight=-1) for i in items]
    assert two_steps(Sources([items, gone], [cut(items, 100), cut(gone, 70)]), limit) == []
    halves = [[i._replace(weight=-2) for i in items], items, items]
    assert range_steps(Sources(halves, [cut(g, 90) for g in halves]), limit) == []


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_rows_that_collide_in_both_hashes_stay_together(limit: int) -> None:
    items = [Item(5, 6, v, 1) for v in range(50)]
    groups = [items[::2], items[1::2], items[10:20]]
    expected = everything(groups)
    assert range_steps(Sources(groups, [cut(g, 4) for g in groups]), limit) == expected
    assert two_steps(Sources(groups[:2], [cut(g, 4) for g in groups[:2]]), limit) == items


# --------------------------------------------------------------------------------------------------- overflow

OVERFLOWING = [(INT64_MAX, 1), (-INT64_MAX, -1), (INT64_MAX, INT64_MAX), (-(2**62), -(2**62) - 1), (-(2**62), -(2**62))]
FITTING = [(INT64_MAX, -INT64_MAX), (INT64_MAX - 1, 1), (1 - INT64_MAX, -1), (-(2**62), 1 - (2**62))]
"""-2**63 is outside the range: it has no negation, so a row of that weight could not be retracted."""


@pytest.mark.parametrize("pair", OVERFLOWING + FITTING)
def test_a_sum_outside_the_range_is_reported_and_one_within_is_exact(pair: tuple[int, int]) -> None:
    before, after = Item(1, 1, 1, 5), Item(TOP, TOP, 1, 5)
    groups = [[before, Item(2, 2, 2, pair[0]), after], [Item(2, 2, 2, pair[1])]]
    batches = [batch_of(g) for g in groups]
    pos, weights, info = np.empty(9, np.int64), np.empty(9, np.int64), np.empty(4, np.int64)
    two = Sources(groups, batches)
    merge_two(two.tables, two.lens, two.cursors, two.ends, *ONE_COLUMN, 9, pos, weights, info)
    if pair in FITTING:
        assert two.output(pos[: info[0]], weights[: info[0]]) == everything(groups)
    else:
        assert info[0] == OVERFLOW
    many = Sources(groups, batches)
    keys, order = np.empty(18, np.uint64), np.empty(18, np.int64)
    merge_ranges(many.tables, many.lens, many.cursors, many.ends, *ONE_COLUMN, keys, order, pos, weights, info)
    if pair in FITTING:
        assert many.output(pos[: info[0]], weights[: info[0]]) == everything(groups)
    else:
        assert info[0] == OVERFLOW


@pytest.mark.parametrize("copies", [2, 3])
def test_a_merge_that_overflows_raises_and_leaves_its_inputs(copies: int) -> None:
    items = [Item(1, 1, 1, INT64_MAX)]
    batches = [batch_of(items) for _ in range(copies)]
    plan = MergePlan(batches)
    with pytest.raises(WeightOverflowError, match="int64"):
        plan.step(CHUNK_ROWS)
    assert all(b.weights().tolist() == [INT64_MAX] for b in batches)


# ------------------------------------------------------------------------------------------------ consolidating


def consolidated(items: list[Item]) -> list[Item] | int:
    n = len(items)
    chunk = chunk_of(items)
    keys, hashes = chunk.lane(nd.KEY), chunk.lane(nd.HASH)
    order, pos, weights, info = (np.empty(m, np.int64) for m in (n, n, n, 4))
    sort_hashes(keys, hashes, order, np.empty(2 * n, np.uint64), np.empty(n, np.int64))
    consolidate(chunk.table, keys, hashes, order, *ONE_COLUMN, pos, weights, info)
    written, read, ones, done = info.tolist()
    if written == OVERFLOW:
        return OVERFLOW
    out = [items[p]._replace(weight=w) for p, w in zip(pos[:written].tolist(), weights[:written].tolist(), strict=True)]
    assert (read, done) == (n, 1)
    assert ones == all(item.weight == 1 for item in out)
    return out


@given(several(1, 5), st.randoms(use_true_random=False))
def test_consolidating_unsorted_rows_gives_their_sum(drawn: Any, random: Any) -> None:
    items = [item for group in drawn[0] for item in group]
    random.shuffle(items)
    assert consolidated(items) == total(items)


@given(several(1, 3), st.randoms(use_true_random=False))
def test_rows_of_weight_zero_are_dropped(drawn: Any, random: Any) -> None:
    items = [item._replace(weight=0) for item in drawn[0][0]] + [item for group in drawn[0][1:] for item in group]
    random.shuffle(items)
    assert consolidated(items) == total(items)


def test_many_colliding_rows_are_told_apart_by_value() -> None:
    values = [(7 * i) % 200 for i in range(1000)]
    items = [Item(1, 1, v, 1) for v in values] + [Item(1, 1, None, -1)] * 3
    assert consolidated(items) == total(items)


@pytest.mark.parametrize("pair", OVERFLOWING)
def test_consolidating_reports_a_sum_beyond_int64(pair: tuple[int, int]) -> None:
    items = [Item(1, 1, 1, 1), *(Item(2, 2, 2, w) for w in pair), Item(3, 3, 3, 1)]
    assert consolidated(items) == OVERFLOW


# --------------------------------------------------------------------------------- plans: unread input


@given(several(2, 4), st.integers(1, 30))
def test_output_and_remaining_inputs_always_sum_to_the_whole(drawn: Any, limit: int) -> None:
    groups, batches = drawn
    expected = everything(groups)
    plan = MergePlan(batches)
    out: list[Any] = []
    while not plan.done:
        out += plan.step(limit)
        left = plan.remaining()
        assert plan.read + sum(b.rows for b in left) == sum(b.rows for b in batches)
        so_far = [Batch(plan.sort_key, out), *left] if out else left
        assert total(i for b in so_far for i in _items(b)) == expected
        for written, ahead in ((_items(so_far[0]), b) for b in left if out):
            assert written[-1].rank < _items(ahead)[0].rank
    assert not plan.remaining()
    assert _items(Batch(plan.sort_key, out)) == expected
    assert all(a.rank < b.rank for a, b in pairwise(expected))


def _items(batch: Batch) -> list[Item]:
    values = batch.to_arrow()["v"].to_pylist()
    lanes = [[int(v) for c in batch.chunks for v in c.lane(node)] for node in (nd.KEY, nd.HASH)]
    return [Item(*row) for row in zip(*lanes, values, batch.weights().tolist(), strict=True)]


def test_distinct_rows_of_one_batch_stay_as_they_are() -> None:
    items = distinct(spread(range(50)))
    assert range_steps(Sources([items], [cut(items, 9)]), 10) == items


# ------------------------------------------------------------------------------------------- comparing, measuring


@given(several(1, 1), st.data())
def test_batches_are_the_same_exactly_if_their_rows_and_weights_are(drawn: Any, data: st.DataObject) -> None:
    (items,), (batch,) = drawn
    other = list(items)
    change = data.draw(st.sampled_from(["nothing", "weight", "value", "hash"]))
    at = data.draw(st.integers(0, len(items) - 1))
    if change == "weight":
        other[at] = other[at]._replace(weight=other[at].weight + 1)
    elif change == "value":
        other[at] = other[at]._replace(value=77)
    elif change == "hash":
        other[at] = other[at]._replace(hash=other[at].hash ^ 1)
    other = distinct(other)
    again = batch_of(other, data.draw(st.lists(st.integers(1, 20), max_size=4)), before=data.draw(st.integers(0, 3)))
    same = same_batches(batch.tables, batch.lens, again.tables, again.lens, *ONE_COLUMN)
    assert same == (other == items)


def survey(tables: Any, lens: Any) -> tuple[int, int, int]:
    """(largest magnitude, weights below zero, sum)"""
    info = np.empty(4, np.int64)
    survey_weights(tables, lens, info)
    largest, negative, high, low = info.tolist()
    return largest, negative, (high << 32) + low


@given(several(1, 3))
def test_the_weights_are_surveyed(drawn: Any) -> None:
    sources = Sources(*drawn)
    weights = [item.weight for group in sources.groups for item in group]
    assert survey(sources.tables, sources.lens) == (max(map(abs, weights)), sum(w < 0 for w in weights), sum(weights))


@pytest.mark.parametrize("weight", [INT64_MAX, -INT64_MAX, 2**62, -1, 2**32, -(2**32) - 1])
def test_a_sum_of_weights_beyond_int64_is_exact(weight: int) -> None:
    items = [Item(i, i, i, weight) for i in range(300)]
    batch = cut(items, 70)
    assert survey(batch.tables, batch.lens) == (abs(weight), 300 * (weight < 0), 300 * weight)


def test_the_magnitude_of_the_least_int64_counts_as_that_of_the_greatest() -> None:
    batch = batch_of([Item(1, 1, 1, INT64_MIN), Item(2, 2, 2, -4)])
    assert survey(batch.tables, batch.lens) == (INT64_MAX, 2, INT64_MIN - 4)
