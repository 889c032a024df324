"""What circuits cost.

* `w1`: join and aggregate under changes, against the same view written by hand (`benchmarks.circuit.w1`);
* `pipeline`: the four stages of DBSP.NET's CircuitLargeScale on its own data, golden values asserted. Upstream never
  seeds the aggregate and measures an empty delta where no change is recent; here everything is loaded, and a second
  line counts only ticks whose delta reaches the join;
* `joins`: its InnerJoin_Incremental and FusedJoinProject;
* `closure`: transitive closure under changes of 100 edges, against recomputing it in the same circuit;
* `dispatch` and `ranges`: how joins look up their deltas (`benchmarks.circuit.lookups`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.circuit import lookups
from benchmarks.circuit import w1 as data
from benchmarks.harness import QUICK, no_gc
from benchmarks.report import Target, save, show, show_targets
from benchmarks.zset import orders as pipeline_data
from benchmarks.zset.dotnet import Random, scaled
from dbspark.circuit import Builder, Circuit
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from tests.reference.optimise import optimise

MILLION: Final = 100_000 if QUICK else 1_000_000
TICKS: Final = 20 if QUICK else 200


def delta_of(schema: Schema, columns: list[Any], weights: Any) -> Delta:
    """A change in columns, as a source takes it."""
    arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
    return Delta(schema, arrays, np.ascontiguousarray(weights, np.int64))


class View:
    """The sum of what an output has given."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}

    def add(self, delta: Delta) -> None:
        for row, weight in delta.items():
            total = self.rows.get(row, 0) + weight
            if total:
                self.rows[row] = total
            else:
                del self.rows[row]


# ---------------------------------------------------------------------------------------------------- W1


def w1_circuit() -> Circuit:
    b = Builder()
    orders, customers = b.source("orders", data.ORDERS), b.source("customers", data.CUSTOMERS)
    some = b.project(b.filter(orders, lambda c: pc.less(c[3], 8)), ["customer_id", "amount", "order_id"])
    joined = b.join(some, customers, ["customer_id"], select=[(1, "region"), (0, "amount")])
    b.output("view", b.aggregate(joined, ["region"], cnt=("count", None), total=("sum", "amount")))
    return Circuit(optimise(b.graph))


def w1_deltas(change: data.Change) -> dict[str, Delta]:
    o, c = change.orders, change.customers
    columns = [o[k] for k in ("order_id", "customer_id", "amount", "status")]
    people = [c["customer_id"], data.REGIONS[c["region"]]]
    return {
        "orders": delta_of(Schema.of(data.ORDERS), columns, o["w"]),
        "customers": delta_of(Schema.of(data.CUSTOMERS), people, c["w"]),
    }


def _w1_race(n: int, d: int, ticks: int) -> tuple[float, float]:
    """Median seconds of a tick, ours and by hand; both views are checked against the known one."""
    workload = data.generate(n, d, ticks)
    circuit, hand, view = w1_circuit(), data.Hand(), View()
    view.add(circuit.step(w1_deltas(workload.base))["view"])
    hand.step(workload.base, data.regions_of(workload.base))
    ours, theirs = [], []
    with no_gc():
        for change, expected in data.pairs(workload):
            deltas, regions = w1_deltas(change), data.regions_of(change)
            begin = time.perf_counter()
            out = circuit.step(deltas)["view"]
            middle = time.perf_counter()
            hand.step(change, regions)
            theirs.append(time.perf_counter() - middle)
            ours.append(middle - begin)
            view.add(out)
            assert hand.view() == expected
    assert {r[0]: (r[1], r[2]) for r in view.rows} == workload.views[-1], "the view is wrong"
    return float(np.median(ours)), float(np.median(theirs))


def w1() -> list[Target]:
    """Join and aggregate against the same by hand, and against itself on a tenth of the data."""
    targets, lines = [], []
    for d, ticks in ((100, 3 * TICKS), (10_000, max(TICKS // 8, 5))):
        small, _ = _w1_race(MILLION // 10, d, ticks)
        ours, hand = _w1_race(MILLION, d, ticks)
        lines.append((d, ours * 1e3, hand * 1e3, small * 1e3))
        targets.append(Target(f"W1, {d} changes / by hand", ours / hand, 5.0, "x"))
        targets.append(Target(f"W1, {d} changes, 1M orders / 100k", ours / small, 1.3, "x"))
    show("W1, median ms a tick", ("changes", "circuit", "by hand", "circuit, a tenth of the orders"), lines)
    return targets


# ---------------------------------------------------------------------------------------------------- DBSP.NET's


def _pipeline(products: int) -> Circuit:
    b = Builder()
    orders = b.source("orders", pipeline_data.SCHEMA)
    dimension = b.source("products", "pid BIGINT, cls STRING")
    recent = b.filter(orders, lambda c: pc.greater_equal(c[4], pipeline_data.RECENT))
    amounts = b.map(recent, lambda c: [c[1], c[0], pc.multiply(c[2], c[3])], "pid BIGINT, cid BIGINT, amount BIGINT")
    joined = b.join(amounts, dimension, ["pid"], select=[(0, "cid"), (1, "cls"), (0, "amount")])
    b.output("sums", b.aggregate(joined, ["cid", "cls"], total=("sum", "amount")))
    circuit = Circuit(optimise(b.graph))
    ids = np.arange(products)
    schema = Schema.parse("pid BIGINT, cls STRING")
    circuit.step({"products": delta_of(schema, [ids, np.where(ids % 2 == 0, "A", "B")], np.ones(products))})
    return circuit


def _order_delta(table: pa.Table) -> Delta:
    columns = [table.column(c).to_numpy() for c in pipeline_data.COLUMNS]
    weights = table.column("w").to_numpy() if "w" in table.column_names else np.ones(table.num_rows)
    return delta_of(Schema.parse(pipeline_data.SCHEMA), columns, weights)


def pipeline() -> list[Target]:
    """Filter, map, join, project, sum over a million orders; 100 of them change."""
    targets, lines = [], []
    for size, products in ((100_000, 10_000), *(() if QUICK else ((1_000_000, 10_000),))):
        golden = next(g for g in pipeline_data.GOLDEN if (g.size, g.changes, g.products) == (size, 100, products))
        orders = pipeline_data.generate(size, 100)
        circuit, view = _pipeline(products), View()
        view.add(circuit.step({"orders": _order_delta(pipeline_data.table(orders.rows))})["sums"])
        assert (len(view.rows), sum(r[2] for r in view.rows)) == (golden.groups, golden.total_before)
        stream = pipeline_data.Stream(orders)
        first = pipeline_data.weighted(orders.rows, orders.after())
        view.add(circuit.step({"orders": _order_delta(first)})["sums"])
        assert (len(view.rows), sum(r[2] for r in view.rows)) == (golden.groups, golden.total_after)
        view.add(circuit.step({"orders": _order_delta(pipeline_data.weighted(orders.after(), orders.rows))})["sums"])
        taken = []
        with no_gc():
            for _ in range(TICKS):
                delta = {"orders": _order_delta(stream.next(100))}
                begin = time.perf_counter()
                circuit.step(delta)
                taken.append(time.perf_counter() - begin)
        median = float(np.median(taken)) * 1e3
        lines.append((size, median, float(np.min(taken)) * 1e3))
        if size == 1_000_000:
            targets.append(Target("Incremental_Circuit 1M/100", median, 0.9, " ms"))
    show("CircuitLargeScale, 100 changes, ms a tick", ("orders", "median", "best"), lines)
    return targets


def joins() -> list[Target]:
    """One evaluation of a join of two sets, and a fused join and projection of a small change."""
    targets, lines = [], []
    golden = {100: (294, 294), 1000: (2994, 2991), 5000: (14997, 14988)}
    for size in (100, 1000, 5000):
        keys = np.arange(size)
        left = delta_of(
            Schema.parse("k BIGINT, v STRING"), [keys % (size // 3 + 1), [f"left_{i}" for i in keys]], np.ones(size)
        )
        values = scaled(Random(42).draws(size), 1, 1000)
        right = delta_of(
            Schema.parse("k BIGINT, x BIGINT"), [(keys + size // 6) % (size // 3 + 1), values], np.ones(size)
        )
        taken = []
        for _ in range(5 if QUICK else 40):
            b = Builder()
            b.output("out", b.join(b.source("l", "k BIGINT, v STRING"), b.source("r", "k BIGINT, x BIGINT"), ["k"]))
            circuit = b.circuit()
            given = {
                "l": Delta(left.schema, left.columns, left.weights),
                "r": Delta(right.schema, right.columns, right.weights),
            }
            begin = time.perf_counter()
            out = circuit.step(given)["out"]
            batch = out.batch()
            taken.append(time.perf_counter() - begin)
        assert (batch.total_weight, batch.rows) == golden[size], (batch.total_weight, batch.rows)
        median = float(np.median(taken)) * 1e3
        lines.append((f"InnerJoin {size}", median))
        if size > 100:
            targets.append(Target(f"InnerJoin {size}", median, {1000: 4.2, 5000: 40.0}[size], " ms"))
    lines.append(("FusedJoinProject 100k/100", _fused_join_project() * 1e3))
    targets.append(Target("FusedJoinProject 100k/100", lines[-1][1], 0.35, " ms"))
    show("Joins, median ms", ("", "ms"), lines)
    return targets


def _fused_join_project() -> float:
    rows, products = 100_000, 10_000
    drawn = Random(42).draws(rows * 4).reshape(rows, 4)
    for c, (low, high) in enumerate(((0, rows // 10 + 1), (0, products), (1, 6), (100, 5100))):
        drawn[:, c] = scaled(drawn[:, c], low, high)
    b = Builder()
    left = b.source("l", "cid BIGINT, pid BIGINT, qty BIGINT, price BIGINT")
    right = b.source("r", "pid BIGINT, cls STRING")
    joined = b.join(left, right, ["pid"])
    b.output("out", b.project(joined, ["cid", "cls", "qty", "price"]))
    circuit = Circuit(optimise(b.graph))
    ids = np.arange(products)
    classes = delta_of(
        Schema.parse("pid BIGINT, cls STRING"), [ids, np.where(ids % 2 == 0, "A", "B")], np.ones(products)
    )
    circuit.step({"r": classes})
    random = Random(7)
    schema = Schema.parse("cid BIGINT, pid BIGINT, qty BIGINT, price BIGINT")
    taken = []
    for _ in range(TICKS):
        more = random.draws(300).reshape(100, 3)
        old = drawn[scaled(more[:, 0], 0, rows)]
        new = old.copy()
        new[:, 2] += scaled(more[:, 1], 0, 2)
        new[:, 3] += scaled(more[:, 2], -10, 10)
        both = np.concatenate([old, new])
        delta = delta_of(schema, [np.ascontiguousarray(both[:, c]) for c in range(4)], np.repeat([-1, 1], 100))
        begin = time.perf_counter()
        circuit.step({"l": delta})
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


# ---------------------------------------------------------------------------------------------------- recursion


def _closure() -> Circuit:
    b = Builder()
    edges = b.source("edges", "src BIGINT, dst BIGINT")

    def step(s: Builder, reach: Any, edges: Any) -> Any:
        further = s.join(reach, edges, [("dst", "src")], select=[(0, "src"), (1, "dst")], names=["src", "dst"])
        return s.distinct(s.union(edges, further))

    b.output("reach", b.fixpoint({"reach": "src BIGINT, dst BIGINT"}, [edges], step)[0])
    return b.circuit()


def closure() -> list[Target]:
    """Half of 100 changes delete an edge, half insert one; a sparse random graph."""
    nodes, count, d = (2000, 1800, 100) if QUICK else (20_000, 18_000, 100)
    rng = np.random.default_rng(2)
    edges: set[tuple[int, int]] = set()
    while len(edges) < count:
        s, t = rng.integers(0, nodes, 2).tolist()
        if s != t:
            edges.add((s, t))
    schema = Schema.parse("src BIGINT, dst BIGINT")

    def delta(rows: list[tuple[int, int]], weights: Any) -> Delta:
        both = np.array(rows, np.int64).reshape(-1, 2)
        return delta_of(schema, [np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])], weights)

    circuit = _closure()
    pairs = circuit.step({"edges": delta(sorted(edges), np.ones(count))})["reach"].batch().rows
    taken, again = [], []
    for tick in range(3 if QUICK else 20):
        current = sorted(edges)
        gone = [current[i] for i in rng.choice(len(current), d // 2, replace=False)]
        new: list[tuple[int, int]] = []
        while len(new) < d - len(gone):
            s, t = rng.integers(0, nodes, 2).tolist()
            if s != t and (s, t) not in edges and (s, t) not in new:
                new.append((s, t))
        edges = (edges - set(gone)) | set(new)
        change = delta([*gone, *new], np.repeat([-1, 1], [len(gone), len(new)]))
        begin = time.perf_counter()
        pairs += circuit.step({"edges": change})["reach"].batch().total_weight
        taken.append(time.perf_counter() - begin)
        if tick % 5 == 0:
            fresh, whole = _closure(), delta(sorted(edges), np.ones(len(edges)))
            begin = time.perf_counter()
            batch = fresh.step({"edges": whole})["reach"].batch()
            again.append(time.perf_counter() - begin)
            assert batch.rows == pairs, f"{pairs} pairs kept, {batch.rows} recomputed"
    tick_ms, whole_ms = float(np.median(taken)) * 1e3, float(np.median(again)) * 1e3
    show("Transitive closure, 100 edges change", ("pairs", "tick ms", "recomputed ms"), [(pairs, tick_ms, whole_ms)])
    return [Target("closure: tick / recompute", tick_ms / whole_ms, 1 / 20, "x")]


SUITES: Final[dict[str, Callable[[], list[Target]]]] = {
    "w1": w1, "pipeline": pipeline, "joins": joins, "closure": closure,
    "dispatch": lookups.dispatch, "ranges": lookups.ranges,
}  # fmt: skip


def run(names: list[str]) -> list[Target]:
    """Run suites; returns their targets."""
    targets = [target for name in names or SUITES for target in SUITES[name]()]
    show_targets("Circuits", targets)
    save("circuit", {"targets": targets})
    return targets
