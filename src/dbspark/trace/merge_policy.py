"""Decides which neighbouring batches of a spine to merge: tiered compaction with fan-out R, and bounded wasted space.

| rule | when | why | cost |
|---|---|---|---|
| tier | the R newest batches are of one level or below | bounds the batches of a lookup | log_R(n) writes per row |
| space | newer rows exceed a share of the oldest batch | bounds retracted rows not yet removed | rewrites all rows |
| append-only | retractions below 10 %, rare lookups | merging saves neither space nor time | more batches: R grows |

* Level: batches of one level have sizes within a factor of R.
* Tier: batches so small that two fit into one inline merge are merged 2R at a time: their merge costs a kernel call
  however many they are, and probing a few more of them costs next to nothing.
* Space: the share is `min_space_share` where merges remove many rows (updates and deletes) and rises to
  `max_space_share` where they remove none, because a merge that removes nothing gains little. Retractions among the
  newer rows count for more than one row each, and there must be space for one more batch of the size of the newest, so
  that the stored rows stay below twice the rows that a merge would leave. A tiny spine is merged only if it has at
  least `min_tiny_batches` batches.
* Append-only: R is `append_only_fanout`, or `seldom_read_fanout` where keys are looked up now and then. Large batches
  use 16 or 4 times as much, so a row is rewritten each time the spine has grown by a factor of 256 or 64 instead of 4.
  Kernels count the keys that they look up (`kernels.lookup.bloom_filter`). Keys that the Bloom filter excludes do not
  count, because they cost the same however many batches there are.

`next_merge` looks at every batch. Most inserts make no merge due, so a spine keeps a `SettledTail`, a summary of its
newest batches, from which alone `extend_settled_tail` decides whether one more batch may make a merge due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from dbspark.columnar import Batch
from dbspark.trace.config import SpineConfig
from dbspark.trace.merge_state import Entry
from dbspark.trace.statistics import SpineStats

MIN_SPACE_RULE_ROWS: Final = 256
"""Rows of the oldest batch below which a spine is tiny: saving its space is not worth a kernel call, unless all weights
cancel."""
MAX_APPEND_ONLY_REMOVALS: Final = 0.1
"""Share of retractions among inserted rows below which a spine counts as append-only: then at most a quarter of the
stored rows are cancelled rows whenever it is merged."""
MIN_WIDE_TIER_ROWS: Final = 1 << 16
"""Batches of an append-only spine with at least this many rows use a multiple of the fan-out."""
UNREAD_TIER_FACTOR: Final = 16
"""The multiple of the fan-out for such batches where it is `append_only_fanout`."""
RARELY_READ_TIER_FACTOR: Final = 4
"""The multiple of the fan-out for such batches where it is `seldom_read_fanout` and next to no keys are looked up."""
SELDOM_READ_ROWS_PER_KEY: Final = 8
"""A spine with at least this many inserted rows for each looked-up key is seldom read: more batches cost less than more
merges."""
RARELY_READ_ROWS_PER_KEY: Final = 64
"""With at least this many inserted rows for each looked-up key a spine is rarely read: the number of its batches hardly
matters."""


class SettledTail(NamedTuple):
    """Summary of the batches behind the last merge in progress, among which no merge is due."""

    whole: bool
    """Whether no merge is in progress, so that these are all batches of the spine."""
    level: int
    """Level of the newest batch."""
    level_batches: int
    """How many of the newest batches in a row are of this level."""
    newer: int
    """Rows of all but the oldest of these batches."""
    retractions: int
    """Rows with negative weights among `newer`."""
    weight: int
    """Sum of all weights."""
    append_only_fanout: int | None
    """The fan-out for append-only spines, if this summary was made with it; None: the usual one."""


def level_of(config: SpineConfig, rows: int) -> int:
    """The level of a batch: the logarithm of its rows to the base of the fan-out, rounded down."""
    fanout = config.fanout
    if fanout == 4:  # the default
        return (rows.bit_length() - 1) >> 1 if rows else 0
    level = 0
    size = fanout
    while rows >= size:
        level += 1
        size *= fanout
    return level


def next_merge(config: SpineConfig, stats: SpineStats, tail: Sequence[Batch], whole: bool) -> int | None:
    """Where the suffix of `tail` that should become one batch begins; None: no merge is due.

    `tail`: the batches behind the last merge in progress. `whole`: tail[0] is the oldest batch of the spine.
    """
    append_only = _append_only_fanout(config, stats)
    fanout = append_only or config.fanout
    begin = None
    highest, batches_of_highest, width = -1, 0, 0
    sizes = [b.rows for b in tail]
    newer = sum(sizes) - sizes[0]
    for i in range(len(tail) - 1, -1, -1):
        level = level_of(config, sizes[i])
        # R batches of one level become one of the next; a batch smaller than a newer one is merged with the newer one.
        if level > highest:
            highest, batches_of_highest, width = level, 0, _tier_width(config, stats, fanout, sizes[i])
            width *= 1 if 2 * sizes[i] >= config.max_inline_merge_rows else 2
        batches_of_highest += level == highest
        if batches_of_highest >= width or level < highest:
            begin = i
    if begin == 0 or not whole:
        return begin
    if (
        len(tail) < (config.min_tiny_batches or fanout)
        and tail[0].rows < MIN_SPACE_RULE_ROWS
        and sum([b.total_weight for b in tail]) != 0
    ):
        return begin
    allowed = _max_newer_rows(config, stats, append_only, sizes[0])
    if 19 * newer // 8 + sizes[-1] < allowed:  # the bound holds even if every newer row is a retraction
        return begin
    return 0 if _effective_newer_rows(newer, sum([b.negative for b in tail[1:]]), sizes[-1]) >= allowed else begin


def settled_tail(config: SpineConfig, stats: SpineStats, entries: Sequence[Entry]) -> SettledTail | None:
    """The summary of the newest entries, among which `next_merge` has found no merge; None where there is none."""
    sizes, weight, retractions = [], 0, 0
    for entry in reversed(entries):
        if type(entry) is not Batch:
            break
        sizes.append(entry.rows)
        weight += entry.total_weight
        retractions += entry.negative
    whole = len(sizes) == len(entries)
    if not sizes or 0 in sizes:
        return None
    level, level_batches = level_of(config, sizes[0]), 1
    while level_batches < len(sizes) and level_of(config, sizes[level_batches]) == level:
        level_batches += 1
    oldest: Any = entries[len(entries) - len(sizes)]
    newer, retractions = sum(sizes) - sizes[-1], retractions - oldest.negative
    return SettledTail(whole, level, level_batches, newer, retractions, weight, _append_only_fanout(config, stats))


def extend_settled_tail(
    config: SpineConfig, stats: SpineStats, entries: Sequence[Entry], tail: SettledTail | None, batch: Batch
) -> SettledTail | None:
    """The settled tail with one more batch; None where that may make a merge due, so that `next_merge` has to decide.

    It looks at the summary alone, so it may return None although no merge is due, but never a tail although one is.
    """
    if tail is None:
        return None
    append_only, level, rows = _append_only_fanout(config, stats), level_of(config, batch.rows), batch.rows
    if level > tail.level or append_only != tail.append_only_fanout:
        return None
    fanout = append_only or config.fanout
    level_batches = tail.level_batches + 1 if level == tail.level else 1
    if level_batches >= _tier_width(config, stats, fanout, rows) * (
        1 if 2 * rows >= config.max_inline_merge_rows else 2
    ):
        return None
    newer, retractions, weight = tail.newer + rows, tail.retractions + batch.negative, tail.weight + batch.total_weight
    if tail.whole:
        oldest = entries[0].rows
        applies = (
            len(entries) + 1 >= (config.min_tiny_batches or fanout) or oldest >= MIN_SPACE_RULE_ROWS or weight == 0
        )
        if applies and _effective_newer_rows(newer, retractions, rows) >= _max_newer_rows(
            config, stats, append_only, oldest
        ):
            return None
    return SettledTail(tail.whole, level, level_batches, newer, retractions, weight, append_only)


def _max_newer_rows(config: SpineConfig, stats: SpineStats, append_only: int | None, oldest: int) -> float:
    """Newer rows that the space rule allows beside an oldest batch of `oldest` rows."""
    return oldest * _space_share(
        config, stats, _tier_width(config, stats, append_only, oldest) if append_only else None
    )


def _effective_newer_rows(newer: int, retractions: int, last: int) -> int:
    """The number of newer rows as the space rule counts it, with `last` rows in the newest batch.

    A retraction counts for more than one row: it also cancels an older row, so fewer rows would be left after a merge.
    """
    return max(newer, (21 * retractions - 2 * newer) // 8) + last if retractions else newer


def _append_only_fanout(config: SpineConfig, stats: SpineStats) -> int | None:
    """The fan-out of an append-only spine, if this is one and such a fan-out is configured."""
    if stats.removals >= MAX_APPEND_ONLY_REMOVALS:
        return None
    return config.append_only_fanout or (
        config.seldom_read_fanout if stats.unfiltered_keys * SELDOM_READ_ROWS_PER_KEY <= stats.insert_rows else None
    )


def _tier_width(config: SpineConfig, stats: SpineStats, fanout: int, rows: int) -> int:
    """How many batches of about `rows` rows are merged at a time."""
    if rows < MIN_WIDE_TIER_ROWS:
        return fanout
    if fanout == config.append_only_fanout:
        return UNREAD_TIER_FACTOR * fanout
    return (
        RARELY_READ_TIER_FACTOR * fanout if fanout == config.seldom_read_fanout and _is_rarely_read(stats) else fanout
    )


def _is_rarely_read(stats: SpineStats) -> bool:
    """Whether so few keys are looked up that the number of batches hardly matters."""
    return stats.unfiltered_keys * RARELY_READ_ROWS_PER_KEY <= stats.insert_rows


def _space_share(config: SpineConfig, stats: SpineStats, append_only: int | None) -> float:
    low, high = config.min_space_share, append_only - 1.0 if append_only else config.max_space_share
    saved = max(stats.reduction, stats.removals)
    return max(low, high - (high - low) * min(1.0, saved * 4))


def space_share(config: SpineConfig, stats: SpineStats) -> float:
    """Newer rows allowed beside the oldest batch, as a share of it, judged by what merges have removed so far."""
    return _space_share(config, stats, _append_only_fanout(config, stats))
