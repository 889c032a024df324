"""`Adaptive`: one Z-set that takes the form its workload asks for.

It is exactly one of

* **small**: at most about N rows, one sorted vector;
* **memtable**: a hash table of rows, cheap to change;
* **trace**: levelled batches in a spine, with a memtable in front for small changes and hot rows.

What has just been added is in one of two places where that costs next to nothing, whatever the form is. Rows given
one by one wait in the memtable's dict, exactly as in a Z-set that is a dict and no more. Deltas in columns wait in a
*log*, some batches side by side, and are put where they belong together: large ones become one batch of the spine,
small ones go to the memtable in one call. How much may wait is computed beforehand, so adding is one comparison.

`Policy` decides when the memtable is flushed. Flushing, merging and taking in the log never change the value, only
its form, so a payload may do them to itself, and does so before it is added to: then nobody holds the old form, and
merged batches are given back as the merge goes on. The form is one attribute, replaced at once, so that readers on
other threads see the old form or the new one. Whoever works on a form reads the attribute once and goes on with what
it has read or made of it: another thread may have put another form of the same value there in the meantime.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.row_codec import UNENCODABLE
from dbspark.columnar.rows import Row
from dbspark.trace.spine import Spine, summable
from dbspark.zset.body import Body, Log
from dbspark.zset.config import ZSetConfig
from dbspark.zset.memtable import LARGE, WAITING, Columns, LargeWeight, Memtable, batch_of_rows
from dbspark.zset.metrics import Metrics
from dbspark.zset.payload import FastPayload, Payload, merged, spine_config, weight_in
from dbspark.zset.policy import CLOCK_EVERY, FEW, Policy
from dbspark.zset.versions import Moment, Version

DIRECT: Final = 48
"""A delta of this many rows goes to the spine, not to the memtable: it is sorted already."""
LOG_ROWS: Final = 4096
"""Rows that may wait in the log."""
LOG_DELTAS: Final = 64
"""Deltas that may."""
MODEST: Final = 1 << 40
"""Weights up to this may wait in the log: those of a full one do not add up to anything near int64."""
_GROUP: Final = 8
"""Deltas that are merged at a time."""
MemtableVersion = Version[Memtable]
Counted = tuple[int, int]
"""How many rows the body and so many deltas of the log hold together."""
State = tuple[Body, MemtableVersion | None, Log, int, Counted | None]
_new = object.__new__


def _room(body: Body, memtable: MemtableVersion | None) -> int:
    """Rows that may come in columns before anything has to be looked at; they are put in the log until then."""
    if body.bound() > LARGE or (memtable is not None and memtable.store.large):
        return 0
    if body.spine is None and not body.grown:
        return body.room() if memtable is None and body.small.rows else 0
    assert body.policy is not None
    room = LOG_ROWS if body.spine is not None else DIRECT - 1
    if memtable is not None:
        return min(room, body.policy.headroom(memtable.store))
    return min(room, body.policy.flush_rows - 1)


class AdaptivePayload(Payload):
    """See the module's preface."""

    __slots__ = ("_batch", "_state")

    _batch: Batch
    _state: State

    def __init__(self, body: Body, memtable: MemtableVersion | None) -> None:
        self._state = (body, memtable, (), _room(body, memtable), None)

    @staticmethod
    def empty(sort_key: SortKey, config: ZSetConfig) -> AdaptivePayload:
        return AdaptivePayload(Body(sort_key, config, Batch.empty(sort_key)), None)

    @property
    def sort_key(self) -> SortKey:  # type: ignore[override]
        return self._state[0].sort_key

    @property
    def config(self) -> ZSetConfig:  # type: ignore[override]
        return self._state[0].config

    @property
    def state(self) -> tuple[Body, MemtableVersion | None]:
        """What holds the rows, after the log has been taken in."""
        state = self._state
        if state[2]:
            del state  # nobody should hold this form while it is merged
            state = self._take_in()
        return state[0], state[1]

    @property
    def metrics(self) -> Metrics | None:
        policy = self.state[0].policy
        return None if policy is None else policy.metrics

    @property
    def form(self) -> str:
        body = self.state[0]
        if body.spine is not None:
            return "trace"
        return "memtable" if body.grown else "small"

    def _set(self, body: Body, memtable: MemtableVersion | None) -> None:
        self._state = (body, memtable, (), _room(body, memtable), None)

    # ------------------------------------------------------------------ rows one by one

    def add(self, row: Row, weight: int) -> Payload:
        body, version, log, room, _ = self._state
        if version is not None:
            store = version.store
            with store.lock:
                moment = version.moment
                if store.head is moment and store.singles < store.look_at:
                    rows = store.rows
                    total = rows.get(row, 0) + weight
                    if -LARGE <= total <= LARGE:
                        if total:
                            rows[row] = total
                        else:
                            del rows[row]
                        store.singles += 1
                        # As `Version.advanced` does it, without its calls.
                        moment.delta = (row, weight)
                        moment.next = store.head = moment = Moment()
                        version = _new(Version)
                        version.store = store
                        version.moment = moment
                        payload: AdaptivePayload = _new(AdaptivePayload)
                        payload._state = (body, version, log, room, None)
                        return payload
        return self._add(row, weight)

    def _add(self, row: Row, weight: int) -> Payload:
        state = self._row_state()
        memtable = state[1] or _new_memtable(state[0])
        if memtable.store.large or not -LARGE <= weight <= LARGE:
            return super().plus_rows({row: weight})
        return _with_rows(state, memtable.advanced((row, weight)))

    def plus_rows(self, rows: dict[Row, int]) -> Payload:
        state = self._row_state()
        memtable = state[1] or _new_memtable(state[0])
        if len(rows) > min(WAITING, state[0].config.small_limit) or memtable.store.large:
            return super().plus_rows(rows)
        try:
            return _with_rows(state, memtable.advanced(rows))
        except LargeWeight:
            return super().plus_rows(rows)

    def _row_state(self) -> State:
        """The form to add single rows to. The rows of the small form are counted, so its log is taken in first."""
        state = self._state
        if state[2] and state[0].spine is None:
            del state
            state = self._take_in()
        return state

    def waiting_rows(self) -> dict[Row, int] | None:
        body, memtable, log, _, _ = self._state
        if memtable is None or log or body.spine is not None or body.grown or body.small.rows:
            return None
        return memtable.read(Memtable.waiting)

    def _set_look_at(self) -> None:
        """How many single rows may come before `_look_at_rows` is due."""
        body, memtable, _, _, _ = self._state
        if memtable is None:
            return
        store = memtable.store
        rows = len(store.rows)
        policy = body.policy
        if store.large:
            more = 0
        elif policy is not None and (body.spine is not None or body.grown):
            # Only S is met exactly; elsewhere a few rows too many cost less than looking at each of them.
            more = CLOCK_EVERY - 1 if body.spine is not None else max(policy.check_rows - rows, CLOCK_EVERY) - 1
            if policy.counts_singles and not policy.fallback:
                more = min(more, policy.flush_rows - 1 - len(store))
            if body.spine is None:
                shrink = body.config.shrink_limit
                more = min(more, max(len(store) - shrink, shrink // 8))
        else:
            more = body.room() - rows
        store.look_at = store.singles + max(more, 0)

    def _look_at_rows(self, store: Memtable, rows: int) -> None:
        """What single rows need now and then: to leave the small form or return to it, to be counted, to be flushed."""
        body, memtable, _, _, _ = self._state
        assert memtable is not None
        policy = body.policy or Policy(body.config, Metrics())
        if body.spine is None and not body.grown:
            if body.small.rows:
                small = _collected(self._state)
                if small.rows <= body.config.smallset_n:  # some of what waited took rows away
                    self._set(body.with_small(small), None)
                    return
                memtable = Version(Memtable(body.sort_key)).advanced(Columns(small))
                rows = 0
            policy.began()
            policy.moved("small", "memtable")
            self._set(Body(body.sort_key, body.config, Batch.empty(body.sort_key), None, policy, True), memtable)
        elif body.spine is None and len(store) < body.config.shrink_limit:
            self._slim()
            return
        if rows >= policy.check_rows:
            policy.look_at_singles(memtable.store)
        if self._consider_flush():
            self._slim()

    # ------------------------------------------------------------------ deltas in columns

    def bound(self) -> int:
        body, memtable, log, _, _ = self._state
        bound = body.bound() if memtable is None else body.bound() + memtable.read(Memtable.bound)
        return bound + sum([batch.largest for batch in log])

    def plus(self, other: Payload) -> Payload:
        if type(other) is AdaptivePayload:
            theirs, waiting, their_log, _, _ = other._state
            batch = theirs.sole
            if batch is not None and waiting is None and not their_log and batch.rows:
                logged = self._logged(batch)
                if logged is not None:
                    return logged
        waits = other.waiting_rows()
        if waits is not None:
            return self.plus_rows(waits)
        if isinstance(other, AdaptivePayload) and _size(self) * 4 < _size(other) and other.config == self.config:
            return other.plus_batches(self.parts())
        return self.plus_batches(other.parts())

    def _logged(self, batch: Batch) -> AdaptivePayload | None:
        """With a batch in the log, if there is room for it. By itself, so that nothing holds the form afterwards."""
        body, memtable, log, room, counted = self._state
        if batch.rows > room or len(log) >= LOG_DELTAS or batch.largest > MODEST:
            return None
        if not log and memtable is None and body.policy is not None:
            body.policy.began()
        payload: AdaptivePayload = _new(AdaptivePayload)
        payload._state = (body, memtable, (*log, batch), room - batch.rows, counted)
        return payload

    def plus_many(self, batches: Sequence[Batch]) -> Payload:
        some = [batch for batch in batches if batch.rows]
        rows = sum([batch.rows for batch in some])
        body, memtable, log, room, counted = self._state
        if body.sole is body.small and not body.grown and not body.small.rows and memtable is None and not log:
            room = body.room()
        if rows <= room and sum([batch.largest for batch in some]) <= MODEST:
            if not log and memtable is None and body.policy is not None:
                body.policy.began()
            payload: AdaptivePayload = _new(AdaptivePayload)
            payload._state = (body, memtable, (*log, *some), room - rows, counted)
            return payload
        return super().plus_many(batches)

    def plus_batches(self, batches: Sequence[Batch]) -> Payload:
        payload: Payload = self
        for batch in summable(batches, self.bound):
            if payload.is_large(batch) and payload.bound():
                payload = payload.plus_large(batch, AdaptivePayload.empty(self.sort_key, self.config))
            else:
                assert isinstance(payload, AdaptivePayload)
                payload = payload._plus(batch)
        return payload

    def _plus(self, batch: Batch) -> AdaptivePayload:
        """With a batch, put in its place, or in the log where there is room for it."""
        body, memtable, _, room, counted = self._take_in(batch.rows)
        payload: AdaptivePayload = _new(AdaptivePayload)
        if batch.rows <= room and batch.largest <= MODEST:
            if memtable is None and body.policy is not None:
                body.policy.began()
            payload._state = (body, memtable, (batch,), room - batch.rows, counted)
            return payload
        payload._state = (body, memtable, (), room, None)
        if body.spine is None and not body.grown:
            payload._take_small(batch)
            return payload
        if batch.rows >= DIRECT:
            if body.spine is None:
                payload._flush("size")
            payload._insert((batch,))
        else:
            payload._upsert((batch,))
        return payload

    def _take_in(self, coming: int = 0) -> State:
        """Go on with the merges that are due, then put the deltas of the log in their places; returns the form.

        `coming`: rows about to be added. Whoever adds little does not wait for the merges that someone else has paid.
        """
        self._pay(coming + sum([batch.rows for batch in self._state[2]]))
        state = self._state
        body, memtable, log, _, counted = state
        if not log:
            return state
        taken: AdaptivePayload = _new(AdaptivePayload)  # so that nobody sees a part of it
        if body.spine is None and not body.grown:
            taken._set(body.with_small(_collected(state)), None)
        else:
            large = [batch for batch in log if batch.rows >= DIRECT]
            few = [batch for batch in log if batch.rows < DIRECT] if len(large) < len(log) else large[:0]
            taken._state = (body, memtable, (), 0, None)
            if large:
                taken._insert(large)
                if not few and counted is not None and counted[1] == len(large):
                    taken._state[0].known(counted[0])
            if few:
                taken._upsert(few, begun=True)
        self._state = state = taken._state
        return state

    def _pay(self, rows: int) -> None:
        """Merge as much as inserts have paid for, giving back what has been merged: nobody else holds this form."""
        while rows > 0:
            body, memtable, log, room, counted = self._state
            if body.spine is None or body.spine.credit < body.spine.config.merge_step_rows:
                return
            before = body.spine.credit
            spine = body.spine.pay_merge()
            body = body.with_spine(spine, body._known, body._asked)
            if body.policy is not None:
                body.policy.metrics.spine = spine
            self._state = (body, memtable, log, room, counted)
            rows -= (before - spine.credit) // (2 * spine.config.merge_rows_per_row)

    def _insert(self, batches: Sequence[Batch]) -> None:
        """Add batches to the spine, as one."""
        body, memtable, _, _, _ = self._state
        assert body.spine is not None
        assert body.policy is not None
        batch = _sum(batches)
        spine = body.spine.insert(batch, pay=False)
        if _is_few(spine, FEW * body.config.small_limit):
            spine = spine.compacted()
        body.policy.inserted(batches, spine)
        self._set(body.with_spine(spine, body.count_with(batch)), memtable)
        if memtable is not None and spine.bound() > LARGE:
            self._flush("large", keep_hot=False)  # a memtable beside large weights has to be made for it
        self._slim()

    def _upsert(self, batches: Sequence[Batch], begun: bool = False) -> None:
        """Add batches to the memtable; `begun`: they have waited in the log."""
        body, memtable, _, _, _ = self._state
        if memtable is None:
            memtable = _new_memtable(body, begun)
        memtable = memtable.advanced(Columns(*batches))
        if memtable.store.large:
            memtable.store.look_at = 0  # single rows are now summed with what is in columns
        self._set(body, memtable)
        if self._consider_flush(len(batches)) or body.spine is None:
            self._slim()

    def _take_small(self, batch: Batch) -> None:
        """Add a batch to the small form, and leave it if there is too much of it now."""
        body, memtable, _, _, _ = self._state
        small = body.small
        if memtable is not None:
            waiting = memtable.read(lambda m: batch_of_rows(body.sort_key, m.rows))
            small = merged(body.sort_key, (small, waiting))
        limit = body.config.small_limit
        if small.rows + batch.rows <= limit:
            self._set(body.with_small(merge((small, batch)) if small.rows else batch), None)
            return
        policy = body.policy or Policy(body.config, Metrics())
        empty = Batch.empty(body.sort_key)
        if batch.rows >= DIRECT:
            spine = Spine(body.sort_key, (), spine_config(body.config)).insert(small).insert(batch)
            policy.inserted((batch,), spine)
            policy.moved("small", "trace")
            self._set(Body(body.sort_key, body.config, empty, spine, policy), None)
            return
        memtable = Version(Memtable(body.sort_key))
        memtable = memtable.advanced(Columns(small, batch) if small.rows else Columns(batch))
        policy.began()
        policy.moved("small", "memtable")
        self._set(Body(body.sort_key, body.config, empty, None, policy, True), memtable)

    # ------------------------------------------------------------------ changing the form

    def _consider_flush(self, changes: int = 1) -> bool:
        body, memtable, _, _, _ = self._state
        policy = body.policy
        if policy is None or memtable is None:
            return False
        store = memtable.store
        trigger = policy.trigger(len(store), store, 0 if body.spine is None else body.spine.rows, changes)
        if trigger is not None:
            self._flush(trigger)
        return trigger is not None

    def _flush(self, trigger: str, keep_hot: bool = True, few: Sequence[Batch] = ()) -> None:
        """Turn the memtable, and small deltas of the log, into a batch of the spine, except for hot rows; then spend
        the budget on merging."""
        body, memtable, _, _, _ = self._state
        policy = body.policy or Policy(body.config, Metrics())
        started = time.perf_counter()
        hot = Batch.empty(body.sort_key)
        cold, size = hot, sum([batch.nbytes() for batch in few])
        if memtable is not None:
            cold, hot, more = memtable.read(lambda m: (*m.split_hot(keep_hot), m.nbytes()))
            size += more
            policy.observe(memtable.store)
        if few:
            policy.noted(few)
            cold = merge((cold, _sum(few)))
        spine, known = body.spine, None
        if spine is None:
            spine = Spine(body.sort_key, (), spine_config(body.config)).insert(body.small)
            policy.moved("memtable" if body.grown else "small", "trace")
        else:
            known = body.count_with(cold)
        spine = spine.insert(cold, pay=False)
        flushed = time.perf_counter()
        is_few = _is_few(spine, FEW * body.config.small_limit)
        spine = spine.compacted() if is_few else spine.work(body.config.compact_budget_ms)
        kept = None
        if hot.rows:
            store = Memtable(body.sort_key)
            store.large = spine.bound() > LARGE
            kept = Version(store).advanced(Columns(hot))
        after = Body(body.sort_key, body.config, Batch.empty(body.sort_key), spine, policy)
        after._known = known
        metrics = policy.metrics
        metrics.kept_hot += hot.rows
        metrics.compact_seconds += time.perf_counter() - flushed
        metrics.spine = spine
        policy.flushed(trigger, cold.rows, size, time.perf_counter() - started)
        self._set(after, kept)

    def _slim(self) -> None:
        """Back to the small form where few rows are left."""
        body, memtable, log, _, _ = self._state
        limit = body.config.shrink_limit
        if body.spine is None:
            if not body.grown:
                return
            rows = body.small.rows
        elif not _is_few(body.spine, limit):
            return
        else:
            rows = body.spine.rows
        if memtable is not None:
            rows += memtable.read(len)
        if rows + sum([batch.rows for batch in log]) >= limit:
            return
        if body.policy is not None:
            body.policy.moved("trace" if body.spine is not None else "memtable", "small")
        self._set(body.with_small(_collected(self._state)), None)

    def _settle(self) -> Body:
        """Sort what waits: somebody reads in columns, and the next reader should not sort it again."""
        state = self._state
        body, memtable, log, _, _ = state
        if memtable is None and not log:
            return body
        settled: AdaptivePayload = _new(AdaptivePayload)
        settled._state = (body, memtable, (), 0, None)
        if body.spine is None and not body.grown:
            if body.policy is not None and memtable is not None:
                body.policy.demanded()
            settled._set(body.with_small(_collected(state)), None)
        elif memtable is None and body.spine is not None:
            if body.policy is not None and any(batch.rows < DIRECT for batch in log):
                body.policy.demanded()
            settled._insert(log)
        else:
            settled._settle_all(log)
        self._state = settled._state
        return settled._state[0]

    def _settle_all(self, log: Log) -> None:
        """Put a log and the memtable into the spine. Only for a payload that nobody else knows."""
        body = self._state[0]
        large = [batch for batch in log if batch.rows >= DIRECT]
        few = [batch for batch in log if batch.rows < DIRECT]
        if large:
            self._insert(large)
        if not few and self._state[1] is None:
            return
        if body.policy is not None:
            body.policy.demanded()
        if self._state[0].spine is None and not self._state[0].grown:  # little was left, so it is small
            self._set(self._state[0].with_small(merged(body.sort_key, (*self.parts(), *few))), None)
        else:
            self._flush("arranged", keep_hot=False, few=few)

    # ------------------------------------------------------------------ reading

    def parts(self) -> Sequence[Batch]:
        body = self._settle()
        return (body.small,) if body.spine is None else body.spine.batches

    def pieces(self) -> Sequence[Batch]:
        body, memtable, log, _, _ = self._state
        if memtable is not None:
            return self.parts()
        return (*((body.small,) if body.spine is None else body.spine.batches), *log)

    def _read_spine(self) -> Spine:
        """A spine to read everything through, without forgetting what has been computed for the one we hold."""
        return self._settle().reader() or Spine(self.sort_key)

    def weight(self, row: Row) -> int:
        body, version, log, _, _ = self._state
        if log:
            body, version = self.state
        total = 0
        if version is not None:
            store = version.store
            with store.lock:
                plain = store.head is version.moment and store.table is None
                if plain:
                    total = store.rows.get(row, 0)
            if not plain:
                total = version.read(lambda store: store.weight(row))
        look = body.look or body.looking()
        try:
            return total + look(row)
        except UNENCODABLE:
            spine = body.reader()
            return total if spine is None else total + weight_in(spine, row)

    def count(self) -> int:
        body, memtable, log, room, counted = self._state
        if memtable is None and body.spine is not None:  # the log is counted as it is
            if not log:
                return body.count()
            rows, at = (body.count(), 0) if counted is None else counted
            if at < len(log):
                change = _sum(log[at:])
                rows += body.count_change(log[:at], change)
                self._state = (body, memtable, log, room, (rows, len(log)))
            return rows
        body, memtable = self.state
        if memtable is not None and body.spine is None and not body.small.rows:
            return FastPayload(body.sort_key, body.config, memtable).count()
        return self._settle().count()

    def total_weight(self) -> int:
        body, memtable, log, _, _ = self._state
        total = 0 if memtable is None else FastPayload(body.sort_key, body.config, memtable).total_weight()
        beside = (body.small,) if body.spine is None else body.spine.batches
        return total + sum([batch.total_weight for batch in beside]) + sum([batch.total_weight for batch in log])

    def items(self) -> Iterator[tuple[Row, int]]:
        body, memtable = self.state
        if body.spine is None and not body.small.rows and memtable is not None:
            return FastPayload(body.sort_key, body.config, memtable).items()
        return super().items()

    def disjoint(self) -> Sequence[Batch]:
        spine = self._read_spine()
        parts = spine.disjoint()
        self._adopt(spine)
        return parts

    def _adopt(self, spine: Spine) -> None:
        """Keep the one batch that a reader had to make of the spine, and nothing else beside it."""
        body, memtable, log, room, counted = self._state
        if body.spine is spine and len(spine.entries) > 1 and "_consolidated" in spine.__dict__:
            whole = spine.compacted()
            if body.policy is not None:
                body.policy.metrics.spine = whole
            self._state = (body.with_spine(whole), memtable, log, room, counted)

    def batch(self) -> Batch:
        try:
            cached = self._batch
        except AttributeError:
            spine = self._read_spine()
            cached = self._batch = spine.consolidated()
            self._adopt(spine)
        else:
            if self.metrics is not None:
                self.metrics.cache_hits += 1
        return cached

    def arranged(self) -> Batch:
        body, memtable, log, _, _ = self._state
        small = body.spine is None and not body.grown
        waits = memtable is not None or (not small and any(batch.rows < DIRECT for batch in log))
        if body.policy is not None and not waits:
            body.policy.demanded()
        return self.batch()

    def subscribe(self, change: int) -> None:
        body, memtable, log, _, _ = self._state
        policy = body.policy
        if policy is None:
            body = Body(body.sort_key, body.config, body.small, body.spine, None, body.grown)
            policy = body.policy = Policy(body.config, Metrics())
        policy.metrics.subscribers += change
        policy.retune()
        if memtable is not None:
            memtable.store.look_at = 0  # what may wait is another matter now
        self._state = (body, memtable, log, min(self._state[3], _room(body, memtable)), None)


def _collected(state: State) -> Batch:
    """All rows of a form as one batch, leaving it as it is: for decisions about the form itself."""
    body, memtable, log, _, _ = state
    parts = [*((body.small,) if body.spine is None else body.spine.batches), *log]
    if memtable is not None:
        parts.append(memtable.read(Memtable.batch))
    return merged(body.sort_key, parts)


def _new_memtable(body: Body, begun: bool = False) -> MemtableVersion:
    """A memtable beside a body; `begun`: its rows have waited in the log."""
    if body.policy is not None and not begun:
        body.policy.began()
    memtable = Memtable(body.sort_key)
    memtable.large = body.bound() > LARGE  # then its rows are summed with those outside it at every step
    return Version(memtable)


def _with_rows(state: State, memtable: MemtableVersion) -> AdaptivePayload:
    """A form with a memtable that has just taken rows given by themselves; looks at what needs a look now and then."""
    body, before, log, room, _ = state
    payload: AdaptivePayload = _new(AdaptivePayload)
    payload._state = (body, memtable, log, _room(body, memtable) if before is None else room, None)
    store = memtable.store
    rows = len(store.rows)
    policy = body.policy
    due = store.singles >= store.look_at
    if body.spine is not None:
        assert policy is not None
        policy.clock_in = 0 if due else policy.clock_in - 1
        looked = policy.clock_in > 0 and rows < policy.check_rows
    elif body.grown:
        assert policy is not None
        looked = body.config.shrink_limit <= rows < policy.check_rows
    else:
        looked = rows <= body.room()
    if not looked:
        payload._look_at_rows(store, rows)
    payload._set_look_at()
    return payload


def _sum(batches: Sequence[Batch]) -> Batch:
    """The sum of a log, by groups: merging many at a time takes longer the more of them hold the same rows."""
    while len(batches) > _GROUP:
        batches = [merge(batches[at : at + _GROUP]) for at in range(0, len(batches), _GROUP)]
    return batches[0] if len(batches) == 1 else merge(batches)


def _is_few(spine: Spine, limit: int) -> bool:
    """Whether a spine holds at most so many rows; hardly ever has to count them."""
    for entry in spine.entries:
        if type(entry) is Batch and entry.rows > limit:
            return False
    return spine.rows <= limit


def _size(payload: AdaptivePayload) -> int:
    """About how many rows are held; good enough to choose which of two summands to add to the other."""
    body, memtable, log, _, _ = payload._state
    rows = body.small.rows if body.spine is None else body.spine.rows
    rows += sum([batch.rows for batch in log])
    return rows if memtable is None else rows + len(memtable.store)


__all__ = ["DIRECT", "LOG_DELTAS", "LOG_ROWS", "AdaptivePayload", "Body"]
