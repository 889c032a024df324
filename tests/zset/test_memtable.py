"""The memtable and its Robin Hood table against a dict: same rows, and memory in proportion to them."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.sort_key import weakened_hash
from dbspark.errors import WeightOverflowError
from dbspark.zset.memtable import HOT_TOUCHES, ColumnDelta, Memtable, RobinHoodTable, batch_of_rows
from tests.zset.model import MAX, plus, times

SCHEMA = Schema.parse("k BIGINT, s STRING")
ARRANGEMENT = SortKey(SCHEMA)


def row(k):
    return (k, None if k % 7 == 0 else f"s{k % 5}")


def delta(rows):
    """A delta in columns from {k: weight}."""
    return ColumnDelta(batch_of_rows(ARRANGEMENT, {row(k): w for k, w in rows.items()}))


def rows_of(batch):
    """{k: weight} of a batch, after checking that its rows are whole and occur once."""
    table = batch.to_arrow().to_pydict()
    weights = batch.weights().tolist()
    assert list(zip(table["k"], table["s"], strict=True)) == [row(k) for k in table["k"]]
    assert len(set(table["k"])) == len(weights)
    assert 0 not in weights
    return dict(zip(table["k"], weights, strict=True))


def live(table):
    """{k: weight} of a Robin Hood table, by walking its entries, checked against probing each row."""
    pos, weights, touches = table.live()
    assert len(pos) == len(weights) == len(touches) == len(table)
    rows = rows_of(table.batch(pos, weights))
    if rows:
        probe = batch_of_rows(ARRANGEMENT, {row(k): 1 for k in rows})
        found = np.concatenate([table.weights_of(chunk) for chunk in probe.chunks]).tolist()
        assert dict(zip(probe.to_arrow()["k"].to_pylist(), found, strict=True)) == rows
    return rows


def check_shape(table):
    """What must hold of the layout after every delta."""
    assert table.entries - table.dead == len(table)
    assert table.dead <= max(16, table.entries / 2), "dead entries outnumber live ones"
    assert table.capacity & (table.capacity - 1) == 0
    assert len(table) <= 0.85 * table.capacity, "the slots are too full"
    assert np.count_nonzero(table.slot_entry >= 0) == len(table), "a slot for every live row and no other"


changes = st.lists(
    st.one_of(
        st.dictionaries(st.integers(0, 30), st.integers(-3, 3).filter(bool), max_size=12),
        st.builds(
            lambda first, n, w: {first + i: w for i in range(n)},
            st.integers(0, 400),
            st.integers(1, 150),
            st.sampled_from([1, 1, -1, 2]),
        ),
        st.just("retract"),
        st.just("retract half"),
    ),
    max_size=14,
)


@pytest.mark.parametrize("mask", [(1 << 64) - 1, 0x3, 0], ids=["hashes", "four hashes", "one hash"])
@given(changes=changes)
@settings(max_examples=max(10, settings.default.max_examples // 2))
def test_a_robin_hood_table_is_a_dict(mask, changes):
    with weakened_hash(mask):
        table, expected = RobinHoodTable(ARRANGEMENT), {}
        for change in changes:
            if isinstance(change, str):
                change = times(dict(list(expected.items())[:: 1 if change == "retract" else 2]), -1)
            if mask == 0:
                change = dict(list(change.items())[:40])
            table.apply(delta(change), 1)
            expected = plus(expected, change)
            check_shape(table)
            assert len(table) == len(expected)
        assert live(table) == expected
        strangers = batch_of_rows(ARRANGEMENT, {row(k): 1 for k in range(1000, 1005)}).chunks[0]
        assert table.weights_of(strangers).tolist() == [0] * 5


@given(changes=changes, row_adds=st.lists(st.tuples(st.integers(0, 30), st.integers(-3, 3).filter(bool)), max_size=30))
def test_a_memtable_is_the_sum_of_its_two_tables(changes, row_adds):
    memtable, expected = Memtable(ARRANGEMENT), {}
    for change in [*changes, *row_adds]:
        if isinstance(change, str):
            change = times(expected, -1)
        if isinstance(change, tuple):
            k, weight = change
            memtable.apply((row(k), weight), 1)
            expected = plus(expected, {k: weight})
        else:
            memtable.apply(delta(change), 1)
            expected = plus(expected, change)
    assert rows_of(memtable.batch()) == expected
    cold, hot = memtable.split_hot(True)
    assert plus(rows_of(cold), rows_of(hot)) == expected
    for k in [*list(expected)[:5], 2000]:
        assert memtable.weight(row(k)) == expected.get(k, 0)
    assert len(memtable) >= len(expected)


@given(changes)
def test_undoing_deltas_restores_the_state_before(changes):
    """What old versions rely on: a copy from which the newest deltas are taken back, newest first."""
    memtable, states = Memtable(ARRANGEMENT), [{}]
    deltas = []
    for change in changes:
        if isinstance(change, str):
            change = times(states[-1], -1)
        deltas.append(delta(change))
        memtable.apply(deltas[-1], 1)
        states.append(plus(states[-1], change))
    copy = memtable.copy()
    for change, state in zip(reversed(deltas), reversed(states[:-1]), strict=True):
        copy.apply(change, -1)
        assert rows_of(copy.batch()) == state
    assert rows_of(memtable.batch()) == states[-1]


def test_a_copy_is_independent():
    table = RobinHoodTable(ARRANGEMENT)
    table.apply(delta(dict.fromkeys(range(100), 1)), 1)
    copy = table.copy()
    copy.apply(delta(dict.fromkeys(range(50), -1)), 1)
    table.apply(delta(dict.fromkeys(range(90, 120), 5)), 1)
    assert live(copy) == dict.fromkeys(range(50, 100), 1)
    changed = {**dict.fromkeys(range(90), 1), **dict.fromkeys(range(90, 100), 6), **dict.fromkeys(range(100, 120), 5)}
    assert live(table) == changed


# ---------------------------------------------------------------------- growing and shrinking


def test_capacity_grows_with_the_rows_and_shrinks_when_they_are_gone():
    table = RobinHoodTable(ARRANGEMENT)
    smallest = table.capacity
    for i in range(20):
        table.apply(delta(dict.fromkeys(range(1000 * i, 1000 * i + 1000), 1)), 1)
        check_shape(table)
    full = table.capacity
    assert full >= 20_000 / 0.85
    assert full <= 20_000 / 0.85 * 4
    for i in range(20):
        table.apply(delta(dict.fromkeys(range(1000 * i, 1000 * i + 990), -1)), 1)
        check_shape(table)
    assert len(table) == 200
    assert table.capacity <= full / 8
    assert len(table.entry_pos) <= 20_000 / 8
    assert live(table) == {1000 * i + k: 1 for i in range(20) for k in range(990, 1000)}
    table.apply(delta(dict.fromkeys(live(table), -1)), 1)
    assert live(table) == {}
    for i in range(40):  # what is left of a table that has come to nothing is of the size of a new one
        table.apply(delta({i: 1}), 1)
        table.apply(delta({i: -1}), 1)
    assert table.capacity <= 8 * smallest
    assert sum(chunk.rows for chunk in table.chunks) <= 1000


def test_the_rows_kept_alive_are_bounded_by_the_live_ones():
    """Chunks are referenced, not copied: a chunk of which a single row is left must not be kept for it."""
    table = RobinHoodTable(ARRANGEMENT)
    for i in range(30):
        rows = range(1000 * i, 1000 * i + 1000)
        table.apply(delta(dict.fromkeys(rows, 1)), 1)
        table.apply(delta(dict.fromkeys(list(rows)[1:], -1)), 1)
    assert live(table) == {1000 * i: 1 for i in range(30)}
    assert table.entries <= 2 * len(table) + 1016
    assert sum(chunk.rows for chunk in table.chunks) <= 2 * len(table) + 2016


def test_a_row_that_flickers_leaves_no_trail_of_dead_entries():
    table = RobinHoodTable(ARRANGEMENT)
    table.apply(delta(dict.fromkeys(range(10), 1)), 1)
    for _ in range(2000):
        table.apply(delta({5: -1}), 1)
        table.apply(delta({5: 1}), 1)
        assert table.entries <= 64
    check_shape(table)
    assert live(table) == dict.fromkeys(range(10), 1)
    assert len(table.chunks) <= 64


def test_five_thousand_deltas_of_one_row_are_gathered_into_few_chunks():
    table = RobinHoodTable(ARRANGEMENT)
    for k in range(5000):
        table.apply(delta({k: 1}), 1)
        if k % 500 == 499:
            assert len(table.chunks) <= 16 * (math.log(k + 1, 16) + 1)
    assert len(table.chunks) <= 16 * (math.log(5000, 16) + 1)
    assert sum(chunk.rows for chunk in table.chunks) == 5000
    assert live(table) == dict.fromkeys(range(5000), 1)


def test_changing_known_rows_adds_no_chunks():
    table = RobinHoodTable(ARRANGEMENT)
    table.apply(delta(dict.fromkeys(range(100), 1)), 1)
    chunks = len(table.chunks)
    for k in range(300):
        table.apply(delta({k % 100: 1}), 1)
    assert len(table.chunks) == chunks
    assert live(table) == dict.fromkeys(range(100), 4)


def test_only_the_new_rows_of_a_delta_are_kept():
    """Mostly known rows: the few new ones are copied out, so that the delta is not kept alive for them."""
    table = RobinHoodTable(ARRANGEMENT)
    table.apply(delta(dict.fromkeys(range(1000), 1)), 1)
    for k in range(1000, 1040):
        table.apply(delta(dict.fromkeys([*range(1000), k], 1)), 1)
    assert sum(chunk.rows for chunk in table.chunks) == 1040
    assert live(table) == {**dict.fromkeys(range(1000), 41), **dict.fromkeys(range(1000, 1040), 1)}


# ---------------------------------------------------------------------- hot rows


def test_rows_that_change_often_are_hot_if_they_are_few():
    memtable = Memtable(ARRANGEMENT)
    memtable.apply(delta(dict.fromkeys(range(40), 1)), 1)
    for _ in range(HOT_TOUCHES):
        memtable.apply(delta({1: 1, 2: 1, 3: 1}), 1)
    cold, hot = memtable.split_hot(True)
    assert rows_of(hot) == dict.fromkeys((1, 2, 3), 1 + HOT_TOUCHES)
    assert rows_of(cold) == {k: 1 for k in range(40) if k not in (1, 2, 3)}


def test_no_row_is_kept_back_from_somebody_who_reads_everything():
    memtable = Memtable(ARRANGEMENT)
    memtable.apply(delta(dict.fromkeys(range(40), 1)), 1)
    for _ in range(HOT_TOUCHES):
        memtable.apply(delta({1: 1, 2: 1, 3: 1}), 1)
    cold, hot = memtable.split_hot(False)
    assert rows_of(hot) == {}
    assert rows_of(cold) == {k: 1 + HOT_TOUCHES if k in (1, 2, 3) else 1 for k in range(40)}


def test_where_most_rows_change_often_none_is_hot():
    memtable = Memtable(ARRANGEMENT)
    for _ in range(HOT_TOUCHES + 2):
        memtable.apply(delta(dict.fromkeys(range(10), 1)), 1)
    cold, hot = memtable.split_hot(True)
    assert rows_of(hot) == {}
    assert rows_of(cold) == dict.fromkeys(range(10), HOT_TOUCHES + 2)


def test_a_hot_row_whose_weight_is_shared_by_both_tables_is_not_lost():
    memtable = Memtable(ARRANGEMENT)
    memtable.apply(delta(dict.fromkeys(range(40), 1)), 1)
    for _ in range(HOT_TOUCHES):
        memtable.apply(delta({1: 1}), 1)
    memtable.apply((row(1), 7), 1)
    cold, hot = memtable.split_hot(True)
    assert plus(rows_of(cold), rows_of(hot)) == {**dict.fromkeys(range(40), 1), 1: 8 + HOT_TOUCHES}


# ---------------------------------------------------------------------- overflow and size


@pytest.mark.parametrize("sign", [1, -1])
def test_an_overflow_is_refused_and_changes_nothing(sign):
    memtable = Memtable(ARRANGEMENT)
    heavy = {**dict.fromkeys(range(50), sign), 7: sign * MAX}
    memtable.apply(delta(heavy), 1)
    entries = memtable.table.entries
    for _ in range(2):
        with pytest.raises(WeightOverflowError):
            memtable.apply(delta(dict.fromkeys(range(100), sign)), 1)
        with pytest.raises(WeightOverflowError):
            memtable.apply(delta(dict.fromkeys(range(100), -sign)), -1)
        assert live(memtable.table) == heavy
        assert memtable.table.entries == entries
    memtable.apply(delta({7: -sign}), 1)
    memtable.apply(delta({7: sign}), 1)
    assert live(memtable.table) == heavy
    with pytest.raises(WeightOverflowError):
        memtable.apply(delta({7: sign}), 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_single_row_that_overflows_is_refused_and_changes_nothing(sign):
    memtable = Memtable(ARRANGEMENT)
    memtable.apply((row(1), sign * MAX), 1)
    with pytest.raises(WeightOverflowError):
        memtable.apply((row(1), sign), 1)
    with pytest.raises(WeightOverflowError):
        memtable.apply((row(1), -sign), -1)
    assert memtable.rows == {row(1): sign * MAX}


def test_huge_weights_that_do_not_overflow_are_taken():
    table = RobinHoodTable(ARRANGEMENT)
    expected = {}
    for change in ({1: MAX, 2: -MAX}, {1: -MAX, 2: MAX, 3: MAX}, {1: MAX, 3: -1}, {3: 1, 2: -MAX}):
        table.apply(delta(change), 1)
        expected = plus(expected, change)
        assert live(table) == expected


def sized(ddl, values, *, columns):
    schema = Schema.parse(ddl)
    sort_key = SortKey(schema)
    memtable = Memtable(sort_key)
    if columns:
        memtable.apply(
            ColumnDelta(Batch.from_arrow(pa.table([pa.array(values, schema.types[0])], schema.names), sort_key)), 1
        )
    else:
        for value in values:
            memtable.apply(((value,), 1), 1)
    return memtable


@pytest.mark.parametrize("columns", [True, False], ids=["in columns", "one by one"])
def test_long_strings_count_towards_the_bytes(columns):
    long = [f"{i}" * 5000 for i in range(20)]
    assert sized("s STRING", long, columns=columns).nbytes() >= sum(map(len, long)) / 2


@pytest.mark.parametrize("columns", [True, False], ids=["in columns", "one by one"])
def test_nested_values_count_towards_the_bytes(columns):
    long = [tuple(range(i, i + 2000)) for i in range(20)]
    assert sized("l ARRAY<BIGINT>", long, columns=columns).nbytes() >= 20 * 2000 * 8 / 2


def test_negated_deltas_count_towards_the_bytes():
    """A batch with other weights shares its columns; they are held all the same."""
    sort_key = SortKey(Schema.parse("s STRING"))
    batch = Batch.from_arrow(pa.table({"s": [f"{i}" * 5000 for i in range(20)]}), sort_key)
    memtable = Memtable(sort_key)
    memtable.apply(ColumnDelta(batch.with_weights(-batch.weights())), 1)
    assert memtable.nbytes() >= 20 * 5000 / 2
