"""The background thread, one for all spines of the process: it runs large merges and other work beside the ticks.

A background merge takes a merge in progress, which is a value, steps it until it is a batch, and publishes a new state
from time to time. The owner of the spine (`BackgroundMerges`) adopts the last published state when it next uses the
spine, so the output of a merge can be read before it is done, and its inputs are freed piece by piece. A state is not
published after every step, because adopting it rebuilds the batch directory of the spine, at the cost of a tick. A
state belongs to the entry of the spine that has the same merge source, so a spine that was rolled back or forked adopts
only its own merges. Kernels run without the GIL, so background merges cost ticks nothing but a core.

After every step the thread chooses the next task: first those that a caller waits for, then all others, then those
for idle time; among equals the one with the fewest rows. A small merge has to be done within a few ticks, a large one
only before as many rows have been inserted again; in order of arrival, ticks would wait for the large one.

Other work (`BackgroundTask`) runs on the same thread: a second one would compete with the ticks for the second core.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Generic, TypeVar

from dbspark.columnar import Batch
from dbspark.columnar.chunk import CHUNK_ROWS
from dbspark.trace.merge_state import MergeRun, MergeState
from dbspark.trace.spine import Spine

T = TypeVar("T")
PUBLISH_CHUNKS = 8
"""A merge is published after this many chunks, or after one part in this many of its rows if that is more."""


class _Scheduler:
    """The tasks that are not done, and the thread that runs while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: list[_Task] = []
        self._pool: ThreadPoolExecutor | None = None
        self._working = False

    def add(self, task: _Task) -> None:
        with self._lock:
            self._tasks.append(task)
            if self._working:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="dbspark-compaction")
            self._pool.submit(self._work)
            self._working = True

    def _work(self) -> None:
        while (task := self._next()) is not None:
            if task.run_step():
                with self._lock:
                    self._tasks.remove(task)

    def _next(self) -> _Task | None:
        with self._lock:
            self._working = bool(self._tasks)
            return min(self._tasks, key=_Task.priority, default=None)


_SCHEDULER = _Scheduler()


class _Task(ABC):
    """Work of the background thread, done in steps."""

    def __init__(self, total: int) -> None:
        self.total = total
        """Rows of the task; tasks with fewer run first."""
        self._cancelled = False
        self._awaited = False
        self._when_idle = False

    def priority(self) -> tuple[bool, bool, int]:
        """The task with the least priority value runs next. Cancelled tasks run early, because they hold memory."""
        return not (self._awaited or self._cancelled), self._when_idle, self.total

    @abstractmethod
    def run_step(self) -> bool:
        """Run one step; returns whether it was the last."""


class BackgroundTask(_Task, Generic[T]):
    """A function call on the background thread, in one step."""

    def __init__(self, rows: int, function: Callable[[], T], awaited: bool = False, when_idle: bool = False) -> None:
        """`awaited`: it runs before all others, because a caller will wait for it soon. `when_idle`: it runs after all
        others, unless a caller waits for it."""
        super().__init__(rows)
        self._awaited = awaited
        self._when_idle = when_idle
        self._function = function
        self._future: Future[T] = Future()
        _SCHEDULER.add(self)

    def run_step(self) -> bool:
        try:
            self._future.set_result(self._function())
        except BaseException as error:
            self._future.set_exception(error)
        return True

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def failed(self) -> bool:
        return self._future.done() and self._future.exception() is not None

    def wait(self) -> None:
        """Wait until the function has returned or raised."""
        self._awaited = True
        self._future.exception()

    def result(self) -> T:
        """Run the task before all others and wait for it; returns or raises what the function did."""
        self._awaited = True
        return self._future.result()


class BackgroundMerge(_Task):
    """One merge on the background thread."""

    def __init__(self, merging: MergeState) -> None:
        super().__init__(merging.total)
        self.source = merging.source
        """The identity of the merge, by which its entry in the spine is found."""
        self.latest: MergeState | Batch = merging
        self.last_adopted: MergeState | Batch = merging
        """The state that is in the spine: the last one that its owner has adopted."""
        self._running: MergeRun | None = None
        self._indexed = any("index" in b.__dict__ for b in merging.inputs)
        self._future: Future[None] = Future()
        _SCHEDULER.add(self)

    def run_step(self) -> bool:
        try:
            if not self._cancelled:
                self._step()
        except BaseException as error:
            self._running = None
            self._future.set_exception(error)
            return True
        if isinstance(self.latest, MergeState) and not self._cancelled:
            return False
        self._running = None
        self._future.set_result(None)
        return True

    def _step(self) -> None:
        if self._running is None:
            assert isinstance(self.latest, MergeState)
            self._running = MergeRun(self.latest)
        running = self._running
        running.step(CHUNK_ROWS)
        if running.done or running.read >= max(PUBLISH_CHUNKS * CHUNK_ROWS, self.total // PUBLISH_CHUNKS):
            value = running.value()
            if self._indexed and isinstance(value, Batch):
                _ = value.index  # built on this thread and kept by the batch, so that no tick has to build it
            self.latest = value

    def wait(self) -> None:
        """Run the merge before all other tasks and wait until it is done; raises its error."""
        self._awaited = True
        self._future.result()

    def failed(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def cancel(self) -> None:
        """Stop after the step that is running."""
        self._cancelled = True


class BackgroundMerges:
    """The merges of one spine that run on the background thread."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: list[BackgroundMerge] = []

    def start_merges(self, spine: Spine) -> Spine:
        """Start the merges that are large enough, and wait for each that is overdue: as many rows as it merges have
        been inserted since it began."""
        threshold = spine.config.min_background_rows
        if threshold is None or not (self.running or spine.merges):
            return spine
        large = [e for e in spine.entries if type(e) is MergeState and e.total >= threshold]
        running = {merge.source for merge in self.running}
        self.running += [BackgroundMerge(entry) for entry in large if entry.source not in running]
        for merge in list(self.running):
            if merge not in self.running:  # already adopted while another merge was waited for
                continue
            newer = 0
            for entry in reversed(spine.entries):
                if isinstance(entry, Batch):
                    newer += entry.rows
                elif entry.source is merge.source:
                    break
                else:
                    newer += entry.total
            else:  # the spine was rolled back, or merged otherwise
                self._abandon(merge)
                continue
            if newer >= merge.total:
                self._wait(merge)
                spine = self.adopt(spine)
        return spine

    def adopt(self, spine: Spine, reading: bool = False) -> Spine:
        """The spine with the last published state of each merge.

        If a merge has failed, this raises its error and drops the merge, so that it is started again later. With
        `reading`, errors are left for the next writer.
        """
        for merge in list(self.running):
            error = merge.failed()
            if error is not None:
                if reading:
                    continue
                self.running.remove(merge)
                raise error
            latest = merge.latest
            if latest is merge.last_adopted:  # nothing new
                continue
            merge.last_adopted = latest
            entries: list[Any] = list(spine.entries)
            found = ((i, e) for i, e in enumerate(entries) if type(e) is MergeState and e.source is merge.source)
            at, installed = next(found, (0, None))
            if installed is None:  # the spine was rolled back, or merged otherwise
                self._abandon(merge)
                continue
            if isinstance(latest, Batch):
                entries[at] = latest.with_description(installed.description)
                spine.stats.record_merge(merge.total, latest.rows)
                self.running.remove(merge)
            else:
                entries[at] = replace(latest, description=installed.description)
            spine = spine.with_entries(tuple(entries))
        return spine

    def _wait(self, merge: BackgroundMerge) -> None:
        """Wait for a merge. One that has failed is dropped, so that it is started again later."""
        try:
            merge.wait()
        except Exception:
            self.running.remove(merge)
            raise

    def _abandon(self, merge: BackgroundMerge) -> None:
        merge.cancel()
        self.running.remove(merge)

    def finish(self, spine: Spine) -> Spine:
        """The spine after all merges that are running or become due by that."""
        while self.running:
            self._wait(self.running[0])
            spine = self.adopt(spine)
        return spine.work(None)

    def cancel(self) -> None:
        """Stop all merges; the spine stays as it is, and readable."""
        for merge in self.running:
            merge.cancel()
        self.running = []
