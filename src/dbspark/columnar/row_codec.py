"""Encodes single Python rows for point lookups, without Arrow.

Making Arrow arrays of one row costs more than the lookup itself. Here `struct` packs a row into a small buffer whose
node table was written when the buffer was made: values of fixed width at fixed offsets, then the bytes of strings and
binaries.

1. Buffers come from a pool and go back to it after use, so threads never share one and a row costs no allocation.
2. Only flat types whose canonical Python values are exact are encoded. There is no codec for other types (nested ones,
   times of day, intervals), and the codec returns None for a row that does not fit its buffer. The caller then looks
   the row up through Arrow.

The code that packs the rows of a schema is generated and compiled once, so that a lookup runs no loop over columns.
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

DirectoryAddress = tuple[int, Any]
"""The address of a directory of batches (`kernels.lookup.row_lookup`), and the owner of the memory there."""
MAX_TEXT_BYTES = 4096
"""Bytes for all strings and binaries of an encoded row; rows with more are looked up through Arrow."""
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DECIMALS = Context(prec=80)
UNENCODABLE = (struct.error, AttributeError, TypeError, OverflowError)
"""The errors of packing a row that has a NULL where none is expected, a value out of range or too much text."""


def _micros(span: datetime.timedelta) -> int:
    return (span.days * 86400 + span.seconds) * 1_000_000 + span.microseconds


def _unscaled(value: Decimal, scale: int) -> int:
    return int(_DECIMALS.scaleb(value, scale))


def _pack_code(name: str, dtype: pa.DataType) -> tuple[str, str] | None:
    """The struct code of a column of fixed width and the expression that it packs; None for types not encoded here."""
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


class RowEncoder:
    """Compiled code that packs rows of one schema, and a pool of buffers to pack them into.

    `encode(row)` returns an encoded row, to be appended to `pool` after use. `weight(directory, row)` is the total
    weight of a row in the batches of a directory, given by its address. Both raise one of `UNENCODABLE` where the row
    cannot be packed.
    """

    __slots__ = ("encode", "field_offsets", "pool", "schema", "size", "weight")

    encode: Callable[[Row], EncodedRow]
    weight: Callable[..., int]

    def __init__(
        self,
        schema: Schema,
        lines: list[str],
        store: list[str],
        field_offsets: list[dict[int, int]],
        size: int,
        space: dict[str, Any],
    ) -> None:
        """`lines` compute the values of a row and `store` writes them, as source code over the names in `space`.

        `field_offsets` says for each column which fields of its node point to which offset of the buffer; `size` is
        where the bytes of strings begin.
        """
        self.schema = schema
        self.field_offsets = field_offsets
        self.size = size
        self.pool: list[EncodedRow] = []
        space |= {"pool": self.pool, "new_buffer": self._new_buffer, "kernel": kw.point_weight, "hashing": hashing}
        packing = [
            *lines, "try:", "    encoded = pool.pop()", "except IndexError:", "    encoded = new_buffer()",
            "buffer = encoded.buffer", "try:", *["    " + line for line in store or ["pass"]],
            "except BaseException:", "    pool.append(encoded)", "    raise",
        ]  # fmt: skip
        looking_up = [
            "total = kernel(directory, encoded.table, hashing._mask_word)",
            "pool.append(encoded)", "return total",
        ]  # fmt: skip
        code = ["def encode(row):", *packing, "return encoded"]
        code += ["", "def weight(directory, row):", *packing, *looking_up]
        exec("\n".join(line if line.startswith("def ") else "    " + line for line in code), space)
        self.encode, self.weight = space["encode"], space["weight"]

    def _new_buffer(self) -> EncodedRow:
        return EncodedRow(self.schema, self.field_offsets, self.size)


def _compile_encoder(schema: Schema, nullable: bool) -> RowEncoder | None:
    """The encoder of a schema; None if a column is of a type that is not encoded here.

    With `nullable` there is one byte per column that says whether it is valid, and a NULL is packed as zeros; without,
    a NULL is not encodable, and packing is faster.
    """
    names = [f"c{i}" for i in range(schema.columns)]
    codes = ""
    packed: list[str] = []
    statements: list[str] = []
    texts: list[str] = []
    field_offsets: list[dict[int, int]] = []
    at = 8  # the hash comes first

    def place(code: str, expression: str) -> int:
        nonlocal at, codes
        begin = at
        codes += code
        packed.append(expression)
        at += struct.calcsize("<" + code)
        return begin

    for name, dtype in zip(names, schema.types, strict=True):
        offsets: dict[int, int] = {}
        if nullable:
            offsets[nd.VALID] = place("B", f"{name} is not None")
        if pa.types.is_null(dtype):
            field_offsets.append({})
            continue
        if pa.types.is_string(dtype) or pa.types.is_binary(dtype):
            value = f"{name}.encode()" if pa.types.is_string(dtype) else name
            start = f"e{texts[-1]}" if texts else "0"
            unless = f"b'' if {name} is None else " if nullable else ""
            statements += [f"t{name} = {unless}{value}"]
            statements += [f"et{name} = {start} + len(t{name})"]
            offsets[nd.OFFSETS] = place("i", start)
            place("i", f"et{name}")
            texts.append(f"t{name}")
        elif pa.types.is_decimal(dtype):
            value = f"unscaled({name}, {dtype.scale})"
            unless = f"0 if {name} is None else " if nullable else ""
            statements.append(f"u{name} = {unless}{value}")
            offsets[nd.DATA] = place("Q", f"u{name} & 0xFFFFFFFFFFFFFFFF")
            place("q", f"u{name} >> 64")
        else:
            packing = _pack_code(name, dtype)
            if packing is None:
                return None
            code, value = packing
            offsets[nd.DATA] = place(code, f"0 if {name} is None else {value}" if nullable else value)
        field_offsets.append(offsets)
    lines = [f"{', '.join(names)}{',' if len(names) == 1 else ''} = row", *statements]
    store: list[str] = []
    if texts:
        lines += [f"if e{texts[-1]} > {MAX_TEXT_BYTES}:", "    raise OverflowError"]
    if packed:
        store.append(f"pack(buffer, 8, {', '.join(packed)})")
    if texts:
        joined = texts[0] if len(texts) == 1 else f"b''.join(({', '.join(texts)}))"
        store.append(f"buffer[{at} : {at} + e{texts[-1]}] = {joined}")
    space: dict[str, Any] = {
        "pack": struct.Struct("<" + codes).pack_into, "micros": _micros, "unscaled": _unscaled, "EPOCH": _EPOCH,
        "EPOCH_UTC": _EPOCH_UTC,
    }  # fmt: skip
    return RowEncoder(schema, lines, store, field_offsets, at, space)


class EncodedRow:
    """One row as a node table with columns of one value. Return it to the pool of its encoder after use."""

    __slots__ = ("_keep", "buffer", "nodes", "table")

    def __init__(self, schema: Schema, field_offsets: list[dict[int, int]], size: int) -> None:
        self.buffer = bytearray(size + MAX_TEXT_BYTES)
        base = np.frombuffer(self.buffer, np.uint8)
        address: int = base.ctypes.data
        self.nodes: Int64s = np.array(schema.template)
        self.nodes[[nd.HASH, nd.KEY], nd.DATA] = address
        for column, offsets in enumerate(field_offsets):
            line = self.nodes[nd.LANES + column]
            for field, place in offsets.items():
                line[field] = address + place
            if nd.OFFSETS in offsets:
                line[nd.DATA] = address + size
        self.table: int = self.nodes.ctypes.data
        self._keep = base  # a view of the buffer, which pins its address


class RowCodec:
    """Encodes rows of one flat schema: tries the encoder without NULLs first, then the one with."""

    __slots__ = ("nullable", "plain")

    def __init__(self, plain: RowEncoder, nullable: RowEncoder) -> None:
        self.plain = plain
        self.nullable = nullable

    def encode(self, row: Row) -> tuple[EncodedRow, list[EncodedRow]] | None:
        """A canonical row, encoded, and the pool to append it to after use; None where it cannot be encoded."""
        for encoder in (self.plain, self.nullable):
            try:
                return encoder.encode(row), encoder.pool
            except UNENCODABLE:
                pass
        return None

    def weight(self, row: Row, directory: DirectoryAddress) -> int | None:
        """The total weight of a canonical row in the batches of a directory; None where it cannot be encoded."""
        for encoder in (self.plain, self.nullable):
            try:
                weight = encoder.weight(directory[0], row)
            except UNENCODABLE:
                continue
            return None if weight == kw.INT64_MIN else weight
        return None

    def directory(self, sources: tuple[Any, Any, Any, Any]) -> DirectoryAddress:
        """The directory of batches that are sorted by whole rows, from their `Spine.sources`, for `weight`."""
        schema = self.plain.schema
        directory: Int64s = kw.point_directory(*sources, schema.columns, schema.node_count)
        return directory.ctypes.data, (directory, sources)


def hash_mask() -> int:
    """The mask that kernels apply to hashes, as a signed integer; tests clear bits to make hashes collide."""
    return hashing._mask_word


@lru_cache(maxsize=512)
def codec_of(schema: Schema) -> RowCodec | None:
    """The codec of a schema; None if it has a column of a type that is not encoded here."""
    if schema.nested:
        return None
    plain, nullable = _compile_encoder(schema, False), _compile_encoder(schema, True)
    return None if plain is None or nullable is None else RowCodec(plain, nullable)


__all__ = ["MAX_TEXT_BYTES", "UNENCODABLE", "DirectoryAddress", "EncodedRow", "RowCodec", "codec_of", "hash_mask"]
