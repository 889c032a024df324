"""`ZSetRef`: the value of an integral, as a stream of values carries it: a spine, read in place, never copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dbspark.columnar.delta import Delta
from dbspark.columnar.rows import Row, row_normaliser
from dbspark.columnar.schema import Schema
from dbspark.trace.lookup import Keys, probe
from dbspark.trace.spine import Spine


class ZSetRef:
    """A read-only view of the Z-set in a spine at one moment. Taking one costs nothing."""

    __slots__ = ("spine",)

    def __init__(self, spine: Spine) -> None:
        self.spine = spine

    @property
    def schema(self) -> Schema:
        return self.spine.sort_key.schema

    def iter(self) -> Iterator[tuple[Row, int]]:
        """Rows and weights as Python values."""
        return Delta.of(self.spine.consolidated()).items()

    def lookup_by_key(self, *key: Any) -> list[tuple[Row, int]]:
        """The rows of one key."""
        columns = self.spine.sort_key.key
        form = row_normaliser(self.schema if columns is None else self.schema.select(columns))
        hits = probe(self.spine, Keys.of(self.spine.sort_key, [form(key)]))
        return list(Delta.of(hits.batch()).items())

    def delta(self) -> Delta:
        """Everything, as what a stream of values carries."""
        return Delta.of(self.spine.consolidated())
