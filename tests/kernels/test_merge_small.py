"""Merging a few small batches in two calls against sums in a dict."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from dbspark.columnar.chunk import Chunk
from dbspark.columnar.memory import allocate
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge import merge_small as kc
from dbspark.kernels.sort import sort_rows as ka
from tests.kernels.build import VALUES, Item, batch_of, several, total
from tests.strategies import INT64_MAX


def merge(groups: list[list[Item]], time: tuple[int, ...] = (0, 0, 0)) -> Any:
    """Merge sorted items; returns what `plan` returned, `info`, and the chunk if there is one."""
    groups = sorted(groups, key=len)
    shared = all(i.key == i.hash for i in chain(*groups))
    chunks = [batch_of(items, shared=shared).chunks[0].at_time(np.array(time)) for items in groups]
    rows = sum(map(len, groups))
    nodes = np.arange(nd.LANES, nd.LANES + 1)
    spec = np.zeros(1, np.int64)
    sort_key = ka.describe_sort_key(int(not shared), 1, nd.LANES + 1, spec, nodes, nodes)
    lines = np.array([(chunk.table, chunk.rows) for chunk in chunks], np.int64)
    scratch = allocate(8 * kc.scratch_words(1, len(chunks), rows))
    words = sort_key.ctypes.data, lines.ctypes.data
    size = kc.plan(*words, len(chunks), rows, scratch.address)
    info = np.frombuffer(scratch, np.int64, ka.INFO_WORDS).tolist()
    if size <= 0:
        return size, info, None
    arena = allocate(size)
    kc.fill(words[0], len(chunks), rows, scratch.address, arena.address)
    return size, info, Chunk(VALUES, info[0], arena, None)


@given(several(1, 5))
def test_the_result_is_the_sum(drawn: Any) -> None:
    groups, _ = drawn
    expected = total(chain(*groups))
    size, info, chunk = merge(groups, (4, 0, 2))
    assert info[:3] == [len(expected), sum(map(len, groups)), int(all(i.weight == 1 for i in expected))]
    if not expected:
        assert size == 0
        return
    lanes = [chunk.lane(node).tolist() for node in (nd.KEY, nd.HASH)]
    values = chunk.array(0).to_pylist()
    assert [Item(*row) for row in zip(*lanes, values, chunk.lane(nd.WEIGHT).tolist(), strict=True)] == expected
    assert [set(chunk.lane(nd.TIME + c).tolist()) for c in range(nd.TIMES)] == [{4}, {0}, {2}]
    weights = [i.weight for i in expected]
    largest, negative, high, low = info[ka.WEIGHT_SURVEY :]
    assert (largest, negative) == (max(map(abs, weights)), sum(w < 0 for w in weights))
    assert (high << 32) + low == sum(weights)


@pytest.mark.parametrize("copies", [2, 3])
def test_a_sum_of_weights_outside_the_range_is_reported(copies: int) -> None:
    size, info, _ = merge([[Item(1, 1, 1, INT64_MAX)]] * copies)
    assert (size, info[0]) == (0, OVERFLOW)
