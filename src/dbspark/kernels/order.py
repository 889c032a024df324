"""A total order on rows that agrees with Spark's equality. It tells apart rows whose hashes collide.

NULL equals NULL and comes first, NaN equals NaN, -0.0 equals 0.0. Beyond that the order means nothing to a
user: fixed-width values compare as raw words, because all that is needed is that equal rows meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.hash import double_word, is_valid
from dbspark.kernels.jit import (
    bits_f32,
    bits_f64,
    inlined,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
)
from dbspark.kernels.nodes import (
    BIT,
    CHILD,
    DATA,
    FIXED,
    FLOAT32,
    FLOAT64,
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


@inlined
def three_way(a: Any, b: Any) -> int:
    if a < b:
        return -1
    if a > b:
        return 1
    return 0


@inlined
def compare_bytes(a: int, na: int, b: int, nb: int) -> int:
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
def compare_flat(a: int, i: int, b: int, j: int) -> int:
    """Compare value i of node a with value j of node b; neither is NULL, neither is nested."""
    kind = load_i64(a, KIND)
    i += load_i64(a, START)
    j += load_i64(b, START)
    x = load_i64(a, DATA)
    y = load_i64(b, DATA)
    if kind == FIXED:
        width = load_i64(a, WIDTH)
        if width == 8:
            return three_way(load_u64(x, i), load_u64(y, j))
        if width == 4:
            return three_way(load_u32(x, i), load_u32(y, j))
        if width == 2:
            return three_way(load_u16(x, i), load_u16(y, j))
        if width == 1:
            return three_way(load_u8(x, i), load_u8(y, j))
        return compare_bytes(x + i * width, width, y + j * width, width)
    if kind == FLOAT64:
        return three_way(double_word(bits_f64(load_u64(x, i))), double_word(bits_f64(load_u64(y, j))))
    if kind == FLOAT32:
        return three_way(double_word(bits_f32(load_u32(x, i))), double_word(bits_f32(load_u32(y, j))))
    if kind == BIT:
        return np.int64(is_valid(x, i)) - np.int64(is_valid(y, j))
    if kind == VARIABLE:
        p = load_i64(a, OFFSETS)
        q = load_i64(b, OFFSETS)
        pi = np.int64(load_i32(p, i))
        qj = np.int64(load_i32(q, j))
        return compare_bytes(x + pi, np.int64(load_i32(p, i + 1)) - pi, y + qj, np.int64(load_i32(q, j + 1)) - qj)
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
def compare_nested(table_a: int, table_b: int, column: int, i: int, j: int, nodes: int) -> int:
    """Compare nested values with an explicit stack of (node, i, j, count) and (-1, result) tasks."""
    stack = np.empty((3 * nodes + 8, 4), np.int64)
    stack[0, 0] = column
    stack[0, 1] = i
    stack[0, 2] = j
    stack[0, 3] = 1
    top = 1
    while top > 0:
        top -= 1
        node = stack[top, 0]
        x = stack[top, 1]
        y = stack[top, 2]
        count = stack[top, 3]
        if node < 0:
            return x
        if count == 0:
            continue
        if count > 1:
            stack[top, 1] = x + 1
            stack[top, 2] = y + 1
            stack[top, 3] = count - 1
            top += 1
        a = table_a + node * NODE_BYTES
        b = table_b + node * NODE_BYTES
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
            xb = np.int64(load_i32(p, x))
            yb = np.int64(load_i32(q, y))
            xn = np.int64(load_i32(p, x + 1)) - xb
            yn = np.int64(load_i32(q, y + 1)) - yb
            if xn != yn:
                stack[top, 0] = -1
                stack[top, 1] = -1 if xn < yn else 1
                top += 1
            stack[top, 0] = load_i64(a, CHILD)
            stack[top, 1] = xb
            stack[top, 2] = yb
            stack[top, 3] = min(xn, yn)
            top += 1
        elif kind == STRUCT:
            child = load_i64(a, CHILD)
            fields = load_i64(a, WIDTH)
            for f in range(fields - 1, -1, -1):
                stack[top, 0] = child + f
                stack[top, 1] = x
                stack[top, 2] = y
                stack[top, 3] = 1
                top += 1
        else:
            order = compare_flat(a, x, b, y)
            if order != 0:
                return order
    return 0


@inlined
def compare_columns(table_a: int, i: int, table_b: int, j: int, first: int, count: int, nodes: int) -> int:
    """Compare columns first … first+count-1 (node indices) of two rows of chunks with one schema."""
    for column in range(first, first + count):
        a = table_a + column * NODE_BYTES
        b = table_b + column * NODE_BYTES
        order = compare_nulls(a, i, b, j)
        if order == 2:
            continue
        if order == 0:
            kind = load_i64(a, KIND)
            if kind == LIST or kind == STRUCT:
                order = compare_nested(table_a, table_b, column, i, j, nodes)
            else:
                order = compare_flat(a, i, b, j)
        if order != 0:
            return order
    return 0


@inlined
def compare_rows(table_a: int, i: int, table_b: int, j: int, columns: int, nodes: int) -> int:
    """Compare all columns of two rows."""
    return compare_columns(table_a, i, table_b, j, LANES, columns, nodes)


@kernel
def order_maps(table: int, node: int, rows: int, nodes: int, elements: Any) -> bool:
    """Fill `elements` with the entries of each map in key order; returns whether that changes anything.

    Maps are kept with sorted keys, because Spark compares them without regard to the order of their entries.
    """
    at = table + node * NODE_BYTES
    offsets = load_i64(at, OFFSETS)
    start = load_i64(at, START)
    key = load_i64(table + load_i64(at, CHILD) * NODE_BYTES, CHILD)
    changed = False
    base = np.int64(load_i32(offsets, start))
    for row in range(rows):
        low = np.int64(load_i32(offsets, start + row))
        high = np.int64(load_i32(offsets, start + row + 1))
        for i in range(low, high):
            j = i
            while j > low and compare_columns(table, elements[j - 1 - base], table, i, key, 1, nodes) > 0:
                elements[j - base] = elements[j - 1 - base]
                j -= 1
                changed = True
            elements[j - base] = i
    return changed
