"""The tables of a program as plain JSON, which a manifest stores without interpreting it."""

from __future__ import annotations

import base64

import pyarrow as pa

from dbspark.columnar.schema import Schema
from dbspark.runtime.tables import TableDefinition
from dbspark.storage.store import Committed


def encode_schema(schema: Schema) -> str:
    """A schema as text: its Arrow IPC message in base64."""
    return base64.b64encode(schema.arrow.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> Schema:
    """The inverse of `encode_schema`."""
    return Schema(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))))


def decode_tables(committed: Committed) -> list[TableDefinition]:
    """The table definitions of a committed program."""
    return [
        TableDefinition(t["name"], decode_schema(t["schema"]), tuple(t["key"]), t.get("created", 0))
        for t in committed.program["tables"]
    ]
