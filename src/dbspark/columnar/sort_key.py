"""A sort key: which columns of a schema are the key that batches are ordered by, and the order inside a key.

`key=None` means that the whole row is the key; then the key hash is the row hash and is stored once. `order` names
columns by which the rows of one key are ordered, each as (column, descending, nulls last); without it they are
ordered by row hash. `key=()` gives all rows the same key. Sort keys are interned like schemas.

Rows are sorted by the KEY lane (the hash of the key columns), then by the HASH lane, then by values. The HASH lane
holds the row hash or, where there are order columns, a word that is monotonic in the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from dbspark.columnar.memory import UInt64s, uint64s
from dbspark.columnar.schema import Schema
from dbspark.errors import SchemaError
from dbspark.kernels.memory import hash as kh
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.sort.row_order import order_words
from dbspark.kernels.sort.sort_rows import describe_sort_key

OrderColumn = tuple[int, bool, bool]
"""(column, descending, nulls last)"""

_INTERNED: dict[Any, SortKey] = {}
_mask = np.uint64(0xFFFFFFFFFFFFFFFF)
_mask_word = -1
"""The bits of `_mask` as a signed integer, for kernels whose integer arguments are all signed."""


class SortKey:
    """A schema, its key columns and its order columns."""

    kind: ClassVar[str] = "arrangement"
    version: ClassVar[int] = 1

    __slots__ = (
        "kernel_spec",
        "kernel_spec_address",
        "key",
        "key_nodes",
        "order",
        "order_address",
        "order_spec",
        "own_key",
        "row_nodes",
        "schema",
    )

    schema: Schema
    key: tuple[int, ...] | None
    own_key: int
    """1 where there are key columns, 0 where the key is the whole row and the KEY lane is the HASH lane."""
    key_nodes: Any
    row_nodes: Any
    order: tuple[OrderColumn, ...]
    order_spec: Any
    """The order as kernels read it: the number of its columns, then (node, descending, nulls last) of each."""
    order_address: int
    """The address of `order_spec`, 0 where there is no order."""
    kernel_spec: Any
    """The whole sort key as kernels read it (`kernels.sort.sort_rows`)."""
    kernel_spec_address: int

    def __new__(cls, schema: Schema, key: Sequence[int] | None = None, order: Sequence[OrderColumn] = ()) -> SortKey:
        order = tuple((int(c), bool(descending), bool(last)) for c, descending, last in order)
        if key is not None and tuple(key) == tuple(range(schema.columns)) and not order and key:
            key = None
        if key is None and order:
            raise SchemaError("a sort key of whole rows has no order inside a key; name the key columns")
        identity = (id(schema), None if key is None else tuple(key), order)
        found = _INTERNED.get(identity)
        if found is not None:
            return found
        self = super().__new__(cls)
        self.schema = schema
        self.key = None if key is None else tuple(key)
        self.own_key = int(key is not None)
        self.row_nodes = np.arange(nd.LANES, nd.LANES + schema.columns)
        self.key_nodes = self.row_nodes if key is None else np.array([nd.LANES + c for c in key], np.int64)
        self.order = order
        self.order_spec = np.array([len(order)] + [x for c, d, n in order for x in (nd.LANES + c, d, n)], np.int64)
        self.order_address = self.order_spec.ctypes.data if order else 0
        self.kernel_spec = describe_sort_key(
            self.own_key, schema.columns, schema.node_count, self.order_spec, self.row_nodes, self.key_nodes
        )
        self.kernel_spec_address = self.kernel_spec.ctypes.data
        return _INTERNED.setdefault(identity, self)

    def parameters(self) -> tuple[Any, ...]:
        """Its columns, key and order, for identities (`dbspark.identity`)."""
        return self.schema, self.key, self.order

    def __reduce__(self) -> Any:
        return SortKey, (self.schema, self.key, self.order)

    def __repr__(self) -> str:
        names = self.schema.names if self.key is None else tuple(self.schema.names[c] for c in self.key)
        ordered = [self.schema.names[c] + (" desc" if d else "") for c, d, _ in self.order]
        return f"SortKey({self.schema!r} by {', '.join(names)}{' ordered by ' if ordered else ''}{', '.join(ordered)})"

    def words(self, chunk: Any) -> UInt64s:
        """The HASH lane of a chunk: row hashes, or words that are monotonic in the first order column."""
        if not self.order:
            return hash_rows(chunk, self.row_nodes)
        out = uint64s(chunk.rows)
        column, descending, nulls_last = self.order[0]
        order_words(chunk.table, nd.LANES + column, chunk.rows, int(descending), int(nulls_last), out)
        return out

    def keys(self, chunk: Any, words: UInt64s) -> UInt64s:
        """The KEY lane of a chunk whose HASH lane is `words`."""
        return hash_rows(chunk, self.key_nodes) if self.own_key else words


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
        words = _nested_words(schema, table, chunk.table, int(node), chunk.rows)
        kh.fold_words(address, words.ctypes.data, chunk.rows)
    kh.mask_words(address, chunk.rows, _mask)
    return out


def _nested_words(schema: Schema, table: Any, address: int, index: int, rows: int) -> UInt64s:
    """The hash word of each value of one node (`kernels.memory.hash`), from the hash words of its children."""
    node = schema.nodes[index]
    out = uint64s(rows)
    target = out.ctypes.data
    inner = 0
    keep = None
    if node.kind == nd.STRUCT:
        kh.fill_words(target, rows, kh.STRUCT_WORD)
        for i in range(node.width):
            child = _nested_words(schema, table, address, node.child + i, rows)
            kh.fold_words(target, child.ctypes.data, rows)
    elif node.kind == nd.LIST:
        line = table[index]
        count = kh.last_offset(int(line[nd.OFFSETS]), int(line[nd.START]) + rows)
        keep = _nested_words(schema, table, address, node.child, count)
        inner = keep.ctypes.data
    kh.node_words(address + index * nd.NODE_BYTES, rows, target, inner)
    return out


@contextmanager
def weakened_hash(mask: int) -> Iterator[None]:
    """Tests only: keep the bits of `mask` of every hash, so that hashes collide."""
    global _mask, _mask_word
    before = _mask, _mask_word
    _mask = np.uint64(mask)
    _mask_word = int(_mask.astype(np.int64))
    try:
        yield
    finally:
        _mask, _mask_word = before
