"""`Version` over a toy store: every version stays what it was, whoever advances, branches or reads beside it. At the
end the same of whole Z-sets."""

import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.zset import BACKENDS, ZSet, ZSetConfig
from dbspark.zset.versions import Version, VersionNode
from tests.zset.model import TINY, plus

WAIT = 30.0
"""Seconds until a thread that hangs fails its test."""


class Refused(Exception):
    pass


class Counts:
    """A dict of counts. It changes one key at a time, and tells `watch` (which copies inherit) in the middle of things:
    "apply" and "undo" after the first key, "copy" before a copy."""

    def __init__(self, rows=None, watch=None):
        self.lock = threading.RLock()
        self.head: VersionNode | None = None
        self.rows = dict(rows or {})
        self.copies = 0
        self.watch = watch

    def apply(self, delta, factor):
        if any(weight is None for weight in delta.values()):
            raise Refused
        for i, (key, weight) in enumerate(delta.items()):
            total = self.rows.get(key, 0) + weight * factor
            if total:
                self.rows[key] = total
            else:
                self.rows.pop(key, None)
            if i == 0 and self.watch is not None:
                self.watch("apply" if factor > 0 else "undo")

    def copy(self):
        self.copies += 1
        if self.watch is not None:
            self.watch("copy")
        return Counts(self.rows, self.watch)


def contents(version):
    return version.read(lambda store: dict(store.rows))


def test_a_delta_changes_the_store_of_the_newest_version_in_place():
    store = Counts()
    version = Version(store)
    for i in range(100):
        version = version.with_delta({i: 1})
    assert contents(version) == dict.fromkeys(range(100), 1)
    assert version.store is store
    assert store.copies == 0


def test_an_old_version_reads_as_it_was_and_is_copied_once():
    store = Counts()
    old = Version(store).with_delta({"a": 2})
    new = old.with_delta({"a": -1, "b": 5}).with_delta({"b": -5, "c": 1})
    assert contents(old) == {"a": 2}
    assert contents(old) == {"a": 2}
    assert store.copies == 1
    assert contents(new) == {"a": 1, "c": 1}


def test_versions_in_the_middle_of_a_history_read_as_they_were():
    versions = [Version(Counts())]
    expected = [{}]
    for i in range(20):
        delta = {i % 3: 1, i % 5: -2}
        versions.append(versions[-1].with_delta(delta))
        expected.append(plus(expected[-1], delta))
    for i in (7, 0, 13, 7, 19, 20, 1):
        assert contents(versions[i]) == expected[i]


def test_branches_are_independent_of_each_other():
    base = Version(Counts()).with_delta({"a": 1})
    left = base.with_delta({"left": 1})
    right = base.with_delta({"right": 1})
    further = left.with_delta({"a": 1})
    assert contents(base) == {"a": 1}
    assert contents(left) == {"a": 1, "left": 1}
    assert contents(right) == {"a": 1, "right": 1}
    assert contents(further) == {"a": 2, "left": 1}


def test_an_apply_that_raises_leaves_every_version_as_it_was():
    old = Version(Counts()).with_delta({"a": 1})
    new = old.with_delta({"b": 1})
    for version in (new, old):
        with pytest.raises(Refused):
            version.with_delta({"c": None})
    assert contents(old) == {"a": 1}
    assert contents(new) == {"a": 1, "b": 1}
    assert contents(new.with_delta({"c": 1})) == {"a": 1, "b": 1, "c": 1}
    assert contents(old.with_delta({"d": 1})) == {"a": 1, "d": 1}
    assert contents(new) == {"a": 1, "b": 1}


def test_deltas_are_undone_newest_first():
    """A store may refuse a state that it never was in, as one of weights refuses an overflow."""

    class Stock(Counts):
        def apply(self, delta, factor):
            if any(self.rows.get(key, 0) + weight * factor < 0 for key, weight in delta.items()):
                raise Refused
            super().apply(delta, factor)

        def copy(self):
            return Stock(self.rows)

    empty = Version(Stock())
    full = empty.with_delta({"a": 5})
    sold = full.with_delta({"a": -5})
    refilled = sold.with_delta({"a": 2})
    assert [contents(v) for v in (empty, full, sold, refilled)] == [{}, {"a": 5}, {}, {"a": 2}]


def test_a_read_that_raises_leaves_the_version_usable():
    version = Version(Counts()).with_delta({"a": 1})
    with pytest.raises(ZeroDivisionError):
        version.read(lambda _: 1 / 0)
    assert contents(version) == {"a": 1}


def test_a_version_that_nobody_holds_is_forgotten():
    """Versions point forward only, so a long history costs nothing unless somebody keeps its beginning."""

    class Delta(dict):
        __slots__ = ("__weakref__",)

    version = Version(Counts())
    deltas = []
    for i in range(50):
        delta = Delta({i: 1})
        deltas.append(weakref.ref(delta))
        version = version.with_delta(delta)
    del delta
    gc.collect()
    assert sum(ref() is not None for ref in deltas) <= 1
    assert len(contents(version)) == 50


DELTAS = st.dictionaries(st.integers(0, 4), st.integers(-3, 3).filter(bool), max_size=3)


@given(st.lists(st.tuples(st.integers(0, 40), DELTAS, st.booleans()), max_size=40))
def test_any_tree_of_versions_reads_like_a_tree_of_dicts(steps):
    versions = [Version(Counts())]
    expected = [{}]
    for parent, delta, read in steps:
        at = parent % len(versions)
        versions.append(versions[at].with_delta(delta))
        expected.append(plus(expected[at], delta))
        if read:
            at = (parent * 7) % len(versions)
            assert contents(versions[at]) == expected[at]
    assert [contents(version) for version in versions] == expected


# ---------------------------------------------------------------------- threads


def test_readers_of_old_versions_are_exact_while_a_writer_advances():
    versions = [Version(Counts())]
    expected = [{}]
    for i in range(60):
        delta = {i % 7: 1, i % 4: -1, i: 3}
        versions.append(versions[-1].with_delta(delta))
        expected.append(plus(expected[-1], delta))
    known = len(versions)
    stop = threading.Event()
    errors = []

    def read(seed):
        at = seed
        while not stop.is_set():
            at = (at * 31 + 17) % known
            if contents(versions[at]) != expected[at]:
                errors.append(at)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for reader in readers:
        reader.start()
    newest, rows = versions[-1], expected[-1]
    for i in range(1500):
        delta = {i % 11: 1, "w": 1}
        newest = newest.with_delta(delta)
        rows = plus(rows, delta)
        if i % 50 == 0:
            assert contents(newest) == rows
    stop.set()
    for reader in readers:
        reader.join(WAIT)
    assert errors == []
    assert contents(newest) == rows
    assert [contents(v) for v in versions] == expected


def test_many_threads_branch_from_one_old_version():
    old = Version(Counts()).with_delta({"a": 1})
    old.with_delta({"b": 1})

    def branch(i):
        version = old
        for k in range(30):
            version = version.with_delta({(i, k): 1})
        return contents(version)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(branch, range(32)))
    for i, result in enumerate(results):
        assert result == {"a": 1, **{(i, k): 1 for k in range(30)}}
    assert contents(old) == {"a": 1}


class Gate:
    """Holds back a thread that comes by until it is opened."""

    def __init__(self):
        self.reached = threading.Event()
        self.opened = threading.Event()

    def stop(self):
        self.reached.set()
        assert self.opened.wait(WAIT)


def test_nobody_reads_an_old_version_while_it_is_half_advanced():
    """Advancing an old version gives it a store of its own; a reader must not see that store before the delta is in."""
    gate = Gate()
    store = Counts({"a": 1, "b": 1})
    old = Version(store)
    old.with_delta({"c": 1})
    store.watch = lambda event: gate.stop() if event == "apply" and not gate.reached.is_set() else None
    with ThreadPoolExecutor(2) as pool:
        try:
            branch = pool.submit(old.with_delta, {"a": 10, "b": 10})
            assert gate.reached.wait(WAIT)  # "a" is changed, "b" is not
            seen = pool.submit(contents, old)
            time.sleep(0.1)
        finally:
            gate.opened.set()
        assert seen.result(WAIT) == {"a": 1, "b": 1}
        assert contents(branch.result(WAIT)) == {"a": 11, "b": 11}
    assert contents(old) == {"a": 1, "b": 1}


def test_two_threads_that_branch_from_one_old_version_at_once_do_not_see_each_other():
    """The second waits while the first gives the version a new store. It must then not copy that store while the first
    one, which goes on, is in the middle of changing it."""
    copying, changing = Gate(), Gate()
    first = threading.local()
    store = Counts({"a": 1, "b": 1})
    old = Version(store)
    old.with_delta({"c": 1})

    def watch(event):
        if getattr(first, "is_me", False):
            if event == "copy":
                copying.stop()
            elif event == "apply" and getattr(first, "goes_on", False):
                changing.stop()
        elif event == "copy":
            changing.reached.wait(1)

    store.watch = watch

    def branch_and_go_on():
        first.is_me = True
        mine = old.with_delta({"d": 1})
        first.goes_on = True
        return mine.with_delta({"a": 100, "b": 100})

    with ThreadPoolExecutor(2) as pool:
        try:
            mine = pool.submit(branch_and_go_on)
            assert copying.reached.wait(WAIT)
            theirs = pool.submit(old.with_delta, {"e": 1})
            time.sleep(0.1)  # it waits for the store of the old version
            copying.opened.set()
            assert changing.reached.wait(WAIT)
            time.sleep(0.1)
        finally:
            copying.opened.set()
            changing.opened.set()
        assert contents(theirs.result(WAIT)) == {"a": 1, "b": 1, "e": 1}
        assert contents(mine.result(WAIT)) == {"a": 101, "b": 101, "d": 1}
    assert contents(old) == {"a": 1, "b": 1}


# ---------------------------------------------------------------------- the Z-sets over it


@pytest.fixture
def rapid_switches():
    """Threads take turns so often that they meet in the middle of everything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("knobs", [{}, TINY], ids=["usual knobs", "tiny knobs"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_old_z_sets_are_read_exactly_while_a_writer_goes_on(backend, knobs, rapid_switches):
    """Readers iterate, count, look up, arrange and branch from old values; the writer never notices, nor do they."""
    z = ZSet.empty("k BIGINT", ZSetConfig(backend=backend, **knobs))
    old = [(z, {})]

    def grown(z, rows, i):
        z = z.add((i % 17,)).add((i % 5,), -1) if i % 3 else z.add_many([(i % 17,), (i % 5,)], [1, -1])
        return z.add((i,), 2), plus(rows, {i % 17: 1}, {i % 5: -1}, {i: 2})

    for i in range(40):
        old.append(grown(*old[-1], i))
    stop = threading.Event()

    def read(seed):
        at, reads = seed, 0
        while not stop.is_set() or reads < 10:
            at, reads = (at * 31 + 17) % len(old), reads + 1
            value, rows = old[at]
            if reads % 3 == 0:
                value, rows = grown(value, rows, at + reads % 7)
            assert {k: w for (k,), w in value} == rows
            assert value.count == len(rows)
            assert value.weight((at % 17,)) == rows.get(at % 17, 0)
            with value.arranged_view() as view:
                assert {k: w for (k,), w in view} == rows
        return reads

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, seed) for seed in range(3)]
        try:
            newest, rows = old[-1]
            for i in range(40, 240):
                newest, rows = grown(newest, rows, i)
            written = {k: w for (k,), w in newest}
        finally:
            stop.set()
        assert all(reader.result(WAIT) >= 10 for reader in readers)
    assert written == rows
    for value, expected in old:
        assert {k: w for (k,), w in value} == expected
