"""Registers, arenas and statuses of the operator VM (`kernels.vm.interpreter`).

A *register* holds a delta: the address of the node table of a chunk, its rows, and what is known about them.

An *arena* is memory that is allocated from front to back and freed as a whole. There are two, described one after the
other: *scratch* is overwritten by the next tick; *retained* memory holds what leaves the VM and belongs to its readers.
Instructions write nowhere else, so a run that ends with another status than STATUS_OK has changed nothing.
"""

from __future__ import annotations

from typing import Final

from dbspark.kernels.jit import i64, inlined
from dbspark.kernels.memory.intrinsics import load_i64, store_i64
from dbspark.kernels.memory.layout import ALIGN

STATUS_OK: Final = 0
STATUS_ARENA_FULL: Final = 1
"""An arena is too small: the caller runs again with as much memory as has been requested (`ARENA_USED`)."""
STATUS_FALL_BACK: Final = 2
"""The VM cannot run this tick (values or weights beyond int64, an error to raise): the operators run it instead."""

REG_TABLE: Final = 0
"""Address of the node table."""
REG_ROWS: Final = 1
REG_SURVEY: Final = 2
"""Four words for a sorted delta: the survey of its weights (`kernels.merge.consolidate.survey_weights`)."""
REG_SIZE: Final = 6
"""Bytes from the node table on that belong to this delta; other columns lie in the memory of other chunks."""
REG_INDEX: Final = 7
"""Address of the words of its index (`kernels.lookup.index`), or 0."""
REGISTER_WORDS: Final = 8

ARENA_BASE: Final = 0
"""Address of the first byte."""
ARENA_USED: Final = 1
"""Bytes requested so far, which may be more than `ARENA_LIMIT`."""
ARENA_LIMIT: Final = 2
"""Size in bytes."""
ARENA_WORDS: Final = 3


@inlined
def register_at(regs: int, r: int) -> int:
    """The address of register r."""
    return regs + r * (8 * REGISTER_WORDS)


@inlined
def arena_of(memory: int, retained: int) -> int:
    """The scratch arena, or with `retained` = 1 the retained one."""
    return memory + retained * (8 * ARENA_WORDS)


@inlined
def arena_take(arena: int, size: int) -> int:
    """Allocate memory in an arena; returns 0 where there is not enough, and counts the request all the same."""
    used = load_i64(arena, ARENA_USED)
    rounded = (size + ALIGN - 1) // ALIGN * ALIGN
    store_i64(arena, ARENA_USED, used + rounded)
    return load_i64(arena, ARENA_BASE) + used if used + rounded <= load_i64(arena, ARENA_LIMIT) else i64(0)


@inlined
def set_empty(reg: int) -> int:
    """Set a register to a delta without rows."""
    for k in range(REGISTER_WORDS):
        store_i64(reg, k, i64(0))
    return i64(STATUS_OK)


@inlined
def set_rows(reg: int, table: int, rows: int, size: int) -> int:
    """Set a register to the rows of a chunk."""
    set_empty(reg)
    store_i64(reg, REG_TABLE, table)
    store_i64(reg, REG_ROWS, rows)
    store_i64(reg, REG_SIZE, size)
    return i64(STATUS_OK)
