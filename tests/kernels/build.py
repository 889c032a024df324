"""Inputs of kernels: chunks whose hashes are chosen, batches with their own hashes, registers of the operator VM.

Kernels do not check the hash lanes, so a test can choose them: clustered keys, the ends of the range, collisions
between different values. An `Item` is one row of the schema `v BIGINT`; items sort as batches do, by (key hash, row
hash, value) with NULL first. `sources` lays sorted items out in chunks, some of them slices with odd offsets.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from dbspark.columnar import Batch, Schema, SortKey
from dbspark.columnar.chunk import Chunk, import_arrays
from dbspark.columnar.memory import allocate
from dbspark.kernels.lookup.directory import INDEX_REF_WORDS
from dbspark.kernels.memory import layout as nd
from dbspark.kernels.merge.consolidate import merge_ranges
from dbspark.kernels.merge.split import choose_split
from dbspark.kernels.vm import expressions as kv
from dbspark.kernels.vm import interpreter as km
from dbspark.kernels.vm import registers as kr
from dbspark.kernels.vm import result_columns as ks
from dbspark.trace.directory import directory_of, sources_of
from tests.strategies import choices

TOP = 2**64 - 1
ONE_COLUMN = (1, nd.LANES + 1)
"""The numbers of columns and of nodes of `VALUES`."""
VALUES = Schema.parse("v BIGINT")


class Item(NamedTuple):
    """A row with its chosen hashes and its weight."""

    key: int
    hash: int
    value: int | None
    weight: int

    @property
    def row(self) -> tuple[int, int, int | None]:
        return self.key, self.hash, self.value

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.key, self.hash, -1 if self.value is None else self.value


def total(items: Iterable[Item]) -> list[Item]:
    """The sum of items, in batch order: what every merge has to result in."""
    sums: dict[Any, int] = {}
    for item in items:
        sums[item.row] = sums.get(item.row, 0) + item.weight
    return sorted((Item(*row, w) for row, w in sums.items() if w), key=lambda item: item.rank)


def chunk_of(items: Sequence[Item], before: int = 0, shared_lane: bool = False) -> Chunk:
    """One chunk; with `before`, a slice that skips so many rows of something else."""
    filler = [Item(7, 7, 7, 7)] * before
    every = [*filler, *items]
    weights = np.array([i.weight for i in every], np.int64)
    keep_weights = None if all(i.weight == 1 for i in items) else weights
    hashes = np.array([i.hash for i in every], np.uint64)
    keys = hashes if shared_lane else np.array([i.key for i in every], np.uint64)
    chunk = import_arrays(VALUES, [pa.array([i.value for i in every], pa.int64())], len(every), keep_weights)
    chunk.nodes()[nd.HASH, nd.DATA] = hashes.ctypes.data
    chunk.nodes()[nd.KEY, nd.DATA] = keys.ctypes.data
    chunk.keep = (chunk.keep, hashes, keys)
    return chunk.slice(before, len(items)) if before else chunk


def batch_of(items: Sequence[Item], cuts: Sequence[int] = (), before: int = 0, shared: bool = False) -> Batch:
    """Sorted items as a batch, cut into chunks at the given rows; with `shared`, the key lane is the hash lane."""
    assert all(a.rank < b.rank for a, b in pairwise(items))
    ends = [0, *sorted({c for c in cuts if 0 < c < len(items)}), len(items)]
    parts = [chunk_of(items[a:b], before, shared) for a, b in pairwise(ends) if a < b]
    return Batch(SortKey(VALUES, None if shared else ()), parts)


def at(items: Sequence[Sequence[Item]], batches: Sequence[Batch], position: int) -> Item:
    """The item at a position in the chunks of all batches, numbered through."""
    chunk, row = position >> nd.ROW_BITS, position & nd.ROW_MASK
    for group, batch in zip(items, batches, strict=True):
        if chunk < len(batch.chunks):
            assert row < batch.chunks[chunk].rows
            return group[int(batch.lens[:chunk].sum()) + row]
        chunk -= len(batch.chunks)
    raise AssertionError(f"no chunk at {position:#x}")


def distinct(items: Iterable[Item]) -> list[Item]:
    """In batch order, the first of each row."""
    found: dict[Any, Item] = {}
    for item in items:
        found.setdefault(item.row, item)
    return sorted(found.values(), key=lambda item: item.rank)


HASHES = st.sampled_from([0, 1, 2, 3, 2**32, 2**63 - 1, 2**63, TOP - 1, TOP]) | st.integers(0, TOP)
WEIGHTS = st.sampled_from([1, 1, 1, -1, 2, -3]) | st.integers(-(2**40), 2**40).filter(bool)


@st.composite
def sorted_items(draw: st.DrawFn, max_size: int = 30, pool: int = 4) -> list[Item]:
    """Items of one batch. Hashes come from a small pool, so that ties and equal rows in other batches are common."""
    keys = draw(st.lists(HASHES, min_size=1, max_size=pool))
    hashes = draw(st.lists(HASHES, min_size=1, max_size=pool))
    weights = draw(st.lists(WEIGHTS, min_size=1, max_size=4))
    count = draw(st.integers(0, max_size))
    picked = [draw(choices(column, count)) for column in (keys, hashes, [None, 0, 1, 2, 3], weights)]
    if draw(st.booleans()):
        picked[0] = picked[1]
    return distinct(Item(*row) for row in zip(*picked, strict=True))


@st.composite
def several(draw: st.DrawFn, min_size: int = 1, max_size: int = 5) -> Any:
    """(items of each batch, the batches): overlapping in rows, cut into chunks at random, none empty."""
    everything = draw(sorted_items(max_size=40).filter(bool))
    shared = all(i.key == i.hash for i in everything)
    weights = draw(st.lists(WEIGHTS, min_size=1, max_size=4))
    groups, batches = [], []
    for _ in range(draw(st.integers(min_size, max_size))):
        count = draw(st.integers(1, 20))
        pairs = zip(draw(choices(everything, count)), draw(choices(weights, count)), strict=True)
        items = distinct(item._replace(weight=w) for item, w in pairs)
        cuts = draw(st.lists(st.integers(1, len(items)), max_size=4))
        groups.append(items)
        batches.append(batch_of(items, cuts, draw(st.sampled_from([0, 0, 3])), shared))
    return groups, batches


class Sources:
    """Batches as the kernels take them, with cursors at their beginnings."""

    def __init__(self, groups: list[list[Item]], batches: list[Batch]) -> None:
        self.groups, self.batches = groups, batches
        self.tables = np.concatenate([b.tables for b in batches])
        self.lens = np.concatenate([b.lens for b in batches])
        firsts = np.cumsum([0, *(len(b.chunks) for b in batches)])
        self.firsts = firsts[:-1]
        self.cursors = np.array([[f, 0] for f in firsts[:-1]], np.int64)
        self.ends = np.array([[f - 1, b.lens[-1]] for f, b in zip(firsts[1:], batches, strict=True)], np.int64)

    def rows_before(self, s: int, cursor: Any) -> int:
        """How many rows of source s lie before a cursor, which must be inside the source."""
        chunk, row = int(cursor[0]), int(cursor[1])
        first = int(self.firsts[s])
        assert first <= chunk < first + len(self.batches[s].chunks)
        assert 0 <= row <= self.lens[chunk]
        return int(self.lens[first:chunk].sum()) + row

    def read(self, before: Any, after: Any) -> list[Item]:
        """The items between two sets of cursors."""
        out: list[Item] = []
        for s, items in enumerate(self.groups):
            low, high = self.rows_before(s, before[s]), self.rows_before(s, after[s])
            assert low <= high
            out += items[low:high]
        return out

    def cursor(self, s: int, rows: int) -> tuple[int, int]:
        """A cursor after so many rows of source s."""
        chunk = int(self.firsts[s])
        while rows > self.lens[chunk]:
            rows -= int(self.lens[chunk])
            chunk += 1
        return chunk, rows

    def output(self, pos: Any, weights: Any) -> list[Item]:
        pairs = zip(pos.tolist(), weights.tolist(), strict=True)
        return [at(self.groups, self.batches, p)._replace(weight=w) for p, w in pairs]


def range_steps(sources: Sources, limit: int) -> list[Item]:
    """Run `choose_split` and `merge_ranges` in turn, checking what each step promises."""
    out: list[Item] = []
    info = np.empty(4, np.int64)
    while True:
        before = sources.cursors.copy()
        stops = np.empty_like(sources.cursors)
        n = choose_split(sources.tables, sources.lens, sources.cursors, sources.ends, limit, stops)
        chosen = sources.read(before, stops)
        assert n == len(chosen)
        assert np.array_equal(sources.cursors, before)
        rest = sources.read(stops, sources.ends)
        assert chosen or not rest, "a split must leave something before it"
        if chosen and rest:
            assert max(i.rank[:2] for i in chosen) < min(i.rank[:2] for i in rest), "equal rows on both sides"
        pos, weights = np.empty(n, np.int64), np.empty(n, np.int64)
        keys, order = np.empty(2 * n, np.uint64), np.empty(2 * n, np.int64)
        merge_ranges(sources.tables, sources.lens, sources.cursors, stops, *ONE_COLUMN, keys, order, pos, weights, info)
        written, read, ones, _ = info.tolist()
        assert read == n
        assert np.array_equal(sources.cursors, stops)
        items = sources.output(pos[:written], weights[:written])
        assert items == total(chosen)
        assert ones == all(item.weight == 1 for item in items)
        out += items
        if not rest:
            assert np.array_equal(stops, sources.ends)
            return out


def everything(groups: list[list[Item]]) -> list[Item]:
    return total(item for group in groups for item in group)


def spread(values: range, weight: int = 1) -> list[Item]:
    """Rows whose hashes are spread over the whole range."""
    items = [Item(v * 0x9E3779B97F4A7C15 & TOP, v * 0xD6E8FEB86659FD93 & TOP, v, weight) for v in values]
    return sorted(items, key=lambda item: item.rank)


def cut(items: list[Item], size: int) -> Batch:
    return batch_of(items, range(size, len(items), size))


# ------------------------------------------------------------------------------------------------------- real batches


def rows_batch(sort_key: SortKey, rows: Mapping[tuple[Any, ...], int]) -> Batch:
    """Weighted rows as a batch, with computed hashes."""
    weights = np.array(list(rows.values()), np.int64)
    columns = list(zip(*rows, strict=True)) if rows else [()] * sort_key.schema.columns
    arrays = [pa.array(c, t) for c, t in zip(columns, sort_key.schema.types, strict=True)]
    return Batch.from_arrow(pa.table(arrays, names=sort_key.schema.names), sort_key, weights)


def directory(batches: Sequence[Batch]) -> tuple[int, Any]:
    """The address of a directory of batches without indices and filter, and what has to be kept alive for it."""
    sources, index_refs = sources_of(tuple(batches)), np.zeros((len(batches), INDEX_REF_WORDS), np.int64)
    address, kept = directory_of(sources, index_refs)
    return address, (sources, index_refs, kept)


def sum_of(changes: Iterable[Mapping[Any, int]]) -> dict[Any, int]:
    """The sum of weighted rows, without zeros."""
    out: Counter[Any] = Counter()
    for change in changes:
        for row, weight in change.items():
            out[row] += weight
    return {row: weight for row, weight in out.items() if weight}


def column_of(values: Sequence[Any], ddl: str) -> Chunk:
    """A chunk of one column."""
    schema = Schema.parse(f"v {ddl}")
    return import_arrays(schema, [pa.array(values, schema.types[0])], len(values), None)


# ------------------------------------------------------------------------------------------------------- operator VM


class VM:
    """Registers and arenas for code of `kernels.vm.interpreter`, without states."""

    def __init__(self, registers: int, scratch: int = 1 << 17, retained: int = 1 << 17) -> None:
        self._registers = np.zeros((registers, kr.REGISTER_WORDS), np.int64)
        self.arenas = [allocate(scratch), allocate(retained)]
        self._arena_words = np.zeros((2, kr.ARENA_WORDS), np.int64)
        self._inputs: list[Chunk] = []

    def load(self, register: int, chunk: Chunk) -> None:
        self._inputs.append(chunk)
        self._registers[register, :2] = chunk.table, chunk.rows

    def run(self, code: Sequence[int]) -> int:
        for words, arena in zip(self._arena_words, self.arenas, strict=True):
            words[:] = arena.address, 0, arena.size
        array = np.array(code, np.int64)
        addresses = [a.ctypes.data for a in (array, self._registers, self._arena_words)]
        status: int = km.run(addresses[0], len(array), addresses[1], 0, addresses[2], 0)
        return status

    def used(self, arena: int) -> int:
        """Bytes requested from an arena."""
        return int(self._arena_words[arena, kr.ARENA_USED])

    def rows(self, register: int, schema: Schema, arena: int = 1) -> list[tuple[Any, ...]]:
        """The rows of a result, each with its weight last."""
        table, rows = self._registers[register, :2].tolist()
        if not rows:
            return []
        memory = self.arenas[arena]
        chunk = Chunk(schema, rows, memory.slice(table - memory.address), self._inputs)
        columns = [chunk.array(c).to_pylist() for c in range(schema.columns)]
        return list(zip(*columns, chunk.lane(nd.WEIGHT).tolist(), strict=True))


def project(schema: Schema, columns: Sequence[int], test: Sequence[int] = (), code: Sequence[int] = ()) -> list[int]:
    """The instruction that filters register 0 and computes result columns into register 1."""
    slots = max(kv.slot_count(test), kv.slot_count(code))
    return kv.line(
        km.PROJECT, 0, 1, 1, schema.node_count, len(test), len(code), len(columns) // ks.COLUMN_WORDS, slots,
        *test, *code, *columns,
    )  # fmt: skip


def passed(*columns: int) -> list[int]:
    """Result columns that pass through."""
    return [word for c in columns for word in (ks.PASS_THROUGH, 0, nd.LANES + c, 0, 0)]
