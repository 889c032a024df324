"""Sorting a chunk of flat columns by a sort key and consolidating it, in two calls.

`plan` hashes, sorts, consolidates and lays out the arena; the caller allocates the arena and `fill` fills it. Small
deltas are common, and passing an argument takes as long as sorting a row, so both take the addresses of int64 words:

    sort key = own_key (1 if the key is not the whole row), columns, nodes, address and length of the order spec
              (`kernels.memory.layout`), the numbers of row nodes and key nodes, then the row nodes and the key nodes
    scratch = info, the address of the node table below, a node table of the same rows with hashes, the layout of the
              arena, row hashes or order words, key hashes, then positions and weights of the output rows, and the
              arrays that sorting needs

`info` is that of `kernels.merge.consolidate`, then the time of all rows, then the survey (`consolidate.survey_weights`)
of the output weights.
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
from dbspark.kernels.merge.consolidate import ALL_ONES, OUTPUT_ROWS, add_to_survey, consolidate_sorted
from dbspark.kernels.sort.radix_sort import radix_sort
from dbspark.kernels.sort.row_order import order_words

SEVERAL_TIMES: Final = -(1 << 62)
"""Returned instead of a size where the rows do not all have the same time; no other result is as low."""
TIME_WORDS: Final = 4
"""Where the time of all rows begins in `info`."""
WEIGHT_SURVEY: Final = TIME_WORDS + TIMES
"""Where the survey of the weights begins in `info`."""
INFO_WORDS: Final = WEIGHT_SURVEY + 4

# Words of a sort key.
OWN_KEY: Final = 0
COLUMNS: Final = 1
NODES: Final = 2
ORDER_SPEC: Final = 3
ORDER_SPEC_LENGTH: Final = 4
ROW_NODES: Final = 5
KEY_NODES: Final = 6
HEADER_WORDS: Final = 7


def describe_sort_key(own_key: int, columns: int, nodes: int, spec: Any, row_nodes: Any, key_nodes: Any) -> Any:
    """The words of a sort key. The caller keeps `spec` alive: only its address is in them."""
    lists = [*row_nodes.tolist(), *key_nodes.tolist()]
    head = (own_key, columns, nodes, spec.ctypes.data, len(spec), len(row_nodes), len(key_nodes))
    return np.array([*head, *lists], np.int64)


WORDS_PER_ROW: Final = 8
"""Words of scratch for each row."""


def words_before_rows(columns: int, nodes: int) -> int:
    """Words of scratch before those for each row."""
    return INFO_WORDS + 1 + nodes * FIELDS + 4 * (LANES + columns)


@inlined
def scratch_bytes(sort_key: int, rows: int) -> int:
    """Bytes of scratch for a plan of so many rows."""
    nodes, columns = load_i64(sort_key, NODES), load_i64(sort_key, COLUMNS)
    return 8 * (INFO_WORDS + 1 + nodes * FIELDS + 4 * (LANES + columns) + WORDS_PER_ROW * rows)


@inlined
def _parts(sort_key: int, rows: int, scratch: int) -> Any:
    """Scratch as arrays: info, tables, node_table, layout, words, keys, pos, weights."""
    nodes, lines = load_i64(sort_key, NODES), LANES + load_i64(sort_key, COLUMNS)
    tables = scratch + 8 * INFO_WORDS
    node_table = tables + 8
    layout = node_table + 8 * nodes * FIELDS
    words = layout + 32 * lines
    keys = words + 8 * rows
    pos = keys + 8 * rows
    return (
        int64s_at(scratch, INFO_WORDS), int64s_at(tables, i64(1)), int64s_at(node_table, nodes * FIELDS),
        int64s_at(layout, 4
        * lines).reshape(lines, 4), uint64s_at(words, rows), uint64s_at(keys, rows), int64s_at(pos, rows), int64s_at(pos
        + 8 * rows, rows),
    )  # fmt: skip


@inlined
def plan_rows(sort_key: int, hashed: int, mask: Any, table: int, rows: int, limit: int, scratch: int) -> int:
    """Sort and consolidate the rows of a chunk of flat columns in scratch; returns the size of an arena for the result.

    `hashed`: 1 where the chunk's HASH lane holds row hashes already. Other results: 0 where no row is left, more than
    `limit` rows are left, or a weight overflows (info[OUTPUT_ROWS] says which); the negative result of `measure_rows`
    where a column is too large; SEVERAL_TIMES.
    """
    info, tables, node_table, layout, words, own_keys, pos, weights = _parts(sort_key, rows, scratch)
    for c in range(TIME, LANES):
        if lane_mask(table, i64(c)) != 0:
            return i64(SEVERAL_TIMES)
        info[TIME_WORDS + c - TIME] = load_i64(lane(table, i64(c)), 0)
    own_key, columns, nodes = load_i64(sort_key, OWN_KEY), load_i64(sort_key, COLUMNS), load_i64(sort_key, NODES)
    row_nodes, key_nodes = load_i64(sort_key, ROW_NODES), load_i64(sort_key, KEY_NODES)
    spec = int64s_at(load_i64(sort_key, ORDER_SPEC), load_i64(sort_key, ORDER_SPEC_LENGTH))
    if spec[0] > 0:
        order_words(table, spec[1], rows, spec[2], spec[3], words)
    elif hashed == 1:
        at = lane(table, i64(HASH))
        for i in range(rows):
            words[i] = load_u64(at, i)
    else:
        fold_columns(table, int64s_at(sort_key + 8 * HEADER_WORDS, row_nodes), rows, mask, words)
    keys = words
    if own_key == 1:
        keys = own_keys
        fold_columns(table, int64s_at(sort_key + 8 * (HEADER_WORDS + row_nodes), key_nodes), rows, mask, keys)
    for i in range(nodes * FIELDS):
        node_table[i] = load_i64(table, i)
    node_table[HASH * FIELDS + DATA], node_table[KEY * FIELDS + DATA] = words.ctypes.data, keys.ctypes.data
    node_table[HASH * FIELDS + START] = node_table[KEY * FIELDS + START] = 0
    node_table[HASH * FIELDS + MASK] = node_table[KEY * FIELDS + MASK] = -1
    node_table[HASH * FIELDS + CHILD] = spec.ctypes.data if spec[0] > 0 else i64(0)
    tables[0] = node_table.ctypes.data
    rest = weights.ctypes.data + 8 * rows
    order = int64s_at(rest, rows)
    radix_sort(keys, words, order, uint64s_at(rest + 8 * rows, 2 * rows), int64s_at(rest + 24 * rows, rows))
    consolidate_sorted(tables[0], keys, words, order, columns, nodes, pos, weights, info)
    if info[OUTPUT_ROWS] <= 0 or info[OUTPUT_ROWS] > limit:
        return i64(0)
    survey = info[WEIGHT_SURVEY:]
    survey[:4] = 0
    add_to_survey(weights.ctypes.data, info[OUTPUT_ROWS], i64(1), survey)
    return measure_rows(tables, columns, nodes, pos, info[OUTPUT_ROWS], own_key, info[ALL_ONES], layout)


@inlined
def fill_arena(sort_key: int, rows: int, scratch: int, arena: int) -> None:
    """Copy the output rows of a plan of `rows` input rows into an arena of the planned size."""
    info, tables, _, layout, _, _, pos, weights = _parts(sort_key, rows, scratch)
    gather(
        tables, load_i64(sort_key, COLUMNS), load_i64(sort_key, NODES), pos, info[OUTPUT_ROWS], weights, info[ALL_ONES],
        info[TIME_WORDS:WEIGHT_SURVEY], layout, arena,
    )  # fmt: skip


@kernel
def plan(sort_key: int, hashed: int, mask: int, table: int, rows: int, limit: int, scratch: int) -> int:
    """Sort and consolidate rows in scratch and return the size of the arena: `plan_rows` as a kernel for Python."""
    return plan_rows(sort_key, hashed, np.uint64(mask), table, rows, limit, scratch)


@kernel
def fill(sort_key: int, rows: int, scratch: int, arena: int) -> None:
    """Copy the output rows of a plan into an arena: `fill_arena` as a kernel for Python."""
    fill_arena(sort_key, rows, scratch, arena)
