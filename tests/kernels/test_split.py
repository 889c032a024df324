"""Splitting sorted sources against counting their items."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.kernels.merge.split import choose_split, split_at
from tests.kernels.build import HASHES, TOP, Item, Sources, cut, everything, range_steps, several, spread


@given(several(1, 4), HASHES, HASHES, st.integers(1, 60))
def test_a_split_cuts_a_merge_in_two(drawn: Any, key: int, row_hash: int, limit: int) -> None:
    low, high = Sources(*drawn), Sources(*drawn)
    middle = np.empty_like(low.cursors)
    n = split_at(low.tables, low.lens, low.cursors, low.ends, np.uint64(key), np.uint64(row_hash), middle)
    before = low.read(low.cursors, middle)
    assert Counter(before) == Counter(i for g in low.groups for i in g if (i.key, i.hash) < (key, row_hash))
    assert n == len(before)
    low.ends[:] = middle
    high.cursors[:] = middle
    assert range_steps(low, limit) + range_steps(high, limit) == everything(low.groups)


@given(several(1, 4), HASHES, HASHES, st.data())
def test_a_split_starts_from_the_cursors(drawn: Any, key: int, row_hash: int, data: st.DataObject) -> None:
    sources = Sources(*drawn)
    for s, items in enumerate(sources.groups):
        sources.cursors[s] = sources.cursor(s, data.draw(st.integers(0, len(items))))
    out = np.empty_like(sources.cursors)
    n = split_at(sources.tables, sources.lens, sources.cursors, sources.ends, np.uint64(key), np.uint64(row_hash), out)
    ahead = sources.read(sources.cursors, sources.ends)
    before = sources.read(sources.cursors, out)
    assert Counter(before) == Counter(i for i in ahead if (i.key, i.hash) < (key, row_hash))
    assert n == len(before)


@pytest.mark.parametrize("limit", [4, 10, 100, 999])
def test_a_split_of_spread_hashes_keeps_to_its_limit(limit: int) -> None:
    items = spread(range(1000))
    groups = [items[::3], items[1::3], items[2::3]]
    sources = Sources(groups, [cut(g, 50) for g in groups])
    out = np.empty_like(sources.cursors)
    n = choose_split(sources.tables, sources.lens, sources.cursors, sources.ends, limit, out)
    assert limit // 2 <= n <= limit


@pytest.mark.parametrize("limit", [1, 2, 10, 100])
@pytest.mark.parametrize("key", [0, 12345, TOP - 1, TOP])
def test_one_hot_key_is_split_by_row_hash(key: int, limit: int) -> None:
    items = sorted((i._replace(key=key) for i in spread(range(300))), key=lambda i: i.rank)
    groups = [items[::3], items[1::3], items[2::3]]
    sources = Sources(groups, [cut(g, 40) for g in groups])
    out = np.empty_like(sources.cursors)
    n = choose_split(sources.tables, sources.lens, sources.cursors, sources.ends, limit, out)
    assert 1 <= n <= limit
    assert range_steps(sources, limit) == items


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
def test_a_hot_key_with_row_hashes_in_the_upper_half_only_is_split_too(limit: int) -> None:
    items = [Item(99, TOP - 50 + i, i, 1) for i in range(40)]
    groups = [items[::3], items[1::3], items[2::3]]
    assert range_steps(Sources(groups, [cut(g, 5) for g in groups]), limit) == items
