"""`docs/benchmarks.md` with its plots, from the JSON files of the suites: `python -m benchmarks.report`.

The page says under which circumstances every figure was taken, and lists where we are behind before anything else: a
target that is missed, a peer that is faster. Nothing is left out that is in the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import svg
from benchmarks.report import RESULTS, figure

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
ORDER: Final = (
    "dbspark", "hand", "search", "pathway", "flink", "streaming", "pydbsp", "duckdb", "polars", "spark",
)  # fmt: skip
NAMES: Final = {
    "hand": "by hand", "search": "search by hand", "pathway": "Pathway", "flink": "Flink SQL", "duckdb": "DuckDB",
    "streaming": "Structured Streaming", "polars": "Polars", "spark": "Spark",
}  # fmt: skip
INTRODUCTION: Final = """\
# Benchmarks

This page is written by `python -m benchmarks.report` from the results in `benchmarks/results`. To take them again, on a
machine on which nothing else runs:

```
make bench-peers    # installs the systems that we are compared with, each into an environment of its own
make bench-full     # runs everything and writes this page; make bench does the same small, in minutes
```

Every system gets the same data and the same ticks, in a process of its own, and what it gives is compared with the
expected view; a system with a wrong view has no figure. The best of the rounds counts, and the rounds of different
systems alternate. dbspark is a `Pipeline` in memory with a SQL view and a subscriber, DuckDB, Polars and Spark
recompute the view after every tick, the others keep it. A star marks a system that recomputes and was stopped before
the last tick, because every tick takes longer than the one before: its figure is of the part that it did, and
flatters it.
"""


def write(results: Path = RESULTS, docs: Path = DOCS) -> Path:
    """Write the page and its plots; returns where the page is."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    plots = docs / "benchmarks"
    plots.mkdir(parents=True, exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    parts = [INTRODUCTION, _circumstances(found), _behind(found), _targets(found)]
    runs = [run for name, content in found.items() if name.startswith("peers-") for run in content["runs"]]
    parts += [_w1(runs, plots), _w2(runs, plots), _w3(runs, plots), _tpch(found.get("sql-tpch"), plots)]
    parts += [_tables(content) for name, content in found.items() if name.startswith("state-")]
    page = docs / "benchmarks.md"
    page.write_text("\n".join(part for part in parts if part))
    return page


# ---------------------------------------------------------------------- circumstances


def _circumstances(found: Mapping[str, Any]) -> str:
    lines = ["## Circumstances\n"]
    environments = {name: content["environment"] for name, content in found.items()}
    if not environments:
        return "There are no results yet.\n"
    same = ("cpu", "cores", "platform", "python", "numpy", "pyarrow", "numba", "pyspark")
    for key in same:
        values = sorted({str(e[key]) for e in environments.values() if e.get(key) is not None})
        lines.append(f"- {key}: {'; '.join(values)}")
    systems: dict[str, set[str]] = {}
    for content in found.values():
        for system, versions in content.get("systems", {}).items():
            said = ", ".join(f"{package} {number}" for package, number in versions.items() if package != "python")
            systems.setdefault(system, set()).add(said)
    others = [system for system in _ordered(systems) if system != "dbspark"]
    lines += [f"- {_name(system)}: {'; '.join(sorted(systems[system]))}" for system in others]
    rows = []
    for name, e in environments.items():
        quick = e["settings"].get("DBSP_QUICK_BENCH", "0") not in ("", "0")
        revision = e["git"] + (" with changes" if e["modified"] else "")
        load = "" if e.get("load") is None else f"{e['load']:.1f}"
        rows.append([name, revision, e["date"], load, "quick: sizes too small to judge by" if quick else "full"])
    return "\n".join(lines) + "\n\n" + table(["results", "revision", "date", "load after", "run"], rows)


# ---------------------------------------------------------------------- targets


def _all_targets(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    out = {t["name"]: t for content in found.values() for t in content.get("targets", ())}
    return list(out.values())


def _behind(found: Mapping[str, Any]) -> str:
    """Missed targets, and cases in which a peer is faster."""
    lines = [
        f"- missed: {t['name']}: {_figure(t)}, wanted at most {_limit(t)}"
        for t in _all_targets(found)
        if not t["passed"]
    ]
    runs = [run for name, content in found.items() if name.startswith("peers-") for run in content["runs"]]
    for case, row in _by_case(runs).items():
        ours = row.get("dbspark")
        if ours is None:
            continue
        if "problem" in ours:
            lines.append(f"- {_said(case)}: dbspark has no figure: {ours['problem']}")
            continue
        rates = case[0] == "w3"
        for system in _ordered(row):
            theirs = row[system]
            if system == "dbspark" or "problem" in theirs:
                continue
            key = "rows_per_s" if rates else "median_ms"
            if theirs.get(key) is None or ours.get(key) is None:
                continue
            ratio = theirs[key] / ours[key] if rates else ours[key] / theirs[key]
            if ratio > 1:
                stopped = "" if theirs["complete"] else ", of the part that it did"
                lines.append(f"- {_said(case)}: {_name(system)} is {figure(ratio)} times as fast{stopped}")
    return "## Where we are behind\n\n" + ("\n".join(lines) if lines else "Nowhere in these results.") + "\n"


def _targets(found: Mapping[str, Any]) -> str:
    rows = [
        [t["name"], _figure(t), f"<= {_limit(t)}", "pass" if t["passed"] else "**miss**", t["note"]]
        for t in _all_targets(found)
    ]
    return "## Targets\n\n" + table(["target", "figure", "limit", "", "note"], rows) if rows else ""


def _figure(target: Mapping[str, Any]) -> str:
    return figure(target["figure"]) + target["unit"]


def _limit(target: Mapping[str, Any]) -> str:
    return figure(target["limit"]) + target["unit"]


# ---------------------------------------------------------------------- workloads


def _by_case(runs: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        given = {key: run[key] for key in ("orders", "changes", "events", "batch") if key in run}
        out.setdefault((run["workload"], run["view"], *given.items()), {})[run["system"]] = run
    return out


def _said(case: tuple[Any, ...]) -> str:
    workload, view, *given = case
    return ", ".join([f"{workload.upper()} {view}", *(f"{value:,} {key}" for key, value in given)])


def _w1(runs: Sequence[Mapping[str, Any]], plots: Path) -> str:
    text = "Orders joined with customers, filtered, summed by region, under inserts, deletes and updates."
    return _latencies("w1", "W1: join and aggregate", text, runs, plots, lambda c: f"{c['orders']:,}\n{c['changes']:,}",
                      "orders, below: changes a tick")  # fmt: skip


def _w2(runs: Sequence[Mapping[str, Any]], plots: Path) -> str:
    text = (
        "Which nodes can be reached from which, while edges come and go: all pairs of a sparse graph (`closure`), and "
        "the pairs of 10 (`few`) and of 100 sources (`many`) of a denser one."
    )
    return _latencies("w2", "W2: reachability with deletions", text, runs, plots,
                      lambda c: f"{c['view']}\n{c['changes']:,}", "graph, below: changes a tick")  # fmt: skip


def _latencies(
    workload: str, title: str, text: str, runs: Sequence[Mapping[str, Any]], plots: Path, label: Any, below: str
) -> str:
    cases = _by_case(run for run in runs if run["workload"] == workload)
    if not cases:
        return ""
    shown = [s for s in ORDER if any(s in row and "problem" not in row[s] for row in cases.values())]
    groups, rows = {}, []
    for case, row in cases.items():
        given = {"view": case[1], **dict(case[2:])}
        groups[label(given)] = {_name(s): row[s].get("median_ms") or 0.0 for s in shown if s in row}
        rows.append([_said(case), *(_cell(row.get(s), "median_ms", 1.0) for s in shown), _spread(row.get("dbspark"))])
    path = f"{workload}.svg"
    (plots / path).write_text(
        svg.bars(f"{title} (less is better)", groups, [_name(s) for s in shown], f"ms a tick; {below}")
    )
    header = ["median ms a tick", *map(_name, shown), "spread of dbspark"]
    return f"## {title}\n\n{text}\n\n![{title}](benchmarks/{path})\n\n" + table(header, rows) + _problems(cases)


def _w3(runs: Sequence[Mapping[str, Any]], plots: Path) -> str:
    cases = _by_case(run for run in runs if run["workload"] == "w3")
    if not cases:
        return ""
    parts = [
        "## W3: Nexmark\n\nEvents of the tables that a query reads, a second. Flink and Pathway are given the batches "
        "one after the other without waiting for results, as serves them best. Where dbspark is alone, with the most "
        "events, every size has a process of its own, which takes its memory before it begins (`reserve`), and the "
        "processes take turns, so that sizes can be compared.\n"
    ]
    for events, batch in sorted({(dict(case[2:])["events"], dict(case[2:])["batch"]) for case in cases}):
        mine = {c: row for c, row in cases.items() if dict(c[2:]) == {"events": events, "batch": batch}}
        shown = [s for s in ORDER if any(s in row and "problem" not in row[s] for row in mine.values())]
        groups = {
            c[1]: {_name(s): row[s].get("rows_per_s") or 0.0 for s in shown if s in row} for c, row in mine.items()
        }
        rows = [
            [c[1], *(_cell(row.get(s), "rows_per_s", 1e-3) for s in shown), _spread(row.get("dbspark"))]
            for c, row in mine.items()
        ]
        title = f"{events:,} events in batches of {batch:,}"
        path = f"w3-{events}-{batch}.svg"
        (plots / path).write_text(
            svg.bars(f"Nexmark, {title} (more is better)", groups, [_name(s) for s in shown], "events a second")
        )
        header = ["thousands of events a second", *map(_name, shown), "spread of dbspark"]
        parts.append(f"### {title}\n\n![{title}](benchmarks/{path})\n\n" + table(header, rows))
    return "\n".join(parts) + _problems(cases)


def _problems(cases: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> str:
    """Why figures are missing, each reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for case, row in cases.items():
        for system, run in row.items():
            if "problem" in run and case[1] not in found.setdefault((system, run["problem"]), []):
                found[system, run["problem"]].append(case[1])
    lines = [f"- {_name(system)}: {', '.join(views)}: {why}" for (system, why), views in found.items()]
    return "\nNo figure:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _tpch(content: Mapping[str, Any] | None, plots: Path) -> str:
    if content is None:
        return ""
    parts = ["## TPC-H: a refresh of 0.1 % beside Spark computing the query anew\n"]
    for scale in sorted({r["scale"] for r in content["results"]}):
        mine = [r for r in content["results"] if r["scale"] == scale]
        groups = {r["query"]: {"dbspark": r["tick_ms"], "Spark": r["spark_ms"]} for r in mine}
        path = f"tpch-{scale:g}.svg"
        (plots / path).write_text(
            svg.bars(f"TPC-H, scale {scale:g} (less is better)", groups, ["dbspark", "Spark"], "ms")
        )
        rows = [[r["query"], *(figure(r[k]) for k in ("tick_ms", "spark_ms", "ratio", "load_ms"))] for r in mine]
        header = ["query", "tick ms", "Spark ms", "times faster", "load ms"]
        parts.append(f"### Scale {scale:g}\n\n![TPC-H, scale {scale:g}](benchmarks/{path})\n\n" + table(header, rows))
    return "\n".join(parts)


def _tables(content: Mapping[str, Any]) -> str:
    """What a suite has shown, as it has shown it."""
    parts = []
    for shown in content["tables"]:
        rows = [
            [figure(v) if isinstance(v, float) else "" if v is None else str(v) for v in row] for row in shown["rows"]
        ]
        parts.append(f"## {shown['title']}\n\n" + table(shown["header"], rows))
    return "\n".join(parts)


# ---------------------------------------------------------------------- cells


def _name(system: str) -> str:
    return NAMES.get(system, system)


def _ordered(systems: Iterable[str]) -> list[str]:
    return sorted(systems, key=lambda s: (ORDER.index(s) if s in ORDER else len(ORDER), s))


def _cell(run: Mapping[str, Any] | None, key: str, factor: float) -> str:
    value = None if run is None or "problem" in run else run.get(key)
    if run is None or value is None or math.isnan(value):
        return ""
    return figure(value * factor) + ("" if run["complete"] else "*")


def _spread(run: Mapping[str, Any] | None) -> str:
    return "" if run is None or run.get("spread") is None else f"{100 * run['spread']:.0f} %"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown, figures to the right."""
    lines = [header, ["---", *("--:" for _ in header[1:])], *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)
