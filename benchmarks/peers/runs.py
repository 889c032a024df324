"""Running cases with systems: one process for a system and a round, the rounds of all systems in turn.

A machine drifts, so that a system's rounds are never one after the other. What a system gives is compared with the
expected views in every round; a run with a wrong view has no time at all.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        """Time a row, as a multiple of that of another case: the median of the rounds, each of which had both of them.

        Not that of the best rounds: of a short case one round in a few has a quiet moment to itself, of one that takes
        ten times as long none has.
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
    alone: bool = False,
) -> tuple[list[Run], dict[str, dict[str, str]]]:
    """All cases with all systems, as far as these are waited for; and the versions of what each system consists of.

    `alone`: every case has a process of its own.
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
            for batch in [[c] for c in mine] if kind.alone or alone else [mine] if mine else []:
                versions[name] = _batch(name, batch, runs, budget, timeout) or versions.get(name, {})
    return list(runs.values()), versions


def _batch(
    name: str, cases: Sequence[Case], runs: dict[tuple[str, Path], Run], budget: float, timeout: float
) -> dict[str, str]:
    """One process; returns the versions that it has."""
    with tempfile.TemporaryDirectory(prefix="dbspark-peers-") as folder:
        out = Path(folder)
        job = out / "job.json"
        write_job(job, name, cases, budget, out)
        log = _process(name, job, timeout)
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


def write_job(path: Path, system: str, cases: Sequence[Case], budget: float, out: Path) -> None:
    """What `benchmarks.peers.child` is told to do."""
    job = {"system": system, "cases": [str(c.folder) for c in cases], "budget": budget, "out": str(out)}
    path.write_text(json.dumps(job))


def _process(name: str, job: Path, timeout: float) -> str:
    """Run a job to its end; the last words of one that fails."""
    python = SYSTEMS[name].python
    assert python is not None, name
    source = os.pathsep.join([str(ROOT), *([str(ROOT / "src")] if not SYSTEMS[name].environment else [])])
    environment = {**os.environ, "PYTHONPATH": source, "POLARS_MAX_THREADS": "2", "PATHWAY_THREADS": "1"}
    if SYSTEMS[name].environment == "pyflink":
        environment |= {"JAVA_HOME": str(find_java().home), "JVM_ARGS": "-Xms1g -Xmx6g"}
    command = [str(python), "-m", "benchmarks.peers.child", str(job)]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, timeout=timeout, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return f"took more than {timeout:.0f} s"
    if done.returncode and done.stderr.strip():
        return done.stderr.strip().splitlines()[-1]
    return ""
