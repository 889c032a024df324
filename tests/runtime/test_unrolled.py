"""How many iterations are unrolled, and that jobs go on until no shard waits. `test_planner` runs the stages."""

from __future__ import annotations

import json

import pytest

from dbspark.runtime.level_plan import Level
from dbspark.runtime.stage import SPILLED, SUSPENDED
from dbspark.runtime.unrolled import MAX_UNROLLED_ITERATIONS, iterations_to_unroll, run_until_complete, unroll


@pytest.mark.parametrize(("last", "unrolled"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 4), (1000, 4)])
def test_as_many_iterations_are_unrolled_as_the_last_tick_took(last: int, unrolled: int) -> None:
    assert MAX_UNROLLED_ITERATIONS == 4
    assert iterations_to_unroll(last) == unrolled


def test_levels_without_fixpoints_stay_as_they_are() -> None:
    levels = (Level([]), Level([]))
    assert unroll(levels) == (levels, ())


def test_jobs_run_until_no_shard_is_suspended() -> None:
    """What a job gives counts once, and a shard that is suspended begins the next job with what it has spilled."""
    begun = []

    def run(resume_point: int | None, rows: object) -> list[tuple[int, str, bytes]]:
        begun.append((resume_point, rows))
        if len(begun) == 3:
            return [(0, "out", b"last")]
        waiting = json.dumps({"resumes": len(begun)}).encode()
        return [(0, SUSPENDED, waiting), (1, SUSPENDED, waiting), (1, "out", b"%d" % len(begun))]

    given = [(0, "in", b"rows")]
    assert run_until_complete(run, given) == [(1, "out", b"1"), (1, "out", b"2"), (0, "out", b"last")]
    spilled = [[(shard, SPILLED, json.dumps({"resumes": n}).encode()) for shard in (0, 1)] for n in (1, 2)]
    assert begun == [(None, given), (1, spilled[0]), (2, spilled[1])]
