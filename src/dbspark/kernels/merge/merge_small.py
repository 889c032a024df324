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

from dbspark.kernels.jit import i64, inlined, ints_at, kernel, load_i64, words_at
from dbspark.kernels.memory.gather import gather, measure_rows
from dbspark.kernels.memory.layout import LANES, TIME
from dbspark.kernels.merge.consolidate import lane, merge_ranges, survey_more
from dbspark.kernels.sort.sort_rows import COLUMNS, INFO, NODES, OWN_KEY, SURVEY


def scratch_words(columns: int, count: int, rows: int) -> int:
    """Working memory of a merge."""
    return INFO + 6 * count + 4 * (LANES + columns) + 6 * rows


@inlined
def _parts(told: int, count: int, rows: int, scratch: int) -> Any:
    """Working memory as arrays: info, tables, lens, cursors, stops, layout, keys, order, pos, weights."""
    lines = LANES + load_i64(told, COLUMNS)
    tables = scratch + 8 * INFO
    cursors = tables + 16 * count
    layout = cursors + 32 * count
    keys = layout + 32 * lines
    order = keys + 16 * rows
    pos = order + 16 * rows
    return (
        ints_at(scratch, INFO), ints_at(tables, count), ints_at(tables + 8 * count, count),
        ints_at(cursors, 2 * count).reshape(count, 2), ints_at(cursors + 16 * count, 2 * count).reshape(count, 2),
        ints_at(layout, 4 * lines).reshape(lines, 4), words_at(keys, 2 * rows), ints_at(order, 2 * rows),
        ints_at(pos, rows), ints_at(pos + 8 * rows, rows),
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
    known_of = info[SURVEY:]
    known_of[:4] = 0
    survey_more(weights.ctypes.data, info[0], i64(1), known_of)
    return measure_rows(tables, columns, nodes, pos, info[0], load_i64(told, OWN_KEY), info[2], layout)


@kernel
def fill(told: int, count: int, rows: int, scratch: int, arena: int) -> None:
    """Put the rows that stay where a plan has laid them out."""
    info, tables, _, _, _, layout, _, _, pos, weights = _parts(told, count, rows, scratch)
    time = info[4:SURVEY]
    for c in range(TIME, LANES):
        time[c - TIME] = load_i64(lane(tables[0], i64(c)), 0)
    gather(tables, load_i64(told, COLUMNS), load_i64(told, NODES), pos, info[0], weights, info[2], time, layout, arena)
