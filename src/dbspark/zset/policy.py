"""When an adaptive Z-set changes form: the decisions, apart from the data they are about.

One `Policy` per lineage. It is asked after every change, so the common answer (nothing to do) is two comparisons
with thresholds computed beforehand; thresholds are recomputed at flushes and when subscribers come or go.

Flush triggers: `size` S, `bytes`, `time` T (once there is a trace), `arranged` demand, `cancel` rate. Subscribers to
the arranged form quarter S and T. Rows given one by one count towards S only when somebody has read the Z-set in
columns; before that a dict serves them best, and only bytes bound it. Every signal is an EWMA with separate
thresholds for entering and leaving a state, so that nothing flips back and forth.

If flushing takes a fifth of all time while nobody reads the arranged form, the lineage falls back to the hash path:
it stops flushing (up to eight times the byte budget) until the arranged form is asked for. The reason is logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from dbspark.columnar import Batch
from dbspark.trace.spine import Spine
from dbspark.zset.config import ZSetConfig
from dbspark.zset.memtable import Memtable
from dbspark.zset.metrics import ALPHA, Metrics

log = logging.getLogger("dbspark.zset")

SUBSCRIBED: Final = 4
"""Subscribers divide S and T by this."""
CANCELLING: Final = 4
"""A high cancellation rate divides S by this."""
FALLBACK_SHARE: Final = 0.2
FALLBACK_FLUSHES: Final = 4
FALLBACK_SECONDS: Final = 0.05
"""Nothing is called persistently slow before it has cost this much."""
FALLBACK_BYTES: Final = 8
FEW: Final = 4
"""A trace of up to this many times N is consolidated at once when it might have become small."""
CLOCK_EVERY: Final = 32
"""Changes between two looks at the clock."""


class Policy:
    """The flush and form decisions of one lineage."""

    __slots__ = (
        "cancelling", "check_rows", "clock_in", "config", "counted", "counted_singles", "fallback", "flush_rows",
        "flush_share", "metrics", "oldest", "unread_flushes",
    )  # fmt: skip

    def __init__(self, config: ZSetConfig, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics
        self.cancelling = False
        self.fallback = False
        self.flush_share = 0.0
        self.unread_flushes = 0
        self.oldest = time.monotonic()
        self.clock_in = CLOCK_EVERY
        self.counted = (0, 0, 0, 0)
        self.flush_rows = config.flush_size
        """S as it is now, with subscribers and cancellations considered."""
        self.check_rows = 1
        """Single rows that may pile up before they are looked at."""
        self.counted_singles = 0
        self.retune()

    def retune(self) -> None:
        """Recompute the thresholds from the signals."""
        rows = self.config.flush_size
        if self.metrics.subscribers:
            rows = max(1, rows // SUBSCRIBED)
        if self.cancelling:
            rows = max(1, rows // CANCELLING)
        self.flush_rows = rows

    @property
    def flush_seconds(self) -> float:
        """T as it is now."""
        ms = self.config.flush_time_ms / (SUBSCRIBED if self.metrics.subscribers else 1)
        return ms / 1000

    @property
    def counts_singles(self) -> bool:
        """Whether rows given by themselves count towards S: from the first read in columns on."""
        return self.metrics.arranged_reads > 0 or self.metrics.subscribers > 0

    def headroom(self, memtable: Memtable) -> int:
        """Rows that the memtable may take in columns without coming to S."""
        if self.fallback:
            return self.config.flush_size
        there = 0 if memtable.table is None else len(memtable.table)
        return self.flush_rows - 1 - there - (len(memtable.rows) if self.counts_singles else 0)

    def trigger(self, rows: int, memtable: Memtable, traced: int, changes: int = 1) -> str | None:
        """Why the memtable, now of `rows` rows, should become a batch; None if it should not.

        `traced` is the number of rows in the trace behind it, `changes` what has been applied since the last call.
        """
        counted = rows if self.counts_singles else rows - len(memtable.rows)
        if counted >= self.flush_rows and not self.fallback:
            return "cancel" if self.cancelling and rows < self.config.flush_size else "size"
        self.clock_in -= changes
        if self.clock_in > 0:
            return None
        self.clock_in = CLOCK_EVERY
        self.observe(memtable)
        if memtable.nbytes() >= self.config.flush_bytes * (FALLBACK_BYTES if self.fallback else 1):
            return "bytes"
        few = 4 * rows >= traced or traced <= FEW * self.config.small_limit
        if rows and traced and few and self.metrics.cancel_rate > 0.5:
            return "cancel"  # little will be left of both
        if traced and not self.fallback and rows and time.monotonic() - self.oldest >= self.flush_seconds:
            return "time"
        return None

    def observe(self, memtable: Memtable) -> None:
        """Take over what a memtable has counted since it was last looked at."""
        metrics = self.metrics
        counted = (memtable.singles, memtable.deltas, memtable.seen, memtable.removed)
        singles, deltas, seen, removed = (now - before for now, before in zip(counted, self.counted, strict=True))
        self.counted = counted
        metrics.changes += singles + deltas
        metrics.rows_in += singles + seen
        if seen:
            self.cancelled(removed / seen, 1 - (1 - ALPHA) ** max(1, deltas // CLOCK_EVERY))
        self._detail(f"{singles + seen} more rows, cancellation rate {metrics.cancel_rate:.2f}, S is {self.flush_rows}")

    def look_at_singles(self, memtable: Memtable) -> None:
        """Judge rows given by themselves: every quarter more of them, and how many take away at every doubling."""
        rows = len(memtable.rows)
        if rows >= 2 * self.counted_singles:
            self.counted_singles = rows
            self.cancelled(sum(w < 0 for w in memtable.rows.values()) / max(rows, 1))
        self.check_rows = rows + max(CLOCK_EVERY, rows // 4)
        if self.counts_singles and not self.fallback:
            self.check_rows = max(min(self.check_rows, self.flush_rows - (len(memtable) - rows)), rows + 1)
        self.clock_in = 0  # bytes and time are due too

    def cancelled(self, share: float, alpha: float = ALPHA) -> None:
        """Note which share of some rows took rows away."""
        metrics = self.metrics
        metrics.cancel_rate += alpha * (share - metrics.cancel_rate)
        high = self.config.cancel_ewma
        cancelling = metrics.cancel_rate > (high * 0.5 if self.cancelling else high)
        if cancelling != self.cancelling:
            self.cancelling = cancelling
            self._say(f"cancellation rate {metrics.cancel_rate:.2f}, flushing {'sooner' if cancelling else 'as usual'}")
            self.retune()

    def inserted(self, batches: Sequence[Batch], spine: Spine) -> None:
        """Note deltas that went to the spine as they were."""
        self.noted(batches)
        self.metrics.spine = spine

    def noted(self, batches: Sequence[Batch]) -> None:
        """Note deltas that the memtable does not count."""
        metrics = self.metrics
        rows = sum([batch.rows for batch in batches])
        metrics.changes += len(batches)
        metrics.rows_in += rows
        removed = sum([batch.negative for batch in batches])
        self.cancelled(removed / rows, 1 - (1 - 3 * ALPHA) ** len(batches))  # a large delta says more than a few rows

    def began(self) -> None:
        """Note that an empty memtable takes its first row."""
        self.oldest = time.monotonic()
        self.counted = (0, 0, 0, 0)

    def flushed(self, trigger: str, rows: int, size: int, seconds: float) -> None:
        """Note a flush and judge whether flushing pays."""
        metrics = self.metrics
        now = time.monotonic()
        elapsed = max(now - (metrics.last_flush or metrics.created), 1e-9)
        metrics.flushed(trigger, rows, size, seconds, now)
        self.flush_share += ALPHA * (min(1.0, seconds / elapsed) - self.flush_share)
        self.unread_flushes += 1
        self.oldest = now
        self.counted = (0, 0, 0, 0)
        self.check_rows = 1
        self.counted_singles = 0
        self._say(f"flushed {rows} rows ({trigger}) in {seconds * 1000:.2f} ms")
        slow = self.flush_share > FALLBACK_SHARE and metrics.flush_seconds >= FALLBACK_SECONDS
        if not self.fallback and slow and self.unread_flushes >= FALLBACK_FLUSHES:
            self.fallback = True
            metrics.fallbacks += 1
            log.warning(
                "%s: falling back to the hash path: flushing takes %.0f %% of the time and the arranged form was not "
                "read during the last %d flushes", metrics.name, self.flush_share * 100, self.unread_flushes,
            )  # fmt: skip

    def demanded(self) -> None:
        """Note that the arranged form was asked for."""
        self.metrics.arranged_reads += 1
        self._detail("the arranged form is read")
        self.unread_flushes = 0
        if self.fallback:
            self.fallback = False
            self.flush_share = 0.0
            log.warning("%s: leaving the hash path: the arranged form is being read", self.metrics.name)

    def moved(self, before: str, after: str) -> None:
        self.metrics.moved(before, after)
        self._say(f"{before} becomes {after}")

    def _say(self, text: str) -> None:
        if self.config.logging != "off":
            log.info("%s: %s", self.metrics.name, text)

    def _detail(self, text: str) -> None:
        if self.config.logging == "detailed":
            log.debug("%s: %s", self.metrics.name, text)
