"""Arrays and maps as their elements one after the other, with the row that each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.logic import total_order
from dbspark.sql.expressions.vectors import (
    Vector,
    missing,
    numbers,
)


def array_of(dtype: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", dtype))


def map_of(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    return pa.map_(pa.field("key", key, False), pa.field("value", value))


def is_array(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_list(dtype))


def is_plain(dtype: pa.DataType) -> bool:
    """Whether Arrow compares, sorts and encodes values of the type as Spark does."""
    t = pa.types
    return not (t.is_floating(dtype) or t.is_nested(dtype) or t.is_null(dtype) or t.is_interval(dtype))


# ---------------------------------------------------------------------- elements


class Elements:
    """The elements of a column of arrays or maps, in the order of rows; NULL rows have none."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self.rows = len(array)
        self.gone = missing([array])
        offsets = numbers(array.offsets).astype(np.int64) if self.rows else np.zeros(1, np.int64)
        lengths = offsets[1:] - offsets[:-1]
        self.starts = offsets[:-1]
        gone = np.zeros(0, np.bool_) if self.gone is None else self.gone
        self.whole = self.gone is None or not lengths[gone].any()
        self.lengths = lengths if self.whole else np.where(gone, 0, lengths)
        self.first, self.last = int(offsets[0]), int(offsets[-1])

    @property
    def offsets(self) -> Vector:
        """The index of each row's first element among all elements, and the number of all."""
        out = np.zeros(self.rows + 1, np.int64)
        np.cumsum(self.lengths, out=out[1:])
        return out

    @property
    def owner(self) -> Vector:
        """The row of each element."""
        return np.repeat(np.arange(self.rows), self.lengths)

    @property
    def place(self) -> Vector:
        """The position of each element in its row, from 0."""
        return np.arange(int(self.lengths.sum())) - np.repeat(self.offsets[:-1], self.lengths)

    def of(self, child: pa.Array) -> pa.Array:
        """The elements, from a child array."""
        if self.whole:
            return child.slice(self.first, self.last - self.first)
        return child.take(pa.array(np.repeat(self.starts, self.lengths) + self.place))

    @property
    def values(self) -> pa.Array:
        """The elements of arrays, the values of maps."""
        array = self.array
        return self.of(array.items if pa.types.is_map(array.type) else array.values)

    @property
    def keys(self) -> pa.Array:
        return self.of(self.array.keys)


def list_array(dtype: pa.DataType, lengths: Vector, values: pa.Array, gone: Vector | None = None) -> pa.Array:
    """A column of arrays from the elements of all rows."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > 2**31 - 1:
        raise EvaluationError("arrays of a batch have more than 2^31 elements; use smaller ticks")
    valid = None if gone is None or not gone.any() else pa.array(~gone).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(dtype, len(lengths), buffers, children=[values])


def map_array(
    dtype: pa.DataType, lengths: Vector, keys: pa.Array, values: pa.Array, gone: Vector | None = None
) -> pa.Array:
    """A column of maps from the entries of all rows."""
    entries = pa.StructArray.from_arrays([keys, values], fields=[dtype.key_field, dtype.item_field])
    return list_array(dtype, lengths, entries, gone)


def first_of(match: Vector, elements: Elements) -> Vector:
    """The number among all elements of the first that matches in each row; -1 if none does."""
    hits = np.flatnonzero(match)
    offsets = elements.offsets
    at = np.searchsorted(hits, offsets[:-1])
    found = np.append(hits, np.int64(2**62))[at]
    return np.where(found < offsets[1:], found, -1)


def any_of(match: Vector, elements: Elements) -> Vector:
    return first_of(match, elements) >= 0


def truth_of(datum: Any) -> Vector:
    """Where a condition holds; NULL counts as false."""
    return pc.fill_null(datum, False).to_numpy(zero_copy_only=False)


def take_or_null(values: pa.Array, at: Vector, gone: Vector | None) -> pa.Array:
    """Values at places, NULL where the place is negative or the row is gone."""
    nothing = at < 0 if gone is None else (at < 0) | gone
    if not len(values):
        return pa.nulls(len(at), values.type)
    return values.take(pa.array(np.where(nothing, 0, at), mask=nothing))


def equal_elements(left: pa.Array, right: pa.Array) -> Vector:
    """Where values are equal as Spark sees it; NULL equals nothing."""
    if pa.types.is_floating(left.type):
        left, right = total_order(left), total_order(right)
    return truth_of(pc.equal(left, right))


def is_searchable(dtype: pa.DataType) -> bool:
    return is_plain(dtype) or bool(pa.types.is_floating(dtype))


def filter_lists(
    dtype: pa.DataType, elements: Elements, values: pa.Array, keep: Vector, gone: Vector | None
) -> pa.Array:
    """Arrays of those elements that stay."""
    lengths = np.bincount(elements.owner[keep], minlength=elements.rows)
    return list_array(dtype, lengths, values.filter(pa.array(keep)), gone)


def concat_lists(dtype: pa.DataType, parts: Sequence[Elements], gone: Vector | None) -> pa.Array:
    """Arrays one after the other, row by row."""
    values = pa.concat_arrays([p.values for p in parts])
    sizes = np.stack([p.lengths for p in parts])
    if gone is not None:
        sizes = np.where(gone, 0, sizes)
    before = np.cumsum([0, *(len(p.values) for p in parts[:-1])])
    begins = np.stack([p.offsets[:-1] + b for p, b in zip(parts, before, strict=True)])
    flat, starts = sizes.T.ravel(), begins.T.ravel()
    at = np.repeat(starts - (np.cumsum(flat) - flat), flat) + np.arange(int(flat.sum()))
    return list_array(dtype, sizes.sum(axis=0), values.take(pa.array(at)), gone)


def check_keys(keys: pa.Array, owner: Vector) -> None:
    """Raise if a key is NULL, or if two keys of one map are equal."""
    if keys.null_count:
        raise EvaluationError("[NULL_MAP_KEY] Cannot use null as map key.")
    codes = numbers(keys.dictionary_encode().indices).astype(np.int64)
    pairs = owner * (int(codes.max()) + 1 if len(codes) else 1) + codes
    if len(np.unique(pairs)) != len(pairs):
        raise EvaluationError("[DUPLICATED_MAP_KEY] Duplicate map key was found, please check the input data.")


def without_nulls(columns: Sequence[pa.Array]) -> pa.Array:
    """Per row, the strings of several columns (of strings, or of arrays of strings) as one array without NULLs."""
    dtype = array_of(pa.string())
    parts = []
    for column in columns:
        if column.type == pa.string():
            there = column.is_valid().to_numpy(zero_copy_only=False)
            parts.append(Elements(list_array(dtype, there.astype(np.int64), column.drop_null())))
        else:
            elements = Elements(column)
            values = elements.values
            keep = values.is_valid().to_numpy(zero_copy_only=False)
            parts.append(Elements(filter_lists(dtype, elements, values, keep, None)))
    return concat_lists(dtype, parts, None)
