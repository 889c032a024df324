"""Writes one commit: the batches that are not stored yet, and compacted extents of old files of ticks.

Batches never change, so a batch that is stored carries its place with it and is only named again. A merge in progress
is stored as what it was begun with: that is on disk already, or as small as the tick. Only a merge of which nothing is
stored (all of it came since the last commit) is finished for the store, and its result is stored in its stead.

`StoredFiles` is what a store remembers between commits: which files exist, and their sizes.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.chunk import CHUNK_ROWS
from dbspark.storage.files import Files
from dbspark.storage.manifest import MAGIC, Entry, Place, TraceRecord, has_extents
from dbspark.storage.reading import seal_of
from dbspark.storage.retirement import BATCH_PREFIX
from dbspark.storage.segment import Segment, encode_batch, part_bytes, verified_extent
from dbspark.trace.merge_state import MergeSource, MergeState
from dbspark.trace.spine import Spine
from dbspark.trace.time import Description

MAX_INLINE_BATCH_BYTES = 4 << 20
"""Batches of up to so many bytes are extents of the file of the tick; larger ones are files of their own."""
_MAX_INLINE_BATCH_ROWS = 1 << 17
"""Batches of more rows are files of their own; they are not encoded to find out."""
MAX_UNUSED_BYTES = 16 << 20
"""Unused bytes in files of ticks up to which nothing is compacted; the bound is the used bytes, if these are more."""
MAX_TICK_FILES = 64
"""Files of ticks over which the state may be spread before they are compacted."""
MAX_COPIED_BYTES = 1 << 20
"""Bytes that one commit copies; the last file that it copies from may exceed it."""
_log = logging.getLogger("dbspark.storage")


@dataclass(slots=True)
class StoredFiles:
    """The files of a location that one opening of the store knows."""

    files: Files
    owner: object = field(default_factory=object)
    """What places belong to: one opening of the store."""
    there: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    """By name, the sizes of the tick files that this process has written."""
    sort_keys: dict[SortKey, int] = field(default_factory=dict)
    """The sort keys in the shape, with their numbers."""

    def has(self, place: Any) -> bool:
        """Whether a place is one of ours, and its file is there."""
        return isinstance(place, Place) and place.owner is self.owner and place.file in self.there

    def gone(self, names: list[str]) -> None:
        """Forget files that have been removed."""
        self.there.difference_update(names)
        for name in names:
            self.sizes.pop(name, None)


class CommitWriter:
    """One commit: what it writes beside and into the file of its tick, `name`."""

    def __init__(self, stored_files: StoredFiles, name: str) -> None:
        self.stored_files = stored_files
        self.name = name
        self.segment = Segment(len(MAGIC))
        self.batches = self.files = self.bytes = self.copied = 0

    def record(self, spine: Spine) -> TraceRecord:
        """The record of a spine; writes the batches that are not stored yet."""
        entries: list[Entry] = []
        for entry in spine.entries:
            if isinstance(entry, MergeState):
                entries += self._merging(entry)
            else:
                entries.append(Entry(self._placed(entry), entry.description))
        compaction = spine.compaction
        if compaction is None:
            entries = [e for e in entries if e.place is not None]
        elif compaction.retain is not None:
            compaction = replace(compaction, retain=None)  # not stored: the owner of the trace sets `retain` again
        numbers = self.stored_files.sort_keys
        return TraceRecord(numbers.setdefault(spine.sort_key, len(numbers)), tuple(entries), compaction)

    def _merging(self, entry: MergeState) -> list[Entry]:
        inputs = (entry.source if entry.source is not None else MergeSource([])).inputs
        if not inputs or not all(isinstance(given, Batch) or self.stored_files.has(given) for given, _ in inputs):
            state: MergeState | Batch = entry
            while isinstance(state, MergeState):
                state = state.step(CHUNK_ROWS)
            inputs[:] = [(state, state.description)]
        for i, (given, description) in enumerate(inputs):
            if isinstance(given, Batch) and given.rows:
                inputs[i] = self._placed(given), description  # from here on it need not be in memory
        out = [Entry(None if isinstance(given, Batch) else given, description) for given, description in inputs]
        if entry.description is None:
            return out
        return _spanning(out, entry.description)

    def _placed(self, batch: Batch) -> Place | None:
        """Where a batch is stored; it is written if it is not."""
        if not batch.rows:
            return None
        known = batch.__dict__.get("place")
        if isinstance(known, Place) and self.stored_files.has(known):
            return known
        self.batches += 1
        place = self._small(batch) or self._large(batch)
        batch.__dict__["place"] = place
        return place

    def _small(self, batch: Batch) -> Place | None:
        if batch.rows > _MAX_INLINE_BATCH_ROWS:
            return None
        parts = encode_batch(batch)
        if sum(part_bytes(p) for p in parts) > MAX_INLINE_BATCH_BYTES:
            return None
        return self.extent(parts, batch.rows)

    def extent(self, parts: list[Any], rows: int = 0) -> Place:
        """Bytes in the file of the tick."""
        self.stored_files.there.add(self.name)  # soon: after a commit that fails, the store makes no other
        return Place(self.stored_files.owner, self.name, *self.segment.add(parts), rows)

    def _large(self, batch: Batch) -> Place:
        files = self.stored_files.files
        name = f"{BATCH_PREFIX}{uuid.uuid4().hex}.arrow"
        size = files.put_batch(name, batch)
        self.files += 1
        self.bytes += size
        self.stored_files.there.add(name)
        return Place(self.stored_files.owner, name, 0, size, seal_of(files, name), batch.rows)

    def compact(self, places: Iterable[Place]) -> None:
        """Copy what is in use in files of old ticks that hold little of it, or where it is spread over too many.

        `places`: what is in use.
        """
        live: dict[str, list[Place]] = {}
        for place in {id(p): p for p in places}.values():
            if place.file != self.name and has_extents(place.file):
                live.setdefault(place.file, []).append(place)
        used = {name: sum(p.size for p in places) for name, places in live.items()}
        total = {name: self.stored_files.sizes.get(name, max(p.at + p.size for p in live[name])) for name in live}
        unused = sum(total.values()) - sum(used.values())
        spread = len(live) - MAX_TICK_FILES
        for name in sorted(live, key=lambda n: (used[n] if spread > 0 else used[n] / total[n], n)):
            if (unused <= max(MAX_UNUSED_BYTES, sum(used.values())) and spread <= 0) or self.copied > MAX_COPIED_BYTES:
                break
            if self._copy(name, live[name]):
                unused -= total[name] - used.pop(name)
                spread -= 1

    def put(self) -> None:
        """Write the extents as a part of a tick; whoever commits the tick settles it."""
        self.stored_files.files.put_part(self.name, [MAGIC, *self.segment.parts])

    def _copy(self, name: str, places: list[Place]) -> bool:
        try:
            whole = self.stored_files.files.read(name)
            extents = [verified_extent(whole, p.at, p.size, p.check) for p in places]
        except (OSError, ValueError) as error:  # compaction is optional: the extents stay where they are
            _log.warning("%s could not be copied from: %s", self.stored_files.files.where(name), error)
            return False
        for place, extent in zip(places, extents, strict=True):
            place.at, place.size, place.check = self.segment.add([extent])
            place.file = self.name
            self.copied += place.size
        self.stored_files.there.add(self.name)
        return True


def _spanning(entries: list[Entry], whole: Description) -> list[Entry]:
    """The inputs of a merge, extended to the times of its result: it may have taken in times without rows meanwhile."""
    out = list(entries)
    for at, lower in ((0, True), (-1, False)):
        description = out[at].description
        assert description is not None
        begin, end = (whole.lower, description.upper) if lower else (description.lower, whole.upper)
        out[at] = replace(out[at], description=Description(begin, end, description.since))
    return out


__all__ = ["CommitWriter", "StoredFiles"]
