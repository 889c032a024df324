"""Constraints of tables against counters: no negative rows, no primary key twice."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.columnar.sort_key import weakened_hash
from dbspark.kernels.vm.constraints import violates_constraints
from tests.kernels.build import directory, rows_batch, sum_of

TABLE = Schema.parse("k BIGINT, s STRING")
ROW = st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]))
CHANGES = st.lists(st.dictionaries(ROW, st.sampled_from([1, 1, -1, 2]), max_size=5), max_size=4)


def is_valid(rows: dict[Any, int], unique: bool) -> bool:
    keys: Counter[Any] = Counter()
    for row, weight in rows.items():
        keys[row[0]] += weight
    return all(w > 0 for w in rows.values()) and (not unique or max(keys.values(), default=0) <= 1)


@pytest.mark.parametrize("unique", [False, True], ids=["rows", "keys"])
@pytest.mark.parametrize("mask", [2**64 - 1, 1, 0])
@given(changes=CHANGES)
def test_a_change_is_judged_with_what_is_there(unique: bool, mask: int, changes: Any) -> None:
    sort_key = SortKey(TABLE, (0,) if unique else None)
    with weakened_hash(mask):
        applied: list[dict[Any, int]] = []
        for change in changes:
            after = sum_of([*applied, change])
            expected = not is_valid(after, unique)
            batches = [rows_batch(sort_key, c) for c in applied]
            address, kept = directory([b for b in batches if b.rows])
            found = any(
                violates_constraints(
                    address,
                    chunk.table,
                    chunk.rows,
                    1,
                    sort_key.key_nodes,
                    TABLE.columns,
                    TABLE.node_count,
                    int(unique),
                )
                for chunk in rows_batch(sort_key, change).chunks
            )
            assert found == expected
            assert kept
            if not expected:
                applied.append(change)
