"""Bloom filters: an added key always passes, most others are rejected, and each is counted once."""

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.kernels.lookup import bloom_filter as kv
from dbspark.kernels.lookup.directory import (
    DIR_COUNTERS,
    DIR_FILTER,
    DIR_FILTER_BATCHES,
    DIR_FILTER_SHIFT,
    DIRECTORY_WORDS,
)
from tests.kernels.build import HASHES, Item, chunk_of


@numba.njit
def _passing(directory: int, keys: Any, passing: Any, numbers: Any) -> int:
    return kv.filter_keys(directory, keys.ctypes.data, len(keys), passing, numbers)


@numba.njit
def _lowest(directory: int, keys: Any) -> Any:
    return kv.lowest_batches(directory, keys.ctypes.data, len(keys))


class Filter:
    """A filter with some keys that covers the first batches of a directory."""

    def __init__(self, keys: list[int], bits: int, covered: int = 3) -> None:
        self.words, self.counts = np.zeros(1 << bits, np.uint64), np.zeros(2, np.int64)
        self.directory = np.zeros(DIRECTORY_WORDS, np.int64)
        self.directory[[DIR_FILTER, DIR_FILTER_SHIFT, DIR_FILTER_BATCHES, DIR_COUNTERS]] = (
            self.words.ctypes.data, 64 - bits, covered, self.counts.ctypes.data,
        )  # fmt: skip
        self.new = self.add(keys, bits) if keys else 0

    def add(self, keys: list[int], bits: int) -> int:
        chunk = chunk_of([Item(k, k, 1, 1) for k in keys], before=2)
        new: int = kv.add_keys(self.words.ctypes.data, 64 - bits, chunk.table, 0, len(keys))
        return new

    def filter_keys(self, keys: list[int]) -> list[tuple[int, int]]:
        passing, numbers = np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.int64)
        n = _passing(self.directory.ctypes.data, np.array(keys, np.uint64), passing, numbers)
        return list(zip(numbers[:n].tolist(), passing[:n].tolist(), strict=True))

    def lowest(self, keys: list[int]) -> list[int]:
        out: list[int] = _lowest(self.directory.ctypes.data, np.array(keys, np.uint64)).tolist()
        return out


@given(st.lists(HASHES, max_size=80), st.lists(HASHES, max_size=80), st.integers(1, 8))
def test_no_added_key_is_rejected(keys: list[int], others: list[int], bits: int) -> None:
    bloom = Filter(keys, bits)
    assert bloom.new <= len(set(keys))
    looked_up = sorted(keys + others)
    passed = bloom.filter_keys(looked_up)
    assert [looked_up[i] for i, _ in passed] == [k for _, k in passed]
    assert [i for i, _ in passed] == sorted({i for i, _ in passed})
    assert {i for i, k in enumerate(looked_up) if k in set(keys)} <= {i for i, _ in passed}
    rejected = len(set(looked_up) - {k for _, k in passed})
    assert bloom.counts.tolist() == [len(set(looked_up)), rejected], "equal neighbours are counted once"
    passing = {i for i, _ in passed}
    assert bloom.lowest(looked_up) == [0 if i in passing else 3 for i in range(len(looked_up))]


@pytest.mark.parametrize(("rows", "most"), [(4, 0.01), (8, 0.05)])
def test_most_other_keys_are_rejected(rows: int, most: float) -> None:
    rng = np.random.default_rng(rows)
    keys, others = rng.integers(0, 2**64, (2, rows << 10), dtype=np.uint64).tolist()
    bloom = Filter(keys, 10)
    assert len(keys) * 0.95 < bloom.new <= len(keys)
    assert len(bloom.filter_keys(others)) < most * len(others)
    assert bloom.add(keys, 10) == 0, "no key sets a new bit"


def test_without_a_filter_keys_are_counted_and_searched_for_everywhere() -> None:
    bloom = Filter([], 1, covered=0)
    assert bloom.filter_keys([1, 1, 5]) == []
    assert bloom.lowest([1, 1, 5]) == [0, 0, 0]
    assert bloom.counts.tolist() == [4, 0]
    bloom.directory[DIR_COUNTERS] = 0  # no counters
    assert bloom.filter_keys([1, 1, 5]) == []
