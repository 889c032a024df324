"""Large merges beside the ticks: one thread for all traces of the process.

A job takes a merge in progress, which is a value, steps it until it is a batch, and publishes every step. The trace
takes over the latest step whenever it is touched, so a merge in the background is as readable as any other and gives
its inputs back piece by piece. The kernels hold no lock while they run; a tick loses nothing but a core.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from dbspark.batch import Batch
from dbspark.batch.chunk import CHUNK_ROWS
from dbspark.trace.spine import Merging

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
