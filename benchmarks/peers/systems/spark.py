"""Spark recomputing: cached tables, `local[2]`, two shuffle partitions.

Spark has no table in memory that changes. Rows that come are a frame more; every so many ticks all of them are cached
anew as one, which is timed like everything else. Rows that go are rows of weight -1, so the view of W1 sums weights:
the same answer, and far cheaper than writing the table anew in every tick.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from benchmarks.peers.case import Case
from benchmarks.peers.contender import Recomputing
from benchmarks.peers.systems.session import OnSpark

FOLD: Final = 10
"""Ticks after which what has come since is cached with the rest."""
_WEIGHTED: Final = (
    "SELECT region, sum(o.w * c.w) AS cnt, sum(o.w * c.w * amount) AS total FROM orders o JOIN customers c "
    "USING (customer_id) WHERE status < 8 GROUP BY region HAVING sum(o.w * c.w) <> 0"
)


class Spark(OnSpark, Recomputing):
    name = "Spark"
    workloads = frozenset({"w1", "w3"})

    def open(self, case: Case) -> None:
        self._sql = _WEIGHTED if any(table.weighted for table in case.tables.values()) else case.sql
        source = case.open()
        self._cached: dict[str, Any] = {}
        self._recent = {name: [source.empty(name)] for name in case.tables}

    def load(self, given: dict[str, pa.Table]) -> None:
        for name, rows in given.items():
            self._recent[name].append(rows)
        for name in self._recent:
            self._fold(name)
        self.view = self.compute()

    def apply(self, given: dict[str, pa.Table]) -> None:
        for name, rows in given.items():
            self._recent[name].append(rows)
            if len(self._recent[name]) > FOLD:
                self._fold(name)

    def _frame(self, name: str) -> Any:
        recent = pa.concat_tables(self._recent[name])
        if name not in self._cached:
            return self._spark.createDataFrame(recent)
        return self._cached[name].union(self._spark.createDataFrame(recent)) if len(recent) else self._cached[name]

    def _fold(self, name: str) -> None:
        frame = self._frame(name).repartition(2).cache()
        frame.count()
        if name in self._cached:
            self._cached[name].unpersist()
        self._cached[name] = frame
        self._recent[name] = [self._recent[name][0]]

    def compute(self) -> pa.Table:
        for name in self._recent:
            self._frame(name).createOrReplaceTempView(name)
        return self._spark.sql(self._sql).toArrow()

    def result(self) -> pa.Table:
        return self.view

    def close(self) -> None:
        self._spark.catalog.clearCache()
        for name in self._recent:
            self._spark.catalog.dropTempView(name)
