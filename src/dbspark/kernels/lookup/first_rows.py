"""The first or the last rows of keys, in the order of the sort key, across batches.

Each batch holds the rows of a key as one run in order. The runs are walked together from one end, equal rows are
summed wherever and whenever they were written, and the walk stops when enough rows with a weight have been found. So
the cost is that of the rows which are given, and of those that have been taken back since the last merge or do not
satisfy what is asked of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import add_overflows, i64, inlined, kernel, load_i64, load_u64
from dbspark.kernels.lookup.probe import same_key
from dbspark.kernels.lookup.ranges import holds
from dbspark.kernels.memory.layout import HASH, ROW_BITS, WEIGHT
from dbspark.kernels.merge.consolidate import OVERFLOW, lane, lane_mask
from dbspark.kernels.sort.row_order import compare_rows


@inlined
def order_of(ta: int, i: int, tb: int, j: int, columns: int, nodes: int) -> int:
    """How two rows of a sort key stand to each other where their keys are the same."""
    x, y = load_u64(lane(ta, HASH), i), load_u64(lane(tb, HASH), j)
    if x != y:
        return -1 if x < y else 1
    return compare_rows(ta, i, tb, j, columns, nodes)


@kernel
def ends_of_keys(
    tables: Any, lens: Any, ranges: Any, probe: int, probe_key: Any, key: Any, columns: int, nodes: int,
    limit: int, backwards: int, checks: Any, least: int, which: Any, pos: Any, weights: Any,
) -> int:  # fmt: skip
    """Write, for each probe row, up to `limit` rows of its key as (probe row, position, weight); returns how many.

    `ranges` are those of `probe_ranges`, or parts of them. Only rows of a weight of at least `least` are counted, and
    for which the `checks` hold. Returns OVERFLOW where a sum is beyond int64.
    """
    batches = ranges.shape[1]
    chunks = np.empty(batches, np.int64)
    rows = np.empty(batches, np.int64)
    left = np.empty(batches, np.int64)
    out = i64(0)
    for i in range(ranges.shape[0]):
        for b in range(batches):
            chunks[b], rows[b], left[b] = ranges[i, b, 0], ranges[i, b, 1], ranges[i, b, 2]
            if backwards != 0 and left[b] > 0:  # to the last row of the run
                ahead = left[b] - 1
                while rows[b] + ahead >= lens[chunks[b]]:
                    ahead -= lens[chunks[b]] - rows[b]
                    chunks[b] += 1
                    rows[b] = 0
                rows[b] += ahead
        found = i64(0)
        while found < limit:
            best = i64(-1)
            for b in range(batches):
                if left[b] == 0:
                    continue
                if best < 0:
                    best = i64(b)
                    continue
                order = order_of(tables[chunks[b]], rows[b], tables[chunks[best]], rows[best], columns, nodes)
                if (order > 0) if backwards != 0 else (order < 0):
                    best = i64(b)
            if best < 0:
                break
            table, row, chunk = tables[chunks[best]], rows[best], chunks[best]
            total = i64(0)
            for b in range(batches):
                while left[b] > 0:
                    here = tables[chunks[b]]
                    if order_of(here, rows[b], table, row, columns, nodes) != 0:
                        break
                    w = load_i64(lane(here, WEIGHT), rows[b] & lane_mask(here, WEIGHT))
                    if add_overflows(total, w):
                        return i64(OVERFLOW)
                    total += w
                    left[b] -= 1
                    if backwards != 0:
                        rows[b] -= 1
                        if rows[b] < 0 and left[b] > 0:
                            chunks[b] -= 1
                            rows[b] = lens[chunks[b]] - 1
                    else:
                        rows[b] += 1
                        if rows[b] >= lens[chunks[b]] and left[b] > 0:
                            chunks[b] += 1
                            rows[b] = 0
            if total == 0 or total < least or not holds(checks, probe, i64(i), table, row, nodes):
                continue
            if same_key(probe, i64(i), probe_key, table, row, key, nodes):
                which[out] = i
                pos[out] = chunk << ROW_BITS | row
                weights[out] = total
                out += 1
                found += 1
    return out
