"""Sorting: chunks of any size, times and columns become batches that hold their Z-set."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema, SortKey, sort_batch
from dbspark.columnar.chunk import Chunk, import_arrays
from dbspark.columnar.sort_batch import plan_scratch, rows_in_thread_scratch, sort_chunk, sort_timed_chunks
from dbspark.errors import WeightOverflowError
from tests.columnar.model import check, contents, rows, zset
from tests.strategies import INT64_MAX

FLAT = Schema.parse("k BIGINT, s STRING")


def chunk_of(numbers: list[int]) -> Chunk:
    return import_arrays(FLAT, [pa.array(numbers), pa.array([str(n) for n in numbers])], len(numbers), None)


def test_rows_beyond_one_sort_are_sorted_in_pieces_and_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort_batch, "MAX_SORT_ROWS", 64)
    table = pa.table({"a": [i % 150 for i in range(1000)], "l": [[i % 150] for i in range(1000)]})
    check(Batch.from_arrow(table), zset(rows(table), [1] * 1000))


def test_weights_up_to_the_ends_of_int64_are_exact() -> None:
    table = pa.table({"a": [1, 1, 2, 2]})
    check(Batch.from_arrow(table, weights=[INT64_MAX, -1, -INT64_MAX, 1]), {(1,): INT64_MAX - 1, (2,): 1 - INT64_MAX})
    with pytest.raises(WeightOverflowError):
        Batch.from_arrow(table, weights=[INT64_MAX, 1, 1, 1])
    with pytest.raises(WeightOverflowError):
        Batch.from_arrow(table, weights=[1, 1, -INT64_MAX, -2])


@pytest.mark.parametrize("key", [None, (0,), ()], ids=["rows", "key", "no key"])
def test_a_chunk_is_sorted_the_same_with_and_without_its_hashes(key: tuple[int, ...] | None) -> None:
    batch = Batch.of(sort_chunk(SortKey(FLAT), chunk_of([5, 1, 5, 3])))
    check(batch, {(5, "5"): 2, (1, "1"): 1, (3, "3"): 1})
    sort_key = SortKey(FLAT, key)
    again = Batch.of(sort_chunk(sort_key, batch.chunks[0], hashed=True))
    check(again, contents(batch))
    assert again.same(Batch.of(sort_chunk(sort_key, batch.chunks[0])))


def test_chunks_of_several_times_are_one_batch_advanced_to_since() -> None:
    chunks = [chunk_of([1, 2]), chunk_of([2, 3]), chunk_of([3])]
    batch = Batch.of(sort_timed_chunks(SortKey(FLAT), chunks, [4, 5, 7]))
    assert (batch.rows, batch.total_weight) == (5, 5)
    assert (batch.time, batch.earliest[0], batch.latest[0]) == (None, 4, 7)
    advanced = Batch.of(sort_timed_chunks(SortKey(FLAT), chunks, [4, 5, 7], since=(9,)))
    check(advanced, {(1, "1"): 1, (2, "2"): 2, (3, "3"): 2})
    assert advanced.time is not None
    assert advanced.time[0] == 9


def test_a_plan_uses_the_scratch_of_the_thread_as_long_as_it_fits() -> None:
    largest = rows_in_thread_scratch(FLAT, 0)
    assert plan_scratch(FLAT, largest) is sort_batch.PLAN_SCRATCH.buffer
    assert plan_scratch(FLAT, largest + 1) is not sort_batch.PLAN_SCRATCH.buffer
    for count in (largest, largest + 1):
        assert Batch.of(sort_chunk(SortKey(FLAT), chunk_of(list(range(count))))).rows == count
