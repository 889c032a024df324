"""The index of a batch, as Python holds it. How its words are written and read is in `tests/kernels/test_index.py`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dbspark.columnar import Batch
from dbspark.columnar.batch_index import MIN_INDEXED_BATCH_ROWS, NO_INDEX, NO_INDEX_REF, BatchIndex
from tests.columnar.model import in_chunks


def batch_of(rows: int) -> Batch:
    return Batch.from_arrow(pa.table({"a": range(rows)}))


def test_small_batches_have_no_index() -> None:
    assert batch_of(MIN_INDEXED_BATCH_ROWS - 1).index is NO_INDEX
    assert batch_of(MIN_INDEXED_BATCH_ROWS).index.ref != NO_INDEX_REF
    assert NO_INDEX.ref == NO_INDEX_REF


def test_a_word_serves_two_to_four_rows() -> None:
    for rows in (8, 9, 1000, 1024, 1025):
        index = BatchIndex.empty(rows)
        assert 2 * len(index.words) <= rows <= 4 * len(index.words)
        assert index.ref[0] == index.words.ctypes.data
        assert 1 << 64 - index.ref[1] == len(index.words), "the first bits of a key hash number the words"
        assert not index.words.any()


def test_an_index_at_an_address_keeps_its_owner() -> None:
    words = np.zeros(4, np.uint64)
    index = BatchIndex.at(words.ctypes.data, 16, words)
    assert index.words is words
    assert index.ref == (words.ctypes.data, BatchIndex.empty(16).ref[1], 0, 0)


def test_a_batch_without_its_first_rows_shares_the_index() -> None:
    whole = in_chunks(batch_of(100), [30, 30, 30])
    address, shift, *_ = whole.index.ref
    first = Batch(whole.sort_key, whole.chunks[1:]).with_index_of(whole, 1, 0)
    assert first.index.ref == (address, shift, 1, 0)
    second = first.slice(5).with_index_of(first, 0, 5)
    assert second.index.ref == (address, shift, 1, 5)
    third = second.slice(3).with_index_of(second, 0, 3)
    assert third.index.ref == (address, shift, 1, 8)
    fourth = Batch(third.sort_key, third.chunks[1:]).with_index_of(third, 1, 0)
    assert fourth.index.ref == (address, shift, 2, 0)
    assert fourth.index.words is whole.index.words


def test_an_index_is_shared_only_where_there_is_one() -> None:
    whole = batch_of(100)
    assert "index" not in whole.slice(10).with_index_of(whole, 0, 10).__dict__
    assert whole.with_index(None).index is NO_INDEX
    assert whole.slice(10).with_index_of(whole, 0, 10).index.ref != NO_INDEX_REF, "its own"
