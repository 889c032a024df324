"""One Python row as a probe: encoded without Arrow, for looking up a single row.

Making Arrow arrays of one row costs more than all the searching. Here a row is packed into a small buffer whose node
table was written beforehand: fixed widths at fixed places, then the bytes of strings. Buffers are taken from a
pool and given back, so threads never share one, and a row costs no allocation.

Every flat type whose canonical Python values are exact is known; for the others (nested ones, times of day,
intervals), and for rows longer than the buffer, `probe_of` says None and the caller goes through Arrow.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.batch import arrangement as hashing
from dbspark.batch.memory import Int64s
from dbspark.batch.rows import Row
from dbspark.batch.schema import Schema
from dbspark.kernels import nodes as nd
from dbspark.kernels import probe as kp

TEXT = 4096
"""Bytes for all strings of a row."""
_USUAL_MASK = hashing._mask
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DECIMALS = Context(prec=80)
_UNFIT = (struct.error, AttributeError, TypeError, OverflowError)
"""What packing raises for a NULL, or for text beyond the buffer."""


def _micros(span: datetime.timedelta) -> int:
    return (span.days * 86400 + span.seconds) * 1_000_000 + span.microseconds


def _unscaled(value: Decimal, scale: int) -> int:
    return int(_DECIMALS.scaleb(value, scale))


def _packing(name: str, dtype: pa.DataType) -> tuple[str, str] | None:
    """The struct codes of a column and the expressions that they pack; None for a type that is not known here."""
    t = pa.types
    if t.is_signed_integer(dtype):
        return {8: "b", 16: "h", 32: "i", 64: "q"}[dtype.bit_width], name
    if t.is_float64(dtype) or t.is_float32(dtype):
        return ("d" if dtype.bit_width == 64 else "f"), name
    if t.is_boolean(dtype):
        return "B", name
    if t.is_date32(dtype):
        return "i", f"{name}.toordinal() - {_EPOCH_DAY}"
    if t.is_timestamp(dtype):
        return "q", f"micros({name} - {'EPOCH' if dtype.tz is None else 'EPOCH_UTC'})"
    if t.is_duration(dtype):
        return "q", f"micros({name})"
    return None


def _fill(schema: Schema, flags: bool) -> tuple[Callable[[Any, Row], None], list[dict[int, int]], int] | None:
    """A function that packs a row into a buffer, the places in the node table of each column, and the size before text.

    With `flags` a byte per column says whether it is NULL, and values that are NULL are packed as zeros.
    """
    names = [f"c{i}" for i in range(schema.columns)]
    codes, packed, before, texts, places = "", [], [], [], []
    at = 8  # the hash comes first

    def place(code: str, expression: str) -> int:
        nonlocal at, codes
        begin = at
        codes += code
        packed.append(expression)
        at += struct.calcsize("<" + code)
        return begin

    for name, dtype in zip(names, schema.types, strict=True):
        spot: dict[int, int] = {}
        if flags:
            spot[nd.VALID] = place("B", f"{name} is not None")
        if pa.types.is_null(dtype):
            places.append({})
            continue
        if pa.types.is_string(dtype) or pa.types.is_binary(dtype):
            value = f"{name}.encode()" if pa.types.is_string(dtype) else name
            start = f"e{texts[-1]}" if texts else "0"
            unless = f"b'' if {name} is None else " if flags else ""
            before += [f"t{name} = {unless}{value}"]
            before += [f"et{name} = {start} + len(t{name})"]
            spot[nd.OFFSETS] = place("i", start)
            place("i", f"et{name}")
            texts.append(f"t{name}")
        elif pa.types.is_decimal(dtype):
            value = f"unscaled({name}, {dtype.scale})"
            unless = f"0 if {name} is None else " if flags else ""
            before.append(f"u{name} = {unless}{value}")
            spot[nd.DATA] = place("Q", f"u{name} & 0xFFFFFFFFFFFFFFFF")
            place("q", f"u{name} >> 64")
        else:
            known = _packing(name, dtype)
            if known is None:
                return None
            code, value = known
            spot[nd.DATA] = place(code, f"0 if {name} is None else {value}" if flags else value)
        places.append(spot)
    lines = [f"{', '.join(names)}{',' if len(names) == 1 else ''} = row", *before]
    if texts:
        lines += [f"if e{texts[-1]} > {TEXT}:", "    raise OverflowError"]
    if packed:
        lines.append(f"pack(buffer, 8, {', '.join(packed)})")
    if texts:
        joined = texts[0] if len(texts) == 1 else f'b"".join(({", ".join(texts)}))'
        lines.append(f"buffer[{at} : {at} + e{texts[-1]}] = {joined}")
    space: dict[str, Any] = {
        "pack": struct.Struct("<" + codes).pack_into, "micros": _micros, "unscaled": _unscaled, "EPOCH": _EPOCH,
        "EPOCH_UTC": _EPOCH_UTC,
    }  # fmt: skip
    exec("def fill(buffer, row):\n    " + "\n    ".join(lines), space)
    return space["fill"], places, at


class Probe:
    """A row in columns, by itself: what a kernel needs to look it up. Give it back to its codec after use."""

    __slots__ = ("_keep", "buffer", "nodes", "table")

    def __init__(self, schema: Schema, places: list[dict[int, int]], size: int) -> None:
        self.buffer = bytearray(size + TEXT)
        base = np.frombuffer(self.buffer, np.uint8)
        address: int = base.ctypes.data
        self.nodes: Int64s = np.array(schema.template)
        self.nodes[[nd.HASH, nd.KEY], nd.DATA] = address
        for column, spot in enumerate(places):
            line = self.nodes[nd.LANES + column]
            for field, place in spot.items():
                line[field] = address + place
            if nd.OFFSETS in spot:
                line[nd.DATA] = address + size
        self.table: int = self.nodes.ctypes.data
        self._keep = base  # a view of the buffer: it cannot be resized while this is there


class Codec:
    """Makes probes of rows of one flat schema."""

    __slots__ = ("_nullable", "_plain", "columns", "nodes", "schema")

    def __init__(self, schema: Schema, plain: Any, nullable: Any) -> None:
        self.schema = schema
        self.columns = schema.columns
        self.nodes = schema.node_count
        self._plain = (*plain, [])
        self._nullable = (*nullable, [])

    def probe(self, row: Row) -> tuple[Probe, list[Probe]] | None:
        """A probe of a canonical row and the pool to append it to after use; None if the row has to go through Arrow."""
        fill, places, size, pool = self._plain
        try:
            probe = pool.pop()
        except IndexError:
            probe = Probe(self.schema, places, size)
        try:
            fill(probe.buffer, row)
        except _UNFIT:
            pool.append(probe)
            return self._with_nulls(row) if None in row else None
        return probe, pool

    def _with_nulls(self, row: Row) -> tuple[Probe, list[Probe]] | None:
        fill, places, size, pool = self._nullable
        try:
            probe = pool.pop()
        except IndexError:
            probe = Probe(self.schema, places, size)
        try:
            fill(probe.buffer, row)
        except _UNFIT:
            pool.append(probe)
            return None
        return probe, pool

    def weigh(self, row: Row, sources: tuple[Any, Any, Any, Any]) -> int | None:
        """The total weight of a row in some batches (as `Spine.sources` describes them), by their whole-row order."""
        made = self.probe(row)
        if made is None:
            return None
        probe, pool = made
        weight: int = kp.weigh_point(*sources, probe.table, self.columns, self.nodes, hash_mask())
        pool.append(probe)
        return None if weight == kp.LEAST else weight


def hash_mask() -> int:
    """The bits of a hash that count, as a signed integer: all of them, outside of tests."""
    mask = hashing._mask
    return -1 if mask is _USUAL_MASK else int(mask.astype(np.int64))


@lru_cache(maxsize=512)
def codec_of(schema: Schema) -> Codec | None:
    """The codec of a schema; None if it has columns that are not known here."""
    if schema.nested:
        return None
    plain, nullable = _fill(schema, False), _fill(schema, True)
    return None if plain is None or nullable is None else Codec(schema, plain, nullable)


__all__ = ["Codec", "Probe", "codec_of", "hash_mask"]
