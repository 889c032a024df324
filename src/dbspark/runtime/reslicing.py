"""State of some shards as that of others: sliced, not computed again.

A trace is ordered by key hash and a shard is a range of hashes, so what a new shard gets of an old one is a slice of
each of its batches. Traces with times keep them; where several old shards come together, their batches do, and count
for the time of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbspark.columnar import Batch, SortKey, merge
from dbspark.operators.placement import key_of
from dbspark.runtime.placement import owner, split
from dbspark.runtime.planner import Lies
from dbspark.runtime.task import Work
from dbspark.storage.store import Store
from dbspark.trace.spine import Spine
from dbspark.trace.time import Description

AT = "@"
"""Between the name of a trace and its shard."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How a trace is kept: in which orders its spines are, and where each of them lies."""

    sort_keys: tuple[SortKey, ...]
    lies: tuple[Lies, ...]

    @property
    def everywhere(self) -> bool:
        """Whether every shard has all of it."""
        return "everywhere" in self.lies

    @property
    def owned(self) -> bool:
        """Whether one shard has all of it."""
        return "owner" in self.lies


@dataclass(frozen=True, slots=True)
class Reslice:
    """One trace: every shard takes what is to be its own from where it was."""

    id: str
    old: Kept
    new: Kept
    shards: tuple[int, ...]
    """Those that kept something of it."""

    @property
    def reads(self) -> tuple[str, ...]:
        some = self.shards[:1] if self.old.everywhere else self.shards
        return tuple(f"{self.id}{AT}{shard}" for shard in some)

    def run(self, work: Work) -> None:
        if self.new.owned and work.shard != owner(work.job.shards):
            return
        spines = zip(*(work.state(name, self.old.sort_keys) for name in self.reads), strict=True)
        wanted = zip(spines, self.new.sort_keys, self.new.lies, strict=True)
        work.keep(self.id, tuple(self._one(work, *given) for given in wanted))

    def _one(self, work: Work, spines: Sequence[Spine], sort_key: SortKey, lies: Lies) -> Spine:
        if lies in ("owner", "everywhere"):
            return combined([rearranged(s, sort_key) for s in spines])
        # In the order of the columns by which it lies, a shard's rows follow each other.
        assert not isinstance(lies, str)
        order = sort_key if lies == key_of(sort_key) else SortKey(sort_key.schema, lies)
        return combined([rearranged(_sliced(rearranged(s, order), work), sort_key) for s in spines])


def _sliced(spine: Spine, work: Work) -> Spine:
    entries = []
    for batch in spine.batches:
        mine = dict(split(batch, work.job.shards)).get(work.shard, Batch.empty(spine.sort_key))
        if mine.rows == batch.rows:
            mine = batch
        elif batch.description is not None:
            mine = mine.with_description(batch.description)
        if mine.rows or mine.description is not None:
            entries.append(mine)
    return Spine(spine.sort_key, tuple(entries), compaction=spine.compaction)


def combined(spines: Sequence[Spine]) -> Spine:
    """Spines of several shards as one."""
    some = [s for s in spines if s.entries]
    if len(some) < 2:
        return some[0] if some else spines[0]
    first = some[0]
    if first.compaction is None:
        return Spine(first.sort_key, tuple(b for s in some for b in s.batches))
    ends = [(s.batches[0].description.lower, s.batches[-1].description.upper) for s in some]
    since = some[0].batches[-1].description.since
    for spine in some:
        for batch in spine.batches:
            since = since.join(batch.description.since)
    lower = min((lower for lower, _ in ends), key=lambda a: max((t[0] for t in a), default=0))
    upper = max((upper for _, upper in ends), key=lambda a: max((t[0] for t in a), default=0))
    rows = [b for s in some for b in s.batches if b.rows]
    time = tuple(since.meet_of_all()) if since else ()
    whole = merge(rows, time) if rows else Batch.empty(first.sort_key)
    return Spine(
        first.sort_key, (whole.with_description(Description(lower, upper, since)),), compaction=first.compaction
    )


def rearranged(spine: Spine, sort_key: SortKey) -> Spine:
    """The rows of a spine in another order, at their times."""
    if spine.sort_key is sort_key:
        return spine
    entries = [batch.sorted_by(sort_key).with_description(batch.description) for batch in spine.batches]
    return Spine(sort_key, tuple(entries), compaction=spine.compaction)


def trace_of(name: str) -> tuple[str, int]:
    """The trace and the shard that a name in a store of shards stands for."""
    trace, _, shard = name.rpartition(AT)
    return trace, int(shard)


def whole_states(store: Store, described: Mapping[str, Any]) -> dict[str, tuple[Spine, ...]]:
    """What a store keeps, of whatever runtime, as if there were no shards."""
    states: dict[str, tuple[Spine, ...]] = store.load().states
    if described.get("shards") is None:
        return states
    parts: dict[str, list[tuple[Spine, ...]]] = {}
    for name, spines in states.items():
        parts.setdefault(trace_of(name)[0], []).append(spines)
    everywhere = set(described.get("everywhere", ()))
    return {
        name: given[0] if name in everywhere else tuple(combined(some) for some in zip(*given, strict=True))
        for name, given in parts.items()
    }


__all__ = ["AT", "Kept", "Reslice", "combined", "rearranged", "trace_of", "whole_states"]
