"""`Builder`: circuits by hand.

    >>> b = Builder()
    >>> orders = b.source("orders", "id BIGINT, customer BIGINT, amount BIGINT")
    >>> customers = b.source("customers", "customer BIGINT, region STRING")
    >>> joined = b.join(orders, customers, on=["customer"])
    >>> b.output("revenue", b.aggregate(joined, ["region"], n=("count", None), total=("sum", "amount")))
    >>> c = b.circuit()
    >>> out = c.tick({"orders": [(1, 7, 30), (2, 7, 12)], "customers": [(7, "north")]})
    >>> list(out["revenue"])
    [(('north', 2, 42), 1)]

Streams of deltas are what operators take and give. An operator that needs the integral of a stream by some key gets it
from an arrange node, which is made on demand and shared by all that need the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dbspark.batch import Arrangement
from dbspark.batch.arrangement import OrderColumn
from dbspark.batch.schema import Schema, SchemaLike
from dbspark.circuit.executor import Circuit
from dbspark.circuit.graph import Graph, Stream
from dbspark.errors import CircuitError, SchemaError
from dbspark.operators import linear
from dbspark.operators.aggregate import Aggregate, Average, Count, Extreme, FloatSum, GroupAggregate, Sum
from dbspark.operators.distinct import Combine, Distinct, SetOperation
from dbspark.operators.join import How, Join
from dbspark.operators.linear import Function
from dbspark.operators.operator import Arrange
from dbspark.operators.ordered import TopK

OrderBy = str | tuple[str, str] | tuple[str, str, str]
"""A column, or (column, "asc" or "desc"), or with "nulls first" or "nulls last" as well."""


class Builder:
    """Adds nodes to a graph; see the module's preface."""

    def __init__(self, graph: Graph | None = None) -> None:
        self.graph = Graph() if graph is None else graph

    def source(self, name: str, schema: SchemaLike) -> Stream:
        """A stream of changes that comes from outside."""
        return self.graph.source(name, Schema.of(schema))

    def output(self, name: str, stream: Stream) -> None:
        """Give a stream a name to read it by."""
        self.graph.output(name, stream)

    def circuit(self) -> Circuit:
        """Check the graph and make it run."""
        return Circuit(self.graph)

    # ------------------------------------------------------------------ linear

    def map(self, stream: Stream, function: Callable[..., Any] | Function, schema: SchemaLike) -> Stream:
        """A row for every row: the function takes columns and gives columns of `schema`."""
        return self._linear(linear.Map(Schema.of(schema), Function.of(function)), stream)

    def filter(self, stream: Stream, function: Callable[..., Any] | Function) -> Stream:
        """The rows for which the function, of columns, is true."""
        return self._linear(linear.Filter(stream.schema, Function.of(function)), stream)

    def flat_map(self, stream: Stream, function: Callable[..., Any] | Function, schema: SchemaLike) -> Stream:
        """Any number of rows for every row: the function gives columns, and the row that each comes from."""
        return self._linear(linear.FlatMap(Schema.of(schema), Function.of(function)), stream)

    def project(self, stream: Stream, columns: Sequence[str], names: Sequence[str] | None = None) -> Stream:
        """Some columns, perhaps under other names."""
        chosen = [stream.schema.index(c) for c in columns]
        fields = [stream.schema.arrow.field(c) for c in chosen]
        if names is not None:
            fields = [f.with_name(n) for f, n in zip(fields, names, strict=True)]
        return self._linear(linear.Project(Schema(pa.schema(fields)), chosen), stream)

    def negate(self, stream: Stream) -> Stream:
        return self._linear(linear.Scale(stream.schema, -1), stream)

    def scale(self, stream: Stream, factor: int) -> Stream:
        return self._linear(linear.Scale(stream.schema, factor), stream)

    def union(self, *streams: Stream) -> Stream:
        """The sum of streams: UNION ALL."""
        return self._sum(streams, [1] * len(streams))

    def difference(self, left: Stream, right: Stream) -> Stream:
        """Left minus right, weights below zero included; for EXCEPT see `combine`."""
        return self._sum((left, right), [1, -1])

    def exchange(self, stream: Stream, key: Sequence[str]) -> Stream:
        """Says that rows change shard by some columns."""
        return self._linear(linear.Exchange(stream.schema, [stream.schema.index(c) for c in key]), stream)

    # ------------------------------------------------------------------ with state

    def arrange(self, stream: Stream, key: Sequence[str] | None, order: Sequence[OrderBy] = ()) -> Stream:
        """The integral of a stream by a key; None: by whole rows."""
        schema = stream.schema
        columns = None if key is None else [schema.index(c) for c in key]
        return self._arranged(stream, Arrangement(schema, columns, self.order_columns(schema, order)))

    def join(
        self,
        left: Stream,
        right: Stream,
        on: Sequence[str | tuple[str, str]],
        how: How = "inner",
        *,
        where: Callable[..., Any] | Function | None = None,
        select: Sequence[tuple[int, str]] | None = None,
        names: Sequence[str] | None = None,
        null_safe: bool = False,
    ) -> Stream:
        """Join on columns of one name, or on pairs of names; `where` is a condition on all columns of both.

        The columns of the left come out, then those of the right that are not keys of the same name.
        """
        pairs = [(c, c) if isinstance(c, str) else c for c in on]
        mine = self.arrange(left, [a for a, _ in pairs])
        theirs = self.arrange(right, [b for _, b in pairs])
        if select is None:
            chosen = [(0, c) for c in range(left.schema.columns)]
            if how not in ("semi", "anti", "existence"):
                same = {b for a, b in pairs if a == b and how in ("inner", "left")}
                chosen += [(1, c) for c, n in enumerate(right.schema.names) if n not in same]
        else:
            chosen = [(side, (left, right)[side].schema.index(name)) for side, name in select]
        residual = None if where is None else Function.of(where)
        operator = Join(
            _arrangement(mine), _arrangement(theirs), how,
            columns=chosen, names=names, residual=residual, null_safe=null_safe,
        )  # fmt: skip
        return self.graph.add(operator, [mine, theirs], ["arranged", "arranged"], "delta")

    def distinct(self, stream: Stream) -> Stream:
        """Every row of positive weight once."""
        arranged = self.arrange(stream, None)
        return self.graph.add(Distinct(_arrangement(arranged)), [arranged], ["arranged"], "delta")

    def combine(self, left: Stream, right: Stream, operation: SetOperation) -> Stream:
        """INTERSECT or EXCEPT, with or without ALL."""
        both = [self.arrange(s, None) for s in self._alike((left, right))]
        return self.graph.add(Combine(_arrangement(both[0]), operation), both, ["arranged", "arranged"], "delta")

    def aggregate(self, stream: Stream, key: Sequence[str], **aggregates: tuple[str, str | None] | Aggregate) -> Stream:
        """One row for every key: its columns, then the aggregates, given as name=(function, column)."""
        schema = stream.schema
        made = [a if isinstance(a, Aggregate) else self._aggregate(schema, *a) for a in aggregates.values()]
        operator = GroupAggregate(schema, [schema.index(c) for c in key], made, list(aggregates))
        arranged = [self._arranged(stream, a) for a in operator.orders()]
        return self.graph.add(operator, [stream, *arranged], ["delta", *["arranged"] * len(arranged)], "delta")  # type: ignore[list-item]

    def top(self, stream: Stream, key: Sequence[str], order: Sequence[OrderBy], limit: int, offset: int = 0) -> Stream:
        """The first rows of every key by some order; of all rows where there is no key."""
        arranged = self.arrange(stream, key, order)
        return self.graph.add(TopK(_arrangement(arranged), limit, offset), [arranged], ["arranged"], "delta")

    # ------------------------------------------------------------------ inside

    def order_columns(self, schema: Schema, order: Sequence[OrderBy]) -> list[OrderColumn]:
        """Order columns as arrangements take them. NULLs come first in ascending order, as in Spark."""
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

    def _arranged(self, stream: Stream, arrangement: Arrangement) -> Stream:
        return self.graph.add(Arrange(arrangement), [stream], ["delta"], "arranged")

    def _linear(self, operator: linear.Stateless, stream: Stream) -> Stream:
        return self.graph.add(operator, [stream], [_plain(stream)], _plain(stream))

    def _sum(self, streams: Sequence[Stream], signs: Sequence[int]) -> Stream:
        streams = self._alike(streams)
        kind = _plain(streams[0])
        return self.graph.add(linear.Sum(streams[0].schema, signs), list(streams), [kind] * len(streams), kind)

    def _alike(self, streams: Sequence[Stream]) -> list[Stream]:
        """Streams of the same types, brought to the column names of the first."""
        schema = streams[0].schema
        out = []
        for stream in streams:
            if stream.schema.types != schema.types:
                raise CircuitError(f"streams of different types: {schema!r} and {stream.schema!r}")
            same = stream.schema is schema
            out.append(stream if same else self._linear(linear.Project(schema, range(schema.columns)), stream))
        return out

    def _aggregate(self, schema: Schema, function: str, column: str | None) -> Aggregate:
        if function == "count":
            return Count(None if column is None else schema.index(column))
        if column is None:
            raise CircuitError(f"{function} needs a column")
        index = schema.index(column)
        dtype = schema.types[index]
        if function == "sum":
            return FloatSum(index) if pa.types.is_floating(dtype) else Sum(index, dtype)
        if function == "avg":
            return Average(index, dtype)
        if function in ("min", "max"):
            return Extreme(index, dtype, function == "max")
        raise CircuitError(f"no aggregate {function!r}; there are count, sum, avg, min, max, or give an Aggregate")


def _plain(stream: Stream) -> Any:
    """The kind of what a linear operator takes and gives: deltas or values alike."""
    if stream.kind == "arranged":
        raise CircuitError(f"{stream.node.label!r} is arranged; use the stream that was arranged")
    return stream.kind


def _arrangement(arranged: Stream) -> Arrangement:
    operator = arranged.node.operator
    assert isinstance(operator, Arrange)
    return operator.arrangement


__all__ = ["Builder", "Mapping", "OrderBy"]
