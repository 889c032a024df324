"""Result columns: the chunk that a VM instruction produces, from input columns, expression slots and sums.

A result column is described by `COLUMN_WORDS` words:

    kind, side or Arrow kind, node or slot, width or second node, limit

`write_columns` writes all columns of a result into one chunk of an arena, with weights and without hashes and times.
A column that passes through with all its rows is not copied: its node points into the memory of the input.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.aggregate.group import beyond_38_digits
from dbspark.kernels.jit import i64, inlined
from dbspark.kernels.memory.gather import gather_flat, has_validity, referenced_chunks, variable_size
from dbspark.kernels.memory.intrinsics import (
    copy_bytes,
    f64_bits,
    int64s_at,
    load_i32,
    load_i64,
    load_u8,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from dbspark.kernels.memory.layout import (
    ALIGN,
    BIT,
    DATA,
    FIXED,
    KIND,
    LANES,
    NODE_BYTES,
    NULL,
    OFFSET_MAX,
    START,
    TIME,
    VARIABLE,
    WIDTH,
)
from dbspark.kernels.memory.nodes import write_node
from dbspark.kernels.vm.expressions import slot_bytes
from dbspark.kernels.vm.registers import STATUS_ARENA_FULL, STATUS_FALL_BACK, arena_take, set_rows

PASS_THROUGH: Final = 0
"""kind, side, node: an input column, gathered, or shared where all rows stay."""
COMPUTED: Final = 1
"""kind, Arrow kind, slot of `kernels.vm.expressions`, bytes per value (0: one bit)."""
SUM64: Final = 2
"""kind, Arrow kind, node of a 128-bit sum, node of its count: the sum in 64 bits, NULL where the count is 0."""
SUM128: Final = 3
"""Operands as for SUM64: the sum in 128 bits, whose magnitude has to be below the limit, a power of ten (0: 10^38)."""
AVERAGE: Final = 4
"""Operands as for SUM64: the sum divided by its count, as a float64."""
COLUMN_WORDS: Final = 5


@inlined
def _write_lane(at: int, data: int, mask: int) -> None:
    write_node(at, i64(FIXED), i64(8), data, i64(0), i64(0), i64(0), mask)


@inlined
def _width(f: int) -> int:
    """Bytes per value of a column that is computed; 0 for bits."""
    column_kind = load_i64(f, 0)
    if column_kind == COMPUTED:
        return load_i64(f, 3)
    return i64(16) if column_kind == SUM128 else i64(8)


@inlined
def _data_bytes(f: int, columns: int, tables: Any, pos: Any, other: Any, other_pos: Any, rows: int, same: int) -> int:
    """Bytes of the data of all columns; -1 where 32-bit offsets cannot address a column. `same`: all rows stay."""
    size = i64(0)
    for i in range(columns):
        c = f + i * (8 * COLUMN_WORDS)
        column_kind = load_i64(c, 0)
        if column_kind != PASS_THROUGH:
            size += rows * max(_width(c), i64(1)) + (rows + 7 >> 3) + 2 * ALIGN
            continue
        if same == 1:
            continue
        side_tables, side_pos = (tables, pos) if load_i64(c, 1) == 0 else (other, other_pos)
        node = load_i64(c, 2)
        kind = load_i64(side_tables[0] + node * NODE_BYTES, KIND)
        if has_validity(side_tables, node):
            size += (rows + 7 >> 3) + ALIGN
        if kind == VARIABLE:
            strings = variable_size(side_tables, node, side_pos, rows)
            if strings > OFFSET_MAX:
                return i64(-1)
            size += strings + 4 * (rows + 1) + 2 * ALIGN
        elif kind == BIT:
            size += (rows + 7 >> 3) + ALIGN
        elif kind != NULL:
            size += rows * load_i64(side_tables[0] + node * NODE_BYTES, WIDTH) + ALIGN
    return size


@inlined
def _aligned(at: int) -> int:
    return (at + ALIGN - 1) // ALIGN * ALIGN


@inlined
def _write_values(values: int, nulls: int, rows: int, width: int, to: int, valid: int) -> int:
    """Write a slot as a column; returns the address of its validity bitmap, 0 where nothing is NULL."""
    any_null = np.uint8(0)
    for r in range(rows):
        any_null |= load_u8(nulls, r)
    if width == 8:
        copy_bytes(to, values, 8 * rows)
    elif width == 0:
        for k in range(rows + 7 >> 3):
            store_u8(to, k, np.uint8(0))
        for r in range(rows):
            if load_i64(values, r) != 0:
                store_u8(to, r >> 3, load_u8(to, r >> 3) | np.uint8(1) << np.uint8(r & 7))
    elif width == 4:
        for r in range(rows):
            store_u32(to, r, np.uint32(load_i64(values, r)))
    elif width == 2:
        for r in range(rows):
            store_u16(to, r, np.uint16(load_i64(values, r)))
    elif width == 16:
        for r in range(rows):
            store_i64(to, 2 * r, load_i64(values, r))
            store_i64(to, 2 * r + 1, load_i64(values, r) >> 63)
    else:
        for r in range(rows):
            store_u8(to, r, np.uint8(load_i64(values, r)))
    if any_null == 0:
        return i64(0)
    _write_validity(nulls, rows, valid)
    return valid


@inlined
def _write_validity(nulls: int, rows: int, valid: int) -> None:
    for k in range(rows + 7 >> 3):
        store_u8(valid, k, np.uint8(0))
    for r in range(rows):
        if load_u8(nulls, r) == 0:
            store_u8(valid, r >> 3, load_u8(valid, r >> 3) | np.uint8(1) << np.uint8(r & 7))


@inlined
def _write_sums(c: int, table: int, pos: Any, rows: int, to: int, valid: int, nulls: int) -> int:
    """Write a column of sums of the rows `pos`; returns -1 where one does not fit, else as `_write_values`."""
    column_kind = load_i64(c, 0)
    sums, counts = table + load_i64(c, 2) * NODE_BYTES, table + load_i64(c, 3) * NODE_BYTES
    any_null = np.uint8(0)
    for r in range(rows):
        row = pos[r]
        low = load_i64(load_i64(sums, DATA), 2 * (row + load_i64(sums, START)))
        high = load_i64(load_i64(sums, DATA), 2 * (row + load_i64(sums, START)) + 1)
        count = load_i64(load_i64(counts, DATA), row + load_i64(counts, START))
        null = np.uint8(1) if count == 0 else np.uint8(0)
        any_null |= null
        store_u8(nulls, r, null)
        narrow = high == low >> 63
        if column_kind == SUM64:
            if not narrow:
                return i64(-1)
            store_i64(to, r, low)
        elif column_kind == SUM128:
            if not _is_below(low, high, load_i64(c, 4)):
                return i64(-1)
            store_i64(to, 2 * r, low)
            store_i64(to, 2 * r + 1, high)
        else:
            if not narrow or low > i64(1 << 53) or low < -i64(1 << 53):
                return i64(-1)
            store_u64(to, r, f64_bits(np.float64(low) / np.float64(count if count != 0 else i64(1))))
    if any_null == 0:
        return i64(0)
    _write_validity(nulls, rows, valid)
    return valid


@inlined
def _is_below(low: int, high: int, limit: int) -> Any:
    """Whether the magnitude of a 128-bit number is below a power of ten; 0 stands for 10^38."""
    if limit == 0:
        return not beyond_38_digits(np.uint64(low), high)
    return high == low >> 63 and low < limit and low > -limit


@inlined
def write_columns(
    f: int, columns: int, tables: Any, pos: Any, other: Any, other_pos: Any, rows: int, same: int, slots: int,
    nodes: int, weights: int, one_weight: int, memory: int, arena_words: int, out: int,
) -> int:  # fmt: skip
    """Write the rows at positions of either side as a chunk in `arena_words`, and set register `out` to it.

    `f` is the address of the columns' descriptions. With `same` = 1 the result has all rows of the only chunk.
    `weights` is the address of the weights; with `one_weight` = 1 of the one weight of all rows.
    """
    if same == 0:
        tables, pos = referenced_chunks(tables, pos, rows)
        other, other_pos = referenced_chunks(other, other_pos, rows)
    data = _data_bytes(f, columns, tables, pos, other, other_pos, rows, same)
    if data < 0:
        return i64(STATUS_FALL_BACK)
    head = _aligned(nodes * NODE_BYTES)
    size = head + ALIGN + _aligned(8 if one_weight == 1 else 8 * rows) + data
    arena = arena_take(arena_words, size)
    # Scratch memory: addresses, for as many chunks as a side has, and NULL flags.
    scratch = arena_take(memory, 16 * max(tables.shape[0], other.shape[0]) + rows)
    if arena == 0 or scratch == 0:
        return i64(STATUS_ARENA_FULL)
    bases = int64s_at(scratch, 2 * max(tables.shape[0], other.shape[0]))
    nulls = scratch + 16 * max(tables.shape[0], other.shape[0])
    at = arena + head
    store_i64(at, 0, i64(0))
    for node in range(TIME, LANES):
        _write_lane(arena + node * NODE_BYTES, at, i64(0))
    at += ALIGN
    copy_bytes(at, weights, i64(8) if one_weight == 1 else 8 * rows)
    for node in range(TIME):  # there are no hashes, and readers of a delta compute them when they need them
        _write_lane(arena + node * NODE_BYTES, at, i64(0) if one_weight == 1 else i64(-1))
    at += _aligned(8 if one_weight == 1 else 8 * rows)
    for i in range(columns):
        c, line = f + i * (8 * COLUMN_WORDS), arena + (LANES + i) * NODE_BYTES
        column_kind = load_i64(c, 0)
        if column_kind != PASS_THROUGH:
            width = _width(c)
            valid = _aligned(at + rows * max(width, i64(1)))
            if column_kind == COMPUTED:
                values = slots + load_i64(c, 2) * slot_bytes(rows)
                found = _write_values(values, values + 8 * rows, rows, width, at, valid)
            else:
                found = _write_sums(c, tables[0], pos, rows, at, valid, nulls)
                if found < 0:
                    return i64(STATUS_FALL_BACK)
            kind = load_i64(c, 1)
            write_node(line, kind, width, at, found, i64(0), i64(0), i64(-1))
            at = _aligned(valid + (rows + 7 >> 3))
            continue
        node = load_i64(c, 2)
        side_tables, side_pos = (tables, pos) if load_i64(c, 1) == 0 else (other, other_pos)
        if same == 1:
            copy_bytes(line, side_tables[0] + node * NODE_BYTES, i64(NODE_BYTES))
            continue
        source = side_tables[0] + node * NODE_BYTES
        kind, width = load_i64(source, KIND), load_i64(source, WIDTH)
        valid = offsets = to = i64(0)
        if has_validity(side_tables, node):
            valid = at
            at = _aligned(at + (rows + 7 >> 3))
        if kind == VARIABLE:
            offsets = at
            to = _aligned(at + 4 * (rows + 1))
            at = to
        elif kind == BIT:
            to = at
            at = _aligned(at + (rows + 7 >> 3))
        elif kind != NULL:
            to = at
            at = _aligned(at + rows * width)
        write_node(line, kind, width, to, valid, offsets, i64(0), i64(-1))
        gather_flat(side_tables, node, kind, width, side_pos, rows, to, valid, offsets, bases)
        if kind == VARIABLE:
            at = _aligned(to + i64(load_i32(offsets, rows)))
    return set_rows(out, arena, rows, size)
