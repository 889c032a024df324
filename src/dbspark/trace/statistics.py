"""Statistics of a spine, shared by all its versions. They decide how fast things are done, never what is returned.

Kernels count the keys that they look up at the address of `lookup_counters` (`kernels.lookup.bloom_filter`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from dbspark.columnar import Batch
from dbspark.columnar.memory import allocate

START_WALK_RATIO = 128
"""Lookups begin to walk (a merge join) when the spine has at most this many rows for each row of a usual delta."""
STOP_WALK_RATIO = 512
"""Lookups go back to searching for each key when the spine has more than this many rows for each row of a usual delta.
Both cost the same at about 250 (measured by `benchmarks.circuit.lookups`)."""
_RISE_WEIGHT = 0.05
"""EWMA weight with which `unfiltered_keys` rises; it falls with 0.3."""
_COUNTERS = Struct("2q")


def new_lookup_counters() -> Any:
    lookup_counters = allocate(_COUNTERS.size)
    _COUNTERS.pack_into(lookup_counters, 0, 0, 0)
    return lookup_counters


@dataclass(slots=True)
class SpineStats:
    """Running averages over the inserts, merges and lookups of a spine, shared by all its versions."""

    inserts: int = 0
    merges: int = 0
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    reduction: float = 0.0
    """EWMA of the share of rows that vanish in a merge."""
    removals: float = 0.0
    """EWMA of the share of retractions among inserted rows, which predicts how many rows merging will save."""
    probe_rows: float = 0.0
    """EWMA of the rows of the deltas that are looked up in this spine."""
    insert_rows: float = 0.0
    """EWMA of the rows of an insert."""
    unfiltered_keys: float = 0.0
    """EWMA of the keys between two inserts that the Bloom filter does not exclude, so that all batches are searched. It
    rises slowly: a single tick with many lookups should not cause a merge of everything."""
    sought_keys: float = 0.0
    """EWMA of the keys between two inserts that are looked up."""
    filtered_keys: float = 0.0
    """EWMA of the keys between two inserts that the Bloom filter excluded."""
    lookup_counters: Any = field(default_factory=new_lookup_counters)
    """Keys looked up and keys excluded by the filter since the last insert, as kernels count them."""
    no_filter_up_to_rows: int = 0
    """Rows of the spine up to which no Bloom filter is built, because one has excluded too few keys."""
    is_walking: bool = False
    """Whether lookups walk at present: the state of the hysteresis of `prefers_walk`."""

    def record_insert(self, batch: Batch) -> None:
        self.inserts += 1
        self.removals += 0.3 * (batch.negative / batch.rows - self.removals)
        self.insert_rows += 0.3 * (batch.rows - self.insert_rows)
        sought_keys, filtered_keys = _COUNTERS.unpack_from(self.lookup_counters)
        more = sought_keys - filtered_keys - self.unfiltered_keys
        self.unfiltered_keys += (0.3 if more < 0 else _RISE_WEIGHT) * more
        self.sought_keys += 0.3 * (sought_keys - self.sought_keys)
        self.filtered_keys += 0.3 * (filtered_keys - self.filtered_keys)
        _COUNTERS.pack_into(self.lookup_counters, 0, 0, 0)

    def record_lookups(self, keys: int) -> None:
        """Count keys that are looked up by a kernel that does not count them."""
        sought_keys, filtered_keys = _COUNTERS.unpack_from(self.lookup_counters)
        _COUNTERS.pack_into(self.lookup_counters, 0, sought_keys + keys, filtered_keys)

    def prefers_walk(self, delta: int, rows: int) -> bool:
        """Whether to look up a delta of sorted keys in `rows` rows by walking along both (a merge join), rather than by
        searching for each key.

        It depends on the EWMA of the sizes of deltas, with hysteresis; the keys of a single small delta among large
        ones are searched for. Both ways find the same rows.
        """
        self.probe_rows += (0.3 if self.probe_rows else 1.0) * (delta - self.probe_rows)
        self.is_walking = self.probe_rows * (STOP_WALK_RATIO if self.is_walking else START_WALK_RATIO) >= rows
        return self.is_walking and delta * STOP_WALK_RATIO >= rows

    def record_merge(self, before: int, after: int) -> None:
        self.merges += 1
        self.rows_in += before
        self.rows_out += after
        self.reduction += 0.3 * ((before - after) / max(before, 1) - self.reduction)
