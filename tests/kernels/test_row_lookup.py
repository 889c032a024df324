"""Row lookup: positions and weights of whole rows across batches, against dicts.

Hashes are chosen, so that different rows share them, in one chunk and across chunks.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.chunk import import_arrays
from dbspark.columnar.sort_key import weakened_hash
from dbspark.kernels.lookup import row_lookup as kw
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.trace.directory import sources_of
from tests.kernels.build import TOP, Item, at, batch_of, chunk_of, rows_batch, several, sorted_items, sum_of
from tests.strategies import INT64_MAX

ONE_COLUMN = (1, nd.LANES + 1)


@given(several(1, 4), sorted_items(max_size=10), st.data())
def test_rows_are_found_with_their_weights(drawn: Any, strangers: list[Item], data: st.DataObject) -> None:
    groups, batches = drawn
    known = st.sampled_from([item for group in groups for item in group])
    relatives = known.map(lambda i: i._replace(value=data.draw(st.none() | st.integers(0, 5))))
    probes = data.draw(st.lists(known | relatives, max_size=15)) + strangers
    chunk = chunk_of(probes, data.draw(st.sampled_from([0, 5])))
    found = np.full(len(probes), -99, np.int64)
    assert kw.sum_weights(*sources_of(tuple(batches)), chunk.table, len(probes), *ONE_COLUMN, found) == 0
    weights: dict[Any, int] = {}
    for item in (i for group in groups for i in group):
        weights[item.row] = weights.get(item.row, 0) + item.weight
    assert found.tolist() == [weights.get(p.row, 0) for p in probes]

    places = np.full(len(probes), -99, np.int64)
    kw.find_rows(*sources_of(tuple(batches)), chunk.table, len(probes), *ONE_COLUMN, places)
    first = [item.row for item in groups[0]]
    for probe, place in zip(probes, places.tolist(), strict=True):
        if probe.row in first:
            assert at(groups, batches, place).row == probe.row
            assert place >> nd.ROW_BITS < len(batches[0].chunks), "not in the first batch"
        else:
            assert place == -1


def test_no_row_is_found_in_empty_batches() -> None:
    probes = [Item(1, 1, 1, 1), Item(TOP, TOP, None, 1)]
    chunk = chunk_of(probes)
    empty = Batch(SortKey(chunk.schema), ())
    for batches in ((empty,), (empty, empty)):
        out = np.full(2, -99, np.int64)
        assert kw.sum_weights(*sources_of(batches), chunk.table, 2, *ONE_COLUMN, out) == 0
        assert out.tolist() == [0, 0]
        kw.find_rows(*sources_of(batches), chunk.table, 2, *ONE_COLUMN, out)
        assert out.tolist() == [-1, -1]


@pytest.mark.parametrize("cuts", [(), range(1, 60), (30,)])
def test_colliding_rows_are_found_by_value_across_chunks(cuts: Any) -> None:
    items = [Item(8, 9, v, v + 1) for v in range(0, 120, 2)]
    batch = batch_of(items, list(cuts))
    probe = chunk_of([Item(8, 9, v, 1) for v in range(125)])
    out = np.empty(125, np.int64)
    kw.sum_weights(*sources_of((batch, batch)), probe.table, 125, *ONE_COLUMN, out)
    assert out.tolist() == [2 * (v + 1) if v % 2 == 0 and v < 120 else 0 for v in range(125)]


@pytest.mark.parametrize(
    ("weights", "overflows"),
    [((INT64_MAX, 1), True), ((-INT64_MAX, -1), True), ((INT64_MAX, -INT64_MAX), False), ((INT64_MAX - 1, 1), False)],
)
def test_an_overflow_is_reported(weights: tuple[int, int], overflows: bool) -> None:
    batches = [batch_of([Item(1, 1, 1, 7), Item(2, 2, 2, w)]) for w in weights]
    probe = chunk_of([Item(1, 1, 1, 1), Item(2, 2, 2, 1)])
    out = np.empty(2, np.int64)
    status = kw.sum_weights(*sources_of(tuple(batches)), probe.table, 2, *ONE_COLUMN, out)
    assert status == (OVERFLOW if overflows else 0)
    assert overflows or out.tolist() == [14, sum(weights)]


@given(several(1, 3), several(1, 2), sorted_items(max_size=10).filter(bool))
def test_a_change_of_the_number_of_rows_is_counted(log: Any, more: Any, change: list[Item]) -> None:
    before = sum_of({i.row: i.weight} for groups, _ in (log, more) for group in groups for i in group)
    after = sum_of([before, {i.row: i.weight for i in change}])
    chunk = chunk_of(change)
    sources = [*sources_of(tuple(log[1])), *sources_of(tuple(more[1]))]
    assert kw.count_change(*sources, chunk.table, len(change), *ONE_COLUMN) == len(after) - len(before)


FLAT = Schema.parse("k BIGINT, s STRING, d DOUBLE, b BOOLEAN")
ROW = st.tuples(
    st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "a", "x" * 40]), st.sampled_from([0.0, 1.5, None]),
    st.none() | st.booleans(),
)  # fmt: skip


@given(
    changes=st.lists(st.dictionaries(ROW, st.sampled_from([1, -1, 5, INT64_MAX]), min_size=1, max_size=6), max_size=4),
    probe=ROW,
    mask=st.sampled_from([2**64 - 1, 3, 0]),
)
def test_the_weight_of_one_row_is_its_sum_over_all_batches(changes: Any, probe: Any, mask: int) -> None:
    with weakened_hash(mask):
        batches = tuple(rows_batch(SortKey(FLAT), change) for change in changes)
    arrays = [pa.array([v], t) for v, t in zip(probe, FLAT.types, strict=True)]
    chunk, hashes = import_arrays(FLAT, arrays, 1, None), np.zeros(1, np.uint64)
    for node in (nd.HASH, nd.KEY):
        chunk.nodes()[node, nd.DATA], chunk.nodes()[node, nd.MASK] = hashes.ctypes.data, -1
    sources = sources_of(batches)
    described = kw.point_directory(*sources, FLAT.columns, FLAT.node_count)
    found = kw.point_weight(described.ctypes.data, chunk.table, int(np.uint64(mask).astype(np.int64)))
    total, overflow = 0, False
    for change in changes:
        total += change.get(probe, 0)
        overflow |= abs(total) > INT64_MAX
    assert found == (kw.INT64_MIN if overflow else total)
