"""Rows that are handed out, described for Arrow's C data interface: the other way round than
`kernels.memory.arrow_import`.

A record batch is a struct whose children are the columns. Each child points to memory of the chunk; the structs of the
children, the pointers to them and to their buffers are written into room that is kept as long as the chunk is. Whoever
releases the record batch, on whichever thread, gives both back to Python (`release_batch`).
"""

from __future__ import annotations

from functools import cache
from typing import Final

from dbspark.kernels.interpreter import decref, incref
from dbspark.kernels.jit import c_function, gil_kernel, i64, inlined
from dbspark.kernels.memory.intrinsics import load_i64, store_i64
from dbspark.kernels.memory.layout import DATA, KIND, LANES, MASK, NODE_BYTES, OFFSETS, START, VALID, VARIABLE, WEIGHT

ARRAY_WORDS: Final = 10
"""Words of a struct."""
WORDS_PER_COLUMN: Final = ARRAY_WORDS + 1 + 3
"""Words that a column takes: its struct, the pointer to it, and those to its buffers."""
_COLUMNS: Final = 4
_CHILDREN: Final = 6
_RELEASE: Final = 8
_OWNER: Final = 9


@inlined
def _write_struct(
    at: int, rows: int, nulls: int, offset: int, count: int, buffers: int, children: int, columns: int
) -> None:
    """All but who releases it, and what with."""
    store_i64(at, 0, rows)
    store_i64(at, 1, nulls)
    store_i64(at, 2, offset)
    store_i64(at, 3, count)
    store_i64(at, 4, columns)
    store_i64(at, 5, buffers)
    store_i64(at, 6, children)
    store_i64(at, 7, i64(0))


@inlined
def _write_child(line: int, rows: int, release: int, child: int, buffers: int) -> bool:
    kind, valid, start = load_i64(line, KIND), load_i64(line, VALID), load_i64(line, START)
    text = kind == VARIABLE
    _write_struct(
        child, rows, i64(0) if valid == 0 else i64(-1), start, i64(3) if text else i64(2), buffers, i64(0), i64(0)
    )
    store_i64(child, _RELEASE, release)
    store_i64(child, _RELEASE + 1, i64(0))
    store_i64(buffers, 0, valid)
    store_i64(buffers, 1, load_i64(line, OFFSETS) if text else load_i64(line, DATA))
    store_i64(buffers, 2, load_i64(line, DATA))
    return load_i64(line, DATA) != 0


@gil_kernel
def export_columns(
    struct: int,
    table: int,
    rows: int,
    columns: int,
    weighted: int,
    release: int,
    release_batch: int,
    owner: int,
    room: int,
) -> int:
    """Write the flat columns of a chunk, and its weights behind them if they are wanted, into a struct; 0 where it
    cannot be done.

    `owner` is the address of an object that keeps both the chunk and the room, and of which nobody else knows yet: it
    is counted once more for the struct. The room has CHILD words for each column, one more, and as many as there are
    rows where weights are wanted.
    """
    children = columns + weighted
    pointers = room + 8 * ARRAY_WORDS * children
    buffers = pointers + 8 * children
    done = True
    for c in range(children):
        line = table + (LANES + c if c < columns else WEIGHT) * NODE_BYTES
        child = room + 8 * ARRAY_WORDS * c
        store_i64(pointers, c, child)
        done &= _write_child(line, rows, release, child, buffers + 24 * c)
    none = buffers + 24 * children
    store_i64(none, 0, i64(0))
    if weighted == 1 and load_i64(table + WEIGHT * NODE_BYTES, MASK) == 0:  # one that stands for all
        one = load_i64(load_i64(table + WEIGHT * NODE_BYTES, DATA), 0)
        for r in range(rows):
            store_i64(none, 1 + r, one)
        last = room + 8 * ARRAY_WORDS * columns
        store_i64(last, 2, i64(0))
        store_i64(buffers + 24 * columns, 1, none + 8)
    if done:
        _write_struct(struct, rows, i64(0), i64(0), i64(1), none, pointers, children)
        store_i64(struct, _RELEASE, release_batch)
        store_i64(struct, _OWNER, owner)
        incref(owner)
    return 1 if done else 0


def release_column(struct: int) -> None:
    """What a column does to be released: to say so."""
    store_i64(struct, _RELEASE, i64(0))


def release_batch(struct: int) -> None:
    """What a record batch does to be released: its columns are released with it, and Python may free what it kept."""
    children = load_i64(struct, _CHILDREN)
    for c in range(load_i64(struct, _COLUMNS)):
        store_i64(load_i64(children, c), _RELEASE, i64(0))
    store_i64(struct, _RELEASE, i64(0))
    decref(load_i64(struct, _OWNER))


@cache
def release_callbacks() -> tuple[int, int]:
    """The addresses of `release_column` and of `release_batch` for C."""
    return c_function(release_column), c_function(release_batch)
