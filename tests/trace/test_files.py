"""Batch files: what is written opens as the same batch without being read, and what is damaged is refused by name."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey, merge
from dbspark.columnar import batch_file as files
from dbspark.columnar.batch_file import open_batch, write_batch
from dbspark.errors import CorruptFileError, TimeError
from dbspark.kernels.memory import layout as nd
from dbspark.trace import Antichain, Description, Trace, TraceAgent
from tests.columnar.model import in_chunks, rows
from tests.strategies import INT64_MAX, schemas, weighted_tables

SCHEMA = Schema.parse("k BIGINT, name STRING, tags ARRAY<STRING>, price DECIMAL(12, 2)")
BY_KEY = SortKey(SCHEMA, [0])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "batch.arrow"


def numbers(count=200, sort_key=BY_KEY, weights=None):
    """A batch of every kind of buffer."""
    table = pa.table(
        [
            pa.array(range(count), pa.int64()),
            pa.array([None if i % 7 == 0 else f"name {i}" for i in range(count)], pa.string()),
            pa.array([["a"] * (i % 3) if i % 5 else None for i in range(count)], SCHEMA.types[2]),
            pa.array(range(count), pa.int64()).cast(pa.decimal128(19, 0)).cast(SCHEMA.types[3]),
        ],
        schema=SCHEMA.arrow,
    )
    return Batch.from_arrow(table, sort_key, weights)


def lanes(batch):
    return [[int(v) for c in batch.chunks for v in c.lane(node)] for node in range(nd.LANES)]


def check_same(opened, batch):
    """Another batch holds the same in the same order, and knows the same of it."""
    assert opened.sort_key is batch.sort_key
    assert opened.rows == batch.rows
    assert rows(opened.to_arrow()) == rows(batch.to_arrow())
    opened.to_arrow().validate(full=True)
    assert lanes(opened) == lanes(batch)
    assert (opened.largest, opened.negative, opened.total_weight) == (batch.largest, batch.negative, batch.total_weight)
    assert (opened.time, opened.earliest, opened.latest) == (batch.time, batch.earliest, batch.latest)
    if not batch.rows:
        return  # of no rows, nothing is to be found out
    fresh = Batch(opened.sort_key, opened.chunks)
    assert (fresh.largest, fresh.negative, fresh.total_weight) == (batch.largest, batch.negative, batch.total_weight)
    assert (fresh.time, fresh.earliest, fresh.latest) == (batch.time, batch.earliest, batch.latest)


def round_trip(batch, path, metadata=None):
    path.unlink(missing_ok=True)
    write_batch(batch, path, metadata)
    for verify in (False, True):
        opened, kept = open_batch(path, verify)
        assert kept == metadata
        check_same(opened, batch)
    return opened


# ---------------------------------------------------------------------- round trips


@st.composite
def timed_batches(draw):
    """Any batch: of any types, arranged anyhow, without times, with one, or with many; sliced, in odd chunks."""
    schema = draw(schemas())
    table, weights = draw(weighted_tables(schema))
    key = draw(st.none() | st.lists(st.integers(0, schema.columns - 1), unique=True, max_size=schema.columns))
    sort_key = SortKey(schema, key)
    kind = draw(st.sampled_from(["none", "one", "many"]))
    if kind == "many":
        picks = draw(st.binary(min_size=table.num_rows, max_size=table.num_rows))
        times = [[b % 3 for b in picks], [b // 3 % 2 * INT64_MAX for b in picks]]
        batch = Batch.from_timed_arrow(table, times, sort_key, np.abs(weights) // 1024 | 1)
    else:
        batch = Batch.from_arrow(table, sort_key, np.sign(weights))
        if kind == "one":
            batch = batch.at_time((5, 7))
    if draw(st.booleans()):
        batch = in_chunks(batch, draw(st.lists(st.integers(1, 5), max_size=4)), draw(st.booleans()))
    if draw(st.booleans()):
        batch = batch.slice(draw(st.integers(0, 3)), draw(st.none() | st.integers(0, 9)))
    return batch


@given(batch=timed_batches())
@settings(max_examples=max(5, settings.default.max_examples // 2))
def test_a_batch_of_any_types_opens_as_it_was_written(batch, tmp_path_factory):
    round_trip(batch, tmp_path_factory.mktemp("files") / "batch", {"any": [1, None]})


@pytest.mark.parametrize("descending", [False, True])
def test_an_ordered_batch_opens_in_its_order(path, descending):
    sort_key = SortKey(SCHEMA, [2], [(1, descending, True), (0, not descending, False)])
    batch = numbers(sort_key=sort_key)
    opened = round_trip(batch, path)
    more = numbers(300, sort_key, np.repeat([-1, 2], 150))
    assert rows(merge((opened, more)).to_arrow()) == rows(merge((batch, more)).to_arrow()), "and merges in it"


@pytest.mark.parametrize("key", [None, [0], [], [3, 1]])
def test_an_empty_batch_opens_with_its_description(path, key):
    batch = Batch.empty(SortKey(SCHEMA, key))
    description = Description(Antichain.at(3), Antichain.at(5), Antichain.at(1))
    assert round_trip(batch, path, description.to_json()).rows == 0


def test_a_batch_that_was_sliced_to_nothing_opens_empty(path):
    assert round_trip(numbers().slice(50, 0), path).rows == 0


@pytest.mark.parametrize("metadata", [None, "text", [1, 2.5], {"~": "~" * 100}, {"x": "ÄÖÜ🦆\0"}, "~" * 40, "0" * 40])
def test_whatever_json_is_kept_comes_back(path, metadata):
    round_trip(numbers(5), path, metadata)


@pytest.mark.parametrize("name", ["~" * 40, "_hash", "_weight", "column0", "", "ß\n"])
def test_column_names_may_be_anything(path, name):
    schema = Schema(pa.schema([pa.field(name, pa.int64()), pa.field("other", pa.string())]))
    table = pa.table([pa.array([1, 2]), pa.array(["~" * 50, "b"])], schema=schema.arrow)
    assert round_trip(Batch.from_arrow(table, SortKey(schema, [1])), path).schema is schema


def test_a_batch_of_many_chunks_opens_as_one_of_few(path):
    batch = merge([numbers(40_000), numbers(70_000)])
    assert len(batch.chunks) > 2
    assert len(round_trip(batch, path).chunks) < len(batch.chunks)


def test_a_file_is_not_overwritten(path):
    write_batch(numbers(3), path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_batch(numbers(4), path)
    assert path.read_bytes() == before


def test_any_arrow_reader_reads_a_batch_file(path):
    batch = numbers(weights=np.arange(1, 201))
    write_batch(batch, path)
    table = pa.ipc.open_file(path).read_all()
    assert table["_weight"].to_pylist() == batch.weights().tolist()
    assert table["column0"].to_pylist() == batch.to_arrow()["k"].to_pylist()


def test_an_open_batch_outlives_its_file(path):
    batch = numbers()
    write_batch(batch, path)
    opened, _ = open_batch(path)
    path.unlink()
    check_same(opened, batch)


def test_a_trace_reopens_from_its_files_and_goes_on(tmp_path):
    trace = Trace(BY_KEY)
    agent = TraceAgent.of(trace)
    for i in range(5):
        trace.append(numbers(10 * i + 1))
    opened = []
    for i, batch in enumerate(trace.spine.entries):
        write_batch(batch, tmp_path / str(i), batch.description.to_json())
        found, description = open_batch(tmp_path / str(i))
        opened.append(found.with_description(Description.from_json(description)))
    again = Trace.from_batches(opened)
    assert (again.since, again.upper) == (trace.since, trace.upper)
    holder = TraceAgent.of(again)
    for one in (trace, again):
        one.append(numbers(7, weights=np.full(7, -1)))
    for time in range(6):
        assert again.as_of(time).same(trace.as_of(time))
    assert agent.scan().same(holder.scan())


def test_batches_with_a_gap_between_them_are_no_trace():
    one = numbers(3).at_time((0,), Description(Antichain.at(0), Antichain.at(1), Antichain.at(0)))
    other = numbers(3).at_time((2,), Description(Antichain.at(2), Antichain.at(3), Antichain.at(0)))
    with pytest.raises(TimeError, match="begins where"):
        Trace.from_batches([one, other])


# ---------------------------------------------------------------------- damage


def refused(path, verify=False):
    with pytest.raises(CorruptFileError) as caught:
        open_batch(path, verify)
    assert str(path) in str(caught.value), "the error names the file"


def regions(path):
    """(where data of columns and lanes begins and ends, where the footer begins) in a file."""
    whole = pa.memory_map(str(path)).read_buffer()
    reader = pa.ipc.open_file(whole)
    spans = []
    for i in range(reader.num_record_batches):
        for array in reader.get_batch(i).columns:
            spans += [(b.address - whole.address, b.size) for b in array.buffers() if b is not None and b.size]
    footer = len(whole) - 10 - int.from_bytes(whole[len(whole) - 10 : len(whole) - 6].to_pybytes(), "little")
    return spans, footer


def test_a_missing_file_is_refused(path):
    refused(path)


@pytest.mark.parametrize("content", [b"", b"x", b"ARROW1", b"ARROW1\0\0" + b"\0" * 100 + b"ARROW1", b"\xff" * 5000])
def test_a_file_that_is_no_arrow_file_is_refused(path, content):
    path.write_bytes(content)
    refused(path)
    refused(path, verify=True)


def test_a_directory_is_refused(tmp_path):
    refused(tmp_path)


@pytest.mark.parametrize("metadata", [None, {b"dbspark": b"{}"}, {b"dbspark": b"not json"}])
def test_an_arrow_file_of_somebody_else_is_refused(path, metadata):
    table = pa.table({"a": [1, 2]})
    schema = table.schema.with_metadata(metadata)
    with pa.ipc.new_file(path, schema) as writer:
        writer.write_table(table.cast(schema))
    refused(path)


def test_a_file_of_another_format_is_refused_and_says_which(path, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", "dbspark-batch-99")
    write_batch(numbers(3), path)
    monkeypatch.undo()
    with pytest.raises(CorruptFileError, match="dbspark-batch-99"):
        open_batch(path)


def test_a_file_cut_short_anywhere_is_refused(path):
    write_batch(numbers(), path)
    whole = path.read_bytes()
    for length in sorted({*range(0, len(whole), 97), *range(len(whole) - 300, len(whole))}):
        path.write_bytes(whole[:length])
        refused(path)
    path.write_bytes(whole + b"\0")
    refused(path)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_byte_altered_in_the_footer_is_refused_when_opening(path, flip):
    write_batch(numbers(20), path, {"kept": "with it"})
    whole = path.read_bytes()
    _, footer = regions(path)
    for at in range(footer, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        refused(path)


def test_a_byte_altered_in_what_opening_reads_is_refused_when_opening(path):
    """The headers of the record batches say where the data is."""
    write_batch(numbers(20), path)
    whole = path.read_bytes()
    spans, _ = regions(path)
    begin = min(at for at, _ in spans)
    header = whole.rindex(b"\xff\xff\xff\xff", 0, begin)
    assert 8 < header < begin
    for at in range(header, begin):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        refused(path)


@pytest.mark.parametrize("flip", [0x01, 0x80])
def test_a_byte_altered_in_the_data_is_refused_when_verifying(path, flip):
    write_batch(numbers(40), path)
    whole = path.read_bytes()
    _, footer = regions(path)
    for at in range(0, footer, 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        refused(path, verify=True)


def test_opening_reads_no_data(path):
    """A file whose data is all zeros opens, because nothing of it is looked at."""
    batch = numbers(5000, weights=np.arange(1, 5001))
    write_batch(batch, path)
    whole = bytearray(path.read_bytes())
    spans, _ = regions(path)
    assert sum(size for _, size in spans) > 100_000
    for at, size in spans:
        whole[at : at + size] = bytes(size)
    path.write_bytes(whole)
    opened, _ = open_batch(path)
    assert opened.rows == batch.rows
    assert (opened.largest, opened.negative, opened.total_weight) == (5000, 0, sum(range(5001)))
    assert opened.time == (0, 0, 0)
    refused(path, verify=True)
