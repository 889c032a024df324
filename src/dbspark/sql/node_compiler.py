"""The base of the compilers of plan nodes: expressions over relations, new columns, expressions by Spark, notes.

A `Relation` is a stream whose columns have the expression ids of Spark's plan. Columns that Spark's plan does not have
(results of aggregates, keys that are expressions, buckets) get ids below zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa

from dbspark.circuit.builder import Builder
from dbspark.circuit.graph import Stream
from dbspark.errors import DbsparkError
from dbspark.operators.aggregate import Count
from dbspark.operators.collect import any_value
from dbspark.operators.function import Function
from dbspark.operators.linear import Project as Projection
from dbspark.sql import identity
from dbspark.sql import plan as p
from dbspark.sql.column_functions import condition_function, filter_function, map_function, only_row
from dbspark.sql.determinism import NOT_DETERMINISTIC, not_deterministic
from dbspark.sql.expressions.bytecode import condition_bytecode, projection_bytecode
from dbspark.sql.expressions.compiler import ExpressionCompiler
from dbspark.sql.expressions.rules import Compiled, Context, constant
from dbspark.sql.plan_analysis import CONDITIONAL, columns_in, is_lambda, is_not_computed, never_null, origin_of_rows
from dbspark.sql.relations import MaintenanceNote, Relation, Scope, positional_schema
from dbspark.sql.spark_evaluator import SparkEvaluator


class NodeCompiler(ABC):
    """Compiles expressions over relations, and what all kinds of plan nodes have in common."""

    def __init__(
        self, spark: SparkEvaluator, context: Context, remarks: Sequence[str] = (),
        homes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:  # fmt: skip
        """With `homes`, the columns by which the rows of each table are sharded, the circuit is compiled for shards."""
        self.spark = spark
        self.context = context
        self.homes = homes
        self._buckets: dict[int, int] = {}
        """By `id` of a plan node, the id of the column that shall hold the bucket of each of its rows."""
        self.notes: list[MaintenanceNote] = [
            MaintenanceNote("order", "incremental", "ORDER_IGNORED", r) for r in dict.fromkeys(remarks)
        ]
        self._fresh = -1_000_000
        self._through_spark_calls = 0
        """Number of expressions so far that Spark evaluates."""
        self._synthetic: set[int] = set()
        """Columns that Spark's plan does not have: results of aggregates and subqueries."""
        self._fillers: set[int] = set()
        """Fillers: columns of relations that have none in Spark's plan, as a stream has at least one."""

    def relation(self, node: p.Node, scope: Scope, needed: frozenset[int] | None = None) -> Relation:
        """The relation of a node; `needed` are the columns that anybody above looks at, None for all."""
        if id(node) in scope.known:
            return scope.known[id(node)]
        return self._compiled(node, scope, needed)

    @abstractmethod
    def _compiled(self, node: p.Node, scope: Scope, needed: frozenset[int] | None) -> Relation:
        """The relation of a node that has not been compiled yet."""

    def compiler(self, rel: Relation) -> ExpressionCompiler:
        return ExpressionCompiler(rel.positions, rel.typed, self.context, self._compile_by_spark)

    def _compile_by_spark(self, call: p.Call, compiler: ExpressionCompiler) -> Compiled:
        """An expression that has no rule, evaluated by Spark."""
        if call.name in NOT_DETERMINISTIC:
            raise not_deterministic(call.name)
        if call.origin is None:
            raise DbsparkError(f"there is no rule for {call.name}")
        used = list(dict.fromkeys(e for e in p.walk(call) if isinstance(e, p.Column) and e.id in compiler.positions))
        if call.name == "Literal":
            value = self.spark.constant(call.origin)
            return constant(value, value.type)
        self.spark.check(call)
        self._note(MaintenanceNote(call.name, "incremental", "THROUGH_SPARK", "Spark evaluates it on each change"))
        self._through_spark_calls += 1
        if any(c.id in self._synthetic for c in used) and call.args:
            computed = [None if is_not_computed(a) else compiler.compile(a) for a in call.args]
            inside = columns_in([a for a in call.args if is_lambda(a)])
            return self.spark.function(call, computed, {c.id: compiler.compile(c) for c in used if c.id in inside})
        columns = [p.Column(c.id, c.name, compiler.types[c.id]) for c in used]
        return self.spark.expression(call.origin, columns, [compiler.positions[c.id] for c in used])

    def _note(self, note: MaintenanceNote) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _without_subqueries(
        self, rel: Relation, exprs: Sequence[p.Expr], scope: Scope
    ) -> tuple[Relation, list[p.Expr]]:
        """Scalar subqueries in expressions become columns: the relation is joined with their one row each."""
        replaced: dict[p.Subquery, p.Column] = {}

        def rewrite(expr: p.Expr) -> p.Expr:
            nonlocal rel
            if isinstance(expr, p.Subquery):
                if expr not in replaced:
                    rel, replaced[expr] = self._join_scalar_subquery(rel, expr, scope)
                return replaced[expr]
            if isinstance(expr, p.Call):
                args = tuple(rewrite(a) for a in expr.args)
                return expr if args == expr.args else replace(expr, args=args)
            return expr

        rewritten = [rewrite(e) for e in exprs]
        return rel, rewritten

    def _join_scalar_subquery(self, rel: Relation, subquery: p.Subquery, scope: Scope) -> tuple[Relation, p.Column]:
        b = scope.builder
        inner = self.relation(subquery.plan, scope)
        dtype = inner.types[0]
        if not isinstance(subquery.plan, p.Aggregate) or subquery.plan.keys:
            one = b.aggregate(inner.stream, [], n=Count(None), v=any_value(0, dtype))
            only = Function(only_row, "the only row", identity=identity.OnlyRow(self.context, ()))
            value = b.map(one, only, positional_schema([dtype]))
        else:
            value = inner.stream
        column = p.Column(self._new_column_id(), "subquery", dtype)
        names = [f"c{i}" for i in range(len(rel.ids) + 1)]
        select = [(0, n) for n in rel.stream.schema.names] + [(1, value.schema.names[0])]
        joined = b.join(rel.stream, value, [], select=select, names=names)
        self._note(MaintenanceNote("scalar subquery", "incremental"))
        return Relation(joined, (*rel.ids, column.id)), column

    def _ids(self, columns: Sequence[p.Column]) -> tuple[int, ...]:
        """The ids of columns; of rows without columns, the id of a filler, as a stream has at least one column."""
        return tuple(c.id for c in columns) or (self._filler(),)

    def _filler(self) -> int:
        number = self._new_column_id()
        self._fillers.add(number)
        return number

    def _plan_columns(self, rel: Relation) -> list[int]:
        """Positions of the columns that are in Spark's plan: all but fillers."""
        return [i for i, number in enumerate(rel.ids) if number not in self._fillers]

    def _new_column_id(self) -> int:
        self._fresh -= 1
        self._synthetic.add(self._fresh)
        return self._fresh

    def _choose(self, b: Builder, stream: Stream, columns: Sequence[int]) -> Stream:
        inner = stream.node.operator
        if isinstance(inner, Projection):  # two projections become one
            stream, columns = stream.node.inputs[0].stream, [inner.columns[c] for c in columns]
        return self._columns(b, stream, columns)

    def _columns(self, b: Builder, stream: Stream, columns: Sequence[int]) -> Stream:
        """Some columns of a stream, named by position."""
        names = [f"c{i}" for i in range(len(columns))]
        chosen = [stream.schema.names[c] for c in columns]
        if chosen == list(stream.schema.names) == names:
            return stream
        return b.project(stream, chosen, names)

    def _map_expressions(
        self, scope: Scope, rel: Relation, outputs: Sequence[tuple[int, p.Expr]], condition: p.Expr | None = None
    ) -> Relation:
        """Expressions over a relation, on the rows where a condition holds."""
        b = scope.builder
        if not outputs:
            outputs = [(self._filler(), p.Constant(True, pa.bool_()))]
        ids = tuple(number for number, _ in outputs)
        if condition is None and all(isinstance(e, p.Column) for _, e in outputs):
            columns = [rel.position(e.id) for _, e in outputs if isinstance(e, p.Column)]
            return Relation(self._choose(b, rel.stream, columns), ids)
        if condition is not None and all(isinstance(e, p.Column) for _, e in outputs):
            columns = [rel.position(e.id) for _, e in outputs if isinstance(e, p.Column)]
            return Relation(self._filter_and_select(b, rel, condition, columns), ids)
        compiler = self.compiler(rel)
        before = self._through_spark_calls
        compiled = compiler.compile_all([e for _, e in outputs])
        tests = [] if condition is None else self._tests(compiler, condition)
        if self._through_spark_calls > before:
            if condition is not None:
                rel = self._filter_rows(b, rel, condition)
            extended, exprs = self._add_spark_columns(b, rel, [e for _, e in outputs])
            if extended is not rel:
                return self._map_expressions(scope, extended, list(zip(ids, exprs, strict=True)))
            if condition is not None:
                return self._map_expressions(scope, rel, outputs)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = ", ".join(p.text(e, names) for _, e in outputs)
        test = None if condition is None else identity.tree(condition, rel.positions)
        function_identity = identity.Evaluate(
            self.context, (identity.trees([e for _, e in outputs], rel.positions), test)
        )
        schema = positional_schema([c.type for c in compiled])
        kept = {i: rel.position(e.id) for i, (_, e) in enumerate(outputs) if isinstance(e, p.Column)}
        exprs = [e for _, e in outputs]
        code = projection_bytecode(exprs, p.conjuncts(condition) if condition else [], rel.positions, compiler.type_of)
        if condition is None:
            function = Function(map_function(compiled), self._named(label), kept, code, function_identity)
            return Relation(b.map(rel.stream, function, schema), ids)
        label = f"{label} where {p.text(condition, names)}"
        # Columns that neither the condition nor the outputs read are not copied.
        used = {rel.position(number) for number in columns_in([e for _, e in outputs]) if number in rel.ids}
        call = filter_function(tests, compiled, frozenset(used))
        function = Function(call, self._named(label), kept, code, function_identity)
        return Relation(b.flat_map(rel.stream, function, schema), ids)

    def _named(self, label: str) -> str:
        """The name of a function in `explain`: what it computes, and the settings of the session that it depends on."""
        return f"{label} [{'ansi' if self.context.ansi else 'legacy'}, {self.context.timezone}]"

    def _filter_rows(self, b: Builder, rel: Relation, condition: p.Expr) -> Relation:
        return Relation(self._filter_and_select(b, rel, condition, range(len(rel.ids))), rel.ids)

    def _add_spark_columns(self, b: Builder, rel: Relation, exprs: Sequence[p.Expr]) -> tuple[Relation, list[p.Expr]]:
        """A relation with columns for the sub-expressions that Spark evaluates, and the expressions over those columns.

        Spark evaluates the largest sub-expression that its plan contains, so that Spark decides on which rows the parts
        of it are evaluated.
        """
        compiler = self.compiler(rel)
        columns = rel.columns()
        found: dict[p.Call, p.Column] = {}

        def rewrite(expr: p.Expr) -> p.Expr:
            if not isinstance(expr, p.Call) or expr in found:
                return found.get(expr, expr) if isinstance(expr, p.Call) else expr
            before = self._through_spark_calls
            dtype = compiler.compile(expr).type
            if self._through_spark_calls == before:
                return expr
            if expr.origin is not None and self.spark.columns([expr], columns, self._synthetic) is not None:
                found[expr] = p.Column(self._new_column_id(), expr.name, dtype)
                return found[expr]
            # An expression that is evaluated on some rows only stays where it is.
            always = 1 if expr.name in CONDITIONAL else len(expr.args)
            seen, rest = expr.args[:always], expr.args[always:]
            return replace(expr, args=(*(a if is_not_computed(a) else rewrite(a) for a in seen), *rest))

        rewritten = [rewrite(e) for e in exprs]
        spark_function = self.spark.columns(list(found), columns, self._synthetic) if found else None
        if spark_function is None:
            return rel, list(exprs)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = self._named(", ".join(p.text(e, names) for e in found))
        kept = dict(enumerate(spark_function.kept))
        schema = positional_schema([*rel.types, *spark_function.types])
        function_identity = identity.SparkExpressions(self.context, identity.trees(list(found), rel.positions))
        function = Function(spark_function.answer, label, kept, identity=function_identity)
        stream = b.external_function(rel.stream, function, schema, spark_function)
        return Relation(stream, (*rel.ids, *(c.id for c in found.values()))), rewritten

    def _filter_by_spark(self, b: Builder, rel: Relation, condition: p.Expr, columns: Sequence[int]) -> Stream | None:
        """As `_filter_and_select`, where Spark evaluates a part of the condition on rows for which the rest holds."""
        parts = p.conjuncts(condition)
        compiler = self.compiler(rel)
        before = self._through_spark_calls
        sure: list[p.Expr] = [p.Call("IsNotNull", (c,)) for c in never_null(parts)]
        rest: list[p.Expr] = []
        for part in parts:  # in their order: a part is not evaluated before an earlier one that can fail
            failing = bool(rest) or compiler.compile(part).can_fail or self._through_spark_calls > before
            (rest if failing else sure).append(part)
        given = self._filter_rows(b, rel, reduce(lambda a, c: p.Call("And", (a, c)), sure)) if sure else rel
        whole = self.spark.both(rest)
        extended, tests = self._add_spark_columns(b, given, rest if whole is None else [whole])
        if extended is given:
            return None
        for test in tests:
            extended = self._filter_rows(b, extended, test)
        return self._choose(b, extended.stream, columns)

    def _filter_and_select(self, b: Builder, rel: Relation, condition: p.Expr, columns: Sequence[int]) -> Stream:
        """Some columns of the rows where a condition holds. The condition gets only the columns that it reads."""
        given = sorted(rel.position(number) for number in columns_in([condition]) if number in rel.ids) or [0]
        known = {rel.ids[c]: i for i, c in enumerate(given)}
        types = {rel.ids[c]: rel.types[c] for c in given}
        before = self._through_spark_calls
        compiler = ExpressionCompiler(known, types, self.context, self._compile_by_spark)
        tests = self._tests(compiler, condition)
        if self._through_spark_calls > before:
            by_spark = self._filter_by_spark(b, rel, condition, columns)
            if by_spark is not None:
                return by_spark
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        code = condition_bytecode(p.conjuncts(condition), known, compiler.type_of)
        function_identity = identity.Condition(self.context, identity.tree(condition, known))
        where = Function(
            condition_function(*tests), self._named(p.text(condition, names)), bytecode=code, identity=function_identity
        )
        own = rel.stream.schema.names
        positional = [f"c{i}" for i in range(len(columns))]
        return b.select(rel.stream, where, [own[c] for c in given], [own[c] for c in columns], positional)

    def _tests(self, compiler: ExpressionCompiler, *conditions: p.Expr) -> list[Compiled]:
        """Tests that all have to hold.

        They are evaluated in their order, after tests for the NULLs that make any of them fail to hold: Spark evaluates
        those first. So a row raises here exactly if it raises in Spark.
        """
        whole = [compiler.compile(c) for c in conditions]
        if not any(t.can_fail for t in whole):
            return whole
        parts = [part for c in conditions for part in p.conjuncts(c)]
        there = [p.Call("IsNotNull", (c,)) for c in never_null(parts)]
        return [compiler.compile(c) for c in (*there, *parts)]

    def _with_keys(self, scope: Scope, rel: Relation, keys: Sequence[p.Expr]) -> tuple[Relation, list[int]]:
        """A relation with columns for key expressions, and their positions."""
        computed = [(self._new_column_id(), k) for k in keys if not isinstance(k, p.Column)]
        if computed:
            every: list[tuple[int, p.Expr]] = [
                (number, p.Column(number, "", t)) for number, t in zip(rel.ids, rel.types, strict=True)
            ]
            rel = self._map_expressions(scope, rel, [*every, *computed])
        numbers = iter(number for number, _ in computed)
        return rel, [rel.position(k.id if isinstance(k, p.Column) else next(numbers)) for k in keys]

    def _positional(self, b: Builder, stream: Stream) -> Stream:
        """A stream with its columns named by position, and nothing inside nested types that may not be NULL."""
        schema = positional_schema(stream.schema.types)
        if schema.types == stream.schema.types:
            return self._choose(b, stream, range(schema.columns))
        same = Function(list, "the same columns", identity=identity.SameColumns(self.context, ()))
        return b.map(stream, same, schema)

    def _bucket_below(self, node: p.Node, scope: Scope) -> int | None:
        """On shards: a column for the bucket of each row, which a table or join below then gives, if there is one."""
        if self.homes is None or scope.known or scope.loops:  # a recursion is on one shard
            return None
        number = self._new_column_id()
        origin = origin_of_rows(node)
        if origin is not None:
            self._buckets[id(origin)] = number
        return number

    def _in_buckets(self, b: Builder, rel: Relation, bucket: int) -> Relation:
        """A relation with the bucket of each row: the column of the table or join below, or a hash of the row."""
        if bucket in rel.ids:
            return rel
        return Relation(b.bucket(rel.stream, rel.stream.schema.names), (*rel.ids, bucket))


def bucket_column(number: int) -> p.Column:
    return p.Column(number, "", pa.int64())
