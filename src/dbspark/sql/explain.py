"""What `explain` shows: how each part of a query is maintained, and the circuit with what its operators keep.

The circuit is a tree from the view down to the tables. An operator that stands in it twice is shown once and referred
to by its number. Sizes are those of the state as it is held: rows before they are consolidated, bytes in memory or
mapped from files.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dbspark.circuit.graph import Graph, Node
from dbspark.circuit.nested import Fixpoint


@dataclass(frozen=True, slots=True)
class Size:
    """Of what is kept under a name."""

    rows: int
    bytes: int

    def __add__(self, other: Size) -> Size:
        return Size(self.rows + other.rows, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{self.rows:,} row{'' if self.rows == 1 else 's'}, {in_bytes(self.bytes)}"


Sizes = Mapping[str, Size]
"""By the names under which state is kept: ids of nodes, `table orders`, `view revenue`."""


def render(
    name: str | None, graph: Graph, root: Node, columns: Sequence[str], notes: Sequence[Any], sizes: Sizes | None,
    views: Container[str] = (),
) -> str:  # fmt: skip
    """The text on a view of a graph, or, without a name, on a query that is not one; without sizes none are shown.

    `views` are the sources of the graph that are not tables.
    """
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
    others = {node.id: view for view, node in graph.outputs.items() if view != name}
    seen: dict[str, int] = {}
    pending = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        known = node.id in seen
        number = seen.setdefault(node.id, len(seen) + 1)
        what = node.label
        if node.role == "source":
            what = f"{'view' if node.name in views else 'table'} {node.name}"
        also = f" (view {others[node.id]})" if node.id in others else ""
        text = f"{'  ' * depth}#{number} {what}{also}"
        if known:
            yield None, f"{text} (above)"
            continue
        yield what if node.role == "source" else node.id, text
        if isinstance(node.operator, Fixpoint):
            yield from _inside(node.operator, depth + 1)
        pending += [(source, depth + 1) for source in reversed(node.inputs)]


def _inside(fixpoint: Fixpoint, depth: int) -> Iterator[tuple[str | None, str]]:
    """The operators that are iterated; what they keep counts as the fixpoint's."""
    for line in fixpoint.graph.explain().splitlines():
        yield None, f"{'  ' * depth}| {line}"


def in_bytes(size: int) -> str:
    """A number of bytes for people."""
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    return f"{size / 1024**power:,.{1 if power else 0}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


__all__ = ["Size", "Sizes", "in_bytes", "render"]
