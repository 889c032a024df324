"""Retirement: what is out of the policy goes, what a kept tick or a reader needs stays, also after crashes."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.errors import ConfigError, StoreError
from dbspark.storage import Keep, Store, writing
from dbspark.storage import store as store_module
from dbspark.trace import Spine
from tests.storage.model import BY_KEY, SMALL, contents, numbered


def ticking(store, begin, end, spine=None, history=None):
    spine = Spine(BY_KEY, config=SMALL) if spine is None else spine
    for tick in range(begin, end):
        spine = spine.insert(numbered(tick * 10, 7)).insert(
            numbered((tick - 5) * 10, 7, -1) if tick > 5 else numbered(0, 0)
        )
        store.commit(tick, {"n": (spine,)})
        if history is not None:
            history[tick] = contents(spine)
    return spine


def files_of(where):
    return {p.name for p in where.iterdir() if p.name.startswith(("tick-", "batch-"))}


@pytest.fixture(params=[0, 4 << 20])
def inline(request, monkeypatch):
    monkeypatch.setattr(writing, "MAX_INLINE_BATCH_BYTES", request.param)
    monkeypatch.setattr(store_module, "RETIRE_EVERY", 1)


@pytest.mark.usefixtures("inline")
def test_the_last_ticks_are_kept_and_nothing_else(tmp_path):
    history = {}
    with Store.open(tmp_path, keep=Keep(3)) as store:
        ticking(store, 1, 60, history=history)
        assert store.ticks() == [57, 58, 59]
        named = [store._manifest((tick, 0)).files() for tick in store.ticks()]
        assert files_of(tmp_path) == set.union(*named), "what merges have replaced is gone"
        for tick in store.ticks():
            with Store.open(tmp_path, write=False, tick=tick) as reader:
                assert contents(reader.load(verify=True).states["n"][0]) == history[tick]
        with pytest.raises(StoreError, match="keeps ticks 57 to 59"):
            Store.open(tmp_path, write=False, tick=50)


@pytest.mark.usefixtures("inline")
def test_a_reader_keeps_what_it_reads(tmp_path):
    history = {}
    store = Store.open(tmp_path, keep=Keep(1))
    spine = ticking(store, 1, 10, history=history)
    reader = Store.open(tmp_path, write=False)
    with store.pin() as pinned_versions:
        spine = ticking(store, 10, 40, spine, history)
        assert (reader.tick, pinned_versions) == (9, 9)
        assert contents(reader.load(verify=True).states["n"][0]) == history[9]
        reader.close()
        ticking(store, 40, 42, spine)
        with Store.open(tmp_path, write=False, tick=9) as again:
            assert contents(again.load(verify=True).states["n"][0]) == history[9], "it is pinned in this process too"
    store.retire()
    with pytest.raises(StoreError, match="no tick 9"):
        Store.open(tmp_path, write=False, tick=9)
    store.close()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("pin-")]


def test_what_was_loaded_outlives_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "RETIRE_EVERY", 1)
    history = {}
    with Store.open(tmp_path, keep=Keep(1)) as store:
        spine = ticking(store, 1, 10, history=history)
        with Store.open(tmp_path, write=False) as reader:
            loaded = reader.load()
        ticking(store, 10, 60, spine)
    assert contents(loaded.states["n"][0]) == history[9]


def test_pins_of_the_dead_do_not_count(tmp_path):
    with Store.open(tmp_path, keep=Keep(1)) as store:
        store.commit(1, {})
        code = "import os, sys\nfrom dbspark.storage import Store\nStore.open(sys.argv[1], write=False)\nos._exit(0)"
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        assert [p for p in tmp_path.iterdir() if p.name.startswith("pin-")]
        store.commit(2, {})
        store.retire()
        assert not [p for p in tmp_path.iterdir() if p.name.startswith("pin-")]
        assert store.ticks() == [2]
        (tmp_path / "pin-x.json").write_text(json.dumps({"version": [2, 0], "owner": "nobody"}))
        store.retire()
        assert not (tmp_path / "pin-x.json").exists()


def test_what_a_crash_left_behind_goes_when_the_location_is_opened(tmp_path):
    with Store.open(tmp_path) as store:
        ticking(store, 1, 4)
    before = files_of(tmp_path)
    for name in ("tick-0000000000000004-0000.aside-abc", "batch-123.arrow", "lock.json.aside-1"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("somebody else's")
    Store.open(tmp_path, write=False).close()
    assert (tmp_path / "batch-123.arrow").exists(), "readers remove nothing"
    Store.open(tmp_path).close()
    assert files_of(tmp_path) == before
    assert {p.name for p in tmp_path.iterdir()} == before | {"lock.guard", "notes.txt"}


def test_nothing_is_removed_while_a_kept_tick_cannot_be_read(tmp_path):
    with Store.open(tmp_path, keep=Keep(4)) as store:
        spine = ticking(store, 1, 6)
    (tmp_path / "tick-0000000000000004-0000").write_bytes(b"damaged")
    with Store.open(tmp_path, keep=Keep(4)) as store:
        (tmp_path / "batch-1.arrow").write_bytes(b"perhaps needed by tick 4")
        assert store.retire() == []
        ticking(store, 6, 12, spine)
        assert "batch-1.arrow" in store.retire(), "tick 4 is out of the policy"


def test_the_oldest_tick_does_not_come_back(tmp_path):
    with Store.open(tmp_path, keep=Keep(2)) as store:
        ticking(store, 1, 20)
        store.retire()
    with Store.open(tmp_path, keep=Keep(100)) as store:
        assert store.ticks() == [18, 19]
        ticking(store, 20, 22, store.load().states["n"][0])
        assert store.ticks() == [18, 19, 20, 21]


def test_a_batch_whose_file_was_retired_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "RETIRE_EVERY", 1)
    spine = Spine(BY_KEY).insert(numbered(0, 9))
    with Store.open(tmp_path, keep=Keep(1)) as store:
        store.commit(1, {"n": (spine,)})
        store.commit(2, {})
        store.commit(3, {})
        store.commit(4, {"n": (spine,)})
        assert contents(store.load().states["n"][0]) == contents(spine)


@pytest.mark.parametrize("ticks", [0, -1])
def test_the_newest_tick_is_always_kept(ticks):
    with pytest.raises(ConfigError, match=r"keep\.ticks"):
        Keep(ticks)


@given(
    gaps=st.lists(st.floats(0, 50), min_size=1, max_size=12),
    ticks=st.integers(1, 5),
    seconds=st.none() | st.floats(0, 99),
)
def test_what_is_kept_by_number_and_by_age(gaps, ticks, seconds):
    times, now = {}, 0.0
    for tick, gap in enumerate(gaps):
        now += gap
        times[tick, 0] = now
    now += 5
    kept = Keep(ticks, seconds).kept(times, now)
    for tick in range(len(gaps)):
        newer = len(gaps) - 1 - tick
        ended = times.get((tick + 1, 0), now)
        assert ((tick, 0) in kept) == (newer < ticks or (seconds is not None and now - ended <= seconds))
