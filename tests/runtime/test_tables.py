"""What a table makes of changes, against counting them, with hashes that collide."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder, Circuit
from dbspark.circuit.vm import TableConstraint
from dbspark.columnar import Schema
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import TransactionError
from dbspark.kernels.preload import compile_operator_vm
from dbspark.runtime import tables as changes
from dbspark.runtime.embedded import STATE_SPINE_CONFIG
from dbspark.runtime.tables import Operation, TableDefinition, TableState
from dbspark.trace.config import DEFAULT
from dbspark.trace.history import History

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


@pytest.fixture(autouse=True, scope="module")
def machine() -> None:
    compile_operator_vm()


class Alone:
    """Changes are checked by themselves, or by another thread."""

    def __init__(self, table: TableDefinition, beside: bool) -> None:
        self.state = TableState(table, History(table.sort_key, 0, 0, config=STATE_SPINE_CONFIG if beside else DEFAULT))
        self._beside = beside

    def apply(self, operations: list[Operation], tick: int) -> None:
        """A tick."""
        with patch.object(changes, "MIN_BACKGROUND_CHECK_ROWS", 1 if self._beside else 1 << 62):
            delta, check = self.state.net_delta(operations)
        if check is not None:
            check.wait()
            check.finish()
        self.state.history.append(delta, tick)


class InCircuit(Alone):
    """The program of a tick checks what comes in; what it leaves is looked at by itself, and refused."""

    def __init__(self, table: TableDefinition) -> None:
        super().__init__(table, False)
        b = Builder()
        rows = b.source(table.name, table.schema)
        b.output("groups", b.aggregate(rows, ["k"], n=("count", "s")))
        b.output("keys", b.distinct(b.project(rows, ["k"])))  # one operator would not be worth a program
        guarded = TableConstraint(table.sort_key, bool(table.primary_key))
        self._circuit = Circuit(b.graph, tables={table.name: guarded})

    def apply(self, operations: list[Operation], tick: int) -> None:
        delta, check = self.state.net_delta(operations)
        before = self._circuit.snapshot()
        checks = {} if check is None else {"t": check}
        assert check is None or check.place
        self._circuit.step({"t": delta} if delta.rows else {}, (), checks)
        for left in checks.values():
            self._circuit.reset(before)
            self.state.history.invalidate_directory()
            left.finish()
            raise AssertionError("a change was left that is none to refuse")
        self.state.history.append(delta, tick, check is not None and check.listing)


@given(ticks=TICKS, mask=MASKS, keyed=st.booleans(), how=st.sampled_from(["alone", "beside", "in the circuit"]))
def test_a_change_is_refused_where_counting_refuses_it_and_only_there(
    ticks: Any, mask: int, keyed: bool, how: str
) -> None:
    with weakened_hash(mask):
        table = TableDefinition("t", Schema.parse("k BIGINT, s STRING"), ("k",) if keyed else ())
        checked = InCircuit(table) if how == "in the circuit" else Alone(table, how == "beside")
        state = checked.state
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
                    checked.apply(operations, tick + 1)
                continue
            held, tick = after, tick + 1
            checked.apply(operations, tick)
            kept = state.history.spine.consolidated()
            found = zip(*(c.to_pylist() for c in kept.to_arrow().columns), strict=True)
            assert dict(zip(found, kept.weights().tolist(), strict=True)) == {r: w for r, w in held.items() if w}
        assert not any(held.values())
        assert state.history.spine.consolidated().rows == 0
