"""Catalyst's trees as parsed from JSON, each node with a reference to its object in the JVM.

What the JSON does not say (the evaluation mode of an arithmetic operator, the bytes of a literal) is read from the JVM
object, which `JvmReference` fetches by its path from the root of the plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dbspark.errors import DbsparkError
from dbspark.identity import encoded_value
from dbspark.sql import plan as p
from dbspark.sql.catalyst_nodes import PlanError, check_metadata
from dbspark.sql.identity import jvm_function, python_function
from dbspark.sql.literals import from_jvm
from dbspark.sql.types import from_json


class JvmReference:
    """The path to an object in the JVM, resolved on first use. Its pickled form refers to nothing."""

    __slots__ = ("_found", "_parent", "_step")

    def __init__(self, parent: JvmReference | None, step: Callable[[Any], Any] | Any) -> None:
        self._parent = parent
        self._step = step
        self._found: Any = None if parent is not None else step

    def jvm(self) -> Any:
        if self._found is None:
            assert self._parent is not None
            self._found = self._step(self._parent.jvm())
        return self._found

    def __reduce__(self) -> Any:
        return JvmReference, (None, None)  # what runs elsewhere is compiled; there is no way back to this JVM

    def child(self, i: int) -> JvmReference:
        return JvmReference(self, lambda obj: obj.children().apply(i))

    def field(self, name: str) -> JvmReference:
        def step(obj: Any) -> Any:
            value = getattr(obj, name)()
            return value.get() if "Some" in value.getClass().getName() else value

        return JvmReference(self, step)

    def item(self, i: int) -> JvmReference:
        return JvmReference(self, lambda obj: obj.apply(i))


@dataclass(frozen=True, slots=True)
class CatalystNode:
    """A node of Catalyst's tree as the JSON has it."""

    name: str
    fields: Mapping[str, Any]
    children: tuple[CatalystNode, ...]
    origin: JvmReference

    def exprs(self, field: str) -> list[CatalystNode]:
        """The expressions of a field that is a list of expressions."""
        at = self.origin.field(field)
        return [parse_tree(e, at.item(i)) for i, e in enumerate(self.fields[field])]

    def expr(self, field: str) -> CatalystNode | None:
        """The expression of a field, if there is one."""
        given = self.fields.get(field)
        return parse_tree(given, self.origin.field(field)) if given else None


def parse_tree(flat: Sequence[Mapping[str, Any]], origin: JvmReference) -> CatalystNode:
    """A tree from its nodes in pre-order."""
    at = 0

    def read(origin: JvmReference) -> CatalystNode:
        nonlocal at
        given = flat[at]
        at += 1
        name = given["class"].rsplit(".", 1)[1]
        if name == "Alias" and given.get("explicitMetadata") is not None:  # the JSON only says that there is some
            check_metadata(given["name"], json.loads(origin.jvm().metadata().json()))
        children = tuple(read(origin.child(i)) for i in range(given["num-children"]))
        return CatalystNode(name, given, children, origin)

    return read(origin)


def expression_id(raw: CatalystNode) -> int:
    return int(raw.fields["exprId"]["id"])


def window_in(raw: CatalystNode) -> CatalystNode | None:
    """The window expression in an expression, if there is one."""
    return next((r for r in all_nodes(raw) if r.name == "WindowExpression"), None)


def all_nodes(raw: CatalystNode) -> Iterator[CatalystNode]:
    yield raw
    for child in raw.children:
        yield from all_nodes(child)


def holds_aggregate(raw: CatalystNode) -> bool:
    return raw.name == "AggregateExpression" or any(holds_aggregate(c) for c in raw.children)


def is_option(value: Any) -> bool:
    """Whether a field holds plain values: it is set, and is neither an expression nor a list of expressions."""
    if isinstance(value, list):
        return all(isinstance(v, str | int | float | bool) for v in value)
    return value is not None


def is_reference(value: Any, width: int) -> bool:
    """Whether a field may be the position of a child, or of several."""
    given = value if isinstance(value, list) else [value]
    return all(type(v) is int and 0 <= v < width for v in given)


def to_hashable_option(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(anonymous(value), sort_keys=True)
    return tuple(value) if isinstance(value, list) else value


def anonymous(value: Any) -> Any:
    """JSON without what differs from one analysis to the next."""
    if isinstance(value, dict):
        return {k: anonymous(v) for k, v in value.items() if k not in ("exprId", "resultId", "jvmId", "qualifier")}
    return [anonymous(v) for v in value] if isinstance(value, list) else value


def function_of(expr: Any) -> tuple[Any, ...]:
    """The identity of the user's function in an expression of the JVM."""
    name = str(expr.name())
    if str(expr.getClass().getSimpleName()) == "ScalaUDF":
        return jvm_function(name, expr.function())
    sent = str(expr.func().command().mkString(","))
    return python_function(name, bytes(int(b) & 0xFF for b in sent.split(",")))


def functions_in(plan: Any) -> tuple[Any, ...]:
    """The identities of the users' functions in the expressions of a node of the JVM, in order."""
    found: list[Any] = []

    def look(expr: Any) -> None:
        name = str(expr.getClass().getSimpleName())
        if "PythonUD" in name or name == "ScalaUDF":
            found.append(function_of(expr))
        children = expr.children()
        for i in range(children.size()):
            look(children.apply(i))

    expressions = plan.expressions()
    for i in range(expressions.size()):
        look(expressions.apply(i))
    return tuple(found)


def read_literal(raw: CatalystNode) -> p.Constant | p.Call:
    try:
        dtype = from_json(raw.fields["dataType"])
    except (DbsparkError, ValueError):  # an object of the JVM, which only Spark can use
        return p.Call("Literal", (), (("value", str(raw.origin.jvm().sql())),), raw.origin)
    text = raw.fields.get("value")
    if text is None:
        return p.Constant(None, dtype)
    if pa.types.is_nested(dtype) or pa.types.is_interval(dtype) or "variant" in str(raw.fields["dataType"]):
        return p.Call("Literal", (), (("value", _literal_text(raw, dtype)), ("dataType", dtype)), raw.origin)
    return p.Constant(value_of(text, dtype, lambda: raw.origin.jvm().value()), dtype)


def _literal_text(raw: CatalystNode, dtype: pa.DataType) -> str:
    """A text that only equal literals have."""
    literal = raw.origin.jvm()
    try:
        return encoded_value(from_jvm(literal.value(), literal.dataType(), dtype)).hex()
    except TypeError:
        return str(literal.sql())


def value_of(text: str | None, dtype: pa.DataType, inner: Callable[[], Any]) -> Any:
    """A literal's value from its text, or from Spark's own form of it where the text does not tell."""
    if text is None:
        return None
    t = pa.types
    if t.is_boolean(dtype):
        return text == "true" or text == "True"
    if t.is_integer(dtype):
        return int(text)
    if t.is_floating(dtype):
        return float(text.replace("Infinity", "inf"))
    if t.is_decimal(dtype):
        return Decimal(text)
    if t.is_string(dtype):
        return text
    if t.is_date(dtype):
        return pa.scalar(int(inner()), pa.int32()).cast(dtype)  # Python's dates end with the year 9999
    if t.is_timestamp(dtype) or t.is_time(dtype) or t.is_duration(dtype):
        return pa.scalar(int(inner()), pa.int64()).cast(dtype)
    if t.is_binary(dtype):
        return bytes(inner())
    raise PlanError(f"a literal of type {dtype} is not known")
