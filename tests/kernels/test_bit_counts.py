"""Counters of bits by group, against the values that are there."""

from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.kernels.aggregate import bit_counts as kb


def buffers_of(stored: pa.Array) -> tuple[int, int]:
    _, offsets, data = stored.buffers()
    return offsets.address, 0 if data is None else data.address


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@given(data=st.data())
def test_bits_are_those_of_the_values_that_are_left(bits: int, data: st.DataObject) -> None:
    groups = 2
    value = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    ticks = st.lists(
        st.lists(st.tuples(st.integers(0, groups - 1), value, st.sampled_from([1, 300, 2**33])), max_size=5)
    )
    stored = pa.array([b""] * groups, pa.binary())
    content: list[tuple[int, int, int]] = []
    for inserted in data.draw(ticks):
        retracted = data.draw(st.lists(st.sampled_from(content), unique_by=id, max_size=3)) if content else []
        for row in retracted:
            content.remove(row)
        content += inserted
        rows: list[Any] = sorted([*inserted, *((g, v, -w) for g, v, w in retracted)], key=lambda row: row[0])
        starts = np.searchsorted([row[0] for row in rows], np.arange(groups + 1))
        values, weights = (np.array([row[i] for row in rows], np.int64) for i in (1, 2))
        offsets, out = np.empty(groups + 1, np.int32), np.empty(8 * bits * groups, np.uint8)
        used = kb.update_bit_counts(
            values, bits, np.ones(len(rows), np.uint8), weights, np.arange(len(rows)), starts, *buffers_of(stored),
            np.arange(groups), offsets, out.ctypes.data,
        )  # fmt: skip
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[:used].copy())]
        stored = pa.Array.from_buffers(pa.binary(), groups, buffers)
        counts = np.array([sum(w for g, _, w in content if g == group) for group in range(groups)])
        for every, combine in ((1, and_), (0, or_)):
            found = np.empty(groups, np.int64)
            kb.read_bits(*buffers_of(stored), counts, bits, every, found)
            for group in range(groups):
                left = [v for g, v, _ in content if g == group]
                if left:
                    assert found[group] == reduce(combine, left)
                else:
                    assert stored[group].as_py() == b""
