"""Faults at every call to the file system: a prefix of the ticks is there, and all that returned.

Every call that a commit makes is made to fail in turn, in every way. After each the location is opened again, holds one
of the ticks, at least the last one whose commit returned, and takes further commits.
"""

import contextlib
import os

import pytest

from dbspark.errors import StoreError
from dbspark.storage import Keep, Store, writing
from dbspark.storage import store as store_module
from dbspark.trace import Spine
from tests.storage.model import BY_KEY, SMALL, Crash, FaultyFiles, contents, numbered, small


def change(tick):
    """What a tick adds: numbers, and from the fifth tick on less than it takes away."""
    return [numbered(tick * 100, 9), numbered((tick - 4) * 100, 9, -1)] if tick > 4 else [numbered(tick * 100, 9)]


def expected(tick):
    spine = Spine(BY_KEY)
    for i in range(1, tick + 1):
        spine = spine.insert_all(change(i))
    return contents(spine)


def advance(store, states, tick):
    """One more tick on all traces, committed."""
    states = {node: tuple(s.insert_all(change(tick)) for s in spines) for node, spines in states.items()}
    store.commit(tick, states, {"program": tick // 4}, {"tick": tick})
    return states


def fresh():
    return {node: (Spine(BY_KEY, config=SMALL),) for node in "ab"}


def check(where, at_least, at_most):
    """The location holds one of the ticks, whole, and goes on from there."""
    with Store.open(where, keep=Keep(2)) as store:
        loaded = store.load(verify=True)
        assert at_least <= loaded.tick <= at_most
        if loaded.tick:
            assert loaded.offsets == {"tick": loaded.tick}
            assert loaded.program == {"program": loaded.tick // 4}
            assert {node: contents(s) for node, (s,) in loaded.states.items()} == {
                node: expected(loaded.tick) for node in "ab"
            }
        states = small(loaded.states) if loaded.tick else fresh()
        for tick in (loaded.tick + 1, loaded.tick + 2):
            states = advance(store, states, tick)
        assert contents(store.load().states["a"][0]) == expected(loaded.tick + 2)
        named = store._manifest_now.files().union(*(store._retirement._needs[v] for v in store._retirement._needs))
        store.retire()
        left = {n for n in store.files.names() if not n.startswith("lock")}
        assert left <= named, "nothing is left of what failed"
    return loaded.tick


@pytest.fixture(params=["small", "large", "copied"])
def form(request, monkeypatch):
    """Batches in the file of the tick, or in files of their own, or copied from tick to tick.

    Nothing is really fsynced: what that means is in the model, and hundreds of runs would wait for the disk.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)
    if request.param == "large":
        monkeypatch.setattr(writing, "MAX_INLINE_BATCH_BYTES", 0)
    if request.param == "copied":
        monkeypatch.setattr(writing, "MAX_TICK_FILES", 1)
    monkeypatch.setattr(store_module, "RETIRE_EVERY", 2)
    return request.param


def run(where, armed_at, fault, kind, seed=0, ticks=8):
    """Commit ticks; the `fault`-th call during that of tick `armed_at` fails. Returns (last returned, last tried)."""
    files = FaultyFiles(where, seed)
    store = Store.open(where, keep=Keep(2), files=files)
    states, returned, tick = fresh(), 0, 0
    try:
        for tick in range(1, ticks + 1):
            if tick == armed_at:
                files.arm(fault, kind)
            states = advance(store, states, tick)
            if tick == armed_at and files.calls <= fault:
                return None
            returned = tick
    except Crash:  # as if killed: its lock stays
        (where / "lock.json").unlink()
        return returned, tick
    except StoreError:
        with pytest.raises(StoreError, match="takes no more commits"):
            store.commit(tick, states)
        store.close()
        return returned, tick
    store.close()
    return returned, tick


@pytest.mark.parametrize("kind", FaultyFiles.KINDS)
def test_a_commit_fails_at_any_call(form, kind, tmp_path):
    outcomes = set()
    for armed_at in (1, 6):
        for fault in range(1000):
            where = tmp_path / f"{armed_at}-{fault}"
            where.mkdir()
            ended = run(where, armed_at, fault, kind, seed=fault)
            if ended is None:
                break
            outcomes.add(check(where, *ended) - armed_at)
        assert 4 < fault < 200, "every call has failed once"
    assert outcomes >= ({-1, 0} if kind != "power" else {-1}), (
        "before it is in place there is no tick, afterwards there is"
    )


def test_opening_fails_at_any_call(tmp_path):
    """An opening that fails changes nothing."""
    with Store.open(tmp_path, keep=Keep(2)) as store:
        states = fresh()
        for tick in range(1, 6):
            states = advance(store, states, tick)
    for fault in range(1000):
        files = FaultyFiles(tmp_path)
        files.arm(fault, "before")
        with contextlib.suppress(StoreError, OSError):
            Store.open(tmp_path, keep=Keep(2), files=files).close()
        (tmp_path / "lock.json").unlink(missing_ok=True)  # where releasing it failed too
        done = files.calls <= fault
        with Store.open(tmp_path, keep=Keep(2)) as store:
            assert contents(store.load(verify=True).states["a"][0]) == expected(5)
        if done:
            break
    assert fault > 5
