"""Rows of a key in the order of a sort key: Spark's order of every type, in each direction, from either end.

A batch is compared with a Python sort, `first` and `last` with a sort of what is left of all that was ever inserted.
"""

import functools
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import SchemaError
from dbspark.trace import Antichain, SpineConfig, Trace, TraceAgent
from tests.columnar.model import NAN, column_values, plus, rows, zset
from tests.strategies import FLAT_TYPES, table_of, values

ORDERABLE = [t for t in FLAT_TYPES if not pa.types.is_null(t) and not pa.types.is_interval(t)]
NESTED = [
    pa.list_(pa.field("element", pa.int32())),
    pa.list_(pa.field("element", pa.string())),
    pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float64())))),
    pa.struct([pa.field("x", pa.float32()), pa.field("y", pa.string())]),
    pa.struct([pa.field("x", pa.list_(pa.field("element", pa.decimal128(38, 0)))), pa.field("y", pa.bool_(), False)]),
]
TYPES = ORDERABLE + NESTED
DIRECTIONS = [(False, False), (False, True), (True, False), (True, True)]
"""(descending, nulls last)"""
TINY = SpineConfig(fanout=2, max_inline_merge_rows=2, merge_step_rows=4, merge_rows_per_row=2)


def rank(value, dtype):
    """Sorts values as Spark does: NULL first, NaN above all numbers, strings by their bytes, nested ones by parts."""
    t = pa.types
    if value is None:
        return (0,)
    if t.is_floating(dtype):
        return 1, value == NAN, 0.0 if value == NAN else value
    if t.is_string(dtype):
        return 1, value.encode()
    if t.is_struct(dtype):
        return 1, tuple(rank(v, f.type) for v, f in zip(value, dtype, strict=True))
    if t.is_list(dtype):
        return 1, tuple(rank(v, dtype.value_type) for v in value)
    return 1, value


def in_order(sort_key):
    """A sort key for the rows of one key: the order columns, then all columns."""
    types = sort_key.schema.types

    def compare(a, b):
        columns = [*sort_key.order, *((c, False, False) for c in range(len(types)))]
        for column, descending, nulls_last in columns:
            x, y = rank(a[column], types[column]), rank(b[column], types[column])
            if x != y:
                null = x == (0,) or y == (0,)
                return -1 if (x < y) != (nulls_last if null else descending) else 1
        return 0

    return functools.cmp_to_key(compare)


def check_order(batch):
    """The rows of each key follow each other without a break, in order."""
    found = rows(batch.to_arrow())
    keys = [tuple(row[c] for c in batch.sort_key.key) for row in found]
    breaks = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]]
    assert len(breaks) == len(set(keys))
    for begin, end in pairwise([*breaks, len(keys)]):
        assert found[begin:end] == sorted(found[begin:end], key=in_order(batch.sort_key))


# ---------------------------------------------------------------------- one batch


@st.composite
def ordered_tables(draw):
    """(arrangement, rows, weights) of an integer key and one to three columns to order by."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    schema = Schema(pa.schema([pa.field("k", pa.int32()), *(pa.field(f"c{i}", t) for i, t in enumerate(types))]))
    columns = draw(st.permutations(range(1, schema.columns)))[: draw(st.integers(1, len(types)))]
    order = [(c, *draw(st.sampled_from(DIRECTIONS))) for c in columns]
    pools = [draw(st.lists(values(t), min_size=1, max_size=6)) for t in types]
    count = draw(st.integers(0, 30))
    picks = draw(st.binary(min_size=count * schema.columns, max_size=count * schema.columns))
    lines = [picks[i : i + schema.columns] for i in range(0, len(picks), schema.columns)]
    listed = [(line[0] % 2, *(p[b % len(p)] for p, b in zip(pools, line[1:], strict=True))) for line in lines]
    return SortKey(schema, [0], order), table_of(schema, listed)


@given(ordered_tables())
def test_a_batch_is_in_the_order_of_its_sort_key(drawn):
    sort_key, table = drawn
    batch = Batch.from_arrow(table, sort_key)
    check_order(batch)
    assert dict(zip(rows(batch.to_arrow()), batch.weights().tolist(), strict=True)) == zset(
        rows(table), [1] * table.num_rows
    )


@given(ordered_tables())
def test_rearranging_orders_the_rows_anew(drawn):
    sort_key, table = drawn
    other = SortKey(sort_key.schema, [0], [(c, not d, n) for c, d, n in sort_key.order])
    plain = SortKey(sort_key.schema, [0])
    batch = Batch.from_arrow(table, plain)
    for target in (sort_key, other):
        batch = batch.sorted_by(target)
        check_order(batch)
        assert dict(zip(rows(batch.to_arrow()), batch.weights().tolist(), strict=True)) == zset(
            rows(table), [1] * table.num_rows
        )
    assert batch.sorted_by(plain).same(Batch.from_arrow(table, plain))


GOLDEN = {
    "boolean": (pa.bool_(), [False, True]),
    "byte": (pa.int8(), [-128, -1, 0, 1, 127]),
    "long": (pa.int64(), [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]),
    "double": (pa.float64(), [float("-inf"), -1.5, -5e-324, 0.0, 5e-324, 1.0, float("inf"), float("nan")]),
    "float": (pa.float32(), [float("-inf"), -1.5, 0.0, 2.0**-149, 1.0, float("inf"), float("nan")]),
    "decimal": (
        pa.decimal128(38, 2),
        [Decimal(n).scaleb(-2) for n in (-(10**37), -(2**64) - 1, -(2**64), -(2**63), -1, 0, 1, 2**63, 2**64, 10**37)],
    ),
    "string": (
        pa.string(),
        ["", "\0", "a", "a\0", "abcdefg", "abcdefgh", "abcdefgh\0", "abcdefgha", "abcdefghb", "b", "z", "Ä", "é", "日",
         "🦆"],
    ),
    "binary": (
        pa.binary(), [b"", b"\0", b"\0" * 8, b"\0" * 9, b"\0\1", b"a" * 8 + b"\x7f", b"a" * 8 + b"\x80", b"\xff"],
    ),
    "date": (pa.date32(), [-(2**31), -1, 0, 2**31 - 1]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [-(2**63), -1, 0, 2**63 - 1]),
    "array": (NESTED[0], [[], [None], [None, 5], [-1], [-1, None], [-1, 3], [0], [0, 0], [7]]),
    "struct": (
        NESTED[3],
        [{"x": None, "y": "z"}, {"x": -1.0, "y": None}, {"x": -1.0, "y": "a"}, {"x": 0.0, "y": "a"},
         {"x": float("nan"), "y": ""}],
    ),
}  # fmt: skip
"""Values in Spark's order."""


@pytest.mark.parametrize(("descending", "nulls_last"), DIRECTIONS)
@pytest.mark.parametrize("name", GOLDEN)
def test_values_follow_in_sparks_order(name, descending, nulls_last):
    dtype, listed = GOLDEN[name]
    schema = Schema(pa.schema([pa.field("k", pa.int32()), pa.field("v", dtype)]))
    sort_key = SortKey(schema, [0], [(1, descending, nulls_last)])
    mixed = [None, *listed]
    np.random.default_rng(3).shuffle(mixed)
    batch = Batch.from_arrow(table_of(schema, [(1, v) for v in mixed]), sort_key)
    expected = listed[::-1] if descending else list(listed)
    expected = [*expected, None] if nulls_last else [None, *expected]
    found = column_values(batch.to_arrow()["v"])
    assert found == column_values(pa.array(expected, dtype))
    trace = Trace(sort_key, config=TINY)
    for value in mixed:
        trace.append(Batch.from_arrow(table_of(schema, [(1, value)]), sort_key))
    for limit in (1, 3, 100):
        assert column_values(trace.first([1], limit).columns([1])[0]) == found[:limit]
        assert column_values(trace.last([1], limit).columns([1])[0]) == found[::-1][:limit]


def test_zeros_of_both_signs_are_one_value():
    schema = Schema.parse("k INT, v DOUBLE")
    sort_key = SortKey(schema, [0], [(1, False, False)])
    batch = Batch.from_arrow(table_of(schema, [(1, -0.0), (1, 0.0), (1, -1.0), (1, 1.0)]), sort_key)
    assert batch.weights().tolist() == [1, 2, 1]
    assert column_values(batch.to_arrow()["v"]) == [-1.0, 0.0, 1.0]


# ---------------------------------------------------------------------- many batches


def hits_of(hits):
    found = list(zip(*(column_values(c) for c in hits.columns()), strict=True))
    return list(zip(hits.which.tolist(), found, hits.weights.tolist(), strict=True))


def check_ends(trace, there, keys=(1, 0, 9, 1), limits=(1, 2, 1000)):
    listed = sorted(there.items(), key=lambda pair: in_order(trace.sort_key)(pair[0]))
    for limit in limits:
        for read, direction in ((trace.first, listed), (trace.last, listed[::-1])):
            expected = []
            for i, key in enumerate(keys):
                expected += [(i, row, w) for row, w in direction if row[0] == key][:limit]
            assert hits_of(read(list(keys), limit)) == expected, (read.__name__, limit)


@given(drawn=ordered_tables(), seed=st.integers(0, 1000), weak=st.sampled_from([None, None, 0, 1]))
@settings(max_examples=max(5, settings.default.max_examples // 2))
def test_first_and_last_over_many_batches_with_retractions_are_those_of_a_sort(drawn, seed, weak):
    sort_key, table = drawn
    rng = np.random.default_rng(seed)
    with weakened_hash(2**64 - 1 if weak is None else weak):
        trace = Trace(sort_key, config=TINY)
        agent = TraceAgent.of(trace)
        there = {}
        for step in range(8):
            picks = rng.integers(0, max(table.num_rows, 1), rng.integers(0, 9) if table.num_rows else 0)
            some = table.take(pa.array(picks, pa.int64()))
            weights = rng.integers(-2, 3, some.num_rows)
            if step % 3 == 2:
                gone = [i for i, row in enumerate(rows(table)) if row in there][: step * 2]
                some = table.take(pa.array(gone, pa.int64()))
                weights = np.array([-there[row] for row in rows(some)], np.int64)
                weights[[rows(some).index(row) != i for i, row in enumerate(rows(some))]] = 0
            trace.append(Batch.from_arrow(some, sort_key, weights))
            there = plus(there, zset(rows(some), weights))
            if step == 4:
                agent.advance(Antichain.at(3))
            check_ends(trace, there, limits=(1, 3))
        check_ends(trace, there)


def test_the_ends_of_a_hot_key_are_found_among_many_rows():
    """200,000 rows of one key in thousands of orders, in several batches; the smallest and largest taken back."""
    schema = Schema.parse("k INT, v BIGINT, s STRING")
    sort_key = SortKey(schema, [0], [(1, True, True), (2, False, False)])
    trace = Trace(sort_key)
    rng = np.random.default_rng(5)
    numbers = rng.permutation(200_000)
    for part in np.array_split(numbers, 7):
        table = pa.table({"k": pa.array(np.full(len(part), 1), pa.int32()), "v": part, "s": pa.array(part.astype(str))})
        trace.append(Batch.from_arrow(table, sort_key))
    gone = np.concatenate([np.arange(500), np.arange(199_000, 200_000)])
    for part in np.array_split(rng.permutation(gone), 3):
        table = pa.table({"k": pa.array(np.full(len(part), 1), pa.int32()), "v": part, "s": pa.array(part.astype(str))})
        trace.append(Batch.from_arrow(table, sort_key, np.full(len(part), -1)))
    assert trace.first([1], 3).columns([1])[0].to_pylist() == [198_999, 198_998, 198_997]
    assert trace.last([1, 2], 2).columns([1])[0].to_pylist() == [500, 501]
    assert trace.last([1], 300_000).columns([1])[0].to_pylist() == list(range(500, 199_000))
    trace.finish()
    assert trace.first([2, 1], 1).columns([2])[0].to_pylist() == ["198999"]


def test_a_key_of_no_columns_orders_all_rows():
    schema = Schema.parse("v INT, s STRING")
    sort_key = SortKey(schema, [], [(0, False, True)])
    trace = Trace(sort_key, config=TINY)
    listed = [(3, "c"), (None, "n"), (1, "a"), (2, "b"), (1, "aa")]
    for row in listed:
        trace.append(Batch.from_arrow(table_of(schema, [row]), sort_key))
    expected = [(1, "a"), (1, "aa"), (2, "b"), (3, "c"), (None, "n")]
    assert [row for _, row, _ in hits_of(trace.first([()], 9))] == expected
    assert [row for _, row, _ in hits_of(trace.last([()], 2))] == expected[::-1][:2]


def test_a_sort_key_without_an_order_has_no_first_row():
    schema = Schema.parse("k INT, v INT")
    trace = Trace(SortKey(schema, [0]))
    trace.append(Batch.from_arrow(table_of(schema, [(1, 2)]), trace.sort_key))
    for read in (trace.first, trace.last):
        with pytest.raises(SchemaError, match="order"):
            read([1])
    with pytest.raises(SchemaError, match="key columns"):
        SortKey(schema, None, [(1, False, False)])


def test_bounds_of_retention_hold_at_the_ends():
    schema = Schema.parse("k INT, v INT")
    sort_key = SortKey(schema, [0], [(1, False, False)])
    trace = Trace(sort_key, config=TINY)
    for i in range(10):
        trace.append(Batch.from_arrow(table_of(schema, [(1, i), (2, 9 - i)]), sort_key))
    trace.retain("v", 7)
    assert [(i, row) for i, row, _ in hits_of(trace.first([1, 2], 2))] == [
        (0, (1, 7)),
        (0, (1, 8)),
        (1, (2, 7)),
        (1, (2, 8)),
    ]
    assert [(i, row) for i, row, _ in hits_of(trace.last([2, 1], 5))] == [
        (0, (2, 9)), (0, (2, 8)), (0, (2, 7)), (1, (1, 9)), (1, (1, 8)), (1, (1, 7)),
    ]  # fmt: skip
