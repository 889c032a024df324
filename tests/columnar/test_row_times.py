"""Times of rows as kernels read them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.memory import INT64_MAX
from dbspark.columnar.merge_batches import MergePlan, run_merge
from dbspark.columnar.row_times import (
    BEFORE_ALL_TIMES,
    NO_TIME_COORDINATES,
    advance_time,
    pad_times,
    survey_of_one_time,
    time_bounds,
    times_at,
)

WIDTH = len(NO_TIME_COORDINATES)


def test_a_time_is_advanced_in_each_coordinate() -> None:
    assert advance_time((3, 7, 1), (5, 2)) == (5, 7, 1)
    assert advance_time((3, 7), ()) == (3, 7)


def test_bounds_are_open_where_nothing_is_said() -> None:
    since, upto, after, only_after = time_bounds().tolist()
    assert since == [BEFORE_ALL_TIMES] * WIDTH
    assert upto == after == [INT64_MAX] * WIDTH
    assert only_after[0] == 0


@pytest.mark.parametrize(
    ("kept", "bounds"),
    [
        ([2, 3, 5], {}),
        ([2, 3], {"upto": (4,)}),
        ([5], {"after": (4,)}),
        ([3], {"upto": (4,), "after": (2,)}),
        ([], {"upto": (1,)}),
    ],
)
def test_a_merge_keeps_the_rows_within_the_bounds(kept: list[int], bounds: dict[str, tuple[int, ...]]) -> None:
    table = pa.table({"a": [2, 3, 5]})
    batch = Batch.from_timed_arrow(table, [[2, 3, 5]])
    chunks = run_merge(MergePlan([batch], within=time_bounds(**bounds)))
    assert sorted(Batch(batch.sort_key, chunks).to_arrow()["a"].to_pylist()) == kept


def test_missing_coordinates_are_zero() -> None:
    first, *others = pad_times([[4, 5, 6, 7]], 1, 3)
    assert first.tolist() == [5, 6]
    assert [c.tolist() for c in others] == [[0]] * (WIDTH - 1)


def test_times_are_read_at_positions() -> None:
    batch = Batch.from_timed_arrow(pa.table({"a": range(4)}), [[9, 8, 7, 6]], SortKey(Schema.parse("a BIGINT")))
    numbers = batch.to_arrow()["a"].to_pylist()
    times = times_at(batch.tables, np.array([3, 1], np.int64))
    assert times[0].tolist() == [9 - numbers[3], 9 - numbers[1]]
    assert not times[1:].any()


def test_the_survey_of_one_time_says_what_a_batch_finds_itself() -> None:
    batch = Batch.from_arrow(pa.table({"a": range(4)})).at_time((7,))
    time = (7, *NO_TIME_COORDINATES[1:])
    assert batch.time == batch.earliest == batch.latest == time
    assert Batch(batch.sort_key, batch.chunks)._time_survey == survey_of_one_time(time)
