"""Positions and total weights of rows, beside a dict of them; chunks with some weights replaced."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.kernels.memory.layout import ROW_BITS
from dbspark.trace.directory import sources_of
from dbspark.trace.row_positions import patch_weights, positions_in, row_positions, weights_in

SORT_KEY = SortKey(Schema.parse("k BIGINT"))
ROWS = st.lists(st.integers(0, 30), max_size=60)


def batch(rows: list[int]) -> Batch:
    return Batch.from_arrow(pa.table({"k": pa.array(rows, pa.int64())}), SORT_KEY)


@given(ROWS, ROWS, ROWS)
def test_rows_are_found_with_their_weights(one: list[int], other: list[int], asked: list[int]) -> None:
    probe, held, more = batch(asked), batch(one), batch(other)
    at, values = positions_in(held, probe).tolist(), held.to_arrow()["k"].to_pylist()
    for value, position in zip(probe.to_arrow()["k"].to_pylist(), at, strict=True):
        assert (position >= 0) == (value in one)
        assert position < 0 or values[position] == value
    total = Counter(one) + Counter(other)
    weights = weights_in(sources_of((held, more)), probe).tolist()
    assert weights == [total[value] for value in probe.to_arrow()["k"].to_pylist()]


def test_positions_say_chunk_and_row() -> None:
    large = batch(list(range(40_000)))
    lens = [chunk.rows for chunk in large.chunks]
    assert len(lens) == 2
    assert row_positions(large).tolist() == [(c << ROW_BITS) + row for c, n in enumerate(lens) for row in range(n)]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_patched_chunks_have_the_other_rows_as_they_were(totals: list[int]) -> None:
    """Few removed rows are cut out of the chunk, many are left out of a copy."""
    held = batch(list(range(len(totals))))
    (chunk,) = held.chunks
    values = held.to_arrow()["k"].to_pylist()
    changed = np.array([i for i, total in enumerate(totals) if total != 1], np.int64)
    patched = patch_weights(SORT_KEY, chunk, changed, np.array(totals, np.int64)[changed])
    found = Batch(SORT_KEY, patched).to_arrow(weights="w")
    wanted = {value: total for value, total in zip(values, totals, strict=True) if total}
    assert dict(zip(found["k"].to_pylist(), found["w"].to_pylist(), strict=True)) == wanted
