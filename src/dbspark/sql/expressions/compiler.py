"""From an expression to a function on columns."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

import dbspark.sql.expressions as package
from dbspark.errors import DbsparkError, EvaluationError
from dbspark.sql.expression_text import columns_read, sql_text
from dbspark.sql.expressions.rules import RAW_RULES, RULES, ColumnFrame, Compiled, Context, Datum, constant
from dbspark.sql.plan import Call, Column, Constant, Expr, Subquery

for _module in pkgutil.iter_modules(package.__path__):  # rules register themselves
    if _module.name != "compiler":
        importlib.import_module(f"{package.__name__}.{_module.name}")


class ExpressionCompiler:
    """Compiles expressions over columns at known positions."""

    def __init__(
        self,
        positions: Mapping[int, int],
        types: Mapping[int, pa.DataType],
        context: Context,
        elsewhere: Callable[[Call, ExpressionCompiler], Compiled],
    ) -> None:
        """`positions` and `types` are by the number of the column; `elsewhere` compiles what has no rule."""
        self.positions = positions
        self.types = types
        self.context = context
        self.elsewhere = elsewhere
        self._number: dict[int, int] = {}
        """For expressions that occur several times, by identity: equal ones have the same number."""
        self._shared: dict[int, Compiled] = {}

    def compile_all(self, exprs: Sequence[Expr]) -> list[Compiled]:
        """Several expressions over the same rows: what they have in common is evaluated once."""
        self._number = repeated(exprs)
        try:
            return [self.compile(e) for e in exprs]
        finally:
            self._number, self._shared = {}, {}

    def compile(self, expr: Expr) -> Compiled:
        number = self._number.get(id(expr))
        if number is None:
            return self._compiled(expr)
        if number not in self._shared:
            self._shared[number] = _once(self._compiled(expr))
        return self._shared[number]

    def _compiled(self, expr: Expr) -> Compiled:
        if isinstance(expr, Column):
            if expr.id not in self.positions:
                raise DbsparkError(f"column {expr.name}#{expr.id} is not among the columns of the input")
            at = self.positions[expr.id]
            return Compiled(self.types[expr.id], lambda frame: frame.columns[at])
        if isinstance(expr, Constant):
            return constant(expr.value, expr.type)
        if isinstance(expr, Subquery):
            raise DbsparkError("a scalar subquery is a column by the time expressions are compiled")
        found = self._by_rule(expr)
        if found is None:
            return self.elsewhere(expr, self)
        return self._locating(found, expr) if found.can_fail and found.constant is None else found

    def _locating(self, given: Compiled, expr: Call) -> Compiled:
        """The same expression; its errors can say which it is, and find a row that shows them."""
        places = {c.name: self.positions[c.id] for c in columns_read(expr) if c.id in self.positions}
        text, evaluate = sql_text(expr), given.run

        def run(frame: ColumnFrame) -> Datum:
            try:
                return evaluate(frame)
            except EvaluationError as error:
                if error.describe is None:
                    error.describe = partial(_failing_row, text, places, evaluate, frame)
                raise

        return replace(given, run=run)

    def type_of(self, expr: Expr) -> pa.DataType | None:
        """The type of an expression, None where Spark has to evaluate some of it."""
        if isinstance(expr, Column):
            return self.types.get(expr.id)
        if isinstance(expr, Constant):
            return expr.type
        compiled = self.native(expr)
        return None if compiled is None else compiled.type

    def native(self, expr: Expr) -> Compiled | None:
        """The expression by our own kernels alone, or None."""
        try:
            return ExpressionCompiler(self.positions, self.types, self.context, _missing).compile(expr)
        except _MissingError:
            return None

    def within(self, positions: Mapping[int, int], types: Mapping[int, pa.DataType]) -> ExpressionCompiler:
        """A compiler for the body of a lambda, whose variables are further columns of the frame.

        A body that has no rule makes the whole function one without a rule: Spark knows no lambda variables outside it.
        """
        return ExpressionCompiler({**self.positions, **positions}, {**self.types, **types}, self.context, _missing)

    def _by_rule(self, call: Call) -> Compiled | None:
        raw = RAW_RULES.get(call.name)
        if raw is not None:
            try:
                return raw(call, self)
            except _MissingError:
                return None
        known = RULES.get(call.name)
        if known is None:
            return None
        # Where a part has no rule, Spark evaluates the part, not the whole.
        return known(call, [self.compile(arg) for arg in call.args], self.context)


def _failing_row(
    text: str, places: Mapping[str, int], evaluate: Callable[[ColumnFrame], Datum], frame: ColumnFrame
) -> str:
    """The expression and the first row on which it fails, as the end of an error; found by halving."""
    first, rows = 0, frame.rows
    while rows > 1 and places:
        half = rows // 2
        try:
            evaluate(frame.at(pa.array(range(first, first + half), pa.int64())))
            first, rows = first + half, rows - half
        except EvaluationError:
            rows = half
    if not places or not rows:
        return f", in {text}"
    values = ", ".join(f"{name} = {frame.columns[at][first].as_py()!r}" for name, at in places.items())
    return f", in {text}; a row that shows it has {values}"


def repeated(exprs: Sequence[Expr]) -> dict[int, int]:
    """The calls that occur several times in some expressions, by identity; equal ones have the same number."""
    numbers: dict[Any, int] = {}
    of: dict[int, int] = {}
    count: Counter[int] = Counter()

    def visit(expr: Expr) -> int:
        if isinstance(expr, Call):
            form: Any = expr.name, repr(expr.options), tuple(visit(a) for a in expr.args)
        else:
            form = expr if isinstance(expr, Column) else repr(expr)
        number = numbers.setdefault(form, len(numbers))
        if isinstance(expr, Call) and expr.name not in RAW_RULES:
            of[id(expr)] = number
            count[number] += 1
        return number

    for expr in exprs:
        visit(expr)
    return {i: number for i, number in of.items() if count[number] > 1}


def _once(given: Compiled) -> Compiled:
    """The same expression, evaluated once on a frame."""
    if given.constant is not None:
        return given
    itself = object()

    def run(frame: ColumnFrame) -> Datum:
        value = frame.found.get(itself)
        if value is None:
            value = frame.found[itself] = given.run(frame)
        return value

    return replace(given, run=run)


class _MissingError(Exception):
    """An expression without a rule, where none may be."""


def _missing(call: Call, compiler: ExpressionCompiler) -> Compiled:
    raise _MissingError


def evaluate_rows(compiled: Compiled, columns: list[pa.Array], rows: int) -> pa.Array:
    """The value of each row."""
    return compiled.array(ColumnFrame(columns, rows))
