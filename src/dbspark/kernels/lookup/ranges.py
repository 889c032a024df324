"""Ranges of an order column inside a key, and comparisons between the columns of two rows.

Where a sort key is ordered by a column, its rows of one key hash rise by that column in every batch, whichever of
them only collide. So the rows that satisfy `column < value`, or the like, are a part of the run that `probe_ranges` has
found, and its ends are found by bisection: of the chunks, then of the rows of one.

A comparison is a line of three numbers: the node of the probe's column, the node of the column here, and how the value
here has to stand to that of the probe. NULL satisfies none; otherwise the order is that of
`kernels.sort.row_order`, Spark's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import borrowing, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import load_i64, load_u64
from dbspark.kernels.memory.layout import HASH, KIND, NODE_BYTES, NULL, ROW_BITS, ROW_MASK, START, VALID
from dbspark.kernels.memory.nodes import is_valid, lane
from dbspark.kernels.sort.row_order import compare_cells

BELOW = 0
AT_MOST = 1
AT_LEAST = 2
ABOVE = 3


@inlined
def _is_null(table: int, node: int, row: int) -> Any:
    at = table + node * NODE_BYTES
    valid = load_i64(at, VALID)
    if valid == 0:
        return load_i64(at, KIND) == NULL
    return not is_valid(valid, row + load_i64(at, START))


@borrowing
def holds(checks: Any, probe: int, i: int, table: int, row: int, nodes: int) -> Any:
    """Whether row `row` of a chunk satisfies all comparisons with row i of the probe chunk."""
    for k in range(checks.shape[0]):
        theirs, mine, how = checks[k, 0], checks[k, 1], checks[k, 2]
        if _is_null(probe, theirs, i) or _is_null(table, mine, row):
            return False
        order = compare_cells(table, mine, row, probe, theirs, i, nodes)
        if how == BELOW:
            good = order < 0
        elif how == AT_MOST:
            good = order <= 0
        elif how == AT_LEAST:
            good = order >= 0
        else:
            good = order > 0
        if not good:
            return False
    return True


@kernel
def which_hold(checks: Any, probe: int, which: Any, tables: Any, pos: Any, nodes: int, out: Any) -> None:
    """out[i] = whether the row at pos[i] satisfies all comparisons with row which[i] of the probe chunk."""
    for i in range(which.shape[0]):
        out[i] = holds(checks, probe, which[i], tables[pos[i] >> ROW_BITS], pos[i] & ROW_MASK, nodes)


@borrowing
def _chunk_of(before: Any, chunk: int, last: int, at: int) -> int:
    """The chunk in chunk … last that holds row `at`, counted through all chunks."""
    a = chunk
    b = last + 1
    while b - a > 1:
        middle = (a + b) >> 1
        if before[middle] <= at:
            a = middle
        else:
            b = middle
    return a


@borrowing
def _is_before(table: int, node: int, row: int, probe: int, theirs: int, i: int, word: Any, after: int,
               nodes: int) -> Any:  # fmt: skip
    """Whether a row lies before the first that is at least a value, or beyond it if `after` is 1."""
    here = load_u64(lane(table, HASH), row)
    if here != word:
        return here < word
    order = compare_cells(table, node, row, probe, theirs, i, nodes)
    return order < after


@borrowing
def _first(tables: Any, before: Any, node: int, first: int, chunk: int, begin: int, end: int, probe: int, theirs: int,
           i: int, word: Any, after: int, nodes: int) -> int:  # fmt: skip
    """The first of the rows begin … end-1, which are in chunks first … chunk, that does not lie before a value."""
    if begin >= end:
        return end
    # The first chunk whose last row does not lie before the value.
    a = first
    b = chunk
    while a < b:
        middle = (a + b) >> 1
        row = before[middle + 1] - before[middle] - 1
        if _is_before(tables[middle], node, row, probe, theirs, i, word, after, nodes):
            a = middle + 1
        else:
            b = middle
    low = max(begin, before[a])
    high = min(end, before[a + 1])
    while low < high:
        middle = (low + high) >> 1
        if _is_before(tables[a], node, middle - before[a], probe, theirs, i, word, after, nodes):
            low = middle + 1
        else:
            high = middle
    return min(low, end)


@kernel
def narrow_ranges(
    tables: Any, before: Any, node: int, probe: int, bounds: Any, words: Any, nodes: int, ranges: Any
) -> int:
    """Leave of each range the rows whose column `node`, by which they rise, satisfies all comparisons `bounds`.

    before[c] = rows in all chunks before c; words[k, i] = the order word of what bound k compares row i with. Returns
    the number of rows in all.
    """
    total = i64(0)
    for i in range(ranges.shape[0]):
        null = False
        for k in range(bounds.shape[0]):
            null = null or _is_null(probe, bounds[k, 0], i64(i))
        for b in range(ranges.shape[1]):
            if null or ranges[i, b, 2] == 0:
                ranges[i, b, 2] = 0
                continue
            chunk = ranges[i, b, 0]
            low = before[chunk] + ranges[i, b, 1]
            high = low + ranges[i, b, 2]
            first = _chunk_of(before, chunk, i64(tables.shape[0] - 1), low)
            last = _chunk_of(before, first, i64(tables.shape[0] - 1), high - 1)
            row = low - before[first]
            if _is_null(tables[first], node, row):  # NULLs come first
                nothing = np.uint64(0)
                low = _first(
                    tables, before, node, first, last, low, high, tables[first], node, row, nothing, i64(1), nodes
                )
            for k in range(bounds.shape[0]):
                theirs, how = bounds[k, 0], bounds[k, 2]
                after = i64(how in (AT_MOST, ABOVE))
                at = _first(
                    tables, before, node, first, last, low, high, probe, theirs, i64(i), words[k, i], after, nodes
                )
                if how in (BELOW, AT_MOST):
                    high = at
                else:
                    low = at
            count = max(high - low, i64(0))
            if count > 0:
                chunk = _chunk_of(before, first, last, low)
                ranges[i, b, 0] = chunk
                ranges[i, b, 1] = low - before[chunk]
            ranges[i, b, 2] = count
            total += count
    return total


@kernel
def covered(ranges: Any, before: Any, batch: int, order: Any, pos: Any) -> int:
    """Write the positions of the rows of one batch that lie in any of the ranges, once each; returns how many.

    `order` are the probe rows by where their ranges begin. Without room in `pos` they are only counted.
    """
    out = i64(0)
    done = i64(0)
    chunk = i64(0)
    for k in range(order.shape[0]):
        i = order[k]
        count = ranges[i, batch, 2]
        if count == 0:
            continue
        begin = before[ranges[i, batch, 0]] + ranges[i, batch, 1]
        end = begin + count
        begin = max(begin, done)
        if pos.shape[0] == 0:
            out += max(end - begin, i64(0))
        else:
            for at in range(begin, end):
                while at >= before[chunk + 1]:
                    chunk += 1
                pos[out] = chunk << ROW_BITS | (at - before[chunk])
                out += 1
        done = max(done, end)
    return out
