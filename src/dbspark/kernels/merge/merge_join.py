"""A merge join of two batches, in steps that may end anywhere, also inside a key.

Both sides are sorted by key hash. Where hashes are equal, the two runs are paired row by row; keys are compared by
value, so runs of different keys with one hash give no pairs. The state is the place, inside a pair of runs, where
the next step goes on, so the pairs of one hot key of 10,000 × 10,000 rows are produced in as many steps as the caller
wants.
"""

from __future__ import annotations

from dbspark.kernels.jit import Int64s, i64, inlined, kernel
from dbspark.kernels.lookup.index import lower_bound
from dbspark.kernels.lookup.probe import same_key
from dbspark.kernels.memory.intrinsics import load_i64, load_u64, multiply_overflows
from dbspark.kernels.memory.layout import KEY, OVERFLOW, ROW_BITS, WEIGHT
from dbspark.kernels.memory.nodes import lane, lane_mask


@inlined
def _weight(table: int, row: int) -> int:
    return load_i64(lane(table, WEIGHT), row & lane_mask(table, WEIGHT))


@kernel
def join_step(
    tables_a: Int64s, lens_a: Int64s, tables_b: Int64s, lens_b: Int64s, key_a: Int64s, key_b: Int64s, nodes: int,
    state: Int64s, pos_a: Int64s, pos_b: Int64s, weights: Int64s,
) -> int:  # fmt: skip
    """Write at most len(weights) pairs; returns how many, 0 at the end, or OVERFLOW.

    state = [chunk and row of the left side, chunk and row where the run of the right side begins, chunk and row inside
    that run, 1 if inside a run]; zeros at the beginning.
    """
    ca, ia, cb, ib, c, i, inside = state[0], state[1], state[2], state[3], state[4], state[5], state[6]
    limit = weights.shape[0]
    out = 0
    while out < limit and ca < tables_a.shape[0]:
        if ia >= lens_a[ca]:
            ca += 1
            ia = i64(0)
            continue
        ta = tables_a[ca]
        key = load_u64(lane(ta, KEY), ia)
        if inside == 0:
            while cb < tables_b.shape[0]:
                ib = lower_bound(lane(tables_b[cb], KEY), ib, lens_b[cb], key)
                if ib < lens_b[cb]:
                    break
                cb += 1
                ib = i64(0)
            if cb >= tables_b.shape[0]:
                ca = i64(tables_a.shape[0])
                break
            other = load_u64(lane(tables_b[cb], KEY), ib)
            if other != key:
                ia = lower_bound(lane(ta, KEY), ia, lens_a[ca], other)
                continue
            c, i, inside = cb, ib, i64(1)
        # Pair the left row with the rest of the right run.
        w = _weight(ta, ia)
        while out < limit:
            if i >= lens_b[c]:
                c += 1
                i = i64(0)
                if c >= tables_b.shape[0]:
                    inside = i64(0)
                    break
                continue
            tb = tables_b[c]
            if load_u64(lane(tb, KEY), i) != key:
                inside = i64(0)
                break
            if same_key(ta, ia, key_a, tb, i, key_b, nodes):
                v = _weight(tb, i)
                if multiply_overflows(w, v):
                    return OVERFLOW
                pos_a[out] = ca << ROW_BITS | ia
                pos_b[out] = c << ROW_BITS | i
                weights[out] = w * v
                out += 1
            i += 1
        if inside == 0:
            ia += 1
    state[0], state[1], state[2], state[3], state[4], state[5], state[6] = ca, ia, cb, ib, c, i, inside
    return out
