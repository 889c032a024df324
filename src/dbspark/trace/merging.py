"""A merge in progress, as a value: stepped, read and stored before it is done.

It holds its output so far and what is left of its inputs, which are disjoint ranges of key hashes: together a few more
batches to read. Every step gives another value and leaves this one as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dbspark.batch import Batch
from dbspark.batch.batch import Plan
from dbspark.batch.chunk import Chunk
from dbspark.trace.time import Description


@dataclass(eq=False, slots=True)
class Origin:
    """Which merge it is, and what it was begun with, as a store knows it (`dbspark.storage`).

    A merge gives its inputs back piece by piece; a store goes on naming them until the merge is done. Of a stored
    input its place is enough. Others are kept whole until they are stored, but only beside stored ones: where there is
    no store nothing is kept.
    """

    inputs: list[tuple[Any, Any]]
    """The place of a batch, or the batch, and its description."""

    @staticmethod
    def of(inputs: Sequence[Batch]) -> Origin:
        if not any("place" in b.__dict__ for b in inputs):
            return Origin([])
        return Origin([(b.__dict__.get("place", b), b.description) for b in inputs])


@dataclass(frozen=True, slots=True)
class Merging:
    """A merge in progress: rows below its frontier are in `out`, the rest still in `inputs`."""

    out: tuple[Chunk, ...]
    inputs: tuple[Batch, ...]
    offsets: tuple[int, ...]
    """Rows of the first chunk of each input that have been read."""
    total: int
    """Rows of all inputs at the beginning, for the statistics of how much the merge reduced."""
    description: Any = None
    """What the result will be described as; its `since` was fixed when the merge began."""
    retain: Callable[[Batch], Batch] | None = None
    token: Origin | None = None
    """Which merge this is a state of."""

    @property
    def rows(self) -> int:
        return sum(c.rows for c in self.out) + self.unread

    @property
    def unread(self) -> int:
        return sum(b.rows for b in self.inputs) - sum(self.offsets)

    def step(self, limit: int) -> Merging | Batch:
        plan = Plan(self.inputs, self.offsets, since_of(self.description))
        more = plan.step(limit)
        if self.retain is not None and more:
            more = list(self.retain(Batch(self.inputs[0].arrangement, more)).chunks)
        chunks = self.out + tuple(more)
        if plan.done:
            return Batch(self.inputs[0].arrangement, chunks, self.description)
        return Merging(chunks, *plan.unread(), self.total, self.description, self.retain, self.token)

    def batches(self) -> list[Batch]:
        """What to read instead of this: rows below the frontier from the output, the others from the inputs."""
        out = [Batch(self.inputs[0].arrangement, self.out).without_index()] if self.out else []
        left = zip(self.inputs, self.offsets, strict=True)
        return out + [b.slice(n).part_of(b, 0, n) if n else b for b, n in left]


Entry = Batch | Merging


def since_of(description: Description | None) -> tuple[int, ...]:
    """Where a merge under this description advances times to."""
    return tuple(description.since.meet_of_all()) if description is not None and description.since else ()
