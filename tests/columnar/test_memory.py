"""Memory: batches free what they allocated, and keep alive what they read."""

import gc
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema, SortKey, merge
from dbspark.columnar.memory import ThreadScratch, allocated_bytes, int64s, uint64s
from tests.columnar.model import check, contents, plus
from tests.strategies import table_of

SCHEMA = Schema.parse("a BIGINT, s STRING, l ARRAY<STRING>, t STRUCT<x: DOUBLE>, m MAP<STRING, INT>")


def table(low: int, high: int) -> pa.Table:
    return table_of(SCHEMA, [(i, f"s{i}", [f"l{i}"] * 3, {"x": i / 2}, [("k", i), ("j", 0)]) for i in range(low, high)])


def test_scratch_arrays_have_the_requested_size_and_type() -> None:
    for n in (0, 1, 1000, 1 << 15, 1 << 17):
        for make, dtype in ((int64s, np.int64), (uint64s, np.uint64)):
            array = make(n)
            assert array.shape == (n,)
            assert array.dtype == dtype
            array[:] = 7
            assert (array == 7).all()


def test_all_memory_is_freed() -> None:
    def work() -> None:
        parts = [Batch.from_arrow(table(i * 100, i * 100 + 3000), SortKey(SCHEMA)) for i in range(3)]
        merged = merge(parts)
        keyed = merged.sorted_by(SortKey(SCHEMA, (1,)))
        assert keyed.slice(5, 100).to_arrow().num_rows == 100
        merge([keyed, keyed.with_weights(-keyed.weights())])

    work()
    gc.collect()
    before = allocated_bytes()
    for _ in range(3):
        work()
    gc.collect()
    assert allocated_bytes() <= before


def test_memory_of_a_batch_is_counted_until_it_is_freed() -> None:
    gc.collect()
    before = allocated_bytes()
    batch = Batch.from_arrow(pa.table({"a": np.arange(50_000)}))
    gc.collect()
    assert allocated_bytes() - before >= 50_000 * 16
    part = batch.slice(0, 1)
    del batch
    gc.collect()
    assert part.to_arrow().num_rows == 1
    del part
    gc.collect()
    assert allocated_bytes() <= before


def test_parts_keep_alive_what_they_read() -> None:
    whole = Batch.from_arrow(table(0, 500), SortKey(SCHEMA))
    expected = contents(whole)
    parts = [whole.slice(0, 100).slice(10, 20), whole.with_weights(np.full(500, 3)).slice(250), whole.slice(499)]
    wanted = [contents(p) for p in parts]
    del whole
    gc.collect()
    rubbish = [pa.allocate_buffer(n * 512) for n in range(1, 400)]
    for part, rows in zip(parts, wanted, strict=True):
        check(part, rows)
        assert rows.keys() <= expected.keys()
    assert len(rubbish) == 399


@pytest.mark.parametrize("threads", [4])
def test_batches_can_be_built_and_merged_in_many_threads_at_once(threads: int) -> None:
    results: list[Any] = [None] * threads
    barrier = threading.Barrier(threads)

    def work(i: int) -> None:
        barrier.wait()
        schema = Schema.parse("x BIGINT, fresh_in_threads ARRAY<STRING>")
        given = table_of(schema, [(n, [str(n)]) for n in range(i, 300 + i)])
        batch = Batch.from_arrow(given, SortKey(schema, (0,)))
        for _ in range(5):
            batch = merge([batch, batch.slice(0, 50), batch.slice(100)])
        results[i] = (schema, batch.sort_key, batch)

    running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len({id(r[0]) for r in results}) == len({id(r[1]) for r in results}) == 1, "interned once"
    alone = results[2][2]
    again: Any = table_of(results[0][0], [(n, [str(n)]) for n in range(2, 302)])
    again = Batch.from_arrow(again, results[0][1])
    for _ in range(5):
        again = merge([again, again.slice(0, 50), again.slice(100)])
    check(alone, contents(again))
    assert plus(contents(alone)) == contents(again)


ON_FOREIGN_THREADS = """
import ctypes
from dbspark.columnar.memory import ThreadScratch

scratch = ThreadScratch(64)

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def use(_):
    scratch.buffer[0] = 1

libc = ctypes.CDLL(None)
for _ in range(20):
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, use, None) == 0
    assert libc.pthread_join(thread, None) == 0
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="makes threads with libc")
def test_threads_that_are_not_of_python_may_use_scratch_memory() -> None:
    """duckdb reads Arrow streams on such threads, and Python forgets each of them when it leaves Python."""
    done = subprocess.run([sys.executable, "-c", ON_FOREIGN_THREADS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_scratch_memory_is_where_it_says() -> None:
    scratch = ThreadScratch(100)
    assert len(scratch.buffer) == 100
    assert scratch.address == np.frombuffer(scratch.buffer, np.uint8).ctypes.data
    assert scratch.address % 8 == 0
