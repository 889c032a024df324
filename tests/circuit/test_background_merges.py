"""Background merges of states: the same results, whenever merges end."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from dbspark.circuit import Builder
from dbspark.circuit.executor import Circuit
from dbspark.errors import DbsparkError
from dbspark.trace.config import SpineConfig
from tests.operators.model import contents

EAGER = SpineConfig(fanout=2, max_inline_merge_rows=0, merge_step_rows=1, min_background_rows=1)
"""Every merge runs in the background."""


def graph() -> Any:
    b = Builder()
    orders = b.source("orders", "customer BIGINT, amount BIGINT")
    customers = b.source("customers", "customer BIGINT, region STRING")
    joined = b.join(orders, customers, [("customer", "customer")])
    b.output(
        "totals", b.aggregate(joined, ["region"], n=("count", None), total=("sum", "amount"), most=("max", "amount"))
    )
    b.output("seen", b.distinct(b.project(joined, ["region"])))
    return b.graph


def changes(rng: random.Random, current: dict[str, Counter[Any]]) -> dict[str, dict[Any, int]]:
    out: dict[str, dict[Any, int]] = {}
    for name, rows in current.items():
        delta: Counter[Any] = Counter()
        for _ in range(rng.randrange(12)):
            key = rng.randrange(8)
            delta[(key, rng.randrange(50)) if name == "orders" else (key, f"r{rng.randrange(3)}")] += 1
        for row in rng.sample(sorted(rows), min(len(rows), rng.randrange(6))):
            delta[row] -= 1
        for row, weight in delta.items():
            rows[row] += weight
        current[name] = Counter({r: w for r, w in rows.items() if w})
        out[name] = {r: w for r, w in delta.items() if w}
    return out


@pytest.mark.parametrize("seed", range(4))
def test_results_are_those_without_background_merges(seed: int) -> None:
    rng = random.Random(seed)
    plain, merging = Circuit(graph()), Circuit(graph(), EAGER)
    contents_of: dict[str, Counter[Any]] = {"orders": Counter(), "customers": Counter()}
    for _ in range(60):
        change = changes(rng, contents_of)
        expected, found = plain.tick(change), merging.tick(change)
        assert {n: contents(z) for n, z in found.items()} == {n: contents(z) for n, z in expected.items()}
    change = {name: {row: -weight for row, weight in rows.items()} for name, rows in contents_of.items()}
    plain.tick(change)
    merging.tick(change)
    assert not any(merging.state_rows().values())
    merging.close()


def test_a_tick_that_fails_does_not_stop_merges() -> None:
    rng = random.Random(7)
    circuit = Circuit(graph(), EAGER)
    contents_of: dict[str, Counter[Any]] = {"orders": Counter(), "customers": Counter()}
    for _ in range(20):
        circuit.tick(changes(rng, contents_of))
        before, rows = circuit.snapshot(), circuit.state_rows()
        circuit.tick({"orders": {(1, 1): 5}})
        circuit.reset(before)
        with pytest.raises(DbsparkError):
            circuit.tick({"nothing": {(1,): 1}})
        assert circuit.state_rows() == rows
    circuit.close()
