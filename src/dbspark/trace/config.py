"""`SpineConfig`: the limits of a spine; `Compaction`: what merges of a spine with times may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dbspark.columnar import Batch
from dbspark.trace.time import Antichain


@dataclass(frozen=True, slots=True)
class SpineConfig:
    """Limits of a spine. They decide when rows are merged and how they are looked up, never which rows it holds.

    Limits in rows count rows as they are stored, before consolidation across batches.
    """

    fanout: int = 4
    """R: this many batches of one level become one of the next. A larger R means fewer rewrites of each row and more
    batches for each lookup."""
    min_tiny_batches: int | None = None
    """The space rule merges a spine whose oldest batch is tiny only if it has this many batches; None: `fanout`."""
    min_space_share: float = 0.4
    """Newer rows allowed beside the oldest batch, as a share of it, where merges remove many rows."""
    max_space_share: float = 1.0
    """The same share where merges remove no rows."""
    max_inline_merge_rows: int = 2048
    """Merges that read at most this many rows are done inside the insert; larger ones in steps or in the background."""
    append_only_fanout: int | None = None
    """R of a spine with next to no retractions whose keys are not looked up; for large batches R is 16 times that.
    The newer rows may then be `append_only_fanout - 1` times the oldest batch. None: `fanout`."""
    seldom_read_fanout: int | None = None
    """R of a spine with next to no retractions and far fewer looked-up keys than inserted rows; for large batches R is
    4 times that where next to no keys are looked up. None: `fanout`."""
    min_indexed_rows: int | None = None
    """Batches from this many rows on get a hash index once they are looked up in. The index is held in memory. None:
    no indices."""
    min_filtered_rows: int | None = None
    """Spines from this many rows on get a Bloom filter once they are looked up in (`trace.bloom_filter`). None: no
    filters."""
    merge_step_rows: int = 8192
    """Rows of one step of a merge that inserts pay for."""
    merge_rows_per_row: int = 16
    """Credit: rows of merging that each inserted row pays for."""
    min_background_rows: int | None = None
    """Merges that read at least this many rows run on the background thread. None: all are paid for by inserts."""


DEFAULT = SpineConfig()


@dataclass(frozen=True, slots=True)
class Compaction:
    """What merges of a spine with times may do."""

    logical: Antichain
    """Every reader is at or above this frontier: times below it are advanced to it."""
    physical: Antichain
    """Batches that end after this are not merged: somebody reads up to their boundaries."""
    retain: Callable[[Batch], Batch] | None = None
    """Leaves out rows below the bounds of the retention (`trace.retention`); None where there are no bounds."""
