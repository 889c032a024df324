"""Statistics, booleans and bits: after every tick of any stream, the answer of exact arithmetic on what is there."""

import math
from decimal import Decimal
from fractions import Fraction
from functools import reduce

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.circuit import Builder
from dbspark.errors import SchemaError
from dbspark.identity import digest
from dbspark.operators.aggregate import Count
from dbspark.operators.statistics import (
    Bits,
    Booleans,
    Correlation,
    Covariance,
    Kurtosis,
    Regression,
    Skewness,
    Variance,
    as_floats,
)
from tests.operators.model import WEIGHTS, Run, entries, groups, plain

DOUBLE = pa.float64()
TABLE = "k BIGINT, x DOUBLE, y DOUBLE, f BOOLEAN"
SPECIAL = (math.nan, math.inf, -math.inf)
KEYS = st.sampled_from([None, 0, 1, 2])
ORDINARY = st.sampled_from([None, 0.0, -0.0, 1.0, 1.0, -2.5, 0.1, 1e8, 1e8 + 1, 3.0])
WILD = st.sampled_from([None, 0.0, 5e-324, 1e-300, -1e-160, 0.1, 1e16, 1e160, -1e300, 1.7e308, *SPECIAL]) | st.floats()
FLAGS = st.sampled_from([None, True, True, False])


def rows(values):
    return st.tuples(KEYS, values, values, FLAGS)


def ticks(values):
    return st.lists(entries(rows(values), WEIGHTS), min_size=1, max_size=5)


# ---------------------------------------------------------------------- the specification: exact, with fractions


def pairs(found, columns, where):
    """The values that take part, each as often as its weight says."""
    out = []
    for row, weight in found:
        values = [row[c] for c in columns]
        if None not in values and (where is None or row[where] is True):
            out += [tuple(math.nan if v == "NaN" else v for v in values)] * weight
    return out


def odd(values):
    return not all(map(math.isfinite, values))


def flat(values):
    """All values are equal, and numbers."""
    return not odd(values) and len(set(values)) == 1


def deviations(values):
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    return [v - mean for v in exact]


def moment(*columns):
    """The sum of the products of deviations."""
    return sum(map(math.prod, zip(*map(deviations, columns), strict=True)))


def root(x):
    """The square root of a fraction to some 70 digits."""
    scale = 1 << 500 + max(0, x.denominator.bit_length() - x.numerator.bit_length() + 1)
    return Fraction(math.isqrt(x.numerator * scale * scale // x.denominator), scale)


def variance(sample, rooted):
    def statistic(x):
        if sample and len(x) == 1:
            return None
        if odd(x):
            return math.nan
        exact = moment(x, x) / (len(x) - sample)
        return root(exact) if rooted else exact

    return statistic


def skewness(x):
    if odd(x):
        return math.nan
    m2, m3 = moment(x, x), moment(x, x, x)
    if m2 == 0:
        return None
    size = root(m3 * m3 / m2**3 * len(x))
    return size if m3 > 0 else -size


def kurtosis(x):
    if odd(x):
        return math.nan
    m2 = moment(x, x)
    return None if m2 == 0 else len(x) * moment(x, x, x, x) / (m2 * m2) - 3


def covariance(kind):
    def statistic(x, y):
        if kind == "samp" and len(x) == 1:
            return None
        return math.nan if odd(x + y) else moment(x, y) / {"samp": len(x) - 1, "pop": len(x), "sum": 1}[kind]

    return statistic


def correlation(x, y):
    if len(x) == 1 or flat(x) or flat(y):
        return None
    if odd(x + y):
        return math.nan
    xx, yy, xy = moment(x, x), moment(y, y), moment(x, y)
    size = root(xy * xy / (xx * yy))
    return size if xy > 0 else -size


def regression(kind):
    def statistic(x, y):
        if kind in ("sxx", "syy"):
            values = x if kind == "sxx" else y
            return math.nan if odd(values) else moment(values, values)
        if flat(x):
            return None
        if kind == "r2" and flat(y):
            return Fraction(1)
        if odd(x + y):
            return math.nan
        xx, yy, xy = moment(x, x), moment(y, y), moment(x, y)
        if kind == "r2":
            return xy * xy / (xx * yy)
        mean = [sum(map(Fraction, v)) / len(v) for v in (x, y)]
        return xy / xx if kind == "slope" else mean[1] - xy / xx * mean[0]

    return statistic


def of(statistic, columns, where=None):
    def aggregate(found):
        given = pairs(found, columns, where)
        return statistic(*map(list, zip(*given, strict=True))) if given else None

    return aggregate


STATISTICS = {
    "var_samp": (Variance(1, DOUBLE), of(variance(1, False), (1,))),
    "var_pop": (Variance(1, DOUBLE, sample=False), of(variance(0, False), (1,))),
    "stddev_samp": (Variance(1, DOUBLE, root=True), of(variance(1, True), (1,))),
    "stddev_pop": (Variance(1, DOUBLE, sample=False, root=True, where=3), of(variance(0, True), (1,), 3)),
    "skewness": (Skewness(1, DOUBLE), of(skewness, (1,))),
    "skewness_where": (Skewness(1, DOUBLE, where=3), of(skewness, (1,), 3)),
    "kurtosis": (Kurtosis(1, DOUBLE), of(kurtosis, (1,))),
    "covar_samp": (Covariance(1, DOUBLE, 2, DOUBLE), of(covariance("samp"), (1, 2))),
    "covar_pop": (Covariance(1, DOUBLE, 2, DOUBLE, kind="pop", where=3), of(covariance("pop"), (1, 2), 3)),
    "regr_sxy": (Covariance(1, DOUBLE, 2, DOUBLE, kind="sum"), of(covariance("sum"), (1, 2))),
    "corr": (Correlation(1, DOUBLE, 2, DOUBLE), of(correlation, (1, 2))),
    "corr_where": (Correlation(1, DOUBLE, 2, DOUBLE, where=3), of(correlation, (1, 2), 3)),
    **{
        f"regr_{kind}": (Regression(kind, 1, DOUBLE, 2, DOUBLE), of(regression(kind), (2, 1)))
        for kind in ("slope", "intercept", "r2", "sxx", "syy")
    },
}


def close(name, got, exact):
    """Within a few last bits of the exact value; NULL and NaN as they are."""
    if exact is None or got is None:
        return exact is got
    if isinstance(exact, float):
        return got == "NaN" and math.isnan(exact)
    slack = Fraction(1, 1 << 50)
    # What is subtracted last costs bits where the result is near zero.
    base = Fraction(3 if name == "kurtosis" else 0)
    if math.isinf(got):
        return abs(exact) > Fraction(math.nextafter(math.inf, 0)) * (1 - slack) and (got > 0) == (exact > 0)
    return abs(Fraction(got) - exact) <= (abs(exact) + base) * slack + Fraction(5e-324) * 4


def check(run, key, names):
    there = groups(run.given["t"], key)
    held = {row[: len(key)]: row[len(key) :] for row in run.held["out"]}
    assert held.keys() == there.keys()
    assert set(run.held["out"].values()) <= {1}
    for group, found in there.items():
        for name, got in zip(names, held[group], strict=True):
            exact = STATISTICS[name][1](found)
            if name == "regr_intercept" and isinstance(exact, Fraction):
                continue  # the difference of two roundings; its own test follows
            assert close(name, got, exact), (name, group, got, None if exact is None else float(exact), found)


def statistics_run(key, names=tuple(STATISTICS)):
    b = Builder()
    aggregates = {name: STATISTICS[name][0] for name in names}
    b.output("out", b.aggregate(b.source("t", TABLE), key, **aggregates))
    return Run(b)


@given(changes=st.one_of(ticks(ORDINARY), ticks(WILD)), key=st.sampled_from([["k"], ["k"], [], ["k", "f"]]))
def test_statistics_are_those_of_exact_arithmetic_and_leave_nothing(changes, key):
    run = statistics_run(key)
    columns = [{"k": 0, "f": 3}[c] for c in key]
    for change in changes:
        run.tick(t=run.possible("t", change))
        check(run, columns, tuple(STATISTICS))
    if key:
        run.retract()
    else:
        run.take_back()
        check(run, columns, tuple(STATISTICS))
        assert list(run.held["out"]) == [(None,) * len(STATISTICS)]
        assert list(run.circuit.state_rows().values()) == [1]


def test_a_global_statistic_answers_before_anything_has_come():
    run = statistics_run([])
    run.tick()
    assert run.held["out"] == {(None,) * len(STATISTICS): 1}


def test_what_floats_would_lose_is_kept():
    """A variance of 2/3 around 1e15, after a value has come and gone that would swallow both."""
    run = statistics_run([], ("var_pop", "regr_slope", "regr_intercept"))
    near = [(0, 1e15 + i, float(i), True) for i in range(3)]
    run.tick(t={**dict.fromkeys(near, 1), (0, 1e300, -1e300, True): 7})
    run.tick(t={(0, 1e300, -1e300, True): -7})
    assert run.held["out"] == {(2 / 3, 1.0, 1e15): 1}


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=8))
def test_the_intercept_is_near(points):
    run = statistics_run([], ("regr_intercept",))
    run.tick(t=run.possible("t", [((0, y, x, None), 1) for x, y in points]))
    ((got,),) = run.held["out"]
    exact = STATISTICS["regr_intercept"][1](list(run.given["t"].items()))
    if exact is None:
        assert got is None
    else:
        x, y = ([Fraction(p[i]) for p in points] for i in (0, 1))
        slope = STATISTICS["regr_slope"][1](list(run.given["t"].items()))
        size = abs(sum(y) / len(y)) + abs(slope * sum(x) / len(x))
        assert abs(Fraction(got) - exact) <= (size + abs(exact)) * Fraction(1, 1 << 49) + Fraction(5e-324) * 8


def test_an_infinity_beside_zeros_is_not_a_constant():
    """What is left of such a column without the infinity has no deviation."""
    names = ("skewness", "kurtosis", "corr", "regr_slope", "regr_r2")
    run = statistics_run(["k"], names)
    run.tick(
        t={(0, 0.0, 1.0, None): 1, (0, math.inf, 2.0, None): 1, (1, 1.0, 0.0, None): 1, (1, 2.0, math.inf, None): 1}
    )
    check(run, [0], names)
    assert {row[3] for row in run.held["out"]} == {"NaN"}


def test_large_weights():
    run = statistics_run([], ("var_pop", "kurtosis", "corr"))
    run.tick(t={(0, 1.0, 2.0, None): 1 << 40, (0, 3.0, 6.0, None): 1 << 40})
    assert run.held["out"] == {(1.0, -2.0, 1.0): 1}
    run.tick(t={(0, 1.0, 2.0, None): -(1 << 40), (0, 3.0, 6.0, None): 1 << 61})
    assert run.held["out"] == {(0.0, None, None): 1}


# ---------------------------------------------------------------------- other types of input


@pytest.mark.parametrize("dtype", ["TINYINT", "INT", "BIGINT", "FLOAT", "DECIMAL(38, 10)", "DECIMAL(9, 2)"])
@given(data=st.data())
def test_other_numbers_are_cast_to_double(dtype, data):
    values = {
        "TINYINT": st.integers(-128, 127),
        "INT": st.integers(-(2**31), 2**31 - 1),
        "BIGINT": st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1, 3]) | st.integers(-(2**63), 2**63 - 1),
        "FLOAT": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "DECIMAL(38, 10)": st.decimals(Decimal(-(10**27)), Decimal(10**27), places=10),
        "DECIMAL(9, 2)": st.decimals(-1000, 1000, places=2),
    }[dtype]
    b = Builder()
    source = b.source("t", f"k BIGINT, v {dtype}, d DOUBLE")
    given_type = source.schema.types[1]
    sd, c = Variance(1, given_type, sample=False), Covariance(1, given_type, 2, DOUBLE, kind="pop")
    b.output("out", b.aggregate(source, ["k"], v=sd, c=c))
    run = Run(b)
    row = st.tuples(KEYS, st.none() | values, st.sampled_from([0.0, 0.5, None]))
    for change in data.draw(st.lists(entries(row, WEIGHTS), min_size=1, max_size=3)):
        run.tick(t=run.possible("t", change))
        for row_out in run.held["out"]:
            found = groups(run.given["t"], (0,))[row_out[:1]]
            doubles = [((r[0], None if r[1] is None else float(r[1]), r[2]), w) for r, w in found]
            assert close("v", row_out[1], of(variance(0, False), (1,))(doubles))
            assert close("c", row_out[2], of(covariance("pop"), (1, 2))(doubles))
    run.retract()


@given(st.lists(st.none() | st.decimals(-(10**19), 10**19, places=18), max_size=5))
def test_decimals_become_the_nearest_floats(values):
    column = pa.array(values, pa.decimal128(38, 18))
    got = as_floats(column)
    assert got.dtype == np.float64
    assert [g for g, v in zip(got.tolist(), values, strict=True) if v is not None] == [
        float(v) for v in values if v is not None
    ]


def test_statistics_are_of_numbers():
    with pytest.raises(SchemaError, match="var_samp is of numbers, not of string"):
        Variance(0, pa.string())
    with pytest.raises(SchemaError, match="corr is of numbers"):
        Correlation(0, DOUBLE, 1, pa.date32())
    with pytest.raises(SchemaError, match="bit_and is of integers"):
        Bits("and", 0, DOUBLE)
    for wrong in (
        lambda: Bits("nand", 0, pa.int64()),
        lambda: Booleans("xor", 0),
        lambda: Covariance(0, DOUBLE, 1, DOUBLE, kind="x"),
        lambda: Regression("avgx", 0, DOUBLE, 1, DOUBLE),
    ):
        with pytest.raises(SchemaError):
            wrong()


# ---------------------------------------------------------------------- booleans and bits


def bits_of(operation, c, where=None):
    def aggregate(found):
        values = [v for (v,) in pairs(found, (c,), where)]
        return reduce(operation, values) if values else None

    return aggregate


@pytest.mark.parametrize(
    ("ddl", "dtype"),
    [("TINYINT", pa.int8()), ("SMALLINT", pa.int16()), ("INT", pa.int32()), ("BIGINT", pa.int64())],
)
@given(data=st.data())
def test_bits(ddl, dtype, data):
    top = 1 << dtype.bit_width - 1
    values = st.none() | st.sampled_from([0, -1, 1, 6, top - 1, -top]) | st.integers(-top, top - 1)
    key = data.draw(st.sampled_from([["k"], []]))
    b = Builder()
    aggregates = {
        "a": Bits("and", 1, dtype), "o": Bits("or", 1, dtype), "x": Bits("xor", 1, dtype),
        "aw": Bits("and", 1, dtype, where=2), "ow": Bits("or", 1, dtype, 2), "xw": Bits("xor", 1, dtype, 2),
    }  # fmt: skip
    b.output("out", b.aggregate(b.source("t", f"k BIGINT, v {ddl}, f BOOLEAN"), key, **aggregates))
    run = Run(b)
    operations = [lambda p, q: p & q, lambda p, q: p | q, lambda p, q: p ^ q]
    model = [bits_of(o, 1, where) for where in (None, 2) for o in operations]
    weights = WEIGHTS | st.sampled_from([300, 70_000, -300, -70_000])
    for change in data.draw(st.lists(entries(st.tuples(KEYS, values, FLAGS), weights), min_size=1, max_size=5)):
        run.tick(t=run.possible("t", change))
        there = groups(run.given["t"], (0,) if key else ())
        small = {k: [(row, 2 - w % 2) for row, w in found] for k, found in there.items()}  # as odd, and not as many
        assert run.held["out"] == {(*k, *(m(found) for m in model)): 1 for k, found in small.items()}
    if key:
        run.retract()
    else:
        run.take_back()
        assert run.held["out"] == {(None,) * 6: 1}


def test_counters_of_bits_beyond_four_bytes():
    b = Builder()
    source = b.source("t", "v BIGINT")
    b.output("out", b.aggregate(source, [], a=Bits("and", 0, pa.int64()), o=Bits("or", 0, pa.int64())))
    run = Run(b)
    run.tick(t={(-(1 << 63),): 1 << 40, (3,): 5})
    assert run.held["out"] == {(0, -(1 << 63) | 3): 1}
    run.tick(t={(3,): -5})
    assert run.held["out"] == {(-(1 << 63), -(1 << 63)): 1}


@given(
    ticks=st.lists(entries(st.tuples(KEYS, FLAGS, FLAGS), WEIGHTS), min_size=1, max_size=5),
    key=st.sampled_from([["k"], []]),
)
def test_booleans(ticks, key):
    b = Builder()
    aggregates = {f"{kind}{w}": Booleans(kind, 1, w) for w in (None, 2) for kind in ("and", "or", "count")}
    b.output("out", b.aggregate(b.source("t", "k BIGINT, v BOOLEAN, f BOOLEAN"), key, n=Count(), **aggregates))
    run = Run(b)

    def expected(found):
        out = [sum(w for _, w in found)]
        for where in (None, 2):
            values = [v for (v,) in pairs(found, (1,), where)]
            out += [all(values) if values else None, any(values) if values else None, sum(values)]
        return out

    for change in ticks:
        run.tick(t=run.possible("t", change))
        there = groups(run.given["t"], (0,) if key else ())
        assert run.held["out"] == {(*k, *expected(found)): 1 for k, found in there.items()}
    if key:
        run.retract()
    else:
        run.take_back()
        assert run.held["out"] == {(0, None, None, 0, None, None, 0): 1}


def test_two_statistics_with_another_parameter_are_other_nodes():
    made = [
        *(a for a, _ in STATISTICS.values()),
        *(Booleans(kind, c, w) for kind in ("and", "or", "count") for c in (1, 2) for w in (None, 3)),
        *(Bits(kind, c, t) for kind in ("and", "or", "xor") for c in (1, 2) for t in (pa.int8(), pa.int64())),
        Covariance(2, DOUBLE, 1, DOUBLE),
        Regression("slope", 2, DOUBLE, 1, DOUBLE),
    ]
    assert len({digest(a) for a in made}) == len(made)
    assert all(plain(a.parameters()) for a in made)


# ---------------------------------------------------------------------- Spark's own answers


def test_spark_gives_the_same(spark):
    """To within its own rounding, and NULL and NaN in the same places."""
    inf, nan = math.inf, math.nan
    points = {
        1: [(1.0, 1.0)], 2: [(1.0, 1.0), (1.0, 2.0)], 3: [(1.0, 1.0), (2.0, 2.0), (4.0, 3.5), (4.0, 3.5)],
        4: [(inf, 1.0)], 5: [(inf, 1.0), (1.0, 1.0)], 6: [(1.0, inf), (1.0, 1.0)], 7: [(nan, 1.0), (1.0, 2.0)],
        13: [(1.0, inf), (2.0, 0.0)], 14: [(inf, 1.0), (0.0, 2.0)],
        8: [(None, 1.0)], 9: [(1.0, None), (2.0, 3.0)], 10: [(1.0, -inf), (2.0, 1.0), (1.0, 1.0)],
        11: [(1.0, 2.0), (1.0, 2.0)], 12: [(1e-3, 2.0), (7.0, 2.0), (8.0, -2.0)],
    }  # fmt: skip
    given_rows = [(k, x, y, i % 2 == 0) for k, found in points.items() for i, (x, y) in enumerate(found)]
    calls = {
        "stddev_pop": "stddev_pop(x) FILTER (WHERE f)",
        "skewness_where": "skewness(x) FILTER (WHERE f)",
        "covar_pop": "covar_pop(x, y) FILTER (WHERE f)",
        "corr_where": "corr(x, y) FILTER (WHERE f)",
    }
    queries = []
    for name, (aggregate, _) in STATISTICS.items():
        columns = "x" if aggregate.second is None else "x, y"
        queries.append(calls.get(name, f"{name}({columns})"))
    bits = ["bit_and(b)", "bit_or(b)", "bit_xor(b)", "every(f)", "any(f)", "count_if(f)"]
    flags = {f"b{k}": Bits(k, 4, pa.int16()) for k in ("and", "or", "xor")}
    flags |= {f"f{k}": Booleans(k, 3) for k in ("and", "or", "count")}
    b = Builder()
    table = f"{TABLE}, b SMALLINT"
    b.output("out", b.aggregate(b.source("t", table), ["k"], **{n: a for n, (a, _) in STATISTICS.items()}, **flags))
    run = Run(b)
    given_rows = [(*row, (i * 7919) % 4001 - 2000) for i, row in enumerate(given_rows)]
    run.tick(t=dict.fromkeys(given_rows, 1))
    spark.createDataFrame(given_rows, table).createOrReplaceTempView("points")
    frame = spark.sql(f"SELECT k, {', '.join(queries + bits)} FROM points GROUP BY k")
    assert [f.type for f in frame.toArrow().schema] == list(run.circuit.graph.outputs["out"].schema.types)
    answers = {row[0]: plain(tuple(row)) for row in frame.collect()}
    assert len(run.held["out"]) == len(points)
    for row in run.held["out"]:
        for query, got, theirs in zip(queries + bits, row[1:], answers[row[0]][1:], strict=True):
            same = got == theirs or (
                isinstance(got, float)
                and isinstance(theirs, float)
                and got == pytest.approx(theirs, rel=1e-9, abs=1e-12)
            )
            assert same, (query, row[0], got, theirs)
