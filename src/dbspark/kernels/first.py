"""The first rows of keys across batches, in the order of the arrangement, and how they change when a batch is added.

For each key of the newest batch, the runs of its rows in all batches are walked together, once: at every row it is
known how many places are taken before it without the newest batch and how many with it, so what the row had and what
it has now are told at the same time, and only a difference is written. The walk ends when the places of both are
taken, or when the newest batch has nothing more to say and both count the same. So the cost is that of the first rows
of the keys in the newest batch; a key that is in no other batch costs a look into the filter of each.

Rows of a weight below zero take no place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.ends import order_of
from dbspark.kernels.jit import add_overflows, i64, inlined, kernel, load_i64, load_u64
from dbspark.kernels.merge import OVERFLOW, lane, lane_mask
from dbspark.kernels.nodes import DATA, FIXED, KEY, KIND, NODE_BYTES, ROW_BITS, ROW_MASK, START, VALID, WEIGHT, WIDTH
from dbspark.kernels.order import compare_cells
from dbspark.kernels.probe import address, find_chunk, lower_bound, may_have, same_key

GONE = -1
"""Instead of a position: there is no row, or there are no more."""
BEYOND = -2
"""Instead of a position: weights add up to more than int64 holds."""


@inlined
def _here(tables: Any, lens: Any, chunk: int, row: int, end: int, h: Any) -> int:
    """The position of a row, or of the next where it is behind the last of its chunk; GONE unless it has a key hash."""
    if row >= lens[chunk]:
        chunk += 1
        row = i64(0)
        if chunk >= end:
            return i64(GONE)
    return i64(chunk) << ROW_BITS | row if load_u64(lane(tables[chunk], KEY), row) == h else i64(GONE)


@inlined
def _order_at(tables: Any, p: int, q: int, columns: int, nodes: int) -> int:
    return order_of(tables[p >> ROW_BITS], p & ROW_MASK, tables[q >> ROW_BITS], q & ROW_MASK, columns, nodes)


@inlined
def _taken(before: int, weight: int, skip: int, stop: int) -> int:
    """How many of the places skip … stop-1 a row of a weight has behind `before` others, which are `stop` at most."""
    if weight <= 0:
        return i64(0)
    return before + min(weight, stop - before) - max(before, skip) if weight > skip - before else i64(0)


@inlined
def _walk(
    tables: Any, lens: Any, ends: Any, runs: int, begin: Any, at: Any, h: Any, probe: int, key: Any, columns: int,
    nodes: int, skip: int, stop: int, out: int, pos: Any, weights: Any,
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
            if at[r] >= 0 and (best < 0 or _order_at(tables, at[r], best, columns, nodes) < 0):
                best = at[r]
        if best < 0:
            break
        old, change = i64(0), i64(0)
        for r in range(runs):
            while at[r] >= 0 and (at[r] == best or _order_at(tables, at[r], best, columns, nodes) == 0):
                here, i = tables[at[r] >> ROW_BITS], at[r] & ROW_MASK
                w = load_i64(lane(here, WEIGHT), i & lane_mask(here, WEIGHT))
                if r == newest:
                    change += w
                elif add_overflows(old, w):
                    return i64(OVERFLOW)
                else:
                    old += w
                at[r] = _here(tables, lens, at[r] >> ROW_BITS, i + 1, ends[r], h)
                if at[r] < 0 and r != newest:
                    old_runs -= 1
        t, u = tables[probe >> ROW_BITS], tables[best >> ROW_BITS]
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


@inlined
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


@inlined
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


@inlined
def first_row(
    tables: Any, lens: Any, fences: Any, starts: Any, h: Any, probe: int, row: int, key: Any, columns: int, nodes: int,
    at: Any,
) -> int:  # fmt: skip
    """The position of the first row of a key whose weights do not add up to zero; GONE where there is none.

    BEYOND where a sum is beyond int64. `at` is working memory, as long as there are batches.
    """
    batches = starts.shape[0] - 1
    for b in range(batches):
        at[b] = GONE
        if starts[b] < starts[b + 1]:
            c = find_chunk(address(fences), starts[b], starts[b + 1], h)
            at[b] = _here(tables, lens, c, lower_bound(lane(tables[c], KEY), i64(0), lens[c], h), starts[b + 1], h)
    while True:
        best = i64(GONE)
        for b in range(batches):
            if at[b] >= 0 and (best < 0 or _order_at(tables, at[b], best, columns, nodes) < 0):
                best = at[b]
        if best < 0:
            return best
        total = i64(0)
        for b in range(batches):
            while at[b] >= 0 and (at[b] == best or _order_at(tables, at[b], best, columns, nodes) == 0):
                chunk, i = at[b] >> ROW_BITS, at[b] & ROW_MASK
                w = load_i64(lane(tables[chunk], WEIGHT), i & lane_mask(tables[chunk], WEIGHT))
                if add_overflows(total, w):
                    return i64(BEYOND)
                total += w
                at[b] = _here(tables, lens, chunk, i + 1, starts[b + 1], h)
        if total != 0 and same_key(probe, row, key, tables[best >> ROW_BITS], best & ROW_MASK, key, nodes):
            return best


@kernel
def change_of_first(
    tables: Any, lens: Any, fences: Any, starts: Any, filters: Any, key: Any, columns: int, nodes: int, skip: int,
    limit: int, pos: Any, weights: Any,
) -> int:  # fmt: skip
    """Rows skip … skip+limit-1 of the keys of the last batch with it, less those without it: positions and weights.

    Returns how many there are, which may be more than there is room for: then the rest is not written. OVERFLOW where a
    sum is beyond int64. filters[b] = (address, shift) of the filter of batch b (`kernels.probe`); 0: none.
    """
    last = starts.shape[0] - 2
    chunks, rows = np.empty(last, np.int64), np.zeros(last, np.int64)  # where each batch has been searched up to
    for b in range(last):
        chunks[b] = starts[b]
    begin, at, ends = np.empty(last + 1, np.int64), np.empty(last + 1, np.int64), np.empty(last + 1, np.int64)
    d, row, end = starts[last], i64(0), starts[last + 1]
    out = i64(0)
    while d < end:
        h = load_u64(lane(tables[d], KEY), row)
        runs = i64(0)
        for b in range(last):
            if starts[b] >= starts[b + 1] or not may_have(filters[b], h):
                continue
            if chunks[b] + 1 < starts[b + 1] and fences[chunks[b] + 1] < h:
                chunks[b] = find_chunk(address(fences), chunks[b], starts[b + 1], h)
                rows[b] = 0
            rows[b] = lower_bound(lane(tables[chunks[b]], KEY), rows[b], lens[chunks[b]], h)
            found = _here(tables, lens, chunks[b], rows[b], starts[b + 1], h)
            if found >= 0:
                begin[runs], ends[runs] = found, starts[b + 1]
                runs += 1
        first = d << ROW_BITS | row
        row = end_of_run(tables[d], row, lens[d], h)
        if (row < lens[d] or d + 1 == end) and one_key(tables[d], first & ROW_MASK, row, key, nodes):
            if runs == 0:
                out = _begin(tables[d], first, row, skip, skip + limit, out, pos, weights)
            else:
                begin[runs], ends[runs] = first, end
                out = _walk(
                    tables, lens, ends, runs + 1, begin, at, h, first, key, columns, nodes, skip, skip + limit, out,
                    pos, weights,
                )  # fmt: skip
                if out == OVERFLOW:
                    return out
            if row >= lens[d]:
                d += 1
                row = i64(0)
            continue
        # Several keys of one hash, each of which is walked for; or the rows go on in the next chunk.
        following = first
        while following >= 0:
            begin[runs], ends[runs] = first, end
            probe = following
            known = False
            earlier = first
            while earlier != probe and not known:
                t, i = tables[earlier >> ROW_BITS], earlier & ROW_MASK
                known = same_key(t, i, key, tables[probe >> ROW_BITS], probe & ROW_MASK, key, nodes)
                earlier = _here(tables, lens, earlier >> ROW_BITS, i + 1, end, h)
            if not known:
                out = _walk(
                    tables, lens, ends, runs + 1, begin, at, h, probe, key, columns, nodes, skip, skip + limit, out,
                    pos, weights,
                )  # fmt: skip
                if out == OVERFLOW:
                    return out
            d, row = probe >> ROW_BITS, (probe & ROW_MASK) + 1
            following = _here(tables, lens, d, row, end, h)
        if row >= lens[d]:
            d += 1
            row = i64(0)
    return out
