"""Whole values and deltas: `Integrate` turns deltas into values, `Differentiate` values into deltas.

An integral is passed on as a `ZSetRef`, a reference to an immutable spine, so passing, delaying or keeping it costs
nothing. (The third operator of DBSP on streams, the delay, is part of the executor.)

`Product` and `OnValues` are operators on whole values. They define what a query *means*; tests derive the operators on
deltas from them (`tests/reference/differentiate.py`) and compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import Delta
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.integral import ZSetRef
from dbspark.operators.join import Join
from dbspark.operators.operator import Operator
from dbspark.trace.spine import Spine
from dbspark.zset.weights import scale_batch


class Integrate(Operator):
    """The sum of all deltas so far, kept by an arrangement."""

    kind: ClassVar[str] = "integrate"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey) -> None:
        self.sort_key = sort_key
        self.schema = sort_key.schema

    def state_sort_keys(self) -> tuple[SortKey, ...]:
        return (self.sort_key,)

    def step(self, state: State, inputs: Sequence[Delta]) -> tuple[State, ZSetRef]:
        after = state[0].insert(inputs[0].sorted_by(self.sort_key))
        return (after,), ZSetRef(after)

    def parameters(self) -> tuple[Any, ...]:
        return (self.sort_key,)

    def label(self) -> str:
        return "integrate"


class Differentiate(Operator):
    """The change of a value since the last tick. State: the last value. Cost: the whole value."""

    kind: ClassVar[str] = "differentiate"
    version: ClassVar[int] = 1

    def __init__(self, sort_key: SortKey) -> None:
        self.sort_key = sort_key
        self.schema = sort_key.schema

    def state_sort_keys(self) -> tuple[SortKey, ...]:
        return (self.sort_key,)

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Delta]:
        value = as_batch(inputs[0], self.sort_key)
        before = state[0].consolidated()
        if value is before:
            return state, Delta.empty(self.schema)
        change = [b for b in (value, scale_batch(before, -1) if before.rows else before) if b.rows]
        after = Spine(self.sort_key, (value,) if value.rows else ())
        return (after,), Delta.of(Spine(self.sort_key, tuple(change)).consolidated())

    def parameters(self) -> tuple[Any, ...]:
        return (self.sort_key,)

    def label(self) -> str:
        return "differentiate"


class Product(Operator):
    """An inner join of two values (or of a delta and a value: it is bilinear). No state."""

    kind: ClassVar[str] = "product"
    version: ClassVar[int] = 1

    def __init__(self, join: Join) -> None:
        self.join = join
        self.schema = join.schema

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Delta]:
        spines = [as_spine(operator_inputs, a) for operator_inputs, a in zip(inputs, self.join.sides, strict=True)]
        side = 0 if spines[0].rows <= spines[1].rows else 1
        delta = spines[side].consolidated()
        return (), Delta.sum(self.schema, self.join.products(side, delta, spines[1 - side]))

    def parameters(self) -> tuple[Any, ...]:
        return self.join, *self.join.sides

    def label(self) -> str:
        return self.join.label()


class OnValues(Operator):
    """Applies an operator to the whole values of its inputs, with empty state, in every tick: what it should
    compute."""

    kind: ClassVar[str] = "on-values"
    version: ClassVar[int] = 1

    def __init__(self, operator: Operator, sort_keys: Sequence[SortKey | None]) -> None:
        """`sort_keys`: for each input the sort key by which the operator takes it arranged; None: it takes a delta."""
        self.operator = operator
        self.sort_keys = tuple(sort_keys)
        self.schema = operator.schema

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Delta]:
        operator_inputs: list[Any] = []
        for value, sort_key in zip(inputs, self.sort_keys, strict=True):
            if sort_key is None:
                operator_inputs.append(value.delta() if isinstance(value, ZSetRef) else value)
            else:
                spine = as_spine(value, sort_key)
                operator_inputs.append(Arranged(spine.consolidated(), Spine(sort_key), spine))
        _, out = self.operator.step(self.operator.initial_state(), operator_inputs)
        return (), out

    def parameters(self) -> tuple[Any, ...]:
        return self.operator, self.sort_keys

    def label(self) -> str:
        return self.operator.label()


def as_batch(value: Any, sort_key: SortKey) -> Batch:
    """A value or delta on a stream, as one batch of an arrangement."""
    if isinstance(value, ZSetRef):
        return value.spine.consolidated().sorted_by(sort_key)
    batch: Batch = value.sorted_by(sort_key)
    return batch


def as_spine(value: Any, sort_key: SortKey) -> Spine:
    """A value or delta on a stream, as a spine of an arrangement."""
    if isinstance(value, ZSetRef) and value.spine.sort_key is sort_key:
        return value.spine
    batch = as_batch(value, sort_key)
    return Spine(sort_key, (batch,) if batch.rows else ())
