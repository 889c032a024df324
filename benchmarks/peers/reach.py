"""W2: which nodes can be reached from which, in a graph whose edges come and go, as cases.

Three graphs, drawn at random without loops and double edges: `closure` is sparse, and all pairs are wanted; `few` and
`many` are dense, and the pairs of 10 and of 100 sources are wanted. A tick deletes and inserts the same number of
edges; a single change is a deletion and an insertion in turn. Pairs are compared after the load, half way and at the
end, with what a search from every source finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
import pyarrow as pa

from benchmarks.peers.case import Case, Source, with_tick, write_arrow

_SEED: Final = 2


@dataclass(frozen=True, slots=True)
class Graph:
    """A kind of graph; `sources` is None where all pairs are wanted."""

    nodes: int
    edges: int
    sources: int | None


GRAPHS: Final = {
    "closure": Graph(20_000, 18_000, None),
    "few": Graph(20_000, 40_000, 10),
    "many": Graph(20_000, 40_000, 100),
}
SMALL: Final = {"closure": Graph(2_000, 1_800, None), "few": Graph(2_000, 4_000, 4)}


def cases(folder: Path, graphs: Mapping[str, Graph], ticks: Mapping[int, int]) -> list[Case]:
    """For each graph, and each number of changes a tick: so many ticks."""
    return [
        _case(folder / f"w2-{name}-{changes}", name, graph, changes, count)
        for name, graph in graphs.items()
        for changes, count in ticks.items()
    ]


def _case(folder: Path, name: str, graph: Graph, changes: int, count: int) -> Case:
    rng = np.random.default_rng([_SEED, graph.nodes, changes])
    held = _fresh(rng, graph.nodes, graph.edges, np.empty(0, np.int64))
    sources = None if graph.sources is None else np.sort(rng.choice(graph.nodes, graph.sources, replace=False))
    searched = np.arange(graph.nodes) if sources is None else sources
    checked = sorted({0, count // 2, count})
    steps, views = [(held, held[:0])], []
    for tick in range(count + 1):
        if tick:
            gone = held[rng.choice(len(held), (tick % 2 if changes == 1 else changes // 2), replace=False)]
            new = _fresh(rng, graph.nodes, changes - len(gone), held)
            held = np.concatenate([np.setdiff1d(held, gone), new])
            steps.append((new, gone))
        if tick in checked:
            pairs = reachable(graph.nodes, held // graph.nodes, held % graph.nodes, searched)
            views.append(with_tick(pa.table({"src": pairs[:, 0], "dst": pairs[:, 1]}), tick))
    keys = np.concatenate([np.concatenate([gone, new]) for new, gone in steps])
    weights = np.concatenate([np.repeat([-1, 1], [len(gone), len(new)]) for new, gone in steps])
    cuts = [0, *np.cumsum([len(gone) + len(new) for new, gone in steps]).tolist()]
    seed = "edges" if sources is None else "edges JOIN sources USING (src)"
    case = Case(
        "w2", name,
        f"SELECT src, dst FROM {seed} UNION SELECT r.src, e.dst FROM {name} r JOIN edges e ON r.dst = e.src",
        {"edges": Source("edges.arrow", "src BIGINT, dst BIGINT", cuts, weighted=True, keys=["src", "dst"])},
        {"changes": changes}, checked, recursive="src BIGINT, dst BIGINT", static=["sources"], folder=folder,
    )  # fmt: skip
    edges = {"src": keys // graph.nodes, "dst": keys % graph.nodes, "w": weights}
    write_arrow(folder / "edges.arrow", pa.table(edges))
    if sources is not None:
        write_arrow(folder / "sources.arrow", pa.table({"src": sources}))
        rows = len(sources)
        case.tables["sources"] = Source("sources.arrow", "src BIGINT", [0, *(rows for _ in cuts[1:])])
    case.save()
    write_arrow(folder / "expected.arrow", pa.concat_tables(views))
    return case


def _fresh(rng: np.random.Generator, nodes: int, count: int, held: np.ndarray) -> np.ndarray:
    """So many edges that are not there yet, as src * nodes + dst."""
    new = np.empty(0, np.int64)
    while len(new) < count:
        drawn = rng.integers(0, nodes, (2 * (count - len(new)) + 8, 2))
        keys = drawn[drawn[:, 0] != drawn[:, 1]] @ np.array([nodes, 1])
        new = np.unique(np.concatenate([new, np.setdiff1d(keys, held)]))
        new = rng.permutation(new)[:count]
    return new


def reachable(nodes: int, src: np.ndarray, dst: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """The pairs (source, node) with a path of one edge or more, by a search from every source."""
    order = np.argsort(src, kind="stable")
    starts = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(src, minlength=nodes), out=starts[1:])
    found: np.ndarray = _search(nodes, starts, dst[order], sources)
    return found


@numba.njit
def _search(nodes: Any, starts: Any, ends: Any, sources: Any) -> Any:
    seen = np.full(nodes, -1, np.int64)
    queue = np.empty(nodes, np.int64)
    out, count = np.empty((1024, 2), np.int64), 0
    for i in range(len(sources)):
        at, last, node = -1, 0, sources[i]
        while at < last:
            if at >= 0:
                node = queue[at]
            at += 1
            for k in range(starts[node], starts[node + 1]):
                if seen[ends[k]] != i:
                    seen[ends[k]] = i
                    queue[last] = ends[k]
                    last += 1
        while count + last > len(out):
            out = np.concatenate((out, np.empty_like(out)))
        out[count : count + last, 0] = sources[i]
        out[count : count + last, 1] = queue[:last]
        count += last
    return out[:count]
