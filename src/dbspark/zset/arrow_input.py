"""Tables and weights from Arrow data: pyarrow, Spark DataFrames, the Arrow PyCapsule interface, dicts of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from dbspark.columnar.frames import arrow_of
from dbspark.columnar.memory import Int64s
from dbspark.errors import SchemaError, WeightOverflowError

_INT64: Final = pa.int64()


def as_table(data: Any) -> pa.Table:
    """A pyarrow table from anything that speaks Arrow."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "toArrow"):
        return arrow_of(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    if isinstance(data, Mapping):
        try:
            return pa.table(dict(data))
        except pa.ArrowException as error:
            raise SchemaError(f"the columns do not make a table: {error}") from None
    raise SchemaError(f"expected Arrow data (a table, a record batch, a DataFrame), not {type(data).__name__}")


def split_weight(table: pa.Table, weight: str | None) -> tuple[pa.Table, Int64s | None]:
    """A table without its column of weights, and that column; no weights if no column is named."""
    if weight is None:
        return table, None
    at = table.schema.get_field_index(weight)
    if at < 0:
        raise SchemaError(f"no column {weight!r} for the weights; the columns are {', '.join(table.column_names)}")
    column = table.column(at)
    if column.type == _INT64 and column.num_chunks == 1 and not column.null_count:
        return table.remove_column(at), column.chunk(0).to_numpy()
    if not pa.types.is_integer(column.type) or column.null_count:
        raise SchemaError(f"the weights in column {weight!r} must be integers without NULLs, not {column.type}")
    try:
        exact = column if pa.types.is_int64(column.type) else column.cast(pa.int64())
        weights = (exact.chunk(0) if exact.num_chunks == 1 else exact.combine_chunks()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        raise WeightOverflowError(f"a weight in column {weight!r} is beyond int64; nothing was applied") from None
    return table.remove_column(at), weights
