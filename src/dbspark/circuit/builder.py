"""`Builder`: builds circuits in Python, without SQL.

    >>> b = Builder()
    >>> orders = b.source("orders", "id BIGINT, customer BIGINT, amount BIGINT")
    >>> customers = b.source("customers", "customer BIGINT, region STRING")
    >>> joined = b.join(orders, customers, on=["customer"])
    >>> b.output("revenue", b.aggregate(joined, ["region"], n=("count", None), total=("sum", "amount")))
    >>> c = b.circuit()
    >>> out = c.tick({"orders": [(1, 7, 30), (2, 7, 12)], "customers": [(7, "north")]})
    >>> list(out["revenue"])
    [(('north', 2, 42), 1)]

Operators take and return streams of deltas. An operator that needs the integral of a stream by some key gets it from an
arrange node, which is added on demand and shared by all operators that need the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dbspark.circuit.executor import Circuit
from dbspark.circuit.graph import Graph, Stream
from dbspark.circuit.nested import LIMIT, Fixpoint, Result
from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema, SchemaLike
from dbspark.columnar.sort_key import OrderColumn
from dbspark.errors import CircuitError, SchemaError
from dbspark.operators import linear
from dbspark.operators.aggregate import Aggregate, Average, Count, Extreme, FloatSum, GroupAggregate, Sum
from dbspark.operators.bucket import Bucket
from dbspark.operators.collect import CollectList, First, Mode, any_value, count_distinct, median
from dbspark.operators.distinct import Distinct, SetOperation, SetOperator
from dbspark.operators.external_function import ExternalFunction
from dbspark.operators.function import Function
from dbspark.operators.join import How, Join
from dbspark.operators.operator import Arrange, Operator
from dbspark.operators.range_join import Comparison, RangeJoin, range_sort_keys
from dbspark.operators.statistics import Bits, Booleans, Kurtosis, Skewness, Variance
from dbspark.operators.temporal import Differentiate, Integrate, OnValues, Product
from dbspark.operators.top_k import TopK
from dbspark.operators.window import Window, WindowFunction

OrderBy = str | tuple[str, str] | tuple[str, str, str]
"""A column; or (column, "asc" or "desc"); or (column, "asc" or "desc", "nulls first" or "nulls last")."""


class Builder:
    """Adds nodes to a graph and returns their streams."""

    def __init__(self, graph: Graph | None = None) -> None:
        self.graph = Graph() if graph is None else graph

    def source(self, name: str, schema: SchemaLike) -> Stream:
        """A stream of deltas that is an input of the circuit."""
        return self.graph.source(name, Schema.of(schema))

    def value_source(self, name: str, schema: SchemaLike) -> Stream:
        """A stream of whole values that is an input of the circuit: for circuits that define what a query means."""
        return self.graph.source(name, Schema.of(schema), "value")

    def delay(self, stream: Stream, seed: Any = None) -> Stream:
        """The delta or value of the stream one tick ago; in the first tick the seed."""
        return self.graph.delay(stream.schema, _plain(stream), seed, stream)

    def loop(self, schema: SchemaLike, seed: Any = None, values: bool = False) -> Stream:
        """A delay whose input is set later, by `connect`: the only way to build a cycle."""
        return self.graph.delay(Schema.of(schema), "value" if values else "delta", seed)

    def connect(self, delay: Stream, stream: Stream) -> None:
        """Close a loop."""
        self.graph.connect(delay, stream)

    def integrate(self, stream: Stream, key: Sequence[str] | None = None) -> Stream:
        """The integral of a stream of deltas, as a stream of values, sorted by a key."""
        columns = None if key is None else [stream.schema.index(c) for c in key]
        return self.graph.add(Integrate(SortKey(stream.schema, columns)), [stream], ["delta"], "value")

    def differentiate(self, stream: Stream) -> Stream:
        """The deltas of a stream of values."""
        return self.graph.add(Differentiate(SortKey(stream.schema)), [stream], ["value"], "delta")

    def output(self, name: str, stream: Stream) -> None:
        """Make a stream an output of the circuit, under a name."""
        self.graph.output(name, stream)

    def circuit(self) -> Circuit:
        """Check the graph and return a circuit that runs it."""
        return Circuit(self.graph)

    # ------------------------------------------------------------------ linear

    def map(self, stream: Stream, function: Callable[..., Any] | Function, schema: SchemaLike) -> Stream:
        """One row for every row: the function takes columns and returns columns of `schema`."""
        return self._linear(linear.Map(Schema.of(schema), Function.of(function)), stream)

    def filter(self, stream: Stream, function: Callable[..., Any] | Function) -> Stream:
        """The rows for which the function, of columns, is true."""
        return self._linear(linear.Filter(stream.schema, Function.of(function)), stream)

    def flat_map(self, stream: Stream, function: Callable[..., Any] | Function, schema: SchemaLike) -> Stream:
        """Any number of rows for every row: the function returns columns, and for each output row its input row."""
        return self._linear(linear.FlatMap(Schema.of(schema), Function.of(function)), stream)

    def external_function(self, stream: Stream, function: Function, schema: SchemaLike, evaluator: Any) -> Stream:
        """Like `flat_map`, evaluated by another engine; on shards, where tasks cannot call it, the driver calls
        `evaluator`."""
        return self._linear(ExternalFunction(Schema.of(schema), function, evaluator), stream)

    def project(
        self,
        stream: Stream,
        columns: Sequence[str],
        names: Sequence[str] | None = None,
        fields: Sequence[pa.Field] | None = None,
    ) -> Stream:
        """Some columns, with other names (`names`) or with other fields of the same types (`fields`) if given."""
        chosen = [stream.schema.index(c) for c in columns]
        schema = _chosen(stream.schema, chosen, names) if fields is None else Schema(pa.schema(fields))
        return self._linear(linear.Project(schema, chosen), stream)

    def select(
        self,
        stream: Stream,
        where: Callable[..., Any] | Function,
        of: Sequence[str],
        columns: Sequence[str],
        names: Sequence[str] | None = None,
    ) -> Stream:
        """Some columns of the rows for which a function of the columns `of` is true; other columns are not read."""
        tested, chosen = ([stream.schema.index(c) for c in group] for group in (of, columns))
        schema = _chosen(stream.schema, chosen, names)
        return self._linear(linear.Select(schema, Function.of(where), tested, chosen), stream)

    def negate(self, stream: Stream) -> Stream:
        return self._linear(linear.Scale(stream.schema, -1), stream)

    def scale(self, stream: Stream, factor: int) -> Stream:
        return self._linear(linear.Scale(stream.schema, factor), stream)

    def union(self, *streams: Stream) -> Stream:
        """The sum of streams: UNION ALL."""
        return self._sum(streams, [1] * len(streams))

    def difference(self, left: Stream, right: Stream) -> Stream:
        """The weights of the left minus those of the right, which may be negative; EXCEPT is `combine`."""
        return self._sum((left, right), [1, -1])

    def consolidate(self, stream: Stream) -> Stream:
        """The same Z-set with equal rows combined."""
        return self._linear(linear.Consolidate(stream.schema), stream)

    def exchange(self, stream: Stream, key: Sequence[str]) -> Stream:
        """Place rows on shards by some columns; without shards the stream is unchanged."""
        return self._linear(linear.Exchange(stream.schema, [stream.schema.index(c) for c in key]), stream)

    def bucket(self, stream: Stream, key: Sequence[str]) -> Stream:
        """Append a column with the bucket of the hash of some columns (`operators.bucket`)."""
        return self._linear(Bucket(stream.schema, [stream.schema.index(c) for c in key]), stream)

    # ------------------------------------------------------------------ with state

    def arrange(self, stream: Stream, key: Sequence[str] | None, order: Sequence[OrderBy] = ()) -> Stream:
        """Keep the integral of a stream sorted by a key (None: by whole rows), in some order inside a key."""
        schema = stream.schema
        columns = None if key is None else [schema.index(c) for c in key]
        return self._arranged(stream, SortKey(schema, columns, self.order_columns(schema, order)))

    def join(
        self,
        left: Stream,
        right: Stream,
        on: Sequence[str | tuple[str, str]],
        how: How = "inner",
        *,
        ranges: Sequence[tuple[str, Comparison, str]] = (),
        where: Callable[..., Any] | Function | None = None,
        select: Sequence[tuple[int, str]] | None = None,
        names: Sequence[str] | None = None,
        null_safe: bool = False,
    ) -> Stream:
        """Join on columns of one name, or on pairs of names; `where` is a condition on all columns of both.

        `ranges` are comparisons of a column of the left with one of the right, of the same type; partners are then
        found by bisection. The output has the columns of the left, then those of the right except keys of the same
        name.

            >>> b = Builder()
            >>> events, spans = b.source("events", "t BIGINT"), b.source("spans", "lo BIGINT, hi BIGINT")
            >>> b.output("in", b.join(events, spans, on=[], ranges=[("t", ">=", "lo"), ("t", "<", "hi")]))
            >>> list(b.circuit().tick({"events": [(3,), (9,)], "spans": [(2, 5)]})["in"])
            [((3, 2, 5), 1)]
        """
        pairs = [(c, c) if isinstance(c, str) else c for c in on]
        schemas = left.schema, right.schema
        keys = [(schemas[0].index(a), schemas[1].index(b)) for a, b in pairs]
        compared = [(schemas[0].index(a), how_to, schemas[1].index(b)) for a, how_to, b in ranges]
        if compared:
            mine, theirs = range_sort_keys(schemas, keys, compared)
        else:
            mine, theirs = (SortKey(schemas[side], [k[side] for k in keys]) for side in (0, 1))
        if select is None:
            chosen = [(0, c) for c in range(left.schema.columns)]
            if how not in ("semi", "anti", "existence"):
                same = {b for a, b in pairs if a == b and how in ("inner", "left")}
                chosen += [(1, c) for c, n in enumerate(right.schema.names) if n not in same]
        else:
            chosen = [(side, (left, right)[side].schema.index(name)) for side, name in select]
        residual = None if where is None else Function.of(where)
        more: Any = {"columns": chosen, "names": names, "residual": residual, "null_safe": null_safe}
        sides = mine, theirs
        operator = RangeJoin(*sides, how, ranges=compared, **more) if compared else Join(*sides, how, **more)
        if "value" in (left.kind, right.kind) and how == "inner":
            kind: Any = "value" if left.kind == right.kind else "delta"
            return self.graph.add(Product(operator), [left, right], [left.kind, right.kind], kind)
        return self.with_state(operator, [left, right], [mine, theirs])

    def distinct(self, stream: Stream) -> Stream:
        """Every row of positive weight once."""
        sort_key = SortKey(stream.schema)
        return self.with_state(Distinct(sort_key), [stream], [sort_key])

    def combine(self, left: Stream, right: Stream, operation: SetOperation) -> Stream:
        """INTERSECT or EXCEPT, with or without ALL."""
        streams = self._alike((left, right))
        sort_key = SortKey(streams[0].schema)
        return self.with_state(SetOperator(sort_key, operation), streams, [sort_key] * 2)

    def aggregate(self, stream: Stream, key: Sequence[str], **aggregates: tuple[str, str | None] | Aggregate) -> Stream:
        """One row for every key: its columns, then the aggregates, given as name=(function, column)."""
        schema = stream.schema
        made = [a if isinstance(a, Aggregate) else self._aggregate(schema, *a) for a in aggregates.values()]
        operator = GroupAggregate(schema, [schema.index(c) for c in key], made, list(aggregates))
        orders = operator.orders()
        return self.with_state(operator, [stream] * (1 + len(orders)), [None, *orders])

    def aggregate_of_buckets(self, stream: Stream, bucket: str, aggregates: Mapping[str, Aggregate]) -> Stream:
        """Aggregates of all rows; those that read a first or last row (min, max) read only the first row of each
        bucket."""
        schema = stream.schema
        operator = GroupAggregate(schema, (), list(aggregates.values()), list(aggregates))
        wanted = operator.orders()
        by_bucket = [SortKey(schema, [schema.index(bucket)], a.order) for a in wanted]
        firsts = [self.with_state(TopK(a, 1), [stream], [a]) for a in by_bucket]
        return self.with_state(operator, [stream, *firsts], [None, *wanted])

    def top(self, stream: Stream, key: Sequence[str], order: Sequence[OrderBy], limit: int, offset: int = 0) -> Stream:
        """The first rows of every key in some order; without a key, of all rows."""
        schema = stream.schema
        sort_key = SortKey(schema, [schema.index(c) for c in key], self.order_columns(schema, order))
        return self.with_state(TopK(sort_key, limit, offset), [stream], [sort_key])

    def window(
        self, stream: Stream, key: Sequence[str], order: Sequence[OrderBy], functions: Mapping[str, WindowFunction]
    ) -> Stream:
        """The rows with the results of window functions appended, over partitions by a key, in some order."""
        schema = stream.schema
        sort_key = SortKey(schema, [schema.index(c) for c in key], self.order_columns(schema, order))
        operator = Window(sort_key, list(functions.values()), list(functions))
        return self.with_state(operator, [stream], [sort_key])

    # ------------------------------------------------------------------ recursion

    def fixpoint(
        self,
        variables: Mapping[str, SchemaLike],
        imports: Sequence[Stream],
        body: Callable[..., Stream | Sequence[Stream]],
        limit: int = LIMIT,
    ) -> list[Stream]:
        """Iterate until nothing changes: `body(builder, *variables, *imports)` gives the next value of each variable.

        Variables begin empty. A recursion ends when an iteration changes nothing, which usually takes a `distinct`. A
        body may contain fixpoints itself.

            >>> b = Builder()
            >>> edges = b.source("edges", "src BIGINT, dst BIGINT")
            >>> def step(s, reach, edges):
            ...     further = s.join(reach, edges, [("dst", "src")], select=[(0, "src"), (1, "dst")])
            ...     return s.distinct(s.union(edges, further))
            >>> (reach,) = b.fixpoint({"reach": "src BIGINT, dst BIGINT"}, [edges], step)
            >>> b.output("reach", reach)
            >>> c = b.circuit()
            >>> sorted(row for row, _ in c.tick({"edges": [(1, 2), (2, 3)]})["reach"])
            [(1, 2), (1, 3), (2, 3)]
            >>> list(c.tick({"edges": {(2, 3): -1}})["reach"]) == [((1, 3), -1), ((2, 3), -1)]
            True
        """
        inner = Builder()
        names = list(variables)
        loops = [inner.graph.delay(Schema.of(variables[n]), "delta", None, None, n) for n in names]
        outside = [inner.graph.source(f"import{i}", s.schema) for i, s in enumerate(imports)]
        given = body(inner, *loops, *outside)
        bodies = [given] if isinstance(given, Stream) else list(given)
        if len(bodies) != len(names):
            raise CircuitError(f"the body of a fixpoint gives a stream for each of {', '.join(names)}")
        for name, loop, stream in zip(names, loops, bodies, strict=True):
            aligned = inner._alike([loop, stream])[1]
            inner.graph.connect(loop, aligned)
            inner.graph.output(name, aligned)
        kinds: list[Any] = ["delta"] * len(imports)
        fixpoint = Fixpoint(inner.graph, limit)
        node = self.graph.add(fixpoint, imports, kinds, "nested")
        by_name = {str(v.name): v for v in fixpoint.variables}
        return [self.graph.add(Result(by_name[n]), [node], ["nested"], "delta") for n in names]

    # ------------------------------------------------------------------ adding nodes

    def order_columns(self, schema: Schema, order: Sequence[OrderBy]) -> list[OrderColumn]:
        """Order columns as `SortKey` takes them. By default NULLs come first in ascending order, as in Spark."""
        out: list[OrderColumn] = []
        for given in order:
            name, *how = (given,) if isinstance(given, str) else given
            direction = how[0] if how else "asc"
            nulls = how[1] if len(how) > 1 else ("nulls last" if direction == "desc" else "nulls first")
            if direction not in ("asc", "desc") or nulls not in ("nulls first", "nulls last"):
                raise SchemaError(
                    f"an order is (column, 'asc' or 'desc', 'nulls first' or 'nulls last'); given {given!r}"
                )
            out.append((schema.index(name), direction == "desc", nulls == "nulls last"))
        return out

    def _arranged(self, stream: Stream, sort_key: SortKey) -> Stream:
        return self.graph.add(Arrange(sort_key), [stream], ["delta"], "arranged")

    def with_state(self, operator: Operator, streams: Sequence[Stream], sort_keys: Sequence[SortKey | None]) -> Stream:
        """Add an operator and arrange its inputs by `sort_keys`. On streams of values the operator is applied to whole
        values."""
        if any(s.kind == "value" for s in streams):
            lifted = OnValues(operator, sort_keys)
            return self.graph.add(lifted, streams, ["value"] * len(streams), "value")
        given = [s if a is None else self._arranged(s, a) for s, a in zip(streams, sort_keys, strict=True)]
        kinds: list[Any] = ["delta" if a is None else "arranged" for a in sort_keys]
        return self.graph.add(operator, given, kinds, "delta")

    def _linear(self, operator: linear.Stateless, stream: Stream) -> Stream:
        return self.graph.add(operator, [stream], [_plain(stream)], _plain(stream))

    def _sum(self, streams: Sequence[Stream], signs: Sequence[int]) -> Stream:
        streams = self._alike(streams)
        kind = _plain(streams[0])
        return self.graph.add(
            linear.WeightedUnion(streams[0].schema, signs), list(streams), [kind] * len(streams), kind
        )

    def _alike(self, streams: Sequence[Stream]) -> list[Stream]:
        """Streams of the same types, brought to the column names of the first."""
        first = streams[0].schema
        for stream in streams:
            if stream.schema.types != first.types:
                raise CircuitError(f"streams of different types: {first!r} and {stream.schema!r}")
        nullable = [any(s.schema.arrow.field(c).nullable for s in streams) for c in range(first.columns)]
        schema = Schema(pa.schema([f.with_nullable(n) for f, n in zip(first.arrow, nullable, strict=True)]))
        out = []
        for stream in streams:
            same = stream.schema is schema
            out.append(stream if same else self._linear(linear.Project(schema, range(schema.columns)), stream))
        return out

    def _aggregate(self, schema: Schema, function: str, column: str | None) -> Aggregate:
        if function == "count":
            return Count(None if column is None else schema.index(column))
        if function not in AGGREGATES:
            raise CircuitError(f"no aggregate {function!r}; there are count, {', '.join(AGGREGATES)}; or an Aggregate")
        if column is None:
            raise CircuitError(f"{function} needs a column")
        index = schema.index(column)
        return AGGREGATES[function](index, schema.types[index])


AGGREGATES: dict[str, Callable[[int, pa.DataType], Aggregate]] = {
    "sum": lambda c, t: FloatSum(c) if pa.types.is_floating(t) else Sum(c, t),
    "avg": Average,
    "min": lambda c, t: Extreme(c, t, False),
    "max": lambda c, t: Extreme(c, t, True),
    "var_samp": Variance,
    "var_pop": lambda c, t: Variance(c, t, sample=False),
    "stddev_samp": lambda c, t: Variance(c, t, root=True),
    "stddev_pop": lambda c, t: Variance(c, t, sample=False, root=True),
    "skewness": Skewness,
    "kurtosis": Kurtosis,
    "bool_and": lambda c, _: Booleans("and", c),
    "bool_or": lambda c, _: Booleans("or", c),
    "count_if": lambda c, _: Booleans("count", c),
    "bit_and": lambda c, t: Bits("and", c, t),
    "bit_or": lambda c, t: Bits("or", c, t),
    "bit_xor": lambda c, t: Bits("xor", c, t),
    "first": First,
    "last": lambda c, t: First(c, t, last=True),
    "any_value": any_value,
    "collect_list": CollectList,
    "collect_set": lambda c, t: CollectList(c, t, distinct=True),
    "mode": Mode,
    "median": median,
    "count_distinct": lambda c, _: count_distinct([c]),
}
"""Aggregates of one column by name; others are passed as objects (`operators.statistics`, `operators.collect`)."""


def _chosen(schema: Schema, columns: Sequence[int], names: Sequence[str] | None) -> Schema:
    fields = [schema.arrow.field(c) for c in columns]
    if names is not None:
        fields = [f.with_name(n) for f, n in zip(fields, names, strict=True)]
    return Schema(pa.schema(fields))


def _plain(stream: Stream) -> Any:
    """The kind of a stream for a linear operator, which works on deltas and on values; raises if it is arranged."""
    if stream.kind == "arranged":
        raise CircuitError(f"{stream.node.label!r} is arranged; use the stream that was arranged")
    return stream.kind


__all__ = ["Builder", "OrderBy"]
