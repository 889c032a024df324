"""The resident transport: workers that stay, as the driver sees them.

`dbspark.runtime.worker` has the protocol. The driver starts one ordinary Spark job with one long task for each shard
(not a barrier stage: when one task of a barrier stage fails, Spark ends all of them), opens one stream to each worker,
and says on which version of its state a worker is to build. So to accept or undo a run is to remember a number.

1. All workers of an *attempt* have its secret; the number of the attempt is part of every stream's name.
2. Versions are the numbers of runs; they are never used again, also after a run that has failed.
3. With a location, a run that fails makes every worker open the last manifest again, because writing may have moved
   places of batches to a file that no manifest will ever name.
4. Without a location, the state is in the workers only. When one is lost the pipeline ends, and every call says so.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from dbspark.columnar import Batch, merge
from dbspark.errors import DbsparkError
from dbspark.runtime.exchange import SuperstepRunner, pickle_code
from dbspark.runtime.level_plan import Level
from dbspark.runtime.stage import ERROR, Row
from dbspark.runtime.task import HistoryOptions, raise_first
from dbspark.runtime.transport import LevelsResult, LevelsRun, MemoryTransport, ShardedPlan, json_records
from dbspark.runtime.wire import (
    WIRE_SCHEMA,
    SecretCheck,
    WireMessage,
    WireRow,
    call_options,
    read_message,
    signature_of,
    write_message,
)
from dbspark.runtime.worker import WorkerLaunch, serve_worker
from dbspark.runtime.worker_slots import SLOTS, spark_context
from dbspark.storage.files import Files
from dbspark.storage.segment import decode_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("dbspark")

START_SECONDS: Final = 60.0
"""For all workers to register: an executor that starts Python and loads the kernels takes some 3 s here."""
STOP_SECONDS: Final = 10.0
"""For workers to end by themselves; then their jobs are cancelled."""
ABORT_SECONDS: Final = 5.0
"""For a call that tells a worker to end a run."""
SCHEDULER_POOL: Final = "dbspark-workers"
"""With spark.scheduler.mode=FAIR, the pool of the long tasks: ordinary jobs do not queue behind them."""


class WorkerLostError(DbsparkError):
    """A worker has gone, or cannot be reached."""


class RunFailedError(Exception):
    """A run that has ended on all workers, because of an error of the driver."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _Hub(fl.FlightServerBase):  # type: ignore[misc]
    """Where workers register."""

    def __init__(self, host: str, secret: str, attempt: str) -> None:
        super().__init__(f"grpc://{host}:0", middleware={"secret": SecretCheck(secret)})
        self._attempt = attempt
        self.changed = threading.Condition()
        self.joined: dict[int, dict[str, Any]] = {}

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        body = json.loads(action.body.to_pybytes())
        if action.type != "join" or body["attempt"] != self._attempt:
            raise fl.FlightUnauthorizedError("this pipeline does not wait for a worker of that attempt")
        with self.changed:
            self.joined[int(body["shard"])] = body
            self.changed.notify_all()
        return iter([b"{}"])


@dataclass(slots=True)
class _WorkerHandle:
    """One worker, as the driver reaches it."""

    shard: int
    host: str
    port: int
    pid: int
    client: Any
    writer: Any
    reader: Any
    plans: set[str] = field(default_factory=set)

    def send(self, header: Mapping[str, Any], rows: Sequence[WireRow] = ()) -> int:
        try:
            return write_message(self.writer, header, rows)
        except (pa.ArrowException, OSError) as error:
            raise WorkerLostError(f"worker {self.shard} on {self.host} has gone: {error}") from None

    def receive(self) -> WireMessage:
        try:
            return read_message(self.reader)
        except (StopIteration, pa.ArrowException, OSError) as error:
            why = str(error).split(". ", 1)[0] or "its stream has ended"
            raise WorkerLostError(f"worker {self.shard} on {self.host} has gone: {why}") from None


@dataclass(slots=True)
class ResidentFigures:
    """What the last run has cost."""

    exchanged_bytes: int = 0
    messages: int = 0
    worker_seconds: tuple[float, ...] = ()


class ResidentTransport(MemoryTransport):
    """Runs the levels of a plan on workers that stay."""

    name = "resident"

    def __init__(self, spark: SparkSession, shards: int, files: Callable[[], Files] | None, pipeline: str) -> None:
        """`files` opens the location; None: nothing is written. Slots are held from here on."""
        self._spark = spark
        self.shards = shards
        self._files = files
        self._pipeline = pipeline
        self._application = SLOTS.acquire(spark, shards)
        self._workers: list[_WorkerHandle] = []
        self._hub: _Hub | None = None
        self._attempt = ""
        self._secret = ""
        self._jobs: dict[int, threading.Thread] = {}
        self._job_errors: dict[int, BaseException] = {}
        self._closing = False
        self._ended: str | None = None
        """Why the pipeline has ended, for every later call."""
        self._runs = 0
        self._version = self._before = self._oldest = 0
        self._forgotten: frozenset[str] = frozenset()
        self._anew = files is not None
        """Whether workers are to open the last manifest."""
        self._plans: dict[int, tuple[ShardedPlan, str, bytes]] = {}
        self._runner: SuperstepRunner | None = None
        self.figures = ResidentFigures()

    # ------------------------------------------------------------------ runs

    def run(self, run: LevelsRun) -> LevelsResult:
        self._before = self._version
        workers = self.started()
        rows: list[list[WireRow]] = [[] for _ in range(self.shards)]
        for shard, slot, payload in (*run.rows, *self._collected(run.frames, run.context.tick)):
            rows[shard].append((slot, payload))
        self._runs += 1
        number = self._runs
        try:
            digest = self._send_plan(run.plan)
            for worker in workers:
                worker.send(self._header(run, worker.shard, digest, number), rows[worker.shard])
            done = self._replies(run.plan.levels)
        except WorkerLostError as error:
            raise self._lost(number, error) from None
        except RunFailedError as failure:
            raise failure.error from None
        except BaseException:
            # Streams may be in the middle of the run: nobody can go on with them.
            self._end("a run was interrupted")
            raise
        bad = [m for m in done if m.header["kind"] != "done"]
        if bad:
            self._anew = self._files is not None
            raise_first(m.header["error"].encode() for m in bad if m.header["kind"] == "failed")
            raise DbsparkError(f"tick {run.context.tick} was not applied: {bad[0].header.get('why')}; run it again")
        self._version, self._anew = number, False
        self._forgotten = frozenset()
        self.figures = ResidentFigures(
            sum(m.header["bytes"] for m in done),
            sum(m.header["messages"] for m in done),
            tuple(m.header["seconds"] for m in done),
        )
        return _result(done)

    def _header(self, run: LevelsRun, shard: int, digest: str, number: int) -> dict[str, Any]:
        context = run.context
        anew = None
        state = run.records if run.state is None else run.state
        if self._anew:
            anew = {n: json_records(by_shard[shard]) for n, by_shard in state.items() if shard in by_shard}
        others = {}
        if run.state is not None and self._files is not None:
            names = [n for n in run.records if n not in state and shard in run.records[n]]
            others = {n: json_records(run.records[n][shard]) for n in names}
        return {
            "kind": "run", "run": number, "version": number, "plan": digest, "base": self._version,
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
        """The last message of every worker; what Spark is to evaluate on the way is evaluated."""
        while True:
            messages = [worker.receive() for worker in self._workers]
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
            for worker, asks in zip(self._workers, asking, strict=True):
                if asks and answers is None:
                    worker.send({"kind": "abort"})
                elif asks and answers is not None:
                    worker.send({"kind": "external results"}, answers[worker.shard])
            if answers is None:
                workers = zip(self._workers, messages, asking, strict=True)
                last = [worker.receive() if asks else message for worker, message, asks in workers]
                if failure is not None:
                    self._anew = self._files is not None
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

    def _collected(self, frames: Sequence[DataFrame], tick: int) -> Iterator[Row]:
        """The rows of DataFrames, split by shard in the tasks of their partitions."""
        for frame in frames:
            try:
                collected = frame.collect()
            except Exception as error:
                raise DbsparkError(
                    f"tick {tick} failed in Spark and was not applied: {type(error).__name__}: {str(error)[:2000]}"
                ) from error
            raise_first(bytes(r.payload) for r in collected if r.slot == ERROR)
            for row in collected:
                yield int(row.shard), str(row.slot), bytes(row.payload)

    def _send_plan(self, plan: ShardedPlan) -> str:
        """The digest of a plan, once every worker has it."""
        known = self._plans.get(id(plan))
        if known is None or known[0] is not plan:
            while len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            code = pickle_code(plan.levels)
            known = self._plans[id(plan)] = plan, hashlib.blake2b(code, digest_size=16).hexdigest(), code
        _, digest, code = known
        new = [worker for worker in self._workers if digest not in worker.plans]
        keep = [d for _, d, _ in self._plans.values()]
        for worker in new:
            signature = signature_of(self._code_key(worker.shard), code)
            worker.send({"kind": "plan", "signature": signature, "keep": keep}, [(digest, code)])
        for worker in new:
            self._check_reply(worker.receive(), "ready")
            worker.plans = {*(worker.plans & set(keep)), digest}
        return digest

    def settle(self) -> None:
        self._before = self._oldest = self._version

    def undo(self) -> None:
        if self._version != self._before:
            self._version = self._before
            self._anew = self._files is not None

    def mark(self) -> Any:
        self._oldest = self._version
        return self._version, self._forgotten

    def return_to(self, mark: Any) -> None:
        version, forgotten = (0, frozenset()) if mark is None else mark
        if version != self._version:
            self._anew = self._files is not None
        self._version, self._before, self._forgotten = version, version, forgotten

    def forget(self, traces: Collection[str]) -> None:
        self._forgotten |= frozenset(traces)

    # ------------------------------------------------------------------ reading

    def read(self, request: Mapping[str, Any]) -> list[WireMessage]:
        """Ask every worker for rows of a table or view."""
        return self._ask({**request, "kind": "read"})

    def sizes(self, consolidated: bool = False) -> dict[str, tuple[int, int]]:
        """Rows and bytes of all traces, over all workers; rows as they are kept, or as they are once consolidated."""
        out: dict[str, tuple[int, int]] = {}
        if not self._workers:
            return out
        for message in self._ask({"kind": "sizes", "consolidated": consolidated}):
            for name, (rows, size) in message.header["sizes"].items():
                before = out.get(name, (0, 0))
                out[name] = before[0] + rows, before[1] + size
        return out

    def _ask(self, header: Mapping[str, Any]) -> list[WireMessage]:
        workers = self.started()
        try:
            for worker in workers:
                worker.send({**header, "base": self._version, "oldest": min(self._oldest, self._version)})
            messages = [worker.receive() for worker in workers]
        except WorkerLostError as error:
            raise self._lost(self._runs, error) from None
        raise_first(m.header["error"].encode() for m in messages if m.header["kind"] == "failed")
        return messages

    def readable(self, trace: str, options: HistoryOptions, tick: int) -> ResidentHistory:
        return ResidentHistory(self, trace, options, tick)

    def status(self) -> dict[str, Any]:
        workers = [{"shard": w.shard, "host": w.host, "pid": w.pid} for w in self._workers]
        return {"name": self.name, "attempt": self._attempt, "workers": workers}

    # ------------------------------------------------------------------ workers

    def started(self) -> list[_WorkerHandle]:
        """The workers, which the first call starts."""
        if self._ended is not None:
            raise WorkerLostError(self._ended)
        if not self._workers:
            try:
                self._start()
            except BaseException:
                self._stop()
                raise
        return self._workers

    def _start(self) -> None:
        begun = time.perf_counter()
        context = spark_context(self._spark)
        conf = context.getConf()
        host = str(conf.get("spark.driver.host", "127.0.0.1"))
        self._attempt, self._secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        self._hub = _Hub(str(conf.get("spark.driver.bindAddress", host)), self._secret, self._attempt)
        self._job_errors = {}
        atexit.register(self.close)
        for shard in range(self.shards):
            launch = WorkerLaunch(
                shard, self.shards, self._attempt, self._secret, self._code_key(shard), (host, self._hub.port),
                self._files,
            )  # fmt: skip
            job = threading.Thread(
                target=self._run_job, args=(context, launch), name=f"dbspark-worker-{shard}", daemon=True
            )
            self._jobs[shard] = job
            job.start()
        with self._hub.changed:
            joined = self._hub.changed.wait_for(
                lambda: len(self._hub_joined()) == self.shards or bool(self._job_errors), START_SECONDS
            )
        missing = [shard for shard in range(self.shards) if shard not in self._hub_joined()]
        if missing:
            raise DbsparkError(self._why_not_started(missing, host, joined))
        self._attach(self._hub_joined())
        hosts = ", ".join(f"{w.shard} on {w.host}" for w in self._workers)
        _log.info(
            "pipeline %s: %d resident workers after %.1f s (%s)",
            self._pipeline, self.shards, time.perf_counter() - begun, hosts,
        )  # fmt: skip

    def _hub_joined(self) -> dict[int, dict[str, Any]]:
        return {} if self._hub is None else self._hub.joined

    def _why_not_started(self, missing: Sequence[int], host: str, joined: bool) -> str:
        workers = ", ".join(map(str, missing))
        if self._job_errors:
            error = next(iter(self._job_errors.values()))
            return f"worker {workers} could not be started; its Spark task failed: {str(error)[:2000]}"
        return (
            f"worker {workers} of {self.shards} has not registered within {START_SECONDS:.0f} s. Either its task waits "
            f"for a slot, or executors cannot reach the driver at {host} (a firewall, or spark.driver.host is not the "
            "address that they should use)"
        )

    def _attach(self, joined: Mapping[int, Mapping[str, Any]]) -> None:
        endpoints = {shard: f"grpc://{at['host']}:{at['port']}" for shard, at in joined.items()}
        for shard in range(self.shards):
            client = fl.connect(endpoints[shard])
            descriptor = fl.FlightDescriptor.for_path("driver", self._attempt)
            writer, reader = client.do_exchange(descriptor, call_options(self._secret))
            writer.begin(WIRE_SCHEMA)
            at = joined[shard]
            self._workers.append(_WorkerHandle(shard, at["host"], at["port"], at["pid"], client, writer, reader))
        for worker in self._workers:
            worker.send({"kind": "hello", "endpoints": endpoints})
        for worker in self._workers:
            self._check_reply(worker.receive(), "ready")

    def _check_reply(self, message: WireMessage, kind: str) -> None:
        if message.header["kind"] != kind:
            raise_first([message.header["error"].encode()])

    def _code_key(self, shard: int) -> bytes:
        """The key that signs code for one worker: another worker cannot sign for it."""
        return hmac.new(self._secret.encode(), f"code for worker {shard}".encode(), hashlib.sha256).digest()

    @property
    def _group(self) -> str:
        return f"dbspark-{self._attempt}"

    def _run_job(self, context: Any, launch: WorkerLaunch) -> None:
        """The thread of a worker's job; it ends when the task ends."""
        hub, attempt = self._hub, self._attempt
        try:
            context.setJobGroup(self._group, f"dbspark {self._pipeline}: worker {launch.shard}", True)
            context.setLocalProperty("spark.scheduler.pool", SCHEDULER_POOL)
            context.parallelize([launch.shard], 1).map(partial(_serve, launch)).collect()
        except BaseException as error:
            if not self._closing and attempt == self._attempt:
                self._job_errors[launch.shard] = error
                _log.warning("worker %d of pipeline %s has ended: %s", launch.shard, self._pipeline, str(error)[:300])
        finally:
            if hub is not None:
                with hub.changed:
                    hub.changed.notify_all()
            if not self._closing and attempt == self._attempt:
                self._abort(self._runs)

    def _abort(self, number: int) -> None:
        """Wake every worker that waits for one that has gone."""
        for worker in list(self._workers):
            with contextlib.suppress(pa.ArrowException, OSError):
                action = fl.Action("abort", json.dumps({"run": number}).encode())
                list(worker.client.do_action(action, call_options(self._secret, ABORT_SECONDS)))

    def _lost(self, number: int, error: WorkerLostError) -> WorkerLostError:
        """What a lost worker means."""
        self._abort(number)
        if self._files is None:
            self._end(
                f"{error}, and its part of the state with it, because pipeline {self._pipeline!r} is in memory only. "
                "Give it a location: Pipeline(…, location=…) goes on from the last tick"
            )
        else:
            self._end(f"{error}; open the location again to go on from the last tick")
        assert self._ended is not None
        return WorkerLostError(self._ended)

    def _end(self, why: str) -> None:
        self._ended = why
        self._stop()

    def _stop(self) -> None:
        """Stop all workers and listen no longer."""
        self._closing = True
        workers, self._workers = self._workers, []
        for worker in workers:
            with contextlib.suppress(WorkerLostError):
                worker.send({"kind": "stop"})
        for worker in workers:
            for close in (worker.writer.close, worker.client.close):
                with contextlib.suppress(Exception):
                    close()
        until = time.monotonic() + STOP_SECONDS
        for job in self._jobs.values():
            job.join(max(0.0, until - time.monotonic()))
        if any(job.is_alive() for job in self._jobs.values()):
            with contextlib.suppress(Exception):
                spark_context(self._spark).cancelJobGroup(self._group)
        self._jobs = {}
        if self._hub is not None:
            self._hub.shutdown()
            self._hub = None
        self._closing = False

    def close(self) -> None:
        atexit.unregister(self.close)
        self._stop()
        if self._application:
            SLOTS.release(self._application, self.shards)
            self._application = ""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self._ended = self._ended or f"pipeline {self._pipeline!r} is closed"


_MAX_PLANS: Final = 8
"""Plans that workers keep: that of ticks, and a few of definitions."""


def _serve(launch: WorkerLaunch, _: int) -> dict[str, Any]:
    return serve_worker(launch)


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


__all__ = ["ResidentFigures", "ResidentHistory", "ResidentTransport", "WorkerLostError"]
