"""Where state lives: batch files, the files of ticks, manifests, and whoever may remove what is no longer needed.

Nothing here knows of pipelines: a store is given spines by name and a program that is JSON to it.
"""

from dbspark.storage.retirement import Keep
from dbspark.storage.store import Committed, Group, Store

__all__ = ["Committed", "Group", "Keep", "Store"]
