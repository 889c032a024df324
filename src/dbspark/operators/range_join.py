"""Joins with comparisons: `l.x < r.y`, `l.x BETWEEN r.lo AND r.hi`, with or without equal keys.

The formulas are those of `dbspark.operators.join`. What differs is how partners are found: either side is arranged by
the keys and, inside a key, ordered by one of its compared columns. All comparisons with that column select one range of
the order, whose ends are found by bisection in each batch; comparisons with other columns are checked for each row in
the range. So with `lo <= x AND x <= hi` a row of the side of lo and hi reads exactly its partners, and a row of the
side of x reads all intervals that begin at or below it.

Cost: for every row of a delta the logarithm of the other side, and the rows of its range. Whether a row has a partner
is known as soon as one is found. That is evaluated before and after the tick for all rows that match the delta of the
other side; with a single comparison only for the rows between the extreme values of the key before and after the tick.

NULL satisfies no comparison, NaN is above all numbers and equal to itself, -0.0 equals 0.0: as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.memory import Int64s, int64s, uint64s
from dbspark.columnar.schema import Schema
from dbspark.errors import SchemaError
from dbspark.kernels.lookup import ranges as kr
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.sort.row_order import order_words
from dbspark.operators.arranged import Arranged
from dbspark.operators.instruction import Instruction, InstructionSite
from dbspark.operators.join import Found, How, Join
from dbspark.operators.keys import distinct_keys
from dbspark.trace.lookup import NO_CHECKS, FoundRows, Keys, first_rows_in_ranges, ranges_of
from dbspark.trace.spine import Spine

Comparison = Literal["<", "<=", ">", ">="]
Range = tuple[int, Comparison, int]
"""(column of the left, comparison, column of the right)"""

_CODES: Final = {"<": kr.BELOW, "<=": kr.AT_MOST, ">=": kr.AT_LEAST, ">": kr.ABOVE}


def range_sort_keys(
    schemas: tuple[Schema, Schema], keys: Sequence[tuple[int, int]], ranges: Sequence[Range]
) -> tuple[SortKey, SortKey]:
    """The sort keys of the two sides: by the equal keys, then in order of the column with most comparisons."""

    def one(side: int) -> SortKey:
        columns = [(a, b)[side] for a, _, b in ranges]
        column = max(columns, key=columns.count)
        return SortKey(schemas[side], [k[side] for k in keys], [(column, False, False)])

    return one(0), one(1)


class RangeJoin(Join):
    """A join with comparisons of two streams arranged by `range_sort_keys`."""

    kind: ClassVar[str] = "range-join"
    version: ClassVar[int] = 1

    def __init__(
        self, left: SortKey, right: SortKey, how: How = "inner", *, ranges: Sequence[Range], **more: Any
    ) -> None:
        """`more`: further arguments of `Join`."""
        super().__init__(left, right, how, **more)
        self.ranges = tuple(ranges)
        self.by_key = False
        for a, how_to, b in self.ranges:
            _check(left.schema, a, how_to, right.schema, b)
        self._bounds = tuple(self._comparisons(side, True) for side in (0, 1))
        self._checks = tuple(self._comparisons(side, False) for side in (0, 1))

    def parameters(self) -> tuple[Any, ...]:
        return *super().parameters(), self.ranges

    def conditions(self) -> list[str]:
        left, right = (a.schema.names for a in self.sides)
        return super().conditions() + [f"{left[a]} {how} {right[b]}" for a, how, b in self.ranges]

    def instruction(self, site: InstructionSite) -> Instruction | None:
        return None

    def _comparisons(self, side: int, ordered: bool) -> Int64s:
        """The comparisons that kernels make when rows of one side are looked up in the other: those with the order
        column of the other side (`ordered`), or all others."""
        index = self.sides[1 - side].order[0][0]
        lines = []
        for left, how, right in self.ranges:
            # Kernels compare (found row, probe row): for probe rows of the left the operands are swapped.
            code = kr.ABOVE - _CODES[how] if side == 0 else _CODES[how]
            mine, theirs = (left, right) if side == 0 else (right, left)
            if (theirs == index) == ordered:
                lines.append((nd.LANES + mine, nd.LANES + theirs, code))
        return np.array(lines, np.int64).reshape(-1, 3)

    # ------------------------------------------------------------------ how partners are found

    def found(self, side: int, delta: Batch, spine: Spine) -> Iterator[Found]:
        bounds = self._bounds[side]
        before = _rows_before(spine)
        column = nd.LANES + self.sides[1 - side].order[0][0]
        nodes = self._nodes()
        for chunk, keys, ranges, total in super().found(side, delta, spine):
            words = uint64s(len(bounds) * chunk.rows).reshape(len(bounds), chunk.rows)
            if total:
                for k, node in enumerate(bounds[:, 0].tolist()):
                    order_words(chunk.table, node, chunk.rows, 0, 0, words[k])
                total = kr.narrow_ranges(spine.sources[0], before, column, chunk.table, bounds, words, nodes, ranges)
            yield chunk, keys, ranges, total

    def expanded(self, side: int, spine: Spine, keys: Keys, ranges: Int64s, total: int) -> FoundRows:
        hits = super().expanded(side, spine, keys, ranges, total)
        checks = self._checks[side]
        if not len(checks) or not len(hits):
            return hits
        mask = np.empty(len(hits), np.bool_)
        kr.which_satisfy(checks, keys.chunk.table, hits.which, spine.sources[0], hits.pos, self._nodes(), mask)
        return hits.only(mask)

    def weigh(self, side: int, spine: Spine, keys: Keys, ranges: Int64s, total: int) -> Int64s:
        out = np.zeros(len(keys), np.int64)
        if total:
            # Search from the end of the range nearest to the row, where rows satisfy the other comparisons most likely.
            last = bool((self._bounds[side][:, 2] <= kr.AT_MOST).all())
            hits = first_rows_in_ranges(spine, keys, ranges, total, 1, last, self._checks[side], 1)
            out[hits.which] = hits.weights
        return out

    def touched(self, side: int, spine: Spine, other: Arranged) -> Int64s:
        if len(self._checks[1 - side]) or self.residual is not None:
            return super().touched(side, spine, other)
        if len(self.ranges) == 1:
            return _covered(spine, [self._turning(side, spine, other)])
        # The rows of all ranges, each once, however many rows of the delta it matches.
        return _covered(spine, [ranges for _, _, ranges, _ in self.found(1 - side, other.delta, spine)])

    def _turning(self, side: int, spine: Spine, other: Arranged) -> Int64s:
        """Ranges of the rows that satisfy the only comparison with the extreme value of their key either before or
        after the tick, but not both.

        Only these gain a first or lose their last partner: a row that has any partner also has the extreme one.
        """
        keys = distinct_keys(other.delta)
        starts, counts = (np.zeros((2, len(keys), len(spine.batches)), np.int64) for _ in range(2))
        rows_before = _rows_before(spine)
        for i, integral in enumerate((other.before, other.after)):
            extremes = self._extremes(side, integral, keys)
            which = extremes.which
            for chunk, _, ranges, _ in self.found(1 - side, Batch(other.sort_key, extremes.chunks()), spine):
                here, which = which[: chunk.rows], which[chunk.rows :]
                starts[i, here] = rows_before[ranges[:, :, 0]] + ranges[:, :, 1]
                counts[i, here] = ranges[:, :, 2]
        # Either both ranges end with the key or both begin with it; an empty range gets the beginning of the other.
        starts = np.where(counts == 0, starts[::-1], starts)
        ends = starts + counts
        begin = np.where(starts[0] == starts[1], ends.min(axis=0), starts.min(axis=0))
        end = np.where(starts[0] == starts[1], ends.max(axis=0), starts.max(axis=0))
        return np.stack((np.zeros_like(begin), begin, end - begin), axis=2)

    def _extremes(self, side: int, spine: Spine, keys: Keys) -> FoundRows:
        """For each key its extreme row: the one with which most rows of a side satisfy the only comparison."""
        if not spine.entries:
            return FoundRows(spine, np.empty(0, np.int64), np.empty(0, np.int64))
        ranges, _ = ranges_of(spine, keys)
        column = nd.LANES + spine.sort_key.order[0][0]
        words = np.empty((0, len(keys)), np.uint64)
        total = kr.narrow_ranges(  # excludes NULLs
            spine.sources[0], _rows_before(spine), column, keys.chunk.table, NO_CHECKS, words, self._nodes(), ranges
        )
        last = bool(self._bounds[side][0, 2] >= kr.AT_LEAST)
        return first_rows_in_ranges(spine, keys, ranges, total, 1, last, least=1)

    def _nodes(self) -> int:
        return max(a.schema.node_count for a in self.sides)


def _covered(spine: Spine, found: Sequence[Int64s]) -> Int64s:
    """Positions of the rows of a spine that lie in any of the ranges, once each."""
    before = _rows_before(spine)
    parts = []
    for ranges in found:
        for b in range(ranges.shape[1]):
            order = np.argsort(before[ranges[:, b, 0]] + ranges[:, b, 1])
            rows = int64s(kr.rows_in_ranges(ranges, before, b, order, np.empty(0, np.int64)))
            if len(rows):
                kr.rows_in_ranges(ranges, before, b, order, rows)
                parts.append(rows)
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _rows_before(spine: Spine) -> Int64s:
    """For each chunk of a spine the number of rows in the chunks before it, then the number of all rows."""
    out = np.zeros(len(spine.sources[1]) + 1, np.int64)
    np.cumsum(spine.sources[1], out=out[1:])
    return out


def _check(left: Schema, a: int, how: str, right: Schema, b: int) -> None:
    mine, theirs = left.types[a], right.types[b]
    what = f"{left.names[a]} {how} {right.names[b]}"
    if how not in _CODES:
        raise SchemaError(f"{what}: a comparison is one of {', '.join(_CODES)}; put equalities among the keys")
    if mine != theirs:
        raise SchemaError(f"{what}: what is compared has the same type on both sides; these are {mine} and {theirs}")
    if _unordered(mine):
        raise SchemaError(f"{what}: values of type {mine} have no order")


def _unordered(dtype: pa.DataType) -> bool:
    """Whether Spark has no order for a type: one that is or contains a map or a calendar interval."""
    t = pa.types
    if t.is_struct(dtype):
        return any(_unordered(f.type) for f in dtype)
    if t.is_list(dtype):
        return _unordered(dtype.value_type)
    return bool(t.is_map(dtype) or t.is_interval(dtype))


__all__ = ["Comparison", "Range", "RangeJoin", "range_sort_keys"]
