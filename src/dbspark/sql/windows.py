"""Window functions of Spark SQL as those of `dbspark.operators.window`.

`compile_window_function` returns the operator's function for a call, or None: then Spark recomputes the partitions that
a tick touches. Arguments are columns already.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from dbspark.operators.window import (
    Frame,
    FrameAverage,
    FrameCount,
    FrameExtreme,
    FrameSum,
    Nth,
    Ranking,
    Shift,
    WindowFunction,
)
from dbspark.sql import plan as p

_RANKINGS: dict[str, Any] = {
    "RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank", "PercentRank": "percent_rank",
    "CumeDist": "cume_dist",
}  # fmt: skip


def compile_window_function(
    call: p.WindowCall, columns: Sequence[int], types: Sequence[pa.DataType]
) -> WindowFunction | None:
    """The function over columns of these types, one for each argument."""
    function = call.function
    if isinstance(function, p.Aggregation):
        return _aggregate(function, _frame(call.frame), columns, types)
    name = function.name
    if name in _RANKINGS:
        return Ranking(_RANKINGS[name])
    args = function.args
    if name == "NTile":
        buckets = args[0]
        return Ranking("ntile", buckets.value) if isinstance(buckets, p.Constant) and buckets.value else None
    if name in ("Lag", "Lead"):
        return _shift(call, name, args, columns)
    if name == "NthValue":
        n = args[1]
        frame = _frame(call.frame)
        if frame is None or not isinstance(n, p.Constant) or n.value is None:
            return None
        return Nth(columns[0], n.value, frame, call.ignore_nulls)
    return None


def _shift(call: p.WindowCall, name: str, args: Sequence[p.Expr], columns: Sequence[int]) -> WindowFunction | None:
    offset, default = args[1], args[2]
    if not isinstance(offset, p.Constant) or not isinstance(default, p.Constant) or offset.value is None:
        return None
    # Spark writes lag as an offset below zero.
    away = int(offset.value)
    away = -away if name == "Lag" and away > 0 else away
    return Shift(columns[0], away, _python(default.value), call.ignore_nulls)


def _python(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _frame(given: p.Frame) -> Frame | None:
    bounds = []
    for bound in (given.lower, given.upper):
        if isinstance(bound, p.Constant):
            if bound.value is None:
                return None
            bounds.append(_python(bound.value))
        elif bound is None or isinstance(bound, int):
            bounds.append(bound)
        else:
            return None
    if any(isinstance(b, timedelta) for b in bounds):  # then the current row is no time away, not no rows
        bounds = [timedelta() if type(b) is int and b == 0 else b for b in bounds]
    return Frame(given.kind, bounds[0], bounds[1])


def _aggregate(
    given: p.Aggregation, frame: Frame | None, columns: Sequence[int], types: Sequence[pa.DataType]
) -> WindowFunction | None:
    if frame is None or given.distinct or given.where is not None:
        return None
    name = given.call.name
    if name == "Count":
        first = given.call.args[0]
        if isinstance(first, p.Constant) and first.value is not None:
            return FrameCount(None, frame)
        return FrameCount(columns[0], frame) if len(columns) == 1 else None
    number = types and (
        pa.types.is_integer(types[0]) or pa.types.is_floating(types[0]) or pa.types.is_decimal(types[0])
    )
    if name == "Sum" and number:
        return FrameSum(columns[0], frame)
    if name == "Average" and number:
        return FrameAverage(columns[0], frame)
    if name in ("Min", "Max"):
        return FrameExtreme(columns[0], name == "Max", frame)
    if name in ("First", "Last"):
        return Nth(columns[0], -1 if name == "Last" else 1, frame, given.call.option("ignoreNulls") is True)
    return None
