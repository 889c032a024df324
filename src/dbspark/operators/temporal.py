"""Values and changes: `Integrate` turns deltas into values, `Differentiate` values into deltas, `OnValues` lifts.

An integral is exposed as a `ZSetRef`: a reference to a spine that is a value, so passing it on, delaying it or
keeping it costs nothing. (The third of them, the delay, belongs to the executor.)

`Product` and `OnValues` are operators on whole values. They are what a query *means*; `incrementalize` turns them into
operators on deltas, and tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dbspark.columnar import Arrangement, Batch
from dbspark.columnar.delta import Delta
from dbspark.operators.integral import ZSetRef
from dbspark.operators.join import Join
from dbspark.operators.operator import Arranged, Operator, State
from dbspark.trace.spine import Spine
from dbspark.zset.payload import scaled


class Integrate(Operator):
    """The sum of all deltas so far, kept by an arrangement."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        self.schema = arrangement.schema

    def kept(self) -> tuple[Arrangement, ...]:
        return (self.arrangement,)

    def step(self, state: State, inputs: Sequence[Delta]) -> tuple[State, ZSetRef]:
        after = state[0].insert(inputs[0].arranged(self.arrangement))
        return (after,), ZSetRef(after)

    def parameters(self) -> tuple[Any, ...]:
        return self.arrangement.key, self.arrangement.order

    def label(self) -> str:
        return "integrate"


class Differentiate(Operator):
    """What a value has changed by since the last tick. State: the last value. Cost: the whole value."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.arrangement = arrangement
        self.schema = arrangement.schema

    def kept(self) -> tuple[Arrangement, ...]:
        return (self.arrangement,)

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Delta]:
        value = as_batch(inputs[0], self.arrangement)
        before = state[0].consolidated()
        if value is before:
            return state, Delta.empty(self.schema)
        change = [b for b in (value, scaled(before, -1) if before.rows else before) if b.rows]
        after = Spine(self.arrangement, (value,) if value.rows else ())
        return (after,), Delta.of(Spine(self.arrangement, tuple(change)).consolidated())

    def parameters(self) -> tuple[Any, ...]:
        return ()

    def label(self) -> str:
        return "differentiate"


class Product(Operator):
    """An inner join of two values (or of a delta and a value: it is bilinear). No state."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.schema = join.schema

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Delta]:
        spines = [as_spine(given, a) for given, a in zip(inputs, self.join.sides, strict=True)]
        side = 0 if spines[0].rows <= spines[1].rows else 1
        delta = spines[side].consolidated()
        return (), Delta.sum(self.schema, self.join.products(side, delta, spines[1 - side]))

    def parameters(self) -> tuple[Any, ...]:
        return self.join.parameters()

    def label(self) -> str:
        return self.join.label()


class OnValues(Operator):
    """An operator applied to whole values, from nothing, in every tick: the meaning of its incremental form."""

    def __init__(self, operator: Operator, arrangements: Sequence[Arrangement | None]) -> None:
        """`arrangements`: for each input how the operator wants it arranged, None where it takes it as it is."""
        self.operator = operator
        self.arrangements = tuple(arrangements)
        self.schema = operator.schema

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Delta]:
        given: list[Any] = []
        for value, arrangement in zip(inputs, self.arrangements, strict=True):
            if arrangement is None:
                given.append(value.delta() if isinstance(value, ZSetRef) else value)
            else:
                spine = as_spine(value, arrangement)
                given.append(Arranged(spine.consolidated(), Spine(arrangement), spine))
        _, out = self.operator.step(self.operator.fresh(), given)
        return (), out

    def parameters(self) -> tuple[Any, ...]:
        return type(self.operator).__name__, self.operator.parameters()

    def label(self) -> str:
        return self.operator.label()


def as_batch(value: Any, arrangement: Arrangement) -> Batch:
    """What a stream carries, as one batch of an arrangement."""
    if isinstance(value, ZSetRef):
        return value.spine.consolidated().rearranged(arrangement)
    batch: Batch = value.arranged(arrangement)
    return batch


def as_spine(value: Any, arrangement: Arrangement) -> Spine:
    """What a stream carries, as a spine of an arrangement."""
    if isinstance(value, ZSetRef) and value.spine.arrangement is arrangement:
        return value.spine
    batch = as_batch(value, arrangement)
    return Spine(arrangement, (batch,) if batch.rows else ())
