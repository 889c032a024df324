"""`ZSetRef`: a whole Z-set on a stream of values: a reference to a spine, which is never copied."""

from __future__ import annotations

from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.trace.spine import Spine


class ZSetRef:
    """A read-only view of the Z-set in a spine at one moment. Taking one costs nothing."""

    __slots__ = ("spine",)

    def __init__(self, spine: Spine) -> None:
        self.spine = spine

    @property
    def schema(self) -> Schema:
        return self.spine.sort_key.schema

    def delta(self) -> Delta:
        """All rows as one delta."""
        return Delta.of(self.spine.consolidated())
