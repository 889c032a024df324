"""The micro benchmarks: every writing and reading workload, then flushing and compaction against their knobs.

The second part is about the adaptive backend only. `S` and `T` decide when the memtable becomes a batch, `R` how many
batches stand side by side: small values make reading cheap and writing dear. So every line shows both, the cost of a
row on its way in and that of a scan right after.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.harness import QUICK, MismatchError, no_gc
from benchmarks.report import Target, show, show_targets
from benchmarks.zset import reads, updates
from benchmarks.zset.gates import measured, report
from benchmarks.zset.updates import delta_stream, point_stream, size
from benchmarks.zset.workload import JUDGED, fresh, matching
from dbspark.zset import ZSet, ZSetConfig, current

BASE: Final = updates.BASES[0]
S: Final = (1024, 65536) if QUICK else (1024, 4096, 16384, 65536, 262144)
T: Final = (0.0, 20.0) if QUICK else (0.0, 1.0, 5.0, 20.0, 100.0, 1e6)
R: Final = (2, 8) if QUICK else (2, 3, 4, 6, 8, 16)
ROUNDS: Final = 1 if QUICK else 3

Stream = Callable[[ZSetConfig], tuple[ZSet, Iterable[Any], int]]


def rows_one_by_one(config: ZSetConfig) -> tuple[ZSet, Iterable[Any], int]:
    """Rows onto a Z-set that has been read in columns: before that, S does not count single rows."""
    stream = point_stream("random", 4 * updates.LOOKUPS if QUICK else 96_000, BASE)
    z = fresh(BASE, config)
    with z.arranged_view():
        return z, stream, len(stream)


def rows_by_the_dozen(config: ZSetConfig) -> tuple[ZSet, Iterable[Any], int]:
    """The same rows, twelve to a delta."""
    z, stream, _ = rows_one_by_one(config)
    pairs = list(stream)
    some = [pairs[i : i + 12] for i in range(0, len(pairs), 12)]
    deltas = [ZSet.from_rows([r for r, _ in part], z.schema, [w for _, w in part], config) for part in some]
    return z, deltas, len(pairs)


def small_deltas(config: ZSetConfig) -> tuple[ZSet, Iterable[Any], int]:
    count = 50 if QUICK else 1500
    return fresh(BASE, config), delta_stream("cancel", 100, count, BASE, config), count * 100


def large_deltas(config: ZSetConfig) -> tuple[ZSet, Iterable[Any], int]:
    count, rows = (5, 2000) if QUICK else (200, 4000)
    return fresh(BASE, config), delta_stream("cancel", rows, count, BASE, config), count * rows


def through(z: ZSet, stream: Iterable[Any]) -> tuple[ZSet, float, float]:
    """The Z-set after a stream, with the seconds of the stream and of a scan right after it."""
    begin = time.perf_counter()
    for change in stream:
        z = z.add(*change) if type(change) is tuple else z + change
    written = time.perf_counter()
    rows = sum(len(block) for block, _ in z.scan())
    read = time.perf_counter()
    if rows != z.count:
        raise MismatchError(f"a scan gives {rows} rows of {z.count}")
    return z, written - begin, read - written


def counters(z: ZSet) -> dict[str, Any]:
    found = getattr(z._payload, "metrics", None)
    return {} if found is None else found.snapshot()


def against(knob: str, values: Iterable[Any], stream: Stream) -> list[dict[str, Any]]:
    """What a stream costs with each value of a knob; the values take turns."""
    best: dict[Any, dict[str, Any]] = {}
    count = None
    with no_gc():
        for turn in range(ROUNDS + 1):
            for value in values:
                z, changes, rows = stream(replace(current(), backend=JUDGED, **{knob: value}))
                z, write, read = through(z, changes)
                count = z.count if count is None else count
                if z.count != count:
                    raise MismatchError(f"{knob}={value}: {z.count} rows, not {count}")
                seen = counters(z)
                line = best.setdefault(value, {"value": value, "write": np.inf, "read": np.inf})
                if turn == 0 and ROUNDS > 1:
                    continue
                line["write"] = min(line["write"], write / rows * 1e6)
                line["read"] = min(line["read"], read * 1e3)
                line["flushes"] = sum(seen.get("flushes", {}).values())
                line["rows_per_flush"] = seen.get("average_flush_rows", 0.0)
                line["merged"] = seen.get("merge_rows_in", 0) / rows
                line["batches"] = seen.get("batches", 0)
    return list(best.values())


def knob_tables(only: str | None) -> dict[str, list[dict[str, Any]]]:
    """Print flushing and compaction against their knobs."""
    deltas = f"deltas of 100 on {size(BASE)}"
    found = {}
    singles = f"rows one by one on {size(BASE)}"
    dozens = f"rows by the dozen on {size(BASE)}"
    for knob, letter, values, name, stream in (
        ("flush_size", "S", S, singles, rows_one_by_one),
        ("flush_size", "S", S, dozens, rows_by_the_dozen),
        ("flush_time_ms", "T", T, singles, rows_one_by_one),
        ("flush_time_ms", "T", T, dozens, rows_by_the_dozen),
        ("level_fanout", "R", R, deltas, small_deltas),
        ("level_fanout", "R", R, f"large deltas on {size(BASE)}", large_deltas),
    ):
        title = f"{'compaction' if letter == 'R' else 'flush'} against {letter}: {name}"
        if only is None or re.search(only, title):
            lines = found[title] = against(knob, values, stream)
            header = (letter, "µs per row", "flushes", "rows per flush", "merged per row", "batches", "scan after, ms")
            keys = ("value", "write", "flushes", "rows_per_flush", "merged", "batches", "read")
            show(title, header, [[f"{line[k]:,}" if k == "value" else line[k] for k in keys] for line in lines])
    return found


def run(only: str | None = None, **options: Any) -> list[Target]:
    """The suite; returns its targets."""
    results = measured(matching([*updates.workloads(), *reads.workloads()], only), **options)
    tables = knob_tables(only)
    targets = report("Micro", "zset-micro", "micro", results, {"knobs": tables})
    show_targets("Targets: micro", targets)
    return targets
