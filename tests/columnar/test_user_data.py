"""pandas DataFrames and naive datetimes as users have them, against values that are written out."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from dbspark.columnar.conform import conform
from dbspark.columnar.rows import decode_arrays, row_normaliser
from dbspark.columnar.schema import Schema
from dbspark.columnar.user_data import prepare
from dbspark.errors import SchemaError

SCHEMA = Schema.parse("id BIGINT, n INT, s STRING, at TIMESTAMP, x DOUBLE, ok BOOLEAN")


def rows(frame: pd.DataFrame, ddl: str, zone: str = "UTC") -> list[dict[str, Any]]:
    schema = Schema.parse(ddl)
    table = prepare(frame, schema, lambda: zone).combine_chunks()
    columns = [c.chunk(0) if c.num_chunks else pa.array([], c.type) for c in table.columns]
    out: list[dict[str, Any]] = pa.table(conform(schema, table.schema, columns), schema=schema.arrow).to_pylist()
    return out


def test_a_filtered_frame_loses_its_index() -> None:
    frame = pd.DataFrame({"id": [1, 2, 3], "s": ["a", "b", "c"]})
    expected = [{"id": 2, "s": "b"}, {"id": 3, "s": "c"}]
    assert rows(frame[frame.id > 1], "id BIGINT, s STRING") == expected
    assert rows(frame[frame.id > 1].set_index("id"), "id BIGINT, s STRING") == expected  # the index is a column here
    with pytest.raises(SchemaError, match="not expected: other"):
        rows(frame.rename_axis(index="other"), "id BIGINT, s STRING")


@pytest.mark.parametrize(
    "frame",
    [pd.DataFrame(), pd.DataFrame(columns=["id", "at"]), pd.DataFrame({"id": [], "at": []}),
     pd.DataFrame({"id": ["x"], "at": [1]}).iloc[:0]],
)  # fmt: skip
def test_an_empty_frame_needs_no_types(frame: pd.DataFrame) -> None:
    assert rows(frame, "id BIGINT, at TIMESTAMP") == []


def test_naive_timestamps_are_in_the_zone_of_the_session() -> None:
    at = dt.datetime(2024, 7, 1, 12)
    expected = [{"at": dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC)}]
    schema = Schema.parse("at TIMESTAMP")
    for frame in (
        pd.DataFrame({"at": pd.to_datetime([at])}), pd.DataFrame({"at": [at]}, dtype=object),
        pd.DataFrame({"at": pd.to_datetime([at]).tz_localize("Europe/Berlin")}),
    ):  # fmt: skip
        assert rows(frame, "at TIMESTAMP", "Europe/Berlin") == expected
    assert rows(pd.DataFrame({"at": [at]}), "at TIMESTAMP_NTZ", "Europe/Berlin") == [{"at": at}]
    assert rows(pd.DataFrame({"at": [at]}), "at TIMESTAMP", "+02:00") == expected
    for zone in ("Europe/Berlin", "+02:00"):
        for given in ([(at,)], [{"at": at}], [{"AT": at}]):
            prepared = prepare(given, schema, partial(str, zone))
            assert [row_normaliser(schema)(row) for row in prepared] == [(expected[0]["at"],)]


def test_times_that_a_clock_leaves_out_or_shows_twice() -> None:
    """What java.time makes of them, and so Spark: moved by the gap, and the first of two."""
    given = [dt.datetime(2024, 3, 31, 2, 30), None, dt.datetime(2024, 10, 27, 2, 30)]
    expected = [dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC), None, dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)]
    schema = Schema.parse("at TIMESTAMP")
    for values in (pd.to_datetime(pd.Series(given)), pd.Series(given, dtype=object)):
        assert [r["at"] for r in rows(pd.DataFrame({"at": values}), "at TIMESTAMP", "Europe/Berlin")] == expected
    prepared = prepare([(value,) for value in given], schema, lambda: "Europe/Berlin")
    assert [row_normaliser(schema)(row)[0] for row in prepared] == expected


NESTED = Schema.parse("a ARRAY<TIMESTAMP>, m MAP<TIMESTAMP, TIMESTAMP>, s STRUCT<at: TIMESTAMP, plain: TIMESTAMP_NTZ>")
AT = dt.datetime(2024, 7, 1, 12)
THEN = dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC)
NESTED_ROW = ([AT, None, THEN], {AT: AT}, {"at": AT, "plain": AT})
NESTED_THEN = ((THEN, None, THEN), ((THEN, THEN),), (THEN, AT))


class TestNestedTimes:
    @pytest.mark.parametrize(
        "data",
        [
            [NESTED_ROW], (NESTED_ROW,), iter([NESTED_ROW]), (row for row in [NESTED_ROW]), {"x": NESTED_ROW}.values(),
            [dict(zip("ams", NESTED_ROW, strict=True))], [dict(zip("AMS", NESTED_ROW, strict=True))],
            [Row(a=NESTED_ROW[0], m=((AT, AT),), s=Row(at=AT, plain=AT))],
            [([np.datetime64(AT), None, THEN], [(AT, THEN)], (AT, AT))],
            [(np.array([AT, None, "2024-07-01T12"], "datetime64[ns]"), [(AT, AT)], (AT, AT))],
        ],
    )  # fmt: skip
    def test_of_rows_in_all_forms(self, data: Any) -> None:
        prepared = prepare(data, NESTED, lambda: "Europe/Berlin")
        assert [row_normaliser(NESTED)(row) for row in prepared] == [NESTED_THEN]

    def test_of_rows_with_weights(self) -> None:
        schema = Schema.parse("at TIMESTAMP, n INT")
        given = {(AT, 1): 2, (AT, 2): 1, (THEN, 1): 3}
        assert prepare(given, schema, lambda: "Europe/Berlin") == {(THEN, 1): 5, (THEN, 2): 1}
        assert prepare(given, schema, lambda: "UTC") is given

    def test_of_columns_of_pandas(self) -> None:
        frame = pd.DataFrame({name: [value, None] for name, value in zip("ams", NESTED_ROW, strict=True)})
        table = prepare(frame, NESTED, lambda: "Europe/Berlin")
        arrays = conform(NESTED, table.schema, [c.chunk(0) for c in table.columns])
        assert decode_arrays(NESTED, arrays) == [NESTED_THEN, (None, None, None)]

    def test_the_zone_is_asked_for_once_and_only_where_it_matters(self) -> None:
        asked: list[str] = []

        def zone() -> str:
            asked.append("asked")
            return "Europe/Berlin"

        for given in ([(THEN, 1)], [(None, 1)], [("x", 1)], [5], "text", [(AT,)]):
            assert prepare(given, Schema.parse("at TIMESTAMP, n INT"), zone) == given
        assert prepare([(AT, 1)], Schema.parse("at TIMESTAMP_NTZ, n INT"), zone) == [(AT, 1)]
        assert not asked
        prepare([(AT, 1), (AT, 2)], Schema.parse("at TIMESTAMP, n INT"), zone)
        assert asked == ["asked"]

    def test_beyond_the_years_of_python(self) -> None:
        with pytest.raises(
            SchemaError, match="9999-12-31 23:00:00 in the time zone America/New_York is not in the years"
        ):
            prepare([(dt.datetime(9999, 12, 31, 23),)], Schema.parse("at TIMESTAMP"), lambda: "America/New_York")


def test_numbers_of_other_widths_are_taken_where_they_are_exact() -> None:
    frame = pd.DataFrame({
        "a": [1, 2], "b": [1.0, np.nan], "c": pd.array([1, None], "Int64"), "d": [3, 4], "e": [5, 6], "f": [0.5, 0.1],
    })  # fmt: skip
    found = rows(frame, "a TINYINT, b SMALLINT, c INT, d DOUBLE, e DECIMAL(12, 2), f FLOAT")
    assert [r.pop("f") for r in found] == [0.5, float(np.float32(0.1))]
    assert found == [
        {"a": 1, "b": 1, "c": 1, "d": 3.0, "e": Decimal("5.00")},
        {"a": 2, "b": None, "c": None, "d": 4.0, "e": Decimal("6.00")},
    ]


def test_types_of_pandas_own() -> None:
    frame = pd.DataFrame({
        "s": pd.array(["x", None], "string"), "ok": pd.array([True, None], "boolean"), "c": pd.Categorical(["x", "y"]),
        "d": pd.to_datetime(["2024-01-01", None]), "o": [Decimal("1.5"), None], "n": pd.Categorical([7, 8]),
    })  # fmt: skip
    assert rows(frame, "s STRING, ok BOOLEAN, c STRING, d DATE, o DECIMAL(5, 2), n INT") == [
        {"s": "x", "ok": True, "c": "x", "d": dt.date(2024, 1, 1), "o": Decimal("1.50"), "n": 7},
        {"s": None, "ok": None, "c": "y", "d": None, "o": None, "n": 8},
    ]


@pytest.mark.parametrize(
    ("values", "ddl", "message"),
    [
        ([1, 300], "n TINYINT", "column 'n': expected int8, given .*300"),
        ([1.0, 1.5], "n INT", "column 'n': expected int32, given 1.5"),
        ([1, 2**60 + 1], "n DOUBLE", "column 'n': expected double, given 1152921504606846977"),
        ([1, 10**6], "n DECIMAL(5, 2)", "column 'n': expected decimal128.5, 2., given 1000000"),
        ([1, "a"], "n INT", "column 'n': expected int32, .*'a'"),
        (pd.to_datetime(["2024-01-01 10:00"]), "n DATE", "column 'n': .*given 2024-01-01 10:00.* no time of the day"),
        (["1"], "n INT", "column 'n': expected int32, given (large_)?string; cast it first"),
    ],
)
def test_what_does_not_fit_is_refused_by_column_and_value(values: Any, ddl: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        rows(pd.DataFrame({"n": values}), ddl)


def test_maps_of_pandas_are_dicts() -> None:
    frame = pd.DataFrame({"m": [{"a": "b"}, None, {}]})
    assert rows(frame, "m MAP<STRING, STRING>") == [{"m": [("a", "b")]}, {"m": None}, {"m": []}]
    with pytest.raises(SchemaError, match="column 'm': expected map<string, int32"):
        rows(frame, "m MAP<STRING, INT>")


def test_what_is_no_table_is_refused() -> None:
    for given in ({(1, 2)}, frozenset([(1, 2)])):
        with pytest.raises(SchemaError, match=r"a set has equal rows only once.*collect the rows in a list"):
            prepare(given, SCHEMA, lambda: "UTC")
    with pytest.raises(SchemaError, match="column names are text, not 0"):
        rows(pd.DataFrame([[1]]), "id BIGINT")
    with pytest.raises(SchemaError, match="a pandas Series is one column or one row"):
        prepare(pd.Series([1]), SCHEMA, lambda: "UTC")
    with pytest.raises(SchemaError, match="an array of int64 is one column; give a table"):
        prepare(pa.array([1]), SCHEMA, lambda: "UTC")
    with pytest.raises(SchemaError, match="given twice: id"):
        rows(pd.DataFrame([[1, 2]], columns=["id", "id"]), "id BIGINT")
