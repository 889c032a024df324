"""A chunk: some rows in memory, which kernels read through a node table and other code as Arrow arrays.

A chunk never changes. Either its buffers are those of imported Arrow arrays, without a copy, or they lie in one arena
that a gather has filled. Its node table is at the beginning of `buffer`; `keep` references the owners of other memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from dbspark.columnar.arrow_export import export_record_batch
from dbspark.columnar.memory import Int64s, allocate, int64s
from dbspark.columnar.schema import Schema, child_types
from dbspark.errors import SchemaError, WeightOverflowError
from dbspark.kernels.memory import gather as kg
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.layout import OVERFLOW
from dbspark.kernels.merge import merge_timed as kt
from dbspark.kernels.sort.row_order import order_maps

CHUNK_ROWS = 32768
"""Rows in a chunk at the most. Small enough that a step of a merge is well under a millisecond."""

_PARALLEL_ROWS = 1 << 17
"""Gathers of at least this many rows use two threads."""

NO_TIME = np.zeros(nd.TIMES, np.int64)
"""Time coordinates of rows in batches outside of traces: zeros."""

_INT64 = Struct("q")
ONE = allocate(8)
ZERO = allocate(8)
np.frombuffer(ONE, np.int64)[0] = 1
np.frombuffer(ZERO, np.int64)[0] = 0
_WEIGHT = nd.WEIGHT * nd.FIELDS
_MAX_SINGLY_EXPORTED_COLUMNS = 2
"""Up to this number of columns, exporting them to Arrow one by one costs less than one export of all of them."""
_CONSTANT = [(_WEIGHT, ONE), *((node * nd.FIELDS, ZERO) for node in range(nd.TIME, nd.LANES))]
"""The lanes of rows of weight one without a time, each a constant: offset of its line in the node table, its value."""
_NO_TIMES = [nd.FIXED, 8, ZERO.address, 0, 0, 0, 0, 0] * nd.TIMES
"""Lines of the node table for the time lanes of rows without a time."""


class _ForeignMemory:
    """Lets numpy view memory that a chunk keeps alive; marked writable so that kernels have one signature."""

    __slots__ = ("__array_interface__", "keep")

    def __init__(self, address: int, count: int, dtype: Any, keep: Any) -> None:
        self.keep = keep
        self.__array_interface__ = {
            "data": (address, False), "shape": (count,), "typestr": np.dtype(dtype).str, "version": 3,
        }  # fmt: skip


class Chunk:
    """Up to `CHUNK_ROWS` rows (imported chunks may hold more)."""

    __slots__ = ("buffer", "keep", "rows", "schema", "table")

    def __init__(self, schema: Schema, rows: int, buffer: Any, keep: Any) -> None:
        self.schema = schema
        self.rows = rows
        self.buffer = buffer
        self.keep = keep
        self.table: int = buffer.address

    def nodes(self) -> Int64s:
        """The node table, to be written only while the chunk is being built."""
        count = self.schema.node_count * nd.FIELDS
        return np.frombuffer(self.buffer, np.int64, count).reshape(-1, nd.FIELDS)

    def nbytes(self) -> int:
        """Bytes of memory that this chunk keeps alive; a slice keeps the whole chunk alive."""
        return int(self.buffer.size) + _retained_bytes(self.keep)

    def slice(self, offset: int, rows: int) -> Chunk:
        """Rows offset … offset+rows-1; shares all buffers."""
        buffer = allocate(self.schema.node_count * nd.NODE_BYTES)
        chunk = Chunk(self.schema, rows, buffer, self)
        table = chunk.nodes()
        table[:] = self.nodes()
        table[self.schema.row_nodes, nd.START] += offset
        return chunk

    def select(self, columns: Sequence[int], schema: Schema) -> Chunk:
        """Some flat columns of the same rows, without times. The hash lanes are not valid for the new schema."""
        own_lines = self.lines()
        lines = list(own_lines[: nd.TIME * nd.FIELDS])
        lines += _NO_TIMES
        for c in columns:
            at = (nd.LANES + c) * nd.FIELDS
            lines += own_lines[at : at + nd.FIELDS]
        buffer = allocate(schema.packing.size)
        schema.packing.pack_into(buffer, 0, *lines)
        return Chunk(schema, self.rows, buffer, self)

    def array(self, column: int) -> pa.Array:
        """One column as an Arrow array over the same memory."""
        return self._array(self.lines(), nd.LANES + column, self.schema.types[column], self.rows)

    def at_time(self, time: Int64s) -> Chunk:
        """The same rows, all at one time."""
        count = self.schema.node_count
        buffer = allocate(count * nd.NODE_BYTES + 8 * nd.TIMES)
        chunk = Chunk(self.schema, self.rows, buffer, self)
        kt.retime(self.table, count, chunk.table, time)
        return chunk

    def with_times(self, times: Any) -> Chunk:
        """The same rows with other times: times[c] is coordinate c, either one value for all rows or one for each."""
        chunk = self.slice(0, self.rows)
        table = chunk.nodes()
        lanes = []
        for c, coordinate in enumerate(times):
            line = table[nd.TIME + c]
            if not len(coordinate):  # a chunk without rows
                coordinate = (0,)
            constant = len(coordinate) == 1 or bool((coordinate == coordinate[0]).all())
            lanes.append(np.array(coordinate[:1] if constant else coordinate, np.int64))
            line[nd.DATA], line[nd.START], line[nd.MASK] = lanes[-1].ctypes.data, 0, 0 if constant else -1
        chunk.keep = (self, lanes)
        return chunk

    def lane(self, node: int) -> Any:
        """One of the lanes as an array of `rows` values."""
        line = np.frombuffer(self.buffer, np.int64, nd.FIELDS, node * nd.NODE_BYTES).tolist()
        data, start = line[nd.DATA], line[nd.START]
        dtype = np.int64 if node >= nd.WEIGHT else np.uint64
        constant = line[nd.MASK] == 0
        count = 1 if constant else start + self.rows
        at = data - self.table
        if 0 <= at < self.buffer.size:  # the lane lies in the chunk's own arena
            raw = np.frombuffer(self.buffer, dtype, count, at)
        else:
            raw = np.asarray(_ForeignMemory(data, count, dtype, self))
        return np.full(self.rows, raw[0]) if constant else raw[start:]

    def may_have_nulls(self, column: int) -> bool:
        """Whether a column has a validity bitmap; without one, no value is NULL."""
        return bool(_INT64.unpack_from(self.buffer, ((nd.LANES + column) * nd.FIELDS + nd.VALID) * 8)[0])

    def lines(self) -> tuple[int, ...]:
        """The node table as plain numbers, one line after the other."""
        return self.schema.packing.unpack_from(self.buffer)

    def record_batch(self, schema: pa.Schema, weights: bool = False) -> pa.RecordBatch:
        """The columns as Arrow data over the same memory, followed by the weights if `weights`."""
        batch = None if self.schema.needs_array_export or not self.rows else export_record_batch(self, schema, weights)
        if batch is not None:
            return batch
        arrays = self._arrays()
        if weights:
            arrays.append(pa.array(self.lane(nd.WEIGHT)))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def arrays(self) -> list[pa.Array]:
        """The columns as Arrow arrays over the same memory."""
        if self.schema.columns > _MAX_SINGLY_EXPORTED_COLUMNS and not self.schema.needs_array_export and self.rows:
            batch = export_record_batch(self, self.schema.arrow, False)
            if batch is not None:
                columns: list[pa.Array] = batch.columns
                return columns
        return self._arrays()

    def _arrays(self) -> list[pa.Array]:
        lines = self.lines()
        return [self._array(lines, nd.LANES + c, dtype, self.rows) for c, dtype in enumerate(self.schema.types)]

    def _array(self, lines: Sequence[int], node: int, dtype: pa.DataType, rows: int) -> pa.Array:
        at = node * nd.FIELDS
        kind, width, data, valid, offsets, start, child, _ = lines[at : at + nd.FIELDS]
        end = start + rows
        if kind == nd.NULL:
            return pa.nulls(rows)
        bitmap = self._view(valid, (end + 7) >> 3) if valid else None
        if kind == nd.BIT:
            return pa.Array.from_buffers(dtype, rows, [bitmap, self._view(data, (end + 7) >> 3)], offset=start)
        if kind == nd.STRUCT:
            fields = [self._array(lines, child + i, t, rows) for i, t in enumerate(child_types(dtype))]
            if start:  # the arrays of the fields begin at row 0 here, so the bitmap must too
                bitmap = _shifted(bitmap, start, rows)
            return pa.Array.from_buffers(dtype, rows, [bitmap], children=fields)
        if kind in (nd.VARIABLE, nd.LIST):
            ends = self._view(offsets, (end + 1) * 4)
            last = int(np.frombuffer(ends, np.int32, 1, 4 * end)[0])
            if kind == nd.VARIABLE:
                return pa.Array.from_buffers(dtype, rows, [bitmap, ends, self._view(data, last)], offset=start)
            element = self._array(lines, child, next(iter(child_types(dtype))), last)
            return pa.Array.from_buffers(dtype, rows, [bitmap, ends], offset=start, children=[element])
        return pa.Array.from_buffers(dtype, rows, [bitmap, self._view(data, end * width)], offset=start)

    def _view(self, address: int, size: int) -> Any:
        """Memory that the chunk keeps alive, as an Arrow buffer."""
        return pa.foreign_buffer(address, size, self) if size else ZERO.slice(0, 0)


def _retained_bytes(keep: Any) -> int:
    if keep is None:
        return 0
    if isinstance(keep, list | tuple):
        return sum(_retained_bytes(k) for k in keep)
    if isinstance(keep, Chunk):
        return keep.nbytes()
    return int(keep.size if isinstance(keep, pa.Buffer) else keep.nbytes)


def _shifted(bitmap: Any, start: int, rows: int) -> Any:
    if bitmap is None:
        return None
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[start : start + rows]
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def import_arrays(schema: Schema, arrays: Sequence[pa.Array], rows: int, weights: Int64s | None) -> Chunk:
    """Describe Arrow arrays of the schema's canonical types; copies nothing. Hash lanes are left unset."""
    if schema.has_maps:
        arrays = [sort_maps(a) for a in arrays]
    return describe_arrays(schema, arrays, rows, weights)


def describe_arrays(schema: Schema, arrays: Sequence[pa.Array], rows: int, weights: Int64s | None) -> Chunk:
    """Like `import_arrays`, for arrays whose maps are sorted already; reads no values."""
    lines = schema.lines.copy()
    for c, array in enumerate(arrays):
        _describe(schema, lines, nd.LANES + c, array)
    for lane, one in _CONSTANT:
        lines[lane + nd.DATA], lines[lane + nd.MASK] = one.address, 0
    if weights is not None:
        lines[_WEIGHT + nd.DATA], lines[_WEIGHT + nd.MASK] = weights.ctypes.data, -1
    buffer = allocate(schema.packing.size)
    schema.packing.pack_into(buffer, 0, *lines)
    return Chunk(schema, rows, buffer, (arrays, weights))


def _describe(schema: Schema, lines: list[int], index: int, array: pa.Array) -> None:
    node = schema.nodes[index]
    if node.kind == nd.NULL:
        return
    at = index * nd.FIELDS
    buffers = array.buffers()
    lines[at + nd.START] = array.offset
    if buffers[0] is not None and array.null_count:
        lines[at + nd.VALID] = buffers[0].address
    if node.kind == nd.STRUCT:
        for i in range(node.width):
            _describe(schema, lines, node.child + i, array.field(i))
        return
    body = buffers[1]
    if node.kind in (nd.VARIABLE, nd.LIST):
        # An array of no rows may have no offsets buffer; it is described with the single offset 0.
        lines[at + nd.OFFSETS] = body.address if body is not None and body.size else ZERO.address
        if node.kind == nd.LIST:
            _describe(schema, lines, node.child, array.values)
        elif buffers[2] is not None:
            lines[at + nd.DATA] = buffers[2].address
    elif body is not None:
        lines[at + nd.DATA] = body.address


def sort_maps(array: pa.Array) -> pa.Array:
    dtype = array.type
    if len(array) == 0 or not pa.types.is_nested(dtype) or dtype.num_fields == 0:
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(dtype):
        fields = [sort_maps(array.field(i)) for i in range(dtype.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=mask)
    first = array.offsets[0].as_py()
    values = sort_maps(array.values.slice(first, array.offsets[-1].as_py() - first))
    offsets = pa.array(np.asarray(array.offsets) - first, pa.int32())
    if not pa.types.is_map(dtype):
        return pa.ListArray.from_arrays(offsets, values, type=dtype, mask=mask)
    keys, items = values.field(0), values.field(1)
    plain = pa.MapArray.from_arrays(offsets, keys, items, type=dtype, mask=mask)
    one = Schema(pa.schema([pa.field("m", dtype)]))
    chunk = describe_arrays(one, [plain], len(plain), None)
    order = int64s(len(keys))
    if not order_maps(chunk.table, nd.LANES, len(plain), one.node_count, order):
        return plain
    indices = pa.array(order)
    return pa.MapArray.from_arrays(offsets, keys.take(indices), items.take(indices), type=dtype, mask=mask)


def gather_chunks(
    schema: Schema, own_key: int, tables: Int64s, pos: Int64s, weights: Int64s, one_weight: int, time: Int64s = NO_TIME
) -> list[Chunk]:
    """Copy the rows at `pos` into new chunks of at most `CHUNK_ROWS` rows, all of one time."""
    rows = len(pos)
    if rows <= CHUNK_ROWS:
        return _gather(schema, own_key, tables, pos, weights, one_weight, time)

    def gathered(begin: int, end: int) -> list[Chunk]:
        chunks = []
        for at in range(begin, end, CHUNK_ROWS):
            part = slice(at, min(at + CHUNK_ROWS, end))
            chunks += _gather(schema, own_key, tables, pos[part], weights[part], one_weight, time)
        return chunks

    if rows < _PARALLEL_ROWS:
        return gathered(0, rows)
    middle = rows // CHUNK_ROWS // 2 * CHUNK_ROWS
    rest = _helper().submit(gathered, middle, rows)
    return gathered(0, middle) + rest.result()


@cache
def _helper() -> ThreadPoolExecutor:
    """A second thread for large gathers, which are bound by memory latency. Its tasks never wait for one another."""
    return ThreadPoolExecutor(1, thread_name_prefix="dbspark-gather")


def gather_columns(schema: Schema, tables: Int64s, pos: Int64s, columns: Sequence[int]) -> list[pa.Array]:
    """Some columns of the rows at `pos` as Arrow arrays; the others are not read."""
    if len(columns) > 1 and len(pos) and not schema.nested and len(set(columns)) == len(columns):
        nodes = np.add(columns, nd.LANES, dtype=np.int64)
        made = gather_rows(schema.select(columns), nodes, tables, pos, pos)  # weights are not read: any array will do
        if made is not None:
            return made.arrays()
    return [_gather_column(schema, tables, nd.LANES + c, pos) for c in columns]


def gather_pairs(
    schema: Schema, origins: Int64s, tables_a: Int64s, pos_a: Int64s, tables_b: Int64s, pos_b: Int64s, weights: Int64s
) -> Chunk | None:
    """Pairs of rows as a chunk of flat columns without hashes; None where a column is too large for one chunk.

    origins[i] = (0 or 1, node): the side and the column that column i of the schema comes from.
    """
    count = schema.node_count
    layout = np.empty((nd.LANES + schema.columns, 4), np.int64)
    size = kg.measure_pairs(tables_a, tables_b, origins, count, pos_a, pos_b, layout)
    if size < 0:
        return None
    arena = allocate(size)
    kg.gather_pairs(tables_a, tables_b, origins, pos_a, pos_b, weights, layout, arena.address)
    return Chunk(schema, len(pos_a), arena, None)


def gather_rows(schema: Schema, columns: Int64s, tables: Int64s, pos: Int64s, weights: Int64s) -> Chunk | None:
    """Some flat columns, by their nodes, of the rows at `pos`: `gather_pairs` with one side."""
    origins = np.zeros((len(columns), 2), np.int64)
    origins[:, 1] = columns
    return gather_pairs(schema, origins, tables, pos, tables, pos, weights)


def _gather_column(schema: Schema, tables: Int64s, index: int, pos: Int64s) -> pa.Array:
    node, rows = schema.nodes[index], len(pos)
    if node.kind == nd.NULL:
        return pa.nulls(rows)
    if rows == 0:
        return pa.array([], node.type)
    if node.kind in (nd.LIST, nd.STRUCT):
        return _gather_nested(schema, tables, index, pos)
    valid = allocate((rows + 7) >> 3) if kg.has_nulls(tables, index) else None
    if node.kind == nd.VARIABLE:
        size = kg.gather_node_size(tables, index, pos, rows)
        if size > nd.OFFSET_MAX:
            half = rows // 2
            return pa.concat_arrays([_gather_column(schema, tables, index, p) for p in (pos[:half], pos[half:])])
        offsets, data = allocate((rows + 1) * 4), allocate(size)
        buffers = [valid, offsets, data]
    else:
        offsets = None
        data = allocate((rows + 7) >> 3 if node.kind == nd.BIT else rows * node.width)
        buffers = [valid, data]
    kg.gather_node(
        tables, index, pos, rows, data.address, valid.address if valid else 0, offsets.address if offsets else 0
    )
    return pa.Array.from_buffers(node.type, rows, buffers)


def _gather_nested(schema: Schema, tables: Int64s, index: int, pos: Int64s) -> pa.Array:
    """One nested column, gathered into a chunk of that column alone."""
    keep: list[Any] = []
    chunk = Chunk(schema, len(pos), allocate(schema.node_count * nd.NODE_BYTES), keep)
    table = chunk.nodes()
    table[:] = schema.template
    if not _gather_subtree(schema, tables, index, pos, table, keep):
        half = len(pos) // 2
        return pa.concat_arrays([_gather_nested(schema, tables, index, p) for p in (pos[:half], pos[half:])])
    return chunk._array(chunk.lines(), index, schema.nodes[index].type, len(pos))


def gather_timed(
    schema: Schema, own_key: int, tables: Int64s, pos: Int64s, weights: Int64s, one_weight: int, times: Any
) -> list[Chunk]:
    """Copy the rows at `pos` into new chunks, with a time for each: times[c] is coordinate c."""
    chunks = gather_chunks(schema, own_key, tables, pos, weights, one_weight)
    at = 0
    for i, chunk in enumerate(chunks):
        chunks[i] = chunk.with_times(times[:, at : at + chunk.rows])
        at += chunk.rows
    return chunks


def gather_measured(
    schema: Schema,
    tables: Int64s,
    pos: Int64s,
    weights: Int64s,
    one_weight: int,
    time: Int64s,
    layout: Int64s,
    size: int,
) -> Chunk:
    """The rows at `pos` in an arena of the measured size and layout; nested columns are left unset."""
    arena = allocate(size)
    rows = len(pos)
    kg.gather(
        tables, schema.columns, schema.node_count, pos, rows, weights, one_weight, time, layout, arena.address
    )  # fmt: skip
    return Chunk(schema, rows, arena, None)


def _gather(
    schema: Schema, own_key: int, tables: Int64s, pos: Int64s, weights: Int64s, one_weight: int, time: Int64s
) -> list[Chunk]:
    rows = len(pos)
    if rows == 0:
        return []
    columns, count = schema.columns, schema.node_count
    layout = np.empty((nd.LANES + columns, 4), np.int64)
    size = kg.measure(tables, columns, count, pos, rows, own_key, one_weight, layout)
    if size < 0:
        return _gather_halves(schema, own_key, tables, pos, weights, one_weight, time)
    chunk = gather_measured(schema, tables, pos, weights, one_weight, time, layout, size)
    if not schema.nested:
        return [chunk]
    keep: list[Any] = []
    chunk.keep = keep
    table = chunk.nodes()
    table[nd.LANES + columns :] = schema.template[nd.LANES + columns :]
    for c in range(columns):
        if schema.nodes[nd.LANES + c].kind in (nd.LIST, nd.STRUCT) and not _gather_subtree(
            schema, tables, nd.LANES + c, pos, table, keep
        ):
            return _gather_halves(schema, own_key, tables, pos, weights, one_weight, time)
    return [chunk]


def _gather_halves(
    schema: Schema, own_key: int, tables: Int64s, pos: Int64s, weights: Int64s, one_weight: int, time: Int64s
) -> list[Chunk]:
    """Gather into two chunks, because the values of one would exceed 32-bit offsets."""
    half = len(pos) // 2
    if half == 0:
        raise SchemaError("a single row holds more than 2 GiB in one column; split the value")
    return _gather(schema, own_key, tables, pos[:half], weights[:half], one_weight, time) + _gather(
        schema, own_key, tables, pos[half:], weights[half:], one_weight, time
    )


def _gather_subtree(schema: Schema, tables: Int64s, index: int, pos: Int64s, table: Int64s, keep: list[Any]) -> bool:
    """Gather one nested column, or one node below it, into buffers of its own. False: too large for 32-bit offsets."""
    node = schema.nodes[index]
    rows = len(pos)

    def buffer(size: int) -> int:
        keep.append(allocate(max(size, 1)))
        address: int = keep[-1].address
        return address

    if node.kind == nd.NULL:
        return True
    line = table[index]
    line[nd.VALID] = buffer((rows + 7) >> 3)
    if node.kind in (nd.VARIABLE, nd.LIST):
        size = kg.gather_node_size(tables, index, pos, rows)
        if size > nd.OFFSET_MAX:
            return False
        line[nd.OFFSETS] = buffer((rows + 1) * 4)
        if node.kind == nd.VARIABLE:
            line[nd.DATA] = buffer(size)
    elif node.kind == nd.BIT:
        line[nd.DATA] = buffer((rows + 7) >> 3)
    elif node.kind != nd.STRUCT:
        line[nd.DATA] = buffer(rows * node.width)
    kg.gather_node(tables, index, pos, rows, int(line[nd.DATA]), int(line[nd.VALID]), int(line[nd.OFFSETS]))
    if node.kind == nd.LIST:
        elements = int64s(size)
        kg.expand_list(tables, index, pos, rows, int(line[nd.OFFSETS]), elements)
        return _gather_subtree(schema, tables, node.child, elements, table, keep)
    if node.kind == nd.STRUCT:
        return all(_gather_subtree(schema, tables, node.child + i, pos, table, keep) for i in range(node.width))
    return True


def check_plan(info: Any) -> None:
    """Raise if a plan found a weight beyond int64."""
    if info[0] == OVERFLOW:
        raise WeightOverflowError(
            "the weights of a row add up to more than int64 holds; nothing was applied. "
            "Check the weights of the change: they are usually 1 or -1"
        )
