"""Placement of streams on shards: the types in which operators state it.

A stream is *placed* by some columns if each row lies on the shard that owns the hash of those columns. A stream placed
by no columns is on one shard, because all rows have the same hash then. A stream may be placed by several keys at
once, as the output of a join is by the keys of either side.

An operator says by which columns it needs its inputs placed (`Operator.input_placements`), by which its output is then
placed (`Operator.output_placement`), and whether it emits rows for empty inputs (`Operator.emits_without_input`), so
that only one shard may run it. Which hashes a shard owns is decided in `dbspark.runtime.placement`.

A join may also have one side broadcast, whole on every shard, and the rows of the other wherever they lie (`Policy`),
so that a very frequent key does not put its work on one task. The result is the same if the join is linear in the side
that lies anywhere, since all partners of its rows are on their shard; `Join.broadcastable_sides` names such joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema

Key = tuple[int, ...]
"""Columns of a stream."""
Placed = frozenset[Key]
"""All keys that a stream is placed by; the empty set: its rows lie anywhere."""

Policy = Literal["shard", "broadcast", "balance"]
"""How a side of a join is placed: by its key, whole on every shard, or wherever its rows lie, but not by its key."""
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

    `columns`: {output column: input column} for the columns that it passes on unchanged.
    """
    where: dict[int, int] = {}
    for out, source in columns.items():
        where.setdefault(source, out)
    return frozenset(tuple(where[c] for c in key) for key in before if all(c in where for c in key))


__all__ = ["ANYWHERE", "SHARD", "TOGETHER", "Key", "Placed", "Policy", "after_projection", "key_of", "whole_row"]
