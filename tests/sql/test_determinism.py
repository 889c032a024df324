"""Queries with more than one right answer are told from those with one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import dbspark
from dbspark.errors import OpenAnswerWarning


@pytest.fixture(scope="module")
def pipe(spark: Any) -> Iterator[dbspark.Pipeline]:
    with dbspark.Pipeline("open answers", spark=spark) as made:
        made.create_table("t", "k INT, v INT, s STRING")
        yield made


OPEN = {
    "SELECT k, first(v) AS f FROM t GROUP BY k": r"first\(.*v\) depends on the order of rows.*min_by",
    "SELECT k, last(v) AS f FROM t GROUP BY k": r"last\(.*v\) depends",
    "SELECT k, any_value(v) AS f FROM t GROUP BY k": r"any_value\(.*v\) depends",
    "SELECT k, collect_list(v) AS f FROM t GROUP BY k": r"collect_list\(.*v\) depends.*array_sort",
    "SELECT k, listagg(s) AS f FROM t GROUP BY k": r"listagg\(.* depends.*WITHIN GROUP",
    "SELECT k, v FROM t LIMIT 2": "LIMIT without ORDER BY takes any rows",
    "SELECT (SELECT v FROM t LIMIT 1) AS f, k FROM t": "LIMIT without ORDER BY",
    "SELECT k FROM (SELECT k FROM t LIMIT 2) WHERE k > 1": "LIMIT without ORDER BY",
}
FIXED = [
    "SELECT k, min(v) AS f FROM t GROUP BY k",
    "SELECT k, min_by(v, s) AS first FROM t GROUP BY k",
    "SELECT k, array_sort(collect_list(v)) AS f FROM t GROUP BY k",
    "SELECT k, size(collect_list(v)) AS f FROM t GROUP BY k",
    "SELECT k, listagg(s) WITHIN GROUP (ORDER BY s) AS f FROM t GROUP BY k",
    "SELECT k, first_value(v) OVER (PARTITION BY k ORDER BY s) AS f FROM t",
    "SELECT k, v FROM t ORDER BY k, v, s LIMIT 2",
    "SELECT v FROM t ORDER BY k LIMIT 2 OFFSET 1",
    "SELECT count(*) AS n FROM t LIMIT 1",
]


@pytest.mark.parametrize("query", OPEN)
def test_an_open_answer_is_warned_of(pipe: dbspark.Pipeline, query: str) -> None:
    with pytest.warns(OpenAnswerWarning, match=f"view 'v': Spark's own answer may differ: {OPEN[query]}") as seen:
        pipe.create_view("v", query)
    pipe.drop_view("v")
    assert [w.filename for w in seen] == [__file__]


@pytest.mark.parametrize("query", FIXED)
def test_one_answer_is_not(pipe: dbspark.Pipeline, query: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", OpenAnswerWarning)
        pipe.create_view("v", query)
    pipe.drop_view("v")
