"""What `explain` shows: how each part of a query is maintained, and the circuit with what its operators keep.

The circuit is a tree from the view down to the tables. An operator that stands in it twice is shown once and referred
to by its number. Sizes are those of the state as it is held: rows before they are consolidated, bytes in memory or
mapped from files. `Explanation.to_svg` draws the same as a picture, with the same numbers.
"""

from __future__ import annotations

import html
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbspark.circuit.graph import Graph, Node
from dbspark.circuit.nested import Fixpoint
from dbspark.operators.aggregate import GroupAggregate
from dbspark.operators.collect import First, GroupReadingAggregate, Recompute
from dbspark.operators.external_function import ExternalFunction
from dbspark.operators.recompute import RecomputeGroups
from dbspark.operators.window import Window
from dbspark.sql.circuit_picture import Box, TickCost, circuit_svg


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and bytes of the state under one name."""

    rows: int
    bytes: int

    def __add__(self, other: Size) -> Size:
        return Size(self.rows + other.rows, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'}, {in_bytes(self.bytes)}"


Sizes = Mapping[str, Size]
"""By the names under which state is kept: ids of nodes, `table orders`, `view revenue`."""


class Explanation(str):
    """The text of `explain`. In a notebook it is a picture of the circuit, with the text below it."""

    __slots__ = ("_boxes",)
    _boxes: Mapping[str, Box]

    @classmethod
    def of(cls, text: str, boxes: Mapping[str, Box]) -> Explanation:
        """A text, with the boxes of its picture."""
        made = cls(text)
        made._boxes = boxes
        return made

    def to_svg(self) -> str:
        """The circuit as an SVG picture."""
        return circuit_svg(self.partition("\n")[0], self._boxes)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        text = f"<details><summary>as text</summary><pre>{html.escape(self)}</pre></details>"
        return f'<div style="overflow-x: auto">{self.to_svg()}</div>{text}'

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Explanation.of, (str(self), self._boxes)


def render(
    name: str | None, graph: Graph, root: Node, columns: Sequence[str], notes: Sequence[Any], sizes: Sizes | None,
    views: Container[str] = (),
) -> Explanation:  # fmt: skip
    """The text on a view of a graph, or, without a name, on a query that is not one; without sizes none are shown.

    `views` are the sources of the graph that are not tables.
    """
    text = _text(name, graph, root, columns, notes, sizes, views)
    return Explanation.of(text, _boxes(name, graph, root, sizes, views))


def _text(
    name: str | None, graph: Graph, root: Node, columns: Sequence[str], notes: Sequence[Any], sizes: Sizes | None,
    views: Container[str],
) -> str:  # fmt: skip
    what = f"{'Query' if name is None else f'View {name}'} ({', '.join(columns)})"
    lines = [what, "", "Maintenance"]
    lines += [f"  {note}" for note in notes] or ["  the rows as they are: incremental"]
    tree = list(_tree(graph, root, name, views))
    if sizes is None:
        return "\n".join([*lines, "", "Circuit", *(text for _, text in tree)])
    kept = [None if key is None else sizes.get(key) for key, _ in tree]
    rows = [("", "") if size is None else (f"{size.rows:,}", in_bytes(size.bytes)) for size in kept]
    widths = [max(len(heading), *(len(row[i]) for row in rows)) for i, heading in enumerate(("rows", "bytes"))]
    lines += ["", f"{'rows':>{widths[0]}}  {'bytes':>{widths[1]}}  Circuit, with what its operators keep"]
    lines += [
        f"{count:>{widths[0]}}  {size:>{widths[1]}}  {text}"
        for (count, size), (_, text) in zip(rows, tree, strict=True)
    ]
    own = sum((s for (key, _), s in zip(tree, kept, strict=True) if s is not None and key in graph.nodes), Size(0, 0))
    lines += ["", f"Kept by its operators: {own}"]
    if (result := sizes.get(f"view {name}")) is not None:
        lines.append(f"Kept of the view with its history: {result}")
    return "\n".join(lines)


def _tree(graph: Graph, root: Node, name: str | None, views: Container[str]) -> Iterator[tuple[str | None, str]]:
    """Lines, with the names of the states that belong to them."""
    others = _other_views(graph, name)
    seen: set[str] = set()
    for number, depth, node in _numbered(root):
        what = _what(node, views)
        also = f" (view {others[node.id]})" if node.id in others else ""
        text = f"{'  ' * depth}#{number} {what}{also}"
        if node.id in seen:
            yield None, f"{text} (above)"
            continue
        seen.add(node.id)
        yield what if node.role == "source" else node.id, text
        if isinstance(node.operator, Fixpoint):
            yield from _inside(node.operator, depth + 1)


def _numbered(root: Node) -> Iterator[tuple[int, int, Node]]:
    """The nodes in the order of the text, with number and depth; a node that comes again has the number it had."""
    numbers: dict[str, int] = {}
    pending = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        known = node.id in numbers
        yield numbers.setdefault(node.id, len(numbers) + 1), depth, node
        if not known:
            pending += [(source, depth + 1) for source in reversed(node.inputs)]


def _other_views(graph: Graph, name: str | None) -> dict[str, str]:
    return {node.id: view for view, node in graph.outputs.items() if view != name}


def _what(node: Node, views: Container[str]) -> str:
    return f"{'view' if node.name in views else 'table'} {node.name}" if node.role == "source" else node.label


def _boxes(name: str | None, graph: Graph, root: Node, sizes: Sizes | None, views: Container[str]) -> dict[str, Box]:
    """The boxes of the picture: the view first, then its inputs from left to right."""
    others = _other_views(graph, name)
    boxes: dict[str, Box] = {}
    for number, _, node in _numbered(root):
        if node.id in boxes:
            continue
        what, source = _what(node, views), node.role == "source"
        size = None if sizes is None else sizes.get(what if source else node.id)
        view = others.get(node.id, "") if node is not root or name is None else name
        result = None if sizes is None or not view else sizes.get(f"view {view}")
        kept = () if size is None else (str(size) if source else f"keeps {size}",)
        if result is not None:
            kept = (*kept, f"history: {result}")
        inside = "\n".join(text for _, text in _inside(node.operator, 0)) if isinstance(node.operator, Fixpoint) else ""
        inputs = tuple(i.id for i in node.inputs)
        boxes[node.id] = Box(number, what, None if source else tick_cost(node), kept, inputs, inside, view)
    return boxes


def tick_cost(node: Node) -> TickCost:
    """What a tick works on in a node of the circuit."""
    operator = node.operator
    if isinstance(operator, RecomputeGroups):
        return "everything in Spark" if operator.whole else "partitions in Spark"
    if isinstance(operator, ExternalFunction):
        return "changes in Spark"
    if isinstance(operator, GroupAggregate):
        if any(isinstance(a, Recompute) for a in operator.aggregates):
            return "partitions in Spark"
        if any(isinstance(a, GroupReadingAggregate) and not isinstance(a, First) for a in operator.aggregates):
            return "partitions"
    return "partitions" if isinstance(operator, Window) else "changes"


def _inside(fixpoint: Fixpoint, depth: int) -> Iterator[tuple[str | None, str]]:
    """The operators that are iterated; what they keep counts as the fixpoint's."""
    for line in fixpoint.graph.explain().splitlines():
        yield None, f"{'  ' * depth}| {line}"


def in_bytes(size: int) -> str:
    """A number of bytes for people."""
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    return f"{size / 1024**power:,.{1 if power else 0}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


__all__ = ["Explanation", "Size", "Sizes", "in_bytes", "render", "tick_cost"]
