"""Reading tables and views: in chunks, as frames, for Arrow consumers, on a screen, by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dbspark
from dbspark.columnar.chunk import CHUNK_ROWS
from dbspark.errors import ConfigError, DbsparkError

ROWS = CHUNK_ROWS + 5


@pytest.fixture(scope="module")
def pipe(spark: Any) -> Iterator[dbspark.Pipeline]:
    with dbspark.Pipeline("read", spark=spark) as made:
        made.create_table("small", "k STRING, n BIGINT, x DOUBLE")
        made.create_table("large", "n BIGINT")
        made.create_table("empty", "n INT")
        made.create_view("twice", "SELECT k, n FROM small UNION ALL SELECT k, n FROM small")
        with made.transaction() as tx:
            tx.insert("small", [("a", 1, 0.5), ("b<", None, 1e7)])
            tx.insert("large", pa.table({"n": np.arange(ROWS)}))
        with made.transaction() as tx:
            tx.delete("small", [("a", 1, 0.5)])
        yield made


def ordered(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def test_a_reader_gives_the_rows_in_chunks(pipe: dbspark.Pipeline) -> None:
    view = pipe.view("twice")
    assert ordered(view.to_reader().read_all()) == ordered(view.to_arrow()) == [("b<", None)] * 2
    assert view.to_reader().schema == view.schema
    reader = pipe.table("large").to_reader()
    parts = list(reader)
    assert len(parts) > 1
    assert sorted(pa.Table.from_batches(parts).column("n").to_pylist()) == list(range(ROWS))
    assert pipe.table("empty").to_reader().read_all() == pipe.table("empty").to_arrow()


def test_readings_of_an_earlier_tick(pipe: dbspark.Pipeline) -> None:
    before = pipe.view("twice").as_of(1)
    assert ordered(before.to_reader().read_all()) == ordered(before.to_arrow()) == [("a", 1)] * 2 + [("b<", None)] * 2
    assert pa.table(before).num_rows == 4
    assert repr(before) == "View('twice', k: string, n: int64, as of tick 1)"


def test_a_reader_stays_at_its_tick(spark: Any) -> None:
    with dbspark.Pipeline("moving", spark=spark) as moving:
        moving.create_table("t", "n BIGINT")
        with moving.transaction() as tx:
            tx.insert("t", [(1,)])
        reader = moving.table("t").to_reader()
        with moving.transaction() as tx:
            tx.insert("t", [(2,)])
        assert reader.read_all().to_pylist() == [{"n": 1}]


def test_frames_of_pandas(pipe: dbspark.Pipeline) -> None:
    frame = pipe.view("twice").to_pandas()
    assert frame["k"].tolist() == ["b<", "b<"]
    assert pipe.table("small").to_pandas(types_mapper=pd.ArrowDtype)["n"].isna().all()


def test_frames_of_polars(pipe: dbspark.Pipeline) -> None:
    polars = pytest.importorskip("polars")
    view = pipe.view("twice")
    assert view.to_polars().rows() == [("b<", None)] * 2
    assert polars.DataFrame(view.as_of(1)).sort("k", "n").rows() == [("a", 1)] * 2 + [("b<", None)] * 2
    assert polars.DataFrame(pipe.table("large"))["n"].sum() == ROWS * (ROWS - 1) // 2


def test_relations_of_duckdb(pipe: dbspark.Pipeline) -> None:
    duckdb = pytest.importorskip("duckdb")
    view = pipe.view("twice")
    assert duckdb.from_arrow(view).fetchall() == [("b<", None)] * 2
    assert duckdb.from_arrow(pipe.table("large")).sum("n").fetchall() == [(ROWS * (ROWS - 1) // 2,)]


def test_without_polars_the_error_says_what_to_do(pipe: dbspark.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(DbsparkError, match="pip install polars"):
        pipe.view("twice").to_polars()


def test_arrow_consumers_take_tables_and_views(pipe: dbspark.Pipeline, spark: Any) -> None:
    assert pa.table(pipe.table("large")).num_rows == ROWS
    assert pa.RecordBatchReader.from_stream(pipe.view("twice")).read_all().num_rows == 2
    with dbspark.Pipeline("copy", spark=spark) as copy:
        copy.create_table("twice", "k STRING, n BIGINT")
        with copy.transaction() as tx:
            tx.insert("twice", pipe.view("twice"))
        assert ordered(copy.table("twice").to_arrow()) == [("b<", None)] * 2


def test_show_prints_as_spark_does(pipe: dbspark.Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    small = pipe.table("small")
    small.show()
    assert (
        capsys.readouterr().out
        == "+---+----+-----+\n|  k|   n|    x|\n+---+----+-----+\n| b<|NULL|1.0E7|\n+---+----+-----+\n\n"
    )
    pipe.table("large").show(2)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 7
    assert shown[-1] == "only showing top 2 rows"
    pipe.table("large").show(0)
    assert "only showing top 0 rows" in capsys.readouterr().out
    pipe.table("empty").show()
    assert capsys.readouterr().out == "+---+\n|  n|\n+---+\n+---+\n\n"
    for wrong in (-1, "3", True, None):
        with pytest.raises(ConfigError, match="n is"):
            small.show(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="truncate is -1"):
        small.show(truncate=-1)


def test_notebooks_show_rows_and_escape_them(pipe: dbspark.Pipeline) -> None:
    text = pipe.table("small")._repr_html_()
    assert "Table small" in text
    assert "tick 2: 1 row<" in text
    assert "b&lt;" in text
    assert "b<" not in text.replace("<b", "")
    assert f"{ROWS:,} rows, 20 of them shown" in pipe.table("large")._repr_html_()


def test_a_pipeline_in_a_notebook_lists_its_tables_and_views(pipe: dbspark.Pipeline) -> None:
    text = pipe._repr_html_()
    for part in ("Pipeline(&#x27;read&#x27;, in memory", ">small<", ">twice<", ">k string, n int64<", f">{ROWS:,}<"):
        assert part in text


def test_tables_and_views_by_name(pipe: dbspark.Pipeline) -> None:
    assert list(pipe.tables) == ["small", "large", "empty"]
    assert len(pipe.tables) == 3
    assert "small" in pipe.tables
    assert "twice" not in pipe.tables
    assert None not in pipe.tables
    assert pipe.views["twice"].to_arrow().num_rows == 2
    assert isinstance(pipe.tables["SMALL"], dbspark.Table)
    assert "Twice" in pipe.views
    assert [view.name for view in pipe.views.values()] == ["twice"]
    assert list(reversed(pipe.tables)) == ["empty", "large", "small"]
    assert repr(pipe.views) == "{'twice': View('twice', k: string, n: int64)}"
    for error in (KeyError, DbsparkError):
        with pytest.raises(error, match="twice"):
            pipe.views["once"]
    with pytest.raises(TypeError):
        pipe.views["once"] = pipe.views["twice"]  # type: ignore[index]
    assert pipe.views.get("once") is None


def test_mappings_follow_the_pipeline(spark: Any) -> None:
    with dbspark.Pipeline("follow", spark=spark) as made:
        tables = made.tables
        assert not tables
        made.create_table("t", "n DECIMAL(4, 1)")
        with made.transaction() as tx:
            tx.insert("t", [(Decimal("1.5"),)])
        assert list(tables) == ["t"]
        assert tables["t"].to_pandas()["n"].tolist() == [Decimal("1.5")]
