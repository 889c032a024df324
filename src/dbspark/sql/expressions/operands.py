"""Columns and constants as numpy sees them, and the modes in which an operator runs: ANSI raises, TRY gives NULL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.rules import Context, Datum, as_array
from dbspark.sql.plan import Call

EvalMode: TypeAlias = Literal["ANSI", "LEGACY", "TRY"]
OVERFLOW = "[ARITHMETIC_OVERFLOW] {} overflow"
OUT_OF_RANGE = "[NUMERIC_VALUE_OUT_OF_RANGE] a value cannot be represented as Decimal({}, {})"
DIVIDE_BY_ZERO = "[DIVIDE_BY_ZERO] division by zero"
REMAINDER_BY_ZERO = "[REMAINDER_BY_ZERO] remainder by zero"
AWAY = "half_towards_infinity"  # Arrow's name for HALF_UP: away from zero


def mode_of(call: Call, context: Context) -> EvalMode:
    """How a call treats what has no result."""
    given: EvalMode | None = call.option("mode")
    if given is not None:
        return given
    return "ANSI" if call.option("failOnError", call.option("ansiEnabled", context.ansi)) else "LEGACY"


def is_year_month(call: Call, at: int = 0) -> bool:
    """Whether an argument that is an int32 to us is an interval of months to Spark."""
    if call.origin is None:
        return False
    name: str = call.origin.jvm().children().apply(at).dataType().typeName()
    return name.startswith("interval")


def values_of(datum: Datum, fill: Any = 0) -> Any:
    """The values of a column of fixed width, with something in place of NULL; a scalar as an array of one."""
    array = as_array(datum, 1)
    if array.null_count:
        array = array.fill_null(pa.scalar(fill, array.type) if not isinstance(fill, pa.Scalar) else fill)
    return array.to_numpy(zero_copy_only=False)


def valid_of(*data: Datum) -> Any:
    """Which rows are NULL in no column, or None if all are."""
    out = None
    for datum in data:
        array = as_array(datum, 1)
        if array.null_count:
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            out = valid if out is None else out & valid
    return out


def datum_of_numpy(values: Any, valid: Any, dtype: pa.DataType, *data: Datum) -> Datum:
    """A column from numpy values; a scalar where all that it was made of were scalars."""
    rows = max((len(d) for d in data if not isinstance(d, pa.Scalar)), default=None)
    if rows is not None and len(values) != rows:
        values = np.broadcast_to(values, rows)
    if valid is not None and len(valid) != len(values):
        valid = np.broadcast_to(valid, len(values))
    out = pa.array(values, mask=None if valid is None else ~valid)
    if out.type != dtype:
        out = out.cast(dtype, safe=False)
    return out[0] if rows is None and not has_array(data) else out


def has_array(data: Sequence[Datum]) -> bool:
    return any(not isinstance(d, pa.Scalar) for d in data)


def by_numpy(
    dtype: pa.DataType, function: Callable[..., Any], fill: Any = 0, error: str | None = None
) -> Callable[..., Datum]:
    """A function on columns from one on numpy arrays.

    That one gives values, or values and a mask of rows without one, which raise `error` if it is given, else are NULL.
    """

    def run(*data: Datum) -> Datum:
        if has_array(data) and any(isinstance(d, pa.ListArray) for d in data):
            raise TypeError("nested columns have no numpy form")
        valid = valid_of(*data)
        with np.errstate(all="ignore"):
            given = function(*(values_of(d, fill) for d in data))
        values, bad = given if isinstance(given, tuple) else (given, None)
        if bad is not None and np.any(bad if valid is None else bad & valid):
            if error is not None:
                raise EvaluationError(error)
            valid = ~bad if valid is None else valid & ~bad
        return datum_of_numpy(values, valid, dtype, *data)

    return run


def broadcast(valid: Any, rows: int) -> Any:
    return None if valid is None else np.broadcast_to(valid, rows)


def nonzero(valid: Any, zero: Any, mode: EvalMode, error: str = DIVIDE_BY_ZERO) -> Any:
    """Which rows have a result, where some divisors are zero."""
    zero = zero.astype(np.bool_)
    if not np.any(zero if valid is None else zero & valid):
        return valid
    if mode == "ANSI":
        raise EvaluationError(error)
    return ~zero if valid is None else valid & ~zero
