"""Arrow data that somebody hands over, as a chunk: a fast way for what is as it should be.

Where a table has exactly the columns of a schema (and perhaps one of weights), flat and in one piece, its memory is
described to kernels in one call. Anything else goes the long way (`batch.conform`), which knows what to say about it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dbspark.batch.chunk import ONE, ZERO, Chunk
from dbspark.batch.memory import Int64s, allocate
from dbspark.batch.schema import Schema
from dbspark.kernels import handed as kh

_REMEMBERED = 8
"""Forms of tables that are remembered for each schema."""


class _Form(NamedTuple):
    """Columns that have been handed over, and how they are those of a schema."""

    given: pa.Schema
    named: str | None
    """The column with the weights."""
    places: Int64s
    at: int
    """The address of `places`."""
    weight: int


_forms: dict[Schema, list[_Form]] = {}


def handed(schema: Schema, table: pa.Table, weight: str | None = None) -> Chunk | None:
    """A table's rows as a chunk over the same memory; None where they are not exactly what is expected."""
    form = _form(schema, table.schema, weight)
    parts = table.to_batches()
    if form is None or len(parts) != 1:
        return None
    rows: Any = parts[0]
    buffer, struct = allocate(schema.packing.size), allocate(kh.STRUCT_BYTES)
    rows._export_to_c(struct.address)
    if not kh.describe(
        struct.address, rows.num_rows, schema.columns, form.at, form.weight, ZERO.address, ONE.address,
        schema.template_at, schema.node_count, buffer.address,
    ):  # fmt: skip
        return None
    return Chunk(schema, rows.num_rows, buffer, rows)


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
    required = set(schema.required)
    places = np.array([(i, int(c in required)) for c, i in enumerate(chosen)], np.int64)
    return _Form(given, weight, places, places.ctypes.data, at)
