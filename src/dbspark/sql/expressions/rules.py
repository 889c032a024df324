"""Rules that compile expressions to functions on columns, by Catalyst's name of the expression.

A rule takes a call with its arguments compiled and gives a `Compiled`, or None where it has no kernel for these types
or options: then Spark evaluates the expression on the delta. A rule must be exact: where Arrow and Spark differ (NaN,
-0.0, overflow, rounding, what is NULL and what an error), the rule does as Spark does, ANSI on or off as `Context`
says.

    >>> @rule("Add")
    ... def add(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None: ...

Values during evaluation are arrays of as many rows as the frame has, or scalars, which stand for any number of rows.
Expressions that can fail (`can_fail`) are evaluated only on rows on which Spark would evaluate them: CASE, IF, AND, OR
and COALESCE see to that. What several expressions of a step have in common is evaluated once on each frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from dbspark.sql.plan import Call

Datum: TypeAlias = pa.Array | pa.Scalar


@dataclass(frozen=True, slots=True)
class Context:
    """The settings of the session that the meaning of expressions depends on."""

    ansi: bool = True
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True)
class ColumnFrame:
    """The columns that expressions are evaluated on, with their number of rows."""

    columns: Sequence[pa.Array]
    rows: int
    found: dict[object, Datum] = field(default_factory=dict, compare=False)
    """Values of shared sub-expressions."""

    def at(self, rows: pa.Array) -> ColumnFrame:
        """The frame at some rows, given by number."""
        return ColumnFrame([c.take(rows) for c in self.columns], len(rows))


@dataclass(frozen=True, slots=True)
class Compiled:
    """A function on the columns of a frame, and the type of its result."""

    type: pa.DataType
    run: Callable[[ColumnFrame], Datum]
    can_fail: bool = False
    """Whether it may raise on some value."""
    constant: Any = field(default=None)
    """The scalar, if it is the same for every row."""

    def array(self, frame: ColumnFrame) -> pa.Array:
        """The value of each row; without rows nothing is evaluated, not even what fails for every row."""
        if not frame.rows and self.can_fail:
            return pa.array([], self.type)
        return as_array(self.run(frame), frame.rows)


Rule: TypeAlias = Callable[[Call, Sequence[Compiled], Context], "Compiled | None"]
RawRule: TypeAlias = Callable[[Call, Any], "Compiled | None"]

RULES: dict[str, Rule] = {}
RAW_RULES: dict[str, RawRule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for expressions of some names."""

    def register(given: Rule) -> Rule:
        for name in names:
            if name in RULES or name in RAW_RULES:
                raise ValueError(f"there are two rules for {name}")
            RULES[name] = given
        return given

    return register


def raw_rule(*names: str) -> Callable[[RawRule], RawRule]:
    """Registers a rule that compiles its arguments itself (lambdas): it takes the call and the compiler."""

    def register(given: RawRule) -> RawRule:
        for name in names:
            if name in RULES or name in RAW_RULES:
                raise ValueError(f"there are two rules for {name}")
            RAW_RULES[name] = given
        return given

    return register


def constant(value: Any, dtype: pa.DataType) -> Compiled:
    """The same value for every row."""
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value, dtype)
    return Compiled(dtype, lambda frame: scalar, constant=scalar)


def calling(
    dtype: pa.DataType, function: Callable[..., Datum], args: Sequence[Compiled], can_fail: bool = False
) -> Compiled:
    """A function of the values of the arguments (arrays or scalars); scalars in, scalar out, computed once."""
    fails = can_fail or any(a.can_fail for a in args)
    if args and not fails and all(a.constant is not None for a in args):
        return constant(one_scalar(function(*(a.constant for a in args))), dtype)
    runs = [a.run for a in args]
    if len(runs) == 1:
        only = runs[0]
        return Compiled(dtype, lambda frame: function(only(frame)), fails)
    if len(runs) == 2:
        first, second = runs
        return Compiled(dtype, lambda frame: function(first(frame), second(frame)), fails)
    return Compiled(dtype, lambda frame: function(*(run(frame) for run in runs)), fails)


def on_arrays(
    dtype: pa.DataType, function: Callable[..., pa.Array], args: Sequence[Compiled], can_fail: bool = False
) -> Compiled:
    """As `calling`, for a function that takes arrays only."""
    fails = can_fail or any(a.can_fail for a in args)
    return Compiled(dtype, lambda frame: function(*(a.array(frame) for a in args)), fails)


def as_array(datum: Datum, rows: int) -> pa.Array:
    if isinstance(datum, pa.Scalar):
        return pa.repeat(datum, rows) if rows else pa.array([], datum.type)
    if isinstance(datum, pa.ChunkedArray):
        return datum.combine_chunks() if datum.num_chunks != 1 else datum.chunk(0)
    return datum


def one_scalar(datum: Datum) -> pa.Scalar:
    return datum if isinstance(datum, pa.Scalar) else datum[0]
