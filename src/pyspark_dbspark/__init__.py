"""How Spark finds the data source `dbspark` by itself: it looks for packages of such a name, and in them for this."""

from dbspark.connectors.stored_tables import PipelineSource as DefaultSource

__all__ = ["DefaultSource"]
