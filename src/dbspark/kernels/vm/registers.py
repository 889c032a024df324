"""Registers and arenas of `kernels.vm.interpreter`, and how instructions end.

A *register* is a delta: the address of the node table of a chunk, how many rows it has, and what is known of its
weights. An *arena* is memory that is taken from one end to the other. There are two: what instructions work with is
over with the tick, what leaves the program is kept.
"""

from __future__ import annotations

from typing import Final

from dbspark.kernels.jit import i64, inlined, load_i64, store_i64
from dbspark.kernels.memory.layout import ALIGN

DONE: Final = 0
ROOM: Final = 1
"""There is not enough memory: one of the arenas has to be larger."""
ODD: Final = 2
"""Something that is not for the machine: it has to be done the other way."""

TABLE: Final = 0
"""The words of a register: the address of its node table, its rows, the survey of its weights where it is in order
(`kernels.merge.consolidate.survey_weights`), the bytes from the node table on that are its own, and where its index is,
if it has one."""
ROWS: Final = 1
LARGEST: Final = 2
SIZE: Final = 6
INDEX: Final = 7
REGISTER: Final = 8

BASE: Final = 0
"""The words of an arena: its address, how much of it is used, its size. The one that is kept follows the other."""
USED: Final = 1
LIMIT: Final = 2
ARENA: Final = 3


@inlined
def register(regs: int, r: int) -> int:
    return regs + r * (8 * REGISTER)


@inlined
def arena_of(memory: int, kept: int) -> int:
    """The arena of what is over with the tick, or of what is kept."""
    return memory + kept * (8 * ARENA)


@inlined
def take(arena: int, size: int) -> int:
    """Memory of an arena, 0 where there is not enough; what was asked for is counted."""
    used = load_i64(arena, USED)
    more = (size + ALIGN - 1) // ALIGN * ALIGN
    store_i64(arena, USED, used + more)
    return load_i64(arena, BASE) + used if used + more <= load_i64(arena, LIMIT) else i64(0)


@inlined
def empty(reg: int) -> int:
    """A register without rows."""
    for k in range(REGISTER):
        store_i64(reg, k, i64(0))
    return i64(DONE)


@inlined
def filled(reg: int, table: int, rows: int, size: int) -> int:
    """A register with the rows of a chunk."""
    empty(reg)
    store_i64(reg, TABLE, table)
    store_i64(reg, ROWS, rows)
    store_i64(reg, SIZE, size)
    return i64(DONE)
