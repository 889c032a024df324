"""Where a cast has no result: ANSI mode raises, TRY gives NULL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbspark.errors import EvaluationError
from dbspark.sql.expressions.operands import EvalMode

Caster = Callable[[pa.Array], pa.Array]
"""From a column of one type to a column of another."""
INVALID = "[CAST_INVALID_INPUT] a value {!r} of the type {} cannot be cast to {}"
TOO_LARGE = "[CAST_OVERFLOW] a value of the type {} cannot be cast to {} due to an overflow"
BLANK = "".join(map(chr, [*range(0x21), 0x7F]))
"""What Spark strips from strings before it reads them."""


def decoded_text(value: bytes) -> str:
    """The text of bytes that should be UTF-8, for errors."""
    return value.decode("utf-8", "replace")


def refused(value: pa.Array, found: pa.Array, target: pa.DataType, mode: EvalMode) -> pa.Array:
    """`found`, the result of a cast of `value`; in ANSI mode, raises if it is NULL where the value is not."""
    if mode == "ANSI" and found.null_count != value.null_count:
        bad = value.filter(pc.and_(pc.is_valid(value), pc.is_null(found)))
        shown = decoded_text(bad[:1].view(pa.binary())[0].as_py()) if pa.types.is_string(value.type) else str(bad[0])
        raise EvaluationError(INVALID.format(shown, value.type, target))
    return found


def masked(values: Any, valid: Any, bad: Any, target: pa.DataType, mode: EvalMode, message: str) -> pa.Array:
    """Numbers as a column; where they are `bad`, ANSI mode raises, and other modes give NULL."""
    if bad is not None and np.any(bad if valid is None else bad & valid):
        if mode == "ANSI":
            raise EvaluationError(message)
        valid = ~bad if valid is None else valid & ~bad
    out = pa.array(np.ascontiguousarray(values), mask=None if valid is None else ~valid)
    if out.type == target:
        return out
    if pa.types.is_integer(out.type) and not (pa.types.is_integer(target) or pa.types.is_boolean(target)):
        return out.view(target)
    return out.cast(target, safe=False)
