"""What a sink has not read is kept for it, however far it falls behind and whether it runs or not."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dbspark
from dbspark.connectors import sinks
from dbspark.connectors.feed import WEIGHT
from dbspark.errors import ConfigError, TimeError
from tests.pipeline.queries import tables, without_spark

__all__ = ["without_spark"]
HISTORY = 4


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "RETRY", sinks.RetryPolicy(attempts=3, first_pause=0.0))


def shop(location: Path | None = None, **more: Any) -> dbspark.Pipeline:
    where = None if location is None else str(location)
    pipe = dbspark.Pipeline("shop", location=where, config={"history": HISTORY}, **more)
    if not pipe.tables:
        tables(pipe)
        pipe.create_view("amounts", "amounts")
        pipe.create_view("totals", "totals")
        with pipe.transaction() as tx:
            tx.insert("customers", [(0, "north"), (1, "south")])
    return pipe


def run(pipe: dbspark.Pipeline, ticks: int) -> None:
    for _ in range(ticks):
        tick = pipe.tick + 1
        with pipe.transaction() as tx:
            tx.upsert("orders", [(tick % 7, tick % 2, tick), (100 + tick, 1, -tick)])


class Sink:
    """Adds up what it is given; waits while it is held up."""

    def __init__(self, busy: bool = False) -> None:
        self.go = threading.Event()
        self.at_work = threading.Event()
        if not busy:
            self.go.set()
        self.ticks: list[int] = []
        self.total: Counter[Any] = Counter()

    def __call__(self, changes: Any, tick: int) -> None:
        self.at_work.set()
        assert self.go.wait(60)
        self.ticks.append(tick)
        rows = [c for c in changes.column_names if not c.startswith("_")]
        for row, weight in zip(changes.select(rows).to_pylist(), changes[WEIGHT].to_pylist(), strict=True):
            self.total[tuple(row.values())] += weight


def held(view: Any) -> Counter[Any]:
    return Counter(tuple(row.values()) for row in view.to_arrow().to_pylist())


def check(pipe: Any, name: str, sink: Sink) -> None:
    assert {row: n for row, n in sink.total.items() if n} == held(pipe.view(name))
    assert sink.ticks == sorted(set(sink.ticks))


def oldest(pipe: Any, name: str) -> int:
    with pipe._lock:
        return int(pipe._readable(name).oldest())


@pytest.mark.parametrize("name", ["amounts", "totals"])
@pytest.mark.parametrize("durable", [False, True])
def test_a_sink_that_falls_behind_gets_every_tick(
    without_spark: None, tmp_path: Path, durable: bool, name: str
) -> None:
    with shop(tmp_path / "state" if durable else None) as pipe:
        run(pipe, 3)
        sink = Sink(busy=True)
        feed = pipe._feed(name, f"{name}.sink", sink, None)
        begun = pipe.tick
        assert sink.at_work.wait(60)
        run(pipe, 20 * HISTORY)
        assert oldest(pipe, name) == begun
        assert held(pipe.view(name).as_of(begun + 5))
        sink.go.set()
        feed.processAllAvailable()
        check(pipe, name, sink)
        assert sink.ticks == list(range(begun, pipe.tick + 1))
        run(pipe, 2)
        feed.processAllAvailable()
        run(pipe, HISTORY)
        feed.processAllAvailable()
        run(pipe, 1)
        assert oldest(pipe, name) >= pipe.tick - 2 * HISTORY  # what has been read is let go of
        check(pipe, name, sink) if feed.position == pipe.tick else None


@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failed"])
def test_what_a_durable_sink_has_not_read_is_kept_across_restarts(
    without_spark: None, tmp_path: Path, fails: bool
) -> None:
    sink = Sink()

    def failing(changes: Any, tick: int) -> None:
        raise ValueError("the sink is down")

    with shop(tmp_path / "state") as pipe:
        run(pipe, 3)
        feed = pipe._feed("totals", "totals.sink", sink, None)
        run(pipe, 2)
        feed.processAllAvailable()
        feed.stop()
        position = feed.position
        if fails:
            feed = pipe._feed("totals", "totals.sink", failing, None)
            run(pipe, 1)
            with pytest.raises(ValueError, match="down"):
                feed.processAllAvailable()
        run(pipe, 5 * HISTORY)
        assert oldest(pipe, "totals") == position
        assert oldest(pipe, "amounts") >= pipe.tick - HISTORY
    for _ in range(3):
        with shop(tmp_path / "state") as pipe:
            assert oldest(pipe, "totals") == position
            run(pipe, 3 * HISTORY)
            assert oldest(pipe, "totals") == position
    with shop(tmp_path / "state") as pipe:
        feed = pipe._feed("totals", "totals.sink", sink, None)
        feed.processAllAvailable()
        check(pipe, "totals", sink)
        assert sink.ticks[-1] == feed.position == pipe.tick
        run(pipe, 3 * HISTORY)
        feed.processAllAvailable()
        run(pipe, 1)
        assert oldest(pipe, "totals") > position


def test_a_crash_before_the_position_is_committed_repeats_ticks_and_loses_none(
    without_spark: None, tmp_path: Path
) -> None:
    """The manifest has the position of its own moment, and the histories go back to it."""
    import shutil

    sink = Sink(busy=True)
    with shop(tmp_path / "state") as pipe:
        run(pipe, 2)
        feed = pipe._feed("totals", "totals.sink", sink, None)
        assert sink.at_work.wait(60)
        begun = pipe.tick
        run(pipe, 3 * HISTORY)
        sink.go.set()
        feed.processAllAvailable()  # and no commit after that
        shutil.copytree(tmp_path / "state", tmp_path / "crashed", ignore=shutil.ignore_patterns("lock*"))
        again = Sink()
    with shop(tmp_path / "crashed") as pipe:
        assert pipe._positions["totals.sink"]["tick"] == begun
        feed = pipe._feed("totals", "totals.sink", again, None)
        feed.processAllAvailable()
        check(pipe, "totals", again)


def test_a_sink_begins_as_far_back_as_there_is_anything(without_spark: None, tmp_path: Path) -> None:
    with shop(tmp_path / "state") as pipe:
        run(pipe, 5 * HISTORY)
        before = dict(pipe._positions)
        with pytest.raises(TimeError, match="is to begin after tick 1, which is no longer kept"):
            pipe._feed("totals", "totals.sink", Sink(), 1)
        assert pipe._positions == before
        sink = Sink(busy=True)
        since = pipe.tick - HISTORY
        total = Counter(held(pipe.view("totals").as_of(since)))
        feed = pipe._feed("totals", "totals.sink", sink, since)
        run(pipe, 5 * HISTORY)
        sink.go.set()
        feed.processAllAvailable()
        sink.total.update(total)
        check(pipe, "totals", sink)


def test_the_slowest_sink_counts_until_it_is_forgotten(without_spark: None) -> None:
    with shop() as pipe:
        run(pipe, 2)
        view = pipe.view("totals")
        feeds = [pipe._feed("totals", f"totals.{name}", Sink(), None) for name in ("slow", "fast")]
        for feed in feeds:
            feed.processAllAvailable()
        feeds[0].stop()
        begun = pipe.tick
        run(pipe, 4 * HISTORY)
        feeds[1].processAllAvailable()
        assert oldest(pipe, "totals") == begun
        with pytest.raises(
            ConfigError, match=r"no sink 'totals\.none'; those of the view are totals\.slow, totals\.fast"
        ):
            view.forget_stream("none")
        view.forget_stream("slow")
        run(pipe, 1)
        assert oldest(pipe, "totals") > begun
        view.forget_stream("fast")
        assert not feeds[1].isActive
        run(pipe, 2 * HISTORY)
        assert oldest(pipe, "totals") == pipe.tick - HISTORY
        again = Sink()
        feed = pipe._feed("totals", "totals.slow", again, None)
        feed.processAllAvailable()
        check(pipe, "totals", again)


def test_a_position_that_is_no_longer_kept_is_refused_when_the_sink_is_started(
    without_spark: None, tmp_path: Path
) -> None:
    """As a pipeline may have left it that did not hold it."""
    with shop(tmp_path / "state") as pipe:
        run(pipe, 4 * HISTORY)
        pipe._positions = {**pipe._positions, "totals.sink": {"tick": 1}}
    with shop(tmp_path / "state") as pipe:
        with pytest.raises(TimeError, match=r"no longer kept(?s:.*)forget_stream"):
            pipe._feed("totals", "totals.sink", Sink(), None)
        pipe.view("totals").forget_stream()
        run(pipe, 1)
        feed = pipe._feed("totals", "totals.sink", Sink(), None)
        feed.processAllAvailable()


@pytest.mark.spark
def test_a_sink_of_a_pipeline_on_shards_is_held_too(spark: Any, tmp_path: Path) -> None:
    place, sink = str(tmp_path / "state"), Sink()

    def opened() -> dbspark.Pipeline:
        return dbspark.Pipeline("shards", spark=spark, shards=2, location=place, config={"history": 1})

    with opened() as pipe:
        pipe.create_table("t", "k BIGINT, v BIGINT")
        pipe.create_view("sums", "SELECT k % 2 AS k, sum(v) AS s FROM t GROUP BY k % 2")
        feed = pipe._feed("sums", "sums.sink", sink, None)
        feed.processAllAvailable()
        feed.stop()
        position = pipe.tick
        for i in range(5):
            with pipe.transaction() as tx:
                tx.insert("t", [(i, 1), (i + 1, 2)])
        assert oldest(pipe, "sums") <= position
    with opened() as pipe:
        for i in range(3):
            with pipe.transaction() as tx:
                tx.insert("t", [(i, 1), (i + 1, 2)])
        feed = pipe._feed("sums", "sums.sink", sink, None)
        feed.processAllAvailable()
        check(pipe, "sums", sink)
        assert len(sink.ticks) == 8
