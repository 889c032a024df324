"""Routing of a transaction's rows to their shards.

Rows of the driver are one batch, sorted by the table's key hash, so the rows of a shard are one slice of it. The rows
of a DataFrame are sorted and split by the tasks of its partitions, and sent from there. A shard puts operations in the
order of the transaction, and the partitions of a DataFrame in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from dbspark.columnar import SortKey, merge
from dbspark.columnar.delta import Delta
from dbspark.columnar.frames import arrow_schema, in_months, relabelled
from dbspark.runtime.exchange import ROW_DDL, to_record_batches
from dbspark.runtime.placement import split
from dbspark.runtime.stage import Row
from dbspark.runtime.tables import Operation, OperationKind, TableDefinition
from dbspark.runtime.task import LevelTask
from dbspark.sql.names import sql_name
from dbspark.storage.segment import batch_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_ROUTED_ROWS = 1 << 22
"""Rows of one payload: of 400 bytes each it is below the 2 GiB of a message of gRPC, and of a value of Spark's."""
KINDS: tuple[OperationKind, ...] = get_args(OperationKind)


@dataclass(frozen=True, slots=True)
class FrameOperation:
    """One call of a transaction with a DataFrame, whose rows stay in Spark's tasks."""

    kind: OperationKind
    frame: DataFrame
    weight: str | None


def to_operation(
    table: TableDefinition, kind: OperationKind, data: Any, weight: str | None
) -> Operation | FrameOperation:
    """Convert a user's rows to an operation; of a DataFrame only the schema is checked here."""
    if not hasattr(data, "mapInArrow"):
        return table.operation(kind, data, weight)
    table.operation(kind, arrow_schema(data.schema).empty_table(), weight)
    plain = in_months(data.schema)
    return FrameOperation(kind, data if plain == data.schema else relabelled(data, plain), weight)


@dataclass(frozen=True, slots=True)
class RoutedOperation:
    """An operation of a transaction with its table and its number in the transaction."""

    table: TableDefinition
    number: int
    operation: Operation | FrameOperation

    def rows(self, shards: int) -> Iterator[Row]:
        """The rows that the driver sends: those of an operation that is no DataFrame."""
        if isinstance(self.operation, Operation):
            yield from _split_rows(self.table, self.number, self.operation, shards, (0, 0))

    def frames(self, shards: int) -> Iterator[DataFrame]:
        """A DataFrame of the rows that Spark's tasks send, if the operation is one."""
        if isinstance(self.operation, FrameOperation):
            operation = self.operation
            yield operation.frame.mapInArrow(
                _split_partition(self.table, self.number, operation.kind, operation.weight, shards), ROW_DDL
            )


def _split_partition(
    table: TableDefinition, number: int, kind: OperationKind, weight: str | None, shards: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        part = context.partitionId()

        def rows() -> Iterator[Row]:
            for i, batch in enumerate(batches):
                operation = table.operation(kind, pa.Table.from_batches([batch]), weight)
                yield from _split_rows(table, number, operation, shards, (part, i))

        yield from to_record_batches(rows())

    return run


def _split_rows(
    table: TableDefinition, number: int, operation: Operation, shards: int, part: tuple[int, int]
) -> Iterator[Row]:
    slot = f"op {sql_name(table.name)} {number:06d} {part[0]:06d} {part[1]:06d} {KINDS.index(operation.kind)}"
    for shard, batch in split(operation.rows, shards):
        for begin in range(0, batch.rows, MAX_ROUTED_ROWS):
            rows = min(MAX_ROUTED_ROWS, batch.rows - begin)
            yield shard, slot, batch_bytes(batch if rows == batch.rows else batch.slice(begin, rows))


def received_operations(task: LevelTask, table: TableDefinition) -> list[Operation]:
    """The operations on a table that a task has received, in the order of the transaction."""
    out: list[tuple[str, Operation]] = []
    for slot in sorted(s for s in task.received if s.startswith(f"op {sql_name(table.name)} ")):
        _, number, _, _, kind = slot.rsplit(" ", 4)
        rows = merge(task.batches(slot, operation_sort_key(table, KINDS[int(kind)])))
        operation = Operation(KINDS[int(kind)], Delta.of(rows))
        if out and out[-1][0] == number and operation.kind != "upsert":
            operation = Operation(operation.kind, Delta.of(merge([out.pop()[1].rows, rows])))
        out.append((number, operation))
    return [operation for _, operation in out]


def operation_sort_key(table: TableDefinition, kind: OperationKind) -> SortKey:
    """The sort key of the rows of an operation."""
    if kind != "delete keys":
        return table.sort_key
    return SortKey(table.schema.select([table.schema.index(c) for c in table.primary_key]))
