"""Stages: what they forward without running a step, and errors on their way to the driver."""

from functools import partial

import pytest

from dbspark.errors import DbsparkError
from dbspark.runtime.level_plan import Level
from dbspark.runtime.stage import ERROR, REPORT, SUSPENDED, StageTask
from dbspark.runtime.task import TickContext, raise_first
from dbspark.storage.files import files_at


class Fails:
    id = "fails"

    def run(self, task):
        raise DbsparkError("a step was run")


def task_at(tmp_path, level, received):
    return StageTask(TickContext(1, 2, partial(files_at, str(tmp_path))), 3, level, 1, {}, received)


def test_an_error_of_an_earlier_level_is_forwarded_and_no_step_is_run(tmp_path):
    task = task_at(tmp_path, Level([Fails()]), {REPORT: [b"{}"], ERROR: [b"earlier"], "slot": [b"rows"]})
    assert list(task.run()) == [(1, REPORT, b"{}"), (1, ERROR, b"earlier")]


def test_an_error_of_a_step_leaves_as_a_row(tmp_path):
    ((shard, slot, payload),) = task_at(tmp_path, Level([Fails()]), {}).run()
    assert (shard, slot) == (1, ERROR)
    with pytest.raises(DbsparkError, match="a step was run"):
        raise_first([payload])


def test_a_level_behind_a_fixpoint_that_has_not_ended_is_suspended(tmp_path):
    level = Level([Fails()], awaited_slots=["votes"])
    ((shard, slot, _),) = task_at(tmp_path, level, {"votes": [b"{}"], "rows": [b"some"]}).run()
    assert (shard, slot) == (1, SUSPENDED)
