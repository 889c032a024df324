"""Bounds of tumbling and sliding time windows."""

from __future__ import annotations

from dbspark.kernels.jit import gil_kernel, i64
from dbspark.kernels.memory.intrinsics import load_i64, store_i64

_MAX_TIME = 1 << 62
"""Times of a larger magnitude are left to the caller: adding constants below 2^60 to them might overflow."""


@gil_kernel
def window_bounds(times: int, rows: int, origin: int, slide: int, more: int, out: int) -> int:
    """out[i] = `more` plus the greatest `origin` + k * `slide` (the start of a window) that is not above times[i].

    `times` and `out` are addresses; `origin`, `slide` and `more` are below 2^60. Returns 0 where the
    magnitude of a time is not below 2^62, else 1.
    """
    for i in range(rows):
        time = load_i64(times, i)
        if time >= i64(_MAX_TIME) or time <= -i64(_MAX_TIME):
            return 0
        store_i64(out, i, time - (time - origin) % slide + more)
    return 1
