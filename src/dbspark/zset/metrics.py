"""Counters of Z-sets, always on, and a registry of all of them.

A Z-set is immutable, so counters belong to its *lineage*: the values that were made from one another by addition. A
lineage gets counters when a Z-set outgrows the small form; deltas, which are small, have none.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from dbspark.trace.spine import Spine

_numbers = itertools.count(1)
_registry: weakref.WeakSet[Metrics] = weakref.WeakSet()
_lock = threading.Lock()

EWMA_ALPHA = 0.2
"""Weight of the newest observation in the exponentially weighted moving averages (EWMA)."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Metrics:
    """Counters of one lineage. Rates are EWMAs, updated at flushes."""

    name: str = field(default_factory=lambda: f"zset-{next(_numbers)}")
    created: float = field(default_factory=time.monotonic)
    changes: int = 0
    """Deltas and single rows applied."""
    rows_in: int = 0
    rows_per_second: float = 0.0
    bytes_per_second: float = 0.0
    flushes: dict[str, int] = field(default_factory=dict)
    """Number of flushes by trigger (`zset.policy`)."""
    flushed_rows: int = 0
    kept_hot: int = 0
    flush_seconds: float = 0.0
    last_flush: float = 0.0
    compact_seconds: float = 0.0
    cancel_rate: float = 0.0
    arranged_reads: int = 0
    subscribers: int = 0
    cache_hits: int = 0
    transitions: dict[str, int] = field(default_factory=dict)
    """Changes of form, such as `small>memtable`."""
    fallbacks: int = 0
    spine: Spine | None = None
    """The newest spine of the lineage."""

    def __post_init__(self) -> None:
        with _lock:
            _registry.add(self)

    def flushed(self, trigger: str, rows: int, size: int, seconds: float, now: float) -> None:
        self.flushes[trigger] = self.flushes.get(trigger, 0) + 1
        self.flushed_rows += rows
        self.flush_seconds += seconds
        elapsed = max(now - (self.last_flush or self.created), 1e-6)
        self.rows_per_second += EWMA_ALPHA * (rows / elapsed - self.rows_per_second)
        self.bytes_per_second += EWMA_ALPHA * (size / elapsed - self.bytes_per_second)
        self.last_flush = now

    @property
    def batches(self) -> int:
        return 0 if self.spine is None else len(self.spine.batches)

    @property
    def backlog_rows(self) -> int:
        return 0 if self.spine is None else self.spine.backlog()

    def record_transition(self, before: str, after: str) -> None:
        step = f"{before}>{after}"
        self.transitions[step] = self.transitions.get(step, 0) + 1

    def snapshot(self) -> dict[str, Any]:
        """All counters as plain values."""
        flushes = sum(self.flushes.values())
        out = {
            "name": self.name,
            "changes": self.changes,
            "rows_in": self.rows_in,
            "rows_per_second": self.rows_per_second,
            "bytes_per_second": self.bytes_per_second,
            "flushes": dict(self.flushes),
            "average_flush_rows": self.flushed_rows / flushes if flushes else 0.0,
            "flush_seconds": self.flush_seconds,
            "seconds_since_flush": time.monotonic() - self.last_flush if self.last_flush else None,
            "kept_hot": self.kept_hot,
            "compact_seconds": self.compact_seconds,
            "cancel_rate": self.cancel_rate,
            "arranged_reads": self.arranged_reads,
            "subscribers": self.subscribers,
            "cache_hits": self.cache_hits,
            "transitions": dict(self.transitions),
            "fallbacks": self.fallbacks,
            "batches": self.batches,
            "backlog_rows": self.backlog_rows,
        }
        if self.spine is not None:
            stats = self.spine.stats
            out["merges"] = stats.merges
            out["merge_seconds"] = stats.seconds
            out["merge_rows_in"] = stats.rows_in
            out["merge_rows_out"] = stats.rows_out
            out["reduction"] = stats.reduction
        return out


def dump() -> list[dict[str, Any]]:
    """A snapshot of every live lineage, oldest first."""
    with _lock:
        known = list(_registry)
    return [m.snapshot() for m in sorted(known, key=lambda m: m.created)]
