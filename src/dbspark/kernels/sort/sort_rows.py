"""Bringing unsorted rows into the order of a sort key, in two calls: small changes are many calls otherwise.

`plan` hashes, sorts, consolidates and lays out the arena; the caller allocates it and `fill` fills it. A sort key
is *told* to both by the address of a line of numbers, and the plan is left in working memory of the caller: an argument
of a call costs as much as a row.

    told = own_key, columns, nodes, address and length of the order inside a key, numbers of row and key nodes, and they
    scratch = info, the address of the node table, the node table of the same rows with hashes, the layout of the arena,
              row hashes or words of the order, key hashes, then positions and weights of the rows that stay, and
              what sorting needs

`info`: as `kernels.merge.consolidate.consolidate` has it, then the time of all rows, then what `survey_weights` says of
those that stay.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.jit import i64, inlined, kernel
from dbspark.kernels.memory.gather import gather, measure_rows
from dbspark.kernels.memory.hash import fold_columns
from dbspark.kernels.memory.intrinsics import int64s_at, load_i64, load_u64, uint64s_at
from dbspark.kernels.memory.layout import CHILD, DATA, FIELDS, HASH, KEY, LANES, MASK, START, TIME, TIMES
from dbspark.kernels.memory.nodes import lane, lane_mask
from dbspark.kernels.merge.consolidate import add_to_survey, consolidate_sorted
from dbspark.kernels.sort.radix_sort import radix_sort
from dbspark.kernels.sort.row_order import order_words

SEVERAL_TIMES: Final = -(1 << 62)
"""Said instead of a size where the rows have several times."""
WEIGHT_SURVEY: Final = 4 + TIMES
"""Where the survey of the weights begins in `info`."""
INFO_WORDS: Final = WEIGHT_SURVEY + 4
OWN_KEY: Final = 0
COLUMNS: Final = 1
NODES: Final = 2
SPEC: Final = 3
SPEC_LENGTH: Final = 4
ROW_NODES: Final = 5
KEY_NODES: Final = 6
TOLD: Final = 7


def describe_sort_key(own_key: int, columns: int, nodes: int, spec: Any, row_nodes: Any, key_nodes: Any) -> Any:
    """What kernels are told of a sort key; `spec` has to be kept."""
    lists = [*row_nodes.tolist(), *key_nodes.tolist()]
    head = (own_key, columns, nodes, spec.ctypes.data, len(spec), len(row_nodes), len(key_nodes))
    return np.array([*head, *lists], np.int64)


WORDS_PER_ROW: Final = 8
"""Words of working memory that there are for each row."""


def words_before_rows(columns: int, nodes: int) -> int:
    """Words of working memory before those that there are for each row."""
    return INFO_WORDS + 1 + nodes * FIELDS + 4 * (LANES + columns)


@inlined
def scratch_bytes(told: int, rows: int) -> int:
    """Working memory of a plan."""
    nodes, columns = load_i64(told, NODES), load_i64(told, COLUMNS)
    return 8 * (INFO_WORDS + 1 + nodes * FIELDS + 4 * (LANES + columns) + WORDS_PER_ROW * rows)


@inlined
def _parts(told: int, rows: int, scratch: int) -> Any:
    """Working memory as the arrays that it consists of: info, tables, work, layout, words, keys, pos, weights."""
    nodes, lines = load_i64(told, NODES), LANES + load_i64(told, COLUMNS)
    tables = scratch + 8 * INFO_WORDS
    work = tables + 8
    layout = work + 8 * nodes * FIELDS
    words = layout + 32 * lines
    keys = words + 8 * rows
    pos = keys + 8 * rows
    return (
        int64s_at(scratch, INFO_WORDS), int64s_at(tables, i64(1)), int64s_at(work, nodes * FIELDS), int64s_at(layout, 4
        * lines).reshape(lines, 4), uint64s_at(words, rows), uint64s_at(keys, rows), int64s_at(pos, rows), int64s_at(pos
        + 8 * rows, rows),
    )  # fmt: skip


@inlined
def plan_rows(told: int, known: int, mask: Any, table: int, rows: int, limit: int, scratch: int) -> int:
    """Which of the rows of a chunk of flat columns stay, in which order; returns the size of their arena.

    `known`: the chunk has row hashes already. Returns 0 where none or more than `limit` rows stay or a weight is beyond
    int64, what `measure` returns for columns too large, and TIMED.
    """
    info, tables, work, layout, words, own_keys, pos, weights = _parts(told, rows, scratch)
    for c in range(TIME, LANES):
        if lane_mask(table, i64(c)) != 0:
            return i64(SEVERAL_TIMES)
        info[4 + c - TIME] = load_i64(lane(table, i64(c)), 0)
    own_key, columns, nodes = load_i64(told, OWN_KEY), load_i64(told, COLUMNS), load_i64(told, NODES)
    row_nodes, key_nodes = load_i64(told, ROW_NODES), load_i64(told, KEY_NODES)
    spec = int64s_at(load_i64(told, SPEC), load_i64(told, SPEC_LENGTH))
    if spec[0] > 0:
        order_words(table, spec[1], rows, spec[2], spec[3], words)
    elif known == 1:
        at = lane(table, i64(HASH))
        for i in range(rows):
            words[i] = load_u64(at, i)
    else:
        fold_columns(table, int64s_at(told + 8 * TOLD, row_nodes), rows, mask, words)
    keys = words
    if own_key == 1:
        keys = own_keys
        fold_columns(table, int64s_at(told + 8 * (TOLD + row_nodes), key_nodes), rows, mask, keys)
    for i in range(nodes * FIELDS):
        work[i] = load_i64(table, i)
    work[HASH * FIELDS + DATA], work[KEY * FIELDS + DATA] = words.ctypes.data, keys.ctypes.data
    work[HASH * FIELDS + START] = work[KEY * FIELDS + START] = 0
    work[HASH * FIELDS + MASK] = work[KEY * FIELDS + MASK] = -1
    work[HASH * FIELDS + CHILD] = spec.ctypes.data if spec[0] > 0 else i64(0)
    tables[0] = work.ctypes.data
    rest = weights.ctypes.data + 8 * rows
    order = int64s_at(rest, rows)
    radix_sort(keys, words, order, uint64s_at(rest + 8 * rows, 2 * rows), int64s_at(rest + 24 * rows, rows))
    consolidate_sorted(tables[0], keys, words, order, columns, nodes, pos, weights, info)
    if info[0] <= 0 or info[0] > limit:
        return i64(0)
    known_of = info[WEIGHT_SURVEY:]
    known_of[:4] = 0
    add_to_survey(weights.ctypes.data, info[0], i64(1), known_of)
    return measure_rows(tables, columns, nodes, pos, info[0], own_key, info[2], layout)


@inlined
def fill_arena(told: int, rows: int, scratch: int, arena: int) -> None:
    """Put the rows that stay, of so many, where a plan has laid them out."""
    info, tables, _, layout, _, _, pos, weights = _parts(told, rows, scratch)
    gather(
        tables, load_i64(told, COLUMNS), load_i64(told, NODES), pos, info[0], weights, info[2], info[4:WEIGHT_SURVEY],
        layout, arena,
    )  # fmt: skip


@kernel
def plan(told: int, known: int, mask: int, table: int, rows: int, limit: int, scratch: int) -> int:
    """See `plan_rows`."""
    return plan_rows(told, known, np.uint64(mask), table, rows, limit, scratch)


@kernel
def fill(told: int, rows: int, scratch: int, arena: int) -> None:
    """See `fill_arena`."""
    fill_arena(told, rows, scratch, arena)
