"""Ranges of an order column inside a key, and comparisons between columns of two rows.

Where a sort key has an order column, the rows of one key hash ascend by it in every batch (of several colliding keys,
all together). So the rows that satisfy `column < value` are one contiguous part of the run that `probe_ranges` has
found, and the ends of that part are found by bisection: first among the chunks, then among the rows of one chunk.

A *comparison* is three numbers: node of the probe's column, node of the batch's column, and one of the operators below,
which reads "the value in the batch is … that of the probe". NULL satisfies none; otherwise the order is Spark's, that
of `kernels.sort.row_order`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Bools, Int64Cube, Int64Matrix, Int64s, UInt64Matrix, borrowing, i64, inlined, kernel
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
def satisfies(comparisons: Any, probe: int, i: int, table: int, row: int, nodes: int) -> Any:
    """Whether row `row` of a chunk satisfies all comparisons with row i of a probe chunk."""
    for k in range(comparisons.shape[0]):
        probe_node, node, operator = comparisons[k, 0], comparisons[k, 1], comparisons[k, 2]
        if _is_null(probe, probe_node, i) or _is_null(table, node, row):
            return False
        order = compare_cells(table, node, row, probe, probe_node, i, nodes)
        if operator == BELOW:
            satisfied = order < 0
        elif operator == AT_MOST:
            satisfied = order <= 0
        elif operator == AT_LEAST:
            satisfied = order >= 0
        else:
            satisfied = order > 0
        if not satisfied:
            return False
    return True


@kernel
def which_satisfy(
    comparisons: Int64Matrix, probe: int, which: Int64s, tables: Int64s, pos: Int64s, nodes: int, out: Bools
) -> None:
    """out[i] = whether the row at pos[i] satisfies all comparisons with row which[i] of a probe chunk."""
    for i in range(which.shape[0]):
        out[i] = satisfies(comparisons, probe, which[i], tables[pos[i] >> ROW_BITS], pos[i] & ROW_MASK, nodes)


@borrowing
def _chunk_of(row_starts: Any, chunk: int, last: int, row: int) -> int:
    """The chunk, of `chunk` … `last`, that holds row `row`; rows are numbered consecutively over all chunks."""
    a = chunk
    b = last + 1
    while b - a > 1:
        middle = (a + b) >> 1
        if row_starts[middle] <= row:
            a = middle
        else:
            b = middle
    return a


@borrowing
def _is_before(table: int, node: int, row: int, probe: int, probe_node: int, i: int, word: Any, after: int,
               nodes: int) -> Any:  # fmt: skip
    """Whether a row lies before the first that is at least (with `after` = 1: above) the value of probe row i."""
    here = load_u64(lane(table, HASH), row)
    if here != word:
        return here < word
    order = compare_cells(table, node, row, probe, probe_node, i, nodes)
    return order < after


@borrowing
def _first_row(
    tables: Any, row_starts: Any, node: int, first: int, chunk: int, begin: int, end: int, probe: int, probe_node: int,
    i: int, word: Any, after: int, nodes: int,
) -> int:  # fmt: skip
    """The first of rows begin … end-1, in chunks first … chunk, for which `_is_before` is false; or `end`."""
    if begin >= end:
        return end
    # The first chunk whose last row does not lie before the value.
    a = first
    b = chunk
    while a < b:
        middle = (a + b) >> 1
        row = row_starts[middle + 1] - row_starts[middle] - 1
        if _is_before(tables[middle], node, row, probe, probe_node, i, word, after, nodes):
            a = middle + 1
        else:
            b = middle
    low = max(begin, row_starts[a])
    high = min(end, row_starts[a + 1])
    while low < high:
        middle = (low + high) >> 1
        if _is_before(tables[a], node, middle - row_starts[a], probe, probe_node, i, word, after, nodes):
            low = middle + 1
        else:
            high = middle
    return min(low, end)


@kernel
def narrow_ranges(
    tables: Int64s,
    row_starts: Int64s,
    node: int,
    probe: int,
    bounds: Int64Matrix,
    words: UInt64Matrix,
    nodes: int,
    ranges: Int64Cube,
) -> int:
    """Narrow each range to the rows whose order column `node` satisfies all comparisons `bounds`; returns how many.

    row_starts[c] = rows in all chunks before c; words[k, i] = the order word of the value that bound k has in row i.
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
            low = row_starts[chunk] + ranges[i, b, 1]
            high = low + ranges[i, b, 2]
            first = _chunk_of(row_starts, chunk, i64(tables.shape[0] - 1), low)
            last = _chunk_of(row_starts, first, i64(tables.shape[0] - 1), high - 1)
            row = low - row_starts[first]
            if _is_null(tables[first], node, row):  # NULLs come first
                lowest_word = np.uint64(0)
                low = _first_row(
                    tables, row_starts, node, first, last, low, high, tables[first], node, row, lowest_word, i64(1),
                    nodes,
                )  # fmt: skip
            for k in range(bounds.shape[0]):
                probe_node, operator = bounds[k, 0], bounds[k, 2]
                after = i64(operator in (AT_MOST, ABOVE))
                at = _first_row(
                    tables, row_starts, node, first, last, low, high, probe, probe_node, i64(i), words[k, i], after,
                    nodes,
                )  # fmt: skip
                if operator in (BELOW, AT_MOST):
                    high = at
                else:
                    low = at
            count = max(high - low, i64(0))
            if count > 0:
                chunk = _chunk_of(row_starts, first, last, low)
                ranges[i, b, 0] = chunk
                ranges[i, b, 1] = low - row_starts[chunk]
            ranges[i, b, 2] = count
            total += count
    return total


@kernel
def rows_in_ranges(ranges: Int64Cube, row_starts: Int64s, batch: int, order: Int64s, pos: Int64s) -> int:
    """Write the positions of the rows of one batch that lie in any range, each once; returns how many.

    `order`: the probe rows, sorted by the beginnings of their ranges. With an empty `pos` rows are only counted.
    """
    out = i64(0)
    written = i64(0)
    chunk = i64(0)
    for k in range(order.shape[0]):
        i = order[k]
        count = ranges[i, batch, 2]
        if count == 0:
            continue
        begin = row_starts[ranges[i, batch, 0]] + ranges[i, batch, 1]
        end = begin + count
        begin = max(begin, written)
        if pos.shape[0] == 0:
            out += max(end - begin, i64(0))
        else:
            for at in range(begin, end):
                while at >= row_starts[chunk + 1]:
                    chunk += 1
                pos[out] = chunk << ROW_BITS | (at - row_starts[chunk])
                out += 1
        written = max(written, end)
    return out
