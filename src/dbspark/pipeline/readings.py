"""Ways to read the rows of a table or view: as Arrow, as a DataFrame of pandas or polars, or as text on a screen.

All of them are made from one batch, which never changes: a reader that takes its time reads one tick, whatever is
committed meanwhile. Arrow consumers (`polars.DataFrame(view)`, `duckdb.from_arrow(view)`) get the chunks of the batch
over the same memory; only a chunk in which a row has a weight other than 1 is copied. The cost of `show` depends on the
rows that it shows, not on all.

A `RecordBatchReader` has all of its record batches before it is returned, because consumers may read it on threads that
Python has not made, and no Python code may run there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch
from dbspark.errors import ConfigError, DbsparkError
from dbspark.pipeline.display import DEFAULT_WIDTH, counted, html_table, text_table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

HTML_ROWS = 20
"""Rows that a notebook shows of a table or view: as many as `show` prints."""


class Readings:
    """The rows of something, in the forms that people and libraries want."""

    name: str

    @abstractmethod
    def _batch(self) -> Batch:
        """The rows with their weights; a value that does not change."""

    @property
    @abstractmethod
    def tick(self) -> int:
        """The tick that it reads."""

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches; a row of weight 2 appears twice."""
        batch = self._batch()
        return pa.Table.from_batches(list(_record_batches(batch)), batch.schema.arrow).to_reader()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """The rows as a pandas DataFrame. `options` are those of `pyarrow.Table.to_pandas`."""
        return self.to_reader().read_all().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars DataFrame."""
        try:
            import polars
        except ImportError as error:
            raise DbsparkError(
                "to_polars() needs polars, which is not installed here. Install it with `pip install polars`, or use "
                "to_arrow() or to_pandas()"
            ) from error
        frame: pl.DataFrame = polars.DataFrame(self)
        return frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for consumers of the Arrow PyCapsule interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def show(self, n: int = 20, truncate: bool | int = True) -> None:
        """Print the first `n` rows, as Spark's `DataFrame.show` does; they are in no order.

        `truncate`: cut what is longer than so many characters; True: 20, False: nothing.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ConfigError(f"show: n is {n!r}; it is a number of rows, 0 or more")
        if not isinstance(truncate, int) or truncate < 0:
            raise ConfigError(f"show: truncate is {truncate!r}; it is True, False or a number of characters")
        width = DEFAULT_WIDTH if truncate is True else int(truncate)
        rows, more = _first_rows(self._batch(), n)
        print(text_table(rows, width, more))  # noqa: T201 (that is what it is for)

    def _repr_html_(self) -> str:
        tick, batch = self.tick, self._batch()
        rows, _ = _first_rows(batch, HTML_ROWS)
        total = int(np.maximum(batch.weights(), 0).sum())
        shown = f", {rows.num_rows} of them shown" if rows.num_rows < total else ""
        count = f"{counted(total, 'row')}{shown}"
        return html_table(f"{type(self).__name__} {self.name}", f"tick {tick}: {count}", rows)


def _first_rows(batch: Batch, n: int) -> tuple[pa.Table, bool]:
    """Some `n` rows, and whether there are more."""
    found, parts = 0, []
    for part in _record_batches(batch):
        parts.append(part.slice(0, n - found))
        found += part.num_rows
        if found > n:
            break
    return pa.Table.from_batches(parts, batch.schema.arrow), found > n


def _record_batches(batch: Batch) -> Iterator[pa.RecordBatch]:
    """The rows of a batch, each as often as its weight says."""
    schema = batch.schema.arrow
    for part in batch.chunks:
        rows, weights = part.record_batch(schema), Batch(batch.sort_key, [part]).weights()
        if (weights != 1).any():
            rows = rows.take(pa.array(np.repeat(np.arange(len(weights)), np.maximum(weights, 0))))
        if rows.num_rows:
            yield rows


__all__ = ["Readings"]
