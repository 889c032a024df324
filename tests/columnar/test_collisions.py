"""The core properties of batches once more, with hashes so weak that collisions are the rule.

Under mask 0 all rows share one hash and only their values tell them apart; 1 and 7 leave a few classes; the last
keeps only leading bits, by which chunks are split and searched. Whatever the mask, the answers are the same.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey, merge, merge_batches
from dbspark.columnar.merge_batches import MergePlan
from dbspark.columnar.sort_key import weakened_hash
from dbspark.kernels.lookup import row_lookup as kw
from dbspark.kernels.memory import layout as nd
from tests.columnar.model import check, contents, in_chunks, order_key, plus, rows, zset
from tests.columnar.test_batch import batches, sort_keys
from tests.kernels.test_hash import VALUES
from tests.strategies import schemas, tables, weighted_tables

pytestmark = pytest.mark.usefixtures("mask")
some = settings(max_examples=max(settings.default.max_examples // 4, 10))


@pytest.fixture(params=[0, 1, 7, 0xF000000000000000], ids=hex, scope="module")
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    with weakened_hash(request.param):
        yield request.param


@some
@given(st.data())
def test_a_batch_holds_the_sum_of_its_input(mask: int, data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    table, weights = data.draw(weighted_tables(schema))
    batch = Batch.from_arrow(table, data.draw(sort_keys(schema)), weights)
    check(batch, zset(rows(table), weights), mask)


@pytest.mark.parametrize("name", VALUES)
def test_different_values_of_every_type_are_told_apart(mask: int, name: str) -> None:
    dtype, values = VALUES[name]
    table = pa.table([pa.array(values * 3, dtype)], ["c"])
    expected = zset(rows(table), [1] * table.num_rows)
    batch = Batch.from_arrow(table)
    check(batch, expected, mask)
    ordered = sorted(expected, key=lambda row: order_key(row[0], dtype))
    assert mask or rows(batch.to_arrow()) == ordered, "under one hash the order is that of the values"
    pieces = [Batch.from_arrow(table.slice(i, 1)) for i in range(len(values))]
    check(merge(pieces), zset(rows(table.slice(0, len(values))), [1] * len(values)), mask)
    for size in (1, 3):
        parts = in_chunks(batch, [size] * len(expected))
        assert merge([parts, batch.with_weights(-batch.weights())]).rows == 0


def _deep(leaf: Any, depth: int, width: int) -> tuple[pa.DataType, Any]:
    """A value in which a leaf is the last of many, many levels down."""
    dtype, value = pa.string(), leaf
    for level in range(depth):
        names = [f"f{i}" for i in range(width)]
        dtype = pa.struct([(n, dtype) for n in names])
        value = dict.fromkeys(names[:-1]) | {names[-1]: value}
        if level % 2:
            dtype, value = pa.map_(pa.int8(), dtype), [(1, None), (2, value)]
        dtype, value = pa.list_(dtype), [None, value, value]
    return dtype, value


@pytest.mark.parametrize(("depth", "width"), [(1, 40), (2, 12), (4, 3), (7, 1)])
def test_values_that_differ_only_in_the_last_leaf_of_a_deep_tree_are_told_apart(
    mask: int, depth: int, width: int
) -> None:
    dtype, _ = _deep("", depth, width)
    leaves = ["a", "b", None, "", "ab"]
    table = pa.table([pa.array([_deep(leaf, depth, width)[1] for leaf in leaves * 2], dtype)], ["c"])
    assert table["c"].type == dtype
    batch = Batch.from_arrow(table)
    check(batch, zset(rows(table), [1] * 10), mask)
    assert batch.rows == 5
    assert merge([batch, Batch.from_arrow(table, weights=[-1] * 10)]).rows == 0


@some
@given(st.data())
def test_a_merge_is_the_sum(mask: int, data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=2))
    sort_key = data.draw(sort_keys(schema))
    parts = data.draw(st.lists(batches(sort_key, max_rows=12), min_size=1, max_size=4))
    check(merge([b for b, _ in parts]), plus(*(z for _, z in parts)), mask)
    for batch, expected in parts:
        check(batch, expected, mask)


@some
@given(st.data())
def test_merging_overlapping_batches_in_steps_sums_equal_rows(mask: int, data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=2))
    sort_key = data.draw(sort_keys(schema))
    table = data.draw(tables(schema, max_rows=12).filter(len))
    made, expected = [], []
    for _ in range(data.draw(st.integers(2, 4))):
        weights = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=len(table), max_size=len(table))), np.int64)
        weights[0] = 1
        batch = in_chunks(Batch.from_arrow(table, sort_key, weights), data.draw(st.lists(st.integers(1, 4))))
        if batch.rows:
            made.append(batch)
            expected.append(zset(rows(table), weights))
    if len(made) < 2:
        return
    limit = data.draw(st.integers(1, 20))
    plan = MergePlan(made)
    out: list[Any] = []
    while not plan.done:
        before = plan.read
        out += plan.step(limit)
        assert plan.done or plan.read > before
        left = [contents(b) for b in plan.remaining()]
        assert plus(contents(Batch(sort_key, out)), *left) == plus(*expected)
    check(Batch(sort_key, out), plus(*expected), mask)


@some
@given(st.data())
def test_a_batch_minus_itself_is_empty(mask: int, data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    batch, _ = data.draw(batches(data.draw(sort_keys(schema))))
    gone = in_chunks(batch, [2, 3, 1]).with_weights(-batch.weights())
    assert merge([batch, gone]).rows == 0
    assert merge([batch, gone, batch, gone]).rows == 0
    assert contents(merge([batch, batch, gone])) == contents(batch)


@some
@given(st.data())
def test_sorting_by_another_key_and_back_keeps_the_rows(mask: int, data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    start, other = data.draw(sort_keys(schema)), data.draw(sort_keys(schema))
    batch, expected = data.draw(batches(start))
    there = batch.sorted_by(other)
    check(there, expected, mask)
    back = there.sorted_by(start)
    check(back, expected, mask)
    assert rows(back.to_arrow()) == rows(batch.to_arrow())


@some
@given(st.data())
def test_a_slice_is_a_slice_of_the_rows(mask: int, data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=2))
    batch, _ = data.draw(batches(data.draw(sort_keys(schema))))
    whole = list(zip(rows(batch.to_arrow()), batch.weights().tolist(), strict=True))
    low = data.draw(st.integers(0, len(whole)))
    high = data.draw(st.integers(low, len(whole)))
    check(batch.slice(low, high - low), dict(whole[low:high]), mask)
    cut = [batch.slice(0, low), batch.slice(low, high - low), batch.slice(high)]
    assert contents(merge(cut)) == dict(whole)


@some
@given(st.data())
def test_every_row_is_found_with_its_weight_and_no_other(mask: int, data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=2))
    sort_key = data.draw(sort_keys(schema))
    parts = data.draw(st.lists(batches(sort_key, max_rows=12).filter(lambda p: p[0].rows), min_size=1, max_size=3))
    probe, _ = data.draw(batches(sort_key))
    probe = merge([probe, parts[0][0].slice(0, 3).with_weights(np.full(min(3, parts[0][0].rows), 1 << 50))])
    made = [b for b, _ in parts]
    tables = np.concatenate([b.tables for b in made])
    lens = np.concatenate([b.lens for b in made])
    fences = np.concatenate([b.fences for b in made])
    starts = np.cumsum([0, *(len(b.chunks) for b in made)])
    total = plus(*(z for _, z in parts))
    first = {row: i for i, row in enumerate(rows(made[0].to_arrow()))}
    for chunk in probe.chunks:
        asked = rows(Batch(sort_key, (chunk,)).to_arrow())
        out = np.empty(chunk.rows, np.int64)
        size = (schema.columns, schema.node_count)
        assert kw.sum_weights(tables, lens, fences, starts, chunk.table, chunk.rows, *size, out) == 0
        assert out.tolist() == [total.get(row, 0) for row in asked]
        kw.find_rows(tables, lens, fences, starts, chunk.table, chunk.rows, *size, out)
        begins = np.cumsum([0, *made[0].lens])
        places = [-1 if p < 0 else int(begins[p >> nd.ROW_BITS]) + (p & nd.ROW_MASK) for p in out.tolist()]
        assert places == [first.get(row, -1) for row in asked]


def test_many_colliding_rows_are_sorted_and_summed(mask: int) -> None:
    table = pa.table({"a": [i % 700 for i in range(2000)], "s": [str(i % 700) for i in range(2000)]})
    expected = zset(rows(table), [1] * 2000)
    for key in (None, (1,), ()):
        sort_key = SortKey(Schema(table.schema), key)
        whole = Batch.from_arrow(table, sort_key)
        check(whole, expected, mask)
        parts = [Batch.from_arrow(table.slice(at, 500), sort_key) for at in range(0, 2000, 500)]
        check(merge(parts), expected, mask)
        check(merge(parts[:2]), plus(contents(parts[0]), contents(parts[1])), mask)


def test_large_merges_in_two_threads_are_sums(mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_batches, "PARALLEL_MERGE_ROWS", 10)
    table = pa.table({"a": range(120)})
    parts = [in_chunks(Batch.from_arrow(table.slice(20 * i, 80)), [9] * 5) for i in range(3)]
    check(merge(parts), plus(*map(contents, parts)), mask)
    check(merge(parts[:2]), plus(*map(contents, parts[:2])), mask)
