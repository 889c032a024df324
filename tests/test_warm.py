"""Kernels are compiled ahead for the types that they list: the API calls them with no others."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dbspark.circuit.builder import Builder
from dbspark.circuit.executor import Circuit
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.chunk import CHUNK_ROWS
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.kernels import preload
from dbspark.kernels.units import KERNELS
from dbspark.operators.window import FrameExtreme, FrameSum, Ranking, Shift
from dbspark.pipeline.pipeline import Pipeline
from dbspark.trace import Antichain, SpineConfig, Trace, TraceAgent
from dbspark.zset.config import BACKENDS, ZSetConfig
from dbspark.zset.zset import ZSet, columns

_ROWS = 3000
"""Rows of a table: enough for its batches to be indexed."""


@pytest.fixture(scope="module", autouse=True)
def all_kernels() -> None:
    preload.begin()
    preload.wait()
    assert preload.unready_units() == []


@pytest.fixture(autouse=True)
def only_listed_types() -> Iterator[None]:
    """Fails a test in which a kernel is called with types that it does not list."""
    before = {kernel.qualified_name: len(kernel.overloads) for kernel in KERNELS}
    yield
    for kernel in KERNELS:
        if kernel.qualified_name in before:
            assert len(kernel.overloads) == before[kernel.qualified_name], (
                f"{kernel.qualified_name}: {kernel.signatures}"
            )


def test_zsets() -> None:
    """Z-sets of flat and nested rows with every backend, indexed ones, batches and merges."""
    schema = "k BIGINT, f DOUBLE, s STRING, b BOOLEAN, m MAP<STRING, INT>, t STRUCT<x: ARRAY<INT>>"
    rows: list[tuple[Any, ...]] = [
        (i, i / 2, str(i), i % 2 == 0, {"b": i, "a": None}, {"x": [i, None]}) for i in range(64)
    ]
    rows.append((None,) * 6)
    flat = pa.table({"k": pa.array(range(2000)), "v": pa.array(range(2000))})
    for backend in BACKENDS:
        config = ZSetConfig(backend=backend, smallset_n=8)
        nested = ZSet.from_rows(rows, schema, config=config)
        nested = nested.add(rows[0], 2) - nested.filter(lambda row: row[0] == 1)
        assert nested.weight(rows[0]) == 3
        z = ZSet.from_arrow(flat, config=config)
        for i in range(20):
            z = z + ZSet.from_rows([(i, i)], z.schema, [-1], config=config)
        assert z.count == 1980
        with z.arranged_view() as view:
            assert len(view) == 1980
        assert (z.weight((100, 100)), z.weight((100, None))) == (1, 0)
        assert (z + ZSet.from_arrow(flat.slice(0, 3), config=config)).count == 1983
        assert z.filter(columns(lambda b: pc.less(b["k"], 30))).count == 10
        assert sum(len(weights) for _, weights in z.scan()) == 1980
        indexed = z.group_by("k")
        assert indexed.join(indexed).count == 1980
        assert indexed.group(100).count == 1
    by_key = SortKey(z.schema, (0,))
    parts = [Batch.from_arrow(flat.slice(i * 500, 500), by_key) for i in range(4)]
    assert merge(parts).rows == 2000


def test_traces() -> None:
    """Traces with and without order columns: appends, merges and every kind of read; a Bloom filter."""
    schema = Schema.parse("k BIGINT, v STRING")
    for key, order in (([0], ()), ([0], [(1, True, False)])):
        trace = Trace(
            SortKey(schema, key, order), config=SpineConfig(fanout=2, max_inline_merge_rows=0, merge_step_rows=1)
        )
        agent = TraceAgent.of(trace)
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

    filtered = Trace(SortKey(schema, [0]), config=SpineConfig(fanout=16, min_indexed_rows=1, min_filtered_rows=1))
    for i in range(8):
        assert len(filtered.probe([(-1,), (i - 1,)])) == (i > 0)
        filtered.append(ZSet.from_rows([(i, "a")], schema).batch())


def test_circuits() -> None:
    """A circuit with stateful operators of all kinds, run by the operator VM and operator by operator."""
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
    for use_vm in (True, False):
        circuit = Circuit(b.graph, use_vm=use_vm)
        circuit.tick({"left": rows, "right": [(1, "x"), (2, "y"), (7, "z")], "edges": chain})
        circuit.tick({"spans": [("1", "3"), ("2", "4")]})
        out = circuit.tick({"left": dict.fromkeys(rows, -1), "right": {(1, "x"): -1}, "edges": {(2, 3): -1}})
        assert out["reach"].count == 12


def test_weights_that_cannot_be_written() -> None:
    """Aggregates over the memory of Arrow, as a delta that was imported or came from another shard has it."""
    b = Builder()
    t = b.source("t", "k BIGINT, x BIGINT, f DOUBLE")
    b.output("v", b.aggregate(
        t, ["k"], a=("bit_and", "x"), o=("bit_or", "x"), x=("bit_xor", "x"), v=("var_pop", "f"), c=("count", "f"),
        s=("sum", "f"), m=("max", "x"),
    ))  # fmt: skip
    weights = np.ones(3, np.int64)
    weights.setflags(write=False)
    columns = [pa.array([1, 1, 2]), pa.array([3, 5, 6]), pa.array([0.5, 1.5, 2.0])]
    for use_vm in (True, False):
        out = Circuit(b.graph, use_vm=use_vm).step({"t": Delta(t.schema, columns, weights)})["v"]
        assert sorted(out.columns[1].to_pylist()) == [1, 6]


def test_tables() -> None:
    """Tables with and without a key through a pipeline, without Spark."""
    with Pipeline("warm", config={"history": 2}) as pipe:
        for name, key in (("plain", ()), ("keyed", ("k",))):
            pipe.create_table(name, "k BIGINT, v STRING", primary_key=key)
        for begin in (0, 2 * _ROWS, 3 * _ROWS):
            with pipe.transaction() as tx:
                for name in pipe.tables:
                    tx.insert(name, [(begin + i, "v") for i in range(_ROWS + (begin == 0))])
        for _ in range(20):
            with pipe.transaction() as tx:
                for name in pipe.tables:
                    tx.delete(name, [(1, "v")])
            with pipe.transaction() as tx:
                tx.insert("plain", [(1, "v")])
                tx.upsert("keyed", [(1, "v")])
        assert pipe.table("keyed").to_arrow().num_rows == 3 * _ROWS + 1
        for begin, rows in ((10 * _ROWS, 3), (20 * _ROWS, CHUNK_ROWS + 1)):
            keys = pa.array(range(begin, begin + rows), pa.int64())
            with pipe.transaction() as tx:
                tx.apply("keyed", pa.table({"k": keys, "v": pa.array(["v"] * rows)}))
