"""W2 by a compiled search from every source, anew in every tick: what a program for this one view would do."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.peers.case import Case
from benchmarks.peers.contender import Recomputing


class Search(Recomputing):
    name = "search"
    workloads = frozenset({"w2"})

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"numba": version("numba"), "numpy": version("numpy")}

    def open(self, case: Case) -> None:
        self._edges = np.empty((0, 2), np.int64)
        self._sources: Any = None
        self._nodes = 0

    def prepare(self, rows: dict[str, pa.Table]) -> dict[str, Any]:
        return {name: np.column_stack([c.to_numpy() for c in table.columns]) for name, table in rows.items()}

    def apply(self, given: dict[str, Any]) -> None:
        if "sources" in given:
            self._sources = given["sources"][:, 0]
        if "edges" in given:
            rows = given["edges"]
            self._nodes = max(self._nodes, int(rows[:, :2].max()) + 1)
            place = np.array([1 << 32, 1])
            gone = rows[rows[:, 2] < 0, :2] @ place
            if len(gone):
                self._edges = self._edges[~np.isin(self._edges @ place, gone)]
            self._edges = np.concatenate([self._edges, rows[rows[:, 2] > 0, :2]])

    def compute(self) -> Any:
        from benchmarks.peers.reach import reachable

        sources = np.arange(self._nodes) if self._sources is None else self._sources
        return reachable(self._nodes, self._edges[:, 0], self._edges[:, 1], sources)

    def result(self) -> pa.Table:
        return pa.table({"src": self.view[:, 0], "dst": self.view[:, 1]})
