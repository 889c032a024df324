"""Rows that somebody hands over, described for kernels from Arrow's C data interface.

A record batch is exported as one struct of pointers; to ask Arrow for each buffer of each column takes ten times as
long. What the struct points to belongs to the record batch, so the struct is given back at once and the record batch
is kept instead.

    ArrowArray = length, null_count, offset, n_buffers, n_children, buffers, children, dictionary, release, private_data
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dbspark.kernels.interpreter import GIL_RELEASE_ROWS, release_gil, restore_gil
from dbspark.kernels.jit import gil_kernel, i64, inlined
from dbspark.kernels.memory.intrinsics import copy_bytes, load_i32, load_i64, load_u8, store_i32, store_i64, store_u8
from dbspark.kernels.memory.layout import (
    BIT,
    DATA,
    KIND,
    LANES,
    MASK,
    NODE_BYTES,
    NULL,
    OFFSETS,
    START,
    TIME,
    VALID,
    VARIABLE,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.memory.nodes import aligned
from dbspark.kernels.sort.sort_rows import fill_arena, plan_rows

ARROW_ARRAY_BYTES: Final = 80
_NULL_COUNT: Final = 1
_OFFSET: Final = 2
_BUFFERS: Final = 5
_CHILDREN: Final = 6
_RELEASE: Final = 8
_LEAST: Final = -(1 << 63)
NOT_IMPORTABLE: Final = -(1 << 61)
_SORTED: Final = 1 << 10
"""Rows from which on it takes long to put them in order."""
_COLUMNS: Final = 0
_WEIGHT: Final = 1
_ZERO: Final = 2
_ONE: Final = 3
_TEMPLATE: Final = 4
_NODES: Final = 5
FORM: Final = 6
"""How columns are those of a schema: their number, the child with weights (-1 where all are one), addresses of a zero
and a one, the template of the node table and its nodes; then for each column its child and whether it may not be
NULL."""


@intrinsic
def _call(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call a C function that takes a pointer and gives nothing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [builder.inttoptr(args[1], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@inlined
def _described(struct: int, rows: int, columns: int, places: int, weight: int, zero: int, one: int, table: int) -> Any:
    for node in range(TIME, LANES):
        store_i64(table + node * NODE_BYTES, DATA, zero)
        store_i64(table + node * NODE_BYTES, MASK, i64(0))
    line = table + WEIGHT * NODE_BYTES
    children, before = load_i64(struct, _CHILDREN), load_i64(struct, _OFFSET)
    if weight < 0:
        store_i64(line, DATA, one)
        store_i64(line, MASK, i64(0))
    else:
        child = load_i64(children, weight)
        start, data = load_i64(child, _OFFSET) + before, load_i64(load_i64(child, _BUFFERS), 1)
        if load_i64(child, _NULL_COUNT) != 0:
            return False
        for r in range(rows):
            if load_i64(data, start + r) == i64(_LEAST):
                return False
        store_i64(line, DATA, data)
        store_i64(line, START, start)
        store_i64(line, MASK, i64(-1))
    for c in range(columns):
        line = table + (LANES + c) * NODE_BYTES
        kind = load_i64(line, KIND)
        if kind == NULL:
            continue
        child, required = load_i64(children, load_i64(places, 2 * c)), load_i64(places, 2 * c + 1)
        buffers, nulls = load_i64(child, _BUFFERS), load_i64(child, _NULL_COUNT)
        if nulls != 0:
            if required == 1:
                return False
            store_i64(line, VALID, load_i64(buffers, 0))
        store_i64(line, START, load_i64(child, _OFFSET) + before)
        body = load_i64(buffers, 1)
        if kind == VARIABLE:
            store_i64(line, OFFSETS, body)
            store_i64(line, DATA, load_i64(buffers, 2))
        else:
            store_i64(line, DATA, body)
        if body == 0:
            return False
    return True


@inlined
def _table(struct: int, rows: int, form: int, table: int) -> Any:
    """Write a node table, and give the struct back."""
    copy_bytes(table, load_i64(form, _TEMPLATE), load_i64(form, _NODES) * NODE_BYTES)
    done = _described(
        struct, rows, load_i64(form, _COLUMNS), form + 8 * FORM, load_i64(form, _WEIGHT), load_i64(form, _ZERO),
        load_i64(form, _ONE), table,
    )  # fmt: skip
    _call(load_i64(struct, _RELEASE), struct)
    return done


@gil_kernel
def import_columns(struct: int, rows: int, form: int, table: int) -> int:
    """Write the node table of flat columns of a record batch, and give the struct back; 0 where that cannot be done.

    It cannot be done where something is NULL that may not be, or a weight is the least of all.
    """
    return 1 if _table(struct, rows, form, table) else 0


@inlined
def _copy_bits(source: int, start: int, rows: int, target: int) -> None:
    """Bits start … start+rows-1 of a bitmap, from the first bit on."""
    count, first, shift = (rows + 7) >> 3, source + (start >> 3), np.uint8(start & 7)
    if shift == 0:
        copy_bytes(target, first, i64(count))
        return
    last = (start + rows - 1) >> 3  # the last byte that belongs to it
    for k in range(count):
        low = load_u8(first, k) >> shift
        more = (start >> 3) + k + 1 <= last
        high = load_u8(first, k + 1) << (np.uint8(8) - shift) if more else np.uint8(0)
        store_u8(target, k, low | high)


@gil_kernel
def measure_copy(struct: int, rows: int, form: int, scratch: int) -> int:
    """Bytes that a copy of a record batch takes, whose node table is written to working memory; the struct is given
    back. UNFIT where it is not as it should be."""
    if not _table(struct, rows, form, scratch):
        return i64(NOT_IMPORTABLE)
    size = aligned(load_i64(form, _NODES) * NODE_BYTES)
    if load_i64(form, _WEIGHT) >= 0:
        size += aligned(8 * rows)
    for c in range(load_i64(form, _COLUMNS)):
        line = scratch + (LANES + c) * NODE_BYTES
        kind = load_i64(line, KIND)
        if kind == NULL:
            continue
        if load_i64(line, VALID) != 0:
            size += aligned((rows + 7) >> 3)
        if kind == VARIABLE:
            offsets, start = load_i64(line, OFFSETS), load_i64(line, START)
            texts = i64(load_i32(offsets, start + rows)) - i64(load_i32(offsets, start))
            size += aligned(4 * (rows + 1)) + aligned(texts)
        elif kind == BIT:
            size += aligned((rows + 7) >> 3)
        else:
            size += aligned(rows * load_i64(line, WIDTH))
    return size


@gil_kernel
def copy_columns(scratch: int, rows: int, form: int, arena: int) -> None:
    """Copy what `measure_copy` has described into an arena: node table, weights where they are not all one, and
    columns."""
    nodes, state = load_i64(form, _NODES), release_gil(rows > GIL_RELEASE_ROWS)
    copy_bytes(arena, scratch, nodes * NODE_BYTES)
    at = arena + aligned(nodes * NODE_BYTES)
    if load_i64(form, _WEIGHT) >= 0:
        line = arena + WEIGHT * NODE_BYTES
        copy_bytes(at, load_i64(line, DATA) + 8 * load_i64(line, START), 8 * rows)
        store_i64(line, DATA, at)
        store_i64(line, START, i64(0))
        at += aligned(8 * rows)
    for c in range(load_i64(form, _COLUMNS)):
        line = arena + (LANES + c) * NODE_BYTES
        kind, start = load_i64(line, KIND), load_i64(line, START)
        if kind == NULL:
            continue
        store_i64(line, START, i64(0))
        if load_i64(line, VALID) != 0:
            _copy_bits(load_i64(line, VALID), start, rows, at)
            store_i64(line, VALID, at)
            at += aligned((rows + 7) >> 3)
        data = load_i64(line, DATA)
        if kind == VARIABLE:
            offsets = load_i64(line, OFFSETS)
            first = load_i32(offsets, start)
            for r in range(rows + 1):
                store_i32(at, r, load_i32(offsets, start + r) - first)
            size = i64(load_i32(at, rows))
            store_i64(line, OFFSETS, at)
            at += aligned(4 * (rows + 1))
            copy_bytes(at, data + i64(first), size)
        elif kind == BIT:
            size = i64((rows + 7) >> 3)
            _copy_bits(data, start, rows, at)
        else:
            size = rows * load_i64(line, WIDTH)
            copy_bytes(at, data + start * load_i64(line, WIDTH), size)
        store_i64(line, DATA, at)
        at += aligned(size)
    restore_gil(state)


@gil_kernel
def import_sorted(struct: int, rows: int, form: int, told: int, mask: int, scratch: int, arena: int, room: int) -> int:
    """The rows of a record batch in order, in an arena if it has room for them; returns their size
    (`kernels.sort.sort_rows`).

    `scratch` has the node table first, then the plan. Where that cannot be done, UNFIT.
    """
    if not _table(struct, rows, form, scratch):
        return i64(NOT_IMPORTABLE)
    plan, size, done = scratch + load_i64(form, _NODES) * NODE_BYTES, i64(0), True
    state = release_gil(rows > _SORTED)
    try:
        size = plan_rows(told, i64(0), np.uint64(mask), scratch, rows, rows, plan)
        if 0 < size <= room:
            fill_arena(told, rows, plan, arena)
    except Exception:
        done = False
    restore_gil(state)
    if not done:
        raise MemoryError("there is not enough memory to put rows in order")
    return size
