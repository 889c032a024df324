"""The adaptive Z-set: its forms, what moves it from one to another, and every flush trigger by itself.

Each test starts from knobs with which nothing happens (`QUIET`) and turns on only what it is about.
"""

import functools
import itertools
import logging
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dbspark.errors import ConfigError, UnknownBackendError
from dbspark.trace.spine import Spine
from dbspark.zset import BACKENDS, ZSet, ZSetConfig, config, configure, configured, current, policy
from dbspark.zset.adaptive import MIN_SPINE_ROWS
from dbspark.zset.memtable import HOT_TOUCHES
from dbspark.zset.policy import CHANGES_PER_CHECK, FALLBACK_BYTES_FACTOR, MIN_FALLBACK_FLUSHES, SUBSCRIBER_DIVISOR
from tests.zset.model import contents, metrics_of

SCHEMA = "k BIGINT, s STRING"
QUIET = {
    "backend": "Adaptive",
    "smallset_n": 32,
    "flush_size": 1 << 40,
    "flush_bytes": 1 << 60,
    "flush_time_ms": 1e12,
    "cancel_ewma": 1.0,
    "logging": "off",
}
BASE = 40
"""Rows that are a memtable with these knobs."""


def quiet(**knobs):
    return ZSetConfig(**{**QUIET, **knobs})


def row(k):
    return (k, f"s{k % 3}")


def rows(*ks):
    return [row(k) for k in ks]


def in_columns(ks, weights=None, config=None):
    """A delta of these rows in columns."""
    ks = list(ks)
    weights = [1] * len(ks) if weights is None else weights
    table = {"k": pa.array(ks, pa.int64()), "s": [row(k)[1] for k in ks], "w": weights}
    return ZSet.from_arrow(table, "w", SCHEMA, config or quiet())


WAYS = {
    "row by row": lambda z, ks, weight=1: functools.reduce(lambda z, k: z.add(row(k), weight), ks, z),
    "in small lists": lambda z, ks, weight=1: functools.reduce(lambda z, k: z.add_many([row(k)], [weight]), ks, z),
    "in columns": lambda z, ks, weight=1: functools.reduce(lambda z, k: z + in_columns([k], [weight], z.config), ks, z),
}
"""Three ways in which a Z-set takes a few rows at a time. The first two leave them Python rows until they are read."""
ways = pytest.mark.parametrize("way", WAYS)


def grown(count, way="in columns", *, read=False, **knobs):
    """A Z-set of rows 0 … count-1; with `read`, one of which somebody has read the arranged form before it grew."""
    z = ZSet.empty(SCHEMA, quiet(**knobs))
    if read:
        z.arranged_view().close()
    return WAYS[way](z, range(count))


def traced(count, *, read=False, **knobs):
    """The same in deltas of ten, with an S that makes it a trace."""
    z = ZSet.empty(SCHEMA, quiet(flush_size=64, **knobs))
    if read:
        z.arranged_view().close()
    for k in range(0, count, 10):
        z = z + in_columns(range(k, k + 10), config=z.config)
    assert z.form == "trace"
    return z


def more(z, first, count, way="in columns", weight=1):
    """With rows first … first+count-1."""
    return WAYS[way](z, range(first, first + count), weight)


def memtable_rows(z):
    """Rows in the memtable in front of an adaptive Z-set."""
    _, memtable = z._payload.state
    return 0 if memtable is None else memtable.read(len)


def spine_of(z):
    return z._payload.state[0].spine


def holds(z, *ks, weight=1):
    return contents(z) == {row(k): weight for k in ks}


@pytest.fixture
def clock(monkeypatch):
    """A clock for the policy that stands still until it is told to go on."""
    now = SimpleNamespace(seconds=time.monotonic())
    monkeypatch.setattr(policy, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Nothing falls back to the hash path, however slow the machine is …"""
    monkeypatch.setattr(policy, "MIN_FALLBACK_FLUSHES", 1 << 30)


@pytest.fixture
def impatient(monkeypatch, patient):
    """… except where that is what the test is about."""
    monkeypatch.setattr(policy, "MIN_FALLBACK_FLUSHES", MIN_FALLBACK_FLUSHES)
    monkeypatch.setattr(policy, "MIN_FALLBACK_SECONDS", 0.0)


# ---------------------------------------------------------------------- N: small and memtable

N = 64


@ways
def test_a_small_vector_becomes_a_memtable_a_little_above_n_and_one_again_well_below_it(way):
    z = ZSet.empty(SCHEMA, quiet(smallset_n=N))
    up, down = [], []
    for k in range(2 * N):
        z = more(z, k, 1, way)
        up.append(z.form)
    for k in reversed(range(2 * N)):
        z = more(z, k, 1, way, -1)
        down.append(z.form)
    left_at = up.index("memtable") + 1
    assert N < left_at <= N + N // 8 + 1
    assert up == ["small"] * (left_at - 1) + ["memtable"] * (2 * N - left_at + 1)
    kept = down.count("memtable")
    assert down == ["memtable"] * kept + ["small"] * (2 * N - kept)
    taken_at = 2 * N - kept - 1  # rows that are left when it is small again
    assert N // 2 <= taken_at < N
    assert metrics_of(z).transitions == {"small>memtable": 1, "memtable>small": 1}
    assert metrics_of(z).flushes == {}
    assert metrics_of(z).arranged_reads == 0
    assert z.is_empty()


@pytest.mark.parametrize("rows_there", [N - 1, N, N + N // 8, N + N // 8 + 1, N - N // 4, N - N // 4 - 1])
@ways
def test_going_back_and_forth_by_one_row_changes_the_form_once_at_the_most(rows_there, way):
    """Whatever the size is at which a form changes, it does not change back one row later."""
    for start in (0, 2 * N):  # arrive there from below and from above
        z = more(ZSet.empty(SCHEMA, quiet(smallset_n=N)), 0, max(start, rows_there), way)
        for k in reversed(range(rows_there, start)):
            z = more(z, k, 1, way, -1)
        before = sum(metrics_of(z).transitions.values()) if metrics_of(z) else 0
        forms = [z.form]
        for _ in range(10):
            for weight in (1, -1):
                z = more(z, 9999, 1, way, weight)
                forms.append(z.form)
        changes = sum(a != b for a, b in itertools.pairwise(forms))
        assert changes <= 1, forms
        after = sum(metrics_of(z).transitions.values()) if metrics_of(z) else 0
        assert after - before == changes
        assert holds(z, *range(rows_there))


def test_rows_given_one_by_one_on_top_of_a_small_vector_count_towards_n():
    z = ZSet.from_rows(rows(*range(N)), SCHEMA, config=quiet(smallset_n=N))
    assert z.form == "small"
    for k in range(N, N + N // 8):
        z = z.add(row(k))
        assert z.form == "small"
    z = z.add(row(1000))
    assert z.form == "memtable"
    assert holds(z, *range(N + N // 8), 1000)


def test_n_of_zero_means_never_small():
    z = ZSet.empty(SCHEMA, quiet(smallset_n=0))
    assert z.add(row(1)).form == "memtable"
    assert z.add_many(rows(1)).form == "memtable"
    assert holds(z.add(row(1)).add_many(rows(2)), 1, 2)


def test_an_old_value_keeps_its_form_while_its_successors_grow():
    z = ZSet.empty(SCHEMA, quiet(smallset_n=N))
    old = []
    for k in range(5 * N):
        if k % 20 == 0:
            old.append((k, z, z.form))
        z = z.add(row(k)) if k % 3 else z.add_many([row(k)])
    z = z.add_many(rows(*range(5 * N, 5 * N + MIN_SPINE_ROWS)))
    assert z.form == "trace"
    for k, value, form in old:
        assert value.form == form
        assert holds(value, *range(k))
        assert value.add_many(rows(*range(k, k + MIN_SPINE_ROWS))).count == k + MIN_SPINE_ROWS
        assert value.form == form


# ---------------------------------------------------------------------- S and back


@ways
def test_a_memtable_becomes_a_trace_at_s(way):
    z = grown(99, way, read=True, flush_size=100)
    assert z.form == "memtable"
    assert metrics_of(z).flushes == {}
    z = more(z, 99, 1, way)
    assert z.form == "trace"
    assert metrics_of(z).flushes == {"size": 1}
    assert metrics_of(z).transitions == {"small>memtable": 1, "memtable>trace": 1}
    assert memtable_rows(z) == 0
    assert holds(z, *range(100))


def test_rows_in_columns_become_a_trace_at_s_though_nobody_reads_them():
    z = grown(99, flush_size=100)
    assert z.form == "memtable"
    z = more(z, 99, 1)
    assert z.form == "trace"
    assert metrics_of(z).flushes == {"size": 1}
    assert metrics_of(z).arranged_reads == 0


@pytest.mark.parametrize("way", ["row by row", "in small lists"])
def test_python_rows_that_nobody_reads_in_columns_wait_beyond_s(way):
    """A dict serves them best; only their bytes are bounded. The first reader in columns changes that."""
    z = grown(1000, way, flush_size=100)
    assert z.form == "memtable"
    assert (z.count, z.weight(row(3)), len(list(z))) == (1000, 1, 1000)
    assert metrics_of(z).flushes == {}
    z.to_arrow()
    assert z.form == "trace"
    assert metrics_of(z).flushes == {"arranged": 1}
    z = more(z, 1000, 300, way)
    assert metrics_of(z).flushes == {"arranged": 1, "size": 3}
    assert holds(z, *range(1300))


@pytest.mark.parametrize("delta", [1, 7, 2000], ids=["row by row", "in small lists", "at once"])
@pytest.mark.parametrize("read", [True, False], ids=["read before", "never read"])
def test_a_trace_of_which_few_rows_are_left_becomes_small_again(clock, delta, read):
    z = traced(2000, read=read, flush_time_ms=20)
    for first in range(5, 2000, delta):
        gone = rows(*range(first, min(first + delta, 2000)))
        z = z.add(gone[0], -1) if delta == 1 else z.add_many(gone, [-1] * len(gone))
    clock.seconds += 1
    for k in range(2 * CHANGES_PER_CHECK):  # the rest of the way may take a flush
        z = z.add(row(3000 + k)).add(row(3000 + k), -1)
    assert z.form == "small"
    assert metrics_of(z).transitions["trace>small"] == 1
    assert spine_of(z) is None
    assert holds(z, *range(5))


def test_a_trace_whose_rows_are_all_retracted_holds_nothing():
    z = traced(3000)
    z = z - z
    assert z.is_empty()
    assert contents(z) == {}
    assert list(z.scan()) == []
    assert z.freeze().form == "small"


def test_a_large_delta_makes_a_small_vector_a_trace_at_once():
    z = ZSet.from_rows(rows(1, 2), SCHEMA, config=quiet()).add_many(rows(*range(MIN_SPINE_ROWS)))
    assert z.form == "trace"
    assert metrics_of(z).transitions == {"small>trace": 1}
    assert metrics_of(z).flushes == {}
    assert z.count == MIN_SPINE_ROWS
    assert z.weight(row(1)) == 2


def test_a_large_delta_skips_the_memtable():
    z = grown(50)
    assert z.form == "memtable"
    z = z.add_many(rows(*range(100, 100 + MIN_SPINE_ROWS)))
    assert z.form == "trace"
    assert memtable_rows(z) == 0
    z = z.add(row(7000)).add_many(rows(7001)) + in_columns([7002])
    flushes = dict(metrics_of(z).flushes)
    for first in (10_000, 20_000):
        z = z.add_many(rows(*range(first, first + MIN_SPINE_ROWS)))
        assert memtable_rows(z) == 3
    assert metrics_of(z).flushes == flushes
    smaller = z.add_many(rows(*range(50_000, 50_000 + MIN_SPINE_ROWS - 1)))
    assert memtable_rows(smaller) == 3 + MIN_SPINE_ROWS - 1
    assert holds(z, *range(50), *range(100, 100 + MIN_SPINE_ROWS), 7000, 7001, 7002,
                 *range(10_000, 10_000 + MIN_SPINE_ROWS), *range(20_000, 20_000 + MIN_SPINE_ROWS))  # fmt: skip


# ---------------------------------------------------------------------- triggers, each by itself


@ways
def test_only_size_flushes_every_s_rows(way):
    z = grown(1000, way, read=True, flush_size=100, compact_budget_ms=0)
    assert metrics_of(z).flushes == {"size": 10}
    assert metrics_of(z).flushed_rows == 1000
    assert holds(z, *range(1000))


@ways
def test_only_bytes_flush_when_rows_are_few_but_long(way):
    budget = 100_000

    def long(flush_bytes):
        z = ZSet.empty(SCHEMA, quiet(flush_bytes=flush_bytes, smallset_n=2))
        most = 0
        for k in range(400):
            one = (k, chr(65 + k % 26) * 1000)
            if way == "in columns":
                z = z + ZSet.from_arrow({"k": [k], "s": [one[1]]}, schema=SCHEMA, config=z.config)
            else:
                z = z.add(one) if way == "row by row" else z.add_many([one])
            most = max(most, memtable_rows(z))
        return z, most

    z, most = long(budget)
    flushes = metrics_of(z).flushes
    assert set(flushes) == {"bytes"}
    assert flushes["bytes"] >= 2
    assert most * 1000 <= budget * 1.5 + 1000 * CHANGES_PER_CHECK
    assert z.count == 400
    z, most = long(QUIET["flush_bytes"])
    assert metrics_of(z).flushes == {}
    assert most == 400


@ways
def test_only_time_flushes_what_has_waited_for_t_once_there_is_a_trace(clock, way):
    z = grown(BASE, way, flush_time_ms=20)
    clock.seconds += 10
    z = more(z, 100, 3 * CHANGES_PER_CHECK, way)
    assert metrics_of(z).flushes == {}, "there is no trace to flush to"
    z.arranged_view().close()
    assert metrics_of(z).flushes == {"arranged": 1}
    z = more(z, 200, 3 * CHANGES_PER_CHECK, way)
    clock.seconds += 0.019
    z = more(z, 300, 3 * CHANGES_PER_CHECK, way)
    assert metrics_of(z).flushes == {"arranged": 1}, "T is not over"
    clock.seconds += 0.002
    z = more(z, 400, 2 * CHANGES_PER_CHECK, way)
    assert metrics_of(z).flushes == {"arranged": 1, "time": 1}
    z = more(z, 500, 3 * CHANGES_PER_CHECK, way)
    assert metrics_of(z).flushes == {"arranged": 1, "time": 1}, "T begins again"
    assert z.count == BASE + 14 * CHANGES_PER_CHECK


def test_t_is_the_age_of_the_oldest_row_that_waits_not_of_the_last_flush(clock):
    z = grown(BASE, flush_time_ms=20)
    z.arranged_view().close()
    clock.seconds += 10  # nothing waits
    z = more(z, 100, 2 * CHANGES_PER_CHECK)
    assert metrics_of(z).flushes == {"arranged": 1}
    clock.seconds += 0.021
    z = more(z, 200, 2 * CHANGES_PER_CHECK)
    assert metrics_of(z).flushes == {"arranged": 1, "time": 1}


@ways
def test_only_the_demand_for_the_arranged_form_flushes(way):
    z = grown(50, way)
    with z.arranged_view() as view:
        assert dict(view) == {row(k): 1 for k in range(50)}
    assert z.form == "trace"
    assert memtable_rows(z) == 0
    assert metrics_of(z).flushes == {"arranged": 1}
    z.arranged_view().close()
    assert metrics_of(z).flushes == {"arranged": 1}, "nothing to flush"
    z = z.add(row(77))
    z.arranged_view().close()
    assert metrics_of(z).flushes == {"arranged": 2}
    assert metrics_of(z).arranged_reads == 3


def test_a_small_vector_is_arranged_already():
    z = ZSet.from_rows(rows(1, 2, 3), SCHEMA, config=quiet()).add(row(4))
    with z.arranged_view() as view:
        assert sorted(r for r, _ in view) == sorted(rows(1, 2, 3, 4))
    assert z.form == "small"
    assert metrics_of(z).flushes == {}


@ways
def test_reading_rows_does_not_flush_a_memtable(way):
    z = grown(200, way)
    assert (z.count, z.total_weight, z.weight(row(3)), z.weight(row(999)), row(4) in z) == (200, 200, 1, 0, True)
    assert holds(z, *range(200))
    assert z.form == "memtable"
    assert metrics_of(z).flushes == {}


READS = {
    "scan": lambda z: list(z.scan()),
    "to_arrow": lambda z: z.to_arrow(),
    "filter": lambda z: z.filter(lambda r: r[0] > 3),
    "negate": lambda z: -z,
    "freeze": lambda z: z.freeze(),
    "compare": lambda z: z == grown(199).add(row(999)),
    "index": lambda z: z.group_by("k"),
    "add to another": lambda z: in_columns(range(2000)) + z,
}


@pytest.mark.parametrize("read", READS)
@ways
def test_reading_columns_sorts_what_waits_once(way, read):
    z = grown(200, way)
    for _ in range(3):
        READS[read](z)
        assert z.form == "trace"
        assert memtable_rows(z) == 0
        assert metrics_of(z).flushes == {"arranged": 1}
    assert holds(z, *range(200))


def test_only_a_high_rate_of_cancellation_flushes_sooner():
    """Deltas of ten rows, of which a share takes rows away. S is never reached."""
    size = 4000

    def churned(share, **knobs):
        z = grown(BASE, flush_size=size, **knobs)
        for i in range(150):
            ks = range(100 + 10 * i, 110 + 10 * i)
            z = z + in_columns(ks, [-1 if k % 10 < 10 * share else 1 for k in ks])
            assert memtable_rows(z) < size
        return z

    z = churned(0.5, cancel_ewma=0.25)
    assert set(metrics_of(z).flushes) == {"cancel"}
    assert metrics_of(z).cancel_rate > 0.25
    assert z.count == BASE + 1500
    assert metrics_of(churned(0.1, cancel_ewma=0.25)).flushes == {}
    assert metrics_of(churned(0.5, cancel_ewma=1.0)).flushes == {}
    assert metrics_of(churned(0.0, cancel_ewma=0.0)).flushes == {}


@pytest.mark.parametrize("way", ["row by row", "in small lists"])
def test_python_rows_have_a_rate_of_cancellation_too(way):
    size = 200
    z = more(grown(BASE, way, read=True, flush_size=size, cancel_ewma=0.25), 1000, 3000, way, -1)
    flushes = metrics_of(z).flushes
    assert set(flushes) <= {"size", "cancel"}
    assert flushes["cancel"] > 2 * 3000 / size, "sooner than S, most of the time"
    usual = more(grown(BASE, way, read=True, flush_size=size, cancel_ewma=0.25), 1000, 3000, way)
    assert metrics_of(usual).flushes == {"size": 15}


def test_the_rate_of_cancellation_must_fall_well_below_its_threshold_to_be_forgotten():
    z = grown(BASE, flush_size=4000, cancel_ewma=0.4)
    cancelling = []
    policy_of = z._payload.state[0].policy
    next_row = 10_000

    def deltas(z, count, share):
        nonlocal next_row
        for _ in range(count):
            delta = [-1] * round(10 * share) + [1] * round(10 - 10 * share)
            z = z + in_columns(range(next_row, next_row + 10), delta)
            next_row += 10
            cancelling.append(policy_of.cancelling)
        return z

    z = deltas(z, 300, 0.6)
    assert cancelling[-1]
    z = deltas(z, 600, 0.3)
    assert cancelling[-1], "between the thresholds it stays as it is"
    z = deltas(z, 600, 0.0)
    assert not cancelling[-1]
    z = deltas(z, 600, 0.3)
    assert not cancelling[-1], "and from below too"
    assert sum(a != b for a, b in itertools.pairwise(cancelling)) == 2


# ---------------------------------------------------------------------- subscribers


def test_subscribers_quarter_s_and_closing_the_view_restores_it(clock):
    size = 400
    z = grown(BASE, flush_size=size)
    view = z.arranged_view()
    assert metrics_of(z).subscribers == 1
    z = more(z, 1000, size // SUBSCRIBER_DIVISOR - 1)
    assert metrics_of(z).flushes == {"arranged": 1}
    z = more(z, 2000, 1)
    assert metrics_of(z).flushes == {"arranged": 1, "size": 1}
    second = z.arranged_view()
    view.close()
    view.close()  # once is enough
    assert metrics_of(z).subscribers == 1
    z = more(z, 3000, size // SUBSCRIBER_DIVISOR)
    assert metrics_of(z).flushes == {"arranged": 1, "size": 2}, "one subscriber is left"
    second.close()
    assert metrics_of(z).subscribers == 0
    z = more(z, 4000, size - 1)
    assert metrics_of(z).flushes == {"arranged": 1, "size": 2}
    z = more(z, 6000, 1)
    assert metrics_of(z).flushes == {"arranged": 1, "size": 3}


def test_subscribers_quarter_t_and_closing_the_view_restores_it(clock):
    z = grown(BASE, flush_time_ms=20)
    with z.arranged_view():
        z = more(z, 100, CHANGES_PER_CHECK)
        clock.seconds += 0.004
        z = more(z, 200, CHANGES_PER_CHECK)
        assert metrics_of(z).flushes == {"arranged": 1}
        clock.seconds += 0.002
        z = more(z, 300, CHANGES_PER_CHECK)
        assert metrics_of(z).flushes == {"arranged": 1, "time": 1}
    z = more(z, 400, CHANGES_PER_CHECK)
    clock.seconds += 0.018
    z = more(z, 500, CHANGES_PER_CHECK)
    assert metrics_of(z).flushes == {"arranged": 1, "time": 1}
    clock.seconds += 0.003
    z = more(z, 600, CHANGES_PER_CHECK)
    assert metrics_of(z).flushes == {"arranged": 1, "time": 2}


def test_a_view_of_a_small_z_set_counts_when_its_successors_have_grown():
    z = ZSet.from_rows(rows(1, 2), SCHEMA, config=quiet(flush_size=400))
    with z.arranged_view() as view:
        later = more(z, 100, 400 // SUBSCRIBER_DIVISOR)
        assert sum(metrics_of(later).flushes.values()) == 1
        assert len(view) == 2
    assert metrics_of(later).subscribers == 0


def test_a_view_keeps_showing_what_it_was_opened_on():
    z = traced(500)
    view = z.arranged_view()
    more(z, 1000, 500, weight=3)
    z - z
    assert dict(view) == {row(k): 1 for k in range(500)}
    view.close()
    assert dict(view) == {row(k): 1 for k in range(500)}


# ---------------------------------------------------------------------- hot rows


def test_rows_that_change_often_stay_in_the_memtable_at_a_flush():
    z = grown(90, flush_size=100)
    for _ in range(HOT_TOUCHES):
        z = z + in_columns([3, 4, 5])
    assert metrics_of(z).flushes == {}
    z = z + in_columns(range(90, 100))
    assert metrics_of(z).flushes == {"size": 1}
    assert memtable_rows(z) == 3
    assert metrics_of(z).kept_hot == 3
    assert metrics_of(z).flushed_rows == 97
    assert spine_of(z).rows == 97
    weights = {row(k): 1 + HOT_TOUCHES if k in (3, 4, 5) else 1 for k in range(100)}
    without = z + in_columns([3, 4, 5], [-1 - HOT_TOUCHES] * 3)
    assert memtable_rows(without) == 0
    assert contents(without) == {r: w for r, w in weights.items() if w == 1}
    assert contents(z) == weights


def test_rows_that_were_hot_and_change_no_more_are_flushed_the_next_time():
    z = grown(90, flush_size=100)
    for _ in range(HOT_TOUCHES):
        z = z + in_columns([3, 4, 5])
    z = more(z, 90, 10)
    assert memtable_rows(z) == 3
    z = more(z, 100, 97)
    assert memtable_rows(z) == 0
    assert metrics_of(z).kept_hot == 3
    assert metrics_of(z).flushes == {"size": 2}
    assert z.count == 197


# ---------------------------------------------------------------------- falling back


def fallen_back(**knobs):
    """A lineage whose clock stands still: flushing seems to take all of its time."""
    z = grown(BASE, flush_size=50, **knobs)
    return more(z, 1000, 50 * MIN_FALLBACK_FLUSHES)


def test_flushing_that_takes_much_time_and_is_of_no_use_stops_with_a_logged_reason(impatient, clock, caplog):
    with caplog.at_level(logging.WARNING, "dbspark.zset"):
        z = fallen_back()
    assert metrics_of(z).fallbacks == 1
    assert metrics_of(z).flushes == {"size": MIN_FALLBACK_FLUSHES}
    (record,) = caplog.records
    assert "falling back to the hash path" in record.getMessage()
    assert "% of the time" in record.getMessage()
    assert metrics_of(z).name in record.getMessage()
    z = more(z, 5000, 1000)
    assert metrics_of(z).flushes == {"size": MIN_FALLBACK_FLUSHES}, "it does not flush any more"
    assert memtable_rows(z) >= 1000
    assert z.count == BASE + 50 * MIN_FALLBACK_FLUSHES + 1000


def test_the_arranged_form_being_asked_for_ends_the_fallback(impatient, clock, caplog):
    z = more(fallen_back(), 5000, 500)
    with caplog.at_level(logging.WARNING, "dbspark.zset"):
        z.arranged_view().close()
    assert "leaving the hash path" in caplog.text
    assert memtable_rows(z) == 0
    assert metrics_of(z).flushes == {"size": MIN_FALLBACK_FLUSHES, "arranged": 1}
    z = more(z, 9000, 50)
    assert metrics_of(z).flushes == {"size": MIN_FALLBACK_FLUSHES + 1, "arranged": 1}
    assert z.count == BASE + 50 * MIN_FALLBACK_FLUSHES + 550


def test_fallen_back_memory_is_bounded_all_the_same(impatient, clock):
    budget = 20_000
    z = fallen_back(flush_bytes=budget)
    assert metrics_of(z).fallbacks == 1
    before = dict(metrics_of(z).flushes)
    largest = 0
    for k in range(600):
        z = z + ZSet.from_arrow({"k": [9000 + k], "s": ["y" * 1000]}, schema=SCHEMA, config=quiet())
        largest = max(largest, memtable_rows(z))
    flushes = metrics_of(z).flushes
    assert flushes["bytes"] - before.get("bytes", 0) >= 1
    assert flushes["size"] == before["size"]
    assert (
        FALLBACK_BYTES_FACTOR * budget / 2000
        <= largest
        <= FALLBACK_BYTES_FACTOR * budget / 1000 + 10 * CHANGES_PER_CHECK
    )


def test_an_arranged_form_that_is_read_is_worth_the_flushes(impatient, clock, caplog):
    z = grown(BASE, flush_size=50)
    with caplog.at_level(logging.WARNING, "dbspark.zset"):
        for i in range(4 * MIN_FALLBACK_FLUSHES):
            z = more(z, 1000 * (i + 1), 50)
            if i % 2:
                z.arranged_view().close()
    assert metrics_of(z).fallbacks == 0
    assert caplog.records == []


def test_flushes_that_cost_little_go_on(impatient, clock, caplog):
    z = grown(BASE, flush_size=50)
    with caplog.at_level(logging.WARNING, "dbspark.zset"):
        for i in range(4 * MIN_FALLBACK_FLUSHES):
            clock.seconds += 60
            z = more(z, 1000 * (i + 1), 50)
    assert metrics_of(z).fallbacks == 0
    assert caplog.records == []
    assert sum(metrics_of(z).flushes.values()) >= 4 * MIN_FALLBACK_FLUSHES


# ---------------------------------------------------------------------- compaction


@pytest.mark.parametrize("fanout", [2, 4, 8])
@pytest.mark.parametrize("budget", [0, 2])
def test_the_number_of_batches_is_bounded_by_the_fan_out(clock, fanout, budget):
    z = grown(BASE, flush_size=50, level_fanout=fanout, compact_budget_ms=budget)
    for i in range(200):
        clock.seconds += 60
        z = z.add_many(rows(*range(1000 + 50 * i, 1050 + 50 * i)))
        spine = spine_of(z)
        if spine is not None:
            levels = 1
            while fanout**levels <= spine.rows:
                levels += 1
            assert len(spine.batches) <= fanout * levels
    assert spine.config.fanout == fanout
    assert metrics_of(z).batches == len(spine.batches)
    assert metrics_of(z).backlog_rows == spine.backlog()
    assert z.count == BASE + 200 * 50


def test_every_flush_spends_the_budget_on_merging_and_no_more(monkeypatch, clock):
    budgets = []
    work = Spine.work

    def noted(self, budget_ms=None):
        budgets.append(budget_ms)
        return work(self, budget_ms)

    z = grown(300, flush_size=50, compact_budget_ms=1.25)  # more than are compacted at once
    before = sum(metrics_of(z).flushes.values())
    monkeypatch.setattr(Spine, "work", noted)
    for i in range(10):
        clock.seconds += 60
        z = more(z, 1000 + 50 * i, 50)
    assert len(budgets) == sum(metrics_of(z).flushes.values()) - before
    assert len(budgets) >= 9
    assert set(budgets) == {1.25}


# ---------------------------------------------------------------------- logging


def logged(caplog, level, clock):
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "dbspark.zset"):
        clock.seconds += 60
        z = grown(60, flush_size=50, logging=level)
        clock.seconds += 60
        z = more(z, 100, 100)
    return z, caplog.records


def test_logging_off_says_nothing(caplog, clock):
    assert logged(caplog, "off", clock)[1] == []


def test_logging_of_a_summary_names_flushes_and_changes_of_form(caplog, clock):
    z, records = logged(caplog, "summary", clock)
    texts = [record.getMessage() for record in records]
    assert {record.levelno for record in records} == {logging.INFO}
    assert all(metrics_of(z).name in text for text in texts)
    assert sum("becomes" in text for text in texts) == 2
    assert sum("flush" in text for text in texts) == sum(metrics_of(z).flushes.values())


def test_detailed_logging_says_more(caplog, clock):
    z, records = logged(caplog, "detailed", clock)
    assert any(record.levelno == logging.DEBUG for record in records)
    flushes = [r.getMessage() for r in records if "flushed" in r.getMessage()]
    assert len(flushes) == sum(metrics_of(z).flushes.values())
    assert all("(size)" in text for text in flushes)


# ---------------------------------------------------------------------- knobs

VARIABLES = {
    "backend": ("DBSP_BACKEND", "FastZSet", "FastZSet"),
    "smallset_n": ("DBSP_ZSET_SMALLSET_N", "7", 7),
    "flush_size": ("DBSP_ZSET_FLUSH_SIZE", "1000", 1000),
    "flush_bytes": ("DBSP_ZSET_FLUSH_BYTES", "4096", 4096),
    "flush_time_ms": ("DBSP_ZSET_FLUSH_TIME_MS", "2.5", 2.5),
    "level_fanout": ("DBSP_ZSET_LEVEL_FANOUT", "8", 8),
    "compact_budget_ms": ("DBSP_ZSET_COMPACT_BUDGET_MS", "0.5", 0.5),
    "cancel_ewma": ("DBSP_ZSET_CANCEL_EWMA", "0.75", 0.75),
    "logging": ("DBSP_ZSET_LOGGING", "detailed", "detailed"),
}
BAD = [
    ("smallset_n", "-1"), ("smallset_n", "many"), ("smallset_n", "1.5"),
    ("flush_size", "0"), ("flush_size", "1e3"),
    ("flush_bytes", "0"), ("flush_bytes", "8MiB"),
    ("flush_time_ms", "-1"), ("flush_time_ms", "nan"), ("flush_time_ms", "soon"),
    ("level_fanout", "1"), ("level_fanout", "x"),
    ("compact_budget_ms", "-0.1"), ("compact_budget_ms", "nan"), ("compact_budget_ms", """ "" """.strip()),
    ("cancel_ewma", "1.1"), ("cancel_ewma", "-0.1"), ("cancel_ewma", "nan"), ("cancel_ewma", "25%"),
    ("logging", "loud"), ("backend", "hashmap"), ("backend", "Trace"),
]  # fmt: skip


@pytest.fixture
def restored(monkeypatch):
    """The configuration of the process is as it was after the test."""
    monkeypatch.setattr(config, "_current", current())


def test_the_defaults_are_those_of_the_design():
    defaults = ZSetConfig()
    assert defaults == ZSetConfig.from_env({})
    assert (defaults.backend, defaults.smallset_n, defaults.flush_size) == ("Adaptive", 512, 65536)
    assert (defaults.flush_bytes, defaults.flush_time_ms, defaults.level_fanout) == (8 << 20, 20, 4)
    assert (defaults.compact_budget_ms, defaults.cancel_ewma, defaults.logging) == (2, 0.25, "off")


@pytest.mark.parametrize("knob", VARIABLES)
def test_every_knob_is_read_from_its_variable(knob):
    variable, text, value = VARIABLES[knob]
    assert ZSetConfig.from_env({variable: f" {text} "}) == ZSetConfig(**{knob: value})
    assert getattr(ZSetConfig.from_env({variable: text}), knob) == value
    assert ZSetConfig.from_env({variable: " "}) == ZSetConfig()


@pytest.mark.parametrize(("knob", "text"), BAD)
def test_a_bad_value_in_the_environment_is_refused_by_the_name_of_its_variable(knob, text):
    with pytest.raises(ConfigError, match=VARIABLES[knob][0]) as error:
        ZSetConfig.from_env({VARIABLES[knob][0]: text})
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("backend", "Trace"), ("backend", None), ("smallset_n", -1), ("smallset_n", 1.5), ("smallset_n", "4"),
        ("flush_size", 0), ("flush_size", None), ("flush_bytes", 0), ("flush_bytes", 1.5), ("flush_time_ms", -1),
        ("flush_time_ms", float("nan")), ("flush_time_ms", "20"), ("level_fanout", 1), ("level_fanout", 2.5),
        ("compact_budget_ms", -1), ("compact_budget_ms", None), ("cancel_ewma", 2), ("cancel_ewma", "0.5"),
        ("logging", "loud"), ("logging", True),
    ],
)  # fmt: skip
def test_a_bad_value_in_code_is_refused_by_name_and_changes_nothing(knob, value, restored):
    before = current()
    for change in (lambda: ZSetConfig(**{knob: value}), lambda: configure(**{knob: value})):
        with pytest.raises(ConfigError, match=VARIABLES[knob][0]):
            change()
    with pytest.raises(ConfigError, match=VARIABLES[knob][0]), configured(**{knob: value}):
        pass
    assert current() is before


def test_an_unknown_backend_is_refused_listing_those_there_are():
    with pytest.raises(UnknownBackendError, match=r"'Trace'.*HashMap, FastZSet, Batch, Adaptive"):
        ZSetConfig(backend="Trace")


def test_an_unknown_knob_is_refused_listing_those_there_are(restored):
    before = current()
    with pytest.raises(ConfigError, match=r"flush_rows.*flush_size"):
        configure(flush_rows=5)
    with pytest.raises(ConfigError, match=r"flush_rows.*flush_size"), configured(flush_rows=5):
        pass
    assert current() is before


@pytest.mark.usefixtures("each_backend")
def test_configure_is_for_z_sets_made_from_now_on(restored):
    earlier = ZSet.empty(SCHEMA)
    changed = configure(backend="Batch", smallset_n=3)
    assert changed == current()
    later = ZSet.empty(SCHEMA)
    assert (later.config.backend, later.config.smallset_n) == ("Batch", 3)
    assert earlier.config != later.config
    assert configure(smallset_n=5).backend == "Batch", "the other knobs stay"


@pytest.mark.parametrize("backend", BACKENDS)
def test_configured_holds_for_a_block_and_ends_with_it_even_by_an_error(backend):
    before = current()
    with configured(backend=backend, flush_size=77) as inside:
        assert current() == inside
        assert (inside.backend, inside.flush_size) == (backend, 77)
        with configured(smallset_n=1):
            assert (current().backend, current().smallset_n) == (backend, 1)
        assert current() is inside
        assert ZSet.empty(SCHEMA).config is inside
    assert current() is before
    with pytest.raises(KeyError), configured(backend=backend):
        raise KeyError
    assert current() is before


def test_what_is_made_from_a_z_set_keeps_its_configuration():
    given = quiet(smallset_n=3, flush_size=99)
    z = ZSet.from_rows(rows(1, 2, 3), SCHEMA, config=given)
    other = ZSet.from_rows(rows(7), SCHEMA, config=ZSetConfig(backend="Batch"))
    large = ZSet.from_rows(rows(*range(100)), SCHEMA, config=ZSetConfig(backend="Adaptive"))
    sums = [z + other, z + large, z - large, z - other, z.union_many([other])]
    changed = [z.add(row(9)), z.add_many(rows(4)), -z, z * 3, z * 0, z.filter(lambda r: r[0] > 1)]
    for made in [*sums, *changed, z.map_keys(lambda r: r), z.freeze(), z.group_by("k").to_zset()]:
        assert made.config == given
    assert (other + z).config.backend == "Batch"
