"""Import of record batches through the Arrow C data interface: from its `ArrowArray` struct to a node table.

The exported struct has the addresses of all buffers at once; asking pyarrow for each buffer of each column takes ten
times as long. The buffers belong to the record batch, so these kernels release the struct at once, and the caller keeps
the record batch alive for as long as the node table is used.

    ArrowArray = length, null_count, offset, n_buffers, n_children, buffers, children, dictionary, release, private_data

How the children of the struct are the columns of a schema is described by a *column mapping*, words in memory that the
caller makes once for each pair of an Arrow schema and a dbspark schema:

    COLUMNS   number of columns of the schema, all of them flat
    WEIGHT    the child with the weights, -1 where every weight is 1
    ZERO, ONE addresses of an int64 0 and of an int64 1, to which lanes of one value point
    TEMPLATE  address of the node table's template, which has KIND and WIDTH of every column
    NODES     number of its nodes
    then for each column (child, 1 if NULL is not allowed)

A record batch is refused (`NOT_IMPORTABLE`, or 0 from `import_columns`) where a weight or a NOT NULL column has a NULL,
where a weight is -2**63, and where a column has no values buffer; the caller then converts it column by column.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dbspark.kernels.cpython import GIL_RELEASE_ROWS, release_gil, restore_gil
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
"""Bytes of an `ArrowArray` struct."""
# Fields of an `ArrowArray`, counted in words of eight bytes.
_NULL_COUNT: Final = 1
_OFFSET: Final = 2
_BUFFERS: Final = 5
_CHILDREN: Final = 6
_RELEASE: Final = 8
_INT64_MIN: Final = -(1 << 63)
NOT_IMPORTABLE: Final = -(1 << 61)
"""Returned instead of a size where a record batch is refused; no size and no column number is as low."""
_GIL_RELEASE_SORT_ROWS: Final = 1 << 10
"""`import_sorted` releases the GIL for more rows than this: sorting a row takes longer than visiting one."""
# Words of a column mapping.
_COLUMNS: Final = 0
_WEIGHT: Final = 1
_ZERO: Final = 2
_ONE: Final = 3
_TEMPLATE: Final = 4
_NODES: Final = 5
_MAPPING_WORDS: Final = 6
"""Words before those of the columns."""


@intrinsic
def _call(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call the C function `void (*)(void *)` at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [builder.inttoptr(args[1], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@inlined
def _write_lines(
    struct: int, rows: int, columns: int, children_of: int, weight: int, zero: int, one: int, table: int
) -> Any:
    """Write the lines of TIME, WEIGHT and the columns into a node table; False where the record batch is refused."""
    for node in range(TIME, LANES):
        store_i64(table + node * NODE_BYTES, DATA, zero)
        store_i64(table + node * NODE_BYTES, MASK, i64(0))
    line = table + WEIGHT * NODE_BYTES
    children, batch_offset = load_i64(struct, _CHILDREN), load_i64(struct, _OFFSET)
    if weight < 0:
        store_i64(line, DATA, one)
        store_i64(line, MASK, i64(0))
    else:
        child = load_i64(children, weight)
        start, data = load_i64(child, _OFFSET) + batch_offset, load_i64(load_i64(child, _BUFFERS), 1)
        if load_i64(child, _NULL_COUNT) != 0:
            return False
        for r in range(rows):
            if load_i64(data, start + r) == i64(_INT64_MIN):
                return False
        store_i64(line, DATA, data)
        store_i64(line, START, start)
        store_i64(line, MASK, i64(-1))
    for c in range(columns):
        line = table + (LANES + c) * NODE_BYTES
        kind = load_i64(line, KIND)
        if kind == NULL:
            continue
        child, required = load_i64(children, load_i64(children_of, 2 * c)), load_i64(children_of, 2 * c + 1)
        buffers, nulls = load_i64(child, _BUFFERS), load_i64(child, _NULL_COUNT)
        if nulls != 0:
            if required == 1:
                return False
            store_i64(line, VALID, load_i64(buffers, 0))
        store_i64(line, START, load_i64(child, _OFFSET) + batch_offset)
        second = load_i64(buffers, 1)  # the offsets of VARIABLE columns, the values of others
        if kind == VARIABLE:
            store_i64(line, OFFSETS, second)
            store_i64(line, DATA, load_i64(buffers, 2))
        else:
            store_i64(line, DATA, second)
        if second == 0:
            return False
    return True


@inlined
def _write_table(struct: int, rows: int, mapping: int, table: int) -> Any:
    """Write a node table from the template, and release the struct; False where the record batch is refused."""
    copy_bytes(table, load_i64(mapping, _TEMPLATE), load_i64(mapping, _NODES) * NODE_BYTES)
    importable = _write_lines(
        struct, rows, load_i64(mapping, _COLUMNS), mapping + 8 * _MAPPING_WORDS, load_i64(mapping, _WEIGHT),
        load_i64(mapping, _ZERO), load_i64(mapping, _ONE), table,
    )  # fmt: skip
    _call(load_i64(struct, _RELEASE), struct)
    return importable


@gil_kernel
def import_columns(struct: int, rows: int, mapping: int, table: int) -> int:
    """Write the node table of a record batch over its own buffers; 0 where it is refused. Releases the struct."""
    return 1 if _write_table(struct, rows, mapping, table) else 0


@inlined
def _copy_bits(source: int, start: int, rows: int, target: int) -> None:
    """Copy bits start … start+rows-1 of a bitmap to the beginning of another."""
    count, first, shift = (rows + 7) >> 3, source + (start >> 3), np.uint8(start & 7)
    if shift == 0:
        copy_bytes(target, first, i64(count))
        return
    last = (start + rows - 1) >> 3  # the last byte that may be read
    for k in range(count):
        low = load_u8(first, k) >> shift
        has_next = (start >> 3) + k + 1 <= last
        high = load_u8(first, k + 1) << (np.uint8(8) - shift) if has_next else np.uint8(0)
        store_u8(target, k, low | high)


@gil_kernel
def measure_copy(struct: int, rows: int, mapping: int, scratch: int) -> int:
    """Write the node table of a record batch to scratch; returns the bytes of an arena for a copy of its rows, or
    NOT_IMPORTABLE. Releases the struct."""
    if not _write_table(struct, rows, mapping, scratch):
        return i64(NOT_IMPORTABLE)
    size = aligned(load_i64(mapping, _NODES) * NODE_BYTES)
    if load_i64(mapping, _WEIGHT) >= 0:
        size += aligned(8 * rows)
    for c in range(load_i64(mapping, _COLUMNS)):
        line = scratch + (LANES + c) * NODE_BYTES
        kind = load_i64(line, KIND)
        if kind == NULL:
            continue
        if load_i64(line, VALID) != 0:
            size += aligned((rows + 7) >> 3)
        if kind == VARIABLE:
            offsets, start = load_i64(line, OFFSETS), load_i64(line, START)
            size_of_values = i64(load_i32(offsets, start + rows)) - i64(load_i32(offsets, start))
            size += aligned(4 * (rows + 1)) + aligned(size_of_values)
        elif kind == BIT:
            size += aligned((rows + 7) >> 3)
        else:
            size += aligned(rows * load_i64(line, WIDTH))
    return size


@gil_kernel
def copy_columns(scratch: int, rows: int, mapping: int, arena: int) -> None:
    """Copy the rows that `measure_copy` has described into an arena: node table, weights if they are a column,
    columns."""
    nodes, state = load_i64(mapping, _NODES), release_gil(rows > GIL_RELEASE_ROWS)
    copy_bytes(arena, scratch, nodes * NODE_BYTES)
    at = arena + aligned(nodes * NODE_BYTES)
    if load_i64(mapping, _WEIGHT) >= 0:
        line = arena + WEIGHT * NODE_BYTES
        copy_bytes(at, load_i64(line, DATA) + 8 * load_i64(line, START), 8 * rows)
        store_i64(line, DATA, at)
        store_i64(line, START, i64(0))
        at += aligned(8 * rows)
    for c in range(load_i64(mapping, _COLUMNS)):
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
def import_sorted(
    struct: int, rows: int, mapping: int, sort_key: int, mask: int, scratch: int, arena: int, arena_size: int
) -> int:
    """Sort and consolidate the rows of a record batch into an arena, if they need at most `arena_size` bytes.

    Returns what `sort_rows.plan_rows` returns, or NOT_IMPORTABLE. Where the size is larger than the arena, the caller
    allocates another one and calls `sort_rows.fill`. Scratch has the node table first, then the plan. Releases the
    struct.
    """
    if not _write_table(struct, rows, mapping, scratch):
        return i64(NOT_IMPORTABLE)
    plan, size, planned = scratch + load_i64(mapping, _NODES) * NODE_BYTES, i64(0), True
    state = release_gil(rows > _GIL_RELEASE_SORT_ROWS)
    try:  # an exception has to wait for the GIL
        size = plan_rows(sort_key, i64(0), np.uint64(mask), scratch, rows, rows, plan)
        if 0 < size <= arena_size:
            fill_arena(sort_key, rows, plan, arena)
    except Exception:
        planned = False
    restore_gil(state)
    if not planned:
        raise MemoryError("there is not enough memory to put rows in order")
    return size
