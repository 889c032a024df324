"""The workers of one pipeline, as the driver keeps them: started, attached, watched, replaced, stopped.

Every worker is an ordinary Spark job with one long task (not a barrier stage: when one task of a barrier stage fails,
Spark ends all of them). It registers at the hub, and the driver opens one stream to it.

1. An *attempt* is one opening of the pool; its secret is known to its workers only. A worker has an *incarnation*, one
   more each time it is replaced. Streams name both, so a worker of an older one is refused.
2. A worker is lost when its job ends, its stream breaks, or it is silent for `SILENT_SECONDS`. What it does then does
   not matter: it cannot commit, its messages are of a run that is over, and it ends when it finds its stream ended.
3. Spark does not start a worker again by itself: a task that is retried returns at once, and the driver submits another
   with the next incarnation.
4. Nothing listens after `stop`.
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

from dbspark.errors import DbsparkError
from dbspark.runtime.staging import StageTarget
from dbspark.runtime.wire import (
    WIRE_SCHEMA,
    SecretCheck,
    WireMessage,
    WireRow,
    call_options,
    read_message,
    write_message,
)
from dbspark.runtime.worker import WorkerLaunch, serve_worker
from dbspark.runtime.worker_slots import HeldSlots, spark_context
from dbspark.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("dbspark")

START_SECONDS: Final = 60.0
"""Time for workers to register: an executor that starts Python and loads the kernels takes some 3 s (two cores)."""
STOP_SECONDS: Final = 10.0
"""Time for workers to end by themselves; then their jobs are cancelled."""
CALL_SECONDS: Final = 2.0
"""Time limit of a call that a worker answers at once: a ping, the end of a run."""
PING_SECONDS: Final = 1.0
"""Seconds between two pings."""
SILENT_SECONDS: Final = 6.0
"""Seconds without an answer to a ping after which a worker counts as lost. A kernel that holds the interpreter's lock
delays a ping, but none was seen to hold it for a second."""
MAX_REPLACEMENTS: Final = 5
"""Rounds of replacing lost workers, if each round loses more of them, until the driver gives up."""
SCHEDULER_POOL: Final = "dbspark-workers"
"""With spark.scheduler.mode=FAIR, the pool of the long tasks: ordinary jobs do not queue behind them."""


class WorkerLostError(DbsparkError):
    """A worker has gone, or cannot be reached."""


class _Hub(fl.FlightServerBase):  # type: ignore[misc]
    """Where workers register."""

    def __init__(self, host: str, secret: str, attempt: str) -> None:
        super().__init__(f"grpc://{host}:0", middleware={"secret": SecretCheck(secret)})
        self._attempt = attempt
        self.changed = threading.Condition()
        self.joined: dict[tuple[int, int], dict[str, Any]] = {}
        """By shard and incarnation, the registrations of workers."""

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        body = json.loads(action.body.to_pybytes())
        if action.type != "join" or body["attempt"] != self._attempt:
            raise fl.FlightUnauthorizedError("this pipeline does not wait for a worker of that attempt")
        with self.changed:
            self.joined[int(body["shard"]), int(body["incarnation"])] = body
            self.changed.notify_all()
        return iter([b"{}"])


@dataclass(slots=True)
class WorkerHandle:
    """One worker, as the driver reaches it."""

    shard: int
    incarnation: int
    host: str
    port: int
    pid: int
    client: Any
    writer: Any
    reader: Any
    plans: set[str] = field(default_factory=set)
    lost: str | None = None
    """Why the worker is lost; None while it is not."""
    owes: bool = False
    """Whether it has been sent a message that it has not answered yet."""
    asks: bool = False
    """Whether its last message was a question, which waits for an answer."""

    @property
    def endpoint(self) -> str:
        return f"grpc://{self.host}:{self.port}"

    def send(self, header: Mapping[str, Any], rows: Sequence[WireRow] = ()) -> int:
        """Send a message; returns the bytes of its payloads."""
        try:
            if self.lost is None:
                self.owes, self.asks = True, False
                return write_message(self.writer, header, rows)
        except (pa.ArrowException, OSError) as error:
            self.lost = self.lost or _reason(error)
        raise WorkerLostError(f"worker {self.shard} on {self.host} has gone: {self.lost}")

    def receive(self) -> WireMessage:
        """The next message."""
        try:
            if self.lost is None:
                message = read_message(self.reader)
                self.owes, self.asks = False, message.header["kind"] == "external"
                return message
        except (StopIteration, pa.ArrowException, OSError) as error:
            self.lost = self.lost or _reason(error)
        raise WorkerLostError(f"worker {self.shard} on {self.host} has gone: {self.lost}")

    def call(self, action: str, body: Mapping[str, Any], secret: str) -> None:
        """A call beside the stream."""
        list(self.client.do_action(fl.Action(action, json.dumps(body).encode()), call_options(secret, CALL_SECONDS)))

    def close(self) -> None:
        """End the stream; also one that hangs."""
        for close in (self.reader.cancel, self.writer.close, self.client.close):
            with contextlib.suppress(Exception):
                close()


def _reason(error: BaseException) -> str:
    return str(error).split(". ", 1)[0] or "its stream has ended"


class WorkerPool:
    """The workers of one pipeline: the module docstring states its contract."""

    def __init__(
        self, spark: SparkSession, shards: int, files: Callable[[], Files] | None, pipeline: str, slots: HeldSlots
    ) -> None:
        """Workers are started by `start`, in `slots`, which are released by `close`."""
        self._spark = spark
        self._shards = shards
        self._files = files
        self._pipeline = pipeline
        self._slots = slots
        self.workers: list[WorkerHandle] = []
        self.attempt = ""
        self.restarts = 0
        """Workers that have been replaced."""
        self.run_number = 0
        """The present run, which is aborted when a worker is lost."""
        self._secret = ""
        self._hub: _Hub | None = None
        self._incarnations = [0] * shards
        self._jobs: dict[tuple[int, int], threading.Thread] = {}
        self._job_ends: dict[tuple[int, int], str] = {}
        """Why jobs have ended, by shard and incarnation."""
        self._watch_stop = threading.Event()
        self._host = ""

    # ------------------------------------------------------------------ starting

    def start(self) -> None:
        """Start all workers and attach them."""
        begun = time.perf_counter()
        conf = spark_context(self._spark).getConf()
        self._host = str(conf.get("spark.driver.host", "127.0.0.1"))
        self.attempt, self._secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        self._hub = _Hub(str(conf.get("spark.driver.bindAddress", self._host)), self._secret, self.attempt)
        atexit.register(self.close)
        try:
            shards = range(self._shards)
            self._launch(shards)
            self.workers = [self._attached(shard) for shard in shards]
            self._introduce()
        except BaseException:
            self.stop()
            raise
        self._watch_stop = threading.Event()
        threading.Thread(target=self._watch, args=(self._watch_stop,), name="dbspark-watch", daemon=True).start()
        hosts = ", ".join(f"{w.shard} on {w.host}" for w in self.workers)
        _log.info(
            "pipeline %s: %d resident workers after %.1f s (%s)",
            self._pipeline, self._shards, time.perf_counter() - begun, hosts,
        )  # fmt: skip

    def replace_lost(self) -> set[int]:
        """Start lost workers again; returns their shards. More of them may be lost meanwhile."""
        replaced: set[int] = set()
        for attempt in range(MAX_REPLACEMENTS):
            lost = [w.shard for w in self.workers if w.lost is not None]
            if not lost and not attempt:
                break
            try:
                self._replace(lost)
                replaced.update(lost)
                if all(w.lost is None for w in self.workers):
                    break
            except WorkerLostError:
                replaced.update(lost)
                if attempt == MAX_REPLACEMENTS - 1:
                    raise
                time.sleep(PING_SECONDS)  # until pings have shown which worker is lost
        return replaced

    def _replace(self, lost: Sequence[int]) -> None:
        begun = time.perf_counter()
        why = "; ".join(f"{w.shard} on {w.host}: {w.lost}" for w in self.workers if w.lost is not None)
        for shard in lost:
            self.workers[shard].close()
            self._cancel(shard, self._incarnations[shard])
            self._incarnations[shard] += 1
        self._launch(lost)
        for shard in lost:
            self.workers[shard] = self._attached(shard)
        self._introduce()
        self.restarts += len(lost)
        _log.warning(
            "pipeline %s: replaced workers after %.1f s (%s)", self._pipeline, time.perf_counter() - begun, why
        )

    def _launch(self, shards: Collection[int]) -> None:
        """Submit a job for each shard, and wait until their workers have registered."""
        assert self._hub is not None
        context, hub = spark_context(self._spark), self._hub
        wanted = {(shard, self._incarnations[shard]) for shard in shards}
        for shard, incarnation in sorted(wanted):
            launch = WorkerLaunch(
                shard, self._shards, self.attempt, incarnation, self._secret, self.code_key(shard),
                (self._host, hub.port), self._files,
            )  # fmt: skip
            name = f"dbspark-worker-{shard}"
            job = threading.Thread(target=self._run_job, args=(context, launch), name=name, daemon=True)
            self._jobs[shard, incarnation] = job
            job.start()
        with hub.changed:
            hub.changed.wait_for(lambda: wanted <= hub.joined.keys() or wanted & self._job_ends.keys(), START_SECONDS)
        missing = sorted(wanted - hub.joined.keys())
        if missing:
            ended = any(key in self._job_ends for key in missing)
            raise (WorkerLostError if ended else DbsparkError)(self._why_missing(missing))

    def _why_missing(self, missing: Sequence[tuple[int, int]]) -> str:
        workers = ", ".join(str(shard) for shard, _ in missing)
        ends = [self._job_ends[key] for key in missing if key in self._job_ends]
        if ends:
            return f"worker {workers} could not be started; its Spark task has ended: {ends[0][:2000]}"
        return (
            f"worker {workers} of {self._shards} has not registered within {START_SECONDS:.0f} s. Either its task "
            f"waits for a slot, or executors cannot reach the driver at {self._host} (a firewall, or spark.driver.host "
            "is not the address that they should use)"
        )

    def _attached(self, shard: int) -> WorkerHandle:
        assert self._hub is not None
        incarnation = self._incarnations[shard]
        at = self._hub.joined[shard, incarnation]
        client = fl.connect(f"grpc://{at['host']}:{at['port']}")
        descriptor = fl.FlightDescriptor.for_path("driver", self.attempt)
        try:
            writer, reader = client.do_exchange(descriptor, call_options(self._secret))
            writer.begin(WIRE_SCHEMA)
        except (pa.ArrowException, OSError) as error:
            raise DbsparkError(
                f"worker {shard} has registered, and the driver cannot reach it at {at['host']}:{at['port']} "
                f"({_reason(error)}); a firewall between driver and executors has to let its own ports through"
            ) from None
        return WorkerHandle(shard, incarnation, at["host"], at["port"], at["pid"], client, writer, reader)

    def _introduce(self) -> None:
        """Tell every worker where all others are; raises `WorkerLostError` if one is lost or cannot be reached."""
        peers = {w.shard: [w.endpoint, w.incarnation] for w in self.workers}
        why = None
        for worker in self.workers:
            with contextlib.suppress(WorkerLostError):
                worker.send({"kind": "hello", "peers": peers})
        for worker in self.workers:
            try:
                reply = worker.receive()
                if reply.header["kind"] != "ready":
                    why = why or f"worker {worker.shard} cannot reach another one: {reply.header['error']}"
            except WorkerLostError as error:
                why = str(error)
        if why is not None:
            raise WorkerLostError(why)

    def stage_target(self) -> StageTarget:
        """Where the rows of the present run are pushed to."""
        endpoints = {worker.shard: worker.endpoint for worker in self.workers}
        return StageTarget(self.attempt, self.run_number, self._secret, endpoints)

    def code_key(self, shard: int) -> bytes:
        """The key that signs code for one worker: another worker cannot sign for it."""
        return hmac.new(self._secret.encode(), f"code for worker {shard}".encode(), hashlib.sha256).digest()

    # ------------------------------------------------------------------ jobs

    def _group(self, shard: int, incarnation: int) -> str:
        return f"dbspark-{self.attempt}-{shard}-{incarnation}"

    def _run_job(self, context: Any, launch: WorkerLaunch) -> None:
        """The thread of a worker's job; it ends when the task ends."""
        hub, why = self._hub, "its Spark task has ended"
        key = launch.shard, launch.incarnation
        try:
            context.setJobGroup(self._group(*key), f"dbspark {self._pipeline}: worker {launch.shard}", True)
            context.setLocalProperty("spark.scheduler.pool", SCHEDULER_POOL)
            context.parallelize([launch.shard], 1).map(partial(_serve, launch)).collect()
        except BaseException as error:
            why = f"its Spark task failed: {str(error)[:1000]}"
        self._job_ends[key] = why
        if hub is not None:
            with hub.changed:
                hub.changed.notify_all()
        self._mark_lost(launch.shard, launch.incarnation, why)

    def _cancel(self, shard: int, incarnation: int) -> None:
        with contextlib.suppress(Exception):
            spark_context(self._spark).cancelJobGroup(self._group(shard, incarnation))

    # ------------------------------------------------------------------ watching

    def _mark_lost(self, shard: int, incarnation: int, why: str) -> None:
        """Record that a worker is lost, and wake threads that wait for it."""
        for worker in list(self.workers):
            if (worker.shard, worker.incarnation) == (shard, incarnation) and worker.lost is None:
                worker.lost = why
                with contextlib.suppress(Exception):
                    worker.reader.cancel()
                self.abort()

    def give_up(self, shard: int, why: str) -> None:
        """Take a worker for lost that another one cannot reach."""
        self._mark_lost(shard, self._incarnations[shard], why)

    def abort(self) -> None:
        """End the present run on all workers that are there: those that wait for one that is lost are woken."""
        lost = [worker.shard for worker in self.workers if worker.lost is not None]
        for worker in list(self.workers):
            if worker.lost is None:
                with contextlib.suppress(pa.ArrowException, OSError):
                    worker.call("abort", {"run": self.run_number, "lost": lost}, self._secret)

    def _watch(self, stop: threading.Event) -> None:
        """Ping all workers for as long as the pool is open."""
        heard: dict[tuple[int, int], float] = {}
        while not stop.wait(PING_SECONDS):
            for worker in list(self.workers):
                key = worker.shard, worker.incarnation
                if worker.lost is not None or stop.is_set():
                    continue
                try:
                    worker.call("ping", {}, self._secret)
                    heard[key] = time.monotonic()
                except (pa.ArrowException, OSError):
                    if time.monotonic() - heard.setdefault(key, time.monotonic()) > SILENT_SECONDS:
                        self._mark_lost(*key, f"it has not answered for {SILENT_SECONDS:.0f} s")

    # ------------------------------------------------------------------ stopping

    def stop(self) -> None:
        """Stop all workers and listen no longer."""
        self._watch_stop.set()
        workers, self.workers = self.workers, []
        for worker in workers:
            with contextlib.suppress(WorkerLostError):
                worker.send({"kind": "stop"})
                with contextlib.suppress(pa.ArrowException, OSError):
                    worker.writer.done_writing()
        until = time.monotonic() + STOP_SECONDS
        for key, job in self._jobs.items():
            lost = any(w.lost is not None and (w.shard, w.incarnation) == key for w in workers)
            job.join(0 if lost or key[1] < self._incarnations[key[0]] else max(0.0, until - time.monotonic()))
            if job.is_alive():
                self._cancel(*key)
        for worker in workers:
            worker.close()
        self._jobs = {}
        if self._hub is not None:
            self._hub.shutdown()
            self._hub = None

    def close(self) -> None:
        """Stop, and give the slots back."""
        atexit.unregister(self.close)
        self.stop()
        self._slots.release()


def _serve(launch: WorkerLaunch, _: int) -> dict[str, Any]:
    """The body of the Spark task. A task that Spark retries is of no use: the driver has given the worker up."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return {} if context is not None and context.attemptNumber() else serve_worker(launch)


__all__ = ["WorkerHandle", "WorkerLostError", "WorkerPool"]
