"""The interface between a pipeline and the runtime that executes its circuit.

A runtime owns the rows of tables and views and the state of the circuit between them. `Embedded` runs the circuit in
this process, `Sharded` as Spark jobs; `ReadOnlyRuntime` only reads what another process has committed. Invariants:

1. `step` is atomic: it raises and nothing has changed, or it returns and the tick can be undone until it is settled.
2. Of the calls after a step, `settle` and `undo` cannot fail; so the pipeline decides alone whether a tick has
   happened.
3. `states` is the whole state, by trace name, in the form in which the store commits it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, SupportsInt

import pyarrow as pa

from dbspark.columnar import Batch
from dbspark.runtime.progress import RowCountSnapshot, TickTimer
from dbspark.runtime.tables import OperationKind, TableDefinition
from dbspark.sql.explain import Size
from dbspark.storage.store import Store


class Outcome(NamedTuple):
    """The result of a tick."""

    table_row_counts: Mapping[str, int]
    """Rows of the change of each table that the transaction names."""
    view_row_counts: Mapping[str, SupportsInt]
    """Rows of the delta of each view; counted when converted to `int`."""
    deltas: Mapping[str, Batch]
    """Deltas of the subscribed views, by view name."""


class ReadableTable(Protocol):
    """The history of one table or view, for reading."""

    @property
    def schema(self) -> pa.Schema: ...

    def at(self, tick: int | None, now: int) -> Batch:
        """All rows as of a tick; None means `now`, the current tick."""
        ...

    def changes(self, since: int, upto: int, now: int) -> pa.Table:
        """Changes of the ticks in (since, upto], with the columns `_tick` and `_weight`, ordered by tick."""
        ...

    def oldest(self) -> int:
        """The oldest tick that can be read."""
        ...


class StateReader(ABC):
    """Read access to the tables and views of one tick; a runtime, or committed state without a circuit."""

    tables: dict[str, TableDefinition]

    @abstractmethod
    def readable(self, name: str, tick: int) -> ReadableTable:
        """The history of a table or view, up to a tick."""

    @abstractmethod
    def sizes(self) -> dict[str, Size]:
        """Rows and bytes of each trace, by name."""

    @abstractmethod
    def close(self) -> None:
        """Release threads, broadcasts and open files."""


class Runtime(StateReader):
    """Executes the circuit of a pipeline: the module docstring states its contract."""

    refilled = False
    """Whether state was computed again when it was recovered, so it is not what is stored."""

    @abstractmethod
    def add_table(self, table: TableDefinition) -> None:
        """Add an empty table."""

    @abstractmethod
    def add_views(self, names: Sequence[str], tick: int) -> None:
        """Add views of the program, and fill them from the rows that tables hold at a tick."""

    @abstractmethod
    def remove(self, name: str, tick: int) -> None:
        """Drop the state of a table or view that the program no longer has."""

    @abstractmethod
    def operation(self, table: str, kind: OperationKind, data: Any, weight: str | None = None) -> Any:
        """Convert a user's rows to an operation on a table; raises `SchemaError` where they do not fit its schema."""

    @abstractmethod
    def step(
        self, operations: Mapping[str, list[Any]], tick: int, subscribed_views: Collection[str], timer: TickTimer
    ) -> Outcome:
        """Run one tick. If it raises, nothing has changed; if it returns, `undo` reverts it until `settle`.

        The outcome has the deltas of `subscribed_views`. The runtime sets `timer.checked` once the operations are
        checked and `timer.computed` once the tick is computed.
        """

    @abstractmethod
    def hold(self, view: str, tick: int | None) -> None:
        """Keep the history of a view from a tick on; None: only as far back as the setting `history` says.

        It replaces the view's earlier hold. Holds are not stored: whoever opens the state sets them again.
        """

    @abstractmethod
    def settle(self) -> None:
        """Accept the last tick: it is durable, or need not be. Cannot fail."""

    @abstractmethod
    def undo(self) -> None:
        """Revert the last tick: all state is as it was before its `step`. Cannot fail."""

    @abstractmethod
    def row_counts(self) -> RowCountSnapshot:
        """Row counts of all state. Called in every tick, so its cost must not depend on the number of rows."""

    @abstractmethod
    def states(self) -> dict[str, Any]:
        """All state, by trace name, as `Store.commit` takes it."""

    @abstractmethod
    def snapshot(self) -> Any:
        """The present definitions and state, for `reset` if a definition cannot be committed. Constant cost."""

    @abstractmethod
    def reset(self, snapshot: Any) -> None:
        """Restore a snapshot."""

    def state_metadata(self) -> dict[str, Any]:
        """What a reader needs beside the program to read the state, as JSON: the node of each view, and for shards
        their number and placement."""
        return {}

    def corrections(self) -> Collection[str]:
        """The views whose rows the next tick corrects, because the stored ones were computed by other operators."""
        return ()

    def transport_status(self) -> Mapping[str, Any] | None:
        """What carries ticks to shards, and what the last one has cost; None without shards."""
        return None

    @abstractmethod
    def recover(
        self, store: Store, tables: Sequence[TableDefinition], tick: int, state_metadata: Mapping[str, Any]
    ) -> None:
        """Open stored state, whichever runtime wrote it; `state_metadata` is what that one returned.

        The program has been loaded already.
        """
