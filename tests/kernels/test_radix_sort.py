"""`sort_hashes` against numpy's lexsort, over every shape of hashes that sends it another way inside."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.kernels.sort.radix_sort import sort_hashes
from tests.kernels.build import HASHES

SIZES = [0, 1, 2, 47, 48, 49, 50, 1000, 5000]
"""Up to 48 rows are sorted by insertion, more by radix passes; 5000 need a second digit."""


def uniform(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2**64, n, dtype=np.uint64)


def five_values(n: int, rng: np.random.Generator) -> np.ndarray:
    return uniform(5, rng)[rng.integers(0, 5, n)]


def hot(n: int, rng: np.random.Generator) -> np.ndarray:
    """Half of all rows are one key, the others differ."""
    return np.where(rng.random(n) < 0.5, np.uint64(2**63 + 12345), uniform(n, rng))


SHAPES = {
    "uniform": uniform,
    "constant": lambda n, rng: np.full(n, 42, np.uint64),
    "few values": five_values,
    "hot key": hot,
    "ascending": lambda n, rng: np.sort(uniform(n, rng)),
    "descending": lambda n, rng: np.sort(uniform(n, rng))[::-1].copy(),
    "low bits only": lambda n, rng: uniform(n, rng) & np.uint64(0xFFF),
    "one bit": lambda n, rng: uniform(n, rng) & np.uint64(1),
    "top bits only": lambda n, rng: uniform(n, rng) & np.uint64(0xF000000000000000),
    "two neighbours": lambda n, rng: np.uint64(2**64 - 2) + (uniform(n, rng) & np.uint64(1)),
    "powers of two": lambda n, rng: np.uint64(1) << (uniform(n, rng) & np.uint64(63)),
}


def check(keys: np.ndarray, hashes: np.ndarray) -> None:
    n = len(keys)
    keys_before, hashes_before = keys.copy(), hashes.copy()
    order = np.full(n, -1, np.int64)
    sort_hashes(keys, hashes, order, np.empty(2 * n, np.uint64), np.empty(n, np.int64))
    assert np.array_equal(np.sort(order), np.arange(n)), "not a permutation"
    right = np.lexsort((hashes, keys))
    assert np.array_equal(keys[order], keys[right])
    assert np.array_equal(hashes[order], hashes[right])
    assert np.array_equal(keys, keys_before)
    assert np.array_equal(hashes, hashes_before)


@pytest.mark.parametrize("hash_shape", SHAPES)
@pytest.mark.parametrize("key_shape", SHAPES)
def test_every_pair_of_shapes_is_sorted_as_by_lexsort(key_shape: str, hash_shape: str) -> None:
    rng = np.random.default_rng(len(key_shape) * 31 + len(hash_shape))
    for n in SIZES:
        check(SHAPES[key_shape](n, rng), SHAPES[hash_shape](n, rng))


@pytest.mark.parametrize("shape", SHAPES)
def test_keys_that_are_the_row_hashes_themselves_are_sorted(shape: str) -> None:
    rng = np.random.default_rng(7)
    for n in SIZES:
        hashes = SHAPES[shape](n, rng)
        check(hashes, hashes)


def test_several_hot_keys_each_with_many_row_hashes() -> None:
    rng = np.random.default_rng(1)
    keys = np.repeat(np.array([5, 2**63, 2**64 - 1, 6], np.uint64), [3000, 49, 48, 1000])
    check(rng.permutation(keys), uniform(len(keys), rng))
    check(rng.permutation(keys), five_values(len(keys), rng))


def test_a_hundred_thousand_rows_take_two_digits_and_stay_sorted() -> None:
    rng = np.random.default_rng(2)
    check(uniform(100_000, rng), uniform(100_000, rng))
    check(hot(100_000, rng), uniform(100_000, rng) & np.uint64(0xFFFF))


@given(st.lists(st.tuples(HASHES, HASHES), max_size=200))
def test_random_hashes_are_sorted(pairs: list[tuple[int, int]]) -> None:
    check(np.array([p[0] for p in pairs], np.uint64), np.array([p[1] for p in pairs], np.uint64))
