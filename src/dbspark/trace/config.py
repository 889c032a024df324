"""`SpineConfig`: the limits of a spine; `Compaction`: what merges of a spine with times may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dbspark.columnar import Batch
from dbspark.trace.time import Antichain


@dataclass(frozen=True, slots=True)
class SpineConfig:
    """Limits of a spine. They change when rows are merged and how they are found, never which rows there are.

    Limits in rows count rows as they are stored, before consolidation across batches.
    """

    fanout: int = 4
    """R: so many batches of one level become one of the next. More means fewer rewrites of a row and more batches to
    read."""
    min_tiny_batches: int | None = None
    """A spine whose oldest batch is tiny is merged for its space only from this many batches on; None: `fanout`."""
    min_space_share: float = 0.4
    """Newer rows allowed beside the oldest batch, as a share of it, where merges remove many rows."""
    max_space_share: float = 1.0
    """The same where merges remove none."""
    max_inline_merge_rows: int = 2048
    """Merges that read at most this many rows are done inside the insert; larger ones in steps or in the background."""
    append_only_fanout: int | None = None
    """R of a spine with next to no retractions whose keys are not looked up; large batches use sixteen times as much.
    The newer rows may then be `append_only_fanout - 1` times the oldest batch. None: `fanout`."""
    seldom_read_fanout: int | None = None
    """R of a spine with next to no retractions that takes in far more rows than keys are looked up; large batches use
    four times as much where next to no keys are. None: `fanout`."""
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
