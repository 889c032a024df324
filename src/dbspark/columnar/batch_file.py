"""The batch file: an Arrow IPC file that is a batch, and opens as one without being read.

Every record batch holds the lanes (row hash, key hash, weights, times; those that are one value for the whole file
are in the metadata instead) and the columns. Any Arrow reader can read it. The schema's metadata says what the batch
is: format, arrangement, number of rows, what is known of its weights and times, and whatever the writer keeps with it,
such as a description. The footer's metadata is a *seal*: checksums of the data, of the headers and of the footer.

Opening maps the file and reads the footer and the headers of the record batches, but no data; a file that is cut short,
or altered in what is read, is refused then. `verify` reads everything.
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
_ABOUT = b"dbspark"
_SEAL = b"dbspark.seal"
_SEAL_FORM = b"%024d%08x%08x"
"""The length of the data, its checksum and that of the headers; the checksum of the footer follows, in 8 digits."""
_RECORD_ROWS = 1 << 20
_RECORD_BYTES = 1 << 28
"""A record batch holds at most so much, so that a large file has few headers to read."""
_LANES = {nd.HASH: "_hash", nd.KEY: "_key", nd.WEIGHT: "_weight", **{nd.TIME + c: f"_time{c}" for c in range(nd.TIMES)}}


def write_batch(batch: Batch, path: str | os.PathLike[str], metadata: Any = None) -> None:
    """Write a batch to a new file; `metadata` is kept with it as JSON. It is on disk when this returns."""
    sort_key = batch.sort_key
    constants = _constants(batch)
    lanes = [node for node in _LANES if node not in constants and (node != nd.KEY or sort_key.own_key)]
    about = {
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
    about["names"] = list(sort_key.schema.names)
    schema = pa.schema([*fields, *columns], metadata={_ABOUT: json.dumps(about).encode()})
    unique = uuid.uuid4().hex.encode() + b"-" * 16  # holds the place of the seal, which is known last
    with Path(path).open("xb+") as file:
        sink = _Summing(file)
        with pa.ipc.new_file(pa.PythonFile(sink, "w"), schema, metadata={_SEAL: unique}) as writer:
            for group in _grouped(batch):
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
        seal = _SEAL_FORM % (data[0], data[1], headers)
        footer = whole.slice(data[0]).to_pybytes()
        file.seek(data[0] + footer.index(unique))
        file.write(seal + b"%08x" % zlib.crc32(footer.replace(unique, seal + b"0" * 8)))
        file.flush()
        os.fsync(file.fileno())


def open_batch(path: str | os.PathLike[str], verify: bool = False) -> tuple[Batch, Any]:
    """The batch in a file, mapped into memory, and the metadata that was kept with it."""
    try:
        with pa.memory_map(str(path)) as mapped:
            whole = mapped.read_buffer()
        reader = pa.ipc.open_file(whole)
        about = json.loads(reader.schema.metadata[_ABOUT])
        if about["format"] != FORMAT:
            raise CorruptFileError(f"{path} is in format {about['format']!r}; this dbspark reads {FORMAT!r}")
        records = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        _check(whole, reader, records, verify)
        return _batch_of(reader.schema, records, about), about["metadata"]
    except FileNotFoundError:
        raise CorruptFileError(f"{path} is missing") from None
    except (pa.ArrowException, KeyError, IndexError, TypeError, ValueError, OverflowError, OSError) as error:
        raise CorruptFileError(f"{path} is not a whole batch file: {error or type(error).__name__}") from None


def _check(whole: pa.Buffer, reader: Any, records: list[pa.RecordBatch], verify: bool) -> None:
    seal = bytes(reader.metadata[_SEAL])
    length, data_crc, header_crc, footer_crc = int(seal[:24]), *(int(seal[i : i + 8], 16) for i in (24, 32, 40))
    footer = whole.slice(length).to_pybytes()
    if zlib.crc32(footer.replace(seal, seal[:40] + b"0" * 8)) != footer_crc:
        raise ValueError("its footer has been altered")
    if _header_crc(whole, records, length) != header_crc:
        raise ValueError("a header has been altered")
    if verify and zlib.crc32(whole.slice(0, length)) != data_crc:
        raise ValueError("its data has been altered")


def _header_crc(whole: pa.Buffer, records: list[pa.RecordBatch], length: int) -> int:
    """The checksum of what lies before, between and behind the values of the record batches."""
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


def _batch_of(fields: pa.Schema, records: list[pa.RecordBatch], about: dict[str, Any]) -> Batch:
    constants = {node: about["constants"][name] for node, name in _LANES.items() if name in about["constants"]}
    stored = [node for node in _LANES if node not in constants and (node != nd.KEY or about["key"] is not None)]
    names = about["names"]
    arrow = pa.schema([fields.field(len(stored) + i).with_name(name) for i, name in enumerate(names)])
    sort_key = SortKey(Schema(arrow), about["key"], [tuple(o) for o in about["order"]])
    chunks = [_chunk_of(record, sort_key, stored, constants) for record in records if record.num_rows]
    batch = Batch(sort_key, chunks)
    if batch.rows != about["rows"]:
        raise ValueError(f"it says that it holds {about['rows']} rows, and holds {batch.rows}")
    batch.__dict__["_survey"], batch.__dict__["_time_survey"] = about["weights"], about["times"]
    return batch


def _chunk_of(record: pa.RecordBatch, sort_key: SortKey, stored: list[int], constants: dict[int, int]) -> Chunk:
    columns = record.columns
    chunk = describe_arrays(sort_key.schema, columns[len(stored) :], record.num_rows, None)
    table = chunk.nodes()
    kept = np.array(list(constants.values()), np.int64)
    for i, node in enumerate(constants):
        table[node, nd.DATA], table[node, nd.MASK] = kept.ctypes.data + 8 * i, 0
    for node, lane in zip(stored, columns, strict=False):
        table[node, nd.DATA], table[node, nd.START], table[node, nd.MASK] = lane.buffers()[1].address, lane.offset, -1
    if not sort_key.own_key:
        table[nd.KEY] = table[nd.HASH]
    table[nd.HASH, nd.CHILD] = sort_key.order_at
    chunk.keep = (record, kept)
    return chunk


def _constants(batch: Batch) -> dict[int, int]:
    """Lanes that are one value for the whole batch."""
    out = {}
    for node in range(nd.WEIGHT, nd.LANES):
        if all(c.nodes()[node, nd.MASK] == 0 for c in batch.chunks):
            values = {int(c.lane(node)[0]) for c in batch.chunks}
            if len(values) == 1:
                out[node] = values.pop()
    return out


def _grouped(batch: Batch) -> Iterator[list[Chunk]]:
    """Chunks that become one record batch."""
    group: list[Chunk] = []
    rows = size = 0
    for chunk in batch.chunks:
        if group and (rows + chunk.rows > _RECORD_ROWS or size + chunk.nbytes() > _RECORD_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(chunk)
        rows += chunk.rows
        size += chunk.nbytes()
    if group or not batch.chunks:
        yield group


class _Summing:
    """A file for Arrow to write to, which keeps the checksum of what passes through it."""

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
