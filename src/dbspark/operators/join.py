"""Joins of two arranged streams.

The product: `d(L x R) = dL x R' + L x dR`, with L before and R' after the tick: the three-term formula with the last
two terms taken together. Each term probes an integral with the rows of a delta, so the cost is that of the delta and of
what it matches. Integrals are those of the arrange operators in front; a join keeps nothing itself.

Which rows of a side have a partner is a function of their key, say s (0 or 1), where there is no residual condition:

    semi:  dL s' + L (s' - s)        anti:  dL (1 - s') + L (s - s')

so besides the delta only the rows of keys whose s has changed are read. With a residual condition s is a function of
the row; then it is evaluated before and after the tick for the rows of L that match a row of dR. An outer join is the
product and the rows without partner, with NULLs for the other side; an existence join is the semi join and the anti
join with a flag.

A delta is looked up row by row, or by a merge join (a *walk* along delta and integral) if deltas are usually large
compared with the integral (`Spine.prefers_walk`). Both read the same state and find the same rows.

A NULL in a key matches nothing, unless the join is NULL-safe.

A residual condition may raise an error on a pair. The terms above also make pairs that cancel: of a row that the tick
deletes and one that it inserts, or of a retraction and the row it retracts, in different batches. Recomputing the query
from scratch would not evaluate these. So an error is raised only for pairs that exist after the tick; on any other pair
a condition that fails counts as false.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.chunk import Chunk, check_plan, gather_columns, gather_pairs
from dbspark.columnar.delta import ChunkedDelta, Delta
from dbspark.columnar.memory import Int64s, int64s
from dbspark.columnar.schema import Schema
from dbspark.errors import SchemaError
from dbspark.kernels.lookup import probe as kp
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge import merge_timed as kt
from dbspark.kernels.vm import expressions as kv
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm import result_columns as ks
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.function import Columns, Function
from dbspark.operators.instruction import Instruction, InstructionSite, instruction_words, pass_through, relocated
from dbspark.operators.keyed import KeyedOperator
from dbspark.operators.keys import distinct_keys, weights_in_ranges, weights_of_keys
from dbspark.operators.linear import true_rows
from dbspark.operators.nested import (
    Nested,
    NestedArranged,
    NestedSite,
    NestedStateful,
    Path,
    PendingIterations,
    runs_of_equal_times,
)
from dbspark.operators.placement import Key, Placed, Policy, key_of
from dbspark.trace.lookup import FoundRows, Keys, found_rows, key_columns, probe, ranges_of
from dbspark.trace.spine import Spine

How = Literal["inner", "left", "right", "full", "semi", "anti", "existence"]
Found = tuple[Chunk, Keys, Int64s, int]
"""A chunk of a delta, its keys, the ranges of rows that these may match, and the number of rows in the ranges."""
MAX_SEARCHED_ROWS = 1024
"""A delta with at most this many rows is looked up row by row even if the spine prefers walking."""
MAX_PAIRS = 1 << 20
"""Pairs of rows that are computed at once, which bounds the memory of a term."""
CHUNKED_RESULT_FACTOR = 4
"""A product of more than this many times `MAX_PAIRS` pairs is a `ChunkedDelta`, computed part by part when read."""


class Matches(NamedTuple):
    """Pairs of rows of a delta and rows of an integral."""

    which: Int64s
    pos: Int64s
    weights: Int64s
    times: Int64s | None
    """The join of the times of both rows; None if that is the time of the delta for all pairs."""


_NONE = np.empty(0, np.int64)
NO_MATCHES = Matches(_NONE, _NONE, _NONE, None)


class Join(KeyedOperator):
    """A join of two arranged streams, by the formulas of the module."""

    kind: ClassVar[str] = "join"
    version: ClassVar[int] = 1

    def __init__(
        self,
        left: SortKey,
        right: SortKey,
        how: How = "inner",
        *,
        columns: Sequence[tuple[int, int]] | None = None,
        names: Sequence[str] | None = None,
        residual: Function | None = None,
        null_safe: bool = False,
    ) -> None:
        """`columns`: (side, column) of each output column; `residual` takes all columns of both sides."""
        mine, theirs = ([a.schema.types[c] for c in key_columns(a)] for a in (left, right))
        if mine != theirs:
            raise SchemaError(f"keys of a join have the same types on both sides; these have {mine} and {theirs}")
        self.sides = (left, right)
        self.how = how
        self.residual = residual
        self.null_safe = null_safe
        self.by_key = residual is None
        """Whether all rows of one key have the same partners, because there is no residual condition."""
        one_sided = how in ("semi", "anti", "existence")
        if columns is None:
            columns = [(0, c) for c in range(left.schema.columns)]
            columns += [] if one_sided else [(1, c) for c in range(right.schema.columns)]
        self._set_columns(columns, names)

    def _set_columns(self, columns: Sequence[tuple[int, int]], names: Sequence[str] | None) -> None:
        """Set the output columns."""
        left, right = self.sides
        self.columns = tuple(columns)
        self._origins = [np.array([(int(s != side), nd.LANES + c) for s, c in columns], np.int64) for side in (0, 1)]
        """For a delta of side 0 and of side 1, the source of each output column: (0: delta, 1: other side; node)."""
        self.schema = _joined_schema((left.schema, right.schema), self.columns, names, self.how)

    def step(self, state: State, inputs: Sequence[Arranged]) -> tuple[State, Delta]:
        left, right = inputs
        try:
            return (), self._change(left, right)
        except Exception:
            if self.residual is None:
                raise
            self._judge_new_pairs(left, right)
        lenient = copy.copy(self)
        lenient.residual = Function(_false_where_it_fails(self.residual), self.residual.name)
        return (), lenient._change(left, right)

    def _judge_new_pairs(self, left: Arranged, right: Arranged) -> None:
        """Evaluate the condition on the pairs that the tick adds, so that its errors on these are raised."""
        assert self.residual is not None
        pairs = copy.copy(self)
        columns = [(s, c) for s in (0, 1) for c in range(self.sides[s].schema.columns)]
        pairs.how, pairs.residual = "inner", None
        pairs._set_columns(columns, [f"c{i}" for i in range(len(columns))])
        added = Delta.sum(pairs.schema, pairs._product(left, right)).consolidated()
        rows = np.flatnonzero(added.weights > 0)
        if len(rows):
            self.residual([c.take(pa.array(rows)) for c in added.columns])

    def _change(self, left: Arranged, right: Arranged) -> Delta:
        out: list[Delta] = []
        how = self.how
        if how in ("inner", "left", "right", "full"):
            out += self._product(left, right)
        if how in ("left", "full", "anti", "existence"):
            out += self._rows_by_partner(0, left, right, 0)
        if how in ("right", "full"):
            out += self._rows_by_partner(1, right, left, 0)
        if how in ("semi", "existence"):
            out += self._rows_by_partner(0, left, right, 1)
        return Delta.sum(self.schema, out)

    @property
    def skips_empty_input(self) -> bool:
        return True

    @property
    def broadcastable_sides(self) -> tuple[int, ...]:
        """The sides that may be broadcast: whole on every shard."""
        return {"inner": (0, 1), "right": (0,), "full": ()}.get(self.how, (1,))

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        """The output is placed by the key columns of each side that is never padded with NULLs; if one side is
        broadcast, as the other side."""
        if "balance" in policies:
            return self._placed_as(policies.index("balance"), inputs)
        sides = {"inner": (0, 1), "left": (0,), "right": (1,), "full": ()}.get(self.how, (0,))
        out: set[Key] = set()
        for side in sides:
            key = key_of(self.sides[side])
            if not key:
                out.add(())
            elif all((side, c) in self.columns for c in key):
                out.add(tuple(self.columns.index((side, c)) for c in key))
        if not key_of(self.sides[0]):
            out.add(())
        return frozenset(out)

    def _placed_as(self, side: int, inputs: Sequence[Placed]) -> Placed:
        where = {c: i for i, (s, c) in reversed(list(enumerate(self.columns))) if s == side}
        return frozenset(tuple(where[c] for c in key) for key in inputs[side] if all(c in where for c in key))

    def nested(self, site: NestedSite) -> Nested:
        return NestedJoin(self, site.pending) if self.how == "inner" else super().nested(site)

    def instruction(self, site: InstructionSite) -> Instruction | None:
        if self.how != "inner":
            return None
        residual = self.residual
        if residual is not None and (residual.bytecode is None or not residual.bytecode.test):
            return None
        code: list[int] = []
        if residual is not None:
            assert residual.bytecode is not None
            wide = self.sides[0].schema.columns
            code = relocated(residual.bytecode.test, lambda c: (0, c) if c < wide else (1, c - wide))
        sides, states = [site.input(0), site.input(1)], [site.input_state(0), site.input_state(1)]
        keys = [a.key_nodes.tolist() for a in self.sides]
        nodes = max(a.schema.node_count for a in self.sides)
        columns = pass_through(self.columns)
        out = site.register()

        def lines(retained: int) -> list[int]:
            return instruction_words(
                km.JOIN, *sides, *states, out, retained, int(self.null_safe), nodes, self.schema.node_count,
                len(keys[0]), len(code), kv.slot_count(code), len(columns) // ks.COLUMN_WORDS, *keys[0], *keys[1],
                *code, *columns,
            )  # fmt: skip

        return Instruction(lines, out, references=None if residual is None else residual.bytecode)

    def parameters(self) -> tuple[Any, ...]:
        return self.how, self.columns, self.schema.names, self.residual, self.null_safe

    def label(self) -> str:
        on = self.conditions() + ([self.residual.name] if self.residual else [])
        return f"{self.how} join on {' and '.join(on) or 'true'}"

    def conditions(self) -> list[str]:
        """The comparisons as text, for display."""
        names = [[a.schema.names[c] for c in key_columns(a)] for a in self.sides]
        return [f"{a} = {b}" for a, b in zip(*names, strict=True)]

    # ------------------------------------------------------------------ the product

    def _product(self, left: Arranged, right: Arranged) -> list[Delta]:
        """The change of the product: dL x R' + L x dR."""
        first = self._paired(0, left.delta, right.after)
        second = None if first is None else self._paired(1, right.delta, left.before)
        if first is not None and second is not None:
            made = self._gathered(left, right, first, second)
            if made is not None:
                return [made]
        return [*self.products(0, left.delta, right.after), *self.products(1, right.delta, left.before)]

    def _gathered(self, left: Arranged, right: Arranged, first: Matches, second: Matches) -> Delta | None:
        """The pairs of both terms in one chunk. On either side the chunks of the delta are numbered before those of the
        integral."""
        if not len(first.which) and not len(second.which):
            return Delta.empty(self.schema)
        mine = np.concatenate((left.delta.tables, left.before.sources[0]))
        theirs = np.concatenate((right.delta.tables, right.after.sources[0]))
        pos = [
            np.concatenate((first.which, second.pos + (len(left.delta.tables) << nd.ROW_BITS))),
            np.concatenate((first.pos + (len(right.delta.tables) << nd.ROW_BITS), second.which)),
        ]
        weights = np.concatenate((first.weights, second.weights))
        pairs = gather_pairs(self.schema, self._origins[0], mine, pos[0], theirs, pos[1], weights)
        return None if pairs is None else Delta.of_chunk(pairs)

    def products(self, side: int, delta: Batch, spine: Spine) -> list[Delta]:
        """Rows of a delta of one side times rows of the integral of the other."""
        product = self.small_product(side, delta, spine, ())
        if product is not None:
            return [product[0]]
        found = list(self.found(side, delta, spine))
        total = sum(rows for _, _, _, rows in found)

        def make() -> Iterator[Delta]:
            for chunk, which, hits in self._expanded(side, delta.sort_key, spine, found):
                yield self.output(side, chunk, which, hits, pair_weights(chunk, hits))

        return [ChunkedDelta(self.schema, total, make)] if total > CHUNKED_RESULT_FACTOR * MAX_PAIRS else list(make())

    def small_product(
        self, side: int, delta: Batch, spine: Spine, path: Sequence[int]
    ) -> tuple[Delta, Int64s | None] | None:
        """The product of a small delta, in few calls, and for each pair the join of `path` with the time of the row
        found.

        The times are None if all of them equal `path`; the result is None if the delta is too large or not flat.
        """
        found = self._small_matches(side, delta, spine, path)
        if found is None:
            return None
        if not len(found.which):
            return Delta.empty(self.schema), None
        pairs = gather_pairs(
            self.schema, self._origins[side], delta.tables, found.which, spine.sources[0], found.pos, found.weights
        )
        return None if pairs is None else (Delta.of_chunk(pairs), found.times)

    def _small_matches(self, side: int, delta: Batch, spine: Spine, path: Sequence[int]) -> Matches | None:
        """The pairs of a small delta; None if they are too many, there is a residual condition, or columns are
        nested."""
        if not delta.rows or not spine.entries:
            return NO_MATCHES
        if len(delta.chunks) > 1 or not self.by_key or self.schema.nested:
            return None
        if spine.prefers_walk(delta.rows) and delta.rows > MAX_SEARCHED_ROWS:
            return None
        chunk, mine, here = delta.chunks[0], delta.sort_key, spine.sort_key
        nodes = max(mine.schema.node_count, here.schema.node_count)
        info = np.empty(3, np.int64)
        lines = kp.match_rows(
            spine.directory, chunk.table, chunk.rows, mine.key_nodes, here.key_nodes, nodes, int(self.null_safe),
            np.array(path, np.int64), MAX_PAIRS, info,
        )  # fmt: skip
        n, overflow, later = info.tolist()
        if n > MAX_PAIRS:
            return None
        if overflow:
            check_plan(info[1:])
        return Matches(lines[0, :n], lines[1, :n], lines[2, :n], lines[3:, :n].T if later else None)

    def _paired(self, side: int, delta: Batch, spine: Spine) -> Matches | None:
        """The pairs of a delta of one chunk; None if they are too many or columns are nested."""
        matches = self._small_matches(side, delta, spine, ())
        if matches is not None or len(delta.chunks) > 1 or self.schema.nested:
            return matches
        found = list(self.found(side, delta, spine))
        if sum(rows for _, _, _, rows in found) > MAX_PAIRS:
            return None
        for chunk, which, hits in self._expanded(side, delta.sort_key, spine, found):  # at most once
            return Matches(which, hits.pos, pair_weights(chunk, hits), None)
        return NO_MATCHES

    def pairs(self, side: int, delta: Batch, spine: Spine) -> Iterator[tuple[Chunk, Int64s, FoundRows]]:
        """All matching pairs, a bounded number at a time: (chunk of the delta, rows of the chunk, found rows of the
        spine)."""
        return self._expanded(side, delta.sort_key, spine, self.found(side, delta, spine))

    def found(self, side: int, delta: Batch, spine: Spine) -> Iterator[Found]:
        """For each chunk of a delta of one side, the ranges in the integral of the other side with the rows it may
        match."""
        if not spine.entries:
            return
        chunk_keys = [Keys(chunk, chunk.lane(nd.KEY), delta.sort_key.key_nodes) for chunk in delta.chunks]
        distinct_key_count = sum(1 + int(np.count_nonzero(keys.hashes[1:] != keys.hashes[:-1])) for keys in chunk_keys)
        walk = spine.prefers_walk(distinct_key_count)
        for keys in chunk_keys:
            yield keys.chunk, keys, *ranges_of(spine, keys, walk)

    def expanded(self, side: int, spine: Spine, keys: Keys, ranges: Int64s, total: int) -> FoundRows:
        """The rows in the ranges that match the row of the delta to which the range belongs."""
        return found_rows(spine, keys, ranges, total)

    def _expanded(
        self, side: int, sort_key: SortKey, spine: Spine, found: Iterable[Found]
    ) -> Iterator[tuple[Chunk, Int64s, FoundRows]]:
        for chunk, keys, ranges, total in found:
            if not total:
                continue
            valid = None if self.null_safe else _valid_keys(chunk, sort_key)
            for begin, end, part_ranges, rows in _slices(ranges, total):
                if begin == 0 and end == chunk.rows:
                    part, part_keys = chunk, keys
                else:
                    part = chunk.slice(begin, end - begin)
                    part_keys = Keys(part, keys.hashes[begin:end], keys.nodes)
                hits = self.expanded(side, spine, part_keys, part_ranges, rows)
                if valid is not None and len(hits):
                    hits = hits.only(valid[begin:end][hits.which])
                if len(hits) and self.residual is not None:
                    hits = hits.only(self._accepted(side, part, hits))
                if len(hits):
                    yield part, hits.which, hits

    def _accepted(self, side: int, chunk: Chunk, hits: FoundRows) -> Any:
        """Which pairs satisfy the residual condition."""
        assert self.residual is not None
        mine = _Gathered(chunk.schema, np.array((chunk.table,), np.int64), hits.which)
        theirs = _Gathered(hits.spine.sort_key.schema, hits.spine.sources[0], hits.pos)
        return true_rows(self.residual(_Columns((mine, theirs) if side == 0 else (theirs, mine))), len(hits))

    def output(self, side: int, chunk: Chunk, which: Int64s, hits: FoundRows, weights: Int64s) -> Delta:
        tables, there = np.array((chunk.table,), np.int64), hits.spine.sources[0]
        if not self.schema.nested:
            pairs = gather_pairs(self.schema, self._origins[side], tables, which, there, hits.pos, weights)
            if pairs is not None:
                return Delta.of_chunk(pairs)
        columns = []
        for s, c in self.columns:
            if s == side:
                columns += gather_columns(chunk.schema, tables, which, (c,))
            else:
                columns += gather_columns(hits.spine.sort_key.schema, there, hits.pos, (c,))
        return Delta(self.schema, columns, weights)

    # ------------------------------------------------------------------ rows with and without partner

    def _rows_by_partner(self, side: int, mine: Arranged, other: Arranged, wanted: int) -> Iterator[Delta]:
        """The change of the rows of one side that have a partner (`wanted` = 1) or none (0)."""
        for chunk, has in self.partners(side, mine.delta, other.after):
            rows = np.flatnonzero(has == wanted)
            if len(rows):
                yield self._one_sided(side, chunk, rows, lane_at(chunk, rows), wanted)
        if not other.delta.rows or not mine.before.entries:
            return
        yield from (self._rows_of_changed_keys if self.by_key else self._changed_rows)(side, mine, other, wanted)

    def _rows_of_changed_keys(self, side: int, mine: Arranged, other: Arranged, wanted: int) -> Iterator[Delta]:
        """Rows from before the tick, of keys that have a partner now and had none, or the other way round."""
        keys = distinct_keys(other.delta)
        sort_key = SortKey(keys.chunk.schema, range(keys.chunk.schema.columns))
        before, after = (
            self._with_partner(keys.chunk, sort_key, weights_of_keys(spine, keys))
            for spine in (other.before, other.after)
        )
        changed = np.flatnonzero(before != after)
        if not len(changed):
            return
        hits = probe(mine.before, keys)
        hits = hits.only(np.isin(hits.which, changed))
        if len(hits):
            sign = np.where(after == wanted, 1, -1)[hits.which]
            yield self._one_sided_hits(side, hits, hits.weights * sign, wanted)

    def _changed_rows(self, side: int, mine: Arranged, other: Arranged, wanted: int) -> Iterator[Delta]:
        """Like `_rows_of_changed_keys` with a residual condition: rows that match the delta of the other side and now
        have a partner and had none, or the other way round."""
        pos = self.touched(side, mine.before, other)
        if not len(pos):
            return
        rows = FoundRows(mine.before, pos, pos).batch()
        has_partner = (self.partners(side, rows, spine) for spine in (other.before, other.after))
        for (chunk, before), (_, after) in zip(*has_partner, strict=True):
            changed = np.flatnonzero(before != after)
            if len(changed):
                sign = np.where(after[changed] == wanted, 1, -1)
                yield self._one_sided(side, chunk, changed, lane_at(chunk, changed) * sign, wanted)

    def touched(self, side: int, spine: Spine, other: Arranged) -> Int64s:
        """Positions of the rows in `spine`, an integral of one side, that match the delta of the other side: only these
        may gain or lose a partner."""
        found: list[Int64s] = []
        for _, _, hits in self.pairs(1 - side, other.delta, spine):
            found.append(hits.pos)
            if sum(map(len, found)) > MAX_PAIRS:
                found = [np.unique(np.concatenate(found))]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    def partners(self, side: int, rows: Batch, spine: Spine) -> Iterator[tuple[Chunk, Any]]:
        """For each row of a batch of one side, 1 if it has partners of positive weight, else 0."""
        if not spine.entries:
            yield from ((chunk, np.zeros(chunk.rows, np.int64)) for chunk in rows.chunks)
        elif self.residual is not None:
            yield from self._with_partner_by_condition(side, rows, spine)
        else:
            for chunk, keys, ranges, total in self.found(side, rows, spine):
                yield chunk, self._with_partner(chunk, rows.sort_key, self.weigh(side, spine, keys, ranges, total))

    def weigh(self, side: int, spine: Spine, keys: Keys, ranges: Int64s, total: int) -> Int64s:
        """For each row a number that is above zero if it has a partner: here the total weight of the rows in its
        ranges."""
        return weights_in_ranges(spine, keys, ranges, total)

    def _with_partner(self, chunk: Chunk, sort_key: SortKey, weights: Int64s) -> Any:
        """1 where `weights` is positive and no key column is NULL (NULLs do not matter if the join is NULL-safe), else
        0."""
        has = (weights > 0).astype(np.int64)
        if not self.null_safe:
            valid = _valid_keys(chunk, sort_key)
            if valid is not None:
                has[~valid] = 0
        return has

    def _with_partner_by_condition(self, side: int, rows: Batch, spine: Spine) -> Iterator[tuple[Chunk, Any]]:
        """`partners` with a residual condition: whether the weights of the matching pairs of a row sum to more than
        zero.

        The upper and lower 32 bits of the weights are summed separately, so that the sums do not overflow.
        """
        for chunk in rows.chunks:
            high, low = np.zeros(chunk.rows, np.int64), np.zeros(chunk.rows, np.int64)
            for part, which, hits in self.pairs(side, Batch(rows.sort_key, (chunk,)), spine):
                at = which + int(part.nodes()[nd.HASH, nd.START] - chunk.nodes()[nd.HASH, nd.START])
                np.add.at(high, at, hits.weights >> 32)
                np.add.at(low, at, hits.weights & 0xFFFFFFFF)
            high += low >> 32
            yield chunk, ((high > 0) | ((high == 0) & (low & 0xFFFFFFFF > 0))).astype(np.int64)

    def _one_sided(self, side: int, chunk: Chunk, rows: Int64s, weights: Int64s, flag: int) -> Delta:
        tables = np.array((chunk.table,), np.int64)
        return self._padded(side, lambda c: gather_columns(chunk.schema, tables, rows, (c,))[0], weights, flag)

    def _one_sided_hits(self, side: int, hits: FoundRows, weights: Int64s, flag: int) -> Delta:
        schema, tables = hits.spine.sort_key.schema, hits.spine.sources[0]
        return self._padded(side, lambda c: gather_columns(schema, tables, hits.pos, (c,))[0], weights, flag)

    def _padded(self, side: int, column: Any, weights: Int64s, flag: int) -> Delta:
        """Columns of one side, NULLs for the other, and the flag of an existence join."""
        n = len(weights)
        columns = [column(c) if s == side else pa.nulls(n, self.sides[s].schema.types[c]) for s, c in self.columns]
        if self.how == "existence":
            columns.append(pa.array(np.full(n, bool(flag))))
        return Delta(self.schema, columns, weights)


class NestedJoin(NestedStateful):
    """An inner join inside a fixpoint; its deferred work is output at later paths."""

    def __init__(self, join: Join, pending: PendingIterations) -> None:
        super().__init__(join.schema, pending)
        self.join = join

    def to_batch(self, work: Delta, sort_key: SortKey) -> Batch:
        return work.sorted_by(sort_key)

    def from_batch(self, batch: Batch) -> Delta:
        return Delta.of(batch)

    def evaluate(self, path: Path, inputs: Sequence[NestedArranged], deferred: list[Delta]) -> Delta:
        left, right = inputs
        out = deferred
        if left.delta.rows:
            out += self._products(path, 0, left.rows, right.after())
        if right.delta.rows:
            out += self._products(path, 1, right.rows, left.before())
        return Delta.sum(self.schema, out)

    def _products(self, path: Path, side: int, rows: Batch, spine: Spine) -> list[Delta]:
        small = self.join.small_product(side, rows, spine, path)
        if small is not None:
            return self._sorted(path, *small)
        now: list[Delta] = []
        time, depth = np.array(path, np.int64), len(path)
        for chunk, which, hits in self.join.pairs(side, rows, spine):
            pairs = self.join.output(side, chunk, which, hits, pair_weights(chunk, hits))
            times = int64s(len(hits) * depth).reshape(-1, depth)
            later = kt.join_times(spine.sources[0], hits.pos, time, depth, times)
            now += self._sorted(path, pairs, times if later else None)
        return now

    def _sorted(self, path: Path, pairs: Delta, times: Int64s | None) -> list[Delta]:
        """The pairs of this path; those of other paths are deferred."""
        if times is None:
            return [pairs]
        now: list[Delta] = []
        order = np.lexsort(times.T[::-1])
        indices = pa.array(order)
        columns, weights = [c.take(indices) for c in pairs.columns], pairs.weights[order]
        for at, begin, end in runs_of_equal_times(times[order]):
            part = Delta(self.schema, [c.slice(begin, end - begin) for c in columns], weights[begin:end])
            if at == path:
                now.append(part)
            else:
                self.defer(at, part)
        return now


def _false_where_it_fails(condition: Function) -> Callable[[Columns], pa.Array]:
    """The condition, but false for rows on which it raises an error; these are found by bisection."""

    def judge(columns: Columns) -> pa.Array:
        try:
            return condition(columns)
        except Exception:
            rows = len(columns[0])
            if rows == 1:
                return pa.array([False])
        half = rows // 2
        parts = (judge([c.slice(at, n) for c in columns]) for at, n in ((0, half), (half, rows - half)))
        return pa.concat_arrays([p.combine_chunks() if isinstance(p, pa.ChunkedArray) else p for p in parts])

    return judge


class _Gathered(NamedTuple):
    """One side of pairs of rows: the chunks and the positions of the rows in them."""

    schema: Schema
    tables: Int64s
    pos: Int64s


class _Columns(Sequence[pa.Array]):
    """All columns of both sides of pairs, each gathered when it is read: a condition reads few of them."""

    def __init__(self, sides: tuple[_Gathered, _Gathered]) -> None:
        self._from = [(side, c) for side in sides for c in range(side.schema.columns)]
        self._read: dict[int, pa.Array] = {}

    def __len__(self) -> int:
        return len(self._from)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if index not in self._read:
            (schema, tables, pos), column = self._from[index]
            self._read[index] = gather_columns(schema, tables, pos, (column,))[0]
        return self._read[index]


def _joined_schema(
    schemas: tuple[Schema, Schema], columns: Sequence[tuple[int, int]], names: Sequence[str] | None, how: How
) -> Schema:
    fields: list[pa.Field] = []
    nullable = {"left": (False, True), "right": (True, False), "full": (True, True)}.get(how, (False, False))
    for i, (side, c) in enumerate(columns):
        field = schemas[side].arrow.field(c)
        name = field.name
        if names is not None:
            name = names[i]
        else:
            while any(f.name == name for f in fields):
                name += "_right"
        fields.append(field.with_name(name).with_nullable(field.nullable or nullable[side]))
    if how == "existence":
        fields.append(pa.field("exists" if names is None else names[len(columns)], pa.bool_(), False))
    return Schema(pa.schema(fields))


def lane_at(chunk: Chunk, rows: Int64s) -> Int64s:
    """The weights of some rows of a chunk."""
    weights: Int64s = chunk.lane(nd.WEIGHT)[rows]
    return weights


def pair_weights(chunk: Chunk, hits: FoundRows) -> Int64s:
    """The weight of each pair of a row of a chunk and a row that was found for it."""
    out = int64s(len(hits))
    if kp.pair_weights(chunk.table, hits.which, hits.spine.sources[0], hits.pos, out) == OVERFLOW:
        check_plan(np.array((OVERFLOW,), np.int64))
    return out


def _valid_keys(chunk: Chunk, sort_key: SortKey) -> Any:
    """Mask of the rows without a NULL in their key; None if that is all of them."""
    mask = None
    for c in key_columns(sort_key):
        if chunk.nodes()[nd.LANES + c, nd.VALID] or chunk.schema.nodes[nd.LANES + c].kind == nd.NULL:
            tables = np.array((chunk.table,), np.int64)
            column = gather_columns(chunk.schema, tables, np.arange(chunk.rows), (c,))[0]
            if column.null_count:
                valid = column.is_valid().to_numpy(zero_copy_only=False)
                mask = valid if mask is None else mask & valid
    return mask


def _slices(ranges: Int64s, total: int) -> Iterator[tuple[int, int, Int64s, int]]:
    """Split the rows of `ranges` into slices of a bounded number of pairs: (begin, end, ranges, pairs) of each."""
    rows = len(ranges)
    if total <= MAX_PAIRS:
        yield 0, rows, ranges, total
        return
    counts = np.cumsum(ranges[:, :, 2].sum(axis=1))
    begin = done = 0
    while begin < rows:
        end = max(int(np.searchsorted(counts, done + MAX_PAIRS, "right")), begin + 1)
        pairs = int(counts[end - 1]) - done
        if pairs <= MAX_PAIRS:
            yield begin, end, ranges[begin:end], pairs
        else:  # one row with more pairs than the bound
            yield from ((begin, end, part, int(part[0, :, 2].sum())) for part in _pieces(ranges[begin]))
        begin, done = end, int(counts[end - 1])


def _pieces(ranges: Int64s) -> Iterator[Int64s]:
    """Split the ranges of one row into pieces of a bounded number of pairs."""
    for b, (chunk, row, count) in enumerate(ranges.tolist()):
        for at in range(0, count, MAX_PAIRS):
            piece = np.zeros((1, *ranges.shape), np.int64)
            piece[0, b] = chunk, row + at, min(MAX_PAIRS, count - at)
            yield piece


__all__ = ["How", "Join", "NestedJoin", "lane_at", "pair_weights"]
