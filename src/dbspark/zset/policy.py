"""When an adaptive Z-set changes form: the decisions, apart from the data they are about.

One `Policy` per lineage. It is asked after every change, so the common answer (nothing to do) is two comparisons
with thresholds computed beforehand; thresholds are recomputed at flushes and when subscribers come or go.

Flush triggers: `size` S, `bytes`, `time` T (once there is a trace), `arranged` demand, `cancel` rate. Subscribers to
the arranged form quarter S and T. Every signal is an EWMA with separate thresholds for entering and leaving a state,
so that nothing flips back and forth.

If flushing takes a fifth of all time while nobody reads the arranged form, the lineage falls back to the hash path:
it stops flushing (up to eight times the byte budget) until the arranged form is asked for. The reason is logged.
"""

from __future__ import annotations

import logging
import time
from typing import Final

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
FALLBACK_BYTES: Final = 8
CLOCK_EVERY: Final = 16
"""Changes between two looks at the clock."""


class Policy:
    """The flush and form decisions of one lineage."""

    __slots__ = (
        "cancelling", "check_rows", "clock_in", "config", "fallback", "flush_rows", "flush_share", "metrics",
        "oldest", "removed", "seen", "unread_flushes",
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
        self.seen = 0
        self.removed = 0
        self.flush_rows = config.flush_size
        """S as it is now, with subscribers and cancellations considered."""
        self.check_rows = 1
        """Single rows that may pile up before they are looked at; doubled each time, up to S."""
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

    def trigger(self, rows: int, memtable: Memtable, traced: bool) -> str | None:
        """Why the memtable, now of `rows` rows, should become a batch; None if it should not."""
        if rows >= self.flush_rows and not self.fallback:
            return "cancel" if self.cancelling and rows < self.config.flush_size else "size"
        self.clock_in -= 1
        if self.clock_in > 0:
            return None
        self.clock_in = CLOCK_EVERY
        seen, removed = memtable.seen, memtable.removed
        if seen > self.seen:
            self.changed(seen - self.seen, removed - self.removed)
        self.seen, self.removed = seen, removed
        if memtable.nbytes() >= self.config.flush_bytes * (FALLBACK_BYTES if self.fallback else 1):
            return "bytes"
        if traced and not self.fallback and rows and time.monotonic() - self.oldest >= self.flush_seconds:
            return "time"
        return None

    def changed(self, rows: int, cancelled: int) -> None:
        """Note a change of `rows` rows, of which `cancelled` took rows away."""
        metrics = self.metrics
        metrics.changes += 1
        metrics.rows_in += rows
        if rows:
            metrics.cancel_rate += ALPHA * (cancelled / rows - metrics.cancel_rate)
            high = self.config.cancel_ewma
            cancelling = metrics.cancel_rate > (high * 0.5 if self.cancelling else high)
            if cancelling != self.cancelling:
                self.cancelling = cancelling
                self._say(
                    f"cancellation rate {metrics.cancel_rate:.2f}, flushing {'sooner' if cancelling else 'as usual'}"
                )
                self.retune()

    def flushed(self, trigger: str, rows: int, size: int, seconds: float) -> None:
        """Note a flush and judge whether flushing pays."""
        metrics = self.metrics
        now = time.monotonic()
        elapsed = max(now - (metrics.last_flush or metrics.created), 1e-9)
        metrics.flushed(trigger, rows, size, seconds, now)
        self.flush_share += ALPHA * (min(1.0, seconds / elapsed) - self.flush_share)
        self.unread_flushes += 1
        self.oldest = now
        self.seen = self.removed = 0
        self.check_rows = 1
        self._detail(f"flushed {rows} rows ({trigger}) in {seconds * 1000:.2f} ms")
        if not self.fallback and self.unread_flushes >= FALLBACK_FLUSHES and self.flush_share > FALLBACK_SHARE:
            self.fallback = True
            metrics.fallbacks += 1
            log.warning(
                "%s: falling back to the hash path: flushing takes %.0f %% of the time and the arranged form was not "
                "read during the last %d flushes", metrics.name, self.flush_share * 100, self.unread_flushes,
            )  # fmt: skip

    def demanded(self) -> None:
        """Note that the arranged form was asked for."""
        self.metrics.arranged_reads += 1
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
