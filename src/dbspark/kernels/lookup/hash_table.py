"""A Robin Hood hash table over rows: the index of a memtable.

Slots hold (hash, entry); the distance of a slot from its home slot is computed from the hash, so it cannot overflow.
Deleting shifts the following slots back, so there are no tombstones. Entries are dense: entry e is the row at
position `entry_pos[e]` with weight `entry_weight[e]`; a dead entry has weight 0 and no slot. Iteration scans the
entries; the owner keeps their number below a constant times the number of live ones.

A delta may contain a row several times. The entries that it has appended so far have no `entry_pos` yet, because its
new rows are copied only afterwards; their values are compared at their positions in the delta (`appended`).
"""

from __future__ import annotations

from typing import Any

from dbspark.kernels.jit import Int64s, UInt64s, i64, inlined, kernel
from dbspark.kernels.memory.intrinsics import add_overflows, load_i64, load_u64, multiply_overflows
from dbspark.kernels.memory.layout import HASH, ROW_BITS, ROW_MASK, WEIGHT
from dbspark.kernels.memory.nodes import lane, lane_mask
from dbspark.kernels.sort.row_order import compare_rows

EMPTY = -1


@inlined
def _insert_slot(slot_hash: Any, slot_entry: Any, h: Any, entry: int) -> None:
    mask = slot_hash.shape[0] - 1
    at = i64(h) & mask
    distance = i64(0)
    while slot_entry[at] != EMPTY:
        their_distance = (at - (i64(slot_hash[at]) & mask)) & mask
        if their_distance < distance:
            slot_hash[at], h = h, slot_hash[at]
            slot_entry[at], entry = entry, slot_entry[at]
            distance = their_distance
        at = (at + 1) & mask
        distance += 1
    slot_hash[at] = h
    slot_entry[at] = entry


@inlined
def _delete_slot(slot_hash: Any, slot_entry: Any, at: int) -> None:
    mask = slot_hash.shape[0] - 1
    while True:
        after = (at + 1) & mask
        if slot_entry[after] == EMPTY or (i64(slot_hash[after]) & mask) == after:
            slot_entry[at] = EMPTY
            return
        slot_hash[at] = slot_hash[after]
        slot_entry[at] = slot_entry[after]
        at = after


@inlined
def _find_slot(
    slot_hash: Any, slot_entry: Any, h: Any, tables: Any, entry_pos: Any, entries: int,
    sources: Any, appended: Any, table: int, row: int, columns: int, nodes: int,
) -> int:  # fmt: skip
    """The slot of the row equal to row `row` of `table`, or -1.

    Entries from `entries` on belong to the delta that is being applied: `appended` has their positions, in its own
    chunks `sources`.
    """
    mask = slot_hash.shape[0] - 1
    at = i64(h) & mask
    distance = i64(0)
    while slot_entry[at] != EMPTY:
        if slot_hash[at] == h:
            entry = slot_entry[at]
            if entry < entries:
                p = entry_pos[entry]
                other = tables[p >> ROW_BITS]
            else:
                p = appended[entry - entries]
                other = sources[p >> ROW_BITS]
            if compare_rows(other, p & ROW_MASK, table, row, columns, nodes) == 0:
                return at
        elif (at - (i64(slot_hash[at]) & mask)) & mask < distance:
            return -1
        at = (at + 1) & mask
        distance += 1
    return -1


@kernel
def upsert(
    slot_hash: UInt64s, slot_entry: Int64s, tables: Int64s, entry_pos: Int64s, entry_weight: Int64s, touches: Int64s,
    entries: int, sources: Int64s, pos: Int64s, weights: Int64s, factor: int, columns: int, nodes: int,
    appended: Int64s, info: Int64s,
) -> None:  # fmt: skip
    """Add factor * weights[i] to the row at pos[i] of the sources, for every i.

    Rows not found become entries `entries`, `entries` + 1, …; `appended` gets their positions in the sources, and
    the caller sets entry_pos for them. touches[e] counts the updates of entry e after it was appended.
    info = [rows appended, entries that died].
    """
    new = 0
    died = 0
    n = pos.shape[0]
    for i in range(n):
        p = pos[i]
        table = sources[p >> ROW_BITS]
        row = p & ROW_MASK
        h = load_u64(lane(table, HASH), row)
        w = weights[i] * factor
        at = _find_slot(
            slot_hash, slot_entry, h, tables, entry_pos, entries, sources, appended, table, row, columns, nodes
        )
        if at >= 0:
            entry = slot_entry[at]
            entry_weight[entry] += w
            touches[entry] += 1
            if entry_weight[entry] == 0:
                _delete_slot(slot_hash, slot_entry, at)
                died += 1
        else:
            entry_weight[entries + new] = w
            touches[entries + new] = 0
            appended[new] = p
            _insert_slot(slot_hash, slot_entry, h, entries + new)
            new += 1
    info[0] = new
    info[1] = died


@kernel
def would_overflow(
    slot_hash: UInt64s, slot_entry: Int64s, tables: Int64s, entry_pos: Int64s, entry_weight: Int64s, entries: int,
    sources: Int64s, pos: Int64s, weights: Int64s, factor: int, columns: int, nodes: int,
) -> bool:  # fmt: skip
    """Whether `upsert` would make a weight overflow int64; called only where weights are huge."""
    for i in range(pos.shape[0]):
        p = pos[i]
        table = sources[p >> ROW_BITS]
        row = p & ROW_MASK
        if multiply_overflows(weights[i], factor):
            return True
        h = load_u64(lane(table, HASH), row)
        at = _find_slot(
            slot_hash, slot_entry, h, tables, entry_pos, entries, tables, entry_pos, table, row, columns, nodes
        )
        if at >= 0 and add_overflows(entry_weight[slot_entry[at]], weights[i] * factor):
            return True
    return False


@kernel
def rebuild(
    slot_hash: UInt64s, slot_entry: Int64s, tables: Int64s, entry_pos: Int64s, entry_weight: Int64s, entries: int
) -> None:
    """Clear the slots and insert all live entries."""
    for at in range(slot_hash.shape[0]):
        slot_entry[at] = EMPTY
    for entry in range(entries):
        if entry_weight[entry] != 0:
            p = entry_pos[entry]
            _insert_slot(slot_hash, slot_entry, load_u64(lane(tables[p >> ROW_BITS], HASH), p & ROW_MASK), entry)


@kernel
def lookup(
    slot_hash: UInt64s, slot_entry: Int64s, tables: Int64s, entry_pos: Int64s, entry_weight: Int64s, entries: int,
    probe: int, rows: int, columns: int, nodes: int, out: Int64s,
) -> None:  # fmt: skip
    """out[i] = weight of the row equal to row i of the probe chunk, 0 where there is none."""
    hashes = lane(probe, HASH)
    for i in range(rows):
        at = _find_slot(
            slot_hash, slot_entry, load_u64(hashes, i), tables, entry_pos, entries, tables, entry_pos,
            probe, i, columns, nodes,
        )  # fmt: skip
        out[i] = entry_weight[slot_entry[at]] if at >= 0 else 0


@kernel
def lookup_point(
    slot_hash: UInt64s, slot_entry: Int64s, tables: Int64s, entry_pos: Int64s, entry_weight: Int64s, entries: int,
    probe: int, columns: int, nodes: int,
) -> int:  # fmt: skip
    """The weight of the row equal to the only row of a probe chunk, 0 if there is none."""
    h = load_u64(lane(probe, HASH), 0)
    at = _find_slot(
        slot_hash, slot_entry, h, tables, entry_pos, entries, tables, entry_pos, probe, i64(0), columns, nodes
    )
    return entry_weight[slot_entry[at]] if at >= 0 else i64(0)


@kernel
def hashes_at(tables: Int64s, pos: Int64s, node: int, out: UInt64s) -> None:
    """out[i] = the value at pos[i] of the 8-byte lane `node`."""
    for i in range(pos.shape[0]):
        p = pos[i]
        out[i] = load_u64(lane(tables[p >> ROW_BITS], node), p & ROW_MASK)


@kernel
def positions(lens: Int64s, tables: Int64s, pos: Int64s, weights: Int64s) -> None:
    """The positions and weights of all rows of some chunks, in order."""
    n = 0
    for c in range(lens.shape[0]):
        w = lane(tables[c], WEIGHT)
        mask = lane_mask(tables[c], WEIGHT)
        for row in range(lens[c]):
            pos[n] = c << ROW_BITS | row
            weights[n] = load_i64(w, row & mask)
            n += 1


@kernel
def sort_tied_rows(tables: Int64s, pos: Int64s, weights: Int64s, columns: int, nodes: int) -> None:
    """Sort rows with equal row hashes by value: `pos` is sorted by row hash, and no two rows are equal."""
    n = pos.shape[0]
    for i in range(1, n):
        p = pos[i]
        w = weights[i]
        h = load_u64(lane(tables[p >> ROW_BITS], HASH), p & ROW_MASK)
        j = i
        while j > 0:
            q = pos[j - 1]
            other = tables[q >> ROW_BITS]
            if load_u64(lane(other, HASH), q & ROW_MASK) != h or (
                compare_rows(other, q & ROW_MASK, tables[p >> ROW_BITS], p & ROW_MASK, columns, nodes) < 0
            ):
                break
            pos[j] = q
            weights[j] = weights[j - 1]
            j -= 1
        pos[j] = p
        weights[j] = w
