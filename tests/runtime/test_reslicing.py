"""Spines of several shards as one, and in another order."""

import pyarrow as pa

from dbspark.columnar import Batch, SortKey
from dbspark.columnar.schema import Schema
from dbspark.runtime.placement import split
from dbspark.runtime.reslicing import SHARD_SEPARATOR, TraceLayout, combine_spines, reorder_spine, split_trace_name
from dbspark.trace.spine import Spine

SCHEMA = Schema.parse("a BIGINT, b BIGINT")
BY_ROW, BY_B = SortKey(SCHEMA), SortKey(SCHEMA, (1,))


def batch():
    return Batch.from_arrow(pa.table({"a": range(200), "b": [i % 7 for i in range(200)]}), BY_ROW)


def rows_of(spine):
    return sorted(zip(*(c.to_pylist() for c in spine.consolidated().to_arrow().columns), strict=True))


def test_slices_of_shards_combine_to_the_whole():
    whole = batch()
    parts = [Spine(BY_ROW, (part,)) for _, part in split(whole, 5)]
    assert len(parts) == 5
    combined = combine_spines([Spine(BY_ROW), *parts])
    assert rows_of(combined) == rows_of(Spine(BY_ROW, (whole,)))
    assert combine_spines([Spine(BY_ROW)]).rows == 0


def test_a_spine_in_another_order_has_the_same_rows():
    spine = Spine(BY_ROW, (batch(),))
    assert reorder_spine(spine, BY_ROW) is spine
    reordered = reorder_spine(spine, BY_B)
    assert reordered.sort_key is BY_B
    assert rows_of(reordered) == rows_of(spine)


def test_names_and_layouts():
    assert split_trace_name(f"table a{SHARD_SEPARATOR}b{SHARD_SEPARATOR}12") == (f"table a{SHARD_SEPARATOR}b", 12)
    assert TraceLayout((BY_ROW,), ("everywhere",)).replicated
    assert TraceLayout((BY_ROW,), ("owner",)).owned
    assert not TraceLayout((BY_ROW,), ((0, 1),)).owned
