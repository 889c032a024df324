"""Batches as kernels read them: spines that share memory behind their lists read their own batches and no others."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.schema import Schema
from dbspark.trace.config import SpineConfig
from dbspark.trace.directory import BatchDirectory, sources_of
from dbspark.trace.spine import Spine

ROWS = SortKey(Schema(pa.schema([pa.field("a", pa.int64())])))
LAZY = SpineConfig(fanout=1 << 20, min_space_share=float("inf"), max_space_share=float("inf"))
"""Never merges, so every insert is one more batch."""


def batch(*values: int) -> Batch:
    return Batch.from_arrow(pa.table({"a": pa.array(values, pa.int64())}), ROWS)


def same(found: tuple[np.ndarray, ...], batches: tuple[Batch, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, sources_of(batches), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_every_version_lists_its_own_batches(seed: int) -> None:
    rng = random.Random(seed)
    versions = [BatchDirectory.of((), ())]
    for i in range(60):
        before = rng.choice(versions[-6:])  # the newest, or a fork of an older one
        one = batch(i, *(rng.randrange(100) for _ in range(3)))
        versions.append(before.with_batch(one, (id(one), 0, 0, 0)))
    for version in versions:
        assert same(version.sources, version.batches)
        assert version.index_refs.tolist() == [[id(b), 0, 0, 0] for b in version.batches]


def test_spines_that_go_their_own_way_from_one() -> None:
    spine = Spine(ROWS, config=LAZY)
    for i in range(3):
        spine = spine.insert(batch(i))
    assert len(spine.sources[0]) == 3
    left, right = spine.insert(batch(10)), spine.insert(batch(20))
    left = left.insert(batch(11))
    for version, rows in ((spine, {0, 1, 2}), (left, {0, 1, 2, 10, 11}), (right, {0, 1, 2, 20})):
        assert same(version.sources, version.batches)
        assert set(version.consolidated().to_arrow().column("a").to_pylist()) == rows


def test_merged_spines_list_what_was_merged() -> None:
    spine = Spine(ROWS, config=SpineConfig(fanout=2, max_inline_merge_rows=8, merge_step_rows=4))
    for i in range(200):
        assert len(spine.sources[3]) == len(spine.batches) + 1
        spine = spine.insert(batch(i, i + 1000))
        assert same(spine.sources, spine.batches)
    assert spine.consolidated().rows == 400
