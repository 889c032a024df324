"""Graphs: what is refused when a node is added, what is the same node, and how a graph is shown to people."""

import functools
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dbspark.circuit import Builder, Graph
from dbspark.columnar import Schema
from dbspark.errors import CircuitError, SchemaError
from dbspark.operators.aggregate import Count, Sum
from dbspark.operators.linear import Function, Scale
from dbspark.operators.operator import Arrange

ORDERS, CUSTOMERS = "id BIGINT, customer BIGINT, amount BIGINT", "customer BIGINT, region STRING"


def big(columns):
    return pc.greater(columns[2], 10)


def revenue(b):
    """Orders by region."""
    orders, customers = b.source("orders", ORDERS), b.source("customers", CUSTOMERS)
    joined = b.join(b.filter(orders, big), customers, on=["customer"])
    b.output("revenue", b.aggregate(joined, ["region"], n=("count", None), total=("sum", "amount")))
    return b


# ---------------------------------------------------------------------- kinds of streams


def test_a_stream_of_the_wrong_kind_is_refused_and_both_nodes_are_named():
    b = Builder()
    stream = b.source("t", ORDERS)
    arranged = b.arrange(stream, ["id"])
    with pytest.raises(CircuitError, match=r"arrange by \(id\).*use the stream that was arranged"):
        b.filter(arranged, big)
    with pytest.raises(CircuitError, match=r"carries arranged.*use the stream that was arranged"):
        b.graph.add(Scale(stream.schema, -1), [arranged], ["delta"], "delta")
    with pytest.raises(CircuitError, match=r"input 0 of 'negate' has to carry values.*'source t'.*integrate it first"):
        b.graph.add(Scale(stream.schema, -1), [stream], ["value"], "value")
    values = b.value_source("v", ORDERS)
    with pytest.raises(CircuitError, match=r"'source v' carries values.*differentiate it first"):
        b.arrange(values, ["id"])
    with pytest.raises(CircuitError, match="differentiate it first"):
        b.integrate(values)
    with pytest.raises(CircuitError, match="integrate it first"):
        b.differentiate(stream)


def test_streams_of_different_kinds_cannot_be_added():
    b = Builder()
    with pytest.raises(CircuitError, match="carry"):
        b.union(b.source("t", "k BIGINT"), b.value_source("v", "k BIGINT"))


def test_a_stream_of_another_graph_is_refused():
    b, other = Builder(), Builder()
    here, there = b.source("t", ORDERS), other.source("t", ORDERS)
    with pytest.raises(CircuitError, match="another graph"):
        b.negate(there)
    with pytest.raises(CircuitError, match="another graph"):
        b.union(here, there)
    with pytest.raises(CircuitError, match="another graph"):
        b.output("out", there)
    with pytest.raises(CircuitError, match="another graph"):
        b.delay(there)


def test_names_are_given_once():
    b = Builder()
    stream = b.source("t", ORDERS)
    with pytest.raises(CircuitError, match="source 't'"):
        b.source("t", CUSTOMERS)
    b.output("out", stream)
    with pytest.raises(CircuitError, match="output 'out'"):
        b.output("out", stream)


def test_unknown_columns_are_refused_where_they_are_named():
    b = Builder()
    stream = b.source("t", ORDERS)
    for build in (
        lambda: b.project(stream, ["nope"]),
        lambda: b.arrange(stream, ["nope"]),
        lambda: b.exchange(stream, ["nope"]),
        lambda: b.aggregate(stream, ["nope"], n=("count", None)),
        lambda: b.top(stream, ["nope"], [], 1),
        lambda: b.join(stream, stream, on=["nope"]),
        lambda: b.join(stream, stream, on=["id"], select=[(0, "nope")]),
    ):
        with pytest.raises(SchemaError, match=r"no column 'nope'; the columns are id, customer, amount"):
            build()


# ---------------------------------------------------------------------- cycles


def test_a_cycle_through_a_delay_is_a_circuit():
    b = Builder()
    source = b.source("t", "k BIGINT")
    loop = b.loop("k BIGINT")
    total = b.union(source, loop)
    b.connect(loop, total)
    b.output("out", total)
    b.circuit()


def test_a_cycle_without_a_delay_is_refused_and_its_nodes_are_named():
    """There is no way to build one but by force."""
    b = Builder()
    source = b.source("t", "k BIGINT")
    union = b.union(source, b.negate(source))
    scaled = b.scale(union, 3)
    filtered = b.filter(scaled, Function(lambda c: pc.is_valid(c[0]), "valid"))
    b.output("out", b.scale(filtered, 5))
    union.node.inputs[1] = filtered.node
    with pytest.raises(CircuitError, match="cycle without a delay") as caught:
        b.circuit()
    said = str(caught.value).split(": ", 1)[1].split(" -> ")
    assert said[0] == said[-1]
    assert sorted(said[1:]) == sorted([union.node.label, scaled.node.label, filtered.node.label])
    order = [union.node.label, scaled.node.label, filtered.node.label]
    at = order.index(said[0])
    assert said == [*order[at:], *order[:at], order[at]], "in the direction in which the data flows"


def test_a_node_that_feeds_itself_is_a_cycle():
    b = Builder()
    node = b.negate(b.source("t", "k BIGINT"))
    b.output("out", node)
    node.node.inputs[0] = node.node
    with pytest.raises(CircuitError, match="negate -> negate"):
        b.circuit()


def test_two_loops_may_go_through_each_other():
    b = Builder()
    source = b.source("t", "k BIGINT")
    one, other = b.loop("k BIGINT"), b.loop("k BIGINT")
    first = b.union(source, other)
    second = b.union(b.negate(source), one)
    b.connect(one, first)
    b.connect(other, second)
    b.output("out", first)
    assert b.circuit().tick({"t": [(1,)]})["out"].count == 1


def test_a_loop_that_is_not_closed_is_refused():
    b = Builder()
    loop = b.loop("k BIGINT")
    b.output("out", b.union(b.source("t", "k BIGINT"), loop))
    with pytest.raises(CircuitError, match="no input"):
        b.circuit()


def test_a_loop_is_closed_once_and_with_what_it_can_hold():
    b = Builder()
    source, other = b.source("t", "k BIGINT"), b.source("o", "s STRING")
    loop = b.loop("k BIGINT")
    with pytest.raises(CircuitError, match="cannot hold"):
        b.connect(loop, other)
    with pytest.raises(CircuitError, match="cannot hold"):
        b.connect(loop, b.integrate(source))
    with pytest.raises(CircuitError, match="is not a delay"):
        b.connect(source, source)
    b.connect(loop, source)
    with pytest.raises(CircuitError, match="already"):
        b.connect(loop, source)


def test_a_loop_is_not_closed_with_a_stream_of_another_graph():
    b, other = Builder(), Builder()
    loop = b.loop("k BIGINT")
    with pytest.raises(CircuitError, match="another graph"):
        b.connect(loop, other.source("t", "k BIGINT"))


# ---------------------------------------------------------------------- the same node


def test_the_same_operator_over_the_same_inputs_is_the_same_node():
    b = Builder()
    stream, other = b.source("t", ORDERS), b.source("c", CUSTOMERS)
    for build in (
        lambda: b.filter(stream, big),
        lambda: b.map(stream, lambda c: [c[0]], "id BIGINT"),
        lambda: b.project(stream, ["id"]),
        lambda: b.negate(stream),
        lambda: b.union(stream, stream),
        lambda: b.arrange(stream, ["id"]),
        lambda: b.distinct(stream),
        lambda: b.join(stream, other, on=["customer"], where=lambda c: pc.is_valid(c[4])),
        lambda: b.aggregate(stream, ["customer"], n=("count", None), m=("min", "id")),
        lambda: b.top(stream, ["customer"], [("id", "desc")], 3),
        lambda: b.combine(stream, stream, "except"),
        lambda: b.integrate(stream),
    ):
        first = build()
        size = len(b.graph)
        assert build().node is first.node
        assert len(b.graph) == size


def test_whatever_makes_a_difference_makes_another_node():
    b = Builder()
    stream, other = b.source("t", ORDERS), b.source("c", CUSTOMERS)
    streams = [
        b.filter(stream, lambda c: pc.greater(c[0], 1)),
        b.filter(stream, lambda c: pc.greater(c[0], 2)),
        b.filter(stream, lambda c: pc.greater(c[1], 1)),
        b.filter(stream, lambda c: pc.less(c[0], 1)),
        b.map(stream, lambda c: [c[0]], "id BIGINT"),
        b.map(stream, lambda c: [c[0]], "other BIGINT"),
        b.map(stream, lambda c: [c[0]], "id BIGINT NOT NULL"),
        b.project(stream, ["id"]),
        b.project(stream, ["id"], ["x"]),
        b.project(stream, ["amount"]),
        b.scale(stream, 2),
        b.scale(stream, 3),
        b.union(stream, stream),
        b.difference(stream, stream),
        b.arrange(stream, ["id"]),
        b.arrange(stream, ["id"], ["amount"]),
        b.arrange(stream, ["id"], [("amount", "desc")]),
        b.arrange(stream, ["id"], [("amount", "asc", "nulls last")]),
        b.arrange(stream, []),
        b.arrange(stream, None),
        *(b.join(stream, other, on=["customer"], how=h) for h in ("inner", "left", "right", "full", "semi", "anti")),
        b.join(stream, other, on=["customer"], how="existence"),
        b.join(stream, other, on=["customer"], null_safe=True),
        b.join(stream, other, on=["customer"], select=[(0, "id")]),
        b.join(stream, other, on=["customer"], select=[(0, "id")], names=["x"]),
        b.join(stream, other, on=["customer"], where=lambda c: pc.is_valid(c[4])),
        b.join(stream, other, on=["customer"], where=lambda c: pc.is_null(c[4])),
        b.aggregate(stream, ["customer"], n=("count", None)),
        b.aggregate(stream, ["customer"], n=("count", "id")),
        b.aggregate(stream, ["customer"], n=("sum", "id")),
        b.aggregate(stream, ["customer"], n=("avg", "id")),
        b.aggregate(stream, ["customer"], n=("min", "id")),
        b.aggregate(stream, ["customer"], n=("max", "id")),
        b.aggregate(stream, ["customer"], m=("count", None)),
        b.aggregate(stream, ["id"], n=("count", None)),
        b.aggregate(stream, [], n=("count", None)),
        b.aggregate(b.map(stream, lambda c: [c[0], pc.greater(c[2], 0)], "id BIGINT, f BOOLEAN"), [], n=Count()),
        b.aggregate(b.map(stream, lambda c: [c[0], pc.greater(c[2], 0)], "id BIGINT, f BOOLEAN"), [], n=Count(where=1)),
        b.aggregate(
            b.map(stream, lambda c: [c[0], pc.greater(c[2], 0)], "id BIGINT, f BOOLEAN"),
            [],
            n=Sum(0, pa.int64(), where=1),
        ),
        b.top(stream, ["customer"], ["id"], 1),
        b.top(stream, ["customer"], ["id"], 2),
        b.top(stream, ["customer"], ["id"], 1, 1),
        b.top(stream, ["customer"], [("id", "desc")], 1),
        *(b.combine(stream, stream, o) for o in ("intersect", "intersect all", "except", "except all")),
        b.distinct(stream),
        b.integrate(stream),
        b.integrate(stream, ["id"]),
        b.exchange(stream, ["id"]),
        b.exchange(stream, ["amount"]),
    ]
    assert len({s.id for s in streams}) == len(streams)


def test_functions_that_differ_only_in_what_they_remember_are_different():
    """A node that is taken for another gives wrong answers, so whatever a function depends on is in its name."""

    def over(limit):
        return lambda c: pc.greater(c[0], limit)

    def with_default(c, limit=1):
        return pc.greater(c[0], limit)

    def with_other_default(c, limit=2):
        return pc.greater(c[0], limit)

    with_other_default.__qualname__ = with_default.__qualname__
    with_other_default.__code__ = with_default.__code__
    b = Builder()
    stream = b.source("t", "k BIGINT")
    assert b.filter(stream, over(1)).id != b.filter(stream, over(2)).id
    assert b.filter(stream, with_default).id != b.filter(stream, with_other_default).id
    assert b.filter(stream, over(1)).id == b.filter(stream, over(1)).id


def test_functions_that_differ_in_keyword_defaults_are_different():
    def made(limit):
        def over(c, *, limit=limit):
            return pc.greater(c[0], limit)

        return over

    b = Builder()
    stream = b.source("t", "k BIGINT")
    assert b.filter(stream, made(1)).id != b.filter(stream, made(2)).id


def test_methods_of_different_objects_are_different():
    class Over:
        def __init__(self, limit):
            self.limit = limit

        def __call__(self, c):
            return pc.greater(c[0], self.limit)

        def judge(self, c):
            return pc.greater(c[0], self.limit)

    b = Builder()
    stream = b.source("t", "k BIGINT")
    one, other = Over(1), Over(2)
    assert b.filter(stream, one.judge).id != b.filter(stream, other.judge).id
    assert b.filter(stream, one).id != b.filter(stream, other).id
    least = functools.partial(pc.greater, 1)
    most = functools.partial(pc.greater, 2)
    assert b.filter(stream, lambda c: least(c[0])).id != b.filter(stream, lambda c: most(c[0])).id


def test_functions_over_long_arrays_are_told_apart():
    """Whose printed form leaves out the middle."""

    def among(numbers):
        return lambda c: pc.is_in(c[0], pa.array(numbers))

    ones = np.arange(5000)
    others = ones.copy()
    others[2500] = -1
    b = Builder()
    stream = b.source("t", "k BIGINT")
    assert b.filter(stream, among(ones)).id != b.filter(stream, among(others)).id


def test_functions_of_one_text_over_different_globals_are_different():
    made = []
    for limit in (1, 2):
        scope = {"pc": pc, "LIMIT": limit}
        exec("def over(c):\n    return pc.greater(c[0], LIMIT)", scope)
        made.append(scope["over"])
    b = Builder()
    stream = b.source("t", "k BIGINT")
    assert b.filter(stream, made[0]).id != b.filter(stream, made[1]).id


PROGRAM = textwrap.dedent(
    """
    import pyarrow.compute as pc
    from dbspark.circuit import Builder

    LIMIT = 7
    b = Builder()
    t, c = b.source("t", "k BIGINT, n BIGINT"), b.source("c", "k BIGINT, s STRING")

    def nested(columns):
        judge = lambda x: pc.greater(x, 3)
        return judge(columns[0])

    def looping(columns):
        return pc.and_(*[pc.is_valid(c) for c in columns])

    def lazily(columns):
        return next(pc.is_valid(c) for c in columns)

    def sets(columns):
        return pc.is_in(columns[0], value_set=__import__("pyarrow").array(sorted({"a", "b", "c"})).cast("string"))

    streams = {
        "joined": b.join(t, c, on=["k"], how="left", where=lambda x: pc.less(x[1], 5)),
        "top": b.top(b.aggregate(t, ["k"], n=("count", None), m=("max", "n")), [], [("n", "desc")], 3),
        "distinct": b.distinct(b.project(t, ["n"])),
        "nested": b.filter(t, nested),
        "looping": b.filter(t, looping),
        "lazily": b.filter(t, lazily),
        "sets": b.filter(t, sets),
        "loop": b.loop("k BIGINT"),
    }
    for name, stream in streams.items():
        print(name, stream.id)
    """
)


def test_ids_are_the_same_in_every_process():
    seen = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        )  # fmt: skip
        seen.append(dict(line.split() for line in done.stdout.splitlines()))
    assert seen[0] == seen[1]


def test_ids_are_the_same_in_a_graph_with_more_in_it():
    b, other = revenue(Builder()), Builder()
    extra = other.source("extra", "k BIGINT")
    other.output("more", other.distinct(extra))
    revenue(other)
    assert b.graph.outputs["revenue"].id == other.graph.outputs["revenue"].id
    assert set(b.graph.nodes) < set(other.graph.nodes)


def test_a_column_or_a_source_of_another_name_or_type_is_another_node():
    ids = set()
    schemas = ("k BIGINT", "j BIGINT", "k INT", "k BIGINT NOT NULL", "k DECIMAL(10, 2)", "k DECIMAL(10, 3)")
    for name, schema in [("t", s) for s in schemas] + [("u", "k BIGINT")]:
        b = Builder()
        ids.add(b.distinct(b.source(name, schema)).id)
    assert len(ids) == len(schemas) + 1


# ---------------------------------------------------------------------- sharing


def sort_keys(graph):
    return [n for n in graph if isinstance(n.operator, Arrange)]


def test_joins_on_the_same_key_share_one_arrangement():
    b = Builder()
    orders, customers, regions = b.source("o", ORDERS), b.source("c", CUSTOMERS), b.source("r", CUSTOMERS)
    b.output("one", b.join(orders, customers, on=["customer"]))
    b.output("two", b.join(orders, regions, on=["customer"], how="anti"))
    b.output("three", b.join(orders, orders, on=["customer"], how="semi"))
    assert len(sort_keys(b.graph)) == 3
    b.output("other", b.join(orders, orders, on=["id"], how="semi"))
    assert len(sort_keys(b.graph)) == 4


def test_distinct_and_set_operations_share_the_arrangement_by_rows():
    b = Builder()
    one, other = b.source("x", "k BIGINT, n BIGINT"), b.source("y", "k BIGINT, n BIGINT")
    b.output("distinct", b.distinct(one))
    b.output("except", b.combine(one, other, "except"))
    b.output("intersect", b.combine(other, one, "intersect all"))
    b.output("join", b.join(one, other, on=["k", "n"]))
    assert len(sort_keys(b.graph)) == 2


def test_minima_share_the_arrangement_of_their_order():
    b = Builder()
    stream = b.source("t", "k BIGINT, n BIGINT")
    b.output("min", b.aggregate(stream, ["k"], low=("min", "n"), n=("count", None)))
    b.output("more", b.aggregate(stream, ["k"], low=("min", "n"), total=("sum", "n")))
    assert len(sort_keys(b.graph)) == 1
    b.output("max", b.aggregate(stream, ["k"], high=("max", "n")))
    assert len(sort_keys(b.graph)) == 2


def test_what_no_output_needs_is_left_out_but_sources_stay():
    b = Builder()
    stream, unused = b.source("t", ORDERS), b.source("unused", ORDERS)
    b.distinct(unused)
    b.aggregate(stream, [], n=("count", None))
    b.output("out", b.negate(stream))
    circuit = b.circuit()
    assert sorted(n.label for n in circuit.graph) == ["negate", "source t", "source unused"]
    assert circuit.state_rows() == {}
    assert len(b.graph) > len(circuit.graph), "the graph that was built stays as it was"
    assert circuit.tick({"unused": [(1, 2, 3)]})["out"].count == 0


# ---------------------------------------------------------------------- for people


def test_explain_shows_every_output_from_the_top_down_and_each_node_once():
    b = revenue(Builder())
    b.output("joined", b.graph.outputs["revenue"].inputs[0].stream)
    text = b.graph.explain()
    lines = text.splitlines()
    assert lines[0] == "revenue:"
    assert lines[1] == "  #1 aggregate count(*), sum(amount) by (region)"
    assert lines[2] == "    #2 inner join on customer = customer"
    assert lines[3] == "      #3 arrange by (customer)"
    assert lines[4].startswith("        #4 filter ")
    assert lines[5] == "          #5 source orders"
    assert lines[6] == "      #6 arrange by (customer)"
    assert lines[7] == "        #7 source customers"
    assert lines[8:] == ["joined:", "  #2 inner join on customer = customer (above)"]


def test_explain_ends_where_a_loop_closes():
    b = Builder()
    source = b.source("t", "k BIGINT")
    loop = b.loop("k BIGINT")
    total = b.union(source, loop)
    b.connect(loop, total)
    b.output("out", total)
    assert b.graph.explain().splitlines() == [
        "out:",
        "  #1 + +",
        "    #2 source t",
        "    #3 delay",
        "      #1 + + (above)",
    ]


def test_explain_of_a_very_deep_circuit_is_as_deep():
    b = Builder()
    stream = b.source("t", "k BIGINT")
    for i in range(3000):
        stream = b.scale(stream, i + 2)
    b.output("out", stream)
    assert len(b.graph.explain().splitlines()) == 3002
    b.circuit()


def test_the_picture_has_every_node_and_every_edge():
    b = revenue(Builder())
    b.output("same", b.graph.outputs["revenue"].stream)
    dot = b.graph.to_dot()
    lines = [line.strip() for line in dot.splitlines()]
    assert lines[0] == "digraph circuit {"
    assert lines[-1] == "}"
    edges = sum(len(n.inputs) for n in b.graph)
    assert sum(" -> " in line and "out_" not in line for line in lines) == edges
    for node in b.graph:
        assert any(f'label="{node.label}"' in line for line in lines), node.label
    for name in ("revenue", "same"):
        assert any(f'label="{name}"' in line for line in lines), f"the output {name} is missing"


def test_outputs_of_one_node_are_nodes_of_their_own_in_the_picture():
    b = Builder()
    stream = b.source("t", "k BIGINT")
    b.output("one", stream)
    b.output("two", stream)
    names = [line.split()[0] for line in b.graph.to_dot().splitlines() if "shape=ellipse" in line]
    assert len(set(names)) == 2


def test_names_with_quotes_and_backslashes_are_escaped_in_the_picture():
    b = Builder()
    stream = b.source('we"ird\\name', "k BIGINT")
    b.output('o"ut', b.filter(stream, Function(lambda c: pc.is_valid(c[0]), 'a "b" \\ c')))
    dot = b.graph.to_dot()
    assert r'label="source we\"ird\\name"' in dot
    assert r'label="filter a \"b\" \\ c"' in dot
    assert r'label="o\"ut"' in dot


def test_a_graph_says_how_many_nodes_it_has():
    assert len(Graph()) == 0
    graph = Graph()
    graph.source("t", Schema.parse("k BIGINT"))
    assert len(graph) == 1
    assert [n.label for n in graph] == ["source t"]
