"""The product of two arranged batches: a merge join that stops and goes on inside a key.

Both sides are ordered by key hash. Where hashes meet, the two runs are paired row by row; keys are compared by
value, so runs that only collide give nothing. The state says where inside which pair of runs the join stands, so one
hot key of 10k x 10k rows is produced in as many steps as the caller likes.
"""

from __future__ import annotations

from typing import Any

from dbspark.kernels.jit import i64, inlined, kernel
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
    tables_a: Any, lens_a: Any, tables_b: Any, lens_b: Any, key_a: Any, key_b: Any, nodes: int,
    state: Any, pos_a: Any, pos_b: Any, weights: Any,
) -> int:  # fmt: skip
    """Write up to len(weights) pairs; returns how many, 0 at the end, or OVERFLOW.

    state = [chunk and row of the left, chunk and row where the right run begins, chunk and row inside it,
    1 if inside a run].
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
