"""The workloads are what they say: all queries are there and find rows, the data is the same each time, and a refresh
deletes only what exists and inserts only what does not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.workloads import nexmark, tpcds, tpch
from dbspark.columnar.ddl import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALE = 0.01
EVENTS, RATE = 3_000, 100  # 30 seconds: three tumbling windows


def names(*parts: int | range) -> list[str]:
    return [f"q{i}" for part in parts for i in ([part] if isinstance(part, int) else part)]


@pytest.fixture(scope="module")
def tpch_tables() -> dict[str, pa.Table]:
    return tpch.generate(SCALE)


@pytest.fixture(scope="module")
def nexmark_tables() -> dict[str, pa.Table]:
    return nexmark.tables(EVENTS, rate=RATE)


def keys(rows: pa.Table, column: str) -> set[int]:
    return set(rows[column].to_pylist())


# ------------------------------------------------------------------------------------------------- TPC-H


def test_tpch_has_its_queries_and_tables() -> None:
    assert list(tpch.QUERIES) == names(range(1, 23))
    assert sum(len(parse_ddl(ddl)) for ddl in tpch.TABLES.values()) == 61


def test_tpch_data(tpch_tables: dict[str, pa.Table]) -> None:
    assert {name: rows.schema for name, rows in tpch_tables.items()} == {
        name: parse_ddl(ddl) for name, ddl in tpch.TABLES.items()
    }
    again = tpch.generate(SCALE)
    assert all(rows.equals(again[name]) for name, rows in tpch_tables.items())
    for rows in tpch_tables.values():
        rows.validate(full=True)
        assert all(column.null_count == 0 for column in rows.columns)


@pytest.mark.parametrize("scale", [SCALE, 0.0001])
def test_tpch_keys(scale: float) -> None:
    data = tpch.generate(scale)
    primary = {
        "supplier": ["s_suppkey"],
        "customer": ["c_custkey"],
        "part": ["p_partkey"],
        "partsupp": ["ps_partkey", "ps_suppkey"],
        "orders": ["o_orderkey"],
        "lineitem": ["l_orderkey", "l_linenumber"],
    }
    for name, columns in primary.items():
        assert len(data[name].group_by(columns).aggregate([])) == len(data[name]), name
    pairs = data["partsupp"].select(["ps_partkey", "ps_suppkey"]).rename_columns(["l_partkey", "l_suppkey"])
    assert len(data["lineitem"].join(pairs, pairs.column_names, join_type="left anti")) == 0
    assert keys(data["lineitem"], "l_orderkey") == keys(data["orders"], "o_orderkey")
    assert keys(data["orders"], "o_custkey") <= keys(data["customer"], "c_custkey")
    assert not any(key % 3 == 0 for key in keys(data["orders"], "o_custkey"))


def test_refresh_deletes_what_exists_and_inserts_fresh_keys(tpch_tables: dict[str, pa.Table]) -> None:
    fraction, ticks = 0.05, 30  # more in all than there was at first: what was inserted is deleted too
    live = {name: tpch_tables[name] for name in ("orders", "lineitem")}
    seen = keys(live["orders"], "o_orderkey")
    begun, removed_new = len(seen), 0
    for tick in islice(tpch.refresh(tpch_tables, fraction, seed=1), ticks):
        assert set(tick) == set(live)
        inserts, deletes = tick["orders"]
        assert len(inserts) == len(deletes) == round(fraction * begun)
        new, gone = keys(inserts, "o_orderkey"), keys(deletes, "o_orderkey")
        assert not new & seen
        removed_new += len(gone - keys(tpch_tables["orders"], "o_orderkey"))
        seen |= new
        for name, key in (("orders", "o_orderkey"), ("lineitem", "l_orderkey")):
            inserts, deletes = tick[name]
            assert inserts.schema == deletes.schema == live[name].schema
            assert keys(inserts, key) == new
            out = pc.is_in(live[name][key], pa.array(sorted(gone)))
            by = [(key, "ascending")] + [("l_linenumber", "ascending")] * (name == "lineitem")
            assert live[name].filter(out).sort_by(by).equals(deletes.sort_by(by))
            live[name] = pa.concat_tables([live[name].filter(pc.invert(out)), inserts]).combine_chunks()
    assert removed_new > 0
    assert keys(live["orders"], "o_orderkey") == keys(live["lineitem"], "l_orderkey")


def test_refresh_is_the_same_each_time(tpch_tables: dict[str, pa.Table]) -> None:
    one, same, other = (list(islice(tpch.refresh(tpch_tables, 0.001, seed), 5)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


# ------------------------------------------------------------------------------------------------- Nexmark


def test_nexmark_has_its_queries() -> None:
    assert list(nexmark.QUERIES) == names(range(6), range(7, 10), range(12, 21), 22)
    assert list(nexmark.EXTRA) == names(10, 11, 21)


def test_nexmark_data(nexmark_tables: dict[str, pa.Table]) -> None:
    assert {name: rows.schema for name, rows in nexmark_tables.items()} == {
        name: parse_ddl(ddl) for name, ddl in nexmark.TABLES.items()
    }
    assert [len(nexmark_tables[name]) for name in ("person", "auction", "bid")] == [60, 180, 2760]
    assert nexmark.tables(EVENTS, rate=RATE) == nexmark_tables
    assert nexmark.tables(EVENTS, seed=4, rate=RATE) != nexmark_tables
    assert keys(nexmark_tables["bid"], "auction") <= keys(nexmark_tables["auction"], "id")
    assert keys(nexmark_tables["bid"], "bidder") <= keys(nexmark_tables["person"], "id")
    assert keys(nexmark_tables["auction"], "seller") <= keys(nexmark_tables["person"], "id")


@pytest.mark.parametrize("batch", [7, 1000, 10_000])
def test_nexmark_batches_are_the_events_in_order(nexmark_tables: dict[str, pa.Table], batch: int) -> None:
    given = list(nexmark.generate(EVENTS, batch=batch, rate=RATE))
    for number, tables in enumerate(given):
        seqs = sorted(seq for rows in tables.values() for seq in rows["seq"].to_pylist())
        assert seqs == list(range(number * batch, min(EVENTS, (number + 1) * batch)))
    for name in ("person", "auction", "bid"):
        assert pa.concat_tables([tables[name] for tables in given]).equals(nexmark_tables[name])


# ------------------------------------------------------------------------------------------------- TPC-DS


def test_tpcds_has_its_tables() -> None:
    columns = [name for ddl in tpcds.TABLES.values() for name in parse_ddl(ddl).names]
    assert len(tpcds.TABLES) == 24
    assert len(columns) == len(set(columns)) == 425


def test_tpcds_statements_in_spark() -> None:
    given = (
        "-- start\nselect top 100 a as \"the a\"\nfrom t where d < (cast('2000-01-01' as date) + 14 days) -- so\n;\n"
    )
    assert tpcds.in_spark(given) == (
        "select a as `the a`\nfrom t where d < (cast('2000-01-01' as date) + INTERVAL '14' DAY)\nlimit 100"
    )
    with pytest.raises(ValueError, match="subquery"):
        tpcds.in_spark("select * from (select top 5 a from t)")


needs_texts = pytest.mark.skipif(tpcds.find_queries() is None, reason="no texts of the TPC-DS queries: see its module")


@needs_texts
def test_tpcds_has_its_queries() -> None:
    two_parts = (14, 23, 24, 39)
    expected = [f"q{i}{part}" for i in range(1, 100) for part in ("ab" if i in two_parts else [""])]
    assert list(tpcds.queries()) == expected


# ------------------------------------------------------------------------------------------------- with Spark


@pytest.fixture
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark without what pays on large data only; views made here are dropped again."""
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in (*tpch.TABLES, *nexmark.TABLES, *tpcds.TABLES):
        spark.catalog.dropTempView(name)
    for name, value in before.items():
        assert value is not None
        spark.conf.set(name, value)


def without_rows(spark: SparkSession, tables: dict[str, pa.Table], queries: dict[str, str]) -> list[str]:
    """The queries that give no row, or only NULL, on these tables."""
    frames = {name: spark.createDataFrame(rows).coalesce(1).cache() for name, rows in tables.items()}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    answers = {name: spark.sql(query).toArrow() for name, query in queries.items()}
    for frame in frames.values():
        frame.unpersist()
    return [name for name, rows in answers.items() if all(c.null_count == len(rows) for c in rows.columns)]


def test_every_tpch_query_finds_rows(quick: SparkSession, tpch_tables: dict[str, pa.Table]) -> None:
    assert without_rows(quick, tpch_tables, tpch.QUERIES) == []


def test_every_nexmark_query_finds_rows(quick: SparkSession, nexmark_tables: dict[str, pa.Table]) -> None:
    assert without_rows(quick, nexmark_tables, nexmark.QUERIES | nexmark.EXTRA) == []


@needs_texts
def test_spark_optimises_every_tpcds_query(quick: SparkSession) -> None:
    for name, ddl in tpcds.TABLES.items():
        quick.createDataFrame(quick.sparkContext.emptyRDD(), ddl).createOrReplaceTempView(name)
    for query in tpcds.queries().values():
        quick.sql(query)._jdf.queryExecution().optimizedPlan()
