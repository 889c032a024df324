"""Streaming tables and flows: what is understood, what is refused, and rows that come in once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dbspark
from dbspark.errors import DbsparkError, SchemaError
from dbspark.pipeline.flows import FLOW, STREAMING_TABLE, check_supported, parse_definition, reads_a_stream
from dbspark.pipeline.statements import VIEW, view_query
from tests.pipeline.test_pipeline import rows


@pytest.mark.parametrize(
    ("rest", "columns", "query"),
    [
        ("", None, None),
        (" AS SELECT 1", None, "SELECT 1"),
        ("(a BIGINT, b DECIMAL(3, 1) COMMENT 'x) y')", "a BIGINT, b DECIMAL(3, 1) COMMENT 'x) y'", None),
        ("\n(a INT)\nUSING delta PARTITIONED BY (a) COMMENT 'it''s' TBLPROPERTIES ('a' = 'b)') as select 1", "a INT",
         "select 1"),
    ],
)  # fmt: skip
def test_definitions(rest: str, columns: str | None, query: str | None) -> None:
    found = parse_definition(rest, "x")
    assert (found.columns, found.query) == (columns, query)


@pytest.mark.parametrize("rest", ["(a INT", " SCHEDULE EVERY 1 HOUR AS SELECT 1", " AS_SELECT 1"])
def test_definitions_that_are_not_understood(rest: str) -> None:
    with pytest.raises(DbsparkError, match="CREATE X: "):
        parse_definition(rest, "CREATE X")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE STREAMING TABLE t", "CREATE STREAMING TABLE t: give its columns"),
        ("CREATE OR REFRESH STREAMING TABLE t AS SELECT * FROM s", "reads no stream; write FROM STREAM name"),
        ("CREATE STREAMING TABLE t AS SELECT 'STREAM x' FROM s", "reads no stream"),
        ("CREATE FLOW f AS INSERT INTO t BY NAME SELECT 1", "CREATE FLOW f: its query reads no stream"),
        ("CREATE FLOW f AS AUTO CDC INTO t FROM STREAM s KEYS (a) SEQUENCE BY b", "CREATE FLOW f: AUTO CDC is not"),
    ],
)
def test_what_is_refused_before_anything_is_done(statement: str, message: str) -> None:
    with pytest.raises(DbsparkError, match=message):
        check_supported(statement)


def test_what_is_understood() -> None:
    for statement in (
        "CREATE STREAMING TABLE IF NOT EXISTS t AS SELECT * FROM STREAM(s)",
        "create streaming table `t` (a int)",
        "CREATE FLOW f COMMENT 'x' AS INSERT INTO t BY NAME SELECT * FROM STREAM `s`",
        "CREATE FLOW f AS INSERT INTO t SELECT * FROM STREAM s",
        "CREATE VIEW v AS SELECT 1",
    ):
        check_supported(statement)
        assert any(p.fullmatch(statement) for p in (STREAMING_TABLE, FLOW, VIEW))
    assert not reads_a_stream("SELECT streams FROM stream_of_things")
    found = VIEW.fullmatch("CREATE OR REFRESH MATERIALIZED VIEW v (a COMMENT 'b, c', d) COMMENT 'e' AS SELECT 1, 2")
    assert found is not None
    assert view_query(found) == "SELECT * FROM (SELECT 1, 2) AS v(a, d)"


class Source:
    """A folder that Spark reads as a stream under a name."""

    def __init__(self, spark: Any, folder: Path, name: str) -> None:
        self.spark, self.folder, self.name = spark, folder, name
        folder.mkdir()

    def statement(self) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.name} (a BIGINT, b STRING) USING json LOCATION '{self.folder}'"

    def add(self, *lines: str) -> None:
        (self.folder / f"{len(list(self.folder.iterdir()))}.json").write_text("".join(f"{x}\n" for x in lines))


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> Iterator[Source]:
    yield Source(spark, tmp_path / "in", "flows_source")
    spark.sql("DROP TABLE IF EXISTS flows_source")


def test_a_streaming_table_takes_every_row_once(spark: Any, tmp_path: Path, source: Source) -> None:
    program = f"""
        {source.statement()};
        CREATE STREAMING TABLE log COMMENT 'all' AS SELECT a, upper(b) AS b FROM STREAM flows_source WHERE a > 0;
    """
    flow = "CREATE FLOW late AS INSERT INTO log BY NAME SELECT 'late' AS b, -a AS a FROM STREAM flows_source WHERE a<0"
    source.add('{"a": 1, "b": "x"}', '{"a": -7}')
    for round_ in range(2):
        with dbspark.Pipeline("log", location=str(tmp_path / "state"), spark=spark) as pipe:
            pipe.sql(program)
            if not round_:
                pipe.create_view("n", "SELECT count(*) AS n FROM log")
                assert rows(pipe.table("log").to_arrow()) == [(1, "X")]
                source.add('{"a": 2, "b": "y"}', '{"a": -8}')
            pipe.sql(program)
            pipe.sql(flow)
            assert rows(pipe.table("log").to_arrow()) == [(1, "X"), (2, "Y"), (7, "late"), (8, "late")]
            assert rows(pipe.view("n").to_arrow()) == [(4,)]


def test_flows_read_streaming_views_and_not_the_pipeline(spark: Any, source: Source) -> None:
    source.add('{"a": 1, "b": "x"}')
    with dbspark.Pipeline("log", spark=spark) as pipe:
        pipe.sql(f"{source.statement()}; CREATE TEMPORARY VIEW flows_view AS SELECT a FROM STREAM flows_source")
        pipe.sql("CREATE STREAMING TABLE log (a BIGINT) AS SELECT a FROM STREAM flows_view; CREATE TABLE t (a BIGINT)")
        pipe.sql(
            "CREATE TEMPORARY VIEW kept AS SELECT sum(a) AS s FROM log; CREATE VIEW IF NOT EXISTS kept AS SELECT 1"
        )
        spark.catalog.dropTempView("flows_view")
        assert rows(pipe.view("kept").to_arrow()) == [(1,)]
        for name in ("t", "kept"):
            with pytest.raises(DbsparkError, match=f"CREATE STREAMING TABLE u: {name} belongs to this pipeline"):
                pipe.sql(f"CREATE STREAMING TABLE u AS SELECT * FROM STREAM {name}")
        with pytest.raises(SchemaError, match=r"with other columns .*--full-refresh log"):
            pipe.sql("CREATE STREAMING TABLE log AS SELECT a, b FROM STREAM flows_source")
        with pytest.raises(DbsparkError, match="no table 'nothing'"):
            pipe.sql("CREATE FLOW f AS INSERT INTO nothing SELECT a FROM STREAM flows_source")
        with pytest.raises(SchemaError, match="log"):
            pipe.sql("CREATE FLOW f AS INSERT INTO log SELECT b FROM STREAM flows_source")
        assert list(pipe.tables) == ["log", "t"]
