"""The hash is frozen: batches on disk are ordered by it.

Three guards: the kernels agree with a second implementation, in plain Python integers, of what the preface of
`dbspark.kernels.memory.hash` says; literal values pin both; and equal values hash alike however they are stored.
"""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema, SortKey
from dbspark.columnar.chunk import import_arrays
from dbspark.columnar.sort_key import hash_rows, weakened_hash
from tests.columnar import model
from tests.strategies import FLAT_TYPES, schemas, tables

NAN = float("nan")
INF = float("inf")


def hashes(*arrays: pa.Array, key: tuple[int, ...] | None = None, nullable: bool = True) -> list[int]:
    """What the kernels say."""
    schema = Schema(pa.schema([pa.field(f"c{i}", a.type, nullable) for i, a in enumerate(arrays)]))
    chunk = import_arrays(schema, list(arrays), len(arrays[0]), None)
    return [int(h) for h in hash_rows(chunk, SortKey(schema, key).key_nodes)]


def plain(*arrays: pa.Array) -> list[int]:
    """What the preface says."""
    types = [a.type for a in arrays]
    return [model.row_hash(row, types) for row in zip(*map(model.column_values, arrays), strict=True)]


TEXT = [("0123456789abcdefghijABCDEFGHIJ!#$%&/()=?äöü" * 4)[:n] for n in (*range(41), 100)]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [0, 1, -1, 127, -128, None]),
    "smallint": (pa.int16(), [0, 1, -1, 32767, -32768, None]),
    "int": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31), None]),
    "bigint": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), None]),
    "float": (pa.float32(), [0.0, -0.0, 1.5, -2.25, NAN, INF, -INF, 2.0**-149, 3.4028234663852886e38, None]),
    "double": (pa.float64(), [0.0, -0.0, 1.5, -2.25, NAN, INF, -INF, 5e-324, 1.7976931348623157e308, 0.1, None]),
    "decimal": (pa.decimal128(38, 3), [Decimal(n).scaleb(-3) for n in (0, 1, -1, 10**27, -(10**27))] + [None]),
    "boolean": (pa.bool_(), [True, False, None] * 7),
    "date": (pa.date32(), [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), None]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [datetime(1970, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 4), None]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 999999), None]),
    "day-time interval": (pa.duration("us"), [timedelta(0), timedelta(days=-3, microseconds=7), None]),
    "interval": (pa.month_day_nano_interval(), [(0, 0, 0), (1, 2, 3), (-1, -2, -3), (2**31 - 1, 0, -(2**63)), None]),
    "time": (pa.time64("ns"), [time(0), time(23, 59, 59, 999999), None]),
    "string": (pa.string(), [*TEXT, "日本語", "🦆", None]),
    "binary": (pa.binary(), [bytes(range(n % 256)) for n in range(41)] + [b"\xff" * 100, None]),
    "void": (pa.null(), [None, None]),
    "array": (pa.list_(pa.int32()), [[], [0], [None], [0, None], [None, 0], [1, 2, 3], None]),
    "array of strings": (pa.list_(pa.string()), [[""], ["", ""], ["ab", "c"], ["a", "bc"], [], None]),
    "array of arrays": (
        pa.list_(pa.list_(pa.int8())),
        [[], [[]], [[], []], [None], [[1], [2, 3]], [[1, 2], [3]], None],
    ),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": None, "y": "a"}, {"x": 1, "y": None}, {"x": None, "y": None}, None],
    ),
    "struct of struct": (
        pa.struct([("s", pa.struct([("d", pa.float64())])), ("l", pa.list_(pa.bool_()))]),
        [{"s": {"d": -0.0}, "l": [True]}, {"s": None, "l": None}, {"s": {"d": None}, "l": []}, None],
    ),
    "empty struct": (pa.struct([]), [{}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("b", 2), ("a", 1)], [("a", None)], None]),
    "map of maps": (
        pa.map_(pa.int16(), pa.map_(pa.string(), pa.list_(pa.float32()))),
        [[(3, [("z", [NAN]), ("a", None)]), (-1, []), (2, None)], [], None],
    ),
    "array of structs of maps": (
        pa.list_(pa.struct([("m", pa.map_(pa.bool_(), pa.decimal128(5, 2)))])),
        [[{"m": [(True, Decimal("1.50")), (False, None)]}, None, {"m": None}], [], [None], None],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_kernels_compute_what_the_preface_says(name: str) -> None:
    dtype, values = VALUES[name]
    array = pa.array(values, dtype)
    assert hashes(array) == plain(array)


@pytest.mark.parametrize("name", VALUES)
def test_a_column_without_nulls_hashes_as_with_them(name: str) -> None:
    dtype, values = VALUES[name]
    array = pa.array([v for v in values if v is not None], dtype)
    assert hashes(array, nullable=pa.types.is_null(dtype)) == plain(array)


def test_several_columns_are_folded_in_order() -> None:
    arrays = [pa.array(VALUES[n][1][:3], VALUES[n][0]) for n in ("int", "string", "array", "decimal", "map", "boolean")]
    assert hashes(*arrays) == plain(*arrays)
    for key in ((2, 0), (1,), (5, 3, 4), ()):
        assert hashes(*arrays, key=key) == (plain(*(arrays[c] for c in key)) if key else [0x2545F4914F6CDD1D] * 3)


def test_many_rows_pass_over_the_blocks_unharmed() -> None:
    numbers = pa.array([None if i % 7 == 0 else i * i for i in range(9001)], pa.int64())
    text = pa.array([str(i) * (i % 5) for i in range(9001)], pa.string())
    assert hashes(numbers, text) == plain(numbers, text)


@given(st.data())
def test_random_tables_hash_as_the_preface_says(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    table = data.draw(tables(schema)).combine_chunks()
    for part in table.to_batches():
        chunk = import_arrays(schema, part.columns, part.num_rows, None)
        expected = [model.row_hash(row, schema.types) for row in model.rows(pa.Table.from_batches([part]))]
        assert [int(h) for h in hash_rows(chunk, SortKey(schema).row_nodes)] == expected


FROZEN: list[tuple[pa.DataType, Any, int]] = [
    (pa.int64(), 0, 0x1B1AB33678A83054),
    (pa.int64(), 1, 0x2F0196B18BB868E3),
    (pa.int64(), -1, 0x8C742778BF57CE63),
    (pa.int64(), 2**63 - 1, 0xCB94A8ACDE6D7B8C),
    (pa.int8(), -128, 0xB26491F43728D0F7),
    (pa.bool_(), True, 0x2F0196B18BB868E3),
    (pa.bool_(), False, 0x1B1AB33678A83054),
    (pa.null(), None, 0xF319C576DE31F5E8),
    (pa.float64(), 1.5, 0x9F1B0C07D20942F9),
    (pa.float64(), float("nan"), 0xEAA81966C4F0949B),
    (pa.float64(), -0.0, 0x1B1AB33678A83054),
    (pa.float32(), 0.10000000149011612, 0xEA57B27E666EC649),
    (pa.decimal128(38, 0), Decimal("-99999999999999999999999999999999999999"), 0x4A18A6235A38EBB5),
    (pa.decimal128(10, 2), Decimal("12.34"), 0xBA418DDFBAF7E324),
    (pa.date32(), 19_000, 0x67D69280B814B85C),
    (pa.timestamp("us", tz="UTC"), 1_700_000_000_000_000, 0xAA52662A0CF6BE37),
    (pa.time64("ns"), 86_399_999_999_000, 0x6CC09317F373D5D4),
    (pa.duration("us"), -1, 0x8C742778BF57CE63),
    (pa.month_day_nano_interval(), (1, -2, 3), 0x05A246968EC0C5C7),
    (pa.string(), "", 0x1B1AB33678A83054),
    (pa.string(), "a", 0x500B797B08E3C166),
    (pa.string(), "ab", 0x3F3C538FB797738D),
    (pa.string(), "hello", 0xA4E4FE7370EB0882),
    (pa.string(), "12345678", 0x61D82F9FB4A74E25),
    (pa.string(), "incremental views", 0x0B43C33C89B145F9),
    (pa.binary(), bytes(range(100)), 0x68667F30764F2810),
    (pa.list_(pa.int32()), [], 0xBC3E5CB41F192C31),
    (pa.list_(pa.int32()), [1, None, 3], 0x0AE6D94634457941),
    (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": None}, 0xD18DC9256D8E8E8B),
    (pa.map_(pa.string(), pa.int64()), [("b", 2), ("a", 1)], 0x5B291F5CA3108496),
]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"), FROZEN, ids=[f"{i}-{dtype}" for i, (dtype, _, _) in enumerate(FROZEN)]
)
def test_the_hash_is_frozen(dtype: pa.DataType, value: Any, expected: int) -> None:
    array = pa.array([value], dtype)
    assert hashes(array) == [expected]
    assert plain(array) == [expected]


def test_the_hash_of_a_row_is_frozen() -> None:
    row = [pa.array([7], pa.int64()), pa.array(["seven"]), pa.array([None], pa.float64()), pa.array([[7.0]])]
    assert hashes(*row) == plain(*row) == [0x68C75B2ED54F9658]


# ------------------------------------------------------------------------------------ equal values hash alike


def _nans(bits: list[int], dtype: Any, arrow: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(arrow, len(bits), [None, pa.py_buffer(np.array(bits, dtype))])


def test_every_nan_hashes_alike() -> None:
    doubles = _nans(
        [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF], np.uint64, pa.float64()
    )
    singles = _nans([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF], np.uint32, pa.float32())
    assert len(set(hashes(doubles) + hashes(singles))) == 1
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), doubles)
    assert len(set(hashes(nested))) == 1
    assert hashes(nested) != hashes(doubles)


def test_negative_zero_hashes_as_zero() -> None:
    for dtype in (pa.float32(), pa.float64()):
        assert len(set(hashes(pa.array([0.0, -0.0], dtype)))) == 1
        assert len(set(hashes(pa.array([[0.0], [-0.0]], pa.list_(dtype))))) == 1
    assert hashes(pa.array([0.0])) == hashes(pa.array([0], pa.int64()))


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_a_float_hashes_as_its_value_in_double(values: list[float]) -> None:
    assert hashes(pa.array(values, pa.float32())) == hashes(pa.array(values, pa.float64()))


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=20))
def test_an_integer_hashes_as_its_value_in_every_width(values: list[int]) -> None:
    of = [hashes(pa.array(values, t)) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())]
    assert of[0] == of[1] == of[2] == of[3]


def test_the_order_of_a_maps_entries_does_not_matter() -> None:
    dtype = pa.map_(pa.string(), pa.map_(pa.int32(), pa.string()))
    a = pa.array([[("x", [(1, "a"), (2, "b")]), ("y", None)]], dtype)
    b = pa.array([[("y", None), ("x", [(2, "b"), (1, "a")])]], dtype)
    assert hashes(a) == hashes(b)
    assert hashes(pa.array([[("x", [(1, "b"), (2, "a")]), ("y", None)]], dtype)) != hashes(a)


def test_what_lies_under_a_null_does_not_matter() -> None:
    mask = pa.array([False, True, True])
    hidden = pa.StructArray.from_arrays([pa.array([1, 2, 3])], ["x"], mask=mask)
    listed = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array([1, 2, 3]), mask=mask)
    for array in (hidden, listed):
        first, second, third = hashes(array)
        assert second == third == hashes(pa.nulls(1))[0] != first


@pytest.mark.parametrize("name", VALUES)
def test_a_slice_hashes_as_a_copy(name: str) -> None:
    dtype, values = VALUES[name]
    values = values * 20
    whole = pa.array(values, dtype)
    for offset in (1, 3, 7, 8, 9):
        part = whole.slice(offset, 11)
        assert part.offset == offset or pa.types.is_null(dtype)
        assert hashes(part) == hashes(pa.array(values[offset : offset + len(part)], dtype)) == plain(part)


@pytest.mark.parametrize("dtype", FLAT_TYPES, ids=str)
def test_a_slice_of_the_elements_of_a_list_hashes_as_a_copy(dtype: pa.DataType) -> None:
    values = next((v for t, v in VALUES.values() if t == dtype), [None] * 3) * 3
    if pa.types.is_decimal(dtype):
        values = [Decimal(1).scaleb(-dtype.scale), None, Decimal(-7).scaleb(-dtype.scale)] * 3
    elements = pa.array([None, *values], dtype).slice(1)
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 1, 3, 3, len(values)], pa.int32()), elements).slice(1)
    assert hashes(lists) == plain(lists)


# --------------------------------------------------------------------------------------- how well it spreads


@pytest.mark.parametrize("start", [0, -(2**40), 2**62])
@pytest.mark.parametrize("step", [1, 8, 1 << 20])
def test_sequential_keys_fill_the_leading_bits_evenly(start: int, step: int) -> None:
    n = 1 << 16
    found = np.array(hashes(pa.array(start + step * np.arange(n, dtype=np.int64))), np.uint64)
    for shift in (56, 0):
        counts = np.bincount((found >> np.uint64(shift)).astype(np.int64) & 255, minlength=256)
        # 256 in each of 256 buckets on average, standard deviation 16: six of them are far
        assert counts.min() > 160
        assert counts.max() < 352
    assert len(np.unique(found)) == n


def test_short_strings_do_not_collide() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = [a + b + c for a in letters for b in letters for c in ["", *letters]]
    assert len(set(hashes(pa.array(words)))) == len(words)


@pytest.mark.parametrize("length", [16, 20, 24, 33, 36])
def test_strings_that_differ_in_two_places_do_not_collide(length: int) -> None:
    base = "0123456789abcdefghijABCDEFGHIJ!#$%&/()"[:length]
    for i, j in combinations(range(length), 2):
        words = [base[:i] + a + base[i + 1 : j] + b + base[j + 1 :] for a in "adgjmpsv" for b in "adgjmpsv"]
        assert len(set(hashes(pa.array(words)))) == len(words), (i, j)


def test_a_mask_keeps_only_its_bits() -> None:
    array = pa.array(range(100))
    nested = pa.array([[i] for i in range(100)])
    full, full_nested = hashes(array), hashes(nested)
    for mask in (0, 1, 7, 0xF000000000000000):
        with weakened_hash(mask):
            assert hashes(array) == [h & mask for h in full]
            assert hashes(nested) == [h & mask for h in full_nested]
    assert hashes(array) == full
