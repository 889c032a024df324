"""By which columns the rows of streams are placed on shards: the words in which operators say it.

Rows of a stream are *placed* by some columns when each lies on the shard that owns the hash of those columns. No
columns at all have one hash, so whatever is placed by them is on one shard. A stream may be placed by several keys at
once, as a join's output is by the keys of either side.

An operator says by which columns it needs its inputs placed (`Operator.input_placements`), by which its output is then
placed (`Operator.output_placement`), and whether it emits where nothing comes in (`Operator.emits_without_input`), so
that only one shard may run it. Which hashes a shard owns is another matter: `dbspark.runtime.placement`.

A join may also take one side whole on every shard, and the rows of the other wherever they lie (`Policy`). That is what
keeps a key that most rows have from pinning one task, and it is the same join: it is linear in the side that lies
anywhere, as long as that side has no rows whose partners may be on another shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema

Key = tuple[int, ...]
"""Columns of a stream."""
Placed = frozenset[Key]
"""The columns by whose hash the rows of a stream lie on their shards, each by itself; none: they lie anywhere."""

Policy = Literal["shard", "broadcast", "balance"]
"""How a side of a join is placed: by its key, whole on every shard, or as it comes, but not by its key."""
SHARD: Final[tuple[Policy, Policy]] = ("shard", "shard")

ANYWHERE: Final[Placed] = frozenset()
TOGETHER: Final[Placed] = frozenset({()})


def key_of(sort_key: SortKey) -> Key:
    """The columns that an arrangement is placed by."""
    return whole_row(sort_key.schema) if sort_key.key is None else sort_key.key


def whole_row(schema: Schema) -> Key:
    """All columns."""
    return tuple(range(schema.columns))


def after_projection(columns: Mapping[int, int], before: Placed) -> Placed:
    """The placement of a stream after an operator that looks at rows one by one.

    `columns`: those that it gives as it gets them, as {number going out: number coming in}.
    """
    where: dict[int, int] = {}
    for out, source in columns.items():
        where.setdefault(source, out)
    return frozenset(tuple(where[c] for c in key) for key in before if all(c in where for c in key))


__all__ = ["ANYWHERE", "SHARD", "TOGETHER", "Key", "Placed", "Policy", "after_projection", "key_of", "whole_row"]
