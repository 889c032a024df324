"""`State`, the state of an operator, and `Arranged`, the output of an arrange operator.

Operators that need the integral of a stream read it from an `Arranged`, so consumers with the same keys share one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dbspark.columnar import Batch, SortKey
from dbspark.trace.spine import Spine

State = tuple[Spine, ...]
"""The state of an operator between two ticks: its spines."""


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
        """Rows of the delta."""
        return self.delta.rows


__all__ = ["Arranged", "State"]
