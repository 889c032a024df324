"""Tables: conversion of users' rows, and the checks of a table's constraints.

Rows (tuples, dicts, Spark Rows), Arrow data and Spark DataFrames all become one batch or delta in the table's schema.
An operation becomes a delta only when its transaction is applied, because what an upsert replaces depends on the rows
at that moment, those of earlier operations of the same transaction included. Invariants:

1. No row of a table has a negative weight, and with a primary key no key has two rows. This is
   checked for a transaction as a whole, so rows may violate it in between.
2. Rows that are inserted into a table without a key cannot violate this, so they are neither checked nor sorted here:
   the circuit sorts what it needs, and the history sorts when it flushes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.arrow_import import import_batch, import_copy
from dbspark.columnar.chunk import Chunk
from dbspark.columnar.conform import conform
from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import copy_record_batch
from dbspark.columnar.rows import encode_rows, row_normaliser
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_batch import MAX_SORT_ROWS
from dbspark.errors import SchemaError, TransactionError
from dbspark.kernels.memory.layout import WEIGHT
from dbspark.kernels.vm.constraints import violates_constraints
from dbspark.operators.keys import distinct_keys
from dbspark.trace.background_merges import BackgroundTask
from dbspark.trace.history import History
from dbspark.trace.lookup import FoundRows, Keys, first_rows_unordered
from dbspark.trace.spine import Spine
from dbspark.zset import ZSet
from dbspark.zset.arrow_input import as_table, split_weight
from dbspark.zset.weights import multiply_weights

_ARROW = (pa.Table, pa.RecordBatch)

MIN_BACKGROUND_CHECK_ROWS = 4096
"""Deltas with at least so many rows are checked on another thread while the circuit runs; for fewer it does not pay."""

OperationKind = Literal["insert", "delete", "upsert", "delete keys", "apply"]


class Operation(NamedTuple):
    """One call of a transaction: an operation on one table."""

    kind: OperationKind
    delta: Delta
    """Rows with weights, or (for `delete keys`) primary keys."""
    always_valid: bool = False
    """Whether the rows cannot violate a constraint: they are insertions into a table without a primary key."""

    @property
    def rows(self) -> Batch:
        """The delta as a sorted batch."""
        return self.delta.batch()


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table: its schema, its primary key, and the tick at which it was created."""

    name: str
    schema: Schema
    primary_key: tuple[str, ...]
    created: int = 0
    sort_key: SortKey = field(init=False, compare=False, repr=False)
    key_columns: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """The positions of the columns of the primary key."""

    def __post_init__(self) -> None:
        key = tuple(self.schema.index(c) for c in self.primary_key)
        object.__setattr__(self, "sort_key", SortKey(self.schema, key if key else None))
        object.__setattr__(self, "key_columns", key)

    def operation(self, kind: OperationKind, data: Any, weight: str | None = None) -> Operation:
        """Convert a user's rows to an operation; raises `SchemaError` where they do not fit the schema."""
        operation = self._convert(kind, data, weight)
        if self.key_columns and kind not in ("delete", "delete keys"):
            for chunk in operation.delta.batch().chunks:
                for column in self.key_columns:
                    if chunk.may_have_nulls(column):
                        self._refuse_nulls(chunk, column)
        return operation

    def _refuse_nulls(self, chunk: Chunk, column: int) -> None:
        """Refuse rows that are inserted with NULL in a column of the primary key; deleting such rows stays possible."""
        wrong = np.asarray(chunk.array(column).is_null()) & (chunk.lane(WEIGHT) > 0)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            row = tuple(array[at].as_py() for array in chunk.arrays())
            raise SchemaError(
                f"table {self.name!r}: column {self.schema.names[column]!r} is NULL in the row {row}, and a column of "
                "the primary key cannot be; give the row a key, or leave it out. Nothing was applied"
            )

    def _convert(self, kind: OperationKind, data: Any, weight: str | None) -> Operation:
        if type(data) is pa.Table and (kind == "apply" or (kind == "insert" and self.primary_key)):
            batch = import_batch(self.sort_key, data, weight)
            if batch is not None:
                return Operation(kind, Delta.of(batch))
        if kind in ("upsert", "delete keys") and not self.primary_key:
            raise TransactionError(
                f"table {self.name!r} has no primary key, so rows cannot be named by one; "
                "create it with primary_key=[…], or use insert and delete"
            )
        sort_key = self.sort_key
        if kind == "delete keys":
            sort_key = SortKey(self.schema.select([self.schema.index(c) for c in self.primary_key]))
        try:
            if kind == "upsert":
                return Operation(kind, Delta.of(self._last_of_each_key(data)))
            if kind == "insert" and not self.primary_key and _is_arrow(data):
                plain = _copy_flat_rows(as_table(data), self.schema)
                if plain is not None:
                    return Operation(kind, plain, always_valid=True)
            rows = _batch(data, sort_key, weight)
        except SchemaError as error:
            raise SchemaError(f"table {self.name!r}: {error}") from None
        return Operation(kind, Delta.of(rows))

    def _last_of_each_key(self, data: Any) -> Batch:
        table = _table(data, self.schema)
        if len(table) > 1:
            keys = [f"k{i}" for i in range(len(self.primary_key))]
            numbered = pa.table([table.column(c) for c in self.primary_key], names=keys)
            numbered = numbered.append_column("row", pa.array(np.arange(len(table))))
            last = numbered.group_by(keys).aggregate([("row", "max")]).column("row_max")
            table = table if len(last) == len(table) else table.take(last)
        return Batch.from_arrow(table, self.sort_key)


class ConstraintCheck:
    """The check that a change does not violate the constraints of its table (invariant 1 of the module).

    Made in one of three places: a small change of one chunk by the operator VM of the tick (through the interface
    `circuit.vm.TableCheck`), a large one on another thread beside the circuit, any other in `finish`. The history of
    the table must not change before the check is finished.
    """

    __slots__ = ("_change", "_directory", "_spine", "_table", "_task", "listing", "place")

    def __init__(self, table: TableState, change: Batch) -> None:
        self._table, self._change = table, change
        self._task: BackgroundTask[bool] | None = None
        self.place, self.listing = 0, False
        # In several chunks a key may occur twice within the change, so the change is looked up as well.
        self._spine: Spine | None = None
        if len(change.chunks) > 1:
            self._spine = table.history.current_spine().with_batch(change)
            self._directory = self._spine.directory
        else:
            self._directory = table.history.directory()
            if change.rows >= MIN_BACKGROUND_CHECK_ROWS and table.history.has_background_thread:
                self._task = BackgroundTask(change.rows, self._violated, awaited=True)
            else:
                self.place = table.history.directory_slot
                self.listing = table.history.directory_has_space(change.rows)

    def _violated(self) -> bool:
        table = self._table
        sort_key, schema, unique = table.sort_key, table.schema, int(bool(table.primary_key))
        own = int(self._spine is None)
        return any(
            violates_constraints(
                self._directory, chunk.table, chunk.rows, own, sort_key.key_nodes, schema.columns,
                schema.node_count, unique,
            )
            for chunk in self._change.chunks
        )  # fmt: skip

    def wait(self) -> None:
        """Wait until the check does not read the history any more; do not raise."""
        if self._task is not None:
            self._task.wait()

    def recheck(self) -> None:
        """Check again after a tick that failed: undo what the VM appended to the directory first."""
        if self._task is None and self._spine is None:
            self._table.history.invalidate_directory()
            self._directory = self._table.history.directory()
        self.finish()

    def finish(self) -> None:
        """Make the check, or wait for it; raises `TransactionError` if a constraint is violated."""
        if self._violated() if self._task is None else self._task.result():
            self._table.raise_violation(self._change)


class TableState:
    """The rows of a table, and the net of operations on them."""

    def __init__(self, table: TableDefinition, history: History) -> None:
        self.name = table.name
        self.schema = table.schema
        self.primary_key = table.primary_key
        self.history = history
        self.sort_key = history.sort_key

    def net_delta(self, operations: list[Operation]) -> tuple[Delta, ConstraintCheck | None]:
        """The net delta of operations, and the check that it needs, if it may violate the table."""
        if len(operations) == 1:
            kind, delta, always_valid = operations[0]
            if always_valid or not delta.rows:
                return delta, None
            if kind in ("insert", "apply"):
                return delta, self._constraint_check(delta.batch())
        pending: list[Batch] = []
        for operation in operations:
            if operation.kind in ("insert", "delete", "apply"):
                pending.append(self._negate(operation.rows) if operation.kind == "delete" else operation.rows)
            else:
                pending = self._replace_keys(pending, operation)
        change = merge(pending) if pending else Batch.empty(self.sort_key)
        return Delta.of(change), self._constraint_check(change) if change.rows else None

    def _replace_keys(self, pending: list[Batch], operation: Operation) -> list[Batch]:
        """Delete the rows of the operation's keys, in the table and in `pending`, and insert the rows of an upsert."""
        so_far = merge(pending) if pending else Batch.empty(self.sort_key)
        if operation.kind == "upsert":
            keys = distinct_keys(operation.rows)
        else:
            keys = Keys.of(self.sort_key, operation.rows.to_arrow())
        deleted = [self._negate(self._to_batch(self.history.rows(keys)))]
        if so_far.rows:
            spine = Spine(self.sort_key, (so_far,))
            deleted.append(self._negate(self._to_batch(first_rows_unordered(spine, keys, 1 << 62))))
        out = [so_far, *(g for g in deleted if g.rows)]
        return [*out, operation.rows] if operation.kind == "upsert" else out

    def _to_batch(self, hits: FoundRows) -> Batch:
        return Delta(self.schema, hits.columns(), hits.weights).sorted_by(self.sort_key)

    def _negate(self, batch: Batch) -> Batch:
        return batch.with_weights(multiply_weights(batch.weights(), -1)) if batch.rows else batch

    def _constraint_check(self, change: Batch) -> ConstraintCheck | None:
        """The check that a change needs; None for insertions into a table without a key."""
        return ConstraintCheck(self, change) if self.primary_key or change.negative else None

    def raise_violation(self, change: Batch) -> None:
        """Raise for a change that violates the table, naming a row."""
        after = self._after(change)
        weights = after.weights()
        if (weights < 0).any():
            row, number = _first_row(after, weights < 0)
            raise TransactionError(
                f"table {self.name!r}: the transaction deletes {row} {-number} time(s) more often than it is there; "
                "nothing was applied"
            )
        if (weights > 1).any():
            row, _ = _first_row(after, weights > 1)
            self._raise_duplicate_key(row)
        self._raise_duplicate_key(self._duplicate_key(after))

    def _after(self, change: Batch) -> Batch:
        """The rows of the keys of a change, after the change."""
        before = self._to_batch(self.history.rows(distinct_keys(change)))
        return merge([b for b in (before, change) if b.rows])

    def _duplicate_key(self, after: Batch) -> Any:
        table = after.to_arrow().select(list(self.primary_key))
        seen = set()
        for row in zip(*(c.to_pylist() for c in table.columns), strict=True):
            if row in seen:
                return row
            seen.add(row)
        return "a key"

    def _raise_duplicate_key(self, row: Any) -> None:
        raise TransactionError(
            f"table {self.name!r}: there would be two rows of the primary key ({', '.join(self.primary_key)}) with "
            f"{row}; use upsert to replace rows. Nothing was applied"
        )


def _first_row(batch: Batch, mask: Any) -> tuple[Any, int]:
    at = int(np.flatnonzero(mask)[0])
    table = batch.to_arrow().slice(at, 1)
    return tuple(c[0].as_py() for c in table.columns), int(batch.weights()[at])


def _is_arrow(data: Any) -> bool:
    return isinstance(data, _ARROW) or any(
        hasattr(data, name) for name in ("toArrow", "__arrow_c_stream__", "__arrow_c_array__")
    )


def _batch(data: Any, sort_key: SortKey, weight: str | None) -> Batch:
    if _is_arrow(data):
        arrow = as_table(data)
        batch = import_batch(sort_key, arrow, weight)
        if batch is not None:
            return batch
        table, weights = split_weight(arrow, weight)
        return Batch.from_arrow(table, sort_key, weights)
    if isinstance(data, ZSet):
        return data.batch().sorted_by(sort_key)
    if weight is not None:
        raise SchemaError("weights by column are for Arrow data; give rows as a mapping of row to weight instead")
    weighted = isinstance(data, Mapping)
    made = ZSet.from_rows(_to_row_list(data), sort_key.schema, list(data.values()) if weighted else None)
    return made.batch().sorted_by(sort_key)


def _copy_flat_rows(table: pa.Table, schema: Schema) -> Delta | None:
    """Copy rows of flat columns, unsorted; None for nested columns, no rows, or more rows than one sort takes."""
    if schema.nested or not 0 < table.num_rows <= MAX_SORT_ROWS:
        return None
    copy = import_copy(schema, table)
    if copy is not None:
        return Delta.of_chunk(copy)
    parts = table.to_batches()
    if len(parts) > 1:
        parts = table.combine_chunks().to_batches()
        if len(parts) > 1:
            return None
    rows = parts[0]
    if schema.required or not rows.schema.equals(schema.arrow):
        rows = pa.RecordBatch.from_arrays(conform(schema, rows.schema, rows.columns), schema=schema.arrow)
    rows = copy_record_batch(rows)
    return Delta(schema, rows.columns, np.ones(rows.num_rows, np.int64))


def _table(data: Any, schema: Schema) -> pa.Table:
    """A user's rows as an Arrow table in their order."""
    if _is_arrow(data):
        table = as_table(data).combine_chunks()
        arrays = [c.combine_chunks() for c in table.columns]
        flat = [a.chunk(0) if isinstance(a, pa.ChunkedArray) and a.num_chunks else a for a in arrays]
        return pa.Table.from_arrays(conform(schema, table.schema, flat), schema=schema.arrow)
    return pa.Table.from_arrays(
        encode_rows(schema, [row_normaliser(schema)(row) for row in _to_row_list(data)]), schema=schema.arrow
    )


def _to_row_list(data: Any) -> list[Any]:
    """The elements of a collection of Python rows; raises `SchemaError` for other data."""
    got = f"{data!r:.80} ({type(data).__name__})"
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise SchemaError(f"expected rows (tuples, dicts or Rows in a list), Arrow data or a DataFrame, given {got}")
    if isinstance(data, Mapping) and any(isinstance(row, str) for row in data):
        raise SchemaError(
            f"expected rows, given {got}; give one row as [{{…}}], columns as pyarrow.table({{…}}), or rows with "
            "weights as {(…): weight}"
        )
    return list(data)
