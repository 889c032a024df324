"""Linear operators: applied to a delta they give the delta of the output. No state; cost: the delta.

Functions work on columns: they take the Arrow arrays of the input and return those of the output (`map`), a boolean
array (`filter`), or arrays and the number of the input row of each output row (`flat_map`). They must be deterministic,
and the result for a row must not depend on other rows; otherwise the operator would not be linear.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.columnar import SortKey
from dbspark.columnar.conform import conform
from dbspark.columnar.delta import ChunkedDelta, Delta
from dbspark.columnar.schema import Schema
from dbspark.errors import SchemaError
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm import result_columns as ks
from dbspark.operators.arranged import State
from dbspark.operators.function import Columns, Function
from dbspark.operators.instruction import (
    Instruction,
    InstructionSite,
    all_columns,
    instruction_words,
    pass_through,
    relocated,
)
from dbspark.operators.integral import ZSetRef
from dbspark.operators.nested import Nested, NestedSite, NestedStateless
from dbspark.operators.operator import Operator
from dbspark.operators.placement import Key, Placed, Policy, after_projection
from dbspark.zset.weights import multiply_weights


class Stateless(Operator):
    """An operator without state."""

    def step(self, state: State, inputs: Sequence[Any]) -> tuple[State, Any]:
        deltas = [i.delta() if isinstance(i, ZSetRef) else i for i in inputs]
        if len(deltas) == 1 and isinstance(deltas[0], ChunkedDelta):
            return (), deltas[0].map_parts(self.schema, lambda part: self.applied([part]))
        return (), self.applied(deltas)

    def applied(self, deltas: Sequence[Delta]) -> Delta:
        """The output of a step, also where rows of the deltas cancel and evaluating them would fail."""
        return self.apply(deltas)

    @property
    def skips_empty_input(self) -> bool:
        return True

    @abstractmethod
    def apply(self, inputs: Sequence[Any]) -> Delta:
        """The output for the deltas of one tick."""

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        return [None] * len(inputs)

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return after_projection(self.passed_columns(), inputs[0])

    def passed_columns(self) -> Mapping[int, int]:
        """{output column: input column} for the columns of its only input that it passes on unchanged."""
        return {}

    def nested_traces(self) -> dict[str, SortKey]:
        return {}

    def nested(self, site: NestedSite) -> Nested:
        return NestedStateless(self.schema, self.apply)


class FunctionOperator(Stateless):
    """An operator that is a function on columns."""

    verb: str

    def __init__(self, schema: Schema, function: Function) -> None:
        self.schema = schema
        self.function = function

    def applied(self, deltas: Sequence[Delta]) -> Delta:
        """Like `apply`; but if the function fails, it is evaluated again without the rows that cancel.

        Rows that cancel exist neither before nor after the tick, so recomputing the query would not evaluate them.
        """
        try:
            return self.apply(deltas)
        except Exception:
            net = [delta.consolidated() for delta in deltas]
            if all(n.rows == delta.rows for n, delta in zip(net, deltas, strict=True)):
                raise
            return self.apply(net)

    def parameters(self) -> tuple[Any, ...]:
        return self.function, self.schema

    def label(self) -> str:
        return f"{self.verb} {self.function.name}"


class RowFunction(FunctionOperator):
    """An operator whose function returns output columns."""

    def passed_columns(self) -> Mapping[int, int]:
        return self.function.passed_columns

    def instruction(self, site: InstructionSite) -> Instruction | None:
        bytecode = self.function.bytecode
        if bytecode is None or not bytecode.columns:
            return None
        if not bytecode.test and site.is_identity([c.number if c.kind < 0 else -1 for c in bytecode.columns]):
            return site.same_rows()
        test, code = (relocated(part, lambda c: (0, c)) for part in (bytecode.test, bytecode.code))
        columns: list[int] = []
        for column in bytecode.columns:
            if column.kind < 0:
                columns += pass_through([(0, column.number)])
            else:
                columns += [ks.COMPUTED, column.kind, column.number, column.width, 0]
        return site.projection(self.schema, test, code, columns, bytecode)


class Map(RowFunction):
    """A function of each row: every row becomes one row."""

    kind: ClassVar[str] = "map"
    version: ClassVar[int] = 1

    verb = "map"

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        delta = inputs[0]
        if not delta.rows:
            return Delta.empty(self.schema)
        columns = [_one_array(c) for c in self.function(delta.columns)]
        return Delta(self.schema, fitting(self.schema, columns, delta.rows), delta.weights)


class Filter(FunctionOperator):
    """A filter: the rows for which a function is true; NULL is not true."""

    kind: ClassVar[str] = "filter"
    version: ClassVar[int] = 1

    verb = "filter"

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        delta = inputs[0]
        if not delta.rows:
            return delta
        mask = true_rows(self.function(delta.columns), delta.rows)
        if mask.all():
            return delta
        return delta.at(np.flatnonzero(mask), range(delta.schema.columns), delta.schema)

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return inputs[0]


class Select(FunctionOperator):
    """A filter and a projection in one: some columns of the rows for which a function, of some columns, is true."""

    kind: ClassVar[str] = "filter-project"
    version: ClassVar[int] = 1

    verb = "select"

    def __init__(
        self, schema: Schema, function: Function, condition_columns: Sequence[int], columns: Sequence[int]
    ) -> None:
        """The function takes the `condition_columns`; `columns` are the output."""
        super().__init__(schema, function)
        self.condition_columns = tuple(condition_columns)
        self.columns = tuple(columns)
        self.all_columns = self.columns == tuple(range(schema.columns))

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        delta = inputs[0]
        if not delta.rows:
            return Delta.empty(self.schema)
        mask = true_rows(self.function([delta.column(c) for c in self.condition_columns]), delta.rows)
        if mask.all():
            same = self.all_columns and delta.schema is self.schema
            return delta if same else delta.select(self.columns, self.schema)
        return delta.at(np.flatnonzero(mask), self.columns, self.schema)

    def passed_columns(self) -> Mapping[int, int]:
        return dict(enumerate(self.columns))

    def instruction(self, site: InstructionSite) -> Instruction | None:
        bytecode = self.function.bytecode
        if bytecode is None or not bytecode.test:
            return None
        test = relocated(bytecode.test, lambda c: (0, self.condition_columns[c]))
        return site.projection(self.schema, test, (), pass_through([(0, c) for c in self.columns]), bytecode)

    def parameters(self) -> tuple[Any, ...]:
        return *super().parameters(), self.condition_columns, self.columns

    def label(self) -> str:
        return f"project {', '.join(f'c{c}' for c in self.columns)} where {self.function.name}"


def true_rows(condition: Any, rows: int) -> Any:
    """A boolean column of `rows` rows as a numpy mask; NULL is not true."""
    array = _one_array(condition)
    if not pa.types.is_boolean(array.type):
        raise SchemaError(f"a condition is a boolean column; the function gave {array.type}")
    if len(array) != rows:
        raise SchemaError(f"a condition has a value for each row; the function gave {len(array)} for {rows} rows")
    if array.null_count:
        array = pc.fill_null(array, False)
    return array.to_numpy(zero_copy_only=False)


class Project(Stateless):
    """A projection: some columns, perhaps under other names."""

    kind: ClassVar[str] = "project"
    version: ClassVar[int] = 1

    def __init__(self, schema: Schema, columns: Sequence[int]) -> None:
        self.schema = schema
        self.columns = tuple(columns)

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        return inputs[0].select(self.columns, self.schema)

    def passed_columns(self) -> Mapping[int, int]:
        return dict(enumerate(self.columns))

    def instruction(self, site: InstructionSite) -> Instruction:
        if site.is_identity(self.columns):
            return site.same_rows()
        return site.projection(self.schema, (), (), pass_through([(0, c) for c in self.columns]))

    def parameters(self) -> tuple[Any, ...]:
        return self.columns, self.schema

    def label(self) -> str:
        return f"project {', '.join(self.schema.names)}"


class FlatMap(RowFunction):
    """A flat map: every row becomes any number of rows. The function returns (columns, input row of each output row).

    None instead of the input rows means that every row has become exactly one.
    """

    kind: ClassVar[str] = "flat-map"
    version: ClassVar[int] = 1

    verb = "flat map"

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        delta = inputs[0]
        if not delta.rows:
            return Delta.empty(self.schema)
        columns, origin = self.function(delta.columns)
        if origin is None:
            return Delta(self.schema, fitting(self.schema, [_one_array(c) for c in columns], delta.rows), delta.weights)
        origin = np.asarray(origin, np.int64)
        if len(origin) and (origin.min() < 0 or origin.max() >= delta.rows):
            raise SchemaError(
                f"a flat map says which row each row comes from, 0 to {delta.rows - 1}; it said otherwise"
            )
        fitted = fitting(self.schema, [_one_array(c) for c in columns], len(origin))
        return Delta(self.schema, fitted, delta.weights[origin])


class Scale(Stateless):
    """A scaling: all weights times a factor; negation is the factor -1."""

    kind: ClassVar[str] = "scale"
    version: ClassVar[int] = 1

    def __init__(self, schema: Schema, factor: int) -> None:
        self.schema = schema
        self.factor = factor

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        delta = inputs[0]
        if not delta.rows or self.factor == 0:
            return Delta.empty(self.schema)
        return Delta(self.schema, delta.columns, multiply_weights(delta.weights, self.factor))

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return inputs[0]

    def parameters(self) -> tuple[Any, ...]:
        return (self.factor,)

    def label(self) -> str:
        return "negate" if self.factor == -1 else f"times {self.factor}"


class WeightedUnion(Stateless):
    """The sum of any number of streams of one schema; `signs` makes it a difference."""

    kind: ClassVar[str] = "weighted-union"
    version: ClassVar[int] = 1

    def __init__(self, schema: Schema, signs: Sequence[int]) -> None:
        self.schema = schema
        self.signs = tuple(signs)

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        signed = [
            d if s == 1 or not d.rows else Delta(self.schema, d.columns, multiply_weights(d.weights, s))
            for d, s in zip(inputs, self.signs, strict=True)
        ]
        return Delta.sum(self.schema, signed)

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return frozenset.intersection(*inputs)

    def instruction(self, site: InstructionSite) -> Instruction | None:
        if any(sign != 1 for sign in self.signs):
            return None
        sources, out, schema = [site.input(i) for i in range(len(site.inputs))], site.register(), self.schema

        def lines(retained: int) -> list[int]:
            columns = all_columns(schema)
            return instruction_words(
                km.SUM, out, retained, schema.columns, schema.node_count, len(sources), *sources, *columns
            )

        return Instruction(lines, out)

    def parameters(self) -> tuple[Any, ...]:
        return (self.signs,)

    def label(self) -> str:
        return " ".join("+" if s == 1 else "-" if s == -1 else f"{s:+}" for s in self.signs)


class Consolidate(Stateless):
    """Consolidation: equal rows become one with the sum of their weights. Pays before operators that multiply rows."""

    kind: ClassVar[str] = "consolidate"
    version: ClassVar[int] = 1

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        delta: Delta = inputs[0]
        return delta.consolidated()

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return inputs[0]

    def instruction(self, site: InstructionSite) -> Instruction:
        source, out, schema = site.input(), site.register(), self.schema
        nodes = range(nd.LANES, nd.LANES + schema.columns)

        def lines(retained: int) -> list[int]:
            return instruction_words(
                km.CONSOLIDATE, source, out, retained, site.mask, schema.node_count, schema.columns, *nodes,
                *all_columns(schema),
            )  # fmt: skip

        return Instruction(lines, out, passes=site.inputs)

    def parameters(self) -> tuple[Any, ...]:
        return ()

    def label(self) -> str:
        return "consolidate"


class Exchange(Stateless):
    """An exchange: rows change shard by some columns here; on one machine they stay where they are."""

    kind: ClassVar[str] = "exchange"
    version: ClassVar[int] = 1

    def __init__(self, schema: Schema, key: Sequence[int]) -> None:
        self.schema = schema
        self.key = tuple(key)

    def apply(self, inputs: Sequence[Delta]) -> Delta:
        return inputs[0]

    def input_placements(self, inputs: Sequence[Placed], policy: Policy) -> list[Key | None]:
        return [self.key]

    def output_placement(self, inputs: Sequence[Placed], policies: tuple[Policy, ...]) -> Placed:
        return frozenset({self.key})

    def instruction(self, site: InstructionSite) -> Instruction:
        return site.same_rows()

    def parameters(self) -> tuple[Any, ...]:
        return (self.key,)

    def label(self) -> str:
        return f"exchange by ({', '.join(self.schema.names[c] for c in self.key)})"


def _one_array(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column if isinstance(column, pa.Array) else pa.array(column)


def fitting(schema: Schema, columns: list[pa.Array], rows: int | None) -> Columns:
    """The columns that a function has returned, converted to the schema; checks that they have `rows` rows, if
    given."""
    if rows is None and columns:
        rows = len(columns[0])
    if len(columns) != schema.columns:
        raise SchemaError(f"a function gave {len(columns)} columns for the {schema.columns} of {schema!r}")
    for name, column in zip(schema.names, columns, strict=True):
        if len(column) != rows:
            raise SchemaError(f"a function gave {len(column)} values for the {rows} rows of column {name!r}")
    if schema.fits(columns):
        return columns
    source = pa.schema([pa.field(n, c.type) for n, c in zip(schema.names, columns, strict=True)])
    return conform(schema, source, columns)
