"""Sums of products of floats and central moments, against fractions."""

from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.kernels.aggregate import moments as km

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(st.tuples(FLOATS, FLOATS, st.sampled_from([1, 1, -1, 3, 2**40])), max_size=6)
EMPTY = pa.array([b""], pa.binary())


def buffers_of(stored: pa.Array) -> tuple[int, int]:
    _, offsets, data = stored.buffers()
    return offsets.address, 0 if data is None else data.address


def summed(rows: Any, px: int, py: int, old: pa.Array) -> pa.Array:
    """One group's sum of x^px y^py, added to an old one."""
    x, y = (np.array([r[i] for r in rows], np.float64) for i in range(2))
    weights, used = np.array([r[2] for r in rows], np.int64), np.ones(len(rows), np.uint8)
    offsets, out = np.empty(2, np.int32), np.empty(400, np.int32)
    starts = np.array([0, len(rows)])
    size = km.sum_products(
        x, y, px, py, used, weights, np.arange(len(rows)), starts, *buffers_of(old), np.zeros(1, np.int64), offsets, out
    )
    assert offsets.tolist() == [0, 4 * size]
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(out[:size].copy())])


def fraction_of(stored: pa.Array, degree: int) -> Fraction:
    data = stored[0].as_py()
    if not data:
        return Fraction(0)
    first = int.from_bytes(data[:4], "little")
    return Fraction(int.from_bytes(data[4:], "little", signed=True) << 32 * first, 2 ** (1074 * degree))


@pytest.mark.parametrize(("px", "py"), [(1, 0), (2, 0), (1, 1), (3, 0), (4, 0)])
@given(ticks=st.lists(ROWS, min_size=1, max_size=3))
def test_sums_of_products_are_exact(px: int, py: int, ticks: Any) -> None:
    stored, total = EMPTY, Fraction(0)
    for rows in ticks:
        stored = summed(rows, px, py, stored)
        total += sum((Fraction(x) ** px * Fraction(y) ** py * w for x, y, w in rows), Fraction(0))
        assert fraction_of(stored, px + py) == total
    for rows in ticks:
        stored = summed([(x, y, -w) for x, y, w in rows], px, py, stored)
    assert stored[0].as_py() == b"", "nothing is left of what has been retracted"


@given(ROWS)
def test_a_variance_is_rounded_once(rows: Any) -> None:
    """count * Sxx - Sx * Sx, from sums of products, however nearly equal the terms are."""
    count = sum(w for _, _, w in rows)
    sums = [summed(rows, degree, 0, EMPTY) for degree in (1, 2)]
    terms = np.full((2, 2 + km.FACTORS), -1, np.int64)
    terms[0, :3] = 1, 1, 1  # count * Sxx
    terms[1, :4] = -1, 0, 0, 0  # - Sx * Sx
    offsets, data = (np.array(a, np.int64) for a in zip(*map(buffers_of, sums), strict=True))
    mantissas, exponents = np.empty(1), np.empty(1, np.int64)
    km.combine(offsets, data, np.array([count], np.int64), terms, 2, mantissas, exponents)
    exact = count * fraction_of(sums[1], 2) - fraction_of(sums[0], 1) ** 2
    found = Fraction(mantissas[0]) * Fraction(2) ** int(exponents[0])
    if exact == 0:
        assert found == 0
    else:
        assert 2**52 <= abs(mantissas[0]) <= 2**53
        assert abs(found - exact) <= Fraction(2) ** int(exponents[0]) / 2
