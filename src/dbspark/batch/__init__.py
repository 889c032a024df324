"""Batches: sorted, consolidated, immutable columns with weights; schemas; Arrow in and out."""

from dbspark.batch.arrangement import Arrangement
from dbspark.batch.batch import Batch, merge
from dbspark.batch.schema import Schema, SchemaLike

__all__ = ["Arrangement", "Batch", "Schema", "SchemaLike", "merge"]
