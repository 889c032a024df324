"""A tiny tour through the kernels of traces and circuits, by the ordinary API."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from dbspark.batch import Arrangement
from dbspark.batch.schema import Schema
from dbspark.circuit.builder import Builder
from dbspark.circuit.executor import Circuit
from dbspark.operators.window import FrameExtreme, FrameSum, Ranking, Shift
from dbspark.trace import Antichain, SpineConfig, Trace
from dbspark.zset import ZSet


def warm() -> None:
    """Use every kernel once, so that all are compiled and cached."""
    _warm_trace()
    _warm_circuit()


def _warm_trace() -> None:
    schema = Schema.parse("k BIGINT, v STRING")
    for key, order in (([0], ()), ([0], [(1, True, False)])):
        trace = Trace(Arrangement(schema, key, order), config=SpineConfig(fanout=2, at_once=0, step=1))
        agent = trace.agent()
        for i in range(6):
            trace.append(ZSet.from_rows([(i % 3, "a"), (i, "b")], schema).batch())
        assert trace.as_of(2).rows == 6
        assert trace.changes(2, 4).rows == 4
        assert len(trace.probe([(1,)])) == 3
        assert len(list(trace.cursor())) == 12
        if order:
            assert trace.first([(1,)]).columns([1])[0].to_pylist() == ["b"]
        agent.advance(Antichain.at(5))
        agent.drop()
        trace.finish()
        assert trace.scan().rows == 9

    sieved = Trace(Arrangement(schema, [0]), config=SpineConfig(fanout=16, indexed=1, sieved=1))
    for i in range(8):
        assert len(sieved.probe([(-1,), (i - 1,)])) == (i > 0)
        sieved.append(ZSet.from_rows([(i, "a")], schema).batch())


def _warm_circuit() -> None:
    b = Builder()
    left = b.source("left", "k BIGINT, d DECIMAL(10, 2), f DOUBLE, s STRING")
    right = b.source("right", "k BIGINT, r STRING")
    joined = b.join(left, right, ["k"], "full", select=[(0, "k"), (0, "d"), (0, "f"), (0, "s"), (1, "r")])
    b.output("groups", b.aggregate(
        joined, ["r"], n=("count", "s"), d=("sum", "d"), a=("avg", "d"), f=("sum", "f"), m=("min", "s"),
        v=("var_samp", "f"), x=("bit_xor", "k"), l=("collect_list", "s"), q=("median", "f"), u=("count_distinct", "s"),
    ))  # fmt: skip
    b.output("sums", b.aggregate(joined, ["r"], n=("count", "s"), d=("sum", "d")))
    b.output("once", b.consolidate(b.project(left, ["s"])))
    b.output("top", b.top(joined, ["r"], [("s", "desc")], 1))
    ranks = {"rank": Ranking("rank"), "lag": Shift(3, -1), "sum": FrameSum(1), "max": FrameExtreme(2, True)}
    b.output("windows", b.window(joined, ["r"], ["s"], ranks))
    b.output("distinct", b.distinct(b.project(joined, ["r"])))
    spans = b.source("spans", "lo STRING, hi STRING")
    b.output("within", b.join(left, spans, [], "full", ranges=[("s", ">=", "lo"), ("s", "<", "hi")]))
    b.output("after", b.join(left, spans, [], "anti", ranges=[("s", "<", "lo")]))
    edges = b.source("edges", "src BIGINT, dst BIGINT")

    def step(s: Builder, reach: Any, edges: Any) -> Any:
        further = s.join(reach, edges, [("dst", "src")], select=[(0, "src"), (1, "dst")])
        return s.distinct(s.union(edges, further))

    b.output("reach", b.fixpoint({"reach": "src BIGINT, dst BIGINT"}, [edges], step)[0])
    rows = [(i % 3, Decimal(i), i / 3, str(i)) for i in range(9)]
    chain = [(i, i + 1) for i in range(6)]  # long enough that its iterations are merged many at a time
    for programs in (True, False):
        circuit = Circuit(b.graph, programs=programs)
        circuit.tick({"left": rows, "right": [(1, "x"), (2, "y"), (7, "z")], "edges": chain})
        circuit.tick({"spans": [("1", "3"), ("2", "4")]})
        out = circuit.tick({"left": dict.fromkeys(rows, -1), "right": {(1, "x"): -1}, "edges": {(2, 3): -1}})
        assert out["reach"].count == 12
