"""Window functions against Python over the rows of each frame."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.kernels.aggregate import window_functions as kw
from dbspark.kernels.memory import layout as nd
from dbspark.trace.directory import sources_of
from tests.kernels.build import column_of, rows_batch

LIMIT = 10**38
WORD = 2**64 - 1


@st.composite
def frames(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Any:
    """(values, starts of partitions, lo, hi): bounds that do not decrease inside a partition."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    starts = np.cumsum([0, *sizes])
    lo, hi = [], []
    for begin, size in zip(starts.tolist(), sizes, strict=False):
        bounds = st.lists(st.integers(begin, begin + size), min_size=size, max_size=size).map(sorted)
        low, high = draw(bounds), draw(bounds)
        lo += low
        hi += [max(a, b) for a, b in zip(low, high, strict=True)]
    rows = int(starts[-1])
    column = draw(st.lists(values, min_size=rows, max_size=rows))
    return column, starts, np.array(lo, np.int64), np.array(hi, np.int64)


def words_of(number: int) -> list[int]:
    return [number & WORD, number >> 64 & WORD]


NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)


@given(frames(NUMBERS))
def test_sums_of_frames_are_exact(drawn: Any) -> None:
    values, _, lo, hi = drawn
    sums, out = np.empty((len(values) + 1, 3), np.uint64), np.empty((len(values), 2), np.uint64)
    column = column_of(values, "BIGINT")
    kw.sum_prefixes(column.table, sums)
    limit = [np.uint64(w) for w in words_of(LIMIT)]
    assert kw.frame_sums(sums, lo, hi, *limit, out) == 0
    expected = [sum(v for v in values[a:b] if v is not None) for a, b in zip(lo, hi, strict=True)]
    assert out.tolist() == [words_of(total) for total in expected]

    bound = max(map(abs, expected))  # a sum has to be below the limit
    assert kw.frame_sums(sums, lo, hi, *(np.uint64(w) for w in words_of(bound)), out) == 1
    assert kw.frame_sums(sums, lo, hi, *(np.uint64(w) for w in words_of(bound + 1)), out) == 0


@given(
    st.lists(st.tuples(st.integers(-(10**30), 10**30), st.integers(0, 2**31 - 1)), min_size=1), st.integers(1, 10**6)
)
def test_averages_are_rounded_half_away_from_zero(sums: list[tuple[int, int]], factor: int) -> None:
    words, out = np.array([words_of(s) for s, _ in sums], np.uint64), np.empty((len(sums), 2), np.uint64)
    counts = np.array([n for _, n in sums], np.int64)
    assert kw.divide_frame_sums(words, counts, factor, *(np.uint64(w) for w in words_of(LIMIT)), out) == 0

    def expected(total: int, n: int) -> int:
        quotient = (2 * abs(total) * factor + n) // (2 * n)
        return -quotient if total < 0 else quotient

    assert out.tolist() == [words_of(expected(s, n) if n else 0) for s, n in sums]


@given(frames(st.none() | st.floats(-1e6, 1e6)))
def test_sums_of_floats_are_added_from_left_to_right(drawn: Any) -> None:
    values, _, lo, hi = drawn
    out = np.empty(len(values))
    column = column_of(values, "DOUBLE")
    kw.float_sums(column.table, lo, hi, out)
    for found, a, b in zip(out.tolist(), lo, hi, strict=True):
        total = 0.0
        for value in values[a:b]:
            total += value if value is not None else 0.0
        assert found == total


@pytest.mark.parametrize("largest", [False, True])
@given(drawn=frames(st.none() | st.integers(-3, 3)))
def test_the_extreme_of_a_frame_is_that_of_its_values(largest: bool, drawn: Any) -> None:
    values, starts, lo, hi = drawn
    queue, out = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    column = column_of(values, "BIGINT")
    kw.frame_extremes(column.table, nd.LANES + 1, starts, lo, hi, int(largest), queue, out)
    for row, a, b in zip(out.tolist(), lo, hi, strict=True):
        known = [v for v in values[a:b] if v is not None]
        if known:
            assert a <= row < b
            assert values[row] == (max(known) if largest else min(known))
        else:
            assert row == -1


PAIR = Schema.parse("k BIGINT, n BIGINT")
ROWS = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(-2, 2)), st.just(1), min_size=1, max_size=10)


@given(ROWS)
def test_peers_are_the_rows_with_equal_order_columns(rows: Any) -> None:
    three = Schema.parse("k BIGINT, n BIGINT, id BIGINT")
    sort_key = SortKey(three, (0,), [(1, False, False)])
    batch = rows_batch(sort_key, {(k, n, i): 1 for k, n in rows for i in range(1 + abs(n))})
    found = list(zip(*(c.to_pylist() for c in batch.to_arrow().columns), strict=True))
    starts = np.array([i for i, row in enumerate(found) if i == 0 or row[0] != found[i - 1][0]] + [len(found)])
    first, last = np.empty(len(found), np.int64), np.empty(len(found), np.int64)
    pos = np.arange(len(found))
    kw.find_peers(batch.tables, pos, starts, sort_key.order_address, three.node_count, first, last)
    for i, row in enumerate(found):
        peers = [j for j, other in enumerate(found) if other[:2] == row[:2]]
        assert (first[i], last[i]) == (peers[0], peers[-1] + 1)
    kw.find_peers(batch.tables, pos, starts, 0, three.node_count, first, last)
    for a, b in itertools.pairwise(starts):
        assert set(first[a:b]) == {a}
        assert set(last[a:b]) == {b}


@given(ROWS, ROWS)
def test_equal_rows_of_two_partitions_are_paired(left: Any, right: Any) -> None:
    batches = tuple(rows_batch(SortKey(PAIR), rows) for rows in (left, right))
    tables = sources_of(batches)[0]
    pos = np.array([b << nd.ROW_BITS | r for b in range(2) for r in range(batches[b].rows)], np.int64)
    starts = np.array([0, len(left), len(left) + len(right)])
    i, j = np.empty(len(left), np.int64), np.empty(len(left), np.int64)
    n = kw.pair_rows(tables, pos, starts, PAIR.columns, PAIR.node_count, i, j)
    rows = [row for b in batches for row in zip(*(c.to_pylist() for c in b.to_arrow().columns), strict=True)]
    assert all(rows[a] == rows[b] for a, b in zip(i[:n], j[:n], strict=True))
    assert {rows[a] for a in i[:n]} == left.keys() & right.keys()
    same = np.ones(n, np.bool_)
    chunk = column_of([row[1] for row in rows], "BIGINT")
    kw.keep_equal(chunk.table, nd.LANES, nd.LANES + 1, i[:n], j[:n], same)
    assert same.all()


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("beyond", [False, True])
@given(drawn=frames(st.integers(-(2**62), 2**62) | st.integers(-3, 3)), offset=st.integers(-4, 4))
def test_range_ends_are_the_first_rows_at_or_beyond_a_bound(
    descending: bool, beyond: bool, drawn: Any, offset: int
) -> None:
    values, starts, _, _ = drawn
    parts = [sorted(values[a:b], reverse=descending) for a, b in itertools.pairwise(starts)]
    column = column_of([v for part in parts for v in part], "BIGINT")

    def keys(plus: int) -> tuple[Any, Any, Any]:
        high, low, valid = (
            np.empty(len(values), np.int64),
            np.empty(len(values), np.uint64),
            np.empty(len(values), np.bool_),
        )
        kw.range_keys(column.table, float(plus), -1 if plus < 0 else 0, np.uint64(plus & WORD), high, low, valid)
        return high, low, valid

    out = np.empty(len(values), np.int64)
    high, low, valid = keys(0)
    kw.range_ends(starts, high, low, valid, *keys(offset)[:2], int(descending), 0, int(beyond), out)
    expected = []
    for begin, part in zip(starts.tolist(), parts, strict=False):
        for v in part:
            bound, sign = v + offset, -1 if descending else 1
            after = [sign * x > sign * bound or (x == bound and not beyond) for x in part]
            expected.append(begin + (after.index(True) if True in after else len(part)))
    assert out.tolist() == expected


def test_float_bounds_are_added_as_floats() -> None:
    high, low, valid = np.empty(3, np.int64), np.empty(3, np.uint64), np.empty(3, np.bool_)
    column = column_of([1.5, None, float("nan")], "DOUBLE")
    kw.range_keys(column.table, 2.0, 0, np.uint64(0), high, low, valid)
    assert valid.tolist() == [True, False, True]
    assert low[0] < low[2], "NaN is above all numbers"
