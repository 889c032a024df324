"""How benchmarks speak: tables for people, JSON for machines, and one line per target for whoever decides.

Results go to `benchmarks/results/<suite>.json` together with everything that a figure depends on (versions, CPU, git
revision, date), so that a number never travels without its circumstances. `python -m benchmarks.report` turns all of
them into one page (`benchmarks.page`).
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

QUICK: Final = os.environ.get("DBSP_QUICK_BENCH", "") not in ("", "0")
"""A smoke run: everything once, small and short."""
RESULTS: Final = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Target:
    """One line of what "done" means: a figure and its limit."""

    name: str
    figure: float
    limit: float
    unit: str = ""
    note: str = ""

    @property
    def passed(self) -> bool:
        return self.figure <= self.limit

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def environment() -> dict[str, Any]:
    """Everything a figure depends on that can be named."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "git": _git("rev-parse", "--short", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--", "src")),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("numpy", "pyarrow", "numba", "pyspark")},
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith("DBSP_")},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, cwd=RESULTS.parent.parent, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def save(suite: str, content: dict[str, Any]) -> Path:
    """Write a suite's results; returns where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{suite}.json"
    path.write_text(json.dumps({"suite": suite, "environment": environment(), **content}, indent=1, default=_plain))
    return path


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, Target):
        return value.as_json()
    return str(value)


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, unless it is empty: with rich on a terminal, in plain columns elsewhere."""
    lines = [[_cell(value) for value in row] for row in rows]
    if not lines:
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for i, name in enumerate(header):
            table.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
        for line in lines:
            colour = "red" if "MISS" in line or "ERROR" in line else None
            table.add_row(*line, style=colour)
        Console().print(table)
        return
    widths = [max(len(name), *(len(line[i]) for line in lines), 0) for i, name in enumerate(header)]
    print(f"\n{title}")
    for line in [list(header), ["-" * w for w in widths], *lines]:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        print("  ".join(cells).rstrip())
    sys.stdout.flush()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "pass" if value else "MISS"
    return figure(value) if isinstance(value, float) else str(value)


def figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value != value:
        return "-"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def show_targets(title: str, targets: Iterable[Target]) -> None:
    """One line per target. A quick run is judged too, but on sizes at which the targets mean little."""
    title += " (quick run: sizes too small to judge by)" if QUICK else ""
    rows = [(t.name, figure(t.figure) + t.unit, "<= " + figure(t.limit) + t.unit, t.passed, t.note) for t in targets]
    show(title, ("target", "figure", "limit", "", "note"), rows)


if __name__ == "__main__":
    from benchmarks.page import write

    print(write())
