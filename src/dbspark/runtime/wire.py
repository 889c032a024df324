"""Messages between the driver and resident workers, and between workers, over Arrow Flight.

A *message* is a header (JSON) and rows (slot, payload) whose payloads are encoded batches (`dbspark.storage.segment`).
It travels as one record batch of a `DoExchange` stream that stays open, or as several where it is large; a message
without rows is metadata alone. A payload is read where it has arrived, without a copy.

1. Data are Arrow and JSON. Nothing is unpickled but code that `verified_code` has accepted, and that only from the
   driver.
2. Every call carries the secret of the attempt; a call without it is refused before its handler begins
   (`SecretCheck`). The secret travels in the closure of the Spark tasks, as Spark's own secrets do.
3. Back-pressure is that of HTTP/2: a stream whose reader does not read lets its writer wait.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import pickle
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from dbspark.columnar import Batch
from dbspark.errors import DbsparkError
from dbspark.storage.segment import encode_batch, part_bytes

_log = logging.getLogger("dbspark")

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Payload bytes after which a message goes on in another record batch: bounds what gRPC copies at once."""
MAX_PAYLOAD_ROWS: Final = 1 << 19
"""Rows of one payload; larger batches are sent as several, so that no record batch comes near gRPC's 2 GiB."""
_ALIGN: Final = 8
"""Bytes to which kernels expect columns to be aligned."""
WIRE_SCHEMA: Final = pa.schema([pa.field("slot", pa.string(), False), pa.field("payload", pa.large_binary(), False)])
_AUTHORIZATION: Final = "authorization"

WireRow = tuple[str, Any]
"""(slot, payload): a batch, or bytes or a buffer that encode one."""


class WireMessage(NamedTuple):
    """One message as it has been received."""

    header: dict[str, Any]
    rows: list[tuple[str, pa.Buffer]]
    size: int
    """Bytes of its payloads."""


def write_message(writer: Any, header: Mapping[str, Any], rows: Iterable[WireRow] = ()) -> int:
    """Write a message to a stream; returns the bytes of its payloads."""
    total = 0
    head = json.dumps(header).encode()
    pending: list[tuple[str, list[Any], int]] = []
    size = 0
    for slot, payload in rows:
        for parts, length in _payload_parts(payload):
            if size and size + length > MAX_MESSAGE_BYTES:
                writer.write_with_metadata(_record_batch(pending, size), b"")
                pending, size = [], 0
            pending.append((slot, parts, length))
            size += length
            total += length
    if pending:
        writer.write_with_metadata(_record_batch(pending, size), head)
    else:
        writer.write_metadata(head)
    return total


def read_message(reader: Any) -> WireMessage:
    """The next message of a stream; raises `StopIteration` at its end."""
    rows: list[tuple[str, pa.Buffer]] = []
    size = 0
    while True:
        chunk = reader.read_chunk()
        if chunk.data is not None and chunk.data.num_rows:
            slots, payloads = chunk.data.columns
            offsets = pa.Array.from_buffers(pa.int64(), len(payloads) + 1, [None, payloads.buffers()[1]]).to_pylist()
            data = payloads.buffers()[2]
            size += data.size
            if data.address % _ALIGN:
                data = pa.py_buffer(data.to_pybytes())
            for i, slot in enumerate(slots.to_pylist()):
                rows.append((slot, data.slice(offsets[i], offsets[i + 1] - offsets[i])))
        if chunk.app_metadata is not None and chunk.app_metadata.size:
            return WireMessage(json.loads(chunk.app_metadata.to_pybytes()), rows, size)


def _payload_parts(payload: Any) -> Iterator[tuple[list[Any], int]]:
    if isinstance(payload, Batch):
        for begin in range(0, payload.rows, MAX_PAYLOAD_ROWS):
            rows = min(MAX_PAYLOAD_ROWS, payload.rows - begin)
            piece = payload if rows == payload.rows else payload.slice(begin, rows)
            parts = encode_batch(piece)
            yield parts, sum(part_bytes(p) for p in parts)
    else:
        yield [payload], part_bytes(payload)


def _record_batch(rows: list[tuple[str, list[Any], int]], size: int) -> pa.RecordBatch:
    """Rows as one record batch; every payload begins at a multiple of 64 bytes, as extents end at one."""
    offsets, at = [0], 0
    for _, _, length in rows:
        at += length
        offsets.append(at)
    assert at == size
    data = pa.py_buffer(b"".join([part for _, parts, _ in rows for part in parts]))
    payloads = pa.Array.from_buffers(
        pa.large_binary(), len(rows), [None, pa.array(offsets, pa.int64()).buffers()[1], data]
    )
    slots = pa.array([slot for slot, _, _ in rows], pa.string())
    return pa.RecordBatch.from_arrays([slots, payloads], schema=WIRE_SCHEMA)


# ---------------------------------------------------------------------- who may call


class SecretCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls that do not carry the secret of the attempt."""

    def __init__(self, secret: str) -> None:
        self._expected = f"Bearer {secret}".encode()

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> None:
        given = [v for name, values in headers.items() if name.lower() == _AUTHORIZATION for v in values]
        presented = given[0] if given else b""
        presented = presented.encode() if isinstance(presented, str) else presented
        if not hmac.compare_digest(presented, self._expected):
            _log.warning("refused a call (%s) without the secret of this pipeline", info.method)
            raise fl.FlightUnauthenticatedError("this endpoint serves the workers of one pipeline only")


def call_options(secret: str, timeout: float | None = None) -> fl.FlightCallOptions:
    """Options of a call that carries the secret."""
    return fl.FlightCallOptions(headers=[(_AUTHORIZATION.encode(), f"Bearer {secret}".encode())], timeout=timeout)


def address_towards(host: str, port: int) -> str:
    """The address of this machine by which `host` can reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


# ---------------------------------------------------------------------- code


def signature_of(key: bytes, code: bytes) -> str:
    """The signature of pickled code by the key that the driver shares with one worker."""
    return hmac.new(key, code, hashlib.sha256).hexdigest()


def verified_code(key: bytes, code: bytes, signature: str) -> Any:
    """Unpickle code, if it is signed by the driver."""
    if not hmac.compare_digest(signature_of(key, code), signature):
        raise DbsparkError("code came to a worker that its driver has not signed; it was not run")
    return pickle.loads(code)


__all__ = [
    "MAX_MESSAGE_BYTES",
    "WIRE_SCHEMA",
    "SecretCheck",
    "WireMessage",
    "WireRow",
    "address_towards",
    "call_options",
    "read_message",
    "signature_of",
    "verified_code",
    "write_message",
]
