"""What a pipeline says of itself: status, progress of ticks, totals."""

from __future__ import annotations

import threading
from typing import Any

from dbspark.connectors import sinks
from dbspark.connectors.sinks import describe_position
from dbspark.runtime.progress import Listener, Progress, ProgressMonitor
from dbspark.runtime.runtime import Runtime, StateReader
from dbspark.sql.program import Program


class Monitored:
    """The part of a pipeline that reports."""

    tick: int
    read_only: bool
    _closed: bool
    _lock: threading.RLock
    _monitor: ProgressMonitor
    _program: Program
    _runtime: Runtime
    _state_reader: StateReader
    _feeds: dict[str, sinks.Feed]
    _positions: dict[str, Any]

    @property
    def run_id(self) -> str:
        """Identifies this opening of the pipeline."""
        return self._monitor.run_id

    @property
    def is_active(self) -> bool:
        """Whether it is open."""
        return not self._closed

    @property
    def status(self) -> dict[str, Any]:
        """The current status, as of a `StreamingQuery`: `message`, `isDataAvailable`, `isTriggerActive`; and `sinks`,
        by view and name, how far each is and what it fails with. On shards also `exchange`: what carries ticks to them,
        and the workers with their hosts."""
        sinks_now = {
            key: self._feeds[key].status if key in self._feeds else describe_position(position, False)
            for key, position in self._positions.items()
        }
        carried = None if self.read_only else self._runtime.transport_status()
        exchange = {} if carried is None else {"exchange": carried}
        return {**self._monitor.status(self.is_active), "sinks": sinks_now, **exchange}

    @property
    def last_progress(self) -> Progress | None:
        """Row counts, durations and state sizes of the last transaction; None before the first one."""
        return self._monitor.last

    @property
    def recent_progress(self) -> list[Progress]:
        """The progress of the last hundred transactions, oldest first."""
        return self._monitor.recent

    def add_listener(self, listener: Listener) -> None:
        """Call a function with the progress of every transaction after its commit."""
        self._monitor.listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Stop calling a listener."""
        if listener in self._monitor.listeners:
            self._monitor.listeners.remove(listener)

    def metrics(self) -> dict[str, Any]:
        """Totals since the pipeline was opened, and the rows and bytes of its state."""
        with self._lock:
            sizes = self._state_reader.sizes()
        named = [n for n in sizes if n.startswith(("table ", "view "))]
        return {
            **self._monitor.totals,
            "tick": self.tick,
            "rows_by_name": {n.split(" ", 1)[1]: sizes[n].rows for n in named},
            "state_rows": {self._label(n): s.rows for n, s in sizes.items() if n not in named},
            "state_bytes": sum(s.bytes for s in sizes.values()),
        }

    def _label(self, name: str) -> str:
        """The display name of a trace."""
        node = self._program.builder.graph.nodes.get(name)
        return name if node is None else f"{node.label} #{name[:6]}"


__all__ = ["Monitored"]
