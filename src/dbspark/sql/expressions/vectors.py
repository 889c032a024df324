"""Columns as numpy arrays and back: what rules need that compute on numbers rather than through Arrow's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.logic import scattered
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Datum, as_array, calling, constant

Vector: TypeAlias = Any
"""A numpy array."""

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)


def numbers(array: pa.Array) -> Vector:
    """The values of a column of fixed width as signed integers (floats as floats); those of NULLs are arbitrary."""
    if pa.types.is_boolean(array.type):
        return array.fill_null(False).to_numpy(zero_copy_only=False)
    width = array.type.bit_width // 8
    kind = "f" if pa.types.is_floating(array.type) else "i"
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), f"{kind}{min(width, 8)}")
    if width == 16:
        wide = np.frombuffer(data, np.int64, 2 * len(array), 16 * array.offset)
        return wide[::2]  # the low half, which is all of a decimal of up to 18 digits
    return np.frombuffer(data, f"{kind}{width}", len(array), width * array.offset)


def missing(arrays: Sequence[pa.Array]) -> Vector | None:
    """Where one of the values is NULL; None if nowhere."""
    out = None
    for array in arrays:
        if array.null_count:
            here = array.is_null().to_numpy(zero_copy_only=False)
            out = here if out is None else out | here
    return out


def arrow_column(dtype: pa.DataType, values: Vector, gone: Vector | None = None) -> pa.Array:
    """A column from integers or floats, with NULL where `gone` says so."""
    if gone is not None and not gone.any():
        gone = None
    if pa.types.is_boolean(dtype):
        return pa.array(values, dtype, mask=gone)
    plain = pa.array(np.ascontiguousarray(values), mask=gone)
    storage = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}.get(dtype.bit_width // 8)
    if pa.types.is_floating(dtype) or pa.types.is_integer(dtype):
        return plain.cast(dtype, safe=False)
    return plain.cast(storage, safe=False).view(dtype)


def both(one: Vector | None, other: Vector | None) -> Vector | None:
    """Where one mask of NULLs or the other is set; None is a mask of no NULLs."""
    if one is None or other is None:
        return one if other is None else other
    return one | other


def raise_where(bad: Vector, gone: Vector | None, message: str) -> None:
    """Raises if something is bad where there is a value."""
    if gone is not None:
        bad = bad & ~gone
    if np.any(bad):
        raise EvaluationError(message)


def arguments(args: Sequence[Compiled], frame: ColumnFrame) -> list[Datum]:
    """The values of arguments; one that can fail is evaluated only where those before it are not NULL.

    Most functions are NULL as soon as one argument is, and Spark does not look at the arguments behind it.
    """
    if not any(a.can_fail for a in args[1:]):
        return [a.run(frame) for a in args]
    out: list[Datum] = []
    gone: Vector | None = None
    for arg in args:
        if arg.can_fail and gone is not None and gone.any():
            live = pa.array(np.flatnonzero(~gone))
            value: Datum = scattered(arg.array(frame.at(live)), live, frame.rows)
        else:
            value = arg.run(frame)
        out.append(value)
        if isinstance(value, pa.Scalar):
            gone = gone if value.is_valid else np.ones(frame.rows, np.bool_)
        else:
            gone = both(gone, missing([value]))
    return out


def null_intolerant(
    dtype: pa.DataType, function: Callable[..., Datum], args: Sequence[Compiled], can_fail: bool = False
) -> Compiled:
    """A function on columns (arrays or scalars) that is NULL where one of its arguments is."""
    made_ = calling(dtype, function, args, can_fail)
    if not any(a.can_fail for a in args[1:]):
        return made_
    return Compiled(dtype, lambda frame: function(*arguments(args, frame)), True)


def null_intolerant_arrays(
    dtype: pa.DataType, function: Callable[..., pa.Array], args: Sequence[Compiled], can_fail: bool = False
) -> Compiled:
    """As `null_intolerant`, for a function that takes arrays only."""
    fails = can_fail or any(a.can_fail for a in args)

    def run(frame: ColumnFrame) -> Datum:
        return function(*(as_array(value, frame.rows) for value in arguments(args, frame)))

    return Compiled(dtype, run, fails)


def numeric(
    dtype: pa.DataType,
    function: Callable[..., Any],
    args: Sequence[Compiled],
    can_fail: bool = False,
) -> Compiled:
    """A function on numbers, NULL where an argument is.

    The function takes where an argument is NULL (or None) and the values, int64 or float (constants as one number);
    it gives the values, or a pair of them and a mask of further NULLs.
    """
    if any(a.constant is not None and not a.constant.is_valid for a in args):
        return constant(None, dtype)
    fails = can_fail or any(a.can_fail for a in args)

    def widened(values: Vector) -> Vector:
        return values.astype(np.int64) if values.dtype.kind == "i" and values.dtype.itemsize < 8 else values

    fixed = [None if a.constant is None else widened(numbers(pa.repeat(a.constant, 1)))[0] for a in args]

    varying = [a for a in args if a.constant is None]

    def run(frame: ColumnFrame) -> Datum:
        arrays = iter([as_array(value, frame.rows) for value in arguments(varying, frame)])
        columns = [None if f is not None else next(arrays) for f in fixed]
        gone = missing([c for c in columns if c is not None])
        given = [f if c is None else widened(numbers(c)) for c, f in zip(columns, fixed, strict=True)]
        out = function(gone, *given)
        if isinstance(out, tuple):
            out, more = out
            gone = both(gone, more)
        if np.ndim(out) == 0:
            out = np.full(frame.rows, out)
        return arrow_column(dtype, out, gone)

    return Compiled(dtype, run, fails)


def text_of(arg: Compiled) -> str | None:
    """A constant string, if it is one."""
    if arg.constant is None or not arg.constant.is_valid:
        return None
    value = arg.constant.as_py()
    return value if isinstance(value, str) else None


def plus_exact(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """The sum in int64, wrapped, and where it left the range."""
    with np.errstate(over="ignore"):
        out = a + b
    return out, ((a ^ out) & (b ^ out)) < 0


def times_exact(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """The product in int64, wrapped, and where it left the range."""
    a, b = np.asarray(a, np.int64), np.asarray(b, np.int64)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        out = a * b
        safe = np.where(b == 0, 1, b)
        wrong = (out // safe != a) | ((b == -1) & (a == INT64[0]))
        wrong = wrong | ((out % safe) != 0)
    return out, wrong & (b != 0)


def wrapped32(values: Vector) -> Vector:
    """Integers as Java's int keeps them."""
    return np.asarray(values).astype(np.int64).astype(np.int32).astype(np.int64)
