"""Shards are ranges of key hashes: every hash has one, whatever the number of shards, and splitting loses nothing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.schema import Schema
from dbspark.kernels.memory import layout
from dbspark.runtime.placement import RANGES, first_hash, owner, shard_of, split

SCHEMA = Schema.parse("k BIGINT, v STRING")
HASHES = st.integers(0, 2**64 - 1)


@given(st.lists(HASHES, min_size=1, max_size=20), st.integers(1, RANGES))
def test_the_shard_of_a_hash_is_the_range_that_holds_it(hashes: list[int], shards: int) -> None:
    begins = [*(first_hash(s, shards) for s in range(shards)), 2**64]
    assert begins[0] == 0
    assert begins == sorted(set(begins))
    for value, shard in zip(hashes, shard_of(np.array(hashes, np.uint64), shards).tolist(), strict=True):
        assert begins[shard] <= value < begins[shard + 1]


@given(st.integers(1, 64), st.integers(2, 8), HASHES)
def test_a_shard_of_many_lies_in_one_shard_of_few(few: int, times: int, value: int) -> None:
    found = np.array([value], np.uint64)
    assert int(shard_of(found, few * times)[0]) // times == int(shard_of(found, few)[0])


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 500, 70_000])
def test_a_batch_is_split_into_slices_that_are_the_batch(rows: int, shards: int) -> None:
    table = pa.table({"k": pa.array(range(rows), pa.int64()), "v": ["x"] * rows}, schema=SCHEMA.arrow)
    batch = Batch.from_arrow(table, SortKey(SCHEMA, [0]))
    parts = split(batch, shards)
    assert [shard for shard, _ in parts] == sorted({shard for shard, _ in parts})
    for shard, part in parts:
        assert part.rows
        for chunk in part.chunks:
            assert set(shard_of(chunk.lane(layout.KEY), shards).tolist()) == {shard}
    assert sum(part.rows for _, part in parts) == rows
    if parts:
        assert merge([part for _, part in parts]).same(batch)


def test_rows_that_are_placed_by_no_columns_have_one_owner() -> None:
    batch = Batch.from_arrow(pa.table({"k": [1, 2, 3], "v": ["a", "b", None]}), SortKey(SCHEMA, ()))
    for shards in (1, 2, 5, 16):
        assert [shard for shard, _ in split(batch, shards)] == [owner(shards)]
