"""What a pipeline is doing and has done, in the manner of Spark's StreamingQuery.

One progress for every tick: a dict with the keys that users of `lastProgress` know, `batchId` being the tick, and some
of ours. The sizes in it are numbers of rows, which states know about themselves, so a progress costs the same however
much is kept. Those of the last ticks are remembered, as figures that become a dict when somebody asks, and listeners
get every one of them as it comes.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import perf_counter, time
from typing import Any, NamedTuple, Protocol, SupportsInt

MAX_RECENT_PROGRESS = 100
"""Progresses that are kept, as many as Spark keeps of a query."""

Progress = dict[str, Any]
Listener = Callable[[Progress], None]

_log = logging.getLogger("dbspark")


class RowCountSnapshot(Protocol):
    """How many rows there were at one moment, before consolidation; added up when somebody asks."""

    def rows(self) -> dict[str, int]:
        """By what keeps them: `table t`, `view v`, or the id of a node."""
        ...


class _Record(NamedTuple):
    """What a tick has done, in the types in which it is cheap to keep; see `ProgressMonitor.record_tick`."""

    tick: int
    table_row_counts: Mapping[str, int]
    view_row_counts: Mapping[str, SupportsInt]
    row_counts: RowCountSnapshot
    timer: TickTimer


class ProgressMonitor:
    """Times ticks, and tells of them."""

    def __init__(self, who: Callable[[], tuple[str, str]], label: Callable[[str], str]) -> None:
        """`who` gives the id and the name of the pipeline, `label` what people call something that keeps rows."""
        self._who = who
        self._label = label
        self.run_id = str(uuid.uuid4())
        self._recent: deque[_Record] = deque(maxlen=MAX_RECENT_PROGRESS)
        self.listeners: list[Listener] = []
        self._transactions = self._rows = 0
        self._seconds = 0.0
        self.running = 0
        """Transactions that are being applied."""

    @property
    def totals(self) -> dict[str, float]:
        """Of all ticks so far."""
        return {"transactions": self._transactions, "rows": self._rows, "seconds": self._seconds}

    def status(self, active: bool) -> dict[str, Any]:
        """What is going on, with the keys of a StreamingQuery's status."""
        message = "Applying a transaction" if self.running else "Waiting for a transaction" if active else "Closed"
        return {"message": message, "isDataAvailable": bool(self.running), "isTriggerActive": bool(self.running)}

    def record_tick(
        self,
        tick: int,
        table_row_counts: Mapping[str, int],
        view_row_counts: Mapping[str, SupportsInt],
        row_counts: RowCountSnapshot,
        timer: TickTimer,
    ) -> None:
        """A tick has happened: rows that came into tables, rows that views changed by, rows that are kept."""
        self._transactions += 1
        self._rows += sum(table_row_counts.values())
        self._seconds += timer.committed - timer.started
        self._recent.append(_Record(tick, table_row_counts, view_row_counts, row_counts, timer))
        if not self.listeners:
            return
        progress = self._progress(*self._recent[-1])
        for listener in list(self.listeners):
            try:
                listener(progress)
            except Exception:
                # The tick has happened; one listener's trouble is not that of the others.
                _log.exception("a listener failed at tick %d", tick)

    @property
    def last(self) -> Progress | None:
        """The progress of the last tick."""
        return self._progress(*self._recent[-1]) if self._recent else None

    @property
    def recent(self) -> list[Progress]:
        """Those of the last ticks, the oldest first."""
        return [self._progress(*figures) for figures in list(self._recent)]

    def _progress(
        self,
        tick: int,
        table_row_counts: Mapping[str, int],
        view_row_counts: Mapping[str, SupportsInt],
        row_counts: RowCountSnapshot,
        timer: TickTimer,
    ) -> Progress:
        id, name = self._who()
        seconds, rows = timer.total, sum(table_row_counts.values())
        return {
            "id": id,
            "runId": self.run_id,
            "name": name,
            "timestamp": datetime.fromtimestamp(timer.started_at, UTC).isoformat(timespec="milliseconds"),
            "batchId": tick,
            "tick": tick,
            "numInputRows": rows,
            "processedRowsPerSecond": round(rows / seconds, 3) if seconds else 0.0,
            "durationMs": timer.durations(),
            "sources": [{"description": f"table {t}", "numInputRows": n} for t, n in table_row_counts.items()],
            "numOutputRows": {view: int(rows) for view, rows in view_row_counts.items()},
            "stateOperators": [
                {"operatorName": self._label(n), "numRowsTotal": r} for n, r in row_counts.rows().items()
            ],
        }


class TickTimer:
    """When a transaction began, and when its parts were over; whoever does a part says so."""

    __slots__ = ("checked", "committed", "computed", "started", "started_at")

    def __init__(self) -> None:
        self.started_at = time()
        """By the clock on the wall; all others by that of the processor."""
        self.started = self.checked = self.computed = self.committed = perf_counter()

    @property
    def total(self) -> float:
        return self.committed - self.started

    def durations(self) -> dict[str, float]:
        """Milliseconds by part, and of all."""
        parts = {
            "check": self.checked - self.started,
            "compute": self.computed - self.checked,
            "commit": self.committed - self.computed,
            "transaction": self.total,
        }
        return {part: round(1e3 * seconds, 3) for part, seconds in parts.items()}


__all__ = ["Listener", "Progress", "ProgressMonitor", "RowCountSnapshot", "TickTimer"]
