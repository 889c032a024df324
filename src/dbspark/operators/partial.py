"""Partial aggregation: a global aggregate in two steps, one on every shard and one that combines their results.

`PartialAggregate` is stateless: it turns the rows of a delta into one row of state, as if the state were empty.
`CombinedAggregate` is the aggregate over such rows instead of the input: same state, same results. So each shard sends
one row to the shard with the state, and the state is the same with and without partial aggregation.

Accumulators are added column by column as integers: counts, decimals, and the exact sums of floats
(`kernels.aggregate.exact_sums`). Nothing is rounded on the way, so results equal those of one step to the last bit. An
aggregate whose accumulators cannot be added like this (not `Aggregate.additive`) is computed in one step; min and max
read an arrangement in the second step and need no result of the first.

Cost: the delta in the first step; in the second, one Python integer for each incoming row and column of state.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import pyarrow as pa

from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import INT64_MAX, Int64s, int64s
from dbspark.errors import DbsparkError, WeightOverflowError
from dbspark.operators.aggregate import Aggregate, Extreme, GroupAggregate, Touched
from dbspark.operators.linear import Stateless
from dbspark.operators.operator import Operator

_WORD = 32
"""Bits of a limb of an exact sum."""


def can_aggregate_partially(operator: Operator | None) -> bool:
    """Whether an operator is a global aggregate that can be computed in two steps."""
    if not isinstance(operator, GroupAggregate) or operator.key or isinstance(operator, CombinedAggregate):
        return False
    return all(a.additive or isinstance(a, Extreme) for a in operator.aggregates)


class PartialAggregate(Stateless):
    """The first step of a global aggregate: one row of state for the rows of a delta."""

    kind: ClassVar[str] = "partial-aggregate"
    version: ClassVar[int] = 1

    def __init__(self, whole: GroupAggregate) -> None:
        self.schema = whole.accumulators.schema
        parts = [a if a.additive else _DeferredAggregate(a) for a in whole.aggregates]
        self._first = GroupAggregate(whole.source, whole.key, parts, whole.schema.names)

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        if not inputs[0].rows:
            return Delta.empty(self.schema)
        _, _, rows = self._first._accumulated(self._first.initial_state(), inputs[0], ())
        return rows

    def parameters(self) -> tuple[Any, ...]:
        return (self._first,)

    def label(self) -> str:
        return f"partial {self._first.label()}"


class CombinedAggregate(GroupAggregate):
    """The second step of a global aggregate: the aggregate over rows of `PartialAggregate`."""

    kind: ClassVar[str] = "combine-partial-aggregates"
    version: ClassVar[int] = 1

    def __init__(self, whole: GroupAggregate) -> None:
        parts = [
            _AddedAccumulators(a, begin) if a.additive else a
            for a, (begin, _) in zip(whole.aggregates, whole.spans, strict=True)
        ]
        super().__init__(whole.accumulators.schema, (), parts, whole.schema.names)

    def _counts(self, touched: Touched) -> Int64s:
        totals = _added(touched, 0, touched.delta.columns[0])
        if any(abs(total) > INT64_MAX for total in totals):
            raise WeightOverflowError("the weights of a group add up to more than int64 holds; nothing was applied")
        out = int64s(len(totals))
        out[:] = totals
        return out


class _DeferredAggregate(Aggregate):
    """In the first step, an aggregate that only the second step computes (min, max)."""

    kind: ClassVar[str] = "deferred-aggregate"
    version: ClassVar[int] = 1

    def __init__(self, whole: Aggregate) -> None:
        self.name, self.out, self._whole = whole.name, whole.out, whole

    def fields(self) -> list[pa.DataType]:
        return self._whole.fields()

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        return [pa.nulls(touched.groups, t) for t in self.fields()]

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        return self._whole.result(columns)

    def argument(self) -> int | None:
        return self._whole.argument()

    def parameters(self) -> tuple[Any, ...]:
        return (self._whole,)


class _AddedAccumulators(Aggregate):
    """In the second step, an aggregate whose accumulators are added; those of the input begin at column `begin`."""

    kind: ClassVar[str] = "added-accumulators"
    version: ClassVar[int] = 1

    def __init__(self, whole: Aggregate, begin: int) -> None:
        self.name, self.out, self.column = whole.name, whole.out, begin
        self._whole = whole

    def fields(self) -> list[pa.DataType]:
        return self._whole.fields()

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        columns = touched.delta.columns[self.column :]
        return [_column(_added(touched, at + i, columns[i]), dtype) for i, dtype in enumerate(self._whole.fields())]

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        return self._whole.result(columns)

    def parameters(self) -> tuple[Any, ...]:
        return self._whole, self.column


def _added(touched: Touched, at: int, column: pa.Array) -> list[int]:
    """A column of state after a tick: the values before plus the sum of a column of the input."""
    old = _numbers(touched.old[at])
    totals = [old[row] if row >= 0 else 0 for row in touched.old_row.tolist()]
    weights = touched.delta.weights.tolist()
    for group, weight, number in zip(touched.ids.tolist(), weights, _numbers(column), strict=True):
        totals[group] += weight * number
    return totals


def _numbers(column: pa.Array) -> list[int]:
    """Accumulators as Python integers."""
    if pa.types.is_decimal(column.type):
        data = memoryview(column.buffers()[1])[16 * column.offset :] if len(column) else memoryview(b"")
        return [int.from_bytes(data[i : i + 16], "little", signed=True) for i in range(0, 16 * len(column), 16)]
    if pa.types.is_binary(column.type):
        return [_read(stored) for stored in column.to_pylist()]
    out: list[int] = column.to_pylist()
    return out


def _column(numbers: Sequence[int], dtype: pa.DataType) -> pa.Array:
    """Python integers as accumulators."""
    if pa.types.is_decimal(dtype):
        if any(abs(n) >= 10**38 for n in numbers):
            raise DbsparkError("a sum is beyond 38 digits, which no decimal holds; nothing was applied")
        data = b"".join(n.to_bytes(16, "little", signed=True) for n in numbers)
        return pa.Array.from_buffers(dtype, len(numbers), [None, pa.py_buffer(data)])
    if pa.types.is_binary(dtype):
        stored = [_stored(n) for n in numbers]
        offsets = struct.pack(f"<{len(stored) + 1}i", 0, *accumulate(map(len, stored)))
        return pa.Array.from_buffers(dtype, len(stored), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(stored))])
    return pa.array(numbers, dtype)


def _read(stored: bytes) -> int:
    """Decode an exact sum to an integer, in units of the least limb."""
    if not stored:
        return 0
    return int.from_bytes(stored[4:], "little", signed=True) << _WORD * int.from_bytes(stored[:4], "little")


def _stored(number: int) -> bytes:
    """Encode an exact sum as `kernels.aggregate.exact_sums` stores it: in as few limbs as possible, beginning with the
    lowest one that is not zero."""
    if not number:
        return b""
    first = ((number & -number).bit_length() - 1) // _WORD
    number >>= _WORD * first
    limbs = (number if number >= 0 else ~number).bit_length() // _WORD + 1
    return first.to_bytes(4, "little") + number.to_bytes(4 * limbs, "little", signed=True)


__all__ = ["CombinedAggregate", "PartialAggregate", "can_aggregate_partially"]
