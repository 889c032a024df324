"""What a pipeline tells of its ticks, as a StreamingQuery does."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import Any

import pytest

import dbspark
from dbspark.runtime import progress
from dbspark.trace.spine import Spine


def applied(pipe: dbspark.Pipeline, *rows: tuple[int, str]) -> None:
    with pipe.transaction() as tx:
        tx.insert("t", rows)


def test_every_tick_has_a_progress(spark: Any) -> None:
    with dbspark.Pipeline("p", spark=spark) as pipe:
        pipe.create_table("t", "a BIGINT, b STRING")
        pipe.create_view("v", "SELECT b, count(*) AS n FROM t GROUP BY b")
        assert pipe.last_progress is None
        assert pipe.recent_progress == []
        applied(pipe, (1, "x"), (2, "y"))
        applied(pipe, (3, "x"))
        last = pipe.last_progress
        assert last is not None
        assert (last["tick"], last["batchId"], last["name"], last["id"], last["runId"]) == (
            2, 2, "p", pipe.id, pipe.run_id,
        )  # fmt: skip
        assert datetime.fromisoformat(last["timestamp"]).tzinfo is not None
        assert json.loads(repr(last)) == last
        assert ">view v<" in last._repr_html_()
        assert last["numInputRows"] == 1
        assert last["sources"] == [{"description": "table t", "numInputRows": 1}]
        assert last["numOutputRows"] == {"v": 2}
        assert set(last["durationMs"]) == {"check", "compute", "commit", "transaction"}
        state = {s["operatorName"]: s["numRowsTotal"] for s in last["stateOperators"]}
        assert state["table t"] == 3
        assert state["view v"] == 4, "its history is kept"
        assert any(name.startswith("aggregate") for name in state)
        assert [p["tick"] for p in pipe.recent_progress] == [1, 2]
        assert json.loads(json.dumps(last)) == last


def test_only_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_RECENT_PROGRESS", 3)
    with dbspark.Pipeline("p") as pipe:
        pipe.create_table("t", "a BIGINT, b STRING")
        for i in range(5):
            applied(pipe, (i, "x"))
        assert [p["tick"] for p in pipe.recent_progress] == [3, 4, 5]
        assert pipe.metrics()["transactions"] == 5
        assert pipe.metrics()["rows_by_name"] == {"t": 5}


def test_a_progress_looks_at_no_rows(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that reads a state is called for it: states know how many rows they have."""
    with dbspark.Pipeline("p", spark=spark) as pipe:
        pipe.create_table("t", "a BIGINT, b STRING")
        pipe.create_view("v", "SELECT b, count(*) AS n FROM t GROUP BY b")
        applied(pipe, (1, "x"))

        def read(*_: object) -> None:
            raise AssertionError("a state was read")

        for name in ("consolidated", "disjoint", "count"):
            monkeypatch.setattr(Spine, name, read)
        monkeypatch.setattr(Spine, "batches", property(read))
        assert pipe._runtime.row_counts().rows()["table t"] == 1


def test_status_and_listeners(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[tuple[int, str]] = []
    with dbspark.Pipeline("p") as pipe:
        pipe.create_table("t", "a BIGINT, b STRING")

        def listener(progress: dict[str, Any]) -> None:
            heard.append((progress["tick"], pipe.status["message"]))

        def failing(_: object) -> None:
            raise RuntimeError("no")

        pipe.add_listener(failing)
        pipe.add_listener(listener)
        assert pipe.is_active
        assert pipe.status == {
            "message": "Waiting for a transaction", "isDataAvailable": False, "isTriggerActive": False, "sinks": {},
        }  # fmt: skip
        with caplog.at_level(logging.ERROR, "dbspark"):
            applied(pipe, (1, "x"))
        assert "a listener failed at tick 1" in caplog.text
        pipe.remove_listener(listener)
        pipe.remove_listener(listener)
        applied(pipe, (2, "x"))
    assert heard == [(1, "Applying a transaction")]
    assert not pipe.is_active
    assert pipe.status["message"] == "Closed"
