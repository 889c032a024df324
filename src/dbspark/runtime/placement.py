"""Which shard a row is on: a shard is a range of key hashes, made of whole buckets (`operators.bucket`).

Batches are ordered by the hash of their key, so the rows of a shard follow each other in a batch: to split one is to
slice it, and to open the state of N shards with M is to slice it elsewhere. By which columns rows lie on their shards
is what operators say: `dbspark.operators.placement`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.memory import UInt64s
from dbspark.columnar.schema import Schema
from dbspark.kernels.memory import layout as nd
from dbspark.operators.bucket import BITS

RANGES = 1 << BITS
"""The number of buckets. A shard is a run of them, so with more shards their sizes can be less equal."""


def first_hash(shard: int, shards: int) -> int:
    """The smallest hash of a shard."""
    return -((-shard << BITS) // shards) << (64 - BITS)


def shard_of(hashes: UInt64s, shards: int) -> UInt64s:
    """The shard that owns each hash."""
    return ((hashes >> np.uint64(64 - BITS)) * np.uint64(shards)) >> np.uint64(BITS)


def owner(shards: int) -> int:
    """The owner shard: it has all rows of what is placed by no columns."""
    one = Batch.from_arrow(pa.table({"a": [1]}), SortKey(Schema(pa.schema([pa.field("a", pa.int64())])), ()))
    return int(shard_of(one.chunks[0].lane(nd.KEY), shards)[0])


def split(batch: Batch, shards: int) -> list[tuple[int, Batch]]:
    """The rows of a batch by shard, as slices of it; shards without rows are left out."""
    bounds = np.array([first_hash(s, shards) for s in range(1, shards)], np.uint64)
    cuts = np.zeros(shards + 1, np.int64)
    for chunk in batch.chunks:
        cuts[1:-1] += np.searchsorted(chunk.lane(nd.KEY), bounds)
    cuts[-1] = batch.rows
    rows = np.diff(cuts)
    return [(int(s), batch.slice(int(cuts[s]), int(rows[s]))) for s in np.flatnonzero(rows)]


__all__ = ["RANGES", "first_hash", "owner", "shard_of", "split"]
