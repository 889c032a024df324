"""The operator VM: a tick of a circuit in one call.

Between two kernel calls lie microseconds of Python, and a tick of a hundred rows is some fifty kernels of a microsecond
each. So the steps of operators on small deltas are compiled once to code, and `run` interprets it from one end to the
other. The results are those of the operators (`dbspark.operators`); `dbspark.circuit.vm` generates the code and wraps
the results.

    instruction = opcode, number of words, operands …

Operands are registers (`kernels.vm.registers`), states, and constants. A *state* is the directory of a spine
(`kernels.lookup.directory`) as it is before the tick, and its number of chunks.

Invariants:
1. Instructions write only to the two arenas and to registers. So a run that falls back (STATUS_FALL_BACK: weights
   beyond int64, an error in an expression, too many pairs, a change that a table must refuse) or runs out of memory
   (STATUS_ARENA_FULL) has no effect: it can be repeated, or left to the operators.
2. There are two exceptions, `APPEND_TO_STATE` and `APPEND_TO_TABLE`, which append the tick's batches to mutable
   directories. They come last, when nothing can fail any more.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dbspark.kernels.aggregate.accumulators import update_accumulators
from dbspark.kernels.aggregate.group import sum_rows
from dbspark.kernels.aggregate.top_k import top_k_change
from dbspark.kernels.cpython import release_gil, restore_gil
from dbspark.kernels.jit import gil_kernel, i64, inlined
from dbspark.kernels.lookup.directory import (
    DIR_BATCH_STARTS,
    DIR_BATCHES,
    DIR_FENCES,
    DIR_FILTER,
    DIR_INDEX_REFS,
    DIR_LENGTHS,
    DIR_TABLES,
    DIRECTORY_WORDS,
    INDEX_REF_WORDS,
    append_entry,
)
from dbspark.kernels.lookup.index import index_bits, index_rows
from dbspark.kernels.lookup.probe import find_matches
from dbspark.kernels.lookup.row_lookup import add_weights
from dbspark.kernels.memory.intrinsics import copy_bytes, int64s_at, load_i64, load_u8, load_u64, store_i64, store_u64
from dbspark.kernels.memory.layout import DATA, FIELDS, KEY, NODE_BYTES, OVERFLOW, ROW_BITS, WEIGHT
from dbspark.kernels.memory.nodes import lane, lane_mask
from dbspark.kernels.sort.sort_rows import WEIGHT_SURVEY, fill_arena, plan_rows, scratch_bytes
from dbspark.kernels.vm.constraints import violates
from dbspark.kernels.vm.expressions import evaluate, slot_bytes
from dbspark.kernels.vm.registers import (
    ARENA_USED,
    REG_INDEX,
    REG_ROWS,
    REG_SURVEY,
    REG_TABLE,
    STATUS_ARENA_FULL,
    STATUS_FALL_BACK,
    STATUS_OK,
    arena_of,
    arena_take,
    register_at,
    set_empty,
    set_rows,
)
from dbspark.kernels.vm.result_columns import write_columns

ARRANGE: Final = 0
PROJECT: Final = 1
JOIN: Final = 2
AGGREGATE: Final = 3
DISTINCT: Final = 4
TOP_K: Final = 5
SUM: Final = 6
CONSOLIDATE: Final = 7
APPEND_TO_STATE: Final = 8
CHECK_TABLE: Final = 9
APPEND_TO_TABLE: Final = 10

STATE_WORDS: Final = 3
"""Words of a state: address of its directory, its number of chunks, and STATE_BUFFERED_ROWS."""
STATE_BUFFERED_ROWS: Final = 2
"""Rows that have been appended to the directory but not inserted into the spine; -1 where it is not mutable."""
REG_BUFFERED_ROWS: Final = 3
"""Word of the statistics register of APPEND_TO_STATE: the most buffered rows of any state."""
STATE_BYTES: Final = 8 * STATE_WORDS

MAX_DELTA_ROWS: Final = 32768
"""Most rows of a delta: they have to fit one chunk of a batch."""
MIN_INDEXED_ROWS: Final = 48
"""Appended batches with fewer rows get no index: scanning them is cheaper."""
MAX_JOIN_PAIRS: Final = 1 << 18
"""Most pairs in one of the two terms of a join; with more the VM falls back."""


# ---------------------------------------------------------------------------------------------------- sorting


@inlined
def _sort(f: int, regs: int, memory: int) -> int:
    """Sort and consolidate a delta by a sort key.

    Operands: in; out; retained; register whose row count says whether the result is needed, or -1; whether the row
    hashes are there already; hash mask; address of the sort key's description (`kernels.sort.sort_rows`).
    """
    delta, out, retained = register_at(regs, load_i64(f, 0)), register_at(regs, load_i64(f, 1)), load_i64(f, 2)
    rows, sort_key = load_i64(delta, REG_ROWS), load_i64(f, 6)
    if rows == 0 or (load_i64(f, 3) >= 0 and load_i64(register_at(regs, load_i64(f, 3)), REG_ROWS) == 0):
        return set_empty(out)
    used = load_i64(memory, ARENA_USED)
    scratch = arena_take(memory, scratch_bytes(sort_key, rows))
    if scratch == 0:
        return i64(STATUS_ARENA_FULL)
    mask = np.uint64(load_i64(f, 5))
    size = plan_rows(sort_key, load_i64(f, 4), mask, load_i64(delta, REG_TABLE), rows, i64(MAX_DELTA_ROWS), scratch)
    n = load_i64(scratch, 0)
    if size == 0 and n == 0:
        return set_empty(out)
    if size <= 0:
        return i64(STATUS_FALL_BACK)
    arena = arena_take(arena_of(memory, retained), size)
    if arena == 0:
        return i64(STATUS_ARENA_FULL)
    fill_arena(sort_key, rows, scratch, arena)
    set_rows(out, arena, n, size)
    for k in range(4):
        store_i64(out, REG_SURVEY + k, load_i64(scratch, WEIGHT_SURVEY + k))
    if retained == 1:
        store_i64(memory, ARENA_USED, used)
    return i64(STATUS_OK)


# ---------------------------------------------------------------------------------------------------- columns


@inlined
def _project(f: int, regs: int, memory: int) -> int:
    """Filter rows and compute columns.

    Operands: in; out; retained; nodes of the result; words of the condition and of the code; number of result columns;
    number of slots; then condition, code and result columns. Slot 0 of the condition says which rows stay.
    """
    delta, out, retained = register_at(regs, load_i64(f, 0)), register_at(regs, load_i64(f, 1)), load_i64(f, 2)
    rows = load_i64(delta, REG_ROWS)
    if rows == 0:
        return set_empty(out)
    nodes, tests, code, columns, count = (
        load_i64(f, 3), load_i64(f, 4), load_i64(f, 5), load_i64(f, 6), load_i64(f, 7),
    )  # fmt: skip
    table = load_i64(delta, REG_TABLE)
    slots = arena_take(memory, count * slot_bytes(rows))
    scratch = arena_take(memory, 16 * rows + 8)
    if slots == 0 or scratch == 0:
        return i64(STATUS_ARENA_FULL)
    tables, pos = int64s_at(scratch, 1), int64s_at(scratch + 8, rows)
    weights = scratch + 8 + 8 * rows
    tables[0] = table
    n = i64(0)
    if tests > 0:
        if evaluate(f + 64, tests, scratch, i64(0), scratch, i64(0), rows, slots) != STATUS_OK:
            return i64(STATUS_FALL_BACK)
        nulls = slots + 8 * rows
        for r in range(rows):
            if load_i64(slots, r) != 0 and load_u8(nulls, r) == 0:
                pos[n] = r
                n += 1
        if n == 0:
            return set_empty(out)
    else:
        n = rows
    same = i64(1) if n == rows else i64(0)
    if same == 1:
        for r in range(rows):
            pos[r] = r
    if code > 0:
        positions = i64(0) if same == 1 else scratch + 8
        if evaluate(f + 64 + 8 * tests, code, scratch, positions, scratch, positions, n, slots) != STATUS_OK:
            return i64(STATUS_FALL_BACK)
    own_weights, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    if mask == 0 or same == 1:
        weights = own_weights
    else:
        for r in range(n):
            store_i64(weights, r, load_i64(own_weights, pos[r]))
    return write_columns(
        f + 64 + 8 * (tests + code), columns, tables, pos, tables, pos, n, same, slots, nodes, weights,
        i64(1) if mask == 0 else i64(0), memory, arena_of(memory, retained), out,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- look-ups


@inlined
def _directory_with(directory: int, chunks: int, table: int, rows: int, memory: int) -> int:
    """A copy of a directory with one more batch of one chunk, in scratch memory; 0 where there is not enough."""
    batches = load_i64(directory, DIR_BATCHES)
    out = arena_take(memory, 8 * (DIRECTORY_WORDS + 3 * (chunks + 1) + (batches + 2) + INDEX_REF_WORDS * (batches + 1)))
    if out == 0:
        return out
    at = out + 8 * DIRECTORY_WORDS
    for k in range(3):
        copy_bytes(at, load_i64(directory, k), 8 * chunks)
        store_i64(out, k, at)
        at += 8 * (chunks + 1)
    store_i64(load_i64(out, DIR_TABLES), chunks, table)
    store_i64(load_i64(out, DIR_LENGTHS), chunks, rows)
    store_u64(load_i64(out, DIR_FENCES), chunks, load_u64(lane(table, KEY), 0))
    copy_bytes(at, load_i64(directory, DIR_BATCH_STARTS), 8 * (batches + 1))
    store_i64(at, batches, chunks)
    store_i64(at, batches + 1, chunks + 1)
    store_i64(out, DIR_BATCH_STARTS, at)
    at += 8 * (batches + 2)
    copy_bytes(at, load_i64(directory, DIR_INDEX_REFS), 8 * INDEX_REF_WORDS * batches)
    for k in range(INDEX_REF_WORDS):
        store_i64(at, INDEX_REF_WORDS * batches + k, i64(0))
    store_i64(out, DIR_INDEX_REFS, at)
    store_i64(out, DIR_BATCHES, batches + 1)
    copy_bytes(out + 8 * DIR_FILTER, directory + 8 * DIR_FILTER, i64(8 * (DIRECTORY_WORDS - DIR_FILTER)))
    return out


@inlined
def _join(f: int, regs: int, states: int, memory: int) -> int:
    """Inner join: d(L ⋈ R) = dL ⋈ R' + L ⋈ dR, with L before and R' after the tick.

    Operands: left; right; states of both; out; retained; null_safe; nodes of the sides' schemas (the larger number);
    nodes of the result; numbers of key columns, of words of the condition, of slots and of result columns; then key
    nodes of both sides, condition, result columns.
    """
    left, right = register_at(regs, load_i64(f, 0)), register_at(regs, load_i64(f, 1))
    left_state, right_state = states + STATE_BYTES * load_i64(f, 2), states + STATE_BYTES * load_i64(f, 3)
    out, retained = register_at(regs, load_i64(f, 4)), load_i64(f, 5)
    null_safe, nodes, result, keys = load_i64(f, 6), load_i64(f, 7), load_i64(f, 8), load_i64(f, 9)
    code, slot_count, columns = load_i64(f, 10), load_i64(f, 11), load_i64(f, 12)
    left_key, right_key = int64s_at(f + 8 * 13, keys), int64s_at(f + 8 * (13 + keys), keys)
    left_rows, right_rows = load_i64(left, REG_ROWS), load_i64(right, REG_ROWS)
    left_chunks, right_chunks = load_i64(left_state, 1), load_i64(right_state, 1)
    if left_rows == 0 and right_rows == 0:
        return set_empty(out)
    left_table, right_table = load_i64(left, REG_TABLE), load_i64(right, REG_TABLE)
    no_time, info = np.empty(0, np.int64), np.zeros(6, np.int64)
    left_matches = right_matches = np.empty((3, 0), np.int64)
    directory = load_i64(right_state, 0)
    if right_rows > 0:
        directory = _directory_with(directory, right_chunks, right_table, right_rows, memory)
        if directory == 0:
            return i64(STATUS_ARENA_FULL)
        right_chunks += 1
    if left_rows > 0:
        left_matches = find_matches(
            directory, left_table, left_rows, left_key, right_key, nodes, null_safe, no_time,
            i64(MAX_JOIN_PAIRS), info[:3],
        )  # fmt: skip
    if right_rows > 0:
        right_matches = find_matches(
            load_i64(left_state, 0), right_table, right_rows, right_key, left_key, nodes, null_safe, no_time,
            i64(MAX_JOIN_PAIRS), info[3:],
        )  # fmt: skip
    if info[1] != 0 or info[4] != 0 or info[0] > MAX_JOIN_PAIRS or info[3] > MAX_JOIN_PAIRS:
        return i64(STATUS_FALL_BACK)
    n = info[0] + info[3]
    if n == 0:
        return set_empty(out)
    # On both sides the delta is one more chunk behind those of the state.
    scratch = arena_take(memory, 8 * (left_chunks + 1 + 3 * n))
    if scratch == 0:
        return i64(STATUS_ARENA_FULL)
    left_tables = int64s_at(scratch, left_chunks + 1)
    right_tables = int64s_at(load_i64(directory, DIR_TABLES), right_chunks)
    copy_bytes(scratch, load_i64(load_i64(left_state, 0), DIR_TABLES), 8 * left_chunks)
    # Without rows on the left no position refers to the last chunk, but it has to be a node table.
    left_tables[left_chunks] = left_table if left_rows > 0 else left_tables[0]
    at = scratch + 8 * (left_chunks + 1)
    left_pos, right_pos, weights = int64s_at(at, n), int64s_at(at + 8 * n, n), at + 16 * n
    for i in range(info[0]):
        left_pos[i] = i64(left_chunks) << ROW_BITS | left_matches[0, i]
        right_pos[i] = left_matches[1, i]
        store_i64(weights, i, left_matches[2, i])
    for i in range(info[3]):
        left_pos[info[0] + i] = right_matches[1, i]
        right_pos[info[0] + i] = i64(right_chunks - 1) << ROW_BITS | right_matches[0, i]
        store_i64(weights, info[0] + i, right_matches[2, i])
    slots = i64(0)
    if code > 0:
        slots = arena_take(memory, slot_count * slot_bytes(n))
        if slots == 0:
            return i64(STATUS_ARENA_FULL)
        status = evaluate(
            f + 8 * (13 + 2 * keys), code, left_tables.ctypes.data, left_pos.ctypes.data, right_tables.ctypes.data,
            right_pos.ctypes.data, n, slots,
        )  # fmt: skip
        if status != STATUS_OK:
            return status
        kept_pairs = i64(0)
        for i in range(n):
            if load_i64(slots, i) != 0 and load_u8(slots + 8 * n, i) == 0:
                left_pos[kept_pairs], right_pos[kept_pairs] = left_pos[i], right_pos[i]
                store_i64(weights, kept_pairs, load_i64(weights, i))
                kept_pairs += 1
        n = kept_pairs
        if n == 0:
            return set_empty(out)
    return write_columns(
        f + 8 * (13 + 2 * keys + code), columns, left_tables, left_pos, right_tables, right_pos, n, i64(0), i64(0),
        result, weights, i64(0), memory, arena_of(memory, retained), out,
    )  # fmt: skip


@inlined
def _distinct(f: int, regs: int, states: int, memory: int) -> int:
    """The change of the distinct rows; the delta is sorted by whole rows.

    Operands: in; state; out; retained; columns; nodes; then result columns.
    """
    delta = register_at(regs, load_i64(f, 0))
    state = states + STATE_BYTES * load_i64(f, 1)
    out = register_at(regs, load_i64(f, 2))
    rows, table = load_i64(delta, REG_ROWS), load_i64(delta, REG_TABLE)
    if rows == 0:
        return set_empty(out)
    columns, nodes, directory = load_i64(f, 4), load_i64(f, 5), load_i64(state, 0)
    scratch = arena_take(memory, 16 * rows + 8)
    if scratch == 0:
        return i64(STATUS_ARENA_FULL)
    tables, pos, weights = int64s_at(scratch, 1), int64s_at(scratch + 8, rows), scratch + 8 + 8 * rows
    tables[0] = table
    own_weights, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    before = np.zeros(rows, np.int64)
    if not add_weights(directory, table, rows, columns, nodes, before):
        return i64(STATUS_FALL_BACK)
    n = i64(0)
    for r in range(rows):
        w = load_i64(own_weights, r & mask)
        if abs(w) >= 1 << 62:
            return i64(STATUS_FALL_BACK)
        change = i64(before[r] + w > 0) - i64(before[r] > 0)
        if change != 0:
            pos[n] = r
            store_i64(weights, n, change)
            n += 1
    if n == 0:
        return set_empty(out)
    return write_columns(
        f + 48, columns, tables, pos, tables, pos, n, i64(1) if n == rows else i64(0), i64(0), nodes, weights, i64(0),
        memory, arena_of(memory, load_i64(f, 3)), out,
    )  # fmt: skip


@inlined
def _top_k(f: int, regs: int, states: int, memory: int) -> int:
    """The change of the first rows of each key (`kernels.aggregate.top_k`).

    Operands: in; state; out; retained; skip; limit; columns; nodes; number of key columns; then key nodes, result
    columns.
    """
    delta = register_at(regs, load_i64(f, 0))
    state = states + STATE_BYTES * load_i64(f, 1)
    out = register_at(regs, load_i64(f, 2))
    rows, chunks = load_i64(delta, REG_ROWS), load_i64(state, 1)
    if rows == 0 or load_i64(f, 5) == 0:
        return set_empty(out)
    columns, nodes, keys = load_i64(f, 6), load_i64(f, 7), load_i64(f, 8)
    directory = _directory_with(load_i64(state, 0), chunks, load_i64(delta, REG_TABLE), rows, memory)
    scratch = arena_take(memory, 32 * rows)  # a row of weight one moves at most one other row of weight one in or out
    if directory == 0 or scratch == 0:
        return i64(STATUS_ARENA_FULL)
    pos, weights = int64s_at(scratch, 2 * rows), int64s_at(scratch + 16 * rows, 2 * rows)
    n = top_k_change(directory, int64s_at(f + 72, keys), columns, nodes, load_i64(f, 4), load_i64(f, 5), pos, weights)
    if n == OVERFLOW or n > 2 * rows:
        return i64(STATUS_FALL_BACK)
    if n == 0:
        return set_empty(out)
    tables = int64s_at(load_i64(directory, DIR_TABLES), chunks + 1)
    return write_columns(
        f + 72 + 8 * keys, columns, tables, pos, tables, pos, n, i64(0), i64(0), nodes, weights.ctypes.data, i64(0),
        memory, arena_of(memory, load_i64(f, 3)), out,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- sums


@inlined
def _aggregate(f: int, regs: int, states: int, memory: int) -> int:
    """Update the accumulators of groups (`kernels.aggregate.accumulators`).

    Operands: in; state; register of the delta sorted by key and value, or -1, and the state of that arrangement; out;
    hash mask; source columns; columns of the state; nodes of source and state (the larger number); node of the row
    count; words per group; address of the template of the state's node table, and its number of nodes; numbers of key
    columns, of folds, of words of `value` (3 or 0) and of word columns; retained; then key nodes in the source and in
    the state, folds, `value`, (node, first word) of the word columns, result columns.
    """
    delta = register_at(regs, load_i64(f, 0))
    state = states + STATE_BYTES * load_i64(f, 1)
    out = register_at(regs, load_i64(f, 4))
    keys, folds, value_words, word_columns = load_i64(f, 13), load_i64(f, 14), load_i64(f, 15), load_i64(f, 16)
    arranged, arrangement_chunks = i64(0), i64(0)
    if load_i64(f, 2) >= 0:
        delta = register_at(regs, load_i64(f, 2))
    rows, table = load_i64(delta, REG_ROWS), load_i64(delta, REG_TABLE)
    if rows == 0:
        return set_empty(out)
    if load_i64(f, 2) >= 0:
        sort_key = states + STATE_BYTES * load_i64(f, 3)
        arranged = _directory_with(load_i64(sort_key, 0), load_i64(sort_key, 1), table, rows, memory)
        arrangement_chunks = load_i64(sort_key, 1) + 1
        if arranged == 0:
            return i64(STATUS_ARENA_FULL)
    directory, chunks = load_i64(state, 0), load_i64(state, 1)
    columns, nodes, words, state_nodes = load_i64(f, 7), load_i64(f, 8), load_i64(f, 10), load_i64(f, 12)
    leads = arrangement_chunks + 1 if value_words > 0 else i64(0)
    scratch = arena_take(
        memory, 8 * (words * rows + 6 * rows + 2 * chunks + 4 + (leads + 1) * state_nodes * FIELDS + leads)
    )
    if scratch == 0:
        return i64(STATUS_ARENA_FULL)
    acc = int64s_at(scratch, words * rows)
    at = scratch + 8 * words * rows
    key_pos = int64s_at(at, 2 * rows)
    acc_pos = int64s_at(at + 16 * rows, 2 * rows)
    weights = int64s_at(at + 32 * rows, 2 * rows)
    at += 48 * rows
    used = int64s_at(at, 1)
    used[0] = 0
    at += 8
    lead_lines = int64s_at(at, leads * state_nodes * FIELDS).reshape(leads, state_nodes * FIELDS)
    at += 8 * leads * state_nodes * FIELDS
    word_nodes = at  # the node table of the new words, as rows of state
    at += 8 * state_nodes * FIELDS
    tables, word_tables = at, at + 8 * (chunks + leads + 1)
    rest = f + 8 * 18
    key = int64s_at(rest, keys)
    state_key = int64s_at(rest + 8 * keys, keys)
    rest += 16 * keys
    fold_lines, value = int64s_at(rest, 5 * folds).reshape(folds, 5), int64s_at(rest + 40 * folds, value_words)
    rest += 40 * folds + 8 * value_words
    n = update_accumulators(
        table, rows, key, np.uint64(load_i64(f, 5)), directory, chunks, state_key, columns, nodes, load_i64(f, 9),
        fold_lines, acc, key_pos, acc_pos, weights, value, load_i64(f, 6), arranged, arrangement_chunks, lead_lines,
        used,
    )  # fmt: skip
    if n < 0:  # FALL_BACK or SUM_OVERFLOW
        return i64(STATUS_FALL_BACK)
    if n == 0:
        return set_empty(out)
    copy_bytes(word_nodes, load_i64(f, 11), state_nodes * NODE_BYTES)
    for k in range(word_columns):
        store_i64(word_nodes + load_i64(rest, 2 * k) * NODE_BYTES, DATA, scratch + 8 * load_i64(rest, 2 * k + 1) * rows)
    rest += 16 * word_columns
    copy_bytes(tables, load_i64(directory, DIR_TABLES), 8 * chunks)
    copy_bytes(word_tables, load_i64(directory, DIR_TABLES), 8 * chunks)
    store_i64(word_tables, chunks, word_nodes)
    count = i64(1)
    if value_words > 0:
        count = used[0]
        for k in range(count):
            store_i64(tables, chunks + k, lead_lines.ctypes.data + k * (8 * state_nodes * FIELDS))
    else:
        # The key columns of the delta where the state has them; its other columns are not read.
        key_nodes = arena_take(memory, state_nodes * NODE_BYTES)
        if key_nodes == 0:
            return i64(STATUS_ARENA_FULL)
        copy_bytes(key_nodes, load_i64(f, 11), state_nodes * NODE_BYTES)
        for k in range(keys):
            copy_bytes(key_nodes + state_key[k] * NODE_BYTES, table + key[k] * NODE_BYTES, i64(NODE_BYTES))
        store_i64(tables, chunks, key_nodes)
    return write_columns(
        rest, columns, int64s_at(tables, chunks + count), key_pos, int64s_at(word_tables, chunks + 1), acc_pos, n,
        i64(0), i64(0), state_nodes, weights.ctypes.data, i64(0), memory, arena_of(memory, load_i64(f, 17)), out,
    )  # fmt: skip


@inlined
def _sum(f: int, regs: int, memory: int) -> int:
    """The sum of deltas, not consolidated.

    Operands: out; retained; number of result columns; nodes; number of inputs; then their registers, result columns.
    """
    out = register_at(regs, load_i64(f, 0))
    retained = load_i64(f, 1)
    columns = load_i64(f, 2)
    nodes = load_i64(f, 3)
    count = load_i64(f, 4)
    rows = i64(0)
    for k in range(count):
        rows += load_i64(register_at(regs, load_i64(f, 5 + k)), REG_ROWS)
    if rows == 0:
        return set_empty(out)
    scratch = arena_take(memory, 8 * (count + 2 * rows))
    if scratch == 0:
        return i64(STATUS_ARENA_FULL)
    tables, pos, weights = int64s_at(scratch, count), int64s_at(scratch + 8 * count, rows), scratch + 8 * (count + rows)
    chunks, n = i64(0), i64(0)
    for k in range(count):
        delta = register_at(regs, load_i64(f, 5 + k))
        table, delta_rows = load_i64(delta, REG_TABLE), load_i64(delta, REG_ROWS)
        if delta_rows == 0:
            continue
        tables[chunks] = table
        own_weights, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
        for r in range(delta_rows):
            pos[n] = chunks << ROW_BITS | r
            store_i64(weights, n, load_i64(own_weights, r & mask))
            n += 1
        chunks += 1
    tables = tables[:chunks]
    return write_columns(
        f + 8 * (5 + count), columns, tables, pos, tables, pos, n, i64(0), i64(0), nodes, weights, i64(0), memory,
        arena_of(memory, retained), out,
    )  # fmt: skip


@inlined
def _consolidate(f: int, regs: int, memory: int) -> int:
    """Add up the weights of equal rows.

    Operands: in; out; retained; hash mask; nodes; number of columns; then their nodes, result columns.
    """
    delta, out, columns = register_at(regs, load_i64(f, 0)), register_at(regs, load_i64(f, 1)), load_i64(f, 5)
    rows, table = load_i64(delta, REG_ROWS), load_i64(delta, REG_TABLE)
    if rows == 0:
        return set_empty(out)
    scratch = arena_take(memory, 16 * rows + 8)
    if scratch == 0:
        return i64(STATUS_ARENA_FULL)
    tables, pos, weights = int64s_at(scratch, 1), int64s_at(scratch + 8, rows), int64s_at(scratch + 8 + 8 * rows, rows)
    tables[0] = table
    n = sum_rows(table, rows, int64s_at(f + 48, columns), np.uint64(load_i64(f, 3)), load_i64(f, 4), pos, weights)
    if n == OVERFLOW:
        return i64(STATUS_FALL_BACK)
    if n == 0:
        return set_empty(out)
    return write_columns(
        f + 48 + 8 * columns, columns, tables, pos, tables, pos, n, i64(1) if n == rows else i64(0), i64(0),
        load_i64(f, 4), weights.ctypes.data, i64(0), memory, arena_of(memory, load_i64(f, 2)), out,
    )  # fmt: skip


@inlined
def _append_to_state(f: int, regs: int, states: int, memory: int) -> int:
    """Append a sorted delta to the mutable directory of its state, and update the statistics of all states.

    Operands: in; state; statistics register (rows of the largest batch, largest survey word, most buffered rows).
    A batch that is not small gets an index, if there is memory for it: many ticks will look up keys in it, and the
    spine takes it over with the batch.
    """
    delta = register_at(regs, load_i64(f, 0))
    state = states + STATE_BYTES * load_i64(f, 1)
    statistics = register_at(regs, load_i64(f, 2))
    rows = load_i64(delta, REG_ROWS)
    if rows > 0:
        words, bits = i64(0), index_bits(rows)
        if rows >= MIN_INDEXED_ROWS:
            words = arena_take(arena_of(memory, i64(1)), i64(8) << bits)
            if words != 0:
                for k in range(1 << bits):
                    store_i64(words, k, i64(0))
                index_rows(lane(load_i64(delta, REG_TABLE), KEY), rows, i64(0), 64 - bits, words)
        store_i64(delta, REG_INDEX, words)
        if load_i64(state, STATE_BUFFERED_ROWS) >= 0:
            append_entry(state, load_i64(delta, REG_TABLE), rows, words, 64 - bits)
            store_i64(state, STATE_BUFFERED_ROWS, load_i64(state, STATE_BUFFERED_ROWS) + rows)
        store_i64(statistics, REG_ROWS, max(load_i64(statistics, REG_ROWS), rows))
        buffered = load_i64(state, STATE_BUFFERED_ROWS)
        store_i64(statistics, REG_BUFFERED_ROWS, max(load_i64(statistics, REG_BUFFERED_ROWS), buffered))
        store_i64(statistics, REG_SURVEY, max(load_i64(statistics, REG_SURVEY), load_i64(delta, REG_SURVEY)))
    return i64(STATUS_OK)


@inlined
def _append_to_table(f: int, regs: int) -> int:
    """Append a delta to the mutable directory of its table, if the table's register asks for it.

    Operands: in; register of the table: address of its mutable directory, 1 if the delta is to be appended.
    """
    delta, table = register_at(regs, load_i64(f, 0)), register_at(regs, load_i64(f, 1))
    if load_i64(table, REG_ROWS) == 1 and load_i64(delta, REG_ROWS) > 0:
        append_entry(load_i64(table, REG_TABLE), load_i64(delta, REG_TABLE), load_i64(delta, REG_ROWS), i64(0), i64(0))
    return i64(STATUS_OK)


@inlined
def _check_table(f: int, regs: int) -> int:
    """Fall back if a change violates the constraints of its table (`kernels.vm.constraints`).

    Operands: in, sorted as the table is; register of the table: address of its mutable directory, or 0 for no check;
    whether the key is unique; columns; nodes; number of key columns; then their nodes.
    """
    delta, directory_at = register_at(regs, load_i64(f, 0)), load_i64(register_at(regs, load_i64(f, 1)), REG_TABLE)
    if directory_at == 0 or load_i64(delta, REG_ROWS) == 0:
        return i64(STATUS_OK)
    broken = violates(
        load_i64(directory_at, 0), load_i64(delta, REG_TABLE), load_i64(delta, REG_ROWS), i64(1),
        int64s_at(f + 48, load_i64(f, 5)), load_i64(f, 3), load_i64(f, 4), load_i64(f, 2),
    )  # fmt: skip
    return i64(STATUS_FALL_BACK) if broken == 1 else i64(STATUS_OK)


@inlined
def _interpret(code: int, length: int, regs: int, states: int, memory: int) -> int:
    """Run all instructions up to the first that does not end with STATUS_OK; returns the last status."""
    at, end = code, code + 8 * length
    while at < end:
        instruction, f = load_i64(at, 0), at + 16
        if instruction == ARRANGE:
            status = _sort(f, regs, memory)
        elif instruction == PROJECT:
            status = _project(f, regs, memory)
        elif instruction == JOIN:
            status = _join(f, regs, states, memory)
        elif instruction == AGGREGATE:
            status = _aggregate(f, regs, states, memory)
        elif instruction == DISTINCT:
            status = _distinct(f, regs, states, memory)
        elif instruction == TOP_K:
            status = _top_k(f, regs, states, memory)
        elif instruction == SUM:
            status = _sum(f, regs, memory)
        elif instruction == APPEND_TO_STATE:
            status = _append_to_state(f, regs, states, memory)
        elif instruction == CHECK_TABLE:
            status = _check_table(f, regs)
        elif instruction == APPEND_TO_TABLE:
            status = _append_to_table(f, regs)
        else:
            status = _consolidate(f, regs, memory)
        if status != STATUS_OK:
            return status
        at += 8 * load_i64(at, 1)
    return i64(STATUS_OK)


@gil_kernel
def run(code: int, length: int, regs: int, states: int, memory: int, long: int) -> int:
    """Run `length` words of code; returns a status. `long`: 1 where it may take long, so that the GIL is released.

    `regs`, `states` and `memory` are the addresses of registers, states and the two arenas.
    """
    status, lock = i64(STATUS_FALL_BACK), release_gil(long == 1)
    try:
        status = _interpret(code, length, regs, states, memory)
    except Exception:  # out of memory: the operators report it
        status = i64(STATUS_FALL_BACK)
    restore_gil(lock)
    return status
