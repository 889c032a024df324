"""Reslicing: state of N shards, or of an embedded runtime, opened with M shards, by slicing instead of recomputing.

A trace is sorted by key hash and a shard is a range of hashes, so a new shard takes one slice of each batch of an old
one. Batches keep their times. Where a new shard takes slices of several old ones, these are merged into one batch,
whose description spans the times of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbspark.columnar import Batch, SortKey, merge
from dbspark.operators.placement import key_of
from dbspark.runtime.level_plan import TracePlacement
from dbspark.runtime.placement import owner, split
from dbspark.runtime.task import LevelTask
from dbspark.storage.store import Store
from dbspark.trace.spine import Spine
from dbspark.trace.time import Description

SHARD_SEPARATOR = "@"
"""Separates the name of a trace from its shard in the names of a store."""


@dataclass(frozen=True, slots=True)
class TraceLayout:
    """The sort key and the placement of each spine of a trace."""

    sort_keys: tuple[SortKey, ...]
    placements: tuple[TracePlacement, ...]

    @property
    def replicated(self) -> bool:
        """Whether every shard has all rows."""
        return "everywhere" in self.placements

    @property
    def owned(self) -> bool:
        """Whether the owner shard has all rows."""
        return "owner" in self.placements


@dataclass(frozen=True, slots=True)
class ResliceStep:
    """A step that moves one trace from one layout to another: every shard reads its rows from the old shards."""

    id: str
    before: TraceLayout
    after: TraceLayout
    shards: tuple[int, ...]
    """The old shards that have a record of it."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the stored traces that it reads."""
        sources = self.shards[:1] if self.before.replicated else self.shards
        return tuple(f"{self.id}{SHARD_SEPARATOR}{shard}" for shard in sources)

    def run(self, task: LevelTask) -> None:
        if self.after.owned and task.shard != owner(task.context.shards):
            return
        spines = zip(*(task.state(name, self.before.sort_keys) for name in self.reads), strict=True)
        targets = zip(spines, self.after.sort_keys, self.after.placements, strict=True)
        task.set_state(self.id, tuple(self._one(task, *target) for target in targets))

    def _one(self, task: LevelTask, spines: Sequence[Spine], sort_key: SortKey, placements: TracePlacement) -> Spine:
        if placements in ("owner", "everywhere"):
            return combine_spines([reorder_spine(s, sort_key) for s in spines])
        # Sorted by the columns of its placement, the rows of a shard are one slice.
        assert not isinstance(placements, str)
        order = sort_key if placements == key_of(sort_key) else SortKey(sort_key.schema, placements)
        return combine_spines([reorder_spine(_slice_spine(reorder_spine(s, order), task), sort_key) for s in spines])


def _slice_spine(spine: Spine, task: LevelTask) -> Spine:
    entries = []
    for batch in spine.batches:
        mine = dict(split(batch, task.context.shards)).get(task.shard, Batch.empty(spine.sort_key))
        if mine.rows == batch.rows:
            mine = batch
        elif batch.description is not None:
            mine = mine.with_description(batch.description)
        if mine.rows or mine.description is not None:
            entries.append(mine)
    return Spine(spine.sort_key, tuple(entries), compaction=spine.compaction)


def combine_spines(spines: Sequence[Spine]) -> Spine:
    """Spines of several shards as one."""
    nonempty = [s for s in spines if s.entries]
    if len(nonempty) < 2:
        return nonempty[0] if nonempty else spines[0]
    first = nonempty[0]
    if first.compaction is None:
        return Spine(first.sort_key, tuple(b for s in nonempty for b in s.batches))
    ends = [(s.batches[0].description.lower, s.batches[-1].description.upper) for s in nonempty]
    since = nonempty[0].batches[-1].description.since
    for spine in nonempty:
        for batch in spine.batches:
            since = since.join(batch.description.since)
    lower = min((lower for lower, _ in ends), key=lambda a: max((t[0] for t in a), default=0))
    upper = max((upper for _, upper in ends), key=lambda a: max((t[0] for t in a), default=0))
    rows = [b for s in nonempty for b in s.batches if b.rows]
    time = tuple(since.meet_of_all()) if since else ()
    whole = merge(rows, time) if rows else Batch.empty(first.sort_key)
    return Spine(
        first.sort_key, (whole.with_description(Description(lower, upper, since)),), compaction=first.compaction
    )


def reorder_spine(spine: Spine, sort_key: SortKey) -> Spine:
    """A spine with the same rows and times, in the order of another sort key."""
    if spine.sort_key is sort_key:
        return spine
    entries = [batch.sorted_by(sort_key).with_description(batch.description) for batch in spine.batches]
    return Spine(sort_key, tuple(entries), compaction=spine.compaction)


def split_trace_name(name: str) -> tuple[str, int]:
    """The trace and the shard of a name in the store of a sharded runtime."""
    trace, _, shard = name.rpartition(SHARD_SEPARATOR)
    return trace, int(shard)


def unsharded_states(store: Store, metadata: Mapping[str, Any]) -> dict[str, tuple[Spine, ...]]:
    """The state in a store of either runtime, with the spines of all shards combined."""
    states: dict[str, tuple[Spine, ...]] = store.load().states
    if metadata.get("shards") is None:
        return states
    parts: dict[str, list[tuple[Spine, ...]]] = {}
    for name, spines in states.items():
        parts.setdefault(split_trace_name(name)[0], []).append(spines)
    replicated = set(metadata.get("everywhere", ()))
    return {
        name: shards[0] if name in replicated else tuple(combine_spines(spines) for spines in zip(*shards, strict=True))
        for name, shards in parts.items()
    }


__all__ = [
    "SHARD_SEPARATOR",
    "ResliceStep",
    "TraceLayout",
    "combine_spines",
    "reorder_spine",
    "split_trace_name",
    "unsharded_states",
]
