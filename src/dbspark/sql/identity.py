"""Identities of the steps of a query (`dbspark.identity`): what the functions on columns of a compiled plan compute.

An expression is identified by its tree: Catalyst's names of the functions with their arguments and options, columns by
their position in the input, and the variables of lambdas by the order in which they are bound. The numbers that Spark's
analyser gives, which differ from session to session, do not enter, nor do the names of columns. The identity of a step
includes the settings of the session that the meaning of its expressions depends on.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from dbspark.errors import DbsparkError
from dbspark.identity import unshared
from dbspark.operators.function import UNDESCRIBED, identity_of
from dbspark.sql import plan as p
from dbspark.sql.expressions.rules import Context

_log = logging.getLogger("dbspark")


@dataclass(frozen=True, slots=True)
class FunctionIdentity(ABC):
    """What a function on columns computes, in a form that `dbspark.identity` takes."""

    kind: ClassVar[str]
    version: ClassVar[int]
    """The version of the meaning of expressions: raise it when the correction of a rule changes values."""

    settings: Context
    tree: tuple[Any, ...]

    def parameters(self) -> tuple[Any, ...]:
        return self.settings.ansi, self.settings.timezone, self.tree


class Evaluate(FunctionIdentity):
    """Expressions over each row, or over each row for which a condition holds."""

    kind: ClassVar[str] = "evaluate"
    version: ClassVar[int] = 1


class Condition(FunctionIdentity):
    """A condition on each row, or on each pair of rows of a join."""

    kind: ClassVar[str] = "condition"
    version: ClassVar[int] = 1


class Refusal(FunctionIdentity):
    """A condition that holds for no pair of rows, and is evaluated for the errors that it may raise."""

    kind: ClassVar[str] = "refusal"
    version: ClassVar[int] = 1


class ExpandRows(FunctionIdentity):
    """Several rows for each row, one for each list of expressions."""

    kind: ClassVar[str] = "expand"
    version: ClassVar[int] = 1


class GenerateRows(FunctionIdentity):
    """The rows that a generator (explode, inline, stack …) makes of each row."""

    kind: ClassVar[str] = "generate"
    version: ClassVar[int] = 1


class OnlyRow(FunctionIdentity):
    """The value of a scalar subquery; an error where it has more than one row."""

    kind: ClassVar[str] = "only-row"
    version: ClassVar[int] = 1


class SameColumns(FunctionIdentity):
    """The same columns in types that allow NULLs inside nested values."""

    kind: ClassVar[str] = "same-columns"
    version: ClassVar[int] = 1


class SparkExpressions(FunctionIdentity):
    """Expressions over each row that Spark evaluates."""

    kind: ClassVar[str] = "spark-expressions"
    version: ClassVar[int] = 1


class SparkNode(FunctionIdentity):
    """A node of the plan that Spark runs, on each change or on everything."""

    kind: ClassVar[str] = "spark-node"
    version: ClassVar[int] = 1


class SparkWindow(FunctionIdentity):
    """Window functions that Spark computes, over whole partitions."""

    kind: ClassVar[str] = "spark-window"
    version: ClassVar[int] = 1


class SparkAggregate(FunctionIdentity):
    """An aggregate function that Spark computes, over whole groups."""

    kind: ClassVar[str] = "spark-aggregate"
    version: ClassVar[int] = 1


# ---------------------------------------------------------------------- trees


def tree(expr: p.Expr, positions: Mapping[int, int]) -> tuple[Any, ...]:
    """The canonical form of an expression over columns at known positions."""
    return _tree(expr, positions, {})


def trees(exprs: Sequence[p.Expr], positions: Mapping[int, int]) -> tuple[Any, ...]:
    return tuple(tree(e, positions) for e in exprs)


def _tree(expr: p.Expr, positions: Mapping[int, int], variables: Mapping[int, int]) -> tuple[Any, ...]:
    if isinstance(expr, p.Column):
        if expr.id in variables:
            return "variable", variables[expr.id]
        if expr.id not in positions:
            raise DbsparkError(f"column {expr.name}#{expr.id} is not among the columns of the input")
        return "column", positions[expr.id]
    if isinstance(expr, p.Constant):
        return "constant", expr.type, expr.value
    if isinstance(expr, p.Subquery):
        raise DbsparkError("a scalar subquery is a column by the time expressions are identified")
    if expr.name == "LambdaFunction":  # its first argument is the body, the others are what is bound there
        bound = [a.id for a in expr.args[1:] if isinstance(a, p.Column)]
        variables = {**variables, **{number: len(variables) + i for i, number in enumerate(bound)}}
    return "call", expr.name, expr.options, tuple(_tree(a, positions, variables) for a in expr.args)


def order(given: p.Order, positions: Mapping[int, int]) -> tuple[Any, ...]:
    """The canonical form of a part of an ORDER BY."""
    return tree(given.expr, positions), given.descending, given.nulls_last


def window_call(call: p.WindowCall, positions: Mapping[int, int]) -> tuple[Any, ...]:
    """The canonical form of a window function."""
    function = call.function
    more: tuple[Any, ...] = ()
    if isinstance(function, p.Aggregation):
        more = function.distinct, None if function.where is None else tree(function.where, positions)
        function = function.call
    given = call.frame.lower, call.frame.upper
    bounds = tuple(b if b is None or isinstance(b, int) else tree(b, positions) for b in given)
    return tree(function, positions), more, call.frame.kind, bounds, call.ignore_nulls


def aggregation(call: p.Aggregation) -> tuple[Any, ...]:
    """The canonical form of an aggregate function whose arguments are columns, constants aside."""
    args = tuple(tree(a, {}) if isinstance(a, p.Constant) else None for a in call.call.args)
    return call.call.name, call.call.options, args, call.distinct


def of_json(value: Any, columns: Mapping[int, Any]) -> Any:
    """The canonical form of Catalyst's JSON of a node over `columns`, which are given by Spark's number.

    Numbers of columns that the node makes are replaced by the order in which they occur.
    """
    made: dict[int, int] = {}

    def look(value: Any) -> Any:
        if isinstance(value, list):
            return "array", tuple(look(v) for v in value)
        if not isinstance(value, dict):
            return value
        if str(value.get("product-class", "")).endswith(".ExprId"):
            found = int(value["id"])
            return ("input", columns[found]) if found in columns else ("made", made.setdefault(found, len(made)))
        # The name of a user's function does not identify it.
        dropped = ("qualifier", "name") if str(value.get("class", "")).endswith("UDF") else ("qualifier",)
        return "object", tuple((k, look(v)) for k, v in sorted(value.items()) if k not in dropped)

    return look(value)


# ---------------------------------------------------------------------- functions of users

SESSION = unshared()
"""What stands in the identity of a function that no other process can recognise: its state is computed again there."""


@cache
def python_function(name: str, command: bytes) -> tuple[Any, ...]:
    """The identity of a Python function that Spark was sent: declared, or by content (`dbspark.operators.function`).

    A function of which neither can be said (it closes over objects) is identified by the bytes that Spark was sent,
    which change with the versions of Python and its libraries, and with the lines of the file that it stands in.
    """
    from pyspark import cloudpickle

    sent = hashlib.blake2b(command, digest_size=16).digest()
    try:
        loaded = cloudpickle.loads(command)
    except Exception:  # too large to be sent with the plan: these bytes are a reference that ends with the session
        return "session", SESSION, sent
    function = loaded[0] if isinstance(loaded, tuple) else loaded
    found = identity_of(function)
    if found != UNDESCRIBED:
        return "python", *found
    _log.warning(
        "the Python function %s closes over objects that have no exact description, so the state of views that call it "
        "may be computed again when the location is opened; declare what it is with "
        "@dbspark.operators.function.identified(name, version)",
        name,
    )
    return "pickled", sent


def jvm_function(name: str, function: Any) -> tuple[Any, ...]:
    """The identity of a closure of the JVM, which has no form that another process would find again."""
    return "session", SESSION, name, str(function.getClass().getName()), int(function.hashCode())
