"""Whether a table stays one: no row is taken away that is not there, no key is there twice.

Only rows that a change takes away can become fewer than none, so of a table without a primary key only those are
looked for; of one with a key, every key of the change. Sums are exact: a weight is added as two halves.
"""

from __future__ import annotations

from typing import Any

from dbspark.kernels.jit import i64, kernel, load_i64, load_u64
from dbspark.kernels.merge import lane, lane_mask
from dbspark.kernels.nodes import HASH, KEY, WEIGHT
from dbspark.kernels.order import compare_rows
from dbspark.kernels.probe import address, find_chunk, lower_bound, same_key


@kernel
def breaks_table(
    tables: Any, lens: Any, fences: Any, starts: Any, probe: int, rows: int, key: Any, columns: int, nodes: int,
    unique: int,
) -> int:  # fmt: skip
    """1 where batches, of which the last has the rows of the probe chunk, hold a row or key (`unique`) that cannot be.

    Batches may have times: a row occurs once for each.
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
