"""Plots as SVG, written by hand: bars in groups on a logarithmic scale, which is all that the benchmarks need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

COLOURS: Final = ("#d1495b", "#30638e", "#edae49", "#00798c", "#8d6a9f", "#5b8c5a", "#9c6644", "#7d8597", "#2b2d42")
_LEFT, _TOP, _BOTTOM, _HEIGHT = 64, 64, 44, 220
_BAR, _GAP = 13, 16


def bars(title: str, groups: Mapping[str, Mapping[str, float]], series: Sequence[str], unit: str) -> str:
    """A group of bars for each key, in it a bar for each series that has a figure above zero."""
    found = [v for row in groups.values() for v in row.values() if v > 0 and math.isfinite(v)]
    if not found:
        return ""
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    low, high = (low - 1 if low == high else low), high
    group = _BAR * len(series) + _GAP
    legend = _legend(series)
    width = max(_LEFT + group * len(groups) + 16, 480, legend[1])
    height = _TOP + _HEIGHT + _BOTTOM

    def y(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return _TOP + _HEIGHT * (1 - min(max(share, 0.0), 1.0))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        *legend[0],
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        out.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{width - 12}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_number(10.0**power)}</text>')
    out.append(f'<text x="12" y="{_TOP - 8}">{escape(unit)}</text>')
    for i, (name, row) in enumerate(groups.items()):
        begin = _LEFT + _GAP / 2 + i * group
        for j, one in enumerate(series):
            value = row.get(one, 0.0)
            if not value > 0 or not math.isfinite(value):
                continue
            top = y(value)
            out.append(
                f'<rect x="{begin + j * _BAR:.1f}" y="{top:.1f}" width="{_BAR - 2}" '
                f'height="{max(_TOP + _HEIGHT - top, 1):.1f}" fill="{COLOURS[j % len(COLOURS)]}">'
                f"<title>{escape(f'{name}, {one}: {value:,.3g} {unit}')}</title></rect>"
            )
        middle = begin + _BAR * len(series) / 2
        for k, line in enumerate(name.split("\n")):
            at = _TOP + _HEIGHT + 16 + 13 * k
            out.append(f'<text x="{middle:.1f}" y="{at}" text-anchor="middle">{escape(line)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _legend(series: Sequence[str]) -> tuple[list[str], int]:
    out, x = [], 12
    for j, name in enumerate(series):
        out.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{COLOURS[j % len(COLOURS)]}"/>')
        out.append(f'<text x="{x + 14}" y="39">{escape(name)}</text>')
        x += 14 + 7 * len(name) + 14
    return out, x


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
