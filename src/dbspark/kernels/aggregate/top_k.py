"""Incremental top-k: how the first rows of keys, in the order of the sort key, change when a batch is added.

The result for a key is a list of k *places*; a row of weight w takes w of them, a row of negative weight none.

For each key of the newest batch, its runs (the rows of the key) in all batches are merged once, from the front. At
every row of this merge two counts are kept: how many places the rows before it take without the newest batch, and how
many with it. They give the weight that the row had in the result and the weight that it has now, and only a difference
is written. The merge ends when all places are taken in both counts, or when the newest batch has no more rows of the
key and the counts are equal.

So the cost is that of the first rows of the keys in the newest batch. A key that is in no other batch costs a look-up
in the Bloom filter and in the index of each batch that the filter does not cover.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import Int64s, borrowing, i64, inlined, kernel
from dbspark.kernels.lookup.bloom_filter import covered_batches, filter_keys
from dbspark.kernels.lookup.directory import DIR_BATCHES, address, first_chunk, index_ref, length_at, table_at
from dbspark.kernels.lookup.first_rows import compare_in_order
from dbspark.kernels.lookup.index import NOT_FOUND, find_key, finish_search, start_searches
from dbspark.kernels.lookup.probe import prefetch_match, same_key
from dbspark.kernels.memory.intrinsics import add_overflows, load_i64, load_u64, prefetch
from dbspark.kernels.memory.layout import (
    DATA,
    FIXED,
    HASH,
    KEY,
    KIND,
    NODE_BYTES,
    OVERFLOW,
    ROW_BITS,
    ROW_MASK,
    START,
    VALID,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.memory.nodes import lane, lane_mask
from dbspark.kernels.sort.row_order import compare_cells

NO_ROW = NOT_FOUND
"""Instead of a position: there is no row, or there are no more."""
WEIGHT_OVERFLOW = -2
"""Instead of a position: a sum of weights overflows int64."""
_KEYS_PER_BLOCK = 32
"""Key hashes that are looked up together."""


@inlined
def _row_if_key(directory: int, chunk: int, row: int, end: int, h: Any) -> int:
    """The position of row `row`, which at the end of a chunk is the first row of the next one, if its key hash is h.

    NO_ROW where the key hash is another one, or where the batch ends (chunk `end`).
    """
    if row >= length_at(directory, chunk):
        chunk += 1
        row = i64(0)
        if chunk >= end:
            return i64(NO_ROW)
    at = i64(chunk) << ROW_BITS | row
    return at if load_u64(lane(table_at(directory, at), KEY), row) == h else i64(NO_ROW)


@inlined
def _compare_at(directory: int, p: int, q: int, columns: int, nodes: int) -> int:
    return compare_in_order(table_at(directory, p), p & ROW_MASK, table_at(directory, q), q & ROW_MASK, columns, nodes)


@inlined
def _places(before: int, weight: int, skip: int, stop: int) -> int:
    """How many of the places skip … stop-1 a row takes when `before` (at most `stop`) places are taken before it."""
    if weight <= 0:
        return i64(0)
    return before + min(weight, stop - before) - max(before, skip) if weight > skip - before else i64(0)


@borrowing
def _merge_runs(
    directory: int, ends: Any, runs: int, begin: Any, at: Any, h: Any, probe: int, key: Any, columns: int, nodes: int,
    skip: int, stop: int, out: int, pos: Any, weights: Any,
) -> int:  # fmt: skip
    """Write the changes of one key from pos[out] on, while there is space; returns `out` plus how many, or OVERFLOW.

    Run r begins at begin[r] and ends before chunk ends[r]; the last one is that of the newest batch.
    """
    newest = runs - 1
    old_runs = newest
    for r in range(runs):
        at[r] = begin[r]
    old_count, new_count = i64(0), i64(0)
    while (at[newest] >= 0 or old_count != new_count) and (new_count < stop or (old_count < stop and old_runs > 0)):
        best = i64(NO_ROW)
        for r in range(newest if new_count >= stop else runs):
            if at[r] >= 0 and (best < 0 or _compare_at(directory, at[r], best, columns, nodes) < 0):
                best = at[r]
        if best < 0:
            break
        old, change = i64(0), i64(0)
        for r in range(runs):
            while at[r] >= 0 and (at[r] == best or _compare_at(directory, at[r], best, columns, nodes) == 0):
                table, i = table_at(directory, at[r]), at[r] & ROW_MASK
                w = load_i64(lane(table, WEIGHT), i & lane_mask(table, WEIGHT))
                if r == newest:
                    change += w
                elif add_overflows(old, w):
                    return i64(OVERFLOW)
                else:
                    old += w
                at[r] = _row_if_key(directory, at[r] >> ROW_BITS, i + 1, ends[r], h)
                if at[r] < 0 and r != newest:
                    old_runs -= 1
        t, u = table_at(directory, probe), table_at(directory, best)
        if not same_key(t, probe & ROW_MASK, key, u, best & ROW_MASK, key, nodes):
            continue
        if add_overflows(old, change):
            return i64(OVERFLOW)
        new = old + change
        difference = _places(new_count, new, skip, stop) - _places(old_count, old, skip, stop)
        if difference != 0:
            if out < pos.shape[0]:
                pos[out], weights[out] = best, difference
            out += 1
        old_count += min(max(old, 0), stop - old_count)
        new_count += min(max(new, 0), stop - new_count)
    return out


@inlined
def end_of_run(table: int, row: int, end: int, h: Any) -> int:
    """The first of rows row … end-1 whose key hash is not h, or `end`."""
    keys = lane(table, KEY)
    while row < end and load_u64(keys, row) == h:
        row += 1
    return row


@borrowing
def one_key(table: int, begin: int, end: int, key: Any, nodes: int) -> Any:
    """Whether rows begin … end-1 of a chunk have the same key."""
    for k in range(key.shape[0]):
        node = table + key[k] * NODE_BYTES
        if load_i64(node, KIND) == FIXED and load_i64(node, WIDTH) == 8 and load_i64(node, VALID) == 0:
            data, start = load_i64(node, DATA), load_i64(node, START)
            value = load_i64(data, start + begin)
            for i in range(begin + 1, end):
                if load_i64(data, start + i) != value:
                    return False
        else:
            for i in range(begin + 1, end):
                if compare_cells(table, key[k], begin, table, key[k], i64(i), nodes) != 0:
                    return False
    return True


@borrowing
def _first_places(table: int, first: int, end: int, skip: int, stop: int, out: int, pos: Any, weights: Any) -> int:
    """Write the changes of a key that is in no older batch and whose rows are in one chunk; returns like `_merge_runs`.

    `first` is the position of its first row, `end` the row number after its last one. No merge is needed: the rows take
    places from the first on.
    """
    lane_weights, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    count = i64(0)
    for i in range(end - (first & ROW_MASK)):
        if count >= stop:
            break
        w = load_i64(lane_weights, ((first + i) & ROW_MASK) & mask)
        places = _places(count, w, skip, stop)
        if places != 0:
            if out < pos.shape[0]:
                pos[out], weights[out] = first + i, places
            out += 1
        count += min(max(w, 0), stop - count)
    return out


@borrowing
def first_row(directory: int, h: Any, probe: int, row: int, key: Any, columns: int, nodes: int, at: Any) -> int:
    """The position of the first row of a key whose weights do not add up to zero; NO_ROW or WEIGHT_OVERFLOW.

    `at` is scratch memory, one word for each batch.
    """
    batches = load_i64(directory, DIR_BATCHES)
    for b in range(batches):
        at[b] = find_key(directory, b, h)
    while True:
        best = i64(NO_ROW)
        for b in range(batches):
            if at[b] >= 0 and (best < 0 or _compare_at(directory, at[b], best, columns, nodes) < 0):
                best = at[b]
        if best < 0:
            return best
        total = i64(0)
        for b in range(batches):
            while at[b] >= 0 and (at[b] == best or _compare_at(directory, at[b], best, columns, nodes) == 0):
                table, i = table_at(directory, at[b]), at[b] & ROW_MASK
                w = load_i64(lane(table, WEIGHT), i & lane_mask(table, WEIGHT))
                if add_overflows(total, w):
                    return i64(WEIGHT_OVERFLOW)
                total += w
                at[b] = _row_if_key(directory, at[b] >> ROW_BITS, i + 1, first_chunk(directory, b + 1), h)
        if total != 0 and same_key(probe, row, key, table_at(directory, best), best & ROW_MASK, key, nodes):
            return best


@borrowing
def _look_up_block(
    directory: int, d: int, row: int, key: Any, heads: Any, passing_keys: Any, numbers: Any, candidates: Any,
    starts: Any, lowest: Any, found: Any,
) -> int:  # fmt: skip
    """Look up a block of key hashes of the newest batch, from row `row` of chunk `d` on, in the older batches.

    found[b, k] = the position of the first row of hash k in batch b, or NO_ROW; valid from batch lowest[k] on, since
    the filter rules out the batches before. Returns the number of key hashes.
    """
    last, capacity = load_i64(directory, DIR_BATCHES) - 1, heads.shape[0]
    end, count = first_chunk(directory, last + 1), i64(0)
    while d < end:
        h = load_u64(lane(table_at(directory, d << ROW_BITS), KEY), row)
        if count == 0 or h != heads[count - 1]:
            if count == capacity:
                break
            heads[count] = h
            count += 1
        row += 1
        if row >= length_at(directory, d):
            d += 1
            row = i64(0)
    covered = covered_batches(directory)
    passing_count = filter_keys(directory, address(heads), count, passing_keys, numbers)
    for k in range(count):
        lowest[k] = covered
    for j in range(passing_count):
        lowest[numbers[j]] = 0
    for b in range(covered if passing_count == 0 else i64(0), last):
        first, next_first, ref = first_chunk(directory, b), first_chunk(directory, b + 1), index_ref(directory, b)
        for k in range(count):
            found[b, k] = NO_ROW
        if first >= next_first:
            continue
        sought_keys, sought_count = (address(passing_keys), passing_count) if b < covered else (address(heads), count)
        for j in range(
            start_searches(directory, first, next_first, ref, sought_keys, i64(0), sought_count, candidates, starts)
        ):
            k = numbers[candidates[j]] if b < covered else candidates[j]
            found[b, k] = at = finish_search(directory, next_first, starts[j], heads[k])
            if at >= 0:
                prefetch(lane(table_at(directory, at), HASH) + 8 * (at & ROW_MASK))
                prefetch_match(table_at(directory, at), at & ROW_MASK, key)
    return count


@kernel
def top_k_change(
    directory: int, key: Int64s, columns: int, nodes: int, skip: int, limit: int, pos: Int64s, weights: Int64s
) -> int:
    """The change of the top-k result by the last batch: positions of rows, and by how much their weights change.

    The result has places skip … skip+limit-1 of each key. Returns the number of changes; those beyond the length of
    `pos` are not written. OVERFLOW where a sum is beyond int64.
    """
    last = load_i64(directory, DIR_BATCHES) - 1
    begin, at, ends = np.empty(last + 1, np.int64), np.empty(last + 1, np.int64), np.empty(last + 1, np.int64)
    heads = np.empty(_KEYS_PER_BLOCK, np.uint64)
    passing_keys = np.empty(_KEYS_PER_BLOCK, np.uint64)
    found = np.empty((last, _KEYS_PER_BLOCK), np.int64)
    numbers = np.empty(_KEYS_PER_BLOCK, np.int64)
    candidates = np.empty(_KEYS_PER_BLOCK, np.int64)
    starts = np.empty(_KEYS_PER_BLOCK, np.int64)
    lowest = np.empty(_KEYS_PER_BLOCK, np.int64)
    k, block = i64(0), i64(0)
    d, row, end = first_chunk(directory, last), i64(0), first_chunk(directory, last + 1)
    out = i64(0)
    while d < end:
        if k == block:
            block = _look_up_block(
                directory, d, row, key, heads, passing_keys, numbers, candidates, starts, lowest, found
            )
            k = i64(0)
        h = heads[k]
        runs = i64(0)
        for b in range(lowest[k], last):
            if found[b, k] >= 0:
                begin[runs], ends[runs] = found[b, k], first_chunk(directory, b + 1)
                runs += 1
        k += 1
        first, table, rows = d << ROW_BITS | row, table_at(directory, d << ROW_BITS), length_at(directory, d)
        row = end_of_run(table, row, rows, h)
        if (row < rows or d + 1 == end) and one_key(table, first & ROW_MASK, row, key, nodes):
            if runs == 0:
                out = _first_places(table, first, row, skip, skip + limit, out, pos, weights)
            else:
                begin[runs], ends[runs] = first, end
                out = _merge_runs(
                    directory, ends, runs + 1, begin, at, h, first, key, columns, nodes, skip, skip + limit, out, pos,
                    weights,
                )  # fmt: skip
                if out == OVERFLOW:
                    return out
            if row >= rows:
                d += 1
                row = i64(0)
            continue
        # Either several keys share the hash, and each is merged separately; or the run goes on in the next chunk.
        following = first
        while following >= 0:
            begin[runs], ends[runs] = first, end
            probe = following
            seen = False
            earlier = first
            while earlier != probe and not seen:
                t, i = table_at(directory, earlier), earlier & ROW_MASK
                seen = same_key(t, i, key, table_at(directory, probe), probe & ROW_MASK, key, nodes)
                earlier = _row_if_key(directory, earlier >> ROW_BITS, i + 1, end, h)
            if not seen:
                out = _merge_runs(
                    directory, ends, runs + 1, begin, at, h, probe, key, columns, nodes, skip, skip + limit, out, pos,
                    weights,
                )  # fmt: skip
                if out == OVERFLOW:
                    return out
            d, row = probe >> ROW_BITS, (probe & ROW_MASK) + 1
            following = _row_if_key(directory, d, row, end, h)
        if row >= length_at(directory, d):
            d += 1
            row = i64(0)
    return out
