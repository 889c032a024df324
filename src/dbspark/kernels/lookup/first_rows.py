"""The first (or last) rows of keys across batches, in the order of the sort key.

Each batch holds the rows of a key as one sorted run. The runs are merged from one end, weights of equal rows are added
across batches and times, and the merge stops when enough rows with a weight have been found. So the cost is that of
the rows returned, of those retracted since the last merge, and of those that fail the comparisons.
"""

from __future__ import annotations

import numpy as np

from dbspark.kernels.jit import Int64Cube, Int64Matrix, Int64s, i64, inlined, kernel
from dbspark.kernels.lookup.probe import same_key
from dbspark.kernels.lookup.ranges import satisfies
from dbspark.kernels.memory.intrinsics import add_overflows, load_i64, load_u64
from dbspark.kernels.memory.layout import HASH, OVERFLOW, ROW_BITS, WEIGHT
from dbspark.kernels.memory.nodes import lane, lane_mask
from dbspark.kernels.sort.row_order import compare_rows


@inlined
def compare_in_order(table_a: int, i: int, table_b: int, j: int, columns: int, nodes: int) -> int:
    """Compare two rows with the same key hash in the order of the sort key: below zero, zero or above."""
    x, y = load_u64(lane(table_a, HASH), i), load_u64(lane(table_b, HASH), j)
    if x != y:
        return -1 if x < y else 1
    return compare_rows(table_a, i, table_b, j, columns, nodes)


@kernel
def first_rows_of_keys(
    tables: Int64s, lens: Int64s, ranges: Int64Cube, probe: int, probe_key: Int64s, key: Int64s, columns: int,
    nodes: int, limit: int, backwards: int, comparisons: Int64Matrix, least: int, which: Int64s, pos: Int64s,
    weights: Int64s,
) -> int:  # fmt: skip
    """Write up to `limit` rows of the key of each probe row as (probe row, position, weight); returns how many.

    `ranges`: as `probe_ranges` writes them, or parts of those. Rows whose total weight is below `least` or that fail
    the `comparisons` (`kernels.lookup.ranges`) are skipped. Returns OVERFLOW where a sum is beyond int64.
    """
    batches = ranges.shape[1]
    chunks = np.empty(batches, np.int64)
    rows = np.empty(batches, np.int64)
    left = np.empty(batches, np.int64)
    out = i64(0)
    for i in range(ranges.shape[0]):
        for b in range(batches):
            chunks[b], rows[b], left[b] = ranges[i, b, 0], ranges[i, b, 1], ranges[i, b, 2]
            if backwards != 0 and left[b] > 0:  # begin at the last row of the run
                skip = left[b] - 1
                while rows[b] + skip >= lens[chunks[b]]:
                    skip -= lens[chunks[b]] - rows[b]
                    chunks[b] += 1
                    rows[b] = 0
                rows[b] += skip
        found = i64(0)
        while found < limit:
            best = i64(-1)
            for b in range(batches):
                if left[b] == 0:
                    continue
                if best < 0:
                    best = i64(b)
                    continue
                order = compare_in_order(tables[chunks[b]], rows[b], tables[chunks[best]], rows[best], columns, nodes)
                if (order > 0) if backwards != 0 else (order < 0):
                    best = i64(b)
            if best < 0:
                break
            table, row, chunk = tables[chunks[best]], rows[best], chunks[best]
            total = i64(0)
            for b in range(batches):
                while left[b] > 0:
                    other = tables[chunks[b]]
                    if compare_in_order(other, rows[b], table, row, columns, nodes) != 0:
                        break
                    w = load_i64(lane(other, WEIGHT), rows[b] & lane_mask(other, WEIGHT))
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
            if total == 0 or total < least or not satisfies(comparisons, probe, i64(i), table, row, nodes):
                continue
            if same_key(probe, i64(i), probe_key, table, row, key, nodes):
                which[out] = i
                pos[out] = chunk << ROW_BITS | row
                weights[out] = total
                out += 1
                found += 1
    return out
