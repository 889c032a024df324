"""Stores: what was committed is what is loaded, whatever the spines look like, and a tick writes little."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar import Batch, SortKey
from dbspark.errors import ConfigError, StoreError
from dbspark.storage import Group, Keep, Store, writing
from dbspark.storage import store as store_module
from dbspark.trace import Antichain, Spine, Trace, TraceAgent
from dbspark.trace.merge_state import MergeState
from tests.storage.model import BY_KEY, SMALL, batch_of, contents, everything, numbered, small
from tests.strategies import schemas, weighted_tables


def test_a_fresh_location_holds_nothing(tmp_path):
    with Store.open(tmp_path / "new" / "state") as store:
        assert store.tick is None
        loaded = store.load()
        assert (loaded.tick, loaded.states, loaded.program, loaded.offsets) == (0, {}, None, {})


def test_what_is_committed_is_there_when_it_is_opened_again(tmp_path):
    spine = Spine(BY_KEY).insert(numbered(0, 10))
    with Store.open(tmp_path) as store:
        assert store.commit(7, {"a": (spine, Spine(BY_KEY)), "b": ()}, {"sql": ["SELECT 1", None]}, {"q": 3}, {"s": 1})
        assert store.tick == 7
    for write in (False, True):
        with Store.open(tmp_path, write) as store:
            loaded = store.load(verify=True)
            assert (loaded.tick, loaded.program) == (7, {"sql": ["SELECT 1", None]})
            assert (loaded.offsets, loaded.positions) == ({"q": 3}, {"s": 1})
            assert everything(loaded.states) == {"a": [contents(spine), {}], "b": []}
            assert loaded.states["a"][1].sort_key is BY_KEY


@given(data=st.data())
@settings(max_examples=max(5, settings.default.max_examples // 2))
def test_batches_of_any_types_come_back(data, tmp_path_factory):
    schema = data.draw(schemas())
    key = data.draw(st.none() | st.lists(st.integers(0, schema.columns - 1), unique=True, max_size=schema.columns))
    sort_key = SortKey(schema, key)
    spine = Spine(sort_key, config=SMALL)
    for tick in range(data.draw(st.integers(1, 4))):
        table, weights = data.draw(weighted_tables(schema))
        batch = Batch.from_arrow(table, sort_key, np.sign(weights))
        if data.draw(st.booleans()):
            batch = batch.at_time((tick, 3))
        if data.draw(st.booleans()):
            batch = batch.slice(data.draw(st.integers(0, 3)))
        spine = spine.insert(batch)
    where = tmp_path_factory.mktemp("state")
    with Store.open(where) as store:
        store.commit(1, {"n": (spine,)})
    with Store.open(where, write=False) as store:
        (loaded,) = store.load().states["n"]
    assert loaded.sort_key is sort_key
    assert contents(loaded) == contents(spine)
    assert loaded.bound() >= 0
    assert loaded.consolidated().same(spine.consolidated())


@given(data=st.data())
def test_random_ticks_reopened_at_random_points(data, tmp_path_factory):
    """Spines that merge all the time, some batches in files of their own, some ticks in groups."""
    where = tmp_path_factory.mktemp("state")
    keep = Keep(data.draw(st.integers(1, 4)))
    states = {"a": (Spine(BY_KEY, config=SMALL), Spine(BY_KEY, config=SMALL)), "b": (Spine(BY_KEY, config=SMALL),)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "MAX_INLINE_BATCH_BYTES", data.draw(st.sampled_from([0, 2000, 1 << 20])))
        patch.setattr(writing, "MAX_UNUSED_BYTES", data.draw(st.sampled_from([0, 1 << 20])))
        patch.setattr(writing, "MAX_TICK_FILES", data.draw(st.sampled_from([1, 3, 64])))
        patch.setattr(store_module, "RETIRE_EVERY", data.draw(st.integers(1, 3)))
        store = Store.open(where, keep=keep)
        history = {}
        for tick in range(1, data.draw(st.integers(2, 12))):
            for node, spines in list(states.items()):
                entries = data.draw(st.lists(st.tuples(st.integers(0, 30), st.sampled_from([1, 1, -1])), max_size=12))
                batch = batch_of([((k, "x" * (k % 3)), w) for k, w in entries])
                states[node] = (spines[0].insert(batch), *spines[1:])
            store.commit(tick, states, {"n": tick // 3}, {"at": tick})
            history[tick] = everything(states)
            if data.draw(st.integers(0, 2)) == 0:
                store.close()
                store = Store.open(where, keep=keep)
                loaded = store.load(verify=True)
                assert (loaded.tick, loaded.program, loaded.offsets) == (tick, {"n": tick // 3}, {"at": tick})
                assert everything(loaded.states) == history[tick]
                states = small(loaded.states)
        assert store.ticks()[-keep.ticks :] == sorted(history)[-keep.ticks :]
        for tick in store.ticks():
            with Store.open(where, write=False, tick=tick) as older:
                assert everything(older.load(verify=True).states) == history[tick]
        store.close()


def test_a_merge_in_progress_is_stored_as_what_it_was_begun_with(tmp_path):
    """A merge rewrites nothing on disk until it is done, and the tick in which it begins writes the tick's rows."""
    store = Store.open(tmp_path)
    spine = Spine(BY_KEY).insert(numbered(0, 200_000))
    store.commit(1, {"n": (spine,)})
    seen = 0
    for tick in range(2, 60):
        before = store.statistics.bytes
        spine = spine.insert(numbered(tick * 10_000 + 200_000, 5000))
        store.commit(tick, {"n": (spine,)})
        if any(isinstance(e, MergeState) and e.total > 150_000 and e.out for e in spine.entries):
            seen += 1
            assert store.statistics.bytes - before < 8_000_000
            (record,) = store._manifest_now.traces["n"]
            assert any(e.place.rows == 200_000 for e in record.entries)
    assert seen > 3
    store.close()
    with Store.open(tmp_path) as again:
        (loaded,) = again.load().states["n"]
        assert loaded.consolidated().same(spine.consolidated())
        for reopened in (loaded.insert(numbered(0, 10, -1)).work(), spine.insert(numbered(0, 10, -1)).work()):
            assert reopened.count() == spine.count() - 10


def test_a_merge_of_which_nothing_is_stored_is_stored_as_its_result(tmp_path):
    spine = Spine(BY_KEY, config=SMALL)
    while not any(isinstance(e, MergeState) for e in spine.entries):
        spine = spine.insert(numbered(spine.rows, 7))
    with Store.open(tmp_path) as store:
        store.commit(1, {"n": (spine,)})
        assert everything(store.load().states) == {"n": [contents(spine)]}


def test_only_what_is_new_is_written(tmp_path):
    store = Store.open(tmp_path)
    states = {str(i): (Spine(BY_KEY).insert(numbered(0, 5000)),) for i in range(10)}
    store.commit(1, states, {"sql": "x" * 50_000})
    written = store.statistics.bytes
    states["3"] = (states["3"][0].insert(numbered(9000, 10)),)
    store.commit(2, states, {"sql": "x" * 50_000})
    assert store.statistics.batches == 11
    assert store.statistics.bytes - written < 10_000
    assert store.statistics.batch_files == 0
    store.close()
    store = Store.open(tmp_path)
    loaded = store.load()
    store.commit(3, loaded.states, loaded.program)
    assert store.statistics.batches == 0, "what was loaded is stored already"
    store.close()


def test_a_tick_can_be_committed_again_with_another_program(tmp_path):
    with Store.open(tmp_path) as store:
        store.commit(4, {}, {"views": []})
        store.commit(4, {"n": (Spine(BY_KEY),)}, {"views": ["v"]})
    with Store.open(tmp_path) as store:
        assert store.load().program == {"views": ["v"]}
        with pytest.raises(StoreError, match="tick 3 comes too late"):
            store.commit(3, {})
        store.commit(4, {}, {"views": ["w"]})
    with Store.open(tmp_path, write=False, tick=4) as store:
        assert store.load().program == {"views": ["w"]}


def test_ticks_in_a_group_share_a_flush(tmp_path):
    store = Store.open(tmp_path, group=Group(ticks=3))
    spine = Spine(BY_KEY)
    durable = []
    for tick in range(1, 8):
        spine = spine.insert(numbered(tick * 10, 10))
        durable.append(store.commit(tick, {"n": (spine,)}))
    assert durable == [False, False, True, False, False, True, False]
    assert store.tick == 6
    with Store.open(tmp_path, write=False) as reader:
        assert reader.load().states["n"][0].rows == 60
    store.close()
    with Store.open(tmp_path, write=False) as reader:
        assert reader.tick == 7, "closing flushes"


def test_a_group_ends_with_time_too(tmp_path):
    with Store.open(tmp_path, group=Group(ticks=1000, seconds=0)) as store:
        assert store.commit(1, {})


@pytest.mark.parametrize("bad", [{"x": object()}, {"x": float("nan")}, {1, 2}])
def test_what_is_no_json_is_refused_and_nothing_is_written(tmp_path, bad):
    spine = Spine(BY_KEY).insert(numbered(0, 5))
    with Store.open(tmp_path) as store:
        for given in ((bad, None, None), (None, bad, None), (None, None, bad)):
            with pytest.raises(StoreError, match="have to be JSON"):
                store.commit(1, {"n": (spine,)}, *given)
        assert store.tick is None
        store.commit(1, {"n": (spine,)})
        assert everything(store.load().states) == {"n": [contents(spine)]}


def test_batches_of_another_store_are_written_again(tmp_path):
    spine = Spine(BY_KEY, config=SMALL)
    with Store.open(tmp_path / "one") as one, Store.open(tmp_path / "two") as two:
        for tick in range(1, 30):
            spine = spine.insert(numbered(tick * 10, 7))
            for store in (one, two):
                store.commit(tick, {"n": (spine,)})
                assert everything(store.load().states) == {"n": [contents(spine)]}


def test_a_trace_reopens_with_its_frontiers_and_goes_on(tmp_path):
    trace = Trace(BY_KEY, config=SMALL)
    agent = TraceAgent.of(trace)
    with Store.open(tmp_path) as store:
        for tick in range(40):
            trace.append(numbered(tick * 3, 5 * (tick % 3)))
            if tick % 5 == 0:
                agent.advance(Antichain.at(max(tick - 10, 0)))
            store.commit(tick, {"n": (trace.reading(),)})
            (spine,) = store.load().states["n"]
            again = Trace.from_batches(spine.entries, BY_KEY, config=SMALL)
            assert again.upper == trace.upper
            assert again.since.dominates(trace.since)
            assert spine.compaction.logical == trace.since
            holder = TraceAgent.of(again)
            for time in range(max(tick - 5, 0), tick + 1):
                if trace.since.less_equal((time,)):
                    assert again.as_of(time).same(trace.as_of(time))
            holder.drop()
            if tick % 7 == 3:
                trace, agent = again, TraceAgent.of(again)


def test_writing_goes_on_from_the_last_tick_only(tmp_path):
    with pytest.raises(ConfigError, match="write=False"):
        Store.open(tmp_path, tick=3)
    with pytest.raises(StoreError, match="nothing at"):
        Store.open(tmp_path / "none", write=False)
    with pytest.raises(StoreError, match="no tick has been committed"):
        Store.open(tmp_path, write=False)
    with Store.open(tmp_path) as store:
        store.commit(1, {})
        store.commit(2, {})
        with Store.open(tmp_path, write=False) as reader:
            with pytest.raises(StoreError, match="open for reading"):
                reader.commit(3, {})
            with pytest.raises(StoreError, match="keeps ticks 1 to 2"):
                Store.open(tmp_path, write=False, tick=9)
