"""The log of an adaptive Z-set: reads include its deltas, and applying it changes the form, not the value."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar.memory import allocated_bytes
from dbspark.errors import WeightOverflowError
from dbspark.trace.merge_state import MergeState
from dbspark.zset import ZSet, ZSetConfig
from dbspark.zset.adaptive import MAX_LOG_DELTAS, MAX_LOG_ROWS, MIN_SPINE_ROWS
from tests.zset.model import MAX, contents

SCHEMA = "k BIGINT, s STRING"
CONFIG = ZSetConfig(backend="Adaptive", flush_time_ms=1e12)
SMALL = ZSetConfig(backend="Adaptive", flush_time_ms=1e12, smallset_n=8, flush_size=200)


def row(k):
    return (k, f"s{k % 3}")


def delta(ks, weights=None, config=CONFIG):
    ks = list(ks)
    weights = pa.array([1] * len(ks) if weights is None else weights, pa.int64())
    strings = pa.array([row(k)[1] for k in ks], pa.string())
    return ZSet.from_arrow({"k": pa.array(ks, pa.int64()), "s": strings, "w": weights}, "w", SCHEMA, config)


def log_of(z):
    return z._payload._state[2]


def loaded(count, config=CONFIG):
    z = delta(range(count), config=config)
    assert z.form == "trace"
    return z


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["few", "many", "row", "rows", "union", "count", "weight", "scan", "equal", "back", "form"]),
        st.integers(0, 60), st.sampled_from([1, 1, -1, 2]),
    ),
    max_size=40,
)  # fmt: skip


@pytest.mark.parametrize("config", [CONFIG, SMALL], ids=["usual", "small"])
@given(steps=STEPS, base=st.sampled_from([0, 5, 700]))
def test_any_history_reads_like_a_dict_whatever_is_in_the_log(config, steps, base):
    z = delta(range(base), config=config)
    there = Counter({row(k): 1 for k in range(base)})
    kept = []

    def changed(z, ks, weight):
        for k in ks:
            there[row(k)] += weight
        return z + delta(ks, [weight] * len(ks), config)

    for what, k, weight in steps:
        if what == "few":
            z = changed(z, range(k, k + 5), weight)
        elif what == "many":
            z = changed(z, range(k, k + MIN_SPINE_ROWS + 20), weight)
        elif what == "row":
            there[row(k)] += weight
            z = z.add(row(k), weight)
        elif what == "rows":
            there.update({row(k): weight, row(k + 1): weight})
            z = z.add_many([row(k), row(k + 1)], [weight, weight])
        elif what == "union":
            there.update({row(k): weight, row(k + 1): 2 * weight})
            z = z.union_many([delta([k, k + 1], [weight, weight], config), delta([k + 1], [weight], config)])
        elif what == "count":
            assert z.count == sum(w != 0 for w in there.values())
        elif what == "weight":
            assert z.weight(row(k)) == there[row(k)]
        elif what == "scan":
            assert sum(len(weights) for _, weights in z.scan()) == sum(w != 0 for w in there.values())
        elif what == "equal":
            other = z + delta([k], [1], config)
            assert other != z
            assert other + delta([k], [-1], config) == z
        elif what == "back" and kept:
            z, there = kept[k % len(kept)]
            there = Counter(there)
        elif what == "form":
            assert z.form in ("small", "memtable", "trace")
        assert z.total_weight == sum(there.values())
        kept.append((z, Counter(there)))
    for value, expected in kept:
        assert value.count == sum(w != 0 for w in expected.values())
        assert contents(value) == {r: w for r, w in expected.items() if w}


def test_small_deltas_stay_in_the_log_until_it_is_full():
    z = loaded(1000)
    for i in range(MAX_LOG_DELTAS):
        z = z + delta([5000 + i])
        assert len(log_of(z)) == i + 1
    z = z + delta([9000])
    assert len(log_of(z)) == 1, "the others have been taken in together"
    assert z.count == 1000 + MAX_LOG_DELTAS + 1


def test_a_log_holds_a_bounded_number_of_rows():
    z = loaded(10_000)
    for i in range(100):
        z = z + delta(range(20_000 + 1000 * i, 21_000 + 1000 * i))
        assert sum(batch.rows for batch in log_of(z)) <= MAX_LOG_ROWS
    z = z + delta(range(200_000, 200_000 + 2 * MAX_LOG_ROWS))
    assert log_of(z) == ()
    assert z.count == 110_000 + 2 * MAX_LOG_ROWS


def test_counting_after_every_change_leaves_the_form_alone():
    z = loaded(2000)
    spine = z._payload._state[0].spine
    for i in range(20):
        z = z + delta([i, 9000 + i, 9001 + i], [-1, 1, -1])  # the last is what the next one cancels
        assert z.count == 2000 - (i + 1) + 2
        assert z._payload._state[0].spine is spine, "nothing was inserted"
        assert len(log_of(z)) == i + 1


def test_counts_are_right_when_the_log_is_applied_in_between():
    rng = random.Random(5)
    z, there = loaded(3000), set(range(3000))
    for i in range(200):
        gone = rng.sample(sorted(there), 60)
        new = range(10_000 + 100 * i, 10_040 + 100 * i)
        z = z + delta([*gone, *new], [-1] * 60 + [1] * 40)
        there.difference_update(gone)
        there.update(new)
        if i % 3:
            assert z.count == len(there)
        if len(there) < 500:
            break
    assert contents(z) == {row(k): 1 for k in there}


def test_relatives_are_compared_by_what_they_do_not_share(monkeypatch):
    base = loaded(50_000)
    first, second = delta(range(60_000, 60_100)), delta(range(100), [-1] * 100)
    left, right = base + first + second, base + second + first
    monkeypatch.setattr("dbspark.columnar.batch.Batch.same", lambda *_: pytest.fail("nothing has to be read"))
    assert left == right
    assert left != right + delta([70_000])
    assert base != base + first
    monkeypatch.undo()
    assert base != right
    assert base + delta([1, 2]) != base + delta([1, 3])
    assert base + delta([1, 2]) + delta([3]) == base + delta([1, 2, 3])
    assert left + delta([8], [-1]) + delta([8]) == right


@pytest.mark.parametrize("large", [1 << 41, 1 << 61, MAX - 5])
def test_weights_that_might_overflow_do_not_go_to_the_log(large):
    z = loaded(1000) + delta([3])
    z = z.add(row(3), 1)  # in the dict
    z = z + delta([3, 7], [large, 1])
    total = 3 + large
    assert z.weight(row(3)) == total
    step = 1 << 60
    refused = 0
    for _ in range(12):
        if total + step > MAX:
            with pytest.raises(WeightOverflowError):
                z.add(row(3), step)
            with pytest.raises(WeightOverflowError):
                z + delta([3], [step])
            with pytest.raises(WeightOverflowError):
                z.union_many([delta([3], [step])])
            refused += 1
        else:
            z = z.add(row(3), step)
            total += step
        assert z.weight(row(3)) == total
    assert refused


def test_readers_and_writers_of_one_value_do_not_disturb_each_other():
    z = loaded(5000)
    for i in range(40):
        z = z + delta([i], [-1])
    z = z.add(row(6000))

    def work(n):
        if n % 4 == 0:
            return z.count
        if n % 4 == 1:
            return (z + delta([7000 + n])).count - 1
        if n % 4 == 2:
            return z.add(row(8000 + n)).count - 1
        return sum(len(weights) for _, weights in z.scan())

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(80))) == {5000 - 40 + 1}


def test_merges_run_before_the_next_change_and_free_their_inputs(monkeypatch):
    """Were it a part of the change, the value that is changed would keep all that has been merged until the end."""
    seen = []
    step = MergeState.step

    def watched(self, limit):
        stepped = step(self, limit)
        seen.append(allocated_bytes() - before)
        return stepped

    monkeypatch.setattr(MergeState, "step", watched)
    before = allocated_bytes()
    z = loaded(400_000)
    held = allocated_bytes() - before
    for i in range(12):
        new, gone = range(1_000_000 + 20_000 * i, 1_020_000 + 20_000 * i), range(20_000 * i, 20_000 * (i + 1))
        z = z + delta([*new, *gone], [1] * 20_000 + [-1] * 20_000)
    assert len(seen) > 10, "there was something to merge"
    assert max(seen) < 2 * held
    assert z.count == 400_000
