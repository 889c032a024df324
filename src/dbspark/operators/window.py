"""Window functions: ranks, neighbours, and aggregates over frames.

The input is arranged by the columns of PARTITION BY and ordered by those of ORDER BY. With W(P) the rows of a partition
P, each with the results of the functions, a tick emits

    sum over the partitions P in the delta of  W(P after) - W(P before)

State: none; partitions are read from the arrangement in front, before and after the tick. Cost: all rows of the
partitions in the delta, since one row may change the results of all others. Only rows whose results differ are emitted.
Two cases cost more: a sum of floats over a frame whose beginning moves costs the rows of every frame, because it is
added up from left to right, as in Spark; and a row of weight n is n rows here, since each has its own row number. Rows
of negative weight are ignored.

Rows that are equal in all order columns are *peers*. Where a result depends on the order among peers, that is the order
of the arrangement: by the values of the row. All functions are computed for all partitions at once, those before and
those after the tick in the same arrays.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dbspark.columnar import SortKey
from dbspark.columnar.chunk import Chunk, describe_arrays, gather_columns
from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import Int64s, int64s
from dbspark.columnar.schema import Schema
from dbspark.errors import DbsparkError, SchemaError
from dbspark.kernels.aggregate import window_functions as kw
from dbspark.kernels.memory import layout as nd
from dbspark.lazy import Lazy
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.keyed import KeyedOperator
from dbspark.operators.keys import distinct_keys
from dbspark.operators.placement import Placed, Policy, key_of
from dbspark.trace.lookup import Keys, first_rows_unordered

ROWS_MAX = (1 << 31) - 1
"""Limit of the rows of all partitions in a delta, before and after the tick together."""

Bounds = tuple[Int64s, Int64s]
"""For each row the first row of its frame, and the row after the last."""


# ---------------------------------------------------------------------- frames


@dataclass(frozen=True, slots=True)
class Frame:
    """A window frame: which rows around a row an aggregate sees.

    A bound is an offset from the row, below zero for PRECEDING, 0 for CURRENT ROW, and None where there is no bound.
    Offsets of ROWS are numbers of rows. Those of RANGE are differences in the order column: days for a date,
    microseconds (or a timedelta) for a timestamp; with RANGE, CURRENT ROW means all peers.

        Frame("rows", -1, 1)        ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING
        Frame("range", None, 0)     RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    """

    kind: ClassVar[str] = "frame"
    version: ClassVar[int] = 1

    units: Literal["rows", "range"]
    lower: Any = None
    upper: Any = None

    def __post_init__(self) -> None:
        if self.units not in ("rows", "range"):
            raise SchemaError(f"a frame is of 'rows' or of 'range'; given {self.units!r}")
        bounds = [b for b in (self.lower, self.upper) if b is not None]
        if self.units == "rows" and not all(type(b) is int for b in bounds):
            raise SchemaError(f"the bounds of {self!r} count rows, so they are integers")
        try:
            signs = [_sign(b) for b in bounds]
            wrong = len(bounds) == 2 and (signs[0] > signs[1] or (signs[0] == signs[1] and bounds[0] > bounds[1]))
        except TypeError:
            raise SchemaError(f"the bounds of {self!r} are not distances of one unit") from None
        if wrong:
            raise SchemaError(f"{self!r} ends before it begins; exchange its bounds")

    def parameters(self) -> tuple[Any, ...]:
        return self.units, self.lower, self.upper

    @property
    def distances(self) -> list[Any]:
        """The bounds that are distances in the order column: those of a RANGE frame other than CURRENT ROW and
        UNBOUNDED."""
        return [b for b in (self.lower, self.upper) if b is not None and _sign(b)] if self.units == "range" else []


def _sign(bound: Any) -> int:
    zero = datetime.timedelta() if isinstance(bound, datetime.timedelta) else 0
    return int(bound > zero) - int(bound < zero)


def _units(distance: Any, dtype: pa.DataType) -> int | float:
    """A distance of a RANGE frame in the units in which its order column is kept."""
    t = pa.types
    span = isinstance(distance, datetime.timedelta)
    number = isinstance(distance, int | Decimal | float) and type(distance) is not bool
    if t.is_floating(dtype) and number:
        return float(distance)
    exact: Decimal | None = None
    if t.is_decimal(dtype) and number:
        exact = Decimal(distance).scaleb(dtype.scale, Context(prec=100))
    elif t.is_date(dtype) and span:
        exact = Decimal(distance // datetime.timedelta(microseconds=1)) / (86400 * 10**6)
    elif (t.is_timestamp(dtype) or t.is_duration(dtype)) and span:
        exact = Decimal(distance // datetime.timedelta(microseconds=1))
    elif (t.is_integer(dtype) or t.is_date(dtype) or t.is_timestamp(dtype) or t.is_duration(dtype)) and number:
        exact = Decimal(distance)
    if exact is None or exact != exact.to_integral_value() or abs(exact) >= 1 << 126:
        raise SchemaError(f"a RANGE frame over an order column of {dtype} cannot reach {distance!r} away")
    return int(exact)


# ---------------------------------------------------------------------- partitions


class Partitions:
    """The rows of some partitions, first as they were before a tick, then as they are after it, in order.

    Row numbers run through all partitions. Results that several functions need are computed once and cached.
    """

    def __init__(self, sort_key: SortKey, arranged: Arranged, keys: Keys) -> None:
        self.sort_key = sort_key
        self._referenced = arranged
        tables, pos, which, weights = [], [], [], []
        chunks = 0
        for side, spine in enumerate((arranged.before, arranged.after)):
            if spine.entries:
                hits = first_rows_unordered(spine, keys, 1 << 62)
                tables.append(spine.sources[0])
                pos.append(hits.pos + (chunks << nd.ROW_BITS))
                which.append(hits.which + side * len(keys))
                weights.append(np.maximum(hits.weights, 0))
                chunks += len(tables[-1])
        none = np.empty(0, np.int64)
        copies = np.concatenate([none, *weights])
        if copies.sum(dtype=np.float64) > ROWS_MAX:
            raise DbsparkError(
                f"the partitions of a window that a tick touches have more than {ROWS_MAX} rows, weights counted; "
                "nothing was applied. Partition the window by more columns"
            )
        self.tables = np.concatenate([none, *tables])
        self.pos = np.repeat(np.concatenate([none, *pos]), copies)
        self.partition = np.repeat(np.concatenate([none, *which]), copies)
        self.rows = len(self.pos)
        self.starts = np.searchsorted(self.partition, np.arange(2 * len(keys) + 1))
        self.row = np.arange(self.rows)
        self.begin = self.starts[self.partition]
        self.end = self.starts[self.partition + 1]
        self._chunks: dict[int, Chunk] = {}
        self._counts: dict[int, Int64s] = {}
        self._frames: dict[Frame | None, Bounds] = {}
        self._sums: dict[int, Any] = {}

    @property
    def before(self) -> int:
        """Number of rows from before the tick; the rows from after it follow."""
        return int(self.starts[len(self.starts) // 2])

    @Lazy
    def peers(self) -> Bounds:
        """The first peer of each row, and the row after its last."""
        first, last = int64s(self.rows), int64s(self.rows)
        order, nodes = self.sort_key.order_address, self.sort_key.schema.node_count
        kw.find_peers(self.tables, self.pos, self.starts, order, nodes, first, last)
        return first, last

    def chunk(self, column: int) -> Chunk:
        """A chunk of one column, for kernels."""
        if column not in self._chunks:
            schema = self.sort_key.schema
            array = gather_columns(schema, self.tables, self.pos, (column,))
            self._chunks[column] = describe_arrays(schema.select((column,)), array, self.rows, None)
        return self._chunks[column]

    def column(self, column: int) -> pa.Array:
        arrays = self.chunk(column).keep[0]
        return arrays[0]

    def counts(self, column: int) -> Int64s:
        """For each row, and for the end, the number of earlier rows whose value is not NULL."""
        if column not in self._counts:
            out = np.zeros(self.rows + 1, np.int64)
            valid = self.column(column).is_valid().to_numpy(zero_copy_only=False)
            np.cumsum(valid, out=out[1:])
            self._counts[column] = out
        return self._counts[column]

    def values_at(self, column: int) -> Int64s:
        """The rows whose value is not NULL."""
        return np.flatnonzero(np.diff(self.counts(column)))

    def number_in_frame(self, column: int | None, frame: Frame | None) -> Int64s:
        """Number of rows of each frame whose value is not NULL; without a column the number of all rows of the
        frame."""
        lo, hi = self.bounds(frame)
        return hi - lo if column is None else self.counts(column)[hi] - self.counts(column)[lo]

    def bounds(self, frame: Frame | None) -> Bounds:
        """The frame of each row. None is SQL's default: up to the last peer, and everything without an order."""
        if frame not in self._frames:
            default = Frame("range", None, 0) if self.sort_key.order else Frame("rows")
            lo, hi = self._bounds(default if frame is None else frame)
            self._frames[frame] = lo, np.maximum(lo, hi)
        return self._frames[frame]

    def _bounds(self, frame: Frame) -> Bounds:
        if frame.units == "rows":
            far = ROWS_MAX + 1
            lower = self.begin if frame.lower is None else self.row + max(-far, min(frame.lower, far))
            upper = self.end if frame.upper is None else self.row + 1 + max(-far, min(frame.upper, far))
            return np.clip(lower, self.begin, self.end), np.clip(upper, self.begin, self.end)
        lo = self.begin if frame.lower is None else self._reach(frame.lower, False)
        return lo, self.end if frame.upper is None else self._reach(frame.upper, True)

    def _reach(self, distance: Any, beyond: bool) -> Int64s:
        """For each row the first row at `distance` from it in the order column or, if `beyond`, the first one behind
        that."""
        if not _sign(distance):
            return self.peers[1] if beyond else self.peers[0]
        column, descending, nulls_last = self.sort_key.order[0]
        units = _units(distance, self.sort_key.schema.types[column])
        key_high, key_low, valid = self._keys(column, 0)
        high, low, _ = self._keys(column, -units if descending else units)
        out = int64s(self.rows)
        kw.range_ends(
            self.starts, key_high, key_low, valid, high, low, int(descending), int(nulls_last), int(beyond), out
        )
        return out

    def _keys(self, column: int, units: int | float) -> tuple[Int64s, Any, Any]:
        whole = units if isinstance(units, int) else 0
        high, low, valid = np.zeros(self.rows, np.int64), np.zeros(self.rows, np.uint64), np.zeros(self.rows, np.bool_)
        offset = float(units) if isinstance(units, float) else 0.0
        low_part = np.uint64(whole & 0xFFFFFFFFFFFFFFFF)
        kw.range_keys(self.chunk(column).table, offset, whole >> 64, low_part, high, low, valid)
        return high, low, valid

    def integer_sums(self, column: int, frame: Frame | None, limit: int) -> Any:
        """The sum over each frame as 128 bits in two words; raises if the magnitude of one is not below `limit`."""
        if column not in self._sums:
            self._sums[column] = np.empty((self.rows + 1, 3), np.uint64)
            kw.sum_prefixes(self.chunk(column).table, self._sums[column])
        out = np.empty((self.rows, 2), np.uint64)
        if kw.frame_sums(self._sums[column], *self.bounds(frame), *_words(limit), out):
            raise _too_large("sum")
        return out

    def float_sums(self, column: int, frame: Frame | None) -> npt.NDArray[np.float64]:
        out = np.empty(self.rows, np.float64)
        kw.float_sums(self.chunk(column).table, *self.bounds(frame), out)
        return out

    def at(self, column: int, rows: Int64s) -> pa.Array:
        """The values of a column at some row numbers; NULL where the number is negative."""
        return self.column(column).take(pa.array(rows, mask=rows < 0))

    def changed(self, results: Chunk) -> Int64s:
        """The rows without an equal row, with equal results, on the other side of the tick."""
        capacity = min(self.before, self.rows - self.before)
        left, right = int64s(capacity), int64s(capacity)
        schema = self.sort_key.schema
        n = kw.pair_rows(self.tables, self.pos, self.starts, schema.columns, schema.node_count, left, right)
        left, right, same = left[:n], right[:n], np.ones(n, np.bool_)
        for c in range(results.schema.columns):
            kw.keep_equal(results.table, nd.LANES + c, results.schema.node_count, left, right, same)
        keep = np.ones(self.rows, np.bool_)
        keep[left[same]] = False
        keep[right[same]] = False
        return np.flatnonzero(keep)


def _words(limit: int) -> tuple[Any, Any]:
    return np.uint64(limit & 0xFFFFFFFFFFFFFFFF), np.uint64(limit >> 64)


def _too_large(what: str) -> DbsparkError:
    return DbsparkError(f"{what} over a window frame is beyond its type; nothing was applied. Cast its column first")


def _array(dtype: pa.DataType, data: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array of fixed width over numpy memory."""
    bits = None if valid is None or valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(dtype, len(data), [bits, pa.py_buffer(np.ascontiguousarray(data))])


# ---------------------------------------------------------------------- functions


class WindowFunction(ABC):
    """A window function, which computes one column. Columns of the input are given by number. Compared by value."""

    kind: ClassVar[str]
    version: ClassVar[int]
    frame: Frame | None = None

    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """The parameters that, with its kind and version, are its identity (`dbspark.identity`)."""

    @abstractmethod
    def type_in(self, schema: Schema) -> pa.DataType:
        """The type of its results over rows of a schema; raises if it is not defined for the column's type."""

    @abstractmethod
    def compute(self, rows: Partitions) -> pa.Array:
        """Its result for every row."""

    @abstractmethod
    def label(self, names: Sequence[str]) -> str:
        """As SQL calls it."""


RankingName = Literal["row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"]


@dataclass(frozen=True, slots=True)
class Ranking(WindowFunction):
    """A ranking function: where a row stands in its partition."""

    kind: ClassVar[str] = "ranking"
    version: ClassVar[int] = 1

    name: RankingName
    buckets: int = 0
    """Number of buckets of ntile."""

    def __post_init__(self) -> None:
        if self.name not in get_args(RankingName):
            raise SchemaError(f"no ranking {self.name!r}; there are {', '.join(get_args(RankingName))}")
        if self.name == "ntile" and self.buckets < 1:
            raise SchemaError(f"ntile needs a number of buckets above zero; given {self.buckets}")

    def parameters(self) -> tuple[Any, ...]:
        return self.name, self.buckets

    def type_in(self, schema: Schema) -> pa.DataType:
        return pa.float64() if self.name in ("percent_rank", "cume_dist") else pa.int32()

    def compute(self, rows: Partitions) -> pa.Array:
        return pa.array(self._numbers(rows), self.type_in(rows.sort_key.schema))

    def _numbers(self, rows: Partitions) -> Any:
        index, size = rows.row - rows.begin, rows.end - rows.begin
        if self.name == "row_number":
            return index + 1
        if self.name == "ntile":
            least, larger = np.divmod(size, self.buckets)  # the first `larger` buckets have one row more
            rest = index - larger * (least + 1)
            return 1 + np.where(rest < 0, index // (least + 1), larger + rest // np.maximum(least, 1))
        first, last = rows.peers
        if self.name == "rank":
            return first - rows.begin + 1
        if self.name == "dense_rank":
            seen = np.cumsum(first == rows.row)
            return seen - seen[rows.begin] + 1
        if self.name == "cume_dist":
            return (last - rows.begin) / size
        return (first - rows.begin) / np.maximum(size - 1, 1)

    def label(self, names: Sequence[str]) -> str:
        return f"{self.name}({self.buckets or ''})"


@dataclass(frozen=True, slots=True)
class Shift(WindowFunction):
    """lead, or lag where the offset is below zero: the value some rows away, and the default outside the partition.

    If it ignores NULLs, the offset counts only rows with a value; an offset of 0 is the row itself even then.
    """

    kind: ClassVar[str] = "lead-lag"
    version: ClassVar[int] = 1

    column: int
    offset: int
    default: Any = None
    ignore_nulls: bool = False

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.offset, self.default, self.ignore_nulls

    def type_in(self, schema: Schema) -> pa.DataType:
        self._default(schema)
        return schema.types[self.column]

    def _default(self, schema: Schema) -> pa.Array:
        dtype = schema.types[self.column]
        try:
            return pa.array([self.default], dtype)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"{self.default!r} is no default for a column of {dtype}: {error}") from None

    def compute(self, rows: Partitions) -> pa.Array:
        far = ROWS_MAX + 1
        offset = max(-far, min(self.offset, far))
        if self.ignore_nulls and offset:
            counts, valued = rows.counts(self.column), rows.values_at(self.column)
            rank = (counts[1:] - 1 if offset > 0 else counts[:-1]) + offset  # among the rows that have a value
            inside = (rank >= counts[rows.begin]) & (rank < counts[rows.end])
            at = np.full(rows.rows, -1, np.int64)
            at[inside] = valued[rank[inside]]
        else:
            at = rows.row + offset
            at[(at < rows.begin) | (at >= rows.end)] = -1
        if self.default is None:
            return rows.at(self.column, at)
        values = pa.concat_arrays([rows.column(self.column), self._default(rows.sort_key.schema)])
        at[at < 0] = rows.rows
        return values.take(pa.array(at))

    def label(self, names: Sequence[str]) -> str:
        default = "" if self.default is None else f", {self.default!r}"
        name = "lead" if self.offset > 0 else "lag"
        return f"{name}({names[self.column]}, {abs(self.offset)}{default}){_nulls(self.ignore_nulls)}"


@dataclass(frozen=True, slots=True)
class Nth(WindowFunction):
    """nth_value: the nth row of the frame, from its end if n is negative. first_value is n = 1, last_value n = -1."""

    kind: ClassVar[str] = "nth-value"
    version: ClassVar[int] = 1

    column: int
    n: int
    frame: Frame | None = None
    ignore_nulls: bool = False

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.n, self.frame, self.ignore_nulls

    def type_in(self, schema: Schema) -> pa.DataType:
        if not self.n:
            raise SchemaError("nth_value counts from 1; given 0")
        return schema.types[self.column]

    def compute(self, rows: Partitions) -> pa.Array:
        lo, hi = rows.bounds(self.frame)
        if self.ignore_nulls:
            counts = rows.counts(self.column)
            lo, hi = counts[lo], counts[hi]
        n = max(-ROWS_MAX - 1, min(self.n, ROWS_MAX + 1))
        at = lo + n - 1 if n > 0 else hi + n
        inside = (at >= lo) & (at < hi)
        if self.ignore_nulls:
            at[inside] = rows.values_at(self.column)[at[inside]]
        at[~inside] = -1
        return rows.at(self.column, at)

    def label(self, names: Sequence[str]) -> str:
        name = {1: "first_value", -1: "last_value"}.get(self.n, "nth_value")
        n = f", {self.n}" if name == "nth_value" else ""
        return f"{name}({names[self.column]}{n}){_nulls(self.ignore_nulls)}{_text(self.frame)}"


@dataclass(frozen=True, slots=True)
class FrameCount(WindowFunction):
    """count(*), or count(column)."""

    kind: ClassVar[str] = "frame-count"
    version: ClassVar[int] = 1

    column: int | None = None
    frame: Frame | None = None

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.frame

    def type_in(self, schema: Schema) -> pa.DataType:
        return pa.int64()

    def compute(self, rows: Partitions) -> pa.Array:
        return pa.array(rows.number_in_frame(self.column, self.frame))

    def label(self, names: Sequence[str]) -> str:
        return f"count({'*' if self.column is None else names[self.column]}){_text(self.frame)}"


@dataclass(frozen=True, slots=True)
class FrameSum(WindowFunction):
    """sum; NULL where no row of the frame has a value. Exact, except that floats are added from left to right."""

    kind: ClassVar[str] = "frame-sum"
    version: ClassVar[int] = 1

    column: int
    frame: Frame | None = None

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.frame

    def type_in(self, schema: Schema) -> pa.DataType:
        dtype = _number(schema, self.column, "sum")
        if pa.types.is_decimal(dtype):
            return pa.decimal128(min(dtype.precision + 10, 38), dtype.scale)
        return pa.float64() if pa.types.is_floating(dtype) else pa.int64()

    def compute(self, rows: Partitions) -> pa.Array:
        out = self.type_in(rows.sort_key.schema)
        valid = rows.number_in_frame(self.column, self.frame) > 0
        if pa.types.is_floating(out):
            return _array(out, rows.float_sums(self.column, self.frame), valid)
        if pa.types.is_decimal(out):
            return _array(out, rows.integer_sums(self.column, self.frame, 10**out.precision), valid)
        words = rows.integer_sums(self.column, self.frame, 1 << 127)
        if not _small(words).all():
            raise _too_large("sum")
        return _array(out, words[:, 0], valid)

    def label(self, names: Sequence[str]) -> str:
        return f"sum({names[self.column]}){_text(self.frame)}"


@dataclass(frozen=True, slots=True)
class FrameAverage(WindowFunction):
    """avg: of floats and integers a double, of decimals a decimal with four more digits."""

    kind: ClassVar[str] = "frame-average"
    version: ClassVar[int] = 1

    column: int
    frame: Frame | None = None

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.frame

    def type_in(self, schema: Schema) -> pa.DataType:
        dtype = _number(schema, self.column, "avg")
        if pa.types.is_decimal(dtype):
            return pa.decimal128(min(dtype.precision + 4, 38), min(dtype.scale + 4, 38))
        return pa.float64()

    def compute(self, rows: Partitions) -> pa.Array:
        schema = rows.sort_key.schema
        dtype, out = schema.types[self.column], self.type_in(schema)
        counts = rows.number_in_frame(self.column, self.frame)
        divisors, valid = np.maximum(counts, 1), counts > 0
        if pa.types.is_floating(dtype):
            return _array(out, rows.float_sums(self.column, self.frame) / divisors, valid)
        if pa.types.is_decimal(dtype):
            words = rows.integer_sums(self.column, self.frame, 10 ** min(dtype.precision + 10, 38))
            quotients = np.empty_like(words)
            factor = 10 ** (out.scale - dtype.scale)
            if kw.divide_frame_sums(words, counts, factor, *_words(10**out.precision), quotients):
                raise _too_large("avg")
            return _array(out, quotients, valid)
        words = rows.integer_sums(self.column, self.frame, 1 << 127)
        wide = words[:, 1].view(np.int64) * 2.0**64 + words[:, 0]
        sums = np.where(_small(words), words[:, 0].view(np.int64).astype(np.float64), wide)
        return _array(out, sums / divisors, valid)

    def label(self, names: Sequence[str]) -> str:
        return f"avg({names[self.column]}){_text(self.frame)}"


@dataclass(frozen=True, slots=True)
class FrameExtreme(WindowFunction):
    """min and max of any type that has an order; NULL where no row of the frame has a value."""

    kind: ClassVar[str] = "frame-min-max"
    version: ClassVar[int] = 1

    column: int
    largest: bool
    frame: Frame | None = None

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.largest, self.frame

    def type_in(self, schema: Schema) -> pa.DataType:
        return schema.types[self.column]

    def compute(self, rows: Partitions) -> pa.Array:
        chunk = rows.chunk(self.column)
        queue, at = int64s(rows.rows), int64s(rows.rows)
        bounds = rows.bounds(self.frame)
        kw.frame_extremes(chunk.table, chunk.schema.node_count, rows.starts, *bounds, int(self.largest), queue, at)
        return rows.at(self.column, at)

    def label(self, names: Sequence[str]) -> str:
        return f"{'max' if self.largest else 'min'}({names[self.column]}){_text(self.frame)}"


def _small(words: Any) -> Any:
    """Mask of the 128-bit integers that fit into 64 bits."""
    return words[:, 0].view(np.int64) >> 63 == words[:, 1].view(np.int64)


def _number(schema: Schema, column: int, what: str) -> pa.DataType:
    dtype = schema.types[column]
    t = pa.types
    if t.is_decimal(dtype) or t.is_integer(dtype) or t.is_floating(dtype):
        return dtype
    raise SchemaError(f"{what} of column {schema.names[column]!r} of {dtype}; it takes numbers, so cast it")


def _nulls(ignored: bool) -> str:
    return " ignore nulls" if ignored else ""


def _text(frame: Frame | None) -> str:
    if frame is None:
        return ""

    def bound(offset: Any, side: str) -> str:
        if offset is None:
            return f"unbounded {side}"
        if not _sign(offset):
            return "current row"
        return f"{abs(offset)} {'following' if _sign(offset) > 0 else 'preceding'}"

    return f" {frame.units} between {bound(frame.lower, 'preceding')} and {bound(frame.upper, 'following')}"


# ---------------------------------------------------------------------- the operator


class Window(KeyedOperator):
    """Window functions over partitions: the columns of the input, then one for each function."""

    kind: ClassVar[str] = "window"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey, functions: Sequence[WindowFunction], names: Sequence[str]) -> None:
        self.sort_key = sort_key
        self.functions = tuple(functions)
        source = sort_key.schema
        results = [pa.field(n, f.type_in(source)) for n, f in zip(names, self.functions, strict=True)]
        self.results = Schema(pa.schema(results))
        self.schema = Schema(pa.schema([*source.arrow, *results]))
        for function in self.functions:
            for distance in function.frame.distances if function.frame else ():
                if len(sort_key.order) != 1:
                    raise SchemaError(
                        f"{function.frame!r} needs exactly one order column to measure distances in; "
                        f"there are {len(sort_key.order)}"
                    )
                _units(distance, source.types[sort_key.order[0][0]])

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        arranged = inputs[0]
        if not arranged.delta.rows:
            return (), Delta.empty(self.schema)
        rows = Partitions(self.sort_key, arranged, distinct_keys(arranged.delta))
        if not rows.rows:
            return (), Delta.empty(self.schema)
        results = [function.compute(rows) for function in self.functions]
        changed = rows.changed(describe_arrays(self.results, results, rows.rows, None))
        source = self.sort_key.schema
        columns = gather_columns(source, rows.tables, rows.pos[changed], range(source.columns))
        columns += [result.take(pa.array(changed)) for result in results]
        return (), Delta(self.schema, columns, np.where(changed < rows.before, -1, 1))

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return frozenset({key_of(self.sort_key)})

    def parameters(self) -> tuple[Any, ...]:
        return self.sort_key, self.functions, self.schema.names

    def label(self) -> str:
        names = self.sort_key.schema.names
        return f"window {', '.join(f.label(names) for f in self.functions)}"


__all__ = [
    "Frame", "FrameAverage", "FrameCount", "FrameExtreme", "FrameSum", "Nth", "Partitions", "Ranking", "Shift",
    "Window", "WindowFunction",
]  # fmt: skip
