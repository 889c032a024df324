"""Zero-copy export in one call: the same as column by column, and valid for as long as a consumer exists."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.arrow_export import export_record_batch
from dbspark.columnar.chunk import Chunk, import_arrays

DDL = "k BIGINT, s STRING, d DOUBLE, b BOOLEAN, i INT, m DECIMAL(20, 2), x BINARY"
SCHEMA = Schema.parse(DDL)
ROW = st.tuples(
    st.one_of(st.none(), st.integers(-2, 2)),
    st.one_of(st.none(), st.text(max_size=12)),
    st.one_of(st.none(), st.sampled_from([0.5, -1.0, float("nan")])),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.integers(-1, 1)),
    st.one_of(st.none(), st.decimals(-9, 9, places=2)),
    st.one_of(st.none(), st.binary(max_size=3)),
)


def chunk_of(rows, weights=None, begin=0):
    arrays = [pa.array([row[c] for row in rows], t).slice(begin) for c, t in enumerate(SCHEMA.types)]
    return import_arrays(SCHEMA, arrays, len(rows) - begin, weights)


@given(rows=st.lists(ROW, min_size=1, max_size=20), begin=st.integers(0, 9), weights=st.sampled_from([0, 1, 2]))
@settings(deadline=None)
def test_an_exported_batch_is_that_made_column_by_column(rows, begin, weights):
    begin = min(begin, len(rows) - 1)
    count = len(rows) - begin
    given_weights = np.arange(1, count + 1) if weights == 2 else None
    chunk = chunk_of(rows, given_weights, begin)
    schema = SCHEMA.weighted("w") if weights else SCHEMA.arrow
    batch = export_record_batch(chunk, schema, bool(weights))
    one_by_one = pa.RecordBatch.from_arrays(chunk._arrays(), schema=SCHEMA.arrow)
    if batch is None:  # a column without buffers
        batch = chunk.record_batch(schema, bool(weights))
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    assert repr(batch.select(range(SCHEMA.columns)).to_pylist()) == repr(one_by_one.to_pylist())
    assert [c.null_count for c in batch.columns[: SCHEMA.columns]] == [c.null_count for c in one_by_one.columns]
    if weights:
        assert batch.column("w").to_pylist() == (list(range(1, count + 1)) if weights == 2 else [1] * count)


class Kept:
    """Owned by a chunk, to see when the chunk is freed."""

    nbytes = 0

    def __init__(self, chunk):
        self.chunk = chunk


def kept_chunk(rows):
    batch = Batch.from_arrow(pa.table({"a": np.arange(rows), "s": [f"text {i}" for i in range(rows)]}))
    kept = Kept(batch.chunks[0])
    chunk = Chunk(batch.schema, rows, batch.chunks[0].buffer, kept)
    return chunk, weakref.ref(kept), batch.to_arrow().to_pylist()


PARTS = {
    "table": lambda batch: pa.Table.from_batches([batch]),
    "column": lambda batch: batch.column(1),
    "slice": lambda batch: batch.slice(100, 3),
    "buffer": lambda batch: batch.column(0).buffers()[1],
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_keeps_the_chunk_alive_and_nothing_else_does(part):
    chunk, alive, expected = kept_chunk(5000)
    batch = chunk.record_batch(chunk.schema.weighted("w"), True)
    assert isinstance(batch, pa.RecordBatch)
    held = PARTS[part](batch)
    del chunk, batch
    gc.collect()
    assert alive() is not None
    other = [np.ones(100_000, np.int64) for _ in range(10)]  # memory that was let go of would be written over
    if part == "table":
        assert held.select(["a", "s"]).to_pylist() == expected
    elif part == "column":
        assert held.to_pylist() == [row["s"] for row in expected]
    elif part == "slice":
        assert held.select(["a", "s"]).to_pylist() == expected[100:103]
    else:
        assert np.frombuffer(held, np.int64, 5000).tolist() == [row["a"] for row in expected]
    del held, other
    gc.collect()
    assert alive() is None


def test_another_thread_may_release_it():
    for _ in range(50):
        chunk, alive, _ = kept_chunk(10)
        held = [chunk.record_batch(chunk.schema.arrow)]
        del chunk
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert alive() is None


def test_nested_columns_and_columns_without_buffers_are_exported_one_by_one():
    for ddl, rows in (
        ("s STRING, k BIGINT, t STRING", [("", 1, "")]),
        ("k BIGINT, n VOID, s STRING", [(1, None, "x")]),
        ("k BIGINT, l ARRAY<BIGINT>, s STRING", [(1, [1, 2], "x")]),
    ):
        schema = Schema.parse(ddl)
        batch = Batch.from_arrow(
            pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in rows], schema.arrow)
        )
        assert [tuple(row.values()) for row in batch.to_arrow().to_pylist()] == rows
        assert batch.to_arrow(weights="w").column("w").to_pylist() == [1]
        assert len(batch.chunks[0].arrays()) == 3
    assert Batch.empty(SortKey(SCHEMA)).to_arrow().num_rows == 0


AT_THE_END = """
import threading
import pyarrow as pa
from dbspark.columnar import Batch

def exported():
    chunk = Batch.from_arrow(pa.table({"a": list(range(100)), "s": ["x" * i for i in range(100)]})).chunks[0]
    return chunk.record_batch(chunk.schema.weighted("w"), True)

kept = [exported() for _ in range(10)]  # until the interpreter ends
threading.Thread(target=lambda kept=exported(): threading.Event().wait(60), daemon=True).start()
print(kept[-1].num_rows)
"""


def test_a_batch_that_is_never_released_does_no_harm_at_exit():
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "100\n", "")
