"""Expressions over columns, for deltas too small to be worth a call for each part of one.

An expression is code: a line of numbers for each of its parts, in the order in which they are evaluated, each part for
all rows before the next. Values are int64, whatever they stand for, with a byte beside each that says whether it is
NULL: integers, dates and times are themselves, booleans 0 and 1, floats a number that rises with them (NaN above all,
-0.0 as 0.0), decimals their digits where 64 bits hold them. Texts are only compared with constants.

What is said here is what Spark says, or nothing: where a value is beyond what these numbers hold, or an operation
overflows, `evaluate` gives up (`ODD`), and whoever asked takes the way through Arrow, which also knows what to raise.

    line = part, length of the line, slot of the result, operands …

Rows are those at positions `pos` of chunks `tables`, of either side of a join; without positions they are all rows of
the first chunk. A slot has eight bytes for each row and then one for each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

from dbspark.kernels.jit import (
    add_overflows,
    bits_f32,
    bits_f64,
    copy_bytes,
    i64,
    inlined,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    multiply_overflows,
    store_i64,
    store_u8,
)
from dbspark.kernels.memory.hash import is_valid
from dbspark.kernels.memory.layout import (
    BIT,
    DATA,
    FIXED,
    FLOAT32,
    FLOAT64,
    KIND,
    NODE_BYTES,
    NULL,
    OFFSETS,
    ROW_BITS,
    ROW_MASK,
    START,
    VALID,
    VARIABLE,
    WIDTH,
)
from dbspark.kernels.sort.row_order import equal_bytes, rising, small_integer
from dbspark.kernels.vm.registers import DONE, ODD

LOAD: Final = 0
"""slot, side, node"""
CONSTANT: Final = 1
"""slot, value, whether it is NULL"""
EQUAL: Final = 2
"""slot, slots of both operands; so are the following"""
SAME: Final = 3
"""EQUAL where NULL equals NULL and nothing else"""
LESS: Final = 4
AT_MOST: Final = 5
AND: Final = 6
OR: Final = 7
NOT: Final = 8
"""slot, slot of the operand"""
IS_NULL: Final = 9
"""slot, slot of the operand"""
ADD: Final = 10
"""slot, slots of both operands, least and greatest value of the type; so are the following"""
SUBTRACT: Final = 11
MULTIPLY: Final = 12
AMONG: Final = 13
"""slot, slot of the operand, whether NULL is among the constants, how many there are, and they"""
TEXT_AMONG: Final = 14
"""slot, side, node, whether NULL is among the constants, how many there are, address and length of each"""
BOUNDARY: Final = 15
"""slot, slot of a time, origin, slide, more: see `kernels.aggregate.time_windows`"""

_FAR: Final = 1 << 62
_SIGN = np.uint64(0x8000000000000000)


def sortable(x: float) -> int:
    """What a float is in a slot."""
    if x != x:
        x = float("nan")
    bits: int = struct.unpack("<Q", struct.pack("<d", 0.0 if x == 0.0 else x))[0]
    word = ~bits & 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63
    return int(np.uint64(word ^ 1 << 63).astype(np.int64))


def line(part: int, *operands: int) -> list[int]:
    return [part, 2 + len(operands), *operands]


def slots_of(code: Sequence[int]) -> int:
    """How many slots code writes to."""
    at, most = 0, 0
    while at < len(code):
        most = max(most, code[at + 2] + 1)
        at += code[at + 1]
    return most


@inlined
def slot_bytes(rows: int) -> int:
    return (rows * 9 + 7) & ~i64(7)


@inlined
def _load(tables: int, pos: int, node: int, rows: int, values: int, nulls: int) -> int:
    at = load_i64(tables, 0) + node * NODE_BYTES
    if pos == 0 and load_i64(at, KIND) == FIXED and load_i64(at, VALID) == 0 and load_i64(at, WIDTH) == 8:
        copy_bytes(values, load_i64(at, DATA) + 8 * load_i64(at, START), 8 * rows)
        for r in range(rows):
            store_u8(nulls, r, np.uint8(0))
        return i64(DONE)
    for r in range(rows):
        row = i64(r)
        if pos != 0:
            p = load_i64(pos, r)
            at = load_i64(tables, p >> ROW_BITS) + node * NODE_BYTES
            row = p & ROW_MASK
        row += load_i64(at, START)
        kind, data, valid = load_i64(at, KIND), load_i64(at, DATA), load_i64(at, VALID)
        store_i64(values, r, i64(0))
        if kind == NULL or (valid != 0 and not is_valid(valid, row)):
            store_u8(nulls, r, np.uint8(1))
            continue
        store_u8(nulls, r, np.uint8(0))
        if kind == FIXED:
            width = load_i64(at, WIDTH)
            if width <= 8:
                store_i64(values, r, small_integer(data, row, width))
            elif width == 16:
                low = load_i64(data, 2 * row)
                if load_i64(data, 2 * row + 1) != low >> 63:
                    return i64(ODD)
                store_i64(values, r, low)
            else:
                return i64(ODD)
        elif kind == BIT:
            store_i64(values, r, i64(is_valid(data, row)))
        elif kind == FLOAT64:
            store_i64(values, r, i64(rising(bits_f64(load_u64(data, row))) ^ _SIGN))
        elif kind == FLOAT32:
            store_i64(values, r, i64(rising(bits_f32(load_u32(data, row))) ^ _SIGN))
        else:
            return i64(ODD)
    return i64(DONE)


@inlined
def _load_among(tables: int, pos: int, node: int, rows: int, f: int, values: int, nulls: int) -> int:
    """Whether texts are among constants; f: whether NULL is, how many there are, address and length of each."""
    with_null, count = load_i64(f, 0), load_i64(f, 1)
    at = load_i64(tables, 0) + node * NODE_BYTES
    for r in range(rows):
        row = i64(r)
        if pos != 0:
            p = load_i64(pos, r)
            at = load_i64(tables, p >> ROW_BITS) + node * NODE_BYTES
            row = p & ROW_MASK
        row += load_i64(at, START)
        valid = load_i64(at, VALID)
        if load_i64(at, KIND) != VARIABLE:
            return i64(ODD)
        found = False
        null = valid != 0 and not is_valid(valid, row)
        if not null:
            offsets = load_i64(at, OFFSETS)
            low = i64(load_i32(offsets, row))
            size = i64(load_i32(offsets, row + 1)) - low
            for k in range(count):
                text = load_i64(f, 2 + 2 * k)
                if size == load_i64(f, 3 + 2 * k) and equal_bytes(load_i64(at, DATA) + low, text, size):
                    found = True
                    break
            null = not found and with_null != 0
        store_i64(values, r, i64(1) if found else i64(0))
        store_u8(nulls, r, np.uint8(1) if null else np.uint8(0))
    return i64(DONE)


@inlined
def _compare(part: int, rows: int, a: int, b: int, out: int, of_a: int, of_b: int, nulls: int) -> None:
    for r in range(rows):
        x, y = load_i64(a, r), load_i64(b, r)
        null = load_u8(of_a, r) | load_u8(of_b, r)
        if part == LESS:
            holds = x < y
        elif part == AT_MOST:
            holds = x <= y
        else:
            holds = x == y
        if part == SAME:
            holds = load_u8(of_a, r) == load_u8(of_b, r) and (null != 0 or holds)
            null = np.uint8(0)
        store_i64(out, r, i64(1) if holds and null == 0 else i64(0))
        store_u8(nulls, r, null)


@inlined
def _both(part: int, rows: int, a: int, b: int, out: int, of_a: int, of_b: int, nulls: int) -> None:
    """AND and OR of three values: what decides decides, whatever the other is. A NULL has the value 0."""
    deciding = i64(0) if part == AND else i64(1)
    for r in range(rows):
        p, q = load_u8(of_a, r) == 0, load_u8(of_b, r) == 0
        x, y = load_i64(a, r), load_i64(b, r)
        decided = (p and x == deciding) or (q and y == deciding)
        known = decided or (p and q)
        value = deciding if decided else i64(1) - deciding
        store_i64(out, r, value if known else i64(0))
        store_u8(nulls, r, np.uint8(0) if known else np.uint8(1))


@inlined
def _calculate(part: int, rows: int, f: int, a: int, b: int, out: int, of_a: int, of_b: int, nulls: int) -> int:
    least, greatest = load_i64(f, 0), load_i64(f, 1)
    for r in range(rows):
        x, y = load_i64(a, r), load_i64(b, r)
        null = load_u8(of_a, r) | load_u8(of_b, r)
        value = i64(0)
        if null == 0:
            if part == MULTIPLY:
                if multiply_overflows(x, y):
                    return i64(ODD)
                value = x * y
            else:
                if part == SUBTRACT:
                    if y == i64(-9223372036854775808):
                        return i64(ODD)
                    y = -y
                if add_overflows(x, y):
                    return i64(ODD)
                value = x + y
            if value < least or value > greatest:
                return i64(ODD)
        store_i64(out, r, value)
        store_u8(nulls, r, null)
    return i64(DONE)


@inlined
def _among(rows: int, f: int, a: int, of_a: int, out: int, nulls: int) -> None:
    with_null, count = load_i64(f, 0), load_i64(f, 1)
    for r in range(rows):
        found, null = False, load_u8(of_a, r) != 0
        if not null:
            for k in range(count):
                found |= load_i64(f, 2 + k) == load_i64(a, r)
            null = not found and with_null != 0
        store_i64(out, r, i64(1) if found else i64(0))
        store_u8(nulls, r, np.uint8(1) if null else np.uint8(0))


@inlined
def _boundary(rows: int, f: int, a: int, of_a: int, out: int, nulls: int) -> int:
    origin, slide, more = load_i64(f, 0), load_i64(f, 1), load_i64(f, 2)
    for r in range(rows):
        time = load_i64(a, r)
        if time >= i64(_FAR) or time <= -i64(_FAR):
            return i64(ODD)
        store_i64(out, r, time - (time - origin) % slide + more)
        store_u8(nulls, r, load_u8(of_a, r))
    return i64(DONE)


@inlined
def evaluate(
    code: int, length: int, tables: int, pos: int, other_tables: int, other_pos: int, rows: int, slots: int
) -> int:
    """Run code over rows; what is asked for is in its slots then. Returns DONE or ODD."""
    size, end = slot_bytes(rows), code + 8 * length
    at = code
    while at < end:
        part, f = load_i64(at, 0), at + 24
        out = slots + load_i64(at, 2) * size
        nulls = out + 8 * rows
        status = i64(DONE)
        if part == LOAD:
            if load_i64(f, 0) == 0:
                status = _load(tables, pos, load_i64(f, 1), rows, out, nulls)
            else:
                status = _load(other_tables, other_pos, load_i64(f, 1), rows, out, nulls)
        elif part == TEXT_AMONG:
            if load_i64(f, 0) == 0:
                status = _load_among(tables, pos, load_i64(f, 1), rows, f + 16, out, nulls)
            else:
                status = _load_among(other_tables, other_pos, load_i64(f, 1), rows, f + 16, out, nulls)
        elif part == CONSTANT:
            for r in range(rows):
                store_i64(out, r, load_i64(f, 0))
                store_u8(nulls, r, np.uint8(load_i64(f, 1)))
        else:
            a = slots + load_i64(f, 0) * size
            of_a = a + 8 * rows
            if part == NOT:
                for r in range(rows):
                    null = load_u8(of_a, r)
                    store_i64(out, r, i64(1) - load_i64(a, r) if null == 0 else i64(0))
                    store_u8(nulls, r, null)
            elif part == IS_NULL:
                for r in range(rows):
                    store_i64(out, r, i64(load_u8(of_a, r)))
                    store_u8(nulls, r, np.uint8(0))
            elif part == AMONG:
                _among(rows, f + 8, a, of_a, out, nulls)
            elif part == BOUNDARY:
                status = _boundary(rows, f + 8, a, of_a, out, nulls)
            else:
                b = slots + load_i64(f, 1) * size
                of_b = b + 8 * rows
                if part in (AND, OR):
                    _both(part, rows, a, b, out, of_a, of_b, nulls)
                elif part >= ADD:
                    status = _calculate(part, rows, f + 16, a, b, out, of_a, of_b, nulls)
                else:
                    _compare(part, rows, a, b, out, of_a, of_b, nulls)
        if status != DONE:
            return status
        at += 8 * load_i64(at, 1)
    return i64(DONE)
