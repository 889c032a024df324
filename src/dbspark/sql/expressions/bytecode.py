"""Expression bytecode: expressions translated to instructions of `kernels.vm.expressions`, where it has them.

Arrow evaluates an expression in one call for each of its parts, some 10 µs however few the rows are; a small delta as a
whole takes no longer. So the usual parts of conditions and keys have bytecode as well: comparisons, logic, sums and
products of integers and decimals, strings compared with constants, bounds of time windows. Where a value is beyond 64
bits or an operation overflows, the bytecode falls back and Arrow evaluates the delta. So it need not know what Spark
raises, wraps or makes NULL, and the same bytecode serves all settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dbspark.kernels.memory import layout as nd
from dbspark.kernels.vm import expressions as kv
from dbspark.operators.function import BytecodeColumn, ExpressionBytecode
from dbspark.sql import plan as p
from dbspark.sql.timewindows import boundary

_LEAST: Final = -(1 << 63) + 1
_MOST: Final = (1 << 63) - 1
_COMPARISONS: Final = {
    "EqualTo": (kv.EQUAL, False), "EqualNullSafe": (kv.NULL_SAFE_EQUAL, False),
    "LessThan": (kv.LESS, False), "LessThanOrEqual": (kv.LESS_OR_EQUAL, False),
    "GreaterThan": (kv.LESS, True), "GreaterThanOrEqual": (kv.LESS_OR_EQUAL, True),
}  # fmt: skip
"""The instruction of a comparison, and whether its operands are swapped."""
_CALCULATIONS: Final = {"Add": kv.ADD, "Subtract": kv.SUBTRACT, "Multiply": kv.MULTIPLY}
_PASSING: Final = ("KnownNullable", "KnownNotNull")

TypeOf = Callable[[p.Expr], pa.DataType | None]


class _NotExpressibleError(Exception):
    """An expression without bytecode."""


def condition_bytecode(
    tests: Sequence[p.Expr], positions: Mapping[int, int], type_of: TypeOf
) -> ExpressionBytecode | None:
    """Bytecode of conditions that all have to hold; None where one has none. `positions`: of columns, by their ids."""
    try:
        writer = _BytecodeWriter(positions, type_of)
        return ExpressionBytecode(tuple(writer.all_of(tests)), (), (), writer.texts)
    except _NotExpressibleError:
        return None


def projection_bytecode(
    exprs: Sequence[p.Expr], tests: Sequence[p.Expr], positions: Mapping[int, int], type_of: TypeOf
) -> ExpressionBytecode | None:
    """Bytecode of expressions on the rows for which conditions hold; None where one has none."""
    try:
        writer = _BytecodeWriter(positions, type_of)
        test = tuple(writer.all_of(tests)) if tests else ()
        columns = tuple(writer.shown(e) for e in exprs)
        return ExpressionBytecode(test, tuple(writer.code), columns, writer.texts)
    except _NotExpressibleError:
        return None


class _BytecodeWriter:
    """Writes bytecode; each sub-expression has a slot for its result."""

    def __init__(self, positions: Mapping[int, int], type_of: TypeOf) -> None:
        self._positions = positions
        self._find_type = type_of
        self.code: list[int] = []
        self._slots = 0
        self._known: dict[p.Expr, int] = {}
        self.texts: list[Any] = []
        """Strings that the bytecode refers to by address, which have to live as long as it does."""

    def all_of(self, tests: Sequence[p.Expr]) -> list[int]:
        """Code of its own for conditions, with the result in slot 0."""
        result = self._slot(tests[0])
        for test in tests[1:]:
            result = self._line(kv.AND, result, self._slot(test))
        code = self.code
        if result:
            code += kv.line(kv.AND, 0, result, result)
        self.code, self._slots, self._known = [], 0, {}
        return code

    def shown(self, expr: p.Expr) -> BytecodeColumn:
        """A column of the result."""
        if isinstance(expr, p.Column):
            return BytecodeColumn(self._positions[expr.id])
        dtype = self._type_of(expr)
        if pa.types.is_floating(dtype) or pa.types.is_null(dtype):
            raise _NotExpressibleError  # the slot of a float holds its place in the order, not its value
        _check(dtype)
        slot = self._slot(expr)
        if pa.types.is_boolean(dtype):
            return BytecodeColumn(slot, nd.BIT, 0)
        return BytecodeColumn(slot, nd.FIXED, dtype.bit_width // 8)

    def _type_of(self, expr: p.Expr) -> pa.DataType:
        dtype = self._find_type(expr)
        if dtype is None:
            raise _NotExpressibleError
        return dtype

    def _line(self, part: int, *operands: int) -> int:
        slot = self._slots
        self._slots += 1
        self.code += kv.line(part, slot, *operands)
        return slot

    def _slot(self, expr: p.Expr) -> int:
        """The slot with the value of an expression."""
        try:
            found = self._known.get(expr)
        except TypeError:  # a constant that cannot be hashed
            raise _NotExpressibleError from None
        if found is None:
            found = self._known[expr] = self._made(expr)
        return found

    def _made(self, expr: p.Expr) -> int:
        if isinstance(expr, p.Column):
            _check(expr.type)
            return self._line(kv.LOAD, 0, self._position(expr))
        if isinstance(expr, p.Constant):
            number = _number(expr)
            return self._line(kv.CONSTANT, 0 if number is None else number, int(number is None))
        if not isinstance(expr, p.Call):
            raise _NotExpressibleError
        if expr.name in _COMPARISONS:
            return self._comparison(expr)
        if expr.name in ("And", "Or"):
            part = kv.AND if expr.name == "And" else kv.OR
            return self._line(part, *(self._slot(a) for a in expr.args))
        if expr.name == "Not":
            return self._line(kv.NOT, self._slot(expr.args[0]))
        if expr.name in ("IsNull", "IsNotNull"):
            missing = self._line(kv.IS_NULL, self._any_slot(expr.args[0]))
            return missing if expr.name == "IsNull" else self._line(kv.NOT, missing)
        if expr.name == "In":
            return self._among(expr.args[0], expr.args[1:])
        if expr.name in _CALCULATIONS and len(expr.args) == 2:
            return self._calculation(expr)
        if expr.name in _PASSING:
            return self._slot(expr.args[0])
        if expr.name == "PreciseTimestampConversion":
            return self._time(expr)
        if expr.name == "Cast":
            return self._cast(expr)
        raise _NotExpressibleError

    def _position(self, column: p.Column) -> int:
        if column.id not in self._positions:
            raise _NotExpressibleError
        return self._positions[column.id]

    def _any_slot(self, expr: p.Expr) -> int:
        """A slot that says at least whether a value is NULL."""
        if isinstance(expr, p.Column) and _is_text(expr.type):
            return self._line(kv.STRING_IN_SET, 0, self._position(expr), 0, 0)
        return self._slot(expr)

    def _comparison(self, call: p.Call) -> int:
        part, turned = _COMPARISONS[call.name]
        a, b = reversed(call.args) if turned else call.args
        types = [self._type_of(x) for x in (a, b)]
        if types[0] != types[1]:
            raise _NotExpressibleError
        if _is_text(types[0]):
            column, constant = (a, b) if isinstance(b, p.Constant) else (b, a)
            if part != kv.EQUAL or not isinstance(constant, p.Constant):
                raise _NotExpressibleError
            return self._among(column, [constant])
        _check(types[0])
        return self._line(part, self._slot(a), self._slot(b))

    def _among(self, expr: p.Expr, constants: Sequence[p.Expr]) -> int:
        dtype = self._type_of(expr)
        given = [c for c in constants if isinstance(c, p.Constant)]
        if len(given) != len(constants) or any(c.type != dtype for c in given):
            raise _NotExpressibleError
        some = [c for c in given if c.value is not None]
        with_null = int(len(some) < len(given))
        if not _is_text(dtype):
            _check(dtype)
            numbers = [n for c in some if (n := _number(c)) is not None]
            return self._line(kv.IN_SET, self._slot(expr), with_null, len(numbers), *numbers)
        if not isinstance(expr, p.Column):
            raise _NotExpressibleError
        operands = []
        for constant in some:
            value = constant.value.as_py() if isinstance(constant.value, pa.Scalar) else constant.value
            text = np.frombuffer((value.encode() if isinstance(value, str) else bytes(value)) + b"\0", np.uint8)
            self.texts.append(text)
            operands += [text.ctypes.data, len(text) - 1]
        return self._line(kv.STRING_IN_SET, 0, self._position(expr), with_null, len(some), *operands)

    def _calculation(self, call: p.Call) -> int:
        types = [self._type_of(a) for a in call.args]
        dtype = self._type_of(call)
        t = pa.types
        if all(t.is_integer(x) for x in (*types, dtype)) and types[0] == types[1] == dtype:
            bits = dtype.bit_width - 1
            bounds = max(-(1 << bits), _LEAST), (1 << bits) - 1
            return self._line(_CALCULATIONS[call.name], *(self._slot(a) for a in call.args), *bounds)
        if not all(t.is_decimal(x) for x in (*types, dtype)):
            raise _NotExpressibleError
        if call.name == "Multiply":
            if dtype.scale != types[0].scale + types[1].scale:
                raise _NotExpressibleError
            operands = [self._slot(a) for a in call.args]
        else:
            operands = [self._rescaled(self._slot(a), x, dtype) for a, x in zip(call.args, types, strict=True)]
        return self._line(_CALCULATIONS[call.name], *operands, *_bounds(dtype))

    def _rescaled(self, slot: int, given: pa.DataType, wanted: pa.DataType) -> int:
        """A decimal with more digits behind the point."""
        if wanted.scale < given.scale:
            raise _NotExpressibleError
        if wanted.scale == given.scale:
            return slot
        factor = self._line(kv.CONSTANT, _fitting(10 ** (wanted.scale - given.scale)), 0)
        return self._line(kv.MULTIPLY, slot, factor, _LEAST, _MOST)

    def _cast(self, call: p.Call) -> int:
        given, wanted = self._type_of(call.args[0]), self._type_of(call)
        t = pa.types
        if t.is_integer(given) and t.is_integer(wanted) and wanted.bit_width >= given.bit_width:
            return self._slot(call.args[0])
        if t.is_decimal(wanted) and (t.is_decimal(given) or t.is_integer(given)):
            scale = given.scale if t.is_decimal(given) else 0
            slot = self._rescaled(self._slot(call.args[0]), pa.decimal128(38, scale), wanted)
            one = self._line(kv.CONSTANT, 0, 0)
            return self._line(kv.ADD, slot, one, *_bounds(wanted))  # falls back where there are too many digits
        raise _NotExpressibleError

    def _time(self, call: p.Call) -> int:
        """Microseconds as a time or the other way, which are the same number; or a boundary of windows."""
        found = boundary(call)
        if found is None:
            return self._slot(call.args[0])
        time, origin, slide, more = found
        if max(abs(origin), abs(slide), abs(more)) >= 1 << 60:
            raise _NotExpressibleError
        return self._line(kv.WINDOW_BOUND, self._slot(time), origin, slide, more)


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_binary(dtype))


def _check(dtype: pa.DataType) -> None:
    t = pa.types
    if not (
        t.is_integer(dtype) or t.is_boolean(dtype) or t.is_date32(dtype) or t.is_timestamp(dtype)
        or t.is_floating(dtype) or t.is_decimal(dtype)
    ):  # fmt: skip
        raise _NotExpressibleError


def _number(constant: p.Constant) -> int | None:
    """The value of a constant as a slot holds it; None for NULL."""
    dtype = constant.type
    _check(dtype)
    scalar = constant.value if isinstance(constant.value, pa.Scalar) else pa.scalar(constant.value, dtype)
    value = scalar.as_py() if scalar.is_valid else None
    if value is None:
        return None
    if pa.types.is_floating(dtype):
        return kv.encode_float(float(value))
    if pa.types.is_decimal(dtype):
        return _fitting(int(value.scaleb(dtype.scale)))
    if pa.types.is_timestamp(dtype) or pa.types.is_date32(dtype):
        return _fitting(int(scalar.value))
    return _fitting(int(value))


def _fitting(number: int) -> int:
    if not _LEAST <= number <= _MOST:
        raise _NotExpressibleError
    return number


def _bounds(dtype: pa.DataType) -> tuple[int, int]:
    """The least and the greatest unscaled value of a type of decimals."""
    most = min(10**dtype.precision - 1, _MOST)
    return -most, most
