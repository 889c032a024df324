"""A tick of a circuit in one call.

Between two kernels there are microseconds of Python; a tick of a hundred rows is fifty kernels of a microsecond each.
So what operators do to small deltas is written down once as a *program*: lines of numbers, each an instruction with the
registers that it reads and writes (`kernels.vm.registers`). `run` goes through a program from one line to another. What
comes out is what the operators would have given (`dbspark.operators`); `dbspark.circuit.vm` writes programs and
takes up the results.

A *state* is the directory of a spine (`kernels.lookup.index`) as it is before the tick, and the number of its chunks.
Instructions change neither states nor what they read; all they write is memory of two arenas. So a program that gives
up (`ODD`: weights beyond int64, an error in an expression, too many pairs, a change that a table has to refuse) or runs
out of memory (`ROOM`) has not happened, and can be run again or left to the operators. The exception comes last, when
nothing can go wrong any more: `LIST` puts what a tick has brought into the directory of its state, where that is the
program's own, `LIST_CHANGE` what has come in into the directory of a table, which is that table's own.

    line = instruction, length of the line, operands …
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dbspark.kernels.aggregate.accumulators import fold_groups
from dbspark.kernels.aggregate.group import sum_rows
from dbspark.kernels.aggregate.top_k import change_of_first
from dbspark.kernels.jit import (
    brief,
    copy_bytes,
    i64,
    inlined,
    ints_at,
    load_i64,
    load_u8,
    load_u64,
    store_i64,
    store_u64,
    with_lock,
    without_lock,
)
from dbspark.kernels.lookup.index import (
    BATCHES,
    DIRECTORY,
    FENCES,
    LENS,
    PLACE,
    PLACES,
    SIEVE,
    STARTS,
    TABLES,
    append_batch,
    index_bits,
    index_rows,
)
from dbspark.kernels.lookup.probe import meet_rows
from dbspark.kernels.lookup.row_lookup import add_weights
from dbspark.kernels.memory.layout import DATA, FIELDS, KEY, NODE_BYTES, ROW_BITS, WEIGHT
from dbspark.kernels.merge.consolidate import OVERFLOW, lane, lane_mask
from dbspark.kernels.sort.sort_rows import SURVEY, fill_arena, plan_rows, scratch_bytes
from dbspark.kernels.vm.constraints import breaks
from dbspark.kernels.vm.expressions import evaluate, slot_bytes
from dbspark.kernels.vm.registers import (
    DONE,
    INDEX,
    LARGEST,
    ODD,
    ROOM,
    ROWS,
    TABLE,
    USED,
    arena_of,
    empty,
    filled,
    register,
    take,
)
from dbspark.kernels.vm.result_columns import write_columns

ARRANGE: Final = 0
PROJECT: Final = 1
JOIN: Final = 2
FOLD: Final = 3
DISTINCT: Final = 4
FIRST: Final = 5
SUM: Final = 6
CONSOLIDATE: Final = 7
LIST: Final = 8
CHECK: Final = 9
LIST_CHANGE: Final = 10

STATE: Final = 3
"""Words of a state: its directory, how many chunks that has, and how many rows have been listed in it, or -1 where the
directory is not the program's own."""
WAITING: Final = 2
LISTED: Final = 3
"""The word of the register that LIST fills with the most rows that are listed in any state."""
STATE_BYTES: Final = 8 * STATE

CHUNK: Final = 32768
"""Rows of a delta at the most."""
INDEXED: Final = 48
"""Rows from which on a batch that is listed gets an index."""
PAIRS: Final = 1 << 18
"""Pairs of a join at the most."""


# ---------------------------------------------------------------------------------------------------- rows in order


@inlined
def _arrange(f: int, regs: int, memory: int) -> int:
    """in, out, kept, whether it is wanted (a register), whether row hashes are known, mask of hashes, and what is told
    of the sort key (`kernels.sort.sort_rows`)."""
    given, out, kept = register(regs, load_i64(f, 0)), register(regs, load_i64(f, 1)), load_i64(f, 2)
    rows, told = load_i64(given, ROWS), load_i64(f, 6)
    if rows == 0 or (load_i64(f, 3) >= 0 and load_i64(register(regs, load_i64(f, 3)), ROWS) == 0):
        return empty(out)
    used = load_i64(memory, USED)
    scratch = take(memory, scratch_bytes(told, rows))
    if scratch == 0:
        return i64(ROOM)
    mask = np.uint64(load_i64(f, 5))
    size = plan_rows(told, load_i64(f, 4), mask, load_i64(given, TABLE), rows, i64(CHUNK), scratch)
    n = load_i64(scratch, 0)
    if size == 0 and n == 0:
        return empty(out)
    if size <= 0:
        return i64(ODD)
    arena = take(arena_of(memory, kept), size)
    if arena == 0:
        return i64(ROOM)
    fill_arena(told, rows, scratch, arena)
    filled(out, arena, n, size)
    for k in range(4):
        store_i64(out, LARGEST + k, load_i64(scratch, SURVEY + k))
    if kept == 1:
        store_i64(memory, USED, used)
    return i64(DONE)


# ---------------------------------------------------------------------------------------------------- columns


@inlined
def _project(f: int, regs: int, memory: int) -> int:
    """in, out, kept, nodes of the result, numbers of words of the tests, of the code and of columns; how many slots;
    then tests, code and columns. Slot 0 of the tests says which rows stay."""
    given, out, kept = register(regs, load_i64(f, 0)), register(regs, load_i64(f, 1)), load_i64(f, 2)
    rows = load_i64(given, ROWS)
    if rows == 0:
        return empty(out)
    nodes, tests, code, columns, count = (
        load_i64(f, 3), load_i64(f, 4), load_i64(f, 5), load_i64(f, 6), load_i64(f, 7),
    )  # fmt: skip
    table = load_i64(given, TABLE)
    slots = take(memory, count * slot_bytes(rows))
    scratch = take(memory, 16 * rows + 8)
    if slots == 0 or scratch == 0:
        return i64(ROOM)
    tables, pos = ints_at(scratch, 1), ints_at(scratch + 8, rows)
    weights = scratch + 8 + 8 * rows
    tables[0] = table
    n = i64(0)
    if tests > 0:
        if evaluate(f + 64, tests, scratch, i64(0), scratch, i64(0), rows, slots) != DONE:
            return i64(ODD)
        nulls = slots + 8 * rows
        for r in range(rows):
            if load_i64(slots, r) != 0 and load_u8(nulls, r) == 0:
                pos[n] = r
                n += 1
        if n == 0:
            return empty(out)
    else:
        n = rows
    same = i64(1) if n == rows else i64(0)
    if same == 1:
        for r in range(rows):
            pos[r] = r
    if code > 0:
        where = i64(0) if same == 1 else scratch + 8
        if evaluate(f + 64 + 8 * tests, code, scratch, where, scratch, where, n, slots) != DONE:
            return i64(ODD)
    own, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    if mask == 0 or same == 1:
        weights = own
    else:
        for r in range(n):
            store_i64(weights, r, load_i64(own, pos[r]))
    return write_columns(
        f + 64 + 8 * (tests + code), columns, tables, pos, tables, pos, n, same, slots, nodes, weights,
        i64(1) if mask == 0 else i64(0), memory, arena_of(memory, kept), out,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- looking up


@inlined
def _extended(directory: int, chunks: int, table: int, rows: int, memory: int) -> int:
    """The directory of a spine and one more batch, which is one chunk; 0 where there is no memory for it."""
    batches = load_i64(directory, BATCHES)
    out = take(memory, 8 * (DIRECTORY + 3 * (chunks + 1) + (batches + 2) + PLACE * (batches + 1)))
    if out == 0:
        return out
    at = out + 8 * DIRECTORY
    for k in range(3):
        copy_bytes(at, load_i64(directory, k), 8 * chunks)
        store_i64(out, k, at)
        at += 8 * (chunks + 1)
    store_i64(load_i64(out, TABLES), chunks, table)
    store_i64(load_i64(out, LENS), chunks, rows)
    store_u64(load_i64(out, FENCES), chunks, load_u64(lane(table, KEY), 0))
    copy_bytes(at, load_i64(directory, STARTS), 8 * (batches + 1))
    store_i64(at, batches, chunks)
    store_i64(at, batches + 1, chunks + 1)
    store_i64(out, STARTS, at)
    at += 8 * (batches + 2)
    copy_bytes(at, load_i64(directory, PLACES), 8 * PLACE * batches)
    for k in range(PLACE):
        store_i64(at, PLACE * batches + k, i64(0))
    store_i64(out, PLACES, at)
    store_i64(out, BATCHES, batches + 1)
    copy_bytes(out + 8 * SIEVE, directory + 8 * SIEVE, i64(8 * (DIRECTORY - SIEVE)))
    return out


@inlined
def _join(f: int, regs: int, states: int, memory: int) -> int:
    """left, right, states of both, out, kept, null_safe, nodes of the keys' schemas, nodes of the result, number of
    key columns, of words of a condition, of slots and of columns; key nodes of both, the condition, columns.

    d(L x R) = dL x R' + L x dR, with L before and R' after the tick."""
    left, right = register(regs, load_i64(f, 0)), register(regs, load_i64(f, 1))
    mine, theirs = states + STATE_BYTES * load_i64(f, 2), states + STATE_BYTES * load_i64(f, 3)
    out, kept = register(regs, load_i64(f, 4)), load_i64(f, 5)
    null_safe, nodes, result, keys = load_i64(f, 6), load_i64(f, 7), load_i64(f, 8), load_i64(f, 9)
    code, slot_count, columns = load_i64(f, 10), load_i64(f, 11), load_i64(f, 12)
    key, other_key = ints_at(f + 8 * 13, keys), ints_at(f + 8 * (13 + keys), keys)
    rows, other_rows = load_i64(left, ROWS), load_i64(right, ROWS)
    chunks, other_chunks = load_i64(mine, 1), load_i64(theirs, 1)
    if rows == 0 and other_rows == 0:
        return empty(out)
    table, other_table = load_i64(left, TABLE), load_i64(right, TABLE)
    none, info = np.empty(0, np.int64), np.zeros(6, np.int64)
    first = second = np.empty((3, 0), np.int64)
    directory = load_i64(theirs, 0)
    if other_rows > 0:
        directory = _extended(directory, other_chunks, other_table, other_rows, memory)
        if directory == 0:
            return i64(ROOM)
        other_chunks += 1
    if rows > 0:
        first = meet_rows(
            directory, table, rows, key, other_key, nodes, null_safe, none, i64(PAIRS), info[:3]
        )  # fmt: skip
    if other_rows > 0:
        second = meet_rows(
            load_i64(mine, 0), other_table, other_rows, other_key, key, nodes, null_safe, none, i64(PAIRS), info[3:]
        )  # fmt: skip
    if info[1] != 0 or info[4] != 0 or info[0] > PAIRS or info[3] > PAIRS:
        return i64(ODD)
    n = info[0] + info[3]
    if n == 0:
        return empty(out)
    # On either side the delta is the chunk behind those that are there.
    scratch = take(memory, 8 * (chunks + 1 + 3 * n))
    if scratch == 0:
        return i64(ROOM)
    tables, others = ints_at(scratch, chunks + 1), ints_at(load_i64(directory, TABLES), other_chunks)
    copy_bytes(scratch, load_i64(load_i64(mine, 0), TABLES), 8 * chunks)
    tables[chunks] = table if rows > 0 else tables[0]  # which nobody points to then, but somebody reads
    at = scratch + 8 * (chunks + 1)
    pos, other_pos, weights = ints_at(at, n), ints_at(at + 8 * n, n), at + 16 * n
    for i in range(info[0]):
        pos[i] = i64(chunks) << ROW_BITS | first[0, i]
        other_pos[i] = first[1, i]
        store_i64(weights, i, first[2, i])
    for i in range(info[3]):
        pos[info[0] + i] = second[1, i]
        other_pos[info[0] + i] = i64(other_chunks - 1) << ROW_BITS | second[0, i]
        store_i64(weights, info[0] + i, second[2, i])
    slots = i64(0)
    if code > 0:
        slots = take(memory, slot_count * slot_bytes(n))
        if slots == 0:
            return i64(ROOM)
        status = evaluate(
            f + 8 * (13 + 2 * keys), code, tables.ctypes.data, pos.ctypes.data, others.ctypes.data,
            other_pos.ctypes.data, n, slots,
        )  # fmt: skip
        if status != DONE:
            return status
        some = i64(0)
        for i in range(n):
            if load_i64(slots, i) != 0 and load_u8(slots + 8 * n, i) == 0:
                pos[some], other_pos[some] = pos[i], other_pos[i]
                store_i64(weights, some, load_i64(weights, i))
                some += 1
        n = some
        if n == 0:
            return empty(out)
    return write_columns(
        f + 8 * (13 + 2 * keys + code), columns, tables, pos, others, other_pos, n, i64(0), i64(0), result, weights,
        i64(0), memory, arena_of(memory, kept), out,
    )  # fmt: skip


@inlined
def _distinct(f: int, regs: int, states: int, memory: int) -> int:
    """in, state, out, kept, columns, nodes, number of columns of the result, and they: rows in order by whole rows."""
    given, state, out = (
        register(regs, load_i64(f, 0)),
        states + STATE_BYTES * load_i64(f, 1),
        register(regs, load_i64(f, 2)),
    )
    rows, table = load_i64(given, ROWS), load_i64(given, TABLE)
    if rows == 0:
        return empty(out)
    columns, nodes, directory = load_i64(f, 4), load_i64(f, 5), load_i64(state, 0)
    scratch = take(memory, 16 * rows + 8)
    if scratch == 0:
        return i64(ROOM)
    tables, pos, weights = ints_at(scratch, 1), ints_at(scratch + 8, rows), scratch + 8 + 8 * rows
    tables[0] = table
    own, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    before = np.zeros(rows, np.int64)
    if not add_weights(directory, table, rows, columns, nodes, before):
        return i64(ODD)
    n = i64(0)
    for r in range(rows):
        w = load_i64(own, r & mask)
        if abs(w) >= 1 << 62:
            return i64(ODD)
        change = i64(before[r] + w > 0) - i64(before[r] > 0)
        if change != 0:
            pos[n] = r
            store_i64(weights, n, change)
            n += 1
    if n == 0:
        return empty(out)
    return write_columns(
        f + 48, columns, tables, pos, tables, pos, n, i64(1) if n == rows else i64(0), i64(0), nodes, weights, i64(0),
        memory, arena_of(memory, load_i64(f, 3)), out,
    )  # fmt: skip


@inlined
def _first(f: int, regs: int, states: int, memory: int) -> int:
    """in, state, out, kept, skip, limit, columns, nodes, number of key nodes, and they, and columns of the result."""
    given, state, out = (
        register(regs, load_i64(f, 0)),
        states + STATE_BYTES * load_i64(f, 1),
        register(regs, load_i64(f, 2)),
    )
    rows, chunks = load_i64(given, ROWS), load_i64(state, 1)
    if rows == 0 or load_i64(f, 5) == 0:
        return empty(out)
    columns, nodes, keys = load_i64(f, 6), load_i64(f, 7), load_i64(f, 8)
    directory = _extended(load_i64(state, 0), chunks, load_i64(given, TABLE), rows, memory)
    scratch = take(memory, 32 * rows)  # a row that comes or goes moves one other, if both are of weight one
    if directory == 0 or scratch == 0:
        return i64(ROOM)
    pos, weights = ints_at(scratch, 2 * rows), ints_at(scratch + 16 * rows, 2 * rows)
    n = change_of_first(directory, ints_at(f + 72, keys), columns, nodes, load_i64(f, 4), load_i64(f, 5), pos, weights)
    if n == OVERFLOW or n > 2 * rows:
        return i64(ODD)
    if n == 0:
        return empty(out)
    tables = ints_at(load_i64(directory, TABLES), chunks + 1)
    return write_columns(
        f + 72 + 8 * keys, columns, tables, pos, tables, pos, n, i64(0), i64(0), nodes, weights.ctypes.data, i64(0),
        memory, arena_of(memory, load_i64(f, 3)), out,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- sums


@inlined
def _fold(f: int, regs: int, states: int, memory: int) -> int:
    """in, state, arranged (a register) and its state or -1, out, mask of hashes, source_columns, columns of the state,
    nodes of source and state, node of the count, how many words a group has, address of the template of the state's
    node table and its nodes, numbers of key columns, of folds, of values (3 or none) and of described columns, kept;
    key nodes, their nodes in the state, folds, values, (node, word) of described columns, columns of the result."""
    given, state, out = (
        register(regs, load_i64(f, 0)),
        states + STATE_BYTES * load_i64(f, 1),
        register(regs, load_i64(f, 4)),
    )
    keys, folds, values, described = load_i64(f, 13), load_i64(f, 14), load_i64(f, 15), load_i64(f, 16)
    arranged, more_chunks = i64(0), i64(0)
    if load_i64(f, 2) >= 0:
        given = register(regs, load_i64(f, 2))
    rows, table = load_i64(given, ROWS), load_i64(given, TABLE)
    if rows == 0:
        return empty(out)
    if load_i64(f, 2) >= 0:
        more = states + STATE_BYTES * load_i64(f, 3)
        arranged = _extended(load_i64(more, 0), load_i64(more, 1), table, rows, memory)
        more_chunks = load_i64(more, 1) + 1
        if arranged == 0:
            return i64(ROOM)
    directory, chunks = load_i64(state, 0), load_i64(state, 1)
    columns, nodes, words, state_nodes = load_i64(f, 7), load_i64(f, 8), load_i64(f, 10), load_i64(f, 12)
    leads = more_chunks + 1 if values > 0 else i64(0)
    scratch = take(memory, 8 * (words * rows + 6 * rows + 2 * chunks + 4 + (leads + 1) * state_nodes * FIELDS + leads))
    if scratch == 0:
        return i64(ROOM)
    acc = ints_at(scratch, words * rows)
    at = scratch + 8 * words * rows
    key_pos, acc_pos, weights = (
        ints_at(at, 2 * rows),
        ints_at(at + 16 * rows, 2 * rows),
        ints_at(at + 32 * rows, 2 * rows),
    )
    at += 48 * rows
    used = ints_at(at, 1)
    used[0] = 0
    at += 8
    led = ints_at(at, leads * state_nodes * FIELDS).reshape(leads, state_nodes * FIELDS)
    at += 8 * leads * state_nodes * FIELDS
    own = at  # the node table of the words, as rows of state
    at += 8 * state_nodes * FIELDS
    tables, others = at, at + 8 * (chunks + leads + 1)
    frame = f + 8 * 18
    key = ints_at(frame, keys)
    state_key = ints_at(frame + 8 * keys, keys)
    frame += 16 * keys
    fold_lines, value = ints_at(frame, 5 * folds).reshape(folds, 5), ints_at(frame + 40 * folds, values)
    frame += 40 * folds + 8 * values
    n = fold_groups(
        table, rows, key, np.uint64(load_i64(f, 5)), directory, chunks, state_key, columns, nodes, load_i64(f, 9),
        fold_lines, acc, key_pos, acc_pos, weights, value, load_i64(f, 6), arranged, more_chunks, led, used,
    )  # fmt: skip
    if n < 0:  # too large, or wrong
        return i64(ODD)
    if n == 0:
        return empty(out)
    copy_bytes(own, load_i64(f, 11), state_nodes * NODE_BYTES)
    for k in range(described):
        store_i64(own + load_i64(frame, 2 * k) * NODE_BYTES, DATA, scratch + 8 * load_i64(frame, 2 * k + 1) * rows)
    frame += 16 * described
    copy_bytes(tables, load_i64(directory, TABLES), 8 * chunks)
    copy_bytes(others, load_i64(directory, TABLES), 8 * chunks)
    store_i64(others, chunks, own)
    count = i64(1)
    if values > 0:
        count = used[0]
        for k in range(count):
            store_i64(tables, chunks + k, led.ctypes.data + k * (8 * state_nodes * FIELDS))
    else:
        # The keys of the delta where the state has them; other columns are nobody's.
        keyed = take(memory, state_nodes * NODE_BYTES)
        if keyed == 0:
            return i64(ROOM)
        copy_bytes(keyed, load_i64(f, 11), state_nodes * NODE_BYTES)
        for k in range(keys):
            copy_bytes(keyed + state_key[k] * NODE_BYTES, table + key[k] * NODE_BYTES, i64(NODE_BYTES))
        store_i64(tables, chunks, keyed)
    return write_columns(
        frame, columns, ints_at(tables, chunks + count), key_pos, ints_at(others, chunks + 1), acc_pos, n, i64(0),
        i64(0), state_nodes, weights.ctypes.data, i64(0), memory, arena_of(memory, load_i64(f, 17)), out,
    )  # fmt: skip


@inlined
def _sum(f: int, regs: int, memory: int) -> int:
    """out, kept, columns, nodes, how many registers, and they, and columns of the result."""
    out, kept, columns, nodes, count = (
        register(regs, load_i64(f, 0)),
        load_i64(f, 1),
        load_i64(f, 2),
        load_i64(f, 3),
        load_i64(f, 4),
    )
    rows = i64(0)
    for k in range(count):
        rows += load_i64(register(regs, load_i64(f, 5 + k)), ROWS)
    if rows == 0:
        return empty(out)
    scratch = take(memory, 8 * (count + 2 * rows))
    if scratch == 0:
        return i64(ROOM)
    tables, pos, weights = ints_at(scratch, count), ints_at(scratch + 8 * count, rows), scratch + 8 * (count + rows)
    some, n = i64(0), i64(0)
    for k in range(count):
        given = register(regs, load_i64(f, 5 + k))
        table, more = load_i64(given, TABLE), load_i64(given, ROWS)
        if more == 0:
            continue
        tables[some] = table
        own, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
        for r in range(more):
            pos[n] = some << ROW_BITS | r
            store_i64(weights, n, load_i64(own, r & mask))
            n += 1
        some += 1
    tables = tables[:some]
    return write_columns(
        f + 8 * (5 + count), columns, tables, pos, tables, pos, n, i64(0), i64(0), nodes, weights, i64(0), memory,
        arena_of(memory, kept), out,
    )  # fmt: skip


@inlined
def _consolidate(f: int, regs: int, memory: int) -> int:
    """in, out, kept, mask of hashes, nodes, number of columns, their nodes, and columns of the result."""
    given, out, columns = register(regs, load_i64(f, 0)), register(regs, load_i64(f, 1)), load_i64(f, 5)
    rows, table = load_i64(given, ROWS), load_i64(given, TABLE)
    if rows == 0:
        return empty(out)
    scratch = take(memory, 16 * rows + 8)
    if scratch == 0:
        return i64(ROOM)
    tables, pos, weights = ints_at(scratch, 1), ints_at(scratch + 8, rows), ints_at(scratch + 8 + 8 * rows, rows)
    tables[0] = table
    n = sum_rows(table, rows, ints_at(f + 48, columns), np.uint64(load_i64(f, 3)), load_i64(f, 4), pos, weights)
    if n == OVERFLOW:
        return i64(ODD)
    if n == 0:
        return empty(out)
    return write_columns(
        f + 48 + 8 * columns, columns, tables, pos, tables, pos, n, i64(1) if n == rows else i64(0), i64(0),
        load_i64(f, 4), weights.ctypes.data, i64(0), memory, arena_of(memory, load_i64(f, 2)), out,
    )  # fmt: skip


@inlined
def _list(f: int, regs: int, states: int, memory: int) -> int:
    """in, state, and the register of the most rows and weights that have been listed in any state.

    Only in the program's own directory it is listed at all. What is not small gets an index, if there is memory for it:
    it is looked up in by many ticks, each of which would have to walk along it, and taken in with it."""
    given, state, most = (
        register(regs, load_i64(f, 0)),
        states + STATE_BYTES * load_i64(f, 1),
        register(regs, load_i64(f, 2)),
    )
    rows = load_i64(given, ROWS)
    if rows > 0:
        words, bits = i64(0), index_bits(rows)
        if rows >= INDEXED:
            words = take(arena_of(memory, i64(1)), i64(8) << bits)
            if words != 0:
                for k in range(1 << bits):
                    store_i64(words, k, i64(0))
                index_rows(lane(load_i64(given, TABLE), KEY), rows, i64(0), 64 - bits, words)
        store_i64(given, INDEX, words)
        if load_i64(state, WAITING) >= 0:
            append_batch(state, load_i64(given, TABLE), rows, words, 64 - bits)
            store_i64(state, WAITING, load_i64(state, WAITING) + rows)
        store_i64(most, ROWS, max(load_i64(most, ROWS), rows))
        store_i64(most, LISTED, max(load_i64(most, LISTED), load_i64(state, WAITING)))
        store_i64(most, LARGEST, max(load_i64(most, LARGEST), load_i64(given, LARGEST)))
    return i64(DONE)


@inlined
def _list_change(f: int, regs: int) -> int:
    """in, the register of a table that has been checked: what comes in is listed in its directory if it says so."""
    given, table = register(regs, load_i64(f, 0)), register(regs, load_i64(f, 1))
    if load_i64(table, ROWS) == 1 and load_i64(given, ROWS) > 0:
        append_batch(load_i64(table, TABLE), load_i64(given, TABLE), load_i64(given, ROWS), i64(0), i64(0))
    return i64(DONE)


@inlined
def _check(f: int, regs: int) -> int:
    """in, a register with the place where the directory of a table is, or 0; whether keys are unique, columns, nodes,
    number of key nodes, and they: rows in the order of the table, which has to stay one (`kernels.vm.constraints`)."""
    given, place = register(regs, load_i64(f, 0)), load_i64(register(regs, load_i64(f, 1)), TABLE)
    if place == 0 or load_i64(given, ROWS) == 0:
        return i64(DONE)
    broken = breaks(
        load_i64(place, 0), load_i64(given, TABLE), load_i64(given, ROWS), i64(1), ints_at(f + 48, load_i64(f, 5)),
        load_i64(f, 3), load_i64(f, 4), load_i64(f, 2),
    )  # fmt: skip
    return i64(ODD) if broken == 1 else i64(DONE)


@inlined
def _lines(code: int, length: int, regs: int, states: int, memory: int) -> int:
    at, end = code, code + 8 * length
    while at < end:
        instruction, f = load_i64(at, 0), at + 16
        if instruction == ARRANGE:
            status = _arrange(f, regs, memory)
        elif instruction == PROJECT:
            status = _project(f, regs, memory)
        elif instruction == JOIN:
            status = _join(f, regs, states, memory)
        elif instruction == FOLD:
            status = _fold(f, regs, states, memory)
        elif instruction == DISTINCT:
            status = _distinct(f, regs, states, memory)
        elif instruction == FIRST:
            status = _first(f, regs, states, memory)
        elif instruction == SUM:
            status = _sum(f, regs, memory)
        elif instruction == LIST:
            status = _list(f, regs, states, memory)
        elif instruction == CHECK:
            status = _check(f, regs)
        elif instruction == LIST_CHANGE:
            status = _list_change(f, regs)
        else:
            status = _consolidate(f, regs, memory)
        if status != DONE:
            return status
        at += 8 * load_i64(at, 1)
    return i64(DONE)


@brief
def run(code: int, length: int, regs: int, states: int, memory: int, much: int) -> int:
    """Run so many words of a program; DONE, ROOM or ODD. `much`: 1 where that may take long (`kernels.jit.brief`)."""
    status, lock = i64(ODD), without_lock(much == 1)
    try:
        status = _lines(code, length, regs, states, memory)
    except Exception:  # where there is no memory left the operators will say so
        status = i64(ODD)
    with_lock(lock)
    return status
