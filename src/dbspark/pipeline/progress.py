"""What a pipeline is doing and has done, in the manner of Spark's StreamingQuery.

One progress for every tick: a dict with the keys that users of `lastProgress` know, `batchId` being the tick, and some
of ours. The sizes in it are numbers of rows, which states know about themselves, so a progress costs the same however
much is kept. Those of the last ticks are remembered, as figures that become a dict when somebody asks, and listeners
get every one of them as it comes.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, SupportsInt

REMEMBERED = 100
"""Progresses that are kept, as many as Spark keeps of a query."""

Progress = dict[str, Any]
Listener = Callable[[Progress], None]

_log = logging.getLogger("dbspark")


class Monitor:
    """Times ticks, and tells of them."""

    def __init__(self) -> None:
        self.run_id = str(uuid.uuid4())
        self._recent: deque[tuple[Any, ...]] = deque(maxlen=REMEMBERED)
        self.listeners: list[Listener] = []
        self.totals: dict[str, float] = {"transactions": 0, "rows": 0, "seconds": 0.0}
        self.running = 0
        """Transactions that are being applied."""

    def busy(self) -> Watch:
        """Time a transaction for as long as the block runs."""
        return Watch(self)

    def status(self, active: bool) -> dict[str, Any]:
        """What is going on, with the keys of a StreamingQuery's status."""
        message = "Applying a transaction" if self.running else "Waiting for a transaction" if active else "Closed"
        return {"message": message, "isDataAvailable": bool(self.running), "isTriggerActive": bool(self.running)}

    def note(
        self, id: str, name: str, tick: int, given: Mapping[str, int], taken: Mapping[str, SupportsInt],
        state: Mapping[str, int], labels: Callable[[str], str], watch: Watch,
    ) -> None:  # fmt: skip
        """A tick has happened: rows that came into tables, rows that views changed by, rows that are kept."""
        rows = sum(given.values())
        self.totals["transactions"] += 1
        self.totals["rows"] += rows
        self.totals["seconds"] += watch.total
        self._recent.append((id, name, tick, given, taken, state, labels, watch))
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
        self, id: str, name: str, tick: int, given: Mapping[str, int], taken: Mapping[str, SupportsInt],
        state: Mapping[str, int], labels: Callable[[str], str], watch: Watch,
    ) -> Progress:  # fmt: skip
        seconds, rows = watch.total, sum(given.values())
        return {
            "id": id,
            "runId": self.run_id,
            "name": name,
            "timestamp": datetime.fromtimestamp(watch.begun, UTC).isoformat(timespec="milliseconds"),
            "batchId": tick,
            "tick": tick,
            "numInputRows": rows,
            "processedRowsPerSecond": round(rows / seconds, 3) if seconds else 0.0,
            "durationMs": watch.durations(),
            "sources": [{"description": f"table {t}", "numInputRows": n} for t, n in given.items()],
            "numOutputRows": {view: int(rows) for view, rows in taken.items()},
            "stateOperators": [{"operatorName": labels(n), "numRowsTotal": r} for n, r in state.items()],
        }


class Watch:
    """How long the parts of a transaction take."""

    __slots__ = ("_at", "_laps", "_monitor", "begun")

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self.begun = time.time()
        self._at = time.perf_counter()
        self._laps: list[tuple[str, float]] = []

    def __enter__(self) -> Watch:
        self._monitor.running += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._monitor.running -= 1

    def lap(self, part: str) -> None:
        """A part is done."""
        now = time.perf_counter()
        self._laps.append((part, now - self._at))
        self._at = now

    @property
    def total(self) -> float:
        return sum(seconds for _, seconds in self._laps)

    def durations(self) -> dict[str, float]:
        """Milliseconds by part, and of all."""
        out = {part: round(1e3 * seconds, 3) for part, seconds in self._laps}
        return {**out, "transaction": round(1e3 * self.total, 3)}


__all__ = ["Listener", "Monitor", "Progress", "Watch"]
