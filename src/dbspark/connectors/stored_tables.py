"""The tables and views at a location as the data source `dbspark` reads them (`dbspark.connectors.source`).

    dbspark.register(spark)
    spark.read.format("dbspark").option("location", "state/shop").option("view", "revenue").load()

Once there is a pipeline, sessions register the source when they first read it (`source.register_when_read`). Every task
opens the location for reading and takes its range of key hashes. A tick before the last one is read from the history of
the table or view or, where that is shorter, from the tick's own manifest, if it is still stored.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.connectors import source
from dbspark.connectors.source import CommitTimes, DbsparkSource, HashRange, SourceTable
from dbspark.errors import CorruptFileError, StoreError, TimeError
from dbspark.kernels.memory import layout as nd
from dbspark.runtime.catalog import decode_schema
from dbspark.runtime.reslicing import split_trace_name
from dbspark.sql.names import find_name, nearest
from dbspark.storage import manifest as mf
from dbspark.storage.store import Store
from dbspark.trace.history import ShardedHistory, history_of, plain_rows
from dbspark.trace.spine import Spine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StoredTable(SourceTable):
    """A view or table in the files of a location."""

    __slots__ = ()

    @contextmanager
    def open_table(self, tick: int | None = None) -> Iterator[tuple[Store, list[Spine], int]]:
        """Open the location: the store, the spines of every shard with their history, and their tick."""
        with Store.open(self.location, write=False, tick=tick) as store:
            committed = store.records()
            definitions = {t["name"]: t for t in (committed.program or {}).get(f"{self.kind}s", ())}
            found = find_name(self.name, definitions)  # a task that reads for a job has no session to ask about case
            if found is None:
                names = ", ".join(sorted(definitions)) or "none"
                hint = nearest(self.name, definitions)
                raise StoreError(f"no {self.kind} {self.name!r} at {self.location}{hint}; the {self.kind}s are {names}")
            shards = committed.program.get("shards")
            spines = [
                store.spine(records[0])
                for name, records in committed.states.items()
                if (name if shards is None else split_trace_name(name)[0]) == f"{self.kind} {found}"
            ]
            if not spines:  # a table without rows on any shard
                schema = decode_schema(definitions[found]["schema"])
                spines = [Spine(SortKey(schema))]
            yield store, spines, committed.tick

    def schema(self) -> pa.Schema:
        with self.open_table() as (_, spines, _tick):
            return spines[0].sort_key.schema.arrow

    def extent(self) -> tuple[int, int]:
        with self.open_table() as (_, spines, tick):
            return tick, sum(spine.rows for spine in spines)

    def rows(self, tick: int, part: HashRange) -> tuple[pa.Table, CommitTimes]:
        def read(store: Store, spines: list[Spine], now: int) -> tuple[pa.Table, CommitTimes]:
            batch = _history(spines, part, now).at(tick if _has_rows(spines) else now, now)
            return plain_rows(batch), commit_times(store, [tick])

        try:
            return self._read(read)
        except TimeError:
            # The history does not go back to the tick; its own manifest may still be stored.
            try:
                return self._read(read, tick)
            except StoreError:
                pass
            raise

    def changes(self, since: int, upto: int, part: HashRange) -> tuple[pa.Table, CommitTimes]:
        def read(store: Store, spines: list[Spine], now: int) -> tuple[pa.Table, CommitTimes]:
            history = _history(spines, part, now)
            if not _has_rows(spines):
                return history.changes(now, now, now), {}
            return history.changes(since, upto, now), commit_times(store, range(since + 1, upto + 1))

        return self._read(read)

    def _read(
        self, read: Callable[[Store, list[Spine], int], tuple[pa.Table, CommitTimes]], tick: int | None = None
    ) -> tuple[pa.Table, CommitTimes]:
        with self.open_table(tick) as (store, spines, now):
            return read(store, spines, now)


class PipelineSource(DbsparkSource):
    """The data source, reading the files of pipelines."""

    origin = StoredTable


def register(spark: SparkSession) -> None:
    """Make the data source `dbspark` known to a session. Doing it again does nothing."""
    source.register(spark, PipelineSource)


def commit_times(store: Store, ticks: Container[int] | None = None) -> dict[int, float]:
    """The commit times of some ticks, or all, whose manifests are still stored."""
    out: dict[int, float] = {}
    for version in sorted(v for name in store.files.names() if (v := mf.version_of(name)) is not None):
        if version[0] not in out and (
            ticks is None or version[0] in ticks
        ):  # later revisions of a tick change the program, not the rows
            try:
                out[version[0]] = store._manifest(version).time
            except (CorruptFileError, OSError):
                continue
    return out


def _has_rows(spines: list[Spine]) -> bool:
    """Whether there has ever been a row."""
    return any(spine.batches for spine in spines)


def _history(spines: list[Spine], part: HashRange, now: int) -> ShardedHistory:
    nonempty = [s for s in spines if s.batches] or spines[:1]
    if part.of > 1:
        nonempty = [Spine(s.sort_key, tuple(_slice(b, part) for b in s.batches)) for s in nonempty]
    return ShardedHistory([history_of(s.sort_key, 0, now, s, now + 1) for s in nonempty])


def _slice(batch: Batch, part: HashRange) -> Batch:
    """The rows of a batch in a range of key hashes."""
    bounds = [(part.number << 64) // part.of, (part.number + 1 << 64) // part.of]
    ends = [0, batch.rows]
    for i, bound in enumerate(bounds):
        if 0 < bound < 1 << 64:
            ends[i] = sum(int(np.searchsorted(c.lane(nd.KEY), np.uint64(bound))) for c in batch.chunks)
    return batch.slice(ends[0], ends[1] - ends[0]).with_description(batch.description)


__all__ = ["PipelineSource", "StoredTable", "commit_times", "register"]
