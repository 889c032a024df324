"""What can be set of a spine, and what merges of a spine with times may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dbspark.columnar import Batch
from dbspark.trace.time import Antichain


@dataclass(frozen=True, slots=True)
class SpineConfig:
    """Knobs of a spine; the constants beside them say what they trade."""

    fanout: int = 4
    """R: more means fewer rewrites of a row and more batches to read."""
    waiting: int | None = None
    """So many batches there have to be where there are next to no rows, before they become one; None: R."""
    space_low: float = 0.4
    """Newer rows allowed beside the oldest batch, as a share of it, where merges cancel much."""
    space_high: float = 1.0
    """The same where merges cancel nothing."""
    at_once: int = 2048
    """Merges of at most this many rows are done inside the insert."""
    growing: int | None = None
    """R, and one more than the share of newer rows, while nothing is taken away: for what is not looked up in. Of large
    batches it is sixteen times as many."""
    inserting: int | None = None
    """The same while keys are looked for, but far more rows come; of large batches it is four times as many only where
    next to no keys are."""
    indexed: int | None = None
    """Rows from which on a batch that is looked up in gets an index, which has to be in memory for it; None: none."""
    sieved: int | None = None
    """Rows from which on a spine that is looked up in gets a sieve (`trace.bloom_filter`); None: none."""
    step: int = 8192
    """Rows of one step of a larger merge."""
    credit: int = 16
    """Rows of merging paid for by each inserted row."""
    background: int | None = None
    """Merges from this many rows on are left to a thread beside the ticks; None: to no one else."""


DEFAULT = SpineConfig()


@dataclass(frozen=True, slots=True)
class Compaction:
    """What merges of a spine with times may do."""

    logical: Antichain
    """Readers are at or above this: times below it are advanced to it."""
    physical: Antichain
    """Batches that end after this are not merged: somebody reads up to their boundaries."""
    retain: Callable[[Batch], Batch] | None = None
    """Drops the rows that nobody will ask for again."""
