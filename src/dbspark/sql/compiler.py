"""From a plan to a circuit.

Every relational node becomes streams of a `Builder`; columns of a stream are named by position (`c0`, `c1` …), so that
the same sub-query gives the same nodes whatever its columns are called and whatever numbers Spark gave them. A
list of expressions is one function, projections that only choose columns cost nothing, and a filter below a
projection is one step with it.

What there is no incremental rule for is computed anew by Spark: the groups that a tick touches where there are groups,
else everything. `Note`s say for every operator how it is maintained, and why not otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa

from dbspark.batch import Arrangement, Batch
from dbspark.batch.schema import Schema
from dbspark.circuit.builder import Builder
from dbspark.circuit.graph import Stream
from dbspark.errors import DbsparkError
from dbspark.operators.aggregate import Aggregate as AggregateFunction
from dbspark.operators.aggregate import Count, Extreme
from dbspark.operators.collect import Recompute, any_value
from dbspark.operators.constant import Constant as ConstantRows
from dbspark.operators.function import Function
from dbspark.operators.linear import Project as Projection
from dbspark.operators.recompute import RecomputeGroups
from dbspark.sql import aggregates, generators, windows
from dbspark.sql import plan as p
from dbspark.sql.catalyst import NOT_DETERMINISTIC
from dbspark.sql.expressions.compiler import Compiler
from dbspark.sql.expressions.rules import Compiled, Context, constant
from dbspark.sql.relations import Mode, Note, Rel, Scope, schema_of
from dbspark.sql.shapes import (
    all_there,
    below_expand,
    call_of,
    columns_in,
    counts_rows,
    equality,
    first_ranks,
    function_name,
    has_no_subquery,
    independent,
    is_lambda,
    never_null,
    order_by,
    origin_of_rows,
    stays,
)
from dbspark.sql.steps import evaluating, expanding, filtering, generating, only_row, testing
from dbspark.sql.structs import flat_keys
from dbspark.sql.through_spark import Spark
from dbspark.sql.timewindows import pane

FEW = 1_000
"""First rows that are looked for in buckets, on shards; there may be so many of each bucket."""


_COMPARISONS: dict[str, Any] = {
    "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
}  # fmt: skip
_TURNED: dict[str, Any] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A condition of a join that is a comparison of the left with the right."""

    condition: p.Expr
    left: p.Expr
    how: Any
    right: p.Expr


class PlanCompiler:
    """Compiles plans into one graph."""

    def __init__(
        self, spark: Spark, context: Context, remarks: Sequence[str] = (),
        homes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:  # fmt: skip
        """With `homes`, the columns by which the rows of tables lie on shards, the circuit is one for shards."""
        self.spark = spark
        self.context = context
        self.homes = homes
        self._buckets: dict[int, int] = {}
        """Nodes, by their identity, whose rows are to say in which bucket they are, and the column that does."""
        self.notes: list[Note] = [Note("order", "incremental", "ORDER_IGNORED", r) for r in dict.fromkeys(remarks)]
        self._fresh = -1_000_000
        self._through_spark_calls = 0
        """Expressions so far that Spark is to evaluate."""
        self._synthetic: set[int] = set()
        """Columns that Spark's plan does not have: results of aggregates and subqueries."""
        self._fillers: set[int] = set()
        """Columns of rows that have none in Spark's plan: a stream has one at least."""

    def relation(self, node: p.Node, scope: Scope, needed: frozenset[int] | None = None) -> Rel:
        """The relation of a node; `needed` are the columns that anybody above looks at, None for all."""
        if id(node) in scope.known:
            return scope.known[id(node)]
        return _COMPILE[type(node)](self, node, scope, needed)

    # ------------------------------------------------------------------ expressions

    def compiler(self, rel: Rel) -> Compiler:
        return Compiler(rel.positions, rel.typed, self.context, self._elsewhere)

    def _elsewhere(self, call: p.Call, compiler: Compiler) -> Compiled:
        """An expression without a rule of ours, evaluated by Spark."""
        if call.name in NOT_DETERMINISTIC:
            raise not_deterministic(call.name)
        if call.origin is None:
            raise DbsparkError(f"there is no rule for {call.name}")
        used = list(dict.fromkeys(e for e in p.walk(call) if isinstance(e, p.Column) and e.id in compiler.positions))
        if call.name == "Literal":
            value = self.spark.constant(call.origin)
            return constant(value, value.type)
        self._note(Note(call.name, "incremental", "THROUGH_SPARK", "Spark evaluates it on each change"))
        self._through_spark_calls += 1
        if any(c.id in self._synthetic for c in used) and call.args:
            computed = [None if stays(a) else compiler.compile(a) for a in call.args]
            inside = columns_in([a for a in call.args if is_lambda(a)])
            return self.spark.function(call, computed, {c.id: compiler.compile(c) for c in used if c.id in inside})
        columns = [p.Column(c.id, c.name, compiler.types[c.id]) for c in used]
        return self.spark.expression(call.origin, columns, [compiler.positions[c.id] for c in used])

    def _note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _without_subqueries(self, rel: Rel, exprs: Sequence[p.Expr], scope: Scope) -> tuple[Rel, list[p.Expr]]:
        """Scalar subqueries in expressions become columns: the relation is joined with their one row each."""
        replaced: dict[p.Subquery, p.Column] = {}

        def rewrite(expr: p.Expr) -> p.Expr:
            nonlocal rel
            if isinstance(expr, p.Subquery):
                if expr not in replaced:
                    rel, replaced[expr] = self._joined_value(rel, expr, scope)
                return replaced[expr]
            if isinstance(expr, p.Call):
                args = tuple(rewrite(a) for a in expr.args)
                return expr if args == expr.args else replace(expr, args=args)
            return expr

        rewritten = [rewrite(e) for e in exprs]
        return rel, rewritten

    def _joined_value(self, rel: Rel, subquery: p.Subquery, scope: Scope) -> tuple[Rel, p.Column]:
        b = scope.builder
        inner = self.relation(subquery.plan, scope)
        dtype = inner.types[0]
        if not isinstance(subquery.plan, p.Aggregate) or subquery.plan.keys:
            one = b.aggregate(inner.stream, [], n=Count(None), v=any_value(0, dtype))
            value = b.map(one, Function(only_row, "the only row"), schema_of([dtype]))
        else:
            value = inner.stream
        column = p.Column(self._number(), "subquery", dtype)
        names = [f"c{i}" for i in range(len(rel.ids) + 1)]
        select = [(0, n) for n in rel.stream.schema.names] + [(1, value.schema.names[0])]
        joined = b.join(rel.stream, value, [], select=select, names=names)
        self._note(Note("scalar subquery", "incremental"))
        return Rel(joined, (*rel.ids, column.id)), column

    def _ids(self, columns: Sequence[p.Column]) -> tuple[int, ...]:
        """The numbers of columns; of rows without columns, which have one of ours."""
        return tuple(c.id for c in columns) or (self._filler(),)

    def _filler(self) -> int:
        number = self._number()
        self._fillers.add(number)
        return number

    def _own(self, rel: Rel) -> list[int]:
        """Positions of the columns that Spark's plan has as well, where it counts them."""
        return [i for i, number in enumerate(rel.ids) if number not in self._fillers]

    def _number(self) -> int:
        self._fresh -= 1
        self._synthetic.add(self._fresh)
        return self._fresh

    # ------------------------------------------------------------------ leaves

    def _table(self, node: p.Table, scope: Scope, needed: frozenset[int] | None) -> Rel:
        if node.name not in scope.tables:
            raise DbsparkError(f"no table or view {node.name!r}; there are {', '.join(scope.tables) or 'none'}")
        stream = scope.tables[node.name]
        ids = tuple(c.id for c in node.columns)
        if id(node) in self._buckets and self.homes is not None:
            home = self.homes.get(node.name) or stream.schema.names
            stream = scope.builder.bucket(stream, home)
            ids = (*ids, self._buckets[id(node)])
        if needed is not None and (needed & set(ids)) != set(ids):
            # A projection of a table keeps what is needed; equal ones are shared.
            keep = [i for i, number in enumerate(ids) if number in needed] or [0]
            return Rel(self._choose(scope.builder, stream, keep), tuple(ids[i] for i in keep))
        return Rel(self._choose(scope.builder, stream, range(len(ids))), ids)

    def _choose(self, b: Builder, stream: Stream, columns: Sequence[int]) -> Stream:
        inner = stream.node.operator
        if isinstance(inner, Projection):  # one after the other is one
            stream, columns = stream.node.inputs[0].stream, [inner.columns[c] for c in columns]
        names = [f"c{i}" for i in range(len(columns))]
        chosen = [stream.schema.names[c] for c in columns]
        if chosen == list(stream.schema.names) == names:
            return stream
        return b.project(stream, chosen, names)

    def _values(self, node: p.Values, scope: Scope, needed: frozenset[int] | None) -> Rel:
        schema = schema_of([c.type for c in node.columns] or [pa.int64()])
        data = node.data.rename_columns(list(schema.names)).cast(schema.arrow)
        rows = Batch.from_arrow(data, Arrangement(schema))
        stream = scope.builder.graph.add(ConstantRows(rows), [], [], "delta")
        return Rel(stream, self._ids(node.columns))

    # ------------------------------------------------------------------ linear nodes

    def _project(self, node: p.Project, scope: Scope, needed: frozenset[int] | None) -> Rel:
        outputs = [n for n in node.outputs if needed is None or n.id in needed]
        child: p.Node = node.child
        condition: p.Expr | None = None
        if (
            isinstance(child, p.Filter)
            and not isinstance(below_expand(child), p.Expand)
            and id(child) not in scope.known
            and has_no_subquery(child.condition)
            and not isinstance(child.child, p.Window)  # a filter on ranks is the window's business
        ):
            condition, child = child.condition, child.child
        exprs = [n.expr for n in outputs]
        buckets = [n for n in self._buckets.values() if needed is None or n in needed]
        below = columns_in(exprs if condition is None else [*exprs, condition]).union(buckets)
        rel = self.relation(child, scope, below)
        rel, exprs = self._without_subqueries(rel, exprs, scope)
        made = [*zip([n.id for n in outputs], exprs, strict=True), *((n, _bucket(n)) for n in buckets if n in rel.ids)]
        return self._mapped(scope, rel, made, condition)

    def _mapped(
        self, scope: Scope, rel: Rel, outputs: Sequence[tuple[int, p.Expr]], condition: p.Expr | None = None
    ) -> Rel:
        """Expressions over a relation, on the rows where a condition holds."""
        b = scope.builder
        if not outputs:
            outputs = [(self._filler(), p.Constant(True, pa.bool_()))]
        ids = tuple(number for number, _ in outputs)
        if condition is None and all(isinstance(e, p.Column) for _, e in outputs):
            columns = [rel.position(e.id) for _, e in outputs if isinstance(e, p.Column)]
            return Rel(self._choose(b, rel.stream, columns), ids)
        if condition is not None and all(isinstance(e, p.Column) for _, e in outputs):
            columns = [rel.position(e.id) for _, e in outputs if isinstance(e, p.Column)]
            return Rel(self._selected(b, rel, condition, columns), ids)
        compiler = self.compiler(rel)
        before = self._through_spark_calls
        compiled = compiler.compile_all([e for _, e in outputs])
        tests = [] if condition is None else self._tests(compiler, condition)
        if self._through_spark_calls > before:
            if condition is not None:
                rel = self._filtered(b, rel, condition)
            asked, exprs = self._asked(b, rel, [e for _, e in outputs])
            if asked is not rel:
                return self._mapped(scope, asked, list(zip(ids, exprs, strict=True)))
            if condition is not None:
                return self._mapped(scope, rel, outputs)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = ", ".join(p.text(e, names) for _, e in outputs)
        schema = schema_of([c.type for c in compiled])
        kept = {i: rel.position(e.id) for i, (_, e) in enumerate(outputs) if isinstance(e, p.Column)}
        if condition is None:
            return Rel(b.map(rel.stream, Function(evaluating(compiled), self._named(label), kept), schema), ids)
        label = f"{label} where {p.text(condition, names)}"
        # What is neither looked at by the condition nor by the outputs is not copied.
        used = {rel.position(number) for number in columns_in([e for _, e in outputs]) if number in rel.ids}
        call = filtering(tests, compiled, frozenset(used))
        return Rel(b.flat_map(rel.stream, Function(call, self._named(label), kept), schema), ids)

    def _named(self, label: str) -> str:
        """The name of a function: what it computes, and the settings under which it does."""
        return f"{label} [{'ansi' if self.context.ansi else 'legacy'}, {self.context.timezone}]"

    def _filter(self, node: p.Filter, scope: Scope, needed: frozenset[int] | None) -> Rel:
        pushed = below_expand(node)
        if isinstance(pushed, p.Expand) and id(node.child) not in scope.known:
            return self._expand(pushed, scope, needed)
        below = None if needed is None else needed | columns_in([node.condition])
        limit, exact = first_ranks(node)
        window = node.child
        if limit and isinstance(window, p.Window):
            rank = window.functions[0][0]
            if exact and (limit == 1 or (needed is not None and rank not in needed)):
                # The first rows are all that is asked for: nobody has to number them.
                rel = self._window(window, scope, below, limit, numbered=False)
                every: list[tuple[int, p.Expr]] = [(c.id, c) for c in rel.columns()]
                ranks: list[tuple[int, p.Expr]] = [(rank, p.Constant(1, pa.int32()))]
                return rel if needed is not None and rank not in needed else self._mapped(scope, rel, every + ranks)
            rel = self._window(window, scope, below, limit)
        else:
            rel = self.relation(node.child, scope, below)
        width = len(rel.ids)
        rel, (condition,) = self._without_subqueries(rel, [node.condition], scope)
        kept = self._filtered(scope.builder, rel, condition)
        if len(rel.ids) > width:
            kept = Rel(self._choose(scope.builder, kept.stream, range(width)), rel.ids[:width])
        return kept

    def _filtered(self, b: Builder, rel: Rel, condition: p.Expr) -> Rel:
        return Rel(self._selected(b, rel, condition, range(len(rel.ids))), rel.ids)

    def _asked(self, b: Builder, rel: Rel, exprs: Sequence[p.Expr]) -> tuple[Rel, list[p.Expr]]:
        """What Spark evaluates in expressions as columns, beside those of a relation, and the expressions over those.

        Spark is given the whole expression that it has read, not its smallest part: on which rows a part is evaluated
        is Spark's business then.
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
                found[expr] = p.Column(self._number(), expr.name, dtype)
                return found[expr]
            return replace(expr, args=tuple(a if stays(a) else rewrite(a) for a in expr.args))

        rewritten = [rewrite(e) for e in exprs]
        question = self.spark.columns(list(found), columns, self._synthetic) if found else None
        if question is None:
            return rel, list(exprs)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = self._named(", ".join(p.text(e, names) for e in found))
        kept = dict(enumerate(question.kept))
        schema = schema_of([*rel.types, *question.types])
        stream = b.asked(rel.stream, Function(question.answer, label, kept), schema, question)
        return Rel(stream, (*rel.ids, *(c.id for c in found.values()))), rewritten

    def _selected_by_spark(self, b: Builder, rel: Rel, condition: p.Expr, columns: Sequence[int]) -> Stream | None:
        """As `_selected`, where Spark evaluates some of the condition: on rows for which the rest holds."""
        parts = p.conjuncts(condition)
        compiler = self.compiler(rel)
        before = self._through_spark_calls
        sure: list[p.Expr] = [p.Call("IsNotNull", (c,)) for c in never_null(parts)]
        rest: list[p.Expr] = []
        for part in parts:
            (rest if compiler.compile(part).can_fail or self._through_spark_calls > before else sure).append(part)
            before = self._through_spark_calls
        given = self._filtered(b, rel, reduce(lambda a, c: p.Call("And", (a, c)), sure)) if sure else rel
        whole = self.spark.both(rest)
        asked, tests = self._asked(b, given, rest if whole is None else [whole])
        if asked is given:
            return None
        for test in tests:
            asked = self._filtered(b, asked, test)
        return self._choose(b, asked.stream, columns)

    def _selected(self, b: Builder, rel: Rel, condition: p.Expr, columns: Sequence[int]) -> Stream:
        """Some columns of the rows where a condition holds, which is given the columns that it names and no others."""
        given = sorted(rel.position(number) for number in columns_in([condition]) if number in rel.ids) or [0]
        known = {rel.ids[c]: i for i, c in enumerate(given)}
        types = {rel.ids[c]: rel.types[c] for c in given}
        before = self._through_spark_calls
        tests = self._tests(Compiler(known, types, self.context, self._elsewhere), condition)
        if self._through_spark_calls > before:
            made = self._selected_by_spark(b, rel, condition, columns)
            if made is not None:
                return made
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        where = Function(testing(*tests), self._named(p.text(condition, names)))
        own = rel.stream.schema.names
        positional = [f"c{i}" for i in range(len(columns))]
        return b.select(rel.stream, where, [own[c] for c in given], [own[c] for c in columns], positional)

    def _tests(self, compiler: Compiler, *conditions: p.Expr) -> list[Compiled]:
        """Tests that all have to hold.

        What can fail on some value comes after what cannot, and after the NULLs that no condition accepts: Spark looks
        for those first, and so a row that fails there is one that fails here.
        """
        whole = [compiler.compile(c) for c in conditions]
        if not any(t.can_fail for t in whole):
            return whole
        parts = [part for c in conditions for part in p.conjuncts(c)]
        there = [p.Call("IsNotNull", (c,)) for c in never_null(parts)]
        tests = [compiler.compile(c) for c in (*there, *parts)]
        return sorted(tests, key=lambda t: t.can_fail)

    def _union(self, node: p.Union, scope: Scope, needed: frozenset[int] | None) -> Rel:
        streams = []
        for child in node.children:
            rel = self.relation(child, scope)
            streams.append(self._choose(scope.builder, rel.stream, self._own(rel) or [0]))
        # Spark's branches agree in type; what differs is only what may be NULL.
        return Rel(scope.builder.union(*streams), self._ids(node.columns))

    def _expand(self, node: p.Expand, scope: Scope, needed: frozenset[int] | None) -> Rel:
        kept = [i for i, c in enumerate(node.columns) if needed is None or c.id in needed] or [0]
        columns = [node.columns[i] for i in kept]
        exprs = [row[i] for row in node.projections for i in kept]
        rel = self.relation(node.child, scope, columns_in(exprs))
        rel, exprs = self._without_subqueries(rel, exprs, scope)
        paned = pane(exprs)
        if paned is not None:  # times in the same pane are in the same windows: few rows are left to expand
            time, begin = paned
            rel = self._mapped(scope, rel, [(c.id, begin if c.id == time.id else c) for c in rel.columns()])
            rel = replace(rel, stream=scope.builder.consolidate(rel.stream))
        width = len(columns)
        compiled = self.compiler(rel).compile_all(exprs)
        projections = [exprs[i : i + width] for i in range(0, len(exprs), width)]
        rows = [compiled[i : i + width] for i in range(0, len(exprs), width)]
        types = []
        for i, column in enumerate(columns):
            found = [row[i].type for row in rows if not pa.types.is_null(row[i].type)]
            types.append(found[0] if found else column.type)
        schema = schema_of(types)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = "; ".join(", ".join(p.text(e, names) for e in row) for row in projections)
        function = Function(expanding(rows, schema.types), self._named(f"expand {label}"))
        return Rel(scope.builder.flat_map(rel.stream, function, schema), tuple(c.id for c in columns))

    def _generate(self, node: p.Generate, scope: Scope, needed: frozenset[int] | None) -> Rel:
        rel = self.relation(node.child, scope)
        own = self._own(rel)
        kept = [own[i] for i in node.required if i < len(own)]
        rel, args = self._without_subqueries(rel, node.generator.args, scope)
        as_read = tuple(args) == node.generator.args
        if not as_read:  # Spark does not know the columns that subqueries have become: arguments are columns of ours
            rel, columns = self._with_keys(scope, rel, [a for a in args if not isinstance(a, p.Constant)])
            computed = (p.Column(rel.ids[c], "", rel.types[c]) for c in columns)
            args = [a if isinstance(a, p.Constant) else next(computed) for a in args]
            node = replace(node, generator=replace(node.generator, args=tuple(args)))
        ids = (*(rel.ids[i] for i in kept), *(c.id for c in node.columns))
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = f"{'outer ' if node.outer else ''}{p.text(node.generator, names)} beside {kept}"
        schema = schema_of([*(rel.types[i] for i in kept), *(c.type for c in node.columns)])
        generator = generators.native(node, self.compiler(rel))
        if generator is None:
            question = generators.through_spark(node, rel.ids, kept, self.spark, as_read)
            self._note(Note(node.generator.name, "incremental", "THROUGH_SPARK", "Spark evaluates it on each change"))
            by_spark = Function(question.answer, self._named(label), dict(enumerate(kept)))
            return Rel(scope.builder.asked(rel.stream, by_spark, schema, question), ids)
        function = Function(generating(generator, kept), self._named(label), dict(enumerate(kept)))
        return Rel(scope.builder.flat_map(rel.stream, function, schema), ids)

    # ------------------------------------------------------------------ joins

    def _join(self, node: p.Join, scope: Scope, needed: frozenset[int] | None) -> Rel:
        b = scope.builder
        condition = p.conjuncts(node.condition)
        below = None if needed is None else needed | columns_in(condition)
        left, right = (self.relation(child, scope, below) for child in (node.left, node.right))
        originals = [left.ids, right.ids]
        left, right, condition = self._condition_without_subqueries(left, right, condition, scope)
        sides = (left, right)
        pairs: list[tuple[p.Expr, p.Expr, bool]] = []
        rest: list[p.Expr] = []
        for part in condition:
            pair = equality(part, set(left.ids), set(right.ids))
            # A column is part of the key once; a second equality with it is judged.
            if pair is None or any(pair[0] == a or pair[1] == b for a, b, _ in pairs):
                rest.append(part)
            else:
                pairs.append(pair)
        null_safe = any(safe for _, _, safe in pairs)
        # Without equalities, comparisons of one side with the other say where to look; beside them, they only judge.
        ranges = [] if pairs else [r for r in (self._comparison(c, left, right) for c in rest) if r is not None]
        rest = [c for c in rest if c not in [r.condition for r in ranges]]
        keyed = []
        for side, rel in enumerate(sides):
            keys = [pair[0] if side == 0 else pair[1] for pair in pairs]
            compared = [r.left if side == 0 else r.right for r in ranges]
            keyed.append(self._with_keys(scope, rel, [*keys, *compared]))
        (left, left_keys), (right, right_keys) = keyed
        between = [(f"c{left_keys[i]}", r.how, f"c{right_keys[i]}") for i, r in enumerate(ranges, start=len(pairs))]
        left_keys, right_keys = left_keys[: len(pairs)], right_keys[: len(pairs)]
        if null_safe:
            left, right = self._without_null_keys(b, node.how, pairs, (left, left_keys), (right, right_keys))
            if node.how == "full":
                rest += [p.Call("IsNotNull", (a,)) for a, _, safe in pairs if not safe]
        on = [(f"c{a}", f"c{c}") for a, c in zip(left_keys, right_keys, strict=True)]
        residual = None
        both = {**left.positions, **{n: len(left.ids) + i for n, i in right.positions.items()}}
        compiler = Compiler(both, {**left.typed, **right.typed}, self.context, self._elsewhere)
        # What Spark is to judge, it judges after the join, if that comes to the same.
        later = [c for c in rest if self._asks(compiler, c)] if node.how == "inner" else []
        rest = [c for c in rest if c not in later]
        if rest:
            names = {number: f"c{i}" for number, i in both.items()}
            tests = self._tests(compiler, *rest)
            label = " and ".join(p.text(e, names) for e in rest)
            residual = Function(testing(*tests), self._named(label))
        one_sided = node.how in ("semi", "anti", "existence")
        looked_at = columns_in(later)
        extra: set[int] = set()  # columns that nobody above looks at
        select, ids = [], []
        for side, rel in enumerate((left, right)):
            if side and one_sided:
                continue
            for i, number in enumerate(rel.ids):
                shown = number in originals[side] and (needed is None or number in needed)
                if shown or number in looked_at:
                    select.append((side, f"c{i}"))
                    ids.append(number)
                    extra |= set() if shown else {number}
        if not select:
            select, ids = [(0, "c0")], [left.ids[0]]
        home: list[tuple[int, str]] = []  # rows lie by the key of the side that is in all of them
        if id(node) in self._buckets and node.how != "full":
            home = [(1, f"c{k}") for k in right_keys] if node.how == "right" else [(0, f"c{k}") for k in left_keys]
            more = {self._number(): c for c in home if c not in select}
            select, ids, extra = [*select, *more.values()], [*ids, *more], extra.union(more)
        if node.how == "existence":
            assert node.exists is not None
            ids.append(node.exists.id)
        names_out = [f"c{i}" for i in range(len(ids))]
        joined = b.join(
            left.stream, right.stream, on, node.how,
            ranges=between, where=residual, select=select, names=names_out, null_safe=null_safe,
        )  # fmt: skip
        self._note(Note(f"{node.how} join", "incremental"))
        made = Rel(joined, tuple(ids))
        if home:
            made = Rel(b.bucket(joined, [names_out[select.index(c)] for c in home]), (*ids, self._buckets[id(node)]))
        if later:
            made = self._filtered(b, made, reduce(lambda a, c: p.Call("And", (a, c)), later))
        keep = [i for i, number in enumerate(made.ids) if number not in extra] or [0]
        return Rel(self._choose(b, made.stream, keep), tuple(made.ids[i] for i in keep))

    def _asks(self, compiler: Compiler, expr: p.Expr) -> bool:
        """Whether Spark has to evaluate some of an expression."""
        before = self._through_spark_calls
        compiler.compile(expr)
        return self._through_spark_calls > before

    def _condition_without_subqueries(
        self, left: Rel, right: Rel, condition: Sequence[p.Expr], scope: Scope
    ) -> tuple[Rel, Rel, list[p.Expr]]:
        """Scalar subqueries in a join's condition become columns of the side whose columns they are computed with."""
        out: list[p.Expr] = []
        for part in condition:
            if has_no_subquery(part):
                out.append(part)
                continue
            operands: list[p.Expr] = list(part.args) if isinstance(part, p.Call) else [part]
            for i, operand in enumerate(operands):
                used = columns_in([operand])
                if used and used <= set(right.ids):
                    right, (operands[i],) = self._without_subqueries(right, [operand], scope)
                else:
                    left, (operands[i],) = self._without_subqueries(left, [operand], scope)
            out.append(replace(part, args=tuple(operands)) if isinstance(part, p.Call) else operands[0])
        return left, right, out

    def _comparison(self, part: p.Expr, left: Rel, right: Rel) -> _Comparison | None:
        """A condition that compares something of the left with something of the right, of a type that has an order."""
        if not isinstance(part, p.Call) or part.name not in _COMPARISONS or not has_no_subquery(part):
            return None
        how = _COMPARISONS[part.name]
        a, b = part.args
        used = [columns_in([x]) for x in (a, b)]
        if not used[0] or not used[1]:
            return None
        if used[0] <= set(right.ids) and used[1] <= set(left.ids):
            a, b, how = b, a, _TURNED[how]
        elif not (used[0] <= set(left.ids) and used[1] <= set(right.ids)):
            return None
        types = [self.compiler(rel).compile(x).type for rel, x in ((left, a), (right, b))]
        t = pa.types
        ordered = not (t.is_nested(types[0]) or t.is_interval(types[0]) or t.is_null(types[0]))
        return _Comparison(part, a, how, b) if types[0] == types[1] and ordered else None

    def _with_keys(self, scope: Scope, rel: Rel, keys: Sequence[p.Expr]) -> tuple[Rel, list[int]]:
        """A relation with columns for key expressions, and their positions."""
        computed = [(self._number(), k) for k in keys if not isinstance(k, p.Column)]
        if computed:
            every: list[tuple[int, p.Expr]] = [
                (number, p.Column(number, "", t)) for number, t in zip(rel.ids, rel.types, strict=True)
            ]
            rel = self._mapped(scope, rel, [*every, *computed])
        numbers = iter(number for number, _ in computed)
        return rel, [rel.position(k.id if isinstance(k, p.Column) else next(numbers)) for k in keys]

    def _without_null_keys(
        self, b: Builder, how: str, pairs: Sequence[tuple[p.Expr, p.Expr, bool]],
        left: tuple[Rel, list[int]], right: tuple[Rel, list[int]],
    ) -> tuple[Rel, Rel]:  # fmt: skip
        """With `=` beside `<=>`: NULLs that match nothing leave the sides whose rows may go without a partner."""
        out = []
        for side, (rel, keys) in enumerate((left, right)):
            droppable = {"inner": (0, 1), "left": (1,), "right": (0,), "semi": (0, 1), "anti": (1,), "existence": (1,)}
            if side in droppable.get(how, ()):
                for key, (_, _, safe) in zip(keys, pairs, strict=True):
                    if not safe:
                        column = p.Column(rel.ids[key], "", rel.types[key])
                        rel = self._filtered(b, rel, p.Call("IsNotNull", (column,)))
            out.append(rel)
        return out[0], out[1]

    # ------------------------------------------------------------------ aggregates

    def _aggregate(self, node: p.Aggregate, scope: Scope, needed: frozenset[int] | None) -> Rel:
        b = scope.builder
        if id(node.child) not in scope.known:
            node = flat_keys(node, self._number)
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
                args = [all_there(args)]
            columns = [] if counts_rows(aggregation, args) else [outputs.setdefault(a, len(outputs)) for a in args]
            at = None if where is None else outputs.setdefault(where, len(outputs))
            calls.append((replace(aggregation, call=replace(aggregation.call, args=tuple(args))), columns, at))
        made_of = [(self._number(), e) for e in outputs]
        if bucket in rel.ids:
            made_of.append((bucket, _bucket(bucket)))
        given = self._mapped(scope, rel, made_of)
        if not node.aggregations and not node.keys:  # one row, whatever there is
            made = Rel(self._positional(b, b.aggregate(given.stream, [], n=Count(None))), (self._number(),))
        elif not node.aggregations:
            made = Rel(b.distinct(given.stream), tuple(k.id for k in node.keys))
            self._note(Note("distinct", "incremental"))
        else:
            functions = {
                f"a{i}": self._aggregate_function(call, columns, given.types, where)
                for i, (call, columns, where) in enumerate(calls)
            }
            stream = self._aggregated(b, given, [f"c{k}" for k in keys], functions, bucket)
            ids = (*(k.id for k in node.keys), *(c.id for c, _ in node.aggregations))
            self._synthetic |= {c.id for c, _ in node.aggregations} | {k.id for k in node.keys if k.id < 0}
            made = Rel(self._positional(b, stream), ids)
        outs = [n for n in node.outputs if needed is None or n.id in needed]
        finished, finals = self._without_subqueries(made, [n.expr for n in outs], scope)
        return self._mapped(scope, finished, [(n.id, e) for n, e in zip(outs, finals, strict=True)])

    def _aggregated(
        self, b: Builder, given: Rel, keys: Sequence[str], functions: Mapping[str, AggregateFunction],
        bucket: int | None,
    ) -> Stream:  # fmt: skip
        """Aggregates over a relation; where rows are in buckets and it is of any use, over what those say."""
        if bucket is None or not all(f.additive or isinstance(f, Extreme) for f in functions.values()):
            return b.aggregate(given.stream, keys, **functions)
        given = self._in_buckets(b, given, bucket)
        return b.aggregate_of_buckets(given.stream, given.name(bucket), functions)

    def _bucket_below(self, node: p.Node, scope: Scope) -> int | None:
        """On shards: a column for the bucket of each row, which a table or join below then gives, if there is one."""
        if self.homes is None or scope.known or scope.loops:  # a recursion is on one shard
            return None
        number = self._number()
        origin = origin_of_rows(node)
        if origin is not None:
            self._buckets[id(origin)] = number
        return number

    def _in_buckets(self, b: Builder, rel: Rel, bucket: int) -> Rel:
        """A relation that says the bucket of each row: the one where the row lies, or one of whole rows."""
        if bucket in rel.ids:
            return rel
        return Rel(b.bucket(rel.stream, rel.stream.schema.names), (*rel.ids, bucket))

    def _positional(self, b: Builder, stream: Stream) -> Stream:
        """A stream with its columns named by position, and nothing inside nested types that may not be NULL."""
        schema = schema_of(stream.schema.types)
        if schema.types == stream.schema.types:
            return self._choose(b, stream, range(schema.columns))
        return b.map(stream, Function(list, "the same columns"), schema)

    def _aggregate_function(
        self, call: p.Aggregation, columns: Sequence[int], types: Sequence[pa.DataType], where: int | None
    ) -> AggregateFunction:
        given = [types[c] for c in columns]
        found = aggregates.native(call, columns, given, where)
        name = call.call.name
        if found is not None:
            self._note(Note(f"aggregate {name}{' distinct' if call.distinct else ''}", "incremental"))
            return found
        if call.call.origin is None:
            raise DbsparkError(f"there is no rule for the aggregate {name}")
        self._note(
            Note(f"aggregate {name}", "affected groups", "AGGREGATE_FUNCTION", f"no incremental rule for {name}")
        )
        return self._through_spark(call, columns, given, where)

    def _through_spark(
        self, call: p.Aggregation, columns: Sequence[int], types: Sequence[pa.DataType], where: int | None
    ) -> AggregateFunction:
        evaluate, out = self.spark.aggregate(call, types)
        label = f"{call.call.name}{call.call.options} distinct={call.distinct}"
        constants = [a for a in call.call.args if isinstance(a, p.Constant)]
        return Recompute(Function(evaluate, f"{label} {constants}"), out, list(columns), where=where)

    # ------------------------------------------------------------------ windows and tops

    def _window(
        self,
        node: p.Window,
        scope: Scope,
        needed: frozenset[int] | None,
        limit: int | None = None,
        numbered: bool = True,
    ) -> Rel:
        """A window; with `limit`, over the first rows of partitions, or just those if they are not to be `numbered`."""
        b = scope.builder
        exprs: list[p.Expr] = [*node.partition, *(o.expr for o in node.order)]
        for _, _, call in node.functions:
            inner = call.function.call if isinstance(call.function, p.Aggregation) else call.function
            # Constants are parameters (offsets, defaults), but for what is aggregated or shown.
            exprs += [a for i, a in enumerate(inner.args) if i == 0 or not isinstance(a, p.Constant)]
            if isinstance(call.function, p.Aggregation) and call.function.where is not None:
                exprs.append(call.function.where)
        mine = {number for number, _, _ in node.functions}
        below = None if needed is None else (needed - mine) | columns_in(exprs)
        rel = self.relation(node.child, scope, below)
        width = len(rel.ids)
        rel, columns = self._with_keys(scope, rel, exprs)
        at = dict(zip(exprs, columns, strict=True))
        partition = [f"c{at[e]}" for e in node.partition]
        order = [order_by(f"c{at[o.expr]}", o) for o in node.order]
        functions = []
        for _, _, call in node.functions:
            inner = call.function.call if isinstance(call.function, p.Aggregation) else call.function
            args = [at.get(a, -1) for a in inner.args]
            functions.append(windows.native(call, args, [rel.types[c] if c >= 0 else pa.null() for c in args]))
        stream = rel.stream
        if limit is not None:
            stream = b.top(stream, partition, order, limit)
            self._note(Note(f"first {limit} rows of each partition", "incremental"))
            if not numbered:
                return Rel(self._choose(b, stream, range(width)), rel.ids[:width])
        ids = (*rel.ids, *(number for number, _, _ in node.functions))
        missing = [function_name(call) for (_, _, call), f in zip(node.functions, functions, strict=True) if f is None]
        if missing:
            if limit is not None:
                return self._window(node, scope, needed)
            why = f"no incremental rule for {', '.join(missing)}"
            mode: Mode = "affected groups" if partition else "full"
            self._note(Note("window", mode, "WINDOW_FUNCTION", why))
            made = self._recomputed_window(node, b, rel, partition)
        else:
            made = b.window(
                stream, partition, order,
                {f"c{len(rel.ids) + i}": f for i, f in enumerate(functions) if f is not None},
            )  # fmt: skip
            self._note(Note("window", "incremental"))
            made = self._positional(b, made)
        keep = [i for i, number in enumerate(ids) if i < width or i >= len(rel.ids)]
        return Rel(self._choose(b, made, keep), tuple(ids[i] for i in keep))

    def _recomputed_window(self, node: p.Window, b: Builder, rel: Rel, partition: Sequence[str]) -> Stream:
        columns = [p.Column(n, f"c{i}", t) for i, (n, t) in enumerate(zip(rel.ids, rel.types, strict=True))]
        evaluate, types = self.spark.over_rows(node.origin, columns)
        names = {number: f"c{i}" for number, i in rel.positions.items()}
        label = (
            "; ".join(f"{p.text(call_of(c), names)} {c.frame}" for _, _, c in node.functions)
            + "; "
            + "; ".join(f"{p.text(o.expr, names)} {o.descending} {o.nulls_last}" for o in node.order)
        )
        arrangement = Arrangement(rel.stream.schema, [rel.stream.schema.index(c) for c in partition])
        operator = RecomputeGroups([arrangement], Function(evaluate, self._named(label)), schema_of(types))
        return b.with_state(operator, [rel.stream], [arrangement])

    def _top(self, node: p.Top, scope: Scope, needed: frozenset[int] | None) -> Rel:
        b = scope.builder
        exprs = [o.expr for o in node.order]
        limit = node.limit if node.limit is not None else (1 << 62)
        bucket = self._bucket_below(node.child, scope) if limit + node.offset <= FEW else None
        below = None if needed is None else needed.union(columns_in(exprs), () if bucket is None else (bucket,))
        # A limit counts rows, and which ones are the first may depend on any column: nothing is dropped below it.
        rel = self.relation(node.child, scope, below if node.order else None)
        width = len(rel.ids)
        rel, exprs = self._without_subqueries(rel, exprs, scope)
        rel, columns = self._with_keys(scope, rel, exprs)
        order = [order_by(f"c{c}", o) for c, o in zip(columns, node.order, strict=True)]
        stream = rel.stream
        if bucket is not None:
            rel = self._in_buckets(b, rel, bucket)
            stream = b.top(rel.stream, [rel.name(bucket)], order, limit + node.offset)
        stream = b.top(stream, [], order, limit, node.offset)
        self._note(Note(f"first {node.limit} rows", "incremental"))
        own = [i for i in range(width) if rel.ids[i] != bucket]
        return Rel(self._choose(b, stream, own), tuple(rel.ids[i] for i in own))

    # ------------------------------------------------------------------ recursion

    def _loop(self, node: p.Loop, scope: Scope, needed: frozenset[int] | None) -> Rel:
        anchor = self.relation(node.anchor, scope)
        schema = schema_of([c.type for c in node.columns])
        anchor_stream = self._fit(scope.builder, anchor.stream, schema)
        outside = list(independent(node.step, lambda n: isinstance(n, p.LoopRef)))
        imports = [self.relation(n, scope) for n in outside]

        def body(inner: Builder, loop: Stream, start: Stream, *given: Stream) -> Stream:
            known = {id(n): Rel(s, r.ids) for n, s, r in zip(outside, given, imports, strict=True)}
            within = Scope(inner, {}, known, {node.number: Rel(loop, ())})
            step = self.relation(node.step, within)
            return inner.union(start, self._fit(inner, step.stream, schema))

        (out,) = scope.builder.fixpoint(
            {"loop": schema}, [anchor_stream, *(r.stream for r in imports)], body, node.limit or 10_000
        )
        self._note(Note("recursive union", "incremental"))
        return Rel(out, tuple(c.id for c in node.columns))

    def _loop_ref(self, node: p.LoopRef, scope: Scope, needed: frozenset[int] | None) -> Rel:
        return Rel(scope.loops[node.number].stream, tuple(c.id for c in node.columns))

    def recursive(self, name: str, node: p.Node, columns: Sequence[p.Column], schema: Schema, scope: Scope) -> Stream:
        """A view that names itself: the least set of rows that satisfies the query."""
        return self.recursive_group({name: (node, columns, schema)}, scope)[name]

    def recursive_group(
        self, views: Mapping[str, tuple[p.Node, Sequence[p.Column], Schema]], scope: Scope
    ) -> dict[str, Stream]:
        """Views that name themselves or one another, with set semantics."""
        names = list(views)
        plain = {n: schema_of(views[n][2].types) for n in names}

        def refers(n: p.Node) -> bool:
            return isinstance(n, p.Table) and n.name in views

        outside = [n for name in names for n in independent(views[name][0], refers)]
        imports = [self.relation(n, scope) for n in outside]

        def body(inner: Builder, *given: Stream) -> list[Stream]:
            loops = dict(zip(names, given, strict=False))
            known = {id(n): Rel(s, r.ids) for n, s, r in zip(outside, given[len(names) :], imports, strict=True)}
            out = []
            for name in names:
                node, columns, _ = views[name]
                within = Scope(inner, loops, known)
                rel = self.relation(node, within)
                ordered = self._choose(inner, rel.stream, [rel.position(c.id) for c in columns])
                out.append(inner.distinct(self._fit(inner, ordered, plain[name])))
            return out

        made = scope.builder.fixpoint(plain, [r.stream for r in imports], body)
        self._note(Note(f"recursive view {', '.join(names)}", "incremental"))
        return dict(zip(names, made, strict=True))

    def _fit(self, b: Builder, stream: Stream, schema: Schema) -> Stream:
        if stream.schema.types != schema.types:
            raise DbsparkError(f"a recursion gives {stream.schema!r} where {schema!r} is declared; cast the columns")
        return b.project(stream, list(stream.schema.names), list(schema.names))

    # ------------------------------------------------------------------ nodes without a rule

    def _foreign(self, node: p.Foreign, scope: Scope, needed: frozenset[int] | None) -> Rel:
        b = scope.builder
        rels = [self.relation(c, scope) for c in node.children]
        columns = [[p.Column(n, f"c{i}", t) for i, (n, t) in enumerate(zip(r.ids, r.types, strict=True))] for r in rels]
        ids = tuple(c.id for c in node.columns)
        if node.linear and len(rels) == 1:
            (rel,) = rels
            question = self.spark.flat_map(node.origin, rel.ids, (), node.columns)
            schema = schema_of([c.type for c in node.columns])
            same = {i: rel.position(c.id) for i, c in enumerate(node.columns) if c.id in rel.ids}
            self._note(Note(node.name, "incremental", "THROUGH_SPARK", "Spark evaluates it on each change"))
            function = Function(question.answer, self._named(node.text), same)
            return Rel(b.asked(rel.stream, function, schema, question), ids)
        self._note(Note(node.name, "full", "OPERATOR", f"no rule for {node.name}; Spark computes it anew"))
        whole = self.spark.over_all(node.origin, columns)
        arrangements = [Arrangement(r.stream.schema, []) for r in rels]
        schema = schema_of([c.type for c in node.columns])
        operator = RecomputeGroups(arrangements, Function(whole, self._named(node.text)), schema)
        return Rel(b.with_state(operator, [r.stream for r in rels], arrangements), ids)


_COMPILE: dict[type, Callable[..., Rel]] = {
    p.Table: PlanCompiler._table,
    p.Values: PlanCompiler._values,
    p.Project: PlanCompiler._project,
    p.Filter: PlanCompiler._filter,
    p.Join: PlanCompiler._join,
    p.Aggregate: PlanCompiler._aggregate,
    p.Window: PlanCompiler._window,
    p.Top: PlanCompiler._top,
    p.Union: PlanCompiler._union,
    p.Expand: PlanCompiler._expand,
    p.Generate: PlanCompiler._generate,
    p.Loop: PlanCompiler._loop,
    p.LoopRef: PlanCompiler._loop_ref,
    p.Foreign: PlanCompiler._foreign,
}


def _bucket(number: int) -> p.Column:
    return p.Column(number, "", pa.int64())


def not_deterministic(name: str) -> DbsparkError:
    function = NOT_DETERMINISTIC.get(name, name)
    hint = (
        "put the time into a table of one row that you update, and join with it"
        if "current" in function or function in ("now", "localtimestamp")
        else "compute the value once, where the rows come in, and keep it in a column"
    )
    return DbsparkError(
        f"[NOT_DETERMINISTIC] {function}() gives something else every time, so no view can be kept equal to it; {hint}"
    )
