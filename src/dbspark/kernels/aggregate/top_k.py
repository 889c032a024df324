"""The first rows of keys across batches, in the order of the sort key, and how they change when a batch is added.

For each key of the newest batch, the runs of its rows in all batches are walked together, once: at every row it is
known how many places are taken before it without the newest batch and how many with it, so what the row had and what
it has now are told at the same time, and only a difference is written. The walk ends when the places of both are
taken, or when the newest batch has nothing more to say and both count the same. So the cost is that of the first rows
of the keys in the newest batch; a key that is in no other batch costs a look into the index of each.

Rows of a weight below zero take no place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import add_overflows, borrowing, i64, inlined, kernel, load_i64, load_u64, prefetch
from dbspark.kernels.lookup.bloom_filter import covered_batches, sift
from dbspark.kernels.lookup.first_rows import order_of
from dbspark.kernels.lookup.index import (
    BATCHES,
    NOWHERE,
    address,
    begin_block,
    find_key,
    first_chunk,
    length_at,
    place_of,
    rest_of,
    table_at,
)
from dbspark.kernels.lookup.probe import ask_for_match, same_key
from dbspark.kernels.memory.layout import (
    DATA,
    FIXED,
    HASH,
    KEY,
    KIND,
    NODE_BYTES,
    ROW_BITS,
    ROW_MASK,
    START,
    VALID,
    WEIGHT,
    WIDTH,
)
from dbspark.kernels.merge.consolidate import OVERFLOW, lane, lane_mask
from dbspark.kernels.sort.row_order import compare_cells

GONE = NOWHERE
"""Instead of a position: there is no row, or there are no more."""
BEYOND = -2
"""Instead of a position: weights add up to more than int64 holds."""
_BLOCK = 32
"""Key hashes that are looked for at a time."""


@inlined
def _here(directory: int, chunk: int, row: int, end: int, h: Any) -> int:
    """The position of a row, or of the next where it is behind the last of its chunk; GONE unless it has a key hash."""
    if row >= length_at(directory, chunk):
        chunk += 1
        row = i64(0)
        if chunk >= end:
            return i64(GONE)
    at = i64(chunk) << ROW_BITS | row
    return at if load_u64(lane(table_at(directory, at), KEY), row) == h else i64(GONE)


@inlined
def _order_at(directory: int, p: int, q: int, columns: int, nodes: int) -> int:
    return order_of(table_at(directory, p), p & ROW_MASK, table_at(directory, q), q & ROW_MASK, columns, nodes)


@inlined
def _taken(before: int, weight: int, skip: int, stop: int) -> int:
    """How many of the places skip … stop-1 a row of a weight has behind `before` others, which are `stop` at most."""
    if weight <= 0:
        return i64(0)
    return before + min(weight, stop - before) - max(before, skip) if weight > skip - before else i64(0)


@borrowing
def _walk(
    directory: int, ends: Any, runs: int, begin: Any, at: Any, h: Any, probe: int, key: Any, columns: int, nodes: int,
    skip: int, stop: int, out: int, pos: Any, weights: Any,
) -> int:  # fmt: skip
    """Write the changes of one key, from `out` on, as far as there is room; returns how many there are then.

    The runs begin at `begin` and end before chunk ends[r]; the last of them is that of the newest batch.
    """
    newest = runs - 1
    old_runs = newest
    for r in range(runs):
        at[r] = begin[r]
    had, has = i64(0), i64(0)
    while (at[newest] >= 0 or had != has) and (has < stop or (had < stop and old_runs > 0)):
        best = i64(GONE)
        for r in range(newest if has >= stop else runs):
            if at[r] >= 0 and (best < 0 or _order_at(directory, at[r], best, columns, nodes) < 0):
                best = at[r]
        if best < 0:
            break
        old, change = i64(0), i64(0)
        for r in range(runs):
            while at[r] >= 0 and (at[r] == best or _order_at(directory, at[r], best, columns, nodes) == 0):
                here, i = table_at(directory, at[r]), at[r] & ROW_MASK
                w = load_i64(lane(here, WEIGHT), i & lane_mask(here, WEIGHT))
                if r == newest:
                    change += w
                elif add_overflows(old, w):
                    return i64(OVERFLOW)
                else:
                    old += w
                at[r] = _here(directory, at[r] >> ROW_BITS, i + 1, ends[r], h)
                if at[r] < 0 and r != newest:
                    old_runs -= 1
        t, u = table_at(directory, probe), table_at(directory, best)
        if not same_key(t, probe & ROW_MASK, key, u, best & ROW_MASK, key, nodes):
            continue
        if add_overflows(old, change):
            return i64(OVERFLOW)
        new = old + change
        more = _taken(has, new, skip, stop) - _taken(had, old, skip, stop)
        if more != 0:
            if out < pos.shape[0]:
                pos[out], weights[out] = best, more
            out += 1
        had += min(max(old, 0), stop - had)
        has += min(max(new, 0), stop - has)
    return out


@inlined
def end_of_run(table: int, row: int, end: int, h: Any) -> int:
    """The first row from a row on that has another key hash, up to `end`."""
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
def _begin(table: int, first: int, end: int, skip: int, stop: int, out: int, pos: Any, weights: Any) -> int:
    """What `_walk` gives for a key of which there has been nothing, all of its rows being in one chunk."""
    lane_weights, mask = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    has = i64(0)
    for i in range(end - (first & ROW_MASK)):
        if has >= stop:
            break
        w = load_i64(lane_weights, ((first + i) & ROW_MASK) & mask)
        taken = _taken(has, w, skip, stop)
        if taken != 0:
            if out < pos.shape[0]:
                pos[out], weights[out] = first + i, taken
            out += 1
        has += min(max(w, 0), stop - has)
    return out


@borrowing
def first_row(directory: int, h: Any, probe: int, row: int, key: Any, columns: int, nodes: int, at: Any) -> int:
    """The position of the first row of a key whose weights do not add up to zero; GONE where there is none.

    BEYOND where a sum is beyond int64. `at` is working memory, as long as there are batches.
    """
    batches = load_i64(directory, BATCHES)
    for b in range(batches):
        at[b] = find_key(directory, b, h)
    while True:
        best = i64(GONE)
        for b in range(batches):
            if at[b] >= 0 and (best < 0 or _order_at(directory, at[b], best, columns, nodes) < 0):
                best = at[b]
        if best < 0:
            return best
        total = i64(0)
        for b in range(batches):
            while at[b] >= 0 and (at[b] == best or _order_at(directory, at[b], best, columns, nodes) == 0):
                table, i = table_at(directory, at[b]), at[b] & ROW_MASK
                w = load_i64(lane(table, WEIGHT), i & lane_mask(table, WEIGHT))
                if add_overflows(total, w):
                    return i64(BEYOND)
                total += w
                at[b] = _here(directory, at[b] >> ROW_BITS, i + 1, first_chunk(directory, b + 1), h)
        if total != 0 and same_key(probe, row, key, table_at(directory, best), best & ROW_MASK, key, nodes):
            return best


@borrowing
def _find_ahead(
    directory: int, d: int, row: int, key: Any, heads: Any, some: Any, which: Any, near: Any, begun: Any, lowest: Any,
    found: Any,
) -> int:  # fmt: skip
    """Where the next key hashes of the last batch, from a row on, are in those before it; returns how many they are.

    found[b, k] = the position of the first row of hash k in batch b, or GONE, from batch lowest[k] on. All of them wait
    for memory together.
    """
    last, room = load_i64(directory, BATCHES) - 1, heads.shape[0]
    end, count = first_chunk(directory, last + 1), i64(0)
    while d < end:
        h = load_u64(lane(table_at(directory, d << ROW_BITS), KEY), row)
        if count == 0 or h != heads[count - 1]:
            if count == room:
                break
            heads[count] = h
            count += 1
        row += 1
        if row >= length_at(directory, d):
            d += 1
            row = i64(0)
    covered = covered_batches(directory)
    passing = sift(directory, address(heads), count, some, which)
    for k in range(count):
        lowest[k] = covered
    for j in range(passing):
        lowest[which[j]] = 0
    for b in range(covered if passing == 0 else i64(0), last):
        first, behind, place = first_chunk(directory, b), first_chunk(directory, b + 1), place_of(directory, b)
        for k in range(count):
            found[b, k] = GONE
        if first >= behind:
            continue
        sought, number = (address(some), passing) if b < covered else (address(heads), count)
        for j in range(begin_block(directory, first, behind, place, sought, i64(0), number, near, begun)):
            k = which[near[j]] if b < covered else near[j]
            found[b, k] = at = rest_of(directory, behind, begun[j], heads[k])
            if at >= 0:
                prefetch(lane(table_at(directory, at), HASH) + 8 * (at & ROW_MASK))
                ask_for_match(table_at(directory, at), at & ROW_MASK, key)
    return count


@kernel
def change_of_first(
    directory: int, key: Any, columns: int, nodes: int, skip: int, limit: int, pos: Any, weights: Any
) -> int:
    """Rows skip … skip+limit-1 of the keys of the last batch with it, less those without it: positions and weights.

    Returns how many there are, which may be more than there is room for: then the rest is not written. OVERFLOW where a
    sum is beyond int64.
    """
    last = load_i64(directory, BATCHES) - 1
    begin, at, ends = np.empty(last + 1, np.int64), np.empty(last + 1, np.int64), np.empty(last + 1, np.int64)
    heads, some, found = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64), np.empty((last, _BLOCK), np.int64)
    which, near, begun = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    lowest = np.empty(_BLOCK, np.int64)
    k, known = i64(0), i64(0)
    d, row, end = first_chunk(directory, last), i64(0), first_chunk(directory, last + 1)
    out = i64(0)
    while d < end:
        if k == known:
            known = _find_ahead(directory, d, row, key, heads, some, which, near, begun, lowest, found)
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
                out = _begin(table, first, row, skip, skip + limit, out, pos, weights)
            else:
                begin[runs], ends[runs] = first, end
                out = _walk(
                    directory, ends, runs + 1, begin, at, h, first, key, columns, nodes, skip, skip + limit, out, pos,
                    weights,
                )  # fmt: skip
                if out == OVERFLOW:
                    return out
            if row >= rows:
                d += 1
                row = i64(0)
            continue
        # Several keys of one hash, each of which is walked for; or the rows go on in the next chunk.
        following = first
        while following >= 0:
            begin[runs], ends[runs] = first, end
            probe = following
            met = False
            earlier = first
            while earlier != probe and not met:
                t, i = table_at(directory, earlier), earlier & ROW_MASK
                met = same_key(t, i, key, table_at(directory, probe), probe & ROW_MASK, key, nodes)
                earlier = _here(directory, earlier >> ROW_BITS, i + 1, end, h)
            if not met:
                out = _walk(
                    directory, ends, runs + 1, begin, at, h, probe, key, columns, nodes, skip, skip + limit, out, pos,
                    weights,
                )  # fmt: skip
                if out == OVERFLOW:
                    return out
            d, row = probe >> ROW_BITS, (probe & ROW_MASK) + 1
            following = _here(directory, d, row, end, h)
        if row >= length_at(directory, d):
            d += 1
            row = i64(0)
    return out
