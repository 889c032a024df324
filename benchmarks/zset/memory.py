"""Memory: the most that is held while deltas are added, over the Arrow size of the rows that are there.

Each scenario runs in a process of its own. The rows come in by deltas, then change by deltas; deltas are generated in
another memory pool, so that Arrow's own counts nothing but the Z-set: what it keeps, the delta being added, and all
merges in progress. `pool` is the peak that the pool itself has recorded. `process` is what the resident set grew by
at its peak, which includes Python objects and what allocators keep for later. Sizes are compared at every moment
where rows become fewer, by a thread that looks all the time.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import QUICK, MismatchError
from benchmarks.report import Target, save, show, show_targets
from benchmarks.zset.data import SCHEMA, Population, rows_of, tuples_of, weighted
from dbspark.zset import ZSet

ROWS: Final = 100_000 if QUICK else 1_000_000
LIMIT: Final = 2.0
LOAD: Final = ROWS // 100
"""Rows of the deltas by which the rows come in."""


@dataclass(frozen=True)
class Scenario:
    """Deltas of so many inserts and deletes, added after the rows are there."""

    name: str
    inserts: int
    deletes: int
    count: int
    start: int = ROWS
    reads: int = 0
    """A full scan after every so many deltas."""
    points: bool = False
    """Row by row instead of in deltas."""
    judged: bool = True

    @property
    def shrinks(self) -> bool:
        return self.deletes > self.inserts


def scenarios() -> list[Scenario]:
    tenth = LOAD // 2
    some = [
        Scenario("inserts only", 0, 0, 0),
        Scenario(f"updates, deltas of {2 * tenth:,}", tenth, tenth, 40 if QUICK else 300),
        Scenario("updates, deltas of 100", 50, 50, 200 if QUICK else 4000),
        Scenario(f"updates, deltas of {20 * tenth:,}", 10 * tenth, 10 * tenth, 10 if QUICK else 30),
        Scenario(f"more deletes than inserts, deltas of {2 * tenth:,}", tenth // 2, tenth * 3 // 2, 60),
        Scenario("updates one by one", 500, 500, 4 if QUICK else 120, points=True),
        Scenario(
            f"updates, deltas of {2 * tenth:,}, scanned", tenth, tenth, 40 if QUICK else 100, reads=5, judged=False
        ),
    ]
    return [s for s in some if not (QUICK and s.name.startswith("more"))]


@contextmanager
def uncounted() -> Iterator[None]:
    """Allocate from a pool that is not measured."""
    counted = pa.default_memory_pool()
    pa.set_memory_pool(pa.mimalloc_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(counted)


def _table(change: tuple[Any, Any]) -> pa.Table:
    with uncounted():
        return weighted(*change)


def _resident(peak: bool) -> int:
    key = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


class Watch(threading.Thread):
    """Keeps the largest ratio of what the pool holds to what it would have to hold."""

    def __init__(self, least: float, before: int) -> None:
        super().__init__(daemon=True)
        self.least = least
        """Bytes of the rows that are there now."""
        self.before = before
        self.ratio = 0.0
        self.active = False
        self.done = False

    def look(self) -> None:
        self.ratio = max(self.ratio, (pa.total_allocated_bytes() - self.before) / self.least)

    def run(self) -> None:
        while not self.done:
            if self.active:
                self.look()
            time.sleep(0.0003)


def _warm() -> None:
    """Load what is loaded once: kernels, threads, the allocator's arenas."""
    population = Population(5000, seed=1)
    z = ZSet.from_arrow(_table((population.ids, np.ones(5000, np.int64))), weight="w")
    for _ in range(30):
        z = z + ZSet.from_arrow(_table(population.change(600, 600)), weight="w")
        z = z.add(tuples_of([1])[0], 1)
    assert sum(len(block) for block, _ in z.scan()) == z.count


def child(scenario: Scenario) -> dict[str, Any]:
    """Run a scenario in this process, which should be a new one."""
    logging.getLogger("dbspark.zset").setLevel(logging.ERROR)
    sys.setswitchinterval(1e-4)
    pa.set_memory_pool(pa.system_memory_pool())  # where batches live: what Arrow's functions make counts with them
    _warm()
    population = Population(scenario.start)
    with uncounted():
        per_row = rows_of(population.ids[:100_000]).nbytes / min(100_000, scenario.start)
    pool_before = pa.total_allocated_bytes()
    resident_before = _resident(peak=False)
    Path("/proc/self/clear_refs").write_text("5")
    watch = Watch(per_row * scenario.start, pool_before)
    watch.start()
    z = ZSet.empty(SCHEMA)
    for at in range(0, scenario.start, LOAD):
        ids = population.ids[at : at + LOAD]
        table = _table((ids, np.ones(len(ids), np.int64)))
        z = z + ZSet.from_arrow(table, weight="w")
    loaded = pa.default_memory_pool().max_memory() - pool_before
    watch.active = True
    for i in range(scenario.count):
        change = population.change(scenario.inserts, scenario.deletes)
        watch.least = min(len(population), scenario.start) * per_row
        if scenario.points:
            for row, weight in zip(tuples_of(change[0]), change[1].tolist(), strict=True):
                z = z.add(row, weight)
        else:
            z = z + ZSet.from_arrow(_table(change), weight="w")
        if scenario.reads and i % scenario.reads == 0:
            assert sum(len(block) for block, _ in z.scan()) > 0
    if scenario.count:
        watch.look()
    watch.done = True
    watch.join()
    peak = pa.default_memory_pool().max_memory() - pool_before
    held = pa.total_allocated_bytes() - pool_before
    resident = _resident(peak=True) - resident_before
    if z.count != len(population):
        raise MismatchError(f"{scenario.name}: {z.count} rows, not {len(population)}")
    size = z.to_arrow().nbytes
    return {
        "rows": z.count, "arrow": size, "pool": watch.ratio if scenario.shrinks else peak / size,
        "loading": loaded / (per_row * scenario.start), "held": held / size,
        "process": resident / (per_row * scenario.start), "form": z.form,
    }  # fmt: skip


def _run_child(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.zset.memory", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:80])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run() -> list[Target]:
    """The suite; returns its targets."""
    lines, targets, results = [], [], {}
    for scenario in scenarios():
        try:
            m = _run_child(scenario.name)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            results[scenario.name] = {"error": str(error)}
            lines.append((scenario.name, *[None] * 6, "ERROR"))
            targets.append(Target(f"memory, {scenario.name}", float("inf"), LIMIT, "x", str(error)[:80]))
            continue
        results[scenario.name] = m
        shares = (m[key] for key in ("loading", "pool", "held", "process"))
        lines.append((scenario.name, f"{m['rows']:,}", m["arrow"] / 1e6, *shares, m["form"]))
        if scenario.judged:
            note = f"process {m['process']:.2f}x"
            targets.append(Target(f"memory, {scenario.name}", m["pool"], LIMIT, "x", note))
    header = (
        "over the Arrow size of the rows",
        "rows",
        "Arrow MB",
        "loading",
        "pool peak",
        "at end",
        "process peak",
        "form",
    )
    show("Memory", header, lines)
    show_targets("Targets: memory", targets)
    save("zset-memory", {"results": results, "targets": targets})
    return targets


if __name__ == "__main__":
    print(json.dumps(child(next(s for s in scenarios() if s.name == sys.argv[1]))))
