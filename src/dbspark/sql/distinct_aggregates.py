"""Aggregates of several kinds of distinct values, in an order that depends on the query alone.

Spark rewrites `count(DISTINCT a), sum(DISTINCT b)` as an expansion: each row becomes one for each set of arguments,
with a number `gid` beside it. An inner aggregate groups by the arguments and the number; the outer one takes for each
function the rows of its number. Spark numbers the sets, and orders their columns, by hashes of column numbers, which
differ from session to session. Here both follow the order of the functions, so the same query gives the same nodes
(`dbspark.sql.identity`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dbspark.sql import plan as p


def in_order(outer: p.Aggregate) -> p.Aggregate:
    """The same aggregate, with its expansion in the order of its functions; any other aggregate as it is."""
    inner = outer.child
    if not isinstance(inner, p.Aggregate) or not isinstance(inner.child, p.Expand):
        return outer
    expand = inner.child
    at = _number_column(inner, expand)
    if at is None:
        return outer
    number = expand.columns[at].id
    numbers = _numbers(outer, number)
    given = [_constant(row[at]) for row in expand.projections]
    if numbers is None or not set(numbers) <= set(given):
        return outer
    renumbered = {old: new for new, old in enumerate(dict.fromkeys([*(n for n in given if n == 0), *numbers, *given]))}
    if 0 not in given:  # Spark's zero is for functions of all rows
        renumbered = {old: new + 1 for old, new in renumbered.items()}
    rows = [(*row[:at], p.Constant(renumbered[n], expand.columns[at].type), *row[at + 1 :])
            for n, row in zip(given, expand.projections, strict=True)]  # fmt: skip
    rows.sort(key=lambda row: _constant(row[at]))
    keys = {key.id for key in inner.keys}.difference((number,), (key.id for key in outer.keys))
    used = [c for _, a in outer.aggregations for arg in a.call.args for c in p.walk(arg) if isinstance(c, p.Column)]
    columns = list(dict.fromkeys(c.id for c in used if c.id in keys))
    order = _permuted([c.id for c in expand.columns], columns)
    expand = replace(
        expand,
        projections=tuple(tuple(row[i] for i in order) for row in rows),
        columns=tuple(expand.columns[i] for i in order),
    )
    inner = replace(
        inner,
        child=expand,
        keys=tuple(inner.keys[i] for i in _permuted([k.id for k in inner.keys], columns)),
        outputs=tuple(inner.outputs[i] for i in _permuted([o.id for o in inner.outputs], columns)),
    )
    aggregations = tuple(
        (column, a if a.where is None else replace(a, where=_with_numbers(a.where, number, renumbered)))
        for column, a in outer.aggregations
    )
    return replace(outer, child=inner, aggregations=aggregations)


def _constant(expr: p.Expr) -> int:
    assert isinstance(expr, p.Constant)
    return int(expr.value)


def _number_column(inner: p.Aggregate, expand: p.Expand) -> int | None:
    """The position of the number `gid` among the columns of an expansion; None if the expansion is not of this kind."""
    keys = {key.expr for key in inner.keys}
    for at, column in enumerate(expand.columns):
        values = [row[at] for row in expand.projections]
        if column.name == "gid" and column in keys and all(isinstance(v, p.Constant) for v in values):
            found = {v.value for v in values if isinstance(v, p.Constant)}
            return at if len(found) == len(values) and None not in found else None
    return None


def _numbers(outer: p.Aggregate, number: int) -> list[int] | None:
    """The set that each function reads, in the order of the functions; None if `gid` is used in any other way."""
    found: list[int] = []
    for _, aggregation in outer.aggregations:
        parts = p.conjuncts(aggregation.where)
        tested = [n for n in (_tested_number(part, number) for part in parts) if n is not None]
        rest = [*aggregation.call.args, *(part for part in parts if _tested_number(part, number) is None)]
        if len(tested) != 1 or _mentions(rest, number):
            return None
        found += tested
    return None if _mentions([n.expr for n in (*outer.keys, *outer.outputs)], number) else found


def _tested_number(part: p.Expr, number: int) -> int | None:
    """n where a condition says gid = n."""
    if not isinstance(part, p.Call) or part.name != "EqualTo":
        return None
    column, value = part.args
    if not isinstance(column, p.Column) or column.id != number or not isinstance(value, p.Constant):
        return None
    return int(value.value)


def _mentions(exprs: Sequence[p.Expr], number: int) -> bool:
    def columns() -> Iterator[int]:
        for expr in exprs:
            yield from (e.id for e in p.walk(expr) if isinstance(e, p.Column))

    return number in set(columns())


def _with_numbers(where: p.Expr, number: int, renumbered: Mapping[int, int]) -> p.Expr:
    tested = _tested_number(where, number)
    if isinstance(where, p.Call) and tested is not None:
        column, value = where.args
        assert isinstance(value, p.Constant)
        return replace(where, args=(column, replace(value, value=renumbered[tested])), origin=None)
    if isinstance(where, p.Call) and where.name == "And":
        return replace(where, args=tuple(_with_numbers(a, number, renumbered) for a in where.args), origin=None)
    return where


def _permuted(ids: Sequence[int], order: Sequence[int]) -> list[int]:
    """The permutation of `ids` that sorts those in `order` among the positions they occupy; others stay in place."""
    places = [i for i, number in enumerate(ids) if number in order]
    there = iter([ids.index(number) for number in order if number in ids])
    return [next(there) if i in places else i for i in range(len(ids))]
