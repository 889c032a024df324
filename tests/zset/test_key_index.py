"""`IndexedZSet` against nested loops over dicts: grouping, joining, and that no read ever shows an older value."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import SchemaError, WeightOverflowError
from dbspark.zset import IndexedZSet, ZSet, key_index
from tests.zset.model import INTS, KINDS, MAX, contents, model, plain, plus, samples, times

pytestmark = pytest.mark.usefixtures("each_backend")

LEFT = "a INT, b STRING, l BIGINT"
RIGHT = "b STRING, a INT, r BIGINT"

keys = st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from(["x", "y"]))
weights = st.integers(-3, 3).filter(bool)
left_rows = st.dictionaries(st.builds(lambda k, v: (*k, v), keys, st.integers(0, 3)), weights, max_size=25)
right_rows = st.dictionaries(st.builds(lambda k, v: (k[1], k[0], v), keys, st.integers(0, 3)), weights, max_size=25)
MASKS = st.sampled_from([(1 << 64) - 1, 0x3, 0])
"""All bits of hashes, four different ones, one."""

few = settings(max_examples=max(10, settings.default.max_examples // 2))


def built(rows, schema, pieces=1):
    """A Z-set in several deltas, so that its index has several batches."""
    z = ZSet.empty(schema)
    items = list(rows.items())
    for i in range(pieces):
        part = items[i::pieces]
        z = z.add_many([r for r, _ in part], [w for _, w in part])
    return z


def nested_loop(left, right):
    """The join of LEFT and RIGHT on (a, b), by the definition."""
    total = Counter()
    for (a, b, v), x in left.items():
        for (b2, a2, r), y in right.items():
            if (a, b) == (a2, b2):
                total[a, b, v, r] += x * y
    return {row: weight for row, weight in total.items() if weight}


# ---------------------------------------------------------------------- there and back


@given(st.sampled_from(KINDS).flatmap(samples), st.data())
def test_indexing_by_any_columns_and_back_gives_the_same_z_set(sample, data):
    names = sample.z.schema.names
    key = data.draw(st.permutations(names).flatmap(lambda p: st.integers(1, len(p)).map(lambda n: p[:n])))
    index = sample.z.group_by(*key)
    assert index.key == tuple(key)
    assert index.schema is sample.z.schema
    assert index.count == len(sample.rows)
    assert index.to_zset() == sample.z
    assert contents(index.to_zset()) == sample.rows


@given(left_rows, st.integers(1, 4), MASKS)
@few
def test_groups_are_the_rows_of_a_key(rows, pieces, mask):
    with weakened_hash(mask):
        index = built(rows, LEFT, pieces).group_by("b", "a")
        expected = {}
        for (a, b, v), w in rows.items():
            expected.setdefault((b, a), {})[a, b, v] = w
        assert sorted(index.keys(), key=repr) == sorted(expected, key=repr)
        for key, group in expected.items():
            assert contents(index.group(*key)) == group
        assert index.group("z", 9).is_empty()


def test_a_group_that_cancels_is_empty_and_its_key_is_gone():
    index = built({(1, "x", 1): 1, (1, "x", 2): 1, (2, "y", 3): 1}, LEFT).group_by("a")
    less = index - built({(1, "x", 1): 1, (1, "x", 2): 1}, LEFT).group_by("a")
    assert less.group(1).is_empty()
    assert less.keys() == [(2,)]
    assert contents(index.group(1)) == {(1, "x", 1): 1, (1, "x", 2): 1}


def test_a_key_whose_weights_add_up_to_zero_is_still_a_key():
    index = built({(1, "x", 1): 1, (1, "x", 2): -1}, LEFT).group_by("a")
    assert index.keys() == [(1,)]
    assert contents(index.group(1)) == {(1, "x", 1): 1, (1, "x", 2): -1}


def test_an_empty_index_has_no_keys_and_empty_groups():
    index = ZSet.empty(LEFT).group_by("a")
    assert index.keys() == []
    assert index.group(1).is_empty()
    assert index.count == 0
    assert index.to_zset().is_empty()
    assert index.join(index).count == 0


def test_keys_that_are_nan_null_or_nested_find_their_groups():
    z = ZSet.from_rows(
        [(float("nan"), None, 1), (-0.0, [1, None], 2), (0.0, [1, None], 3), (None, [], 4)],
        "x DOUBLE, l ARRAY<INT>, v INT",
    )
    index = z.group_by("x", "l")
    assert contents(index.group(float("nan"), None)) == {("NaN", None, 1): 1}
    assert contents(index.group(0.0, (1, None))) == {(0.0, (1, None), 2): 1, (0.0, (1, None), 3): 1}
    assert contents(index.group(None, [])) == {(None, (), 4): 1}
    assert len(index.keys()) == 3


def test_a_group_is_asked_for_by_a_whole_key_of_the_right_types():
    index = built({(1, "x", 1): 1}, LEFT).group_by("a", "b")
    with pytest.raises(SchemaError, match=r"a.*b"):
        index.group(1)
    with pytest.raises(SchemaError, match="'a'"):
        index.group("1", "x")


def test_an_index_needs_columns_that_exist():
    z = ZSet.empty(LEFT)
    with pytest.raises(SchemaError, match=r"'c'.*a, b, l"):
        z.group_by("c")
    with pytest.raises(SchemaError, match="at least one column"):
        z.group_by()


# ---------------------------------------------------------------------- algebra


@given(left_rows, left_rows, st.integers(1, 3))
@few
def test_indexed_z_sets_add_and_subtract_like_z_sets(first, second, pieces):
    a, b = built(first, LEFT, pieces).group_by("a"), built(second, LEFT).group_by("a")
    assert contents((a + b).to_zset()) == plus(first, second)
    assert contents((a - b).to_zset()) == plus(first, times(second, -1))
    assert contents((-a).to_zset()) == times(first, -1)
    assert contents((a + b.to_zset()).to_zset()) == plus(first, second)
    assert (a - a).count == 0
    assert (a == b) == (first == second)
    assert a + b == b + a
    assert (a + b).count == len(plus(first, second))


def test_indexes_by_different_keys_are_not_equal():
    z = built({(1, "x", 1): 1}, LEFT)
    assert z.group_by("a") != z.group_by("b")
    assert z.group_by("a") == z.group_by("a")
    assert z.group_by("a") != 1


# ---------------------------------------------------------------------- join


@given(left_rows, right_rows, st.integers(1, 3), MASKS)
@few
def test_a_join_on_several_columns_is_the_nested_loop(left, right, pieces, mask):
    """Key columns stand at different places on the two sides; NULL keys are equal here."""
    with weakened_hash(mask):
        joined = built(left, LEFT, pieces).group_by("a", "b").join(built(right, RIGHT, pieces).group_by("a", "b"))
        assert joined.schema.names == ("a", "b", "l", "r")
        assert joined.key == ("a", "b")
        assert contents(joined.to_zset()) == nested_loop(left, right)


@given(left_rows, right_rows, st.integers(1, 7))
@few
def test_a_join_is_the_same_however_few_pairs_it_makes_at_a_time(left, right, at_a_time):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "JOIN_ROWS", at_a_time)
        a, b = built(left, LEFT, 2).group_by("a", "b"), built(right, RIGHT, 2).group_by("a", "b")
        batches = list(a.join_batches(b))
        assert all(0 < batch.rows <= at_a_time for batch in batches)
        assert contents(a.join(b).to_zset()) == nested_loop(left, right)


def test_a_hot_key_is_never_multiplied_out_at_once(monkeypatch):
    monkeypatch.setattr(key_index, "JOIN_ROWS", 100)
    left = {(1, "x", i): 1 + i % 2 for i in range(60)} | {(2, "x", 0): 1}
    right = {("x", 1, i): 1 for i in range(45)} | {("x", 3, 0): 1}
    a, b = built(left, LEFT).group_by("a"), built(right, RIGHT).group_by("a")
    sizes = [batch.rows for batch in a.join_batches(b)]
    assert max(sizes) <= 100
    assert sum(sizes) == 60 * 45
    assert len(sizes) >= 27
    joined = a.join(b, suffix="_other")
    assert contents(joined.to_zset()) == {
        (1, "x", i, "x", j): 1 + i % 2 for i in range(60) for j in range(45)
    }  # fmt: skip


@given(left_rows, left_rows, right_rows)
@few
def test_join_distributes_over_addition(first, second, right):
    a, b = built(first, LEFT).group_by("a", "b"), built(second, LEFT).group_by("a", "b")
    r = built(right, RIGHT).group_by("a", "b")
    assert (a + b).join(r) == a.join(r) + b.join(r)


def test_a_join_of_larger_sides_crosses_chunks_and_batches():
    rng = np.random.default_rng(5)
    n, keys = 70_000, 30_000
    left_key, right_key = rng.integers(0, keys, n), rng.integers(0, 2 * keys, n // 2)
    left = ZSet.from_arrow(pa.table({"k": left_key, "l": np.arange(n)})).group_by("k")
    right = ZSet.from_arrow(pa.table({"k": right_key, "r": np.arange(n // 2)})).group_by("k")
    joined = left.join(right)
    per_key = np.bincount(left_key, minlength=2 * keys) * np.bincount(right_key, minlength=2 * keys)
    assert joined.count == per_key.sum()
    table = joined.to_zset().to_arrow()
    key, left_row, right_row = (np.asarray(table[name]) for name in ("k", "l", "r"))
    assert (left_key[left_row] == key).all()
    assert (right_key[right_row] == key).all()
    assert len(np.unique(left_row * n + right_row)) == per_key.sum()


def test_columns_of_one_name_get_a_suffix():
    left = ZSet.from_rows([(1, 10, 5)], "k INT, v INT, w INT").group_by("k")
    right = ZSet.from_rows([(1, 20, 7)], "id INT, v INT, k INT").group_by("id")
    joined = left.join(right)
    assert joined.schema.names == ("k", "v", "w", "v_right", "k_right")
    assert contents(joined.to_zset()) == {(1, 10, 5, 20, 7): 1}
    assert left.join(right, suffix="2").schema.names == ("k", "v", "w", "v2", "k2")


def test_a_suffix_that_makes_a_name_twice_is_refused_naming_it():
    left = ZSet.from_rows([(1, 10, 5)], "k INT, v INT, v_right INT").group_by("k")
    right = ZSet.from_rows([(1, 20)], "k INT, v INT").group_by("k")
    with pytest.raises(SchemaError, match="v_right"):
        left.join(right)
    assert left.join(right, suffix="_2").schema.names == ("k", "v", "v_right", "v_2")


def test_keys_of_different_types_or_numbers_are_refused_naming_the_columns():
    left = ZSet.empty("id INT, v INT").group_by("id")
    with pytest.raises(SchemaError, match=r"id.*int32.*other.*int64"):
        left.join(ZSet.empty("other BIGINT, v INT").group_by("other"))
    with pytest.raises(SchemaError, match=r"id.*other"):
        left.join(ZSet.empty("other INT, v INT").group_by("other", "v"))


def test_a_join_whose_weights_overflow_is_refused():
    left = ZSet.singleton((1, 1), MAX // 2, "k INT, l INT").group_by("k")
    right = ZSet.from_rows([(1, 1), (1, 2)], "k INT, r INT", [3, 1]).group_by("k")
    with pytest.raises(WeightOverflowError):
        left.join(right)
    assert left.join(right - ZSet.singleton((1, 1), 3, "k INT, r INT").group_by("k")).count == 1


def test_a_join_on_all_columns_is_an_intersection():
    a = ZSet.from_rows([(1, 2), (3, 4)], "x INT, y INT", [2, 5]).group_by("x", "y")
    b = ZSet.from_rows([(1, 2), (5, 6)], "x INT, y INT", [3, 7]).group_by("x", "y")
    assert contents(a.join(b).to_zset()) == {(1, 2): 6}


@given(samples(INTS), samples(INTS))
@few
def test_a_join_of_z_sets_in_any_form_is_the_nested_loop(a, b):
    doubled = a.z.map_keys(lambda row: (row[0] % 5, row[0]), "k INT, l BIGINT")
    other = b.z.map_keys(lambda row: (row[0] % 5, row[0]), "k INT, r BIGINT")
    joined = doubled.group_by("k").join(other.group_by("k"))
    expected = [(x % 5, x, y) for (x,) in a.rows for (y,) in b.rows if x % 5 == y % 5]
    assert contents(joined.to_zset()) == model(expected, [a.rows[x,] * b.rows[y,] for _, x, y in expected])


# ---------------------------------------------------------------------- caches

MUTATIONS = {
    "add": lambda z: z.add((1, "x", 9)),
    "retract": lambda z: z.add((1, "x", 1), -1),
    "add_many": lambda z: z.add_many([(1, "x", 9), (7, "z", 1)]),
    "plus": lambda z: z + ZSet.from_rows([(1, "x", 9)], LEFT),
    "minus": lambda z: z - ZSet.from_rows([(1, "x", 1)], LEFT),
    "union_many": lambda z: z.union_many([ZSet.from_rows([(1, "x", 9)], LEFT)] * 2),
    "negate": lambda z: -z,
    "scale": lambda z: z * 3,
    "filter": lambda z: z.filter(lambda row: row[2] != 1),
    "map_keys": lambda z: z.map_keys(lambda row: (row[0], row[1], row[2] + 1)),
}


@pytest.mark.parametrize("size", [3, 3000])
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_whatever_has_been_read_before_a_change_is_not_read_after_it(mutation, size):
    rows = {(1, "x", 1): 2, (2, "y", 2): 1} | {(5, "w", i): 1 for i in range(size)}
    z = built(rows, LEFT)

    def read(z):
        with z.arranged_view() as view:
            arranged = dict(view)
        index = z.group_by("a")
        one = index.group(1)
        return arranged, contents(z), contents(index.to_zset()), contents(one), z.count, index.count

    before = read(z)
    changed = MUTATIONS[mutation](z)
    expected = contents(MUTATIONS[mutation](built(rows, LEFT)))
    arranged, iterated, from_index, of_one, count, indexed_count = read(changed)
    assert arranged == iterated == from_index == expected
    assert expected != rows
    assert of_one == {row: w for row, w in expected.items() if row[0] == 1}
    assert count == indexed_count == len(expected)
    assert read(z) == before
    assert before[0] == rows


def test_an_index_that_grows_never_shows_its_older_self():
    index = IndexedZSet.from_zset(built({(1, "x", 0): 1}, LEFT), ["a"])
    expected = {(1, "x", 0): 1}
    versions = []
    for i in range(1, 40):
        versions.append((index, dict(expected)))
        assert contents(index.group(1)) == {r: w for r, w in expected.items() if r[0] == 1}
        assert index.count == len(expected)
        delta = {(i % 3, "x", i): 1, (1, "x", i - 1): -1}
        index = index + built(delta, LEFT)
        expected = plus(expected, delta)
        assert contents(index.to_zset()) == expected
    for version, rows in versions[::5]:
        assert contents(version.to_zset()) == rows
        assert [plain(k) for k in sorted(version.keys())] == sorted({(r[0],) for r in rows})
