"""State of some shards as that of others: sliced, not computed again.

A trace is ordered by key hash and a shard is a range of hashes, so what a new shard gets of an old one is a slice of
each of its batches. Traces with times keep them; where several old shards come together, their batches do, and count
for the time of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dbspark.batch import Arrangement, Batch, merge
from dbspark.spark.placement import owner, split
from dbspark.spark.task import Work
from dbspark.storage.store import Store
from dbspark.trace.spine import Spine
from dbspark.trace.time import Description

AT = "@"
"""Between the name of a trace and its shard."""


@dataclass(frozen=True, slots=True)
class Reslice:
    """One trace: takes what is its own from the old shards."""

    id: str
    stored: tuple[Arrangement, ...]
    """How it is kept."""
    arrangements: tuple[Arrangement, ...]
    """How it is to be kept."""
    old: tuple[int, ...]
    """The shards that kept something of it."""
    whole: bool
    """Whether it lies on one shard, whatever the hashes of its rows."""

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(f"{self.id}{AT}{shard}" for shard in self.old)

    def run(self, work: Work) -> None:
        if self.whole and work.shard != owner(work.job.shards):
            return
        states = [work.state(name, self.stored) for name in self.reads]
        spines = zip(*states, strict=True)
        work.keep(self.id, tuple(self._one(work, s, a) for s, a in zip(spines, self.arrangements, strict=True)))

    def _one(self, work: Work, spines: Sequence[Spine], arrangement: Arrangement) -> Spine:
        given = [s if s.arrangement is arrangement else rearranged(s, arrangement) for s in spines]
        return combined(given if self.whole else [_sliced(s, work) for s in given])


def _sliced(spine: Spine, work: Work) -> Spine:
    entries = []
    for batch in spine.batches:
        mine = dict(split(batch, work.job.shards)).get(work.shard, Batch.empty(spine.arrangement))
        if mine.rows == batch.rows:
            mine = batch
        elif batch.description is not None:
            mine = mine.described(batch.description)
        if mine.rows or mine.description is not None:
            entries.append(mine)
    return Spine(spine.arrangement, tuple(entries), compaction=spine.compaction)


def combined(spines: Sequence[Spine]) -> Spine:
    """Spines of several shards as one."""
    some = [s for s in spines if s.entries]
    if len(some) < 2:
        return some[0] if some else spines[0]
    first = some[0]
    if first.compaction is None:
        return Spine(first.arrangement, tuple(b for s in some for b in s.batches))
    ends = [(s.batches[0].description.lower, s.batches[-1].description.upper) for s in some]
    since = some[0].batches[-1].description.since
    for spine in some:
        for batch in spine.batches:
            since = since.join(batch.description.since)
    lower = min((lower for lower, _ in ends), key=lambda a: max((t[0] for t in a), default=0))
    upper = max((upper for _, upper in ends), key=lambda a: max((t[0] for t in a), default=0))
    rows = [b for s in some for b in s.batches if b.rows]
    time = tuple(since.meet_of_all()) if since else ()
    whole = merge(rows, time) if rows else Batch.empty(first.arrangement)
    return Spine(first.arrangement, (whole.described(Description(lower, upper, since)),), compaction=first.compaction)


def rearranged(spine: Spine, arrangement: Arrangement) -> Spine:
    """The rows of a spine in another order, at their times."""
    entries = [batch.rearranged(arrangement).described(batch.description) for batch in spine.batches]
    return Spine(arrangement, tuple(entries), compaction=spine.compaction)


def trace_of(name: str) -> tuple[str, int]:
    """The trace and the shard that a name in a store of shards stands for."""
    trace, _, shard = name.rpartition(AT)
    return trace, int(shard)


def whole_states(store: Store, shards: int | None) -> dict[str, tuple[Spine, ...]]:
    """What a store keeps of some shards, or of none, as if there were none."""
    states: dict[str, tuple[Spine, ...]] = store.load().states
    if shards is None:
        return states
    parts: dict[str, list[tuple[Spine, ...]]] = {}
    for name, spines in states.items():
        parts.setdefault(trace_of(name)[0], []).append(spines)
    return {name: tuple(combined(some) for some in zip(*given, strict=True)) for name, given in parts.items()}


__all__ = ["AT", "Reslice", "combined", "rearranged", "trace_of", "whole_states"]
