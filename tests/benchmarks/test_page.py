"""The page says what the results say, where we are behind first; plots are SVG that can be read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import page, svg
from benchmarks.report import environment


def run(system, median, **more):
    given = {"system": system, "workload": "w1", "view": "revenue", "orders": 100, "changes": 10, "spread": 0.1}
    return given | {"median_ms": median, "rows_per_s": 1e3 / median, "complete": True} | more


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    w1 = {
        "runs": [run("dbspark", 2.0), run("duckdb", 1.0, complete=False), run("pathway", 8.0)],
        "systems": {"dbspark": {"pyarrow": "1"}, "duckdb": {"python": "3", "duckdb": "2.0.0"}},
        "targets": [
            {"name": "too slow", "figure": 3.0, "limit": 2.0, "unit": "x", "note": "", "passed": False},
            {"name": "fine", "figure": 1.0, "limit": 2.0, "unit": "x", "note": "", "passed": True},
        ],
    }
    w3 = [
        run("dbspark", 1.0, workload="w3", view="q3", events=1000, batch=10),
        {"system": "flink", "workload": "w3", "view": "q3", "events": 1000, "batch": 10, "problem": "no such thing"},
    ]
    for r in w3:
        r.pop("orders", None), r.pop("changes", None)
    tpch = [{"scale": 0.1, "query": "q1", "tick_ms": 1.0, "spark_ms": 50.0, "ratio": 50.0, "load_ms": 9.0}]
    state = [{"title": "Memory of state", "header": ["operator", "ratio"], "rows": [["join", 2.0]]}]
    for name, content in {
        "peers-w1": w1, "peers-w3": {"runs": w3}, "sql-tpch": {"results": tpch}, "state-memory": {"tables": state},
    }.items():  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps({"suite": name, "environment": environment(), **content}))
    return folder


def test_the_page_has_every_figure_and_where_we_are_behind(results, tmp_path):
    written = page.write(results, tmp_path / "docs")
    text = written.read_text()
    behind = text[text.index("## Where we are behind") : text.index("## Targets")]
    assert "missed: too slow: 3.00x, wanted at most 2.00x" in behind
    assert "DuckDB is 2.00 times as fast, of the part that it did" in behind
    assert "Pathway" not in behind
    assert "fine" not in behind
    assert "| W1 revenue, 100 orders, 10 changes | 2.00 | 8.00 | 1.00* | 10 % |" in text
    assert "duckdb 2.0.0" in text
    assert environment()["git"] in text
    assert "Flink SQL: q3: no such thing" in text
    assert "| q1 | 1.00 | 50.0 | 50.0 | 9.00 |" in text
    assert "| join | 2.00 |" in text
    for path in (tmp_path / "docs" / "benchmarks").glob("*.svg"):
        assert f"benchmarks/{path.name}" in text
        ElementTree.parse(path)


def test_without_results_the_page_says_so(tmp_path):
    (tmp_path / "results").mkdir()
    assert "no results" in page.write(tmp_path / "results", tmp_path / "docs").read_text()


def test_bars_are_as_high_as_their_figures_on_a_scale_of_powers():
    drawn = ElementTree.fromstring(
        svg.bars("a & b", {"x": {"one": 1.0, "two": 100.0}, "y": {"one": 10.0}}, ["one", "two"], "ms")
    )
    space = "{http://www.w3.org/2000/svg}"
    bars = [r for r in drawn.iter(f"{space}rect") if r.find(f"{space}title") is not None]
    heights = [float(r.get("height")) for r in bars]
    assert heights == [1.0, 220.0, 110.0]
    assert svg.bars("nothing", {"x": {"one": 0.0}}, ["one"], "ms") == ""
