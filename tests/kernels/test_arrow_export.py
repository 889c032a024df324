"""Export through the Arrow C data interface: what pyarrow imports is the chunk, and its owner lives as long."""

import gc
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Schema
from dbspark.columnar.chunk import Chunk, import_arrays
from dbspark.columnar.memory import allocate
from dbspark.kernels.memory import arrow_export as kl
from dbspark.kernels.memory.arrow_import import ARROW_ARRAY_BYTES
from tests.columnar import model
from tests.strategies import flat_types, table_of, values


class Owner:
    """What the struct keeps alive."""

    def __init__(self, chunk: Chunk, memory: Any) -> None:
        self.chunk, self.memory = chunk, memory


def exported(chunk: Chunk, weighted: bool) -> Any:
    """The struct of a chunk, or None, and a weak reference to its owner."""
    columns = chunk.schema.columns
    words = kl.WORDS_PER_COLUMN * (columns + weighted) + 1 + (chunk.rows if weighted else 0)
    memory, struct = allocate(8 * words), allocate(ARROW_ARRAY_BYTES)
    owner = Owner(chunk, memory)
    done = kl.export_columns(
        struct.address, chunk.table, chunk.rows, columns, int(weighted), *kl.release_callbacks(), id(owner),
        memory.address,
    )  # fmt: skip
    return struct if done else None, weakref.ref(owner)


@st.composite
def chunks(draw: st.DrawFn) -> Any:
    """(a chunk of flat columns, its table, its weights): a slice, with weights or all of weight 1."""
    types = draw(st.lists(flat_types(null=False), min_size=1, max_size=4))
    schema = Schema(pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(types)]))
    drawn = draw(st.lists(st.tuples(*map(values, types)), min_size=1, max_size=20))
    begin = draw(st.integers(0, len(drawn) - 1))
    part = table_of(schema, drawn).slice(begin).to_batches()[0]
    weights = np.arange(2, 2 + part.num_rows) if draw(st.booleans()) else None
    expected = [1] * part.num_rows if weights is None else weights.tolist()
    return import_arrays(schema, part.columns, part.num_rows, weights), pa.table(part), expected


@given(chunks(), st.booleans())
def test_pyarrow_imports_the_rows_and_weights_of_the_chunk(drawn: Any, weighted: bool) -> None:
    chunk, table, weights = drawn
    struct, owner = exported(chunk, weighted)
    if struct is None:  # a column has no buffer of values
        assert any(c.chunk(0).buffers()[-1] is None for c in table.columns)
        assert owner() is None
        return
    schema = chunk.schema.weighted("w") if weighted else chunk.schema.arrow
    batch = pa.RecordBatch._import_from_c(struct.address, schema)
    batch.validate(full=True)
    assert model.rows(pa.table(batch.select(table.column_names))) == model.rows(table)
    if weighted:
        assert batch.column("w").to_pylist() == weights
    del batch
    assert owner() is None, "without a garbage collection"


@pytest.mark.parametrize("weighted", [False, True])
def test_a_column_keeps_the_owner_alive_after_the_record_batch(weighted: bool) -> None:
    schema = Schema.parse("a BIGINT, s STRING")
    chunk = import_arrays(schema, [pa.array([1, 2]), pa.array(["x", None])], 2, None)
    struct, owner = exported(chunk, weighted)
    del chunk
    batch = pa.RecordBatch._import_from_c(struct.address, schema.weighted("w") if weighted else schema.arrow)
    column = batch.column(1)
    del batch
    gc.collect()
    assert owner() is not None
    assert column.to_pylist() == ["x", None]
    del column
    gc.collect()
    assert owner() is None
