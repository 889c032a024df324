"""One Python row as a probe: encoded without Arrow, for looking up a single row.

Making Arrow arrays of one row costs more than all the searching. Here a row is packed into a small buffer whose node
table was written beforehand: fixed widths at fixed places, then the bytes of strings. Buffers are taken from a
pool and given back, so threads never share one, and a row costs no allocation.

Every flat type whose canonical Python values are exact is known; for the others (nested ones, times of day,
intervals), and for rows longer than the buffer, a codec says None and the caller goes through Arrow.
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

from dbspark.columnar import sort_key as hashing
from dbspark.columnar.memory import Int64s
from dbspark.columnar.rows import Row
from dbspark.columnar.schema import Schema
from dbspark.kernels.lookup import row_lookup as kw
from dbspark.kernels.memory import layout as nd

Directory = tuple[int, Any]
"""An address for a kernel, and what has to stay alive as long as it is used."""
TEXT = 4096
"""Bytes for all strings of a row."""
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DECIMALS = Context(prec=80)
UNFIT = (struct.error, AttributeError, TypeError, OverflowError)
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


class Encoding:
    """How rows of one schema are packed, and a pool of probes to pack them into.

    `probe(row)` gives a probe to append to `pool` after use. `weigh(directory, row)` is the total weight of a row in
    some batches, given by the address of their directory, in one go. Both raise one of `UNFIT` where the row cannot be
    packed.
    """

    __slots__ = ("places", "pool", "probe", "schema", "size", "weigh")

    probe: Callable[[Row], Probe]
    weigh: Callable[..., int]

    def __init__(self, schema: Schema, lines: list[str], store: list[str], places: list[dict[int, int]], size: int,
                 space: dict[str, Any]) -> None:  # fmt: skip
        self.schema = schema
        self.places = places
        self.size = size
        self.pool: list[Probe] = []
        space |= {"pool": self.pool, "make": self._make, "kernel": kw.point_weight, "hashing": hashing}
        packing = [
            *lines, "try:", "    probe = pool.pop()", "except IndexError:", "    probe = make()",
            "buffer = probe.buffer", "try:", *["    " + line for line in store or ["pass"]],
            "except BaseException:", "    pool.append(probe)", "    raise",
        ]  # fmt: skip
        weighing = [
            "weight = kernel(directory, probe.table, hashing._mask_word)",
            "pool.append(probe)", "return weight",
        ]  # fmt: skip
        code = ["def probe_of(row):", *packing, "return probe"]
        code += ["", "def weigh(directory, row):", *packing, *weighing]
        exec("\n".join(line if line.startswith("def ") else "    " + line for line in code), space)
        self.probe, self.weigh = space["probe_of"], space["weigh"]

    def _make(self) -> Probe:
        return Probe(self.schema, self.places, self.size)


def _encoding(schema: Schema, flags: bool) -> Encoding | None:
    """The encoding of a schema; None if a column is of a type that is not known here.

    With `flags` a byte per column says whether it is NULL, and values that are NULL are packed as zeros; without, a
    NULL is refused.
    """
    names = [f"c{i}" for i in range(schema.columns)]
    codes = ""
    packed: list[str] = []
    before: list[str] = []
    texts: list[str] = []
    places: list[dict[int, int]] = []
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
    store: list[str] = []
    if texts:
        lines += [f"if e{texts[-1]} > {TEXT}:", "    raise OverflowError"]
    if packed:
        store.append(f"pack(buffer, 8, {', '.join(packed)})")
    if texts:
        joined = texts[0] if len(texts) == 1 else f"b''.join(({', '.join(texts)}))"
        store.append(f"buffer[{at} : {at} + e{texts[-1]}] = {joined}")
    space: dict[str, Any] = {
        "pack": struct.Struct("<" + codes).pack_into, "micros": _micros, "unscaled": _unscaled, "EPOCH": _EPOCH,
        "EPOCH_UTC": _EPOCH_UTC,
    }  # fmt: skip
    return Encoding(schema, lines, store, places, at, space)


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

    __slots__ = ("nullable", "plain")

    def __init__(self, plain: Encoding, nullable: Encoding) -> None:
        self.plain = plain
        self.nullable = nullable

    def probe(self, row: Row) -> tuple[Probe, list[Probe]] | None:
        """A probe of a canonical row, and the pool to append it to after use; None if Arrow has to be asked."""
        for encoding in (self.plain, self.nullable):
            try:
                return encoding.probe(row), encoding.pool
            except UNFIT:
                pass
        return None

    def weigh(self, row: Row, directory: Directory) -> int | None:
        """The total weight of a row in the batches of a directory; None if Arrow has to be asked."""
        for encoding in (self.plain, self.nullable):
            try:
                weight = encoding.weigh(directory[0], row)
            except UNFIT:
                continue
            return None if weight == kw.INT64_MIN else weight
        return None

    def directory(self, sources: tuple[Any, Any, Any, Any]) -> Directory:
        """What `weigh` wants to know of some batches, given as `Spine.sources`. They are ordered by the whole row."""
        schema = self.plain.schema
        directory: Int64s = kw.point_directory(*sources, schema.columns, schema.node_count)
        return directory.ctypes.data, (directory, sources)


def hash_mask() -> int:
    """The bits of a hash that count, as a signed integer: all of them, outside of tests."""
    return hashing._mask_word


@lru_cache(maxsize=512)
def codec_of(schema: Schema) -> Codec | None:
    """The codec of a schema; None if it has columns that are not known here."""
    if schema.nested:
        return None
    plain, nullable = _encoding(schema, False), _encoding(schema, True)
    return None if plain is None or nullable is None else Codec(plain, nullable)


__all__ = ["UNFIT", "Codec", "Directory", "Probe", "codec_of", "hash_mask"]
