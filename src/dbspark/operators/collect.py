"""Aggregates that read the rows of the groups in the delta (the *touched* groups).

They keep no sums: the rows of a group are in an arrangement by the group's key, and a tick computes the results of all
touched groups anew, in one pass. The accumulator is the result. Two ways of reading:

* `First`, `MinMaxBy` (first, last, any_value, min_by, max_by) read from one end of the group: O(log n), plus the rows
  that are skipped because of a FILTER or IGNORE NULLS;
* the others read all rows of the touched groups, in the order of the arrangement. Where that is the order of the
  aggregated column, equal values follow each other: distinct values, modes and percentiles are found in one pass.

Rows of weight n count n times; rows of negative weight do not count. A FILTER (`where`) is a boolean column.

Where Spark's result depends on the order in which rows happen to arrive, the result here is a function of the rows:
they are ordered by ORDER BY, then by the whole row (by its values if there is an ORDER BY, else by its hash). So
collect_list and listagg without an order follow the hashes of the rows, collect_set is sorted, any_value is the least
value, ties of mode go to the least value and ties of min_by and max_by to the least row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.chunk import gather_columns
from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import Int64s
from dbspark.columnar.sort_key import OrderColumn
from dbspark.errors import DbsparkError, SchemaError
from dbspark.kernels.aggregate import group as kg
from dbspark.kernels.memory import layout as nd
from dbspark.operators.aggregate import Aggregate, Average, Count, FloatSum, Sum, Touched
from dbspark.operators.function import Function
from dbspark.operators.keys import keys_of
from dbspark.operators.linear import true_rows
from dbspark.operators.statistics import as_floats, valid_rows
from dbspark.trace.lookup import FoundRows, Keys, columns_of, first_rows_unordered
from dbspark.trace.spine import Spine

Order = tuple[OrderColumn, ...]
_ALL = 1 << 62
_SEARCH = 16
"""If the first rows of a group do not contain the one looked for, this many times more are read next."""


def spine_of(touched: Touched, order: Order) -> Spine:
    """The rows of the input by group, in the row order of an aggregate."""
    return next(a.after for a in touched.arranged if a.sort_key.order == order)


def runs(hits: FoundRows, columns: Sequence[int]) -> Any:
    """Mask of the rows that differ from the row before in their group or in one of the columns."""
    schema = hits.spine.sort_key.schema
    out = np.empty(len(hits), np.uint8)
    nodes = np.array([nd.LANES + c for c in columns], np.int64)
    kg.run_starts(hits.spine.sources[0], hits.pos, hits.which, nodes, schema.node_count, out)
    return out.astype(bool)


def list_type(element: pa.DataType) -> pa.DataType:
    """The Arrow type of arrays without NULL elements."""
    return pa.list_(pa.field("element", element, False))


def _starts(which: Int64s, groups: int) -> Int64s:
    return np.searchsorted(which, np.arange(groups + 1)).astype(np.int64)


def _ordered(order: Sequence[OrderColumn]) -> Order:
    return tuple((int(c), bool(descending), bool(last)) for c, descending, last in order)


class GroupReadingAggregate(Aggregate):
    """An aggregate that reads, in some order, all rows of the touched groups that pass its FILTER."""

    out: pa.DataType
    row_order: Order = ()
    where: int | None = None

    def order(self) -> Order:
        return self.row_order

    def rows(self, touched: Touched) -> FoundRows:
        hits = first_rows_unordered(spine_of(touched, self.row_order), touched.keys, _ALL)
        return _only(hits, self._accepted(hits))

    def _accepted(self, hits: FoundRows) -> Any:
        accepted = hits.weights > 0
        if self.where is not None:
            accepted &= true_rows(columns_of(hits, (self.where,))[0], len(hits))
        return accepted

    def parameters(self) -> tuple[Any, ...]:
        return self.argument(), self.out, self.row_order, self.where


class ResultAsAccumulator(GroupReadingAggregate):
    """An aggregate of the rows of a group whose accumulator is its result."""

    def fields(self) -> list[pa.DataType]:
        return [self.out]

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        return [self.answers(self.rows(touched), touched.groups)]

    @abstractmethod
    def answers(self, hits: FoundRows, groups: int) -> pa.Array:
        """The result for each group; `hits.which` is the group of each row, ascending."""

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        return columns[0]


def _only(hits: FoundRows, mask: Any) -> FoundRows:
    return hits if mask.all() else hits.only(mask)


def _with_values(hits: FoundRows, columns: Sequence[int]) -> tuple[FoundRows, list[pa.Array]]:
    """The rows without a NULL in some columns, and those columns."""
    values = columns_of(hits, columns)
    if not any(v.null_count for v in values):
        return hits, values
    valid = np.logical_and.reduce([valid_rows(v) for v in values])
    mask = pa.array(valid)
    return hits.only(valid), [v.filter(mask) for v in values]


class Recompute(ResultAsAccumulator):
    """Any function of the rows of a group: the general fallback.

    The function takes (starts, columns, weights) and returns a value for every group. Group g has rows starts[g] …
    starts[g+1]-1 of the columns, in the given order. It has to be deterministic.
    """

    kind: ClassVar[str] = "recompute-aggregate"
    version: ClassVar[int] = 1

    def __init__(
        self,
        function: Function | Callable[[Int64s, Sequence[pa.Array], Int64s], Any],
        out: pa.DataType,
        columns: Sequence[int],
        order: Sequence[OrderColumn] = (),
        where: int | None = None,
    ) -> None:
        self.function = Function.of(function)
        self.name = self.function.name
        self.out = out
        self.columns = tuple(columns)
        self.row_order = _ordered(order)
        self.where = where

    def answers(self, hits: FoundRows, groups: int) -> pa.Array:
        starts = _starts(hits.which, groups)
        results = self.function.call(starts, columns_of(hits, self.columns), hits.weights)
        if isinstance(results, pa.ChunkedArray):
            results = results.combine_chunks()
        if not isinstance(results, pa.Array):
            results = pa.array(results, self.out)
        if len(results) != groups:
            raise SchemaError(f"{self.name} gave {len(results)} values for {groups} groups")
        return results if results.type == self.out else results.cast(self.out)

    def parameters(self) -> tuple[Any, ...]:
        return self.function, self.out, self.columns, self.row_order, self.where


# ---------------------------------------------------------------------- ends of groups


class First(ResultAsAccumulator):
    """first and last, respecting or ignoring NULLs, by ORDER BY, or by the order of the arrangement if there is
    none."""

    kind: ClassVar[str] = "first-last"
    version: ClassVar[int] = 1

    def __init__(
        self,
        column: int,
        dtype: pa.DataType,
        *,
        last: bool = False,
        ignore_nulls: bool = False,
        order: Sequence[OrderColumn] = (),
        where: int | None = None,
    ) -> None:
        self.name = "last" if last else "first"
        self.column = column
        self.out = dtype
        self.last = last
        self.ignore_nulls = ignore_nulls
        self.row_order = _ordered(order)
        self.where = where

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        spine = spine_of(touched, self.row_order)
        pos = self._found(spine, touched.keys)
        there = np.flatnonzero(pos >= 0)
        found = FoundRows(spine, there, pos[there])
        return [self.answers(found, touched.groups)]

    def answers(self, hits: FoundRows, groups: int) -> pa.Array:
        where = np.full(groups, -1, np.int64)
        where[hits.which] = np.arange(len(hits))
        return self.values(hits).take(pa.array(where, mask=where < 0))

    def values(self, hits: FoundRows) -> pa.Array:
        return columns_of(hits, (self.column,))[0]

    def _found(self, spine: Spine, keys: Keys) -> Int64s:
        """The position of the first row of each key that qualifies, -1 where there is none."""
        out = np.full(len(keys), -1, np.int64)
        open_keys = np.arange(len(keys))
        limit = 1
        while len(open_keys):
            searched = keys if len(open_keys) == len(keys) else _keys_at(keys, open_keys)
            hits = first_rows_unordered(spine, searched, limit, self.last)
            accepted = np.flatnonzero(self._accepted(hits))
            which, at = np.unique(hits.which[accepted], return_index=True)
            out[open_keys[which]] = hits.pos[accepted[at]]
            more = np.bincount(hits.which, minlength=len(open_keys)) == limit
            more[which] = False
            open_keys = open_keys[more]
            limit *= _SEARCH
        return out

    def _accepted(self, hits: FoundRows) -> Any:
        accepted = super()._accepted(hits)
        if self.ignore_nulls:
            accepted &= valid_rows(columns_of(hits, (self.column,))[0])
        return accepted

    def parameters(self) -> tuple[Any, ...]:
        return (*super().parameters(), self.last, self.ignore_nulls)


def any_value(column: int, dtype: pa.DataType, where: int | None = None) -> First:
    """any_value, respecting or ignoring NULLs: the least value, NULL only if all values are."""
    return First(column, dtype, order=((column, False, True),), where=where)


class MinMaxBy(First):
    """max_by and min_by: a column of the row in which another one is largest or least.

    Rows where the other one is NULL do not count. With `by` = `column` it is max or min with a FILTER.
    """

    kind: ClassVar[str] = "min-max-by"
    version: ClassVar[int] = 1

    def __init__(
        self, column: int, dtype: pa.DataType, by: int, *, largest: bool = True, where: int | None = None
    ) -> None:
        super().__init__(column, dtype, order=((by, largest, True),), where=where)
        self.name = "max_by" if largest else "min_by"
        self.by = by

    def parameters(self) -> tuple[Any, ...]:
        return (*super().parameters(), self.by)

    def values(self, hits: FoundRows) -> pa.Array:
        # NULLs are last, so if the first row has one, all rows have.
        values, by = columns_of(hits, (self.column, self.by))
        if not by.null_count:
            return values
        rows = np.arange(len(hits))
        return values.take(pa.array(rows, mask=~valid_rows(by)))


def _keys_at(keys: Keys, rows: Int64s) -> Keys:
    chunk = keys.chunk
    tables = np.array((chunk.table,), np.int64)
    return keys_of(chunk.schema, gather_columns(chunk.schema, tables, rows, range(chunk.schema.columns)), len(rows))


# ---------------------------------------------------------------------- lists


class CollectList(ResultAsAccumulator):
    """collect_list, array_agg and, with `distinct`, collect_set. NULLs are left out; an empty list where none is left.

    Without an order it follows the arrangement; a set is in the order of its values.
    """

    kind: ClassVar[str] = "collect"
    version: ClassVar[int] = 1

    def __init__(
        self,
        column: int,
        dtype: pa.DataType,
        *,
        distinct: bool = False,
        order: Sequence[OrderColumn] = (),
        where: int | None = None,
    ) -> None:
        self.name = "collect_set" if distinct else "collect_list"
        self.column = column
        self.out = self.lists = list_type(dtype)
        self.distinct = distinct
        self.where = where
        self.row_order = _ordered(order)
        if distinct and not order:
            self.row_order = ((column, False, True),)
        if distinct and self.row_order[0][0] != column:
            raise SchemaError("distinct values are ordered by themselves; order by the aggregated column first")

    def answers(self, hits: FoundRows, groups: int) -> pa.Array:
        hits, values = _with_values(hits, (self.column,))
        elements, which = values[0], hits.which
        if self.distinct:
            first = runs(hits, (self.column,))
            if not first.all():
                elements, which = elements.filter(pa.array(first)), which[first]
        elif len(hits) and int(hits.weights.max()) > 1:
            if hits.weights.sum(dtype=np.float64) > nd.OFFSET_MAX:
                raise DbsparkError("a list of more than 2^31 elements cannot be made; nothing was applied")
            rows = np.repeat(np.arange(len(hits)), hits.weights)
            elements, which = elements.take(pa.array(rows)), which[rows]
        offsets = pa.array(_starts(which, groups).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, elements, type=self.lists)

    def parameters(self) -> tuple[Any, ...]:
        return (*super().parameters(), self.distinct)


class ListAgg(CollectList):
    """listagg, string_agg: the strings or bytes of a group with a separator between them; NULL where there are none."""

    kind: ClassVar[str] = "listagg"
    version: ClassVar[int] = 1

    def __init__(
        self,
        column: int,
        dtype: pa.DataType,
        separator: str | bytes | None = None,
        *,
        distinct: bool = False,
        order: Sequence[OrderColumn] = (),
        where: int | None = None,
    ) -> None:
        super().__init__(column, dtype, distinct=distinct, order=order, where=where)
        self.name = "listagg"
        self.out = dtype
        if not (pa.types.is_string(dtype) or pa.types.is_binary(dtype)):
            raise SchemaError(f"listagg is of strings or binary values, not of {dtype}; cast the column to a string")
        empty: str | bytes = "" if pa.types.is_string(dtype) else b""
        self.separator = empty if separator is None else separator
        if type(self.separator) is not type(empty):
            raise SchemaError(f"the separator of {dtype} values cannot be {separator!r}")

    def answers(self, hits: FoundRows, groups: int) -> pa.Array:
        lists = super().answers(hits, groups)
        empty = pc.equal(pc.list_value_length(lists), 0)
        plain = pa.ListArray.from_arrays(lists.offsets, lists.values)  # binary_join takes no other type
        joined = pc.binary_join(plain, pa.scalar(self.separator, self.out))
        return pc.if_else(empty, pa.scalar(None, self.out), joined)

    def parameters(self) -> tuple[Any, ...]:
        return (*super().parameters(), self.separator)


# ---------------------------------------------------------------------- values in order


class Mode(ResultAsAccumulator):
    """mode: the most frequent value; of several the least, or the largest with `descending`."""

    kind: ClassVar[str] = "mode"
    version: ClassVar[int] = 1

    name = "mode"

    def __init__(self, column: int, dtype: pa.DataType, *, descending: bool = False, where: int | None = None) -> None:
        self.column = column
        self.out = dtype
        self.row_order = ((column, descending, True),)
        self.where = where

    def answers(self, hits: FoundRows, groups: int) -> pa.Array:
        hits, values = _with_values(hits, (self.column,))
        if not len(hits):
            return pa.nulls(groups, self.out)
        begin = np.flatnonzero(runs(hits, (self.column,)))
        often = np.add.reduceat(hits.weights, begin)
        group = hits.which[begin]
        ranked = np.lexsort((-often, group))  # stable: of equally frequent values the first stays first
        which, at = np.unique(group[ranked], return_index=True)
        rows = np.full(groups, -1, np.int64)
        rows[which] = begin[ranked[at]]
        return values[0].take(pa.array(rows, mask=rows < 0))


class Percentile(ResultAsAccumulator):
    """percentile, percentile_cont, median; percentile_disc; percentile_approx, which is exact here.

    One fraction gives a value, several give a list; NULL where there are no values. `cont` interpolates, `disc` takes
    the first value whose share is reached, both as doubles; `approx` does the latter in the column's own type.
    """

    kind: ClassVar[str] = "percentile"
    version: ClassVar[int] = 1

    def __init__(
        self,
        column: int,
        dtype: pa.DataType,
        fractions: float | Sequence[float] = 0.5,
        kind: str = "cont",
        *,
        descending: bool = False,
        where: int | None = None,
    ) -> None:
        if kind not in ("cont", "disc", "approx"):
            raise SchemaError(f"a percentile is 'cont', 'disc' or 'approx'; given {kind!r}")
        numbers = pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)
        if not numbers and kind != "approx":
            raise SchemaError(f"a percentile is of numbers, not of {dtype}; cast the column to a number")
        self.name = {"cont": "percentile", "disc": "percentile_disc", "approx": "percentile_approx"}[kind]
        self.several = isinstance(fractions, Sequence)
        values = fractions if isinstance(fractions, Sequence) else [fractions]
        self.fractions = tuple(float(f) for f in values)
        if not all(0.0 <= f <= 1.0 for f in self.fractions):
            raise SchemaError(f"the fractions of a percentile are from 0 to 1; given {list(self.fractions)}")
        self.method = kind
        self.column = column
        self.element = dtype if kind == "approx" else pa.float64()
        self.out = list_type(self.element) if self.several else self.element
        self.row_order = ((column, descending, True),)
        self.where = where

    def answers(self, hits: FoundRows, groups: int) -> pa.Array:
        hits, values = _with_values(hits, (self.column,))
        width = len(self.fractions)
        if not len(hits):
            return pa.nulls(groups, self.out)
        upto = np.cumsum(hits.weights)
        starts = _starts(hits.which, groups)
        begin = np.where(starts > 0, upto[starts - 1], 0)
        base, sizes = begin[:-1], np.diff(begin)
        none = sizes == 0

        def rows_at(ranks: Any) -> Int64s:
            """The row of each group that has a rank (counted from 0)."""
            return np.where(none, 0, np.searchsorted(upto, base + ranks, "right"))

        if self.method == "cont":
            floats = as_floats(values[0])
            table = np.stack([_interpolated(floats, rows_at, (sizes - 1) * f) for f in self.fractions], 1)
            elements = pa.array(table.ravel())
        else:
            ranks = [np.maximum(np.ceil(sizes * f), 1).astype(np.int64) - 1 for f in self.fractions]
            rows = np.stack([rows_at(r) for r in ranks], 1).ravel()
            elements = values[0].take(pa.array(rows))
            if self.method == "disc":
                elements = pa.array(as_floats(elements))
        if not self.several:
            return pc.if_else(pa.array(none), pa.scalar(None, self.out), elements)
        offsets = pa.array(np.arange(0, groups * width + 1, width, dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, elements, type=self.out, mask=pa.array(none))

    def parameters(self) -> tuple[Any, ...]:
        return (*super().parameters(), self.method, self.fractions, self.several)


def _interpolated(values: Any, rows_at: Callable[[Any], Int64s], positions: Any) -> Any:
    """Interpolate between the values below and above each position, with Spark's formula."""
    low, high = np.floor(positions), np.ceil(positions)
    below, above = (values[rows_at(p.astype(np.int64))] for p in (low, high))
    with np.errstate(all="ignore"):
        between = (high - positions) * below + (positions - low) * above
    return np.where((low == high) | (below == above), below, between)


def median(column: int, dtype: pa.DataType, where: int | None = None) -> Percentile:
    return Percentile(column, dtype, 0.5, where=where)


# ---------------------------------------------------------------------- distinct


class OfDistinct(GroupReadingAggregate):
    """A linear aggregate of the distinct values of some columns; rows with a NULL in one of them do not count.

    `inner` reads those columns only; its column numbers are indices into `columns`.
    """

    kind: ClassVar[str] = "aggregate-of-distinct-values"
    version: ClassVar[int] = 1

    def __init__(self, inner: Aggregate, columns: Sequence[int], where: int | None = None) -> None:
        self.name = f"{inner.name} distinct"
        self.inner = inner
        self.out = inner.out
        self.columns = tuple(columns)
        self.row_order = tuple((c, False, False) for c in self.columns)
        self.where = where

    def fields(self) -> list[pa.DataType]:
        return self.inner.fields()

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        hits, _ = _with_values(self.rows(touched), self.columns)
        hits = _only(hits, runs(hits, self.columns))
        schema = hits.spine.sort_key.schema.select(self.columns)
        delta = Delta(schema, columns_of(hits, self.columns), np.ones(len(hits), np.int64))
        old = [pa.array([], t) for t in self.inner.fields()]
        none = np.full(touched.groups, -1, np.int64)
        fresh = replace(
            touched, delta=delta, chunk=delta.chunk(), ids=hits.which, old=old, old_row=none, arranged=()
        )  # fmt: skip
        return self.inner.update(fresh, 0)

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        return self.inner.result(columns)

    def parameters(self) -> tuple[Any, ...]:
        return self.inner, self.columns, self.row_order, self.where


def count_distinct(columns: Sequence[int], where: int | None = None) -> OfDistinct:
    """count(DISTINCT columns)."""
    return OfDistinct(Count(), columns, where)


def sum_distinct(column: int, dtype: pa.DataType, where: int | None = None) -> OfDistinct:
    """sum(DISTINCT column)."""
    return OfDistinct(FloatSum(0) if pa.types.is_floating(dtype) else Sum(0, dtype), (column,), where)


def average_distinct(column: int, dtype: pa.DataType, where: int | None = None) -> OfDistinct:
    """avg(DISTINCT column)."""
    return OfDistinct(Average(0, dtype), (column,), where)


__all__ = [
    "CollectList", "First", "GroupReadingAggregate", "ListAgg", "MinMaxBy", "Mode", "OfDistinct", "Percentile",
    "Recompute", "ResultAsAccumulator", "any_value", "average_distinct", "count_distinct", "list_type", "median",
    "runs", "spine_of", "sum_distinct",
]  # fmt: skip
