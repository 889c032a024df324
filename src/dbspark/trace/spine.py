"""`Spine`: the sequence of batches, in levels, in which all state is stored: an LSM tree as an immutable value.

1. A spine is immutable. `insert` and `work` return a new spine that shares all batches with the old one, so forks,
   snapshots and rollbacks cost nothing, and no read changes while it runs.
2. Entries are ordered from oldest to newest, and only neighbours are merged. An entry is a batch or a merge in progress
   (`trace.merge_state`). The output so far and the unread rest of the inputs of a merge are disjoint ranges of key
   hashes. They are read as a few more batches, and no row is in memory twice: merges hardly raise the peak of memory.
3. Rows may have times (`trace.time`). Then every batch has a description and begins where the one before it ends. A
   `Compaction` says what merges may do: only batches before its physical frontier are merged; times are advanced to
   its logical frontier, as it is when the merge begins. A batch without rows is absorbed by its neighbour.

`trace.merge_policy` decides what is merged. Cost: merges of few rows run inside the insert. Larger ones advance in
steps paid for by credit, some rows for every row inserted: enough that a merge is done long before the next one of its
level is due, and no insert waits for a whole merge. `work` spends a time budget instead, or finishes everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.batch_index import NO_INDEX_REF, IndexRef
from dbspark.columnar.chunk import CHUNK_ROWS, Chunk
from dbspark.columnar.memory import INT64_MAX, Int64s
from dbspark.columnar.merge_batches import MergePlan, run_merge
from dbspark.columnar.row_times import time_bounds
from dbspark.kernels.memory.layout import ROW_BITS, ROW_MASK, TIMES
from dbspark.lazy import Lazy
from dbspark.trace.bloom_filter import BloomFilter
from dbspark.trace.config import DEFAULT, Compaction, SpineConfig
from dbspark.trace.directory import BatchDirectory, LookupCounters, Sources, sources_of
from dbspark.trace.merge_policy import SettledTail, extend_settled_tail, level_of, next_merge, settled_tail, space_share
from dbspark.trace.merge_state import Entry, MergeSource, MergeState, since_of
from dbspark.trace.row_positions import MAX_CUTS_PER_CHUNK, patch_weights, positions_in, row_positions, weights_in
from dbspark.trace.statistics import SpineStats, new_lookup_counters
from dbspark.trace.time import Antichain, Description

LAST_TIME = (INT64_MAX,) * TIMES
"""A time at or above every other: everything is advanced to it where times do not matter."""
MIN_FILTERED_BATCHES = 4
"""A spine with fewer batches gets no Bloom filter: searching each batch costs no more."""
MAX_KEYS_PER_EXCLUDED = 4
"""A Bloom filter that excludes fewer than one in this many keys is dropped: it costs more than it saves."""
_DERIVED = ("_batch_directory", "batches", "rows", "merges", "_has_paid_merges")
"""Attributes derived from `entries`, computed when first used; dropped whenever `entries` change."""
INDEX_SEARCH_SPEEDUP = 64
"""With an index a search costs this many times less, so a merge join pays off only for this many times more keys."""


def _extend_description(entry: Any, lower: Antichain, last: Description) -> Any:
    """An entry with a description that also covers empty intervals of time before or after it."""
    description = Description(lower, last.upper, entry.description.since)
    if type(entry) is MergeState:
        return replace(entry, description=description)
    batch = entry.with_description(description)
    if "place" in entry.__dict__:  # the rows are the same, so their place in the store is, too
        batch.__dict__["place"] = entry.__dict__["place"]
    return batch


def summable(batches: Iterable[Batch], bound: Callable[[], int]) -> Sequence[Batch]:
    """Batches that can be added one by one to weights within `bound` without overflow.

    These are the given batches, or their sum if adding only some of them might overflow although adding all does not.
    """
    nonempty = [b for b in batches if b.rows]
    if len(nonempty) > 1 and bound() + sum(b.largest for b in nonempty) > INT64_MAX:
        return (merge(nonempty),)
    return nonempty


class Spine:
    """An immutable sequence of batches, newest last, whose sum is the state."""

    __slots__ = (
        "__dict__",
        "_bloom_filter",
        "_bound",
        "_tail",
        "_unfiltered_batches",
        "compaction",
        "config",
        "credit",
        "entries",
        "sort_key",
        "stats",
    )  # fmt: skip

    def __init__(
        self,
        sort_key: SortKey,
        entries: tuple[Entry, ...] = (),
        config: SpineConfig = DEFAULT,
        stats: SpineStats | None = None,
        credit: int = 0,
        bound: int | None = None,
        compaction: Compaction | None = None,
        bloom_filter: BloomFilter | None = None,
    ) -> None:
        self.sort_key = sort_key
        self.entries = entries
        self.config = config
        self.stats = stats if stats is not None else SpineStats()
        self.credit = credit
        self._bound = bound
        self._tail: SettledTail | None = None
        """The summary of the newest batches, if no merge is due among them."""
        self.compaction = compaction
        self._bloom_filter = bloom_filter
        """The filter of the keys of all batches but the newest `_unfiltered_batches`."""
        self._unfiltered_batches = 0

    def _with_merged_entries(self, entries: tuple[Entry, ...], credit: int, bound: int | None = None) -> Spine:
        """The spine with other entries for the same rows, after some merging."""
        return self._with_rows(entries, credit, bound, self._complete_filter)

    @property
    def _complete_filter(self) -> BloomFilter | None:
        """The filter, if it covers all batches."""
        return None if self._unfiltered_batches else self._bloom_filter

    def _with_rows(
        self, entries: tuple[Entry, ...], credit: int, bound: int | None, bloom_filter: BloomFilter | None
    ) -> Spine:
        """The spine with other entries, and the Bloom filter of their keys."""
        return Spine(self.sort_key, entries, self.config, self.stats, credit, bound, self.compaction, bloom_filter)

    def bound(self) -> int:
        """An upper bound of the magnitude of every weight, summed over all batches."""
        if self._bound is None:
            self._bound = sum(b.largest for b in self.batches)
        return self._bound

    # ------------------------------------------------------------------ writing

    def insert(self, batch: Batch, pay: bool = True) -> Spine:
        """The spine with one more batch, newer than all others.

        Without `pay` the credit is left for `pay_merge`.
        """
        if batch.rows == 0:
            if self.compaction is None:
                return self
            return self._with_merged_entries(self._drop_empty((*self.entries, batch)), self.credit, self._bound)
        if not self.entries:
            return self._with_rows((batch,), self.credit, None, None)
        bound = self.bound() + batch.largest
        if bound > INT64_MAX and self.compaction is None:
            return self._insert_large(batch)
        self.stats.record_insert(batch)
        bloom_filter = self._extended_filter(batch)
        entries: tuple[Entry, ...] = (*self.entries, batch)
        credit = self.credit + batch.rows * self.config.merge_rows_per_row
        tail = extend_settled_tail(self.config, self.stats, self.entries, self._tail, batch)
        steps_due = credit >= self.config.merge_step_rows
        if tail is not None and bound <= INT64_MAX and self._may_merge(batch):
            if steps_due and pay and not self._has_paid_merges:
                credit, steps_due = 0, False
            if not steps_due:
                out = self._share_derived(self._with_rows(entries, credit, bound, bloom_filter), batch)
                out._tail = tail
                return out
        if self.compaction is not None:
            entries = self._drop_empty(entries)
        if bound > INT64_MAX:
            bound = sum(b.largest for b in self.batches) + batch.largest  # computed anew: inserts only ever raise it
            if bound > INT64_MAX:  # the sum of some of the batches might overflow although that of all does not
                return self._with_rows(entries, self.credit, bound, bloom_filter)
        entries = self._start_due_merges(entries)
        if pay and steps_due:
            if MergeState in map(type, entries):
                entries, credit = self._advance_merges(entries, credit, self.config.min_background_rows)
            else:
                credit = 0
        return self._share_directory(self._with_rows(entries, credit, bound, bloom_filter))

    def _extended_filter(self, batch: Batch) -> BloomFilter | None:
        """The filter of this spine with one more batch; None if there is none or it is not worth its cost."""
        bloom_filter, stats, least = self._bloom_filter, self.stats, self.config.min_filtered_rows
        if least is None or self._unfiltered_batches:
            return None
        if bloom_filter is None:
            if max(least, stats.no_filter_up_to_rows) > self.rows or len(self.batches) < MIN_FILTERED_BATCHES:
                return None
            if stats.sought_keys * len(self.batches) < stats.insert_rows:
                return None  # adding keys would cost more than searching every batch
            bloom_filter = BloomFilter.start_build(self.batches)
        elif bloom_filter.view is not None and stats.filtered_keys * MAX_KEYS_PER_EXCLUDED < stats.sought_keys:
            stats.no_filter_up_to_rows = 4 * self.rows
            return None
        return bloom_filter.with_batch(batch, self.batches)

    def with_batch(self, batch: Batch) -> Spine:
        """The spine with one more batch, without starting merges: to read a state that is not committed yet."""
        out = self._share_derived(self._with_rows((*self.entries, batch), self.credit, None, self._bloom_filter), batch)
        out._unfiltered_batches = self._unfiltered_batches + 1
        return out

    def _share_derived(self, out: Spine, batch: Batch) -> Spine:
        """Set derived attributes of `out`, which has one more batch than this spine, from those of this one."""
        if "_batch_directory" in self.__dict__:
            out.__dict__["_batch_directory"] = directory = self._batch_directory.with_batch(
                batch, self._index_ref(batch)
            )
            out.__dict__["batches"] = directory.batches
        if "rows" in self.__dict__:
            out.__dict__["rows"] = self.__dict__["rows"] + batch.rows
        for name in ("merges", "_has_paid_merges"):
            if name in self.__dict__:
                out.__dict__[name] = self.__dict__[name]
        return out

    def _share_directory(self, out: Spine) -> Spine:
        """Make the directory of `out`, which shares most batches with this spine, from the directory of this one."""
        if out.entries and self._may_merge(out.entries[-1]):
            out._tail = settled_tail(self.config, self.stats, out.entries)
        if "_batch_directory" in self.__dict__:
            out.__dict__["_batch_directory"] = self._batch_directory.with_batches(out.batches, out._index_ref)
        return out

    def _may_merge(self, entry: Entry) -> bool:
        """Whether an entry, and so all older ones, may be merged: no reader stands at its end."""
        compaction = self.compaction
        return compaction is None or entry.description.upper.dominates(compaction.physical)

    @Lazy
    def _has_paid_merges(self) -> bool:
        """Whether merges are in progress that inserts pay for, not the background thread."""
        return self.merges and any(
            type(e) is MergeState
            and (self.config.min_background_rows is None or e.total < self.config.min_background_rows)
            for e in self.entries
        )

    def compact_to(self, compaction: Compaction) -> Spine:
        """The spine with another `Compaction`; merges that it makes possible are started."""
        spine = self.with_compaction(compaction)
        if self.bound() > INT64_MAX:
            return spine
        return spine._share_directory(
            spine._with_merged_entries(
                spine._start_due_merges(spine._drop_empty(self.entries)), self.credit, self._bound
            )
        )

    def with_compaction(self, compaction: Compaction) -> Spine:
        """The same spine with another `Compaction` for later merges. Frontiers only move forward."""
        fields = self.sort_key, self.entries, self.config, self.stats, self.credit, self._bound
        out = Spine(*fields, compaction, self._complete_filter)
        out._tail = self._tail
        for name in _DERIVED:
            if name in self.__dict__:
                out.__dict__[name] = self.__dict__[name]
        return out

    def with_config(self, config: SpineConfig) -> Spine:
        """The same spine with other limits."""
        if config is self.config:
            return self
        return Spine(self.sort_key, self.entries, config, self.stats, self.credit, self._bound, self.compaction)

    def insert_all(self, batches: Iterable[Batch]) -> Spine:
        """The spine with the sum of some batches."""
        spine = self
        for batch in summable(batches, self.bound):
            spine = spine.insert(batch)
        return spine

    def with_entries(self, entries: tuple[Entry, ...]) -> Spine:
        """The spine with entries that the background thread has merged further; merges that are due then are
        started."""
        entries = self._drop_empty(entries)
        if self.bound() <= INT64_MAX:
            entries = self._start_due_merges(entries)
        return self._share_directory(self._with_merged_entries(entries, self.credit, self._bound))

    def with_own_stats(self) -> Spine:
        """The same spine with statistics of its own."""
        stats = replace(self.stats, lookup_counters=new_lookup_counters())
        return Spine(self.sort_key, self.entries, self.config, stats, self.credit, self._bound, self.compaction)

    def _insert_large(self, batch: Batch) -> Spine:
        """Insert where weights are so large that partial sums might overflow: everything becomes one exact sum."""
        bound = sum(b.largest for b in self.batches) + batch.largest
        if bound <= INT64_MAX:  # computed anew: inserts only ever raise it
            return self._with_merged_entries(self.entries, self.credit, bound - batch.largest).insert(batch)
        whole = merge((self.consolidated(), batch))
        return self._with_rows((whole,) if whole.rows else (), self.credit, None, None)

    def pay_merge(self) -> Spine:
        """The spine after one step of the newest merge, if the credit suffices; else this spine."""
        step = self.config.merge_step_rows
        if self.credit < step:
            return self
        entries = list(self.entries)
        at = max((i for i, e in enumerate(entries) if type(e) is MergeState), default=-1)
        if at < 0:
            return Spine(self.sort_key, self.entries, self.config, self.stats, 0, self._bound)
        started = time.perf_counter()
        entry: Any = entries[at]
        limit = min(max(self.credit // 2, step), CHUNK_ROWS)
        entries[at] = stepped = entry.step(limit)
        if type(stepped) is Batch:
            self.stats.record_merge(entry.total, stepped.rows)
        left = self.credit - max(limit, entry.rows - stepped.rows)
        self.stats.seconds += time.perf_counter() - started
        kept = self._start_due_merges(tuple(e for e in entries if e.rows))
        return Spine(self.sort_key, kept, self.config, self.stats, max(left, 0), self._bound)

    def work(self, budget_ms: float | None = None) -> Spine:
        """Advance merges for some time, or until none is due."""
        if self.bound() > INT64_MAX:
            return self
        deadline = None if budget_ms is None else time.perf_counter() + budget_ms / 1000
        entries = self._start_due_merges(self.entries)
        while MergeState in map(type, entries):
            entries, _ = self._advance_merges(
                entries, self.config.merge_step_rows if deadline is not None else CHUNK_ROWS, None
            )
            if deadline is not None and time.perf_counter() >= deadline:
                break
        if entries is self.entries:
            return self
        return self._with_merged_entries(entries, self.credit, self._bound)

    def exert(self, effort: int) -> Spine:
        """Advance merges by `effort` rows, or start one that is not due yet: for idle time.

        Called repeatedly it merges everything before the physical frontier into one batch; then it returns this spine.
        """
        if self.bound() > INT64_MAX:
            return self
        entries = self._start_due_merges(self.entries)
        ready = self._mergeable(entries)
        if ready > 1 and MergeState not in map(type, entries):
            entries = (*entries[: ready - 2], self._start_merge(entries[ready - 2 : ready]), *entries[ready:])
        elif ready == 1 and self._has_stale_times(entries[0]):
            entries = (self._start_merge(entries[:1]), *entries[1:])
        if MergeState in map(type, entries):
            entries, _ = self._advance_merges(
                entries, max(effort, self.config.merge_step_rows), self.config.min_background_rows
            )
        return self if entries == self.entries else self._with_merged_entries(entries, self.credit, self._bound)

    def has_stale_times(self) -> bool:
        """Whether the spine is one batch that rewriting would make smaller, because its times can be advanced."""
        return self._mergeable(self.entries) == 1 and self._has_stale_times(self.entries[0])

    def _has_stale_times(self, entry: Entry) -> bool:
        """Whether a batch has several times and has not been advanced to the logical frontier: rows that readers at the
        frontier cannot tell apart then cancel or become one."""
        if self.compaction is None or type(entry) is not Batch or not entry.rows:
            return False
        since = self.compaction.logical.join(entry.description.since)
        return entry.description.since != since and entry.time is None

    def compacted(self) -> Spine:
        """The spine as one batch."""
        whole = self.consolidated()
        return self._with_merged_entries((whole,) if whole.rows else (), self.credit)

    def backlog(self) -> int:
        """Rows still to be read by merges in progress."""
        return sum(e.unread for e in self.entries if type(e) is MergeState)

    def _mergeable(self, entries: tuple[Entry, ...]) -> int:
        """How many of the oldest entries may be merged."""
        ready = len(entries)
        if self.compaction is not None:
            physical = self.compaction.physical
            while ready and not entries[ready - 1].description.upper.dominates(physical):
                ready -= 1
        return ready

    def _start_due_merges(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Start the merges that are due among the batches behind the last merge in progress, and do small ones."""
        ready = self._mergeable(entries)
        pending = entries[ready:]
        entries = entries[:ready]
        while True:
            first = len(entries)
            while first > 0 and type(entries[first - 1]) is Batch:
                first -= 1
            tail: Sequence[Any] = entries[first:]
            if len(tail) < 2:
                return entries + pending
            begin = next_merge(self.config, self.stats, tail, first == 0)
            if begin is None:
                return entries + pending
            head = entries[: first + begin]
            begun = self._start_merge(tail[begin:])
            if begun.total > self.config.max_inline_merge_rows:
                return (*head, begun, *pending)
            started = time.perf_counter()
            merged = merge(begun.inputs, since_of(begun.description))
            if begun.retain is not None:
                merged = begun.retain(merged)
            self.stats.seconds += time.perf_counter() - started
            self.stats.record_merge(begun.total, merged.rows)
            entries = (*head, merged.with_description(begun.description))
            if not merged.rows:
                entries = self._drop_empty(entries)

    def _start_merge(self, inputs: Sequence[Any]) -> MergeState:
        """A merge of neighbours, before its first step."""
        total = sum(b.rows for b in inputs)
        compaction = self.compaction
        if compaction is None:
            return MergeState((), tuple(inputs), (0,) * len(inputs), total, source=MergeSource.of(inputs))
        since = compaction.logical
        for batch in inputs:
            since = since.join(batch.description.since)
        description = Description(inputs[0].description.lower, inputs[-1].description.upper, since)
        return MergeState(
            (), tuple(inputs), (0,) * len(inputs), total, description, compaction.retain, MergeSource.of(inputs)
        )

    def _drop_empty(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Entries without those that have no rows. In a trace a neighbour covers their interval of time."""
        if not [e for e in entries if type(e) is Batch and e.rows == 0]:
            return entries
        if self.compaction is None:
            return tuple(e for e in entries if e.rows)
        ready = self._mergeable(entries)
        kept: list[Any] = []
        for entry in entries[:ready]:
            if kept and type(entry) is Batch and entry.rows == 0:
                kept[-1] = _extend_description(kept[-1], kept[-1].description.lower, entry.description)
            elif len(kept) == 1 and type(kept[0]) is Batch and kept[0].rows == 0:
                kept[0] = _extend_description(entry, kept[0].description.lower, entry.description)
            else:
                kept.append(entry)
        return (*kept, *entries[ready:])

    def space_share(self) -> float:
        """Newer rows allowed beside the oldest batch, as a share of it (`trace.merge_policy`)."""
        return space_share(self.config, self.stats)

    def _advance_merges(
        self, entries: tuple[Entry, ...], credit: int, background: int | None
    ) -> tuple[tuple[Entry, ...], int]:
        """Spend credit on merges in progress, newest (smallest) first; skip those of `background` rows or more."""
        started = time.perf_counter()
        changed = list(entries)
        for i in range(len(changed) - 1, -1, -1):
            entry = changed[i]
            if type(entry) is not MergeState or (background is not None and entry.total >= background):
                continue
            while credit >= self.config.merge_step_rows and type(entry) is MergeState:
                before = entry.rows
                limit = min(max(credit // 2, self.config.merge_step_rows), CHUNK_ROWS)
                stepped = entry.step(limit)
                credit -= max(limit, before - stepped.rows)
                if type(stepped) is Batch:
                    self.stats.record_merge(entry.total, stepped.rows)
                entry = stepped
            changed[i] = entry
            if credit < self.config.merge_step_rows:
                break
        self.stats.seconds += time.perf_counter() - started
        kept = self._drop_empty(tuple(changed))
        return self._start_due_merges(kept), max(credit, 0) if MergeState in map(type, kept) else 0

    # ------------------------------------------------------------------ reading

    def upper(self) -> Antichain | None:
        """The end of a spine with times; None where nothing has been inserted."""
        return self.entries[-1].description.upper if self.entries else None

    @Lazy
    def batches(self) -> tuple[Batch, ...]:
        """The batches to read, oldest first. The weight of a row is its sum over these."""
        out: list[Batch] = []
        for entry in self.entries:
            if type(entry) is MergeState:
                out += entry.batches()
            else:
                out.append(entry)  # type: ignore[arg-type]
        return tuple(out)

    @Lazy
    def merges(self) -> bool:
        """Whether merges are in progress."""
        return MergeState in map(type, self.entries)

    @Lazy
    def rows(self) -> int:
        """Rows, before consolidation across batches."""
        return sum([e.rows for e in self.entries])

    def levels(self) -> list[tuple[int, int, int]]:
        """(level, batches, rows) from the largest level down."""
        found: dict[int, list[int]] = {}
        for batch in self.batches:
            found.setdefault(level_of(self.config, batch.rows), []).append(batch.rows)
        return [(level, len(sizes), sum(sizes)) for level, sizes in sorted(found.items(), reverse=True)]

    @property
    def sources(self) -> Sources:
        """All chunks for kernels: node tables, lengths, fences, and where the chunks of each batch start."""
        return self._batch_directory.sources

    @Lazy
    def _batch_directory(self) -> BatchDirectory:
        return BatchDirectory.of(self.batches, [self._index_ref(b) for b in self.batches])

    @property
    def index_refs(self) -> Int64s:
        """The reference of the hash index of each batch (`kernels.lookup.index`); zeros where it has none."""
        return self._batch_directory.index_refs

    def prefers_walk(self, delta: int) -> bool:
        """Whether to look up a delta of so many rows by walking along both sides (`SpineStats.prefers_walk`)."""
        return self.stats.prefers_walk(
            delta, self.rows if self.config.min_indexed_rows is None else INDEX_SEARCH_SPEEDUP * self.rows
        )

    @property
    def directory(self) -> int:
        """The address of the directory of all batches for kernels; valid as long as the spine exists."""
        return self._directory[0]

    @Lazy
    def _directory(self) -> tuple[int, Any]:
        return self._batch_directory.directory(self._lookup_counters())

    def _lookup_counters(self) -> LookupCounters:
        if self._bloom_filter is None:
            return LookupCounters(self.stats.lookup_counters)
        return LookupCounters(
            self.stats.lookup_counters, self._bloom_filter.view, len(self.batches) - self._unfiltered_batches
        )

    @property
    def chunks(self) -> int:
        """How many chunks there are in all batches."""
        return self._batch_directory.chunks

    def _index_ref(self, batch: Batch) -> IndexRef:
        """The reference of the index of a batch, which is built if the batch is large enough."""
        least = self.config.min_indexed_rows
        made = least is not None and (batch.rows >= least or "index" in batch.__dict__)
        return batch.index.ref if made else NO_INDEX_REF

    @Lazy
    def _consolidated(self) -> Batch:
        batches = self.batches
        if not batches:
            return Batch.empty(self.sort_key)
        if self.compaction is None:
            return merge(batches)
        if self.bound() > INT64_MAX:  # partial sums may overflow although the totals do not
            nonempty = [b for b in batches if b.rows]
            return Batch(self.sort_key, run_merge(MergePlan(nonempty, within=time_bounds(since=LAST_TIME)))).at_time(())
        return merge(batches, LAST_TIME).at_time(())

    def consolidated(self) -> Batch:
        """All rows as one batch; computed once for each spine."""
        return self._consolidated

    @Lazy
    def _corrections(self) -> tuple[Batch, Batch, Int64s] | None:
        """The largest batch, the sum of all others, and the positions of the sum's rows in the largest (-1: nowhere).

        None where the others have so many rows that consolidating costs less.
        """
        batches = self.batches
        if len(batches) <= 1 or "_consolidated" in self.__dict__ or self.compaction is not None:
            return None
        at = max(range(len(batches)), key=lambda i: batches[i].rows)
        largest, others = batches[at], batches[:at] + batches[at + 1 :]
        if sum(b.rows for b in others) * 8 > largest.rows:
            return None
        change = merge(others)
        return largest, change, positions_in(largest, change)

    def count(self) -> int:
        """Rows whose total weight is not zero."""
        corrected = self._corrections
        if corrected is None:
            return self.consolidated().rows
        largest, change, at = corrected
        there = at >= 0
        gone = largest.weights_at(at[there]) + change.weights()[there] == 0
        return int(largest.rows + change.rows - np.count_nonzero(there) - np.count_nonzero(gone))

    def disjoint(self) -> list[Batch]:
        """Batches of which no two hold the same row, with total weights; a large batch is not copied."""
        whole = max(self.batches, key=len, default=None)
        retractions = sum([b.negative for b in self.batches if b is not whole])
        if whole is not None and retractions * 2 > MAX_CUTS_PER_CHUNK * len(whole.chunks):
            return [self.consolidated()]  # copying costs less than slicing around so many rows
        corrected = self._corrections
        if corrected is None:
            return [self.consolidated()]
        largest, change, at = corrected
        new = at < 0
        order = np.argsort(at[~new])
        positions = at[~new][order]
        totals = largest.weights_at(positions) + change.weights()[~new][order]
        if np.count_nonzero(totals == 0) * 2 > MAX_CUTS_PER_CHUNK * len(largest.chunks):
            return [self.consolidated()]  # copying costs less
        bounds = np.searchsorted(positions, np.arange(len(largest.chunks) + 1, dtype=np.int64) << ROW_BITS)
        chunks: list[Chunk] = []
        for c, chunk in enumerate(largest.chunks):
            low, high = int(bounds[c]), int(bounds[c + 1])
            if low == high:
                chunks.append(chunk)
            else:
                chunks += patch_weights(self.sort_key, chunk, positions[low:high] & ROW_MASK, totals[low:high])
        out = [Batch(self.sort_key, chunks)] if chunks else []
        return [*out, change.select(row_positions(change)[new])] if new.any() else out

    def weights_of(self, probe: Batch) -> Int64s:
        """The total weight of each row of `probe`, in its order."""
        self.stats.record_lookups(probe.rows)
        if self.compaction is not None and any(b.time is None for b in self.batches):
            return weights_in(sources_of((self.consolidated(),)), probe)
        return weights_in(self.sources, probe)
