"""dbspark as its users have it: a `Pipeline` in this process, in memory, a SQL view, a subscriber that gets changes.

A tick is a transaction; it ends when the subscriber has the changes of the view as Arrow. No history is kept.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.peers.case import WEIGHT, Case
from benchmarks.peers.contender import Ticking
from benchmarks.peers.systems.session import OnSpark


class Dbspark(OnSpark, Ticking):
    name = "dbspark"
    workloads = frozenset({"w1", "w2", "w3"})

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._pipe: Any = None
        self._weighted: set[str] = set()
        self.changes = 0

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {package: version(package) for package in ("pyspark", "pyarrow", "numba", "numpy")}

    def open(self, case: Case) -> None:
        import dbspark

        self._pipe = dbspark.Pipeline("peer", spark=self._spark, config={"history": 0, "reserve": case.reserve})
        self._weighted = {name for name, table in case.tables.items() if table.weighted}
        for name, table in case.tables.items():
            self._pipe.create_table(name, table.ddl)
        self._pipe.create_view(case.view, case.sql, recursive=case.recursive)
        self._view = self._pipe.view(case.view)
        self.changes = 0
        self._view.subscribe(self._received)

    def _received(self, changes: pa.Table, tick: int) -> None:
        self.changes += changes.num_rows

    def tick(self, given: dict[str, pa.Table]) -> None:
        with self._pipe.transaction() as tx:
            for name, rows in given.items():
                if name in self._weighted:
                    tx.apply(name, rows, weight=WEIGHT)
                else:
                    tx.insert(name, rows)

    def result(self) -> pa.Table:
        return self._view.to_arrow()

    def close(self) -> None:
        self._pipe.close()
