"""Work beside the ticks, large merges above all: one thread for all spines of the process.

A job takes a merge in progress, which is a value, steps it until it is a batch, and publishes it as a value from time
to time. Whoever holds the spine (`Beside`) takes over the latest whenever it is touched, so a merge beside the ticks is
as readable as any other and gives its inputs back piece by piece: not at every step, because to take one over means to
list the batches of the spine anew, at the cost of a tick. Merges are found by what they are merges of, so a spine that
has been rolled back, or forked, takes over what is its own and no other. The kernels hold no lock while they run; a
tick loses nothing but a core.

The thread asks after every step whose turn it is: of those that somebody waits for, and else of all, the merge of the
fewest rows. A small merge has to be done before a few ticks are over, a large one has as long as its size; in the
order in which they come, the small one would wait for the large one, and the ticks for the small one. Behind all of
them comes what nobody needs yet.

Other work that ticks need not wait for takes its turns here as well (`Task`): with a thread of its own it would compete
with the ticks for the second core.
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
from dbspark.trace.merge_state import Merging, Running
from dbspark.trace.spine import Spine

T = TypeVar("T")
_PUBLISHED = 8
"""A merge is published when so many chunks have been read since, or this part of all its rows if that is more."""


class _Turns:
    """The jobs that are not done, and the thread that works on them while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[_Turn] = []
        self._pool: ThreadPoolExecutor | None = None
        self._working = False

    def add(self, job: _Turn) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._working:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="dbspark-compaction")
            self._pool.submit(self._work)
            self._working = True

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if job.turn():
                with self._lock:
                    self._jobs.remove(job)

    def _next(self) -> _Turn | None:
        with self._lock:
            self._working = bool(self._jobs)
            return min(self._jobs, key=_Turn.rank, default=None)


_turns = _Turns()


class _Turn(ABC):
    """Something that takes turns."""

    def __init__(self, total: int) -> None:
        self.total = total
        """Rows: who has fewer comes first."""
        self._cancelled = False
        self._awaited = False
        self._when_idle = False

    def rank(self) -> tuple[bool, bool, int]:
        """Whose turn it is: the least of all. One that is to stop holds what it has read until its turn comes."""
        return not (self._awaited or self._cancelled), self._when_idle, self.total

    @abstractmethod
    def turn(self) -> bool:
        """One step; whether it was the last."""


class Task(_Turn, Generic[T]):
    """A function that is called beside the ticks, in one step."""

    def __init__(self, rows: int, function: Callable[[], T], awaited: bool = False, when_idle: bool = False) -> None:
        """`awaited`: somebody will wait for it soon, so it comes before all others; `when_idle`: behind them, until
        somebody waits for it."""
        super().__init__(rows)
        self._awaited = awaited
        self._when_idle = when_idle
        self._function = function
        self._future: Future[T] = Future()
        _turns.add(self)

    def turn(self) -> bool:
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
        """Until it has ended, in whichever way."""
        self._awaited = True
        self._future.exception()

    def result(self) -> T:
        """What it gave, or raised; waited for before all others."""
        self._awaited = True
        return self._future.result()


class Job(_Turn):
    """One merge on its way."""

    def __init__(self, merging: Merging) -> None:
        super().__init__(merging.total)
        self.token = merging.token
        """Which entry of the spine this is the merge of."""
        self.latest: Merging | Batch = merging
        self.taken: Merging | Batch = merging
        """What whoever holds the spine has taken over last."""
        self._running: Running | None = None
        self._indexed = any("index" in b.__dict__ for b in merging.inputs)
        self._future: Future[None] = Future()
        _turns.add(self)

    def turn(self) -> bool:
        try:
            if not self._cancelled:
                self._step()
        except BaseException as error:
            self._running = None
            self._future.set_exception(error)
            return True
        if isinstance(self.latest, Merging) and not self._cancelled:
            return False
        self._running = None
        self._future.set_result(None)
        return True

    def _step(self) -> None:
        if self._running is None:
            assert isinstance(self.latest, Merging)
            self._running = Running(self.latest)
        running = self._running
        running.step(CHUNK_ROWS)
        if running.done or running.read >= max(_PUBLISHED * CHUNK_ROWS, self.total // _PUBLISHED):
            value = running.value()
            if self._indexed and isinstance(value, Batch):
                _ = value.index  # which it keeps, and no tick has to make
            self.latest = value

    def wait(self) -> None:
        """Until the merge is done, before all others; raises what it raised."""
        self._awaited = True
        self._future.result()

    def failed(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def cancel(self) -> None:
        """Stop after the step that is running."""
        self._cancelled = True


class Beside:
    """The merges of one spine that run beside the ticks."""

    __slots__ = ("jobs",)

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def begun(self, spine: Spine) -> Spine:
        """Begin those that are large enough, and wait for one that falls behind."""
        threshold = spine.config.background
        if threshold is None or not (self.jobs or spine.merges):
            return spine
        large = [e for e in spine.entries if type(e) is Merging and e.total >= threshold]
        running = {job.token for job in self.jobs}
        self.jobs += [Job(entry) for entry in large if entry.token not in running]
        for job in list(self.jobs):
            if job not in self.jobs:  # it was taken over with another that was waited for
                continue
            newer = 0
            for entry in reversed(spine.entries):
                if isinstance(entry, Batch):
                    newer += entry.rows
                elif entry.token is job.token:
                    break
                else:
                    newer += entry.total
            else:  # the spine went another way
                self._leave(job)
                continue
            if newer >= job.total:
                self._wait(job)
                spine = self.adopted(spine)
        return spine

    def adopted(self, spine: Spine, reading: bool = False) -> Spine:
        """The spine with what has been merged so far.

        Raises what a merge has failed with, and forgets the merge, which is then begun anew. Who only reads is not
        told: it is the next writer who can refuse to go on.
        """
        for job in list(self.jobs):
            error = job.failed()
            if error is not None:
                if reading:
                    continue
                self.jobs.remove(job)
                raise error
            latest = job.latest
            if latest is job.taken:  # nothing new
                continue
            job.taken = latest
            entries: list[Any] = list(spine.entries)
            found = ((i, e) for i, e in enumerate(entries) if type(e) is Merging and e.token is job.token)
            at, installed = next(found, (0, None))
            if installed is None:  # the spine went another way
                self._leave(job)
                continue
            if isinstance(latest, Batch):
                entries[at] = latest.with_description(installed.description)
                spine.stats.merged(job.total, latest.rows)
                self.jobs.remove(job)
            else:
                entries[at] = replace(latest, description=installed.description)
            spine = spine.replaced(tuple(entries))
        return spine

    def _wait(self, job: Job) -> None:
        """Until a merge is done. One that has failed is forgotten; whoever needs it begins it anew."""
        try:
            job.wait()
        except Exception:
            self.jobs.remove(job)
            raise

    def _leave(self, job: Job) -> None:
        job.cancel()
        self.jobs.remove(job)

    def finished(self, spine: Spine) -> Spine:
        """The spine after all of them, and after those that are due then."""
        while self.jobs:
            self._wait(self.jobs[0])
            spine = self.adopted(spine)
        return spine.work(None)

    def cancel(self) -> None:
        """Stop them; the spine stays as it is, and readable."""
        for job in self.jobs:
            job.cancel()
        self.jobs = []
