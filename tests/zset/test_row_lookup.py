"""Point look-ups: a row that is encoded without Arrow is found exactly where the same row in columns is found."""

import datetime
from concurrent.futures import ThreadPoolExecutor
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.row_codec import MAX_TEXT_BYTES, codec_of
from dbspark.columnar.rows import row_normaliser
from dbspark.columnar.sort_key import weakened_hash
from dbspark.trace.spine import Spine
from dbspark.zset import BACKENDS, ZSet, ZSetConfig
from dbspark.zset.memtable import batch_of_rows
from dbspark.zset.payload import row_weight

SCHEMA = Schema.of(
    "a BIGINT, b TINYINT, c SMALLINT, d INT, e FLOAT, f DOUBLE, g BOOLEAN, s STRING, y BINARY, dd DATE, ts TIMESTAMP, "
    "tn TIMESTAMP_NTZ, m DECIMAL(38, 5), n DECIMAL(9, 0), q INTERVAL DAY TO SECOND, t STRING"
)
FORM = row_normaliser(SCHEMA)
UTC = datetime.UTC
_EXACT = Context(prec=60)


def integers(bits):
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


COLUMNS = [
    integers(64), integers(8), integers(16), integers(32), st.floats(width=32), st.floats(), st.booleans(),
    st.text(max_size=20), st.binary(max_size=20), st.dates(),
    st.datetimes(min_value=datetime.datetime(2, 1, 1), timezones=st.just(UTC)), st.datetimes(),
    st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-5, context=_EXACT)),
    st.integers(-(10**9) + 1, 10**9 - 1).map(Decimal),
    st.timedeltas(datetime.timedelta(-100_000), datetime.timedelta(100_000)), st.text(max_size=5),
]  # fmt: skip

ROWS = st.tuples(*(st.one_of(st.none(), column) for column in COLUMNS)).map(FORM)


def spine_of(schema, *parts):
    sort_key = SortKey(schema)
    return Spine(sort_key, tuple(batch_of_rows(sort_key, part) for part in parts))


@given(st.lists(ROWS, min_size=1, max_size=8, unique=True), ROWS)
def test_a_row_of_every_flat_type_is_found_with_nulls_and_without(rows, other):
    spine = spine_of(SCHEMA, {row: i + 1 for i, row in enumerate(rows)}, {rows[0]: 100})
    codec = codec_of(SCHEMA)
    directory = codec.directory(spine.sources)
    for i, row in enumerate(rows):
        assert codec.weight(row, directory) == i + 1 + (100 if i == 0 else 0)
    if other not in rows:
        assert codec.weight(other, directory) == 0


@given(st.lists(ROWS, min_size=1, max_size=8, unique=True), st.sampled_from([0, 1, 0xFF]))
def test_colliding_hashes_are_told_apart(rows, mask):
    with weakened_hash(mask):
        spine = spine_of(SCHEMA, {row: i + 1 for i, row in enumerate(rows)})
        codec = codec_of(SCHEMA)
        directory = codec.directory(spine.sources)
        assert [codec.weight(row, directory) for row in rows] == [i + 1 for i in range(len(rows))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [0, 1, MAX_TEXT_BYTES - 1, MAX_TEXT_BYTES, MAX_TEXT_BYTES + 1, 3 * MAX_TEXT_BYTES])
def test_long_text_is_found_too(backend, length):
    long = ("ä" * (length // 2)).ljust(length)
    z = ZSet.from_arrow(pa.table({"k": ["a", long, None], "v": [1, 2, 3]}), config=ZSetConfig(backend=backend))
    assert (z.weight((long, 2)), z.weight((long, 3)), z.weight(("a", 1)), z.weight((None, 3))) == (1, 0, 1, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_types_that_are_not_packed_are_looked_up_through_arrow(backend):
    schema = "k BIGINT, t ARRAY<INT>, m MAP<STRING, INT>"
    rows = [(1, [1, 2], {"a": 1}), (2, None, {"b": None, "a": 2}), (None, [], {})]
    z = ZSet.from_rows(rows, schema, config=ZSetConfig(backend=backend, smallset_n=0)).freeze()
    assert codec_of(Schema.of(schema)) is None
    assert [z.weight(row) for row in rows] == [1, 1, 1]
    assert z.weight((1, [2, 1], {"a": 1})) == 0


def test_columns_of_no_type_and_no_columns_at_all():
    nothing = Schema(pa.schema([("n", pa.null()), ("k", pa.int64())]))
    spine = spine_of(nothing, {(None, 1): 3})
    assert (row_weight(spine, (None, 1)), row_weight(spine, (None, 2))) == (3, 0)


def test_threads_do_not_share_a_probe():
    table = pa.table({"k": pa.array(range(20_000)), "s": [f"row {k}" for k in range(20_000)]})
    z = ZSet.from_arrow(table, config=ZSetConfig(backend="Adaptive"))

    def wrong(first):
        return [k for k in range(first, 20_000, 4) if z.weight((k, f"row {k}")) != 1 or z.weight((k, f"row {k + 1}"))]

    with ThreadPoolExecutor(4) as pool:
        assert [found for found in pool.map(wrong, range(4)) if found] == []


@pytest.mark.parametrize("mask", [0, 3, 0xFFFFFFFFFFFFFFFF])
def test_rows_of_a_key_that_has_many_are_found_by_their_hash(mask):
    """A key of 70,000 rows spans chunks; its rows are searched, whatever their hashes are."""
    count = 2000 if mask != 0xFFFFFFFFFFFFFFFF else 70_000
    with weakened_hash(mask):
        schema = Schema.of("k BIGINT, v BIGINT")
        by_key = SortKey(schema, (0,))
        keys = np.repeat([1, 2, 3], [5, count, 5])
        values = np.arange(len(keys))
        table = pa.table({"k": keys, "v": values})
        spine = Spine(by_key, (Batch.from_arrow(table, by_key, values + 1),))
        asked = np.unique(np.append(np.arange(0, len(keys), 97), [0, 4, 5, count + 4, count + 5, count + 9]))
        probe = Batch.from_arrow(table.take(pa.array(asked)), by_key)
        found = dict(zip(probe.to_arrow().column("v").to_pylist(), spine.weights_of(probe).tolist(), strict=True))
        assert found == {int(v): int(v) + 1 for v in asked}
        missing = Batch.from_arrow(pa.table({"k": [2, 2, 9], "v": [-1, 10**9, 3]}), by_key)
        assert spine.weights_of(missing).tolist() == [0, 0, 0]
