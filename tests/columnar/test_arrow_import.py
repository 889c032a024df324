"""Import of Arrow tables in one call: the same batch as by the general way, or None."""

import ctypes

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar import arrow_import as module
from dbspark.columnar.arrow_import import import_batch, import_copy
from dbspark.columnar.chunk import CHUNK_ROWS
from dbspark.kernels.memory import layout as nd

DDL = "k BIGINT, s STRING, d DOUBLE, b BOOLEAN, i INT"
SCHEMA = Schema.parse(DDL)
ROW = st.tuples(
    st.one_of(st.none(), st.integers(-2, 2)),
    st.one_of(st.none(), st.text(max_size=3)),
    st.one_of(st.none(), st.sampled_from([0.5, -1.0, 1e300])),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.integers(-1, 1)),
)


def table_of(rows, weights=None, place=0):
    columns = [pa.array([row[c] for row in rows], t) for c, t in enumerate(SCHEMA.types)]
    names = list(SCHEMA.names)
    if weights is not None:
        columns.insert(place, pa.array(weights, pa.int64()))
        names.insert(place, "w")
    return pa.table(columns, names=names)


def content(batch):
    return batch.to_arrow(weights="w").to_pylist()


@pytest.mark.parametrize("key", [None, [0], [1, 4]], ids=["by rows", "by a number", "by two"])
@given(
    rows=st.lists(st.tuples(ROW, st.sampled_from([1, 1, -1, 2, 0, 1 << 40])), min_size=1, max_size=12),
    offset=st.integers(0, 3),
    place=st.integers(0, 5),
    weighted=st.booleans(),
)
@settings(deadline=None)
def test_an_imported_batch_is_that_of_the_general_way(key, rows, offset, place, weighted):
    sort_key = SortKey(SCHEMA, key)
    weights = [w for _, w in rows] if weighted else None
    table = table_of([row for row, _ in rows], weights, place).slice(min(offset, len(rows) - 1))
    some = None if weights is None else np.array(weights[min(offset, len(rows) - 1) :], np.int64)
    found = import_batch(sort_key, table, "w" if weighted else None)
    plain = table.drop_columns(["w"]) if weighted else table
    assert found is not None
    expected = Batch.from_arrow(plain, sort_key, some)
    assert content(found) == content(expected)
    assert (found.total_weight, found.negative, found.largest) == (
        expected.total_weight, expected.negative, expected.largest,
    )  # fmt: skip


def test_rows_may_be_longer_than_those_before_them():
    """The size of the arena is estimated from the rows of the last import."""
    sort_key = SortKey(SCHEMA)
    for length in (1, 5000, 3, 100_000, 1):
        rows = [(i, "x" * length, 0.5, True, 1) for i in range(9)]
        assert content(import_batch(sort_key, table_of(rows))) == content(Batch.from_arrow(table_of(rows), sort_key))


@pytest.mark.parametrize("rows", [0, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_many_rows_or_none(rows):
    sort_key = SortKey(SCHEMA, [0])
    table = table_of([(i % 1000, "v", None, None, i) for i in range(rows)])
    found = import_batch(sort_key, table)
    expected = Batch.from_arrow(table, sort_key)
    assert (Batch.empty(sort_key) if found is None else found).rows == expected.rows
    if found is not None and rows:
        assert found.to_arrow().equals(expected.to_arrow())


def test_tables_that_are_not_importable_give_none():
    sort_key = SortKey(Schema.parse("k BIGINT NOT NULL, s STRING"))
    good = pa.table({"k": pa.array([1], pa.int64()), "s": ["a"]})
    assert import_batch(sort_key, good) is not None
    for other in (
        pa.table({"s": ["a"], "k": pa.array([1], pa.int64())}),  # another order
        pa.table({"k": pa.array([1], pa.int32()), "s": ["a"]}),
        pa.table({"k": pa.array([1], pa.int64())}),
        pa.table({"k": pa.array([None], pa.int64()), "s": ["a"]}),  # NULL where none may be
        pa.concat_tables([good, good]),  # two pieces
    ):
        assert import_batch(sort_key, other) is None
    least = good.append_column("w", pa.array([-(1 << 63)], pa.int64()))
    assert import_batch(sort_key, least, "w") is None
    assert import_batch(sort_key, good.append_column("w", pa.array([1], pa.int32())), "w") is None
    assert import_batch(sort_key, good, "w") is None
    nested = SortKey(Schema.parse("a ARRAY<INT>"))
    assert import_batch(nested, pa.table({"a": pa.array([[1]], pa.list_(pa.int32()))})) is None


def test_a_bounded_number_of_mappings_is_cached():
    schema = Schema.parse("only_here BIGINT")
    for i in range(20):
        table = pa.table({"only_here": pa.array([1], pa.int64()), f"w{i}": pa.array([1], pa.int64())})
        assert import_batch(SortKey(schema), table, f"w{i}").rows == 1
    assert len(module._mappings[schema]) <= module.MAX_MAPPINGS_PER_SCHEMA


def test_rows_that_cancel_leave_nothing():
    rows = [(1, "a", 0.5, True, 1)] * 2
    assert import_batch(SortKey(SCHEMA), table_of(rows, [1, -1]), "w").rows == 0


@given(rows=st.lists(ROW, min_size=1, max_size=40), offset=st.integers(0, 20), less=st.integers(0, 20))
@settings(deadline=None)
def test_a_copy_keeps_its_rows_when_the_original_is_overwritten(rows, offset, less):
    offset = min(offset, len(rows) - 1)
    length = max(1, len(rows) - offset - less)
    table = table_of(rows).slice(offset, length)
    expected = table.to_pylist()
    chunk = import_copy(SCHEMA, table)
    assert chunk is not None
    overwrite(table)
    assert chunk.record_batch(SCHEMA.arrow).to_pylist() == expected
    assert chunk.lane(nd.WEIGHT).tolist() == [1] * length
    assert Batch.from_chunk(SortKey(SCHEMA), chunk).rows == len({tuple(row.values()) for row in expected})


def overwrite(table):
    """Fill the memory of a table with ones."""
    for column in table.columns:
        for buffer in column.chunk(0).buffers():
            if buffer is not None and buffer.size:
                ctypes.memset(buffer.address, 0x11, buffer.size)


def test_tables_that_are_not_importable_are_not_copied():
    table = table_of([(1, "a", 0.5, True, 1), (2, None, None, False, None)])
    assert import_copy(SCHEMA, table.slice(0, 0)) is None
    assert import_copy(SCHEMA, table.select(["s", "k", "d", "b", "i"])) is None
    assert import_copy(SCHEMA, pa.concat_tables([table, table])) is None
    assert import_copy(Schema.parse("k BIGINT, s STRING NOT NULL"), table.select(["k", "s"])) is None
