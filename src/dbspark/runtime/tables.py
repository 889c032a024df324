"""What users hand in, as changes of a table.

Rows (tuples, dicts, Spark Rows), anything that speaks Arrow, and Spark DataFrames all become one batch in the order of
the table. An operation of a transaction turns into a change when the transaction is applied: what an upsert replaces
depends on what is there then, operations before it in the same transaction included.

Rows that come into a table without a key can break nothing. Nobody has to look them up, so they are copied and not put
in order: the circuit orders what it needs of them by the keys that it needs, and the history when it writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey, merge
from dbspark.columnar.arrow_import import import_batch, import_copy
from dbspark.columnar.conform import conform
from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import copy_record_batch
from dbspark.columnar.rows import encode_rows, row_normaliser
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_batch import MAX_SORT_ROWS
from dbspark.errors import DbsparkError, SchemaError
from dbspark.kernels.vm.constraints import violates_constraints
from dbspark.operators.keys import distinct_keys
from dbspark.trace.background_merges import Task
from dbspark.trace.history import History
from dbspark.trace.lookup import Hits, Keys, ends_unordered
from dbspark.trace.spine import Spine
from dbspark.zset import ZSet
from dbspark.zset.payload import exact_product
from dbspark.zset.zset import as_table, split_weight

_ARROW = (pa.Table, pa.RecordBatch)

BESIDE = 4096
"""Rows from which on a change is checked beside the circuit: with fewer, a thread would cost more than it saves."""

Kind = Literal["insert", "delete", "upsert", "delete keys", "apply"]


class TransactionError(DbsparkError):
    """A transaction that cannot be applied; nothing of it was. The message names the table and a row."""


class Operation(NamedTuple):
    """One call of a transaction."""

    kind: Kind
    delta: Delta
    """Rows with weights, or the keys of rows."""
    harmless: bool = False
    """Whether no table refuses them: they come, and nobody asks for unique keys."""

    @property
    def rows(self) -> Batch:
        """The same in order."""
        return self.delta.batch()


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table: its schema, its key, and the tick since which it is there."""

    name: str
    schema: Schema
    primary_key: tuple[str, ...]
    created: int = 0
    sort_key: SortKey = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        key = [self.schema.index(c) for c in self.primary_key]
        object.__setattr__(self, "sort_key", SortKey(self.schema, key if key else None))

    def operation(self, kind: Kind, data: Any, weight: str | None = None) -> Operation:
        """What a user hands in, checked against the schema."""
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
                plain = _plain(as_table(data), self.schema)
                if plain is not None:
                    return Operation(kind, plain, harmless=True)
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


class Checking:
    """Whether a table stays one under a change: looked at by the circuit, beside it, or by itself.

    A small change in one piece is looked at by the program of the tick (`place` is where it finds the table, where it
    also puts the change if `listing`), a large one on another core, because both wait for memory. Until it is done
    nothing may be written into the history of the table.
    """

    __slots__ = ("_change", "_directory", "_spine", "_table", "_task", "listing", "place")

    def __init__(self, table: TableState, change: Batch) -> None:
        self._table, self._change = table, change
        self._task: Task[bool] | None = None
        self.place, self.listing = 0, False
        # A key may have rows in two chunks; then all of them are looked up in.
        self._spine: Spine | None = None
        if len(change.chunks) > 1:
            self._spine = table.history.everything().and_one(change)
            self._directory = self._spine.directory
        else:
            self._directory = table.history.directory()
            if change.rows >= BESIDE and table.history.beside:
                self._task = Task(change.rows, self._broken, awaited=True)
            else:
                self.place = table.history.place
                self.listing = table.history.has_room(change.rows)

    def _broken(self) -> bool:
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
        """Until nobody reads the history any more."""
        if self._task is not None:
            self._task.wait()

    def again(self) -> None:
        """Look once more, after a tick that has failed: what it has listed in the directory has not happened."""
        if self._task is None and self._spine is None:
            self._table.history.unlist()
            self._directory = self._table.history.directory()
        self.done()

    def done(self) -> None:
        """Look, or wait for it; raises where the result is not a table."""
        if self._broken() if self._task is None else self._task.result():
            self._table.refuse(self._change)


class TableState:
    """What a table holds, and what operations make of it."""

    def __init__(self, table: TableDefinition, history: History) -> None:
        self.name = table.name
        self.schema = table.schema
        self.primary_key = table.primary_key
        self.history = history
        self.sort_key = history.sort_key

    def change(self, operations: list[Operation]) -> tuple[Delta, Checking | None]:
        """What operations change, together, and what finds out whether the result is a table, where it may not be."""
        if len(operations) == 1:
            kind, delta, harmless = operations[0]
            if harmless or not delta.rows:
                return delta, None
            if kind in ("insert", "apply"):
                return delta, self._check(delta.batch())
        pending: list[Batch] = []
        for operation in operations:
            if operation.kind in ("insert", "delete", "apply"):
                pending.append(self._negative(operation.rows) if operation.kind == "delete" else operation.rows)
            else:
                pending = self._replaced(pending, operation)
        change = merge(pending) if pending else Batch.empty(self.sort_key)
        return Delta.of(change), self._check(change) if change.rows else None

    def _replaced(self, pending: list[Batch], operation: Operation) -> list[Batch]:
        """Rows of the same keys go, wherever they are, and those of an upsert come."""
        so_far = merge(pending) if pending else Batch.empty(self.sort_key)
        if operation.kind == "upsert":
            keys = distinct_keys(operation.rows)
        else:
            keys = Keys.of(self.sort_key, operation.rows.to_arrow())
        gone = [self._negative(self._found(self.history.rows(keys)))]
        if so_far.rows:
            spine = Spine(self.sort_key, (so_far,))
            gone.append(self._negative(self._found(ends_unordered(spine, keys, 1 << 62))))
        out = [so_far, *(g for g in gone if g.rows)]
        return [*out, operation.rows] if operation.kind == "upsert" else out

    def _found(self, hits: Hits) -> Batch:
        return Delta(self.schema, hits.columns(), hits.weights).sorted_by(self.sort_key)

    def _negative(self, batch: Batch) -> Batch:
        return batch.with_weights(exact_product(batch.weights(), -1)) if batch.rows else batch

    def _check(self, change: Batch) -> Checking | None:
        """No row less than none, no key more than once; what is wrong is looked at only where something is."""
        return Checking(self, change) if self.primary_key or change.negative else None

    def refuse(self, change: Batch) -> None:
        """Say what is wrong with a change."""
        after = self._after(change)
        weights = after.weights()
        if (weights < 0).any():
            row, number = _example(after, weights < 0)
            raise TransactionError(
                f"table {self.name!r}: the transaction deletes {row} {-number} time(s) more often than it is there; "
                "nothing was applied"
            )
        if (weights > 1).any():
            row, _ = _example(after, weights > 1)
            self._twice(row)
        self._twice(self._key_twice(after))

    def _after(self, change: Batch) -> Batch:
        """The rows of the touched keys after a change."""
        before = self._found(self.history.rows(distinct_keys(change)))
        return merge([b for b in (before, change) if b.rows])

    def _key_twice(self, after: Batch) -> Any:
        table = after.to_arrow().select(list(self.primary_key))
        seen = set()
        for row in zip(*(c.to_pylist() for c in table.columns), strict=True):
            if row in seen:
                return row
            seen.add(row)
        return "a key"

    def _twice(self, row: Any) -> None:
        raise TransactionError(
            f"table {self.name!r}: there would be two rows of the primary key ({', '.join(self.primary_key)}) with "
            f"{row}; use upsert to replace rows. Nothing was applied"
        )


def _example(batch: Batch, mask: Any) -> tuple[Any, int]:
    at = int(np.flatnonzero(mask)[0])
    table = batch.to_arrow().slice(at, 1)
    return tuple(c[0].as_py() for c in table.columns), int(batch.weights()[at])


def _is_arrow(data: Any) -> bool:
    return isinstance(data, _ARROW) or any(
        hasattr(data, name) for name in ("toArrow", "__arrow_c_stream__", "__arrow_c_array__")
    )


def _batch(data: Any, sort_key: SortKey, weight: str | None) -> Batch:
    if _is_arrow(data):
        given = as_table(data)
        batch = import_batch(sort_key, given, weight)
        if batch is not None:
            return batch
        table, weights = split_weight(given, weight)
        return Batch.from_arrow(table, sort_key, weights)
    if isinstance(data, ZSet):
        return data.batch().sorted_by(sort_key)
    if weight is not None:
        raise SchemaError("weights by column are for Arrow data; give rows as a mapping of row to weight instead")
    weighted = isinstance(data, Mapping)
    made = ZSet.from_rows(_listed(data), sort_key.schema, list(data.values()) if weighted else None)
    return made.batch().sorted_by(sort_key)


def _plain(table: pa.Table, schema: Schema) -> Delta | None:
    """Flat rows as they come, in memory of our own; None where there are none, or too many to be sorted in one go."""
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
    """Rows in the order in which they came."""
    if _is_arrow(data):
        table = as_table(data).combine_chunks()
        arrays = [c.combine_chunks() for c in table.columns]
        flat = [a.chunk(0) if isinstance(a, pa.ChunkedArray) and a.num_chunks else a for a in arrays]
        return pa.Table.from_arrays(conform(schema, table.schema, flat), schema=schema.arrow)
    return pa.Table.from_arrays(
        encode_rows(schema, [row_normaliser(schema)(row) for row in _listed(data)]), schema=schema.arrow
    )


def _listed(data: Any) -> list[Any]:
    """Rows of Python, one by one."""
    given = f"{data!r:.80} ({type(data).__name__})"
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise SchemaError(f"expected rows (tuples, dicts or Rows in a list), Arrow data or a DataFrame, given {given}")
    if isinstance(data, Mapping) and any(isinstance(row, str) for row in data):
        raise SchemaError(
            f"expected rows, given {given}; give one row as [{{…}}], columns as pyarrow.table({{…}}), or rows with "
            "weights as {(…): weight}"
        )
    return list(data)
