"""The batch file: an Arrow IPC file that holds one batch and is opened by mapping it, without reading its data.

Any Arrow reader can read it. Every record batch holds the lanes (row hash, key hash, weights, times) and the columns; a
lane of one value in the whole file is in the header instead. The *header* is JSON in the metadata of the schema: the
format, the sort key, the number of rows, surveys of the weights and times, and metadata of the writer, such as a
description. The *seal* is in the metadata of the footer: checksums of the data, of the headers of the record batches
and of the footer.

Opening reads the footer and the headers of the record batches, but no data. It raises if the file is truncated or if a
part that is read does not match its checksum. With `verify` the data are read and compared as well.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar.batch import Batch
from dbspark.columnar.chunk import Chunk, describe_arrays
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import SortKey
from dbspark.errors import CorruptFileError
from dbspark.kernels.memory import layout as nd

FORMAT = "dbspark-batch-1"
_HEADER_KEY = b"dbspark"
_SEAL_KEY = b"dbspark.seal"
_SEAL_FORMAT = b"%024d%08x%08x"
"""The length of the data, its checksum and that of the headers; the checksum of the footer follows, in 8 digits."""
_MAX_RECORD_ROWS = 1 << 20
_MAX_RECORD_BYTES = 1 << 28
"""Limits of a record batch in bytes and rows, large so that a large file has few record batch headers to read."""
_LANES = {nd.HASH: "_hash", nd.KEY: "_key", nd.WEIGHT: "_weight", **{nd.TIME + c: f"_time{c}" for c in range(nd.TIMES)}}


def write_batch(batch: Batch, path: str | os.PathLike[str], metadata: Any = None) -> None:
    """Write a batch to a new file, with `metadata` as JSON. The file is synced to disk when this returns."""
    sort_key = batch.sort_key
    constants = _constants(batch)
    lanes = [node for node in _LANES if node not in constants and (node != nd.KEY or sort_key.own_key)]
    header = {
        "format": FORMAT,
        "key": None if sort_key.key is None else list(sort_key.key),
        "order": [list(o) for o in sort_key.order],
        "rows": batch.rows,
        "constants": {_LANES[node]: value for node, value in constants.items()},
        "weights": batch._survey,
        "times": batch._time_survey,
        "metadata": metadata,
    }
    fields = [pa.field(_LANES[node], pa.int64() if node >= nd.WEIGHT else pa.uint64(), False) for node in lanes]
    columns = [pa.field(f"column{i}", f.type, f.nullable, f.metadata) for i, f in enumerate(sort_key.schema.arrow)]
    header["names"] = list(sort_key.schema.names)
    schema = pa.schema([*fields, *columns], metadata={_HEADER_KEY: json.dumps(header).encode()})
    placeholder = uuid.uuid4().hex.encode() + b"-" * 16  # as long as the seal, which is written over it last
    with Path(path).open("xb+") as file:
        sink = _ChecksumWriter(file)
        with pa.ipc.new_file(pa.PythonFile(sink, "w"), schema, metadata={_SEAL_KEY: placeholder}) as writer:
            for group in _record_groups(batch):
                parts = []
                for chunk in group:
                    arrays = [pa.array(chunk.lane(node)) for node in lanes]
                    parts.append(pa.RecordBatch.from_arrays([*arrays, *chunk.arrays()], schema=schema))
                for record in pa.Table.from_batches(parts, schema).combine_chunks().to_batches():
                    writer.write_batch(record)
            data = sink.size, sink.crc
        file.flush()
        with pa.memory_map(str(path)) as mapped:
            whole = mapped.read_buffer()
        reader = pa.ipc.open_file(whole)
        headers = _header_crc(whole, [reader.get_batch(i) for i in range(reader.num_record_batches)], data[0])
        seal = _SEAL_FORMAT % (data[0], data[1], headers)
        footer = whole.slice(data[0]).to_pybytes()
        file.seek(data[0] + footer.index(placeholder))
        file.write(seal + b"%08x" % zlib.crc32(footer.replace(placeholder, seal + b"0" * 8)))
        file.flush()
        os.fsync(file.fileno())


def open_batch(path: str | os.PathLike[str], verify: bool = False) -> tuple[Batch, Any]:
    """The batch of a file, mapped into memory, and its metadata. `verify`: read all data and compare checksums."""
    try:
        with pa.memory_map(str(path)) as mapped:
            whole = mapped.read_buffer()
        reader = pa.ipc.open_file(whole)
        header = json.loads(reader.schema.metadata[_HEADER_KEY])
        if header["format"] != FORMAT:
            raise CorruptFileError(f"{path} is in format {header['format']!r}; this dbspark reads {FORMAT!r}")
        records = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        _check(whole, reader, records, verify)
        return _batch_of(reader.schema, records, header), header["metadata"]
    except FileNotFoundError:
        raise CorruptFileError(f"{path} is missing") from None
    except (pa.ArrowException, KeyError, IndexError, TypeError, ValueError, OverflowError, OSError) as error:
        raise CorruptFileError(f"{path} is not a whole batch file: {error or type(error).__name__}") from None


def _check(whole: pa.Buffer, reader: Any, records: list[pa.RecordBatch], verify: bool) -> None:
    seal = bytes(reader.metadata[_SEAL_KEY])
    length, data_crc, header_crc, footer_crc = int(seal[:24]), *(int(seal[i : i + 8], 16) for i in (24, 32, 40))
    footer = whole.slice(length).to_pybytes()
    if zlib.crc32(footer.replace(seal, seal[:40] + b"0" * 8)) != footer_crc:
        raise ValueError("its footer has been altered")
    if _header_crc(whole, records, length) != header_crc:
        raise ValueError("a header has been altered")
    if verify and zlib.crc32(whole.slice(0, length)) != data_crc:
        raise ValueError("its data has been altered")


def _header_crc(whole: pa.Buffer, records: list[pa.RecordBatch], length: int) -> int:
    """The checksum of the bytes before, between and behind the buffers of the record batches."""
    crc = end = 0
    for record in records:
        buffers = [b for column in record.columns for b in column.buffers() if b is not None and b.size]
        if not buffers:
            continue
        begin = min(b.address for b in buffers) - whole.address
        if begin < end or begin > length:
            raise ValueError("a header has been altered")
        crc = zlib.crc32(whole.slice(end, begin - end), crc)
        end = max(b.address + b.size for b in buffers) - whole.address
    if end > length:
        raise ValueError("a header has been altered")
    return zlib.crc32(whole.slice(end, length - end), crc)


def _batch_of(fields: pa.Schema, records: list[pa.RecordBatch], header: dict[str, Any]) -> Batch:
    constants = {node: header["constants"][name] for node, name in _LANES.items() if name in header["constants"]}
    stored = [node for node in _LANES if node not in constants and (node != nd.KEY or header["key"] is not None)]
    names = header["names"]
    arrow = pa.schema([fields.field(len(stored) + i).with_name(name) for i, name in enumerate(names)])
    sort_key = SortKey(Schema(arrow), header["key"], [tuple(o) for o in header["order"]])
    chunks = [_chunk_of(record, sort_key, stored, constants) for record in records if record.num_rows]
    batch = Batch(sort_key, chunks)
    if batch.rows != header["rows"]:
        raise ValueError(f"it says that it holds {header['rows']} rows, and holds {batch.rows}")
    batch.__dict__["_survey"], batch.__dict__["_time_survey"] = header["weights"], header["times"]
    return batch


def _chunk_of(record: pa.RecordBatch, sort_key: SortKey, stored: list[int], constants: dict[int, int]) -> Chunk:
    columns = record.columns
    chunk = describe_arrays(sort_key.schema, columns[len(stored) :], record.num_rows, None)
    table = chunk.nodes()
    constant_values = np.array(list(constants.values()), np.int64)
    for i, node in enumerate(constants):
        table[node, nd.DATA], table[node, nd.MASK] = constant_values.ctypes.data + 8 * i, 0
    for node, lane in zip(stored, columns, strict=False):
        table[node, nd.DATA], table[node, nd.START], table[node, nd.MASK] = lane.buffers()[1].address, lane.offset, -1
    if not sort_key.own_key:
        table[nd.KEY] = table[nd.HASH]
    table[nd.HASH, nd.CHILD] = sort_key.order_address
    chunk.keep = (record, constant_values)
    return chunk


def _constants(batch: Batch) -> dict[int, int]:
    """The lanes that have one value in the whole batch, and that value."""
    out = {}
    for node in range(nd.WEIGHT, nd.LANES):
        if all(c.nodes()[node, nd.MASK] == 0 for c in batch.chunks):
            values = {int(c.lane(node)[0]) for c in batch.chunks}
            if len(values) == 1:
                out[node] = values.pop()
    return out


def _record_groups(batch: Batch) -> Iterator[list[Chunk]]:
    """Groups of chunks that are written as one record batch each."""
    group: list[Chunk] = []
    rows = size = 0
    for chunk in batch.chunks:
        if group and (rows + chunk.rows > _MAX_RECORD_ROWS or size + chunk.nbytes() > _MAX_RECORD_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(chunk)
        rows += chunk.rows
        size += chunk.nbytes()
    if group or not batch.chunks:
        yield group


class _ChecksumWriter:
    """A file object that computes the checksum of the bytes written through it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.crc = 0
        self.size = 0

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()
