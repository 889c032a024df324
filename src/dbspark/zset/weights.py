"""Arithmetic on weights that never wraps: a result outside -(2**63-1) … 2**63-1 is a `WeightOverflowError`."""

from __future__ import annotations

from typing import Any

import numpy as np

from dbspark.columnar import Batch
from dbspark.columnar.memory import INT64_MAX, Int64s
from dbspark.errors import WeightOverflowError


def weight_overflow(row: Any) -> WeightOverflowError:
    """The error for a row whose weight does not fit. Raise it only where nothing has been applied."""
    return WeightOverflowError(f"the weight of {row!r} would leave the range of int64; nothing was applied")


def exact_weight_sum(weights: Int64s) -> int:
    """The sum as a Python integer. The upper and the lower 32 bits are summed separately, so neither sum wraps."""
    return (int((weights >> 32).sum()) << 32) + int((weights & 0xFFFFFFFF).sum())


def multiply_weights(weights: Int64s, factor: Any) -> Int64s:
    """Weights times one factor, or each times a factor of its own."""
    if not len(weights):
        return weights
    factors = np.asarray(factor, np.int64)
    bound = max(int(weights.max()), -int(weights.min())) * max(int(factors.max()), -int(factors.min()))
    if bound > INT64_MAX:
        for w, f in zip(weights.tolist(), np.broadcast_to(factors, weights.shape).tolist(), strict=True):
            if abs(w * f) > INT64_MAX:
                raise weight_overflow("a row")
    product: Int64s = weights * factors
    return product


def scale_batch(batch: Batch, factor: int) -> Batch:
    """A batch with all weights times `factor`, which is not zero."""
    if batch.largest * abs(factor) > INT64_MAX:
        raise weight_overflow("a row")
    return batch.with_weights(batch.weights() * np.int64(factor))
