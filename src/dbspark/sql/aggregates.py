"""Aggregate functions of Spark SQL as the aggregates of `dbspark.operators`.

`compile_aggregate` returns the operator's aggregate for a call, or None: then Spark recomputes the groups that a tick
touches. Arguments are columns already. What Spark leaves open (which row `first` takes, the order of `collect_list`) is
decided by the sort key: equal rows give equal results, in whatever order they were inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from dbspark.operators.aggregate import Aggregate, Average, Count, Extreme, FloatSum, Sum
from dbspark.operators.collect import (
    CollectList,
    First,
    MinMaxBy,
    Mode,
    OfDistinct,
    Percentile,
    average_distinct,
    count_distinct,
    sum_distinct,
)
from dbspark.operators.statistics import Bits, Correlation, Covariance, Kurtosis, Skewness, Variance
from dbspark.sql.plan import Aggregation, Constant

Columns = Sequence[int]
Types = Sequence[pa.DataType]
Made = Callable[[Aggregation, Columns, Types, "int | None"], "Aggregate | None"]


def compile_aggregate(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    """The aggregate over columns of these types, `where` being the column of its FILTER."""
    rule = _RULES.get(given.call.name)
    return None if rule is None else rule(given, columns, types, where)


def _number(dtype: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_integer(dtype) or t.is_floating(dtype) or t.is_decimal(dtype))


def _count(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    if given.distinct:
        return count_distinct(columns, where)
    if len(columns) > 1:
        return None  # folded into one column before
    if isinstance(given.call.args[0], Constant):
        return Count(None, where) if given.call.args[0].value is not None else Count(columns[0], where)
    return Count(columns[0], where)


def _sum(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    if not _number(types[0]):
        return None
    if given.distinct:
        return sum_distinct(columns[0], types[0], where)
    return FloatSum(columns[0], where) if pa.types.is_floating(types[0]) else Sum(columns[0], types[0], where)


def _average(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    if not _number(types[0]):
        return None
    if given.distinct:
        return average_distinct(columns[0], types[0], where)
    return Average(columns[0], types[0], where)


def _extreme(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    largest = given.call.name == "Max"
    if where is not None:
        return MinMaxBy(columns[0], types[0], columns[0], largest=largest, where=where)
    return Extreme(columns[0], types[0], largest)


def _first(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    ignore = given.call.option("ignoreNulls") is True
    return First(columns[0], types[0], last=given.call.name == "Last", ignore_nulls=ignore, where=where)


def _variance(sample: bool, root: bool) -> Made:
    def make(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
        if given.call.option("nullOnDivideByZero") is False:
            return None
        if given.distinct:
            return OfDistinct(Variance(0, types[0], sample=sample, root=root), columns, where)
        return Variance(columns[0], types[0], sample=sample, root=root, where=where)

    return make


def _moments(kind: type[Skewness] | type[Kurtosis]) -> Made:
    def make(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
        return None if given.distinct else kind(columns[0], types[0], where)

    return make


def _covariance(kind: str) -> Made:
    def make(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
        if given.distinct:
            return None
        return Covariance(columns[0], types[0], columns[1], types[1], kind=kind, where=where)

    return make


def _correlation(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    return None if given.distinct else Correlation(columns[0], types[0], columns[1], types[1], where)


def _bits(kind: str) -> Made:
    def make(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
        if given.distinct and kind == "xor":
            return None
        return Bits(kind, columns[0], types[0], where)

    return make


def _collect(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    distinct = given.call.name == "CollectSet" or given.distinct
    if pa.types.is_nested(types[0]) or given.call.option("ignoreNulls") is False:
        return None
    return CollectList(columns[0], types[0], distinct=distinct, where=where)


def _by(largest: bool) -> Made:
    def make(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
        return MinMaxBy(columns[0], types[0], columns[1], largest=largest, where=where)

    return make


def _percentile(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    """A percentile of numbers at a constant fraction; with frequencies, it is left to Spark."""
    args = given.call.args
    if given.distinct or len(args) < 2 or not isinstance(args[1], Constant) or args[1].value is None:
        return None
    if len(args) > 2 and not (isinstance(args[2], Constant) and args[2].value == 1):
        return None
    if given.call.option("reverse") or not _number(types[0]) or pa.types.is_decimal(types[0]):
        return None
    return Percentile(columns[0], types[0], float(args[1].value), where=where)


def _mode(given: Aggregation, columns: Columns, types: Types, where: int | None) -> Aggregate | None:
    return None if given.distinct or given.call.option("reverseOpt") else Mode(columns[0], types[0], where=where)


_RULES: dict[str, Made] = {
    "Count": _count,
    "Sum": _sum,
    "Average": _average,
    "Min": _extreme,
    "Max": _extreme,
    "First": _first,
    "Last": _first,
    "AnyValue": _first,
    "StddevSamp": _variance(True, True),
    "StddevPop": _variance(False, True),
    "VarianceSamp": _variance(True, False),
    "VariancePop": _variance(False, False),
    "Skewness": _moments(Skewness),
    "Kurtosis": _moments(Kurtosis),
    "CovSample": _covariance("samp"),
    "CovPopulation": _covariance("pop"),
    "Corr": _correlation,
    "BitAndAgg": _bits("and"),
    "BitOrAgg": _bits("or"),
    "BitXorAgg": _bits("xor"),
    "CollectList": _collect,
    "CollectSet": _collect,
    "MaxBy": _by(True),
    "MinBy": _by(False),
    "Percentile": _percentile,
    "Mode": _mode,
}
