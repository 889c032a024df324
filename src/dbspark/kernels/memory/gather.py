"""Gathering: copying the rows at some positions into a new chunk.

A new chunk lies in one *arena*: a single allocation with its node table, its lanes and the buffers of its flat columns,
aligned as Arrow recommends, so that an arena is also the body of an Arrow IPC message. `measure` computes the layout
and the size, the caller allocates, `gather` fills. Nested columns are gathered by the caller level by level, with the
`*_node` kernels; in the arena they have only their line of the node table.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dbspark.kernels.jit import Int64Matrix, Int64s, borrowing, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from dbspark.kernels.memory.layout import (
    ALIGN,
    BIT,
    CHILD,
    DATA,
    FIXED,
    FLOAT64,
    HASH,
    KEY,
    KIND,
    LANES,
    LIST,
    NODE_BYTES,
    NULL,
    OFFSET_MAX,
    OFFSETS,
    ROW_BITS,
    ROW_MASK,
    START,
    STRUCT,
    TIME,
    VALID,
    VARIABLE,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.memory.nodes import aligned, is_valid, lane, write_node

_PREFETCH_VALUES: Final = 8
"""Rows ahead of the current one whose bytes are prefetched; the offsets, which say where they are, come earlier."""
_PREFETCH_OFFSETS: Final = 16
"""Rows ahead of the current one whose offsets are prefetched."""
_MAX_CHUNKS_AS_THEY_ARE: Final = 24
"""With more chunks than this, `referenced_chunks` leaves out those to which no position refers."""


@borrowing
def variable_size(tables: Any, node: int, pos: Any, rows: int) -> int:
    """Bytes (VARIABLE) or elements (LIST) of one column of the rows at some positions."""
    total = i64(0)
    for r in range(rows):
        p = pos[r]
        at = tables[p >> ROW_BITS] + node * NODE_BYTES
        offsets = load_i64(at, OFFSETS)
        row = (p & ROW_MASK) + load_i64(at, START)
        total += i64(load_i32(offsets, row + 1)) - i64(load_i32(offsets, row))
    return total


@borrowing
def has_validity(tables: Any, node: int) -> Any:
    """Whether a node has a validity bitmap in some chunk."""
    found = False
    for c in range(tables.shape[0]):
        found |= load_i64(tables[c] + node * NODE_BYTES, VALID) != 0
    return found


@inlined
def referenced_chunks(tables: Any, pos: Any, rows: int) -> Any:
    """The chunks that the positions refer to, and the positions renumbered to them; the same where there are few
    chunks.

    Gathering visits every chunk once for every column, and the number of chunks grows with the state.
    """
    count = i64(tables.shape[0])
    if count <= _MAX_CHUNKS_AS_THEY_ARE:
        return tables, pos
    number, referenced, out = np.full(count, i64(-1)), np.empty(count, np.int64), np.empty(rows, np.int64)
    n = i64(0)
    for r in range(rows):
        c = pos[r] >> ROW_BITS
        if number[c] < 0:
            number[c] = n
            referenced[n] = tables[c]
            n += 1
        out[r] = number[c] << ROW_BITS | pos[r] & ROW_MASK
    return referenced[:n], out


@inlined
def measure_rows(
    tables: Any, columns: int, nodes: int, pos: Any, rows: int, own_key: int, one_weight: int, layout: Any
) -> int:
    """Lay out an arena: layout[node] = (offset of DATA, of VALID, of OFFSETS, bytes of DATA); -1 where there is no
    buffer.

    `own_key` is 0 where the key is the whole row, so that the KEY lane is the HASH lane. `one_weight` is 1 where every
    weight is 1. Returns the size of the arena, or -1 - column where a column has more bytes than int32 offsets address.
    """
    at = aligned(nodes * NODE_BYTES)
    table = tables[0]
    for node in range(LANES + columns):
        layout[node, 0] = layout[node, 1] = layout[node, 2] = -1
        layout[node, 3] = 0
        if node == KEY and own_key == 0:
            continue
        if node > TIME and node < LANES:  # the coordinates of the time, one value each, lie one behind the other
            layout[node, 0] = layout[TIME, 0] + 8 * (node - TIME)
            continue
        if node < LANES:
            layout[node, 0] = at
            layout[node, 3] = 8 if node == TIME or (node == WEIGHT and one_weight == 1) else rows * 8
            at += aligned(layout[node, 3])
            continue
        kind = load_i64(table + node * NODE_BYTES, KIND)
        if kind in (LIST, STRUCT, NULL):
            continue
        if has_validity(tables, node):
            layout[node, 1] = at
            at += aligned((rows + 7) >> 3)
        if kind == VARIABLE:
            layout[node, 2] = at
            at += aligned((rows + 1) * 4)
            size = variable_size(tables, node, pos, rows)
            if size > OFFSET_MAX:
                return -1 - (node - LANES)
        elif kind == BIT:
            size = i64((rows + 7) >> 3)
        else:
            size = rows * load_i64(table + node * NODE_BYTES, WIDTH)
        layout[node, 0] = at
        layout[node, 3] = size
        at += aligned(size)
    return at


@kernel
def measure(
    tables: Int64s, columns: int, nodes: int, pos: Int64s, rows: int, own_key: int, one_weight: int, layout: Int64Matrix
) -> int:
    """Lay out an arena for the rows at some positions and return its size: `measure_rows` as a kernel for Python."""
    return measure_rows(tables, columns, nodes, pos, rows, own_key, one_weight, layout)


@borrowing
def base_addresses(tables: Any, node: int, width: int, out: Any) -> None:
    """out[chunk] = address of row 0 of a fixed-width node in each chunk."""
    for c in range(tables.shape[0]):
        at = tables[c] + node * NODE_BYTES
        out[c] = load_i64(at, DATA) + load_i64(at, START) * width


@borrowing
def gather_fixed(base: Any, width: int, pos: Any, rows: int, out: int) -> None:
    """Gather values of `width` bytes; base[chunk] is the address of row 0 (`base_addresses`)."""
    if width == 8:
        for r in range(rows):
            p = pos[r]
            store_u64(out, r, load_u64(base[p >> ROW_BITS], p & ROW_MASK))
    elif width == 4:
        for r in range(rows):
            p = pos[r]
            store_u32(out, r, load_u32(base[p >> ROW_BITS], p & ROW_MASK))
    elif width == 16:
        for r in range(rows):
            p = pos[r]
            source = base[p >> ROW_BITS]
            row = (p & ROW_MASK) * 2
            store_u64(out, 2 * r, load_u64(source, row))
            store_u64(out, 2 * r + 1, load_u64(source, row + 1))
    elif width == 1:
        for r in range(rows):
            p = pos[r]
            store_u8(out, r, load_u8(base[p >> ROW_BITS], p & ROW_MASK))
    elif width == 2:
        for r in range(rows):
            p = pos[r]
            store_u16(out, r, load_u16(base[p >> ROW_BITS], p & ROW_MASK))
    else:
        for r in range(rows):
            p = pos[r]
            copy_bytes(out + r * width, base[p >> ROW_BITS] + (p & ROW_MASK) * width, width)


@borrowing
def gather_bits(tables: Any, node: int, field: int, pos: Any, rows: int, out: int) -> None:
    """Gather a bitmap: the values of a BIT column (`field` = DATA) or validity (`field` = VALID; where a chunk has no
    bitmap, all bits are set)."""
    packed = np.uint8(0)
    for r in range(rows):
        p = pos[r]
        at = tables[p >> ROW_BITS] + node * NODE_BYTES
        bitmap = load_i64(at, field)
        if bitmap == 0 or is_valid(bitmap, (p & ROW_MASK) + load_i64(at, START)):
            packed |= np.uint8(1) << np.uint8(r & 7)
        if r & 7 == 7:
            store_u8(out, r >> 3, packed)
            packed = np.uint8(0)
    if rows & 7:
        store_u8(out, rows >> 3, packed)


@inlined
def copy_value(target: int, source: int, size: int) -> None:
    """Copy a value of a few bytes without reading or writing a byte beyond it; for more than 64 bytes, memcpy."""
    if size >= 8:
        if size > 64:
            copy_bytes(target, source, size)
        else:
            i = i64(0)
            while i + 8 <= size:
                store_u64(target + i, 0, load_u64(source + i, 0))
                i += 8
            store_u64(target + size - 8, 0, load_u64(source + size - 8, 0))
    elif size >= 4:
        store_u32(target, 0, load_u32(source, 0))
        store_u32(target + size - 4, 0, load_u32(source + size - 4, 0))
    else:
        for i in range(size):
            store_u8(target, i, load_u8(source, i))


@borrowing
def gather_variable(tables: Any, node: int, pos: Any, rows: int, out_offsets: int, out_data: int, scratch: Any) -> None:
    """Gather a VARIABLE column: values and new offsets. `scratch` has two words for each chunk."""
    count = tables.shape[0]
    for c in range(count):
        at = tables[c] + node * NODE_BYTES
        scratch[c] = load_i64(at, OFFSETS) + load_i64(at, START) * 4
        scratch[count + c] = load_i64(at, DATA)
    end = i64(0)
    store_i32(out_offsets, 0, np.int32(0))
    for r in range(rows):
        if r + _PREFETCH_OFFSETS < rows:
            p = pos[r + _PREFETCH_OFFSETS]
            prefetch(scratch[p >> ROW_BITS] + 4 * (p & ROW_MASK))
            p = pos[r + _PREFETCH_VALUES]
            source = scratch[count + (p >> ROW_BITS)] + i64(load_i32(scratch[p >> ROW_BITS], p & ROW_MASK))
            prefetch(source)
            prefetch(source + 56)
        p = pos[r]
        chunk = p >> ROW_BITS
        row = p & ROW_MASK
        offsets = scratch[chunk]
        low = i64(load_i32(offsets, row))
        size = i64(load_i32(offsets, row + 1)) - low
        copy_value(out_data + end, scratch[count + chunk] + low, size)
        end += size
        store_i32(out_offsets, r + 1, np.int32(end))


@inlined
def _write_lane(at: int, data: int, mask: int) -> None:
    write_node(at, i64(FIXED), i64(8), data, i64(0), i64(0), i64(0), mask)


@inlined
def _write_hash_lane(at: int, data: int, order: int) -> None:
    write_node(at, i64(FIXED), i64(8), data, i64(0), i64(0), order, i64(-1))


@borrowing
def gather_flat(
    tables: Any, node: int, kind: int, width: int, pos: Any, rows: int, data: int, valid: int, offsets: int,
    scratch: Any,
) -> None:  # fmt: skip
    """Gather one flat column; of a list or a struct only its validity."""
    if valid != 0:
        gather_bits(tables, node, VALID, pos, rows, valid)
    if kind == VARIABLE:
        gather_variable(tables, node, pos, rows, offsets, data, scratch)
    elif kind == BIT:
        gather_bits(tables, node, DATA, pos, rows, data)
    elif kind <= FLOAT64:
        base_addresses(tables, node, width, scratch)
        gather_fixed(scratch, width, pos, rows, data)


@kernel
def gather(
    tables: Int64s, columns: int, nodes: int, pos: Int64s, rows: int, weights: Int64s, one_weight: int, time: Int64s,
    layout: Int64Matrix, arena: int,
) -> None:  # fmt: skip
    """Fill an arena laid out by `measure`: node table, lanes, flat columns. All rows get the one time `time`."""
    scratch = np.empty(2 * tables.shape[0], np.int64)
    model = tables[0]
    for node in range(LANES):
        at = arena + node * NODE_BYTES
        out = arena + layout[node, 0]
        if node == WEIGHT:
            _write_lane(at, out, i64(0 if one_weight == 1 else -1))
            count = 1 if one_weight == 1 else rows
            for r in range(count):
                store_i64(out, r, i64(1) if one_weight == 1 else weights[r])
        elif node >= TIME:
            _write_lane(at, out, i64(0))
            store_i64(out, 0, time[node - TIME])
        elif layout[node, 0] < 0:
            _write_lane(at, arena + layout[HASH, 0], i64(-1))
        else:
            _write_hash_lane(at, out, load_i64(model + node * NODE_BYTES, CHILD))
            for c in range(tables.shape[0]):
                scratch[c] = lane(tables[c], node)
            gather_fixed(scratch, i64(8), pos, rows, out)
    for node in range(LANES, LANES + columns):
        source = model + node * NODE_BYTES
        kind = load_i64(source, KIND)
        width = load_i64(source, WIDTH)
        data = arena + layout[node, 0] if layout[node, 0] >= 0 else i64(0)
        valid = arena + layout[node, 1] if layout[node, 1] >= 0 else i64(0)
        offsets = arena + layout[node, 2] if layout[node, 2] >= 0 else i64(0)
        write_node(arena + node * NODE_BYTES, kind, width, data, valid, offsets, load_i64(source, CHILD), i64(-1))
        gather_flat(tables, node, kind, width, pos, rows, data, valid, offsets, scratch)


@kernel
def has_nulls(tables: Int64s, node: int) -> bool:
    """Whether a node has a validity bitmap in some chunk."""
    return has_validity(tables, node)


@kernel
def gather_node_size(tables: Int64s, node: int, pos: Int64s, rows: int) -> int:
    """Bytes (variable width) or elements (list) that a gather of one node will hold."""
    return variable_size(tables, node, pos, rows)


@kernel
def gather_node(tables: Int64s, node: int, pos: Int64s, rows: int, data: int, valid: int, offsets: int) -> None:
    """Gather one node into buffers of its own; of a list or a struct only its validity."""
    at = tables[0] + node * NODE_BYTES
    kind = load_i64(at, KIND)
    scratch = np.empty(2 * tables.shape[0], np.int64)
    gather_flat(tables, node, kind, load_i64(at, WIDTH), pos, rows, data, valid, offsets, scratch)


@kernel
def expand_list(tables: Int64s, node: int, pos: Int64s, rows: int, offsets: int, elements: Int64s) -> None:
    """Write a list's new offsets, and the positions of its elements in the child node."""
    end = i64(0)
    store_i32(offsets, 0, np.int32(0))
    for r in range(rows):
        p = pos[r]
        at = tables[p >> ROW_BITS] + node * NODE_BYTES
        source = load_i64(at, OFFSETS)
        row = (p & ROW_MASK) + load_i64(at, START)
        low = i64(load_i32(source, row))
        high = i64(load_i32(source, row + 1))
        chunk = p >> ROW_BITS << ROW_BITS
        for i in range(low, high):
            elements[end] = chunk | i
            end += 1
        store_i32(offsets, r + 1, np.int32(end))


@kernel
def measure_pairs(
    tables_a: Int64s,
    tables_b: Int64s,
    columns: Int64Matrix,
    nodes: int,
    pos_a: Int64s,
    pos_b: Int64s,
    layout: Int64Matrix,
) -> int:
    """Lay out an arena for pairs of rows, as `measure` does, without HASH and KEY lanes.

    columns[i] = (side, node): the side, 0 or 1, and the node that column i is copied from.
    """
    rows = pos_a.shape[0]
    layout[:, :3] = -1
    layout[:, 3] = 0
    at = aligned(nodes * NODE_BYTES)
    layout[WEIGHT, 0] = at
    at += aligned(rows * 8)
    layout[TIME, 0] = at
    at += ALIGN
    for i in range(columns.shape[0]):
        tables = tables_a if columns[i, 0] == 0 else tables_b
        pos = pos_a if columns[i, 0] == 0 else pos_b
        node = columns[i, 1]
        kind = load_i64(tables[0] + node * NODE_BYTES, KIND)
        if kind == NULL:
            continue
        if has_validity(tables, node):
            layout[LANES + i, 1] = at
            at += aligned((rows + 7) >> 3)
        if kind == VARIABLE:
            layout[LANES + i, 2] = at
            at += aligned((rows + 1) * 4)
            size = variable_size(tables, node, pos, rows)
            if size > OFFSET_MAX:
                return -1 - i
        elif kind == BIT:
            size = i64((rows + 7) >> 3)
        else:
            size = rows * load_i64(tables[0] + node * NODE_BYTES, WIDTH)
        layout[LANES + i, 0] = at
        at += aligned(size)
    return at


@kernel
def gather_pairs(
    tables_a: Int64s,
    tables_b: Int64s,
    columns: Int64Matrix,
    pos_a: Int64s,
    pos_b: Int64s,
    weights: Int64s,
    layout: Int64Matrix,
    arena: int,
) -> None:
    """Fill an arena laid out by `measure_pairs`. HASH and KEY must not be read: their lines point to the weights."""
    rows = pos_a.shape[0]
    out = arena + layout[WEIGHT, 0]
    for r in range(rows):
        store_i64(out, r, weights[r])
    for node in range(WEIGHT + 1):
        _write_lane(arena + node * NODE_BYTES, out, i64(-1))
    out = arena + layout[TIME, 0]
    store_i64(out, 0, i64(0))
    for node in range(TIME, LANES):
        _write_lane(arena + node * NODE_BYTES, out, i64(0))
    scratch = np.empty(2 * max(tables_a.shape[0], tables_b.shape[0]), np.int64)
    for i in range(columns.shape[0]):
        tables = tables_a if columns[i, 0] == 0 else tables_b
        pos = pos_a if columns[i, 0] == 0 else pos_b
        node = columns[i, 1]
        source = tables[0] + node * NODE_BYTES
        kind, width = load_i64(source, KIND), load_i64(source, WIDTH)
        place = layout[LANES + i]
        data = arena + place[0] if place[0] >= 0 else i64(0)
        valid = arena + place[1] if place[1] >= 0 else i64(0)
        offsets = arena + place[2] if place[2] >= 0 else i64(0)
        write_node(arena + (LANES + i) * NODE_BYTES, kind, width, data, valid, offsets, i64(0), i64(-1))
        gather_flat(tables, node, kind, width, pos, rows, data, valid, offsets, scratch)
