"""Adding deltas to a large Z-set: a long steady stream of different ones, each timed by itself.

Half of what a stream does is to insert new rows, half to delete rows that exist, so the size stays and everything
that was deferred has to be done while the stream goes on: the mean is the amortised cost, compaction included. Both
it and the median are held against the limit. Streams onto 1M and onto 10M rows take turns, and their ratio says
whether the cost depends on the size.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import CLOCK, QUICK, MismatchError, no_gc
from benchmarks.report import Target, save, show, show_targets
from benchmarks.zset.data import SCHEMA, Population, fingerprint, rows_of, weighted, zset
from dbspark.columnar import Batch
from dbspark.zset import ZSet, current

BASES: Final = (100_000,) if QUICK else (1_000_000, 10_000_000)
LIMITS: Final = {1: 30.0, 100: 150.0, 10_000: 2000.0}
"""Microseconds for a delta of so many rows."""
STREAM: Final = {1: 300, 100: 200, 10_000: 10} if QUICK else {1: 4000, 100: 2000, 10_000: 300}
GROWTH: Final = 1.3
WARMUPS: Final = 1 if QUICK else 2
REPEATS: Final = 1 if QUICK else 3
_PIECE: Final = 1_000_000


@dataclass
class Stream:
    """Deltas of one size for one base, and the rows that are there after the last of them."""

    deltas: list[ZSet]
    end: Any

    @staticmethod
    def of(base: int, rows: int, count: int) -> Stream:
        population = Population(base)
        deltas: list[ZSet] = []
        while len(deltas) < count:
            if rows == 1:
                ids, weights = population.change(1, 1)
                deltas += [zset(ids[[i]], weights[[i]]) for i in (0, 1)]
            else:
                deltas.append(zset(*population.change(rows // 2, rows - rows // 2)))
        return Stream(deltas, population.ids)


def base_of(rows: int) -> Batch:
    """A batch of that many rows, generated piece by piece."""
    pieces = [rows_of(np.arange(at, min(at + _PIECE, rows))) for at in range(0, rows, _PIECE)]
    table = pa.concat_tables(pieces)
    del pieces
    return ZSet.from_arrow(table).freeze().batch()


def apply(base: Batch, deltas: list[ZSet]) -> tuple[ZSet, Any]:
    """Microseconds of each delta, onto a Z-set with no history."""
    z = ZSet.from_batch(base)
    clock = CLOCK
    times = np.empty(len(deltas), np.int64)
    with no_gc():
        for i, delta in enumerate(deltas):
            begin = clock()
            z = z + delta
            times[i] = clock() - begin
    return z, times / 1000


def _check(z: ZSet, stream: Stream, base: int, whole: bool) -> None:
    if z.count != len(stream.end) or z.total_weight != len(stream.end):
        raise MismatchError(f"{base} rows and deltas: {z.count} rows of {z.total_weight}, not {len(stream.end)}")
    if whole and fingerprint(z) != fingerprint(zset(stream.end)):
        raise MismatchError(f"{base} rows and deltas: the rows differ")


def _measure(bases: dict[int, Batch], rows: int) -> dict[int, dict[str, float]]:
    found: dict[int, list[Any]] = {base: [] for base in bases}
    streams = {base: Stream.of(base, rows, STREAM[rows]) for base in bases}
    forms = {}
    for turn in range(WARMUPS + REPEATS):
        for base, batch in bases.items():
            z, times = apply(batch, streams[base].deltas)
            if turn == 0:
                _check(z, streams[base], base, whole=base <= _PIECE)
            if turn >= WARMUPS:
                found[base].append(times)
            forms[base] = z.form
            del z
    return {
        base: {
            "deltas": STREAM[rows],
            "median": min(float(np.median(t)) for t in runs),
            "mean": min(float(t.mean()) for t in runs),
            "p99": min(float(np.percentile(t, 99)) for t in runs),
            "max": min(float(t.max()) for t in runs),
            "per_row_ns": min(float(t.mean()) for t in runs) / rows * 1000,
            "form": forms[base],
        }
        for base, runs in found.items()
    }


def _making(rows: int) -> dict[str, float]:
    """Microseconds to make a delta of so many rows, from Arrow and from Python rows."""
    population = Population(100_000, seed=11)
    changes = [population.change(rows - rows // 2, rows // 2) for _ in range(max(10, min(200, STREAM[rows] // 5)))]
    tables = [weighted(*change) for change in changes]
    pairs = [
        (list(zip(*(c.to_pylist() for c in t.columns[:-1]), strict=True)), t.column("w").to_pylist()) for t in tables
    ]
    found: dict[str, float] = {}
    with no_gc():
        for _ in range(3):
            for name in ("from_arrow", "from_rows"):
                times = []
                for table, (row_list, weights) in zip(tables, pairs, strict=True):
                    begin = time.perf_counter_ns()
                    if name == "from_arrow":
                        ZSet.from_arrow(table, weight="w")
                    else:
                        ZSet.from_rows(row_list, SCHEMA, weights)
                    times.append((time.perf_counter_ns() - begin) / 1000)
                found[name] = min(found.get(name, np.inf), float(np.median(times)))
    return found


def run() -> list[Target]:
    """The suite; returns its targets."""
    bases = {rows: base_of(rows) for rows in BASES}
    lines, targets = [], []
    results: dict[str, Any] = {}
    growth = []
    for rows, limit in LIMITS.items():
        measured = _measure(bases, rows)
        making = _making(rows)
        for base, m in measured.items():
            results[f"{rows} onto {base}"] = m | making
            lines.append(
                (f"{rows:,} onto {base:,}", m["median"], m["mean"], m["p99"], m["max"], m["per_row_ns"],
                 making["from_arrow"], making["from_rows"], m["form"])
            )  # fmt: skip
        first = measured[BASES[0]]
        name = f"delta of {rows:,} onto {BASES[0]:,} rows"
        targets += [
            Target(f"{name}: median", first["median"], limit, " µs"),
            Target(f"{name}: amortised", first["mean"], limit, " µs"),
        ]
        if len(BASES) > 1:
            last = measured[BASES[-1]]
            for key, word in (("median", "median"), ("mean", "amortised")):
                absolute = f"{last[key]:.1f} µs against {limit * GROWTH:.0f} µs"
                growth.append(
                    Target(f"delta of {rows:,}, 10M / 1M: {word}", last[key] / first[key], GROWTH, "x", absolute)
                )
    targets += growth
    header = ("µs per delta", "median", "mean", "p99", "max", "ns/row", "make: Arrow", "make: rows", "form")
    show(f"Adding deltas ({current().backend})", header, lines)
    show_targets("Targets: deltas", targets)
    save("zset-deltas", {"results": results, "targets": targets})
    return targets


__all__ = ["run"]
