"""Workloads that read: scans, filters and maps after a change, joins with and without an index, equality.

Every reading follows a small change, because a value that has been read before may remember the answer. Each backend
reads in the way that is native to it: `HashMap` row by row, the others block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import QUICK, Contender
from benchmarks.zset.data import Int64s, fingerprint, rows_of
from benchmarks.zset.updates import BASES, delta_stream, size
from benchmarks.zset.workload import Workload, fresh, own_table
from dbspark.zset import IndexedZSet, ZSet, ZSetConfig, columns

READS: Final = 2 if QUICK else 5
"""Changes, each followed by a reading, in a round."""
CHANGE: Final = 100

Reader = Callable[[ZSet], int]


def native(config: ZSetConfig) -> bool:
    """Whether Python rows are this backend's own form."""
    return config.backend == "HashMap"


def scan(config: ZSetConfig) -> Reader:
    """The sum of a column, each row counted by its weight."""

    def by_rows(z: ZSet) -> int:
        total = 0
        for row, weight in z:
            total += row[1] * weight
        return total

    def by_blocks(z: ZSet) -> int:
        return sum(int(np.dot(block.column(1).to_numpy(), weights)) for block, weights in z.scan())

    return by_rows if native(config) else by_blocks


def filtered(config: ZSetConfig) -> Reader:
    """Half of the rows."""
    keep: Any = (lambda row: row[2] < 0.5) if native(config) else columns(lambda b: pc.less(b["c"], 0.5))
    return lambda z: z.filter(keep).count


def mapped(config: ZSetConfig) -> Reader:
    """All rows, without their string."""
    if native(config):
        return lambda z: z.map_keys(lambda row: (row[0], row[1] + 1), "a BIGINT, b BIGINT").count
    return lambda z: z.map_keys(columns(lambda b: {"a": b["a"], "b": pc.add(b["b"], 1)})).count


def exported(_: ZSetConfig) -> Reader:
    return lambda z: z.to_arrow(weight="w").num_rows


def counted(_: ZSetConfig) -> Reader:
    return lambda z: z.count


def reading(name: str, reader: Callable[[ZSetConfig], Reader], base: int, kind: str = "cancel") -> Workload:
    def make(config: ZSetConfig) -> Contender:
        read = reader(config)
        stream = delta_stream(kind, CHANGE, READS, base, config)

        def run(z: ZSet) -> list[int]:
            found = []
            for delta in stream:
                z = z + delta
                found.append(read(z))
            return found

        return Contender(name, run, lambda: fresh(base, config))

    return Workload(f"{name} after {kind} of {CHANGE} on {size(base)}", READS, make)


# ---------------------------------------------------------------------- joins


@lru_cache(maxsize=16)
def side(rows: int, groups: int, first: int, share: float) -> pa.Table:
    """Rows to join by `b`, of which a share has the same key."""
    table = rows_of(np.arange(first, first + rows), groups)
    if share:
        keys = table.column("b").to_numpy().copy()
        keys[: int(rows * share)] = 0
        table = table.set_column(1, table.schema.field(1), pa.array(keys))
    return table


def _zset(table: pa.Table, config: ZSetConfig, weights: Int64s | None = None) -> ZSet:
    if weights is None:
        return ZSet.from_arrow(table, config=config)
    return ZSet.from_arrow(table.append_column("w", pa.array(weights)), weight="w", config=config)


def _joined(left: IndexedZSet, right: IndexedZSet) -> ZSet:
    return left.join(right).to_zset()


def join(left_rows: int, right_rows: int, groups: int, hot: tuple[float, float] = (0, 0)) -> Workload:
    """Both indexes are built for every join, from Z-sets that have just changed."""

    def make(config: ZSetConfig) -> Contender:
        left = _zset(side(left_rows, groups, 0, hot[0]), config)
        right = _zset(side(right_rows, groups, 10_000_000, hot[1]), config)
        one = _zset(side(1, groups, 20_000_000, 0), config)
        back = one.negate()

        def setup() -> tuple[ZSet, ZSet]:
            own_table(left)
            own_table(right)
            return left + one, right + one + back

        def run(sides: tuple[ZSet, ZSet]) -> ZSet:
            return _joined(sides[0].group_by("b"), sides[1].group_by("b"))

        return Contender("join", run, setup, fingerprint)

    return Workload(f"join {size(left_rows)} x {size(right_rows)}" + (" skewed" if hot[0] else ""), 1, make)


def arranged(
    left_rows: int, right_rows: int, groups: int, hot: tuple[float, float] = (0, 0), cancel: bool = False
) -> Workload:
    """The right side is kept as an index; every join follows a change of it."""
    joins = 3 if QUICK else 10

    def make(config: ZSetConfig) -> Contender:
        table = side(right_rows, groups, 10_000_000, hot[1])
        lefts = [_zset(side(left_rows, groups, i * left_rows, hot[0]), config) for i in range(joins)]
        index = _zset(table, config).group_by("b")
        rng = np.random.default_rng(1)
        parts = []
        for i in range(joins):
            change = side(CHANGE, groups, 30_000_000 + i * CHANGE, 0)
            weights = np.ones(CHANGE, np.int64)
            if cancel:
                out = table.take(pa.array(rng.choice(right_rows, CHANGE // 2, replace=False)))
                change = pa.concat_tables([change.slice(0, CHANGE // 2), out]).combine_chunks()
                weights[CHANGE // 2 :] = -1
            parts.append(_zset(change, config, weights))

        def run(right: IndexedZSet) -> list[ZSet]:
            found = []
            for left, part in zip(lefts, parts, strict=True):
                right = right + part
                found.append(_joined(left.group_by("b"), right))
            return found

        return Contender("join", run, lambda: index, lambda found: [fingerprint(z) for z in found])

    kind = " skewed" if hot[0] else " cancelling" if cancel else ""
    return Workload(f"join {size(left_rows)} x {size(right_rows)} arranged{kind}", joins, make)


# ---------------------------------------------------------------------- equality


def equality(base: int, equal: bool) -> Workload:
    """Values with the same rows by different ways, or with one row of difference."""

    def make(config: ZSetConfig) -> Contender:
        first, second, *_ = delta_stream("cancel", CHANGE, READS, base, config)
        (single, *_) = delta_stream("insert", 1, 1, base + 1000, config)

        def setup() -> tuple[ZSet, ZSet]:
            left = fresh(base, config) + first + second
            right = fresh(base, config) + second + first
            return left, right if equal else right + single

        def run(pair: tuple[ZSet, ZSet]) -> bool:
            return pair[0] == pair[1]

        return Contender("equality", run, setup)

    return Workload(f"{'equal' if equal else 'unequal'} {size(base)}", 1, make)


def workloads() -> list[Workload]:
    k = 1_000 if QUICK else 10_000
    readers = (("scan", scan), ("filter", filtered), ("map_keys", mapped), ("to_arrow", exported), ("count", counted))
    found = [reading(name, reader, base) for base in BASES for name, reader in readers]
    found += [reading("scan", scan, BASES[0], kind) for kind in ("toggle", "skew")]
    found += [join(k, k, k), join(k, k, k, (0.01, 0.1)), join(k // 10, 10 * k, k), arranged(k // 10, 10 * k, k)]
    found += [arranged(k // 10, 10 * k, k, cancel=True), arranged(k // 10, 10 * k, k, (0.05, 0.01))]
    return [*found, equality(BASES[0], True), equality(BASES[0], False)]
