"""The logical plan of a query: relational nodes and expressions, independent of Catalyst and of the JVM.

Everything is frozen and compares by value, except `origin`, a reference to the object in the JVM that it was read from,
through which Spark evaluates expressions that have no rule. Columns are identified by the expression ids of Spark's
analyser; their names are only shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """A column of some node below, by number."""

    id: int
    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal: a Python value as pyarrow takes it, None for NULL."""

    value: Any
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Call:
    """A function, by Catalyst's name (`Add`, `Substring`), over its children in order, with its options."""

    name: str
    args: tuple[Expr, ...]
    options: tuple[tuple[str, Any], ...] = ()
    origin: Any = field(default=None, compare=False, repr=False)

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)


@dataclass(frozen=True, slots=True)
class Subquery:
    """A scalar subquery that Spark left in an expression: the one value of a one-column query, NULL without rows."""

    plan: Node
    type: pa.DataType


Expr: TypeAlias = Column | Constant | Call | Subquery


@dataclass(frozen=True, slots=True)
class Named:
    """An expression that becomes a column."""

    id: int
    name: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Order:
    """One part of an ORDER BY."""

    expr: Expr
    descending: bool
    nulls_last: bool


# ---------------------------------------------------------------------- relational nodes


@dataclass(frozen=True, slots=True)
class Table:
    """A table or a view of the pipeline."""

    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Values:
    """Constant rows."""

    columns: tuple[Column, ...]
    data: pa.Table = field(compare=False)
    text: str = ""


@dataclass(frozen=True, slots=True)
class Project:
    child: Node
    outputs: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    child: Node
    condition: Expr


JoinType = Literal["inner", "left", "right", "full", "semi", "anti", "existence"]


@dataclass(frozen=True, slots=True)
class Join:
    left: Node
    right: Node
    how: JoinType
    condition: Expr | None
    exists: Column | None = None
    """The column that says whether there is a partner, of an existence join."""
    single: bool = False
    """A left join in which a row may have one partner at most, or the query fails."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A call of an aggregate function."""

    call: Call
    distinct: bool
    where: Expr | None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Groups by expressions; outputs are over grouping columns and the results of aggregations."""

    child: Node
    keys: tuple[Named, ...]
    aggregations: tuple[tuple[Column, Aggregation], ...]
    outputs: tuple[Named, ...]
    origin: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Frame:
    """Bounds of a window frame: None is unbounded, an expression or number is an offset, 0 the current row."""

    kind: Literal["rows", "range"]
    lower: Expr | int | None
    upper: Expr | int | None


@dataclass(frozen=True, slots=True)
class WindowCall:
    """A window function, or an aggregate over a frame."""

    function: Call | Aggregation
    frame: Frame
    ignore_nulls: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    child: Node
    functions: tuple[tuple[int, str, WindowCall], ...]
    """(id, name, function) of each new column."""
    partition: tuple[Expr, ...]
    order: tuple[Order, ...]
    origin: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Top:
    """The first rows in some order: ORDER BY … LIMIT … OFFSET, or the rows of the first ranks of each partition."""

    child: Node
    order: tuple[Order, ...]
    limit: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Union:
    children: tuple[Node, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Generate:
    """Every row becomes any number of rows: a generator (explode, inline, stack …) beside the child's columns."""

    child: Node
    generator: Call
    required: tuple[int, ...]
    """Positions of the child's columns that go out."""
    outer: bool
    columns: tuple[Column, ...]
    origin: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Expand:
    """Every row becomes one row for each list of expressions."""

    child: Node
    projections: tuple[tuple[Expr, ...], ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A recursive union: the anchor, and a step over what the loop has so far."""

    number: int
    anchor: Node
    step: Node
    columns: tuple[Column, ...]
    limit: int | None


@dataclass(frozen=True, slots=True)
class LoopRef:
    """The rows of a loop inside its own step."""

    number: int
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class OpaqueNode:
    """A node that no rule compiles, which Spark evaluates."""

    name: str
    children: tuple[Node, ...]
    columns: tuple[Column, ...]
    linear: bool
    """Whether it treats rows one by one, so that its result on a delta is the delta of its result."""
    text: str
    """What `explain` shows."""
    fields: str = "{}"
    """What it was read from, as JSON, with Spark's numbers of columns."""
    functions: tuple[Any, ...] = ()
    """The identities of the users' functions in it."""
    origin: Any = field(default=None, compare=False, repr=False)


Node: TypeAlias = (
    Table | Values | Project | Filter | Join | Aggregate | Window | Top | Union | Generate | Expand
    | Loop | LoopRef | OpaqueNode
)  # fmt: skip


def walk(expr: Expr) -> Iterator[Expr]:
    """An expression and everything inside it, except the plans of subqueries."""
    yield expr
    if isinstance(expr, Call):
        for arg in expr.args:
            yield from walk(arg)


def conjuncts(expr: Expr | None) -> list[Expr]:
    """The parts of a condition that all have to hold."""
    if expr is None:
        return []
    if isinstance(expr, Call) and expr.name == "And":
        return conjuncts(expr.args[0]) + conjuncts(expr.args[1])
    return [expr]


def text(expr: Expr, names: dict[int, str]) -> str:
    """An expression in one line, for people, with columns by the names that are given."""
    if isinstance(expr, Column):
        return names.get(expr.id, expr.name)
    if isinstance(expr, Constant):
        return f"{expr.value!r}:{expr.type}"
    if isinstance(expr, Subquery):
        return f"subquery({expr.plan!r})"
    options = "".join(f"; {k}={v}" for k, v in expr.options)
    return f"{expr.name}({', '.join(text(a, names) for a in expr.args)}{options})"
