"""`Adaptive`: one Z-set that takes the form its workload asks for.

It is exactly one of

* **small**: at most about N rows, one sorted vector;
* **memtable**: a hash table of rows, cheap to change;
* **trace**: levelled batches in a spine, with a memtable in front for small changes and hot rows.

Rows given one by one wait in the memtable's dict in any form; they are sorted when somebody reads in order. Deltas
that are batches already and not small skip the memtable. `Policy` decides when the memtable is flushed; flushing
never changes the value, only its form, so a payload may do it to itself while it is being read. Its form is one
attribute, replaced at once, so that readers on other threads see the old form or the new one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dbspark.batch import Arrangement, Batch, merge
from dbspark.batch.rows import Row
from dbspark.trace.spine import Spine, summable
from dbspark.zset.config import ZSetConfig
from dbspark.zset.memtable import LARGE, WAITING, Columns, LargeWeight, Memtable, batch_of_rows
from dbspark.zset.metrics import Metrics
from dbspark.zset.payload import FastPayload, Payload, merged, spine_config
from dbspark.zset.policy import FEW, Policy
from dbspark.zset.versions import Version

DIRECT: Final = 48
"""A delta of this many rows goes to the spine as it is: it is sorted already."""

MemtableVersion = Version[Memtable]


@dataclass(frozen=True, slots=True)
class Body:
    """Everything of a payload but its memtable; shared by all payloads between two flushes."""

    arrangement: Arrangement
    config: ZSetConfig
    small: Batch
    spine: Spine | None = None
    policy: Policy | None = None
    grown: bool = False
    """Without a spine: whether the rows are a memtable rather than a small vector with a few rows waiting."""

    def bound(self) -> int:
        """No weight outside the memtable is larger in magnitude."""
        return self.small.largest if self.spine is None else self.spine.bound()

    def room(self) -> int:
        """Rows that may wait before something has to be looked at, in the small form."""
        return self.config.small_limit - self.small.rows


class AdaptivePayload(Payload):
    """See the module's preface."""

    __slots__ = ("_batch", "state")

    _batch: Batch

    def __init__(self, body: Body, memtable: MemtableVersion | None) -> None:
        self.state = (body, memtable)

    @staticmethod
    def empty(arrangement: Arrangement, config: ZSetConfig) -> AdaptivePayload:
        return AdaptivePayload(Body(arrangement, config, Batch.empty(arrangement)), None)

    @property
    def arrangement(self) -> Arrangement:  # type: ignore[override]
        return self.state[0].arrangement

    @property
    def config(self) -> ZSetConfig:  # type: ignore[override]
        return self.state[0].config

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

    # ------------------------------------------------------------------ writing

    def add(self, row: Row, weight: int) -> Payload:
        body, memtable = self.state
        if memtable is None:
            memtable = self._new_memtable()
        if memtable.store.large or not -LARGE <= weight <= LARGE:
            return super().plus_rows({row: weight})
        return _with_rows(body, memtable.advanced((row, weight)))

    def plus_rows(self, rows: dict[Row, int]) -> Payload:
        body, memtable = self.state
        if memtable is None:
            memtable = self._new_memtable()
        if len(rows) > min(WAITING, body.config.small_limit) or memtable.store.large:
            return super().plus_rows(rows)
        try:
            return _with_rows(body, memtable.advanced(rows))
        except LargeWeight:
            return super().plus_rows(rows)

    def waiting_rows(self) -> dict[Row, int] | None:
        body, memtable = self.state
        if body.spine is not None or body.grown or body.small.rows or memtable is None:
            return None
        return memtable.read(Memtable.waiting)

    def _new_memtable(self) -> MemtableVersion:
        body = self.state[0]
        if body.policy is not None:
            body.policy.began()
        memtable = Memtable(body.arrangement)
        memtable.large = body.bound() > LARGE  # then its rows are summed with those outside it at every step
        return Version(memtable)

    def _after_row(self, store: Memtable, rows: int) -> AdaptivePayload:
        """What single rows need now and then: to leave the small form or return to it, to be counted, to be flushed."""
        body, memtable = self.state
        assert memtable is not None
        policy = body.policy or _new_policy(body.config)
        if body.spine is None and not body.grown:
            if body.small.rows:
                small = self._collected()
                if small.rows <= body.config.smallset_n:  # some of what waited took rows away
                    return AdaptivePayload(replace(body, small=small), None)
                memtable = Version(Memtable(body.arrangement)).advanced(Columns(small))
                rows = 0
            policy.began()
            policy.moved("small", "memtable")
            empty = Batch.empty(body.arrangement)
            self.state = (Body(body.arrangement, body.config, empty, None, policy, True), memtable)
        elif body.spine is None and rows + (0 if store.table is None else len(store.table)) < body.config.shrink_limit:
            return self._slimmed()
        if rows >= policy.check_rows:
            policy.look_at_singles(memtable.store)
        return self._slimmed() if self._consider_flush() else self

    def bound(self) -> int:
        body, memtable = self.state
        return body.bound() if memtable is None else body.bound() + memtable.read(Memtable.bound)

    def plus(self, other: Payload) -> Payload:
        rows = other.waiting_rows()
        if rows is not None:
            return self.plus_rows(rows)
        smaller = isinstance(other, AdaptivePayload) and _size(self.state) * 4 < _size(other.state)
        if smaller and other.config == self.config:
            return other.plus_batches(self.parts())
        return self.plus_batches(other.parts())

    def plus_batches(self, batches: Sequence[Batch]) -> Payload:
        payload: Payload = self
        for batch in summable(batches, self.bound):
            if payload.is_large(batch) and payload.bound():
                payload = payload.plus_large(batch, AdaptivePayload.empty(self.arrangement, self.config))
            else:
                assert isinstance(payload, AdaptivePayload)
                payload = payload._plus(batch)
        return payload

    def _plus(self, batch: Batch) -> AdaptivePayload:
        body, memtable = self.state
        spine = body.spine
        if spine is None:
            if not body.grown:
                return self._plus_small(batch)
            if batch.rows >= DIRECT:
                payload = AdaptivePayload(body, memtable)
                payload._flush("size")
                return payload._plus(batch)
        elif batch.rows >= DIRECT:
            spine = spine.insert(batch)
            if spine.rows <= FEW * body.config.small_limit:
                spine = spine.compacted()
            if body.policy is not None:
                body.policy.inserted(batch, spine)
            payload = AdaptivePayload(replace(body, spine=spine), memtable)
            if memtable is not None and spine.bound() > LARGE:
                payload._flush("large", keep_hot=False)  # a memtable beside large weights has to be made for it
            return payload._slimmed()
        if memtable is None:
            memtable = self._new_memtable()
        payload = AdaptivePayload(body, memtable.advanced(Columns(batch)))
        if payload._consider_flush() or spine is None:
            return payload._slimmed()
        return payload

    def _plus_small(self, batch: Batch) -> AdaptivePayload:
        body, memtable = self.state
        small = body.small
        if memtable is not None:
            waiting = memtable.read(lambda m: batch_of_rows(body.arrangement, m.rows))
            small = merged(body.arrangement, (small, waiting))
        limit = body.config.small_limit
        if small.rows == 0 and batch.rows <= limit:
            return AdaptivePayload(replace(body, small=batch), None)
        if small.rows + batch.rows <= limit:
            return AdaptivePayload(replace(body, small=merge((small, batch))), None)
        policy = body.policy or _new_policy(body.config)
        empty = Batch.empty(body.arrangement)
        if batch.rows >= DIRECT:
            spine = Spine(body.arrangement, (), spine_config(body.config)).insert(small).insert(batch)
            policy.inserted(batch, spine)
            policy.moved("small", "trace")
            return AdaptivePayload(Body(body.arrangement, body.config, empty, spine, policy), None)
        memtable = Version(Memtable(body.arrangement)).advanced(Columns(small)).advanced(Columns(batch))
        policy.began()
        policy.moved("small", "memtable")
        return AdaptivePayload(Body(body.arrangement, body.config, empty, None, policy, True), memtable)

    def _consider_flush(self) -> bool:
        body, memtable = self.state
        policy = body.policy
        if policy is None or memtable is None:
            return False
        store = memtable.store
        trigger = policy.trigger(len(store), store, 0 if body.spine is None else body.spine.rows)
        if trigger is not None:
            self._flush(trigger)
        return trigger is not None

    def _flush(self, trigger: str, keep_hot: bool = True) -> None:
        """Turn the memtable into a batch of the spine, except for hot rows; then spend the budget on merging."""
        body, memtable = self.state
        policy = body.policy or _new_policy(body.config)
        assert memtable is not None
        started = time.perf_counter()
        cold, hot, size = memtable.read(lambda m: (*m.split_hot(keep_hot), m.nbytes()))
        policy.observe(memtable.store)
        spine = body.spine
        if spine is None:
            spine = Spine(body.arrangement, (), spine_config(body.config)).insert(body.small)
            policy.moved(self.form, "trace")
        spine = spine.insert(cold)
        flushed = time.perf_counter()
        few = spine.rows <= FEW * body.config.small_limit
        spine = spine.compacted() if few else spine.work(body.config.compact_budget_ms)
        kept = None
        if hot.rows:
            store = Memtable(body.arrangement)
            store.large = spine.bound() > LARGE
            kept = Version(store).advanced(Columns(hot))
        self.state = (Body(body.arrangement, body.config, Batch.empty(body.arrangement), spine, policy), kept)
        metrics = policy.metrics
        metrics.kept_hot += hot.rows
        metrics.compact_seconds += time.perf_counter() - flushed
        metrics.spine = spine
        policy.flushed(trigger, cold.rows, size, time.perf_counter() - started)

    def _slimmed(self) -> AdaptivePayload:
        """Back to the small form where few rows are left."""
        body, memtable = self.state
        rows = body.small.rows if body.spine is None else body.spine.rows
        if memtable is not None:
            rows += memtable.read(len)
        if rows >= body.config.shrink_limit or self.form == "small":
            return self
        if body.policy is not None:
            body.policy.moved(self.form, "small")
        return AdaptivePayload(Body(body.arrangement, body.config, self._collected(), None, body.policy), None)

    # ------------------------------------------------------------------ reading

    def _settle(self) -> Body:
        """Sort what waits in the memtable: somebody reads in columns, and the next reader should not sort it again."""
        body, memtable = self.state
        if memtable is None:
            return body
        if body.policy is not None:
            body.policy.demanded()
        if body.spine is None and not body.grown:
            self.state = (replace(body, small=self._collected()), None)
        else:
            self._flush("arranged", keep_hot=False)
        return self.state[0]

    def _collected(self) -> Batch:
        """All rows as one batch, leaving the form as it is: for decisions about the form itself."""
        body, memtable = self.state
        parts = [body.small] if body.spine is None else list(body.spine.batches)
        if memtable is not None:
            parts.append(memtable.read(Memtable.batch))
        return merged(body.arrangement, parts)

    def parts(self) -> Sequence[Batch]:
        body = self._settle()
        return (body.small,) if body.spine is None else body.spine.batches

    def _read_spine(self) -> Spine:
        """A spine to read everything through, without forgetting what has been computed for the one we hold."""
        body = self._settle()
        return Spine(body.arrangement, (body.small,)) if body.spine is None else body.spine

    def weight(self, row: Row) -> int:
        body, memtable = self.state
        probe = None
        total = 0
        if body.spine is not None or body.small.rows:
            probe = batch_of_rows(body.arrangement, {row: 1})
            spine = body.spine if body.spine is not None else Spine(body.arrangement, (body.small,))
            total = int(spine.weights_of(probe)[0])
        if memtable is not None:
            found = probe

            def read(store: Memtable) -> int:
                there = found
                if store.table is not None and there is None:
                    there = batch_of_rows(body.arrangement, {row: 1})
                return store.weight(row, None if there is None else there.chunks[0])

            total += memtable.read(read)
        return total

    def count(self) -> int:
        body, memtable = self.state
        if body.spine is None and not body.small.rows:
            return 0 if memtable is None else FastPayload(body.arrangement, body.config, memtable).count()
        return self._read_spine().count()

    def total_weight(self) -> int:
        body, memtable = self.state
        total = 0 if memtable is None else FastPayload(body.arrangement, body.config, memtable).total_weight()
        beside = (body.small,) if body.spine is None else body.spine.batches
        return total + sum(batch.total_weight for batch in beside)

    def items(self) -> Iterator[tuple[Row, int]]:
        body, memtable = self.state
        if body.spine is None and not body.small.rows and memtable is not None:
            return FastPayload(body.arrangement, body.config, memtable).items()
        return super().items()

    def disjoint(self) -> Sequence[Batch]:
        return self._read_spine().disjoint()

    def batch(self) -> Batch:
        try:
            cached = self._batch
        except AttributeError:
            cached = self._batch = self._read_spine().consolidated()
        else:
            if self.metrics is not None:
                self.metrics.cache_hits += 1
        return cached

    def arranged(self) -> Batch:
        policy = self.state[0].policy
        if policy is not None and self.state[1] is None:
            policy.demanded()
        return self.batch()

    def subscribe(self, change: int) -> None:
        body, memtable = self.state
        policy = body.policy
        if policy is None:
            policy = _new_policy(body.config)
            self.state = (replace(body, policy=policy), memtable)
        policy.metrics.subscribers += change
        policy.retune()


def _with_rows(body: Body, memtable: MemtableVersion) -> AdaptivePayload:
    """A payload whose memtable has just taken rows given by themselves."""
    payload = AdaptivePayload(body, memtable)
    store = memtable.store
    rows = len(store.rows)
    policy = body.policy
    if body.spine is not None:
        assert policy is not None
        policy.clock_in -= 1
        if policy.clock_in > 0 and rows < policy.check_rows:
            return payload
    elif body.grown:
        assert policy is not None
        if body.config.shrink_limit <= rows < policy.check_rows:
            return payload
    elif rows <= body.room():
        return payload
    return payload._after_row(store, rows)


def _size(state: tuple[Body, MemtableVersion | None]) -> int:
    """About how many rows are held; good enough to choose which of two summands to add to the other."""
    body, memtable = state
    rows = body.small.rows if body.spine is None else body.spine.rows
    return rows if memtable is None else rows + len(memtable.store)


def _new_policy(config: ZSetConfig) -> Policy:
    return Policy(config, Metrics())


__all__ = ["DIRECT", "AdaptivePayload", "Body"]
