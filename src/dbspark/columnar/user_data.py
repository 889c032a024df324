"""Prepares the data of users for import: pandas DataFrames, and datetimes without a time zone.

A datetime without a zone is in the session's time zone, as everywhere in Spark, wherever it occurs: in a column, a
struct, an array or a map, in rows of any form, in keys. By default pandas stores integers with NULLs as floats, numbers
in 64 bits, and an index that was not asked for. So a pandas column is accepted if every value fits the table's type
exactly (except that floats are rounded to FLOAT, as Spark does); otherwise the error names the column and a value.

All other data are returned as they are.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable, Collection, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.schema import Schema
from dbspark.errors import SchemaError

Zone = Callable[[], str]
"""Gives the session's time zone; called only for data that need it."""


def prepare(data: Any, schema: Schema, zone: Zone, weight: str | None = None) -> Any:
    """Convert pandas DataFrames to Arrow tables, and give datetimes a zone in columns whose type has one."""
    kind = type(data)
    if kind is pa.Table:
        return data
    if kind is list:
        return _in_zone(data, schema, zone)
    pandas = sys.modules.get("pandas")  # where the data is a DataFrame, pandas has been imported
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _from_pandas(pandas, data, schema, zone, weight)
    if pandas is not None and isinstance(data, pandas.Series):
        raise SchemaError("a pandas Series is one column or one row, and which is not said; give a DataFrame")
    if getattr(data, "isStreaming", False) is True:
        raise SchemaError("the rows come from a stream; read it into the table with pipe.ingest(table, stream)")
    if isinstance(data, pa.Array | pa.ChunkedArray) and not pa.types.is_struct(data.type):
        raise SchemaError(f"an array of {data.type} is one column; give a table of all columns, pyarrow.table({{…}})")
    if isinstance(data, set | frozenset):
        raise SchemaError("a set has equal rows only once, so some may be lost already; collect the rows in a list")
    if isinstance(data, Mapping):
        return _weighted_in_zone(data, schema, zone)
    if isinstance(data, Iterator) and not hasattr(data, "__arrow_c_stream__"):
        data = list(data)  # a generator, as createDataFrame takes it; whatever it raises ends the transaction
    rows = isinstance(data, Sequence | KeysView | ValuesView | np.ndarray) and not isinstance(data, str | bytes)
    return _in_zone(data, schema, zone) if rows else data


# ---------------------------------------------------------------------------------------------- datetimes


class _Place:
    """The session's time zone, asked for when the first datetime needs it."""

    __slots__ = ("_ask", "_zone")

    def __init__(self, ask: Zone) -> None:
        self._ask: Zone | None = ask
        self._zone: dt.tzinfo | None = None

    def localise(self, given: Any) -> Any:
        """A datetime without a zone, in this one; anything else as it is."""
        if isinstance(given, np.datetime64):
            given = given.item()
        if not isinstance(given, dt.datetime) or given.tzinfo is not None:
            return given
        if self._ask is not None:
            name, self._ask = self._ask(), None
            self._zone = None if name.upper() in ("UTC", "ETC/UTC", "Z") else _zone_info(name)
        if self._zone is None:  # without a zone it is taken in UTC
            return given
        try:
            return given.replace(tzinfo=self._zone).astimezone(dt.UTC)
        except OverflowError:
            raise SchemaError(
                f"{given} in the time zone {self._zone} is not in the years 1 to 9999 of UTC; give a time with a zone"
            ) from None


_Localise = Callable[[Any, _Place], Any]
"""Puts a value of one type into the session's zone; returns the same object if nothing in it changes."""


@lru_cache(maxsize=512)
def _localiser(dtype: pa.DataType) -> _Localise | None:
    """The function for a type, by its parts; None if it has no times with a zone. Misfits are left to be refused."""
    t = pa.types
    if t.is_timestamp(dtype):
        return (lambda given, place: place.localise(given)) if dtype.tz is not None else None
    if t.is_map(dtype):
        of_key, of_item = _localiser(dtype.key_type) or _unchanged, _localiser(dtype.item_type) or _unchanged

        def of_map(given: Any, place: _Place) -> Any:
            pairs = tuple(given.items()) if isinstance(given, Mapping) else given
            if not isinstance(pairs, tuple | list) or not all(
                isinstance(p, tuple | list) and len(p) == 2 for p in pairs
            ):
                return given
            return _same_or_new(given, pairs, [_of_pair(p, of_key, of_item, place) for p in pairs])

        return None if of_key is of_item is _unchanged else of_map
    if t.is_struct(dtype):
        by_place = [(i, f.name, found) for i, f in enumerate(dtype) if (found := _localiser(f.type)) is not None]
        count = dtype.num_fields

        def of_struct(given: Any, place: _Place) -> Any:
            return _in_columns(given, by_place, count, place)

        return of_struct if by_place else None
    of_element = _localiser(dtype.value_type) if t.is_list(dtype) else None
    if of_element is None:
        return None

    def of_list(given: Any, place: _Place) -> Any:
        values = given
        if isinstance(given, np.ndarray):  # nanoseconds are no datetimes of Python's
            values = (given.astype("datetime64[us]") if given.dtype.kind == "M" else given).tolist()
        if not isinstance(values, tuple | list):
            return given
        return _same_or_new(given, values, [of_element(v, place) for v in values])

    return of_list


def _unchanged(given: Any, _: _Place) -> Any:
    return given


def _of_pair(pair: Any, of_key: _Localise, of_item: _Localise, place: _Place) -> Any:
    key, item = of_key(pair[0], place), of_item(pair[1], place)
    return pair if key is pair[0] and item is pair[1] else (key, item)


def _same_or_new(given: Any, before: Sequence[Any], after: list[Any]) -> Any:
    """`given`, unless one of its parts has changed. What is hashable stays so: rows with weights are keys of a dict."""
    if all(a is b for a, b in zip(after, before, strict=True)):
        return given
    return after if isinstance(given, list) else tuple(after)


_Columns = Sequence[tuple[int, str, _Localise]]
"""Columns of a row, or fields of a struct, with times: their positions, their names and what localises them."""


def _in_columns(given: Any, columns: _Columns, count: int, place: _Place) -> Any:
    """A row or a struct of `count` fields with some of them localised."""
    if isinstance(given, Mapping):
        names = {n.lower(): n for n in given if isinstance(n, str)}
        changed: dict[Any, Any] = {}
        for _, column, localise in columns:
            name = column if column in given else names.get(column.lower())
            if name is not None and (value := localise(given[name], place)) is not given[name]:
                changed[name] = value
        return {**given, **changed} if changed else given
    if not isinstance(given, tuple | list) or len(given) != count:
        return given
    values: list[Any] | None = None
    for at, _, localise in columns:
        value = localise(given[at], place)
        if value is not given[at]:
            values = list(given) if values is None else values
            values[at] = value
    return given if values is None else values if isinstance(given, list) else tuple(values)


@lru_cache(maxsize=512)
def _columns_with_times(schema: Schema) -> _Columns:
    found = ((i, f.name, _localiser(f.type)) for i, f in enumerate(schema.arrow))
    return [(i, name, localise) for i, name, localise in found if localise is not None]


def _in_zone(rows: Collection[Any], schema: Schema, zone: Zone) -> Collection[Any]:
    """Rows with the session's zone in the datetimes that lack one, in columns of TIMESTAMP and inside others."""
    columns = _columns_with_times(schema)
    if not columns:
        return rows
    place, count = _Place(zone), schema.columns
    return [_in_columns(row, columns, count, place) for row in rows]


def _weighted_in_zone(rows: Mapping[Any, Any], schema: Schema, zone: Zone) -> Mapping[Any, Any]:
    """The same for rows with weights; of those that become equal the weights are added."""
    localised = _in_zone(list(rows), schema, zone)
    if all(after is before for after, before in zip(localised, rows, strict=True)):
        return rows
    out: dict[Any, Any] = {}
    for row, weight in zip(localised, rows.values(), strict=True):
        out[row] = out[row] + weight if row in out else weight
    return out


def system_zone() -> str:
    """The time zone that Java takes as the default on this machine."""
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


# ---------------------------------------------------------------------------------------------- pandas


def _from_pandas(pandas: Any, frame: Any, schema: Schema, zone: Zone, weight: str | None) -> pa.Table:
    """A pandas DataFrame as an Arrow table; columns that the schema does not have are kept, to be refused by name."""
    fields = {f.name.lower(): f for f in schema.arrow}
    named = [level for level in frame.index.names if level is not None]
    meant = [level for level in named if str(level).lower() in fields and level not in frame.columns]
    unmeant = [level for level in named if level not in meant and level not in frame.columns]
    if meant or unmeant:  # a named index was made on purpose: it is a column, or refused as one
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
    """An empty table: pandas' types of the columns do not matter, and without columns it has those of the schema."""
    types = {f.name.lower(): f.type for f in schema.arrow}
    names = list(frame.columns) or [*schema.names, *([weight] if weight else [])]
    return pa.Table.from_arrays(
        [pa.array([], pa.int64() if n == weight else types.get(n.lower(), pa.null())) for n in names], names=names
    )


def _column(pandas: Any, series: Any, field: pa.Field | None, zone: Zone) -> pa.Array:
    localise = None if field is None or series.dtype != object else _localiser(field.type)
    if localise is not None:
        place = _Place(zone)
        values = [localise(value, place) for value in series]
        series = pandas.Series(values, name=series.name, dtype=object)
    is_map = field is not None and pa.types.is_map(field.type) and series.dtype == object
    if is_map:  # a dict, which Arrow would take for a struct
        values = [tuple(value.items()) if isinstance(value, Mapping) else value for value in series]
        series = pandas.Series(values, name=series.name, dtype=object)
    try:
        array = pa.array(series, field.type if is_map and field is not None else None, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if field is None:
            return pa.nulls(len(series))
        try:  # pyarrow has inferred no common type; the column's type may still hold all values
            array = pa.array(series, field.type, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise SchemaError(f"column {series.name!r}: expected {field.type}, {error}") from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_dictionary(array.type):  # pandas' type category
        array = array.dictionary_decode()
    return array if field is None or array.type == field.type else _exactly(array, field, zone)


def _exactly(array: pa.Array, field: pa.Field, zone: Zone) -> pa.Array:
    """The values in the type of a field, if each has an exact counterpart there; else the array as it is."""
    t, source, target = pa.types, array.type, field.type
    if t.is_timestamp(source) and source.tz is None and t.is_timestamp(target) and target.tz is not None:
        name = zone()
        plain = _cast_all(array, pa.timestamp("us"), field)
        early, late = (
            pc.assume_timezone(plain, name, ambiguous="earliest", nonexistent=side).cast(target)
            for side in ("earliest", "latest")
        )
        skipped = pc.fill_null(pc.not_equal(early, late), False)
        if pc.any(skipped).as_py():  # in the hour that a clock leaves out; moved by it, as Spark does
            place = _Place(lambda: name)
            moved = [place.localise(value) for value in plain.filter(skipped).to_pylist()]
            late = pc.replace_with_mask(late, skipped, pa.array(moved, target))
        return late
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
    """The first value that cannot be cast, in an array that cannot; found by bisection."""
    while len(array) > 1:
        first = array.slice(0, len(array) // 2)
        try:
            first.cast(target)
            array = array.slice(len(first))
        except pa.ArrowException:
            array = first
    return array[0]


__all__ = ["Zone", "prepare", "system_zone"]
