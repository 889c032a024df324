"""An expression as SQL, for errors: near to what the user wrote, as far as the optimiser has left it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dbspark.sql.names import sql_name
from dbspark.sql.plan import Call, Column, Constant, Expr

_OPERATORS: Final = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "IntegralDivide": "DIV", "Remainder": "%",
    "EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">",
    "GreaterThanOrEqual": ">=", "And": "AND", "Or": "OR", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^",
}  # fmt: skip
_CASTS: Final = {"Cast": "CAST", "AnsiCast": "CAST", "UpCast": "CAST", "TryCast": "TRY_CAST"}
_MAX_CHARACTERS: Final = 200
"""Characters of an expression in an error; the longest ones are generated code."""


def sql_text(expr: Expr) -> str:
    """The expression in one line of SQL, shortened if it is long."""
    text = _text(expr)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def _text(expr: Expr) -> str:
    if isinstance(expr, Column):
        return sql_name(expr.name)
    if isinstance(expr, Constant):
        value = expr.value
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        return "NULL" if value is None else str(value).upper() if isinstance(value, bool) else str(value)
    if not isinstance(expr, Call):
        return "(SELECT …)"
    args = [_text(a) for a in expr.args]
    if expr.name in _OPERATORS and len(args) == 2:
        sides = [f"({t})" if _is_operator(a) else t for a, t in zip(expr.args, args, strict=True)]
        return f" {_OPERATORS[expr.name]} ".join(sides)
    if expr.name in _CASTS and args:
        given = str(expr.option("dataType", "?"))
        return f"{_CASTS[expr.name]}({args[0]} AS {given.upper() if given[:1] != '{' else '…'})"
    if expr.name in ("UnaryMinus", "Not", "IsNull", "IsNotNull") and len(args) == 1:
        form = {"UnaryMinus": "-{}", "Not": "NOT {}", "IsNull": "{} IS NULL", "IsNotNull": "{} IS NOT NULL"}
        return form[expr.name].format(f"({args[0]})" if _is_operator(expr.args[0]) else args[0])
    return f"{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', expr.name).lower()}({', '.join(args)})"


def _is_operator(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.name in _OPERATORS


def columns_read(expr: Expr) -> Iterator[Column]:
    """The columns that an expression reads, in their order."""
    if isinstance(expr, Column):
        yield expr
    elif isinstance(expr, Call):
        for arg in expr.args:
            yield from columns_read(arg)


__all__ = ["columns_read", "sql_text"]
