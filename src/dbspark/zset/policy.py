"""Decides when an adaptive Z-set flushes its memtable and changes its form.

There is one `Policy` for a lineage of Z-sets. Thresholds are computed beforehand (at flushes, and when subscribers come
or go), so that the common decision, to do nothing, is two comparisons. A flush is triggered by

| trigger | when |
|---|---|
| `size` | the memtable has S rows |
| `bytes` | it has `flush_bytes` |
| `time` | its oldest row is T old, once there is a spine |
| `arranged` | somebody reads in order |
| `cancel` | many changes cancel rows, so that little is left after the flush |

Subscribers to the ordered form quarter S and T. Rows that are added one by one count towards S only after the first
read in columns: until then they are read from the dict, and only their bytes are bounded. Rates are EWMAs with
hysteresis: the thresholds for entering and for leaving a mode differ.

Fallback: if flushes take more than `MAX_FLUSH_TIME_SHARE` of the time and nobody reads in order, the lineage stops
flushing, up to `FALLBACK_BYTES_FACTOR` × `flush_bytes`, until somebody does. The reason is logged.
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
"""S and T are divided by this while there are subscribers."""
CANCELLATION_DIVISOR: Final = 4
"""S is divided by this while the cancellation rate is high."""
MAX_FLUSH_TIME_SHARE: Final = 0.2
"""Share of the time that flushes may take (EWMA) before the lineage falls back."""
MIN_FALLBACK_FLUSHES: Final = 4
"""Flushes without a read in order that precede a fallback, at least."""
MIN_FALLBACK_SECONDS: Final = 0.05
"""Total time of flushes that precedes a fallback, at least."""
FALLBACK_BYTES_FACTOR: Final = 8
"""A memtable after a fallback is flushed at this many times `flush_bytes`."""
SMALL_TRACE_FACTOR: Final = 4
"""A spine of up to this many times `small_limit` rows is consolidated at each insert: it may be small again."""
CHANGES_PER_CHECK: Final = 32
"""Changes between two checks of bytes and time."""


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
        """S, divided if there are subscribers or the cancellation rate is high."""
        self.check_rows = 1
        """Rows of the dict at which `check_row_adds` is called again."""
        self.checked_rows = 0
        self.update_thresholds()

    def update_thresholds(self) -> None:
        """Recompute the thresholds from the subscribers and the cancellation rate."""
        rows = self.config.flush_size
        if self.metrics.subscribers:
            rows = max(1, rows // SUBSCRIBER_DIVISOR)
        if self.cancelling:
            rows = max(1, rows // CANCELLATION_DIVISOR)
        self.flush_rows = rows

    @property
    def flush_seconds(self) -> float:
        """T, divided while there are subscribers."""
        ms = self.config.flush_time_ms / (SUBSCRIBER_DIVISOR if self.metrics.subscribers else 1)
        return ms / 1000

    @property
    def counts_row_adds(self) -> bool:
        """Whether rows added one by one count towards S, which they do after the first read in columns."""
        return self.metrics.arranged_reads > 0 or self.metrics.subscribers > 0

    def memtable_headroom(self, memtable: Memtable) -> int:
        """Rows in columns that can be added to the memtable without reaching S."""
        if self.fallback:
            return self.config.flush_size
        there = 0 if memtable.table is None else len(memtable.table)
        return self.flush_rows - 1 - there - (len(memtable.rows) if self.counts_row_adds else 0)

    def trigger(self, rows: int, memtable: Memtable, traced: int, changes: int = 1) -> str | None:
        """The trigger of a flush of the memtable, which has `rows` rows now; None if it is not to be flushed.

        `traced`: rows in the spine behind it; `changes`: changes since the last call.
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
            return "cancel"  # few rows will be left of memtable and spine
        if traced and not self.fallback and rows and time.monotonic() - self.oldest >= self.flush_seconds:
            return "time"
        return None

    def record_memtable(self, memtable: Memtable) -> None:
        """Add the counters of a memtable, as far as they grew since the last call, to the metrics."""
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
        """Check the limits whenever the dict has grown by a quarter, and its share of removals whenever it has
        doubled."""
        rows = len(memtable.rows)
        if rows >= 2 * self.checked_rows:
            self.checked_rows = rows
            self.record_cancellations(sum(w < 0 for w in memtable.rows.values()) / max(rows, 1))
        self.check_rows = rows + max(CHANGES_PER_CHECK, rows // 4)
        if self.counts_row_adds and not self.fallback:
            self.check_rows = max(min(self.check_rows, self.flush_rows - (len(memtable) - rows)), rows + 1)
        self.changes_to_check = 0  # check bytes and time as well

    def record_cancellations(self, share: float, alpha: float = EWMA_ALPHA) -> None:
        """Update the cancellation rate with the share of changed rows that had negative weights."""
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
        """Record deltas that were inserted into the spine without the memtable."""
        self.record_deltas(batches)
        self.metrics.spine = spine

    def record_deltas(self, batches: Sequence[Batch]) -> None:
        """Record deltas that do not go through the memtable."""
        metrics = self.metrics
        rows = sum([batch.rows for batch in batches])
        metrics.changes += len(batches)
        metrics.rows_in += rows
        negative_rows = sum([batch.negative for batch in batches])
        self.record_cancellations(
            negative_rows / rows, 1 - (1 - 3 * EWMA_ALPHA) ** len(batches)
        )  # a large delta says more than a few rows

    def start_memtable(self) -> None:
        """Start the age and the counters of an empty memtable that takes its first row."""
        self.oldest = time.monotonic()
        self.counted = (0, 0, 0, 0)

    def flushed(self, trigger: str, rows: int, size: int, seconds: float) -> None:
        """Record a flush, and fall back if flushes cost too much."""
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
        """Record a read in order, which ends a fallback."""
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
