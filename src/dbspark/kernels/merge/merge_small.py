"""Merging a few small batches in two calls, `plan` and `fill`, as `kernels.sort.sort_rows` sorts rows.

Each batch is one chunk of flat columns, and all rows have one time.

    sort key = that of `kernels.sort.sort_rows`
    batches = address of the node table and number of rows of each batch, the largest batch last
    scratch = info (`kernels.sort.sort_rows`), addresses, lengths, cursors and stops of the batches, the layout of the
              arena, keys and order (`consolidate.merge_ranges`), then positions and weights of the output rows
"""

from __future__ import annotations

from typing import Any

from dbspark.kernels.jit import i64, inlined, kernel
from dbspark.kernels.memory.gather import gather, measure_rows
from dbspark.kernels.memory.intrinsics import int64s_at, load_i64, uint64s_at
from dbspark.kernels.memory.layout import LANES, TIME
from dbspark.kernels.memory.nodes import lane
from dbspark.kernels.merge.consolidate import ALL_ONES, OUTPUT_ROWS, add_to_survey, merge_ranges
from dbspark.kernels.sort.sort_rows import COLUMNS, INFO_WORDS, NODES, OWN_KEY, TIME_WORDS, WEIGHT_SURVEY


def scratch_words(columns: int, count: int, rows: int) -> int:
    """Words of scratch for a merge of `count` batches with so many rows in all."""
    return INFO_WORDS + 6 * count + 4 * (LANES + columns) + 6 * rows


@inlined
def _parts(sort_key: int, count: int, rows: int, scratch: int) -> Any:
    """Scratch as arrays: info, tables, lens, cursors, stops, layout, keys, order, pos, weights."""
    lines = LANES + load_i64(sort_key, COLUMNS)
    tables = scratch + 8 * INFO_WORDS
    cursors = tables + 16 * count
    layout = cursors + 32 * count
    keys = layout + 32 * lines
    order = keys + 16 * rows
    pos = order + 16 * rows
    return (
        int64s_at(scratch, INFO_WORDS), int64s_at(tables, count), int64s_at(tables + 8 * count, count),
        int64s_at(cursors, 2 * count).reshape(count, 2), int64s_at(cursors + 16 * count, 2 * count).reshape(count, 2),
        int64s_at(layout, 4 * lines).reshape(lines, 4), uint64s_at(keys, 2 * rows), int64s_at(order, 2 * rows),
        int64s_at(pos, rows), int64s_at(pos + 8 * rows, rows),
    )  # fmt: skip


@kernel
def plan(sort_key: int, batches: int, count: int, rows: int, scratch: int) -> int:
    """Merge `count` batches of `rows` rows in all; returns the size of an arena for the result.

    Other results: 0 where no row is left or a weight overflows (info[OUTPUT_ROWS] says which), and the negative result
    of `gather.measure_rows` where a column is too large.
    """
    info, tables, lens, cursors, stops, layout, keys, order, pos, weights = _parts(sort_key, count, rows, scratch)
    for s in range(count):
        tables[s], lens[s] = load_i64(batches, 2 * s), load_i64(batches, 2 * s + 1)
        cursors[s, 0], cursors[s, 1] = s, 0
        stops[s, 0], stops[s, 1] = s, lens[s]
    columns, nodes = load_i64(sort_key, COLUMNS), load_i64(sort_key, NODES)
    merge_ranges(tables, lens, cursors, stops, columns, nodes, keys, order, pos, weights, info)
    if info[OUTPUT_ROWS] <= 0:
        return i64(0)
    survey = info[WEIGHT_SURVEY:]
    survey[:4] = 0
    add_to_survey(weights.ctypes.data, info[OUTPUT_ROWS], i64(1), survey)
    return measure_rows(
        tables, columns, nodes, pos, info[OUTPUT_ROWS], load_i64(sort_key, OWN_KEY), info[ALL_ONES], layout
    )


@kernel
def fill(sort_key: int, count: int, rows: int, scratch: int, arena: int) -> None:
    """Copy the output rows of a plan into an arena of the planned size."""
    info, tables, _, _, _, layout, _, _, pos, weights = _parts(sort_key, count, rows, scratch)
    time = info[TIME_WORDS:WEIGHT_SURVEY]
    for c in range(TIME, LANES):
        time[c - TIME] = load_i64(lane(tables[0], i64(c)), 0)
    columns, nodes = load_i64(sort_key, COLUMNS), load_i64(sort_key, NODES)
    gather(tables, columns, nodes, pos, info[OUTPUT_ROWS], weights, info[ALL_ONES], time, layout, arena)
