"""Export of chunks through the Arrow C data interface: the reverse of `kernels.memory.arrow_import`.

A record batch is an `ArrowArray` struct whose children are the columns. Nothing is copied: the buffers of each child
are those of the chunk. The structs of the children, the pointers to them and the pointers to their buffers
lie in memory that one Python object, the *owner*, keeps alive together with the chunk. The struct has a reference to
the owner; releasing the record batch, on any thread, drops that reference (`release_batch`).
"""

from __future__ import annotations

from typing import Final

from dbspark.kernels.cpython import decref, incref
from dbspark.kernels.jit import CFunction, gil_kernel, i64, inlined
from dbspark.kernels.memory.intrinsics import load_i64, store_i64
from dbspark.kernels.memory.layout import DATA, KIND, LANES, MASK, NODE_BYTES, OFFSETS, START, VALID, VARIABLE, WEIGHT

ARRAY_WORDS: Final = 10
"""Words of an `ArrowArray` struct, of eight bytes each."""
WORDS_PER_COLUMN: Final = ARRAY_WORDS + 1 + 3
"""Words for a column: its struct, the pointer to the struct, and the pointers to at most three buffers."""
# Fields of an `ArrowArray`, counted in words.
_COLUMNS: Final = 4
_CHILDREN: Final = 6
_RELEASE: Final = 8
_OWNER: Final = 9


@inlined
def _write_struct(
    at: int, rows: int, nulls: int, offset: int, n_buffers: int, buffers: int, children: int, columns: int
) -> None:
    """Write an `ArrowArray` without its `release` and `private_data`."""
    store_i64(at, 0, rows)
    store_i64(at, 1, nulls)
    store_i64(at, 2, offset)
    store_i64(at, 3, n_buffers)
    store_i64(at, 4, columns)
    store_i64(at, 5, buffers)
    store_i64(at, 6, children)
    store_i64(at, 7, i64(0))


@inlined
def _write_child(line: int, rows: int, release: int, child: int, buffers: int) -> bool:
    """Write the `ArrowArray` of one flat column; False where the column has no values buffer."""
    kind, valid, start = load_i64(line, KIND), load_i64(line, VALID), load_i64(line, START)
    is_variable = kind == VARIABLE
    nulls, n_buffers = i64(0) if valid == 0 else i64(-1), i64(3) if is_variable else i64(2)
    _write_struct(child, rows, nulls, start, n_buffers, buffers, i64(0), i64(0))
    store_i64(child, _RELEASE, release)
    store_i64(child, _RELEASE + 1, i64(0))
    store_i64(buffers, 0, valid)
    store_i64(buffers, 1, load_i64(line, OFFSETS) if is_variable else load_i64(line, DATA))
    store_i64(buffers, 2, load_i64(line, DATA))
    return load_i64(line, DATA) != 0


@gil_kernel
def export_columns(
    struct: int, table: int, rows: int, columns: int, weighted: int, release: int, release_batch: int, owner: int,
    memory: int,
) -> int:  # fmt: skip
    """Write the flat columns of a chunk, and its weights as the last child where `weighted` is 1, into a struct.

    Returns 0, and writes no struct, where a column has no values buffer. `release` and `release_batch` are the two
    `release_callbacks`. `owner` is the address of a Python object that keeps the chunk and `memory` alive and to
    which no other thread has a reference yet. `memory` has WORDS_PER_COLUMN words for each child, one more, and with
    weights one for each row.
    """
    children = columns + weighted
    child_pointers = memory + 8 * ARRAY_WORDS * children
    buffers = child_pointers + 8 * children
    complete = True
    for c in range(children):
        line = table + (LANES + c if c < columns else WEIGHT) * NODE_BYTES
        child = memory + 8 * ARRAY_WORDS * c
        store_i64(child_pointers, c, child)
        complete &= _write_child(line, rows, release, child, buffers + 24 * c)
    no_validity = buffers + 24 * children
    store_i64(no_validity, 0, i64(0))
    if weighted == 1 and load_i64(table + WEIGHT * NODE_BYTES, MASK) == 0:  # Arrow needs a value for each row
        weight = load_i64(load_i64(table + WEIGHT * NODE_BYTES, DATA), 0)
        for r in range(rows):
            store_i64(no_validity, 1 + r, weight)
        last = memory + 8 * ARRAY_WORDS * columns
        store_i64(last, 2, i64(0))
        store_i64(buffers + 24 * columns, 1, no_validity + 8)
    if complete:
        _write_struct(struct, rows, i64(0), i64(0), i64(1), no_validity, child_pointers, children)
        store_i64(struct, _RELEASE, release_batch)
        store_i64(struct, _OWNER, owner)
        incref(owner)
    return 1 if complete else 0


def release_column(struct: int) -> None:
    """`release` of a column: mark it as released. Its memory belongs to the record batch."""
    store_i64(struct, _RELEASE, i64(0))


def release_batch(struct: int) -> None:
    """`release` of a record batch: mark it and its columns as released, and drop the reference to the owner."""
    children = load_i64(struct, _CHILDREN)
    for c in range(load_i64(struct, _COLUMNS)):
        store_i64(load_i64(children, c), _RELEASE, i64(0))
    store_i64(struct, _RELEASE, i64(0))
    decref(load_i64(struct, _OWNER))


_RELEASE_COLUMN = CFunction(release_column)
_RELEASE_BATCH = CFunction(release_batch)


def release_callbacks() -> tuple[int, int]:
    """The addresses of `release_column` and `release_batch` as C functions."""
    return _RELEASE_COLUMN.address, _RELEASE_BATCH.address
