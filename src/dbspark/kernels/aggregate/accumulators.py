"""Update the accumulators of groups by a delta, in one call: counts and sums, and at most one minimum or maximum.

The state of an aggregation has one row per group: key, number of rows, and the accumulators, each one or more int64
*words*. When a group changes, its old row is retracted and its new one inserted in the same batch.

1. *Group* the delta: by hash, or, where it is sorted by key, by runs.
2. *Find* the old row of each group (`newest_row`). At most one row of a key is live, the one that was inserted and not
   retracted since. Batches are searched from the newest: the first inserted row that is not among the retracted ones
   seen so far is the live one. Usually it is the first row found, because a group that changes has usually changed
   recently. Bloom filter and indices rule out batches, so a new group is searched for in no batch at all. (A merge in
   progress may have consumed some rows of a key, so a batch that only retracts a row says nothing about older batches.)
3. *Add* weights and values to the old words.
4. *Write* the new words column by column; a column has space for `capacity` groups. The rows of state that are
   retracted and inserted are written as pairs of positions, one where the key is, one where the words are;
   `gather_pairs` copies both parts.

A minimum or maximum is stored in a column of its own. For it the delta is sorted by key and value, so that groups are
runs and the first row of each has the best value inserted or retracted. If that is worse than the old value, the old
one stays; if it is better and inserted, it becomes the new one; otherwise, where the old value itself is inserted or
retracted, the group is looked up in the arrangement of the input by key and value. Key and value of a row of state are
gathered from one position, so the chunks of the delta and of that arrangement that are referred to get a *lead*: a node
table with the layout of the state in which only the key and value columns are filled (`leads`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.aggregate.group import LIMBS, count_rows, finish_sums, group_rows, sum_integers
from dbspark.kernels.aggregate.top_k import WEIGHT_OVERFLOW, end_of_run, first_row, one_key
from dbspark.kernels.jit import Int64Matrix, Int64s, UInt64, borrowing, i64, inlined, kernel
from dbspark.kernels.lookup.bloom_filter import count_lookups, lowest_batches
from dbspark.kernels.lookup.directory import DIR_BATCHES, address, first_chunk, index_ref, length_at, table_at
from dbspark.kernels.lookup.index import NOT_FOUND, find_key, has_index, prefetch_index_word, start_search
from dbspark.kernels.lookup.probe import prefetch_match, same_key
from dbspark.kernels.memory.hash import fold_columns
from dbspark.kernels.memory.intrinsics import load_i64, load_u64, prefetch
from dbspark.kernels.memory.layout import DATA, FIELDS, HASH, KEY, NODE_BYTES, ROW_BITS, ROW_MASK, START, VALID, WEIGHT
from dbspark.kernels.memory.nodes import is_valid, lane, lane_mask
from dbspark.kernels.sort.row_order import compare_cells, compare_nulls, equal_rows

COUNT = 0
SUM = 1
LEAST = 2
GREATEST = 3
FALL_BACK = -1
"""Returned instead of a number of rows: weights or counts are too large, or a key has too many retracted rows. The
operator then updates the groups without this kernel."""
SUM_OVERFLOW = -2
"""Returned instead of a number of rows: a sum has more than 38 digits."""
NO_ROW = -1
TOO_MANY_RETRACTIONS = -2
_GROUPS_PER_BLOCK = 32
"""Groups that are looked up together, so that their cache misses overlap."""
_MAX_RETRACTIONS = 64
"""Retracted rows of a key that a search remembers; beyond that `update_accumulators` falls back."""
_MAX_WEIGHT = 1 << 31
"""Weights are below this, and counts below `_MAX_COUNT`, so that adding a delta to a count cannot overflow."""
_MAX_COUNT = 1 << 62


@borrowing
def newest_row(
    directory: int, lowest: int, newest: int, h: Any, probe: int, row: int, probe_key: Any, key: Any, columns: int,
    nodes: int, retracted: Any,
) -> int:  # fmt: skip
    """The position of the live row of a key (inserted and not retracted since) in batches from `lowest` on; or NO_ROW.

    The caller knows from the indices that no indexed batch newer than batch `newest` has the key. `retracted` is
    scratch memory for positions of retracted rows; TOO_MANY_RETRACTIONS where it is too short.
    """
    retractions = i64(0)
    for b in range(load_i64(directory, DIR_BATCHES) - 1, lowest - 1, -1):
        if b > newest and has_index(index_ref(directory, b)):
            continue
        begin = find_key(directory, b, h)
        if begin == NOT_FOUND:
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
                    if retractions == retracted.shape[0]:
                        return i64(TOO_MANY_RETRACTIONS)
                    retracted[retractions] = i64(c) << ROW_BITS | at
                    retractions += 1
                elif not _is_among(directory, retracted, retractions, table, at, columns, nodes):
                    return i64(c) << ROW_BITS | at
            at += 1
    return i64(NO_ROW)


@borrowing
def _prefetch_groups(
    directory: int, heads: Any, lowest: Any, begin: int, end: int, state_keys: Any, count_node: int, folds: Any,
    newest: Any, at: Any,
) -> None:  # fmt: skip
    """Prefetch what `newest_row` and the accumulators will read for a block of keys, begin … end-1.

    newest[k] = the newest batch whose index may have a key, counted from `begin`. In a large state every step is a
    cache miss: the index words, the key hash that they point to, the key, weight and words of its row. So each step is
    done for all keys before the next.
    """
    batches = load_i64(directory, DIR_BATCHES)
    for b in range(batches):
        for k in range(begin, end):
            if b >= lowest[k]:
                prefetch_index_word(index_ref(directory, b), heads[k])
    for k in range(begin, end):
        b, found = batches - 1, i64(NOT_FOUND)
        while b >= lowest[k]:
            first, last, ref = first_chunk(directory, b), first_chunk(directory, b + 1), index_ref(directory, b)
            if first < last and has_index(ref):
                found = start_search(directory, first, last, ref, heads[k])
                if found != NOT_FOUND:
                    break
            b -= 1
        newest[k - begin], at[k - begin] = b, found
    for k in range(end - begin):
        if at[k] != NOT_FOUND:
            table, row = table_at(directory, at[k]), at[k] & ROW_MASK
            prefetch_match(table, row, state_keys)
            _prefetch_words(table, count_node, row, i64(1))
            for f in range(folds.shape[0]):
                words = i64(1) if folds[f, 0] == COUNT else i64(2)
                _prefetch_words(table, folds[f, 3], row, words)


@inlined
def _prefetch_words(table: int, node: int, row: int, words: int) -> None:
    at = table + node * NODE_BYTES
    prefetch(load_i64(at, DATA) + 8 * words * (load_i64(at, START) + row))


@borrowing
def _is_among(directory: int, pos: Any, count: int, table: int, row: int, columns: int, nodes: int) -> Any:
    """Whether a row is equal to one of the `count` rows at the positions `pos`."""
    word = load_u64(lane(table, HASH), row)
    for k in range(count):
        other, at = table_at(directory, pos[k]), pos[k] & ROW_MASK
        if load_u64(lane(other, HASH), at) == word and equal_rows(other, at, table, row, columns, nodes):
            return True
    return False


@inlined
def _word(directory: int, pos: int, node: int, words: int, k: int) -> int:
    """Word k of a fixed-width value of `words` words."""
    at = table_at(directory, pos) + node * NODE_BYTES
    return load_i64(load_i64(at, DATA), (load_i64(at, START) + (pos & ROW_MASK)) * words + k)


@inlined
def _true_rows(table: int, node: int, rows: int) -> Any:
    """The rows that pass a FILTER clause: those where its column is true."""
    at = table + node * NODE_BYTES
    data, valid, start = load_i64(at, DATA), load_i64(at, VALID), load_i64(at, START)
    out = np.empty(rows, np.uint8)
    for i in range(rows):
        out[i] = is_valid(data, start + i) and (valid == 0 or is_valid(valid, start + i))
    return out


@borrowing
def _group_runs(table: int, rows: int, key: Any, nodes: int, hashes: Any, ids: Any, first: Any) -> int:
    """Number the groups of rows that are in the order of their key hashes, as `group_rows` does; returns how many.

    The key hashes are written to `hashes`.
    """
    groups, begin = i64(0), i64(0)
    while begin < rows:
        h = load_u64(lane(table, KEY), begin)
        end = end_of_run(table, begin, rows, h)
        first_group, single = groups, one_key(table, begin, end, key, nodes)
        for i in range(begin, end):
            hashes[i] = h
            g = first_group
            while not single and g < groups and not same_key(table, i64(i), key, table, first[g], key, nodes):
                g += 1
            if g == groups:
                first[g] = i
                groups += 1
            ids[i] = g
        begin = end
    return groups


@inlined
def _compare_values(a: int, node_a: int, i: int, b: int, node_b: int, j: int, greatest: int, nodes: int) -> int:
    """Compare two values: below zero where that of row i is the better minimum (maximum); NULL is the worst."""
    order = compare_nulls(a + node_a * NODE_BYTES, i, b + node_b * NODE_BYTES, j)
    if order == 2:
        return i64(0)
    if order != 0:
        return i64(-order)
    order = compare_cells(a, node_a, i, b, node_b, j, nodes)
    return i64(-order) if greatest != 0 else i64(order)


@borrowing
def _describe_lead(table: int, keys: Any, state_keys: Any, value: Any, out: Any) -> None:
    """Write the lead of a chunk: the nodes of its key and value columns, in the places that they have in the state."""
    for k in range(keys.shape[0] + 1):
        source, target = (value[0], value[1]) if k == keys.shape[0] else (keys[k], state_keys[k])
        for f in range(FIELDS):
            out[target * FIELDS + f] = load_i64(table + source * NODE_BYTES, f)


@inlined
def _choose_values(
    table: int, keys: Any, directory: int, chunks: int, arranged: int, more_chunks: int, value: Any,
    source_columns: int, state_keys: Any, nodes: int, hashes: Any, first: Any, old: Any, counts: Any, leads: Any,
    used: Any, chosen: Any,
) -> int:  # fmt: skip
    """chosen[g] = the position from which key and best value of group g are gathered, or NO_ROW where no row is left.

    Returns 0 or FALL_BACK.
    """
    groups = old.shape[0]
    w, m = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    lead_of = np.full(more_chunks, -1, np.int64)
    at = np.empty(load_i64(arranged, DIR_BATCHES), np.int64)
    delta_chunk, lookups = chunks, i64(0)
    for g in range(groups):
        i, old_row, order = first[g], old[g], i64(-1)
        if old_row >= 0:
            old_table, row = table_at(directory, old_row), old_row & ROW_MASK
            order = _compare_values(table, value[0], i, old_table, value[1], row, value[2], nodes)
        must_look_up = counts[g] == 0 or order == 0 or (order < 0 and load_i64(w, i & m) < 0)
        if must_look_up:
            lookups += 1
            found = first_row(arranged, hashes[i], table, i, keys, source_columns, nodes, at)
            if found == WEIGHT_OVERFLOW or (found < 0) != (counts[g] == 0):
                return i64(FALL_BACK)
            chosen[g] = NO_ROW
            if found >= 0:
                c = found >> ROW_BITS
                if lead_of[c] < 0:
                    lead_of[c] = used[0]
                    _describe_lead(table_at(arranged, found), keys, state_keys, value, leads[used[0]])
                    used[0] += 1
                chosen[g] = (delta_chunk + lead_of[c]) << ROW_BITS | (found & ROW_MASK)
        elif order < 0:
            chosen[g] = delta_chunk << ROW_BITS | i
        else:
            chosen[g] = old_row
    count_lookups(arranged, lookups, i64(0))
    return i64(0)


@kernel
def update_accumulators(
    table: int, rows: int, keys: Int64s, mask: UInt64, directory: int, chunks: int, state_keys: Int64s, columns: int,
    nodes: int, count_node: int, folds: Int64Matrix, acc: Int64s, key_pos: Int64s, acc_pos: Int64s, weights: Int64s,
    value: Int64s, source_columns: int, arranged: int, more_chunks: int, leads: Int64Matrix, used: Int64s,
) -> int:  # fmt: skip
    """Update the state of the groups in a delta; returns how many rows are retracted and inserted, or a status.

    Statuses: FALL_BACK, SUM_OVERFLOW.

    folds[f] = (COUNT or SUM, node of the column or -1, node of the FILTER or -1, node of the first word in the state,
    where its words begin in `acc`, in multiples of the capacity). The capacity of `acc` is as many groups as the delta
    has rows. Positions in a chunk behind the last of the state's `chunks` refer to the delta or, if `value` is given,
    to the leads (`key_pos`), and to the new words in `acc` (`acc_pos`).

    value = (node of the column, node in the state, 1 for a maximum), or empty. If it is given, `arranged` is the
    directory of the input's arrangement by key and value, the delta included; `leads` has space for the lead of the
    delta, which is written first, and of each chunk of the arrangement; used[0] = how many are written.
    """
    capacity = rows
    hashes, ids, first = np.empty(rows, np.uint64), np.empty(rows, np.int64), np.empty(rows, np.int64)
    if value.shape[0] > 0:
        groups = _group_runs(table, rows, keys, nodes, hashes, ids, first)
    else:
        fold_columns(table, keys, rows, mask, hashes)
        groups = group_rows(table, keys, hashes, nodes, ids, first)
    old, retractions = np.empty(groups, np.int64), np.empty(_MAX_RETRACTIONS, np.int64)
    delta_chunk = chunks
    retracted = i64(0)
    heads = np.empty(groups, np.uint64)
    for g in range(groups):
        heads[g] = hashes[first[g]]
    lowest = lowest_batches(directory, address(heads), groups)
    newest, positions = np.empty(_GROUPS_PER_BLOCK, np.int64), np.empty(_GROUPS_PER_BLOCK, np.int64)
    for g in range(groups):
        number = g % _GROUPS_PER_BLOCK
        if number == 0:
            end = min(g + _GROUPS_PER_BLOCK, groups)
            _prefetch_groups(directory, heads, lowest, g, end, state_keys, count_node, folds, newest, positions)
        at = newest_row(
            directory, lowest[g], newest[number], heads[g], table, first[g], keys, state_keys, columns, nodes,
            retractions,
        )  # fmt: skip
        if at == TOO_MANY_RETRACTIONS:
            return i64(FALL_BACK)
        old[g] = at
        if at >= 0:
            key_pos[retracted] = acc_pos[retracted] = at
            weights[retracted] = -1
            retracted += 1
    w, m = lane(table, WEIGHT), lane_mask(table, WEIGHT)
    for i in range(rows):
        if abs(load_i64(w, i & m)) >= _MAX_WEIGHT:
            return i64(FALL_BACK)
    for g in range(groups):
        acc[g] = _word(directory, old[g], count_node, i64(1), i64(0)) if old[g] >= 0 else 0
        if abs(acc[g]) >= _MAX_COUNT:
            return i64(FALL_BACK)
    no_mask = np.empty(0, np.uint8)
    count_rows(table, rows, i64(-1), no_mask, ids, acc[:groups])
    chosen = np.empty(groups, np.int64)
    if value.shape[0] > 0:
        _describe_lead(table, keys, state_keys, value, leads[0])
        used[0] = 1
        if _choose_values(
            table, keys, directory, chunks, arranged, more_chunks, value, source_columns, state_keys, nodes, hashes,
            first, old, acc[:groups], leads, used, chosen,
        ) != 0:  # fmt: skip
            return i64(FALL_BACK)
    else:
        for g in range(groups):
            chosen[g] = i64(delta_chunk) << ROW_BITS | first[g]
    no_old_sum = np.full(groups, -1, np.int64)
    for f in range(folds.shape[0]):
        node, state, begin = folds[f, 1], folds[f, 3], folds[f, 4] * capacity
        row_mask = _true_rows(table, folds[f, 2], rows) if folds[f, 2] >= 0 else no_mask
        if folds[f, 0] == COUNT:
            counts = acc[begin : begin + groups]
            for g in range(groups):
                counts[g] = _word(directory, old[g], state, i64(1), i64(0)) if old[g] >= 0 else 0
            count_rows(table, rows, node, row_mask, ids, counts)
            continue
        counts = acc[begin + 2 * capacity : begin + 2 * capacity + groups]
        limbs = np.zeros((groups, LIMBS), np.int64)
        for g in range(groups):
            counts[g] = 0
            if old[g] >= 0:
                counts[g] = _word(directory, old[g], state + 1, i64(1), i64(0))
                low = _word(directory, old[g], state, i64(2), i64(0))
                high = _word(directory, old[g], state, i64(2), i64(1))
                limbs[g, 0], limbs[g, 1] = low & 0xFFFFFFFF, (low >> 32) & 0xFFFFFFFF
                limbs[g, 2], limbs[g, 3] = high & 0xFFFFFFFF, high >> 32
        sum_integers(table, rows, node, row_mask, ids, limbs, counts)
        if finish_sums(limbs, i64(0), no_old_sum, address(acc) + 8 * begin) != 0:
            return i64(SUM_OVERFLOW)
    # Weights may cancel to a count of zero while sums do not: the row of state stays until everything is zero.
    inserted = i64(0)
    for g in range(groups):
        alive = acc[g] != 0
        for f in range(folds.shape[0]):
            begin = folds[f, 4] * capacity
            if folds[f, 0] == COUNT:
                alive |= acc[begin + g] != 0
                acc[begin + inserted] = acc[begin + g]
            else:
                counts_at = begin + 2 * capacity
                alive |= acc[begin + 2 * g] != 0 or acc[begin + 2 * g + 1] != 0 or acc[counts_at + g] != 0
                acc[begin + 2 * inserted] = acc[begin + 2 * g]
                acc[begin + 2 * inserted + 1] = acc[begin + 2 * g + 1]
                acc[counts_at + inserted] = acc[counts_at + g]
        acc[inserted] = acc[g]
        if alive:
            if chosen[g] == NO_ROW:
                return i64(FALL_BACK)
            key_pos[retracted + inserted] = chosen[g]
            acc_pos[retracted + inserted] = i64(delta_chunk) << ROW_BITS | inserted
            weights[retracted + inserted] = 1
            inserted += 1
    return retracted + inserted
