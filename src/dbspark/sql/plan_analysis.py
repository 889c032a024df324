"""Analysis of plans and expressions: columns and tables that they read, equalities and bounds, nullability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace

import pyarrow as pa

from dbspark.sql import plan as p


def is_lambda(expr: p.Expr) -> bool:
    return isinstance(expr, p.Call) and expr.name == "LambdaFunction"


def is_not_computed(arg: p.Expr) -> bool:
    """Whether an argument is a constant or a lambda: it stays in its call when the others become columns."""
    return isinstance(arg, p.Constant) or is_lambda(arg) or (isinstance(arg, p.Call) and arg.name == "Literal")


def has_no_subquery(expr: p.Expr) -> bool:
    return not any(isinstance(e, p.Subquery) for e in p.walk(expr))


def columns_in(exprs: Sequence[p.Expr]) -> frozenset[int]:
    return frozenset(e.id for expr in exprs for e in p.walk(expr) if isinstance(e, p.Column))


def push_below_expand(node: p.Filter) -> p.Node:
    """Move a filter of IS NOT NULL tests below an expansion, if that passes the tested columns on unchanged."""
    expand = node.child
    if not isinstance(expand, p.Expand):
        return node
    passed = {
        column.id: row[0]
        for column, *row in zip(expand.columns, *expand.projections, strict=True)
        if isinstance(row[0], p.Column) and all(e == row[0] for e in row)
    }
    below: p.Node = expand.child
    for test in p.conjuncts(node.condition):
        tested = test.args[0] if isinstance(test, p.Call) and test.name == "IsNotNull" else None
        if not isinstance(tested, p.Column) or tested.id not in passed:
            return node
        below = p.Filter(below, p.Call("IsNotNull", (passed[tested.id],)))
    return replace(expand, child=below)


def true_where_not_null(args: Sequence[p.Expr]) -> p.Expr:
    """TRUE where all arguments have a value, NULL elsewhere."""
    test: p.Expr = p.Call("IsNotNull", (args[0],))
    for arg in args[1:]:
        test = p.Call("And", (test, p.Call("IsNotNull", (arg,))))
    return p.Call("CaseWhen", (test, p.Constant(True, pa.bool_())))


def counts_rows(aggregation: p.Aggregation, args: Sequence[p.Expr]) -> bool:
    """Whether an aggregation is a count of a constant, which counts rows."""
    if aggregation.call.name != "Count" or aggregation.distinct or len(args) != 1:
        return False
    return isinstance(args[0], p.Constant) and args[0].value is not None


def equi_join_keys(part: p.Expr, left: set[int], right: set[int]) -> tuple[p.Expr, p.Expr, bool] | None:
    """(expression of the left, expression of the right, NULL-safe) of a condition that is an equality of both."""
    if not isinstance(part, p.Call) or part.name not in ("EqualTo", "EqualNullSafe"):
        return None
    a, b = part.args
    if not (has_no_subquery(a) and has_no_subquery(b)):
        return None
    used = [{e.id for e in p.walk(x) if isinstance(e, p.Column)} for x in (a, b)]
    safe = part.name == "EqualNullSafe"
    if used[0] and used[1] and used[0] <= left and used[1] <= right:
        return a, b, safe
    if used[0] and used[1] and used[0] <= right and used[1] <= left:
        return b, a, safe
    return None


def upper_bound(part: p.Expr, number: int) -> int | None:
    """k where a condition says that a column is at most k."""
    if not isinstance(part, p.Call) or len(part.args) != 2:
        return None
    a, b = part.args
    if isinstance(b, p.Column) and isinstance(a, p.Constant):
        a, b = b, a
        name = {"GreaterThan": "LessThan", "GreaterThanOrEqual": "LessThanOrEqual", "EqualTo": "EqualTo"}.get(part.name)
    else:
        name = part.name
    if not (isinstance(a, p.Column) and a.id == number and isinstance(b, p.Constant) and isinstance(b.value, int)):
        return None
    return {"LessThan": b.value - 1, "LessThanOrEqual": b.value, "EqualTo": b.value}.get(name or "")


def row_number_limit(node: p.Filter) -> tuple[int, bool]:
    """k where a filter wants no rows of a window beyond `row_number() <= k`, else 0; and whether it wants just that."""
    window = node.child
    if not isinstance(window, p.Window) or len(window.functions) != 1 or not window.order:
        return 0, False
    number, _, call = window.functions[0]
    if not isinstance(call.function, p.Call) or call.function.name != "RowNumber":
        return 0, False
    parts = p.conjuncts(node.condition)
    bounds = [upper_bound(part, number) for part in parts]
    limit = max(min((n for n in bounds if n is not None), default=0), 0)
    tested = zip(parts, bounds, strict=True)
    exact = all(n is not None and (n == 1 or getattr(part, "name", "") != "EqualTo") for part, n in tested)
    return limit, exact


CONDITIONAL = frozenset({"If", "CaseWhen", "Coalesce", "NaNvl", "And", "Or", "In"})
"""Functions of which only the first argument is evaluated on every row."""

_STRICT = frozenset({
    "EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Not", "Cast", "Add", "Subtract",
    "Multiply", "Divide", "IntegralDivide", "Remainder", "Pmod", "UnaryMinus", "Abs", "Ceil", "Floor", "Length",
    "Upper", "Lower", "Substring", "Like", "RLike", "StartsWith", "EndsWith", "Contains",
})  # fmt: skip
"""Functions that are NULL if an argument is."""


def never_null(parts: Sequence[p.Expr]) -> list[p.Column]:
    """Columns that have a value wherever all of some conditions hold."""

    def look(expr: p.Expr) -> list[p.Column]:
        if isinstance(expr, p.Column):
            return [expr]
        return [c for a in expr.args for c in look(a)] if isinstance(expr, p.Call) and expr.name in _STRICT else []

    return list(dict.fromkeys(c for part in parts if isinstance(part, p.Call) for c in look(part)))


def order_spec(column: str, order: p.Order) -> tuple[str, str, str]:
    return column, "desc" if order.descending else "asc", "nulls last" if order.nulls_last else "nulls first"


def window_function_call(call: p.WindowCall) -> p.Call:
    return call.function.call if isinstance(call.function, p.Aggregation) else call.function


def window_function_name(call: p.WindowCall) -> str:
    return window_function_call(call).name


def children(node: p.Node) -> list[p.Node]:
    """The inputs of a node, subqueries in its expressions aside."""
    if isinstance(node, p.Union | p.OpaqueNode):
        return list(node.children)
    if isinstance(node, p.Join):
        return [node.left, node.right]
    if isinstance(node, p.Loop):
        return [node.anchor, node.step]
    if isinstance(node, p.Table | p.Values | p.LoopRef):
        return []
    return [node.child]


def independent_parts(node: p.Node, refers: Callable[[p.Node], bool]) -> list[p.Node]:
    """The largest parts of a plan in which nothing refers to what is being defined."""

    def depends(n: p.Node) -> bool:
        return refers(n) or any(depends(c) for c in children(n))

    if not depends(node):
        return [node]
    return [part for child in children(node) for part in independent_parts(child, refers)]


def origin_of_rows(node: p.Node) -> p.Table | p.Join | None:
    """The table or join whose rows a node has, one by one and perhaps not all of them."""
    while isinstance(node, p.Project | p.Filter):
        node = node.child
    return node if isinstance(node, p.Table | p.Join) else None


def tables_read(node: p.Node) -> frozenset[str]:
    """The tables and views that a plan reads, its subqueries included."""
    out: set[str] = set()

    def look(value: object) -> None:
        if isinstance(value, p.Table):
            out.add(value.name)
        elif isinstance(value, tuple):
            for item in value:
                look(item)
        elif is_dataclass(value) and not isinstance(value, type):
            for part in fields(value):
                if part.name not in ("origin", "data"):
                    look(getattr(value, part.name))

    look(node)
    return frozenset(out)
