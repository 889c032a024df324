"""Random queries against Spark: a bounded run of what `make fuzz` does for as long as wished."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from tests.sql.fuzz import Run, Shrinker, Tally, fuzz, printed
from tests.sql.generator import Case, Tree, make_case, smaller

nan = float("nan")


def test_random_queries(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="SQLQueryContextLogger")  # queries that Spark refuses
    found: list[str] = []
    tally = fuzz(spark, 1_000, queries=60, shrink=30, report=found.append)
    assert not tally.differences, "".join(found)
    assert tally.ticks >= 20
    assert tally.skipped + tally.invalid < 10, tally.reasons


def test_a_difference_is_printed_so_that_it_can_be_replayed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    views = {"v0": Tree("ql", ("SELECT ", Tree("list", (Tree("item", ("c0",)), Tree("item", ("c1",)))), " FROM t0"))}
    ticks: list[Any] = [{"t0": {(1, "a"): 1}}, {"t0": {(2, "b"): 1, (nan, "x"): 1}}, {"t0": {(1, "a"): -1}}]
    case = Case(7, {"t0": "c0 DOUBLE, c1 STRING", "t1": "c0 INT"}, views, ticks)
    monkeypatch.setattr("tests.sql.fuzz.difference", lambda held, _: "b" * any("b" in row for row in held))
    failure = Run(spark, case, Tally())()
    assert failure is not None
    assert (failure.kind, failure.view, failure.tick) == ("difference", "v0", 1)
    text = printed(*Shrinker(spark, case, failure, 60)())
    assert "'SELECT c1 FROM t0'" in text
    assert "ticks = [\n    {'t0': {(2, 'b'): 1}},\n]" in text
    assert "t1" not in text
    with pytest.raises(AssertionError, match="difference in v0, tick 0"):
        exec(text, {"spark": spark})
    monkeypatch.undo()
    exec(text, {"spark": spark})


def test_a_struct_that_is_null_is_compared(spark: Any) -> None:
    views = {"v0": Tree("q", ("SELECT CASE WHEN c0 > 5 THEN named_struct('x', 1, 'y', 'a') END AS c0 FROM t0",))}
    tally = Tally()
    assert Run(spark, Case(7, {"t0": "c0 INT"}, views, [{"t0": {(1,): 1}}, {"t0": {(7,): 1}}]), tally)() is None
    assert tally.skipped == 0


def test_an_error_that_is_not_one_of_a_query_is_a_failure(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(frame: Any) -> Any:
        raise pa.ArrowInvalid("cannot be read")

    case = Case(7, {"t0": "c0 INT"}, {"v0": Tree("q", ("SELECT c0 FROM t0",))}, [{"t0": {(1,): 1}}])
    monkeypatch.setattr("tests.sql.fuzz.arrow_of", broken)
    failure = Run(spark, case, Tally())()
    assert failure is not None
    assert (failure.kind, failure.view) == ("oracle", "v0")


def test_a_seed_makes_a_case() -> None:
    assert make_case(5) == make_case(5)
    assert make_case(5) != make_case(6)


def test_a_tree_becomes_smaller_in_one_place_at_a_time() -> None:
    where = Tree("clause", (" WHERE ", Tree("b", ("(", Tree("b", ("x",)), " OR ", Tree("b", ("y",)), ")"))))
    items = Tree("list", (Tree("item", ("x AS a",)), Tree("item", ("y AS b",))))
    query = Tree("qbb", ("SELECT ", items, " FROM t", where))
    assert query.sql == "SELECT x AS a, y AS b FROM t WHERE (x OR y)"
    assert [t.sql for t in smaller(query)] == [
        "SELECT y AS b FROM t WHERE (x OR y)",
        "SELECT x AS a FROM t WHERE (x OR y)",
        "SELECT x AS a, y AS b FROM t",
        "SELECT x AS a, y AS b FROM t WHERE TRUE",
        "SELECT x AS a, y AS b FROM t WHERE x",
        "SELECT x AS a, y AS b FROM t WHERE y",
    ]
