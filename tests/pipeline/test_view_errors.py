"""An error inside a view names the view, the expression and a row, and leaves the state as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dbspark
from dbspark.errors import DbsparkError, EvaluationError

VIEWS = {
    "ratios": ("SELECT k, a / b AS r FROM t", (7, 5, 0, "1"), r"in a / b|in CAST\(a AS DOUBLE\) / CAST\(b AS DOUBLE\)"),
    "texts": ("SELECT k, CAST(s AS INT) AS i FROM t WHERE k > 0", (7, 1, 1, "a"), r"'a' .* in CAST\(s AS INTEGER\)"),
    "found": ("SELECT k FROM t WHERE 10 DIV b > 1", (7, 1, 0, "1"), "in .* DIV .*b"),
    "totals": ("SELECT k, sum(CAST(s AS INT)) AS n FROM t GROUP BY k", (7, 1, 1, "x"), r"'x' .* in CAST\(s AS INT"),
}
SHOWN = {"ratios": "b = 0", "texts": "s = 'a'", "found": "b = 0", "totals": "s = 'x'"}
FINE = [(i, i, i + 1, str(i)) for i in range(6)]


@pytest.fixture(scope="module")
def pipe(spark: Any) -> Iterator[dbspark.Pipeline]:
    with dbspark.Pipeline("view errors", spark=spark) as made:
        yield made


@pytest.mark.parametrize("name", VIEWS)
def test_the_view_the_expression_and_a_row_are_named(pipe: dbspark.Pipeline, name: str) -> None:
    query, wrong, expression = VIEWS[name]
    pipe.create_table("t", "k INT, a INT, b INT, s STRING")
    pipe.create_view(name, query)
    pipe.create_view("later", f"SELECT count(*) AS n FROM {name}")
    try:
        with pipe.transaction() as tx:
            tx.insert("t", FINE)
        before, tick = pipe.view(name).to_arrow(), pipe.tick
        with (
            pytest.raises(EvaluationError, match=f"(?s)view '{name}': .*{expression}.*row .* has .*{SHOWN[name]}"),
            pipe.transaction() as tx,
        ):
            tx.insert("t", [*FINE[:3], wrong, *FINE[3:]])
        assert (pipe.view(name).to_arrow(), pipe.tick) == (before, tick)
        with pipe.transaction() as tx:
            tx.delete("t", FINE)
        assert pipe.view("later").to_arrow().to_pylist() == [{"n": 0}]
        pipe.drop_view("later")
        pipe.drop_view(name)
        with pipe.transaction() as tx:
            tx.insert("t", [wrong])
        with pytest.raises(EvaluationError, match=f"(?s)view '{name}': .*{expression}"):
            pipe.create_view(name, query)
        assert list(pipe.views) == []
    finally:
        for view in reversed(list(pipe.views)):
            pipe.drop_view(view)
        pipe.drop_table("t")


def test_what_spark_evaluates_names_the_view(pipe: dbspark.Pipeline, spark: Any) -> None:
    spark.udf.register("fails_on_three", lambda x: 1 // (x - 3), "int")
    pipe.create_table("u", "k INT")
    pipe.create_view("by_spark", "SELECT fails_on_three(k) AS r FROM u")
    message = r"(?s)view 'by_spark': in a part that Spark evaluates: .*ZeroDivision"
    with pytest.raises(EvaluationError, match=message), pipe.transaction() as tx:
        tx.insert("u", [(1,), (3,)])
    assert pipe.view("by_spark").to_arrow().num_rows == 0


@pytest.mark.parametrize("exchange", ["resident", "shuffle"])
def test_on_shards(spark: Any, tmp_path: Path, exchange: Any) -> None:
    wrong, message = VIEWS["ratios"][1], r"view 'ratios': .*row .* has .*b = 0"
    columns = ["k", "a", "b", "s"]
    spark.createDataFrame([wrong], "k INT, a INT, b INT, s STRING").write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("k INT, a INT, b INT, s STRING").parquet(str(tmp_path / "in"))
    with dbspark.Pipeline("view errors", spark=spark, shards=2, exchange=exchange) as pipe:
        pipe.create_table("t", "k INT, a INT, b INT, s STRING")
        pipe.create_view("plain", "SELECT k FROM t")
        pipe.create_view("ratios", VIEWS["ratios"][0])
        for data in ([*FINE, wrong], pd.DataFrame([*FINE, wrong], columns=columns)):
            with pytest.raises(EvaluationError, match=message), pipe.transaction() as tx:
                tx.insert("t", data)
        with pytest.raises(EvaluationError, match=message):
            pipe.sql(f"INSERT INTO t VALUES {wrong}")
        with pytest.raises(Exception, match=message):
            pipe.ingest("t", stream, trigger={"availableNow": True}).awaitTermination()
        assert pipe.tick == 0
        with pipe.transaction() as tx:
            tx.insert("t", FINE)
        assert len(pipe.view("ratios").to_arrow()) == len(FINE)


def test_all_errors_are_importable() -> None:
    import dbspark.errors

    for name in dbspark.errors.__all__:
        assert issubclass(getattr(dbspark, name), DbsparkError | UserWarning)
