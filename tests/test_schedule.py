"""The order in which processes get the modules of the suite, and what the suite says about its time."""

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from tests import schedule
from tests.schedule import Schedule, needs_spark
from tests.timing import too_long

TESTS = 4
"""In each module. A process is given its next module when two of its tests are left."""


class Process:
    """What the schedule sees of a process; it runs what it was given when it is told to."""

    def __init__(self, tests: list[str]) -> None:
        self.tests = tests
        self.gateway = SimpleNamespace(id="gw")
        self.waiting: list[int] = []
        self.ran: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: Iterable[int]) -> None:
        assert not self.shutting_down
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def run(self, scheduled: Schedule, modules: int = 1) -> None:
        """Run all tests of the next modules."""
        for _ in range(TESTS * modules):
            index = self.waiting.pop(0)
            if self.tests[index].endswith("::0"):
                self.ran.append(self.tests[index].removesuffix("::0"))
            scheduled.mark_test_complete(self, index)


def begun(monkeypatch: pytest.MonkeyPatch, modules: dict[str, float], processes: int) -> tuple[Schedule, list[Process]]:
    """A schedule of modules ; those that need Spark are named so."""
    monkeypatch.setattr(schedule, "needs_spark", lambda module: "spark" in module)
    monkeypatch.setattr(schedule, "SECONDS", modules)
    config: Any = SimpleNamespace(
        getvalue=lambda name: ["popen"] * processes, option=SimpleNamespace(loadscopereorder=True)
    )
    made = Schedule(config)
    tests = [f"{module}::{i}" for module in modules for i in range(TESTS)]
    nodes: list[Any] = [Process(tests) for _ in range(processes)]
    for node in nodes:
        made.add_node(node)
        made.add_node_collection(node, tests)
    made.schedule()
    return made, nodes


def ends(scheduled: Schedule, *nodes: Process) -> None:
    """One process after the other runs all that it gets, and everything has run then."""
    for node in nodes:
        while node.waiting:
            node.run(scheduled)
        assert node.shutting_down
    assert not scheduled.has_pending


def test_the_first_process_begins_with_spark_and_the_longest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"spark a": 1.0, "b": 1.0, "c": 20.0, "spark d": 90.0, "spark e": 60.0, "f": 2.0}
    scheduled, (first, second) = begun(monkeypatch, modules, 2)
    first.run(scheduled)
    second.run(scheduled)
    first.run(scheduled)
    ends(scheduled, second, first)
    assert first.ran == ["spark d", "spark e", "spark a"]
    assert second.ran == ["c", "f", "b"]


@pytest.mark.parametrize(("left", "starts"), [(80.0, True), (30.0, False)])
def test_another_process_starts_spark_where_much_is_left(
    monkeypatch: pytest.MonkeyPatch, left: float, starts: bool
) -> None:
    modules = {"spark a": 90.0, "spark b": left, "spark c": 3.0, "d": 1.0}
    scheduled, (first, second) = begun(monkeypatch, modules, 2)
    ends(scheduled, second, first)
    assert first.ran == (["spark a"] if starts else ["spark a", "spark b", "spark c"])
    assert second.ran == (["d", "spark b", "spark c"] if starts else ["d"])


def test_one_that_has_run_all_of_spark_goes_on_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled, (first, second) = begun(monkeypatch, {"spark a": 9.0, "b": 9.0, "c": 8.0, "d": 7.0, "e": 6.0}, 2)
    first.run(scheduled)
    ends(scheduled, second, first)
    assert first.ran == ["spark a", "c"]
    assert second.ran == ["b", "d", "e"]


@pytest.mark.parametrize("processes", [1, 3])
def test_every_module_runs_once_in_any_number_of_processes(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    modules = {f"{'spark ' if i % 3 else ''}{i}": i * 7.0 % 5 for i in range(20)}
    scheduled, nodes = begun(monkeypatch, modules, processes)
    while scheduled.has_pending:
        for node in nodes:
            if node.waiting:
                node.run(scheduled)
    assert Counter(module for node in nodes for module in node.ran) == Counter([*modules])


def test_the_work_of_a_process_that_died_is_done_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled, (first, second) = begun(monkeypatch, {"spark a": 9.0, "spark b": 8.0, "c": 1.0, "d": 1.0}, 2)
    assert scheduled.remove_node(first) == "spark a::0"
    ends(scheduled, second)
    assert sorted(second.ran) == ["c", "d", "spark a", "spark b"]


def test_modules_that_need_spark_are_known_by_their_text() -> None:
    assert needs_spark("tests/sql/test_views.py")
    assert needs_spark("tests/runtime/test_sharded.py")
    assert not needs_spark("tests/trace/test_spine.py")


def test_what_takes_too_long_is_named_slowest_first() -> None:
    assert too_long(Counter({"a": 59.0}), 899.0) == []
    lines = too_long(Counter({"a": 61.0, "b": 75.0, "c": 1.0}), 1000.0)
    assert [line.split(",")[0] for line in lines] == [
        "warning: b took 75 s", "warning: a took 61 s", "warning: the suite took 16.7 minutes",
    ]  # fmt: skip
