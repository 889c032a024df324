"""Node ids of circuits by hand, as they were when they were first kept: every operator, every form of its parameters.

State finds its operator by these ids, so a test that fails here says that somebody would lose state.
"""

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from dbspark.circuit import Builder
from dbspark.columnar import Batch, SortKey
from dbspark.columnar.schema import Schema
from dbspark.operators import linear
from dbspark.operators.aggregate import Average, Count, Extreme, FloatSum, GroupAggregate, Sum
from dbspark.operators.collect import (
    CollectList,
    First,
    ListAgg,
    MinMaxBy,
    Mode,
    OfDistinct,
    Percentile,
    Recompute,
    any_value,
    average_distinct,
    count_distinct,
    median,
    sum_distinct,
)
from dbspark.operators.constant import Constant
from dbspark.operators.function import Function, identified
from dbspark.operators.partial import CombinedAggregate, PartialAggregate
from dbspark.operators.recompute import RecomputeGroups
from dbspark.operators.statistics import (
    Bits,
    Booleans,
    Correlation,
    Covariance,
    Kurtosis,
    Regression,
    Skewness,
    Variance,
)
from dbspark.operators.window import (
    Frame,
    FrameAverage,
    FrameCount,
    FrameExtreme,
    FrameSum,
    Nth,
    Ranking,
    Shift,
)
from tests.identities import compare, declared, parts
from tests.reference.differentiate import incrementalize
from tests.reference.optimise import optimise

GOLDEN = Path(__file__).parent / "golden" / "circuits.json"
ORDERS, CUSTOMERS = "id BIGINT, customer BIGINT, amount BIGINT", "customer BIGINT, region STRING"
TYPES = (
    "b BOOLEAN NOT NULL, i TINYINT, s SMALLINT, n INT, l BIGINT, f FLOAT, d DOUBLE, c DECIMAL(12, 2), t STRING, "
    "y BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, term INTERVAL DAY TO SECOND, a ARRAY<STRING>, "
    "m MAP<STRING, BIGINT>, r STRUCT<x: INT, y: ARRAY<DOUBLE>>"
)
LONG, DOUBLE, TEXT, MONEY = pa.int64(), pa.float64(), pa.string(), pa.decimal128(12, 2)
GIVEN = Function(None, "a function of the golden file")


def columns(b):
    """Every type of a column, and what is linear."""
    t, orders = b.source("types", TYPES), b.source("orders", ORDERS)
    yield "source", t
    yield "value-source", b.value_source("values", ORDERS)
    yield "map", b.map(orders, GIVEN, "x BIGINT")
    yield "map-declared", b.map(orders, identified("declared", 3)(lambda c: c), "x BIGINT")
    yield "filter", b.filter(orders, GIVEN)
    yield "flat-map", b.flat_map(orders, GIVEN, "x BIGINT")
    yield "evaluate-in-spark", b.external_function(orders, GIVEN, "x BIGINT", None)
    yield "project", b.project(orders, ["amount", "id"])
    yield "project-names", b.project(orders, ["amount", "id"], ["x", "y"])
    yield "filter-project", b.select(orders, GIVEN, ["id", "amount"], ["customer"])
    yield "negate", b.negate(orders)
    yield "scale", b.scale(orders, 3)
    yield "union", b.union(orders, b.negate(orders))
    yield "difference", b.difference(orders, orders)
    yield "consolidate", b.consolidate(orders)
    yield "exchange", b.exchange(orders, ["customer"])
    yield "bucket", b.bucket(orders, ["customer", "id"])
    schema = Schema.of(TYPES)
    row = (
        True, 1, 2, 3, 4, 0.5, float("nan"), Decimal("1.50"), "é", b"\0", datetime.date(2020, 2, 29),
        datetime.datetime(2020, 2, 29, 1, tzinfo=datetime.UTC), datetime.datetime(2020, 2, 29, 1),
        datetime.timedelta(days=1), ["x", None], {"k": 1}, {"x": 1, "y": [0.5]},
    )  # fmt: skip
    given = zip(row, row, (False, *[None] * 16), strict=True)
    data = pa.table([pa.array(list(v), f.type) for v, f in zip(given, schema.arrow, strict=True)], schema=schema.arrow)
    rows = Batch.from_arrow(data, SortKey(schema))
    yield "constant-rows", b.graph.add(Constant(rows), [], [], "delta")


def arranged(b):
    """What keeps an integral, or reads one."""
    orders, customers = b.source("orders", ORDERS), b.source("customers", CUSTOMERS)
    yield "arrange", b.arrange(orders, ["customer"])
    yield "arrange-rows", b.arrange(orders, None)
    yield "arrange-nothing", b.arrange(orders, [])
    yield "arrange-order", b.arrange(orders, ["customer"], [("amount", "desc"), ("id", "asc", "nulls last")])
    yield "distinct", b.distinct(orders)
    for operation in ("intersect", "intersect all", "except", "except all"):
        yield f"set-operation {operation}", b.combine(orders, orders, operation)
    for how in ("inner", "left", "right", "full", "semi", "anti", "existence"):
        yield f"join {how}", b.join(orders, customers, ["customer"], how)
    yield "join-null-safe", b.join(orders, customers, ["customer"], null_safe=True)
    yield "join-residual", b.join(orders, customers, ["customer"], "left", where=GIVEN)
    yield "join-select", b.join(orders, customers, ["customer"], select=[(1, "region"), (0, "id")], names=["r", "i"])
    for how in ("inner", "full", "anti"):
        yield f"range-join {how}", b.join(orders, customers, [], how, ranges=[("amount", "<", "customer")])
    ranges = [("amount", ">=", "customer"), ("id", "<=", "customer"), ("id", ">", "customer")]
    yield "range-join-several", b.join(orders, customers, [("customer", "customer")], ranges=ranges)
    yield "top-k", b.top(orders, ["customer"], [("amount", "desc")], 3)
    yield "top-k-offset", b.top(orders, [], ["id"], 3, 2)
    by_customer = SortKey(orders.schema, [1])
    recompute = RecomputeGroups([by_customer], GIVEN, orders.schema)
    yield "recompute-groups", b.with_state(recompute, [orders], [by_customer])
    everything = SortKey(orders.schema, [])
    recompute = RecomputeGroups([everything], GIVEN, orders.schema)
    yield "recompute-everything", b.with_state(recompute, [orders], [everything])


def aggregates(b):
    """Every aggregate."""
    t = b.source("t", "k BIGINT, l BIGINT, d DOUBLE, c DECIMAL(12, 2), t STRING, f BOOLEAN, n INT")
    order = [(2, True, False), (1, False, True)]
    made = {
        "count": Count(),
        "count-column": Count(1),
        "count-where": Count(None, 5),
        "exact-sum": Sum(1, LONG),
        "exact-sum-decimal": Sum(3, MONEY, 5),
        "exact-float-sum": FloatSum(2),
        "exact-float-sum-where": FloatSum(2, 5),
        "average": Average(1, LONG),
        "average-float": Average(2, DOUBLE),
        "average-decimal": Average(3, MONEY, 5),
        "min": Extreme(4, TEXT, False),
        "max": Extreme(4, TEXT, True),
        **{
            f"variance {sample} {root}": Variance(2, DOUBLE, sample=sample, root=root)
            for sample in (True, False)
            for root in (True, False)
        },
        "skewness": Skewness(2, DOUBLE),
        "kurtosis": Kurtosis(2, DOUBLE, 5),
        **{f"covariance {kind}": Covariance(2, DOUBLE, 1, LONG, kind=kind) for kind in ("samp", "pop", "sum")},
        "correlation": Correlation(2, DOUBLE, 1, LONG, 5),
        **{
            f"regression {kind}": Regression(kind, 2, DOUBLE, 1, LONG)
            for kind in ("slope", "intercept", "r2", "sxx", "syy")
        },
        **{f"boolean-aggregate {kind}": Booleans(kind, 5) for kind in ("and", "or", "count")},
        **{f"bitwise-aggregate {kind}": Bits(kind, 6, pa.int32()) for kind in ("and", "or", "xor")},
        "recompute-aggregate": Recompute(GIVEN, TEXT, [1, 4], order, 5),
        "first": First(1, LONG),
        "last": First(1, LONG, last=True, ignore_nulls=True, order=order, where=5),
        "any-value": any_value(1, LONG),
        "max-by": MinMaxBy(1, LONG, 2),
        "min-by": MinMaxBy(1, LONG, 2, largest=False, where=5),
        "collect": CollectList(1, LONG),
        "collect-order": CollectList(1, LONG, order=order, where=5),
        "collect-distinct": CollectList(1, LONG, distinct=True),
        "listagg": ListAgg(4, TEXT, ", ", distinct=True),
        "listagg-plain": ListAgg(4, TEXT),
        "mode": Mode(1, LONG),
        "mode-descending": Mode(1, LONG, descending=True, where=5),
        "percentile": Percentile(2, DOUBLE, 0.9),
        "percentile-several": Percentile(2, DOUBLE, [0.9]),
        "percentile-disc": Percentile(2, DOUBLE, 0.5, "disc", descending=True),
        "percentile-approx": Percentile(1, LONG, [0.25, 0.75], "approx", where=5),
        "median": median(1, LONG),
        "count-distinct": count_distinct([1, 4], 5),
        "sum-distinct": sum_distinct(2, DOUBLE),
        "average-distinct": average_distinct(1, LONG),
        "variance-distinct": OfDistinct(Variance(0, DOUBLE), [2]),
    }
    for name, aggregate in made.items():
        yield name, b.aggregate(t, ["k"], x=aggregate)
    yield "several", b.aggregate(t, ["k", "n"], a=Count(), b=Extreme(1, LONG, True))
    yield "everything", b.aggregate(t, [], n=Count())
    yield "buckets", b.aggregate_of_buckets(b.bucket(t, ["k"]), "bucket", {"most": Extreme(1, LONG, True)})


def windows(b):
    """Every window function, and every form of a frame."""
    t = b.source("t", "k BIGINT, l BIGINT, d DOUBLE, c DECIMAL(12, 2), day DATE, at TIMESTAMP, s STRING")
    day = datetime.timedelta(days=1)
    by = {
        "l": {
            **{n: Ranking(n) for n in ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist")},
            "ntile": Ranking("ntile", 4),
            "lead": Shift(2, 1),
            "lag": Shift(1, -2, 7, True),
            "lag-string": Shift(6, -1, "none"),
            "lag-decimal": Shift(3, -1, Decimal("0.00")),
            "lag-date": Shift(4, -1, datetime.date(2020, 1, 1)),
            "first-value": Nth(1, 1),
            "last-value": Nth(1, -1, Frame("rows", None, 0), True),
            "frame-count": FrameCount(),
            "frame-count-column": FrameCount(1, Frame("range", None, 0)),
            "frame-sum": FrameSum(2, Frame("rows", -2, 2)),
            "frame-sum-range": FrameSum(1, Frame("range", -5, 5)),
            "frame-average": FrameAverage(3, Frame("rows")),
            "frame-min": FrameExtreme(1, False, Frame("rows", None, -1)),
            "frame-max": FrameExtreme(1, True, Frame("rows", 1, None)),
        },
        "d": {"frame-float": FrameSum(1, Frame("range", -0.5, 0.5))},
        "c": {"frame-decimal": FrameSum(1, Frame("range", Decimal("-0.50"), 0))},
        "day": {"frame-days": FrameSum(1, Frame("range", -7, 0))},
        "at": {"frame-time": FrameSum(1, Frame("range", -day, datetime.timedelta()))},
    }
    for order, functions in by.items():
        for name, function in functions.items():
            yield name, b.window(t, ["k"], [order], {"x": function})
    yield "several", b.window(t, [], [("l", "desc")], {"x": Ranking("rank"), "y": FrameSum(1)})


def recursion(b):
    """Fixpoints, one inside another, several variables."""
    edges = b.source("edges", "src BIGINT, dst BIGINT")

    def step(s, reach, edges):
        further = s.join(reach, edges, [("dst", "src")], select=[(0, "src"), (1, "dst")])
        return s.distinct(s.union(edges, further))

    def nested(s, outer, edges):
        (inner,) = s.fixpoint({"inner": "src BIGINT, dst BIGINT"}, [s.union(outer, edges)], step, 50)
        return s.distinct(inner)

    def two(s, odd, even, edges):
        def one(given):
            return s.join(given, edges, [("dst", "src")], select=[(0, "src"), (1, "dst")])

        return [s.distinct(s.union(edges, one(even))), s.distinct(one(odd))]

    yield "fixpoint", b.fixpoint({"reach": "src BIGINT, dst BIGINT"}, [edges], step)[0]
    yield "fixpoint-limit", b.fixpoint({"reach": "src BIGINT, dst BIGINT"}, [edges], step, 7)[0]
    yield "fixpoint-nested", b.fixpoint({"outer": "src BIGINT, dst BIGINT"}, [edges], nested)[0]
    both = b.fixpoint({"odd": "src BIGINT, dst BIGINT", "even": "src BIGINT, dst BIGINT"}, [edges], two)
    yield "fixpoint-odd", both[0]
    yield "fixpoint-even", both[1]


def values(b):
    """What a query means on whole values, delays and loops."""
    t, v, w = b.source("t", ORDERS), b.value_source("v", ORDERS), b.value_source("w", CUSTOMERS)
    yield "integrate", b.integrate(t)
    yield "integrate-key", b.integrate(t, ["customer"])
    yield "differentiate", b.differentiate(v)
    yield "delay", b.delay(t)
    yield "delay-again", b.delay(t, seed=[(1, 2, 3)])
    yield "loop", b.loop(ORDERS)
    yield "loop-value", b.loop(ORDERS, values=True)
    yield "product", b.join(v, w, ["customer"])
    yield "product-other-key", b.join(v, w, [("id", "customer")])
    yield "product-delta", b.join(t, w, ["customer"])
    yield "join-on-values", b.join(v, w, ["customer"], "left")
    yield "distinct-on-values", b.distinct(v)
    yield "top-on-values", b.top(v, ["customer"], ["id"], 1)
    yield "top-on-values-by-another-key", b.top(v, ["id"], ["customer"], 1)
    yield "aggregate-on-values", b.aggregate(v, ["customer"], n=("sum", "amount"))


def derived(b):
    """Circuits of changes, as `incrementalize` and `optimise` make them."""
    v, w = b.value_source("v", ORDERS), b.value_source("w", CUSTOMERS)
    joined = b.filter(b.join(v, w, ["customer"]), GIVEN)
    b.output("fused", b.map(b.filter(joined, GIVEN), GIVEN, "x BIGINT"))
    b.output("projected", b.project(b.join(v, w, [("id", "customer")], select=[(0, "id"), (1, "region")]), ["region"]))
    b.output("selected", b.project(b.filter(b.scale(v, 2), GIVEN), ["id"]))
    changes = incrementalize(b.graph)
    for name, graph in (("changes", changes), ("optimised", optimise(changes))):
        for output, node in graph.outputs.items():
            yield f"{name}-{output}", node.stream


def combined(b):
    """What shards put in the place of an aggregate of everything, which has no id of its own."""
    t = b.source("t", ORDERS)
    whole = GroupAggregate(t.schema, [], [Count(), Sum(2, LONG), Extreme(2, LONG, True)], ["n", "s", "m"])
    yield "partial-aggregate", b.graph.add(PartialAggregate(whole), [t], ["delta"], "delta")
    most = b.arrange(t, [], [("amount", "desc", "nulls last")])
    partial = b.graph.add(PartialAggregate(whole), [t], ["delta"], "delta")
    yield "combined", b.graph.add(CombinedAggregate(whole), [partial, most], ["delta", "arranged"], "delta")


CASES = (columns, arranged, aggregates, windows, recursion, values, derived, combined)


def built():
    """Every case by name, with the graphs that they stand in."""
    found, graphs = {}, []
    for case in CASES:
        b = Builder()
        for name, stream in case(b):
            assert f"{case.__name__}/{name}" not in found
            found[f"{case.__name__}/{name}"] = stream
        graphs.append(b.graph)
    return found, graphs


def operators(graph):
    """The operators of a graph, those inside fixpoints included."""
    for node in graph:
        if node.operator is not None:
            yield node.operator
            inner = getattr(node.operator, "graph", None)
            if inner is not None:
                yield from operators(inner)


def test_node_ids_are_those_of_the_golden_file():
    found, _ = built()
    compare(GOLDEN, {name: stream.id for name, stream in found.items()})


def test_every_case_is_a_node_of_its_own():
    """The aggregates of a table, as the functions of a window, differ in nothing but themselves."""
    found, _ = built()
    same = {}
    for name, stream in found.items():
        same.setdefault(stream.id, []).append(name)
    assert [names for names in same.values() if len(names) > 1] == []


def test_the_golden_file_has_every_kind():
    found, graphs = built()
    seen = {type(part).kind for graph in graphs for operator in operators(graph) for part in parts(operator)}
    seen |= {
        type(part).kind for stream in found.values() if stream.node.operator for part in parts(stream.node.operator)
    }
    steps = {c.kind for c, name in declared().items() if name.startswith("dbspark.sql.")}  # tests/sql has those
    assert {c.kind for c in declared()} - seen - steps == set(), "add a case for it"


def test_golden_ids_do_not_depend_on_what_else_is_in_a_graph():
    b = Builder()
    b.output("extra", b.distinct(b.source("extra", "k BIGINT")))
    ids = {f"aggregates/{name}": stream.id for name, stream in aggregates(b)}
    found, _ = built()
    assert ids == {name: stream.id for name, stream in found.items() if name in ids}


def test_schemas_are_told_apart_by_names_types_and_nulls():
    ids = {linear.Project(Schema.of(s), [0]).parameters()[1].parameters() for s in ("k INT", "j INT", "k INT NOT NULL")}
    assert len(ids) == 3
