"""When batches are merged: each rule at its bound, and that the summary of the tail never misses a merge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.trace.config import SpineConfig
from dbspark.trace.merge_policy import extend_settled_tail, level_of, next_merge, settled_tail, space_share
from dbspark.trace.statistics import SpineStats

CONFIG = SpineConfig()
SORT_KEY = SortKey(Schema.parse("k BIGINT"))


class Sized(Batch):
    """A batch that only says how many rows it has and how many of them are retractions."""

    def __init__(self, rows: int, negative: int = 0) -> None:
        super().__init__(SORT_KEY, ())
        self.rows = rows
        self.__dict__["_survey"] = (1, negative, 0, rows - 2 * negative)


def due(*rows: int, config: SpineConfig = CONFIG, stats: Any = None) -> int | None:
    return next_merge(config, stats or SpineStats(), [Sized(n) for n in rows], True)


@given(st.integers(2, 16), st.integers(0, 10**9))
def test_a_level_is_the_logarithm_to_the_base_of_the_fanout(fanout: int, rows: int) -> None:
    level = level_of(replace(CONFIG, fanout=fanout), rows)
    assert rows < fanout ** (level + 1)
    assert level == 0 or rows >= fanout**level


def test_so_many_batches_of_a_level_as_the_fanout_become_one() -> None:
    wide = replace(CONFIG, max_inline_merge_rows=0, max_space_share=1e9, min_space_share=1e9)
    assert due(100_000, 300, 300, 300, config=wide) is None
    assert due(100_000, 300, 300, 300, 300, config=wide) == 1
    assert due(100_000, 300, 300, 300, 300, 300, 300, 300, config=replace(wide, fanout=8)) is None


def test_a_batch_that_is_smaller_than_a_newer_one_is_merged_with_it() -> None:
    assert due(100_000, 10, 5000) == 1


@pytest.mark.parametrize("newer", [400, 4000])
def test_newer_rows_beyond_a_share_of_the_oldest_batch_are_merged_with_it(newer: int) -> None:
    assert due(1000, newer) == (0 if newer > 1000 else None)
    share = space_share(CONFIG, SpineStats())
    assert CONFIG.min_space_share <= share <= CONFIG.max_space_share


SIZES = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3)), min_size=2, max_size=30)


@given(SIZES, st.sampled_from([CONFIG, SpineConfig(fanout=2, max_inline_merge_rows=0), SpineConfig(fanout=8)]))
def test_where_the_summary_says_that_nothing_is_due_nothing_is(sizes: list[tuple[int, int]], config: Any) -> None:
    """Batches are added one by one; where the summary rules a merge out, looking at all batches finds none either."""
    stats, entries, tail = SpineStats(), (), None
    for rows, quarters in sizes:
        batch = Sized(rows, quarters * rows // 4)
        tail = extend_settled_tail(config, stats, entries, tail, batch)
        entries = (*entries, batch)
        begin = next_merge(config, stats, entries, True)
        if tail is not None:
            assert begin is None
        if begin is None:
            tail = settled_tail(config, stats, entries)
        else:
            merged = entries[begin:]
            entries = (*entries[:begin], Sized(sum(b.rows for b in merged), sum(b.negative for b in merged)))
            tail = None
