"""Compiles aggregates: one column for each distinct key, argument and filter, then one operator for all functions.

On shards, an aggregate over all rows that is not a sum is first computed for buckets of rows, so that shards share the
work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dbspark.circuit.builder import Builder
from dbspark.circuit.graph import Stream
from dbspark.errors import DbsparkError
from dbspark.operators.aggregate import Aggregate as AggregateFunction
from dbspark.operators.aggregate import Count, Extreme
from dbspark.operators.collect import First, GroupReadingAggregate, Recompute
from dbspark.operators.function import Function
from dbspark.sql import aggregates, identity
from dbspark.sql import plan as p
from dbspark.sql.node_compiler import NodeCompiler, bucket_column
from dbspark.sql.plan_analysis import columns_in, counts_rows, true_where_not_null
from dbspark.sql.relations import MaintenanceNote, Relation, Scope, reads_partitions
from dbspark.sql.struct_keys import flatten_struct_keys

_LOOKED_AT_FIRST: Final = {
    "CovSample": (0, 1),
    "CovPopulation": (0, 1),
    "Corr": (0, 1),
    "RegrSXY": (0, 1),
    "RegrR2": (0, 1),
    "RegrSlope": (1, 0),
    "RegrIntercept": (1, 0),
    "MaxBy": (1, 0),
    "MinBy": (1, 0),
}
"""By aggregate, the positions of two arguments: Spark evaluates the second only where the first is not NULL."""


class AggregateCompiler(NodeCompiler):
    """Compiles aggregates."""

    def _aggregate(self, node: p.Aggregate, scope: Scope, needed: frozenset[int] | None) -> Relation:
        b = scope.builder
        if id(node.child) not in scope.known:
            node = flatten_struct_keys(node, self._new_column_id)
        exprs = [k.expr for k in node.keys]
        for _, aggregation in node.aggregations:
            exprs += aggregation.call.args
            exprs += [aggregation.where] if aggregation.where is not None else []
        ends = not node.keys and any(a.call.name in ("Min", "Max") for _, a in node.aggregations)
        bucket = self._bucket_below(node.child, scope) if ends else None
        below = columns_in(exprs)
        rel = self.relation(node.child, scope, below if bucket is None else below | {bucket})
        rel, exprs = self._without_subqueries(rel, exprs, scope)
        rewritten = iter(exprs)
        # One column for each different expression: keys first, then arguments and filters.
        outputs: dict[p.Expr, int] = {}
        keys = [outputs.setdefault(next(rewritten), len(outputs)) for _ in node.keys]
        calls: list[tuple[p.Aggregation, list[int], int | None]] = []
        for _, aggregation in node.aggregations:
            args = [next(rewritten) for _ in aggregation.call.args]
            where = next(rewritten) if aggregation.where is not None else None
            if aggregation.call.name == "Count" and len(args) > 1 and not aggregation.distinct:
                args = [true_where_not_null(args)]
            args = self._guarded(rel, aggregation, args, where)
            columns = [] if counts_rows(aggregation, args) else [outputs.setdefault(a, len(outputs)) for a in args]
            at = None if where is None else outputs.setdefault(where, len(outputs))
            calls.append((replace(aggregation, call=replace(aggregation.call, args=tuple(args))), columns, at))
        made_of = [(self._new_column_id(), e) for e in outputs]
        if bucket in rel.ids:
            made_of.append((bucket, bucket_column(bucket)))
        given = self._map_expressions(scope, rel, made_of)
        if not node.aggregations and not node.keys:  # neither keys nor functions: always one row
            made = Relation(self._positional(b, b.aggregate(given.stream, [], n=Count(None))), (self._new_column_id(),))
        elif not node.aggregations:
            made = Relation(b.distinct(given.stream), tuple(k.id for k in node.keys))
            self._note(MaintenanceNote("distinct", "incremental"))
        else:
            functions = {
                f"a{i}": self._aggregate_function(call, columns, given.types, where)
                for i, (call, columns, where) in enumerate(calls)
            }
            stream = self._aggregated(b, given, [f"c{k}" for k in keys], functions, bucket)
            ids = (*(k.id for k in node.keys), *(c.id for c, _ in node.aggregations))
            self._synthetic |= {c.id for c, _ in node.aggregations} | {k.id for k in node.keys if k.id < 0}
            made = Relation(self._positional(b, stream), ids)
        outs = [n for n in node.outputs if needed is None or n.id in needed]
        finished, finals = self._without_subqueries(made, [n.expr for n in outs], scope)
        return self._map_expressions(scope, finished, [(n.id, e) for n, e in zip(outs, finals, strict=True)])

    def _guarded(
        self, rel: Relation, aggregation: p.Aggregation, args: Sequence[p.Expr], where: p.Expr | None
    ) -> list[p.Expr]:
        """Arguments as Spark evaluates them: where the filter holds, and where no argument before them is NULL.

        An argument that cannot fail is the same column under every filter.
        """
        compiler = self.compiler(rel)
        first: dict[int, p.Expr | None] = dict.fromkeys(range(len(args)), where)
        if aggregation.call.name in _LOOKED_AT_FIRST:
            before, after = _LOOKED_AT_FIRST[aggregation.call.name]
            there = p.Call("IsNotNull", (args[before],))
            first[after] = there if where is None else p.Call("And", (where, there))
        out: list[p.Expr] = []
        for arg, condition in zip(args, first.values(), strict=True):
            compiled = compiler.compile(arg)
            if condition is None or not compiled.can_fail:
                out.append(arg)
            else:
                out.append(self.spark.where(condition, arg, compiled.type))
        return out

    def _aggregated(
        self, b: Builder, given: Relation, keys: Sequence[str], functions: Mapping[str, AggregateFunction],
        bucket: int | None,
    ) -> Stream:  # fmt: skip
        """Aggregates over a relation; with buckets, functions that allow it are computed for each bucket first."""
        if bucket is None or not all(f.additive or isinstance(f, Extreme) for f in functions.values()):
            return b.aggregate(given.stream, keys, **functions)
        given = self._in_buckets(b, given, bucket)
        return b.aggregate_of_buckets(given.stream, given.name(bucket), functions)

    def _aggregate_function(
        self, call: p.Aggregation, columns: Sequence[int], types: Sequence[pa.DataType], where: int | None
    ) -> AggregateFunction:
        given = [types[c] for c in columns]
        found = aggregates.compile_aggregate(call, columns, given, where)
        name = call.call.name
        if found is not None:
            what = f"aggregate {name}{' distinct' if call.distinct else ''}"
            # `First` reads one end of the group only, not all of its rows.
            whole = isinstance(found, GroupReadingAggregate) and not isinstance(found, First)
            self._note(reads_partitions(what) if whole else MaintenanceNote(what, "incremental"))
            return found
        if call.call.origin is None:
            raise DbsparkError(f"there is no rule for the aggregate {name}")
        self._note(
            reads_partitions(
                f"aggregate {name}", "affected groups", "AGGREGATE_FUNCTION", f"no incremental rule for {name}"
            )
        )
        return self._through_spark(call, columns, given, where)

    def _through_spark(
        self, call: p.Aggregation, columns: Sequence[int], types: Sequence[pa.DataType], where: int | None
    ) -> AggregateFunction:
        evaluate, out = self.spark.aggregate(call, types)
        label = f"{call.call.name}{call.call.options} distinct={call.distinct}"
        constants = [a for a in call.call.args if isinstance(a, p.Constant)]
        made = identity.SparkAggregate(self.context, identity.aggregation(call))
        return Recompute(Function(evaluate, f"{label} {constants}", identity=made), out, list(columns), where=where)
