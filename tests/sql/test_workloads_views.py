"""The queries of TPC-H and Nexmark as views of one pipeline, compared with Spark after every transaction.

All views of a workload are kept by one pipeline, so they share what they have in common, and every one has to be kept
incrementally in every part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import dbspark
from benchmarks.workloads import nexmark, tpch
from tests.sql.oracle import difference, rows_of


def check(spark: Any, pipe: dbspark.Pipeline, queries: Mapping[str, str]) -> None:
    """Every view holds what Spark says."""
    for name in pipe.tables:
        spark.createDataFrame(pipe.table(name).to_arrow()).createOrReplaceTempView(name)
    wrong = {}
    for name in pipe.views:
        expected = Counter(rows_of(spark.sql(queries[name]).toArrow()))
        found = difference(Counter(rows_of(pipe.view(name).to_arrow())), expected)
        if found:
            wrong[name] = found
    assert not wrong, "\n".join(f"{name}:\n{text}" for name, text in wrong.items())


def pipeline(
    spark: Any, tables: Mapping[str, str], queries: Mapping[str, str], shards: int | None = None
) -> dbspark.Pipeline:
    pipe = dbspark.Pipeline("workload", spark=spark, shards=shards)
    for name, ddl in tables.items():
        pipe.create_table(name, ddl)
    pipe.create_views(queries, maintenance="incremental")
    return pipe


def load(pipe: dbspark.Pipeline, data: Mapping[str, pa.Table]) -> None:
    with pipe.transaction() as tx:
        for name, rows in data.items():
            tx.insert(name, rows)


def refresh(
    spark: Any, pipe: dbspark.Pipeline, data: dict[str, pa.Table], queries: Mapping[str, str], seed: int
) -> None:
    """The refresh streams of TPC-H, twice, with a look at every view after each."""
    ticks = tpch.refresh(data, 0.01, seed=seed)
    for _ in range(2):
        with pipe.transaction() as tx:
            for name, (inserts, deletes) in next(ticks).items():
                tx.insert(name, inserts)
                tx.delete(name, deletes)
        check(spark, pipe, queries)


@pytest.mark.parametrize("part", [0, 1])
def test_tpch(spark: Any, part: int) -> None:
    queries = dict(list(tpch.QUERIES.items())[part::2])
    data = tpch.generate(0.01)
    with pipeline(spark, tpch.TABLES, queries) as pipe:
        load(pipe, data)
        refresh(spark, pipe, data, queries, seed=part)


@pytest.mark.parametrize("shards", [2, 3])
def test_tpch_on_shards(spark: Any, shards: int) -> None:
    """All queries in one pipeline: a tick is one job for all of them."""
    data = tpch.generate(0.002)
    with pipeline(spark, tpch.TABLES, {}, shards) as pipe:
        load(pipe, data)
        pipe.create_views(tpch.QUERIES, maintenance="incremental")
        check(spark, pipe, tpch.QUERIES)
        refresh(spark, pipe, data, tpch.QUERIES, seed=shards)


def test_nexmark(spark: Any) -> None:
    batches = list(nexmark.generate(3000, 1, 1000, rate=20))
    with pipeline(spark, nexmark.TABLES, nexmark.QUERIES) as pipe:
        seen: list[dict[str, pa.Table]] = []
        for i, batch in enumerate(batches):
            with pipe.transaction() as tx:
                for name, rows in batch.items():
                    tx.insert(name, rows)
                if i:  # and every second row of an earlier batch goes
                    for name, rows in seen[i - 1].items():
                        tx.delete(name, rows.take(pa.array(range(0, len(rows), 2))))
            seen.append(dict(batch))
            if i:
                check(spark, pipe, nexmark.QUERIES)
        with pipe.transaction() as tx:
            for name in pipe.tables:
                tx.delete(name, pipe.table(name).to_arrow())
        check(spark, pipe, nexmark.QUERIES)
