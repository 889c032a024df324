"""Spark's side of the demo: it computes the views anew from the files that the streams were given.

The check trusts no code of dbspark: Spark makes the tables from the changes in the files, the views from the tables,
and the rows of both sides are sorted and compared as Arrow tables. The recursive view is `WITH RECURSIVE` there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dbspark.cli.demo_data import LATER_VIEWS, TABLES, VIEWS, ShopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHARED: Final = {"spending", "referrals"}
"""Views that other views read: Spark caches them rather than compute them twice."""

_TABLE: Final = """
    SELECT * EXCEPT (_change_type) FROM {changes} GROUP BY ALL
    HAVING sum(CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END) > 0"""
"""The query for the rows of a table: those that were inserted more often than deleted."""

_DIFFERENCES_SHOWN: Final = 3
"""Rows of each side that are shown where a view is not what Spark computes."""


@dataclass
class Oracle:
    """Computes views as Spark does, without dbspark."""

    spark: SparkSession
    shop: ShopFiles
    answers: dict[str, pa.Table] = field(default_factory=dict)
    """The rows of each view that was computed last."""

    def compute(self, steps: Mapping[str, int], views: Iterable[str] = tuple(VIEWS), also: Iterable[str] = ()) -> float:
        """Compute views from the tables as they were after some step of each; returns the seconds.

        The seconds are those of `views`, without making the tables and without the views in `also`.
        """
        held: dict[str, DataFrame] = {}

        def hold(name: str, frame: DataFrame) -> DataFrame:
            held[name] = frame.persist()
            frame.createOrReplaceTempView(name)
            return frame

        def answer(name: str) -> None:
            query, _, in_spark, _ = {**VIEWS, **LATER_VIEWS}[name]
            frame = self.spark.sql(in_spark or query)
            self.answers[name] = (hold(name, frame) if name in _SHARED else frame).toArrow()

        self.answers = {}
        try:
            for name, (_, columns) in TABLES.items():
                files = self.spark.read.schema(f"_change_type STRING, {columns}").parquet(
                    str(self.shop.delivered(name))
                )
                changes = files.where(f"CAST(left(_metadata.file_name, 6) AS INT) <= {steps[name]}")
                hold(name, self.spark.sql(_TABLE, changes=changes)).count()
            begun = perf_counter()
            for name in views:
                answer(name)
            seconds = perf_counter() - begun
            for name in also:
                answer(name)
            return seconds
        finally:
            for name, frame in held.items():
                self.spark.catalog.dropTempView(name)
                frame.unpersist()

    def problems(self, rows: Mapping[str, pa.Table]) -> list[str]:
        """How views differ from the answers, in a few lines; none if they are the same."""
        return [f"{name}: {line}" for name, answer in self.answers.items() for line in differences(rows[name], answer)]


def differences(actual: pa.Table, expected: pa.Table) -> list[str]:
    """How a view's rows differ from Spark's, in a few lines; none if they are the same."""
    expected = _sorted_rows(expected)
    actual = _sorted_rows(actual.select(expected.column_names).cast(expected.schema))
    if actual.equals(expected):
        return []
    ours, sparks = ({tuple(row.values()) for row in table.to_pylist()} for table in (actual, expected))
    lines = [f"the view has {actual.num_rows:,} rows and Spark's answer has {expected.num_rows:,}"]
    lines += [f"only Spark has {row}" for row in sorted(sparks - ours, key=repr)[:_DIFFERENCES_SHOWN]]
    lines += [f"only the view has {row}" for row in sorted(ours - sparks, key=repr)[:_DIFFERENCES_SHOWN]]
    return lines


def _sorted_rows(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


__all__ = ["Oracle", "differences"]
