"""Probing sorted chunks by key, against dicts.

Hashes are chosen, so that different rows share them, in one chunk and across chunks.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.chunk import import_arrays
from dbspark.kernels.lookup import probe as kp
from dbspark.kernels.lookup.directory import DIRECTORY_WORDS, INDEX_REF_WORDS
from dbspark.kernels.lookup.index import fill_index
from dbspark.kernels.memory import layout as nd
from dbspark.trace.directory import directory_of
from tests.kernels.build import HASHES, TOP, at, several

ONE_COLUMN = (1, nd.LANES + 1)


def sources(batches: list[Batch]) -> tuple[Any, Any, Any, Any]:
    """Batches as the kernels take them: node tables, lengths, fences, and where each batch's chunks start."""
    tables = np.concatenate([b.tables for b in batches]) if batches else np.empty(0, np.int64)
    lens = np.concatenate([b.lens for b in batches]) if batches else np.empty(0, np.int64)
    fences = np.empty(len(tables), np.uint64)
    kp.first_keys(tables, fences)
    return tables, lens, fences, np.cumsum([0, *(len(b.chunks) for b in batches)])


@given(several(1, 4))
def test_fences_are_the_first_keys(drawn: Any) -> None:
    groups, batches = drawn
    for items, batch in zip(groups, batches, strict=True):
        starts = np.cumsum([0, *batch.lens])[:-1]
        assert batch.fences.tolist() == [items[s].key for s in starts]


@given(several(1, 4), st.data())
def test_weights_at_reads_the_weight_of_each_position(drawn: Any, data: st.DataObject) -> None:
    groups, batches = drawn
    tables, lens, _, _ = sources(batches)
    chunk = st.integers(0, len(lens) - 1)
    pos = [(c << nd.ROW_BITS) + data.draw(st.integers(0, int(lens[c]) - 1)) for c in data.draw(st.lists(chunk))]
    out = np.empty(len(pos), np.int64)
    kp.weights_at(tables, np.array(pos, np.int64), out)
    assert out.tolist() == [at(groups, batches, p).weight for p in pos]


# ------------------------------------------------------------------------------------------------------- keys


def through_indices(tables: Any, lens: Any, fences: Any, starts: Any, keys: Any, ranges: Any) -> int:
    """With indices of different sizes, and one batch in three without any."""
    index_refs, kept = np.zeros((len(starts) - 1, INDEX_REF_WORDS), np.int64), []
    for b in range(len(starts) - 1):
        if b % 3 < 2:
            bits = 1 + 5 * (b % 2)
            part = slice(starts[b], starts[b + 1])
            kept.append(np.zeros(1 << bits, np.uint64))
            fill_index(tables[part], lens[part], 0, 64 - bits, kept[-1])
            index_refs[b, :2] = kept[-1].ctypes.data, 64 - bits
    directory, kept_too = directory_of((tables, lens, fences, starts), index_refs)
    total: int = kp.probe_directory(directory, keys, ranges)
    assert kept_too[0].size == 8 * DIRECTORY_WORDS
    return total


@pytest.mark.parametrize(
    "find", [kp.probe_ranges, kp.walk_ranges, through_indices], ids=["searched", "merged", "indexed"]
)
@given(several(1, 4), st.lists(HASHES, max_size=8), st.booleans(), st.data())
def test_ranges_hold_exactly_the_rows_of_each_key(
    find: Any, drawn: Any, strangers: list[int], in_order: bool, data: st.DataObject
) -> None:
    groups, batches = drawn
    known = [item.key for group in groups for item in group]
    keys = data.draw(st.lists(st.sampled_from(known), max_size=15)) + strangers
    keys = sorted(keys) if in_order else data.draw(st.permutations(keys))
    tables, lens, fences, starts = sources(batches)
    ranges = np.full((len(keys), len(batches), 3), -99, np.int64)
    count = find(tables, lens, fences, starts, np.array(keys, np.uint64), ranges)
    expected = [[[i for i in group if i.key == key] for group in groups] for key in keys]
    assert ranges[:, :, 2].tolist() == [[len(found) for found in row] for row in expected]
    assert count == sum(len(found) for row in expected for found in row)
    for i, row in enumerate(expected):
        for b, found in enumerate(row):
            chunk, place, _ = ranges[i, b].tolist()
            got = []
            for _ in found:
                if place >= lens[chunk]:
                    chunk, place = chunk + 1, 0
                got.append(at(groups, batches, chunk << nd.ROW_BITS | place))
                place += 1
            assert got == found


PAIRS = Schema.parse("k BIGINT, v STRING")
PROBES = Schema.parse("w DOUBLE, k BIGINT")


def _keyed(schema: Schema, key: int, rows: list[Any], cuts: list[int]) -> Batch:
    """Rows sorted by a weak key hash, k % 3 on the top bits, and by their number."""

    def key_hash(row: Any) -> int:
        return 0 if row[key] is None else (row[key] % 3) << 62

    rows.sort(key=key_hash)
    chunks = []
    ends = [0, *sorted({c for c in cuts if 0 < c < len(rows)}), len(rows)]
    for low, high in pairwise(ends):
        part = rows[low:high]
        if not part:
            continue
        arrays = [pa.array(list(c), t) for c, t in zip(zip(*part, strict=True), schema.types, strict=True)]
        chunk = import_arrays(schema, arrays, len(part), None)
        lanes = np.array([key_hash(r) for r in part], np.uint64), np.arange(low, high, dtype=np.uint64)
        for node, lane in zip((nd.KEY, nd.HASH), lanes, strict=True):
            chunk.nodes()[node, nd.DATA] = lane.ctypes.data
        chunk.keep = (chunk.keep, lanes)
        chunks.append(chunk)
    return Batch(SortKey(schema, (key,)), chunks)


def test_no_key_is_found_in_empty_batches() -> None:
    empty = Batch(SortKey(PAIRS), ())
    for batches in ([empty], [empty, empty]):
        for find in (kp.probe_ranges, kp.walk_ranges, through_indices):
            ranges = np.full((2, len(batches), 3), -99, np.int64)
            assert find(*sources(batches), np.array([0, TOP], np.uint64), ranges) == 0
            assert not ranges[:, :, 2].any()


KEY = st.none() | st.integers(-1, 7)
ROWS = st.lists(st.tuples(KEY, st.sampled_from(["a", "b", None])), max_size=15)
CUTS = st.lists(st.integers(1, 15), max_size=4)


@given(st.lists(st.tuples(ROWS, CUTS), min_size=1, max_size=3), st.lists(st.tuples(st.floats(), KEY), min_size=1))
def test_expanding_ranges_drops_keys_that_only_collide(groups: Any, probes: list[Any]) -> None:
    batches = [_keyed(PAIRS, 0, list(rows), cuts) for rows, cuts in groups]
    groups = [sorted(rows, key=lambda r: 0 if r[0] is None else r[0] % 3) for rows, _ in groups]
    probe = _keyed(PROBES, 1, list(probes), []).chunks[0]
    probes = sorted(probes, key=lambda r: 0 if r[1] is None else r[1] % 3)
    tables, lens, fences, starts = sources(batches)
    ranges = np.empty((len(probes), len(batches), 3), np.int64)
    total = kp.probe_ranges(tables, lens, fences, starts, probe.lane(nd.KEY), ranges)
    which, pos = np.empty(total, np.int64), np.empty(total, np.int64)
    here, there = SortKey(PAIRS, (0,)).key_nodes, SortKey(PROBES, (1,)).key_nodes
    n = kp.expand_ranges(tables, lens, ranges, probe.table, there, here, PAIRS.node_count, which, pos)
    found = [(w, at(groups, batches, p)) for w, p in zip(which[:n].tolist(), pos[:n].tolist(), strict=True)]
    expected = [(i, row) for i, p in enumerate(probes) for rows in groups for row in rows if row[0] == p[1]]
    assert found == expected
