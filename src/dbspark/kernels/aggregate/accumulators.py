"""Aggregates that only add, and one least or greatest value, in one call: group a delta, find what is known, add.

State is one row for each group: key, number of rows, and the words of its aggregates. Whenever a group changes, its old
row goes and its new one comes in one batch. So of all rows of a key one at most holds: that which has come and not gone
since. Batches are searched from the newest: the first row that comes, and is not among those that were seen going, is
it. Mostly that is the first row that is found, for groups that change have mostly changed lately; that a batch does not
have a key its index says (`kernels.lookup.index`), so a group that is new is searched for nowhere. (A merge in progress
may have the rows of a key partly behind it, so a batch in which a row only goes says nothing about others.)

New words are written beside each other, column after column, `room` groups apart; the rows of state that go and come
are given as pairs of positions for `gather_pairs`: where the key is, and where the words are.

A least or greatest value is kept beside the words. It wants the delta in the order of a sort key by key and value:
then groups are runs, and the first row of each has the best value that comes or goes. If that is worse than the old
value, the old one stays; if it is better and comes, it takes its place. Otherwise, where the old value itself comes or
goes, the group is looked up in the sort key. The value is taken from where the key is, so rows of the delta and of
the sort key are described as rows of state (`leads`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.aggregate.group import LIMBS, count_rows, finish_sums, group_rows, sum_integers
from dbspark.kernels.aggregate.top_k import BEYOND, end_of_run, first_row, one_key
from dbspark.kernels.jit import borrowing, i64, inlined, kernel, load_i64, load_u64, prefetch
from dbspark.kernels.lookup.bloom_filter import count_keys, lowest_batches
from dbspark.kernels.lookup.index import (
    BATCHES,
    NOWHERE,
    address,
    ask_for_word,
    begin_of,
    find_key,
    first_chunk,
    has_index,
    length_at,
    place_of,
    table_at,
)
from dbspark.kernels.lookup.probe import ask_for_match, same_key
from dbspark.kernels.memory.hash import fold_columns, is_valid
from dbspark.kernels.memory.layout import DATA, FIELDS, HASH, KEY, NODE_BYTES, ROW_BITS, ROW_MASK, START, VALID, WEIGHT
from dbspark.kernels.merge.consolidate import lane, lane_mask
from dbspark.kernels.sort.row_order import compare_cells, compare_nulls, equal_rows

COUNT = 0
SUM = 1
LEAST = 2
GREATEST = 3
LARGE = -1
"""Said instead of a number of rows: weights, counts or rows of a key are so many that they have to be looked at."""
WRONG = -2
"""A sum has more than 38 digits."""
NOBODY = -1
MANY = -2
_AHEAD = 32
"""Groups that are looked for at a time."""
_GOING = 64
"""Rows of a key that may have been seen going before another way is taken."""


@borrowing
def newest_row(
    directory: int, lowest: int, newest: int, h: Any, probe: int, row: int, probe_key: Any, key: Any, columns: int,
    nodes: int, gone: Any,
) -> int:  # fmt: skip
    """Where the row of a key is, in batches from one on, that has come and not gone since; NOBODY where there is none.

    Of the batches that have an index, none behind `newest` has the key. `gone` is working memory for positions of rows
    that were seen going; MANY where they are more than fit there.
    """
    seen = i64(0)
    for b in range(load_i64(directory, BATCHES) - 1, lowest - 1, -1):
        if b > newest and has_index(place_of(directory, b)):
            continue
        begin = find_key(directory, b, h)
        if begin == NOWHERE:
            continue
        c, at, last = begin >> ROW_BITS, begin & ROW_MASK, first_chunk(directory, b + 1)
        while True:
            if at >= length_at(directory, c):
                c += 1
                at = i64(0)
                if c >= last:
                    break
            table = table_at(directory, c << ROW_BITS)
            if load_u64(lane(table, KEY), at) != h:
                break
            if same_key(probe, row, probe_key, table, at, key, nodes):
                if load_i64(lane(table, WEIGHT), at & lane_mask(table, WEIGHT)) < 0:
                    if seen == gone.shape[0]:
                        return i64(MANY)
                    gone[seen] = i64(c) << ROW_BITS | at
                    seen += 1
                elif not _among(directory, gone, seen, table, at, columns, nodes):
                    return i64(c) << ROW_BITS | at
            at += 1
    return i64(NOBODY)


@borrowing
def _ask_for_groups(
    directory: int, heads: Any, lowest: Any, begin: int, end: int, state_keys: Any, count_node: int, folds: Any,
    newest: Any, at: Any,
) -> None:  # fmt: skip
    """Ask for the memory that `newest_row` and the folds will read for keys begin … end-1, which are few.

    newest[k] = the newest batch whose index knows of a key, counted from `begin`. In much state every look waits for
    memory: at the indices, at the key hash of the row that they point to, at its key, weight and words. So each look
    is for all of the keys before the next.
    """
    batches = load_i64(directory, BATCHES)
    for b in range(batches):
        for k in range(begin, end):
            if b >= lowest[k]:
                ask_for_word(place_of(directory, b), heads[k])
    for k in range(begin, end):
        b, found = batches - 1, i64(NOWHERE)
        while b >= lowest[k]:
            first, last, place = first_chunk(directory, b), first_chunk(directory, b + 1), place_of(directory, b)
            if first < last and has_index(place):
                found = begin_of(directory, first, last, place, heads[k])
                if found != NOWHERE:
                    break
            b -= 1
        newest[k - begin], at[k - begin] = b, found
    for k in range(end - begin):
        if at[k] != NOWHERE:
            table, row = table_at(directory, at[k]), at[k] & ROW_MASK
            ask_for_match(table, row, state_keys)
            _ask_for_word(table, count_node, row, i64(1))
            for f in range(folds.shape[0]):
                words = i64(1) if folds[f, 0] == COUNT else i64(2)
                _ask_for_word(table, folds[f, 3], row, words)


@inlined
def _ask_for_word(table: int, node: int, row: int, words: int) -> None:
    at = table + node * NODE_BYTES
    prefetch(load_i64(at, DATA) + 8 * words * (load_i64(at, START) + row))


@borrowing
def _among(directory: int, pos: Any, count: int, table: int, row: int, columns: int, nodes: int) -> Any:
    """Whether a row is equal to one of those at some positions."""
    word = load_u64(lane(table, HASH), row)
    for k in range(count):
        other, at = table_at(directory, pos[k]), pos[k] & ROW_MASK
        if load_u64(lane(other, HASH), at) == word and equal_rows(other, at, table, row, columns, nodes):
            return True
    return False


@inlined
def _word(directory: int, pos: int, node: int, words: int, k: int) -> int:
    """Word k of a fixed-width value of so many words."""
    at = table_at(directory, pos) + node * NODE_BYTES
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


@borrowing
def _group_runs(table: int, rows: int, key: Any, nodes: int, hashes: Any, ids: Any, first: Any) -> int:
    """What `group_rows` gives, for rows in the order of their key hashes, which are written to `hashes`."""
    groups, begin = i64(0), i64(0)
    while begin < rows:
        h = load_u64(lane(table, KEY), begin)
        end = end_of_run(table, begin, rows, h)
        known, one = groups, one_key(table, begin, end, key, nodes)
        for i in range(begin, end):
            hashes[i] = h
            g = known
            while not one and g < groups and not same_key(table, i64(i), key, table, first[g], key, nodes):
                g += 1
            if g == groups:
                first[g] = i
                groups += 1
            ids[i] = g
        begin = end
    return groups


@inlined
def _compare_values(a: int, node_a: int, i: int, b: int, node_b: int, j: int, greatest: int, nodes: int) -> int:
    """Below zero where the value of row i is better than that of row j; NULL is worse than any value."""
    order = compare_nulls(a + node_a * NODE_BYTES, i, b + node_b * NODE_BYTES, j)
    if order == 2:
        return i64(0)
    if order != 0:
        return i64(-order)
    order = compare_cells(a, node_a, i, b, node_b, j, nodes)
    return i64(-order) if greatest != 0 else i64(order)


@borrowing
def _lead(table: int, keys: Any, state_keys: Any, value: Any, out: Any) -> None:
    """Describe a chunk as rows of state, of which only key and value are there."""
    for k in range(keys.shape[0] + 1):
        source, target = (value[0], value[1]) if k == keys.shape[0] else (keys[k], state_keys[k])
        for f in range(FIELDS):
            out[target * FIELDS + f] = load_i64(table + source * NODE_BYTES, f)


@inlined
def _choose(
    table: int, keys: Any, directory: int, chunks: int, arranged: int, more_chunks: int, value: Any,
    source_columns: int, state_keys: Any, nodes: int, hashes: Any, first: Any, old: Any, counts: Any, leads: Any,
    used: Any, chosen: Any,
) -> int:  # fmt: skip
    """chosen[g] = where the best value of a group is, and its key; NOBODY where it has no rows. Returns 0 or LARGE."""
    groups = old.shape[0]
    w, m = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    lead_of = np.full(more_chunks, -1, np.int64)
    at = np.empty(load_i64(arranged, BATCHES), np.int64)
    here, asked = chunks, i64(0)
    for g in range(groups):
        i, before, order = first[g], old[g], i64(-1)
        if before >= 0:
            there, row = table_at(directory, before), before & ROW_MASK
            order = _compare_values(table, value[0], i, there, value[1], row, value[2], nodes)
        lost = counts[g] == 0 or order == 0 or (order < 0 and load_i64(w, i & m) < 0)
        if lost:
            asked += 1
            found = first_row(arranged, hashes[i], table, i, keys, source_columns, nodes, at)
            if found == BEYOND or (found < 0) != (counts[g] == 0):
                return i64(LARGE)
            chosen[g] = NOBODY
            if found >= 0:
                c = found >> ROW_BITS
                if lead_of[c] < 0:
                    lead_of[c] = used[0]
                    _lead(table_at(arranged, found), keys, state_keys, value, leads[used[0]])
                    used[0] += 1
                chosen[g] = (here + lead_of[c]) << ROW_BITS | (found & ROW_MASK)
        elif order < 0:
            chosen[g] = here << ROW_BITS | i
        else:
            chosen[g] = before
    count_keys(arranged, asked, i64(0))
    return i64(0)


@kernel
def fold_groups(
    table: int, rows: int, keys: Any, mask: Any, directory: int, chunks: int, state_keys: Any, columns: int, nodes: int,
    count_node: int, folds: Any, acc: Any, key_pos: Any, acc_pos: Any, weights: Any, value: Any, source_columns: int,
    arranged: int, more_chunks: int, leads: Any, used: Any,
) -> int:  # fmt: skip
    """Fold a delta into the rows of state of its groups; returns how many rows go and come, LARGE or WRONG.

    folds[f] = (COUNT or SUM, node of the column or -1, node of the FILTER or -1, node of its first word in the state,
    where its words begin in `acc` in multiples of room). `acc` has room for as many groups as there are rows. Positions
    behind the last of the `chunks` are those of the delta (`key_pos`) and of `acc` (`acc_pos`).

    value = (node of the column, node in the state, 1 for the greatest), or nothing; then there are the sort key
    after the delta, and `leads`, one for each of its chunks and one more, of which used[0] are described: first the
    delta.
    """
    room = rows
    hashes, ids, first = np.empty(rows, np.uint64), np.empty(rows, np.int64), np.empty(rows, np.int64)
    if value.shape[0] > 0:
        groups = _group_runs(table, rows, keys, nodes, hashes, ids, first)
    else:
        fold_columns(table, keys, rows, mask, hashes)
        groups = group_rows(table, keys, hashes, nodes, ids, first)
    old, going = np.empty(groups, np.int64), np.empty(_GOING, np.int64)
    here = chunks
    gone = i64(0)
    heads = np.empty(groups, np.uint64)
    for g in range(groups):
        heads[g] = hashes[first[g]]
    lowest = lowest_batches(directory, address(heads), groups)
    newest, asked = np.empty(_AHEAD, np.int64), np.empty(_AHEAD, np.int64)
    for g in range(groups):
        ahead = g % _AHEAD
        if ahead == 0:
            end = min(g + _AHEAD, groups)
            _ask_for_groups(directory, heads, lowest, g, end, state_keys, count_node, folds, newest, asked)
        at = newest_row(
            directory, lowest[g], newest[ahead], heads[g], table, first[g], keys, state_keys, columns, nodes, going
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
        acc[g] = _word(directory, old[g], count_node, i64(1), i64(0)) if old[g] >= 0 else 0
        if abs(acc[g]) >= 1 << 62:
            return i64(LARGE)
    everything = np.empty(0, np.uint8)
    count_rows(table, rows, i64(-1), everything, ids, acc[:groups])
    chosen = np.empty(groups, np.int64)
    if value.shape[0] > 0:
        _lead(table, keys, state_keys, value, leads[0])
        used[0] = 1
        if _choose(
            table, keys, directory, chunks, arranged, more_chunks, value, source_columns, state_keys, nodes, hashes,
            first, old, acc[:groups], leads, used, chosen,
        ) != 0:  # fmt: skip
            return i64(LARGE)
    else:
        for g in range(groups):
            chosen[g] = i64(here) << ROW_BITS | first[g]
    none = np.full(groups, -1, np.int64)
    for f in range(folds.shape[0]):
        node, state, begin = folds[f, 1], folds[f, 3], folds[f, 4] * room
        some = _true_rows(table, folds[f, 2], rows) if folds[f, 2] >= 0 else everything
        if folds[f, 0] == COUNT:
            counts = acc[begin : begin + groups]
            for g in range(groups):
                counts[g] = _word(directory, old[g], state, i64(1), i64(0)) if old[g] >= 0 else 0
            count_rows(table, rows, node, some, ids, counts)
            continue
        counts = acc[begin + 2 * room : begin + 2 * room + groups]
        limbs = np.zeros((groups, LIMBS), np.int64)
        for g in range(groups):
            counts[g] = 0
            if old[g] >= 0:
                counts[g] = _word(directory, old[g], state + 1, i64(1), i64(0))
                low, high = (
                    _word(directory, old[g], state, i64(2), i64(0)),
                    _word(directory, old[g], state, i64(2), i64(1)),
                )
                limbs[g, 0], limbs[g, 1] = low & 0xFFFFFFFF, (low >> 32) & 0xFFFFFFFF
                limbs[g, 2], limbs[g, 3] = high & 0xFFFFFFFF, high >> 32
        sum_integers(table, rows, node, some, ids, limbs, counts)
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
            if chosen[g] == NOBODY:
                return i64(LARGE)
            key_pos[gone + come] = chosen[g]
            acc_pos[gone + come] = i64(here) << ROW_BITS | come
            weights[gone + come] = 1
            come += 1
    return gone + come
