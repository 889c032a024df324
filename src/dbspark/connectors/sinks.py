"""Streams out: the changes of a view, tick by tick, to a function or to a format that Spark writes.

A feed runs on a thread of its own and delivers the committed ticks in order; a tick that does not change the view is
skipped. Its position, the last tick that it has delivered, is committed with the ticks of the pipeline and when the
pipeline is closed; after a restart it continues from there. Delivery guarantees:

* A *function* is called at least once for a tick: if the process dies after it has returned and before the next
  commit, it is called again with that tick. It can recognise the repetition by the tick.
* A *format* is written exactly once: a tick is a folder `tick=N`, and a repetition replaces the folder by one with the
  same changes (only `_commit_timestamp` may have been forgotten).

A sink that raises gets the same tick again, after pauses that grow (`RetryPolicy`). When it has failed too often, the
feed stops with the error; it goes on from the same tick when it is started again. What fails is kept beside the
position, so that the status of the pipeline, and of its location, says so.

A feed may fall behind by any number of ticks: the pipeline keeps the history of the view from the oldest position of
its sinks on, whether they run or not, and drops it as positions advance. Positions and histories are committed in one
manifest, so the ticks that a sink has not read are there when the location is opened again.

A new feed begins with the rows of the view, as inserts of the present tick, so its changes always add up to the view.
That position is committed before anything is delivered, so a feed that dies on its first rows begins with the same ones
again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar.frames import frame_of
from dbspark.connectors.feed import TICK, to_feed, to_inserts
from dbspark.errors import ConfigError
from dbspark.sql.names import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("dbspark")
_MAX_COMMIT_TIMES = 1 << 14
"""Commit times that a feed remembers, for `_commit_timestamp`."""

Position = dict[str, Any]
"""`tick`: the last delivered tick; with `snapshot`, the rows of the view at that tick are still to be delivered; with
`failure`, how the delivery of the next tick has failed: its `error`, the number of `attempts`, and whether it has
`stopped`."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a sink that fails is tried, and how long the pauses between are."""

    attempts: int = 8
    """Deliveries of one tick before the feed stops; with the pauses below, over half a minute."""
    first_pause: float = 0.25
    """Seconds before the second attempt; each further pause is twice as long."""
    max_pause: float = 30.0
    """Seconds of the longest pause."""

    def pause(self, failed: int) -> float:
        """Seconds to wait after so many failed attempts."""
        return float(min(self.max_pause, self.first_pause * 2 ** (failed - 1)))


RETRY = RetryPolicy()
"""The policy of feeds that are started without one."""


@dataclass(frozen=True, slots=True)
class ChangeSource:
    """The view that a feed reads, and where it saves its position."""

    changes: Callable[[int, int], pa.Table]
    """`changes(since, upto)`: the changes of the ticks in (since, upto], with `_tick` and `_weight`."""
    rows: Callable[[int], pa.Table]
    """The rows at a tick."""
    times: Callable[[], Mapping[int, float]]
    """The commit times of earlier ticks, as far as they are stored."""
    save: Callable[[Position], None]
    """Save a position with the next commit, or at once if the feed has stopped with it."""


class Feed:
    """A running sink: a handle with the interface of Spark's `StreamingQuery`."""

    def __init__(
        self, name: str, origin: ChangeSource, deliver: Callable[[pa.Table, int], None], position: Position, latest: int
    ) -> None:
        """`latest` is the last committed tick; `committed` announces later ones."""
        self.name = name
        self._latest = latest
        self._source = origin
        self._deliver = deliver
        self._position = position
        self._times: dict[int, float] = dict(origin.times())
        self._error: BaseException | None = None
        self._retry = RETRY
        self._stopping = False
        self._state = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"dbspark feed {name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ the handle

    @property
    def position(self) -> int:
        """The last tick that the sink has received, or -1 before its first rows."""
        position = self._position
        return int(position["tick"]) if not position.get("snapshot") else -1

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    @property
    def status(self) -> str:
        """The position of the feed, and the error that it fails with, in one line."""
        return describe_position(self._position, self.isActive)

    def exception(self) -> BaseException | None:
        """The error that ended it, if one did."""
        return self._error

    def processAllAvailable(self) -> None:
        """Wait until the sink has every tick that is committed now; raises what it failed with."""
        with self._state:
            latest = self._latest
            self._state.wait_for(lambda: self.position >= latest or self._stopping)
        if self._error is not None:
            raise self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until it ends; raises what it failed with."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop after the tick in progress."""
        with self._state:
            self._stopping = True
            self._state.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __repr__(self) -> str:
        return f"Feed({self.name!r}, {self.status})"

    # ------------------------------------------------------------------ inside

    def committed(self, tick: int) -> None:
        """Announce a committed tick."""
        with self._state:
            self._latest = tick
            self._times[tick] = time.time()
            if len(self._times) > _MAX_COMMIT_TIMES:
                del self._times[next(iter(self._times))]
            self._state.notify_all()

    def _run(self) -> None:
        try:
            while True:
                with self._state:
                    self._state.wait_for(lambda: self._stopping or self.position < self._latest)
                for tick, changes in self._pending_ticks():
                    if self._stopping:
                        return
                    if len(changes) and not self._delivered(changes, tick):
                        return
                    self._advance(tick)
                if self._stopping:
                    return
        except BaseException as error:
            # The ticks are committed; the error concerns the sink only.
            _log.exception("feed %s stops after tick %d", self.name, self.position)
            self._error = error
            self._record_failure(error, int(self._position.get("failure", {}).get("attempts", 0)) + 1, True)
        finally:
            with self._state:
                self._stopping = True
                self._state.notify_all()

    def _delivered(self, changes: pa.Table, tick: int) -> bool:
        """Deliver the changes of a tick, again if the sink fails; False if the feed is stopped meanwhile."""
        attempt = 1
        while True:
            try:
                self._deliver(changes, tick)
                return True
            except Exception as error:
                if attempt >= self._retry.attempts:
                    raise
                pause = self._retry.pause(attempt)
                _log.warning(
                    "feed %s failed at tick %d (attempt %d of %d), and is tried again in %.3g s: %s: %s",
                    self.name, tick, attempt, self._retry.attempts, pause, type(error).__name__, _first_line(error),
                )  # fmt: skip
                self._record_failure(error, attempt, False)
            with self._state:
                if self._state.wait_for(lambda: self._stopping, pause):
                    return False
            attempt += 1

    def _record_failure(self, error: BaseException, attempts: int, stopped: bool) -> None:
        """Keep beside the position what the sink fails with."""
        failure = {"error": f"{type(error).__name__}: {_first_line(error)}", "attempts": attempts, "stopped": stopped}
        position = {**self._position, "failure": failure}
        try:
            self._source.save(position)
        except Exception:  # the sink's own error, which matters more, is logged elsewhere
            _log.exception("the failure of feed %s could not be stored", self.name)
        with self._state:
            self._position = position

    def _pending_ticks(self) -> Iterator[tuple[int, pa.Table]]:
        """The change feeds to deliver, by tick; the latest tick is included in any case, to advance the position."""
        if self._position.get("snapshot"):
            tick = int(self._position["tick"])
            yield tick, to_inserts(self._source.rows(tick), tick, dict(self._times))
            return
        latest = self._latest
        if latest <= self.position:
            return
        changes = self._source.changes(self.position, latest)
        for tick in sorted({*pc.unique(changes.column(TICK)).to_pylist(), latest}):
            yield tick, to_feed(changes.filter(pc.equal(changes.column(TICK), tick)), dict(self._times))

    def _advance(self, tick: int) -> None:
        position = {"tick": tick}
        self._source.save(position)
        with self._state:
            self._position = position
            self._state.notify_all()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


def describe_position(position: Position, running: bool | None = None) -> str:
    """A position in one line; `running` is None where only the position is known, as from the files."""
    tick = "before its first rows" if position.get("snapshot") else f"tick {position['tick']}"
    failure = position.get("failure")
    if failure is None:
        return tick if running is None else f"{'running' if running else 'stopped'}, {tick}"
    if failure["stopped"]:
        return f"failed after {failure['attempts']} attempt(s), {tick}: {failure['error']}"
    return f"trying again after {failure['attempts']} failed attempt(s), {tick}: {failure['error']}"


def make_sink(
    spark: Callable[[], SparkSession],
    function: Callable[[DataFrame, int], None] | None,
    format: str | None,
    path: str | None,
    options: Mapping[str, Any],
) -> Callable[[pa.Table, int], None]:
    """The function that delivers the feed of a tick, from the arguments of `write_stream`."""
    for option in options:  # unknown options go to Spark's writer, but a misspelt option of ours must not
        if hint := nearest(option, ("format", "path", "name", "since", "function"), 0.75):
            raise ConfigError(f"write_stream has no option {option!r}{hint}; there are format, path, name, since")
    if function is not None and not callable(function):
        raise ConfigError(f"write_stream takes a function of (changes, tick), not {function!r:.80}")
    if (function is None) == (format is None):
        raise ConfigError("write_stream takes a function, or format=… with path=…; give one of them")
    if function is not None:
        if path is not None or options:
            raise ConfigError("write_stream: path and options are for a format; the function writes where it likes")
        return lambda changes, tick: function(frame_of(spark(), changes), tick)
    if path is None:
        raise ConfigError(f"write_stream: format {format!r} needs a path, the folder for the folders of the ticks")

    def write(changes: pa.Table, tick: int) -> None:
        writer = frame_of(spark(), changes).write.format(str(format)).mode("overwrite")
        writer.options(**dict(options)).save(f"{str(path).rstrip('/')}/tick={tick}")

    return write


__all__ = ["RETRY", "ChangeSource", "Feed", "Position", "RetryPolicy", "describe_position", "make_sink"]
