"""What a trace costs, as ratios against what numpy takes on the same machine in the same minute.

* `probe`: 100 random keys in a trace that took a thousand inserts, against a pair of `numpy.searchsorted`;
* `inserts`: a long stream of 100-row deltas: how much longer the slowest inserts take than the usual one;
* `fork` and `open`: a copy of a large trace, and a trace in files;
* `merge`: the bytes that a merge reads and writes, against `numpy.copy` of as many.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import QUICK, Contender, no_gc, race
from benchmarks.report import Target, save, show, show_targets
from benchmarks.zset.data import ARROW, rows_of
from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.batch_file import open_batch, write_batch
from dbspark.columnar.schema import Schema
from dbspark.trace import Description, Trace, TraceAgent

BY_A: Final = SortKey(Schema(ARROW), [0])
MILLION: Final = 50_000 if QUICK else 1_000_000
INSERTS: Final = 1000


def _batch(first: int, rows: int) -> Batch:
    return Batch.from_arrow(rows_of(np.arange(first, first + rows)), BY_A)


def _trace(rows: int, inserts: int = INSERTS) -> Trace:
    trace = Trace(BY_A)
    each = rows // inserts
    for i in range(inserts):
        trace.append(_batch(i * each, each))
    return trace


def probe() -> list[Target]:
    """Probing 100 random keys against searching them in one sorted array, at two sizes."""
    rng = np.random.default_rng(7)
    medians: dict[int, float] = {}
    targets, lines = [], []
    for rows in (MILLION, 10 * MILLION):
        trace = _trace(rows)
        stored = rows_of(rng.integers(0, rows, 20_000)).column(0).to_numpy()
        numbers = np.sort(rng.integers(-(1 << 62), 1 << 62, rows))

        def keys(stored: Any = stored) -> Any:
            return rng.choice(stored, 100)

        def probed(given: Any, trace: Trace = trace) -> Any:
            hits = trace.probe(pa.table({"a": given}))
            return hits.weights

        def searched(given: Any, numbers: Any = numbers) -> Any:
            return np.searchsorted(numbers, given, "left"), np.searchsorted(numbers, given, "right")

        timings = race(
            [
                Contender("probe", probed, keys, outcome=lambda _: None),
                Contender("searchsorted", searched, keys, outcome=lambda _: None),
            ],
            most=100 if QUICK else 2000,
            budget=0.3 if QUICK else 3,
        )
        assert len(trace.probe(pa.table({"a": keys()}))) >= 100
        medians[rows] = timings["probe"].median
        ratio = timings["probe"].median / timings["searchsorted"].median
        for name, t in timings.items():
            lines.append((rows, name, t.median * 1e6, t.best * 1e6, len(trace.spine.batches)))
        if rows == MILLION:
            targets.append(Target("probe 100 keys / searchsorted pair, 1M rows", ratio, 5.0, "x"))
    show("Probing 100 keys", ("rows", "", "median us", "best us", "batches"), lines)
    targets.append(Target("probe at 10M / at 1M", medians[10 * MILLION] / medians[MILLION], 1.5, "x"))
    return targets


def inserts() -> list[Target]:
    """Ten minutes of ticks of 100 rows each, as fast as they go: half of them take rows back."""
    trace = _trace(MILLION, 20)
    seconds = 5.0 if QUICK else float(os.environ.get("DBSP_BENCH_SECONDS", "600"))
    rng = np.random.default_rng(3)
    pool = [_batch(10 * MILLION + 100 * i, 100) for i in range(500)]
    pool += [Batch.from_arrow(b.to_arrow(), BY_A, np.full(100, -1, np.int64)) for b in pool]
    samples = []
    end = time.perf_counter() + seconds
    with no_gc():
        while time.perf_counter() < end:
            delta = pool[int(rng.integers(0, len(pool)))]
            begin = time.perf_counter()
            trace.append(delta)
            samples.append(time.perf_counter() - begin)
    taken = np.array(samples) * 1e6
    median, tail, most = np.median(taken), np.percentile(taken, 99.9), taken.max()
    line = (len(taken), float(median), float(np.percentile(taken, 99)), float(tail), float(most))
    show("Inserts of 100 rows", ("inserts", "median us", "p99", "p99.9", "max"), [line])
    return [Target("p99.9 of inserts / median", float(tail / median), 20.0, "x", f"{seconds:.0f} s")]


def fork() -> list[Target]:
    """A fork of ten million rows."""
    trace = _trace(10 * MILLION, 200)
    agent = TraceAgent.of(trace)
    timings = race([Contender("fork", lambda _: agent.fork(), outcome=lambda t: t.spine.rows)], most=200)
    show("Forking", ("", "median us"), [("fork", timings["fork"].median * 1e6)])
    return [Target("fork of 10M rows", timings["fork"].median * 1e3, 1.0, " ms")]


def opening() -> list[Target]:
    """A trace of a gigabyte, in as many files as it has batches."""
    rows = 15 * MILLION
    trace = _trace(rows, 300)
    folder = Path(tempfile.mkdtemp(prefix="dbspark-bench-"))
    try:
        for i, batch in enumerate(trace.spine.batches):
            described = batch.description or Description(trace.since, trace.since, trace.since)
            write_batch(batch, folder / f"{i}.arrow", described.to_json())
        paths = sorted(folder.iterdir(), key=lambda p: int(p.stem))
        size = sum(p.stat().st_size for p in paths)

        def opened(_: Any) -> Trace:
            batches = []
            for path in paths:
                batch, description = open_batch(path)
                batches.append(batch.with_description(Description.from_json(description)))
            return Trace.from_batches(batches)

        timings = race([Contender("open", opened, outcome=lambda t: t.spine.rows)], most=100)
        taken = timings["open"].median * 1e3
        show("Opening a trace", ("GB", "files", "median ms"), [(size / 1e9, len(paths), taken)])
        return [Target("open 1 GB of files", taken * 1e9 / max(size, 1e9), 10.0, " ms", f"{size / 1e9:.2f} GB")]
    finally:
        shutil.rmtree(folder)


def merging() -> list[Target]:
    """A merge reads its inputs and writes its output, as a copy does."""
    left, right = _batch(0, MILLION), _batch(MILLION, MILLION)
    size = left.nbytes() + right.nbytes()
    source = np.ones(size, np.uint8)
    timings = race(
        [
            Contender("merge", lambda _: merge([left, right]), outcome=lambda _: None),
            Contender("copy", lambda _: source.copy(), outcome=lambda _: None),
        ],
        budget=0.5 if QUICK else 8,
    )
    show("Merging", ("", "MB/s"), [(n, size / t.median / 1e6) for n, t in timings.items()])
    ratio = timings["merge"].best / timings["copy"].best
    return [Target("merge / numpy.copy of the same bytes", ratio, 4.0, "x")]


SUITES: Final = {"probe": probe, "inserts": inserts, "fork": fork, "open": opening, "merge": merging}


def run(names: list[str]) -> list[Target]:
    """Run suites; returns their targets."""
    targets = [target for name in names or SUITES for target in SUITES[name]()]
    show_targets("Traces", targets)
    save("trace", {"targets": targets})
    return targets
