"""Rows that somebody hands over, described for kernels from Arrow's C data interface.

A record batch is exported as one struct of pointers; to ask Arrow for each buffer of each column takes ten times as
long. What the struct points to belongs to the record batch, so the struct is given back at once and the record batch
is kept instead.

    ArrowArray = length, null_count, offset, n_buffers, n_children, buffers, children, dictionary, release, private_data
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dbspark.kernels.jit import copy_bytes, i64, inlined, kernel, load_i64, store_i64
from dbspark.kernels.nodes import (
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
)

STRUCT_BYTES: Final = 80
_NULL_COUNT: Final = 1
_OFFSET: Final = 2
_BUFFERS: Final = 5
_CHILDREN: Final = 6
_RELEASE: Final = 8
_LEAST: Final = -(1 << 63)


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


@kernel
def describe(
    struct: int, rows: int, columns: int, places: int, weight: int, zero: int, one: int, template: int, nodes: int,
    table: int,
) -> int:  # fmt: skip
    """Write the node table of flat columns of a record batch, and give the struct back; 0 where that cannot be done.

    places[c] = (child of column c, whether it may not be NULL). `weight` is the child with weights, -1 where all are
    one. It cannot be done where something is NULL that may not be, or a weight is the least of all.
    """
    copy_bytes(table, template, nodes * NODE_BYTES)
    done = _described(struct, rows, columns, places, weight, zero, one, table)
    _call(load_i64(struct, _RELEASE), struct)
    return 1 if done else 0
