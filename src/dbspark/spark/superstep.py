"""Supersteps: the levels of a tick as one Spark job.

    rows (shard, slot, payload) -> repartitionById -> level 0 -> repartitionById -> level 1 -> … -> reports

Every level is a `mapInArrow` over as many partitions as there are shards; between two of them Spark shuffles whole
batches as bytes, and never sees a row of ours. What comes to the driver at the end are the reports of the tasks, and
what somebody has asked for. Levels are sent to the executors once, as a broadcast, and stay there between ticks.

The job runs in a session of its own, so that the settings it needs are not those of the user.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dbspark.errors import DbsparkError
from dbspark.spark.levels import Level
from dbspark.spark.task import ERROR, Job, Row, Work, raise_first

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = pa.schema([
    pa.field("shard", pa.int32(), False),
    pa.field("slot", pa.string(), False),
    pa.field("payload", pa.binary(), False),
])  # fmt: skip
DDL = "shard INT NOT NULL, slot STRING NOT NULL, payload BINARY NOT NULL"
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # it would make a job of every stage, and partitions other than shards
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.codegen.wholeStage": "false",  # there is nothing to generate code for, and it takes time every tick
}

WAKE = "wake"
"""The slot of rows that say nothing."""

Records = Mapping[str, Mapping[int, Sequence[Any]]]
"""The traces: by name and shard, the records of their spines as JSON."""


class Supersteps:
    """Runs levels on Spark."""

    def __init__(self, spark: SparkSession, shards: int) -> None:
        self.shards = shards
        self.session = spark.newSession()
        for name, value in SETTINGS.items():
            self.session.conf.set(name, value)
        self._sent: dict[str, Any] = {}

    def run(
        self, job: Job, levels: Sequence[Level], records: Records, rows: Iterable[Row], frames: Iterable[DataFrame] = ()
    ) -> list[Row]:
        """Run levels on rows that the driver has and on those of frames; gives what leaves the last level."""
        # A row for every shard, or Spark would leave out what it sees has no rows.
        frame = self._frame([*rows, *((shard, WAKE, b"") for shard in range(self.shards))])
        for given in frames:
            frame = frame.unionAll(self.adopted(given))
        digest, sent = self._broadcast(levels)
        for number, level in enumerate(levels):
            names = {name for step in level.steps for name in getattr(step, "reads", (step.id,))}
            mine = {
                shard: zlib.compress(json.dumps(found).encode(), 1)
                for shard in range(self.shards)
                if (found := {n: records[n][shard] for n in names if shard in records.get(n, ())})
            }
            frame = frame.repartitionById(self.shards, "shard")
            frame = frame.mapInArrow(_task(job, number, digest, sent, mine), DDL)
        try:
            collected = frame.collect()
        except Exception as error:
            raise DbsparkError(
                f"tick {job.tick} failed in Spark and was not applied: {type(error).__name__}: {str(error)[:2000]}"
            ) from error
        out = [(int(r.shard), str(r.slot), bytes(r.payload)) for r in collected]
        raise_first(payload for _, slot, payload in out if slot == ERROR)
        return out

    def adopted(self, frame: DataFrame) -> DataFrame:
        """A frame of another session in this one."""
        from pyspark.sql import DataFrame as Frame

        jvm: Any = self.session._jvm
        plan = frame._jdf.queryExecution().analyzed()
        return Frame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.session._jsparkSession, plan), self.session)

    def _frame(self, rows: Iterable[Row]) -> DataFrame:
        given = zip(*rows, strict=True)
        table = pa.Table.from_arrays(
            [pa.array(column, field.type) for column, field in zip(given, ROWS, strict=True)], schema=ROWS
        )
        return self.session.createDataFrame(table)

    def _broadcast(self, levels: Sequence[Level]) -> tuple[str, Any]:
        from pyspark import cloudpickle

        data = cloudpickle.dumps(tuple(levels))  # type: ignore[no-untyped-call]
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if digest not in self._sent:
            self._sent[digest] = self.session.sparkContext.broadcast(data)
        return digest, self._sent[digest]

    def close(self) -> None:
        """Let the executors forget the levels."""
        for sent in self._sent.values():
            sent.destroy()
        self._sent = {}


_levels: dict[str, tuple[Level, ...]] = {}
"""In a worker: the levels that it has seen."""


def _known(digest: str, sent: Any) -> tuple[Level, ...]:
    if digest not in _levels:
        import pickle

        while len(_levels) >= 8:
            del _levels[next(iter(_levels))]
        _levels[digest] = pickle.loads(sent.value)
    return _levels[digest]


def _task(
    job: Job, number: int, digest: str, sent: Any, records: Mapping[int, bytes]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        shard = context.partitionId()
        received: dict[str, list[bytes]] = {}
        for batch in batches:
            for slot, payload in zip(batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True):
                received.setdefault(slot, []).append(payload)
        mine = json.loads(zlib.decompress(records[shard])) if shard in records else {}
        work = Work(job, number, _known(digest, sent)[number], shard, mine, received)
        yield from packed(work.run())

    return run


def packed(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches of a few megabytes."""
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row[2])
        if size > 8 << 20:
            yield _batch(some)
            some, size = [], 0
    if some:
        yield _batch(some)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


__all__ = ["ROWS", "Records", "Supersteps", "packed"]
