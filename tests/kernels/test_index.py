"""Finding a key hash in a batch, with and without an index, against bisection.

Hashes are chosen, so that the interpolating search meets what it guesses worst, and an index what it can tell apart
least: clusters, gaps, the ends of the range, one value everywhere.
"""

from bisect import bisect_left
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch
from dbspark.kernels.lookup import index as ks
from dbspark.kernels.memory import layout as nd
from dbspark.trace.directory import directory_of, sources_of
from tests.kernels.build import HASHES, TOP, Item, batch_of


@numba.njit
def _lower_bound(address: int, begin: int, end: int, key: Any) -> int:
    return ks.lower_bound(address, begin, end, key)


def lower_bound(keys: np.ndarray, begin: int, end: int, key: int) -> int:
    return int(_lower_bound(keys.ctypes.data, begin, end, np.uint64(key)))


SHAPES = {
    "uniform": lambda rng: np.sort(rng.integers(0, 2**64, 700, dtype=np.uint64)),
    "constant": lambda rng: np.full(100, 77, np.uint64),
    "all zero": lambda rng: np.zeros(50, np.uint64),
    "all ones": lambda rng: np.full(50, TOP, np.uint64),
    "two values": lambda rng: np.sort(np.array([0, TOP], np.uint64)[rng.integers(0, 2, 100)]),
    "neighbours": lambda rng: np.arange(2**64 - 300, 2**64, dtype=np.uint64),
    "cluster and an outlier": lambda rng: np.append(np.arange(500, dtype=np.uint64), np.uint64(TOP)),
    "an outlier and a cluster": lambda rng: np.insert(np.arange(2**64 - 500, 2**64, dtype=np.uint64), 0, np.uint64(0)),
    "powers of two": lambda rng: np.uint64(1) << np.arange(64, dtype=np.uint64),
    "hot key": lambda rng: np.sort(np.append(rng.integers(0, 2**64, 90, dtype=np.uint64), [np.uint64(2**63)] * 200)),
    "one": lambda rng: np.array([5], np.uint64),
    "none": lambda rng: np.empty(0, np.uint64),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_lower_bound_is_bisect_left(shape: str) -> None:
    rng = np.random.default_rng(3)
    keys = SHAPES[shape](rng)
    plain = keys.tolist()
    near = (
        {k + d for k in plain for d in (-1, 0, 1)}
        | {0, 1, 2**63, TOP}
        | set(rng.integers(0, 2**64, 50, dtype=np.uint64).tolist())
    )
    ranges = {(0, len(plain)), (len(plain) // 3, len(plain)), (0, len(plain) // 2), (len(plain) // 2, len(plain) // 2)}
    for begin, end in ranges:
        for key in (k for k in near if 0 <= k <= TOP):
            assert lower_bound(keys, begin, end, key) == bisect_left(plain, key, begin, end)


@given(st.lists(HASHES, max_size=60), st.lists(HASHES, min_size=1, max_size=10))
def test_lower_bound_of_random_keys_is_bisect_left(keys: list[int], probes: list[int]) -> None:
    keys.sort()
    array = np.array(keys, np.uint64)
    for probe in [*probes, *keys]:
        assert lower_bound(array, 0, len(keys), probe) == bisect_left(keys, probe)


# ------------------------------------------------------------------------------------------------------- indices


@numba.njit
def _found(directory: int, keys: Any, out: Any) -> None:
    for i in range(len(keys)):
        out[i] = ks.find_key(directory, 0, keys[i])


def found(batch: Batch, keys: list[int], index_ref: Any) -> list[int]:
    """The number of the first row of each key, -1 where there is none."""
    out = np.empty(len(keys), np.int64)
    kept = directory_of(sources_of((batch,)), np.array([index_ref], np.int64))
    _found(kept[0], np.array(keys, np.uint64), out)
    starts = np.cumsum([0, *batch.lens])
    return [-1 if p < 0 else int(starts[p >> nd.ROW_BITS]) + (p & nd.ROW_MASK) for p in out.tolist()]


def expected(plain: list[int], keys: list[int]) -> list[int]:
    return [at if (at := bisect_left(plain, k)) < len(plain) and plain[at] == k else -1 for k in keys]


def rows_of(plain: list[int]) -> list[Item]:
    return [Item(key, i, 1, 1) for i, key in enumerate(plain)]


def near(plain: list[int]) -> list[int]:
    keys = {k + d for k in plain for d in (-1, 0, 1)} | {0, 1, 2**63, TOP}
    return sorted(k for k in keys if 0 <= k <= TOP)


@pytest.mark.parametrize(
    "cuts",
    [(), (1,), range(0, 700, 7), (300, 301, 303)],
    ids=["one chunk", "a first row", "many chunks", "short chunks"],
)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s != "none"])
def test_keys_are_found_through_an_index_and_without_one(shape: str, cuts: Any) -> None:
    plain = SHAPES[shape](np.random.default_rng(5)).tolist()
    batch = batch_of(rows_of(plain), list(cuts))
    for bits in (1, 4, 9):
        words = np.zeros(1 << bits, np.uint64)
        ks.fill_index(batch.tables, batch.lens, 0, 64 - bits, words)
        index_ref = words.ctypes.data, 64 - bits, 0, 0
        assert found(batch, near(plain), index_ref) == expected(plain, near(plain))
    assert found(batch, near(plain), (0, 0, 0, 0)) == expected(plain, near(plain))


@given(st.lists(HASHES, min_size=1, max_size=50), st.lists(st.integers(1, 50), max_size=5), st.data())
def test_the_rest_of_a_batch_uses_the_index_of_the_whole(keys: list[int], cuts: list[int], data: st.DataObject) -> None:
    """A merge consumes chunks and rows from the front, in several steps."""
    plain = sorted(keys * 2)  # enough rows for an index
    whole = batch_of(rows_of(plain), cuts)
    assert (whole.index.ref[0] != 0) == (whole.rows >= 8)
    while whole.rows:
        assert found(whole, near(plain), whole.index.ref) == expected(plain, near(plain))
        chunks = data.draw(st.integers(0, len(whole.chunks) - 1))
        whole = Batch(whole.sort_key, whole.chunks[chunks:]).with_index_of(whole, chunks, 0)
        rows = data.draw(st.integers(1, whole.chunks[0].rows))
        before, whole = (
            whole,
            whole.slice(rows).with_index_of(whole, 0, rows) if rows < whole.rows else whole.slice(rows),
        )
        plain = plain[len(plain) - whole.rows :]
        if (
            rows == before.chunks[0].rows and whole.rows
        ):  # a consumed chunk is dropped, as `MergePlan.unread_inputs` does
            whole = Batch(before.sort_key, before.chunks[1:]).with_index_of(before, 1, 0)


def test_a_batch_with_chunks_too_long_for_an_index_has_none() -> None:
    batch = batch_of(rows_of(list(range((1 << ks.INDEX_ROW_BITS) + 1))))
    assert batch.index.ref == (0, 0, 0, 0)
