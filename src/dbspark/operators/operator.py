"""The contract of operators.

An operator is a pure step, `(state, inputs) -> (state, output)`. State is spines, and spines are values, so the
executor can run a whole tick and only then commit it; a step that raises leaves nothing of the tick behind. An operator
object holds nothing but its parameters.

The output of an arrange operator is `Arranged`: the delta in order, and the integral before and after it. Operators
that need an integral take it from there, so consumers of the same keys share one.

A new operator is one file: besides its step it says here how it runs in the operator VM (`instruction`), where its rows
lie on shards (`input_placements`, `output_placement`, `emits_without_input`), and what replaces it inside a fixpoint
(`nested_traces`, `nested`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from dbspark.columnar import SortKey
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.errors import CircuitError
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.instruction import Instruction, InstructionSite, sort_line
from dbspark.operators.nested import Nested, NestedSite
from dbspark.operators.placement import ANYWHERE, Key, Placed, Policy, key_of, whole_row
from dbspark.trace.spine import Spine


class Operator(ABC):
    """A pure step from state and inputs to new state and an output."""

    kind: ClassVar[str]
    """A name that must never change: it is part of the identity by which state finds its operator
    (`dbspark.identity`)."""
    version: ClassVar[int]
    """Version of the layout and the meaning of its state: increase it whenever either changes."""
    schema: Schema
    """Schema of the output."""

    @abstractmethod
    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Any]:
        """Run one tick; returns the new state and the output."""

    def state_sort_keys(self) -> tuple[SortKey, ...]:
        """The sort key of each spine of the state."""
        return ()

    def initial_state(self) -> State:
        """The state before the first tick."""
        return tuple(Spine(sort_key) for sort_key in self.state_sort_keys())

    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """The parameters that, with kind and version, are its identity (`dbspark.identity`)."""

    def label(self) -> str:
        """One line for display."""
        return type(self).__name__

    incremental = True
    """False for operators that take values rather than deltas."""

    @property
    def skips_empty_input(self) -> bool:
        """Whether its step may be skipped if all inputs are empty: its output is empty then and its state stays the
        same."""
        return False

    # How it runs in the operator VM, on shards, and inside a fixpoint.

    def instruction(self, site: InstructionSite) -> Instruction | None:
        """Its code for the operator VM; None if the VM has to call `step`."""
        return None

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        """By which columns it needs each of its inputs placed; None: it takes an input in any placement.

        `policy` is that of an arrange operator; it is never "broadcast" here.
        """
        raise CircuitError(
            f"{self.label()!r} works on whole values, which are not sharded; build the circuit from streams of changes "
            "(`Builder.source`), or run it embedded"
        )

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        """By which columns its output is placed, given inputs that are placed as it needs them.

        `policies`: that of an arrange operator, or those of the sides of a join.
        """
        return ANYWHERE

    @property
    def emits_without_input(self) -> bool:
        """Whether it emits rows for empty inputs, so that only one shard may run it."""
        return False

    def nested_traces(self) -> dict[str, SortKey]:
        """The sort keys of the traces that it keeps inside a fixpoint, by name; raises if it is not allowed there."""
        raise CircuitError(f"{self.label()!r} cannot stand inside a fixpoint; compute it outside and import it")

    def nested(self, site: NestedSite) -> Nested:
        """Its form inside a fixpoint, for one tick. Every operator that a fixpoint accepts has one."""
        raise CircuitError(f"{self.label()!r} cannot stand inside a fixpoint")


class Arrange(Operator):
    """Keeps the integral of a stream, sorted by key and by an order inside a key. State: the integral. Cost: the
    delta."""

    kind: ClassVar[str] = "arrange"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey) -> None:
        self.sort_key = sort_key
        self.schema = sort_key.schema

    def state_sort_keys(self) -> tuple[SortKey, ...]:
        return (self.sort_key,)

    def step(self, state: State, inputs: Sequence[Delta]) -> tuple[State, Arranged]:
        delta = inputs[0].sorted_by(self.sort_key)
        after = state[0].insert(delta)
        return (after,), Arranged(delta, state[0], after)

    def instruction(self, site: InstructionSite) -> Instruction:
        source, out = site.input(), site.register()
        site.state()

        def lines(retained: int) -> list[int]:
            return sort_line(self.sort_key, source, out, 1, site.mask)

        return Instruction(lines, out, inserts=out)

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        key = key_of(self.sort_key)
        if policy == "balance":
            return [None if inputs[0] - {key, ()} else whole_row(self.schema)]
        return [key]

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        key = key_of(self.sort_key)
        if policies[0] == "balance":
            return inputs[0] - {key, ()} or frozenset({whole_row(self.schema)})
        return frozenset({key})

    def nested_traces(self) -> dict[str, SortKey]:
        return {"": self.sort_key}

    def nested(self, site: NestedSite) -> Nested:
        return site.trace("")

    def parameters(self) -> tuple[Any, ...]:
        return (self.sort_key,)

    def label(self) -> str:
        names = self.schema.names
        key = names if self.sort_key.key is None else [names[c] for c in self.sort_key.key]
        order = [names[c] + (" desc" if d else "") for c, d, _ in self.sort_key.order]
        return f"arrange by ({', '.join(key)})" + (f" ordered by {', '.join(order)}" if order else "")
