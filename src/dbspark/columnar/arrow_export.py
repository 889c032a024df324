"""Zero-copy export of chunks through the Arrow C data interface.

pyarrow takes some microseconds to make an array, for every column, which is more than most kernels of a small tick. The
C data interface takes all columns in one call (`kernels.memory.arrow_export`). The consumer keeps the chunk alive: as
long as the record batch, a column or a buffer of it exists, so does the memory of the chunk.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dbspark.columnar.memory import ThreadScratch, allocate
from dbspark.kernels.memory import arrow_export as kl
from dbspark.kernels.memory.arrow_import import ARROW_ARRAY_BYTES

_ARROW_ARRAY = ThreadScratch(ARROW_ARRAY_BYTES)
"""The `ArrowArray` struct that a kernel fills in and pyarrow consumes."""


def export_record_batch(chunk: Any, schema: pa.Schema, weighted: bool) -> pa.RecordBatch | None:
    """The flat columns of a chunk as a record batch; `weighted`: followed by its weights.

    None where a column has no buffers at all, which this interface cannot express: export column by column then.
    """
    rows, columns = chunk.rows, chunk.schema.columns
    words = kl.WORDS_PER_COLUMN * (columns + weighted) + 1 + (rows if weighted else 0)
    children, struct = allocate(8 * words), _ARROW_ARRAY.address
    owner = children, chunk  # referenced by the struct until the record batch is released
    if not kl.export_columns(
        struct, chunk.table, rows, columns, int(weighted), *kl.release_callbacks(), id(owner), children.address
    ):
        return None
    batch: pa.RecordBatch = pa.RecordBatch._import_from_c(struct, schema)
    return batch
