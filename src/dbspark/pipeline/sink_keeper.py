"""The sinks of a pipeline: starting, forgetting, and what is kept for them.

A sink has a position, the last tick that it has been given, which is committed with the ticks. The history of its view
is held from the oldest position on. The hold always comes before the commit that relies on it.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dbspark.connectors import sinks
from dbspark.errors import ConfigError, TimeError
from dbspark.pipeline.handles import View, key_prefix
from dbspark.runtime.runtime import ReadableTable, Runtime
from dbspark.storage.store import Store


class SinkKeeper:
    """The part of a pipeline that keeps its sinks."""

    tick: int
    _lock: threading.RLock
    _runtime: Runtime
    _store: Store | None
    _closed: bool
    _feeds: dict[str, sinks.Feed]
    """By key, the sinks that were started since the pipeline was opened."""
    _positions: dict[str, Any]
    """Committed position of each sink. Copy-on-write: a commit sees one consistent version."""

    @abstractmethod
    def view(self, name: str) -> View: ...

    @abstractmethod
    def _readable(self, name: str) -> ReadableTable: ...

    @abstractmethod
    def _check_writable(self, what: str) -> None: ...

    @abstractmethod
    def _commit_definitions(self) -> None: ...

    def _oldest_unread_tick(self, view: str) -> int | None:
        """The oldest position of the sinks of a view, running or not; None if it has no sink."""
        return min(
            (int(p["tick"]) for key, p in self._positions.items() if key.startswith(key_prefix(view))), default=None
        )

    def _feed(self, view: str, key: str, deliver: Callable[[pa.Table, int], None], since: int | None) -> sinks.Feed:
        """Start a sink of a view, from its stored position or anew."""
        with self._lock:
            self._check_writable("write_stream")
            if since is not None and since > self.tick:
                raise TimeError(
                    f"the sink {key!r} is to begin after tick {since}, which has not happened yet; the last one is "
                    f"{self.tick}. Give a tick up to that, or begin with what the view holds now (no since=…)"
                )
            running = self._feeds.get(key)
            if running is not None and running.isActive:
                raise ConfigError(f"the sink {key!r} runs already; stop it, or give this one another name=…")
            positions, new = self._positions, key not in self._positions
            if new:
                begin = {"tick": self.tick, "snapshot": True} if since is None else {"tick": since}
                self._positions = {**positions, key: begin}
            try:
                # The hold comes before the commit: the histories of a manifest must reach back to its positions.
                self._runtime.hold(view, self._oldest_unread_tick(view))
                self._check_history_covers(view, key, new)
                if new:
                    self._commit_definitions()
            except BaseException:
                self._positions = positions
                self._runtime.hold(view, self._oldest_unread_tick(view))
                raise

            def save(position: sinks.Position) -> None:
                with self._lock:
                    self._positions = {**self._positions, key: position}
                    self._runtime.hold(view, self._oldest_unread_tick(view))
                    if position.get("failure", {}).get("stopped") and not self._closed:
                        self._commit_definitions()  # so that the status of the location shows the sink

            origin = sinks.ChangeSource(
                lambda since, upto: self.view(view).changes(since, upto),
                lambda tick: self.view(view).as_of(tick).to_arrow(),
                self._commit_times,
                save,
            )
            self._feeds[key] = sinks.Feed(key, origin, deliver, self._positions[key], self.tick)
            return self._feeds[key]

    def _check_history_covers(self, view: str, key: str, new: bool) -> None:
        """Refuse a sink whose position is older than the history of its view."""
        tick, oldest = int(self._positions[key]["tick"]), self._readable(view).oldest()
        if tick < oldest and new:
            raise TimeError(
                f"the sink {key!r} is to begin after tick {tick}, which is no longer kept; the oldest is {oldest}. "
                "Begin with what the view holds now (no since=…), or keep more with the setting 'history' (ticks)"
            )
        if tick < oldest:
            raise TimeError(
                f"the sink {key!r} has read up to tick {tick}, and what came next is no longer kept; the oldest tick "
                f"is {oldest}. Forget it with pipe.view({view!r}).forget_stream(…) and begin it anew"
            )

    def _forget_feed(self, view: str, key: str) -> None:
        running = self._feeds.pop(key, None)
        if running is not None:
            running.stop()  # without the lock, which the sink needs to finish its tick
        with self._lock:
            self._check_writable("forget_stream")
            if key not in self._positions:
                known = ", ".join(k for k in self._positions if k.startswith(key_prefix(view))) or "none"
                raise ConfigError(f"there is no sink {key!r}; those of the view are {known}")
            positions = self._positions
            self._positions = {k: p for k, p in positions.items() if k != key}
            try:
                self._commit_definitions()
            except BaseException:
                self._positions = positions
                raise
            self._runtime.hold(view, self._oldest_unread_tick(view))

    def _commit_times(self) -> dict[int, float]:
        if self._store is None:
            return {}
        from dbspark.connectors.stored_tables import commit_times

        return commit_times(self._store)


__all__ = ["SinkKeeper"]
