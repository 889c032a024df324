"""How joins look up their deltas.

* `dispatch`: deltas of growing size against a million rows, always searched for, always by walking along both sides,
  and as `SpineStats.prefers_walk` chooses; where the first two meet is where its limits should lie;
* `ranges`: intervals against points, found by searching an order, beside the same condition on all pairs; and how the
  cost of a tick grows with the points.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import QUICK, no_gc
from benchmarks.report import Target, show
from dbspark.circuit import Builder, Circuit
from dbspark.columnar import SortKey
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.trace.statistics import SpineStats

MILLION: Final = 100_000 if QUICK else 1_000_000
ROUNDS: Final = 3 if QUICK else 15

Choice = Callable[[SpineStats, int, int], bool]
WAYS: Final[dict[str, Choice]] = {
    "searched": lambda stats, delta, rows: False,
    "walked": lambda stats, delta, rows: True,
    "chosen": SpineStats.prefers_walk,
}


def delta_of(schema: Schema, columns: list[Any], weight: int = 1) -> Delta:
    arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
    return Delta(schema, arrays, np.full(len(columns[0]), weight, np.int64))


def _timed(circuit: Circuit, delta: dict[str, Delta], way: Choice = SpineStats.prefers_walk) -> tuple[float, Delta]:
    with patch.object(SpineStats, "prefers_walk", way):
        begin = time.perf_counter()
        out = circuit.step(delta)["out"]
        return time.perf_counter() - begin, out


def dispatch() -> list[Target]:
    """Whole ticks, the three ways in turn over circuits of one content."""
    left, right = Schema.parse("k BIGINT, a BIGINT"), Schema.parse("j BIGINT, b BIGINT")
    rng = np.random.default_rng(3)
    keys = rng.permutation(MILLION)
    lines, worst = [], 0.0
    for size in (100, 1000, 3000, 10_000, 30_000, 100_000, 300_000):
        circuits = {}
        for way in WAYS:
            b = Builder()
            b.output("out", b.join(b.source("l", left), b.source("r", right), [("k", "j")], "semi"))
            circuits[way] = b.circuit()
            circuits[way].step({"r": delta_of(right, [keys, np.arange(MILLION)])})
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        with no_gc():
            for i in range(ROUNDS):
                columns = [rng.integers(0, MILLION, size), np.arange(size)]
                for weight in (1, -1):  # what has come goes again, so that all rounds are alike
                    arranged = delta_of(left, columns, weight).sorted_by(SortKey(left, [0]))
                    for way in list(WAYS)[:: 1 if i % 2 else -1]:
                        seconds, out = _timed(circuits[way], {"l": Delta.of(arranged)}, WAYS[way])
                        taken[way].append(seconds)
                        assert out.rows == arranged.rows
        best = {way: float(np.median(some)) * 1e3 for way, some in taken.items()}
        lines.append((size, *best.values(), best["searched"] / best["walked"]))
        worst = max(worst, best["chosen"] / min(best["searched"], best["walked"]))
    show(f"Semi join of a delta with {MILLION} rows, median ms", ("delta", *WAYS, "searched / walked"), lines)
    return [Target("dispatch: chosen / the better way, at the worst size", worst, 1.5, "x")]


def _inside(c: Any) -> Any:
    return pc.and_(pc.greater_equal(c[0], c[2]), pc.less(c[0], c[3]))


def _points(n: int, searched: bool, how: Any = "inner") -> Circuit:
    b = Builder()
    points, spans = b.source("points", "t BIGINT, i BIGINT"), b.source("spans", "lo BIGINT, hi BIGINT")
    if searched:
        out = b.join(points, spans, [], how, ranges=[("t", ">=", "lo"), ("t", "<", "hi")])
    else:
        out = b.join(points, spans, [], how, where=_inside)
    b.output("out", out)
    circuit = b.circuit()
    schema = Schema.parse("t BIGINT, i BIGINT")
    circuit.step({"points": delta_of(schema, [np.random.default_rng(1).permutation(n), np.arange(n)])})
    return circuit


def ranges() -> list[Target]:
    """100 intervals of 100 points each come or go."""
    schema = Schema.parse("lo BIGINT, hi BIGINT")
    lines = []
    figures: dict[Any, float] = {}
    cases = (MILLION // 10, True), (MILLION // 10, False), (MILLION, True)
    for how in ("inner", "left", "anti"):
        rng = np.random.default_rng(4)
        for n, searched in cases:
            circuit = _points(n, searched, how)
            taken = []
            for _ in range(ROUNDS if searched else 2):
                lo = rng.integers(0, n - 100, 100)
                for weight in (1, -1):
                    seconds, out = _timed(circuit, {"spans": delta_of(schema, [lo, lo + 100], weight)})
                    taken.append(seconds)
                    rows = out.rows
            figures[how, n, searched] = float(np.median(taken)) * 1e3
            lines.append((how, n, "searched" if searched else "all pairs", figures[how, n, searched], rows))
    show("Points in 100 intervals, median ms a tick", ("join", "points", "", "ms", "rows out"), lines)
    small, pairs, large = (figures["inner", n, searched] for n, searched in cases)
    return [
        Target("ranges: inner, searched / all pairs", small / pairs, 0.05, "x"),
        Target("ranges: inner, 1M points / 100k", large / small, 1.5, "x"),
    ]
