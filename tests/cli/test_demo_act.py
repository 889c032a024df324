"""The acts of the demo on small shops: what they check is right, and what is wrong is noticed."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dbspark.cli import demo_act
from dbspark.cli.demo_act import Stage, perform, resume
from dbspark.cli.demo_data import LATER_VIEWS, SMALL_TABLE_STEPS, TABLES, VIEWS, ShopFiles, Workload
from dbspark.cli.demo_events import Compared, Event, Held, Showed, Ticked
from dbspark.cli.demo_oracle import differences

STEPS = SMALL_TABLE_STEPS + 4
SMALL = Workload(rows=300, steps=STEPS, changes=100)


def act(stage: Stage, spark: SparkSession) -> list[Event]:
    events: list[Event] = []
    perform(stage, spark, events.append)
    return events


def of(events: list[Event], kind: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def problems(events: list[Event]) -> list[str]:
    found = [line for event in events if isinstance(event, Compared) for line in event.problems]
    return found + [event.result for event in events if isinstance(event, Showed) and not event.right]


def test_the_first_act_and_the_restart(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(tmp_path, SMALL, str(tmp_path / "state"), None)
    events = act(stage, spark)
    assert problems(events) == []
    ticks = [event for event in events if isinstance(event, Ticked)]
    files = STEPS + 1 + 2 + 2 * 2  # orders; what the other tables begin with; their changes
    assert [event.tick for event in ticks] == list(range(1, files + 1))
    assert [event.views for event in events if isinstance(event, Compared)] == [7, 8, 8]
    assert [event.what for event in events if isinstance(event, Showed)] == [
        "a view added while streams run",
        f"time travel to tick {of(events, Compared)[0].tick}",  # type: ignore[union-attr]
    ]
    rows = {name: n for event in events if isinstance(event, Held) for name, n in event.rows.items()}
    assert set(rows) == {*VIEWS, *LATER_VIEWS}

    # The process has ended after its last tick had been committed, and before that was told.
    again: list[Event] = []
    resume(stage, spark, again.append, ticks[:-1])
    assert problems(again) == []
    assert len(of(again, Showed)) == 2
    assert len(of(again, Compared)) == 1
    assert set(next(event for event in again if isinstance(event, Held)).rows) == {*VIEWS, *LATER_VIEWS}

    # What had been told and is not there is noticed.
    wrong = [*ticks[:-2], replace(ticks[-2], rows=ticks[-2].rows + 1), ticks[-1]]
    more = [*ticks, replace(ticks[-1], tick=ticks[-1].tick + 1)]
    for told, message in ((wrong, f"tick {wrong[-2].tick} changed"), (more, f"tick {files + 1} was acknowledged")):
        again = []
        resume(stage, spark, again.append, told)
        assert any(message in line for line in problems(again))
        assert not of(again, Compared)
    left = {row.tableName for row in spark.sql("SHOW TABLES").collect()}
    assert not left & {*TABLES, *VIEWS}, "the demo left names behind"


def test_a_change_that_was_not_applied_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_act, "EMBEDDED_ROUNDS", 1)
    wait = ShopFiles.wait

    def forgetful(shop: ShopFiles) -> None:
        wait(shop)
        for file in shop.delivered("orders").glob("000002.parquet"):  # Spark is given other changes than the stream
            shutil.copy(shop.delivered("orders") / "000001.parquet", file)

    monkeypatch.setattr(ShopFiles, "wait", forgetful)
    events = act(Stage(tmp_path, replace(SMALL, steps=2), str(tmp_path / "state"), None), spark)
    assert any("spending: only Spark has" in line for line in problems(events))


def test_the_second_act(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_act, "SHARDED_ROUNDS", 1)
    events = act(Stage(tmp_path, replace(SMALL, steps=1), None, 2), spark)
    assert problems(events) == []
    assert [event.views for event in events if isinstance(event, Compared)] == [7]
    assert spark.range(1).count() == 1, "the demo stopped a session that is not its own"


def test_differences_sees_rows_and_repetition() -> None:
    expected = pa.table({"a": [1, 2, 3, 3], "b": ["x", None, "y", "y"]})
    assert differences(expected.take([3, 1, 0, 2]).select(["b", "a"]), expected) == []
    assert differences(expected.slice(1), expected)
    assert differences(expected.slice(0, 3), expected)
    assert differences(expected.take([0, 1, 2, 3, 3]), expected)
    assert any("(4, 'y')" in line for line in differences(expected, pa.table({"a": [1, 2, 3, 4], "b": expected["b"]})))
