"""The first and last rows of keys across batches, against sorted dicts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.columnar.sort_key import weakened_hash
from dbspark.kernels.lookup.first_rows import first_rows_of_keys
from dbspark.kernels.lookup.probe import probe_ranges
from dbspark.kernels.memory import layout as nd
from dbspark.trace.directory import sources_of
from dbspark.trace.lookup import Keys
from tests.kernels.build import rows_batch, sum_of

PAIR = Schema.parse("k BIGINT, n BIGINT")
ROW = st.tuples(st.integers(0, 3), st.integers(-3, 3))
CHANGES = st.lists(st.dictionaries(ROW, st.sampled_from([1, 1, -1, 2]), min_size=1, max_size=8), max_size=4)
NO_COMPARISONS = np.empty((0, 3), np.int64)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
@given(changes=CHANGES, limit=st.integers(1, 3), mask=st.sampled_from([2**64 - 1, 1, 0]))
def test_first_rows_are_those_of_the_sum(
    descending: bool, backwards: bool, changes: Any, limit: int, mask: int
) -> None:
    with weakened_hash(mask):
        sort_key = SortKey(PAIR, (0,), [(1, descending, False)])
        batches = tuple(rows_batch(sort_key, change) for change in changes)
        keys = Keys.of(sort_key, [(k,) for k in range(5)])
        sources = sources_of(batches)
        ranges = np.empty((5, len(batches), 3), np.int64)
        total = probe_ranges(*sources, keys.hashes, ranges)
        which, pos, weights = (np.empty(total, np.int64) for _ in range(3))
        n = first_rows_of_keys(
            sources[0], sources[1], ranges, keys.chunk.table, keys.nodes, sort_key.key_nodes, PAIR.columns,
            PAIR.node_count, limit, int(backwards), NO_COMPARISONS, 1, which, pos, weights,
        )  # fmt: skip
    starts = np.cumsum([0, *sources[1]])
    rows = [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.to_arrow().columns), strict=True)]
    found = [rows[starts[p >> nd.ROW_BITS] + (p & nd.ROW_MASK)] for p in pos[:n].tolist()]
    content = sum_of(changes)
    expected = []
    for k in range(5):
        positive = [row for row, weight in content.items() if row[0] == k and weight > 0]
        expected += [(k, row, content[row]) for row in sorted(positive, reverse=descending != backwards)[:limit]]
    assert list(zip(which[:n].tolist(), found, weights[:n].tolist(), strict=True)) == expected
