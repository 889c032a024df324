"""A circuit as an SVG picture: boxes in layers, tables above, the view below, changes flowing downwards.

A box says what an operator does, what a tick costs in it, and what it keeps. Colours are those of costs, and each cost
is written in the box as well. The picture needs nothing else: no style sheet, no script, no fonts, no dark or light
page. Everything that comes from a query is escaped.
"""

from __future__ import annotations

import html
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dbspark.sql.layered_layout import Point, lay_out

TickCost = Literal["changes", "partitions", "changes in Spark", "partitions in Spark", "everything in Spark"]
"""What a tick works on: the rows that changed, all rows of the partitions or groups that they touch, or everything."""

LINE_CHARACTERS: Final = 34
"""Characters of a line in a box; longer text is wrapped."""
MAX_LABEL_LINES: Final = 3
"""Lines of a label; the rest is in the tooltip of the box."""
CHARACTER_WIDTH: Final = 6.7
"""Pixels, in a monospaced font of `FONT_SIZE`."""
FONT_SIZE: Final = 11
LINE_HEIGHT: Final = 15.0
PADDING: Final = 9.0
LAYER_GAP: Final = 34.0
MARGIN: Final = 16.0

_FONT: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_COLOURS: Final[Mapping[str, tuple[str, str]]] = {
    "table": ("#e3effb", "#2f6fab"),
    "changes": ("#e9f6ec", "#3d8b52"),
    "partitions": ("#fdf3d8", "#b98500"),
    "changes in Spark": ("#fdf3d8", "#b98500"),
    "partitions in Spark": ("#fde6dc", "#c2551c"),
    "everything in Spark": ("#fbdcdf", "#b3263a"),
}
"""The colours of a box's fill and border, by cost."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node of the circuit."""

    number: int
    """As `explain` numbers it."""
    label: str
    cost: TickCost | None
    """None for a table, and for a view that is read."""
    kept: tuple[str, ...]
    """What it keeps, in lines of text; empty: nothing, or not known."""
    inputs: tuple[str, ...]
    details: str = ""
    """More lines for the tooltip."""
    view: str = ""
    """The view whose rows come out here."""


def circuit_svg(title: str, boxes: Mapping[str, Box]) -> str:
    """The picture of a circuit, by ids of its nodes."""
    texts = {name: _lines(box) for name, box in boxes.items()}
    sizes = {
        name: (
            max(len(line) for line, _ in lines) * CHARACTER_WIDTH + 2 * PADDING,
            len(lines) * LINE_HEIGHT + 2 * PADDING - 3,
        )
        for name, lines in texts.items()
    }
    layout = lay_out({name: box.inputs for name, box in boxes.items()}, sizes, LAYER_GAP)
    legend = list(dict.fromkeys(_style(box) for box in boxes.values()))
    legend_width = sum(len(_LEGEND[entry]) * CHARACTER_WIDTH + 40 for entry in legend)
    heading = LINE_HEIGHT + 12
    width = 2 * MARGIN + max(layout.width, legend_width, len(title) * CHARACTER_WIDTH * 1.2)
    left = (width - layout.width) / 2
    height = 2 * MARGIN + heading + layout.height + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="{_FONT}" font-size="{FONT_SIZE}">',
        f"<title>{html.escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{MARGIN:.0f}" y="{MARGIN + 12:.0f}" font-size="13" font-weight="bold" fill="#222222">'
        f"{html.escape(title)}</text>",
        f'<g transform="translate({left:.1f} {MARGIN + heading:.1f})">',
        *(_edge(points) for points in layout.paths.values()),
        *(_box(boxes[name], texts[name], layout.places[name], sizes[name]) for name in boxes),
        "</g>",
        _legend(legend, height - MARGIN - 4),
        "</svg>",
    ]
    return "\n".join(out) + "\n"


def _style(box: Box) -> str:
    return "table" if box.cost is None else box.cost


def _lines(box: Box) -> list[tuple[str, str]]:
    """The lines of a box, each with its style."""
    wrapped = textwrap.wrap(f"#{box.number} {box.label}", LINE_CHARACTERS, break_long_words=True) or [f"#{box.number}"]
    if len(wrapped) > MAX_LABEL_LINES:
        wrapped = wrapped[:MAX_LABEL_LINES]
        wrapped[-1] = wrapped[-1][: LINE_CHARACTERS - 2] + " …"
    lines = [(line, 'fill="#222222" font-weight="bold"') for line in wrapped]
    if box.view:
        lines.append((f"= view {box.view}", 'fill="#222222" font-weight="bold"'))
    if box.cost is not None:
        lines.append((f"cost: {box.cost}", f'fill="{_COLOURS[box.cost][1]}"'))
    return [*lines, *((line, 'fill="#555555"') for line in box.kept)]


def _box(box: Box, lines: Sequence[tuple[str, str]], place: Point, size: tuple[float, float]) -> str:
    fill, border = _COLOURS[_style(box)]
    (x, y), (width, height) = place, size
    tooltip = "\n".join(part for part in (f"#{box.number} {box.label}", box.details) if part)
    text = "".join(
        f'<text x="{x + PADDING:.1f}" y="{y + PADDING + LINE_HEIGHT * i + 10:.1f}" {style} xml:space="preserve">'
        f"{html.escape(line)}</text>"
        for i, (line, style) in enumerate(lines)
    )
    return (
        f'<g><title>{html.escape(tooltip)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{10 if box.cost is None else 3}" fill="{fill}" stroke="{border}" '
        f'stroke-width="{2.5 if box.view else 1.2}"/>{text}</g>'
    )


def _edge(points: Sequence[Point]) -> str:
    """A line that leaves and arrives vertically, with an arrow at its end."""
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (y0 + y1) / 2
        if abs(x0 - x1) < 0.5:
            path += f" L{x1:.1f} {y1:.1f}"
        else:
            path += f" C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    x, y = points[-1]
    return (
        f'<path d="{path}" fill="none" stroke="#8a94a0" stroke-width="1.3"/>'
        f'<path d="M{x - 4:.1f} {y - 7:.1f} L{x:.1f} {y:.1f} L{x + 4:.1f} {y - 7:.1f} Z" fill="#8a94a0"/>'
    )


_LEGEND: Final[Mapping[str, str]] = {
    "table": "table, or view that is read",
    "changes": "cost: rows that changed",
    "partitions": "partitions they are in",
    "changes in Spark": "rows that changed, in Spark",
    "partitions in Spark": "partitions, in Spark",
    "everything in Spark": "everything, in Spark",
}


def _legend(entries: Sequence[str], y: float) -> str:
    out, x = [], MARGIN
    for entry in entries:
        fill, border = _COLOURS[entry]
        out.append(
            f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="14" height="11" rx="2" fill="{fill}" stroke="{border}"/>'
            f'<text x="{x + 20:.1f}" y="{y:.1f}" fill="#555555">{html.escape(_LEGEND[entry])}</text>'
        )
        x += len(_LEGEND[entry]) * CHARACTER_WIDTH + 40
    return "".join(out)


__all__ = ["Box", "TickCost", "circuit_svg"]
