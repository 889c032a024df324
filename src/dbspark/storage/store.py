"""`Store`: the state of a pipeline on disk, one manifest per tick.

A commit writes the batches that are not stored yet and then the manifest that names all of them; the manifest is put in
place in one step, so a tick is there whole or not at all. When `commit` returns the tick is durable, unless the store
was opened to let several ticks share a flush (`Group`): then only the state of the last of them is written, and a crash
goes back to the last tick that was flushed.

Batches never change, so one that has been written is only named again. Small ones lie in the file of the tick
(`dbspark.storage.segment`): a small tick is one file, two fsyncs. Large ones are batch files. A merge in progress is
stored as what it was begun with, until it is done; then its result takes their place. Where the file of an old tick
holds little that is still in use, that is copied to the file of the present tick, a little with every commit.

A commit that fails may or may not have happened. The store cannot know, and says so: it takes no further commits, and
opening the location again shows the last tick that is there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from dbspark.columnar import SortKey
from dbspark.errors import ConfigError, CorruptFileError, StoreError
from dbspark.storage import manifest as mf
from dbspark.storage.files import Files, files_at
from dbspark.storage.lock import Lock
from dbspark.storage.manifest import Manifest, Place, TraceRecord
from dbspark.storage.pins import Version, put_pin
from dbspark.storage.reading import ManifestReader
from dbspark.storage.retirement import Keep, Retirement
from dbspark.storage.segment import sort_key_from_json, sort_key_to_json
from dbspark.storage.writing import CommitWriter, StoredFiles
from dbspark.trace.spine import Spine

RETIRE_EVERY = 16
"""Commits between two rounds of retirement: a round lists the location."""
_log = logging.getLogger("dbspark.storage")

States = Mapping[str, tuple[Spine, ...] | tuple[TraceRecord, ...]]
"""Node id to the spines that the node keeps, or to the records of what others have written (`Store.adopted`)."""


@dataclass(frozen=True, slots=True)
class Committed:
    """All of a tick that is durable."""

    tick: int
    states: dict[str, Any] = field(default_factory=dict)
    """Spines by node, or the records of spines."""
    program: Any = None
    offsets: Any = field(default_factory=dict)
    positions: Any = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """How many ticks, or seconds, may share a flush, whichever ends first. A crash loses the ticks not flushed yet."""

    ticks: int = 1
    seconds: float | None = None
    """Since the first tick that is not flushed; looked at by every commit, so call `flush` when idle."""


class Store:
    """The state of a pipeline on disk. Open it with `Store.open`; close it, or use it in a `with` block."""

    def __init__(self, files: Files, lock: Lock | None, keep: Keep, group: Group) -> None:
        """Not to be called: use `Store.open`."""
        self.files = files
        self._lock = lock
        self._group = group
        self._stored_files = StoredFiles(files)
        self._guard = threading.RLock()
        self._retirement = Retirement(files, keep, self._manifest)
        self._manifest_now: Manifest | None = None
        self._records: dict[Spine, TraceRecord] = {}
        """The records of the spines in the last manifest."""
        self._shape: _Shape | None = None
        self._pending: tuple[Committed, bytes, float, int] | None = None
        """A tick that is not flushed, its program as JSON, since when and how many share the flush."""
        self._rounds = 0
        self._pin: str | None = None
        self._failed: str | None = None
        self._adopted = False
        """Whether tasks have written files that no commit has named yet."""
        self.statistics = Statistics()

    # ------------------------------------------------------------------ opening

    @staticmethod
    def open(
        location: str | os.PathLike[str],
        write: bool = True,
        *,
        tick: int | None = None,
        filesystem: pafs.FileSystem | None = None,
        keep: Keep | None = None,
        group: Group | None = None,
        files: Files | None = None,
    ) -> Store:
        """Open the state at a location at its last committed tick, or read an older one with `tick`.

        `filesystem`: where `location` is, local disk if it is not said. `files` replaces both, for tests.
        """
        if write and tick is not None:
            raise ConfigError(f"tick {tick} can be opened with write=False only; writing goes on from the last tick")
        try:
            if files is None:
                files = files_at(location, filesystem, make=write)
            lock = Lock(files) if write else None
        except OSError as error:
            raise StoreError(f"{os.fspath(location)} cannot be opened for writing: {error}") from error
        store = Store(files, lock, keep or Keep(), group or Group())
        try:
            for attempt in range(3):
                try:
                    store._begin(tick)
                    break
                except _Overtaken:  # the writer retired what this reader was about to open
                    if attempt == 2:
                        raise
        except BaseException:
            store.close()
            raise
        return store

    def _begin(self, tick: int | None) -> None:
        try:
            names = self.files.names()
        except FileNotFoundError:
            raise StoreError(f"there is nothing at {self.files.location}; check the location") from None
        versions = sorted(v for name in names if (v := mf.version_of(name)) is not None)
        if not self.writable and not versions:
            raise StoreError(f"no tick has been committed at {self.files.location}; check the location")
        if tick is not None:
            found = [v for v in versions if v[0] == tick]
            kept = self._kept(versions)
            if not found or (kept and tick < kept[0] and not self._manifest(found[-1]).files() <= set(names)):
                there = f"it keeps ticks {kept[0]} to {kept[-1]}" if kept else "it keeps no tick that can be read"
                raise StoreError(f"there is no tick {tick} at {self.files.location}; {there}")
            versions = found
        self._stored_files.there = set(names)
        if versions:
            if not self.writable:
                self._pin = put_pin(self.files, versions[-1])
            try:
                self._manifest_now = self._manifest(versions[-1])
            except CorruptFileError as error:
                raise CorruptFileError(f"{error}. {self._way_out(versions)}") from None
            except FileNotFoundError:
                self._unpin()
                raise _Overtaken(f"tick {versions[-1][0]} of {self.files.location} has just been retired") from None
            if not self.writable and tick is None:
                self._check_not_overtaken(versions[-1])
        if self.writable:
            self._retire()

    def _check_not_overtaken(self, version: Version) -> None:
        """The pin was put after the tick was chosen; what a writer has removed between is seen now."""
        assert self._manifest_now is not None
        names = set(self.files.names())
        if not self._manifest_now.files() <= names and any(v > version for v in map(mf.version_of, names) if v):
            self._unpin()
            raise _Overtaken(f"tick {version[0]} of {self.files.location} has just been retired")

    def _way_out(self, versions: list[Version]) -> str:
        older = [t for t, _ in versions[:-1]]
        if not older:
            return "There is no other tick to open"
        return (
            f"Tick {older[-1]} can be opened with Store.open(…, write=False, tick={older[-1]}); to go on from there, "
            "move that file away"
        )

    def _kept(self, versions: list[Version]) -> list[int]:
        """The ticks that are kept, according to the newest manifest that can be read."""
        for newest in reversed(versions):
            with contextlib.suppress(CorruptFileError, FileNotFoundError):
                oldest = self._manifest(newest).oldest
                return sorted({tick for tick, _ in versions if tick >= oldest})
        return []

    def _manifest(self, version: Version) -> Manifest:
        name = mf.name_of(*version)
        return mf.parse_manifest(self.files.read(name), self.files.where(name), self._stored_files.owner)

    @property
    def writable(self) -> bool:
        return self._lock is not None

    @property
    def tick(self) -> int | None:
        """The tick that is open: the last one that is durable, None before the first."""
        return None if self._manifest_now is None else self._manifest_now.tick

    def ticks(self) -> list[int]:
        """The ticks that are kept."""
        return self._kept(sorted(v for name in self.files.names() if (v := mf.version_of(name)) is not None))

    # ------------------------------------------------------------------ loading

    def load(self, verify: bool = False) -> Committed:
        """What the open tick holds. Batches are mapped and read when they are used; `verify` reads all of them."""
        with self._guard:
            manifest = self._manifest_now
            if manifest is None:
                return Committed(0)
            reading = ManifestReader(self.files, verify)
            try:
                shape = self._read_shape(reading, manifest)
                sort_keys = list(self._stored_files.sort_keys)
                states = {}
                records: dict[Spine, TraceRecord] = {}
                for node, given in manifest.traces.items():
                    spines = tuple(reading.spine(record, sort_keys[record.sort_key]) for record in given)
                    records.update(zip(spines, given, strict=True))
                    states[node] = spines
            except CorruptFileError as error:
                raise CorruptFileError(f"{error}; tick {manifest.tick} needs it. {self._others(manifest)}") from None
            self._records = records
            return Committed(manifest.tick, states, shape["program"], manifest.offsets, manifest.positions)

    def records(self) -> Committed:
        """What the open tick holds, as records: nothing is opened."""
        with self._guard:
            manifest = self._manifest_now
            if manifest is None:
                return Committed(0)
            shape = self._read_shape(ManifestReader(self.files, False), manifest)
            return Committed(
                manifest.tick, dict(manifest.traces), shape["program"], manifest.offsets, manifest.positions
            )

    def spine(self, record: TraceRecord) -> Spine:
        """The spine that a record stands for."""
        return ManifestReader(self.files, False).spine(record, self.sort_key(record))

    def adopted(self, given: Any, sort_key: SortKey) -> TraceRecord:
        """The record of a spine that a task has written here, as JSON: what the next commit may name."""
        with self._guard:
            record = mf.record_from_json(given, self._stored_files.owner)
            self._stored_files.there.update(e.place.file for e in record.entries if e.place is not None)
            self._adopted = True
            numbers = self._stored_files.sort_keys
            return replace(record, sort_key=numbers.setdefault(sort_key, len(numbers)))

    def sort_key(self, record: TraceRecord) -> SortKey:
        """The order in which the spine that a record stands for is kept."""
        return list(self._stored_files.sort_keys)[record.sort_key]

    def _read_shape(self, reading: ManifestReader, manifest: Manifest) -> Any:
        shape = json.loads(reading.extent(manifest.shape).to_pybytes())
        sort_keys = [sort_key_from_json(a) for a in shape["sort_keys"]]
        self._shape = _Shape(mf.canonical_json(shape["program"]), len(sort_keys), manifest.shape)
        self._stored_files.sort_keys = {a: i for i, a in enumerate(sort_keys)}
        return shape

    def _others(self, manifest: Manifest) -> str:
        with contextlib.suppress(OSError, CorruptFileError):
            others = [str(t) for t in self.ticks() if t != manifest.tick]
            if others:
                return f"Ticks {', '.join(others)} are there too: open one with Store.open(…, write=False, tick=…)"
        return "Restore the file from a backup"

    # ------------------------------------------------------------------ committing

    def commit(
        self, tick: int, states: States, program: Any = None, offsets: Any = None, positions: Any = None
    ) -> bool:
        """Make a tick durable; returns whether it is already, which only a group of ticks leaves open.

        A tick may be committed again with another program; it then has one more revision.
        """
        with self._guard:
            self.check_writable()
            last = self._pending[0].tick if self._pending is not None else self.tick
            if last is not None and tick < last:
                raise StoreError(f"tick {last} of {self.files.location} is committed; tick {tick} comes too late")
            given = Committed(
                tick, dict(states), program, {} if offsets is None else offsets, {} if positions is None else positions
            )
            mf.canonical_json(
                [given.offsets, given.positions]
            )  # what is not JSON is refused before anything is written
            text = mf.canonical_json(program)
            since, shared = (time.monotonic(), 0) if self._pending is None else self._pending[2:]
            self._pending = given, text, since, shared + 1
            seconds = self._group.seconds
            if shared + 1 < self._group.ticks and (seconds is None or time.monotonic() - since < seconds):
                return False
            self.flush()
            return True

    def flush(self) -> None:
        """Make every committed tick durable."""
        with self._guard:
            if self._pending is None:
                return
            self.check_writable()
            given, text = self._pending[:2]
            try:
                self._write(given, text)
            except BaseException as error:
                self._failed = f"committing tick {given.tick} failed: {error or type(error).__name__}"
                if isinstance(error, OSError | pa.ArrowException):
                    raise StoreError(
                        f"{self._failed}. Whether it is committed shows when {self.files.location} is opened again"
                    ) from error
                raise
            self._pending = None
            self._rounds += 1
            if self._rounds >= RETIRE_EVERY:
                self._retire()

    def check_writable(self) -> None:
        """Raise where a commit would be refused, and say why."""
        if self._lock is None:
            raise StoreError(f"{self.files.location} is open for reading; open it with write=True to commit")
        if self._failed is not None:
            raise StoreError(f"{self.files.location} takes no more commits, because {self._failed}. Open it again")

    def _write(self, given: Committed, program: bytes) -> None:
        begun = time.perf_counter()
        before = self._manifest_now
        revision = before.revision + 1 if before is not None and before.tick == given.tick else 0
        work = CommitWriter(self._stored_files, mf.name_of(given.tick, revision))
        records: dict[Spine, TraceRecord] = {}
        traces = {}
        for node, kept in given.states.items():
            for spine in kept:
                if isinstance(spine, Spine):
                    records[spine] = self._records.get(spine) or work.record(spine)
            traces[node] = tuple(records[s] if isinstance(s, Spine) else s for s in kept)
        shape = self._shaped(work, program)
        now = time.time()
        oldest = self._retirement.oldest(given.tick, now)
        manifest = Manifest(
            given.tick, revision, now, oldest, shape.place, traces, given.offsets, given.positions
        )  # fmt: skip
        # Only spines written by this process are compacted here; those of tasks are compacted by the tasks.
        work.compact([shape.place, *(e.place for r in records.values() for e in r.entries if e.place is not None)])
        if work.files or self._adopted:
            self.files.settle()  # a manifest must not be there before what it names
        self.files.put(work.name, [mf.MAGIC, *work.segment.parts, manifest.sealed()])
        # Nothing below can fail: the tick is committed.
        self._adopted = False
        self._stored_files.there.add(work.name)
        self._stored_files.sizes[work.name] = work.segment.size
        self._manifest_now, self._records, self._shape = manifest, records, shape
        self._retirement.committed(manifest)
        self.statistics.add(work, time.perf_counter() - begun)

    def _shaped(self, work: CommitWriter, program: bytes) -> _Shape:
        """The place of the program and the sort keys: the old one if they have not changed, or written anew."""
        known, sort_keys = self._shape, self._stored_files.sort_keys
        if known is not None and known.program == program and known.sort_keys == len(sort_keys):
            return known
        kept = mf.canonical_json([sort_key_to_json(a) for a in sort_keys])
        place = work.extent([b'{"sort_keys":', kept, b',"program":', program, b"}"])
        return _Shape(program, len(sort_keys), place)

    # ------------------------------------------------------------------ readers and retirement

    @contextlib.contextmanager
    def pin(self) -> Iterator[int | None]:
        """Keep the files of the present tick for as long as the block runs, and give the tick."""
        manifest = self._manifest_now
        if manifest is None:
            yield None
            return
        version, held = (manifest.tick, manifest.revision), self._retirement.held
        with self._guard:
            held[version] = held.get(version, 0) + 1
        try:
            yield manifest.tick
        finally:
            with self._guard:
                held[version] -= 1
                if not held[version]:
                    del held[version]

    def retire(self) -> list[str]:
        """Remove now what no kept tick and no reader needs; commits do it in passing. Returns the names."""
        with self._guard:
            self.check_writable()
            return self._retire()

    def _retire(self) -> list[str]:
        """Never fails: what could not be done is tried again."""
        self._rounds = 0
        manifest = self._manifest_now
        try:
            removed = self._retirement.run(None if manifest is None else (manifest.tick, manifest.revision))
        except OSError as error:
            _log.warning("%s could not be cleaned up: %s", self.files.location, error)
            return []
        self._stored_files.gone(removed)
        return removed

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Flush, and let others write. Batches that were loaded stay readable."""
        with self._guard:
            try:
                if self._pending is not None and self._failed is None:
                    self.flush()
            finally:
                self._unpin()
                if self._lock is not None:
                    self._lock.release()
                    self._lock = None
                self.files.close()

    def _unpin(self) -> None:
        if self._pin is not None:
            with contextlib.suppress(OSError):
                self.files.remove(self._pin)
            self._pin = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Shape:
    """The program and the sort keys, as they are stored."""

    program: bytes
    sort_keys: int
    place: Place


class _Overtaken(StoreError):
    """A writer has removed what this reader was about to open."""


@dataclass(slots=True)
class Statistics:
    """What commits have cost so far."""

    commits: int = 0
    seconds: float = 0.0
    batches: int = 0
    """Batches written, in files of their own or not."""
    batch_files: int = 0
    bytes: int = 0
    copied: int = 0
    """Bytes among them that compaction has copied from older files."""

    def add(self, work: CommitWriter, seconds: float) -> None:
        self.commits += 1
        self.seconds += seconds
        self.batches += work.batches
        self.batch_files += work.files
        self.bytes += work.bytes + work.segment.size
        self.copied += work.copied


__all__ = ["Committed", "Group", "States", "Statistics", "Store"]
