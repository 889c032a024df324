"""`Adaptive`: a Z-set that changes its form with its workload.

| form | what holds the rows | for |
|---|---|---|
| small | one sorted batch of up to about N rows | deltas |
| memtable | a hash table | many changes, few reads in order |
| trace | batches in a spine, a memtable in front | many rows |

New rows go where adding them is cheapest, whatever the form is: rows added one by one to the dict of the memtable,
deltas in columns to the *log*, a tuple of batches. When the log is full it is applied: its large batches are merged and
inserted into the spine, its small ones go to the memtable in one call. The remaining capacity of the log is computed in
advance, so checking it costs an addition one comparison. `Policy` decides when the memtable is flushed. Invariants:

1. The value is the sum of sorted part, memtable and log. Flushing, merging and applying the log change the form only,
   so a payload may do them in place.
2. A payload does them before rows are added to it. The new payload then shares the new form, nothing refers to the old
   one, and a merge in progress frees its inputs as it goes.
3. The form is one attribute, `_state`, replaced as a whole: readers on other threads see the old form or the new one.
4. A method reads `_state` once and works on what it has read: another thread may replace it by another form of the same
   value in the meantime.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.delta import merge_or_empty
from dbspark.columnar.row_codec import UNENCODABLE
from dbspark.columnar.rows import Row
from dbspark.trace.spine import Spine, summable
from dbspark.zset.config import ZSetConfig
from dbspark.zset.memtable import (
    MAX_PYTHON_ROWS,
    MAX_UNCHECKED_WEIGHT,
    ColumnDelta,
    LargeWeight,
    Memtable,
    batch_of_rows,
)
from dbspark.zset.metrics import Metrics
from dbspark.zset.payload import FastPayload, Payload, row_weight, spine_config
from dbspark.zset.policy import CHANGES_PER_CHECK, SMALL_TRACE_FACTOR, Policy
from dbspark.zset.sorted_part import Log, SortedPart
from dbspark.zset.versions import Version, VersionNode

MIN_SPINE_ROWS: Final = 48
"""Deltas in columns with at least this many rows go to the spine, smaller ones to the memtable."""
MAX_LOG_ROWS: Final = 4096
"""Rows in the log, at most."""
MAX_LOG_DELTAS: Final = 64
"""Deltas in the log, at most."""
MAX_LOG_WEIGHT: Final = 1 << 40
"""Deltas with larger weights do not go to the log, so that no sum of weights of a full log overflows int64."""
_MERGE_FAN_IN: Final = 8
"""Batches of a log that are merged at a time."""
MemtableVersion = Version[Memtable]
LogRowCount = tuple[int, int]
"""(rows, n): the number of distinct rows of the sorted part and the first n deltas of the log together."""
State = tuple[SortedPart, MemtableVersion | None, Log, int, LogRowCount | None]
"""Sorted part, memtable, log, rows that the log may still take, and the last count."""
_new = object.__new__


def _log_capacity(part: SortedPart, memtable: MemtableVersion | None) -> int:
    """Rows in columns that an empty log may take before the form has to be checked."""
    if part.bound() > MAX_UNCHECKED_WEIGHT or (memtable is not None and memtable.store.large):
        return 0
    if part.spine is None and not part.is_memtable:
        return part.room() if memtable is None and part.small.rows else 0
    assert part.policy is not None
    room = MAX_LOG_ROWS if part.spine is not None else MIN_SPINE_ROWS - 1
    if memtable is not None:
        return min(room, part.policy.memtable_headroom(memtable.store))
    return min(room, part.policy.flush_rows - 1)


class AdaptivePayload(Payload):
    """A Z-set that is small, a memtable or a trace; deltas in columns go to its log first."""

    __slots__ = ("_batch", "_state")

    _batch: Batch
    _state: State

    def __init__(self, part: SortedPart, memtable: MemtableVersion | None) -> None:
        self._state = (part, memtable, (), _log_capacity(part, memtable), None)

    @staticmethod
    def empty(sort_key: SortKey, config: ZSetConfig) -> AdaptivePayload:
        return AdaptivePayload(SortedPart(sort_key, config, Batch.empty(sort_key)), None)

    @property
    def sort_key(self) -> SortKey:  # type: ignore[override]
        return self._state[0].sort_key

    @property
    def config(self) -> ZSetConfig:  # type: ignore[override]
        return self._state[0].config

    @property
    def state(self) -> tuple[SortedPart, MemtableVersion | None]:
        """Sorted part and memtable, with the log applied."""
        state = self._state
        if state[2]:
            del state  # no reference may keep this form alive while it is merged
            state = self._apply_log()
        return state[0], state[1]

    @property
    def metrics(self) -> Metrics | None:
        policy = self.state[0].policy
        return None if policy is None else policy.metrics

    @property
    def form(self) -> str:
        part = self.state[0]
        if part.spine is not None:
            return "trace"
        return "memtable" if part.is_memtable else "small"

    def _set(self, part: SortedPart, memtable: MemtableVersion | None) -> None:
        self._state = (part, memtable, (), _log_capacity(part, memtable), None)

    # ------------------------------------------------------------------ rows one by one

    def add(self, row: Row, weight: int) -> Payload:
        part, version, log, room, _ = self._state
        if version is not None:
            store = version.store
            with store.lock:
                node = version.node
                if store.head is node and store.row_adds < store.next_check:
                    rows = store.rows
                    total = rows.get(row, 0) + weight
                    if -MAX_UNCHECKED_WEIGHT <= total <= MAX_UNCHECKED_WEIGHT:
                        if total:
                            rows[row] = total
                        else:
                            del rows[row]
                        store.row_adds += 1
                        # As `Version.with_delta` does it, without its calls.
                        node.delta = (row, weight)
                        node.next = store.head = node = VersionNode()
                        version = _new(Version)
                        version.store = store
                        version.node = node
                        payload: AdaptivePayload = _new(AdaptivePayload)
                        payload._state = (part, version, log, room, None)
                        return payload
        return self._add(row, weight)

    def _add(self, row: Row, weight: int) -> Payload:
        state = self._row_state()
        memtable = state[1] or _new_memtable(state[0])
        if memtable.store.large or not -MAX_UNCHECKED_WEIGHT <= weight <= MAX_UNCHECKED_WEIGHT:
            return super().plus_rows({row: weight})
        return _with_rows(state, memtable.with_delta((row, weight)))

    def plus_rows(self, rows: dict[Row, int]) -> Payload:
        state = self._row_state()
        memtable = state[1] or _new_memtable(state[0])
        if len(rows) > min(MAX_PYTHON_ROWS, state[0].config.small_limit) or memtable.store.large:
            return super().plus_rows(rows)
        try:
            return _with_rows(state, memtable.with_delta(rows))
        except LargeWeight:
            return super().plus_rows(rows)

    def _row_state(self) -> State:
        """The state to add single rows to. The small form has a limit on its rows, so its log is applied first."""
        state = self._state
        if state[2] and state[0].spine is None:
            del state
            state = self._apply_log()
        return state

    def as_python_rows(self) -> dict[Row, int] | None:
        part, memtable, log, _, _ = self._state
        if memtable is None or log or part.spine is not None or part.is_memtable or part.small.rows:
            return None
        return memtable.read(Memtable.python_rows)

    def _schedule_check(self) -> None:
        """Set `next_check`: after how many more single rows `_check_form` is called."""
        part, memtable, _, _, _ = self._state
        if memtable is None:
            return
        store = memtable.store
        rows = len(store.rows)
        policy = part.policy
        if store.large:
            more = 0
        elif policy is not None and (part.spine is not None or part.is_memtable):
            # Only the limit S is exact; exceeding the others by a few rows costs less than checking after each row.
            more = (
                CHANGES_PER_CHECK - 1
                if part.spine is not None
                else max(policy.check_rows - rows, CHANGES_PER_CHECK) - 1
            )
            if policy.counts_row_adds and not policy.fallback:
                more = min(more, policy.flush_rows - 1 - len(store))
            if part.spine is None:
                shrink = part.config.shrink_limit
                more = min(more, max(len(store) - shrink, shrink // 8))
        else:
            more = part.room() - rows
        store.next_check = store.row_adds + max(more, 0)

    def _check_form(self, store: Memtable, rows: int) -> None:
        """Called after some single rows: leave the small form or return to it, update the statistics, flush."""
        part, memtable, _, _, _ = self._state
        assert memtable is not None
        policy = part.policy or Policy(part.config, Metrics())
        if part.spine is None and not part.is_memtable:
            if part.small.rows:
                small = _consolidated_state(self._state)
                if small.rows <= part.config.smallset_n:  # some of the added rows cancelled others
                    self._set(part.with_small(small), None)
                    return
                memtable = Version(Memtable(part.sort_key)).with_delta(ColumnDelta(small))
                rows = 0
            policy.start_memtable()
            policy.record_transition("small", "memtable")
            self._set(
                SortedPart(part.sort_key, part.config, Batch.empty(part.sort_key), None, policy, True),
                memtable,
            )
        elif part.spine is None and len(store) < part.config.shrink_limit:
            self._shrink()
            return
        if rows >= policy.check_rows:
            policy.check_row_adds(memtable.store)
        if self._consider_flush():
            self._shrink()

    # ------------------------------------------------------------------ deltas in columns

    def bound(self) -> int:
        part, memtable, log, _, _ = self._state
        bound = part.bound() if memtable is None else part.bound() + memtable.read(Memtable.bound)
        return bound + sum([batch.largest for batch in log])

    def plus(self, other: Payload) -> Payload:
        if type(other) is AdaptivePayload:
            theirs, their_memtable, their_log, _, _ = other._state
            batch = theirs.only_batch
            if batch is not None and their_memtable is None and not their_log and batch.rows:
                logged = self._with_log_entry(batch)
                if logged is not None:
                    return logged
        rows = other.as_python_rows()
        if rows is not None:
            return self.plus_rows(rows)
        if (
            isinstance(other, AdaptivePayload)
            and _estimated_rows(self) * 4 < _estimated_rows(other)
            and other.config == self.config
        ):
            return other.plus_batches(self.parts())
        return self.plus_batches(other.parts())

    def _with_log_entry(self, batch: Batch) -> AdaptivePayload | None:
        """This payload with a batch appended to the log; None if the log is full. A function of its own, because its
        locals would otherwise keep the old state alive in the caller."""
        part, memtable, log, room, counted = self._state
        if batch.rows > room or len(log) >= MAX_LOG_DELTAS or batch.largest > MAX_LOG_WEIGHT:
            return None
        if not log and memtable is None and part.policy is not None:
            part.policy.start_memtable()
        payload: AdaptivePayload = _new(AdaptivePayload)
        payload._state = (part, memtable, (*log, batch), room - batch.rows, counted)
        return payload

    def plus_many(self, batches: Sequence[Batch]) -> Payload:
        batches_with_rows = [batch for batch in batches if batch.rows]
        rows = sum([batch.rows for batch in batches_with_rows])
        part, memtable, log, room, counted = self._state
        if (
            part.only_batch is part.small
            and not part.is_memtable
            and not part.small.rows
            and memtable is None
            and not log
        ):
            room = part.room()
        if rows <= room and sum([batch.largest for batch in batches_with_rows]) <= MAX_LOG_WEIGHT:
            if not log and memtable is None and part.policy is not None:
                part.policy.start_memtable()
            payload: AdaptivePayload = _new(AdaptivePayload)
            payload._state = (part, memtable, (*log, *batches_with_rows), room - rows, counted)
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
        """This payload plus a batch, which goes to the log if it fits, else to the small form, the spine or the
        memtable."""
        part, memtable, _, room, counted = self._apply_log(batch.rows)
        payload: AdaptivePayload = _new(AdaptivePayload)
        if batch.rows <= room and batch.largest <= MAX_LOG_WEIGHT:
            if memtable is None and part.policy is not None:
                part.policy.start_memtable()
            payload._state = (part, memtable, (batch,), room - batch.rows, counted)
            return payload
        payload._state = (part, memtable, (), room, None)
        if part.spine is None and not part.is_memtable:
            payload._add_to_small(batch)
            return payload
        if batch.rows >= MIN_SPINE_ROWS:
            if part.spine is None:
                payload._flush("size")
            payload._insert((batch,))
        else:
            payload._upsert((batch,))
        return payload

    def _apply_log(self, coming: int = 0) -> State:
        """Run merges that inserts have paid for, then apply the log; returns the new state.

        `coming`: rows about to be added. As many merges run as these rows pay for, so adding a few rows never waits for
        a merge that a large delta has paid for.
        """
        self._run_merges(coming + sum([batch.rows for batch in self._state[2]]))
        state = self._state
        part, memtable, log, _, counted = state
        if not log:
            return state
        taken: AdaptivePayload = _new(AdaptivePayload)  # other threads must not see a log half applied
        if part.spine is None and not part.is_memtable:
            taken._set(part.with_small(_consolidated_state(state)), None)
        else:
            large = [batch for batch in log if batch.rows >= MIN_SPINE_ROWS]
            small_deltas = (
                [batch for batch in log if batch.rows < MIN_SPINE_ROWS] if len(large) < len(log) else large[:0]
            )
            taken._state = (part, memtable, (), 0, None)
            if large:
                taken._insert(large)
                if not small_deltas and counted is not None and counted[1] == len(large):
                    taken._state[0].set_row_count(counted[0])
            if small_deltas:
                taken._upsert(small_deltas, begun=True)
        self._state = state = taken._state
        return state

    def _run_merges(self, rows: int) -> None:
        """Run merges of the spine, in proportion to `rows`; frees their inputs as nothing else refers to this state."""
        while rows > 0:
            part, memtable, log, room, counted = self._state
            if part.spine is None or part.spine.credit < part.spine.config.merge_step_rows:
                return
            before = part.spine.credit
            spine = part.spine.pay_merge()
            part = part.with_spine(spine, part._row_count, part._counts_inserts)
            if part.policy is not None:
                part.policy.metrics.spine = spine
            self._state = (part, memtable, log, room, counted)
            rows -= (before - spine.credit) // (2 * spine.config.merge_rows_per_row)

    def _insert(self, batches: Sequence[Batch]) -> None:
        """Merge batches to one and insert it into the spine."""
        part, memtable, _, _, _ = self._state
        assert part.spine is not None
        assert part.policy is not None
        batch = _merge_log(batches)
        spine = part.spine.insert(batch, pay=False)
        if _has_at_most(spine, SMALL_TRACE_FACTOR * part.config.small_limit):
            spine = spine.compacted()
        part.policy.record_insert(batches, spine)
        self._set(part.with_spine(spine, part.count_with(batch)), memtable)
        if memtable is not None and spine.bound() > MAX_UNCHECKED_WEIGHT:
            self._flush("large", keep_hot=False)  # `_new_memtable` then makes one with overflow checks
        self._shrink()

    def _upsert(self, batches: Sequence[Batch], begun: bool = False) -> None:
        """Add batches to the memtable. `begun`: the age of a new memtable counts from when the batches were added to
        the log."""
        part, memtable, _, _, _ = self._state
        if memtable is None:
            memtable = _new_memtable(part, begun)
        memtable = memtable.with_delta(ColumnDelta(*batches))
        if memtable.store.large:
            memtable.store.next_check = 0  # the next single row must take the path with overflow checks
        self._set(part, memtable)
        if self._consider_flush(len(batches)) or part.spine is None:
            self._shrink()

    def _add_to_small(self, batch: Batch) -> None:
        """Add a batch to the small form, and take another form if it has too many rows now."""
        part, memtable, _, _, _ = self._state
        small = part.small
        if memtable is not None:
            added = memtable.read(lambda m: batch_of_rows(part.sort_key, m.rows))
            small = merge_or_empty(part.sort_key, (small, added))
        limit = part.config.small_limit
        if small.rows + batch.rows <= limit:
            self._set(part.with_small(merge((small, batch)) if small.rows else batch), None)
            return
        policy = part.policy or Policy(part.config, Metrics())
        empty = Batch.empty(part.sort_key)
        if batch.rows >= MIN_SPINE_ROWS:
            spine = Spine(part.sort_key, (), spine_config(part.config)).insert(small).insert(batch)
            policy.record_insert((batch,), spine)
            policy.record_transition("small", "trace")
            self._set(SortedPart(part.sort_key, part.config, empty, spine, policy), None)
            return
        memtable = Version(Memtable(part.sort_key))
        memtable = memtable.with_delta(ColumnDelta(small, batch) if small.rows else ColumnDelta(batch))
        policy.start_memtable()
        policy.record_transition("small", "memtable")
        self._set(SortedPart(part.sort_key, part.config, empty, None, policy, True), memtable)

    # ------------------------------------------------------------------ changing the form

    def _consider_flush(self, changes: int = 1) -> bool:
        part, memtable, _, _, _ = self._state
        policy = part.policy
        if policy is None or memtable is None:
            return False
        store = memtable.store
        trigger = policy.trigger(len(store), store, 0 if part.spine is None else part.spine.rows, changes)
        if trigger is not None:
            self._flush(trigger)
        return trigger is not None

    def _flush(self, trigger: str, keep_hot: bool = True, small_deltas: Sequence[Batch] = ()) -> None:
        """Insert the memtable, without hot rows, and small deltas of the log into the spine as one batch; then merge
        for up to `compact_budget_ms`."""
        part, memtable, _, _, _ = self._state
        policy = part.policy or Policy(part.config, Metrics())
        started = time.perf_counter()
        hot = Batch.empty(part.sort_key)
        cold, size = hot, sum([batch.nbytes() for batch in small_deltas])
        if memtable is not None:
            cold, hot, more = memtable.read(lambda m: (*m.split_hot(keep_hot), m.nbytes()))
            size += more
            policy.record_memtable(memtable.store)
        if small_deltas:
            policy.record_deltas(small_deltas)
            cold = merge((cold, _merge_log(small_deltas)))
        spine, known = part.spine, None
        if spine is None:
            spine = Spine(part.sort_key, (), spine_config(part.config)).insert(part.small)
            policy.record_transition("memtable" if part.is_memtable else "small", "trace")
        else:
            known = part.count_with(cold)
        spine = spine.insert(cold, pay=False)
        flushed = time.perf_counter()
        is_few = _has_at_most(spine, SMALL_TRACE_FACTOR * part.config.small_limit)
        spine = spine.compacted() if is_few else spine.work(part.config.compact_budget_ms)
        kept = None
        if hot.rows:
            store = Memtable(part.sort_key)
            store.large = spine.bound() > MAX_UNCHECKED_WEIGHT
            kept = Version(store).with_delta(ColumnDelta(hot))
        after = SortedPart(part.sort_key, part.config, Batch.empty(part.sort_key), spine, policy)
        after._row_count = known
        metrics = policy.metrics
        metrics.kept_hot += hot.rows
        metrics.compact_seconds += time.perf_counter() - flushed
        metrics.spine = spine
        policy.flushed(trigger, cold.rows, size, time.perf_counter() - started)
        self._set(after, kept)

    def _shrink(self) -> None:
        """Return to the small form if fewer than `shrink_limit` rows are left."""
        part, memtable, log, _, _ = self._state
        limit = part.config.shrink_limit
        if part.spine is None:
            if not part.is_memtable:
                return
            rows = part.small.rows
        elif not _has_at_most(part.spine, limit):
            return
        else:
            rows = part.spine.rows
        if memtable is not None:
            rows += memtable.read(len)
        if rows + sum([batch.rows for batch in log]) >= limit:
            return
        if part.policy is not None:
            part.policy.record_transition("trace" if part.spine is not None else "memtable", "small")
        self._set(part.with_small(_consolidated_state(self._state)), None)

    def _sort_pending(self) -> SortedPart:
        """Sort memtable and log for a read in columns, and keep the result, so that the next read need not sort."""
        state = self._state
        part, memtable, log, _, _ = state
        if memtable is None and not log:
            return part
        settled: AdaptivePayload = _new(AdaptivePayload)
        settled._state = (part, memtable, (), 0, None)
        if part.spine is None and not part.is_memtable:
            if part.policy is not None and memtable is not None:
                part.policy.record_ordered_read()
            settled._set(part.with_small(_consolidated_state(state)), None)
        elif memtable is None and part.spine is not None:
            if part.policy is not None and any(batch.rows < MIN_SPINE_ROWS for batch in log):
                part.policy.record_ordered_read()
            settled._insert(log)
        else:
            settled._sort_all_pending(log)
        self._state = settled._state
        return settled._state[0]

    def _sort_all_pending(self, log: Log) -> None:
        """Insert a log and the memtable into the spine. Only for a payload that no other thread can see."""
        part = self._state[0]
        large = [batch for batch in log if batch.rows >= MIN_SPINE_ROWS]
        small_deltas = [batch for batch in log if batch.rows < MIN_SPINE_ROWS]
        if large:
            self._insert(large)
        if not small_deltas and self._state[1] is None:
            return
        if part.policy is not None:
            part.policy.record_ordered_read()
        if self._state[0].spine is None and not self._state[0].is_memtable:  # few rows are left: small
            self._set(self._state[0].with_small(merge_or_empty(part.sort_key, (*self.parts(), *small_deltas))), None)
        else:
            self._flush("arranged", keep_hot=False, small_deltas=small_deltas)

    # ------------------------------------------------------------------ reading

    def parts(self) -> Sequence[Batch]:
        part = self._sort_pending()
        return (part.small,) if part.spine is None else part.spine.batches

    def pieces(self) -> Sequence[Batch]:
        part, memtable, log, _, _ = self._state
        if memtable is not None:
            return self.parts()
        return (*((part.small,) if part.spine is None else part.spine.batches), *log)

    def _read_spine(self) -> Spine:
        """A spine with all rows: that of the state if there is one, because it may have cached results."""
        return self._sort_pending().lookup_spine() or Spine(self.sort_key)

    def weight(self, row: Row) -> int:
        part, version, log, _, _ = self._state
        if log:
            part, version = self.state
        total = 0
        if version is not None:
            store = version.store
            with store.lock:
                plain = store.head is version.node and store.table is None
                if plain:
                    total = store.rows.get(row, 0)
            if not plain:
                total = version.read(lambda store: store.weight(row))
        weight_lookup = part.weight_lookup or part.make_weight_lookup()
        try:
            return total + weight_lookup(row)
        except UNENCODABLE:
            spine = part.lookup_spine()
            return total if spine is None else total + row_weight(spine, row)

    def count(self) -> int:
        part, memtable, log, room, counted = self._state
        if memtable is None and part.spine is not None:  # counted without applying the log
            if not log:
                return part.count()
            rows, at = (part.count(), 0) if counted is None else counted
            if at < len(log):
                change = _merge_log(log[at:])
                rows += part.count_change(log[:at], change)
                self._state = (part, memtable, log, room, (rows, len(log)))
            return rows
        part, memtable = self.state
        if memtable is not None and part.spine is None and not part.small.rows:
            return FastPayload(part.sort_key, part.config, memtable).count()
        return self._sort_pending().count()

    def total_weight(self) -> int:
        part, memtable, log, _, _ = self._state
        total = 0 if memtable is None else FastPayload(part.sort_key, part.config, memtable).total_weight()
        beside = (part.small,) if part.spine is None else part.spine.batches
        return total + sum([batch.total_weight for batch in beside]) + sum([batch.total_weight for batch in log])

    def items(self) -> Iterator[tuple[Row, int]]:
        part, memtable = self.state
        if part.spine is None and not part.small.rows and memtable is not None:
            return FastPayload(part.sort_key, part.config, memtable).items()
        return super().items()

    def disjoint(self) -> Sequence[Batch]:
        spine = self._read_spine()
        parts = spine.disjoint()
        self._adopt_consolidated(spine)
        return parts

    def _adopt_consolidated(self, spine: Spine) -> None:
        """Replace the spine of the state by the one batch that a read has consolidated it to."""
        part, memtable, log, room, counted = self._state
        if part.spine is spine and len(spine.entries) > 1 and "_consolidated" in spine.__dict__:
            whole = spine.compacted()
            if part.policy is not None:
                part.policy.metrics.spine = whole
            self._state = (part.with_spine(whole), memtable, log, room, counted)

    def batch(self) -> Batch:
        try:
            cached = self._batch
        except AttributeError:
            spine = self._read_spine()
            cached = self._batch = spine.consolidated()
            self._adopt_consolidated(spine)
        else:
            if self.metrics is not None:
                self.metrics.cache_hits += 1
        return cached

    def arranged(self) -> Batch:
        part, memtable, log, _, _ = self._state
        small = part.spine is None and not part.is_memtable
        unsorted = memtable is not None or (not small and any(batch.rows < MIN_SPINE_ROWS for batch in log))
        if part.policy is not None and not unsorted:
            part.policy.record_ordered_read()
        return self.batch()

    def subscribe(self, change: int) -> None:
        part, memtable, log, _, _ = self._state
        policy = part.policy
        if policy is None:
            part = SortedPart(
                part.sort_key,
                part.config,
                part.small,
                part.spine,
                None,
                part.is_memtable,
            )
            policy = part.policy = Policy(part.config, Metrics())
        policy.metrics.subscribers += change
        policy.update_thresholds()
        if memtable is not None:
            memtable.store.next_check = 0  # a subscriber lowers the limits, so check at the next row
        self._state = (part, memtable, log, min(self._state[3], _log_capacity(part, memtable)), None)


def _consolidated_state(state: State) -> Batch:
    """All rows of a state as one batch; the state stays as it is."""
    part, memtable, log, _, _ = state
    parts = [*((part.small,) if part.spine is None else part.spine.batches), *log]
    if memtable is not None:
        parts.append(memtable.read(Memtable.batch))
    return merge_or_empty(part.sort_key, parts)


def _new_memtable(part: SortedPart, begun: bool = False) -> MemtableVersion:
    """An empty memtable. `begun`: its age counts already, since its first rows were added to the log."""
    if part.policy is not None and not begun:
        part.policy.start_memtable()
    memtable = Memtable(part.sort_key)
    memtable.large = part.bound() > MAX_UNCHECKED_WEIGHT  # then every addition checks the sum with the sorted part
    return Version(memtable)


def _with_rows(state: State, memtable: MemtableVersion) -> AdaptivePayload:
    """A payload whose memtable has just taken rows as Python tuples; checks its form if that is due."""
    part, before, log, room, _ = state
    payload: AdaptivePayload = _new(AdaptivePayload)
    payload._state = (
        part,
        memtable,
        log,
        _log_capacity(part, memtable) if before is None else room,
        None,
    )
    store = memtable.store
    rows = len(store.rows)
    policy = part.policy
    due = store.row_adds >= store.next_check
    if part.spine is not None:
        assert policy is not None
        policy.changes_to_check = 0 if due else policy.changes_to_check - 1
        looked = policy.changes_to_check > 0 and rows < policy.check_rows
    elif part.is_memtable:
        assert policy is not None
        looked = part.config.shrink_limit <= rows < policy.check_rows
    else:
        looked = rows <= part.room()
    if not looked:
        payload._check_form(store, rows)
    payload._schedule_check()
    return payload


def _merge_log(batches: Sequence[Batch]) -> Batch:
    """A log merged to one batch, some at a time: merging many that hold the same rows at once is slower."""
    while len(batches) > _MERGE_FAN_IN:
        batches = [merge(batches[at : at + _MERGE_FAN_IN]) for at in range(0, len(batches), _MERGE_FAN_IN)]
    return batches[0] if len(batches) == 1 else merge(batches)


def _has_at_most(spine: Spine, limit: int) -> bool:
    """Whether a spine holds at most `limit` distinct rows; not counted if one batch alone has more."""
    for entry in spine.entries:
        if type(entry) is Batch and entry.rows > limit:
            return False
    return spine.rows <= limit


def _estimated_rows(payload: AdaptivePayload) -> int:
    """An upper bound on the number of rows, by which `plus` adds the smaller summand to the larger."""
    part, memtable, log, _, _ = payload._state
    rows = part.small.rows if part.spine is None else part.spine.rows
    rows += sum([batch.rows for batch in log])
    return rows if memtable is None else rows + len(memtable.store)


__all__ = ["MAX_LOG_DELTAS", "MAX_LOG_ROWS", "MIN_SPINE_ROWS", "AdaptivePayload", "SortedPart"]
