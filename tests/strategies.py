"""Random schemas, tables and weights for hypothesis, over every Spark SQL type.

Values come from a pool of extremes as often as from the whole range, and tables repeat few distinct rows, so that
equal rows, NULLs, NaN, -0.0 and the ends of every type are the rule. Tables come as slices with odd offsets and in
several chunks, because that is how Arrow data arrives. Import as `from tests.strategies import schemas, tables`.
"""

import struct
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from dbspark.columnar import Schema

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
DAY_NANOS = 86_400 * 10**9
SPECIAL_FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    5e-324,
    2.0**-149,
    3.4028234663852886e38,
]
TEXTS = ["", "a", "abc", "abcd", "abcdefgh", "abcdefghi", "Ärger", "日本語", "🦆", "a\0b", "x" * 31, "y" * 70]

FLAT_TYPES: list[pa.DataType] = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(38, 0),
    pa.decimal128(38, 38),
    pa.decimal128(10, 2),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
    pa.time64("ns"),
    pa.duration("us"),
    pa.month_day_nano_interval(),
    pa.null(),
]


def flat_types(null: bool = True) -> st.SearchStrategy[pa.DataType]:
    """Types without children; `null=False` leaves out the type whose only value is NULL."""
    return st.sampled_from(FLAT_TYPES if null else FLAT_TYPES[:-1])


@lru_cache
def data_types(depth: int = 2) -> st.SearchStrategy[pa.DataType]:
    """Any type, with arrays, structs and maps nested up to `depth`."""
    if depth == 0:
        return flat_types()
    inner = data_types(depth - 1)
    fields = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3)
    keys = flat_types(null=False) | st.just(pa.list_(pa.field("element", pa.int32())))
    return st.one_of(
        flat_types(),
        st.builds(lambda t: pa.list_(pa.field("element", t)), inner),
        fields.map(lambda fs: pa.struct([pa.field(f"f{i}", t, _can_be_null(t, n)) for i, (t, n) in enumerate(fs)])),
        st.builds(pa.map_, keys, inner),
    )


def _can_be_null(dtype: pa.DataType, nullable: bool) -> bool:
    return nullable or pa.types.is_null(dtype)


@st.composite
def schemas(draw: st.DrawFn, min_columns: int = 1, max_columns: int = 3, depth: int = 2) -> Schema:
    """A schema of columns c0, c1, …, some of them NOT NULL."""
    types = draw(st.lists(data_types(depth), min_size=min_columns, max_size=max_columns))
    fields = [pa.field(f"c{i}", t, _can_be_null(t, draw(st.booleans()))) for i, t in enumerate(types)]
    return Schema(pa.schema(fields))


def weights() -> st.SearchStrategy[int]:
    """A weight, zero included: mostly ±1, sometimes large, never so large that a few thousand of them overflow."""
    return st.sampled_from([1, 1, 1, -1, -1, 2, -2, 0]) | st.integers(-(2**40), 2**40)


def _ints(low: int, high: int) -> st.SearchStrategy[int]:
    return st.sampled_from([low, low + 1, -1, 0, 1, high - 1, high]) | st.integers(low, high)


def single(value: float) -> float:
    """A float rounded to four bytes."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _decimals(dtype: pa.DataType) -> st.SearchStrategy[Decimal]:
    top = 10**dtype.precision - 1
    return _ints(-top, top).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -dtype.scale)))


@lru_cache(maxsize=4096)  # building a strategy costs more than drawing from it
def values(dtype: pa.DataType, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Python values from which `pa.array(…, dtype)` is built; times are given as the integers they are stored as."""
    inner = _values(dtype)
    return st.none() | inner if nullable else inner


@lru_cache(maxsize=4096)
def _values(dtype: pa.DataType) -> st.SearchStrategy[Any]:
    t = pa.types
    if t.is_null(dtype):
        return st.none()
    if t.is_boolean(dtype):
        return st.booleans()
    if t.is_signed_integer(dtype):
        return _ints(-(1 << (dtype.bit_width - 1)), (1 << (dtype.bit_width - 1)) - 1)
    if t.is_float32(dtype):
        return st.sampled_from(SPECIAL_FLOATS).map(single) | st.floats(width=32)
    if t.is_float64(dtype):
        return st.sampled_from(SPECIAL_FLOATS) | st.floats()
    if t.is_decimal(dtype):
        return _decimals(dtype)
    if t.is_string(dtype):
        return st.sampled_from(TEXTS) | st.text(max_size=20)
    if t.is_binary(dtype):
        return st.sampled_from(TEXTS).map(str.encode) | st.binary(max_size=40)
    if t.is_date32(dtype):
        return _ints(-(2**31), 2**31 - 1)
    if t.is_time(dtype):
        return st.integers(0, DAY_NANOS // 1000 - 1).map(lambda us: us * 1000)  # Spark keeps microseconds
    if t.is_timestamp(dtype) or t.is_duration(dtype):
        return _ints(INT64_MIN, INT64_MAX)
    if t.is_interval(dtype):
        part = _ints(-(2**31), 2**31 - 1)
        return st.tuples(part, part, _ints(INT64_MIN, INT64_MAX))
    if t.is_struct(dtype):
        return st.fixed_dictionaries({f.name: values(f.type, f.nullable) for f in dtype})
    if t.is_map(dtype):
        pairs = st.tuples(_values(dtype.key_type), values(dtype.item_type, dtype.item_field.nullable))
        return st.lists(pairs, max_size=4, unique_by=lambda pair: map_key(pair[0]))
    if t.is_list(dtype):
        return st.lists(values(dtype.value_type, dtype.value_field.nullable), max_size=4)
    raise AssertionError(f"no strategy for {dtype}; write one")


def map_key(value: Any) -> Any:
    """What makes a map's key unique: NaN equals NaN and -0.0 equals 0.0."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return tuple(value) if isinstance(value, list) else value


def table_of(schema: Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    """Rows, made of what `values` gives, as an Arrow table of the schema's types."""
    columns = zip(*rows, strict=True) if rows else [()] * schema.columns
    arrays = [pa.array(list(c), t) for c, t in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema.arrow)


@lru_cache(maxsize=4096)
def rows_of(schema: Schema) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(values(f.type, f.nullable) for f in schema.arrow))


def choices(pool: list[Any], count: int) -> st.SearchStrategy[list[Any]]:
    """`count` members of a pool in one draw, which is many times faster than a list of `sampled_from`."""
    return st.binary(min_size=count, max_size=count).map(lambda picks: [pool[b % len(pool)] for b in picks])


@st.composite
def tables(draw: st.DrawFn, schema: Schema, max_rows: int = 24, distinct: int = 6) -> pa.Table:
    """A table of at most `max_rows` rows of which at most `distinct` differ, sliced and chunked at random."""
    known = draw(st.lists(rows_of(schema), min_size=1, max_size=distinct))
    count = draw(st.integers(0, max_rows))
    before = draw(st.sampled_from([0, 0, 1, 3, 8, 13]))
    whole = table_of(schema, draw(choices(known, before + count))).slice(before)
    if draw(st.booleans()):
        return whole
    cut = draw(st.integers(0, count))
    return pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])


@st.composite
def weighted_tables(draw: st.DrawFn, schema: Schema, max_rows: int = 24, distinct: int = 6) -> Any:
    """(table, weights): one int64 weight per row."""
    table = draw(tables(schema, max_rows, distinct))
    pool = draw(st.lists(weights(), min_size=1, max_size=5))
    return table, np.array(draw(choices(pool, table.num_rows)), np.int64)
