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
from typing import Any, ClassVar

from dbspark.columnar import Batch, SortKey
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
    def sort_key(self) -> SortKey:
        return self.after.sort_key

    @property
    def rows(self) -> int:
        """Rows of the change."""
        return self.delta.rows


class Operator(ABC):
    """A pure step from the spines it keeps and the deltas that have come to new ones; see the module's preface."""

    kind: ClassVar[str]
    """What it is, in one word that stays for ever (`dbspark.identity`): state finds its operator by it."""
    version: ClassVar[int]
    """Of the layout and the meaning of its state: raise it whenever either changes."""
    schema: Schema
    """Of what goes out."""

    @abstractmethod
    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Any]:
        """One tick: new state and output."""

    def kept(self) -> tuple[SortKey, ...]:
        """The arrangement of each spine of the state."""
        return ()

    def fresh(self) -> State:
        """The state before the first tick."""
        return tuple(Spine(sort_key) for sort_key in self.kept())

    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """What tells this operator from others of its kind, as `dbspark.identity` takes it."""

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
    """The integral of a stream, kept by key and in order inside a key. State: the integral. Cost: the delta."""

    kind: ClassVar[str] = "arrange"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey) -> None:
        self.sort_key = sort_key
        self.schema = sort_key.schema

    def kept(self) -> tuple[SortKey, ...]:
        return (self.sort_key,)

    def step(self, state: State, inputs: Sequence[Delta]) -> tuple[State, Arranged]:
        delta = inputs[0].sorted_by(self.sort_key)
        after = state[0].insert(delta)
        return (after,), Arranged(delta, state[0], after)

    def parameters(self) -> tuple[Any, ...]:
        return (self.sort_key,)

    def label(self) -> str:
        names = self.schema.names
        key = names if self.sort_key.key is None else [names[c] for c in self.sort_key.key]
        order = [names[c] + (" desc" if d else "") for c, d, _ in self.sort_key.order]
        return f"arrange by ({', '.join(key)})" + (f" ordered by {', '.join(order)}" if order else "")
