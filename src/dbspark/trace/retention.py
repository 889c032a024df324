"""Retention: bounds on columns below which rows are dropped, such as a watermark.

Merges drop rows below a bound when they read them; until then every read filters them out, so a bound holds for all
reads from the moment it is set. Bounds only rise. A NULL is below no bound.
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
from dbspark.trace.lookup import FoundRows


class Retention:
    """Bounds on columns; immutable."""

    __slots__ = ("_filter", "bounds")

    def __init__(self, bounds: dict[int, pa.Scalar] | None = None) -> None:
        self.bounds = bounds or {}
        self._filter: Callable[[Batch], Batch] | None = self.filter_batch if self.bounds else None

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def with_bound(self, schema: Schema, column: str, at_least: Any) -> Retention:
        """This retention with a bound on one more column, or a higher bound on a column that has one."""
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

    def merge_filter(self) -> Callable[[Batch], Batch] | None:
        """The filter that merges apply to their output; None where there are no bounds."""
        return self._filter

    def differs_from(self, compaction: Compaction | None) -> bool:
        return compaction is not None and compaction.retain is not self._filter

    def mask(self, columns: Callable[[int], pa.Array]) -> Any:
        """A mask of the rows that stay, given their columns by number."""
        stays = None
        for index, bound in self.bounds.items():
            low = np.asarray(pc.fill_null(pc.less(columns(index), bound), False))
            stays = ~low if stays is None else stays & ~low
        return stays

    def filter_batch(self, batch: Batch) -> Batch:
        """The rows of a batch that stay."""
        if not self.bounds or not batch.rows:
            return batch
        stays = []
        for c, chunk in enumerate(batch.chunks):
            arrays = chunk.arrays()
            stays.append(np.flatnonzero(self.mask(arrays.__getitem__)) + (c << ROW_BITS))
        pos = np.concatenate(stays)
        return batch if len(pos) == batch.rows else batch.select(pos).with_description(batch.description)

    def filter_found(self, found: FoundRows) -> FoundRows:
        """The found rows that stay."""
        if not self.bounds or not len(found):
            return found
        return found.only(self.mask(lambda c: found.columns([c])[0]))
