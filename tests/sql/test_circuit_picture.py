"""The picture of a circuit is well-formed, says what the text says, and escapes what comes from a query."""

from __future__ import annotations

import pickle
import re
from xml.etree import ElementTree

from dbspark.circuit.builder import Builder
from dbspark.columnar.schema import Schema
from dbspark.operators.collect import Mode
from dbspark.operators.function import Function
from dbspark.operators.window import Ranking
from dbspark.sql.circuit_picture import LINE_CHARACTERS, MAX_LABEL_LINES, Box, circuit_svg
from dbspark.sql.explain import Size, render, tick_cost

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_picture_says_what_the_text_says() -> None:
    b = Builder()
    orders, customers = b.source("orders", "customer BIGINT, amount DOUBLE"), b.source("customers", "customer BIGINT")
    joined = b.join(orders, customers, ["customer"])
    total = b.aggregate(joined, ["customer"], total=("sum", "amount"))
    b.output("totals", total)
    graph = b.circuit().graph
    sizes = {n.id: Size(1234, 2048) for n in graph if n.operator is not None and n.operator.state_sort_keys()}
    sizes |= {"table orders": Size(7, 10), "view totals": Size(3, 40)}
    text = render("totals", graph, graph.outputs["totals"], ["customer", "total"], (), sizes)
    svg = text.to_svg()
    shown = texts(svg)
    assert shown[0] == "View totals (customer, total)"
    numbered = re.findall(r"(#\d+) (.*?)(?: \(above\))?$", text, re.MULTILINE)
    boxes = [line for line in shown if line.startswith("#")]
    assert {number for number, _ in numbered} == {line.split()[0] for line in boxes}
    assert {"= view totals", "history: 3 rows, 40 bytes", "7 rows, 10 bytes", "cost: changes"} <= set(shown)
    assert shown.count("keeps 1,234 rows, 2.0 KiB") == 3
    picture = ElementTree.fromstring(svg)
    edges = [p for p in picture.iter(f"{SVG}path") if p.get("fill") == "none"]
    assert len(edges) == sum(len(node.inputs) for node in graph)
    assert svg in text._repr_html_()
    assert text._repr_svg_() == svg
    assert repr(text) == text
    assert pickle.loads(pickle.dumps(text)).to_svg() == svg


def test_costs_of_operators() -> None:
    b = Builder()
    rows = b.source("t", "k BIGINT, v BIGINT")
    window = b.window(rows, ["k"], ["v"], {"r": Ranking("rank")})
    whole = b.aggregate(rows, ["k"], m=Mode(1, Schema.of("v BIGINT").types[0]))
    asked = b.external_function(rows, Function(lambda table: table, "f"), "k BIGINT, v BIGINT", None)
    costs = [tick_cost(s.node) for s in (window, whole, asked, b.distinct(rows))]
    assert costs == ["partitions", "partitions", "changes in Spark", "changes"]


def test_text_of_queries_is_escaped_and_cut() -> None:
    label = "<script>alert('&')</script> " + "long " * 60
    boxes = {
        "a": Box(1, label, "everything in Spark", ("<b>",), ("t",), "more\n<i>", "v&w"),
        "t": Box(2, "", None, (), ()),
    }
    svg = circuit_svg('"<title>" & more', boxes)
    assert "<script>" not in svg
    assert "<b>" not in svg
    shown = texts(svg)
    assert shown[0] == '"<title>" & more'
    lines = [line for line in shown if line.startswith(("#1", "long", "alert", "<"))]
    assert len(lines) <= MAX_LABEL_LINES + 1
    assert all(len(line) <= LINE_CHARACTERS for line in lines)
    assert "= view v&w" in shown
    tooltips = [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert f"#1 {label}\nmore\n<i>" in tooltips
