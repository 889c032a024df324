"""A merge in progress, as a value: stepped, read and stored before it is done.

It holds its output so far and what is left of its inputs, which are disjoint ranges of key hashes: together a few more
batches to read. Every step gives another value and leaves this one as it was. Its output is looked up in long before
it is done, so the index of the output is filled as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dbspark.columnar import Batch
from dbspark.columnar.batch_index import BatchIndex
from dbspark.columnar.chunk import Chunk
from dbspark.columnar.merge_batches import MergePlan
from dbspark.kernels.lookup.index import INDEX_ROW_BITS, fill_index
from dbspark.trace.time import Description

_INDEXED = 1 << 12
"""Rows of a merge below which what it has written so far is searched without an index."""


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


@dataclass(eq=False, slots=True)
class Filled:
    """The index of what a merge has written so far, shared by its states; one of them only goes on with it."""

    index: BatchIndex
    chunks: int
    """How many chunks are in it."""

    @staticmethod
    def begun(inputs: Sequence[Batch], total: int) -> Filled | None:
        """An empty one, where the inputs have indices."""
        if total < _INDEXED or not any("index" in b.__dict__ for b in inputs):
            return None
        return Filled(BatchIndex.empty(total), 0)

    def followed_by(self, before: int, chunks: Sequence[Chunk]) -> Filled | None:
        """With more chunks, if it has so many and no others; else somebody else has gone on with it."""
        if self.chunks != before or any(c.rows > 1 << INDEX_ROW_BITS for c in chunks):
            return None
        tables, lens = np.array([(c.table, c.rows) for c in chunks], np.int64).reshape(-1, 2).T.copy()
        self.chunks += len(chunks)
        fill_index(tables, lens, before, self.index.ref[1], self.index.words)
        return self


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
    filled: Filled | None = None
    """The index of `out`, if there is one."""
    unread: int = field(init=False)
    """Rows of the inputs that are left."""
    rows: int = field(init=False)
    _batches: list[tuple[Batch, ...]] = field(init=False, default_factory=list)
    """What `batches` has given."""

    def __post_init__(self) -> None:
        unread = sum([b.rows for b in self.inputs]) - sum(self.offsets)
        object.__setattr__(self, "unread", unread)
        object.__setattr__(self, "rows", unread + sum([c.rows for c in self.out]))

    def step(self, limit: int) -> Merging | Batch:
        running = Running(self)
        running.step(limit)
        return running.value()

    def batches(self) -> tuple[Batch, ...]:
        """What to read instead of this: rows below the frontier from the output, the others from the inputs."""
        if not self._batches:
            index = self.filled.index if self.filled is not None else None
            out = [Batch(self.inputs[0].sort_key, self.out).with_index(index)] if self.out else []
            left = zip(self.inputs, self.offsets, strict=True)
            self._batches.append((*out, *[b.slice(n).with_index_of(b, 0, n) if n else b for b, n in left]))
        return self._batches[0]


class Running:
    """A merge in somebody's hands: its steps are made in place, and it is a value again when it is asked for one.

    To make a value of every step costs as much as to merge some thousand rows.
    """

    def __init__(self, merging: Merging) -> None:
        self.begun = merging
        self._plan = MergePlan(merging.inputs, merging.offsets, since_of(merging.description))
        self._out = list(merging.out)
        self._filled = merging.filled if merging.out else Filled.begun(merging.inputs, merging.total)
        self.read = 0
        """Rows of the inputs that have been read since it was a value."""

    @property
    def done(self) -> bool:
        return self._plan.done

    def step(self, limit: int) -> None:
        before, retain = self._plan.read, self.begun.retain
        more = self._plan.step(limit)
        if retain is not None and more:
            more = list(retain(Batch(self._plan.sort_key, more)).chunks)
        if self._filled is not None:
            self._filled = self._filled.followed_by(len(self._out), more)
        self._out += more
        self.read += self._plan.read - before

    def value(self) -> Merging | Batch:
        """As it stands: the batch, if it is done."""
        self.read = 0
        begun, chunks, filled = self.begun, tuple(self._out), self._filled
        if not self.done:
            inputs, offsets = self._plan.unread_inputs()
            return replace(begun, out=chunks, inputs=inputs, offsets=offsets, filled=filled)
        done = Batch(self._plan.sort_key, chunks, begun.description)
        return done.with_index(filled.index) if filled is not None and 4 * done.rows >= begun.total else done


Entry = Batch | Merging


def since_of(description: Description | None) -> tuple[int, ...]:
    """Where a merge under this description advances times to."""
    return tuple(description.since.meet_of_all()) if description is not None and description.since else ()
