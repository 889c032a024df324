"""Nothing of a plan is passed over in silence: what the reader does not know is refused by name."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyspark
import pytest

from dbspark.errors import DbsparkError
from dbspark.sql import catalyst
from dbspark.sql.catalyst_nodes import (
    BY_SPARK,
    FIELDS,
    METADATA,
    REFUSED,
    REFUSED_METADATA,
    PlanError,
    check_fields,
    refusal,
)
from dbspark.sql.program import Program

LEAVES = {
    "CTERelationRef", "CommandResult", "DataSourceV2Relation", "DataSourceV2ScanRelation", "EmptyRelation",
    "ExternalRDD", "HiveTableRelation", "InMemoryRelation", "LogicalQueryStage", "LogicalRelation", "MemoryPlan",
    "OffsetHolder", "PythonWorkerLogs", "ResolvedIdentifier", "ResolvedInlineTable", "ResolvedNamespace",
    "ResolvedNonPersistentFunc", "ResolvedPersistentFunc", "ResolvedPersistentView", "ResolvedProcedure",
    "ResolvedTable", "ResolvedTempView", "SQLTableFunction", "ScanBuilderHolder", "StreamingDataSourceV2Relation",
    "StreamingDataSourceV2ScanRelation", "StreamingExecutionRelation", "StreamingRelation", "StreamingRelationV2",
    "Transpose", "V2ChangelogReference", "V2TableReference",
}  # fmt: skip
"""Nodes without inputs: whatever they are, they are no tables of the pipeline, and the error says so."""


def program(spark: Any) -> Program:
    made = Program(spark)
    made.table("t", "a BIGINT, b BIGINT, s STRING, ts TIMESTAMP")
    made.table("u", "a BIGINT, c BIGINT")
    return made


def nodes_of_spark(spark: Any) -> Iterator[tuple[str, list[str]]]:
    """The classes of logical plans in Spark's jars that are queries, and their fields."""
    jvm = spark._jvm
    load = jvm.java.lang.Thread.currentThread().getContextClassLoader()

    def named(name: str) -> Any:
        return jvm.java.lang.Class.forName(name, False, load)

    catalyst_ = "org.apache.spark.sql.catalyst"
    plan = named(f"{catalyst_}.plans.logical.LogicalPlan")
    none = [named(f"{catalyst_}.{n}") for n in (
        "plans.logical.Command", "plans.logical.ParsedStatement", "plans.logical.CompoundPlanStatement",
        "analysis.UnresolvedNode",
    )]  # fmt: skip
    parts = ("/logical/", "/analysis/", "/execution/", "/catalog/", "/streaming/", "/hive/", "/python/")
    jars = Path(pyspark.__file__).parent / "jars"
    for jar in (*jars.glob("spark-catalyst_*.jar"), *jars.glob("spark-sql_*.jar"), *jars.glob("spark-hive_*.jar")):
        for entry in zipfile.ZipFile(jar).namelist():
            if not entry.endswith(".class") or "$" in entry or not any(part in entry for part in parts):
                continue
            try:
                found = named(entry[: -len(".class")].replace("/", "."))
            except Exception:  # needs a library that is not there
                continue
            abstract = found.isInterface() or found.getModifiers() & 0x400
            if abstract or not plan.isAssignableFrom(found) or any(c.isAssignableFrom(found) for c in none):
                continue
            names = jvm.org.apache.spark.sql.catalyst.ScalaReflection.getConstructorParameterNames(found)
            yield found.getSimpleName(), [names.apply(i) for i in range(names.size())]


def test_every_node_of_spark_is_read_evaluated_by_spark_or_refused_by_name(spark: Any) -> None:
    nodes = dict(nodes_of_spark(spark))
    assert len(nodes) > 100
    read = set(catalyst._NODES)
    assert read == set(FIELDS)
    lists = [read, set(BY_SPARK), set(REFUSED), LEAVES]
    twice = [n for n in nodes if sum(n in names for names in lists) > 1]
    assert not twice
    assert set(nodes) - set().union(*lists) == set()
    assert (read | set(BY_SPARK) | LEAVES) - set(nodes) == set()
    unresolved = {"UnresolvedHint", "NamedStreamingRelation", "SQLFunctionNode"}
    assert set(REFUSED) - set(nodes) <= unresolved
    for name in REFUSED:
        assert name in str(refusal(name))


def test_every_field_of_a_node_that_is_read_is_known(spark: Any) -> None:
    nodes = dict(nodes_of_spark(spark))
    assert {name: set(fields) for name, fields in FIELDS.items()} == {name: set(nodes[name]) for name in FIELDS}


def test_a_field_that_is_new_is_refused() -> None:
    check_fields("Filter", ["class", "num-children", "condition", "child"])
    with pytest.raises(PlanError, match=r"Filter.*lenient"):
        check_fields("Filter", ["class", "num-children", "condition", "child", "lenient"])


@pytest.mark.parametrize("query", [
    "SELECT a, count(*) n FROM t GROUP BY a, session_window(ts, '5 minutes')",
    "SELECT a, session_window.start b, count(*) n FROM t GROUP BY a, session_window(ts, '5 minutes')",
    "SELECT count(*) n FROM t GROUP BY session_window(ts, CASE WHEN a > 1 THEN '5 minutes' ELSE '1 minute' END)",
    "SELECT w, count(*) n FROM (SELECT session_window(ts, '5 minutes') w FROM t) GROUP BY w",
    "SELECT a FROM u WHERE c > (SELECT max(n) FROM (SELECT count(*) n FROM t GROUP BY session_window(ts, '1 hour')))",
])  # fmt: skip
def test_a_session_window_is_refused_by_name(spark: Any, query: str) -> None:
    made = program(spark)
    with pytest.raises(DbsparkError, match=r"session_window\(\).*lag\(\)"):
        made.view("v", query)
    with pytest.raises(DbsparkError, match=r"session_window\(\)"):
        made.explain(query)


def test_a_session_window_of_a_dataframe_is_refused_by_name(spark: Any) -> None:
    from pyspark.sql import functions as f

    made = program(spark)
    with pytest.raises(DbsparkError, match=r"session_window\(\)"):
        made.view("v", made.frame("t").groupBy("a", f.session_window("ts", "5 minutes")).count())


def test_what_the_error_about_session_windows_advises_is_right(spark: Any) -> None:
    made = program(spark)
    made.view("v", """
        SELECT a, session, min(ts) AS start, max(ts) + INTERVAL 5 MINUTES AS end, count(*) AS n FROM (
            SELECT a, ts, sum(new) OVER (PARTITION BY a ORDER BY ts) AS session FROM (
                SELECT a, ts, CASE WHEN ts < lag(ts) OVER (PARTITION BY a ORDER BY ts) + INTERVAL 5 MINUTES
                                   THEN 0 ELSE 1 END AS new FROM t))
        GROUP BY a, session""")  # fmt: skip
    start = datetime(2026, 1, 1)
    rows = [(1, 0, "", start), (1, 0, "", start + timedelta(seconds=270)), (1, 0, "", start + timedelta(minutes=20))]
    out = made.circuit().tick({"t": rows})["v"]
    assert sorted(row[-1] for row, _ in out) == [1, 2]


def test_time_windows_are_kept(spark: Any) -> None:
    made = program(spark)
    made.view(
        "v", "SELECT window_time(window) w, n FROM (SELECT window, count(*) n FROM t GROUP BY window(ts, '1 day'))"
    )
    out = made.circuit().tick({"t": [(1, 1, "x", datetime(2026, 1, 1, 5))]})["v"]
    assert [row[1] for row, _ in out] == [1]


def test_metadata_of_the_users_own_is_accepted(spark: Any) -> None:
    from pyspark.sql import functions as f

    made = program(spark)
    own = {"comment": "the key", "unit": {"of": "length"}, "scale": 3, "watermark": "none", "sparkling": True}
    made.view("v", made.frame("t").select(f.col("a").alias("x", metadata=own)).groupBy("x").count())
    assert list(made.circuit().tick({"t": [(1, 1, "x", None)]})["v"]) == [((1, 1), 1)]


@pytest.mark.parametrize("key", [*REFUSED_METADATA, "spark.somethingNew", "__something_new"])
def test_metadata_of_sparks_own_that_is_not_known_is_refused_by_name(spark: Any, key: str) -> None:
    from pyspark.sql import functions as f

    made = program(spark)
    with pytest.raises(DbsparkError, match="'x'"):
        made.view("v", made.frame("t").select(f.col("a").alias("x", metadata={key: 1})).groupBy("x").count())


@pytest.mark.parametrize("key", METADATA)
def test_metadata_of_sparks_own_that_says_nothing_about_rows_is_accepted(spark: Any, key: str) -> None:
    from pyspark.sql import functions as f

    made = program(spark)
    if key in ("__is_duplicate", "__qualified_access_only", "__CHAR_VARCHAR_TYPE_STRING", "__metadata_col"):
        return  # the analyser does not take them from outside
    made.view("v", made.frame("t").select((f.col("a") + 1).alias("x", metadata={key: "1"})))
    assert list(made.circuit().tick({"t": [(1, 1, "x", None)]})["v"]) == [((2,), 1)]


def test_what_belongs_to_streams_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    made = program(spark)
    frame = made.frame("t")
    with pytest.raises(DbsparkError, match="DeduplicateWithinWatermark"):
        made.view("v", frame.dropDuplicatesWithinWatermark(["a"]))
    stream = spark.readStream.format("rate").load()
    with pytest.raises(DbsparkError, match=r"reads a stream.*ingest"):
        made.view("v", stream)
    with pytest.raises(DbsparkError, match=r"reads a stream.*ingest"):
        made.view("v", stream.withWatermark("timestamp", "1 minute").dropDuplicates(["value"]))


def test_what_is_observed_is_refused_by_name(spark: Any) -> None:
    from pyspark.sql import functions as f

    made = program(spark)
    with pytest.raises(DbsparkError, match=r"CollectMetrics.*observe"):
        made.view("v", made.frame("t").observe("m", f.count("*").alias("n")))


def test_hints_say_nothing_about_rows(spark: Any) -> None:
    made = program(spark)
    made.view("v", "SELECT /*+ BROADCAST(u), REPARTITION(3) */ t.a, u.c FROM t JOIN u ON t.a = u.a")
    made.view("w", made.frame("t").hint("merge").join(made.frame("u").hint("shuffle_hash"), "a").select("a", "c"))
    out = made.circuit().tick({"t": [(1, 1, "x", None)], "u": [(1, 5)]})
    assert list(out["v"]) == list(out["w"]) == [((1, 5), 1)]


@pytest.mark.parametrize("statement", [
    "CREATE DATABASE never_made", "EXECUTE IMMEDIATE 'CREATE DATABASE never_made'",
    "BEGIN CREATE DATABASE never_made; SELECT 1 AS one; END", "INSERT INTO t SELECT * FROM t", "DELETE FROM t",
    "WITH x AS (SELECT 1 AS a) INSERT INTO u SELECT a, a FROM x",
    "FROM u INSERT INTO u SELECT * INSERT INTO u SELECT *",
    "MERGE INTO u USING t ON t.a = u.a WHEN MATCHED THEN DELETE", "SET spark.sql.ansi.enabled=false", "SHOW TABLES",
])  # fmt: skip
def test_a_statement_is_refused_and_is_not_executed(spark: Any, statement: str) -> None:
    made = program(spark)
    for define in (lambda: made.view("v", statement), lambda: made.explain(statement)):
        with pytest.raises(PlanError, match="is a statement, and a view is defined by a query"):
            define()
    assert not spark.catalog.databaseExists("never_made")


def test_what_looks_at_the_rows_of_a_table_while_a_view_is_written_is_refused(spark: Any) -> None:
    frame = program(spark).frame("u")
    for eager in (lambda: frame.groupBy("a").pivot("c").count(), frame.transpose, frame.count):
        with pytest.raises(Exception, match="stands for a table or view of a pipeline"):
            eager()


def test_python_functions_see_the_columns_and_names_that_spark_shows_them(spark: Any) -> None:
    import pandas as pd

    def first(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.sort_values("c").head(1)

    def both(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return left.merge(right, on="a")[["a", "b", "c"]]

    def renamed(frames: Any) -> Any:
        for frame in frames:
            yield frame.rename(columns={frame.columns[0]: "x"}).assign(name=frame.columns[0])

    made = program(spark)
    t, u = made.frame("t"), made.frame("u")
    made.view("mapped", u.mapInPandas(lambda frames: (f[["c"]] for f in frames), "c BIGINT"))
    made.view("grouped", u.groupBy("a").applyInPandas(first, "a BIGINT, c BIGINT"))
    made.view("pairs", t.groupBy("a").cogroup(u.groupBy("a")).applyInPandas(both, "a BIGINT, b BIGINT, c BIGINT"))
    for name in "pq":
        made.view(name, u.select(u.a.alias(name)).mapInPandas(renamed, "x BIGINT, name STRING"))
    out = made.circuit().tick({"t": [(1, 7, "x", None)], "u": [(1, 5), (1, 6), (2, 4)]})
    assert {name: sorted(row for row, _ in out[name]) for name in made.views} == {
        "mapped": [(4,), (5,), (6,)], "grouped": [(1, 5), (2, 4)], "pairs": [(1, 7, 5), (1, 7, 6)],
        "p": [(1, "p"), (2, "p")], "q": [(1, "q"), (2, "q")],
    }  # fmt: skip


def test_python_functions_of_one_name_and_other_code_are_not_one_node(spark: Any) -> None:
    made = program(spark)

    def function(times: int) -> Any:
        def same_name(batches: Any) -> Any:
            import pyarrow as pa

            for batch in batches:
                yield pa.record_batch([pa.array([times * v.as_py() for v in batch.column(0)], pa.int64())], ["x"])

        return same_name

    frame = made.frame("u").select("a")
    made.view("v", frame.mapInArrow(function(2), "x BIGINT"))
    made.view("w", frame.mapInArrow(function(3), "x BIGINT"))
    out = made.circuit().tick({"u": [(5, 1)]})
    assert (list(out["v"]), list(out["w"])) == ([((10,), 1)], [((15,), 1)])


def test_a_python_function_that_is_not_deterministic_is_refused_by_name(spark: Any) -> None:
    from pyspark.sql.functions import udf

    made = program(spark)
    spark.udf.register("dice", udf(lambda: 4, "bigint").asNondeterministic())
    with pytest.raises(DbsparkError, match=r"NOT_DETERMINISTIC.*dice"):
        made.view("v", "SELECT a, dice() d FROM t")


def test_a_function_by_reflection_is_refused_as_it_may_give_something_else(spark: Any) -> None:
    made = program(spark)
    with pytest.raises(DbsparkError, match=r"NOT_DETERMINISTIC.*reflect"):
        made.view("v", "SELECT a, reflect('java.util.UUID', 'randomUUID') u FROM t")


def test_aggregates_that_depend_on_an_order_may_be_inside_what_spark_evaluates(spark: Any) -> None:
    made = program(spark)
    made.view("v", "SELECT a, to_json(named_struct('l', collect_list(b), 'f', first(b))) j FROM t GROUP BY a")
    assert list(made.circuit().tick({"t": [(1, 7, "x", None)]})["v"]) == [((1, '{"l":[7],"f":7}'), 1)]
