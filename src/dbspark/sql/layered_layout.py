"""Places for the boxes of a graph without cycles: layers from top to bottom, edges downwards (Sugiyama's method).

1. *Layers.* A box is one layer above the lowest box that reads it; so a table stands right above what reads it, and
   edges are short. An edge over several layers gets a waypoint in each layer between.
2. *Order inside a layer.* Starting from the order in which boxes are given, layers are sorted by the mean position of
   their neighbours, downwards and upwards in turn. Where edges still cross, the same is tried from shuffled orders;
   of all orders seen the one with the fewest crossings is kept.
3. *Positions.* Each layer is packed in its order; then every box is moved towards the mean of its neighbours, as far as
   its own neighbours in the layer allow.

Cost: `ATTEMPTS` by `SWEEPS` times the square of the edges between two layers: milliseconds for what fits on a screen.
The result depends on nothing but the arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

SWEEPS: Final = 8
"""Passes over the layers that order them, and as many that move boxes; they rarely change anything after five."""
ATTEMPTS: Final = 12
"""Orders to begin with, the given one and shuffled ones. Beyond that pictures of TPC-H's queries get no better."""
GAP: Final = 26.0
"""Pixels between two boxes of a layer."""
WAYPOINT_WIDTH: Final = 8.0
"""Pixels that an edge takes where it passes a layer."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is, in pixels from the upper left corner."""

    places: Mapping[str, Point]
    """The upper left corner of each box."""
    paths: Mapping[tuple[str, str], Sequence[Point]]
    """The points of each edge, from the lower side of a box to the upper side of the one that reads it."""
    width: float
    height: float


def lay_out(inputs: Mapping[str, Sequence[str]], sizes: Mapping[str, tuple[float, float]], layer_gap: float) -> Layout:
    """Place boxes, given their inputs and sizes. Every input has to be a box, and there may be no cycle."""
    layer_of = _layers(inputs)
    layers: list[list[str]] = [[] for _ in range(1 + max(layer_of.values(), default=-1))]
    widths = {name: sizes[name][0] for name in inputs}
    above: dict[str, list[str]] = {}
    chains: dict[tuple[str, str], list[str]] = {}
    for name, sources in inputs.items():
        layers[layer_of[name]].append(name)
        above.setdefault(name, [])
        for source in dict.fromkeys(sources):
            chain = [source]
            for layer in range(layer_of[source] + 1, layer_of[name]):
                point = f"{source}\0{name}\0{layer}"
                layers[layer].append(point)
                widths[point] = WAYPOINT_WIDTH
                above[point] = [chain[-1]]
                chain.append(point)
            above[name].append(chain[-1])
            chains[source, name] = [*chain, name]
    below: dict[str, list[str]] = {name: [] for name in widths}
    for name, sources in above.items():
        for source in sources:
            below[source].append(name)
    layers = _ordered(layers, above, below)
    centres = _positions(layers, widths, above, below)
    return _layout(layers, centres, widths, sizes, chains, layer_gap)


def _layers(inputs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The layer of each box, 0 for the highest."""
    readers: dict[str, list[str]] = {name: [] for name in inputs}
    for name, sources in inputs.items():
        for source in sources:
            readers[source].append(name)
    height: dict[str, int] = {}  # layers below
    pending = list(inputs)
    while pending:  # an explicit stack: a circuit may be deeper than Python's recursion limit
        name = pending[-1]
        missing = [reader for reader in readers[name] if reader not in height]
        if missing:
            pending += missing
            continue
        height[name] = 1 + max((height[reader] for reader in readers[name]), default=-1)
        pending.pop()
    highest = max(height.values(), default=0)
    return {name: highest - h for name, h in height.items()}


def _ordered(
    layers: list[list[str]], above: Mapping[str, Sequence[str]], below: Mapping[str, Sequence[str]]
) -> list[list[str]]:
    best, fewest = layers, _crossings(layers, above)
    random = Random(0)  # the same picture every time
    for attempt in range(ATTEMPTS):
        layers = [list(layer) if attempt == 0 else random.sample(layer, len(layer)) for layer in best]
        for sweep in range(SWEEPS):
            if fewest == 0:
                return best
            layers = _swept(layers, above if sweep % 2 == 0 else below, sweep % 2 == 0)
            crossings = _crossings(layers, above)
            if crossings < fewest:
                best, fewest = layers, crossings
    return best


def _swept(layers: Sequence[Sequence[str]], neighbours: Mapping[str, Sequence[str]], down: bool) -> list[list[str]]:
    """Every layer in the order of the mean positions of its neighbours in the layer before; equal ones stay."""
    out: list[list[str]] = []
    for layer in layers if down else reversed(layers):
        fixed = {name: at for at, name in enumerate(out[-1] if out else ())}
        means = {name: _mean([fixed[n] for n in neighbours[name]] if out else [], at) for at, name in enumerate(layer)}
        out.append(sorted(layer, key=means.__getitem__))
    return out if down else out[::-1]


def _crossings(layers: Sequence[Sequence[str]], above: Mapping[str, Sequence[str]]) -> int:
    total = 0
    for upper, lower in itertools.pairwise(layers):
        at = {name: i for i, name in enumerate(upper)}
        ends = [(at[source], i) for i, name in enumerate(lower) for source in above[name]]
        total += sum((a < c and b > d) or (a > c and b < d) for k, (a, b) in enumerate(ends) for c, d in ends[:k])
    return total


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _positions(
    layers: Sequence[Sequence[str]], widths: Mapping[str, float], above: Mapping[str, Sequence[str]],
    below: Mapping[str, Sequence[str]],
) -> dict[str, float]:  # fmt: skip
    """The middle of each box and waypoint."""
    centres: dict[str, float] = {}
    for layer in layers:
        left = 0.0
        for name in layer:
            centres[name] = left + widths[name] / 2
            left += widths[name] + GAP
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            neighbours = above if down else below
            wanted = [_mean([centres[m] for m in neighbours[name]], centres[name]) for name in layer]
            centres.update(_apart(layer, wanted, widths))
    return centres


def _apart(layer: Sequence[str], wanted: Sequence[float], widths: Mapping[str, float]) -> dict[str, float]:
    """Positions as near to those that are wanted as the widths allow: boxes that would overlap become one block, which
    stands at the mean of where its boxes want it."""
    blocks: list[tuple[float, int, list[tuple[str, float]]]] = []  # where it begins, boxes, their offsets
    for name, middle in zip(layer, wanted, strict=True):
        block = (middle - widths[name] / 2, 1, [(name, 0.0)])
        while blocks and _end(blocks[-1], widths) + GAP > block[0]:
            start, count, boxes = blocks.pop()
            shift = _end((start, count, boxes), widths) + GAP - start
            own_start, own_count, own_boxes = block
            merged = (start * count + (own_start - shift) * own_count) / (count + own_count)
            block = (merged, count + own_count, [*boxes, *((n, shift + at) for n, at in own_boxes)])
        blocks.append(block)
    return {name: start + at + widths[name] / 2 for start, _, boxes in blocks for name, at in boxes}


def _end(block: tuple[float, int, list[tuple[str, float]]], widths: Mapping[str, float]) -> float:
    start, _, boxes = block
    last, at = boxes[-1]
    return start + at + widths[last]


def _layout(
    layers: Sequence[Sequence[str]], centres: Mapping[str, float], widths: Mapping[str, float],
    sizes: Mapping[str, tuple[float, float]], chains: Mapping[tuple[str, str], Sequence[str]], layer_gap: float,
) -> Layout:  # fmt: skip
    left = min((centres[n] - widths[n] / 2 for n in centres), default=0.0)
    right = max((centres[n] + widths[n] / 2 for n in centres), default=0.0)
    tops: list[float] = []
    heights = [max(sizes[n][1] for n in layer if n in sizes) for layer in layers]  # every layer has a box
    top = 0.0
    for height in heights:
        tops.append(top)
        top += height + layer_gap
    layer_at = {name: i for i, layer in enumerate(layers) for name in layer}
    places = {
        n: (centres[n] - widths[n] / 2 - left, tops[layer_at[n]] + (heights[layer_at[n]] - sizes[n][1]) / 2)
        for n in sizes
    }
    paths: dict[tuple[str, str], list[Point]] = {}
    for (source, reader), chain in chains.items():
        points = [(centres[source] - left, places[source][1] + sizes[source][1])]
        for name in chain[1:-1]:
            at = layer_at[name]
            points += [(centres[name] - left, tops[at]), (centres[name] - left, tops[at] + heights[at])]
        paths[source, reader] = [*points, (centres[reader] - left, places[reader][1])]
    return Layout(places, paths, right - left, max(top - layer_gap, 0.0))


__all__ = ["Layout", "Point", "lay_out"]
