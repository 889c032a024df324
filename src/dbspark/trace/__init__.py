"""Traces: sequences of immutable batches, levelled and merged in the background of a tick."""

from dbspark.trace.spine import Spine, SpineConfig

__all__ = ["Spine", "SpineConfig"]
