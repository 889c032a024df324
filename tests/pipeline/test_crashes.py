"""Processes that are killed while they commit; `make soak` does this, and more, for as long as wished."""

import random
from pathlib import Path

from tests.pipeline import soak


def test_processes_that_commit_are_killed(tmp_path: Path) -> None:
    """The next one takes over, lock and all."""
    soak.kill_committing(tmp_path, random.Random(10), times=10)


def test_processes_that_apply_transactions_are_killed(tmp_path: Path) -> None:
    soak.kill_applying(tmp_path, random.Random(11), times=5)


def test_a_call_fails_anywhere(tmp_path: Path) -> None:
    soak.fail_anywhere(tmp_path, random.Random(12))


def test_what_a_tick_does_depends_on_nothing_else() -> None:
    assert soak.operations(7) == soak.operations(7)
    assert len(soak.expected(40)) > 30
