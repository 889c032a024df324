"""The contract of operators.

An operator is a pure step: from the spines it keeps and the deltas that have come it computes new spines and what
goes out, and changes nothing. Spines are values, so the executor can run a whole tick and only then decide that it has
happened; a step that raises leaves no trace of the tick. All state is in the spines: an operator object holds
nothing but its parameters.

`Arranged` is what an arrange operator gives: the delta in order, and the integral before and after it. Operators that
need an integral take it from there, so consumers of the same keys share one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dbspark.columnar import Arrangement, Batch
from dbspark.columnar.delta import Delta
from dbspark.columnar.schema import Schema
from dbspark.trace.spine import Spine

State = tuple[Spine, ...]


@dataclass(frozen=True, slots=True)
class Arranged:
    """A change in the order of an arrangement, and what it changes."""

    delta: Batch
    before: Spine
    after: Spine

    @property
    def arrangement(self) -> Arrangement:
        return self.after.arrangement

    @property
    def rows(self) -> int:
        """Rows of the change."""
        return self.delta.rows


class Operator(ABC):
    """See the module's preface."""

    schema: Schema
    """Of what goes out."""

    @abstractmethod
    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Any]:
        """One tick: new state and output."""

    def kept(self) -> tuple[Arrangement, ...]:
        """The arrangement of each spine of the state."""
        return ()

    def fresh(self) -> State:
        """The state before the first tick."""
        return tuple(Spine(arrangement) for arrangement in self.kept())

    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """What tells this operator from others of its class; equal parameters mean an equal operator."""

    def label(self) -> str:
        """One line for people."""
        return type(self).__name__

    incremental = True
    """False for operators that take values rather than deltas."""

    @property
    def quiet(self) -> bool:
        """Whether nothing goes out and nothing is kept anew where nothing comes in: then there is no need to step."""
        return False


class Arrange(Operator):
    """The integral of a stream, kept by key (and in order inside a key). State: the integral. Cost: the delta."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        self.schema = arrangement.schema

    def kept(self) -> tuple[Arrangement, ...]:
        return (self.arrangement,)

    def step(self, state: State, inputs: Sequence[Delta]) -> tuple[State, Arranged]:
        delta = inputs[0].arranged(self.arrangement)
        after = state[0].insert(delta)
        return (after,), Arranged(delta, state[0], after)

    def parameters(self) -> tuple[Any, ...]:
        return self.arrangement.key, self.arrangement.order

    def label(self) -> str:
        names = self.schema.names
        key = names if self.arrangement.key is None else [names[c] for c in self.arrangement.key]
        order = [names[c] + (" desc" if d else "") for c, d, _ in self.arrangement.order]
        return f"arrange by ({', '.join(key)})" + (f" ordered by {', '.join(order)}" if order else "")
