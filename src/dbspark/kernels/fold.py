"""Aggregates that only add, in one call: group the rows of a delta, find what is known of their groups, add.

State is one row for each group: key, number of rows, and the words of its aggregates. Whenever a group changes, its old
row goes and its new one comes in one batch. So of all rows of a key one at most holds: that which has come and not
gone since. Batches are searched from the newest: the first row that comes, and is not among those that were seen
going, is it. Mostly that is the first row that is found, for groups that change have mostly changed lately. (A merge in
progress may have the rows of a key partly behind it, so a batch in which a row only goes says nothing about others.)

New words are written beside each other, column after column, `room` groups apart; the rows of state that go and come
are given as pairs of positions for `gather_pairs`: where the key is, and where the words are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.group import LIMBS, count_rows, finish_sums, group_rows, sum_integers
from dbspark.kernels.hash import fold_columns, is_valid
from dbspark.kernels.jit import i64, inlined, kernel, load_i64, load_u64
from dbspark.kernels.merge import lane, lane_mask
from dbspark.kernels.nodes import DATA, HASH, KEY, NODE_BYTES, ROW_BITS, ROW_MASK, START, VALID, WEIGHT
from dbspark.kernels.order import compare_rows
from dbspark.kernels.probe import address, find_chunk, lower_bound, same_key

COUNT = 0
SUM = 1
LARGE = -1
"""Said instead of a number of rows: weights, counts or rows of a key are so many that they have to be looked at."""
WRONG = -2
"""A sum has more than 38 digits."""
NOBODY = -1
MANY = -2
_GOING = 64
"""Rows of a key that may have been seen going before another way is taken."""


@inlined
def newest_row(
    tables: Any, lens: Any, fences: Any, starts: Any, h: Any, probe: int, row: int, probe_key: Any, key: Any,
    columns: int, nodes: int, gone: Any,
) -> int:  # fmt: skip
    """Where the row of a key is that has come and not gone since; NOBODY where there is none.

    `gone` is working memory for positions of rows that were seen going; MANY where they are more than fit there.
    """
    seen = i64(0)
    for b in range(starts.shape[0] - 2, -1, -1):
        c, last = starts[b], starts[b + 1]
        if c >= last:
            continue
        if last - c > 1:
            c = find_chunk(address(fences), c, last, h)
        at = lower_bound(lane(tables[c], KEY), i64(0), lens[c], h)
        while True:
            if at >= lens[c]:
                c += 1
                at = i64(0)
                if c >= last:
                    break
            table = tables[c]
            if load_u64(lane(table, KEY), at) != h:
                break
            if same_key(probe, row, probe_key, table, at, key, nodes):
                if load_i64(lane(table, WEIGHT), at & lane_mask(table, WEIGHT)) < 0:
                    if seen == gone.shape[0]:
                        return i64(MANY)
                    gone[seen] = i64(c) << ROW_BITS | at
                    seen += 1
                elif not _among(tables, gone, seen, table, at, columns, nodes):
                    return i64(c) << ROW_BITS | at
            at += 1
    return i64(NOBODY)


@inlined
def _among(tables: Any, pos: Any, count: int, table: int, row: int, columns: int, nodes: int) -> Any:
    """Whether a row is equal to one of those at some positions."""
    word = load_u64(lane(table, HASH), row)
    for k in range(count):
        other, at = tables[pos[k] >> ROW_BITS], pos[k] & ROW_MASK
        if load_u64(lane(other, HASH), at) == word and compare_rows(other, at, table, row, columns, nodes) == 0:
            return True
    return False


@inlined
def _word(tables: Any, pos: int, node: int, words: int, k: int) -> int:
    """Word k of a fixed-width value of so many words."""
    at = tables[pos >> ROW_BITS] + node * NODE_BYTES
    return load_i64(load_i64(at, DATA), (load_i64(at, START) + (pos & ROW_MASK)) * words + k)


@inlined
def _true_rows(table: int, node: int, rows: int) -> Any:
    """Which rows a FILTER lets through: those where its column is true."""
    at = table + node * NODE_BYTES
    data, valid, start = load_i64(at, DATA), load_i64(at, VALID), load_i64(at, START)
    out = np.empty(rows, np.uint8)
    for i in range(rows):
        out[i] = is_valid(data, start + i) and (valid == 0 or is_valid(valid, start + i))
    return out


@kernel
def fold_groups(
    table: int, rows: int, keys: Any, mask: Any, tables: Any, lens: Any, fences: Any, starts: Any, state_keys: Any,
    columns: int, nodes: int, count_node: int, folds: Any, acc: Any, key_pos: Any, acc_pos: Any, weights: Any,
) -> int:  # fmt: skip
    """Fold a delta into the rows of state of its groups; returns how many rows go and come, LARGE or WRONG.

    folds[f] = (COUNT or SUM, node of the column or -1, node of the FILTER or -1, node of its first word in the state,
    where its words begin in `acc` in multiples of room). `acc` has room for as many groups as there are rows. Positions
    behind the last of `tables` are those of the delta (`key_pos`) and of `acc` (`acc_pos`).
    """
    room = rows
    hashes = np.empty(rows, np.uint64)
    fold_columns(table, keys, rows, mask, hashes)
    size = i64(4)
    while size < 2 * rows:
        size *= 2
    ids, first = np.empty(rows, np.int64), np.empty(rows, np.int64)
    groups = group_rows(table, keys, hashes, nodes, np.full(size, -1, np.int64), ids, first)
    old, going = np.empty(groups, np.int64), np.empty(_GOING, np.int64)
    here = tables.shape[0]
    gone = i64(0)
    for g in range(groups):
        at = newest_row(
            tables, lens, fences, starts, hashes[first[g]], table, first[g], keys, state_keys, columns, nodes, going
        )
        if at == MANY:
            return i64(LARGE)
        old[g] = at
        if at >= 0:
            key_pos[gone] = acc_pos[gone] = at
            weights[gone] = -1
            gone += 1
    w, m = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    for i in range(rows):
        if abs(load_i64(w, i & m)) >= 1 << 31:
            return i64(LARGE)
    for g in range(groups):
        acc[g] = _word(tables, old[g], count_node, i64(1), i64(0)) if old[g] >= 0 else 0
        if abs(acc[g]) >= 1 << 62:
            return i64(LARGE)
    everything = np.empty(0, np.uint8)
    count_rows(table, rows, i64(-1), everything, ids, acc[:groups])
    none = np.full(groups, -1, np.int64)
    for f in range(folds.shape[0]):
        node, state, begin = folds[f, 1], folds[f, 3], folds[f, 4] * room
        chosen = _true_rows(table, folds[f, 2], rows) if folds[f, 2] >= 0 else everything
        if folds[f, 0] == COUNT:
            counts = acc[begin : begin + groups]
            for g in range(groups):
                counts[g] = _word(tables, old[g], state, i64(1), i64(0)) if old[g] >= 0 else 0
            count_rows(table, rows, node, chosen, ids, counts)
            continue
        counts = acc[begin + 2 * room : begin + 2 * room + groups]
        limbs = np.zeros((groups, LIMBS), np.int64)
        for g in range(groups):
            counts[g] = 0
            if old[g] >= 0:
                counts[g] = _word(tables, old[g], state + 1, i64(1), i64(0))
                low, high = (_word(tables, old[g], state, i64(2), i64(0)), _word(tables, old[g], state, i64(2), i64(1)))
                limbs[g, 0], limbs[g, 1] = low & 0xFFFFFFFF, (low >> 32) & 0xFFFFFFFF
                limbs[g, 2], limbs[g, 3] = high & 0xFFFFFFFF, high >> 32
        sum_integers(table, rows, node, chosen, ids, limbs, counts)
        if finish_sums(limbs, i64(0), none, address(acc) + 8 * begin) != 0:
            return i64(WRONG)
    # Rows may outweigh each other without being the same; what they have added up to has to be remembered.
    come = i64(0)
    for g in range(groups):
        alive = acc[g] != 0
        for f in range(folds.shape[0]):
            begin = folds[f, 4] * room
            if folds[f, 0] == COUNT:
                alive |= acc[begin + g] != 0
                acc[begin + come] = acc[begin + g]
            else:
                counts_at = begin + 2 * room
                alive |= acc[begin + 2 * g] != 0 or acc[begin + 2 * g + 1] != 0 or acc[counts_at + g] != 0
                acc[begin + 2 * come] = acc[begin + 2 * g]
                acc[begin + 2 * come + 1] = acc[begin + 2 * g + 1]
                acc[counts_at + come] = acc[counts_at + g]
        acc[come] = acc[g]
        if alive:
            key_pos[gone + come] = i64(here) << ROW_BITS | first[g]
            acc_pos[gone + come] = i64(here) << ROW_BITS | come
            weights[gone + come] = 1
            come += 1
    return gone + come
