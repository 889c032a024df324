"""Identities: canonical bytes of what a part of a circuit computes, the same in every process and release.

State finds its operator by a digest of these bytes, so nothing that a refactoring changes may enter them. An identified
object (operator, aggregate, window function, sort order, step of a query) declares

* `kind`: its name in the field's own words, unique among all of them. It stays for ever: classes, modules and functions
  are renamed freely, kinds never are;
* `version`: the layout and the meaning of its state. Whoever changes either raises it; the state of earlier versions
  then belongs to another operator and is computed again;
* `parameters()`: what tells it from others of its kind.

`encoded` turns these into bytes. It takes None, bool, int, float, str, bytes, Decimal, dates and times, enums (by their
value), Arrow types, fields and scalars, tuples, and identified objects; every value begins with a tag of its type, and
lengths stand before contents, so different values have different bytes (1, True and "1" as well). Anything else is a
TypeError: no class name, repr, byte code, address or pickle gets in by accident.
"""

from __future__ import annotations

import datetime
import hashlib
import struct
import uuid
from abc import abstractmethod
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import pyarrow as pa

DIGEST_BYTES: Final = 16
"""Two different identities have the same digest with a probability of 2^-128."""

_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


@runtime_checkable
class Identified(Protocol):
    """An object that declares its identity: a kind that never changes, a version of its state, and its parameters."""

    kind: ClassVar[str]
    version: ClassVar[int]

    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """The values that distinguish this object from others of its kind and version, as `encoded` takes them."""


def digest(*parts: Any) -> str:
    """The digest of some values, in hexadecimal digits."""
    return hashlib.blake2b(encoded(parts), digest_size=DIGEST_BYTES).hexdigest()


def encoded(value: Any, owner: str = "an identity") -> bytes:
    """The canonical bytes of a value; `owner` is named by the error for a value that has none."""
    if value is None:
        return b"n"
    if isinstance(value, Enum):
        return encoded(value.value, owner)
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        return _tagged(b"i", str(int(value)).encode())
    if isinstance(value, str):
        return _tagged(b"s", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return _tagged(b"y", value)
    if isinstance(value, float):
        return b"f" + struct.pack(">d", float("nan") if value != value else value)
    if isinstance(value, tuple):
        return b"t" + _length(len(value)) + b"".join(encoded(v, owner) for v in value)
    if isinstance(value, Identified) and not isinstance(value, type):
        declared = type(value)
        name = f"{declared.kind!r} (class {declared.__name__})"
        return b"o" + encoded((declared.kind, declared.version, value.parameters()), name)
    if isinstance(value, Decimal | datetime.date | datetime.time | datetime.timedelta):
        return _of_time_or_decimal(value)
    if isinstance(value, pa.DataType):
        return b"a" + encoded(_type(value, owner), owner)
    if isinstance(value, pa.Field):
        return b"a" + encoded(_field(value, owner), owner)
    if isinstance(value, pa.Scalar):
        return b"c" + encoded(value.type, owner) + encoded_value(_physical(value), owner)
    raise TypeError(
        f"{owner}: a parameter of type {type(value).__module__}.{type(value).__qualname__} has no canonical form, so "
        "it cannot be part of an identity; give a tuple of plain values, or declare kind, version and parameters()"
    )


def encoded_value(value: Any, owner: str = "an identity") -> bytes:
    """The canonical bytes of a value of a row, in which lists and structs may be Python lists and dicts."""
    if isinstance(value, list):
        return b"l" + _length(len(value)) + b"".join(encoded_value(v, owner) for v in value)
    if isinstance(value, dict):
        parts = (encoded_value(v, owner) for pair in value.items() for v in pair)
        return b"m" + _length(len(value)) + b"".join(parts)
    if isinstance(value, tuple):
        return b"t" + _length(len(value)) + b"".join(encoded_value(v, owner) for v in value)
    return encoded(value, owner)


_PROCESS: Final = uuid.uuid4().hex
_unshared = iter(range(1 << 62))


def unshared() -> tuple[Any, ...]:
    """An identity that nothing else has, in this process or another: for what cannot be identified.

    State that belongs to it is computed again whenever a location is opened.
    """
    return "unshared", _PROCESS, next(_unshared)


def _tagged(tag: bytes, data: bytes) -> bytes:
    return tag + _length(len(data)) + data


def _length(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _of_time_or_decimal(value: Any) -> bytes:
    if isinstance(value, Decimal):
        return _tagged(b"d", str(value).encode())  # its digits and its scale: 1.0 and 1.00 are literals of two types
    if isinstance(value, datetime.timedelta):
        return b"T" + encoded(("interval", value // _MICROSECOND))
    if isinstance(value, datetime.datetime):
        zoned = value.tzinfo is not None
        plain = value.astimezone(datetime.UTC).replace(tzinfo=None) if zoned else value
        return b"T" + encoded(("timestamp", zoned, (plain - datetime.datetime(1970, 1, 1)) // _MICROSECOND))
    if isinstance(value, datetime.date):
        return b"T" + encoded(("date", value.toordinal() - _EPOCH_DAY))
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return b"T" + encoded(("time", seconds * 10**6 + value.microsecond))


# ---------------------------------------------------------------------- Arrow

_PLAIN_TYPES: Final = {
    pa.null(): "null", pa.bool_(): "boolean", pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
    pa.int8(): "int8", pa.int16(): "int16", pa.int32(): "int32", pa.int64(): "int64",
    pa.uint8(): "uint8", pa.uint16(): "uint16", pa.uint32(): "uint32", pa.uint64(): "uint64",
    pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64",
    pa.month_day_nano_interval(): "calendar-interval",
}  # fmt: skip


def _type(dtype: pa.DataType, owner: str) -> tuple[Any, ...]:
    """The canonical form of an Arrow type."""
    t = pa.types
    if t.is_list(dtype):
        return "list", _field(dtype.value_field, owner)
    if t.is_struct(dtype):
        return "struct", tuple(_field(f, owner) for f in dtype)
    if t.is_map(dtype):
        return "map", _field(dtype.key_field, owner), _field(dtype.item_field, owner)
    if t.is_decimal(dtype):
        return "decimal", dtype.bit_width, dtype.precision, dtype.scale
    if t.is_timestamp(dtype):
        return "timestamp", dtype.unit, dtype.tz
    if t.is_time(dtype):
        return "time", dtype.unit
    if t.is_duration(dtype):
        return "duration", dtype.unit
    name = _PLAIN_TYPES.get(dtype)
    if name is None:
        raise TypeError(f"{owner}: Arrow type {dtype} has no canonical form, so it cannot be part of an identity")
    return (name,)


def _field(field: pa.Field, owner: str) -> tuple[Any, ...]:
    """The canonical form of a column or of a field of a struct."""
    return field.name, _type(field.type, owner), field.nullable, tuple(sorted((field.metadata or {}).items()))


def _physical(scalar: pa.Scalar) -> Any:
    """The value of a scalar; of a time, the number that stands for it, since Python's times end with the year 9999."""
    t = pa.types
    dtype = scalar.type
    if scalar.is_valid and (t.is_date(dtype) or t.is_timestamp(dtype) or t.is_time(dtype) or t.is_duration(dtype)):
        return scalar.value
    if scalar.is_valid and t.is_interval(dtype):
        return tuple(scalar.as_py())
    if scalar.is_valid and t.is_map(dtype):
        return [list(entry) for entry in scalar.as_py()]
    return scalar.as_py()


__all__ = ["Identified", "digest", "encoded", "encoded_value", "unshared"]
