"""Gathering rows into new chunks against pyarrow's `take`, for every type, from slices, with and without NULLs."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema
from dbspark.columnar.chunk import CHUNK_ROWS, Chunk, gather_chunks, import_arrays
from dbspark.errors import DbsparkError
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.memory.gather import measure
from tests.columnar import model
from tests.kernels.test_hash import VALUES
from tests.strategies import schemas, tables


def with_lanes(schema: Schema, part: pa.RecordBatch, seed: int) -> Chunk:
    """An imported chunk with any hashes, so that it can be gathered from."""
    chunk = import_arrays(schema, part.columns, part.num_rows, None)
    lanes = [np.random.default_rng((seed, node)).integers(0, 2**64, part.num_rows, dtype=np.uint64) for node in (0, 1)]
    for node, lane in enumerate(lanes):
        chunk.nodes()[node, nd.DATA] = lane.ctypes.data
    chunk.keep = (chunk.keep, lanes)
    return chunk


def check(parts: list[pa.RecordBatch], pos: list[tuple[int, int]], schema: Schema, weights: Any, own_key: int) -> None:
    """Gather (part, row) pairs and compare with what pyarrow takes."""
    sources = [with_lanes(schema, part, i) for i, part in enumerate(parts)]
    positions = np.array([c << nd.ROW_BITS | r for c, r in pos], np.int64)
    one = int(all(w == 1 for w in weights))
    before = [source.nodes().copy() for source in sources]
    addresses = np.array([s.table for s in sources], np.int64)
    out = gather_chunks(schema, own_key, addresses, positions, np.array(weights, np.int64), one)
    assert all(np.array_equal(a, b.nodes()) for a, b in zip(before, sources, strict=True)), "a source has changed"
    del sources, addresses, before  # the copies must stand on their own
    starts = np.cumsum([0, *(p.num_rows for p in parts)])
    whole = pa.Table.from_batches(parts, schema.arrow).combine_chunks()
    expected = whole.take(pa.array([int(starts[c]) + r for c, r in pos], pa.int64()))
    got = pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(c.arrays(), schema=schema.arrow) for c in out], schema.arrow
    )
    got.validate(full=True)
    assert model.rows(got) == model.rows(expected)
    assert [w for c in out for w in c.lane(nd.WEIGHT).tolist()] == list(weights)
    lanes = [
        [np.random.default_rng((i, n)).integers(0, 2**64, p.num_rows, dtype=np.uint64) for n in (0, 1)]
        for i, p in enumerate(parts)
    ]
    assert [int(v) for c in out for v in c.lane(nd.HASH)] == [int(lanes[c][0][r]) for c, r in pos]
    assert [int(v) for c in out for v in c.lane(nd.KEY)] == [int(lanes[c][own_key][r]) for c, r in pos]
    for chunk in out:
        lines = chunk.nodes()[: nd.LANES + schema.columns]
        in_arena = lines[:, [nd.DATA, nd.OFFSETS, nd.VALID]]
        assert (in_arena[: nd.LANES, 0] != 0).all()
        buffers = in_arena[lines[:, nd.MASK] != 0]  # a lane of one value is no buffer of Arrow's
        inside = [a for a in buffers.ravel().tolist() if chunk.table <= a < chunk.table + chunk.buffer.size]
        assert all((a - chunk.table) % nd.ALIGN == 0 for a in inside), "Arrow wants its buffers aligned"
        assert chunk.rows <= CHUNK_ROWS


@given(st.data())
def test_gathered_rows_are_those_that_pyarrow_takes(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    drawn = [t.combine_chunks() for t in data.draw(st.lists(tables(schema, max_rows=12), min_size=1, max_size=3))]
    parts = [p for t in drawn for p in t.to_batches() if p.num_rows]
    if not parts:
        return
    chunk = st.integers(0, len(parts) - 1)
    pos = [(c, data.draw(st.integers(0, parts[c].num_rows - 1))) for c in data.draw(st.lists(chunk, max_size=20))]
    weights = data.draw(st.lists(st.sampled_from([1, 1, 1, -5]), min_size=len(pos), max_size=len(pos)))
    check(parts, pos, schema, weights, data.draw(st.integers(0, 1)))


@pytest.mark.parametrize("name", VALUES)
def test_every_type_is_gathered_from_whole_arrays_and_from_slices(name: str) -> None:
    dtype, values = VALUES[name]
    schema = Schema(pa.schema([pa.field("c", dtype)]))
    whole = pa.array(values * 20, dtype)
    without_null = pa.array([v for v in values if v is not None] * 3, dtype)
    arrays = [whole, whole.slice(3, 30), without_null, whole.slice(9)]
    parts = [pa.RecordBatch.from_arrays([a], schema=schema.arrow) for a in arrays if len(a)]
    for first in range(len(parts)):  # so that NULLs are in the first source, or only in a later one
        turned = parts[first:] + parts[:first]
        pos = [(c, (7 * r) % part.num_rows) for r in range(40) for c, part in enumerate(turned)]
        check(turned, pos, schema, [1] * len(pos), 0)
        check(turned, pos[::-1], schema, list(range(1, len(pos) + 1)), 1)


@pytest.mark.parametrize("length", [*range(20), 63, 64, 65, 100, 1000])
def test_strings_of_every_length_are_copied_to_the_last_byte(length: int) -> None:
    """Short values are copied in overlapping words, which must not touch a neighbour."""
    schema = Schema.parse("s STRING")
    texts = [chr(97 + i) * n for i, n in enumerate((length, 1, length, 0, length + 1))]
    part = pa.RecordBatch.from_arrays([pa.array(texts)], schema=schema.arrow)
    check([part], [(0, r) for r in (4, 0, 3, 1, 2, 0, 4)], schema, [1] * 7, 0)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 63, 64, 65])
def test_bits_fill_whole_and_broken_bytes(rows: int) -> None:
    schema = Schema.parse("b BOOLEAN")
    part = pa.RecordBatch.from_arrays([pa.array([True, False, None] * 30)], schema=schema.arrow).slice(5)
    check([part], [(0, (r * 5) % part.num_rows) for r in range(rows)], schema, [1] * rows, 0)


def test_many_rows_go_into_chunks_of_limited_size() -> None:
    schema = Schema.parse("a BIGINT, l ARRAY<INT>")
    n = 2 * CHUNK_ROWS + 5
    lists = pa.ListArray.from_arrays(pa.array(np.arange(n + 1, dtype=np.int32)), pa.array(np.arange(n, dtype=np.int32)))
    part = pa.RecordBatch.from_arrays([pa.array(np.arange(n)), lists.cast(schema.types[1])], schema=schema.arrow)
    source = with_lanes(schema, part, 0)
    pos = np.arange(n, dtype=np.int64)[::-1].copy()
    weights = np.where(pos % 2 == 0, 1, -1)
    out = gather_chunks(schema, 1, np.array([source.table]), pos, weights, 0)
    assert [c.rows for c in out] == [CHUNK_ROWS, CHUNK_ROWS, 5]
    assert np.concatenate([np.asarray(c.arrays()[0]) for c in out]).tolist() == pos.tolist()
    assert np.concatenate([np.asarray(c.arrays()[1].flatten()) for c in out]).tolist() == pos.tolist()
    assert np.concatenate([c.lane(nd.WEIGHT) for c in out]).tolist() == weights.tolist()


def test_no_rows_give_no_chunk() -> None:
    schema = Schema.parse("a BIGINT")
    source = with_lanes(schema, pa.RecordBatch.from_arrays([pa.array([1])], schema=schema.arrow), 0)
    empty = np.empty(0, np.int64)
    assert gather_chunks(schema, 0, np.array([source.table]), empty, empty, 1) == []


def test_text_beyond_two_gigabytes_is_noticed_before_anything_is_copied() -> None:
    """The sizes come from the offsets alone, so a chunk that claims to be huge is enough to see it."""
    schema = Schema.parse("a BIGINT, s STRING, t STRING")
    arrays = [pa.array([1]), pa.array([""]), pa.array([""])]
    part = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    chunk = with_lanes(schema, part, 0)
    huge = np.array([0, 2**30], np.int32)
    chunk.nodes()[nd.LANES + 2, nd.OFFSETS] = huge.ctypes.data
    layout = np.empty((nd.LANES + 3, 4), np.int64)

    def size(rows: int) -> int:
        return int(measure(np.array([chunk.table]), 3, schema.node_count, np.zeros(rows, np.int64), rows, 0, 1, layout))

    assert size(1) > 2**30
    assert size(2) == -1 - 2


@pytest.mark.parametrize("ddl", ["c ARRAY<STRING>", "c STRUCT<x: STRING>", "c MAP<INT, ARRAY<STRING>>", "c ARRAY<INT>"])
def test_nested_values_beyond_their_offsets_go_into_several_chunks(ddl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema.parse(ddl)
    text = ["abc", None, "defghijk"]
    values: Any = {"c ARRAY<STRING>": text, "c STRUCT<x: STRING>": {"x": "abcdefghijk"}}.get(ddl, [1, None, 3, 4, 5])
    if schema.has_maps:
        values = [(1, text), (2, None)]
    part = pa.RecordBatch.from_arrays([pa.array([values, None, values] * 5, schema.types[0])], schema=schema.arrow)
    source = with_lanes(schema, part, 0)
    pos = np.arange(15, dtype=np.int64)
    monkeypatch.setattr(nd, "OFFSET_MAX", 12)
    out = gather_chunks(schema, 0, np.array([source.table]), pos, np.arange(1, 16), 0)
    assert len(out) > 3
    assert [v for c in out for v in c.arrays()[0].to_pylist()] == part.column(0).to_pylist()
    assert [w for c in out for w in c.lane(nd.WEIGHT).tolist()] == list(range(1, 16))
    monkeypatch.setattr(nd, "OFFSET_MAX", 3)
    with pytest.raises(DbsparkError, match="2 GiB"):
        gather_chunks(schema, 0, np.array([source.table]), pos, np.arange(1, 16), 0)
