"""CPython's C API for kernels: releasing the global interpreter lock (GIL), and counting references to objects.

A kernel compiled with `jit.kernel` runs without the GIL from beginning to end. One compiled with `jit.gil_kernel` keeps
it, and brackets the part that may take long with `release_gil` and `restore_gil`.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dbspark.kernels.jit import i64, inlined

GIL_RELEASE_ROWS: Final = 1 << 14
"""A `gil_kernel` that visits more rows releases the GIL: the visit then takes long compared with handing over the
lock."""


def _call_python(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call a function of CPython's C API."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def incref(typingctx: Any, address: Any) -> Any:
    """Add a reference to a Python object. The caller holds the GIL, or no other thread has a reference to the
    object."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call_python(builder, "Py_IncRef", ir.VoidType(), builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def decref(typingctx: Any, address: Any) -> Any:
    """Drop a reference to a Python object, from any thread: takes the GIL; does nothing once the interpreter is
    gone."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        alive = _call_python(builder, "Py_IsInitialized", ir.IntType(32))
        with builder.if_then(builder.icmp_signed("!=", alive, ir.Constant(alive.type, 0))):
            lock = _call_python(builder, "PyGILState_Ensure", ir.IntType(32))
            _call_python(builder, "Py_DecRef", ir.VoidType(), builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
            _call_python(builder, "PyGILState_Release", ir.VoidType(), lock)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def _save_thread(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        state = _call_python(builder, "PyEval_SaveThread", ir.IntType(8).as_pointer())
        return builder.ptrtoint(state, ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def _restore_thread(typingctx: Any, state: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        state = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        _call_python(builder, "PyEval_RestoreThread", ir.VoidType(), state)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@inlined
def release_gil(condition: Any) -> int:
    """Release the GIL where `condition` holds; returns the state that `restore_gil` needs.

    For a `gil_kernel` that only Python calls. Nothing may be raised before `restore_gil`: the exception would reach the
    interpreter without its lock.
    """
    return _save_thread() if condition else i64(0)


@inlined
def restore_gil(state: int) -> None:
    """Take the GIL back, if `release_gil` has released it."""
    if state != 0:
        _restore_thread(state)
