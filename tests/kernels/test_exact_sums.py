"""Exact sums of floats against fractions: no digit is lost, and results are rounded once, to even."""

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema
from dbspark.columnar.chunk import import_arrays
from dbspark.kernels.aggregate import exact_sums as exact
from dbspark.kernels.memory import layout as nd

NO_MASK = np.empty(0, np.uint8)
DOUBLE, FLOAT = Schema.parse("v DOUBLE"), Schema.parse("v FLOAT")
TOP = math.ldexp(1 - 2.0**-53, 1024)
"""The largest float."""
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, 5e-324, -5e-324, 2.0**-1022, TOP, -TOP, 1e300, -1e300, 2.0**53, 2.0**53 - 1, 0.5]
FLOATS = st.sampled_from(SPECIAL) | st.floats(allow_nan=False, allow_infinity=False)
ANY = FLOATS | st.sampled_from([math.nan, math.inf, -math.inf])
MAX = 2**63 - 1
WEIGHTS = st.sampled_from([1, 1, 1, -1, -1, 2, -3, 2**31, 2**32, 2**32 - 1, -(2**33) - 5, MAX, -MAX, 0])


class Sums:
    """Sums by group, in their stored form."""

    def __init__(self, groups, schema=DOUBLE):
        self.schema = schema
        self.groups = groups
        self.stored = pa.array([b""] * groups, pa.binary())
        self.counts = np.zeros(groups, np.int64)
        self.special = np.zeros((groups, 3), np.int64)

    def add(self, values, weights, ids, mask=None, before=0, room=4096, rows=None):
        """Rows with weights and groups; `before` rows of something else stand in front of them in their array."""
        whole = pa.array([7.0] * before + list(values), self.schema.types[0]).slice(before)
        chunk = import_arrays(self.schema, [whole], len(values), np.array(weights, np.int64))
        ids = np.array(ids, np.int64)
        order = np.argsort(ids, kind="stable")
        starts = np.searchsorted(ids[order], np.arange(self.groups + 1))
        buffers = self.stored.buffers()
        old_row = np.arange(self.groups) if rows is None else np.array(rows, np.int64)
        while True:
            out, offsets = np.empty(room, np.int32), np.empty(self.groups + 1, np.int32)
            counts, special = self.counts.copy(), self.special.copy()
            used = exact.sum_floats(
                chunk.table, nd.LANES, NO_MASK if mask is None else np.array(mask, np.uint8), order, starts,
                buffers[1].address, 0 if buffers[2] is None else buffers[2].address, old_row,
                counts, special, offsets, out,
            )  # fmt: skip
            if used >= 0:
                break
            room *= 2
        self.counts, self.special = counts, special
        sums = pa.Array.from_buffers(
            pa.binary(), self.groups, [None, pa.py_buffer(offsets), pa.py_buffer(out[:used].copy())]
        )
        self.stored = sums

    def exact(self):
        """The stored sums as fractions."""
        return [stored_value(one) for one in self.stored.to_pylist()]

    def rounded(self):
        out = np.empty(self.groups)
        buffers = self.stored.buffers()
        data = 0 if buffers[2] is None else buffers[2].address
        exact.round_sums(buffers[1].address, data, self.groups, out)
        return out.tolist()


def stored_value(data):
    """The number that a stored sum stands for, read by the description of the format."""
    if not data:
        return Fraction(0)
    limbs = np.frombuffer(data, np.int32).tolist()
    first, limbs = limbs[0], limbs[1:]
    number = sum((limb & 0xFFFFFFFF) << (32 * k) for k, limb in enumerate(limbs[:-1]))
    number += limbs[-1] << (32 * (len(limbs) - 1))
    return Fraction(number << (32 * first), 2**1074)


def stored_form(number):
    """The one form in which a sum should be stored: no zeros at either end."""
    scaled = int(number * 2**1074)
    if not scaled:
        return b""
    first = 0
    while scaled & 0xFFFFFFFF == 0:
        scaled >>= 32
        first += 1
    size = 1
    while not -(2 ** (32 * size - 1)) <= scaled < 2 ** (32 * size - 1):
        size += 1
    return np.int32(first).tobytes() + scaled.to_bytes(4 * size, "little", signed=True)


def nearest(number):
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


ROWS = st.lists(st.tuples(FLOATS, WEIGHTS, st.integers(0, 2)), max_size=12)


@given(ticks=st.lists(ROWS, min_size=1, max_size=4), before=st.sampled_from([0, 1, 3, 8]))
def test_sums_are_those_of_fractions_stored_in_one_form_and_rounded_once(ticks, before):
    sums = Sums(3)
    totals = [Fraction(0)] * 3
    for rows in ticks:
        sums.add([x for x, _, _ in rows], [w for _, w, _ in rows], [g for _, _, g in rows], before=before)
        for x, w, g in rows:
            totals[g] += Fraction(x) * w
        assert sums.exact() == totals
        assert sums.stored.to_pylist() == [stored_form(t) for t in totals]
        assert sums.rounded() == [nearest(t) for t in totals]


@given(rows=st.lists(st.tuples(st.floats(width=32, allow_nan=False, allow_infinity=False), WEIGHTS), max_size=10))
def test_float32_values_are_summed_exactly(rows):
    sums = Sums(1, FLOAT)
    sums.add([x for x, _ in rows], [w for _, w in rows], [0] * len(rows))
    assert sums.exact() == [sum((Fraction(x) * w for x, w in rows), Fraction(0))]


@given(rows=ROWS, data=st.data())
def test_retracting_every_row_leaves_an_empty_sum(rows, data):
    values, weights, ids = ([row[c] for row in rows] for c in range(3))
    sums = Sums(3)
    sums.add(values, weights, ids)
    order = data.draw(st.permutations(range(len(rows))))
    cut = data.draw(st.integers(0, len(rows)))
    for part in (order[:cut], order[cut:]):
        sums.add([values[i] for i in part], [-weights[i] for i in part], [ids[i] for i in part])
    assert sums.stored.to_pylist() == [b""] * 3
    assert not sums.counts.any()


@given(
    rows=st.lists(
        st.tuples(st.none() | ANY, st.sampled_from([1, 2, -1, 5]), st.integers(0, 1), st.booleans()), max_size=12
    )
)
def test_nulls_and_masked_rows_do_not_count_and_specials_are_counted_apart(rows):
    sums = Sums(2)
    values, weights, ids, mask = ([row[c] for row in rows] for c in range(4))
    sums.add(values, weights, ids, mask)
    for group in range(2):
        mine = [(x, w) for x, w, g, m in rows if g == group and m and x is not None]
        if rows:
            assert sums.counts[group] == sum(w for _, w in mine)
            kinds = (math.isnan, lambda x: x == math.inf, lambda x: x == -math.inf)
            assert sums.special[group].tolist() == [sum(w for x, w in mine if kind(x)) for kind in kinds]
        finite = sum((Fraction(x) * w for x, w in mine if math.isfinite(x)), Fraction(0))
        assert sums.exact()[group] == finite


def test_without_a_mask_every_row_counts():
    sums = Sums(1)
    sums.add([1.0, None, 2.5], [1, 1, 2], [0, 0, 0])
    assert sums.exact() == [6]
    assert sums.counts.tolist() == [3]


def test_a_group_without_an_old_sum_begins_at_zero():
    sums = Sums(2)
    sums.add([1.0, 2.0], [1, 1], [0, 1])
    sums.add([10.0, 20.0], [1, 1], [0, 1], rows=[1, -1])
    assert sums.exact() == [12, 20], "the first continues what was the second"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1.0, 2.0**-53], 1.0),  # half way: to even
        ([1.0, 2.0**-53, 5e-324], 1.0 + 2.0**-52),  # a little more than half way
        ([1.0, 2.0**-53, -5e-324], 1.0),
        ([1.0 + 2.0**-52, 2.0**-53], 1.0 + 2.0**-51),  # half way, to even above
        ([2.0**53, 1.0], 2.0**53),
        ([2.0**53, 1.0, 5e-324], 2.0**53 + 2),
        ([2.0**53 - 1, 0.5], 2.0**53),  # rounding carries into another power of two
        ([5e-324, 5e-324], 1e-323),
        ([2.0**-1022, -5e-324], 2.0**-1022 - 5e-324),  # below the least normal number
        ([TOP, 2.0**969], TOP),
        ([TOP, 2.0**970], math.inf),  # half way to the number after the largest
        ([TOP, 2.0**970, -5e-324], TOP),
        ([-TOP, -TOP], -math.inf),
        ([TOP, TOP, -TOP], TOP),
        ([2.0**1000, 2.0**-1000, -(2.0**1000)], 2.0**-1000),
        ([0.1] * 10, 1.0),
        ([-0.0], 0.0),
    ],
)
def test_rounding_at_the_edges(numbers, expected):
    for sign in (1, -1):
        sums = Sums(1)
        sums.add([sign * x for x in numbers], [1] * len(numbers), [0] * len(numbers))
        assert sums.rounded() == [sign * expected]
        assert sums.rounded() == [nearest(sign * sum(map(Fraction, numbers)))]


LIMB = st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**31 - 1]) | st.integers(0, 2**32 - 1)


@given(limbs=st.lists(LIMB, min_size=1, max_size=6), first=st.integers(0, 60), negative=st.booleans())
def test_any_stored_sum_is_rounded_to_the_nearest_float(limbs, first, negative):
    number = Fraction(sum(limb << (32 * k) for k, limb in enumerate(limbs)) << (32 * first), 2**1074)
    number = -number if negative else number
    sums = Sums(1)
    sums.stored = pa.array([stored_form(number)], pa.binary())
    assert sums.exact() == [number]
    assert sums.rounded() == [nearest(number)]


def test_the_largest_weights_of_the_largest_floats_fit():
    sums = Sums(1)
    rows = 1000
    sums.add([TOP] * rows, [MAX] * rows, [0] * rows)
    assert sums.exact() == [Fraction(TOP) * MAX * rows]
    sums.add([-TOP] * 2 * rows, [MAX] * 2 * rows, [0] * 2 * rows)
    assert sums.exact() == [-Fraction(TOP) * MAX * rows]
    assert sums.rounded() == [-math.inf]
    sums.add([TOP] * rows, [MAX] * rows, [0] * rows)
    assert sums.stored.to_pylist() == [b""]


def test_an_output_that_is_too_short_is_reported_and_not_overrun():
    sums = Sums(40)
    ids = [g for g in range(40) for _ in range(2)]
    sums.add([2.0**1000, 2.0**-1000] * 40, [1] * 80, ids, room=1)
    assert sums.exact() == [Fraction(2) ** 1000 + Fraction(2) ** -1000] * 40


def test_ordinary_numbers_take_a_few_bytes():
    sums = Sums(1)
    sums.add([i * 0.01 for i in range(10_000)], [1] * 10_000, [0] * 10_000)
    assert len(sums.stored[0].as_py()) <= 24
