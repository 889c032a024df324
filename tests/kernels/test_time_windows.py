"""Bounds of time windows against Python's integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbspark.kernels.aggregate.time_windows import window_bounds

TIMES = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100), max_size=8)
CONSTANT = st.integers(-(2**59), 2**59)


@given(TIMES, CONSTANT, st.integers(1, 2**59), CONSTANT)
def test_bounds_are_those_of_the_last_window_that_has_begun(
    times: list[int], origin: int, slide: int, more: int
) -> None:
    given_times, out = np.array(times, np.int64), np.empty(len(times), np.int64)
    done = window_bounds(given_times.ctypes.data, len(times), origin, slide, more, out.ctypes.data)
    assert done == all(abs(t) < 2**62 for t in times)
    if done:
        assert out.tolist() == [t - (t - origin) % slide + more for t in times]
