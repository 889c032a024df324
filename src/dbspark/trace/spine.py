"""`Spine`: the levelled sequence of batches. The only such structure in the project.

A spine is a *value*. `insert` and `work` return a new spine and leave the old one as it was, sharing all batches, so
forks, snapshots and rollbacks cost nothing and nobody's reads change under their hands.

Entries are ordered from oldest to newest, and only neighbours are merged. An entry is a batch or a merge in
progress. A merge in progress holds its output so far and what is left of its inputs: those are disjoint ranges of
key hashes, so together they are just a few more batches to read, and memory never holds a row twice. That is what
keeps the peak near the size of the rows themselves, whatever is being merged.

When merges are due is said in `trace.merge_policy`.

Rows may have times (`dbspark.trace.time`). Then every batch has a description, each begins where the one before it
ends, and a `Compaction` says what merges may do: only batches before its physical frontier are merged; times are
advanced to its logical frontier, as it is when the merge begins. A batch without rows is absorbed by its neighbour.

How fast: merges of few rows run at once. Larger ones advance in steps paid by credit, some rows for every row
inserted, enough that a merge is done long before the next one of its level is due; no insert ever waits for a whole
merge. `work` spends a time budget instead, or finishes everything.
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
from dbspark.trace.bloom_filter import Sieve
from dbspark.trace.config import DEFAULT, Compaction, SpineConfig
from dbspark.trace.directory import Listed, Sought, Sources, sources_of
from dbspark.trace.merge_policy import Tail, and_one_more, due, level_of, looked_at, space_share
from dbspark.trace.merge_state import Entry, Merging, Origin, since_of
from dbspark.trace.row_positions import CUTS, patched, positions_in, row_positions, weights_in
from dbspark.trace.statistics import SpineStats, counters
from dbspark.trace.time import Antichain, Description

END = (INT64_MAX,) * TIMES
"""A time that every time can be advanced to, where times do not matter."""
_SIEVED = 4
"""Batches below which it is as well to look into each."""
_USEFUL = 4
"""Of so many keys a sieve has to hold one back, or it costs more than it spares."""
_OF_ENTRIES = ("_listed", "batches", "rows", "merges", "_stepping")
"""What is known of a spine, once it has been asked for, that follows from its entries."""
_INDEXED = 64
"""How many times cheaper it is to search where there is an index, so that walking pays for so many fewer rows."""


def _extended(entry: Any, lower: Antichain, last: Description) -> Any:
    """An entry that also stands for empty stretches of time before or after it."""
    description = Description(lower, last.upper, entry.description.since)
    if type(entry) is Merging:
        return replace(entry, description=description)
    batch = entry.with_description(description)
    if "place" in entry.__dict__:  # the same rows are stored where they were
        batch.__dict__["place"] = entry.__dict__["place"]
    return batch


def summable(batches: Iterable[Batch], bound: Callable[[], int]) -> Sequence[Batch]:
    """Batches to add one by one to weights within `bound`.

    They are the given ones, or their sum where adding only some of them might overflow although all of them do not.
    """
    some = [b for b in batches if b.rows]
    if len(some) > 1 and bound() + sum(b.largest for b in some) > INT64_MAX:
        return (merge(some),)
    return some


class Spine:
    """A persistent sequence of batches; see the module's preface."""

    __slots__ = (
        "__dict__",
        "_bound",
        "_sieve",
        "_tail",
        "_uncovered",
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
        sieve: Sieve | None = None,
    ) -> None:
        self.sort_key = sort_key
        self.entries = entries
        self.config = config
        self.stats = stats if stats is not None else SpineStats()
        self.credit = credit
        self._bound = bound
        self._tail: Tail | None = None
        """What `due` has looked at, where it found nothing to do."""
        self.compaction = compaction
        self._sieve = sieve
        """Of the keys of all batches, but for the newest where those are `_uncovered`."""
        self._uncovered = 0

    def _with(self, entries: tuple[Entry, ...], credit: int, bound: int | None = None) -> Spine:
        """The spine with other entries for rows that it has."""
        return self._grown(entries, credit, bound, self._covering)

    @property
    def _covering(self) -> Sieve | None:
        """The sieve of all its batches, where there is one."""
        return None if self._uncovered else self._sieve

    def _grown(self, entries: tuple[Entry, ...], credit: int, bound: int | None, sieve: Sieve | None) -> Spine:
        """The spine with other entries, of whose keys there is a sieve."""
        return Spine(self.sort_key, entries, self.config, self.stats, credit, bound, self.compaction, sieve)

    def bound(self) -> int:
        """No weight, summed over all batches, is larger in magnitude."""
        if self._bound is None:
            self._bound = sum(b.largest for b in self.batches)
        return self._bound

    # ------------------------------------------------------------------ writing

    def insert(self, batch: Batch, pay: bool = True) -> Spine:
        """The spine with one more batch, newer than all others.

        Without `pay` the merging that this pays for is left for `paid`.
        """
        if batch.rows == 0:
            if self.compaction is None:
                return self
            return self._with(self._pruned((*self.entries, batch)), self.credit, self._bound)
        if not self.entries:
            return self._grown((batch,), self.credit, None, None)
        bound = self.bound() + batch.largest
        if bound > INT64_MAX and self.compaction is None:
            return self._insert_large(batch)
        self.stats.inserted(batch)
        sieve = self._sieved(batch)
        entries: tuple[Entry, ...] = (*self.entries, batch)
        credit = self.credit + batch.rows * self.config.credit
        tail = and_one_more(self.config, self.stats, self.entries, self._tail, batch)
        due_for_steps = credit >= self.config.step
        if tail is not None and bound <= INT64_MAX and self._may_merge(batch):
            if due_for_steps and pay and not self._stepping:
                credit, due_for_steps = 0, False
            if not due_for_steps:
                out = self._followed_by(self._grown(entries, credit, bound, sieve), batch)
                out._tail = tail
                return out
        if self.compaction is not None:
            entries = self._pruned(entries)
        if bound > INT64_MAX:
            bound = sum(b.largest for b in self.batches) + batch.largest  # it had only grown with every insert
            if bound > INT64_MAX:  # a sum of some of the batches might overflow where that of all does not
                return self._grown(entries, self.credit, bound, sieve)
        entries = self._scheduled(entries)
        if pay and due_for_steps:
            if Merging in map(type, entries):
                entries, credit = self._advance(entries, credit, self.config.background)
            else:
                credit = 0
        return self._relisted(self._grown(entries, credit, bound, sieve))

    def _sieved(self, batch: Batch) -> Sieve | None:
        """The sieve of this spine with one more batch."""
        sieve, stats, least = self._sieve, self.stats, self.config.sieved
        if least is None or self._uncovered:
            return None
        if sieve is None:
            if max(least, stats.unsieved) > self.rows or len(self.batches) < _SIEVED:
                return None
            if stats.asked * len(self.batches) < stats.arriving:
                return None  # it would cost more to put them in than to look everywhere
            sieve = Sieve.begun(self.batches)
        elif sieve.told is not None and stats.held * _USEFUL < stats.asked:
            stats.unsieved = 4 * self.rows
            return None
        return sieve.followed_by(batch, self.batches)

    def and_one(self, batch: Batch) -> Spine:
        """The spine with one more batch and no merge that would be due: for a look at what would be there."""
        out = self._followed_by(self._grown((*self.entries, batch), self.credit, None, self._sieve), batch)
        out._uncovered = self._uncovered + 1
        return out

    def _followed_by(self, out: Spine, batch: Batch) -> Spine:
        """Another spine with one more batch to read, where the others are as they were."""
        if "_listed" in self.__dict__:
            out.__dict__["_listed"] = listed = self._listed.and_one(batch, self._place(batch))
            out.__dict__["batches"] = listed.batches
        if "rows" in self.__dict__:
            out.__dict__["rows"] = self.__dict__["rows"] + batch.rows
        for name in ("merges", "_stepping"):
            if name in self.__dict__:
                out.__dict__[name] = self.__dict__[name]
        return out

    def _relisted(self, out: Spine) -> Spine:
        """Another spine, most of whose batches are those of this one, with what can be known of it by that."""
        if out.entries and self._may_merge(out.entries[-1]):
            out._tail = looked_at(self.config, self.stats, out.entries)
        if "_listed" in self.__dict__:
            out.__dict__["_listed"] = self._listed.turned_into(out.batches, out._place)
        return out

    def _may_merge(self, entry: Entry) -> bool:
        """Whether an entry, and so all that are older, may be merged: nobody reads up to its end."""
        compaction = self.compaction
        return compaction is None or entry.description.upper.dominates(compaction.physical)

    @Lazy
    def _stepping(self) -> bool:
        """Whether merges are in progress that inserts pay for."""
        return self.merges and any(
            type(e) is Merging and (self.config.background is None or e.total < self.config.background)
            for e in self.entries
        )

    def compacting(self, compaction: Compaction) -> Spine:
        """The spine with other permissions for merges, and with those begun that they allow."""
        spine = self.under(compaction)
        if self.bound() > INT64_MAX:
            return spine
        return spine._relisted(spine._with(spine._scheduled(spine._pruned(self.entries)), self.credit, self._bound))

    def under(self, compaction: Compaction) -> Spine:
        """The same spine with other permissions for the merges to come; frontiers only move forward."""
        given = self.sort_key, self.entries, self.config, self.stats, self.credit, self._bound
        out = Spine(*given, compaction, self._covering)
        out._tail = self._tail
        for name in _OF_ENTRIES:
            if name in self.__dict__:
                out.__dict__[name] = self.__dict__[name]
        return out

    def configured(self, config: SpineConfig) -> Spine:
        """The same spine with other knobs."""
        if config is self.config:
            return self
        return Spine(self.sort_key, self.entries, config, self.stats, self.credit, self._bound, self.compaction)

    def insert_all(self, batches: Iterable[Batch]) -> Spine:
        """The spine with the sum of some batches."""
        spine = self
        for batch in summable(batches, self.bound):
            spine = spine.insert(batch)
        return spine

    def replaced(self, entries: tuple[Entry, ...]) -> Spine:
        """The spine with entries that have been merged further, and with the merges begun that are due now."""
        entries = self._pruned(entries)
        if self.bound() <= INT64_MAX:
            entries = self._scheduled(entries)
        return self._relisted(self._with(entries, self.credit, self._bound))

    def copied(self) -> Spine:
        """The same spine with statistics of its own."""
        stats = replace(self.stats, counts=counters())
        return Spine(self.sort_key, self.entries, self.config, stats, self.credit, self._bound, self.compaction)

    def _insert_large(self, batch: Batch) -> Spine:
        """Where weights are so large that partial sums might overflow, everything is kept as one exact sum."""
        bound = sum(b.largest for b in self.batches) + batch.largest
        if bound <= INT64_MAX:  # it had only grown with every insert
            return self._with(self.entries, self.credit, bound - batch.largest).insert(batch)
        whole = merge((self.consolidated(), batch))
        return self._grown((whole,) if whole.rows else (), self.credit, None, None)

    def paid(self) -> Spine:
        """The spine after one step of the newest merge, if inserts have paid for it; else itself."""
        step = self.config.step
        if self.credit < step:
            return self
        entries = list(self.entries)
        at = max((i for i, e in enumerate(entries) if type(e) is Merging), default=-1)
        if at < 0:
            return Spine(self.sort_key, self.entries, self.config, self.stats, 0, self._bound)
        started = time.perf_counter()
        entry: Any = entries[at]
        limit = min(max(self.credit // 2, step), CHUNK_ROWS)
        entries[at] = stepped = entry.step(limit)
        if type(stepped) is Batch:
            self.stats.merged(entry.total, stepped.rows)
        left = self.credit - max(limit, entry.rows - stepped.rows)
        self.stats.seconds += time.perf_counter() - started
        kept = self._scheduled(tuple(e for e in entries if e.rows))
        return Spine(self.sort_key, kept, self.config, self.stats, max(left, 0), self._bound)

    def work(self, budget_ms: float | None = None) -> Spine:
        """Go on with merges in progress for some time, or until nothing is left to do."""
        if self.bound() > INT64_MAX:
            return self
        deadline = None if budget_ms is None else time.perf_counter() + budget_ms / 1000
        entries = self._scheduled(self.entries)
        while Merging in map(type, entries):
            entries, _ = self._advance(entries, self.config.step if deadline is not None else CHUNK_ROWS, None)
            if deadline is not None and time.perf_counter() >= deadline:
                break
        if entries is self.entries:
            return self
        return self._with(entries, self.credit, self._bound)

    def exert(self, effort: int) -> Spine:
        """Go on with merges by some rows, or begin one that was not due yet: what to do with idle time.

        Called again and again it leaves one batch before the physical frontier, and then this very spine.
        """
        if self.bound() > INT64_MAX:
            return self
        entries = self._scheduled(self.entries)
        ready = self._ready(entries)
        if ready > 1 and Merging not in map(type, entries):
            entries = (*entries[: ready - 2], self._begun(entries[ready - 2 : ready]), *entries[ready:])
        elif ready == 1 and self._outdated(entries[0]):
            entries = (self._begun(entries[:1]), *entries[1:])
        if Merging in map(type, entries):
            entries, _ = self._advance(entries, max(effort, self.config.step), self.config.background)
        return self if entries == self.entries else self._with(entries, self.credit, self._bound)

    def outdated(self) -> bool:
        """Whether idle work could make a lone batch smaller."""
        return self._ready(self.entries) == 1 and self._outdated(self.entries[0])

    def _outdated(self, entry: Entry) -> bool:
        """Whether merging a batch with nothing would make it smaller: it keeps times that nobody can tell apart."""
        if self.compaction is None or type(entry) is not Batch or not entry.rows:
            return False
        since = self.compaction.logical.join(entry.description.since)
        return entry.description.since != since and entry.time is None

    def compacted(self) -> Spine:
        """The spine as one batch."""
        whole = self.consolidated()
        return self._with((whole,) if whole.rows else (), self.credit)

    def backlog(self) -> int:
        """Rows still to be read by merges in progress."""
        return sum(e.unread for e in self.entries if type(e) is Merging)

    def _ready(self, entries: tuple[Entry, ...]) -> int:
        """How many of the oldest entries may be merged."""
        ready = len(entries)
        if self.compaction is not None:
            physical = self.compaction.physical
            while ready and not entries[ready - 1].description.upper.dominates(physical):
                ready -= 1
        return ready

    def _scheduled(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Begin the merges that are due among the batches behind the last merge in progress."""
        ready = self._ready(entries)
        pending = entries[ready:]
        entries = entries[:ready]
        while True:
            first = len(entries)
            while first > 0 and type(entries[first - 1]) is Batch:
                first -= 1
            tail: Sequence[Any] = entries[first:]
            if len(tail) < 2:
                return entries + pending
            begin = due(self.config, self.stats, tail, first == 0)
            if begin is None:
                return entries + pending
            head = entries[: first + begin]
            begun = self._begun(tail[begin:])
            if begun.total > self.config.at_once:
                return (*head, begun, *pending)
            started = time.perf_counter()
            merged = merge(begun.inputs, since_of(begun.description))
            if begun.retain is not None:
                merged = begun.retain(merged)
            self.stats.seconds += time.perf_counter() - started
            self.stats.merged(begun.total, merged.rows)
            entries = (*head, merged.with_description(begun.description))
            if not merged.rows:
                entries = self._pruned(entries)

    def _begun(self, inputs: Sequence[Any]) -> Merging:
        """A merge of neighbours, about to begin."""
        total = sum(b.rows for b in inputs)
        compaction = self.compaction
        if compaction is None:
            return Merging((), tuple(inputs), (0,) * len(inputs), total, token=Origin.of(inputs))
        since = compaction.logical
        for batch in inputs:
            since = since.join(batch.description.since)
        description = Description(inputs[0].description.lower, inputs[-1].description.upper, since)
        return Merging((), tuple(inputs), (0,) * len(inputs), total, description, compaction.retain, Origin.of(inputs))

    def _pruned(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Without entries that hold no rows; of those of a trace, the neighbour takes over the description."""
        if not [e for e in entries if type(e) is Batch and e.rows == 0]:
            return entries
        if self.compaction is None:
            return tuple(e for e in entries if e.rows)
        ready = self._ready(entries)
        kept: list[Any] = []
        for entry in entries[:ready]:
            if kept and type(entry) is Batch and entry.rows == 0:
                kept[-1] = _extended(kept[-1], kept[-1].description.lower, entry.description)
            elif len(kept) == 1 and type(kept[0]) is Batch and kept[0].rows == 0:
                kept[0] = _extended(entry, kept[0].description.lower, entry.description)
            else:
                kept.append(entry)
        return (*kept, *entries[ready:])

    def space_share(self) -> float:
        """How many newer rows may stand beside the oldest batch, judged by what merging has saved so far."""
        return space_share(self.config, self.stats)

    def _advance(
        self, entries: tuple[Entry, ...], credit: int, background: int | None
    ) -> tuple[tuple[Entry, ...], int]:
        """Spend credit on merges in progress, newest (smallest) first; those of `background` rows are left alone."""
        started = time.perf_counter()
        changed = list(entries)
        for i in range(len(changed) - 1, -1, -1):
            entry = changed[i]
            if type(entry) is not Merging or (background is not None and entry.total >= background):
                continue
            while credit >= self.config.step and type(entry) is Merging:
                before = entry.rows
                limit = min(max(credit // 2, self.config.step), CHUNK_ROWS)
                stepped = entry.step(limit)
                credit -= max(limit, before - stepped.rows)
                if type(stepped) is Batch:
                    self.stats.merged(entry.total, stepped.rows)
                entry = stepped
            changed[i] = entry
            if credit < self.config.step:
                break
        self.stats.seconds += time.perf_counter() - started
        kept = self._pruned(tuple(changed))
        return self._scheduled(kept), max(credit, 0) if Merging in map(type, kept) else 0

    # ------------------------------------------------------------------ reading

    def upper(self) -> Antichain | None:
        """Where a spine with times ends, None where nothing has been inserted."""
        return self.entries[-1].description.upper if self.entries else None

    @Lazy
    def batches(self) -> tuple[Batch, ...]:
        """Everything to read, oldest first. A row's weight is its sum over these."""
        out: list[Batch] = []
        for entry in self.entries:
            if type(entry) is Merging:
                out += entry.batches()
            else:
                out.append(entry)  # type: ignore[arg-type]
        return tuple(out)

    @Lazy
    def merges(self) -> bool:
        """Whether merges are in progress."""
        return Merging in map(type, self.entries)

    @Lazy
    def rows(self) -> int:
        """Rows held, before consolidation across batches."""
        return sum([e.rows for e in self.entries])

    def levels(self) -> list[tuple[int, int, int]]:
        """(level, batches, rows) from the largest level down."""
        found: dict[int, list[int]] = {}
        for batch in self.batches:
            found.setdefault(level_of(self.config, batch.rows), []).append(batch.rows)
        return [(level, len(sizes), sum(sizes)) for level, sizes in sorted(found.items(), reverse=True)]

    @property
    def sources(self) -> Sources:
        """All chunks for the kernels: node tables, lengths, fences, and where each batch's chunks start."""
        return self._listed.sources

    @Lazy
    def _listed(self) -> Listed:
        return Listed.of(self.batches, [self._place(b) for b in self.batches])

    @property
    def places(self) -> Int64s:
        """Of each batch, where its index is (`kernels.lookup.index`); zeros where it has none."""
        return self._listed.places

    def walks(self, delta: int) -> bool:
        """Whether to look up a delta of so many rows by walking along both, see `SpineStats.walks`."""
        return self.stats.walks(delta, self.rows if self.config.indexed is None else _INDEXED * self.rows)

    @property
    def directory(self) -> int:
        """All batches for the kernels that look up in them: an address, to be used as long as the spine is kept."""
        return self._directory[0]

    @Lazy
    def _directory(self) -> tuple[int, Any]:
        return self._listed.directory(self._sought())

    def _sought(self) -> Sought:
        if self._sieve is None:
            return Sought(self.stats.counts)
        return Sought(self.stats.counts, self._sieve.told, len(self.batches) - self._uncovered)

    @property
    def chunks(self) -> int:
        """How many chunks there are in all batches."""
        return self._listed.chunks

    def _place(self, batch: Batch) -> IndexRef:
        """Of a merge in progress the inputs have their indices, and the result will get one."""
        least = self.config.indexed
        made = least is not None and (batch.rows >= least or "index" in batch.__dict__)
        return batch.index.ref if made else NO_INDEX_REF

    @Lazy
    def _consolidated(self) -> Batch:
        batches = self.batches
        if not batches:
            return Batch.empty(self.sort_key)
        if self.compaction is None:
            return merge(batches)
        if self.bound() > INT64_MAX:  # every total is summed exactly, whatever its parts are
            some = [b for b in batches if b.rows]
            return Batch(self.sort_key, run_merge(MergePlan(some, within=time_bounds(since=END)))).at_time(())
        return merge(batches, END).at_time(())

    def consolidated(self) -> Batch:
        """All rows as one batch; computed once for this value."""
        return self._consolidated

    @Lazy
    def _corrected(self) -> tuple[Batch, Batch, Int64s] | None:
        """The largest batch, the sum of all others, and where the latter's rows are in the former (-1: nowhere).

        None where the others are too many for this to be cheaper than consolidating.
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
        corrected = self._corrected
        if corrected is None:
            return self.consolidated().rows
        largest, change, at = corrected
        there = at >= 0
        gone = largest.weights_at(at[there]) + change.weights()[there] == 0
        return int(largest.rows + change.rows - np.count_nonzero(there) - np.count_nonzero(gone))

    def disjoint(self) -> list[Batch]:
        """Batches of which no two hold the same row, with total weights; a large batch is not copied."""
        whole = max(self.batches, key=len, default=None)
        taken = sum([b.negative for b in self.batches if b is not whole])
        if whole is not None and taken * 2 > CUTS * len(whole.chunks):
            return [self.consolidated()]  # there would be so many cuts that it is no use to look where
        corrected = self._corrected
        if corrected is None:
            return [self.consolidated()]
        largest, change, at = corrected
        new = at < 0
        order = np.argsort(at[~new])
        hits = at[~new][order]
        totals = largest.weights_at(hits) + change.weights()[~new][order]
        if np.count_nonzero(totals == 0) * 2 > CUTS * len(largest.chunks):
            return [self.consolidated()]  # so many cuts would cost more than copying
        bounds = np.searchsorted(hits, np.arange(len(largest.chunks) + 1, dtype=np.int64) << ROW_BITS)
        chunks: list[Chunk] = []
        for c, chunk in enumerate(largest.chunks):
            low, high = int(bounds[c]), int(bounds[c + 1])
            if low == high:
                chunks.append(chunk)
            else:
                chunks += patched(self.sort_key, chunk, hits[low:high] & ROW_MASK, totals[low:high])
        out = [Batch(self.sort_key, chunks)] if chunks else []
        return [*out, change.select(row_positions(change)[new])] if new.any() else out

    def weights_of(self, probe: Batch) -> Int64s:
        """The total weight of each row of `probe`, in its order."""
        self.stats.seek(probe.rows)
        if self.compaction is not None and any(b.time is None for b in self.batches):
            return weights_in(sources_of((self.consolidated(),)), probe)
        return weights_in(self.sources, probe)
