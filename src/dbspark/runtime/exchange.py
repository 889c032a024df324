"""The shuffle transport: the levels of a tick as supersteps of one Spark job.

    level 0 -> repartitionById -> level 1 -> repartitionById -> level 2 -> … -> reports

Every level is a `mapInArrow` over one partition for each shard. Between two levels Spark shuffles rows (shard, slot,
payload) whose payloads are whole encoded batches; it never sees a single row of ours. The driver collects the reports
of the tasks and the deltas of subscribed views.

1. Levels are broadcast to the executors once and cached there between ticks, and Spark analyses their plan once. What
   differs from tick to tick (records of traces, and rows of the driver) is a local property of the job, or in a file
   that the property names. Rows of DataFrames are received by level 0 through one more shuffle.
2. Whoever can write to the location must not be able to run code in the workers: only what Spark carries from the
   driver (the broadcast levels and the property) is unpickled. What tasks read from the location is Arrow and JSON, and
   the property has the digest of each task's part of the file, so that an altered file is refused.
3. External functions (`ExternalCall`) are evaluated by Spark between two levels: the rows of a slot are decoded into
   columns, Spark's own plan runs over them, and its result is encoded again. All functions of a level share one more
   shuffle.
4. The job runs in a session of its own, so its settings do not affect the user's.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import json
import pickle
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar import SortKey
from dbspark.columnar.delta import Delta
from dbspark.columnar.frames import in_months, struct_of
from dbspark.errors import CorruptFileError, DbsparkError
from dbspark.operators.linear import fitting
from dbspark.runtime.level_plan import ExternalCall, Level
from dbspark.runtime.stage import DRIVER_DELTA, ERROR, REPORT, Row, StageTask
from dbspark.runtime.task import TickContext, failure, raise_first
from dbspark.runtime.transport import LevelsResult, LevelsRun, Records, ShardedPlan, Transport, json_records
from dbspark.runtime.unrolled import (
    MAX_UNROLLED_ITERATIONS,
    UnrolledLevels,
    iterations_to_unroll,
    run_until_complete,
    unroll,
)
from dbspark.storage.manifest import PART_PREFIX
from dbspark.storage.segment import batch_bytes, decode_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_SCHEMA = pa.schema([
    pa.field("shard", pa.int32(), False),
    pa.field("slot", pa.string(), False),
    pa.field("payload", pa.binary(), False),
])  # fmt: skip
ROW_DDL = "shard INT NOT NULL, slot STRING NOT NULL, payload BINARY NOT NULL"
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # it would run a job for every stage, and merge partitions, which are shards
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.codegen.wholeStage": "false",  # there is no code to generate, and trying costs time in every tick
}

COPIED_SETTINGS = ("spark.sql.ansi.enabled", "spark.sql.session.timeZone")
"""Settings that change the meaning of expressions: copied from the user's session."""
_SHARD_FIELD, _WEIGHT_FIELD = pa.field("__shard", pa.int32(), False), pa.field("__weight", pa.int64(), False)
"""Columns beside the rows of a slot while Spark evaluates an external function on them."""
INPUTS_PROPERTY = "dbspark.job"
"""The local property of a job that has the inputs of its tasks."""
MAX_PROPERTY_BYTES = 64 << 10
"""Bytes of task inputs, before compression, that are sent as a property; more are written to a file."""
MAX_CACHED_PLANS = 8
"""Broadcast plans that are kept: one for each number of unrolled iterations, and a few of definitions."""

_MAX_BATCH_BYTES = 8 << 20
"""Payload bytes after which `to_record_batches` ends a batch, which bounds what Spark and Python buffer."""

TaskKey = tuple[int, int]
"""A level and a shard."""


_TASK_INPUT_SCHEMA = pa.schema([pa.field("slot", pa.string(), False), pa.field("payload", pa.large_binary(), False)])
_RECORDS_KEY = b"dbspark.records"


@dataclass(frozen=True, slots=True)
class TaskInput:
    """The input of one task from the driver, beside the context of the tick."""

    records: dict[str, Any]
    """By trace of its level, the records on its shard, as JSON."""
    rows: list[tuple[str, bytes]]

    def to_bytes(self) -> bytes:
        """An Arrow stream: the rows, and the records as JSON in the metadata of its schema."""
        schema = _TASK_INPUT_SCHEMA.with_metadata({_RECORDS_KEY: json.dumps(self.records)})
        columns = zip(*self.rows, strict=True) if self.rows else ((), ())
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _TASK_INPUT_SCHEMA, strict=True)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return bytes(sink.getvalue())

    @staticmethod
    def from_bytes(data: pa.Buffer | bytes) -> TaskInput:
        with pa.ipc.open_stream(data) as reader:
            records = json.loads(reader.schema.metadata[_RECORDS_KEY])
            rows = [row for batch in reader for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
        return TaskInput(records, rows)


@dataclass(frozen=True, slots=True)
class JobInputs:
    """The property of a job: the context of the tick, and the input of each task, or the file that has it."""

    context: TickContext
    inline: dict[TaskKey, bytes]
    file: str | None = None
    extents: Mapping[TaskKey, tuple[int, int, bytes]] = field(default_factory=dict)
    """Where in the file each input is: offset, size and digest."""

    def of(self, task: TaskKey) -> TaskInput:
        if self.file is None:
            return TaskInput.from_bytes(self.inline[task])
        files = self.context.files()
        at, size, digest = self.extents[task]
        where = files.where(self.file)
        try:
            whole = files.read(self.file)
        except FileNotFoundError:
            raise CorruptFileError(
                f"{where} is missing, the inputs of tick {self.context.tick}; run it again"
            ) from None
        if at + size > whole.size or _digest(data := whole.slice(at, size)) != digest:
            raise CorruptFileError(
                f"{where} has been altered since the driver wrote the inputs of tick {self.context.tick} into it, "
                "so it is not read. Find out who else writes to the location, and run the transaction again"
            )
        return TaskInput.from_bytes(data)


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass(slots=True)
class _BroadcastLevels:
    """A plan that has been broadcast, and the functions of its levels."""

    levels: Sequence[Level]
    broadcast: Any
    tasks: list[Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]]
    frame: DataFrame | None = None
    """The analysed DataFrame of the job, for ticks without DataFrames of the user."""


class ShuffleTransport(Transport):
    """Runs the levels of a plan as one Spark job, or several where a fixpoint takes more iterations than a job has."""

    name = "shuffle"

    def __init__(self, spark: SparkSession, shards: int) -> None:
        self.runner = SuperstepRunner(spark, shards)
        self._iterations = MAX_UNROLLED_ITERATIONS
        """Iterations to unroll in the next tick."""
        self._unrolled: dict[int, tuple[ShardedPlan, UnrolledLevels]] = {}
        """The last plan, by the number of unrolled iterations."""

    def run(self, run: LevelsRun) -> LevelsResult:
        unrolled = self._levels(run.plan, MAX_UNROLLED_ITERATIONS if run.context.initial else self._iterations)

        def run_job(resume_point: int | None, rows: Sequence[Row]) -> list[Row]:
            if resume_point is None:
                return self.runner.run(run.context, unrolled.levels, run.records, rows, run.frames)
            return self.runner.run(run.context, unrolled.resume_levels[resume_point], run.records, rows)

        out = run_until_complete(run_job, run.rows)
        reports = [json.loads(payload) for _, slot, payload in out if slot == REPORT]
        if unrolled.resume_levels:
            taken = [n for report in reports for n in report.get("iterations", {}).values()]
            self._iterations = iterations_to_unroll(max(taken, default=0))
        batches = [(s.removeprefix(DRIVER_DELTA), payload) for _, s, payload in out if s.startswith(DRIVER_DELTA)]
        return LevelsResult(reports, batches)

    def _levels(self, plan: ShardedPlan, iterations: int) -> UnrolledLevels:
        known = self._unrolled.get(iterations)
        if known is None or known[0] is not plan:
            unrolled = unroll(plan.levels, iterations)
            if iterations < MAX_UNROLLED_ITERATIONS and unrolled.resume_levels:
                # A tick that takes more than the last may take many more.
                more = self._levels(plan, MAX_UNROLLED_ITERATIONS)
                unrolled = unrolled._replace(resume_levels=more.resume_levels)
            known = self._unrolled[iterations] = plan, unrolled
        return known[1]

    def settle(self) -> None:
        """Tasks keep nothing, so there is nothing to accept."""

    def undo(self) -> None:
        """Tasks keep nothing, so there is nothing to revert."""

    def close(self) -> None:
        self.runner.close()


class SuperstepRunner:
    """Runs the levels of a plan as one Spark job."""

    def __init__(self, spark: SparkSession, shards: int) -> None:
        self.shards = shards
        self.session = spark.newSession()
        for name, value in SETTINGS.items():
            self.session.conf.set(name, value)
        for name in COPIED_SETTINGS:
            self.session.conf.set(name, str(spark.conf.get(name)))
        self._plans: dict[int, _BroadcastLevels] = {}

    def run(
        self,
        context: TickContext,
        levels: Sequence[Level],
        records: Records,
        rows: Iterable[Row],
        frames: Sequence[DataFrame] = (),
    ) -> list[Row]:
        """Run levels on rows of the driver and DataFrames of such rows; returns the rows that the last level sends."""
        frame = self._frame(self._plan(levels), frames)
        java_context: Any = self.session.sparkContext._jsc
        inputs, file = self._make_inputs(context, levels, records, rows)
        java_context.setLocalProperty(INPUTS_PROPERTY, inputs)
        try:
            collected = frame.collect()
        except Exception as error:
            raise DbsparkError(
                f"tick {context.tick} failed in Spark and was not applied: {type(error).__name__}: {str(error)[:2000]}"
            ) from error
        finally:
            java_context.setLocalProperty(INPUTS_PROPERTY, None)
            if file is not None:
                context.files().remove(file)
        out = [(int(r.shard), str(r.slot), bytes(r.payload)) for r in collected]
        raise_first(payload for _, slot, payload in out if slot == ERROR)
        return out

    def evaluate(self, rows: Sequence[Row], external_calls: Sequence[ExternalCall]) -> list[Row]:
        """Run a job for external functions alone; returns the given rows (shard, slot, payload) and the results."""
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROW_SCHEMA, strict=True)]
        frame = self.session.createDataFrame(pa.Table.from_arrays(arrays, schema=ROW_SCHEMA))
        try:
            collected = self._call_external(frame, external_calls).collect()
        except Exception as error:
            raise DbsparkError(
                f"Spark could not evaluate a function of a view, and the tick was not applied: {type(error).__name__}: "
                f"{str(error)[:2000]}"
            ) from error
        return [(int(r.shard), str(r.slot), bytes(r.payload)) for r in collected]

    def in_own_session(self, frame: DataFrame) -> DataFrame:
        """A DataFrame of another session, in the session of the jobs."""
        from pyspark.sql import DataFrame as Frame

        jvm: Any = self.session._jvm
        plan = frame._jdf.queryExecution().analyzed()
        return Frame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.session._jsparkSession, plan), self.session)

    def _make_inputs(
        self, context: TickContext, levels: Sequence[Level], records: Records, rows: Iterable[Row]
    ) -> tuple[str, str | None]:
        """The property of a job, and the file that it names, or None."""
        rows_by_shard: dict[int, list[tuple[str, bytes]]] = {}
        for shard, slot, payload in rows:
            rows_by_shard.setdefault(shard, []).append((slot, payload))
        tasks: dict[TaskKey, bytes] = {}
        for number, level in enumerate(levels):
            names = {name for step in level.steps for name in getattr(step, "reads", (step.id,))}
            for shard in range(self.shards):
                traces = {n: json_records(records[n][shard]) for n in names if shard in records.get(n, ())}
                tasks[number, shard] = TaskInput(traces, rows_by_shard.get(shard, []) if number == 0 else []).to_bytes()
        if sum(map(len, tasks.values())) <= MAX_PROPERTY_BYTES:
            return _encode_inputs(JobInputs(context, tasks)), None
        file = f"{PART_PREFIX}{context.tick:016d}-{uuid.uuid4().hex}"
        context.files().put(file, list(tasks.values()))
        ends = accumulate(map(len, tasks.values()))
        extents = {
            task: (end - len(data), len(data), _digest(data))
            for (task, data), end in zip(tasks.items(), ends, strict=True)
        }
        return _encode_inputs(JobInputs(context, {}, file, extents)), file

    def _frame(self, plan: _BroadcastLevels, frames: Sequence[DataFrame]) -> DataFrame:
        if plan.frame is not None and not frames:
            # A new DataFrame over the same analysed plan: one that has been run would not run again.
            return self.in_own_session(plan.frame)
        frame = self.session.range(
            0, self.shards, 1, self.shards
        )  # one row for each shard, so that Spark starts its task
        if frames:
            frame = frame.selectExpr("CAST(id AS INT) AS shard", "'' AS slot", "X'' AS payload")
            for user_frame in frames:
                frame = frame.unionAll(self.in_own_session(user_frame))
            frame = frame.repartitionById(self.shards, "shard")
        for number, task in enumerate(plan.tasks):
            if number:
                frame = frame.repartitionById(self.shards, "shard")
                if plan.levels[number - 1].external_calls:
                    frame = self._call_external(frame, plan.levels[number - 1].external_calls).repartitionById(
                        self.shards, "shard"
                    )
            frame = frame.mapInArrow(task, ROW_DDL)
        if not frames:
            plan.frame = frame
        return frame

    def _call_external(self, frame: DataFrame, external_calls: Sequence[ExternalCall]) -> DataFrame:
        """The rows that a level sends, and the results of its external functions on them."""
        out = frame
        for call in external_calls:
            # No filter here: Spark would push it below the exchange, and run one exchange for each function.
            seen = in_months(struct_of(pa.schema([*call.source.arrow, _SHARD_FIELD, _WEIGHT_FIELD])), wide=True)
            rows = frame.mapInArrow(_decoding(call), seen)
            out = out.unionAll(call.function.frame(rows, 2).mapInArrow(_encoding(call), ROW_DDL))
        return out

    def _plan(self, levels: Sequence[Level]) -> _BroadcastLevels:
        if id(levels) not in self._plans:
            while len(self._plans) >= MAX_CACHED_PLANS:
                self._plans.pop(next(iter(self._plans))).broadcast.destroy()
            data = pickle_code(tuple(levels))
            digest = hashlib.blake2b(data, digest_size=16).hexdigest()
            broadcast = self.session.sparkContext.broadcast(data)
            tasks = [_task(number, digest, broadcast) for number in range(len(levels))]
            self._plans[id(levels)] = _BroadcastLevels(levels, broadcast, tasks)
        return self._plans[id(levels)]

    def close(self) -> None:
        """Remove the broadcast levels from the executors."""
        for plan in self._plans.values():
            plan.broadcast.destroy()
        self._plans = {}


_LEVELS: dict[str, tuple[Level, ...]] = {}
"""In a worker: unpickled levels, by digest."""


def _cached_levels(digest: str, broadcast: Any) -> tuple[Level, ...]:
    if digest not in _LEVELS:
        while len(_LEVELS) >= 2 * MAX_CACHED_PLANS:
            del _LEVELS[next(iter(_LEVELS))]
        _LEVELS[digest] = pickle.loads(broadcast.value)
    return _LEVELS[digest]


@cache
def _exempt_modules_from_collection() -> None:
    """Take what has been imported out of garbage collections, once in a process.

    A Python worker collects after every task, and would spend 85 ms looking through the modules of dbspark and numba:
    as much as a small task takes.
    """
    gc.collect()
    gc.freeze()


def _encode_inputs(inputs: JobInputs) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(inputs), 1)).decode()


def _decode_inputs(text: str) -> JobInputs:
    """The inverse of `_encode_inputs`, in a task."""
    inputs = pickle.loads(zlib.decompress(base64.b64decode(text)))
    assert isinstance(inputs, JobInputs)
    return inputs


def _task(number: int, digest: str, broadcast: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        _exempt_modules_from_collection()
        context = TaskContext.get()
        assert context is not None
        shard = context.partitionId()
        inputs = _decode_inputs(str(context.getLocalProperty(INPUTS_PROPERTY)))
        try:
            task_input = inputs.of((number, shard))
        except DbsparkError as error:
            yield from to_record_batches([(shard, ERROR, failure(error, number, shard))])
            return
        received: dict[str, list[bytes]] = {}
        for slot, payload in task_input.rows:
            received.setdefault(slot, []).append(payload)
        for batch in batches:
            if batch.num_columns == len(ROW_SCHEMA):
                for slot, payload in zip(batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True):
                    received.setdefault(slot, []).append(payload)
        work = StageTask(
            inputs.context, number, _cached_levels(digest, broadcast)[number], shard, task_input.records, received
        )
        yield from to_record_batches(work.run())

    return run


def _decoding(call: ExternalCall) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """From rows (shard, slot, payload) to the rows of one slot, with their shards and weights."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema(
            [*call.source.arrow, _SHARD_FIELD, _WEIGHT_FIELD]
        )  # with the nullability that mapInArrow was declared with
        for batch in batches:
            mine = batch.filter(pc.equal(batch.column(1), call.slot))
            for shard, payload in zip(mine.column(0).to_pylist(), mine.column(2).to_pylist(), strict=True):
                delta = Delta.of(decode_batch(pa.py_buffer(payload), SortKey(call.source)))
                shards = pa.repeat(pa.scalar(shard, pa.int32()), delta.rows)
                yield pa.RecordBatch.from_arrays([*delta.columns, shards, pa.array(delta.weights)], schema=schema)

    return run


def _encoding(call: ExternalCall) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """From the rows of Spark's result, with shards and weights, to rows (shard, slot, payload)."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def rows() -> Iterator[Row]:
            for batch in batches:
                shards = batch.column(call.schema.columns)
                for shard in shards.unique().to_pylist():
                    part = batch.filter(pc.equal(shards, shard))
                    columns = fitting(call.schema, part.columns[:-2], part.num_rows)
                    delta = Delta(call.schema, columns, part.column(part.num_columns - 1).to_numpy())
                    yield shard, call.result_slot, batch_bytes(delta.sorted_by(SortKey(call.schema)))

        yield from to_record_batches(rows())

    return run


def pickle_code(what: Any) -> bytes:
    """Pickle an object with functions for another process; raises where it cannot be pickled."""
    from pyspark import cloudpickle

    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    return dumps(what)


def to_record_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches of about `_MAX_BATCH_BYTES`."""
    pending: list[Row] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += len(row[2])
        if size > _MAX_BATCH_BYTES:
            yield _batch(pending)
            pending, size = [], 0
    if pending:
        yield _batch(pending)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), ROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


__all__ = [
    "ROW_SCHEMA",
    "JobInputs",
    "ShuffleTransport",
    "SuperstepRunner",
    "TaskInput",
    "pickle_code",
    "to_record_batches",
]
