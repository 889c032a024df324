"""Pictures of graphs: boxes do not overlap, edges go down from box to box, and few of them cross."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from dbspark.sql.layered_layout import GAP, lay_out

LAYER_GAP = 30.0


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Graphs without cycles: a box may read those after it."""
    count = draw(st.integers(1, 14))
    names = [f"n{i}" for i in range(count)]
    return {
        name: draw(st.lists(st.sampled_from(names[i + 1 :]), max_size=3)) if i + 1 < count else []
        for i, name in enumerate(names)
    }


@given(inputs=graphs(), data=st.data())
def test_boxes_and_edges(inputs: dict[str, list[str]], data: st.DataObject) -> None:
    sizes = {n: (float(data.draw(st.integers(20, 200))), float(data.draw(st.integers(20, 60)))) for n in inputs}
    layout = lay_out(inputs, sizes, LAYER_GAP)
    assert layout == lay_out(inputs, sizes, LAYER_GAP)
    for name, (x, y) in layout.places.items():
        assert x >= -1e-6
        assert y >= -1e-6
        assert x + sizes[name][0] <= layout.width + 1e-6
        assert y + sizes[name][1] <= layout.height + 1e-6
    for a, b in combinations(inputs, 2):
        (ax, ay), (bx, by) = layout.places[a], layout.places[b]
        apart = ax + sizes[a][0] + GAP <= bx + 1e-6 or bx + sizes[b][0] + GAP <= ax + 1e-6
        assert apart or ay + sizes[a][1] < by or by + sizes[b][1] < ay
    assert set(layout.paths) == {(source, name) for name, sources in inputs.items() for source in sources}
    for (source, reader), points in layout.paths.items():
        (x, y), (width, height) = layout.places[source], sizes[source]
        assert points[0] == (x + width / 2, y + height) or abs(points[0][0] - x - width / 2) < 1e-6
        assert abs(points[-1][1] - layout.places[reader][1]) < 1e-6
        assert all(above[1] < below[1] for above, below in pairwise(points))


def test_edges_over_several_layers_do_not_cross_where_they_need_not() -> None:
    """A box that is read at once and far below: both orders of its waypoints look equally good to the means."""
    inputs = {
        "union": ["project", "distinct"], "project": ["join"], "join": ["left", "right"], "left": ["sum"],
        "right": ["distinct"], "sum": ["orders"], "distinct": ["customers"], "orders": [], "customers": [],
    }  # fmt: skip
    layout = lay_out(inputs, dict.fromkeys(inputs, (100.0, 40.0)), LAYER_GAP)
    left, right, passing = (layout.places[n][0] for n in ("left", "right", "distinct"))
    waypoint = layout.paths["distinct", "union"][1][0]
    assert (waypoint < left) == (waypoint < right)  # on one side of both
    assert (waypoint < left) == (right < left)  # the side of what it belongs to
    assert passing >= 0


def test_nothing_is_an_empty_picture() -> None:
    layout = lay_out({}, {}, LAYER_GAP)
    assert (layout.width, layout.height) == (0.0, 0.0)


def test_deep_graphs() -> None:
    inputs = {str(i): [str(i + 1)] if i < 2000 else [] for i in range(2001)}
    assert lay_out(inputs, dict.fromkeys(inputs, (10.0, 10.0)), 0.0).height == 2001 * 10.0
