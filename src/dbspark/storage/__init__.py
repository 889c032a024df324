"""Durable state: batch files, tick files, manifests, the lock of the writer, and the removal of unneeded files.

Nothing here knows of pipelines: a store is given spines by name and a program that is JSON to it.
"""

from dbspark.storage.retirement import Keep
from dbspark.storage.store import Committed, Group, Store

__all__ = ["Committed", "Group", "Keep", "Store"]
