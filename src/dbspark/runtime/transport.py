"""What carries a tick to the shards: the interface of the transports.

A *transport* runs the levels of a plan on all shards, with an exchange between two levels. There are two; they share
the code that runs a level on a shard (`dbspark.runtime.task`):

| | `exchange`: a shuffle | `resident`: workers that stay between ticks |
|---|---|---|
| a level on a shard | a task of a Spark job (`dbspark.runtime.stage`) | a worker's turn (`dbspark.runtime.worker`) |
| an exchange | `repartitionById` | messages between workers |
| a fixpoint | unrolled, and another job for what is not over | iterated by messages |
| traces between ticks | files, opened by every task | values in memory; files as well where there is a location |

Invariants of both:

1. `run` raises and nothing has changed, or it returns, and the tick is pending until it is settled or undone.
2. What shards have written is part of the state when the driver has committed it, not before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dbspark.circuit.graph import Graph
from dbspark.runtime.level_plan import Level
from dbspark.runtime.reslicing import TraceLayout
from dbspark.runtime.runtime import ReadableTable
from dbspark.runtime.stage import Row
from dbspark.runtime.task import HistoryOptions, TickContext
from dbspark.storage.manifest import TraceRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TraceRows:
    """What the driver knows of a trace on one shard that is only in the memory of its worker."""

    rows: int


TraceRecords = tuple[TraceRecord, ...] | tuple[TraceRows]
Records = Mapping[str, Mapping[int, TraceRecords]]
"""By trace and shard, the records of its spines, or how many rows they have in memory."""


def json_records(records: TraceRecords) -> list[Any]:
    """The records of the spines of a trace as JSON."""
    return [r.to_json() for r in records if isinstance(r, TraceRecord)]


@dataclass(frozen=True, slots=True)
class ShardedPlan:
    """The levels of a graph with its tables and views, and the layout of all traces."""

    graph: Graph
    levels: tuple[Level, ...]
    traces: dict[str, TraceLayout]


@dataclass(frozen=True, slots=True)
class LevelsRun:
    """One run of the levels of a plan."""

    context: TickContext
    plan: ShardedPlan
    records: Records
    """The traces that the levels may read, as the last tick has left them."""
    rows: Sequence[Row]
    """Rows of the driver for level 0."""
    frames: Sequence[DataFrame] = ()
    """DataFrames of such rows, which Spark's tasks make."""
    state: Records | None = None
    """All traces, where the levels may read only some of them."""
    tables: frozenset[str] | None = None
    """The tables that the transaction names; None: rows may come from any of them."""


class LevelsResult(NamedTuple):
    """What the shards have told the driver."""

    reports: Sequence[Mapping[str, Any]]
    """By task: `level`, `shard`, `traces` (the records of those that it has replaced, as JSON), `rows` (by trace, where
    they are in memory only), and the `report_fields` of the task."""
    batches: Sequence[tuple[str, bytes]]
    """Encoded batches for the driver, with the names of their traces."""


class Transport(ABC):
    """Runs levels on all shards: the module docstring states its contract."""

    name: str

    @abstractmethod
    def run(self, run: LevelsRun) -> LevelsResult:
        """Run the levels of a plan on all shards."""

    @abstractmethod
    def settle(self) -> None:
        """Accept the last run. Cannot fail."""

    @abstractmethod
    def undo(self) -> None:
        """Revert the last run, if it has not been settled. Cannot fail."""

    def mark(self) -> Any:
        """The present state, for `return_to`; it is kept until the next mark or `settle`."""
        return None

    def return_to(self, mark: Any) -> None:  # noqa: B027 - a transport whose tasks keep nothing has nothing to do
        """Revert all runs since a mark. Cannot fail."""

    def forget(self, traces: Collection[str]) -> None:  # noqa: B027
        """Drop traces that no plan has any more."""

    def status(self) -> dict[str, Any]:
        """What carries ticks, for people: its name, and its workers with their hosts."""
        return {"name": self.name}

    @abstractmethod
    def close(self) -> None:
        """Release what the transport holds in Spark."""


class MemoryTransport(Transport):
    """A transport that can keep the state in memory only, so it is also asked for rows and sizes."""

    @abstractmethod
    def readable(self, trace: str, options: HistoryOptions, tick: int) -> ReadableTable:
        """The history of a table or view, up to a tick."""

    @abstractmethod
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Rows and bytes of each trace, over all shards."""


__all__ = [
    "LevelsResult",
    "LevelsRun",
    "MemoryTransport",
    "Records",
    "ShardedPlan",
    "TraceRecords",
    "TraceRows",
    "Transport",
    "json_records",
]
