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
from dbspark.zset.metrics import EWMA_ALPHA, Metrics

log = logging.getLogger("dbspark.zset")

SUBSCRIBER_DIVISOR: Final = 4
"""Subscribers divide S and T by this."""
CANCELLATION_DIVISOR: Final = 4
"""A high cancellation rate divides S by this."""
MAX_FLUSH_TIME_SHARE: Final = 0.2
MIN_FALLBACK_FLUSHES: Final = 4
MIN_FALLBACK_SECONDS: Final = 0.05
"""Nothing is called persistently slow before it has cost this much."""
FALLBACK_BYTES_FACTOR: Final = 8
SMALL_TRACE_FACTOR: Final = 4
"""A trace of up to this many times N is consolidated at once when it might have become small."""
CHANGES_PER_CHECK: Final = 32
"""Changes between two looks at the clock."""


class Policy:
    """The flush and form decisions of one lineage."""

    __slots__ = (
        "cancelling",
        "changes_to_check",
        "check_rows",
        "checked_rows",
        "config",
        "counted",
        "fallback",
        "flush_rows",
        "flush_share",
        "metrics",
        "oldest",
        "unread_flushes",
    )  # fmt: skip

    def __init__(self, config: ZSetConfig, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics
        self.cancelling = False
        self.fallback = False
        self.flush_share = 0.0
        self.unread_flushes = 0
        self.oldest = time.monotonic()
        self.changes_to_check = CHANGES_PER_CHECK
        self.counted = (0, 0, 0, 0)
        self.flush_rows = config.flush_size
        """S as it is now, with subscribers and cancellations considered."""
        self.check_rows = 1
        """Single rows that may pile up before they are looked at."""
        self.checked_rows = 0
        self.update_thresholds()

    def update_thresholds(self) -> None:
        """Recompute the thresholds from the signals."""
        rows = self.config.flush_size
        if self.metrics.subscribers:
            rows = max(1, rows // SUBSCRIBER_DIVISOR)
        if self.cancelling:
            rows = max(1, rows // CANCELLATION_DIVISOR)
        self.flush_rows = rows

    @property
    def flush_seconds(self) -> float:
        """T as it is now."""
        ms = self.config.flush_time_ms / (SUBSCRIBER_DIVISOR if self.metrics.subscribers else 1)
        return ms / 1000

    @property
    def counts_row_adds(self) -> bool:
        """Whether rows given by themselves count towards S: from the first read in columns on."""
        return self.metrics.arranged_reads > 0 or self.metrics.subscribers > 0

    def memtable_headroom(self, memtable: Memtable) -> int:
        """Rows that the memtable may take in columns without coming to S."""
        if self.fallback:
            return self.config.flush_size
        there = 0 if memtable.table is None else len(memtable.table)
        return self.flush_rows - 1 - there - (len(memtable.rows) if self.counts_row_adds else 0)

    def trigger(self, rows: int, memtable: Memtable, traced: int, changes: int = 1) -> str | None:
        """Why the memtable, now of `rows` rows, should become a batch; None if it should not.

        `traced` is the number of rows in the trace behind it, `changes` what has been applied since the last call.
        """
        counted = rows if self.counts_row_adds else rows - len(memtable.rows)
        if counted >= self.flush_rows and not self.fallback:
            return "cancel" if self.cancelling and rows < self.config.flush_size else "size"
        self.changes_to_check -= changes
        if self.changes_to_check > 0:
            return None
        self.changes_to_check = CHANGES_PER_CHECK
        self.record_memtable(memtable)
        if memtable.nbytes() >= self.config.flush_bytes * (FALLBACK_BYTES_FACTOR if self.fallback else 1):
            return "bytes"
        few = 4 * rows >= traced or traced <= SMALL_TRACE_FACTOR * self.config.small_limit
        if rows and traced and few and self.metrics.cancel_rate > 0.5:
            return "cancel"  # little will be left of both
        if traced and not self.fallback and rows and time.monotonic() - self.oldest >= self.flush_seconds:
            return "time"
        return None

    def record_memtable(self, memtable: Memtable) -> None:
        """Take over what a memtable has counted since it was last looked at."""
        metrics = self.metrics
        counted = (memtable.row_adds, memtable.deltas, memtable.delta_rows, memtable.negative_rows)
        row_adds, deltas, delta_rows, negative_rows = (
            now - before for now, before in zip(counted, self.counted, strict=True)
        )
        self.counted = counted
        metrics.changes += row_adds + deltas
        metrics.rows_in += row_adds + delta_rows
        if delta_rows:
            self.record_cancellations(
                negative_rows / delta_rows, 1 - (1 - EWMA_ALPHA) ** max(1, deltas // CHANGES_PER_CHECK)
            )
        self._log_detail(
            f"{row_adds + delta_rows} more rows, cancellation rate {metrics.cancel_rate:.2f}, S is {self.flush_rows}"
        )

    def check_row_adds(self, memtable: Memtable) -> None:
        """Judge rows given by themselves: every quarter more of them, and how many take away at every doubling."""
        rows = len(memtable.rows)
        if rows >= 2 * self.checked_rows:
            self.checked_rows = rows
            self.record_cancellations(sum(w < 0 for w in memtable.rows.values()) / max(rows, 1))
        self.check_rows = rows + max(CHANGES_PER_CHECK, rows // 4)
        if self.counts_row_adds and not self.fallback:
            self.check_rows = max(min(self.check_rows, self.flush_rows - (len(memtable) - rows)), rows + 1)
        self.changes_to_check = 0  # bytes and time are due too

    def record_cancellations(self, share: float, alpha: float = EWMA_ALPHA) -> None:
        """Note which share of some rows took rows away."""
        metrics = self.metrics
        metrics.cancel_rate += alpha * (share - metrics.cancel_rate)
        high = self.config.cancel_ewma
        cancelling = metrics.cancel_rate > (high * 0.5 if self.cancelling else high)
        if cancelling != self.cancelling:
            self.cancelling = cancelling
            self._log_summary(
                f"cancellation rate {metrics.cancel_rate:.2f}, flushing {'sooner' if cancelling else 'as usual'}"
            )
            self.update_thresholds()

    def record_insert(self, batches: Sequence[Batch], spine: Spine) -> None:
        """Note deltas that went to the spine as they were."""
        self.record_deltas(batches)
        self.metrics.spine = spine

    def record_deltas(self, batches: Sequence[Batch]) -> None:
        """Note deltas that the memtable does not count."""
        metrics = self.metrics
        rows = sum([batch.rows for batch in batches])
        metrics.changes += len(batches)
        metrics.rows_in += rows
        negative_rows = sum([batch.negative for batch in batches])
        self.record_cancellations(
            negative_rows / rows, 1 - (1 - 3 * EWMA_ALPHA) ** len(batches)
        )  # a large delta says more than a few rows

    def start_memtable(self) -> None:
        """Note that an empty memtable takes its first row."""
        self.oldest = time.monotonic()
        self.counted = (0, 0, 0, 0)

    def flushed(self, trigger: str, rows: int, size: int, seconds: float) -> None:
        """Note a flush and judge whether flushing pays."""
        metrics = self.metrics
        now = time.monotonic()
        elapsed = max(now - (metrics.last_flush or metrics.created), 1e-9)
        metrics.flushed(trigger, rows, size, seconds, now)
        self.flush_share += EWMA_ALPHA * (min(1.0, seconds / elapsed) - self.flush_share)
        self.unread_flushes += 1
        self.oldest = now
        self.counted = (0, 0, 0, 0)
        self.check_rows = 1
        self.checked_rows = 0
        self._log_summary(f"flushed {rows} rows ({trigger}) in {seconds * 1000:.2f} ms")
        slow = self.flush_share > MAX_FLUSH_TIME_SHARE and metrics.flush_seconds >= MIN_FALLBACK_SECONDS
        if not self.fallback and slow and self.unread_flushes >= MIN_FALLBACK_FLUSHES:
            self.fallback = True
            metrics.fallbacks += 1
            log.warning(
                "%s: falling back to the hash path: flushing takes %.0f %% of the time and the arranged form was not "
                "read during the last %d flushes", metrics.name, self.flush_share * 100, self.unread_flushes,
            )  # fmt: skip

    def record_ordered_read(self) -> None:
        """Note that the arranged form was asked for."""
        self.metrics.arranged_reads += 1
        self._log_detail("the arranged form is read")
        self.unread_flushes = 0
        if self.fallback:
            self.fallback = False
            self.flush_share = 0.0
            log.warning("%s: leaving the hash path: the arranged form is being read", self.metrics.name)

    def record_transition(self, before: str, after: str) -> None:
        self.metrics.record_transition(before, after)
        self._log_summary(f"{before} becomes {after}")

    def _log_summary(self, text: str) -> None:
        if self.config.logging != "off":
            log.info("%s: %s", self.metrics.name, text)

    def _log_detail(self, text: str) -> None:
        if self.config.logging == "detailed":
            log.debug("%s: %s", self.metrics.name, text)
