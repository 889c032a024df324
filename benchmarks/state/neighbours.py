"""Ticks beside a thread of the user's that never rests: one reads a small view in a loop, one computes in Python.

Stretches of ticks alone and beside each neighbour take turns, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa

import dbspark
from benchmarks.report import QUICK, Target, save, show

ORDERS: Final = 20_000 if QUICK else 200_000
CUSTOMERS: Final = 1_000
CHANGES: Final = (1, 100, 4_000)
STRETCHES: Final = 2 if QUICK else 6
TICKS: Final = 5 if QUICK else 20
"""In a stretch."""
LIMIT: Final = 2.0
"""How much longer a tick may take beside a neighbour."""

VIEWS: Final = {
    "by_region": "SELECT region, count(*) AS n, sum(amount) AS total FROM orders JOIN customers USING (customer) "
    "GROUP BY region",
    "largest": "SELECT customer, max(amount) AS largest FROM orders GROUP BY customer",
    "large": "SELECT id, amount FROM orders WHERE amount > 900",
    "by_customer": "SELECT region, customer, sum(amount) AS total FROM orders JOIN customers USING (customer) "
    "GROUP BY region, customer",
}


def neighbours_suite(spark: Any) -> list[Target]:
    rng = np.random.default_rng(1)
    rows, targets = [], []
    with dbspark.Pipeline("neighbours", spark=spark) as pipe:
        _fill(pipe, rng)

        def read() -> None:
            pipe.view("by_region").to_arrow()

        def compute() -> None:
            sum(range(1_000))

        neighbours: dict[str, Callable[[], object] | None] = {"alone": None, "reader": read, "Python": compute}
        for changes in CHANGES:
            seconds: dict[str, list[float]] = {name: [] for name in neighbours}
            for stretch in range(STRETCHES + 1):
                for name, work in neighbours.items():
                    with _busy(work):
                        times = [_tick(pipe, rng, changes) for _ in range(TICKS)]
                    if stretch:  # the first one warms up
                        seconds[name] += times
            alone, *others = (statistics.median(s) for s in seconds.values())
            rows.append([changes, 1e3 * alone, *(1e3 * other for other in others), max(others) / alone])
            targets.append(Target(f"{changes:,} changes beside a busy thread / alone", max(others) / alone, LIMIT, "x"))
    show("Ticks beside a busy thread, median", ["changes", "alone ms", "reader ms", "Python ms", "worst"], rows)
    save("state-neighbours", {"targets": targets})
    return targets


def _fill(pipe: dbspark.Pipeline, rng: np.random.Generator) -> None:
    pipe.create_table("orders", "id BIGINT, customer BIGINT, amount BIGINT", primary_key=["id"])
    pipe.create_table("customers", "customer BIGINT, region STRING")
    for name, query in VIEWS.items():
        pipe.create_view(name, query)
    with pipe.transaction() as tx:
        ids = np.arange(CUSTOMERS)
        tx.insert("customers", pa.table({"customer": ids, "region": [f"region {i % 10}" for i in ids]}))
        tx.upsert("orders", _orders(rng, np.arange(ORDERS)))


def _orders(rng: np.random.Generator, ids: Any) -> pa.Table:
    return pa.table(
        {"id": ids, "customer": rng.integers(0, CUSTOMERS, len(ids)), "amount": rng.integers(0, 1_000, len(ids))}
    )


def _tick(pipe: dbspark.Pipeline, rng: np.random.Generator, changes: int) -> float:
    rows = _orders(rng, rng.choice(ORDERS, changes, replace=False))
    begun = time.perf_counter()
    with pipe.transaction() as tx:
        tx.upsert("orders", rows)
    return time.perf_counter() - begun


@contextmanager
def _busy(work: Callable[[], object] | None) -> Iterator[None]:
    """Repeat `work` in another thread."""
    if work is None:
        yield
        return
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


__all__ = ["neighbours_suite"]
