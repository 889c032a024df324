"""Deltas: a Z-set in columns, in any order, with every form of it derived from those that are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.delta import ChunkedDelta, Delta, concat_chunks, gather_delta, merge_or_empty
from tests.columnar.model import check, contents, plus, rows, zset
from tests.strategies import schemas, weighted_tables

FLAT = Schema.parse("k BIGINT, s STRING")


def delta_of(pairs: list[tuple[int, int]]) -> Delta:
    """A delta of (number, weight) pairs."""
    numbers = [n for n, _ in pairs]
    columns = [pa.array(numbers, pa.int64()), pa.array([str(n) for n in numbers], pa.string())]
    return Delta(FLAT, columns, np.array([w for _, w in pairs], np.int64))


def contents_of(delta: Delta) -> dict[Any, int]:
    table = pa.Table.from_arrays(delta.columns, schema=delta.schema.arrow)
    return zset(rows(table), delta.weights)


@given(st.data())
def test_every_form_of_a_delta_holds_its_zset(data: st.DataObject) -> None:
    schema = data.draw(schemas(max_columns=3))
    table, weights = data.draw(weighted_tables(schema))
    table = table.combine_chunks()
    columns = [c.chunk(0) if c.num_chunks else pa.array([], c.type) for c in table.columns]
    delta = Delta(schema, columns, np.array(weights, np.int64))
    expected = zset(rows(table), weights)
    check(delta.sorted_by(SortKey(schema, (0,))), expected)
    assert contents(delta.batch()) == expected
    assert contents_of(delta.consolidated()) == expected
    assert contents_of(Delta.of(delta.batch())) == expected
    if delta.rows:
        assert contents_of(Delta.of_chunk(delta.chunk())) == expected
    assert contents_of(Delta.sum(schema, [delta, delta])) == plus(expected, expected)


def test_an_order_is_computed_once_and_may_be_added() -> None:
    delta = delta_of([(2, 1), (1, 1)])
    assert not delta.is_sorted
    by_key = delta.sorted_by(SortKey(FLAT, (0,)))
    assert delta.is_sorted
    assert delta.sorted_by(SortKey(FLAT, (0,))) is by_key
    other = delta_of([(2, 1), (1, 1)])
    assert other.add_sorted(by_key) is other
    assert other.batch() is by_key
    assert other.is_sorted


def test_consolidating_sums_equal_rows_and_drops_what_cancels() -> None:
    assert contents_of(delta_of([(1, 2), (2, 1), (1, -2), (2, 4)]).consolidated()) == {(2, "2"): 5}
    assert delta_of([(1, 2), (1, -2)]).consolidated() is Delta.empty(FLAT)
    distinct = delta_of([(1, 1), (2, 1)])
    assert distinct.consolidated() is distinct


def test_columns_and_rows_are_selected() -> None:
    delta = delta_of([(1, 1), (2, -1), (3, 5)])
    text = FLAT.select([1])
    assert contents_of(delta.select([1], text)) == {("1",): 1, ("2",): -1, ("3",): 5}
    assert contents_of(delta.at(np.array([2, 0]), [1], text)) == {("3",): 5, ("1",): 1}
    assert delta.column(0).to_pylist() == [1, 2, 3]
    assert dict(delta.items()) == {(1, "1"): 1, (2, "2"): -1, (3, "3"): 5}


def test_chunks_are_concatenated_and_gathered() -> None:
    chunks = [delta_of([(1, 1), (2, 2)]).chunk(), delta_of([(3, 3)]).chunk()]
    whole = concat_chunks(FLAT, chunks)
    assert whole is not None
    assert contents_of(Delta.of_chunk(whole)) == {(1, "1"): 1, (2, "2"): 2, (3, "3"): 3}
    tables = np.array([c.table for c in chunks], np.int64)
    found = gather_delta(FLAT, tables, np.array([1, 1 << 32]), np.array([7, 8]))
    assert contents_of(found) == {(2, "2"): 7, (3, "3"): 8}


def test_the_retained_bytes_are_those_of_the_whole_arena() -> None:
    assert delta_of([(1, 1)]).retained_bytes == 0
    whole = concat_chunks(FLAT, [delta_of([(n, 1) for n in range(1000)]).chunk()])
    assert whole is not None
    assert Delta.of_chunk(whole).retained_bytes >= 1000 * 8


def test_no_batches_merge_to_an_empty_one() -> None:
    sort_key = SortKey(FLAT)
    assert merge_or_empty(sort_key, []).rows == 0
    assert contents(merge_or_empty(sort_key, [Batch.empty(sort_key), delta_of([(1, 2)]).batch()])) == {(1, "1"): 2}


class Produced:
    """The parts of a chunked delta, and how often they were produced."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Iterator[Delta]:
        self.times += 1
        yield delta_of([(1, 1), (2, 1)])
        yield delta_of([(2, 1), (3, -1)])


@pytest.mark.parametrize("read", ["columns", "chunk", "batch", "consolidated"])
def test_a_chunked_delta_is_merged_once_when_it_is_read_as_a_whole(read: str) -> None:
    make = Produced()
    delta = ChunkedDelta(FLAT, 4, make)
    if read == "columns":
        assert delta.columns
    else:
        getattr(delta, read)()
    assert contents_of(delta) == {(1, "1"): 1, (2, "2"): 2, (3, "3"): -1}
    assert (make.times, delta.rows) == (1, 3)


def test_a_chunked_delta_is_mapped_and_summed_part_by_part() -> None:
    make = Produced()
    text = FLAT.select([1])
    mapped = ChunkedDelta(FLAT, 4, make).map_parts(text, lambda part: part.select([1], text))
    both = Delta.sum(text, [mapped, delta_of([(1, 1)]).select([1], text)])
    assert isinstance(both, ChunkedDelta)
    assert make.times == 0, "nothing is produced before it is read"
    assert [part.rows for part in both.parts()] == [2, 2, 1]
    assert contents(both.batch()) == {("1",): 2, ("2",): 2, ("3",): -1}
