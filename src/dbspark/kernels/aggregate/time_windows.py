"""Times of windows."""

from __future__ import annotations

from dbspark.kernels.jit import gil_kernel, i64
from dbspark.kernels.memory.intrinsics import load_i64, store_i64

_FAR = 1 << 62


@gil_kernel
def window_bounds(times: int, rows: int, origin: int, slide: int, more: int, out: int) -> int:
    """Write, for each time, where the last slide from `origin` on begins before it, and `more`.

    Returns 0 where a time is so far away that this might overflow. The constants are below 2^60.
    """
    for i in range(rows):
        time = load_i64(times, i)
        if time >= i64(_FAR) or time <= -i64(_FAR):
            return 0
        store_i64(out, i, time - (time - origin) % slide + more)
    return 1
