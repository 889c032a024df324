"""What a pipeline asks of whoever runs its circuit.

A runtime keeps what tables and views hold and the state of the circuit between them. It makes ticks; when one is done
it is the present, and `states` is what the store is to name. `Embedded` does it in this process, `Sharded` as Spark
jobs; a `Reader` only shows what somebody else has committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, SupportsInt

import pyarrow as pa

from dbspark.columnar import Batch
from dbspark.runtime.progress import Watch
from dbspark.runtime.tables import Kind, TableDefinition
from dbspark.sql.explain import Size
from dbspark.storage.store import Store


class Outcome(NamedTuple):
    """What a tick has done."""

    given: Mapping[str, int]
    """Rows by which it changed tables."""
    taken: Mapping[str, SupportsInt]
    """Rows by which it changed views; counted when somebody asks."""
    changes: Mapping[str, Batch]
    """The changes of the views that were asked for."""


class Tally(Protocol):
    """How many rows there were at one moment, before consolidation; added up when somebody asks."""

    def rows(self) -> dict[str, int]:
        """By what keeps them: `table t`, `view v`, or the id of a node."""
        ...


class Readable(Protocol):
    """A table or view as it can be read."""

    @property
    def schema(self) -> pa.Schema: ...

    def at(self, tick: int | None, now: int) -> Batch:
        """Everything as it was at a tick."""
        ...

    def changes(self, since: int, upto: int, now: int) -> pa.Table:
        """The changes of the ticks after `since`, with `_tick` and `_weight`, in the order of ticks."""
        ...

    def oldest(self) -> int:
        """The oldest tick that can be read."""
        ...


class Shows(ABC):
    """Whatever has tables and views to read."""

    tables: dict[str, TableDefinition]

    @abstractmethod
    def readable(self, name: str, tick: int) -> Readable:
        """A table or view to read, up to a tick."""

    @abstractmethod
    def sizes(self) -> dict[str, Size]:
        """How much is kept under each name."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what outlives a tick."""


class Runtime(Shows):
    """See the module's preface."""

    refilled = False
    """Whether state was computed again when it was recovered, so it is not what is stored."""

    @abstractmethod
    def add_table(self, table: TableDefinition) -> None:
        """A new table without rows."""

    @abstractmethod
    def add_views(self, names: Sequence[str], tick: int) -> None:
        """Compute views that the program has from what the tables hold at a tick."""

    @abstractmethod
    def remove(self, name: str, tick: int) -> None:
        """A table or view is not in the program any more."""

    @abstractmethod
    def operation(self, table: str, kind: Kind, data: Any, weight: str | None = None) -> Any:
        """What a user hands in for a table, checked against its schema."""

    @abstractmethod
    def step(self, operations: Mapping[str, list[Any]], tick: int, wanted: Collection[str], watch: Watch) -> Outcome:
        """Make a tick. One that raises has not happened; one that returns can be taken back until it is settled.

        `wanted` are views whose changes somebody waits for; `watch` is told when operations have been checked, and when
        the tick has been computed.
        """

    @abstractmethod
    def hold(self, view: str, tick: int | None) -> None:
        """Keep a view readable from a tick on, or as far back as it is; None: only as far as the setting `history`.

        A hold takes the place of the one before it. It lasts as long as the view; who opens the state holds anew.
        """

    @abstractmethod
    def settle(self) -> None:
        """The last tick has been made durable, or need not be. Cannot fail."""

    @abstractmethod
    def undo(self) -> None:
        """The last tick has not happened: everything is as it was before its `step`. Cannot fail."""

    @abstractmethod
    def tally(self) -> Tally:
        """The rows that are kept now. It is asked for in every tick, so it must not depend on how many they are."""

    @abstractmethod
    def states(self) -> dict[str, Any]:
        """All that is kept, by name, as the store takes it."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Everything as it is, to come back to when a definition cannot be committed; costs nothing."""

    @abstractmethod
    def reset(self, snapshot: Any) -> None:
        """Go back to a snapshot."""

    def described(self) -> dict[str, Any]:
        """What is to be known of it to read its state, as JSON: `shards`, if any, and the node of each view."""
        return {}

    def corrections(self) -> Collection[str]:
        """The views whose rows the next tick corrects: other operators made what was stored of them."""
        return ()

    @abstractmethod
    def recover(self, store: Store, tables: Sequence[TableDefinition], tick: int, described: Mapping[str, Any]) -> None:
        """Take over what is stored by a runtime that described itself so. The program has been read already."""
