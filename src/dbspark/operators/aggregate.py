"""Grouped aggregation.

State: one row for every group: its key, the number of its rows, and the state of each aggregate (its *accumulator*). A
tick groups the delta, looks up the rows of state of the groups in it, computes their new rows of state, and emits the
difference of the results. The row of state of a group is removed when the group has no rows left; that of a global
aggregate (no keys) is never removed, since it has a result for no rows as well.

Each aggregate updates its accumulator in its own way:

* *linear* ones (count, sum, avg, variance …) add the contribution of the delta: O(delta). Sums are exact, those of
  floats too (`kernels.aggregate.exact_sums`), so retractions leave no rounding error and sums do not drift. Where all
  aggregates are counts and sums of integers or decimals, and at most one min or max, one kernel updates them
  (`dbspark.operators.accumulator_kernel`);
* *ordered* ones (min, max) read the first or last row of the group in an arrangement ordered by their column: O(log n);
* others read all rows of the touched groups (`dbspark.operators.collect`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar import SortKey
from dbspark.columnar.chunk import Chunk, describe_arrays, gather_columns
from dbspark.columnar.delta import ChunkedDelta, Delta
from dbspark.columnar.memory import INT64_MAX, Int64s, allocate, int64s
from dbspark.columnar.schema import Schema
from dbspark.columnar.sort_key import hash_rows
from dbspark.errors import CircuitError, DbsparkError, SchemaError, WeightOverflowError
from dbspark.kernels.aggregate import accumulators as kf
from dbspark.kernels.aggregate import exact_sums as ke
from dbspark.kernels.aggregate import group as kg
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.vm import expressions as kv
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm import result_columns as ks
from dbspark.operators.accumulator_kernel import AccumulatorKernel, KernelAccumulator
from dbspark.operators.arranged import Arranged, State
from dbspark.operators.instruction import (
    ALWAYS,
    Instruction,
    InstructionSite,
    instruction_words,
    pass_through,
    projection_line,
    sort_line,
)
from dbspark.operators.keyed import KeyedOperator, NestedReduce
from dbspark.operators.keys import keys_of, union_of_keys
from dbspark.operators.linear import true_rows
from dbspark.operators.nested import Nested, NestedSite, Path
from dbspark.operators.placement import Key, Placed, Policy
from dbspark.trace.lookup import FoundRows, Keys, first_rows_in_order, first_rows_unordered

_NO_MASK = np.empty(0, np.uint8)
_BIGINT = pa.int64()


@dataclass(frozen=True, slots=True)
class Touched:
    """The input of `Aggregate.update`: the delta by group, the old accumulators, and the arranged rows of the input."""

    delta: Delta
    chunk: Chunk
    ids: Int64s
    """The group of each row of the delta."""
    keys: Keys
    """The keys of the groups."""
    old: Sequence[pa.Array]
    """The columns of the old rows of state, for the groups that had one."""
    old_row: Int64s
    """For each group the row in `old`, or -1."""
    arranged: Sequence[Arranged]

    @property
    def groups(self) -> int:
        return len(self.old_row)

    def mask(self, column: int | None) -> Any:
        """The rows of the delta that a FILTER keeps, as a mask for kernels."""
        if column is None:
            return _NO_MASK
        return true_rows(self.delta.columns[column], self.delta.rows).astype(np.uint8)

    def old_numbers(self, column: int) -> Int64s:
        """An integer column of the old rows by group, 0 for new groups."""
        old: Int64s = self.old[column].to_numpy()
        if len(old) == self.groups:  # every group has an old row, in the order of the groups
            return old.copy()
        out: Int64s = np.append(old, 0)[self.old_row]  # index -1, for groups without an old row, reads the appended 0
        return out


class Aggregate(ABC):
    """One aggregate. `column` and `where` (the FILTER) are columns of the input; `out` is the type of the result."""

    kind: ClassVar[str]
    version: ClassVar[int]
    name: str
    """Its SQL name, for display."""
    out: pa.DataType
    additive = False
    """Whether accumulators of parts of a group, column by column, add up to that of the group."""

    @abstractmethod
    def fields(self) -> list[pa.DataType]:
        """The types of the columns of its accumulator."""

    @abstractmethod
    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        """The new accumulators; the old ones are columns `at` and following of `touched.old`."""

    @abstractmethod
    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The results for some accumulators."""

    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """The parameters that, with its kind and version, are its identity (`dbspark.identity`)."""

    def argument(self) -> int | None:
        """The column that it aggregates; None if there is none, as for count(*)."""
        column: int | None = getattr(self, "column", None)
        return column

    def order(self) -> tuple[tuple[int, bool, bool], ...] | None:
        """The order in which it needs the rows of a group arranged; None: it does not read them."""
        return None

    def kernel_accumulator(self) -> KernelAccumulator | None:
        """How `AccumulatorKernel` updates its accumulator; None where the kernel cannot."""
        return None

    def result_column(self, node: int) -> list[int] | None:
        """How the VM computes its result from a row of state whose accumulator begins at `node`; None where it
        cannot."""
        return None


class Count(Aggregate):
    """count(*), or count(column)."""

    kind: ClassVar[str] = "count"
    version: ClassVar[int] = 1

    name = "count"
    out = pa.int64()
    additive = True

    def __init__(self, column: int | None = None, where: int | None = None) -> None:
        self.column = column
        self.where = where

    def fields(self) -> list[pa.DataType]:
        return [pa.int64()]

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        counts = touched.old_numbers(at)
        node = -1 if self.column is None else nd.LANES + self.column
        chunk = touched.chunk
        kg.count_rows(chunk.table, chunk.rows, node, touched.mask(self.where), touched.ids, counts)
        return [pa.array(counts)]

    def kernel_accumulator(self) -> KernelAccumulator:
        return kf.COUNT, self.column, self.where

    def result_column(self, node: int) -> list[int]:
        return [ks.PASS_THROUGH, 0, node, 0, 0]

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.where

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        return columns[0]


class Sum(Aggregate):
    """sum of integers or decimals, exact; NULL where no row has a value."""

    kind: ClassVar[str] = "exact-sum"
    version: ClassVar[int] = 1

    name = "sum"

    def __init__(self, column: int, dtype: pa.DataType, where: int | None = None) -> None:
        self.column = column
        self.where = where
        decimal = pa.types.is_decimal(dtype)
        if not decimal and not pa.types.is_integer(dtype):
            raise SchemaError(f"a sum of {dtype} is not a sum of integers or decimals")
        self.total = pa.decimal128(38, dtype.scale if decimal else 0)
        self.out = pa.decimal128(min(dtype.precision + 10, 38), dtype.scale) if decimal else pa.int64()
        # Partial sums of wider decimals may exceed 38 digits although the whole sum does not.
        self.additive = not decimal or dtype.precision + 10 <= 38

    def fields(self) -> list[pa.DataType]:
        return [self.total, pa.int64()]

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        chunk = touched.chunk
        groups = touched.groups
        limbs = np.zeros((groups, kg.LIMBS), np.int64)
        counts = touched.old_numbers(at + 1)
        mask = touched.mask(self.where)
        kg.sum_integers(chunk.table, chunk.rows, nd.LANES + self.column, mask, touched.ids, limbs, counts)
        old = touched.old[at]
        sums = allocate(16 * groups)
        address = old.buffers()[1].address + 16 * old.offset if len(old) else 0
        if kg.finish_sums(limbs, address, touched.old_row, sums.address):
            raise DbsparkError("a sum is beyond 38 digits, which no decimal holds; nothing was applied")
        return [pa.Array.from_buffers(self.total, groups, [None, sums]), pa.array(counts)]

    def kernel_accumulator(self) -> KernelAccumulator:
        return kf.SUM, self.column, self.where

    def result_column(self, node: int) -> list[int]:
        if self.out == _BIGINT:
            return [ks.SUM64, nd.FIXED, node, node + 1, 0]
        digits = self.out.precision
        limit = 0 if digits == 38 else min(10**digits, INT64_MAX)
        return [ks.SUM128, nd.FIXED, node, node + 1, limit]

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.total, self.out, self.where

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        return _null_where_none(_narrowed(columns[0], self.out), columns[1])


class FloatSum(Aggregate):
    """sum of floats: the exact sum, rounded once; NULL where no row has a value."""

    kind: ClassVar[str] = "exact-float-sum"
    version: ClassVar[int] = 1

    name = "sum"
    out = pa.float64()
    additive = True

    def __init__(self, column: int, where: int | None = None) -> None:
        self.column = column
        self.where = where

    def fields(self) -> list[pa.DataType]:
        return [pa.binary(), pa.int64(), pa.int64(), pa.int64(), pa.int64()]

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        groups = touched.groups
        counts = touched.old_numbers(at + 1)
        special = np.stack([touched.old_numbers(at + 2 + i) for i in range(3)], 1)
        order = np.argsort(touched.ids, kind="stable")
        starts = np.zeros(groups + 1, np.int64)
        np.cumsum(np.bincount(touched.ids, minlength=groups), out=starts[1:])
        old = touched.old[at]
        if len(old):
            buffers = old.buffers()
            old_at = buffers[1].address + 4 * old.offset, buffers[2].address if buffers[2] is not None else 0
        else:
            old_at = 0, 0
        offsets = np.empty(groups + 1, np.int32)
        capacity = 8 * groups + 64
        while True:
            out = np.empty(capacity, np.int32)
            used = ke.sum_floats(
                touched.chunk.table, nd.LANES + self.column, touched.mask(self.where), order, starts,
                *old_at, touched.old_row, counts, special, offsets, out,
            )  # fmt: skip
            if used >= 0:
                break
            capacity *= 4
            counts = touched.old_numbers(at + 1)
            special = np.stack([touched.old_numbers(at + 2 + i) for i in range(3)], 1)
        sums = pa.Array.from_buffers(pa.binary(), groups, [None, pa.py_buffer(offsets), pa.py_buffer(out[:used])])
        return [sums, pa.array(counts), *(pa.array(np.ascontiguousarray(special[:, i])) for i in range(3))]

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        return _null_where_none(pa.array(self.rounded(columns)), columns[1])

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.where

    def rounded(self, columns: Sequence[pa.Array]) -> Any:
        """The sums as floats, NaN and infinities included."""
        sums = columns[0]
        out = np.empty(len(sums), np.float64)
        if len(sums):
            buffers = sums.buffers()
            data = buffers[2].address if buffers[2] is not None else 0
            ke.round_sums(buffers[1].address + 4 * sums.offset, data, len(sums), out)
            nan, up, down = (c.to_numpy() for c in columns[2:5])
            out[up > 0] = np.inf
            out[down > 0] = -np.inf
            out[(nan > 0) | ((up > 0) & (down > 0))] = np.nan
        return out


class Average(Aggregate):
    """avg: of floats and integers a double, of decimals a decimal with four more digits."""

    kind: ClassVar[str] = "average"
    version: ClassVar[int] = 1

    name = "avg"

    def __init__(self, column: int, dtype: pa.DataType, where: int | None = None) -> None:
        self.column = column
        self.where = where
        floating = pa.types.is_floating(dtype)
        self.sum: Sum | FloatSum = FloatSum(column, where) if floating else Sum(column, dtype, where)
        self.additive = self.sum.additive
        if pa.types.is_decimal(dtype):
            self.out = pa.decimal128(min(dtype.precision + 4, 38), min(dtype.scale + 4, 38))
        else:
            self.out = pa.float64()

    def fields(self) -> list[pa.DataType]:
        return self.sum.fields()

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        return self.sum.update(touched, at)

    def kernel_accumulator(self) -> KernelAccumulator | None:
        return self.sum.kernel_accumulator()

    def result_column(self, node: int) -> list[int] | None:
        if isinstance(self.sum, Sum) and self.out == pa.float64():
            return [ks.AVERAGE, nd.FLOAT64, node, node + 1, 0]
        return None

    def parameters(self) -> tuple[Any, ...]:
        return self.sum, self.out

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        counts = columns[1].to_numpy()
        divisors = np.where(counts == 0, 1, counts)
        if isinstance(self.sum, FloatSum):
            return _null_where_none(pa.array(self.sum.rounded(columns) / divisors), columns[1])
        if pa.types.is_decimal(self.out):
            return _null_where_none(_divided(columns[0], divisors, self.out), columns[1])
        return _null_where_none(pa.array(pc.cast(columns[0], pa.float64()).to_numpy() / divisors), columns[1])


class Extreme(Aggregate):
    """min and max: the first or last row of the group in an arrangement ordered by the column."""

    kind: ClassVar[str] = "min-max"
    version: ClassVar[int] = 1

    def __init__(self, column: int, dtype: pa.DataType, largest: bool) -> None:
        self.name = "max" if largest else "min"
        self.column = column
        self.out = dtype
        self.largest = largest

    def fields(self) -> list[pa.DataType]:
        return [self.out]

    def order(self) -> tuple[tuple[int, bool, bool], ...]:
        return ((self.column, self.largest, True),)

    def kernel_accumulator(self) -> KernelAccumulator | None:
        return kf.GREATEST if self.largest else kf.LEAST, self.column, None

    def result_column(self, node: int) -> list[int]:
        return [ks.PASS_THROUGH, 0, node, 0, 0]

    def parameters(self) -> tuple[Any, ...]:
        return self.column, self.largest, self.out

    def update(self, touched: Touched, at: int) -> list[pa.Array]:
        order = self.order()
        spine = next(a.after for a in touched.arranged if a.sort_key.order == order)
        hits = first_rows_in_order(spine, touched.keys, 1)
        values = gather_columns(spine.sort_key.schema, spine.sources[0], hits.pos, (self.column,))[0]
        where = np.full(touched.groups, -1, np.int64)
        where[hits.which] = np.arange(len(hits))
        return [values.take(pa.array(where, mask=where < 0))]

    def result(self, columns: Sequence[pa.Array]) -> pa.Array:
        return columns[0]


class GroupAggregate(KeyedOperator):
    """Grouped aggregation. Inputs: the stream, then one arranged stream for each order that aggregates need."""

    kind: ClassVar[str] = "group-aggregate"
    version: ClassVar[int] = 1

    def __init__(
        self, source: Schema, key: Sequence[int], aggregates: Sequence[Aggregate], names: Sequence[str]
    ) -> None:
        self.source = source
        self.key = tuple(key)
        self.aggregates = tuple(aggregates)
        keys = [source.arrow.field(c) for c in self.key]
        results = [pa.field(n, a.out) for n, a in zip(names, self.aggregates, strict=True)]
        self.schema = Schema(pa.schema([*keys, *results]))
        self.key_schema = source.select(self.key)
        width = len(keys)
        fields = [f.with_name(f"key{i}") for i, f in enumerate(keys)] + [pa.field("rows", pa.int64(), False)]
        self.spans = []
        for aggregate in self.aggregates:
            types = aggregate.fields()
            self.spans.append((len(fields), len(fields) + len(types)))
            fields += [pa.field(f"acc{len(fields) + i}", t) for i, t in enumerate(types)]
        self.accumulators = SortKey(Schema(pa.schema(fields)), range(width))
        self._key_nodes = np.array([nd.LANES + c for c in self.key], np.int64)
        self._own_nodes = np.arange(nd.LANES, nd.LANES + width)
        found = [a.kernel_accumulator() for a in self.aggregates]
        by_kernel = [a for a in found if a is not None]
        self.kernel: AccumulatorKernel | None = None
        flat = not source.nested and not self.accumulators.schema.nested
        if self.key and len(by_kernel) == len(found) and flat and AccumulatorKernel.supports(by_kernel):
            self.kernel = AccumulatorKernel(self.key, source, self.accumulators, by_kernel)

    def orders(self) -> list[SortKey]:
        """The arrangements of the input that its aggregates need, once each."""
        found = [a.order() for a in self.aggregates]
        return [SortKey(self.source, self.key, o) for o in dict.fromkeys(f for f in found if f is not None)]

    def state_sort_keys(self) -> tuple[SortKey, ...]:
        return (self.accumulators,)

    @property
    def skips_empty_input(self) -> bool:
        return bool(self.key)  # without keys there is a result for no rows as well

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Delta]:
        delta: Delta = inputs[0]
        if isinstance(delta, ChunkedDelta):
            return self._step_by_parts(state, delta, inputs[1:])
        if self.key and len(inputs) > 1:  # the delta of an arrangement has the same rows, consolidated
            delta = Delta.of(inputs[1].delta)
        if not delta.rows and (self.key or state[0].entries):
            return state, Delta.empty(self.schema)
        changes = None if self.kernel is None else self.kernel.step(delta, state[0], inputs[1:])
        if changes is not None:
            return (state[0].insert(changes.sorted_by(self.accumulators)),), self._results(changes)
        after, _, rows = self._accumulated(state, delta, inputs[1:])
        return after, self._results(rows)

    def _step_by_parts(self, state: State, delta: ChunkedDelta, arranged: Sequence[Arranged]) -> tuple[State, Delta]:
        """Process a large delta part by part; emits the difference of the results before the first and after the last
        part."""
        after = state
        found: list[Keys] = []
        for part in delta.parts():
            after, keys, _ = self._accumulated(after, part, arranged)
            found = [union_of_keys([*found, keys])]
        if not found:  # no part had any rows
            return self.step(state, [Delta.empty(self.source), *arranged])
        old, new = (_columns_of(first_rows_unordered(spine, found[0], 1)) for spine in (state[0], after[0]))
        return after, self._results(self._replacing(old, new))

    def _accumulated(self, state: State, delta: Delta, arranged: Sequence[Arranged]) -> tuple[State, Keys, Delta]:
        """The new state, the keys of the groups in the delta, and the change of their rows of state."""
        spine = state[0]
        touched = self._touched(delta, spine, arranged)
        width = len(self.key)
        counts = self._counts(touched)
        new: list[pa.Array] = [*touched.keys.chunk.arrays(), pa.array(counts)]
        for aggregate, (begin, _) in zip(self.aggregates, self.spans, strict=True):
            new += aggregate.update(touched, begin)
        alive = np.ones(touched.groups, bool) if not self.key else counts != 0
        if not alive.all():
            # Weights of different rows may sum to zero. Keep the row of state while an accumulator is not zero.
            alive |= ~_zero(new[width + 1 :]) if len(new) > width + 1 else False
            if not alive.all():
                mask = pa.array(alive)
                new = [c.filter(mask) for c in new]
        rows = self._replacing(touched.old, new)
        return (spine.insert(rows.sorted_by(self.accumulators)),), touched.keys, rows

    def _replacing(self, old: Sequence[pa.Array], new: Sequence[pa.Array]) -> Delta:
        """The delta that retracts the old rows of state and inserts the new ones."""
        gone, come = len(old[len(self.key)]), len(new[len(self.key)])
        columns = [pa.concat_arrays(pair) for pair in zip(old, new, strict=True)] if gone else new
        return Delta(self.accumulators.schema, columns, np.repeat((-1, 1), (gone, come)))

    def _touched(self, delta: Delta, spine: Any, arranged: Sequence[Arranged]) -> Touched:
        chunk = delta.chunk()
        hashes = hash_rows(chunk, self._key_nodes)
        ids = int64s(chunk.rows)
        if self.key:
            first = int64s(chunk.rows)
            groups = kg.group_rows(chunk.table, self._key_nodes, hashes, delta.schema.node_count, ids, first)
            tables = np.array((chunk.table,), np.int64)
            columns = gather_columns(delta.schema, tables, first[:groups], self.key)
            keys = Keys(
                describe_arrays(self.key_schema, columns, groups, None), hashes[first[:groups]], self._own_nodes
            )
        else:
            ids[:] = 0
            groups, keys = 1, keys_of(self.key_schema, [], 1)
        hits = first_rows_unordered(spine, keys, 1)
        old = _columns_of(hits)
        old_row = np.full(groups, -1, np.int64)
        old_row[hits.which] = np.arange(len(hits))
        return Touched(delta, chunk, ids, keys, old, old_row, arranged)

    def _counts(self, touched: Touched) -> Int64s:
        """Number of rows of each group after the tick."""
        counts = touched.old_numbers(len(self.key))
        chunk = touched.chunk
        self._check_counts(touched, counts)
        kg.count_rows(chunk.table, chunk.rows, -1, _NO_MASK, touched.ids, counts)
        return counts

    def _check_counts(self, touched: Touched, counts: Int64s) -> None:
        """Raise if the sum of the weights of a group overflows int64."""
        weights = touched.delta.weights
        if not len(weights) or (int(np.abs(weights).max()) < 1 << 31 and (not len(counts) or counts.max() < 1 << 62)):
            return
        totals = counts.tolist()
        for group, weight in zip(touched.ids.tolist(), weights.tolist(), strict=True):
            totals[group] += weight
        if any(abs(total) > INT64_MAX for total in totals):
            raise WeightOverflowError("the weights of a group add up to more than int64 holds; nothing was applied")

    def _results(self, rows: Delta) -> Delta:
        """The results of rows of state, with the weights of these; groups without rows have no result."""
        if self.key:
            not_empty = rows.column(len(self.key)).to_numpy() != 0
            if not not_empty.all():
                schema = self.accumulators.schema
                rows = rows.at(np.flatnonzero(not_empty), range(schema.columns), schema)
        columns = rows.columns
        out = list(columns[: len(self.key)])
        for aggregate, (begin, end) in zip(self.aggregates, self.spans, strict=True):
            out.append(aggregate.result(columns[begin:end]))
        return Delta(self.schema, out, rows.weights)

    # ------------------------------------------------------------------ in the VM, on shards, inside fixpoints

    def instruction(self, site: InstructionSite) -> Instruction | None:
        kernel, result_columns = self.kernel, self._result_columns()
        if kernel is None or result_columns is None or len(site.inputs) > 2:
            return None
        state_schema = self.accumulators.schema
        source, arranged, arranged_state = site.input(), ALWAYS, 0
        if len(site.inputs) == 2:
            arranged, arranged_state = site.input(1), site.input_state(1)
        state, rows, inserted, out = site.state(), site.register(), site.register(), site.register()
        origins = [word for side, n in kernel.origins.tolist() for word in (ks.PASS_THROUGH, side, n, 0, 0)]
        template = state_schema.template
        folds, values = kernel.folds.ravel().tolist(), kernel.value.tolist()
        described = [word for pair in kernel.described for word in pair]
        head = (
            km.AGGREGATE, source, state, arranged, arranged_state, rows, site.mask, self.source.columns,
            state_schema.columns, kernel.nodes, kernel.count, kernel.words, template.ctypes.data,
            state_schema.node_count, len(kernel.key_nodes), len(folds) // 5, len(values), len(described) // 2,
        )  # fmt: skip
        details = (*kernel.key_nodes.tolist(), *kernel.state_keys.tolist(), *folds, *values, *described, *origins)
        not_empty = [
            *kv.line(kv.LOAD, 1, 0, kernel.count), *kv.line(kv.CONSTANT, 2, 0, 0), *kv.line(kv.EQUAL, 3, 1, 2),
            *kv.line(kv.NOT, 0, 3),
        ]  # fmt: skip

        def lines(retained: int) -> list[int]:
            return [
                *instruction_words(*head, retained, *details),  # results may lie in the memory of the rows of state
                *sort_line(self.accumulators, rows, inserted, 1, site.mask),
                *projection_line(rows, out, retained, self.schema, not_empty, (), result_columns),
            ]

        return Instruction(lines, out, inserts=inserted, references=template)

    def _result_columns(self) -> list[int] | None:
        """How the VM computes the result columns from rows of state; None where it cannot for some aggregate."""
        columns = pass_through([(0, c) for c in range(len(self.key))])
        for aggregate, (begin, _) in zip(self.aggregates, self.spans, strict=True):
            column = aggregate.result_column(nd.LANES + begin)
            if column is None:
                return None
            columns += column
        return columns

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        return [self.key, *(None for _ in inputs[1:])]

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return frozenset({tuple(range(len(self.key)))})

    @property
    def emits_without_input(self) -> bool:
        return not self.key

    def nested_traces(self) -> dict[str, SortKey]:
        if not self.key:  # it emits a row for empty input, so there is no first iteration in which it changes
            raise CircuitError(f"{self.label()!r} cannot stand inside a fixpoint; give it a key")
        return {"/0": SortKey(self.source, self.key)}

    def nested(self, site: NestedSite) -> Nested:
        return _NestedAggregate(self, site)

    def parameters(self) -> tuple[Any, ...]:
        return self.key, self.aggregates, self.schema.names

    def label(self) -> str:
        names = self.source.names
        calls = [f"{a.name}({'*' if (c := a.argument()) is None else names[c]})" for a in self.aggregates]
        return f"aggregate {', '.join(calls)}" + (f" by ({', '.join(names[c] for c in self.key)})" if self.key else "")


class _NestedAggregate(NestedReduce):
    """Grouped aggregation inside a fixpoint. Its input is not arranged, so it keeps the rows of the input by key
    itself."""

    def __init__(self, operator: GroupAggregate, site: NestedSite) -> None:
        super().__init__(operator, site.pending, deltas=1)
        self._rows = site.trace("/0")

    def step(self, path: Path, inputs: Sequence[Any]) -> Delta:
        return super().step(path, [self._rows.step(path, inputs[:1]), *inputs[1:]])

    def deferred_sort_key(self, inputs: Sequence[Any]) -> SortKey:
        return super().deferred_sort_key([self._rows])


def _columns_of(hits: FoundRows) -> list[pa.Array]:
    schema = hits.spine.sort_key.schema
    return gather_columns(schema, hits.spine.sources[0], hits.pos, range(schema.columns))


def _null_where_none(values: pa.Array, counts: pa.Array) -> pa.Array:
    numbers = counts.to_numpy()
    return values if numbers.all() else pc.if_else(pa.array(numbers == 0), pa.scalar(None, values.type), values)


def _narrowed(sums: pa.Array, out: pa.DataType) -> pa.Array:
    """Cast 38-digit sums to the type of the result; raises if one does not fit."""
    if sums.type == out:
        return sums
    if out == _BIGINT:
        narrow = allocate(8 * len(sums))
        if len(sums) and kg.narrow_sums(sums.buffers()[1].address + 16 * sums.offset, len(sums), narrow.address):
            raise DbsparkError("a sum does not fit BIGINT; nothing was applied. Cast the column to a decimal")
        return pa.Array.from_buffers(_BIGINT, len(sums), [None, narrow])
    try:
        return pc.cast(sums, out)
    except pa.ArrowInvalid as error:
        raise DbsparkError(f"a sum does not fit {out}; nothing was applied ({error})") from None


def _divided(sums: pa.Array, counts: Any, out: pa.DataType) -> pa.Array:
    """Decimal sums over counts, rounded half up to the result's digits."""
    quotients = allocate(16 * len(sums))
    if not len(sums):
        return pa.array([], out)
    factor = 10 ** (out.scale - sums.type.scale)
    address = sums.buffers()[1].address + 16 * sums.offset
    wrong = kg.divide_sums(address, counts, factor, quotients.address)
    exact = pa.Array.from_buffers(pa.decimal128(38, out.scale), len(sums), [None, quotients])
    if wrong:
        raise DbsparkError(f"an average does not fit {out}; nothing was applied")
    return _narrowed(exact, out)


def _zero(columns: Sequence[pa.Array]) -> Any:
    """Mask of the rows of state whose accumulators are all zero: numbers that are 0, exact sums that are empty."""
    rows = len(columns[0])
    out = np.ones(rows, bool)
    for column in columns:
        dtype = column.type
        if pa.types.is_int64(dtype) and not column.null_count:
            out &= column.to_numpy() == 0
        elif pa.types.is_decimal(dtype) and not column.null_count:
            words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset : 2 * (column.offset + rows)]
            out &= (words[::2] == 0) & (words[1::2] == 0)
        elif pa.types.is_binary(dtype) and not column.null_count:
            offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + rows + 1]
            out &= offsets[1:] == offsets[:-1]
    return out


__all__ = [
    "Aggregate", "Average", "Count", "Extreme", "FloatSum", "GroupAggregate", "Sum", "Touched",
]  # fmt: skip
