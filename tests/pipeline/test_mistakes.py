"""Mistakes of new users: each is refused by what is wrong, where, and what to do, and leaves the state as it was."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

import dbspark
from dbspark.errors import ConfigError, DbsparkError, OpenAnswerWarning, SchemaError, TimeError


@pytest.fixture(scope="module")
def pipe(spark: Any) -> Iterator[dbspark.Pipeline]:
    with dbspark.Pipeline("mistakes", spark=spark) as made:
        made.create_table("t", "id INT, s STRING", primary_key=["id"])
        made.create_table("pair", "a INT, b STRING, c INT", primary_key=["a", "b"])
        made.create_view("v", "SELECT id, s FROM t")
        yield made


ROWS_WITH_NULL: dict[str, Callable[[Any], Any]] = {
    "rows": lambda spark: [(1, "a"), (None, "b")],
    "dicts": lambda spark: [{"id": 1, "s": "a"}, {"id": None, "s": "b"}],
    "arrow": lambda spark: pa.table({"id": pa.array([1, None], pa.int32()), "s": ["a", "b"]}),
    "other arrow": lambda spark: pa.table({"s": ["a", "b"], "id": pa.array([1, None], pa.int64())}),
    "pandas": lambda spark: pd.DataFrame({"id": [1, None], "s": ["a", "b"]}),
    "spark": lambda spark: spark.createDataFrame([(1, "a"), (None, "b")], "id INT, s STRING"),
}


class TestNullKeys:
    @pytest.mark.parametrize("kind", ["insert", "upsert", "apply"])
    @pytest.mark.parametrize("form", ROWS_WITH_NULL)
    def test_a_key_cannot_be_null(self, pipe: dbspark.Pipeline, spark: Any, kind: str, form: str) -> None:
        data = ROWS_WITH_NULL[form](spark)
        message = r"table 't': column 'id' is NULL in the row \(None, 'b'\), and a column of the primary key cannot be"
        before = pipe.tick
        with pytest.raises(SchemaError, match=message), pipe.transaction() as tx:  # noqa: PT012 the whole of it
            tx.insert("pair", [(1, "x", 1)])
            getattr(tx, kind)("t", data)
        assert pipe.tick == before
        assert not len(pipe.table("pair").to_arrow())

    def test_no_column_of_a_key_can_be_null(self, pipe: dbspark.Pipeline) -> None:
        with pytest.raises(SchemaError, match="table 'pair': column 'b' is NULL"), pipe.transaction() as tx:
            tx.insert("pair", [(1, None, None)])
        with pipe.transaction() as tx:
            tx.insert("pair", [(1, "x", None)])
        with pipe.transaction() as tx:
            tx.delete("pair", [(1, "x", None)])
            tx.delete_keys("pair", [(None, "y")])

    def test_of_sql(self, pipe: dbspark.Pipeline) -> None:
        with pytest.raises(SchemaError, match="table 't': column 'id' is NULL"):
            pipe.sql("INSERT INTO t (s) VALUES ('b')")

    def test_a_stream_with_one_fails(self, pipe: dbspark.Pipeline, spark: Any, tmp_path: Any) -> None:
        folder = str(tmp_path / "in")
        spark.createDataFrame([(1, "a"), (None, "b")], "id INT, s STRING").write.parquet(folder)
        stream = spark.readStream.schema("id INT, s STRING").parquet(folder)
        before = pipe.tick
        query = pipe.ingest("t", stream, trigger={"availableNow": True})
        with pytest.raises(Exception, match="column 'id' is NULL in the row"):
            query.awaitTermination()
        assert pipe.tick == before

    @pytest.mark.parametrize("exchange", ["resident", "shuffle"])
    def test_on_shards(self, spark: Any, tmp_path: Path, exchange: Any) -> None:
        folder = str(tmp_path / "in")
        ROWS_WITH_NULL["spark"](spark).write.parquet(folder)
        stream = spark.readStream.schema("id INT, s STRING").parquet(folder)
        with dbspark.Pipeline("null keys", spark=spark, shards=2, exchange=exchange) as pipe:
            pipe.create_table("t", "id INT, s STRING", primary_key=["id"])
            for form in ("rows", "arrow", "pandas", "spark"):
                with pytest.raises(DbsparkError, match="column 'id' is NULL in the row"), pipe.transaction() as tx:
                    tx.insert("t", ROWS_WITH_NULL[form](spark))
            with pytest.raises(DbsparkError, match="column 'id' is NULL in the row"):
                pipe.sql("INSERT INTO t (s) VALUES ('b')")
            with pytest.raises(Exception, match="column 'id' is NULL in the row"):
                pipe.ingest("t", stream, trigger={"availableNow": True}).awaitTermination()
            assert pipe.tick == 0


class TestNaiveTimes:
    def test_rows_and_keys_are_in_the_zone_of_the_session(self, spark: Any) -> None:
        at, then = dt.datetime(2024, 7, 1, 12), dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC)
        zone = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        try:
            with dbspark.Pipeline("times", spark=spark) as pipe:
                table = pipe.create_table("t", "at TIMESTAMP, n INT, more ARRAY<TIMESTAMP>", primary_key=["at", "n"])
                with pipe.transaction() as tx:
                    tx.insert("t", ((at, n, [at]) for n in range(4)))
                    tx.apply("t", {(at, 4, (at,)): 1})
                found = table.to_arrow().sort_by("n").to_pylist()
                assert found == [{"at": then, "n": n, "more": [then]} for n in range(5)]
                frame = pd.DataFrame({"at": [at], "n": [3]})
                for keys in ([(at, 0)], [{"at": at, "n": 1}], [Row(at=at, n=2)], frame, [(then, 4)]):
                    with pipe.transaction() as tx:
                        tx.delete_keys("t", keys)
                assert not len(table.to_arrow())
        finally:
            spark.conf.set("spark.sql.session.timeZone", zone)


class TestClosed:
    def test_a_closed_pipeline_is_not_read(self, spark: Any) -> None:
        with dbspark.Pipeline("gone", spark=spark) as pipe:
            pipe.create_table("t", "id INT")
            view = pipe.create_view("v", "SELECT id FROM t")
            with pipe.transaction() as tx:
                tx.insert("t", [(1,)])
            rows, reader, frame = view.to_arrow(), view.to_reader(), view.df()
        for read in (
            view.to_arrow, view.to_pandas, view.to_reader, view.df, view.show, view.explain, view.as_of(0).to_arrow,
            lambda: view.changes(0), lambda: pipe.query("SELECT * FROM v"), lambda: pipe.query("SELECT 1"),
            lambda: pipe.explain("v"), pipe.transaction,
        ):  # fmt: skip
            with pytest.raises(DbsparkError, match="pipeline 'gone' is closed; open it again"):
                read()
        assert rows == reader.read_all() == pa.table({"id": pa.array([1], pa.int32())})
        assert frame.collect() == [(1,)]
        assert repr(view) == "View('v', id: int32)"
        assert (pipe.is_active, list(pipe.views)) == (False, ["v"])

    def test_reading_one_starts_no_session(self) -> None:
        pipe = dbspark.Pipeline("gone")
        table = pipe.create_table("t", "id INT")
        pipe.close()
        with pytest.raises(DbsparkError, match="is closed"):
            table.df()
        assert pipe._session is None


class TestSinks:
    def test_one_does_not_begin_in_the_future(self, pipe: dbspark.Pipeline) -> None:
        view = pipe.view("v")
        message = (
            rf"begin after tick {pipe.tick + 1}, which has not happened yet; the last one is {pipe.tick}. Give a tick"
        )
        with pytest.raises(TimeError, match=message):
            view.write_stream(lambda rows, tick: None, since=pipe.tick + 1)
        with pytest.raises(ConfigError, match="write_stream: a tick is a number"):
            view.write_stream(lambda rows, tick: None, since="now")  # type: ignore[arg-type]
        assert pipe.status["sinks"] == {}
        view.write_stream(lambda rows, tick: None, since=pipe.tick).stop()
        view.forget_stream()


def test_warnings_name_the_line_of_the_caller(spark: Any) -> None:
    with dbspark.Pipeline("warned", spark=spark) as pipe:
        pipe.create_table("t", "id INT")
        query = "SELECT id FROM t LIMIT 1"
        for create in (
            lambda: pipe.create_view("v", query), lambda: pipe.create_views({"v": query}),
            lambda: pipe.sql(f"CREATE VIEW v AS {query}"),
        ):  # fmt: skip
            with pytest.warns(OpenAnswerWarning, match="view 'v'") as caught:
                create()
            assert [w.filename for w in caught] == [__file__]
            pipe.drop_view("v")


class TestOptions:
    def test_a_misspelt_option_is_refused_with_the_nearest_one(self, pipe: dbspark.Pipeline, spark: Any) -> None:
        stream = spark.readStream.format("rate").load().selectExpr("int(value) AS id", "string(value) AS s")
        for call, message in (
            (lambda: pipe.create_view("w", "SELECT 1", maintenance="incremetal"), "did you mean 'incremental'"),
            (lambda: pipe.create_view("w", "SELECT 1", maintenence="auto"), "did you mean 'maintenance'"),
            (lambda: pipe.create_table("w", "a INT", primry_key=["a"]), "did you mean 'primary_key'"),
            (lambda: dbspark.Pipeline("x", spark=spark, config={"histroy": 5}), "did you mean 'history'"),
            (lambda: dbspark.Pipeline("x", spark=spark, config={"history": "x"}), "history is 'x', which is not"),
            (lambda: dbspark.Pipeline("x", spark=spark, config="x"), "give a dict of settings"),
            (lambda: pipe.view("v").write_stream(lambda r, t: None, nmae="x"), "did you mean 'name'"),
            (lambda: pipe.view("v").write_stream(lambda r, t: None, snice=0), "did you mean 'since'"),
            (lambda: pipe.view("v").write_stream("console"), "takes a function of"),
            (lambda: pipe.ingest("t", stream, "apend"), "did you mean 'append'"),
            (lambda: pipe.ingest("t", stream, trigger={"availablenow": True}), "did you mean 'availableNow'"),
            (lambda: pipe.ingest("t", stream, trigger="availableNow"), "is the name of a trigger"),
            (lambda: pipe.ingest("t", stream, trigger="sometimes"), "'sometimes' is not one"),
            (lambda: pipe.ingest("t", stream, trigger=5), "5 is not one"),
            (lambda: pipe.ingest("t", stream, chekpoint="x"), "did you mean 'checkpoint'"),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match=message):
                call()
        assert list(pipe.views) == ["v"]


class TestTransactions:
    def test_one_that_is_not_entered_says_so(self, pipe: dbspark.Pipeline) -> None:
        tx = pipe.transaction()
        with pytest.raises(DbsparkError, match=r"has not been entered.*with pipe.transaction"):
            tx.insert("t", [(1, "a")])
        with pytest.raises(DbsparkError, match="ended without being applied"):
            tx.__enter__()
        with pytest.warns(RuntimeWarning, match="never entered, so it has done nothing"):
            del (lambda: [pipe.transaction()])()[0]

    def test_one_that_has_ended_takes_nothing_more(self, pipe: dbspark.Pipeline) -> None:
        with pipe.transaction() as tx:
            pass
        with pytest.raises(DbsparkError, match="has been applied"):
            tx.insert("t", [(1, "a")])
        with pytest.raises(ZeroDivisionError), pipe.transaction() as tx:
            raise ZeroDivisionError
        with pytest.raises(DbsparkError, match="ended without being applied"):
            tx.insert("t", [(1, "a")])
        with pipe.transaction() as tx, pytest.raises(DbsparkError, match="entered already"):
            tx.__enter__()


def test_values_of_other_kinds_are_refused_by_what_they_should_be(tmp_path: Any) -> None:
    with dbspark.Pipeline("kinds", location=tmp_path / "state") as pipe:  # type: ignore[arg-type]
        pipe.create_table("t", "id INT")
        table = pipe.table("t")
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: dbspark.Pipeline(None), "the name of a pipeline is a text, not None"),  # type: ignore[arg-type]
            (lambda: dbspark.Pipeline("x", location=5), "the location of a pipeline is a text"),  # type: ignore[arg-type]
            (lambda: dbspark.Pipeline("x", shards="two"), "'two' is not a number of shards"),  # type: ignore[arg-type]
            (lambda: dbspark.Pipeline("x", shards=0), "0 is not a number of shards"),
            (lambda: dbspark.Pipeline("x", locaton="y"), "Pipeline has no option 'locaton' .did you mean 'location'"),
            (lambda: pipe.create_table("u", "id INT", primary_key=5), "primary_key is .5,."),  # type: ignore[arg-type]
            (lambda: pipe.create_table("u", "id INT", primary_key=["id", "ID"]), "give each column once"),
            (lambda: pipe.explain(5), "what explain takes is a text, not 5"),  # type: ignore[arg-type]
            (lambda: pipe.create_view("v", None), "the query of view 'v' is a text, not None"),
            (lambda: pipe.create_view("v", " "), "the query of view 'v' is a text, not ' '"),
            (lambda: pipe.sql(None), "a script of SQL is a text, not None"),  # type: ignore[arg-type]
            (lambda: pipe.query(5), "a query is a text, not 5"),  # type: ignore[arg-type]
            (lambda: table.as_of("yesterday"), "as_of: a tick is a number"),  # type: ignore[arg-type]
            (lambda: table.changes(None), "changes: a tick is a number"),  # type: ignore[arg-type]
        ]
        for call, message in calls:
            with pytest.raises(ConfigError, match=message):
                call()
        assert (pipe.tick, list(pipe.tables), list(pipe.views)) == (0, ["t"], [])
