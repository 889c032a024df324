"""Times of rows as kernels read them: `TIME_LANES` coordinates of int64 for each row, unused ones zero.

`dbspark.trace.time` defines the partial order of times; here a time is just its coordinates. Rows of batches outside of
traces are *at no time*: their coordinates are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dbspark.columnar.memory import INT64_MAX, Int64s, int64s
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.merge import merge_timed as kt

BEFORE_ALL_TIMES = -INT64_MAX - 1
"""The least int64: a coordinate below every coordinate of a time."""

NO_TIME_COORDINATES = (0,) * nd.TIMES
"""The coordinates of rows at no time."""


def survey_of_one_time(time: Sequence[int]) -> list[int]:
    """The time survey of rows that all have this time: 1, as there is one time, then (least, greatest) of each
    coordinate, which are equal."""
    return [1] + [t for t in time for _ in range(2)]


SURVEY_OF_NO_TIME = survey_of_one_time(NO_TIME_COORDINATES)


def advance_time(time: Sequence[int], since: Sequence[int]) -> tuple[int, ...]:
    """A time, with all its coordinates, advanced to `since`."""
    return tuple(max(t, s) for t, s in zip(time, since, strict=False)) + tuple(time[len(since) :])


def time_bounds(since: Sequence[int] = (), upto: Sequence[int] = (), after: Sequence[int] | None = None) -> Int64s:
    """The times that a merge keeps, for `kernels.merge.merge_timed`: those at or before `upto` and not at or before
    `after`, each advanced to `since`."""
    out = np.zeros((4, nd.TIMES), np.int64)
    out[0], out[1], out[2] = BEFORE_ALL_TIMES, INT64_MAX, INT64_MAX
    out[0, : len(since)] = since
    out[1, : len(upto)] = upto
    if after is not None:
        out[2, : len(after)] = after
        out[3, 0] = 1
    return out


def pad_times(times: Any, begin: int, end: int) -> Any:
    """Rows begin … end-1 of the given coordinates, with zeros for the missing ones."""
    coordinates = [np.asarray(t, np.int64)[begin:end] for t in times]
    return coordinates + [np.zeros(1, np.int64)] * (nd.TIMES - len(coordinates))


def times_at(tables: Int64s, pos: Int64s) -> Any:
    """The times of the rows at some positions, one line for each coordinate."""
    out = int64s(nd.TIMES * len(pos)).reshape(nd.TIMES, len(pos))
    for c in range(nd.TIMES):
        kt.times_at(tables, pos, c, out[c])
    return out
