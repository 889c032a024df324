"""A resident worker: a long Spark task that keeps one shard in memory and runs its share of every tick.

# The protocol

One worker serves one shard of one *attempt* (a number of the driver with a secret). Its life:

| step | message | direction |
|---|---|---|
| register | action `join`: shard, attempt, endpoint | worker to driver |
| hello | stream `driver`, opened once: where the other workers are | driver to worker; then worker to worker |
| plan | `plan`: levels as signed code, by digest | driver to worker, once for each plan |
| push | stream `stage`: rows of a partition of a DataFrame (`staging`) | tasks of Spark to workers |
| run | `run`: the plan, the transaction, the version to build on, rows of this shard | driver to all workers |
| exchange | rows and a note, one message to every other worker, behind each level that may need it | between workers |
| external | `external`: rows that Spark is to evaluate; the answer `external results` | worker to driver and back |
| done | `done`: reports, sizes, batches for subscribers; or `failed` with the error | worker to driver |
| read | `read`: rows or changes of a table or view | driver to worker |
| stop | `stop`, or the end of the driver's stream | driver to worker |

# What is final when

A run changes nothing for good (`worker_state`): it ends with a new version beside the old one. With a location it has
written the new batches to files that no manifest names yet. The driver commits (the manifest, where there is one), and
its next message names the version to build on: the new one, or the old one.

# What happens on failure

| what fails | what happens |
|---|---|
| a level on one worker | it says so at the next exchange, and all stop; the next message names the old version |
| a worker, in a run | its streams end, the driver aborts the others; no version is final (`resident`) |
| a worker, between runs | the driver notices when its job ends, or at the next run |
| the driver | its stream ends, and with it the task |

# Threads

All work is done by the thread of the task. The threads of Flight's server only read messages into queues: Python's
thread-local values crash when such a thread ends (`threading.local` of CPython 3.11 in threads that gRPC has made), and
kernels keep scratch memory in one.

What a level does is `dbspark.runtime.task`; nothing here knows an operator.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from dbspark.columnar import SortKey
from dbspark.errors import DbsparkError
from dbspark.kernels import preload
from dbspark.runtime.active_levels import ActiveLevel, active_levels
from dbspark.runtime.fixpoint import FixpointRun, IterationLevel, Vote, agreed
from dbspark.runtime.level_plan import FixpointPlan, Level
from dbspark.runtime.staging import StagedRows
from dbspark.runtime.task import FixpointOutcome, HistoryOptions, LevelTask, TickContext, failure
from dbspark.runtime.wire import (
    WIRE_SCHEMA,
    SecretCheck,
    WireMessage,
    WireRow,
    address_towards,
    call_options,
    read_message,
    verified_code,
    write_message,
)
from dbspark.runtime.worker_exchange import PeerExchange, Received, RunAbortedError
from dbspark.runtime.worker_state import RunState, VersionedState, decode_spine, encode_spine
from dbspark.storage.files import Files
from dbspark.trace.spine import Spine

_log = logging.getLogger("dbspark")

MAX_SECONDS_WITHOUT_DRIVER: Final = 60.0
"""Seconds after which a worker ends if no driver has opened a stream to it: the driver has gone, or cannot reach it."""
FETCH_SECONDS: Final = 120.0
"""Time limit of a call that fetches a spine from another worker."""


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """What a worker is started with; it travels in the closure of its Spark task."""

    shard: int
    shards: int
    attempt: str
    incarnation: int
    """One more each time the worker of this shard is replaced."""
    secret: str
    code_key: bytes
    """The key with which the driver signs code for this worker."""
    driver: tuple[str, int]
    """Host and port where the worker registers."""
    files: Callable[[], Files] | None
    """Opens the location; None: in memory only."""


@dataclass(slots=True)
class _WorkerPlan:
    """A plan that the driver has sent."""

    levels: Sequence[Level]
    active: dict[frozenset[str] | None, tuple[ActiveLevel, ...]] = field(default_factory=dict)

    def active_for(self, tables: frozenset[str] | None) -> tuple[ActiveLevel, ...]:
        """What a transaction on some tables can touch; None: everything."""
        if tables not in self.active:
            self.active[tables] = active_levels(self.levels, tables)
        return self.active[tables]


Reply = tuple[dict[str, Any], Sequence[WireRow]]


class Worker:
    """One shard, and what its driver may ask of it: the module docstring is its protocol."""

    def __init__(self, launch: WorkerLaunch) -> None:
        self.launch = launch
        self._requests: queue.SimpleQueue[WireMessage | None] = queue.SimpleQueue()
        """What the driver has sent; None: its stream has ended."""
        self._writer: Any = None
        self._attached = threading.Event()
        """Set once the driver has opened its stream."""
        self._finished = threading.Event()
        self._beside = ThreadPoolExecutor(1, "dbspark-spines")
        """Reads spines for other workers while a run goes on."""
        self.state = VersionedState(launch.files)
        self.exchange = PeerExchange(launch.shard, launch.shards)
        self.staged = StagedRows()
        self._plans: dict[str, _WorkerPlan] = {}
        self._run_begun = threading.Condition()
        self._run_number = -1

    # ------------------------------------------------------------------ the driver's stream

    def serve_driver(self, reader: Any, writer: Any) -> None:
        """On a thread of the server: take what the driver sends, until its stream ends."""
        writer.begin(WIRE_SCHEMA)
        self._writer = writer
        self._attached.set()
        try:
            while True:
                self._requests.put(read_message(reader))
        except (StopIteration, pa.ArrowException):
            self._requests.put(None)
        self._finished.wait()  # until then the thread of the task may write

    def work(self) -> None:
        """Answer the driver, message by message, until it says stop or its stream ends."""
        handlers: Mapping[str, Callable[[WireMessage], Reply]] = {
            "hello": self._hello, "plan": self._plan, "read": self._read, "sizes": self._sizes,
        }  # fmt: skip
        if not self._attached.wait(MAX_SECONDS_WITHOUT_DRIVER):
            return
        while (message := self.next_request()) is not None and message.header["kind"] != "stop":
            try:
                kind = message.header["kind"]
                reply = WorkerRun(self, message).run() if kind == "run" else handlers[kind](message)
            except Exception as error:
                reply = {"kind": "failed", "error": failed(error, self.launch.shard), "wrote": True}, ()
            try:
                self.answer(*reply)
            except (pa.ArrowException, OSError):
                return  # the driver has gone

    def next_request(self) -> WireMessage | None:
        """The next message of the driver; None: its stream has ended."""
        return self._requests.get()

    def answer(self, header: Mapping[str, Any], rows: Sequence[WireRow] = ()) -> None:
        """Send a message to the driver."""
        write_message(self._writer, header, rows)

    def close(self) -> None:
        """End all streams."""
        self._finished.set()
        self.exchange.close()
        self.state.close()
        self._beside.shutdown(wait=False)

    def _hello(self, message: WireMessage) -> Reply:
        peers = {int(shard): (str(at), int(number)) for shard, (at, number) in message.header["peers"].items()}
        self.exchange.connect(peers, self.launch)
        return {"kind": "ready"}, ()

    def _plan(self, message: WireMessage) -> Reply:
        ((digest, code),) = message.rows
        levels = verified_code(self.launch.code_key, code.to_pybytes(), message.header["signature"])
        self._plans = {n: p for n, p in self._plans.items() if n in message.header["keep"]}
        self._plans[digest] = _WorkerPlan(levels)
        return {"kind": "ready"}, ()

    def plan(self, digest: str) -> _WorkerPlan:
        """A plan that the driver has sent before."""
        return self._plans[digest]

    def _read(self, message: WireMessage) -> Reply:
        """Rows of a table or view at a tick, or its changes."""
        header = message.header
        self.state.move_to(header["base"], header["oldest"])
        options = _history_options(self, header)
        history = self.state.history(header["name"], options, header["now"] + 1)
        what = header["what"]
        if what == "oldest":
            return {"kind": "read", "oldest": history.oldest()}, ()
        if what == "at":
            batch = history.at(header["tick"], header["now"])
            return {"kind": "read"}, [("rows", batch)] if batch.rows else ()
        table = history.changes(header["since"], header["upto"], header["now"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return {"kind": "read"}, [("changes", sink.getvalue())]

    def _sizes(self, message: WireMessage) -> Reply:
        self.state.move_to(message.header["base"], message.header["oldest"])
        return {"kind": "sizes", "sizes": self.state.sizes(message.header["consolidated"])}, ()

    # ------------------------------------------------------------------ other workers

    def serve_peer(self, peer: int, incarnation: int, reader: Any) -> None:
        """Take what another worker sends, until its stream ends."""
        try:
            while True:
                self.exchange.deliver(peer, incarnation, read_message(reader))
        except (StopIteration, pa.ArrowException):
            self.exchange.deliver(peer, incarnation, None)

    def begin_run(self, number: int) -> None:
        """Say that this worker now has the state that the run begins with: other workers may fetch spines of it."""
        with self._run_begun:
            self._run_number = number
            self._run_begun.notify_all()
        self.exchange.begin_run(number)

    def serve_spine(self, request: Mapping[str, Any]) -> list[bytes]:
        """On a thread of the server: a spine as the present run has found it, for another worker."""
        return self._beside.submit(self._encoded_spine, request).result()

    def _encoded_spine(self, request: Mapping[str, Any]) -> list[bytes]:
        with self._run_begun:
            if not self._run_begun.wait_for(lambda: self._run_number >= request["run"], FETCH_SECONDS):
                raise DbsparkError(f"worker {self.launch.shard} has not begun run {request['run']}")
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(request["schema"])))
        sort_key = _sort_key(schema, request)
        found = self.state.spine(request["trace"], request["number"], sort_key)
        return encode_spine(Spine(sort_key) if found is None else found)

    def fetch_spine(self, trace: str, shard: int, number: int, sort_key: SortKey) -> Spine:
        """A spine of another worker as the present run has found it."""
        request = {
            "run": self._run_number, "trace": trace, "number": number,
            "schema": sort_key.schema.arrow.serialize().to_pybytes().hex(), "key": sort_key.key,
            "order": [list(o) for o in sort_key.order],
        }  # fmt: skip
        action = fl.Action("spine", json.dumps(request).encode())
        results = self.exchange.client(shard).do_action(action, call_options(self.launch.secret, FETCH_SECONDS))
        return decode_spine([pa.py_buffer(r.body.to_pybytes()) for r in results], sort_key)


def _history_options(worker: Worker, header: Mapping[str, Any]) -> HistoryOptions:
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(header["schema"])))
    return HistoryOptions(_sort_key(schema, header), header["keep"], header["created"], header["keyed"])


def _sort_key(schema: pa.Schema, header: Mapping[str, Any]) -> SortKey:
    from dbspark.columnar.schema import Schema

    return SortKey(Schema(schema), header["key"], [tuple(o) for o in header["order"]])


def failed(error: BaseException, shard: int, level: int = 0) -> str:
    """An error as text for the driver."""
    if isinstance(error, DbsparkError):
        return failure(error, level, shard).decode()
    where = "".join(traceback.format_exception(error)[-3:])[-2000:]
    return failure(DbsparkError(f"worker {shard} failed: {type(error).__name__}: {where}"), level, shard).decode()


class WorkerRun:
    """One run on one shard."""

    def __init__(self, worker: Worker, message: WireMessage) -> None:
        self._worker = worker
        self._header = header = message.header
        self._shard = worker.launch.shard
        self._exchange = worker.exchange
        state = worker.state
        if header["records"] is not None:
            state.restart(header["base"], header["records"])
        else:
            state.move_to(header["base"], header["oldest"])
        state.forget(header["forget"])
        worker.begin_run(header["run"])
        given = dict(header["context"])
        for name in ("unchanged_traces", "subscribed_views"):
            given[name] = frozenset(given[name])
        files = worker.launch.files
        self._context = TickContext(shards=worker.launch.shards, files=files or _no_files, **given)
        self._kept = RunState(state, header["visible"], worker.fetch_spine, self._shard, header["others"])
        self._plan = worker.plan(header["plan"])
        tables = header["tables"]
        self._active = self._plan.active_for(None if tables is None else frozenset(tables))
        self._received: Received = {}
        parts = [(int(frame), int(part), int(attempt)) for frame, part, attempt in header["staged"]]
        for slot, payload in (*message.rows, *worker.staged.take(header["run"], parts)):
            self._received.setdefault(slot, []).append(payload)
        self._reports: list[dict[str, Any]] = []
        self._driver_rows: list[WireRow] = []
        self._level = 0
        self._loops: set[str] | None = None
        """The fixpoints in front of the next level to which some worker has sent rows; None: not known yet."""

    def run(self) -> Reply:
        """Run all levels; returns what the driver is told."""
        begun, wrote = time.perf_counter(), False
        try:
            self._run_levels()
            wrote = True
            records = self._worker.state.write(self._kept.new, self._context.tick)
        except RunAbortedError as error:
            self._kept.undo()
            return {"kind": "aborted", "why": str(error), "peer": error.peer, "wrote": wrote}, ()
        except BaseException as error:
            self._kept.undo()
            self._exchange.fail()
            return {"kind": "failed", "error": failed(error, self._shard, self._level), "wrote": wrote}, ()
        state = self._worker.state
        state.accept(self._header["version"], self._kept.new, self._kept.appended)
        done = {
            "kind": "done",
            "wrote": True,
            "reports": self._reports,
            "traces": records,
            "rows": state.row_counts(self._kept.new),
            "bytes": self._exchange.sent_bytes,
            "messages": self._exchange.messages,
            "seconds": time.perf_counter() - begun,
        }
        return done, self._driver_rows

    def _run_levels(self) -> None:
        last = len(self._plan.levels) - 1
        for number, (level, active) in enumerate(zip(self._plan.levels, self._active, strict=True)):
            self._level = number
            received, self._received = self._received, {}
            outcomes = {
                loop.id: self._run_fixpoint(loop, received)
                for loop in level.fixpoints
                if loop.id in active.fixpoints and (self._loops is None or loop.id in self._loops)
            }
            self._loops = None
            outgoing: list[tuple[int, str, Any]] = []
            if active.runs and (received or outcomes or self._context.initial or not number):
                task = LevelTask(self._context, number, level, self._shard, self._kept, received, outcomes)
                task.run_steps()
                outgoing = list(task.outgoing())
                self._driver_rows += task.driver_batches
                if task.report_fields:
                    self._reports.append({"level": number, "shard": self._shard, **task.report_fields})
            if number == last:
                break
            if active.exchanges:
                loops = self._loops_reached(number + 1, outgoing)
                self._received, notes = self._exchange.exchange(outgoing, [bool(outgoing), loops])
                self._loops = {loop for _, reached in notes for loop in reached}
                if not any(some for some, _ in notes) and not self._context.initial:
                    break  # no worker has rows for a later level
            else:
                for _, slot, payload in outgoing:
                    self._received.setdefault(slot, []).append(payload)
            if active.calls:
                self._call_external(level)

    def _loops_reached(self, number: int, outgoing: Sequence[tuple[int, str, Any]]) -> list[str]:
        """The fixpoints in front of a level to which rows are sent."""
        loops = self._plan.levels[number].fixpoints
        return [loop.id for loop in loops if any(slot.startswith(loop.slot_prefix) for _, slot, _ in outgoing)]

    def _run_fixpoint(self, loop: FixpointPlan, received: Received) -> FixpointOutcome:
        """All iterations of a fixpoint: a vote is the note of the last exchange of an iteration."""
        run = FixpointRun(loop, self._kept)
        prefix = loop.slot_prefix
        slots = {s.removeprefix(prefix): received.pop(s) for s in list(received) if s.startswith(prefix)}
        votes: list[Vote] = []
        while True:
            for number in range(len(loop.levels)):
                nested = LevelTask(self._context, self._level, loop.levels[number], self._shard, self._kept, slots)
                level = IterationLevel(loop, number, nested, run.levels[number])
                if votes and not number:
                    level.check_limit(votes)
                outgoing = list(nested.outgoing()) if level.step() else []
                vote = level.vote() if number == len(loop.levels) - 1 else None
                slots, notes = self._exchange.exchange(outgoing, vote)
            votes = [Vote(*note) for note in notes if note is not None]
            following = agreed(votes)
            if following is None:
                return run.outcome()
            run.iteration = following

    def _call_external(self, level: Level) -> None:
        """Let Spark evaluate the external functions of a level on the rows of this shard."""
        rows = [(call.slot, payload) for call in level.external_calls for payload in self._received.pop(call.slot, ())]
        self._worker.answer({"kind": "external", "level": self._level}, rows)
        answer = self._worker.next_request()
        if answer is None or answer.header["kind"] != "external results":
            raise RunAbortedError("the driver has ended the run")
        for slot, payload in answer.rows:
            self._received.setdefault(slot, []).append(payload)


def _no_files() -> Files:
    raise DbsparkError("the pipeline is in memory, so there is no location to open")


# ---------------------------------------------------------------------- the endpoint


class WorkerEndpoint(fl.FlightServerBase):  # type: ignore[misc]
    """Where a worker is called: by its driver, and by the other workers of its attempt."""

    def __init__(self, worker: Worker, host: str) -> None:
        secret = SecretCheck(worker.launch.secret)
        super().__init__(f"grpc://{host}:0", middleware={"secret": secret})
        self._worker = worker

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        path = [part.decode() for part in descriptor.path or ()]
        if len(path) < 2 or path[1] != self._worker.launch.attempt:
            raise fl.FlightUnauthorizedError("a call of another attempt; this worker does not answer it")
        if path[0] == "driver":
            self._worker.serve_driver(reader, writer)
        elif path[0] == "stage":
            run, frame, part, attempt = map(int, path[2:])
            self._worker.staged.receive((run, frame, part, attempt), reader)
        elif path[0] == "peer":
            self._worker.serve_peer(int(path[2]), int(path[3]), reader)
        else:
            raise fl.FlightServerError(f"unknown stream {path[0]!r}")

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        body = json.loads(action.body.to_pybytes() or b"{}")
        if action.type == "spine":
            return iter(self._worker.serve_spine(body))
        if action.type == "abort":
            self._worker.exchange.abort(int(body["run"]), body["lost"])
            return iter([b"{}"])
        if action.type == "ping":
            return iter([json.dumps({"shard": self._worker.launch.shard, "pid": os.getpid()}).encode()])
        raise fl.FlightServerError(f"unknown action {action.type!r}")


def serve_worker(launch: WorkerLaunch) -> dict[str, Any]:
    """Run a worker in this process until its driver stops it: the body of the Spark task."""
    preload.begin()
    preload.wait()
    worker, host = Worker(launch), address_towards(*launch.driver)
    endpoint = WorkerEndpoint(worker, host)
    joined = {
        "shard": launch.shard, "attempt": launch.attempt, "incarnation": launch.incarnation,
        "host": host, "port": endpoint.port, "pid": os.getpid(),
    }  # fmt: skip
    try:
        hub = fl.connect(f"grpc://{launch.driver[0]}:{launch.driver[1]}")
        list(hub.do_action(fl.Action("join", json.dumps(joined).encode()), call_options(launch.secret, 30)))
        hub.close()
        worker.work()
    finally:
        worker.close()
        closing = threading.Thread(target=endpoint.shutdown, daemon=True)
        closing.start()
        closing.join(5)
    return {"shard": launch.shard, "pid": os.getpid()}


__all__ = ["Worker", "WorkerEndpoint", "WorkerLaunch", "failed", "serve_worker"]
