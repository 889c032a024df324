"""What Spark makes of time windows, taken apart by hand: no Spark is needed to see that it means the same."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.sql import plan as p
from dbspark.sql.expressions.compiler import ExpressionCompiler, repeated
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Context
from dbspark.sql.timewindows import boundary, floor_mod, pane

LONG = pa.int64()
TIMES = pa.timestamp("us", tz="UTC")
TIME = p.Column(1, "t", TIMES)
NUMBER = p.Column(2, "x", LONG)


def call(name: str, *args: p.Expr, **options: Any) -> p.Call:
    return p.Call(name, args, tuple(options.items()))


def long(value: int) -> p.Constant:
    return p.Constant(value, LONG)


def micros() -> p.Call:
    return call("PreciseTimestampConversion", TIME, fromType="timestamp", toType="long")


def rest(of: p.Expr, slide: int) -> p.Call:
    remainder = call("Remainder", of, long(slide))
    return call("CaseWhen", call("LessThan", remainder, long(0)), call("Add", remainder, long(slide)), remainder)


def last_start(slide: int, start: int = 0) -> p.Call:
    return call("Subtract", micros(), rest(call("Subtract", micros(), long(start)), slide))


def elsewhere(expr: p.Call, compiler: ExpressionCompiler) -> Compiled:
    raise AssertionError(f"{expr.name} has no rule")


def evaluated(exprs: list[p.Expr], ansi: bool, times: list[int | None], numbers: list[int | None]) -> list[list[Any]]:
    compiler = ExpressionCompiler({1: 0, 2: 1}, {1: TIMES, 2: LONG}, Context(ansi=ansi), elsewhere)
    frame = ColumnFrame([pa.array(times, LONG).cast(TIMES), pa.array(numbers, LONG)], len(times))
    return [c.array(frame).cast(LONG).to_pylist() for c in compiler.compile_all(exprs)]


class TestFloorMod:
    @pytest.mark.parametrize("ansi", [True, False])
    @given(st.lists(st.none() | st.integers(-(2**62), 2**62), min_size=1, max_size=20), st.integers(1, 10**9))
    def test_is_never_negative(self, ansi: bool, values: list[int | None], slide: int) -> None:
        found = evaluated([rest(NUMBER, slide)], ansi, [0] * len(values), values)[0]
        assert found == [None if v is None else v % slide for v in values]

    def test_only_that_case(self) -> None:
        assert floor_mod(rest(NUMBER, 5)) == (NUMBER, 5)
        remainder = call("Remainder", NUMBER, long(5))
        other = call("CaseWhen", call("LessThan", remainder, long(1)), call("Add", remainder, long(5)), remainder)
        assert floor_mod(other) is None
        assert floor_mod(rest(NUMBER, 0)) is None
        assert floor_mod(remainder) is None


class TestPane:
    def test_where_only_the_window_is_used(self) -> None:
        windows: list[p.Expr] = [call("Subtract", last_start(10), long(10 * i)) for i in range(5)]
        found = pane([*windows, NUMBER])
        assert found is not None
        assert found[0] == TIME
        assert pane([*windows, TIME]) is None
        assert pane([*windows, last_start(20)]) is None
        assert pane([NUMBER]) is None

    @given(
        st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=20), st.integers(1, 10**7), st.integers(0, 10**6)
    )
    def test_windows_of_a_pane_are_those_of_its_times(self, times: list[int], slide: int, start: int) -> None:
        windows: list[p.Expr] = [call("Subtract", last_start(slide, start), long(slide * i)) for i in range(3)]
        found = pane(windows)
        assert found is not None
        panes = evaluated([found[1]], True, list(times), [0] * len(times))[0]
        assert evaluated(windows, True, panes, [0] * len(times)) == evaluated(
            windows, True, list(times), [0] * len(times)
        )


def as_time(micros: p.Expr) -> p.Call:
    return call("PreciseTimestampConversion", micros, fromType="long", toType="timestamp")


class TestBoundary:
    def test_what_is_one(self) -> None:
        assert boundary(as_time(last_start(10, 3))) == (TIME, 3, 10, 0)
        ends = call("Add", call("Subtract", last_start(10, 3), long(20)), long(10))
        assert boundary(as_time(ends)) == (TIME, 3, 10, -10)
        assert boundary(ends) is None
        assert boundary(as_time(call("Add", last_start(10), NUMBER))) is None
        assert boundary(micros()) is None

    @given(
        st.lists(
            st.none() | st.integers(-(2**50), 2**50) | st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63) + 2**40]),
            min_size=1,
            max_size=20,
        ),
        st.integers(1, 10**7),
        st.integers(0, 10**6),
        st.integers(-(10**8), 10**8),
    )
    def test_times_are_those_of_the_arithmetic(
        self, times: list[int | None], slide: int, start: int, more: int
    ) -> None:
        if any(t is not None and t > 2**62 for t in times):
            more = -abs(more)  # beyond the end of time both ways raise, or wrap
        expr = as_time(call("Add", last_start(slide, start), long(more)))
        wanted = [None if t is None else t - (t - start) % slide + more for t in times]
        assert evaluated([expr], False, times, [0] * len(times))[0] == wanted


class TestSharing:
    def test_equal_parts_have_one_number(self) -> None:
        one, two = last_start(10), last_start(10)
        numbers = repeated([one, call("Add", two, long(1))])
        assert numbers[id(one)] == numbers[id(two)]
        assert repeated([NUMBER, NUMBER]) == {}

    def test_what_is_shared_is_computed_once(self) -> None:
        seen = []

        def counting(expr: p.Call, compiler: ExpressionCompiler) -> Compiled:
            def run(frame: ColumnFrame) -> pa.Array:
                seen.append(frame.rows)
                return frame.columns[1]

            return Compiled(LONG, run)

        part = call("NobodyKnowsThis", NUMBER)
        compiler = ExpressionCompiler({2: 1}, {2: LONG}, Context(), counting)
        compiled = compiler.compile_all(
            [call("Add", part, long(1)), call("Multiply", call("NobodyKnowsThis", NUMBER), part)]
        )
        for _ in range(2):
            frame = ColumnFrame([pa.array([0, 0]), pa.array([3, 4])], 2)
            assert [c.array(frame).to_pylist() for c in compiled] == [[4, 5], [9, 16]]
        assert seen == [2, 2]
