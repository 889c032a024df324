"""Merging a few small batches, in two calls, as `kernels.sort.sort_rows` brings rows into order: `plan`,
then `fill`.

Each batch is one chunk, and all rows are of one time.

    given = address of the node table and rows of each batch, the largest last scratch = info
    (`kernels.sort.sort_rows`), the numbers of the merge, the layout of the arena, working memory of the
    merge,
              then positions and weights of the rows that stay
"""

from __future__ import annotations

from typing import Any

from dbspark.kernels.jit import i64, inlined, kernel
from dbspark.kernels.memory.gather import gather, measure_rows
from dbspark.kernels.memory.intrinsics import int64s_at, load_i64, uint64s_at
from dbspark.kernels.memory.layout import LANES, TIME
from dbspark.kernels.memory.nodes import lane
from dbspark.kernels.merge.consolidate import add_to_survey, merge_ranges
from dbspark.kernels.sort.sort_rows import COLUMNS, INFO_WORDS, NODES, OWN_KEY, WEIGHT_SURVEY


def scratch_words(columns: int, count: int, rows: int) -> int:
    """Working memory of a merge."""
    return INFO_WORDS + 6 * count + 4 * (LANES + columns) + 6 * rows


@inlined
def _parts(told: int, count: int, rows: int, scratch: int) -> Any:
    """Working memory as arrays: info, tables, lens, cursors, stops, layout, keys, order, pos, weights."""
    lines = LANES + load_i64(told, COLUMNS)
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
def plan(told: int, given: int, count: int, rows: int, scratch: int) -> int:
    """Which of so many rows of all batches stay; returns the size of their arena, 0 where none does or a weight is
    beyond int64, and less where a column is too large."""
    info, tables, lens, cursors, stops, layout, keys, order, pos, weights = _parts(told, count, rows, scratch)
    for s in range(count):
        tables[s], lens[s] = load_i64(given, 2 * s), load_i64(given, 2 * s + 1)
        cursors[s, 0], cursors[s, 1] = s, 0
        stops[s, 0], stops[s, 1] = s, lens[s]
    columns, nodes = load_i64(told, COLUMNS), load_i64(told, NODES)
    merge_ranges(tables, lens, cursors, stops, columns, nodes, keys, order, pos, weights, info)
    if info[0] <= 0:
        return i64(0)
    known_of = info[WEIGHT_SURVEY:]
    known_of[:4] = 0
    add_to_survey(weights.ctypes.data, info[0], i64(1), known_of)
    return measure_rows(tables, columns, nodes, pos, info[0], load_i64(told, OWN_KEY), info[2], layout)


@kernel
def fill(told: int, count: int, rows: int, scratch: int, arena: int) -> None:
    """Put the rows that stay where a plan has laid them out."""
    info, tables, _, _, _, layout, _, _, pos, weights = _parts(told, count, rows, scratch)
    time = info[4:WEIGHT_SURVEY]
    for c in range(TIME, LANES):
        time[c - TIME] = load_i64(lane(tables[0], i64(c)), 0)
    gather(tables, load_i64(told, COLUMNS), load_i64(told, NODES), pos, info[0], weights, info[2], time, layout, arena)
