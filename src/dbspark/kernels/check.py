"""Whether a table stays one: no row is taken away that is not there, no key is there twice.

Only rows that a change takes away can become fewer than none, so of a table without a primary key only those are
looked for; of one with a key, every key of the change. Sums are exact: a weight is added as two halves.

Most batches hold none of the rows that are looked for. A *filter* is a set of bits, some for each row of a batch, of
which those are set that the key hashes of its rows point to by their first bits: where the bit of a hash is not set,
there is no need to search.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.kernels.jit import i64, kernel, load_i64, load_u64
from dbspark.kernels.merge import lane, lane_mask
from dbspark.kernels.nodes import HASH, KEY, WEIGHT
from dbspark.kernels.order import compare_rows
from dbspark.kernels.probe import address, find_chunk, lower_bound, same_key


@kernel
def fill_filter(tables: Any, lens: Any, shift: int, out: Any) -> None:
    """Set the bits that the keys of a batch point to: those that `shift` leaves of them are the number of a bit."""
    for c in range(tables.shape[0]):
        keys = lane(tables[c], KEY)
        for i in range(lens[c]):
            bit = load_u64(keys, i) >> np.uint64(shift)
            out[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))


@kernel
def breaks_table(
    tables: Any, lens: Any, fences: Any, starts: Any, filters: Any, probe: int, rows: int, key: Any, columns: int,
    nodes: int, unique: int,
) -> int:  # fmt: skip
    """1 where batches, of which the last has the rows of the probe chunk, hold a row or key (`unique`) that cannot be.

    Batches may have times: a row occurs once for each. filters[b] = (address, shift) of the filter of a batch; 0: none.
    """
    keys, hashes = lane(probe, KEY), lane(probe, HASH)
    own, mask = lane(probe, WEIGHT), lane_mask(probe, WEIGHT)
    fence = address(fences)
    for i in range(rows):
        weight = load_i64(own, i & mask)
        h, rh = load_u64(keys, i), load_u64(hashes, i)
        if weight > 0:
            if unique == 0:
                continue
            if i > 0 and load_u64(keys, i - 1) == h and same_key(probe, i64(i), key, probe, i64(i) - 1, key, nodes):
                continue  # the key has been looked at
        row_high, row_low, key_high, key_low = i64(0), i64(0), i64(0), i64(0)
        for b in range(starts.shape[0] - 1):
            c, end = starts[b], starts[b + 1]
            if c >= end:
                continue
            if filters[b, 0] != 0:
                bit = h >> np.uint64(filters[b, 1])
                if load_u64(filters[b, 0], i64(bit >> np.uint64(6))) >> (bit & np.uint64(63)) & np.uint64(1) == 0:
                    continue
            if end - c > 1:
                c = find_chunk(fence, c, end, h)
            at = lower_bound(lane(tables[c], KEY), i64(0), lens[c], h)
            while True:
                if at >= lens[c]:
                    c += 1
                    at = i64(0)
                    if c >= end:
                        break
                table = tables[c]
                if load_u64(lane(table, KEY), at) != h:
                    break
                w = load_i64(lane(table, WEIGHT), at & lane_mask(table, WEIGHT))
                if (
                    load_u64(lane(table, HASH), at) == rh
                    and compare_rows(table, at, probe, i64(i), columns, nodes) == 0
                ):
                    row_high += w >> 32
                    row_low += w & 0xFFFFFFFF
                if unique == 1 and same_key(probe, i64(i), key, table, at, key, nodes):
                    key_high += w >> 32
                    key_low += w & 0xFFFFFFFF
                at += 1
        if row_high + (row_low >> 32) < 0:
            return 1
        high = key_high + (key_low >> 32)
        if high > 0 or (high == 0 and (key_low & 0xFFFFFFFF) > 1):
            return 1
    return 0
