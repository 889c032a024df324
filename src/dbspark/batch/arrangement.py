"""An arrangement: which columns of a schema are the key that batches are ordered by.

`key=None` means that the whole row is the key; then the key hash is the row hash and is stored once. Arrangements
are interned like schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dbspark.batch.memory import UInt64s, uint64s
from dbspark.batch.schema import Schema
from dbspark.kernels import hash as kh
from dbspark.kernels import nodes as nd

_INTERNED: dict[Any, Arrangement] = {}
_mask = np.uint64(0xFFFFFFFFFFFFFFFF)


class Arrangement:
    """A schema and its key columns."""

    __slots__ = ("key", "key_nodes", "own_key", "row_nodes", "schema")

    schema: Schema
    key: tuple[int, ...] | None
    own_key: int
    key_nodes: Any
    row_nodes: Any

    def __new__(cls, schema: Schema, key: Sequence[int] | None = None) -> Arrangement:
        if key is not None and tuple(key) == tuple(range(schema.columns)):
            key = None
        identity = (id(schema), None if key is None else tuple(key))
        found = _INTERNED.get(identity)
        if found is not None:
            return found
        self = super().__new__(cls)
        self.schema = schema
        self.key = None if key is None else tuple(key)
        self.own_key = int(key is not None)
        self.row_nodes = np.arange(nd.LANES, nd.LANES + schema.columns)
        self.key_nodes = self.row_nodes if key is None else np.array([nd.LANES + c for c in key], np.int64)
        return _INTERNED.setdefault(identity, self)

    def __reduce__(self) -> Any:
        return Arrangement, (self.schema, self.key)

    def __repr__(self) -> str:
        names = self.schema.names if self.key is None else tuple(self.schema.names[c] for c in self.key)
        return f"Arrangement({self.schema!r} by {', '.join(names)})"


def hash_rows(chunk: Any, nodes: Any) -> UInt64s:
    """The hash of some columns of every row of a chunk."""
    out = uint64s(chunk.rows)
    schema: Schema = chunk.schema
    if not schema.nested:
        kh.hash_columns(chunk.table, nodes, chunk.rows, _mask, out)
        return out
    address = out.ctypes.data
    kh.fill_words(address, chunk.rows, kh.SEED)
    table = chunk.nodes()
    for node in nodes:
        words = _words(schema, table, chunk.table, int(node), chunk.rows)
        kh.fold_words(address, words.ctypes.data, chunk.rows)
    kh.mask_words(address, chunk.rows, _mask)
    return out


def _words(schema: Schema, table: Any, address: int, index: int, rows: int) -> UInt64s:
    node = schema.nodes[index]
    out = uint64s(rows)
    target = out.ctypes.data
    inner = 0
    keep = None
    if node.kind == nd.STRUCT:
        kh.fill_words(target, rows, kh.STRUCT_WORD)
        for i in range(node.width):
            child = _words(schema, table, address, node.child + i, rows)
            kh.fold_words(target, child.ctypes.data, rows)
    elif node.kind == nd.LIST:
        line = table[index]
        count = kh.last_offset(int(line[nd.OFFSETS]), int(line[nd.START]) + rows)
        keep = _words(schema, table, address, node.child, count)
        inner = keep.ctypes.data
    kh.node_words(address + index * nd.NODE_BYTES, rows, target, inner)
    return out


@contextmanager
def weakened_hash(mask: int) -> Iterator[None]:
    """For tests: keep only some bits of every hash, so that collisions happen all the time."""
    global _mask
    before = _mask
    _mask = np.uint64(mask)
    try:
        yield
    finally:
        _mask = before
