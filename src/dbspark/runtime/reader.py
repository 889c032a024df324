"""What somebody else has committed: tables and views of one tick, to be read. No circuit, and no Spark, is needed."""

from __future__ import annotations

from collections.abc import Sequence

from dbspark.runtime.reslicing import split_trace_name
from dbspark.runtime.runtime import StateReader
from dbspark.runtime.tables import TableDefinition
from dbspark.sql.explain import Size
from dbspark.storage.manifest import TraceRecord
from dbspark.storage.store import Store
from dbspark.trace.history import Histories, history_of


class ReadOnlyRuntime(StateReader):
    """See the module's preface. State of shards is read as well as state of none."""

    def __init__(self, store: Store, tables: Sequence[TableDefinition], shards: int | None, keep: int) -> None:
        self._store = store
        self._keep = keep
        self.tables = {table.name: table for table in tables}
        self._records: dict[str, list[tuple[TraceRecord, ...]]] = {}
        for name, kept in store.records().states.items():
            self._records.setdefault(name if shards is None else split_trace_name(name)[0], []).append(kept)

    def readable(self, name: str, tick: int) -> Histories:
        table = self.tables.get(name)
        created = 0 if table is None else table.created
        records = self._records.get(f"view {name}" if table is None else f"table {name}", [])
        spines = [self._store.spine(given[0]) for given in records]
        if not spines:
            assert table is not None  # a table without rows on any shard
            return Histories([history_of(table.sort_key, self._keep, created, None, tick + 1)])
        return Histories([history_of(s.sort_key, self._keep, created, s, tick + 1) for s in spines])

    def sizes(self) -> dict[str, Size]:
        return {name: size_of(given) for name, given in self._records.items()}

    def close(self) -> None:
        self._store.close()


def size_of(records: Sequence[tuple[TraceRecord, ...]]) -> Size:
    """Rows and bytes of what records name."""
    places = [e.place for kept in records for r in kept for e in r.entries if e.place is not None]
    return Size(sum(p.rows for p in places), sum(p.size for p in places))
