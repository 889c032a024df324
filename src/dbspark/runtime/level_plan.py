"""The plan of a tick on shards: levels, what they do, and what flows between them.

Plain data without behaviour, pickled once and broadcast to the executors. `planner` makes it from a circuit, `task`
runs one level on one shard, `fixpoint` one iteration of a recursion, and a `transport` carries rows between levels. A
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
from dbspark.operators.placement import Key, Policy

Policies = Mapping[str, tuple[Policy, Policy]]
"""The policies of the two sides of each join, by the id of the join; a join that is missing is partitioned by key."""
TracePlacement = Literal["owner", "everywhere"] | Key
"""Where the rows of a trace are: on the owner shard, on all shards, or partitioned by the hash of some columns."""


def slot_of(node: str, key: Key | None = None) -> str:
    """The slot of a stream as its node leaves it, or exchanged by the columns `key`."""
    return node if key is None else f"{node} by {','.join(map(str, key))}"


@dataclass(frozen=True, slots=True)
class NodeStep:
    """A node of the circuit as a step of a level."""

    id: str
    label: str
    operator: Operator
    inputs: tuple[tuple[str, Schema | None], ...]
    """Slots with their schemas; None for the output of a node of this level that is not a stream of rows."""
    owns_state: bool
    """Whether this level updates the state of the node; other levels with the same node only read it."""
    on_owner_only: bool
    """Whether the node runs on the owner shard only."""


@dataclass(frozen=True, slots=True)
class OutgoingSlot:
    """A slot that a level sends to the next one."""

    slot: str
    node: str
    to: Literal["owners", "everyone", "same"]
    """`owners`: each row to the shard of its hash; `everyone`: broadcast; `same`: to the same shard."""


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """A function that Spark evaluates between two levels on the rows of a slot, and the slot of its result."""

    slot: str
    source: Schema
    result_slot: str
    schema: Schema
    function: Any
    """Used by the driver, which builds Spark's plan from it; it is not pickled with the plan."""

    def __reduce__(self) -> Any:
        return ExternalCall, (self.slot, self.source, self.result_slot, self.schema, None)


@dataclass(slots=True)
class Level:
    """The work between two exchanges: steps, run in order."""

    steps: list[Any] = field(default_factory=list)
    outgoing: list[OutgoingSlot] = field(default_factory=list)
    streams: dict[str, SortKey] = field(default_factory=dict)
    """The sort key of the batches of each slot that is received or sent."""
    external_calls: list[ExternalCall] = field(default_factory=list)
    """External functions on slots that it sends."""
    forwards_rest: bool = False
    """Whether received slots that no step has read are sent to the next level."""
    fixpoints: list[FixpointPlan] = field(default_factory=list)
    """Fixpoints in front of this level: they are iterated before it is run."""
    awaited_slots: list[str] = field(default_factory=list)
    """In unrolled levels: slots of votes. If one of them has rows, a fixpoint goes on, and the level waits for it."""
    resume_point: int = 0
    """Where the next Spark job resumes then: an index of `UnrolledLevels.resume_levels`."""


@dataclass(frozen=True, slots=True)
class FixpointPlan:
    """A fixpoint whose graph is cut into levels; all of them together are one iteration."""

    id: str
    """The id of its node."""
    fixpoint: Fixpoint
    levels: tuple[Level, ...]
    variable_feeds: tuple[tuple[str, str, Schema], ...]
    """The name of each variable, and the slot and schema of its next value in the last level."""

    @property
    def slot_prefix(self) -> str:
        """Prefix of the slots between levels of the fixpoint."""
        return f"{self.id}/"

    @property
    def votes_slot(self) -> str:
        """The slot in which shards vote for the next iteration."""
        return f"{self.id} votes"

    @property
    def state_slot(self) -> str:
        """The slot of the fixpoint's state of the present tick, from stage to stage of one shard."""
        return f"{self.id} state"

    @property
    def finished_slot(self) -> str:
        """The slot of the same state once the fixpoint has ended."""
        return f"{self.id} finished"


@dataclass(frozen=True, slots=True)
class OutputPlacement:
    """Where an output of the circuit is available; equal rows are on the same shard."""

    level: int
    slot: str
    key: Key


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The levels of a circuit, the placement of its outputs and of its state."""

    levels: tuple[Level, ...]
    outputs: Mapping[str, OutputPlacement]
    trace_placements: Mapping[str, tuple[TracePlacement, ...]]
    """By node, the placement of each of its spines."""
