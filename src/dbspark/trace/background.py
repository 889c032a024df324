"""Large merges beside the ticks: one thread for all spines of the process.

A job takes a merge in progress, which is a value, steps it until it is a batch, and publishes every step. Whoever holds
the spine (`Beside`) takes over the latest step whenever it is touched, so a merge in the background is as readable as
any other and gives its inputs back piece by piece. Merges are found by what they are merges of, so a spine that has
been rolled back, or forked, takes over what is its own and no other. The kernels hold no lock while they run; a tick
loses nothing but a core.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from dbspark.batch import Batch
from dbspark.batch.chunk import CHUNK_ROWS
from dbspark.trace.merging import Merging
from dbspark.trace.spine import Spine

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(1, thread_name_prefix="dbspark-compaction")
        return _pool


class Job:
    """One merge on its way."""

    def __init__(self, merging: Merging) -> None:
        self.token = merging.token
        """Which entry of the spine this is the merge of."""
        self.total = merging.total
        self.latest: Merging | Batch = merging
        self._cancelled = False
        self._future: Future[None] = _executor().submit(self._run)

    def _run(self) -> None:
        state = self.latest
        while type(state) is Merging and not self._cancelled:
            state = state.step(CHUNK_ROWS)
            self.latest = state

    @property
    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        """Until the merge is done; raises what it raised."""
        self._future.result()

    def failed(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def cancel(self) -> None:
        """Stop after the step that is running."""
        self._cancelled = True
        self._future.cancel()


class Beside:
    """The merges of one spine that run beside the ticks."""

    __slots__ = ("jobs",)

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def begun(self, spine: Spine) -> Spine:
        """Begin those that are large enough, and wait for one that falls behind."""
        threshold = spine.config.background
        if threshold is None:
            return spine
        large = [e for e in spine.entries if type(e) is Merging and e.total >= threshold]
        if not self.jobs and not large:
            return spine
        running = {job.token for job in self.jobs}
        self.jobs += [Job(entry) for entry in large if entry.token not in running]
        for job in list(self.jobs):
            newer = 0
            for entry in reversed(spine.entries):
                if isinstance(entry, Merging) and entry.token is job.token:
                    break
                newer += entry.total if isinstance(entry, Merging) else entry.rows
            if newer >= job.total:
                job.wait()
                spine = self.adopted(spine)
        return spine

    def adopted(self, spine: Spine) -> Spine:
        """The spine with what has been merged so far."""
        for job in list(self.jobs):
            error = job.failed()
            if error is not None:
                self.jobs.remove(job)
                raise error
            latest = job.latest
            entries = list(spine.entries)
            found = ((i, e) for i, e in enumerate(entries) if isinstance(e, Merging) and e.token is job.token)
            at, installed = next(found, (0, None))
            if installed is None:  # the spine went another way
                job.cancel()
                self.jobs.remove(job)
                continue
            if isinstance(latest, Batch):
                entries[at] = latest.described(installed.description)
                spine.stats.merged(job.total, latest.rows)
                self.jobs.remove(job)
            elif latest.unread == installed.unread:
                continue
            else:
                entries[at] = replace(latest, description=installed.description)
            spine = spine.replaced(tuple(entries))
        return spine

    def finished(self, spine: Spine) -> Spine:
        """The spine after all of them, and after those that are due then."""
        while self.jobs:
            self.jobs[0].wait()
            spine = self.adopted(spine)
        return spine.work(None)

    def cancel(self) -> None:
        """Stop them; the spine stays as it is, and readable."""
        for job in self.jobs:
            job.cancel()
        self.jobs = []
