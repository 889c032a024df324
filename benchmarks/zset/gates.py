"""The gates: every workload with every backend, and whether the adaptive one keeps up with the best of the others.

A workload passes if the adaptive backend takes at most 5 % longer than the best single one, a different one each
time, by the median of the ratios of their rounds, which take turns. A figure with a star is of a backend so slow that
it was timed in the warm-up only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.report import Target, save, show, show_targets
from benchmarks.zset import reads, updates
from benchmarks.zset.workload import HEADER, LIMIT, Result, Workload, matching, measure

ALL: Final = "all workloads"
PARITY: Final = "Adaptive / best single backend"

_done: Final[dict[str, Result]] = {}


def measured(workloads: Sequence[Workload], **options: Any) -> list[Result]:
    """Results of workloads, each measured once per process."""
    for i, workload in enumerate(workloads):
        if workload.name not in _done:
            begin = time.perf_counter()
            result = _done[workload.name] = measure(workload, **options)
            seconds = time.perf_counter() - begin
            progress(f"{i + 1}/{len(workloads)} {workload.name}: {result.verdict} ({seconds:.0f} s)")
    progress("")
    return [_done[w.name] for w in workloads]


def progress(text: str) -> None:
    """Say on standard error how far we are: in place on a terminal, line by line elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def judged(results: Sequence[Result], where: str) -> list[Target]:
    """One line for parity over all workloads, and one for every backend that is to be outdone by more."""
    good = [r for r in results if not r.error]
    found = []
    if good:
        worst = max(good, key=lambda r: r.parity)
        kept = sum(r.parity <= LIMIT for r in good)
        note = f"{kept} of {len(results)} workloads; the worst: {worst.workload.name}"
        found.append(Target(f"{PARITY}, {where}", worst.parity, LIMIT, "x", note))
    ahead: dict[tuple[str, float], list[Result]] = {}
    for r in good:
        for limit in r.workload.limits:
            ahead.setdefault(limit, []).append(r)
    for (backend, limit), some in ahead.items():
        worst = max(some, key=lambda r: r.ratio(backend))
        note = f"the worst of {len(some)}: {worst.workload.name}"
        found.append(Target(f"LargeScalePipeline's scan: Adaptive / {backend}", worst.ratio(backend), limit, "x", note))
    errors = [r for r in results if r.error]
    if errors:
        found.append(Target(f"workloads that failed, {where}", float(len(errors)), 0.0, "", errors[0].workload.name))
    return found


def report(
    title: str, suite: str, where: str, results: Sequence[Result], extra: dict[str, Any] | None = None
) -> list[Target]:
    show(title, HEADER, [r.line() for r in results])
    for r in results:
        if r.error:
            print(f"ERROR {r.workload.name}: {r.error}")
    targets = judged(results, where)
    content = {"results": {r.workload.name: r.as_json() for r in results}, "targets": targets}
    save(suite, content | (extra or {}))
    return targets


def workloads() -> list[Workload]:
    from benchmarks.zset import pipeline

    return [*updates.workloads(), *reads.workloads(), *pipeline.workloads()]


def run(only: str | None = None, **options: Any) -> list[Target]:
    """The suite; returns its targets."""
    targets = report("Gates", "zset-gates", ALL, measured(matching(workloads(), only), **options))
    show_targets("Targets: gates", targets)
    return targets
