"""The Robin Hood table against a dict, under random changes, with hashes chosen to crowd a few slots.

After every change the table must answer like the dict, and its slots must keep the shape that makes searching
short: no gap between a slot and its home, and never a poorer slot behind a richer one.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.kernels.lookup import hash_table as kt
from dbspark.kernels.memory import layout as nd
from tests.kernels.build import TOP, Item, chunk_of, distinct, several
from tests.strategies import INT64_MAX, INT64_MIN

ONE_COLUMN = (1, nd.LANES + 1)


class Table:
    """A driver of the kernels: capacity is given, entries and chunks only grow until `rebuild`."""

    def __init__(self, capacity: int) -> None:
        self.slot_hash = np.zeros(capacity, np.uint64)
        self.slot_entry = np.full(capacity, kt.EMPTY, np.int64)
        self.chunks: list[Any] = []
        self.entry_pos = np.empty(0, np.int64)
        self.entry_weight = np.empty(0, np.int64)
        self.touches = np.empty(0, np.int64)

    @property
    def tables(self) -> Any:
        return np.array([c.table for c in self.chunks], np.int64)

    def state(self, entries: int) -> tuple[Any, ...]:
        return self.slot_hash, self.slot_entry, self.tables, self.entry_pos, self.entry_weight, entries

    def upsert(self, items: list[Item], factor: int) -> tuple[int, int]:
        chunk = chunk_of(items)
        rows, entries = len(items), len(self.entry_pos)
        room = np.zeros(rows, np.int64)
        self.entry_pos, self.entry_weight = np.append(self.entry_pos, room), np.append(self.entry_weight, room)
        self.touches = np.append(self.touches, room)
        pos, weights = np.arange(rows, dtype=np.int64), np.array([i.weight for i in items], np.int64)
        appended, info = np.empty(rows, np.int64), np.empty(2, np.int64)
        head = (self.slot_hash, self.slot_entry, self.tables, self.entry_pos, self.entry_weight, self.touches, entries)
        kt.upsert(*head, np.array([chunk.table]), pos, weights, factor, *ONE_COLUMN, appended, info)
        new, died = info.tolist()
        self.entry_pos[entries : entries + new] = appended[:new] + (len(self.chunks) << nd.ROW_BITS)
        self.chunks.append(chunk)
        end = entries + new
        self.entry_pos, self.entry_weight, self.touches = (
            a[:end] for a in (self.entry_pos, self.entry_weight, self.touches)
        )
        return new, died

    def resize(self, capacity: int) -> None:
        self.slot_hash = np.zeros(capacity, np.uint64)
        self.slot_entry = np.full(capacity, 123, np.int64)  # whatever was there
        kt.rebuild(*self.state(len(self.entry_pos)))

    def lookup(self, items: list[Item]) -> list[int]:
        probe = chunk_of(items)
        out = np.full(len(items), -99, np.int64)
        kt.lookup(*self.state(len(self.entry_pos)), probe.table, len(items), *ONE_COLUMN, out)
        return out.tolist()

    def would_overflow(self, items: list[Item], factor: int) -> bool:
        chunk = chunk_of(items)
        pos, weights = np.arange(len(items), dtype=np.int64), np.array([i.weight for i in items], np.int64)
        sources = np.array([chunk.table])
        return bool(kt.would_overflow(*self.state(len(self.entry_pos)), sources, pos, weights, factor, *ONE_COLUMN))

    def check_slots(self, live: int) -> None:
        capacity = len(self.slot_hash)
        used = self.slot_entry != kt.EMPTY
        assert used.sum() == live
        entries = self.slot_entry[used].tolist()
        assert len(set(entries)) == live, "an entry has two slots"
        assert all(self.entry_weight[e] != 0 for e in entries), "a dead entry has a slot"
        distance = (np.arange(capacity) - (self.slot_hash.astype(np.int64) & (capacity - 1))) & (capacity - 1)
        for at in np.flatnonzero(used):
            if distance[at]:
                before = (at - 1) % capacity
                assert used[before], "a gap between a slot and its home"
                assert distance[before] >= distance[at] - 1, "a poorer slot behind a richer one"


CROWDED = [0, 1, 2, 15, 31, 32, 63, 2**63 + 15, TOP, TOP - 1]
"""Home slots at both ends of small tables, so that runs wrap around."""
ROW = st.builds(
    Item, st.just(0), st.sampled_from(CROWDED), st.none() | st.integers(0, 3), st.sampled_from([1, -1, 2, -2])
)
DELTA = st.lists(ROW, min_size=1, max_size=10).map(distinct)
STEP = st.one_of(
    st.tuples(st.just("upsert"), DELTA, st.sampled_from([1, -1])),
    st.tuples(st.just("resize"), st.sampled_from([64, 128, 256]), st.none()),
    st.tuples(st.just("retract"), st.randoms(use_true_random=False), st.none()),
)


@given(st.lists(STEP, max_size=30))
def test_the_table_answers_like_a_dict_after_every_change(steps: list[Any]) -> None:
    table = Table(64)
    known: dict[Any, int] = {}
    every = [Item(0, h, v, 1) for h in CROWDED for v in (None, 0, 1, 2, 3)]
    for what, argument, factor in steps:
        if what == "resize":
            table.resize(argument)
        else:
            delta = argument
            if what == "retract":  # rows of the table, so that slots are deleted from the middle of runs
                items = [Item(*row, -w) for row, w in known.items()]
                delta, factor = distinct(i for i in items if argument.random() < 0.6), 1
                if not delta:
                    continue
            before = len(known)
            expected_new = sum(item.row not in known for item in delta)
            for item in delta:
                known[item.row] = known.get(item.row, 0) + factor * item.weight
            dead = [row for row, weight in known.items() if weight == 0]
            for row in dead:
                del known[row]
            assert table.upsert(delta, factor) == (expected_new, len(dead))
            assert len(known) == before + expected_new - len(dead)
        assert table.lookup(every) == [known.get(item.row, 0) for item in every]
        table.check_slots(len(known))


def test_a_table_filled_to_the_last_slot_but_one_still_finds_everything() -> None:
    table = Table(16)
    items = [Item(0, 14 + 16 * i, i, i + 1) for i in range(15)]  # one home for all of them
    table.upsert(items, 1)
    table.check_slots(15)
    assert table.lookup([*items, Item(0, 14, 99, 1), Item(0, 14 + 16 * 20, 20, 1)]) == [*range(1, 16), 0, 0]
    for gone in (0, 7, 14, 3):
        assert table.upsert([items[gone]._replace(weight=-gone - 1)], 1) == (0, 1)
    table.check_slots(11)
    assert table.lookup(items) == [0 if i in (0, 7, 14, 3) else i + 1 for i in range(15)]


def test_rows_that_share_a_hash_are_told_apart_by_value() -> None:
    table = Table(64)
    items = [Item(0, 5, v, 1) for v in [None, *range(30)]]
    assert table.upsert(items, 1) == (31, 0)
    assert table.upsert(items[::2], -1) == (0, 16)
    assert table.lookup(items) == [i % 2 for i in range(31)]
    table.check_slots(15)


def test_touches_count_changes_of_known_rows() -> None:
    table = Table(64)
    a, b = Item(0, 1, 1, 1), Item(0, 2, 2, 1)
    table.upsert([a, b], 1)
    table.upsert([a], 1)
    table.upsert([a], -1)
    assert table.touches.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("held", "added", "factor", "overflows"),
    [
        (INT64_MAX, 1, 1, True),
        (INT64_MAX, 1, -1, False),
        (INT64_MAX, -1, -1, True),
        (-INT64_MAX, 1, -1, True),
        (-INT64_MAX, INT64_MAX, 1, False),
        (-1, INT64_MAX, -1, True),
        (None, INT64_MAX, -1, False),
        (None, INT64_MIN, -1, True),
        (None, 2**62, 2, True),
        (None, 2**62, 4, True),
        (None, 2**62, -2, True),
        (None, 2**61, 2, False),
        (2**62, 2**61, 2, True),
        (1, INT64_MAX - 1, 1, False),
    ],
)
def test_an_overflow_is_reported_before_it_happens(held: int | None, added: int, factor: int, overflows: bool) -> None:
    table = Table(64)
    table.upsert([Item(0, 9, 9, 5), *([Item(0, 1, 1, held)] if held is not None else [])], 1)
    assert table.would_overflow([Item(0, 9, 9, 1), Item(0, 1, 1, added)], factor) is overflows
    if not overflows:
        table.upsert([Item(0, 1, 1, added)], factor)
        assert table.lookup([Item(0, 1, 1, 1)]) == [(held or 0) + added * factor]


# ------------------------------------------------------------------------------------ the kernels around the table


@given(several(1, 4))
def test_positions_lists_every_row_with_its_weight(drawn: Any) -> None:
    groups, batches = drawn
    for items, batch in zip(groups, batches, strict=True):
        pos, weights = np.empty(batch.rows, np.int64), np.empty(batch.rows, np.int64)
        kt.positions(batch.lens, batch.tables, pos, weights)
        assert pos.tolist() == [c << nd.ROW_BITS | r for c, n in enumerate(batch.lens.tolist()) for r in range(n)]
        assert weights.tolist() == [i.weight for i in items]
        for node in (nd.KEY, nd.HASH):
            lane = np.empty(batch.rows, np.uint64)
            kt.hashes_at(batch.tables, pos, node, lane)
            assert lane.tolist() == [i.key if node == nd.KEY else i.hash for i in items]


@given(several(1, 1), st.randoms(use_true_random=False))
def test_rows_with_equal_hashes_are_sorted_by_value(drawn: Any, random: Any) -> None:
    groups, batches = drawn
    items = sorted(groups[0], key=lambda i: (i.hash, -1 if i.value is None else i.value))
    items = [a for i, a in enumerate(items) if i == 0 or (a.hash, a.value) != (items[i - 1].hash, items[i - 1].value)]
    place = {item.row: i for i, item in enumerate(groups[0])}
    starts = np.cumsum([0, *batches[0].lens])
    shuffled = sorted(items, key=lambda i: (i.hash, random.random()))

    def position(item: Item) -> int:
        row = place[item.row]
        chunk = int(np.searchsorted(starts, row, "right")) - 1
        return chunk << nd.ROW_BITS | (row - int(starts[chunk]))

    pos = np.array([position(i) for i in shuffled], np.int64)
    weights = np.array([i.weight for i in shuffled], np.int64)
    kt.sort_tied_rows(batches[0].tables, pos, weights, *ONE_COLUMN)
    assert pos.tolist() == [position(i) for i in items]
    assert weights.tolist() == [i.weight for i in items]
