"""Rows with times: consolidating, merging and the presence of rows, against sums in a dict.

An *update* is an `Item` at a time. Times have few values in each coordinate, so that equal, ordered and incomparable
times are all common.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar.chunk import Chunk
from dbspark.columnar.memory import allocate
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge import merge_timed as kt
from dbspark.kernels.merge.split import choose_split
from dbspark.kernels.sort.radix_sort import sort_hashes
from tests.kernels.build import ONE_COLUMN, WEIGHTS, Item, chunk_of, sorted_items
from tests.strategies import INT64_MAX, INT64_MIN

Time = tuple[int, ...]
Update = tuple[Item, Time]
TIME = st.tuples(*[st.integers(0, 3)] * nd.TIMES)
INFO = 5


def timed(updates: Sequence[Update], before: int = 0) -> Chunk:
    """A chunk of updates in the given order; with `before`, a slice of a larger one."""
    chunk = chunk_of([item for item, _ in updates], before)
    return chunk.with_times([np.array([t[c] for _, t in updates], np.int64) for c in range(nd.TIMES)])


def joined(a: Time, b: Time) -> Time:
    return tuple(map(max, a, b))


def at_most(a: Time, b: Time) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def bounds(since: Time | None = None, upto: Time | None = None, after: Time | None = None) -> Any:
    rows = [since or (INT64_MIN,) * nd.TIMES, upto or (INT64_MAX,) * nd.TIMES, after or (0,) * nd.TIMES]
    return np.array([*rows, (int(after is not None), 0, 0)], np.int64)


def consolidated(
    updates: Iterable[Update], since: Time | None = None, upto: Time | None = None, after: Time | None = None
) -> list[Update]:
    """What is left of updates within the bounds: sorted by row and time, with summed weights."""
    sums: dict[Any, int] = {}
    for item, time in updates:
        if (upto is None or at_most(time, upto)) and (after is None or not at_most(time, after)):
            row = item.row, time if since is None else joined(time, since)
            sums[row] = sums.get(row, 0) + item.weight
    left = [(Item(*row, weight), time) for (row, time), weight in sums.items() if weight]
    return sorted(left, key=lambda update: (update[0].rank, update[1]))


@st.composite
def updates(draw: st.DrawFn, max_size: int = 25) -> list[Update]:
    pool = draw(sorted_items(max_size=8).filter(bool))
    drawn = draw(st.lists(st.tuples(st.sampled_from(pool), TIME, WEIGHTS), min_size=1, max_size=max_size))
    return [(item._replace(weight=weight), time) for item, time, weight in drawn]


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Time | None]:
    return {name: draw(st.none() | TIME) for name in ("since", "upto", "after")}


class TimedBatches:
    """Batches of updates as the kernels take them; each may have several chunks, cut anywhere."""

    def __init__(self, groups: list[list[Update]], cuts: Sequence[Sequence[int]], before: int = 0) -> None:
        self.pieces: list[list[Update]] = []
        self.chunks: list[Chunk] = []
        starts = [0]
        for group, at in zip(groups, cuts, strict=True):
            ends = [0, *sorted({c for c in at if 0 < c < len(group)}), len(group)]
            self.pieces += [group[a:b] for a, b in pairwise(ends)]
            starts.append(len(self.pieces))
        self.chunks = [timed(piece, before) for piece in self.pieces]
        self.tables = np.array([chunk.table for chunk in self.chunks], np.int64)
        self.lens = np.array([chunk.rows for chunk in self.chunks], np.int64)
        self.starts = np.array(starts, np.int64)
        self.fences = np.array([piece[0][0].key for piece in self.pieces], np.uint64)
        self.cursors = np.array([[start, 0] for start in starts[:-1]], np.int64)
        self.ends = np.array([[end - 1, self.lens[end - 1]] for end in starts[1:]], np.int64)

    @property
    def rows(self) -> int:
        return int(self.lens.sum())

    def at(self, position: int) -> Update:
        return self.pieces[position >> nd.ROW_BITS][position & nd.ROW_MASK]

    def output(self, pos: Any, weights: Any, times: Any, info: Any) -> list[Update]:
        """The output of a plan; checks what `info` says of it."""
        n = int(info[0])
        found = zip(pos[:n].tolist(), weights[:n].tolist(), times[:, :n].T.tolist(), strict=True)
        out = [(self.at(p)[0]._replace(weight=w), tuple(t)) for p, w, t in found]
        assert info[2] == all(item.weight == 1 for item, _ in out)
        assert info[4] == (len({time for _, time in out}) <= 1)
        return out


@st.composite
def several(draw: st.DrawFn) -> Any:
    """(the updates of each batch, the batches)"""
    everything = draw(updates(40))
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        picked = draw(st.lists(st.tuples(st.sampled_from(everything), WEIGHTS), min_size=1, max_size=12))
        group = consolidated((item._replace(weight=w), time) for (item, time), w in picked)
        if group:
            groups.append(group)
    if not groups:
        groups = [consolidated(everything[:1])]
    cuts = [draw(st.lists(st.integers(1, 12), max_size=3)) for _ in groups]
    return groups, TimedBatches(groups, cuts, draw(st.sampled_from([0, 0, 3])))


@given(updates(60), limits())
def test_a_chunk_is_consolidated_within_the_bounds(drawn: list[Update], limit: dict[str, Any]) -> None:
    n = len(drawn)
    batches = TimedBatches([drawn], [[]])
    (chunk,) = batches.chunks
    keys, hashes, order = chunk.lane(nd.KEY), chunk.lane(nd.HASH), np.empty(n, np.int64)
    sort_hashes(keys, hashes, order, np.empty(2 * n, np.uint64), np.empty(n, np.int64))
    pos, weights, times = np.empty(n, np.int64), np.empty(n, np.int64), np.empty((nd.TIMES, n), np.int64)
    info = np.empty(INFO, np.int64)
    kt.consolidate_timed(chunk.table, keys, hashes, order, *ONE_COLUMN, bounds(**limit), pos, weights, times, info)
    assert batches.output(pos, weights, times, info) == consolidated(drawn, **limit)
    assert info[[1, 3]].tolist() == [n, 1]


@given(several(), limits())
def test_merging_by_sorting_gives_the_sum_within_the_bounds(drawn: Any, limit: dict[str, Any]) -> None:
    groups, batches = drawn
    n, info = batches.rows, np.empty(INFO, np.int64)
    pos, weights, times = np.empty(n, np.int64), np.empty(n, np.int64), np.empty((nd.TIMES, n), np.int64)
    kt.merge_by_sorting(batches.tables, batches.lens, bounds(**limit), *ONE_COLUMN, pos, weights, times, info)
    assert batches.output(pos, weights, times, info) == consolidated((u for g in groups for u in g), **limit)
    assert info[[1, 3]].tolist() == [n, 1]


@given(several(), limits(), st.integers(1, 40))
def test_merging_in_steps_gives_the_sum_within_the_bounds(drawn: Any, limit: dict[str, Any], rows: int) -> None:
    groups, batches = drawn
    out: list[Update] = []
    while not np.array_equal(batches.cursors, batches.ends):
        stops = np.empty_like(batches.cursors)
        n = choose_split(batches.tables, batches.lens, batches.cursors, batches.ends, rows, stops)
        assert n > 0
        keys, order = np.empty(2 * n, np.uint64), np.empty(2 * n, np.int64)
        pos, weights, times = np.empty(n, np.int64), np.empty(n, np.int64), np.empty((nd.TIMES, n), np.int64)
        info = np.empty(INFO, np.int64)
        kt.merge_timed(
            batches.tables, batches.lens, batches.cursors, stops, bounds(**limit), *ONE_COLUMN, keys, order,
            pos, weights, times, info,
        )  # fmt: skip
        assert info[1] == n
        assert np.array_equal(batches.cursors, stops)
        out += batches.output(pos, weights, times, info)
    assert out == consolidated((u for g in groups for u in g), **limit)


@pytest.mark.parametrize("count", [1, 16, 17, 24, 25, 100])
def test_a_row_may_have_any_number_of_times(count: int) -> None:
    """Up to 16 fit at first, up to 24 are sorted by insertion."""
    item = Item(5, 6, 7, 1)
    drawn = [(item, (t * 7 % count, t % 3, 0)) for t in range(count)] * 2
    batches = TimedBatches([consolidated(drawn[:count]), consolidated(drawn[count:])], [[3], [9]])
    n, info = batches.rows, np.empty(INFO, np.int64)
    pos, weights, times = np.empty(n, np.int64), np.empty(n, np.int64), np.empty((nd.TIMES, n), np.int64)
    kt.merge_by_sorting(batches.tables, batches.lens, bounds(), *ONE_COLUMN, pos, weights, times, info)
    assert batches.output(pos, weights, times, info) == consolidated(drawn)


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        ([INT64_MAX, 1], False),
        ([-INT64_MAX, -1], False),
        ([INT64_MAX, 1, -1], True),
        ([INT64_MAX, INT64_MAX, -INT64_MAX], True),
        ([-(2**62), -(2**62), 1], True),
    ],
)
def test_only_the_whole_sum_of_weights_has_to_be_in_range(found: list[int], fits: bool) -> None:
    drawn = [(Item(1, 1, 1, weight), (0, 0, 0)) for weight in found]
    batches = TimedBatches([[update] for update in drawn], [[]] * len(drawn))
    n, info = batches.rows, np.empty(INFO, np.int64)
    pos, weights, times = np.empty(n, np.int64), np.empty(n, np.int64), np.empty((nd.TIMES, n), np.int64)
    kt.merge_by_sorting(batches.tables, batches.lens, bounds(), *ONE_COLUMN, pos, weights, times, info)
    if fits:
        assert batches.output(pos, weights, times, info) == consolidated(drawn)
    else:
        assert info[0] == OVERFLOW


# ---------------------------------------------------------------------------------------------- times of rows


@given(several(), st.data())
def test_times_are_read_joined_and_surveyed(drawn: Any, data: st.DataObject) -> None:
    groups, batches = drawn
    places = [c << nd.ROW_BITS | r for c, piece in enumerate(batches.pieces) for r in range(len(piece))]
    pos = np.array(data.draw(st.lists(st.sampled_from(places), max_size=10)), np.int64)
    there = [batches.at(p)[1] for p in pos.tolist()]
    for c in range(nd.TIMES):
        out = np.empty(len(pos), np.int64)
        kt.times_at(batches.tables, pos, c, out)
        assert out.tolist() == [time[c] for time in there]
    time = data.draw(TIME)
    depth = data.draw(st.integers(1, nd.TIMES))
    joins = np.empty((len(pos), depth), np.int64)
    later = kt.join_times(batches.tables, pos, np.array(time[:depth], np.int64), depth, joins)
    expected = [joined(t[:depth], time[:depth]) for t in there]
    assert [tuple(t) for t in joins.tolist()] == expected
    assert later == sum(t != time[:depth] for t in expected)
    survey = np.empty(1 + 2 * nd.TIMES, np.int64)
    kt.survey_times(batches.tables, batches.lens, survey)
    everything = [time for group in groups for _, time in group]
    extremes = [f(time[c] for time in everything) for c in range(nd.TIMES) for f in (min, max)]
    assert survey.tolist() == [len(set(everything)) == 1, *extremes]


@given(updates(), TIME)
def test_all_rows_of_a_chunk_are_given_one_time(drawn: list[Update], time: Time) -> None:
    chunk, (_, nodes) = timed(drawn), ONE_COLUMN
    buffer = allocate(nodes * nd.NODE_BYTES + 8 * nd.TIMES)
    kt.retime(chunk.table, nodes, buffer.address, np.array(time, np.int64))
    copy = Chunk(chunk.schema, chunk.rows, buffer, chunk)
    assert [copy.lane(nd.TIME + c).tolist() for c in range(nd.TIMES)] == [[t] * chunk.rows for t in time]
    assert copy.lane(nd.WEIGHT).tolist() == [item.weight for item, _ in drawn]
    assert copy.lane(nd.KEY).tolist() == [item.key for item, _ in drawn]
    assert copy.array(0).to_pylist() == [item.value for item, _ in drawn]


# ----------------------------------------------------------------------------------------------- presence


def differentiated(found: list[tuple[Time, int]], time: Time) -> int:
    """The mixed difference, over all coordinates, of whether the weights up to a time sum to more than zero."""
    out = 0
    for count in range(len(time) + 1):
        for corner in combinations(range(len(time)), count):
            before = tuple(t - (c in corner) for c, t in enumerate(time))
            out += (-1) ** count * (sum(w for t, w in found if at_most(t, before)) > 0)
    return out


@given(several(), st.data())
def test_the_presence_of_rows_changes_as_its_definition_says(drawn: Any, data: st.DataObject) -> None:
    groups, batches = drawn
    depth = data.draw(st.integers(1, nd.TIMES))
    old = data.draw(st.integers(0, len(groups)))
    time = data.draw(TIME)[:depth]
    known = sorted({item._replace(weight=1) for group in groups for item, _ in group}, key=lambda item: item.rank)
    known.insert(0, Item(0, 0, 99, 1))  # a row that is nowhere
    probe = chunk_of(known)
    change, following = np.empty(len(known), np.int64), np.full(len(known), INT64_MAX)
    room = data.draw(st.sampled_from([0, 1, 100]))
    which, later = np.empty(room, np.int64), np.empty((room, depth), np.int64)
    count = kt.presence_changes(
        batches.tables, batches.lens, batches.fences, batches.starts, old, probe.table, len(known), *ONE_COLUMN,
        np.array(time, np.int64), depth, change, following, which, later,
    )  # fmt: skip
    pairs, expected_following = [], []
    for i, row in enumerate(known):
        past = [(t[:depth], u.weight) for g in groups[:old] for u, t in g if u.row == row.row]
        now = past + [(t[:depth], u.weight) for g in groups[old:] for u, t in g if u.row == row.row]
        if count <= room:
            assert change[i] == differentiated(now, time) - differentiated(past, time)
        outer = [t for t, _ in now if any(x > y for x, y in zip(t[:-1], time[:-1], strict=True))]
        pairs += [(i, joined(t, time)) for t in outer]
        next_values = [t[-1] for t, _ in now if t not in outer and t[-1] > time[-1]]
        expected_following.append(min(next_values, default=INT64_MAX))
    assert following.tolist() == expected_following
    assert count == len(pairs)
    if count <= room:
        found = zip(which[:count].tolist(), map(tuple, later[:count].tolist()), strict=True)
        assert sorted(found) == sorted(pairs)
