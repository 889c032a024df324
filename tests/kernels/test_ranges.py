"""Ranges of an order column and comparisons between rows, against Python's comparisons."""

import operator
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.columnar.sort_key import weakened_hash
from dbspark.kernels.lookup import ranges as kr
from dbspark.kernels.lookup.probe import expand_ranges, probe_ranges
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.sort.row_order import order_words
from dbspark.trace.directory import sources_of
from tests.kernels.build import rows_batch

PAIR = Schema.parse("k BIGINT, n BIGINT")
VALUE = st.none() | st.integers(-3, 3)
ROWS = st.dictionaries(st.tuples(st.integers(0, 1), VALUE), st.just(1), max_size=10)
OPERATORS = {kr.BELOW: operator.lt, kr.AT_MOST: operator.le, kr.AT_LEAST: operator.ge, kr.ABOVE: operator.gt}
KEY, VALUES = nd.LANES, nd.LANES + 1


def expected_rows(probe: Any, rows: Any, operators: list[int]) -> list[Any]:
    def holds(x: Any, y: Any) -> bool:
        return None not in (x, y) and all(OPERATORS[o](x, y) for o in operators)

    return sorted((row for row in rows if row[0] == probe[0] and holds(row[1], probe[1])), key=str)


@given(
    groups=st.lists(ROWS, max_size=3),
    probes=ROWS.filter(bool),
    operators=st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=2),
    mask=st.sampled_from([2**64 - 1, 0]),
)
def test_ranges_are_narrowed_to_the_rows_that_satisfy_all_bounds(
    groups: Any, probes: Any, operators: list[int], mask: int
) -> None:
    with weakened_hash(mask):
        sort_key = SortKey(PAIR, (0,), [(1, False, False)])
        batches = tuple(b for rows in groups if (b := rows_batch(sort_key, rows)).rows)
        probe = rows_batch(sort_key, probes).chunks[0]
    sources = sources_of(batches)
    asked = list(zip(probe.array(0).to_pylist(), probe.array(1).to_pylist(), strict=True))
    ranges = np.empty((probe.rows, len(batches), 3), np.int64)
    probe_ranges(*sources, probe.lane(nd.KEY), ranges)
    bounds = np.array([(VALUES, VALUES, o) for o in operators], np.int64)
    words = np.empty((len(operators), probe.rows), np.uint64)
    for line in words:
        order_words(probe.table, VALUES, probe.rows, 0, 0, line)
    row_starts = np.cumsum([0, *sources[1]])
    total = kr.narrow_ranges(sources[0], row_starts, VALUES, probe.table, bounds, words, PAIR.node_count, ranges)
    assert total == ranges[:, :, 2].sum()

    which, pos = np.empty(total, np.int64), np.empty(total, np.int64)
    key = np.array([KEY], np.int64)
    n = expand_ranges(sources[0], sources[1], ranges, probe.table, key, key, PAIR.node_count, which, pos)
    rows = [row for b in batches for row in zip(*(c.to_pylist() for c in b.to_arrow().columns), strict=True)]
    found: list[list[Any]] = [[] for _ in asked]
    for i, p in zip(which[:n].tolist(), pos[:n].tolist(), strict=True):
        found[i].append(rows[row_starts[p >> nd.ROW_BITS] + (p & nd.ROW_MASK)])
    assert [sorted(f, key=str) for f in found] == [expected_rows(row, rows, operators) for row in asked]

    for b, batch in enumerate(batches):  # the rows of one batch that are in any range, each once
        order = np.argsort(row_starts[ranges[:, b, 0]] + ranges[:, b, 1])
        out = np.empty(batch.rows, np.int64)
        n = kr.rows_in_ranges(ranges, row_starts, b, order, out)
        assert n == kr.rows_in_ranges(ranges, row_starts, b, order, np.empty(0, np.int64))
        begins = row_starts[ranges[:, b, 0]] + ranges[:, b, 1]
        covered = {r for begin, count in zip(begins, ranges[:, b, 2], strict=True) for r in range(begin, begin + count)}
        assert [row_starts[p >> nd.ROW_BITS] + (p & nd.ROW_MASK) for p in out[:n].tolist()] == sorted(covered)


@given(ROWS.filter(bool), ROWS.filter(bool), st.lists(st.sampled_from(sorted(OPERATORS)), max_size=2))
def test_comparisons_of_two_rows_hold_where_python_says_so(left: Any, right: Any, operators: list[int]) -> None:
    sort_key = SortKey(PAIR)
    probe, other = (rows_batch(sort_key, rows).chunks[0] for rows in (left, right))
    comparisons = np.array([(VALUES, VALUES, o) for o in operators], np.int64).reshape(-1, 3)
    which, pos = (a.ravel() for a in np.meshgrid(np.arange(probe.rows), np.arange(other.rows), indexing="ij"))
    out = np.empty(len(which), np.bool_)
    tables = np.array([other.table], np.int64)
    kr.which_satisfy(comparisons, probe.table, which, tables, pos, PAIR.node_count, out)
    x, y = other.array(1).to_pylist(), probe.array(1).to_pylist()
    expected = [
        all(None not in (x[p], y[i]) and OPERATORS[o](x[p], y[i]) for o in operators)
        for i, p in zip(which.tolist(), pos.tolist(), strict=True)
    ]
    assert out.tolist() == expected
