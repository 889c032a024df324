"""Running cases with systems: one process for a system and a round, the rounds of all systems in turn.

A machine drifts, so that a system's rounds are never one after the other; sizes that are compared with each other even
take turns within a round (`benchmarks.peers.turns`). What a system gives is compared with the expected views in every
round; a run with a wrong view has no time at all.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import turns
from benchmarks.peers.case import Case, read_arrow
from benchmarks.peers.compare import wrong
from benchmarks.peers.registry import ROOT, SYSTEMS
from dbspark.spark import find_java


@dataclass(slots=True)
class Run:
    """What one system made of one case, over all rounds."""

    system: str
    case: Case
    rounds: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    """Why there are no times: refused, failed, wrong."""

    @property
    def best(self) -> dict[str, Any] | None:
        return min(self.rounds, key=seconds) if self.rounds and not self.problem else None

    @property
    def rate(self) -> float:
        """Rows a second in the best round."""
        best = self.best
        return best["rows"] / seconds(best) if best else float("nan")

    @property
    def median(self) -> float:
        """Of the ticks that were timed: the median, in the best round."""
        medians = [statistics.median(r["ticks"]) for r in self.rounds if r["ticks"]]
        return min(medians) if medians and not self.problem else float("nan")

    @property
    def spread(self) -> float:
        """Distance of the best and the worst round, as a share of the best."""
        times = [seconds(r) for r in self.rounds]
        return (max(times) - min(times)) / min(times) if times else float("nan")

    def slower_than(self, other: Run) -> float:
        """Time a row, as a multiple of that of another case: the median of the rounds, in each of which both had turns.

        Not that of the best rounds, which may be another for each of the two.
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(seconds(a) / a["rows"] * b["rows"] / seconds(b) for a, b in pairs)

    @property
    def complete(self) -> bool:
        return all(r["complete"] for r in self.rounds)

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "system": self.system, "workload": self.case.workload, "view": self.case.view, **self.case.parameters,
        }  # fmt: skip
        best = self.best
        if best is None:
            return content | {"problem": self.problem}
        ticks = [1e3 * t for t in best["ticks"]]
        return content | {
            "seconds": seconds(best), "rows": best["rows"], "rows_per_s": self.rate, "spread": self.spread,
            "median_ms": 1e3 * self.median if ticks else None, "last_ms": ticks[-1] if ticks else None,
            "load_s": best["load"], "memory": best["memory"], "complete": self.complete, "rounds": len(self.rounds),
            "note": best["note"],
        }  # fmt: skip


def seconds(outcome: dict[str, Any]) -> float:
    return sum(outcome["ticks"]) if outcome["continuous"] is None else outcome["continuous"]


def present(names: Sequence[str]) -> list[str]:
    """Those systems that can be run here; a line for each that cannot."""
    out = []
    for name in names:
        if SYSTEMS[name].python is None:
            print(f"{name} is not installed (make bench-peers): skipped")
        else:
            out.append(name)
    return out


def run(
    systems: Sequence[str],
    cases: Sequence[Case],
    *,
    rounds: int,
    budget: float,
    timeout: float = 3600.0,
    waited_for: Callable[[str, Case], bool] = lambda system, case: True,
    in_turns: Callable[[Case], Hashable] | None = None,
) -> tuple[list[Run], dict[str, dict[str, str]]]:
    """All cases with all systems, as far as these are waited for; and the versions of what each system consists of.

    `in_turns`: cases of which this gives the same take turns, each in a process of its own.
    """
    runs = {(name, case.folder): Run(name, case) for case in cases for name in systems if waited_for(name, case)}
    versions: dict[str, dict[str, str]] = {}
    for turn in range(rounds):
        for name in systems if turn % 2 == 0 else reversed(systems):
            kind = SYSTEMS[name].load()
            asked = [c for c in cases if (name, c.folder) in runs]
            mine = [c for c in asked if c.workload in kind.workloads and not runs[name, c.folder].problem]
            for c in asked:
                if c.workload not in kind.workloads:
                    runs[name, c.folder].problem = "not written for this workload"
            for batch in _batches(mine, kind.alone, in_turns):
                begun = time.perf_counter()
                found = _batch(name, batch, runs, budget, timeout, taking_turns=in_turns is not None)
                versions[name] = found or versions.get(name, {})
                what = batch[0].name if len(batch) == 1 else f"{batch[0].name} and {len(batch) - 1} more"
                took = time.perf_counter() - begun
                print(f"round {turn + 1} of {rounds}: {name}, {what}: done in {took:.0f} s", flush=True)
    return list(runs.values()), versions


def _batches(
    cases: Sequence[Case], alone: bool, in_turns: Callable[[Case], Hashable] | None
) -> Iterable[Sequence[Case]]:
    """Cases that are run together."""
    if in_turns is None:
        return [[c] for c in cases] if alone else [cases] if cases else []
    out: dict[Hashable, list[Case]] = {}
    for case in cases:
        out.setdefault(in_turns(case), []).append(case)
    return out.values()


def _batch(
    name: str,
    cases: Sequence[Case],
    runs: dict[tuple[str, Path], Run],
    budget: float,
    timeout: float,
    taking_turns: bool,
) -> dict[str, str]:
    """Cases in one process, or in one each; returns the versions that it has."""
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="dbspark-peers-") as folder:
        jobs = []
        for i, given in enumerate([[c] for c in cases] if taking_turns else [cases]):
            out = Path(folder) / str(i)
            out.mkdir()
            write_job(out / "job.json", name, given, budget, out, taking_turns)
            jobs.append((out, given))
        paths = [out / "job.json" for out, _ in jobs]
        logs = _in_turns(name, paths, timeout) if taking_turns else [_process(name, paths[0], timeout)]
        for (out, given), log in zip(jobs, logs, strict=True):
            versions |= _taken(name, given, runs, out, log)
    return versions


def _taken(name: str, cases: Sequence[Case], runs: dict[tuple[str, Path], Run], out: Path, log: str) -> dict[str, str]:
    """Take over what a process has left, and return the versions that it has."""
    for i, case in enumerate(cases):
        mine = runs[name, case.folder]
        path = out / f"{i}.json"
        content = json.loads(path.read_text()) if path.exists() else {"failed": log or "its process has died"}
        problem = content.get("refused") or content.get("failed") or wrong(read_arrow(out / f"{i}.arrow"), case)
        if problem:
            mine.problem = problem
            print(f"{name}, {case.name}: {problem}", flush=True)
        else:
            mine.rounds.append(content)
    path = out / "versions.json"
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write_job(
    path: Path, system: str, cases: Sequence[Case], budget: float, out: Path, taking_turns: bool = False
) -> None:
    """What `benchmarks.peers.child` is told to do."""
    job: dict[str, Any] = {"system": system, "cases": [str(c.folder) for c in cases], "budget": budget, "out": str(out)}
    path.write_text(json.dumps({**job, "turns": taking_turns}))


def _process(name: str, job: Path, timeout: float) -> str:
    """Run a job to its end; the last words of one that fails."""
    command, environment = _command(name, job)
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, timeout=timeout, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return f"took more than {timeout:.0f} s"
    if done.returncode and done.stderr.strip():
        return done.stderr.strip().splitlines()[-1]
    return ""


def _in_turns(name: str, jobs: Sequence[Path], timeout: float) -> list[str]:
    """Run jobs to their ends in turns; the last words of those that fail."""
    processes: list[turns.Process] = []
    try:
        for job in jobs:
            command, environment = _command(name, job)
            processes.append(turns.Process(command, ROOT, environment, job.with_name("log")))
        turns.take_turns(processes, timeout)
    finally:
        for process in processes:
            process.close()
    return [process.last_words() for process in processes]


def _command(name: str, job: Path) -> tuple[list[str], dict[str, str]]:
    """How to run a job, and in which environment."""
    python = SYSTEMS[name].python
    assert python is not None, name
    source = os.pathsep.join([str(ROOT), *([str(ROOT / "src")] if not SYSTEMS[name].environment else [])])
    environment = {**os.environ, "PYTHONPATH": source, "POLARS_MAX_THREADS": "2", "PATHWAY_THREADS": "1"}
    if SYSTEMS[name].environment == "pyflink":
        environment |= {"JAVA_HOME": str(find_java().home), "JVM_ARGS": "-Xms1g -Xmx6g"}
    return [str(python), "-m", "benchmarks.peers.child", str(job)], environment
