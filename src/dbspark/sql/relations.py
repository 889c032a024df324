"""`Relation`, what a plan node is compiled to (a stream with Spark's ids of its columns), and notes on maintenance.

Columns of a stream are named by position (`c0`, `c1` …), so that equal sub-queries give equal nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from dbspark.circuit.builder import Builder
from dbspark.circuit.graph import Stream
from dbspark.columnar.schema import Schema
from dbspark.sql import plan as p
from dbspark.sql.types import with_nullable_children

MaintenanceMode = Literal["incremental", "affected groups", "full"]
Cost = Literal["change", "partition"]
"""Rows that a tick reads: the delta and its matches, or all rows of the partitions or groups that change."""


@dataclass(frozen=True, slots=True)
class MaintenanceNote:
    """How an operator of a view is maintained, as `explain` shows it."""

    operator: str
    mode: MaintenanceMode
    code: str = ""
    why: str = ""
    cost: Cost = "change"

    def __str__(self) -> str:
        reason = f"  [NOT_INCREMENTAL.{self.code}] {self.why}" if self.code and self.mode != "incremental" else ""
        remark = f"  [{self.code}] {self.why}" if self.code and self.mode == "incremental" else ""
        cost = f", cost: {self.cost}" if self.cost != "change" else ""
        return f"{self.operator}: {self.mode}{cost}{reason}{remark}"


def reads_partitions(
    operator: str, mode: MaintenanceMode = "incremental", code: str = "READS_PARTITION", why: str = ""
) -> MaintenanceNote:
    """A note on an operator of which a tick reads every row of the partitions or groups that it touches."""
    return MaintenanceNote(
        operator, mode, code, why or "a tick reads all rows of the partitions that it touches", "partition"
    )


@dataclass(frozen=True, slots=True)
class Relation:
    """A stream, and for each of its columns the expression id in Spark's plan."""

    stream: Stream
    ids: tuple[int, ...]

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return self.stream.schema.types

    @property
    def positions(self) -> dict[int, int]:
        return {number: i for i, number in enumerate(self.ids)}

    def position(self, number: int) -> int:
        return self.positions[number]

    def name(self, number: int) -> str:
        return self.stream.schema.names[self.position(number)]

    @property
    def typed(self) -> dict[int, pa.DataType]:
        return dict(zip(self.ids, self.types, strict=True))

    def columns(self) -> list[p.Column]:
        return [p.Column(number, f"c{i}", t) for i, (number, t) in enumerate(self.typed.items())]


@dataclass(slots=True)
class Scope:
    """Where a plan is compiled to: a builder of a circuit, its tables, and relations that were compiled before."""

    builder: Builder
    tables: Mapping[str, Stream]
    known: dict[int, Relation] = field(default_factory=dict)
    """Relations of plan nodes that were compiled outside, by the identity of the node."""
    loops: dict[int, Relation] = field(default_factory=dict)


def positional_schema(types: Sequence[pa.DataType]) -> Schema:
    """A schema with columns named by position."""
    return Schema(pa.schema([pa.field(f"c{i}", with_nullable_children(t)) for i, t in enumerate(types)]))
