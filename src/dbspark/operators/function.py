"""Names for functions: two functions of one name are the same function, in every process.

A node's id says what it computes, so the name of a function has to. It is a hash of everything that the function is
made of: its code, constants, defaults, what it closes over and the globals it names, as far as they are plain values,
arrays, modules, or functions made of such. Whatever cannot be described exactly gets a name that is never shared: then
two nodes stay two, and state does not find its operator again in another process. Give such a function a name.

Byte code differs between versions of Python, and so do these names.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

Columns = Sequence[pa.Array]

_numbers = itertools.count()


class _UndescribedError(Exception):
    """A value that has no exact description."""


class Shown(NamedTuple):
    """A column that a function gives: one that it is given, or the values of a slot, of a kind and so many bytes."""

    number: int
    kind: int = -1
    """-1: it is a column that is given."""
    width: int = 0


class Coded(NamedTuple):
    """What a function does, as code for `kernels.vm.expressions`; columns are those that it is given."""

    test: tuple[int, ...]
    """Slot 0 says which rows stay; without it all do."""
    code: tuple[int, ...]
    columns: tuple[Shown, ...]
    kept: Any = None
    """What code names by address."""


class Function:
    """A function on columns with a name that says what it computes: two of one name are the same function.

    `kept` says which columns it gives as it gets them, as {number going out: number coming in}; those that it does not
    name may be anything. `coded` is the same function for small deltas.
    """

    __slots__ = ("call", "coded", "kept", "name")

    def __init__(
        self,
        call: Callable[..., Any],
        name: str | None = None,
        kept: Mapping[int, int] | None = None,
        coded: Coded | None = None,
    ) -> None:
        self.call = call
        self.name = name or _name_of(call)
        self.kept = dict(kept or {})
        self.coded = coded

    def __reduce__(self) -> Any:
        return Function, (self.call, self.name, self.kept)  # code names memory of this process

    @staticmethod
    def of(given: Function | Callable[..., Any]) -> Function:
        return given if isinstance(given, Function) else Function(given)

    def __call__(self, columns: Columns) -> Any:
        return self.call(columns)


def _name_of(call: Callable[..., Any]) -> str:
    name = getattr(call, "__qualname__", type(call).__name__)
    try:
        described = _described(call, ())
    except _UndescribedError:
        return f"{name}@{next(_numbers)}"
    return f"{name}#{hashlib.blake2b(described.encode(), digest_size=8).hexdigest()}"


def _described(value: Any, inside: tuple[int, ...]) -> str:
    """A text that only equal values have."""
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
    if isinstance(value, type | types.BuiltinFunctionType) and getattr(value, "__self__", None) in (None, np):
        return f"{value.__module__}.{value.__qualname__}"
    raise _UndescribedError


def _described_function(call: types.FunctionType, within: tuple[int, ...]) -> str:
    module = call.__module__ or ""
    if module.split(".")[0] in ("pyarrow", "numpy", "dbspark"):
        return f"function {module}.{call.__qualname__}"  # a library's own; its version is not ours to say
    names = _named(call.__code__)
    known = {n: call.__globals__[n] for n in sorted(names) if n in call.__globals__}
    cells = [c.cell_contents for c in call.__closure__ or ()]
    parts = (call.__code__, call.__defaults__, call.__kwdefaults__, cells, known)
    return f"function({', '.join(_described(p, within) for p in parts)})"


def _named(code: types.CodeType) -> set[str]:
    """The names that a function looks up, those inside it included."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*(_named(c) for c in inner))
