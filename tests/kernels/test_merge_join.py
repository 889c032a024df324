"""The merge join against nested loops, produced in steps of any size, under hashes of any quality.

Keys are of any type, nested ones included, and stand at different places in the two schemas.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.sort_key import weakened_hash
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge.merge_join import join_step
from tests.columnar import model
from tests.strategies import INT64_MAX, INT64_MIN, data_types, tables, values, weighted_tables

MASKS = [model.ALL, 0, 1, 7, 0xF000000000000000]


def join(a: Batch, b: Batch, limit: int) -> Any:
    """All pairs ((left row, right row), weight) in the order in which they are produced, or OVERFLOW."""
    left, right = model.rows(a.to_arrow()), model.rows(b.to_arrow())
    starts_a, starts_b = np.cumsum([0, *a.lens]), np.cumsum([0, *b.lens])
    nodes = max(a.schema.node_count, b.schema.node_count)
    state = np.zeros(7, np.int64)
    out: list[Any] = []
    while True:
        pos_a, pos_b, weights = (np.full(limit, -1, np.int64) for _ in range(3))
        n = join_step(
            a.tables, a.lens, b.tables, b.lens, a.sort_key.key_nodes, b.sort_key.key_nodes, nodes,
            state, pos_a, pos_b, weights,
        )  # fmt: skip
        if n == OVERFLOW:
            return OVERFLOW
        assert 0 <= n <= limit
        for p, q, w in zip(pos_a[:n].tolist(), pos_b[:n].tolist(), weights[:n].tolist(), strict=True):
            i = int(starts_a[p >> nd.ROW_BITS]) + (p & nd.ROW_MASK)
            j = int(starts_b[q >> nd.ROW_BITS]) + (q & nd.ROW_MASK)
            out.append((left[i], right[j], w))
        if n == 0:
            again = join_step(
                a.tables, a.lens, b.tables, b.lens, a.sort_key.key_nodes, b.sort_key.key_nodes, nodes,
                state, pos_a, pos_b, weights,
            )  # fmt: skip
            assert again == 0, "after the end there is nothing"
            return out


def nested_loops(a: Batch, b: Batch) -> list[Any]:
    left = zip(model.rows(a.to_arrow()), a.weights().tolist(), strict=True)
    right = list(zip(model.rows(b.to_arrow()), b.weights().tolist(), strict=True))
    key_a, key_b = a.sort_key.key or (), b.sort_key.key or ()
    return [(x, y, w * v) for x, w in left for y, v in right if [x[c] for c in key_a] == [y[c] for c in key_b]]


LEFT = Schema.parse("k BIGINT, v STRING")
RIGHT = Schema.parse("d DOUBLE, k BIGINT")


@given(st.data(), st.sampled_from(MASKS), st.sampled_from([1, 2, 3, 7, 1000]))
def test_pairs_are_those_of_nested_loops_in_steps_of_any_size(data: st.DataObject, mask: int, limit: int) -> None:
    left, left_weights = data.draw(weighted_tables(LEFT))
    right, right_weights = data.draw(weighted_tables(RIGHT))
    small = st.lists(st.none() | st.integers(0, 4), min_size=24, max_size=24)
    left = left.set_column(0, "k", pa.array(data.draw(small)[: len(left)], pa.int64()))
    right = right.set_column(1, "k", pa.array(data.draw(small)[: len(right)], pa.int64()))
    sizes = st.lists(st.integers(1, 5), max_size=4)
    with weakened_hash(mask):
        a = model.in_chunks(Batch.from_arrow(left, SortKey(LEFT, (0,)), left_weights % 1000), data.draw(sizes))
        b = model.in_chunks(Batch.from_arrow(right, SortKey(RIGHT, (1,)), right_weights % 1000), data.draw(sizes))
    assert join(a, b, limit) == nested_loops(a, b)


@st.composite
def _sides(draw: st.DrawFn) -> Any:
    """Two tables with a key of one random type, in different columns, after columns of other types."""
    key = draw(data_types(2))
    known = draw(st.lists(values(key), min_size=1, max_size=3))
    sides = []
    for place in (draw(st.integers(0, 2)), draw(st.integers(0, 2))):
        types = draw(st.lists(data_types(1), min_size=2, max_size=2))
        types.insert(place, key)
        schema = Schema(pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(types)]))
        table = draw(tables(schema, max_rows=8))
        keys = draw(st.lists(st.sampled_from(known), min_size=len(table), max_size=len(table)))
        table = table.set_column(place, schema.arrow.field(place), pa.array(keys, key))
        sides.append((table, SortKey(schema, (place,))))
    return sides


@given(_sides(), st.sampled_from(MASKS), st.sampled_from([1, 5, 100]))
def test_keys_of_every_type_are_compared_by_value_wherever_they_stand(sides: Any, mask: int, limit: int) -> None:
    with weakened_hash(mask):
        a, b = (Batch.from_arrow(table, sort_key) for table, sort_key in sides)
    assert join(a, b, limit) == nested_loops(a, b)


@pytest.mark.parametrize("mask", MASKS)
def test_a_key_of_several_columns_joins_in_the_order_given(mask: int) -> None:
    left = pa.table({"x": [1, 1, 2, 2, None], "y": ["a", "b", "a", "b", "a"], "n": range(5)})
    right = pa.table({"y": ["a", "a", "b", "a"], "m": range(4), "x": [1, 1, 2, None]})
    with weakened_hash(mask):
        a = Batch.from_arrow(left, SortKey(Schema(left.schema), (0, 1)))
        b = Batch.from_arrow(right, SortKey(Schema(right.schema), (2, 0)))
    assert len(nested_loops(a, b)) == 4
    assert join(a, b, 2) == nested_loops(a, b)


def test_a_key_of_no_columns_gives_the_whole_product() -> None:
    left, right = pa.table({"a": range(7)}), pa.table({"b": ["x", "y", "z"]})
    a = Batch.from_arrow(left, SortKey(Schema(left.schema), ()))
    b = Batch.from_arrow(right, SortKey(Schema(right.schema), ()))
    assert len(join(a, b, 4)) == 21
    assert join(a, b, 4) == nested_loops(a, b)


@pytest.mark.parametrize("limit", [1, 10, 64])
def test_one_hot_key_is_produced_in_steps(limit: int) -> None:
    left = pa.table({"k": [7] * 40 + [1, 2], "n": range(42)})
    right = pa.table({"k": [7] * 30 + [2, 3], "m": range(32)})
    a = Batch.from_arrow(left, SortKey(Schema(left.schema), (0,)))
    b = model.in_chunks(Batch.from_arrow(right, SortKey(Schema(right.schema), (0,))), [4] * 6)
    assert join(a, b, limit) == nested_loops(a, b)
    assert join(b, a, limit) == nested_loops(b, a)


def test_an_empty_side_gives_nothing() -> None:
    table = pa.table({"k": [1, 2]})
    sort_key = SortKey(Schema(table.schema))
    full, empty = Batch.from_arrow(table, sort_key), Batch.empty(sort_key)
    assert join(full, empty, 5) == join(empty, full, 5) == join(empty, empty, 5) == []


@pytest.mark.parametrize(
    ("u", "v", "overflows"),
    [
        (2**62, 2, True),
        (2**62, 4, True),
        (2**62, -2, True),
        (2**61, -2, False),
        (INT64_MIN, -1, True),
        (-1, INT64_MIN, True),
        (INT64_MAX, -1, False),
        (INT64_MAX, INT64_MAX, True),
        (INT64_MIN, INT64_MIN, True),
        (3037000500, 3037000500, True),
        (3037000499, 3037000499, False),
        (-3037000500, 3037000500, True),
    ],
)
def test_a_product_beyond_int64_is_reported_and_one_within_is_exact(u: int, v: int, overflows: bool) -> None:
    table = pa.table({"k": [5], "n": [1]})
    sort_key = SortKey(Schema(table.schema), (0,))
    lanes = np.array([u]), np.array([v])
    sides = [Batch.from_arrow(table, sort_key).with_weights(np.array([2])) for _ in lanes]
    for side, lane in zip(sides, lanes, strict=True):  # the kernel is exact for the least int64 too
        side.chunks[0].nodes()[nd.WEIGHT, nd.DATA] = lane.ctypes.data
    found = join(*sides, 3)
    assert found == (OVERFLOW if overflows else [((5, 1), (5, 1), u * v)])
