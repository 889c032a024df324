"""Sorting a chunk by a sort key against sorting and summing in Python."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.columnar.chunk import Chunk, import_arrays
from dbspark.columnar.memory import allocate
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.sort import sort_rows as ka
from tests.columnar import model
from tests.kernels.test_row_order import order_spec, rank
from tests.strategies import INT64_MAX, flat_types, table_of, values, weights

MASKS = [model.ALL, 0, 7]


def plan(sort_key: SortKey, chunk: Chunk, mask: int = model.ALL, hashed: int = 0, limit: int = 1 << 20) -> Any:
    """Plan and fill; returns what `plan` returned, `info`, and the chunk if there is one."""
    schema, rows = chunk.schema, chunk.rows
    words = ka.words_before_rows(schema.columns, schema.node_count) + ka.WORDS_PER_ROW * rows
    scratch = allocate(8 * words)
    spec = order_spec(sort_key)
    described = ka.describe_sort_key(
        sort_key.own_key, schema.columns, schema.node_count, spec, sort_key.row_nodes, sort_key.key_nodes
    )
    at, signed = described.ctypes.data, int(np.uint64(mask).astype(np.int64))
    size = ka.plan(at, hashed, signed, chunk.table, rows, limit, scratch.address)
    info = np.frombuffer(scratch, np.int64, ka.INFO_WORDS).tolist()
    if size <= 0:
        return size, info, None
    arena = allocate(size)
    ka.fill(at, rows, scratch.address, arena.address)
    return size, info, Chunk(schema, info[0], arena, None)


@st.composite
def chunks(draw: st.DrawFn) -> Any:
    """(sort key, chunk, its rows, their weights): flat columns, few distinct rows, sliced."""
    types = draw(st.lists(flat_types(), min_size=1, max_size=3))
    schema = Schema(pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(types)]))
    distinct = draw(st.lists(st.tuples(*map(values, types)), min_size=1, max_size=6))
    picked = draw(st.lists(st.tuples(st.sampled_from(distinct), weights()), min_size=1, max_size=60))
    begin = draw(st.integers(0, len(picked) - 1))
    part = table_of(schema, [row for row, _ in picked]).slice(begin).to_batches()[0]
    found = [w for _, w in picked[begin:]]
    key = draw(st.none() | st.lists(st.integers(0, len(types) - 1), max_size=2, unique=True))
    column = st.tuples(st.integers(0, len(types) - 1), st.booleans(), st.booleans())
    order = [] if key is None else draw(st.lists(column, max_size=2))
    if order and key is not None and tuple(key) == tuple(range(len(types))):
        order = []
    chunk = import_arrays(schema, part.columns, part.num_rows, np.array(found, np.int64))
    return SortKey(schema, key, order), chunk, model.rows(pa.Table.from_batches([part])), found


@given(chunks(), st.sampled_from(MASKS))
def test_rows_are_sorted_and_their_weights_summed(drawn: Any, mask: int) -> None:
    sort_key, chunk, rows, found = drawn
    types = sort_key.schema.types
    sums = model.zset(rows, found)
    key = range(len(types)) if sort_key.key is None else sort_key.key
    by_rank = rank(sort_key)

    def hashes(row: Any) -> tuple[int, int]:
        key_hash = model.row_hash([row[c] for c in key], [types[c] for c in key], mask)
        return key_hash, 0 if sort_key.order else model.row_hash(row, types, mask)

    expected = sorted(sums, key=lambda row: (hashes(row), by_rank(row)))
    size, info, result = plan(sort_key, chunk, mask)
    assert info[:4] == [len(sums), len(rows), int(all(w == 1 for w in sums.values())), 1]
    assert info[ka.TIME_WORDS : ka.WEIGHT_SURVEY] == [0] * nd.TIMES
    if not sums:
        assert size == 0
        return
    assert model.rows(pa.table(result.record_batch(sort_key.schema.arrow))) == expected
    assert result.lane(nd.WEIGHT).tolist() == [sums[row] for row in expected]
    assert result.lane(nd.KEY).tolist() == [hashes(row)[0] for row in expected]
    if not sort_key.order:
        assert result.lane(nd.HASH).tolist() == [hashes(row)[1] for row in expected]
    largest, negative, high, low = info[ka.WEIGHT_SURVEY :]
    assert (largest, negative) == (max(map(abs, sums.values())), sum(w < 0 for w in sums.values()))
    assert (high << 32) + low == sum(sums.values())


@given(chunks())
def test_hashes_that_a_chunk_has_already_are_believed(drawn: Any) -> None:
    sort_key, chunk, rows, _ = drawn
    given_hashes = np.array([hash(row) % 3 for row in map(repr, rows)], np.uint64)
    chunk.nodes()[nd.HASH, [nd.DATA, nd.START, nd.MASK]] = given_hashes.ctypes.data, 0, -1
    known = dict(zip(rows, given_hashes.tolist(), strict=True))
    by_whole_rows = SortKey(sort_key.schema)
    _, _, result = plan(by_whole_rows, chunk, hashed=1)
    if result is not None:
        table = pa.table(result.record_batch(sort_key.schema.arrow))
        assert result.lane(nd.HASH).tolist() == [known[row] for row in model.rows(table)]


def numbers(found: list[int], weights: list[int]) -> Chunk:
    schema = Schema.parse("v BIGINT")
    return import_arrays(schema, [pa.array(found, pa.int64())], len(found), np.array(weights, np.int64))


def test_more_rows_than_the_limit_are_planned_but_not_laid_out() -> None:
    chunk = numbers([3, 1, 2, 1], [1, 1, 1, 1])
    sort_key = SortKey(chunk.schema)
    assert plan(sort_key, chunk, limit=3)[0] > 0
    size, info, _ = plan(sort_key, chunk, limit=2)
    assert (size, info[0]) == (0, 3)


@pytest.mark.parametrize("pair", [(INT64_MAX, 1), (-INT64_MAX, -1), (-(2**62), -(2**62))])
def test_a_sum_of_weights_outside_the_range_is_reported(pair: tuple[int, int]) -> None:
    chunk = numbers([5, 4, 5], [pair[0], 1, pair[1]])
    size, info, _ = plan(SortKey(chunk.schema), chunk)
    assert (size, info[0]) == (0, OVERFLOW)


def test_one_time_is_kept_and_several_are_refused() -> None:
    chunk = numbers([2, 1, 2], [1, 1, 1])
    sort_key = SortKey(chunk.schema)
    _, info, result = plan(sort_key, chunk.at_time(np.array([7, 0, 3])))
    assert info[ka.TIME_WORDS : ka.WEIGHT_SURVEY] == [7, 0, 3]
    assert [result.lane(nd.TIME + c).tolist() for c in range(nd.TIMES)] == [[7, 7], [0, 0], [3, 3]]
    several = chunk.with_times([np.array([1, 2, 1]), np.array([0]), np.array([0])])
    assert plan(sort_key, several)[0] == ka.SEVERAL_TIMES


def test_a_sort_key_is_described_by_its_words() -> None:
    schema = Schema.parse("a INT, b STRING")
    key = SortKey(schema, [1], [(0, True, False)])
    spec = order_spec(key)
    words = ka.describe_sort_key(1, 2, schema.node_count, spec, key.row_nodes, key.key_nodes)
    assert words[[ka.ORDER_SPEC, ka.ORDER_SPEC_LENGTH]].tolist() == [spec.ctypes.data, 4]
    assert words[[ka.OWN_KEY, ka.COLUMNS, ka.NODES, ka.ROW_NODES, ka.KEY_NODES]].tolist() == [
        1, 2, schema.node_count, 2, 1,
    ]  # fmt: skip
    assert words[ka.HEADER_WORDS :].tolist() == [nd.LANES, nd.LANES + 1, nd.LANES + 1]
