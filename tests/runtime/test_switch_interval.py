"""The interval of the interpreter's lock is short while a tick runs, and the user's in between."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

import dbspark
from dbspark.runtime.switch_interval import SWITCH_INTERVAL_S, SwitchInterval


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield
    sys.setswitchinterval(before)


def test_overlapping_ticks_restore_the_interval_when_the_last_one_ends() -> None:
    turns = SwitchInterval()
    with turns:
        with turns:
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_an_interval_that_the_user_sets_meanwhile_stays() -> None:
    with SwitchInterval():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002)


def test_a_shorter_interval_of_the_user_is_not_made_longer() -> None:
    sys.setswitchinterval(2e-5)
    with SwitchInterval():
        assert sys.getswitchinterval() == pytest.approx(2e-5)
    assert sys.getswitchinterval() == pytest.approx(2e-5)


def test_threads_leave_the_interval_as_it_was() -> None:
    turns = SwitchInterval()

    def work() -> None:
        for _ in range(200):
            with turns:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_ticks_leave_the_interval_as_it_was_also_when_they_fail() -> None:
    with dbspark.Pipeline("turns") as pipe:
        pipe.create_table("t", "k BIGINT")
        with pipe.transaction() as tx:
            tx.insert("t", [(1,)])
        assert sys.getswitchinterval() == pytest.approx(0.004)
        with pytest.raises(dbspark.DbsparkError), pipe.transaction() as tx:
            tx.delete("t", [(2,)])
        assert sys.getswitchinterval() == pytest.approx(0.004)
