"""Expression bytecode: evaluated column by column, for deltas too small to be worth an Arrow call per operation.

Code is a sequence of instructions, each of which computes one *slot*, a value for every row, from earlier slots:

    instruction = opcode, number of words, slot of the result, operands …

A slot has eight bytes for each row, then one byte for each that says whether it is NULL. Values are int64, whatever
their type: integers, dates and times as they are, booleans as 0 and 1, decimals as their unscaled digits where 64 bits
hold them, floats as integers with the same order (NaN above all, -0.0 as 0.0). Strings are only compared with
constants.

Invariant: the result is Spark's, or none. Where a value does not fit these integers or an operation overflows,
`evaluate` returns STATUS_FALL_BACK, and the delta goes through Arrow, which also knows what to raise.

Rows are those at positions `pos` in chunks `tables`, for either side of a join; with `pos` = 0 all rows of the first
chunk.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

from dbspark.kernels.jit import i64, inlined
from dbspark.kernels.memory.intrinsics import (
    add_overflows,
    bits_f32,
    bits_f64,
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    multiply_overflows,
    store_i64,
    store_u8,
)
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
from dbspark.kernels.memory.nodes import is_valid
from dbspark.kernels.sort.row_order import equal_bytes, float_order_word, small_integer
from dbspark.kernels.vm.registers import STATUS_FALL_BACK, STATUS_OK

LOAD: Final = 0
"""slot; side, node of a column"""
CONSTANT: Final = 1
"""slot; value, whether it is NULL"""
EQUAL: Final = 2
"""slot; slots of both operands (likewise for all opcodes up to OR)"""
NULL_SAFE_EQUAL: Final = 3
"""`<=>`: NULL equals NULL and nothing else."""
LESS: Final = 4
LESS_OR_EQUAL: Final = 5
AND: Final = 6
OR: Final = 7
NOT: Final = 8
"""slot, slot of the operand"""
IS_NULL: Final = 9
"""slot, slot of the operand"""
ADD: Final = 10
"""slot; slots of both operands, least and greatest value of the type (likewise for all opcodes up to MULTIPLY)"""
SUBTRACT: Final = 11
MULTIPLY: Final = 12
IN_SET: Final = 13
"""slot; slot of the operand, whether NULL is among the constants, number of constants, constants"""
STRING_IN_SET: Final = 14
"""slot; side, node, whether NULL is among the constants, number of constants, address and length of each"""
WINDOW_BOUND: Final = 15
"""slot; slot of a time, origin, slide, offset (`kernels.aggregate.time_windows`)"""

_MAX_TIME: Final = 1 << 62
"""Times of a larger magnitude are left to Arrow, because adding constants below 2^60 might overflow."""
_SIGN = np.uint64(0x8000000000000000)


def encode_float(x: float) -> int:
    """The int64 that stands for a float in a slot."""
    if x != x:
        x = float("nan")
    bits: int = struct.unpack("<Q", struct.pack("<d", 0.0 if x == 0.0 else x))[0]
    word = ~bits & 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63
    return int(np.uint64(word ^ 1 << 63).astype(np.int64))


def line(opcode: int, *operands: int) -> list[int]:
    """One instruction; the first operand is the slot of its result."""
    return [opcode, 2 + len(operands), *operands]


def slot_count(code: Sequence[int]) -> int:
    """How many slots code needs."""
    at, count = 0, 0
    while at < len(code):
        count = max(count, code[at + 2] + 1)
        at += code[at + 1]
    return count


@inlined
def slot_bytes(rows: int) -> int:
    """Bytes of a slot."""
    return (rows * 9 + 7) & ~i64(7)


@inlined
def _load(tables: int, pos: int, node: int, rows: int, values: int, nulls: int) -> int:
    """Load a column into a slot."""
    at = load_i64(tables, 0) + node * NODE_BYTES
    if pos == 0 and load_i64(at, KIND) == FIXED and load_i64(at, VALID) == 0 and load_i64(at, WIDTH) == 8:
        copy_bytes(values, load_i64(at, DATA) + 8 * load_i64(at, START), 8 * rows)
        for r in range(rows):
            store_u8(nulls, r, np.uint8(0))
        return i64(STATUS_OK)
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
                    return i64(STATUS_FALL_BACK)
                store_i64(values, r, low)
            else:
                return i64(STATUS_FALL_BACK)
        elif kind == BIT:
            store_i64(values, r, i64(is_valid(data, row)))
        elif kind == FLOAT64:
            store_i64(values, r, i64(float_order_word(bits_f64(load_u64(data, row))) ^ _SIGN))
        elif kind == FLOAT32:
            store_i64(values, r, i64(float_order_word(bits_f32(load_u32(data, row))) ^ _SIGN))
        else:
            return i64(STATUS_FALL_BACK)
    return i64(STATUS_OK)


@inlined
def _string_in_set(tables: int, pos: int, node: int, rows: int, f: int, values: int, nulls: int) -> int:
    """Whether strings are among constants; `f` is the address of the operands of STRING_IN_SET from the third on."""
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
            return i64(STATUS_FALL_BACK)
        found = False
        null = valid != 0 and not is_valid(valid, row)
        if not null:
            offsets = load_i64(at, OFFSETS)
            low = i64(load_i32(offsets, row))
            size = i64(load_i32(offsets, row + 1)) - low
            for k in range(count):
                constant = load_i64(f, 2 + 2 * k)
                if size == load_i64(f, 3 + 2 * k) and equal_bytes(load_i64(at, DATA) + low, constant, size):
                    found = True
                    break
            null = not found and with_null != 0
        store_i64(values, r, i64(1) if found else i64(0))
        store_u8(nulls, r, np.uint8(1) if null else np.uint8(0))
    return i64(STATUS_OK)


@inlined
def _compare(opcode: int, rows: int, a: int, b: int, out: int, nulls_a: int, nulls_b: int, nulls: int) -> None:
    for r in range(rows):
        x, y = load_i64(a, r), load_i64(b, r)
        null = load_u8(nulls_a, r) | load_u8(nulls_b, r)
        if opcode == LESS:
            holds = x < y
        elif opcode == LESS_OR_EQUAL:
            holds = x <= y
        else:
            holds = x == y
        if opcode == NULL_SAFE_EQUAL:
            holds = load_u8(nulls_a, r) == load_u8(nulls_b, r) and (null != 0 or holds)
            null = np.uint8(0)
        store_i64(out, r, i64(1) if holds and null == 0 else i64(0))
        store_u8(nulls, r, null)


@inlined
def _and_or(opcode: int, rows: int, a: int, b: int, out: int, nulls_a: int, nulls_b: int, nulls: int) -> None:
    """Three-valued AND and OR: FALSE decides AND, TRUE decides OR, whatever the other operand is."""
    deciding = i64(0) if opcode == AND else i64(1)
    for r in range(rows):
        a_known, b_known = load_u8(nulls_a, r) == 0, load_u8(nulls_b, r) == 0
        x, y = load_i64(a, r), load_i64(b, r)
        decided = (a_known and x == deciding) or (b_known and y == deciding)
        known = decided or (a_known and b_known)
        value = deciding if decided else i64(1) - deciding
        store_i64(out, r, value if known else i64(0))
        store_u8(nulls, r, np.uint8(0) if known else np.uint8(1))


@inlined
def _calculate(opcode: int, rows: int, f: int, a: int, b: int, out: int, nulls_a: int, nulls_b: int, nulls: int) -> int:
    least, greatest = load_i64(f, 0), load_i64(f, 1)
    for r in range(rows):
        x, y = load_i64(a, r), load_i64(b, r)
        null = load_u8(nulls_a, r) | load_u8(nulls_b, r)
        value = i64(0)
        if null == 0:
            if opcode == MULTIPLY:
                if multiply_overflows(x, y):
                    return i64(STATUS_FALL_BACK)
                value = x * y
            else:
                if opcode == SUBTRACT:
                    if y == i64(-9223372036854775808):
                        return i64(STATUS_FALL_BACK)
                    y = -y
                if add_overflows(x, y):
                    return i64(STATUS_FALL_BACK)
                value = x + y
            if value < least or value > greatest:
                return i64(STATUS_FALL_BACK)
        store_i64(out, r, value)
        store_u8(nulls, r, null)
    return i64(STATUS_OK)


@inlined
def _in_set(rows: int, f: int, a: int, nulls_a: int, out: int, nulls: int) -> None:
    with_null, count = load_i64(f, 0), load_i64(f, 1)
    for r in range(rows):
        found, null = False, load_u8(nulls_a, r) != 0
        if not null:
            for k in range(count):
                found |= load_i64(f, 2 + k) == load_i64(a, r)
            null = not found and with_null != 0
        store_i64(out, r, i64(1) if found else i64(0))
        store_u8(nulls, r, np.uint8(1) if null else np.uint8(0))


@inlined
def _window_bound(rows: int, f: int, a: int, nulls_a: int, out: int, nulls: int) -> int:
    origin, slide, offset = load_i64(f, 0), load_i64(f, 1), load_i64(f, 2)
    for r in range(rows):
        time = load_i64(a, r)
        if time >= i64(_MAX_TIME) or time <= -i64(_MAX_TIME):
            return i64(STATUS_FALL_BACK)
        store_i64(out, r, time - (time - origin) % slide + offset)
        store_u8(nulls, r, load_u8(nulls_a, r))
    return i64(STATUS_OK)


@inlined
def evaluate(
    code: int, length: int, tables: int, pos: int, other_tables: int, other_pos: int, rows: int, slots: int
) -> int:
    """Evaluate code over rows into `slots`; returns STATUS_OK or STATUS_FALL_BACK."""
    size, end = slot_bytes(rows), code + 8 * length
    at = code
    while at < end:
        opcode, f = load_i64(at, 0), at + 24
        out = slots + load_i64(at, 2) * size
        nulls = out + 8 * rows
        status = i64(STATUS_OK)
        if opcode == LOAD:
            if load_i64(f, 0) == 0:
                status = _load(tables, pos, load_i64(f, 1), rows, out, nulls)
            else:
                status = _load(other_tables, other_pos, load_i64(f, 1), rows, out, nulls)
        elif opcode == STRING_IN_SET:
            if load_i64(f, 0) == 0:
                status = _string_in_set(tables, pos, load_i64(f, 1), rows, f + 16, out, nulls)
            else:
                status = _string_in_set(other_tables, other_pos, load_i64(f, 1), rows, f + 16, out, nulls)
        elif opcode == CONSTANT:
            for r in range(rows):
                store_i64(out, r, load_i64(f, 0))
                store_u8(nulls, r, np.uint8(load_i64(f, 1)))
        else:
            a = slots + load_i64(f, 0) * size
            nulls_a = a + 8 * rows
            if opcode == NOT:
                for r in range(rows):
                    null = load_u8(nulls_a, r)
                    store_i64(out, r, i64(1) - load_i64(a, r) if null == 0 else i64(0))
                    store_u8(nulls, r, null)
            elif opcode == IS_NULL:
                for r in range(rows):
                    store_i64(out, r, i64(load_u8(nulls_a, r)))
                    store_u8(nulls, r, np.uint8(0))
            elif opcode == IN_SET:
                _in_set(rows, f + 8, a, nulls_a, out, nulls)
            elif opcode == WINDOW_BOUND:
                status = _window_bound(rows, f + 8, a, nulls_a, out, nulls)
            else:
                b = slots + load_i64(f, 1) * size
                nulls_b = b + 8 * rows
                if opcode in (AND, OR):
                    _and_or(opcode, rows, a, b, out, nulls_a, nulls_b, nulls)
                elif opcode >= ADD:
                    status = _calculate(opcode, rows, f + 16, a, b, out, nulls_a, nulls_b, nulls)
                else:
                    _compare(opcode, rows, a, b, out, nulls_a, nulls_b, nulls)
        if status != STATUS_OK:
            return status
        at += 8 * load_i64(at, 1)
    return i64(STATUS_OK)
