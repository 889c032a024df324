"""The facts of DBSP.NET's own tests (N-01 … N-08, and of N-30 … N-36 what needs no times), as they are numbered in
reference/seed-systems.md. What a fact says about earlier times belongs to traces.
"""

import pytest

from dbspark.zset import IndexedZSet, ZSet
from tests.zset.model import contents

pytestmark = pytest.mark.usefixtures("each_backend")

INT = "k BIGINT"


def ints(rows):
    return ZSet.from_rows([(k,) for k in rows], INT, list(rows.values()))


def holds(z, rows):
    """Whether a Z-set of one column holds exactly these."""
    return contents(z) == {(k,): w for k, w in rows.items()}


def test_n01_sum_difference_and_multiple():
    assert holds(ints({1: 3, 2: -2}) + ints({1: 2, 3: 4}), {1: 5, 2: -2, 3: 4})
    assert holds(ints({1: 5, 2: 3}) - ints({1: 2, 2: 1}), {1: 3, 2: 2})
    assert holds(ints({1: 3, 2: -2}) * 3, {1: 9, 2: -6})


def test_n02_opposite_weights_leave_nothing():
    z = ZSet.singleton((42,), 5, INT).add((42,), -5)
    assert z.is_empty()
    assert holds(z, {})


def test_n02_count_is_the_number_of_distinct_rows():
    """A deliberate difference: DBSP.NET's Count is the sum of the magnitudes of the weights, so 5 here. Ours is the
    number of distinct rows, as everyone expects of a count, and `total_weight` is the sum of the weights."""
    five = ZSet.singleton((42,), 5, INT)
    assert five.count == 1
    assert five.total_weight == 5
    mixed = ints({1: 5, 2: -3})
    assert mixed.count == 2
    assert mixed.total_weight == 2
    assert sum(abs(w) for _, w in mixed) == 8


def test_n03_filter_and_map_keep_the_weights():
    z = ints({1: 3, 2: -2, 3: 1, 4: 2})
    assert holds(z.filter(lambda row: row[0] % 2 == 0), {2: -2, 4: 2})
    assert holds(z.map_keys(lambda row: (row[0] * 10,)), {10: 3, 20: -2, 30: 1, 40: 2})


def test_n04_join_multiplies_the_weights_of_equal_keys():
    left = ZSet.from_rows([(1, "a"), (2, "b")], "k BIGINT, l STRING", [2, 1]).group_by("k")
    right = ZSet.from_rows([(1, 10), (1, 20), (3, 30)], "k BIGINT, r INT", [3, 1, 2]).group_by("k")
    joined = left.join(right)
    assert contents(joined.to_zset()) == {(1, "a", 10): 6, (1, "a", 20): 2}
    assert joined.group(2).is_empty()
    assert joined.group(3).is_empty()
    assert joined.keys() == [(1,)]


def test_n05_group_by_the_first_letter():
    words = ZSet.from_rows([("apple",), ("banana",), ("apricot",), ("blueberry",)], "word STRING", [5, 3, 2, 4])
    lettered = words.map_keys(lambda row: (row[0][0], row[0]), "letter STRING, word STRING")
    grouped = lettered.group_by("letter")
    assert sorted(grouped.keys()) == [("a",), ("b",)]
    assert contents(grouped.group("a")) == {("a", "apple"): 5, ("a", "apricot"): 2}
    assert contents(grouped.group("b")) == {("b", "banana"): 3, ("b", "blueberry"): 4}


def test_n05_indexing_and_back_gives_the_same_z_set():
    z = ZSet.from_rows([(1, "a"), (2, "b"), (1, "c")], "k BIGINT, v STRING", [2, -1, 3])
    assert IndexedZSet.from_zset(z, ["k"]).to_zset() == z
    assert contents(IndexedZSet.from_zset(z, ["k"]).to_zset()) == {(1, "a"): 2, (2, "b"): -1, (1, "c"): 3}


def integrated(deltas, change):
    """Every delta changed by itself and summed, and the sum changed at once."""
    incremental, whole = ZSet.empty(INT), ZSet.empty(INT)
    for delta in deltas:
        incremental = incremental + change(ints(delta))
        whole = whole + ints(delta)
    assert incremental == change(whole)
    return incremental


def test_n06_doubling_a_stream_of_inserts_and_deletes():
    deltas = [dict.fromkeys(range(1, 6), 1), {3: -1, 6: 1, 7: 1}, {1: -1, 8: 1, 9: 1}, {10: 1, 11: 1}]
    total = integrated(deltas, lambda z: z.map_keys(lambda row: (row[0] * 2,)))
    assert holds(total, dict.fromkeys([4, 8, 10, 12, 14, 16, 18, 20, 22], 1))


def test_n07_what_was_deleted_is_gone_after_a_map():
    deltas = [{1: 1, 2: 1, 3: 1}, {2: -1}, {4: 1, 5: 1}, {1: -1, 3: -1}]
    total = integrated(deltas, lambda z: z.map_keys(lambda row: (row[0] * 10,)))
    assert holds(total, {40: 1, 50: 1})


def test_n08_map_then_filter():
    deltas = [{1: 1, 2: 2, 3: -1}, {4: 1, 1: -1, 5: 1}]
    total = integrated(deltas, lambda z: z.map_keys(lambda row: (row[0] * 3,)).filter(lambda row: row[0] > 5))
    assert holds(total, {6: 2, 9: -1, 12: 1, 15: 1})


def test_n30_the_net_of_three_ticks():
    z = ZSet.empty("s STRING")
    for delta in ({"A": 1, "B": 2, "C": 1}, {"B": 1, "C": -1, "D": 1}, {"A": -1, "D": 1, "E": 1}):
        z = z + ZSet.from_rows([(s,) for s in delta], "s STRING", list(delta.values()))
    assert holds(z, {"B": 3, "D": 2, "E": 1})


def test_n33_the_net_is_the_same_before_and_after_compaction():
    schema = "k INT, s STRING"
    first = ZSet.from_rows([(1, "A"), (1, "A"), (2, "B")], schema, [1, -1, 2])
    z = first + ZSet.from_rows([(2, "B"), (3, "C")], schema, [-1, 1])
    net = {(2, "B"): 1, (3, "C"): 1}
    assert contents(z) == net
    assert contents(z.freeze()) == net
    assert z.freeze() == z


def test_n36_a_key_gives_all_of_its_values_negative_ones_too():
    z = ZSet.from_rows([(1, v) for v in (-5, -1, 0, 3)] + [(0, 7), (2, 8)], "k INT, v INT")
    assert contents(z.group_by("k").group(1)) == {(1, v): 1 for v in (-5, -1, 0, 3)}
