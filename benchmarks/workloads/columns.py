"""Arrow columns made of numpy draws, without a loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.ddl import parse_ddl


def table(ddl: str, columns: dict[str, Any]) -> pa.Table:
    """The columns as the table that the DDL declares."""
    return pa.table(columns, schema=parse_ddl(ddl))


def decimals(cents: np.ndarray, precision: int = 15) -> pa.Array:
    """Hundredths as DECIMAL(precision, 2)."""
    words = np.empty((len(cents), 2), np.int64)  # little-endian halves of 128 bits
    words[:, 0] = cents
    words[:, 1] = words[:, 0] >> 63
    return pa.Array.from_buffers(pa.decimal128(precision, 2), len(cents), [None, pa.py_buffer(words)])


def dates(days: np.ndarray) -> pa.Array:
    """Days since 1970 as DATE."""
    return pa.array(days.astype(np.int32)).cast(pa.date32())


def pick(words: Sequence[str], index: np.ndarray) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(index))


def draw(rng: np.random.Generator, words: Sequence[str], rows: int) -> pa.Array:
    return pick(words, rng.integers(0, len(words), rows))


def digits(numbers: np.ndarray, width: int) -> pa.Array:
    """Numbers in decimal, padded with zeros."""
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


def concat(*parts: Any, by: str = "") -> pa.Array:
    """Strings and columns of strings, row by row one after the other."""
    return pc.binary_join_element_wise(*parts, by)


def slices(pool: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """Pieces of a text given as its (ASCII) bytes."""
    ends = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    positions = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(pool[positions])]
    return pa.Array.from_buffers(pa.string(), len(starts), buffers)
