"""What joins a pipeline to Spark's streams and sources: streams in, sinks out, and the data source `dbspark`.

Importing this package loads neither pyspark nor numba. `register` makes the data source known to a session:

    dbspark.connectors.register(spark)
    spark.read.format("dbspark").option("location", "state/shop").option("view", "revenue").load()

A pipeline does that for the session that it works with.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REGISTERED: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def register(spark: SparkSession) -> None:
    """Make the data source `dbspark` known to a session. Doing it again does nothing."""
    if spark not in _REGISTERED:
        from dbspark.connectors.source import DbsparkSource

        spark.dataSource.register(DbsparkSource)
        _REGISTERED.add(spark)


__all__ = ["register"]
