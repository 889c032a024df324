"""The change of the first rows of keys against the first rows before and after."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.columnar.sort_key import weakened_hash
from dbspark.kernels.aggregate.top_k import top_k_change
from dbspark.kernels.memory import layout as nd
from tests.kernels.build import directory, rows_batch, sum_of

PAIR = Schema.parse("k BIGINT, n BIGINT")
ROW = st.tuples(st.integers(0, 2), st.integers(-3, 3))
CHANGES = st.lists(
    st.dictionaries(ROW, st.sampled_from([1, 1, -1, 2, 3]), min_size=1, max_size=8), min_size=1, max_size=4
)


def first_rows(content: dict[Any, int], skip: int, limit: int, descending: bool) -> dict[Any, int]:
    """Places skip … skip+limit-1 of each key; a row takes as many as its weight, none if that is negative."""
    out = {}
    for key in {row[0] for row in content}:
        places = [row for row in sorted(content, reverse=descending) if row[0] == key for _ in range(content[row])]
        for row in places[skip : skip + limit]:
            out[row] = out.get(row, 0) + 1
    return out


@pytest.mark.parametrize("descending", [False, True])
@given(changes=CHANGES, skip=st.integers(0, 2), limit=st.integers(1, 3), mask=st.sampled_from([2**64 - 1, 1, 0]))
def test_the_change_is_the_difference_of_the_first_rows(
    descending: bool, changes: Any, skip: int, limit: int, mask: int
) -> None:
    with weakened_hash(mask):
        sort_key = SortKey(PAIR, (0,), [(1, descending, False)])
        batches = [rows_batch(sort_key, change) for change in changes]
    address, kept = directory(batches)
    pos, weights = np.empty(64, np.int64), np.empty(64, np.int64)
    n = top_k_change(address, sort_key.key_nodes, PAIR.columns, PAIR.node_count, skip, limit, pos, weights)
    starts = np.cumsum([0, *kept[0][1]])
    rows = [row for b in batches for row in zip(*(c.to_pylist() for c in b.to_arrow().columns), strict=True)]
    found = [
        {rows[starts[p >> nd.ROW_BITS] + (p & nd.ROW_MASK)]: w}
        for p, w in zip(pos[:n].tolist(), weights[:n].tolist(), strict=True)
    ]
    before, after = (first_rows(sum_of(c), skip, limit, descending) for c in (changes[:-1], changes))
    assert sum_of(found) == sum_of([after, {row: -weight for row, weight in before.items()}])
    assert len(found) == len(sum_of(found)), "a row is written once"

    # What does not fit is counted and not written.
    assert top_k_change(
        address, sort_key.key_nodes, PAIR.columns, PAIR.node_count, skip, limit, pos[:0], weights[:0]
    ) == n  # fmt: skip
