"""Small batches inside the file of a tick.

A tick changes many traces a little. A file for each of the new batches would cost an fsync each, so all of them lie one
behind another in the one file that the tick writes anyway, in front of its manifest. Such a piece of a file is an
*extent*: a head (JSON: what `dbspark.columnar.batch_file` keeps in the metadata of a batch file) and the record batches
as Arrow IPC messages, everything aligned so that it is read where it is mapped. The schema and the sort key are the
trace's and are kept once, not with every batch.

An extent is checked by its checksum whenever it is opened; it is small.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from functools import lru_cache
from typing import Any

import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.batch_file import _LANES, _batch_of, _constants
from dbspark.columnar.schema import Schema
from dbspark.kernels.memory import layout as nd

ALIGN = 64
_LENGTH = struct.Struct("<Q")
_FIELDS = {
    node: pa.field(name, pa.int64() if node >= nd.WEIGHT else pa.uint64(), False) for node, name in _LANES.items()
}


def sort_key_to_json(sort_key: SortKey) -> dict[str, Any]:
    """What a sort key is, names and types included."""
    return {
        "schema": base64.b64encode(sort_key.schema.arrow.serialize()).decode(),
        "key": None if sort_key.key is None else list(sort_key.key),
        "order": [list(o) for o in sort_key.order],
    }


def sort_key_from_json(data: dict[str, Any]) -> SortKey:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data["schema"])))
    return SortKey(Schema(schema), data["key"], [tuple(o) for o in data["order"]])


def _stored(sort_key: SortKey, constants: Any) -> tuple[int, ...]:
    return tuple(node for node in _LANES if node not in constants and (node != nd.KEY or sort_key.own_key))


@lru_cache(maxsize=4096)
def _fields(sort_key: SortKey, lanes: tuple[int, ...]) -> pa.Schema:
    """The columns of the record batches: lanes, then the columns of the rows under names that cannot clash."""
    columns = [f.with_name(f"column{i}") for i, f in enumerate(sort_key.schema.arrow)]
    return pa.schema([*(_FIELDS[node] for node in lanes), *columns])


def encode_batch(batch: Batch) -> list[Any]:
    """A batch as the parts of an extent."""
    sort_key = batch.sort_key
    constants = _constants(batch)
    lanes = _stored(sort_key, constants)
    fields = _fields(sort_key, lanes)
    messages = []
    for chunk in batch.chunks:
        arrays = [pa.array(chunk.lane(node)) for node in lanes]
        messages.append(pa.RecordBatch.from_arrays([*arrays, *chunk.arrays()], schema=fields).serialize())
    head = json.dumps({
        "rows": batch.rows,
        "constants": {_LANES[node]: value for node, value in constants.items()},
        "weights": batch._survey,
        "times": batch._time_survey,
        "records": [m.size for m in messages],
    }).encode()  # fmt: skip
    parts: list[Any] = [_LENGTH.pack(len(head)) + head]
    parts[0] += bytes(-len(parts[0]) % ALIGN)
    for message in messages:
        parts += [message, bytes(-message.size % ALIGN)]
    return parts


def batch_bytes(batch: Batch) -> bytes:
    """A batch as the bytes of an extent."""
    return b"".join(encode_batch(batch))


def decode_batch(extent: pa.Buffer, sort_key: SortKey) -> Batch:
    """The batch in an extent, over the same memory."""
    (length,) = _LENGTH.unpack(extent.slice(0, _LENGTH.size).to_pybytes())
    about = json.loads(extent.slice(_LENGTH.size, length).to_pybytes())
    about["key"] = sort_key.key
    about["order"] = sort_key.order
    about["names"] = sort_key.schema.names
    constants = {node for node, name in _LANES.items() if name in about["constants"]}
    fields = _fields(sort_key, _stored(sort_key, constants))
    at = _LENGTH.size + length
    records = []
    for size in about["records"]:
        at += -at % ALIGN
        records.append(pa.ipc.read_record_batch(extent.slice(at, size), fields))
        at += size
    return _batch_of(fields, records, about)


def part_bytes(part: Any) -> int:
    """Bytes of a part of an extent."""
    return int(part.size) if isinstance(part, pa.Buffer) else len(part)


class Segment:
    """The extents of a tick while they are gathered."""

    def __init__(self, begin: int) -> None:
        self.parts: list[Any] = []
        self.size = begin
        """Where the next extent begins in the file."""

    def add(self, parts: list[Any]) -> tuple[int, int, str]:
        """Append an extent; returns where it is, its size and its checksum."""
        crc = size = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
            size += part_bytes(part)
        at = self.size
        padding = -size % ALIGN
        self.parts += [*parts, bytes(padding)]
        self.size += size + padding
        return at, size, f"{crc:08x}"


def verified_extent(whole: pa.Buffer, at: int, size: int, check: str) -> pa.Buffer:
    """An extent of a file, if it is what its checksum says."""
    if at + size > whole.size:
        raise ValueError(f"it ends at byte {whole.size}, inside an extent of {size} bytes at {at}")
    extent = whole.slice(at, size)
    if f"{zlib.crc32(extent):08x}" != check:
        raise ValueError(f"the extent of {size} bytes at {at} has been altered")
    return extent


__all__ = [
    "ALIGN",
    "Segment",
    "batch_bytes",
    "decode_batch",
    "encode_batch",
    "part_bytes",
    "sort_key_from_json",
    "sort_key_to_json",
    "verified_extent",
]
