"""The traces of one shard in the memory of a resident worker, by version.

A *version* is what all traces are after a run: a mapping of names to values. A run builds a new version beside the one
it begins with, and nothing is final before the driver names it: the next message says on which version it builds
(`VersionedState.move_to`). So a run is accepted or undone without a message of its own, and all workers agree, because
they are told the same number.

| kept of a trace | form | what undoes it |
|---|---|---|
| state of an operator | spines, which are values | the older version has the older value |
| rows of a table or view | a `History`, which changes in place | `History.rollback_tick`, for the last run |
| not read yet, at a location | records of the last manifest | they are opened when a step reads them |

The driver goes back further than the last run only over runs that fill or move traces. These append to no history that
was there before, so going back over them is choosing the older mapping.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import Delta
from dbspark.errors import DbsparkError
from dbspark.operators.arranged import State
from dbspark.runtime.embedded import HISTORY_SPINE_CONFIG, STATE_SPINE_CONFIG
from dbspark.runtime.reslicing import SHARD_SEPARATOR
from dbspark.runtime.sizes import size_of
from dbspark.runtime.stored_state import write_states
from dbspark.runtime.task import HistoryOptions
from dbspark.storage.files import Files
from dbspark.storage.manifest import Entry, TraceRecord, record_from_json
from dbspark.storage.reading import ManifestReader
from dbspark.storage.segment import batch_bytes, decode_batch
from dbspark.storage.writing import StoredFiles
from dbspark.trace.history import History, history_of
from dbspark.trace.spine import Spine

_STATE_CONFIG = replace(STATE_SPINE_CONFIG, min_background_rows=None)
"""Spines of operators: as embedded, but inserts do the merging. Only histories are merged on a background thread."""


class StoredTrace:
    """A trace at the location, whose spines are opened when a step reads them."""

    __slots__ = ("_open", "_opened", "_records")

    def __init__(self, records: Sequence[Any], open_spine: Callable[[Any, SortKey], Spine]) -> None:
        """`records`: of its spines, as JSON."""
        self._records = records
        self._open = open_spine
        self._opened: dict[int, Spine] = {}

    def spine(self, number: int, sort_key: SortKey) -> Spine:
        """One of its spines."""
        if number not in self._opened:
            self._opened[number] = self._open(self._records[number], sort_key)
        return self._opened[number]


Kept = State | History | StoredTrace
"""The value of a trace in a version."""
FetchSpine = Callable[[str, int, int, SortKey], Spine]
"""Fetches a spine from another worker: the trace, the shard, which of its spines, and its sort key."""


class VersionedState:
    """The traces of one shard: the module docstring states its contract."""

    def __init__(self, files: Callable[[], Files] | None) -> None:
        """`files` opens the location; None: nothing is written."""
        self._versions: dict[int, dict[str, Kept]] = {0: {}}
        self.version = 0
        self._appended: list[History] = []
        """Histories that the last run has appended to."""
        self._location = None if files is None else StoredFiles(files())
        self._guard = threading.RLock()
        """Held while a history is read, which flushes it: other workers fetch spines on threads of their own."""

    def move_to(self, version: int, oldest: int) -> None:
        """Go on from a version: later ones are undone, and those before `oldest` are forgotten."""
        with self._guard:
            if version not in self._versions:
                raise DbsparkError(f"a worker was asked for version {version} of its state, and has {self.version}")
            undone = version != self.version
            for history in self._appended:
                if undone:
                    history.rollback_tick()
                else:
                    history.commit_tick()
            self._appended = []
            self._versions = {n: kept for n, kept in self._versions.items() if oldest <= n <= version or n == version}
            self.version = version

    def restart(self, version: int, records: Mapping[str, Sequence[Any]]) -> None:
        """Drop all versions, and make one of the records that a manifest has of this shard."""
        with self._guard:
            self.version = version
            stored: dict[str, Kept] = {name: StoredTrace(r, self.open_spine) for name, r in records.items()}
            self._versions = {self.version: stored}
            self._appended = []

    def forget(self, names: Iterable[str]) -> None:
        """Drop traces from the present version."""
        gone = set(names)
        if gone:
            self._versions[self.version] = {n: k for n, k in self._versions[self.version].items() if n not in gone}

    def now(self) -> dict[str, Kept]:
        """The present version. Opening what is stored puts its value in the place of the record."""
        return self._versions[self.version]

    def accept(self, version: int, new: Mapping[str, Kept], appended: Sequence[History]) -> None:
        """Put a new version behind the present one."""
        self._versions[version] = {**self.now(), **new}
        self.version = version
        self._appended = list(appended)

    def spine(self, name: str, number: int, sort_key: SortKey) -> Spine | None:
        """One of the spines of a trace of the present version."""
        with self._guard:
            kept = self.now().get(name)
            if kept is None:
                return None
            if isinstance(kept, History):
                return kept.spine
            return kept.spine(number, sort_key) if isinstance(kept, StoredTrace) else kept[number]

    def open_spine(self, given: Any, sort_key: SortKey) -> Spine:
        """A spine from its record of the location."""
        assert self._location is not None
        stored_files = self._location
        record = record_from_json(given, stored_files.owner)
        stored_files.there.update(e.place.file for e in record.entries if e.place is not None)
        return ManifestReader(stored_files.files, verify=False).spine(record, sort_key).with_config(_STATE_CONFIG)

    def history(self, name: str, options: HistoryOptions, tick: int) -> History:
        """The history of a table or view of the present version, whose next tick is `tick`."""
        with self._guard:
            kept = self.now().get(name)
            if isinstance(kept, History):
                return kept
            history = _new_history(options, self.spine(name, 0, options.sort_key), tick)
            if kept is not None:
                self.now()[name] = history
            return history

    def write(self, new: Mapping[str, Kept], tick: int) -> dict[str, Any]:
        """With a location: write the batches of new values; returns the records of their traces as JSON."""
        if self._location is None or not new:
            return {}
        states = {n: (k.spine,) if isinstance(k, History) else k for n, k in new.items()}
        written = write_states(self._location, states, tick, finish_merges=False)  # type: ignore[arg-type]
        return {trace: [r.to_json() for r in of_trace] for trace, of_trace in written.items()}

    def close(self) -> None:
        """Stop the merges on the background thread."""
        for kept in self.now().values():
            if isinstance(kept, History):
                kept.close()

    def row_counts(self, names: Iterable[str] | None = None) -> dict[str, int]:
        """Rows of traces before consolidation; all of them, where no names are given."""
        now = self.now()
        return {n: _rows(now[n]) for n in (now if names is None else names) if n in now}

    def sizes(self, consolidated: bool = False) -> dict[str, tuple[int, int]]:
        """Rows and bytes of all traces; rows as they are kept, or as they are once consolidated."""
        with self._guard:
            out = {}
            for name, kept in self.now().items():
                if not isinstance(kept, StoredTrace):
                    spines = (kept.spine,) if isinstance(kept, History) else kept
                    size = size_of(spines)
                    rows = sum(s.consolidated().rows for s in spines) if consolidated else size.rows
                    out[name] = rows, size.bytes
            return out


def _new_history(options: HistoryOptions, spine: Spine | None, tick: int) -> History:
    return history_of(
        options.sort_key, options.keep, options.created, spine, tick,
        config=STATE_SPINE_CONFIG if options.keyed else HISTORY_SPINE_CONFIG,
        seldom_read=not options.keyed, count_rows=options.keyed,
    )  # fmt: skip


def _rows(kept: Kept) -> int:
    if isinstance(kept, History):
        return kept.unconsolidated_rows
    return 0 if isinstance(kept, StoredTrace) else sum(spine.rows for spine in kept)


class RunState:
    """The traces of a shard during one run: as they were before it, and what it makes of them (`ShardState`)."""

    def __init__(
        self, state: VersionedState, visible: Collection[str] | None, fetch: FetchSpine, shard: int,
        others: Mapping[str, Sequence[Any]],
    ) -> None:  # fmt: skip
        """`visible`: the traces that the run may read; None: all. `others`: records of traces of other shards."""
        self._state = state
        self._visible = None if visible is None else frozenset(visible)
        self._fetch = fetch
        self._shard = shard
        self._others = others
        self.new: dict[str, Kept] = {}
        self.appended: list[History] = []

    def __contains__(self, name: object) -> bool:
        return name in self._state.now() and (self._visible is None or name in self._visible)

    def spine(self, name: str, number: int, sort_key: SortKey) -> Spine:
        if SHARD_SEPARATOR in name and name not in self:
            return self._of_shard(name, number, sort_key)
        found = self._state.spine(name, number, sort_key) if name in self else None
        return Spine(sort_key, config=_STATE_CONFIG) if found is None else found

    def replace(self, name: str, state: State) -> None:
        self.new[name] = state

    def history(self, name: str, options: HistoryOptions, tick: int, hold: int | None) -> History:
        if name not in self:
            return _new_history(options, None, tick)
        history = self._state.history(name, options, tick)
        history.hold_from(hold)
        return history

    def append(self, name: str, history: History, delta: Delta, tick: int) -> None:
        if self._state.now().get(name) is history:
            history.begin_tick()
            self.appended.append(history)
        self.new[name] = history
        history.append(delta, tick)

    def undo(self) -> None:
        """Revert what the run has appended."""
        for history in self.appended:
            history.rollback_tick()

    def _of_shard(self, name: str, number: int, sort_key: SortKey) -> Spine:
        """A spine of a trace as another shard has it, or this one, while traces are moved."""
        trace, _, shard = name.rpartition(SHARD_SEPARATOR)
        if name in self._others:
            return self._state.open_spine(self._others[name][number], sort_key)
        if int(shard) == self._shard:
            found = self._state.spine(trace, number, sort_key)
            return Spine(sort_key, config=_STATE_CONFIG) if found is None else found
        return self._fetch(trace, int(shard), number, sort_key)


# ---------------------------------------------------------------------- spines on the wire


def encode_spine(spine: Spine) -> list[bytes]:
    """A spine as data: its record as JSON, and its batches."""
    batches = spine.batches
    record = TraceRecord(0, tuple(Entry(None, b.description) for b in batches), spine.compaction)
    return [json.dumps(record.to_json()).encode(), *(batch_bytes(b) if b.rows else b"" for b in batches)]


def decode_spine(parts: Sequence[pa.Buffer], sort_key: SortKey) -> Spine:
    """The inverse of `encode_spine`."""
    record = record_from_json(json.loads(parts[0].to_pybytes()), None)
    batches = []
    for entry, part in zip(record.entries, parts[1:], strict=True):
        batch = decode_batch(part, sort_key) if part.size else Batch.empty(sort_key)
        batches.append(batch if entry.description is None else batch.with_description(entry.description))
    return Spine(sort_key, tuple(batches), _STATE_CONFIG, compaction=record.compaction)


__all__ = ["FetchSpine", "RunState", "StoredTrace", "VersionedState", "decode_spine", "encode_spine"]
