"""Merging: a merge is the sum of its inputs, whole or in steps, and a `MergePlan` in progress gives back the rest."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey, merge, merge_batches
from dbspark.columnar.merge_batches import MergePlan
from dbspark.errors import DbsparkError, WeightOverflowError
from dbspark.zset import ZSet
from tests.columnar.model import check, in_chunks, plus, rows, zset
from tests.columnar.test_batch import batches, sort_keys
from tests.strategies import INT64_MAX, schemas, table_of, tables

SCHEMA = Schema.parse("k BIGINT, v BIGINT")
SIZES = (90, 10, 40, 3)


@given(st.data())
def test_a_merge_is_the_sum(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    sort_key = data.draw(sort_keys(schema))
    parts = data.draw(st.lists(batches(sort_key), min_size=1, max_size=5))
    merged = merge([b for b, _ in parts])
    check(merged, plus(*(z for _, z in parts)))
    for batch, expected in parts:
        check(batch, expected)


@given(st.data())
def test_merging_overlapping_batches_sums_equal_rows(data: st.DataObject) -> None:
    """All batches are cut from one table, so that most rows meet others."""
    schema = data.draw(schemas(max_columns=2))
    sort_key = data.draw(sort_keys(schema))
    table = data.draw(tables(schema, max_rows=12))
    parts = []
    for _ in range(data.draw(st.integers(2, 4))):
        weights = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=len(table), max_size=len(table))), np.int64)
        batch = in_chunks(Batch.from_arrow(table, sort_key, weights), data.draw(st.lists(st.integers(1, 4))))
        parts.append((batch, zset(rows(table), weights)))
    check(merge([b for b, _ in parts]), plus(*(z for _, z in parts)))


@pytest.mark.parametrize("copies", [2, 3, 5])
@pytest.mark.parametrize("ddl", ["a BIGINT", "a STRING, b ARRAY<STRING>, m MAP<INT, STRING>"])
def test_a_batch_and_its_opposite_leave_nothing(ddl: str, copies: int) -> None:
    schema = Schema.parse(ddl)
    if schema.nested:
        table = table_of(schema, [(str(i), [str(i)] * (i % 4), [(i, None)]) for i in range(3000)])
    else:
        table = table_of(schema, [(i,) for i in range(3000)])
    batch = Batch.from_arrow(table, SortKey(schema))
    gone = batch.with_weights(np.full(batch.rows, 1 - copies))
    assert merge([batch] * (copies - 1) + [gone]).rows == 0


def test_large_merges_in_two_threads_are_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_batches, "PARALLEL_MERGE_ROWS", 50)
    table = pa.table({"a": range(400), "s": [str(i % 7) for i in range(400)]})
    for sort_key in (SortKey(Schema(table.schema)), SortKey(Schema(table.schema), (1,))):
        for count in (2, 3, 4):
            parts = [table.slice(60 * i, 200) for i in range(count)]
            made = [in_chunks(Batch.from_arrow(p, sort_key), [30] * 5) for p in parts]
            check(merge(made), plus(*(zset(rows(p), [1] * len(p)) for p in parts)))
            gone = [b.with_weights(np.full(b.rows, -1)) for b in made]
            assert merge([*made, *gone]).rows == 0


def test_an_overflow_in_either_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_batches, "PARALLEL_MERGE_ROWS", 2)
    for number in range(8):
        batch = Batch.from_arrow(pa.table({"a": [number]}), weights=[INT64_MAX])
        with pytest.raises(WeightOverflowError):
            merge([batch, batch])
        with pytest.raises(WeightOverflowError):
            merge([batch, batch, batch])
        assert batch.weights().tolist() == [INT64_MAX]


def test_batches_of_two_sort_keys_are_not_merged() -> None:
    one = Batch.from_arrow(pa.table({"a": [1, 2], "b": [1, 2]}))
    for other in (Batch.from_arrow(pa.table({"a": ["x"], "b": [1]})), one.sorted_by(SortKey(one.schema, (1,)))):
        with pytest.raises(DbsparkError):
            merge([one, other])
        with pytest.raises(DbsparkError):
            merge([one, other, one])


def test_a_merge_of_one_batch_and_empty_ones_is_that_batch() -> None:
    batch = Batch.from_arrow(pa.table({"a": [1, 2]}))
    empty = Batch.empty(batch.sort_key)
    assert merge([batch]) is batch
    assert merge([empty, batch, empty]) is batch
    assert merge([empty]).rows == 0


def inputs() -> list[Batch]:
    """Batches that share their keys, each with a value of its own."""
    return [ZSet.from_rows([(k, age) for k in range(size)], SCHEMA).batch() for age, size in enumerate(SIZES)]


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_remaining_inputs_come_in_the_order_of_the_arguments(limit: int) -> None:
    batches_of_ages = inputs()
    plan = MergePlan(batches_of_ages)
    done: list[Batch] = []
    while not plan.done:
        done.append(Batch(batches_of_ages[0].sort_key, plan.step(limit)))
        left = plan.remaining()
        ages = [set(batch.to_arrow()["v"].to_pylist()) for batch in left]
        assert all(len(age) == 1 for age in ages)
        assert [min(age) for age in ages] == sorted(min(age) for age in ages)
        assert merge([b for b in (*done, *left) if b.rows]).same(merge(batches_of_ages))
    assert merge(done).same(merge(batches_of_ages))


def test_a_plan_of_unread_inputs_goes_on_where_the_other_stopped() -> None:
    """Each input is read from its first unread row."""
    batches_of_ages = inputs()
    plan, done = MergePlan(batches_of_ages), []
    while not plan.done:
        done.append(Batch(batches_of_ages[0].sort_key, plan.step(5)))
        plan = plan if plan.done else MergePlan(*plan.unread_inputs())
    whole = merge(done)
    assert whole.same(merge(batches_of_ages))
    assert int(np.abs(whole.weights()).sum()) == sum(SIZES)
