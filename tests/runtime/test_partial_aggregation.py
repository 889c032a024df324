"""What is of all rows (aggregates, first rows) is combined on every shard before it travels."""

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.columnar.delta import Delta
from dbspark.columnar.rows import encode_rows
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import hash_rows
from dbspark.errors import DbsparkError
from dbspark.kernels.memory import layout as nd
from dbspark.operators.aggregate import Average, Count, Extreme, FloatSum, GroupAggregate, Sum
from dbspark.operators.bucket import BITS, Bucket
from dbspark.operators.collect import count_distinct
from dbspark.operators.partial import CombinedAggregate, can_aggregate_partially
from dbspark.operators.statistics import Booleans, Correlation, Variance
from dbspark.runtime.partial_aggregation import add_partial_aggregates
from dbspark.runtime.placement import first_hash, shard_of
from tests.operators.model import WEIGHTS, Run, entries, plus
from tests.runtime.resident_shards import TRANSPORTS
from tests.runtime.shards import Shards
from tests.zset.model import plain

SCHEMA = Schema.parse("id BIGINT, n BIGINT, d DECIMAL(12, 2), f DOUBLE, b BOOLEAN")
TYPES = SCHEMA.types
FLOATS = st.sampled_from([None, 0.1, -0.1, 0.3, 1e300, -1e300, 5e-324, 1e-8, 2.5, float("inf"), float("nan")])
ROWS = st.tuples(
    st.integers(0, 30),
    st.one_of(st.none(), st.integers(-5, 5), st.just(1 << 60)),
    st.one_of(st.none(), st.decimals(-100, 100, places=2)),
    FLOATS,
    st.sampled_from([None, True, False]),
)
TICKS = st.lists(entries(ROWS, WEIGHTS, 12), min_size=1, max_size=4)
ADDITIVE = {
    "rows": Count(None),
    "some": Count(1, 4),
    "sum": Sum(1, TYPES[1], 4),
    "decimals": Sum(2, TYPES[2]),
    "mean": Average(2, TYPES[2]),
    "floats": FloatSum(3),
    "mean_of_floats": Average(3, TYPES[3], 4),
    "variance": Variance(3, TYPES[3]),
    "correlation": Correlation(1, TYPES[1], 3, TYPES[3]),
    "all": Booleans("and", 4),
}
ENDS = {"least": Extreme(3, TYPES[3], False), "most": Extreme(2, TYPES[2], True)}
FIRST = [("n", "desc"), ("f", "asc"), ("id", "asc")]
QUICK = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def circuit(made):
    b = Builder()
    b.output("out", made(b, b.source("x", SCHEMA)))
    return b


def in_buckets(key):
    """Aggregates and first rows of everything, with buckets by some columns."""

    def aggregates(b, x):
        return b.aggregate_of_buckets(b.bucket(x, key), "bucket", {**ADDITIVE, **ENDS})

    def first(b, x):
        found = b.top(b.bucket(x, key), ["bucket"], FIRST, 5)
        return b.project(b.top(found, [], FIRST, 3, 2), SCHEMA.names)

    return {"aggregates": aggregates, "first": first}


WHOLE = {
    "aggregates": lambda b, x: b.aggregate(x, [], **ADDITIVE, **ENDS),
    "first": lambda b, x: b.top(x, [], FIRST, 3, 2),
}


@pytest.mark.parametrize("key", [["id"], list(SCHEMA.names)], ids=["where rows lie", "by row"])
@pytest.mark.parametrize("name", WHOLE)
@QUICK
@given(ticks=TICKS, shards=st.sampled_from([1, 2, 3]), transport=st.sampled_from(sorted(TRANSPORTS)))
def test_shards_say_what_one_step_says(name, key, ticks, shards, transport, tmp_path_factory):
    whole = Run(circuit(WHOLE[name]).circuit())
    whole.tick()
    graph = circuit(in_buckets(key)[name]).graph
    sharded = TRANSPORTS[transport](graph, shards, tmp_path_factory.mktemp("shards"), {"x": (0,)})
    for rows in ticks:
        change = whole.possible("x", rows)
        try:
            expected = whole.tick(x=change)["out"]
        except DbsparkError as error:  # eight times 1 << 60 is more than a BIGINT holds
            with pytest.raises(DbsparkError, match=re.escape(str(error))):
                sharded.tick({"x": change})
            return
        assert told(sharded.tick({"x": change})) == expected
    everything = {whole._form[row]: -w for row, w in whole.given["x"].items()}
    assert told(sharded.tick({"x": everything})) == whole.tick(x=everything)["out"]
    left = {name: rows for name, rows in sharded.rows_kept().items() if rows}
    # Of aggregates: what they are of nothing, and the row that says it.
    assert sum(left.values()) == (2 if name == "aggregates" else 0)


def told(out):
    return plus({plain(row): weight for row, weight in out["out"].items()})


@pytest.mark.parametrize("name", WHOLE)
def test_what_travels_is_little(name, tmp_path):
    """Of many rows that come, one of each shard and the first of each bucket go to where they are wanted."""
    sharded = Shards(circuit(in_buckets(["id"])[name]).graph, 3, tmp_path, {"x": (0,)})
    rows = {(i, i % 1000, Decimal(i), i / 7, None): 1 for i in range(20_000)}
    sharded.tick({"x": rows})
    assert len(sharded.levels) == 2
    sent = sharded.travelled
    if name == "aggregates":
        partial = sum(n for slot, n in sent.items() if "partial" in slot)
        assert partial == 3
        assert sum(sent.values()) == 3 + 2 * (1 << BITS)
    else:
        assert sum(sent.values()) <= 5 << BITS
    sharded.tick({"x": {(20_000, 1, None, None, None): 1}})
    assert sum(sharded.travelled.values()) <= 1 + 2 * 2


def test_a_bucket_is_on_the_shard_of_the_rows_in_it():
    rows = [(i, None, None, None, None) for i in range(3000)]
    delta = Delta(SCHEMA, encode_rows(SCHEMA, rows), np.ones(len(rows), np.int64))
    out = Bucket(SCHEMA, [0]).apply([delta])
    chunk = out.chunk()
    by_id, by_bucket = (hash_rows(chunk, np.array([nd.LANES + c])) for c in (0, 5))
    assert len(set(out.columns[5].to_pylist())) > 900
    for shards in (1, 2, 3, 7, 100, 1024, 2000):
        owners = shard_of(by_id, shards)
        assert (owners == shard_of(by_bucket, shards)).all()
        firsts = np.array([first_hash(int(s), shards) for s in owners], np.uint64)
        assert (firsts <= by_id).all()


def test_only_what_adds_up_is_taken_apart():
    whole = GroupAggregate(SCHEMA, (), list(ADDITIVE.values()), list(ADDITIVE))
    assert can_aggregate_partially(whole)
    assert not can_aggregate_partially(GroupAggregate(SCHEMA, (0,), [Count(None)], ["n"])), "it has a key"
    assert not can_aggregate_partially(GroupAggregate(SCHEMA, (), [Count(None), count_distinct([1], None)], ["n", "d"]))
    assert not can_aggregate_partially(GroupAggregate(SCHEMA, (), [Sum(0, pa.decimal128(38, 0))], ["s"])), (
        "a part may not fit"
    )
    assert CombinedAggregate(whole).state_sort_keys() == whole.state_sort_keys()
    b = circuit(lambda b, x: b.aggregate(x, ["id"], rows=("count", None)))
    assert add_partial_aggregates(b.graph) is b.graph


def test_a_sum_that_fits_nowhere_is_refused(tmp_path):
    b = circuit(lambda b, x: b.aggregate(x, [], s=("sum", "n")))
    sharded = Shards(b.graph, 3, tmp_path, {"x": (0,)})
    with pytest.raises(DbsparkError, match="does not fit BIGINT"):
        sharded.tick({"x": {(i, 1 << 62, None, None, None): 1 for i in range(9)}})
