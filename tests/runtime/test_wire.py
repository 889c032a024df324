"""Messages of workers: what is written is read, in one record batch or many; only signed code is unpickled."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError
from dbspark.runtime import wire
from dbspark.storage.segment import batch_bytes, decode_batch
from tests.runtime.test_exchange import CodeOnUnpickling

ORDER = SortKey(Schema.of("k BIGINT, v STRING"))


class Stream:
    """What is written can be read, with payloads anywhere in memory."""

    def __init__(self, shift=0):
        self.chunks = []
        self.shift = shift

    def write_metadata(self, head):
        self.chunks.append((None, pa.py_buffer(head)))

    def write_with_metadata(self, batch, head):
        slots, payloads = batch.columns
        valid, offsets, data = payloads.buffers()
        moved = pa.py_buffer(bytes(self.shift) + data.to_pybytes()).slice(self.shift)
        payloads = pa.Array.from_buffers(payloads.type, len(payloads), [valid, offsets, moved])
        self.chunks.append((pa.RecordBatch.from_arrays([slots, payloads], schema=batch.schema), pa.py_buffer(head)))

    def read_chunk(self):
        if not self.chunks:
            raise StopIteration

        class Chunk:
            data, app_metadata = self.chunks.pop(0)

        return Chunk


def batch(rows):
    return Batch.from_arrow(pa.table({"k": np.arange(rows), "v": [str(i) for i in range(rows)]}), ORDER)


@pytest.mark.parametrize("shift", [0, 1, 8])
@pytest.mark.parametrize("limits", [(16 << 20, 1 << 19), (1, 1 << 19), (1 << 12, 100)])
def test_what_is_written_is_read(monkeypatch, shift, limits):
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", limits[0])
    monkeypatch.setattr(wire, "MAX_PAYLOAD_ROWS", limits[1])
    stream, sent = Stream(shift), batch(1000)
    wire.write_message(stream, {"number": 1}, [("a", sent), ("b", batch_bytes(batch(3))), ("a", batch(1))])
    wire.write_message(stream, {"number": 2})
    got = wire.read_message(stream)
    assert got.header == {"number": 1}
    rows = {"a": 0, "b": 0}
    for slot, payload in got.rows:
        decoded = decode_batch(payload, ORDER)
        rows[slot] += decoded.rows
        assert all(row in set(zip(range(1000), map(str, range(1000)), strict=True)) for row in _rows(decoded))
    assert rows == {"a": 1001, "b": 3}
    assert wire.read_message(stream) == ({"number": 2}, [], 0)
    with pytest.raises(StopIteration):
        wire.read_message(stream)


def _rows(some):
    return zip(*(c.to_pylist() for c in some.to_arrow().columns), strict=True)


def test_only_signed_code_is_unpickled(tmp_path):
    mark = tmp_path / "it has run"
    code = pickle.dumps(CodeOnUnpickling(str(mark)))
    for signature in ("", wire.signature_of(b"another key", code), wire.signature_of(b"key", code + b".")):
        with pytest.raises(DbsparkError, match="has not signed"):
            wire.verified_code(b"key", code, signature)
    assert not mark.exists()
    wire.verified_code(b"key", code, wire.signature_of(b"key", code))
    assert mark.exists()
