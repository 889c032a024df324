"""W1 written by hand for this view alone (`benchmarks.circuit.w1.Hand`): the limit that a general engine has."""

from __future__ import annotations

from importlib.metadata import version

import pyarrow as pa

from benchmarks.peers.case import Case
from benchmarks.peers.contender import Ticking


class ByHand(Ticking):
    name = "by hand"
    workloads = frozenset({"w1"})

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"numba": version("numba"), "numpy": version("numpy")}

    def open(self, case: Case) -> None:
        from benchmarks.circuit.w1 import Hand

        self._hand = Hand()
        source = case.open()
        self._empty = {name: source.empty(name) for name in case.tables}

    def prepare(self, rows: dict[str, pa.Table]) -> tuple[object, list[str]]:
        from benchmarks.circuit.w1 import Change

        orders, customers = (rows.get(name, self._empty[name]) for name in ("orders", "customers"))
        columns = {name: orders[name].to_numpy() for name in orders.column_names}
        people = {name: customers[name].to_numpy() for name in ("w", "customer_id")}
        return Change(columns, people), customers["region"].to_pylist()

    def tick(self, given: tuple[object, list[str]]) -> None:
        self._hand.step(*given)

    def result(self) -> pa.Table:
        rows = [(region, *figures) for region, figures in self._hand.view().items()]
        names = ("region", "cnt", "total")
        return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
