"""`System.Random` of .NET with a seed: Knuth's subtractive generator, exactly.

The benchmarks of DBSP.NET draw their data from it, so a port that wants to compare with their figures needs the same
rows. Draws are independent of how they are grouped, so `draws` gives any number of raw samples at once and `scaled`
turns them into what `Next(a, b)` would have given.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt

MBIG: Final = 2147483647
MSEED: Final = 161803398

Int64s = npt.NDArray[np.int64]


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def seeded(seed: int) -> Int64s:
    """The generator's state: 56 slots (the first is unused), then `inext` and `inextp`."""
    a = [0] * 56
    mj = _int32(MSEED - (MBIG if seed == -(2**31) else abs(seed)))
    a[55] = mj
    mk = 1
    for i in range(1, 55):
        at = 21 * i % 55
        a[at] = mk
        mk = _int32(mj - mk)
        if mk < 0:
            mk += MBIG
        mj = a[at]
    for _ in range(4):
        for i in range(1, 56):
            a[i] = _int32(a[i] - a[1 + (i + 30) % 55])
            if a[i] < 0:
                a[i] += MBIG
    return np.array([*a, 0, 21], np.int64)


@numba.njit(cache=True)
def _draw(state: Any, out: Any) -> None:
    at, behind = state[56], state[57]
    for i in range(out.shape[0]):
        at = 1 if at == 55 else at + 1
        behind = 1 if behind == 55 else behind + 1
        value = state[at] - state[behind]
        if value == MBIG:
            value -= 1
        if value < 0:
            value += MBIG
        state[at] = value
        out[i] = value
    state[56], state[57] = at, behind


class Random:
    """`new System.Random(seed)`, drawing in bulk."""

    def __init__(self, seed: int) -> None:
        self._state = seeded(seed)

    def draws(self, count: int) -> Int64s:
        """What `count` calls of `Next()` give."""
        out = np.empty(count, np.int64)
        _draw(self._state, out)
        return out


def scaled(draws: Int64s, low: int, high: int) -> Int64s:
    """What `Next(low, high)` makes of these draws."""
    return (draws * (1.0 / MBIG) * (high - low)).astype(np.int64) + low
