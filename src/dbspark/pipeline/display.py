"""Rows as people read them: in a terminal as Spark's `show` prints them, and as HTML in a notebook.

Values are written as Spark writes them, except that times are in UTC and say so, and intervals are written as Python
does. Everything that comes from data is escaped in HTML, and cannot break a line in a terminal.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dbspark.notebook_html import html_rows, titled
from dbspark.sql.explain import Size, in_bytes

DEFAULT_WIDTH: Final = 20
"""Characters of a value that are shown, as by Spark's `show`."""

_CONTROLS: Final = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\v": "\\v", "\x1b": "\\e"})


def text_table(rows: pa.Table, width: int, more: bool) -> str:
    """A frame of text around some rows; values longer than `width` are cut unless it is 0. `more`: say that it is
    not all."""
    table = [[_cut(cell, width) for cell in line] for line in ([escaped(n) for n in rows.column_names], *cells(rows))]
    columns = [max(3, *(_screen_width(line[i]) for line in table)) for i in range(rows.num_columns)]
    rule = f"+{'+'.join('-' * size for size in columns)}+"
    lines = [f"|{'|'.join(_padded(cell, columns[i], width) for i, cell in enumerate(line))}|" for line in table]
    text = [rule, lines[0], rule, *lines[1:], rule]
    if more:
        text.append(f"only showing top {rows.num_rows} row{'' if rows.num_rows == 1 else 's'}")
    else:
        text.append("")
    return "\n".join(text)


def html_table(title: str, remark: str, rows: pa.Table) -> str:
    """Some rows as HTML, under a title."""
    right = [pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in rows.schema.types]
    head = [(name, str(field.type)) for name, field in zip(rows.column_names, rows.schema, strict=True)]
    return titled(title, remark, html_rows(head, cells(rows), right))


def pipeline_html(pipe: object, handles: Mapping[str, Any], sizes: Mapping[str, Size]) -> str:
    """The tables and views of a pipeline, with their columns and the size of their history."""
    lines = []
    for name, handle in handles.items():
        kind = type(handle).__name__.lower()
        size = sizes.get(f"{kind} {name}")
        columns = ", ".join(f"{field.name} {field.type}" for field in handle.schema)
        lines.append([name, kind, columns, *(("", "") if size is None else (f"{size.rows:,}", in_bytes(size.bytes)))])
    head = ("name", ""), ("kind", ""), ("columns", ""), ("rows", "before rows that cancel out are merged"), ("size", "")
    return titled(repr(pipe), "", html_rows(head, lines, (False, False, False, True, True)))


def cells(rows: pa.Table) -> list[list[str]]:
    """The values of some rows as text."""
    columns = [[_cell(value, f.type) for value in _values(rows.column(i))] for i, f in enumerate(rows.schema)]
    return [list(line) for line in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # a date that Python has no object for, such as one of the year 10000
        values = column.cast(pa.string()).to_pylist()
    return values


def counted(number: int, what: str) -> str:
    """A number of things: `1 row`, `2,000 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def escaped(text: str) -> str:
    """Text without characters that would break a line or move the cursor."""
    return text.translate(_CONTROLS)


def _cell(value: Any, dtype: pa.DataType) -> str:
    """A value as Spark's `show` writes it."""
    t = pa.types
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _float(value, np.float32 if t.is_float32(dtype) else np.float64)
    if t.is_decimal(dtype):
        return f"{value:f}"
    if isinstance(value, bytes):
        return f"[{value.hex(' ').upper()}]"
    if t.is_struct(dtype):
        return f"{{{', '.join(_cell(value[field.name], field.type) for field in dtype)}}}"
    if t.is_map(dtype):
        pairs = (f"{_cell(k, dtype.key_type)} -> {_cell(v, dtype.item_type)}" for k, v in value)
        return f"{{{', '.join(pairs)}}}"
    if t.is_list(dtype) or t.is_large_list(dtype):
        return f"[{', '.join(_cell(item, dtype.value_type) for item in value)}]"
    return escaped(str(value))


def _float(value: float, kind: type[np.floating[Any]]) -> str:
    """As Java writes it: the fewest digits that tell it from others, and `1.0E7` from ten million on."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(kind(value), unique=True, trim="0")
    digits, _, power = np.format_float_scientific(kind(value), unique=True, trim="0").partition("e")
    return f"{digits}E{int(power)}"


def _cut(text: str, width: int) -> str:
    if width == 0 or len(text) <= width:
        return text
    return text[:width] if width < 4 else f"{text[: width - 3]}..."


def _screen_width(text: str) -> int:
    """Columns of a terminal that a text takes; East Asian characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, size: int, width: int) -> str:
    """Aligned as by Spark: to the right, or to the left where nothing is cut."""
    blanks = " " * (size - _screen_width(text))
    return text + blanks if width == 0 else blanks + text


__all__ = ["DEFAULT_WIDTH", "cells", "counted", "escaped", "html_table", "pipeline_html", "text_table"]
