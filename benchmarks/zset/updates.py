"""Workloads that write: rows one by one, and small deltas in columns.

Rows come at random, in sequence, or mostly from a hot spot. Deltas insert, cancel (half of them deletes), toggle the
same rows off and on, or fall on few hot rows. What they leave behind is compared; what it costs to read is timed in
`reads`, where every reading follows a change.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from benchmarks.harness import QUICK, Contender
from benchmarks.zset.data import SCHEMA, Int64s, Population, fingerprint, summary, tuples_of, zset
from benchmarks.zset.workload import Workload, fresh
from dbspark.zset import BACKENDS, ZSet, ZSetConfig

POINTS: Final = (2_000,) if QUICK else (2_000, 20_000, 200_000)
LOOKUPS: Final = 1_000 if QUICK else 4_000
BASES: Final = (20_000,) if QUICK else (100_000, 1_000_000)
DELTAS: Final = {1: 40, 100: 10, 1000: 3} if QUICK else {1: 500, 100: 100, 1000: 30}
"""Deltas of so many rows in a round."""
HOT_SHARE: Final = 0.9
HOT_KEYS: Final = 0.01


def hot(rng: np.random.Generator, keys: int, count: int) -> Int64s:
    """Numbers below `keys`, nine out of ten in the first hundredth."""
    some = rng.integers(0, max(int(keys * HOT_KEYS), 1), count)
    return np.where(rng.random(count) < HOT_SHARE, some, rng.integers(0, keys, count))


@lru_cache(maxsize=8)
def point_stream(kind: str, count: int, keys: int) -> list[tuple[Any, int]]:
    """Pairs (row, weight): one in five takes something away."""
    rng = np.random.default_rng(3)
    if kind == "sequential":
        ids: Int64s = np.arange(keys, keys + count)
        weights = np.ones(count, np.int64)
    else:
        ids = hot(rng, keys, count) if kind == "hot-spot" else rng.integers(0, keys, count)
        weights = np.where(rng.random(count) < 0.2, -1, 1)
    found, at = np.unique(ids, return_inverse=True)
    rows = tuples_of(found)
    return [(rows[i], w) for i, w in zip(at.tolist(), weights.tolist(), strict=True)]


def points(kind: str, count: int) -> Workload:
    def make(config: ZSetConfig) -> Contender:
        stream = point_stream(kind, count, count)

        def run(z: ZSet) -> ZSet:
            for row, weight in stream:
                z = z.add(row, weight)
            return z

        return Contender(kind, run, lambda: ZSet.empty(SCHEMA, config), fingerprint)

    taking_part = BACKENDS if count <= 2_000 else tuple(b for b in BACKENDS if b != "Batch")
    return Workload(f"points {kind} {size(count)}", count, make, backends=taking_part)


def lookups(count: int, base: int) -> Workload:
    """Every other operation asks for the weight of a row that has been or will be touched."""

    def make(config: ZSetConfig) -> Contender:
        stream = point_stream("random", count // 2, base or count // 2)
        asked = [row for row, _ in reversed(stream)]

        def run(z: ZSet) -> tuple[ZSet, int]:
            total = 0
            for (row, weight), other in zip(stream, asked, strict=True):
                z = z.add(row, weight)
                total += z.weight(other)
            return z, total

        def setup() -> ZSet:
            return fresh(base, config) if base else ZSet.empty(SCHEMA, config)

        return Contender("lookups", run, setup, lambda result: (fingerprint(result[0]), result[1]))

    return Workload(f"points + lookups {size(count)}" + (f" on {size(base)}" if base else ""), count, make)


def points_on_base(count: int, base: int) -> Workload:
    def make(config: ZSetConfig) -> Contender:
        stream = point_stream("random", count, base)

        def run(z: ZSet) -> ZSet:
            for row, weight in stream:
                z = z.add(row, weight)
            return z

        return Contender("points", run, lambda: fresh(base, config), fingerprint)

    return Workload(f"points random {size(count)} on {size(base)}", count, make)


def changes(kind: str, rows: int, count: int, base: int) -> list[tuple[Int64s, Int64s]]:
    """Numbers and weights of a stream of deltas."""
    rng = np.random.default_rng(rows + base)
    if kind == "insert":
        return [(np.arange(base + i * rows, base + (i + 1) * rows), np.ones(rows, np.int64)) for i in range(count)]
    if kind == "cancel":
        population = Population(base, seed=rows)
        if rows == 1:
            pairs = [population.change(1, 1) for _ in range((count + 1) // 2)]
            return [(ids[[i]], weights[[i]]) for ids, weights in pairs for i in (0, 1)][:count]
        return [population.change(rows - rows // 2, rows // 2) for _ in range(count)]
    if kind == "toggle":
        same = (np.arange(rows, dtype=np.int64) * 7919) % base
        return [(same, np.full(rows, -1 if i % 2 == 0 else 1)) for i in range(count)]
    return [(hot(rng, base, rows), rng.choice(np.array([1, 1, -1]), rows)) for _ in range(count)]


@lru_cache(maxsize=12)
def delta_stream(kind: str, rows: int, count: int, base: int, config: ZSetConfig) -> list[ZSet]:
    return [zset(ids, weights, config) for ids, weights in changes(kind, rows, count, base)]


def deltas(kind: str, rows: int, base: int) -> Workload:
    count = DELTAS[rows]

    def make(config: ZSetConfig) -> Contender:
        stream = delta_stream(kind, rows, count, base, config)

        def run(z: ZSet) -> ZSet:
            for delta in stream:
                z = z + delta
            return z

        return Contender(kind, run, lambda: fresh(base, config), fingerprint, summary)

    return Workload(f"deltas {kind} {rows} on {size(base)}", count, make)


def union_many(base: int) -> Workload:
    parts = 20 if QUICK else 100

    def make(config: ZSetConfig) -> Contender:
        stream = delta_stream("cancel", 10, parts, base or 20_000, config)

        def setup() -> ZSet:
            return fresh(base, config) if base else ZSet.empty(SCHEMA, config)

        return Contender("union_many", lambda z: z.union_many(stream), setup, fingerprint)

    return Workload(f"union_many {parts} x 10" + (f" on {size(base)}" if base else ""), 1, make)


def size(rows: int) -> str:
    """As people say it: 1M, 300k, 100."""
    return f"{rows // 1_000_000}M" if rows >= 1_000_000 else f"{rows // 1000}k" if rows >= 1000 else str(rows)


def workloads() -> list[Workload]:
    base = BASES[0]
    found = [points(kind, n) for n in POINTS for kind in ("random", "sequential", "hot-spot")]
    found += [lookups(LOOKUPS, 0), lookups(LOOKUPS, base), points_on_base(LOOKUPS, base)]
    found += [
        deltas(kind, rows, b) for b in BASES for kind in ("insert", "cancel", "toggle", "skew") for rows in DELTAS
    ]
    return [*found, union_many(0), union_many(base)]
