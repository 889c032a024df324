"""The order of rows and its order words against sorting in Python, for values of every type."""

from functools import cmp_to_key
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.columnar.chunk import Chunk, describe_arrays, import_arrays
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.merge.consolidate import consolidate
from dbspark.kernels.sort.row_order import order_maps, order_words
from tests.columnar.model import column_values, order_key, rows
from tests.strategies import FLAT_TYPES, data_types, table_of, values

DIRECTIONS = [(False, False), (False, True), (True, False), (True, True)]
"""(descending, nulls last)"""


def rank(sort_key: SortKey) -> Any:
    """A key for `sorted`: the order columns in their directions, then all columns in ascending order, NULL first."""
    types = sort_key.schema.types
    columns = [*sort_key.order, *((c, False, False) for c in range(len(types)))]

    def compare(a: Any, b: Any) -> int:
        for c, descending, nulls_last in columns:
            x, y = order_key(a[c], types[c]), order_key(b[c], types[c])
            if x != y:
                return -1 if (x < y) != (nulls_last if None in (a[c], b[c]) else descending) else 1
        return 0

    return cmp_to_key(compare)


def order_spec(sort_key: SortKey) -> Any:
    """The words of the order columns, as `kernels.memory.layout` defines them."""
    return np.array([len(sort_key.order), *(x for c, d, n in sort_key.order for x in (nd.LANES + c, d, n))], np.int64)


def chunk_of(table: pa.Table) -> Chunk:
    """A table as one chunk; where it was sliced, over the memory of the whole."""
    parts = table.combine_chunks().to_batches() if table.column(0).num_chunks > 1 else table.to_batches()
    part = parts[0] if parts else pa.RecordBatch.from_pylist([], table.schema)
    return import_arrays(Schema(table.schema), part.columns, part.num_rows, None)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", FLAT_TYPES, ids=str)
@given(data=st.data())
def test_order_words_never_contradict_the_order_of_their_values(dtype: Any, direction: Any, data: Any) -> None:
    found = data.draw(st.lists(values(dtype), min_size=1, max_size=12))
    begin = data.draw(st.integers(0, len(found) - 1))
    schema = Schema(pa.schema([pa.field("c", dtype)]))
    table = table_of(schema, [(v,) for v in found]).slice(begin)
    words = np.empty(len(table), np.uint64)
    chunk = chunk_of(table)
    order_words(chunk.table, nd.LANES, len(table), *map(int, direction), words)
    by_rank = rank(SortKey(schema, (), [(0, *direction)]))
    pairs = sorted(zip(map(by_rank, rows(table)), words.tolist(), strict=True), key=lambda pair: pair[0])
    for (a, x), (b, y) in pairwise(pairs):
        assert x == y if a == b else x <= y


@pytest.mark.parametrize("dtype", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()], ids=str)
def test_order_words_of_short_values_differ_where_the_values_do(dtype: Any) -> None:
    array = pa.array([-1, 0, 1, 2, 100], pa.int64()).cast(dtype)
    schema = Schema(pa.schema([pa.field("c", dtype)]))
    words = np.empty(len(array), np.uint64)
    chunk = chunk_of(pa.table([array], schema=schema.arrow))
    order_words(chunk.table, nd.LANES, len(array), 0, 0, words)
    assert len(set(words.tolist())) == len(set(array.to_pylist()))


@given(st.data())
def test_rows_of_equal_hashes_are_sorted_by_value_and_summed(data: st.DataObject) -> None:
    """`consolidate` compares rows by value where hashes are equal; here all of them are."""
    types = data.draw(st.lists(data_types(2), min_size=1, max_size=3))
    schema = Schema(pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(types)]))
    drawn = data.draw(st.lists(st.tuples(*map(values, types)), min_size=1, max_size=10))
    table = table_of(schema, drawn + drawn[::2]).slice(data.draw(st.integers(0, len(drawn) - 1)))
    columns = st.tuples(st.integers(0, len(types) - 1), st.booleans(), st.booleans())
    sort_key = SortKey(schema, (), data.draw(st.lists(columns, max_size=2)))
    chunk, n = chunk_of(table), len(table)
    hashes, order = np.zeros(n, np.uint64), np.arange(n)
    for lane in (nd.HASH, nd.KEY):
        chunk.nodes()[lane, nd.DATA], chunk.nodes()[lane, nd.MASK] = hashes.ctypes.data, -1
    spec = order_spec(sort_key)
    chunk.nodes()[nd.HASH, nd.CHILD] = spec.ctypes.data if sort_key.order else 0
    pos, weights, info = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(4, np.int64)
    consolidate(chunk.table, hashes, hashes, order, schema.columns, schema.node_count, pos, weights, info)
    found = rows(table)
    written = int(info[0])
    assert [found[p] for p in pos[:written].tolist()] == sorted(set(found), key=rank(sort_key))
    assert weights[:written].tolist() == [found.count(found[p]) for p in pos[:written].tolist()]


@given(st.data())
def test_maps_are_put_into_the_order_of_their_keys(data: st.DataObject) -> None:
    dtype = pa.map_(data.draw(st.sampled_from([t for t in FLAT_TYPES if not pa.types.is_null(t)])), pa.int8())
    maps = data.draw(st.lists(values(dtype), min_size=1, max_size=6))
    array = pa.array(maps, dtype).slice(data.draw(st.integers(0, len(maps) - 1)))
    schema = Schema(pa.schema([pa.field("m", dtype)]))
    chunk = describe_arrays(schema, [array], len(array), None)
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    elements = np.full(last - first, -1, np.int64)
    changed = order_maps(chunk.table, nd.LANES, len(array), schema.node_count, elements)
    keys = [order_key(k, dtype.key_type) for k in column_values(array.keys)]
    ends = array.offsets.to_pylist()  # `keys` are those of the whole array, as the offsets are
    expected = [i for low, high in pairwise(ends) for i in sorted(range(low, high), key=keys.__getitem__)]
    assert elements.tolist() == expected
    assert changed == (expected != list(range(first, last)))
