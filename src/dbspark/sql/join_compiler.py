"""Compiles joins: equalities become keys, comparisons the range of a range join, the rest a condition on pairs.

A part of the condition that only Spark evaluates becomes a filter after an inner join, where that is equivalent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa

from dbspark.circuit.builder import Builder
from dbspark.circuit.graph import Stream
from dbspark.columnar import SortKey
from dbspark.columnar.schema import Schema
from dbspark.operators.function import Function
from dbspark.operators.join import Join
from dbspark.operators.range_join import range_sort_keys
from dbspark.sql import identity
from dbspark.sql import plan as p
from dbspark.sql.column_functions import condition_function, failing_condition_function
from dbspark.sql.expressions.bytecode import condition_bytecode
from dbspark.sql.expressions.compiler import ExpressionCompiler
from dbspark.sql.node_compiler import NodeCompiler
from dbspark.sql.plan_analysis import columns_in, equi_join_keys, has_no_subquery
from dbspark.sql.relations import MaintenanceNote, Relation, Scope

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


class JoinCompiler(NodeCompiler):
    """Compiles joins."""

    def _join(self, node: p.Join, scope: Scope, needed: frozenset[int] | None) -> Relation:
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
            pair = equi_join_keys(part, set(left.ids), set(right.ids))
            # A column is part of the key once; a second equality with it goes into the condition on pairs.
            if pair is None or any(pair[0] == a or pair[1] == b for a, b, _ in pairs):
                rest.append(part)
            else:
                pairs.append(pair)
        null_safe = any(safe for _, _, safe in pairs)
        # Without equalities, comparisons of the sides become a range join; else they go into the condition on pairs.
        ranges = [] if pairs else [r for r in (self._comparison(c, left, right) for c in rest) if r is not None]
        rest = [c for c in rest if c not in [r.condition for r in ranges]]
        keyed = []
        doubtful: list[list[p.Expr]] = []
        """By side, compared expressions that may fail: the join gets NULL for them, and `_errors` raises."""
        for side, rel in enumerate(sides):
            keys = [pair[0] if side == 0 else pair[1] for pair in pairs]
            compared = [r.left if side == 0 else r.right for r in ranges]
            failing = [self._fails(rel, e) for e in compared]
            tried = [p.Call("TryEval", (e,)) if f else e for e, f in zip(compared, failing, strict=True)]
            doubtful.append([e for e, f in zip(compared, failing, strict=True) if f])
            keyed.append(self._with_keys(scope, rel, [*keys, *tried]))
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
        compiler = ExpressionCompiler(both, {**left.typed, **right.typed}, self.context, self._compile_by_spark)
        # Conditions that Spark has to evaluate become a filter after an inner join, which is equivalent.
        later = [c for c in rest if self._asks(compiler, c)] if node.how == "inner" else []
        rest = [c for c in rest if c not in later]
        if rest:
            names = {number: f"c{i}" for number, i in both.items()}
            tests = self._tests(compiler, *rest)
            label = " and ".join(p.text(e, names) for e in rest)
            function_identity = identity.Condition(self.context, identity.trees(rest, both))
            code = condition_bytecode(rest, both, compiler.type_of)
            residual = Function(
                condition_function(*tests), self._named(label), bytecode=code, identity=function_identity
            )
        one_sided = node.how in ("semi", "anti", "existence")
        looked_at = columns_in(later)
        extra: set[int] = set()  # columns that nothing above reads
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
        home: list[tuple[int, str]] = []  # the key columns of a side that every output row has
        if id(node) in self._buckets and node.how != "full":
            home = [(1, f"c{k}") for k in right_keys] if node.how == "right" else [(0, f"c{k}") for k in left_keys]
            more = {self._new_column_id(): c for c in home if c not in select}
            select, ids, extra = [*select, *more.values()], [*ids, *more], extra.union(more)
        if node.how == "existence":
            assert node.exists is not None
            ids.append(node.exists.id)
        names_out = [f"c{i}" for i in range(len(ids))]
        joined = b.join(
            left.stream, right.stream, on, node.how,
            ranges=between, where=residual, select=select, names=names_out, null_safe=null_safe,
        )  # fmt: skip
        self._note(MaintenanceNote(f"{node.how} join", "incremental"))
        if any(doubtful):
            joined = b.union(
                joined, *self._errors(b, (left, right), doubtful, between, compiler, condition, joined.schema)
            )
        out = Relation(joined, tuple(ids))
        if home:
            out = Relation(
                b.bucket(joined, [names_out[select.index(c)] for c in home]), (*ids, self._buckets[id(node)])
            )
        if later:
            out = self._filter_rows(b, out, reduce(lambda a, c: p.Call("And", (a, c)), later))
        keep = [i for i, number in enumerate(out.ids) if number not in extra] or [0]
        return Relation(self._choose(b, out.stream, keep), tuple(out.ids[i] for i in keep))

    def _fails(self, rel: Relation, expr: p.Expr) -> bool:
        """Whether a compared expression, which is always one of ours (`_comparison`), may fail."""
        compiled = self.compiler(rel).native(expr)
        return compiled is not None and compiled.can_fail

    def _errors(
        self, b: Builder, sides: tuple[Relation, Relation], doubtful: Sequence[Sequence[p.Expr]],
        between: Sequence[tuple[str, Any, str]], compiler: ExpressionCompiler, condition: Sequence[p.Expr],
        schema: Schema,
    ) -> list[Stream]:  # fmt: skip
        """Streams without rows that raise what the condition of a range join raises.

        What is compared is computed for every row, but Spark evaluates the condition for pairs: a row on which it fails
        does no harm where the other side has no rows. Such rows, of which there are none as a rule, meet all rows of
        the other side here, which is kept as the range join keeps it.
        """
        compared = [(sides[0].stream.schema.index(x), how, sides[1].stream.schema.index(y)) for x, how, y in between]
        kept = range_sort_keys((sides[0].stream.schema, sides[1].stream.schema), (), compared)
        tests = self._tests(compiler, *condition)
        names = {number: f"c{i}" for number, i in compiler.positions.items()}
        label = " and ".join(p.text(e, names) for e in condition)
        out = []
        for side, exprs in enumerate(doubtful):
            if not exprs:
                continue
            failing = reduce(lambda a, c: p.Call("Or", (a, c)), [p.Call("Fails", (e,)) for e in exprs])
            some = self._filter_rows(b, sides[side], failing).stream
            streams, sort_keys = [r.stream for r in sides], list(kept)
            streams[side], sort_keys[side] = some, SortKey(some.schema, ())
            step = identity.Refusal(self.context, identity.trees(condition, compiler.positions))
            judged = Function(failing_condition_function(*tests), self._named(f"errors of {label}"), identity=step)
            operator = Join(sort_keys[0], sort_keys[1], columns=[(side, 0)], residual=judged)
            met = b.with_state(operator, streams, sort_keys)
            function_identity = ("no rows", schema)
            nothing = Function(
                lambda columns: [pa.nulls(0, t) for t in schema.types], "no rows", identity=function_identity
            )
            out.append(b.map(met, nothing, schema))
        return out

    def _asks(self, compiler: ExpressionCompiler, expr: p.Expr) -> bool:
        """Whether Spark has to evaluate some of an expression."""
        before = self._through_spark_calls
        compiler.compile(expr)
        return self._through_spark_calls > before

    def _condition_without_subqueries(
        self, left: Relation, right: Relation, condition: Sequence[p.Expr], scope: Scope
    ) -> tuple[Relation, Relation, list[p.Expr]]:
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

    def _comparison(self, part: p.Expr, left: Relation, right: Relation) -> _Comparison | None:
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
        if any(self._asks(self.compiler(rel), x) for rel, x in ((left, a), (right, b))):
            return None  # evaluated for every row, it could fail on rows that Spark pairs with no other row
        types = [self.compiler(rel).compile(x).type for rel, x in ((left, a), (right, b))]
        t = pa.types
        ordered = not (t.is_nested(types[0]) or t.is_interval(types[0]) or t.is_null(types[0]))
        return _Comparison(part, a, how, b) if types[0] == types[1] and ordered else None

    def _without_null_keys(
        self, b: Builder, how: str, pairs: Sequence[tuple[p.Expr, p.Expr, bool]],
        left: tuple[Relation, list[int]], right: tuple[Relation, list[int]],
    ) -> tuple[Relation, Relation]:  # fmt: skip
        """With both `=` and `<=>`: drop rows with NULL under `=` where the result has no rows without a partner."""
        out = []
        for side, (rel, keys) in enumerate((left, right)):
            droppable = {"inner": (0, 1), "left": (1,), "right": (0,), "semi": (0, 1), "anti": (1,), "existence": (1,)}
            if side in droppable.get(how, ()):
                for key, (_, _, safe) in zip(keys, pairs, strict=True):
                    if not safe:
                        column = p.Column(rel.ids[key], "", rel.types[key])
                        rel = self._filter_rows(b, rel, p.Call("IsNotNull", (column,)))
            out.append(rel)
        return out[0], out[1]
