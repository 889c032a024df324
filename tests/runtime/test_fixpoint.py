"""Fixpoints cut into stages give what they give whole, tick by tick, on any number of shards."""

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.errors import CircuitError
from dbspark.runtime import stage
from dbspark.runtime.fixpoint import FixpointResultStep
from dbspark.runtime.unrolled import iterations_to_unroll
from tests.circuit.test_nested import EDGES, further, linear, odd_and_even, shortest, squaring, toggled
from tests.operators.model import Run, plus
from tests.runtime.resident_shards import TRANSPORTS
from tests.runtime.shards import Shards

DISTANCES = "node BIGINT, distance BIGINT"
WALKS = "src BIGINT, dst BIGINT, n BIGINT"
WEIGHTED = "src BIGINT, dst BIGINT, weight BIGINT"
NODES = st.integers(0, 7)
TICKS = st.lists(st.lists(st.tuples(NODES, NODES), min_size=1, max_size=6, unique=True), min_size=1, max_size=4)
few = settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
SHARDS = st.sampled_from([1, 2, 3])


def steps(s, edges):
    return s.map(edges, lambda c: [c[0], c[1], pc.multiply(c[0], 0)], WALKS)


def longer(s, walk, edges):
    met = s.join(walk, edges, [("dst", "src")], select=[(0, "src"), (1, "dst"), (0, "n")], names=["src", "dst", "n"])
    more = s.map(met, lambda c: [c[0], c[1], pc.add(c[2], 1)], WALKS)
    return s.filter(more, lambda c: pc.less(c[2], 6))


def walks(s, walk, edges):
    """Walks by their length, up to some length, with how many there are: UNION ALL."""
    return s.union(steps(s, edges), longer(s, walk, edges))


def one(body, schema=EDGES):
    def build(b, edges):
        return {"reach": b.fixpoint({"reach": schema}, [edges], body)[0]}

    return build


def mutual(b, edges):
    odd, even = b.fixpoint({"odd": EDGES, "even": EDGES}, [edges], odd_and_even)
    return {"odd": odd, "even": even}


def reachable(b, edges):
    """From some nodes, which are found outside; what follows reads the result by other columns."""

    def body(s, seen, start, edges):
        return s.distinct(s.union(start, s.join(seen, edges, ["src"], select=[(1, "dst")], names=["src"])))

    start = b.distinct(b.project(b.filter(edges, lambda c: pc.less(c[0], 2)), ["src"]))
    (seen,) = b.fixpoint({"seen": "src BIGINT"}, [start, edges], body)
    return {"left": b.join(edges, seen, ["src"], "anti"), "many": b.aggregate(seen, [], n=("count", None))}


def one_behind_another(b, edges):
    """A recursion over the result of another, beside one that has other levels, and a join of all."""
    (reach,) = b.fixpoint({"reach": EDGES}, [edges], linear)
    near = b.filter(reach, lambda c: pc.equal(pc.add(c[0], 1), c[1]))
    (back,) = b.fixpoint({"back": EDGES}, [b.project(near, ["dst", "src"], ["src", "dst"])], linear)
    (walk,) = b.fixpoint({"walk": WALKS}, [edges], walks)
    (simple,) = b.fixpoint({"simple": EDGES}, [edges], squaring)
    return {
        "back": back,
        "walk": b.aggregate(walk, ["src"], n=("count", None)),
        "both": b.join(back, simple, ["src", "dst"]),
        "edges": edges,
    }


def apart(b, edges):
    """Operators that treat keys apart, at several levels, and edges that are looked up at two of them."""

    def body(s, walk, edges):
        new = s.join(longer(s, walk, edges), edges, ["src", "dst"], "anti")
        low = s.top(new, ["src", "n"], ["dst"], 2)
        return s.distinct(s.union(steps(s, edges), low, s.join(low, edges, [("dst", "src")], "semi")))

    return {"walk": b.fixpoint({"walk": WALKS}, [edges], body)[0]}


def behind(b, edges):
    """Variables that are another one, and a source, an iteration later, beside one that takes two levels."""

    def body(s, reach, last, first, edges):
        return [s.distinct(s.union(first, further(s, last, edges))), reach, edges]

    reach, last, first = b.fixpoint({"reach": EDGES, "last": EDGES, "first": EDGES}, [edges], body)
    return {"reach": reach, "last": last, "first": first}


def inside_another(b, edges):
    """A fixpoint in a fixpoint, which is not cut."""

    def body(s, outer, edges):
        (inner,) = s.fixpoint({"inner": EDGES}, [s.union(outer, edges)], linear)
        return s.distinct(inner)

    return {"reach": b.fixpoint({"outer": EDGES}, [edges], body)[0]}


GRAPHS = {
    "linear": one(linear),
    "squaring": one(squaring),
    "walks": one(walks, WALKS),
    "mutual": mutual,
    "reachable": reachable,
    "apart": apart,
    "behind": behind,
    "one behind another": one_behind_another,
    "inside another": inside_another,
}


CUT = {
    "linear": [2],
    "squaring": [2],
    "walks": [1],
    "mutual": [2],
    "reachable": [2],
    "apart": [5],
    "behind": [2],
    "one behind another": [2, 1, 2, 2],
    "inside another": [],
}
"""The exchanges in an iteration of each fixpoint."""


def built(build):
    b = Builder()
    for name, stream in build(b, b.source("edges", EDGES)).items():
        b.output(name, stream)
    return b


class Beside:
    """A circuit as a whole and on shards."""

    def __init__(self, b, shards, location, places=None, transport="shuffle"):
        self.whole = Run(b.circuit())
        self.shards = TRANSPORTS[transport](b.graph, shards, location, places)
        self.whole.tick()

    def tick(self, **changes):
        said, wanted = self.shards.tick(changes), self.whole.tick(**changes)
        for name, change in wanted.items():
            assert plus(said[name]) == change, name

    def retract(self):
        """Take everything back; gives the traces in which something is left."""
        self.tick(**{n: {row: -w for row, w in rows.items()} for n, rows in self.whole.given.items()})
        return {name: rows for name, rows in self.shards.rows_kept().items() if rows}

    def cut(self):
        """The levels inside the fixpoints that are cut."""
        return [
            len(s.loop.levels) for level in self.shards.levels for s in level.steps if isinstance(s, FixpointResultStep)
        ]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", GRAPHS)
@few
@given(ticks=TICKS, shards=SHARDS, places=st.sampled_from([None, {"edges": (0,)}, {"edges": (1, 0)}]))
def test_shards_say_what_the_whole_says(name, transport, ticks, shards, places, tmp_path_factory):
    beside = Beside(built(GRAPHS[name]), shards, tmp_path_factory.mktemp("shards"), places, transport)
    assert beside.cut() == CUT[name]
    there = set()
    for tick in ticks:
        beside.tick(edges=toggled(there, tick))
    left = beside.retract()
    assert sum(left.values()) <= (2 if name == "reachable" else 0), left


@pytest.mark.parametrize("transport", TRANSPORTS)
@few
@given(ticks=TICKS, shards=SHARDS)
def test_an_aggregate_is_iterated(transport, ticks, shards, tmp_path_factory):
    b = Builder()
    edges, start = b.source("edges", WEIGHTED), b.source("start", DISTANCES)
    b.output("found", b.fixpoint({"found": DISTANCES}, [edges, start], shortest)[0])
    beside = Beside(b, shards, tmp_path_factory.mktemp("shards"), transport=transport)
    assert beside.cut() == [2]
    beside.tick(start={(0, 0): 1})
    there = set()
    for tick in ticks:
        beside.tick(edges=toggled(there, [(a, b, 1 + (3 * a + b) % 5) for a, b in tick]))
    assert not beside.retract()


@pytest.mark.parametrize("inline", [0, stage.MAX_INLINE_BYTES])
def test_what_is_not_over_goes_on_in_another_job(inline, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "MAX_INLINE_BYTES", inline)
    beside = Beside(built(GRAPHS["one behind another"]), 2, tmp_path)
    chain = [(i, i + 1) for i in range(9)]
    beside.tick(edges=dict.fromkeys(chain, 1))
    assert beside.shards.jobs == [None, 0, 0, 1, 1], "each takes ten iterations, and a job has four"
    beside.tick(edges={(4, 5): -1, (9, 3): 1})
    beside.tick(edges={(7, 9): 1})
    assert not beside.retract()


def counting(limit):
    """Numbers that are counted up, from those that a source gives apart from each other."""

    def body(s, numbers, start):
        return s.union(start, s.map(numbers, lambda c: [pc.add(c[0], 1)], "n BIGINT"))

    def build(b, edges):
        start = b.map(edges, lambda c: [pc.add(c[1], 0)], "n BIGINT")
        return {"numbers": b.fixpoint({"numbers": "n BIGINT"}, [start], body, limit)[0]}

    return built(build)


def test_a_recursion_without_end_is_stopped_and_has_not_happened(tmp_path):
    beside = Beside(counting(10), 3, tmp_path)
    before = dict(beside.shards.records)
    with pytest.raises(CircuitError, match="numbers has not ended after 10 iterations; nothing was applied") as shards:
        beside.shards.tick({"edges": {(1, 1): 1}})
    with pytest.raises(CircuitError) as whole:
        beside.whole.tick(edges={(1, 1): 1})
    assert str(shards.value) == str(whole.value)
    assert beside.shards.records == before


def test_what_cancels_on_different_shards_is_not_iterated(tmp_path):
    beside = Beside(counting(10), 3, tmp_path)
    beside.tick(edges={(i, 5): (-1) ** i for i in range(8)})
    assert beside.shards.jobs == [None]


def test_as_many_iterations_are_unrolled_as_were_taken():
    assert [iterations_to_unroll(n) for n in (0, 1, 2, 3, 4, 1000)] == [1, 1, 2, 4, 4, 4]


def test_the_limit_is_that_of_the_whole(tmp_path):
    for limit in range(5, 9):
        b = Builder()
        edges = b.source("edges", EDGES)
        b.output("reach", b.fixpoint({"reach": EDGES}, [edges], linear, limit)[0])
        chain = {(i, i + 1): 1 for i in range(6)}
        try:
            b.circuit().tick({"edges": chain})
        except CircuitError as error:
            with pytest.raises(CircuitError, match=str(error)):
                Shards(b.graph, 2, tmp_path).tick({"edges": chain})
        else:
            assert limit > 6
            assert len(Shards(b.graph, 2, tmp_path).tick({"edges": chain})["reach"]) == 21
