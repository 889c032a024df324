"""A merge in progress, as a value: it can be stepped, read and stored before it is done.

1. A state holds the output so far and the unread rest of the inputs. Their key hashes lie in disjoint ranges, so
   readers read them as a few more batches, and no row is in memory twice.
2. A step returns a new state and does not change this one.
3. The hash index of the output is filled as the output is written, because lookups probe the output of a large merge
   long before the merge is done.
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

MIN_INDEXED_OUTPUT_ROWS = 1 << 12
"""Rows of a merge below which its output is searched without an index."""


@dataclass(eq=False, slots=True)
class MergeSource:
    """The identity of a merge, shared by all its states, and its inputs as a store names them (`dbspark.storage`).

    A merge frees its inputs piece by piece, but a store refers to whole batches until the merge is done. A stored input
    is represented by its place in the store. An input that is not stored yet is kept alive as a whole, but only if
    another input is stored: without a store nothing is kept alive.
    """

    inputs: list[tuple[Any, Any]]
    """For each input: its place in the store or the batch itself, and its description."""

    @staticmethod
    def of(inputs: Sequence[Batch]) -> MergeSource:
        if not any("place" in b.__dict__ for b in inputs):
            return MergeSource([])
        return MergeSource([(b.__dict__.get("place", b), b.description) for b in inputs])


@dataclass(eq=False, slots=True)
class OutputIndex:
    """The hash index of the output of a merge, shared by its states. Only one of them can extend it."""

    index: BatchIndex
    chunks: int
    """Number of chunks of the output whose rows are in the index."""

    @staticmethod
    def create(inputs: Sequence[Batch], total: int) -> OutputIndex | None:
        """An empty index for `total` rows; None for a small merge, or where no input has an index."""
        if total < MIN_INDEXED_OUTPUT_ROWS or not any("index" in b.__dict__ for b in inputs):
            return None
        return OutputIndex(BatchIndex.empty(total), 0)

    def with_chunks(self, before: int, chunks: Sequence[Chunk]) -> OutputIndex | None:
        """Add chunks behind the first `before`; None where another state has added others, or a chunk is too large."""
        if self.chunks != before or any(c.rows > 1 << INDEX_ROW_BITS for c in chunks):
            return None
        tables, lens = np.array([(c.table, c.rows) for c in chunks], np.int64).reshape(-1, 2).T.copy()
        self.chunks += len(chunks)
        fill_index(tables, lens, before, self.index.ref[1], self.index.words)
        return self


@dataclass(frozen=True, slots=True)
class MergeState:
    """A merge in progress: rows up to some key hash are in `out`, the rest still in `inputs`."""

    out: tuple[Chunk, ...]
    inputs: tuple[Batch, ...]
    offsets: tuple[int, ...]
    """Rows of the first chunk of each input that have been read."""
    total: int
    """Rows of all inputs at the beginning, for the statistics of how much the merge reduced."""
    description: Any = None
    """The description of the result; its `since` was fixed when the merge began."""
    retain: Callable[[Batch], Batch] | None = None
    source: MergeSource | None = None
    """The identity of the merge."""
    output_index: OutputIndex | None = None
    """The hash index of `out`, if it has one."""
    unread: int = field(init=False)
    """Rows of the inputs that have not been read."""
    rows: int = field(init=False)
    _batches: list[tuple[Batch, ...]] = field(init=False, default_factory=list)
    """The result of `batches`, once it has been computed."""

    def __post_init__(self) -> None:
        unread = sum([b.rows for b in self.inputs]) - sum(self.offsets)
        object.__setattr__(self, "unread", unread)
        object.__setattr__(self, "rows", unread + sum([c.rows for c in self.out]))

    def step(self, limit: int) -> MergeState | Batch:
        running = MergeRun(self)
        running.step(limit)
        return running.value()

    def batches(self) -> tuple[Batch, ...]:
        """The batches by which readers see the state: the output so far and the unread rest of each input."""
        if not self._batches:
            index = self.output_index.index if self.output_index is not None else None
            out = [Batch(self.inputs[0].sort_key, self.out).with_index(index)] if self.out else []
            left = zip(self.inputs, self.offsets, strict=True)
            self._batches.append((*out, *[b.slice(n).with_index_of(b, 0, n) if n else b for b, n in left]))
        return self._batches[0]


class MergeRun:
    """A merge that is stepped in place; `value` returns it as a state.

    Making a state after every step would cost as much as merging some thousand rows.
    """

    def __init__(self, merging: MergeState) -> None:
        self.initial = merging
        self._plan = MergePlan(merging.inputs, merging.offsets, since_of(merging.description))
        self._out = list(merging.out)
        self._output_index = merging.output_index if merging.out else OutputIndex.create(merging.inputs, merging.total)
        self.read = 0
        """Rows of the inputs that have been read since the last `value`."""

    @property
    def done(self) -> bool:
        return self._plan.done

    def step(self, limit: int) -> None:
        before, retain = self._plan.read, self.initial.retain
        more = self._plan.step(limit)
        if retain is not None and more:
            more = list(retain(Batch(self._plan.sort_key, more)).chunks)
        if self._output_index is not None:
            self._output_index = self._output_index.with_chunks(len(self._out), more)
        self._out += more
        self.read += self._plan.read - before

    def value(self) -> MergeState | Batch:
        """The merge as it is now: a state, or the result if it is done."""
        self.read = 0
        initial, chunks, output_index = self.initial, tuple(self._out), self._output_index
        if not self.done:
            inputs, offsets = self._plan.unread_inputs()
            return replace(initial, out=chunks, inputs=inputs, offsets=offsets, output_index=output_index)
        done = Batch(self._plan.sort_key, chunks, initial.description)
        return (
            done.with_index(output_index.index) if output_index is not None and 4 * done.rows >= initial.total else done
        )


Entry = Batch | MergeState


def since_of(description: Description | None) -> tuple[int, ...]:
    """The time to which a merge whose result has this description advances times."""
    return tuple(description.since.meet_of_all()) if description is not None and description.since else ()
