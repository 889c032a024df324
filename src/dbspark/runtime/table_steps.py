"""Tables and views as steps of a level, like the nodes of the circuit.

A table turns operations into a delta on the shard that owns the rows; a view appends its delta to its history where the
rows arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

from dbspark.columnar import SortKey
from dbspark.columnar.delta import Delta
from dbspark.runtime.routing import received_operations
from dbspark.runtime.state import difference
from dbspark.runtime.tables import TableDefinition, TableState
from dbspark.runtime.task import HistoryOptions, LevelTask
from dbspark.trace.history import History


@dataclass(frozen=True, slots=True)
class TableStep:
    """A source of the circuit: applies the operations of a transaction to a table and emits their delta."""

    table: TableDefinition
    slot: str
    keep: int

    @property
    def id(self) -> str:
        return f"table {self.table.name}"

    def run(self, task: LevelTask) -> None:
        if task.context.initial:
            if self.id in task.kept:
                task.values[self.slot] = Delta.of(self._history(task, task.context.tick + 1).trace.scan())
            return
        operations = received_operations(task, self.table)
        if not operations:
            return
        history = self._history(task, task.context.tick)
        delta, check = TableState(self.table, history).net_delta(operations)
        if check is not None:
            check.finish()
        change = delta.sorted_by(history.sort_key)
        if change.rows:
            task.append(self.id, history, change)
            task.report_fields.setdefault("tables", {})[self.table.name] = change.rows
            task.values[self.slot] = Delta.of(change)

    def _history(self, task: LevelTask, tick: int) -> History:
        table = self.table
        options = HistoryOptions(table.sort_key, self.keep, table.created, bool(table.primary_key))
        return task.history(self.id, options, tick)


@dataclass(frozen=True, slots=True)
class ViewStep:
    """An output of the circuit: appends the delta of a view to its history."""

    name: str
    slot: str
    sort_key: SortKey
    keep: int

    @property
    def id(self) -> str:
        return f"view {self.name}"

    def run(self, task: LevelTask) -> None:
        tick, options = task.context.tick, HistoryOptions(self.sort_key, self.keep, 0, False)
        change = task.delta(self.slot, self.sort_key.schema).sorted_by(self.sort_key)
        if task.context.initial and self.id in task.kept:  # the stored rows were computed by other operators
            history = task.history(self.id, options, tick)
            change = difference(Delta.of(change), history.trace.scan(), self.sort_key).sorted_by(self.sort_key)
            if not change.rows:
                return
        elif task.context.initial:
            # The rows belong to the last tick: a view has no history before it was created.
            history = History(self.sort_key, self.keep, tick - 1, empty_at_tick=False)
        elif change.rows:
            history = task.history(self.id, options, tick)
        else:
            return
        task.append(self.id, history, change)
        if change.rows:
            task.report_fields.setdefault("views", {})[self.name] = change.rows
            if self.name in task.context.subscribed_views:
                task.send_to_driver(self.id, change)


__all__ = ["TableStep", "ViewStep"]
