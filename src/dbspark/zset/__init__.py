"""Z-sets: immutable rows with weights, the values on streams, in several forms for different workloads."""

from dbspark.zset import metrics
from dbspark.zset.config import BACKENDS, ZSetConfig, configure, configured, current
from dbspark.zset.zset import ArrangedView, IndexedZSet, ZSet, columns

__all__ = [
    "BACKENDS",
    "ArrangedView",
    "IndexedZSet",
    "ZSet",
    "ZSetConfig",
    "columns",
    "configure",
    "configured",
    "current",
    "metrics",
]
