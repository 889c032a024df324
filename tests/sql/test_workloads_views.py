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


def check(spark: Any, queries: Mapping[str, str], *pipes: dbspark.Pipeline) -> None:
    """Every view holds what Spark says, which is asked once for all pipelines: their tables hold the same."""
    first = pipes[0]
    for name in first.tables:
        spark.createDataFrame(first.table(name).to_arrow()).createOrReplaceTempView(name)
    wrong = {}
    for name in first.views:
        expected = Counter(rows_of(spark.sql(queries[name]).toArrow()))
        for i, pipe in enumerate(pipes):
            found = difference(Counter(rows_of(pipe.view(name).to_arrow())), expected)
            if found:
                wrong[f"{name} of pipeline {i}"] = found
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
    spark: Any, data: dict[str, pa.Table], queries: Mapping[str, str], seed: int, *pipes: dbspark.Pipeline
) -> None:
    """The refresh streams of TPC-H, twice, with a look at every view after each."""
    ticks = tpch.refresh(data, 0.01, seed=seed)
    for _ in range(2):
        changes = next(ticks)
        for pipe in pipes:
            with pipe.transaction() as tx:
                for name, (inserts, deletes) in changes.items():
                    tx.insert(name, inserts)
                    tx.delete(name, deletes)
        check(spark, queries, *pipes)


@pytest.mark.parametrize("part", [0, 1])
def test_tpch(spark: Any, part: int) -> None:
    queries = dict(list(tpch.QUERIES.items())[part::2])
    data = tpch.generate(0.01)
    with pipeline(spark, tpch.TABLES, queries) as pipe:
        load(pipe, data)
        refresh(spark, data, queries, part, pipe)


def test_tpch_on_shards(spark: Any) -> None:
    """All queries in one pipeline: a tick is one job for all of them."""
    data = tpch.generate(0.002)
    with pipeline(spark, tpch.TABLES, {}, 2) as two, pipeline(spark, tpch.TABLES, {}, 3) as three:
        for pipe in (two, three):
            load(pipe, data)
            pipe.create_views(tpch.QUERIES, maintenance="incremental")
            assert len(pipe.views) == len(tpch.QUERIES)
        check(spark, tpch.QUERIES, two, three)
        refresh(spark, data, tpch.QUERIES, 2, two, three)
        for name in two.tables:
            rows = [Counter(rows_of(pipe.table(name).to_arrow())) for pipe in (two, three)]
            assert rows[0] == rows[1]


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
                check(spark, nexmark.QUERIES, pipe)
        with pipe.transaction() as tx:
            for name in pipe.tables:
                tx.delete(name, pipe.table(name).to_arrow())
        check(spark, nexmark.QUERIES, pipe)
