"""Sieves: a key that was put in is never held back; of others most are, each counted once."""

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
def _sifted(directory: int, keys: Any, some: Any, which: Any) -> int:
    return kv.filter_keys(directory, keys.ctypes.data, len(keys), some, which)


@numba.njit
def _lowest(directory: int, keys: Any) -> Any:
    return kv.lowest_batches(directory, keys.ctypes.data, len(keys))


class Sieve:
    """Words with some keys, in a directory of so many batches."""

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
        some, which = np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.int64)
        n = _sifted(self.directory.ctypes.data, np.array(keys, np.uint64), some, which)
        return list(zip(which[:n].tolist(), some[:n].tolist(), strict=True))

    def lowest(self, keys: list[int]) -> list[int]:
        out: list[int] = _lowest(self.directory.ctypes.data, np.array(keys, np.uint64)).tolist()
        return out


@given(st.lists(HASHES, max_size=80), st.lists(HASHES, max_size=80), st.integers(1, 8))
def test_no_key_that_was_put_in_is_held_back(keys: list[int], others: list[int], bits: int) -> None:
    sieve = Sieve(keys, bits)
    assert sieve.new <= len(set(keys))
    asked = sorted(keys + others)
    passed = sieve.filter_keys(asked)
    assert [asked[i] for i, _ in passed] == [k for _, k in passed]
    assert [i for i, _ in passed] == sorted({i for i, _ in passed})
    assert {i for i, k in enumerate(asked) if k in set(keys)} <= {i for i, _ in passed}
    held = len(set(asked) - {k for _, k in passed})
    assert sieve.counts.tolist() == [len(set(asked)), held], "of keys beside each other one is counted"
    reached = {i for i, _ in passed}
    assert sieve.lowest(asked) == [0 if i in reached else 3 for i in range(len(asked))]


@pytest.mark.parametrize(("rows", "most"), [(4, 0.01), (8, 0.05)])
def test_few_others_pass(rows: int, most: float) -> None:
    rng = np.random.default_rng(rows)
    keys, others = rng.integers(0, 2**64, (2, rows << 10), dtype=np.uint64).tolist()
    sieve = Sieve(keys, 10)
    assert len(keys) * 0.95 < sieve.new <= len(keys)
    assert len(sieve.filter_keys(others)) < most * len(others)
    assert sieve.add(keys, 10) == 0, "what is known is not new"


def test_without_a_sieve_keys_are_counted_and_searched_for_everywhere() -> None:
    sieve = Sieve([], 1, covered=0)
    assert sieve.filter_keys([1, 1, 5]) == []
    assert sieve.lowest([1, 1, 5]) == [0, 0, 0]
    assert sieve.counts.tolist() == [4, 0]
    sieve.directory[DIR_COUNTERS] = 0  # nobody counts
    assert sieve.filter_keys([1, 1, 5]) == []
