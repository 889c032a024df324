"""Data as users have it, before it meets a schema: pandas DataFrames, and datetimes without a time zone.

A datetime without a zone is meant in the session's time zone, as everywhere in Spark. pandas has no integers with NULLs
unless asked, an index nobody meant, and 64 bits for everything: a column is taken if every value fits the table's type
exactly (floats are rounded to FLOAT, as Spark does), and the error names the column and a value otherwise.

All other data pass through as they are.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.schema import Schema
from dbspark.errors import SchemaError

Zone = Callable[[], str]
"""Gives the session's time zone; called only for data that need it."""


def prepare(data: Any, schema: Schema, zone: Zone, weight: str | None = None) -> Any:
    """The data with pandas DataFrames as Arrow tables, and with datetimes that have a zone where the schema has one."""
    kind = type(data)
    if kind is pa.Table:
        return data
    if kind is list:
        return _in_zone(data, schema, zone) if _has_zoned_times(schema) and any(map(_has_naive_times, data)) else data
    pandas = sys.modules.get("pandas")  # whoever has a DataFrame has imported it
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _from_pandas(pandas, data, schema, zone, weight)
    if pandas is not None and isinstance(data, pandas.Series):
        raise SchemaError("a pandas Series is one column or one row, and which is not said; give a DataFrame")
    if getattr(data, "isStreaming", False) is True:
        raise SchemaError("the rows come from a stream; read it into the table with pipe.ingest(table, stream)")
    if isinstance(data, pa.Array | pa.ChunkedArray) and not pa.types.is_struct(data.type):
        raise SchemaError(f"an array of {data.type} is one column; give a table of all columns, pyarrow.table({{…}})")
    return data


# ---------------------------------------------------------------------------------------------- rows


def _in_zone(rows: list[Any], schema: Schema, zone: Zone) -> list[Any]:
    """The rows with the session's zone in datetimes that lack one."""
    name = zone()
    if name.upper() in ("UTC", "ETC/UTC", "Z"):
        return rows
    place = _zone_info(name)
    return [_localized(row, schema, place) for row in rows]


@lru_cache(maxsize=512)
def _has_zoned_times(schema: Schema) -> bool:
    return any(pa.types.is_timestamp(t) and t.tz is not None for t in schema.types)


def _has_naive_times(row: Any) -> bool:
    values = row.values() if isinstance(row, Mapping) else row
    return isinstance(row, tuple | list | Mapping) and any(
        isinstance(v, dt.datetime) and v.tzinfo is None for v in values
    )


def system_zone() -> str:
    """The time zone of this machine, as Java takes it for the default."""
    given = os.environ.get("TZ", "").lstrip(":")
    if not given:
        given = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return given or "UTC"


def _zone_info(name: str) -> dt.tzinfo:
    if name[:1] in "+-":
        sign = -1 if name[0] == "-" else 1
        hours, _, minutes = name[1:].partition(":")
        return dt.timezone(sign * dt.timedelta(hours=int(hours), minutes=int(minutes or 0)))
    return ZoneInfo(name)


def _localized(row: Any, schema: Schema, zone: dt.tzinfo) -> Any:
    """The row with the zone in datetimes that lack one, in the columns of type TIMESTAMP."""

    def value(given: Any, dtype: pa.DataType) -> Any:
        if isinstance(given, dt.datetime) and given.tzinfo is None and pa.types.is_timestamp(dtype) and dtype.tz:
            return given.replace(tzinfo=zone).astimezone(dt.UTC)
        return given

    if isinstance(row, Mapping):
        types = dict(zip((n.lower() for n in schema.names), schema.types, strict=True))
        return {n: value(v, types.get(str(n).lower(), pa.null())) for n, v in row.items()}
    if not isinstance(row, tuple | list) or len(row) != schema.columns:
        return row  # the error about its shape is raised elsewhere
    return tuple(value(v, t) for v, t in zip(row, schema.types, strict=True))


# ---------------------------------------------------------------------------------------------- pandas


def _from_pandas(pandas: Any, frame: Any, schema: Schema, zone: Zone, weight: str | None) -> pa.Table:
    """A pandas DataFrame as an Arrow table; columns that the schema does not have are kept, to be refused by name."""
    fields = {f.name.lower(): f for f in schema.arrow}
    named = [level for level in frame.index.names if level is not None]
    meant = [level for level in named if str(level).lower() in fields and level not in frame.columns]
    unmeant = [level for level in named if level not in meant and level not in frame.columns]
    if meant or unmeant:  # an index with a name was made by somebody: it is a column, or refused as one
        frame = frame.reset_index(level=[*meant, *unmeant])
    wrong = next((c for c in frame.columns if not isinstance(c, str)), None)
    if wrong is not None:
        raise SchemaError(f"column names are text, not {wrong!r} ({type(wrong).__name__}); set df.columns")
    if not len(frame):
        return _empty(frame, schema, weight)
    if frame.columns.has_duplicates:
        twice = sorted(set(frame.columns[frame.columns.duplicated()]))
        raise SchemaError(f"the columns do not fit; given twice: {', '.join(twice)}")
    arrays = [_column(pandas, frame[name], fields.get(name.lower()), zone) for name in frame.columns]
    return pa.Table.from_arrays(arrays, names=list(frame.columns))


def _empty(frame: Any, schema: Schema, weight: str | None) -> pa.Table:
    """No rows, whatever types pandas has for the columns; no columns at all are those of the schema."""
    types = {f.name.lower(): f.type for f in schema.arrow}
    names = list(frame.columns) or [*schema.names, *([weight] if weight else [])]
    return pa.Table.from_arrays(
        [pa.array([], pa.int64() if n == weight else types.get(n.lower(), pa.null())) for n in names], names=names
    )


def _column(pandas: Any, series: Any, field: pa.Field | None, zone: Zone) -> pa.Array:
    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if field is None:
            return pa.nulls(len(series))
        try:  # values of several types: perhaps all of them are of the column's type
            array = pa.array(series, field.type, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise SchemaError(f"column {series.name!r}: expected {field.type}, {error}") from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_dictionary(array.type):  # a category
        array = array.dictionary_decode()
    return array if field is None or array.type == field.type else _exactly(array, field, zone)


def _exactly(array: pa.Array, field: pa.Field, zone: Zone) -> pa.Array:
    """The values in the type of a field, if each has an exact counterpart there; else the array as it is."""
    t, source, target = pa.types, array.type, field.type
    if t.is_timestamp(source) and source.tz is None and t.is_timestamp(target) and target.tz is not None:
        place = zone()
        plain = _cast_all(array, pa.timestamp("us"), field)
        return pc.assume_timezone(plain, place, ambiguous="earliest", nonexistent="latest").cast(target)
    if t.is_timestamp(source) and source.tz is None and t.is_date(target):
        days = array.cast(target, safe=False)
        off = pc.fill_null(pc.not_equal(days.cast(source), array), False)
        if pc.any(off).as_py():
            value = array.filter(off)[0]
            raise SchemaError(f"column {field.name!r}: expected {target}, given {value}; a date has no time of the day")
        return days
    if t.is_floating(source) and (t.is_integer(target) or t.is_float32(target)):
        return _cast_all(array, target, field)
    if t.is_integer(source) and t.is_floating(target):
        return _cast_all(array, target, field)
    if t.is_integer(source) and t.is_decimal(target) and target.scale <= 38 - 20:
        return _cast_all(_cast_all(array, pa.decimal128(20 + target.scale, target.scale), field), target, field)
    return array


def _cast_all(array: pa.Array, target: pa.DataType, field: pa.Field) -> pa.Array:
    try:
        return array.cast(target)
    except pa.ArrowException as error:
        value = _first_unfit(array, target)
        raise SchemaError(
            f"column {field.name!r}: expected {field.type}, given {value} ({array.type}): {error}"
        ) from None


def _first_unfit(array: pa.Array, target: pa.DataType) -> Any:
    """The first value that cannot be cast; found by halving, as the array as a whole cannot be."""
    while len(array) > 1:
        first = array.slice(0, len(array) // 2)
        try:
            first.cast(target)
            array = array.slice(len(first))
        except pa.ArrowException:
            array = first
    return array[0]


__all__ = ["Zone", "prepare", "system_zone"]
