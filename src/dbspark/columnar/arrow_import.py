"""Arrow data that somebody hands over, as a chunk or a batch: a fast way for what is as it should be.

Where a table has exactly the columns of a schema (and perhaps one of weights), flat and in one piece, its memory is
described to kernels in one call, and small ones are put in order by the same call, or copied as they are by the next.
Anything else goes the long way (`columnar.conform`), which knows what to say about it.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import sort_key as hashing
from dbspark.columnar.batch import Batch, desk, planned, rows_on_desk, scratch_of
from dbspark.columnar.chunk import CHUNK_ROWS, ONE, ZERO, Chunk
from dbspark.columnar.memory import allocate
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import SortKey
from dbspark.kernels.memory import arrow_import as kh
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.sort import sort_rows as ka

_REMEMBERED = 8
"""Forms of tables that are remembered for each schema."""
_SPARE = 1024
"""Bytes that an arena has for alignment."""


class _Form:
    """Columns that have been handed over, and how they are those of a schema."""

    __slots__ = ("_words", "at", "before", "bytes", "few", "given", "named")

    def __init__(self, schema: Schema, given: pa.Schema, named: str | None, words: list[int]) -> None:
        self.given = given
        self.named = named
        """The column with the weights."""
        self._words = np.array(words, np.int64)
        self.at: int = self._words.ctypes.data
        """What kernels are told of it."""
        self.bytes = 0
        """Those of a row, beside the node table, when rows were last put in order."""
        self.before = schema.node_count * nd.NODE_BYTES
        """Those of the node table."""
        self.few = rows_on_desk(schema, self.before)
        """Rows for which a thread has working memory."""


class _Desk(threading.local):
    """Where a thread has a record batch exported to."""

    def __init__(self) -> None:
        self._memory = allocate(kh.ARROW_ARRAY_BYTES)
        self.struct: int = self._memory.address


_desk = _Desk()
_forms: dict[Schema, list[_Form]] = {}


def handed_batch(sort_key: SortKey, table: pa.Table, weight: str | None = None) -> Batch | None:
    """A table's rows as a batch; None where they are not exactly what is expected."""
    schema, rows = sort_key.schema, table.num_rows
    if not 0 < rows <= CHUNK_ROWS:
        chunk = _chunk(schema, table, weight)
        return None if chunk is None else Batch.from_chunk(sort_key, chunk)
    form, parts = _form(schema, table.schema, weight), table.to_batches()
    if form is None or len(parts) != 1:
        return None
    before = form.before
    scratch = desk.scratch if rows <= form.few else scratch_of(schema, rows, before)
    room = rows * form.bytes + before + _SPARE
    arena, struct = allocate(room), _desk.struct
    given: Any = parts[0]
    given._export_to_c(struct)
    told, at = sort_key.told_at, scratch.address
    size = kh.import_sorted(struct, rows, form.at, told, hashing._mask_word, at, arena.address, room)
    if size == kh.NOT_IMPORTABLE:
        return None
    form.bytes = max(size - before, 0) // rows + 1
    if 0 < size <= room <= 2 * (size + _SPARE):
        return planned(sort_key, scratch, before, arena)
    if size <= 0:  # none stays, or they are too large for one chunk
        chunk = _chunk(schema, table, weight)
        return None if chunk is None else Batch.from_chunk(sort_key, chunk)
    arena = allocate(size)
    ka.fill(told, rows, at + before, arena.address)
    return planned(sort_key, scratch, before, arena)


def handed_copy(schema: Schema, table: pa.Table) -> Chunk | None:
    """A table's rows as they come, in memory of our own; None where they are not exactly what is expected.

    Whoever has handed them over may write into theirs again.
    """
    rows, form, parts = table.num_rows, _form(schema, table.schema, None), table.to_batches()
    if form is None or len(parts) != 1 or not rows:
        return None
    scratch, struct = scratch_of(schema, 0), _desk.struct
    given: Any = parts[0]
    given._export_to_c(struct)
    size = kh.measure_copy(struct, rows, form.at, scratch.address)
    if size == kh.NOT_IMPORTABLE:
        return None
    arena = allocate(size)
    kh.copy_columns(scratch.address, rows, form.at, arena.address)
    return Chunk(schema, rows, arena, None)


def _chunk(schema: Schema, table: pa.Table, weight: str | None) -> Chunk | None:
    """A table's rows as a chunk over the same memory."""
    form, parts = _form(schema, table.schema, weight), table.to_batches()
    if form is None or len(parts) != 1:
        return None
    rows: Any = parts[0]
    buffer, struct = allocate(schema.packing.size), _desk.struct
    rows._export_to_c(struct)
    fits = kh.import_columns(struct, rows.num_rows, form.at, buffer.address)
    return Chunk(schema, rows.num_rows, buffer, rows) if fits else None


def _form(schema: Schema, given: pa.Schema, weight: str | None) -> _Form | None:
    known = _forms.get(schema)
    if known is None:
        known = _forms[schema] = []
    for form in known:
        if form.named == weight and given.equals(form.given):
            return form
    made = None if schema.nested or not schema.columns else _formed(schema, given, weight)
    if made is not None:
        known[:] = [made, *known[: _REMEMBERED - 1]]  # two threads may do this at once, to the same end
    return made


def _formed(schema: Schema, given: pa.Schema, weight: str | None) -> _Form | None:
    at = -1
    if weight is not None:
        at = given.get_field_index(weight)
        if at < 0 or given.field(at).type != pa.int64():
            return None
    chosen = [i for i in range(len(given)) if i != at]
    fields = [given.field(i) for i in chosen]
    if [f.name for f in fields] != list(schema.names) or [f.type for f in fields] != list(schema.types):
        return None
    words = [schema.columns, at, ZERO.address, ONE.address, schema.template_at, schema.node_count]
    required = set(schema.required)
    for c, i in enumerate(chosen):
        words += (i, int(c in required))
    return _Form(schema, given, weight, words)
