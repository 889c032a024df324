"""Rows for the benchmarks: two BIGINTs, a DOUBLE and a STRING, each a function of the row's number.

A row is known by its number, so populations and streams of changes are arrays of numbers, and only what is needed
becomes rows, in columns, at tens of millions per minute. Numbers are mixed: neighbours have nothing in common.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.zset import ZSet, ZSetConfig

Int64s = npt.NDArray[np.int64]

SCHEMA: Final = "a BIGINT, b BIGINT, c DOUBLE, s STRING"
ARROW: Final = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.float64()), ("s", pa.string())])
GROUPS: Final = 1000
"""Values of `b`, the column to group and join by."""


def mixed(ids: Int64s, seed: int = 0) -> npt.NDArray[np.uint64]:
    """SplitMix64 of numbers."""
    x = ids.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def rows_of(ids: Any, groups: int = GROUPS) -> pa.Table:
    """The rows of these numbers; strings are 6 to 16 characters long."""
    ids = np.asarray(ids, np.int64)
    x = mixed(ids)
    width = np.array([10 ** (k + 1) for k in range(11)], np.uint64)
    digits = pa.array((mixed(ids, 1) % width[(x % np.uint64(11)).astype(np.intp)]).astype(np.int64))
    strings = pc.binary_join_element_wise("item", digits.cast(pa.string()), "-")
    return pa.table(
        [
            pa.array((x >> np.uint64(2)).astype(np.int64)),
            pa.array((mixed(ids, 2) % np.uint64(groups)).astype(np.int64)),
            pa.array((mixed(ids, 3) >> np.uint64(11)).astype(np.float64) * 2.0**-53),
            strings,
        ],
        schema=ARROW,
    )


def tuples_of(ids: Any, groups: int = GROUPS) -> list[tuple[Any, ...]]:
    """The same as Python rows."""
    table = rows_of(ids, groups)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def weighted(ids: Any, weights: Any, groups: int = GROUPS) -> pa.Table:
    """Rows with their weights in column `w`."""
    return rows_of(ids, groups).append_column("w", pa.array(np.asarray(weights, np.int64)))


def zset(ids: Any, weights: Any = None, config: ZSetConfig | None = None, groups: int = GROUPS) -> ZSet:
    if weights is None:
        return ZSet.from_arrow(rows_of(ids, groups), config=config)
    return ZSet.from_arrow(weighted(ids, weights, groups), weight="w", config=config)


@numba.njit(cache=True)
def _fold_numbers(out: Any, bits: Any) -> None:
    for i in range(out.shape[0]):
        x = out[i] ^ bits[i]
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = x ^ (x >> np.uint64(31))


@numba.njit(cache=True)
def _hash_strings(offsets: Any, data: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        x = np.uint64(0xCBF29CE484222325)
        for j in range(offsets[i], offsets[i + 1]):
            x = (x ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
        out[i] = x


def _hashes(batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """A hash of every row, of BIGINTs, DOUBLEs and STRINGs without NULLs; not the one that batches are ordered by."""
    out = np.full(batch.num_rows, 7, np.uint64)
    for column in batch.columns:
        if pa.types.is_string(column.type):
            bits = np.empty(batch.num_rows, np.uint64)
            _, offsets, data = column.buffers()
            if batch.num_rows:
                ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + batch.num_rows + 1]
                _hash_strings(ends, np.frombuffer(data, np.uint8), bits)
        else:
            bits = column.to_numpy().view(np.uint64)
        _fold_numbers(out, bits)
    return out


def fingerprint(z: ZSet) -> tuple[int, ...]:
    """The same for equal Z-sets, whatever holds them, and computed by other means than theirs.

    Rows, sum of weights, and the sum of every row's hash times its weight: a Z-set hashes linearly.
    """
    table = z.to_arrow(weight="__weight")
    first = second = total = 0
    for batch in table.to_batches():
        weights = batch.column(batch.num_columns - 1).to_numpy()
        hashes = _hashes(batch.select(table.column_names[:-1]))
        w = weights.astype(np.uint64)
        total += int(weights.sum())
        first += int((hashes * w).sum())
        second += int((hashes * hashes * w).sum())
    return z.count, table.num_rows, total, first % 2**64, second % 2**64


def summary(z: ZSet) -> tuple[int, int]:
    """Less than a fingerprint, for where that would take longer than all the rest."""
    return z.count, z.total_weight


class Population:
    """The numbers of the rows that exist, and a stream of changes to them."""

    def __init__(self, size: int, seed: int = 7) -> None:
        self._alive = np.arange(size, dtype=np.int64)
        self._next = size
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def ids(self) -> Int64s:
        return self._alive

    def change(self, inserts: int, deletes: int) -> tuple[Int64s, Int64s]:
        """Numbers and weights of a change: new rows in, rows that exist out. The order is mixed."""
        alive = self._alive
        n = len(alive)
        out = np.unique(self._rng.integers(0, n, deletes)) if deletes else np.empty(0, np.int64)
        while len(out) < deletes:
            out = np.unique(np.append(out, self._rng.integers(0, n, deletes - len(out))))
        new = np.arange(self._next, self._next + inserts, dtype=np.int64)
        self._next += inserts
        gone = alive[out]
        if inserts >= deletes:
            alive[out] = new[:deletes]
            if inserts > deletes:
                self._alive = np.append(alive, new[deletes:])
        else:
            alive[out[:inserts]] = new
            self._alive = np.delete(alive, out[inserts:])
        ids = np.append(new, gone)
        weights = np.repeat(np.array([1, -1], np.int64), [inserts, deletes])
        order = self._rng.permutation(len(ids))
        return ids[order], weights[order]
