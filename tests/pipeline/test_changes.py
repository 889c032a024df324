"""What a table makes of changes, against counting them, with hashes that collide."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.batch import Schema
from dbspark.batch.arrangement import weakened_hash
from dbspark.operators.delta import Delta
from dbspark.pipeline import changes
from dbspark.pipeline.changes import Operation, TableDefinition, TableState, TransactionError
from dbspark.pipeline.embedded import MERGES
from dbspark.pipeline.history import History
from dbspark.trace.config import DEFAULT

KEYS = st.integers(0, 5)
ROWS = st.tuples(KEYS, st.sampled_from([None, "", "a", "longer than eight"]))
TICKS = st.lists(st.dictionaries(ROWS, st.integers(-2, 2).filter(bool), max_size=6), max_size=8)
MASKS = st.sampled_from([0, 1, 0xFFFFFFFFFFFFFFFF])


def refused(held: Counter[Any], keyed: bool) -> bool:
    """Whether these rows, with their weights, are not a table."""
    by_key = Counter({key: 0 for key, _ in held})
    for (key, _), weight in held.items():
        by_key[key] += weight
    return any(w < 0 for w in held.values()) or (keyed and any(w > 1 for w in by_key.values()))


def changed(state: TableState, operations: list[Operation], beside: bool) -> Delta:
    """What operations change; checked at once, or by another thread."""
    with patch.object(changes, "BESIDE", 1 if beside else 1 << 62):
        delta, check = state.change(operations)
    assert check is None or beside
    if check is not None:
        check.wait()
        check.done()
    return delta


@given(ticks=TICKS, mask=MASKS, keyed=st.booleans(), beside=st.booleans())
def test_a_change_is_refused_where_counting_refuses_it_and_only_there(
    ticks: Any, mask: int, keyed: bool, beside: bool
) -> None:
    with weakened_hash(mask):
        table = TableDefinition("t", Schema.parse("k BIGINT, s STRING"), ("k",) if keyed else ())
        state = TableState(table, History(table.arrangement, 0, 0, config=MERGES if beside else DEFAULT))
        held: Counter[Any] = Counter()
        tick = 0
        # In the end everything goes, and then once more.
        for change in [*ticks, None, None, {(0, "a"): -1}]:
            rows = {row: -w for row, w in held.items() if w} if change is None else change
            after = Counter(held)
            for row, weight in rows.items():
                after[row] += weight
            operations = [table.operation("apply", rows)]
            if refused(after, keyed):
                with pytest.raises(TransactionError):
                    changed(state, operations, beside)
                continue
            held, tick = after, tick + 1
            state.history.append(changed(state, operations, beside), tick)
            kept = state.history.spine.consolidated()
            found = zip(*(c.to_pylist() for c in kept.to_arrow().columns), strict=True)
            assert dict(zip(found, kept.weights().tolist(), strict=True)) == {r: w for r, w in held.items() if w}
        assert not any(held.values())
        assert state.history.spine.consolidated().rows == 0
