"""Circuits cut into levels give what they give whole, on any number of shards."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.errors import CircuitError
from dbspark.operators.function import Function
from dbspark.operators.join import Join
from tests.circuit.test_optimise import QUERIES, SCHEMA, TICKS
from tests.operators.model import Run, plus
from tests.runtime.resident_shards import TRANSPORTS
from tests.runtime.shards import Shards


def asked(b, stream):
    """Every row as often as its n says, up to twice, by somebody else."""

    def answer(columns):
        times = np.clip(columns[1].fill_null(0).to_numpy(), 0, 2)
        origin = np.repeat(np.arange(len(times)), times)
        return [c.take(pa.array(origin)) for c in columns], origin

    function = Function(answer, "some rows twice", {0: 0, 1: 1})
    return b.external_function(stream, function, SCHEMA, function)


ASKED = {
    "asked": lambda b, x, y: asked(b, asked(b, x)),
    "asked, then sums": lambda b, x, y: b.aggregate(asked(b, x), ["n"], s=("sum", "k"), most=("max", "k")),
    "asked, then a join": lambda b, x, y: b.join(asked(b, x), b.union(asked(b, y), x), on=["k"], how="left"),
}
SHARDED = {name: query for name, query in QUERIES.items() if name != "delay"} | ASKED


def built(query):
    b = Builder()
    b.output("out", query(b, b.source("x", SCHEMA), b.source("y", SCHEMA)))
    return b


def say_the_same(b, ticks, shards, location, places, policies=None, transport="shuffle"):
    whole = Run(b.circuit())
    whole.tick()
    sharded = TRANSPORTS[transport](b.graph, shards, location, places, policies)
    for one, other in ticks:
        change = {"x": whole.possible("x", one), "y": whole.possible("y", other)}
        assert plus(sharded.tick(change)["out"]) == whole.tick(**change)["out"]
    everything = {n: {row: -w for row, w in rows.items()} for n, rows in whole.given.items()}
    assert plus(sharded.tick(everything)["out"]) == whole.tick(**everything)["out"]
    return {name: rows for name, rows in sharded.rows_kept().items() if rows}


PLACES = [None, {"x": (0,), "y": (0,)}]


@pytest.mark.parametrize("places", PLACES, ids=["by row", "by key"])
@pytest.mark.parametrize("name", SHARDED)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ticks=TICKS, shards=st.sampled_from([1, 2, 3]), transport=st.sampled_from(sorted(TRANSPORTS)))
def test_shards_say_what_the_whole_says(name, places, ticks, shards, transport, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    left = say_the_same(built(SHARDED[name]), ticks, shards, folder, places, transport=transport)
    assert sum(left.values()) <= (2 if name == "a sum of everything" else 0), left


@pytest.mark.parametrize("places", PLACES, ids=["by row", "by key"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", [n for n in SHARDED if "join" in n and n != "join with itself"])
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ticks=TICKS, shards=st.sampled_from([2, 3]), transport=st.sampled_from(sorted(TRANSPORTS)))
def test_a_side_of_a_join_may_be_everywhere(name, side, places, ticks, shards, transport, tmp_path_factory):
    b = built(SHARDED[name])
    (join,) = [n for n in b.graph if isinstance(n.operator, Join)]
    if side not in join.operator.broadcastable_sides:
        return
    policies = {join.id: ("broadcast", "balance") if side == 0 else ("balance", "broadcast")}
    assert not say_the_same(b, ticks, shards, tmp_path_factory.mktemp("shards"), places, policies, transport)


def test_a_delay_is_refused():
    with pytest.raises(CircuitError, match="delay"):
        Shards(built(QUERIES["delay"]).graph, 2, "nowhere")
