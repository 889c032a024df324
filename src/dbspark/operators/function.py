"""Functions on columns and their identities: two functions of one identity are the same function, in every process.

The id of a node identifies what it computes, so functions need identities. There are three kinds:

* declared: a name from the caller, or an identity (`dbspark.identity`) such as compiled queries have. It is the only
  kind that is independent of the code, so circuits whose state is stored should use it. A Python function declares one
  with `identified`;
* by content, for a function without a name: a hash of its code, constants, defaults, what it closes over and the
  globals it names, as far as they are plain values, arrays, modules, or functions made of such. Byte code differs
  between versions of Python, and so do these identities: state is computed again after an update of Python;
* unshared, where the content cannot be described exactly: then two nodes with this function are never merged into one,
  and their state is not found again in another process.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from dbspark.identity import encoded, unshared

Columns = Sequence[pa.Array]

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])

_DECLARED = "__dbspark_identity__"
"""The attribute in which a Python function carries the identity that it declares."""
UNDESCRIBED: tuple[Any, ...] = ("undescribed",)
"""Placeholder for the identity of a function whose content cannot be described exactly."""


class _UndescribedError(Exception):
    """A value that has no exact description."""


class BytecodeColumn(NamedTuple):
    """An output column of bytecode: a column of the input, or a slot with values of some kind and width in bytes."""

    number: int
    kind: int = -1
    """-1: a column of the input."""
    width: int = 0


class ExpressionBytecode(NamedTuple):
    """A function as bytecode for `kernels.vm.expressions`; columns are numbered as in its input."""

    test: tuple[int, ...]
    """Bytecode that leaves in slot 0 whether each row is kept; empty: all rows are."""
    code: tuple[int, ...]
    columns: tuple[BytecodeColumn, ...]
    references: Any = None
    """Objects whose memory the bytecode names by address."""


class Function:
    """A function on columns with an identity that says what it computes: two of one identity are the same function.

    `name` is for display, and is the identity if no other is given.

    `passed_columns`: {output column: input column} for output columns that are unchanged input columns. `bytecode` is
    the same function for the operator VM, which runs small deltas.
    """

    kind: ClassVar[str] = "function"
    version: ClassVar[int] = 1

    __slots__ = ("bytecode", "call", "identity", "name", "passed_columns")

    def __init__(
        self,
        call: Callable[..., Any],
        name: str | None = None,
        passed_columns: Mapping[int, int] | None = None,
        bytecode: ExpressionBytecode | None = None,
        identity: Any = None,
    ) -> None:
        self.call = call
        if identity is None:
            identity = identity_of(call) if name is None else ("name", name)
            if identity == UNDESCRIBED:
                identity = unshared()
        self.name = name or _label(call, identity)
        self.identity = identity if isinstance(identity, bytes) else encoded(identity, self.name)
        self.passed_columns = dict(passed_columns or {})
        self.bytecode = bytecode

    def __reduce__(self) -> Any:
        # Bytecode contains addresses of this process, so it is not pickled.
        return Function, (self.call, self.name, self.passed_columns, None, self.identity)

    def parameters(self) -> tuple[Any, ...]:
        return (self.identity,)

    @staticmethod
    def of(given: Function | Callable[..., Any]) -> Function:
        return given if isinstance(given, Function) else Function(given)

    def __call__(self, columns: Columns) -> Any:
        return self.call(columns)


def identified(name: str, version: int = 1) -> Callable[[AnyCallable], AnyCallable]:
    """Declares the identity of a Python function, so that state survives changes of its code.

    Raise the version whenever the function gives other values: state that was computed with the old one is then
    computed again.

        @udf("string")
        @identified("clean-name", version=2)
        def clean(text): ...
    """

    def declare(function: AnyCallable) -> AnyCallable:
        setattr(function, _DECLARED, (name, version))
        return function

    return declare


def identity_of(call: Callable[..., Any]) -> tuple[Any, ...]:
    """The identity of a function without a name: declared, by content, or unshared."""
    declared = getattr(call, _DECLARED, None)
    if declared is not None:
        return "declared", *declared
    try:
        described = _described(call, ())
    except _UndescribedError:
        return UNDESCRIBED
    return "content", hashlib.blake2b(described.encode(), digest_size=16).digest()


def _label(call: Callable[..., Any], identity: tuple[Any, ...]) -> str:
    """A display name for a function without a name."""
    name = getattr(call, "__qualname__", type(call).__name__)
    if identity[0] == "content":
        return f"{name}#{identity[1].hex()[:16]}"
    return f"{name}@{identity[-1]}" if identity[0] == "unshared" else str(identity[1])


def _described(value: Any, inside: tuple[int, ...]) -> str:
    """A text such that different values have different texts."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | type(Ellipsis)):
        return f"{type(value).__name__}:{value!r}"
    if id(value) in inside:
        return f"recursion {inside[::-1].index(id(value))}"
    within = (*inside, id(value))

    def each(values: Any) -> str:
        return ", ".join(_described(v, within) for v in values)

    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({each(value)})"
    if isinstance(value, set | frozenset):
        return f"set({', '.join(sorted(_described(v, within) for v in value))})"
    if isinstance(value, dict):
        return f"dict({each(value.keys())}; {each(value.values())})"
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        content = hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array({value.dtype.str}, {value.shape}, {content})"
    if isinstance(value, pa.DataType | pa.Scalar):
        return f"arrow({value.type if isinstance(value, pa.Scalar) else ''}, {value})"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, types.CodeType):
        return f"code({value.co_code!r}, {each(value.co_consts)}, {value.co_names}, {value.co_freevars})"
    if isinstance(value, types.FunctionType):
        return _described_function(value, within)
    if isinstance(value, types.MethodType):
        return f"method({each((value.__func__, value.__self__))})"
    if isinstance(value, functools.partial):
        return f"partial({each((value.func, value.args, value.keywords))})"
    if isinstance(value, type) and value.__module__ == "__main__":
        raise _UndescribedError  # the name of a class does not determine its methods
    if isinstance(value, type | types.BuiltinFunctionType) and getattr(value, "__self__", None) in (None, np):
        return f"{value.__module__}.{value.__qualname__}"
    raise _UndescribedError


def _described_function(call: types.FunctionType, within: tuple[int, ...]) -> str:
    declared = getattr(call, _DECLARED, None)
    if declared is not None:
        return f"declared{declared!r}"
    module = call.__module__ or ""
    if module.split(".")[0] in ("pyarrow", "numpy", "dbspark"):
        return f"function {module}.{call.__qualname__}"  # a library's function; its version is not part of it
    names = _named(call.__code__)
    known = {n: call.__globals__[n] for n in sorted(names) if n in call.__globals__}
    cells = [c.cell_contents for c in call.__closure__ or ()]
    parts = (call.__code__, call.__defaults__, call.__kwdefaults__, cells, known)
    return f"function({', '.join(_described(p, within) for p in parts)})"


def _named(code: types.CodeType) -> set[str]:
    """The names that a function looks up, those inside it included."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*(_named(c) for c in inner))
