"""LargeScalePipeline: DBSP.NET's macro benchmark, with its data, its golden values and its peculiarities.

`ApplyOnly` adds a delta to the orders and enumerates all of them; `Pipeline` also filters and maps the whole state, and
enumerates the result. Both re-apply *the same* delta in every invocation, so weights drift (old rows to -k, new ones to
+k): that is how the original does it. The variants called `fresh` apply a new delta each time, which is what a stream
of changes does. `naive` recomputes everything and does not apply the changes at all; it is here for context.

Each backend enumerates in its own way, `HashMap` row by row and the others block by block, and is given the filter
and the map as functions of rows or of columns, whichever is faster for it; both are tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import QUICK, Contender, Timings, race
from benchmarks.report import Target, show, show_targets
from benchmarks.zset import orders as data
from benchmarks.zset.data import fingerprint, summary
from benchmarks.zset.gates import measured, report
from benchmarks.zset.orders import RECENT, Stream, generate, sums
from benchmarks.zset.updates import size
from benchmarks.zset.workload import Workload, matching
from dbspark.zset import BACKENDS, ZSet, ZSetConfig, columns

SIZES: Final = (100_000,) if QUICK else (100_000, 300_000, 1_000_000)
CHANGES: Final = (1, 100) if QUICK else (1, 100, 1000)
AMOUNTS: Final = "CustomerId BIGINT, ProductId BIGINT, Amount BIGINT"
AHEAD: Final = 0.7
"""The scan of the pipeline takes at most this much of HashMap's time."""

Length = Callable[[ZSet], int]


def enumerated(config: ZSetConfig) -> Length:
    """The length of a full enumeration, in the backend's own way."""

    def by_rows(z: ZSet) -> int:
        n = 0
        for _row, _weight in z:
            n += 1
        return n

    def by_blocks(z: ZSet) -> int:
        n = 0
        for block, _weights in z.scan():
            n += block.num_rows
        return n

    return by_rows if config.backend == "HashMap" else by_blocks


def by_rows(z: ZSet) -> ZSet:
    return z.filter(lambda r: r[4] >= RECENT).map_keys(lambda r: (r[0], r[1], r[2] * r[3]), AMOUNTS)


def by_columns(z: ZSet) -> ZSet:
    return z.filter(columns(lambda b: pc.greater_equal(b["Timestamp"], RECENT))).map_keys(columns(_amounts), AMOUNTS)


def _amounts(b: pa.RecordBatch) -> dict[str, pa.Array]:
    amount = pc.multiply(b["Quantity"], b["PriceCents"])
    return {"CustomerId": b["CustomerId"], "ProductId": b["ProductId"], "Amount": amount}


WAYS: Final = {"rows": by_rows, "columns": by_columns}


@lru_cache(maxsize=32)
def way(config: ZSetConfig) -> str:
    """Whether functions of rows or of columns are faster for this backend, after a change."""
    orders = generate(SIZES[0] // 5, 100)
    z = ZSet.from_arrow(data.table(orders.rows), config=config)
    delta = ZSet.from_arrow(orders.delta(), weight="w", config=config)
    best: dict[str, float] = {}
    for _ in range(3):
        for name, fn in WAYS.items():
            z = z + delta
            begin = time.perf_counter()
            enumerated(config)(fn(z))
            best[name] = min(best.get(name, np.inf), time.perf_counter() - begin)
    return min(best, key=best.__getitem__)


@lru_cache(maxsize=4)
def state_of(orders_size: int, config: ZSetConfig) -> ZSet:
    return ZSet.from_arrow(data.table(generate(orders_size, 1).rows), config=config)


def workload(what: str, orders_size: int, changes: int, fresh: bool) -> Workload:
    """`what` is `apply` or `pipeline`."""

    def make(config: ZSetConfig) -> Contender:
        orders = generate(orders_size, changes)
        length = enumerated(config)
        view = WAYS[way(config)] if what == "pipeline" else None
        state = state_of(orders_size, config)
        state.weight((0, 0, 0, 0, 0))  # with hash tables: not the one that an earlier workload has changed
        stream = Stream(orders)
        same = ZSet.from_arrow(orders.delta(), weight="w", config=config)

        def setup() -> ZSet:
            return ZSet.from_arrow(stream.next(changes), weight="w", config=config) if fresh else same

        def run(delta: ZSet) -> int:
            nonlocal state
            state = state + delta
            return length(state if view is None else view(state))

        def outcome(result: int) -> tuple[Any, ...]:
            return result, fingerprint(state)

        def final(result: int) -> tuple[Any, ...]:
            return result, summary(state)

        return Contender(what, run, setup, outcome, final)

    name = f"{what}{' fresh' if fresh else ''} {size(orders_size)}/{changes}"
    limits = (("HashMap", AHEAD),) if what == "pipeline" else ()
    return Workload(name, 1, make, "median", limits=limits)


def workloads() -> list[Workload]:
    return [
        workload(what, n, changes, fresh)
        for n in SIZES
        for what in ("apply", "pipeline")
        for fresh in (False, True)
        for changes in CHANGES
    ]


# ---------------------------------------------------------------------- recomputing, for context


def naive_by_rows(rows: list[tuple[int, ...]], classes: list[str]) -> int:
    groups: dict[tuple[int, str], int] = {}
    for customer, product, quantity, price, ts in rows:
        if ts >= RECENT:
            key = (customer, classes[product])
            groups[key] = groups.get(key, 0) + quantity * price
    return len(groups)


def naive(orders_size: int) -> Timings:
    """`Naive_Recompute_All` in Python rows and in numpy."""
    orders = generate(orders_size, 1)
    rows = [tuple(row) for row in orders.rows.tolist()]
    classes = ["A" if p % 2 == 0 else "B" for p in range(data.PRODUCTS)]
    return race(
        [
            Contender("rows", lambda _: naive_by_rows(rows, classes)),
            Contender("columns", lambda _: len(sums(orders.rows, data.PRODUCTS)[0])),
        ],
        rounds=2,
        budget=0.3,
    )


def check_goldens() -> int:
    return sum(data.check(n) for n in SIZES)


def run(only: str | None = None, **options: Any) -> list[Target]:
    """The suite; returns its targets."""
    lines = check_goldens()
    chosen = matching(workloads(), only)
    results = measured(chosen, **options)
    recompute = {size(n): naive(n) for n in SIZES}
    ways = {b: way(ZSetConfig(backend=b)) for b in BACKENDS}
    extra = {
        "golden_lines": lines,
        "functions": ways,
        "naive": {n: {name: t.as_json() for name, t in ts.items()} for n, ts in recompute.items()},
    }
    targets = report("LargeScalePipeline", "zset-pipeline", "LargeScalePipeline", results, extra)
    print(f"\nGolden values hold ({lines} lines). Functions of: " + ", ".join(f"{w} for {b}" for b, w in ways.items()))
    show(
        "Naive_Recompute_All, ms",
        ("orders", "rows", "columns"),
        [(n, ts["rows"].best * 1e3, ts["columns"].best * 1e3) for n, ts in recompute.items()],
    )
    show_targets("Targets: LargeScalePipeline", targets)
    return targets
