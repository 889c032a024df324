"""The committed tables and views of one tick, for reading only. It needs neither a circuit nor Spark."""

from __future__ import annotations

from collections.abc import Sequence

from dbspark.runtime.reslicing import split_trace_name
from dbspark.runtime.runtime import StateReader
from dbspark.runtime.tables import TableDefinition
from dbspark.sql.explain import Size
from dbspark.storage.manifest import TraceRecord
from dbspark.storage.store import Store
from dbspark.trace.history import ShardedHistory, history_of


class ReadOnlyRuntime(StateReader):
    """Reads the state at a location, sharded or not, as of the tick at which the store was opened."""

    def __init__(self, store: Store, tables: Sequence[TableDefinition], shards: int | None, keep: int) -> None:
        self._store = store
        self._keep = keep
        self.tables = {table.name: table for table in tables}
        self._records: dict[str, list[tuple[TraceRecord, ...]]] = {}
        for name, records in store.records().states.items():
            self._records.setdefault(name if shards is None else split_trace_name(name)[0], []).append(records)

    def readable(self, name: str, tick: int) -> ShardedHistory:
        table = self.tables.get(name)
        created = 0 if table is None else table.created
        records = self._records.get(f"view {name}" if table is None else f"table {name}", [])
        spines = [self._store.spine(by_spine[0]) for by_spine in records]
        if not spines:
            assert table is not None  # a table without rows on any shard
            return ShardedHistory([history_of(table.sort_key, self._keep, created, None, tick + 1)])
        return ShardedHistory([history_of(s.sort_key, self._keep, created, s, tick + 1) for s in spines])

    def sizes(self) -> dict[str, Size]:
        return {name: stored_size(records) for name, records in self._records.items()}

    def close(self) -> None:
        self._store.close()


def stored_size(records: Sequence[tuple[TraceRecord, ...]]) -> Size:
    """Rows and bytes on disk of some traces, from their records alone."""
    places = [e.place for trace in records for r in trace for e in r.entries if e.place is not None]
    return Size(sum(p.rows for p in places), sum(p.size for p in places))
