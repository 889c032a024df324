"""Rows that are handed out as Arrow data, over the memory in which they are.

To make an Arrow array of every column takes microseconds each, more than most kernels of a small tick. Arrow's C data
interface takes all columns in one call (`kernels.memory.arrow_export`); whoever has the record batch, or a column of
it, keeps the chunk.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from dbspark.columnar.memory import allocate
from dbspark.kernels.memory import arrow_export as kl
from dbspark.kernels.memory.arrow_import import ARROW_ARRAY_BYTES


class _Desk(threading.local):
    """Where a thread has structs written to."""

    def __init__(self) -> None:
        self._memory = allocate(ARROW_ARRAY_BYTES)
        self.struct: int = self._memory.address


_desk = _Desk()


def lent_batch(chunk: Any, schema: pa.Schema, weighted: bool) -> pa.RecordBatch | None:
    """The flat columns of a chunk as a record batch, with its weights behind them if they are wanted.

    None where a column has no memory at all: one array after the other is made then.
    """
    rows, columns = chunk.rows, chunk.schema.columns
    words = kl.WORDS_PER_COLUMN * (columns + weighted) + 1 + (rows if weighted else 0)
    room, struct = allocate(8 * words), _desk.struct
    kept = room, chunk  # until the record batch is released
    if not kl.export_columns(
        struct, chunk.table, rows, columns, int(weighted), *kl.release_callbacks(), id(kept), room.address
    ):
        return None
    batch: pa.RecordBatch = pa.RecordBatch._import_from_c(struct, schema)
    return batch
