"""Changes of views to functions and formats, across restarts."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dbspark
from dbspark.cli.status import read_status
from dbspark.connectors import sinks
from dbspark.connectors.feed import feed_schema, to_feed, to_inserts
from dbspark.errors import ConfigError, SchemaError


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "RETRY", sinks.RetryPolicy(attempts=3, first_pause=0.0))


def shop(spark: Any, location: Path | None = None) -> dbspark.Pipeline:
    pipe = dbspark.Pipeline("shop", spark=spark, location=None if location is None else str(location))
    if "orders" not in pipe.tables:
        pipe.create_table("orders", "id BIGINT, region STRING")
        pipe.create_view("regions", "SELECT region, count(*) AS n FROM orders GROUP BY region")
        pipe.create_view("plain", "SELECT region FROM orders")
    return pipe


def insert(pipe: dbspark.Pipeline, *rows: tuple[int, str]) -> None:
    with pipe.transaction() as tx:
        tx.insert("orders", list(rows))


class Sink:
    """A function that keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[dict[str, Any]]]] = []

    def __call__(self, df: Any, tick: int) -> None:
        self.calls.append((tick, [row.asDict() for row in df.collect()]))

    @property
    def ticks(self) -> list[int]:
        return [tick for tick, _ in self.calls]

    def total(self) -> Counter[tuple[Any, ...]]:
        out: Counter[tuple[Any, ...]] = Counter()
        for tick, rows in self.calls:
            for row in rows:
                assert row["_commit_version"] == tick
                assert row["_weight"] == (1 if row["_change_type"] == "insert" else -1)
                out[tuple(v for k, v in row.items() if not k.startswith("_"))] += row["_weight"]
        return +out if min(out.values(), default=0) >= 0 else out


def held(view: Any) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(c.to_pylist() for c in view.to_arrow().columns), strict=True))


def test_a_function_gets_every_tick_and_goes_on_after_a_restart(spark: Any, tmp_path: Path) -> None:
    sink, later, location = Sink(), Sink(), tmp_path / "state"
    with shop(spark, location) as pipe:
        view = pipe.view("regions")
        insert(pipe, (1, "north"))
        feed = view.write_stream(sink)
        insert(pipe, (2, "north"), (3, "south"))
        pipe.create_table("other", "a INT")
        with pipe.transaction() as tx:
            tx.insert("other", [(1,)])  # a tick that does not change the view
        insert(pipe, (4, "south"))
        feed.processAllAvailable()
        assert (sink.ticks, feed.position) == ([1, 2, 4], 4)
        assert sink.total() == held(view)
        assert all(row["_commit_timestamp"] is not None for _, rows in sink.calls for row in rows)
        with pytest.raises(ConfigError, match="runs already"):
            view.write_stream(sink)
        feed.stop()
        assert not feed.isActive
        insert(pipe, (5, "west"))
    with shop(spark, location) as pipe:
        insert(pipe, (6, "west"))
        feed = pipe.view("regions").write_stream(later)
        feed.processAllAvailable()
        insert(pipe, (7, "north"))
        feed.processAllAvailable()
        assert later.ticks == [5, 6, 7]
        sink.calls += later.calls
        assert sink.total() == held(pipe.view("regions"))


def test_a_failing_function_gets_its_tick_again(spark: Any, tmp_path: Path) -> None:
    sink, location = Sink(), tmp_path / "state"

    def fails(df: Any, tick: int) -> None:
        if tick == 2:
            raise OSError("the sink is full")
        sink(df, tick)

    with shop(spark, location) as pipe:
        feed = pipe.view("plain").write_stream(fails, name="full", since=0)
        insert(pipe, (1, "north"))
        insert(pipe, (2, "north"), (3, "north"))
        with pytest.raises(OSError, match="the sink is full"):
            feed.awaitTermination(60)
        assert isinstance(feed.exception(), OSError)
        with pytest.raises(OSError, match="the sink is full"):
            feed.processAllAvailable()
        insert(pipe, (4, "south"))  # ticks go on
        assert pipe.tick == 3
        failed = "failed after 3 attempt(s), tick 1: OSError: the sink is full"
        assert feed.status == pipe.status["sinks"]["plain.full"] == failed
        assert read_status(str(location)).sinks == {"plain.full": failed}
    with shop(spark, location) as pipe:
        feed = pipe.view("plain").write_stream(sink, name="full")
        feed.processAllAvailable()
        assert sink.ticks == [1, 2, 3]
        assert pipe.status["sinks"] == {"plain.full": "running, tick 3"}
        assert sink.total() == held(pipe.view("plain")) == Counter({("north",): 3, ("south",): 1})
    assert read_status(str(location)).sinks == {"plain.full": "tick 3"}


def test_a_sink_that_recovers_misses_nothing(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    sink, fails, said = Sink(), [OSError("busy"), OSError("still busy")], []

    def sometimes(df: Any, tick: int) -> None:
        if tick == 2 and fails:
            said.append(pipe.status["sinks"]["plain.sink"])
            raise fails.pop(0)
        sink(df, tick)

    with shop(spark) as pipe, caplog.at_level("WARNING", "dbspark"):
        feed = pipe.view("plain").write_stream(sometimes, since=0)
        insert(pipe, (1, "north"))
        feed.processAllAvailable()
        insert(pipe, (2, "south"))
        insert(pipe, (3, "south"))
        feed.processAllAvailable()
        assert sink.ticks == [1, 2, 3]
        assert feed.status == "running, tick 3"
    assert said[0] == "running, tick 1"
    assert said[1] == "trying again after 1 failed attempt(s), tick 1: OSError: busy"
    assert "feed plain.sink failed at tick 2 (attempt 2 of 3), and is tried again in 0 s: OSError: still" in caplog.text


def test_pauses_grow_to_a_limit_and_end_with_the_feed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = sinks.RetryPolicy(first_pause=1.0, max_pause=5.0)
    assert [policy.pause(n) for n in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    monkeypatch.setattr(sinks, "RETRY", sinks.RetryPolicy(first_pause=3600.0, max_pause=3600.0))
    failed = threading.Event()

    def fails(df: Any, tick: int) -> None:
        failed.set()
        raise OSError("down")

    with shop(spark) as pipe:
        feed = pipe.view("plain").write_stream(fails, since=0)
        insert(pipe, (1, "north"))
        assert failed.wait(60)
        feed.stop()
        assert feed.exception() is None


def test_a_format_is_written_once_though_a_crash_forgets_the_position(spark: Any, tmp_path: Path) -> None:
    location, out = tmp_path / "state", str(tmp_path / "out")
    with shop(spark, location) as pipe:
        insert(pipe, (1, "north"))
        feed = pipe.view("plain").write_stream(format="parquet", path=out)
        insert(pipe, (2, "north"), (3, "north"))
        insert(pipe, (4, "south"))
        feed.processAllAvailable()
        pipe._positions = pipe._stored_positions  # as if the process died here: what was not committed is gone
    with shop(spark, location) as pipe:
        behind = pipe._positions["plain.sink"]
        assert behind.get("snapshot") or behind["tick"] < 3
        feed = pipe.view("plain").write_stream(format="parquet", path=out)
        with pipe.transaction() as tx:
            tx.delete("orders", [(1, "north")])
        feed.processAllAvailable()
        written = spark.read.parquet(out)
        assert {row.tick for row in written.select("tick").distinct().collect()} == {1, 2, 3, 4}
        sums = written.groupBy("region").sum("_weight").collect()
        assert {(row[0],): row[1] for row in sums} == held(pipe.view("plain"))


def test_closing_waits_for_the_tick_at_hand(spark: Any) -> None:
    begun, calls = threading.Event(), []

    def slow(df: Any, tick: int) -> None:
        begun.set()
        calls.append((tick, df.count()))

    with shop(spark) as pipe:
        feed = pipe.view("plain").write_stream(slow)
        insert(pipe, (1, "north"))
        assert begun.wait(60)
    assert not feed.isActive
    assert feed.exception() is None
    assert calls == [(1, 1)]
    assert feed.position == 1


def test_what_write_stream_cannot_do_is_refused(spark: Any) -> None:
    with shop(spark) as pipe:
        view = pipe.view("plain")
        with pytest.raises(ConfigError, match="a function, or format"):
            view.write_stream()
        with pytest.raises(ConfigError, match="needs a path"):
            view.write_stream(format="parquet")
        with pytest.raises(ConfigError, match="for a format"):
            view.write_stream(print, path="out")


def test_the_feed_repeats_a_change_as_often_as_it_happens() -> None:
    changes = pa.table({"a": ["x", "y", "z"], "_tick": [1, 1, 2], "_weight": [2, -3, 1]})
    feed = to_feed(changes, {1: 1.5})
    assert feed.schema == feed_schema(pa.schema({"a": pa.string()}))
    assert feed["a"].to_pylist() == ["x", "x", "y", "y", "y", "z"]
    assert feed["_weight"].to_pylist() == [1, 1, -1, -1, -1, 1]
    assert feed["_change_type"].to_pylist() == ["insert"] * 2 + ["delete"] * 3 + ["insert"]
    assert feed["_commit_version"].to_pylist() == [1, 1, 1, 1, 1, 2]
    stamps = feed["_commit_timestamp"].to_pylist()
    assert stamps[0].timestamp() == 1.5
    assert stamps[-1] is None
    assert len(to_feed(changes.slice(0, 0), {})) == 0
    assert to_inserts(pa.table({"a": ["x"]}), 7, {})["_commit_version"].to_pylist() == [7]
    with pytest.raises(SchemaError, match="_weight"):
        feed_schema(pa.schema({"_weight": pa.int64()}))
