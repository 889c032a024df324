"""Pipelines: tables, views and transactions over a circuit, and the state of all of them on disk."""

from dbspark.pipeline.retirement import Keep
from dbspark.pipeline.state import restore, state_of
from dbspark.pipeline.store import Committed, Group, Store

__all__ = ["Committed", "Group", "Keep", "Store", "restore", "state_of"]
