"""`Batch` against Z-sets in dicts: what goes in comes out, once per row, sorted, and never changes again.

`model.check` holds every batch against all invariants: rows and weights, lanes equal to the hashes worked out in plain
Python, strictly increasing order. The core properties run again under colliding hashes in `test_collisions`.
"""

import gc
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey, merge
from dbspark.columnar.chunk import CHUNK_ROWS, import_arrays
from dbspark.columnar.rows import decode_arrays, encode_rows
from dbspark.kernels.memory import layout as nd
from tests.columnar import model
from tests.columnar.model import check, contents, in_chunks, plus, rows, zset
from tests.kernels.test_hash import VALUES
from tests.strategies import data_types, schemas, table_of, tables, values, weighted_tables


@st.composite
def sort_keys(draw: st.DrawFn, schema: Schema) -> SortKey:
    key = draw(st.none() | st.lists(st.integers(0, schema.columns - 1), unique=True))
    return SortKey(schema, key)


@st.composite
def batches(draw: st.DrawFn, sort_key: SortKey, max_rows: int = 24) -> Any:
    """(batch in several chunks, the Z-set it holds)."""
    table, weights = draw(weighted_tables(sort_key.schema, max_rows))
    batch = Batch.from_arrow(table, sort_key, weights)
    sizes = draw(st.lists(st.integers(1, 6), max_size=4))
    return in_chunks(batch, sizes, draw(st.booleans())), zset(rows(table), weights)


# -------------------------------------------------------------------------------------------------- in and out


@given(st.data())
def test_a_batch_holds_the_sum_of_its_input(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    table, weights = data.draw(weighted_tables(schema))
    sort_key = data.draw(sort_keys(schema))
    check(Batch.from_arrow(table, sort_key, weights), zset(rows(table), weights))
    check(Batch.from_arrow(table, sort_key), zset(rows(table), [1] * table.num_rows))


@given(st.data())
def test_record_batches_and_tables_give_the_same_batch(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    table, weights = data.draw(weighted_tables(schema))
    whole = Batch.from_arrow(table, SortKey(schema), weights)
    parts = []
    at = 0
    for part in table.to_batches():
        parts.append(Batch.from_arrow(part, SortKey(schema), weights[at : at + part.num_rows]))
        at += part.num_rows
    assert contents(merge([Batch.empty(SortKey(schema)), *parts])) == contents(whole)


@given(st.data())
def test_rows_decode_to_the_same_zset(data: st.DataObject) -> None:
    """The slow way out, through Python rows, agrees with the model on what is equal."""
    schema = Schema.parse("a BIGINT, b DOUBLE, s STRING, l ARRAY<FLOAT>, m MAP<STRING, INT>, t STRUCT<x: BOOLEAN>")
    table, weights = data.draw(weighted_tables(schema))
    batch = Batch.from_arrow(table, SortKey(schema), weights)
    decoded = [row for chunk in batch.chunks for row in decode_arrays(schema, chunk.arrays())]
    assert len(set(decoded)) == len(decoded)
    again = pa.Table.from_arrays(encode_rows(schema, decoded), schema=schema.arrow)
    assert zset(rows(again), batch.weights()) == zset(rows(table), weights)


@pytest.mark.parametrize("dtype", [pa.int64(), pa.string(), pa.list_(pa.int32()), pa.map_(pa.int8(), pa.bool_())])
def test_no_rows_make_an_empty_batch(dtype: pa.DataType) -> None:
    table = pa.table({"c": pa.array([], dtype)})
    for batch in (
        Batch.from_arrow(table),
        Batch.from_arrow(table, weights=np.empty(0, np.int64)),
        Batch.empty(SortKey(Schema(table.schema))),
        Batch.from_arrow(pa.table({"c": pa.array([None, None], dtype)}), weights=[1, -1]),
        Batch.from_arrow(pa.table({"c": pa.array([None], dtype)})).slice(1),
        Batch.from_arrow(pa.table({"c": pa.array([None], dtype)})).select(np.empty(0, np.int64)),
    ):
        assert len(batch) == batch.rows == 0
        assert batch.chunks == ()
        assert batch.weights().tolist() == []
        assert batch.to_arrow().num_rows == 0
        assert batch.to_arrow().schema == batch.schema.arrow
        assert batch.slice(0, 5).rows == 0
        assert merge([batch, batch]).rows == 0
        assert batch.sorted_by(SortKey(batch.schema, ())).rows == 0
        assert batch.fences.tolist() == []


def test_everything_may_cancel() -> None:
    table = pa.table({"a": list(range(100)) * 2})
    assert Batch.from_arrow(table, weights=[1] * 100 + [-1] * 100).rows == 0


def test_rows_of_weight_zero_do_not_exist() -> None:
    batch = Batch.from_arrow(pa.table({"a": [1, 2, 3]}), weights=[0, 5, 0])
    check(batch, {(2,): 5})


def test_a_struct_without_fields_is_there_or_not() -> None:
    table = pa.table({"a": pa.array([{}, None, {}, None, {}], pa.struct([]))})
    check(Batch.from_arrow(table), {((),): 3, (None,): 2})
    check(Batch.from_arrow(table.filter(table["a"].is_valid())), {((),): 3})
    with_map = table.append_column("m", pa.array([[(1, 2)]] * 5, pa.map_(pa.int8(), pa.int8())))
    check(Batch.from_arrow(with_map), {((), frozenset({(1, 2)})): 3, (None, frozenset({(1, 2)})): 2})
    valid = with_map.filter(with_map["a"].is_valid())
    check(Batch.from_arrow(valid), {((), frozenset({(1, 2)})): 3})


def test_a_nested_child_without_offsets_is_empty() -> None:
    """Arrow lets an array of length zero do without its offsets, or with an empty buffer."""
    for offsets in (None, pa.py_buffer(b"")):
        child = pa.Array.from_buffers(pa.list_(pa.int32()), 0, [None, offsets], children=[pa.array([], pa.int32())])
        lists = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), child)
        check(Batch.from_arrow(pa.table({"a": lists})), {((),): 2})
        text = pa.Array.from_buffers(pa.string(), 0, [None, offsets, pa.py_buffer(b"")])
        lists = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), text)
        check(Batch.from_arrow(pa.table({"a": lists})), {((),): 2})


def test_children_with_offsets_of_their_own_are_read_from_there() -> None:
    numbers = pa.array([99, 99, 99, 1, None, 3, 4, 5, 6], pa.int64()).slice(3)
    text = pa.array(["no", "a", "b", None, "a", "b", "c"]).slice(1)
    structs = pa.StructArray.from_arrays([numbers, text], ["n", "t"])
    offsets = pa.array([9, 0, 2, 2, 5, 6, 6, 6], pa.int32()).slice(1)
    lists = pa.ListArray.from_arrays(offsets, structs)
    maps = pa.MapArray.from_arrays(offsets, pa.array([0, 1, 2, 3, 4, 5, 6]).slice(1), structs)
    nested = pa.StructArray.from_arrays([lists, maps], ["l", "m"])
    table = pa.table({"s": structs, "l": lists, "m": maps, "n": nested}).slice(1)
    expected = [
        {"n": None, "t": "b"}, {"n": 3, "t": None}, {"n": 4, "t": "a"}, {"n": 5, "t": "b"}, {"n": 6, "t": "c"},
    ]  # fmt: skip
    assert table["s"].to_pylist() == expected
    batch = Batch.from_arrow(table)
    check(batch, zset(rows(table), [1] * 5))
    assert sorted(map(str, batch.to_arrow()["s"].to_pylist())) == sorted(map(str, expected))


@pytest.mark.parametrize("rows_given", [CHUNK_ROWS, CHUNK_ROWS + 1, 3 * CHUNK_ROWS + 7])
def test_many_rows_go_into_chunks_and_come_back(rows_given: int) -> None:
    numbers = np.arange(rows_given) * 7919
    table = pa.table({"a": numbers, "s": pa.array(numbers % 1000).cast(pa.string())})
    batch = Batch.from_arrow(table, weights=(numbers % 5) + 1)
    assert batch.rows == rows_given
    assert max(batch.lens) <= CHUNK_ROWS
    assert len(batch.chunks) == -(-rows_given // CHUNK_ROWS)
    out = batch.to_arrow()
    order = np.argsort(out["a"].to_numpy())
    assert np.array_equal(out["a"].to_numpy()[order], numbers)
    assert np.array_equal(batch.weights()[order], (numbers % 5) + 1)
    hashes = np.concatenate([c.lane(nd.HASH) for c in batch.chunks])
    assert (hashes[1:] > hashes[:-1]).all()


# ------------------------------------------------------------------------------------------------------ memory


def _addresses(table: pa.Table) -> list[int]:
    out = []
    for column in table.columns:
        for chunk in column.chunks:
            out += [b.address for b in chunk.buffers() if b is not None and b.size]
    return out


@given(st.data())
def test_reading_a_batch_copies_nothing(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    batch = Batch.from_arrow(data.draw(tables(schema)), SortKey(schema))
    first, second = batch.to_arrow(), batch.to_arrow()
    assert _addresses(first) == _addresses(second)
    lines = np.concatenate([c.nodes()[nd.LANES :] for c in batch.chunks]) if batch.chunks else np.empty((0, nd.FIELDS))
    owned = set(lines[:, [nd.DATA, nd.VALID, nd.OFFSETS]].ravel().tolist())
    assert set(_addresses(first)) <= owned


def test_a_slice_and_new_weights_share_the_columns() -> None:
    batch = Batch.from_arrow(pa.table({"a": range(100), "s": [str(i) for i in range(100)]}))
    shared = _addresses(batch.to_arrow())
    assert _addresses(batch.slice(10, 50).to_arrow()) == shared
    assert _addresses(batch.with_weights(np.full(100, 3)).to_arrow()) == shared


def test_an_arrow_table_outlives_its_batch() -> None:
    schema = Schema.parse("a BIGINT, s STRING, l ARRAY<STRING>, t STRUCT<x: STRING>, m MAP<STRING, INT>, b BOOLEAN")

    def make() -> tuple[pa.Table, pa.Table, Any]:
        given_rows = [(i, f"s{i}", [f"l{i}"], {"x": f"x{i}"}, [(f"k{i}", i)], i % 2 == 0) for i in range(500)]
        batch = Batch.from_arrow(table_of(schema, given_rows), SortKey(schema))
        return batch.to_arrow(), batch.slice(3, 400).to_arrow(), batch.weights()

    whole, part, weights = make()
    gc.collect()
    _ = [np.full(5000, 255, np.uint8) for _ in range(200)] + [pa.allocate_buffer(4096) for _ in range(200)]
    whole.validate(full=True)
    assert sorted(r["a"] for r in whole.to_pylist()) == list(range(500))
    assert all(r["s"] == f"s{r['a']}" and r["l"] == [f"l{r['a']}"] for r in whole.to_pylist())
    assert part.to_pylist() == whole.to_pylist()[3:403]
    assert weights.tolist() == [1] * 500


def test_input_may_be_freed_or_changed_once_a_batch_is_made() -> None:
    numbers = np.arange(1000)
    weights = np.arange(1, 1001)
    batch = Batch.from_arrow(pa.table({"a": pa.array(numbers)}), weights=weights)
    numbers[:] = -1
    weights[:] = -1
    check(batch, {(i,): i + 1 for i in range(1000)})


def test_weights_given_later_may_change_afterwards_too() -> None:
    batch = Batch.from_arrow(pa.table({"a": [1, 2]}))
    weights = np.array([5, 5])
    changed = batch.with_weights(weights)
    weights[:] = 0
    assert changed.weights().tolist() == [5, 5]


def test_the_array_that_weights_returns_cannot_change_the_batch() -> None:
    for batch in (
        Batch.from_arrow(pa.table({"a": [1, 2]}), weights=[5, 5]),
        Batch.from_arrow(pa.table({"a": [1, 2]})),
        in_chunks(Batch.from_arrow(pa.table({"a": [1, 2]}), weights=[5, 5]), [1]),
    ):
        before = batch.weights().tolist()
        out = batch.weights()
        if out.flags.writeable:
            out[:] = 99
        assert batch.weights().tolist() == before


def test_nbytes_counts_the_arenas() -> None:
    small = Batch.from_arrow(pa.table({"a": range(10)}))
    large = Batch.from_arrow(pa.table({"a": range(10_000)}))
    assert small.nbytes() >= 10 * 16
    assert 10_000 * 16 <= large.nbytes() < 10_000 * 16 * 1.1


# ------------------------------------------------------------------------------------ parts and other sort keys


@given(st.data())
def test_a_slice_is_a_slice_of_the_rows(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    batch, _ = data.draw(batches(data.draw(sort_keys(schema))))
    whole, weights = rows(batch.to_arrow()), batch.weights().tolist()
    offset = data.draw(st.integers(0, len(whole)))
    count = data.draw(st.none() | st.integers(0, len(whole) + 2))
    end = len(whole) if count is None else min(len(whole), offset + count)
    part = batch.slice(offset, count)
    check(part, dict(zip(whole[offset:end], weights[offset:end], strict=True)))
    assert rows(part.to_arrow()) == whole[offset:end]
    again = part.slice(1, 3)
    assert rows(again.to_arrow()) == whole[offset:end][1:4]


@pytest.mark.parametrize("name", VALUES)
def test_slices_of_every_type_are_read_at_their_offset(name: str) -> None:
    dtype, known = VALUES[name]
    table = pa.table([pa.array(known * 4, dtype), pa.array(range(4 * len(known)))], ["c", "id"])
    batch = Batch.from_arrow(table)
    whole = rows(batch.to_arrow())
    for offset in range(min(12, len(whole))):
        part = batch.slice(offset, 9)
        assert rows(part.to_arrow()) == whole[offset : offset + 9]
        assert rows(part.slice(1, 3).to_arrow()) == whole[offset : offset + 9][1:4]
        check(part.sorted_by(SortKey(batch.schema, (0,))), dict.fromkeys(whole[offset : offset + 9], 1))


@given(st.data())
def test_selected_rows_are_those_at_the_positions(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    batch, _ = data.draw(batches(data.draw(sort_keys(schema))))
    pos = np.array([c << nd.ROW_BITS | r for c, n in enumerate(batch.lens.tolist()) for r in range(n)], np.int64)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(pos), max_size=len(pos))), bool)
    whole, weights = rows(batch.to_arrow()), batch.weights()
    assert batch.weights_at(pos).tolist() == weights.tolist()
    expected = dict(zip([r for r, k in zip(whole, keep, strict=True) if k], weights[keep].tolist(), strict=True))
    check(batch.select(pos[keep]), expected)
    check(batch.select(pos[keep], np.full(keep.sum(), 7)), dict.fromkeys(expected, 7))


@given(st.data())
def test_new_weights_leave_the_old_batch_as_it_was(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=2))
    batch, expected = data.draw(batches(data.draw(sort_keys(schema))))
    drawn = data.draw(st.lists(st.integers(-9, 9).filter(bool), min_size=batch.rows, max_size=batch.rows))
    changed = batch.with_weights(np.array(drawn, np.int64))
    check(changed, dict(zip(rows(batch.to_arrow()), drawn, strict=True)))
    check(batch, expected)
    part = changed.slice(1, 3)
    assert part.weights().tolist() == drawn[1:4]
    assert contents(merge([changed, batch])) == plus(contents(changed), expected)


@given(st.data())
def test_sorting_by_another_key_and_back_keeps_the_rows(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    start, other = data.draw(sort_keys(schema)), data.draw(sort_keys(schema))
    batch, expected = data.draw(batches(start))
    there = batch.sorted_by(other)
    assert there.sort_key is other
    check(there, expected)
    back = there.sorted_by(start)
    check(back, expected)
    assert rows(back.to_arrow()) == rows(batch.to_arrow())
    check(batch, expected)


# ---------------------------------------------------------------------------------------------- equal is equal


@given(st.data())
def test_batches_are_the_same_exactly_if_they_hold_the_same_zset(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=2))
    sort_key = data.draw(sort_keys(schema))
    one, first = data.draw(batches(sort_key, max_rows=6))
    other, second = data.draw(batches(sort_key, max_rows=6))
    assert one.same(other) == (first == second)
    assert one.same(in_chunks(one, [1, 2, 1], own_memory=True))
    if one.rows:
        assert not one.same(one.with_weights(np.append(one.weights()[:-1], one.weights()[-1] + 2**50)))
        assert not one.same(one.slice(1))


@given(st.data())
def test_the_survey_of_the_weights_is_that_of_the_rows(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=1, depth=0))
    batch, expected = data.draw(batches(data.draw(sort_keys(schema))))
    assert batch.largest == max(map(abs, expected.values()), default=0)
    assert batch.negative == sum(w < 0 for w in expected.values())
    assert batch.total_weight == sum(expected.values())


def test_nan_and_negative_zero_consolidate() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000123], np.uint64).view(np.float64)
    table = pa.table({"d": pa.array([*bits, 0.0, -0.0], from_pandas=False)})
    assert table["d"].null_count == 0
    check(Batch.from_arrow(table), {(model.NAN,): 3, (0.0,): 2})
    check(Batch.from_arrow(pa.table({"l": [[x] for x in bits] + [[0.0], [-0.0]]})), {((model.NAN,),): 3, ((0.0,),): 2})
    singles = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    table = pa.table({"f": pa.array([*singles, np.float32(0), -np.float32(0)], pa.float32(), from_pandas=False)})
    check(Batch.from_arrow(table), {(model.NAN,): 2, (0.0,): 2})


def test_maps_that_differ_in_order_only_are_one_row() -> None:
    dtype = pa.map_(pa.string(), pa.map_(pa.int32(), pa.string()))
    maps = [
        [("x", [(1, "a"), (2, "b")]), ("y", None)],
        [("y", None), ("x", [(2, "b"), (1, "a")])],
        [("y", None), ("x", [(2, "a"), (1, "b")])],
    ]
    for wrap, outer in (
        (lambda m: m, dtype),
        (lambda m: [m], pa.list_(dtype)),
        (lambda m: {"m": m}, pa.struct([("m", dtype)])),
    ):
        batch = Batch.from_arrow(pa.table({"m": pa.array([wrap(m) for m in maps], outer)}))
        assert sorted(batch.weights().tolist()) == [1, 2]


@given(st.data())
def test_shuffled_map_entries_do_not_change_a_batch(data: st.DataObject) -> None:
    inner = data.draw(data_types(1))
    dtype = pa.map_(data.draw(st.sampled_from([pa.string(), pa.float64(), pa.decimal128(38, 0), pa.bool_()])), inner)
    maps = data.draw(st.lists(values(dtype), min_size=1, max_size=6))
    shuffled = [None if m is None else data.draw(st.permutations(m)) for m in maps]
    one, other = (Batch.from_arrow(pa.table({"m": pa.array(m, dtype)})) for m in (maps, shuffled))
    assert contents(one) == contents(other)
    assert model.lane(one, nd.HASH) == model.lane(other, nd.HASH)
    stored = [batch.to_arrow()["m"].chunk(0) for batch in (one, other)]
    for part in ("keys", "items"):
        a, b = (model.column_values(getattr(array, part)) for array in stored)
        assert a == b, "stored in one order"


def test_values_under_a_null_are_not_read() -> None:
    mask = pa.array([True, True, False])
    structs = pa.StructArray.from_arrays([pa.array([1, 2, 3])], ["x"], mask=mask)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3], pa.int32()), pa.array([1, 2, 3]), mask=mask)
    numbers = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x04"), pa.py_buffer(np.array([1, 2, 3]))])
    table = pa.table({"s": structs, "l": lists, "n": numbers})
    check(Batch.from_arrow(table), {(None, None, None): 2, ((3,), (), 3): 1})


def test_a_batch_describes_itself() -> None:
    batch = Batch.from_arrow(pa.table({"a": [1, 2], "b": ["x", "y"]}), weights=[1, 1])
    assert repr(batch) == f"Batch(2 rows, 1 chunks, {batch.sort_key!r})"
    assert pickle.loads(pickle.dumps(batch.sort_key)) is batch.sort_key


def test_rows_without_columns_are_counted() -> None:
    schema = Schema(pa.schema([]))
    batch = Batch.from_chunk(SortKey(schema), import_arrays(schema, [], 5, None))
    assert batch.rows == 1
    assert batch.weights().tolist() == [5]
