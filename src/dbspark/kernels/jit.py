"""The one way kernels are compiled, and the raw memory access they share.

Addresses are int64: user-space addresses fit, and numba turns uint64 + int64 into a float. Loads and
stores carry no alignment promise, because Arrow buffers from elsewhere may start anywhere.

Self-recursion is not used in kernels: numba's disk cache of a recursive function crashes when it is
loaded again. Nested values are walked with an explicit stack or bottom-up by the caller.

An address is never the sum of two arguments of a helper of which one may be a constant zero. numba hands a helper on to
its callers as LLVM left it after making machine code, and LLVM may have taken either term for the pointer and the other
for the offset: with the zero put in, it reads from nowhere, and LLVM leaves out what would.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

i64: Any = np.int64
"""The cast that keeps a kernel's integers signed; typed loosely, because a kernel's integers are."""


def _cache_dir() -> str:
    """Where compiled kernels are kept: a folder named after everything that determines their code.

    numba itself looks only at the file that a function stands in, and would go on using a kernel after a helper in
    another file has changed. Beside the sources if possible, so that all users and Spark's workers share it.
    """
    here = Path(__file__).parent
    digest = blake2b(f"{sys.version_info[:2]} {numba.__version__}".encode(), digest_size=8)
    for source in sorted(here.rglob("*.py")):
        digest.update(source.read_bytes())
    name = f"kernels-{digest.hexdigest()}"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for place in (here / "__pycache__", user / "dbspark", Path(tempfile.gettempdir()) / f"dbspark-{os.getuid()}"):
        try:
            (place / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place / name, os.W_OK):
            return str(place / name)
    return ""


MANY: Final = 1 << 14
"""Rows from which on it takes long to look at each of them."""
_CACHE_DIR = _cache_dir()
KERNELS: list[Any] = []
"""All kernels of the modules that have been imported."""


@contextmanager
def _cached() -> Iterator[None]:
    """What is compiled is kept where all kernels are."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _CACHE_DIR or before
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def kernel(fn: F) -> F:
    """Compile `fn` on first call, cached on disk. It gives up the interpreter's lock while it runs."""
    return _kernel(fn, nogil=True)


def brief(fn: F) -> F:
    """The same for what takes microseconds, and keeps the lock.

    To give it up hands it to the thread of the merges, if that waits for it, and to get it back takes longer than such
    a kernel runs: until that thread gives it up again, and this one has been woken. What may take long after all gives
    it up itself (`without_lock`).
    """
    return _kernel(fn, nogil=False)


def _kernel(fn: F, nogil: bool) -> F:
    with _cached():
        compiled: F = numba.njit(nogil=nogil, cache=True, no_cfunc_wrapper=True, _nrt=True)(fn)
    KERNELS.append(compiled)
    return compiled


def c_function(fn: Callable[[int], None]) -> int:
    """The address of `fn` as a C function that takes a pointer and gives nothing: compiled now, or read from disk.

    It is never freed: whoever has its address may call it until the process ends.
    """
    with _cached():
        compiled = numba.cfunc(types.void(types.int64), nopython=True, cache=True)(fn)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(compiled))
    address: int = compiled.address
    return address


def inlined(fn: F) -> F:
    """A helper of kernels: compiled into its callers and cached with them; Python cannot call it.

    It says that it counts references to arrays, or would take over from a caller that does not (`borrowing`).
    """
    compiled: F = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=True)(fn)
    return compiled


def borrowing(fn: F) -> F:
    """A helper of kernels that reads and writes the arrays it is handed, and neither makes nor gives any.

    Whoever calls it has them, so they are not counted: to count one costs as much as to compare two rows, once when it
    comes and once when it goes, because another thread might. A helper that made an array would not compile; one
    that called something which gives one would never free it.
    """
    compiled: F = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)(fn)
    return compiled


def _load(result: Any, bits: int) -> Any:
    @intrinsic
    def load(typingctx: Any, address: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            return builder.load(builder.gep(pointer, [args[1]]), align=1)

        return result(types.int64, types.int64), codegen

    return load


def _store(value: Any, bits: int) -> Any:
    @intrinsic
    def store(typingctx: Any, address: Any, index: Any, item: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(args[2], builder.gep(pointer, [args[1]]), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, value), codegen

    return store


# Indices count elements of the loaded width, not bytes.
load_u64 = _load(types.uint64, 64)
load_i64 = _load(types.int64, 64)
load_u32 = _load(types.uint32, 32)
load_i32 = _load(types.int32, 32)
load_u16 = _load(types.uint16, 16)
load_i16 = _load(types.int16, 16)
load_u8 = _load(types.uint8, 8)
load_i8 = _load(types.int8, 8)
store_u64 = _store(types.uint64, 64)
store_i64 = _store(types.int64, 64)
store_u32 = _store(types.uint32, 32)
store_i32 = _store(types.int32, 32)
store_u16 = _store(types.uint16, 16)
store_u8 = _store(types.uint8, 8)


@intrinsic
def f64_bits(typingctx: Any, x: Any) -> Any:
    """The IEEE bits of a float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), codegen


@intrinsic
def bits_f64(typingctx: Any, x: Any) -> Any:
    """The float64 of IEEE bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), codegen


@intrinsic
def bits_f32(typingctx: Any, x: Any) -> Any:
    """The float64 with the value of a float32 given by its IEEE bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.FloatType()), ir.DoubleType())

    return types.float64(types.uint32), codegen


@intrinsic
def count_bits(typingctx: Any, x: Any) -> Any:
    """How many bits of a word are set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def _pointer(typingctx: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(types.int64), codegen


@intrinsic
def _unsigned_pointer(typingctx: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.uint64)(types.int64), codegen


@inlined
def ints_at(at: int, count: int) -> Any:
    """Memory at an address as an array of int64, for kernels that take one; nobody keeps it alive."""
    return numba.carray(_pointer(at), count)


@inlined
def words_at(at: int, count: int) -> Any:
    """The same as an array of uint64."""
    return numba.carray(_unsigned_pointer(at), count)


def _overflows(operation: str) -> Any:
    @intrinsic
    def overflows(typingctx: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            checked = getattr(builder, operation)(args[0], args[1])
            least = ir.Constant(ir.IntType(64), -(1 << 63))
            is_least = builder.icmp_signed("==", builder.extract_value(checked, 0), least)
            return builder.or_(builder.extract_value(checked, 1), is_least)

        return types.boolean(types.int64, types.int64), codegen

    return overflows


# numba's + and * promise LLVM that they do not overflow, so a check written with them is optimised away.
# The least int64 counts as an overflow: it has no opposite, so a weight could not be taken back.
add_overflows = _overflows("sadd_with_overflow")
multiply_overflows = _overflows("smul_with_overflow")


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy for long runs; short values are copied inline by the callers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(64)])
        builder.call(
            memcpy,
            [builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte), args[2], ir.Constant(ir.IntType(1), 0)],
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the memory at an address, which will be read soon; any address will do."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        asked = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, keep, data = (ir.Constant(number, n) for n in (0, 3, 1))
        builder.call(asked, [builder.inttoptr(args[0], byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _of_python(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call a function of the interpreter."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def keep_object(typingctx: Any, address: Any) -> Any:
    """Count one more reference to an object of Python that no other thread knows of, so that no lock is needed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _of_python(builder, "Py_IncRef", ir.VoidType(), builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def forget_object(typingctx: Any, address: Any) -> Any:
    """Count one reference less, on whichever thread: the interpreter's lock is taken for it, if there still is one."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        alive = _of_python(builder, "Py_IsInitialized", ir.IntType(32))
        with builder.if_then(builder.icmp_signed("!=", alive, ir.Constant(alive.type, 0))):
            lock = _of_python(builder, "PyGILState_Ensure", ir.IntType(32))
            _of_python(builder, "Py_DecRef", ir.VoidType(), builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
            _of_python(builder, "PyGILState_Release", ir.VoidType(), lock)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def _let_go(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        state = _of_python(builder, "PyEval_SaveThread", ir.IntType(8).as_pointer())
        return builder.ptrtoint(state, ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def _get_back(typingctx: Any, state: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        state = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        _of_python(builder, "PyEval_RestoreThread", ir.VoidType(), state)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@inlined
def without_lock(many: Any) -> int:
    """In a `brief` kernel that is called by Python only: give up the lock where there is much to do.

    What is given has to be handed to `with_lock` in the end, and nothing may be raised in between.
    """
    return _let_go() if many else i64(0)


@inlined
def with_lock(state: int) -> None:
    """Have the lock again."""
    if state != 0:
        _get_back(state)
