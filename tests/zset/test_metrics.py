"""The counters of lineages: that they count what happened, and that the registry knows the living and only them."""

import gc
import time

import pytest

from dbspark.zset import BACKENDS, ZSet, ZSetConfig, metrics, policy
from dbspark.zset.adaptive import MIN_SPINE_ROWS
from tests.zset.model import metrics_of

SCHEMA = "k BIGINT, s STRING"


def quiet(**knobs):
    given = {
        "backend": "Adaptive", "smallset_n": 8, "flush_size": 1 << 40, "flush_bytes": 1 << 60, "flush_time_ms": 1e12,
        "cancel_ewma": 1.0,
    }  # fmt: skip
    return ZSetConfig(**{**given, **knobs})


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Nothing falls back to the hash path, however slow the machine is."""
    monkeypatch.setattr(policy, "MIN_FALLBACK_FLUSHES", 1 << 30)


def rows(first, count):
    return [(k, "x") for k in range(first, first + count)]


def singly(z, first, count, weight=1):
    for row in rows(first, count):
        z = z.add(row, weight)
    return z


def once_read(**knobs):
    """An empty Z-set whose arranged form has been read once, so that single rows count towards S."""
    z = ZSet.empty(SCHEMA, quiet(**knobs))
    z.arranged_view().close()
    return z


def grown(**knobs):
    """A Z-set of 50 rows whose lineage has metrics, and everything so far counted."""
    z = singly(ZSet.empty(SCHEMA, quiet(**knobs)), 0, 50)
    z.arranged_view().close()
    return z


def known(name):
    return [one for one in metrics.dump() if one["name"] == name]


# ---------------------------------------------------------------------- the registry


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_z_sets_register_nothing(backend):
    gc.collect()
    before = {one["name"] for one in metrics.dump()}
    config = ZSetConfig(backend=backend)
    kept = [ZSet.from_rows(rows(i, 5), SCHEMA, config=config) for i in range(20)]
    total = ZSet.empty(SCHEMA, config)
    for z in kept:
        total = (total + z).add((1, "y")).filter(lambda row: row[0] > 1).map_keys(lambda row: row) * 2
    assert total.count > 0
    assert {one["name"] for one in metrics.dump()} <= before


def test_the_dump_lists_lineages_that_live_oldest_first_and_forgets_the_dead():
    first, second = grown(), grown()
    names = [metrics_of(first).name, metrics_of(second).name]
    assert [one["name"] for one in metrics.dump() if one["name"] in names] == names
    successor = first.add((999, "x"))
    del first
    gc.collect()
    assert len(known(names[0])) == 1, "its successor lives"
    del successor
    gc.collect()
    assert known(names[0]) == []
    assert len(known(names[1])) == 1


@pytest.mark.usefixtures("each_backend")
def test_a_lineage_is_the_chain_of_values_that_grow_out_of_one_another():
    z = grown()
    for successor in (z.add((999, "x")), z.add_many(rows(100, 5)), z + ZSet.from_rows(rows(200, 5), SCHEMA)):
        assert metrics_of(successor) is metrics_of(z)
    assert metrics_of(grown()) is not metrics_of(z)


def test_the_dump_is_made_of_plain_values():
    z = grown()
    (one,) = known(metrics_of(z).name)
    for key, value in one.items():
        assert type(value) in (str, int, float, dict, type(None)), key
    one["flushes"]["mine"] = 1
    assert "mine" not in metrics_of(z).flushes


# ---------------------------------------------------------------------- what is counted


def test_changes_and_rows_are_counted_once_however_they_come():
    z = grown()
    before = metrics_of(z).snapshot()
    z = singly(z, 1000, 100)
    for i in range(30):
        z = z.add_many(rows(2000 + 10 * i, 10))
    z = z.add_many(rows(10_000, MIN_SPINE_ROWS))
    z = z + ZSet.from_rows(rows(20_000, 7), SCHEMA, config=z.config)
    z.arranged_view().close()
    after = metrics_of(z).snapshot()
    assert after["rows_in"] - before["rows_in"] == 100 + 300 + MIN_SPINE_ROWS + 7
    assert after["changes"] - before["changes"] == 100 + 30 + 1 + 1


def test_changes_and_rows_are_counted_while_there_is_only_a_memtable():
    small = 9  # rows until it grows; they may count or not
    z = singly(ZSet.empty(SCHEMA, quiet()), 0, small)
    assert z.form == "small"
    z = singly(z, 100, 500)
    for i in range(40):
        z = z.add_many(rows(2000 + 10 * i, 10))
    z.arranged_view().close()
    assert metrics_of(z).rows_in - 900 in (0, small)
    assert metrics_of(z).changes - 540 in (0, small)


def test_flushes_are_counted_by_trigger_and_by_rows():
    z = singly(once_read(flush_size=100), 0, 350)
    z.arranged_view().close()
    one = metrics_of(z).snapshot()
    assert one["flushes"] == {"size": 3, "arranged": 1}
    assert metrics_of(z).flushed_rows == 350
    assert one["average_flush_rows"] == 350 / 4
    assert one["flush_seconds"] > 0
    assert one["seconds_since_flush"] >= 0
    assert one["rows_per_second"] > 0
    assert one["bytes_per_second"] > 0
    assert one["transitions"] == {"small>memtable": 1, "memtable>trace": 1}


def test_before_the_first_flush_there_is_nothing_to_average():
    z = singly(ZSet.empty(SCHEMA, quiet()), 0, 50)
    one = metrics_of(z).snapshot()
    assert one["flushes"] == {}
    assert one["average_flush_rows"] == 0
    assert one["seconds_since_flush"] is None


def test_the_time_since_the_last_flush_is_measured(monkeypatch):
    z = grown()
    now = time.monotonic() + 12.5
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    assert 12 <= metrics_of(z).snapshot()["seconds_since_flush"] <= 60


def test_batches_backlog_and_merges_are_those_of_the_spine():
    z = singly(once_read(flush_size=64, level_fanout=2), 0, 5000)
    spine = z._payload.state[0].spine
    one = metrics_of(z).snapshot()
    assert one["batches"] == len(spine.batches)
    assert one["backlog_rows"] == spine.backlog()
    assert one["merges"] == spine.stats.merges > 0
    assert one["merge_rows_in"] == spine.stats.rows_in
    assert one["merge_rows_out"] == spine.stats.rows_out <= spine.stats.rows_in
    assert one["merge_seconds"] > 0
    assert one["reduction"] == 0
    z = z.add_many(rows(100_000, MIN_SPINE_ROWS))
    spine = z._payload.state[0].spine
    assert metrics_of(z).batches == len(spine.batches), "a delta that skips the memtable counts too"


def test_the_reduction_of_merges_is_what_vanished():
    z = singly(once_read(flush_size=64, level_fanout=2), 0, 640)
    z = singly(z, 0, 576, -1)
    assert metrics_of(z).snapshot()["reduction"] > 0.1


def test_subscribers_and_arranged_reads_are_counted():
    z = grown()
    reads = metrics_of(z).arranged_reads
    with z.arranged_view(), z.arranged_view() as second:
        assert metrics_of(z).subscribers == 2
        assert metrics_of(z).arranged_reads == reads + 2
        second.close()
        assert metrics_of(z).subscribers == 1
    assert metrics_of(z).subscribers == 0


def test_reading_the_arranged_form_of_a_small_z_set_counts_too():
    z = ZSet.from_rows(rows(0, 3), SCHEMA, config=quiet()).add((7, "x"))
    z.arranged_view().close()
    z.arranged_view().close()
    assert z.form == "small"
    assert metrics_of(z).arranged_reads == 2


def test_an_arranged_form_that_was_computed_before_is_a_cache_hit():
    z = grown()
    hits = metrics_of(z).cache_hits
    for _ in range(3):
        z.arranged_view().close()
    assert metrics_of(z).cache_hits == hits + 3
    changed = z.add((999, "x"))
    changed.arranged_view().close()
    assert metrics_of(z).cache_hits == hits + 3, "nothing was cached for the changed value"


def test_the_rate_of_cancellation_is_an_average_of_the_newest_changes():
    z = grown()
    assert metrics_of(z).cancel_rate == 0
    for i in range(400):
        z = z.add_many(rows(1000 + 4 * i, 4), [-1, 1, 1, -1])
    assert metrics_of(z).cancel_rate == pytest.approx(0.5, abs=0.02)
    for i in range(600):
        z = z.add_many(rows(10_000 + 4 * i, 4))
    assert metrics_of(z).cancel_rate < 0.02
