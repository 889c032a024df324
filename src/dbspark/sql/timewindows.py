"""Recognises the arithmetic that Spark's analyser makes of `window(…)`.

Spark's analyser turns a time window into arithmetic. The last window that a time falls into begins at the time in
microseconds less a remainder, which a CASE keeps from being negative; the windows before it begin some slides earlier,
each a row of an Expand. Two things follow. The CASE is one operation (`floor_mod`). And what an Expand makes of a time
depends only on where its last window begins, its *pane*: times may be replaced by their panes before they are
expanded, and rows that are equal then are one row with the sum of their weights. Of thousands of rows in a second,
expanded five times each, few are left. Where a window begins or ends is a *boundary*: a pane plus a constant, which one
kernel computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dbspark.sql import plan as p

_CONVERSION = "PreciseTimestampConversion"


def floor_mod(expr: p.Expr) -> tuple[p.Expr, int] | None:
    """(x, n) of `CASE WHEN x % n < 0 THEN x % n + n ELSE x % n END` for a positive constant n."""
    if not isinstance(expr, p.Call) or expr.name != "CaseWhen" or len(expr.args) != 3:
        return None
    test, raised, rest = expr.args
    if not isinstance(rest, p.Call) or rest.name != "Remainder":
        return None
    x, n = rest.args
    if not isinstance(n, p.Constant) or not pa.types.is_int64(n.type) or not n.value or n.value < 0:
        return None
    if not isinstance(test, p.Call) or test.name != "LessThan" or test.args != (rest, p.Constant(0, n.type)):
        return None
    if not isinstance(raised, p.Call) or raised.name != "Add" or raised.args != (rest, n):
        return None
    return x, int(n.value)


def pane(exprs: Sequence[p.Expr]) -> tuple[p.Column, p.Expr] | None:
    """A column of times that the expressions read through its pane only, and that pane as a time."""
    for expr in exprs:
        for part in p.walk(expr):
            time = _paned(part)
            if time is None or any(_uses(e, time, part) for e in exprs):
                continue
            micros = part.args[0] if isinstance(part, p.Call) else None
            assert isinstance(micros, p.Call)
            options = (("fromType", micros.option("toType")), ("toType", micros.option("fromType")))
            return time, p.Call(_CONVERSION, (part,), options)
    return None


def boundary(expr: p.Expr) -> tuple[p.Column, int, int, int] | None:
    """(time, origin, slide, more) if an expression is the pane of a time plus `more` microseconds."""
    if not isinstance(expr, p.Call) or expr.name != _CONVERSION or str(expr.option("toType")) == "long":
        return None
    part, more = expr.args[0], 0
    while isinstance(part, p.Call) and part.name in ("Add", "Subtract") and _paned(part) is None:
        rest, constant = part.args
        if not isinstance(constant, p.Constant) or not pa.types.is_int64(constant.type) or constant.value is None:
            return None
        more += int(constant.value) if part.name == "Add" else -int(constant.value)
        part = rest
    time = _paned(part)
    if time is None or not isinstance(part, p.Call):
        return None
    found = floor_mod(part.args[1])
    assert found is not None
    assert isinstance(found[0], p.Call)
    origin = found[0].args[1]
    assert isinstance(origin, p.Constant)
    return (time, int(origin.value), found[1], more) if origin.value is not None else None


def _paned(expr: p.Expr) -> p.Column | None:
    """The column of times whose last window begins where an expression says, in microseconds; None for others."""
    if not isinstance(expr, p.Call) or expr.name != "Subtract":
        return None
    micros, rest = expr.args
    found = floor_mod(rest)
    if found is None or not isinstance(micros, p.Call) or micros.name != _CONVERSION:
        return None
    time = micros.args[0]
    shifted = found[0]
    if not isinstance(time, p.Column) or not isinstance(shifted, p.Call) or shifted.name != "Subtract":
        return None
    return time if shifted.args[0] == micros and isinstance(shifted.args[1], p.Constant) else None


def _uses(expr: p.Expr, column: p.Column, but_in: p.Expr) -> bool:
    """Whether an expression reads a column elsewhere than in the part `but_in`."""
    if expr == but_in:
        return False
    if isinstance(expr, p.Column):
        return expr.id == column.id
    return isinstance(expr, p.Call) and any(_uses(a, column, but_in) for a in expr.args)
