"""Z-sets: the value that flows on every stream, in whatever form suits what is done with it."""

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
