"""Whether two views are equal: the same rows, as often, in any order.

Systems name and type columns differently, so a view is first brought into one form: columns by position; times as
microseconds; integers as 64 bits; decimals and floats as floats. Then both are sorted by all columns and have to be
the same, floats to within the last digits (sums are added in other orders).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.peers.case import Case, at_tick


def difference(given: pa.Table, expected: pa.Table) -> str:
    """What is wrong with a view; nothing if it is as expected."""
    if given.num_columns != expected.num_columns:
        return f"{given.num_columns} columns instead of {expected.num_columns}"
    if given.num_rows != expected.num_rows:
        return f"{given.num_rows:,} rows instead of {expected.num_rows:,}"
    a, b = _sorted(_plain(given)), _sorted(_plain(expected))
    for i, (x, y) in enumerate(zip(a.columns, b.columns, strict=True)):
        if x.type != y.type:
            return f"column {i} is {x.type} instead of {y.type}"
        if not _same(x, y):
            return f"column {i} ({expected.column_names[i]}) differs"
    return ""


def wrong(views: pa.Table, case: Case) -> str:
    """What is wrong with the views after the ticks that are checked; nothing if they are as expected."""
    expected = case.expected()
    for tick in case.checked:
        found = difference(at_tick(views, tick), at_tick(expected, tick))
        if found:
            return f"a wrong view after tick {tick}: {found}"
    return ""


def _plain(table: pa.Table) -> pa.Table:
    names = [f"c{i}" for i in range(table.num_columns)]
    return pa.Table.from_arrays([_plain_column(c) for c in table.columns], names=names)


def _plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain_column(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    return column


def _sorted(table: pa.Table) -> pa.Table:
    # Floats come last: a digit that differs must not change the order of rows that other columns tell apart.
    order = sorted(table.column_names, key=lambda name: pa.types.is_floating(table[name].type))
    indices = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in order])
    return table.take(indices)


def _same(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(a.type):
        return bool(a.equals(b))
    return bool(np.allclose(a.to_numpy(), b.to_numpy(), rtol=1e-9, atol=1e-9, equal_nan=True))
