"""Import of Arrow tables through the C data interface: one call for all columns.

A table is *importable* where it has exactly the columns of a schema, in order and type, flat, in one record batch and
without NULLs in NOT NULL columns. It may have one more column, of int64 weights. One kernel call writes the addresses
of its buffers into a node table and, for a table of at most `CHUNK_ROWS` rows, also sorts the rows (`import_batch`); a
second call copies them in their own order instead (`import_copy`).

Functions return None for any other table; they never raise because of its schema. The caller then uses
`columnar.conform`, which casts what can be cast and otherwise raises an error that names the column.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from dbspark.columnar import sort_key as hashing
from dbspark.columnar.batch import Batch
from dbspark.columnar.chunk import CHUNK_ROWS, ONE, ZERO, Chunk
from dbspark.columnar.memory import ThreadScratch, allocate
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_batch import PLAN_SCRATCH, chunk_of_plan, plan_scratch, rows_in_thread_scratch
from dbspark.columnar.sort_key import SortKey
from dbspark.kernels.memory import arrow_import as kh
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.sort import sort_rows as ka

MAX_MAPPINGS_PER_SCHEMA: Final = 8
"""Column mappings that are cached for each schema; they differ in the name and place of the weight column."""
_ALIGNMENT_BYTES: Final = 1024
"""Bytes of an arena that are spent at most on the alignment of its buffers."""


class _ColumnMapping:
    """How the columns of an importable Arrow schema map onto those of a `Schema`, as kernels read it."""

    __slots__ = ("_spec", "address", "row_bytes", "scratch_rows", "source", "table_bytes", "weight_column")

    def __init__(self, schema: Schema, source: pa.Schema, weight_column: str | None, spec: list[int]) -> None:
        self.source = source
        self.weight_column = weight_column
        self._spec = np.array(spec, np.int64)
        self.address: int = self._spec.ctypes.data
        """The address of the mapping (`kernels.memory.arrow_import`)."""
        self.row_bytes = 0
        """Bytes of a row in the arena of the last import, rounded up: an estimate for the next one."""
        self.table_bytes = schema.node_count * nd.NODE_BYTES
        """Bytes of the node table."""
        self.scratch_rows = rows_in_thread_scratch(schema, self.table_bytes)
        """The largest number of rows for which the scratch memory of a thread is large enough."""


_ARROW_ARRAY = ThreadScratch(kh.ARROW_ARRAY_BYTES)
"""The `ArrowArray` struct that pyarrow fills in and a kernel consumes."""
_mappings: dict[Schema, list[_ColumnMapping]] = {}


def import_batch(sort_key: SortKey, table: pa.Table, weight: str | None = None) -> Batch | None:
    """The rows of a table as a batch, with the weights of a column or 1 each; None if the table is not importable."""
    schema, rows = sort_key.schema, table.num_rows
    if not 0 < rows <= CHUNK_ROWS:
        chunk = _chunk(schema, table, weight)
        return None if chunk is None else Batch.from_chunk(sort_key, chunk)
    mapping, parts = _mapping(schema, table.schema, weight), table.to_batches()
    if mapping is None or len(parts) != 1:
        return None
    table_bytes = mapping.table_bytes
    scratch = PLAN_SCRATCH.buffer if rows <= mapping.scratch_rows else plan_scratch(schema, rows, table_bytes)
    capacity = rows * mapping.row_bytes + table_bytes + _ALIGNMENT_BYTES
    arena, struct = allocate(capacity), _ARROW_ARRAY.address
    record_batch: Any = parts[0]
    record_batch._export_to_c(struct)
    spec, at = sort_key.kernel_spec_address, scratch.address
    size = kh.import_sorted(struct, rows, mapping.address, spec, hashing._mask_word, at, arena.address, capacity)
    if size == kh.NOT_IMPORTABLE:
        return None
    mapping.row_bytes = max(size - table_bytes, 0) // rows + 1
    if 0 < size <= capacity <= 2 * (size + _ALIGNMENT_BYTES):
        return Batch.of(chunk_of_plan(sort_key, scratch, table_bytes, arena))
    if size <= 0:  # all rows cancel, or they are too large for one chunk
        chunk = _chunk(schema, table, weight)
        return None if chunk is None else Batch.from_chunk(sort_key, chunk)
    arena = allocate(size)
    ka.fill(spec, rows, at + table_bytes, arena.address)
    return Batch.of(chunk_of_plan(sort_key, scratch, table_bytes, arena))


def import_copy(schema: Schema, table: pa.Table) -> Chunk | None:
    """A copy of the rows of a table, in their own order; None if the table is not importable or empty.

    It shares no memory with the table, whose producer may reuse its buffers.
    """
    rows, mapping, parts = table.num_rows, _mapping(schema, table.schema, None), table.to_batches()
    if mapping is None or len(parts) != 1 or not rows:
        return None
    scratch, struct = plan_scratch(schema, 0), _ARROW_ARRAY.address
    record_batch: Any = parts[0]
    record_batch._export_to_c(struct)
    size = kh.measure_copy(struct, rows, mapping.address, scratch.address)
    if size == kh.NOT_IMPORTABLE:
        return None
    arena = allocate(size)
    kh.copy_columns(scratch.address, rows, mapping.address, arena.address)
    return Chunk(schema, rows, arena, None)


def _chunk(schema: Schema, table: pa.Table, weight: str | None) -> Chunk | None:
    """The rows of a table as a chunk over the same memory; None if the table is not importable."""
    mapping, parts = _mapping(schema, table.schema, weight), table.to_batches()
    if mapping is None or len(parts) != 1:
        return None
    record_batch: Any = parts[0]
    buffer, struct = allocate(schema.packing.size), _ARROW_ARRAY.address
    record_batch._export_to_c(struct)
    fits = kh.import_columns(struct, record_batch.num_rows, mapping.address, buffer.address)
    return Chunk(schema, record_batch.num_rows, buffer, record_batch) if fits else None


def _mapping(schema: Schema, source: pa.Schema, weight: str | None) -> _ColumnMapping | None:
    """The mapping of an Arrow schema, from the cache if it is there; None if it is not importable."""
    mappings = _mappings.get(schema)
    if mappings is None:
        mappings = _mappings[schema] = []
    for mapping in mappings:
        if mapping.weight_column == weight and source.equals(mapping.source):
            return mapping
    new = None if schema.nested or not schema.columns else _new_mapping(schema, source, weight)
    if new is not None:
        mappings[:] = [
            new,
            *mappings[: MAX_MAPPINGS_PER_SCHEMA - 1],
        ]  # two threads may do this at once: both results are equal
    return new


def _new_mapping(schema: Schema, source: pa.Schema, weight: str | None) -> _ColumnMapping | None:
    weight_at = -1
    if weight is not None:
        weight_at = source.get_field_index(weight)
        if weight_at < 0 or source.field(weight_at).type != pa.int64():
            return None
    columns = [i for i in range(len(source)) if i != weight_at]
    fields = [source.field(i) for i in columns]
    if [f.name for f in fields] != list(schema.names) or [f.type for f in fields] != list(schema.types):
        return None
    spec = [schema.columns, weight_at, ZERO.address, ONE.address, schema.template_address, schema.node_count]
    required = set(schema.required)
    for c, i in enumerate(columns):
        spec += (i, int(c in required))
    return _ColumnMapping(schema, source, weight, spec)
