"""Traces: the history of a Z-set as immutable batches in levels, which are merged, compacted and shared."""

from dbspark.trace.agent import TraceAgent, TraceImport
from dbspark.trace.config import SpineConfig
from dbspark.trace.cursor import Cursor
from dbspark.trace.lookup import FoundRows, Keys
from dbspark.trace.spine import Spine
from dbspark.trace.time import Antichain, Description, MutableAntichain, ProductTime, Time, TotalTime, advance_by
from dbspark.trace.trace import Trace, idle_merge_effort

__all__ = [
    "Antichain",
    "Cursor",
    "Description",
    "FoundRows",
    "Keys",
    "MutableAntichain",
    "ProductTime",
    "Spine",
    "SpineConfig",
    "Time",
    "TotalTime",
    "Trace",
    "TraceAgent",
    "TraceImport",
    "advance_by",
    "idle_merge_effort",
]  # fmt: skip
