"""The spine against an array of weights: whatever was inserted and however far merging has come, it reads the same.

A machine keeps every spine it has ever made beside what it should hold; any of them may be read, worked on or grown
again at any time. Two configurations: the default limits, and small ones with which merges are always in progress.
"""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import WeightOverflowError
from dbspark.trace import bloom_filter as bloom_filter
from dbspark.trace import merge_policy as merge_policy
from dbspark.trace.config import SpineConfig
from dbspark.trace.lookup import Keys, first_rows_unordered, probe
from dbspark.trace.merge_state import MergeState
from dbspark.trace.spine import Spine
from dbspark.trace.statistics import SpineStats

SCHEMA = Schema.parse("k BIGINT, s STRING")
BY_ROW = SortKey(SCHEMA)
BY_SKEWED_KEY = SortKey(SCHEMA, [1])
"""Half of the rows have one key."""
MAX = (1 << 63) - 1

NAMES = np.array(["hot", None, "b", "", "hot", "hot", "c" * 20], object)
EAGER = SpineConfig(fanout=2, max_inline_merge_rows=8, merge_step_rows=32, merge_rows_per_row=3)
"""Almost every merge is in progress for several inserts; the credit is too little to ever finish them all."""
FILTERED = SpineConfig(
    fanout=4,
    max_inline_merge_rows=8,
    merge_step_rows=64,
    merge_rows_per_row=3,
    min_indexed_rows=16,
    min_filtered_rows=32,
)
"""Sieves and indices for next to nothing."""
FINE = SpineConfig(fanout=4, max_inline_merge_rows=64, merge_step_rows=256)
"""The default limits on a smaller scale."""


def batch(keys, weights=1, sort_key=BY_ROW):
    """A batch of the rows with these numbers."""
    keys = np.asarray(keys, np.int64)
    weights = np.broadcast_to(np.asarray(weights, np.int64), keys.shape)
    table = pa.table({"k": keys, "s": pa.array(NAMES[keys % len(NAMES)], pa.string())})
    return Batch.from_arrow(table, sort_key, np.array(weights))


def dense(some, size):
    """The weights of batches by row number, summed; checks that rows are whole."""
    out = np.zeros(size, np.int64)
    for one in some:
        table = one.to_arrow()
        keys = table["k"].to_numpy()
        assert table["s"].to_pylist() == NAMES[keys % len(NAMES)].tolist()
        np.add.at(out, keys, one.weights())
    return out


def check_batch(one):
    """What every batch promises: increasing, no row twice, no weight zero."""
    keys = one.to_arrow()["k"].to_numpy()
    assert len(np.unique(keys)) == len(keys)
    assert (one.weights() != 0).all()
    assert one.rows == len(keys)


def check_probed(spine, weights):
    """Rows are found by their keys, in every version of a spine; of the rows that are asked for most are nowhere."""
    size = len(weights)
    asked = np.concatenate([np.arange(0, size, max(1, size // 97)), np.arange(size, 3 * size, max(1, size // 97))])
    names = NAMES[asked % len(NAMES)] if spine.sort_key is BY_ROW else np.array(["hot", "c" * 20, "d", "e"], object)
    named = {"s": pa.array(names, pa.string())}
    found = probe(spine, Keys.of(spine.sort_key, pa.table({"k": asked, **named} if len(names) > 4 else named)))
    total = np.zeros(len(names), np.int64)
    np.add.at(total, found.which, found.weights)
    if spine.sort_key is BY_ROW:
        expected = np.append(weights, np.zeros(2 * size, np.int64))[asked]
    else:
        expected = [weights[NAMES[np.arange(size) % len(NAMES)] == name].sum() for name in names]
    assert np.array_equal(total, expected)


def check_reads(spine, weights):
    """Every way to read a spine gives these weights by row number."""
    check_probed(spine, weights)
    size = len(weights)
    there = np.flatnonzero(weights)
    assert spine.count() == len(there)
    assert np.array_equal(dense(spine.batches, size), weights)
    assert spine.rows == sum(b.rows for b in spine.batches)
    disjoint = spine.disjoint()
    assert sum(b.rows for b in disjoint) == len(there)
    assert np.array_equal(dense(disjoint, size), weights)
    for one in disjoint:
        check_batch(one)
    probe = batch(np.arange(0, size, max(1, size // 97)), 1, spine.sort_key)
    asked = probe.to_arrow()["k"].to_numpy()
    assert np.array_equal(spine.weights_of(probe), weights[asked])
    whole = spine.consolidated()
    check_batch(whole)
    assert whole.rows == len(there)
    assert np.array_equal(dense([whole], size), weights)
    assert spine.count() == len(there), "after consolidating too"
    assert np.array_equal(dense(spine.disjoint(), size), weights)


def levels(spine):
    """How many levels the rows of a spine span."""
    count = 1
    while spine.config.fanout**count <= spine.rows:
        count += 1
    return count


def check_shape(spine):
    """What bounds the number of batches: R of each level, and what merges in progress have yet to read."""
    merges = [e for e in spine.entries if isinstance(e, MergeState)]
    inputs = sum(len(m.inputs) for m in merges)
    assert all(e.rows for e in spine.entries), "an empty entry"
    assert len(spine.entries) - len(merges) <= spine.config.fanout * levels(spine)
    assert len(spine.batches) <= spine.config.fanout * levels(spine) + inputs + len(merges)
    for merge in merges:
        assert len(merge.inputs) <= spine.config.fanout * levels(spine)
    written = sum(c.rows for m in merges for c in m.out)
    assert spine.backlog() == sum(b.rows for m in merges for b in m.batches()) - written
    assert sum(rows for _, _, rows in spine.levels()) == spine.rows
    assert sum(count for _, count, _ in spine.levels()) == len(spine.batches)


# ---------------------------------------------------------------------- any history

PICK = st.integers(0, 5)


class Machine(RuleBasedStateMachine):
    config: SpineConfig
    size: int
    """Numbers of rows."""
    largest: int
    """Rows of a batch."""

    @initialize(skewed=st.booleans())
    def begin(self, skewed):
        self.sort_key = BY_SKEWED_KEY if skewed else BY_ROW
        self.spines = [(Spine(self.sort_key, (), self.config), np.zeros(self.size, np.int64))]

    def pick(self, index):
        return self.spines[max(-1 - index, -len(self.spines))]

    def insert(self, at, keys, weights):
        spine, there = self.pick(at)
        weights = np.broadcast_to(np.asarray(weights, np.int64), len(keys))
        total = there.copy()
        np.add.at(total, keys, weights)
        self.spines.append((spine.insert(batch(keys, weights, self.sort_key)), total))

    @rule(at=PICK, seed=st.integers(0, 1 << 30), share=st.floats(0, 1), exponent=st.integers(0, 3))
    def insert_rows(self, at, seed, share, exponent):
        """Sizes from one row to the largest; most batches are small."""
        rng = np.random.default_rng(seed)
        rows = max(1, round(self.largest * share / 8**exponent))
        keys = rng.integers(0, self.size, rows)
        self.insert(at, keys, rng.integers(-2, 3, rows))

    @rule(at=PICK, first=st.integers(0, 1 << 30), share=st.floats(0, 1), weight=st.sampled_from([1, 1, -1, 2]))
    def insert_range(self, at, first, share, weight):
        rows = round(self.largest * share)
        self.insert(at, (first + np.arange(rows)) % self.size, weight)

    @rule(at=PICK, seed=st.integers(0, 1 << 30), share=st.sampled_from([0.05, 0.5, 1.0]))
    def retract_what_is_there(self, at, seed, share):
        _, weights = self.pick(at)
        keys = np.flatnonzero(weights)
        keys = np.random.default_rng(seed).permutation(keys)[: round(len(keys) * share)]
        self.insert(at, keys, -weights[keys])

    @rule(at=PICK, times=st.integers(1, 3))
    def insert_the_same_batch_again(self, at, times):
        """The very object, as when a Z-set is added to itself."""
        spine, weights = self.pick(at)
        for one in spine.batches:
            for _ in range(times):
                spine = spine.insert(one)
        self.spines.append((spine, weights * (1 + times)))

    @rule(at=PICK, budget=st.sampled_from([0, 0, 0.05, None]))
    def work(self, at, budget):
        spine, weights = self.pick(at)
        worked = spine.work(budget)
        if budget is None:
            assert worked.backlog() == 0
            assert worked.work(None) is worked, "there was something left to do"
        self.spines.append((worked, weights))

    @rule(at=PICK)
    def compact(self, at):
        spine, weights = self.pick(at)
        compacted = spine.compacted()
        assert len(compacted.entries) == bool(weights.any())
        self.spines.append((compacted, weights))

    @rule(at=PICK)
    def read(self, at):
        check_reads(*self.pick(at))

    @invariant()
    def batches_are_few(self):
        if hasattr(self, "spines"):
            check_shape(self.spines[-1][0])

    def teardown(self):
        if not hasattr(self, "spines"):
            return
        for spine, weights in self.spines:
            check_reads(spine, weights)
        spine, weights = self.spines[-1]
        keys = np.flatnonzero(weights)
        for part in np.array_split(keys, 3):
            spine = spine.insert(batch(part, -weights[part], self.sort_key))
        assert spine.count() == 0
        assert spine.work(None).entries == ()
        assert spine.disjoint() == [] or sum(b.rows for b in spine.disjoint()) == 0


class Usual(Machine):
    config = SpineConfig()
    size = 12_000
    largest = 5_000


class Eager(Machine):
    config = EAGER
    size = 400
    largest = 120


class Sieved(Machine):
    config = FILTERED
    size = 1_500
    largest = 200

    @rule(at=PICK)
    def ask(self, at):
        check_probed(*self.pick(at))


def run(machine, share, steps):
    examples = max(5, settings.default.max_examples // share)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=steps))


def test_any_history_with_merges_always_in_progress_reads_like_an_array():
    run(Eager, 3, 25)


def test_any_history_with_bloom_filters_reads_like_an_array(monkeypatch):
    monkeypatch.setattr(bloom_filter, "MIN_REBUILD_STEP_ROWS", 40)  # larger words are long in coming
    monkeypatch.setattr(bloom_filter, "REBUILD_ROWS_PER_ROW", 1)
    run(Sieved, 3, 30)


def test_an_earlier_version_finds_keys_that_are_gone_from_later_filters(monkeypatch):
    monkeypatch.setattr(
        bloom_filter, "INITIAL_KEYS_PER_WORD", 8
    )  # words are soon full, and replaced by others that are hardly larger
    spine, versions = Spine(BY_ROW, (), FILTERED), []
    weights = np.zeros(8000, np.int64)
    for i in range(240):
        check_probed(spine, weights)
        keys = np.arange(30 * i, 30 * i + 30)
        if i % 20 == 19 and i < 120:  # all that is there goes
            keys = np.flatnonzero(weights)
        some = np.where(weights[keys] == 1, -1, 1)
        weights = weights.copy()
        weights[keys] += some
        spine = spine.insert(batch(keys, some))
        versions.append((spine, weights))
    view = {
        s._bloom_filter.view.address
        for s, _ in versions
        if s._bloom_filter is not None and s._bloom_filter.view is not None
    }
    assert len(view) > 4, "words have been replaced"
    fresh = [Spine(s.sort_key, s.entries, s.config, s.stats, bloom_filter=s._complete_filter) for s, _ in versions]
    for late, (_, there) in zip(fresh, versions, strict=True):
        check_probed(late, there)


def test_batches_that_are_not_inserted_are_in_no_filter_and_are_found():
    spine, weights = Spine(BY_ROW, (), FILTERED), np.zeros(1000, np.int64)
    for i in range(12):
        keys = np.arange(20 * i, 20 * i + 20)
        weights[keys] += 1
        spine = spine.insert(batch(keys))
        check_probed(spine, weights)
    assert spine._bloom_filter is not None
    assert spine._bloom_filter.view is not None
    more, once = np.arange(500, 1000), weights.copy()
    weights[more] += 1
    looked = spine.with_batch(batch(more))
    for later in (
        looked,
        looked.work(0),
        looked.work(None),
        looked.pay_merge(),
        looked.compacted(),
        looked.with_config(FINE),
    ):
        check_probed(later, weights)
    weights[:20] += 1
    check_probed(looked.insert(batch(np.arange(20))), weights)
    check_probed(looked.with_batch(batch(np.arange(20))), weights)
    check_probed(spine, once)


def test_a_filter_that_excludes_too_few_keys_is_dropped():
    spine = Spine(BY_ROW, (), FILTERED)
    weights = np.zeros(600, np.int64)
    seen = []
    for i in range(200):
        keys = np.arange(i * 3, i * 3 + 3)
        weights[keys] = 1
        spine = spine.insert(batch(keys))
        seen.append(spine._bloom_filter is not None)
        there = np.flatnonzero(weights)
        rows = pa.table({"k": there, "s": pa.array(NAMES[there % len(NAMES)], pa.string())})
        assert len(probe(spine, Keys.of(BY_ROW, rows))) == len(there)
    assert True in seen
    assert sum(seen) < len(seen) / 2
    assert spine.stats.no_filter_up_to_rows > 0


def test_any_history_with_the_default_limits_reads_like_an_array():
    run(Usual, 3, 20)


@pytest.mark.parametrize("mask", [0, 0x3, 0xFF])
def test_colliding_hashes_cost_time_and_nothing_else(mask):
    rng = np.random.default_rng(mask)
    with weakened_hash(mask):
        for sort_key in (BY_ROW, BY_SKEWED_KEY):
            spine, weights = Spine(sort_key, (), EAGER), np.zeros(150, np.int64)
            for i in range(40):
                keys = rng.integers(0, 150, rng.integers(1, 30))
                some = rng.integers(-2, 3, len(keys))
                np.add.at(weights, keys, some)
                spine = spine.insert(batch(keys, some, sort_key))
                if i % 5 == 0:
                    check_reads(spine, weights)
            check_reads(spine.work(None), weights)


# ---------------------------------------------------------------------- merges in progress


@pytest.mark.parametrize("sort_key", [BY_ROW, BY_SKEWED_KEY], ids=["by row", "by skewed key"])
def test_a_merge_in_progress_reads_right_at_every_step(sort_key):
    size = 3000
    rng = np.random.default_rng(1)
    parts = [(keys := rng.integers(0, size, 700), rng.integers(-2, 3, len(keys))) for _ in range(5)]
    weights = np.zeros(size, np.int64)
    for keys, some in parts:
        np.add.at(weights, keys, some)
    inputs = tuple(batch(keys, some, sort_key) for keys, some in parts)
    entry = MergeState((), inputs, (0,) * len(inputs), sum(b.rows for b in inputs))
    steps = 0
    while isinstance(entry, MergeState):
        spine = Spine(sort_key, (entry,), EAGER)
        check_reads(spine, weights)
        before = entry.unread
        entry = entry.step(64)
        steps += 1
        if isinstance(entry, MergeState):
            assert entry.unread < before, "no progress"
    assert steps > 10
    check_reads(Spine(sort_key, (entry,)), weights)


def with_a_large_merge_begun():
    """A spine of 60 000 rows in which an insert of 100 has begun to merge them all."""
    spine = Spine(BY_ROW).insert(batch(np.arange(30_000))).insert(batch(np.arange(30_000, 59_900)))
    assert len(spine.entries) == 2
    spine = spine.insert(batch(np.arange(59_900, 60_000)))
    (merging,) = spine.entries
    assert isinstance(merging, MergeState)
    assert spine.backlog() >= 40_000
    return spine


def test_no_insert_waits_for_a_whole_merge():
    """What a small insert has begun goes on with those that follow, some rows each time."""
    spine = with_a_large_merge_begun()
    backlogs = [spine.backlog()]
    for i in range(60_000, 72_000, 100):
        spine = spine.insert(batch(np.arange(i, i + 100)))
        backlogs.append(spine.backlog())
    steps = -np.diff(backlogs)
    assert min(backlogs) < 2048, "the merge was never finished"
    assert steps.max() <= 3 * SpineConfig().merge_step_rows, "one insert did most of it"
    check_reads(spine, np.ones(72_000, np.int64))


def test_a_budget_of_no_time_still_gets_somewhere():
    spine = with_a_large_merge_begun()
    steps = 0
    while spine.backlog():
        backlog = spine.backlog()
        spine = spine.work(0)
        assert spine.backlog() < backlog
        steps += 1
    assert steps > 1, "it was done in one go"
    check_reads(spine, np.ones(60_000, np.int64))


def test_work_without_a_budget_finishes_everything():
    spine = Spine(BY_ROW, (), EAGER)
    for i in range(200):
        spine = spine.insert(batch(np.arange(10 * i, 10 * i + 10)))
    assert spine.backlog() > 0
    done = spine.work(None)
    assert done.backlog() == 0
    assert not any(isinstance(e, MergeState) for e in done.entries)
    check_reads(done, np.ones(2000, np.int64))
    check_reads(spine, np.ones(2000, np.int64))


# ---------------------------------------------------------------------- how many batches, how many rows


def ruler(fanout, i):
    """1, 1, …, R, 1, 1, …, R, …, R², …: always few of one size, and never two neighbours for long."""
    size = 1
    while i % fanout == 0:
        size, i = size * fanout, i // fanout
    return size


SIZES = {
    "one": lambda i, _: 1,
    "equal": lambda i, _: 37,
    "growing": lambda i, _: i,
    "shrinking": lambda i, _: 400 - i,
    "ruler": lambda i, fanout: ruler(fanout, i),
    "reversed ruler": lambda i, fanout: 512 // ruler(fanout, i) + 1,
    "large and small": lambda i, _: 1000 if i % 5 == 0 else 1,
    "random": lambda i, _: int(np.random.default_rng(i).pareto(0.5) + 1) % 2000,
}


@pytest.mark.parametrize(
    "config", [SpineConfig(), SpineConfig(fanout=2), SpineConfig(fanout=8), FINE, EAGER],
    ids=["usual", "R=2", "R=8", "fine", "eager"],
)  # fmt: skip
@pytest.mark.parametrize("sizes", SIZES)
def test_batches_stay_few_whatever_their_sizes(sizes, config):
    rows = [max(1, SIZES[sizes](i, config.fanout)) for i in range(1, 300)]
    total = sum(rows) + 20_000
    spine = Spine(BY_ROW, (), config).insert(batch(np.arange(20_000)))
    at = 20_000
    for i, n in enumerate(rows):
        spine = spine.insert(batch(np.arange(at, at + n)))
        at += n
        check_shape(spine)
        if config is not EAGER:
            assert sum(isinstance(e, MergeState) for e in spine.entries) <= levels(spine)
            assert spine.backlog() <= 2 * spine.rows
        if i % 100 == 50:
            worked = spine.work(None)
            check_shape(worked)
            assert len(worked.batches) <= config.fanout * levels(worked)
    assert spine.count() == total
    assert spine.rows == total, "rows that do not cancel are held once"


def test_each_row_takes_part_in_few_merges():
    """About log_R(n) of them, plus those that bound the space."""
    spine = Spine(BY_ROW)
    for i in range(2000):
        spine = spine.insert(batch(np.arange(20 * i, 20 * i + 20)))
    spine = spine.work(None)
    assert spine.stats.rows_in / spine.rows <= 2 * np.log(40_000 / 20) / np.log(4)


@pytest.mark.parametrize("rows", [1, 10, 100, 1000])
def test_updates_hold_no_more_rows_than_the_space_share_allows(rows):
    """Every insert replaces rows by others: as many vanish as come."""
    n = 10_000
    config = SpineConfig()
    rng = np.random.default_rng(rows)
    spine = Spine(BY_ROW, (), config).insert(batch(np.arange(n)))
    current = np.arange(n)
    fresh = n
    most = 0.0
    for _ in range(min(400, 40_000 // rows)):
        at = rng.choice(n, rows, replace=False)
        old, new = current[at], np.arange(fresh, fresh + rows)
        fresh += rows
        current[at] = new
        spine = spine.insert(batch(np.concatenate([old, new]), np.repeat([-1, 1], rows)))
        most = max(most, spine.rows / n)
    worked = spine.work(None)
    assert worked.count() == n
    if rows > 1:
        assert worked.space_share() < config.max_space_share, "it has seen rows cancel"
    assert worked.rows <= n * (1 + worked.space_share())
    assert most <= 1 + 2 * config.max_space_share + 3 * 2 * rows / n


def test_where_everything_cancels_sooner_or_later_little_is_kept():
    """A queue: rows come at one end and go at the other; a tenth of all is there at a time."""
    config = SpineConfig()
    spine = Spine(BY_ROW)
    window, step = 4000, 200
    for i in range(0, 40_000, step):
        gone = np.arange(i - window, i - window + step) if i >= window else np.arange(0)
        come = np.arange(i, i + step)
        spine = spine.insert(batch(np.concatenate([gone, come]), np.repeat([-1, 1], [len(gone), step])))
    spine = spine.work(None)
    assert spine.count() == window
    share = spine.space_share()
    assert share < config.max_space_share, "it has seen rows cancel"
    assert spine.rows <= window * (1 + share) / (1 - share)


@pytest.mark.parametrize("pieces", [1, 2, 7, 100])
@pytest.mark.parametrize("rows", [1, 10, 2000, 20_000])
def test_everything_retracted_leaves_no_entries_after_work(rows, pieces):
    spine = Spine(BY_ROW)
    for part in np.array_split(np.arange(rows), pieces):
        spine = spine.insert(batch(part))
    for part in np.array_split(np.random.default_rng(2).permutation(rows), pieces):
        spine = spine.insert(batch(part, -1))
    assert spine.count() == 0
    assert spine.consolidated().rows == 0
    assert sum(b.rows for b in spine.disjoint()) == 0
    done = spine.work(None)
    assert done.entries == ()
    assert done.batches == ()
    assert done.rows == 0
    assert done.insert(batch([5])).count() == 1


def test_empty_batches_cost_nothing():
    empty = Batch.empty(BY_ROW)
    spine = Spine(BY_ROW)
    assert spine.insert(empty) is spine
    assert spine.entries == ()
    spine = spine.insert(batch([1, 2]))
    inserts = spine.stats.inserts
    for _ in range(100):
        assert spine.insert(empty) is spine
    assert spine.stats.inserts == inserts
    assert len(spine.batches) == 1


def test_an_empty_spine_reads_as_nothing():
    spine = Spine(BY_ROW)
    check_reads(spine, np.zeros(10, np.int64))
    assert spine.work(None).entries == ()
    assert spine.compacted().entries == ()
    assert spine.backlog() == 0
    assert spine.levels() == []


def test_a_batch_that_retracts_all_of_the_oldest_is_merged_with_it():
    spine = Spine(BY_ROW).insert(batch(np.arange(1000))).insert(batch(np.arange(1000), -1)).work(None)
    assert spine.entries == ()


@pytest.mark.parametrize(
    "config",
    [SpineConfig(), EAGER, SpineConfig(max_inline_merge_rows=0, merge_rows_per_row=0)],
    ids=["usual", "eager", "idle"],
)
def test_a_batch_that_is_inserted_twice_counts_twice(config):
    """The very same object, as when a Z-set is added to itself."""
    large, small = batch(np.arange(1000)), batch([5, 1002])
    weights = np.zeros(1010, np.int64)
    spine = Spine(BY_ROW, (), config)
    for one, keys in ((large, np.arange(1000)), (large, np.arange(1000)), (small, [5, 1002]), (small, [5, 1002]),
                      (large, np.arange(1000))):  # fmt: skip
        spine = spine.insert(one)
        np.add.at(weights, keys, 1)
        check_reads(spine, weights)
    for entries in ((large, large), (large, large, small), (small, large, small, large)):
        expected = dense(entries, 1010)
        check_reads(Spine(BY_ROW, entries, config), expected)


def test_old_spines_share_batches_and_stay_as_they_were():
    spine = Spine(BY_ROW)
    kept = []
    for i in range(60):
        kept.append((i, spine))
        spine = spine.insert(batch(np.arange(100 * i, 100 * i + 100)))
    for i, old in kept:
        expected = np.zeros(6000, np.int64)
        expected[: 100 * i] = 1
        check_reads(old, expected)
        branch = old.insert(batch([5999, 0], [1, 1]))
        np.add.at(expected, [5999, 0], 1)
        check_reads(branch, expected)


def test_counting_beside_a_large_batch_reads_only_the_small_ones():
    """The way that does not consolidate: one large batch, few changes of all sorts."""
    size = 20_010
    weights = np.zeros(size, np.int64)
    weights[:20_000] = 1
    config = SpineConfig(max_inline_merge_rows=0, merge_rows_per_row=0)
    spine = Spine(BY_ROW, (), config).insert(batch(np.arange(20_000)))
    for keys, some in (
        ([1, 2, 3], [-1, 1, 5]), (np.arange(100, 130), -1), ([20_001], 1), ([20_001], -1), ([20_002, 7], [3, -1]),
        (np.arange(5000, 5008), -1), ([2, 7], [-1, 1]),
    ):  # fmt: skip
        np.add.at(weights, keys, some)
        spine = spine.insert(batch(keys, some))
        fresh = Spine(BY_ROW, spine.entries, config)
        assert fresh.count() == np.count_nonzero(weights)
        assert "_consolidated" not in fresh.__dict__
        check_reads(spine, weights)


def test_weights_that_overflow_are_refused_by_every_read_that_sums_them():
    spine = Spine(BY_ROW, (batch([1, 2], [MAX, 1]), batch([1, 3], [1, 1])))
    for read in (spine.consolidated, spine.count, spine.disjoint, lambda: spine.weights_of(batch([1]))):
        with pytest.raises(WeightOverflowError):
            read()
    assert spine.weights_of(batch([2, 3])).tolist() == [1, 1]


def test_an_append_only_spine_has_a_larger_fanout_until_rows_are_retracted():
    config = SpineConfig(max_inline_merge_rows=0, append_only_fanout=16)
    spine, usual = Spine(BY_ROW, config=config), Spine(BY_ROW, config=SpineConfig(max_inline_merge_rows=0))
    for i in range(60):
        one = batch(range(3000 * i, 3000 * (i + 1)))
        spine, usual = spine.insert(one).work(), usual.insert(one).work()
        assert len(spine.batches) <= 2 * 16
    assert spine.stats.rows_in * 2 < usual.stats.rows_in, "rows are written more often than they have to be"
    for i in range(20):
        spine = spine.insert(batch(range(3000 * i, 3000 * (i + 1)), -1)).work()
    assert len(spine.batches) <= 2 * 4
    assert spine.count() == 40 * 3000


def test_keys_that_the_filter_excludes_do_not_count_as_lookups():
    def fanout(**seen):
        return merge_policy._append_only_fanout(
            SpineConfig(seldom_read_fanout=16), SpineStats(insert_rows=10.0, **seen)
        )

    assert fanout(sought_keys=100.0, unfiltered_keys=0.0) == 16
    assert fanout(sought_keys=100.0, unfiltered_keys=5.0) is None
    assert fanout() == 16
    assert fanout(removals=0.05) == 16, "next to nothing is taken away"
    assert fanout(removals=0.2) is None


def test_large_batches_of_an_append_only_spine_have_a_larger_fanout(monkeypatch):
    monkeypatch.setattr(merge_policy, "MIN_WIDE_TIER_ROWS", 256)
    monkeypatch.setattr(merge_policy, "UNREAD_TIER_FACTOR", 4)
    spine = Spine(BY_ROW, config=SpineConfig(max_inline_merge_rows=0, append_only_fanout=4))
    for i in range(15 * 4):
        spine = spine.insert(batch(range(100 * i, 100 * (i + 1)))).work()
    assert [b.rows for b in spine.batches] == [400] * 15, "four of a hundred are one, but not four of four hundred"
    assert spine.stats.rows_in == 6000
    for i in range(15 * 4, 17 * 4):
        spine = spine.insert(batch(range(100 * i, 100 * (i + 1)))).work()
    assert [b.rows for b in spine.batches] == [6400, 400]
    for i in range(17 * 4):
        spine = spine.insert(batch(range(100 * i, 100 * (i + 1)), -1)).work()
    assert not spine.count()
    assert not spine.rows


def look_up_keys(spine, rows):
    """So many keys are looked up."""
    probe(spine, Keys.of(spine.sort_key, [(k, "hot") for k in range(rows)]))


@pytest.mark.parametrize(("rows", "usual"), [(2, False), (50, True), (0, False)], ids=["few", "many", "none"])
def test_a_spine_that_is_seldom_read_has_a_larger_fanout(rows, usual):
    spine = Spine(BY_ROW, config=SpineConfig(max_inline_merge_rows=0, seldom_read_fanout=16))
    other = Spine(BY_ROW, config=SpineConfig(max_inline_merge_rows=0))
    for i in range(60):
        one = batch(range(100 * i, 100 * (i + 1)))
        look_up_keys(spine, rows)
        spine, other = spine.insert(one).work(), other.insert(one).work()
    assert (spine.stats.rows_in == other.stats.rows_in) is usual
    assert usual or spine.stats.rows_in * 2 < other.stats.rows_in
    for i in range(60):
        look_up_keys(spine, rows)
        spine = spine.insert(batch(range(100 * i, 100 * (i + 1)), -1)).work()
        assert len(spine.batches) <= 2 * 4 or i < 2, "what is taken away is merged as usual"
    assert not spine.count()


@pytest.mark.parametrize(
    "limits", [{}, {"append_only_fanout": 8}, {"seldom_read_fanout": 8}], ids=["usual", "growing", "inserting"]
)
def test_keys_are_found_through_indices_whatever_is_being_merged(limits):
    """Inserts and deletes at random, merges in progress all the time; then everything goes."""
    config = SpineConfig(
        fanout=2, max_inline_merge_rows=8, merge_step_rows=32, merge_rows_per_row=1, min_indexed_rows=16, **limits
    )
    rng = np.random.default_rng(7)
    by_key = SortKey(SCHEMA, [0])
    size, weights = 3000, np.zeros(3000, np.int64)
    spine = Spine(by_key, config=config)
    in_inputs = 0

    def check():
        nonlocal in_inputs
        asked = np.unique(rng.integers(0, size, 200))
        for hits in (
            probe(spine, Keys.of(by_key, asked.tolist())),
            first_rows_unordered(spine, Keys.of(by_key, asked.tolist()), 9),
        ):
            found = np.zeros(len(asked), np.int64)
            np.add.at(found, hits.which, hits.weights)
            assert np.array_equal(found, weights[asked])
        assert len(spine.index_refs) == len(spine.batches)
        for one, place in zip(spine.batches, spine.index_refs.tolist(), strict=True):
            in_entries = any(e is one for e in spine.entries)
            assert place[0] if in_entries and one.rows >= 16 else True
            in_inputs += bool(place[0]) and not in_entries

    for tick in range(150):
        keys = rng.integers(0, size, rng.integers(1, 60))
        change = np.zeros(size, np.int64)
        np.add.at(change, keys, 1)
        if tick > 70:
            gone = rng.choice(np.flatnonzero(weights), 20)
            change[gone] -= weights[gone]
        there = np.flatnonzero(change)
        weights += change
        spine = spine.insert(batch(there, change[there], by_key))
        if tick % 3 == 0:
            check()
    assert in_inputs, "no merge was in progress"
    left = np.flatnonzero(weights)
    for part in np.array_split(rng.permutation(left), 7):
        spine = spine.insert(batch(part, -weights[part], by_key))
        weights[part] = 0
        check()
    assert not spine.count()
    assert not spine.work().rows


INSERTS = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from([1, 1, 2, 3, 5, 9, 30, 70, 200]), st.sampled_from([1, 1, 1, -1])),
    max_size=60,
)


@pytest.mark.parametrize(
    "config",
    [
        SpineConfig(),
        EAGER,
        FINE,
        SpineConfig(append_only_fanout=16),
        SpineConfig(seldom_read_fanout=16, min_tiny_batches=8, min_indexed_rows=64),
    ],
    ids=["usual", "eager", "fine", "growing", "as in a pipeline"],
)
@given(inserts=INSERTS)
@settings(deadline=None)
def test_the_settled_tail_is_extended_only_where_no_merge_is_due(config, inserts):
    """Beside a spine that looks at all of them at every insert."""
    quick, thorough = Spine(BY_ROW, config=config), Spine(BY_ROW, config=config)
    for first, size, weight in inserts:
        some = batch(range(first, first + size), weight)
        quick = quick.insert(some)
        thorough._tail = None
        thorough = thorough.insert(some)
        assert [(type(e), e.rows) for e in quick.entries] == [(type(e), e.rows) for e in thorough.entries]
        assert (quick.credit, quick.rows, quick.merges) == (thorough.credit, thorough.rows, thorough.merges)
        assert quick.rows == sum(e.rows for e in quick.entries)
        assert quick.merges == any(type(e) is MergeState for e in quick.entries)
