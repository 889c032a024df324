"""Rewrites grouping by a struct to grouping by its fields: columns are cheaper than structs.

`GROUP BY window(…)` groups by a struct that a node below has made, and nodes above read its fields. After the rewrite
the fields are columns of their own, and the struct is made only where it is used as a whole. The struct is never NULL,
so two structs are one group exactly where all their fields are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from dbspark.sql import plan as p
from dbspark.sql.plan_analysis import columns_in, push_below_expand

NewColumnId = Callable[[], int]
"""Returns the id of a new column."""


def flatten_struct_keys(node: p.Aggregate, number: NewColumnId) -> p.Aggregate:
    """An aggregate that groups by the fields of the structs which nodes below it make."""
    read = [a for _, g in node.aggregations for a in (*g.call.args, *([] if g.where is None else [g.where]))]
    for key in node.keys:
        column = key.expr
        others = [k.expr for k in node.keys if k is not key]
        if not isinstance(column, p.Column) or column.id in columns_in([*read, *others]):
            continue
        fields = _fields(column, number)
        child = _split(node.child, column, fields, number) if fields else None
        if child is not None:
            names = [f.name for f in column.type]
            node = _grouping(replace(node, child=child), key, fields, names, number)
    return node


def _fields(column: p.Column, number: NewColumnId) -> list[p.Column]:
    """New columns for the fields of a struct."""
    if not pa.types.is_struct(column.type):
        return []
    given = [column.type.field(i) for i in range(column.type.num_fields)]
    return [p.Column(number(), f"{column.name}.{f.name}", f.type) for f in given]


def _grouping(
    node: p.Aggregate, key: p.Named, fields: Sequence[p.Column], names: Sequence[str], number: NewColumnId
) -> p.Aggregate:
    keys = [p.Named(number(), c.name, c) for c in fields]
    again: list[p.Expr] = []
    for own, given, name in zip(keys, fields, names, strict=True):
        again += [p.Constant(name, pa.string()), p.Column(own.id, own.name, given.type)]
    struct = {key.id: p.Call("CreateNamedStruct", tuple(again))}
    return replace(
        node,
        keys=tuple(k for n in node.keys for k in (keys if n is key else (n,))),
        outputs=tuple(replace(n, expr=_with(n.expr, struct)) for n in node.outputs),
    )


def _split(node: p.Node, column: p.Column, fields: Sequence[p.Column], number: NewColumnId) -> p.Node | None:
    """A node with columns for the fields of a struct instead of the struct; None where it is not made here or below."""
    if isinstance(node, p.Filter):
        pushed = push_below_expand(node)
        if pushed is not node:
            return _split(pushed, column, fields, number)
        child = None if column.id in columns_in([node.condition]) else _split(node.child, column, fields, number)
        return None if child is None else p.Filter(child, node.condition)
    if isinstance(node, p.Project):
        return _split_project(node, column, fields, number)
    if isinstance(node, p.Expand):
        at = [c.id for c in node.columns].index(column.id)
        made = [_parts(row[at], fields) for row in node.projections]
        rows = [(*row[:at], *parts, *row[at + 1 :]) for row, parts in zip(node.projections, made, strict=True) if parts]
        if len(rows) < len(made):
            return None
        return p.Expand(node.child, tuple(rows), (*node.columns[:at], *fields, *node.columns[at + 1 :]))
    return None


def _split_project(node: p.Project, column: p.Column, fields: Sequence[p.Column], number: NewColumnId) -> p.Node | None:
    given = next(n.expr for n in node.outputs if n.id == column.id)
    child = node.child
    parts = _parts(given, fields)
    if not parts and isinstance(given, p.Column):
        if given.id in columns_in([n.expr for n in node.outputs if n.id != column.id]):
            return None
        below = _fields(given, number)
        split = _split(child, given, below, number)
        if split is None:
            return None
        child, parts = split, below
    if not parts:
        return None
    made = [p.Named(c.id, c.name, part) for c, part in zip(fields, parts, strict=True)]
    return p.Project(child, tuple(o for n in node.outputs for o in (made if n.id == column.id else (n,))))


def _parts(expr: p.Expr, fields: Sequence[p.Column]) -> Sequence[p.Expr]:
    """The values of the fields, if the expression makes a struct with as many; empty for any other expression."""
    if not isinstance(expr, p.Call) or expr.name != "CreateNamedStruct" or len(expr.args) != 2 * len(fields):
        return ()
    return expr.args[1::2]


def _with(expr: p.Expr, structs: Mapping[int, p.Call]) -> p.Expr:
    """An expression with structs in the place of columns; where it reads a field of one, with the field itself."""
    if isinstance(expr, p.Column):
        return structs.get(expr.id, expr)
    if not isinstance(expr, p.Call):
        return expr
    args = tuple(_with(a, structs) for a in expr.args)
    if expr.name == "GetStructField" and isinstance(args[0], p.Call) and args[0].name == "CreateNamedStruct":
        return args[0].args[2 * int(expr.option("ordinal", 0)) + 1]
    return expr if args == expr.args else replace(expr, args=args)
