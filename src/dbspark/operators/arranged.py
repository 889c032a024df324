"""State, and what an arrange operator gives: the delta in order, and the integral before and after it.

Operators that need an integral take it from there, so consumers of the same keys share one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dbspark.columnar import Batch, SortKey
from dbspark.trace.spine import Spine

State = tuple[Spine, ...]
"""All that an operator keeps between two ticks."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """A delta in the order of a sort key, with the integral before and after it."""

    delta: Batch
    before: Spine
    after: Spine

    @property
    def sort_key(self) -> SortKey:
        return self.after.sort_key

    @property
    def rows(self) -> int:
        """Rows of the change."""
        return self.delta.rows


__all__ = ["Arranged", "State"]
