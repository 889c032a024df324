"""Buckets: a fixed number of parts of a stream, each of which is on one shard, however many shards there are.

A bucket is a range of the hashes of some columns, given by their first bits, and a shard is a range of buckets. So rows
that are placed by those columns are placed by bucket as well, and state for each bucket needs no exchange.

The number of a bucket is a number whose own hash lies in its range. So bucket numbers are a column like any other: rows
can be placed, arranged and sliced by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dbspark.columnar.delta import Delta
from dbspark.columnar.memory import Int64s
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import hash_rows
from dbspark.kernels.memory import layout as nd
from dbspark.operators.linear import Stateless
from dbspark.operators.placement import Placed, Policy

BITS = 10
"""Number of leading bits of a hash that are its bucket."""
_SHIFT = np.uint64(64 - BITS)


class Bucket(Stateless):
    """Appends a column with the number of the bucket that each row belongs to by some columns."""

    kind: ClassVar[str] = "bucket"
    version: ClassVar[int] = 1

    def __init__(self, source: Schema, key: Sequence[int]) -> None:
        name = "bucket"
        while name in source.names:
            name += "_"
        self.schema = Schema(pa.schema([*source.arrow, pa.field(name, pa.int64())]))
        self.key = tuple(key)
        self._nodes = np.array([nd.LANES + c for c in self.key], np.int64)

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        delta = inputs[0]
        if not delta.rows:
            return Delta.empty(self.schema)
        numbers = _numbers()[hash_rows(delta.chunk(), self._nodes) >> _SHIFT]
        return Delta(self.schema, [*delta.columns, pa.array(numbers)], delta.weights)

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        before = inputs[0]
        return before | {(self.schema.columns - 1,)} if self.key in before else before

    def parameters(self) -> tuple[Any, ...]:
        return self.key, BITS, self.schema

    def label(self) -> str:
        return f"bucket of ({', '.join(self.schema.names[c] for c in self.key)})"


@cache
def _numbers() -> Int64s:
    """The number of each bucket: the least one whose hash lies in it."""
    count = 16 << BITS
    schema = Schema(pa.schema([pa.field("number", pa.int64())]))
    chunk = Delta(schema, [pa.array(np.arange(count))], np.ones(count, np.int64)).chunk()
    found, first = np.unique(hash_rows(chunk, np.array([nd.LANES])) >> _SHIFT, return_index=True)
    assert len(found) == 1 << BITS
    numbers: Int64s = first.astype(np.int64)
    return numbers


__all__ = ["BITS", "Bucket"]
