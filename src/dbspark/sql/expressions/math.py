"""Mathematics, rounding, bits and hashes.

Java computes some functions of floats in its own way, and its last bit is not always that of the C library: those that
differ anywhere on millions of values are left to Spark (powers, logarithms and most of trigonometry are among them).
What is here is exact by construction or has been found to be so.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.sql.expressions.cast_numbers import saturated, scaled_integers
from dbspark.sql.expressions.cast_strings import nearest_single
from dbspark.sql.expressions.decimals import fitted_integers, half_up, shaped, unscaled
from dbspark.sql.expressions.logic import null_intolerant_in_order
from dbspark.sql.expressions.operands import OVERFLOW, EvalMode, by_numpy, mode_of, valid_of, values_of
from dbspark.sql.expressions.rules import ColumnFrame, Compiled, Context, Datum, as_array, calling, constant, rule
from dbspark.sql.plan import Call

DOUBLE = pa.float64()

# ---------------------------------------------------------------------- functions of doubles

_EXACT: dict[str, Callable[[Any], Any]] = {
    "Sqrt": np.sqrt,
    "Rint": np.rint,
    "ToDegrees": lambda v: v * (180.0 / np.pi),
    "ToRadians": lambda v: v * (np.pi / 180.0),
    "Signum": lambda v: np.where(v == 0, v, np.sign(v)),
}
"""Functions whose results are the same in every library."""


@rule(*_EXACT)
def exact(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if args[0].type != DOUBLE:
        return None
    return calling(DOUBLE, by_numpy(DOUBLE, _EXACT[call.name]), args)


@rule("Pow")
def power(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Powers that Java treats apart."""
    if args[0].type != DOUBLE or args[1].constant is None:
        return None
    by = args[1].constant.as_py()
    functions: dict[float, Callable[[Any], Any]] = {
        0.0: np.ones_like, 1.0: lambda v: v, -1.0: lambda v: 1.0 / v, 2.0: lambda v: v * v,
        0.5: lambda v: np.where(v == -np.inf, np.inf, np.sqrt(v + 0.0)),
    }  # fmt: skip
    return calling(DOUBLE, by_numpy(DOUBLE, functions[by]), args[:1]) if by in functions else None


# ---------------------------------------------------------------------- rounding


@rule("Ceil", "Floor")
def ceil(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    up = call.name == "Ceil"
    if dtype == pa.int64():
        return args[0]
    if dtype == DOUBLE:
        function = np.ceil if up else np.floor
        if mode_of(call, context) == "LEGACY":
            return calling(pa.int64(), by_numpy(pa.int64(), lambda v: saturated(function(v), np.int64)), args)

        def checked(values: Any) -> Any:
            whole = function(values)
            return saturated(whole, np.int64), (whole >= 2.0**63) | (whole < -(2.0**63))  # NaN is 0

        error = OVERFLOW.format(call.name)
        return calling(pa.int64(), by_numpy(pa.int64(), checked, error=error), args, True)
    if not pa.types.is_decimal(dtype):
        return None
    if dtype.scale == 0:
        return args[0]
    out = pa.decimal128(dtype.precision - dtype.scale + 1, 0)
    return calling(out, lambda v: _rounded(v, 0, out, "ceil" if up else "floor"), args)


def _divided(values: Any, unit: int, how: str) -> Any:
    """Integers over a power of ten, rounded one way or another."""
    if how == "floor":
        return values // unit
    if how == "ceil":
        return -(-values // unit)
    if how == "half_up":
        return half_up(values, unit)
    size = np.abs(values)
    quotient, rest = size // unit, size % unit
    up = (2 * rest > unit) | ((2 * rest == unit) & (quotient % 2 == 1))
    quotient = quotient + up.astype(quotient.dtype if quotient.dtype != object else np.int64)
    return np.where(values < 0, -quotient, quotient)


def _rounded(value: Datum, scale: int, dtype: pa.DataType, how: str, mode: EvalMode = "ANSI") -> Datum:
    """Decimals rounded to so many digits after the point (before it, if negative)."""
    array = as_array(value, 1)
    values = unscaled(array)
    drop = array.type.scale - scale
    if drop > 0:
        wide = values if drop <= 18 else values.astype(object)
        values = _divided(wide, 10**drop, how)
    if dtype.scale > scale:
        values = values.astype(object) * 10 ** (dtype.scale - scale)
    return shaped(fitted_integers(values, valid_of(array), dtype, mode), value)


@rule("Round", "BRound", "RoundCeil", "RoundFloor")
def round_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """To a constant number of digits."""
    dtype = args[0].type
    if len(args) < 2 or args[1].constant is None:
        return None
    digits = args[1].constant.as_py()
    how = {"Round": "half_up", "BRound": "half_even", "RoundCeil": "ceil", "RoundFloor": "floor"}[call.name]
    mode = mode_of(call, context)
    if pa.types.is_decimal(dtype):
        out = _rounded_type(dtype, 0 if digits is None else digits)
        if digits is None:
            return constant(None, out)
        scale = min(digits, dtype.scale)
        return calling(out, lambda v: _rounded(v, scale, out, how, mode), args[:1], mode == "ANSI")
    if digits is None:
        return constant(None, dtype)
    if pa.types.is_integer(dtype) and call.name in ("Round", "BRound"):
        return args[0] if digits >= 0 else _round_integer(args[0], digits, how, mode)
    if pa.types.is_floating(dtype) and 0 <= digits <= 18 and call.name in ("Round", "BRound"):
        rounding = ROUND_HALF_UP if how == "half_up" else ROUND_HALF_EVEN
        return calling(dtype, by_numpy(dtype, lambda v: _round_floats(v, digits, rounding)), args[:1])
    return None


def _round_floats(values: Any, digits: int, rounding: str) -> Any:
    """Rounds by way of decimals, so that 2.675 is a tie; the result is never -0.0."""
    wide = values.astype(np.float64)
    touched = np.isfinite(wide) & (np.abs(wide) < 2.0**53)  # beyond are integers
    whole = scaled_integers(np.where(touched, wide, 0.0), digits, rounding)
    if whole.dtype != object and values.dtype == np.float64:
        out = whole / 10.0**digits  # both are exact, so the quotient is the nearest float
    elif values.dtype == np.float64:
        out = np.array([int(v) / 10**digits for v in whole.tolist()])
    else:
        out = np.array([nearest_single(f"{v}e-{digits}") for v in whole.tolist()], np.float64)
    return np.where(touched, out, wide).astype(values.dtype)


def _rounded_type(dtype: pa.DataType, digits: int) -> pa.DataType:
    """Spark's type of a rounded decimal: one more digit before the point, if it can be needed."""
    whole = dtype.precision - dtype.scale + 1
    if digits < 0:
        return pa.decimal128(min(max(whole, -digits + 1), 38), 0)
    scale = min(dtype.scale, digits)
    return pa.decimal128(min(whole + scale, 38), scale)


def _round_integer(arg: Compiled, digits: int, how: str, mode: EvalMode) -> Compiled:
    dtype = arg.type
    limits = np.iinfo(dtype.to_pandas_dtype())
    unit = 10**-digits

    def run(values: Any) -> Any:
        wide = values.astype(object if limits.bits == 64 or unit > 10**18 else np.int64)
        wide = _divided(wide, unit, how) * unit
        bad = ((wide > int(limits.max)) | (wide < int(limits.min))).astype(np.bool_)
        if mode == "ANSI":
            return np.where(bad, 0, wide).astype(limits.dtype), bad
        if wide.dtype == object:
            wide = (wide & ((1 << 64) - 1)).astype(np.uint64).view(np.int64)
        return wide.astype(limits.dtype)

    error = OVERFLOW.format("round") if mode == "ANSI" else None
    return calling(dtype, by_numpy(dtype, run, error=error), [arg], mode == "ANSI")


# ---------------------------------------------------------------------- bits

_BITS: dict[str, Callable[..., Any]] = {
    "BitwiseAnd": pc.bit_wise_and,
    "BitwiseOr": pc.bit_wise_or,
    "BitwiseXor": pc.bit_wise_xor,
}


@rule(*_BITS)
def bitwise(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    return (
        null_intolerant_in_order(dtype, _BITS[call.name], args)
        if dtype == args[1].type and pa.types.is_integer(dtype)
        else None
    )


@rule("BitwiseNot")
def bitwise_not(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return calling(args[0].type, pc.bit_wise_not, args) if pa.types.is_integer(args[0].type) else None


@rule("ShiftLeft", "ShiftRight", "ShiftRightUnsigned")
def shift(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Shifts by the low five or six bits of the second argument, as Java does."""
    dtype = args[0].type
    if dtype not in (pa.int32(), pa.int64()):
        return None
    kind = np.int32 if dtype == pa.int32() else np.int64
    plain = np.uint32 if dtype == pa.int32() else np.uint64

    def run(values: Any, by: Any) -> Any:
        by = by.astype(np.int64) & (dtype.bit_width - 1)
        if call.name == "ShiftRight":
            return values >> by.astype(kind)
        unsigned = values.view(plain)
        by = by.astype(plain)
        return (unsigned << by if call.name == "ShiftLeft" else unsigned >> by).view(kind)

    return null_intolerant_in_order(dtype, by_numpy(dtype, run), args)


@rule("BitwiseCount")
def bit_count(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not (pa.types.is_integer(dtype) or pa.types.is_boolean(dtype)):
        return None

    def run(values: Any) -> Any:
        return np.bitwise_count(values.astype(np.int64).view(np.uint64)).astype(np.int32)

    return calling(pa.int32(), by_numpy(pa.int32(), run, False if pa.types.is_boolean(dtype) else 0), args)


@rule("BitwiseGet")
def bit_get(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    dtype = args[0].type
    if not pa.types.is_integer(dtype):
        return None

    def run(values: Any, at: Any) -> Any:
        bad = (at < 0) | (at >= dtype.bit_width)
        out = (values.astype(np.int64) >> np.where(bad, 0, at)) & 1
        return out.astype(np.int8), np.broadcast_to(bad, out.shape)

    error = "[INVALID_PARAMETER_VALUE.BIT_POSITION_RANGE] a bit position is out of range"
    return null_intolerant_in_order(pa.int8(), by_numpy(pa.int8(), run, error=error), args, True)


# ---------------------------------------------------------------------- numbers in other bases


_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def _spelled(digits: Any, lengths: Any, valid: Any) -> pa.Array:
    """Strings from rows of characters, of which the last ones count."""
    rows, width = digits.shape
    keep = np.arange(width) >= (width - lengths)[:, None]
    data = digits[keep]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    bits = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(), rows, [bits, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _in_base(value: Datum, shift_by: int) -> Datum:
    """Integers as unsigned 64-bit numbers in base 2 or 16, without leading zeros."""
    width = 64 // shift_by
    array = as_array(value, 1)
    numbers = values_of(array).astype(np.int64).view(np.uint64)
    shifts = (np.arange(width - 1, -1, -1) * shift_by).astype(np.uint64)
    digits = (numbers[:, None] >> shifts) & np.uint64((1 << shift_by) - 1)
    nonzero = digits != 0
    lengths = np.where(nonzero.any(axis=1), width - nonzero.argmax(axis=1), 1)
    return shaped(_spelled(_HEX[digits.astype(np.int64)], lengths, valid_of(array)), value)


@rule("Hex")
def hex_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    t = pa.types
    dtype = args[0].type
    if t.is_integer(dtype):
        return calling(pa.string(), lambda v: _in_base(v, 4), args)
    if not (t.is_string(dtype) or t.is_binary(dtype)):
        return None

    def run(value: Datum) -> Datum:
        array = as_array(value, 1)
        array = array if not array.null_count else array.fill_null("" if t.is_string(dtype) else b"")
        _, offsets, data = array.buffers()
        given = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        if data is None or not len(array) or given[-1] == given[0]:
            content = np.zeros(0, np.uint8)
        else:
            content = np.frombuffer(data, np.uint8)[given[0] : given[-1]]
        pairs = np.empty((len(content), 2), np.uint8)
        pairs[:, 0], pairs[:, 1] = _HEX[content >> 4], _HEX[content & 15]
        ends = (given - given[0]) * np.int32(2) if len(given) else np.zeros(1, np.int32)
        valid = valid_of(value)
        bits = None if valid is None else pa.array(valid).buffers()[1]
        out = pa.Array.from_buffers(pa.string(), len(array), [bits, pa.py_buffer(ends), pa.py_buffer(pairs)])
        return shaped(out, value)

    return calling(pa.string(), run, args)


@rule("Bin")
def bin_(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    return calling(pa.string(), lambda v: _in_base(v, 1), args) if pa.types.is_integer(args[0].type) else None


_NIBBLES = {ord(c): int(c, 16) for c in "0123456789abcdefABCDEF"}


def _unhexed(data: bytes) -> bytes | None:
    if not all(b in _NIBBLES for b in data):
        return None
    return bytes.fromhex(("0" if len(data) % 2 else "") + data.decode("ascii"))


@rule("Unhex")
def unhex(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_string(args[0].type) or call.option("failOnError", False):
        return None
    return calling(pa.binary(), lambda v: _each(v, _unhexed, pa.binary()), args)


# ---------------------------------------------------------------------- digests


def _each(value: Datum, function: Callable[[bytes], Any], dtype: pa.DataType) -> Datum:
    """A function of each string of bytes."""
    array = as_array(value, 1)
    given = array.view(pa.binary()) if pa.types.is_string(array.type) else array
    return shaped(pa.array([None if v is None else function(v) for v in given.to_pylist()], dtype), value)


_DIGESTS: dict[str, tuple[Callable[[bytes], Any], pa.DataType]] = {
    "Crc32": (zlib.crc32, pa.int64()),
    "Md5": (lambda v: hashlib.md5(v, usedforsecurity=False).hexdigest(), pa.string()),
    "Sha1": (lambda v: hashlib.sha1(v, usedforsecurity=False).hexdigest(), pa.string()),
}


@rule(*_DIGESTS)
def digest(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_binary(args[0].type):
        return None
    function, dtype = _DIGESTS[call.name]
    return calling(dtype, lambda v: _each(v, function, dtype), args)


@rule("Sha2")
def sha2(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if not pa.types.is_binary(args[0].type) or args[1].constant is None:
        return None
    bits = args[1].constant.as_py()
    if bits not in (0, 224, 256, 384, 512):
        return constant(None, pa.string())
    function = getattr(hashlib, f"sha{bits or 256}")
    return calling(pa.string(), lambda v: _each(v, lambda x: function(x).hexdigest(), pa.string()), args[:1])


# ---------------------------------------------------------------------- Spark's own hashes


class _Murmur3:
    """Spark's Murmur3 (x86, 32 bits), which takes the last bytes of a string one by one."""

    word = np.uint32
    result = pa.int32()

    @staticmethod
    def _rotated(v: Any, by: int) -> Any:
        return (v << np.uint32(by)) | (v >> np.uint32(32 - by))

    def _mixed(self, seed: Any, word: Any) -> Any:
        word = self._rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        return self._rotated(seed ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)

    @staticmethod
    def _finished(seed: Any, length: Any) -> Any:
        seed = seed ^ length
        seed = (seed ^ (seed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        seed = (seed ^ (seed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return seed ^ (seed >> np.uint32(16))

    def ints(self, values: Any, seed: Any) -> Any:
        return self._finished(self._mixed(seed, values.view(np.uint32)), np.uint32(4))

    def longs(self, values: Any, seed: Any) -> Any:
        halves = values.view(np.uint64)
        low = (halves & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        high = (halves >> np.uint64(32)).astype(np.uint32)
        return self._finished(self._mixed(self._mixed(seed, low), high), np.uint32(8))

    def strings(self, data: Any, starts: Any, lengths: Any, seed: Any) -> Any:
        out = seed.copy()
        for rows, at in _steps(lengths // 4):
            out[rows] = self._mixed(out[rows], _words(data, starts[rows] + 4 * at, 4).astype(np.uint32))
        done = lengths // 4 * 4
        for rows, at in _steps(lengths % 4):
            byte = data[starts[rows] + done[rows] + at].view(np.int8).astype(np.int32).view(np.uint32)
            out[rows] = self._mixed(out[rows], byte)
        return self._finished(out, lengths.astype(np.uint32))


class _XxHash64:
    """XXH64."""

    word = np.uint64
    result = pa.int64()
    _1, _2, _3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
    _4, _5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)

    @staticmethod
    def _rotated(v: Any, by: int) -> Any:
        return (v << np.uint64(by)) | (v >> np.uint64(64 - by))

    def _finished(self, v: Any) -> Any:
        v = (v ^ (v >> np.uint64(33))) * self._2
        v = (v ^ (v >> np.uint64(29))) * self._3
        return v ^ (v >> np.uint64(32))

    def _with_word(self, v: Any, word: Any) -> Any:
        return self._rotated(v ^ (self._rotated(word * self._2, 31) * self._1), 27) * self._1 + self._4

    def _with_half(self, v: Any, half: Any) -> Any:
        return self._rotated(v ^ (half * self._1), 23) * self._2 + self._3

    def ints(self, values: Any, seed: Any) -> Any:
        half = values.view(np.uint32).astype(np.uint64)
        return self._finished(self._with_half(seed + self._5 + np.uint64(4), half))

    def longs(self, values: Any, seed: Any) -> Any:
        return self._finished(self._with_word(seed + self._5 + np.uint64(8), values.view(np.uint64)))

    def _striped(self, data: Any, starts: Any, lengths: Any, seed: Any) -> Any:
        """The four lanes that hash the 32-byte stripes of strings of 32 bytes and more."""
        lanes = [seed + self._1 + self._2, seed + self._2, seed.copy(), seed - self._1]
        for rows, at in _steps(lengths // 32):
            for n, lane in enumerate(lanes):
                word = _words(data, starts[rows] + 32 * at + 8 * n, 8)
                lane[rows] = self._rotated(lane[rows] + word * self._2, 31) * self._1
        turned = (self._rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        out = sum(turned, np.zeros(len(seed), np.uint64))
        for lane in lanes:
            out = (out ^ (self._rotated(lane * self._2, 31) * self._1)) * self._1 + self._4
        return out

    def strings(self, data: Any, starts: Any, lengths: Any, seed: Any) -> Any:
        out = seed + self._5
        long = np.flatnonzero(lengths >= 32)
        if len(long):
            out[long] = self._striped(data, starts[long], lengths[long], seed[long])
        out = out + lengths.astype(np.uint64)
        done = lengths // 32 * 32
        for rows, at in _steps((lengths - done) // 8):
            out[rows] = self._with_word(out[rows], _words(data, starts[rows] + done[rows] + 8 * at, 8))
        done = lengths // 8 * 8
        for rows, _ in _steps((lengths - done) // 4):
            out[rows] = self._with_half(out[rows], _words(data, starts[rows] + done[rows], 4))
        done = lengths // 4 * 4
        for rows, at in _steps(lengths - done):
            byte = data[starts[rows] + done[rows] + at].astype(np.uint64)
            out[rows] = self._rotated(out[rows] ^ (byte * self._5), 11) * self._1
        return self._finished(out)


def _steps(counts: Any) -> Iterator[tuple[Any, int]]:
    """For each step, the rows that take it."""
    rows = np.flatnonzero(counts > 0)
    at = 0
    while len(rows):
        yield rows, at
        at += 1
        rows = rows[counts[rows] > at]


def _words(data: Any, starts: Any, width: int) -> Any:
    """Little-endian words of bytes from some places on."""
    out = np.zeros(len(starts), np.uint64)
    for n in range(width):
        out |= data[starts + n].astype(np.uint64) << np.uint64(8 * n)
    return out


_HASHES: dict[str, Any] = {"Murmur3Hash": _Murmur3(), "XxHash64": _XxHash64()}


def _hashable(dtype: pa.DataType) -> bool:
    t = pa.types
    return not (t.is_nested(dtype) or t.is_null(dtype) or t.is_interval(dtype) or t.is_time(dtype))


@rule(*_HASHES)
def spark_hash(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    """Columns one after the other, each with the hash so far as its seed; NULL changes nothing."""
    hasher = _HASHES[call.name]
    if not all(_hashable(a.type) for a in args) or call.option("seed") is None:
        return None
    first = int(call.option("seed"))
    kind = np.int32 if hasher.word is np.uint32 else np.int64

    def run(frame: ColumnFrame) -> Datum:
        out = np.full(frame.rows, first, np.int64).astype(kind).view(hasher.word)
        with np.errstate(over="ignore"):
            for arg in args:
                array = arg.array(frame)
                hashed = _hash_column(hasher, array, out)
                out = np.where(array.is_valid().to_numpy(zero_copy_only=False), hashed, out)
        return pa.array(out.view(kind))

    return Compiled(hasher.result, run, any(a.can_fail for a in args))


def _hash_column(hasher: Any, array: pa.Array, seed: Any) -> Any:
    t = pa.types
    dtype = array.type
    if t.is_decimal(dtype) and dtype.precision <= 18:
        return hasher.longs(unscaled(array), seed)
    if t.is_decimal(dtype):
        values = unscaled(array).tolist()
        spelled = [v.to_bytes((v + (v < 0)).bit_length() // 8 + 1, "big", signed=True) for v in values]
        array = pa.array(spelled, pa.binary())
    elif t.is_boolean(dtype):
        return hasher.ints(values_of(array, False).astype(np.int32), seed)
    elif t.is_floating(dtype):
        values = values_of(array) + 0.0  # -0.0 becomes 0.0
        values = np.where(np.isnan(values), np.nan, values).astype(values.dtype)
        if dtype.bit_width == 32:
            return hasher.ints(values.view(np.int32), seed)
        return hasher.longs(values.view(np.int64), seed)
    elif not (t.is_string(dtype) or t.is_binary(dtype)):
        plain = array.view({1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[dtype.bit_width // 8])
        values = values_of(plain)
        if dtype.bit_width == 64:
            return hasher.longs(np.ascontiguousarray(values), seed)
        return hasher.ints(values.astype(np.int32), seed)
    if not len(array):
        return seed
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return hasher.strings(content, ends[:-1], np.diff(ends), seed)


# ---------------------------------------------------------------------- others


@rule("WidthBucket")
def width_bucket(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    if [a.type for a in args] != [DOUBLE, DOUBLE, DOUBLE, pa.int64()]:
        return None

    def run(value: Any, start: Any, end: Any, count: Any) -> Any:
        value, start, end, count = np.broadcast_arrays(value, start, end, count)
        bad = (count <= 0) | (count == np.iinfo(np.int64).max) | np.isnan(value) | (start == end)
        bad = bad | ~np.isfinite(start) | ~np.isfinite(end)
        rising = start < end
        lower, upper = np.minimum(start, end), np.maximum(start, end)
        inside = count.astype(np.float64) * np.where(rising, value - lower, upper - value) / (upper - lower)
        before = np.where(rising, value < lower, value > upper)
        after = np.where(rising, value >= upper, value <= lower)
        out = np.where(before, 0, np.where(after, count + 1, saturated(inside, np.int64) + 1))
        return out, bad

    return null_intolerant_in_order(pa.int64(), by_numpy(pa.int64(), run), args)


_FACTORIALS = np.cumprod(np.concatenate([[1], np.arange(1, 21)])).astype(np.int64)


@rule("Factorial")
def factorial(call: Call, args: Sequence[Compiled], context: Context) -> Compiled | None:
    def run(values: Any) -> Any:
        bad = (values < 0) | (values > 20)
        return _FACTORIALS[np.where(bad, 0, values)], bad

    return calling(pa.int64(), by_numpy(pa.int64(), run), args) if args[0].type == pa.int32() else None
