"""Strings as bytes and offsets, for functions that Arrow has no kernel for.

Positions and lengths count code points; comparison and search go by bytes, which find the same in UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.rules import Compiled, constant
from dbspark.sql.expressions.vectors import Vector, missing, null_intolerant_arrays, numbers

STRING = pa.string()
BINARY = pa.binary()
BOOLEAN = pa.bool_()
INT = pa.int32()
STRINGS = pa.list_(pa.field("element", STRING))


def offsets_and_bytes(array: pa.Array) -> tuple[Vector, Vector]:
    """Offsets (one more than rows, into the bytes) and the bytes of a column of strings."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        at = np.zeros(len(array) + 1, np.int64)
    else:
        at = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    return at, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def strings(dtype: pa.DataType, lengths: Vector, data: Vector, gone: Vector | None) -> pa.Array:
    """A column from the bytes of its values one after the other."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > 2**31 - 1:
        raise EvaluationError("strings of a batch take more than 2 GB; use smaller ticks")
    valid = None if gone is None or not gone.any() else pa.array(~gone).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(dtype, len(lengths), buffers)


def cut(array: pa.Array, begin: Vector, end: Vector, gone: Vector | None) -> pa.Array:
    """The bytes from `begin` to `end` of the column's data, for each row."""
    _, data = offsets_and_bytes(array)
    lengths = end - begin
    if gone is not None:
        lengths = np.where(gone, 0, lengths)
    before = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    at = np.repeat(begin - before, lengths) + np.arange(total)
    return strings(array.type, lengths, data[at], gone)


class Characters:
    """Where the characters of a column begin."""

    def __init__(self, array: pa.Array) -> None:
        self.offsets, data = offsets_and_bytes(array)
        self.first, self.last = int(self.offsets[0]), int(self.offsets[-1])
        heads = (data[self.first : self.last] & 0xC0) != 0x80
        self.ascii = bool(heads.all()) or pa.types.is_binary(array.type)
        if not self.ascii:
            self.starts = np.append(np.flatnonzero(heads) + self.first, self.last)
            before = np.zeros(len(heads) + 1, np.int64)
            np.cumsum(heads, out=before[1:])
            self.before = before

    def number(self, position: Vector) -> Vector:
        """The number of the character at a position in bytes."""
        return position - self.first if self.ascii else self.before[position - self.first]

    def position(self, number: Vector) -> Vector:
        """Where the character of a number begins."""
        return number + self.first if self.ascii else self.starts[number]

    def lengths(self) -> Vector:
        at = self.number(self.offsets)
        return at[1:] - at[:-1]


def occurrences(array: pa.Array, text: bytes) -> Vector:
    """Positions in the column's data where the text is, inside of one row; overlapping ones too."""
    offsets, data = offsets_and_bytes(array)
    first, last = int(offsets[0]), int(offsets[-1])
    size = len(text)
    if last - first < size:
        return np.zeros(0, np.int64)
    window = last - first - size + 1
    found = np.flatnonzero(data[first : first + window] == text[0])
    for i in range(1, size):
        found = found[data[found + (first + i)] == text[i]]
    found = found + first
    row = np.searchsorted(offsets, found, side="right") - 1
    return found[found + size <= offsets[row + 1]]


_FEW = 16
"""Up to so many different patterns, one call of a kernel for each of them is worth it."""


def by_pattern(
    dtype: pa.DataType,
    function: Callable[..., pa.Array],
    args: Sequence[Compiled],
    chosen: Sequence[int],
    can_fail: bool = False,
    plain: Callable[..., Any] | None = None,
) -> Compiled:
    """An expression whose `function` takes the `chosen` arguments as Python values: one call for each distinct value.

    The function takes the Python values, then the columns of the other arguments. Where there are many different
    values, `plain` is quicker: the same for one row, of all arguments in order.
    """
    if all(args[i].constant is not None for i in chosen):
        values = [args[i].constant.as_py() for i in chosen]
        if any(v is None for v in values):
            return constant(None, dtype)
        rest = [a for i, a in enumerate(args) if i not in chosen]
        return null_intolerant_arrays(dtype, lambda *arrays: function(*values, *arrays), rest, can_fail)

    def run(*arrays: pa.Array) -> pa.Array:
        gone = missing(arrays)
        keys = [arrays[i] for i in chosen]
        rest = [a for i, a in enumerate(arrays) if i not in chosen]
        codes = np.zeros(len(arrays[0]), np.int64)
        for key in keys:
            encoded = key.dictionary_encode()
            codes = codes * (len(encoded.dictionary) + 1) + numbers(encoded.indices.fill_null(0))
        live = np.arange(len(codes)) if gone is None else np.flatnonzero(~gone)
        order = live[np.argsort(codes[live], kind="stable")]
        bounds = np.flatnonzero(np.diff(codes[order])) + 1
        if plain is not None and len(bounds) >= _FEW:
            rows_ = zip(*(a.to_pylist() for a in arrays), strict=True)
            return pa.array([None if None in row else plain(*row) for row in rows_], dtype)
        parts = [pa.nulls(len(codes) - len(order), dtype)]
        for rows in np.split(order, bounds) if len(order) else []:
            at = pa.array(rows)
            values = [key[int(rows[0])].as_py() for key in keys]
            parts.append(function(*values, *(a.take(at) for a in rest)))
        dead = np.zeros(0, np.int64) if gone is None else np.flatnonzero(gone)
        back = np.empty(len(codes), np.int64)
        back[np.concatenate([dead, order])] = np.arange(len(codes))
        return pa.concat_arrays(parts).take(pa.array(back))

    return null_intolerant_arrays(dtype, run, args, can_fail)


def all_of(args: Sequence[Compiled], *types: pa.DataType) -> bool:
    return all(a.type in types for a in args)
