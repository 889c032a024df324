"""The pages of the documentation: their examples run, their links lead somewhere, the modules that they name exist.

The Python examples of a page run one after the other, in one namespace and in a folder of their own, as a reader would
run them. A block of `text` right behind an example is what the example prints.
"""

import __future__

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dbspark
from dbspark.circuit.builder import Builder
from dbspark.operators import window

ROOT = Path(__file__).parents[2]
PAGES = sorted(["README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))])
WITH_EXAMPLES = [page for page in PAGES if "```python\n" in (ROOT / page).read_text()]

EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```)?", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)(?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
PYTHON_FILE = re.compile(r"`(?P<path>[\w./*]+/[\w*]+\.py)")
TEST = re.compile(r"`(?P<path>tests/[\w./]+)`")


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_of_a_page_run(page: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"dbspark": dbspark, "spark": spark}
    try:
        for example in EXAMPLE.finditer((ROOT / page).read_text()):
            # Spark was started in another folder, and stays there.
            code = example["code"].replace('"state/', f'"{tmp_path}/state/')
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, page, "exec"), names)
            if example["printed"] is not None:
                assert _lines(printed.getvalue()) == _lines(example["printed"]), code
    finally:
        for value in list(names.values()):
            if isinstance(value, dbspark.Pipeline):
                value.close()


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_programs_of_the_page_on_pipelines_run(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    (folder / "1.json").write_text('{"user": 1, "page": "home"}')
    programs = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "pipeline.md").read_text(), re.DOTALL)
    assert programs
    try:
        for program in programs:
            with dbspark.Pipeline("program") as pipe:
                pipe.sql(program.replace("/data", str(tmp_path)))
                assert pipe.view("visitors").to_arrow().to_pylist() == [{"name": "Ada", "n": 1}]
    finally:
        spark.sql("DROP TABLE IF EXISTS raw_clicks")


def test_the_window_function_of_the_page_on_contributing_works() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text()
    (code,) = re.findall(r"   ```\n(.*?)```", page, re.DOTALL)
    names = dict(vars(window))  # it is to be added to this module
    exec(compile(textwrap.dedent(code), "contributing.md", "exec", __future__.annotations.compiler_flag), names)
    b = Builder()
    t = b.source("t", "k BIGINT, o BIGINT, x BIGINT")
    frame = window.Frame("rows", -1, 0)
    b.output("v", b.window(t, ["k"], ["o"], {"w": names["FrameBitXor"](2, frame)}))
    values = {(1, 1): 5, (1, 2): 3, (1, 3): None, (1, 4): None, (2, 1): 7}
    out = b.circuit().tick({"t": [(*at, x) for at, x in values.items()]})["v"]
    assert {row[:2]: row[3] for row, _ in out} == {(1, 1): 5, (1, 2): 5 ^ 3, (1, 3): 3, (1, 4): None, (2, 1): 7}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    here = ROOT / page
    for link in LINK.finditer(_prose(here.read_text())):
        target = here if not link["target"] else (here.parent / link["target"]).resolve()
        assert target.exists(), f"{page} links to {link['target']}, which does not exist"
        if link["anchor"]:
            assert link["anchor"] in set(_anchors(target)), f"{page}: {target.name} has no heading #{link['anchor']}"


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for named in PYTHON_FILE.finditer(text):
        places = [
            place for root in (ROOT, ROOT / "src" / "dbspark", ROOT / "src") for place in root.glob(named["path"])
        ]
        assert places, f"{page} names {named['path']}, which does not exist"
    for named in TEST.finditer(text):
        assert (ROOT / named["path"]).exists(), f"{page} names {named['path']}, which does not exist"


COSTS = {
    ("incremental", "change"): "changes",
    ("incremental", "partition"): "partitions",
    ("affected groups", "partition"): "partitions in Spark",
    ("full", "change"): "everything in Spark",
}
QUERIES = {
    "part of a query": "{}",
    "aggregate": "SELECT k, {} AS x FROM t GROUP BY k",
    "function": "SELECT k, {} AS x FROM t",
}
"""By the first column of a table, the query that an example of it stands for."""


def test_queries_cost_what_the_page_on_sql_says(spark: Any) -> None:
    """The most expensive part of each example, as `explain` has it."""
    order = list(COSTS.values())
    found, said = {}, {}
    with dbspark.Pipeline("costs") as pipe:
        pipe.create_table("t", "k STRING, o INT, v BIGINT, d DOUBLE, c DECIMAL(12,2), ts TIMESTAMP, a ARRAY<INT>")
        pipe.create_table("u", "k STRING, w INT")
        template = None
        for line in (ROOT / "docs" / "sql.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not line.startswith("|"):
                template = None
            elif cells[1:] == ["example", "a tick costs"]:
                template = QUERIES[cells[0]]
            elif template is not None and not set(line) <= set("|-"):
                query = template.format(cells[1].strip("`"))
                parts = re.findall(r": (incremental|affected groups|full)(?:, cost: (\w+))?", pipe.explain(query))
                assert parts, query
                said[query] = cells[2]
                found[query] = max((COSTS[mode, cost or "change"] for mode, cost in parts), key=order.index)
    assert len(said) > 50
    assert found == said


def _prose(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def _anchors(page: Path) -> Iterator[str]:
    """The anchors of the headings of a page, as they are made from their text."""
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
