"""Compiled expressions as the functions on columns that operators call: map, condition, filter, expand, generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import EvaluationError
from dbspark.operators.function import Columns
from dbspark.operators.linear import true_rows
from dbspark.sql import generators
from dbspark.sql.expressions.logic import scattered
from dbspark.sql.expressions.rules import ColumnFrame, Compiled


def map_function(compiled: Sequence[Compiled]) -> Callable[[Columns], list[pa.Array]]:
    """The function of a map: the columns of some expressions."""

    def call(columns: Columns) -> list[pa.Array]:
        frame = ColumnFrame(columns, len(columns[0]))
        return [c.array(frame) for c in compiled]

    return call


def conjunction(tests: Sequence[Compiled], frame: ColumnFrame) -> pa.Array:
    """Where all tests hold. A test that can fail is evaluated only on rows for which the tests before it hold."""
    out = tests[0].array(frame)
    for test in tests[1:]:
        if test.can_fail:
            rows = pc.indices_nonzero(pc.fill_null(out, False))
            part = frame if len(rows) == frame.rows else frame.at(rows)
            out = scattered(test.array(part), rows, frame.rows)
        else:
            out = pc.and_kleene(out, test.array(frame))
    return out


def condition_function(*tests: Compiled) -> Callable[[Columns], pa.Array]:
    return lambda columns: conjunction(tests, ColumnFrame(columns, len(columns[0])))


def failing_condition_function(*tests: Compiled) -> Callable[[Columns], pa.Array]:
    """A condition that holds for no row, evaluated for the errors that the tests raise."""

    def call(columns: Columns) -> pa.Array:
        frame = ColumnFrame(columns, len(columns[0]))
        conjunction(tests, frame)
        return pa.repeat(pa.scalar(False), frame.rows)

    return call


def filter_function(
    tests: Sequence[Compiled], compiled: Sequence[Compiled], used: frozenset[int]
) -> Callable[[Columns], Any]:
    def call(columns: Columns) -> tuple[list[pa.Array], Any]:
        frame = ColumnFrame(columns, len(columns[0]))
        mask = true_rows(conjunction(tests, frame), frame.rows)
        if mask.all():
            return [c.array(frame) for c in compiled], None
        rows = np.flatnonzero(mask)
        taken = pa.array(rows)
        frame = ColumnFrame([c.take(taken) if i in used else c for i, c in enumerate(columns)], len(rows))
        return [c.array(frame) for c in compiled], rows

    return call


def expand_function(rows: Sequence[Sequence[Compiled]], types: Sequence[pa.DataType]) -> Callable[[Columns], Any]:
    def call(columns: Columns) -> tuple[list[pa.Array], Any]:
        frame = ColumnFrame(columns, len(columns[0]))
        parts = [[_typed(c.array(frame), t) for c, t in zip(row, types, strict=True)] for row in rows]
        out = [pa.concat_arrays([part[i] for part in parts]) for i in range(len(types))]
        return out, np.tile(np.arange(frame.rows), len(rows))

    return call


def _typed(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    return array if array.type == dtype else array.cast(dtype)


def generate_function(generator: generators.Generator, kept: Sequence[int]) -> Callable[[Columns], Any]:
    def call(columns: Columns) -> tuple[list[pa.Array], Any]:
        made, origin = generator(columns)
        rows = pa.array(origin)
        return [*(columns[i].take(rows) for i in kept), *made], origin

    return call


def only_row(columns: Columns) -> list[pa.Array]:
    if len(columns[0]) and max(columns[0].to_pylist()) > 1:
        raise EvaluationError(
            "[SCALAR_SUBQUERY_TOO_MANY_ROWS] a subquery that is used as a value gives more than one row; "
            "aggregate it, or limit it to one row"
        )
    return [columns[1]]
