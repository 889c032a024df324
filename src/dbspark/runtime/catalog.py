"""How a program is described beside the state: plain JSON, which the store keeps and does not look into."""

from __future__ import annotations

import base64

import pyarrow as pa

from dbspark.columnar.schema import Schema
from dbspark.runtime.tables import TableDefinition
from dbspark.storage.store import Committed


def encode_schema(schema: Schema) -> str:
    """A schema, names and types and all."""
    return base64.b64encode(schema.arrow.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> Schema:
    """The schema that a text stands for."""
    return Schema(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))))


def decode_tables(found: Committed) -> list[TableDefinition]:
    """The tables of a program."""
    return [
        TableDefinition(t["name"], decode_schema(t["schema"]), tuple(t["key"]), t.get("created", 0))
        for t in found.program["tables"]
    ]
