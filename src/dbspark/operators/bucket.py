"""Buckets: a stream in a fixed number of parts, each of which is on one shard, however many shards there are.

A bucket is a range of the hashes of some columns, and a shard is a range of buckets: the first bits of a hash are its
bucket. So rows that lie by those columns lie by bucket as well, and what is kept for each bucket needs no row to move.

What stands for a bucket in a row is a number whose own hash is in that range. So bucket numbers are columns like any
others: rows are placed by them, arranged and sliced by them.
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
"""Of a hash, those that say its bucket."""
_SHIFT = np.uint64(64 - BITS)


class Bucket(Stateless):
    """A column with the number of the bucket of some columns of each row, after the columns of the input."""

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
    """For every bucket the least number whose hash is in it."""
    count = 16 << BITS
    schema = Schema(pa.schema([pa.field("number", pa.int64())]))
    chunk = Delta(schema, [pa.array(np.arange(count))], np.ones(count, np.int64)).chunk()
    found, first = np.unique(hash_rows(chunk, np.array([nd.LANES])) >> _SHIFT, return_index=True)
    assert len(found) == 1 << BITS
    numbers: Int64s = first.astype(np.int64)
    return numbers


__all__ = ["BITS", "Bucket"]
