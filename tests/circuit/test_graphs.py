"""Recursion on graphs whose edges come and go, against networkx; and fixpoints inside fixpoints."""

import networkx as nx
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.errors import CircuitError

EDGES = "src BIGINT, dst BIGINT"
WEIGHTED = "src BIGINT, dst BIGINT, weight BIGINT"
LABELS = "node BIGINT, label BIGINT"
NODES = st.integers(0, 8)
TICKS = st.lists(st.lists(st.tuples(NODES, NODES), min_size=1, max_size=5, unique=True), min_size=2, max_size=7)
WEIGHTS = st.integers(1, 6)
HEAVY = st.lists(st.dictionaries(st.tuples(NODES, NODES), WEIGHTS, min_size=1, max_size=5), min_size=2, max_size=7)


class Kept:
    """A circuit over edges, its outputs added up, and the graph that networkx is asked about."""

    def __init__(self, build, schema=EDGES):
        b = Builder()
        for name, stream in build(b, b.source("edges", schema)).items():
            b.output(name, stream)
        self.circuit = b.circuit()
        self.edges = set()
        self.values = {}

    def toggle(self, rows):
        """A tick that deletes the edges that are there and inserts those that are not."""
        self.tick({row: -1 if row in self.edges else 1 for row in rows})

    def tick(self, change):
        for row, weight in change.items():
            (self.edges.add if weight > 0 else self.edges.remove)(row)
        for name, more in self.circuit.tick({"edges": change}).items():
            self.values[name] = self.values[name] + more if name in self.values else more

    def graph(self):
        graph = nx.DiGraph()
        for a, b, *weight in self.edges:
            graph.add_edge(a, b, weight=weight[0] if weight else 1)
        return graph

    def rows(self, name):
        found = dict(self.values[name])
        assert set(found.values()) <= {1}, "a row is there more than once"
        return set(found)

    def retract(self):
        """Take back all edges; nothing may be left anywhere."""
        self.tick(dict.fromkeys(self.edges, -1))
        assert not any(self.values.values())
        assert not any(self.circuit.state_rows().values()), self.circuit.state_rows()


# ---------------------------------------------------------------------------------------------------- bodies


def further(s, reach, edges):
    return s.join(reach, edges, [("dst", "src")], select=[(0, "src"), (1, "dst")], names=["src", "dst"])


def linear(s, reach, edges):
    return s.distinct(s.union(edges, further(s, reach, edges)))


def squaring(s, reach, edges):
    return s.distinct(s.union(edges, further(s, reach, reach)))


def odd_and_even(s, odd, even, edges):
    return [s.distinct(s.union(edges, further(s, even, edges))), s.distinct(further(s, odd, edges))]


def all_pairs(s, paths, edges):
    longer = s.map(
        s.join(paths, edges, [("dst", "src")]), lambda c: [c[0], c[4], pc.add(c[2], c[5])], WEIGHTED
    )  # fmt: skip
    return s.aggregate(s.union(edges, longer), ["src", "dst"], weight=("min", "weight"))


def from_zero(s, found, edges):
    first = s.map(s.filter(edges, lambda c: pc.equal(c[0], 0)), lambda c: [c[1], c[2]], LABELS)
    longer = s.map(s.join(found, edges, [("node", "src")]), lambda c: [c[3], pc.add(c[1], c[4])], LABELS)
    return s.aggregate(s.union(first, longer), ["node"], label=("min", "label"))


def ends(s, edges):
    """Every node of an edge, labelled by itself."""
    return s.union(*(s.project(edges, [c, c], ["node", "label"]) for c in ("src", "dst")))


def least_label(s, labels, edges):
    """The least node from which a node can be reached."""
    onward = s.join(labels, edges, [("node", "src")], select=[(1, "dst"), (0, "label")], names=["node", "label"])
    return s.aggregate(s.union(ends(s, edges), onward), ["node"], label=("min", "label"))


def trimmed(s, edges):
    """The edges whose ends have the same least label, turned around."""
    (labels,) = s.fixpoint({"labels": LABELS}, [edges], least_label)
    one = s.join(edges, labels, [("src", "node")], select=[(0, "src"), (0, "dst"), (1, "label")])
    both = s.join(one, labels, [("dst", "node")], select=[(0, "src"), (0, "dst"), (0, "label"), (1, "label")])
    same = s.filter(both, lambda c: pc.equal(c[2], c[3]))
    return s.project(same, ["dst", "src"], ["src", "dst"])


def cut(s, gone, edges):
    """The edges found not to be on a cycle, by trimming what is left of the graph, forwards and backwards."""
    return s.difference(edges, trimmed(s, trimmed(s, s.difference(edges, gone))))


def components(b, edges):
    (gone,) = b.fixpoint({"gone": EDGES}, [edges], cut, limit=100)
    within = b.difference(edges, gone)
    return {"within": within, "component": b.fixpoint({"component": LABELS}, [within], least_label)[0]}


# ---------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("body", [linear, squaring])
@given(ticks=TICKS)
def test_reachability(body, ticks):
    kept = Kept(lambda b, edges: {"reach": b.fixpoint({"reach": EDGES}, [edges], body)[0]})
    for tick in ticks:
        kept.toggle(tick)
        assert kept.rows("reach") == set(nx.transitive_closure(kept.graph(), reflexive=False).edges)
    kept.retract()


@given(ticks=TICKS)
def test_walks_of_odd_and_of_even_length(ticks):
    def build(b, edges):
        return dict(zip(("odd", "even"), b.fixpoint({"odd": EDGES, "even": EDGES}, [edges], odd_and_even), strict=True))

    kept = Kept(build)
    for tick in ticks:
        kept.toggle(tick)
        twice = nx.DiGraph()  # a node for each parity of the walk that leads to it
        twice.add_edges_from(((a, p), (b, 1 - p)) for a, b in kept.edges for p in (0, 1))
        reach = nx.transitive_closure(twice, reflexive=False).edges
        assert kept.rows("odd") == {(a, b) for (a, p), (b, q) in reach if (p, q) == (0, 1)}
        assert kept.rows("even") == {(a, b) for (a, p), (b, q) in reach if (p, q) == (0, 0)}
    kept.retract()


@given(ticks=HEAVY)
def test_shortest_paths(ticks):
    def build(b, edges):
        return {
            "all": b.fixpoint({"paths": WEIGHTED}, [edges], all_pairs)[0],
            "one": b.fixpoint({"found": LABELS}, [edges], from_zero)[0],
        }

    kept, there = Kept(build, WEIGHTED), {}
    for tick in ticks:
        change = {}
        for edge, weight in tick.items():  # an edge that is there gets another weight, or goes if it is the same
            before = there.pop(edge, None)
            if before is not None:
                change[*edge, before] = -1
            if before != weight:
                there[edge] = weight
                change[*edge, weight] = 1
        kept.tick(change)
        graph = kept.graph()
        lengths = {(a, b): n for a, to in nx.all_pairs_dijkstra_path_length(graph) for b, n in to.items() if a != b}
        for a in graph:  # networkx says that a node is at distance 0 of itself; here it takes a cycle
            back = [lengths[b, a] + w for _, b, w in graph.out_edges(a, "weight") if (b, a) in lengths]
            back += [w for _, b, w in graph.out_edges(a, "weight") if a == b]
            if back:
                lengths[a, a] = min(back)
        assert kept.rows("all") == {(a, b, n) for (a, b), n in lengths.items()}
        assert kept.rows("one") == {(b, n) for (a, b), n in lengths.items() if a == 0}
    kept.retract()


@given(ticks=TICKS)
def test_strongly_connected_components_by_mutual_reachability(ticks):
    def build(b, edges):
        (reach,) = b.fixpoint({"reach": EDGES}, [edges], linear)
        back = b.project(reach, ["dst", "src"], ["a", "b"])
        mutual = b.join(reach, back, [("src", "a"), ("dst", "b")], select=[(0, "src"), (0, "dst")])
        return {"component": b.aggregate(b.union(ends(b, mutual), b.project(mutual, ["src", "dst"], ["node", "label"])),
                                         ["node"], label=("min", "label"))}  # fmt: skip

    kept = Kept(build)
    for tick in ticks:
        kept.toggle(tick)
        on_cycles = [c for c in nx.strongly_connected_components(kept.graph()) if len(c) > 1 or _loops(kept, c)]
        assert kept.rows("component") == {(n, min(c)) for c in on_cycles for n in c}
    kept.retract()


def _loops(kept, component):
    (node,) = component
    return (node, node) in kept.edges


@settings(max_examples=15)
@given(ticks=TICKS)
def test_strongly_connected_components_by_fixpoints_inside_a_fixpoint(ticks):
    kept = Kept(components)
    for tick in ticks:
        kept.toggle(tick)
        least = {n: min(c) for c in nx.strongly_connected_components(kept.graph()) for n in c}
        within = {(a, b) for a, b in kept.edges if least[a] == least[b]}
        assert kept.rows("within") == within
        assert kept.rows("component") == {(n, least[n]) for edge in within for n in edge}
    kept.retract()


def test_components_of_a_long_ring_fall_apart_and_come_together():
    kept = Kept(components)
    ring = {(i, (i + 1) % 30): 1 for i in range(30)}
    kept.tick({**ring, (40, 41): 1, (41, 42): 1, (3, 40): 1})
    assert kept.rows("component") == {(i, 0) for i in range(30)}
    kept.tick({(11, 12): -1})
    assert not kept.rows("within")
    kept.tick({(11, 2): 1, (42, 3): 1})
    assert kept.rows("component") == {(i, 2) for i in [*range(2, 12), 40, 41, 42]}
    kept.tick({(11, 12): 1})
    assert kept.rows("component") == {(i, 0) for i in [*range(30), 40, 41, 42]}
    kept.retract()


# Three levels: the innermost closes a graph; each of the others adds edges that it derives from the one within.


def back_edges(s, graph):
    return s.map(s.filter(graph, lambda c: pc.equal(pc.bit_wise_and(pc.add(c[0], c[1]), 3), 0)),
                 lambda c: [c[1], c[0]], EDGES)  # fmt: skip


def shifted(s, graph):
    return s.map(s.filter(graph, lambda c: pc.equal(c[0], 5)), lambda c: [pc.subtract(c[1], 3), c[1]], EDGES)


def middle(s, known, edges):
    (reach,) = s.fixpoint({"reach": EDGES}, [s.distinct(s.union(known, edges))], squaring)
    return s.distinct(s.union(edges, back_edges(s, reach)))


def outer(s, known, edges):
    (found,) = s.fixpoint({"known": EDGES}, [s.distinct(s.union(known, edges))], middle)
    return s.distinct(s.union(edges, shifted(s, found)))


def model(edges, derive):
    known = set()
    while (more := edges | derive(known | edges)) != known:
        known = more
    return known


def model_middle(edges):
    def derive(graph):
        reach = nx.transitive_closure(nx.DiGraph(list(graph)), reflexive=False).edges
        return {(b, a) for a, b in reach if (a + b) & 3 == 0}

    return model(edges, derive)


def model_outer(edges):
    return model(edges, lambda graph: {(b - 3, b) for a, b in model_middle(graph) if a == 5})


@settings(max_examples=25)
@given(ticks=TICKS)
def test_three_fixpoints_inside_each_other(ticks):
    kept = Kept(lambda b, edges: {"found": b.fixpoint({"outer": EDGES}, [edges], outer, limit=100)[0]})
    for tick in ticks:
        kept.toggle(tick)
        assert kept.rows("found") == model_outer(kept.edges)
    kept.retract()


def test_a_fourth_level_is_refused_when_the_graph_is_built():
    def fourth(s, known, edges):
        return s.distinct(s.union(edges, s.fixpoint({"third": EDGES}, [edges], outer)[0]))

    b = Builder()
    with pytest.raises(CircuitError, match="up to 3 deep, and 'fixpoint of fourth' is 4 deep"):
        b.fixpoint({"fourth": EDGES}, [b.source("edges", EDGES)], fourth)


def test_an_aggregate_without_key_is_refused_inside_a_fixpoint():
    def body(s, total, edges):
        return s.aggregate(edges, [], n=("count", None))

    b = Builder()
    with pytest.raises(CircuitError, match="cannot stand inside a fixpoint; give it a key"):
        b.fixpoint({"total": "n BIGINT"}, [b.source("edges", EDGES)], body)


@pytest.mark.parametrize("level", ["inner", "outer"])
def test_an_endless_recursion_on_either_level_is_stopped_and_has_not_happened(level):
    def count(s, numbers, start):
        more = s.map(numbers, lambda c: [pc.add(c[0], 1)], "n BIGINT")
        below = s.filter(more, lambda c: pc.less(c[0], 20))
        return s.distinct(s.union(start, more if level == "inner" else below))

    def again(s, seen, start):
        start = s.distinct(s.union(start, s.map(seen, lambda c: [pc.subtract(c[0], 1)], "n BIGINT")))
        return s.distinct(s.fixpoint({"inner": "n BIGINT"}, [start], count, limit=60)[0])

    b = Builder()
    start = b.source("start", "n BIGINT")
    b.output("numbers", b.fixpoint({"outer": "n BIGINT"}, [start], again, limit=25)[0])
    circuit = b.circuit()
    limit = {"inner": 60, "outer": 25}[level]
    with pytest.raises(CircuitError, match=f"the recursion of {level} has not ended after {limit} iterations"):
        circuit.tick({"start": [(0,)]})
    assert circuit.tick_number == 0
    assert not any(circuit.state_rows().values())
