"""The resident transport as the driver sees it: long-running workers that keep the shards in memory.

`dbspark.runtime.worker` has the protocol. The driver sends each worker its part of a run, and the version of its state
to build on. So to accept or undo a run, the driver only remembers a version number. `worker_pool` starts, watches and
replaces workers.

1. With a location, a run in which a worker was lost is repeated once: the worker is replaced and opens the last
   manifest, the others keep their state.
2. A version has the number of the run that made it. Numbers are never reused, not even those of failed runs.
3. With a location, a worker that has written in a run that failed opens the last manifest again, because writing may
   have moved places of batches to a file that no manifest will ever name.
4. Without a location, the state is in the workers only. When one is lost the pipeline ends: every later call raises.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dbspark.columnar import Batch, merge
from dbspark.errors import DbsparkError
from dbspark.runtime.exchange import SuperstepRunner, pickle_code
from dbspark.runtime.level_plan import Level
from dbspark.runtime.staging import StagedPart, push_frames
from dbspark.runtime.task import HistoryOptions, raise_first
from dbspark.runtime.transport import LevelsResult, LevelsRun, MemoryTransport, ShardedPlan, json_records
from dbspark.runtime.wire import WireMessage, WireRow, signature_of
from dbspark.runtime.worker_pool import WorkerLostError, WorkerPool
from dbspark.runtime.worker_slots import HeldSlots
from dbspark.storage.files import Files
from dbspark.storage.segment import decode_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("dbspark")


class RunFailedError(Exception):
    """A run that has ended on all workers, because of an error of the driver."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class ResidentFigures:
    """What the last run has cost: bytes, messages, and seconds by worker."""

    exchanged_bytes: int = 0
    messages: int = 0
    worker_seconds: tuple[float, ...] = ()


class ResidentTransport(MemoryTransport):
    """Runs the levels of a plan on resident workers."""

    name = "resident"

    def __init__(
        self, spark: SparkSession, shards: int, files: Callable[[], Files] | None, pipeline: str, slots: HeldSlots
    ) -> None:
        """`files` opens the location; None: nothing is written. The slots are released by `close`."""
        self._spark = spark
        self.shards = shards
        self._files = files
        self._pipeline = pipeline
        self.pool = WorkerPool(spark, shards, files, pipeline, slots)
        # If a pipeline is garbage-collected without having been closed, its workers are stopped.
        self._abandoned = weakref.finalize(self, _close_beside, self.pool)
        self._abandoned.atexit = False
        self._ended: str | None = None
        """Why the pipeline has ended, for every later call."""
        self._runs = 0
        self._version = self._before = self._oldest = 0
        self._forgotten: frozenset[str] = frozenset()
        self._to_open: set[int] = set() if files is None else set(range(shards))
        """Shards whose workers are to open the last manifest."""
        self._plans: dict[int, tuple[ShardedPlan, str, bytes]] = {}
        self._runner: SuperstepRunner | None = None
        self.figures = ResidentFigures()

    # ------------------------------------------------------------------ runs

    def run(self, run: LevelsRun) -> LevelsResult:
        self._before = self._version
        self._started()
        rows: list[list[WireRow]] = [[] for _ in range(self.shards)]
        for shard, slot, payload in run.rows:
            rows[shard].append((slot, payload))
        try:
            return self._run_once(run, rows)
        except WorkerLostError as error:
            self._lost(error)
            _log.warning("tick %d runs again: %s", run.context.tick, error)
        self._started()
        try:
            return self._run_once(run, rows)
        except WorkerLostError as error:
            self._lost(error)
            raise DbsparkError(f"tick {run.context.tick} was not applied; it was run twice, and {error}") from None

    def _run_once(self, run: LevelsRun, rows: Sequence[Sequence[WireRow]]) -> LevelsResult:
        self._runs += 1
        number = self.pool.run_number = self._runs
        digest, code = self._pickled(run.plan)
        staged = self._staged(run.frames, run.context.tick)
        try:
            self._send_plan(digest, code)
            for worker in self.pool.workers:
                worker.send(self._header(run, worker.shard, digest, number, staged), rows[worker.shard])
            done = self._replies(run.plan.levels)
        except WorkerLostError:
            self._drain()
            raise
        except RunFailedError as failure:
            raise failure.error from None
        except BaseException:
            try:
                self._drain()  # an interrupt (Ctrl-C) in the middle of the run
            except BaseException:
                self._end("a run was interrupted, and its workers could not be stopped; open the pipeline again")
                raise
            raise
        bad = [m.header for m in done if m.header["kind"] != "done"]
        if bad:
            self._wrote(done)
            raise_first(header["error"].encode() for header in bad if header["kind"] == "failed")
            peers = [header["peer"] for header in bad if header.get("peer") is not None]
            if peers:
                self.pool.give_up(peers[0], bad[0]["why"])
            raise WorkerLostError(bad[0]["why"])
        self._version = number
        self._to_open = set()
        self._forgotten = frozenset()
        self.figures = ResidentFigures(
            sum(m.header["bytes"] for m in done),
            sum(m.header["messages"] for m in done),
            tuple(m.header["seconds"] for m in done),
        )
        return _result(done)

    def _wrote(self, messages: Iterable[WireMessage]) -> None:
        """After a run that failed: workers that have written batches open the last manifest again (invariant 3)."""
        if self._files is not None:
            self._to_open |= {s for s, m in enumerate(messages) if m.header.get("wrote", True)}

    def _drain(self) -> None:
        """After a worker was lost in a run: abort it, and read the last message of every other worker."""
        self.pool.abort()
        for worker in self.pool.workers:
            try:
                while worker.owes or worker.asks:
                    if worker.asks:
                        worker.send({"kind": "abort"})
                    worker.receive()
            except WorkerLostError:
                continue
            if self._files is not None:
                self._to_open.add(worker.shard)

    def _header(
        self, run: LevelsRun, shard: int, digest: str, number: int, staged: Sequence[StagedPart]
    ) -> dict[str, Any]:
        context = run.context
        anew = None
        state = run.records if run.state is None else run.state
        if shard in self._to_open:
            anew = {n: json_records(by_shard[shard]) for n, by_shard in state.items() if shard in by_shard}
        others = {}
        if run.state is not None and self._files is not None:
            names = [n for n in run.records if n not in state and shard in run.records[n]]
            others = {n: json_records(run.records[n][shard]) for n in names}
        return {
            "kind": "run", "run": number, "version": number, "plan": digest, "staged": staged, "base": self._version,
            "oldest": min(self._oldest, self._version), "forget": sorted(self._forgotten), "records": anew,
            "visible": None if run.state is None else list(run.records), "others": others,
            "tables": None if run.tables is None else sorted(run.tables),
            "context": {
                "tick": context.tick, "initial": context.initial, "history_holds": dict(context.history_holds),
                "unchanged_traces": sorted(context.unchanged_traces),
                "subscribed_views": sorted(context.subscribed_views),
            },
        }  # fmt: skip

    def _replies(self, levels: Sequence[Level]) -> list[WireMessage]:
        """The last message of every worker; before it, workers may ask for external functions that Spark evaluates."""
        while True:
            messages = [worker.receive() for worker in self.pool.workers]
            asking = [m.header["kind"] == "external" for m in messages]
            if not any(asking):
                return messages
            answers: list[list[WireRow]] | None = None
            failure: BaseException | None = None
            if all(asking):  # else one has failed before it could ask
                try:
                    answers = self._evaluated(levels[messages[0].header["level"]], messages)
                except Exception as error:
                    failure = error
            for worker, asks in zip(self.pool.workers, asking, strict=True):
                if asks and answers is None:
                    worker.send({"kind": "abort"})
                elif asks and answers is not None:
                    worker.send({"kind": "external results"}, answers[worker.shard])
            if answers is None:
                workers = zip(self.pool.workers, messages, asking, strict=True)
                last = [worker.receive() if asks else message for worker, message, asks in workers]
                if failure is not None:
                    self._wrote(last)
                    raise RunFailedError(failure)
                return last

    def _evaluated(self, level: Level, messages: Sequence[WireMessage]) -> list[list[WireRow]]:
        """The results of the external functions of a level, by shard: a job beside the workers."""
        rows = [(shard, slot, bytes(p)) for shard, m in enumerate(messages) for slot, p in m.rows]
        out: list[list[WireRow]] = [[] for _ in messages]
        if not rows:
            return out
        if self._runner is None:
            self._runner = SuperstepRunner(self._spark, self.shards)
        results = {call.result_slot for call in level.external_calls}
        for shard, slot, payload in self._runner.evaluate(rows, level.external_calls):
            if slot in results:
                out[shard].append((slot, payload))
        return out

    def _staged(self, frames: Sequence[DataFrame], tick: int) -> list[StagedPart]:
        """Let Spark's tasks push the rows of DataFrames to the workers; returns what the run is to take of them."""
        if not frames:
            return []
        try:
            return push_frames(list(frames), self.pool.stage_target())
        except Exception as error:
            if any(worker.lost is not None for worker in self.pool.workers):
                raise WorkerLostError(f"a worker was lost while rows were pushed to it: {str(error)[:300]}") from None
            raise DbsparkError(
                f"tick {tick} failed in Spark and was not applied: {type(error).__name__}: {str(error)[:2000]}"
            ) from error

    def _pickled(self, plan: ShardedPlan) -> tuple[str, bytes]:
        """The digest of a plan, and the pickled plan."""
        known = self._plans.get(id(plan))
        if known is None or known[0] is not plan:
            while len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            code = pickle_code(plan.levels)
            known = self._plans[id(plan)] = plan, hashlib.blake2b(code, digest_size=16).hexdigest(), code
        return known[1:]

    def _send_plan(self, digest: str, code: bytes) -> None:
        """Send a plan to every worker that does not have it."""
        new = [worker for worker in self.pool.workers if digest not in worker.plans]
        keep = [d for _, d, _ in self._plans.values()]
        for worker in new:
            signature = signature_of(self.pool.code_key(worker.shard), code)
            worker.send({"kind": "plan", "signature": signature, "keep": keep}, [(digest, code)])
        for worker in new:
            reply = worker.receive()
            if reply.header["kind"] != "ready":
                raise_first([reply.header["error"].encode()])
            worker.plans = {*(worker.plans & set(keep)), digest}

    def settle(self) -> None:
        self._before = self._oldest = self._version

    def undo(self) -> None:
        if self._version != self._before:
            self._version = self._before
            self._open_all()

    def mark(self) -> Any:
        self._oldest = self._version
        return self._version, self._forgotten

    def return_to(self, mark: Any) -> None:
        version, forgotten = (0, frozenset()) if mark is None else mark
        if version != self._version:
            self._open_all()
        self._version, self._before, self._forgotten = version, version, forgotten

    def _open_all(self) -> None:
        if self._files is not None:
            self._to_open = set(range(self.shards))

    def forget(self, traces: Collection[str]) -> None:
        self._forgotten |= frozenset(traces)

    # ------------------------------------------------------------------ reading

    def read(self, request: Mapping[str, Any]) -> list[WireMessage]:
        """Ask every worker for rows of a table or view."""
        return self._ask({**request, "kind": "read"})

    def sizes(self, consolidated: bool = False) -> dict[str, tuple[int, int]]:
        """Rows and bytes of all traces, over all workers; rows as they are kept, or as they are once consolidated."""
        out: dict[str, tuple[int, int]] = {}
        if not self.pool.workers:
            return out
        for message in self._ask({"kind": "sizes", "consolidated": consolidated}):
            for name, (rows, size) in message.header["sizes"].items():
                before = out.get(name, (0, 0))
                out[name] = before[0] + rows, before[1] + size
        return out

    def _ask(self, header: Mapping[str, Any]) -> list[WireMessage]:
        self._started()
        workers = self.pool.workers
        try:
            for worker in workers:
                worker.send({**header, "base": self._version, "oldest": min(self._oldest, self._version)})
            messages = [worker.receive() for worker in workers]
        except WorkerLostError as error:
            self._lost(error)
            raise
        raise_first(m.header["error"].encode() for m in messages if m.header["kind"] == "failed")
        return messages

    def readable(self, trace: str, options: HistoryOptions, tick: int) -> ResidentHistory:
        return ResidentHistory(self, trace, options, tick)

    def status(self) -> dict[str, Any]:
        pool = self.pool
        workers = [
            {"shard": w.shard, "host": w.host, "pid": w.pid, "seconds": seconds}
            for w, seconds in zip_longest(pool.workers, self.figures.worker_seconds)
            if w is not None
        ]
        return {
            "name": self.name, "workers": workers, "restarts": pool.restarts,
            "exchangedBytes": self.figures.exchanged_bytes, "messages": self.figures.messages,
        }  # fmt: skip

    # ------------------------------------------------------------------ workers

    def _started(self) -> None:
        """Start the workers, or replace those that are lost; raises `WorkerLostError` where the pipeline has ended."""
        if self._ended is not None:
            raise WorkerLostError(self._ended)
        pool = self.pool
        if not pool.workers:
            pool.start()
            return
        lost = [worker for worker in pool.workers if worker.lost is not None]
        if lost and self._files is None:
            self._lost(WorkerLostError(f"worker {lost[0].shard} on {lost[0].host} has gone: {lost[0].lost}"))
        try:
            self._to_open |= set(pool.replace_lost())
        except DbsparkError as error:
            self._end(f"a worker was lost and could not be replaced: {error}")
            raise

    def _lost(self, error: WorkerLostError) -> None:
        """A worker was lost: without a location, that is the end of the pipeline."""
        if self._files is None:
            self._end(
                f"{error}, and its part of the state with it, because pipeline {self._pipeline!r} is in memory only. "
                "Give it a location: Pipeline(…, location=…) goes on from the last tick"
            )
            raise WorkerLostError(str(self._ended)) from None

    def _end(self, why: str) -> None:
        self._ended = why
        self.pool.stop()

    def close(self) -> None:
        self._abandoned.detach()
        self.pool.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self._ended = self._ended or f"pipeline {self._pipeline!r} is closed"


_MAX_PLANS: Final = 8
"""Plans that workers keep: that of ticks, and a few of definitions."""


def _close_beside(pool: WorkerPool) -> None:
    """Close a pool on a thread of its own: the thread that collects garbage must not wait for it, nor for its locks."""
    threading.Thread(target=pool.close, name="dbspark-abandoned", daemon=True).start()


def _result(done: Sequence[WireMessage]) -> LevelsResult:
    reports: list[Mapping[str, Any]] = []
    batches: list[tuple[str, Any]] = []
    for shard, message in enumerate(done):
        header = message.header
        reports.append({"level": 0, "shard": shard, "traces": header["traces"], "rows": header["rows"]})
        reports += [{**report, "traces": {}} for report in header["reports"]]
        batches += message.rows
    return LevelsResult(reports, batches)


class ResidentHistory:
    """The history of a table or view in the memory of workers (`runtime.ReadableTable`)."""

    def __init__(self, transport: ResidentTransport, trace: str, options: HistoryOptions, tick: int) -> None:
        self._transport = transport
        self._sort_key = sort_key = options.sort_key
        self._now = tick
        self._request = {
            "name": trace, "schema": sort_key.schema.arrow.serialize().to_pybytes().hex(), "key": sort_key.key,
            "order": [list(o) for o in sort_key.order], "keep": options.keep, "created": options.created,
            "keyed": options.keyed,
        }  # fmt: skip

    @property
    def schema(self) -> pa.Schema:
        return self._sort_key.schema.arrow

    def at(self, tick: int | None, now: int) -> Batch:
        """All rows as of a tick; None means `now`."""
        messages = self._ask({"what": "at", "tick": tick, "now": now})
        batches = [decode_batch(payload, self._sort_key) for m in messages for _, payload in m.rows]
        return merge(batches) if batches else Batch.empty(self._sort_key)

    def changes(self, since: int, upto: int, now: int) -> pa.Table:
        """Changes of the ticks in (since, upto], ordered by tick."""
        messages = self._ask({"what": "changes", "since": since, "upto": upto, "now": now})
        tables = []
        for message in messages:
            with pa.ipc.open_stream(pa.BufferReader(message.rows[0][1])) as stream:
                tables.append(stream.read_all())
        return pa.concat_tables(tables).sort_by("_tick")

    def oldest(self) -> int:
        """The oldest tick that can be read on every shard."""
        messages = self._ask({"what": "oldest", "now": self._now})
        return max(int(m.header["oldest"]) for m in messages)

    def _ask(self, what: Mapping[str, Any]) -> list[WireMessage]:
        return self._transport.read({**self._request, **what})


__all__ = ["ResidentFigures", "ResidentHistory", "ResidentTransport"]
