"""pydbsp, DBSP in Python: W1 with one axis of time, W2 with two.

W1: d(O ⋈ C) = dO ⋈ I(C) + z⁻¹(I(O)) ⋈ dC over indexed Z-sets, and sums in the weights, as its authors advise for what
is linear. W2: its incremental join and distinct, iterated until nothing is new. Compacting is part of a tick.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from benchmarks.peers.case import WEIGHT, Case
from benchmarks.peers.contender import Ticking


class Pydbsp(Ticking):
    name = "pydbsp"
    workloads = frozenset({"w1", "w2"})

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"pydbsp": version("pydbsp")}

    def start(self) -> None:
        sys.setrecursionlimit(1_000_000)

    def open(self, case: Case) -> None:
        self._keeper: Any = _Revenue() if case.workload == "w1" else _Reach(case)

    def prepare(self, rows: dict[str, pa.Table]) -> dict[str, Any]:
        from pydbsp.zset import ZSet

        out = {}
        for name, table in rows.items():
            columns = [column.to_pylist() for column in table.columns]
            if table.column_names[-1] == WEIGHT:
                out[name] = ZSet(dict(zip(zip(*columns[:-1], strict=True), columns[-1], strict=True)))
            else:
                out[name] = columns[0]
        return out

    def tick(self, given: dict[str, Any]) -> None:
        self._keeper.tick(given)

    def result(self) -> pa.Table:
        view: pa.Table = self._keeper.view()
        return view


class _Revenue:
    def __init__(self) -> None:
        from pydbsp.circuit import Circuit
        from pydbsp.compute import ComputeCtx
        from pydbsp.core import Antichain, dbsp_time
        from pydbsp.evaluate import Evaluator
        from pydbsp.indexed_relational_operators import LiftIndex
        from pydbsp.indexed_zset import IndexedZSetAddition, sort_merge_join
        from pydbsp.operator import Delay, Input, Integrate, Lift1, Lift2
        from pydbsp.storage import DictStorage
        from pydbsp.zset import ZSet, ZSetAddition

        group = ZSetAddition()
        time = dbsp_time(1)
        self._run = Evaluator(circuit=Circuit(), storage=DictStorage(), ctx=ComputeCtx(lattice=time), group=group)
        circuit = self._run.circuit
        self._orders, self._customers = (Input(frontier=Antichain(dbsp_time(1))).connect(circuit, ()) for _ in range(2))

        def some(given: Any) -> Any:
            return ZSet({row: weight for row, weight in given.inner.items() if row[3] < 8})

        def row(key: Any, order: Any, customer: Any) -> Any:
            return order[0], customer[1], order[2]

        def joined(a: Any, b: Any) -> Any:
            return Lift2(op=lambda x, y: sort_merge_join(x, y, row)).connect(circuit, (a, b))

        def sums(given: Any) -> Any:
            out: dict[Any, int] = {}
            for (_, region, amount), weight in given.inner.items():
                out[region, 0] = out.get((region, 0), 0) + weight
                out[region, 1] = out.get((region, 1), 0) + weight * amount
            return ZSet(out)

        by_order, by_customer = (IndexedZSetAddition(group, lambda r, i=i: r[i]) for i in (1, 0))
        orders = Lift1(f=some).connect(circuit, (self._orders,))
        orders = LiftIndex(indexer=lambda r: r[1]).connect(circuit, (orders,))
        customers = LiftIndex(indexer=lambda r: r[0]).connect(circuit, (self._customers,))
        before = Delay(group=by_order).connect(circuit, (Integrate(group=by_order).connect(circuit, (orders,)),))
        known = Integrate(group=by_customer).connect(circuit, (customers,))
        both = Lift2(op=group.add).connect(circuit, (joined(orders, known), joined(before, customers)))
        self._sums = Lift1(f=sums).connect(circuit, (both,))
        self._view = Integrate(group=group).connect(circuit, (self._sums,))
        self._empty = ZSet({})
        self._tick = 0
        self._now: Any = None

    def tick(self, given: dict[str, Any]) -> None:
        self._run.push(self._orders, given.get("orders", self._empty))
        self._run.push(self._customers, given.get("customers", self._empty))
        self._run.read(self._sums, (self._tick,))
        self._now = self._run.read(self._view, (self._tick,))
        self._run.compact()
        self._tick += 1

    def view(self) -> pa.Table:
        found = self._now.inner
        regions = [region for region, which in found if which == 0]
        columns = {"region": regions} | {
            name: [found.get((region, i), 0) for region in regions] for i, name in enumerate(("cnt", "total"))
        }
        return pa.table(columns)


class _Reach:
    def __init__(self, case: Case) -> None:
        from pydbsp.circuit import Circuit
        from pydbsp.compute import ComputeCtx
        from pydbsp.core import Antichain, dbsp_time
        from pydbsp.evaluate import Evaluator
        from pydbsp.indexed_relational_operators import (
            DeltaLiftedDeltaLiftedDistinct,
            IndexedDeltaLiftedDeltaLiftedJoin,
            LiftIndex,
        )
        from pydbsp.indexed_zset import IndexedZSetAddition
        from pydbsp.operator import Input, Lift1, Lift2, LiftDelay, LiftStreamIntroduction
        from pydbsp.storage import DictStorage
        from pydbsp.zset import ZSet, ZSetAddition

        group = ZSetAddition()
        self._run = Evaluator(
            circuit=Circuit(), storage=DictStorage(), ctx=ComputeCtx(lattice=dbsp_time(2)), group=group
        )
        circuit = self._run.circuit
        self._edges = Input(frontier=Antichain(dbsp_time(1))).connect(circuit, ())
        self._state = Input(frontier=Antichain(dbsp_time(2))).connect(circuit, ())
        edges = LiftStreamIntroduction(group=group).connect(circuit, (self._edges,))
        seed = edges
        if "sources" in case.tables:
            wanted = set(case.open()[0]["sources"]["src"].to_pylist())

            def some(given: Any) -> Any:
                return ZSet({row: weight for row, weight in given.inner.items() if row[0] in wanted})

            seed = Lift1(f=some).connect(circuit, (edges,))
        found = LiftDelay(group=group).connect(circuit, (self._state,))
        by_end = LiftIndex(indexer=lambda r: r[1]).connect(circuit, (found,))
        by_start = LiftIndex(indexer=lambda r: r[0]).connect(circuit, (edges,))
        hop = IndexedDeltaLiftedDeltaLiftedJoin(
            proj=lambda _, a, b: (a[0], b[1]), group_a=IndexedZSetAddition(group, lambda r: r[1]),
            group_b=IndexedZSetAddition(group, lambda r: r[0]), out_group=group,
        ).connect(circuit, (by_end, by_start))  # fmt: skip
        fresh = Lift2(op=group.add).connect(circuit, (hop, seed))
        self._body = DeltaLiftedDeltaLiftedDistinct(inner_group=group).connect(circuit, (fresh,))
        self._pairs: dict[Any, int] = {}
        self._depth, self._tick, self._empty = -1, 0, ZSet({})

    def tick(self, given: dict[str, Any]) -> None:
        self._run.push(self._edges, given.get("edges", self._empty))
        depth = 0
        rounds = self._run.saturate_inner(
            self._body, self._tick, is_empty=lambda found: not found.inner, min_inner=self._depth
        )
        for depth, change in rounds:
            self._run.push(self._state, change, t=(self._tick, depth))
            for pair, weight in change.inner.items():
                total = self._pairs.get(pair, 0) + weight
                if total:
                    self._pairs[pair] = total
                else:
                    del self._pairs[pair]
        self._depth = max(self._depth, depth)
        self._run.compact()
        self._tick += 1

    def view(self) -> pa.Table:
        return pa.table({name: [pair[i] for pair in self._pairs] for i, name in enumerate(("src", "dst"))})
