"""Streams out: the changes of a view, tick by tick, to a function or to a format that Spark writes.

A feed runs on a thread of its own and takes the committed ticks in order; a tick that does not change the view is
passed over. Its position, the last tick that it is through with, is committed with the ticks of the pipeline and when
the pipeline is closed, so it goes on there after a restart. What that means for the sink:

* A *function* is called at least once for a tick: if the process dies after it has returned and before the next
  commit, the tick is given to it again. With the tick as a key of its own, it can tell.
* A *format* is written exactly once: a tick is a folder `tick=N`, and a repetition replaces the folder by one with the
  same changes (only `_commit_timestamp` may have been forgotten).

A feed may fall behind by any number of ticks: the pipeline keeps the history of the view from the position of each of
its sinks on, of those too that are not running, and lets go of it as positions are saved. A manifest holds the
positions and the histories of one moment, so what a sink has not read is there when the location is opened again.

A new feed begins with what the view holds then, as inserts of that tick, so the changes always add up to the view. The
tick is committed before anything is given out, so a feed that dies on its first rows begins with the same ones again.
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("dbspark")
_MAX_COMMIT_TIMES = 1 << 14
"""How many times of commits are remembered."""

Position = dict[str, Any]
"""`tick`: through with that one; with `snapshot`: what the view held then is still to come."""


@dataclass(frozen=True, slots=True)
class ChangeSource:
    """Where changes come from and where positions are kept."""

    changes: Callable[[int, int], pa.Table]
    """What the ticks after one and up to another changed, with `_tick` and `_weight`."""
    rows: Callable[[int], pa.Table]
    """What there was at a tick."""
    times: Callable[[], Mapping[int, float]]
    """When earlier ticks were committed, as far as that is known."""
    save: Callable[[Position], None]
    """Keep a position with the next commit."""


class Feed:
    """A sink that is being fed: a handle in the manner of Spark's StreamingQuery."""

    def __init__(
        self, name: str, origin: ChangeSource, deliver: Callable[[pa.Table, int], None], position: Position, latest: int
    ) -> None:
        """`latest` is the last tick that is committed; `committed` tells of those that come after it."""
        self.name = name
        self._latest = latest
        self._source = origin
        self._deliver = deliver
        self._position = position
        self._times: dict[int, float] = dict(origin.times())
        self._error: BaseException | None = None
        self._stopping = False
        self._state = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"dbspark feed {name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ the handle

    @property
    def position(self) -> int:
        """The last tick that the sink has, or -1 while it has nothing."""
        position = self._position
        return int(position["tick"]) if not position.get("snapshot") else -1

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

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
        """End it after the tick that it is at."""
        with self._state:
            self._stopping = True
            self._state.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __repr__(self) -> str:
        state = "running" if self.isActive else "failed" if self._error is not None else "stopped"
        return f"Feed({self.name!r}, {state}, tick {self.position})"

    # ------------------------------------------------------------------ inside

    def committed(self, tick: int) -> None:
        """A tick has been committed."""
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
                    if len(changes):
                        self._deliver(changes, tick)
                    self._advance(tick)
                if self._stopping:
                    return
        except BaseException as error:
            # The ticks have happened; what is wrong with a sink is told where it was started.
            _log.exception("feed %s stops after tick %d", self.name, self.position)
            self._error = error
        finally:
            with self._state:
                self._stopping = True
                self._state.notify_all()

    def _pending_ticks(self) -> Iterator[tuple[int, pa.Table]]:
        """What is to be given out now, by tick; the last tick comes even if it has no changes."""
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


def make_sink(
    spark: Callable[[], SparkSession],
    function: Callable[[DataFrame, int], None] | None,
    format: str | None,
    path: str | None,
    options: Mapping[str, Any],
) -> Callable[[pa.Table, int], None]:
    """What to call with the changes of a tick."""
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


__all__ = ["ChangeSource", "Feed", "Position", "make_sink"]
