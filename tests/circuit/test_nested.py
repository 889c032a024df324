"""Fixpoints: after every tick a recursion holds what it would hold if it were computed from nothing."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar import Batch, SortKey
from dbspark.errors import CircuitError
from dbspark.operators.constant import Constant

EDGES = "src BIGINT, dst BIGINT"
NODES = st.integers(0, 7)
TICKS = st.lists(st.lists(st.tuples(NODES, NODES), min_size=1, max_size=4, unique=True), min_size=1, max_size=8)
WEIGHTED = st.lists(
    st.lists(st.tuples(NODES, NODES, st.integers(1, 5)), min_size=1, max_size=4, unique=True), min_size=1, max_size=8
)


def further(s, reach, edges):
    return s.join(reach, edges, [("dst", "src")], select=[(0, "src"), (1, "dst")], names=["src", "dst"])


def linear(s, reach, edges):
    return s.distinct(s.union(edges, further(s, reach, edges)))


def squaring(s, reach, edges):
    return s.distinct(s.union(edges, further(s, reach, reach)))


def odd_and_even(s, odd, even, edges):
    return [s.distinct(s.union(edges, further(s, even, edges))), s.distinct(further(s, odd, edges))]


def shortest(s, found, edges, start):
    step = s.map(
        s.join(found, edges, [("node", "src")]),
        lambda c: [c[-2], pc.add(c[1], c[-1])],
        "node BIGINT, distance BIGINT",
    )
    return s.aggregate(s.union(start, step), ["node"], distance=("min", "distance"))


def toggled(rows, tick):
    """A tick deletes the edges that are there and inserts those that are not."""
    change = {row: -1 if row in rows else 1 for row in tick}
    rows ^= set(tick)
    return change


def closure(edges):
    reach = set(edges)
    while True:
        more = reach | {(a, d) for a, b in reach for c, d in edges if b == c}
        if more == reach:
            return reach
        reach = more


def walks(edges):
    """Pairs joined by a walk of odd length, and by one of even length above zero."""
    odd, even = set(), set()
    while True:
        more = edges | {(a, d) for a, b in even for c, d in edges if b == c}
        rest = {(a, d) for a, b in odd for c, d in edges if b == c}
        if (odd | more, even | rest) == (odd, even):
            return odd, even
        odd, even = odd | more, even | rest


def distances(edges, start):
    found = {start: 0}
    for _ in range(len(edges) + 1):
        for a, b, w in edges:
            if a in found and found[a] + w < found.get(b, 1 << 60):
                found[b] = found[a] + w
    return set(found.items())


def components(edges):
    """The least node of the strongly connected component of every node on a cycle."""
    reach = closure(edges)
    return {(a, min(b for c, b in reach if c == a and (b, a) in reach)) for a, b in reach if (b, a) in reach}


class Kept:
    """What the outputs of a circuit add up to."""

    def __init__(self, circuit):
        self.circuit = circuit
        self.values = {}

    def tick(self, inputs):
        for name, change in self.circuit.tick(inputs).items():
            self.values[name] = self.values[name] + change if name in self.values else change

    def rows(self, name):
        found = dict(self.values[name])
        assert set(found.values()) <= {1}, "a row is there more than once"
        return set(found)

    def check_empty(self):
        assert not any(self.values.values())
        assert not any(self.circuit.state_rows().values()), self.circuit.state_rows()


@pytest.mark.parametrize("body", [linear, squaring])
@given(ticks=TICKS)
def test_a_transitive_closure_follows_its_edges(body, ticks):
    b = Builder()
    edges = b.source("edges", EDGES)
    b.output("reach", b.fixpoint({"reach": EDGES}, [edges], body)[0])
    kept, there = Kept(b.circuit()), set()
    for tick in ticks:
        kept.tick({"edges": toggled(there, tick)})
        assert kept.rows("reach") == closure(there)
    kept.tick({"edges": dict.fromkeys(there, -1)})
    kept.check_empty()


@given(ticks=TICKS)
def test_variables_that_depend_on_each_other_are_iterated_together(ticks):
    b = Builder()
    edges = b.source("edges", EDGES)
    odd, even = b.fixpoint({"odd": EDGES, "even": EDGES}, [edges], odd_and_even)
    b.output("odd", odd)
    b.output("even", even)
    kept, there = Kept(b.circuit()), set()
    for tick in ticks:
        kept.tick({"edges": toggled(there, tick)})
        assert (kept.rows("odd"), kept.rows("even")) == walks(there)
    kept.tick({"edges": dict.fromkeys(there, -1)})
    kept.check_empty()


@given(ticks=WEIGHTED)
def test_shortest_paths_follow_insertions_and_deletions(ticks):
    b = Builder()
    edges = b.source("edges", "src BIGINT, dst BIGINT, weight BIGINT")
    start = b.source("start", "node BIGINT, distance BIGINT")
    b.output("found", b.fixpoint({"found": "node BIGINT, distance BIGINT"}, [edges, start], shortest)[0])
    kept, there = Kept(b.circuit()), set()
    kept.tick({"start": [(0, 0)]})
    for tick in ticks:
        kept.tick({"edges": toggled(there, tick)})
        assert kept.rows("found") == distances(there, 0)
    kept.tick({"edges": dict.fromkeys(there, -1), "start": {(0, 0): -1}})
    kept.check_empty()


@settings(max_examples=25)
@given(ticks=TICKS)
def test_strongly_connected_components_behind_a_recursion(ticks):
    b = Builder()
    edges = b.source("edges", EDGES)
    (reach,) = b.fixpoint({"reach": EDGES}, [edges], linear)
    both = b.join(reach, reach, [("src", "dst"), ("dst", "src")], select=[(0, "src"), (0, "dst")], names=["a", "b"])
    b.output("component", b.aggregate(both, ["a"], least=("min", "b")))
    kept, there = Kept(b.circuit()), set()
    for tick in ticks:
        kept.tick({"edges": toggled(there, tick)})
        assert kept.rows("component") == components(there)


def test_an_endless_recursion_is_stopped_and_has_not_happened():
    b = Builder()
    start = b.source("start", "n BIGINT")

    def count(s, numbers, start):
        return s.distinct(s.union(start, s.map(numbers, lambda c: [pc.add(c[0], 1)], "n BIGINT")))

    b.output("numbers", b.fixpoint({"numbers": "n BIGINT"}, [start], count, limit=50)[0])
    circuit = b.circuit()
    with pytest.raises(CircuitError, match="numbers has not ended after 50 iterations"):
        circuit.tick({"start": [(1,)]})
    assert circuit.tick_number == 0
    assert not any(circuit.state_rows().values())


def test_a_body_that_forgets_a_variable_is_refused():
    b = Builder()
    edges = b.source("edges", EDGES)
    with pytest.raises(CircuitError, match="a stream for each of odd, even"):
        b.fixpoint({"odd": EDGES, "even": EDGES}, [edges], lambda s, odd, even, edges: [edges])


def test_constant_rows_inside_a_fixpoint_are_refused():
    """They come in the first tick and no more, so no iteration would see them."""
    b = Builder()
    edges = b.source("edges", EDGES)

    def body(s, reach, edges):
        rows = Batch.from_arrow(pa.table({"src": [1], "dst": [2]}, edges.schema.arrow), SortKey(edges.schema))
        return s.distinct(s.union(edges, s.graph.add(Constant(rows), [], [], "delta")))

    with pytest.raises(CircuitError, match="'1 constant row' cannot stand inside a fixpoint"):
        b.fixpoint({"reach": EDGES}, [edges], body)


def test_long_chains_are_cut_and_mended():
    b = Builder()
    edges = b.source("edges", EDGES)
    b.output("reach", b.fixpoint({"reach": EDGES}, [edges], linear)[0])
    kept = Kept(b.circuit())
    chain = [(i, i + 1) for i in range(40)]
    kept.tick({"edges": chain})
    assert len(kept.rows("reach")) == 40 * 41 // 2
    kept.tick({"edges": {(20, 21): -1}})
    assert len(kept.rows("reach")) == 20 * 21 // 2 + 19 * 20 // 2
    kept.tick({"edges": {(20, 21): 1, (40, 0): 1}})
    assert len(kept.rows("reach")) == 41 * 41
    kept.tick({"edges": {(40, 0): -1, **dict.fromkeys(chain, -1)}})
    kept.check_empty()
