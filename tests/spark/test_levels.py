"""Circuits cut into levels give what they give whole, on any number of shards."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.errors import CircuitError
from tests.circuit.test_forms import QUERIES, SCHEMA, TICKS
from tests.operators.model import Run, plus
from tests.spark.shards import Shards

SHARDED = {name: query for name, query in QUERIES.items() if name != "delay"}


def built(query):
    b = Builder()
    b.output("out", query(b, b.source("x", SCHEMA), b.source("y", SCHEMA)))
    return b


@pytest.mark.parametrize("places", [None, {"x": (0,), "y": (0,)}], ids=["by row", "by key"])
@pytest.mark.parametrize("name", SHARDED)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ticks=TICKS, shards=st.sampled_from([1, 2, 3]))
def test_shards_say_what_the_whole_says(name, places, ticks, shards, tmp_path_factory):
    b = built(SHARDED[name])
    whole = Run(b.circuit())
    whole.tick()
    sharded = Shards(b.graph, shards, tmp_path_factory.mktemp("shards"), places)
    for one, other in ticks:
        change = {"x": whole.possible("x", one), "y": whole.possible("y", other)}
        assert plus(sharded.tick(change)["out"]) == whole.tick(**change)["out"]
    everything = {n: {row: -w for row, w in rows.items()} for n, rows in whole.given.items()}
    assert plus(sharded.tick(everything)["out"]) == whole.tick(**everything)["out"]
    left = {name: rows for name, rows in sharded.rows_kept().items() if rows}
    assert sum(left.values()) <= (2 if name == "a sum of everything" else 0), left


def test_a_delay_is_refused():
    with pytest.raises(CircuitError, match="delay"):
        Shards(built(QUERIES["delay"]).graph, 2, "nowhere")
