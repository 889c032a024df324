"""Rows as text: beside what Spark prints, and with text that would break a line or a page."""

from __future__ import annotations

import contextlib
import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dbspark.pipeline.display import cells, html_table, text_table

QUERY = """
    SELECT * FROM VALUES
        (1, 1.0D, CAST(0.1 AS FLOAT), 1.50, 'text', true, X'00FF', DATE'2026-01-02', TIMESTAMP_NTZ'2026-01-02 03:04:05',
         array(1, NULL), named_struct('a', 1, 'b', 'x'), map('k', 2.5D)),
        (NULL, 1.0E-5D, CAST(1.0E10 AS FLOAT), -0.25, 'a text of more than twenty characters', false, NULL, NULL, NULL,
         array(), named_struct('a', NULL, 'b', 'y'), map()),
        (-7, 123456.789D, CAST('NaN' AS FLOAT), 0.00, 'line\\nbreak', NULL, X'', DATE'1582-10-15', NULL,
         NULL, named_struct('a', NULL, 'b', ''), NULL)
    AS t(i, d, f, c, s, b, x, day, at, l, st, m)"""


@pytest.mark.parametrize("width", [20, 0, 3])
def test_rows_are_printed_as_by_spark(spark: Any, width: int) -> None:
    frame = spark.sql(QUERY)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.show(2, truncate=width)
    assert text_table(frame.limit(2).toArrow(), width, more=True) + "\n" == printed.getvalue()


def test_floats_are_written_as_java_does(spark: Any) -> None:
    values = [0.0, -0.0, 1e-3, 9.99e-4, 9999999.0, 1e7, 1.5e300, 1e-300, float("inf"), float("-inf"), 1 / 3, 100.0]
    said = spark.createDataFrame([(v,) for v in values], "v DOUBLE").selectExpr("CAST(v AS STRING)").collect()
    ours = cells(pa.table({"v": pa.array(values)}))
    assert [line[0] for line in ours] == [row[0] for row in said]


def test_times_are_in_utc_and_say_so() -> None:
    at = pa.array([datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    assert cells(pa.table({"at": at, "day": pa.array([date(2026, 1, 2)])})) == [
        ["2026-01-02 03:04:05+00:00", "2026-01-02"]
    ]


def test_dates_beyond_python_are_shown() -> None:
    days = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    assert cells(pa.table({"day": days})) == [[days.cast(pa.string())[0].as_py()]]


def test_text_cannot_break_a_line_or_a_page() -> None:
    rows = pa.table({"<n>\n": pa.array(["\x1b[2J<script>", "&\t"]), "c": pa.array([Decimal("1.20"), None])})
    text = text_table(rows, 20, more=False)
    assert len(text.splitlines()) == 6
    assert "\x1b" not in text
    page = html_table("<title>", "", rows)
    assert "<script>" not in page
    assert "&lt;title&gt;" in page
    assert "\\e[2J&lt;script&gt;" in page


def test_wide_characters_take_two_columns() -> None:
    lines = text_table(pa.table({"s": ["漢字", "ab"]}), 20, more=False).splitlines()
    assert lines == ["+----+", "|   s|", "+----+", "|漢字|", "|  ab|", "+----+"]
