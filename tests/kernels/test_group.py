"""Grouping rows, and exact sums by group, against dicts and Python's integers."""

from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.chunk import import_arrays
from dbspark.columnar.sort_key import hash_rows, weakened_hash
from dbspark.kernels.aggregate import group as kg
from dbspark.kernels.memory import layout as nd
from dbspark.trace.lookup import Keys, ranges_of
from dbspark.trace.spine import Spine
from tests.columnar import model
from tests.strategies import INT64_MAX, data_types, tables, values, weighted_tables

MASKS = st.sampled_from([model.ALL, 0, 1, 7, 0xF000000000000000])
NO_MASK = np.empty(0, np.uint8)


def chunk_of(schema: Schema, table: pa.Table, weights: Any = None) -> Any:
    arrays = [c.combine_chunks() for c in table.columns]
    given_weights = None if weights is None else np.array(weights, np.int64)
    return import_arrays(schema, arrays, table.num_rows, given_weights)


@st.composite
def keyed(draw: st.DrawFn) -> Any:
    """(schema, key columns, table)"""
    types = draw(st.lists(data_types(1), min_size=1, max_size=3))
    schema = Schema(pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(types)]))
    key = draw(st.lists(st.sampled_from(range(len(types))), min_size=1, max_size=2, unique=True))
    return schema, key, draw(tables(schema))


@given(data=keyed(), mask=MASKS)
def test_groups_are_numbered_in_the_order_of_their_first_rows(data, mask):
    """Also with weak hashes: colliding keys are different groups."""
    schema, key, table = data
    with weakened_hash(mask):
        chunk = chunk_of(schema, table)
        nodes = np.array([nd.LANES + c for c in key], np.int64)
        rows = table.num_rows
        hashes = hash_rows(chunk, nodes)
        ids, first = np.full(rows, -1, np.int64), np.full(rows, -1, np.int64)
        groups = kg.group_rows(chunk.table, nodes, hashes, schema.node_count, ids, first)
    seen: dict[Any, int] = {}
    expected = [seen.setdefault(tuple(row[c] for c in key), len(seen)) for row in model.rows(table)]
    assert ids.tolist() == expected
    assert groups == len(seen)
    assert first[:groups].tolist() == [expected.index(g) for g in range(groups)]


@pytest.mark.parametrize("mask", [0xFFFF_FFFF_FFFF_FFFF, 0xFF])
def test_the_table_of_groups_grows(mask):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 3000, 9000)
    schema = Schema.parse("k BIGINT")
    with weakened_hash(mask):
        chunk = chunk_of(schema, pa.table({"k": values}))
        nodes = np.array([nd.LANES], np.int64)
        ids, first = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
        groups = kg.group_rows(chunk.table, nodes, hash_rows(chunk, nodes), schema.node_count, ids, first)
    order: dict[int, int] = {}
    assert ids.tolist() == [order.setdefault(v, len(order)) for v in values.tolist()]
    assert groups == len(order) > 2000
    assert values[first[:groups]].tolist() == list(order)


@given(data=keyed(), mask=MASKS)
def test_the_keys_of_a_batch_are_found_once_each(data, mask):
    schema, key, table = data
    with weakened_hash(mask):
        batch = Batch.from_arrow(table, SortKey(schema, key))
        pos = np.full(batch.rows, -1, np.int64)
        count = kg.distinct_keys(batch.tables, batch.lens, batch.sort_key.key_nodes, schema.node_count, pos)
    rows = model.rows(batch.to_arrow())
    starts = np.cumsum([0, *batch.lens])
    found = [int(starts[p >> nd.ROW_BITS]) + (p & nd.ROW_MASK) for p in pos[:count].tolist()]
    keys = [tuple(rows[i][c] for c in key) for i in found]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {tuple(row[c] for c in key) for row in rows}
    assert found == sorted(found)


@given(data=st.data(), mask=MASKS)
def test_the_weights_of_a_key_are_added_up_over_all_batches(data, mask):
    schema = Schema.parse("k STRING, n BIGINT")
    with weakened_hash(mask):
        sort_key = SortKey(schema, [0])
        given_tables = [data.draw(weighted_tables(schema)) for _ in range(data.draw(st.integers(1, 4)))]
        batches = [Batch.from_arrow(t, sort_key, w) for t, w in given_tables]
        spine = Spine(sort_key, tuple(b for b in batches if b.rows))
        totals: dict[Any, int] = {}
        for table, weights in given_tables:
            for row, weight in zip(model.rows(table), weights.tolist(), strict=True):
                totals[row[0]] = totals.get(row[0], 0) + weight
        probed = [*dict.fromkeys([None, "", *totals])]
        if not spine.entries:
            return
        keys = Keys.of(sort_key, [(k,) for k in probed])
        ranges, _ = ranges_of(spine, keys)
        out = np.full(len(probed), 99, np.int64)
        nodes = schema.node_count
        kg.sum_of_keys(
            spine.sources[0], spine.sources[1], ranges, keys.chunk.table, keys.nodes, sort_key.key_nodes, nodes, out
        )
    assert out.tolist() == [totals.get(k, 0) for k in probed]


@pytest.mark.parametrize(
    "weights",
    [
        [INT64_MAX, INT64_MAX, INT64_MAX],
        [-INT64_MAX, -INT64_MAX],
        [2**62, 2**62],
        [2**62, 2**62, -(2**62), -(2**62)],
        [2**62, 2**62, -(2**62), -(2**62), -1],
        [INT64_MAX, -INT64_MAX, 1],
        [1, -1],
        [2**32 - 1] * 5,
        [-1] * 7,
        [-(2**32)],
    ],
)
def test_weights_of_keys_saturate_with_the_right_sign(weights):
    schema = Schema.parse("k BIGINT, n BIGINT")
    sort_key = SortKey(schema, [0])
    table = pa.table({"k": pa.array([1] * len(weights), pa.int64()), "n": pa.array(range(len(weights)), pa.int64())})
    spine = Spine(sort_key, (Batch.from_arrow(table, sort_key, np.array(weights, np.int64)),))
    keys = Keys.of(sort_key, [(1,)])
    ranges, _ = ranges_of(spine, keys)
    out = np.zeros(1, np.int64)
    kg.sum_of_keys(
        spine.sources[0], spine.sources[1], ranges, keys.chunk.table, keys.nodes, sort_key.key_nodes,
        schema.node_count, out,
    )  # fmt: skip
    total = sum(weights)
    assert np.sign(out[0]) == (total > 0) - (total < 0)
    if abs(total) <= INT64_MAX:
        assert out[0] == total


# ---------------------------------------------------------------------- counts and sums

NUMBERS = ["TINYINT", "SMALLINT", "INT", "BIGINT"]
NUMBERS += [f"DECIMAL({p}, {s})" for p, s in ((9, 2), (18, 18), (38, 0), (38, 10))]
WEIGHTS = st.sampled_from([1, 1, -1, 2, -3, 0, 2**31, 2**32, 2**32 - 1, -(2**33) - 7, INT64_MAX, -INT64_MAX])


WIDE = Context(prec=100)


def as_integer(value: Any, dtype: pa.DataType) -> int:
    """The integer that a value is stored as."""
    return int(value.scaleb(dtype.scale, WIDE)) if isinstance(value, Decimal) else value


def totals_of(rows: Any, groups: int, dtype: pa.DataType) -> Any:
    sums, counts = [0] * groups, [0] * groups
    for value, weight, group, masked in rows:
        if value is not None and masked:
            sums[group] += as_integer(value, dtype) * weight
            counts[group] += weight
    return sums, counts


@pytest.mark.parametrize("ddl", NUMBERS)
@given(data=st.data())
def test_sums_of_integers_and_decimals_are_exact(ddl, data):
    """New sums are old sums plus the rows; a total of more than 38 digits is reported."""
    schema = Schema.parse(f"v {ddl}")
    dtype = schema.types[0]
    groups = 3
    row = st.tuples(values(dtype), WEIGHTS, st.integers(0, groups - 1), st.booleans())
    old = [0] * groups
    for tick in range(data.draw(st.integers(1, 3))):
        rows = data.draw(st.lists(row, max_size=8))
        before = data.draw(st.sampled_from([0, 1, 3]))
        array = pa.array([None] * before + [r[0] for r in rows], dtype).slice(before)
        chunk = import_arrays(schema, [array], len(rows), np.array([r[1] for r in rows], np.int64))
        ids = np.array([r[2] for r in rows], np.int64)
        mask = np.array([r[3] for r in rows], np.uint8)
        if not rows:
            mask = NO_MASK
        limbs, counts = np.zeros((groups, kg.LIMBS), np.int64), np.zeros(groups, np.int64)
        kg.sum_integers(chunk.table, len(rows), nd.LANES, mask, ids, limbs, counts)
        sums, expected_counts = totals_of(rows, groups, dtype)
        assert [(c - e) % 2**64 for c, e in zip(counts.tolist(), expected_counts, strict=True)] == [0] * groups
        given_old = b"".join(n.to_bytes(16, "little", signed=True) for n in old)
        kept, out = pa.py_buffer(given_old), np.zeros(2 * groups, np.int64)
        old_row = np.arange(groups) if tick else np.full(groups, -1)
        overflow = kg.finish_sums(limbs, kept.address, old_row, out.ctypes.data)
        totals = [a + b for a, b in zip(old, sums, strict=True)]
        assert overflow == any(abs(t) >= 10**38 for t in totals)
        if overflow:
            return
        raw = out.tobytes()
        old = [int.from_bytes(raw[16 * g : 16 * g + 16], "little", signed=True) for g in range(groups)]
        assert old == totals


@pytest.mark.parametrize("total", [10**38 - 1, 10**38, -(10**38) + 1, -(10**38), 2**127 - 1, -(2**127), 0, -1])
def test_a_sum_of_more_than_38_digits_is_reported(total):
    half = total // 2
    schema = Schema.parse("v DECIMAL(38, 0)")
    array = pa.array([Decimal(0)], schema.types[0])
    chunk = import_arrays(schema, [array], 1, None)
    limbs, counts = np.zeros((1, kg.LIMBS), np.int64), np.zeros(1, np.int64)
    kg.sum_integers(chunk.table, 1, nd.LANES, NO_MASK, np.zeros(1, np.int64), limbs, counts)
    for k in range(4):
        limbs[0, k] += (half >> (32 * k)) & 0xFFFFFFFF if k < 3 else half >> 96
    kept = pa.py_buffer((total - half).to_bytes(16, "little", signed=True))
    out = np.zeros(2, np.int64)
    assert kg.finish_sums(limbs, kept.address, np.zeros(1, np.int64), out.ctypes.data) == (abs(total) >= 10**38)
    assert int.from_bytes(out.tobytes(), "little", signed=True) == total


@given(
    rows=st.lists(
        st.tuples(st.none() | st.booleans(), st.integers(-5, 5), st.integers(0, 2), st.booleans()), max_size=20
    ),
    masked=st.booleans(),
    column=st.booleans(),
    before=st.sampled_from([0, 1, 9]),
)
def test_counts_are_of_rows_or_of_values(rows, masked, column, before):
    schema = Schema.parse("v BOOLEAN")
    array = pa.array([True] * before + [r[0] for r in rows], pa.bool_()).slice(before)
    chunk = import_arrays(schema, [array], len(rows), np.array([r[1] for r in rows], np.int64))
    mask = np.array([r[3] for r in rows], np.uint8) if masked else NO_MASK
    out = np.array([100, 200, 300], np.int64)
    kg.count_rows(
        chunk.table, len(rows), nd.LANES if column else -1, mask, np.array([r[2] for r in rows], np.int64), out
    )
    expected = [100, 200, 300]
    for value, weight, group, there in rows:
        if (there or not masked) and (value is not None or not column):
            expected[group] += weight
    assert out.tolist() == expected


def test_a_column_that_is_always_null_has_no_values():
    schema = Schema.parse("v VOID")
    chunk = import_arrays(schema, [pa.nulls(4)], 4, None)
    out = np.zeros(1, np.int64)
    kg.count_rows(chunk.table, 4, nd.LANES, NO_MASK, np.zeros(4, np.int64), out)
    assert out.tolist() == [0]
    kg.count_rows(chunk.table, 4, -1, NO_MASK, np.zeros(4, np.int64), out)
    assert out.tolist() == [4]


# ---------------------------------------------------------------------- averages


def rounded_half_up(number: int, count: int) -> int:
    quotient, rest = divmod(abs(number), abs(count))
    quotient += 2 * rest >= abs(count)
    return quotient if (number < 0) == (count < 0) else -quotient


SUMS = st.sampled_from([0, 1, -1, 5, -5, 10**38 - 1, 1 - 10**38, 2**96, -(2**64)]) | st.integers(1 - 10**38, 10**38 - 1)
COUNTS = st.sampled_from([1, -1, 2, 3, -7, 2**32, 2**32 + 1, INT64_MAX, -INT64_MAX]) | st.integers(1, INT64_MAX)


@given(pairs=st.lists(st.tuples(SUMS, COUNTS), min_size=1, max_size=5), digits=st.integers(0, 4))
def test_decimal_sums_are_divided_exactly_and_rounded_half_up(pairs, digits):
    sums = pa.py_buffer(b"".join(s.to_bytes(16, "little", signed=True) for s, _ in pairs))
    out = np.zeros(2 * len(pairs), np.int64)
    counts = np.array([c for _, c in pairs], np.int64)
    overflow = kg.divide_sums(sums.address, counts, 10**digits, out.ctypes.data)
    expected = [rounded_half_up(s * 10**digits, c) for s, c in pairs]
    assert overflow == any(abs(e) >= 10**38 for e in expected)
    raw = out.tobytes()
    for i, number in enumerate(expected):
        if abs(number) < 10**38:
            assert int.from_bytes(raw[16 * i : 16 * i + 16], "little", signed=True) == number


# ---------------------------------------------------------------------- runs


@given(rows=st.lists(st.tuples(st.integers(0, 1), st.none() | st.integers(0, 1), st.integers(0, 1)), max_size=12))
def test_runs_begin_where_the_group_or_a_column_changes(rows):
    schema = Schema.parse("a BIGINT, b BIGINT")
    chunk = chunk_of(schema, pa.table({n: pa.array([r[i] for r in rows], pa.int64()) for i, n in ((1, "a"), (2, "b"))}))
    groups, out = np.array([r[0] for r in rows], np.int64), np.empty(len(rows), np.int64)
    nodes = np.array([nd.LANES, nd.LANES + 1], np.int64)
    tables = np.array([chunk.table], np.int64)
    kg.run_starts(tables, np.arange(len(rows)), groups, nodes, schema.node_count, out)
    assert out.tolist() == [int(i == 0 or rows[i] != rows[i - 1]) for i in range(len(rows))]
