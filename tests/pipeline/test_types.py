"""Every type of Spark on every way in and out, without rows, with one, and with NULLs at every level.

One pipeline holds a table for each type, and two views of each table: its rows as they are, and its rows through an
expression. The oracle is a DataFrame that Spark makes of the same values: whatever dbspark gives has to have its types
and its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import dbspark
from dbspark.columnar.frames import arrow_of, in_months, relabelled

TYPES: dict[str, tuple[str, ...]] = {
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("-128", "127"),
    "SMALLINT": ("-32768", "0"),
    "INT": ("-2147483648", "5"),
    "BIGINT": ("-9223372036854775808", "5"),
    "FLOAT": ("1.5", "float('NaN')", "float('-Infinity')"),
    "DOUBLE": ("0.1", "double('NaN')", "double('Infinity')"),
    "DECIMAL(5, 2)": ("-123.45", "0"),
    "DECIMAL(18, 0)": ("123456789012345678", "0"),
    "DECIMAL(38, 18)": ("12345678901234567890.123456789012345678", "-1"),
    "STRING": ("'ünï\\0'", "''"),
    "BINARY": ("X'4100FF'", "X''"),
    "DATE": ("DATE'2024-02-29'", "DATE'0001-01-01'"),
    "TIMESTAMP": ("TIMESTAMP'2024-02-29 12:34:56.789012Z'", "TIMESTAMP'1901-01-01 00:00:00Z'"),
    "TIMESTAMP_NTZ": ("TIMESTAMP_NTZ'2024-02-29 12:34:56.789012'", "TIMESTAMP_NTZ'0001-01-01 00:00:00'"),
    "TIME": ("TIME'12:34:56.789012'", "TIME'00:00:00'"),
    "TIME(0)": ("TIME'12:34:56'", "TIME'00:00:00'"),
    "TIME(3)": ("TIME'12:34:56.789'", "TIME'00:00:00'"),
    "INTERVAL YEAR TO MONTH": ("INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '-5' MONTH"),
    "INTERVAL YEAR": ("INTERVAL '3' YEAR",),
    "INTERVAL MONTH": ("INTERVAL '3' MONTH",),
    "INTERVAL DAY TO SECOND": ("INTERVAL '1 02:03:04.000005' DAY TO SECOND", "INTERVAL '-1' SECOND"),
    "INTERVAL DAY": ("INTERVAL '3' DAY",),
    "INTERVAL HOUR TO SECOND": ("INTERVAL '30:00:01' HOUR TO SECOND",),
    "VOID": ("NULL",),
    "VARIANT": ("parse_json('{\"a\": [1, null]}')", "parse_json('null')"),
    "ARRAY<INT>": ("array(1, 2)", "array()", "array(1, NULL)", "array(NULL)"),
    "ARRAY<STRING>": ("array('a', 'bc')", "array()", "array('', NULL)"),
    "ARRAY<ARRAY<STRING>>": ("array(array('a'))", "array(array(), NULL, array(NULL, 'b'))"),
    "ARRAY<TIMESTAMP_NTZ>": ("array(TIMESTAMP_NTZ'2024-02-29 12:34:56')", "array(NULL)"),
    "ARRAY<INTERVAL YEAR TO MONTH>": ("array(INTERVAL '1-2' YEAR TO MONTH)", "array(NULL)"),
    "ARRAY<VARIANT>": ("array(parse_json('1'))", "array(NULL, parse_json('[2]'))"),
    "ARRAY<VOID>": ("array(NULL)", "array()"),
    "MAP<STRING, INT>": ("map('a', 1, 'b', 2)", "map()", "map('a', NULL)"),
    "MAP<INT, ARRAY<STRUCT<x: DATE>>>": (
        "map(1, array(struct(DATE'2024-02-29')))", "map(1, NULL)", "map(1, array(NULL, struct(NULL)))",
    ),
    "MAP<TIMESTAMP_NTZ, INTERVAL DAY>": ("map(TIMESTAMP_NTZ'2024-02-29 12:34:56', INTERVAL '3' DAY)",),
    "STRUCT<x: INT, y: STRING>": ("struct(1, 'a')", "struct(NULL, 'b')", "struct(NULL, NULL)"),
    "STRUCT<x: STRUCT<y: ARRAY<DECIMAL(38, 2)>, z: MAP<STRING, TIME(3)>>, w: VARIANT>": (
        "struct(struct(array(1.25), map('a', TIME'12:00:00.123')), parse_json('1'))",
        "struct(struct(NULL, NULL), NULL)", "struct(struct(array(NULL), map('a', NULL)), parse_json('2'))",
        "struct(NULL, NULL)",
    ),
    "STRUCT<x: INTERVAL YEAR, y: INTERVAL DAY>": ("struct(INTERVAL '3' YEAR, INTERVAL '3' DAY)", "struct(NULL, NULL)"),
    "STRUCT<>": ("named_struct()",),
}  # fmt: skip
"""Values of each type, as Spark SQL writes them; the first one is whole."""
EVERY = pytest.mark.parametrize("ddl", TYPES)
COLUMNS = {ddl: f"c{i}" for i, ddl in enumerate(TYPES)}
WIDTH = max(len(values) for values in TYPES.values())
LAST = 4
FIRST, MORE, AGAIN = [1], list(range(2, WIDTH + 2)), [50, 51]
HELD = {0: [], 1: FIRST, 2: FIRST + MORE, 3: MORE, 4: MORE + AGAIN}
"""The rows that the table holds after each tick: its last row of each type is NULL, as is row 50."""
CHANGES = {1: (FIRST, 1), 2: (MORE, 1), 3: (FIRST, -1), 4: (AGAIN, 1)}


def value(ddl: str, row: int) -> str:
    """The value of a type in a row."""
    values = TYPES[ddl]
    found = values[-1] if row == 51 else values[row - 1] if row <= len(values) else "NULL"
    return f"CAST({found} AS {ddl})"


def frame_of_sql(spark: Any, rows: list[int]) -> Any:
    """Spark's own DataFrame of some rows."""
    selects = [
        f"SELECT {row} AS id, " + ", ".join(f"{value(ddl, row)} AS {c}" for ddl, c in COLUMNS.items())
        for row in rows or [1]
    ]
    frame = spark.sql(" UNION ALL ".join(selects))
    return frame if rows else frame.where("id > 1")


class Play:
    """The pipeline, after its ticks, and what it gave to subscribers and sinks meanwhile."""

    def __init__(self, spark: Any, location: Path) -> None:
        self.spark, self.location = spark, str(location)
        self.told: list[pa.Table] = []
        self.fed: list[Any] = []
        """What a sink was given: rows as Spark writes them."""
        self.pipe = self._opened()
        self.pipe.create_table("t", ", ".join(["id INT", *(f"{c} {ddl}" for ddl, c in COLUMNS.items())]))
        through = ", ".join(f"CASE WHEN id < 100 THEN {c} END AS {c}" for c in COLUMNS.values())
        self.pipe.create_views({"v": "SELECT * FROM t", "w": f"SELECT id, {through} FROM t"})
        self.empty = {name: seen(self.readable(name).df()) for name in "tvw"}
        self._listen()
        python = [
            c for ddl, c in COLUMNS.items() if "YEAR" not in ddl and "MONTH" not in ddl and "TIMESTAMP" not in ddl
        ]
        first = frame_of_sql(spark, FIRST)
        (others,) = arrow_of(first).to_pylist()
        self._change(1, [{**others, **row.asDict()} for row in first.select(*python).collect()])
        self._change(2, frame_of_sql(spark, MORE))
        self._change(3, arrow_of(first))
        self._close()
        self.pipe = self._opened()
        self._listen()
        self._change(4, frame_of_sql(spark, AGAIN))
        self._close()
        self.pipe = self._opened()

    def readable(self, name: str) -> Any:
        return self.pipe.table(name) if name == "t" else self.pipe.view(name)

    def stored(self, name: str, **options: Any) -> Any:
        """The data source over the same location."""
        reader = self.spark.read.format("dbspark").option("location", self.location)
        for option, given in options.items():
            reader = reader.option(option, given)
        found = reader.option("monthsAsInt", "true").option("table" if name == "t" else "view", name).load()
        wanted = StructType(self.readable("t").df().schema.fields + found.schema.fields[len(COLUMNS) + 1 :])
        assert found.schema.simpleString() == in_months(wanted, wide=True).simpleString()
        return relabelled(found, wanted)

    def _opened(self) -> dbspark.Pipeline:
        return dbspark.Pipeline("types", location=self.location, spark=self.spark)

    def _listen(self) -> None:
        self.pipe.view("w").subscribe(lambda table, tick: self.told.append(table))
        self.pipe.view("w").write_stream(lambda frame, tick: self.fed.append(seen(frame)), since=0)

    def _change(self, tick: int, data: Any) -> None:
        with self.pipe.transaction() as tx:
            (tx.insert if CHANGES[tick][1] > 0 else tx.delete)("t", data)

    def _close(self) -> None:
        for feed in self.pipe._feeds.values():
            feed.processAllAvailable()
        self.pipe.close()


def seen(frame: Any) -> dict[str, Any]:
    """By column, its type and, by row, its value as Spark writes it: Python has no year-month intervals.

    The values of a row of the change feed come with its weight.
    """
    texts = []
    for ddl, c in COLUMNS.items():
        text = {"BINARY": "hex({})"}.get(ddl, "to_json(struct({}))" if "VARIANT" in ddl else "CAST({} AS STRING)")
        texts.append(f"{text.format(c)} AS {c}")
    weight = "_weight" if "_weight" in frame.columns else "1"
    rows = frame.selectExpr("id", f"{weight} AS weight", *texts).collect()
    kinds = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    return {ddl: (kinds[c], sorted(((row.id, row.weight), row[c]) for row in rows)) for ddl, c in COLUMNS.items()}


def written(table: pa.Table) -> dict[str, list[Any]]:
    """By column, its values as Arrow gives them."""
    beside = [c for c in ("id", "_tick", "_weight") if c in table.column_names]
    keys = list(zip(*(table.column(c).to_pylist() for c in beside), strict=True))
    return {ddl: sorted(zip(keys, map(repr, table.column(c).to_pylist()), strict=True)) for ddl, c in COLUMNS.items()}


@pytest.fixture(scope="module")
def play(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    before = spark.conf.get("spark.sql.timeType.enabled", None)
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        made = Play(spark, tmp_path_factory.mktemp("types") / "state")
        yield made
        made.pipe.close()
    finally:
        if before is None:
            spark.conf.unset("spark.sql.timeType.enabled")
        else:
            spark.conf.set("spark.sql.timeType.enabled", before)


@pytest.fixture(scope="module")
def oracle(play: Play) -> dict[int, dict[str, Any]]:
    return {tick: seen(frame_of_sql(play.spark, rows)) for tick, rows in HELD.items()}


@pytest.fixture(scope="module")
def frames(play: Play) -> dict[tuple[str, int], dict[str, Any]]:
    return {(name, tick): seen(play.readable(name).as_of(tick).df()) for tick in HELD for name in "tvw"}


@pytest.fixture(scope="module")
def sources(play: Play) -> dict[Any, dict[str, Any]]:
    given = {(name, tick): seen(play.stored(name, asOf=tick)) for tick in (0, LAST) for name in "tvw"}
    return given | {"feed": seen(play.stored("w", changes="true", since=0))}


@EVERY
@pytest.mark.parametrize("name", "tvw")
def test_df_is_what_spark_has(play: Play, oracle: Any, frames: Any, ddl: str, name: str) -> None:
    assert play.empty[name][ddl] == oracle[0][ddl]
    for tick in HELD:
        assert frames[name, tick][ddl] == oracle[tick][ddl]


@pytest.fixture(scope="module")
def arrow(play: Play) -> dict[int, dict[str, Any]]:
    """What Spark holds, as Arrow."""
    return {tick: written(arrow_of(frame_of_sql(play.spark, rows))) for tick, rows in HELD.items()}


@pytest.fixture(scope="module")
def given(play: Play) -> dict[Any, Any]:
    """What dbspark gives, as Arrow."""
    out: dict[Any, Any] = {}
    for name in "tvw":
        reads = play.readable(name)
        out[name] = written(reads.to_arrow())
        for tick in HELD:
            out[name, tick] = written(reads.as_of(tick).to_arrow())
            out[name, tick, "nothing"] = written(reads.changes(tick, tick))
            out[name, tick, "changes"] = written(reads.changes(tick - 1, tick)) if tick else {}
    return out | {("told", i + 1): written(table) for i, table in enumerate(play.told)}


@EVERY
@pytest.mark.parametrize("name", "tvw")
def test_arrow_is_what_spark_has(given: Any, arrow: Any, ddl: str, name: str) -> None:
    for tick in HELD:
        assert given[name, tick][ddl] == arrow[tick][ddl]
    assert given[name][ddl] == arrow[LAST][ddl]


def changed(arrow: Any, ddl: str, tick: int) -> list[Any]:
    rows, weight = CHANGES[tick]
    return [((key[0], tick, weight), text) for t in (tick, tick - 1) for key, text in arrow[t][ddl] if key[0] in rows]


@EVERY
@pytest.mark.parametrize("name", "tvw")
def test_changes_are_what_the_ticks_changed(given: Any, arrow: Any, ddl: str, name: str) -> None:
    for tick in CHANGES:
        assert given[name, tick, "changes"][ddl] == sorted(changed(arrow, ddl, tick))
        assert given[name, tick, "nothing"][ddl] == []


@EVERY
def test_subscribers_are_told_so(play: Play, given: Any, arrow: Any, ddl: str) -> None:
    assert len(play.told) == LAST
    for tick in CHANGES:
        want = sorted(((key[0], key[2]), text) for key, text in changed(arrow, ddl, tick))
        assert given["told", tick][ddl] == want


@EVERY
def test_sinks_and_the_change_feed_get_so(play: Play, oracle: Any, sources: Any, ddl: str) -> None:
    assert len(play.fed) == LAST
    every = []
    for tick, (rows, weight) in CHANGES.items():
        there = oracle[tick if weight > 0 else tick - 1][ddl][1]
        want = [((key[0], weight), text) for key, text in there if key[0] in rows]
        assert play.fed[tick - 1][ddl] == (oracle[0][ddl][0], want)
        every += want
    assert sources["feed"][ddl][1] == sorted(every)


@EVERY
@pytest.mark.parametrize("name", "tvw")
def test_the_data_source_reads_so(oracle: Any, sources: Any, ddl: str, name: str) -> None:
    for tick in (0, LAST):
        assert sources[name, tick][ddl] == oracle[tick][ddl]


def test_the_data_source_says_what_it_cannot_give(play: Play) -> None:
    reader = play.spark.read.format("dbspark").option("location", play.location).option("view", "v")
    with pytest.raises(
        Exception, match="year-month intervals, which PySpark's data sources cannot give; set the option"
    ):
        reader.load()
