"""Batches (sorted, consolidated, immutable columns with weights), schemas, and the import and export of Arrow data."""

from dbspark.columnar.batch import Batch, merge
from dbspark.columnar.schema import Schema, SchemaLike
from dbspark.columnar.sort_key import SortKey

__all__ = ["Batch", "Schema", "SchemaLike", "SortKey", "merge"]
