"""A total order on rows: Spark's own order, wherever Spark has one. It tells apart rows whose hashes collide.

NULL equals NULL and comes first, NaN equals NaN and is above all numbers, -0.0 equals 0.0. Calendar intervals and maps,
which Spark does not order, have an arbitrary but fixed order here, because equal rows have to become neighbours.

A sort key with order columns compares those first, each in its own direction. The HASH lane then holds *order words* of
the first of them (`order_words`): a <= b implies word(a) <= word(b), so comparing words settles most comparisons.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Int64s, UInt64s, i64, inlined, kernel
from dbspark.kernels.memory.hash import double_word
from dbspark.kernels.memory.intrinsics import (
    bits_f32,
    bits_f64,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
)
from dbspark.kernels.memory.layout import (
    BIT,
    CHILD,
    DATA,
    FIXED,
    FLOAT32,
    FLOAT64,
    HASH,
    KIND,
    LANES,
    LIST,
    NODE_BYTES,
    NULL,
    OFFSETS,
    START,
    STRUCT,
    VALID,
    VARIABLE,
    WIDTH,
)
from dbspark.kernels.memory.nodes import is_valid


@inlined
def three_way(a: Any, b: Any) -> int:
    """-1, 0 or 1 as a is less than, equal to or greater than b."""
    if a < b:
        return -1
    if a > b:
        return 1
    return 0


@inlined
def compare_bytes(a: int, na: int, b: int, nb: int) -> int:
    """Compare na bytes at a with nb bytes at b, as unsigned bytes; a prefix comes first."""
    n = min(na, nb)
    i = 0
    while i + 8 <= n:
        if load_u64(a + i, 0) != load_u64(b + i, 0):
            break
        i += 8
    while i < n:
        x = load_u8(a, i)
        y = load_u8(b, i)
        if x != y:
            return -1 if x < y else 1
        i += 1
    return three_way(na, nb)


@inlined
def equal_bytes(a: int, b: int, n: int) -> Any:
    """Whether the n bytes at two addresses are equal."""
    if n >= 8:
        i = i64(0)
        while i + 8 <= n:
            if load_u64(a + i, 0) != load_u64(b + i, 0):
                return False
            i += 8
        return load_u64(a + n - 8, 0) == load_u64(b + n - 8, 0)
    if n >= 4:
        return load_u32(a, 0) == load_u32(b, 0) and load_u32(a + n - 4, 0) == load_u32(b + n - 4, 0)
    for k in range(n):
        if load_u8(a, k) != load_u8(b, k):
            return False
    return True


@inlined
def small_integer(data: int, i: int, width: int) -> int:
    """Value i of a column of signed integers of 1, 2, 4 or 8 bytes."""
    if width == 8:
        return load_i64(data, i)
    if width == 4:
        return i64(np.int32(load_u32(data, i)))
    if width == 2:
        return i64(np.int16(load_u16(data, i)))
    return i64(np.int8(load_u8(data, i)))


@inlined
def float_order_word(x: float) -> Any:
    """An unsigned word in the order of floats; NaN is above all numbers, -0.0 equals 0.0."""
    word = double_word(x)
    if word >> np.uint64(63):
        return ~word
    return word | np.uint64(0x8000000000000000)


@inlined
def compare_flat(a: int, i: int, b: int, j: int) -> int:
    """Compare value i of node a with value j of node b; neither is NULL, neither is nested."""
    kind = load_i64(a, KIND)
    i += load_i64(a, START)
    j += load_i64(b, START)
    x = load_i64(a, DATA)
    y = load_i64(b, DATA)
    if kind == FIXED:
        width = load_i64(a, WIDTH)
        if width <= 8:
            return three_way(small_integer(x, i, width), small_integer(y, j, width))
        high, other = load_i64(x, 2 * i + 1), load_i64(y, 2 * j + 1)
        if high != other:
            return three_way(high, other)
        return three_way(load_u64(x, 2 * i), load_u64(y, 2 * j))
    if kind == FLOAT64:
        return three_way(float_order_word(bits_f64(load_u64(x, i))), float_order_word(bits_f64(load_u64(y, j))))
    if kind == FLOAT32:
        return three_way(float_order_word(bits_f32(load_u32(x, i))), float_order_word(bits_f32(load_u32(y, j))))
    if kind == BIT:
        return i64(is_valid(x, i)) - i64(is_valid(y, j))
    if kind == VARIABLE:
        p = load_i64(a, OFFSETS)
        q = load_i64(b, OFFSETS)
        pi = i64(load_i32(p, i))
        qj = i64(load_i32(q, j))
        return compare_bytes(x + pi, i64(load_i32(p, i + 1)) - pi, y + qj, i64(load_i32(q, j + 1)) - qj)
    return 0


@inlined
def compare_nulls(a: int, i: int, b: int, j: int) -> int:
    """-1 or 1 where one side is NULL, 0 where neither is, 2 where both are."""
    va = load_i64(a, VALID)
    vb = load_i64(b, VALID)
    if va == 0 and vb == 0:
        return 2 if load_i64(a, KIND) == NULL else 0
    pa = va == 0 or is_valid(va, i + load_i64(a, START))
    pb = vb == 0 or is_valid(vb, j + load_i64(b, START))
    if pa and pb:
        return 0
    if pa:
        return 1
    if pb:
        return -1
    return 2


@inlined
def compare_nested(table_a: int, node_a: int, i: int, table_b: int, node_b: int, j: int, nodes: int) -> int:
    """Compare nested values with an explicit stack of tasks (node a, node b, i, j, count) or (-1, result).

    The tables may be of different schemas: only the two subtrees have to be of one type.
    """
    stack = np.empty((3 * nodes + 8, 5), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3], stack[0, 4] = node_a, node_b, i, j, 1
    top = 1
    while top > 0:
        top -= 1
        node, other, x, y, count = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3], stack[top, 4]
        if node < 0:
            return other
        if count == 0:
            continue
        if count > 1:
            stack[top, 2], stack[top, 3], stack[top, 4] = x + 1, y + 1, count - 1
            top += 1
        a = table_a + node * NODE_BYTES
        b = table_b + other * NODE_BYTES
        order = compare_nulls(a, x, b, y)
        if order == 2:
            continue
        if order != 0:
            return order
        kind = load_i64(a, KIND)
        if kind == LIST:
            p = load_i64(a, OFFSETS)
            q = load_i64(b, OFFSETS)
            x += load_i64(a, START)
            y += load_i64(b, START)
            xb = i64(load_i32(p, x))
            yb = i64(load_i32(q, y))
            xn = i64(load_i32(p, x + 1)) - xb
            yn = i64(load_i32(q, y + 1)) - yb
            if xn != yn:
                stack[top, 0], stack[top, 1] = -1, (-1 if xn < yn else 1)
                top += 1
            stack[top, 0], stack[top, 1] = load_i64(a, CHILD), load_i64(b, CHILD)
            stack[top, 2], stack[top, 3], stack[top, 4] = xb, yb, min(xn, yn)
            top += 1
        elif kind == STRUCT:
            for f in range(load_i64(a, WIDTH) - 1, -1, -1):
                stack[top, 0], stack[top, 1] = load_i64(a, CHILD) + f, load_i64(b, CHILD) + f
                stack[top, 2], stack[top, 3], stack[top, 4] = x, y, 1
                top += 1
        else:
            order = compare_flat(a, x, b, y)
            if order != 0:
                return order
    return 0


@inlined
def compare_cells(table_a: int, node_a: int, i: int, table_b: int, node_b: int, j: int, nodes: int) -> int:
    """Compare one column of two rows; `nodes` is the larger of the two schemas' numbers of nodes."""
    a = table_a + node_a * NODE_BYTES
    b = table_b + node_b * NODE_BYTES
    order = compare_nulls(a, i, b, j)
    if order == 2:
        return 0
    if order == 0:
        if load_i64(a, KIND) in (LIST, STRUCT):
            order = compare_nested(table_a, node_a, i, table_b, node_b, j, nodes)
        else:
            order = compare_flat(a, i, b, j)
    return order


@inlined
def equal_cells(table_a: int, node_a: int, i: int, table_b: int, node_b: int, j: int, nodes: int) -> Any:
    """Whether one column of two rows is equal: `compare_cells(…) == 0`, with short cuts for the most frequent kinds."""
    a = table_a + node_a * NODE_BYTES
    b = table_b + node_b * NODE_BYTES
    kind = load_i64(a, KIND)
    if load_i64(a, VALID) == 0 and load_i64(b, VALID) == 0:
        if kind == FIXED:
            width, x, y = load_i64(a, WIDTH), load_i64(a, DATA), load_i64(b, DATA)
            p, q = i + load_i64(a, START), j + load_i64(b, START)
            if width == 8:
                return load_u64(x, p) == load_u64(y, q)
            if width == 4:
                return load_u32(x, p) == load_u32(y, q)
            if width == 16:
                return load_u64(x, 2 * p) == load_u64(y, 2 * q) and load_u64(x, 2 * p + 1) == load_u64(y, 2 * q + 1)
        elif kind == VARIABLE:
            x, y = load_i64(a, OFFSETS), load_i64(b, OFFSETS)
            p, q = i + load_i64(a, START), j + load_i64(b, START)
            low, other = i64(load_i32(x, p)), i64(load_i32(y, q))
            size = i64(load_i32(x, p + 1)) - low
            if size != i64(load_i32(y, q + 1)) - other:
                return False
            return equal_bytes(load_i64(a, DATA) + low, load_i64(b, DATA) + other, size)
    return compare_cells(table_a, node_a, i, table_b, node_b, j, nodes) == 0


@inlined
def equal_rows(table_a: int, i: int, table_b: int, j: int, columns: int, nodes: int) -> Any:
    """Whether all columns of two rows of one schema are equal."""
    for column in range(LANES, LANES + columns):
        if not equal_cells(table_a, column, i, table_b, column, j, nodes):
            return False
    return True


@inlined
def compare_ordered(table_a: int, i: int, table_b: int, j: int, spec: int, nodes: int) -> int:
    """Compare two rows of one sort key by its order columns only; `spec` is the address of the order spec."""
    for k in range(load_i64(spec, 0)):
        node = load_i64(spec, 3 * k + 1)
        a = table_a + node * NODE_BYTES
        order = compare_nulls(a, i, table_b + node * NODE_BYTES, j)
        if order == 2:
            continue
        flip = load_i64(spec, 3 * k + 3)
        if order == 0:
            order = compare_cells(table_a, node, i, table_b, node, j, nodes)
            flip = load_i64(spec, 3 * k + 2)
        if order != 0:
            return -order if flip != 0 else order
    return 0


@kernel
def order_words(table: int, node: int, rows: int, descending: int, nulls_last: int, out: UInt64s) -> None:
    """out[i] = the order word of column `node`, in the given direction."""
    at = table + node * NODE_BYTES
    kind, width = load_i64(at, KIND), load_i64(at, WIDTH)
    data, valid, offsets, start = load_i64(at, DATA), load_i64(at, VALID), load_i64(at, OFFSETS), load_i64(at, START)
    top = np.uint64(0xFFFFFFFFFFFFFFFF)
    sign = np.uint64(0x8000000000000000)
    for r in range(rows):
        i = start + r
        if kind == NULL or (valid != 0 and not is_valid(valid, i)):
            out[r] = top if nulls_last != 0 else np.uint64(0)
            continue
        word = np.uint64(0)
        if kind == FIXED and width <= 8:
            word = np.uint64(small_integer(data, i, width)) ^ sign
        elif kind == FIXED:
            high, low = load_i64(data, 2 * i + 1), load_u64(data, 2 * i)
            if (high == 0 and low < sign) or (high == -1 and low >= sign):
                word = low ^ sign
            else:
                word = np.uint64(0) if high < 0 else top
        elif kind == FLOAT64:
            word = float_order_word(bits_f64(load_u64(data, i)))
        elif kind == FLOAT32:
            word = float_order_word(bits_f32(load_u32(data, i)))
        elif kind == BIT:
            word = np.uint64(1) if is_valid(data, i) else np.uint64(0)
        elif kind == VARIABLE:
            low = i64(load_i32(offsets, i))
            size = i64(load_i32(offsets, i + 1)) - low
            for b in range(min(size, 8)):
                word |= np.uint64(load_u8(data + low, b)) << np.uint64(56 - 8 * b)
        out[r] = ~word if descending != 0 else word


@inlined
def compare_rows(table_a: int, i: int, table_b: int, j: int, columns: int, nodes: int) -> int:
    """Compare two rows of one sort key: by its order columns, then by all columns."""
    spec = load_i64(table_a + HASH * NODE_BYTES, CHILD)
    if spec != 0:
        order = compare_ordered(table_a, i, table_b, j, spec, nodes)
        if order != 0:
            return order
    for column in range(LANES, LANES + columns):
        order = compare_cells(table_a, column, i, table_b, column, j, nodes)
        if order != 0:
            return order
    return 0


@kernel
def order_maps(table: int, node: int, rows: int, nodes: int, elements: Int64s) -> bool:
    """Fill `elements` with the entries of each map in the order of their keys; returns whether any entry has moved.

    Maps are stored with sorted keys, because Spark compares them without regard to the order of their entries.
    """
    at = table + node * NODE_BYTES
    offsets = load_i64(at, OFFSETS)
    start = load_i64(at, START)
    key = load_i64(table + load_i64(at, CHILD) * NODE_BYTES, CHILD)
    changed = False
    base = i64(load_i32(offsets, start))
    for row in range(rows):
        low = i64(load_i32(offsets, start + row))
        high = i64(load_i32(offsets, start + row + 1))
        for i in range(low, high):
            j = i
            while j > low and compare_cells(table, key, elements[j - 1 - base], table, key, i, nodes) > 0:
                elements[j - base] = elements[j - 1 - base]
                j -= 1
                changed = True
            elements[j - base] = i
    return changed
