"""The traces of a shard in files: what one task writes another reads, by its records alone, also twice."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.runtime.stored_state import StoredState
from dbspark.runtime.task import HistoryOptions, TickContext
from dbspark.storage.files import files_at
from dbspark.trace.spine import Spine
from dbspark.zset.zset import ZSet

SORT_KEY = SortKey(Schema.parse("k BIGINT, v STRING"), [0])


def batch(*rows: tuple[int, str]) -> Batch:
    return ZSet.from_rows(rows, SORT_KEY.schema).batch().sorted_by(SORT_KEY)


def state_at(place: Path, tick: int, records: dict[str, Any] | None = None) -> StoredState:
    context = TickContext(tick, 2, partial(files_at, str(place)))
    return StoredState(context, json.loads(json.dumps(records or {})))


def test_a_trace_is_read_by_the_records_of_the_task_that_wrote_it(tmp_path: Path) -> None:
    first = state_at(tmp_path, 1)
    assert "trace" not in first
    assert first.spine("trace", 0, SORT_KEY).rows == 0
    assert first.write() == {}
    assert list(tmp_path.iterdir()) == []
    spine = Spine(SORT_KEY).insert(batch((1, "a"), (2, "b")))
    first.replace("trace", (spine, Spine(SORT_KEY)))
    records = first.write()
    second = state_at(tmp_path, 2, records)
    assert "trace" in second
    assert second.spine("trace", 0, SORT_KEY).consolidated().same(spine.consolidated())
    assert second.spine("trace", 1, SORT_KEY).rows == 0


def test_a_task_that_runs_twice_writes_files_of_two_names_and_what_is_stored_is_not_written_again(
    tmp_path: Path,
) -> None:
    made = []
    for _ in range(2):
        task = state_at(tmp_path, 1)
        task.replace("trace", (Spine(SORT_KEY).insert(batch(*((i, "x" * 50) for i in range(3000)))),))
        made.append(task.write())
    files = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert len(files) == 2
    later = state_at(tmp_path, 2, made[0])
    later.replace("trace", (later.spine("trace", 0, SORT_KEY).insert(batch((-1, "new"))),))
    records = later.write()
    (added,) = {file for file in tmp_path.iterdir() if file.name not in files}
    assert added.stat().st_size < min(files.values()) // 4
    assert state_at(tmp_path, 3, records).spine("trace", 0, SORT_KEY).consolidated().rows == 3001


def test_a_history_is_appended_to_and_read_again(tmp_path: Path) -> None:
    options, records = HistoryOptions(SORT_KEY, 10, 0, True), {}
    for tick in (1, 2, 3):
        task = state_at(tmp_path, tick, records)
        history = task.history("table t", options, tick, None)
        task.append("table t", history, Delta.of(batch((tick, "a"))), tick)
        records |= task.write()
    history = state_at(tmp_path, 4, records).history("table t", options, 4, None)
    assert [history.at(tick, 3).rows for tick in (0, 1, 2, 3)] == [0, 1, 2, 3]


def test_what_is_spilled_is_read_by_its_extent(tmp_path: Path) -> None:
    payloads = [b"one", b"", b"three" * 1000]
    places = state_at(tmp_path, 1).spill(payloads)
    reader = state_at(tmp_path, 1)
    assert [reader.read_spilled(json.loads(json.dumps(place))).to_pybytes() for place in places] == payloads
