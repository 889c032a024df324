"""A stable 64-bit hash of Arrow values. Frozen: batches on disk are sorted by it.

The function, in full (all arithmetic modulo 2^64, `rotl` rotates left, words are little-endian):

    mix(x)      x ^= x >> 32; x *= M; x ^= x >> 32; x *= M; x ^= x >> 32        M = 0xD6E8FEB86659FD93
    fold(h, v)  mix(rotl(h, 25) ^ (v + G))                                      G = 0x9E3779B97F4A7C15
    hash(v1 … vn) = fold(… fold(fold(SEED, v1), v2) …, vn)                      SEED = 0x2545F4914F6CDD1D

where v is the *word* of a value:

    NULL        0xA0761D6478BD642F
    integers, dates, times, timestamps, durations (1, 2, 4, 8 bytes)   the value, sign-extended
    boolean     0 or 1
    float       the bits of the value as a double; every NaN is 0x7FF8000000000000, -0.0 is 0
    wider fixed (decimal128, month-day-nano interval)   v = 0; for each 8-byte word w: v = mix(v ^ w)
    string, binary, other fixed widths of n bytes   s = n * K; s = mix(s ^ w) for each whole word w,
                then in the same way for the rest: the last eight bytes once more if n >= 8, else for n >= 4
                first four | last four << 32, else b[0] | b[n/2] << 8 | b[n-1] << 16 (nothing if n = 0)
                                                                                K = 0x9FB21C651E98DF25
    list, map   s = mix(n + LIST); s = fold(s, word of each element)            LIST = 0xE7037ED1A0B428DB
    struct      s = STRUCT; s = fold(s, word of each field)                     STRUCT = 0x8EBC6AF09C88C6E3

The hash of one 1- to 8-byte column is a bijection of its value, so single-integer keys never collide.
Kernels AND the result with `mask`, which is all ones except in tests that force collisions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Int64s, UInt64, UInt64s, borrowing, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import (
    bits_f32,
    bits_f64,
    f64_bits,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    store_u64,
)
from dbspark.kernels.memory.layout import (
    BIT,
    DATA,
    FIXED,
    FLOAT32,
    FLOAT64,
    KIND,
    LIST,
    NODE_BYTES,
    NULL,
    OFFSETS,
    START,
    VALID,
    VARIABLE,
    WIDTH,
)
from dbspark.kernels.memory.nodes import is_valid

_M = np.uint64(0xD6E8FEB86659FD93)
_G = np.uint64(0x9E3779B97F4A7C15)
_K = np.uint64(0x9FB21C651E98DF25)
SEED = np.uint64(0x2545F4914F6CDD1D)
NULL_WORD = np.uint64(0xA0761D6478BD642F)
LIST_WORD = np.uint64(0xE7037ED1A0B428DB)
STRUCT_WORD = np.uint64(0x8EBC6AF09C88C6E3)
_NAN = np.uint64(0x7FF8000000000000)
_32 = np.uint64(32)
_BLOCK_ROWS = 4096
"""Rows whose hashes (32 KiB) stay in the first-level cache while the columns are folded in one by one."""
_ZERO = np.uint64(0)


@inlined
def mix(x: Any) -> Any:
    """A bijection of 64-bit words that mixes their bits; defined in the preface."""
    x ^= x >> _32
    x *= _M
    x ^= x >> _32
    x *= _M
    x ^= x >> _32
    return x


@inlined
def fold(h: Any, v: Any) -> Any:
    """Extend the hash of a row's first values, h, by the word v of its next value; defined in the preface."""
    return mix(((h << np.uint64(25)) | (h >> np.uint64(39))) ^ (v + _G))


@inlined
def double_word(x: float) -> Any:
    """The word of a float."""
    if x != x:
        return _NAN
    if x == 0.0:
        return _ZERO
    return f64_bits(x)


@inlined
def bytes_word(address: int, n: int) -> Any:
    """The word of `n` bytes."""
    s = np.uint64(n) * _K
    words = n >> 3
    for i in range(words):
        s = mix(s ^ load_u64(address, i))
    if n & 7:
        if n >= 8:
            tail = load_u64(address + n - 8, 0)
        elif n >= 4:
            tail = np.uint64(load_u32(address, 0)) | (np.uint64(load_u32(address + n - 4, 0)) << _32)
        else:
            tail = (
                np.uint64(load_u8(address, 0))
                | (np.uint64(load_u8(address, n >> 1)) << np.uint64(8))
                | (np.uint64(load_u8(address, n - 1)) << np.uint64(16))
            )
        s = mix(s ^ tail)
    return s


@inlined
def fixed_word(data: int, width: int, row: int) -> Any:
    """The word of one value of a FIXED column."""
    if width == 8:
        return load_u64(data, row)
    if width == 4:
        return np.uint64(i64(load_i32(data, row)))
    if width == 2:
        return np.uint64(i64(load_i16(data, row)))
    if width == 1:
        return np.uint64(i64(load_i8(data, row)))
    if width & 7 == 0:
        v = _ZERO
        words = width >> 3
        for i in range(words):
            v = mix(v ^ load_u64(data + row * width, i))
        return v
    return bytes_word(data + row * width, width)


@kernel
def node_words(node: int, rows: int, out: int, inner: int) -> None:
    """Write the word of each of the first `rows` values of a node to `out`.

    For a list, `inner` is the address of the words of its elements, indexed by the offsets as they are. For a struct,
    the caller has folded the words of its fields into `out` before, and only the words of NULLs are written here.
    """
    kind = load_i64(node, KIND)
    width = load_i64(node, WIDTH)
    data = load_i64(node, DATA)
    valid = load_i64(node, VALID)
    offsets = load_i64(node, OFFSETS)
    start = load_i64(node, START)
    if kind == FIXED:
        for row in range(rows):
            store_u64(out, row, fixed_word(data, width, start + row))
    elif kind == FLOAT64:
        for row in range(rows):
            store_u64(out, row, double_word(bits_f64(load_u64(data, start + row))))
    elif kind == FLOAT32:
        for row in range(rows):
            store_u64(out, row, double_word(bits_f32(load_u32(data, start + row))))
    elif kind == BIT:
        for row in range(rows):
            store_u64(out, row, np.uint64(is_valid(data, start + row)))
    elif kind == VARIABLE:
        for row in range(rows):
            begin = i64(load_i32(offsets, start + row))
            store_u64(out, row, bytes_word(data + begin, i64(load_i32(offsets, start + row + 1)) - begin))
    elif kind == LIST:
        for row in range(rows):
            begin = i64(load_i32(offsets, start + row))
            end = i64(load_i32(offsets, start + row + 1))
            s = mix(np.uint64(end - begin) + LIST_WORD)
            for i in range(begin, end):
                s = fold(s, load_u64(inner, i))
            store_u64(out, row, s)
    elif kind == NULL:
        for row in range(rows):
            store_u64(out, row, NULL_WORD)
    if valid != 0:
        for row in range(rows):
            if not is_valid(valid, start + row):
                store_u64(out, row, NULL_WORD)


@kernel
def fill_words(out: int, rows: int, word: UInt64) -> None:
    """out[i] = word."""
    for row in range(rows):
        store_u64(out, row, word)


@kernel
def fold_words(out: int, words: int, rows: int) -> None:
    """out[i] = fold(out[i], words[i])."""
    for row in range(rows):
        store_u64(out, row, fold(load_u64(out, row), load_u64(words, row)))


@kernel
def mask_words(out: int, rows: int, mask: UInt64) -> None:
    """out[i] &= mask."""
    for row in range(rows):
        store_u64(out, row, load_u64(out, row) & mask)


@borrowing
def fold_column(node: int, begin: int, end: int, out: Any) -> None:
    """Fold one flat column into out[begin:end]. The words of nested columns are folded by the caller (`fold_words`)."""
    kind = load_i64(node, KIND)
    width = load_i64(node, WIDTH)
    data = load_i64(node, DATA)
    valid = load_i64(node, VALID)
    offsets = load_i64(node, OFFSETS)
    start = load_i64(node, START)
    if valid != 0:
        for row in range(begin, end):
            at = start + row
            if is_valid(valid, at):
                if kind == FIXED:
                    v = fixed_word(data, width, at)
                elif kind == FLOAT64:
                    v = double_word(bits_f64(load_u64(data, at)))
                elif kind == FLOAT32:
                    v = double_word(bits_f32(load_u32(data, at)))
                elif kind == BIT:
                    v = np.uint64(is_valid(data, at))
                elif kind == VARIABLE:
                    low = i64(load_i32(offsets, at))
                    v = bytes_word(data + low, i64(load_i32(offsets, at + 1)) - low)
                else:
                    v = NULL_WORD
            else:
                v = NULL_WORD
            out[row] = fold(out[row], v)
    elif kind == FIXED:
        if width == 8:
            for row in range(begin, end):
                out[row] = fold(out[row], load_u64(data, start + row))
        else:
            for row in range(begin, end):
                out[row] = fold(out[row], fixed_word(data, width, start + row))
    elif kind == FLOAT64:
        for row in range(begin, end):
            out[row] = fold(out[row], double_word(bits_f64(load_u64(data, start + row))))
    elif kind == FLOAT32:
        for row in range(begin, end):
            out[row] = fold(out[row], double_word(bits_f32(load_u32(data, start + row))))
    elif kind == BIT:
        for row in range(begin, end):
            out[row] = fold(out[row], np.uint64(is_valid(data, start + row)))
    elif kind == VARIABLE:
        for row in range(begin, end):
            low = i64(load_i32(offsets, start + row))
            out[row] = fold(out[row], bytes_word(data + low, i64(load_i32(offsets, start + row + 1)) - low))
    else:
        for row in range(begin, end):
            out[row] = fold(out[row], NULL_WORD)


@borrowing
def fold_columns(table: int, columns: Any, rows: int, mask: Any, out: Any) -> None:
    """out[i] = hash of the given flat columns (node indices) of row i; NULL counts as a value."""
    for begin in range(0, rows, _BLOCK_ROWS):
        end = min(begin + _BLOCK_ROWS, rows)
        for row in range(begin, end):
            out[row] = SEED
        for c in range(columns.shape[0]):
            fold_column(table + columns[c] * NODE_BYTES, begin, end, out)
        if mask != ~_ZERO:
            for row in range(begin, end):
                out[row] &= mask


@kernel
def hash_columns(table: int, columns: Int64s, rows: int, mask: UInt64, out: UInt64s) -> None:
    """out[i] = hash of the given flat columns (node indices) of row i; NULL counts as a value."""
    fold_columns(table, columns, rows, mask, out)


@kernel
def last_offset(offsets: int, row: int) -> int:
    """One of the int32 offsets at an address."""
    return i64(load_i32(offsets, row))
