"""Which shard a row is on: a shard is a range of key hashes, made of whole buckets (`operators.bucket`).

Rows of a stream are *placed* by some columns when each lies on the shard that owns the hash of those columns. Batches
are ordered by the hash of their key, so the rows of a shard follow each other in a batch: to split one is to slice it,
and to open the state of N shards with M is to slice it elsewhere. No columns at all have one hash, so whatever is
placed by them is on one shard.

An operator says by which columns it wants its inputs placed (`wanted`) and by which its output is (`placed`); a stream
may be placed by several at once, as a join's output is by the keys of either side.

A join may also take one side whole on every shard, and the rows of the other wherever they lie (`Policy`). That is what
keeps a key that most rows have from pinning one task, and it is the same join: it is linear in the side that lies
anywhere, as long as that side has no rows that wait for a partner on another shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from dbspark.circuit.graph import Node
from dbspark.circuit.nested import Fixpoint, Result
from dbspark.circuit.optimise import Fused
from dbspark.columnar import Batch, SortKey
from dbspark.columnar.memory import UInt64s
from dbspark.columnar.schema import Schema
from dbspark.errors import CircuitError
from dbspark.kernels.memory import layout as nd
from dbspark.operators.aggregate import GroupAggregate
from dbspark.operators.bucket import BITS, Bucket
from dbspark.operators.constant import Constant
from dbspark.operators.distinct import Combine, Distinct
from dbspark.operators.join import Join
from dbspark.operators.linear import Consolidate, Exchange, Filter, FlatMap, Map, Project, Scale, Select, Stateless, Sum
from dbspark.operators.operator import Arrange, Operator
from dbspark.operators.ordered import TopK
from dbspark.operators.recompute import RecomputeGroups
from dbspark.operators.window import Window

Key = tuple[int, ...]
"""Columns of a stream."""
Placed = frozenset[Key]
"""The columns by whose hash the rows of a stream lie on their shards, each by itself; none: they lie anywhere."""

Policy = Literal["shard", "broadcast", "balance"]
"""How a side of a join is placed: by its key, whole on every shard, or as it comes, but not by its key."""
SHARD: tuple[Policy, Policy] = ("shard", "shard")

ANYWHERE: Placed = frozenset()
TOGETHER: Placed = frozenset({()})
RANGES = 1 << BITS
"""A shard is some of these; the more shards there are, the less even they can be."""


def first_hash(shard: int, shards: int) -> int:
    """The smallest hash of a shard."""
    return -((-shard << BITS) // shards) << (64 - BITS)


def shard_of(hashes: UInt64s, shards: int) -> UInt64s:
    """The shard that owns each hash."""
    return ((hashes >> np.uint64(64 - BITS)) * np.uint64(shards)) >> np.uint64(BITS)


def owner(shards: int) -> int:
    """The shard of what is placed by no columns."""
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


def key_of(sort_key: SortKey) -> Key:
    """The columns that an arrangement is placed by."""
    return tuple(range(sort_key.schema.columns)) if sort_key.key is None else sort_key.key


def broadcastable(join: Join) -> tuple[int, ...]:
    """The sides of a join that may be whole on every shard."""
    return {"inner": (0, 1), "right": (0,), "full": ()}.get(join.how, (1,))


def wanted(node: Node, inputs: Sequence[Placed], policy: Policy = "shard") -> list[Key | None]:
    """By which columns a node wants each of its inputs placed; None: it takes them as they lie.

    `policy` is that of an arrange node; one that is broadcast is not asked.
    """
    operator = node.operator
    if isinstance(operator, Arrange):
        key = key_of(operator.sort_key)
        if policy == "balance":
            return [None if inputs[0] - {key, ()} else tuple(range(operator.schema.columns))]
        return [key]
    if isinstance(operator, GroupAggregate):
        return [operator.key, *(None for _ in node.inputs[1:])]
    if isinstance(operator, Exchange):
        return [operator.key]
    if isinstance(operator, Fixpoint):
        return [()] * len(node.inputs)
    if isinstance(operator, Join | Distinct | Combine | TopK | Window | RecomputeGroups | Constant | Stateless):
        return [None] * len(node.inputs)
    raise CircuitError(
        f"{node.label!r} works on whole values, which are not sharded; make the circuit incremental first "
        "(`incrementalize`, `optimise`), or run it embedded"
    )


def placed(node: Node, inputs: Sequence[Placed], policies: tuple[Policy, ...] = SHARD) -> Placed:
    """By which columns the output of a node is placed, where its inputs are placed as it wants them.

    `policies`: that of an arrange node, or those of the sides of a join.
    """
    operator = node.operator
    if isinstance(operator, Arrange):
        key = key_of(operator.sort_key)
        if policies[0] == "balance":
            return inputs[0] - {key, ()} or frozenset({tuple(range(operator.schema.columns))})
        return frozenset({key})
    if isinstance(operator, Join) and "balance" in policies:
        return _beside(operator, policies.index("balance"), inputs)
    if isinstance(operator, Join):
        return _joined(operator)
    if isinstance(operator, GroupAggregate):
        return frozenset({tuple(range(len(operator.key)))})
    if isinstance(operator, Distinct | Combine):
        return frozenset({tuple(range(operator.schema.columns))})
    if isinstance(operator, TopK | Window):
        return frozenset({key_of(operator.sort_key)})
    if isinstance(operator, Exchange):
        return frozenset({operator.key})
    if isinstance(operator, Fixpoint | Result) or (isinstance(operator, RecomputeGroups) and operator.whole):
        return TOGETHER
    if isinstance(operator, Sum):
        return frozenset.intersection(*inputs)
    if isinstance(operator, Stateless):
        return _passed(operator, inputs[0])
    return ANYWHERE


def alone(node: Node) -> bool:
    """Whether a node has something to say where nothing has come, so that only one shard may ask it."""
    operator = node.operator
    if isinstance(operator, GroupAggregate):
        return not operator.key
    return isinstance(operator, Constant | Fixpoint) or (isinstance(operator, RecomputeGroups) and operator.whole)


def _joined(join: Join) -> Placed:
    """A side's key columns, where no row has NULLs instead of them."""
    sides = {"inner": (0, 1), "left": (0,), "right": (1,), "full": ()}.get(join.how, (0,))
    out: set[Key] = set()
    for side in sides:
        key = key_of(join.sides[side])
        if not key:
            out.add(())
        elif all((side, c) in join.columns for c in key):
            out.add(tuple(join.columns.index((side, c)) for c in key))
    if not key_of(join.sides[0]):
        out.add(())
    return frozenset(out)


def _beside(join: Join, side: int, inputs: Sequence[Placed]) -> Placed:
    """The rows of a join lie where those of the side are that is not everywhere."""
    where = {c: i for i, (s, c) in reversed(list(enumerate(join.columns))) if s == side}
    return frozenset(tuple(where[c] for c in key) for key in inputs[side] if all(c in where for c in key))


def _passed(operator: Operator, before: Placed) -> Placed:
    """The placement of a stream after an operator that looks at rows one by one."""
    if isinstance(operator, Filter | Scale | Consolidate):
        return before
    if isinstance(operator, Bucket):
        return before | {(operator.schema.columns - 1,)} if operator.key in before else before
    if isinstance(operator, Fused):
        for step in operator.steps:
            before = _passed(step, before)
        return before
    if isinstance(operator, Project | Select):
        kept = dict(enumerate(operator.columns))
    elif isinstance(operator, Map | FlatMap):
        kept = operator.function.kept
    else:
        kept = {}
    where: dict[int, int] = {}
    for out, given in kept.items():
        where.setdefault(given, out)
    return frozenset(tuple(where[c] for c in key) for key in before if all(c in where for c in key))
