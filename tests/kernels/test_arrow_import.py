"""Import through the Arrow C data interface against the Arrow data itself: column mappings made by hand."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema
from dbspark.columnar.chunk import ONE, ZERO, Chunk
from dbspark.columnar.memory import allocate
from dbspark.kernels.memory import arrow_import as kh
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.sort import sort_rows as ka
from tests.columnar import model
from tests.strategies import INT64_MIN, flat_types, table_of, values, weights


class Exported:
    """A record batch whose children are the columns of a schema and, at `weight`, the weights."""

    def __init__(self, schema: Schema, part: pa.RecordBatch, weight: int = -1) -> None:
        children = [c for c in range(part.num_columns) if c != weight]
        required = set(schema.required)
        words = [schema.columns, weight, ZERO.address, ONE.address, schema.template_address, schema.node_count]
        words += [word for c, child in enumerate(children) for word in (child, int(c in required))]
        self.schema, self.part, self.rows = schema, part, part.num_rows
        self.mapping = np.array(words, np.int64)
        self.at = self.mapping.ctypes.data
        self.struct = allocate(kh.ARROW_ARRAY_BYTES)

    def export(self) -> int:
        """Export the record batch; the address of its struct."""
        self.part._export_to_c(self.struct.address)
        address: int = self.struct.address
        return address

    def released(self) -> bool:
        """Whether the struct's `release` has been called."""
        return int(np.frombuffer(self.struct, np.int64, 10)[8]) == 0

    def imported(self) -> Chunk | None:
        buffer = allocate(self.schema.packing.size)
        done = kh.import_columns(self.export(), self.rows, self.at, buffer.address)
        assert self.released()
        return Chunk(self.schema, self.rows, buffer, self.part) if done else None

    def copied(self) -> Chunk | None:
        scratch = allocate(self.schema.packing.size)
        size = kh.measure_copy(self.export(), self.rows, self.at, scratch.address)
        assert self.released()
        if size == kh.NOT_IMPORTABLE:
            return None
        arena = allocate(size)
        kh.copy_columns(scratch.address, self.rows, self.at, arena.address)
        return Chunk(self.schema, self.rows, arena, None)

    def sorted(self, room: int) -> Any:
        """Sorted by whole rows: the size, and the chunk where it has one."""
        schema = self.schema
        nodes = np.arange(nd.LANES, nd.LANES + schema.columns)
        spec = np.zeros(1, np.int64)
        sort_key = ka.describe_sort_key(0, schema.columns, schema.node_count, spec, nodes, nodes)
        table_bytes = schema.node_count * nd.NODE_BYTES
        words = ka.words_before_rows(schema.columns, schema.node_count) + ka.WORDS_PER_ROW * self.rows
        scratch, arena = allocate(table_bytes + 8 * words), allocate(room)
        at = sort_key.ctypes.data, scratch.address
        size = kh.import_sorted(self.export(), self.rows, self.at, at[0], -1, at[1], arena.address, room)
        assert self.released()
        if size <= 0:
            return size, None
        if size > room:
            arena = allocate(size)
            ka.fill(at[0], self.rows, at[1] + table_bytes, arena.address)
        count = int(np.frombuffer(scratch, np.int64, 1, table_bytes)[0])
        return size, Chunk(schema, count, arena, None)


@st.composite
def record_batches(draw: st.DrawFn) -> Any:
    """(what is exported, the rows without weights, the weights): a slice, the weights in some column or none."""
    types = draw(st.lists(flat_types(null=False), min_size=1, max_size=4))
    schema = Schema(pa.schema([pa.field(f"c{i}", t, draw(st.booleans())) for i, t in enumerate(types)]))
    row = st.tuples(*[values(t, f.nullable) for t, f in zip(types, schema.arrow, strict=True)])
    drawn = draw(st.lists(row, min_size=1, max_size=20))
    plain, columns = table_of(schema, drawn), [f"c{i}" for i in range(len(types))]
    found = draw(st.lists(weights(), min_size=len(drawn), max_size=len(drawn)))
    place = draw(st.integers(-1, len(types)))
    table = plain if place < 0 else plain.add_column(place, "w", pa.array(found, pa.int64()))
    begin = draw(st.integers(0, len(drawn) - 1))
    part = table.slice(begin).to_batches()[0]
    expected = [1] * part.num_rows if place < 0 else found[begin:]
    return Exported(schema, part, place), pa.table(part.select(columns)), expected


def contents(chunk: Chunk) -> list[Any]:
    return model.rows(pa.Table.from_batches([chunk.record_batch(chunk.schema.arrow)]))


@given(record_batches())
def test_imported_and_copied_rows_are_those_of_the_record_batch(drawn: Any) -> None:
    exported, table, expected = drawn
    for chunk in (exported.imported(), exported.copied()):
        if chunk is None:  # a column has no buffer of values
            assert any(c.chunk(0).buffers()[1] is None for c in table.columns)
            continue
        assert contents(chunk) == model.rows(table)
        assert chunk.lane(nd.WEIGHT).tolist() == expected
        assert [set(chunk.lane(nd.TIME + c).tolist()) for c in range(nd.TIMES)] == [{0}] * nd.TIMES


@given(record_batches(), st.sampled_from([0, 1 << 16]))
def test_sorted_rows_are_those_of_the_record_batch(drawn: Any, room: int) -> None:
    exported, table, found = drawn
    sums = model.zset(model.rows(table), found)
    size, chunk = exported.sorted(room)
    if chunk is None:
        assert size == kh.NOT_IMPORTABLE or (size, sums) == (0, {})
        return
    types = exported.schema.types
    rows = contents(chunk)
    assert dict(zip(rows, chunk.lane(nd.WEIGHT).tolist(), strict=True)) == sums
    hashes = [model.row_hash(row, types) for row in rows]
    assert hashes == sorted(hashes)
    assert chunk.lane(nd.HASH).tolist() == chunk.lane(nd.KEY).tolist() == hashes


def numbers(found: list[Any], nullable: bool, weights: list[Any]) -> Exported:
    schema = Schema(pa.schema([pa.field("v", pa.int64(), nullable)]))
    columns = [pa.array(found, pa.int64()), pa.array(weights, pa.int64())]
    return Exported(schema, pa.RecordBatch.from_arrays(columns, ["v", "w"]), 1)


@pytest.mark.parametrize(
    ("exported", "importable"),
    [
        (numbers([1, None], True, [1, 1]), True),
        (numbers([1, None], False, [1, 1]), False),
        (numbers([1, 2], True, [1, None]), False),
        (numbers([1, 2], True, [1, INT64_MIN]), False),
        (numbers([1, 2], True, [1, INT64_MIN + 1]), True),
    ],
    ids=["NULL", "NULL in NOT NULL", "no weight", "weight out of range", "least weight"],
)
def test_what_no_schema_allows_is_refused_and_released(exported: Exported, importable: bool) -> None:
    assert (exported.imported() is not None) == importable
    assert (exported.copied() is not None) == importable
    assert (exported.sorted(1 << 12)[0] != kh.NOT_IMPORTABLE) == importable


@pytest.mark.parametrize("begin", range(10))
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 17])
def test_bits_are_copied_from_any_bit_on(begin: int, rows: int) -> None:
    bits = [True, False, None, True, True, None, False] * 5
    schema = Schema.parse("b BOOLEAN")
    part = pa.RecordBatch.from_arrays([pa.array(bits)], ["b"]).slice(begin, rows)
    chunk = Exported(schema, part).copied()
    assert chunk is not None
    assert chunk.array(0).to_pylist() == bits[begin : begin + rows]
