"""The plan of a tick on shards: levels, what they do, and what flows between them.

Plain data without behaviour, pickled once and broadcast to the executors. `planner` makes it from a circuit, `task`
runs one level on one shard, `fixpoint` the iterations of a recursion, `exchange` carries rows from level to level. A
*slot* names what flows between levels: a stream placed as its node leaves it, or a stream exchanged by some columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dbspark.circuit.nested import Fixpoint
from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema
from dbspark.operators.operator import Operator
from dbspark.runtime.placement import Key, Policy

Policies = Mapping[str, tuple[Policy, Policy]]
"""The policies of the sides of joins, by the joins' ids; others are sharded."""
TracePlacement = Literal["owner", "everywhere"] | Key
"""Where a trace lies: on one shard, on all of them, or by the hash of some of its columns."""


def slot_of(node: str, key: Key | None = None) -> str:
    """The name of a stream as it lies, or exchanged by some columns."""
    return node if key is None else f"{node} by {','.join(map(str, key))}"


@dataclass(frozen=True, slots=True)
class NodeStep:
    """A node in a level."""

    id: str
    label: str
    operator: Operator
    inputs: tuple[tuple[str, Schema | None], ...]
    """Slots with their schemas; without one, a node of this level that gives something that does not travel."""
    owns_state: bool
    """Whether this level keeps its state; others only read it."""
    on_owner_only: bool
    """Whether it runs on one shard only."""


@dataclass(frozen=True, slots=True)
class OutgoingSlot:
    """A slot that leaves a level."""

    slot: str
    node: str
    to: Literal["owners", "everyone", "same"]
    """Each row to the shard that it belongs to, all rows to all shards, or to the shard where they are."""


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """A slot that leaves a level for a question, and the one in which the answer comes to the next."""

    slot: str
    source: Schema
    result_slot: str
    schema: Schema
    function: Any
    """See `operators.asked`; it is put by the driver, and stays there."""

    def __reduce__(self) -> Any:
        return ExternalCall, (self.slot, self.source, self.result_slot, self.schema, None)


@dataclass(slots=True)
class Level:
    """What is done between two exchanges. Steps are run in order."""

    steps: list[Any] = field(default_factory=list)
    outgoing: list[OutgoingSlot] = field(default_factory=list)
    streams: dict[str, SortKey] = field(default_factory=dict)
    """The slots that come in or go out, and the order in which they travel."""
    external_calls: list[ExternalCall] = field(default_factory=list)
    """What is asked about what leaves it."""
    forwards_rest: bool = False
    """Whether what has come and nobody has taken goes on to the next level."""
    awaited_slots: list[str] = field(default_factory=list)
    """Slots of votes: if any have come, a fixpoint in front of this level is not over, and the level is not run yet."""
    resume_point: int = 0
    """Where another job goes on then: a number in `LevelPlan.resume_levels`."""


@dataclass(frozen=True, slots=True)
class FixpointPlan:
    """A fixpoint that is cut into levels."""

    id: str
    """Of its node."""
    fixpoint: Fixpoint
    levels: tuple[Level, ...]
    variable_feeds: tuple[tuple[str, str, Schema], ...]
    """The variables: their names, and the slots of what flows into them, in the last level."""

    @property
    def slot_prefix(self) -> str:
        """What the names of slots inside begin with."""
        return f"{self.id}/"

    @property
    def votes_slot(self) -> str:
        return f"{self.id} votes"

    @property
    def state_slot(self) -> str:
        return f"{self.id} carried"

    @property
    def finished_slot(self) -> str:
        """What is carried once it is known that no iteration follows."""
        return f"{self.id} over"


@dataclass(frozen=True, slots=True)
class OutputPlacement:
    """Where an output is: each of its rows on one shard, whichever way it came about."""

    level: int
    slot: str
    key: Key


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The levels of a circuit, and where its outputs are."""

    levels: tuple[Level, ...]
    outputs: Mapping[str, OutputPlacement]
    trace_placements: Mapping[str, tuple[TracePlacement, ...]]
    """The spines of every node that keeps state."""
    resume_levels: tuple[int, ...]
    """The levels at which jobs go on with fixpoints that are not over."""
