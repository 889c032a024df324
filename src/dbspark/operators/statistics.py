"""Linear aggregates for statistics (variance, skewness, covariance, correlation, regression), booleans and bits.

All are linear: a tick adds the contribution of the delta to the accumulator, O(delta). As in Spark, statistics are of
doubles, whatever the types of the columns. But sums of powers and products are kept exactly
(`kernels.aggregate.moments`), and each central moment is rounded once. So a result depends on the present rows alone,
not on their order or on rows that have been retracted, and is within a few last bits of the true value; Spark's own
result may be further off. Where Spark's intermediate results overflow (values beyond 1e150), the result here is still
correct.

A statistic is NULL if no row has all values, or if it is not defined (of one row, or where a deviation that it divides
by is zero), as in Spark with default settings. NaN and infinities make a statistic NaN.

Booleans are counts of true and false; bits of integers are counted one by one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.memory import Int64s, allocate
from dbspark.errors import SchemaError
from dbspark.kernels.aggregate import bit_counts as kb
from dbspark.kernels.aggregate import moments as km
from dbspark.operators.aggregate import Aggregate, Touched

Floats = Any
"""An array of float64."""


def as_floats(column: pa.Array) -> Floats:
    """Cast numbers to double as Spark does, each to the nearest; the value in the place of a NULL is arbitrary."""
    if pa.types.is_decimal(column.type):
        column = pc.cast(pc.cast(column, pa.string()), pa.float64())  # Arrow's own cast may be off by a last bit
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(0, column.type))
    return column.to_numpy(zero_copy_only=False).astype(np.float64)


def valid_rows(column: pa.Array) -> Any:
    """Which rows have a value, as an array of bool."""
    if not column.null_count:
        return np.ones(len(column), bool)
    return column.is_valid().to_numpy(zero_copy_only=False)


def grouped(ids: Int64s, groups: int) -> tuple[Int64s, Int64s]:
    """(order, starts): sort rows by group; group g has the rows order[starts[g]:starts[g+1]]."""
    starts = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(ids, minlength=groups), out=starts[1:])
    return np.argsort(ids, kind="stable"), starts


def _check_numbers(name: str, dtype: pa.DataType) -> None:
    if not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)):
        raise SchemaError(f"{name} is of numbers, not of {dtype}; cast the column to a number")


def _binary_at(column: pa.Array) -> tuple[int, int]:
    """Addresses of the offsets and of the bytes of a binary column."""
    if not len(column):
        return 0, 0
    buffers = column.buffers()
    return buffers[1].address + 4 * column.offset, buffers[2].address if buffers[2] is not None else 0


# ---------------------------------------------------------------------- moments

_TERMS: dict[str, list[tuple[int, int, tuple[str, ...]]]] = {
    "x": [(1, 0, ("x",))],
    "y": [(1, 0, ("y",))],
    "mxx": [(1, 1, ("xx",)), (-1, 0, ("x", "x"))],
    "myy": [(1, 1, ("yy",)), (-1, 0, ("y", "y"))],
    "mxy": [(1, 1, ("xy",)), (-1, 0, ("x", "y"))],
    "mxxx": [(1, 2, ("xxx",)), (-3, 1, ("x", "xx")), (2, 0, ("x", "x", "x"))],
    "mxxxx": [(1, 3, ("xxxx",)), (-4, 2, ("x", "xxx")), (6, 1, ("x", "x", "xx")), (-3, 0, ("x", "x", "x", "x"))],
}
"""Values computed from the sums, by name: each a sum of terms (coefficient, power of the number of rows, factors).
Names that begin with m are central moments."""


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Floats, each times a power of two, so that products and quotients neither overflow nor underflow."""

    value: Floats
    power: Int64s

    def __truediv__(self, other: _Scaled) -> _Scaled:
        return _Scaled(self.value / other.value, self.power - other.power)

    def __mul__(self, other: _Scaled) -> _Scaled:
        return _Scaled(self.value * other.value, self.power + other.power)

    def root(self) -> _Scaled:
        odd = self.power & 1
        return _Scaled(np.sqrt(np.ldexp(self.value, odd)), (self.power - odd) >> 1)

    def over(self, number: Floats) -> _Scaled:
        return _Scaled(self.value / number, self.power)

    def floats(self) -> Floats:
        return np.ldexp(self.value, self.power)


class Moments(Aggregate):
    """A statistic of one or two columns, computed from exact sums of their products.

    Accumulator: the number of rows that have all values, for each column the number of those that are not finite,
    and the sums, which leave out values that are not finite.
    """

    out = pa.float64()
    additive = True
    sums: tuple[str, ...]
    """The products that are summed, named by their factors."""

    def __init__(
        self,
        column: int,
        dtype: pa.DataType,
        second: int | None = None,
        second_type: pa.DataType | None = None,
        where: int | None = None,
    ) -> None:
        for accumulated in (dtype, second_type):
            if accumulated is not None:
                _check_numbers(self.name, accumulated)
        self.column = column
        self.second = second
        self.where = where

    @property
    def columns(self) -> tuple[int, ...]:
        return (self.column,) if self.second is None else (self.column, self.second)

    def parameters(self) -> tuple[Any, ...]:
        return self.columns, self.where

    def fields(self) -> list[pa.DataType]:
        return [pa.int64()] * (1 + len(self.columns)) + [pa.binary()] * len(self.sums)

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        delta = touched.delta
        weights = np.ascontiguousarray(delta.weights)
        taken = np.ones(delta.rows, bool) if self.where is None else touched.mask(self.where).astype(bool)
        for c in self.columns:
            taken &= valid_rows(delta.columns[c])
        values = [as_floats(delta.columns[c]) for c in self.columns]
        counters = [touched.old_numbers(at + i) for i in range(1 + len(values))]
        np.add.at(counters[0], touched.ids[taken], weights[taken])
        finite = [taken & np.isfinite(value) for value in values]
        for fine, counter in zip(finite, counters[1:], strict=True):
            odd = taken & ~fine
            np.add.at(counter, touched.ids[odd], weights[odd])
        order, starts = grouped(touched.ids, touched.groups)
        x, y = values[0], values[-1]
        offsets = np.empty(touched.groups + 1, np.int32)
        out = [pa.array(c) for c in counters]
        for i, factors in enumerate(self.sums):
            rows = np.logical_and.reduce([finite[0 if f == "x" else -1] for f in factors]).astype(np.uint8)
            old = _binary_at(touched.old[at + len(counters) + i])
            capacity = 8 * touched.groups + 64
            while True:
                limbs = np.empty(capacity, np.int32)
                used = km.sum_products(
                    x, y, factors.count("x"), factors.count("y"), rows, weights, order, starts,
                    *old, touched.old_row, offsets, limbs,
                )  # fmt: skip
                if used >= 0:
                    break
                capacity *= 4
            buffers = [None, pa.py_buffer(offsets.copy()), pa.py_buffer(limbs[:used])]
            out.append(pa.Array.from_buffers(pa.binary(), touched.groups, buffers))
        return out

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        accumulated = _Accumulated(self, columns)
        with np.errstate(all="ignore"):
            values, undefined = self.statistic(accumulated)
        return pa.array(values, pa.float64(), mask=undefined | (accumulated.count == 0))

    @abstractmethod
    def statistic(self, accumulated: _Accumulated) -> tuple[Floats, Any]:
        """The results, and a mask of those that are NULL; groups without rows may have any value."""


class _Accumulated:
    """Accumulators of a statistic, and what can be computed from them."""

    def __init__(self, aggregate: Moments, columns: Sequence[pa.Array]) -> None:
        width = 1 + len(aggregate.columns)
        self.names = aggregate.sums
        self.count: Int64s = np.ascontiguousarray(columns[0].to_numpy())
        self.n = self.count.astype(np.float64)
        self.odd_x = columns[1].to_numpy() != 0
        self.odd_y = columns[width - 1].to_numpy() != 0
        self.odd = self.odd_x | self.odd_y
        self.columns = columns[width:]  # keeps alive what the addresses point to
        self.addresses = np.array([_binary_at(c) for c in self.columns], np.int64).reshape(-1, 2)

    def scaled(self, name: str) -> _Scaled:
        """One of `_TERMS`: a sum, or a central moment (a sum of powers of deviations) times n ** (degree - 1)."""
        terms = _TERMS[name]
        lines = np.full((len(terms), 2 + km.FACTORS), -1, np.int64)
        for i, (coefficient, power, factors) in enumerate(terms):
            lines[i, :2] = coefficient, power
            lines[i, 2 : 2 + len(factors)] = [self.names.index(f) for f in factors]
        values, powers = np.empty(len(self.count)), np.empty(len(self.count), np.int64)
        degree = sum(map(len, terms[0][2]))
        offsets, data = (np.ascontiguousarray(self.addresses[:, i]) for i in range(2))
        km.combine(offsets, data, self.count, lines, degree, values, powers)
        return _Scaled(values, powers)


class Variance(Moments):
    """var_samp, var_pop, stddev_samp, stddev_pop: of a sample NULL where there is one row only."""

    kind: ClassVar[str] = "variance"
    version: ClassVar[int] = 1

    sums = ("x", "xx")

    def __init__(self, column: int, dtype: pa.DataType, *, sample: bool = True, root: bool = False,
                 where: int | None = None) -> None:  # fmt: skip
        self.name = f"{'stddev' if root else 'var'}_{'samp' if sample else 'pop'}"
        super().__init__(column, dtype, where=where)
        self.sample = sample
        self.root = root

    def parameters(self) -> tuple[Any, ...]:
        return *super().parameters(), self.sample, self.root

    def statistic(self, accumulated: _Accumulated) -> tuple[Floats, Any]:
        variance = (
            accumulated.scaled("mxx").over(accumulated.n).over(accumulated.n - 1 if self.sample else accumulated.n)
        )
        values = (variance.root() if self.root else variance).floats()
        values[accumulated.odd] = np.nan
        return values, accumulated.count == 1 if self.sample else np.zeros(len(values), bool)


class Skewness(Moments):
    """skewness; NULL where all values are equal."""

    kind: ClassVar[str] = "skewness"
    version: ClassVar[int] = 1

    name = "skewness"
    sums = ("x", "xx", "xxx")

    def __init__(self, column: int, dtype: pa.DataType, where: int | None = None) -> None:
        super().__init__(column, dtype, where=where)

    def statistic(self, accumulated: _Accumulated) -> tuple[Floats, Any]:
        second = accumulated.scaled("mxx")
        values = (accumulated.scaled("mxxx") / (second * second.root())).floats()  # the powers of n cancel
        values[accumulated.odd] = np.nan
        return values, (second.value == 0) & ~accumulated.odd


class Kurtosis(Moments):
    """kurtosis above that of the normal distribution; NULL where all values are equal."""

    kind: ClassVar[str] = "kurtosis"
    version: ClassVar[int] = 1

    name = "kurtosis"
    sums = ("x", "xx", "xxx", "xxxx")

    def __init__(self, column: int, dtype: pa.DataType, where: int | None = None) -> None:
        super().__init__(column, dtype, where=where)

    def statistic(self, accumulated: _Accumulated) -> tuple[Floats, Any]:
        second = accumulated.scaled("mxx")
        values = (accumulated.scaled("mxxxx") / (second * second)).floats() - 3.0
        values[accumulated.odd] = np.nan
        return values, (second.value == 0) & ~accumulated.odd


class Covariance(Moments):
    """covar_samp, covar_pop and regr_sxy (the sum of the products of deviations); symmetric in the columns."""

    kind: ClassVar[str] = "covariance"
    version: ClassVar[int] = 1

    sums = ("x", "y", "xy")

    def __init__(self, column: int, dtype: pa.DataType, second: int, second_type: pa.DataType, *, kind: str = "samp",
                 where: int | None = None) -> None:  # fmt: skip
        if kind not in ("samp", "pop", "sum"):
            raise SchemaError(f"a covariance is 'samp', 'pop' or 'sum'; given {kind!r}")
        self.name = "regr_sxy" if kind == "sum" else f"covar_{kind}"
        super().__init__(column, dtype, second, second_type, where)
        self.divisor = kind

    def parameters(self) -> tuple[Any, ...]:
        return *super().parameters(), self.divisor

    def statistic(self, accumulated: _Accumulated) -> tuple[Floats, Any]:
        moment = accumulated.scaled("mxy").over(accumulated.n)
        if self.divisor != "sum":
            moment = moment.over(accumulated.n - 1 if self.divisor == "samp" else accumulated.n)
        values = moment.floats()
        values[accumulated.odd] = np.nan
        return values, accumulated.count == 1 if self.divisor == "samp" else np.zeros(len(values), bool)


class Correlation(Moments):
    """corr; NULL where there is one row, or all values of one column are equal."""

    kind: ClassVar[str] = "correlation"
    version: ClassVar[int] = 1

    name = "corr"
    sums = ("x", "y", "xx", "yy", "xy")

    def __init__(self, column: int, dtype: pa.DataType, second: int, second_type: pa.DataType,
                 where: int | None = None) -> None:  # fmt: skip
        super().__init__(column, dtype, second, second_type, where)

    def statistic(self, accumulated: _Accumulated) -> tuple[Floats, Any]:
        xx, yy = accumulated.scaled("mxx"), accumulated.scaled("myy")
        values = np.clip((accumulated.scaled("mxy") / (xx * yy).root()).floats(), -1.0, 1.0)
        values[accumulated.odd] = np.nan
        flat = (xx.value == 0) & ~accumulated.odd_x | (yy.value == 0) & ~accumulated.odd_y
        return values, flat | (accumulated.count == 1)


class Regression(Moments):
    """regr_slope, regr_intercept, regr_r2, regr_sxx, regr_syy of y (the first column) by x (the second).

    Slope, intercept and r2 are NULL if all x are equal; r2 is 1 if all y are equal and the x are not.
    """

    kind: ClassVar[str] = "regression"
    version: ClassVar[int] = 1

    def __init__(self, kind: str, y: int, y_type: pa.DataType, x: int, x_type: pa.DataType,
                 where: int | None = None) -> None:  # fmt: skip
        if kind not in ("slope", "intercept", "r2", "sxx", "syy"):
            raise SchemaError(f"no regression regr_{kind}; there are slope, intercept, r2, sxx, syy")
        self.name = f"regr_{kind}"
        self.coefficient = kind
        self.sums = {
            "slope": ("x", "y", "xx", "xy"),
            "intercept": ("x", "y", "xx", "xy"),
            "r2": ("x", "y", "xx", "yy", "xy"),
            "sxx": ("x", "xx"),
            "syy": ("y", "yy"),
        }[kind]
        super().__init__(x, x_type, y, y_type, where)

    def parameters(self) -> tuple[Any, ...]:
        return *super().parameters(), self.coefficient

    def statistic(self, accumulated: _Accumulated) -> tuple[Floats, Any]:
        if self.coefficient in ("sxx", "syy"):
            values = accumulated.scaled(f"m{self.coefficient[1:]}").over(accumulated.n).floats()
            values[accumulated.odd_x if self.coefficient == "sxx" else accumulated.odd_y] = np.nan
            return values, np.zeros(len(values), bool)
        xx, xy = accumulated.scaled("mxx"), accumulated.scaled("mxy")
        flat = (xx.value == 0) & ~accumulated.odd_x
        if self.coefficient == "r2":
            yy = accumulated.scaled("myy")
            values = np.minimum((xy / xx * (xy / yy)).floats(), 1.0)
            values[accumulated.odd] = np.nan
            values[(yy.value == 0) & ~accumulated.odd_y] = 1.0
        else:
            slope = xy / xx
            values = slope.floats()
            if self.coefficient == "intercept":
                mean = [accumulated.scaled(c).over(accumulated.n) for c in "xy"]
                values = mean[1].floats() - (slope * mean[0]).floats()
            values[accumulated.odd] = np.nan
        return values, flat


# ---------------------------------------------------------------------- booleans and bits


class Booleans(Aggregate):
    """bool_and (every), bool_or (some, any), count_if. Accumulator: the numbers of true and of false values."""

    kind: ClassVar[str] = "boolean-aggregate"
    version: ClassVar[int] = 1

    additive = True

    def __init__(self, kind: str, column: int, where: int | None = None) -> None:
        if kind not in ("and", "or", "count"):
            raise SchemaError(f"an aggregate of booleans is 'and', 'or' or 'count'; given {kind!r}")
        self.name = "count_if" if kind == "count" else f"bool_{kind}"
        self.function = kind
        self.column = column
        self.where = where
        self.out = pa.int64() if kind == "count" else pa.bool_()

    def parameters(self) -> tuple[Any, ...]:
        return self.function, self.column, self.where

    def fields(self) -> list[pa.DataType]:
        return [pa.int64(), pa.int64()]

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        column = touched.delta.columns[self.column]
        taken = valid_rows(column)
        if self.where is not None:
            taken = taken & touched.mask(self.where).astype(bool)
        true = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
        out = []
        for i, rows in enumerate((taken & true, taken & ~true)):
            counts = touched.old_numbers(at + i)
            np.add.at(counts, touched.ids[rows], touched.delta.weights[rows])
            out.append(pa.array(counts))
        return out

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        if self.function == "count":
            return columns[0]
        true, false = (c.to_numpy() for c in columns)
        values = (true != 0) & (false == 0) if self.function == "and" else true != 0
        return pa.array(values, pa.bool_(), mask=(true == 0) & (false == 0))


class Bits(Aggregate):
    """bit_and, bit_or, bit_xor of integers, in their own type.

    Accumulator: the number of values, and how many of them have each bit. For bit_xor it is enough to know which bits
    an odd number of them has.
    """

    kind: ClassVar[str] = "bitwise-aggregate"
    version: ClassVar[int] = 1

    def __init__(self, kind: str, column: int, dtype: pa.DataType, where: int | None = None) -> None:
        if kind not in ("and", "or", "xor"):
            raise SchemaError(f"an aggregate of bits is 'and', 'or' or 'xor'; given {kind!r}")
        if not pa.types.is_signed_integer(dtype):
            raise SchemaError(f"bit_{kind} is of integers, not of {dtype}")
        self.name = f"bit_{kind}"
        self.function = kind
        self.column = column
        self.where = where
        self.out = dtype

    def parameters(self) -> tuple[Any, ...]:
        return self.function, self.column, self.out, self.where

    def fields(self) -> list[pa.DataType]:
        return [pa.int64(), pa.int64() if self.function == "xor" else pa.binary()]

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        column = touched.delta.columns[self.column]
        weights = np.require(touched.delta.weights, requirements=["C", "W"])  # the types that the kernel takes
        taken = valid_rows(column)
        if self.where is not None:
            taken = taken & touched.mask(self.where).astype(bool)
        values = pc.fill_null(column, pa.scalar(0, column.type)).to_numpy(zero_copy_only=False).astype(np.int64)
        counts = touched.old_numbers(at)
        np.add.at(counts, touched.ids[taken], weights[taken])
        if self.function == "xor":
            odd = taken & (weights & 1 == 1)
            parity = touched.old_numbers(at + 1)
            np.bitwise_xor.at(parity, touched.ids[odd], values[odd])
            return [pa.array(counts), pa.array(parity)]
        order, starts = grouped(touched.ids, touched.groups)
        offsets = np.empty(touched.groups + 1, np.int32)
        data = allocate(8 * self.out.bit_width * touched.groups)
        used = kb.update_bit_counts(
            values, self.out.bit_width, taken.astype(np.uint8), weights, order, starts,
            *_binary_at(touched.old[at + 1]), touched.old_row, offsets, data.address,
        )  # fmt: skip
        # A copy, so that state does not keep the larger buffer alive, which has space for counters of eight bytes.
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.slice(0, used).to_pybytes())]
        return [pa.array(counts), pa.Array.from_buffers(pa.binary(), touched.groups, buffers)]

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        counts = np.ascontiguousarray(columns[0].to_numpy())
        if self.function == "xor":
            values = columns[1].to_numpy()
        else:
            values = np.empty(len(counts), np.int64)
            every = int(self.function == "and")
            if len(counts):
                kb.read_bits(*_binary_at(columns[1]), counts, self.out.bit_width, every, values)
        return pa.array(values.astype(self.out.to_pandas_dtype()), self.out, mask=counts == 0)


__all__ = [
    "Bits", "Booleans", "Correlation", "Covariance", "Kurtosis", "Moments", "Regression", "Skewness", "Variance",
    "as_floats", "grouped", "valid_rows",
]  # fmt: skip
