"""Rows of DataFrames on their way to workers: pushed by Spark's own tasks, straight to the workers that own them.

The task of a partition splits its rows by shard (`runtime.routing`), opens a stream to each worker that gets some, and
returns its number and that of its attempt. A worker *stages* what arrives, under (run, frame, partition, attempt of the
task). The driver's message names the attempts that Spark has accepted, one for each partition; so rows that a retried
or speculative task has pushed twice count once, and what belongs to no run is dropped by the next one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from dbspark.runtime.wire import WIRE_SCHEMA, call_options, read_message, write_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGED_DDL: Final = "part INT NOT NULL, attempt BIGINT NOT NULL"
_STAGED_SCHEMA: Final = pa.schema([pa.field("part", pa.int32(), False), pa.field("attempt", pa.int64(), False)])
StagedPart = tuple[int, int, int]
"""A frame of the run, a partition of it, and the attempt of its task."""


class StageTarget(NamedTuple):
    """Where the rows of a run are pushed to."""

    attempt: str
    """The attempt of the workers."""
    run: int
    secret: str
    endpoints: Mapping[int, str]
    """By shard, the address of its worker."""


def push_frames(frames: list[DataFrame], target: StageTarget) -> list[StagedPart]:
    """Push DataFrames of rows (shard, slot, payload) to workers; returns the parts that a run is to take."""
    return [
        (number, int(row.part), int(row.attempt))
        for number, frame in enumerate(frames)
        for row in frame.mapInArrow(_pushing(target, number), STAGED_DDL).collect()
    ]


def _pushing(target: StageTarget, frame: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        part, attempt = context.partitionId(), context.taskAttemptId()
        path = "stage", target.attempt, str(target.run), str(frame), str(part), str(attempt)
        streams: dict[int, tuple[Any, Any, Any]] = {}
        for batch in batches:
            for shard, slot, payload in zip(*batch.columns, strict=True):
                to = shard.as_py()
                if to not in streams:
                    client = fl.connect(target.endpoints[to])
                    writer, reader = client.do_exchange(
                        fl.FlightDescriptor.for_path(*path), call_options(target.secret)
                    )
                    writer.begin(WIRE_SCHEMA)
                    streams[to] = client, writer, reader
                write_message(streams[to][1], {}, [(slot.as_py(), payload.as_buffer())])
        for client, writer, reader in streams.values():
            writer.done_writing()
            with contextlib.suppress(StopIteration):  # the worker has all of it
                reader.read_chunk()
            writer.close()
            client.close()
        yield pa.RecordBatch.from_arrays([pa.array([part], pa.int32()), pa.array([attempt])], schema=_STAGED_SCHEMA)

    return run


class StagedRows:
    """In a worker: the rows that have been pushed to it."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int, int], list[tuple[str, pa.Buffer]]] = {}
        """By run, frame, partition and attempt of the task; an entry is added when it is whole."""

    def receive(self, key: tuple[int, int, int, int], reader: Any) -> None:
        """Take what a task pushes, until its stream ends; a stream that breaks leaves nothing."""
        rows: list[tuple[str, pa.Buffer]] = []
        try:
            while True:
                rows += read_message(reader).rows
        except StopIteration:
            self._rows[key] = rows

    def take(self, run: int, parts: list[StagedPart]) -> Iterator[tuple[str, pa.Buffer]]:
        """The rows of the named parts of a run; all else that was staged for it, or for earlier runs, is dropped."""
        for frame, part, attempt in parts:
            yield from self._rows.get((run, frame, part, attempt), ())
        for key in [key for key in list(self._rows) if key[0] <= run]:
            del self._rows[key]


__all__ = ["StageTarget", "StagedPart", "StagedRows", "push_frames"]
