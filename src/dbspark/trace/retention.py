"""Retention: rows that nobody will ask for again, such as those below a watermark.

A bound on a column says that rows with a smaller value are to be forgotten. Merges drop them when they come across
them; until then readers leave them out, so from the moment it is declared a bound holds for every read, and before it
for none. Bounds only rise. A NULL is below no bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar import Batch
from dbspark.columnar.schema import Schema
from dbspark.errors import SchemaError
from dbspark.kernels.memory.layout import ROW_BITS
from dbspark.trace.config import Compaction
from dbspark.trace.lookup import Hits


class Retention:
    """Bounds on columns; immutable."""

    __slots__ = ("_filter", "bounds")

    def __init__(self, bounds: dict[int, pa.Scalar] | None = None) -> None:
        self.bounds = bounds or {}
        self._filter: Callable[[Batch], Batch] | None = self.applied if self.bounds else None

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def raised(self, schema: Schema, column: str, at_least: Any) -> Retention:
        """With a bound on one more column, or a higher one."""
        index = schema.index(column)
        dtype = schema.types[index]
        try:
            bound = pa.scalar(at_least, dtype)
            pc.less(bound, bound)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"column {column!r} of type {dtype} has no bound {at_least!r}: {error}") from None
        if not bound.is_valid:
            raise SchemaError(f"a bound on column {column!r} is a value, not NULL")
        before = self.bounds.get(index)
        if before is not None and pc.less(bound, before).as_py():
            raise SchemaError(f"the bound on column {column!r} is {before} already; bounds only rise")
        return Retention({**self.bounds, index: bound})

    def filter(self) -> Callable[[Batch], Batch] | None:
        """What merges apply to their output."""
        return self._filter

    def changed(self, compaction: Compaction | None) -> bool:
        return compaction is not None and compaction.retain is not self._filter

    def mask(self, columns: Callable[[int], pa.Array]) -> Any:
        """Which rows stay, given their columns by number."""
        keep = None
        for index, bound in self.bounds.items():
            low = np.asarray(pc.fill_null(pc.less(columns(index), bound), False))
            keep = ~low if keep is None else keep & ~low
        return keep

    def applied(self, batch: Batch) -> Batch:
        """The rows of a batch that stay."""
        if not self.bounds or not batch.rows:
            return batch
        keep = []
        for c, chunk in enumerate(batch.chunks):
            arrays = chunk.arrays()
            keep.append(np.flatnonzero(self.mask(arrays.__getitem__)) + (c << ROW_BITS))
        pos = np.concatenate(keep)
        return batch if len(pos) == batch.rows else batch.select(pos).with_description(batch.description)

    def kept(self, hits: Hits) -> Hits:
        """The hits that stay."""
        if not self.bounds or not len(hits):
            return hits
        return hits.only(self.mask(lambda c: hits.columns([c])[0]))
