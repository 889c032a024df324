"""What a trace must answer, worked out from a plain list of (row, time, weight).

`Model` is the list, with what the writer and the readers have said: how far it is written, where batches ended, how
far back anybody asks, and which rows are to be forgotten. `check_reads` asks a trace everything that it can be asked
and compares; `check_invariants` looks at the batches themselves. Times are compared after advancing them to `since`:
below it a trace may say what it likes, as long as no reader at or above it can tell.
"""

import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.row_times import times_at
from dbspark.columnar.rows import decode_arrays
from dbspark.errors import TimeError
from dbspark.kernels.memory import layout as nd
from dbspark.trace import Antichain, Time, Trace
from dbspark.trace.merge_state import MergeState

SCHEMA = Schema.parse("k BIGINT, v INT, s STRING")
KEYS = (0, 1, 2, 7, None)
ROWS = list(itertools.product(KEYS, (None, -2, 0, 1, 5), ("a", "bb")))
"""Every row there is."""
BY_ROW = SortKey(SCHEMA)
BY_KEY = SortKey(SCHEMA, [0])
IN_ORDER = [
    SortKey(SCHEMA, [0], [(1, descending, last), (2, not descending, False)])
    for descending in (False, True)
    for last in (False, True)
]
ARRANGEMENTS = [BY_ROW, BY_KEY, *IN_ORDER]

Update = tuple[Any, Time, int]


def summed(items: Any) -> dict[Any, int]:
    """The weights of (thing, weight) pairs by thing; none is zero."""
    out: Counter[Any] = Counter()
    for thing, weight in items:
        out[thing] += weight
    return {thing: weight for thing, weight in out.items() if weight}


def zset(batch: Batch) -> dict[Any, int]:
    """The rows and weights of a batch without times; fails if a row occurs twice or a weight is zero."""
    rows = [row for chunk in batch.chunks for row in decode_arrays(batch.schema, chunk.arrays())]
    weights = batch.weights().tolist()
    assert len(rows) == len(weights) == batch.rows == len(set(rows)), "a row occurs twice"
    assert 0 not in weights
    return dict(zip(rows, weights, strict=True))


def updates_of(batch: Batch, width: int) -> list[Update]:
    """What a batch holds, row by row; fails if a row occurs twice at one time or a weight is zero."""
    out: list[Update] = []
    for chunk in batch.chunks:
        assert chunk.rows
        rows = decode_arrays(batch.schema, chunk.arrays())
        lanes = times_at(np.array((chunk.table,), np.int64), np.arange(chunk.rows, dtype=np.int64)).T.tolist()
        assert not any(any(lane[width:]) for lane in lanes), "a coordinate beyond the width"
        weights = chunk.lane(nd.WEIGHT).tolist()
        out += [(r, Time(t[:width]), w) for r, t, w in zip(rows, lanes, weights, strict=True)]
    assert len({(row, time) for row, time, _ in out}) == len(out), "a row occurs twice at one time"
    assert all(weight for _, _, weight in out), "a weight is zero"
    return out


def batch_of(sort_key: SortKey, updates: list[Update]) -> Batch:
    """A batch of such updates."""
    table = pa.table(
        [pa.array([row[c] for row, _, _ in updates], t) for c, t in enumerate(SCHEMA.types)], schema=SCHEMA.arrow
    )
    weights = np.array([w for _, _, w in updates], np.int64)
    if not updates:
        return Batch.empty(sort_key)
    times = np.array([t for _, t, _ in updates], np.int64).T
    return Batch.from_timed_arrow(table, times, sort_key, weights)


def order_of(sort_key: SortKey) -> Any:
    """A sort key for the rows of one key: the order columns, then all columns, NULL first."""

    def compare(a: Any, b: Any) -> int:
        for column, descending, nulls_last in [*sort_key.order, *((c, False, False) for c in range(SCHEMA.columns))]:
            x, y = a[column], b[column]
            if x == y:
                continue
            if x is None or y is None:
                return -1 if (x is None) != nulls_last else 1
            return -1 if (x < y) != descending else 1
        return 0

    return functools.cmp_to_key(compare)


class Model:
    """The list, and what has been said about it."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.updates: list[Update] = []
        self.upper = self.begin = Antichain.at(*(0,) * width)
        self.boundaries: list[Antichain] = []
        self.bounds: dict[int, Any] = {}
        """Retention: the least value of a column that stays."""

    def copy(self) -> "Model":
        other = Model(self.width)
        other.updates, other.boundaries = list(self.updates), list(self.boundaries)
        other.upper, other.bounds = self.upper, dict(self.bounds)
        return other

    def insert(self, updates: list[Update], upper: Antichain) -> None:
        self.updates += updates
        self.upper = upper
        self.boundaries.append(upper)

    def kept(self) -> list[Update]:
        """What retention leaves."""
        return [u for u in self.updates if self.stays(u[0])]

    def stays(self, row: Any) -> bool:
        return all(row[c] is None or row[c] >= b for c, b in self.bounds.items())

    def scan(self) -> dict[Any, int]:
        return summed((row, w) for row, _, w in self.kept())

    def as_of(self, at: Time) -> dict[Any, int]:
        return summed((row, w) for row, t, w in self.kept() if t.less_equal(at))

    def changes(self, after: Time, upto: Time, since: Antichain) -> dict[Any, int]:
        some = [u for u in self.kept() if u[1].less_equal(upto) and not u[1].less_equal(after)]
        return advanced(some, since)

    def before(self, upper: Antichain, since: Antichain) -> dict[Any, int]:
        """Everything before a frontier, with times advanced."""
        return advanced([u for u in self.kept() if not upper.less_equal(u[1])], since)

    def all_times(self) -> list[Time]:
        """Times worth asking for: those of updates and of frontiers, their joins, and some beyond."""
        found = {t for _, t, _ in self.updates} | {t for b in self.boundaries for t in b} | set(self.begin)
        lanes = [sorted({t[c] for t in found}) for c in range(self.width)]
        lanes = [[*lane, lane[-1] + 1] for lane in lanes]
        return [Time(t) for t in itertools.product(*lanes)]

    def readable(self, since: Antichain) -> list[Time]:
        return [t for t in self.all_times() if since.less_equal(t) and not self.upper.less_equal(t)]


def advanced(updates: list[Update], since: Antichain) -> dict[Any, int]:
    """The weights by (row, time), with times advanced. At the end of time all times are one."""
    if not since:
        return summed((row, w) for row, _, w in updates)
    to = since.meet_of_all()
    return summed(((row, t.join(to)), w) for row, t, w in updates)


def some_of(things: list[Any], limit: int, seed: int) -> list[Any]:
    if len(things) <= limit:
        return things
    picks = np.random.default_rng(seed).choice(len(things), limit, replace=False)
    return [things[i] for i in sorted(picks.tolist())]


# ---------------------------------------------------------------------- reads


def check_reads(trace: Trace, model: Model, limit: int = 6, seed: int = 0) -> None:
    """Every way to read a trace gives what the model gives, at up to `limit` times and boundaries of each kind."""
    since = trace.since
    assert zset(trace.scan()) == model.scan()
    check_times(trace, model, since, limit, seed)
    check_cursors(trace, model, since, limit, seed)
    check_probe(trace, model, since)
    if trace.sort_key.order:
        check_ends(trace, model)


def check_times(trace: Trace, model: Model, since: Antichain, limit: int, seed: int) -> None:
    everything = model.all_times()
    readable = [t for t in everything if since.less_equal(t) and not model.upper.less_equal(t)]
    for time in some_of(readable, limit, seed):
        found = trace.as_of(time)
        assert zset(found) == model.as_of(time), f"as of {time}"
        assert found.time == (0,) * nd.TIMES or not found.rows
    few = some_of(readable, 2 * limit, seed + 2)
    pairs = [(after, upto) for after, upto in itertools.product(few, repeat=2) if after != upto]
    for after, upto in some_of(pairs, limit, seed + 1):
        found = advanced(updates_of(trace.changes(after, upto), model.width), since)
        assert found == model.changes(after, upto, since), f"after {after} up to {upto}"
    for time in some_of([t for t in everything if not since.less_equal(t) and not model.upper.less_equal(t)], 2, seed):
        for read in (trace.as_of, lambda t: trace.changes(t, t)):
            with pytest.raises(TimeError, match="since"):
                read(time)
    for time in some_of([t for t in everything if since.less_equal(t) and model.upper.less_equal(t)], 2, seed):
        for read in (trace.as_of, lambda t: trace.changes(t, t)):
            with pytest.raises(TimeError, match="upper"):
                read(time)


def check_cursors(trace: Trace, model: Model, since: Antichain, limit: int, seed: int) -> None:
    check_cursor(trace.cursor(), trace.sort_key, model.before(Antichain(), since), since)
    assert not list(trace.cursor_through(model.begin))
    for boundary in some_of(model.boundaries, (limit + 1) // 2, seed):
        if trace.physical.dominates(boundary):
            cursor = trace.cursor_through(boundary)
            check_cursor(cursor, trace.sort_key, model.before(boundary, since), since)
        elif boundary != model.begin:
            with pytest.raises(TimeError, match="physical"):
                trace.cursor_through(boundary)
    known = {*model.boundaries, model.begin, model.upper}
    between = [t for t in some_of(model.all_times(), 3, seed) if Antichain([t]) not in known]
    for frontier in map(Antichain, zip(between, strict=True)):
        with pytest.raises(TimeError):
            trace.cursor_through(frontier)


def check_cursor(cursor: Any, sort_key: SortKey, expected: dict[Any, int], since: Antichain) -> None:
    """A cursor gives these weights by (row, time), key by key, each key once, its rows in order, each row once."""
    columns = range(SCHEMA.columns) if sort_key.key is None else sort_key.key
    found, order = [], []
    while cursor.key_valid:
        key = cursor.key
        rows = []
        assert cursor.val_valid, "a key without rows"
        while cursor.val_valid:
            row, times = cursor.val, cursor.times()
            assert tuple(row[c] for c in columns) == key
            assert times, "a row without times"
            assert all(w for _, w in times)
            assert times == sorted(times), "times in their order"
            assert len({t for t, _ in times}) == len(times)
            if since:
                assert all(t.advance_by(since) == t for t, _ in times), "times below since can be told apart"
            found += [(row, t, w) for t, w in times]
            rows.append(row)
            cursor.step_val()
        assert len(set(rows)) == len(rows)
        if sort_key.order:
            assert rows == sorted(rows, key=order_of(sort_key))
        order.append((key, rows))
        cursor.step_key()
    assert cursor.key is None
    assert cursor.val is None
    assert len({key for key, _ in order}) == len(order), "a key comes twice"
    assert advanced(found, since) == expected
    for i, (key, rows) in list(enumerate(order))[:: max(1, len(order) // 2)]:
        assert cursor.seek_key(key)
        assert cursor.key == key
        for row in rows:
            assert cursor.seek_val(row)
            seen: list[Any] = []
            cursor.map_times(lambda t, w, seen=seen: seen.append((t, w)))
            assert seen == cursor.times() == [(t, w) for r, t, w in found if r == row]
        assert not cursor.seek_val((*rows[0][:-1], "not there"))
        assert not cursor.val_valid
        cursor.rewind_vals()
        assert cursor.val == rows[0]
        cursor.step_key()
        assert cursor.key == (order[i + 1][0] if i + 1 < len(order) else None)
    cursor.rewind_keys()
    assert cursor.key == (order[0][0] if order else None)
    assert not cursor.seek_key((99, None, "z")[: len(columns)])


def hits_of(hits: Any) -> list[tuple[int, Any, int]]:
    """(which key, row, weight) of hits, as they come."""
    rows = zip(*(c.to_pylist() for c in hits.columns()), strict=True)
    return list(zip(hits.which.tolist(), rows, hits.weights.tolist(), strict=True))


def asked(sort_key: SortKey) -> list[Any]:
    """Keys to ask for: every one there is, one that is not, and one twice."""
    keys = [(row if sort_key.key is None else row[:1]) for row in (ROWS if sort_key.key is None else ROWS[::10])]
    absent = (99, 0, "a") if sort_key.key is None else (99,)
    return [*keys[:3], absent, *keys[3:], keys[1]]


def check_probe(trace: Trace, model: Model, since: Antichain) -> None:
    sort_key = trace.sort_key
    keys = asked(sort_key)
    hits = trace.probe(keys)
    assert hits.which.tolist() == sorted(hits.which.tolist())
    there = model.scan()
    found = hits_of(hits)
    columns = range(SCHEMA.columns) if sort_key.key is None else sort_key.key
    expected = {
        (i, row): w for row, w in there.items() for i, k in enumerate(keys) if k == tuple(row[c] for c in columns)
    }
    assert summed(((i, row), w) for i, row, w in found) == expected
    assert zset(hits.batch()) == {
        row: w for row, w in there.items() if any((i, row) in expected for i in range(len(keys)))
    }
    lanes = [hits.times(c).tolist() for c in range(model.width)]
    timed = [
        (row, Time(t), w) for (i, row, w), t in zip(found, zip(*lanes, strict=True), strict=True) if i < len(keys) - 1
    ]
    assert advanced(timed, since) == model.before(Antichain(), since)


def check_ends(trace: Trace, model: Model) -> None:
    keys = asked(trace.sort_key)
    in_order = sorted(model.scan().items(), key=lambda pair: order_of(trace.sort_key)(pair[0]))
    for limit in (1, 2, 100):
        for read, listed in ((trace.first, in_order), (trace.last, in_order[::-1])):
            expected = []
            for i, key in enumerate(keys):
                expected += [(i, row, w) for row, w in listed if row[:1] == key][:limit]
            assert hits_of(read(keys, limit)) == expected, f"{read.__name__} {limit}"


# ---------------------------------------------------------------------- invariants


def check_invariants(trace: Trace, model: Model) -> None:
    """What the batches of a trace promise."""
    spine = trace.reading()
    entries = spine.entries
    assert trace.upper == model.upper
    if entries:
        assert entries[0].description.lower == model.begin
        assert entries[-1].description.upper == model.upper
    else:
        assert model.upper == model.begin
    for one, other in itertools.pairwise(entries):
        assert one.description.upper == other.description.lower, "batches are contiguous"
    ready = [e for e in entries if e.description.upper.dominates(trace.physical)]
    assert entries[: len(ready)] == tuple(ready)
    assert all(e.rows for e in ready) or len(ready) == 1, "an empty batch beside another"
    for entry in entries:
        description = entry.description
        assert description.since.dominates(trace.since), "compacted further than anybody has allowed"
        assert description.lower.dominates(description.upper)
        parts = entry.batches() if isinstance(entry, MergeState) else [entry]
        for part in parts:
            for _, time, _ in updates_of(part, model.width):
                assert description.lower.less_equal(time)
                late = description.upper.less_equal(time)
                assert not late or time.advance_by(description.since) == time, "an update after its batch's upper"
    merges = [e for e in ready if isinstance(e, MergeState)]
    levels = 1
    while spine.config.fanout**levels <= sum(e.rows for e in ready):
        levels += 1
    assert len(ready) - len(merges) <= spine.config.fanout * levels, "too many batches"
    assert spine.rows == sum(b.rows for b in spine.batches)
