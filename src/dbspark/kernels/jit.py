"""The decorators that declare kernels.

Every kernel goes through one of four decorators:

| decorator | called by | GIL | what for |
|---|---|---|---|
| `kernel` | Python, kernels | released | most kernels |
| `gil_kernel` | Python, kernels | kept | kernels that take microseconds |
| `inlined` | kernels | | helpers that make or return arrays |
| `borrowing` | kernels | | helpers that only read and write the arrays they are passed |

The annotations of a `kernel` are its signature: `int`, `float` and the names below, `A | B` for two signatures. So all
kernels of a unit can be compiled together, ahead of their first call, without calling them
(`kernels.units`, `kernels.compiler`). A call with other types works, but then every process compiles the kernel again.

Kernels do not call themselves: nested values are walked with an explicit stack, or bottom-up by the caller.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar

import numba
import numpy as np
from numba import types
from numba.core.ccallback import CFunc
from numba.core.registry import CPUDispatcher

from dbspark.kernels.units import C_FUNCTIONS, KERNELS, load_unit_of

F = TypeVar("F", bound=Callable[..., Any])

i64: Any = np.int64
"""The cast that keeps a kernel's integers signed. Any to mypy, because a kernel mixes int and np.int64."""

# The types of kernel arguments. All arrays are contiguous. Any to mypy: a kernel that calls another passes it addresses
# and np.uint64 as int.
UInt64: TypeAlias = Any
Int32s: TypeAlias = Any
Int64s: TypeAlias = Any
UInt8s: TypeAlias = Any
UInt64s: TypeAlias = Any
Float64s: TypeAlias = Any
Bools: TypeAlias = Any
Int64Matrix: TypeAlias = Any
UInt64Matrix: TypeAlias = Any
Int64Cube: TypeAlias = Any
ReadOnlyInt64s: TypeAlias = Any
ReadOnlyUInt64s: TypeAlias = Any

_TYPES: Final[dict[str, Any]] = {
    "int": types.int64,
    "float": types.float64,
    "UInt64": types.uint64,
    "Int32s": types.int32[::1],
    "Int64s": types.int64[::1],
    "UInt8s": types.uint8[::1],
    "UInt64s": types.uint64[::1],
    "Float64s": types.float64[::1],
    "Bools": types.boolean[::1],
    "Int64Matrix": types.int64[:, ::1],
    "UInt64Matrix": types.uint64[:, ::1],
    "Int64Cube": types.int64[:, :, ::1],
    "ReadOnlyInt64s": types.Array(types.int64, 1, "C", readonly=True),
    "ReadOnlyUInt64s": types.Array(types.uint64, 1, "C", readonly=True),
}

_log = logging.getLogger("dbspark")


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A function that is compiled with the other kernels of its unit, and called from Python."""

    compiled_here = False
    """True in a process that compiles a unit; elsewhere compiled units are loaded (`kernels.units`)."""

    @property
    def module(self) -> str:
        return str(self.py_func.__module__)

    @property
    def qualified_name(self) -> str:
        return f"{self.module}.{self.py_func.__qualname__}"

    @property
    def listed_signatures(self) -> list[tuple[Any, ...]]:
        """The signatures that the annotations state."""
        code = self.py_func.__code__
        names = code.co_varnames[: code.co_argcount]
        stated = [str(self.py_func.__annotations__[name]).split(" | ") for name in names]
        return [tuple(_TYPES[t] for t in choice) for choice in itertools.product(*stated)]

    @cached_property
    def within_kernels(self) -> Any:
        """The same function, compiled again for callers that this process compiles: machine code that was loaded from a
        file cannot be linked into theirs."""
        return inlined(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self if Kernel.compiled_here else self.within_kernels)

    def compile(self, signature: Any) -> Any:
        """Load the unit, or compile the function alone. numba calls this once per combination of argument types."""
        if not Kernel.compiled_here:
            load_unit_of(self)
            if tuple(signature) not in self.listed_signatures:
                _log.warning("kernel %s is compiled for types that it does not list: %s", self.__name__, signature)
        return super().compile(signature)


class CFunction:
    """A function that foreign code calls as `void (*)(void *)`; compiled with the kernels of its unit."""

    def __init__(self, fn: Callable[[int], None]) -> None:
        self.fn = fn
        self.loaded_address = 0
        C_FUNCTIONS.append(self)

    @property
    def module(self) -> str:
        return self.fn.__module__

    @property
    def qualified_name(self) -> str:
        return f"{self.module}.{self.fn.__qualname__}"

    def compiler(self) -> Any:
        """numba's object for the function, not compiled yet."""
        return CFunc(self.fn, ((types.int64,), types.void), {}, {"nopython": True, "boundscheck": None})

    @cached_property
    def address(self) -> int:
        """The function's address. It is never freed: foreign code may call it until the process ends."""
        load_unit_of(self)
        if self.loaded_address:
            return self.loaded_address
        compiled = self.compiler()
        compiled.compile()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(compiled))
        return int(compiled.address)


def kernel(fn: F) -> F:
    """A kernel that runs without the GIL."""
    return _kernel(fn, nogil=True)


def gil_kernel(fn: F) -> F:
    """A kernel that keeps the GIL: for kernels that take microseconds.

    Where the background merge thread waits for the GIL, releasing it hands it over, and taking it back lasts until that
    thread releases it and this one has been woken: longer than such a kernel runs. A kernel that on large input takes
    long all the same releases the GIL itself (`cpython.release_gil`).
    """
    return _kernel(fn, nogil=False)


def _kernel(fn: F, nogil: bool) -> F:
    options = {"nopython": True, "boundscheck": None, "nogil": nogil, "no_cfunc_wrapper": True, "_nrt": True}
    compiled: Any = Kernel(fn, targetoptions=options)
    KERNELS.append(compiled)
    callable_kernel: F = compiled
    return callable_kernel


def inlined(fn: F) -> F:
    """Compile `fn` as a helper that is linked into the kernels that call it; Python cannot call it.

    `_nrt` (array references are counted) is stated because numba would otherwise take the flag from the caller, which
    may be a `borrowing` helper.
    """
    compiled: F = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=True)(fn)
    return compiled


def borrowing(fn: F) -> F:
    """Compile `fn` as a helper that borrows its array arguments: no references are counted, because the caller holds
    them.

    Counting is atomic and costs as much as comparing two rows, once on entry and once on return. A helper that made an
    array would not compile; an array that something it calls returned would never be freed.
    """
    compiled: F = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)(fn)
    return compiled
