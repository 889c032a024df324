"""Which batches of a spine should become one.

With fan-out R:

* *tiers*: when R neighbours at the new end are of one level (sizes within a factor of R) or below it, they become
  one batch of the next level. Every row takes part in about log_R(n) merges. Of small batches there are twice as many.
* *space*: when everything newer than the oldest batch exceeds a share of it, all become one. Cancelled rows are
  thereby bounded by that share. The share is small while merges shrink what they read (updates and deletes) and
  grows to 1 while they do not (inserts only): a merge that reduces nothing is not worth much. Rows that take away make
  older ones useless and leave few to compare with, so where there are any, they count for more, and one more batch
  like the newest has to fit too: what is held stays below twice the size of what is left. Where there are next to no
  rows, there have to be some batches as well (`waiting`).

Where next to nothing is taken away, merging saves no space, and only those who look up gain by it. So what grows and is
seldom looked up in has a larger R (`growing`, `inserting`), and what is hardly looked up in at all a larger one still
for large batches: a row is then written once more for every 64 or 256 times the rows instead of for every four. Kernels
count the keys that they look for (`kernels.lookup.bloom_filter`); those that a sieve holds back do not count, because
they cost nothing however many batches there are.

`and_one_more` says of one more batch what `due` would say of all, by what has been seen of the others: most inserts
make nothing due, and should cost no look at every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dbspark.columnar import Batch
from dbspark.trace.config import SpineConfig
from dbspark.trace.merge_state import Entry
from dbspark.trace.statistics import SpineStats

_FEW = 256
"""Rows that are not worth a merge for their space alone, unless nothing may be left of them: a call costs more."""
_HARDLY = 0.1
"""The share of rows that take something away below which a spine counts as one that only grows: of what is held a
quarter at the most is useless then, whenever it is merged."""
_LARGE = 1 << 16
"""Rows from which on a batch of a spine that is hardly looked up in waits for more of its kind."""
_UNREAD = 16
"""How many times as many, where it is not looked up in at all while it only grows."""
_SELDOM = 8
"""Rows that come for each key that is looked for from which on more batches cost less than more merges."""
_RARELY = 64
"""The same from which on large batches may be four times as many."""


class Tail(NamedTuple):
    """The batches behind the last merge in progress."""

    whole: bool
    """Whether there is none."""
    level: int
    """Of the newest of them."""
    alike: int
    """How many of this level follow each other up to there."""
    newer: int
    """Rows of all but the oldest."""
    taken: int
    """How many of them take something away."""
    weight: int
    """The sum of all weights."""
    growing: int | None


def level_of(config: SpineConfig, rows: int) -> int:
    """The level of a batch of so many rows."""
    fanout = config.fanout
    if fanout == 4:  # as it usually is
        return (rows.bit_length() - 1) >> 1 if rows else 0
    level = 0
    size = fanout
    while rows >= size:
        level += 1
        size *= fanout
    return level


def due(config: SpineConfig, stats: SpineStats, tail: Sequence[Batch], whole: bool) -> int | None:
    """Where the suffix of `tail` that should become one batch begins. `whole`: tail[0] is the oldest batch."""
    growing = _growing(config, stats)
    fanout = growing or config.fanout
    begin = None
    highest, of_highest, many = -1, 0, 0
    sizes = [b.rows for b in tail]
    newer = sum(sizes) - sizes[0]
    for i in range(len(tail) - 1, -1, -1):
        level = level_of(config, sizes[i])
        # R of one level become one of the next; what is smaller than a newer batch is taken up by it. The smallest
        # wait for twice as many: to merge them costs a call, to read them next to nothing.
        if level > highest:
            highest, of_highest, many = level, 0, _many(config, stats, fanout, sizes[i])
            many *= 1 if 2 * sizes[i] >= config.at_once else 2
        of_highest += level == highest
        if of_highest >= many or level < highest:
            begin = i
    if begin == 0 or not whole:
        return begin
    if len(tail) < (config.waiting or fanout) and tail[0].rows < _FEW and sum([b.total_weight for b in tail]) != 0:
        return begin
    room = _room(config, stats, growing, sizes[0])
    if 19 * newer // 8 + sizes[-1] < room:  # even if every newer row took something away
        return begin
    return 0 if _crowding(newer, sum([b.negative for b in tail[1:]]), sizes[-1]) >= room else begin


def looked_at(config: SpineConfig, stats: SpineStats, entries: Sequence[Entry]) -> Tail | None:
    """The newest entries, among which nothing is due."""
    sizes, weight, taken = [], 0, 0
    for entry in reversed(entries):
        if type(entry) is not Batch:
            break
        sizes.append(entry.rows)
        weight += entry.total_weight
        taken += entry.negative
    whole = len(sizes) == len(entries)
    if not sizes or 0 in sizes:
        return None
    level, alike = level_of(config, sizes[0]), 1
    while alike < len(sizes) and level_of(config, sizes[alike]) == level:
        alike += 1
    oldest: Any = entries[len(entries) - len(sizes)]
    newer, taken = sum(sizes) - sizes[-1], taken - oldest.negative
    return Tail(whole, level, alike, newer, taken, weight, _growing(config, stats))


def and_one_more(
    config: SpineConfig, stats: SpineStats, entries: Sequence[Entry], tail: Tail | None, batch: Batch
) -> Tail | None:
    """The newest entries with one more batch, where it makes nothing due that was not: what `due` would say.

    Without looking at all of them again, and so perhaps None where nothing is due.
    """
    if tail is None:
        return None
    growing, level, rows = _growing(config, stats), level_of(config, batch.rows), batch.rows
    if level > tail.level or growing != tail.growing:
        return None
    fanout = growing or config.fanout
    alike = tail.alike + 1 if level == tail.level else 1
    if alike >= _many(config, stats, fanout, rows) * (1 if 2 * rows >= config.at_once else 2):
        return None
    newer, taken, weight = tail.newer + rows, tail.taken + batch.negative, tail.weight + batch.total_weight
    if tail.whole:
        oldest = entries[0].rows
        some = len(entries) + 1 >= (config.waiting or fanout) or oldest >= _FEW or weight == 0
        if some and _crowding(newer, taken, rows) >= _room(config, stats, growing, oldest):
            return None
    return Tail(tail.whole, level, alike, newer, taken, weight, growing)


def _room(config: SpineConfig, stats: SpineStats, growing: int | None, oldest: int) -> float:
    """How many rows may stand beside the oldest batch."""
    return oldest * _share(config, stats, _many(config, stats, growing, oldest) if growing else None)


def _crowding(newer: int, taken: int, last: int) -> int:
    """For how many rows the newer ones count, so many of which take something away, the newest batch having `last`."""
    return max(newer, (21 * taken - 2 * newer) // 8) + last if taken else newer


def _growing(config: SpineConfig, stats: SpineStats) -> int | None:
    """The fan-out of a spine that only grows, if this is one and has such a fan-out."""
    if stats.removals >= _HARDLY:
        return None
    return config.growing or (config.inserting if stats.sought * _SELDOM <= stats.arriving else None)


def _many(config: SpineConfig, stats: SpineStats, fanout: int, rows: int) -> int:
    """How many batches of so many rows become one."""
    if rows < _LARGE:
        return fanout
    if fanout == config.growing:
        return _UNREAD * fanout
    return 4 * fanout if fanout == config.inserting and _rarely(stats) else fanout


def _rarely(stats: SpineStats) -> bool:
    """Whether so little is looked for in all batches that it hardly matters how many they are."""
    return stats.sought * _RARELY <= stats.arriving


def _share(config: SpineConfig, stats: SpineStats, growing: int | None) -> float:
    low, high = config.space_low, growing - 1.0 if growing else config.space_high
    saved = max(stats.reduction, stats.removals)
    return max(low, high - (high - low) * min(1.0, saved * 4))


def space_share(config: SpineConfig, stats: SpineStats) -> float:
    """How many newer rows may stand beside the oldest batch, judged by what merging has saved so far."""
    return _share(config, stats, _growing(config, stats))
