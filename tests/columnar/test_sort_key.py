"""Sort keys with an order inside a key. Keys without one are in `test_schema`, the order of rows in `tests/kernels`."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.sort_key import hash_rows, weakened_hash
from dbspark.errors import SchemaError

SCHEMA = Schema.parse("k BIGINT, v BIGINT")


def test_an_order_is_part_of_the_identity_of_a_sort_key() -> None:
    rising, falling = SortKey(SCHEMA, (0,), [(1, False, False)]), SortKey(SCHEMA, (0,), [(1, True, False)])
    assert rising is SortKey(SCHEMA, [0], ((1, False, False),))
    assert len({id(rising), id(falling), id(SortKey(SCHEMA, (0,)))}) == 3
    assert pickle.loads(pickle.dumps(falling)) is falling
    assert repr(falling) == f"SortKey({SCHEMA!r} by k ordered by v desc)"
    assert (rising.order_address != 0, SortKey(SCHEMA, (0,)).order_address) == (True, 0)


def test_whole_rows_have_no_order_inside_a_key() -> None:
    with pytest.raises(SchemaError, match="name the key columns"):
        SortKey(SCHEMA, None, [(1, False, False)])


@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_one_key_follow_each_other_in_order(descending: bool) -> None:
    sort_key = SortKey(SCHEMA, (), [(1, descending, False)])
    batch = Batch.from_arrow(pa.table({"k": [1, 2, 3, 4], "v": [30, 10, 40, 20]}), sort_key)
    assert batch.to_arrow()["v"].to_pylist() == sorted([10, 20, 30, 40], reverse=descending)
    words = sort_key.words(batch.chunks[0]).tolist()
    assert words == sorted(words)


def test_the_lanes_of_whole_rows_are_one() -> None:
    chunk = Batch.from_arrow(pa.table({"k": [1, 2], "v": [1, 2]}), SortKey(SCHEMA)).chunks[0]
    by_row, by_key = SortKey(SCHEMA), SortKey(SCHEMA, (0,))
    words = by_row.words(chunk)
    assert by_row.keys(chunk, words) is words
    assert by_key.keys(chunk, words).tolist() == hash_rows(chunk, by_key.key_nodes).tolist()


def test_hashes_are_weakened_inside_the_context_only() -> None:
    chunk = Batch.from_arrow(pa.table({"k": range(9), "v": range(9)}), SortKey(SCHEMA)).chunks[0]
    sort_key = SortKey(SCHEMA)
    before = sort_key.words(chunk).tolist()
    with weakened_hash(1):
        assert set(sort_key.words(chunk).tolist()) <= {0, 1}
    assert sort_key.words(chunk).tolist() == before
