"""Raw memory for kernels: loads and stores at addresses, copies, and arithmetic that numba lacks. Rules:

1. Addresses are int64: user-space addresses fit, and numba turns uint64 + int64 into a float.
2. Loads and stores promise no alignment, because imported Arrow buffers may start at any byte.
3. The index of a load or store counts elements of the loaded width, not bytes.
4. An address is never the sum of two arguments of an inlined helper of which one may be a constant zero. numba passes a
   helper on to its callers as LLVM left it after generating machine code, and LLVM may have taken either term for the
   pointer and the other for the offset. With the zero as the pointer the access has no memory to refer to, and LLVM
   removes it.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dbspark.kernels.jit import inlined


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
    """The number of set bits of a word."""

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
def int64s_at(at: int, count: int) -> Any:
    """Memory at an address as an array of int64. The array does not keep the memory alive."""
    return numba.carray(_pointer(at), count)


@inlined
def uint64s_at(at: int, count: int) -> Any:
    """Memory at an address as an array of uint64. The array does not keep the memory alive."""
    return numba.carray(_unsigned_pointer(at), count)


def _overflows(operation: str) -> Any:
    @intrinsic
    def overflows(typingctx: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            checked = getattr(builder, operation)(args[0], args[1])
            minimum = ir.Constant(ir.IntType(64), -(1 << 63))
            is_minimum = builder.icmp_signed("==", builder.extract_value(checked, 0), minimum)
            return builder.or_(builder.extract_value(checked, 1), is_minimum)

        return types.boolean(types.int64, types.int64), codegen

    return overflows


# numba's + and * promise LLVM that they do not overflow, so LLVM removes a check that is written with them.
# A result of -2**63 counts as an overflow too: it has no negation, so a row of that weight could not be retracted.
add_overflows = _overflows("sadd_with_overflow")
multiply_overflows = _overflows("smul_with_overflow")


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy. Callers copy values of a few bytes with loads and stores, which costs less than the call."""

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
    """Start loading a cache line that will be read soon. The address need not be valid."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        llvm_prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, locality, data = (ir.Constant(number, n) for n in (0, 3, 1))
        builder.call(llvm_prefetch, [builder.inttoptr(args[0], byte), read, locality, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
