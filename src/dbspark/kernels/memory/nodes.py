"""Reading and writing node tables, as `kernels.memory.layout` defines them: lanes, validity bitmaps, whole lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import i64, inlined
from dbspark.kernels.memory.intrinsics import load_i64, load_u8, store_i64
from dbspark.kernels.memory.layout import (
    ALIGN,
    CHILD,
    DATA,
    KIND,
    MASK,
    NODE_BYTES,
    OFFSETS,
    START,
    VALID,
    WIDTH,
)


@inlined
def lane(table: int, node: int) -> int:
    """The address of the first value of a lane. Row r has the value at index `r & lane_mask(table, node)`."""
    at = table + node * NODE_BYTES
    return load_i64(at, DATA) + (load_i64(at, START) & load_i64(at, MASK)) * 8


@inlined
def lane_mask(table: int, node: int) -> int:
    """-1, or 0 for a lane whose one value stands for every row."""
    return load_i64(table + node * NODE_BYTES, MASK)


@inlined
def is_valid(bitmap: int, row: int) -> Any:
    """Whether a bit of a bitmap is set; `row` counts from the bitmap's first bit, so START is included."""
    return (load_u8(bitmap, row >> 3) >> np.uint8(row & 7)) & np.uint8(1) != np.uint8(0)


@inlined
def write_node(at: int, kind: int, width: int, data: int, valid: int, offsets: int, child: int, mask: int) -> None:
    """Write one line of a node table, with START 0."""
    store_i64(at, KIND, kind)
    store_i64(at, WIDTH, width)
    store_i64(at, DATA, data)
    store_i64(at, VALID, valid)
    store_i64(at, OFFSETS, offsets)
    store_i64(at, START, i64(0))
    store_i64(at, CHILD, child)
    store_i64(at, MASK, mask)


@inlined
def aligned(size: int) -> int:
    """`size` rounded up to a multiple of ALIGN."""
    return (size + ALIGN - 1) // ALIGN * ALIGN
