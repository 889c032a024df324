"""Progress reports of a pipeline, with the keys of Spark's `StreamingQueryProgress` and a few more.

There is one report for every tick; its `batchId` is the tick. Recording a tick costs the same however large the state
is: sizes are row counts, which spines know, and the dict of a report is built only when it is read or when there are
listeners. The last `MAX_RECENT_PROGRESS` records are kept.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import perf_counter, time
from typing import Any, NamedTuple, Protocol, SupportsInt

from dbspark.notebook_html import html_rows, titled

MAX_RECENT_PROGRESS = 100
"""Ticks whose progress is kept; Spark keeps as many of a query (`spark.sql.streaming.numRecentProgressUpdates`)."""


class Progress(dict[str, Any]):
    """The report on one tick: a dict that is legible where it is shown."""

    def __repr__(self) -> str:
        return json.dumps(self, indent=2, default=str)

    def _repr_html_(self) -> str:
        ms = self["durationMs"]
        inputs = [(s["description"], f"{s['numInputRows']:,} rows in") for s in self["sources"]]
        outputs = [(f"view {view}", f"{rows:,} rows changed") for view, rows in self["numOutputRows"].items()]
        times = [(part, f"{ms[part]:,.3f} ms") for part in ("check", "compute", "commit")]
        body = html_rows((("", ""), ("", "")), [*inputs, *outputs, *times], (False, True))
        remark = f"{self['numInputRows']:,} rows in {ms['transaction']:,.3f} ms, {self['timestamp']}"
        return titled(f"{self['name']}: tick {self['tick']}", remark, body)


Listener = Callable[[Progress], None]

_log = logging.getLogger("dbspark")


class RowCountSnapshot(Protocol):
    """Row counts of all state at one tick, before consolidation; summed only when read."""

    def rows(self) -> dict[str, int]:
        """Rows by trace: `table t`, `view v`, or the id of a node."""
        ...


class _Record(NamedTuple):
    """The arguments of `ProgressMonitor.record_tick`: cheap to keep, made into a dict when read."""

    tick: int
    table_row_counts: Mapping[str, int]
    view_row_counts: Mapping[str, SupportsInt]
    row_counts: RowCountSnapshot
    timer: TickTimer
    exchange: Mapping[str, Any] | None


class ProgressMonitor:
    """Records ticks and reports them to listeners."""

    def __init__(self, who: Callable[[], tuple[str, str]], label: Callable[[str], str]) -> None:
        """`who` gives the id and the name of the pipeline, `label` the display name of a trace."""
        self._who = who
        self._label = label
        self.run_id = str(uuid.uuid4())
        self._recent: deque[_Record] = deque(maxlen=MAX_RECENT_PROGRESS)
        self.listeners: list[Listener] = []
        self._transactions = self._rows = 0
        self._seconds = 0.0
        self.running = 0
        """Transactions in progress."""

    @property
    def totals(self) -> dict[str, float]:
        """Sums over all ticks since the pipeline was opened."""
        return {"transactions": self._transactions, "rows": self._rows, "seconds": self._seconds}

    def status(self, active: bool) -> dict[str, Any]:
        """The current status, with the keys of Spark's `StreamingQueryStatus`."""
        message = "Applying a transaction" if self.running else "Waiting for a transaction" if active else "Closed"
        return {"message": message, "isDataAvailable": bool(self.running), "isTriggerActive": bool(self.running)}

    def record_tick(
        self,
        tick: int,
        table_row_counts: Mapping[str, int],
        view_row_counts: Mapping[str, SupportsInt],
        row_counts: RowCountSnapshot,
        timer: TickTimer,
        exchange: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a committed tick: its row counts, those of the state, its durations, and what carried it to shards."""
        self._transactions += 1
        self._rows += sum(table_row_counts.values())
        self._seconds += timer.committed - timer.started
        self._recent.append(_Record(tick, table_row_counts, view_row_counts, row_counts, timer, exchange))
        if not self.listeners:
            return
        progress = self._progress(*self._recent[-1])
        for listener in list(self.listeners):
            try:
                listener(progress)
            except Exception:
                # The tick is committed; an error of one listener concerns neither it nor other listeners.
                _log.exception("a listener failed at tick %d", tick)

    @property
    def last(self) -> Progress | None:
        """The progress of the last tick."""
        return self._progress(*self._recent[-1]) if self._recent else None

    @property
    def recent(self) -> list[Progress]:
        """The progress of the last ticks, oldest first."""
        return [self._progress(*figures) for figures in list(self._recent)]

    def _progress(
        self,
        tick: int,
        table_row_counts: Mapping[str, int],
        view_row_counts: Mapping[str, SupportsInt],
        row_counts: RowCountSnapshot,
        timer: TickTimer,
        exchange: Mapping[str, Any] | None,
    ) -> Progress:
        id, name = self._who()
        seconds, rows = timer.total, sum(table_row_counts.values())
        return Progress(
            {
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
                **({} if exchange is None else {"exchange": dict(exchange)}),
            }
        )


class TickTimer:
    """Time stamps of the parts of a transaction; each is set by the component that finishes the part."""

    __slots__ = ("checked", "committed", "computed", "started", "started_at")

    def __init__(self) -> None:
        self.started_at = time()
        """Wall-clock time (`time.time`); the others are from `time.perf_counter`."""
        self.started = self.checked = self.computed = self.committed = perf_counter()

    @property
    def total(self) -> float:
        return self.committed - self.started

    def durations(self) -> dict[str, float]:
        """Milliseconds of each part and of the whole transaction."""
        parts = {
            "check": self.checked - self.started,
            "compute": self.computed - self.checked,
            "commit": self.committed - self.computed,
            "transaction": self.total,
        }
        return {part: round(1e3 * seconds, 3) for part, seconds in parts.items()}


__all__ = ["Listener", "Progress", "ProgressMonitor", "RowCountSnapshot", "TickTimer"]
