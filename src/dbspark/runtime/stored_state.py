"""The traces of a shard as records of a location: opened from files, and written to files that no manifest names yet.

The batches of a trace never change, so a process opens each of them once (`_BATCH_CACHE`), whichever tick asks for it.
What is written is reported as records; only the manifest makes it part of the state.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dbspark.columnar import SortKey
from dbspark.columnar.delta import Delta
from dbspark.operators.arranged import State
from dbspark.runtime.task import HistoryOptions, TickContext
from dbspark.storage.manifest import PART_PREFIX, Place, TraceRecord, record_from_json
from dbspark.storage.reading import BatchCache, ManifestReader
from dbspark.storage.writing import CommitWriter, StoredFiles
from dbspark.trace.history import History, history_of
from dbspark.trace.spine import Spine

_BATCH_CACHE = BatchCache(512 << 20)
"""In a worker: opened batches, which never change, up to 512 MiB on disk."""


class StoredState:
    """The traces of one shard for one task of a Spark job."""

    def __init__(self, context: TickContext, records: Mapping[str, Sequence[Any]]) -> None:
        """`records`: by trace, the records of its spines as JSON."""
        self._context = context
        self._records = records
        self._new: dict[str, State] = {}
        self._location: tuple[StoredFiles, ManifestReader] | None = None

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def spine(self, name: str, number: int, sort_key: SortKey) -> Spine:
        records = self._records.get(name)
        if records is None:
            return Spine(sort_key)
        stored_files, reading = self.location()
        record = record_from_json(records[number], stored_files.owner)
        stored_files.there.update(e.place.file for e in record.entries if e.place is not None)
        return reading.spine(record, sort_key)

    def replace(self, name: str, state: State) -> None:
        self._new[name] = state

    def history(self, name: str, options: HistoryOptions, tick: int, hold: int | None) -> History:
        spine = self.spine(name, 0, options.sort_key) if name in self._records else None
        history = history_of(options.sort_key, options.keep, options.created, spine, tick)
        history.hold(hold)
        return history

    def append(self, name: str, history: History, delta: Delta, tick: int) -> None:
        history.append(delta, tick)
        history.trace.finish()
        self._new[name] = (history.spine,)

    def write(self) -> dict[str, Any]:
        """Write the batches of all new states; returns the records of their traces as JSON."""
        if not self._new:
            return {}
        records = write_states(self.location()[0], self._new, self._context.tick)
        return {trace: [r.to_json() for r in of_trace] for trace, of_trace in records.items()}

    def spill(self, payloads: Sequence[bytes]) -> list[list[Any]]:
        """Write payloads to a file that is needed only until the end of the tick; returns their extents as JSON."""
        writing = CommitWriter(self.location()[0], _new_part_name(self._context.tick))
        places = [writing.extent([payload]).to_json() for payload in payloads]
        writing.put()
        return places

    def read_spilled(self, place: list[Any]) -> pa.Buffer:
        """A spilled payload."""
        return self.location()[1].extent(Place(None, *place))

    def location(self) -> tuple[StoredFiles, ManifestReader]:
        """The location for writing and for reading, opened once."""
        if self._location is None:
            files = self._context.files()
            self._location = StoredFiles(files), ManifestReader(files, verify=False, opened=_BATCH_CACHE)
        return self._location


def write_states(
    stored_files: StoredFiles, states: Mapping[str, State], tick: int, finish_merges: bool = True
) -> dict[str, list[TraceRecord]]:
    """Write the batches that are not stored yet into a part of a tick; returns the records of the traces.

    Without `finish_merges` a merge in progress is stored as its inputs, because this process goes on with the merge.
    """
    writing = CommitWriter(stored_files, _new_part_name(tick))
    records = {
        trace: [writing.record(spine.work() if finish_merges else spine) for spine in state]
        for trace, state in states.items()
    }
    writing.compact(
        e.place for of_trace in records.values() for r in of_trace for e in r.entries if e.place is not None
    )
    if writing.segment.parts:
        writing.put()
    return records


def _new_part_name(tick: int) -> str:
    """A unique name for a file of a tick."""
    return f"{PART_PREFIX}{tick:016d}-{uuid.uuid4().hex}"


__all__ = ["StoredState", "write_states"]
