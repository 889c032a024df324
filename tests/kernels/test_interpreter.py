"""Code of the operator VM: sums of deltas against counters, and runs that need more memory."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema
from dbspark.columnar.chunk import Chunk, import_arrays
from dbspark.columnar.memory import allocate
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.preload import compile_operator_vm
from dbspark.kernels.vm import expressions as kv
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm.registers import STATUS_ARENA_FULL, STATUS_FALL_BACK, STATUS_OK
from tests.kernels.build import VM, passed, sum_of
from tests.strategies import INT64_MAX

PAIR = Schema.parse("k BIGINT, s STRING")
ROW = st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", None]))
DELTA = st.lists(st.tuples(ROW, st.sampled_from([1, 1, -1, 2])), max_size=6)


@pytest.fixture(autouse=True, scope="module")
def vm() -> None:
    compile_operator_vm()


def chunk_of(delta: Any) -> Chunk:
    rows = [row for row, _ in delta]
    columns = zip(*rows, strict=True) if rows else ((), ())
    arrays = [pa.array(list(c), t) for c, t in zip(columns, PAIR.types, strict=True)]
    return import_arrays(PAIR, arrays, len(delta), np.array([w for _, w in delta], np.int64))


def consolidated_sum(inputs: int) -> list[int]:
    """Register `inputs` = the sum of those before it, in scratch memory; the next one is that consolidated."""
    nodes = range(nd.LANES, nd.LANES + PAIR.columns)
    columns, total = passed(*range(PAIR.columns)), inputs
    return [
        *kv.line(km.SUM, total, 0, PAIR.columns, PAIR.node_count, inputs, *range(inputs), *columns),
        *kv.line(km.CONSOLIDATE, total, total + 1, 1, -1, PAIR.node_count, PAIR.columns, *nodes, *columns),
    ]  # fmt: skip


@given(st.lists(DELTA, min_size=1, max_size=4))
def test_deltas_are_added_and_consolidated(deltas: Any) -> None:
    vm = VM(len(deltas) + 2)
    for register, delta in enumerate(deltas):
        if delta:
            vm.load(register, chunk_of(delta))
    assert vm.run(consolidated_sum(len(deltas))) == STATUS_OK
    found = vm.rows(len(deltas) + 1, PAIR)
    assert {tuple(row): weight for *row, weight in found} == sum_of({row: w} for d in deltas for row, w in d)
    assert len({tuple(row) for *row, _ in found}) == len(found)


def test_a_run_that_is_out_of_memory_says_how_much_it_needs() -> None:
    delta = [((i, "x" * 50), 1) for i in range(500)]
    vm = VM(3, scratch=64, retained=64)
    vm.load(0, chunk_of(delta))
    attempts = 0
    while (status := vm.run(consolidated_sum(1))) == STATUS_ARENA_FULL:
        vm.arenas = [allocate(max(vm.arenas[i].size, 2 * vm.used(i))) for i in range(2)]
        attempts += 1
    assert status == STATUS_OK
    assert 0 < attempts < 6
    assert sorted(vm.rows(2, PAIR)) == [(*row, weight) for row, weight in delta]


def test_weights_beyond_int64_are_left_to_the_operators() -> None:
    vm = VM(3)
    vm.load(0, chunk_of([((1, "a"), INT64_MAX), ((1, "a"), 1)]))
    assert vm.run(consolidated_sum(1)) == STATUS_FALL_BACK
