"""Pipelines: tables, views and transactions over a circuit."""

from dbspark.pipeline.state import restore, state_of

__all__ = ["restore", "state_of"]
