"""Names of a pipeline in queries, beside the names of the user's session, which stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dbspark import Pipeline
from dbspark.errors import DbsparkError
from dbspark.sql.program import Program


@pytest.fixture
def session(spark: Any) -> Iterator[Any]:
    """The session, with temporary views of every kind under names of tables."""
    spark.createDataFrame([(1, "mine")], "mine INT, own STRING").createOrReplaceTempView("t")
    spark.table("t").filter("mine > 0").createOrReplaceTempView("u")
    spark.catalog.cacheTable("t")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW w AS SELECT mine FROM t")
    spark.createDataFrame([(7,)], "g INT").createOrReplaceGlobalTempView("t")
    yield spark
    for name in ("t", "u", "w"):
        spark.catalog.dropTempView(name)
    spark.catalog.dropGlobalTempView("t")


def everything_of(spark: Any) -> dict[str, Any]:
    """What a user can see of a session."""
    return {
        "views": sorted(map(tuple, spark.sql("SHOW TABLES").collect())),
        "global": sorted(map(tuple, spark.sql("SHOW VIEWS IN global_temp").collect())),
        "plans": {n: str(spark.table(n)._jdf.queryExecution().analyzed()) for n in ("t", "u")},
        "rows": [spark.table(n).collect() for n in ("t", "u", "w", "global_temp.t")],
        "cached": [spark.catalog.isCached(n) for n in ("t", "u", "w")],
        "database": (spark.catalog.currentCatalog(), spark.catalog.currentDatabase()),
        "settings": dict(spark.conf.getAll),
    }


def program(spark: Any, *tables: str) -> Program:
    made = Program(spark)
    for name in tables:
        made.table(name, "a BIGINT, b BIGINT")
    return made


def test_tables_win_over_temporary_views_of_the_user_which_stay_as_they_are(session: Any) -> None:
    before = everything_of(session)
    for turn in range(3):
        made = program(session, "u", "t")
        made.view("v", "SELECT t.a, u.b FROM t JOIN u ON t.a = u.a")
        made.view("x", "WITH u AS (SELECT a FROM v) SELECT a FROM u WHERE a IN (SELECT a FROM t)")
        with pytest.raises(Exception, match="mine"):
            made.view("z", "SELECT mine FROM t")
        out = made.circuit().tick({"t": [(turn, 2)], "u": [(turn, 4)]})
        assert list(out["v"]) == [((turn, 4), 1)]
        assert list(out["x"]) == [((turn,), 1)]
        assert everything_of(session) == before


def test_a_temporary_view_that_is_made_afterwards_changes_nothing(session: Any) -> None:
    made = program(session, "t", "later")
    made.view("v", "SELECT a FROM later")
    session.createDataFrame([(9,)], "other INT").createOrReplaceTempView("later")
    try:
        made.view("x", "SELECT later.a, v.a AS c FROM later JOIN v ON later.a = v.a")
        session.catalog.cacheTable("later")
        made.view("y", "SELECT a, b FROM later")
        assert session.catalog.isCached("later")
        assert session.table("later").columns == ["other"]
    finally:
        session.catalog.dropTempView("later")
    made.view("z", "SELECT b FROM later")
    out = made.circuit().tick({"later": [(1, 2)]})
    assert [list(out[n]) for n in "vxyz"] == [[((1,), 1)], [((1, 1), 1)], [((1, 2), 1)], [((2,), 1)]]


@pytest.mark.parametrize(
    "query", ["SELECT g FROM global_temp.t", "SELECT mine FROM u", "SELECT mine FROM default.gone"]
)
def test_what_is_the_users_is_refused_by_name(session: Any, query: str) -> None:
    session.sql("CREATE TABLE IF NOT EXISTS gone USING parquet AS SELECT 1 AS mine")
    try:
        with pytest.raises(DbsparkError, match="not a table of the pipeline"):
            program(session, "t", "gone").view("v", query)
    finally:
        session.sql("DROP TABLE gone")


def test_a_view_of_the_user_reads_what_it_read_for_the_user(session: Any) -> None:
    """Its text names a temporary view of the user, and the pipeline has a table of that name."""
    with pytest.raises(DbsparkError, match="not a table of the pipeline"):
        program(session, "t").view("v", "SELECT mine FROM w")
    session.sql("CREATE OR REPLACE TEMPORARY VIEW constants AS SELECT * FROM VALUES (5) AS x(a)")
    session.sql("CREATE OR REPLACE TEMPORARY VIEW above AS SELECT a FROM constants")
    try:
        made = program(session, "constants")
        made.view("v", "SELECT above.a, constants.b FROM above JOIN constants ON above.a = constants.a")
        assert list(made.circuit().tick({"constants": [(5, 1), (6, 1)]})["v"]) == [((5, 1), 1)]
    finally:
        session.catalog.dropTempView("above")
        session.catalog.dropTempView("constants")


def test_definitions_in_threads_do_not_see_one_another(spark: Any) -> None:
    def define(turn: int) -> list[Any]:
        made = Program(spark)
        if turn % 2:
            made.table("other", "x STRING")
        made.table("t", f"a BIGINT, only{turn} BIGINT")
        for i in range(3):
            made.view(f"v{i}", f"SELECT a + {i} AS a, only{turn} FROM t")
        return list(made.circuit().tick({"t": [(turn, 5)]})["v1"])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(define, range(8))) == [[((turn + 1, 5), 1)] for turn in range(8)]
    assert not spark.catalog.tableExists("t")


def test_a_table_of_another_pipeline_is_refused_by_name(spark: Any) -> None:
    one, other = program(spark, "t"), program(spark, "u")
    with pytest.raises(DbsparkError, match="not a table of the pipeline"):
        other.view("v", one.frame("t"))


def test_a_frame_of_a_table_that_is_another_by_now_is_refused(spark: Any) -> None:
    made = program(spark, "t")
    frame = made.frame("t")
    made.leaves  # noqa: B018
    made.drop("t")
    made.table("t", "b STRING, a STRING")
    with pytest.raises(DbsparkError, match="not a table of the pipeline"):
        made.view("v", frame)


def test_a_dataframe_that_the_user_caches_is_no_part_of_a_view(spark: Any) -> None:
    made = program(spark, "t")
    frame = made.frame("t").filter("a > 1").cache()
    try:  # Spark puts the cache into plans before it is filled
        made.view("v", frame.select("b"))
        made.view("w", "SELECT b FROM t WHERE a > 1")
        assert list(made.circuit().tick({"t": [(2, 3), (1, 4)]})["w"]) == [((3,), 1)]
    finally:
        frame.unpersist()


def test_settings_functions_variables_and_the_current_database_are_the_users(spark: Any) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS there")
    spark.sql("DECLARE OR REPLACE VARIABLE least BIGINT DEFAULT 3")
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION plus_one(x BIGINT) RETURN x + 1")
    spark.catalog.setCurrentDatabase("there")
    try:
        made = program(spark, "t")
        made.view("v", "SELECT plus_one(a) a, current_database() d FROM t WHERE b > least")
        assert list(made.circuit().tick({"t": [(1, 4), (2, 3)]})["v"]) == [((2, "there"), 1)]
        assert spark.catalog.currentDatabase() == "there"
        assert spark.sql("SELECT least").collect()[0][0] == 3
    finally:
        spark.catalog.setCurrentDatabase("default")
        spark.sql("DROP DATABASE there CASCADE")
        spark.sql("DROP TEMPORARY VARIABLE least")
        spark.sql("DROP TEMPORARY FUNCTION plus_one")


def test_queries_of_a_pipeline_leave_the_session_as_it_is(session: Any) -> None:
    before = everything_of(session)
    pipe = Pipeline("p", spark=session)
    pipe.create_table("t", "a BIGINT")
    pipe.create_view("u", "SELECT a + 1 AS a FROM t")
    with pipe.transaction() as tx:
        tx.insert("t", [(1,), (2,)])
    frame = pipe.query("SELECT t.a, u.a AS b FROM t JOIN u ON t.a + 1 = u.a")
    assert everything_of(session) == before
    assert sorted(frame.collect()) == [(1, 2), (2, 3)]
    assert frame.sparkSession is session
    assert pipe.query("SELECT 1 AS x").collect() == [(1,)]
    pipe.close()
