"""Merges of states beside the ticks: the same answers, whatever has been merged when."""

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

EAGER = SpineConfig(fanout=2, at_once=0, step=1, background=1)
"""Every merge runs beside the ticks."""


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


def changes(rng: random.Random, held: dict[str, Counter[Any]]) -> dict[str, dict[Any, int]]:
    out: dict[str, dict[Any, int]] = {}
    for name, rows in held.items():
        delta: Counter[Any] = Counter()
        for _ in range(rng.randrange(12)):
            key = rng.randrange(8)
            delta[(key, rng.randrange(50)) if name == "orders" else (key, f"r{rng.randrange(3)}")] += 1
        for row in rng.sample(sorted(rows), min(len(rows), rng.randrange(6))):
            delta[row] -= 1
        for row, weight in delta.items():
            rows[row] += weight
        held[name] = Counter({r: w for r, w in rows.items() if w})
        out[name] = {r: w for r, w in delta.items() if w}
    return out


@pytest.mark.parametrize("seed", range(4))
def test_the_same_as_without(seed: int) -> None:
    rng = random.Random(seed)
    plain, beside = Circuit(graph()), Circuit(graph(), EAGER)
    held: dict[str, Counter[Any]] = {"orders": Counter(), "customers": Counter()}
    for _ in range(60):
        given = changes(rng, held)
        expected, found = plain.tick(given), beside.tick(given)
        assert {n: contents(z) for n, z in found.items()} == {n: contents(z) for n, z in expected.items()}
    given = {name: {row: -weight for row, weight in rows.items()} for name, rows in held.items()}
    plain.tick(given)
    beside.tick(given)
    assert not any(beside.state_rows().values())
    beside.close()


def test_a_tick_that_fails_leaves_merges_to_go_on() -> None:
    rng = random.Random(7)
    circuit = Circuit(graph(), EAGER)
    held: dict[str, Counter[Any]] = {"orders": Counter(), "customers": Counter()}
    for _ in range(20):
        circuit.tick(changes(rng, held))
        before, rows = circuit.snapshot(), circuit.state_rows()
        circuit.tick({"orders": {(1, 1): 5}})
        circuit.reset(before)
        with pytest.raises(DbsparkError):
            circuit.tick({"nothing": {(1,): 1}})
        assert circuit.state_rows() == rows
    circuit.close()
